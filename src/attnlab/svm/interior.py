"""Least nuclear norm under rank-one constraints: a primal-dual interior-point method on a stack of problems.

Over the a x b matrices W, with unit vectors f_j and z_j,

    primal   min |W|_*        f_j^T W z_j >= b_j          (or = b_j: a `free` row)
    dual     max b.l          |sum_j l_j f_j z_j^T| <= 1  (largest singular value),  l_j >= 0 (any l_j if free).

With X = [[P, W], [W^T, R]] the primal is a semidefinite program, min tr X / 2 over X >= 0, and its dual slack matrix is
S = (I - [[0, M], [M^T, 0]]) / 2 with M = sum_j l_j f_j z_j^T. Every iterate is dual feasible. Each step solves the
linearized conditions X S = t I and s_j l_j = t (s: primal slacks) in the direction of Helmberg, Kojima and Monteiro,
with Mehrotra's predictor and corrector. As every constraint has rank two in X, the N x N matrix of that system is a sum
of four elementwise products. A step cut short is followed by one that only recentres: without it large problems stall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs  # pyright: ignore[reportAttributeAccessIssue]

from attnlab.data.tokens import Array

ITERATIONS = 80
# A step below this share of the way means that the iterate is off centre.
SHORT = 0.25
# Weight of the target in a step that recentres.
RECENTRE = 0.9
# Iterations in a row without progress after which float64 has no more to give.
STALLED = 6
# An equality holds if its value is at most this share of the least value of the inequalities.
LEVEL = 1e-9
# A lower bound on |W|_*, for unit rows and bounds up to 1, after which a W is no longer hoped for.
HOPELESS = 1e9


@dataclass(frozen=True, eq=False)
class Stack:
    """R problems of one shape, whose rows share queries: z_j is that of its own.

    Attributes:
        f: (R, N, a), unit vectors.
        queries: (R, M, b), unit vectors.
        query: which query each row has, (N,), ascending.
        bound: (R, N), positive for inequalities, 0 for free rows.
        free: which rows are equalities, (N,).
    """

    f: Array
    queries: Array
    query: NDArray[np.intp]
    bound: Array
    free: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.f)

    def __getitem__(self, index: NDArray[np.intp]) -> Stack:
        return Stack(self.f[index], self.queries[index], self.query, self.bound[index], self.free)

    @cached_property
    def z(self) -> Array:
        """The query of each row, (R, N, b)."""
        return self.queries.take(self.query, axis=1)

    def values(self, W: Array) -> Array:
        """f_j^T W z_j, (R, N)."""
        seen = np.matmul(self.queries, W.transpose(0, 2, 1))  # (R, M, a)
        return np.vecdot(self.f, seen.take(self.query, axis=1))

    def adjoint(self, multipliers: Array) -> Array:
        """sum_j l_j f_j z_j^T, (R, a, b)."""
        return np.matmul((multipliers[..., None] * self.f).transpose(0, 2, 1), self.z)

    @cached_property
    def f_gram(self) -> Array:
        """f_i . f_j, (R, N, N)."""
        return np.matmul(self.f, self.f.transpose(0, 2, 1))

    @cached_property
    def pairs(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Where rows i and j find the entry of their queries in a flat (M, M) array, and in a flat (N, M) one."""
        M = self.queries.shape[1]
        return self.query[:, None] * M + self.query, np.arange(len(self.query))[:, None] * M + self.query

    def least(self, values: Array) -> Array:
        """The least value over its bound among the inequalities, (R,); -1 where an equality does not hold."""
        if not self.free.any():
            return (values / self.bound).min(-1)
        above = ~self.free
        least = (values[:, above] / self.bound[:, above]).min(-1)
        missed = np.abs(values[:, self.free]).max(-1, initial=0.0) > LEVEL * least
        return np.where(missed & (least > 0), -1.0, least)


@dataclass(eq=False)
class Iterate:
    """Where the method stands in each problem; `best` holds the best W and multipliers that it saw.

    Attributes:
        X: (R, a + b, a + b), positive definite.
        slack: (R, N), positive.
        multipliers: (R, N), with |M| < 1.
        step: (R,), the shorter of the last two step lengths.
        W: (R, a, b), of least nuclear norm among the feasible ones seen, scaled to least value 1.
        upper: (R,), its norm.
        best: (R, N), the multipliers of the best lower bound, scaled to |M| = 1.
        lower: (R,), that bound.
        idle: (R,), iterations since the gap last fell by a tenth (or, without a feasible W so far, the bound rose).
    """

    X: Array
    slack: Array
    multipliers: Array
    step: Array
    W: Array
    upper: Array
    best: Array
    lower: Array
    idle: Array

    def __getitem__(self, index: NDArray[np.intp]) -> Iterate:
        return Iterate(**{name: value[index] for name, value in vars(self).items()})

    def put(self, index: NDArray[np.intp], other: Iterate) -> None:
        """Write `other` back to the problems of `index`."""
        for name, value in vars(other).items():
            getattr(self, name)[index] = value

    @property
    def gap(self) -> Array:
        """Relative duality gap, (R,)."""
        with np.errstate(invalid="ignore"):
            return np.where(self.lower > 0, np.maximum(self.upper / self.lower - 1.0, 0.0), np.inf)


def start(stack: Stack, W: Array | None = None, multipliers: Array | None = None) -> Iterate:
    """Equal multipliers, well inside the dual, and a multiple of the identity in the primal.

    Near-infeasible problems hardly move from there. A feasible W and multipliers that are not far from optimal, if
    given, make a better start: both are mixed with the plain one, to be well inside.
    """
    trials, N, a = stack.f.shape
    equal = shrunk(stack, np.where(stack.free, 0.0, stack.bound))
    inside = 0.5 * equal if multipliers is None else 0.4 * equal + 0.5 * shrunk(stack, multipliers)
    value = np.einsum("rj,rj->r", stack.bound, inside)
    n = a + stack.queries.shape[-1]
    X = np.broadcast_to(np.eye(n), (trials, n, n))
    if W is None:
        X = 4.0 * value[:, None, None] * X
        slack = 2.0 * value[:, None] / np.where(stack.free, 1.0, inside) / N
    else:
        X, slack = _around(stack, 1.1 * W)
    return Iterate(
        X=X, slack=np.where(stack.free, 1.0, slack), multipliers=inside, step=np.ones(trials),
        W=np.zeros((trials, a, n - a)), upper=np.full(trials, np.inf), best=inside.copy(), lower=np.zeros(trials),
        idle=np.zeros(trials),
    )  # fmt: skip


def shrunk(stack: Stack, multipliers: Array) -> Array:
    """The multipliers scaled to |sum l A| = 1, or less where the rows nearly cancel."""
    size = spectral_norms(stack.adjoint(multipliers))
    return multipliers / np.maximum(size, 1e-3 * np.abs(multipliers).sum(-1))[:, None]


def _around(stack: Stack, W: Array) -> tuple[Array, Array]:
    """A positive definite X with the block W, and the slack of W, which must be feasible with some to spare."""
    left, singular, right = np.linalg.svd(W, full_matrices=False)
    a, n = W.shape[1], W.shape[1] + W.shape[2]
    both = np.concatenate([left, right.transpose(0, 2, 1)], axis=1) * np.sqrt(singular)[:, None, :]
    X = np.matmul(both, both.transpose(0, 2, 1))
    X = X + (0.3 * singular.sum(-1) / n)[:, None, None] * np.eye(n)
    return X, stack.values(X[:, :a, a:]) - stack.bound


def follow(stack: Stack, iterate: Iterate, target: float) -> None:
    """Step every problem until its gap is at most `target` or it stalls; `iterate` is updated in place."""
    left = np.flatnonzero((iterate.gap > target) & (iterate.idle < STALLED))
    for _ in range(ITERATIONS):
        if not left.size:
            return
        whole = left.size == len(stack)
        part, now = (stack, iterate) if whole else (stack[left], iterate[left])
        moved = _advance(part, now)
        _record(part, now)
        now.idle[~moved] = STALLED
        if not whole:
            iterate.put(left, now)
        left = left[(now.gap > target) & (now.idle < STALLED)]


def _record(stack: Stack, now: Iterate) -> None:
    """Keep the W and the multipliers of this iterate if they are the best so far."""
    before, bound_before = now.gap, now.lower.copy()
    a = stack.f.shape[-1]
    W = now.X[:, :a, a:]
    values = stack.values(W)
    least = stack.least(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.where(least > 0, nuclear_norms(W) / least, np.inf)
    better = upper < now.upper
    now.W[better] = W[better] / least[better, None, None]
    now.upper[better] = upper[better]
    size = spectral_norms(stack.adjoint(now.multipliers))
    size = np.maximum(size, 1e-16 * np.abs(now.multipliers).sum(-1))  # rows that cancel, but for rounding
    lower = np.vecdot(stack.bound, now.multipliers) / size
    better = lower > now.lower
    now.best[better] = (now.multipliers / size[:, None])[better]
    now.lower[better] = lower[better]
    with np.errstate(invalid="ignore"):
        risen = np.isinf(now.upper) & (now.lower > 1.1 * bound_before)
        now.idle = np.where((now.gap < 0.9 * before) | risen, 0.0, now.idle + 1.0)
    now.idle[np.isinf(now.upper) & (now.lower > HOPELESS)] = STALLED


def _advance(stack: Stack, now: Iterate) -> NDArray[np.bool_]:
    """One predictor-corrector step of every problem; returns which of them could move."""
    system = _System(stack, now)
    recentre = now.step < SHORT
    if not recentre.all():
        first = system.direction(0.0 * now.step)
        primal, dual = system.lengths(first)
        ahead = system.complementarity(first, primal, dual) / system.mu
        weight = np.where(recentre, RECENTRE, np.maximum(ahead, 0.0) ** 3)
        second = system.direction(weight, [np.where(_last(recentre, part), 0.0, part) for part in first])
    else:
        second = system.direction(np.full(len(stack), RECENTRE))
    primal, dual = system.lengths(second)
    # Nearer to the boundary the better the step was.
    reach = 0.9 + 0.09 * np.minimum(primal, dual)
    primal, dual = np.minimum(reach * primal, 1.0), np.minimum(reach * dual, 1.0)
    dX, dslack, dl = second
    moved = np.isfinite(np.einsum("rij->r", dX) + dl.sum(-1))
    primal, dual = np.where(moved, primal, 0.0), np.where(moved, dual, 0.0)
    now.X = now.X + np.where(_last(moved, dX), _last(primal, dX) * dX, 0.0)
    now.slack = now.slack + np.where(moved[:, None], primal[:, None] * dslack, 0.0)
    now.multipliers = now.multipliers + np.where(moved[:, None], dual[:, None] * dl, 0.0)
    now.step = np.minimum(primal, dual)
    return moved & (now.step > 1e-10)


class _System:
    """The linear system of one step: its matrix is set up once and used for predictor and corrector."""

    def __init__(self, stack: Stack, now: Iterate) -> None:
        self.stack, self.now, self.a = stack, now, stack.f.shape[-1]
        n = now.X.shape[-1]
        M = lifted(stack.adjoint(now.multipliers))
        eigenvalues, vectors = np.linalg.eigh(M)
        # S = (I - M) / 2; eigenvalues of M are at most 1 up to rounding.
        self.dual_root = vectors * np.sqrt(2.0 / np.maximum(1.0 - eigenvalues, 1e-16))[:, None, :]
        self.S_inverse = np.matmul(self.dual_root, self.dual_root.transpose(0, 2, 1))
        self.primal_root = _inverse_root(now.X)
        self.inequality = np.where(stack.free, 0.0, 1.0)
        self.safe = np.where(stack.free, 1.0, now.multipliers)  # free multipliers may be 0; nothing is divided by them
        count = n + int((~stack.free).sum())
        tied = np.einsum("rij,rij->r", now.X, np.eye(n) - M) / 2.0
        self.mu = (tied + self._linear(now.slack, now.multipliers)) / count
        self.count = count
        self._factor()

    def _linear(self, slack: Array, multipliers: Array) -> Array:
        return np.vecdot(slack, multipliers * self.inequality)

    def _factor(self) -> None:
        f, queries, query, a = self.stack.f, self.stack.queries, self.stack.query, self.a
        fT, qT = f.transpose(0, 2, 1), queries.transpose(0, 2, 1)

        def products(Y: Array) -> tuple[Array, Array, Array]:
            """f_i Y f_j, (R, N, N); z Y z and f Y z for each row and each query, (R, N, M)."""
            left, right = np.matmul(f, Y[:, :a]), np.matmul(queries, Y[:, a:, a:])
            among = np.matmul(right, qT).take(query, axis=1)
            return np.matmul(left[..., :a], fT), among, np.matmul(left[..., a:], qT)

        P1, R1, Q1 = products(self.now.X)
        P2, R2, Q2 = products(self.S_inverse)
        P1 *= R2.take(query, axis=2)
        P2 *= R1.take(query, axis=2)
        matrix = np.add(P1, P2, out=P1)
        mixed = Q1.take(query, axis=2)
        mixed *= Q2.take(query, axis=2).transpose(0, 2, 1)
        matrix += mixed
        matrix += mixed.transpose(0, 2, 1)
        matrix *= 0.25
        diagonal = np.arange(matrix.shape[-1])
        matrix[:, diagonal, diagonal] += self.inequality * self.now.slack / self.safe
        # Unit diagonal: the rows differ by many orders of magnitude near the solution.
        self.scale = 1.0 / np.sqrt(np.maximum(matrix[:, diagonal, diagonal], 1e-300))
        matrix *= self.scale[:, :, None]
        matrix *= self.scale[:, None, :]
        self.matrix = matrix
        self.inverse = _inverse(matrix)

    def _solve(self, right: Array) -> Array:
        """The system's solution, refined once."""
        right = (right * self.scale)[..., None]
        found = self.inverse(right)
        found = found + self.inverse(right - np.matmul(self.matrix, found))
        return found[..., 0] * self.scale

    def direction(self, weight: Array, first: list[Array] | None = None) -> list[Array]:
        """(dX, dslack, dl) towards complementarity products of weight * mu; `first` adds its second-order terms."""
        stack, now, a = self.stack, self.now, self.a
        target = weight * self.mu
        centre = _last(target, now.X) * self.S_inverse
        linear = self.inequality * target[:, None] / self.safe
        if first is not None:
            dX, dslack, dl = first
            dS = -0.5 * lifted(stack.adjoint(dl))
            centre = centre - _symmetric(np.matmul(np.matmul(dX, dS), self.S_inverse))
            linear = linear - self.inequality * dslack * dl / self.safe
        right = stack.bound - stack.values(centre[:, :a, a:]) + linear
        dl = self._solve(right)
        change = 0.5 * lifted(stack.adjoint(dl))
        dX = centre - now.X + _symmetric(np.matmul(np.matmul(now.X, change), self.S_inverse))
        dslack = self.inequality * (linear - now.slack - now.slack / self.safe * dl)
        return [dX, dslack, dl]

    def lengths(self, direction: list[Array]) -> tuple[Array, Array]:
        """How far one can go along the primal and the dual part."""
        dX, dslack, dl = direction
        dS = -0.5 * lifted(self.stack.adjoint(dl))
        primal = np.minimum(_to_boundary(self.primal_root, dX), _to_zero(self.now.slack, dslack, self.stack.free))
        dual = np.minimum(_to_boundary(self.dual_root, dS), _to_zero(self.now.multipliers, dl, self.stack.free))
        return np.minimum(primal, 1.0), np.minimum(dual, 1.0)

    def complementarity(self, direction: list[Array], primal: Array, dual: Array) -> Array:
        """Mean complementarity product after these steps."""
        dX, dslack, dl = direction
        X = self.now.X + _last(primal, dX) * dX
        multipliers = self.now.multipliers + dual[:, None] * dl
        M = self.stack.adjoint(multipliers)
        tied = (np.trace(X, axis1=-2, axis2=-1) - 2.0 * np.einsum("rab,rab->r", X[:, : self.a, self.a :], M)) / 2.0
        return (tied + self._linear(self.now.slack + primal[:, None] * dslack, multipliers)) / self.count


def nuclear_norms(W: Array) -> Array:
    """The sum of the singular values of each matrix of the stack."""
    return np.linalg.svd(W, compute_uv=False).sum(-1)


def spectral_norms(M: Array) -> Array:
    """The largest singular value of each matrix of the stack."""
    return np.asarray(np.linalg.svd(M, compute_uv=False)[:, 0], dtype=np.float64)


def lifted(M: Array) -> Array:
    """[[0, M], [M^T, 0]] for each matrix of the stack; eigenvalues: the singular values of M and their opposites."""
    trials, a, b = M.shape
    found = np.zeros((trials, a + b, a + b))
    found[:, :a, a:], found[:, a:, :a] = M, M.transpose(0, 2, 1)
    return found


def _inverse(matrices: Array) -> Callable[[Array], Array]:
    """The map from right sides (R, N, 1) to solutions: a Cholesky factor for one matrix, inverses for a stack."""
    if len(matrices) == 1:
        # LAPACK by name: SciPy's checked wrappers cost more than these small systems do.
        # Transposed, a symmetric matrix is itself, in the order of Fortran.
        factor, failed = dpotrf(matrices[0].T, lower=1, clean=0)
        if not failed:
            return lambda right: dpotrs(factor, right[0], lower=1)[0][None]
    try:
        inverse = np.linalg.inv(matrices)
    except np.linalg.LinAlgError:  # dependent rows without slack
        inverse = np.linalg.pinv(matrices, hermitian=True)
    return lambda right: np.matmul(inverse, right)


def _last(value: NDArray[Any], like: Array) -> Array:
    """One number per problem, shaped to multiply `like`."""
    return value.reshape(-1, *[1] * (like.ndim - 1))


def _symmetric(Y: Array) -> Array:
    return 0.5 * (Y + Y.transpose(0, 2, 1))


def _inverse_root(X: Array) -> Array:
    """G with G G^T = X^-1 for each matrix of the stack."""
    values, vectors = np.linalg.eigh(X)
    return vectors / np.sqrt(np.maximum(values, 1e-16 * values[:, -1:]))[:, None, :]


def _to_boundary(root: Array, change: Array) -> Array:
    """The largest t for which I + t root^T change root is still positive semidefinite."""
    inner = np.matmul(np.matmul(root.transpose(0, 2, 1), change), root)
    inner = np.where(np.isfinite(inner), inner, 0.0)
    lowest = np.linalg.eigvalsh(_symmetric(inner))[:, 0]
    return np.where(lowest < 0, -1.0 / np.minimum(lowest, -1e-300), np.inf)


def _to_zero(values: Array, change: Array, free: NDArray[np.bool_]) -> Array:
    falls = (change < 0) & ~free
    return np.where(falls, values / np.where(falls, -change, 1.0), np.inf).min(-1)
