"""Weights of heads in groups, as a user gives them: checked, with the axes of trials and of groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import finite_array
from attnlab.errors import InputError, message
from attnlab.models.powers import MOST_WEIGHT, check_range


def of_groups(name: str, given: ArrayLike, shape: tuple[int, ...], trials: int | None) -> np.ndarray:
    """One weight as (G, ...) after the trial axis; that of one head is a group of its own."""
    lead = () if trials is None else (trials,)
    value = finite_array(name, given)
    if value.shape == shape:
        value = value[None]
    if value.ndim == len(shape) + 1 and value.shape[1:] == shape:
        value = np.broadcast_to(value, lead + value.shape)
    grouped = value.ndim > len(shape) and value.shape[-len(shape) - 1] > 0
    if not grouped or value.shape[: -len(shape) - 1] != lead or value.shape[-len(shape) :] != shape:
        per_trial = ", or that per trial" if lead else ""
        sizes = ", ".join(map(str, shape))
        raise InputError(message(f"`{name}` has shape {value.shape}; wanted shape (G, {sizes}){per_trial}."))
    check_range(name, value, len(shape), MOST_WEIGHT)
    return np.array(value)


def of_all(name: str, given: ArrayLike, shape: tuple[int, ...], trials: int | None) -> np.ndarray:
    """One weight that all heads share, after the trial axis."""
    lead = () if trials is None else (trials,)
    value = finite_array(name, given)
    if value.shape not in (shape, lead + shape):
        per_trial = ", or that per trial" if lead else ""
        raise InputError(message(f"`{name}` has shape {value.shape}; wanted {shape}{per_trial}."))
    check_range(name, value, len(shape), MOST_WEIGHT)
    return np.array(np.broadcast_to(value, lead + shape))
