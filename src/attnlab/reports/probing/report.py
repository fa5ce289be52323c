"""What `probe` returns: heads side by side, as numbers, as a table to print, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.data.frames import data_frame
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.reports.probing.descriptors import Descriptors
from attnlab.reports.probing.judged import HeadVerdict, Judged
from attnlab.reports.probing.layout import Mask
from attnlab.reports.probing.measure import Settings
from attnlab.reports.probing.metrics import Metric
from attnlab.reports.report import Fact, Report, Section

CAUTIONS = (
    Fact("above chance", "more margin for its norm than weights of random directions; not that training sought margin"),
    Fact("index", "0 is chance and 1 held-out max-margin weights, which is no upper bound"),
    Fact("many heads", "5 % of those above chance may be so by chance; heads share their tokens, which is not in it"),
    Fact("ranges", "over halves of the prompts; a least lead has no bootstrap"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Support:
    """Pairs of keys that hold the margin of a head in place, strongest first.

    Attributes:
        pairs: (pairs, 4) prompt, query, selected key, and the rival over which it leads.
        multipliers: (pairs,) share of the margin that each holds.
        held_by: how many pairs hold 90 % of it.
    """

    pairs: NDArray[np.intp]
    multipliers: Array
    held_by: int


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbedHead:
    """One head.

    Attributes:
        layer, head: which one.
        verdict: what can be said of it.
        reason: why there is too little data, else empty.
        judged: share, chance, ceiling, index and z, in each metric; None for too little data.
        stable_rank: of the weights, in each metric.
        support: in each metric.
        descriptors: what it does.
    """

    layer: int
    head: int
    verdict: HeadVerdict
    reason: str
    judged: Mapping[Metric, Judged | None]
    stable_rank: Mapping[Metric, float]
    support: Mapping[Metric, Support]
    descriptors: Descriptors

    @property
    def name(self) -> str:
        """Layer and head, as in L0H2."""
        return f"L{self.layer}H{self.head}"

    def record(self) -> dict[str, Any]:
        """Everything but the support, by column; None where there is nothing."""
        row: dict[str, Any] = {"name": self.name, "layer": self.layer, "head": self.head}
        row |= {"verdict": self.verdict.value, "reason": self.reason}
        names = ("share", "chance", "ceiling", "index", "z", "p", "above", "agreement", "chance_agreement")
        for metric, judged in self.judged.items():
            for name in names:
                row[f"{metric.value}_{name}"] = None if judged is None else getattr(judged, name)
            for name in ("share", "index"):
                ends = None if judged is None else getattr(judged, f"{name}_range")
                low, high = (None, None) if ends is None else ends
                row |= {f"{metric.value}_{name}_least": low, f"{metric.value}_{name}_largest": high}
            row[f"{metric.value}_stable_rank"] = self.stable_rank[metric] if judged is not None else None
        return row | asdict(self.descriptors)

    def cells(self) -> dict[str, str]:
        """The main numbers as text."""
        cells = {}
        for metric, judged in self.judged.items():
            cells[f"{metric.value} index"] = "" if judged is None or judged.index is None else f"{judged.index:.2f}"
            cells[f"{metric.value} z"] = "" if judged is None else f"{judged.z:.1f}"
        does = self.descriptors
        offset = "" if does.offset is None else f"{does.offset:+d}: {does.offset_share:.0%}"
        cells["offset"] = offset
        cells["sinks"] = "" if does.sink_mass is None else f"{does.sink_mass:.0%}"
        cells["entropy"] = "" if does.entropy is None else f"{does.entropy:.2f}"
        cells["verdict"] = f"{self.verdict.value}: {self.reason}" if self.reason else self.verdict.value
        return cells

    def to_json(self) -> dict[str, Any]:
        """The record with the pairs that hold the margin, as plain JSON; an infinite z is null."""
        from attnlab.theory.check import plain

        support = {}
        for metric, held in self.support.items():
            support[metric.value] = {
                "pairs": held.pairs.tolist(),
                "multipliers": held.multipliers.tolist(),
                "held_by": held.held_by,
            }
        return plain(self.record() | {"support": support})


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ProbeReport(Report):
    """The heads of a model; `print` it, or read its attributes, `frame()`, `to_json()`.

    Attributes:
        heads: in the order of layers and heads; `report["L0H2"]` or `report[0, 2]` is one of them.
        metrics: in which they were measured.
        settings: how.
        deviation: of chance in each metric, pooled over heads.
        gap: largest relative width of a bracket of the best margin.
        real: (P, T), which tokens there are.
        queries: how many queries have a choice.
        words: (P, T) texts of the tokens, or None.
    """

    heads: tuple[ProbedHead, ...]
    metrics: tuple[Metric, ...]
    settings: Settings
    deviation: Mapping[Metric, float]
    gap: float
    real: Mask
    queries: int
    words: NDArray[np.str_] | None = None

    def __getitem__(self, which: str | tuple[int, int]) -> ProbedHead:
        for head in self.heads:
            if which in (head.name, (head.layer, head.head)):
                return head
        raise InputError(message(f"There is no head {which!r} in this probe.", f"{self.heads[0].name!r} is one"))

    @property
    def counts(self) -> Counter[HeadVerdict]:
        """How many heads there are of each verdict."""
        return Counter(head.verdict for head in self.heads)

    @property
    def verdict(self) -> str:
        """How many heads are above chance."""
        counts = self.counts
        parts = [f"{counts[verdict]} {verdict.value}" for verdict in HeadVerdict if counts[verdict]]
        many = "1 head" if len(self.heads) == 1 else f"{len(self.heads)} heads"
        return f"{many}: {', '.join(parts)}."

    def sections(self) -> tuple[Section, ...]:
        """Facts, heads, and what must be said with them."""
        settings = self.settings
        prompts, tokens = int(self.real.any(1).sum()), int(self.real.sum())
        facts = [
            Fact("data", f"{tokens} tokens of {prompts} prompts, {self.queries} queries with a choice"),
            Fact("asked", f"n = {settings.queries} decisive queries on each of 2 x {settings.splits} halves"),
            Fact("chance", f"{settings.draws} draws; deviation {self._deviations()}"),
            Fact("best margins", f"{settings.norm} norm, known to {self.gap:.1%}"),
        ]
        return Section("", facts), Section("Heads", self.heads), Section("To be said with it", CAUTIONS)

    def _deviations(self) -> str:
        return ", ".join(f"{value:.4f} {metric.value}" for metric, value in self.deviation.items())

    def frame(self) -> Any:
        """A row for each head, as a pandas DataFrame, which needs pandas."""
        return data_frame([head.record() for head in self.heads], "`to_json()` has the same numbers")

    def to_json(self) -> dict[str, Any]:
        """Verdict, settings and heads, as plain JSON."""
        return {
            "verdict": self.verdict,
            "counts": {verdict.value: self.counts[verdict] for verdict in HeadVerdict},
            "settings": asdict(self.settings),
            "deviation": {metric.value: value for metric, value in self.deviation.items()},
            "gap": self.gap,
            "prompts": int(self.real.any(1).sum()),
            "tokens": int(self.real.sum()),
            "queries": self.queries,
            "heads": [head.to_json() for head in self.heads],
        }

    def __repr__(self) -> str:
        return f"ProbeReport({self.verdict.removesuffix('.')})"

    def __str__(self) -> str:
        return super().__repr__()
