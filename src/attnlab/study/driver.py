"""Blocks out, answers in, until nothing is left: the same on this machine and on a cluster."""

from __future__ import annotations

import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from attnlab.data.owners import owned_name
from attnlab.data.writing import write_text
from attnlab.errors import InputError
from attnlab.store import Store
from attnlab.store.reach import reached_modules
from attnlab.study.design import FAILURE, Design, Task
from attnlab.study.grid import spelt
from attnlab.study.outcome import Outcome
from attnlab.study.schedule import Schedule
from attnlab.study.sending import packed
from attnlab.study.work import Job, keep

# Rooms of attnlab whose functions run compiled programs.
COMPILED = ("attnlab.models", "attnlab.train", "attnlab.theory", "attnlab.reports")


class Executor(Protocol):
    """Where blocks are computed. An answer with `facts["lost"]` says that block and process are gone."""

    def idle(self) -> list[int]: ...
    def submit(self, slot: int, job: Job) -> None: ...
    def answers(self) -> Iterator[tuple[Job, Outcome]]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class StudyProgress:
    """How far a study is, in trials.

    Attributes:
        done: finished or failed, of `total`.
        kept: of these, found in the store when the run began.
        failed: of these, recorded with an error.
        seconds: since the run began.
        left: seconds until the end at this pace; None while nothing is known.
    """

    done: int
    total: int
    kept: int
    failed: int
    seconds: float
    left: float | None


@dataclass(frozen=True, repr=False)
class StudyRun:
    """What one call of `Study.run` did.

    Attributes:
        trials: of all points.
        computed, kept, failed: how many were computed now, were in the store, are recorded with an error.
        blocks: computed now.
        seconds: in all.
        busy_seconds: in block functions, summed over processes.
        compile_seconds: of these, for tracing and compiling.
        memory: largest resident size of each process, in bytes, by host:pid.
        log: what had to be done again, and why.
    """

    trials: int
    computed: int
    kept: int
    failed: int
    blocks: int
    seconds: float
    busy_seconds: float
    compile_seconds: float
    memory: dict[str, int]
    log: tuple[str, ...]

    def __repr__(self) -> str:
        again = f", {len(self.log)} times something was done again" if self.log else ""
        return (
            f"StudyRun({self.computed} of {self.trials} trials computed in {self.blocks} blocks and "
            f"{self.seconds:.1f} s, {self.kept} kept, {self.failed} failed{again})"
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


@dataclass
class Driver:
    """One run of a study.

    Args:
        design: the study.
        executor: where blocks are computed.
        slots: how many at a time.
        retries: how often a block is tried again.
        retry_failed: also blocks that failed in an earlier run.
        tell: called with a `StudyProgress` at the start and after every block.
        shared: do workers look for the store on their own disk?
    """

    design: Design
    executor: Executor
    slots: int
    retries: int
    retry_failed: bool
    tell: Callable[[StudyProgress], None]
    shared: bool = True
    _tries: Counter[Task] = field(default_factory=Counter)
    _log: list[str] = field(default_factory=list)
    _memory: dict[str, int] = field(default_factory=dict)
    _busy: float = 0.0
    _compiling: float = 0.0
    _computed: int = 0
    _blocks: int = 0

    def note(self, sentence: str) -> None:
        """Write something into the log, unless it is empty."""
        self._log += [sentence] * bool(sentence)

    def run(self) -> StudyRun:
        """Compute all that is missing."""
        self._began = time.monotonic()
        self._schedule = Schedule(self.design, self.slots, self.retry_failed)
        self._tell()
        if self._schedule.waiting:
            with _marked(self.design.store, self.shared) as mark:
                self._pack(mark)
                self._go()
        schedule = self._schedule
        return StudyRun(
            trials=self._total,
            computed=self._computed,
            kept=schedule.kept,
            failed=schedule.failed,
            blocks=self._blocks,
            seconds=time.monotonic() - self._began,
            busy_seconds=self._busy,
            compile_seconds=self._compiling,
            memory=dict(self._memory),
            log=tuple(self._log),
        )

    @property
    def _total(self) -> int:
        return len(self.design.points) * self.design.trials

    def _pack(self, mark: tuple[str, str]) -> None:
        self._mark = mark
        self._function = packed(self.design.function)
        self._listens = any(name.startswith(COMPILED) for name in reached_modules(self.design.function))

    def _go(self) -> None:
        running = 0
        while self._schedule.waiting or running:
            for slot in self.executor.idle():
                task = self._schedule.next(slot)
                if task is None:
                    break
                self.executor.submit(slot, self._job(task))
                running += 1
            for job, outcome in self.executor.answers():
                running -= 1
                self._take(job, outcome)
                self._tell()

    def _job(self, task: Task) -> Job:
        return Job(
            task=task,
            point=self.design.points[task.point],
            seeds=self.design.seeds(task),
            config=self.design.config(task),
            root=self.design.store.path,
            mark=self._mark[0],
            token=self._mark[1],
            function=self._function,
            listens=self._listens,
        )

    def _take(self, job: Job, outcome: Outcome) -> None:
        task = job.task
        if outcome.where:
            self._memory[outcome.where] = max(outcome.memory, self._memory.get(outcome.where, 0))
        self._busy += outcome.seconds
        self._compiling += outcome.compile_seconds
        if "log" in outcome.facts:
            self._log.append(f"{self._named(task)}: {outcome.facts['log']}")
        if outcome.facts.get("fatal"):
            raise InputError(outcome.error)
        if outcome.error:
            self._failed(task, outcome)
            return
        stop = outcome.facts["stop"] if outcome.stored else keep(self.design.store, job.config, task, outcome)
        self._finished(task, stop)
        self._schedule.learn(task, outcome.seconds - outcome.compile_seconds)

    def _finished(self, task: Task, stop: int) -> None:
        """A block is on disk; one of another process may be shorter than ours."""
        self._blocks += 1
        self._computed += min(stop, task.stop) - task.start
        if stop < task.stop:
            self._schedule.again(Task(task.point, stop, task.stop))

    def _failed(self, task: Task, outcome: Outcome) -> None:
        found = self.design.look(task.point, task.start) if outcome.facts.get("lost") else None
        if found is not None and found.result is not None:  # it was on disk before its process went
            self._finished(task, int(found.result.facts["stop"]))
            self._schedule.over(task)
            return
        if not outcome.facts.get("blameless"):
            self._tries[task] += 1
        first_line = outcome.error.split("\n")[0]
        if self._tries[task] <= self.retries:
            self._log.append(f"{self._named(task)}: computed again. {first_line}")
            self._schedule.again(task)
            return
        self._log.append(f"{self._named(task)}: given up after {self._tries[task]} tries. {first_line}")
        facts = {"stop": task.stop, "error": outcome.error, "traceback": outcome.traceback}
        self.design.store.keep(FAILURE, self.design.config(task), lambda: ({}, facts), fresh=True)
        self._schedule.failed += task.trials
        self._schedule.over(task)

    def _named(self, task: Task) -> str:
        return f"{spelt(self.design.points[task.point])}, trials {task.start} to {task.stop - 1}"

    def _tell(self) -> None:
        schedule = self._schedule
        seconds = time.monotonic() - self._began
        done = schedule.kept + schedule.failed + self._computed
        left = (self._total - done) * seconds / self._computed if self._computed else None
        self.tell(StudyProgress(done, self._total, schedule.kept, schedule.failed, seconds, left))


@contextmanager
def _marked(store: Store, shared: bool) -> Iterator[tuple[str, str]]:
    """A file in the store by which a worker sees whether it has the same disk: its name and its content."""
    store._folder.make_ready()
    work = store._folder.tmp / owned_name()  # cleared by the next who comes, if we are killed
    work.mkdir()
    mark, token = work / "study", uuid.uuid4().hex
    if shared:
        write_text(mark, token)
    try:
        yield str(mark.relative_to(store.path)), token
    finally:
        shutil.rmtree(work, ignore_errors=True)
