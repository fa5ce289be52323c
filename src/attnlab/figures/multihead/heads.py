"""One run for each number of heads: how they are made, compared and drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.claim import Verdict
from attnlab.claims.stages import Stages
from attnlab.data import Tokens
from attnlab.data.tokens import Array
from attnlab.figures.figure import Arrays, Finding
from attnlab.figures.rates.curves import number, plain_log, slope
from attnlab.figures.style import band

HEADS = (1, 2, 4, 8, 16, 32, 64)
RECORD = 20  # records per decade
# A margin counts as reached at this share of the one that is expected.
REACHED = 0.8
# Light to dark is few to many heads; also told apart by dashes.
DASHES: tuple[Any, ...] = ("-", (0, (6, 1.5)), "-.", (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1)), "--", "-")


def run_heads(
    tokens: Tokens,
    rule: Callable[[int], Any],
    kept: Sequence[str],
    heads: Sequence[int],
    stage: Stages,
    words: str,
    **options: Any,
) -> dict[str, np.ndarray]:
    """`descend` from zero for every number of heads; steps, and these metrics, each (heads, trials, records).

    Heads that start at zero stay equal, so a run costs the same whatever their number is. Each is a stage, told with
    these words.
    """
    from attnlab.models import MultiHead
    from attnlab.train import descend

    def run_with(H: int) -> dict[str, np.ndarray]:
        run = descend(tokens, rule(H), model=MultiHead(H), init="zeros", record=RECORD, **options)
        return {"steps": run.steps, **{name: run.metrics[name] for name in kept}}

    runs = [stage(f"{words}, H = {H}", partial(run_with, H)) for H in heads]
    return {"steps": runs[0]["steps"], **{name: np.stack([run[name] for run in runs]) for name in kept}}


def pick(arrays: Arrays, run: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of one run by plain names."""
    return {name: arrays[f"{run}_{name}"] for name in names}


def prefixed(run: str, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The reverse of `pick`."""
    return {f"{run}_{name}": values for name, values in found.items()}


def head_axes(*runs: str, heads: str = "heads") -> dict[str, str]:
    """Axes of the arrays of runs, for the CSV file; `heads` lists their numbers of heads."""
    own = {heads: f"head={heads}", **{f"{run}_steps": f"step={run}_steps" for run in runs}}
    return own | {f"{run}_*": f"head={heads} trial step={run}_steps" for run in runs}


def middle_at(curves: Mapping[str, np.ndarray], name: str, step: float | None = None) -> Array:
    """Median over trials for every number of heads, at the end or at the last record up to `step`."""
    steps = curves["steps"]
    at = -1 if step is None else int(np.flatnonzero(steps <= step)[-1])
    return np.median(curves[name][:, :, at], axis=1)


def late_slope(curves: Mapping[str, np.ndarray], window: tuple[float, float]) -> Array:
    """Slope of log loss on log step over a window of steps, (heads, trials)."""
    steps = curves["steps"]
    inside = (steps >= window[0]) & (steps <= window[1])
    return slope(np.log(steps[inside]), curves["log_loss"][:, :, inside])


def trend(heads: Array, values: Array) -> float:
    """Least-squares slope of values on log H."""
    return float(slope(np.log(heads), values))


def rises(values: Array) -> bool:
    """Is each value above the one before?

    >>> rises(np.array([1.0, 2.0])), rises(np.array([1.0, np.nan]))
    (True, False)
    """
    return bool((np.diff(values) > 0).all())


def by_heads(heads: Array, values: Array) -> dict[str, float | None]:
    """Numbers by number of heads, as JSON."""
    return {f"H = {int(H)}": number(v) for H, v in zip(heads, values, strict=True)}


def found(seen: str, shown: Mapping[str, bool], numbers: Mapping[str, Any], *, brief: bool = False) -> Finding:
    """Holds if everything is shown; what is not is told. A run that was only `brief` cannot fail."""
    missed = [name for name, good in shown.items() if not good]
    verdict = Verdict.HOLDS
    if missed:
        seen += f" Not seen: {'; '.join(missed)}." + (" So few steps decide nothing." if brief else "")
        verdict = Verdict.NOT_APPLICABLE if brief else Verdict.FAILS
    return Finding(seen=seen, verdict=verdict, numbers={**numbers, "shown": dict(shown)})


def draw_heads(axes: Any, heads: Array, steps: np.ndarray, curves: Array, *, positive: bool = False) -> None:
    """One band for each number of heads, from the first step on; a direction that is not there yet is left out.

    With `positive` so is a zero, which has no place on a log axis.
    """
    from matplotlib import colormaps

    there = np.isfinite(curves) & ((curves > 0) | (not positive))
    later = (steps > 0) & there.all((0, 1))
    for i, H in enumerate(heads):
        place = 0.0 if len(heads) == 1 else i / (len(heads) - 1)
        color: Any = colormaps["viridis_r"](0.12 + 0.88 * place)
        # Of five runs the middle half leaves out a single one that got stuck; dots elsewhere show every run.
        band(
            axes,
            steps[later],
            curves[i][:, later],
            color=color,
            style=DASHES[i % len(DASHES)],
            label=f"{int(H)}",
            share=0.5,
        )
    axes.set(xscale="log", xlim=(1, steps[-1]), xlabel="step")


def draw_error(axes: Any, test: int) -> None:
    """An axis for shares of sequences, which may be zero: linear below one sequence, logarithmic above."""
    from matplotlib.ticker import NullLocator

    axes.set_yscale("symlog", linthresh=1.0 / test, linscale=0.3)
    axes.set_ylim(-0.3 / test, 1.0)
    axes.set_yticks([0, *(10.0 ** -np.arange(int(np.log10(test)) + 1))[::-1]])
    axes.yaxis.set_minor_locator(NullLocator())


def dots_by_heads(axes: Any, heads: Array, values: Array, **look: Any) -> None:
    """Every trial as a dot and the median as a line, over the number of heads."""
    axes.plot(heads, np.median(values, axis=1), **look)
    axes.scatter(
        np.repeat(heads, values.shape[1]),
        values.ravel(),
        s=9,
        facecolor="none",
        edgecolor=look.get("color"),
        linewidth=0.7,
        zorder=3,
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(heads), labels=[str(int(H)) for H in heads])
    axes.set_xlabel("heads H")
    axes.minorticks_off()


def loss_axis(axes: Any, *, head_room: float = 1.0) -> None:
    """A log axis for the loss at the end, with room for ticks beside what is drawn, and for a legend above it."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 2, 2 * high * head_room)
    axes.set_ylabel("train loss at the end")
    plain_log(axes)
