"""The max-margin problem in a norm whose unit ball has few corners: a linear program, solved by generating columns.

Every W is a sum of corners V of the unit ball with weights c >= 0 of sum |W|, so the problem is

    min sum c   subject to   sum_V c_V <A_j, V> >= 1,   c >= 0.

It is solved for some corners; its dual multipliers l point at the corners that would shorten W most, those with
<V, A* l> > 1, which join. When there are none, dual(A* l) <= 1 and l is the optimal dual solution. The entrywise l1
norm takes 2 to 10 rounds.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from attnlab.data.tokens import Array
from attnlab.svm.norms import Norm
from attnlab.svm.rows import Rows
from attnlab.svm.solution import MarginSolution

ROUNDS = 200


def solve_by_corners(rows: Rows, norm: Norm, start: MarginSolution, tolerance: float) -> tuple[Array, Array]:
    """W and multipliers of all rows, both up to a factor.

    `start`, the Frobenius solution, is the first of the generators: the first program has a solution because of it.
    """
    assert norm.corners is not None
    above = np.ones(len(rows), dtype=bool) if rows.equal is None else ~rows.equal
    # Unit rows; W counts in lengths of the first one. Then every number in the programs is of order one.
    lengths = np.where(rows.norms > 0, rows.norms, 1.0)
    scale = norm.value(start.W)
    bound = np.where(above, 1.0 / (lengths * scale), 0.0)
    size = float(bound.max())
    generators = np.concatenate([start.W[None] / scale, norm.corners(start.W)])
    images = _images(rows, lengths, generators)
    best: tuple[float, Array, Array] = (0.0, start.W, np.zeros(len(rows)))
    for _ in range(ROUNDS):
        program = linprog(
            np.ones(len(generators)),
            A_ub=-images[above], b_ub=-bound[above] / size, A_eq=images[~above], b_eq=np.zeros(int((~above).sum())),
            method="highs", options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )  # fmt: skip
        if program.status != 0:
            break
        multipliers = np.zeros(len(rows))
        multipliers[above], multipliers[~above] = -program.ineqlin.marginals, program.eqlin.marginals
        multipliers[above] = np.maximum(multipliers[above], 0.0)
        pull = rows.adjoint(multipliers / lengths)
        lower = float(multipliers @ bound) / norm.dual(pull) / size
        W: Array = np.einsum("k,kab->ab", program.x, generators)
        best = (lower, W, multipliers / lengths) if lower >= best[0] else (best[0], W, best[2])
        if program.fun <= (1.0 + 0.1 * tolerance) * best[0]:
            break
        more = norm.corners(pull)
        generators, images = np.concatenate([generators, more]), np.hstack([images, _images(rows, lengths, more)])
    return best[1], best[2]


def _images(rows: Rows, lengths: Array, generators: Array) -> Array:
    """<A_j, V> / |A_j| for every row and generator, (N, k)."""
    return np.stack([rows.values(V) / lengths for V in generators], axis=1)
