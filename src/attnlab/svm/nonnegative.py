"""Non-negative least squares: the x >= 0 of least |A x - b|, by Lawson and Hanson's active-set method.

Some columns of A, the members, carry x; beside them x is zero. With the members alone the problem is plain least
squares. In each round

1. the column along which the residual falls fastest joins the members; if none falls, x is the solution;
2. where the least squares of the members turn an entry negative, x goes towards them until a first entry reaches zero;
   its member leaves, and the least squares of those that are left are solved.

The residual falls in every round, so no set of members comes back. Columns that depend on the members are refused: the
members stay independent, whatever the columns are. Lawson and Hanson, *Solving Least Squares Problems*, chapter 23.

The members are known by their columns, factored as Q R, or, where A is known by A^T A only, by a Cholesky factor.
"""

from __future__ import annotations

from math import sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr_delete  # pyright: ignore[reportAttributeAccessIssue]
from scipy.linalg.blas import dnrm2  # pyright: ignore[reportAttributeAccessIssue]
from scipy.linalg.lapack import dgeqrf, dorgqr, dposv, dtrtrs  # pyright: ignore[reportAttributeAccessIssue]

from attnlab.data.tokens import Array

EPS = float(np.finfo(np.float64).eps)
# Slopes up to this, relative to what they are summed of, are rounding.
ROUNDING = 4 * EPS
# A column at most this share of which is independent of the members depends on them. A Gram matrix knows squares.
DEPENDS, DEPENDS_SQUARED = 64 * EPS, 64 * EPS
# Up to so many members a new factorization is faster than to update one for each that leaves.
FEW = 40
# Rounds, for each column: those that rounding leads astray end, with the best x that they found.
ROUNDS = 5


class Members(Protocol):
    """The columns that carry x, and the plain least squares with them alone."""

    level: float  # slopes above this are more than rounding

    @property
    def index(self) -> NDArray[np.intp]:
        """Which columns they are, in the order in which they joined."""
        ...

    def slopes(self) -> Array:
        """How fast the residual falls along each column, (n,)."""
        ...

    def rounding(self) -> Array:
        """How far rounding may have moved each of the slopes, by the sizes of its own terms, (n,)."""
        ...

    def join(self, column: int) -> list[float] | None:
        """The least squares with one more member; None, and nothing changes, if it would not lower the residual."""
        ...

    def stay(self, places: list[int]) -> list[float]:
        """The least squares of the members at these places alone."""
        ...


def non_negative(matrix: Array, target: Array) -> Array | None:
    """x >= 0, (n,), of least |matrix x - target|, for an (m, n) matrix; None where that is no float64 numbers.

    >>> non_negative(np.array([[1.0, -1.0], [0.0, 1.0]]), np.array([1.0, -2.0])).tolist()
    [1.0, 0.0]
    """
    # Columns, and the target as the last, brought to order one by powers of two: nothing is rounded.
    columns = np.empty((matrix.shape[1] + 1, matrix.shape[0]))
    columns[:-1], columns[-1] = matrix.T, target
    mantissas, powers = np.frexp(np.abs(columns).max(axis=1, initial=0.0))
    if not np.isfinite(mantissas).all():
        return None
    columns = np.ldexp(columns, -powers[:, None])
    x = _search(_Columns(columns[:-1], columns[-1]), len(columns) - 1)
    with np.errstate(over="ignore"):
        x = np.ldexp(x, powers[-1] - powers[:-1])
    return x if np.isfinite(x).all() else None


def non_negative_gram(gram: Array, slopes: Array) -> Array | None:
    """The same for columns of order one, of A^T A, (n, n), and A^T b, (n,); as accurate as A^T A is.

    >>> non_negative_gram(np.array([[1.0, -1.0], [-1.0, 2.0]]), np.array([1.0, -3.0])).tolist()
    [1.0, 0.0]
    """
    x = _search(_Gram(gram, slopes), len(gram))
    return x if np.isfinite(x).all() else None


def _search(members: Members, count: int) -> Array:
    """Rounds of the method, from x = 0."""
    x: list[float] = []
    closed = np.zeros(count, dtype=bool)  # the members, and what they refused
    others = False  # is more closed than the members?
    for _ in range(ROUNDS * count):
        slopes = members.slopes()
        slopes[closed] = 0.0
        steepest = int(slopes.argmax())
        if slopes[steepest] <= members.level:
            # Small ones may be exact, and all that a small row asks for.
            slopes[slopes <= members.rounding()] = 0.0
            steepest = int(slopes.argmax())
            if slopes[steepest] <= 0.0:
                break
        closed[steepest] = True
        goal = members.join(steepest)
        if goal is None:
            others = True
            continue
        if min(goal) <= 0.0:
            goal = _inside(members, [*x, 0.0], goal)
            others = True
        x = goal
        if others:  # beside new members a refused column may be independent
            closed[:] = False
            closed[members.index] = True
            others = False
    found = np.zeros(count)
    found[members.index] = x
    return found


def _inside(members: Members, x: list[float], goal: list[float]) -> list[float]:
    """From x towards the least squares of the members; those that reach zero leave, until all are positive there."""
    while min(goal, default=1.0) <= 0.0:
        steps = [old / (old - new) if new <= 0.0 else np.inf for old, new in zip(x, goal, strict=True)]
        step = min(steps)
        x = [old + step * (new - old) for old, new in zip(x, goal, strict=True)]
        kept = [place for place, value in enumerate(x) if value > 0.0 and steps[place] > step]
        x = [x[place] for place in kept]
        goal = members.stay(kept)
    return goal


class _Columns:
    """Members by their columns A = Q R: Q by Gram and Schmidt, twice where once would lose digits."""

    def __init__(self, columns: Array, target: Array) -> None:
        n, m = columns.shape
        most = min(n, m)
        self.columns, self.target = columns, target  # (n, m), (m,)
        self.order = np.empty(most, dtype=np.intp)
        self.count = 0
        self.basis = np.empty((most, m))  # Q^T
        self.lower = np.zeros((most, most))  # R^T
        self.along = np.empty(most)  # Q^T b
        self.size = sqrt(target.dot(target))
        self._rest(target)

    @property
    def index(self) -> NDArray[np.intp]:
        return self.order[: self.count]

    def slopes(self) -> Array:
        return self.columns.dot(self.residual)

    def rounding(self) -> Array:
        return ROUNDING * np.abs(self.columns).dot(self._sizes())

    def join(self, column: int) -> list[float] | None:
        k = self.count
        if k == len(self.order):
            return None
        basis, vector = self.basis[:k], self.columns[column]
        inside = basis.dot(vector)
        across = vector - inside.dot(basis)
        size, length = dnrm2(vector), dnrm2(across)
        if length <= 0.5 * size:
            more = basis.dot(across)
            across -= more.dot(basis)
            inside += more
            length = dnrm2(across)
            if length <= DEPENDS * size:
                return None
        across /= length
        along = float(across.dot(self.residual))
        if along <= ROUNDING * self.size and along <= ROUNDING * float(np.abs(across).dot(self._sizes())):
            return None
        self.order[k] = column
        self.basis[k] = across
        self.lower[k, :k] = inside
        self.lower[k, k] = length
        self.along[k] = along
        self.count = k + 1
        self._rest(self.residual - along * across)
        return self._solved()

    def stay(self, places: list[int]) -> list[float]:
        if self.count <= FEW:
            self._factored_again(places)
        else:
            self._without(sorted(set(range(self.count)) - set(places)))
        self.order[: len(places)] = self.order.take(places)
        self.count = len(places)
        basis = self.basis[: self.count]
        along = self.along[: self.count] = basis.dot(self.target)
        self._rest(self.target - along.dot(basis))
        return self._solved()

    def _rest(self, residual: Array) -> None:
        """The residual b - Q Q^T b, once more without what rounding left along Q: slopes are then good to its size."""
        basis = self.basis[: self.count]
        self.residual = residual - basis.dot(residual).dot(basis)
        length = sqrt(self.residual.dot(self.residual))
        self.level = ROUNDING * length if length > ROUNDING * self.size else np.inf  # hardly anything is left

    def _sizes(self) -> Array:
        """What each entry of the residual was summed of, (m,)."""
        k = self.count
        return np.abs(self.target) + np.abs(self.along[:k]).dot(np.abs(self.basis[:k]))

    def _factored_again(self, places: list[int]) -> None:
        """Q and R of the members at these places, from scratch."""
        k = len(places)
        if k:
            columns = self.columns.take(self.order.take(places), axis=0)
            reflectors, sizes = dgeqrf(columns.T, overwrite_a=1)[:2]
            self.lower[:k, :k] = reflectors.T[:, :k]
            self.basis[:k] = dorgqr(reflectors, sizes, overwrite_a=1)[0].T

    def _without(self, places: list[int]) -> None:
        """Q and R without the members at these places, updated."""
        k = self.count
        self.lower[:k, :k] = np.tril(self.lower[:k, :k])  # a factorization leaves its reflectors above
        for place in reversed(places):
            Q, R = qr_delete(self.basis[:k].T, self.lower[:k, :k].T, place, which="col", check_finite=False)
            k -= 1
            self.basis[:k] = Q.T[:k]
            self.lower[:k, :k] = R.T[:k, :k]

    def _solved(self) -> list[float]:
        """R^-1 Q^T b."""
        k = self.count
        return dtrtrs(self.lower[:k, :k].T, self.along[:k])[0].tolist() if k else []


class _Gram:
    """Members by their part of the Gram matrix: to solve it from scratch is faster than to update a factor."""

    def __init__(self, gram: Array, slopes: Array) -> None:
        self.gram, self.start = gram, slopes  # A^T A, (n, n); A^T b, (n,)
        self.index = np.zeros(0, dtype=np.intp)
        self.rows = gram[:0]  # of the members
        self.solved = slopes[:0]
        self.size = float(np.abs(slopes).max(initial=0.0))
        self.level = ROUNDING * self.size

    def slopes(self) -> Array:
        return self.start - self.solved.dot(self.rows)

    def rounding(self) -> Array:
        return ROUNDING * (np.abs(self.start) + self.solved.dot(np.abs(self.rows)))

    def join(self, column: int) -> list[float] | None:
        index = np.concatenate((self.index, (column,)))
        rows = self.gram.take(index, axis=0)
        factor, solved, failed = dposv(rows.take(index, axis=1), self.start.take(index), lower=1)
        if failed or factor[-1, -1] ** 2 <= DEPENDS_SQUARED * rows[-1, column] or solved[-1] <= 0.0:
            return None
        return self._taken(index, rows, solved)

    def stay(self, places: list[int]) -> list[float]:
        index = self.index.take(places)
        rows = self.gram.take(index, axis=0)
        system, slopes = rows.take(index, axis=1), self.start.take(index)
        return self._taken(index, rows, dposv(system, slopes, lower=1)[1] if places else slopes)

    def _taken(self, index: NDArray[np.intp], rows: Array, solved: Array) -> list[float]:
        self.index, self.rows, self.solved = index, rows, solved
        x: list[float] = solved.tolist()
        self.level = ROUNDING * (self.size + sum(x))
        return x
