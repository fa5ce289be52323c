"""Phase one and the start that it gives: Lemma 2, Proposition 2 and their errata."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.stats import binom

from attnlab.claims.claim import Claim, Outcome, erratum, within
from attnlab.claims.multihead.mixtures import (
    A3,
    QUIET,
    ROUNDING,
    Setting,
    assumption_3,
    least,
    linearized_margins,
    started,
)
from attnlab.claims.scale import Scale
from attnlab.data.mixture import head_output
from attnlab.data.tokens import Array, Tokens
from attnlab.theory.multihead import (
    Mixture,
    PhaseOne,
    attention_gain,
    centre,
    gamma_star,
    mean_row,
    oracle_weights,
    parts,
    phase_one,
    proposition_2,
)

FIGURE = Setting(zeta=0.1, S=2.0, noise=0.2)


# Lemma 2 ----------------------------------------------------------------------------------------------------------


def step_from_zero(tokens: Tokens, phase: PhaseOne) -> float:
    """Largest difference of the weights after phase one from a step along a numerical gradient of the loss.

    One head moves away from zero, the others stay: the loss is that of `F / sqrt(H)` for its output F.
    """
    root, reach = np.sqrt(phase.heads), 1e-3 * np.sqrt(phase.heads)
    worst = 0.0
    for name, shape in (("U", (tokens.T, tokens.d)), ("W", (tokens.d, tokens.d))):
        for index in np.ndindex(*shape):
            loss = []
            for sign in (1.0, -1.0):
                moved = {"U": np.zeros((tokens.T, tokens.d)), "W": np.zeros((tokens.d, tokens.d))}
                moved[name][index] = sign * reach
                loss.append(np.logaddexp(0.0, -tokens.y * head_output(tokens.x, moved["U"], moved["W"]) / root).mean())
            step = -phase.alpha * root * (loss[0] - loss[1]) / (2.0 * reach)
            worst = max(worst, float(np.abs(step - phase.weights[name][(slice(None), *index)]).max()))
    return worst


def distances(setting: Setting, sizes: list[int], trials: int, *, corrected: bool) -> Array:
    """Root mean square over trials of |c - its centre| for each n_1, all with seeds of their own."""
    found = []
    for k, n_1 in enumerate(sizes):
        squares = []
        for trial in range(trials):
            tokens = setting.draw(n_1, seed=k * trials + trial)
            gap = mean_row(tokens) - centre(Mixture.of(tokens), tokens.info["oracle"], corrected=corrected)
            squares.append(float(gap @ gap))
        found.append(np.sqrt(np.mean(squares)))
    return np.array(found)


def centre_of_phase_one(scale: Scale, *, corrected: bool = True) -> Outcome:
    """|slope + 1/2| of log |c - centre| by log n_1."""
    sizes = [10**k for k in range(2, scale.pick(4, 5, 5) + 1)]
    trials = scale.pick(16, 16, 100)
    found = distances(FIGURE, sizes, trials, corrected=corrected)
    slope = float(np.polyfit(np.log(sizes), np.log(found), 1)[0])
    tokens = FIGURE.draw(100)
    name = "zeta/4" if corrected else "zeta/2"
    return within(
        abs(slope + 0.5), 0.15, instances=trials * len(sizes), seeds=range(trials * len(sizes)),
        slack=assumption_3(Mixture.of(tokens), tokens),
        numbers={f"{name}: slope": slope, f"{name}: |c - centre| by n_1": dict(zip(sizes, found.tolist(), strict=True)),
                 f"{name}: sqrt(n_1) |c - centre|": float(found[-1] * np.sqrt(sizes[-1]))},
    )  # fmt: skip


def phase_one_is_a_step(scale: Scale) -> Outcome:
    """W = 0 and U = alpha 1 c^T against a step along the numerical gradient; c against its parts; c to (zeta/4) u*."""
    gaps = []
    for seed, setting in enumerate(QUIET):
        tokens = setting.draw(20, seed=seed)
        for heads in (1, 5, 10**6):
            gaps.append(step_from_zero(tokens, phase_one(tokens, heads, seed=seed)))
        p_1, p_2 = parts(tokens)
        spread = setting.zeta / 2.0 * p_1 + (1.0 - setting.zeta) / 2.0 * p_2
        whole = centre(Mixture.of(tokens), tokens.info["oracle"]) + spread
        gaps.append(float(np.abs(whole - mean_row(tokens)).max()))
    found = centre_of_phase_one(scale)
    exact = max(gaps) <= 1e-10
    return within(found.worst if exact and found.worst is not None else np.inf, 0.15, instances=found.instances,
                  seeds=found.seeds, slack=found.slack,
                  numbers={**found.numbers, "largest difference from the numerical step": max(gaps)})  # fmt: skip


# Proposition 2 ----------------------------------------------------------------------------------------------------


def heads_are_short(scale: Scale) -> Outcome:
    """P1: the longest head over sqrt(T) (S + P), with P as measured."""
    ratios = []
    for setting in QUIET:
        for n_1 in 10 ** np.arange(1, scale.pick(3, 4, 5) + 1):
            for heads in (1, 7, 10**12):
                start = started(setting, int(n_1), heads)
                ratios.append(start.phase.longest / (np.sqrt(setting.T) * (setting.S + start.P)))
    return within(max(ratios), 1.0 + ROUNDING, instances=len(ratios), seeds=(1,))


def outputs_are_bounded(scale: Scale) -> Outcome:
    """P2: the exact probability, over the signs, that some output exceeds B_phi, over delta; printed and corrected.

    Outputs are `sum_h alpha_h / sqrt(H)` times `c . sum_t x_t`, so that the probability is that of a binomial.
    """
    ratios, reach = [], []
    for setting in QUIET:
        tokens, start = setting.draw(scale.pick(50, 200, 1_000)), started(setting, 1_000, 8)
        mixture = Mixture.of(tokens)
        largest = float(np.abs(tokens.x.sum(1) @ start.phase.c).max())
        reach.append(largest / (mixture.T * mixture.R * (mixture.S + start.P)))
        for delta in (0.9, 0.5, 0.1, 0.01):
            for corrected in (False, True):
                bound = proposition_2(mixture, start.P, tokens.n, delta, corrected=corrected).B_phi
                for H in (1, 2, 3, 10, 101, 10_000):
                    ratios.append(two_sided_tail(H, bound / largest * np.sqrt(H)) / delta)
    return within(max(ratios), 1.0, instances=len(ratios), seeds=(0, 1),
                  numbers={"largest |c . sum x| over T R (S + P)": max(reach)})  # fmt: skip


def two_sided_tail(H: int, level: float) -> float:
    """Probability that the sum of H random signs is larger than `level` in absolute value."""
    # The sum is 2 k - H for a binomial k; it exceeds the level if k > (H + level) / 2.
    above = binom.sf(np.floor((H + level) / 2.0 + 1e-12), H, 0.5)
    return float(min(1.0, 2.0 * above)) if level >= 0 else 1.0


def within_P(setting: Setting, P: float, *, seed: int) -> PhaseOne:
    """Weights of phase one that end at distance P from the centre, in a random direction."""
    tokens = setting.draw(2)
    p = np.random.default_rng(seed).standard_normal(setting.d)
    c = centre(Mixture.of(tokens), tokens.info["oracle"]) + P * p / np.linalg.norm(p)
    alpha = np.array([1.0, -1.0])
    U = alpha[:, None, None] * np.tile(c, (setting.T, 1))
    return PhaseOne(weights={"U": U, "W": np.zeros((2, setting.d, setting.d))}, counts=np.array([5.0, 3.0]),
                    alpha=alpha, c=c)  # fmt: skip


def linearized_model_separates(scale: Scale) -> Outcome:
    """P3: gamma_star over the least margin of theta*, T^1 and T^2.5; and that margin for other heads and signs.

    Phase one is a step on n_1 sequences, and also a point at the distance from the centre where half of gamma_star is
    left: for T^2.5 that takes more than 10^6 sequences.
    """
    n, ratios, spread, stars, slacks = scale.pick(50, 500, 5_000), {}, 0.0, {}, []
    for setting in QUIET:
        tokens = setting.draw(n, kind="extreme")
        mixture = Mixture.of(tokens)
        slacks.append(assumption_3(mixture, tokens))
        start = started(setting, scale.pick(10_000, 100_000, 100_000), 8)
        cases = {"n_1 samples, T^1": (start.phase, start.P, 1.0)}
        for power in (1.0, 2.5):
            half = 0.5 * gamma_star(mixture, 0.0) / (mixture.T**power * (mixture.S + mixture.Z) ** 3)
            for seed in range(scale.pick(2, 5, 20)):
                cases[f"P set, T^{power:g}, {seed}"] = (within_P(setting, half, seed=seed), half, power)
        for name, (phase, P, power) in cases.items():
            star, margins = gamma_star(mixture, P, power=power), linearized_margins(tokens, phase)
            stars[f"{setting.name}, {name}"] = star
            if star > 0:
                ratios[f"{setting.name}, {name}"] = star / float(margins.min())
        spread = max(spread, spread_over_heads(tokens, setting))
    worst = max(ratios.values())
    return within(
        worst if spread <= ROUNDING else np.inf, 1.0 + ROUNDING, instances=len(ratios), tried=len(stars), seeds=(0, 1),
        slack={**least(slacks), "gamma_star": min(s for s in stars.values() if s > 0)},
        numbers={"gamma_star over least margin": ratios, "relative spread over H and signs": spread,
                 "alpha uniform on [-1, 1]": uniform_steps(scale)},
        note="With alpha uniform on [-1, 1], the other reading of Unif(+-1), attention gains half as much and the "
        "margin can stay below gamma_star.",
    )  # fmt: skip


def spread_over_heads(tokens: Tokens, setting: Setting) -> float:
    """Largest relative difference of the margins of theta* between H = 1 and other heads and signs."""
    first = setting.draw(100, seed=2)
    every = [linearized_margins(tokens, phase_one(first, H, seed=s)) for H in (1, 2, 9, 10**12) for s in (0, 1)]
    return float(max(np.abs(other - every[0]).max() for other in every) / np.abs(every[0]).max())


def uniform_steps(scale: Scale) -> dict[str, float]:
    """The least margin of theta*, and gamma_star, for alpha uniform on [-1, 1]; no noise."""
    setting = Setting(zeta=0.5, S=2.0, noise=0.0)
    tokens = setting.draw(20)
    start = started(setting, scale.pick(1_000, 10_000, 100_000), scale.pick(500, 2_000, 2_000), law="uniform")
    return {"least margin": float(linearized_margins(tokens, start.phase).min()),
            "gamma_star at P = 0": gamma_star(Mixture.of(tokens), 0.0)}  # fmt: skip


# E1 ---------------------------------------------------------------------------------------------------------------


def softmax(v: Array) -> Array:
    """Of one vector."""
    e = np.exp(v - v.max())
    return e / e.sum()


def jacobian_formula(scale: Scale, *, printed: bool) -> Outcome:
    """Both formulas against central differences, at random points and at zero."""
    rng, gaps = np.random.default_rng(0), {"at v": 0.0, "at 0": 0.0}
    for T in (2, 5, 10):
        for draw in range(scale.pick(3, 20, 200)):
            v = np.zeros(T) if draw == 0 else rng.standard_normal(T)
            a, h = softmax(v), 1e-5
            true = np.stack([(softmax(v + h * e) - softmax(v - h * e)) / (2 * h) for e in np.eye(T)], axis=1)
            gap = np.abs(np.diag(a) - np.outer(*((v, v) if printed else (a, a))) - true).max()
            gaps["at v"] = max(gaps["at v"], float(gap))
            if draw == 0:
                at_zero = (np.eye(T) - np.ones((T, T)) / T) / (1.0 if printed else T)
                gaps["at 0"] = max(gaps["at 0"], float(np.abs(at_zero - true).max()))
    worst = min(gaps.values()) if printed else max(gaps.values())
    return within(worst, 1e-8, instances=3 * scale.pick(3, 20, 200) + 3, seeds=(0,), numbers={"largest gap": gaps})


# E4 ---------------------------------------------------------------------------------------------------------------


def halving_step(scale: Scale) -> Outcome:
    """(115) to (116): E|alpha| times the bracket is at least half of it, with |alpha| = 1; right less left side."""
    excess, slacks = {}, []
    for setting in (*QUIET, FIGURE, Setting(zeta=0.1, S=2.0, noise=0.5)):
        tokens = setting.draw(scale.pick(20, 100, 500))
        mixture = Mixture.of(tokens)
        slacks.append(assumption_3(mixture, tokens))
        bracket = 2.0 * attention_gain(mixture)  # (115) over |W*|, for P = 0
        excess[setting.name] = 0.5 * bracket - 1.0 * bracket
    return within(max(excess.values()), ROUNDING, instances=len(excess), seeds=(0,), slack=least(slacks),
                  numbers={"(116) less (115), P = 0": excess})  # fmt: skip


def gain_of_attention(scale: Scale) -> Outcome:
    """With centre zeta/4 and |alpha| = 1: the part of the margin along W* is at least gain - P T (S + Z)^3, all P.

    The part is linear in p, so the worst direction of p is known: it lowers the margin by the norm of a vector.
    """
    excess, slacks = {}, []
    for setting in (*QUIET, FIGURE, Setting(zeta=0.1, S=2.0, noise=0.5)):
        tokens = setting.draw(scale.pick(50, 500, 5_000), kind="extreme")
        mixture = Mixture.of(tokens)
        slacks.append(assumption_3(mixture, tokens))
        W = oracle_weights(np.asarray(tokens.info["patterns"]), tokens.T).W
        W = W / np.linalg.norm(W)
        mean = tokens.x.mean(1, keepdims=True)
        # x^T R_0 x with R_0 = I / T - 11^T / T^2, so that the margin along W* is y c^T (x^T R_0 x) W^T sum_t x_t.
        second = np.einsum("ntd,nte->nde", tokens.x - mean, tokens.x - mean) / tokens.T
        by_c = tokens.y[:, None] * np.einsum("nde,fe,nf->nd", second, W, tokens.x.sum(1))
        at_centre = by_c @ centre(mixture, tokens.info["oracle"])
        per_P = np.linalg.norm(by_c, axis=1).max() / (mixture.T * (mixture.S + mixture.Z) ** 3)
        gain = attention_gain(mixture)
        excess[setting.name] = {"at the centre": float(gain - at_centre.min()) / max(1.0, abs(gain)),
                                "coefficient of P over T (S + Z)^3, less 1": float(per_P) - 1.0}  # fmt: skip
    return within(max(max(found.values()) for found in excess.values()), ROUNDING, instances=len(excess), seeds=(0,),
                  slack=least(slacks), numbers={"excess": excess})  # fmt: skip


# E5 ---------------------------------------------------------------------------------------------------------------


def hoeffding(scale: Scale, *, sides: float) -> Outcome:
    """Exact probability that the mean of H signs leaves 2 sqrt(log(sides / delta) / (2 H)), over delta."""
    ratios = {}
    for H in (1, 2, 3, 5, 10, 100, 1_001)[: scale.pick(5, 7, 7)]:
        for delta in np.linspace(0.01, 0.99, scale.pick(50, 99, 981)):
            level = 2.0 * np.sqrt(np.log(sides / delta) / (2.0 * H))
            ratios[H, round(float(delta), 4)] = two_sided_tail(H, float(H * level)) / delta
    (H, delta), worst = max(ratios.items(), key=lambda item: item[1])
    at = {f"log({sides:g} / delta): worst at": [H, delta]}
    return within(worst, 1.0 + ROUNDING, instances=len(ratios), numbers=at)


CLAIMS = [
    Claim(
        id="multihead-C-L2",
        title="Where phase one ends",
        statement="After one step of size alpha_h sqrt(H) from zero, W_h = 0 and U_h = alpha_h 1 c^T with c = (1 / (2 "
        "n_1)) sum_i y_i mean_t x_it, and c tends to (zeta / 4) u* as n_1^(-1/2) (Lemmas 2 and 16, centre corrected).",
        hypotheses=(A3,),
        tolerance=0.15,
        reason="|slope + 1/2| of log |c - (zeta/4) u*| by log n_1, given that the weights are the step to 1e-10",
        measure=phase_one_is_a_step,
    ),
    erratum(
        id="multihead-E2",
        title="The centre of phase one",
        printed="U_h = alpha_h 1 ((zeta / 2) u* + p)^T with |p| = O(n_1^(-1/2)) (Lemma 2).",
        corrected="U_h = alpha_h 1 ((zeta / 4) u* + p)^T: the mean of y mu_y is u* / 2, not u* (proof of Lemma 17). "
        "The probability is then 1 - 2 delta, since two events are joined.",
        hypotheses=(A3,),
        tolerance=0.15,
        reason="|slope + 1/2| of log |c - centre| by log n_1",
        measure_printed=partial(centre_of_phase_one, corrected=False),
        measure_corrected=partial(centre_of_phase_one, corrected=True),
    ),
    Claim(
        id="multihead-C-PR2a",
        title="After phase one heads are short (P1)",
        statement="|theta_h| <= sqrt(T) (S + P) for all heads, almost surely (Proposition 2).",
        hypotheses=(A3, "|c - (zeta/4) u*| <= P"),
        tolerance=1.0 + ROUNDING,
        reason="left over right side, P as measured",
        measure=heads_are_short,
    ),
    Claim(
        id="multihead-C-PR2b",
        title="After phase one outputs are bounded (P2)",
        statement="With probability 1 - delta over the signs, |output| <= T R (S + P) sqrt(2 log(n / delta)) for all n "
        "sequences (Proposition 2); also with log(2 / delta).",
        hypotheses=(A3, "|c - (zeta/4) u*| <= P", "alpha = +1 or -1"),
        tolerance=1.0,
        reason="exact probability over delta",
        measure=outputs_are_bounded,
    ),
    Claim(
        id="multihead-C-PR2c",
        title="After phase one the linearized model separates (P3)",
        statement="y <grad output, theta*> >= gamma_star of Eq. (7) for every sequence, for every number of heads and "
        "every draw of signs (Proposition 2 promises half of it for many heads).",
        hypotheses=(A3, "|c - (zeta/4) u*| <= P", "gamma_star > 0", "alpha = +1 or -1"),
        tolerance=1.0 + ROUNDING,
        reason="gamma_star over least margin, given that heads and signs change margins by less than 1e-12",
        measure=linearized_model_separates,
    ),
    erratum(
        id="multihead-E1",
        title="The derivative of softmax",
        printed="diag(softmax(v)) - v v^T (review version); at zero I - 11^T / T (section 5.2).",
        corrected="diag(a) - a a^T with a = softmax(v); at zero I / T - 11^T / T^2.",
        tolerance=1e-8,
        reason="largest gap to central differences; for the printed half, the better of the two",
        measure_printed=partial(jacobian_formula, printed=True),
        measure_corrected=partial(jacobian_formula, printed=False),
    ),
    erratum(
        id="multihead-E4",
        title="From (115) to (116)",
        printed="for alpha ~ Unif(+-1), E|alpha| times the bracket of (115) is at least half of it, which is (116).",
        corrected="|alpha| = 1, and half of a negative bracket is more than all of it. With centre (zeta / 4) u* the "
        "first coefficient of (116) is right without halving, and P enters with T (S + Z)^3 in place of T^(5/2) (S + "
        "Z)^3, since softmax'(0) has norm 1 / T.",
        hypotheses=(A3,),
        tolerance=ROUNDING,
        reason="right less left side",
        measure_printed=halving_step,
        measure_corrected=gain_of_attention,
    ),
    erratum(
        id="multihead-E5",
        title="Hoeffding's inequality on both sides",
        printed="if |X_h| <= B, then |mean X_h - E X| <= 2 B sqrt(log(1 / delta) / (2 H)) with probability 1 - delta "
        "(Fact 2, used in Lemmas 12 and 14).",
        corrected="with log(2 / delta). For Lemma 12 one such event serves all sequences.",
        hypotheses=("X_h = +1 or -1 with probability 1/2",),
        tolerance=1.0 + ROUNDING,
        reason="exact probability of leaving, over delta",
        measure_printed=partial(hoeffding, sides=1.0),
        measure_corrected=partial(hoeffding, sides=2.0),
    ),
]  # fmt: skip
