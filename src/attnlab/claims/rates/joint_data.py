"""The data model of joint training: Lemmas 9 and 12."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.parts import Bound, Share, least
from attnlab.claims.rates.joint_samples import FORMS, Case, condition_case, extreme_case, plain_case
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.theory.rates.joint import near_orthogonality, separation

# (n, d, alpha, rho, eta): figure 3, and a larger set. Neither meets Condition 1.
FIGURE_3 = (10, 100.0, 3.0, 0.1, 0.002)
LARGER = (10, 1000.0, 6.0, 0.1, 0.1)
NOT_JUDGED = (("figure 3", FIGURE_3), ("alpha = 6, d = 1000", LARGER))
SIZES = (2, 10)  # sequences in the sets that meet Condition 1


def drawn_cases(trials: int) -> list[Case]:
    """Drawn sets of every size, for both choices of the open constant of Condition 1."""
    return [condition_case(n, trials, form=form) for n in SIZES for form in FORMS]


def _least_event(case: Case) -> Array:
    """Least bound over value of the five events of Lemma 9, per trial; products within a sample too."""
    events = near_orthogonality(case.tokens, case.model, within_samples=True)
    return np.minimum.reduce([*events.values()])


def tokens_are_nearly_orthogonal(scale: Scale) -> Outcome:
    """How often one of the five events fails, on sets that meet Condition 1; the other sets are for comparison."""
    trials = scale.pick(50, 500, 5000)
    cases = drawn_cases(trials)
    delta = cases[0].model.delta
    shares = []
    numbers: dict[str, Any] = {}
    for case in cases:
        ratios = _least_event(case)
        share = Share(f"draws in which an event fails, {case.name}", at_most=delta)
        share.add(ratios < 1)
        shares.append(share)
        numbers[f"least bound / value, {case.name}"] = float(ratios.min())
    for name, sizes in NOT_JUDGED:
        case = plain_case(*sizes, trials)
        events = near_orthogonality(case.tokens, case.model)
        numbers[f"how often, {name} (not judged)"] = {k: float(np.mean(v >= 1)) for k, v in events.items()}
    slack = least(*(case.condition_slack() for case in cases))
    return outcome(*shares, seeds=[0], slack=slack, numbers=numbers)


def half_attended_samples_are_separable(scale: Scale) -> Outcome:
    """Bound over value on sets that meet Condition 1; the other sets are for comparison."""
    trials = scale.pick(50, 500, 5000)
    drawn = Bound("(alpha rho/4) sqrt(d/n) / product, drawn sets")
    extreme = Bound("(alpha rho/4) sqrt(d/n) / product, lengths at the ends of Lemma 9's events")
    cases = drawn_cases(trials)
    for case in cases:
        drawn.add_ratios(1 / separation(case.tokens, case.model))
    extremes = [extreme_case(n) for n in SIZES]
    for case in extremes:
        extreme.add_ratios(1 / separation(case.tokens, case.model))
    numbers = {}
    for name, sizes in NOT_JUDGED:
        case = plain_case(*sizes, trials)
        numbers[f"how often, {name} (not judged)"] = float(np.mean(separation(case.tokens, case.model) >= 1))
    slack = least(*(case.slack() for case in (*cases, *extremes)))
    return outcome(drawn, extreme, seeds=[0], slack=slack, numbers=numbers)


CONDITION = (
    "Condition 1, once with all constants that the proofs ask for, once with its absolute constant at 1",
    "data model DM",
    "T = 2",
)
SETS = (
    "Data model DM with n = 2 and 10, T = 2, alpha = 6, B = 1, at the least d that Condition 1 allows (10^5 to 10^17; "
    "tokens in coordinates of their span)"
)
EXTREME_SETS = "sets of orthogonal tokens with lengths at the ends of the events of Lemma 9"
CLAIMS = [
    Claim(
        id="rates-K17",
        title="Tokens of the data model are nearly orthogonal",
        statement="With probability at least 1 - delta: |x_opt|^2 is within [1/2, 3/2] alpha^2 rho^2 d, |x_t|^2 within "
        "[1/2, 3/2] rho^2 d, and with q = sqrt(d log(10 n^2/delta)) inner products of tokens of different samples are "
        "at most 2 alpha^2 rho^2 q (two planted ones), 2 rho^2 q (two others), 2 alpha rho^2 q (mixed; later proofs "
        "use this one within a sample too, and so is it measured) (Lemma 9).",
        hypotheses=CONDITION,
        setting=f"{SETS}; 50, 500 or 5000 draws of each.",
        tolerance=0.1,
        reason="share of draws in which an event fails, by its interval against delta = 0.1",
        measure=tokens_are_nearly_orthogonal,
    ),
    Claim(
        id="rates-K20",
        title="Samples attended by halves are separable",
        statement="With u = sum_i y_i x_opt, every <y_j (x_opt + x_t), u/|u|> >= (alpha rho/4) sqrt(d/n) (Lemma 12).",
        hypotheses=CONDITION,
        setting=f"{SETS}; and {EXTREME_SETS}.",
        tolerance=1.0,
        reason="bound over value; draws that miss the events of Lemma 9 are judged too",
        measure=half_attended_samples_are_separable,
    ),
]
