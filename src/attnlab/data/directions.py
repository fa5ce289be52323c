"""Comparing directions of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import real_array
from attnlab.errors import InputError, message


def cosine(a: ArrayLike, b: ArrayLike) -> Any:
    """Cosine of the angle between weights, `<a, b> / (|a| |b|)` over the last two axes; leading axes broadcast.

    NaN if either is zero, or holds NaN or infinity, as the weights of a run that overflowed do: such matrices have no
    direction. Any scale will do. This is the papers' correlation (nothing is centred).

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
    # At most 1e300: XLA multiplies by the reciprocal, which underflows for what is larger.
    a = a / xp.minimum(xp.max(xp.abs(a), axis=(-2, -1), keepdims=True), 1e300)
    return a / xp.sqrt(xp.sum(a * a, axis=(-2, -1), keepdims=True))


def _directions(a: ArrayLike, b: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    left, right = real_array("a", a), real_array("b", b)
    for name, value in (("a", left), ("b", right)):
        if value.ndim < 2 or 0 in value.shape[-2:]:
            raise InputError(message(f"`{name}` has shape {value.shape}; wanted a matrix, or a stack of them."))
    if left.shape[-2:] != right.shape[-2:]:
        raise InputError(message(f"`a` has matrices of shape {left.shape[-2:]}, `b` of {right.shape[-2:]}."))
    try:
        np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError as error:
        raise InputError(
            message(f"`a` of shape {left.shape} and `b` of shape {right.shape} do not broadcast.")
        ) from error
    return _unit_at_any_scale(left), _unit_at_any_scale(right)


def _unit_at_any_scale(a: NDArray[np.float64]) -> NDArray[np.float64]:
    """`unit` of matrices that may be zero, infinite, or so small that a quotient of them loses digits."""
    size = np.max(np.abs(a), axis=(-2, -1), keepdims=True)
    directed = np.isfinite(size) & (size > 0)
    _, power = np.frexp(np.where(directed, size, 1.0))
    a = np.where(directed, np.ldexp(np.where(directed, a, 1.0), -power), np.nan)
    return unit(np, a)
