"""Coordinates in which the margin of a head is well defined: of the hidden states, or whitened queries and keys.

The queries and keys of a head are not: q -> A^-T q, k -> A k is the same head for every invertible A. Two choices are:

    hidden    x = U^T h_t,  z = [V^T h_i; 1],  W_0 = U^T W_K^T [W_Q V, b_Q] / sqrt(d_h)
    whitened  x = S_k^-1/2 k_t,  z = S_q^-1/2 q_i,  W_0 = S_k^1/2 S_q^1/2 / sqrt(d_h)

with U and V orthonormal bases of the row spaces of W_K and W_Q, S_k the covariance of the keys and S_q the second
moment of the queries. A constant added to all keys, as their bias is, changes no lead. In both, logits are x^T W_0 z up
to a constant for each query.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from attnlab.data.tokens import Array
from attnlab.reports.probing.layout import Mask

# Directions along which the tokens spread less than this, relative to the widest, are rounding of 32-bit arrays.
FLAT = 1e-5


class Metric(Enum):
    """In which coordinates a head was measured."""

    HIDDEN = "hidden"
    WHITENED = "whitened"


@dataclass(frozen=True, eq=False)
class Coordinates:
    """One head: x (P, T, a) as keys, z (P, T, b) as queries, and its weights W (a, b)."""

    x: Array
    z: Array
    W: Array


def hidden_coordinates(hidden: Array, W_Q: Array, W_K: Array, b_Q: Array) -> Coordinates:
    """Of hidden states (P, T, D), W_Q and W_K (d_h, D), b_Q (d_h); W up to its scale.

    >>> rng = np.random.default_rng(0)
    >>> h, W_Q, W_K, b = (rng.standard_normal(shape) for shape in [(3, 4, 9), (2, 9), (2, 9), (2,)])
    >>> found = hidden_coordinates(h, W_Q, W_K, b)
    >>> logits = np.einsum("ptd,pid->pit", h @ W_K.T, h @ W_Q.T + b) / np.sqrt(2)
    >>> ours = np.einsum("pta,ab,pib->pit", found.x, found.W, found.z)
    >>> np.allclose(ours / ours.max(), logits / logits.max()), found.W.shape
    (True, (2, 3))
    """
    U = _row_basis(W_K)  # (D, a)
    V = _row_basis(W_Q)  # (D, b - 1)
    x = hidden @ U
    z = np.concatenate([hidden @ V, np.ones((*hidden.shape[:2], 1))], axis=-1)
    right = np.concatenate([W_Q @ V, b_Q[:, None]], axis=-1)  # (d_h, b)
    return Coordinates(x, z, _largest_as_one(W_K @ U).T @ _largest_as_one(right))


def whitened_coordinates(q: Array, k: Array, keys: Mask, queries: Mask) -> Coordinates:
    """Of q and k (P, T, d_h), with moments over keys that may be chosen and queries that choose; W up to its scale.

    >>> rng = np.random.default_rng(0)
    >>> q, k, all_of_them = rng.standard_normal((5, 6, 3)), rng.standard_normal((5, 6, 3)), np.ones((5, 6), dtype=bool)
    >>> found = whitened_coordinates(q, k, all_of_them, all_of_them)
    >>> logits = np.einsum("pid,ptd->pit", q, k - k.mean((0, 1)))
    >>> ours = np.einsum("pta,ab,pib->pit", found.x, found.W, found.z)
    >>> np.allclose(ours / ours.max(), logits / logits.max())
    True
    """
    q = _largest_as_one(q)
    k = _largest_as_one(k)
    centred = k - k[keys].mean(0)
    to_x, from_x = _whitening(centred[keys])
    to_z, from_z = _whitening(q[queries])
    return Coordinates(centred @ to_x, q @ to_z, from_x.T @ from_z)


def at_unit_scale(given: Coordinates, keys: Mask, queries: Mask) -> Coordinates:
    """The same head with keys around 0 and no entry beyond 1, and zeros in the place of tokens that are not asked.

    Neither a constant added to all keys nor a scale of x, z or W changes a selection or a share.
    """
    x = np.where(keys[..., None], given.x - given.x[keys].mean(0), 0.0)
    z = np.where(queries[..., None], given.z, 0.0)
    return Coordinates(*(_largest_as_one(part) for part in (x, z, given.W)))


def _largest_as_one(values: Array) -> Array:
    largest = np.abs(values).max()
    return values / largest if largest > 0 else values


def canonical(given: Coordinates, keys: Mask) -> Coordinates:
    """The same head along the singular directions of its weights, so that equal heads give equal numbers.

    A rotation of x or z, as another basis of the same space is, changes no lead and no norm of W that looks at singular
    values alone. Of each pair of directions the sign is chosen by the longest key along it.
    """
    left, singular, right = np.linalg.svd(given.W, full_matrices=True)
    x = given.x @ left
    z = given.z @ right.T
    signs_x = _signs(x[keys])
    signs_z = _signs(z[keys])
    paired = len(singular)
    signs_z[:paired] = signs_x[:paired]  # a singular pair turns together
    W = np.zeros_like(given.W)
    np.fill_diagonal(W, singular)
    return Coordinates(x * signs_x, z * signs_z, W)


def _signs(points: Array) -> Array:
    """+-1 along each axis, by which the point furthest out comes to be positive."""
    furthest = np.take_along_axis(points, np.abs(points).argmax(0)[None], axis=0)[0]
    return np.where(furthest < 0, -1.0, 1.0)


def _row_basis(weights: Array) -> Array:
    """(D, rank): orthonormal basis of the row space, of all the one nearest to the rows where they are independent."""
    left, singular, right = np.linalg.svd(weights, full_matrices=False)
    rank = max(1, int((singular > FLAT * singular[0]).sum()))
    if rank == len(weights):
        return (left @ right).T
    return right[:rank].T


def _whitening(points: Array) -> tuple[Array, Array]:
    """(d, r) maps: rows @ first have second moment 1, and rows @ first @ second^T are the rows again."""
    _, singular, right = np.linalg.svd(points / np.sqrt(len(points)), full_matrices=False)
    kept = singular > FLAT * singular[0]
    if not kept.any():
        nothing = np.zeros((points.shape[1], 1))
        return nothing, nothing
    roots = singular[kept]
    basis = right[kept].T  # (d, r)
    turn = basis.T if len(roots) == len(basis) else np.eye(len(roots))  # the symmetric root, where there is one
    return (basis / roots) @ turn, (basis * roots) @ turn
