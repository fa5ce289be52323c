"""Statements of the paper that are not measured, and why."""

from __future__ import annotations

from attnlab.claims.leftout import LeftOut

LEFT_OUT: list[LeftOut] = [
    LeftOut(
        id="encoder-P1-deep",
        title="Proposition 1 for a deep encoder",
        where="Appendix C.7",
        why="the paper gives a roadmap and no conditions or constants; what it asks for cannot be checked",
    ),
    LeftOut(
        id="encoder-T1-probability",
        title="The data's part of the probability in Theorems 1 and 2 can be small for a small exponent",
        where="Theorems 1 and 2 and the remark after Theorem 1",
        why="the constant in Omega is not given; with 1 the term exp(-(N-1)^-c / T) is at least exp(-1 / T) for every "
        "exponent, 0.90 for T = 10. The other terms are encoder-L6-T1 and encoder-loss0, the exponent is "
        "encoder-E8-exponent",
    ),
    LeftOut(
        id="encoder-Tab3",
        title="Widths that are known to suffice for other models",
        where="Table 3",
        why="it lists results of other papers; attnlab.theory.encoder.LITERATURE has the table",
    ),
    LeftOut(
        id="encoder-T3-remark",
        title="A small Hessian is sufficient for a small change of the tangent kernel",
        where="Remark after Theorem 3",
        why="cited from Liu et al. (2020), not proved; figures encoder-2, -5 and -9 show how far kernels move",
    ),
]
