"""Calls in several processes, and what to say when one of them is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from typing import Any

from attnlab.errors import InputError, StoreError, message


def checked_jobs(jobs: int) -> int:
    """A number of processes, or -1 for all cores."""
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs == 0:
        raise InputError(message(f"`jobs` is {jobs!r}; wanted a number of processes, or -1 for all cores."))
    return jobs


def in_processes(calls: Sequence[Any], jobs: int) -> Iterator[Any]:
    """Results of `joblib.delayed` calls, each as soon as it is there, in no order."""
    from joblib import Parallel

    if not calls:
        return
    pool: Any = Parallel(n_jobs=min(jobs, len(calls)), return_as="generator_unordered", batch_size=1)  # pyright: ignore[reportArgumentType]
    try:
        yield from pool(calls)
    except BrokenExecutor as error:
        raise StoreError(_told(error)) from error


def _told(error: BrokenExecutor) -> str:
    if "un-serialize" in str(error):
        problem = "An argument, a result or an error could not be sent from one process to another."
        return message(problem, "what was finished is kept: call again with jobs=1, which sends nothing")
    problem = "A process that was computing is gone: killed, or out of memory."
    return message(problem, "what was finished is kept: call again, with fewer `jobs` if memory ran out")
