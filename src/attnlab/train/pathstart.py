"""Where the searches of a regularization path start, and the cone that a local path stays in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import finite_array, shown
from attnlab.data.directions import unit
from attnlab.data.scale import lengths
from attnlab.data.selection import TIE, scores, token_numbers
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.heads import Head
from attnlab.models.layer_problem import LayerProblem
from attnlab.models.model import Data, Model, Shapes, Weights, unit_rows
from attnlab.models.scaled import GivenWeights, Tree
from attnlab.train.normball import NormBall
from attnlab.train.sphere import Cone, shield

# Keeps the stream of these draws apart from those of the data and of the initial weights of a run.
PATH_STREAM = 2
# Given factors of low rank get this much noise, as columns that are zero in both K and Q would stay zero; but not in
# a cone, which it might lead out of.
NOISE = 1e-2
# How often a restart is drawn nearer to the axis of the cone until it is inside.
HALVINGS = 40
SMALLEST = 1e-290  # radius; squares and products with it are formed by logarithms alone


def check_radii(radii: Sequence[float] | np.ndarray) -> Array:
    """Increasing positive numbers."""
    given = finite_array("radii", radii)
    good = given.ndim == 1 and given.size > 0
    if not (good and given[0] > 0 and (given[1:] > given[:-1]).all()):
        raise InputError(message(f"`radii` is {shown(radii)}; wanted increasing numbers above 0.", "radii=(1, 3, 10)"))
    return given


def check_toward(toward: ArrayLike | None, tokens: Tokens) -> Array | None:
    """A finite nonzero matrix per trial, or None."""
    if toward is None:
        return None
    given = finite_array("toward", toward)
    wanted = (tokens.d, tokens.d)
    if given.shape not in (wanted, (tokens.trials, *wanted)):
        per_trial = "" if tokens.trials is None else ", or one such matrix per trial"
        raise InputError(message(f"`toward` has shape {given.shape}; wanted {wanted}{per_trial}."))
    if not given.any(axis=(-2, -1)).all():
        hint = "an infeasible or unconstrained max-margin problem has none"
        raise InputError(message("`toward` is zero; wanted a direction for every trial.", hint))
    return np.array(np.broadcast_to(given, (tokens.trials or 1, *wanted)))


def weights_toward(toward: GivenWeights | None, model: Model, data: Data, blank: Weights) -> Array | None:
    """Weights by name as a vector of the trained parameters for each trial; `blank` are weights of the right shapes."""
    if toward is None:
        return None
    weights = model.check(data, toward, "toward")
    given, wanted = ({name: w.shape for name, w in named.items()} for named in (weights, blank))
    if given != wanted:
        raise InputError(message(f"`toward` has weights of shapes {given}; wanted {wanted}."))
    held = model.held(data, blank, isotropic=True)
    params = weights if held is None else held.params(weights)
    trained = [name for name, weight in model.shapes(data).items() if weight.trained]
    vectors = np.concatenate([params[name].reshape(data.trials or 1, -1) for name in trained], axis=1)
    if not vectors.any(axis=1).all():
        raise InputError(message("`toward` is zero; wanted a direction for every trial."))
    return vectors


def check_lengths(multiples: Array, unit_radius: Array) -> None:
    """Refuse radii that are no floats, once they count in units of `toward`."""
    with np.errstate(over="ignore", under="ignore"):
        radii = multiples * unit_radius[:, None]
    if not (np.isfinite(radii) & (radii > SMALLEST)).all():
        extent = f"{radii.min():g} to {radii.max():g}; wanted numbers from {SMALLEST:g} to 1.8e308."
        hint = "scale the tokens, and solve for `toward` again"
        raise InputError(message(f"`radii` times the norm of `toward` is {extent}", hint))


def sizes(W: Array, norm: str, ball: NormBall | None = None) -> Array:
    """The Frobenius or nuclear norm of each matrix, or that of a ball, or the length of each vector; at any scale."""
    if W.ndim == 2:
        return lengths(W)
    top = np.abs(W).max(axis=(-2, -1))
    unit = W / np.where(top > 0, top, 1.0)[:, None, None]
    if ball is not None:
        return top * np.array([ball.size(one) for one in unit])
    with np.errstate(over="ignore"):  # of a W near the end of floats; its radius is refused
        return top * np.linalg.norm(unit, ord="fro" if norm == "frobenius" else "nuc", axis=(-2, -1))


def cone_of(
    tokens: Tokens, problem: LayerProblem, head: Head, selected: ArrayLike, eps: ArrayLike | None, toward: Array | None
) -> tuple[LayerProblem, Cone]:
    """The problem with its excess loss measured from `selected`, and cone_eps(selected).

    `eps` None takes half of what `toward` reaches. All arrays have a trial axis.
    """
    if toward is None:
        hint = "toward=al.solve_margin(tokens, selected).W"
        raise InputError(message("`selected` without `toward`: a local path starts from a max-margin matrix.", hint))
    chosen = token_numbers("selected", selected, tokens)
    gamma = scores(tokens, head).reshape(*problem.y.shape, tokens.T)
    visible = tokens.visible.reshape(gamma.shape)
    chosen = chosen.reshape(problem.y.shape)
    score = np.take_along_axis(gamma, chosen[..., None], axis=-1)
    same = TIE * np.where(visible, np.abs(gamma), 0.0).max(-1, keepdims=True)
    other = visible & (np.arange(tokens.T) != chosen[..., None])
    lower = score - gamma > same
    around = Cone(low=other & lower, high=other & ~lower, eps=np.zeros(len(gamma)))
    reached = _shield(problem, around, toward)
    # Without high tokens the cone is everything, whatever eps.
    half = np.where(np.isfinite(reached), 0.5 * reached, 0.0)
    wanted = half if eps is None else _cone_sizes(eps, reached.shape)
    if not ((reached >= wanted) & (reached > 0)).all():
        least = "a positive number" if eps is None else eps
        leads = f"lower tokens lead higher ones by {float(reached.min()):.3g} |W|, wanted at least {least}."
        hint = "`selected` must be locally optimal, and `toward` its max-margin matrix"
        raise InputError(message(f"`toward` is outside the cone of `selected`: {leads}", hint))
    return problem._replace(reference=chosen, reference_score=score[..., 0]), around._replace(eps=np.array(wanted))


def _cone_sizes(eps: ArrayLike, shape: tuple[int, ...]) -> Array:
    """One positive number per trial."""
    given = finite_array("cone", eps)
    if given.shape not in ((), shape) or not (given > 0).all():
        raise InputError(message(f"`cone` is {shown(eps)}; wanted a number above 0, or one per trial."))
    return np.broadcast_to(given, shape)


def _shield(problem: LayerProblem, cone: Cone, W: Array) -> Array:
    """`shield` of one W per trial."""
    with np.errstate(invalid="ignore"):
        point = unit(np, W)
    logits = np.einsum("rntd,rde,rnke->rnkt", problem.x, point, problem.z, optimize=True)
    if problem.powers is not None:
        with np.errstate(over="ignore", under="ignore"):
            logits = np.ldexp(logits, (problem.powers.x[..., None] + problem.powers.z)[..., None])
    return shield(np, logits, cone, 1.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class Starts:
    """The points from which the searches of every radius start, as vectors.

    `toward` is a matrix W for each trial of one attention layer, and a vector for other models.
    """

    model: Model
    problem: Tree
    shapes: Shapes
    toward: Array | None
    cone: Cone | None
    restarts: int
    seed: int

    @property
    def names(self) -> tuple[str, ...]:
        """One per search. At the first radius "continuation" starts at random, or at the axis of the cone."""
        given = () if self.toward is None else ("toward",)
        return ("continuation", *given, *(f"restart {k + 1}" for k in range(self.restarts)))

    def at(self, number: int, before: Array | None) -> Array:
        """Starts of radius `number`, (trials, searches, dim); `before` are the solutions of the one before."""
        trials = len(self.problem.x)
        drawn = np.stack([self._random(trial, number) for trial in range(trials)])  # (trials, restarts + 1, dim)
        if self.toward is not None:
            axis = self._from_matrix(self.toward, drawn[:, 0] if self.cone is None else 0.0 * drawn[:, 0])
            if self.cone is not None:
                drawn = np.stack([self._drawn_inside(axis, drawn[:, k]) for k in range(drawn.shape[1])], axis=1)
                drawn[:, 0] = axis
            drawn = np.concatenate([drawn[:, :1], axis[:, None], drawn[:, 1:]], axis=1)
        if before is not None:
            known = np.isfinite(before).all(1)
            drawn[known, 0] = before[known]
        return drawn

    def shield(self, W: Array) -> Array:
        """How well W, one per trial, is inside the cone; at least eps if it is."""
        assert self.cone is not None
        return _shield(self.problem, self.cone, W)

    def _random(self, trial: int, number: int) -> Array:
        """restarts + 1 random points of one trial, each of length 1 (zero if no output can change)."""
        rng = np.random.default_rng([self.seed, trial, number, PATH_STREAM])
        return self.model.random_points(self.problem, self.shapes, trial, rng, self.restarts + 1)

    @property
    def width(self) -> int | None:
        """Of K and Q; None if there are none."""
        return dict(self.shapes)["K"][-1] if "K" in dict(self.shapes) else None

    def _from_matrix(self, W: Array, noise: Array) -> Array:
        """A matrix per trial as a start: itself, or its balanced factors of rank at most the width."""
        if W.ndim == 2:
            return unit_rows(W)
        direction = unit(np, W)
        if self.width is None:
            return direction.reshape(len(W), -1)
        left, values, right = np.linalg.svd(direction)
        rank = min(self.width, values.shape[1])
        root = np.sqrt(values[:, None, :rank])
        K, Q = np.zeros((2, len(W), W.shape[1], self.width))
        K[..., :rank] = left[..., :rank] * root
        Q[..., :rank] = right.transpose(0, 2, 1)[..., :rank] * root
        factors = np.concatenate([K.reshape(len(W), -1), Q.reshape(len(W), -1)], axis=1)
        return unit_rows(unit_rows(factors) + NOISE * noise)

    def _drawn_inside(self, axis: Array, away: Array) -> Array:
        """`away` mixed with as much of `axis` as takes it into the cone, per trial."""
        assert self.cone is not None
        share = np.ones(len(axis))
        for _ in range(HALVINGS):
            points = unit_rows((1.0 - share)[:, None] * axis + share[:, None] * away)
            outside = ~(self.shield(self._as_matrix(points)) > self.cone.eps)
            if not outside.any():
                return points
            share = np.where(outside, 0.5 * share, share)
        return unit_rows((1.0 - share)[:, None] * axis + share[:, None] * away)

    def _as_matrix(self, points: Array) -> Array:
        d = self.problem.x.shape[-1]
        if self.width is None:
            return points.reshape(-1, d, d)
        K, Q = points.reshape(-1, 2, d, self.width).transpose(1, 0, 2, 3)
        return np.einsum("rim,rjm->rij", K, Q)
