"""`Study`: how does it depend on n, T, d, step, start, rule?"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.checks import flag, shown, whole
from attnlab.data.writing import as_path, whole_file, write_text
from attnlab.errors import InputError, message
from attnlab.store import Store
from attnlab.store.pool import checked_jobs
from attnlab.study.design import MOST_SEED, SEEDS_APART, BlockFunction, Design
from attnlab.study.driver import Driver, Executor, StudyProgress, StudyRun
from attnlab.study.grid import Grid, Point, axes_of, points_of
from attnlab.study.history import earlier_code
from attnlab.study.latex import latex
from attnlab.study.measures import measure_named
from attnlab.study.summary import HOWS, How, names, summarized
from attnlab.study.table import arrays_of, frame, judged_parts, library


@dataclass(frozen=True)
class StudyStatus:
    """What the store has of a study, in trials.

    Attributes:
        name: of the study.
        points, trials: how many points, and trials of all of them.
        done, failed, missing: of these trials.
        errors: different errors, each with the number of trials it cost.
        nan: results that are NaN, by name.
    """

    name: str
    points: int
    trials: int
    done: int
    failed: int
    missing: int
    errors: dict[str, int]
    nan: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return vars(self).copy()


class Study:
    """A sweep: a function measured on every point of a grid, in many trials, kept in the store.

    The function takes a point and a block of seeds, and returns arrays whose first axis is the trials. It is called for
    blocks of about ten seconds; each is kept as soon as it is there, under a hash of the function (with all code that
    it reaches), its point and its first trial. What is there is not computed again; more points or more trials compute
    only what is new. A block that raises is tried again, then recorded with its error, and the study goes on.

    Args:
        function: (point, seeds) -> dict of arrays or numbers; or the name of a ready measure: "direction", "selection",
            "limits", "rates", "kernel", "report", see `attnlab.study.measures`. A trial must not depend on its block.
        grid: a dict of lists (all combinations), or a list of points.
        trials: for each point.
        seed: trial t has the seed `seed * 2**32 + t`, at every point the same.
        name: what `status` and figures call it; default the name of the function.
        store: an `al.Store`, or a folder; default `al.Store()`.
        block: trials in a block; default as many as take about ten seconds.

    >>> import tempfile, numpy as np, attnlab as al
    >>> def block(point, seeds):
    ...     return {"heads": [np.random.default_rng(s).random() < point["p"] for s in seeds.tolist()]}
    >>> study = al.Study(block, {"p": [0.2, 0.8]}, trials=100, store=tempfile.mkdtemp())
    >>> study.run().computed
    200
    >>> study.summary(of="heads")[["p", "value", "trials"]].values.tolist()
    [[0.2, 0.11, 100.0], [0.8, 0.78, 100.0]]
    """

    def __init__(
        self,
        function: BlockFunction | str,
        grid: Grid,
        *,
        trials: int = 100,
        seed: int = 0,
        name: str | None = None,
        store: Store | str | os.PathLike[str] | None = None,
        block: int | None = None,
    ) -> None:
        points = points_of(grid)
        if isinstance(function, str):
            measure = measure_named(function)
            measure.check(points)
            name, function = name or measure.name, measure.block
        _check_function(function)
        if name is not None and (not isinstance(name, str) or not name):
            raise InputError(message(f"`name` is {shown(name)}; wanted a word."))
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self._design = Design(
            function=function,
            points=points,
            trials=whole("trials", trials, 1, SEEDS_APART - 1),
            seed=whole("seed", seed, 0, MOST_SEED),
            store=store if isinstance(store, Store) else Store(store),
            given_size=None if block is None else whole("block", block),
        )

    @property
    def points(self) -> list[Point]:
        """All points of the grid."""
        return [dict(point) for point in self._design.points]

    @property
    def trials(self) -> int:
        """Of each point."""
        return self._design.trials

    @property
    def store(self) -> Store:
        """Where results are kept."""
        return self._design.store

    def with_trials(self, trials: int) -> Study:
        """The same study with more or fewer trials: what is kept of this one serves that one too."""
        own = self._design
        return Study(
            own.function,
            own.points,
            trials=trials,
            seed=own.seed,
            name=self.name,
            store=own.store,
            block=own.given_size,
        )

    def __repr__(self) -> str:
        return f"Study({self.name}, {len(self._design.points)} points, {self.trials} trials each)"

    def run(
        self,
        *,
        jobs: int = 1,
        client: Any = None,
        retries: int = 2,
        retry_failed: bool = False,
        shared: bool = True,
        on_progress: Callable[[StudyProgress], None] | None = None,
    ) -> StudyRun:
        """Compute what is missing.

        Args:
            jobs: processes on this machine, one thread each (-1: one for each core); 1 computes in this one.
            client: a `dask.distributed.Client`, or the address of a scheduler: blocks are computed there.
            retries: how often a block that raises, or whose process is killed, is tried again before it is recorded.
            retry_failed: try blocks again whose error is recorded.
            shared: let dask workers that see the store write to it; otherwise all results are sent back.
            on_progress: called with a `StudyProgress` at the start and after every block.

        Returns:
            A `StudyRun`: what was computed, how long it took, and in `log` what was done again and why. Ctrl-C ends it
            at any time; what is finished is kept.
        """
        checked_jobs(jobs)
        whole("retries", retries, 0)
        flag("retry_failed", retry_failed)
        flag("shared", shared)
        if on_progress is not None and not callable(on_progress):
            raise InputError(message(f"`on_progress` is {shown(on_progress)}; wanted a function of a `StudyProgress`."))
        executor, slots = self._executor(jobs, client)
        tell = on_progress or (lambda progress: None)
        driver = Driver(self._design, executor, slots, retries, retry_failed, tell, shared)
        driver.note(earlier_code(self._design, self.name))
        try:
            return driver.run()
        except KeyboardInterrupt as stopped:
            stopped.add_note("The study was stopped. What was finished is kept; run() goes on from there.")
            raise
        finally:
            executor.close()

    def status(self) -> StudyStatus:
        """What is there, what failed, what is missing; nothing is computed."""
        done = failed = missing = 0
        errors: dict[str, int] = {}
        nan: dict[str, int] = {}
        for part in judged_parts(self._design):
            trials = part.task.trials
            if part.missing:
                missing += trials
            elif part.result is None:
                failed += trials
                errors[part.error] = errors.get(part.error, 0) + trials
            else:
                done += trials
                for name, array in part.result.arrays.items():
                    if array.dtype.kind == "f":
                        nan[name] = nan.get(name, 0) + _trials_with_nan(array[:trials])
        total = len(self._design.points) * self.trials
        return StudyStatus(self.name, len(self._design.points), total, done, failed, missing, errors, nan)

    def frame(self) -> Any:
        """A pandas DataFrame with one row for each trial that is there: settings, trial, seed, results, error.

        Failed trials have their error and no results. An array of k numbers per trial is k columns; larger ones are in
        `dataset()`.
        """
        return frame(self._design)

    def arrays(self) -> list[dict[str, np.ndarray]]:
        """Results of every point of `points` by name, each with the trials as its first axis.

        All trials must be there; a failed or missing one is an `al.InputError`.
        """
        return arrays_of(self._design)

    def summary(
        self, by: str | Sequence[str] | None = None, of: str | Sequence[str] | None = None, how: How | None = None
    ) -> Any:
        """Shares or medians over trials with 95 % intervals, as a DataFrame with one row for each group.

        Args:
            by: settings that make the groups; default all that vary.
            of: results; default all that are numbers or booleans.
            how: "share" of true values (Wilson's interval), "median" (between two order statistics, distribution-free),
                or "mean" (bootstrap); default shares of booleans and medians of numbers.

        Returns:
            Columns: the settings, `of`, `how`, `value`, `low`, `high`, and counts of `trials`, `nan` and `failed`.
        """
        if how is not None and how not in HOWS:
            raise InputError(message(f"`how` is {shown(how)}; wanted one of {', '.join(HOWS)}."))
        table = self.frame()
        by = self._varying if by is None else names("by", by, list(self._design.points[0]))
        numbers = self._numbers(table)
        if not numbers:
            raise InputError(message("The study has no results that are numbers or booleans.", "study.status()"))
        of = numbers if of is None else names("of", of, numbers)
        return summarized(table, by, of, how)

    def to_latex(
        self,
        by: str | Sequence[str] | None = None,
        of: str | Sequence[str] | None = None,
        how: How | None = None,
        *,
        across: str | None = None,
        caption: str = "",
        label: str = "",
        digits: int = 3,
    ) -> str:
        """The summary as a LaTeX table (booktabs): value [low, high] in each cell.

        Args:
            by, of, how: as for `summary`.
            across: the setting whose values are columns; the others are rows.
            caption, label: make it a table with a caption.
            digits: significant digits.
        """
        by = self._varying if by is None else names("by", by, list(self._design.points[0]))
        if across is not None:
            names("across", across, by)
        return latex(self.summary(by, of, how), by, across, caption, label, whole("digits", digits))

    def plot(self, x: str, y: str, hue: str | None = None, *, how: How | None = None, ax: Any = None) -> Any:
        """The summary of `y` over the setting `x`, with its interval shaded; one curve for each value of `hue`.

        Returns:
            A matplotlib figure in the style of attnlab; with `ax` it is drawn there, in the style that rcParams give.
        """
        from attnlab.study.picture import curves

        settings = list(self._design.points[0])
        by = names("x", x, settings) + ([] if hue is None else names("hue", hue, settings))
        return curves(self.summary(by, y, how), x, y, hue, ax)

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write `frame()` as CSV."""
        return write_text(as_path("path", path), self.frame().to_csv(index=False))

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """Write `frame()` as Parquet, which needs pyarrow."""
        library("pyarrow", "A Parquet file")
        target, table = as_path("path", path), self.frame()
        with whole_file(target) as file:
            table.to_parquet(file, index=False)
        return target

    def dataset(self) -> Any:
        """All results as an xarray Dataset: a dimension for each setting, one for trials, then those of the arrays.

        Of a list of points that are not all combinations, one dimension `point`. Trials that failed or are missing are
        NaN; `error` has the errors.
        """
        from attnlab.study.cube import dataset

        return dataset(self._design)

    @property
    def _varying(self) -> list[str]:
        """Settings with several values."""
        return [name for name, values in axes_of(self._design.points).items() if len(values) > 1]

    def _numbers(self, table: Any) -> list[str]:
        aside = {*self._design.points[0], "trial", "seed", "error"}
        return [name for name in table.columns if name not in aside and table[name].dtype.kind in "biuf"]

    def _executor(self, jobs: int, client: Any) -> tuple[Executor, int]:
        from attnlab.study.pool import Here, Processes

        if client is not None:
            from attnlab.study.cluster import Cluster

            cluster = Cluster(client)
            return cluster, cluster.slots
        count = len(os.sched_getaffinity(0)) if jobs < 0 else jobs
        return (Here(), 1) if count == 1 and jobs == 1 else (Processes(count, self.store), count)


def _trials_with_nan(array: np.ndarray) -> int:
    return int(np.isnan(array).reshape(len(array), -1).any(-1).sum())


def _check_function(function: Any) -> None:
    if not callable(function):
        wanted = "a function of a point and seeds, or the name of a measure"
        raise InputError(message(f"`function` is {shown(function)}; wanted {wanted}."))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some compiled functions nothing is known
        return
    try:
        signature.bind({}, [])
    except TypeError as error:
        problem = f"`function` is {shown(function)}, which takes {signature}; wanted (point, seeds)."
        raise InputError(message(problem, "def block(point, seeds): ...")) from error
