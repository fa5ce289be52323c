"""What the functions of this package are given, checked once."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import real_array
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message

# "paper": as printed. "corrected": with slips of the printed formula repaired; each function says which.
Mode = Literal["paper", "corrected"]
EPS = float(np.finfo(np.float64).eps)


def finite(name: str, value: ArrayLike, shape: tuple[int | str, ...]) -> Array:
    """A finite float64 array of this shape, where a letter stands for any length above 0."""
    array = real_array(name, value)
    fits = array.ndim == len(shape) and all(
        size > 0 if isinstance(wanted, str) else size == wanted for size, wanted in zip(array.shape, shape, strict=True)
    )
    if not fits:
        wanted = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        raise InputError(message(f"`{name}` has shape {array.shape}; wanted {wanted}, with no empty axis."))
    if not np.isfinite(array).all():
        raise InputError(message(f"`{name}` has entries that are NaN or infinite; all must be finite."))
    return array


def sequences(x: ArrayLike) -> Array:
    """Tokens (n, T, d) of one data set."""
    array = real_array("x", x)
    if array.ndim == 4:
        raise InputError(message(f"`x` has shape {array.shape}; wanted one data set, (n, T, d).", "x[0]"))
    return finite("x", array, ("n", "T", "d"))


def positive(**values: float) -> None:
    """All are finite and above 0."""
    for name, value in values.items():
        if not (value > 0 and np.isfinite(value)):
            raise InputError(message(f"`{name}` is {value}; wanted a finite number above 0."))


def at_least_zero(**values: float) -> None:
    """All are finite and at least 0."""
    for name, value in values.items():
        if not (value >= 0 and np.isfinite(value)):
            raise InputError(message(f"`{name}` is {value}; wanted a finite number at least 0."))


def at_least_one(**values: float) -> None:
    """All are finite and at least 1: sizes."""
    for name, value in values.items():
        if not (value >= 1 and np.isfinite(value)):
            raise InputError(message(f"`{name}` is {value}; wanted at least 1."))


def share(**values: float) -> None:
    """All are above 0 and below 1."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise InputError(message(f"`{name}` is {value}; wanted a number between 0 and 1."))


def mode_of(mode: str) -> Mode:
    """`mode`, if it is one."""
    if mode not in ("paper", "corrected"):
        raise InputError(message(f"`mode` is {mode!r}; wanted 'paper' or 'corrected'."))
    return mode  # pyright: ignore[reportReturnType]
