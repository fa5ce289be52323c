"""Trials as a table: one row each, failures included."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

from attnlab.errors import InputError, message
from attnlab.study.design import Design, Part
from attnlab.study.grid import spelt
from attnlab.study.outcome import unlike


def library(name: str, for_what: str) -> Any:
    """A package of the extra `study`, loaded when it is needed."""
    try:
        return import_module(name)
    except ImportError as error:
        problem = f"{for_what} needs {name}, which is not installed."
        raise InputError(message(problem, "pip install 'attnlab[study]'")) from error


def judged_parts(design: Design) -> Iterator[Part]:
    """All blocks in order. One whose arrays are unlike those of the first that went well counts as failed."""
    reference: Part | None = None
    for point in range(len(design.points)):
        for part in design.parts(point):
            if part.result is None:
                yield part
                continue
            reference = reference or part
            assert reference.result is not None
            problem = unlike(part.result.arrays, reference.result.arrays)
            yield Part(part.task, None, f"The block function {problem}.") if problem else part


def arrays_of(design: Design) -> list[dict[str, np.ndarray]]:
    """The arrays of every point, its trials first; all must be there."""
    found = []
    blocks: dict[int, list[Part]] = {}
    for part in judged_parts(design):
        blocks.setdefault(part.task.point, []).append(part)
    for point in range(len(design.points)):
        parts = blocks[point]
        bad = next((part for part in parts if part.result is None), None)
        if bad is not None:
            why = bad.error or "they are not computed yet"
            problem = f"Trials from {bad.task.start} on of {spelt(design.points[point])} have no results: {why}"
            raise InputError(message(problem, "study.run(), and study.status() for what failed"))
        results = [(part.result.arrays, part.task.trials) for part in parts if part.result is not None]
        names = list(results[0][0])
        found.append({name: np.concatenate([arrays[name][:count] for arrays, count in results]) for name in names})
    return found


def columns_of(design: Design) -> dict[str, np.ndarray]:
    """Every column of the table as an array; results of failed trials are masked.

    An array with one more axis, (trials, k), is k columns NAME_0 ... ; larger ones are left to `dataset`.
    """
    parts = [part for part in judged_parts(design) if not part.missing]
    if not parts:
        problem = "The study has no trials yet." if design.trials else "The study has no trials."
        raise InputError(message(problem, "study.run()"))
    columns: dict[str, np.ndarray] = {}
    for name in design.points[0]:
        repeated = [value for part in parts for value in [design.points[part.task.point][name]] * part.task.trials]
        columns[name] = _array(repeated)
    columns["trial"] = np.concatenate([np.arange(part.task.start, part.task.stop) for part in parts])
    columns["seed"] = np.concatenate([design.seeds(part.task) for part in parts])
    good = next((part for part in parts if part.result is not None), None)
    if good is not None and good.result is not None:
        for name, array in good.result.arrays.items():
            columns |= _spread(name, array.shape[1:], [_values(part, name) for part in parts])
    errors = [part.error for part in parts for _ in range(part.task.trials)]
    columns["error"] = np.ma.masked_array(errors, mask=[not error for error in errors], dtype=object)
    return columns


def frame(design: Design) -> Any:
    """The table as a pandas DataFrame. Where trials failed, whole numbers and booleans are of pandas' own types,
    which have a place for a missing value."""
    pandas = library("pandas", "A data frame")
    columns = columns_of(design)
    series = {name: _series(pandas, column) for name, column in columns.items()}
    return pandas.DataFrame(series)


def _values(part: Part, name: str) -> np.ndarray | int:
    """Values of one block, or how many are missing."""
    if part.result is None:
        return part.task.trials
    return part.result.arrays[name][: part.task.trials]


def _spread(name: str, shape: tuple[int, ...], blocks: list[np.ndarray | int]) -> dict[str, np.ndarray]:
    """One column for a number per trial, k for k numbers per trial."""
    if len(shape) > 1:
        return {}
    like = next(block for block in blocks if isinstance(block, np.ndarray))
    whole = [
        block if isinstance(block, np.ndarray) else np.zeros((block, *shape), dtype=like.dtype) for block in blocks
    ]
    missing = np.concatenate(
        [np.full(len(values), not isinstance(block, np.ndarray)) for block, values in zip(blocks, whole, strict=True)]
    )
    values = np.concatenate(whole)
    parts = {name: values} if not shape else {f"{name}_{k}": values[:, k] for k in range(shape[0])}
    return {part: np.ma.masked_array(column, mask=missing) for part, column in parts.items()}


def _array(values: list[Any]) -> np.ndarray:
    """A column of settings: one type if all have one, else objects."""
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return np.array(values, dtype=float)
    if len(kinds) == 1 and kinds <= {bool, int, float}:
        return np.array(values)
    return np.array(values, dtype=object)


def _series(pandas: Any, column: np.ndarray) -> Any:
    mask = np.ma.getmaskarray(column)
    values = np.ma.getdata(column)
    if values.dtype.kind in "OUS":
        texts = pandas.Series(values, dtype=object)
        texts[mask] = None
        only_text = all(isinstance(value, str) or value is None for value in texts)
        return texts.astype("str") if only_text else texts
    if not mask.any():
        return pandas.Series(values)
    if values.dtype.kind == "b":
        return pandas.Series(pandas.arrays.BooleanArray(values.copy(), mask))
    if values.dtype.kind in "iu":
        return pandas.Series(pandas.arrays.IntegerArray(values.copy(), mask))
    return pandas.Series(np.where(mask, np.nan, values))
