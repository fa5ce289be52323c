"""Sweeps of figures: blocks of trials kept where the figure is kept, so that one that was stopped goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from attnlab.claims.scale import Tell
from attnlab.claims.stages import store_of_whole
from attnlab.errors import AttnlabError, message
from attnlab.store import Store
from attnlab.study.design import BlockFunction
from attnlab.study.driver import StudyProgress
from attnlab.study.study import Study


def sweep(
    function: BlockFunction, points: Sequence[Mapping[str, Any]], trials: int, tell: Tell, what: str
) -> list[dict[str, np.ndarray]]:
    """Results of every point by name, each with its trials first. Seeds are the numbers of the trials.

    Args:
        function: (point, trials) -> arrays.
        points: settings.
        trials: of every point.
        tell: told how many trials are done.
        what: is done, in a few words.
    """
    store = store_of_whole()
    if store is None:
        with TemporaryDirectory(prefix="attnlab-") as folder:
            return _swept(function, points, trials, tell, what, Store(folder))
    return _swept(function, points, trials, tell, what, store)


def _swept(
    function: BlockFunction, points: Sequence[Mapping[str, Any]], trials: int, tell: Tell, what: str, store: Store
) -> list[dict[str, np.ndarray]]:
    def told(progress: StudyProgress) -> None:
        tell(progress.done, progress.total, what)

    study = Study(function, list(points), trials=trials, name=what, store=store)
    study.run(retries=0, retry_failed=True, on_progress=told)
    failed = study.status().errors
    if failed:
        raise AttnlabError(message(f"A sweep of this figure failed: {next(iter(failed))}"))
    return study.arrays()


def trials_of(seeds: np.ndarray) -> slice:
    """A block of trials as a slice of all."""
    return slice(int(seeds[0]), int(seeds[-1]) + 1)
