"""A run, prepared: what is trained, on what, from where, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from numpy.typing import ArrayLike

from attnlab.data.families import Seed
from attnlab.errors import InputError, message
from attnlab.models.losses import Loss
from attnlab.models.model import Data, Init, Model, Targets, Weights
from attnlab.models.problem import Objective
from attnlab.models.scaled import Params, Tree
from attnlab.train.batches import Batches
from attnlab.train.feeding import WHOLE, Feeding


@dataclass(frozen=True)
class Job:
    """What is trained, on what, from where; every array with a trial axis, but `start`.

    Attributes:
        objective: what is minimised.
        problem: the data in the form that the objective works on.
        params: parameters at step 0.
        compared, targets: what records compare with.
        tester, test: the objective and the problem of the test examples; None without.
        start: weights at step 0, as the user knows them, with the trial axis of the data.
        weights: parameters -> weights.
        selected: parameters -> the tokens with the largest attention.
        exact: parameters that cannot be found again from the weights to the last digit.
        batches: how the data are cut into batches; None for steps that see all of them.
        portion: examples that records evaluate at a time; None for all at once.
        at_work: bytes that a step of one trial holds beside these arrays.
        lanes: can the objective take trials along the last axis?
    """

    objective: Objective
    problem: Tree
    params: Params
    compared: Tree
    targets: dict[str, Tree]
    start: Weights
    weights: Callable[[Params], Weights]
    selected: Callable[[Params], np.ndarray]
    tester: Objective | None = None
    test: Tree = None
    exact: tuple[str, ...] = ()
    batches: Batches | None = None
    portion: int | None = None
    at_work: int = 0
    lanes: bool = False


def make_job(
    data: Data,
    model: Model,
    loss: Loss,
    *,
    init: Init = None,
    init_scale: float = 1.0,
    seed: Seed = 0,
    isotropic: bool = False,
    matrices: bool = False,
    targets: Targets | None = None,
    track: ArrayLike | None = None,
    test: Data | None = None,
    feeding: Feeding = WHOLE,
) -> Job:
    """The model on its data with these options; see `descend`."""
    model.check_trainable(data)
    batches = feeding.batches(data, model)
    if batches is not None:
        model = model.directly()
    start = model.start(data, init, init_scale, seed)
    # What is recorded of test examples takes the weights themselves, as a user's metrics do.
    matrices = matrices or test is not None
    prepared = model.prepare(data, loss, start, isotropic=isotropic, matrices=matrices)
    prepared.check_loss()
    compared = model.compared(data, prepared, start, track)
    tested = None if test is None else model.tested(data, loss, start, test)
    directions = model.targets(data, targets, start)
    add_axis = partial(_with_trials, data=data)
    problem, params = prepared.problem, prepared.params
    if batches is not None and getattr(problem, "powers", None) is not None:
        refused = "`batch` is for data of ordinary scale; sums over these tokens leave float64."
        raise InputError(message(refused, "np.ldexp(x, -20) divides by 2^20"))
    if not prepared.batched:
        problem, params = add_axis(problem), add_axis(params)
    portion = feeding.portion_of(model, batches)

    def selected(params: Params) -> np.ndarray:
        if portion is not None:  # attention of all examples at once may not fit
            return np.zeros((data.trials or 1, 0), dtype=np.intp)
        largest = np.asarray(_largest(params, problem, prepared.objective))
        return model.as_shown(largest, data, -1)

    def weights(params: Params) -> Weights:
        return {name: np.asarray(weight, dtype=np.float64) for name, weight in prepared.weights(params).items()}

    return Job(
        objective=prepared.objective,
        problem=feeding.on_device(problem, batches),
        params=feeding.typed(params),
        compared=feeding.on_device(add_axis(compared), batches),
        targets=feeding.typed(prepared.as_targets(add_axis(directions))),
        start=start,
        weights=weights,
        selected=selected,
        tester=None if tested is None else tested.objective,
        test=None if tested is None else feeding.on_device(add_axis(tested.problem), batches),
        exact=() if prepared.exact else tuple(start),
        batches=batches,
        portion=portion,
        at_work=model.bytes_at_work(data, start),
        lanes=batches is None and prepared.objective.has_lanes(problem, params),
    )


def _with_trials(tree: Tree, *, data: Data) -> Tree:
    """Arrays with a trial axis, of length 1 where the data have none."""
    return jax.tree.map(lambda array: np.asarray(array)[None], tree) if data.trials is None else tree


@partial(jax.jit, static_argnums=2)
def _largest(params: Params, problem: Tree, objective: Objective) -> jax.Array:
    return jax.vmap(objective.largest_attention)(params, problem)
