"""What `rates` returns: step rules side by side, as numbers and as a table to print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.reports.ownlimit import TrialState
from attnlab.reports.report import Fact, Report, Section
from attnlab.theory.fitting import RateFit
from attnlab.theory.rates.predictions import Prediction
from attnlab.train.trajectory import Trajectory

# Exponents that are printed; the rest is in `trials`.
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Reached:
    """When the trials reached an alignment.

    Attributes:
        level: the cosine with W_mm.
        times: the step, interpolated between records, of each trial; inf where it was not reached.
    """

    level: float
    times: tuple[float, ...]

    @property
    def count(self) -> int:
        """Trials that reached it."""
        return int(np.isfinite(self.times).sum())

    @property
    def median(self) -> float:
        """Of the times; inf where less than half of the trials reached it."""
        ordered = sorted(self.times)
        middle = len(ordered) // 2
        if len(ordered) % 2:
            return ordered[middle]
        below, above = ordered[middle - 1 : middle + 1]
        return 0.5 * (below + above) if np.isfinite(above) else np.inf

    def __str__(self) -> str:
        if not self.count:
            return "not reached"
        middle = f"{self.median:.4g}" if np.isfinite(self.median) else "not reached"
        if len(self.times) == 1:
            return middle
        low, high = min(self.times), max(self.times)
        ends = f"{low:.4g} to {high:.4g}" if np.isfinite(high) else f"from {low:.4g}, {self.count} of {len(self.times)}"
        return f"{middle} ({ends})"


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialRate:
    """One trial of one rule, beside the limit of its own selection.

    Attributes:
        state: has it settled, and if not, what else?
        selected: the tokens of its W_mm: those that it selects itself, unless others were given.
        best: are these the best-scoring (or the planted) tokens?
        Lambda: |W_mm|; inf where infeasible.
        misalignment: 1 - cos(W, W_mm) at the end; NaN where there is no such direction.
        exponent: e of t^-e over the fitted range; NaN with `problem`.
        low, high: least and largest exponent in the four parts of the range.
        problem: why there is no exponent; None if there is one.
    """

    state: TrialState
    selected: NDArray[np.intp]
    best: bool
    Lambda: float
    misalignment: float
    exponent: float
    low: float
    high: float
    problem: str | None

    def __str__(self) -> str:
        if np.isnan(self.exponent):
            return "none" if self.state is TrialState.SETTLED else self.state.word
        told = f"{self.exponent:.2f}"
        return told if self.state is TrialState.SETTLED else f"{told} ({self.state.word})"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; null for what is not finite."""
        Lambda, misalignment, exponent, low, high = _finite(
            (self.Lambda, self.misalignment, self.exponent, self.low, self.high)
        )
        return {
            "state": self.state.word,
            "selected": self.selected.tolist(),
            "best": self.best,
            "Lambda": Lambda,
            "misalignment": misalignment,
            "exponent": exponent,
            "low": low,
            "high": high,
            "problem": self.problem,
        }


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RatesRow:
    """One rule.

    Attributes:
        name: as given, or the rule as it prints.
        rule: the rule as it prints.
        reached: when the levels were reached.
        trials: every trial with its state, its limit and its own exponent, in order; none is dropped.
        fit: exponent of a power of t over the last decade, of those settled trials that have one; None with
            `fit_problem`.
        theory_fit: the same in the family of the prediction; None where there is none.
        prediction: what theory says.
        capped: share of the steps at which the cap bound; 0 without one, None where it cannot be told.
        run: everything recorded.
    """

    name: str
    rule: str
    reached: tuple[Reached, ...]
    trials: tuple[TrialRate, ...]
    fit: RateFit | None
    fit_problem: str | None
    theory_fit: RateFit | None
    prediction: Prediction
    capped: float | None
    run: Trajectory

    @property
    def misalignment(self) -> Array:
        """1 - cos(W, W_mm) at the end, of each trial; NaN where W is zero or diverged, or there is no W_mm."""
        return np.array([trial.misalignment for trial in self.trials])

    @property
    def exponents(self) -> Array:
        """Of each trial; NaN where there is none."""
        return np.array([trial.exponent for trial in self.trials])

    @property
    def counts(self) -> dict[TrialState, int]:
        """How many trials are in each state; those that occur."""
        found = Counter(trial.state for trial in self.trials)
        return {state: found[state] for state in TrialState if found[state]}

    @property
    def settled(self) -> int:
        """How many trials have settled."""
        return self.counts.get(TrialState.SETTLED, 0)

    @property
    def end(self) -> float:
        """1 - cos(W, W_mm) at the end: the median over settled trials, or over all with one if none has settled."""
        some = [trial.misalignment for trial in self.trials if trial.state is TrialState.SETTLED]
        known = np.array(some) if some else self.misalignment
        known = known[np.isfinite(known)]
        return float(np.median(known)) if len(known) else np.nan

    def record(self) -> dict[str, Any]:
        """Medians over trials, by column; a time that was not reached is inf."""
        times = {_heading(reached.level): reached.median for reached in self.reached}
        return {
            "name": self.name,
            **times,
            "1 - cos at the end": self.end,
            "falls as t^-": None if self.fit is None else self.fit.rate,
            "settled": self.settled,
            "capped": self.capped,
            "hypotheses hold": self.prediction.applies,
        }

    def cells(self) -> dict[str, str]:
        """The same as text, with ranges over trials and the interval of the exponent."""
        times = {_heading(reached.level): str(reached) for reached in self.reached}
        return {
            **times,
            "1 - cos at the end": self._end(),
            "falls as": _power(self.fit),
            "trials": ", ".join(f"{count} {state.word}" for state, count in self.counts.items()),
            "capped": "unknown" if self.capped is None else f"{100 * self.capped:.0f} %",
        }

    def _end(self) -> str:
        if np.isfinite(self.end):
            return f"{self.end:.2e}"
        return "diverged" if np.any(self.run.diverged) else "no direction"

    def each(self) -> str:
        """The exponents of the trials, in order, and what keeps the others from having one."""
        shown = ", ".join(str(trial) for trial in self.trials[:SHOWN])
        more = f" and {len(self.trials) - SHOWN} more" if len(self.trials) > SHOWN else ""
        problems = Counter(trial.problem for trial in self.trials if trial.problem is not None)
        told = "".join(f"; {problem}{_times(count)}" for problem, count in problems.items())
        other = sum(not trial.best for trial in self.trials)
        own = f"; {other} at other tokens than the best" if other else ""
        return f"{shown}{more}{own}{told}"

    def to_json(self) -> dict[str, Any]:
        """Everything but the run, as plain JSON; a time that was not reached is null."""
        times = {f"{reached.level:g}": _finite(reached.times) for reached in self.reached}
        return {
            "name": self.name,
            "rule": self.rule,
            "times": times,
            "misalignment": _finite(self.misalignment),
            "trials": [trial.to_json() for trial in self.trials],
            "counts": {state.word: count for state, count in self.counts.items()},
            "fit": None if self.fit is None else self.fit.to_json(),
            "fit_problem": self.fit_problem,
            "theory_fit": None if self.theory_fit is None else self.theory_fit.to_json(),
            "prediction": self.prediction.to_json(),
            "capped": self.capped,
            "status": self.run.status.value,
        }


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RatesTable(Report):
    """Step rules side by side; print it.

    Attributes:
        rules: one row per rule, in the order given; `rows` is the same.
        levels: the alignments looked for.
        steps: length of the runs.
        trials: how many data sets.
        parameterization: "W" or "KQ".
        norm: of the max-margin problems.
        Lambda: |W_mm| of the best, planted or given tokens of each data set; inf where no W separates them.
    """

    rules: tuple[RatesRow, ...]
    levels: tuple[float, ...]
    steps: int
    trials: int
    parameterization: str
    norm: str
    Lambda: Array

    @property
    def rows(self) -> tuple[RatesRow, ...]:
        """One per rule, in the order given."""
        return self.rules

    def __getitem__(self, name: str) -> RatesRow:
        for row in self.rules:
            if row.name == name:
                return row
        raise KeyError(f"no rule {name!r}; there are {', '.join(row.name for row in self.rules)}")

    @property
    def verdict(self) -> str:
        """Which rule came closest to the max-margin direction, and how many runs are not there to stay."""
        trials = f"{self.trials} trials, median (range)" if self.trials > 1 else "one data set"
        ends = {row.name: row.end for row in self.rules}
        finite = {name: end for name, end in ends.items() if np.isfinite(end)}
        if not finite:
            return f"{self.steps} steps, {trials}: no rule has a direction to compare with W_mm.{self._open()}"
        closest = min(finite, key=finite.__getitem__)
        return f"{self.steps} steps, {trials}: {closest} comes closest to W_mm.{self._open()}"

    def _open(self) -> str:
        """Runs that have not settled, in words."""
        runs = self.trials * len(self.rules)
        rest = runs - sum(row.settled for row in self.rules)
        return f" {rest} of {runs} runs not settled, and in no exponent." if rest else ""

    def sections(self) -> tuple[Section, ...]:
        """The rules, the exponents of their trials, and what theory says of each."""
        each = [Fact(row.name, row.each()) for row in self.rules if _worth_telling(row)]
        theory = [Fact(row.name, f"{row.prediction}{_measured(row)}") for row in self.rules]
        title = "exponent of each trial"
        return Section("", self.rules), Section(title, each), Section("theory", theory)

    def to_json(self) -> dict[str, Any]:
        """Everything but the runs, as plain JSON."""
        return {
            **super().to_json(),
            "steps": self.steps,
            "trials": self.trials,
            "levels": list(self.levels),
            "parameterization": self.parameterization,
            "norm": self.norm,
            "Lambda": _finite(self.Lambda),
        }


def _heading(level: float) -> str:
    return f"cos {level:g} at step"


def _finite(numbers: Iterable[float]) -> list[float | None]:
    """Numbers as JSON knows them; null for what is not finite."""
    return [float(number) if np.isfinite(number) else None for number in numbers]


def _times(count: int) -> str:
    return f" ({count} trials)" if count > 1 else ""


def _worth_telling(row: RatesRow) -> bool:
    """More than the row says: several trials, or one without an exponent."""
    return len(row.trials) > 1 or row.fit is None


def _power(fit: RateFit | None) -> str:
    if fit is None:
        return "no fit"
    return f"t^{-fit.rate:.2f} [{-fit.high:.2f}, {-fit.low:.2f}]{'' if fit.conclusive else ' ?'}"


def _measured(row: RatesRow) -> str:
    fit = row.theory_fit
    if fit is None:
        return ""
    bases = {"log2_over_t": "(log^2 t / t)^", "inverse_log": "(log t)^-", "power": "t^-"}
    base = bases.get(fit.family, fit.family + " ")
    return f"; measured {base}{fit.rate:.2f}"
