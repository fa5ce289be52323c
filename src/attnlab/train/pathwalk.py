"""The searches of a regularization path, radius by radius: the best of several starts at each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.models.model import Shapes
from attnlab.models.powers import exponent, lowered
from attnlab.models.problem import Objective
from attnlab.models.scaled import Tree, Value
from attnlab.train.blocks import in_blocks
from attnlab.train.normball import SHORTER, NormBall
from attnlab.train.pathstart import Starts
from attnlab.train.sphere import Cone, Lowest, Measure, Region, lowest

TOLERANCE = 1e-10  # of the residual, at which a search ends
EVALUATIONS = 5000  # of one search
FLOOR = 1.0  # with `toward`, a search also ends where the gradient of the log excess is below TOLERANCE times this
# A residual up to this is a minimum; the direction is then right to about 1e-6 of the condition number.
SOLVED = 1e-6
# A ball search begins this far inside the sphere.
INSIDE = 0.99

Solutions: TypeAlias = Lowest[np.ndarray]  # of all trials, and of all searches or radii


@dataclass(frozen=True, eq=False)
class Stage:
    """One radius of all trials: the best of the searches, (trials, ...), and the value of each."""

    best: Solutions
    ends: Array  # (trials, starts)
    winner: NDArray[np.intp]
    inside: NDArray[np.bool_]  # is the minimum inside the ball?


@dataclass(eq=False)
class Walk:
    """The searches of all trials and starts, radius by radius."""

    objective: Objective
    measure: Measure
    norm: str
    ball: NormBall | None  # of a norm that is neither of the two that have searches of their own
    shapes: Shapes
    problem: Tree
    fixed: dict[str, Array]  # parameters that are not trained
    weights: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]  # of parameters
    cone: Cone | None
    starts: Starts
    compiled: frozenset[str] = frozenset()

    def stage(self, number: int, radius: Array, before: Stage | None) -> Stage:
        """Solve at one radius per trial."""
        if self.ball is not None:
            return self._in_ball(self.ball, number, radius, before)
        # |K|^2 + |Q|^2 = 2R
        length = np.sqrt(2.0 * radius) if self.factored else radius
        points = self.starts.at(number, None if before is None else before.best.weights)
        trials, searches = points.shape[:2]
        # Where attention has settled on worse tokens the gradient is exponentially small. A search can follow it out
        # of there, slowly; that is worth it only where no search starts in the right place.
        guided = self.measure == "log excess" and self.starts.toward is not None
        lanes = self._search("sphere", points, length, FLOOR if guided else 0.0)
        value = np.where(np.isfinite(lanes.value), lanes.value, np.inf)
        winner = value.argmin(1)
        best = Lowest(*(part[np.arange(trials), winner] for part in lanes))
        best = best._replace(value=value.min(1), evaluations=lanes.evaluations.sum(1))
        rough = np.isfinite(best.value) & (best.residual > TOLERANCE)
        if rough.any():
            best = self._refined(best, rough, searches, length)
        inward = best.radial > 0
        if before is not None:
            inward |= before.best.value < best.value  # the smaller ball did better
        inward &= np.isfinite(best.value) & (self.cone is None)
        inside = np.zeros(trials, dtype=bool)
        if inward.any():
            candidates = INSIDE * best.weights[:, None]
            if before is not None:  # what was inside a smaller ball is inside this one
                candidates = np.concatenate([candidates, before.best.weights[:, None]], axis=1)
            balls = self._search("ball", candidates, length, 0.0)
            at = np.where(np.isfinite(balls.value), balls.value, np.inf).argmin(1)
            ball = Lowest(*(part[np.arange(trials), at] for part in balls))
            inside = inward & (ball.value < best.value) & (ball.residual <= SOLVED)
            ball = ball._replace(radial=best.radial, evaluations=best.evaluations + balls.evaluations.sum(1))
            best = _pick(inside, ball, best)
        return Stage(best, value, winner, inside)

    @property
    def factored(self) -> bool:
        """Are K and Q searched, whose ball is that of the nuclear norm of K Q^T?"""
        return self.norm == "nuclear" and self.ball is None

    def _in_ball(self, ball: NormBall, number: int, radius: Array, before: Stage | None) -> Stage:
        """Solve at one radius per trial in the ball of any norm; minima inside it are found by the way."""
        points = self.starts.at(number, None if before is None else before.best.weights)
        trials, searches = points.shape[:2]

        def per_lane(a: Value) -> Array:
            return np.repeat(np.asarray(a), searches, axis=0)

        problem, fixed = jax.tree.map(per_lane, (self.problem, self.fixed))
        ends = ball.lowest(
            problem,
            fixed,
            points.reshape(trials * searches, -1),
            per_lane(radius),
            objective=self.objective,
            measure=self.measure,
            shapes=self.shapes,
            tolerance=TOLERANCE,
            evaluations=EVALUATIONS,
        )
        lanes = Lowest(*(part.reshape(trials, searches, *part.shape[1:]) for part in ends))
        winner = lanes.value.argmin(1)
        best = Lowest(*(part[np.arange(trials), winner] for part in lanes))
        best = best._replace(evaluations=lanes.evaluations.sum(1))
        shape = self.shapes[0][1]
        lengths = np.array([ball.size(w.reshape(shape)) for w in best.weights])
        inside = np.isfinite(best.value) & (lengths < (1.0 - SHORTER) * radius)
        return Stage(best, lanes.value, winner, inside)

    def _refined(self, best: Solutions, rough: NDArray[np.bool_], searches: int, length: Array) -> Solutions:
        """`best` with those trials that are `rough` searched on, to the strict tolerance."""
        # As many lanes as before, all alike: the program is compiled already.
        lanes = self._search("sphere", np.repeat(best.weights[:, None], searches, axis=1), length, 0.0)
        fine = Lowest(*(part[:, 0] for part in lanes))
        fine = fine._replace(evaluations=best.evaluations + fine.evaluations)
        better = rough & (fine.residual < best.residual)
        return _pick(better, fine, best)

    def _search(self, region: Region, points: Array, length: Array, floor: float) -> Solutions:
        """All searches of all trials, in one compiled program; (trials, searches, ...)."""
        trials, searches, _ = points.shape

        def per_lane(a: Value) -> Array:
            return np.repeat(np.asarray(a), searches, axis=0)

        program = partial(
            lowest,
            objective=self.objective,
            measure=self.measure,
            shapes=self.shapes,
            region=region,
            tolerance=TOLERANCE,
            evaluations=EVALUATIONS,
        )
        # A search on the sphere sees the direction of its start; squares of a start of 1e-200 would underflow.
        points = points if region == "ball" else lowered(points, exponent(points, (-1,)), 1)
        lanes = (
            *jax.tree.map(per_lane, (self.problem, self.fixed, self.cone)),
            points.reshape(trials * searches, -1),
            per_lane(length),
            np.full(trials * searches, floor),
        )
        ends = in_blocks(program, lanes, compiled=region in self.compiled)
        self.compiled |= {region}
        return Lowest(*(part.reshape(trials, searches, *part.shape[1:]) for part in ends))

    def slack(self, W: Array) -> Array | None:
        """By how much W, (trials, m, d, d), is inside the cone."""
        if self.cone is None:
            return None
        return np.stack([self.starts.shield(W[:, k]) for k in range(W.shape[1])], axis=1) - self.cone.eps[:, None]


def _pick(which: NDArray[np.bool_], one: Solutions, other: Solutions) -> Solutions:
    """Of the trials in `which` the one, of the others the other."""
    return jax.tree.map(lambda a, b: np.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b), one, other)
