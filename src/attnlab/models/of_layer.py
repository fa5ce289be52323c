"""One attention layer on `Tokens`, by its weights alone: loss, excess loss, attention weights and gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attnlab.checks import flag
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import Attention, check_weights
from attnlab.models.heads import HeadLike
from attnlab.models.losses import LossLike
from attnlab.models.powers import check_finite
from attnlab.models.precision import in_float64
from attnlab.models.scaled import GivenWeights


def loss(
    tokens: Tokens,
    weights: GivenWeights,
    *,
    loss: LossLike = "logistic",
    head: HeadLike = "linear",
    log: bool = False,
) -> Array:
    """The training objective `(1/n) sum_i sum_k loss(y_ik h(o_ik))` at `weights` (W, or {"K": .., "Q": ..}).

    With `log` its logarithm, also where the objective itself is too small or too large for a float; NaN where it is
    negative.
    """
    return Attention.of_weights(weights, head).loss(tokens, weights, loss=loss, log=log)


@in_float64
def excess_loss(
    tokens: Tokens,
    weights: GivenWeights,
    *,
    loss: LossLike = "logistic",
    head: HeadLike = "linear",
    log: bool = False,
) -> Array:
    """The objective less its value with all attention on the best tokens, without cancellation; or its logarithm.

    For the linear head and the logistic loss each query adds `log1p(expm1(delta) / (1 + e^gamma))` with
    `delta = sum_t s_t (gamma_best - gamma_t)`. Exact to rounding for linear and concave heads, to 1e-11 for others.
    A head that prefers mixtures can do better than any single token; then the excess is negative, its log NaN.
    """
    flag("log", log)
    model = Attention.of_weights(weights, head)
    if model.train_head:
        raise InputError(message("The excess loss is measured at a fixed head; `weights` holds a trained `u`."))
    sign, log_size = model.excess(tokens, weights, loss)
    if log:
        below = (sign < 0) | np.isneginf(log_size)
        check_finite("excess_loss", [sign, np.where(below, 0.0, log_size)], "log=True")
        return np.where(sign < 0, np.nan, log_size)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        value = sign * np.exp(log_size)
    check_finite("excess_loss", [value], "log=True")
    return value


def attention(tokens: Tokens, weights: GivenWeights) -> Array:
    """Attention weights softmax(x W z), shape (..., n, T) or (..., n, K, T); exact zeros where masked."""
    named: Any = weights
    if isinstance(weights, Mapping):
        named = {name: weight for name, weight in weights.items() if name != "u"}
    check_weights(named, tokens)
    return Attention.of_weights(named).attention(replace(tokens, v=np.zeros(tokens.d)), named)


def gradient(
    tokens: Tokens, weights: GivenWeights, *, loss: LossLike = "logistic", head: HeadLike = "linear"
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The gradient of the objective as (mantissa, log_scale), one array per parameter.

    The gradient is `mantissa * exp(log_scale)`; the mantissa never underflows, even where attention has saturated
    so far that the gradient itself is below the smallest float.

    >>> import numpy as np, attnlab as al
    >>> W = 3000.0 * np.array([[1.0, 0.0], [0.0, 0.0]])
    >>> mantissa, log_scale = al.models.gradient(al.data.two_tokens(), W)
    >>> mantissa["W"][0, 0], round(float(log_scale["W"]), 4)  # e^-3000 sigmoid(-1)
    (np.float64(-1.0), -3001.3133)
    """
    return Attention.of_weights(weights, head).gradient(tokens, weights, loss=loss)
