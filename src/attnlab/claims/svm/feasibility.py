"""Feasibility and rank of the max-margin problems: Theorems 1 and 8, Lemma 1."""

from __future__ import annotations

import numpy as np

from attnlab.claims.claim import Claim, Outcome, within
from attnlab.claims.scale import Scale
from attnlab.data import Tokens, sphere
from attnlab.svm import solve_margin, solve_margins

SIZES = ((5, 5), (3, 8), (8, 3))


def every_selection_is_feasible(scale: Scale) -> Outcome:
    """Random selections on random data at the least dimension that the theorem allows, cross- and self-attention."""
    trials = scale.pick(10, 50, 200)
    drawn, infeasible, seeds = 0, 0, range(len(SIZES))
    for seed, (n, T) in zip(seeds, SIZES, strict=True):
        d = max(T - 1, n)
        cross = sphere(n=n, T=T, d=d, seed=seed, trials=trials)
        own = Tokens.self_attention(cross.x, cross.y, cross.v)
        selected = np.random.default_rng(seed).integers(T, size=(trials, n))
        for tokens in (cross, own):
            found = solve_margins(tokens, selected)
            drawn += trials
            infeasible += int((~found.feasible).sum())
    return within(
        infeasible, 0, instances=drawn, seeds=seeds, slack={"d - max(T - 1, n)": 0.0},
        numbers={"sizes (n, T)": [list(size) for size in SIZES], "infeasible": infeasible},
    )  # fmt: skip


def rows_lie_in_the_span_of_the_queries(scale: Scale) -> Outcome:
    """The part of W outside the span of the queries, and the rank, in both norms."""
    seeds = range(scale.pick(5, 20, 100))
    outside, excess = 0.0, 0
    for seed in seeds:
        tokens = sphere(n=4, T=5, d=8, seed=seed)
        selected = np.random.default_rng(seed).integers(5, size=4)
        basis = np.linalg.qr(tokens.z.T)[0]
        for norm in ("frobenius", "nuclear"):
            found = solve_margin(tokens, selected, norm=norm)
            W = found.W
            outside = max(outside, float(np.linalg.norm(W - (W @ basis) @ basis.T) / np.linalg.norm(W)))
            excess = max(excess, (found.rank or 0) - tokens.n)
    return within(outside if excess <= 0 else np.inf, 1e-8, instances=2 * len(seeds), seeds=seeds,
                  numbers={"largest rank - n": excess})  # fmt: skip


CLAIMS = [
    Claim(
        id="svm-T1",
        title="Every selection can be separated in a large enough dimension",
        statement="If d >= max(T - 1, n), then for almost every data set there is, for every selection a, a W with "
        "(x_a - x_t)^T W z >= 1 for all queries and other tokens t (Theorems 1 and 8).",
        hypotheses=("d >= max(T - 1, n)", "tokens and queries in general position"),
        tolerance=0,
        reason="a count of infeasible selections; each has a Farkas proof",
        measure=every_selection_is_feasible,
    ),
    Claim(
        id="svm-L1",
        title="Row space and rank of the max-margin W",
        statement="Every solution W has its row space in span{z_i}, so that rank W <= n (Lemma 1).",
        hypotheses=("the selection can be separated",),
        tolerance=1e-8,
        reason="relative length of the part outside the span; the nuclear gap is at most 1e-8",
        measure=rows_lie_in_the_span_of_the_queries,
    ),
]
