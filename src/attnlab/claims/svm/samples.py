"""Data sets that meet the assumptions of the paper, and the gradient on many of them at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.data import Tokens, optimal_tokens, scores, sphere
from attnlab.data.tokens import Array
from attnlab.models import gradient
from attnlab.svm import MarginSolutions, solve_margins
from attnlab.theory import Check, assumption_b1, assumption_b2, lipschitz_constants

# One shape for all of them: one compiled program serves every claim.
SIZES = {"n": 3, "T": 3, "d": 12}
TRIALS = 50


@dataclass(frozen=True, eq=False)
class Sample:
    """A batch of data sets of which some meet an assumption.

    Attributes:
        tokens: all that were drawn.
        best: their optimal tokens, (trials, n).
        margins: their max-margin solutions.
        meets: which of them meet the assumption.
        slack: by how much those do; see the function that drew them.
    """

    tokens: Tokens
    best: NDArray[np.intp]
    margins: MarginSolutions
    meets: NDArray[np.bool_]
    slack: dict[str, float]


def all_support(seed: int, trials: int = TRIALS) -> Sample:
    """Random data sets, with those marked that meet B.1: the best token is unique and all others are support tokens.

    `slack` is the certified room of the loosest constraint, 0 to rounding, and the least score gap.
    """
    tokens = sphere(**SIZES, seed=seed, trials=trials)
    best, margins, gaps = _solved(tokens)
    checks = [assumption_b1(tokens[i], solution=margins[i]) for i in range(trials)]
    meets = np.array([check.holds for check in checks]) & (gaps > 0)
    slack = {"B.1: 1 + error - value": _least_slack(checks, meets), "score gap": _least(gaps, meets)}
    return Sample(tokens, best, margins, meets, slack)


def equal_others(seed: int, trials: int = TRIALS) -> Sample:
    """Random data sets changed to meet B.2: the component along v of all tokens but the best is made the same.

    `slack` is the allowed less the measured spread of those scores, and the least score gap.
    """
    drawn = sphere(**SIZES, seed=seed, trials=trials)
    v = drawn.v
    assert v is not None
    best = optimal_tokens(drawn)
    along = np.einsum("rntd,rd->rnt", drawn.x, v)
    is_best = np.arange(drawn.T) == best[..., None]
    first_other = np.argmin(is_best, axis=-1)
    level = np.take_along_axis(along, first_other[..., None], axis=-1)
    shift = np.where(is_best, 0.0, level - along)
    tokens = Tokens(x=drawn.x + shift[..., None] * v[:, None, None, :], z=drawn.z, y=drawn.y, v=v)
    best, margins, gaps = _solved(tokens)
    checks = [assumption_b2(tokens[i]) for i in range(trials)]
    meets = np.array([check.holds for check in checks]) & margins.feasible
    slack = {"B.2: allowed - measured spread": _least_slack(checks, meets), "score gap": _least(gaps, meets)}
    return Sample(tokens, best, margins, meets, slack)


def _solved(tokens: Tokens) -> tuple[NDArray[np.intp], MarginSolutions, Array]:
    best = optimal_tokens(tokens)
    return best, solve_margins(tokens, best), score_gaps(tokens)


def score_gaps(tokens: Tokens) -> Array:
    """How far the best score of a query leads the next, least over the queries of each trial, (trials,)."""
    ranked = np.sort(np.where(tokens.visible, scores(tokens), -np.inf), axis=-1)
    return (ranked[..., -1] - ranked[..., -2]).reshape(len(ranked), -1).min(-1)


def _least_slack(checks: list[Check], meets: NDArray[np.bool_]) -> float:
    """Of the checks of those that meet the assumption; inf if none does."""
    return min((check.margin for check, met in zip(checks, meets, strict=True) if met), default=np.inf)


def _least(values: Array, meets: NDArray[np.bool_]) -> float:
    return float(values[meets].min()) if meets.any() else np.inf


def slopes(tokens: Tokens, weights: Array | dict[str, Array], loss: str = "logistic") -> dict[str, Array]:
    """The gradient of the objective on each trial, by parameter."""
    mantissa, log_scale = gradient(tokens, weights, loss=loss)
    return {name: part * np.exp(log_scale[name])[:, None, None] for name, part in mantissa.items()}


def with_unit_constant(tokens: Tokens) -> Tokens:
    """The same data sets with queries scaled so that the constant L_W of Lemma 4 is 1.

    A step of length c on these is a step of c / L_W on the given ones, each with its own L_W, in the weights
    `W sqrt(L_W)`.
    """
    assert tokens.trials is not None
    constants = np.array([lipschitz_constants(tokens[i]).W for i in range(tokens.trials)])
    return Tokens(x=tokens.x, z=tokens.z / np.sqrt(constants)[:, None, None], y=tokens.y, v=tokens.v)
