"""Gradient descent with heavy-ball momentum."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.optim.rule import StepRule, Tree, fraction, positive, scaled, scaled_by


class HeavyBallState(NamedTuple):
    """State of `heavy_ball`; the velocity already holds the step."""

    step: Array
    momentum: Array
    velocity: Tree


def heavy_ball(step: float, *, momentum: float = 0.9) -> StepRule:
    """Gradient descent with momentum b: `v <- b v + grad; w <- w - step v`.

    Under a gradient that stays the same the steps grow to `step / (1 - b)` times it.

    >>> heavy_ball(0.1)
    heavy_ball(step=0.1, momentum=0.9)
    """
    settings = {
        "step": positive("step", step),
        "momentum": fraction("momentum", momentum),
    }

    def init(params: Tree) -> HeavyBallState:
        still = jax.tree.map(jnp.zeros_like, params)
        return HeavyBallState(jnp.asarray(settings["step"]), jnp.asarray(settings["momentum"]), still)

    return StepRule("heavy_ball", init, _heavy_ball_update, settings, isotropic=True, settles=True)


def _heavy_ball_update(
    updates: Tree, state: HeavyBallState, params: Tree | None = None, *, log_scale: Tree | None = None, **_: Any
) -> tuple[Tree, HeavyBallState]:
    moves = scaled_by(jnp.log(state.step), *scaled(updates, log_scale))
    velocity = jax.tree.map(lambda v, move: state.momentum * v + move, state.velocity, moves)
    return velocity, state._replace(velocity=velocity)
