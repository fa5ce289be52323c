"""Constraints of length 1, those of each query side by side: products with them are then products of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.svm.rows import Rows


@dataclass(frozen=True, eq=False)
class Grouped:
    """N constraints A_j / |A_j| over M queries, room for k of each.

    Attributes:
        p: unit vectors, (M, k, a); zero where a query has fewer.
        queries: unit vectors, (M, b).
        place: where each constraint stands among the M k, (N,); None if it is all of them, in order.
    """

    p: Array
    queries: Array
    place: NDArray[np.intp] | None

    @classmethod
    def of(cls, rows: Rows) -> Grouped:
        """The rows, none of them zero, scaled to |A_j| = 1."""
        unit = rows.unit()
        M, a = len(rows.queries), rows.p.shape[1]
        if rows.each:
            return cls(unit.p.reshape(M, -1, a), unit.queries, None)
        counts = np.bincount(rows.query, minlength=M)
        k = int(counts.max(initial=1))
        place = np.arange(len(rows)) + (k * np.arange(M) - np.cumsum(counts) + counts)[rows.query]
        p = np.zeros((M * k, a))
        p[place] = unit.p
        return cls(p.reshape(M, k, a), unit.queries, place)

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """One number per constraint, (N,), among the others of its query, (M, k); zero where there is none."""
        if self.place is None:
            return values.reshape(self.p.shape[:2])
        full = np.zeros(self.p.shape[0] * self.p.shape[1], dtype=values.dtype)
        full[self.place] = values
        return full.reshape(self.p.shape[:2])

    def flat(self, values: Array) -> Array:
        """Back from (M, k) to (N,)."""
        values = values.reshape(-1)
        return values if self.place is None else values.take(self.place)

    def values(self, W: Array) -> Array:
        """<A_j, W>, (N,)."""
        return self.flat(np.matmul(self.p, (self.queries @ W.T)[:, :, None]))

    def adjoint(self, multipliers: Array) -> Array:
        """sum_j l_j A_j, (a, b)."""
        return self._gathered(multipliers).T @ self.queries

    def gram_times(self, multipliers: Array) -> Array:
        """The Gram matrix times a vector, (N,)."""
        return self.flat(np.matmul(self.p, (self._query_gram @ self._gathered(multipliers))[:, :, None]))

    def _gathered(self, multipliers: Array) -> Array:
        return np.matmul(self.spread(multipliers)[:, None], self.p)[:, 0]

    @cached_property
    def blocks(self) -> Array:
        """The Gram matrix of the constraints of each query, (M, k, k)."""
        return np.matmul(self.p, self.p.transpose(0, 2, 1))

    @cached_property
    def _query_gram(self) -> Array:
        return self.queries @ self.queries.T


def hardest(rows: Rows, levels: Array, count: int) -> NDArray[np.intp]:
    """The constraints of the lowest levels, (N,), at most `count` of each query."""
    places = rows.scatter(np.arange(len(rows)), fill=-1).reshape(len(rows.queries), -1)  # (M, T): which constraint
    spread = rows.scatter(levels, fill=np.inf).reshape(places.shape)
    count = min(count, places.shape[1])
    found = np.take_along_axis(places, np.argpartition(spread, count - 1, axis=1)[:, :count], axis=1)
    return found[found >= 0]
