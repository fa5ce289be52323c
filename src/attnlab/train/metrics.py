"""What is measured at a recorded step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.errors import InputError, message
from attnlab.models.attention import AttentionModel, Evaluation, Params, Problem, ScaledGradient
from attnlab.models.functions import call_metrics
from attnlab.optim.rule import log_norm, scaled, total_log_norm
from attnlab.train.alignment import misalignment_of_units, unit


class View(NamedTuple):
    """What a metric of your own sees: one trial at one recorded step.

    W is always there (K Q^T when those are trained). `logits` and `probs` have shape (n, K, T), `margins` (n, K),
    with K = 1 for a single query.
    """

    params: Params
    W: Array
    logits: Array
    probs: Array
    margins: Array


UserMetrics = Mapping[str, Callable[[View], Any]]


def product(params: Params) -> Array:
    """W, or K Q^T."""
    return params["W"] if "W" in params else params["K"] @ params["Q"].T


def measure(
    model: AttentionModel,
    problem: Problem,
    params: Params,
    gradient: ScaledGradient,
    evaluation: Evaluation,
    update: Params,
    tracked: Array,
    targets: dict[str, Array],
    user: tuple[tuple[str, Callable[[View], Any]], ...],
) -> dict[str, Any]:
    """All metrics of one trial.

    | name | meaning |
    |---|---|
    | `loss`, `log_loss` | the objective, and its logarithm (also where it underflows) |
    | `excess_loss`, `log_excess_loss` | less the loss with all attention on the best tokens (fixed head only) |
    | `norm`, `norm_K`, `norm_Q`, `norm_u` | Frobenius norms; `norm` is that of W or K Q^T |
    | `log_gradient_norm` | over all parameters |
    | `step_length`, `log_step_size` | length of the next step, and log of its ratio to the gradient norm |
    | `attention`, `attention_min` | weight of the tracked tokens: mean and least over queries |
    | `top_attention`, `log_off_attention` | mean largest weight; log of the most a query gives to its others |
    | `margin` | least logit lead of a tracked token over a visible other one |
    | `cosine_NAME`, `misalignment_NAME` | direction of W (or of u, for a vector) against each target |
    """
    w, frame = evaluation.weights, problem.frame
    W = product(params) if frame is None else frame.row(params["W"])
    is_tracked = jnp.arange(w.probs.shape[-1]) == tracked[..., None]
    at_tracked = jnp.sum(jnp.where(is_tracked, w.probs, 0.0), axis=-1)
    lead = jnp.sum(jnp.where(is_tracked, evaluation.logits, 0.0), axis=-1, keepdims=True) - evaluation.logits
    log_off = jax.nn.logsumexp(jnp.where(w.top, -jnp.inf, w.log_probs), axis=-1)
    gradient_norm = total_log_norm(gradient.mantissa, gradient.log_scale)
    length = total_log_norm(*scaled(update, None))
    found = {
        "loss": model.objective(evaluation),
        "log_loss": model.log_objective(evaluation),
        "norm": _norm(W),
        **{f"norm_{name}": _norm(p) for name, p in params.items() if name != "W"},
        "log_gradient_norm": gradient_norm,
        "step_length": jnp.exp(length),
        "log_step_size": jnp.where(jnp.isneginf(gradient_norm), -jnp.inf, length - gradient_norm),
        "attention": jnp.mean(at_tracked),
        "attention_min": jnp.min(at_tracked),
        "top_attention": jnp.mean(jnp.max(w.probs, axis=-1)),
        "log_off_attention": jnp.max(log_off),
        "margin": jnp.min(jnp.where(is_tracked, jnp.inf, lead)),
    }
    if not model.train_head:
        sign, log_size = model.excess(problem, evaluation)
        found["excess_loss"] = sign * jnp.exp(log_size)
        found["log_excess_loss"] = jnp.where(sign < 0, jnp.nan, log_size)
    for name, target in targets.items():
        subject = W if target.ndim == 2 else params["u"]
        apart = misalignment_of_units(jnp, unit(jnp, jnp.atleast_2d(subject)), jnp.atleast_2d(target))
        found[f"misalignment_{name}"] = apart
        found[f"cosine_{name}"] = 1.0 - apart
    if frame is not None and user:
        W = frame.matrix(params["W"])
        params = {**params, "W": W}
    view = View(params, W, evaluation.logits, w.probs, evaluation.margins)
    check_names(user, found)
    return found | call_metrics(user, view)


def check_names(user: tuple[tuple[str, Callable[..., Any]], ...], found: Mapping[str, Any]) -> None:
    """Refuse a metric that is recorded already."""
    taken = [name for name, _ in user if name in found]
    if taken:
        raise InputError(message(f"`metrics` names {taken[0]!r}, which is recorded already.", "choose another name"))


def _norm(array: Array) -> Array:
    return jnp.exp(log_norm(*scaled(array, None)))
