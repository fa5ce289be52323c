"""Constraints of the max-margin problems over tokens, kept as products and never as d x d matrices.

Constraint j says `<(p_j q_j^T), W> >= 1` (or `= 0`, for tokens that must stay level), where p_j is a difference of two
tokens and q_j the query that compares them. Everything the solvers need follows from the factors:

    values      <A_j, W>        = p_j . (W q_j)
    adjoint     sum_j l_j A_j   = sum over queries q of (sum_{j of q} l_j p_j) q^T
    Gram matrix <A_i, A_j>      = (p_i . p_j) (q_i . q_j)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

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
        each: constraints per query, if all queries have as many: products then need no copies.
    """

    p: Array
    queries: Array
    query: NDArray[np.intp]
    where: NDArray[np.intp]
    shape: tuple[int, ...]
    equal: NDArray[np.bool_] | None = None
    each: int | None = None

    def __len__(self) -> int:
        return len(self.p)

    def part(self, index: NDArray[np.intp]) -> Rows:
        """Some of the constraints, in ascending order of `index`."""
        equal = None if self.equal is None else self.equal[index]
        return Rows(self.p[index], self.queries, self.query[index], self.where[index], self.shape, equal)

    def values(self, W: Array) -> Array:
        """<A_j, W> for every constraint."""
        return self._compared(self.p, self.queries @ W.T)

    def sizes(self, W: Array) -> Array:
        """The sum of the absolute terms of <A_j, W>, for every constraint: what its rounding is relative to."""
        return self._compared(np.abs(self.p), np.abs(self.queries) @ np.abs(W).T)

    def _compared(self, p: Array, seen: Array) -> Array:
        """p_j times the vector of its query, for every constraint."""
        if self.each:
            return np.matmul(p.reshape(len(seen), -1, p.shape[1]), seen[:, :, None]).reshape(-1)
        return np.einsum("jd,jd->j", p, seen[self.query])

    def adjoint(self, multipliers: Array) -> Array:
        """sum_j multipliers_j A_j, (d, d)."""
        return self.gathered(multipliers).T @ self.queries

    def gathered(self, multipliers: Array) -> Array:
        """sum over the constraints of each query of multipliers_j p_j, (M, d)."""
        if self.each:
            M, d = self.queries.shape
            return np.matmul(multipliers.reshape(M, 1, -1), self.p.reshape(M, -1, d))[:, 0]
        weighted = multipliers[:, None] * self.p
        starts = self._starts
        found = np.zeros(self.queries.shape)
        present = np.diff(np.append(starts, len(self))) > 0
        if len(self):
            found[present] = np.add.reduceat(weighted, starts[present], axis=0)
        return found

    def gram(self) -> Array:
        """<A_i, A_j>, (N, N)."""
        return (self.p @ self.p.T) * self.query_gram.take(self.query, axis=0).take(self.query, axis=1)

    def gram_times(self, multipliers: Array) -> Array:
        """The Gram matrix times a vector, without the matrix: O(N d + M^2 d)."""
        return self._compared(self.p, self.query_gram @ self.gathered(multipliers))

    def unit(self) -> Rows:
        """The same constraints scaled to |A_j| = 1; none may be zero."""
        p_lengths, lengths = self._lengths
        queries = self.queries / np.where(lengths > 0, lengths, 1.0)[:, None]
        return Rows(self.p / p_lengths[:, None], queries, self.query, self.where, self.shape, self.equal, self.each)

    @cached_property
    def query_gram(self) -> Array:
        """Inner products of the queries, (M, M)."""
        return self.queries @ self.queries.T

    @cached_property
    def norms(self) -> Array:
        """|A_j| = |p_j| |q_j|, (N,)."""
        p_lengths, lengths = self._lengths
        return p_lengths * lengths.take(self.query)

    @cached_property
    def _lengths(self) -> tuple[Array, Array]:
        """|p_j|, (N,), and the lengths of the queries, (M,)."""
        squares = np.einsum("jd,jd->j", self.p, self.p), np.einsum("jd,jd->j", self.queries, self.queries)
        return np.sqrt(squares[0]), np.sqrt(squares[1])

    @cached_property
    def _starts(self) -> NDArray[np.intp]:
        return np.searchsorted(self.query, np.arange(len(self.queries)))

    def inequalities(self, values: Array) -> Array:
        """Those of the values, one per constraint, that belong to constraints `>= 1`."""
        return values if self.equal is None else values[~self.equal]

    def scatter(self, values: NDArray[Any], fill: float | bool = 0.0) -> NDArray[Any]:
        """One value per constraint laid out as the tokens are; `fill`, whose type it has, elsewhere."""
        full = np.full(prod(self.shape), fill)
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
    largest = norms.max(initial=0.0)
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
    return selected_rows(tokens, check_selected(tokens, selected))


def selected_rows(tokens: Tokens, chosen: NDArray[np.intp]) -> Rows:
    """`margin_rows` for a selection that was checked already."""
    T, d = tokens.T, tokens.d
    flat = chosen.reshape(-1)  # (M,)
    other = np.arange(T) != flat[:, None]
    if tokens.mask is not None:
        other &= tokens.mask.reshape(-1, T)
    where = other.reshape(-1).nonzero()[0]
    query = where // T
    x = tokens.x.reshape(-1, d)
    first = (np.arange(flat.size) // (flat.size // tokens.n)) * T  # where the sequence of each query begins
    p = x.take((first + flat)[query], axis=0)
    p -= x.take(where + (first - np.arange(flat.size) * T)[query], axis=0)
    each = T - 1 if tokens.mask is None else None
    return Rows(p, tokens.z.reshape(-1, d), query, where, (*chosen.shape, T), None, each)


def check_selected(tokens: Tokens, selected: ArrayLike) -> NDArray[np.intp]:
    """One visible token number per query, of the shape of the labels; a single data set, not a batch."""
    if tokens.trials is not None:
        raise InputError(
            message("`tokens` is a batch of trials; wanted one data set.", "al.solve_margins solves batches")
        )
    return check_selections(tokens, selected)


def check_selections(tokens: Tokens, selected: ArrayLike) -> NDArray[np.intp]:
    """The same for one data set or a batch."""
    chosen = np.asarray(selected)
    if chosen.shape != tokens.y.shape:
        raise InputError(message(f"`selected` has shape {chosen.shape}; wanted one token per query, {tokens.y.shape}."))
    if chosen.dtype.kind not in "iu":
        raise InputError(message(f"`selected` has type {chosen.dtype}; wanted whole numbers."))
    least, most = chosen.min(), chosen.max()
    if least < 0 or most >= tokens.T:
        wrong = most if most >= tokens.T else least
        raise InputError(
            message(f"`selected` names token {wrong}; sequences of {tokens.T} tokens have 0 to {tokens.T - 1}.")
        )
    chosen = chosen.astype(np.intp)
    if tokens.mask is not None and not np.take_along_axis(tokens.mask, chosen[..., None], axis=-1).all():
        raise InputError(message("`selected` names tokens that the mask hides from their query."))
    return chosen
