"""A claim: a statement of a paper that can be measured; and what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from attnlab.claims.scale import Scale


class Verdict(Enum):
    """What measurement says about a statement."""

    HOLDS = "holds"
    FAILS = "fails"
    VACUOUS = "vacuous"
    NOT_APPLICABLE = "not applicable"
    ERRATUM = "erratum"

    @property
    def meaning(self) -> str:
        """As a sentence."""
        return {
            Verdict.HOLDS: "No instance contradicts it.",
            Verdict.FAILS: "An instance that meets the hypotheses contradicts it.",
            Verdict.VACUOUS: "The bound holds, and says nothing on these instances.",
            Verdict.NOT_APPLICABLE: "No instance met the hypotheses; see their slack.",
            Verdict.ERRATUM: "The printed statement fails, the corrected one holds; both were measured.",
        }[self]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was measured.

    Attributes:
        verdict: the conclusion.
        instances: how many instances were judged, all of which meet the hypotheses.
        worst: the worst of them, in the units of the claim's tolerance; None where there is no number.
        tried: how many were drawn, those that miss a hypothesis included.
        numbers: what else was measured, by name; plain JSON.
        slack: by how much each hypothesis held on the instance closest to missing it, by name.
        seeds: of the instances.
        note: anything a reader should know.
    """

    verdict: Verdict
    instances: int
    worst: float | None = None
    tried: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    slack: Mapping[str, float] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; NaN and infinities become text."""
        return {
            "verdict": self.verdict.value, "instances": self.instances, "worst": _plain(self.worst),
            "tried": self.instances if self.tried is None else self.tried, "numbers": _plain(dict(self.numbers)),
            "slack": _plain(dict(self.slack)), "seeds": [int(s) for s in self.seeds], "note": self.note,
        }  # fmt: skip

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Outcome:
        """What `to_json` wrote."""
        return cls(**{**facts, "verdict": Verdict(facts["verdict"])})


def within(worst: float, tolerance: float, *, instances: int, **facts: Any) -> Outcome:
    """Holds if the worst case is at most the tolerance; not applicable without instances.

    >>> within(1e-12, 1e-10, instances=5).verdict.value
    'holds'
    """
    if not instances:
        return Outcome(verdict=Verdict.NOT_APPLICABLE, instances=0, **facts)
    verdict = Verdict.HOLDS if worst <= tolerance else Verdict.FAILS  # NaN fails
    return Outcome(verdict=verdict, instances=instances, worst=float(worst), **facts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Claim:
    """A statement that can be measured.

    Attributes:
        id: paper prefix and name, as "svm-T2".
        title: a few words.
        statement: one sentence with its formula.
        hypotheses: what it assumes.
        tolerance: what the worst case is compared with; None where a count decides.
        reason: why that tolerance, and in which units.
        measure: measures it at a scale.
        expected: the verdict on record; another one is news.
    """

    id: str
    title: str
    statement: str
    hypotheses: tuple[str, ...] = ()
    tolerance: float | None = None
    reason: str
    measure: Callable[[Scale], Outcome]
    expected: Verdict = Verdict.HOLDS

    @property
    def paper(self) -> str:
        """The prefix of the id."""
        return self.id.split("-")[0]

    def about(self) -> dict[str, Any]:
        """What it says, as plain JSON."""
        return {
            "id": self.id, "paper": self.paper, "title": self.title, "status": "ready", "statement": self.statement,
            "hypotheses": list(self.hypotheses), "tolerance": self.tolerance, "reason": self.reason,
            "expected": self.expected.value,
        }  # fmt: skip


def erratum(
    *,
    id: str,
    title: str,
    printed: str,
    corrected: str,
    reason: str,
    measure_printed: Callable[[Scale], Outcome],
    measure_corrected: Callable[[Scale], Outcome],
    hypotheses: tuple[str, ...] = (),
    tolerance: float | None = None,
) -> Claim:
    """A claim in two halves: the printed statement, shown to fail on an instance that meets its hypotheses, and the
    corrected one, shown to hold.

    The verdict is erratum if both are as said, holds if the printed statement stands after all, fails otherwise.
    """

    def measure(scale: Scale) -> Outcome:
        first, second = measure_printed(scale), measure_corrected(scale)
        verdict = Verdict.FAILS
        if first.verdict is Verdict.FAILS and second.verdict is Verdict.HOLDS:
            verdict = Verdict.ERRATUM
        elif first.verdict is Verdict.HOLDS:
            verdict = Verdict.HOLDS
        return Outcome(
            verdict=verdict, instances=first.instances + second.instances, worst=second.worst,
            tried=(first.tried or first.instances) + (second.tried or second.instances),
            numbers={"printed": first.to_json(), "corrected": second.to_json()}, slack={**first.slack, **second.slack},
            seeds=sorted({*first.seeds, *second.seeds}), note=" ".join(n for n in (first.note, second.note) if n),
        )  # fmt: skip

    return Claim(
        id=id, title=title, statement=f"Printed: {printed} Corrected: {corrected}", hypotheses=hypotheses,
        tolerance=tolerance, reason=reason, measure=measure, expected=Verdict.ERRATUM,
    )  # fmt: skip


def _plain(value: Any) -> Any:
    """Numbers, arrays and containers as JSON knows them."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value
