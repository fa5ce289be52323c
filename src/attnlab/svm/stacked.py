"""Constraints of many trials of one shape, and what solving them together gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array, Tokens
from attnlab.svm.rows import ORDINARY, differences


@dataclass(frozen=True, eq=False)
class StackedRows:
    """The constraints of R trials in which every query sees every token.

    Attributes:
        p: token differences, (R, N, d).
        queries: (R, M, d).
        query: which query each constraint belongs to, (N,), ascending; each has as many.
        p_lengths, q_lengths: |p_j|, (R, N), and the lengths of the queries, (R, M).
        norms: |A_j|, (R, N), and `longest` of each trial, (R,).
    """

    p: Array
    queries: Array
    query: NDArray[np.intp]
    p_lengths: Array
    q_lengths: Array
    norms: Array
    longest: Array


def stacked(tokens: Tokens, chosen: NDArray[np.intp]) -> StackedRows:
    """The constraints (x_selected - x_t)^T W z >= 1 of all trials; zeros for trials of extreme scale."""
    trials, n, T, d = tokens.x.shape
    flat = chosen.reshape(trials, -1)  # (R, M)
    query = np.repeat(np.arange(flat.shape[1]), T - 1)
    # The other tokens of each query: t, or t + 1 from the selected one on.
    other = np.arange(T - 1) + (np.arange(T - 1) >= flat[..., None])
    first = (np.arange(trials)[:, None] * n + query // (flat.shape[1] // n)) * T
    x = tokens.x.reshape(-1, d)
    p, shift = differences(x[first + flat[:, query]], x[first + other.reshape(trials, -1)])
    queries = tokens.z.reshape(trials, -1, d)
    with np.errstate(over="ignore", under="ignore"):
        p_lengths, q_lengths = (np.sqrt(np.einsum("rjd,rjd->rj", a, a)) for a in (p, queries))
    ordinary = _are_ordinary(np.concatenate([p_lengths, q_lengths], axis=1))
    if shift is not None:
        ordinary &= ~shift.any(-1)
    if not ordinary.all():  # rows of zeros are left to be solved alone
        p = np.where(ordinary[:, None, None], p, 0.0)
        p_lengths = np.where(ordinary[:, None], p_lengths, 0.0)
        queries = np.where(ordinary[:, None, None], queries, 0.0)
        q_lengths = np.where(ordinary[:, None], q_lengths, 0.0)
    norms = p_lengths * q_lengths[:, query]
    return StackedRows(p, queries, query, p_lengths, q_lengths, norms, np.maximum.reduce(norms, axis=-1))


def _are_ordinary(lengths: Array) -> NDArray[np.bool_]:
    """Of which trials are all lengths, (R, N), neither zero nor extreme?"""
    least, most = np.minimum.reduce(lengths, axis=-1), np.maximum.reduce(lengths, axis=-1)
    return (least > 1.0 / ORDINARY) & (most < ORDINARY)


@dataclass(frozen=True, eq=False)
class Together:
    """What was found for each of R trials; an infinite gap where a trial is still to be solved alone.

    Attributes:
        W: (R, d, d), least constraint value 1.
        multipliers: (R, N).
        margin, gap, violation: (R,).
        rounding: (R,), how far rounding may have moved the gap.
        rank: (R,), the exact rank by construction, 0 where none is.
    """

    W: Array
    multipliers: Array
    margin: Array
    gap: Array
    violation: Array
    rounding: Array
    rank: NDArray[np.intp]

    @classmethod
    def empty(cls, trials: int, N: int, d: int) -> Together:
        """Nothing found so far."""
        margin, gap, violation = np.full((3, trials), np.inf)
        W, multipliers = np.full((trials, d, d), np.nan), np.zeros((trials, N))
        return cls(W, multipliers, margin, gap, violation, np.zeros(trials), np.zeros(trials, dtype=np.intp))
