"""The few coordinates in which W moves.

The gradient in W is a sum of `x_it z_ik^T`, with tokens less what a sequence has in common: W moves in the span of
these rows, and what W(0) holds outside of it is frozen and unseen by the logits. In an orthonormal basis B of that span
`W = frozen + B p`, the logits are `F p` with F the inner products of the rows with the basis, the gradient in p is the
gradient in W, and so are its length and every sum of gradients. There are at most n K (T - 1) coordinates, whatever d
is. This is the kernel form of the dynamics: F F^T is the kernel matrix `<x, x'> <z, z'>`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.data.scale import matrix_lengths
from attnlab.data.tokens import Array
from attnlab.models.scaled import Value


class Frame(NamedTuple):
    """Orthonormal coordinates of W for one trial, or a batch of them."""

    features: Value  # (n, K, T, p) rows in coordinates; zero where masked
    left: Value | None  # (d, r_x) orthonormal columns that span the tokens, or None for the unit matrix
    right: Value | None  # (d, r_z) and the queries, likewise
    basis: Value  # (p, r_x, r_z) orthonormal, in terms of these
    frozen: Value  # (d, d) the part of W(0) that never moves
    frozen_norm: Value  # () its length

    def without_matrices(self) -> Frame:
        """What steps and lengths take; the way back to W is left out, which is most of the memory."""
        return self._replace(left=None, right=None, basis=None, frozen=None)

    def logits(self, p: Value) -> jax.Array:
        """(n, K, T) at the coordinates of one trial."""
        return jnp.einsum("nktp,p->nkt", self.features, p)

    def matrix(self, p: Value) -> jax.Array:
        """W (d, d) at the coordinates of one trial."""
        return self.frozen + _outward(jnp.einsum("p,pxz->xz", p, self.basis), self.left, self.right)

    def row(self, p: Value) -> jax.Array:
        """W as a row (1, p + 2) with all its lengths and angles: coordinates, frozen part, and 0 for what it lacks."""
        return jnp.concatenate([p, self.frozen_norm[None], jnp.zeros(1)])[None]

    def rows_of(self, W: Array) -> Array:
        """Other matrices (trials, d, d) as rows (trials, 1, p + 2), to compare with `row`."""
        inside = self.coordinates(W)
        rest = W - _outward(np.einsum("rp,rpxz->rxz", inside, self.basis, optimize=True), self.left, self.right)
        length = np.where(self.frozen_norm > 0, self.frozen_norm, 1.0)
        frozen = self.frozen / length[:, None, None]
        along = np.einsum("rij,rij->r", rest, frozen)
        rest = matrix_lengths(rest - along[:, None, None] * frozen)
        return np.concatenate([inside, along[:, None], rest[:, None]], axis=-1)[:, None]

    def coordinates(self, W: Array) -> Array:
        """Coordinates (trials, p) of the part of W (trials, d, d) in the span."""
        inside = W if self.left is None else np.swapaxes(self.left, -1, -2) @ W
        inside = inside if self.right is None else inside @ self.right
        return np.einsum("rxz,rpxz->rp", inside, self.basis, optimize=True)

    def matrices(self, p: Array) -> Array:
        """W (trials, d, d) at the coordinates of a batch, with NumPy."""
        with np.errstate(over="ignore", invalid="ignore"):  # of a run that overflowed
            inside = np.einsum("rp,rpxz->rxz", p, self.basis, optimize=True)
            return self.frozen + _outward(inside, self.left, self.right)


def frame_size(n: int, K: int, T: int, d: int) -> tuple[int, int, int]:
    """p, r_x and r_z."""
    r_x, r_z = min(d, n * (T - 1)), min(d, n * K)
    return min(n * K * (T - 1), r_x * r_z), r_x, r_z


def make_frame(x: Array, z: Array, visible: np.ndarray | None, W: Array) -> tuple[Frame, Array]:
    """The frame of a batch of trials that start at W, and the coordinates of W in it.

    Args:
        x: tokens less the mean of those of their sequence that some query sees, (trials, n, T, d).
        z: queries, (trials, n, K, d).
        visible: (trials, n, K, T), or None.
        W: (trials, d, d).

    Returns:
        (frame, p (trials, size)).
    """
    trials, n, T, d = x.shape
    K = z.shape[2]
    # The tokens of a sequence sum to zero: all but the last span them.
    left = _spanning(x[:, :, :-1].reshape(trials, -1, d))
    right = _spanning(z.reshape(trials, -1, d))
    tokens = x if left is None else x @ left[:, None]
    queries = z if right is None else z @ right[:, None]
    rows = np.broadcast_to(tokens[:, :, None], (trials, n, K, T, tokens.shape[-1]))
    if visible is not None:
        # Less the mean of what its own query sees: a shift of all logits of a query is not felt.
        seen = np.where(visible[..., None], rows, 0.0)
        rows = np.where(visible[..., None], seen - seen.sum(-2, keepdims=True) / visible.sum(-1)[..., None, None], 0.0)
    rows = np.einsum("rnktx,rnkz->rnktxz", rows, queries)
    shape = rows.shape[-2:]
    rows = rows.reshape(trials, n, K, T, -1)
    basis = _spanning(rows[..., :-1, :].reshape(trials, n * K * (T - 1), -1))
    if basis is None:
        basis = np.broadcast_to(np.eye(rows.shape[-1]), (trials, rows.shape[-1], rows.shape[-1]))
    frame = Frame(
        features=rows @ basis[:, None, None],
        left=left,
        right=right,
        basis=np.ascontiguousarray(np.swapaxes(basis, -1, -2)).reshape(trials, -1, *shape),
        frozen=np.zeros_like(W),
        frozen_norm=np.zeros(trials),
    )
    start = frame.coordinates(W)
    frozen = W - frame.matrices(start)
    return frame._replace(frozen=frozen, frozen_norm=matrix_lengths(frozen)), start


def _spanning(vectors: Array) -> Array | None:
    """Orthonormal columns whose span holds some row vectors, (trials, d, number); None if that takes all of space.

    No rank is judged: of dependent vectors, as many columns are made as there are vectors.
    """
    if vectors.shape[-2] >= vectors.shape[-1]:
        return None
    return np.linalg.qr(np.swapaxes(vectors, -1, -2))[0]


def _outward(inside: Value, left: Value | None, right: Value | None) -> Any:
    """left inside right^T."""
    inside = inside if left is None else left @ inside
    return inside if right is None else inside @ right.swapaxes(-1, -2)
