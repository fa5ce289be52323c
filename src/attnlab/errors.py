"""What can go wrong, by name.

Every message says which argument, what was given and what is wanted, then a blank line and a hint.
"""

from __future__ import annotations

from typing import Any


class AttnlabError(Exception):
    """Base class of every error attnlab raises on purpose."""


class InputError(AttnlabError, ValueError):
    """An argument has a wrong shape, value or type."""


class NoSuchTrial(InputError, IndexError):
    """A batch has no trial of that number. Being an IndexError, it ends a loop over the trials."""


class StoreError(AttnlabError):
    """A run cannot be named, written or read."""


class InfeasibleSelection(AttnlabError):
    """No W separates the selected tokens from the others.

    `farkas` proves it: weights at least 0, of sum 1, on the constraints, whose weighted sum is the zero matrix.
    `solution` is what `throw=False` would have returned.
    """

    def __init__(self, text: str, solution: Any) -> None:
        super().__init__(text)
        self.solution = solution
        self.farkas = solution.farkas


class TiedScoresWarning(UserWarning):
    """Several tokens share the best score, so "the" optimal token is a choice."""


def message(problem: str, hint: str | None = None) -> str:
    """`problem`, a blank line, then the hint."""
    return problem if hint is None else f"{problem}\n\nhint: {hint}"
