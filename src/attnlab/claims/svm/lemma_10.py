"""Lemma 10: far out no direction descends faster than the max-margin one; true with one sequence only."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.claims.claim import Claim, Outcome, erratum, outcome
from attnlab.claims.matrices import inner, unit
from attnlab.claims.parts import Bound
from attnlab.claims.scale import Scale
from attnlab.claims.svm.dynamics import downhill, equal_score_data, leads_of, margins_of, slack_of_b2, stacked
from attnlab.claims.svm.traps import Traps, traps
from attnlab.claims.verdict import Kind, Slip
from attnlab.data import Tokens, optimal_tokens, scores
from attnlab.data.tokens import Array
from attnlab.svm import solve_margins

PI = 0.1  # the slack of the lemma that is tested
DECADES = (1e1, 1e2, 1e3, 1e4)
SIZES = ((1, 4, 6), (3, 4, 6))


def ratio_of_lemma_10(tokens: Tokens, W: Array, best: Array) -> Array:
    """<grad L(W), W/|W|> / <grad L(W), W_mm/|W_mm|>, which the lemma bounds by 1 + pi for large |W|."""
    direction, _ = downhill(tokens, W)
    return inner(direction, unit(W)) / inner(direction, unit(best))


def lemma_10_printed(scale: Scale) -> Outcome:
    """The ray of each trap's other direction, ever further out."""
    bound = Bound(f"ratio of the two sides / (1 + pi) at |W| = {DECADES[-1]:g} |W_mm|, pi = {PI:g}")
    numbers: dict[str, Any] = {"|W| / |W_mm|": list(DECADES)}
    slack: dict[str, float] = {}
    example: dict[str, Any] = {}
    made = 0
    for name in ("T4", "plain"):
        seeds = 1 if name == "plain" else scale.pick(10, 40, 200)
        found = traps(name, seeds)
        made += seeds
        if found is None:
            continue
        ratios = np.stack([_ratios_on_the_ray(found, i) for i in range(len(found.how))])  # (traps, decades)
        bound.add(ratios[:, -1], 1.0 + PI)
        numbers[name] = {"made": seeds, "meet B.2": len(ratios), "least ratio": ratios.min(0), "largest": ratios.max(0)}
        slack |= {f"{name}: {key}": value for key, value in found.slack.items()}
        far = DECADES[-1] * np.linalg.norm(found.best.W[0]) * unit(found.other.W[0])
        example = example or found.example(0, W=far)
    note = "Along a whole ray the ratio tends to 1 / cos of the two directions: no radius is large enough."
    return outcome(bound, tried=made, numbers=numbers, slack=slack, example=example, note=note)


def _ratios_on_the_ray(found: Traps, trial: int) -> Array:
    best = found.best.W[trial]
    radii = np.array(DECADES) * np.linalg.norm(best)
    W = radii[:, None, None] * unit(found.other.W[trial])
    return ratio_of_lemma_10(stacked(found.tokens[trial], len(radii)), W, best)


def lemma_10_corrected(scale: Scale) -> Outcome:
    """The ratio less 1 against log(N kappa) |W_mm| / |W|, at random W: all of them with one sequence, those that
    separate the best tokens with three."""
    bounds = {n: Bound(f"n = {n}: (ratio - 1) / (log(N kappa) |W_mm| / |W|)") for n, _, _ in SIZES}
    trials = scale.pick(50, 400, 2000)
    slack: dict[str, float] = {}
    drawn = 0
    for seed, (n, T, d) in enumerate(SIZES):
        tokens = equal_score_data(n, T, d, trials, seed)
        best = solve_margins(tokens, optimal_tokens(tokens))
        rng = np.random.default_rng(seed)
        for noise in (0.1, 0.3, 3.0):
            W = unit(unit(best.W) + noise * unit(rng.standard_normal(best.W.shape)))
            W *= (10.0 ** rng.uniform(0.0, 4.0, trials) / best.margin)[:, None, None]
            multiples = np.linalg.norm(W, axis=(-2, -1)) * best.margin
            separates = (margins_of(tokens, W, optimal_tokens(tokens)) >= 0).all((-2, -1)) | (n == 1)
            excess = ratio_of_lemma_10(tokens, W, best.W) - 1.0
            bounds[n].add(excess[separates], (_log_weight_ratio(tokens) / multiples)[separates])
            drawn += trials
        slack |= {f"n = {n}, {key}": value for key, value in slack_of_b2(tokens).items()}
    note = "So R_pi = |W_mm| log(N kappa) / pi will do, with N constraints."
    return outcome(*bounds.values(), tried=drawn, slack=slack, seeds=range(len(SIZES)), note=note)


def _log_weight_ratio(tokens: Tokens) -> Array:
    """log(N kappa) per trial; kappa is 1 for one sequence, else the most that the weights of two sequences differ by.

    The inner products of the lemma are means of margins m over all constraints with weights c_i e^-m, where
    c_i = |l'_i| gap_i s_best^2. Such a mean is at most the least margin plus log(N max c / min c), and the least margin
    is at most |W| / |W_mm|. Where the best token has the largest weight, s_best is from 1/T to 1.
    """
    constraints = np.log(tokens.n * (tokens.T - 1.0))
    if tokens.n == 1:
        return np.full(tokens.trials or 1, constraints)
    gap = leads_of(tokens, optimal_tokens(tokens)).max(-1)
    top = scores(tokens).max(-1)
    most = gap / (1.0 + np.exp(top - gap))
    least = gap / (1.0 + np.exp(top))
    return constraints + np.log(most.max(-1) / least.min(-1)) + 2.0 * np.log(tokens.T)


CLAIMS: list[Claim] = [
    erratum(
        id="svm-L10",
        title="Far out, no direction descends faster than the max-margin one",
        printed="under B.2, for every pi > 0 there is an R such that |W| >= R gives <grad L(W), W/|W|> >= "
        "(1 + pi) <grad L(W), W_mm/|W_mm|> (Lemma 10).",
        corrected="the same for n = 1, and for W that separate the best tokens, with R = |W_mm| log(N kappa) / pi.",
        slip=Slip(
            kind=Kind.STATEMENT,
            where="Lemma 10; its proof argues (31) for a single example",
            quote="Focusing on a single example",
            charitable="R may depend on pi and the data: along the ray of a trap's other direction the ratio of the "
            "two sides does not change from 10 to 10^4 |W_mm|. For W that separate the best tokens, where the proof's "
            "idea works, it holds.",
            correction="For n = 1, or for W that separate the best tokens, with R = |W_mm| log(N kappa) / pi.",
        ),
        hypotheses=("Assumption A (logistic loss)", "B.2: all other scores equal", "a separating W exists"),
        setting="Printed: W on the ray of the other direction of traps al.data.trap('T4', seed), |W| up to 10^4 times "
        "|W_mm|. Corrected: unit tokens with other scores made equal, (n, T, d) = (1, 4, 6) and (3, 4, 6), random W "
        "from 1 to 10^4 times |W_mm|; logistic loss.",
        reason="Printed: ratio of the two sides over 1.1. Corrected: the ratio less 1 over log(N kappa) |W_mm| / |W|, "
        "which an exact inequality keeps below 1.",
        measure_printed=lemma_10_printed,
        measure_corrected=lemma_10_corrected,
    ),
]
