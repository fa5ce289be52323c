"""Numbers and gradients as a mantissa and the logarithm of a scale, so that none is too small or too large."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from numpy.typing import ArrayLike

Value: TypeAlias = Array | np.ndarray
GivenWeights: TypeAlias = Mapping[str, ArrayLike] | ArrayLike  # as a user writes them
Params: TypeAlias = Mapping[str, Value]  # arrays by name: weights, parameters, their gradients
Tree: TypeAlias = Any  # arrays in any nest of tuples and dicts, which only its maker looks into


class ScaledGradient(NamedTuple):
    """A gradient `mantissa * e^log_scale`, per parameter; a nonzero mantissa has largest entry 1, to rounding."""

    mantissa: dict[str, Array]
    log_scale: dict[str, Array]

    def value(self, log_factor: Array | float = 0.0) -> dict[str, Array]:
        """The gradient times e^log_factor, which may underflow."""
        return {name: m * jnp.exp(self.log_scale[name] + log_factor) for name, m in self.mantissa.items()}

    def plus(self, other: ScaledGradient) -> ScaledGradient:
        """The sum of two gradients by the same parameters."""
        sums, scales = {}, {}
        for name, mantissa in self.mantissa.items():
            parts = [(mantissa, self.log_scale[name]), (other.mantissa[name], other.log_scale[name])]
            # What is zero has no say in the scale.
            tops = [jnp.where(jnp.any(m != 0), scale, -jnp.inf) for m, scale in parts]
            scales[name] = finite_scale(jnp.maximum(*tops))
            sums[name] = sum(m * jnp.exp(jnp.minimum(scale - scales[name], 0.0)) for m, scale in parts)
        return normalized(sums, scales)


def in_single(params: Params) -> bool:
    """Are these arrays in float32?"""
    return all(jnp.result_type(array) == jnp.float32 for array in params.values())


def finite_scale(log_scale: Array) -> Array:
    """A scale that is always a number: nothing to scale means scale 1."""
    return jnp.where(jnp.isneginf(log_scale), 0.0, log_scale)


def unit_scale(mantissa: Array, log_scale: Array) -> tuple[Array, Array]:
    """Move the size of the largest entry into the scale, so that squares neither overflow nor underflow."""
    size = jnp.max(jnp.abs(mantissa))
    divisor = jnp.where(size > 0, size, 1.0)
    return mantissa / divisor, log_scale + jnp.log(divisor)


def normalized(mantissa: Mapping[str, Array], log_scale: Mapping[str, Array]) -> ScaledGradient:
    """A gradient whose mantissas have largest entry 1."""
    parts = {name: unit_scale(m, log_scale[name]) for name, m in mantissa.items()}
    return ScaledGradient(
        mantissa={name: m for name, (m, _) in parts.items()},
        log_scale={name: scale for name, (_, scale) in parts.items()},
    )


def scaled(updates: Tree, log_scale: Tree | None) -> tuple[Tree, Tree]:
    """Mantissas of order one and a log-scale for each leaf; a plain gradient is brought to that form."""
    if log_scale is None:
        parts = jax.tree.map(_of_order_one, updates)
        outer = jax.tree.structure(updates)
        return jax.tree.transpose(outer, None, parts)
    if jax.tree.structure(log_scale) == jax.tree.structure(updates):
        return updates, log_scale
    return updates, jax.tree.map(lambda _: log_scale, updates)


def _of_order_one(leaf: Array) -> tuple[Array, Array]:
    size = jnp.max(jnp.abs(leaf), initial=0.0)
    # XLA multiplies by the reciprocal, which underflows for what is larger.
    divisor = jnp.minimum(jnp.where(size > 0, size, 1.0), 1.0 / jnp.finfo(size.dtype).tiny)
    return leaf / divisor, jnp.log(divisor)


def norm(leaf: Value) -> Array:
    """Euclidean norm of one leaf whose entries are of order one."""
    return jnp.sqrt(squares_p.bind(jnp.asarray(leaf)))


def in_fixed_order(terms: Iterable[Array]) -> Array:
    """Their sum, from the first to the last: XLA orders the terms of a reduction as suits the shape of a batch."""
    return reduce(add, terms)


# The sum of the squares of an array. A primitive of its own, to know where the trials of a batch are: see `_batched`.
squares_p = Primitive("attnlab_squares")


def _squares(array: Array) -> Array:
    return jnp.sum(jnp.square(array))


def _squares_derivative(primals: tuple[Array], tangents: tuple[Array | ad.Zero]) -> tuple[Array, Array]:
    (array,), (tangent,) = primals, tangents
    squares = squares_p.bind(array)
    if isinstance(tangent, ad.Zero):
        return squares, jnp.zeros_like(squares)
    return squares, 2.0 * jnp.sum(array * tangent)


def _batched(arrays: tuple[Array], batch_axes: tuple[int]) -> tuple[Array, int]:
    """Trials along the last axis are lanes (see `attnlab.models.lanes`), whose sums have a fixed order."""
    (array,), (trials,) = arrays, batch_axes
    squares = jnp.square(array)
    if trials != array.ndim - 1:
        return jnp.sum(squares, axis=[axis for axis in range(array.ndim) if axis != trials]), 0
    while squares.ndim > 1:
        squares = in_fixed_order(squares[k] for k in range(squares.shape[0]))
    return squares, 0


squares_p.def_impl(jax.jit(_squares))
squares_p.def_abstract_eval(lambda array: array.update(shape=(), weak_type=False))
mlir.register_lowering(squares_p, mlir.lower_fun(_squares, multiple_results=False))
ad.primitive_jvps[squares_p] = _squares_derivative
batching.primitive_batchers[squares_p] = _batched


def log_norm(mantissa: Array, log_scale: Array) -> Array:
    """log of the norm of `mantissa * e^log_scale`; -inf for zero."""
    return jnp.log(norm(mantissa)) + log_scale


def norm_of(array: Value) -> Array:
    """Euclidean norm of one array of any scale."""
    return jnp.exp(log_norm(*scaled(array, None)))


def total_log_norm(updates: Tree, scales: Tree) -> Array:
    """log of the norm over all leaves together."""
    logs = jnp.stack(jax.tree.leaves(jax.tree.map(log_norm, updates, scales)))
    return 0.5 * jax.nn.logsumexp(2.0 * logs)
