"""Parts that deep transformers share: layer norm, the softmax of attention, dropout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.models.scaled import Value
from attnlab.models.softmax import softmax

NORM_EPS = 1e-5  # added to variances


def layer_norm(values: Array, gain: Value, shift: Value, eps: float = NORM_EPS) -> Array:
    """`gain (values - mean) / sqrt(variance + eps) + shift`, over the last axis."""
    centred = values - jnp.mean(values, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + eps) * gain + shift


def saturating_softmax(logits: Array) -> Array:
    """Softmax along the last axis: accurate under saturation, but in float32, whose users want speed, JAX's own."""
    return jax.nn.softmax(logits, axis=-1) if logits.dtype == jnp.float32 else softmax(logits)


def dropped(values: Array, share: float, key: Array | None, place: int) -> Array:
    """In training some of the numbers are zero, and the others larger for it; `place` tells layers from each other."""
    if key is None or not share:
        return values
    stays = jax.random.bernoulli(jax.random.fold_in(key, place), 1.0 - share, values.shape)
    return jnp.where(stays, values / (1.0 - share), 0.0)
