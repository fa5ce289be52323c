"""The dual of the Frobenius problem: minimize l.G l / 2 - b.l over l >= 0, in rows scaled to unit norm.

Three ways, tried in this order:

1. primal-dual active set: guess which constraints are tight, solve that linear system, correct the guess. It takes 2
   to 6 rounds on ordinary data. It can cycle, and it needs independent tight rows.
2. non-negative least squares (Lawson and Hanson's least-distance form): finite, no assumptions, and it finds a
   certificate when no W separates.
3. without the Gram matrix, for many constraints: accelerated projected gradients find the neighbourhood, then the
   active-set method with conjugate gradients finishes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv, dpotrs  # pyright: ignore[reportAttributeAccessIssue]

from attnlab.data.tokens import Array
from attnlab.svm.nonnegative import non_negative_gram

ROUNDS = 40
# With a gap above this it is worth asking whether there is a solution at all.
FAR = 1e-3
# Slack under which a constraint counts as met while the active set is being found.
MET = 1e-13
# Rows whose value under equal pulls is above the mean by more than this share are not among the first guess.
EASE = 0.2
# Multipliers beyond this solve nothing; their squares must not overflow.
HUGE = 1e30
_sum = np.add.reduce


def active_set(gram: Array, bound: Array) -> Array | None:
    """Multipliers by the primal-dual active-set method, or None where it cycles or the tight rows depend."""
    met = (1.0 - MET) * bound
    # All rows that equal pulls do not meet with ease: fewer rows than all, and fewer rounds.
    pulled = (bound / gram.diagonal()).dot(gram) / bound
    mean = float(_sum(pulled)) / len(bound)
    guess = pulled <= mean + EASE * abs(mean)
    key = guess.tobytes()
    seen = {key}
    for _ in range(ROUNDS):
        index = guess.nonzero()[0]
        if not index.size:
            return None
        rows, system, b = gram, gram, bound
        if index.size < len(bound):
            rows, b = gram.take(index, axis=0), bound.take(index)
            system = rows.take(index, axis=1)
        # LAPACK by name: SciPy's checked wrappers cost more than these small systems do.
        # Transposed, a symmetric system is itself, in the order of Fortran.
        factor, inside, failed = dposv(system.T, b, lower=1)
        if failed:
            return None
        guess = inside.dot(rows) < met
        guess[index] = inside > 0
        previous, key = key, guess.tobytes()
        if key == previous:  # settled: one step of refinement for the last digits
            multipliers = np.zeros(len(bound))
            refined = inside + dpotrs(factor, b - system.dot(inside), lower=1)[0]
            multipliers[index] = np.maximum(refined, 0.0)  # one that was zero up to rounding may end below
            return multipliers
        if key in seen:
            return None
        seen.add(key)
    return None


def least_distance(gram: Array, bound: Array) -> tuple[Array, float]:
    """Multipliers up to a factor, and the squared distance s of e from the cone of the rows.

    With G = F F^T and E = [F^T; b^T], the non-negative least-squares problem min |E u - e_last| has residual r with
    s = -r_last: multipliers are u / s if s > 0; if s = 0 then sum_j u_j A_j = 0 and no W separates. E^T E = G + b b^T
    and E^T e_last = b are all that is needed of it.
    """
    u = non_negative_gram(gram + bound[:, None] * bound, bound)
    return (np.zeros(len(bound)), 0.0) if u is None else (u, float(1.0 - bound @ u))


def refine(gram: Array, bound: Array, multipliers: Array) -> Array:
    """The same support, its linear system solved again: removes the rounding of a non-negative least-squares run."""
    index = np.flatnonzero(multipliers > 0)
    if not index.size:
        return multipliers
    system, b = gram[np.ix_(index, index)], bound[index]
    factor, inside, failed = dposv(system, b, lower=1)
    if failed:
        return multipliers
    inside = inside + dpotrs(factor, b - system @ inside, lower=1)[0]
    if not (inside > 0).all():
        return multipliers
    better = np.zeros_like(multipliers)
    better[index] = inside
    return better


def gram_free(
    times: Callable[[Array], Array],
    bound: Array,
    *,
    tolerance: float,
    gap: Callable[[Array], float],
    rescue: Callable[[Array], Array | None],
) -> Array:
    """Multipliers from products with the Gram matrix alone.

    Stops when `gap(multipliers)` is at most `tolerance`. While that is far off, as on data that can hardly be separated
    or cannot be, `rescue(multipliers)` is asked once; what it returns is the last word.
    """
    multipliers = _accelerated(times, bound, steps=100)
    best, best_gap = multipliers, gap(multipliers)
    for attempt in range(6):
        found = _active_set_cg(times, bound, multipliers, gap, tolerance)
        for candidate in found:
            value = gap(candidate)
            if value < best_gap:
                best, best_gap = candidate, value
        if best_gap <= tolerance:
            break
        if attempt == 0 and best_gap > FAR:
            rescued = rescue(multipliers)
            if rescued is not None:
                return rescued
        multipliers = _accelerated(times, bound, steps=200 * 2**attempt, start=best)
        value = gap(multipliers)
        if value < best_gap:
            best, best_gap = multipliers, value
    return best


def _accelerated(times: Callable[[Array], Array], bound: Array, *, steps: int, start: Array | None = None) -> Array:
    """Accelerated projected gradient with restarts, after scaling the start to be as good as it can be."""
    size = _largest_eigenvalue(times, len(bound))
    x = np.zeros_like(bound) if start is None else start.copy()
    ahead, weight = x.copy(), 1.0
    for _ in range(steps):
        slope = times(ahead) - bound
        new = np.maximum(ahead - slope / size, 0.0)
        if (ahead - new) @ (new - x) > 0:  # moving against the gradient: forget the momentum
            weight = 1.0
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * weight**2))
        ahead = new + ((weight - 1.0) / following) * (new - x)
        x, weight = new, following
    return x


def _largest_eigenvalue(times: Callable[[Array], Array], n: int) -> float:
    """An upper estimate by power iteration from a fixed start."""
    v = np.random.default_rng(0).random(n) + 0.5
    value = 1.0
    for _ in range(30):
        v = v / np.linalg.norm(v)
        w = times(v)
        value = float(v @ w)
        v = w
    return 1.1 * value


def _active_set_cg(
    times: Callable[[Array], Array], bound: Array, start: Array, gap: Callable[[Array], float], tolerance: float
) -> list[Array]:
    """Rounds of the active-set method with conjugate gradients; every iterate made feasible is a candidate."""
    slack = times(start) - bound
    guess = (start - slack) > 0
    x, seen, found = start, set(), []
    for _ in range(ROUNDS):
        x = _conjugate_gradients(times, bound, guess, np.where(guess, x, 0.0))
        slack = times(x) - bound
        found.append(np.maximum(x, 0.0))
        if np.abs(x).max() > HUGE:
            break
        better = np.where(guess, x > 0, slack < -1e-12 * bound)
        if np.array_equal(better, guess) or better.tobytes() in seen or not better.any():
            break
        if gap(found[-1]) <= tolerance:
            break
        seen.add(better.tobytes())
        guess = better
    return found[-2:]


def _conjugate_gradients(
    times: Callable[[Array], Array], bound: Array, inside: NDArray[np.bool_], start: Array, *, accuracy: float = 1e-13
) -> Array:
    """Solve the system of the rows `inside`, starting from `start`; the matrix has unit diagonal already."""
    x = start.copy()
    residual = np.where(inside, bound - times(x), 0.0)
    direction, size = residual.copy(), float(residual @ residual)
    enough = (accuracy * np.linalg.norm(bound)) ** 2
    for _ in range(2000):
        if size <= enough:
            break
        image = np.where(inside, times(direction), 0.0)
        curvature = float(direction @ image)
        if curvature <= 0:
            break
        step = size / curvature
        x += step * direction
        residual -= step * image
        if np.abs(x).max() > HUGE:  # no multipliers solve a system that contradicts itself
            break
        following = float(residual @ residual)
        direction = residual + (following / size) * direction
        size = following
    return x
