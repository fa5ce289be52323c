"""Is it a proof? Weights that are to show that no W separates, judged at the scale of the data, exponents kept.

Weights l >= 0 with sum l A = 0 prove it. Numbers round, so the sum counts as zero where every entry of it cancels:

    |sum_j l_j A_j|_ab <= CANCELS (sum_j |l_j| |A_j|)_ab     for all a and b.

Then the rows, each entry moved by that share of itself, have no W at all. The norm of the sum would not do: the rows
(1, 1e-20) and (-1, 1e-20) cancel to 1e-20 of their length, and W = (0, 1e20) separates them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnlab.data.scale import rows_to_one
from attnlab.data.tokens import Array
from attnlab.svm.rows import Rows

# Weights count as a proof if what they weigh cancels to this, entry by entry.
CANCELS = 1e-11
# Weights of rows below this share of the heaviest may be rounding; without them they must prove as much.
NEGLIGIBLE = 1e-12
# Products between one over this and this are not touched by underflow or overflow.
SAFE = 2.0**900
NONE = -(2**40)  # the exponent of zero: below all others
LOST = -2000  # numbers of order one times two to this are zero


def proving(rows: Rows, weights: Array) -> Array | None:
    """These weights, or those of them that are not negligible, if they prove that no W meets the rows; else None."""
    above = rows.inequalities(weights)
    if not (np.isfinite(weights).all() and (above >= 0).all() and above.sum() > 0):
        return None
    if cancellation(rows, weights) <= CANCELS:
        return weights
    _, _, lengths, exponents = _unit_rows(rows)
    main = _without_negligible(weights, lengths, exponents)
    if rows.inequalities(main).sum() > 0 and cancellation(rows, main) <= CANCELS:
        return main
    return None


def proving_vectors(vectors: Array, weights: Array) -> Array | None:
    """The same for vectors: weights >= 0 whose combination cancels in every entry, as far as rounding lets it."""
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
        return None
    if _vectors_cancel(vectors, weights):
        return weights
    units, exponents = unit_exponents(vectors)
    main = _without_negligible(weights, np.linalg.norm(units, axis=1), exponents)
    return main / main.sum() if main.sum() > 0 and _vectors_cancel(vectors, main) else None


def _without_negligible(weights: Array, lengths: Array, exponents: NDArray[np.intp]) -> Array:
    """The weights of rows, of lengths times 2^exponents, that weigh more than rounding."""
    sizes = np.abs(_to_one(weights, lengths, exponents)) * lengths
    return np.where(sizes > NEGLIGIBLE * sizes.max(), weights, 0.0)


def cancellation(rows: Rows, weights: Array) -> float:
    """The largest |sum l A|_ab / (sum |l| |A|)_ab over the entries; 0 for rows that are zero."""
    if _in_range(rows, weights):
        left = np.abs(rows.adjoint(weights))
        whole = Rows(np.abs(rows.p), np.abs(rows.queries), rows.query, rows.where, rows.shape, None, rows.each)
        right = whole.adjoint(np.abs(weights))
    else:
        left, right = _entry_by_entry(rows, weights)
    return float((left / np.where(right > 0, right, 1.0)).max())


def residual(rows: Rows, weights: Array) -> float:
    """|sum l A| / sum |l| |A|, in Frobenius norms; 0 for rows that are zero."""
    p, queries, lengths, exponents = _unit_rows(rows)
    share = _to_one(weights, lengths, exponents)
    if not share.any():
        return 0.0
    combined = Rows(p, queries, rows.query, rows.where, rows.shape).adjoint(share)
    return float(np.linalg.norm(combined)) / float(np.abs(share) @ lengths)


def _unit_rows(rows: Rows) -> tuple[Array, Array, Array, NDArray[np.intp]]:
    """Differences and queries of order one, |A_j| of those, and the exponents of two that the rows have besides."""
    p, p_exponents = unit_exponents(rows.p)
    queries, q_exponents = unit_exponents(rows.queries)
    lengths = np.linalg.norm(p, axis=1) * np.linalg.norm(queries, axis=1)[rows.query]
    exponents = p_exponents + q_exponents[rows.query]
    return p, queries, lengths, exponents if rows.shift is None else exponents + rows.shift


def _to_one(weights: Array, lengths: Array, exponents: NDArray[np.intp]) -> Array:
    """Weights times 2^exponents, the largest brought to order one; zero for rows of no length."""
    mantissas, own = np.frexp(np.where(lengths > 0, weights, 0.0))
    powers = np.where(mantissas == 0, NONE, exponents + own)
    return np.ldexp(mantissas, np.maximum(powers - powers.max(initial=NONE), LOST))


def unit_exponents(vectors: Array) -> tuple[Array, NDArray[np.intp]]:
    """Each row vector as one of largest entry in [1/2, 1) times a power of two; zero ones keep the exponent 0."""
    units, exponents = rows_to_one(vectors)
    return units, exponents[:, 0].astype(np.intp)


def _in_range(rows: Rows, weights: Array) -> bool:
    """Are all products of weights, differences and queries float64 numbers, as they are?"""
    if rows.shift is not None:
        return False
    smallest = largest = 1.0
    for values in (weights, rows.p, rows.queries):
        sizes = np.abs(values)
        smallest *= float(sizes.min(where=sizes > 0, initial=1.0))
        largest *= float(sizes.max(initial=1.0))
    return smallest > 1.0 / SAFE and largest < SAFE


def _entry_by_entry(rows: Rows, weights: Array) -> tuple[Array, Array]:
    """|sum l A| and sum |l| |A|, both up to one power of two per entry: mantissas and exponents apart."""
    used = np.flatnonzero(weights)
    d = rows.p.shape[1]
    weight, exponent = np.frexp(weights[used])
    p, p_exponent = np.frexp(rows.p[used])
    q, q_exponent = np.frexp(rows.queries[rows.query[used]])
    exponent = exponent.astype(np.intp) + (0 if rows.shift is None else rows.shift[used])
    left, right = np.zeros((2, d, d))
    for a in range(d):
        terms = (weight * p[:, a])[:, None] * q  # (used, d)
        left[a], right[a] = _sums(terms, (exponent + p_exponent[:, a])[:, None] + q_exponent)
    return left, right


def _sums(terms: Array, exponents: NDArray[np.intp]) -> tuple[Array, Array]:
    """|sum| and sum of absolute values over the first axis of terms times 2^exponents, up to a power of two each."""
    exponents = np.where(terms == 0, NONE, exponents)
    apart = np.maximum(exponents - exponents.max(axis=0, initial=NONE), LOST)
    scaled = np.ldexp(terms, apart)
    return np.abs(scaled.sum(axis=0)), np.abs(scaled).sum(axis=0)


def _vectors_cancel(vectors: Array, weights: Array) -> bool:
    weight, exponent = np.frexp(weights)
    mantissas, exponents = np.frexp(vectors)
    left, right = _sums(weight[:, None] * mantissas, exponent.astype(np.intp)[:, None] + exponents)
    return bool((left <= CANCELS * right).all())
