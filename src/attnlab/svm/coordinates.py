"""A second look at rows that are too close to call: in coordinates that are all of one size.

Whether a W separates does not depend on the units of the coordinates: with powers of two s_a for those of the tokens,
t_b for those of the queries, and any size of the rows,

    A_j,ab = 2^(e_j - s_a - t_b) A~_j,ab,        W_ab = 2^(k + s_a + t_b) W~_ab .

All entries of A~ are of order one, or zero, where the units allow it. Rows like (1, 1e-20) and (-1, 1e-20), which
cancel but for rounding, are (1, 1) and (-1, 1) there. The W found separates and is not the least one: its status is
INACCURATE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.svm.certificate import EPS, infeasible
from attnlab.svm.nonnegative import non_negative
from attnlab.svm.proof import NONE, proving
from attnlab.svm.rows import Rows
from attnlab.svm.solution import MarginSolution, MarginStatus

# More numbers than this are not written out.
WRITTEN_OUT = 2_000_000
TINY = float(np.finfo(np.float64).tiny)


def balanced_solution(
    rows: Rows, selected: NDArray[np.intp], d: int, size: Callable[[Array], float]
) -> MarginSolution | None:
    """A separating W, or a proof that there is none; None if neither is found."""
    if len(rows) * d * d > WRITTEN_OUT:
        return None
    balanced = _Balanced.of(rows)
    equal = np.zeros(len(rows), dtype=bool) if rows.equal is None else rows.equal
    # Equalities pull either way: they stand twice, with both signs.
    signs = np.concatenate([np.ones(len(rows)), -np.ones(int(equal.sum()))])
    index = np.concatenate([np.arange(len(rows)), np.flatnonzero(equal)])
    bound = np.where(equal, 0.0, 1.0)[index]
    wide = signs[:, None] * balanced.wide[index]
    found = non_negative(np.vstack([wide.T, bound]), np.append(np.zeros(d * d), 1.0))
    if found is None:
        return None
    pull = np.zeros(len(rows))
    np.add.at(pull, index, signs * found)
    proof = proving(rows, balanced.weights(pull, equal))
    if proof is not None:
        return infeasible(rows, proof, selected, d)
    return balanced.solution(rows, selected, pull, equal, size)


@dataclass(frozen=True, eq=False)
class _Balanced:
    """The rows A~, written out, (N, d d); the exponents e of the rows, (N,), and s + t of the entries of W, (d, d)."""

    wide: Array
    rows: NDArray[np.intp]
    entries: NDArray[np.intp]

    @classmethod
    def of(cls, rows: Rows) -> _Balanced:
        p, p_row, p_column = _equalized(rows.p)
        q, q_row, q_column = _equalized(rows.queries)
        if rows.shift is not None:
            p_row = p_row + rows.shift
        wide = p[:, :, None] * q[rows.query][:, None, :]
        return cls(wide.reshape(len(p), -1), p_row + q_row[rows.query], p_column[:, None] + q_column)

    def weights(self, pull: Array, equal: NDArray[np.bool_]) -> Array:
        """Weights of the rows as they were given, for weights of A~; the largest of an inequality of order one."""
        mantissa, exponent = np.frexp(pull)
        exponent = exponent - self.rows
        counted = (pull > 0) & ~equal
        if not counted.any():
            return np.zeros(len(pull))
        return np.ldexp(mantissa, exponent - exponent[counted].max())

    def solution(
        self,
        rows: Rows,
        selected: NDArray[np.intp],
        pull: Array,
        equal: NDArray[np.bool_],
        size: Callable[[Array], float],
    ) -> MarginSolution | None:
        """W~ = sum l A~, if it separates beyond rounding and is a matrix of float64 numbers in the given units."""
        small = (pull @ self.wide).reshape(self.entries.shape)
        if not small.any():
            return None
        small = small / np.abs(small).max()
        mantissa, exponent = np.frexp(self._values(small)[0])
        exponent = exponent + self.rows
        above = np.flatnonzero(~equal)
        if not (mantissa[above] > 0).all():
            return None
        lowest = above[np.lexsort((mantissa[above], exponent[above]))[0]]  # the least value in the given units
        powers = self.entries - exponent[lowest]
        W = np.ldexp(small / mantissa[lowest], powers)
        # Entries that the given units have no number for are zero by now; what counts is the W that is left.
        values, rounding = self._values(np.ldexp(W, -powers))
        met = np.where(equal, np.abs(values) <= rounding, values > 2.0 * rounding)
        values, rounding = (np.ldexp(part, self.rows - exponent[lowest]) for part in (values, rounding))
        largest = float(np.abs(W).max())
        if not (met.all() and np.isfinite(values).all() and TINY <= largest < np.inf):
            return None
        power = int(np.frexp(largest)[1])
        margin = float(np.ldexp(1.0 / size(np.ldexp(W, -power)), -power))
        if not TINY <= margin < np.inf:
            return None
        missed = np.abs(values[equal]).max(initial=0.0)
        unknown = rows.scatter(np.full(len(rows), np.inf), np.nan)
        return MarginSolution(
            W=W,
            margin=margin,
            multipliers=np.zeros(rows.shape),
            values=rows.scatter(values, np.nan),
            value_error=unknown,
            support=None,
            rank_floor=None,
            gap=np.inf,
            violation=max(0.0, 1.0 - float((values - rounding)[above].min()), float(missed)),
            direction_error=None,
            status=MarginStatus.INACCURATE,
            farkas=None,
            farkas_residual=None,
            norm="frobenius",
            selected=selected,
            reason="the coordinates differ too much in size for the least W to be found: this W separates, no more",
        )

    def _values(self, W: Array) -> tuple[Array, Array]:
        """<A~_j, W~>, and how far rounding may have moved it."""
        flat = W.reshape(-1)
        return self.wide @ flat, 4 * EPS * (np.abs(self.wide) @ np.abs(flat))


def _equalized(vectors: Array) -> tuple[Array, NDArray[np.intp], NDArray[np.intp]]:
    """2^(column - row) times the entries: the largest of each row, and of each column, is of order one where possible.

    Returns the scaled vectors, the exponents of the rows, and those of the columns.
    """
    mantissa, exponent = np.frexp(vectors)
    exponent = np.where(mantissa == 0, NONE, exponent.astype(np.intp))
    row = _present(exponent.max(axis=1))
    # Columns grow until their largest entry is of order one; that of each row is so already, and stays.
    column = -_present((exponent - row[:, None]).max(axis=0))
    return np.ldexp(vectors, column - row[:, None]), row, column


def _present(exponents: NDArray[np.intp]) -> NDArray[np.intp]:
    """The exponents of what is not zero; 0 for the rest."""
    return np.where(exponents > NONE // 2, exponents, 0)
