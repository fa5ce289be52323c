"""The Frobenius max-margin problem with equalities: tokens that must stay level.

The equalities are eliminated with an orthonormal basis of their span. The other rows, projected onto its complement,
pose a plain problem: the least u with B u >= 1, solved as `linear_margin` does. Its multipliers are those of the
inequalities; those of the equalities take the sum back into the complement.

How much of a row is left after projection decides whether there is a solution at all. A Gram matrix knows lengths only
to 1e-8, so what it gives is taken if it meets the equalities; else the rows are written out, in coordinates of the
spans of differences and queries, and projected themselves. That is ten times slower and right to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from attnlab.data.span import spanning
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.svm.certificate import certify, infeasible, unconstrained, without_solution
from attnlab.svm.dual import active_set
from attnlab.svm.linear import least_classifier
from attnlab.svm.rows import Rows
from attnlab.svm.solution import MarginSolution, MarginStatus

# More numbers than this are not written out.
WRITTEN_OUT = 40_000_000
# A unit row shorter than this after projection is zero: the equalities force its value to zero.
GONE = 1e-11
# Above this many constraints the Gram matrix is not formed.
DENSE = 3000
# What is left of a unit row after projection is known to about this from a Gram matrix, and no better.
UNSEEN = 1e-6


def solve_level(rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float = 1e-10) -> MarginSolution:
    """The least W, in Frobenius norm, with `<A_j, W> >= 1`, and `= 0` for the rows marked equal.

    Args:
        rows: the constraints, `rows.equal` set.
        selected: the selection they are for; kept in the result.
        d: dimension of the tokens.
        tolerance: relative duality gap to reach.

    Returns:
        A `MarginSolution`. Multipliers of equalities, and their weights in `farkas`, may have any sign.

    >>> p, q, zero = np.array([[1.0, -1.0], [1.0, 0.0]]), np.array([[1.0, 0.0]]), np.zeros(2, dtype=int)
    >>> rows = Rows(p, q, zero, np.arange(2), (2,), equal=np.array([True, False]))
    >>> solve_level(rows, zero[:1], 2).W.round(12).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    quick = _quickly(rows, selected, d, tolerance)
    if quick is not None and quick.status is MarginStatus.OPTIMAL:
        return quick
    return solve_written_out(rows, selected, d, tolerance)


def _quickly(rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float) -> MarginSolution | None:
    """By the Gram matrix of the projected rows; None where that does not tell."""
    assert rows.equal is not None
    level, above = np.flatnonzero(rows.equal & (rows.norms > 0)), np.flatnonzero(~rows.equal)
    if not 0 < len(rows) <= DENSE or not above.size or rows.norms[above].min() == 0:
        return None
    gram = rows.gram()
    values, vectors = np.linalg.eigh(gram[np.ix_(level, level)])
    kept = values > 1e-12 * values.max(initial=0.0)
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    across = gram[np.ix_(level, above)]
    projected = gram[np.ix_(above, above)] - across.T @ inverse @ across
    lengths = np.sqrt(np.maximum(projected.diagonal(), 0.0))
    if (lengths <= UNSEEN * rows.norms[above]).any():
        return None
    bound = 1.0 / lengths
    size = float(bound.max())
    found = active_set(projected / np.outer(lengths, lengths), bound / size)
    if found is None:
        return None
    multipliers = np.zeros(len(rows))
    multipliers[above] = found / lengths * size
    # Those of the equalities take the sum back to where the equalities hold.
    multipliers[level] = -inverse @ (across @ multipliers[above])
    return certify(rows, multipliers, selected, d, tolerance)


def solve_written_out(rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float = 1e-10) -> MarginSolution:
    """The same, by projecting the rows themselves."""
    assert rows.equal is not None
    above, level = np.flatnonzero(~rows.equal), np.flatnonzero(rows.equal & (rows.norms > 0))
    if not above.size:
        return unconstrained(rows, selected, d)
    U, V, wide = _written_out(rows)
    basis = _span(wide[level])
    rest = wide[above]
    for _ in range(2):  # once more: what rounding left along the basis
        rest = rest - (rest @ basis) @ basis.T
    rest[np.linalg.norm(rest, axis=1) <= GONE] = 0.0
    sizes = rows.norms[above]
    largest = max(float(sizes.max()), np.finfo(float).tiny)
    found = least_classifier(rest * (sizes / largest)[:, None], np.ones(len(above)), tolerance)

    def whole(inside: Array, target: Array | float) -> Array:
        """Multipliers of all rows for those of the inequalities, such that the sum is `target`."""
        multipliers = np.zeros(len(rows))
        multipliers[above] = inside
        if level.size:
            missing = target - inside * sizes @ wide[above]
            solved: Any = scipy.linalg.lstsq(wide[level].T, missing, cond=1e-12)
            multipliers[level] = solved[0] / rows.norms[level]
        return multipliers

    if found.weights is None:
        assert found.farkas is not None
        proof = np.nan_to_num(found.farkas)
        return without_solution(rows, whole(proof, 0.0), selected, d, None)
    u = found.weights / largest
    W = U @ u.reshape(U.shape[1], V.shape[1]) @ V.T
    multipliers = whole(found.multipliers / largest / largest, u)
    solution = certify(rows, multipliers, selected, d, tolerance, W=W)
    if solution is None:
        return infeasible(rows, multipliers, selected, d, MarginStatus.UNDECIDED)
    return solution


def _written_out(rows: Rows) -> tuple[Array, Array, Array]:
    """Bases U of the differences and V of the queries, and the rows at unit length as vectors of U^T A V."""
    long, far = np.linalg.norm(rows.p, axis=1), np.linalg.norm(rows.queries, axis=1)
    left = rows.p / np.where(long > 0, long, 1.0)[:, None]
    right = rows.queries / np.where(far > 0, far, 1.0)[:, None]
    U, V = spanning(rows.p), spanning(rows.queries)
    if len(rows) * U.shape[1] * V.shape[1] > WRITTEN_OUT:
        raise InputError(
            message(
                f"{len(rows)} constraints with equalities among them, in {U.shape[1]} x {V.shape[1]} coordinates, are "
                f"more than the {WRITTEN_OUT:.0e} numbers this method writes out.",
                "keep fewer tokens level, or use fewer sequences",
            )
        )
    wide = np.einsum("ja,jb->jab", left @ U, (right @ V)[rows.query]).reshape(len(rows), -1)
    return U, V, wide


def _span(vectors: Array) -> Array:
    """An orthonormal basis of the span of some rows, none longer than 1, as columns; empty for none."""
    if not vectors.any():
        return np.zeros((vectors.shape[1], 0))
    factors: Any = scipy.linalg.qr(vectors.T, mode="economic", pivoting=True)
    Q, R = factors[:2]
    sizes = np.abs(R.diagonal())
    return Q[:, sizes > 1e-12 * sizes[0]]
