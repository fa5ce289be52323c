"""Constraints of the max-margin problems over tokens, kept as products and never as d x d matrices.

Constraint j says `<(p_j q_j^T), W> >= 1` (or `= 0`, for tokens that must stay level), where
 p_j is a difference of two tokens and q_j the query that compares
them. Everything the solvers need follows from the factors:

    values      <A_j, W>        = p_j . (W q_j)
    adjoint     sum_j l_j A_j   = sum over queries q of (sum_{j of q} l_j p_j) q^T
    Gram matrix <A_i, A_j>      = (p_i . p_j) (q_i . q_j)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message

SCALE = 1e140


@dataclass(frozen=True, eq=False)
class Rows:
    """N constraints over M queries, ordered by query.

    Attributes:
        p: token differences, (N, d).
        queries: (M, d).
        query: which query each constraint belongs to, (N,), ascending.
        where: position of each constraint's other token in an array of shape `shape`, flat, (N,).
        shape: (n, T) or (n, K, T).
        equal: which constraints say `= 0`, (N,), or None for none.
    """

    p: Array
    queries: Array
    query: NDArray[np.intp]
    where: NDArray[np.intp]
    shape: tuple[int, ...]
    equal: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.p)

    def part(self, index: NDArray[np.intp]) -> Rows:
        """Some of the constraints, in ascending order of `index`."""
        equal = None if self.equal is None else self.equal[index]
        return Rows(self.p[index], self.queries, self.query[index], self.where[index], self.shape, equal)

    def values(self, W: Array) -> Array:
        """<A_j, W> for every constraint."""
        return np.einsum("jd,jd->j", self.p, (self.queries @ W.T)[self.query])

    def adjoint(self, multipliers: Array) -> Array:
        """sum_j multipliers_j A_j, (d, d)."""
        return self.gathered(multipliers).T @ self.queries

    def gathered(self, multipliers: Array) -> Array:
        """sum over the constraints of each query of multipliers_j p_j, (M, d)."""
        if self._blocks is not None:
            each = multipliers.reshape(len(self.queries), 1, -1)
            return np.matmul(each, self._blocks)[:, 0]
        weighted = multipliers[:, None] * self.p
        starts = self._starts
        found = np.zeros(self.queries.shape)
        present = np.diff(np.append(starts, len(self))) > 0
        if len(self):
            found[present] = np.add.reduceat(weighted, starts[present], axis=0)
        return found

    def gram(self) -> Array:
        """<A_i, A_j>, (N, N)."""
        return (self.p @ self.p.T) * (self.queries @ self.queries.T)[np.ix_(self.query, self.query)]

    def gram_times(self, multipliers: Array) -> Array:
        """The Gram matrix times a vector, without the matrix: O(N d + M^2 d)."""
        per_query = self.query_gram @ self.gathered(multipliers)
        if self._blocks is not None:
            return np.matmul(self._blocks, per_query[:, :, None]).reshape(-1)
        return np.einsum("jd,jd->j", self.p, per_query[self.query])

    @cached_property
    def _blocks(self) -> Array | None:
        """The differences as (M, constraints per query, d) if each query has as many: products without copies."""
        each, rest = divmod(len(self), max(len(self.queries), 1))
        if rest or each == 0 or not np.array_equal(self.query, np.repeat(np.arange(len(self.queries)), each)):
            return None
        return self.p.reshape(len(self.queries), each, -1)

    @cached_property
    def query_gram(self) -> Array:
        """Inner products of the queries, (M, M)."""
        return self.queries @ self.queries.T

    @cached_property
    def norms(self) -> Array:
        """|A_j| = |p_j| |q_j|, (N,)."""
        return np.linalg.norm(self.p, axis=1) * np.linalg.norm(self.queries, axis=1)[self.query]

    @cached_property
    def _starts(self) -> NDArray[np.intp]:
        return np.searchsorted(self.query, np.arange(len(self.queries)))

    def scatter(self, values: Array, fill: float = 0.0) -> Array:
        """One number per constraint laid out as the tokens are; `fill` at selected and masked tokens."""
        full = np.full(int(np.prod(self.shape)), fill)
        full[self.where] = values
        return full.reshape(self.shape)


def check_tolerance(tolerance: float) -> None:
    """Refuse a tolerance that no gap could be compared with."""
    if not (isinstance(tolerance, int | float | np.floating) and tolerance >= 0):
        raise InputError(
            message(f"`tolerance` is {tolerance!r}; wanted a relative gap of at least 0.", "1e-10 is usual")
        )


def check_scale(norms: Array) -> None:
    """Refuse constraints so large or small that the multipliers, of order |A|^-2, would not be float64 numbers."""
    largest = float(norms.max(initial=0.0))
    if largest > 0 and not 1.0 / SCALE < largest < SCALE:
        raise InputError(
            message(
                f"The constraints (x_selected - x_t) z^T have norms up to {largest:.1e}; multipliers, of order one "
                f"over their square, need norms between {1 / SCALE:.0e} and {SCALE:.0e}.",
                "scale the tokens by a and the queries by b; W then scales by 1 / (a b)",
            )
        )


def margin_rows(tokens: Tokens, selected: ArrayLike) -> Rows:
    """The constraints (x_selected - x_t)^T W z >= 1 for every query and every other token that it sees."""
    chosen = check_selected(tokens, selected)
    n, T, d = tokens.n, tokens.T, tokens.d
    flat = chosen.reshape(-1)  # (M,)
    sequence = np.repeat(np.arange(n), flat.size // n)
    other = tokens.visible.reshape(-1, T) & (np.arange(T) != flat[:, None])
    query, token = np.nonzero(other)
    p = tokens.x[sequence[query], flat[query]] - tokens.x[sequence[query], token]
    return Rows(p, tokens.z.reshape(-1, d), query, query * T + token, (*chosen.shape, T))


def check_selected(tokens: Tokens, selected: ArrayLike) -> NDArray[np.intp]:
    """One visible token number per query, of the shape of the labels; a single data set, not a batch."""
    if tokens.trials is not None:
        raise InputError(
            message("`tokens` is a batch of trials; wanted one data set.", "al.solve_margins solves batches")
        )
    chosen = np.asarray(selected)
    if chosen.shape != tokens.y.shape:
        raise InputError(message(f"`selected` has shape {chosen.shape}; wanted one token per query, {tokens.y.shape}."))
    if chosen.dtype.kind not in "iu":
        raise InputError(message(f"`selected` has type {chosen.dtype}; wanted whole numbers."))
    if chosen.size and (chosen.min() < 0 or chosen.max() >= tokens.T):
        wrong = chosen.max() if chosen.max() >= tokens.T else chosen.min()
        raise InputError(
            message(f"`selected` names token {wrong}; sequences of {tokens.T} tokens have 0 to {tokens.T - 1}.")
        )
    if not np.take_along_axis(tokens.visible, chosen[..., None], axis=-1).all():
        raise InputError(message("`selected` names tokens that the mask hides from their query."))
    return chosen.astype(np.intp)
