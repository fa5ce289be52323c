"""One look for all pictures: print-sized, colour-blind safe, told apart in grey by line style too."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from attnlab.data.writing import make_folder, whole_file

P = ParamSpec("P")
R = TypeVar("R")

# Okabe and Ito's palette, in an order whose first entries differ most in lightness.
BLUE, ORANGE, GREEN, PURPLE, SKY, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#666666"

RC: Any = {
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 7.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
}


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a draw function work in this style; matplotlib's global settings are left alone."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib

        with matplotlib.rc_context(RC):
            return draw(*args, **kwargs)

    return inside


def new_figure(rows: int, columns: int, *, width: float = 7.2, height: float = 5.6) -> tuple[Any, Any]:
    """A figure and its axes; no window is opened."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def save_figure(figure: Any, path: Path) -> Path:
    """Write the figure in the format that the file name says; an old file is replaced once the new one is whole."""
    make_folder(path.parent)
    with whole_file(path) as file:
        figure.savefig(file, format=path.suffix.removeprefix(".") or None)
    return path


def band(axes: Any, x: Any, values: Any, *, color: str, style: str, label: str, share: float = 0.8) -> None:
    """Median over trials (rows of `values`) with the middle part shaded, of all trials this share."""
    import numpy as np

    low, middle, high = np.nanquantile(values, (0.5 - share / 2, 0.5, 0.5 + share / 2), axis=0)
    axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    axes.plot(x, middle, color=color, linestyle=style, label=label)
