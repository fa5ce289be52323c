"""Limited-memory BFGS as one compiled loop, made to run many searches side by side.

Every turn of the loop evaluates the function once, at the next trial point of whichever line search each lane is in.
Lanes of a batch therefore never wait for each other's line searches, only for the last lane to finish.

A step t along p is accepted by the weak Wolfe conditions `f(t) <= f + a t f'` and `f'(t) >= b f'`. Close to the
minimum the values of f agree to the last digit and say nothing any more; then the slope decides instead
(`f'(t) <= (1 - 2a) |f'|`, Hager and Zhang), so that the search goes on to the accuracy of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.models.scaled import Value

MEMORY = 20  # pairs of steps and gradient changes that are kept
DECREASE, CURVATURE = 0.1, 0.9  # a and b
PATIENCE, TRIALS = 10, 40  # points of one line search after which the second condition is waived, and it is given up
FIRST_STEP = 0.1
# Changes of f below this, relative to its size, are rounding.
ROUNDING = 1e-14

# point -> value, gradient, and the vector whose length the gradient is compared with
Objective = Callable[[Array], tuple[Array, Array, Array]]


class Minimum(NamedTuple):
    """Where a search ended.

    `residual` is |gradient| / |scale|, with the `scale` that the objective gave there; `evaluations` counts its calls.
    """

    point: Array
    value: Array
    scale: Array
    residual: Array
    evaluations: Array


class _Search(NamedTuple):
    point: Array
    value: Array
    gradient: Array
    scale: Array
    direction: Array
    slope: Array
    step: Array
    low: Array  # steps known to be too short
    high: Array  # and too long
    trials: Array
    steps: Array  # (MEMORY, dim), newest last
    changes: Array
    pairs: Array  # how many of these are in use
    evaluations: Array
    stuck: Array


def minimise(
    objective: Objective, start: Value, *, tolerance: float = 1e-10, floor: Value | float = 0.0, evaluations: int = 3000
) -> Minimum:
    """A local minimum of `objective` near `start`, a vector; for use inside `jax.jit` and `jax.vmap`.

    An infinite or NaN value marks a point outside the domain; the search stays inside. Ends where the gradient is at
    most `tolerance` times as long as its scale, or as `floor` if that is longer; where no step improves in float64; or
    after `evaluations`.

    Args:
        objective: point -> (value, gradient, scale).
        start: a point where the value is finite; elsewhere the search ends at once.

    >>> import jax.numpy as jnp
    >>> bowl = lambda x: (jnp.sum((x - 1.0) ** 2), 2 * (x - 1.0), jnp.ones(2))
    >>> [round(float(c), 4) for c in minimise(bowl, jnp.zeros(2), tolerance=1e-5).point]
    [1.0, 1.0]
    """
    start = jnp.asarray(start)
    number = jnp.zeros((), start.dtype)
    vectors = dict.fromkeys(("gradient", "scale", "direction"), jnp.zeros_like(start))
    numbers = dict.fromkeys(("slope", "step", "low", "high"), number)
    memory = dict.fromkeys(("steps", "changes"), jnp.zeros((MEMORY, start.size), start.dtype))
    counts = dict.fromkeys(("trials", "pairs", "evaluations"), jnp.zeros((), int))
    # The first turn evaluates the start itself: the objective is compiled once.
    unseen = number + jnp.inf
    search = _Search(point=start, value=unseen, **vectors, **numbers, **memory, **counts, stuck=jnp.zeros((), bool))

    def unfinished(s: _Search) -> Array:
        going = ~s.stuck & (_residual(s, floor) > tolerance) & (s.evaluations < evaluations)
        return going | (s.evaluations == 0)

    end = jax.lax.while_loop(unfinished, lambda s: _turn(objective, s), search)
    return Minimum(end.point, end.value, end.scale, _residual(end), end.evaluations)


def _residual(s: _Search, floor: Value | float = 0.0) -> Array:
    length, scale = jnp.sqrt(jnp.sum(s.gradient**2)), jnp.sqrt(jnp.sum(s.scale**2))
    return jnp.where(length > 0, length / jnp.maximum(scale, floor), 0.0)


def _turn(objective: Objective, s: _Search) -> _Search:
    """Evaluate the trial point of the line search; move there, or try another."""
    point = s.point + s.step * s.direction
    value, gradient, scale = objective(point)
    first = s.evaluations == 0
    s = s._replace(evaluations=s.evaluations + 1)
    slope = gradient @ s.direction
    inside = jnp.isfinite(value)
    level = value <= s.value + ROUNDING * (1.0 + jnp.abs(s.value))
    lower = value <= s.value + DECREASE * s.step * s.slope
    lower = inside & (lower | (level & (slope <= (2 * DECREASE - 1) * s.slope)))
    # At the edge of the domain the slope never flattens; any lower point will do then.
    enough = (slope >= CURVATURE * s.slope) | (s.trials >= PATIENCE)
    accepted = first | (lower & enough)
    moved = _moved(s, point, value, gradient, scale)
    return _where(accepted, moved, _tried(s, lower, jnp.where(inside, slope, jnp.nan)))


def _moved(s: _Search, point: Array, value: Array, gradient: Array, scale: Array) -> _Search:
    """Accept the point, remember what the step taught, and set out in the next direction."""
    step, change = point - s.point, gradient - s.gradient
    curved = step @ change > 1e-14 * jnp.sqrt((step @ step) * (change @ change))
    steps = jnp.where(curved, jnp.concatenate([s.steps[1:], step[None]]), s.steps)
    changes = jnp.where(curved, jnp.concatenate([s.changes[1:], change[None]]), s.changes)
    pairs = jnp.minimum(s.pairs + curved, MEMORY)
    direction = -_inverse_hessian_times(gradient, steps, changes, pairs)
    slope = direction @ gradient
    there = s._replace(point=point, value=value, gradient=gradient, scale=scale, stuck=~jnp.isfinite(value))
    there = there._replace(steps=steps, changes=changes, pairs=pairs)
    ahead = _along(direction, slope, there)
    return _where((pairs > 0) & (slope < 0), ahead, _restarted(ahead))


def _along(direction: Array, slope: Array, s: _Search) -> _Search:
    """At the beginning of the line search in this direction."""
    line = s._replace(direction=direction, slope=slope, step=jnp.ones_like(s.value), trials=jnp.zeros_like(s.trials))
    return line._replace(low=jnp.zeros_like(s.value), high=jnp.full_like(s.value, jnp.inf))


def _tried(s: _Search, lower: Array, slope: Array) -> _Search:
    """The next trial step; after too many of them steepest descent, and after that no more."""
    low, high = jnp.where(lower, s.step, s.low), jnp.where(lower, s.high, s.step)
    width = high - low
    # Where the slope vanishes if it is linear in the step, kept away from both ends.
    by_slope = s.step * s.slope / (s.slope - slope)
    guess = jnp.where(jnp.isfinite(by_slope), by_slope, 0.5 * (low + high))
    between = jnp.clip(guess, low + 0.1 * width, high - 0.1 * width)
    step = jnp.where(jnp.isfinite(high), between, 4.0 * low)
    trials = s.trials + 1
    ahead = s._replace(step=step, low=low, high=high, trials=trials)
    failed = trials >= TRIALS
    last = _restarted(s)._replace(stuck=s.pairs == 0)
    return _where(failed, last, ahead)


def _restarted(s: _Search) -> _Search:
    """Forget the past and go down the gradient."""
    length = jnp.sqrt(jnp.sum(s.gradient**2))
    direction = -FIRST_STEP * s.gradient / jnp.where(length > 0, length, 1.0)
    forgotten = {name: jnp.zeros_like(getattr(s, name)) for name in ("pairs", "steps", "changes")}
    return _along(direction, direction @ s.gradient, s)._replace(**forgotten)


def _inverse_hessian_times(gradient: Array, steps: Array, changes: Array, pairs: Array) -> Array:
    """The two-loop recursion; unused pairs are zero and pass through it unchanged."""
    products = jnp.einsum("kd,kd->k", steps, changes)
    inverse = jnp.where(products > 0, 1.0 / jnp.where(products > 0, products, 1.0), 0.0)

    def back(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        q, weights = carry
        k = MEMORY - 1 - i
        weight = inverse[k] * (steps[k] @ q)
        return q - weight * changes[k], weights.at[k].set(weight)

    q, weights = jax.lax.fori_loop(0, pairs, back, (gradient, jnp.zeros_like(products)))
    newest = changes[-1] @ changes[-1]
    q = q * jnp.where(newest > 0, products[-1] / jnp.where(newest > 0, newest, 1.0), 1.0)

    def forth(k: Array, q: Array) -> Array:
        return q + steps[k] * (weights[k] - inverse[k] * (changes[k] @ q))

    return jax.lax.fori_loop(MEMORY - pairs, MEMORY, forth, q)


def _where(condition: Array, one: _Search, other: _Search) -> _Search:
    return _Search(*(jnp.where(condition, a, b) for a, b in zip(one, other, strict=True)))
