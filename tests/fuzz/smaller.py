"""The least call that still fails in the same way: parts of the tape are made zero, then its numbers smaller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from fuzz.calls import Case
from fuzz.outcomes import outcome
from fuzz.source import Replay


def shrunk(case: Case, tape: list[int], key: tuple[str, ...], seconds: float = 20.0) -> list[int]:
    """A tape as plain as can be found in this time with an outcome of the same key."""
    end = time.perf_counter() + seconds

    def fails(candidate: list[int]) -> bool:
        try:
            return outcome(case, Replay(candidate))[0].key(case.name) == key
        except Exception:
            return False

    best, improved = tape, True
    while improved and time.perf_counter() < end:
        improved = False
        for candidate in _candidates(best):
            if time.perf_counter() > end:
                break
            if fails(candidate):
                best, improved = candidate, True
                break
    return best


def _candidates(tape: list[int]) -> Iterator[list[int]]:
    """Plainer tapes: shorter ones, with a stretch of zeros, with one number less."""
    for keep in (0, len(tape) // 2, 3 * len(tape) // 4, len(tape) - 1):
        if 0 <= keep < len(tape):
            yield tape[:keep]
    width = len(tape) // 2
    while width >= 1:
        for begin in range(0, len(tape), width):
            if any(tape[begin : begin + width]):
                yield tape[:begin] + [0] * len(tape[begin : begin + width]) + tape[begin + width :]
        width //= 2
    for i, number in enumerate(tape):
        for less in (number // 2, number - 1):
            if 0 < less < number:
                yield [*tape[:i], less, *tape[i + 1 :]]


def repeated(case: Case, tape: list[int]) -> Callable[[], object]:
    """The call of a tape, to be made again."""
    return case.make(Replay(tape))
