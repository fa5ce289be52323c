"""Networks on squared errors as a job for the loop, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from attnlab.checks import number, shown, whole
from attnlab.data.sequences import Sequences
from attnlab.errors import InputError, message
from attnlab.models.attention import Params, ScaledGradient
from attnlab.models.functions import call_metrics
from attnlab.models.network import Network
from attnlab.models.powers import check_range
from attnlab.models.regression import RegressionEvaluation, RegressionModel, RegressionProblem
from attnlab.optim.rule import scaled, total_log_norm
from attnlab.train.attention import with_trials
from attnlab.train.loop import Job
from attnlab.train.metrics import UserMetrics, check_names
from attnlab.train.start import Init


class NetworkView(NamedTuple):
    """What a metric of your own sees: one trial at one recorded step."""

    params: Params  # the weights of the network
    x: Array  # (n, T, d)
    outputs: Array  # (n,)
    errors: Array  # (n,) outputs less labels
    hidden: Array  # (n, m)
    attention: Array  # (n, T, T)


class Compared(NamedTuple):
    """What the records of a trial compare with."""

    start: Any  # weights at step 0
    hidden: Any  # (n, m) at step 0
    test: Any  # (x, y) of other sequences, or None


def network_job(
    data: Sequences,
    network: Network,
    *,
    targets: Any,
    track: ArrayLike | None,
    test: Sequences | None,
    loss: Any,
    init: Init | None,
    init_scale: float,
    seed: int,
    metrics: UserMetrics | None,
) -> Job:
    """A network with these options; see `descend`."""
    for name, given in (
        ("targets", targets is not None),
        ("track", track is not None),
        ("init_scale", not (np.ndim(init_scale) == 0 and init_scale == 1)),
    ):
        if given:
            raise InputError(message(f"`{name}` is not for a network.", "init= takes its weights, metrics= your own"))
    if isinstance(init, str):
        raise InputError(
            message(f"`init` is {shown(init)}; a network starts from its own law, or from given weights.",
                    "al.models.Encoder(width, init='he')")
        )  # fmt: skip
    core = RegressionModel.of(network, loss)
    number("init_scale", init_scale)
    whole("seed", seed, 0)
    check_range("tokens", data.x, 2)
    start = network.initial(data, seed) if init is None else network.check(data, init, "init")  # type: ignore[arg-type]
    scale = network.held(data.T, data.d)
    problem = with_trials(RegressionProblem(data.x, data.y), data)
    own = with_trials(start, data)
    other = None
    if test is not None:
        test = Sequences.of(test, "test")
        if (test.trials, test.T, test.d) != (data.trials, data.T, data.d):
            raise InputError(message(f"`test` is {test!r}; wanted sequences with the T, d and trials of {data!r}."))
        check_range("test", test.x, 2)
        other = with_trials((test.x, test.y), data)
    params = {name: w / scale[name] for name, w in own.items()}
    began = _evaluated(params, problem, core)
    hidden = np.asarray(began.hidden)
    if not np.isfinite(began.outputs).any():
        raise InputError(message("`init` makes every output overflow at the start.", "smaller weights"))

    def selected(params: dict[str, Any]) -> np.ndarray:
        attention = np.asarray(_evaluated(params, problem, core).attention)
        return attention.argmax(-1) if attention.size else np.zeros(attention.shape[:-1], dtype=np.intp)

    return Job(
        model=core, measure=measure, problem=problem, params=params, tracked=Compared(own, hidden, other), targets={},
        start=start, weights=lambda params: {name: scale[name] * p for name, p in params.items()}, selected=selected,
        exact=() if network.parameterization == "standard" else tuple(start),
    )  # fmt: skip


@partial(jax.jit, static_argnums=2)
def _evaluated(params: Any, problem: RegressionProblem, model: RegressionModel) -> RegressionEvaluation:
    return jax.vmap(model.evaluate)(params, problem)


def measure(
    model: RegressionModel,
    problem: RegressionProblem,
    params: Params,
    gradient: ScaledGradient,
    evaluation: RegressionEvaluation,
    update: Params,
    tracked: Compared,
    targets: dict[str, Params],
    user: tuple[tuple[str, Callable[[NetworkView], Any]], ...],
) -> dict[str, Any]:
    """All metrics of one trial, of the weights that are trained; norms are Frobenius norms.

    | name | meaning |
    |---|---|
    | `loss`, `log_loss` | the objective, and its logarithm (also where it underflows) |
    | `norm`, `moved` | of all weights, and of their way from the start |
    | `moved_NAME` | the way of one matrix from its start |
    | `hidden_moved` | the way of the hidden layer F_pre (n, m) |
    | `relative_step` | length of the next step, over the norm of the start; NaN if that is 0 |
    | `log_gradient_norm`, `step_length` | of the parameters as they are held; length of their next step |
    | `test_loss` | on the test sequences, if there are any |
    """
    own, names = model.weights(params, problem.x), [k for k in params if k not in model.network.frozen]
    scale = model.network.held(*problem.x.shape[-2:])
    away = {k: _norm(own[k] - tracked.start[k]) for k in names}
    begun = _total([_norm(tracked.start[k]) for k in names])
    found = {
        "loss": model.objective(evaluation),
        "log_loss": model.log_objective(evaluation),
        "norm": _total([_norm(own[k]) for k in names]),
        "moved": _total(list(away.values())),
        **{f"moved_{k}": a for k, a in away.items()},
        "hidden_moved": _norm(evaluation.hidden - tracked.hidden),
        "relative_step": _total([_norm(scale[k] * update[k]) for k in names]) / jnp.where(begun > 0, begun, jnp.nan),
        "log_gradient_norm": total_log_norm(gradient.mantissa, gradient.log_scale),
        "step_length": jnp.exp(total_log_norm(*scaled(update, None))),
    }
    if tracked.test is not None:
        x, y = tracked.test
        found["test_loss"] = model.objective(model.evaluate(params, RegressionProblem(x, y)))
    check_names(user, found)
    view = NetworkView(own, problem.x, evaluation.outputs, evaluation.errors, evaluation.hidden, evaluation.attention)
    return found | call_metrics(user, view)


def _norm(array: Array) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(array)))


def _total(norms: list[Array]) -> Array:
    return _norm(jnp.stack(norms))
