"""Projected gradients on a few constraints: what `bracket_margin` tries first where a per cent is close enough.

The best margin of W of Frobenius length 1 is |sum l_j A_j| at its least over weights l >= 0 of sum 1. Rounds of three
steps: take the hardest rivals of every query and those with weight so far; on their Gram matrix, (p_i . p_j)
(q_i . q_j), maximize sum l - |sum l A|^2 / 2 over l >= 0 by accelerated projected gradients, in 32 bits and only until
the bounds there agree; look at all constraints again, in 64 bits. Any W = sum l A attains a margin and any l >= 0
bounds it, however roughly they were found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.svm.rows import Rows

# Rivals of every query that a round takes in; rounds; and steps of one round.
RIVALS, ROUNDS, STEPS = 2, 16, 1500
# How closely a round is solved, beside the tolerance: the first ones only choose constraints.
EARLY, LATE = 2.0, 0.5
# Steps between two looks at the bounds.
LOOK = 8
# The power iteration finds the largest eigenvalue from below.
SAFETY = 1.15
TINY = 1e-30
# Constraints whose Gram matrix is made.
MOST = 4000


class Round(NamedTuple):
    """Multipliers l >= 0 of all constraints, (N,), W = sum l A, (a, b), and its values A W, (N,)."""

    multipliers: Array
    W: Array
    values: Array


def coarse_rounds(rows: Rows, values: Array, tolerance: float) -> Iterator[Round]:
    """Rounds that come closer to the best margin, until one of them does not come to its end.

    `values` (N,) are low where constraints are expected to be hard. Rows are of order one, inequalities all of them.
    """
    if len(rows.queries) > MOST:
        return
    weights = np.zeros(len(rows))
    # Constraints of length 1, in 32 bits, with multipliers l_j |A_j|: fewer steps are needed than for all lengths.
    inverse = (1.0 / rows.norms).astype(np.float32)
    unit = rows.unit()
    p = unit.p.astype(np.float32)
    query_gram = unit.query_gram.astype(np.float32)
    places = rows.scatter(np.arange(len(rows)), fill=-1).reshape(len(rows.queries), -1)  # (M, T): which constraint
    hardest = min(RIVALS, places.shape[1])
    for step in range(ROUNDS):
        levels = rows.scatter(values, fill=np.inf).reshape(places.shape)
        hard = np.take_along_axis(places, np.argpartition(levels, hardest - 1, axis=1)[:, :hardest], axis=1)
        working = weights > 0
        working[hard[hard >= 0]] = True
        used = np.flatnonzero(working)
        if len(used) > MOST:
            return
        query = rows.query[used]
        units = p[used]
        system = (units @ units.T) * query_gram[query[:, None], query]
        closeness = tolerance * (LATE if step else EARLY)
        scaled, ended = _maximized(system, inverse[used], weights[used] / inverse[used], closeness)
        weights[used] = scaled * inverse[used]
        W = (rows.p[used] * weights[used, None]).T @ rows.queries[query]
        if not np.isfinite(W).all():
            return
        values = rows.values(W)
        yield Round(weights.copy(), W, values)
        if not ended:
            return


def _maximized(
    system: NDArray[np.float32], asked: NDArray[np.float32], first: Array, closeness: float
) -> tuple[Array, bool]:
    """l >= 0 of about the largest c . l - l^T G l / 2, and whether it is that close; G `system`, c `asked`.

    Accelerated, and begun anew where the way turns back.
    """
    direction = np.linspace(1.0, 2.0, len(system), dtype=np.float32)
    for _ in range(5):
        direction = system @ direction
        direction /= max(float(np.linalg.norm(direction)), TINY)
    steepness = np.float32(max(SAFETY * float(direction @ (system @ direction)), TINY))
    now = first.astype(np.float32)
    slope = system @ now
    ahead = now
    slope_ahead = slope
    pace = 1.0
    for step in range(1, STEPS + 1):
        then = np.maximum(ahead + (asked - slope_ahead) / steepness, 0.0)
        slope_then = system @ then
        way = then - now
        if float((ahead - then) @ way) > 0:
            pace = 1.0
        faster = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * pace * pace))
        momentum = np.float32((pace - 1.0) / faster)
        ahead = then + momentum * way
        slope_ahead = slope_then + momentum * (slope_then - slope)
        now = then
        slope = slope_then
        pace = faster
        if step % LOOK == 0:
            square = float(now @ slope)
            if square > 0 and 1.0 - float((slope / asked).min()) * float(asked @ now) / square < closeness:
                return now.astype(np.float64), True
    return now.astype(np.float64), False
