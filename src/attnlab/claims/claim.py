"""A claim: a statement of a paper that can be measured; and what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnlab.checks import whole
from attnlab.claims.given import level, one_number, part_name
from attnlab.claims.parts import Part, Tally, together
from attnlab.claims.scale import Scale
from attnlab.claims.seen import Check, verdict_of
from attnlab.claims.verdict import Kind, Slip, Verdict

Measure = Callable[[Scale], "Outcome"]
PRINTED, CORRECTED = "printed: ", "corrected: "  # names of the parts of the two halves of an erratum


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was measured.

    Attributes:
        verdict: the conclusion.
        instances: how many instances were judged, all of which meet the hypotheses.
        worst: of the part closest to a contradiction, in its units; None where there is no number.
        tried: how many were drawn, those that miss a hypothesis included.
        parts: what was judged, each with its own verdict, worst case and tightness.
        numbers: what else was measured, by name; plain JSON.
        slack: by how much each hypothesis held on the instance closest to missing it, by name.
        seeds: of the instances.
        note: anything a reader should know.
        example: an instance worth keeping, as a counterexample: "how" to make it again, and its arrays by name.
    """

    verdict: Verdict
    instances: int
    worst: float | None = None
    tried: int | None = None
    parts: Sequence[Part] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    slack: Mapping[str, float] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    note: str = ""
    example: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tightness(self) -> float | None:
        """Measured over promised of the tightest bound that stands; without bounds 1 if a formula was met exactly, else
        None."""
        standing = [part for part in self.parts if part.verdict.stands and part.tightness is not None]
        bounds = [part for part in standing if part.form == "bound"]
        return max((part.tightness or 0.0 for part in bounds or standing), default=None)

    @property
    def line(self) -> str:
        """The verdict in one line: what was found, and how large a fault would have had to be to be noticed."""
        said = [self.verdict.value]
        printed = [part for part in self.parts if part.name.startswith(PRINTED)]
        others = [part for part in self.parts if not part.name.startswith(PRINTED)]
        broken = [part for part in printed if part.verdict is Verdict.FAILS]
        if broken:
            said.append("printed " + broken[0].found)
        best = _telling(others, self.verdict)
        if best is not None:
            said.append(f"corrected: {best.found}" if printed else best.found)
        unsolved = sum(part.unsolved for part in self.parts)
        if unsolved:
            said.append(f"{unsolved} unsolved")
        return "; ".join(part for part in said if part)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; NaN and infinities become text."""
        return {
            "verdict": self.verdict.value,
            "line": self.line,
            "instances": self.instances,
            "worst": _plain(self.worst),
            "tightness": _plain(self.tightness),
            "tried": self.instances if self.tried is None else self.tried,
            "parts": [_plain(part.to_json()) for part in self.parts],
            "numbers": _plain(dict(self.numbers)),
            "slack": _plain(dict(self.slack)),
            "seeds": [int(s) for s in self.seeds],
            "note": self.note,
            "example": _plain(dict(self.example)),
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Outcome:
        """What `to_json` wrote."""
        derived = ("line", "tightness")
        own = {key: value for key, value in facts.items() if key not in derived}
        parts = tuple(Part.from_json(part) for part in facts["parts"])
        worst = None if facts["worst"] is None else float(facts["worst"])
        return cls(**{**own, "verdict": Verdict(facts["verdict"]), "parts": parts, "worst": worst})


def _telling(parts: Sequence[Part], verdict: Verdict) -> Part | None:
    """The part that says most: one with the verdict; else the first that stands, or the tightest of its like."""
    if not verdict.stands:
        decisive = [part for part in parts if part.verdict is verdict]
        if decisive:
            return decisive[0]
    standing = [part for part in parts if part.verdict.stands]
    standing = [part for part in standing if part.form != "count"] or standing
    if not standing or standing[0].form != "bound":
        return standing[0] if standing else None
    bounds = [part for part in standing if part.form == "bound"]
    return max(bounds, key=lambda part: part.tightness or 0.0)


def outcome(*tallies: Tally, instances: int | None = None, **facts: Any) -> Outcome:
    """The outcome of a statement of several parts, each tallied by itself.

    Args:
        tallies: of the parts; see `attnlab.claims.parts`.
        instances: how many instances were judged; the largest count of a part if left out.
        **facts: `tried`, `numbers`, `slack`, `seeds`, `note`, `example` of `Outcome`.

    >>> from attnlab.claims.parts import Bound, Count
    >>> bound, count = Bound("|grad| / bound"), Count("the loss rises")
    >>> bound.add([0.2, 0.5], 1.0), count.add([False, False])
    (None, None)
    >>> outcome(bound, count).line
    'holds; a constant 2 times smaller would still hold'
    """
    parts = tuple(tally.part() for tally in tallies)
    judged = max((part.instances for part in parts), default=0) if instances is None else instances
    leading = _closest(parts)
    return Outcome(
        verdict=together(parts),
        instances=judged,
        worst=None if leading is None else leading.worst,
        parts=parts,
        **facts,
    )


def outcome_of_checks(
    checks: Sequence[Check], *, brief: str = "", stand_in: str = "", note: str = "", **facts: Any
) -> Outcome:
    """The outcome of what a paper says of a figure, check by check.

    Args:
        checks: what is said.
        brief: why the runs are too small to refute anything, if they are; it goes into the note.
        stand_in: what the data stand in for, if they are not the paper's; then nothing is decided. It goes there too.
        note: anything else that a reader should know.
        **facts: as for `outcome`.
    """
    parts = tuple(check.part for check in checks)
    leading = _closest(parts)
    return Outcome(
        verdict=verdict_of(checks, brief=brief, stand_in=stand_in),
        instances=max((part.instances for part in parts), default=0),
        worst=None if leading is None else leading.worst,
        parts=parts,
        note=" ".join(words for words in (stand_in, brief, note) if words),
        **facts,
    )


def _closest(parts: Sequence[Part]) -> Part | None:
    """The part that fails, or is closest to it."""
    judged = [part for part in parts if part.worst is not None]
    failing = [part for part in judged if part.verdict is Verdict.FAILS]
    if failing:
        return failing[0]
    ranked = sorted(judged, key=lambda part: part.worst / part.limit if part.limit else 0.0)  # type: ignore[operator]
    return ranked[-1] if ranked else None


def within(worst: float, tolerance: float, *, instances: int, name: str = "worst case", **facts: Any) -> Outcome:
    """One number against one tolerance: holds if it is at most that; not applicable without instances.

    Where a paper promises a bound, or several things are judged, use `outcome` with tallies.

    >>> within(1e-12, 1e-10, instances=5).verdict.value
    'holds'
    """
    if whole("instances", instances, 0) == 0:
        return Outcome(verdict=Verdict.NOT_APPLICABLE, instances=0, **facts)
    worst, tolerance = one_number("worst", worst), level("tolerance", tolerance)
    verdict = Verdict.HOLDS if worst <= tolerance else Verdict.FAILS  # NaN fails
    part = Part(
        name=part_name(name),
        form="limit",
        verdict=verdict,
        worst=worst,
        limit=tolerance,
        tightness=None,
        instances=instances,
        notices=f"a value above {tolerance:.2g} would be seen",
    )
    return Outcome(verdict=verdict, instances=instances, worst=worst, parts=(part,), **facts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Claim:
    """A statement that can be measured.

    Attributes:
        id: paper prefix and name, as "svm-T2".
        title: a few words.
        statement: one sentence with its formula.
        hypotheses: what it assumes.
        setting: on what it is measured: family of data, sizes, loss, starts, steps.
        tolerance: what the worst case is compared with; None where each part has its own.
        reason: what is judged, in which units, and why that tolerance.
        measure: measures it at a scale.
        expected: the verdict on record; another one is news.
        at_scale: where a scale has another verdict on record, that verdict and why.
        missing: () -> what must be there before it can be measured, as a data set; empty if nothing.
        inputs: () -> what decides the outcome beside code and scale, as the user's own files; plain JSON.
        slip: for an erratum, a slip or a reading: what is printed, where, and how it was read.
    """

    id: str
    title: str
    statement: str
    hypotheses: tuple[str, ...] = ()
    setting: str = ""
    tolerance: float | None = None
    reason: str
    measure: Measure
    expected: Verdict = Verdict.HOLDS
    at_scale: Mapping[Scale, tuple[Verdict, str]] = field(default_factory=dict)
    missing: Callable[[], str] = lambda: ""
    inputs: Callable[[], Any] = lambda: None
    slip: Slip | None = None

    @property
    def status(self) -> str:
        """ "ready", or what it needs."""
        return self.missing() or "ready"

    @property
    def paper(self) -> str:
        """The prefix of the id."""
        return self.id.split("-")[0]

    def expected_at(self, scale: Scale) -> Verdict:
        """The verdict on record at a scale."""
        return self.at_scale[scale][0] if scale in self.at_scale else self.expected

    def about(self) -> dict[str, Any]:
        """What it says, as plain JSON."""
        return {
            "id": self.id,
            "paper": self.paper,
            "title": self.title,
            "status": self.status,
            "kind": None if self.slip is None else self.slip.kind.value,
            "statement": self.statement,
            "hypotheses": list(self.hypotheses),
            "setting": self.setting,
            "tolerance": self.tolerance,
            "reason": self.reason,
            "expected": self.expected.value,
            "at_scale": {scale.value: [verdict.value, why] for scale, (verdict, why) in self.at_scale.items()},
            "slip": None if self.slip is None else self.slip.about(),
            "code": _module_of(self.measure),
        }


def erratum(
    *,
    id: str,
    title: str,
    printed: str,
    corrected: str,
    slip: Slip,
    reason: str,
    measure_printed: Measure,
    measure_corrected: Measure,
    hypotheses: tuple[str, ...] = (),
    setting: str = "",
    tolerance: float | None = None,
    at_scale: Mapping[Scale, tuple[Verdict, str]] | None = None,
    each: bool = False,
) -> Claim:
    """A claim in two halves: what is printed, shown to fail on an instance that meets its hypotheses, and what is
    right, shown to hold.

    The verdict is that of the slip's kind if both are as said, holds if the printed half stands after all, fails
    otherwise; unsolved and too few to tell stay what they are. With `each`, the parts of the printed half are slips of
    their own, and one that does not fail is enough to hold.
    """

    def measure(scale: Scale) -> Outcome:
        first, second = measure_printed(scale), measure_corrected(scale)
        printed = first.verdict
        if each and any(part.verdict is not Verdict.FAILS for part in first.parts):
            printed = Verdict.HOLDS
        return Outcome(
            verdict=_of_halves(printed, second.verdict, slip.kind),
            instances=first.instances + second.instances,
            worst=second.worst,
            tried=(first.tried or first.instances) + (second.tried or second.instances),
            parts=(*_named(PRINTED, first.parts), *_named(CORRECTED, second.parts)),
            numbers={"printed": first.to_json(), "corrected": second.to_json()},
            slack={**first.slack, **second.slack},
            seeds=sorted({*first.seeds, *second.seeds}),
            note=" ".join(n for n in (first.note, second.note) if n),
            example=first.example,
        )

    measure.__module__ = _module_of(measure_printed)
    return Claim(
        id=id,
        title=title,
        statement=f"Printed: {printed} Corrected: {corrected}",
        hypotheses=hypotheses,
        setting=setting,
        tolerance=tolerance,
        reason=reason,
        measure=measure,
        expected=slip.kind.verdict,
        at_scale=at_scale or {},
        slip=slip,
    )


def _of_halves(printed: Verdict, corrected: Verdict, kind: Kind) -> Verdict:
    for undecided in (Verdict.UNSOLVED, Verdict.TOO_FEW):
        if undecided in (printed, corrected) and Verdict.FAILS is not corrected:
            return undecided
    if printed is Verdict.FAILS and corrected.stands:
        return kind.verdict
    return Verdict.HOLDS if printed.stands else Verdict.FAILS


def _named(half: str, parts: Sequence[Part]) -> list[Part]:
    return [replace(part, name=f"{half}{part.name}") for part in parts]


def _module_of(measure: Any) -> str:
    """Where a measure is written, behind partial and the like."""
    inner = getattr(measure, "func", measure)
    return getattr(inner, "__module__", "")


def reading(
    *,
    id: str,
    title: str,
    statement: str,
    slip: Slip,
    reason: str,
    measure: Measure,
    hypotheses: tuple[str, ...] = (),
    setting: str = "",
    tolerance: float | None = None,
) -> Claim:
    """A place where the text is silent or can be read in several ways: what was measured under the readings.

    The verdict is reading if what the statement says of them stands, whatever else was measured if not.
    """

    def measured(scale: Scale) -> Outcome:
        found = measure(scale)
        return replace(found, verdict=slip.kind.verdict) if found.verdict.stands else found

    measured.__module__ = _module_of(measure)
    return Claim(
        id=id,
        title=title,
        statement=statement,
        hypotheses=hypotheses,
        setting=setting,
        tolerance=tolerance,
        reason=reason,
        measure=measured,
        expected=slip.kind.verdict,
        slip=slip,
    )


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
