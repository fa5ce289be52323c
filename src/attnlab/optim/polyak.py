"""Polyak's step: as long as the loss is far from its floor and the gradient is small."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.checks import number, shown
from attnlab.errors import InputError, message
from attnlab.optim.rule import StepRule, Tree, positive, scaled, scaled_by, total_log_norm


class PolyakState(NamedTuple):
    """State of `polyak`."""

    constant: Array
    cap: Array
    floor: Array


def polyak(*, cap: float = np.inf, constant: float = 0.5, floor: float | Literal["auto"] = "auto") -> StepRule:
    """`w <- w - s grad` with `s = min(constant * (loss - floor) / |grad|^2, cap)`, one step for all parameters.

    Args:
        cap: largest step. Wherever the cap binds the rule is `gd(cap)`, bit for bit.
        constant: 1/2 in the fast-rates paper; its Theorem 7 leaves it free.
        floor: the infimum of the loss. "auto" takes what `descend` knows: the loss with all attention on the best
            tokens when only attention is trained, zero when the head is trained too. A number is used as given.

    There is no step where the gradient is zero or the loss is at or below the floor. Outside `descend` pass
    `value=loss` to `update` and a numeric floor.
    """
    settings: dict[str, Any] = {"cap": positive("cap", cap, infinite=True), "constant": positive("constant", constant)}
    automatic = isinstance(floor, str) and floor == "auto"
    settings["floor"] = "auto" if automatic else _floor(floor)

    def init(_: Tree) -> PolyakState:
        values = (settings["constant"], settings["cap"], 0.0 if automatic else settings["floor"])
        return PolyakState(*(jnp.asarray(v) for v in values))

    update, binds = _POLYAK_UPDATES[automatic], _POLYAK_BINDS[automatic]
    return StepRule("polyak", init, update, settings, isotropic=True, settles=True, binds=binds)


def _floor(floor: Any) -> float:
    if isinstance(floor, str):
        raise InputError(message(f"`floor` is {shown(floor)}; wanted a finite number or 'auto'."))
    return number("floor", floor)


def _polyak_update(
    updates: Tree,
    state: PolyakState,
    params: Tree | None = None,
    *,
    log_scale: Tree | None = None,
    log_excess: Array | None = None,
    value: Array | None = None,
    automatic: bool,
    **_: Any,
) -> tuple[Tree, PolyakState]:
    updates, scales = scaled(updates, log_scale)
    log_step = _log_step(updates, scales, state, log_excess, value, automatic)
    return scaled_by(jnp.minimum(log_step, jnp.log(state.cap)), updates, scales), state


def _polyak_binds(
    updates: Tree,
    state: PolyakState,
    *,
    log_scale: Tree,
    log_excess: Array | None = None,
    value: Array | None = None,
    automatic: bool,
) -> Array:
    log_step = _log_step(*scaled(updates, log_scale), state, log_excess, value, automatic)
    return jnp.where(log_step > jnp.log(state.cap), 1.0, 0.0)


def _log_step(
    updates: Tree, scales: Tree, state: PolyakState, log_excess: Array | None, value: Array | None, automatic: bool
) -> Array:
    """log of the step that the cap may cut; -inf where there is none."""
    if automatic and log_excess is None:
        raise InputError(message("`polyak(floor='auto')` needs `log_excess`.", "outside `descend` pass floor=<number>"))
    if not automatic:
        if value is None:
            raise InputError(message("`polyak` with a numeric floor needs `value=` in `update`.", "the current loss"))
        log_excess = jnp.log(jnp.maximum(value - state.floor, 0.0))
    assert log_excess is not None
    length = total_log_norm(updates, scales)
    raw = jnp.log(state.constant) + log_excess - 2.0 * length
    moves = jnp.isfinite(length) & ~jnp.isnan(raw)
    return jnp.where(moves, raw, -jnp.inf)


_POLYAK_UPDATES = {automatic: partial(_polyak_update, automatic=automatic) for automatic in (True, False)}
_POLYAK_BINDS = {automatic: partial(_polyak_binds, automatic=automatic) for automatic in (True, False)}
