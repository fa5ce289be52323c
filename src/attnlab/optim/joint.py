"""Rules for training the head u together with the attention weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.checks import number
from attnlab.errors import InputError, message
from attnlab.optim.descent import ngd, normalized
from attnlab.optim.rule import StepRule, Tree, positive, scaled


class JointDecayState(NamedTuple):
    """State of `joint_decay`."""

    step: Array
    power: Array
    taken: Array  # steps so far


def joint_decay(step: float, *, power: float = 2 / 3) -> StepRule:
    """Equation (10) of the fast-rates paper: separate norms, decaying steps.

    `u <- u - step (t+1)^-power grad_u / |grad_u|` and, for the attention weights,
    `W <- W - step (t+1)^-1 grad_W / |grad_W|`, with 0/0 = 0. Theory wants 2/3 <= power < 1. Parameters must be a
    dict; the head is the entry "u".
    """
    settings = {
        "step": positive("step", step),
        "power": number("power", power, above=0, most=1),
    }

    def init(params: Tree) -> JointDecayState:
        if not isinstance(params, dict) or "u" not in params:
            problem = "`joint_decay` trains the head with the attention; there is no parameter 'u'."
            raise InputError(message(problem, "descend(..., train_head=True)"))
        return JointDecayState(jnp.asarray(settings["step"]), jnp.asarray(settings["power"]), jnp.asarray(0))

    return StepRule("joint_decay", init, _joint_decay_update, settings, isotropic=True, settles=True)


def _joint_decay_update(
    updates: Tree,
    state: JointDecayState,
    params: Tree | None = None,
    *,
    log_scale: Tree | None = None,
    **_: Any,
) -> tuple[Tree, JointDecayState]:
    updates, scales = scaled(updates, log_scale)
    t = state.taken + 1.0
    lengths = {name: state.step * t ** -(state.power if name == "u" else 1.0) for name in updates}
    no_cap = jnp.asarray(jnp.inf)
    steps = {
        name: normalized({name: m}, {name: scales[name]}, lengths[name], no_cap, "separate")[name]
        for name, m in updates.items()
    }
    return steps, state._replace(taken=state.taken + 1)


def joint_separate(step: float, *, cap: float = np.inf) -> StepRule:
    """Constant normalized steps with one norm per parameter ("NGD" in figure 3 of the fast-rates paper)."""
    return _renamed("joint_separate", ngd(step, cap=cap, norms="separate"))


def joint_total(step: float, *, cap: float = np.inf) -> StepRule:
    """Constant normalized steps with the norm over all parameters ("NGD-joint" in figure 3)."""
    return _renamed("joint_total", ngd(step, cap=cap, norms="total"))


def _renamed(name: str, rule: StepRule) -> StepRule:
    settings = {k: rule.settings[k] for k in ("step", "cap")}
    return StepRule(name, rule.init, rule.update, settings, isotropic=True, settles=True, binds=rule.binds)
