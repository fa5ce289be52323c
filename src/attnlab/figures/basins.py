"""The basins of one data set: a plane of starts, each in the colour of the selection it settles in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attnlab.checks import instance, number, whole
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, new_figure, save_figure, styled
from attnlab.reports.limits import limits

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY)  # of the largest basins; the others are grey
UNSETTLED = "white"  # starts that have not settled


def basins_data(
    tokens: Tokens, *, size: int = 60, reach: float = 6.0, steps: int = 12_800, seed: int = 0
) -> dict[str, np.ndarray]:
    """Where descent goes from the starts `a U + b V`, a and b from -reach to reach; U and V are random unit matrices.

    Args:
        tokens: one data set with a head.
        size: starts along each side.
        reach: half the side of the plane.
        steps: the longest run, as for `al.limits`.
        seed: of U and V.

    Returns:
        `limit` (size, size), the number of the selection of each start, largest basins first, -1 where it has not
        settled; `selected` (m, n...) and `margin` (m,) of these; `side` (size,), the values of a and b.

    >>> import attnlab as al
    >>> basins_data(al.data.two_tokens(), size=3)["limit"].shape
    (3, 3)
    """
    instance("tokens", tokens, Tokens, "al.Tokens")
    size, reach = whole("size", size, 2), number("reach", reach, above=0)
    if tokens.trials is not None:
        raise InputError(message(f"`tokens` hold {tokens.trials} trials; wanted one data set.", "tokens[0]"))
    rng = np.random.default_rng(whole("seed", seed, 0))
    plane = rng.standard_normal((2, tokens.d, tokens.d))
    plane[1] -= plane[0] * np.sum(plane[0] * plane[1]) / np.sum(plane[0] ** 2) if tokens.d > 1 else 0.0
    plane /= np.linalg.norm(plane, axis=(1, 2), keepdims=True)
    side = np.linspace(-reach, reach, size)
    a, b = np.meshgrid(side, side)  # b along rows
    starts = np.einsum("s,de->sde", a.ravel(), plane[0]) + np.einsum("s,de->sde", b.ravel(), plane[1])
    found = limits(tokens, size * size, init=starts, steps=steps, enumerate_up_to=0)
    limit = np.where(found.settled_at >= 0, found.limit_of, -1)
    return {
        "limit": limit.reshape(size, size),
        "selected": np.array([row.selected for row in found.limits]),
        "margin": np.array([np.nan if row.margin is None else row.margin for row in found.limits]),
        "side": side,
    }


@styled
def draw_basins(data: dict[str, np.ndarray], path: str | Path) -> Path:
    """Draw `basins_data` to a file."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    figure, axes = new_figure(1, 1, width=6.4, height=3.9)
    panel: Any = axes[0, 0]
    limit, side = data["limit"], data["side"]
    # 0 for what has not settled, then the basins, the last colour for all that are left.
    number_of = np.minimum(limit, len(COLOURS)) + 1
    half = 0.5 * (side[1] - side[0])
    extent = (side[0] - half, side[-1] + half, side[0] - half, side[-1] + half)
    colours = ListedColormap([UNSETTLED, *COLOURS, GREY])
    look: Any = {"cmap": colours, "vmin": 0, "vmax": len(COLOURS) + 1, "interpolation": "nearest"}
    panel.imshow(number_of, origin="lower", extent=extent, **look)
    panel.grid(visible=False)
    panel.set(xlabel="a", ylabel="b", title="Starts a U + b V, by where they settle")
    entries = []
    for number_here, (selected, margin) in enumerate(zip(data["selected"], data["margin"], strict=True)):
        share = float(np.mean(limit == number_here))
        if number_here >= len(COLOURS) or share == 0.0:
            break
        label = f"{' '.join(map(str, selected.ravel().tolist()))}: {share:.1%}, margin {margin:.3f}"
        entries.append(Patch(color=COLOURS[number_here], label=label))
    others, open_ = float(np.mean(limit >= len(COLOURS))), float(np.mean(limit < 0))
    if others:
        entries.append(Patch(color=GREY, label=f"others: {others:.1%}"))
    if open_:
        entries.append(Patch(facecolor=UNSETTLED, edgecolor=GREY, label=f"not settled: {open_:.1%}"))
    figure.legend(handles=entries, loc="outside right upper", title="selected tokens")
    return save_figure(figure, Path(path))
