"""The compiled program of a run: steps and metrics of every trial of a block."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.models.problem import Objective, Seen
from attnlab.models.scaled import Params, ScaledGradient, Tree, total_log_norm
from attnlab.train.metrics import UserFunctions, measure
from attnlab.train.watch import watched

# How a rule takes gradients: as mantissa and log-scale; plain with the loss as extra argument; plain.
Reads = Literal["scaled", "extra", "plain"]


@partial(jax.jit, static_argnames=("objective", "update", "reads", "user", "recording"))
def advance(
    problem: Tree,
    params: Params,
    state: Tree,
    compared: Tree,
    targets: dict[str, Tree],
    lengths: Array,
    count: Array,
    *,
    objective: Objective,
    update: Callable[..., tuple[Params, Tree]],
    reads: Reads,
    user: UserFunctions,
    recording: bool,
) -> tuple[Params, Tree, dict[str, Array]]:
    """`count` times: so many steps of every trial as `lengths` says next, then the metrics there.

    One program for any schedule: both the number of steps and the number of records are arguments. The state of a rule
    that does not read scaled gradients comes with a `Watch` over what it is given.
    """
    watching = reads != "scaled"

    def propose(problem: Tree, params: Params, state: Tree) -> tuple[Params, Tree, ScaledGradient, Tree]:
        gradient, forward = objective.gradient(params, problem)
        if reads == "plain":
            moves, state = update(gradient.value(), state, params)
        elif reads == "extra":
            moves, state = update(gradient.value(), state, params, value=objective.value(problem, forward))
        else:
            moves, state = update(
                gradient.mantissa,
                state,
                params,
                log_scale=gradient.log_scale,
                log_excess=objective.log_excess(problem, forward),
                value=objective.value(problem, forward),
            )
        return moves, state, gradient, forward

    def trial(
        problem: Tree, params: Params, state: Tree, compared: Tree, targets: Tree
    ) -> tuple[Params, Tree, dict[str, Array]]:
        def step(_: Array, carry: tuple[Params, Tree]) -> tuple[Params, Tree]:
            params, state = carry
            if watching:
                return watched(lambda p, s: propose(problem, p, s), params, *state)
            moves, state = propose(problem, params, state)[:2]
            return jax.tree.map(jnp.add, params, moves), state

        def measured(params: Params, state: Tree) -> dict[str, Array]:
            state = state[0] if watching else state
            moves, _, gradient, forward = propose(problem, params, state)
            return measure(objective, Seen(problem, params, gradient, forward, moves, compared, targets), user)

        def interval(i: Array, carry: tuple[Params, Tree, Tree]) -> tuple[Params, Tree, Tree]:
            params, state, records = carry
            params, state = jax.lax.fori_loop(0, lengths[i], step, (params, state))
            if recording:
                now = measured(params, state)
                records = jax.tree.map(lambda all, one: all.at[i].set(one), records, now)
            return params, state, records

        shapes = jax.eval_shape(measured, params, state) if recording else {}
        none_yet = jax.tree.map(lambda one: jnp.zeros((*lengths.shape, *one.shape), one.dtype), shapes)
        return jax.lax.fori_loop(0, count, interval, (params, state, none_yet))

    return jax.vmap(trial)(problem, params, state, compared, targets)


@partial(jax.jit, static_argnums=2)
def gradient_norms(params: Params, problem: Tree, objective: Objective) -> Array:
    """log of the norm of the gradient of every trial; -inf for zero."""

    def one(params: Params, problem: Tree) -> Array:
        gradient, _ = objective.gradient(params, problem)
        return total_log_norm(gradient.mantissa, gradient.log_scale)

    return jax.vmap(one)(params, problem)


# Linux lets a process map memory 65 530 times, and XLA crashes where it gets no more. A program takes some 300 of them.
MOST_MAPS = 30_000
LOOK_EVERY = 16
_runs = itertools.count(1)


def make_room() -> None:
    """Forget compiled programs before the memory maps of the process run out; those still needed are compiled again."""
    if next(_runs) % LOOK_EVERY == 0 and memory_maps() > MOST_MAPS:
        advance.clear_cache()  # pyright: ignore[reportAttributeAccessIssue]
        gc.collect()


def memory_maps() -> int:
    """How many the process has; 0 where the system does not tell."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0
