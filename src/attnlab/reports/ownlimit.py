"""Each trial of a run beside the limit of the tokens that it selects itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.svm import MarginSolution, linear_margin, solve_margin, solve_margins
from attnlab.theory.svm.geometry import is_locally_optimal
from attnlab.train.trajectory import Trajectory

# A selection has to stand from this share of the run on.
LATE = 0.5

NormName = Literal["frobenius", "nuclear"]
# Trains with these targets and tracked tokens; they decide what is recorded, not where the weights go.
Train = Callable[[Mapping[str, Array], NDArray[np.intp]], Trajectory]


class TrialState(Enum):
    """How a trial stands to the direction that it is compared with, as a sentence."""

    SETTLED = "Its tokens are locally optimal, and were selected over the last half of the run."
    UNSETTLED = "Its tokens are not locally optimal, or were not selected over the last half of the run."
    INFEASIBLE = "No W was found that separates its tokens from the others, so there is no direction to compare with."
    ELSEWHERE = "It selects other tokens than the given ones, with whose direction it is compared."
    DIVERGED = "Loss or weights overflowed."

    @property
    def word(self) -> str:
        """In a table."""
        return {"UNSETTLED": "not settled"}.get(self.name, self.name.lower())


@dataclass(frozen=True, kw_only=True, eq=False)
class Limits:
    """Max-margin solutions of a selection in every trial.

    Attributes:
        selected: the tokens, as labels are laid out, after a trial axis.
        solutions: of each trial.
    """

    selected: NDArray[np.intp]
    solutions: tuple[MarginSolution, ...]

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """Does some W separate the tokens? Of each trial."""
        return np.array([solution.feasible for solution in self.solutions])

    @property
    def Lambda(self) -> Array:
        """|W_mm| of each trial; inf where infeasible."""
        return np.array([1.0 / s.margin if s.feasible else np.inf for s in self.solutions])

    @property
    def W(self) -> Array:
        """Directions, (trials, d, d); those of infeasible trials stand for nothing, and are the identity."""
        some = [s.W if s.feasible else np.eye(len(s.W)) for s in self.solutions]
        return np.stack(some)


def limits_of(tokens: Tokens, selected: NDArray[np.intp], norm: NormName) -> Limits:
    """Solve the max-margin problem of every trial; `selected` has a trial axis if the tokens have one."""
    if tokens.trials is None:
        solutions = (solve_margin(tokens, selected, norm=norm, throw=False),)
        selected = np.asarray(selected)[None]
    else:
        solutions = tuple(solve_margins(tokens, selected, norm=norm))
    if any(s.feasible and not s.W.any() for s in solutions):
        problem = "`tokens` let every query see one token; W has nothing to separate, and no rate."
        raise InputError(message(problem, "use T >= 2"))
    return Limits(selected=selected, solutions=solutions)


def beside_own_limit(
    tokens: Tokens, train: Train, first: Limits, expected: Limits, *, norm: NormName, given: bool, joint: bool
) -> tuple[Trajectory, Limits, tuple[TrialState, ...]]:
    """Train, and compare every trial with the max-margin direction of the tokens that it ends at.

    Which these are is known only in the end. The run is measured beside `first`; where some trial ends at other tokens
    the same run is made once more, and measured beside those.

    Args:
        tokens: the data.
        train: makes the run.
        first: a guess of where it ends; the run is made once if it is right.
        expected: where theory expects it to end; what trials that diverged are compared with.
        norm: of the max-margin problem.
        given: compare with `first`, wherever the run ends.
        joint: is the head trained too?

    Returns:
        The run, whose misalignment is NaN in infeasible trials; the limits it was measured beside; and the state of
        every trial.
    """
    run = train(_targets(tokens, first, joint), _without_axis(first.selected, tokens))
    own = _own_selection(run, expected)
    if given or np.array_equal(own, first.selected):
        limits = first
    else:
        limits = limits_of(tokens, _without_axis(own, tokens), norm)
        run = train(_targets(tokens, limits, joint), _without_axis(own, tokens))
    states = _states(tokens, run, limits, own)
    run = _without_empty(run, "svm", limits.feasible)
    if joint:
        run = _without_empty(run, "head", np.isfinite(_heads(tokens, limits.selected)[:, 0]))
    return run, limits, states


def settled(tokens: Tokens, run: Trajectory, limits: Limits) -> NDArray[np.bool_]:
    """Has each trial come to stay where theory lets it stay?

    Its tokens must be locally optimal, exactly checked, and lead in attention at all records of the last half of the
    run. The run must have tracked `limits.selected`. If it trained the head, scores are those of the trained one.
    """
    late = run.steps >= LATE * run.steps[-1]
    leads = np.atleast_2d(run.metrics["margin"])[:, late]  # (trials, late records)
    stays = np.atleast_1d((leads > 0).all(-1))
    for i in np.flatnonzero(stays & limits.feasible):
        stays[i] = _locally_optimal(_one(tokens, run, int(i)), limits.selected[i], limits.solutions[i])
    return stays & limits.feasible


def _locally_optimal(tokens: Tokens, selected: NDArray[np.intp], solution: MarginSolution) -> bool:
    # Definition 2 reads the support off the Frobenius problem.
    known = solution if solution.norm == "frobenius" else None
    return is_locally_optimal(tokens, selected, solution=known).holds


def _one(tokens: Tokens, run: Trajectory, trial: int) -> Tokens:
    """One data set, with the trained head if there is one."""
    alone = tokens if tokens.trials is None else tokens[trial]
    if "u" not in run.weights:
        return alone
    u = run.u if tokens.trials is None else run.u[trial]
    return Tokens(x=alone.x, z=alone.z, y=alone.y, v=u, mask=alone.mask)


def _own_selection(run: Trajectory, expected: Limits) -> NDArray[np.intp]:
    """The tokens that each trial ends at, (trials, ...); the expected ones where it diverged."""
    ends = run.selected if run.trials is not None else run.selected[None]
    lost = np.atleast_1d(run.diverged)
    return np.where(lost.reshape(-1, *[1] * (ends.ndim - 1)), expected.selected, ends)


def _states(tokens: Tokens, run: Trajectory, limits: Limits, own: NDArray[np.intp]) -> tuple[TrialState, ...]:
    lost = np.atleast_1d(run.diverged)
    there = (own == limits.selected).reshape(len(own), -1).all(-1)
    stays = settled(tokens, run, limits)
    words = np.select(
        [lost, ~limits.feasible, ~there, stays],
        ["DIVERGED", "INFEASIBLE", "ELSEWHERE", "SETTLED"],
        "UNSETTLED",
    )
    return tuple(TrialState[str(word)] for word in words)


def _targets(tokens: Tokens, limits: Limits, joint: bool) -> dict[str, Array]:
    """W_mm, and u_mm where the head is trained."""
    targets = {"svm": _without_axis(limits.W, tokens)}
    if joint:
        heads = _heads(tokens, limits.selected)
        some = np.where(np.isfinite(heads), heads, 1.0)  # what stands for nothing must still be a direction
        targets["head"] = _without_axis(some, tokens)
    return targets


def _heads(tokens: Tokens, selected: NDArray[np.intp]) -> Array:
    """u_mm: the best linear classifier of the selected tokens of each trial; NaN where no u separates their labels."""
    if tokens.K is not None:
        raise InputError(message(f"`tokens` have K = {tokens.K} queries; joint training is for one per sequence."))
    x, y = (tokens.x, tokens.y) if tokens.trials is not None else (tokens.x[None], tokens.y[None])
    points = np.take_along_axis(x, selected[..., None, None], axis=-2)[..., 0, :]  # (trials, n, d)
    heads = np.full((len(x), tokens.d), np.nan)
    for i, pair in enumerate(zip(points, y, strict=True)):
        weights = linear_margin(*pair).weights
        if weights is not None:
            heads[i] = weights
    return heads


def _without_axis(array: Any, tokens: Tokens) -> Any:
    """Without the trial axis where the tokens have none."""
    return array if tokens.trials is not None else array[0]


def _without_empty(run: Trajectory, target: str, there: NDArray[np.bool_]) -> Trajectory:
    """The run with NaN for what was measured beside a direction that stands for nothing; `there` is (trials,)."""
    if there.all():
        return run
    metrics = dict(run.metrics)
    for name in (f"misalignment_{target}", f"cosine_{target}"):
        values = np.where(there[:, None], np.atleast_2d(metrics[name]), np.nan)
        metrics[name] = values if run.trials is not None else values[0]
    return replace(run, metrics=metrics)
