"""Batches of examples: which ones each step sees, drawn inside of the compiled program.

Every epoch goes through all examples once, in an order drawn from (seed, trial, epoch) alone: a run that is taken up in
the middle of an epoch sees what one long run would have seen. The last batch of an epoch is smaller where the others
leave a rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.data.families import Seed, streams
from attnlab.models.problem import Problem
from attnlab.models.scaled import Params, ScaledGradient, Tree, Value, total_log_norm
from attnlab.train.typed import like

BATCH_STREAM = 2  # of the numbers that a seed gives; starts are drawn from stream 1
ORDERS, DRAWS = 0, 1  # of examples, and of what a model draws

Proposal = tuple[Params, Tree, ScaledGradient, Tree, Array]  # moves, state, gradient, forward, was the step capped?
Propose = Callable[[Problem, Params, Tree], Proposal]


@dataclass(frozen=True)
class Batches:
    """How a data set is cut: a part of the program, and so hashable.

    Attributes:
        n: examples.
        size: of a batch.
        portion: examples of a batch whose gradient is taken at a time; None for the whole batch.
        draws: does the model draw random numbers in training?
    """

    n: int
    size: int
    portion: int | None = None
    draws: bool = False

    @property
    def per_epoch(self) -> int:
        """Steps of one epoch."""
        return -(-self.n // self.size)

    @property
    def last(self) -> int:
        """Examples in the last batch of an epoch."""
        return self.n - (self.per_epoch - 1) * self.size


class Feed(NamedTuple):
    """What a trial carries from step to step beside its weights."""

    key: Any  # (2,) of the trial; arrays of NumPy, or of JAX inside of programs
    order: Any  # (n,) of the examples in this epoch
    gradient_norm: Any  # () of the last step, 0 before the first
    step_length: Any  # () of the last step, 0 before the first
    capped: Any  # () steps so far at which a cap was what decided their length
    lost_at: Any  # () the step that led to loss or weights that are not finite, and was not taken; -1 for none

    @classmethod
    def start(cls, batches: Batches, seed: Seed, trials: int) -> Feed:
        """Of every trial, before the first step."""
        keys = [np.random.SeedSequence([*origin, BATCH_STREAM]) for origin in streams(seed, trials)]
        return cls(
            key=np.stack([stream.generate_state(2, np.uint32) for stream in keys]),
            order=np.zeros((trials, batches.n), dtype=np.int32),
            gradient_norm=np.zeros(trials),
            step_length=np.zeros(trials),
            capped=np.zeros(trials),
            lost_at=np.full(trials, -1),
        )

    def records(self) -> dict[str, Value]:
        """What is recorded of the last step."""
        return {"last_gradient_norm": self.gradient_norm, "last_step_length": self.step_length}


def order_of(batches: Batches, key: Array, epoch: Array) -> Array:
    """The examples in the order in which an epoch sees them, (n,)."""
    of_epoch = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), ORDERS), epoch)
    return jax.random.permutation(of_epoch, batches.n).astype(jnp.int32)


def batch_at(batches: Batches, problem: Problem, feed: Feed, step: Array, size: int) -> Problem:
    """The examples that a step sees, `size` of them, with their random keys if the model draws."""
    begin = (step % batches.per_epoch) * batches.size
    batch = problem.taken(jax.lax.dynamic_slice(feed.order, (begin,), (size,)))
    if not batches.draws:
        return batch
    of_step = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(feed.key), DRAWS), step)
    return batch._replace(keys=jax.random.split(of_step, size))


def stochastic_step(
    batches: Batches, propose: Propose, problem: Problem, step: Array, params: Params, state: Tree, feed: Feed
) -> tuple[Params, tuple[Tree, Feed]]:
    """One step of one trial; none from the step on that would lead out of the finite numbers.

    `step` is the same for all trials, so that an order is drawn, and a smaller batch taken, only where there is one.
    """
    place = step % batches.per_epoch
    epoch = step // batches.per_epoch
    order = jax.lax.cond(place == 0, lambda: order_of(batches, feed.key, epoch), lambda: feed.order)
    feed = feed._replace(order=order)

    def take(size: int) -> tuple[Params, Tree, Array, Array]:
        """Moves, the state after them, the norm of the gradient, and whether the step was capped."""
        batch = batch_at(batches, problem, feed, step, size)
        moves, next_state, gradient, _, capped = propose(batch, params, state)
        log_norm = total_log_norm(gradient.mantissa, gradient.log_scale)
        return like(moves, params), like(next_state, state), jnp.exp(log_norm.astype(float)), capped.astype(float)

    if batches.last == batches.size:
        moves, next_state, gradient_norm, capped = take(batches.size)
    else:
        whole = place < batches.per_epoch - 1
        moves, next_state, gradient_norm, capped = jax.lax.cond(
            whole, lambda: take(batches.size), lambda: take(batches.last)
        )
    length = jnp.sqrt(sum(jnp.sum(jnp.square(move)) for move in moves.values()))
    ahead = jax.tree.map(jnp.add, params, moves)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(p)) for p in ahead.values()]))
    going = (feed.lost_at < 0) & finite
    taken = feed._replace(gradient_norm=gradient_norm, step_length=length.astype(float), capped=feed.capped + capped)
    params, state, feed = jax.tree.map(
        lambda new, old: jnp.where(going, new, old), (ahead, next_state, taken), (params, state, feed)
    )
    lost_now = (feed.lost_at < 0) & ~finite
    return params, (state, feed._replace(lost_at=jnp.where(lost_now, step, feed.lost_at)))


def next_batch(batches: Batches, problem: Problem, feed: Feed, step: Array) -> Problem:
    """What the next step sees, for records; filled up, if it is a smaller batch, from the one before."""
    epoch = step // batches.per_epoch
    order = jax.lax.cond(step % batches.per_epoch == 0, lambda: order_of(batches, feed.key, epoch), lambda: feed.order)
    return batch_at(batches, problem, feed._replace(order=order), step, batches.size)
