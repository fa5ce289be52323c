"""What `rates` returns: step rules side by side, as numbers and as a table to print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.data.tokens import Array
from attnlab.theory.fast_rates.predictions import Prediction
from attnlab.theory.fitting import RateFit
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
        misalignment: 1 - cos(W, W_mm) at the end, of each trial.
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

    def to_json(self) -> dict[str, Any]:
        """Everything but the run, as plain JSON; a time that was not reached is null."""
        return {
            "name": self.name, "rule": self.rule,
            "times": {f"{r.level:g}": [t if np.isfinite(t) else None for t in r.times] for r in self.reached},
            "misalignment": [float(m) if np.isfinite(m) else None for m in self.misalignment],
            "fit": None if self.fit is None else self.fit.to_json(), "fit_problem": self.fit_problem,
            "theory_fit": None if self.theory_fit is None else self.theory_fit.to_json(),
            "prediction": self.prediction.to_json(), "capped": self.capped, "status": self.run.status.value,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RatesTable:
    """Step rules side by side; print it.

    Attributes:
        rows: one per rule, in the order given.
        levels: the alignments looked for.
        steps: length of the runs.
        trials: how many data sets.
        Lambda: |W_mm| of each.
    """

    rows: tuple[RatesRow, ...]
    levels: tuple[float, ...]
    steps: int
    trials: int
    Lambda: Array

    def __getitem__(self, name: str) -> RatesRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no rule {name!r}; there are {', '.join(row.name for row in self.rows)}")

    def to_json(self) -> dict[str, Any]:
        """Everything but the runs, as plain JSON."""
        return {
            "steps": self.steps, "trials": self.trials, "levels": list(self.levels), "Lambda": self.Lambda.tolist(),
            "rows": [row.to_json() for row in self.rows],
        }  # fmt: skip

    def __repr__(self) -> str:
        times = (f"cos {level:g} at step" for level in self.levels)
        lines = [["rule", *times, "1 - cos at the end", "falls as", "capped"], *(_cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        trials = f"{self.trials} trials, median (range)" if self.trials > 1 else "one data set"
        notes = [f"{row.name}: {row.prediction}{_measured(row)}" for row in self.rows]
        return "\n".join([f"{self.steps} steps, {trials}", *table, "", "theory", *notes])


def _cells(row: RatesRow) -> list[str]:
    return [row.name, *map(str, row.reached), _end(row.misalignment), _power(row.fit), _percent(row.capped)]


def _end(misalignment: Array) -> str:
    return f"{np.median(misalignment):.2e}" if np.isfinite(misalignment).all() else "diverged"


def _power(fit: RateFit | None) -> str:
    if fit is None:
        return "no fit"
    return f"t^{-fit.rate:.2f} [{-fit.high:.2f}, {-fit.low:.2f}]{'' if fit.conclusive else ' ?'}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.0f} %"


def _measured(row: RatesRow) -> str:
    fit = row.theory_fit
    if fit is None:
        return ""
    base = {"log2_over_t": "(log^2 t / t)^", "inverse_log": "(log t)^-", "power": "t^-"}.get(
        fit.family, fit.family + " "
    )
    return f"; measured {base}{fit.rate:.2f}"
