"""A run, prepared: what is trained, on what, from where, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from numpy.typing import ArrayLike

from attnlab.models.losses import Loss
from attnlab.models.model import Data, Init, Model, Targets, Weights
from attnlab.models.problem import Objective
from attnlab.models.scaled import Params, Tree


@dataclass(frozen=True)
class Job:
    """What is trained, on what, from where; every array with a trial axis, but `start`.

    Attributes:
        objective: what is minimised.
        problem: the data in the form that the objective works on.
        params: parameters at step 0.
        compared, targets: what records compare with.
        start: weights at step 0, as the user knows them, with the trial axis of the data.
        weights: parameters -> weights.
        selected: parameters -> the tokens with the largest attention.
        exact: parameters that cannot be found again from the weights to the last digit.
    """

    objective: Objective
    problem: Tree
    params: Params
    compared: Tree
    targets: dict[str, Tree]
    start: Weights
    weights: Callable[[Params], Weights]
    selected: Callable[[Params], np.ndarray]
    exact: tuple[str, ...] = ()


def make_job(
    data: Data,
    model: Model,
    loss: Loss,
    *,
    init: Init = None,
    init_scale: float = 1.0,
    seed: int = 0,
    isotropic: bool = False,
    matrices: bool = False,
    targets: Targets | None = None,
    track: ArrayLike | None = None,
    test: Data | None = None,
) -> Job:
    """The model on its data with these options; see `descend`."""
    model.check_trainable(data)
    start = model.start(data, init, init_scale, seed)
    prepared = model.prepare(data, loss, start, isotropic=isotropic, matrices=matrices)
    prepared.check_loss()
    compared = model.compared(data, prepared, start, track, test)
    directions = model.targets(data, targets, start)
    add_axis = partial(_with_trials, data=data)
    problem, params = prepared.problem, prepared.params
    if not prepared.batched:
        problem, params = add_axis(problem), add_axis(params)

    def selected(params: Params) -> np.ndarray:
        largest = np.asarray(_largest(params, problem, prepared.objective))
        return model.as_shown(largest, data, -1)

    return Job(
        objective=prepared.objective,
        problem=problem,
        params=params,
        compared=add_axis(compared),
        targets=prepared.as_targets(add_axis(directions)),
        start=start,
        weights=prepared.weights,
        selected=selected,
        exact=() if prepared.exact else tuple(start),
    )


def _with_trials(tree: Tree, *, data: Data) -> Tree:
    """Arrays with a trial axis, of length 1 where the data have none."""
    return jax.tree.map(lambda array: np.asarray(array)[None], tree) if data.trials is None else tree


@partial(jax.jit, static_argnums=2)
def _largest(params: Params, problem: Tree, objective: Objective) -> jax.Array:
    return jax.vmap(objective.largest_attention)(params, problem)
