"""The least loss over the ball of any norm: steps along the gradient, projected onto the ball.

A norm is told by its value, its dual norm and its proximal map, as `attnlab.svm.Norm` holds them. The projection of W
onto the ball is `prox(W, t)` with the t >= 0 at which its norm is that of the ball. Steps have the lengths of Barzilai
and Borwein, and are accepted by the largest of the last values (spectral projected gradients of Birgin, Martinez and
Raydan).

A minimum on the sphere has `<-grad, W> = |W| dual(grad)`; what is missing to that, relative, is the residual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from attnlab.checks import shown
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.models.model import Shapes
from attnlab.models.problem import Objective
from attnlab.models.scaled import Tree
from attnlab.train.sphere import Lowest, Measure, measured

MEMORY = 8  # values among which a step need not be the least
DECREASE = 1e-4  # of what the slope promises, that a step must reach
SHRINK = 0.5  # of a step that does not
ROUNDS = 60  # to find the t of a projection
LEVEL = 1e-15  # its norm is right to this
STEPS = (1e-12, 1e12)  # lengths of steps, relative to the gradient
SHORTER = 1e-6  # W shorter than the radius by more than this share of it is inside the ball


@runtime_checkable
class MatrixNorm(Protocol):
    """What a path asks of a norm; `attnlab.svm.norms` has ready-made ones."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> Callable[[Array], float]: ...
    @property
    def dual(self) -> Callable[[Array], float]: ...
    @property
    def prox(self) -> Callable[[Array, float], Array]: ...


@dataclass(frozen=True, eq=False)
class NormBall:
    """The unit ball of a norm on matrices (d, d)."""

    norm: MatrixNorm

    @classmethod
    def of(cls, norm: Any) -> NormBall:
        """That of a norm given by the user."""
        named = isinstance(norm, MatrixNorm) and isinstance(norm.name, str)
        if not named or not all(callable(getattr(norm, part)) for part in ("value", "dual", "prox")):
            wanted = "'frobenius', 'nuclear', or a norm with name, value, dual and prox"
            raise InputError(message(f"`norm` is {shown(norm)}; wanted {wanted}.", "al.svm.norms.SPECTRAL"))
        return cls(norm)

    def size(self, W: Array) -> float:
        """|W|, of a matrix."""
        return float(self.norm.value(W))

    def project(self, W: Array) -> Array:
        """The nearest matrix of norm at most 1."""
        excess = self.size(W) - 1.0
        if not excess > 0.0:
            return W
        # |prox(W, t)| falls from |W| at t = 0 to 0 at t = dual(W); the root by false position, Illinois variant.
        low, high = 0.0, float(self.norm.dual(W))
        above, below = excess, -1.0
        best = np.zeros_like(W)
        for _ in range(ROUNDS):
            t = low + (high - low) * above / (above - below)
            if not low < t < high:
                t = 0.5 * (low + high)
            best = self.norm.prox(W, t)
            left = self.size(best) - 1.0
            if abs(left) <= LEVEL or high - low <= LEVEL * high:
                break
            if left > 0.0:
                low, above, below = t, left, 0.5 * below
            else:
                high, below, above = t, left, 0.5 * above
        return best / max(self.size(best), 1.0)

    def lowest(
        self,
        problem: Tree,
        fixed: Tree,
        starts: Array,
        radius: Array,
        *,
        objective: Objective,
        measure: Measure,
        shapes: Shapes,
        tolerance: float,
        evaluations: int,
    ) -> Lowest[np.ndarray]:
        """A local minimum over the ball of each radius from each start, (lanes, size); see `sphere.lowest`.

        `residual` is `1 - <-grad, W> / (|W| dual(grad))` on the sphere, and `dual(grad) R` inside the ball.
        """
        log_radius = np.log(radius)
        program = partial(_values, objective=objective, measure=measure, shapes=shapes)

        def at(points: Array) -> tuple[Array, Array]:
            value, slope = program(problem, fixed, radius[:, None] * points, log_radius)
            return np.asarray(value), np.asarray(slope)

        lanes = [_Lane(self, start.reshape(shapes[0][1])) for start in starts]
        for turn in range(evaluations):
            value, slope = at(np.stack([lane.trial.ravel() for lane in lanes]))
            for lane, own_value, own_slope in zip(lanes, value, slope, strict=True):
                if not lane.done:
                    lane.told(float(own_value), own_slope.reshape(lane.trial.shape), tolerance, turn + 1)
            if all(lane.done for lane in lanes):
                break
        ends = [lane.end(length) for lane, length in zip(lanes, radius, strict=True)]
        return Lowest(*(np.stack(part) for part in zip(*ends, strict=True)))


@partial(jax.jit, static_argnames=("objective", "measure", "shapes"))
def _values(
    problem: Tree,
    fixed: Tree,
    vectors: jax.Array,
    log_radius: jax.Array,
    *,
    objective: Objective,
    measure: Measure,
    shapes: Shapes,
) -> tuple[jax.Array, jax.Array]:
    def lane(problem: Tree, fixed: Tree, vector: jax.Array, log_radius: jax.Array) -> tuple[jax.Array, jax.Array]:
        return measured(objective, measure, shapes, problem, fixed, None, vector, log_radius)

    return jax.vmap(lane)(problem, fixed, vectors, log_radius)


class _Lane:
    """One search, in units of the radius: it asks for the value at `trial`, and is told."""

    def __init__(self, ball: NormBall, start: Array) -> None:
        self.ball = ball
        size = ball.size(start)
        self.trial = start / size if size > 0 else start
        self.point = self.trial
        self.value, self.slope = np.inf, np.zeros_like(start)
        self.recent: list[float] = []
        self.length = 1.0  # of a step, relative to the slope
        self.direction, self.share = np.zeros_like(start), 0.0
        self.residual = np.inf
        self.done = False
        self.evaluations = 0

    def told(self, value: float, slope: Array, tolerance: float, turn: int) -> None:
        """The value at `trial`, and its derivative there."""
        self.evaluations = turn
        first = not self.recent
        if first and not np.isfinite(value):
            self.done = True  # outside the domain
            return
        if not first:
            promised = self.share * float(np.sum(self.slope * self.direction))
            rounding = 1e-14 * (1.0 + abs(self.value))
            if not value <= max(self.recent[-MEMORY:]) + DECREASE * promised + rounding:
                self.share *= SHRINK
                self.done = self.share < 1e-14
                self.trial = self.point + self.share * self.direction
                return
            moved, bent = self.trial - self.point, slope - self.slope
            along = float(np.sum(moved * bent))
            self.length = float(np.sum(moved * moved)) / along if along > 0 else STEPS[1]
        else:
            self.length = 1.0 / max(float(np.abs(slope).max()), 1e-300)
        self.point, self.value, self.slope = self.trial, value, slope
        self.recent.append(value)
        self.residual = self._residual()
        if self.residual <= tolerance:
            self.done = True
            return
        self.length = float(np.clip(self.length, *STEPS))
        self.direction = self.ball.project(self.point - self.length * slope) - self.point
        self.share = 1.0
        self.done = not self.direction.any()
        self.trial = self.point + self.direction

    def _residual(self) -> float:
        steepest = float(self.ball.norm.dual(self.slope))
        if steepest == 0.0 or self.ball.size(self.point) < 1.0 - SHORTER:
            return steepest
        return max(1.0 + float(np.sum(self.slope * self.point)) / steepest, 0.0)

    def end(self, radius: float) -> tuple[Array, ...]:
        """Weights, value, residual, radial derivative, size of the gradient, evaluations."""
        slope_out = np.sum(self.slope * self.point)
        size = self.ball.norm.dual(self.slope)
        numbers = (self.value, self.residual, slope_out, size, self.evaluations)
        return (radius * self.point.ravel(), *map(np.asarray, numbers))
