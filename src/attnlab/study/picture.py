"""A summary as curves with bands."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, new_figure, styled

LOOKS = [
    (BLUE, "o", "-"),
    (ORANGE, "s", "--"),
    (GREEN, "^", "-."),
    (PURPLE, "D", ":"),
    (SKY, "v", "-"),
    (GREY, "P", "--"),
]
WIDE = 30.0  # largest over smallest, from which an axis is logarithmic


def curves(summary: Any, x: str, y: str, hue: str | None, axes: Any = None) -> Any:
    """Value over x, a curve for each hue, shaded from low to high. On axes that are given, else on a new figure."""
    if axes is not None:
        _draw(axes, summary, x, y, hue)
        return axes.figure
    return _new(summary, x, y, hue)


@styled
def _new(summary: Any, x: str, y: str, hue: str | None) -> Any:
    picture, axes = new_figure(1, 1, width=4.6, height=3.2)
    _draw(axes[0, 0], summary, x, y, hue)
    return picture


def _draw(axes: Any, summary: Any, x: str, y: str, hue: str | None) -> None:
    values = list(dict.fromkeys(summary[hue])) if hue else [None]
    words = not all(isinstance(value, int | float) for value in summary[x])
    places = {value: i if words else value for i, value in enumerate(dict.fromkeys(summary[x]))}
    for value, (color, marker, style) in zip(values, LOOKS * (1 + len(values) // len(LOOKS)), strict=False):
        rows = summary if hue is None else summary[summary[hue] == value]
        if not words:
            rows = rows.sort_values(x)
        at = [places[entry] for entry in rows[x]]
        axes.fill_between(at, rows["low"], rows["high"], color=color, alpha=0.18, linewidth=0)
        label = None if hue is None else f"{hue} = {value}"
        axes.plot(at, rows["value"], color=color, marker=marker, linestyle=style, markersize=4, label=label)
    how = summary["how"].iloc[0]
    axes.set(xlabel=x, ylabel=f"{how} of {y} (95 % interval)")
    if words:
        axes.set_xticks(range(len(places)), [str(value) for value in places])
    elif _wide(summary[x]):
        axes.set_xscale("log")
    if how == "share":
        axes.set_ylim(-0.03, 1.03)
    elif _wide(summary["value"]):
        axes.set_yscale("log")
    if hue is not None:
        axes.legend()


def _wide(values: Any) -> bool:
    numbers = np.asarray(values, dtype=float)
    numbers = numbers[np.isfinite(numbers)]
    return bool(len(numbers) and numbers.min() > 0 and numbers.max() / numbers.min() >= WIDE)
