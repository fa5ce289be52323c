"""Several step rules in one compiled program, where compiling takes longer than running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.optim.rule import StepRule, Tree

Update = Callable[..., tuple[Tree, Tree]]
Binds = Callable[..., Array] | None


class SharedState(NamedTuple):
    """State of a rule that shares its program: which of the rules it is, and a state of every one of them."""

    which: Array
    states: tuple[Tree, ...]


def sharing_a_program(rules: Mapping[str, StepRule]) -> dict[str, StepRule]:
    """The same rules, which take the same steps; `descend` compiles one program for all of them.

    Each carries the state of every other along: this is for weights that are few beside what a program costs. Where one
    of them has a cap all record the share of steps that it decides, which is zero for those that have none.

    >>> import attnlab as al
    >>> sharing_a_program({"slow": al.gd(0.1), "fast": al.adam(0.1)})["slow"]
    gd(step=0.1)
    """
    every = tuple(rules.values())
    update, binds = _shared(tuple(rule.update for rule in every), tuple(rule.binds for rule in every))

    def sharing(which: int, rule: StepRule) -> StepRule:
        def init(params: Tree) -> SharedState:
            return SharedState(jnp.asarray(which, dtype=jnp.int32), tuple(one.init(params) for one in every))

        isotropic = all(one.isotropic for one in every)
        return StepRule(rule.name, init, update, rule.settings, isotropic=isotropic, settles=rule.settles, binds=binds)

    return {name: sharing(which, rule) for which, (name, rule) in enumerate(rules.items())}


@lru_cache
def _shared(updates: tuple[Update, ...], binds: tuple[Binds, ...]) -> tuple[Update, Binds]:
    """One function for all updates and one for all caps: the same objects for the same rules, so that programs are
    found again."""

    def update(given: Tree, state: SharedState, params: Tree | None = None, **extra: Any) -> tuple[Tree, SharedState]:
        def by(which: int) -> Callable[[], tuple[Tree, SharedState]]:
            def one() -> tuple[Tree, SharedState]:
                moves, own = updates[which](given, state.states[which], params, **extra)
                states = (*state.states[:which], own, *state.states[which + 1 :])
                return _of_types(moves, given), _of_types(state._replace(states=states), state)

            return one

        return jax.lax.switch(state.which, [by(which) for which in range(len(updates))])

    def capped(given: Tree, state: SharedState, **extra: Any) -> Array:
        def by(which: int) -> Callable[[], Array]:
            own = binds[which]
            if own is None:
                return lambda: jnp.zeros(())
            return lambda: own(given, state.states[which], **extra).astype(float)

        return jax.lax.switch(state.which, [by(which) for which in range(len(binds))])

    return update, capped if any(own is not None for own in binds) else None


def _of_types(tree: Tree, like: Tree) -> Tree:
    """Arrays in the types of others: all branches of a program give the same."""
    return jax.tree.map(lambda new, old: jnp.asarray(new).astype(jnp.result_type(old)), tree, like)
