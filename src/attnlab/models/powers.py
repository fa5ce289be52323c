"""Exact powers of two taken out of data of extreme scale.

The gradient of an attention layer is a product of two tokens, a query and a head vector. Tokens of 1e-110 are ordinary
floats, their product is zero. So data outside of an ordinary range are divided by powers of two, which loses no digit,
and the exponents are kept beside them: they enter logits as factors and gradients as logarithms of scale.

Data inside the ordinary range are left alone, and so are the programs that work on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.models.scaled import Value

LOG2 = float(np.log(2.0))
# Products of four such numbers, and of a weight, are far from the ends of float64.
ORDINARY = 170
# Of weights that are factors of each other, as K and Q are.
ORDINARY_WEIGHTS = 200
# Where no powers are taken out, arrays of this exponent, and weights of that, are taken as they are.
MOST_WEIGHT = 450
# The squares of numbers of this exponent, as in tangent kernels, are normal floats.
LEAST_SQUARABLE = -500
# Between the largest entry of a matrix and the least that is not zero, in exponents.
WIDEST = 1000
# Factors of this exponent, and what they are multiplied with, are normal floats.
MOST = 700


class Powers(NamedTuple):
    """Exponents e of the factors 2^e that were taken out; of NumPy, or of JAX inside of programs."""

    x: Any  # (n,) of the tokens of each sequence
    z: Any  # (n, K) of each query
    v: Any  # () of the head vector; 0 if the head has none


def exponent(array: Array, axes: tuple[int, ...]) -> np.ndarray:
    """The least e with |a| < 2^e for all entries along `axes`; 0 where all are zero."""
    return np.frexp(np.max(np.abs(array), axis=axes, initial=0.0))[1].astype(np.int32)


def lowered(array: Array, power: np.ndarray, axes: int) -> Array:
    """`array / 2^power`, with `axes` axes of the array behind those of `power`."""
    return np.ldexp(array, -power.reshape(*power.shape, *[1] * axes))


def of_one_power(array: Array, power: np.ndarray) -> tuple[Array, int]:
    """`array * 2^power`, row by row, divided by the largest of these powers of a row that is not zero; and that one."""
    of_rows = power.reshape(*power.shape, *[1] * (array.ndim - power.ndim))
    some = np.broadcast_to(of_rows, array.shape)[array != 0]
    top = int(some.max()) if some.size else 0
    return np.ldexp(array, of_rows - top), top


def of_one_scale(x: Array, z: Array, powers: Powers | None) -> tuple[tuple[Array, float], tuple[Array, float]]:
    """Tokens and queries, each divided by one power of two if any were taken out of them, and its logarithm."""
    if powers is None:
        return (x, 0.0), (z, 0.0)
    (x, of_x), (z, of_z) = of_one_power(x, powers.x), of_one_power(z, powers.z)
    return (x, LOG2 * of_x), (z, LOG2 * of_z)


def is_ordinary(power: np.ndarray, most: int = ORDINARY) -> bool:
    """Are all exponents near zero?"""
    return bool((np.abs(power) <= most).all())


def are_ordinary(weights: Mapping[str, Array]) -> bool:
    """Can K and Q be multiplied with ordinary data without care?"""
    powers = [exponent(weights[name], (-2, -1)) for name in ("K", "Q") if name in weights]
    return all(is_ordinary(power, ORDINARY_WEIGHTS) for power in powers)


def check_range(name: str, array: Array, axes: int, most: int = ORDINARY, least: int | None = None) -> None:
    """Refuse arrays whose products might leave float64: the largest of the last `axes` axes is far from 1.

    For models that take no powers of two out of their data. Zeros are fine. Largest entries are to be from 2^least
    (default 2^-most) to 2^most.
    """
    least = -most if least is None else least
    power = exponent(array, tuple(range(-axes, 0)))
    inside = (power >= least) & (power <= most)
    if inside.all():
        return
    worst = int(power[~inside][0])
    raise InputError(
        message(
            f"`{name}` has entries of about {10.0 ** (worst * LOG2 / np.log(10.0)):.0e}; products of them would leave "
            f"float64. Wanted 0, or largest entries from {2.0**least:.0e} to {2.0**most:.0e}.",
            f"divide `{name}` by its largest entry",
        )
    )


def check_spread(name: str, weight: Array) -> None:
    """Refuse a matrix whose small entries would vanish where it is divided by its largest one."""
    axes = tuple(range(-min(weight.ndim, 2), 0))
    largest = exponent(weight, axes)
    smallest = np.frexp(np.min(np.abs(weight), axis=axes, initial=np.inf, where=weight != 0))[1]
    if ((largest - smallest > WIDEST) & np.any(weight, axis=axes)).any():
        raise InputError(
            message(
                f"`{name}` has entries whose sizes differ by more than 1e300; with tokens or weights of extreme "
                "scale the small ones would vanish beside the large.",
                "set the smallest entries to 0",
            )
        )


def check_finite(name: str, arrays: Iterable[ArrayLike], hint: str = "smaller weights") -> None:
    """Refuse results that overflowed."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise InputError(message(f"The {name} at `weights` is not finite: beyond 1.8e308, or not a number.", hint))


def times_power(array: jax.Array, power: jax.Array) -> jax.Array:
    """`array * 2^power` in JAX, for whole numbers up to 2100 in size; exact unless the result leaves float64."""
    for _ in range(3):  # one factor alone might overflow where the product does not
        part = jnp.clip(power, -MOST, MOST)
        array = array * _power_of_two(part)
        power = power - part
    return array


def _power_of_two(power: jax.Array) -> jax.Array:
    """2^power for |power| <= 1022, by its bits: an exponential may be wrong in the last digit."""
    bits = jnp.left_shift(jnp.asarray(power, jnp.int64) + 1023, 52)
    return jax.lax.bitcast_convert_type(bits, jnp.float64)


def unit_power(array: Value) -> tuple[jax.Array, jax.Array]:
    """`array / 2^e` with entries below 1 in size, and e, in JAX; e is 0 for zeros and what is not finite."""
    size = jnp.max(jnp.abs(array))
    _, power = jnp.frexp(jnp.where(jnp.isfinite(size), size, 0.0))
    return times_power(jnp.asarray(array), -power), power
