"""Margins on the tokenized mixture and their order, and the order of rho in the main text."""

from __future__ import annotations

from functools import partial

import numpy as np

from attnlab.claims.claim import Claim, Outcome, erratum, outcome
from attnlab.claims.multihead.mixtures import (
    A3,
    LOUD,
    QUIET,
    ROUNDING,
    Setting,
    assumption_3,
    every,
    linearized_margins,
    started,
)
from attnlab.claims.parts import Bound, Count, Limit, least
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.theory.multihead import (
    Mixture,
    Shape,
    gamma_attn,
    gamma_lin,
    gamma_star,
    head_requirement,
    largest_ordered_signal,
    smoothness,
    theta_opt,
)

# Linear model -----------------------------------------------------------------------------------------------------

FEW = (Setting(zeta=0.5, S=2.0, noise=0.3, T=2), Setting(zeta=0.25, S=1.0, noise=0.5, T=4))


def linear_oracle_keeps_its_margin(scale: Scale) -> Outcome:
    """What noise takes from zeta S sqrt(T/2), over what it may; attained where all of it is against the label."""
    shortfall = Bound("(zeta S sqrt(T/2) - margin) / (zeta S sqrt(T/2) - gamma_lin)")
    slacks = []
    cases = list(every(QUIET + LOUD + FEW, scale.pick(100, 2_000, 20_000)))
    for setting in LOUD:
        tokens = setting.draw_hostile(20)
        cases.append((setting.name, Mixture.of(tokens), tokens))
    for _, mixture, tokens in cases:
        slacks.append(assumption_3(mixture, tokens))
        U = theta_opt(np.asarray(tokens.info["patterns"]), tokens.T).U
        margins = tokens.y * np.einsum("td,ntd->n", U, tokens.x)
        clean = mixture.zeta * mixture.S * np.sqrt(mixture.T / 2.0)
        shortfall.add(np.maximum(clean - margins, 0.0), clean - gamma_lin(mixture))
    return outcome(shortfall, seeds=(0,), slack=least(*slacks))


# Order of the margins ---------------------------------------------------------------------------------------------


def in_order(mixture: Mixture, P: float = 0.0) -> bool:
    """Is gamma_attn >= gamma_star >= gamma_lin, up to rounding?"""
    attn, star, lin = float(gamma_attn(mixture)), gamma_star(mixture, P), gamma_lin(mixture)
    rounding = ROUNDING * (attn + abs(star) + abs(lin))
    return attn >= star - rounding and star >= lin - rounding


def order_has_a_boundary(scale: Scale) -> Outcome:
    """Without noise the order holds up to S^3 = 4 sqrt(M + 1) / (zeta^2 sqrt(T)) and no further: both sides of it."""
    wrong = Count("points on the wrong side of the boundary")
    for T, M in ((10, 2), (4, 1), (50, 5)):
        for zeta in np.arange(1, T) / T:
            edge = largest_ordered_signal(T, M, float(zeta))
            for factor in [1.0 - 1e-9, 1.0 + 1e-9, *np.geomspace(0.1, 10.0, scale.pick(8, 40, 400))]:
                mixture = Mixture(T=T, M=M, S=float(edge * factor), zeta=float(zeta))
                wrong.add(in_order(mixture) != (factor <= 1.0))
    figure = Mixture(T=10, M=2, S=2.0, zeta=0.1)
    margins = {
        "gamma_attn": float(gamma_attn(figure)),
        "gamma_star": gamma_star(figure, 0.0),
        "gamma_lin": gamma_lin(figure),
    }
    edges = {f"zeta={zeta:g}": largest_ordered_signal(10, 2, zeta) for zeta in (0.1, 0.3, 0.5)}
    facts = {"largest S, T=10, M=2": edges, "figure 2, without noise": margins}
    return outcome(wrong, numbers=facts, slack={"Z": 0.0, "P": 0.0})


def order_for_every_signal(scale: Scale) -> Outcome:
    """gamma_star, and the true margin of theta* after phase one, over gamma_attn, as S grows; no noise."""
    formula = Bound("gamma_star at P = 0 / gamma_attn")
    measured = Bound("true margin of theta* / gamma_attn")
    slacks = []
    for S in (1.0, 2.0, 3.0, 6.0):
        setting = Setting(zeta=0.5, S=S, noise=0.0)
        tokens = setting.draw(scale.pick(20, 100, 500))
        mixture = Mixture.of(tokens)
        start = started(setting, scale.pick(1_000, 10_000, 100_000), 8)
        slacks.append(assumption_3(mixture, tokens))
        attn = float(gamma_attn(mixture))
        formula.add(gamma_star(mixture, 0.0), attn)
        measured.add(float(linearized_margins(tokens, start.phase).min()), attn)
    loud = Mixture(T=10, M=2, S=2.0, zeta=0.1, Z_mu=0.2, Z_nu=0.2)
    below = {"gamma_star - gamma_lin, S = 2, zeta = 0.1, Z = 0.2, P = 0": gamma_star(loud, 0.0) - gamma_lin(loud)}
    return outcome(formula, measured, seeds=(0, 1), slack=least(*slacks), numbers=below)


# E9 ---------------------------------------------------------------------------------------------------------------

START = {"T": 10.0, "d": 10.0, "R": 2.0, "g": 1.0}
DISTANCE = 2.0


def log_excess(T: float, d: float, R: float, g: float, *, printed: bool) -> float:
    """log of the exact rho over its order, at the heads that Theorem 1 asks for, |theta - theta_0| = 2."""
    shape, D = Shape(T=int(T), d=int(d), R=R), DISTANCE
    rho = smoothness(shape, D, g, head_requirement(shape, D, g))
    order = d**1.5 * T**1.5 * R**13 * g**2 * D**2 if printed else d * T**2 * R**12 * (D + g) ** 2
    return float(np.log(rho / order))


def order_of_smoothness(scale: Scale, *, printed: bool) -> Outcome:
    """Slope of log(exact rho / its order) by log T, d, R and 1 / g, each by itself."""
    factors = np.geomspace(1e2, 1e6, scale.pick(5, 9, 33))
    parts = []
    for name, value in START.items():
        moved = [value / factor if name == "g" else float(round(factor * value)) for factor in factors]
        ratios = [log_excess(**{**START, name: one}, printed=printed) for one in moved]
        part = Limit(f"slope of log(rho / order) by log {'1/g' if name == 'g' else name}", tolerance=0.01)
        part.add(np.polyfit(np.log(factors), ratios, 1)[0])
        parts.append(part)
    return outcome(*parts, instances=len(parts) * len(factors))


CLAIMS = [
    Claim(
        id="multihead-C-LIN",
        title="Margin of the linear oracle",
        statement="y <U*, x> >= gamma_lin = S sqrt(T/2) (zeta - 2 (1 - zeta) Z_mu / S^2) for U* of norm 1 along the "
        "oracle (Eq. 132).",
        hypotheses=(A3,),
        setting="Tokenized mixtures of 2 to 10 tokens, noise uniform, at its bounds, or all against the label.",
        reason="what noise takes from the margin over what it may",
        measure=linear_oracle_keeps_its_margin,
    ),
    Claim(
        id="multihead-C-ORD",
        title="Where the margins are in order",
        statement="Without noise, gamma_attn >= gamma_star >= gamma_lin exactly if S^3 <= 4 sqrt(M + 1) / (zeta^2 "
        "sqrt(T)).",
        hypotheses=("Z_mu = Z_nu = Z = 0", "P = 0"),
        setting="T = 4, 10, 50, all zeta, S from a tenth to ten times the boundary, and 1e-9 to either side of it.",
        reason="a count of points on the wrong side",
        measure=order_has_a_boundary,
    ),
    erratum(
        id="multihead-E8",
        title="gamma_attn >= gamma_star >= gamma_lin is not universal",
        printed="gamma_attn >= gamma_star >= gamma_lin (after Proposition 3, and section 7).",
        corrected="gamma_star grows as S^4 and gamma_attn as S: without noise the order holds exactly if S^3 <= 4 "
        "sqrt(M + 1) / (zeta^2 sqrt(T)), as in the setup of the figures. The two are normalized differently: |theta*| "
        "= sqrt(2) in the linearized model, |U| = 1 with W as long as it needs to be.",
        slip=Slip(
            kind=Kind.STATEMENT,
            where="section 5.3 after Proposition 3, and section 7",
            quote="γattn≥γ⋆≥γlin and the gap increases with decreasing sparsity",
            charitable="in the setup of figures 2 and 3 (zeta = 0.1, S = 2) it is true: 4.47, 0.59 and 0.45. It is not "
            "an artefact of the bound: the true margin of theta* after phase one exceeds gamma_attn as well, twofold "
            "at zeta = 0.5, S = 3. Section 5.1 takes orders in S, T and M fixed: large S is on the wrong side.",
            correction="say for which S: S^3 <= 4 sqrt(M + 1) / (zeta^2 sqrt(T)) without noise.",
        ),
        hypotheses=(A3,),
        setting="No noise; zeta = 0.5, S = 1 to 6, phase one on 1000 sequences or more.",
        reason="printed: gamma_star, and the true margin, over gamma_attn; corrected: a count of points on the wrong "
        "side",
        measure_printed=order_for_every_signal,
        measure_corrected=order_has_a_boundary,
    ),
    erratum(
        id="multihead-E9",
        title="The order of rho in the main text",
        printed="rho <~ d^(3/2) T^(3/2) R^13 |theta|_(2,inf)^2 |theta - theta_0|^2 (Theorem 1).",
        corrected="at the heads asked for, the term T R^2 / 4 of the exact rho leads: rho <~ d T^2 R^12 (3 D + g)^2, "
        "with a sum of D = |theta - theta_0| and g = |theta|_(2,inf), not a product.",
        slip=Slip(
            kind=Kind.CONSTANT,
            where="Theorem 1, main text",
            quote="d3/2T3/2R13∥θ∥2 2,∞",
            charitable="the appendix has the exact rho (Theorem 3), which is what all other claims use. The printed "
            "order covers growth with d and R; it misses a factor sqrt(T), and that rho does not vanish with "
            "|theta|_(2,inf), which goes to 0 for a target spread over many heads.",
            correction="d T^2 R^12 (3 D + g)^2.",
        ),
        hypotheses=("H as Theorem 1 asks for", "D = 2"),
        setting="Formulas; T, d, R, 1 / g each from 10^2 to 10^6 times 10, 10, 2, 1.",
        tolerance=0.01,
        reason="slope of log(exact rho / order); a positive one has no bound",
        measure_printed=partial(order_of_smoothness, printed=True),
        measure_corrected=partial(order_of_smoothness, printed=False),
    ),
]
