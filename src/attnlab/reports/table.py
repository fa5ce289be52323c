"""What `rates` returns: step rules side by side, as numbers and as a table to print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.data.tokens import Array
from attnlab.reports.report import Fact, Report, Section
from attnlab.theory.fitting import RateFit
from attnlab.theory.rates.predictions import Prediction
from attnlab.train.trajectory import Trajectory


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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RatesRow:
    """One rule.

    Attributes:
        name: as given, or the rule as it prints.
        rule: the rule as it prints.
        reached: when the levels were reached.
        misalignment: 1 - cos(W, W_mm) at the end, of each trial; NaN where W is zero, or diverged.
        fit: exponent of a power of t over the last decade; None with `fit_problem`.
        theory_fit: the same in the family of the prediction; None where there is none.
        prediction: what theory says.
        capped: share of the steps at which the cap bound; 0 without one, None where it cannot be told.
        run: everything recorded.
    """

    name: str
    rule: str
    reached: tuple[Reached, ...]
    misalignment: Array
    fit: RateFit | None
    fit_problem: str | None
    theory_fit: RateFit | None
    prediction: Prediction
    capped: float | None
    run: Trajectory

    def record(self) -> dict[str, Any]:
        """Medians over trials, by column; a time that was not reached is inf."""
        times = {_heading(reached.level): reached.median for reached in self.reached}
        return {
            "name": self.name,
            **times,
            "1 - cos at the end": float(np.median(self.misalignment)),
            "falls as t^-": None if self.fit is None else self.fit.rate,
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
            "capped": "unknown" if self.capped is None else f"{100 * self.capped:.0f} %",
        }

    def _end(self) -> str:
        if np.isfinite(self.misalignment).all():
            return f"{np.median(self.misalignment):.2e}"
        return "diverged" if np.any(self.run.diverged) else "no direction"

    def to_json(self) -> dict[str, Any]:
        """Everything but the run, as plain JSON; a time that was not reached is null."""
        times = {f"{reached.level:g}": _finite(reached.times) for reached in self.reached}
        return {
            "name": self.name,
            "rule": self.rule,
            "times": times,
            "misalignment": _finite(self.misalignment),
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
        Lambda: |W_mm| of each.
    """

    rules: tuple[RatesRow, ...]
    levels: tuple[float, ...]
    steps: int
    trials: int
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
        """Which rule came closest to the max-margin direction."""
        trials = f"{self.trials} trials, median (range)" if self.trials > 1 else "one data set"
        ends = {row.name: float(np.median(row.misalignment)) for row in self.rules}
        finite = {name: end for name, end in ends.items() if np.isfinite(end)}
        if not finite:
            return f"{self.steps} steps, {trials}: no rule has a direction to compare with W_mm."
        return f"{self.steps} steps, {trials}: {min(finite, key=finite.__getitem__)} comes closest to W_mm."

    def sections(self) -> tuple[Section, ...]:
        """The rules, and what theory says of each."""
        theory = [Fact(row.name, f"{row.prediction}{_measured(row)}") for row in self.rules]
        return Section("", self.rules), Section("theory", theory)

    def to_json(self) -> dict[str, Any]:
        """Everything but the runs, as plain JSON."""
        return {
            **super().to_json(),
            "steps": self.steps,
            "trials": self.trials,
            "levels": list(self.levels),
            "Lambda": self.Lambda.tolist(),
        }


def _heading(level: float) -> str:
    return f"cos {level:g} at step"


def _finite(numbers: Iterable[float]) -> list[float | None]:
    """Numbers as JSON knows them; null for what is not finite."""
    return [float(number) if np.isfinite(number) else None for number in numbers]


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
