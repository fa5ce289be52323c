"""The picture of a probe: layers by heads, and examples of what holds the margin of one head."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.checks import instance
from attnlab.data.tokens import Array
from attnlab.data.writing import as_path
from attnlab.errors import InputError, message
from attnlab.figures.style import BLUE, GREY, ORANGE, SKY, save_figure, styled
from attnlab.reports.probing.judged import HeadVerdict
from attnlab.reports.probing.metrics import Metric
from attnlab.reports.probing.report import ProbedHead, ProbeReport

# Most letters in a line of examples, and lines.
LETTERS, LINES = 150, 7
# Numbers are written into cells while there are at most so many heads.
MOST_WRITTEN = 20
# z beyond this is drawn as this.
LARGEST_Z = 8.0
MARKS = {
    HeadVerdict.BOTH: ("both", BLUE, "●"),
    HeadVerdict.ONE: ("one", SKY, "○"),
    HeadVerdict.ONLY: ("the one measured", BLUE, "●"),
    HeadVerdict.CHANCE: ("not", "#f2f2f2", ""),
    HeadVerdict.TOO_LITTLE: ("too little data", "#cccccc", "×"),
}


@styled
def draw_probe(report: ProbeReport, path: str | os.PathLike[str], *, example: str | None = None) -> Path:
    """Draw a probe: verdict, z and index of every head, and pairs of tokens that hold the margin of one.

    Args:
        report: from `al.probe`; with `words`, examples are drawn.
        path: of a png, pdf or svg file.
        example: the head whose examples are shown, as "L0H2"; None: that furthest above chance.

    Returns:
        The path.
    """
    instance("report", report, ProbeReport, "what al.probe returns")
    place = checked_picture("path", path)
    shown = report[example] if example is not None else _furthest(report)
    lines = [] if report.words is None or shown is None else _lines(report, shown)
    from matplotlib.figure import Figure

    layers = len({head.layer for head in report.heads})
    tall = max(1.6, 0.25 * layers + 1.0)
    rows = len(report.metrics)
    height = rows * tall + (0.62 + 0.27 * len(lines) if lines else 0.0)
    figure = Figure(figsize=(10.2, height), layout="constrained")
    ratios = [tall] * rows + ([0.62 + 0.27 * len(lines)] if lines else [])
    grid = figure.add_gridspec(len(ratios), 3, height_ratios=ratios)
    letters = iter("abcdefgh")
    for row, metric in enumerate(report.metrics):
        z = _table(report, lambda head, metric=metric: _number(head, metric, "z"))
        index = _table(report, lambda head, metric=metric: _number(head, metric, "index"))
        axes = figure.add_subplot(grid[row, 0])
        title = f"{next(letters)}  z, {metric.value}"
        _heat(axes, report, np.clip(z, -LARGEST_Z, LARGEST_Z), z, "RdBu_r", LARGEST_Z, title)
        axes = figure.add_subplot(grid[row, 1])
        title = f"{next(letters)}  index, {metric.value} (0 chance, 1 ceiling)"
        _heat(axes, report, np.clip(index, -1.0, 1.0), index, "PuOr_r", 1.0, title)
    _verdicts(figure.add_subplot(grid[0, 2]), report, f"{next(letters)}  above chance: {_legend(report)}")
    if rows > 1:
        _scatter(
            figure.add_subplot(grid[1, 2]), report, f"{next(letters)}  z in both metrics (filled: above chance in both)"
        )
    if lines:
        assert shown is not None
        _sentences(figure.add_subplot(grid[-1, :]), lines, f"{next(letters)}  {_told(shown)}")
    return save_figure(figure, place)


def checked_picture(name: str, path: str | os.PathLike[str]) -> Path:
    """A path whose ending is that of a picture."""
    place = as_path(name, path)
    if place.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(message(f"`{name}` is {str(place)!r}; wanted a png, pdf or svg file.", f"{name} probe.png"))
    return place


def _number(head: ProbedHead, metric: Metric, name: str) -> float:
    judged = head.judged[metric]
    value = None if judged is None else getattr(judged, name)
    return np.nan if value is None else float(value)


def _table(report: ProbeReport, number: Any) -> Array:
    """(layers, heads) of a number; NaN where a head was not probed."""
    layers, heads = _axes(report)
    table = np.full((len(layers), len(heads)), np.nan)
    for head in report.heads:
        table[layers.index(head.layer), heads.index(head.head)] = number(head)
    return table


def _axes(report: ProbeReport) -> tuple[list[int], list[int]]:
    return sorted({head.layer for head in report.heads}), sorted({head.head for head in report.heads})


def _heat(axes: Any, report: ProbeReport, drawn: Array, told: Array, colors: str, limit: float, title: str) -> None:
    """Cells coloured around 0, with their numbers; hatched where there is none."""
    axes.set_facecolor("white")
    axes.patch.set_hatch("////")
    axes.patch.set_edgecolor("#bbbbbb")
    image = axes.imshow(drawn, cmap=colors, vmin=-limit, vmax=limit, aspect="auto")
    if told.shape[1] <= MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(told):
            if np.isfinite(value):
                dark = abs(drawn[row, column]) > 0.6 * limit
                text = _written(value, 0 if limit > 1 else 1)
                axes.text(column, row, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    _label(axes, report, title)
    axes.figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02, ticks=[-limit, 0, limit])


def _written(value: float, digits: int) -> str:
    """A number as short as can be.

    >>> _written(-0.04, 1), _written(0.52, 1), _written(-0.52, 1), _written(12.4, 0)
    ('0', '.5', '-.5', '12')
    """
    rounded = round(value, digits) + 0.0
    return "0" if rounded == 0 else f"{rounded:.{digits}f}".replace("0.", ".", 1 if abs(rounded) < 1 else 0)


def _verdicts(axes: Any, report: ProbeReport, title: str) -> None:
    from matplotlib.colors import ListedColormap

    kinds = list(MARKS)
    table = _table(report, lambda head: kinds.index(head.verdict))
    axes.imshow(
        table, cmap=ListedColormap([color for _, color, _ in MARKS.values()]), vmin=-0.5, vmax=4.5, aspect="auto"
    )
    for (row, column), kind in np.ndenumerate(table):
        if np.isfinite(kind):
            axes.text(column, row, MARKS[kinds[int(kind)]][2], ha="center", va="center", fontsize=7)
    _label(axes, report, title)


def _legend(report: ProbeReport) -> str:
    """What the marks mean, of those that there are."""
    parts = [f"{mark} {name}" for kind, (name, _, mark) in MARKS.items() if mark and report.counts[kind]]
    return ", ".join(parts) or "none"


def _label(axes: Any, report: ProbeReport, title: str) -> None:
    layers, heads = _axes(report)
    every = 1 + (len(heads) - 1) // 16
    axes.set(title=title, xlabel="head", ylabel="layer")
    axes.set_xticks(range(0, len(heads), every), heads[::every])
    step = 1 + (len(layers) - 1) // 16
    axes.set_yticks(range(0, len(layers), step), layers[::step])
    axes.grid(False)


def _scatter(axes: Any, report: ProbeReport, title: str) -> None:
    """Heads by their z in both metrics, the furthest ones named."""
    pairs = np.array([[_number(head, metric, "z") for metric in report.metrics] for head in report.heads])
    above = np.array([head.verdict is HeadVerdict.BOTH for head in report.heads])
    axes.axhline(0, color=GREY, linewidth=0.6)
    axes.axvline(0, color=GREY, linewidth=0.6)
    axes.scatter(*pairs[~above].T, s=14, facecolor="white", edgecolor=GREY, linewidth=0.8, zorder=3)
    axes.scatter(*pairs[above].T, s=16, color=BLUE, zorder=3)
    sums = np.where(np.isfinite(pairs).all(1), pairs.sum(1), -np.inf)
    for place in np.argsort(-sums)[:3]:
        if above[place]:
            name = report.heads[place].name
            axes.annotate(name, pairs[place], textcoords="offset points", xytext=(-4, -2), ha="right", fontsize=7)
    axes.set(title=title, xlabel=f"z, {report.metrics[0].value}", ylabel=f"z, {report.metrics[1].value}")


def _furthest(report: ProbeReport) -> ProbedHead | None:
    """The head whose least z over metrics is largest."""
    judged = [head for head in report.heads if all(one is not None for one in head.judged.values())]
    if not judged:
        return None
    return max(judged, key=lambda head: min(_number(head, metric, "z") for metric in report.metrics))


def _told(head: ProbedHead) -> str:
    """What the head does, in a line."""
    does = head.descriptors
    support = head.support[next(iter(head.support))]
    offset = "" if does.offset is None else f"; {does.offset_share:.0%} of its choices at offset {does.offset:+d}"
    return f"{head.name}, {head.verdict.value}{offset}; {support.held_by} pairs hold 90 % of its margin, the strongest:"


def _lines(report: ProbeReport, head: ProbedHead) -> list[list[tuple[str, str]]]:
    """Sentences as (word, role), around the queries that hold most of the margin."""
    assert report.words is not None
    support = head.support[report.metrics[0]]
    lines = []
    seen: set[tuple[int, int]] = set()
    for prompt, query, selected, rival in support.pairs:
        if (prompt, query) in seen or len(lines) == LINES:
            continue
        seen.add((prompt, query))
        roles = {int(rival): "rival", int(query): "query", int(selected): "selected"}
        if query == selected:
            roles[int(query)] = "both"
        words = report.words[prompt]
        there = np.flatnonzero(report.real[prompt])
        lines.append(_window([(str(words[t]), roles.get(int(t), "")) for t in there]))
    return lines


def _window(words: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """As many words as fit into a line, with all that have a role in it where that is possible."""
    marked = [place for place, (_, role) in enumerate(words) if role]
    low, high = min(marked), max(marked) + 1

    def letters(a: int, b: int) -> int:
        return sum(len(word) + 1 for word, _ in words[a:b])

    while letters(low, high) > LETTERS and high - low > 1:
        high -= 1
    grown = True
    while grown:
        grown = False
        if low > 0 and letters(low - 1, high) <= LETTERS:
            low, grown = low - 1, True
        if high < len(words) and letters(low, high + 1) <= LETTERS:
            high, grown = high + 1, True
    return words[low:high]


def _sentences(axes: Any, lines: list[list[tuple[str, str]]], title: str) -> None:
    """Words in a row, of one width a letter, so that boxes can be put behind them."""
    boxes = {
        "query": {"facecolor": "white", "edgecolor": BLUE},
        "selected": {"facecolor": ORANGE, "edgecolor": ORANGE},
        "both": {"facecolor": ORANGE, "edgecolor": BLUE},
        "rival": {"facecolor": "white", "edgecolor": GREY, "linestyle": ":"},
    }
    axes.set(title=title, xlim=(0, LETTERS), ylim=(len(lines) + 0.4, -0.8))
    axes.axis("off")
    legend = [("query", "query"), ("selected", "the key it selects"), ("rival", "the rival it is held against")]
    for row, line in enumerate([[(text, role) for role, text in legend], *lines]):
        column = 0.5
        for word, role in line:
            box = {"boxstyle": "square,pad=0.12", "linewidth": 1.0, **boxes[role]} if role else None
            axes.text(column, row - 0.4, word, family="monospace", fontsize=7.4, va="center", bbox=box)
            column += len(word) + (1 if row else 3)
