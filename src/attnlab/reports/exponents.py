"""How fast do the trials of a run fall: each for itself, and the settled ones together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.errors import InputError
from attnlab.reports.ownlimit import TrialState
from attnlab.theory.fitting import FIRST_STEP, Family, RateFit, fit_rate

# A misalignment below this has lost its digits to rounding.
ROUNDING = 1e-24


@dataclass(frozen=True, kw_only=True, eq=False)
class Exponents:
    """Rates of the trials of a run.

    Attributes:
        each: a fit of every trial, None where there is none.
        problems: why there is none; None where there is one.
        together: of the settled trials that have one; None with `problem`.
        in_family: the same in the family of theory; None without one.
        problem: why the trials together have none.
    """

    each: tuple[RateFit | None, ...]
    problems: tuple[str | None, ...]
    together: RateFit | None
    in_family: RateFit | None
    problem: str | None


def exponents(
    steps: NDArray[np.int64],
    misalignment: Array,
    states: Sequence[TrialState],
    *,
    start: float | None,
    family: Family | None,
) -> Exponents:
    """Fit powers of t over the last decade, or from `start` on; `misalignment` is (trials, R).

    A curve ends where rounding takes over. One that is constant, or ends too soon, has no exponent. Only settled trials
    are fitted together, over the steps that all of them have.

    >>> steps = np.unique(np.geomspace(1, 1e4, 100).astype(int))
    >>> curves = np.stack([steps**-2.0, steps**-1.9, np.full(len(steps), 0.3)])
    >>> found = exponents(steps, curves, [TrialState.SETTLED] * 3, start=None, family=None)
    >>> found.together.rates.round(2).tolist(), found.problems[2]
    ([2.0, 1.9], 'constant at 0.3 from step 977 on, so no exponent can be fitted')
    """
    each: list[RateFit | None] = []
    problems: list[str | None] = []
    for curve, state in zip(misalignment, states, strict=True):
        fit, problem = _of_one(steps, curve, state, start)
        each.append(fit)
        problems.append(problem)
    settled = np.array([state is TrialState.SETTLED for state in states])
    fitted = np.array([fit is not None for fit in each])
    curves = misalignment[settled & fitted]
    together = in_family = None
    problem = _why_none(settled, problems)
    if len(curves):
        stop = _stop(steps, curves)
        first = _first(steps, stop, start)
        together, problem = _fit(steps, curves, "power", first, stop)
        if family is not None:
            in_family, _ = _fit(steps, curves, family, first, stop)
    return Exponents(
        each=tuple(each), problems=tuple(problems), together=together, in_family=in_family, problem=problem
    )


def _of_one(
    steps: NDArray[np.int64], curve: Array, state: TrialState, start: float | None
) -> tuple[RateFit | None, str | None]:
    """The fit of one curve, or why there is none."""
    if state is TrialState.INFEASIBLE:
        return None, "no W separates the selected tokens"
    if state is TrialState.DIVERGED:
        return None, "loss or weights overflowed"
    stop = _stop(steps, curve[None])
    if stop <= FIRST_STEP < steps[-1]:
        return None, f"aligned to rounding from step {stop + 1:g} on, so no exponent can be fitted"
    fit, problem = _fit(steps, curve[None], "power", _first(steps, stop, start), stop)
    if fit is not None and fit.constant.all():
        return None, f"constant at {curve[-1]:.3g} from step {fit.first:g} on, so no exponent can be fitted"
    return fit, problem


def _fit(
    steps: NDArray[np.int64], curves: Array, family: Family, start: float, stop: float
) -> tuple[RateFit | None, str | None]:
    try:
        return fit_rate(steps, curves, family=family, start=start, stop=stop), None
    except InputError as error:
        return None, str(error).split("\n")[0].removesuffix(".")


def _why_none(settled: NDArray[np.bool_], problems: Sequence[str | None]) -> str:
    """Why no settled trial has an exponent."""
    if not settled.any():
        return "no trial has settled; more steps, or longer ones"
    told = [problem for problem, here in zip(problems, settled, strict=True) if here and problem is not None]
    return told[0] if told else "no trial has an exponent"


def _stop(steps: NDArray[np.int64], curves: Array) -> float:
    """The last step before one of the curves is lost in rounding."""
    rounded = (curves < ROUNDING).any(0)
    return float(steps[rounded][0]) - 1 if rounded.any() else float(steps[-1])


def _first(steps: NDArray[np.int64], stop: float, start: float | None) -> float:
    """`start`, or the last record with a decade from it to `stop`, but not before the families of rates begin."""
    if start is not None:
        return start
    early = steps[steps <= stop / 10]
    return max(FIRST_STEP, float(early[-1])) if len(early) else FIRST_STEP
