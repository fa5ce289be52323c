"""What the theorems take for granted of data and labels: dissimilar sequences, and a first loss of order N."""

from __future__ import annotations

from itertools import product

import numpy as np

from attnlab.claims.claim import Claim, Outcome, outcome, reading
from attnlab.claims.encoder.batch import evaluate, starts, tokens
from attnlab.claims.parts import Count, Limit, Mean, Share
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.tokens import Array
from attnlab.theory.encoder import assumption_3, similarities

SLOPE = 0.1
DELTA = 0.05

# Assumption 3 -----------------------------------------------------------------------------------------------------


def tail_by_normalization(scale: Scale) -> Outcome:
    """Share of pairs with similarity at least 1, where exp(-t^c) is 1/e for all c; and whether some c fits at all t."""
    rows = Mean("share of pairs with s >= 1, tokens of length 1, against 1/e", at_least=float(np.exp(-1.0)))
    entries = Mean("share of pairs with s >= 1, entries N(0, 1), against 1/e", at_least=float(np.exp(-1.0)))
    whole = Count("no exponent fits, |X|_F = 1")
    exponents = {}
    for seed in range(scale.pick(4, 10, 10)):
        raw = tokens(100, 10, 100, seed=seed, rows="raw")[0]
        unit = raw / np.linalg.norm(raw, axis=-1, keepdims=True)
        frobenius = raw / np.linalg.norm(raw, axis=(-2, -1), keepdims=True)
        rows.add(share_at_least_1(unit))
        entries.add(share_at_least_1(raw))
        tail = assumption_3(frobenius)
        whole.add(not tail.holds)
        exponents[seed] = tail.exponents
    seeds = range(scale.pick(4, 10, 10))
    return outcome(rows, entries, whole, seeds=seeds, numbers={"least and largest exponent, |X|_F = 1": exponents})


def share_at_least_1(x: Array) -> float:
    """Of pairs of sequences whose similarity is at least 1."""
    s = similarities(x)[np.triu_indices(len(x), 1)]
    return float(np.mean(s >= 1.0))


# The first loss ---------------------------------------------------------------------------------------------------

LAWS = (("lecun", "sqrt"), ("he", "linear"), ("ntk", "linear"))


def distances(law: str, scaling: str, N: int, m: int, count: int) -> tuple[Array, Array]:
    """|f - y| at starts with labels +-1, and what it is at most with probability 1 - delta, (count,).

    Given F, every output is Gaussian with variance var(w_O) |F_n|^2, so that all are at most sqrt(2 log(2 N / delta))
    deviations.
    """
    draws, _ = starts(law, scaling, N, 2, 16, m, seed=N + m, count=count)
    at = evaluate(draws)
    y = np.random.default_rng((N, m)).choice((-1.0, 1.0), (count, N))
    variance = {"lecun": 1.0 / m, "he": 2.0 / m, "ntk": 1.0}[law]
    deviation = np.sqrt(variance) * np.linalg.norm(at.hidden, axis=-1).max(-1)
    bound = np.sqrt(N) * (1.0 + np.sqrt(2.0 * np.log(2.0 * N / DELTA)) * deviation)
    return np.linalg.norm(at.outputs - y, axis=-1), bound


def first_loss_is_of_order_N(scale: Scale) -> Outcome:
    """Powers of N and of m in the root mean square of |f - y|, and how often it exceeds its bound."""
    by_samples = Limit("|power of N in |f - y| - 1/2|", tolerance=SLOPE)
    by_width = Limit("|power of m in |f - y||", tolerance=SLOPE)
    likely = Share("|f - y| <= sqrt(N) (1 + sqrt(2 log(2 N / delta)) deviation), delta = 0.05", at_least=1.0 - DELTA)
    count = scale.pick(60, 300, 2000)
    samples, wide = np.array([4, 8, 16, 32, 64]), np.array([32, 64, 128, 256])
    for law, scaling in LAWS:
        measured = {(n, m): distances(law, scaling, int(n), int(m), count) for n, m in product(samples, (64,))}
        measured |= {(n, m): distances(law, scaling, int(n), int(m), count) for n, m in product((16,), wide)}
        sizes = {key: float(np.sqrt(np.mean(far**2))) for key, (far, _) in measured.items()}
        by_samples.add(abs(power(samples, [sizes[n, 64] for n in samples]) - 0.5))
        by_width.add(abs(power(wide, [sizes[16, m] for m in wide])))
        for far, bound in measured.values():
            likely.add(far <= bound)
    return outcome(by_samples, by_width, likely, seeds=samples)


def power(x: Array, y: list[float]) -> float:
    """Least-squares slope of log y in log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


CLAIMS = [
    reading(
        id="encoder-A3",
        title="At which scale Assumption 3 holds",
        statement="P(s >= t) <= exp(-t^c) for the similarity s = <X_n^T X_n, X_m^T X_m>, taken literally, asks for P(s "
        ">= 1) <= 1/e whatever c is. Gaussian sequences break that with tokens of length 1 or entries N(0, 1), and "
        "with |X|_F = 1 some exponents fit at every t.",
        slip=Slip(
            kind=Kind.READING,
            where="Assumption 3 and its verification in Section 4.2",
            quote="We randomly sample 100 (normalized) sentences with embedding",
            charitable="Normalized to |X|_F = 1: the inequality then holds with large exponents, as all s are far "
            "below 1, where exp(-t^c) is nearly 1; the probability of Theorem 1 then says nothing. With tokens of "
            "length 1, as in the remark on Assumption 1, no exponent fits.",
            correction="|X|_F = 1 is taken where the assumption is checked, and the scale is said.",
        ),
        setting="100 Gaussian sequences, T = 10, d = 100, in three normalizations; 4 draws (smoke), 10 (quick).",
        reason="mean over draws of the share of pairs with s >= 1, by its standard error; for |X|_F = 1, whether an "
        "exponent fits the tail at 50 thresholds to within 0.01",
        measure=tail_by_normalization,
    ),
    Claim(
        id="encoder-loss0",
        title="The first loss is of order N",
        statement="sqrt(2 loss_0) = |f - y| is of order sqrt(N), up to logarithms, with probability at least 1 - delta "
        "(above Eqs. 49, 54 and 60): at most sqrt(N) (max |y| + sqrt(2 log(2 N / delta)) std(w_O) max |F_n|), and no "
        "power of m.",
        hypotheses=("bounded labels", "Assumption 1"),
        setting="LeCun with tau0 = m^(-1/2), He and N(0, 1) with 1/m; Gaussian tokens of length 1, T = 2, d = 16, "
        "labels +-1; N = 4 to 64 with m = 64, and m = 32 to 256 with N = 16; 60 starts each (smoke), 300 (quick).",
        reason="powers of N and m in the root mean square of |f - y| within 0.1; the share of starts within the bound, "
        "by its interval",
        measure=first_loss_is_of_order_N,
    ),
]
