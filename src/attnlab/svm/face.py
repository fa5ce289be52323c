"""All optima of the nuclear-norm problem at once, and the distance of a W from them.

Let M = sum l A be the dual matrix of a solution, scaled to largest singular value 1, and U, V the paired singular
vectors of its r singular values that are 1. Every optimum is `U S V^T` with S positive semidefinite and value 1 in
every row with l > 0. Those S form the optimal face: a slice of the cone of positive semidefinite matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import finite_array, instance
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message

if TYPE_CHECKING:
    from attnlab.svm.solution import MarginSolution

# Relative to the largest, singular values of the map S -> <B_j, S> up to this are rounding.
UNSEEN = 1e-7


@dataclass(frozen=True, eq=False, repr=False)
class OptimalFace:
    """The optima `U S V^T`: S >= 0, <B_j, S> = 1 in the rows `level`, >= 1 in the others, with B_j = sym(U^T A_j V).

    Attributes:
        U: (d, r), orthonormal columns.
        V: (d, r), likewise, M V = U.
        S: (r, r), of the solution itself.
        B: (N, r, r), one per constraint.
        bound: (N,), 1 for inequalities, 0 for rows that say `= 0`.
        sizes: (N,), |A_j|_F.
        level: (N,), rows whose value is the same at every optimum: those with a multiplier.
        dimension: of the set of optima; 0 if unique.
    """

    U: Array
    V: Array
    S: Array
    B: Array
    bound: Array
    sizes: Array
    level: NDArray[np.bool_]
    dimension: int

    def __repr__(self) -> str:
        return f"OptimalFace(rank<={len(self.S)}, dimension={self.dimension})"


def as_vectors(matrices: Array) -> Array:
    """Symmetric matrices as vectors of r (r + 1) / 2 entries, inner products kept."""
    r = matrices.shape[-1]
    i, j = np.triu_indices(r)
    return matrices[..., i, j] * np.where(i == j, 1.0, np.sqrt(2.0))


def as_matrices(vectors: Array, r: int) -> Array:
    """The inverse of `as_vectors`."""
    i, j = np.triu_indices(r)
    found = np.zeros((*vectors.shape[:-1], r, r))
    found[..., i, j] = found[..., j, i] = vectors / np.where(i == j, 1.0, np.sqrt(2.0))
    return found


def null_directions(face: OptimalFace) -> Array:
    """Symmetric directions that no level row sees: an orthonormal basis as vectors, (k, r (r + 1) / 2)."""
    matrix = as_vectors(face.B[face.level]) / face.sizes[face.level, None]
    _, singular, right = np.linalg.svd(matrix, full_matrices=True)
    seen = np.zeros(right.shape[0], dtype=bool)
    seen[: len(singular)] = singular > UNSEEN * singular[0]
    return right[~seen]


def distance_to_face(W: ArrayLike, solution: MarginSolution) -> float:
    """How far a direction is from the optimal face: min over t >= 0 and optima F of |W - t F|_F / |W|_F.

    At a unique optimum this is the sine of the angle between W and `solution.W` (1 beyond a right angle). Where there
    are many optima it is the measure of alignment that does not depend on which of them the solver returned. Then a
    small convex problem is solved; its square is right to about 1e-14. Where `solution.unique` is None, the face is the
    part of it that is known, and the distance an upper bound.

    Args:
        W: (d, d), of any length; for instance `run.W`.
        solution: of `norm="nuclear"`.

    >>> import numpy as np
    >>> from attnlab.svm.nuclear import solve_nuclear
    >>> from attnlab.svm.rows import Rows
    >>> rows = Rows(np.eye(2), np.eye(2), np.arange(2), np.arange(2), (2, 1))
    >>> svm = solve_nuclear(rows, np.zeros(2, dtype=int), 2)
    >>> svm.unique, round(distance_to_face([[1.0, 0.9], [0.9, 1.0]], svm), 12)
    (False, 0.0)
    >>> round(distance_to_face([[1.0, 0.9], [-0.9, 1.0]], svm), 4)
    0.669
    """
    instance("solution", solution, _solution_class(), "what al.solve_margin returns")
    face = solution.face
    if face is None:
        raise InputError(
            message(
                f"`solution` has no optimal face ({solution.norm}, {solution.status.name.lower()}).",
                "solve with norm='nuclear', and look at solution.reason",
            )
        )
    given = finite_array("W", W)
    if given.shape != solution.W.shape or not given.any():
        raise InputError(
            message(f"`W` has shape {given.shape}; wanted finite numbers, not all zero, of shape {solution.W.shape}.")
        )
    given = given / np.abs(given).max()
    face = _of_order_one(face)
    given = given / np.linalg.norm(given)
    inside = face.U.T @ given @ face.V
    outside = np.linalg.norm(given - face.U @ inside @ face.V.T) ** 2 + np.linalg.norm(inside - inside.T) ** 2 / 4.0
    nearest = _project(face, 0.5 * (inside + inside.T))
    return float(min(1.0, np.sqrt(outside + np.linalg.norm(nearest - 0.5 * (inside + inside.T)) ** 2)))


def _solution_class() -> type[MarginSolution]:
    from attnlab.svm.solution import MarginSolution

    return MarginSolution


def _of_order_one(face: OptimalFace) -> OptimalFace:
    """The same face with S, and so its bounds, of order one."""
    power = int(np.frexp(np.abs(face.S).max())[1])
    if abs(power) < 100:
        return face
    return at_power(face, power)


def at_power(face: OptimalFace, power: int) -> OptimalFace:
    """The face of the rows times 2^power: S is divided by that."""
    return replace(
        face,
        S=np.ldexp(face.S, -power),
        B=np.ldexp(face.B, power),
        sizes=np.ldexp(face.sizes, power),
    )


def _project(face: OptimalFace, G: Array) -> Array:
    """The nearest point to G of the cone {t S : t >= 0, S in the face}."""
    S = face.S / np.linalg.norm(face.S)
    bound = face.bound / np.linalg.norm(face.S)
    if face.dimension == 0:
        return max(float(np.vdot(S, G)), 0.0) * S
    basis = np.concatenate([S[None], as_matrices(null_directions(face), len(S))])  # (k, r, r)
    rows = np.einsum("jab,kab->jk", face.B[~face.level], basis)
    rows[:, 0] -= bound[~face.level]  # <B_j, S> - t b_j, where t is the first coordinate
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    return np.einsum("k,kab->ab", _barrier(basis, rows[rows[:, 0] > 0], G), basis)


def _barrier(basis: Array, rows: Array, G: Array) -> Array:
    """Coordinates x of the S = sum x_k basis_k >= 0 with rows x >= 0 that is nearest to G, for |G| <= 1.

    Minimizes |S - G|^2 / 2 - weight (log det S + sum log rows x) for ever smaller weights; the first basis matrix is
    strictly inside. Smaller weights than the last here would need eigenvalues of S below rounding.
    """
    x = np.zeros(len(basis))
    x[0] = max(float(np.vdot(basis[0], G)), 0.1)
    quadratic = np.einsum("kab,lab->kl", basis, basis)
    linear = np.einsum("kab,ab->k", basis, G)
    for weight in 10.0 ** -np.arange(1.0, 16.0):
        for _ in range(30):
            try:
                step, length = _newton(basis, rows, x, quadratic @ x - linear, quadratic, weight)
            except np.linalg.LinAlgError:  # rounding has the last word
                return x
            x = x + step / (1.0 + length)
            if length < 1e-3:
                break
    return x


def _newton(basis: Array, rows: Array, x: Array, slope: Array, curve: Array, weight: float) -> tuple[Array, float]:
    """Newton's step on the barrier function, and its length; below one in that length x stays inside."""
    root = np.linalg.cholesky(np.einsum("k,kab->ab", x, basis))
    inverse = scipy.linalg.solve_triangular(root, np.eye(len(root)), lower=True)
    scaled = np.matmul(np.matmul(inverse, basis), inverse.T)
    ratio = rows / (rows @ x)[:, None]
    slope = slope - weight * (np.trace(scaled, axis1=-2, axis2=-1) + ratio.sum(0))
    curve = curve + weight * (np.einsum("kab,lab->kl", scaled, scaled) + ratio.T @ ratio)
    step: Array = -np.linalg.solve(curve, slope).astype(np.float64)
    return step, float(np.sqrt(max(-slope @ step, 0.0) / weight))
