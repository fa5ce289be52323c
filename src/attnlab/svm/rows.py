"""Constraints of the max-margin problems over tokens, kept as products and never as d x d matrices.

Constraint j says `<(p_j q_j^T), W> >= 1` (or `= 0`, for tokens that must stay level), where p_j is a difference of two
tokens and q_j the query that compares them. Everything the solvers need follows from the factors:

    values      <A_j, W>        = p_j . (W q_j)
    adjoint     sum_j l_j A_j   = sum over queries q of (sum_{j of q} l_j p_j) q^T
    Gram matrix <A_i, A_j>      = (p_i . p_j) (q_i . q_j)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import instance, number, whole_array
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message

# Lengths between one over this and this are ordinary: their squares, products and quotients are float64 numbers.
ORDINARY = 2.0**100
_least, _most = np.minimum.reduce, np.maximum.reduce
TINIEST = float(np.finfo(np.float64).smallest_subnormal)
LARGEST = float(np.finfo(np.float64).max)
# Numbers of the differences above which these are not kept, and that are made at a time: those stay in cache.
STREAMED, BLOCK = 2**23, 2**17


@dataclass(frozen=True, eq=False)
class Rows:
    """N constraints over M queries, ordered by query.

    Attributes:
        p: token differences, (N, a).
        queries: (M, b); tokens and queries of `Tokens` have one dimension, arrays may differ. W is (a, b).
        query: which query each constraint belongs to, (N,), ascending.
        where: position of each constraint's other token in an array of shape `shape`, flat, (N,).
        shape: (n, T) or (n, K, T).
        equal: which constraints say `= 0`, (N,), or None for none.
        each: constraints per query, if all queries have as many: products then need no copies.
        shift: the differences are `p` times 2^shift, (N,), or None for 0: two tokens may differ by more than the
            largest number. Only `attnlab.svm.scales` and `attnlab.svm.proof` look at it; all else takes rows without.
    """

    p: Array
    queries: Array
    query: NDArray[np.intp]
    where: NDArray[np.intp]
    shape: tuple[int, ...]
    equal: NDArray[np.bool_] | None = None
    each: int | None = None
    shift: NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self.p)

    @property
    def width(self) -> int:
        """The dimension a of the differences."""
        return self.p.shape[1]

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
        """sum_j multipliers_j A_j, (a, b)."""
        return self.gathered(multipliers).T @ self.queries

    def gathered(self, multipliers: Array) -> Array:
        """sum over the constraints of each query of multipliers_j p_j, (M, a)."""
        if self.each:
            M, a = len(self.queries), self.p.shape[1]
            return np.matmul(multipliers.reshape(M, 1, -1), self.p.reshape(M, -1, a))[:, 0]
        weighted = multipliers[:, None] * self.p
        starts = self._starts
        found = np.zeros((len(self.queries), self.p.shape[1]))
        present = np.diff(np.append(starts, len(self))) > 0
        if len(self):
            found[present] = np.add.reduceat(weighted, starts[present], axis=0)
        return found

    def gram(self) -> Array:
        """<A_i, A_j>, (N, N)."""
        if self.each:
            N, M = len(self), len(self.queries)
            found = self.p.dot(self.p.T).reshape(M, self.each, M, self.each)
            found *= self.query_gram[:, None, :, None]
            return found.reshape(N, N)
        return (self.p @ self.p.T) * self.query_gram.take(self.query, axis=0).take(self.query, axis=1)

    def gram_times(self, multipliers: Array) -> Array:
        """The Gram matrix times a vector, without the matrix: O(N d + M^2 d)."""
        return self._compared(self.p, self.query_gram @ self.gathered(multipliers))

    def unit(self) -> Rows:
        """The same constraints scaled to |A_j| = 1; none may be zero."""
        p_lengths, lengths = self._lengths
        queries = self.queries / np.maximum(lengths, 1.0 / ORDINARY)[:, None]  # one that compares nothing may be 0
        return Rows(self.p / p_lengths[:, None], queries, self.query, self.where, self.shape, self.equal, self.each)

    @cached_property
    def query_gram(self) -> Array:
        """Inner products of the queries, (M, M)."""
        return self.queries @ self.queries.T

    @cached_property
    def norms(self) -> Array:
        """|A_j| = |p_j| |q_j|, (N,)."""
        p_lengths, lengths = self._lengths
        return p_lengths * (lengths.repeat(self.each) if self.each else lengths.take(self.query))

    @property
    def ordinary(self) -> bool:
        """Are the differences and the queries, all of them, neither zero nor extremely long or short?"""
        if self.shift is not None:
            return False
        # The reductions of the functions, not of the methods: small problems notice the difference.
        p, q = self._lengths
        p = p if len(p) else q
        return bool(min(_least(p), _least(q)) > 1.0 / ORDINARY and max(_most(p), _most(q)) < ORDINARY)

    @cached_property
    def _lengths(self) -> tuple[Array, Array]:
        """|p_j|, (N,), and the lengths of the queries, (M,); right where `ordinary`, else perhaps 0 or infinite."""
        with np.errstate(over="ignore"):
            return np.sqrt(np.vecdot(self.p, self.p)), np.sqrt(np.vecdot(self.queries, self.queries))

    @cached_property
    def _starts(self) -> NDArray[np.intp]:
        return np.searchsorted(self.query, np.arange(len(self.queries)))

    def inequalities(self, values: NDArray[Any]) -> NDArray[Any]:
        """Those of the values, one per constraint, that belong to constraints `>= 1`."""
        return values if self.equal is None else values[~self.equal]

    def scatter(self, values: NDArray[Any], fill: float | bool = 0.0) -> NDArray[Any]:
        """One value per constraint laid out as the tokens are; `fill`, whose type it has, elsewhere."""
        full = np.empty(prod(self.shape), dtype=type(fill))
        full.fill(fill)
        full[self.where] = values
        return full.reshape(self.shape)


class StreamedRows(Rows):
    """Rows x[one] - x[other], too many to be kept: differences are made block by block.

    All of `p` is made if someone asks for it.
    """

    def __init__(
        self,
        x: Array,
        one: NDArray[np.intp],
        other: NDArray[np.intp],
        queries: Array,
        query: NDArray[np.intp],
        where: NDArray[np.intp],
        shape: tuple[int, ...],
    ) -> None:
        fields = {"x": x, "one": one, "other": other, "queries": queries, "query": query, "where": where}
        for name, value in {**fields, "shape": shape, "equal": None, "each": None, "shift": None}.items():
            object.__setattr__(self, name, value)

    x: Array
    one: NDArray[np.intp]
    other: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.one)

    @property
    def width(self) -> int:
        return self.x.shape[1]

    def __getattr__(self, name: str) -> Array:
        """All differences `p`, (N, a), which are made here and kept from then on."""
        if name != "p":
            raise AttributeError(name)
        made = self._differences(slice(None))
        object.__setattr__(self, "p", made)
        return made

    def part(self, index: NDArray[np.intp]) -> Rows:
        p = self._differences(index)
        return Rows(p, self.queries, self.query[index], self.where[index], self.shape, None)

    def values(self, W: Array) -> Array:
        seen = self.queries @ W.T
        found = np.empty(len(self))
        for block, p in self._blocks():
            np.vecdot(p, seen.take(self.query[block], axis=0), out=found[block])
        return found

    def sizes(self, W: Array) -> Array:
        seen = np.abs(self.queries) @ np.abs(W).T
        found = np.empty(len(self))
        for block, p in self._blocks():
            np.vecdot(np.abs(p), seen.take(self.query[block], axis=0), out=found[block])
        return found

    def gathered(self, multipliers: Array) -> Array:
        found = np.zeros((len(self.queries), self.width))
        used = np.flatnonzero(multipliers)
        step = max(1, BLOCK // self.width)
        for start in range(0, used.size, step):
            some = used[start : start + step]
            query = self.query[some]
            first = np.flatnonzero(np.diff(query, prepend=-1))  # of each query
            weighted = multipliers[some, None] * self._differences(some)
            found[query[first]] += np.add.reduceat(weighted, first, axis=0)
        return found

    @cached_property
    def _lengths(self) -> tuple[Array, Array]:
        lengths = np.empty(len(self))
        for block, p in self._blocks():
            np.vecdot(p, p, out=lengths[block])
        return np.sqrt(lengths), np.sqrt(np.vecdot(self.queries, self.queries))

    def _blocks(self) -> Iterator[tuple[slice, Array]]:
        step = max(1, BLOCK // self.width)
        for start in range(0, len(self), step):
            block = slice(start, start + step)
            yield block, self._differences(block)

    def _differences(self, index: slice | NDArray[np.intp]) -> Array:
        first = self.x.take(self.one[index], axis=0)
        first -= self.x.take(self.other[index], axis=0)
        return first


class _ExtremeRows(Rows):
    """Rows whose products may be no float64 numbers: those are refused."""

    def gram(self) -> Array:
        return self._in_range(super().gram)

    def gram_times(self, multipliers: Array) -> Array:
        return self._in_range(super().gram_times, multipliers)

    def values(self, W: Array) -> Array:
        return self._in_range(super().values, W)

    def adjoint(self, multipliers: Array) -> Array:
        return self._in_range(super().adjoint, multipliers)

    @cached_property
    def query_gram(self) -> Array:
        return self._in_range(lambda: self.queries @ self.queries.T)

    @cached_property
    def norms(self) -> Array:
        p_exponents = np.frexp(np.abs(self.p).max(axis=1, initial=0.0))[1]
        q_exponents = np.frexp(np.abs(self.queries).max(axis=1, initial=0.0))[1]
        left = np.linalg.norm(np.ldexp(self.p, -p_exponents[:, None]), axis=1)
        right = np.linalg.norm(np.ldexp(self.queries, -q_exponents[:, None]), axis=1)
        return self._in_range(lambda: np.ldexp(left * right[self.query], p_exponents + q_exponents[self.query]))

    def _in_range(self, product: Callable[..., Array], *arguments: Array) -> Array:
        try:
            with np.errstate(over="raise", invalid="raise"):
                return product(*arguments)
        except FloatingPointError as error:
            raise InputError(
                message(
                    "`x` and `z` are so large that products of token differences and queries overflow float64.",
                    "the solvers take any scale; here scale the tokens by a and the queries by b first",
                )
            ) from error


def check_tolerance(tolerance: float) -> float:
    """A tolerance that a gap can be compared with, as a Python float."""
    return number("tolerance", tolerance, least=0.0)


def margin_rows(tokens: Tokens, selected: ArrayLike) -> Rows:
    """The constraints (x_selected - x_t)^T W z >= 1 for every query and every other token that it sees."""
    rows = selected_rows(tokens, check_selected(tokens, selected))
    if rows.shift is not None:
        raise InputError(
            message(
                "`x` has tokens whose difference is beyond the largest float64 number, 1.8e308.",
                "np.ldexp(x, -2) is x / 4, exactly; W is then 4 times as large",
            )
        )
    return rows if rows.ordinary else _ExtremeRows(**{f.name: getattr(rows, f.name) for f in fields(rows)})


def selected_rows(tokens: Tokens, chosen: NDArray[np.intp]) -> Rows:
    """`margin_rows` for a selection that was checked already."""
    return array_rows(tokens.x, tokens.z, tokens.mask, chosen)


def array_rows(x: Array, z: Array, mask: NDArray[np.bool_] | None, chosen: NDArray[np.intp]) -> Rows:
    """The same for checked arrays, whose queries may have another dimension than their tokens.

    Args:
        x: tokens, (n, T, a).
        z: queries, (n, b) or (n, K, b); W is then (a, b).
        mask: which tokens are visible, (n, T) or (n, K, T), or None.
        chosen: a visible token per query, (n,) or (n, K).
    """
    n, T, a = x.shape
    flat = chosen.reshape(-1)  # (M,)
    starts, query = _layout(flat.size, T)
    compared = np.arange(T) != flat[:, None]
    if mask is not None:
        compared &= mask.reshape(-1, T)
    where = compared.reshape(-1).nonzero()[0]
    if mask is not None:
        query = where // T
    other = where
    first = starts
    if flat.size > n:
        first = starts // (flat.size // n * T) * T  # where its sequence begins, in `x`
        other = where + (first - starts)[query]
    x, queries, shape = x.reshape(-1, a), z.reshape(-1, z.shape[-1]), (*chosen.shape, T)
    if len(query) * a > STREAMED and max(-x.min(), x.max()) < LARGEST / 2:
        return StreamedRows(x, (first + flat)[query], other, queries, query, where, shape)
    p, shift = differences(x.take(first + flat, axis=0).take(query, axis=0), x.take(other, axis=0))
    return Rows(p, queries, query, where, shape, None, T - 1 if mask is None else None, shift)


@lru_cache(maxsize=64)
def _layout(M: int, T: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where the T tokens of each query begin, (M,), and the query of each constraint if all are seen, (M (T - 1),)."""
    starts, query = np.arange(0, M * T, T), np.repeat(np.arange(M), T - 1)
    starts.flags.writeable = query.flags.writeable = False
    return starts, query


def differences(first: Array, second: Array) -> tuple[Array, NDArray[np.intp] | None]:
    """first - second as p times 2^shift; the shift is None where no difference is beyond the largest number."""
    try:
        with np.errstate(over="raise"):
            return first - second, None
    except FloatingPointError:
        pass
    halves = 0.5 * first - 0.5 * second
    lost = (halves == 0) & (first != second)  # half of the tiniest number is none: what differs must not become equal
    halves[lost] = np.copysign(TINIEST, first[lost] - second[lost])
    with np.errstate(over="ignore"):
        p = first - second
    too_long = ~np.isfinite(p).all(axis=-1)
    p[too_long] = halves[too_long]
    return p, np.asarray(too_long, dtype=np.intp)


def check_selected(tokens: Tokens, selected: ArrayLike) -> NDArray[np.intp]:
    """One visible token number per query, of the shape of the labels; a single data set, not a batch."""
    if not isinstance(tokens, Tokens):
        instance("tokens", tokens, Tokens, "al.Tokens")
    if tokens.trials is not None:
        raise InputError(
            message("`tokens` is a batch of trials; wanted one data set.", "al.solve_margins solves batches")
        )
    return check_selections(tokens, selected)


def check_selections(tokens: Tokens, selected: ArrayLike) -> NDArray[np.intp]:
    """The same for one data set or a batch."""
    plain = type(selected) is np.ndarray and selected.dtype == np.intp
    chosen = np.array(selected) if plain else whole_array("selected", selected)
    if chosen.shape != tokens.y.shape:
        raise InputError(message(f"`selected` has shape {chosen.shape}; wanted one token per query, {tokens.y.shape}."))
    least, most = _least(chosen, axis=None), _most(chosen, axis=None)
    if least < 0 or most >= tokens.T:
        wrong = most if most >= tokens.T else least
        raise InputError(
            message(f"`selected` names token {wrong}; sequences of {tokens.T} tokens have 0 to {tokens.T - 1}.")
        )
    if tokens.mask is not None and not np.take_along_axis(tokens.mask, chosen[..., None], axis=-1).all():
        raise InputError(message("`selected` names tokens that the mask hides from their query."))
    return chosen
