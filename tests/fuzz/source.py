"""Where choices come from. A case asks for whole numbers and makes its arguments of them, nothing else.

So one table of cases serves three ends: a seeded generator for long runs, a tape that repeats a call (and is made
shorter and smaller to find the least failing one), and Hypothesis. Everywhere 0 is the plainest choice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

Option = TypeVar("Option")


class Source(ABC):
    """A stream of whole numbers; `tape` remembers them."""

    def __init__(self) -> None:
        self.tape: list[int] = []

    @abstractmethod
    def _next(self, high: int) -> int:
        """A number from 0 to high - 1."""

    def index(self, high: int) -> int:
        """A number from 0 to high - 1."""
        found = self._next(high)
        self.tape.append(found)
        return found

    def indices(self, high: int, count: int) -> list[int]:
        """So many of them."""
        return [self.index(high) for _ in range(count)]

    def choose(self, options: Sequence[Option]) -> Option:
        """One of the options, the plainest first."""
        return options[self.index(len(options))]

    def rarely(self, one_in: int) -> bool:
        """True once in so many times."""
        return self.index(one_in) == one_in - 1


class Seeded(Source):
    """Of a seed, fast."""

    def __init__(self, *seed: Any) -> None:
        super().__init__()
        self._random = Random(repr(seed))

    def _next(self, high: int) -> int:
        return int(self._random.random() * high)


class Replay(Source):
    """A tape once more; zeros where it ends."""

    def __init__(self, tape: Sequence[int]) -> None:
        super().__init__()
        self._left = list(reversed(tape))

    def _next(self, high: int) -> int:
        return self._left.pop() % high if self._left else 0


class Drawn(Source):
    """Of Hypothesis."""

    def __init__(self, data: Any) -> None:
        from hypothesis import strategies

        super().__init__()
        self._data, self._integers = data, strategies.integers

    def _next(self, high: int) -> int:
        return self._data.draw(self._integers(0, high - 1))
