"""Gradient flow of one trial in logarithmic time.

With time constant τ (about when the first logit has moved by one) and `t = τ (e^u - 1)`, the flow `dy/dt = -grad` is
`dy/du = -τ e^u grad`: it starts at t = 0 exactly, and u grows by 2.3 per decade. The gradient vanishes as time grows,
so each of its terms is formed as one exponential of a sum of logarithms, `e^(u + log τ + log |loss'| + log s_t)`,
which neither underflows nor overflows where the product is of order one.

A head that mixes tokens holds their weights in place with a force that grows like t: the system is stiff. LSODA of
SciPy detects that and changes from an explicit to an implicit method, with the exact Jacobian from JAX.

Beyond t = 1e16 the rounding error of that force is larger than the slow motion of the other tokens. So a short scout
run with loose tolerances first finds the tokens that hold their weight; they then get coordinates of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import LSODA

from attnlab.data.tokens import Array
from attnlab.models.attention import AttentionModel, Problem
from attnlab.models.extremes import ExtremeAttention
from attnlab.models.powers import LOG2
from attnlab.models.softmax import NOISE, Weights, weights
from attnlab.train.firstmotion import FirstMotion
from attnlab.train.reduction import Combined, Coordinates, Factored

SCOUT = float(np.log(1e14))  # how far the scout goes, in u, and its tolerance
SCOUT_RTOL = 1e-6
GROUPINGS = 2  # a token may take up weight again after the scout; then the run stalls, and sees it
# Below this u one Euler step is exact to rounding: its error is of order u^2.
EULER = 1e-9


class Path(NamedTuple):
    """What the integrator found."""

    coordinates: Coordinates | FirstMotion
    points: list[Array]  # y at the log-times asked for, as far as they were reached
    y: Array  # the last point
    reached: float  # its u
    steps: int
    evaluations: int
    jacobians: int
    failure: str | None


def _velocity(
    y: Any, u: Any, log_unit: Any, system: Combined | Factored, problem: Problem, model: AttentionModel
) -> Any:
    """dy/du at log-time u; `log_unit` is log τ plus twice the log-scale of y."""
    logits, to_y = jax.vjp(system.logits, y)
    w = weights(logits)
    margins, gain, log_gain = _gains(model, problem, w)
    log_slope = model.loss.log_slope(margins) - jnp.log(float(margins.shape[0]))
    log_size = (log_slope + (u + log_unit))[..., None] + w.log_probs
    if log_gain is not None:
        log_size = log_size + log_gain[..., None]
    # What has nothing to gain is pulled by the others only; after saturation its own size may be beyond floats.
    idle = w.top | (gain == 0.0) if model.linear else w.top
    pull = jnp.exp(jnp.where(idle, -jnp.inf, log_size)) * gain
    force = pull - w.probs * jnp.sum(pull, axis=-1, keepdims=True)
    (slope,) = to_y(model.loss.slope_sign(margins)[..., None] * force)
    return -slope


def _gains(model: AttentionModel, problem: Problem, w: Weights) -> tuple[Any, Any, Any]:
    """Margins, what each token adds to them above the top token, and the log-scale of that if it is not 1."""
    if isinstance(model, ExtremeAttention):
        margins, gain, rounding, log_size, power = model.gains({}, problem, w.probs)
        gain = gain - jnp.sum(jnp.where(w.top, gain, 0.0), axis=-1, keepdims=True)
        if model.linear:
            gain = jnp.where(jnp.abs(gain) > rounding[..., None], gain, 0.0)
        return margins, gain, log_size + LOG2 * power
    margins, to_weights = jax.vjp(lambda s: model.margins({}, problem, s), w.probs)
    (gain,) = to_weights(jnp.ones_like(margins))
    gain = gain - jnp.sum(jnp.where(w.top, gain, 0.0), axis=-1, keepdims=True)
    if model.linear:
        # Gains are constants, and a tie stays one: its rounding error times t = 1e30 would break it.
        terms = jnp.max(jnp.abs(problem.x) @ jnp.abs(problem.head["v"]), axis=-1)
        gain = jnp.where(jnp.abs(gain) > NOISE * terms[:, None, None], gain, 0.0)
    return margins, gain, None


velocity = jax.jit(_velocity, static_argnames="model")
jacobian = jax.jit(jax.jacfwd(_velocity), static_argnames="model")


@jax.jit
def _log_weights(system: Combined | Factored, y: Any) -> Any:
    return weights(system.logits(y)).log_probs


def integrate(
    coordinates: Coordinates,
    problem: Problem,
    model: AttentionModel,
    log_unit: float,
    ends: Array,
    *,
    rtol: float,
    atol: float,
    max_steps: int,
    on_step: Callable[[float], None] | None = None,
) -> Path:
    """Follow one trial from u = 0 through the increasing log-times `ends`; `on_step` is told u after every step."""
    problem = jax.tree.map(jnp.asarray, problem)
    y = coordinates.start
    if not y.size or ends[-1] <= EULER:
        rate = np.asarray(velocity(y, 0.0, log_unit, coordinates.system, problem, model)) if y.size else y
        points = [y + u * rate for u in ends]
        return Path(coordinates, points, points[-1], float(ends[-1]), 0, int(y.size > 0), 0, None)

    def run(
        coordinates: Coordinates, wanted: Array, rtol: float, atol: float, max_steps: int, on_step: Any = None
    ) -> Path:
        system = jax.tree.map(jnp.asarray, coordinates.system)
        solver = LSODA(
            lambda u, y: np.asarray(velocity(y, u, log_unit, system, problem, model)),
            0.0, coordinates.start, float(wanted[-1]), rtol=rtol, atol=atol,
            # Where a loss is flat the Jacobian may be NaN. An inexact one costs steps, never accuracy.
            jac=lambda u, y: np.nan_to_num(np.asarray(jacobian(y, u, log_unit, system, problem, model))),
        )  # fmt: skip
        return _drive(solver, coordinates, wanted, max_steps, on_step)

    # A linear head has no stiff force, and K and Q have no coordinates that keep tokens apart.
    if model.linear or ends[-1] <= SCOUT or not isinstance(coordinates.system, Combined):
        return run(coordinates, ends, rtol, atol, max_steps, on_step)
    loose = max(rtol, SCOUT_RTOL)
    path = run(coordinates, np.array([SCOUT]), loose, max(atol, loose / 10.0), max_steps)
    work = np.array([path.evaluations, path.jacobians])
    for _ in range(GROUPINGS):
        assert isinstance(path.coordinates, Coordinates)
        log_weights = np.asarray(_log_weights(path.coordinates.system, path.y))
        top = np.argmax(log_weights, axis=-1, keepdims=True)
        # Weight that stays is far above t^-1/2, weight that goes is of order 1/t.
        grouped = coordinates.regrouped(log_weights > -0.5 * path.reached, top)
        path = run(grouped, ends, rtol, atol, max_steps, on_step)
        work += [path.evaluations, path.jacobians]
        if path.failure is None:
            break
    return path._replace(evaluations=int(work[0]), jacobians=int(work[1]))


def _drive(
    solver: LSODA,
    coordinates: Coordinates,
    wanted: Array,
    max_steps: int,
    on_step: Callable[[float], None] | None,
) -> Path:
    """Take steps to the end, or until the solver gives up."""
    y, at, steps, failure = coordinates.start, 0.0, 0, None
    points = [y] * int(np.sum(wanted <= at))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="lsoda", category=UserWarning)  # it is in `failure`
        while solver.status == "running":
            if steps == max_steps:
                failure = f"{max_steps} steps were not enough."
                break
            complaint = solver.step()
            if solver.status == "failed" or not np.isfinite(solver.y).all():
                failure = complaint or "The weights overflowed."
                break
            steps, y, at = steps + 1, solver.y, float(solver.t)
            passed = wanted[len(points) :][wanted[len(points) :] <= at]
            if passed.size:
                points += list(solver.dense_output()(passed).T)
            if on_step is not None:
                on_step(at)
    return Path(coordinates, points, y, at, steps, int(solver.nfev), int(solver.njev), failure)
