"""The tangent kernel of a shallow encoder, without its Jacobian.

With U = B X W_V^T, D = 1[U > 0], G = D w_O (entry by entry), t = tau1 / (T or 1), S = G W_V X^T, R the pull-back of S
through the softmax and M = X^T R X, the gradients of one output are `a = t sum_i relu(U_i)` by w_O, `t G^T B X` by W_V,
`tau0 t W_K M^T` by W_Q and `tau0 t W_Q M` by W_K. Their inner products need G, B X and M alone: (n T) m numbers, where
the Jacobian has n (3 d + 1) m.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.models.precision import in_float64
from attnlab.models.scaled import Params, Value

if TYPE_CHECKING:
    from attnlab.models.encoder import Encoder

# Numbers that the largest array of a pair of blocks may have: 64 MB.
BLOCK = 8_000_000
# Into how many stripes of rows the lower half of a symmetric kernel is cut.
STRIPES = 2


class Parts(NamedTuple):
    """What the kernel of some sequences is made of."""

    hidden: Array  # (n, m)
    slopes: Array  # (n, T, m) G
    attended: Array  # (n, T, d) B X
    products: Array  # (n, d, d) M


def kernel_parts(network: Encoder, weights: Params, x: Array) -> Parts:
    """G, B X and M of sequences x (n, T, d); JAX."""
    attention, pull_back = jax.vjp(lambda logits: network.attend(logits), network.logits(weights, x))
    attended = jnp.einsum("nts,nsd->ntd", attention, x)
    raw = network.raw(weights, x, attended)
    slopes = jnp.where(raw > 0, weights["w_O"], 0.0)
    by_attention = jnp.einsum("ntd,nsd->nts", jnp.einsum("ntm,md->ntd", slopes, weights["W_V"]), x)
    (by_logits,) = pull_back(by_attention)
    products = jnp.einsum("nts,ntd,nse->nde", by_logits, x, x, optimize=[(0, 1), (0, 1)])
    scale = network.tau1 * network.pooling(x.shape[-2])
    return Parts(scale * jnp.sum(jax.nn.relu(raw), axis=-2), slopes, attended, products)


def kernel_blocks(network: Encoder, weights: Params, a: Parts, other: Parts | None = None) -> dict[str, Array]:
    """Inner products of the gradients by each matrix, (n, n'), or (n, n) without another; JAX."""
    b = a if other is None else other
    T, d = a.attended.shape[-2:]
    t, held = network.tau1 * network.pooling(T), network.hold_factors(T, d)
    by_V = _all_pairs(a) if other is None else _pairs(a, b)
    blocks = {"w_O": a.hidden @ b.hidden.T, "W_V": t**2 * by_V}
    if network.attention_kind != "uniform":
        mine, theirs = a.products, b.products
        if network.tied:
            mine, theirs = (M + jnp.swapaxes(M, -1, -2) for M in (mine, theirs))
        queries = weights["W_Q"]
        keys = queries if network.tied else weights["W_K"]

        def inner(through: Value) -> Array:
            """<through_i, M_j> of all pairs."""
            rows = jnp.asarray(through).reshape(len(through), -1)
            return (network.tau0 * t) ** 2 * rows @ theirs.reshape(len(theirs), -1).T

        blocks["W_Q"] = inner(mine @ (keys.T @ keys))  # <W_K M_i^T, W_K M_j^T>
        if not network.tied:
            blocks["W_K"] = inner((queries.T @ queries) @ mine)
    return {name: held[name] ** 2 * block for name, block in blocks.items()}


def _pairs(a: Parts, b: Parts) -> Array:
    """sum_ij (G_i . G_j) (z_i . z_j) over the tokens of two sequences, for all pairs of them."""
    T = a.attended.shape[-2]

    def rows(array: Array) -> Array:
        return array.reshape(-1, array.shape[-1])

    products = (rows(a.slopes) @ rows(b.slopes).T) * (rows(a.attended) @ rows(b.attended).T)
    return jnp.sum(products.reshape(len(a.hidden), T, len(b.hidden), T), axis=(1, 3))


def _all_pairs(a: Parts) -> Array:
    """The same of sequences with themselves; what is symmetric is mirrored, most of it, which saves a quarter."""
    n = len(a.hidden)
    cuts = [n * k // STRIPES for k in range(STRIPES + 1)]
    stripes = [
        jnp.pad(_pairs(_some(a, first, last), _some(a, 0, last)), ((0, 0), (0, n - last)))
        for first, last in itertools.pairwise(cuts)
        if last > first
    ]
    lower = jnp.tril(jnp.concatenate(stripes))
    return lower + jnp.tril(lower, -1).T


def _some(a: Parts, first: int, last: int) -> Parts:
    return Parts(*(part[first:last] for part in a))


def even(n: int, most: float) -> int:
    """The least size of blocks, at most this large, that cuts n into as few: equal blocks share a compiled program.

    >>> even(100, 87), even(100, 200), even(7, 0)
    (50, 100, 1)
    """
    count = -(-n // max(1, int(most)))
    return -(-n // count)


@in_float64
def encoder_kernels(
    network: Encoder, weights: Params, x: np.ndarray, other: np.ndarray | None = None, *, block: int = BLOCK
) -> dict[str, np.ndarray]:
    """The part of each matrix in the kernel of x (n, T, d) with `other`, (n, n'); one block of sequences at a time."""
    T, d = x.shape[1:]
    # A block of sequences holds G and relu, a pair of blocks the products of all their tokens.
    columns = x if other is None else other
    size = even(len(x), min(block // (2 * T * network.width + T * d + d * d), np.sqrt(block) // T))
    kernels: dict[str, np.ndarray] = {}
    for i in range(0, len(x), size):
        mine = _parts(network, weights, x[i : i + size])
        for j in range(0, len(columns), size):
            if other is None and j > i:
                continue
            theirs = None if other is None and j == i else _parts(network, weights, columns[j : j + size])
            for name, part in _blocks(network, weights, mine, theirs).items():
                whole = kernels.setdefault(name, np.zeros((len(x), len(columns))))
                whole[i : i + size, j : j + size] = part
                if other is None:
                    whole[j : j + size, i : i + size] = np.asarray(part).T
    return kernels


_parts = jax.jit(kernel_parts, static_argnums=0)
_blocks = jax.jit(kernel_blocks, static_argnums=0)
