"""What `limits` returns: the selections that descent goes to, as numbers and as a table to print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.data.scale import length
from attnlab.data.tokens import Array
from attnlab.reports.report import Fact, Report, Section
from attnlab.svm import MarginSolution
from attnlab.theory.proportion import wilson
from attnlab.theory.svm.geometry import LocalOptimality

SHOWN = 20  # rows that are printed; `to_json` has all
MOST_TOKENS = 16  # of a selection that is printed


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Limit:
    """One selection: where it leads, and how many starts go there.

    Attributes:
        selected: a token per query, (n,) or (n, K).
        optimality: is it locally optimal? With its max-margin solution, and why not.
        score: mean score of the selected tokens.
        is_best: are they the best tokens everywhere?
        settled: runs that have settled here.
        unsettled: runs that select these tokens at the last step and have not settled.
        starts: of all.
        steps: median of the steps after which runs were first seen to have settled here; None without such runs.
    """

    selected: NDArray[np.intp]
    optimality: LocalOptimality
    score: float
    is_best: bool
    settled: int
    unsettled: int
    starts: int
    steps: int | None

    @property
    def name(self) -> str:
        """The selected tokens."""
        flat = self.selected.reshape(-1)
        text = " ".join(map(str, flat[:MOST_TOKENS].tolist()))
        return text if len(flat) <= MOST_TOKENS else f"{text} ..."

    @property
    def runs(self) -> int:
        """All runs that end here, settled or not."""
        return self.settled + self.unsettled

    @property
    def solution(self) -> MarginSolution:
        """The max-margin solution, with its certificate."""
        return self.optimality.solution

    @property
    def margin(self) -> float | None:
        """1 / |W|; None where no W separates the tokens."""
        return float(self.solution.margin) if self.solution.feasible else None

    @property
    def direction(self) -> Array | None:
        """The max-margin W over its length, (d, d); None where there is none, or it is zero."""
        W = self.solution.W
        if not self.solution.feasible or not W.any():
            return None
        return W / length(W)

    @property
    def share(self) -> float:
        """Of the starts that settle here."""
        return self.settled / self.starts

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of that share."""
        low, high = wilson(self.settled, self.starts)
        return float(low), float(high)

    def record(self) -> dict[str, Any]:
        """The numbers, by column."""
        low, high = self.interval
        return {
            "name": self.name,
            "locally optimal": self.optimality.holds,
            "best": self.is_best,
            "margin": self.margin,
            "gap": _finite(self.solution.gap),
            "score": self.score,
            "share": self.share,
            "low": low,
            "high": high,
            "steps": self.steps,
            "settled": self.settled,
            "not settled": self.unsettled,
        }

    def cells(self) -> dict[str, str]:
        """The same as text."""
        low, high = (100.0 * end for end in self.interval)
        limit = "yes" if self.optimality else "no" if self.optimality.decided else "unknown"
        return {
            "limit": "best" if self.is_best and self.optimality else limit,
            "margin": "none" if self.margin is None else f"{self.margin:.4g}",
            "gap": "" if self.margin is None else f"{self.solution.gap:.0e}",
            "score": f"{self.score:.4g}",
            "starts": f"{100.0 * self.share:.1f} % [{low:.1f}, {high:.1f}]",
            "steps": "" if self.steps is None else str(self.steps),
            "not settled": str(self.unsettled) if self.unsettled else "",
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON; null where a number is none or infinite."""
        direction = self.direction
        return {
            **self.record(),
            "margin": _finite(self.margin),
            "selected": self.selected.tolist(),
            "reason": self.optimality.reason,
            "lead": _finite(self.optimality.lead),
            "direction": None if direction is None else direction.tolist(),
            "certificate": self.solution.summary(),
        }


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LimitsReport(Report):
    """Where descent goes on a data set, from many starts; print it.

    Attributes:
        limits: a row for every selection that is locally optimal or at which a run ends, the most frequent first.
        selected: the tokens that each run selects at the end, (starts, n) or (starts, n, K).
        settled_at: the steps after which each run was first seen to have settled, (starts,); -1 where it was not.
        total: how many selections there are.
        enumerated: were all of them solved for? If not, limits that no start found are missing.
        parameterization, norm: what was trained, and the norm of the max-margin problems.
        weights: of all runs at the end, start i as trial i: {"W"} or {"K", "Q"}.
        last_step: the last step of the longest runs.
        seconds: time taken.
    """

    limits: tuple[Limit, ...]
    selected: NDArray[np.intp]
    settled_at: NDArray[np.int64]
    total: int
    enumerated: bool
    parameterization: str
    norm: str
    weights: Mapping[str, Array]
    last_step: int
    seconds: float

    @property
    def rows(self) -> tuple[Limit, ...]:
        """All selections; what is printed are the first of them."""
        return self.limits

    @property
    def locally_optimal(self) -> tuple[Limit, ...]:
        """Those that descent can converge to."""
        return tuple(limit for limit in self.limits if limit.optimality)

    @property
    def unsettled(self) -> int:
        """Runs that have not settled."""
        return int((self.settled_at < 0).sum())

    @property
    def limit_of(self) -> NDArray[np.intp]:
        """For each start the number of the row of `limits` at which its run ends, (starts,)."""
        flat = self.selected.reshape(len(self.selected), -1)
        found = np.full(len(flat), -1)
        for number, limit in enumerate(self.limits):
            found[(flat == limit.selected.reshape(-1)).all(-1)] = number
        return found

    @property
    def verdict(self) -> str:
        """How many limits there are, how many starts reach the best tokens, and how many have not settled."""
        starts = len(self.settled_at)
        local, reached = len(self.locally_optimal), sum(limit.settled > 0 for limit in self.limits)
        total = str(self.total) if self.total < 1e15 else f"{float(min(self.total, 10**300)):.1e}"
        what = f"{local} of {total} selections are locally optimal"
        if not self.enumerated:
            what = f"{local} locally optimal selections found, of {total} selections"
        best = sum(limit.settled for limit in self.limits if limit.is_best)
        if not self.unsettled:
            rest = "all settled"
        else:
            hint = f"more steps than {self.last_step} may tell"
            rest = f"{self.unsettled} not settled, {hint}"
        return f"{what}; {starts} starts settle in {reached}, {best} of them on the best tokens; {rest}."

    def sections(self) -> tuple[Section, ...]:
        """The selections, the first of them, and how many more there are."""
        more = self.limits[SHOWN:]
        facts = []
        if more:
            runs, unsettled = sum(limit.runs for limit in more), sum(limit.unsettled for limit in more)
            facts.append(Fact("more", f"{len(more)} selections with {runs} runs, {unsettled} of them not settled"))
        return Section("", self.limits[:SHOWN]), Section("", facts)

    def to_json(self) -> dict[str, Any]:
        """Everything but the runs, as plain JSON."""
        return {
            **super().to_json(),
            "starts": len(self.settled_at),
            "unsettled": self.unsettled,
            "selections": self.total if self.total < 2**53 else None,
            "enumerated": self.enumerated,
            "locally_optimal": len(self.locally_optimal),
            "parameterization": self.parameterization,
            "norm": self.norm,
            "steps": self.last_step,
            "settled_at": self.settled_at.tolist(),
            "limit_of": self.limit_of.tolist(),
        }


def _finite(number: float | None) -> float | None:
    return float(number) if number is not None and np.isfinite(number) else None
