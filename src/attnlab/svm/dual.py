"""The dual of the Frobenius problem: minimize l.G l / 2 - b.l over l >= 0, in rows scaled to unit norm.

Two ways, tried in this order:

1. primal-dual active set: guess which constraints are tight, solve that linear system, correct the guess. It takes 2
   to 6 rounds on ordinary data. It can cycle, and it needs independent tight rows.
2. non-negative least squares (Lawson and Hanson's least-distance form): finite, no assumptions, and it finds a
   certificate when no W separates.

They need the Gram matrix; `attnlab.svm.working` and `attnlab.svm.barrier` are for many constraints.
"""

from __future__ import annotations

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
_sum = np.add.reduce


def active_set(gram: Array, bound: Array, first: NDArray[np.bool_] | None = None) -> Array | None:
    """Multipliers by the primal-dual active-set method, or None where it cycles or the tight rows depend."""
    met = (1.0 - MET) * bound
    guess = _hard_rows(gram, bound) if first is None else first
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


def _hard_rows(gram: Array, bound: Array) -> NDArray[np.bool_]:
    """All rows that equal pulls do not meet with ease: a guess of fewer rows than all, and of fewer rounds."""
    pulled = (bound / gram.diagonal()).dot(gram) / bound
    mean = float(_sum(pulled)) / len(bound)
    return pulled <= mean + EASE * abs(mean)


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
