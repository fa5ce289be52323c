"""Runs of several step rules side by side: how they are drawn, and when each arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnlab.claims.stages import Stages
from attnlab.data import Tokens
from attnlab.data.tokens import Array
from attnlab.figures.style import band

LN10 = float(np.log(10.0))
# Alignment is called reached at these cosines.
NEAR, NEARER = 0.9, 0.99


class Look(NamedTuple):
    """How the curve of a rule is drawn."""

    label: str
    color: str
    style: Any


def run_rule(tokens: Tokens, rule: Any, kept: Sequence[str], **options: Any) -> dict[str, np.ndarray]:
    """`descend` on the exponential loss; the steps recorded and these metrics, each (trials, records)."""
    from attnlab.train import descend

    run = descend(tokens, rule, loss="exponential", **options)
    return {"steps": run.steps, **{name: run.metrics[name] for name in kept}}


def run_rules(
    tokens: Tokens, rules: Mapping[str, tuple[str, Any]], kept: Sequence[str], stage: Stages, **options: Any
) -> dict[str, np.ndarray]:
    """The same for several rules, name -> (in words, rule), each a stage: `steps`, and NAME_METRIC of each."""
    arrays: dict[str, np.ndarray] = {}
    for name, (words, rule) in rules.items():
        found = stage(words, partial(run_rule, tokens, rule, kept, **options))
        arrays["steps"] = found.pop("steps")
        arrays |= {f"{name}_{key}": values for key, values in found.items()}
    return arrays


def arrival(steps: np.ndarray, values: Array, limit: float) -> Array:
    """For each trial the first recorded step with a value at or below the limit; infinite if there is none.

    >>> arrival(np.array([0, 1, 10]), np.array([[1.0, 0.5, 0.1], [1.0, 0.9, 0.8]]), 0.5).tolist()
    [1.0, inf]
    """
    there = values <= limit
    return np.where(there.any(-1), steps[there.argmax(-1)], np.inf)


def for_good(steps: np.ndarray, ahead: np.ndarray) -> Array:
    """For each trial the first recorded step from which on `ahead` is true to the end; infinite if it is not there.

    >>> for_good(np.array([0, 1, 10]), np.array([[True, False, True], [True, True, False]])).tolist()
    [10.0, inf]
    """
    since = np.logical_and.accumulate(ahead[:, ::-1], axis=-1)[:, ::-1]
    return np.where(since.any(-1), steps[since.argmax(-1)], np.inf)


def middle(values: Any) -> float:
    """The lower median, which is one of the values: half the trials are at or below it."""
    return float(np.quantile(values, 0.5, method="inverted_cdf"))


def slope(x: Array, y: Array) -> Array:
    """Least-squares slope of each row of y on x."""
    centred = x - x.mean()
    return (y * centred).sum(-1) / (centred**2).sum()


def number(value: Any) -> float | None:
    """Four digits of a number as JSON; None where there is none."""
    return float(f"{float(value):.4g}") if np.isfinite(value) else None


def spelt(value: float, unit: str = "") -> str:
    """A step or time in words.

    >>> spelt(1400.0), spelt(np.inf)
    ('1400', 'never')
    """
    return f"{value:.4g}{unit}" if np.isfinite(value) else "never"


def draw_rules(axes: Any, steps: np.ndarray, curves: Mapping[str, Array], looks: Mapping[str, Look]) -> None:
    """One band per rule, from the first step on; a direction that is not there yet (W = 0) is left out."""
    for name, values in curves.items():
        look, shown = looks[name], (steps > 0) & np.isfinite(values).any(0)
        band(axes, steps[shown], values[:, shown], color=look.color, style=look.style, label=look.label)
    axes.set(xscale="log", xlim=(1, steps[-1]))


def plain_log(axes: Any) -> None:
    """A log axis whose ticks are plain numbers: powers of ten, and more of each where they are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = np.log10(high / low)
    of_each: tuple[float, ...] = (1.0,)
    if decades < 2.5:
        of_each = (1.0, 3.0) if decades > 1.2 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=of_each))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
