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
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import DOP853, LSODA, OdeSolver

from attnlab.data.tokens import Array
from attnlab.models.firstmotion import FirstMotion
from attnlab.models.motion import Flat, Motion
from attnlab.models.problem import Objective
from attnlab.models.reduction import Combined, Coordinates
from attnlab.models.scaled import Tree
from attnlab.models.softmax import weights

SCOUT = float(np.log(1e14))  # how far the scout goes, in u, and its tolerance
SCOUT_RTOL = 1e-6
GROUPINGS = 2  # a token may take up weight again after the scout; then the run stalls, and sees it
# Up to so many coordinates the Jacobian is held in full; more are followed by an explicit method, which is slow where
# the flow is stiff.
MOST_DENSE = 1500
# Below this u one Euler step is exact to rounding: its error is of order u^2.
EULER = 1e-9

Told: TypeAlias = Callable[[float], None] | None  # of u, after every step


class Path(NamedTuple):
    """What the integrator found."""

    coordinates: Coordinates | Flat | FirstMotion
    points: list[Array]  # y at the log-times asked for, as far as they were reached
    y: Array  # the last point
    reached: float  # its u
    steps: int
    evaluations: int
    jacobians: int
    failure: str | None


def _velocity(
    y: jax.Array, u: jax.Array, log_unit: jax.Array, system: Tree, problem: Tree, objective: Objective
) -> jax.Array:
    """dy/du at log-time u; `log_unit` is log τ plus twice the log-scale of y."""
    return objective.velocity(y, u, log_unit, system, problem)


velocity = jax.jit(_velocity, static_argnames="objective")
jacobian = jax.jit(jax.jacfwd(_velocity), static_argnames="objective")


@jax.jit
def _log_weights(system: Combined, y: jax.Array) -> jax.Array:
    return weights(system.logits(y)).log_probs


def integrate(
    motion: Motion,
    problem: Tree,
    objective: Objective,
    log_unit: float,
    ends: Array,
    *,
    rtol: float,
    atol: float,
    max_steps: int,
    on_step: Told = None,
) -> Path:
    """Follow one trial from u = 0 through the increasing log-times `ends`; `on_step` is told u after every step."""
    problem = jax.tree.map(jnp.asarray, problem)
    coordinates = motion.coordinates
    y = coordinates.start
    if not y.size or ends[-1] <= EULER:
        rate = np.asarray(velocity(y, 0.0, log_unit, coordinates.system, problem, objective)) if y.size else y
        points = [y + u * rate for u in ends]
        return Path(coordinates, points, points[-1], float(ends[-1]), 0, int(y.size > 0), 0, None)

    def run(coordinates: Coordinates | Flat, wanted: Array, rtol: float, atol: float, on_step: Told = None) -> Path:
        system = jax.tree.map(jnp.asarray, coordinates.system)

        def speed(u: float, y: Array) -> Array:
            return np.asarray(velocity(y, u, log_unit, system, problem, objective))

        def slopes(u: float, y: Array) -> Array:
            # Where a loss is flat the Jacobian may be NaN. An inexact one costs steps, never accuracy.
            return np.nan_to_num(np.asarray(jacobian(y, u, log_unit, system, problem, objective)))

        last = float(wanted[-1])
        solver: OdeSolver
        if coordinates.start.size <= MOST_DENSE:
            solver = LSODA(speed, 0.0, coordinates.start, last, rtol=rtol, atol=atol, jac=slopes)
        else:
            solver = DOP853(speed, 0.0, coordinates.start, last, rtol=max(rtol, 1e-12), atol=atol)
        return _drive(solver, coordinates, wanted, max_steps, on_step)

    if not motion.regroups or ends[-1] <= SCOUT:
        return run(coordinates, ends, rtol, atol, on_step)
    loose = max(rtol, SCOUT_RTOL)
    path = run(coordinates, np.array([SCOUT]), loose, max(atol, loose / 10.0))
    work = np.array([path.evaluations, path.jacobians])
    for _ in range(GROUPINGS):
        assert isinstance(coordinates, Coordinates)
        assert isinstance(path.coordinates, Coordinates)
        log_weights = np.asarray(_log_weights(path.coordinates.system, path.y))
        top = np.argmax(log_weights, axis=-1, keepdims=True)
        # Weight that stays is far above t^-1/2, weight that goes is of order 1/t.
        grouped = coordinates.regrouped(log_weights > -0.5 * path.reached, top)
        path = run(grouped, ends, rtol, atol, on_step)
        work += [path.evaluations, path.jacobians]
        if path.failure is None:
            break
    return path._replace(evaluations=int(work[0]), jacobians=int(work[1]))


def _drive(
    solver: OdeSolver,
    coordinates: Coordinates | Flat,
    wanted: Array,
    max_steps: int,
    on_step: Told,
) -> Path:
    """Take steps to the end, or until the solver gives up."""
    y, at = coordinates.start, 0.0
    steps, failure = 0, None
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
            steps += 1
            y, at = solver.y, float(solver.t)
            passed = wanted[len(points) :][wanted[len(points) :] <= at]
            if passed.size:
                points += list(solver.dense_output()(passed).T)
            if on_step is not None:
                on_step(at)
    return Path(coordinates, points, y, at, steps, int(solver.nfev), int(solver.njev), failure)
