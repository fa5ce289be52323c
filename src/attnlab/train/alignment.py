"""Comparing directions of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.errors import InputError, message


def cosine(a: ArrayLike, b: ArrayLike) -> Any:
    """Cosine of the angle between weights, `<a, b> / (|a| |b|)` over the last two axes; leading axes broadcast.

    NaN if either is zero. This is the papers' correlation (nothing is centred).

    >>> import attnlab as al
    >>> float(al.cosine([[1.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]))
    0.7071067811865475
    """
    a, b = _directions(a, b)
    return np.einsum("...ij,...ij->...", a, b)[()]


def misalignment(a: ArrayLike, b: ArrayLike) -> Any:
    """`1 - cosine(a, b)` without the loss of digits of that subtraction: the angle is right to about 3e-16.

    Computed from the part of a orthogonal to b. A value m is therefore accurate to about 4e-16 / sqrt(m), relatively:
    eight digits at 1e-16, one at 1e-30 (all of them where b has a single entry).

    >>> import attnlab as al
    >>> float(al.misalignment([[1.0, 1e-12]], [[1.0, 0.0]]))
    5e-25
    """
    a, b = _directions(a, b)
    return misalignment_of_units(np, a, b)[()]


def misalignment_of_units(xp: Any, a: Any, b: Any) -> Any:
    """The same for unit vectors (Frobenius norm), with NumPy or `jax.numpy` as `xp`.

    `1 - c = |a - c b|^2 / (1 + c)`; beyond a right angle the subtraction is safe and this form is not.
    """
    c = xp.einsum("...ij,...ij->...", a, b)
    rest = a - c[..., None, None] * b
    # Once more: what the first projection left along b is as large as the rounding of c.
    rest = rest - xp.einsum("...ij,...ij->...", rest, b)[..., None, None] * b
    return xp.where(c > 0, xp.einsum("...ij,...ij->...", rest, rest) / (1.0 + xp.maximum(c, 0.0)), 1.0 - c)


def unit(xp: Any, a: Any) -> Any:
    """`a` divided by its Frobenius norm over the last two axes, safe at any scale; NaN for zero."""
    a = a / xp.max(xp.abs(a), axis=(-2, -1), keepdims=True)
    return a / xp.sqrt(xp.sum(a * a, axis=(-2, -1), keepdims=True))


def _directions(a: ArrayLike, b: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    arrays = [np.asarray(v, dtype=np.float64) for v in (a, b)]
    for name, value in zip("ab", arrays, strict=True):
        if value.ndim < 2:
            raise InputError(message(f"`{name}` has shape {value.shape}; wanted a matrix, or a stack of them."))
    if arrays[0].shape[-2:] != arrays[1].shape[-2:]:
        raise InputError(message(f"Matrices of shapes {arrays[0].shape[-2:]} and {arrays[1].shape[-2:]} differ."))
    with np.errstate(invalid="ignore", divide="ignore"):
        return unit(np, arrays[0]), unit(np, arrays[1])
