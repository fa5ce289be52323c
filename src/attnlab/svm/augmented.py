"""Max-margin directions by a few Newton steps, each on a few constraints: the engine of `bracket_margin`.

The least |W| with A W >= 1, in a Euclidean metric, is the end of the method of multipliers: with l >= 0 the multipliers
so far and c > 0,

    W+ = argmin over W of  |W|^2 / 2 + (c / 2) sum_j max(0, 1 + l_j / c - <A_j, W>)^2,
    l+ = c max(0, 1 + l / c - A W+).

The function is piecewise quadratic. On the piece where constraints S have values below 1 + l / c, its least point has

    (A_S A_S^T + 1 / c) l_S = 1 + l_S / c,       W = A_S^T l_S,

one positive definite system of |S| unknowns; a line search along the way there makes the steps converge. S is taken
from a working set. It starts with the hardest constraint of every query, and takes in the hardest again as W moves. A
step costs a few products with the constraints, whose factors have rank one, and a Cholesky factor.

Every step gives a W and multipliers l >= 0. They need not be good to be evidence: W attains a margin, and l bounds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv  # pyright: ignore[reportAttributeAccessIssue]

from attnlab.data.tokens import Array
from attnlab.svm.rows import Rows

# Secants by which the line search comes near its zero.
SECANTS = 12
# A step at least this long counts as one that reached the end of its piece.
NEARLY_WHOLE, LONG = 0.9, 0.5
# c is at most this over the mean square of the constraints: beyond, the Cholesky factor is rounding.
STIFFEST = 1e9
# Squares below this are as good as this.
TINY = 2.0**-800


@dataclass(frozen=True, eq=False)
class Metric:
    """|W|^2 = <W, lift^-1 W>, where lift is L L^T on the left and R R^T on the right, or entry by entry.

    Attributes:
        left: L, (a, a), or None for the identity.
        right: R, (b, b), or None.
        entries: the square root of what lift multiplies each entry with, (a, b), or None.
    """

    left: Array | None = None
    right: Array | None = None
    entries: Array | None = None

    def lift(self, S: Array) -> Array:
        """The W of least |W|^2 / 2 - <S, W>."""
        if self.entries is not None:
            return self.entries**2 * S
        if self.left is None or self.right is None:
            return S
        return self.left @ (self.left.T @ S @ self.right) @ self.right.T

    def factors(self, rows: Rows) -> tuple[Array, Array]:
        """p (N, a) and queries (M, b) whose plain products are those of this metric; not for `entries`."""
        if self.left is None or self.right is None:
            return rows.p, rows.queries
        return rows.p @ self.left, rows.queries @ self.right


class Augmented:
    """The method of multipliers for some rows, all of them inequalities and none zero, of ordinary scale.

    Attributes:
        W: where the last step ended, (a, b).
        values: A W, (N,).
        multipliers: l >= 0, (N,), not all zero.
        total: sum l A, (a, b).
    """

    def __init__(self, rows: Rows, first: Array) -> None:
        """`first`: a value of each constraint, (N,), that is low where the constraint is expected to be hard."""
        self.rows = rows
        self.starts = np.flatnonzero(np.diff(rows.query, prepend=-1))  # of the queries that compare tokens
        self.segment = np.repeat(np.arange(len(self.starts)), np.diff(np.append(self.starts, len(rows))))
        self.working = np.zeros(len(rows), dtype=bool)
        self.working[self._hardest(first)] = True
        self.multipliers = np.zeros(len(rows))
        self.before = self.multipliers  # l of the last outer step
        self.W = np.zeros((rows.p.shape[1], rows.queries.shape[1]))
        self.total = self.W
        self.values = np.zeros(len(rows))
        self.use(Metric())

    def use(self, metric: Metric) -> None:
        """Go on in another metric, from the multipliers there are."""
        self.metric = metric
        if metric.entries is None:
            self.p, self.queries = metric.factors(self.rows)
            self.query_gram = self.queries @ self.queries.T
            squares = np.vecdot(self.p, self.p) * self.query_gram.diagonal()[self.rows.query]
        else:
            squares = np.vecdot(self.rows.p**2, (self.rows.queries**2 @ metric.entries.T**2)[self.rows.query])
        self.mean_square = max(float(np.mean(squares)), TINY)
        self.stiffness = len(self.starts) / max(float(np.median(squares)), TINY)
        square = float(np.vdot(self.total, metric.lift(self.total)))
        if square > 0:  # the best multiple of l: that with sum l = |sum l A|^2
            self.multipliers = self.multipliers * (float(self.multipliers.sum()) / square)
            self.stiffness = min(float(self.multipliers.sum()), STIFFEST / self.mean_square)
        self.before = self.multipliers
        self._move_to(self.multipliers)

    def step(self) -> None:
        """One Newton step, and what follows from where it ends."""
        c = self.stiffness
        asked = 1.0 + self.before / c
        active = np.flatnonzero(self.working & (self.values < asked))
        if not len(active):
            active = np.flatnonzero(self.working)
        solved = self._solved(active, asked[active], c)
        if solved is None:  # rounding has made the system indefinite
            self.stiffness = c / 16.0
            self.before = self.multipliers
            return
        goal = np.zeros(len(self.rows))
        goal[active] = solved
        length = self._toward(goal, asked, c)
        lacking = np.maximum(asked - self.values, 0.0)
        if lacking[self.working].any():
            self.multipliers = np.where(self.working, c * lacking, 0.0)
            self.total = self._sum(self.multipliers)
        self._after(length, active, asked)

    def gap(self) -> float:
        """The relative difference of the bounds of the margin in this metric, from the last step alone."""
        square = float(np.vdot(self.total, self.metric.lift(self.total)))
        length = float(np.vdot(self.source, self.W))
        if not (square > 0 and length > 0):
            return np.inf
        return 1.0 - float(self.values.min()) * float(self.multipliers.sum()) / np.sqrt(length * square)

    def _solved(self, active: NDArray[np.intp], asked: Array, c: float) -> Array | None:
        """(A_S A_S^T + 1 / c)^-1 asked; by the entries of W where these are fewer; None where rounding forbids."""
        size = self.W.size
        if self.metric.entries is not None or len(active) > size:
            A = self._matrix(active)  # (S, a b)
            if len(active) > size:
                system = A.T @ A
                system.flat[:: size + 1] += 1.0 / c
                _, found, failed = dposv(system, A.T @ asked, lower=1, overwrite_a=1)
                return None if failed else c * (asked - A @ found)
            system = A @ A.T
        else:
            p, query = self.p[active], self.rows.query[active]
            system = p @ p.T
            system *= self.query_gram[query][:, query]
        system.flat[:: len(active) + 1] += 1.0 / c
        _, found, failed = dposv(system.T, asked, lower=1, overwrite_a=1)
        return None if failed else found

    def _matrix(self, active: NDArray[np.intp]) -> Array:
        """The constraints themselves, in the coordinates in which the metric is plain, (S, a b)."""
        entries = self.metric.entries
        p, queries = (self.rows.p, self.rows.queries) if entries is not None else (self.p, self.queries)
        A = p[active][:, :, None] * queries[self.rows.query[active]][:, None, :]
        if entries is not None:
            A *= entries
        return A.reshape(len(active), -1)

    def _toward(self, goal: Array, asked: Array, c: float) -> float:
        """Go from W towards the lift of sum goal A as far as the function falls; the share of the way gone."""
        total = self._sum(goal)
        end = self.metric.lift(total)
        values = self.rows.values(end)
        way, rise = end - self.W, values - self.values
        # |W|^2 in the metric is <lift^-1 W, W>.
        at_start, growth = float(np.vdot(self.source, way)), float(np.vdot(total - self.source, way))
        lacking, gained = (asked - self.values)[self.working], rise[self.working]

        def slope(t: float) -> float:
            return at_start + t * growth - c * float(np.maximum(lacking - t * gained, 0.0) @ gained)

        length = _zero_of(slope, 1e-3 * abs(at_start))
        self.W = self.W + length * way
        self.values = self.values + length * rise
        self.source = self.source + length * (total - self.source)
        return length

    def _after(self, length: float, active: NDArray[np.intp], asked: Array) -> None:
        """A larger working set, and new multipliers where the step came to the end of its piece."""
        settled = length == 1.0 and np.array_equal(active, np.flatnonzero(self.working & (self.values < asked)))
        hardest = self._hardest(self.values)
        hardest = hardest[(self.values[hardest] < asked[hardest]) & ~self.working[hardest]]
        if length > LONG:
            self.working[hardest] = True
        if not (settled or length > NEARLY_WHOLE):
            return
        self.before = self.multipliers
        square = float(np.vdot(self.total, self.metric.lift(self.total)))
        most = STIFFEST / self.mean_square
        if square > 0:  # sum l / |sum l A| is about one over the margin
            length = float(self.multipliers.sum()) / sqrt(square)
            self.stiffness = max(self.stiffness, min(length * length, most))
        if settled and not len(hardest):
            self.stiffness = min(2.0 * self.stiffness, most)

    def _move_to(self, multipliers: Array) -> None:
        self.source = self.total = self._sum(multipliers)
        self.W = self.metric.lift(self.source)
        self.values = self.rows.values(self.W)

    def _sum(self, multipliers: Array) -> Array:
        """sum l A, (a, b), where most multipliers are zero."""
        used = np.flatnonzero(multipliers)
        weighted = self.rows.p[used] * multipliers[used, None]
        return weighted.T @ self.rows.queries[self.rows.query[used]]

    def _hardest(self, values: Array) -> NDArray[np.intp]:
        """The constraint of the least value, for each query that has one; all of them where several are equal."""
        least = np.minimum.reduceat(values, self.starts)
        return np.flatnonzero(values == least[self.segment])


def _zero_of(slope: Callable[[float], float], small: float) -> float:
    """Where a growing function on [0, 1], negative at 0, is zero, or small; 1 if it is not positive there.

    By secants; where one end of the interval stays twice, half of its value is taken, so that it will move (Illinois).
    """
    low, high = 0.0, 1.0
    at_high = slope(1.0)
    if at_high <= 1e-9 * small:
        return 1.0
    at_low, side, place = slope(0.0), 0, 0.0
    for _ in range(SECANTS):
        place = (low * at_high - high * at_low) / (at_high - at_low) if at_low < 0 else 0.5 * (low + high)
        found = slope(place)
        if abs(found) <= small:
            break
        if found > 0:
            high, at_high = place, found
            at_low *= 0.5 if side > 0 else 1.0
            side = 1
        else:
            low, at_low = place, found
            at_high *= 0.5 if side < 0 else 1.0
            side = -1
    return place
