"""Random variables and matrices of the start: Lemmas 2 to 6, and how likely the norms of the start are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.integrate import quad
from scipy.special import erf, erfc, k0

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.parts import Bound, Share
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.theory.encoder import lemma_4, lemma_5, lemma_6, probability

# Where moments are compared: these shares of the allowed range of l, on both sides.
RANGE = np.linspace(0.01, 0.999, 60)
BOTH_SIDES = np.concatenate([-RANGE[::-1], RANGE])
# Large delta, where bounds are closest, down to small ones, where the exponent decides.
DELTAS = (0.9, 0.5, 0.2, 0.05, 0.01, 1e-4, 1e-8, 1e-12)
DRAWN_DELTAS = (0.5, 0.2, 0.05)


class Law(NamedTuple):
    """A sub-exponential variable with mean 0, SE(nu, a)."""

    nu: float
    a: float
    log_moment: Callable[[Array], Array]  # log E exp(l X)


class Tailed(NamedTuple):
    """A law whose tail is known: P(|X| >= t)."""

    law: Law
    tail: Callable[[float], float]


def product_law(variance: float) -> Law:
    """The product of two independent N(0, variance)."""
    size = float(np.sqrt(2.0)) * variance
    return Law(size, size, lambda s: -0.5 * np.log1p(-((variance * s) ** 2)))


def product_tail(variance: float) -> Callable[[float], float]:
    """Its tail: the density of the product of two N(0, 1) is K_0(|x|) / pi."""
    return lambda t: 2.0 / np.pi * float(quad(k0, t / variance, np.inf)[0])


def centred_square_tail(t: float) -> float:
    """P(|g^2 - 1| >= t) for g ~ N(0, 1)."""
    low = float(erf(np.sqrt(0.5 * (1.0 - t)))) if t < 1 else 0.0
    return float(erfc(np.sqrt(0.5 * (1.0 + t)))) + low


def centred_exponential_tail(t: float) -> float:
    """P(|E - 1| >= t) for an exponential E of mean 1."""
    low = -float(np.expm1(t - 1.0)) if t < 1 else 0.0
    return float(np.exp(-1.0 - t)) + low


LAWS: dict[str, Tailed] = {
    "product of two N(0, 1)": Tailed(product_law(1.0), product_tail(1.0)),
    "product of two N(0, 0.01)": Tailed(product_law(0.01), product_tail(0.01)),
    "N(0, 4)": Tailed(Law(2.0, 0.0, lambda s: 2.0 * s**2), lambda t: float(erfc(t / np.sqrt(8.0)))),
    "square of N(0, 1), less 1": Tailed(Law(2.0, 4.0, lambda s: -s - 0.5 * np.log1p(-2.0 * s)), centred_square_tail),
    "exponential, less 1": Tailed(Law(2.0, 2.0, lambda s: -s - np.log1p(-s)), centred_exponential_tail),
}


def moment_ratios(law: Law) -> Array:
    """`log E exp(l X) / (nu^2 l^2 / 2)` over |l| < 1 / a, or 5 / nu if a = 0; at most 1 for SE(nu, a)."""
    s = BOTH_SIDES * (1.0 / law.a if law.a > 0 else 5.0 / law.nu)
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = law.log_moment(s)
    logs = np.where(np.isnan(logs), np.inf, logs)  # beyond its range a moment is infinite
    return logs / (0.5 * (law.nu * s) ** 2)


# Lemmas 2 and 3 ---------------------------------------------------------------------------------------------------


def multiple(law: Law, factor: float) -> Law:
    """Lemma 2: s X ~ SE(s nu, s a)."""
    return Law(factor * law.nu, factor * law.a, lambda s: law.log_moment(factor * s))


def total(laws: Sequence[Law]) -> Law:
    """Lemma 3: a sum of independent ones is SE(sqrt(sum nu^2), max a)."""
    nu = float(np.sqrt(sum(law.nu**2 for law in laws)))
    return Law(nu, max(law.a for law in laws), lambda s: np.sum([law.log_moment(s) for law in laws], axis=0))


def multiples_are_sub_exponential(scale: Scale) -> Outcome:
    """Log moments of s X over those that SE(s nu, s a) allows, in closed form; for s = 1 first, the hypothesis."""
    itself = Bound("log moment of X / that of SE(nu, a)")
    multiples = Bound("log moment of s X / that of SE(s nu, s a)")
    factors = 10.0 ** np.linspace(-3.0, 3.0, scale.pick(7, 25, 121))
    for law, _ in LAWS.values():
        itself.add_ratios(moment_ratios(law))
        for factor in factors:
            multiples.add_ratios(moment_ratios(multiple(law, float(factor))))
    return outcome(itself, multiples, instances=len(LAWS) * len(factors))


def sums_are_sub_exponential(scale: Scale) -> Outcome:
    """The same for sums of independent variables of different laws and scales."""
    ratios = Bound("log moment of a sum / that of SE(sqrt(sum nu^2), max a)")
    rng = np.random.default_rng(0)
    names = list(LAWS)
    count = scale.pick(50, 400, 4000)
    for _ in range(count):
        terms = rng.integers(2, 9)
        chosen = rng.choice(names, terms)
        factors = 10.0 ** rng.uniform(-1.0, 1.0, terms)
        laws = [multiple(LAWS[name].law, float(f)) for name, f in zip(chosen, factors, strict=True)]
        ratios.add_ratios(moment_ratios(total(laws)).max())
    return outcome(ratios, seeds=(0,))


# Lemma 4 ----------------------------------------------------------------------------------------------------------


def deviations_are_rare(scale: Scale) -> Outcome:
    """P(|X| >= bound) over delta, from exact tails; and for sums of products, as of W_Q^T W_K, from draws."""
    by_nu = Bound("P(|X| >= bound) / delta, where nu decides")
    by_a = Bound("P(|X| >= bound) / delta, where a decides")
    for law, tail in LAWS.values():
        for delta in DELTAS:
            bound = lemma_4(law.nu, law.a, delta)
            part = by_a if law.a * np.sqrt(2.0 * np.log(2.0 / delta)) > law.nu else by_nu
            part.add(tail(bound), delta)
    shares = {
        delta: Share(f"sums of products at or above the bound, delta = {delta}", at_most=delta)
        for delta in DRAWN_DELTAS
    }
    count = scale.pick(5_000, 50_000, 400_000)
    for terms in (10, 64):
        rng = np.random.default_rng(terms)
        sums = np.einsum("nd,nd->n", rng.standard_normal((count, terms)), rng.standard_normal((count, terms)))
        law = total([LAWS["product of two N(0, 1)"].law] * terms)
        for delta, share in shares.items():
            share.add(np.abs(sums) >= lemma_4(law.nu, law.a, delta))
    return outcome(by_nu, by_a, *shares.values(), seeds=(10, 64), numbers={"delta": list(DELTAS), "draws": count})


# Gaussian matrices ------------------------------------------------------------------------------------------------

LEVELS = (1.5, 2.0, 2.5, 3.0)  # below 1.18 the probability is none
MATRICES = ((64, 16), (64, 60), (16, 4), (16, 64))


def singular_values(rows: int, columns: int, count: int) -> Array:
    """Of Gaussian matrices, largest first, (count, min(rows, columns))."""
    rng = np.random.default_rng((0, rows, columns))
    return np.asarray(np.linalg.svd(rng.standard_normal((count, rows, columns)), compute_uv=False), dtype=np.float64)


def singular_values_concentrate(scale: Scale) -> Outcome:
    """How often singular values leave their interval; and where their quantiles lie in it."""
    count = scale.pick(600, 1500, 5000)
    shares = {
        u: Share(f"outside, u = {u}, wanted at most 2 exp(-u^2 / 2)", at_most=2.0 * float(np.exp(-0.5 * u**2)))
        for u in LEVELS
    }
    largest = Bound("quantile of s_max / (sqrt(r) + sqrt(c) + u)")
    least = Bound("(sqrt(r) - sqrt(c) - u) / quantile of s_min")
    for rows, columns in MATRICES:
        values = singular_values(rows, columns, count)
        for u, share in shares.items():
            low, high = lemma_5(rows, columns, u)
            share.add((values[:, -1] < low) | (values[:, 0] > high))
            allowed = 2.0 * np.exp(-0.5 * u**2)
            largest.add(np.quantile(values[:, 0], 1.0 - allowed), high)
            least.add_at_least(np.quantile(values[:, -1], allowed), low, says=low > 0)
    return outcome(largest, least, *shares.values(), instances=count * len(MATRICES), seeds=(0,))


NARROW = ((2, 1), (4, 3), (6, 5), (8, 7))  # (m, d), where 2 exp(-m / 2) can be told from 0


def start_norms_are_bounded(scale: Scale) -> Outcome:
    """How often |W| > 3 sqrt(m), for d = m - 1, where |W| is largest; and where its quantile lies."""
    count = scale.pick(1000, 5000, 50_000)
    quantiles = Bound("quantile of |W| / (3 sqrt(m))")
    shares = []
    for m, d in NARROW:
        allowed = 2.0 * float(np.exp(-0.5 * m))
        norms = singular_values(m, d, count)[:, 0]
        share = Share(f"|W| > 3 sqrt(m), m = {m}", at_most=allowed)
        share.add(norms > lemma_6(m))
        shares.append(share)
        quantiles.add(np.quantile(norms, 1.0 - allowed), lemma_6(m))
    wide = singular_values(64, 63, 200)[:, 0].max() / lemma_6(64)
    return outcome(
        quantiles,
        *shares,
        instances=count * len(NARROW),
        seeds=(0,),
        numbers={"largest |W| / (3 sqrt(m)) of 200 draws with m = 64, d = 63": float(wide)},
    )


def all_four_norms_are_bounded(scale: Scale) -> Outcome:
    """How often all of |W_Q|, |W_K|, |W_V| <= 3 sqrt(m / d) and |w_O| <= 3 hold at a LeCun start."""
    count = scale.pick(1000, 5000, 50_000)
    shares = []
    for m, d in ((6, 5), (8, 7), (10, 5)):
        rng = np.random.default_rng((1, m, d))
        inside = np.linalg.norm(rng.standard_normal((count, m)) / np.sqrt(m), axis=-1) <= lemma_6(m, 1.0 / m)
        for _ in "QKV":
            weights = rng.standard_normal((count, m, d)) / np.sqrt(d)
            inside &= np.linalg.norm(weights, 2, axis=(-2, -1)) <= lemma_6(m, 1.0 / d)
        share = Share(f"all four norms, m = {m}, d = {d}", at_least=probability("T3", width=m, N=1, T=1, d=d))
        share.add(inside)
        shares.append(share)
    return outcome(*shares, instances=3 * count, seeds=(1,))


SUB_EXPONENTIAL = (
    "Products of two Gaussians (as in W_Q^T W_K), a Gaussian, a centred square and a centred exponential, all with "
    "moments in closed form."
)
GAUSSIAN = "Matrices of independent N(0, 1)"

CLAIMS = [
    Claim(
        id="encoder-L2",
        title="Multiples of sub-exponential variables",
        statement="X ~ SE(nu, a) gives s X ~ SE(s nu, s a) for s > 0, where SE(nu, a) means E exp(l (X - mean)) <= "
        "exp(nu^2 l^2 / 2) for |l| < 1 / a (Lemma 2).",
        hypotheses=("X ~ SE(nu, a); a product of two N(0, v) is SE(sqrt(2) v, sqrt(2) v)",),
        setting=f"{SUB_EXPONENTIAL} s from 0.001 to 1000.",
        reason="log of the moment over what is allowed, both in closed form, on a grid of l; a normal variable attains "
        "it, so the only tolerance is rounding",
        measure=multiples_are_sub_exponential,
    ),
    Claim(
        id="encoder-L3",
        title="Sums of sub-exponential variables",
        statement="Independent X_i ~ SE(nu_i, a_i) give sum X_i ~ SE(sqrt(sum nu_i^2), max a_i) (Lemma 3).",
        hypotheses=("independent X_i ~ SE(nu_i, a_i)",),
        setting=f"{SUB_EXPONENTIAL} Two to eight of them, at scales from 0.1 to 10.",
        reason="log of the moment over what is allowed, both in closed form, on a grid; the only tolerance is rounding",
        measure=sums_are_sub_exponential,
    ),
    Claim(
        id="encoder-L4",
        title="Sub-exponential variables are near their mean",
        statement="For X ~ SE(nu, a), |X - mean| < max(nu sqrt(2 log(2/delta)), 2 a log(2/delta)) with probability at "
        "least 1 - delta (Lemma 4).",
        hypotheses=("X ~ SE(nu, a)",),
        setting=f"{SUB_EXPONENTIAL} delta from 0.9 to 1e-12; sums of 10 and 64 products are drawn.",
        reason="the probability of reaching the bound, from exact tails, over delta; for sums the share of draws, "
        "whose interval decides",
        measure=deviations_are_rare,
    ),
    Claim(
        id="encoder-L5",
        title="Singular values of Gaussian matrices",
        statement="For W (r, c) of independent N(0, 1), sqrt(r) - sqrt(c) - u <= s_min <= s_max <= sqrt(r) + sqrt(c) "
        "+ u with probability at least 1 - 2 exp(-u^2 / 2) (Lemma 5).",
        hypotheses=("none",),
        setting=f"{GAUSSIAN}, 64 x 16, 64 x 60, 16 x 4 and 16 x 64; u = 1.5 to 3.",
        reason="the share of draws outside, by its interval; and, as the same statement in units of singular values, "
        "the quantile at that probability over the end of the interval",
        measure=singular_values_concentrate,
    ),
    Claim(
        id="encoder-L6",
        title="Norms of the weights at the start",
        statement="For W (m, d) of independent N(0, 1) with m > d, |W| <= 3 sqrt(m) with probability at least 1 - "
        "2 exp(-m / 2) (Lemma 6).",
        hypotheses=("m > d",),
        setting=f"{GAUSSIAN} with d = m - 1, m = 2, 4, 6 and 8, where the probability can be told from 1.",
        reason="the share of draws above, by its interval; and the quantile at that probability over 3 sqrt(m)",
        measure=start_norms_are_bounded,
    ),
    Claim(
        id="encoder-L6-T1",
        title="All four norms at once",
        statement="At a LeCun start |W_Q|, |W_K|, |W_V| <= 3 sqrt(m / d) and |w_O| <= 3 hold together with "
        "probability at least 1 - 8 exp(-m / 2): the first term of the probability in Theorems 1 to 3 (Eq. 44, with "
        "the constant of Lemma 6).",
        hypotheses=("m > d",),
        setting="LeCun starts with (m, d) = (6, 5), (8, 7) and (10, 5); for larger m the probability cannot be told "
        "from 1.",
        reason="the share of starts, by its interval",
        measure=all_four_norms_are_bounded,
    ),
]
