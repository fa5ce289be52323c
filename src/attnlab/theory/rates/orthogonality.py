"""Assumptions 1 and 2 and the small start of *Implicit Bias and Fast Convergence Rates for Self-attention*."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from attnlab.checks import number
from attnlab.data.products import orthogonality_ratios
from attnlab.data.selection import optimal_tokens
from attnlab.data.tokens import Tokens
from attnlab.svm import MarginSolution
from attnlab.theory.check import Check, at_least
from attnlab.theory.formula import formula
from attnlab.theory.rates.constants import OF_RATES, RateConstants, one_query, rate_constants
from attnlab.theory.svm.assumptions import assumption_b2

# The spectral norm of a d x d Gaussian is at most C (2 sqrt(d) + sqrt(log(2 / delta))) deviations with C = sqrt(2);
# Lemma 2 calls 6 C its absolute constant C'.
SPECTRAL = 6.0 * np.sqrt(2.0)


def assumption_1(tokens: Tokens, *, constants: RateConstants | None = None) -> Check:
    """Assumption 1, nearly orthogonal tokens: with f = 4 n Upsilon T,

        |x_it|^2 >= f |<x_it, x_js>|                   j other than i, s not the best token of j   (line 1)
        <x_i,opt, x_j,opt> >= f |<x_it, x_ks>|         y_i = y_j other than y_k                    (line 2)

    Args:
        tokens: one data set with one query per sequence.
        constants: what `rate_constants` found for these tokens, if known.

    Returns:
        `margin` is the least ratio of a left to its right side; the assumption holds where it is at least 1. One
        sequence meets it trivially (inf). Evidence: line_1, line_2, pairs (share of the pairs of line 1 that hold),
        factor f, extra (the least ratio of two inequalities that the proof of Lemma 3 uses besides; within and queries
        are the two), margin_proof (the margin with the Upsilon of the proof), tied.

    >>> import attnlab as al
    >>> assumption_1(al.data.two_tokens())
    Check(1 holds, margin=inf)
    """
    one_query(tokens)
    known: RateConstants = rate_constants(tokens) if constants is None else OF_RATES("constants", constants)
    best, count = optimal_tokens(tokens, return_ties=True)
    factor = 4.0 * known.n * known.upsilon * known.T
    ratios = orthogonality_ratios(tokens, best, factor)
    share = known.upsilon / known.upsilon_proof if 0 < known.upsilon_proof < np.inf else 0.0
    vacuous = not np.isfinite(ratios.printed)
    evidence = {
        **asdict(ratios),
        "extra": ratios.extra,
        "factor": factor,
        "tied": int((count > 1).sum()),
        "margin_proof": ratios.printed if vacuous else ratios.printed * share,
    }
    return at_least("1", ratios.printed, 1.0, evidence)


def assumption_2(tokens: Tokens, *, tolerance: float = 1e-10) -> Check:
    """Assumption 2: all tokens of a sequence but the best have the same score.

    Args:
        tokens: one data set with one query per sequence, and `v`.
        tolerance: scores this close, relative to the largest |score| of the data, are the same.

    Returns:
        `margin` is the allowed less the measured deviation. Evidence: deviation, gap, tied; see `assumption_b2`, which
        asks the same. With T = 2 it holds trivially.

    >>> import attnlab as al
    >>> assumption_2(al.data.bad_direction()).evidence["deviation"]
    0.0
    """
    return replace(assumption_b2(one_query(tokens), tolerance=tolerance), name="2")


def initialization(
    tokens: Tokens,
    scale: float,
    step: float,
    *,
    solution: MarginSolution | None = None,
    constants: RateConstants | None = None,
    k: float = 2.0,
) -> Check:
    """The small start of Lemma 2: entries of W(0) are N(0, scale^2) with

        scale <= B^-2 d^-1/2 min( log((k T - 1) / (T - 1)) / C',  step d^-1/2 / (8 Lambda) )

    and C' = 6 sqrt(2). Then every best token starts with attention at least 1 / (k T), and |W(0)| is at most
    `step / (4 B^2 Lambda)`, with high probability.

    Args:
        tokens: one data set.
        scale: deviation of the entries of W(0); 0 for a start at zero.
        step: the step size of the run.
        solution, constants: what is known of these tokens already.
        k: as in the lemma; later lemmas use 2.

    Returns:
        `margin` is the largest allowed scale over the given one. Evidence: largest_scale, and its two parts
        by_attention and by_norm.

    >>> import attnlab as al
    >>> round(initialization(al.data.two_tokens(), 0.0, 0.1).evidence["by_norm"], 6)
    0.00625
    """
    one_query(tokens)
    scale, step, k = number("scale", scale, least=0), number("step", step, least=0), number("k", k, above=1)
    known = rate_constants(tokens, solution=solution) if constants is None else OF_RATES("constants", constants)
    by_attention, by_norm = _largest_scales(known, step, k)
    largest = float(min(by_attention, by_norm))
    ratio = largest / scale if scale > 0 else np.inf
    return Check(
        name="small start",
        value=scale,
        wanted=largest,
        margin=ratio,
        holds=ratio >= 1,
        evidence={"largest_scale": largest, "by_attention": float(by_attention), "by_norm": float(by_norm)},
    )


@formula()
def _largest_scales(known: RateConstants, step: float, k: float) -> tuple[float, float]:
    """The two parts of the minimum; inf where all tokens are zero, 0 where nothing separates them."""
    by_attention = np.log((k * known.T - 1.0) / (known.T - 1.0)) / (SPECTRAL * known.B**2 * np.sqrt(float(known.d)))
    norm = 8.0 * known.Lambda * known.B**2 * known.d
    return float(by_attention), 0.0 if np.isinf(known.Lambda) or step == 0 else float(step / norm)
