"""The model on `Tokens` and NumPy arrays: loss, excess loss, attention weights and gradient at given weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import real_array
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import AttentionModel, Problem, ScaledGradient, make_problem
from attnlab.models.heads import Head, Linear, as_head
from attnlab.models.losses import Loss, as_loss
from attnlab.models.precision import in_float64

HeadLike = str | Head | Callable[[Any], Any]
LossLike = str | Loss | Callable[[Any], Any]


def check_weights(weights: Mapping[str, ArrayLike] | ArrayLike, tokens: Tokens) -> dict[str, Array]:
    """Weights by name, W or K and Q, perhaps with u: finite, of right shape, with the trial axis of `tokens`."""
    named = dict(weights) if isinstance(weights, Mapping) else {"W": weights}
    if set(named) - {"u"} not in ({"W"}, {"K", "Q"}):
        raise InputError(
            message(f"The weights are named {sorted(named)}; wanted W, or K and Q, perhaps with the head vector u.")
        )
    lead = () if tokens.trials is None else (tokens.trials,)
    d, checked = tokens.d, {}
    rank = np.shape(named["K"])[-1] if "K" in named and np.ndim(named["K"]) else 0
    for name, given in named.items():
        wanted = {"W": (d, d), "K": (d, rank), "Q": (d, rank), "u": (d,)}[name]
        value = real_array(name, given)
        if value.shape not in (wanted, lead + wanted):
            raise InputError(message(f"`{name}` has shape {value.shape}; wanted {wanted}, or {lead + wanted}."))
        if 0 in value.shape:
            raise InputError(message(f"`{name}` has shape {value.shape}; wanted at least one column."))
        if not np.isfinite(value).all():
            raise InputError(message(f"`{name}` holds NaN or infinite entries; all must be finite."))
        checked[name] = np.array(np.broadcast_to(value, lead + wanted))
    return checked


def attention_model(
    tokens: Tokens, params: dict[str, Array], loss: LossLike, head: HeadLike
) -> tuple[AttentionModel, Problem]:
    """The layer that such weights belong to, and its data."""
    head = as_head(head)
    parameterization = "W" if "W" in params else "KQ"
    model = AttentionModel.of(parameterization, as_loss(loss), head, train_head="u" in params)
    return model, make_problem(_with_head_vector(tokens, params, head), head)


def _with_head_vector(tokens: Tokens, params: Mapping[str, Array], head: Head) -> Tokens:
    """Scores need some `v`; where the trained head is the only one, it is that."""
    if tokens.v is not None or "u" not in params or not isinstance(head, Linear):
        return tokens
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=params["u"], mask=tokens.mask, info=tokens.info)


@partial(jax.jit, static_argnames=("model", "batch"))
def _evaluated(model: AttentionModel, params: Any, problem: Problem, batch: bool) -> tuple[Any, ...]:
    """(objective, sign and log of the excess (None for a trained head), attention weights)."""

    def one(params: Any, problem: Problem) -> tuple[Any, ...]:
        found = model.evaluate(params, problem)
        excess = (None, None) if model.train_head else model.excess(problem, found)
        return model.objective(found), *excess, found.weights.probs

    return (jax.vmap(one) if batch else one)(params, problem)


@partial(jax.jit, static_argnames=("model", "batch"))
def _sloped(model: AttentionModel, params: Any, problem: Problem, batch: bool) -> ScaledGradient:
    def one(params: Any, problem: Problem) -> ScaledGradient:
        return model.gradient(params, problem)[0]

    return (jax.vmap(one) if batch else one)(params, problem)


@in_float64
def loss(
    tokens: Tokens,
    weights: Mapping[str, ArrayLike] | ArrayLike,
    *,
    loss: LossLike = "logistic",
    head: HeadLike = "linear",
) -> Array:
    """The training objective `(1/n) sum_i sum_k loss(y_ik h(o_ik))` at `weights` (W, or {"K": .., "Q": ..})."""
    params = check_weights(weights, tokens)
    model, problem = attention_model(tokens, params, loss, head)
    return np.asarray(_evaluated(model, params, problem, tokens.trials is not None)[0])


@in_float64
def excess_loss(
    tokens: Tokens,
    weights: Mapping[str, ArrayLike] | ArrayLike,
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
    params = check_weights(weights, tokens)
    model, problem = attention_model(tokens, params, loss, head)
    if model.train_head:
        raise InputError(message("The excess loss is measured at a fixed head; `weights` holds a trained `u`."))
    _, sign, log_size, _ = map(np.asarray, _evaluated(model, params, problem, tokens.trials is not None))
    return np.where(sign < 0, np.nan, log_size) if log else sign * np.exp(log_size)


@in_float64
def attention(tokens: Tokens, weights: Mapping[str, ArrayLike] | ArrayLike) -> Array:
    """Attention weights softmax(x W z), shape (..., n, T) or (..., n, K, T); exact zeros where masked."""
    params = check_weights(
        {k: v for k, v in weights.items() if k != "u"} if isinstance(weights, Mapping) else weights, tokens
    )
    anyhead = Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=np.zeros(tokens.d), mask=tokens.mask)
    model, problem = attention_model(anyhead, params, "correlation", "linear")
    probs = np.asarray(_evaluated(model, params, problem, tokens.trials is not None)[-1])
    return probs if tokens.K is not None else probs[..., 0, :]


@in_float64
def gradient(
    tokens: Tokens,
    weights: Mapping[str, ArrayLike] | ArrayLike,
    *,
    loss: LossLike = "logistic",
    head: HeadLike = "linear",
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
    params = check_weights(weights, tokens)
    model, problem = attention_model(tokens, params, loss, head)
    scaled = _sloped(model, params, problem, tokens.trials is not None)
    to_numpy = {k: np.asarray(v) for k, v in scaled.mantissa.items()}
    return to_numpy, {k: np.asarray(v) for k, v in scaled.log_scale.items()}
