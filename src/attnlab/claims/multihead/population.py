"""Finitely many equally likely sequences: training sets of any size at no cost, and population risks without error.

A set of n draws is known by how often each sequence came, and gradient descent sees no more than these shares. The run
without one draw is one for each different sequence. Where there are two sequences, all training sets of n draws can be
listed with their probabilities, so that an expected gap is a sum and has no standard error.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from scipy.stats import binom

from attnlab.claims.multihead.conditions import longest_token
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array, Tokens
from attnlab.theory.multihead.bounds import Shape
from attnlab.theory.multihead.margins import attention_of

Weights = Mapping[str, Array]

# Training sets further from the mean than this many standard deviations have no weight in double precision.
REACH = 9.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """Sequences x (m, T, d) with labels y (m,), all equally likely."""

    x: Array
    y: Array

    @property
    def m(self) -> int:
        """How many sequences."""
        return len(self.y)

    @property
    def sizes(self) -> tuple[int, int, float]:
        """T, d and R, as the conditions of the theorems need them."""
        return self.x.shape[1], self.x.shape[2], longest_token(self.x)

    def draw(self, n: int, sets: int, seed: int) -> Array:
        """Shares of the sequences in so many training sets of n draws, (sets, m)."""
        return np.random.default_rng(seed).multinomial(n, np.full(self.m, 1.0 / self.m), size=sets) / n

    def every_set(self, n: int) -> tuple[Array, Array]:
        """Shares (sets, 2) of all training sets of n draws from two sequences, and their probabilities (sets,)."""
        if self.m != 2:
            raise ValueError("all sets are listed for two sequences only")
        half_width = REACH * np.sqrt(n) / 2.0
        first = max(0, int(n / 2.0 - half_width))
        last_ = min(n, int(n / 2.0 + half_width) + 1)
        times = np.arange(first, last_ + 1)
        return np.stack([times, n - times], axis=1) / n, binom.pmf(times, n, 0.5)

    def tokens(self, shares: Array, n: int) -> Tokens:
        """One training set with these shares, written out."""
        which = np.repeat(np.arange(self.m), np.rint(n * shares).astype(int))
        return Tokens.self_attention(self.x[which], self.y[which])

    def shape(self, *, sharp: bool = False) -> Shape:
        """As bounds see it."""
        return Shape.of(self.x, sharp=sharp)


def signal_and_noise(signal: float = 0.98, noise: float = 0.15, T: int = 2) -> Population:
    """All T tokens are (signal y, +-noise), with any signs of the noise."""
    rows = [(y, signs) for y in (1.0, -1.0) for signs in itertools.product((1.0, -1.0), repeat=T)]
    x = np.array([[(signal * y, noise * s) for s in signs] for y, signs in rows])
    return Population(x=x, y=np.array([y for y, _ in rows]))


def noisy_labels(tokens: tuple[float, ...]) -> Population:
    """One sequence of one-dimensional tokens, with either label: nothing can be learned, and the gap is largest."""
    x = np.array(tokens)[None, :, None]  # (1, T, 1)
    return Population(x=np.concatenate([x, x]), y=np.array([1.0, -1.0]))


def two_lengths(tokens: tuple[float, ...], other: float) -> Population:
    """One sequence of one-dimensional tokens, and the same times `other`, both of label 1: separable, with a gap."""
    x = np.array(tokens)[None, :, None]
    return Population(x=np.concatenate([x, other * x]), y=np.ones(2))


def output(population: Population, weights: Weights, counts: Array) -> Array:
    """Outputs (R, m) at weights U (R, G, T, d), W (R, G, d, d)."""
    return _forward(population, weights, counts)[0]


def losses(population: Population, weights: Weights, counts: Array) -> Array:
    """Logistic loss of every sequence, (R, m); its mean over m is the population risk."""
    return np.logaddexp(0.0, -population.y * output(population, weights, counts))


def gradient(population: Population, shares: Array, weights: Weights, counts: Array) -> dict[str, Array]:
    """Gradient of `sum_j share_j loss_j` by one head of each group; run r has shares[r]."""
    outputs, A, inner = _forward(population, weights, counts)
    x, y = population.x, population.y
    slope = -y * expit(-y * outputs) * shares / np.sqrt(counts.sum())
    by_W = np.swapaxes(x, -1, -2) @ inner @ x
    return {"U": np.einsum("rm,rgmtd->rgtd", slope, A @ x), "W": np.einsum("rm,rgmde->rgde", slope, by_W)}


def descent(
    population: Population, shares: Array, start: Weights, counts: Array, step: float, K: int
) -> Iterator[dict[str, Array]]:
    """The weights of all runs after 0, 1, ..., K steps of gradient descent from one start."""
    weights = {k: np.repeat(np.asarray(w)[None], len(shares), axis=0) for k, w in start.items()}
    for _ in range(K):
        yield weights
        slope = gradient(population, shares, weights, counts)
        weights = {k: w - step * slope[k] for k, w in weights.items()}
    yield weights


def last(population: Population, shares: Array, start: Weights, counts: Array, step: float, K: int) -> dict[str, Array]:
    """The weights after K steps."""
    return deque(descent(population, shares, start, counts, step, K), maxlen=1)[0]


def with_left_out(shares: Array, n: int) -> Array:
    """Shares of every set, then of the set without one draw of each sequence, (sets, 1 + m, m).

    Still divided by n. Where a sequence did not come, the set is as it was: its distance is 0, and so is its share.
    """
    m = shares.shape[-1]
    less = shares[:, None, :] - np.where(shares[:, :, None] > 0, np.eye(m) / n, 0.0)
    return np.concatenate([shares[:, None, :], less], axis=1)


def expected_gap(
    population: Population, n: int, start: Weights, counts: Array, step: float, K: int
) -> tuple[float, float]:
    """E[test - train loss] over all training sets of n draws from two sequences after K steps; and E[test loss]."""
    shares, chances = population.every_set(n)
    final = losses(population, last(population, shares, start, counts, step, K), counts)
    risk = final.mean(-1)
    gaps = risk - np.sum(shares * final, axis=-1)
    return float(chances @ gaps), float(chances @ risk)


def zero_start(population: Population) -> dict[str, Array]:
    """One group of heads, all zero."""
    T, d = population.x.shape[1:]
    return {"U": np.zeros((1, T, d)), "W": np.zeros((1, d, d))}


@dataclass(frozen=True, kw_only=True)
class Target:
    """Weights at distance D from zero that read the first coordinate, spread evenly over the heads, and their loss."""

    D: float
    loss: float

    @classmethod
    def at(cls, population: Population, D: float) -> Target:
        """Its loss is that of the worst sequence, so it is no more on any training set."""
        T = population.x.shape[1]
        margins = D * (population.y[:, None] * population.x[:, :, 0]).sum(1) / np.sqrt(T)
        return cls(D=D, loss=float(np.logaddexp(0.0, -margins).max()))

    def weights(self, population: Population, H: float) -> dict[str, Array]:
        """Of one head."""
        start = zero_start(population)
        start["U"][0, :, 0] = self.D / np.sqrt(H * population.x.shape[1])
        return start


def _forward(population: Population, weights: Weights, counts: Array) -> tuple[Array, Array, Array]:
    """Outputs (R, m), attention A (R, G, m, T, T), and A (Q - rowsum(A Q)) of the same shape, with Q = U x^T."""
    x = population.x
    A = attention_of(x, weights["W"][:, :, None])
    Q = weights["U"][:, :, None] @ np.swapaxes(x, -1, -2)
    each = np.sum(A * Q, axis=-1, keepdims=True)
    outputs = np.einsum("g,rgm->rm", counts, each.sum((-2, -1))) / np.sqrt(counts.sum())
    return outputs, A, A * (Q - each)


def sets_of(scale: Scale) -> int:
    """Training sets that a mean is taken over."""
    return scale.pick(20, 50, 200)
