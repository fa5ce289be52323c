"""Types that a loop must keep: what a rule computes in float64 of weights in float32 is rounded at every step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from attnlab.models.scaled import Params, Tree, in_single


def moved(params: Params, moves: Params) -> Params:
    """Parameters after a step, of the type they were."""
    return jax.tree.map(lambda p, move: (p + move).astype(p.dtype), params, moves)


def like(tree: Tree, model: Tree) -> Tree:
    """The same arrays with the types of another tree."""
    return jax.tree.map(lambda new, old: jnp.asarray(new).astype(jnp.result_type(old)), tree, model)


def owned(tree: Tree) -> Tree:
    """The same arrays in memory of JAX, which no array of NumPy shares."""
    return jax.tree.map(lambda a: a if isinstance(a, jax.Array) else jnp.array(a, copy=True), tree)


def in_precision_of(params: Params, state: Tree) -> Tree:
    """The state of a rule, in float32 where the parameters are; what a foreign rule holds in float32 it keeps so."""
    if not in_single(params):
        return state
    return jax.tree.map(lambda a: a.astype(jnp.float32) if a.dtype == jnp.float64 else a, state)
