"""From multipliers to a certified solution, or to a proof that there is none; the Frobenius norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.svm.proof import CANCELS, residual
from attnlab.svm.rows import Rows
from attnlab.svm.solution import MarginSolution, MarginStatus

# Equalities missed by more, relative to the sizes of what they compare, are not met.
MET = 1e-9
# Rounding of the values below this is bounded by norms alone; above it their terms are summed.
SAFE = 1e-12
# Added to the errors of values, which are of order one.
ROUNDED = 1e-12
# Values, or a bound, that rounding may have moved by more than this certify nothing.
UNSURE = 1e-3
_least, _most, _sum = np.minimum.reduce, np.maximum.reduce, np.add.reduce
EPS = float(np.finfo(np.float64).eps)


def certify(
    rows: Rows,
    multipliers: Array,
    selected: NDArray[np.intp],
    d: int,
    tolerance: float,
    W: Array | None = None,
) -> MarginSolution | None:
    """The solution that these multipliers give, with its gap; None if W does not separate.

    For any l >= 0 and any W with least value m > 0: W / m is feasible, and |W*| >= sum l / |sum l A|. Without a W
    of its own the solution is sum l A.
    """
    lifted = np.maximum(multipliers, 0.0)
    multipliers = lifted if rows.equal is None else np.where(rows.equal, multipliers, lifted)
    raw = rows.adjoint(multipliers)
    length = dual_length = sqrt(np.vdot(raw, raw))
    if W is None:
        W = raw
    else:
        length = sqrt(np.vdot(W, W))
    least, total = float(_least(rows.inequalities(rows.values(W)))), float(_sum(rows.inequalities(multipliers)))
    if not (least > 0 and total > 0 and isfinite(length) and isfinite(dual_length)):
        return None
    W, length = W / least, length / least
    multipliers *= length / dual_length  # so that sum l A has the length of W
    gap = max(length * dual_length / total - 1.0, 0.0)
    # Rounding, where long terms of sum l A cancel, and where values near 1 are differences of large numbers.
    pulls = multipliers if rows.equal is None else np.abs(multipliers)
    rounding = 4 * EPS * float(pulls.dot(rows.norms)) / length
    if not isfinite(rounding):  # the multipliers are no float64 numbers
        return None
    farthest = length * float(_most(rows.norms))  # no value is larger
    lowered = 4 * EPS * farthest
    if not lowered < SAFE:
        lowered = lowered_by_rounding(rows, W, rows.values(W), farthest)
        if not lowered < 1.0:
            return None
    rounding += lowered
    # |W - W*|^2 <= |W|^2 - |W*|^2 for feasible W, and |W*| >= |W| / (1 + gap).
    uncertain = gap + rounding
    error = sqrt(uncertain * (2.0 + uncertain)) / (1.0 + uncertain)
    widest = error * farthest + ROUNDED
    missed = 0.0 if rows.equal is None else missed_equalities(rows, W, rows.values(W), multipliers)
    reason = None
    if missed:
        reason = f"the equalities are missed by up to {missed:.1e}"
    elif widest > 0.05:
        reason = f"the gap {gap:.1e} leaves constraint values uncertain by up to {widest:.1e}"
    evidence = _Evidence(rows, W, multipliers, error * length)
    return MarginSolution(
        W=W,
        margin=1.0 / length,
        multipliers=evidence.pulls,
        values=evidence.values,
        value_error=evidence.slack,
        support=None if reason else evidence.support,
        rank_floor=None if reason else error * length,
        gap=gap,
        violation=evidence.violation,
        direction_error=error,
        status=status_of(gap <= tolerance and not missed and rounding <= UNSURE),
        farkas=None,
        farkas_residual=None,
        norm="frobenius",
        selected=selected,
        reason=reason,
        unique=True,
    )


@dataclass(frozen=True, eq=False)
class _Evidence:
    """What is laid out of a certified W when it is asked for; `error` bounds |W - W*|."""

    rows: Rows
    W: Array
    multipliers: Array
    error: float

    @cached_property
    def flat(self) -> Array:
        """The values of all constraints, (N,)."""
        return self.rows.values(self.W)

    def pulls(self) -> Array:
        return self.rows.scatter(self.multipliers)

    def values(self) -> Array:
        return self.rows.scatter(self.flat, np.nan)

    def slack(self) -> Array:
        return self.rows.scatter(self.error * self.rows.norms + ROUNDED, np.nan)

    def support(self) -> NDArray[np.bool_]:
        tight = self.flat <= 1.0 + (self.error * self.rows.norms + ROUNDED)
        return self.rows.scatter(tight if self.rows.equal is None else tight & ~self.rows.equal, False)

    def violation(self) -> float:
        """The most by which a constraint is missed."""
        equal = self.rows.equal
        missed = 0.0 if equal is None else float(np.abs(self.flat[equal]).max(initial=0.0))
        return max(0.0, 1.0 - float(_least(self.rows.inequalities(self.flat))), missed)


def status_of(certified: bool) -> MarginStatus:
    """Of a W that separates."""
    return MarginStatus.OPTIMAL if certified else MarginStatus.INACCURATE


def lowered_by_rounding(rows: Rows, W: Array, values: Array, farthest: float) -> float:
    """How far below 1 the least value may be because of rounding; 1 or more: perhaps W does not separate.

    `farthest` is an upper bound of the values, which are 1 or more.
    """
    if 4 * EPS * farthest < SAFE:
        return 4 * EPS * farthest
    return max(0.0, 1.0 - float(rows.inequalities(values - 4 * EPS * rows.sizes(W)).min()))


def merely_feasible(rows: Rows, plain: MarginSolution, norm: str, value: Callable[[Array], float]) -> MarginSolution:
    """The Frobenius solution as a W that separates, without a bound in this norm, whose value is given."""
    power = int(np.frexp(np.abs(plain.W).max())[1])
    unit = value(np.ldexp(plain.W, -power))
    return replace(
        plain,
        norm=norm,
        margin=float(np.ldexp(1.0 / unit, -power)),
        multipliers=np.zeros(rows.shape),
        value_error=rows.scatter(np.full(len(rows), np.inf), np.nan),
        support=None,
        rank_floor=None,
        gap=np.inf,
        direction_error=None,
        status=MarginStatus.INACCURATE,
        reason="no multipliers for this norm were found",
        unique=None,
    )


def missed_equalities(rows: Rows, W: Array, values: Array, multipliers: Array) -> float:
    """By how much the equalities are missed; 0 where it is rounding, and where meeting them would not lengthen W."""
    if rows.equal is None or not rows.equal.any():
        return 0.0
    missed = np.abs(values)[rows.equal]
    wrong = missed > MET * (1.0 + rows.sizes(W)[rows.equal])
    # |W*| is at least the bound of the multipliers, if the equalities hold; a W that misses them may be below it.
    gained = float(np.abs(multipliers[rows.equal]) @ missed) / float(rows.inequalities(multipliers).sum())
    return float(missed.max()) if wrong.any() or not gained <= MET else 0.0


def without_solution(
    rows: Rows, weights: Array, selected: NDArray[np.intp], d: int, solution: MarginSolution | None
) -> MarginSolution:
    """Infeasible if the weights prove it; else the poor solution there is, or undecided."""
    if _weight(rows, weights) > 0:
        cancelled = float(np.linalg.norm(rows.adjoint(weights)))
        if cancelled <= CANCELS * float(np.abs(weights) @ rows.norms):
            return infeasible(rows, weights, selected, d)
    if solution is not None:
        return solution
    return infeasible(rows, weights, selected, d, MarginStatus.UNDECIDED)


def _weight(rows: Rows, weights: Array) -> float:
    """The sum of the weights of the inequalities."""
    return float(rows.inequalities(weights).sum())


def infeasible(
    rows: Rows, weights: Array, selected: NDArray[np.intp], d: int, status: MarginStatus = MarginStatus.INFEASIBLE
) -> MarginSolution:
    """No W, with weights that prove it, or that were found on the way; undecided if their shares are no numbers."""
    total = _weight(rows, weights)
    shares = weights / total if total > 0 else weights
    if np.isfinite(shares).all():
        weights = shares
    elif status is MarginStatus.INFEASIBLE:  # no float64 numbers prove it
        status = MarginStatus.UNDECIDED
    nothing = np.full(rows.shape, np.nan)
    return MarginSolution(
        W=np.full((d, d), np.nan), margin=0.0, multipliers=nothing, values=nothing, value_error=nothing, support=None,
        rank_floor=None, gap=np.inf, violation=np.inf, direction_error=np.inf, status=status,
        farkas=rows.scatter(weights), farkas_residual=residual(rows, weights), norm="frobenius", selected=selected,
        reason=status.value,
    )  # fmt: skip


def unconstrained(rows: Rows, selected: NDArray[np.intp], d: int) -> MarginSolution:
    nothing = np.full(rows.shape, np.nan)
    return MarginSolution(
        W=np.zeros((d, d)), margin=np.inf, multipliers=np.zeros(rows.shape), values=nothing, value_error=nothing,
        support=np.zeros(rows.shape, dtype=bool), rank_floor=0.0, gap=0.0, violation=0.0, direction_error=0.0,
        status=MarginStatus.UNCONSTRAINED, farkas=None, farkas_residual=None, norm="frobenius", selected=selected,
    )  # fmt: skip


def better(one: MarginSolution | None, other: MarginSolution | None) -> MarginSolution | None:
    """The one of smaller gap."""
    known = [s for s in (one, other) if s is not None]
    return min(known, key=lambda s: s.gap) if known else None
