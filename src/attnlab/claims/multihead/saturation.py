"""What attention can express on the tokenized mixture: Lemma 18, Proposition 3 and their slips."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import logsumexp

from attnlab.claims.claim import Claim, Outcome, erratum, outcome
from attnlab.claims.multihead.mixtures import A3, LOUD, ROUNDING, Setting, assumption_3, every
from attnlab.claims.parts import Bound, Identity, Limit, least
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.tokens import Array, Tokens
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
# Few irrelevant tokens and the most noise allowed: there Proposition 3 is met closest.
DENSE = (Setting(zeta=0.95, S=2.0, noise=0.5, T=20), Setting(zeta=0.9, S=0.5, noise=0.03125))


# Lemma 18 ---------------------------------------------------------------------------------------------------------


def log_mass_outside(scores: Array, top: int) -> Array:
    """log of the softmax mass outside the first `top` entries of each row."""
    return logsumexp(scores[:, top:], axis=-1) - logsumexp(scores, axis=-1)


def softmax_saturates(scale: Scale) -> Outcome:
    """Random scores above A and below B, and all of them at A and at B, for the least Gamma and for larger ones."""
    rows = scale.pick(200, 2_000, 20_000)
    rng = np.random.default_rng(0)
    mass = Bound("mass outside / eps")
    slacks = []
    for T, L in ((2, 1), (5, 2), (10, 1), (10, 9), (50, 7)):
        A = 10.0 ** rng.uniform(-3, 3, rows)
        B = A * rng.choice([0.5 * (1 - 1e-12), 0.4, 0.0, -1.0], rows)
        eps = 10.0 ** rng.uniform(-12, 1, rows)
        spread = rng.choice([0.0, 1.0], rows)[:, None] * A[:, None] * rng.exponential(size=(rows, T))
        scores = np.where(np.arange(T) < L, A[:, None] + spread, B[:, None] - spread)
        Gamma = saturation_scale(A, L / T, eps) * rng.choice([1.0, 1.0, 1.5, 3.0], rows)
        mass.add_logs(log_mass_outside(Gamma[:, None] * scores, L), np.log(eps))
        conditions = {"A": A, "(A - 2 B) / A": (A - 2.0 * B) / A, "Gamma": Gamma}
        slacks.append({name: float(values.min()) for name, values in conditions.items()})
    return outcome(mass, seeds=(0,), slack=least(*slacks))


def softmax_saturates_for_any_sign(scale: Scale) -> Outcome:
    """The lemma as printed: A and B any numbers with A > 2 B, Gamma any number that its condition allows."""
    T, slack = 10, {}
    parts = []
    # A, B, the top scores, how many, eps, and Gamma; None takes the least that is allowed.
    cases = {
        "A = -1, B = -2, L = 3, eps = 0.1, Gamma = 0": (-1.0, -2.0, -1.0, 3, 0.1, 0.0),
        "A = 1, B = 0, L = 9, eps = 0.2, top scores 100": (1.0, 0.0, 100.0, 9, 0.2, None),
    }
    for name, (A, B, top, L, eps, given) in cases.items():
        allowed = 2.0 / A * np.log((T / L - 1.0) / eps)
        Gamma = allowed if given is None else given
        scores = np.where(np.arange(T) < L, top, B)[None]
        mass = Bound(f"mass outside / eps, {name}")
        mass.add_logs(log_mass_outside(Gamma * scores, L), np.log(eps))
        parts.append(mass)
        slack |= {f"{name}: A - 2 B": A - 2.0 * B, f"{name}: Gamma": Gamma - allowed}
    return outcome(*parts, slack=slack)


# Proposition 3 ----------------------------------------------------------------------------------------------------


def attention_expresses(scale: Scale) -> Outcome:
    """Off-relevant attention over eps, and what the margin falls short of S sqrt(T/2) over what it may.

    Noise is the most that is allowed. With few irrelevant tokens and eps near 1 / zeta - 1 both are nearly attained.
    """
    n = scale.pick(50, 1_000, 5_000)
    mass_bound = Bound("attention to irrelevant tokens / eps, Eq. (10)")
    margin_bound = Bound("S sqrt(T/2) - margin / (S sqrt(T/2) - gamma_attn), Eq. (11)")
    slacks = []
    cases = [(mixture, tokens, EPS) for _, mixture, tokens in every(LOUD, n)]
    for setting in DENSE:
        tokens = setting.draw_hostile(20)
        most = 1.0 / setting.zeta - 1.0  # from this eps on Gamma is 0
        cases.append((Mixture.of(tokens), tokens, (0.999 * most, 0.5 * most, 0.1 * most)))
    for mixture, tokens, levels in cases:
        slacks.append({**assumption_3(mixture, tokens), "S^2 / 8 - Z": mixture.S**2 / 8.0 - mixture.noise})
        whole = mixture.S * np.sqrt(mixture.T / 2.0)
        for eps in levels:
            mass, margins = attend(tokens, float(attention_scale(mixture, eps)))
            mass_bound.add(mass.max(-1), eps)
            margin_bound.add(whole - margins, whole - float(gamma_attn(mixture, eps)))
    return outcome(mass_bound, margin_bound, seeds=(0,), slack=least(*slacks))


def attend(tokens: Tokens, Gamma: float) -> tuple[Array, Array]:
    """Attention of every row to irrelevant tokens (n, T), and margins (n,), with Gamma W_opt and U_opt."""
    weights = theta_opt(np.asarray(tokens.info["patterns"]), tokens.T, Gamma)
    attention = attention_of(tokens.x, weights.W)
    relevant = np.asarray(tokens.info["relevant"])
    mass = np.where(relevant[:, None, :], 0.0, attention).sum(-1)
    return mass, tokens.y * np.einsum("td,ntd->n", weights.U, attention @ tokens.x)


# E6 ---------------------------------------------------------------------------------------------------------------


def optimal_weights_have_norm_sqrt_2(scale: Scale, *, printed: bool) -> Outcome:
    """|theta_opt| against sqrt(2), with U_opt from Eq. (123) or from Eq. (9)."""
    norm = Identity("|theta_opt| against sqrt(2)", tolerance=ROUNDING)
    for setting in LOUD:
        patterns = np.asarray(setting.draw(2).info["patterns"])
        weights = theta_opt(patterns, setting.T)
        U = oracle_weights(patterns, setting.T).U / (setting.S * np.sqrt(setting.T)) if printed else weights.U
        norm.add(np.hypot(np.linalg.norm(U), np.linalg.norm(weights.W)) / np.sqrt(2.0) - 1.0)
    return outcome(norm)


# E7 ---------------------------------------------------------------------------------------------------------------


def chain_of_scores(scale: Scale, *, printed: bool) -> Outcome:
    """A >= 3/4 S^4 > middle >= 2 B for noise up to S^2 / 8, each inequality by itself."""
    middle = 1.25 / 4.0 if printed else 5.0 / 8.0
    upper = Bound("3/4 S^4 / A")
    lower = Bound(f"2 B / {middle:g} S^4")
    for S in np.geomspace(0.1, 100.0, scale.pick(7, 31, 301)):
        for share in np.linspace(0.0, 1.0, 11):
            A, B = score_bounds(Mixture(T=10, M=2, S=S, zeta=0.1, Z_mu=share * S**2 / 8, Z_nu=share * S**2 / 8))
            upper.add(0.75 * S**4, A)
            lower.add(2.0 * B, middle * S**4)
    return outcome(upper, lower, slack={"S^2 / 8 - Z": 0.0})


def scale_with_small_signal(scale: Scale, *, power: int) -> Outcome:
    """Slope by log(1 / S) of the constant that Gamma = constant log((1/zeta - 1) / eps) / S^power needs.

    An order sign hides one constant for all signals: a slope above 0 means that there is none as S falls.
    """
    limit = Limit(f"slope of the constant for S^{power} by log(1 / S)", tolerance=0.02)
    signals = np.array([1.0, 0.3, 0.1, 0.03])
    eps, constants, slacks = 0.1, [], []
    for S in signals:
        setting = Setting(zeta=0.1, S=float(S), noise=float(S) ** 2 / 8)
        tokens = setting.draw_hostile(scale.pick(20, 100, 500))
        mixture = Mixture.of(tokens)
        slacks.append({**assumption_3(mixture, tokens), "S^2 / 8 - Z": mixture.S**2 / 8.0 - mixture.noise})
        most = 100.0 * float(attention_scale(mixture, eps))
        if excess(tokens, eps, most) > 0:  # attention does not saturate at all
            limit.leave_unsolved(1)
            continue
        needed = root_scalar(partial(excess, tokens, eps), bracket=(0.0, most), rtol=1e-10).root
        constants.append(needed * S**power / np.log((1.0 / setting.zeta - 1.0) / eps))
    if len(constants) == len(signals):
        limit.add(np.polyfit(np.log(1.0 / signals), np.log(constants), 1)[0])
    by_signal = dict(zip(signals.tolist(), constants, strict=False))
    return outcome(limit, seeds=(0,), slack=least(*slacks), numbers={f"constant for S^{power} by S": by_signal})


def excess(tokens: Tokens, eps: float, Gamma: float) -> float:
    """Largest attention of a row to irrelevant tokens, less eps."""
    return float(attend(tokens, Gamma)[0].max()) - eps


def margin_of_section_7(scale: Scale, *, power: int) -> Outcome:
    """What the margin falls short of S sqrt(T/2), over S sqrt(T/2) eps (1 + 2 Z_mu / S^power), at Gamma_eps."""
    shortfall = Bound(f"S sqrt(T/2) - margin / (S sqrt(T/2) eps (1 + 2 Z_mu / S^{power}))")
    slacks = []
    for S in (0.1, 0.3, 1.0):
        setting = Setting(zeta=0.95, S=S, noise=S**2 / 8, T=20)
        tokens = setting.draw_hostile(20)
        mixture = Mixture.of(tokens)
        slacks.append({**assumption_3(mixture, tokens), "S^2 / 8 - Z": mixture.S**2 / 8.0 - mixture.noise})
        whole = S * np.sqrt(mixture.T / 2.0)
        for share in (0.999, 0.9):
            eps = share * (1.0 / setting.zeta - 1.0)
            _, margins = attend(tokens, float(attention_scale(mixture, eps)))
            shortfall.add(whole - margins, whole * eps * (1.0 + 2.0 * mixture.Z_mu / S**power))
    return outcome(shortfall, seeds=(0,), slack=least(*slacks))


NOISY = "Tokenized mixture, zeta 0.1 to 0.5, S 1 to 3, noise uniform or at its bounds, the most that is allowed"

CLAIMS = [
    Claim(
        id="multihead-C-L18",
        title="Softmax saturates",
        statement="If L entries of r are at least A > 0, all others at most B < A / 2, and Gamma >= (2 / A) log((T / L "
        "- 1) / eps), Gamma >= 0, then softmax(Gamma r) puts at most eps outside these L entries (Lemma 18).",
        hypotheses=("A > 0", "A > 2 B", "Gamma >= 0", "L < T"),
        setting="Random scores of 2 to 50 tokens, A from 10^-3 to 10^3, B up to A / 2, eps from 10^-12 to 10; also all "
        "scores at A and at B with the least Gamma.",
        reason="mass over eps, from logarithms",
        measure=softmax_saturates,
    ),
    erratum(
        id="multihead-E-L18",
        title="Lemma 18 needs A > 0 and Gamma >= 0",
        printed="for any A, B in R with A > 2 B, any eps > 0 and Gamma >= (2 / A) log((T / L - 1) / eps), the mass "
        "outside the top L entries is at most eps (Lemma 18).",
        corrected="add A > 0 and Gamma >= 0. For A < 0 the condition on Gamma says nothing, and for eps > T / L - 1 it "
        "allows a negative Gamma, which turns the order round.",
        slip=Slip(
            kind=Kind.STATEMENT,
            where="Lemma 18, appendix E",
            quote="Further assume A>2B. Fix any ϵ>0",
            charitable="with A > 0 and Gamma >= 0, as where the lemma is used (Proposition 3 has A >= 3/4 S^4, and its "
            "Gamma is positive for eps < 1 / zeta - 1), it holds on all draws and is attained.",
            correction="A > max(0, 2 B) and Gamma >= 0.",
        ),
        hypotheses=("A > 2 B", "Gamma >= (2 / A) log((T / L - 1) / eps)"),
        setting="Ten tokens; A = -1 with Gamma = 0, and A = 1 with eps = 0.2 > T / L - 1.",
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
        setting=f"{NOISY}; also zeta 0.9 and 0.95 with all noise against the label. The least Gamma; eps 0.01 to 0.3, "
        "and up to 1 / zeta - 1.",
        reason="mass over eps, and what the margin falls short of S sqrt(T/2) over what it may, apart",
        measure=attention_expresses,
    ),
    erratum(
        id="multihead-E6",
        title="Normalization of U_opt in appendix E",
        printed="U_opt = 1_d (mu+ - mu-)^T / (S sqrt(T)), normalized so that |theta_opt| = sqrt(2) (Eq. 123).",
        corrected="U_opt = 1_T (mu+ - mu-)^T / (S sqrt(2 T)), as in Eq. (9) of the main text.",
        slip=Slip(
            kind=Kind.TYPO,
            where="Eq. (123), appendix E",
            quote="We first restate the optimal parameters",
            charitable="Eq. (9) of the main text, which it restates, has the factor sqrt(2) and T rows; with it the "
            "norm is sqrt(2) to rounding, and the proof of Proposition 3 uses that one.",
            correction="1 / (S sqrt(2 T)) and 1_T in place of 1 / (S sqrt(T)) and 1_d.",
        ),
        setting="Patterns of three mixtures.",
        reason="relative difference of |theta_opt| from sqrt(2)",
        measure_printed=partial(optimal_weights_have_norm_sqrt_2, printed=True),
        measure_corrected=partial(optimal_weights_have_norm_sqrt_2, printed=False),
    ),
    erratum(
        id="multihead-E7",
        title="The chain of scores in the proof of Proposition 3",
        printed="Z_mu = Z_nu <= S^2 / 8 gives A >= (3/4) S^4 > (1.25/4) S^4 >= 2 B (before Eq. 130).",
        corrected="A >= (3/4) S^4 > (5/8) S^4 >= 2 B; (1.25/4) S^4 bounds B. The proposition stands.",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="proof of Proposition 3, before Eq. (130)",
            quote="A≥3 4S4>1.25 4S4≥2B",
            charitable="read as a bound on B, 1.25/4 S^4 is right; with 2 B <= 5/8 S^4 < 3/4 S^4 the proof goes on as "
            "printed and A > 2 B holds on all points.",
            correction="(5/8) S^4 >= 2 B.",
        ),
        hypotheses=(SMALL,),
        setting="S from 0.1 to 100, noise from 0 to S^2 / 8.",
        reason="right over left side of each step, apart",
        measure_printed=partial(chain_of_scores, printed=True),
        measure_corrected=partial(chain_of_scores, printed=False),
    ),
    erratum(
        id="multihead-E7-scale",
        title="How Gamma scales with the signal",
        printed="attention saturates for all Gamma_eps >~ log((1 / zeta - 1) / eps) / S (section 7).",
        corrected="for Gamma_eps >~ log((1 / zeta - 1) / eps) / S^2, as in Proposition 3. For S >= 1 the printed order "
        "is enough; as S falls no constant is.",
        slip=Slip(
            kind=Kind.TYPO,
            where="section 7, where Proposition 3 is recalled",
            quote="for all Γϵ≳ log((ζ−1−1)/ϵ) S and any ϵ∈(0,1)",
            charitable="with a constant of our choice and S >= 1 it is true, since then 1 / S >= 1 / S^2; below, the "
            "constant that is needed was measured and grows as 1 / S. Proposition 3 itself has S^2.",
            correction="S^2 in place of S.",
        ),
        hypotheses=(A3, SMALL),
        setting="zeta = 0.1, eps = 0.1, S = 1 down to 0.03, noise S^2 / 8 against the label; the least Gamma by "
        "bisection.",
        tolerance=0.02,
        reason="slope, by log(1 / S), of the least constant: 0 if one serves all signals",
        measure_printed=partial(scale_with_small_signal, power=1),
        measure_corrected=partial(scale_with_small_signal, power=2),
    ),
    erratum(
        id="multihead-E7-margin",
        title="The noise in the margin of section 7",
        printed="the margin is S sqrt(T/2) ((1 - eps) - 2 eps Z_mu / S) (section 7).",
        corrected="it is at least S sqrt(T/2) ((1 - eps) - 2 eps Z_mu / S^2), Eq. (11).",
        slip=Slip(
            kind=Kind.TYPO,
            where="section 7, where Proposition 3 is recalled",
            quote="((1−ϵ)−2ϵZµ/S) for all Γϵ",
            charitable="read as a lower bound, and with the Gamma of Proposition 3, it holds for S >= 1, where Z_mu / "
            "S is the larger; for S = 0.1 sequences within the bounds on the noise fall short of it.",
            correction="Z_mu / S^2, and at least in place of equal. Z_mu bounds a product of two vectors, as S^2 is.",
        ),
        hypotheses=(A3, SMALL),
        setting="zeta = 0.95, T = 20, S = 0.1 to 1, noise S^2 / 8 against the label, eps just below 1 / zeta - 1.",
        reason="what the margin falls short of S sqrt(T/2) over what it may",
        measure_printed=partial(margin_of_section_7, power=1),
        measure_corrected=partial(margin_of_section_7, power=2),
    ),
]
