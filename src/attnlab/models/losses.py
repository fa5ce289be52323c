"""Losses of the margin `u = y h(o)`, in and out of the log domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.checks import shown
from attnlab.errors import InputError, message
from attnlab.models.hashable import check_hashable

# Below this log of the drop, `loss(a - drop) - loss(a)` is linear in the drop to 1e-13.
LINEAR = -30.0
# Below this the midpoint rule, above it a difference of two values of a user's loss, is accurate to about 1e-10.
SMALL = -11.0


@dataclass(frozen=True)
class Loss:
    """A loss of the margin, elementwise.

    Args:
        name: how it is recorded.
        value: u -> loss.
        log_value: u -> log(loss), accurate where the loss underflows; NaN where the loss is negative.
        log_slope: u -> log|loss'(u)|.
        slope_sign: u -> sign of loss'(u).
        log_rise: (u, drop > 0) -> log(loss(u - drop) - loss(u)).
    """

    name: str
    value: Callable[[Any], Any]
    log_value: Callable[[Any], Any]
    log_slope: Callable[[Any], Any]
    slope_sign: Callable[[Any], Any]
    log_rise: Callable[[Any, Any], Any]

    def excess(self, margin: Array, log_drop: Array, drop_sign: Array) -> tuple[Array, Array]:
        """Sign and log magnitude of `loss(margin - drop) - loss(margin)`, `drop = drop_sign * e^log_drop`.

        Accurate to the last digits however small the drop: below e^-30 the loss is linear in it to 1e-13.
        """
        drop = jnp.exp(log_drop)
        rising = -self.slope_sign(margin) * drop_sign
        start = jnp.where(rising < 0, margin - drop_sign * drop, margin)
        rise = self.log_rise(start, drop)
        return rising, jnp.where(log_drop < LINEAR, log_drop + self.log_slope(margin), rise)


def _log_expm1(u: Array) -> Array:
    return u + jnp.log(-jnp.expm1(-u))


def _log_log1p_exp(u: Array) -> Array:
    """log(log(1 + e^u)); for u < -37 that is u to the last digit."""
    return jnp.where(u < -37.0, u, jnp.log(jnp.logaddexp(0.0, jnp.maximum(u, -38.0))))


def _minus_one(u: Array) -> Array:
    return -jnp.ones_like(u)


LOGISTIC = Loss(
    name="logistic",
    value=lambda u: jnp.logaddexp(0.0, -u),
    log_value=lambda u: _log_log1p_exp(-u),
    log_slope=lambda u: -jnp.logaddexp(0.0, u),
    slope_sign=_minus_one,
    log_rise=lambda u, drop: _log_log1p_exp(_log_expm1(drop) - jnp.logaddexp(0.0, u)),
)
EXPONENTIAL = Loss(
    name="exponential",
    value=lambda u: jnp.exp(-u),
    log_value=lambda u: -u,
    log_slope=lambda u: -u,
    slope_sign=_minus_one,
    log_rise=lambda u, drop: _log_expm1(drop) - u,
)
CORRELATION = Loss(
    name="correlation",
    value=lambda u: -u,
    log_value=lambda u: jnp.log(-u),
    log_slope=lambda u: jnp.zeros_like(u),
    slope_sign=_minus_one,
    log_rise=lambda u, drop: jnp.log(drop),
)
LOSSES = {loss.name: loss for loss in (LOGISTIC, EXPONENTIAL, CORRELATION)}


@dataclass(frozen=True, eq=False)
class _UserLoss(Loss):
    function: Callable[[Any], Any]

    def excess(self, margin: Array, log_drop: Array, drop_sign: Array) -> tuple[Array, Array]:
        # Nothing is known of its shape, so the sign is measured and not derived.
        drop = drop_sign * jnp.exp(log_drop)
        change = self.value(margin - drop) - self.value(margin)
        middle = margin - 0.5 * drop
        small = log_drop < SMALL
        sign = jnp.where(small, -self.slope_sign(middle) * drop_sign, jnp.sign(change))
        return sign, jnp.where(small, log_drop + self.log_slope(middle), jnp.log(jnp.abs(change)))

    # Two wraps of one function are one loss, so that a second run reuses the compiled program.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _UserLoss) and self.function == other.function

    def __hash__(self) -> int:
        return hash(self.function)


def as_loss(loss: str | Loss | Callable[[Any], Any]) -> Loss:
    """A loss by name, as it is, or from your own function of one margin written with `jax.numpy`."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise InputError(message(f"`loss` is {loss!r}; wanted one of {', '.join(LOSSES)}, or a function."))
        return LOSSES[loss]
    if not callable(loss):
        raise InputError(message(f"`loss` is {shown(loss)}; wanted a name or a function of the margin."))
    check_hashable("loss", loss)

    def everywhere(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda u: jax.vmap(function)(jnp.ravel(u)).reshape(jnp.shape(u))

    value, slope = everywhere(loss), everywhere(jax.grad(loss))
    return _UserLoss(
        name=getattr(loss, "__name__", "user"),
        value=value,
        log_value=lambda u: jnp.log(value(u)),
        log_slope=lambda u: jnp.log(jnp.abs(slope(u))),
        slope_sign=lambda u: jnp.sign(slope(u)),
        log_rise=lambda u, drop: jnp.log(value(u - drop) - value(u)),
        function=loss,
    )
