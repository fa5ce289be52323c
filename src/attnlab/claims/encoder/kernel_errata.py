"""Slips around the limiting kernel: which pooling and which product (Lemma 1), how wide (Lemma 16), and what the
exponent of Assumption 3 says.

*On the Convergence of Encoder-only Shallow Transformers*, Sections 4.2 and 4.3 and Appendices D.1 and D.2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr
from scipy.stats import gamma

from attnlab.claims.claim import Outcome, erratum, within
from attnlab.claims.encoder.kernel_limits import CLOSE, sequences
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.models.encoder import Encoder
from attnlab.theory.encoder import (
    arc_cosine_0,
    arc_cosine_1,
    assumption_4,
    lemma_16_error,
    lemma_16_width,
    limiting_ntk,
    similarities,
)
from attnlab.theory.encoder.ntk import encoder_kernels

EXACT = 1e-12

# E1 ---------------------------------------------------------------------------------------------------------------


def readings(x: Array) -> dict[str, tuple[str, Array]]:
    """Printed limits, each with the pooling it is printed for."""
    T = x.shape[1]
    mean = x.mean(axis=1)
    lemma = limiting_ntk(x, pool="sum")
    product = T**2 * (arc_cosine_1(mean) + arc_cosine_0(mean) @ (mean @ mean.T))
    return {
        "Lemma 1 for the average of Eq. (1.2)": ("mean", lemma),
        "Eqs. (63), (64), with sums of tokens": ("sum", T**2 * lemma),
        "Lemma 1 with a product of matrices": ("sum", product),
    }


def limit_is(scale: Scale, *, printed: bool) -> Outcome:
    """|K0 - limit| / |K0| at a large width, mean over seeds: the least of the printed readings, or the larger of both
    poolings with the corrected limit."""
    width, seeds = 16384, scale.pick(2, 4, 20)
    apart: dict[str, list[float]] = {}
    for seed in range(seeds):
        data = sequences(seed)
        network = Encoder(width, scaling="linear", init="ntk", pool="sum")
        weights = network.initial(data, seed)
        total = np.sum([*encoder_kernels(network, weights, data.x).values()], axis=0)
        # Mean pooling divides outputs by T and so the kernel by T^2; encoder-L1 measures that.
        kernels = {"sum": total, "mean": total / data.T**2}
        wanted = readings(data.x) if printed else {
            f"{pool} pooling": (pool, limiting_ntk(data.x, pool=pool)) for pool in ("sum", "mean")
        }  # fmt: skip
        for name, (pool, limit) in wanted.items():
            away = np.linalg.norm(kernels[pool] - limit) / np.linalg.norm(kernels[pool])
            apart.setdefault(name, []).append(float(away))
    means = {name: float(np.mean(values)) for name, values in apart.items()}
    worst = (min if printed else max)(means.values())
    return within(worst, CLOSE, instances=seeds * len(means), seeds=range(seeds),
                  numbers={"relative distance": means, "width": width})  # fmt: skip


# E13 --------------------------------------------------------------------------------------------------------------

EXPONENTS = np.linspace(0.1, 4.0, 40)


def bound(t: Array) -> Array:
    """exp(-t^c) for exponents c, (t, c)."""
    return np.exp(-(t[:, None] ** EXPONENTS))


def larger_exponent_is_less_separable(scale: Scale) -> Outcome:
    """By how much the allowed chance of similar sequences falls as the exponent grows, at the worst t."""
    t = np.linspace(0.05, 5.0, 100)
    falls = -np.diff(bound(t), axis=1).min(axis=1)
    # Tokens of norm about 1 have similarities beyond 1, where the remark turns round.
    x = sequences(0, 40, 10, 20).x
    s = similarities(x)[np.triu_indices(40, 1)]
    return within(float(falls.max()), 0.0, instances=len(t), numbers={
        "least t where it falls": float(t[falls > 0].min()) if (falls > 0).any() else None,
        "share of similarities above 1, N = 40, T = 10, d = 20": float((s > 1).mean()),
    })  # fmt: skip


def exponent_and_token(scale: Scale) -> Outcome:
    """Errors of: the bound rises in c for t < 1 and falls for t > 1; s is a sum of squares; covariances of sum and mean
    tokens differ by T^2; and tokens x, -x meet an assumption on single tokens but not Assumption 4."""
    below, above = np.linspace(0.01, 0.99, 99), np.linspace(1.01, 5.0, 99)
    wrong = max(float(-np.diff(bound(below), axis=1).min()), float(np.diff(bound(above), axis=1).max()), 0.0)
    squares, tokens = 0.0, 0.0
    for seed in range(scale.pick(2, 10, 100)):
        x = sequences(seed).x
        covariances = np.einsum("ntd,nte->nde", x, x)
        direct = np.einsum("nde,mde->nm", covariances, covariances)
        wrong = max(wrong, float(-direct.min()))  # negative ones would need the absolute value
        squares = max(squares, float(np.abs(direct - similarities(x)).max() / direct.max()))
        many = sequences(seed, 30, 6, 4).x  # more sequences than dimensions
        of_sum, of_mean = (assumption_4(many, token).C_Sigma for token in ("sum", "mean"))
        tokens = max(tokens, abs(of_sum / (36.0 * of_mean) - 1.0))
    single = sequences(0, 30, 1, 4).x
    pairs = np.concatenate([single, -single], axis=1)
    opposite = assumption_4(pairs).C_Sigma / assumption_4(single).C_Sigma
    return within(max(wrong, squares, tokens, opposite), EXACT, instances=scale.pick(2, 10, 100), seeds=(0,), numbers={
        "wrong direction": wrong, "sum of squares": squares, "sum over T^2 mean token": tokens,
        "C_Sigma of x, -x over that of x": opposite,
    })  # fmt: skip


# E14 --------------------------------------------------------------------------------------------------------------


def log_chance(width: float, least: float) -> float:
    """log P(w_Q^T w_K / m > least) for w_Q, w_K ~ N(0, I_m) and least > 0.

    Given |w_Q|^2 = m y the product is N(0, m y), and m y is chi-squared: one integral, over log y, by the trapezoid
    rule around its peak, where `y^2 - y = least^2`.
    """
    centre = np.log(0.5 * (1.0 + np.sqrt(1.0 + 4.0 * least**2)))
    u = centre + np.linspace(-40.0, 40.0, 8001) / np.sqrt(width)
    y = np.exp(u)
    logs = log_ndtr(-least * np.sqrt(width / y)) + gamma.logpdf(width * y, 0.5 * width, scale=2.0) + np.log(width) + u
    return float(np.logaddexp.reduce(logs) + np.log(u[1] - u[0]))


class Case(NamedTuple):
    """One sequence of numbers, N = d = 1, with a width and a chance; eta = 1 and tau0 = 1/m."""

    name: str
    tokens: int
    width: float
    log_delta: float


def log_chance_of_error(T: int, width: float, error: float) -> float:
    """log of the chance that (b_1^T x)^2 is further than `error` from 1/T, for x = (sqrt(T), 0, ..., 0).

    Here C_x = 1, lambda_* = 1/T, and the square is T p^2 with p = 1 / (1 + (T - 1) exp(-g T)), g = w_Q^T w_K / m.
    """
    sides = []
    for square in (1.0 / T + error, 1.0 / T - error):
        root = np.sqrt(square / T) if square > 0 else 0.0
        if 0.0 < root < 1.0:
            # From this g on, or below, as g has a symmetric law.
            g = (np.log(root) - np.log1p(-root) + np.log(T - 1.0)) / T
            sides.append(log_chance(width, abs(float(g))))
    return float(np.logaddexp.reduce(sides)) if sides else -np.inf


# A constant for Omega, and log(1 / delta) from which on it is too small.
CONSTANTS = ((1.0, 3.0), (10.0, 100.0), (100.0, 2e4))


def width_cases(*, printed: bool) -> list[Case]:
    """T = 2, lambda_* = 1/2: widths c N^2 sqrt(L) / lambda_*^2 as printed, for several c, or the corrected one."""
    cases = []
    for constant, log in CONSTANTS:
        L = np.log(2.0) + log
        if printed:
            cases.append(Case(f"width, c = {constant:g}", 2, max(2.0 * L, constant * np.sqrt(L) * 4.0), -log))
        else:
            asked = lemma_16_width(0.5, N=1, T=2, d=1, C_x=1.0, delta=0.05)
            cases.append(Case(f"width, delta = exp(-{log:g})", 2, asked * L / np.log(2.0 / 0.05), -log))
    return cases


def first_token_bound(scale: Scale, *, printed: bool) -> Outcome:
    """log of the chance that a statement of Lemma 16 fails, less log delta; printed: the least over statements.

    Statements: at the stated width the error is at most lambda_* / 4; and the error is at most 8 N eta C_x^4 T d
    sqrt(L / m) (printed, T^2 corrected) at T = 1000, where L = log(2 d^2 N^2 / delta), delta = 0.05 and m >= 2 L.
    """
    chances, slack = {}, []
    for case in width_cases(printed=printed):
        L = np.log(2.0) - case.log_delta
        slack.append(case.width / (2.0 * L) - 1.0)
        chances[case.name] = log_chance_of_error(case.tokens, case.width, 0.25 / case.tokens) - case.log_delta
    T, delta = 1000, 0.05
    for width in scale.pick((5000,), (2000, 5000, 10_000), (1000, 2000, 5000, 10_000, 20_000)):
        allowed = lemma_16_error(width, N=1, T=T, d=1, C_x=1.0, delta=delta) / (T if printed else 1)
        chances[f"error, m = {width}"] = log_chance_of_error(T, width, allowed) - np.log(delta)
        slack.append(width / (2.0 * np.log(2.0 / delta)) - 1.0)
    statements = [max(v for k, v in chances.items() if k.startswith("error"))]
    statements += [v for k, v in chances.items() if k.startswith("width")]
    worst = min(statements) if printed else max(statements)
    return within(worst, 0.0, instances=len(chances), numbers={"log(chance / delta)": chances},
                  slack={"m / (2 log(2 d^2 N^2 / delta)) - 1": min(slack)})  # fmt: skip


CLAIMS = [
    erratum(
        id="encoder-E1",
        title="Which pooling, and which product, in Lemma 1",
        printed="the model (1.2) averages over tokens and Lemma 1 has the factor T^2; its proof, (63) and (64), has "
        "X^T 1 for X^T 1 / T; and the second term of Lemma 1 is written as a product of matrices.",
        corrected="with mean tokens the factor is T^2 for sum pooling, as all proofs have it, and 1 for the average; "
        "the product is entry by entry. One is the other with tau1 / T, so nothing else changes.",
        hypotheses=("N(0, 1) weights, tau0 = 1/m, m = 16384", "N = 8, T = 6, d = 12"),
        tolerance=CLOSE,
        reason="relative distance of the tangent kernel at the start from the limit; printed: the least of the three",
        measure_printed=lambda scale: limit_is(scale, printed=True),
        measure_corrected=lambda scale: limit_is(scale, printed=False),
    ),
    erratum(
        id="encoder-E13",
        title="What the exponent of Assumption 3 says",
        printed="P(|<X_n^T X_n, X_m^T X_m>| >= t) <= exp(-t^c), and a larger c means less separable data (remark "
        "after Assumption 3).",
        corrected="so it is for t < 1; for t > 1 a larger c means more separable data. The inner product is |X_n "
        "X_m^T|_F^2 >= 0, so the absolute value is not needed. Assumption 4 is on sums of tokens, which is T^2 that "
        "on the mean tokens of Lemma 17; on single tokens, as in its proof, it is another assumption.",
        tolerance=EXACT,
        reason="largest violation; rounding",
        measure_printed=larger_exponent_is_less_separable,
        measure_corrected=exponent_and_token,
    ),
    erratum(
        id="encoder-E14",
        title="How wide Lemma 16 has to be",
        printed="with probability 1 - delta the error is at most 8 N tau0 eta C_x^4 T d sqrt(m L), L = log(2 d^2 N^2 / "
        "delta), and at most lambda_* / 4 once m = Omega(N^2 sqrt(L) / lambda_*^2) (proof and statement of Lemma 16).",
        corrected="T^2 in place of T, which is what (65) and (68) give together, and m >= (32 N eta C_x^4 T^2 d)^2 L / "
        "lambda_*^2: L in place of its root.",
        hypotheses=("N = d = 1, x = (sqrt(T), 0, ..., 0), eta = 1, tau0 = 1/m", "m >= 2 L"),
        tolerance=0.0,
        reason="log of the exact chance of failing over delta; printed: the least over the error and over widths with "
        "c = 1, 10 and 100 for Omega, for a delta small enough",
        measure_printed=lambda scale: first_token_bound(scale, printed=True),
        measure_corrected=lambda scale: first_token_bound(scale, printed=False),
    ),
]  # fmt: skip
