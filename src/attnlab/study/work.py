"""One block, in whichever process: computed, and kept where the store can be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.errors import AttnlabError, InputError
from attnlab.store import Store
from attnlab.study.compiling import listen
from attnlab.study.design import RESULT, Task
from attnlab.study.grid import Point
from attnlab.study.outcome import Outcome, compute
from attnlab.study.sending import unpacked


@dataclass(frozen=True)
class Job:
    """A block with all that another process needs to know of it.

    Attributes:
        task, point, seeds: what to compute.
        config: what it is kept under.
        root: the store.
        token: content of the file `mark` in the store; who reads another content, or none, has another disk.
        function: as bytes.
        listens: the function calls JAX, so that it is worth loading before the clock starts.
    """

    task: Task
    point: Point
    seeds: np.ndarray
    config: dict[str, Any]
    root: Path
    mark: str
    token: str
    function: bytes
    listens: bool


def perform(job: Job) -> Outcome:
    """Compute a block; keep it if the store is here, else send the arrays back."""
    try:
        function = _function(job.function)
    except InputError as error:
        return Outcome(None, error=str(error), facts={"fatal": True})
    if job.listens:
        listen()
    outcome = compute(function, job.point, job.seeds)
    if outcome.arrays is None or not _sees_store(job):
        return outcome
    try:
        stop = keep(Store(job.root), job.config, job.task, outcome)
    except AttnlabError:
        return outcome  # a full disk, say: who asked for the block tries itself, and tells
    return replace(outcome, arrays=None, stored=True, facts={"stop": stop})


def keep(store: Store, config: dict[str, Any], task: Task, outcome: Outcome) -> int:
    """Put a block on disk; returns where the kept block ends (another process may have been first with another)."""
    facts = {
        "stop": task.stop,
        "seconds": outcome.seconds,
        "compile_seconds": outcome.compile_seconds,
        "memory": outcome.memory,
        "where": outcome.where,
    }
    kept = store.keep(RESULT, config, lambda: (outcome.arrays or {}, facts))
    return int(kept.facts["stop"])


@lru_cache(maxsize=4)
def _function(content: bytes) -> Callable[..., Any]:
    return unpacked(content)


def _sees_store(job: Job) -> bool:
    try:
        return (job.root / job.mark).read_text(encoding="utf-8") == job.token
    except OSError:
        return False
