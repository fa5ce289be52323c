"""Softmax after saturation.

Training by normalized steps sends the largest logit to infinity. The textbook derivative `s * (g - s @ g)` then
subtracts two numbers that agree to every digit: once the other tokens hold less than 1e-16 of the weight, what is
left is rounding noise, and a normalized step blows the noise up to full length. Everything here measures `g` from
the largest token instead, so that the quantities that vanish are products and never differences.

`softmax` is a primitive of its own, so that `attnlab.models.reverse` finds it in a user's model, whatever that does
around it, and pulls gradients back through it in the log domain.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

# A sum smaller than this, relative to the sum of the sizes of its terms, is zero.
NOISE = 8 * float(jnp.finfo("float64").eps)


def first_largest(logits: Array, axis: int = -1) -> Array:
    """Boolean array, True at the first largest entry along an axis."""
    # Two plain reductions: XLA's argmax is a slow pairwise one on CPU.
    axis = axis % logits.ndim
    length = logits.shape[axis]
    index = jnp.arange(length).reshape([-1 if k == axis else 1 for k in range(logits.ndim)])
    largest = logits == jnp.max(logits, axis=axis, keepdims=True)
    first = jnp.min(jnp.where(largest, index, length), axis=axis, keepdims=True)
    return index == first


def softmax(logits: Array, axis: int = -1) -> Array:
    """Softmax along the last axis, or another, with a derivative that stays accurate under saturation.

    With m the largest token, `S' g = D^T (diag(s) - s s^T) D g`, where `(D g)_t = g_t - g_m`: no cancellation, in
    forward and in reverse mode, and so in derivatives of any order. Logits of -inf give exact zeros.

    >>> import jax, jax.numpy as jnp
    >>> slope = jax.grad(lambda a: softmax(a)[0])(jnp.array([60.0, 0.0]))  # s_0 s_1 = e^-60
    >>> bool(abs(slope[0] / 8.75651e-27 - 1) < 1e-5)
    True
    """
    logits = jnp.asarray(logits)
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        logits = logits.astype(float)
    return softmax_p.bind(logits, axis=axis % logits.ndim)


softmax_p = Primitive("attnlab_softmax")


def _probabilities(logits: Array, *, axis: int) -> Array:
    exponentials = jnp.exp(logits - jnp.max(logits, axis=axis, keepdims=True))
    return exponentials / jnp.sum(exponentials, axis=axis, keepdims=True)


def _derivative(primals: tuple[Array], tangents: tuple[Array | ad.Zero], *, axis: int) -> tuple[Array, Array]:
    (logits,), (tangent,) = primals, tangents
    s = softmax_p.bind(logits, axis=axis)
    if isinstance(tangent, ad.Zero):
        return s, jnp.zeros_like(s)
    top = first_largest(jax.lax.stop_gradient(logits), axis)
    centred = tangent - jnp.sum(jnp.where(top, tangent, 0.0), axis=axis, keepdims=True)
    off = jnp.where(top, 0.0, s * (centred - jnp.sum(s * centred, axis=axis, keepdims=True)))
    return s, jnp.where(top, -jnp.sum(off, axis=axis, keepdims=True), off)


def _batched(arrays: tuple[Array], batch_axes: tuple[int], *, axis: int) -> tuple[Array, int]:
    # To the front, where who looks at attention weights expects the examples.
    (logits,), (batch_axis,) = arrays, batch_axes
    return softmax_p.bind(jnp.moveaxis(logits, batch_axis, 0), axis=axis + 1), 0


softmax_p.def_impl(jax.jit(_probabilities, static_argnames="axis"))
softmax_p.def_abstract_eval(lambda logits, *, axis: logits)
mlir.register_lowering(softmax_p, mlir.lower_fun(_probabilities, multiple_results=False))
ad.primitive_jvps[softmax_p] = _derivative
batching.primitive_batchers[softmax_p] = _batched


class Weights(NamedTuple):
    """Attention weights of every query, in and out of the log domain."""

    probs: Array
    log_probs: Array  # -inf where masked
    top: Array  # True at the first largest token


def weights(logits: Array, axis: int = -1) -> Weights:
    """`softmax(logits)` along an axis with its logarithm, which does not underflow."""
    shifted = logits - jnp.max(logits, axis=axis, keepdims=True)
    exponentials = jnp.exp(shifted)
    total = jnp.sum(exponentials, axis=axis, keepdims=True)
    return Weights(exponentials / total, shifted - jnp.log(total), first_largest(logits, axis))


def pull_back(
    w: Weights,
    cotangent: Array,
    rounding: Array,
    log_weight: Array,
    sign: Array,
    visible: Array | None = None,
    *,
    axis: int = -1,
) -> tuple[Array, Array]:
    """Pull a cotangent of the attention weights back to the logits, as mantissa and one common log-scale.

    Computes `e^c h` with `h_t = sign * e^log_weight * s_t * sum_tau s_tau (g_t - g_tau)` over all queries at once.
    The largest factor `e^log_weight s_t` of any token whose cotangent differs from that of its top token is taken out
    as `e^c`, so `h` has entries of order g however small the gradient is.

    Args:
        w: attention weights, (..., T), or with the tokens along another `axis`.
        cotangent: g, (..., T).
        rounding: differences of g up to this are zero, (...), or (..., T) for each token.
        log_weight, sign: log magnitude and sign of the weight of each query, (...).
        visible: which tokens have logits above -inf, (..., T); None for all.

    Returns:
        (mantissa h (..., T), log-scale c (scalar)).
    """
    g = cotangent - jnp.sum(jnp.where(w.top, cotangent, 0.0), axis=axis, keepdims=True)
    differs = jnp.abs(g) > (rounding if rounding.ndim == g.ndim else jnp.expand_dims(rounding, axis))
    differs = differs if visible is None else differs & visible
    # `peak` is the weight of the heaviest token that differs from the top one; everything in the row is of its order.
    log_peak = jnp.max(jnp.where(differs, w.log_probs, -jnp.inf), axis=axis, keepdims=True)
    peak_or_one = jnp.where(jnp.isneginf(log_peak), 0.0, log_peak)
    relative = jnp.where(differs, jnp.exp(w.log_probs - peak_or_one), 0.0)
    mean = jnp.sum(relative * g, axis=axis, keepdims=True)  # sum_tau s_tau g_tau, in units of peak
    rise = g - jnp.exp(peak_or_one) * mean
    # A twin, as good as the top token, may hold half the weight; only the mean pulls it, which is of order peak.
    twin = jnp.where(differs | w.top, 0.0, w.probs)
    log_row = log_peak + jnp.expand_dims(log_weight, axis)
    scale = jnp.max(log_row)
    scale = jnp.where(jnp.isneginf(scale), 0.0, scale)
    off = jnp.expand_dims(sign, axis) * jnp.exp(log_row - scale) * (relative * rise - twin * mean)
    return jnp.where(w.top, -jnp.sum(off, axis=axis, keepdims=True), off), scale
