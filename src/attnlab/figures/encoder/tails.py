"""Tails of similarities, as Figures 1 and 6 show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.claims.encoder.similarity import FAR, FITTED, STRAIGHT, line_fit, lines_of
from attnlab.data.tokens import Array
from attnlab.figures.encoder.scalings import spread
from attnlab.figures.figure import Arrays
from attnlab.figures.rates.curves import Look, plain_log
from attnlab.figures.style import band, new_figure, styled

POINTS = 60  # of a tail
LITERAL = (
    "No similarity is below its least value, so that P = 1 there, above the exp(-t^c) of Assumption 3: it is the decay "
    "that is seen, not the inequality at every t."
)


def table_of(arrays: Arrays, looks: Mapping[str, Look]) -> dict[str, dict[str, Any]]:
    """Quantiles and lines over draws."""
    table = {}
    for name, look in looks.items():
        values = arrays[f"{name}_values"]
        slopes, fits = lines_of(values)
        quantiles = np.quantile(values, (0.01, 0.5, 0.99), axis=1)
        table[look.label] = {
            "1 % quantile": spread(quantiles[0]),
            "median": spread(quantiles[1]),
            "99 % quantile": spread(quantiles[2]),
            "slope of log P": spread(slopes),
            "R^2 of the line": spread(fits),
            "R^2 of a line beyond the median": spread(lines_of(values, FAR)[1]),
        }
    return table


def draws_remark(arrays: Arrays, looks: Mapping[str, Look]) -> str:
    """Draws that are less straight than asked in the mean."""
    fits = np.concatenate([lines_of(arrays[f"{name}_values"])[1] for name in looks])
    curved = int((fits < STRAIGHT).sum())
    return (
        f"Judged is the mean over draws; single draws below R^2 = {STRAIGHT:g}: {curved} of {len(fits)}, so that "
        f"asking it of every draw would {'fail' if curved else 'hold too'}."
    )


def widths_of(arrays: Arrays, looks: Mapping[str, Look]) -> dict[str, tuple[float, float]]:
    """Median of all similarities, and the range from 1 % to 99 %."""
    widths = {}
    for name in looks:
        low, middle, high = np.quantile(arrays[f"{name}_values"], (0.01, 0.5, 0.99))
        widths[name] = float(middle), float(high - low)
    return widths


def tails(values: Array) -> tuple[Array, Array]:
    """Places t, and the share of similarities from t on in every draw, (draws, t)."""
    t = np.linspace(values.min(), values.max(), POINTS)
    ordered = np.sort(values, axis=1)
    below = np.stack([np.searchsorted(row, t, side="left") for row in ordered])
    return t, 1.0 - below / values.shape[1]


@styled
def draw_tails(arrays: Arrays, looks: Mapping[str, Look], what: str, draws: int) -> Any:
    """Tails of each kind, linear and log; `what` was drawn, in words."""
    picture, axes = new_figure(2, len(looks), width=3.7 * len(looks), height=5.6)
    for column, (name, look) in enumerate(looks.items()):
        values = arrays[f"{name}_values"]
        t, share = tails(values)
        _, fits = lines_of(values)
        for panel in axes[:, column]:
            there = (share > 0).all(0) if panel is axes[1, column] else np.ones(len(t), dtype=bool)
            band(panel, t[there], share[:, there], color=look.color, style=look.style, label=look.label, share=1.0)
            panel.set_xlabel("t")
        ends = np.quantile(values, FITTED)
        line = line_fit(values.ravel())
        axes[1, column].plot(
            ends, np.exp(line.slope * ends + line.intercept), color="black", linewidth=0.9, linestyle=":"
        )
        axes[0, column].set_title(f"{'ac'[column]}  {look.label}", fontweight="bold")
        axes[1, column].set_title(f"{'bd'[column]}  The same, log: R² {fits.min():.3f} to {fits.max():.3f}")
        plain_log(axes[1, column])
    for panel in axes[:, 0]:
        panel.set_ylabel("P(⟨XᵀX, X'ᵀX'⟩ ≥ t)")
    picture.supxlabel(
        f"{what}. Line: median of {draws} draws; band: their range, as far as all draws go; dotted: line fitted to all "
        "draws.",
        fontsize=7.5,
        wrap=True,
    )
    return picture
