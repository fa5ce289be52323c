"""Hundreds of nuclear max-margin problems of one shape at once: the method of `attnlab.svm.nuclear`, stacked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.svm.certificate import EPS, UNSURE
from attnlab.svm.frobenius_batch import frobenius_together
from attnlab.svm.interior import Stack
from attnlab.svm.nuclear import TOLERANCE
from attnlab.svm.polish import least_nuclear
from attnlab.svm.stacked import StackedRows, Together

# Numbers in the N x N matrices that are worked on at a time: memory does not grow with the number of trials.
NUMBERS = 200_000


def nuclear_together(rows: StackedRows, tolerance: float = TOLERANCE) -> Together:
    """W, multipliers and certificates of all trials; an infinite gap where a trial is to be solved alone.

    Those are the trials without a Frobenius solution to start from, infeasible ones among them. `rank` is the number of
    columns of the factors of W; multipliers are scaled to |sum l A| = 1 (largest singular value).

    >>> import attnlab as al
    >>> from attnlab.svm.stacked import stacked
    >>> tokens = al.data.sphere(n=5, T=5, d=10, seed=0, trials=4)
    >>> found = nuclear_together(stacked(tokens, al.optimal_tokens(tokens)))
    >>> bool(found.gap.max() <= 1e-8), found.rank.tolist()
    (True, [3, 2, 2, 3])
    """
    trials, N, d = rows.p.shape
    plain, found = frobenius_together(rows), Together.empty(trials, N, d)
    good = np.flatnonzero(np.isfinite(plain.gap))
    step = max(1, NUMBERS // N**2)
    with np.errstate(all="ignore"):
        for first in range(0, good.size, step):
            some = good[first : first + step]
            try:
                _certify(rows, some, found, *_solve(rows, some, plain, tolerance))
            except np.linalg.LinAlgError:  # one of them fails: each is solved alone
                found.gap[some] = np.inf
    return found


def _solve(
    rows: StackedRows, some: NDArray[np.intp], plain: Together, tolerance: float
) -> tuple[Array, Array, NDArray[np.intp]]:
    """W, multipliers and ranks of some trials, from a start near their Frobenius solutions."""
    norms = rows.norms[some]
    left, f = _coordinates(rows.p[some] / rows.p_lengths[some][..., None])
    right, z = _coordinates(rows.queries[some] / rows.q_lengths[some][..., None])
    bound = 1.0 / norms
    size = bound.max(-1, keepdims=True)
    stack = Stack(f, z, rows.query, bound / size, np.zeros(norms.shape[1], dtype=bool))
    near = np.matmul(left.transpose(0, 2, 1), np.matmul(plain.W[some], right)) / size[..., None]
    found = least_nuclear(stack, tolerance, near, plain.multipliers[some] * norms)
    W = size[..., None] * np.matmul(left, np.matmul(found.W, right.transpose(0, 2, 1)))
    return np.where(np.isfinite(found.gap)[:, None, None], W, np.nan), found.multipliers / norms, found.rank


def _coordinates(vectors: Array) -> tuple[Array, Array]:
    """Orthonormal columns that span each set of vectors, (R, d, k), and the vectors in them, (R, N, k)."""
    trials, N, d = vectors.shape
    if d <= N:
        return np.broadcast_to(np.eye(d), (trials, d, d)), vectors
    basis, triangle = np.linalg.qr(vectors.transpose(0, 2, 1))
    return basis, np.ascontiguousarray(triangle.transpose(0, 2, 1))


def _certify(
    rows: StackedRows, some: NDArray[np.intp], found: Together, W: Array, multipliers: Array, rank: NDArray[np.intp]
) -> None:
    """Scale W to least value 1 and the multipliers to |sum l A| = 1, and note the gap; see `certify_nuclear`."""
    p, q = rows.p[some], rows.queries[some][:, rows.query]

    def least_value(W: Array) -> Array:
        return np.einsum("rjd,rjd->rj", np.matmul(p, W), q).min(-1)

    image = np.linalg.norm(np.matmul((multipliers[..., None] * p).transpose(0, 2, 1), q), ord=2, axis=(-2, -1))
    least, total = least_value(W), multipliers.sum(-1)
    good = (least > 0) & (total > 0) & (image > 0)
    W = np.where(good[:, None, None], W / least[:, None, None], np.nan)
    multipliers, total = multipliers / image[:, None], total / image
    nuclear = np.full(len(some), np.nan)
    nuclear[good] = np.linalg.norm(W[good], ord="nuc", axis=(-2, -1))
    found.W[some], found.multipliers[some], found.rank[some] = W, multipliers, np.where(good, rank, 0)
    # Where rounding may have moved the least value, or the bound, the trial is judged alone.
    reach = np.linalg.norm(W, axis=(-2, -1)) * rows.longest[some]
    reach = reach + np.einsum("rj,rj->r", np.abs(multipliers), rows.norms[some])
    found.rounding[some] = 4 * EPS * reach
    good &= found.rounding[some] <= UNSURE
    found.gap[some] = np.where(good, np.maximum(nuclear / total - 1.0, 0.0), np.inf)
    found.margin[some] = 1.0 / nuclear
    found.violation[some] = np.maximum(0.0, 1.0 - least_value(W))
