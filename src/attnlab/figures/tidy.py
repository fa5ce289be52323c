"""The arrays of a figure as one tidy table: a row for every number, with its place on named axes."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from attnlab.errors import AttnlabError, message

# A CSV file lists every number with its place, up to this many.
LISTED = 300_000


class Axis(NamedTuple):
    """A column of the table, and the values along it."""

    column: str
    values: np.ndarray


def tidy_csv(
    arrays: Mapping[str, np.ndarray],
    facts: Mapping[str, Any],
    axes: Mapping[str, str] | None = None,
    most: int = LISTED,
) -> str:
    """Columns: `quantity`, one for each axis (`step`, `d`, `trial` ...), `value`.

    Args:
        arrays: by name.
        facts: those whose name has "trials" say how long the axis of trials is, where `axes` says nothing.
        axes: pattern of names -> the axes of such arrays, as {"*_loss": "trial step"}; the first that fits. Along an
            axis stand the values of the array of its name (`step` or `steps`), else places 0, 1 ...; "step=gd_steps"
            is an axis `step` with the values of `gd_steps`. Of other arrays an axis is named if there is no doubt, by
            the array that lists as many rising values; else it is axis_0, axis_1.
        most: numbers in all; arrays beyond are left to the npz file, with a row that says so.
    """
    listed, left = {}, most
    for name, array in sorted(arrays.items(), key=lambda item: item[1].size):
        if array.size <= left:
            listed[name], left = array, left - array.size
    trials = {value for name, value in facts.items() if "trials" in name and isinstance(value, int)}
    named = {}
    for name in sorted(listed):
        words = next((words for pattern, words in (axes or {}).items() if fnmatchcase(name, pattern)), None)
        named[name] = _guessed(name, arrays, trials) if words is None else _given(name, arrays, words.split())
    columns = list(dict.fromkeys(axis.column for found in named.values() for axis in found))
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, ["quantity", *columns, "value"], restval="")
    writer.writeheader()
    for name, found in named.items():
        for place, value in np.ndenumerate(listed[name]):
            at = {axis.column: axis.values[i] for axis, i in zip(found, place, strict=True)}
            writer.writerow({"quantity": name, **at, "value": value})
    for name in sorted(set(arrays) - set(listed)):
        writer.writerow({"quantity": name, "value": f"{arrays[name].shape}: in the npz file"})
    return lines.getvalue()


def _given(name: str, arrays: Mapping[str, np.ndarray], words: list[str]) -> list[Axis]:
    """The axes that a figure says an array has."""
    shape = arrays[name].shape
    if len(words) != len(shape):
        raise AttnlabError(message(f"`{name}` has shape {shape}, and the axes {words}."))
    found = []
    for word, length in zip(words, shape, strict=True):
        column, _, source = word.partition("=")
        along = _along(source or column, arrays)
        if (source and along is None) or (along is not None and len(along) != length):
            raise AttnlabError(message(f"`{name}` has shape {shape}, and the axes {words}; {word!r} does not fit."))
        found.append(Axis(column, np.arange(length) if along is None else along))
    return found


def _along(word: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The array that lists the values along an axis: of this name, or of its plural."""
    listing = [arrays[name] for name in (word, f"{word}s") if name in arrays and arrays[name].ndim == 1]
    return listing[0] if listing else None


def _guessed(name: str, arrays: Mapping[str, np.ndarray], trials: set[int]) -> list[Axis]:
    """Axes are named where one array of rising numbers, or the number of trials, is as long and nothing else is."""
    scales = {key: array for key, array in arrays.items() if _rises(array)}
    if name in scales:
        return [Axis(_singular(name), scales[name])]
    shape = arrays[name].shape
    found: list[Axis] = []
    for i, length in enumerate(shape):
        fitting = [Axis(_singular(key), values) for key, values in scales.items() if len(values) == length]
        fitting += [Axis("trial", np.arange(length))] * (length in trials)
        alone = len(fitting) == 1 and shape.count(length) == 1
        found.append(fitting[0] if alone else Axis(f"axis_{i}", np.arange(length)))
    return found


def _rises(array: np.ndarray) -> bool:
    return array.ndim == 1 and len(array) > 1 and array.dtype.kind in "iuf" and bool((np.diff(array) > 0).all())


def _singular(name: str) -> str:
    return name.removesuffix("s") if len(name) > 2 else name
