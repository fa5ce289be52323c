"""`flow`: gradient flow in logarithmic time, which takes training to t = 1e14 and beyond in a fraction of a second."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import instance, number, shown, whole
from attnlab.data.fingerprint import fingerprint
from attnlab.data.scale import matrix_lengths
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import AttentionModel, Problem, ScaledGradient
from attnlab.models.evaluate import HeadLike, LossLike
from attnlab.models.extremes import logits_overflow, prepared
from attnlab.models.functions import check_functions, check_metrics
from attnlab.models.heads import as_head
from attnlab.models.losses import as_loss
from attnlab.models.precision import in_float64
from attnlab.optim.rule import log_norm, positive
from attnlab.train.firstmotion import FirstMotion
from attnlab.train.flowtrajectory import FlowStatus, FlowTrajectory
from attnlab.train.logtime import EULER, Path, integrate
from attnlab.train.metrics import UserMetrics, View, measure
from attnlab.train.reduction import Coordinates, reduce
from attnlab.train.schedule import record_times
from attnlab.train.start import Init, initial_weights, refuse_overflow, target_directions, tracked_tokens
from attnlab.train.trajectory import library_versions

SECONDS_BETWEEN_LOOKS = 0.5
TOGETHER = 32  # records measured by one call of the compiled program
LONGEST = 600.0  # u at most; e^u times a force must be a float


@dataclass(frozen=True)
class FlowProgress:
    """What `on_step` is told: the trial that is being followed, how far it is, and the seconds spent so far."""

    trial: int
    trials: int
    time: float
    seconds: float


@in_float64
def flow(
    tokens: Tokens,
    *,
    time: float = 1e14,
    parameterization: Literal["W", "KQ"] = "W",
    loss: LossLike = "logistic",
    head: HeadLike = "linear",
    rank: int | None = None,
    init: Init = "uniform",
    init_scale: float = 1.0,
    seed: int = 0,
    record: int | Sequence[float] | None = 10,
    metrics: UserMetrics | None = None,
    targets: ArrayLike | Mapping[str, ArrayLike] | None = None,
    track: ArrayLike | None = None,
    rtol: float = 1e-9,
    atol: float = 1e-10,
    max_steps: int = 20_000,
    on_step: Callable[[FlowProgress], None] | None = None,
) -> FlowTrajectory:
    """Follow gradient flow `dW/dt = -grad L(W)`, the limit of gradient descent with small steps, to time `time`.

    The flow is integrated in log t with an implicit method where it is stiff, in the few coordinates that move, with a
    right-hand side that neither cancels nor underflows. After k steps of size η gradient descent stands at time k η,
    up to an error proportional to η.

    Args:
        tokens: the data; a trial axis makes independent flows, one after the other, each with its own steps.
        time: final time.
        parameterization: "W", or "KQ" for W = K Q^T.
        loss, head, rank, init, init_scale, seed, metrics, targets, track: as for `descend`.
        record: times per decade (log-spaced), or the times to record, or None for none.
        rtol, atol: error allowed per step, relative and absolute, in units of logits. With K and Q that start small
            the absolute one is relative to their start.
        max_steps: of the integrator, per trial. Heads with kinks can hold a flow at a kink, where steps become tiny.
        on_step: called with a `FlowProgress` about twice a second.

    Returns:
        A `FlowTrajectory`. A trial that cannot be followed to the end keeps its last point; `status` says so.

    >>> import numpy as np
    >>> import attnlab as al
    >>> from attnlab.train.flow import flow
    >>> run = flow(al.data.two_tokens(), time=1e30, init="zeros")  # W_11 grows like log t
    >>> run.status.value
    'Every trial reached the final time.'
    >>> bool(abs(run.W[0, 0] - np.log(1e30)) < 2)
    True
    """
    began = clock.perf_counter()
    head_, loss_ = as_head(head), as_loss(loss)
    instance("tokens", tokens, Tokens, "al.Tokens", "al.Tokens(x=, z=, y=, v=)")
    end, (rtol, atol) = positive("time", time), (_tolerance("rtol", rtol), _tolerance("atol", atol))
    max_steps = whole("max_steps", max_steps)
    if on_step is not None and not callable(on_step):
        raise InputError(message(f"`on_step` is {shown(on_step)}; wanted a function of a `FlowProgress`."))
    times, user = record_times(record, end), check_metrics(metrics)
    model = AttentionModel.of(parameterization, loss_, head_)
    check_functions(tokens, loss_, head_)
    start = initial_weights(init, tokens, parameterization, rank=rank, scale=init_scale, seed=seed, train_head=False)
    config = fingerprint(
        {
            "tokens": tokens.digest(), "rule": {"name": "flow", "rtol": rtol, "atol": atol, "max_steps": max_steps},
            "time": end, "parameterization": parameterization, "loss": loss, "head": head_, "rank": rank,
            "init": init, "init_scale": init_scale, "seed": seed, "record": record, "metrics": metrics,
            "targets": targets, "track": track,
        },
        strict=False,
    )  # fmt: skip
    model, problem = prepared(model, tokens, head_, start)
    refuse_overflow(logits_overflow(problem, start))
    setup = _Setup(model, times, end, rtol, atol, max_steps, user)
    per_trial = (problem, start, tracked_tokens(track, tokens, problem))
    single = tokens.trials is None
    trials = tokens.trials or 1
    directions = target_directions(targets, tokens, train_head=False)
    found = []
    for i in range(trials):
        data, weights, followed = per_trial if single else jax.tree.map(lambda a, i=i: a[i], per_trial)
        look = None if on_step is None else _throttled(on_step, i, trials, began)
        found.append(_follow(setup, data, weights, followed, {k: a[i] for k, a in directions.items()}, look))

    def gathered(name: str) -> Any:
        parts = [getattr(each, name) for each in found]
        return jax.tree.map(lambda *a: np.asarray(a[0]) if single else np.stack(a), *parts)

    def without_query_axis(a: np.ndarray, axis: int) -> Any:
        return np.squeeze(a, axis) if tokens.K is None else a

    failures = {i: each.failure for i, each in enumerate(found) if each.failure}
    status = FlowStatus.UNMOVED if any(each.unmoved for each in found) else FlowStatus.FINISHED
    log_weights = gathered("log_weights")
    return FlowTrajectory(
        times=times,
        metrics=gathered("metrics"),
        weights=gathered("weights"),
        initial=start,
        selected=without_query_axis(np.argmax(log_weights, axis=-1), -1),
        attention=without_query_axis(np.exp(log_weights), -2),
        exponent=without_query_axis(gathered("exponent"), -2),
        time=end,
        reached=gathered("reached"),
        status=FlowStatus.INCOMPLETE if failures else status,
        failures=failures,
        steps=gathered("steps"),
        evaluations=gathered("evaluations"),
        jacobians=gathered("jacobians"),
        seconds=clock.perf_counter() - began,
        config=config,
        versions=library_versions(),
    )


class _Setup(NamedTuple):
    """What all trials share."""

    model: AttentionModel
    times: Array
    end: float
    rtol: float
    atol: float
    max_steps: int
    user: tuple[tuple[str, Callable[[View], Any]], ...]


class _Found(NamedTuple):
    """What came out of one trial."""

    metrics: dict[str, Array]
    weights: dict[str, Array]
    log_weights: Array
    exponent: Array
    reached: float
    steps: int
    evaluations: int
    jacobians: int
    failure: str | None
    unmoved: bool  # though the gradient is not zero


def _follow(
    setup: _Setup,
    problem: Problem,
    start: dict[str, Array],
    tracked: Array,
    targets: dict[str, Array],
    on_step: Callable[[float], None] | None,
) -> _Found:
    """Integrate one trial and measure it."""
    model = setup.model
    # The last decade tells which tokens keep their weight.
    stops = np.unique([*setup.times, setup.end / 10.0, setup.end])
    path, moves = _path(setup, problem, start, stops, on_step)
    places = np.searchsorted(stops, setup.times)
    end_weights = path.coordinates.weights(path.y)
    if path.failure is None and not all(np.isfinite(w).all() for w in end_weights.values()):
        path = path._replace(failure="The weights are beyond 1.8e308.")
    log_weights = np.asarray(_log_weights(end_weights, problem, model))
    exponent = np.full_like(log_weights, np.nan)
    if path.failure is None:
        before = path.points[int(np.searchsorted(stops, setup.end / 10.0))]
        earlier = np.asarray(_log_weights(path.coordinates.weights(before), problem, model))
        with np.errstate(invalid="ignore"):
            exponent = np.where(np.isneginf(log_weights), -np.inf, (log_weights - earlier) / np.log(10.0))
    return _Found(
        metrics=_metrics(path, places, problem, tracked, targets, setup),
        weights=end_weights,
        log_weights=log_weights,
        exponent=exponent,
        reached=setup.end if path.failure is None else path.reached,
        steps=path.steps,
        evaluations=path.evaluations,
        jacobians=path.jacobians,
        failure=path.failure,
        unmoved=moves and all(np.array_equal(end_weights[name], w) for name, w in start.items()),
    )


def _path(
    setup: _Setup,
    problem: Problem,
    start: dict[str, Array],
    stops: Array,
    on_step: Callable[[float], None] | None,
) -> tuple[Path, bool]:
    """The way of one trial through the times `stops`, `reached` in time; and whether its gradient is not zero."""
    logits, gradient, log_norms = _first_look(start, problem, setup.model)
    shown_logits = np.where(True if problem.visible is None else problem.visible, logits, 0.0)
    if not np.isfinite(shown_logits).all():
        zero = ScaledGradient({name: np.zeros_like(w) for name, w in start.items()}, dict.fromkeys(start, 0.0))
        failure = "The logits overflow at the start."
        return _straight(start, zero, stops)._replace(points=[], y=np.zeros(1), reached=0.0, failure=failure), False
    coordinates = reduce(problem, start, np.asarray(logits))
    log_rate = _log_rate(coordinates, start, {k: float(v) for k, v in log_norms.items()})
    log_constant = -log_rate
    with np.errstate(divide="ignore"):
        ends = np.logaddexp(0.0, np.log(stops) - log_constant)
    if ends[-1] > LONGEST:
        raise InputError(
            message(f"`time` is {setup.end:g}, e^{ends[-1]:.0f} times what the first motion takes; e^{LONGEST:.0f} is "
                    "the most float64 can follow.", "lower `time`, or give smaller tokens")
        )  # fmt: skip
    moves = bool(np.isfinite(log_constant))
    log_constant = log_constant if moves else 0.0
    if problem.powers is not None and ends[-1] <= EULER:
        return _straight(start, gradient, stops), moves

    def time_of(u: float) -> float:
        return float(np.exp(log_constant + np.log(np.expm1(u)))) if u > 0.0 else 0.0

    path = integrate(
        coordinates,
        problem,
        setup.model,
        log_constant + 2.0 * coordinates.log_scale,
        ends,
        rtol=setup.rtol,
        atol=setup.atol * _smallness(coordinates),
        max_steps=setup.max_steps,
        on_step=None if on_step is None else lambda u: on_step(time_of(u)),
    )
    return path._replace(reached=time_of(path.reached)), moves


def _straight(start: dict[str, Array], gradient: ScaledGradient, stops: Array) -> Path:
    """The flow where logits move by less than 1e-9 in all: in the direction in which it starts."""
    motion = FirstMotion(
        start,
        {name: np.asarray(m) for name, m in gradient.mantissa.items()},
        {name: float(scale) for name, scale in gradient.log_scale.items()},
    )
    return Path(motion, [np.array([stop]) for stop in stops], stops[-1:], float(stops[-1]), 0, 1, 0, None)


def _metrics(
    path: Path, places: np.ndarray, problem: Problem, tracked: Array, targets: dict[str, Array], setup: _Setup
) -> dict[str, Array]:
    """Metrics at the recorded points, NaN at those that were not reached."""
    if not places.size:
        return {}
    points = np.stack([path.points[i] if i < len(path.points) else path.y for i in places])
    stacked = path.coordinates.weights(points)
    found = []
    for first in range(0, len(places), TOGETHER):
        # The last block is filled up, so that one compiled program serves any number of records.
        pick = np.minimum(np.arange(first, first + TOGETHER), len(places) - 1)
        block = {name: w[pick] for name, w in stacked.items()}
        found.append(_measured(problem, block, tracked, targets, model=setup.model, user=setup.user))
    joined = {name: np.concatenate([part[name] for part in found])[: len(places)] for name in found[0]}
    reached = places < len(path.points)

    def only_reached(a: Any) -> Array:
        a = np.asarray(a, dtype=np.float64)
        return np.where(reached.reshape(-1, *[1] * (a.ndim - 1)), a, np.nan)

    return {name: only_reached(a) for name, a in joined.items()}


@partial(jax.jit, static_argnames=("model", "user"))
def _measured(
    problem: Problem,
    params: dict[str, Any],
    tracked: Any,
    targets: dict[str, Any],
    *,
    model: AttentionModel,
    user: tuple[tuple[str, Callable[[View], Any]], ...],
) -> dict[str, Any]:
    def one(params: dict[str, Any]) -> dict[str, Any]:
        gradient, evaluation = model.gradient(params, problem)
        no_step = jax.tree.map(jnp.zeros_like, params)
        found = measure(model, problem, params, gradient, evaluation, no_step, tracked, targets, user)
        return {name: value for name, value in found.items() if name not in ("step_length", "log_step_size")}

    return jax.vmap(one)(params)


@partial(jax.jit, static_argnames="model")
def _first_look(
    params: dict[str, Any], problem: Problem, model: AttentionModel
) -> tuple[Any, ScaledGradient, dict[str, Any]]:
    """Logits, the gradient, and the logarithm of its norm in every parameter."""
    gradient, evaluation = model.gradient(params, problem)
    return evaluation.logits, gradient, jax.tree.map(log_norm, gradient.mantissa, gradient.log_scale)


@partial(jax.jit, static_argnames="model")
def _log_weights(params: dict[str, Any], problem: Problem, model: AttentionModel) -> Any:
    return model.evaluate(params, problem).weights.log_probs


def _log_rate(coordinates: Coordinates, start: dict[str, Array], log_gradient: dict[str, float]) -> float:
    """log of the rate at which logits, or small K and Q, move at first; -inf if nothing moves."""
    if "W" in start:
        return log_gradient["W"] + coordinates.log_scale
    with np.errstate(divide="ignore"):
        log_K, log_Q = (float(np.log(matrix_lengths(start[name]))) for name in "KQ")
    of_logits = 2.0 * coordinates.log_scale + max(log_gradient["K"] + log_Q, log_gradient["Q"] + log_K)
    return max(of_logits, max(log_gradient.values()) - max(log_K, log_Q))


def _smallness(coordinates: Coordinates) -> float:
    """K and Q that start small grow by a factor, and so does an error: it must be small beside the start."""
    size = float(np.max(np.abs(coordinates.start), initial=0.0))
    return min(1.0, size) if size > 0.0 else 1.0


def _tolerance(name: str, value: Any) -> float:
    return number(name, value, least=1e-13, most=0.1)


def _throttled(
    on_step: Callable[[FlowProgress], None], trial: int, trials: int, began: float
) -> Callable[[float], None]:
    last = [clock.perf_counter()]

    def look(time: float) -> None:
        now = clock.perf_counter()
        if now - last[0] >= SECONDS_BETWEEN_LOOKS:
            last[0] = now
            on_step(FlowProgress(trial, trials, time, now - began))

    return look
