"""Random variables and matrices of the start: Lemmas 2 to 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attnlab.claims.claim import Claim, Outcome, within
from attnlab.claims.encoder.batch import largest
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.theory.encoder import lemma_4, lemma_5, lemma_6

RATIO = 1.0 + 1e-9
PARTS = np.concatenate([-np.linspace(0.999, 0.01, 60), np.linspace(0.01, 0.999, 60)])  # of the allowed range
DELTAS = (0.5, 0.2, 0.05, 0.01)


class Law(NamedTuple):
    """A sub-exponential variable with mean 0, SE(nu, a)."""

    nu: float
    a: float
    log_moment: Callable[[Array], Array]  # log E exp(s X)
    draw: Callable[[np.random.Generator, int], Array]


def product(v: float) -> Law:
    """The product of two independent N(0, v)."""
    root = float(np.sqrt(2.0))
    return Law(root * v, root * v, lambda s: -0.5 * np.log1p(-((v * s) ** 2)),
               lambda rng, n: v * rng.standard_normal(n) * rng.standard_normal(n))  # fmt: skip


LAWS: dict[str, Law] = {
    "product of two N(0, 1)": product(1.0),
    "product of two N(0, 0.01)": product(0.01),
    "N(0, 4)": Law(2.0, 0.0, lambda s: 2.0 * s**2, lambda rng, n: 2.0 * rng.standard_normal(n)),
    "chi-square less 1": Law(2.0, 4.0, lambda s: -s - 0.5 * np.log1p(-2.0 * s),
                             lambda rng, n: rng.standard_normal(n) ** 2 - 1.0),
    "exponential less 1": Law(2.0, 2.0, lambda s: -s - np.log1p(-s), lambda rng, n: rng.standard_exponential(n) - 1.0),
}  # fmt: skip


def moment_ratio(log_moment: Callable[[Array], Array], nu: float, a: float) -> float:
    """The largest `log E exp(s X) / (nu^2 s^2 / 2)` over |s| < 1 / a, or 5 / nu if a = 0; at most 1 for SE(nu, a)."""
    s = PARTS * (1.0 / a if a > 0 else 5.0 / nu)
    return float((log_moment(s) / (0.5 * (nu * s) ** 2)).max())


def multiples_are_sub_exponential(scale: Scale) -> Outcome:
    """Log moments of s X over those of SE(s nu, s a), in closed form; first for X itself."""
    factors = 10.0 ** np.linspace(-3.0, 3.0, scale.pick(7, 25, 121))
    own = {name: moment_ratio(law.log_moment, law.nu, law.a) for name, law in LAWS.items()}
    ratios = {
        name: max(moment_ratio(lambda s, c=c, law=law: law.log_moment(c * s), c * law.nu, c * law.a) for c in factors)
        for name, law in LAWS.items()
    }
    return within(largest(*ratios.values()), RATIO, instances=len(LAWS) * len(factors),
                  slack={"1 - log moment / bound of X": 1.0 - max(own.values())},
                  numbers={"largest log moment / bound": ratios})  # fmt: skip


def sums_are_sub_exponential(scale: Scale) -> Outcome:
    """The same for sums of independent variables of different laws and scales."""
    rng, names, worst, least = np.random.default_rng(0), list(LAWS), 0.0, np.inf
    count = scale.pick(50, 400, 4000)
    for _ in range(count):
        parts = [(LAWS[names[rng.integers(len(names))]], 10.0 ** rng.uniform(-1, 1)) for _ in range(rng.integers(2, 9))]
        nu, a = float(np.sqrt(sum((c * law.nu) ** 2 for law, c in parts))), max(c * law.a for law, c in parts)
        ratio = moment_ratio(lambda s, parts=parts: sum(law.log_moment(c * s) for law, c in parts), nu, a)  # type: ignore[arg-type,return-value]
        worst, least = largest(worst, ratio), min(least, ratio)
    return within(worst, RATIO, instances=count, seeds=(0,), numbers={"least ratio": least})


def deviations_are_rare(scale: Scale) -> Outcome:
    """How often |X| reaches the bound, over delta: for each law, and for sums by Lemma 3, as of W_Q^T W_K."""
    count, terms = scale.pick(50_000, 1_000_000, 4_000_000), (1, 10, scale.pick(10, 64, 64))
    rates: dict[str, list[float]] = {}
    for name, law in LAWS.items():
        for n in sorted(set(terms)):
            if n > 1 and not name.startswith("product of two N(0, 1)"):
                continue
            rng = np.random.default_rng(n)
            draws = count // n
            values = np.abs(sum(law.draw(rng, draws) for _ in range(n)))
            nu, a = np.sqrt(n) * law.nu, law.a
            rates[f"{name}, {n} terms" if n > 1 else name] = [
                float(np.mean(values >= lemma_4(float(nu), a, delta))) for delta in DELTAS
            ]
    worst = max(rate / delta for row in rates.values() for rate, delta in zip(row, DELTAS, strict=True))
    return within(worst, 1.0, instances=len(rates) * len(DELTAS), seeds=sorted(set(terms)),
                  numbers={"delta": list(DELTAS), "share of draws at or above the bound": rates,
                           "draws": count})  # fmt: skip


# Gaussian matrices ------------------------------------------------------------------------------------------------

LEVELS = (1.5, 2.0, 2.5, 3.0)  # below 1.18 the probability is none
MATRICES = ((64, 16), (64, 60), (16, 4), (16, 64))


def singular_values(rows: int, columns: int, count: int) -> Array:
    """Of Gaussian matrices, largest first, (count, min(rows, columns))."""
    rng = np.random.default_rng((0, rows, columns))
    return np.asarray(np.linalg.svd(rng.standard_normal((count, rows, columns)), compute_uv=False), dtype=np.float64)


def singular_values_concentrate(scale: Scale) -> Outcome:
    """How often a singular value is outside, over 2 exp(-u^2 / 2)."""
    count, rates = scale.pick(150, 1000, 5000), {}
    for rows, columns in MATRICES:
        values = singular_values(rows, columns, count)
        bounds = [lemma_5(rows, columns, u) for u in LEVELS]
        rates[f"{rows} x {columns}"] = [float(np.mean((values[:, -1] < low) | (values[:, 0] > high)))
                                        for low, high in bounds]  # fmt: skip
    allowed = [float(2.0 * np.exp(-(u**2) / 2.0)) for u in LEVELS]
    worst = max(rate / most for row in rates.values() for rate, most in zip(row, allowed, strict=True))
    return within(worst, 1.0, instances=count * len(MATRICES), seeds=(0,),
                  numbers={"u": list(LEVELS), "allowed": allowed, "share outside": rates})  # fmt: skip


def start_norms_are_bounded(scale: Scale) -> Outcome:
    """How often |W| > 3 sqrt(m), over 2 exp(-m / 2); for m > d up to d = m - 1, where |W| is largest."""
    count, ratios, worst = scale.pick(150, 1000, 5000), {}, 0.0
    for m, d in ((64, 16), (64, 63), (16, 15), (6, 5), (4, 3), (2, 1)):
        norms = singular_values(m, d, count)[:, 0] / lemma_6(m)
        worst = max(worst, float(np.mean(norms > 1.0)) / (2.0 * np.exp(-m / 2.0)))
        ratios[f"{m} x {d}"] = float(norms.max())
    return within(worst, 1.0, instances=6 * count, seeds=(0,), numbers={"largest |W| / (3 sqrt(m))": ratios})


CLAIMS = [
    Claim(
        id="encoder-L2",
        title="Multiples of sub-exponential variables",
        statement="X ~ SE(nu, a) gives s X ~ SE(s nu, s a) for s > 0, where SE(nu, a) means E exp(l (X - mean)) <= "
        "exp(nu^2 l^2 / 2) for |l| < 1 / a (Lemma 2).",
        hypotheses=("X ~ SE(nu, a); a product of two N(0, v) is SE(sqrt(2) v, sqrt(2) v)",),
        tolerance=RATIO,
        reason="log of the moment over its bound, both in closed form, on a grid of l; 1e-9 for rounding, as a normal "
        "variable meets the bound",
        measure=multiples_are_sub_exponential,
    ),
    Claim(
        id="encoder-L3",
        title="Sums of sub-exponential variables",
        statement="Independent X_i ~ SE(nu_i, a_i) give sum X_i ~ SE(sqrt(sum nu_i^2), max a_i) (Lemma 3).",
        hypotheses=("independent X_i ~ SE(nu_i, a_i)",),
        tolerance=RATIO,
        reason="log of the moment over its bound, both in closed form, on a grid; 1e-9 for rounding",
        measure=sums_are_sub_exponential,
    ),
    Claim(
        id="encoder-L4",
        title="Sub-exponential variables are near their mean",
        statement="For X ~ SE(nu, a), |X - mean| < max(nu sqrt(2 log(2/delta)), 2 a log(2/delta)) with probability at "
        "least 1 - delta (Lemma 4).",
        hypotheses=("X ~ SE(nu, a)",),
        tolerance=1.0,
        reason="share of draws that reach the bound, over delta; the shares are so far below delta that their sampling "
        "error does not matter",
        measure=deviations_are_rare,
    ),
    Claim(
        id="encoder-L5",
        title="Singular values of Gaussian matrices",
        statement="For W (r, c) of independent N(0, 1), sqrt(r) - sqrt(c) - u <= s_min <= s_max <= sqrt(r) + sqrt(c) "
        "+ u with probability at least 1 - 2 exp(-u^2 / 2) (Lemma 5).",
        hypotheses=("none",),
        tolerance=1.0,
        reason="share of draws outside, over 2 exp(-u^2 / 2)",
        measure=singular_values_concentrate,
    ),
    Claim(
        id="encoder-L6",
        title="Norms of the weights at the start",
        statement="For W (m, d) of independent N(0, 1) with m > d, |W| <= 3 sqrt(m) with probability at least 1 - "
        "2 exp(-m / 2) (Lemma 6).",
        hypotheses=("m > d",),
        tolerance=1.0,
        reason="share of draws above, over 2 exp(-m / 2)",
        measure=start_norms_are_bounded,
    ),
]  # fmt: skip
