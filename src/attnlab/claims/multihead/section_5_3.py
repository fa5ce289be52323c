"""Section 5.3: why the attention margin is out of reach of the theorems."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from attnlab.claims.claim import Claim, Outcome, erratum, outcome, reading
from attnlab.claims.multihead.conditions import root_of_heads
from attnlab.claims.multihead.mixtures import A3, Setting, assumption_3
from attnlab.claims.parts import Count, Identity, Limit, least
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.theory.multihead import (
    Mixture,
    Shape,
    attention_scale,
    gamma_attn,
    head_requirement,
    oracle_weights,
    theta_opt,
)

# T, d, M, zeta, eps, n: the setup of figure 2, and the smallest one.
CASES = ((10, 4, 2, 0.1, 0.1, 100), (2, 3, 1, 0.5, 0.5, 10))


def target(mixture: Mixture, eps: float, n: int, H: float) -> tuple[float, float]:
    """Distance from zero, and longest head, of U_h = log(n) / (gamma_attn sqrt(H)) U_opt with |W_h| = Gamma_eps."""
    wide = np.log(float(n)) / float(gamma_attn(mixture, eps))
    tall = float(attention_scale(mixture, eps))
    return float(np.hypot(wide, np.sqrt(H) * tall)), float(np.hypot(wide / np.sqrt(H), tall))


def least_requirement(shape: Shape, mixture: Mixture, eps: float, n: int, H: float) -> float:
    """Root of the heads that Theorem 1 asks for, over sqrt(H), for this target."""
    return float(np.sqrt(head_requirement(shape, *target(mixture, eps, n, H)) / H))


def log_ratio_of_case(S: float, H: float, *, case: tuple[int, int, int, float, float, int]) -> float:
    """log of the same, for one of the cases without noise."""
    T, d, M, zeta, eps, n = case
    mixture = Mixture(T=T, M=M, S=S, zeta=zeta)
    return float(np.log(least_requirement(Shape(T=T, d=d, R=mixture.R), mixture, eps, n, H)))


def no_target_is_feasible(scale: Scale) -> Outcome:
    """Feasible points on a grid of S and H; and how the least requirement over sqrt(H), over all S, grows with H."""
    count = scale.pick(13, 49, 193)
    feasible = Count("S and H for which the requirement is met")
    written = Identity("requirement against Theorem 3 written out", tolerance=1e-9)
    growth = Limit("|slope - 1/2| of log(least requirement / sqrt(H)) by log H", tolerance=0.01)
    lowest = {}
    for case in CASES:
        T, d, M, zeta, eps, n = case
        log_ratio = partial(log_ratio_of_case, case=case)
        ratios = []
        for S in np.geomspace(0.1, 1e12, count):
            mixture = Mixture(T=T, M=M, S=float(S), zeta=zeta)
            for H in np.geomspace(1.0, 1e24, count):
                ratios.append(np.exp(log_ratio(float(S), float(H))))
                by_hand = root_of_heads(T, d, mixture.R, *target(mixture, eps, n, float(H))) / np.sqrt(H)
                written.add(ratios[-1] / by_hand - 1.0)
        feasible.add(np.array(ratios) <= 1.0)
        lowest[f"T = {T}, d = {d}, M = {M}, zeta = {zeta:g}, eps = {eps:g}, n = {n}"] = min(ratios)
        growth.add(abs(slope_of_least(log_ratio) - 0.5))
    slack = {"1 / zeta - 1 - eps": min(1.0 / zeta - 1.0 - eps for *_, zeta, eps, _ in CASES)}
    return outcome(feasible, growth, written, slack=slack, numbers={"least requirement over sqrt(H)": lowest})


def slope_of_least(log_ratio: Callable[[float, float], float], *, down: float = 0.0) -> float:
    """Slope by log H of the least over S of log_ratio(S, H), for H from 10^8 to 10^24 and S from 0.1 H^-down to H^2."""
    heads = np.geomspace(1e8, 1e24, 9)
    lowest = []
    for H in heads:
        low, high = np.log(0.1) - down * np.log(H), 2.0 * np.log(H)  # of log S
        values = [np.inf]
        for _ in range(3):  # a grid, then finer ones around its best point
            grid = np.linspace(low, high, 100)
            values = [log_ratio(float(np.exp(s)), float(H)) for s in grid]
            best = int(np.argmin(values))
            low, high = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
        lowest.append(min(values))
    return float(np.polyfit(np.log(heads), lowest, 1)[0])


# Another normalization --------------------------------------------------------------------------------------------


def order_of_requirement(S: float, H: float, *, c: float, rescaled: bool, n: float = 100.0) -> float:
    """log of S^5 |theta|^3 / H^c for a model with H^(-c) in front, |W_h| = 1 / S^2, constants left out.

    |U| is log(n) / S as in the text, or H^(c - 1/2) as large, so that outputs are log(n) for every c.
    """
    log_U = np.log(np.log(n) / S) + ((c - 0.5) * np.log(H) if rescaled else 0.0)
    log_W = 0.5 * np.log(H) - 2.0 * np.log(S)
    log_theta = 0.5 * np.logaddexp(2.0 * log_U, 2.0 * log_W)
    return float(5.0 * np.log(S) + 3.0 * log_theta - c * np.log(H))


def no_normalization_helps(scale: Scale) -> Outcome:
    """Slopes by log H of the least requirement over H^c: 1/2 for every c with outputs kept, else 1 - c."""
    rescaled_U = Limit("|slope - 1/2|, U scaled so that the outputs stay", tolerance=0.02)
    literal = Limit("|slope - (1 - c)|, U as printed", tolerance=0.02)
    table = {}
    for c in scale.pick(
        (0.25, 0.5, 1.0, 2.0), (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0), (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    ):
        slopes = {}
        for rescaled in (True, False):
            slopes[rescaled] = slope_of_least(partial(order_of_requirement, c=c, rescaled=rescaled), down=2.0)
        rescaled_U.add(abs(slopes[True] - 0.5))
        literal.add(abs(slopes[False] - (1.0 - c)))
        table[f"c = {c:g}"] = {"outputs kept": slopes[True], "as printed": slopes[False]}
    return outcome(rescaled_U, literal, numbers={"slope by log H": table})


# E12 --------------------------------------------------------------------------------------------------------------


def exponent_of_heads(scale: Scale, *, power: float) -> Outcome:
    """Is sqrt(H) >= log(n)^5 H^(2p - 1) / C^2 the same as H^(p - power) <= C / log(n)^(5/2)? A count of differences."""
    differ = Count(f"(C, p, H, n) where H^(p - {power:g}) <= C / log(n)^(5/2) is not the same")
    rng, count = np.random.default_rng(0), scale.pick(1_000, 10_000, 100_000)
    p = rng.uniform(0.0, 3.0, count)
    log_C = rng.uniform(-20.0, 20.0, count)
    log_H = rng.uniform(0.0, 40.0, count)
    log_log_n = np.log(rng.uniform(np.log(2.0), 30.0, count))
    left = 0.5 * log_H - (5.0 * log_log_n + (2.0 * p - 1.0) * log_H - 2.0 * log_C)
    right = log_C - 2.5 * log_log_n - (p - power) * log_H
    clear = np.abs(left) > 1e-9
    differ.add(((left >= 0) != (right >= 0))[clear])
    return outcome(differ, tried=count, seeds=(0,))


def gap_of_scores(scale: Scale) -> Outcome:
    """Slope by log S of the least gap between scores of relevant and irrelevant tokens, for W* and W* / |W*|."""
    signals = np.geomspace(0.1, 100.0, scale.pick(7, 13, 31))
    gaps = {"W*": [], "W* / |W*|": []}
    slacks = []
    for S in signals:
        setting = Setting(zeta=0.1, S=float(S), noise=float(S) ** 2 / 8)
        tokens = setting.draw_hostile(20)
        slacks.append(assumption_3(Mixture.of(tokens), tokens))
        patterns = np.asarray(tokens.info["patterns"])
        relevant = np.asarray(tokens.info["relevant"])[:, None, :]
        for name, weights in (("W*", oracle_weights(patterns, tokens.T)), ("W* / |W*|", theta_opt(patterns, tokens.T))):
            scores = tokens.x @ weights.W @ np.swapaxes(tokens.x, -1, -2)  # (n, T, T)
            lowest = np.where(relevant, scores, np.inf).min(-1)
            highest = np.where(relevant, -np.inf, scores).max(-1)
            gaps[name].append(float((lowest - highest).min()))
    parts = []
    for (name, values), power in zip(gaps.items(), (4, 2), strict=True):
        mixed = Count(f"irrelevant tokens that score as much as relevant ones, {name}")
        mixed.add(np.array(values) <= 0)
        slope = Limit(f"|slope - {power}| of the gap of scores by log S, {name}", tolerance=0.01)
        if not mixed.contradictions:
            slope.add(abs(np.polyfit(np.log(signals), np.log(values), 1)[0] - power))
        parts.extend((mixed, slope))
    return outcome(*parts, slack=least(*slacks), seeds=(0,))


CLAIMS = [
    Claim(
        id="multihead-C-53",
        title="The attention margin is out of reach of Theorem 1",
        statement="No U_h = log(n) / (gamma_attn sqrt(H)) U_opt, W_h = (C / H^p) W_opt with |W_h| >= Gamma_eps meets "
        "the head requirement of Theorem 1 from a zero start: the least requirement over sqrt(H), over all S, grows "
        "as sqrt(H) (section 5.3).",
        hypotheses=("eps < 1 / zeta - 1", "S from 0.1 to 1e12, H from 1 to 1e24"),
        setting="Formulas, with |W_h| = Gamma_eps, the least it can be; T = 10, d = 4 and T = 2, d = 3, no noise.",
        reason="a count of feasible points; the slope, which tells a wrong exponent; and the requirement against its "
        "formula written out, which tells a wrong constant",
        measure=no_target_is_feasible,
    ),
    reading(
        id="multihead-C-53c",
        title="Another power of H in front does not help",
        statement="With 1 / H^c in front of the model and outputs kept at log(n), the least over S of S^5 |theta|^3 / "
        "H^c grows as sqrt(H) for every c. With theta as it was constructed for c = 1/2, whose outputs fall as "
        "H^(1/2 - c), it goes as H^(1 - c), and is met for c > 1.",
        slip=Slip(
            kind=Kind.READING,
            where="section 5.3, last paragraph but one",
            quote="It can be shown via the same argument that no such value of c exists for which",
            charitable="the next sentence asks for low empirical loss as well, which needs outputs of log(n): with U "
            "so rescaled no c is feasible, as the paper says.",
            correction="we read it with outputs kept. To the letter, theta as constructed meets the requirement for c "
            "> 1, but its loss then tends to log 2.",
        ),
        setting="Orders with all constants 1; c from 0.1 to 2, H from 10^8 to 10^24, the best S for each.",
        tolerance=0.02,
        reason="slope by log H of the least requirement; above 0 means that no H is enough",
        measure=no_normalization_helps,
    ),
    erratum(
        id="multihead-E12",
        title="An exponent in section 5.3",
        printed="H^(1/2) >~ log(n)^5 H^(2p - 1) / C^2 is the same as H^(p - 1/4) <~ C / log(n)^(5/2).",
        corrected="it is the same as H^(p - 3/4) <~ C / log(n)^(5/2). The contradiction still follows.",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="section 5.3, after Eq. (12)",
            quote="Hp−1/4≲C log5/2(n)",
            charitable="what follows needs only that H^(p - 2) is no larger than this power of H, true for 1/4 and for "
            "3/4: the conclusion stands, see multihead-C-53.",
            correction="3/4 in place of 1/4.",
        ),
        setting="Random C, p, H and n.",
        reason="a count of random (C, p, H, n) where one holds and the other does not",
        measure_printed=partial(exponent_of_heads, power=0.25),
        measure_corrected=partial(exponent_of_heads, power=0.75),
    ),
    reading(
        id="multihead-E12-gap",
        title="The gap between relevance scores",
        statement="The gap between scores of relevant and irrelevant tokens grows as S^4 for W*, and as S^2 for W* / "
        "|W*|.",
        slip=Slip(
            kind=Kind.READING,
            where="section 5.3, before Proposition 3",
            quote="it ensures a gap of O(S2) between relevance scores",
            charitable="W* read as normalized, as section 5.2 does: then the gap is of order S^2, and to scale up by "
            "1 / S^2 is what it takes, as the text says. Eq. (8), which it cites, is for W* as it is.",
            correction="we read W* as normalized there.",
        ),
        hypotheses=(A3,),
        setting="zeta = 0.1, S from 0.1 to 100, noise S^2 / 8 against the label.",
        tolerance=0.01,
        reason="difference of the slope by log S from 4 and from 2",
        measure=gap_of_scores,
    ),
]
