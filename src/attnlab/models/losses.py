"""Losses: what is summed over the outputs of a model, in and out of the log domain.

| name | of one output | labels |
|---|---|---|
| "logistic", "exponential", "correlation", "hinge" | of the margin `u = y output`; mean over sequences | +1, -1 |
| your own function of one margin | the same | +1, -1 |
| "half_sum", "mse_mean", "half_mean" | `(output - y)^2`, times 1/2, 1/n or 1/(2n) | any numbers |
| "cross_entropy" | `log sum_c e^(output_c) - output_y` for outputs (n, C); mean over sequences | classes 0 to C - 1 |

Every loss gives its gradient by the outputs as a mantissa and a logarithm of scale: where a model fits its data the
gradient is below the smallest float, and normalized steps go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.checks import shown
from attnlab.errors import InputError, message
from attnlab.models.hashable import check_hashable
from attnlab.models.scaled import finite_scale

Elementwise: TypeAlias = Callable[[Array], Array]
# Errors of this size, relative to outputs and labels, are mostly rounding.
SETTLED = 1e-14
# Below this log of the drop, `loss(a - drop) - loss(a)` is linear in the drop to 1e-13.
LINEAR = -30.0
# Below this the midpoint rule, above it a difference of two values of a user's loss, is accurate to about 1e-10.
SMALL = -11.0


@dataclass(frozen=True)
class Loss(ABC):
    """What is minimised: a function of all outputs and labels of a data set. Hashable.

    Outputs are (n,), or (n, K) with K queries to a sequence, or (n, C) with C classes.
    """

    name: str

    @abstractmethod
    def objective(self, outputs: Array, y: Array) -> Array:
        """The loss of all outputs."""

    @abstractmethod
    def log_objective(self, outputs: Array, y: Array) -> Array:
        """Its logarithm, also where it underflows; NaN for losses that can be negative."""

    @abstractmethod
    def slope(self, outputs: Array, y: Array) -> tuple[Array, Array]:
        """Its gradient by the outputs, as mantissa and log-scale."""

    @abstractmethod
    def of_margins(self, n: int) -> MarginLoss:
        """The same for n sequences with labels +1 and -1, as a mean of a function of margins."""

    def is_settled(self, outputs: Array, y: Array) -> Array:
        """Is what is left of the loss rounding, so that its gradient is noise?"""
        return jnp.zeros((), dtype=bool)

    def accuracy(self, outputs: Array, y: Array) -> Array | None:
        """The share of outputs that are of the right class; None where labels are numbers."""
        return None

    def check_labels(self, y: np.ndarray, classes: int | None) -> None:
        """Refuse labels and outputs (of so many classes; None for a number each) that do not go with this loss."""
        if classes is not None:
            raise InputError(
                message(
                    f"`loss` {self.name!r} is of one output; this model has {classes} for each example.",
                    "loss='cross_entropy'",
                )
            )


@dataclass(frozen=True)
class MarginLoss(Loss):
    """The mean over sequences of a function of margins `u = y output`, summed over the queries of a sequence.

    Args:
        name: how it is recorded.
        value: u -> loss.
        log_value: u -> log(loss), accurate where the loss underflows; NaN where the loss is negative.
        log_slope: u -> log|loss'(u)|.
        slope_sign: u -> sign of loss'(u).
        log_rise: (u, drop > 0) -> log(loss(u - drop) - loss(u)).
    """

    value: Elementwise
    log_value: Elementwise
    log_slope: Elementwise
    slope_sign: Elementwise
    log_rise: Callable[[Array, Array], Array]

    def objective(self, outputs: Array, y: Array) -> Array:
        return self.mean(y * outputs)

    def log_objective(self, outputs: Array, y: Array) -> Array:
        return self.log_mean(y * outputs)

    def slope(self, outputs: Array, y: Array) -> tuple[Array, Array]:
        margins = y * outputs
        log_slope = self.log_slope(margins) - jnp.log(float(margins.shape[0]))
        scale = finite_scale(jnp.max(log_slope))
        return self.slope_sign(margins) * y * jnp.exp(log_slope - scale), scale

    def of_margins(self, n: int) -> MarginLoss:
        return self

    def accuracy(self, outputs: Array, y: Array) -> Array | None:
        return jnp.mean(jnp.where(y * outputs > 0, 1.0, 0.0))

    def mean(self, margins: Array) -> Array:
        """The objective, of margins (n, ...)."""
        return jnp.sum(self.value(margins)) / margins.shape[0]

    def log_mean(self, margins: Array) -> Array:
        """Its logarithm."""
        logs = self.log_value(margins)
        return jax.nn.logsumexp(logs) - jnp.log(float(logs.shape[0]))

    def excess(self, margin: Array, log_drop: Array, drop_sign: Array) -> tuple[Array, Array]:
        """Sign and log magnitude of `loss(margin - drop) - loss(margin)`, `drop = drop_sign * e^log_drop`.

        Accurate to the last digits however small the drop: below e^-30 the loss is linear in it to 1e-13.
        """
        drop = jnp.exp(log_drop)
        rising = -self.slope_sign(margin) * drop_sign
        start = jnp.where(rising < 0, margin - drop_sign * drop, margin)
        rise = self.log_rise(start, drop)
        return rising, jnp.where(log_drop < LINEAR, log_drop + self.log_slope(margin), rise)

    def check_labels(self, y: np.ndarray, classes: int | None) -> None:
        super().check_labels(y, classes)
        wrong = y[np.abs(y) != 1]
        if wrong.size:
            raise InputError(
                message(
                    f"`loss` {self.name!r} is of the margin y f with labels +1 and -1; `y` holds {wrong.flat[0]:g}.",
                    "loss='half_sum' takes any labels",
                )
            )


@dataclass(frozen=True)
class SquaredLoss(Loss):
    """The sum of squared errors `(output - y)^2`, times 1/2 ("half_sum"), 1/n ("mse_mean") or 1/(2n) ("half_mean")."""

    name: Literal["half_sum", "mse_mean", "half_mean"]

    def factor(self, n: int) -> float:
        """What the sum over n sequences is multiplied by."""
        return REDUCTIONS[self.name](n)

    def objective(self, outputs: Array, y: Array) -> Array:
        return self.factor(y.shape[0]) * jnp.sum((outputs - y) ** 2)

    def log_objective(self, outputs: Array, y: Array) -> Array:
        logs = 2.0 * jnp.log(jnp.abs(outputs - y))
        return jax.nn.logsumexp(logs) + jnp.log(self.factor(y.shape[0]))

    def slope(self, outputs: Array, y: Array) -> tuple[Array, Array]:
        errors = outputs - y
        size = jnp.max(jnp.abs(errors))
        size = jnp.where(size > 0, size, 1.0)
        return errors / size, jnp.log(2.0 * self.factor(y.shape[0])) + jnp.log(size)

    def is_settled(self, outputs: Array, y: Array) -> Array:
        size = jnp.maximum(jnp.max(jnp.abs(outputs)), jnp.max(jnp.abs(y)))
        return jnp.max(jnp.abs(outputs - y)) <= SETTLED * size

    def of_margins(self, n: int) -> MarginLoss:
        return _of_function(_SquaredMargin(self.factor(n) * n), self.name)


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """The mean over sequences of `log sum_c e^(output_c) - output_y`, for outputs (n, C) and classes y."""

    name: str = "cross_entropy"

    def objective(self, outputs: Array, y: Array) -> Array:
        return jnp.mean(jnp.logaddexp(0.0, self._log_odds_against(outputs, y)))

    def log_objective(self, outputs: Array, y: Array) -> Array:
        logs = _log_log1p_exp(self._log_odds_against(outputs, y))
        return jax.nn.logsumexp(logs) - jnp.log(float(logs.shape[0]))

    def slope(self, outputs: Array, y: Array) -> tuple[Array, Array]:
        # By another class the loss rises by its probability; by the right one it falls by that of all others.
        log_probs = jax.nn.log_softmax(outputs, axis=-1)
        right = self._right(outputs, y)
        log_others = jax.nn.logsumexp(jnp.where(right, -jnp.inf, log_probs), axis=-1, keepdims=True)
        log_size = jnp.where(right, log_others, log_probs) - jnp.log(float(outputs.shape[0]))
        scale = finite_scale(jnp.max(log_size))
        return jnp.where(right, -1.0, 1.0) * jnp.exp(log_size - scale), scale

    def accuracy(self, outputs: Array, y: Array) -> Array | None:
        # A tie is a mistake: constant outputs have learned nothing.
        return jnp.mean(jnp.where(self._log_odds_against_best(outputs, y) < 0, 1.0, 0.0))

    def of_margins(self, n: int) -> MarginLoss:
        raise InputError(
            message("`loss` 'cross_entropy' is of several classes; this model has one output.", "loss='logistic'")
        )

    def check_labels(self, y: np.ndarray, classes: int | None) -> None:
        if classes is None:
            self.of_margins(len(y))
        wrong = y[(y != np.floor(y)) | (y < 0) | (y >= (classes or 0))]
        if wrong.size:
            raise InputError(
                message(
                    f"`y` holds {wrong.flat[0]:g}; 'cross_entropy' with {classes} outputs wants classes 0 to "
                    f"{(classes or 0) - 1}.",
                    "al.Sequences(x=, y=) takes such labels",
                )
            )

    def _log_odds_against_best(self, outputs: Array, y: Array) -> Array:
        """Log of the largest probability of a wrong class over that of the right one."""
        right = self._right(outputs, y)
        of_right = jnp.sum(jnp.where(right, outputs, 0.0), axis=-1)
        return jnp.max(jnp.where(right, -jnp.inf, outputs), axis=-1) - of_right

    def _right(self, outputs: Array, y: Array) -> Array:
        return jnp.arange(outputs.shape[-1]) == y[..., None]

    def _log_odds_against(self, outputs: Array, y: Array) -> Array:
        """log of (1 - p_y) / p_y, without subtracting probabilities; the loss is log(1 + e^this)."""
        right = self._right(outputs, y)
        of_right = jnp.sum(jnp.where(right, outputs, 0.0), axis=-1)
        return jax.nn.logsumexp(jnp.where(right, -jnp.inf, outputs), axis=-1) - of_right


Reduction = Literal["half_sum", "mse_mean", "half_mean"]
# What the sum of squared errors of n sequences is multiplied by.
REDUCTIONS: dict[Reduction, Callable[[int], float]] = {
    "half_sum": lambda n: 0.5,
    "mse_mean": lambda n: 1.0 / n,
    "half_mean": lambda n: 0.5 / n,
}


def _log_expm1(u: Array) -> Array:
    return u + jnp.log(-jnp.expm1(-u))


def _log_log1p_exp(u: Array) -> Array:
    """log(log(1 + e^u)); for u < -37 that is u to the last digit."""
    return jnp.where(u < -37.0, u, jnp.log(jnp.logaddexp(0.0, jnp.maximum(u, -38.0))))


def _minus_one(u: Array) -> Array:
    return -jnp.ones_like(u)


@dataclass(frozen=True, eq=False)
class _FunctionLoss(MarginLoss):
    function: Callable[[Array], Array]

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
        return isinstance(other, _FunctionLoss) and self.function == other.function

    def __hash__(self) -> int:
        return hash(self.function)

    def describe(self) -> Callable[[Array], Array]:
        """What it is known by in the record of a run."""
        return self.function


@dataclass(frozen=True)
class _SquaredMargin:
    """`factor (1 - u)^2`, which is `factor (output - y)^2` for labels +1 and -1."""

    factor: float

    def __call__(self, u: Array) -> Array:
        return self.factor * (1.0 - u) ** 2


def _hinge(u: Array) -> Array:
    return jnp.maximum(0.0, 1.0 - u)


def _of_function(function: Callable[[Array], Array], name: str) -> MarginLoss:
    """A loss from a function of one margin."""

    def everywhere(of_one: Callable[[Array], Array]) -> Elementwise:
        return lambda u: jax.vmap(of_one)(jnp.ravel(u)).reshape(jnp.shape(u))

    value, slope = everywhere(function), everywhere(jax.grad(function))
    return _FunctionLoss(
        name=name,
        value=value,
        log_value=lambda u: jnp.log(value(u)),
        log_slope=lambda u: jnp.log(jnp.abs(slope(u))),
        slope_sign=lambda u: jnp.sign(slope(u)),
        log_rise=lambda u, drop: jnp.log(value(u - drop) - value(u)),
        function=function,
    )


LOGISTIC = MarginLoss(
    name="logistic",
    value=lambda u: jnp.logaddexp(0.0, -u),
    log_value=lambda u: _log_log1p_exp(-u),
    log_slope=lambda u: -jnp.logaddexp(0.0, u),
    slope_sign=_minus_one,
    log_rise=lambda u, drop: _log_log1p_exp(_log_expm1(drop) - jnp.logaddexp(0.0, u)),
)
EXPONENTIAL = MarginLoss(
    name="exponential",
    value=lambda u: jnp.exp(-u),
    log_value=lambda u: -u,
    log_slope=lambda u: -u,
    slope_sign=_minus_one,
    log_rise=lambda u, drop: _log_expm1(drop) - u,
)
CORRELATION = MarginLoss(
    name="correlation",
    value=lambda u: -u,
    log_value=lambda u: jnp.log(-u),
    log_slope=lambda u: jnp.zeros_like(u),
    slope_sign=_minus_one,
    log_rise=lambda u, drop: jnp.log(drop),
)
HINGE = _of_function(_hinge, "hinge")
_MARGINS: tuple[MarginLoss, ...] = (LOGISTIC, EXPONENTIAL, CORRELATION, HINGE)
_OTHERS: tuple[Loss, ...] = (*(SquaredLoss(name) for name in REDUCTIONS), CrossEntropy())
LOSSES: dict[str, Loss] = {loss.name: loss for loss in (*_MARGINS, *_OTHERS)}
LossLike: TypeAlias = str | Loss | Callable[[Array], Array]


def as_loss(loss: LossLike) -> Loss:
    """A loss by name, as it is, or from your own function of one margin written with `jax.numpy`.

    >>> as_loss("mse_mean").objective(jnp.array([1.0, 3.0]), jnp.array([0.0, 1.0])).item()
    2.5
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise InputError(message(f"`loss` is {loss!r}; wanted one of {', '.join(LOSSES)}, or a function."))
        return LOSSES[loss]
    if not callable(loss):
        raise InputError(message(f"`loss` is {shown(loss)}; wanted a name or a function of the margin."))
    check_hashable("loss", loss)
    return _of_function(loss, getattr(loss, "__name__", "user"))
