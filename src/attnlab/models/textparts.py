"""Parts of transformers on text: how their weights start, and how heads, layers and parts are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnlab.checks import shown, whole, whole_array
from attnlab.errors import InputError, message
from attnlab.models.weight import Weight

Parts = str | int | Sequence[str | int]  # of a model
SPREAD = 0.02  # deviation of random weights


def active_heads(active: Any, depth: int, heads: int) -> tuple[tuple[int, ...], ...]:
    """Which heads of each layer work: given for each layer, or how many of the first ones in all."""
    wanted = f"a number of heads, or for each of {depth} layers the numbers of its heads, from 0 to {heads - 1}"
    if isinstance(active, int | np.integer) and not isinstance(active, bool):
        first = tuple(range(whole("active", active, 0, heads)))
        return (first,) * depth
    if not isinstance(active, tuple | list) or len(active) != depth:
        raise InputError(message(f"`active` is {shown(active)}; wanted {wanted}.", "active=4"))
    chosen = []
    for layer in active:
        numbers = np.zeros(0, dtype=int) if not len(layer) else whole_array("active", layer, wanted)
        if numbers.ndim != 1 or (numbers.size and (numbers.min() < 0 or numbers.max() >= heads)):
            raise InputError(message(f"`active` has {shown(layer)}; wanted {wanted}.", "active=4"))
        chosen.append(tuple(sorted(set(numbers.tolist()))))
    return tuple(chosen)


def parts_of(frozen: Any) -> tuple[str | int, ...]:
    """Several parts of a model, or one."""
    if isinstance(frozen, tuple | list):
        return tuple(frozen)
    return (frozen,)


def layer_numbers(layers: Any, depth: int) -> tuple[int, ...]:
    wanted = f"numbers of layers from 0 to {depth - 1}"
    numbers = whole_array("layers", layers, wanted)
    if numbers.ndim != 1 or not numbers.size or numbers.min() < 0 or numbers.max() >= depth:
        raise InputError(message(f"`layers` is {shown(layers)}; wanted {wanted}."))
    return tuple(sorted(set(numbers.tolist())))


def normal(*shape: int) -> Weight:
    """Gaussian weights of deviation 0.02, with which transformers on text are started."""
    return Weight(shape, "gaussian", scale=SPREAD)


def linear(prefix: str, outputs: int, inputs: int) -> dict[str, Weight]:
    """A matrix and a shift."""
    return {f"{prefix}W": normal(outputs, inputs), f"{prefix}b": Weight((outputs,), "zeros")}


def norm_shapes(prefix: str, size: int) -> dict[str, Weight]:
    """Gain and shift of a layer norm."""
    return {f"{prefix}gain": Weight((size,), "ones"), f"{prefix}shift": Weight((size,), "zeros")}
