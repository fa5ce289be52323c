"""Which block next: blocks of about ten seconds, points of equal shapes one after the other."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from attnlab.study.design import Cuts, Design, Part, Task

SECONDS = 10.0  # that a block is to take
PILOTS = (16, 64)  # trials of the first blocks while nothing is known: one to compile and warm up, one to measure
LEAST = 16  # trials of a block where more would leave a process without work; `descend` runs as many side by side
BLOCKS_EACH = 4  # blocks for every process, at least, if blocks are not too small for that


class Schedule:
    """What is left to do.

    Args:
        design: the study.
        slots: how many blocks are computed at a time.
        retry_failed: blocks whose error is recorded count as missing.
    """

    def __init__(self, design: Design, slots: int, retry_failed: bool) -> None:
        self.design, self.slots = design, max(1, slots)
        self.kept = self.failed = 0  # trials
        self._todo: dict[int, deque[Task]] = {}
        self._cost: dict[tuple[Any, ...], float] = {}  # seconds per trial, without compiling
        self._last_cost: float | None = None
        self._pilots: dict[int, Task] = {}  # by point: those that are out
        self._ends: dict[int, list[int]] = {}  # by point: where its pilots ended
        self._shape_of_slot: dict[int, tuple[Any, ...]] = {}
        for point in range(len(design.points)):
            self._take_in(point, retry_failed)

    @property
    def waiting(self) -> bool:
        """Is anything not handed out yet?"""
        return any(self._todo.values())

    def next(self, slot: int) -> Task | None:
        """A block for this slot: of the shapes that it has compiled already, if there is one."""
        for shape in self._shapes_for(slot):
            for point in self._points(shape):
                task = self._of(point)
                if task is not None:
                    self._shape_of_slot[slot] = shape
                    return task
        return None

    def again(self, task: Task) -> None:
        """A block, or what is missing of it, is to be handed out once more."""
        self._pilots.pop(task.point, None)
        self._todo[task.point].appendleft(task)

    def learn(self, task: Task, seconds: float) -> None:
        """A block took so long, without compiling. The first of all only warmed up, which tells nothing."""
        warming = self._pilots.get(task.point) == task and not self._ends.get(task.point)
        if not warming:
            self._last_cost = self._cost[self.design.shape(task.point)] = max(seconds, 1e-9) / task.trials
        self.over(task)

    def over(self, task: Task) -> None:
        """A block is finished or has failed for good."""
        if self._pilots.get(task.point) == task:
            del self._pilots[task.point]
            self._ends.setdefault(task.point, []).append(task.stop)

    def _take_in(self, point: int, retry_failed: bool) -> None:
        missing = []
        for part in self.design.parts(point):
            if part.result is not None:
                self.kept += part.task.trials
                self._learn_from(part)
            elif part.error and not retry_failed:
                self.failed += part.task.trials
            else:
                missing.append(part.task)
        self._todo[point] = deque(missing)

    def _learn_from(self, part: Part) -> None:
        facts = part.result.facts if part.result is not None else {}
        trials = int(facts.get("stop", 0)) - part.task.start
        if trials > PILOTS[0]:
            seconds = float(facts["seconds"]) - float(facts["compile_seconds"])
            self._last_cost = self._cost[self.design.shape(part.task.point)] = max(seconds, 1e-9) / trials

    def _shapes_for(self, slot: int) -> list[tuple[Any, ...]]:
        """Own shape first, then those that no other slot has taken, then the rest; each in the order of the points."""
        shapes = list(dict.fromkeys(self.design.shape(point) for point, tasks in self._todo.items() if tasks))
        own = self._shape_of_slot.get(slot)
        taken = {shape for other, shape in self._shape_of_slot.items() if other != slot}
        return sorted(shapes, key=lambda shape: (shape != own, shape in taken))

    def _points(self, shape: tuple[Any, ...]) -> list[int]:
        return [point for point, tasks in self._todo.items() if tasks and self.design.shape(point) == shape]

    def _of(self, point: int) -> Task | None:
        if point in self._pilots:
            return None
        if self.design.cuts(point) is None:
            cost = self._cost.get(self.design.shape(point), self._last_cost)
            if cost is None and self._pilots:
                return None  # their answers will tell how large this block should be
            if cost is None and len(self._ends.get(point, [])) < len(PILOTS):
                return self._pilot(point)
            self._cut(point, cost)
        return self._todo[point].popleft()

    def _pilot(self, point: int) -> Task:
        task = self._todo[point].popleft()
        trials = PILOTS[len(self._ends.get(point, []))]
        first = Task(point, task.start, min(task.start + trials, task.stop))
        if first.stop < task.stop:
            self._todo[point].appendleft(Task(point, first.stop, task.stop))
        self._pilots[point] = first
        return first

    def _cut(self, point: int, cost: float | None) -> None:
        """Decide how the trials of a point are cut, and cut what is left accordingly."""
        before = {task.start for task in self._todo[point]} - {0}
        ends = sorted({*self._ends.get(point, []), *before})
        left = sum(task.trials for task in self._todo[point])
        cuts = self.design.decide_cuts(point, Cuts(tuple(ends), self._even(self._size(cost), left)))
        blocks = deque()
        for task in self._todo[point]:
            at = task.start
            while at < task.stop:
                end = min(cuts.end(at), task.stop)
                blocks.append(Task(point, at, end))
                at = end
        self._todo[point] = blocks

    def _size(self, cost: float | None) -> int:
        trials = self.design.trials
        if cost is None:  # all pilots failed
            return min(PILOTS[0], trials)
        fair = math.ceil(len(self.design.points) * trials / (BLOCKS_EACH * self.slots))
        size = min(max(1, int(SECONDS / cost)), max(fair, LEAST), trials)
        return size if size <= LEAST or size == trials else size - size % LEAST

    def _even(self, size: int, left: int) -> int:
        """A little smaller, if then every process gets as many blocks, so that none waits for the last of another."""
        blocks, points = math.ceil(left / size), len(self.design.points)
        for more in range(blocks // 8 + 1) if self.slots > 1 else ():
            if (blocks + more) * points % self.slots == 0:
                even = math.ceil(left / (blocks + more))
                return min(size, even + -even % LEAST)
        return size
