"""Many constraints in the Frobenius norm: only a working set of them is solved for.

The dual, min l.G l / 2 - b.l over l >= 0, is solved on the hardest few constraints of every query; then all are looked
at once, those that are missed join, and those with a multiplier stay. On a working set, the primal-dual active-set
method: guess which constraints are tight, solve their linear system, correct the guess. The system is solved by
conjugate gradients with products alone. Constraints of one query share their selected token, which makes them alike;
each query's own block of the Gram matrix, inverted, takes that out.

Data that can hardly be separated need more steps than `patience` allows, and are left to other methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.svm.grouped import Grouped, hardest
from attnlab.svm.rows import Rows

# Constraints of each query that join at a time; rounds; and rounds of the active-set method in one of them.
RIVALS, ROUNDS, INNER, LAST = 16, 40, 3, 12
# How closely systems are solved while the gap is above the third number, and afterwards.
LOOSE, FINE, NEAR = 1e-4, 1e-13, 1e-2
# Slack under which a constraint counts as met.
MET = 1e-12
# Rows of a working set that have this much more than they need may leave it.
EASY = 1.1
# Added to the diagonal of each query's block, which may be singular.
RIDGE = 1e-9
# Multipliers beyond this solve nothing; their squares must not overflow.
HUGE = 1e30
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Settled:
    """Multipliers of all constraints, (N,), the relative gap that they leave, and whether it is what was asked for."""

    multipliers: Array
    gap: float
    done: bool


def by_working_sets(rows: Rows, tolerance: float, patience: int) -> Settled:
    """The multipliers l >= 0 of least |sum l A|^2 / 2 - sum l.

    Args:
        rows: inequalities of ordinary scale, none of them zero.
        tolerance: relative duality gap to reach.
        patience: steps of conjugate gradients for one system, after which this gives up.
    """
    norms = rows.norms
    bound = norms.min() / norms  # of rows of length 1, the largest 1
    values = rows.values(rows.adjoint(1.0 / norms)) / norms
    scaled = np.zeros(len(rows))
    best = Settled(scaled, np.inf, False)
    working = np.zeros(len(rows), dtype=bool)
    working[hardest(rows, values / bound, RIVALS)] = True
    for _ in range(ROUNDS):
        index = np.flatnonzero(working)
        group = Grouped.of(rows.part(index))
        loose = best.gap > NEAR
        inside, ended = _active_set(group, bound[index], scaled[index], loose, patience)
        if not ended:
            break
        W = group.adjoint(inside)
        values = rows.values(W) / norms
        scaled = np.zeros(len(rows))
        scaled[index] = inside
        gap = _gap(W, float((values / bound).min()), float(bound[index] @ inside))
        if gap < best.gap:
            best = Settled(scaled / norms, gap, gap <= tolerance)
        if best.done:
            break
        missed = hardest(rows, values / bound, RIVALS)
        missed = missed[values[missed] < (1.0 - MET) * bound[missed]]
        if not loose and not (missed.size and (~working[missed]).any()):
            break  # the same working set again: float64 has no more to give
        working &= values < EASY * bound
        working |= scaled > 0
        working[missed] = True
    return best


def _gap(W: Array, least: float, total: float) -> float:
    """|W|^2 / (least value times sum of multipliers) - 1; infinite where W does not separate."""
    if not (least > 0 and total > 0):
        return np.inf
    return max(float(np.vdot(W, W)) / (least * total) - 1.0, 0.0)


def _active_set(group: Grouped, bound: Array, start: Array, loose: bool, patience: int) -> tuple[Array, bool]:
    """Multipliers l >= 0 of a working set, and whether every system was solved within `patience` steps."""
    x = start
    values = group.gram_times(x)
    guess = x - (values - bound) > 0
    for _ in range(INNER if loose else LAST):
        if not guess.any():
            return x, False
        x, ended = conjugate_gradients(group, bound, guess, x, accuracy=LOOSE if loose else FINE, patience=patience)
        if not ended:
            return x, False
        values = group.gram_times(x)
        better = np.where(guess, x > 0, values < (1.0 - MET) * bound)
        if np.array_equal(better, guess):
            break
        guess = better
    return np.maximum(x, 0.0), True


def conjugate_gradients(
    group: Grouped, bound: Array, inside: NDArray[np.bool_], start: Array, *, accuracy: float, patience: int
) -> tuple[Array, bool]:
    """Solve the system of the rows `inside`, from `start`; and whether that took at most `patience` steps."""
    whitened = _by_query(group, inside)
    x = np.where(inside, start, 0.0)
    residual = np.where(inside, bound - group.gram_times(x), 0.0)
    direction = whitened(residual)
    size = float(residual @ direction)
    enough = accuracy * float(np.linalg.norm(bound))
    for _ in range(patience):
        if float(np.linalg.norm(residual)) <= enough:
            return x, True
        image = np.where(inside, group.gram_times(direction), 0.0)
        curvature = float(direction @ image)
        if not curvature > 0:
            return x, False
        step = size / curvature
        x = x + step * direction
        residual = residual - step * image
        if not float(np.abs(x).max()) < HUGE:  # no multipliers solve a system that contradicts itself
            return start, False
        steep = whitened(residual)
        following = float(residual @ steep)
        direction = steep + (following / size) * direction
        size = following
    # Float64 may have no more to give.
    return x, float(np.linalg.norm(residual)) <= 1e3 * EPS * float(np.linalg.norm(x))


def _by_query(group: Grouped, inside: NDArray[np.bool_]) -> Callable[[Array], Array]:
    """The inverse of the block of each query, of the rows `inside`."""
    kept = group.spread(inside)
    both = kept[:, :, None] & kept[:, None, :]
    blocks = np.where(both, group.blocks, 0.0)
    diagonal = np.arange(blocks.shape[1])
    blocks[:, diagonal, diagonal] += np.where(kept, RIDGE, 1.0)
    inverse = np.where(both, np.linalg.inv(blocks), 0.0)
    return lambda vector: group.flat(np.matmul(inverse, group.spread(vector)[:, :, None]))
