"""Statements of the paper that are not measured, and why."""

from __future__ import annotations

from attnlab.claims.leftout import LeftOut

LEFT_OUT: list[LeftOut] = [
    LeftOut(
        id="svm-E10c",
        title="Indices and symbols that are misprinted in Appendix D and Section 5",
        where="SERM-KQ (no sum over k), (86) (no minimum over k), gamma' below (90) (x in place of x'), Corollary 1 "
        "(no '= 0'), the problem of Section 5.3 (z_i for z_ik), Theorem 7, T2 (W of alpha for W(k)), the margins of "
        "Section 4.2 (x_ii for x_it), Lemma 15 (one-to-one between sets of products)",
        why="an index or a symbol each, which the text around it settles; there is nothing to measure",
    ),
    LeftOut(
        id="svm-E11e",
        title="References and words that are misprinted",
        where="Section 3 on Figure 1 (both lines are called solid), Section 7 ('similar to (7)' for (11)), proof of "
        "Theorem 8 (f'_nt without the difference of tokens), Appendix F ('self-attention' where the figures use cross-"
        "attention; Theorem 7 credited with K Q^T)",
        why="words and references, which the text around them settles; there is nothing to measure",
    ),
    LeftOut(
        id="svm-TLZO-4",
        title="Local regularization paths converge only to locally optimal directions",
        where="Section 5.2, which cites Theorem 4 of [TLZO23]",
        why="a theorem of another paper, on another attention model; that descent converges to no other directions is "
        "svm-Def2",
    ),
]
