"""What attention can express on the tokenized mixture: Lemma 18, Proposition 3 and their errata."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.special import logsumexp

from attnlab.claims.claim import Claim, Outcome, erratum, within
from attnlab.claims.multihead.mixtures import A3, LOUD, ROUNDING, Setting, assumption_3, every, least
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.theory.multihead import (
    Mixture,
    attention_of,
    attention_scale,
    gamma_attn,
    oracle_weights,
    saturation_scale,
    score_bounds,
    theta_opt,
)

EPS = (0.3, 0.1, 0.01)
SMALL = "Z_mu = Z_nu <= S^2 / 8"


# Lemma 18 ---------------------------------------------------------------------------------------------------------


def log_mass_outside(scores: Array, top: int) -> Array:
    """log of the softmax mass outside the first `top` entries of each row."""
    return logsumexp(scores[:, top:], axis=-1) - logsumexp(scores, axis=-1)


def softmax_saturates(scale: Scale) -> Outcome:
    """Random scores above A and below B, and all of them at A and at B, for the least Gamma and for larger ones."""
    rows = scale.pick(200, 2_000, 20_000)
    rng, worst, judged, slacks = np.random.default_rng(0), -np.inf, 0, []
    for T, L in ((2, 1), (5, 2), (10, 1), (10, 9), (50, 7)):
        A = 10.0 ** rng.uniform(-3, 3, rows)
        B = A * rng.choice([0.5 * (1 - 1e-12), 0.4, 0.0, -1.0], rows)
        eps = 10.0 ** rng.uniform(-12, 1, rows)
        spread = rng.choice([0.0, 1.0], rows)[:, None] * A[:, None] * rng.exponential(size=(rows, T))
        scores = np.where(np.arange(T) < L, A[:, None] + spread, B[:, None] - spread)
        Gamma = saturation_scale(A, L / T, eps) * rng.choice([1.0, 1.0, 1.5, 3.0], rows)
        worst = max(worst, float((log_mass_outside(Gamma[:, None] * scores, L) - np.log(eps)).max()))
        judged += rows
        room = {"A": A, "(A - 2 B) / A": (A - 2.0 * B) / A, "Gamma": Gamma}
        slacks.append({name: float(values.min()) for name, values in room.items()})
    return within(float(np.exp(worst)), 1.0 + ROUNDING, instances=judged, seeds=(0,), slack=least(slacks))


def softmax_saturates_for_any_sign(scale: Scale) -> Outcome:
    """The lemma as printed: A and B any numbers with A > 2 B, Gamma any number that its condition allows."""
    cases = {
        "A = -1, B = -2, L = 3, eps = 0.1, Gamma = 0": (-1.0, -2.0, -1.0, 3, 0.1, 0.0),
        "A = 1, B = 0, L = 9, eps = 0.2, top scores 100": (1.0, 0.0, 100.0, 9, 0.2, None),
    }
    T, found, slack = 10, {}, {}
    for name, (A, B, top, L, eps, given) in cases.items():
        allowed = 2.0 / A * np.log((T / L - 1.0) / eps)
        Gamma = allowed if given is None else given
        scores = np.where(np.arange(T) < L, top, B)[None]
        found[name] = float(np.exp(log_mass_outside(Gamma * scores, L)[0])) / eps
        slack |= {f"{name}: A - 2 B": A - 2.0 * B, f"{name}: Gamma": Gamma - allowed}
    return within(max(found.values()), 1.0 + ROUNDING, instances=len(found), numbers={"mass over eps": found},
                  slack=slack)  # fmt: skip


# Proposition 3 ----------------------------------------------------------------------------------------------------


def attention_expresses(scale: Scale) -> Outcome:
    """Off-relevant attention over eps, and the promised margin over the margin, at the most noise allowed."""
    n = scale.pick(50, 1_000, 5_000)
    ratios, slacks = {}, []
    for name, mixture, tokens in every(LOUD, n):
        slacks.append({**assumption_3(mixture, tokens), "S^2 / 8 - Z": mixture.S**2 / 8.0 - mixture.noise})
        relevant = np.asarray(tokens.info["relevant"])
        for eps in EPS:
            weights = theta_opt(np.asarray(tokens.info["patterns"]), tokens.T, float(attention_scale(mixture, eps)))
            attention = attention_of(tokens.x, weights.W)
            mass = np.where(relevant[:, None, :], 0.0, attention).sum(-1)
            margins = tokens.y * np.einsum("td,ntd->n", weights.U, attention @ tokens.x)
            found = {"mass / eps": float(mass.max()) / eps,
                     "gamma_attn / margin": float(gamma_attn(mixture, eps) / margins.min())}  # fmt: skip
            ratios[f"{name}, eps={eps:g}"] = found
    passed = sum(max(found.values()) <= 1.0 + ROUNDING for found in ratios.values())
    return within(
        max(max(found.values()) for found in ratios.values()), 1.0 + ROUNDING, instances=len(ratios), seeds=(0,),
        slack=least(slacks), numbers={"passed": f"{passed} of {len(ratios)}", "ratios": ratios, "sequences of each": n},
    )  # fmt: skip


# E6 ---------------------------------------------------------------------------------------------------------------


def optimal_weights_have_norm_sqrt_2(scale: Scale, *, printed: bool) -> Outcome:
    """|theta_opt| less sqrt(2), with U_opt from Eq. (123) or from Eq. (9)."""
    worst, shapes = 0.0, {}
    for setting in LOUD[: scale.pick(2, 3, 3)]:
        patterns = np.asarray(setting.draw(2).info["patterns"])
        found = theta_opt(patterns, setting.T)
        U = oracle_weights(patterns, setting.T).U / (setting.S * np.sqrt(setting.T)) if printed else found.U
        worst = max(worst, abs(float(np.hypot(np.linalg.norm(U), np.linalg.norm(found.W))) - np.sqrt(2.0)))
        shapes[setting.name] = [setting.d if printed else setting.T, setting.d]
    return within(worst, ROUNDING, instances=len(shapes), numbers={"shape of U_opt as written": shapes})


# E7 ---------------------------------------------------------------------------------------------------------------


def chain_of_scores(scale: Scale, *, printed: bool) -> Outcome:
    """2 B over the middle of the chain A >= 3/4 S^4 > middle >= 2 B, and A over 3/4 S^4, for noise up to S^2 / 8."""
    middle = 1.25 / 4.0 if printed else 5.0 / 8.0
    worst, judged = 0.0, 0
    for S in np.geomspace(0.1, 100.0, scale.pick(7, 31, 301)):
        for share in np.linspace(0.0, 1.0, 11):
            A, B = score_bounds(Mixture(T=10, M=2, S=S, zeta=0.1, Z_mu=share * S**2 / 8, Z_nu=share * S**2 / 8))
            worst = max(worst, 2.0 * B / (middle * S**4), 0.75 * S**4 / A)
            judged += 1
    return within(worst, 1.0 + ROUNDING, instances=judged, slack={"S^2 / 8 - Z": 0.0})


def scale_with_small_signal(scale: Scale, *, power: int) -> Outcome:
    """Off-relevant attention over eps for Gamma = (8 sqrt(2 (M + 1)) / 3) log(...) / S^power, as S falls."""
    ratios, slacks = {}, []
    for S in (1.0, 0.3, 0.1, 0.03):
        setting = Setting(zeta=0.1, S=S, noise=S**2 / 8)
        for name, mixture, tokens in every((setting,), scale.pick(20, 100, 500), kinds=("extreme",)):
            slacks.append({**assumption_3(mixture, tokens), "S^2 / 8 - Z": mixture.S**2 / 8.0 - mixture.noise})
            Gamma = float(attention_scale(mixture, EPS[1])) * S ** (2 - power)
            W = theta_opt(np.asarray(tokens.info["patterns"]), tokens.T, Gamma).W
            off = np.where(np.asarray(tokens.info["relevant"])[:, None, :], 0.0, attention_of(tokens.x, W))
            ratios[name] = float(off.sum(-1).max()) / EPS[1]
    return within(max(ratios.values()), 1.0 + ROUNDING, instances=len(ratios), seeds=(0,), slack=least(slacks),
                  numbers={"mass / eps": ratios})  # fmt: skip


CLAIMS = [
    Claim(
        id="multihead-C-L18",
        title="Softmax saturates",
        statement="If L entries of r are at least A > 0, all others at most B < A / 2, and Gamma >= (2 / A) log((T / L "
        "- 1) / eps), Gamma >= 0, then softmax(Gamma r) puts at most eps outside these L entries (Lemma 18).",
        hypotheses=("A > 0", "A > 2 B", "Gamma >= 0", "L < T"),
        tolerance=1.0 + ROUNDING,
        reason="mass over eps, from logarithms",
        measure=softmax_saturates,
    ),
    erratum(
        id="multihead-E-L18",
        title="Lemma 18 needs A > 0 and Gamma >= 0",
        printed="for any A, B in R with A > 2 B, any eps > 0 and Gamma >= (2 / A) log((T / L - 1) / eps), the mass "
        "outside the top L entries is at most eps (Lemma 18).",
        corrected="add A > 0 and Gamma >= 0. For A < 0 the condition on Gamma says nothing, and for eps > T / L - 1 it "
        "allows a negative Gamma, which turns the order round. Proposition 3 has A > 0; its Gamma is positive for "
        "eps < 1 / zeta - 1.",
        hypotheses=("A > 2 B", "Gamma >= (2 / A) log((T / L - 1) / eps)"),
        tolerance=1.0 + ROUNDING,
        reason="mass over eps",
        measure_printed=softmax_saturates_for_any_sign,
        measure_corrected=softmax_saturates,
    ),
    Claim(
        id="multihead-C-PR3",
        title="Attention reaches the margin of the relevant tokens",
        statement="If Gamma >= (8 sqrt(2 (M + 1)) / (3 S^2)) log((1 / zeta - 1) / eps), attention with Gamma W_opt "
        "puts at most eps on irrelevant tokens in every row, and y F(x; U_opt, Gamma W_opt) >= sqrt(T) (S^2 (1 - "
        "eps) - 2 eps Z_mu) / (sqrt(2) S) (Proposition 3).",
        hypotheses=(A3, SMALL),
        tolerance=1.0 + ROUNDING,
        reason="mass over eps, and promised margin over least margin",
        measure=attention_expresses,
    ),
    erratum(
        id="multihead-E6",
        title="Normalization of U_opt in appendix E",
        printed="U_opt = 1_d (mu+ - mu-)^T / (S sqrt(T)), normalized so that |theta_opt| = sqrt(2) (Eq. 123).",
        corrected="U_opt = 1_T (mu+ - mu-)^T / (S sqrt(2 T)), as in Eq. (9) of the main text.",
        tolerance=ROUNDING,
        reason="| |theta_opt| - sqrt(2) |",
        measure_printed=partial(optimal_weights_have_norm_sqrt_2, printed=True),
        measure_corrected=partial(optimal_weights_have_norm_sqrt_2, printed=False),
    ),
    erratum(
        id="multihead-E7",
        title="The chain of scores in the proof of Proposition 3",
        printed="Z_mu = Z_nu <= S^2 / 8 gives A >= (3/4) S^4 > (1.25/4) S^4 >= 2 B (before Eq. 130).",
        corrected="A >= (3/4) S^4 > (5/8) S^4 >= 2 B; (1.25/4) S^4 bounds B. The proposition stands.",
        hypotheses=(SMALL,),
        tolerance=1.0 + ROUNDING,
        reason="right over left side of each step",
        measure_printed=partial(chain_of_scores, printed=True),
        measure_corrected=partial(chain_of_scores, printed=False),
    ),
    erratum(
        id="multihead-E7-scale",
        title="How Gamma scales with the signal",
        printed="attention saturates for Gamma >~ log((1 / zeta - 1) / eps) / S (section 7), with the constant of "
        "Proposition 3.",
        corrected="for Gamma >~ log((1 / zeta - 1) / eps) / S^2, as in Proposition 3; with S no constant serves "
        "all signals.",
        hypotheses=(A3, SMALL),
        tolerance=1.0 + ROUNDING,
        reason="mass over eps as S falls to 0.03",
        measure_printed=partial(scale_with_small_signal, power=1),
        measure_corrected=partial(scale_with_small_signal, power=2),
    ),
]  # fmt: skip
