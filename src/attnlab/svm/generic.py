"""The max-margin problem in any norm: min |W| subject to A(W) >= 1, through the proximal map of the norm alone.

Douglas-Rachford splitting (the alternating direction method of multipliers in one variable V):

    W  = prox(V, 1 / rho)                the norm's own step
    M  = the point of {A >= 1} nearest to 2 W - V        a Frobenius problem in the multipliers, solved exactly
    V <- V + M - W

At its fixed points W = M is optimal, and the multipliers l of the projection, times rho, solve the dual

    max sum l   subject to   l >= 0,   dual(A* l) <= 1.

Any feasible W and any l >= 0 bracket the optimum, |W| >= optimum >= sum l / dual(A* l), so every iterate is a candidate
and the best of each kind make the certificate. Once the active rows and the face of the norm are found the iteration
is nearly linear; Anderson's extrapolation then saves most steps, with the plain step as its safeguard. The method
starts at the Frobenius solution, which also decides whether there is a W at all: that does not depend on the norm.

Equalities are eliminated first, by projecting the rows onto the W that meet them. A norm that names its `corners` is
left to `attnlab.svm.corners`, which is exact.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg.lapack import dpstrf  # pyright: ignore[reportAttributeAccessIssue]

from attnlab.data.span import spanning
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.svm.certificate import EPS, UNSURE, lowered_by_rounding, merely_feasible, missed_equalities, status_of
from attnlab.svm.corners import solve_by_corners
from attnlab.svm.dual import least_distance
from attnlab.svm.frobenius import solve_ordinary as least_frobenius
from attnlab.svm.norms import Norm
from attnlab.svm.rows import Rows, check_tolerance
from attnlab.svm.scales import Measure, at_any_scale
from attnlab.svm.solution import MarginSolution, MarginStatus

TOLERANCE = 1e-7
# Steps kept for the extrapolation, and when the weight rho between the two halves of a step is set anew.
MEMORY = 8
BALANCED_AT = (10, 20, 40, 80, 160, 320, 640)
# Above this many constraints only those that matter are worked on, and the violated ones join them.
WORKED_ON = 600


def solve_rows_norm(
    rows: Rows,
    norm: Norm,
    selected: NDArray[np.intp],
    d: int,
    tolerance: float = TOLERANCE,
    *,
    steps: int = 3000,
) -> MarginSolution:
    """The least W in a given norm with `<A_j, W> >= 1` (and `= 0` for the rows marked equal).

    Args:
        rows: the constraints, for instance `margin_rows(tokens, selected)`.
        norm: a `Norm`; see `attnlab.svm.norms` for ready-made ones and for how to add one.
        selected: the selection the rows are for; kept in the result.
        d: dimension of the tokens.
        tolerance: relative duality gap to reach.
        steps: steps to take at most, in all. Norms with corners everywhere (entrywise) may need thousands.

    Returns:
        A `MarginSolution` whose `margin` is 1 / |W| in this norm and whose multipliers l have dual(sum l A) = 1, so
        that sum l <= optimum <= |W|. The gap is the one reached; the status is INACCURATE where it is above the
        tolerance. `support` marks constraints that are tight at this W, to the square root of the gap. A gap in a
        general norm does not bound the distance to an optimum, which need not be unique: `direction_error` is inf,
        `rank` is None, and so is `unique` unless the norm is strictly convex.

    >>> import attnlab as al
    >>> from attnlab.svm.norms import ENTRYWISE_L1
    >>> tokens, selected = al.data.two_tokens(), np.array([0])
    >>> solution = solve_rows_norm(al.svm.margin_rows(tokens, selected), ENTRYWISE_L1, selected, tokens.d)
    >>> solution.W.round(12).tolist(), solution.status.name
    ([[1.0, 0.0], [0.0, 0.0]], 'OPTIMAL')
    """
    if not isinstance(norm, Norm):
        raise InputError(message(f"`norm` is {norm!r}; wanted a Norm.", "attnlab.svm.norms has ready-made ones"))
    tolerance = check_tolerance(tolerance)
    if not (isinstance(steps, int) and steps > 0):
        raise InputError(message(f"`steps` is {steps!r}; wanted a whole number above 0."))
    solve = partial(_solve_ordinary, norm, steps)
    measure = Measure(value=norm.value, dual=norm.dual, degree=1)
    return at_any_scale(solve, rows, selected, d, tolerance, measure)


def _solve_ordinary(
    norm: Norm, steps: int, rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float
) -> MarginSolution:
    start = least_frobenius(rows, selected, d)
    if not start.feasible or start.status is MarginStatus.UNCONSTRAINED:
        return replace(start, norm=norm.name)
    if not np.isfinite(np.linalg.norm(start.W)):  # hardly separable: nothing to start from
        return merely_feasible(rows, start, norm.name, norm.value)
    if norm.corners is not None:
        W, multipliers = solve_by_corners(rows, norm, start, tolerance)
    else:
        problem = _Problem(rows, norm, start)
        if not problem.started:
            return merely_feasible(rows, start, norm.name, norm.value)
        W, multipliers = problem.solve(tolerance, steps)
    return _certified(rows, norm, W, multipliers, start, tolerance)


class _Problem:
    """All rows, in unit rows and reduced coordinates, at the scale of the Frobenius solution; solved part by part."""

    def __init__(self, rows: Rows, norm: Norm, start: MarginSolution) -> None:
        self.norm, self.count = norm, len(rows)
        equal = np.zeros(len(rows), dtype=bool) if rows.equal is None else rows.equal
        self.level, self.above = np.flatnonzero(equal & (rows.norms > 0)), np.flatnonzero(~equal)
        sizes = np.linalg.norm(rows.p, axis=1), np.linalg.norm(rows.queries, axis=1)[rows.query]
        left = rows.p / np.where(sizes[0] > 0, sizes[0], 1.0)[:, None]
        right = rows.queries[rows.query] / np.where(sizes[1] > 0, sizes[1], 1.0)[:, None]
        self.norms, self.scale = rows.norms, float(np.linalg.norm(start.W))
        d = rows.p.shape[1]
        # Projecting W onto these spans keeps every constraint and, in an invariant norm, does not lengthen W.
        invariant = norm.rotation_invariant
        self.U, self.V = (spanning(left), spanning(right)) if invariant else (np.eye(d), np.eye(d))
        self.left, self.right = (left @ self.U, right @ self.V) if invariant else (left, right)
        self.bound = 1.0 / (self.norms[self.above] * self.scale)
        self.W = self.U.T @ (start.W / self.scale) @ self.V
        self.tight = np.asarray(start.multipliers).reshape(-1)[rows.where[self.above]] > 0

    @property
    def started(self) -> bool:
        """Do the coordinates hold the start, of length 1? One that the rows hardly see is lost to rounding."""
        return float(np.linalg.norm(self.W)) > 0.5

    def solve(self, tolerance: float, steps: int) -> tuple[Array, Array]:
        """W up to a factor, and multipliers of all rows up to a factor."""
        working = np.ones(len(self.above), dtype=bool)
        if len(self.above) > WORKED_ON:
            working = self.tight
        V, rho = 2.0 * self.W, 1.0 / self.norm.dual(self.W)
        while True:
            index = np.flatnonzero(working)
            part = self.above[index]
            polytope = _Polytope(self.left[part], self.right[part], self.bound[index],
                                 self.left[self.level], self.right[self.level])  # fmt: skip
            search = _Search(polytope, self.norm, V, rho)
            steps -= search.run(0.5 * tolerance if len(index) < len(self.above) else tolerance, steps)
            values = _values(self.left[self.above], self.right[self.above], search.W)
            missed = ~working & (values < (1.0 - 1e-3 * tolerance) * self.bound)
            if not missed.any() or steps <= 0:
                break
            worst = np.argsort(np.where(missed, values / self.bound, np.inf))[: WORKED_ON // 2]
            working[worst[missed[worst]]] = True
            V, rho = search.V, search.rho
        multipliers = np.zeros(self.count)
        multipliers[part], multipliers[self.level] = search.multipliers
        lengths = np.where(self.norms > 0, self.norms, 1.0)
        return self.U @ search.W @ self.V.T * self.scale, multipliers / lengths * lengths.max()


class _Polytope:
    """{M : <A_j, M> >= b_j, <E_k, M> = 0} for unit rows, and the point of it nearest to a given one."""

    def __init__(self, left: Array, right: Array, bound: Array, level_left: Array, level_right: Array) -> None:
        self.left, self.right, self.bound = left, right, bound
        self.levels = len(level_left)
        self.independent = _independent(_gram(level_left, level_right, level_left, level_right))
        self.level_left, self.level_right = level_left[self.independent], level_right[self.independent]
        self.gram = _gram(left, right, left, right)
        if len(self.independent):
            level = _gram(self.level_left, self.level_right, self.level_left, self.level_right)
            across = _gram(self.level_left, self.level_right, left, right)
            self.factor = scipy.linalg.cho_factor(level, lower=True)
            self.across = scipy.linalg.cho_solve(self.factor, across)
            self.gram = self.gram - across.T @ self.across
        self.active = bound > 0
        self.kept: tuple[bytes, Array] = (b"", np.zeros((0, 0)))

    def nearest(self, P: Array) -> tuple[Array, tuple[Array, Array]]:
        """The nearest point M = P + A* l + E* m, and (l, m)."""
        level = np.zeros(self.levels)
        m = np.zeros(len(self.independent))
        if len(m):
            m = -scipy.linalg.cho_solve(self.factor, _values(self.level_left, self.level_right, P))
            P = P + _adjoint(self.level_left, self.level_right, m)
        inside = self._multipliers(self.bound - _values(self.left, self.right, P))
        M = P + _adjoint(self.left, self.right, inside)
        if len(m):
            more = -self.across @ inside
            M = M + _adjoint(self.level_left, self.level_right, more)
            level[self.independent] = m + more
        return M, (inside, level)

    def _multipliers(self, short: Array) -> Array:
        """argmin l.G l / 2 - short.l over l >= 0: active sets from the last one, else non-negative least squares."""
        guess, seen = self.active, set()
        rounding = 1e-13 * float(np.abs(short).max())
        for _ in range(30):
            index = np.flatnonzero(guess)
            found = np.zeros(len(short))
            if index.size:
                factor = self._factor(guess, index)
                if factor is None:
                    break
                found[index] = scipy.linalg.cho_solve((factor, True), short[index], check_finite=False)
            better = np.where(guess, found > 0, self.gram @ found - short < -rounding)
            if np.array_equal(better, guess):
                self.active = guess
                return found
            if better.tobytes() in seen:
                break
            seen.add(better.tobytes())
            guess = better
        size = float(np.abs(short).max())
        weights, distance = least_distance(self.gram, short / size)
        found = weights * (size / max(distance, 1e-300))
        self.active = found > 0
        return found

    def _factor(self, guess: NDArray[np.bool_], index: NDArray[np.intp]) -> Array | None:
        """Cholesky factor of the guessed rows, kept while the guess stays; None where they depend on each other."""
        if self.kept[0] != guess.tobytes():
            try:
                factor = scipy.linalg.cholesky(self.gram[np.ix_(index, index)], lower=True, check_finite=False)
            except np.linalg.LinAlgError:
                return None
            pivots = factor.diagonal()
            if not pivots.min() > 1e-7 * pivots.max():
                return None
            self.kept = (guess.tobytes(), factor)
        return self.kept[1]


class _Search:
    """The splitting iteration from a given V, remembering the best W and the best multipliers met."""

    def __init__(self, polytope: _Polytope, norm: Norm, V: Array, rho: float) -> None:
        self.polytope, self.norm, self.V, self.rho = polytope, norm, V, rho
        self.upper, self.lower = np.inf, 0.0
        self.W = V
        self.multipliers: tuple[Array, Array] = (np.zeros(len(polytope.bound)), np.zeros(polytope.levels))

    def run(self, tolerance: float, steps: int) -> int:
        """Iterate until the gap is met; the number of steps taken."""
        memory: list[tuple[Array, Array]] = []
        V, retreat, moved, last, step = self.V, None, np.inf, None, 0
        for step in range(1, steps + 1):
            W = self.norm.prox(V, 1.0 / self.rho)
            M, multipliers = self.polytope.nearest(2.0 * W - V)
            change = M - W
            size = float(np.linalg.norm(change))
            if not np.isfinite(size):  # multipliers beyond float64: what was noted so far is all there is
                break
            if retreat is not None and size > moved:  # the extrapolated point is worse: take the plain step instead
                V, retreat = retreat, None
                memory.clear()
                continue
            self._note(W, M, V, multipliers)
            if self.upper <= (1.0 + tolerance) * self.lower or size == 0:
                break
            moved = size
            plain = V + change
            if step in BALANCED_AT and last is not None:
                V, retreat = self._balanced(plain, W, change, W - last), None
                memory.clear()
            else:
                memory = [*memory[1 - MEMORY :], (V, change)]
                V, retreat = _extrapolated(memory), plain
                if V is None:
                    V, retreat = plain, None
            last = W
        self.V = V
        return step

    def _note(self, W: Array, M: Array, V: Array, multipliers: tuple[Array, Array]) -> None:
        polytope = self.polytope
        # W has the exact structure of the norm (low rank, zeros) but meets equalities only in the limit.
        for candidate in (M,) if polytope.levels else (W, M):
            least = float((_values(polytope.left, polytope.right, candidate) / polytope.bound).min())
            if least > 0 and self.norm.value(candidate) / least < self.upper:
                self.upper, self.W = self.norm.value(candidate) / least, candidate / least
        total = float(polytope.bound @ multipliers[0])
        if total > 0:
            image = M - (2.0 * W - V)
            lower = total / max(self.norm.dual(image), 1e-300)
            if lower > self.lower:
                self.lower, self.multipliers = lower, multipliers

    def _balanced(self, V: Array, W: Array, primal: Array, dual: Array) -> Array:
        """Change rho so that the two residuals shrink alike; V keeps its W and the multipliers it stands for."""
        pull = max(float(np.linalg.norm(V - W)), 1e-300)
        ratio = (np.linalg.norm(primal) / max(float(np.linalg.norm(W)), 1e-300)) / max(
            float(np.linalg.norm(dual)) / pull, 1e-300
        )
        factor = float(np.clip(np.sqrt(ratio), 0.2, 5.0))
        if 0.67 < factor < 1.5:
            return V
        self.rho *= factor
        return W + (V - W) / factor


def _extrapolated(memory: list[tuple[Array, Array]]) -> Array | None:
    """Anderson's point: the combination of the last steps whose changes nearly cancel; None with too few of them."""
    if len(memory) < 3:
        return None
    points, changes = (np.array([m[k].reshape(-1) for m in memory]) for k in (0, 1))
    more_points, more_changes = np.diff(points, axis=0).T, np.diff(changes, axis=0).T
    # First to a few numbers: a small least-squares problem is a hundred times cheaper than a tall one.
    orthonormal, triangle = np.linalg.qr(more_changes)
    weights = np.linalg.lstsq(triangle, orthonormal.T @ changes[-1], rcond=1e-10)[0]
    return (points[-1] + changes[-1] - (more_points + more_changes) @ weights).reshape(memory[-1][0].shape)


def _values(left: Array, right: Array, W: Array) -> Array:
    return np.einsum("ja,ja->j", left, right @ W.T)


def _adjoint(left: Array, right: Array, multipliers: Array) -> Array:
    return left.T @ (multipliers[:, None] * right)


def _gram(left: Array, right: Array, other_left: Array, other_right: Array) -> Array:
    return (left @ other_left.T) * (right @ other_right.T)


def _independent(gram: Array) -> NDArray[np.intp]:
    """Rows that span all of them, from their Gram matrix (unit diagonal): Cholesky's with pivots."""
    if not len(gram):
        return np.zeros(0, dtype=np.intp)
    _, pivots, rank, _ = dpstrf(gram, tol=1e-12, lower=1)
    return np.sort(pivots[:rank] - 1).astype(np.intp)


def _certified(
    rows: Rows, norm: Norm, W: Array, multipliers: Array, start: MarginSolution, tolerance: float
) -> MarginSolution:
    """The solution with its gap, computed from the rows as they were given; `start` is the Frobenius solution."""
    above = np.ones(len(rows), dtype=bool) if rows.equal is None else ~rows.equal
    multipliers = np.where(above, np.maximum(multipliers, 0.0), multipliers)
    least = float(rows.values(W)[above].min())
    W = W / least if least > 0 else start.W  # cut short before all rows were worked on
    values = rows.values(W)
    pull = rows.adjoint(multipliers)
    image = norm.dual(pull)
    total = float(multipliers[above].sum())
    length, least = norm.value(W), float(values[above].min())
    gap = max((length / least) * (image / total) - 1.0, 0.0) if total > 0 else np.inf
    slack = float(np.sqrt(gap)) + 1e-9
    combined = float(np.linalg.norm(pull))
    rounding = 4 * EPS * float(np.abs(multipliers) @ rows.norms) / combined if combined > 0 else np.inf
    rounding += lowered_by_rounding(rows, W, values, float(np.linalg.norm(W)) * float(rows.norms.max()))
    missed = missed_equalities(rows, W, values, multipliers) if total > 0 else np.inf
    certified = gap <= tolerance and rounding <= UNSURE and not missed
    known = certified and slack <= 0.05
    status = status_of(certified)
    short = max(0.0, 1.0 - least, float(np.abs(values[~above]).max(initial=0.0)))
    return replace(
        start,
        W=W,
        margin=1.0 / length,
        multipliers=rows.scatter(multipliers / image if total > 0 else multipliers),
        values=rows.scatter(values, np.nan),
        value_error=rows.scatter(np.full(len(rows), np.inf), np.nan),
        support=rows.scatter((above & (values <= 1.0 + slack)).astype(float)) > 0 if known else None,
        rank_floor=None,
        gap=gap,
        violation=short,
        direction_error=np.inf,
        status=status,
        norm=norm.name,
        reason="a gap in this norm does not bound the distance to an optimum" if known else status.value,
        unique=True if norm.strictly_convex else None,
    )
