"""The start that phase one gives: Proposition 2, Lemmas 13 and 15, and how their text is read."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.stats import binom

from attnlab.claims.claim import Claim, Outcome, erratum, outcome, reading
from attnlab.claims.multihead.gap_conditions import lemma_15, met
from attnlab.claims.multihead.mixtures import A3, QUIET, ROUNDING, Setting, assumption_3, linearized_margins, started
from attnlab.claims.parts import Bound, Identity, Share, least
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.tokens import Array, Tokens
from attnlab.theory.multihead import Mixture, PhaseOne, centre, gamma_star, phase_one, proposition_2

# No noise: the margin of theta* is then gamma_star. Strong signal: attention makes most of it.
CLEAN = Setting(zeta=0.3, S=2.0, noise=0.0)
STRONG = Setting(zeta=0.5, S=3.0, noise=0.01, T=4)
# Of T in the term of P in Eq. (7): what softmax'(0) = I / T - 11^T / T^2 gives, and what is printed.
POWERS = (1.0, 2.5)
# Nearly all tokens are relevant, so that outputs can come close to their bound.
DENSE = Setting(zeta=0.95, S=2.0, noise=0.0, T=20)


def displaced(setting: Setting, p: Array, *, alpha: float = 1.0, corrected: bool = True) -> PhaseOne:
    """Weights of phase one whose row c is the centre plus p, with steps +-alpha in groups of 5 and 3 heads."""
    tokens = setting.draw(2)
    c = centre(Mixture.of(tokens), tokens.info["oracle"], corrected=corrected) + p
    steps = alpha * np.array([1.0, -1.0])
    U = steps[:, None, None] * np.tile(c, (setting.T, 1))
    weights = {"U": U, "W": np.zeros((2, setting.d, setting.d))}
    return PhaseOne(weights=weights, counts=np.array([5.0, 3.0]), alpha=steps, c=c)


def random_direction(d: int, seed: int) -> Array:
    """Of norm 1."""
    p = np.random.default_rng(seed).standard_normal(d)
    return p / np.linalg.norm(p)


# Proposition 2, P1 --------------------------------------------------------------------------------------------------


def heads_are_short(scale: Scale) -> Outcome:
    """The longest head over B2 = sqrt(T) (S + P): after real steps, with P as measured, and far along the oracle."""
    real = Bound("longest head / B2, after a step")
    far = Bound("longest head / B2, p along the oracle, up to 100 S")
    for setting in QUIET:
        mixture = Mixture.of(setting.draw(2))
        for n_1 in 10 ** np.arange(1, scale.pick(3, 4, 5) + 1):
            for heads in (1, 7, 10**12):
                start = started(setting, int(n_1), heads)
                real.add(start.phase.longest, proposition_2(mixture, start.P, 10, 0.1).B2)
        oracle = setting.draw(2).info["oracle"]
        for P in (0.0, setting.S, 100.0 * setting.S):
            phase = displaced(setting, P * np.asarray(oracle) / np.linalg.norm(oracle))
            far.add(phase.longest, proposition_2(mixture, P, 10, 0.1).B2)
    return outcome(real, far, seeds=(1,))


# Proposition 2, P2, and Fact 2 --------------------------------------------------------------------------------------


def two_sided_tail(H: int, level: float) -> float:
    """Probability that the sum of H random signs is larger than `level` in absolute value."""
    # The sum is 2 k - H for a binomial k; it exceeds the level if k > (H + level) / 2.
    above = binom.sf(np.floor((H + level) / 2.0 + 1e-12), H, 0.5)
    return float(min(1.0, 2.0 * above)) if level >= 0 else 1.0


def largest_output(setting: Setting, p: Array, sequences: int) -> tuple[float, Mixture]:
    """Largest |c . sum_t x_t|: outputs are sum_h alpha_h / sqrt(H) times that."""
    tokens = setting.draw(sequences)
    phase = displaced(setting, p)
    return float(np.abs(tokens.x.sum(1) @ phase.c).max()), Mixture.of(tokens)


def outputs_are_bounded(scale: Scale) -> Outcome:
    """The exact probability, over the signs, that some output exceeds B_phi, over delta; printed and corrected.

    It is that of a binomial. With most tokens relevant, p long and along one pattern, outputs come close to T R (S +
    P).
    """
    printed = Bound("P(some output > B_phi) / delta, log(n / delta)")
    corrected = Bound("P(some output > B_phi) / delta, log(2 / delta)")
    deltas = np.linspace(0.01, 0.99, scale.pick(50, 99, 491))
    reach = {}
    for setting, along, P in ((QUIET[0], 0, 0.01), (QUIET[2], 0, 1.0), (DENSE, 0, 200.0)):
        p = P * np.eye(setting.d)[along]
        n = 2 if setting is DENSE else 50
        largest, mixture = largest_output(setting, p, n)
        reach[setting.name] = largest / (mixture.T * mixture.R * (mixture.S + P))
        for delta in deltas:
            for bound, is_corrected in ((printed, False), (corrected, True)):
                level = proposition_2(mixture, P, n, float(delta), corrected=is_corrected).B_phi / largest
                for H in (1, 2, 3, 4, 10, 101, 10_000):
                    bound.add(two_sided_tail(H, level * np.sqrt(H)), delta)
    return outcome(printed, corrected, seeds=(0,), numbers={"largest |c . sum x| over T R (S + P)": reach})


def hoeffding(scale: Scale, *, sides: float) -> Outcome:
    """Exact probability that the mean of H signs leaves 2 sqrt(log(sides / delta) / (2 H)), over delta."""
    outside = Bound(f"P(|mean of H signs| > 2 sqrt(log({sides:g} / delta) / (2 H))) / delta")
    for H in (1, 2, 3, 5, 10, 100, 1_001)[: scale.pick(5, 7, 7)]:
        for delta in np.linspace(0.01, 0.99, scale.pick(50, 99, 981)):
            level = 2.0 * np.sqrt(np.log(sides / delta) / (2.0 * H))
            outside.add(two_sided_tail(H, float(H * level)), delta)
    return outcome(outside)


# Proposition 2, P3 --------------------------------------------------------------------------------------------------


def slope_by_row(tokens: Tokens) -> Array:
    """y d(margin of theta* along W*) / dc, (n, d), for steps of size 1: the margin is linear in c."""
    plus = linearized_margins_at(tokens, np.zeros(tokens.d))
    columns = [linearized_margins_at(tokens, e) - plus for e in np.eye(tokens.d)]
    return np.stack(columns, axis=1)


def linearized_margins_at(tokens: Tokens, c: Array) -> Array:
    """Margins of theta* (n,) at U = 1 c^T, W = 0, one head."""
    weights = {"U": np.tile(c, (1, tokens.T, 1)), "W": np.zeros((1, tokens.d, tokens.d))}
    return linearized_margins(tokens, PhaseOne(weights=weights, counts=np.ones(1), alpha=np.ones(1), c=c))


def linearized_model_separates(scale: Scale) -> Outcome:
    """gamma_star over the least margin of theta*, and what p takes over what it may, with T and with T^2.5.

    Phase one is a step on n_1 sequences, and also a point at the distance from the centre where half of gamma_star is
    left, in random directions and in the worst: for T^2.5 that takes more than 10^6 sequences. Heads and signs should
    not change the margins.
    """
    n = scale.pick(50, 500, 5_000)
    at_centre = Bound("gamma_star / least margin, at the centre")
    halfway = {power: Bound(f"gamma_star with T^{power:g} / least margin, half of it left") for power in POWERS}
    taken = {power: Bound(f"what p takes from the margin / P T^{power:g} (S + Z)^3") for power in POWERS}
    step = Bound("gamma_star with T^1 / least margin, after a step")
    alike = Identity("margins for other H and signs", tolerance=ROUNDING)
    slacks = []
    for setting in (*QUIET, CLEAN):
        tokens = setting.draw(n, kind="extreme")
        mixture = Mixture.of(tokens)
        slacks.append(assumption_3(mixture, tokens))
        whole = gamma_star(mixture, 0.0)
        add_margin(at_centre, tokens, displaced(setting, np.zeros(setting.d)), whole)
        start = started(setting, scale.pick(10_000, 30_000, 100_000), 8)
        add_margin(step, tokens, start.phase, gamma_star(mixture, start.P, power=1.0))
        slopes = slope_by_row(tokens)
        steepest = slopes[np.linalg.norm(slopes, axis=1).argmax()]
        directions = [random_direction(setting.d, seed) for seed in range(scale.pick(2, 5, 20))]
        directions.append(-steepest / np.linalg.norm(steepest))
        for power in POWERS:
            most = mixture.T**power * (mixture.S + mixture.Z) ** 3
            taken[power].add(np.linalg.norm(slopes, axis=1), most)
            P = 0.5 * whole / most
            for direction in directions:
                add_margin(
                    halfway[power], tokens, displaced(setting, P * direction), gamma_star(mixture, P, power=power)
                )
        alike.add(spread_over_heads(tokens, setting))
    note = "Proposition 2 promises half of gamma_star, for many heads: see multihead-C-L15."
    every = (at_centre, *halfway.values(), *taken.values(), step, alike)
    return outcome(*every, seeds=(0, 1), slack=least(*slacks), note=note)


def add_margin(bound: Bound, tokens: Tokens, phase: PhaseOne, star: float) -> None:
    """Where gamma_star is positive, it over the least margin."""
    bound.add_at_least(linearized_margins(tokens, phase).min(), star, says=star > 0)


def spread_over_heads(tokens: Tokens, setting: Setting) -> float:
    """Largest relative difference of the margins of theta* between H = 1 and other heads and signs."""
    first = setting.draw(100, seed=2)
    every = [linearized_margins(tokens, phase_one(first, H, seed=s)) for H in (1, 2, 9, 10**12) for s in (0, 1)]
    return float(max(np.abs(other - every[0]).max() for other in every) / np.abs(every[0]).max())


# Lemma 15 -----------------------------------------------------------------------------------------------------------


def margin_with_many_heads(scale: Scale) -> Outcome:
    """P3 with gamma_star / 2 at the heads of Lemma 15, for alpha of either law.

    The margin depends on alpha through the mean of |alpha| alone, which is 1 for signs and near 1/2 for the interval.
    """
    delta, n = 0.1, 20
    signs = Bound("gamma_star / 2 over the least margin, alpha = +1 or -1")
    interval = Share("least margin >= gamma_star / 2, alpha from [-1, 1]", at_least=1.0 - delta)
    close = Bound("gamma_star / 2 over the median least margin, alpha from [-1, 1]")
    rng = np.random.default_rng(0)
    tokens = STRONG.draw(n, kind="extreme")
    mixture = Mixture.of(tokens)
    P = 1e-3 * gamma_star(mixture, 0.0) / (mixture.T**2.5 * (mixture.S + mixture.Z) ** 3)
    star = gamma_star(mixture, P)
    H = float(np.ceil(proposition_2(mixture, P, n, delta, corrected=False).heads))
    sizes = {"S": mixture.S, "P": P, "star": star, "n": n, "delta": delta, "H": H}
    slack = {**lemma_15(mixture.T, mixture.R, **sizes), **assumption_3(mixture, tokens)}
    p = P * random_direction(STRONG.d, 0)
    if met(lemma_15(mixture.T, mixture.R, **sizes)):
        signs.add_at_least(linearized_margins(tokens, displaced(STRONG, p)).min(), star / 2.0)
        draws = scale.pick(40, 100, 400)
        means = np.array([rng.random(int(H)).mean() for _ in range(draws)])  # of |alpha|
        margins = np.array([linearized_margins(tokens, displaced(STRONG, p, alpha=a)).min() for a in means])
        interval.add(margins >= star / 2.0)
        close.add_at_least(np.median(margins), star / 2.0)
    numbers = {"gamma_star": star, "H": H}
    return outcome(signs, interval, close, seeds=(0,), slack=slack, numbers=numbers)


# E4 -----------------------------------------------------------------------------------------------------------------


def laws_of_alpha(scale: Scale) -> Outcome:
    """The margin under both laws of alpha and both centres, against gamma_star and half of it; P = 0."""
    halved = Identity("mean over [-1, 1] of the margin along W* against half of it at |alpha| = 1", tolerance=ROUNDING)
    signs = Bound("gamma_star / least margin: signs, centre zeta/4")
    printed = Bound("gamma_star / least mean margin: interval, centre zeta/2 as printed")
    mixed = Bound("gamma_star / 2 over least mean margin: interval, centre zeta/4")
    nodes, weights = np.polynomial.legendre.leggauss(20)
    slacks, below = [], {}
    for setting in (*QUIET, CLEAN, STRONG):
        tokens = setting.draw(scale.pick(20, 100, 500), kind="extreme")
        mixture = Mixture.of(tokens)
        slacks.append(assumption_3(mixture, tokens))
        star, nowhere = gamma_star(mixture, 0.0), np.zeros(setting.d)
        at = {}
        for corrected in (True, False):
            full = linearized_margins(tokens, displaced(setting, nowhere, corrected=corrected))
            # sign(alpha) W* makes the margin even in alpha; the kink at 0 is at the edge of the positive half.
            values = [
                linearized_margins(tokens, displaced(setting, nowhere, alpha=a, corrected=corrected))
                for a in (nodes + 1.0) / 2.0
            ]
            mean = np.tensordot(weights / 2.0, values, axes=1)
            by_U = linearized_margins_at(tokens, nowhere)
            halved.add(((mean - by_U) / (full - by_U) - 0.5) / 0.5)
            at[corrected] = full.min(), mean.min()
        signs.add_at_least(at[True][0], star)
        printed.add_at_least(at[False][1], star)
        mixed.add_at_least(at[True][1], star / 2.0)
        below[setting.name] = float(at[True][1] / star)
    numbers = {"least mean margin over gamma_star: interval, centre zeta/4": below}
    return outcome(halved, signs, printed, mixed, seeds=(0,), slack=least(*slacks), numbers=numbers)


NEAR = "|c - (zeta/4) u*| <= P"

CLAIMS = [
    Claim(
        id="multihead-C-PR2a",
        title="After phase one heads are short (P1)",
        statement="|theta_h| <= sqrt(T) (S + P) for all heads, almost surely (Proposition 2).",
        hypotheses=(A3, NEAR),
        setting="Tokenized mixtures of ten tokens; phase one on 10 to 10^5 sequences, and rows displaced along the "
        "oracle by up to 100 S.",
        reason="left over right side, P as measured",
        measure=heads_are_short,
    ),
    Claim(
        id="multihead-C-PR2b",
        title="After phase one outputs are bounded (P2)",
        statement="With probability 1 - delta over the signs, |output| <= T R (S + P) sqrt(2 log(n / delta)) for all n "
        "sequences (Proposition 2); also with log(2 / delta).",
        hypotheses=(A3, NEAR, "alpha = +1 or -1", "n >= 2; for one sequence see multihead-E5"),
        setting="Tokenized mixtures, zeta 0.1 to 0.95, P from 0.01 to 100 S; H 1 to 10^4, delta 0.01 to 0.99.",
        reason="exact probability over delta",
        measure=outputs_are_bounded,
    ),
    Claim(
        id="multihead-C-PR2c",
        title="After phase one the linearized model separates (P3)",
        statement="y <grad output, theta*> >= gamma_star of Eq. (7) for every sequence, for every number of heads and "
        "every draw of signs (Proposition 2 promises half of it for many heads).",
        hypotheses=(A3, NEAR, "gamma_star > 0", "alpha = +1 or -1"),
        setting="Tokenized mixtures of ten tokens, noise at its bounds or none; phase one on 10^4 sequences or more, "
        "and rows displaced by P in random directions and the worst.",
        reason="gamma_star over least margin; heads and signs change margins by less than 1e-12",
        measure=linearized_model_separates,
    ),
    Claim(
        id="multihead-C-L15",
        title="Many heads keep half of the margin",
        statement="If sqrt(H) >= 4 (2 R^3 T (S + P) + sqrt(T) R) sqrt(2 log(n / delta)) / gamma_star, then P3 holds "
        "with gamma_star / 2 with probability 1 - delta (Lemma 15, Proposition 2 as printed).",
        hypotheses=(A3, NEAR, "gamma_star > 0", "heads as asked for, checked apart"),
        setting="zeta = 0.5, S = 3, T = 4, noise 0.01 at its bounds, n = 20, delta = 0.1; alpha = +1 or -1, and "
        "uniform on [-1, 1], 40 draws or more.",
        reason="half of gamma_star over margins; the share of draws that keep it",
        measure=margin_with_many_heads,
    ),
    reading(
        id="multihead-E4",
        title="The law of alpha, and from (115) to (116)",
        statement="For alpha uniform on [-1, 1] the step from (115) to (116) is exact, and with the printed centre "
        "(zeta / 2) u* the mean margin is at least gamma_star. For alpha = +1 or -1 nothing is halved, and with the "
        "true centre (zeta / 4) u* the margin is at least gamma_star. With both the interval and the true centre, half "
        "of gamma_star is left.",
        slip=Slip(
            kind=Kind.READING,
            where="Lemma 13, Eqs. (115) and (116); Proposition 2",
            quote="where the expectation is taken over α∼Unif(±1)",
            charitable="as the uniform law on [-1, 1], E|alpha| = 1/2 and (116) follows exactly; sign(alpha) and the "
            "concentration over heads then make sense too. As random signs, (116) is what (115) gives with the centre "
            "zeta / 4.",
            correction="we take signs elsewhere; both were measured, and P3 with gamma_star / 2, as promised, holds "
            "under both.",
        ),
        hypotheses=(A3, "P = 0"),
        setting="Tokenized mixtures of 4 and 10 tokens, noise at its bounds or none; means over alpha by quadrature.",
        reason="half to rounding; gamma_star, or half of it, over margins",
        measure=laws_of_alpha,
    ),
    erratum(
        id="multihead-E5",
        title="Hoeffding's inequality on both sides",
        printed="if |X_h| <= B, then |mean X_h - E X| <= 2 B sqrt(log(1 / delta) / (2 H)) with probability 1 - delta "
        "(Fact 2).",
        corrected="with log(2 / delta).",
        slip=Slip(
            kind=Kind.CONSTANT,
            where="Fact 2, appendix D",
            quote="Then, for any δ∈(0,1), with probability at least 1−δ it holds that",
            charitable="for one side, as Lemma 14 needs it, it is right. Lemma 12 uses both sides, see "
            "multihead-E5-L12; P2 of Proposition 2 has log(n / delta) and holds for n >= 2, since all sequences share "
            "one sum of signs.",
            correction="log(2 / delta).",
        ),
        hypotheses=("X_h = +1 or -1 with probability 1/2",),
        setting="Exact tails of sums of 1 to 1001 signs.",
        reason="exact probability of leaving, over delta",
        measure_printed=partial(hoeffding, sides=1.0),
        measure_corrected=partial(hoeffding, sides=2.0),
    ),
]
