"""The model on `Tokens` and NumPy arrays: loss, excess loss, attention weights and gradient at given weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import finite_array, flag, instance
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import AttentionModel, Problem, ScaledGradient, make_problem
from attnlab.models.extremes import logits_overflow, prepared
from attnlab.models.functions import check_functions
from attnlab.models.heads import Head, Linear, as_head
from attnlab.models.losses import Loss, as_loss
from attnlab.models.powers import check_finite
from attnlab.models.precision import in_float64

HeadLike = str | Head | Callable[[Any], Any]
LossLike = str | Loss | Callable[[Any], Any]


def check_weights(
    weights: Mapping[str, ArrayLike] | ArrayLike, tokens: Tokens, argument: str = "weights"
) -> dict[str, Array]:
    """Weights by name, W or K and Q, perhaps with u: finite, of right shape, with the trial axis of `tokens`."""
    instance("tokens", tokens, Tokens, "al.Tokens", "al.Tokens(x=, z=, y=, v=)")
    named = dict(weights) if isinstance(weights, Mapping) else {"W": weights}
    if set(named) - {"u"} not in ({"W"}, {"K", "Q"}):
        given = sorted(map(str, named))
        raise InputError(
            message(f"`{argument}` are named {given}; wanted W, or K and Q, perhaps with the head vector u.")
        )
    lead = () if tokens.trials is None else (tokens.trials,)
    d, checked = tokens.d, {}
    arrays = {name: finite_array(name, given) for name, given in named.items()}
    rank = arrays["K"].shape[-1] if "K" in arrays and arrays["K"].ndim else 0
    for name, value in arrays.items():
        wanted = {"W": (d, d), "K": (d, rank), "Q": (d, rank), "u": (d,)}[name]
        if value.shape not in (wanted, lead + wanted):
            per_trial = f", or {lead + wanted}" if lead else ""
            raise InputError(message(f"`{name}` has shape {value.shape}; wanted {wanted}{per_trial}."))
        if 0 in value.shape:
            raise InputError(message(f"`{name}` has shape {value.shape}; wanted at least one column."))
        checked[name] = np.array(np.broadcast_to(value, lead + wanted))
    return checked


def attention_model(
    tokens: Tokens, params: dict[str, Array], loss: LossLike, head: HeadLike
) -> tuple[AttentionModel, Problem]:
    """The layer that such weights belong to, and its data."""
    head = as_head(head)
    return _model(params, loss, head), make_problem(_with_head_vector(tokens, params, head), head)


def _prepared(
    tokens: Tokens, params: dict[str, Array], loss: LossLike, head: HeadLike
) -> tuple[AttentionModel, Problem]:
    """The same, for data and weights of any scale."""
    head = as_head(head)
    model = _model(params, loss, head)
    check_functions(tokens, as_loss(loss), head)
    model, problem = prepared(model, _with_head_vector(tokens, params, head), head, params)
    overflow = logits_overflow(problem, params)
    if overflow is not None and np.any(overflow):
        raise InputError(
            message("The logits x W z of `tokens` at `weights` overflow: some are beyond 1.8e308.", "smaller weights")
        )
    return model, problem


def _model(params: dict[str, Array], loss: LossLike, head: Head) -> AttentionModel:
    parameterization = "W" if "W" in params else "KQ"
    return AttentionModel.of(parameterization, as_loss(loss), head, train_head="u" in params)


def _with_head_vector(tokens: Tokens, params: Mapping[str, Array], head: Head) -> Tokens:
    """Scores need some `v`; where the trained head is the only one, it is that."""
    if tokens.v is not None or "u" not in params or not isinstance(head, Linear):
        return tokens
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=params["u"], mask=tokens.mask, info=tokens.info)


@partial(jax.jit, static_argnames=("model", "batch"))
def _evaluated(model: AttentionModel, params: Any, problem: Problem, batch: bool) -> tuple[Any, ...]:
    """(objective and its log, sign and log of the excess (None for a trained head), attention weights)."""

    def one(params: Any, problem: Problem) -> tuple[Any, ...]:
        found = model.evaluate(params, problem)
        excess = (None, None) if model.train_head else model.excess(problem, found)
        return model.objective(found), model.log_objective(found), *excess, found.weights.probs

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
    log: bool = False,
) -> Array:
    """The training objective `(1/n) sum_i sum_k loss(y_ik h(o_ik))` at `weights` (W, or {"K": .., "Q": ..}).

    With `log` its logarithm, also where the objective itself is too small or too large for a float; NaN where it is
    negative.
    """
    flag("log", log)
    params = check_weights(weights, tokens)
    model, problem = _prepared(tokens, params, loss, head)
    value, log_value, *_ = _evaluated(model, params, problem, tokens.trials is not None)
    return np.asarray(log_value) if log else _finite("loss", np.asarray(value))


def _finite(name: str, value: Array) -> Array:
    """Refuse a value that is beyond floats; most often its logarithm is not."""
    if not np.isfinite(value).all():
        raise InputError(
            message(f"The {name} at `weights` is not finite: beyond 1.8e308, or not a number.", "log=True")
        )
    return value


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
    flag("log", log)
    params = check_weights(weights, tokens)
    model, problem = _prepared(tokens, params, loss, head)
    if model.train_head:
        raise InputError(message("The excess loss is measured at a fixed head; `weights` holds a trained `u`."))
    _, _, sign, log_size, _ = map(np.asarray, _evaluated(model, params, problem, tokens.trials is not None))
    if log:
        known = (sign < 0) | np.isneginf(log_size) | np.isfinite(log_size)
        _finite("excess_loss", np.where(known & ~np.isnan(sign), 0.0, np.nan))
        return np.where(sign < 0, np.nan, log_size)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        value = sign * np.exp(log_size)
    return _finite("excess_loss", value)


@in_float64
def attention(tokens: Tokens, weights: Mapping[str, ArrayLike] | ArrayLike) -> Array:
    """Attention weights softmax(x W z), shape (..., n, T) or (..., n, K, T); exact zeros where masked."""
    params = check_weights(
        {k: v for k, v in weights.items() if k != "u"} if isinstance(weights, Mapping) else weights, tokens
    )
    anyhead = Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=np.zeros(tokens.d), mask=tokens.mask)
    model, problem = _prepared(anyhead, params, "correlation", "linear")
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
    model, problem = _prepared(tokens, params, loss, head)
    scaled = _sloped(model, params, problem, tokens.trials is not None)
    check_finite("gradient", scaled.mantissa.values())
    to_numpy = {k: np.asarray(v) for k, v in scaled.mantissa.items()}
    return to_numpy, {k: np.asarray(v) for k, v in scaled.log_scale.items()}
