"""One thing that was judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnlab.claims.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing that was judged.

    Attributes:
        name: what, in the units that are compared.
        form: "bound", "identity", "limit", "count", "share" or "mean".
        verdict: of this part alone.
        worst: the value closest to a contradiction, or beyond; for a bound measured over promised.
        limit: what `worst` is compared with.
        tightness: measured over promised at the instance closest to the promise; 1 for an identity, None where nothing
            is promised in numbers.
        instances: how many were judged.
        unsolved: how many could not be judged, because a search did not finish or a chosen one missed a hypothesis.
        notices: how large a fault would have been noticed, as a phrase.
        guard: the test that guards the formula where the measurement cannot; empty if none.
    """

    name: str
    form: str
    verdict: Verdict
    worst: float | None
    limit: float | None
    tightness: float | None
    instances: int
    unsolved: int = 0
    notices: str = ""
    guard: str = ""

    @property
    def found(self) -> str:
        """What was seen, as a phrase; of a bound that stands, how much smaller it could be."""
        if self.worst is None or self.limit is None:
            return "not judged"
        fails = self.verdict is Verdict.FAILS
        if self.form == "bound":
            return f"broken {self.worst:.3g} times over" if fails else self.notices
        if self.form == "count":
            return f"contradicted in {self.worst:.0f} of {self.instances}" if fails else f"in all of {self.instances}"
        if self.form == "identity":
            return f"off by {self.worst:.2g}, asked {self.limit:.2g}" if fails else f"equal to {self.worst:.1g}"
        if self.form in ("share", "mean"):
            return self.notices
        name = self.name.removeprefix("printed: ").removeprefix("corrected: ")
        return f"{name}: {self.worst:.3g}, asked {self.limit:.3g}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {**self.__dict__, "verdict": self.verdict.value}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Part:
        """What `to_json` wrote."""
        numbers = {key: _number(facts[key]) for key in ("worst", "limit", "tightness")}
        return cls(**{**facts, **numbers, "verdict": Verdict(facts["verdict"])})


def _number(value: Any) -> float | None:
    """A number that JSON may have told as text."""
    return None if value is None else float(value)
