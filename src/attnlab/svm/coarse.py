"""Brackets of the Frobenius margin to a few per cent: projected gradients on a few constraints, for many problems.

For differences p_j = x_selected - x_t and queries z_j the best margin is |sum l_j p_j z_j^T| at its least over weights
l >= 0 of sum 1. Rounds of three steps: take the hardest rivals of every query and those with weight so far; on their
Gram matrix, (p_i . p_j) (z_i . z_j), maximize sum l - |sum l p z^T|^2 / 2 over l >= 0 by accelerated projected
gradients, in 32 bits and only until the bounds there agree; look at all constraints again, in 64 bits. Any
W = sum l p z^T attains a margin and any l >= 0 bounds it, however roughly they were found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array

# Rivals of every query that a round takes in; rounds; and steps of one round.
RIVALS, ROUNDS, STEPS = 2, 16, 1500
# How closely a round is solved, beside the tolerance: the first ones only choose constraints.
EARLY, LATE = 2.0, 0.5
# Steps between two looks at the bounds.
LOOK = 8
# The power iteration finds the largest eigenvalue from below.
SAFETY = 1.15
TINY = 1e-30


class Coarse(NamedTuple):
    """Bounds, the W (a, b) of length 1 that attains the lower one, and multipliers (n, T) of sum 1 of the upper one."""

    lower: float
    upper: float
    W: Array
    multipliers: Array


def coarse_bracket(
    x: Array, z: Array, selected: NDArray[np.intp], visible: NDArray[np.bool_], *, tolerance: float, start: Array
) -> Coarse:
    """Bounds of the best margin of weights of Frobenius length 1, for arrays of order one; see `bracket_margin`.

    `start` (a, b) tells which rivals are hard. The bounds may still be apart when the rounds are over.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=30, T=10, d=16, seed=0)
    >>> best = al.optimal_tokens(tokens)
    >>> seen = np.ones((30, 10), dtype=bool)
    >>> found = coarse_bracket(tokens.x, tokens.z, best, seen, tolerance=0.03, start=np.eye(16))
    >>> found.lower <= al.solve_margin(tokens, best).margin <= found.upper <= 1.04 * found.lower
    True
    """
    count = np.arange(len(x))
    rivals = visible.copy()
    rivals[count, selected] = False
    query, key = np.nonzero(rivals)
    p = x[count, selected][query] - x[query, key]  # (m, a)
    number = np.full(rivals.shape, -1)
    number[query, key] = np.arange(len(query))
    values = np.full(rivals.shape, np.inf)
    gram = z @ z.T
    weights = np.zeros(len(query))
    best = Coarse(-np.inf, np.inf, start, np.zeros(rivals.shape))
    W = start
    hardest = min(RIVALS, rivals.shape[1])
    for step in range(ROUNDS):
        values[query, key] = np.vecdot(p, (z @ W.T)[query])
        hard = number[count[:, None], np.argpartition(values, hardest - 1, axis=1)[:, :hardest]]
        working = weights > 0
        working[hard[hard >= 0]] = True
        rows = np.flatnonzero(working)
        few = p[rows]
        system = (few @ few.T) * gram[query[rows]][:, query[rows]]
        weights[rows] = _weights(system.astype(np.float32), weights[rows], tolerance * (EARLY if not step else LATE))
        W = (few * weights[rows, None]).T @ z[query[rows]]
        length = float(np.linalg.norm(W))
        if not (length > 0 and np.isfinite(length)):
            break
        least = float(np.vecdot(p, (z @ W.T)[query]).min()) / length
        bound = length / float(weights.sum())
        if least > best.lower:
            best = best._replace(lower=least, W=W / length)
        if bound < best.upper:
            multipliers = np.zeros(rivals.shape)
            multipliers[query, key] = weights / weights.sum()
            best = best._replace(upper=bound, multipliers=multipliers)
        if best.upper - best.lower <= tolerance * best.upper:
            break
    return best


def _weights(system: NDArray[np.float32], first: Array, tolerance: float) -> Array:
    """l >= 0 of about the largest sum l - l^T G l / 2: accelerated, begun anew where the way turns back."""
    direction = np.linspace(1.0, 2.0, len(system), dtype=np.float32)
    for _ in range(5):
        direction = system @ direction
        direction /= max(float(np.linalg.norm(direction)), TINY)
    steepness = np.float32(max(SAFETY * float(direction @ (system @ direction)), TINY))
    now = first.astype(np.float32)
    slope = system @ now
    ahead, slope_ahead, pace = now, slope, 1.0
    for step in range(1, STEPS + 1):
        then = np.maximum(ahead + (1.0 - slope_ahead) / steepness, 0.0)
        slope_then = system @ then
        way = then - now
        if float((ahead - then) @ way) > 0:
            pace = 1.0
        faster = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * pace * pace))
        momentum = np.float32((pace - 1.0) / faster)
        ahead = then + momentum * way
        slope_ahead = slope_then + momentum * (slope_then - slope)
        now, slope, pace = then, slope_then, faster
        if step % LOOK == 0:
            square = float(now @ slope)
            if square > 0 and 1.0 - float(slope.min()) * float(now.sum()) / square < tolerance:
                break
    return now.astype(np.float64)
