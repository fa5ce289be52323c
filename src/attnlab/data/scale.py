"""Arrays of any size, from 5e-324 to 1.8e308, brought to size 1 by exact powers of two and back.

Sums of squares leave float64 far earlier than what they are squares of. Arrays of ordinary size take the plain way,
with the same digits as ever; the others are scaled, which rounds nothing, and scaled back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Entries whose fourth powers, summed over any array that fits, are ordinary float64 numbers.
LOW, HIGH = 1e-70, 1e70


def is_ordinary(array: Array) -> bool:
    """Do squares and fourth powers of its entries stay within float64? Zeros do."""
    size = np.abs(array)
    return bool(((size == 0) | ((size > LOW) & (size < HIGH))).all())


def exponent(array: Array) -> int:
    """The e with `2^(e-1) <= largest entry < 2^e`; 0 for zeros."""
    return int(np.frexp(np.abs(array).max(initial=0.0))[1])


def to_one(array: Array) -> tuple[Array, int]:
    """The array times 2^-e, with entries below 1, and e; entries below 2^-1074 of the largest become 0.

    >>> scaled, e = to_one(np.array([3e200, -1e200]))
    >>> bool(np.abs(scaled).max() < 1.0), np.ldexp(scaled, e).tolist()
    (True, [3e+200, -1e+200])
    """
    e = exponent(array)
    return np.ldexp(array, -e), e


def rows_to_one(array: Array) -> tuple[Array, NDArray[np.int32]]:
    """Each row, over the last axis, times its own 2^-e, and e with that axis kept, of length 1."""
    e = np.frexp(np.abs(array).max(-1, keepdims=True, initial=0.0))[1]
    return np.ldexp(array, -e), e


def lengths(array: Array) -> Array:
    """Euclidean norms over the last axis; inf only where the norm itself is beyond float64.

    >>> lengths(np.array([[2.0**600, 0.0], [0.0, 2.0**-600], [0.0, 0.0]])) == [2.0**600, 2.0**-600, 0.0]
    array([ True,  True,  True])
    """
    if is_ordinary(array):
        return np.linalg.norm(array, axis=-1)
    scaled, e = rows_to_one(array)
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(np.linalg.norm(scaled, axis=-1), e[..., 0])


def length(array: Array) -> float:
    """The Euclidean (Frobenius) norm of a whole array, as `lengths`."""
    return float(np.linalg.norm(array)) if is_ordinary(array) else float(lengths(array.reshape(-1)))


def matrix_lengths(array: Array) -> Array:
    """Frobenius norms over the last two axes, as `lengths`."""
    if is_ordinary(array):
        return np.linalg.norm(array, axis=(-2, -1))
    return lengths(array.reshape(*array.shape[:-2], -1))


def ordinary(array: Array) -> tuple[Array, int]:
    """The array and 0 where it is of ordinary size, else what `to_one` makes of it."""
    return (array, 0) if is_ordinary(array) else to_one(array)


def rescaled(array: Array | float, e: int | NDArray[np.integer[Any]]) -> Array:
    """The array times 2^e, without a word where that is beyond float64."""
    if isinstance(e, int) and e == 0:
        return np.asarray(array)
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(array, e)


def spectral_norm(matrix: Array) -> float:
    """The largest singular value of a matrix, as `lengths`."""
    if is_ordinary(matrix):
        return float(np.linalg.norm(matrix, ord=2))
    scaled, e = to_one(matrix)
    with np.errstate(over="ignore", under="ignore"):
        return float(np.ldexp(np.linalg.norm(scaled, ord=2), e))


def dot(left: Array, right: Array) -> tuple[Array, NDArray[np.int32]]:
    """`sum_k left_k right_k` over the last axis as mantissas below the number of terms, and their exponents of two.

    Every product is taken by mantissa and exponent, so that none overflows, and none counts as 0 that is not far below
    the largest of its sum.

    >>> mantissa, e = dot(np.array([1e300, 1e-300]), np.array([1e-300, 1e300]))
    >>> round(float(np.ldexp(mantissa, e)), 12)
    2.0
    """
    (a, a_exponent), (b, b_exponent) = np.frexp(left), np.frexp(right)
    products = a * b
    each = np.where(products != 0, a_exponent + b_exponent, np.iinfo(np.int32).min // 2)
    top = each.max(-1)
    top = np.where(top > np.iinfo(np.int32).min // 4, top, 0)
    with np.errstate(under="ignore"):
        return np.ldexp(products, each - top[..., None]).sum(-1), top.astype(np.int32)
