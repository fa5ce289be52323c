"""What chance is: heads like the one that is probed, with random directions.

A null must hold for weights that nobody trained. Two do, each in its metric, for Gaussian W_Q and W_K:

- hidden: the singular values of W_0 along directions drawn by Haar's law. The weights of an untrained head have no
  preferred direction among the tokens.
- whitened: keys turned against queries, q^T k -> q^T B k with B drawn by Haar's law. Here W_0 is made of the widths of
  queries and keys, and along the widest directions tokens have tails of their own. So an untrained head beats singular
  directions drawn at random (mean z = 1.3 on MiniLM with random weights), but not its own queries and keys turned.
  B is drawn in balanced coordinates, those among all q -> A^-T q, k -> A k in which queries and keys have the same
  second moments diag(s); so chance is one for all of these, which are one head. W_0 = P s R^T becomes
  P s^1/2 B s^1/2 R^T. The price: of weights of rank one only the sign is turned, so chance is close to the head itself
  where the stable rank is near one.
"""

from __future__ import annotations

import numpy as np

from attnlab.data.tokens import Array
from attnlab.reports.probing.metrics import Metric


def chance_weights(W: Array, metric: Metric, draws: int, seed: list[int]) -> Array:
    """(draws, a, b): weights by chance in the place of W; draw i is the same however many there are.

    >>> W = np.diag([3.0, 1.0])
    >>> np.linalg.svd(chance_weights(W, Metric.HIDDEN, 2, [0]), compute_uv=False).round(12).tolist()
    [[3.0, 1.0], [3.0, 1.0]]
    """
    drawn = [np.random.default_rng([*seed, draw]) for draw in range(draws)]
    make = rotated if metric is Metric.HIDDEN else rematched
    return np.stack([make(W, rng) for rng in drawn])


def rotated(W: Array, rng: np.random.Generator) -> Array:
    """W with left and right singular directions drawn by Haar's law."""
    return haar(W.shape[0], rng) @ W @ haar(W.shape[1], rng).T


def rematched(W: Array, rng: np.random.Generator) -> Array:
    """P s R^T as P s^1/2 B s^1/2 R^T: the same queries and keys, turned against each other by B."""
    left, singular, right = np.linalg.svd(W, full_matrices=False)
    roots = np.sqrt(singular)
    return (left * roots) @ haar(len(roots), rng) @ (roots[:, None] * right)


def haar(d: int, rng: np.random.Generator) -> Array:
    """A rotation or reflection, uniform over all of them: the QR factor whose R has a positive diagonal."""
    Q, R = np.linalg.qr(rng.standard_normal((d, d)))
    return Q * np.where(np.diag(R) < 0, -1.0, 1.0)
