"""On-average stability of training: how far the weights move when one sequence is left out.

Section 6.2 of *On the Optimization and Generalization of Multi-head Attention* (Lemmas 3 and 11). The loss without
sequence i is still divided by n. A sequence of zero tokens has output 0 and gradient 0 whatever the weights are, so
leaving one out is the same as putting zeros in its place, and all n + 1 runs are one batch of trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax
from numpy.typing import ArrayLike

from attnlab.checks import instance
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.multihead import MultiHead
from attnlab.optim.rule import StepRule
from attnlab.theory.multihead.ntk import total_norm
from attnlab.train.descend import descend
from attnlab.train.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Stability:
    """Distances of the weights, over all heads, from those of runs that left one sequence out.

    Attributes:
        distances: one for each sequence, (n,) after the trial axis of the data; not finite where `run.diverged`.
        moved: how far the run on all sequences went from its start; () or (trials,).
        run: all runs; trial (n + 1) s is data set s as it is, the n trials after it each leave one sequence out. What
            it records as loss of these includes log(2) / n for the sequence that is not there.
    """

    distances: Array
    moved: Array
    run: Trajectory

    @property
    def mean(self) -> Array:
        """Over the sequences: what Lemmas 3 and 11 bound."""
        return self.distances.mean(-1)

    def __repr__(self) -> str:
        n, largest = self.distances.shape[-1], self.distances.max()
        return f"Stability(mean={np.mean(self.mean):.4g}, largest={largest:.4g}, n={n})"


def leave_one_out(tokens: Tokens) -> Tokens:
    """The data, then n copies with one sequence of zeros each, as trials; for every data set of a batch in turn.

    >>> import attnlab as al
    >>> leave_one_out(al.data.sphere(n=3, T=2, d=4)).trials
    4
    """
    sets, n = tokens.trials or 1, tokens.n
    x = np.broadcast_to(tokens.x.reshape(sets, 1, n, tokens.T, tokens.d), (sets, n + 1, n, tokens.T, tokens.d)).copy()
    x[:, np.arange(1, n + 1), np.arange(n)] = 0.0
    y = np.broadcast_to(tokens.y.reshape(sets, 1, n), (sets, n + 1, n))
    return Tokens.self_attention(x.reshape(-1, n, tokens.T, tokens.d), y.reshape(-1, n))


def stability(
    tokens: Tokens,
    model: MultiHead,
    rule: optax.GradientTransformation,
    *,
    steps: int,
    init: str | Mapping[str, ArrayLike] = "zeros",
    **options: Any,
) -> Stability:
    """Train on all sequences and on all but each one, from the same start.

    Args:
        tokens: the data, or a batch of data sets.
        model: the model.
        rule: any rule that reads gradients alone; not one that reads the loss.
        steps: how many.
        init: "zeros" or weights; one start for all runs.
        options: of `descend`, as `record` and `metrics`.

    >>> import attnlab as al
    >>> stability(al.data.sphere(n=4, T=3, d=5), MultiHead(heads=10**6), al.gd(0.1), steps=20).distances.shape
    (4,)
    """
    instance("model", model, MultiHead, "al.models.MultiHead")
    if model.head_width is not None:
        problem = f"`model` has head_width = {model.head_width!r}; wanted whole heads, whose ways are measured."
        raise InputError(message(problem, "head_width=None"))
    model.accepts(tokens, "tokens")
    if isinstance(rule, StepRule) and rule.name == "polyak":
        raise InputError(
            message("`rule` reads the loss, which a sequence of zeros does not leave alone.", "al.gd, al.ngd, al.adam")
        )
    if isinstance(init, str) and init != "zeros":
        raise InputError(message(f"`init` is {init!r}; wanted 'zeros' or weights, one start for all runs."))
    run = descend(leave_one_out(tokens), rule, model=model, init=init, steps=steps, **options)
    sets = () if tokens.trials is None else (tokens.trials,)
    counts = model.grouped(run.weights["W"].shape[1])
    weights = _by_run(run.weights, sets, tokens.n)
    initial = _by_run(run.initial, sets, tokens.n)
    axis = len(sets)
    whole = _at(weights, slice(0, 1), axis)
    without = _at(weights, slice(1, None), axis)
    ended = _at(weights, 0, axis)
    started = _at(initial, 0, axis)
    distances = total_norm({name: without[name] - whole[name] for name in whole}, counts)
    moved = total_norm({name: ended[name] - started[name] for name in started}, counts)
    return Stability(distances=distances, moved=moved, run=run)


def _by_run(weights: Mapping[str, Array], sets: tuple[int, ...], n: int) -> dict[str, Array]:
    """Each with the trials of the batch as (data sets..., n + 1 runs, ...)."""
    return {name: w.reshape(*sets, n + 1, *w.shape[1:]) for name, w in weights.items()}


def _at(weights: Mapping[str, Array], runs: int | slice, axis: int) -> dict[str, Array]:
    """Those of one run, or of some, which are along this axis."""
    every = (slice(None),) * axis
    return {name: w[(*every, runs)] for name, w in weights.items()}
