"""`flow`: gradient flow in logarithmic time, which takes training to t = 1e14 and beyond in a fraction of a second."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import number, shown, whole
from attnlab.data.families import Seed
from attnlab.data.fingerprint import fingerprint
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.models.firstmotion import FirstMotion
from attnlab.models.functions import check_metrics
from attnlab.models.losses import LossLike, as_loss
from attnlab.models.model import Data, Init, Model, Targets
from attnlab.models.precision import in_float64
from attnlab.models.problem import Objective, Seen
from attnlab.models.scaled import Params, Tree, Value
from attnlab.optim.rule import positive
from attnlab.train.flowtrajectory import FlowStatus, FlowTrajectory
from attnlab.train.job import Job, make_job
from attnlab.train.logtime import EULER, Path, integrate
from attnlab.train.metrics import OF_STEPS, UserFunctions, UserMetrics, measure
from attnlab.train.options import LayerOptions, the_model
from attnlab.train.schedule import record_times
from attnlab.train.settling import judge_of
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
    tokens: Data,
    *,
    time: float = 1e14,
    model: Model | None = None,
    loss: LossLike | None = None,
    init: Init = None,
    init_scale: float = 1.0,
    seed: Seed = 0,
    record: int | Sequence[float] | np.ndarray | None = 10,
    metrics: UserMetrics | None = None,
    targets: Targets | None = None,
    track: ArrayLike | None = None,
    rtol: float = 1e-9,
    atol: float = 1e-10,
    max_steps: int = 20_000,
    on_step: Callable[[FlowProgress], None] | None = None,
    **options: Unpack[LayerOptions],
) -> FlowTrajectory:
    """Follow gradient flow `dW/dt = -grad L(W)`, the limit of gradient descent with small steps, to time `time`.

    The flow is integrated in log t with an implicit method where it is stiff, with a right-hand side that neither
    cancels nor underflows; that of one attention layer in the few coordinates that move. After k steps of size η
    gradient descent stands at time k η, up to an error proportional to η.

    Args:
        tokens: the data; a trial axis makes independent flows, one after the other, each with its own steps.
        time: final time.
        model: any `al.Model`; None for one attention layer.
        loss, init, init_scale, seed, metrics, targets, track: as for `descend`.
        record: times per decade (log-spaced), or the times to record, or None for none.
        rtol, atol: error allowed per step, relative and absolute; of one attention layer in units of logits, and with
            K and Q that start small the absolute one is relative to their start.
        max_steps: of the integrator, per trial. Heads with kinks can hold a flow at a kink, where steps become tiny;
            models of more than 1500 weights are followed by an explicit method, slow where the flow is stiff.
        on_step: called with a `FlowProgress` about twice a second.
        options: `parameterization`, `head`, `rank`: short for `model=al.models.Attention(...)`.

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
    followed = the_model(model, options)
    smooth = followed.for_flow()
    data = followed.accepts(tokens, "tokens")
    end = positive("time", time)
    rtol, atol = _tolerance("rtol", rtol), _tolerance("atol", atol)
    max_steps = whole("max_steps", max_steps)
    if on_step is not None and not callable(on_step):
        raise InputError(message(f"`on_step` is {shown(on_step)}; wanted a function of a `FlowProgress`."))
    times = record_times(record, end)
    user = check_metrics(metrics)
    usual = followed.usual_loss if loss is None else loss
    job = make_job(
        data,
        smooth,
        as_loss(usual),
        init=init,
        init_scale=init_scale,
        seed=seed,
        targets=targets,
        track=track,
    )
    config = fingerprint(
        {
            "tokens": data.digest(),
            "rule": {"name": "flow", "rtol": rtol, "atol": atol, "max_steps": max_steps},
            "time": end,
            "model": followed,
            "loss": usual,
            "init": init,
            "init_scale": init_scale,
            "seed": seed,
            "record": record,
            "metrics": metrics,
            "targets": targets,
            "track": track,
        },
        strict=False,
    )
    setup = _Setup(job.objective, times, end, rtol, atol, max_steps, user)
    trials = data.trials or 1
    followings = []
    for i in range(trials):
        look = None if on_step is None else _throttled(on_step, i, trials, began)
        followings.append(_follow(setup, _Trial.of(job, i), look))

    def gathered(name: str) -> Tree:
        parts = [getattr(each, name) for each in followings]
        return jax.tree.map(lambda *a: np.asarray(a[0]) if data.trials is None else np.stack(a), *parts)

    failures = {i: each.failure for i, each in enumerate(followings) if each.failure}
    status = FlowStatus.UNMOVED if any(each.unmoved for each in followings) else FlowStatus.FINISHED
    params = jax.tree.map(lambda *a: np.stack(a), *[each.params for each in followings])
    weights = job.weights(params)
    log_attention = gathered("log_attention")
    selected = (
        np.argmax(log_attention, axis=-1) if log_attention.size else np.zeros(log_attention.shape[:-1], dtype=int)
    )
    return FlowTrajectory(
        times=times,
        metrics=gathered("metrics"),
        weights={name: w[0] if data.trials is None else w for name, w in weights.items()},
        initial=job.start,
        selected=followed.as_shown(selected, data, -1),
        attention=followed.as_shown(np.exp(log_attention), data, -2),
        exponent=followed.as_shown(gathered("exponent"), data, -2),
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
        judge=judge_of(data, followed, as_loss(usual)),
    )


class _Setup(NamedTuple):
    """What all trials share."""

    objective: Objective
    times: Array
    end: float
    rtol: float
    atol: float
    max_steps: int
    user: UserFunctions


class _Trial(NamedTuple):
    """What one trial starts from, and is compared with."""

    problem: Tree
    params: dict[str, Array]
    compared: Tree
    targets: dict[str, Tree]

    @classmethod
    def of(cls, job: Job, number: int) -> _Trial:
        every = (job.problem, job.params, job.compared, job.targets)
        return cls(*jax.tree.map(lambda array: array[number], every))


class _Followed(NamedTuple):
    """What came out of one trial."""

    metrics: dict[str, Array]
    params: dict[str, Array]
    log_attention: Array
    exponent: Array
    reached: float
    steps: int
    evaluations: int
    jacobians: int
    failure: str | None
    unmoved: bool  # though the gradient is not zero


def _follow(setup: _Setup, trial: _Trial, on_step: Callable[[float], None] | None) -> _Followed:
    """Integrate one trial and measure it."""
    # The last decade tells which tokens keep their weight.
    stops = np.unique([*setup.times, setup.end / 10.0, setup.end])
    path, moves = _path(setup, trial, stops, on_step)
    places = np.searchsorted(stops, setup.times)
    last = path.coordinates.weights(path.y)
    if path.failure is None and not all(np.isfinite(p).all() for p in last.values()):
        path = path._replace(failure="The weights are beyond 1.8e308.")
    log_attention = np.asarray(_log_attention(last, trial.problem, setup.objective))
    exponent = np.full_like(log_attention, np.nan)
    if path.failure is None:
        before = path.coordinates.weights(path.points[int(np.searchsorted(stops, setup.end / 10.0))])
        earlier = np.asarray(_log_attention(before, trial.problem, setup.objective))
        with np.errstate(invalid="ignore"):
            exponent = np.where(np.isneginf(log_attention), -np.inf, (log_attention - earlier) / np.log(10.0))
    return _Followed(
        metrics=_metrics(path, places, trial, setup),
        params=last,
        log_attention=log_attention,
        exponent=exponent,
        reached=setup.end if path.failure is None else path.reached,
        steps=path.steps,
        evaluations=path.evaluations,
        jacobians=path.jacobians,
        failure=path.failure,
        unmoved=moves and all(np.array_equal(last[name], p) for name, p in trial.params.items()),
    )


def _path(setup: _Setup, trial: _Trial, stops: Array, on_step: Callable[[float], None] | None) -> tuple[Path, bool]:
    """The way of one trial through the times `stops`, `reached` in time; and whether its gradient is not zero."""
    motion = setup.objective.motion(trial.params, trial.problem)
    if motion.failure is not None:
        assert motion.straight is not None
        nowhere = _straight(motion.straight, stops)
        return nowhere._replace(points=[], y=np.zeros(1), reached=0.0, failure=motion.failure), False
    log_constant = -motion.log_rate
    with np.errstate(divide="ignore"):
        ends = np.logaddexp(0.0, np.log(stops) - log_constant)
    if ends[-1] > LONGEST:
        raise InputError(
            message(
                f"`time` is {setup.end:g}, e^{ends[-1]:.0f} times what the first motion takes; e^{LONGEST:.0f} is "
                "the most float64 can follow.",
                "lower `time`, or give smaller tokens",
            )
        )
    moves = bool(np.isfinite(log_constant))
    log_constant = log_constant if moves else 0.0
    if motion.straight is not None and ends[-1] <= EULER:
        return _straight(motion.straight, stops), moves

    def time_of(u: float) -> float:
        return float(np.exp(log_constant + np.log(np.expm1(u)))) if u > 0.0 else 0.0

    path = integrate(
        motion,
        trial.problem,
        setup.objective,
        log_constant + 2.0 * motion.coordinates.log_scale,
        ends,
        rtol=setup.rtol,
        atol=setup.atol * motion.smallness,
        max_steps=setup.max_steps,
        on_step=None if on_step is None else lambda u: on_step(time_of(u)),
    )
    return path._replace(reached=time_of(path.reached)), moves


def _straight(motion: FirstMotion, stops: Array) -> Path:
    """The flow where logits move by less than 1e-9 in all: in the direction in which it starts."""
    return Path(motion, [np.array([stop]) for stop in stops], stops[-1:], float(stops[-1]), 0, 1, 0, None)


def _metrics(path: Path, places: np.ndarray, trial: _Trial, setup: _Setup) -> dict[str, Array]:
    """Metrics at the recorded points, NaN at those that were not reached."""
    if not places.size:
        return {}
    points = np.stack([path.points[i] if i < len(path.points) else path.y for i in places])
    stacked = path.coordinates.weights(points)
    blocks = []
    for first in range(0, len(places), TOGETHER):
        # The last block is filled up, so that one compiled program serves any number of records.
        pick = np.minimum(np.arange(first, first + TOGETHER), len(places) - 1)
        params = {name: p[pick] for name, p in stacked.items()}
        blocks.append(_measured(trial._replace(params=params), objective=setup.objective, user=setup.user))
    joined = {name: np.concatenate([block[name] for block in blocks])[: len(places)] for name in blocks[0]}
    reached = places < len(path.points)

    def only_reached(a: Value) -> Array:
        a = np.asarray(a, dtype=np.float64)
        return np.where(reached.reshape(-1, *[1] * (a.ndim - 1)), a, np.nan)

    return {name: only_reached(a) for name, a in joined.items()}


@partial(jax.jit, static_argnames=("objective", "user"))
def _measured(trial: _Trial, *, objective: Objective, user: UserFunctions) -> Params:
    def one(params: Params) -> Params:
        gradient, forward = objective.gradient(params, trial.problem)
        no_step = jax.tree.map(jnp.zeros_like, params)
        seen = Seen(trial.problem, params, gradient, forward, no_step, trial.compared, trial.targets)
        metrics = measure(objective, seen, user)
        return {name: value for name, value in metrics.items() if name not in OF_STEPS}

    return jax.vmap(one)(trial.params)


@partial(jax.jit, static_argnums=2)
def _log_attention(params: Params, problem: Tree, objective: Objective) -> jax.Array:
    return objective.log_attention(params, problem)


def _tolerance(name: str, value: object) -> float:
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
