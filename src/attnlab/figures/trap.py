"""A counterexample in the plane: tokens with their scores, queries, and where descent should go and goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.data.selection import optimal_tokens, scores
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, new_figure, styled

MOST = 6  # sequences that are drawn
# Lengths of the arrows over the half-width of a panel: the two directions differ, so that both are seen if they agree.
REACH = {"query": 0.35, "best": 0.8, "selected": 0.65}


@styled
def draw_trap(example: Mapping[str, Any], title: str) -> Any:
    """Draw one panel per sequence of a counterexample.

    Tokens are shown by their scores; the best one and the selected one are marked. Arrows show the query, and what the
    max-margin matrix of the best tokens and that of the selected ones make of it: the direction in which tokens gain.
    With d > 2 the plane is that of the first two principal coordinates of all tokens.

    Args:
        example: `example` of an `Outcome`, with arrays `x`, `z`, `y`; `v`, `selected` and `how` if it has them.
        title: over the picture.

    Returns:
        A matplotlib figure.
    """
    tokens = _tokens(example)
    plane, share = _plane(tokens.x)
    shown = min(tokens.n, MOST)
    figure, grid = new_figure(1, shown, width=max(3.6, 3.3 * shown), height=3.7)
    directions = _directions(tokens, example.get("selected"))
    for i, axes in enumerate(grid[0]):
        _panel(axes, tokens, i, plane, directions, example.get("selected"))
    unit_of_axes = "coordinate" if tokens.d == 2 else "principal coordinate"
    for axes in grid[0]:
        axes.set_xlabel(f"first {unit_of_axes}")
    grid[0][0].set_ylabel(f"second {unit_of_axes}")
    said = str(example.get("how", ""))
    if tokens.d > 2:
        said += f"{'; ' if said else ''}the plane holds {share:.0%} of the tokens' variance"
    if tokens.n > shown:
        said += f"; {shown} of {tokens.n} sequences"
    figure.suptitle(f"{title}\n{said}" if said else title, x=0.01, ha="left", fontsize=9)
    lines, names = grid[0][0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=min(len(names), 3))
    return figure


def _tokens(example: Mapping[str, Any]) -> Tokens:
    missing = [name for name in ("x", "z", "y") if name not in example]
    if missing:
        raise InputError(message(f"`example` has no {', '.join(missing)}; wanted the arrays x, z and y of tokens."))
    return Tokens(x=example["x"], z=example["z"], y=example["y"], v=example.get("v"))


def _plane(x: Array) -> tuple[Array, float]:
    """Two orthonormal rows onto which to project, (2, d), and the share of the variance that they keep."""
    d = x.shape[-1]
    if d == 1:
        return np.array([[1.0], [0.0]]), 1.0
    if d == 2:
        return np.eye(2), 1.0
    flat = x.reshape(-1, d)
    _, singular, rows = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    total = float((singular**2).sum())
    return rows[:2], float((singular[:2] ** 2).sum()) / total if total else 1.0


def _directions(tokens: Tokens, selected: Any) -> dict[str, Array]:
    """The max-margin matrices of the best and of the selected tokens, where they exist; one query per sequence only."""
    from attnlab.svm import solve_margin

    wanted: dict[str, Any] = {}
    if tokens.K is None and tokens.v is not None:
        wanted["best"] = optimal_tokens(tokens)
        if selected is not None:
            wanted["selected"] = np.asarray(selected, dtype=np.intp)
    solutions = {name: solve_margin(tokens, chosen, throw=False) for name, chosen in wanted.items()}
    return {name: solution.W for name, solution in solutions.items() if solution.feasible}


def _panel(axes: Any, tokens: Tokens, i: int, plane: Array, directions: dict[str, Array], selected: Any) -> None:
    points = tokens.x[i] @ plane.T  # (T, 2)
    middle = points.mean(0)
    half = 1.25 * max(float(np.abs(points - middle).max()), 1e-12)
    axes.scatter(*points.T, s=26, color=GREY, zorder=3, label="token, with its score")
    if tokens.v is not None and tokens.K is None:
        _mark_scores(axes, points, scores(tokens)[i])
        best = points[int(optimal_tokens(tokens)[i])]
        axes.scatter(*best, s=120, facecolors="none", edgecolors=GREEN, linewidths=1.8, label="best token")
    if selected is not None and tokens.K is None:
        chosen = points[int(np.asarray(selected)[i])]
        axes.scatter(*chosen, s=120, marker="s", facecolors="none", edgecolors=ORANGE, linewidths=1.8, label="selected")
    queries = tokens.z[i].reshape(-1, tokens.d)
    for k, query in enumerate(queries):
        _arrow(axes, middle, plane @ query, half * REACH["query"], GREY, ":", "query" if k == 0 else "")
    names = {"best": ("W_mm z", BLUE, "-"), "selected": ("W_mm(selected) z", ORANGE, "--")}
    for name, W in directions.items():
        label, color, style = names[name]
        _arrow(axes, middle, plane @ (W @ queries[0]), half * REACH[name], color, style, label)
    axes.set_xlim(middle[0] - half, middle[0] + half)
    axes.set_ylim(middle[1] - half, middle[1] + half)
    axes.set_aspect("equal")
    label = tokens.y[i] if tokens.K is None else ""
    axes.set_title(f"sequence {i}" + (f", label {label:+.0f}" if tokens.K is None else ""))


def _mark_scores(axes: Any, points: Array, values: Array) -> None:
    for point, value in zip(points, values, strict=True):
        text = f"{value + 0.0:.2g}"  # adding 0 makes -0 a plain 0
        axes.annotate(text, point, xytext=(7, 6), textcoords="offset points", fontsize=7.5)


def _arrow(axes: Any, foot: Array, step: Array, reach: float, color: str, style: str, label: str) -> None:
    """An arrow of length `reach`, whatever the length of `step`; nothing where the plane does not see it."""
    size = float(np.linalg.norm(step))
    if size == 0.0:
        return
    tip = foot + reach * step / size
    axes.annotate("", tip, foot, arrowprops={"arrowstyle": "->", "color": color, "linestyle": style, "linewidth": 1.6})
    axes.plot([], [], color=color, linestyle=style, label=label or None)
