"""The compiled program of a run: steps and metrics of every trial of a block."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from attnlab.models.attention import AttentionModel, Problem
from attnlab.optim.rule import total_log_norm
from attnlab.train.metrics import View
from attnlab.train.watch import watched

# How a rule takes gradients: as mantissa and log-scale; plain with the loss as extra argument; plain.
Reads = Literal["scaled", "extra", "plain"]


@partial(jax.jit, static_argnames=("model", "measure", "update", "reads", "user", "recording"))
def advance(
    problem: Any,
    params: Any,
    state: Any,
    tracked: Any,
    targets: dict[str, Any],
    lengths: Any,
    count: Any,
    *,
    model: Any,
    measure: Callable[..., dict[str, Any]],
    update: Callable[..., Any],
    reads: Reads,
    user: tuple[tuple[str, Callable[[View], Any]], ...],
    recording: bool,
) -> tuple[Any, Any, dict[str, Any]]:
    """`count` times: so many steps of every trial as `lengths` says next, then the metrics there.

    One program for any schedule: both the number of steps and the number of records are arguments. The state of a rule
    that does not read scaled gradients comes with a `Watch` over what it is given.
    """
    watching = reads != "scaled"

    def propose(problem: Any, params: Any, state: Any) -> tuple[Any, ...]:
        gradient, evaluation = model.gradient(params, problem)
        if reads == "plain":
            moves, state = update(gradient.value(), state, params)
        elif reads == "extra":
            moves, state = update(gradient.value(), state, params, value=model.objective(evaluation))
        else:
            moves, state = update(
                gradient.mantissa,
                state,
                params,
                log_scale=gradient.log_scale,
                log_excess=model.log_excess(problem, evaluation),
                value=model.objective(evaluation),
            )
        return moves, state, gradient, evaluation

    def trial(problem: Any, params: Any, state: Any, tracked: Any, targets: Any) -> tuple[Any, Any, dict[str, Any]]:
        def step(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            params, state = carry
            if watching:
                return watched(lambda p, s: propose(problem, p, s), params, *state)
            moves, state, *_ = propose(problem, params, state)
            return jax.tree.map(jnp.add, params, moves), state

        def measured(params: Any, state: Any) -> dict[str, Any]:
            state = state[0] if watching else state
            moves, _, gradient, evaluation = propose(problem, params, state)
            return measure(model, problem, params, gradient, evaluation, moves, tracked, targets, user)

        def interval(i: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            params, state, found = carry
            params, state = jax.lax.fori_loop(0, lengths[i], step, (params, state))
            if recording:
                now = measured(params, state)
                found = jax.tree.map(lambda all, one: all.at[i].set(one), found, now)
            return params, state, found

        found = jax.eval_shape(measured, params, state) if recording else {}
        found = jax.tree.map(lambda one: jnp.zeros((*lengths.shape, *one.shape), one.dtype), found)
        return jax.lax.fori_loop(0, count, interval, (params, state, found))

    return jax.vmap(trial)(problem, params, state, tracked, targets)


@partial(jax.jit, static_argnums=2)
def largest(params: Any, problem: Problem, model: AttentionModel) -> Any:
    """The token with the largest logit, for every query of every trial."""
    return jax.vmap(lambda p, q: jnp.argmax(model.logits(p, q), axis=-1))(params, problem)


@partial(jax.jit, static_argnums=2)
def gradient_norms(params: Any, problem: Any, model: Any) -> Any:
    """log of the norm of the gradient of every trial; -inf for zero."""

    def one(params: Any, problem: Any) -> Any:
        gradient, _ = model.gradient(params, problem)
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
