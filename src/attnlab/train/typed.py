"""Types that a loop must keep: what a rule computes in float64 of weights in float32 is rounded at every step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from attnlab.models.scaled import Params, Tree


def moved(params: Params, moves: Params) -> Params:
    """Parameters after a step, of the type they were."""
    return jax.tree.map(lambda p, move: (p + move).astype(p.dtype), params, moves)


def like(tree: Tree, model: Tree) -> Tree:
    """The same arrays with the types of another tree."""
    return jax.tree.map(lambda new, old: jnp.asarray(new).astype(jnp.result_type(old)), tree, model)


def in_precision_of(params: Params, state: Tree) -> Tree:
    """The state of a rule with its real numbers in the precision of the parameters."""
    kind = next(iter(params.values())).dtype
    return jax.tree.map(lambda a: a.astype(kind) if a.dtype.kind == "f" else a, state)
