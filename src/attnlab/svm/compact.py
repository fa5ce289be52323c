"""Least nuclear norm by interior points on b x b matrices, b the dimension of the queries: fast, for ordinary problems.

`attnlab.svm.interior` works on matrices of order a + b. Here the a tokens' directions are eliminated: with
M = sum_j l_j f_j z_j^T, the dual of its problem is

    max b.l    with    S = I - M^T M >= 0,    l >= 0,

whose multiplier R, b x b, gives W = M R. The central path is that of the larger problem: R S = 2 t I, s_j l_j = t and
s_j = f_j^T M R z_j - b_j. Newton's method for these equations, in the direction of Helmberg, Kojima and Monteiro and
with Mehrotra's predictor and corrector, has an N x N system of products of b x b matrices again.

No decomposition of W is needed for a bound on its norm: 2 |M R|_* <= tr(R M^T M) + tr R for every R >= 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs  # pyright: ignore[reportAttributeAccessIssue]

from attnlab.data.tokens import Array
from attnlab.svm.interior import RECENTRE, SHORT, Stack, shrunk

# Ordinary problems need 4 to 10 steps; others are left to the larger matrices, which bear more.
STEPS = 20
# The start: the share of multipliers that are equal; of the boundary; of R that is even; how much longer W is; and the
# least slack, relative to the bounds.
EQUAL, INSIDE, EVEN, LONGER, SLACK = 0.1, 0.9, 0.5, 1.1, 0.3
NEVER = 1e-30  # one over the longest step


@dataclass(frozen=True, eq=False)
class Near:
    """W (R, a, b) of least value 1, multipliers (R, N) with |M| = 1, and their gap (R,), inf where none was found."""

    W: Array
    multipliers: Array
    gap: Array


def approach(stack: Stack, target: float, W: Array, multipliers: Array) -> Near:
    """Step every problem from a feasible W and its multipliers until the gap is at most `target`.

    The rows must all be inequalities. A problem that is not done after `STEPS` steps is given up.
    """
    trials = len(stack)
    found = Near(np.zeros_like(W), multipliers.copy(), np.full(trials, np.inf))
    now = _start(stack, W, multipliers)
    left = np.arange(trials)
    try:
        for _ in range(STEPS):
            state = _State(stack, now)
            done = state.gap <= target
            if done.any():
                found.W[left[done]] = (state.M @ now.R / state.least[:, None, None])[done]
                found.multipliers[left[done]] = (now.multipliers / state.size[:, None])[done]
                found.gap[left[done]] = state.gap[done]
            going = np.flatnonzero(~done & np.isfinite(state.mu))
            if not going.size:
                break
            if going.size < len(left):
                left, stack, now, state = left[going], stack[going], now[going], state[going]
            _advance(stack, now, state)
    except np.linalg.LinAlgError:
        pass  # what is left is given up
    return found


@dataclass(eq=False)
class _Iterate:
    """R (R, b, b), positive definite; slack and multipliers (R, N), positive; `step` (R,), the shorter of the last."""

    R: Array
    slack: Array
    multipliers: Array
    step: Array

    def __getitem__(self, index: NDArray[np.intp]) -> _Iterate:
        return _Iterate(self.R[index], self.slack[index], self.multipliers[index], self.step[index])


def _start(stack: Stack, W: Array, multipliers: Array) -> _Iterate:
    """(W^T W)^1/2 and the multipliers, both mixed with even ones, to be well inside."""
    inside = INSIDE * ((1.0 - EQUAL) * shrunk(stack, multipliers) + EQUAL * shrunk(stack, stack.bound))
    squares, V = np.linalg.eigh(np.matmul(_T(W), W))
    singular = np.sqrt(np.maximum(squares, 0.0))
    singular = LONGER * ((1.0 - EVEN) * singular + EVEN * singular.mean(-1, keepdims=True))
    R = np.matmul(V * singular[:, None, :], _T(V))
    slack = stack.values(np.matmul(stack.adjoint(inside), R)) - stack.bound
    return _Iterate(R, np.maximum(slack, SLACK * stack.bound), inside, np.ones(len(stack)))


class _State:
    """What follows from an iterate: its gap, and what a step needs."""

    def __init__(self, stack: Stack, now: _Iterate) -> None:
        self.M = stack.adjoint(now.multipliers)
        self.g = np.matmul(stack.f, self.M)  # M^T f_j, (R, N, b)
        both = np.empty((2, *now.R.shape))
        square = np.matmul(_T(self.M), self.M, out=both[0])
        both[1] = now.R
        self.S = _identity(square.shape[-1]) - square
        values, vectors = np.linalg.eigh(both)
        # Roots of inverses: S^-1 = root root^T. Eigenvalues of M^T M are at most 1 up to rounding.
        self.root = vectors[0] / np.sqrt(np.maximum(1.0 - values[0], 1e-16))[:, None, :]
        self.R_root = vectors[1] / np.sqrt(np.maximum(values[1], 1e-300))[:, None, :]
        self.S_inverse = np.matmul(self.root, _T(self.root))
        self.size = np.sqrt(values[0, :, -1])  # |M|
        self.least = np.minimum.reduce(self.compared(stack, now.R) / stack.bound, axis=-1)
        norm = 0.5 * (_inner(now.R, square) + np.add.reduce(values[1], axis=-1))
        total = np.vecdot(stack.bound, now.multipliers)
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = np.maximum(norm * self.size / (self.least * total) - 1.0, 0.0)
        self.gap = np.where(self.least > 0, gap, np.inf)
        self.mu = self.complementarity(now.R, self.S, now.slack, now.multipliers)

    def __getitem__(self, index: NDArray[np.intp]) -> _State:
        some = object.__new__(_State)
        vars(some).update({name: value[index] for name, value in vars(self).items()})
        return some

    def compared(self, stack: Stack, Y: Array) -> Array:
        """f_j^T M Y z_j, (R, N)."""
        return np.vecdot(self.g, np.matmul(stack.queries, Y).take(stack.query, axis=1))

    @staticmethod
    def complementarity(R: Array, S: Array, slack: Array, multipliers: Array) -> Array:
        """The mean of s_j l_j and of the eigenvalues of R S / 2, (R,)."""
        return (0.5 * _inner(R, S) + np.vecdot(slack, multipliers)) / (R.shape[-1] + slack.shape[-1])


def _advance(stack: Stack, now: _Iterate, state: _State) -> None:
    """One predictor-corrector step of every problem; a problem off its centre is recentred."""
    system = _System(stack, now, state)
    recentre = now.step < SHORT
    first = system.direction(np.zeros(len(stack)))
    primal, dual = (np.minimum(length, 1.0) for length in system.lengths(first))
    ahead = state.complementarity(
        now.R + _last(primal, first.R) * first.R,
        state.S + _last(dual, first.S) * first.S,
        now.slack + primal[:, None] * first.slack,
        now.multipliers + dual[:, None] * first.multipliers,
    )
    weight = np.where(recentre, RECENTRE, np.maximum(ahead / state.mu, 0.0) ** 3)
    second = system.direction(weight, first, np.where(recentre, 0.0, 1.0))
    primal, dual = system.lengths(second)
    # Nearer to the boundary the better the step was.
    reach = 0.9 + 0.09 * np.minimum(np.minimum(primal, dual), 1.0)
    primal, dual = np.minimum(reach * primal, 1.0), np.minimum(reach * dual, 1.0)
    moved = np.isfinite(np.einsum("rij->r", second.R) + np.add.reduce(second.multipliers, axis=-1))
    now.R = np.where(_last(moved, second.R), now.R + _last(primal, second.R) * second.R, now.R)
    now.slack = np.where(moved[:, None], now.slack + primal[:, None] * second.slack, now.slack)
    change = dual[:, None] * second.multipliers
    now.multipliers = np.where(moved[:, None], now.multipliers + change, now.multipliers)
    now.step = np.where(moved, np.minimum(primal, dual), 0.0)


@dataclass(frozen=True, eq=False)
class _Direction:
    """How the parts of an iterate change, M and S = I - M^T M, to first order, with them."""

    R: Array
    slack: Array
    multipliers: Array
    M: Array
    S: Array


class _System:
    """The linear system of one step: its matrix is set up once and used for predictor and corrector."""

    def __init__(self, stack: Stack, now: _Iterate, state: _State) -> None:
        self.stack, self.now, self.state = stack, now, state
        self.flat = np.matmul(state.M, state.root)
        self.stiff = now.slack / now.multipliers
        self.solve = _solver(self._matrix())

    def _matrix(self) -> Array:
        """How the value of each row changes with each multiplier, (R, N, N)."""
        stack, g, q = self.stack, self.state.g, self.stack.queries
        gT, qT = _T(g), _T(q)
        apart, own = stack.pairs
        lead = (len(stack), *own.shape)

        def products(Y: Array) -> tuple[Array, Array, Array]:
            """g_i Y g_j, z_i Y z_j and g_i Y z_j for all rows i and j, (R, N, N)."""
            gY, qY = np.matmul(g, Y), np.matmul(q, Y)
            among = np.matmul(qY, qT).reshape(len(Y), -1).take(apart, axis=1)
            mixed = np.matmul(gY, qT).reshape(len(Y), -1).take(own, axis=1)
            return np.matmul(gY, gT), among.reshape(lead), mixed.reshape(lead)

        gRg, zRz, gRz = products(self.now.R)
        half = 0.5 * self.state.S_inverse
        gSg, zSz, gSz = products(half)
        gSg += stack.f_gram
        gSg *= zRz
        gRg *= zSz
        gRz *= _T(gSz)
        matrix = np.add(gSg, gRg, out=gSg)
        matrix += gRz
        matrix += _T(gRz)
        diagonal = np.arange(matrix.shape[-1])
        matrix[:, diagonal, diagonal] += self.stiff
        return matrix

    def direction(self, weight: Array, first: _Direction | None = None, share: Array | None = None) -> _Direction:
        """Towards products of weight times mu; `first` adds its second-order terms, of a share for each problem."""
        stack, now, state = self.stack, self.now, self.state
        target = (weight * state.mu)[:, None]
        centre = (2.0 * target)[..., None] * state.S_inverse
        linear = target / now.multipliers
        right = stack.bound
        if first is not None and share is not None:
            bent = np.matmul(first.R, first.S) - np.matmul(now.R, np.matmul(_T(first.M), first.M))
            centre = centre - share[:, None, None] * _symmetric(np.matmul(bent, state.S_inverse))
            linear = linear - share[:, None] * (first.multipliers * first.slack / now.multipliers)
            seen = np.matmul(stack.queries, first.R).take(stack.query, axis=1)
            right = right - share[:, None] * np.vecdot(np.matmul(stack.f, first.M), seen)
        change = self.solve(right - state.compared(stack, centre) + linear)
        dM = stack.adjoint(change)
        dS = np.matmul(_T(state.M), dM)
        dS = -(dS + _T(dS))
        dR = centre - now.R - _symmetric(np.matmul(np.matmul(now.R, dS), state.S_inverse))
        return _Direction(dR, linear - now.slack - self.stiff * change, change, dM, dS)

    def lengths(self, direction: _Direction) -> tuple[Array, Array]:
        """How far one can go along R and the slack, and along the multipliers.

        S along the latter is S + t dS - t^2 dM^T dM. With d and e the largest eigenvalues of -dS and of dM^T dM, both
        relative to S, it is positive definite as long as 1 - t d - t^2 e is positive.
        """
        now, state = self.now, self.state
        moved = np.matmul(direction.M, state.root)
        dual = np.matmul(_T(self.flat), moved)
        parts = np.empty((3, *direction.R.shape))
        np.matmul(np.matmul(_T(state.R_root), -direction.R), state.R_root, out=parts[0])
        np.add(dual, _T(dual), out=parts[1])
        np.matmul(_T(moved), moved, out=parts[2])
        if not isfinite(np.add.reduce(parts, axis=None)):  # one problem must not end the others
            parts[~np.isfinite(parts)] = 0.0
        falls, d, e = np.linalg.eigvalsh(parts)[..., -1]
        falls = np.maximum(falls, np.maximum.reduce(-direction.slack / now.slack, axis=-1))
        bends = 0.5 * (d + np.sqrt(d * d + 4.0 * e))
        bends = np.maximum(bends, np.maximum.reduce(-direction.multipliers / now.multipliers, axis=-1))
        return 1.0 / np.maximum(falls, NEVER), 1.0 / np.maximum(bends, NEVER)


def _solver(matrices: Array) -> Callable[[Array], Array]:
    """The map from right sides (R, N) to solutions; a Cholesky factor for one matrix."""
    if len(matrices) == 1:
        # Transposed, a symmetric matrix is itself, in the order of Fortran.
        factor, failed = dpotrf(matrices[0].T, lower=1, clean=0, overwrite_a=1)
        if failed:
            raise np.linalg.LinAlgError("the rows depend on one another")
        return lambda right: dpotrs(factor, right[0], lower=1)[0][None]
    return lambda right: np.asarray(np.linalg.solve(matrices, right[..., None])[..., 0], dtype=np.float64)


@lru_cache(maxsize=64)
def _identity(order: int) -> Array:
    return np.eye(order)


def _T(Y: Array) -> Array:
    return Y.transpose(0, 2, 1)


def _symmetric(Y: Array) -> Array:
    return 0.5 * (Y + Y.transpose(0, 2, 1))


def _inner(X: Array, Y: Array) -> Array:
    """tr X^T Y for each pair of matrices of two stacks."""
    return np.vecdot(X.reshape(len(X), -1), Y.reshape(len(Y), -1))


def _last(value: NDArray[Any], like: Array) -> Array:
    """One number per problem, shaped to multiply `like`."""
    return value.reshape(-1, *[1] * (like.ndim - 1))
