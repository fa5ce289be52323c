"""Slips around the limiting kernel: which pooling and which product (Lemma 1), how wide (Lemma 16), and what the
exponent of Assumption 3 says.

*On the Convergence of Encoder-only Shallow Transformers*, Sections 4.2 and 4.3 and Appendices D.1 and D.2.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr
from scipy.stats import gamma

from attnlab.claims.claim import Outcome, erratum, outcome
from attnlab.claims.encoder.kernel_limits import CLOSE, WIDTH_GUARD, sequences
from attnlab.claims.parts import Bound, Count, Identity, Limit
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.tokens import Array
from attnlab.models.encoder import Encoder
from attnlab.models.encoder_kernel import encoder_kernels
from attnlab.theory.encoder import (
    arc_cosine_0,
    arc_cosine_1,
    assumption_4,
    lemma_16_error,
    lemma_16_width,
    limiting_ntk,
    similarities,
)

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
    """|K0 - limit| / |K0| at a large width, mean over seeds, of each printed reading or of the corrected limit."""
    width = 16384
    seeds = scale.pick(2, 4, 20)
    distances: dict[str, list[float]] = {}
    for seed in range(seeds):
        data = sequences(seed)
        network = Encoder(width, scaling="linear", init="ntk", pool="sum")
        weights = network.initial(data, seed)
        total = np.sum([*encoder_kernels(network, weights, data.x).values()], axis=0)
        # Mean pooling divides outputs by T and so the kernel by T^2; encoder-L1 measures that.
        kernels = {"sum": total, "mean": total / data.T**2}
        limits = readings(data.x) if printed else corrected_limits(data.x)
        for name, (pool, limit) in limits.items():
            distance = np.linalg.norm(kernels[pool] - limit) / np.linalg.norm(kernels[pool])
            distances.setdefault(name, []).append(float(distance))
    parts = []
    for name, values in distances.items():
        part = Limit(f"mean |K0 - limit| / |K0|: {name}", tolerance=CLOSE)
        part.add(np.mean(values))
        parts.append(part)
    return outcome(*parts, instances=seeds * len(parts), seeds=range(seeds), numbers={"width": width})


def corrected_limits(x: Array) -> dict[str, tuple[str, Array]]:
    """The limit for both poolings."""
    return {f"{pool} pooling": (pool, limiting_ntk(x, pool=pool)) for pool in ("sum", "mean")}


# E13 --------------------------------------------------------------------------------------------------------------

EXPONENTS = np.linspace(0.1, 4.0, 40)


def bound(t: Array) -> Array:
    """exp(-t^c) for exponents c, (t, c)."""
    return np.exp(-(t[:, None] ** EXPONENTS))


def larger_exponent_is_less_separable(scale: Scale) -> Outcome:
    """Does the allowed chance of similar sequences rise with the exponent at every t from 0.05 to 5?"""
    t = np.linspace(0.05, 5.0, 100)
    falls = -np.diff(bound(t), axis=1).min(axis=1)
    rises = Count("the allowed chance falls somewhere as the exponent grows, by t")
    rises.add(falls > 0)
    # Tokens of norm about 1 have similarities beyond 1, where the remark turns round.
    x = sequences(0, 40, 10, 20).x
    similar = similarities(x)[np.triu_indices(40, 1)]
    return outcome(
        rises,
        numbers={
            "least t where it falls": float(t[falls > 0].min()) if (falls > 0).any() else None,
            "share of similarities above 1, N = 40, T = 10, d = 20": float((similar > 1).mean()),
        },
    )


def exponent_and_token(scale: Scale) -> Outcome:
    """The bound rises in c for t < 1 and falls for t > 1; similarities are sums of squares; covariances of sum and mean
    tokens differ by T^2; and tokens x, -x meet an assumption on single tokens but not Assumption 4."""
    direction = Count("the bound falls in c below t = 1, or rises above")
    direction.add(np.diff(bound(np.linspace(0.01, 0.99, 99)), axis=1) < 0)
    direction.add(np.diff(bound(np.linspace(1.01, 5.0, 99)), axis=1) > 0)
    squares = Identity("<X_n^T X_n, X_m^T X_m> against |X_n X_m^T|_F^2", tolerance=EXACT)
    negative = Count("an inner product is negative")
    covariance = Identity("C_Sigma of the sum of tokens against T^2 that of the mean token", tolerance=EXACT)
    seeds = scale.pick(2, 10, 100)
    for seed in range(seeds):
        x = sequences(seed).x
        covariances = np.einsum("ntd,nte->nde", x, x)
        direct = np.einsum("nde,mde->nm", covariances, covariances)
        negative.add(direct < 0)
        squares.add((direct - similarities(x)) / direct.max())
        many = sequences(seed, 30, 6, 4).x  # more sequences than dimensions
        of_sum, of_mean = (assumption_4(many, token).C_Sigma for token in ("sum", "mean"))
        covariance.add(of_sum / (36.0 * of_mean) - 1.0)
    single = sequences(0, 30, 1, 4).x
    pairs = np.concatenate([single, -single], axis=1)
    opposite = Identity("C_Sigma of x, -x over that of x, which is 0", tolerance=EXACT)
    opposite.add(assumption_4(pairs).C_Sigma / assumption_4(single).C_Sigma)
    return outcome(direction, negative, squares, covariance, opposite, instances=seeds, seeds=range(seeds))


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
    """The exact chance that a statement of Lemma 16 fails over delta, by statement.

    Statements: at the stated width the error is at most lambda_* / 4; and the error is at most 8 N eta C_x^4 T d
    sqrt(L / m) (printed, T^2 corrected) at T = 1000, where L = log(2 d^2 N^2 / delta), delta = 0.05 and m >= 2 L.
    """
    slack = []
    width_part = Bound("chance that the error exceeds lambda_* / 4 at the stated width, over delta")
    for case in width_cases(printed=printed):
        L = np.log(2.0) - case.log_delta
        slack.append(case.width / (2.0 * L) - 1.0)
        width_part.add_logs(log_chance_of_error(case.tokens, case.width, 0.25 / case.tokens), case.log_delta)
    T, delta = 1000, 0.05
    error_part = Bound("chance that the error exceeds its bound at T = 1000, over delta")
    for width in scale.pick((5000,), (2000, 5000, 10_000), (1000, 2000, 5000, 10_000, 20_000)):
        allowed = lemma_16_error(width, N=1, T=T, d=1, C_x=1.0, delta=delta) / (T if printed else 1)
        error_part.add_logs(log_chance_of_error(T, width, allowed), np.log(delta))
        slack.append(width / (2.0 * np.log(2.0 / delta)) - 1.0)
    # How far the corrected constants are from the edge, in the width and not in a chance.
    parts = [width_part, error_part]
    if not printed:
        parts.append(least_width())
    return outcome(
        *parts,
        instances=width_part.instances + error_part.instances,
        slack={"m / (2 log(2 d^2 N^2 / delta)) - 1": min(slack)},
    )


def least_width() -> Bound:
    """The square root of the width that is needed, at T = 2 and delta = 0.05, over that of the width asked for."""
    part = Bound("square root of the least width that is enough over that asked for", guard=WIDTH_GUARD)
    asked = lemma_16_width(0.5, N=1, T=2, d=1, C_x=1.0, delta=0.05)
    widths = np.geomspace(min(1.0, asked), asked, 400)
    chances = np.array([log_chance_of_error(2, width, 0.125) for width in widths])
    enough = widths[chances <= np.log(0.05)]
    part.add(np.sqrt(enough.min(initial=np.inf)), np.sqrt(asked))
    return part


CLAIMS = [
    erratum(
        id="encoder-E1",
        title="Which pooling, and which product, in Lemma 1",
        printed="the model averages over tokens and Lemma 1 has the factor T^2; its proof, (63) and (64), has X^T 1 "
        "for X^T 1 / T; and the second term of Lemma 1 is written as a product of matrices.",
        corrected="with mean tokens the factor is T^2 for sum pooling, as all proofs have it, and 1 for the average; "
        "the product is entry by entry. One is the other with tau1 / T, so nothing else changes.",
        slip=Slip(
            kind=Kind.TYPO,
            where="Section 3 (average pooling), Lemma 1, Eqs. (63) and (64)",
            quote="indicates the column-wise average pooling",
            charitable="pooling read as the sum, which every proof uses, and the product as one of entries: then Lemma "
            "1 holds (encoder-L1).",
            correction="sum pooling in Lemma 1, or no d_s^2; X^T 1 / d_s in (63) and (64); an entrywise product.",
        ),
        hypotheses=("N(0, 1) weights, tau0 = 1/m, m = 16384",),
        setting="N = 8, T = 6, d = 12, tokens N(0, 1/d).",
        reason="relative distance of the tangent kernel at the start from each limit, against 0.03",
        each=True,
        measure_printed=partial(limit_is, printed=True),
        measure_corrected=partial(limit_is, printed=False),
    ),
    erratum(
        id="encoder-E13",
        title="What the exponent of Assumption 3 says",
        printed="P(|<X_n^T X_n, X_m^T X_m>| >= t) <= exp(-t^c), and a larger c means less separable data.",
        corrected="so it is for t < 1; for t > 1 a larger c means more separable data. The inner product is |X_n "
        "X_m^T|_F^2 >= 0, so the absolute value is not needed. Assumption 4 is on sums of tokens, which is T^2 that "
        "on the mean tokens of Lemma 17; on single tokens, as in its proof, it is another assumption.",
        slip=Slip(
            kind=Kind.READING,
            where="Remark after Assumption 3, Section 4.2",
            quote="results in less separable data",
            charitable="for t < 1, as with tokens scaled until all similarities are below 1, the remark is right: "
            "measured, the allowed chance rises with c at every t < 1.",
            correction="we take the remark to be about t < 1.",
        ),
        setting="exponents 0.1 to 4, t from 0.01 to 5; tokens N(0, 1/d).",
        reason="counts of the wrong direction, and relative errors to rounding",
        measure_printed=larger_exponent_is_less_separable,
        measure_corrected=exponent_and_token,
    ),
    erratum(
        id="encoder-E14",
        title="How wide Lemma 16 has to be",
        printed="with probability 1 - delta the error is at most 8 N tau0 eta C_x^4 T d sqrt(m L), L = log(2 d^2 N^2 / "
        "delta), and at most lambda_* / 4 once m = Omega(N^2 sqrt(L) / lambda_*^2).",
        corrected="T^2 in place of T, which is what (65) and (68) give together, and m >= (32 N eta C_x^4 T^2 d)^2 L / "
        "lambda_*^2: L in place of its root.",
        slip=Slip(
            kind=Kind.CONSTANT,
            where="Lemma 16 and the end of its proof, Appendix D.2",
            quote="and suppose the width satisfies",
            charitable="a constant of 1, 10 and 100 for Omega: each fails once delta is small enough (exp(-3), "
            "exp(-100), exp(-20000)); for a fixed delta some constant is enough.",
            correction="log in place of its square root in the width; d_s^2 in place of d_s in the bound.",
        ),
        hypotheses=("N = d = 1, x = (sqrt(T), 0, ..., 0), eta = 1, tau0 = 1/m", "m >= 2 L"),
        setting="T = 2 for the width, T = 1000 for the bound; exact chances by one integral.",
        reason="the exact chance of failing over delta, and the width that is needed over that asked for",
        each=True,
        measure_printed=partial(first_token_bound, printed=True),
        measure_corrected=partial(first_token_bound, printed=False),
    ),
]
