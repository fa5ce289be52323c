"""Arrays that theory is given, checked once, and results that leave float64, refused by the name of what was given."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import finite_array, instance, no_batch
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message

EPS = float(np.finfo(np.float64).eps)
# Numbers that the largest array of a block of sequences may take: 64 MB.
BLOCK = 8_000_000


def one_data_set(tokens: Tokens) -> Tokens:
    """`tokens`, refused if it is something else or a batch."""
    instance("tokens", tokens, Tokens, "al.Tokens")
    no_batch("tokens", tokens, "tokens[i] is trial i, and its selection is run.selected[i]")
    return tokens


def finite(name: str, value: ArrayLike, shape: tuple[int | str, ...]) -> Array:
    """A finite float64 array of this shape, where a letter stands for any length above 0."""
    array = finite_array(name, value)
    fits = array.ndim == len(shape) and all(
        size > 0 if isinstance(wanted, str) else size == wanted for size, wanted in zip(array.shape, shape, strict=True)
    )
    if not fits:
        wanted = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        raise InputError(message(f"`{name}` has shape {array.shape}; wanted {wanted}, with no empty axis."))
    return array


def sequences(x: ArrayLike) -> Array:
    """Tokens (n, T, d) of one data set."""
    array = finite_array("x", x)
    if array.ndim == 4:
        raise InputError(message(f"`x` has shape {array.shape}; wanted one data set, (n, T, d).", "x[0]"))
    return finite("x", array, ("n", "T", "d"))


def within_float64(name: str, given: Array, what: str, *results: Array) -> None:
    """Refuse, by the name of what was given, results that are beyond float64."""
    if not all(np.isfinite(one).all() for one in results):
        size = f"`{name}` has entries up to {np.abs(finite_array(name, given)).max():.1e}"
        raise InputError(
            message(f"{size}; {what} are beyond float64, which ends at 1.8e308.", "divide them all by one")
        )
