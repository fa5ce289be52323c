"""The arrays of a figure as one tidy table: a row for every number, with its place on named axes."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

# A CSV file lists every number with its place, up to this many.
LISTED = 300_000


def tidy_csv(arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any], most: int = LISTED) -> str:
    """Columns: `quantity`, one for each axis (`step`, `d`, `trial` ...), `value`.

    An axis is named after the array that lists its values (`steps`, `d`), and these values stand in its column; the
    axis of trials counts them; others are called axis_0, axis_1. Arrays that would make the file too long are left to
    the npz file, with a row that says so.
    """
    listed, left = {}, most
    for name, array in sorted(arrays.items(), key=lambda item: item[1].size):
        if array.size <= left:
            listed[name], left = array, left - array.size
    scales = _scales(arrays)
    trials = {value for name, value in facts.items() if "trials" in name and isinstance(value, int)}
    named = {name: _axes(listed[name], scales, trials) for name in sorted(listed)}
    columns = list(dict.fromkeys(axis for axes in named.values() for axis in axes))
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, ["quantity", *columns, "value"], restval="")
    writer.writeheader()
    for name in sorted(listed):
        for place, value in np.ndenumerate(listed[name]):
            at = {axis: scales[axis][i] if axis in scales else i for axis, i in zip(named[name], place, strict=True)}
            writer.writerow({"quantity": name, **at, "value": value})
    for name in sorted(set(arrays) - set(listed)):
        writer.writerow({"quantity": name, "value": f"{arrays[name].shape}: in the npz file"})
    return lines.getvalue()


def _scales(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays that list the values along an axis: rising numbers. Plurals are made singular: steps -> step."""
    scales = {}
    for name, array in arrays.items():
        rising = array.ndim == 1 and len(array) > 1 and array.dtype.kind in "iuf" and bool((np.diff(array) > 0).all())
        if rising:
            scales[name.removesuffix("s") if len(name) > 2 else name] = array
    return scales


def _axes(array: np.ndarray, scales: Mapping[str, np.ndarray], trials: set[int]) -> list[str]:
    axes: list[str] = []
    for i, length in enumerate(array.shape):
        fitting = [scale for scale, values in scales.items() if len(values) == length and scale not in axes]
        own = [scale for scale in fitting if scales[scale] is array]
        if length in trials and "trial" not in axes and not own:
            axes.append("trial")
        elif len(fitting) == 1 or own:
            axes.append((own or fitting)[0])
        else:
            axes.append(f"axis_{i}")
    return axes
