"""What a certified W tells about all optima of the nuclear-norm problem: how far, how many, of which rank.

Notation as in `attnlab.svm.face`. The optimum is unique if the matrices sym(U^T A_j V) of the rows with l_j > 0 span
the symmetric r x r matrices. In float64 neither "singular value 1" nor "l_j > 0" is a yes or no. What the
duality gap does prove is a distance. Let e be the absolute gap, p = |W|_* and k = 1 - s the distance of the next
singular value s of M from 1. Any optimum W' satisfies

    |W'|_* - <M, W'> <= e,    so that    |W' - U S' V^T|_F <= sqrt(4 p e / k + 2 (e / k)^2)    for some S' >= 0,
    l_j (<A_j, W'> - 1) <= e.

(The first by writing W' as a block of a positive semidefinite matrix of trace 2 p, whose part outside the span of the
(u_i, v_i) has trace at most 2 e / k.) So sym(U^T A_j V) takes nearly the same values at S' and at the S of the
solution, and S' - S is bounded through the least singular value of that linear map. A small bound proves that all
optima agree. Where the map has a null space, a walk along it leads to another certified optimum, far away: there are
many.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.svm.face import OptimalFace, as_matrices, as_vectors, null_directions
from attnlab.svm.rows import Rows

EPS = float(np.finfo(np.float64).eps)
# All optima within this share of |W| of the solution: one optimum. A second one at least as far away: many.
AGREE = 1e-2
# Largest gap of such a second one: zero but for rounding.
FLAT = 1e-11
# Constraint values known no better than this leave the support open.
UNCLEAR = 0.05
# Where there are many optima: slack that a row must have, or must be proved not to have.
CLEAR = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class Optima:
    """What is known of the optima; `reason` says why something is None.

    Attributes:
        unique: is there one only?
        face: all of them.
        error: bound on |W - W'|_F / |W|_F for every optimum W', if they are close together.
        value_error: how far constraint values of an optimum may be from those of W, (N,).
        support: rows tight at every optimum, (N,).
        rank_floor: singular values of W up to this may be zero at an optimum.
    """

    unique: bool | None
    face: OptimalFace | None
    error: float | None
    value_error: Array
    support: NDArray[np.bool_] | None
    rank_floor: float | None
    reason: str | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Certified:
    """W of least value 1 and multipliers with |sum l A| = 1, with what follows from them.

    Attributes:
        rows: the constraints; `equal` marks those that say `= 0`.
        values, multipliers: (N,).
        nuclear: |W|_*.
        gap: relative duality gap.
        rank: the number of columns of the factors of W.
        left, singular, right: the singular value decomposition of sum l A, vectors in columns.
    """

    rows: Rows
    W: Array
    values: Array
    multipliers: Array
    equal: NDArray[np.bool_]
    nuclear: float
    gap: float
    rank: int
    left: Array
    singular: Array
    right: Array

    @property
    def sizes(self) -> Array:
        """|A_j|, and 1 for rows that are zero."""
        return np.where(self.rows.norms > 0, self.rows.norms, 1.0)

    def share(self) -> Array:
        """Multipliers as shares of their sum."""
        return self.multipliers / self.multipliers[~self.equal].sum()

    def uncertain(self) -> float:
        """The gap and the rounding in it: long terms of sum l A that cancel, and values that are small differences."""
        sizes = self.rows.norms
        long = float(np.abs(self.multipliers) @ sizes) + float(np.linalg.norm(self.W)) * float(sizes.max())
        return self.gap + 4 * EPS * long

    def gap_of(self, W: Array) -> float:
        """The gap of another W with the same multipliers."""
        values = self.rows.values(W)
        least = float(values[~self.equal].min())
        total = float(self.multipliers[~self.equal].sum())
        level = float(np.abs(values[self.equal]).max(initial=0.0))
        if least <= 0 or level > FLAT * self.nuclear * float(self.rows.norms.max()):
            return np.inf
        return float(np.linalg.svd(W, compute_uv=False).sum()) / (least * total) - 1.0


def examine(known: Certified) -> Optima:
    """Uniqueness, optimal face, support and rank, as far as the certificate proves them."""
    rows, r = known.rows, known.rank
    nothing = Optima(
        unique=None, face=None, error=None, value_error=np.full(len(rows), np.inf), support=None, rank_floor=None,
        reason=f"the gap {known.gap:.1e} is too large to tell the rank",
    )  # fmt: skip
    U, V = known.left[:, :r], known.right[:, :r]
    S = _symmetric(U.T @ known.W @ V)
    if r == 0 or np.linalg.eigvalsh(S)[0] <= 0:
        return nothing
    B = symmetric_parts(rows, U, V)
    # Tight rows have a multiplier and no slack, the others slack and no multiplier.
    level = known.equal | (known.values - 1.0 <= np.maximum(known.share(), 1e-9))
    face = OptimalFace(U, V, S, B, np.where(known.equal, 0.0, 1.0), known.sizes, level, 0)
    spread, value_error = spread_of_optima(known, face)
    if spread <= AGREE * np.linalg.norm(known.W):
        return _only_one(known, face, spread, value_error + 1e-12)
    free = null_directions(face)
    face = replace(face, dimension=len(free))
    if _is_far_and_optimal(known, face, second_optimum(face, free)):
        return _one_of_many(known, face)
    reason = f"the gap {known.gap:.1e} does not tell whether there are other optima"
    return replace(nothing, face=face, reason=reason)


def _only_one(known: Certified, face: OptimalFace, spread: float, value_error: Array) -> Optima:
    """All optima within `spread`: constraint values and singular values are known to that."""
    widest, least = float(value_error.max()), float(np.linalg.eigvalsh(face.S)[0])
    reason = None
    if widest > UNCLEAR:
        reason = f"the gap {known.gap:.1e} leaves constraint values uncertain by up to {widest:.1e}"
    elif spread >= least:
        reason = f"the gap {known.gap:.1e} leaves singular values uncertain by {spread:.1e}; the least is {least:.1e}"
    return Optima(
        unique=True, face=face, error=spread / float(np.linalg.norm(known.W)), value_error=value_error,
        support=None if widest > UNCLEAR else face.level & ~known.equal,
        rank_floor=spread if spread < least else None, reason=reason,
    )  # fmt: skip


def _one_of_many(known: Certified, face: OptimalFace) -> Optima:
    """Tight at every optimum: l_j (value - 1) <= e proves it. Loose at this one: its value. The rank is that of W."""
    with np.errstate(divide="ignore"):
        slack = known.uncertain() * known.nuclear / known.multipliers
    tight = ~known.equal & (known.multipliers > 0) & (slack <= CLEAR)
    clear = known.equal | tight | (known.values > 1.0 + CLEAR)
    reason = None
    if not clear.all():
        reason = f"{int((~clear).sum())} constraints are tight here, but perhaps not at every optimum"
    return Optima(
        unique=False, face=face, error=None, value_error=np.full(len(tight), np.inf),
        support=tight if reason is None else None, rank_floor=0.0, reason=reason,
    )  # fmt: skip


def symmetric_parts(rows: Rows, U: Array, V: Array) -> Array:
    """sym(U^T A_j V), (N, r, r)."""
    left, right = rows.p @ U, (rows.queries @ V)[rows.query]
    return _symmetric(left[:, :, None] * right[:, None, :])


def spread_of_optima(known: Certified, face: OptimalFace) -> tuple[float, Array]:
    """Bounds on |W - W'|_F and on the difference of each constraint value, for every optimum W'; inf: none proved."""
    unknown = np.inf, np.full(len(known.values), np.inf)
    after = float(known.singular[known.rank] / known.singular[0]) if known.rank < len(known.singular) else 0.0
    k, p, sizes = 1.0 - after, known.nuclear, known.sizes
    if k <= 0:
        return unknown
    e = known.uncertain() * p
    outside = float(np.sqrt(4.0 * p * e / k + 2.0 * (e / k) ** 2))
    pulls = known.equal | (known.multipliers > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        slack = np.where(known.equal, 0.0, e / (known.multipliers * sizes))
    # W and W' each miss the value 1 of a row by at most its slack; each row weighs as much as it knows.
    parts = as_vectors(face.B) / sizes[:, None]
    weighted = parts[pulls] / (2.0 * (slack + outside)[pulls])[:, None]
    if len(weighted) < weighted.shape[1]:
        return unknown
    _, singular, right = np.linalg.svd(weighted, full_matrices=False)
    if singular[-1] <= 0:
        return unknown
    reach = np.sqrt(len(weighted))  # |weighted (S - S')| is at most this
    spread = reach / float(singular[-1]) + 2.0 * outside
    values = reach * np.linalg.norm(parts @ right.T / singular, axis=1) + 2.0 * outside
    values = np.where(pulls, np.minimum(values, slack), values)  # where l > 0 both have value 1 but for e / l
    return spread, values * sizes


def second_optimum(face: OptimalFace, free: Array) -> Array | None:
    """A change of S that keeps it in the face, half way to the boundary; None where S cannot move.

    Args:
        face: with its S.
        free: directions that no level row sees, as vectors.
    """
    best, reached = None, 0.0
    directions = as_matrices(free, len(face.S))
    loose = face.B[~face.level].reshape(-1, face.S.size)
    slack = loose @ face.S.reshape(-1) - face.bound[~face.level]
    slopes = directions.reshape(-1, face.S.size) @ loose.T  # (directions, loose rows)
    for direction, slope in zip(directions, slopes, strict=True):
        for sign in (1.0, -1.0):
            t = _walk(face.S, sign * direction, slack, sign * slope)
            if np.isfinite(t) and t > reached:
                best, reached = 0.5 * t * sign * direction, t
    return best


def _walk(S: Array, direction: Array, slack: Array, slope: Array) -> float:
    """How far S + t direction stays positive semidefinite, with rows of this slack and slope met."""
    lowest = float(scipy.linalg.eigh(direction, S, eigvals_only=True)[0])
    falling = slope < 0
    return float(min(-1.0 / lowest if lowest < 0 else np.inf, (slack[falling] / -slope[falling]).min(initial=np.inf)))


def _is_far_and_optimal(known: Certified, face: OptimalFace, change: Array | None) -> bool:
    if change is None or np.linalg.norm(change) < AGREE * np.linalg.norm(known.W):
        return False
    return known.gap_of(known.W + face.U @ change @ face.V.T) <= FLAT


def _symmetric(Y: Array) -> Array:
    return 0.5 * (Y + Y.swapaxes(-1, -2))
