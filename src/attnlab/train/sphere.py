"""The loss on a sphere or in a ball of weights, and its minimum there.

Weights are one vector: W, or K and Q together. With `weights = radius * u / |u|` the search is free in u, and with
`weights = radius * u`, |u| <= 1, it stays in the ball. What is minimised is the logarithm of the excess loss. Its
gradient `grad L / excess` is of order one however far attention has saturated: both logarithms are known, and only
their difference is exponentiated.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.models.attention import AttentionModel, Problem
from attnlab.train.lbfgs import minimise

Measure = Literal["log excess", "loss"]
Region = Literal["sphere", "ball"]


class Cone(NamedTuple):
    """cone_eps of a selection: for every query some low token leads every high one by `eps` |W| in logits.

    `low` and `high` mark, (n, K, T), the tokens that score below the selected one and the others that do not.
    """

    low: Any
    high: Any
    eps: Any


class Lowest(NamedTuple):
    """What one search found.

    Attributes:
        weights: of length `radius`, or less in the ball.
        value: the measure there; inf if the start is outside the domain.
        residual: on the sphere the tangential part of the gradient relative to all of it; in the ball the change of
            the measure per relative change of the radius, in the steepest direction.
        radial: derivative of the measure by log |weights|; negative where the minimum over the ball is on the sphere.
        size: |gradient| times the radius, in units of the measure.
        evaluations: of the loss and its gradient.
    """

    weights: Any
    value: Any
    residual: Any
    radial: Any
    size: Any
    evaluations: Any


def unpack(vector: Any, d: int, factored: bool) -> dict[str, Any]:
    """The vector as weights by name; leading axes stay."""
    lead = vector.shape[:-1]
    if not factored:
        return {"W": vector.reshape(*lead, d, d)}
    both = vector.reshape(*lead, 2, d, -1)
    return {"K": both[..., 0, :, :], "Q": both[..., 1, :, :]}


def shield(xp: Any, logits: Any, cone: Cone, size: Any) -> Any:
    """min over queries of (best low logit - best high logit) / |W|, with NumPy or `jax.numpy` as `xp`.

    inf where no query has a high token; -inf where some query with high tokens has no low one. W is in the cone iff
    this is at least eps.
    """
    low = xp.max(xp.where(cone.low, logits, -xp.inf), axis=-1)
    high = xp.max(xp.where(cone.high, logits, -xp.inf), axis=-1)
    asks = xp.isfinite(high)
    lead = xp.where(asks, low - xp.where(asks, high, 0.0), xp.inf)
    return xp.min(lead, axis=(-2, -1)) / size


def _measured(
    model: AttentionModel, measure: Measure, problem: Problem, cone: Cone | None, vector: Any, log_radius: Any
) -> tuple[Array, Array]:
    """The measure at `vector`, and its gradient there times the radius; inf outside the domain."""
    params = unpack(vector, problem.x.shape[-1], model.parameterization == "KQ")
    gradient, evaluation = model.gradient(params, problem)
    if measure == "loss":
        value, log_size = model.objective(evaluation), 0.0
        inside = jnp.isfinite(value)
    else:
        sign, value = model.excess(problem, evaluation)
        inside = (sign > 0) & jnp.isfinite(value)
        log_size = jnp.where(inside, value, 0.0)
    if cone is not None:
        W = params["W"] if "W" in params else params["K"] @ params["Q"].T
        inside = inside & (shield(jnp, evaluation.logits, cone, jnp.sqrt(jnp.sum(W**2))) >= cone.eps)
    parts = [gradient.mantissa[k] * jnp.exp(gradient.log_scale[k] - log_size + log_radius) for k in params]
    whole = jnp.concatenate([part.ravel() for part in parts])
    return jnp.where(inside, value, jnp.inf), jnp.where(inside, whole, 0.0)


@partial(jax.jit, static_argnames=("model", "measure", "region", "tolerance", "evaluations"))
def lowest(
    problem: Problem,
    cone: Cone | None,
    start: Any,
    radius: Any,
    floor: Any,
    *,
    model: AttentionModel,
    measure: Measure,
    region: Region,
    tolerance: float,
    evaluations: int,
) -> Lowest:
    """A local minimum over the sphere or the ball of each radius, from each start; all arrays have a lane axis.

    A search ends where its residual is `tolerance`. With `floor` it also ends where a gradient of at most `tolerance *
    floor`, in units of the measure, promises nothing more.
    """

    def lane(problem: Problem, cone: Cone | None, start: Any, radius: Any, floor: Any) -> Lowest:
        def at(vector: Any) -> tuple[Array, Array]:
            return _measured(model, measure, problem, cone, vector, jnp.log(radius))

        def on_sphere(u: Any) -> tuple[Array, Array, Array]:
            length = jnp.sqrt(u @ u)
            unit = u / length
            value, gradient = at(radius * unit)
            along = gradient - (gradient @ unit) * unit
            # What the first projection left along `unit` is as large as the rounding of the radial part.
            along = along - (along @ unit) * unit
            return value, along / length, gradient / length

        def in_ball(u: Any) -> tuple[Array, Array, Array]:
            value, gradient = at(radius * u)
            return jnp.where(u @ u <= 1.0, value, jnp.inf), gradient, jnp.ones_like(u) / jnp.sqrt(u.size)

        if region == "sphere":
            begin = start / jnp.sqrt(start @ start)
            found = minimise(on_sphere, begin, tolerance=tolerance, floor=floor, evaluations=evaluations)
            length = jnp.sqrt(found.point @ found.point)
            size = length * jnp.sqrt(found.scale @ found.scale)
            radial = found.scale @ found.point
            return Lowest(radius * found.point / length, found.value, found.residual, radial, size, found.evaluations)
        found = minimise(in_ball, start / radius, tolerance=tolerance, evaluations=evaluations)
        flat = jnp.zeros_like(radius)
        return Lowest(radius * found.point, found.value, found.residual, flat, found.residual, found.evaluations)

    return jax.vmap(lane)(problem, cone, start, radius, floor)
