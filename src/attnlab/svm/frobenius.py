"""The Frobenius max-margin problem, solved in the dual and certified in the primal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from attnlab.data.tokens import Array
from attnlab.svm.barrier import ENTRIES, by_interior_points, entries
from attnlab.svm.certificate import CANCELS, EPS, better, certify, infeasible, unconstrained, without_solution
from attnlab.svm.dual import FAR, ROUNDS, active_set, least_distance, refine
from attnlab.svm.level import solve_level
from attnlab.svm.rows import Rows
from attnlab.svm.scales import Measure, at_any_scale
from attnlab.svm.solution import MarginSolution
from attnlab.svm.working import by_working_sets

_least, _most = np.minimum.reduce, np.maximum.reduce
TOLERANCE = 1e-10
# Above this many constraints working sets of them are solved for; above the second their Gram matrix is never formed.
FREE, DENSE = 300, 3000
# Steps of conjugate gradients for one system before working sets give up.
PATIENCE = 300
# A row whose value falls short by less than this is left to the certificate; on hard data it is rounding.
VIOLATED = 1e-7
# Tight rows are written out as vectors of d^2 numbers if these are at most so many in all.
SHARP = 20_000_000


def solve_rows(rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float = TOLERANCE) -> MarginSolution:
    """Solve for given constraint rows of any scale, some of which may be equalities."""
    return at_any_scale(solve_ordinary, rows, selected, d, tolerance, _MEASURE)


def _length(W: Array) -> float:
    return float(np.linalg.norm(W))


_MEASURE = Measure(value=_length, dual=_length, degree=2)


def solve_ordinary(rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float = TOLERANCE) -> MarginSolution:
    """The same for rows of ordinary scale; a proof that there is no W is judged by its norm alone."""
    if rows.equal is not None and rows.equal.any():
        return solve_level(rows, selected, d, tolerance)
    if len(rows) == 0:
        return unconstrained(rows, selected, d)
    if not _least(rows.norms) > 0:  # 0 >= 1: a duplicate of the selected token, or a zero query
        return infeasible(rows, (rows.norms == 0).astype(float), selected, d)
    if len(rows) > FREE:
        return _solve_many(rows, selected, d, tolerance)
    solution = None
    if len(rows) <= d * d:  # more rows depend on each other
        found = active_set(rows.gram(), np.ones(len(rows)))
        solution = None if found is None else certify(rows, found, selected, d, tolerance)
    if solution is not None and solution.gap <= tolerance:
        return solution
    return _solve_dense(rows, solution, selected, d, tolerance)


def _solve_dense(
    rows: Rows, solution: MarginSolution | None, selected: NDArray[np.intp], d: int, tolerance: float
) -> MarginSolution:
    """A solution better than this one, or a proof that there is none, by non-negative least squares."""
    unit, bound, size = _unit_problem(rows)

    def finished(scaled: Array) -> MarginSolution | None:
        return certify(rows, scaled / rows.norms * size, selected, d, tolerance)

    gram = unit.gram()
    weights, distance = least_distance(gram, bound)
    if distance > 0:
        solution = better(solution, finished(refine(gram, bound, weights / distance)))
        if not _settled(solution, tolerance):
            solution = better(solution, finished(weights / distance))
    solution = _sharpened(rows, weights > 0, solution, selected, d, tolerance)
    if solution is not None and solution.gap < FAR:
        return solution
    return without_solution(rows, weights / rows.norms, selected, d, solution)


def _unit_problem(rows: Rows) -> tuple[Rows, Array, float]:
    """Rows scaled to unit length, <A_j/|A_j|, W> >= 1/|A_j|; these bounds, the largest 1; and what that one was."""
    bound = 1.0 / rows.norms
    size = float(_most(bound))
    return rows.unit(), bound / size, size


def _settled(solution: MarginSolution | None, tolerance: float) -> bool:
    """Is the gap small enough, and does it tell the support?"""
    return solution is not None and solution.gap <= tolerance and solution.support is not None


def _sharpened(
    rows: Rows,
    tight: NDArray[np.bool_],
    solution: MarginSolution | None,
    selected: NDArray[np.intp],
    d: int,
    tolerance: float,
) -> MarginSolution | None:
    """A solution of smaller gap if solving for the tight rows themselves, not for their Gram matrix, gives one.

    Where two demands nearly contradict each other the Gram matrix squares the condition number, and sum l A loses to
    cancellation what W need not lose. With A^T = Q R for the tight rows, W = Q R^-T b is corrected twice against the
    rows, and the multipliers are R^-1 Q^T W.
    """
    index = np.flatnonzero(tight)
    if _settled(solution, tolerance) or not 0 < index.size <= d * d <= SHARP / index.size:
        return solution
    part = rows.part(index)
    unit = part.unit()
    bound = 1.0 / part.norms
    wide = np.einsum("jd,je->jde", unit.p, unit.queries[unit.query]).reshape(index.size, -1)
    Q, R = np.linalg.qr(wide.T)
    pivots = np.abs(R.diagonal())
    if not pivots.min() > EPS * pivots.max():
        return solution
    flat = np.zeros(d * d)
    for _ in range(3):
        flat += Q @ solve_triangular(R, bound - wide @ flat, trans=1)
    multipliers = np.zeros(len(rows))
    multipliers[index] = solve_triangular(R, Q.T @ flat) / part.norms
    return better(solution, certify(rows, multipliers, selected, d, tolerance, W=flat.reshape(d, d)))


def _solve_many(rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float) -> MarginSolution:
    """Working sets; for data that can hardly be separated, or cannot be, interior points where W has few entries."""
    found = by_working_sets(rows, tolerance, PATIENCE)
    solution = certify(rows, found.multipliers, selected, d, tolerance) if np.isfinite(found.gap) else None
    if solution is not None and solution.gap <= tolerance:
        return solution
    if entries(rows) <= ENTRIES:
        inside = by_interior_points(rows, tolerance)
        weights = inside.multipliers
        solution = better(solution, certify(rows, weights, selected, d, tolerance, W=inside.W))
        solution = better(solution, _exactly(rows, inside.tight, selected, d, tolerance))
    else:
        weights, exact = _cutting_planes(rows, found.multipliers)
        solution = better(solution, certify(rows, weights, selected, d, tolerance) if exact else None)
    if solution is not None and solution.gap <= tolerance:
        return solution
    if len(rows) <= DENSE:
        return _solve_dense(rows, solution, selected, d, tolerance)
    if solution is not None and solution.gap < FAR:
        return solution
    return without_solution(rows, weights, selected, d, solution)


def _exactly(
    rows: Rows, tight: NDArray[np.bool_], selected: NDArray[np.intp], d: int, tolerance: float
) -> MarginSolution | None:
    """The solution of smallest rounding: that of the linear system of the tight rows."""
    index = np.flatnonzero(tight)
    if not 0 < index.size <= ENTRIES:
        return None
    multipliers = np.zeros(len(rows))
    found = active_set(rows.part(index).gram(), np.ones(index.size), np.ones(index.size, dtype=bool))
    if found is None:
        return None
    multipliers[index] = found
    return certify(rows, multipliers, selected, d, tolerance)


def _cutting_planes(rows: Rows, start: Array) -> tuple[Array, bool]:
    """Solve for some rows exactly, add those that their W misses most, until none is.

    Ends with the exact multipliers, and True; or with weights of rows, which may cancel: a proof that no W separates.
    """
    norms = rows.norms
    bound = norms.min() / norms
    chosen = np.argsort(start * norms, kind="stable")[-min(len(rows), DENSE // 3) :]
    weights = np.zeros(len(rows))
    for _ in range(ROUNDS):
        chosen = np.sort(chosen)
        unit = rows.part(chosen).unit()
        gram = unit.gram()
        inside, distance = least_distance(gram, bound[chosen])
        W = unit.adjoint(inside)
        weights = np.zeros(len(rows))
        weights[chosen] = inside / norms[chosen]
        if np.linalg.norm(W) <= CANCELS * inside.sum():
            return weights, False
        lead = rows.values(W) / norms - distance * bound
        worst = np.argsort(lead, kind="stable")[: DENSE // 6]
        worst = worst[lead[worst] < -VIOLATED * distance * bound[worst]]
        if not worst.size:
            weights[chosen] = refine(gram, bound[chosen], inside / distance) / norms[chosen]
            return weights, True
        chosen = np.union1d(chosen[inside > 0], worst)
    return weights, False
