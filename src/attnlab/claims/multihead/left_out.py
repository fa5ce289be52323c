"""Statements of the paper that are not measured, and why."""

from __future__ import annotations

from attnlab.claims.leftout import LeftOut

LEFT_OUT: list[LeftOut] = [
    LeftOut(
        id="multihead-F1",
        title="A subgaussian vector is no longer than C K (sqrt(d) + sqrt(log(1 / delta)))",
        where="Fact 1, Appendix D.1",
        why="a known fact, quoted with an absolute constant that is not named, so no number could contradict it; it is "
        "used for Lemma 17 and Eq. (6) alone, which multihead-C-Eq6 measures with a constant",
    ),
    LeftOut(
        id="multihead-C2-order",
        title="Polylogarithmically many heads give train and test loss of order 1 / n after about n steps",
        where="after Corollary 2, and the examples of sections 1, 5.1 and 7",
        why="orders without constants, for B_phi and gamma of order 1: they follow from the exact bounds, which "
        "multihead-C-C2 and multihead-C-C2g measure; the rate at a larger step is multihead-C-GAP",
    ),
    LeftOut(
        id="multihead-gamma-order",
        title="gamma_star exceeds gamma_lin by an order zeta^2 (1 - zeta) S^4 once n_1 is of order S^2 d",
        where="section 5.1, after Eq. (7)",
        why="an order that Eq. (7) gives by itself with T, M of order 1 and small noise; Eq. (7) is measured in "
        "multihead-C-PR2c, and where the order of the margins ends in multihead-E8",
    ),
]
