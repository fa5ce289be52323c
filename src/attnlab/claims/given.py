"""What the author of a claim or of a figure hands to a tally, checked: numbers, truths, levels, names, ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.checks import instance, real_array, shown
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message


def alike(**values: Any) -> list[Array]:
    """Numbers by name, spread to one shape.

    >>> [list(map(float, numbers)) for numbers in alike(measured=[1, 2], promised=3)]
    [[1.0, 2.0], [3.0, 3.0]]
    """
    arrays = {name: real_array(name, value) for name, value in values.items()}
    try:
        return list(np.broadcast_arrays(*arrays.values()))
    except ValueError as error:
        shapes = " and ".join(f"`{name}` has shape {array.shape}" for name, array in arrays.items())
        raise InputError(message(f"{shapes}; wanted one shape, or single numbers.")) from error


def truths(name: str, value: Any) -> NDArray[np.bool_]:
    """True and False, as booleans or as numbers that are 0 or not."""
    return real_array(name, value).astype(bool)


def truths_or_numbers(name: str, value: Any) -> NDArray[Any]:
    """Booleans as booleans, all else as numbers."""
    numbers = real_array(name, value)
    return numbers.astype(bool) if np.asarray(value).dtype == bool else numbers


def level(name: str, value: Any) -> float:
    """One number, perhaps infinite, that something is compared with."""
    found = one_number(name, value)
    if np.isnan(found):
        raise InputError(message(f"`{name}` is nan; wanted a number to compare with."))
    return found


def one_number(name: str, value: Any) -> float:
    """One number of any kind, NaN and infinity too."""
    found = real_array(name, value)
    if found.ndim:
        raise InputError(message(f"`{name}` has shape {found.shape}; wanted one number."))
    return float(found)


def part_name(value: Any) -> str:
    """The name of what is judged."""
    return instance("name", value, str, "words for what is judged", "Bound('|grad| / bound')")


def id_list(ids: Any, what: str) -> list[str]:
    """Ids of claims or figures: one, or several."""
    try:
        return [ids] if isinstance(ids, str) else list(ids)
    except TypeError as error:
        raise InputError(message(f"`ids` is {shown(ids)}; wanted the id of a {what}, or a list of them.")) from error
