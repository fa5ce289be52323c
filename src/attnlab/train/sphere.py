"""The loss on a sphere or in a ball of weights, and its minimum there.

Weights are one vector: W, or K and Q together. With `weights = radius * u / |u|` the search is free in u, and with
`weights = radius * u`, |u| <= 1, it stays in the ball. What is minimised is the logarithm of the excess loss. Its
gradient `grad L / excess` is of order one however far attention has saturated: both logarithms are known, and only
their difference is exponentiated.
"""

from __future__ import annotations

import math
from functools import partial
from types import ModuleType
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.models.layer import product
from attnlab.models.model import Shapes
from attnlab.models.problem import Objective
from attnlab.models.scaled import Params, Tree, Value
from attnlab.train.lbfgs import minimise

A = TypeVar("A", Array, np.ndarray)  # of JAX inside of compiled programs, of NumPy outside
Measure = Literal["log excess", "loss"]
Region = Literal["sphere", "ball"]


class Cone(NamedTuple):
    """cone_eps of a selection: for every query some low token leads every high one by `eps` |W| in logits.

    `low` and `high` mark, (n, K, T), the tokens that score below the selected one and the others that do not.
    """

    low: Value
    high: Value
    eps: Value


class Lowest(NamedTuple, Generic[A]):
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

    weights: A
    value: A
    residual: A
    radial: A
    size: A
    evaluations: A


def unpack(vector: A, shapes: Shapes) -> dict[str, A]:
    """The vector as parameters by name; leading axes stay."""
    lead = vector.shape[:-1]
    parts, first = {}, 0
    for name, shape in shapes:
        last = first + math.prod(shape)
        parts[name] = vector[..., first:last].reshape(*lead, *shape)
        first = last
    return parts


def shield(xp: ModuleType, logits: Value, cone: Cone, size: Value | float) -> Any:
    """min over queries of (best low logit - best high logit) / |W|, with NumPy or `jax.numpy` as `xp`.

    inf where no query has a high token; -inf where some query with high tokens has no low one. W is in the cone iff
    this is at least eps.
    """
    low = xp.max(xp.where(cone.low, logits, -xp.inf), axis=-1)
    high = xp.max(xp.where(cone.high, logits, -xp.inf), axis=-1)
    asks = xp.isfinite(high)
    lead = xp.where(asks, low - xp.where(asks, high, 0.0), xp.inf)
    return xp.min(lead, axis=(-2, -1)) / size


def measured(
    objective: Objective,
    measure: Measure,
    shapes: Shapes,
    problem: Tree,
    fixed: Params,
    cone: Cone | None,
    vector: Array,
    log_radius: Array,
) -> tuple[Array, Array]:
    """The measure at `vector`, and its gradient there times the radius; inf outside the domain."""
    params = unpack(vector, shapes)
    gradient, forward = objective.gradient({**params, **fixed}, problem)
    if measure == "loss":
        value, log_size = objective.value(problem, forward), 0.0
        inside = jnp.isfinite(value)
    else:
        sign, value = objective.excess(problem, forward)
        inside = (sign > 0) & jnp.isfinite(value)
        log_size = jnp.where(inside, value, 0.0)
    if cone is not None:
        length = jnp.sqrt(jnp.sum(product(params) ** 2))
        inside = inside & (shield(jnp, objective.logits(params, problem), cone, length) >= cone.eps)
    parts = [gradient.mantissa[k] * jnp.exp(gradient.log_scale[k] - log_size + log_radius) for k in params]
    whole = jnp.concatenate([part.ravel() for part in parts])
    return jnp.where(inside, value, jnp.inf), jnp.where(inside, whole, 0.0)


@partial(jax.jit, static_argnames=("objective", "measure", "shapes", "region", "tolerance", "evaluations"))
def lowest(
    problem: Tree,
    fixed: Params,
    cone: Cone | None,
    start: Array,
    radius: Array,
    floor: Array,
    *,
    objective: Objective,
    measure: Measure,
    shapes: Shapes,
    region: Region,
    tolerance: float,
    evaluations: int,
) -> Lowest[Array]:
    """A local minimum over the sphere or the ball of each radius, from each start; all arrays have a lane axis.

    A search ends where its residual is `tolerance`. With `floor` it also ends where a gradient of at most `tolerance *
    floor`, in units of the measure, promises nothing more.
    """

    def lane(
        problem: Tree, fixed: Params, cone: Cone | None, start: Array, radius: Array, floor: Array
    ) -> Lowest[Array]:
        def at(vector: Array) -> tuple[Array, Array]:
            return measured(objective, measure, shapes, problem, fixed, cone, vector, jnp.log(radius))

        def on_sphere(u: Array) -> tuple[Array, Array, Array]:
            length = jnp.sqrt(u @ u)
            unit = u / length
            value, gradient = at(radius * unit)
            along = gradient - (gradient @ unit) * unit
            # What the first projection left along `unit` is as large as the rounding of the radial part.
            along = along - (along @ unit) * unit
            return value, along / length, gradient / length

        def in_ball(u: Array) -> tuple[Array, Array, Array]:
            value, gradient = at(radius * u)
            return jnp.where(u @ u <= 1.0, value, jnp.inf), gradient, jnp.ones_like(u) / jnp.sqrt(u.size)

        if region == "sphere":
            begin = start / jnp.sqrt(start @ start)
            end = minimise(on_sphere, begin, tolerance=tolerance, floor=floor, evaluations=evaluations)
            length = jnp.sqrt(end.point @ end.point)
            size = length * jnp.sqrt(end.scale @ end.scale)
            radial = end.scale @ end.point
            there = radius * (end.point / length)
            return Lowest(there, end.value, end.residual, radial, size, end.evaluations)
        end = minimise(in_ball, start / radius, tolerance=tolerance, evaluations=evaluations)
        flat = jnp.zeros_like(radius)
        return Lowest(radius * end.point, end.value, end.residual, flat, end.residual, end.evaluations)

    return jax.vmap(lane)(problem, fixed, cone, start, radius, floor)
