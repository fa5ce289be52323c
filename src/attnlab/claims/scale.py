"""How much work to put into a claim or a figure."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from attnlab.errors import InputError, message

T = TypeVar("T")
Tell = Callable[[int, int, str], None]  # told (parts done, parts in all, what comes next)


class Scale(Enum):
    """smoke: does it run; quick: is it about right; paper: the paper's own trial counts."""

    SMOKE = "smoke"
    QUICK = "quick"
    PAPER = "paper"

    @classmethod
    def of(cls, name: str | Scale) -> Scale:
        """The scale of this name."""
        try:
            return cls(name)
        except ValueError:
            wanted = ", ".join(repr(scale.value) for scale in cls)
            raise InputError(message(f"`scale` is {name!r}; wanted one of {wanted}.")) from None

    def pick(self, smoke: T, quick: T, paper: T) -> T:
        """One of three, by scale.

        >>> Scale.QUICK.pick(5, 50, 500)
        50
        """
        return {Scale.SMOKE: smoke, Scale.QUICK: quick, Scale.PAPER: paper}[self]
