"""The nuclear max-margin problem: least |W|_* with `(x_selected - x_t)^T W z >= 1`, certified, of exact rank.

This is where gradient descent on (K, Q) goes. W lives in the span of the token differences on the left and of the
queries on the right (Lemma 1 of *Transformers as Support Vector Machines*), so the problem is one of a small matrix:

1. coordinates in those two spans, rows scaled to unit length;
2. from a start near the Frobenius solution, which also tells whether there is one: interior points to a gap of 1e-4
   (`attnlab.svm.interior`), then Newton's method on the factors of W, which ends at a gap near rounding and at an exact
   rank (`attnlab.svm.polish`); where that fails, more of the former;
3. the certificate, from the original rows;
4. what the gap proves about all optima: distance, uniqueness, rank, support (`attnlab.svm.optima`).

Above `MANY` constraints only a working set of them is solved for; the rows that its W misses are added until none is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from attnlab.data.span import spanning
from attnlab.data.tokens import Array
from attnlab.svm.certificate import EPS, UNSURE, lowered_by_rounding, merely_feasible, missed_equalities, status_of
from attnlab.svm.frobenius import solve_ordinary as least_frobenius
from attnlab.svm.grouped import hardest
from attnlab.svm.interior import Stack
from attnlab.svm.optima import Certified, examine
from attnlab.svm.polish import SHARP, Found, again_nuclear, least_nuclear, roughly_nuclear
from attnlab.svm.rows import Rows, check_tolerance
from attnlab.svm.scales import Measure, at_any_scale
from attnlab.svm.solution import MarginSolution

TOLERANCE = 1e-8
# Above this many constraints a working set of them is solved for.
MANY = 500
# Rounds of adding missed rows to it, and how many of each query join at a time.
ROUNDS, RIVALS = 40, 8
# Working sets are solved to this gap until the W found has this least value on all rows.
ROUGH, NEARLY = 1e-2, 0.9
# Rows of values above this, and of less than this share of the largest multiplier, leave the working set.
EASY, PULLS = 1.3, 1e-4
MISSED, SHORTEST = 1e-10, 0.1
# With a gap above this it is worth asking whether there is a solution at all.
FAR = 1e-3


def solve_nuclear(rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float = TOLERANCE) -> MarginSolution:
    """The W of least nuclear norm that meets the rows, some of which may be equalities.

    Args:
        rows: the constraints.
        selected: the selection they come from; kept in the solution.
        d: W is d x d.
        tolerance: relative duality gap `(|W|_* / least value) (|sum l A| / sum l) - 1` to reach.

    Returns:
        A `MarginSolution` with norm "nuclear": multipliers are scaled to |sum l A| = 1 (largest singular value), so
        that their sum is |W|_* up to the gap; `unique` and `face` tell about all optima. A problem without solution
        comes back with its Farkas vector, as for the Frobenius norm.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=5, T=5, d=10, seed=0)
    >>> chosen = al.optimal_tokens(tokens)
    >>> svm = solve_nuclear(al.svm.margin_rows(tokens, chosen), chosen, tokens.d)
    >>> svm.gap <= 1e-8, svm.rank, svm.unique
    (True, 3, True)
    """
    tolerance = check_tolerance(tolerance)
    return at_any_scale(_solve_ordinary, rows, selected, d, tolerance, _MEASURE)


def _nuclear_norm(W: Array) -> float:
    return float(np.linalg.svd(W, compute_uv=False).sum())


def _spectral_norm(W: Array) -> float:
    return float(np.linalg.svd(W, compute_uv=False)[0])


_MEASURE = Measure(value=_nuclear_norm, dual=_spectral_norm, degree=1)


def _solve_ordinary(rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float) -> MarginSolution:
    above = np.ones(len(rows), dtype=bool) if rows.equal is None else ~rows.equal
    if not above.any() or not rows.norms[above].all():
        return replace(least_frobenius(rows, selected, d), norm="nuclear")
    # Both norms share their feasible W: the Frobenius problem tells whether there is one, and gives a start.
    plain = least_frobenius(rows, selected, d)
    if not plain.feasible:
        return replace(plain, norm="nuclear")
    solution = _solve_many(rows, plain, tolerance) if len(rows) > MANY else _solve(rows, plain, tolerance)
    return solution or _from_frobenius(rows, plain, tolerance)


def _solve(rows: Rows, near: MarginSolution, tolerance: float) -> MarginSolution | None:
    reduced = _Reduced(rows, spanning(rows.p), spanning(rows.queries))
    pulls = near.multipliers.reshape(-1)[rows.where]
    try:
        found = reduced.taken_back(least_nuclear(reduced.stack, tolerance, *reduced.point(near.W, pulls)))
    except np.linalg.LinAlgError:
        return None
    return None if found is None else certify_nuclear(rows, *found, near.selected, len(near.W), tolerance)


class _Reduced:
    """The problem in coordinates of the spans, with unit rows and without dependent equalities."""

    def __init__(self, rows: Rows, left: Array, right: Array) -> None:
        self.rows, self.used = rows, _independent(rows)
        self.part = rows if len(self.used) == len(rows) else rows.part(self.used)
        self.left, self.right = left, right
        unit = self.part.unit()
        free = np.zeros(len(unit), dtype=bool) if unit.equal is None else unit.equal
        bound = np.where(free, 0.0, 1.0 / self.part.norms)
        self.size = float(bound.max())
        f, queries = unit.p @ self.left, unit.queries @ self.right
        self.stack = Stack(f[None], queries[None], unit.query, (bound / self.size)[None], free)

    def point(self, W: Array, multipliers: Array) -> tuple[Array, Array]:
        """W and multipliers of the rows, in these coordinates."""
        inside = self.left.T @ W @ self.right / self.size
        return inside[None], (multipliers[self.used] * self.part.norms)[None]

    def taken_back(self, found: Found) -> tuple[Array, Array, int] | None:
        """W, multipliers and the rank of a polished W (0: not polished); None where nothing was found."""
        if not np.isfinite(found.gap[0]):
            return None
        multipliers = np.zeros(len(self.rows))
        multipliers[self.used] = found.multipliers[0] / self.part.norms
        return self.size * (self.left @ found.W[0] @ self.right.T), multipliers, int(found.rank[0])


def _independent(rows: Rows) -> NDArray[np.intp]:
    """All inequalities, and as many equalities as are independent: the others follow from them."""
    if rows.equal is None or not rows.equal.any():
        return np.arange(len(rows))
    level = np.flatnonzero(rows.equal & (rows.norms > 0))
    gram = rows.part(level).unit().gram() if level.size else np.zeros((0, 0))
    kept = level[:0]
    if level.size:
        factors: Any = scipy.linalg.qr(gram, mode="r", pivoting=True)
        triangle, order = factors
        diagonal = np.abs(triangle.diagonal())
        kept = level[order[: int((diagonal > 1e-12 * diagonal[0]).sum())]]
    return np.union1d(np.flatnonzero(~rows.equal), kept)


def _solve_many(rows: Rows, plain: MarginSolution, tolerance: float) -> MarginSolution | None:
    """Cutting planes: solve for some rows, add those that the W found misses, certify on all rows.

    The first working set is the rows nearest to tight at the Frobenius solution, some of every query. As long as all
    rows leave a large gap, working sets are solved roughly. Each one's multipliers bound the whole problem from below,
    so the best pair so far has a gap that holds whenever this ends.
    """
    equal = np.zeros(len(rows), dtype=bool) if rows.equal is None else rows.equal
    left, right = spanning(rows.p), spanning(rows.queries)
    W, multipliers = plain.W, plain.multipliers.reshape(-1)[rows.where]
    working = equal.copy()
    working[hardest(rows, rows.values(W), RIVALS)] = True
    best: tuple[Array, Array, int] | None = None
    best_gap = np.inf
    rough, rank = True, 0
    for _ in range(ROUNDS):
        index = np.flatnonzero(working)
        try:
            reduced = _Reduced(rows.part(index), left, right)
            found = reduced.taken_back(_of_working_set(reduced, plain, W, multipliers[index], rough, rank, tolerance))
        except np.linalg.LinAlgError:
            break
        if found is None:
            break
        W, inside, rank = found
        multipliers = np.zeros(len(rows))
        multipliers[index] = inside
        values = np.where(equal, np.inf, rows.values(W))
        gap = _gap(W, float(values.min()), rows.part(index).adjoint(inside), float(inside[~equal[index]].sum()))
        if gap < best_gap:
            best, best_gap = (W, multipliers, rank), gap
        missed = hardest(rows, np.where(working, np.inf, values), RIVALS)
        missed = missed[values[missed] < 1.0 - MISSED]
        if not rough and (not missed.size or best_gap <= min(tolerance, SHARP)):
            break
        rough = rough and float(values.min()) < NEARLY
        share = multipliers * rows.norms
        working &= equal | (values < EASY) | (share > PULLS * share.max())
        working[missed] = True
    return None if best is None else certify_nuclear(rows, *best, plain.selected, len(W), tolerance)


def _gap(W: Array, least: float, image: Array, total: float) -> float:
    """Relative gap of W of this least value, and of multipliers of this sum and sum l A; infinite for a bad W."""
    if not (least > 0 and total > 0):
        return np.inf
    return _nuclear_norm(W) * _spectral_norm(image) / (least * total) - 1.0


def _of_working_set(
    reduced: _Reduced,
    plain: MarginSolution,
    W: Array,
    multipliers: Array,
    rough: bool,
    rank: int,
    tolerance: float,
) -> Found:
    """Roughly; or from the solution W of rank `rank` that the last working set had; or from a start near it."""
    stack = reduced.stack
    near, pulls = reduced.point(W, multipliers)
    if rank:
        found = again_nuclear(stack, near, pulls, rank)
        if found.gap[0] <= SHARP:
            return found
    least = float(stack.least(stack.values(near))[0])
    if least <= SHORTEST:  # it misses new rows by far: the Frobenius solution meets all of them
        near, pulls = reduced.point(plain.W, plain.multipliers.reshape(-1)[reduced.rows.where])
        least = 1.0
    near = near / least  # feasible
    return roughly_nuclear(stack, ROUGH, near, pulls) if rough else least_nuclear(stack, tolerance, near, pulls)


def _from_frobenius(rows: Rows, plain: MarginSolution, tolerance: float) -> MarginSolution:
    """The Frobenius solution, judged by the nuclear norm: feasible, with the gap that its multipliers leave."""
    multipliers = plain.multipliers.reshape(-1)[rows.where]
    judged = certify_nuclear(rows, plain.W, multipliers, 0, plain.selected, len(plain.W), tolerance)
    return judged or merely_feasible(rows, plain, "nuclear", _nuclear_norm)


def certify_nuclear(
    rows: Rows, W: Array, multipliers: Array, rank: int, selected: NDArray[np.intp], d: int, tolerance: float
) -> MarginSolution | None:
    """The solution W with its gap by these multipliers, and what that proves; None if W does not separate.

    For any l >= 0 and any W with least value m > 0: W / m is feasible, and |W*|_* >= sum l / |sum l A|.
    """
    equal = np.zeros(len(rows), dtype=bool) if rows.equal is None else rows.equal
    multipliers = np.where(equal, multipliers, np.maximum(multipliers, 0.0))
    M = rows.adjoint(multipliers)
    left, dual_singular, right = np.linalg.svd(M)
    values = rows.values(W)
    least, total = float(values[~equal].min()), float(multipliers[~equal].sum())
    nuclear = float(np.linalg.svd(W, compute_uv=False).sum())
    if not (least > 0 and total > 0 and np.isfinite(nuclear) and dual_singular[0] > 0):
        return None
    W, values, nuclear = W / least, values / least, nuclear / least
    multipliers, total = multipliers / dual_singular[0], total / float(dual_singular[0])
    gap = max(nuclear / total - 1.0, 0.0)
    lowered = lowered_by_rounding(rows, W, values, float(np.linalg.norm(W)) * float(rows.norms.max()))
    if not lowered < 1.0:
        return None
    missed = missed_equalities(rows, W, values, multipliers)
    rounding = lowered + 4 * EPS * float(np.abs(multipliers) @ rows.norms)
    optima = examine(
        Certified(
            rows=rows, W=W, values=values, multipliers=multipliers, equal=equal, nuclear=nuclear, gap=gap, rank=rank,
            left=left, singular=dual_singular, right=right.T,
        )
    )  # fmt: skip
    return MarginSolution(
        W=W,
        margin=1.0 / nuclear,
        multipliers=rows.scatter(multipliers),
        values=rows.scatter(values, np.nan),
        value_error=rows.scatter(optima.value_error, np.nan),
        support=None if optima.support is None else rows.scatter(optima.support, False),
        rank_floor=optima.rank_floor,
        gap=gap,
        violation=max(0.0, 1.0 - float(rows.values(W)[~equal].min()), float(np.abs(values[equal]).max(initial=0.0))),
        direction_error=optima.error,
        status=status_of(gap <= tolerance and rounding <= UNSURE and not missed),
        farkas=None,
        farkas_residual=None,
        norm="nuclear",
        selected=selected,
        reason=optima.reason,
        unique=optima.unique,
        face=optima.face,
    )
