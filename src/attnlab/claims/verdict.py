"""What measurement can say about a statement, and how much a slip in a paper weighs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Verdict(Enum):
    """What measurement says about a statement."""

    HOLDS = "holds"
    LOOSE = "not violated, far from tight"
    FAILS = "fails"
    VACUOUS = "vacuous"
    NOT_APPLICABLE = "not applicable"
    UNSOLVED = "unsolved"
    TOO_FEW = "too few to tell"
    ERRATUM = "erratum"
    SLIP = "slip"
    READING = "reading"

    @property
    def meaning(self) -> str:
        """As a sentence."""
        return _MEANINGS[self]

    @property
    def stands(self) -> bool:
        """Is the statement one that no instance contradicts, and that says something?"""
        return self in (Verdict.HOLDS, Verdict.LOOSE)


_MEANINGS = {
    Verdict.HOLDS: "No instance contradicts it.",
    Verdict.LOOSE: "No instance contradicts it, and every bound is more than a thousand times what was measured: a "
    "wrong constant would not have been noticed.",
    Verdict.FAILS: "An instance that meets the hypotheses contradicts it.",
    Verdict.VACUOUS: "The bound holds, and says nothing on these instances.",
    Verdict.NOT_APPLICABLE: "No instance met the hypotheses; see their slack.",
    Verdict.UNSOLVED: "Too many instances could not be judged: a search or a solver did not finish, or an instance "
    "that was chosen to meet the hypotheses did not; that contradicts nothing.",
    Verdict.TOO_FEW: "The interval of what was measured contains the stated value: more instances would decide.",
    Verdict.ERRATUM: "The printed statement or constant fails, the corrected one holds; both were measured.",
    Verdict.SLIP: "A line of a proof or of the text is not right as printed; the stated result is not contradicted.",
    Verdict.READING: "The text can be read in several ways; what each gives was measured.",
}


class Kind(Enum):
    """How much a slip weighs. Only the first two count against a theorem."""

    STATEMENT = "statement"
    CONSTANT = "constant"
    PROOF_STEP = "proof step"
    TYPO = "typo"
    READING = "reading"

    @property
    def meaning(self) -> str:
        """As a phrase."""
        return {
            Kind.STATEMENT: "the stated result is false",
            Kind.CONSTANT: "true with another constant",
            Kind.PROOF_STEP: "a line of a proof; the stated result is not contradicted",
            Kind.TYPO: "a misprint",
            Kind.READING: "the text is silent or can be read in several ways",
        }[self]

    @property
    def verdict(self) -> Verdict:
        """What a claim of this kind is called once both halves were measured as said."""
        if self in (Kind.STATEMENT, Kind.CONSTANT):
            return Verdict.ERRATUM
        return Verdict.READING if self is Kind.READING else Verdict.SLIP


@dataclass(frozen=True, kw_only=True)
class Slip:
    """Something printed that is not right, or not clear.

    Attributes:
        kind: how much it weighs.
        where: theorem, equation, section; a caption or somebody's code is named as such.
        quote: the printed words, exactly; "..." stands for what is left out.
        charitable: the most charitable reading that was tried, and what it gave.
        correction: what is right, or for a reading, which one was chosen and why.
    """

    kind: Kind
    where: str
    quote: str
    charitable: str
    correction: str

    def about(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "kind": self.kind.value,
            "where": self.where,
            "quote": self.quote,
            "charitable": self.charitable,
            "correction": self.correction,
        }
