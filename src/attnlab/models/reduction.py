"""The few coordinates in which gradient flow moves.

The gradient in W is a sum of `(x_it - x_iτ) z_ik^T`, so `W(t) - W(0)` stays in their span; the part of W(0) orthogonal
to it is frozen. With an orthonormal basis B of that span the logits are `a(0) + F y`, where F holds the inner
products of the rows with B: a system of at most n K (T - 1) numbers, whatever d is. For W = K Q^T the columns of K
move in the span of the token differences and those of Q in the span of the queries.

Coordinates are measured in units of logits: y = σ B(W - W(0)), or y = sqrt(σ) (K, Q), with σ the product of the largest
token and query norms. So tolerances mean the same whatever the scale of the data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.data.tokens import Array
from attnlab.models.powers import of_one_scale
from attnlab.models.scaled import Value

if TYPE_CHECKING:
    from attnlab.models.layer_problem import LayerProblem

EPS = float(np.finfo(np.float64).eps)


class Combined(NamedTuple):
    """Logits that are linear in y: W is trained."""

    base: Value  # (n, K, T) logits at y = 0, less that of the anchor token; -inf where masked
    features: Value  # (n, K, T, p)

    def logits(self, y: Value) -> jax.Array:
        """(n, K, T)."""
        return jnp.add(self.base, jnp.einsum("nktp,p->nkt", self.features, y))


class Factored(NamedTuple):
    """Logits that are bilinear in y = (K, Q)."""

    x: Value  # (n, T, r_x) tokens in the basis of their differences, of norm at most 1
    z: Value  # (n, K, r_z) queries in the basis of their span, of norm at most 1
    hidden: Value  # (n, K, T) zero, or -inf where masked

    def logits(self, y: Value) -> jax.Array:
        """(n, K, T)."""
        rows = self.x.shape[-1]
        both = y.reshape(rows + self.z.shape[-1], -1)
        moved = jnp.einsum("ntd,dm,em,nke->nkt", self.x, both[:rows], both[rows:], self.z)
        return jnp.add(self.hidden, moved)


@dataclass(frozen=True)
class Coordinates:
    """One trial in reduced coordinates, and the way back to its weights.

    Attributes:
        system: what maps y to logits.
        start: y at time 0.
        log_scale: y is e^log_scale times the reduced weights, so `dy/dt = -e^(2 log_scale) dL/dy`.
        initial: the weights at time 0.
        left, right: orthonormal columns that span the token differences (d, r_x) and the queries (d, r_z).
        basis: of the moving part of W within them, (p, r_x r_z); of the shared width of K and Q, (m', m).
        rows: the constraint rows within left and right, (n K T, r_x r_z); none for K and Q.
    """

    system: Combined | Factored
    start: Array
    log_scale: float
    initial: dict[str, Array]
    left: Array
    right: Array
    basis: Array
    rows: Array | None = None

    def weights(self, y: Array) -> dict[str, Array]:
        """The weights at coordinates (..., p)."""
        lead, shape = y.shape[:-1], (self.left.shape[-1], self.right.shape[-1])
        moved = _times_exp(y - self.start, -self.log_scale)
        if self.rows is not None:
            inside = (moved @ self.basis).reshape(*lead, *shape)
            return {"W": self.initial["W"] + self.left @ inside @ self.right.T}
        both = moved.reshape(*lead, sum(shape), len(self.basis)) @ self.basis
        return {
            "K": self.initial["K"] + self.left @ both[..., : shape[0], :],
            "Q": self.initial["Q"] + self.right @ both[..., shape[0] :, :],
        }

    def regrouped(self, first: np.ndarray, anchor: np.ndarray) -> Coordinates:
        """The same trial in a basis that spans the rows marked in `first` (n, K, T) before the others; W only.

        Rows are taken from the tokens `anchor` (n, K, 1), which should be among the first. The others then have a
        part of y to themselves, into which no rounding error of the first can leak.
        """
        if self.rows is None or not isinstance(self.system, Combined):
            raise TypeError("only coordinates of W can be regrouped")
        base = self.system.base
        rows = self.rows.reshape(*first.shape, -1)
        rows = np.where(np.isfinite(base)[..., None], rows - _at(rows, anchor), 0.0).reshape(self.rows.shape)
        basis, ahead = _basis(rows, first.ravel())
        features = _features(rows, basis, first.shape)
        features[first, ahead:] = 0.0  # not just to rounding: the force on the first grows like t
        system = Combined(base - np.take_along_axis(base, anchor, axis=-1), features)
        return replace(self, system=system, basis=basis, rows=rows, start=np.zeros(len(basis)))


def reduce(problem: LayerProblem, weights: dict[str, Array], logits: Array) -> Coordinates:
    """Reduced coordinates of one trial that starts at `weights`, where it has `logits` (n, K, T)."""
    (x, power_x), (z, power_z) = of_one_scale(problem.x, problem.z, problem.powers)
    d = x.shape[-1]
    left, right = _span(x.reshape(-1, d)), _span(z.reshape(-1, d))
    (x, log_x), (z, log_z) = _normalized(x @ left), _normalized(z @ right)
    build = _combined if "W" in weights else _factored
    return build(x, z, log_x + log_z + (power_x + power_z), weights, logits, left, right)


def _combined(
    x: Array, z: Array, log_unit: float, weights: dict[str, Array], logits: Array, left: Array, right: Array
) -> Coordinates:
    anchor = np.argmax(logits, axis=-1, keepdims=True)
    every = np.broadcast_to(x[:, None], (*logits.shape, x.shape[-1]))
    lead = np.where(np.isfinite(logits)[..., None], every - _at(every, anchor), 0.0)
    rows = np.einsum("nktd,nke->nktde", lead, z).reshape(logits.size, -1)
    basis, _ = _basis(rows, np.ones(len(rows), dtype=bool))
    with np.errstate(over="ignore"):  # -inf for a token that is further behind than floats reach
        base = logits - logits.max(-1, keepdims=True)
    system = Combined(base, _features(rows, basis, logits.shape))
    return Coordinates(system, np.zeros(len(basis)), log_unit, weights, left, right, basis, rows)


def _factored(
    x: Array, z: Array, log_unit: float, weights: dict[str, Array], logits: Array, left: Array, right: Array
) -> Coordinates:
    start = np.concatenate([left.T @ weights["K"], right.T @ weights["Q"]])
    basis = np.eye(start.shape[-1])
    if start.shape[-1] > len(start):  # the rows of K and Q never leave the span they start in
        basis = np.linalg.qr(start.T)[0].T
        start = start @ basis.T
    log_scale = 0.5 * log_unit
    system = Factored(x, z, np.where(np.isfinite(logits), 0.0, -np.inf))
    return Coordinates(system, _times_exp(start.ravel(), log_scale), log_scale, weights, left, right, basis)


def _times_exp(array: Array, exponent: float) -> Array:
    """`array * e^exponent`, also where that factor alone is beyond floats and the product is not."""
    if abs(exponent) < 700.0:
        return array * np.exp(exponent)
    with np.errstate(over="ignore"):
        return array * np.exp(0.5 * exponent) * np.exp(0.5 * exponent)


def _normalized(vectors: Array) -> tuple[Array, float]:
    """Vectors of norm at most 1, and the logarithm of what they were divided by."""
    size = float(np.max(np.abs(vectors), initial=0.0))
    if size == 0.0:
        return vectors, 0.0
    vectors = vectors / size
    norm = float(np.max(np.sqrt(np.sum(vectors * vectors, axis=-1))))
    return vectors / norm, float(np.log(size) + np.log(norm))


def _at(rows: Array, token: np.ndarray) -> Array:
    """The rows (n, K, T, p) of one token (n, K, 1) per query."""
    return np.take_along_axis(rows, token[..., None], axis=2)


def _features(rows: Array, basis: Array, shape: tuple[int, ...]) -> Array:
    return (rows @ basis.T).reshape(*shape, len(basis))


def _basis(rows: Array, first: np.ndarray) -> tuple[Array, int]:
    """Orthonormal rows that span `rows`, and how many of them, at the head, span those marked in `first`."""
    # Each group is measured by itself, so that a group of short rows keeps its directions.
    ahead = _span(rows[first]).T
    rest = rows[~first]
    for _ in range(2):  # once more: what rounding left of the first projection
        rest = rest - (rest @ ahead.T) @ ahead
    return np.concatenate([ahead, _span(rest, np.max(np.abs(rows), initial=0.0)).T]), len(ahead)


def _span(vectors: Array, size: float = 0.0) -> Array:
    """Orthonormal columns that span the rows of `vectors`; what is rounding error beside entries of `size` is not."""
    if not np.any(vectors):
        return np.zeros((vectors.shape[-1], 0))
    top = max(float(np.max(np.abs(vectors))), size)
    _, values, right = np.linalg.svd(vectors / top, full_matrices=False)
    floor = EPS * max(vectors.shape) * max(float(values[0]), 1.0)
    return right[values > floor].T
