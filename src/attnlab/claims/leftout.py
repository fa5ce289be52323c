"""A statement of a paper that is not measured, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A statement of a paper that is not measured, and why.

    Attributes:
        id: paper prefix and name, as for a claim.
        title: the statement in a few words.
        where: theorem, equation, section.
        why: why it is left out.
    """

    id: str
    title: str
    where: str
    why: str

    @property
    def paper(self) -> str:
        """The prefix of the id."""
        return self.id.split("-")[0]

    def about(self) -> dict[str, Any]:
        """What it is, as plain JSON."""
        return {
            "id": self.id,
            "paper": self.paper,
            "title": self.title,
            "status": f"left out: {self.why}",
            "kind": None,
            "where": self.where,
        }
