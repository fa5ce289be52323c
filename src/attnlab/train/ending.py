"""Signs that a run has ended before its last step, per trial: weights that overflowed, or stand still.

Every function takes or gives arrays whose first axis is that of trials.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import NDArray

from attnlab.models.scaled import Params

FIRST_STOP, FIRST_STOP_IN_LANES = 64, 1024  # steps; small problems take a thousand in the time of one look
Trials = NDArray[np.bool_]
Record = dict[str, np.ndarray]


def lost(params: Params) -> Trials:
    """Which trials have weights that are not finite."""
    bad = [~np.isfinite(p).reshape(p.shape[0], -1).all(1) for p in params.values()]
    return np.logical_or.reduce(bad)


def same(one: Params, other: Params) -> Trials:
    """Which trials have equal weights, to the last digit."""
    equal = [(one[name] == other[name]).reshape(one[name].shape[0], -1).all(1) for name in one]
    return np.logical_and.reduce(equal)


def stands(record: Record) -> Trials:
    """Which trials take no step here though their gradient is not zero."""
    return (record["step_length"] == 0) & (record["log_gradient_norm"] > -np.inf)


def moves(record: Record) -> Trials:
    """Which trials take a step here."""
    return record["step_length"] > 0


def standing_since(records: list[tuple[int, Record]]) -> NDArray[np.int64]:
    """The earliest of the last records from which on a trial stands; -1 where it does not at the last of them."""
    since = np.full(len(stands(records[-1][1])), -1)
    still = np.ones(len(since), dtype=bool)
    for at, record in reversed(records):
        still &= stands(record)
        if not still.any():
            break
        since[still] = at
    return since


def stops_of(schedule: tuple[int, ...], steps: int, first: int = FIRST_STOP) -> set[int]:
    """Where a run looks whether it has ended: at its records, and where there are none near, after `first` steps,
    twice that, four times that ...

    These depend on the schedule and the shapes alone, so that where a run ends does not depend on the clock.
    """
    stops = {*schedule, steps}
    at = first
    while at < steps:
        near = bisect_left(schedule, 2 * at) - bisect_right(schedule, at // 2)
        if near == 0:
            stops.add(at)
        at *= 2
    return stops
