"""From an approximate least-nuclear-norm matrix to one of exact rank, right to rounding.

With W = K Q^T, K (a, r) and Q (b, r), the least (|K|^2 + |Q|^2) / 2 under the same constraints is the least nuclear
norm, and its conditions are equations once the tight rows are known:

    K = M Q,   Q = M^T K,   f_j^T K Q^T z_j = b_j for tight j,   M = sum of l_j f_j z_j^T over tight j.

Newton's method solves them. The number of columns r is the number of singular values of M that are 1, so that W has
rank r by construction. K and Q are free up to a common rotation, and at a non-unique optimum along the optimal face;
a small proximal term leaves such directions alone and costs nothing elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.svm.interior import Stack, follow, lifted, nuclear_norms, spectral_norms, start

# Steps, and how many in a row that do not lower the gap end it.
STEPS, IDLE = 12, 4
# Gaps at which polishing is tried: usually the first will do.
RUNGS = (1e-4, 1e-6, 1e-8)
# Weight of the proximal term, for problems of nuclear norm 1.
PROXIMAL = 1e-10
# Newton's steps square the gap; one below this that shrinks less than tenfold is down to rounding.
SMALL = 1e-9
# A gap that is zero up to rounding: rank and tight rows were guessed right.
SHARP = 1e-11


@dataclass(eq=False)
class Factors:
    """W = K Q^T with its multipliers and gap, for R problems of one rank."""

    K: Array
    Q: Array
    multipliers: Array
    gap: Array


def certified_gap(stack: Stack, W: Array, multipliers: Array) -> Array:
    """Relative duality gap of W and l >= 0, (R,): |W|_* / least value times |sum l A| / b.l, minus 1; inf for bad W."""
    values = stack.values(W)
    least = stack.least(values)
    image = spectral_norms(stack.adjoint(multipliers))
    total = np.vecdot(stack.bound, multipliers)
    good = (least > 0) & (total > 0)
    with np.errstate(all="ignore"):
        gap = nuclear_norms(W) * image / (least * total) - 1.0
    return np.where(good & np.isfinite(gap), np.maximum(gap, 0.0), np.inf)


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
    norm = nuclear_norms(W)
    unit = Stack(stack.f, stack.queries, stack.query, stack.bound / norm[:, None], stack.free)
    left, singular, right = np.linalg.svd(W / norm[:, None, None], full_matrices=False)
    root = np.sqrt(singular[:, None, :rank])
    now = Factors(left[..., :rank] * root, right.transpose(0, 2, 1)[..., :rank] * root, multipliers, np.empty(0))
    tight = guess_tight(stack, W, multipliers) if tight is None else tight
    idle = np.zeros(len(stack), dtype=np.intp)  # steps since the gap last fell
    best = Factors(now.K, now.Q, now.multipliers, np.full(len(stack), np.inf))
    _keep_better(unit, now, best)  # a start without a gap is not made better by the proximal term
    for _ in range(STEPS):
        before = best.gap
        now.multipliers = np.where(tight, now.multipliers, 0.0)
        if not _newton(unit, now, tight):
            break
        _keep_better(unit, now, best)
        idle = np.where(best.gap < before, 0, idle + 1)
        if ((best.gap <= SMALL) & (best.gap > 0.1 * before) | (idle >= IDLE)).all():
            break
        tight = np.where((best.gap <= SHARP)[:, None], tight, _correct(unit, now, tight))
    scale = np.sqrt(norm)[:, None, None]
    return Factors(best.K * scale, best.Q * scale, best.multipliers, best.gap)


def _keep_better(stack: Stack, now: Factors, best: Factors) -> None:
    proper = np.where(stack.free, now.multipliers, np.maximum(now.multipliers, 0.0))
    gap = certified_gap(stack, np.matmul(now.K, now.Q.transpose(0, 2, 1)), proper)
    better = gap < best.gap
    chosen = better[:, None, None]
    best.K, best.Q = np.where(chosen, now.K, best.K), np.where(chosen, now.Q, best.Q)
    best.multipliers = np.where(better[:, None], proper, best.multipliers)
    best.gap = np.where(better, gap, best.gap)


def _correct(stack: Stack, now: Factors, tight: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Drop rows that pull the wrong way, add rows that are missed."""
    values = stack.values(np.matmul(now.K, now.Q.transpose(0, 2, 1)))
    missed = values < stack.bound * (1.0 - 1e-12)
    return stack.free | np.where(tight, now.multipliers > 0, missed)


def _newton(stack: Stack, now: Factors, tight: NDArray[np.bool_]) -> bool:
    """One step on K, Q and the multipliers; False if there is none.

    With B = [K; Q] (n, r) and L = [[0, M], [M^T, 0]], the equations are (I - L) B = 0 and the tight rows. In the
    eigenbasis of L the first is diagonal. All its directions but the r of eigenvalues near 1 are eliminated by
    division; an r^2 + (number of tight rows) system is left.
    """
    trials, a, r = now.K.shape
    used = np.flatnonzero(tight.any(0))
    active = tight[:, used]
    f, z = stack.f[:, used] * active[..., None], stack.z[:, used] * active[..., None]  # other rows ask for nothing
    k, q = np.matmul(f, now.K), np.matmul(z, now.Q)  # K^T f_j and Q^T z_j, (R, m, r)
    eigenvalues, basis = np.linalg.eigh(lifted(stack.adjoint(now.multipliers)))
    bent = 1.0 - eigenvalues
    curve = bent + PROXIMAL
    both = np.matmul(basis.transpose(0, 2, 1), np.concatenate([now.K, now.Q], axis=1))
    slope = bent[..., None] * both
    # The derivative of f^T K Q^T z by B is [f; 0] (Q^T z)^T + [0; z] (K^T f)^T.
    F, Z = np.matmul(f, basis[:, :a]), np.matmul(z, basis[:, a:])  # (R, m, n)
    flat, steep = slice(F.shape[-1] - r, None), slice(None, F.shape[-1] - r)
    system, right = _bordered(F[..., flat], Z[..., flat], k, q, curve[:, flat], slope[:, flat])
    m = used.size
    system[:, r * r :, r * r :] = _through(F[..., steep], Z[..., steep], k, q, curve[:, steep])
    system[:, np.arange(r * r, r * r + m), np.arange(r * r, r * r + m)] += np.where(active, PROXIMAL, 1.0)
    ahead = slope[:, steep] / curve[:, steep, None]
    short = np.where(active, stack.bound[:, used] - np.vecdot(k, q), 0.0)
    right[:, r * r :] = short + _applied(F[..., steep], Z[..., steep], k, q, ahead)
    try:
        found = np.linalg.solve(system, right[..., None])[..., 0]
    except np.linalg.LinAlgError:
        return False
    found = np.where(np.isfinite(found).all(-1, keepdims=True), found, 0.0)
    change = found[:, r * r :]
    weighed = np.matmul(F[..., steep].transpose(0, 2, 1), change[..., None] * q)
    weighed = weighed + np.matmul(Z[..., steep].transpose(0, 2, 1), change[..., None] * k)
    both[:, flat] += found[:, : r * r].reshape(trials, r, r)
    both[:, steep] += weighed / curve[:, steep, None] - ahead
    both = np.matmul(basis, both)
    now.K, now.Q = both[:, :a], both[:, a:]
    now.multipliers = now.multipliers.copy()
    now.multipliers[:, used] += change
    return True


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


def least_nuclear(stack: Stack, tolerance: float, W: Array | None = None, multipliers: Array | None = None) -> Found:
    """Solve every problem of the stack: interior points to ever smaller gaps, each followed by a polish.

    An infinite gap where no W was found; a feasible W and multipliers to start from may help.
    """
    iterate = start(stack, W, multipliers)
    trials = len(stack)
    found = Found(iterate.W.copy(), iterate.best.copy(), np.full(trials, np.inf), np.zeros(trials, dtype=np.intp))
    left = np.arange(trials)
    for target in (*RUNGS, min(tolerance, RUNGS[-1])):
        part, now = stack[left], iterate[left]
        follow(part, now, target)
        iterate.put(left, now)
        _take(found, left, now.W, now.best, now.gap, np.zeros(len(left), dtype=np.intp))
        ready = np.flatnonzero(np.isfinite(now.gap))
        rank = guess_rank(now.W[ready], part[ready].adjoint(now.best[ready]))
        for r in np.unique(rank):
            same = ready[rank == r]
            done = polish(part[same], now.W[same], now.best[same], int(r))
            _take(
                found,
                left[same],
                np.matmul(done.K, done.Q.transpose(0, 2, 1)),
                done.multipliers,
                done.gap,
                rank[rank == r],
            )
        left = left[(found.gap[left] > min(tolerance, SHARP)) & np.isfinite(iterate.gap[left])]
        if not left.size:
            break
    return found


def roughly_nuclear(stack: Stack, target: float, W: Array, multipliers: Array) -> Found:
    """Interior points alone, to a gap of `target`."""
    iterate = start(stack, W, multipliers)
    follow(stack, iterate, target)
    return Found(iterate.W, iterate.best, iterate.gap, np.zeros(len(stack), dtype=np.intp))


def again_nuclear(stack: Stack, W: Array, multipliers: Array, rank: int) -> Found:
    """The solution of one problem from that of nearly the same: a polish of it, with what it misses taken for tight."""
    tight = stack.free | (multipliers > 0) | (stack.values(W) < stack.bound * (1.0 - 1e-12))
    done = polish(stack, W, multipliers, rank, tight)
    return Found(np.matmul(done.K, done.Q.transpose(0, 2, 1)), done.multipliers, done.gap, np.array([rank]))


def _take(
    found: Found, index: NDArray[np.intp], W: Array, multipliers: Array, gap: Array, rank: NDArray[np.intp]
) -> None:
    # A polished W of no gap to speak of is worth more than any other: its rank is exact.
    better = (gap < found.gap[index]) | ((rank > 0) & (gap <= SHARP))
    index = index[better]
    found.W[index], found.multipliers[index] = W[better], multipliers[better]
    found.gap[index], found.rank[index] = gap[better], rank[better]
