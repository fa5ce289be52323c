"""Gradient descent, normalized gradient descent (with momentum), Adam."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from attnlab.checks import number
from attnlab.errors import InputError, message
from attnlab.optim.rule import (
    StepRule,
    Tree,
    common_scale,
    fraction,
    log_norm,
    norm,
    one_of,
    positive,
    scaled,
    scaled_by,
    total_log_norm,
)

Norms = Literal["separate", "total"]
# float64 machine epsilon, which the authors' code adds to norms and uses as its regularizer.
EPS64 = float(np.finfo(np.float64).eps)


class GdState(NamedTuple):
    """State of `gd`."""

    step: Array


def gd(step: float) -> StepRule:
    """Gradient descent: `w <- w - step * grad`."""
    settings = {"step": positive("step", step)}
    return StepRule(
        "gd", lambda _: GdState(jnp.asarray(settings["step"])), _gd_update, settings, isotropic=True, settles=True
    )


def _gd_update(
    updates: Tree, state: GdState, params: Tree | None = None, *, log_scale: Tree | None = None, **_: Any
) -> tuple[Tree, GdState]:
    return scaled_by(jnp.log(state.step), *scaled(updates, log_scale)), state


class NgdState(NamedTuple):
    """State of `ngd`."""

    step: Array
    cap: Array
    eps: Array
    regularizer: Array


def ngd(
    step: float,
    *,
    cap: float = np.inf,
    norms: Norms = "separate",
    guard: Literal["stable", "paper"] = "stable",
    eps: float = EPS64,
    regularizer: float = EPS64,
) -> StepRule:
    """Normalized gradient descent: `w <- w - min(step / |grad|, cap) * grad`; no step where the gradient is zero.

    Args:
        step: length of each step.
        cap: largest factor on the gradient (`eta_max` of the fast-rates paper).
        norms: "separate" normalizes each parameter by itself (K and Q in the attention-SVM paper); "total" uses one
            norm over all.
        guard: "stable" divides by the exact norm. "paper" reproduces the published experiments: it adds `eps` to the
            norm and, when there are several parameters (K and Q), the gradient of `regularizer * |w|^2`; its weights
            freeze once the gradient is as small as `eps`.

    >>> import attnlab as al
    >>> al.ngd(0.1)
    ngd(step=0.1, cap=inf, norms='separate', guard='stable')
    """
    settings: dict[str, Any] = {
        "step": positive("step", step),
        "cap": positive("cap", cap, infinite=True),
        "norms": one_of("norms", norms, ("separate", "total")),
        "guard": one_of("guard", guard, ("stable", "paper")),
    }
    if guard == "paper":
        settings |= {
            "eps": positive("eps", eps),
            "regularizer": number("regularizer", regularizer, least=0),
        }

    def init(params: Tree) -> NgdState:
        values = (
            settings["step"],
            settings["cap"],
            settings.get("eps", 0.0),
            settings.get("regularizer", 0.0),
        )
        return NgdState(*(jnp.asarray(v) for v in values))

    update, isotropic = _NGD_UPDATES[norms, guard], guard == "stable"
    return StepRule("ngd", init, update, settings, isotropic=isotropic, settles=True, binds=_CAP_BINDS[norms])


def _ngd_update(
    updates: Tree,
    state: NgdState,
    params: Tree | None = None,
    *,
    log_scale: Tree | None = None,
    norms: Norms,
    guard: str,
    **_: Any,
) -> tuple[Tree, NgdState]:
    updates, scales = scaled(updates, log_scale)
    if guard == "paper" and params is not None and len(jax.tree.leaves(updates)) > 1:
        updates = jax.tree.map(lambda m, s, p: m * jnp.exp(s) + 2 * state.regularizer * p, updates, scales, params)
        updates, scales = scaled(updates, None)
    return normalized(updates, scales, state.step, state.cap, norms, state.eps if guard == "paper" else None), state


# One function object per variant, so that every rule of the variant finds the same compiled program.
_NGD_UPDATES = {
    (norms, guard): partial(_ngd_update, norms=norms, guard=guard)
    for norms in ("separate", "total")
    for guard in ("stable", "paper")
}


def normalized(updates: Tree, scales: Tree, step: Array, cap: Array, norms: Norms, eps: Array | None = None) -> Tree:
    """`-min(step / (|grad| + eps), cap) * grad`, per leaf or over all, and zero where the gradient is zero."""

    def leaf(mantissa: Array, scale: Array, length: Array) -> Array:
        divisor = jnp.where(length > 0, length, 1.0)
        # The scale cancels in step / |grad| * grad: it never enters, so nothing is lost to rounding of large logs.
        full = step / divisor
        if eps is not None:
            full = full / (1.0 + jnp.exp(jnp.log(eps) - jnp.log(divisor) - scale))
        capped = jnp.exp(jnp.log(cap) + scale)
        return -mantissa * jnp.where(length > 0, jnp.minimum(full, capped), 0.0)

    if norms == "separate":
        return jax.tree.map(lambda m, s: leaf(m, s, norm(m)), updates, scales)
    updates, top = common_scale(updates, scales)
    length = jnp.sqrt(sum(jnp.square(norm(m)) for m in jax.tree.leaves(updates)))
    return jax.tree.map(lambda m: leaf(m, top, length), updates)


def _cap_binds(updates: Tree, state: NgdState | MomentumState, *, log_scale: Tree, norms: Norms, **_: Any) -> Array:
    """The share of norms below step / cap, at which the cap decides."""
    updates, scales = scaled(updates, log_scale)
    if norms == "separate":
        lengths = jnp.stack(jax.tree.leaves(jax.tree.map(log_norm, updates, scales)))
    else:
        lengths = total_log_norm(updates, scales)
    return jnp.mean(jnp.where(jnp.log(state.step) - lengths > jnp.log(state.cap), 1.0, 0.0))


_CAP_BINDS = {norms: partial(_cap_binds, norms=norms) for norms in ("separate", "total")}


class MomentumState(NamedTuple):
    """State of `ngd_momentum`: the velocity is `velocity * e^log_scale`."""

    step: Array
    cap: Array
    momentum: Array
    velocity: Tree
    log_scale: Tree


def ngd_momentum(
    step: float,
    *,
    momentum: float = 0.9,
    cap: float = np.inf,
    norms: Norms = "separate",
    form: Literal["A", "B"] = "A",
) -> StepRule:
    """Normalized gradient descent with momentum b; `s = min(step / |grad|, cap)` as in `ngd`.

    Form "A" averages normalized steps: `v <- b v + s grad; w <- w - v`. Form "B", as in deep-learning frameworks,
    averages gradients and then scales: `v <- b v + grad; w <- w - s v`. Form "B" needs a cap: as gradients shrink, s
    grows while v still remembers the larger ones, and without a bound on s the steps run away.
    """
    settings: dict[str, Any] = {
        "step": positive("step", step),
        "momentum": fraction("momentum", momentum),
        "cap": positive("cap", cap, infinite=True),
        "norms": one_of("norms", norms, ("separate", "total")),
        "form": one_of("form", form, ("A", "B")),
    }

    def init(params: Tree) -> MomentumState:
        step, cap, momentum = (jnp.asarray(settings[k]) for k in ("step", "cap", "momentum"))
        still = jax.tree.map(jnp.zeros_like, params)
        return MomentumState(step, cap, momentum, still, jax.tree.map(lambda _: jnp.zeros(()), still))

    update = _MOMENTUM_UPDATES[norms, form]
    return StepRule("ngd_momentum", init, update, settings, isotropic=True, settles=True, binds=_CAP_BINDS[norms])


def _momentum_a(
    updates: Tree,
    state: MomentumState,
    params: Tree | None = None,
    *,
    log_scale: Tree | None = None,
    norms: Norms,
    **_: Any,
) -> tuple[Tree, MomentumState]:
    steps = normalized(*scaled(updates, log_scale), state.step, state.cap, norms)
    velocity = jax.tree.map(lambda v, step: state.momentum * v + step, state.velocity, steps)
    return velocity, state._replace(velocity=velocity)


def _momentum_b(
    updates: Tree,
    state: MomentumState,
    params: Tree | None = None,
    *,
    log_scale: Tree | None = None,
    norms: Norms,
    **_: Any,
) -> tuple[Tree, MomentumState]:
    updates, scales = scaled(updates, log_scale)

    def average(v: Array, v_scale: Array, g: Array, g_scale: Array) -> tuple[Array, Array]:
        """b v + g, renormalized so that neither the velocity nor its scale drifts out of range."""
        top = jnp.maximum(jnp.where(jnp.any(v != 0), v_scale, -jnp.inf), jnp.where(jnp.any(g != 0), g_scale, -jnp.inf))
        top = jnp.where(jnp.isneginf(top), 0.0, top)
        mixed = state.momentum * v * jnp.exp(jnp.minimum(v_scale - top, 0.0))
        mixed = mixed + g * jnp.exp(jnp.minimum(g_scale - top, 0.0))
        size = jnp.max(jnp.abs(mixed), initial=0.0)
        divisor = jnp.where(size > 0, size, 1.0)
        return mixed / divisor, top + jnp.log(divisor)

    leaves, tree = jax.tree.flatten(updates)
    parts = [
        average(*four)
        for four in zip(
            jax.tree.leaves(state.velocity),
            jax.tree.leaves(state.log_scale),
            leaves,
            jax.tree.leaves(scales),
            strict=True,
        )
    ]
    velocity = tree.unflatten([v for v, _ in parts])
    velocity_scale = tree.unflatten([s for _, s in parts])
    state = state._replace(velocity=velocity, log_scale=velocity_scale)
    if norms == "separate":
        lengths = jax.tree.map(log_norm, updates, scales)
    else:
        total = total_log_norm(updates, scales)
        lengths = jax.tree.map(lambda _: total, updates)

    def moved(v: Array, v_scale: Array, length: Array) -> Array:
        factor = jnp.minimum(jnp.log(state.step) - length, jnp.log(state.cap)) + v_scale
        return jnp.where((v == 0) | jnp.isneginf(length), 0.0, -v * jnp.exp(factor))

    return jax.tree.map(moved, velocity, velocity_scale, lengths), state


_MOMENTUM_UPDATES = {
    (norms, form): partial(update, norms=norms)
    for norms in ("separate", "total")
    for form, update in (("A", _momentum_a), ("B", _momentum_b))
}


class AdamState(NamedTuple):
    """State of `adam`."""

    step: Array
    moments: optax.OptState


class DecayingState(NamedTuple):
    """State of `adam` with weight decay."""

    step: Array
    moments: optax.OptState
    decay: Array


def adam(step: float, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, decay: float = 0.0) -> StepRule:
    """Adam at its usual constants; with `decay` AdamW, `w <- w - step (direction + decay w)`.

    >>> adam(0.001, decay=0.01)
    adam(step=0.001, b1=0.9, b2=0.999, eps=1e-08, decay=0.01)
    """
    settings = {
        "step": positive("step", step),
        "b1": fraction("b1", b1),
        "b2": fraction("b2", b2),
        "eps": positive("eps", eps),
    }
    scaling = optax.scale_by_adam(b1=settings["b1"], b2=settings["b2"], eps=settings["eps"])
    update = _ADAM_UPDATES.setdefault((settings["b1"], settings["b2"], settings["eps"]), partial(_adam_update, scaling))
    shrink = number("decay", decay, least=0)
    if shrink:
        settings["decay"] = shrink

    def init(params: Tree) -> AdamState | DecayingState:
        step = jnp.asarray(settings["step"])
        if not shrink:
            return AdamState(step, scaling.init(params))
        return DecayingState(step, scaling.init(params), jnp.asarray(shrink))

    return StepRule("adam", init, update, settings, settles=not shrink)


_ADAM_UPDATES: dict[tuple[float, float, float], partial[Any]] = {}


def _adam_update(
    scaling: optax.GradientTransformation,
    updates: Tree,
    state: AdamState | DecayingState,
    params: Tree | None = None,
    *,
    log_scale: Tree | None = None,
    **_: Any,
) -> tuple[Tree, AdamState | DecayingState]:
    gradient = jax.tree.map(lambda m, s: m * jnp.exp(s), *scaled(updates, log_scale))
    directions, moments = scaling.update(gradient, state.moments, params)
    if isinstance(state, DecayingState):
        if params is None:
            raise InputError(
                message("`adam` with `decay` needs `params` in `update`.", "the weights, which it shrinks")
            )
        directions = jax.tree.map(lambda u, w: u + state.decay * w, directions, params)
    return jax.tree.map(lambda u: -state.step * u, directions), state._replace(moments=moments)
