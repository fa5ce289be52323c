"""All results of a study as an xarray Dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.errors import InputError, message
from attnlab.study.design import Design
from attnlab.study.grid import axes_of, is_product
from attnlab.study.table import judged_parts, library


def dataset(design: Design) -> Any:
    """Settings and trials as dimensions; NaN where there is no result."""
    xarray = library("xarray", "A dataset")
    parts = list(judged_parts(design))
    good = next((part for part in parts if part.result is not None), None)
    if good is None or good.result is None:
        raise InputError(message("The study has no results yet.", "study.run()"))
    count = len(design.points)
    errors = np.full((count, design.trials), "", dtype=object)
    filled: dict[str, np.ndarray] = {}
    for name, array in good.result.arrays.items():
        kind = array.dtype if array.dtype.kind == "f" else object if array.dtype.kind in "US" else float
        filled[name] = np.full((count, design.trials, *array.shape[1:]), np.nan, dtype=kind)
    for part in parts:
        place = (part.task.point, slice(part.task.start, part.task.stop))
        errors[place] = part.error
        if part.result is not None:
            for name, array in part.result.arrays.items():
                filled[name][place] = array[: part.task.trials]
    axes = axes_of(design.points)
    product = is_product(design.points)
    dims = [*axes, "trial"] if product else ["point", "trial"]
    sizes = [len(values) for values in axes.values()] if product else [count]
    coords: dict[str, Any] = {"trial": np.arange(design.trials)}
    for name, values in axes.items():
        coords[name] = values if product else ("point", [point[name] for point in design.points])
    order = _order(design, axes) if product else slice(None)
    variables = {}
    for name, array in {**filled, "error": errors}.items():
        more = [f"{name}_{k}" for k in range(array.ndim - 2)]
        variables[name] = ([*dims, *more], array[order].reshape(*sizes, *array.shape[1:]))
    return xarray.Dataset(variables, coords=coords)


def _order(design: Design, axes: dict[str, list[Any]]) -> np.ndarray:
    """Where each combination is in the list of points, the last setting varying fastest."""
    places = np.zeros(tuple(len(values) for values in axes.values()), dtype=int)
    for i, point in enumerate(design.points):
        places[tuple(values.index(point[name]) for name, values in axes.items())] = i
    return places.ravel()
