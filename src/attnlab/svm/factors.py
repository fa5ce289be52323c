"""Local solutions of the max-margin problem over keys and queries, in reduced coordinates.

Only the parts of K in the span of the token differences, and of Q in that of the queries, change a constraint; the
rest would only cost. All arrays here are coordinates in orthonormal bases of those spans, scaled so that the longest
difference and the longest query have length 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lstsq
from scipy.optimize import minimize

from attnlab.data.span import spanning
from attnlab.data.tokens import Array
from attnlab.svm.rows import Rows

# Rounds of the augmented Lagrangian, and the violation at which it hands over to Newton's method.
ROUNDS, NEAR = 40, 1e-5
# The penalty grows by this where a round does not shrink the violation to a quarter, until it has grown so much that
# this start leads to no feasible point.
HARDER, SHRINK, HOPELESS = 4.0, 0.25, 1e5
NEWTON = 30  # steps


@dataclass(frozen=True, eq=False)
class Point:
    """K and Q stacked, (a + b, m), with multipliers (N,).

    `value` is (|K|^2 + |Q|^2) / 2, or inf if they do not separate.
    """

    both: Array
    multipliers: Array
    value: float


@dataclass(frozen=True, eq=False)
class Factors:
    """The constraints `f_j^T K Q^T z_j >= 1` in reduced coordinates.

    Attributes:
        f: differences, (N, a); z: queries, one per constraint, (N, b).
        left, right: the orthonormal bases, (d, a) and (d, b).
        size: what the products of differences and queries were divided by.
    """

    f: Array
    z: Array
    left: Array
    right: Array
    size: float

    @classmethod
    def of(cls, rows: Rows) -> Factors:
        """From constraint rows, none of which is zero."""
        p, q = rows.p, rows.queries
        longest = np.abs(p).max(), np.abs(q).max()
        p, q = p / longest[0], q / longest[1]
        left, right = spanning(p), spanning(q)
        return cls(p @ left, (q @ right)[rows.query], left, right, float(longest[0] * longest[1]))

    def values(self, both: Array) -> Array:
        """f_j^T K Q^T z_j, (N,)."""
        a = self.f.shape[1]
        return np.einsum("jm,jm->j", self.f @ both[:a], self.z @ both[a:])

    def adjoint(self, multipliers: Array) -> Array:
        """M = sum_j l_j f_j z_j^T, (a, b)."""
        return (multipliers[:, None] * self.f).T @ self.z

    def pulled(self, both: Array, M: Array) -> Array:
        """(M Q, M^T K), stacked."""
        a = self.f.shape[1]
        return np.concatenate([M @ both[a:], M.T @ both[:a]])

    def lower_bound(self, multipliers: Array) -> float:
        """sum l / |M|: no K and Q cost less."""
        top = float(np.linalg.norm(self.adjoint(multipliers), 2))
        return float(multipliers.sum()) / top if top > 0 else 0.0

    def reduced(self, W: Array, m: int) -> Array:
        """The balanced factors of the best approximation of W of rank m, stacked, in reduced coordinates."""
        inside = self.left.T @ W @ self.right * self.size
        if not np.isfinite(inside).all():
            raise np.linalg.LinAlgError("W is too large for these coordinates")
        return balanced(*np.linalg.svd(inside, full_matrices=False), m)

    def point(self, both: Array, multipliers: Array) -> Point:
        """Scaled so that the least constraint value is 1."""
        least = float(self.values(both).min())
        if not (least > 0 and np.isfinite(least)):
            return Point(both, multipliers, np.inf)
        both = both / np.sqrt(least)
        return Point(both, multipliers, 0.5 * float(np.sum(both**2)))


def balanced(left: Array, values: Array, right: Array, m: int) -> Array:
    """K = U sqrt(S), Q = V sqrt(S) of a singular value decomposition, m columns, stacked."""
    both = np.zeros((len(left) + right.shape[1], m))
    kept = min(m, len(values))
    root = np.sqrt(values[:kept])
    both[: len(left), :kept] = left[:, :kept] * root
    both[len(left) :, :kept] = right[:kept].T * root
    return both


def local_solution(factors: Factors, start: Array, multipliers: Array) -> Point:
    """A KKT point near `start`, by the augmented Lagrangian with `multipliers` as first guess.

    Each round minimises `|K|^2/2 + |Q|^2/2 + sum_j max(0, l_j + r (1 - c_j))^2 / (2r)` and takes
    `max(0, l_j + r (1 - c_j))` for the next multipliers.
    """
    shape, both = start.shape, start
    pull = multipliers
    # Of the size of one multiplier: a violation of order 1 then changes the multipliers by as much as they are.
    first = penalty = 10.0 * float(pull.sum()) / max(int((pull > 0).sum()), 1)
    before = np.inf
    for _ in range(ROUNDS):
        both = minimize(
            _augmented, both.ravel(), args=(factors, shape, pull, penalty), jac=True, method="L-BFGS-B",
            options={"maxiter": 500, "maxcor": 20, "ftol": 1e-14, "gtol": 1e-7 * float(np.abs(both).max())},
        ).x.reshape(shape)  # fmt: skip
        short = 1.0 - factors.values(both)
        fresh = np.maximum(pull + penalty * short, 0.0)
        # Feasible and complementary: short is 0 where the multiplier is positive, and at most 0 elsewhere.
        missed = float(np.abs(np.maximum(short, -pull / penalty)).max())
        pull = fresh
        if missed <= NEAR or penalty > HOPELESS * first:
            break
        if missed > SHRINK * before:
            penalty *= HARDER
        before = missed
    return polished(factors, both, pull)


def _augmented(
    vector: Array, factors: Factors, shape: tuple[int, ...], multipliers: Array, penalty: float
) -> tuple[float, Array]:
    both = vector.reshape(shape)
    pull = np.maximum(multipliers + penalty * (1.0 - factors.values(both)), 0.0)
    gradient = both - factors.pulled(both, factors.adjoint(pull))
    return 0.5 * float(vector @ vector) + float(pull @ pull) / (2.0 * penalty), gradient.ravel()


def polished(factors: Factors, both: Array, multipliers: Array) -> Point:
    """Newton's method on the KKT conditions, with the constraints that pull as equalities; never worse than given.

    The system is singular: a common rotation of the columns of K and Q changes nothing. The shortest solution of
    least squares is the step that does not rotate.
    """
    pull = multipliers
    best, least = factors.point(both, pull), kkt_residual(factors, both, pull)
    tight = _tight(factors, both, pull)
    for _ in range(NEWTON):
        step = _newton_step(factors, both, pull, tight)
        both, pull = both + step[0], np.where(tight, pull + step[1], 0.0)
        if not np.isfinite(both).all():
            break
        better = _tight(factors, both, pull)
        residual = kkt_residual(factors, both, pull)
        if residual < least:
            best, least = factors.point(both, np.maximum(pull, 0.0)), residual
        elif (better == tight).all():
            break
        tight = better
    return best


def _tight(factors: Factors, both: Array, pull: Array) -> NDArray[np.bool_]:
    """Constraints taken as equalities: those whose multiplier, moved by how much they fall short, is positive."""
    typical = float(np.abs(pull).max())
    return pull + typical * (1.0 - factors.values(both)) > 1e-9 * typical


def kkt_residual(factors: Factors, both: Array, pull: Array) -> float:
    """The largest of: stationarity, relative to |(K, Q)|; violation; slackness; negative multipliers."""
    length = float(np.linalg.norm(both))
    if not (length > 0 and np.isfinite(length)):
        return np.inf
    slack = factors.values(both) - 1.0
    total = max(float(np.abs(pull).sum()), 1e-300)
    away = float(np.linalg.norm(both - factors.pulled(both, factors.adjoint(pull)))) / length
    return max(
        away,
        max(0.0, -float(slack.min())),
        float(np.abs(pull * slack).sum()) / total,
        max(0.0, -float(pull.min())) / total,
    )


def _newton_step(factors: Factors, both: Array, pull: Array, tight: NDArray[np.bool_]) -> tuple[Array, Array]:
    """The step in (K, Q) and in the multipliers of the tight constraints, for the equations of the KKT point."""
    size, m = both.shape
    a = factors.f.shape[1]
    f, z = factors.f[tight], factors.z[tight]
    M = factors.adjoint(np.where(tight, pull, 0.0))
    hessian = np.eye(size)
    hessian[:a, a:] -= M
    hessian[a:, :a] -= M.T
    # Gradient of f^T K Q^T z by K is f (Q^T z)^T, by Q it is z (K^T f)^T.
    by_keys = np.einsum("ji,jm->jim", f, z @ both[a:])
    by_queries = np.einsum("ji,jm->jim", z, f @ both[:a])
    slopes = np.concatenate([by_keys, by_queries], axis=1).reshape(len(f), size * m)
    whole = np.zeros((size * m + len(f),) * 2)
    whole[: size * m, : size * m] = np.kron(hessian, np.eye(m))
    whole[: size * m, size * m :] = -slopes.T
    whole[size * m :, : size * m] = slopes
    wrong = np.concatenate([(both - factors.pulled(both, M)).ravel(), factors.values(both)[tight] - 1.0])
    if not (np.isfinite(whole).all() and np.isfinite(wrong).all()):
        raise np.linalg.LinAlgError("K and Q are beyond float64")
    found = lstsq(whole, -wrong, cond=1e-12, lapack_driver="gelsy")
    assert found is not None
    step = found[0]
    change = np.zeros(len(pull))
    change[tight] = step[size * m :]
    return step[: size * m].reshape(size, m), change


def random_starts(factors: Factors, m: int, count: int, seed: int, value: float) -> list[Array]:
    """Random K and Q whose cost is `value`."""
    rng = np.random.default_rng([seed, m])
    shape = (factors.f.shape[1] + factors.z.shape[1], m)
    drawn = [rng.standard_normal(shape) for _ in range(count)]
    return [both * np.sqrt(2.0 * value / np.sum(both**2)) for both in drawn]


def local_solutions(factors: Factors, starts: list[Array], multipliers: Array) -> list[Point]:
    """What each start leads to, best first."""
    return sorted((local_solution(factors, start, multipliers) for start in starts), key=lambda point: point.value)
