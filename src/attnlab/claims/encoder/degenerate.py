"""Eigenvalues of pooled tokens with more sequences than dimensions: Lemmas 17 to 19, Appendix C.8, and a remark.

*On the Convergence of Encoder-only Shallow Transformers*, Appendices C.8 and D.2. These lemmas ask for N >= Omega(d^4),
so N > d, and then N x N matrices of rank d have the eigenvalue 0. What the proofs need of tokens and kernels is found
with N <= d, or from the kernels themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from attnlab.claims.claim import Outcome, erratum, within
from attnlab.claims.encoder.kernel_limits import first_tokens, power, query_key_product
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.models.encoder import Encoder
from attnlab.theory.encoder import (
    Constants,
    arc_cosine_1,
    assumption_1,
    assumption_4,
    forward,
    lambda_0,
    least_singular_value,
    limiting_ntk,
)
from attnlab.theory.encoder.forward import NAMES, hidden
from attnlab.theory.encoder.ntk import encoder_kernels

T = 6
ROUNDING = 1e-9
FALL = 0.1  # a bound of the order N/d would have the power 0 of N, to this


def tokens(n: int, d: int, seed: int = 0) -> Array:
    """N(0, 1) tokens (n, T, d): the mean token has covariance I / T."""
    return np.random.default_rng([seed, n, d]).standard_normal((n, T, d))


@dataclass(frozen=True, eq=False)
class Pooled:
    """What the lemmas are about, for one draw.

    Attributes:
        N, d: sequences and dimension.
        rows: least eigenvalue of P* P*^T, N x N.
        columns: least eigenvalue of P*^T P*, d x d.
        start: lambda_0 with P = P*, the limit of infinite width, for variance 1.
        start_top: the bounds on it of Eqs. (42) and (43), T C_x^2 / 2.
        start_bottom: P*-bound from below, 1/4 of `rows`.
        attended: lambda_0 with the attended tokens P of a finite width.
        kernel, mean: least and mean eigenvalue of K* for mean pooling.
        covariance: least eigenvalue of the covariance of the sum of tokens, measured (Assumption 4).
    """

    N: int
    d: int
    rows: float
    columns: float
    start: float
    start_top: float
    start_bottom: float
    attended: float
    kernel: float
    mean: float
    covariance: float

    @classmethod
    def draw(cls, n: int, d: int, seed: int) -> Pooled:
        """Of N(0, 1) tokens; the finite width is 1024, with N(0, 1) weights and tau0 = 1/m."""
        x = tokens(n, d, seed)
        star, kernel = x.mean(axis=1), limiting_ntk(x)
        product = query_key_product(1024, d, 1.0, np.random.default_rng([seed, 5]))
        found = lambda_0(star, 1.0)
        return cls(
            N=n, d=d, rows=least_singular_value(star) ** 2, columns=float(np.linalg.eigvalsh(star.T @ star)[0]),
            start=found.value, start_top=0.5 * T * assumption_1(x).C_x ** 2, start_bottom=found.hermite,
            attended=lambda_0(first_tokens(x, product, 1.0 / 1024), 1.0).value,
            kernel=float(np.linalg.eigvalsh(kernel)[0]), mean=float(np.trace(kernel)) / n,
            covariance=assumption_4(x).C_Sigma,
        )  # fmt: skip


@cache
def draws(scale: Scale) -> list[Pooled]:
    """N from d^4 on; for d = 2 not many more, where lambda_0 would be lost to rounding."""
    sizes = scale.pick(
        ((2, (16, 32)), (3, (81, 324))),
        ((2, (16, 32)), (3, (81, 324, 972)), (4, (256, 512, 1024))),
        ((2, (16, 32)), (3, (81, 324, 972, 1944)), (4, (256, 1024, 2048)), (5, (625, 1250, 2500))),
    )
    return [Pooled.draw(n, d, seed) for d, many in sizes for n in many for seed in seeds(scale)]


def seeds(scale: Scale) -> range:
    """Of the tokens with N > d."""
    return range(scale.pick(1, 2, 3))


@cache
def few(scale: Scale) -> list[Pooled]:
    """N <= d."""
    return [Pooled.draw(n, 12, seed) for n in (2, 4, 8, 12) for seed in range(scale.pick(2, 10, 100))]


def slopes(found: list[Pooled], name: str) -> dict[str, float]:
    """Power of N of `name` over N/d, for each d, from the mean over seeds."""
    result = {}
    for d in sorted({f.d for f in found}):
        many = sorted({f.N for f in found if f.d == d})
        means = [np.mean([getattr(f, name) for f in found if (f.N, f.d) == (n, d)]) for n in many]
        result[f"d = {d}, N = {many[0]} to {many[-1]}"] = power(many, np.array(means) / np.array(many))
    return result


def hypotheses(found: list[Pooled]) -> dict[str, float]:
    """N over d^4, and the least eigenvalue of Assumption 4."""
    return {"N / d^4 - 1": min(f.N / f.d**4 for f in found) - 1.0, "C_Sigma": min(f.covariance for f in found)}


# Lemmas 17 to 19 --------------------------------------------------------------------------------------------------


def tall_gram(scale: Scale) -> Outcome:
    """Lemma 17 as printed: 1e-9 N/d over the least eigenvalue of P* P*^T, which is 0."""
    found = draws(scale)
    ratio = max(ROUNDING * f.N / f.d / f.rows if f.rows > 0 else np.inf for f in found)
    return within(ratio, 1.0, instances=len(found), slack=hypotheses(found), seeds=seeds(scale), numbers={
        "N, d, least eigenvalue of P* P*^T": [[f.N, f.d, f.rows] for f in found],
    }, note="P* P*^T is N x N of rank d < N: its least eigenvalue is 0.")  # fmt: skip


def wide_gram(scale: Scale) -> Outcome:
    """The bound of Lemma 5 on the least eigenvalue of P*^T P* that holds with probability 1 - exp(-d), over it.

    sqrt(T) P* is N(0, 1) here, so that bound is (sqrt(N) - sqrt(d) - sqrt(2 d))^2 / T, of the order N.
    """
    found, small = draws(scale), few(scale)
    ratios = [max(0.0, np.sqrt(f.N) - (1.0 + np.sqrt(2.0)) * np.sqrt(f.d)) ** 2 / T / f.columns for f in found]
    broken = any(f.rows <= 0 for f in small) or any(f.rows > 0 for f in found)
    return within(np.inf if broken else max(ratios), 1.0, instances=len(found) + len(small),
                  seeds=seeds(scale), numbers={
        "N, d, least eigenvalue of P*^T P* over N / T": [[f.N, f.d, f.columns * T / f.N] for f in found],
        "N <= d: least eigenvalue of P* P*^T, least": min(f.rows for f in small),
    })  # fmt: skip


def start_grows(scale: Scale, *, name: str) -> Outcome:
    """Lemmas 18 and 19 as printed: by which power of N the eigenvalue falls behind N/d; the mildest d counts."""
    found = draws(scale)
    powers = slopes(found, name)
    note = ("The width it asks for, N^2 / lambda_*^2, is infinite as lambda_* = 0. P = P* stands for that; at width "
            "1024 it is the same." if name == "start" else "")  # fmt: skip
    numbers = {"power of N": powers, f"N, d, {name}": [[f.N, f.d, getattr(f, name)] for f in found]}
    if name == "start":
        numbers["power of N at width 1024"] = slopes(found, "attended")
    return within(min(-p for p in powers.values()), FALL, instances=len(found), slack=hypotheses(found),
                  seeds=seeds(scale), numbers=numbers, note=note)  # fmt: skip


def start_between(scale: Scale) -> Outcome:
    """lambda_0 over its upper bound and the lower bound over lambda_0, for N > d and N <= d; it is positive."""
    found = [*draws(scale), *few(scale)]
    over = max(max(f.start, f.attended) / f.start_top for f in found)
    under = max(f.start_bottom / f.start for f in found)
    return within(max(over, under), 1.0 + ROUNDING, instances=len(found), seeds=seeds(scale), numbers={
        "over the upper bound": over, "lower bound over it": under, "least": min(f.start for f in found),
        "N <= d: lower bound over it": max(f.start_bottom / f.start for f in few(scale)),
    })  # fmt: skip


def kernel_between(scale: Scale) -> Outcome:
    """Least eigenvalue of K* over the mean one, and 1/4 of that of P* P*^T over it; it is positive."""
    found = [*draws(scale), *few(scale)]
    over, under = max(f.kernel / f.mean for f in found), max(0.25 * f.rows / f.kernel for f in found)
    return within(max(over, under), 1.0 + ROUNDING, instances=len(found), seeds=seeds(scale), numbers={
        "over the mean": over, "lower bound over it": under, "least": min(f.kernel for f in found),
        "mean eigenvalues": [min(f.mean for f in found), max(f.mean for f in found)],
    })  # fmt: skip


# Appendix C.8 -----------------------------------------------------------------------------------------------------

D_WIDE, PER_SEQUENCE = 4, 4


@cache
def linear_widths(scale: Scale) -> dict[str, Array]:
    """LeCun networks with tau0 = 1/m and m = 4 N, N >= d^4, sum pooling: medians over seeds, by N."""
    found: dict[str, list[float]] = {}
    for n in scale.pick((256, 512), (256, 512, 1024), (256, 512, 1024, 2048)):
        each = [linear_width(n, seed) for seed in range(scale.pick(4, 4, 8))]
        for name in each[0]:
            found.setdefault(name, []).append(float(np.median([one[name] for one in each])))
    return {name: np.array(values) for name, values in found.items()}


def linear_width(n: int, seed: int) -> dict[str, float]:
    """alpha^2, also over eta_V m N / d; margins of (2) and (3); mean eigenvalue of F F^T; attention."""
    x, network = tokens(n, D_WIDE, seed), Encoder(PER_SEQUENCE * n, scaling="linear", pool="sum")
    rng = np.random.default_rng([seed, n, 7])
    shapes, variances = network.shapes(T, D_WIDE), network.variances(T, D_WIDE)
    weights = {k: np.sqrt(variances[k]) * rng.standard_normal(shape) for k, shape in shapes.items()}
    F, outputs = hidden(x, weights, network.tau0, network.tau1)
    gram = F @ F.T
    alpha = float(np.sqrt(max(0.0, np.linalg.eigvalsh(gram)[0])))
    one = Constants(
        N=n, T=T, d=D_WIDE, width=network.width, tau0=network.tau0, tau1=network.tau1, C_x=assumption_1(x).C_x,
        norms={k: float(np.linalg.norm(weights[w], 2)) for k, w in NAMES.items()}, radius=dict.fromkeys(NAMES, 1.0),
        alpha=alpha, start_loss=0.5 * float(np.sum((outputs - rng.standard_normal(n)) ** 2)),
    )  # fmt: skip
    return {
        "N": float(n), "alpha^2": alpha**2, "margin (2)": one.condition_2.margin, "margin (3)": one.condition_3.margin,
        "alpha^2 d / (eta_V m N)": alpha**2 * D_WIDE**2 / (network.width * n),
        "mean eigenvalue": float(np.trace(gram)) / n,
        "from pooling": float(np.abs(forward(x[:64], weights, network.tau0, 1.0).attention - 1.0 / T).max()),
    }  # fmt: skip


def linear_width_is_enough(scale: Scale) -> Outcome:
    """The power of N by which alpha^2 falls behind eta_V m N/d, and margins fall, at m = 4 N; the mildest counts."""
    found = linear_widths(scale)
    names = ("alpha^2 d / (eta_V m N)", "margin (2)", "margin (3)")
    powers = {name: power(found["N"], found[name]) for name in names}
    return within(min(-p for p in powers.values()), FALL, instances=len(found["N"]), numbers={
        "power of N": powers, **found,
    }, seeds=range(scale.pick(4, 4, 8)), slack={"N / d^4 - 1": min(found["N"]) / D_WIDE**4 - 1.0})  # fmt: skip


def pooling_limits_alpha(scale: Scale) -> Outcome:
    """alpha^2 over the mean eigenvalue of F F^T, for those networks; infinite if attention moves from pooling, or the
    mean is not within a fifth of its limit eta_V m T d / 2, which has no N in it."""
    found = linear_widths(scale)
    ratios = found["alpha^2"] / found["mean eigenvalue"]
    flat = found["mean eigenvalue"] / (0.5 * T * PER_SEQUENCE * found["N"])
    steady = bool(np.all(np.diff(found["from pooling"]) < 0)) and bool((np.abs(flat - 1.0) < 0.2).all())
    numbers = {"alpha^2 over the mean eigenvalue": ratios, "mean eigenvalue over its limit": flat,
               "largest |B - 1/T|": found["from pooling"]}  # fmt: skip
    return within(float(ratios.max()) if steady else np.inf, 1.0, instances=len(ratios), numbers=numbers,
                  seeds=range(scale.pick(4, 4, 8)))  # fmt: skip


# E9: the remark after Lemma 19, and the series in its proof -----------------------------------------------------------


def remark_instances(scale: Scale) -> list[tuple[Encoder, Array, dict[str, Array]]]:
    """Networks with m > N: tokens and weights."""
    network, found = Encoder(24, scaling="linear", init="ntk", pool="sum"), []
    for seed in range(scale.pick(2, 10, 50)):
        rng = np.random.default_rng([seed, 8])
        shapes = network.shapes(T, 12)
        weights = {k: rng.standard_normal(shape) for k, shape in shapes.items()}
        found.append((network, rng.standard_normal((8, T, 12)) / np.sqrt(12), weights))
    return found


def last_layer(scale: Scale, *, printed: bool) -> Outcome:
    """|eigenvalue - alpha^2| / alpha^2, for the least one of F^T F (printed) or of the kernel of w_O; and the largest
    error of the Hermite series of E relu(P* w) relu(P* w)^T, relative. Printed: the least over draws of both."""
    errors, series = [], []
    for network, x, weights in remark_instances(scale):
        F = forward(x, weights, network.tau0, network.tau1).hidden
        alpha = least_singular_value(F) ** 2
        kernel = F.T @ F if printed else encoder_kernels(network, weights, x)["w_O"]
        errors.append(abs(float(np.linalg.eigvalsh(kernel)[0]) - alpha) / alpha)
        rows = x.mean(axis=1)
        lengths = np.ones(len(rows)) if printed else np.linalg.norm(rows, axis=1)
        found = np.outer(lengths, lengths) * hermite_series(rows / lengths[:, None])
        true = arc_cosine_1(rows)
        series.append(float(np.abs(found - true).max() / true.max()))
    worst = min(*errors, *series) if printed else max(*errors, *series)
    return within(worst, ROUNDING, instances=len(errors), seeds=range(len(errors)), numbers={
        "least eigenvalue": [min(errors), max(errors)], "series": [min(series), max(series)],
    }, slack={"m - N": 16.0})  # fmt: skip


def hermite_series(rows: Array) -> Array:
    """sum_s mu_s^2 (rows rows^T)^s, entry by entry, summed: (sqrt(1 - t^2) + t (pi - arccos t)) / (2 pi), |t| <= 1."""
    t = np.clip(rows @ rows.T, -1.0, 1.0)
    return (np.sqrt((1.0 - t) * (1.0 + t)) + t * (np.pi - np.arccos(t))) / (2.0 * np.pi)


TALL = ("N >= d^4 and Assumption 4 (measured); N and d are in the numbers",)
CLAIMS = [
    erratum(
        id="encoder-L17",
        title="Least eigenvalue of the pooled tokens",
        printed="for N >= Omega(d^4) the least eigenvalue of P* P*^T is at least Theta(N/d) (Lemma 17; "
        "its proof takes it for that of P*^T P*; N x N and d x d Gram matrices share only non-zero eigenvalues).",
        corrected="that is so of the d x d matrix P*^T P*, whose least eigenvalue is about N times that of the "
        "covariance; P* P*^T has the eigenvalue 0 if N > d, and is positive definite for N <= d (generic tokens).",
        hypotheses=TALL,
        tolerance=1.0,
        reason="(sqrt(N) - sqrt(d) - sqrt(2 d))^2 / T, which Lemma 5 gives with probability 1 - exp(-d), over the "
        "eigenvalue of P*^T P*; infinite if P* P*^T is singular for N <= d or is not for N > d",
        measure_printed=tall_gram,
        measure_corrected=wide_gram,
    ),
    erratum(
        id="encoder-L18",
        title="lambda_0 does not grow with N",
        printed="for N >= Omega(d^4) and m = Omega(N^2 / lambda_*^2), lambda_0 >= Theta(eta_V N/d) (Lemma 18).",
        corrected="eta_V / 4 times the least eigenvalue of P P^T <= lambda_0 <= eta_V T C_x^2 / 2, the second by Eqs. "
        "(42) and (43) of the paper; lambda_0 > 0 for any N here, and falls with N.",
        hypotheses=(*TALL, "the width: none is enough, as lambda_* = 0; its limit and 1024"),
        tolerance=1.0 + ROUNDING,
        reason="lambda_0 over its upper bound, and lower bound over lambda_0",
        measure_printed=lambda scale: start_grows(scale, name="start"),
        measure_corrected=start_between,
    ),
    erratum(
        id="encoder-L19",
        title="The least eigenvalue of the limiting kernel does not grow with N",
        printed="for N >= Omega(d^4) the least eigenvalue of K* is at least mu^2 Omega(N/d) (Lemma 19).",
        corrected="it is at most the mean eigenvalue tr(K*) / N, which does not grow with N, and at least mu^2 = 1/4 "
        "times that of P* P*^T, which says something for N <= d.",
        hypotheses=TALL,
        tolerance=1.0 + ROUNDING,
        reason="least over mean eigenvalue, and lower bound over least eigenvalue; mean pooling",
        measure_printed=lambda scale: start_grows(scale, name="kernel"),
        measure_corrected=kernel_between,
    ),
    erratum(
        id="encoder-C8",
        title="Pooling does not make a linear width enough",
        printed="with tau0 = 1/m attention is a pooling layer, so the least eigenvalue is of the order Omega(N/d), and "
        "a width linear in N is enough (Appendix C.8).",
        corrected="attention does become pooling, but alpha^2 is at most the mean eigenvalue of F_pre F_pre^T, which "
        "is of the order eta_V m and does not grow with N; at m = 4 N the margins of (2) and (3) fall with N.",
        hypotheses=("N >= d^4 = 256, LeCun weights, tau0 = 1/m, m = 4 N",),
        tolerance=1.0,
        reason="alpha^2 over the mean eigenvalue",
        measure_printed=linear_width_is_enough,
        measure_corrected=pooling_limits_alpha,
    ),
    erratum(
        id="encoder-E9",
        title="Which Gram matrix has alpha^2, and the Hermite series",
        printed="with m >= N, alpha^2 is the least eigenvalue of F_pre^T F_pre (remark after Lemma 19), and E relu(P* "
        "w) relu(P* w)^T = sum_s mu_s^2 (P* P*^T)^s entry by entry (its proof). The other slips of this kind are "
        "encoder-L17, L18, L19 and C8.",
        corrected="alpha^2 is that of F_pre F_pre^T, which is the part of w_O in the tangent kernel; F_pre^T F_pre is "
        "singular for m > N. The series is for unit rows, and has the norms of the rows in front of it.",
        hypotheses=("N = 8 < m = 24",),
        tolerance=ROUNDING,
        reason="relative error; rounding. Printed: the least of both, so that both fail",
        measure_printed=lambda scale: last_layer(scale, printed=True),
        measure_corrected=lambda scale: last_layer(scale, printed=False),
    ),
]  # fmt: skip
