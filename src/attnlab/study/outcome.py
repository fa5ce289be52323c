"""One block computed: what the function returned, checked; or its error."""

from __future__ import annotations

import os
import resource
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnlab.checks import shown
from attnlab.errors import InputError, message
from attnlab.store.results import TAKEN as TAKEN_BY_FILES
from attnlab.study.compiling import Stopwatch
from attnlab.study.design import BlockFunction
from attnlab.study.grid import TAKEN, Point

_KINDS = "biufUS"  # booleans, numbers, text


@dataclass(frozen=True)
class Outcome:
    """What came of a block.

    Attributes:
        arrays: by name, each with the trials first; None if the block failed, or is on disk already.
        error, traceback: of the function, in words; empty if it went well.
        seconds: of the function.
        compile_seconds: of these, for tracing and compiling programs.
        memory: largest resident size of the process so far, in bytes.
        where: the process, as host:pid.
    """

    arrays: dict[str, np.ndarray] | None
    error: str = ""
    traceback: str = ""
    seconds: float = 0.0
    compile_seconds: float = 0.0
    memory: int = 0
    where: str = ""
    stored: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


def compute(function: BlockFunction, point: Point, seeds: np.ndarray) -> Outcome:
    """Call the function for one block. Whatever it raises is an outcome, except what ends programs."""
    began = time.perf_counter()
    with Stopwatch() as compiling:
        try:
            arrays = checked_arrays(function(dict(point), seeds.copy()), len(seeds), list(point))
            error = trace = ""
        except Exception as raised:
            arrays = None
            error = f"{type(raised).__name__}: {raised}"
            trace = traceback.format_exc()
    seconds = time.perf_counter() - began
    return Outcome(
        arrays=arrays,
        error=error,
        traceback=trace,
        seconds=seconds,
        compile_seconds=min(compiling.seconds, seconds),
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        where=f"{os.uname().nodename}:{os.getpid()}",
    )


def checked_arrays(returned: Any, trials: int, settings: list[str]) -> dict[str, np.ndarray]:
    """What a block function returned: arrays whose first axis is the trials; a lone number is that of every trial.

    >>> checked_arrays({"loss": [0.5, 0.25], "steps": 100}, 2, [])["steps"]
    array([100, 100])
    """
    if not isinstance(returned, Mapping) or not returned:
        raise InputError(
            message(f"The block function returned {shown(returned)}; wanted a dict of arrays.", "return {'loss': loss}")
        )
    arrays = {}
    for name, value in returned.items():
        if not isinstance(name, str) or not name.isidentifier() or name in {*TAKEN, *TAKEN_BY_FILES, *settings}:
            problem = f"The block function returned an array named {shown(name)}"
            raise InputError(message(f"{problem}; wanted a word that is no setting and none of {', '.join(TAKEN)}."))
        try:
            array = np.asarray(value)
        except Exception as error:
            raise InputError(
                message(f"The block function returned `{name}` as {shown(value)}, which is no array.", "equal lengths")
            ) from error
        if array.dtype.kind not in _KINDS:
            problem = f"The block function returned `{name}` of type {array.dtype}; wanted numbers, booleans or text."
            raise InputError(message(problem))
        if array.ndim == 0:
            array = np.broadcast_to(array, (trials,))
        if array.shape[0] != trials:
            problem = f"The block function returned `{name}` of shape {array.shape} for {trials} seeds"
            raise InputError(message(f"{problem}; wanted {trials} along the first axis, one for each trial."))
        arrays[name] = np.array(array)
    return arrays


def unlike(arrays: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> str:
    """How the arrays of a block differ from those of another in names and shapes; empty if they do not."""
    if set(arrays) != set(others):
        return f"returned {', '.join(sorted(arrays))} where other blocks returned {', '.join(sorted(others))}"
    for name, array in arrays.items():
        if array.shape[1:] != others[name].shape[1:]:
            return (
                f"returned `{name}` of shape {array.shape[1:]} per trial where other blocks returned "
                f"{others[name].shape[1:]}"
            )
    return ""
