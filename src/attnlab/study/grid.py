"""The points of a study: a dict of lists, or a list of dicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from attnlab.checks import shown
from attnlab.errors import InputError, message

Value: TypeAlias = bool | int | float | str | None
Point: TypeAlias = dict[str, Value]
Grid: TypeAlias = Mapping[str, Iterable[Value]] | Sequence[Mapping[str, Value]]

# Columns that a table of trials has besides settings and results.
TAKEN = ("trial", "seed", "error")
_HINT = "grid={'n': [5, 10], 'd': [5, 10, 20]}, or a list of points [{'n': 5, 'd': 5}, ...]"


def points_of(grid: Any) -> list[Point]:
    """All points, in order; the last name of a dict of lists varies fastest.

    >>> points_of({"n": [2, 4], "step": [0.1]})
    [{'n': 2, 'step': 0.1}, {'n': 4, 'step': 0.1}]
    """
    if isinstance(grid, Mapping):
        points = _product(grid)
    elif isinstance(grid, list | tuple):
        points = _listed(grid)
    else:
        raise InputError(message(f"`grid` is {shown(grid)}; wanted a dict of lists or a list of points.", _HINT))
    _refuse_duplicates(points)
    return points


def axes_of(points: Sequence[Point]) -> dict[str, list[Value]]:
    """Different values of each setting, in the order in which they come."""
    return {name: list(dict.fromkeys(point[name] for point in points)) for name in points[0]}


def is_product(points: Sequence[Point]) -> bool:
    """Are these all combinations of their values?"""
    return len(points) == math.prod(len(values) for values in axes_of(points).values())


def shape_of(point: Point) -> tuple[Any, ...]:
    """What is likely to decide the shapes of arrays: everything but the real numbers."""
    return tuple((name, value) for name, value in point.items() if not isinstance(value, float))


def spelt(point: Mapping[str, Any]) -> str:
    """n=5, step=0.1"""
    return ", ".join(f"{name}={value}" for name, value in point.items()) or "the only point"


def _product(grid: Mapping[Any, Any]) -> list[Point]:
    axes = {}
    for name, values in grid.items():
        _check_name(name)
        is_list = isinstance(values, list | tuple | range) or (isinstance(values, np.ndarray) and values.ndim == 1)
        if not is_list or not len(values):
            raise InputError(message(f"`grid[{name!r}]` is {shown(values)}; wanted a list of values.", _HINT))
        axes[name] = [_plain(name, value) for value in values]
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _listed(grid: Sequence[Any]) -> list[Point]:
    points = []
    if not grid:
        raise InputError(message("`grid` is an empty list; wanted at least one point.", _HINT))
    for i, given in enumerate(grid):
        if not isinstance(given, Mapping):
            raise InputError(message(f"`grid[{i}]` is {shown(given)}; wanted a dict of settings.", _HINT))
        for name in given:
            _check_name(name)
        if set(given) != set(grid[0]):
            raise InputError(
                message(
                    f"`grid[{i}]` has the settings {sorted(given)}, `grid[0]` has {sorted(grid[0])}; wanted equal ones."
                )
            )
        points.append({name: _plain(name, given[name]) for name in grid[0]})
    return points


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(message(f"`grid` has a setting named {shown(name)}; wanted a word.", _HINT))
    if name in TAKEN:
        raise InputError(message(f"`grid` has a setting named {name!r}, which is a column of its own.", "another name"))


def _plain(name: str, value: Any) -> Value:
    if isinstance(value, np.generic):
        value = value.item()
    if value is not None and not isinstance(value, bool | int | float | str):
        problem = f"`grid[{name!r}]` has the value {shown(value)}; wanted numbers, text, booleans or None."
        raise InputError(message(problem, "give it a name here, and look the name up in the block function"))
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(message(f"`grid[{name!r}]` has the value {value}; wanted finite numbers."))
    if isinstance(value, int) and abs(value) >= 2**63:
        raise InputError(message(f"`grid[{name!r}]` has the value {shown(value)}; wanted whole numbers below 2^63."))
    return value


def _refuse_duplicates(points: list[Point]) -> None:
    first: dict[tuple[Any, ...], int] = {}
    for i, point in enumerate(points):
        values = tuple(point.values())
        if values in first:
            raise InputError(
                message(
                    f"`grid` has a point twice, as number {first[values]} and {i}: {spelt(point)}.", "more `trials`"
                )
            )
        first[values] = i
