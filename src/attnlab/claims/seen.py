"""What a paper says of its figures, check by check, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from attnlab.claims.given import truths_or_numbers
from attnlab.claims.parts import Mean, Part, Share, together
from attnlab.claims.verdict import Verdict


@dataclass(frozen=True, eq=False)
class Check:
    """One thing that a paper says of a figure, and what was seen of it.

    Attributes:
        name: what is said, as a sentence that is true or not.
        seen: booleans, one for each independent set (or run), judged by their share; or numbers, judged by their mean.
        at_least, at_most: the level. Booleans without a level are true of more than half of the sets; 1.0 asks for all.

    >>> Check("GD is slower", [True] * 5).part.verdict.value
    'holds'
    >>> Check("GD is slower", [True, True]).part.verdict.value  # two of two may be chance
    'too few to tell'
    >>> Check("all runs converge", [True, True], at_least=1.0).part.verdict.value
    'holds'
    """

    name: str
    seen: Any
    at_least: float | None = None
    at_most: float | None = None

    @property
    def part(self) -> Part:
        """What was judged, with its verdict and its interval."""
        seen = truths_or_numbers("seen", self.seen)
        if seen.dtype == bool:
            level = 0.5 if self.at_least is None and self.at_most is None else self.at_least
            share = Share(self.name, at_least=level, at_most=self.at_most)
            share.add(seen)
            return share.part()
        mean = Mean(self.name, at_least=self.at_least, at_most=self.at_most)
        mean.add(seen)
        return mean.part()

    @property
    def measured(self) -> str:
        """What was seen, in a few words: "4 of 5", or a mean with its error."""
        part = self.part
        if part.form == "share" and part.instances:
            return f"{round(part.worst * part.instances)} of {part.instances}"  # type: ignore[operator]
        return part.notices or "none"


def verdict_of(checks: Iterable[Check], *, brief: str = "", stand_in: str = "") -> Verdict:
    """The verdict on all that is said; one check that fails is enough to fail.

    Args:
        checks: all that the paper says.
        brief: why these runs are too short to decide, if they are; then nothing fails.
        stand_in: what the data stand in for, if they are not the paper's; then nothing is decided either way.

    >>> short = verdict_of([Check("it falls", [False] * 5)], brief="ten steps of a thousand")
    >>> other = verdict_of([Check("it falls", [True] * 5)], stand_in="digits in place of MNIST")
    >>> short.value, other.value
    ('not applicable', 'not applicable')
    """
    verdict = together(check.part for check in checks)
    if stand_in or (brief and verdict is not Verdict.HOLDS):
        return Verdict.NOT_APPLICABLE
    return verdict


def between_readings(judged: Verdict, other: Verdict) -> Verdict:
    """The verdict where a text can be read in two ways: that of both if they agree, else that it is a reading.

    >>> between_readings(Verdict.HOLDS, Verdict.FAILS).value
    'reading'
    """
    return Verdict.READING if judged.stands and not other.stands else judged
