"""What a study is: its points, its trials, and the name under which each block of trials is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnlab.store import Kept, Store
from attnlab.store.reach import reach
from attnlab.study.grid import Point, shape_of

BlockFunction: TypeAlias = Callable[[Mapping[str, Any], NDArray[np.int64]], Mapping[str, Any]]

# Seeds of studies with different `seed` never meet: that of trial t is seed * 2^32 + t.
SEEDS_APART = 2**32
MOST_SEED = 2**20 - 1  # so that all seeds are whole numbers that float64 and JSON hold

RESULT, FAILURE, SIZE = "study", "study-failure", "study-size"


@dataclass(frozen=True)
class Task:
    """A block of trials of one point, start <= trial < stop."""

    point: int
    start: int
    stop: int

    @property
    def trials(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Part:
    """A block of trials as the store has it: its result, its error, or neither.

    `task.stop` is never beyond the trials of the study; a kept block may hold more.
    """

    task: Task
    result: Kept | None = None
    error: str = ""
    traceback: str = ""

    @property
    def missing(self) -> bool:
        return self.result is None and not self.error


@dataclass(frozen=True)
class Cuts:
    """Where trials are cut into blocks: first at some ends, then after every so many.

    >>> cuts = Cuts((16, 80), 500)
    >>> [cuts.end(0), cuts.end(16), cuts.end(80), cuts.end(580)]
    [16, 80, 580, 1080]
    """

    ends: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Cuts:
        return cls(tuple(int(end) for end in facts["ends"]), int(facts["size"]))

    def end(self, start: int) -> int:
        """Where the block that begins here ends."""
        return next((end for end in self.ends if end > start), start + self.size)


@dataclass(frozen=True, eq=False)
class Design:
    """Function, points, trials, seed and store of a study.

    A block is kept under a hash of the function (its code and all code that it reaches), its point, the seed, and its
    first trial; the entry says where it ends. So blocks are found again whatever their size, and further trials begin
    where the last block ended.
    """

    function: BlockFunction
    points: list[Point]
    trials: int
    seed: int
    store: Store
    given_size: int | None = None
    _cuts: dict[int, Cuts] = field(default_factory=dict)

    @cached_property
    def code(self) -> dict[str, Any]:
        """Everything that decides what the function returns for a point and seeds."""
        return reach(self.function)

    def seeds(self, task: Task) -> NDArray[np.int64]:
        return self.seed * SEEDS_APART + np.arange(task.start, task.stop, dtype=np.int64)

    def config(self, task: Task) -> dict[str, Any]:
        """What the block is kept under."""
        return {"code": self.code, "point": self.points[task.point], "seed": self.seed, "start": task.start}

    def cuts(self, point: int) -> Cuts | None:
        """Where the trials of a point are cut; None if that is not decided yet."""
        if self.given_size is not None:
            return Cuts((), self.given_size)
        if point not in self._cuts:
            kept = self.store.find(SIZE, self._size_config(point))
            if kept is None:
                return None
            self._cuts[point] = Cuts.of(kept.facts)
        return self._cuts[point]

    def decide_cuts(self, point: int, cuts: Cuts) -> Cuts:
        """Keep where the trials of a point are cut, so that a later run cuts them at the same places."""
        if self.given_size is not None:
            return Cuts((), self.given_size)
        facts = {"ends": list(cuts.ends), "size": cuts.size}
        kept = self.store.keep(SIZE, self._size_config(point), lambda: ({}, facts))
        self._cuts[point] = Cuts.of(kept.facts)
        return self._cuts[point]

    def parts(self, point: int) -> list[Part]:
        """All trials of a point in order, cut into blocks: finished, failed or missing."""
        parts = []
        at = 0
        while at < self.trials:
            part = self.look(point, at)
            parts.append(part)
            at = part.task.stop
        return parts

    def look(self, point: int, start: int) -> Part:
        """The block that begins at a trial."""
        config = self.config(Task(point, start, start))
        result = self.store.find(RESULT, config)
        if result is not None:
            return Part(self._task(point, start, int(result.facts["stop"])), result)
        failure = self.store.find(FAILURE, config)
        if failure is not None:
            task = self._task(point, start, int(failure.facts["stop"]))
            return Part(task, None, str(failure.facts["error"]), str(failure.facts["traceback"]))
        return Part(self._task(point, start, self._end(point, start)))

    def shape(self, point: int) -> tuple[Any, ...]:
        """Points of equal shapes share compiled programs."""
        return shape_of(self.points[point])

    def _task(self, point: int, start: int, stop: int) -> Task:
        return Task(point, start, min(stop, self.trials))

    def _end(self, point: int, start: int) -> int:
        """Where a missing block ends; while cuts are not decided all that is left is one."""
        cuts = self.cuts(point)
        return self.trials if cuts is None else cuts.end(start)

    def _size_config(self, point: int) -> dict[str, Any]:
        return {"code": self.code, "point": self.points[point]}
