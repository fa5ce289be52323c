"""What a rule that takes plain gradients is given, watched for underflow while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.models.scaled import Params, ScaledGradient, Tree, Value
from attnlab.train.typed import like, moved

# Steps without a move and without a gradient after which a trial is left as it is. Rules that gather several gradients
# before they move are given that long.
PATIENCE = 100


class Watch(NamedTuple):
    """What was seen of every trial, (trials,)."""

    taken: Value  # steps taken, those without a move too
    still: Value  # the last so many of them had no move, and a gradient that is not zero but underflowed to zero
    underflow: Value  # the first step at which some entry of the gradient underflowed; -1 for none

    @classmethod
    def start(cls, trials: int, taken: int = 0) -> Watch:
        """Nothing seen yet."""
        return cls(np.full(trials, taken), np.zeros(trials, dtype=np.int64), np.full(trials, -1))

    @property
    def stalled_at(self) -> np.ndarray:
        """The step from which a trial stands still, -1 where it moves."""
        return np.where(self.still > 0, self.taken - self.still, -1)


def watched(
    propose: Callable[[Params, Tree], tuple[Params, Tree, ScaledGradient, Tree]],
    params: Params,
    state: Tree,
    watch: Watch,
) -> tuple[Params, tuple[Tree, Watch]]:
    """One step of one trial, and what it was given; none once the trial has stood still for long enough."""
    moves, next_state, gradient, _ = propose(params, state)
    vanished, lost = _underflow(gradient)
    still = vanished & _all_zero(moves)
    seen = Watch(
        taken=watch.taken + 1,
        still=jnp.where(still, watch.still + 1, 0),
        underflow=jnp.where((watch.underflow < 0) & lost, watch.taken, watch.underflow),
    )
    ahead = (moved(params, moves), (like(next_state, state), seen))
    going = watch.still < PATIENCE
    return jax.tree.map(lambda new, old: jnp.where(going, new, old), ahead, (params, (state, watch)))


def _underflow(gradient: ScaledGradient) -> tuple[Array, Array]:
    """Is the gradient nothing but zeros though it is not zero? Is some entry of it?"""
    plain, mantissa = jax.tree.leaves(gradient.value()), jax.tree.leaves(gradient.mantissa)
    lost = jnp.stack([jnp.any((p == 0) & (m != 0)) for p, m in zip(plain, mantissa, strict=True)])
    zero = jnp.stack([jnp.all(p == 0) for p in plain])
    return jnp.all(zero) & jnp.any(lost), jnp.any(lost)


def _all_zero(tree: Tree) -> Array:
    return jnp.all(jnp.stack([jnp.all(leaf == 0) for leaf in jax.tree.leaves(tree)]))
