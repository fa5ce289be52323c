"""The compiled program of a run: steps and metrics of every trial of a block."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.models.lanes import in_lanes, trials_first
from attnlab.models.problem import Objective, Seen
from attnlab.models.scaled import Params, ScaledGradient, Tree, total_log_norm
from attnlab.train.batches import Batches, Proposal, next_batch, stochastic_step
from attnlab.train.metrics import UserFunctions, measure
from attnlab.train.typed import like, moved
from attnlab.train.watch import watched

# How a rule takes gradients: as mantissa and log-scale; plain with the loss as extra argument; plain.
Reads = Literal["scaled", "extra", "plain"]


@dataclass(frozen=True)
class Plan:
    """What a run compiles, beside its objective: equal plans share a program.

    Attributes:
        update: of the step rule.
        reads: how that takes gradients.
        binds: of a rule with a cap: does the cap decide this step?
        user: metrics of the user's own.
        recording: are there records?
        batches: how the data are cut; None for steps that see all of them.
        portion: examples that records evaluate at a time; None for all at once.
        tester: the objective of the test examples; None without.
        lanes: are trials along the last axis? See `attnlab.models.lanes`.
    """

    update: Callable[..., tuple[Tree, Tree]]
    reads: Reads
    binds: Callable[..., Array] | None = None
    user: UserFunctions = ()
    recording: bool = True
    batches: Batches | None = None
    portion: int | None = None
    tester: Objective | None = None
    lanes: bool = False


class Intervals(NamedTuple):
    """The next steps of a run: `lengths[i]` steps and then a record, for i below `number`."""

    begin: Array
    lengths: Array
    number: Array
    recording: bool

    def through(
        self,
        params: Params,
        state: Tree,
        step: Callable[[Array, tuple[Params, Tree]], tuple[Params, Tree]],
        measured: Callable[[Array, Array, Params, Tree], dict[str, Array]],
    ) -> tuple[Params, Tree, dict[str, Array]]:
        """Parameters and state after all of them, and what `measured(i, at, params, state)` gave at their ends."""

        def interval(i: Array, carry: tuple[Array, Params, Tree, Tree]) -> tuple[Array, Params, Tree, Tree]:
            at, params, state, records = carry
            reached = at + self.lengths[i]
            params, state = jax.lax.fori_loop(at, reached, step, (params, state))
            if self.recording:
                now = measured(i, reached, params, state)
                records = jax.tree.map(lambda all, one: all.at[i].set(one), records, now)
            return reached, params, state, records

        shapes = jax.eval_shape(measured, 0, self.begin, params, state) if self.recording else {}
        none_yet = jax.tree.map(lambda one: jnp.zeros((*self.lengths.shape, *one.shape), one.dtype), shapes)
        return jax.lax.fori_loop(0, self.number, interval, (self.begin, params, state, none_yet))[1:]


def _advance(
    problem: Tree,
    params: Params,
    state: Tree,
    compared: Tree,
    targets: dict[str, Tree],
    test: Tree,
    begin: Array,
    lengths: Array,
    recorded: Array,
    count: Array,
    *,
    objective: Objective,
    plan: Plan,
) -> tuple[Params, Tree, dict[str, Array]]:
    """`count` times: so many steps of every trial as `lengths` says next, then the metrics there; from step `begin` on.

    One program for any schedule: both the number of steps and the number of records are arguments. In a run by batches
    metrics cost far more than a step, and are taken only where `recorded` says so (else zeros). The state of a rule
    comes with the `Feed` of a run by batches, or with a `Watch` over what a rule is given that does not read scaled
    gradients.
    """
    batches = plan.batches
    with_feed = batches is not None
    watching = plan.reads != "scaled" and not with_feed

    def propose(problem: Tree, params: Params, state: Tree) -> Proposal:
        if batches is None or batches.portion is None:
            gradient, forward = objective.gradient(params, problem)
        else:
            gradient, forward = objective.gradient_in_portions(params, problem, batches.portion)
        if plan.reads == "plain":
            moves, next_state = plan.update(gradient.value(), state, params)
            return moves, next_state, gradient, forward, jnp.zeros(())
        value = objective.value(problem, forward)
        if plan.reads == "extra":
            moves, next_state = plan.update(gradient.value(), state, params, value=value)
            return moves, next_state, gradient, forward, jnp.zeros(())
        about = {
            "log_scale": gradient.log_scale,
            "log_excess": objective.log_excess(problem, forward),
            "value": value,
        }
        moves, next_state = plan.update(gradient.mantissa, state, params, **about)
        capped = jnp.zeros(()) if plan.binds is None else plan.binds(gradient.mantissa, state, **about)
        return moves, next_state, gradient, forward, capped

    def trial(
        problem: Tree, params: Params, state: Tree, compared: Tree, targets: Tree, test: Tree
    ) -> tuple[Params, Tree, dict[str, Array]]:
        def step(at: Array, carry: tuple[Params, Tree]) -> tuple[Params, Tree]:
            params, state = carry
            if batches is not None:
                return stochastic_step(batches, propose, problem, at, params, *state)
            if watching:
                return watched(lambda p, s: propose(problem, p, s)[:4], params, *state)
            moves, next_state = propose(problem, params, state)[:2]
            return moved(params, moves), like(next_state, state)

        def measured(at: Array, params: Params, state: Tree) -> dict[str, Array]:
            of_rule = state[0] if watching or with_feed else state
            if batches is None:
                moves, _, gradient, forward, _ = propose(problem, params, of_rule)
                seen = Seen(problem, params, gradient, forward, moves, compared, targets, test=test)
                return measure(objective, seen, plan.user, plan.tester)
            feed = state[1]
            if plan.portion is None:
                moves, _, gradient, _, _ = propose(next_batch(batches, problem, feed, at), params, of_rule)
                forward = objective.evaluate(params, problem)
            else:
                moves, gradient = {}, ScaledGradient({}, {})
                forward = objective.evaluate_in_portions(params, problem, plan.portion)
            seen = Seen(problem, params, gradient, forward, moves, compared, targets, plan.portion, test)
            metrics = measure(objective, seen, plan.user, plan.tester) | feed.records()
            if plan.binds is None:
                return metrics
            return metrics | {"capped_share": feed.capped / jnp.maximum(at, 1)}

        def measured_if(wanted: Array, at: Array, params: Params, state: Tree) -> dict[str, Array]:
            if batches is None:
                return measured(at, params, state)
            nothing = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)
            return jax.lax.cond(wanted, lambda: measured(at, params, state), lambda: nothing)

        shapes = jax.eval_shape(measured, begin, params, state) if plan.recording else {}
        return intervals.through(params, state, step, lambda i, *at: measured_if(recorded[i], *at))

    intervals = Intervals(begin, lengths, count, plan.recording)
    every = (problem, params, state, compared, targets, test)
    if plan.lanes:
        return _advance_in_lanes(*every, intervals, objective=objective, plan=plan)
    if plan.portion is None:
        return jax.vmap(trial)(*every)
    # One large network at a time: an axis of trials of length 1 only makes its program slower.
    alone = jax.tree.map(lambda array: array[0], every)
    return jax.tree.map(lambda array: jnp.asarray(array)[None], trial(*alone))


def _advance_in_lanes(
    problem: Tree,
    params: Params,
    state: Tree,
    compared: Tree,
    targets: dict[str, Tree],
    test: Tree,
    intervals: Intervals,
    *,
    objective: Objective,
    plan: Plan,
) -> tuple[Params, Tree, dict[str, Array]]:
    """The same with the trials along the last axis while steps are taken; what comes and goes has them first."""
    lanes = objective.lanes(problem)

    def propose(at: Array, params: Params, state: Tree) -> tuple[Params, Tree, ScaledGradient]:
        gradient = lanes.gradient(params, objective.loss, at)

        def loss(problem: Tree, params: Params) -> dict[str, Array]:
            forward = objective.evaluate(params, problem)
            return {"value": objective.value(problem, forward), "log_excess": objective.log_excess(problem, forward)}

        def update(gradient: ScaledGradient, state: Tree, params: Params, loss: Params) -> tuple[Params, Tree]:
            return plan.update(gradient.mantissa, state, params, log_scale=gradient.log_scale, **loss)

        # XLA leaves out what a rule does not read.
        losses = jax.vmap(loss)(problem, trials_first(params))
        moves, next_state = jax.vmap(update, in_axes=-1, out_axes=-1)(gradient, state, params, losses)
        return moves, next_state, gradient

    def step(at: Array, carry: tuple[Params, Tree]) -> tuple[Params, Tree]:
        params, state = carry
        moves, next_state, _ = propose(at, params, state)
        return moved(params, moves), like(next_state, state)

    def measured(_: Array, at: Array, params: Params, state: Tree) -> dict[str, Array]:
        moves, _, gradient = propose(at, params, state)

        def of_one(
            problem: Tree,
            params: Params,
            gradient: ScaledGradient,
            moves: Params,
            compared: Tree,
            targets: Tree,
            test: Tree,
        ) -> dict[str, Array]:
            forward = objective.evaluate(params, problem)
            seen = Seen(problem, params, gradient, forward, moves, compared, targets, test=test)
            return measure(objective, seen, plan.user, plan.tester)

        here, slopes, ahead = trials_first((params, gradient, moves))
        return jax.vmap(of_one, out_axes=-1)(problem, here, slopes, ahead, compared, targets, test)

    return trials_first(intervals.through(in_lanes(params), in_lanes(state), step, measured))


advance = jax.jit(_advance, static_argnames=("objective", "plan"))
# The same, which takes the memory of parameters and state for its results: what was there before is gone. Copies of a
# large network take as long as half a step of it.
advance_in_place = jax.jit(_advance, static_argnames=("objective", "plan"), donate_argnames=("params", "state"))


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
        for program in (advance, advance_in_place):
            program.clear_cache()  # pyright: ignore[reportAttributeAccessIssue]
        gc.collect()


def memory_maps() -> int:
    """How many the process has; 0 where the system does not tell."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0
