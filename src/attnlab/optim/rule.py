"""What a step rule is, and the arithmetic of scaled gradients that all of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from attnlab import checks
from attnlab.models.scaled import (
    Tree as Tree,
    log_norm as log_norm,
    norm as norm,
    scaled as scaled,
    total_log_norm as total_log_norm,
)


class StepRule(optax.GradientTransformationExtraArgs):
    """An optax transformation that can also read gradients as `updates * e^log_scale`.

    Numbers such as the step size live in the state that `init` makes, not in the code of `update`: rules of one
    kind share one compiled program, and a sweep over step sizes compiles once.

    `update(updates, state, params=None, *, log_scale=None, **extra)` takes mantissas and, for each leaf (or for all
    at once), the logarithm of its scale; without `log_scale` it is an ordinary optax update.

    An `isotropic` rule sees gradients through their sums and lengths alone. It takes the same steps in any orthonormal
    coordinates, so that `descend` may choose the cheapest ones.

    A rule with a cap on its steps has `binds(updates, state, **extra)`, called like `update`: 1 where the cap decides
    the step, 0 where it does not, and between them the share of parameters for which it does.

    A rule that `settles` and takes no step at some weights will take none there ever after, so that `descend` may end.
    """

    name: str
    settings: dict[str, Any]
    isotropic: bool
    settles: bool
    binds: Callable[..., Array] | None

    def __new__(
        cls,
        name: str,
        init: Callable[[Tree], Tree],
        update: Callable[..., tuple[Tree, Tree]],
        settings: dict[str, Any],
        *,
        isotropic: bool = False,
        settles: bool = False,
        binds: Callable[..., Array] | None = None,
    ) -> StepRule:
        rule = super().__new__(cls, init, update)  # type: ignore[arg-type]
        rule.name, rule.settings = name, settings
        rule.isotropic, rule.settles, rule.binds = isotropic, settles, binds
        return rule

    def describe(self) -> dict[str, Any]:
        """Name and settings, for the record of a run."""
        return {"name": self.name, **self.settings}

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.settings.items())})"


def positive(name: str, value: Any, *, infinite: bool = False) -> float:
    """`value` if it is a positive number, finite unless said otherwise."""
    if infinite and isinstance(value, float | np.floating) and value == np.inf:
        return np.inf
    return checks.number(name, value, above=0)


def fraction(name: str, value: Any) -> float:
    """`value` if it is a number from 0 up to, not including, 1."""
    return checks.number(name, value, least=0, below=1)


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """`value` if it is one of `choices`."""
    checks.one_of(name, value, choices)
    return value


def common_scale(updates: Tree, scales: Tree) -> tuple[Tree, Array]:
    """All leaves brought to one log-scale, that of the largest leaf."""
    sizes = jax.tree.map(lambda m, s: jnp.where(jnp.any(m != 0), s, -jnp.inf), updates, scales)
    top = jnp.max(jnp.stack(jax.tree.leaves(sizes)))
    top = jnp.where(jnp.isneginf(top), 0.0, top)
    return jax.tree.map(lambda m, s: m * jnp.exp(jnp.minimum(s - top, 0.0)), updates, scales), top


def scaled_by(log_factor: Array, updates: Tree, scales: Tree) -> Tree:
    """`-e^log_factor` times the gradient."""
    # Where the mantissa is zero the factor may be infinite; there is no step there.
    return jax.tree.map(lambda m, s: jnp.where(m == 0, 0.0, -m * jnp.exp(log_factor + s)), updates, scales)
