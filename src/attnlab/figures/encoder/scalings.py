"""Both scalings of the paper side by side: how their curves are drawn, and what is told of their seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.claims.encoder.vision_runs import PLAIN, SCALINGS
from attnlab.data.tokens import Array
from attnlab.figures.figure import Facts
from attnlab.figures.rates.curves import Look, number
from attnlab.figures.style import BLUE, ORANGE, band

LOOKS = {"sqrt": Look("τ₀ = $m^{-1/2}$", BLUE, "-"), "linear": Look("τ₀ = $m^{-1}$", ORANGE, "--")}


def draw_scalings(panel: Any, epochs: Array, values: Array) -> None:
    """Both scalings (scalings, seeds, epochs): median, and the range over seeds."""
    for scaling, curves in zip(SCALINGS, values, strict=True):
        if not np.isfinite(curves).any():
            continue
        look = LOOKS[scaling]
        shown = np.isfinite(curves).any(0)
        band(panel, epochs[shown], curves[:, shown], color=look.color, style=look.style, label=look.label, share=1.0)
    panel.set(xlim=(0, epochs[-1]), xlabel="epoch")


def scaling_legend(picture: Any, panel: Any, facts: Facts, more: str = "") -> None:
    """Both scalings, and how lines and bands are to be read."""
    title = (
        f"One layer, one head, d = 64; {facts['images to train on']} images ({facts['images']}).\n"
        f"Line: median of {facts['seeds']} seeds; band: their range.{more}"
    )
    picture.legend(
        *panel.get_legend_handles_labels(), loc="outside lower center", ncols=2, handlelength=3.2, title=title
    )


def finite(values: Array) -> Array:
    """Infinite numbers as NaN, which tables call overflowed."""
    return np.where(np.isfinite(values), values, np.nan)


def seed_table(widths: Array, columns: Mapping[str, Array]) -> dict[str, dict[str, Any]]:
    """By width and scaling: mean over seeds of every column (scalings, widths, seeds), with the range behind it."""
    table: dict[str, dict[str, Any]] = {}
    for j, width in enumerate(widths):
        for i, scaling in enumerate(SCALINGS):
            row = {name: spread(values[i, j]) for name, values in columns.items()}
            table[f"m = {width}, tau0 = {PLAIN[scaling]}"] = row
    return table


def spread(values: Array) -> str:
    """Mean over seeds, and their range.

    >>> spread(np.array([0.5, 0.7])), spread(np.array([0.5, np.nan]))
    ('0.6 (0.5 to 0.7)', '0.5 (0.5 to 0.5), 1 of 2 overflowed')
    """
    finite = values[np.isfinite(values)]
    lost = f", {values.size - finite.size} of {values.size} overflowed" if finite.size < values.size else ""
    if not finite.size:
        return f"all {values.size} overflowed"
    low, mean, high = (f"{number(v):g}" for v in (finite.min(), finite.mean(), finite.max()))
    return f"{mean} ({low} to {high}){lost}"
