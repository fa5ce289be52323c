"""When to record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import TypeGuard

import numpy as np

from attnlab.checks import enough_memory, finite_array, shown, whole, whole_array
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message

MOST_STEPS = 10**15  # beyond that, days of computing time
DECADES_BEFORE = 3  # of a run shorter than 1 that are recorded
COPIES = 10  # of a schedule, counted in numbers, while it is made


def log_spaced(steps: int, per_decade: int = 20) -> tuple[int, ...]:
    """0, then `per_decade` steps in each power of ten, then `steps`.

    The grid does not depend on `steps`, so a longer run records at the same places and more.

    >>> log_spaced(30, per_decade=3)
    (0, 1, 2, 5, 10, 22, 30)
    """
    steps, per_decade = whole("steps", steps, 0, MOST_STEPS), whole("per_decade", per_decade)
    if steps == 0:
        return (0,)
    count = int(np.floor(per_decade * np.log10(steps))) + 1
    enough_memory(COPIES * float(count), f"{count} records", "a smaller `record`")
    grid = np.round(10.0 ** (np.arange(count + 1) / per_decade)).astype(int)
    return tuple(int(s) for s in np.unique([0, *grid[grid <= steps], steps]))


def record_steps(record: int | Sequence[int] | np.ndarray | None, steps: int) -> tuple[int, ...]:
    """The steps at which metrics are taken: `record` per decade, at these steps, or (None) nowhere."""
    if record is None:
        return ()
    if not _is_list(record):
        return log_spaced(steps, whole("record", record))
    given = _listed(record)
    if not len(given):
        return ()
    asked = whole_array("record", given, "records per decade, or a list of steps")
    if asked.ndim != 1:
        raise InputError(message(f"`record` has shape {asked.shape}; wanted records per decade, or a list of steps."))
    outside = asked[(asked < 0) | (asked > steps)]
    if outside.size:
        raise InputError(message(f"`record` asks for step {outside[0]}; the run goes from 0 to {steps}."))
    return tuple(int(at) for at in np.unique(asked))


def _is_list(record: object) -> TypeGuard[Iterable[float]]:
    """Is this a list of times, and not one number?"""
    return hasattr(record, "__iter__") and not isinstance(record, str | bytes) and getattr(record, "ndim", 1) != 0


def _listed(record: Iterable[float]) -> list[float] | np.ndarray:
    """`record` as a list, if that fits into memory."""
    if isinstance(record, Sized):
        enough_memory(COPIES * float(len(record)), f"{len(record)} records", "a smaller `record`")
    return record if isinstance(record, np.ndarray) else list(record)


def record_times(record: int | Sequence[float] | np.ndarray | None, time: float) -> Array:
    """Times at which metrics are taken: 0 and `record` per decade up to `time`, or these times, or (None) nowhere.

    Decades begin at 1, or three before `time` if that is earlier.

    >>> record_times(1, 1e3).tolist()
    [0.0, 1.0, 10.0, 100.0, 1000.0]
    """
    if record is None:
        return np.zeros(0)
    if not _is_list(record):
        per_decade = whole("record", record)
        last = np.log10(time)
        first = min(0.0, np.floor(last) - DECADES_BEFORE)
        count = int((last - first) * per_decade) + 1
        enough_memory(COPIES * float(count), f"{count} records", "a smaller `record`")
        grid = 10.0 ** (first + np.arange(count) / per_decade)
        return np.unique([0.0, *grid[grid < time * (1.0 - 1e-12)], time])
    given = finite_array("record", _listed(record))
    if given.ndim != 1 or not ((given >= 0.0) & (given <= time)).all():
        raise InputError(
            message(f"`record` is {shown(record)}; wanted times per decade, or a list of times from 0 to {time:g}.")
        )
    return np.unique(given)
