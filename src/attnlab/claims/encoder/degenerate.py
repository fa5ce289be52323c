"""Eigenvalues of pooled tokens with more sequences than dimensions: Lemmas 17 to 19, and a remark.

*On the Convergence of Encoder-only Shallow Transformers*, Appendix D.2. These lemmas ask for N >= Omega(d^4),
so N > d, and then N x N matrices of rank d have the eigenvalue 0. What the proofs need of tokens and kernels is found
with N <= d, or from the kernels themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from attnlab.claims.claim import Outcome, erratum, outcome
from attnlab.claims.encoder.kernel_limits import first_tokens, power, query_key_product
from attnlab.claims.parts import Bound, Count, Identity, Limit
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.tokens import Array
from attnlab.models.encoder import Encoder
from attnlab.models.encoder_kernel import encoder_kernels
from attnlab.theory.encoder import (
    arc_cosine_1,
    assumption_1,
    assumption_4,
    forward,
    lambda_0,
    least_singular_value,
    limiting_ntk,
)

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
            N=n,
            d=d,
            rows=least_singular_value(star) ** 2,
            columns=float(np.linalg.eigvalsh(star.T @ star)[0]),
            start=found.value,
            start_top=0.5 * T * assumption_1(x).C_x ** 2,
            start_bottom=found.hermite,
            attended=lambda_0(first_tokens(x, product, 1.0 / 1024), 1.0).value,
            kernel=float(np.linalg.eigvalsh(kernel)[0]),
            mean=float(np.trace(kernel)) / n,
            covariance=assumption_4(x).C_Sigma,
        )


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
    """Lemma 17 as printed: does the least eigenvalue of P* P*^T keep up with N/d? It is 0."""
    pooled = draws(scale)
    order = Bound("1e-9 N/d over the least eigenvalue of P* P*^T")
    order.add_at_least([p.rows for p in pooled], [ROUNDING * p.N / p.d for p in pooled])
    return outcome(
        order,
        slack=hypotheses(pooled),
        seeds=seeds(scale),
        note="P* P*^T is N x N of rank d < N: its least eigenvalue is 0.",
    )


def wide_gram(scale: Scale) -> Outcome:
    """The least eigenvalue of P*^T P* against what Lemma 5 gives for it with probability 1 - exp(-d), and its order.

    sqrt(T) P* is N(0, 1) here, so the bound is (sqrt(N) - sqrt(d) - sqrt(2 d))^2 / T, of the order N.
    """
    pooled = draws(scale)
    bound = Bound("(sqrt(N) - sqrt(d) - sqrt(2 d))^2 / T over the least eigenvalue of P*^T P*")
    roots = np.array([np.sqrt(p.N) - (1.0 + np.sqrt(2.0)) * np.sqrt(p.d) for p in pooled])
    columns = np.array([p.columns for p in pooled])
    bound.add_at_least(columns, np.maximum(roots, 0.0) ** 2 / T, says=roots > 0)
    order = Limit("by how much the power of N is below 1", tolerance=FALL)
    powers = slopes([p for p in pooled if p.d > 2], "columns")
    order.add([-power for power in powers.values()])
    rank = Count("P* P*^T is singular for N <= d")
    rank.add([p.rows <= 0 for p in few(scale)])
    return outcome(
        bound,
        order,
        rank,
        instances=len(pooled) + len(few(scale)),
        seeds=seeds(scale),
        numbers={
            "power of N, less 1": powers,
            "least eigenvalue over N / T": {
                f"d = {p.d}, N = {p.N}": p.columns * T / p.N
                for p in pooled
                if max(q.N for q in pooled if q.d == p.d) == p.N
            },
        },
    )


def start_grows(scale: Scale, *, name: str) -> Outcome:
    """Lemmas 18 and 19 as printed: by which power of N the eigenvalue falls behind N/d, for each d."""
    pooled = draws(scale)
    powers = slopes(pooled, name)
    behind = Limit("power of N by which it falls behind N/d", tolerance=FALL)
    behind.add([-power for power in powers.values()])
    numbers = {"power of N, less 1": powers}
    note = ""
    if name == "start":
        numbers["power of N, less 1, at width 1024"] = slopes(pooled, "attended")
        note = "The width it asks for, N^2 / lambda_*^2, is infinite as lambda_* = 0; P = P* stands for that."
    return outcome(
        behind, instances=len(pooled), slack=hypotheses(pooled), seeds=seeds(scale), numbers=numbers, note=note
    )


def start_between(scale: Scale) -> Outcome:
    """lambda_0 between its bounds, for N > d and N <= d, with the pooled tokens and with attended ones."""
    pooled = [*draws(scale), *few(scale)]
    upper = Bound("lambda_0 / (T C_x^2 / 2)")
    tops = np.array([p.start_top for p in pooled])
    upper.add([p.start for p in pooled], tops)
    upper.add([p.attended for p in pooled], tops)
    lower = Bound("1/4 of the least eigenvalue of P* P*^T over lambda_0")
    bottoms = np.array([p.start_bottom for p in pooled])
    starts = np.array([p.start for p in pooled])
    # For N > d the lower bound is a rounded 0, and says nothing.
    lower.add_at_least(starts, bottoms, says=[p.d >= p.N for p in pooled])
    positive = Count("lambda_0 is not positive")
    positive.add(starts <= 0)
    return outcome(upper, lower, positive, seeds=seeds(scale), numbers={"least lambda_0": float(starts.min())})


def kernel_between(scale: Scale) -> Outcome:
    """The least eigenvalue of K* does not grow with N, and is at least 1/4 of that of P* P*^T."""
    tall, wide = draws(scale), few(scale)
    growth = Limit("power of N of the least eigenvalue", tolerance=FALL)
    growth.add([power + 1.0 for power in slopes(tall, "kernel").values()])
    # tr(K*) / N is the mean of |mean token|^2, a chi-squared law: d / T, with relative deviation sqrt(2 / (d N)).
    mean = Limit("distance of the mean eigenvalue tr(K*) / N from d / T, in standard deviations", tolerance=4.0)
    mean.add([abs(p.mean * T / p.d - 1.0) / np.sqrt(2.0 / (p.d * p.N)) for p in tall])
    lower = Bound("1/4 of the least eigenvalue of P* P*^T over that of K*")
    lower.add_at_least([p.kernel for p in wide], [0.25 * p.rows for p in wide])
    return outcome(
        growth,
        mean,
        lower,
        instances=len(tall) + len(wide),
        seeds=seeds(scale),
        numbers={"power of N of the least eigenvalue, less 1": slopes(tall, "kernel")},
    )


# E9: the remark after Lemma 19, and the series in its proof -----------------------------------------------------------


def remark_instances(scale: Scale) -> list[tuple[Encoder, Array, dict[str, Array]]]:
    """Networks with m > N: tokens and weights."""
    network, found = Encoder(24, scaling="linear", init="ntk", pool="sum"), []
    for seed in range(scale.pick(2, 10, 50)):
        rng = np.random.default_rng([seed, 8])
        shapes = network.sizes(T, 12)
        weights = {k: rng.standard_normal(shape) for k, shape in shapes.items()}
        found.append((network, rng.standard_normal((8, T, 12)) / np.sqrt(12), weights))
    return found


def last_layer(scale: Scale, *, printed: bool) -> Outcome:
    """The least eigenvalue of F^T F (printed) or of the kernel of w_O (by its own code) against alpha^2; and the
    Hermite series of E relu(P* w) relu(P* w)^T with or without the norms of the rows."""
    eigenvalue = Identity(
        f"least eigenvalue of {'F^T F' if printed else 'the kernel of w_O'} against alpha^2", tolerance=ROUNDING
    )
    series = Identity("Hermite series against E relu(P* w) relu(P* w)^T", tolerance=ROUNDING)
    instances = remark_instances(scale)
    for network, x, weights in instances:
        F = forward(x, weights, network.tau0, network.tau1).hidden
        alpha = least_singular_value(F) ** 2
        kernel = F.T @ F if printed else encoder_kernels(network, weights, x)["w_O"]
        eigenvalue.add((float(np.linalg.eigvalsh(kernel)[0]) - alpha) / alpha)
        rows = x.mean(axis=1)
        lengths = np.ones(len(rows)) if printed else np.linalg.norm(rows, axis=1)
        summed = np.outer(lengths, lengths) * hermite_series(rows / lengths[:, None])
        true = arc_cosine_1(rows)
        series.add(np.abs(summed - true).max() / true.max())
    return outcome(eigenvalue, series, seeds=range(len(instances)), slack={"m - N": 16.0})


def hermite_series(rows: Array) -> Array:
    """sum_s mu_s^2 (rows rows^T)^s, entry by entry, summed: (sqrt(1 - t^2) + t (pi - arccos t)) / (2 pi), |t| <= 1."""
    t = np.clip(rows @ rows.T, -1.0, 1.0)
    return (np.sqrt((1.0 - t) * (1.0 + t)) + t * (np.pi - np.arccos(t))) / (2.0 * np.pi)


TALL = ("N >= d^4 and Assumption 4 (measured); N and d are in the numbers",)
GAUSSIAN = "N(0, 1) tokens, T = 6, d = 2 to 4 (5 at paper scale), N from d^4 on; and N = 2 to 12 at d = 12."
CLAIMS = [
    erratum(
        id="encoder-L17",
        title="Least eigenvalue of the pooled tokens",
        printed="for N >= Omega(d^4) the least eigenvalue of P* P*^T is at least Theta(N/d).",
        corrected="that is so of the d x d matrix P*^T P*, whose least eigenvalue is about N times that of the "
        "covariance; P* P*^T has the eigenvalue 0 if N > d, and is positive definite for N <= d (generic tokens).",
        slip=Slip(
            kind=Kind.STATEMENT,
            where="Lemma 17, Appendix D.2",
            quote="share the same non-zero eigenvalues ... with probability at least",
            charitable="Phi* Phi*^T read as the d x d matrix Phi*^T Phi*, as its proof computes: then the order N/d "
            "holds, even the order N; but Lemmas 18 and 19 use the N x N one, whose least eigenvalue is 0 for N > d.",
            correction="lambda_min(Phi*^T Phi*) in place of lambda_min(Phi* Phi*^T); only non-zero eigenvalues agree.",
        ),
        hypotheses=TALL,
        setting=GAUSSIAN,
        reason="printed: a billionth of N/d over the eigenvalue, which is 0; corrected: what Lemma 5 gives with "
        "probability 1 - exp(-d) over the eigenvalue of P*^T P*, its power of N, and rank for N <= d",
        measure_printed=tall_gram,
        measure_corrected=wide_gram,
    ),
    erratum(
        id="encoder-L18",
        title="lambda_0 does not grow with N",
        printed="for N >= Omega(d^4) and m = Omega(N^2 / lambda_*^2), lambda_0 >= Theta(eta_V N/d).",
        corrected="eta_V / 4 times the least eigenvalue of P P^T <= lambda_0 <= eta_V T C_x^2 / 2, the second by Eqs. "
        "(42) and (43) of the paper; lambda_0 > 0 for any N here, and falls with N.",
        slip=Slip(
            kind=Kind.STATEMENT,
            where="Lemma 18, Appendix D.2",
            quote="Suppose the number of samples ... and the width ... then under Assumption 4",
            charitable="the width it asks for is infinite (lambda_* = 0), so the lemma could be called empty; with "
            "that limit, P = P*, and with width 1024, lambda_0 was measured: it falls with N.",
            correction="lambda_0 is bounded above by eta_V d_s C_x^2 / 2, whatever N, by the paper's own (42), (43).",
        ),
        hypotheses=(*TALL, "the width: none is enough, as lambda_* = 0; its limit and 1024"),
        setting=GAUSSIAN,
        reason="printed: power of N by which lambda_0 falls behind N/d; corrected: lambda_0 over its upper bound, and "
        "lower bound over lambda_0 where it is not 0",
        measure_printed=partial(start_grows, name="start"),
        measure_corrected=start_between,
    ),
    erratum(
        id="encoder-L19",
        title="The least eigenvalue of the limiting kernel does not grow with N",
        printed="for N >= Omega(d^4) the least eigenvalue of K* is at least mu^2 Omega(N/d).",
        corrected="it does not grow with N (the mean eigenvalue does not), and is at least mu^2 = 1/4 times that of "
        "P* P*^T, which says something for N <= d.",
        slip=Slip(
            kind=Kind.STATEMENT,
            where="Lemma 19, Appendix D.2",
            quote="the minimum eigenvalue of ... can be lower bounded with probability at least",
            charitable="the eigenvalue over several seeds and d was measured, with the constant of Omega free: its "
            "power of N is what counts, and it is negative.",
            correction="lambda_min(K) >= mu^2 lambda_min(Phi* Phi*^T) holds and is positive for N <= d only.",
        ),
        hypotheses=TALL,
        setting=GAUSSIAN + " Mean pooling.",
        reason="printed: power of N by which the eigenvalue falls behind N/d; corrected: its power of N, the "
        "mean eigenvalue against d / T, and lower bound over eigenvalue for N <= d",
        measure_printed=partial(start_grows, name="kernel"),
        measure_corrected=kernel_between,
    ),
    erratum(
        id="encoder-E9",
        title="Which Gram matrix has alpha^2, and the Hermite series",
        printed="with m >= N, alpha^2 is the least eigenvalue of F_pre^T F_pre, and E relu(P* w) relu(P* w)^T = sum_s "
        "mu_s^2 (P* P*^T)^s entry by entry.",
        corrected="alpha^2 is that of F_pre F_pre^T, as the rest of the paper has it, which is the part of w_O in the "
        "tangent kernel; F_pre^T F_pre is singular for m > N. The series is for unit rows, and has the norms of the "
        "rows in front of it.",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="Remark after Lemma 19, and the proof of Lemma 19",
            quote="which is the exact minimum eigenvalue of the empirical NTK",
            charitable="F_pre as m x N, as in Appendix C.7, makes the remark right; Section 3 has N x m. The "
            "inequality that follows from the series holds all the same.",
            correction="F_pre F_pre^T in place of F_pre^T F_pre, and unit rows, or their norms, in the series.",
        ),
        hypotheses=("N = 8 < m = 24",),
        setting="tokens N(0, 1/d), T = 6, d = 12, NTK start, sum pooling.",
        reason="relative errors; rounding",
        each=True,
        measure_printed=partial(last_layer, printed=True),
        measure_corrected=partial(last_layer, printed=False),
    ),
]
