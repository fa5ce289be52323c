"""Statements of the paper that are not measured, and why."""

from __future__ import annotations

from attnlab.claims.leftout import LeftOut

LEFT_OUT: list[LeftOut] = [
    LeftOut(
        id="rates-T6-many",
        title="Gradient descent on several sequences",
        where="Theorem 6 and Remark 2",
        why="|W_t| reaches R_eps only after more than 1e13 steps, and off a ray nobody knows where GD is by then; "
        "rates-K10 has one sequence on a ray",
    ),
    LeftOut(
        id="rates-T7-rate",
        title="The constants of the Polyak step's rate beyond two tokens",
        where="Theorem 7",
        why="no time lies between t_0 and T_0 even where B^2 Lambda is least (rates-K11)",
    ),
    LeftOut(
        id="rates-losses",
        title="Any continuously differentiable decreasing loss",
        where="Section 3.2, first lines",
        why="only the exponential loss and, on the data of figure 2, the logistic one (rates-K28) are measured",
    ),
    LeftOut(
        id="rates-feasible",
        title="(W-SVM) has a solution once d exceeds n and T",
        where="footnote of Section 2",
        why="a theorem of the attention-SVM paper, measured there",
    ),
]
