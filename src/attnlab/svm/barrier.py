"""Many constraints on a W of few entries, in the Frobenius norm, however hard they are to separate: interior points.

Over W itself, with slacks s > 0 and multipliers l > 0 of constraints of length 1,

    W = sum l A,      A W - s = b,      s_j l_j = t,       t -> 0,

by Newton's method with Mehrotra's predictor and corrector. A step solves one system in the entries of W, whatever the
number N of constraints:

    (I + sum_j (l_j / s_j) A_j A_j^T) dW = ...

As A_j is a difference p_j times a query q_i, the matrix is a sum over queries of (sum of (l_j / s_j) p_j p_j^T) times
q_i q_i^T: one product of matrices. It takes 15 to 25 steps. Where no W separates, the multipliers grow without bound,
and sum l A cancels: that is the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs  # pyright: ignore[reportAttributeAccessIssue]

from attnlab.data.tokens import Array
from attnlab.svm.grouped import Grouped
from attnlab.svm.rows import Rows

# Entries of W up to which this is done: the matrix has their square.
ENTRIES = 10_000
ITERATIONS = 60
# Share of the way to the boundary that a step takes.
SHARE = 0.995
# Steps in a row without progress after which float64 has no more to give.
STALLED = 4
# sum l A is zero if it is at most this share of the sum of l.
CANCELLED = 1e-14


@dataclass(frozen=True, eq=False)
class Interior:
    """The best W, (a, b), and the best multipliers, (N,), of rows of their own lengths; the gap between them.

    `tight`, (N,), tells where the multiplier is larger than the slack. Where the multipliers cancel the gap is
    infinite, and they prove that no W separates.
    """

    W: Array
    multipliers: Array
    gap: float
    tight: NDArray[np.bool_]


def entries(rows: Rows) -> int:
    """How many numbers W is sought in."""
    return rows.width * min(rows.queries.shape)


def by_interior_points(rows: Rows, tolerance: float) -> Interior:
    """The least W with A W >= 1, or weights that cancel.

    Args:
        rows: inequalities of ordinary scale, none of them zero.
        tolerance: relative duality gap to reach.
    """
    group = Grouped.of(rows)
    basis = None
    if len(group.queries) < group.queries.shape[1]:  # W need not leave the span of the queries
        basis, coordinates = np.linalg.qr(group.queries.T)
        group = Grouped(group.p, np.ascontiguousarray(coordinates.T), group.place)
    size = 1.0 / float(rows.norms.min())
    search = _Search(group, 1.0 / (rows.norms * size))
    search.run(tolerance)
    W = size * search.best_W
    return Interior(
        W if basis is None else W @ basis.T,
        search.best_multipliers / rows.norms * size,
        search.gap,
        search.multipliers > search.slack,
    )


class _Search:
    """Where the method stands, and the best that it saw."""

    def __init__(self, group: Grouped, bound: Array) -> None:
        self.group, self.bound = group, bound
        self.kronecker = _Kronecker(group)
        W, pulls = group.adjoint(bound), bound
        values = group.values(W)
        scale = float(bound @ pulls) / max(float(np.vdot(W, W)), float(np.finfo(np.float64).tiny))
        scale = min(scale, 1.0 / float(bound.mean()))  # rows that cancel
        self.W, self.multipliers = scale * W, scale * (pulls + pulls.mean())
        slack = scale * values - bound
        self.slack = np.maximum(slack, 0.1 * (np.abs(slack).mean() + bound.mean()))
        self.best_W, self.best_multipliers = self.W, self.multipliers
        self.upper, self.lower = np.inf, 0.0

    @property
    def gap(self) -> float:
        """Relative duality gap of the best W and the best multipliers."""
        return max(self.upper / self.lower - 1.0, 0.0) if self.lower > 0 else np.inf

    def run(self, tolerance: float) -> None:
        """Step until the gap is at most the tolerance, the multipliers cancel, or nothing is gained any more."""
        idle = 0
        for _ in range(ITERATIONS):
            gap, lower = self.gap, self.lower
            if not self._step() or self._record() or self.gap <= tolerance:
                return
            gained = self.gap < 0.9 * gap or (np.isinf(self.gap) and self.lower > 1.01 * lower)
            idle = 0 if gained else idle + 1
            if idle == STALLED:
                return

    def _record(self) -> bool:
        """Keep what is best so far; do the multipliers cancel?"""
        least = float((self.group.values(self.W) / self.bound).min())
        if least > 0:
            upper = float(np.linalg.norm(self.W)) / least
            if upper < self.upper:
                self.upper, self.best_W = upper, self.W / least
        image = float(np.linalg.norm(self.group.adjoint(self.multipliers)))
        if image <= CANCELLED * float(self.multipliers.sum()):
            self.best_multipliers = self.multipliers / self.multipliers.sum()
            self.upper = np.inf
            return True
        lower = float(self.bound @ self.multipliers) / image
        if lower > self.lower:
            self.lower, self.best_multipliers = lower, self.multipliers
        return False

    def _step(self) -> bool:
        """One step; False if there is none."""
        group, slack, multipliers = self.group, self.slack, self.multipliers
        short = self.bound + slack - group.values(self.W)
        off = group.adjoint(multipliers) - self.W
        solve = self.kronecker.solver(multipliers / slack)
        if solve is None:
            return False
        mean = float(slack @ multipliers) / len(slack)

        def direction(products: Array) -> tuple[Array, Array, Array]:
            """The Newton step that changes slack times multipliers by these."""
            dW = solve(off + group.adjoint((products + multipliers * short) / slack))
            ds = group.values(dW) - short
            return dW, ds, (products - multipliers * ds) / slack

        _, ds, dl = direction(-slack * multipliers)
        length = min(_to_zero(slack, ds), _to_zero(multipliers, dl))
        ahead = float((slack + length * ds) @ (multipliers + length * dl)) / len(slack)
        dW, ds, dl = direction((ahead / mean) ** 3 * mean - slack * multipliers - ds * dl)
        length = SHARE * min(_to_zero(slack, ds), _to_zero(multipliers, dl))
        new = self.W + length * dW, slack + length * ds, multipliers + length * dl
        if not all(np.isfinite(part).all() for part in new) or not (new[1].min() > 0 and new[2].min() > 0):
            return False
        self.W, self.slack, self.multipliers = new
        return True


def _to_zero(values: Array, change: Array) -> float:
    """How far one can go until the first of the values is zero, at most 1."""
    falls = change < 0
    return float(min(1.0, (values[falls] / -change[falls]).min(initial=np.inf)))


class _Kronecker:
    """I + sum_j weight_j A_j A_j^T over the entries of W, (a b, a b), by the symmetric parts of its factors."""

    def __init__(self, group: Grouped) -> None:
        self.group = group
        a, b = group.p.shape[2], group.queries.shape[1]
        self.left, self.right = np.triu_indices(a), np.triu_indices(b)
        self.left_place, self.right_place = _places(a), _places(b)
        self.squares = group.queries[:, self.right[0]] * group.queries[:, self.right[1]]  # (M, b (b + 1) / 2)

    def solver(self, weights: Array) -> Callable[[Array], Array] | None:
        """From right sides (a, b) to solutions; None where rounding leaves no Cholesky factor."""
        p = self.group.p
        a, b = p.shape[2], self.group.queries.shape[1]
        weighted = p * self.group.spread(weights)[:, :, None]
        inner = np.matmul(weighted.transpose(0, 2, 1), p)[:, self.left[0], self.left[1]]  # (M, a (a + 1) / 2)
        both = inner.T @ self.squares
        matrix = np.empty((a, b, a, b))
        for i in range(a):
            matrix[i] = both[self.left_place[i]][:, self.right_place].transpose(1, 0, 2)
        matrix = matrix.reshape(a * b, a * b)
        matrix[np.arange(a * b), np.arange(a * b)] += 1.0
        # Transposed, a symmetric matrix is itself, in the order of Fortran.
        factor, failed = dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
        if failed:
            return None
        return lambda right: dpotrs(factor, right.reshape(-1), lower=1)[0].reshape(a, b)


def _places(size: int) -> NDArray[np.intp]:
    """Where entry (i, j) of a symmetric matrix stands in its upper triangle, (size, size)."""
    places = np.zeros((size, size), dtype=np.intp)
    places[np.triu_indices(size)] = np.arange(size * (size + 1) // 2)
    return np.maximum(places, places.T)
