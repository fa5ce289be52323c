"""Gradient flow of one trial: in which coordinates it moves, and how fast at first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from attnlab.data.scale import matrix_lengths
from attnlab.data.tokens import Array
from attnlab.models.firstmotion import FirstMotion
from attnlab.models.reduction import Combined, Coordinates, reduce
from attnlab.models.scaled import Params, ScaledGradient, Tree, log_norm, total_log_norm

if TYPE_CHECKING:
    from attnlab.models.layer import Layer
    from attnlab.models.layer_problem import LayerProblem
    from attnlab.models.problem import Objective


@dataclass(frozen=True)
class Flat:
    """All parameters in one vector y, in the order of their sorted names.

    Attributes:
        system: the parameters at time 0; their shapes are what `velocity` of an objective needs.
        start: y at time 0.
        log_scale: y is the parameters themselves.
    """

    system: dict[str, Array]
    start: Array
    log_scale: float = 0.0

    def weights(self, y: Array) -> dict[str, Array]:
        """The parameters at points (..., p)."""
        names = sorted(self.system)
        ends = np.cumsum([self.system[name].size for name in names])
        parts = np.split(y, ends[:-1], axis=-1)
        return {
            name: part.reshape((*y.shape[:-1], *self.system[name].shape))
            for name, part in zip(names, parts, strict=True)
        }


@dataclass(frozen=True)
class Motion:
    """How a trial begins to move.

    Attributes:
        coordinates: in which it is integrated, and the way back to parameters.
        log_rate: log of one over the time that the first motion of order one takes; -inf if nothing moves.
        smallness: absolute errors are to be small beside this.
        regroups: is there a force that grows like t and holds some tokens in place, so that these want coordinates
            of their own?
        straight: the first motion, where data of extreme scale may have nothing else.
        failure: why it cannot be followed at all.
    """

    coordinates: Coordinates | Flat
    log_rate: float
    smallness: float = 1.0
    regroups: bool = False
    straight: FirstMotion | None = None
    failure: str | None = None


def flat_motion(objective: Objective, params: Params, problem: Tree) -> Motion:
    """In all parameters of any model."""
    named = {name: np.asarray(p) for name, p in params.items()}
    y = np.concatenate([named[name].ravel() for name in sorted(named)])
    log_gradient = float(_log_gradient(objective, named, problem))
    return Motion(Flat(named, y), log_gradient)


def flat_velocity(objective: Objective, y: jax.Array, log_time: jax.Array, system: Params, problem: Tree) -> jax.Array:
    """-e^log_time times the gradient, as a vector."""
    _, back = ravel_pytree(system)
    gradient, forward = objective.gradient(back(y), problem)
    velocity = -ravel_pytree(gradient.value(log_time))[0]
    # Times e^u the rounding error of a loss that has reached zero would be a force of its own.
    return jnp.where(objective.loss.is_settled(forward.outputs, problem.y), 0.0, velocity)


@partial(jax.jit, static_argnums=0)
def _log_gradient(objective: Objective, params: Params, problem: Tree) -> jax.Array:
    gradient, _ = objective.gradient(params, problem)
    return total_log_norm(gradient.mantissa, gradient.log_scale)


def layer_motion(layer: Layer, params: Params, problem: LayerProblem) -> Motion:
    """In the few coordinates in which the weights of one attention layer move."""
    start = {name: np.asarray(p) for name, p in params.items()}
    logits, gradient, log_norms = _first_look(layer, start, problem)
    visible = np.where(True if problem.visible is None else problem.visible, logits, 0.0)
    if not np.isfinite(visible).all():
        nowhere = FirstMotion(start, {name: np.zeros_like(w) for name, w in start.items()}, dict.fromkeys(start, 0.0))
        return Motion(Flat(start, np.zeros(1)), -np.inf, straight=nowhere, failure="The logits overflow at the start.")
    coordinates = reduce(problem, start, np.asarray(logits))
    size = float(np.max(np.abs(coordinates.start), initial=0.0))
    straight = None
    if problem.powers is not None:
        straight = FirstMotion(
            start,
            {name: np.asarray(m) for name, m in gradient.mantissa.items()},
            {name: float(scale) for name, scale in gradient.log_scale.items()},
        )
    return Motion(
        coordinates,
        _log_rate(coordinates, start, {name: float(value) for name, value in log_norms.items()}),
        # K and Q that start small grow by a factor, and so does an error: it must be small beside the start.
        smallness=min(1.0, size) if size > 0.0 else 1.0,
        # A linear head has no such force, and K and Q have no coordinates that keep tokens apart.
        regroups=not layer.linear and isinstance(coordinates.system, Combined),
        straight=straight,
    )


@partial(jax.jit, static_argnums=0)
def _first_look(layer: Layer, params: Params, problem: LayerProblem) -> tuple[jax.Array, ScaledGradient, Params]:
    """Logits, the gradient, and the logarithm of its norm in every parameter."""
    gradient, evaluation = layer.gradient(params, problem)
    return evaluation.logits, gradient, jax.tree.map(log_norm, gradient.mantissa, gradient.log_scale)


def _log_rate(coordinates: Coordinates, start: Mapping[str, Array], log_gradient: Mapping[str, float]) -> float:
    """log of the rate at which logits, or small K and Q, move at first; -inf if nothing moves."""
    if "W" in start:
        return log_gradient["W"] + coordinates.log_scale
    with np.errstate(divide="ignore"):
        log_K, log_Q = (float(np.log(matrix_lengths(start[name]))) for name in "KQ")
    of_logits = 2.0 * coordinates.log_scale + max(log_gradient["K"] + log_Q, log_gradient["Q"] + log_K)
    return max(of_logits, max(log_gradient.values()) - max(log_K, log_Q))
