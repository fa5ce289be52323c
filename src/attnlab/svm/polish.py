"""From an approximate least-nuclear-norm matrix to one of exact rank, right to rounding.

With W = K Q^T, K (a, r) and Q (b, r), the least (|K|^2 + |Q|^2) / 2 under the same constraints is the least nuclear
norm, and its conditions are equations once the tight rows are known: K = M Q, Q = M^T K, and f_j^T K Q^T z_j = b_j for
tight j, with M = sum of l_j f_j z_j^T over tight j. Without K they are

    (I - M^T M) Q = 0,   f_j^T M Q Q^T z_j = b_j for tight j.

Newton's method solves them for Q and the l_j. The number of columns r is the number of singular values of M that are 1,
so that W = M Q Q^T has rank r by construction. Q is free up to a rotation, and at a non-unique optimum along the
optimal face; a small proximal term leaves such directions alone and costs nothing elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.svm.compact import approach
from attnlab.svm.interior import Stack, follow, nuclear_norms, spectral_norms, start

# Steps, and how many in a row that do not lower the gap end it.
STEPS, IDLE = 12, 4
# The gap at which polishing is first tried: usually that will do; and those of the slower method.
SOON = 1e-3
RUNGS = (1e-4, 1e-6, 1e-8)
# Weight of the proximal term, for problems of nuclear norm 1.
PROXIMAL = 1e-10
# Newton's steps square the gap; one below this that shrinks less than tenfold is down to rounding.
SMALL = 1e-9
# A gap below this is rounding itself.
ZERO = 16 * float(np.finfo(np.float64).eps)
# A gap that is zero up to rounding: rank and tight rows were guessed right.
SHARP = 1e-11


@dataclass(eq=False)
class Factors:
    """W = K Q^T with its multipliers and gap, for R problems of one rank."""

    K: Array
    Q: Array
    multipliers: Array
    gap: Array

    @property
    def W(self) -> Array:
        """(R, a, b)."""
        return np.matmul(self.K, self.Q.transpose(0, 2, 1))


def certified_gap(stack: Stack, W: Array, multipliers: Array) -> Array:
    """Relative duality gap of W and l >= 0, (R,): |W|_* / least value times |sum l A| / b.l, minus 1; inf for bad W."""
    size = spectral_norms(stack.adjoint(multipliers))
    return _gap(nuclear_norms(W), size, stack.least(stack.values(W)), np.vecdot(stack.bound, multipliers))


def _gap(norm: Array, size: Array, least: Array, total: Array) -> Array:
    """The same from |W|_*, or a bound on it, from |sum l A|, from the least value of W and from b.l."""
    with np.errstate(all="ignore"):
        gap = norm * size / (least * total) - 1.0
    return np.where((least > 0) & (total > 0) & np.isfinite(gap), np.maximum(gap, 0.0), np.inf)


def guess_rank(W: Array, M: Array) -> NDArray[np.intp]:
    """How many singular values of the dual matrix M are 1, (R,).

    Near the optimum either the weight of a singular value in W or its distance from 1 in M is small, never both unless
    strict complementarity fails: the smaller of the two is taken for zero.
    """
    weight = np.linalg.svd(W, compute_uv=False)
    weight = weight / weight.sum(-1, keepdims=True)
    size = np.linalg.svd(M, compute_uv=False)
    return np.maximum((weight > 1.0 - size / size[:, :1]).sum(-1), 1)


def guess_tight(stack: Stack, W: Array, multipliers: Array) -> NDArray[np.bool_]:
    """Which rows are tight, (R, N): those whose share of the dual value is above their relative slack."""
    share = stack.bound * multipliers
    share = share / share.sum(-1, keepdims=True)
    values = stack.values(W)
    with np.errstate(divide="ignore", invalid="ignore"):
        slack = values / stack.bound / stack.least(values)[:, None] - 1.0
        return stack.free | (share > slack)


def polish(stack: Stack, W: Array, multipliers: Array, rank: int, tight: NDArray[np.bool_] | None = None) -> Factors:
    """Newton's method from W and its multipliers, on matrices of this rank; the best iterate of every problem."""
    left, singular, right = np.linalg.svd(W, full_matrices=False)
    norm = singular.sum(-1)
    root = np.sqrt(singular[:, None, :rank] / norm[:, None, None])
    K, Q = left[..., :rank] * root, right.transpose(0, 2, 1)[..., :rank] * root
    unit = replace(stack, bound=stack.bound / norm[:, None])
    best = _iterated(unit, Q, multipliers, guess_tight(stack, W, multipliers) if tight is None else tight)
    rest = np.flatnonzero(best.gap > SHARP)
    if rest.size:
        _judge_again(unit[rest], rest, best, K, Q, multipliers)
    scale = np.sqrt(norm)[:, None, None]
    return Factors(best.K * scale, best.Q * scale, best.multipliers, best.gap)


def _iterated(stack: Stack, Q: Array, multipliers: Array, tight: NDArray[np.bool_]) -> Factors:
    """The best iterate of each problem, whose nuclear norm is about 1; problems that are done are left out."""
    now = _Point(stack, Q, multipliers)
    best = Factors(now.K.copy(), now.Q.copy(), now.proper.copy(), now.gap.copy())
    left = np.arange(len(stack))
    idle = np.zeros(len(stack), dtype=np.intp)  # steps since the gap last fell
    for _ in range(STEPS):
        step = _newton(stack, now, tight)
        if step is None:
            break
        now = _Point(stack, *step)
        before = best.gap[left]
        _keep_better(best, left, now.K, now.Q, now.proper, now.gap)
        gap = best.gap[left]
        idle = np.where(gap < before, 0, idle + 1)
        down = (gap <= SMALL) & (gap > 0.1 * before)
        going = np.flatnonzero(~(down | (gap <= ZERO) | (idle >= IDLE)))
        if not going.size:
            break
        tight = np.where((gap <= SHARP)[:, None], tight, _correct(stack, now, tight))
        if going.size < len(left):
            stack, now = stack[going], now[going]
            left, idle, tight = left[going], idle[going], tight[going]
    return best


def _judge_again(stack: Stack, rest: NDArray[np.intp], best: Factors, K: Array, Q: Array, multipliers: Array) -> None:
    """Gaps by singular values, where K and Q are far from balanced; and the start itself, where no step was better."""
    exact = certified_gap(stack, best.W[rest], best.multipliers[rest])
    best.gap[rest] = np.minimum(best.gap[rest], exact)
    K, Q, multipliers = K[rest], Q[rest], multipliers[rest]
    gap = certified_gap(stack, np.matmul(K, Q.transpose(0, 2, 1)), multipliers)
    _keep_better(best, rest, K, Q, multipliers, gap)


class _Point:
    """Q (R, b, r) and multipliers (R, N), of either sign, with what follows from them."""

    def __init__(self, stack: Stack, Q: Array, multipliers: Array) -> None:
        self.Q, self.multipliers = Q, multipliers
        self.M = stack.adjoint(multipliers)
        self.K = np.matmul(self.M, Q)
        # M^T M = basis diag(squares) basis^T, in ascending order.
        self.squares, self.basis = np.linalg.eigh(np.matmul(self.M.transpose(0, 2, 1), self.M))
        self.k, self.q = np.matmul(stack.f, self.K), np.matmul(stack.z, Q)  # K^T f_j and Q^T z_j, (R, N, r)
        self.values = np.vecdot(self.k, self.q)
        self.proper, size = multipliers, np.sqrt(np.maximum(self.squares[:, -1], 0.0))
        if (multipliers[:, ~stack.free] < 0).any():
            self.proper = np.where(stack.free, multipliers, np.maximum(multipliers, 0.0))
            size = spectral_norms(stack.adjoint(self.proper))
        # |K Q^T|_* <= (|K|^2 + |Q|^2) / 2, with equality at the solution.
        norm = 0.5 * (np.einsum("rij,rij->r", self.K, self.K) + np.einsum("rij,rij->r", Q, Q))
        self.gap = _gap(norm, size, stack.least(self.values), np.vecdot(stack.bound, self.proper))

    def __getitem__(self, index: NDArray[np.intp]) -> _Point:
        some = object.__new__(_Point)
        vars(some).update({name: value[index] for name, value in vars(self).items()})
        return some


def _keep_better(best: Factors, index: NDArray[np.intp], K: Array, Q: Array, multipliers: Array, gap: Array) -> None:
    better = gap < best.gap[index]
    index = index[better]
    best.K[index], best.Q[index] = K[better], Q[better]
    best.multipliers[index], best.gap[index] = multipliers[better], gap[better]


def _correct(stack: Stack, now: _Point, tight: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Drop rows that pull the wrong way, add rows that are missed."""
    missed = now.values < stack.bound * (1.0 - 1e-12)
    return stack.free | np.where(tight, now.multipliers > 0, missed)


def _newton(stack: Stack, now: _Point, tight: NDArray[np.bool_]) -> tuple[Array, Array] | None:
    """Q and the multipliers after one step; None if there is none.

    In the eigenbasis of M^T M the equations of Q are diagonal. All its directions but the r of eigenvalues near 1 are
    eliminated by division; an r^2 + (number of tight rows) system is left.
    """
    if (now.multipliers != np.where(tight, now.multipliers, 0.0)).any():  # other rows no longer pull
        now = _Point(stack, now.Q, np.where(tight, now.multipliers, 0.0))
    trials, _, r = now.Q.shape
    used = np.flatnonzero(tight.any(0))
    m = used.size
    active = tight[:, used]
    mask = active[..., None]  # the other rows of `used` ask for nothing
    f, z = stack.f[:, used] * mask, stack.z[:, used] * mask
    k, q = now.k[:, used] * mask, now.q[:, used] * mask
    bent = 1.0 - now.squares
    curve = bent + PROXIMAL
    Q = np.matmul(now.basis.transpose(0, 2, 1), now.Q)
    slope = bent[..., None] * Q
    # The derivative of f^T M Q Q^T z by Q is M^T f (Q^T z)^T + z (K^T f)^T.
    F, Z = np.matmul(f, np.matmul(now.M, now.basis)), np.matmul(z, now.basis)  # (R, m, b)
    flat, steep = slice(F.shape[-1] - r, None), slice(None, F.shape[-1] - r)
    system, right = _bordered(F[..., flat], Z[..., flat], k, q, curve[:, flat], slope[:, flat])
    rows = system[:, r * r :, r * r :]
    np.matmul(f, f.transpose(0, 2, 1), out=rows)  # how M changes
    rows *= np.matmul(q, q.transpose(0, 2, 1))
    rows += _through(F[..., steep], Z[..., steep], k, q, curve[:, steep])
    rows[:, np.arange(m), np.arange(m)] += np.where(active, PROXIMAL, 1.0)
    ahead = slope[:, steep] / curve[:, steep, None]
    short = np.where(active, stack.bound[:, used] - now.values[:, used], 0.0)
    right[:, r * r :] = short + _applied(F[..., steep], Z[..., steep], k, q, ahead)
    try:
        found = np.linalg.solve(system, right[..., None])[..., 0]
    except np.linalg.LinAlgError:
        return None
    found = np.where(np.isfinite(found).all(-1, keepdims=True), found, 0.0)
    change = found[:, r * r :]
    weighed = np.matmul(F[..., steep].transpose(0, 2, 1), change[..., None] * q)
    weighed = weighed + np.matmul(Z[..., steep].transpose(0, 2, 1), change[..., None] * k)
    Q[:, flat] += found[:, : r * r].reshape(trials, r, r)
    Q[:, steep] += weighed / curve[:, steep, None] - ahead
    multipliers = now.multipliers.copy()
    multipliers[:, used] += change
    return np.matmul(now.basis, Q), multipliers


def _bordered(F: Array, Z: Array, k: Array, q: Array, curve: Array, slope: Array) -> tuple[Array, Array]:
    """The system with its r x r directions filled in, and its right side."""
    trials, m, r = k.shape
    seen = (F[..., None] * q[:, :, None, :] + Z[..., None] * k[:, :, None, :]).reshape(trials, m, r * r)
    system = np.zeros((trials, r * r + m, r * r + m))
    system[:, np.arange(r * r), np.arange(r * r)] = np.repeat(curve, r, axis=1)
    system[:, : r * r, r * r :] = -seen.transpose(0, 2, 1)
    system[:, r * r :, : r * r] = seen
    right = np.zeros((trials, r * r + m))
    right[:, : r * r] = -slope.reshape(trials, r * r)
    return system, right


def _through(F: Array, Z: Array, k: Array, q: Array, curve: Array) -> Array:
    """How the rows see one another through the eliminated directions, (R, m, m)."""
    FT, ZT, kT, qT = (Y.transpose(0, 2, 1) for Y in (F, Z, k, q))
    F, Z = F / curve[:, None, :], Z / curve[:, None, :]
    mixed = np.matmul(F, ZT) * np.matmul(q, kT)
    return np.matmul(F, FT) * np.matmul(q, qT) + np.matmul(Z, ZT) * np.matmul(k, kT) + mixed + mixed.transpose(0, 2, 1)


def _applied(F: Array, Z: Array, k: Array, q: Array, change: Array) -> Array:
    """How the values of the rows change, (R, m)."""
    return np.vecdot(np.matmul(F, change), q) + np.vecdot(np.matmul(Z, change), k)


@dataclass(eq=False)
class Found:
    """The best of every problem: W (R, a, b) of least value 1, multipliers (R, N) with |M| = 1, gap (R,), rank (R,).

    The rank is that of a polished W, exact by construction; 0 where polishing failed.
    """

    W: Array
    multipliers: Array
    gap: Array
    rank: NDArray[np.intp]

    @classmethod
    def nothing(cls, stack: Stack) -> Found:
        """Before anything was found."""
        trials, N, a = stack.f.shape
        W, multipliers = np.zeros((trials, a, stack.queries.shape[-1])), np.zeros((trials, N))
        return cls(W, multipliers, np.full(trials, np.inf), np.zeros(trials, dtype=np.intp))


def least_nuclear(stack: Stack, tolerance: float, W: Array | None = None, multipliers: Array | None = None) -> Found:
    """Solve every problem of the stack: interior points to ever smaller gaps, each followed by a polish.

    An infinite gap where no W was found; a feasible W and multipliers to start from may help.
    """
    found = Found.nothing(stack)
    left = np.arange(len(stack))
    if W is not None and multipliers is not None and not stack.free.any():
        near = approach(stack, SOON, W, multipliers)
        _polish_all(found, left, stack, near.W, near.multipliers, near.gap)
        left = np.flatnonzero(found.gap > min(tolerance, SHARP))
    if left.size:
        _slowly(found, left, stack, tolerance, W, multipliers)
    return found


def _slowly(
    found: Found, left: NDArray[np.intp], stack: Stack, tolerance: float, W: Array | None, multipliers: Array | None
) -> None:
    """Solve the problems `left` on larger matrices, which bear more."""
    stack = stack[left]
    iterate = start(stack, *(None if part is None else part[left] for part in (W, multipliers)))
    ahead = np.arange(len(left))
    for target in (*RUNGS, min(tolerance, RUNGS[-1])):
        part, now = stack[ahead], iterate[ahead]
        follow(part, now, target)
        iterate.put(ahead, now)
        _take(found, left[ahead], now.W, now.best, now.gap, np.zeros(len(ahead), dtype=np.intp))
        _polish_all(found, left[ahead], part, now.W, now.best, now.gap)
        ahead = ahead[(found.gap[left[ahead]] > min(tolerance, SHARP)) & np.isfinite(iterate.gap[ahead])]
        if not ahead.size:
            break


def _polish_all(found: Found, index: NDArray[np.intp], stack: Stack, W: Array, multipliers: Array, gap: Array) -> None:
    """Polish every problem of finite gap, those of one rank together."""
    ready = np.flatnonzero(np.isfinite(gap))
    rank = guess_rank(W[ready], stack[ready].adjoint(multipliers[ready]))
    for r in np.unique(rank):
        same = ready[rank == r]
        part = stack if same.size == len(stack) else stack[same]
        done = polish(part, W[same], multipliers[same], int(r))
        _take(found, index[same], done.W, done.multipliers, done.gap, rank[rank == r])


def roughly_nuclear(stack: Stack, target: float, W: Array, multipliers: Array) -> Found:
    """Interior points alone, to a gap of `target`, for one problem."""
    unpolished = np.zeros(len(stack), dtype=np.intp)
    if not stack.free.any():
        near = approach(stack, target, W, multipliers)
        if np.isfinite(near.gap).all():
            return Found(near.W, near.multipliers, near.gap, unpolished)
    iterate = start(stack, W, multipliers)
    follow(stack, iterate, target)
    return Found(iterate.W, iterate.best, iterate.gap, unpolished)


def again_nuclear(stack: Stack, W: Array, multipliers: Array, rank: int) -> Found:
    """The solution of one problem from that of nearly the same: a polish of it, with what it misses taken for tight."""
    tight = stack.free | (multipliers > 0) | (stack.values(W) < stack.bound * (1.0 - 1e-12))
    done = polish(stack, W, multipliers, rank, tight)
    return Found(done.W, done.multipliers, done.gap, np.array([rank]))


def _take(
    found: Found, index: NDArray[np.intp], W: Array, multipliers: Array, gap: Array, rank: NDArray[np.intp]
) -> None:
    # A polished W of no gap to speak of is worth more than any other: its rank is exact.
    better = (gap < found.gap[index]) | ((rank > 0) & (gap <= SHARP))
    index = index[better]
    found.W[index], found.multipliers[index] = W[better], multipliers[better]
    found.gap[index], found.rank[index] = gap[better], rank[better]
