"""When to record."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from attnlab.errors import InputError, message


def log_spaced(steps: int, per_decade: int = 20) -> tuple[int, ...]:
    """0, then `per_decade` steps in each power of ten, then `steps`.

    The grid does not depend on `steps`, so a longer run records at the same places and more.

    >>> log_spaced(30, per_decade=3)
    (0, 1, 2, 5, 10, 22, 30)
    """
    if steps <= 0:
        return (0,)
    count = int(np.floor(per_decade * np.log10(steps))) + 1
    grid = np.round(10.0 ** (np.arange(count + 1) / per_decade)).astype(int)
    return tuple(int(s) for s in np.unique([0, *grid[grid <= steps], steps]))


def record_steps(record: int | Sequence[int] | None, steps: int) -> tuple[int, ...]:
    """The steps at which metrics are taken: `record` per decade, at these steps, or (None) nowhere."""
    if record is None:
        return ()
    if isinstance(record, int | np.integer):
        if record < 1:
            raise InputError(message(f"`record` is {record}; wanted at least 1 record per decade, or a list of steps."))
        return log_spaced(steps, int(record))
    try:
        given = [operator.index(s) for s in record]
    except TypeError:
        raise InputError(message(f"`record` is {record!r}; wanted records per decade, or a list of steps.")) from None
    outside = [s for s in given if not 0 <= s <= steps]
    if outside:
        raise InputError(message(f"`record` asks for step {outside[0]}; the run goes from 0 to {steps}."))
    return tuple(sorted(set(given)))
