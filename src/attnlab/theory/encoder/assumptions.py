"""Assumptions 1 to 4 of *On the Convergence of Encoder-only Shallow Transformers*, measured on given tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import finite_array, number, one_of, real_array, whole
from attnlab.data.scale import lengths, matrix_lengths, ordinary, rescaled
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.models.encoder import Encoder
from attnlab.theory.arrays import BLOCK, EPS, sequences, within_float64
from attnlab.theory.check import Check

# Singular values below this share of the largest of a sequence do not count for its rank.
RANK = 1e-10
# Points of the empirical tail.
POINTS = 50
# Entries of tokens up to which similarities do not overflow.
LONGEST = 1e70
# Entries below which not even a product with the largest allowed one counts.
SHORTEST = 1e-250

# The encoder that the theorems are about.
USUAL = {
    "depth": 1,
    "attention_kind": "softmax",
    "tied": False,
    "parameterization": "standard",
    "feed_forward": "identity",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BoundedTokens(Check):
    """Assumption 1, `|X_n|_F <= sqrt(T) C_x`. It always holds; what counts is C_x.

    Attributes:
        C_x: the least such number.
        norms: `|X_n|_F`, (n,).
    """

    C_x: float
    norms: Array


def assumption_1(x: ArrayLike) -> BoundedTokens:
    """Assumption 1 on tokens (n, T, d).

    >>> assumption_1([[[3.0, 0.0], [0.0, 4.0]], [[1.0, 0.0], [0.0, 1.0]]]).norms.round(3).tolist()
    [5.0, 1.414]
    """
    tokens = sequences(x)
    norms = matrix_lengths(tokens)
    within_float64("x", tokens, "lengths of sequences", norms)
    C_x = float(norms.max() / np.sqrt(tokens.shape[1]))
    # Finite data are bounded, by as much as one likes.
    return BoundedTokens(
        name="1",
        value=C_x,
        margin=np.inf,
        holds=bool(np.isfinite(C_x)),
        C_x=C_x,
        norms=norms,
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FullRank(Check):
    """Assumption 2, all tokens of a sequence are linearly independent. It needs d >= T.

    Its `value` is the least rank of a sequence, T is wanted, and its margin is `C_lambda`.

    Attributes:
        T: tokens.
        ranks: of each sequence, (n,).
        least: least eigenvalue of X_n X_n^T, (n,).
    """

    T: int
    ranks: NDArray[np.intp]
    least: Array

    @property
    def C_lambda(self) -> float:
        """The least over sequences of `least`; 0 where the assumption fails."""
        return float(self.least.min())


def assumption_2(x: ArrayLike, *, tolerance: float = RANK) -> FullRank:
    """Assumption 2 on tokens (n, T, d); singular values up to `tolerance` of the largest are zeros.

    >>> rank = assumption_2([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0], [2.0, 2.0]]])
    >>> rank.ranks.tolist(), rank.least.tolist(), rank.holds
    ([2, 1], [1.0, 0.0], False)
    """
    tolerance = number("tolerance", tolerance, above=0, below=1)
    tokens = sequences(x)
    n, T, d = tokens.shape
    values: Array = np.linalg.svd(tokens, compute_uv=False).astype(np.float64)
    within_float64("x", tokens, "singular values", values)
    ranks = (values > tolerance * values[:, :1]).sum(axis=1)
    with np.errstate(over="ignore", under="ignore"):
        least = np.where(ranks == T, values[:, -1] ** 2, 0.0) if d >= T else np.zeros(n)
    within_float64("x", tokens, "squares of singular values", least)
    return FullRank(
        name="2",
        value=float(ranks.min()),
        wanted=float(T),
        margin=float(least.min()),
        holds=bool((ranks == T).all()),
        T=T,
        ranks=ranks,
        least=least,
    )


class Line(NamedTuple):
    """A least-squares line: `y = intercept + slope x`, with the share of the variance of y it explains."""

    slope: float
    intercept: float
    r2: float
    points: int


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Dissimilarity(Check):
    """Assumption 3, `P(s >= t) <= exp(-t^c)` for the similarity s of two sequences and some c > 0.

    Scale decides: with tokens small enough that all s < 1 it holds for any large c, and says nothing. So `norms` and
    `lengths` tell how the tokens are normalized. Its `value` is the largest exponent c that large similarities allow;
    the least that small ones ask for is wanted, and the margin is their difference.

    Attributes:
        pairs: how many.
        quantiles: of s, at 1, 50 and 99 %; zeros without pairs.
        thresholds, tail: t, evenly spaced from the least to the largest s, and the share of pairs with s >= t.
        exponential: fit (i), log P against t where P is `within` a range: a line for an exponential tail.
        power: fit (ii), log(-log P) against log t where 0 < P < 1 and t > 0: its slope is c, for P = exp(-a t^c).
        exponents: check (iii), the least and the largest c with `P <= exp(-t^c) + tolerance` at all thresholds; none
            if the first is larger.
        norms: least and largest `|X_n|_F`.
        lengths: least and largest norm of a token.

    Fits are None with less than three points, or where nothing varies.
    """

    pairs: int
    quantiles: tuple[float, float, float]
    thresholds: Array
    tail: Array
    exponential: Line | None
    power: Line | None
    exponents: tuple[float, float]
    norms: tuple[float, float]
    lengths: tuple[float, float]

    @property
    def trivial(self) -> bool:
        """Are all s below 1, so that any large c will do?"""
        return not (self.thresholds >= 1).any()


def assumption_3(
    x: ArrayLike,
    *,
    points: int = POINTS,
    within: tuple[float, float] = (0.0, 0.5),
    tolerance: float = 0.01,
    block: int = BLOCK,
) -> Dissimilarity:
    """Assumption 3 on tokens (n, T, d), over all pairs of sequences.

    Args:
        x: tokens.
        points: thresholds to look at.
        within: the range of P for fit (i); the upper tail, P <= 1/2.
        tolerance: by how much P may exceed the bound in check (iii); where P = 1 no c reaches it.
        block: see `similarities`.

    >>> assumption_3([[[1.0, 0.0]], [[0.0, 1.0]], [[0.6, 0.8]]]).tail[[0, -1]].round(3).tolist()
    [1.0, 0.333]
    """
    points, tolerance = whole("points", points), number("tolerance", tolerance, least=0)
    shares = finite_array("within", within)
    if shares.shape != (2,) or not 0 <= shares[0] < shares[1] <= 1:
        raise InputError(message(f"`within` is {within}; wanted two increasing numbers from 0 to 1."))
    tokens = sequences(x)
    s = similarities(tokens, block=block)[np.triu_indices(len(tokens), 1)]
    t = np.linspace(s.min(), s.max(), points) if s.size else np.zeros(0)
    tail = tail_probability(s, t)
    upper = (tail > within[0]) & (tail <= within[1])
    inner = (tail > 0) & (tail < 1) & (t > 0)
    norms, sizes = matrix_lengths(tokens), lengths(tokens)
    low, middle, high = np.quantile(s, (0.01, 0.5, 0.99)).tolist() if s.size else (0.0, 0.0, 0.0)
    # The exponents c for which the printed inequality holds at all thresholds.
    least, most = _exponents(t, tail, tolerance)
    return Dissimilarity(
        name="3",
        value=most,
        wanted=least,
        margin=most - least,
        holds=bool(least <= most and most > 0),
        pairs=s.size,
        quantiles=(low, middle, high),
        thresholds=t,
        tail=tail,
        exponential=_line(t[upper], np.log(tail[upper])),
        power=_line(np.log(t[inner]), np.log(-np.log(tail[inner]))),
        exponents=(least, most),
        norms=(float(norms.min()), float(norms.max())),
        lengths=(float(sizes.min()), float(sizes.max())),
    )


def similarities(x: ArrayLike, *, block: int = BLOCK) -> Array:
    """`s_nm = <X_n^T X_n, X_m^T X_m> = |X_n X_m^T|_F^2` for all pairs, (n, n), in memory for `block` numbers besides.

    The second form is a sum of squares: it keeps small similarities, which the first loses to cancellation.

    >>> similarities([[[1.0, 2.0]], [[3.0, 0.0]]]).tolist()
    [[25.0, 9.0], [9.0, 81.0]]
    """
    block = int(number("block", block, least=1, most=2.0**62))
    tokens = sequences(x)
    n, T, d = tokens.shape
    longest = float(np.abs(tokens).max())
    if longest > LONGEST:
        problem = f"similarities, their fourth powers, overflow beyond {LONGEST:g}"
        hint = "divide the tokens by their largest norm"
        raise InputError(message(f"`x` has entries up to {longest:.1e}; {problem}.", hint))
    flat = np.where(np.abs(tokens) > SHORTEST, tokens, 0.0).reshape(n * T, d)  # else products are 0 after a warning
    size = max(1, int(block // (2 * n * T * T)))
    sums = np.zeros((n, n))
    for first in range(0, n, size):
        last = min(n, first + size)
        products = flat[first * T : last * T] @ flat[: last * T].T
        products *= products
        sums[first:last, :last] = products.reshape(last - first, T, last, T).sum(axis=(1, 3))
    lower = np.tril(sums, -1)
    return lower + lower.T + np.diag(np.diag(sums))


def tail_probability(values: ArrayLike, thresholds: ArrayLike) -> Array:
    """The share of values that are at least t, for each threshold t; zeros without values.

    >>> tail_probability([1.0, 2.0, 2.0, 5.0], [0.0, 2.0, 3.0, 6.0]).tolist()
    [1.0, 0.75, 0.25, 0.0]
    """
    given, t = real_array("values", values), real_array("thresholds", thresholds)
    for name, array in (("values", given), ("thresholds", t)):
        if np.isnan(array).any():
            raise InputError(message(f"`{name}` has entries that are NaN; wanted numbers, or infinities."))
    ordered = np.sort(given.ravel())
    below = np.searchsorted(ordered, t, side="left")
    return (ordered.size - below) / max(1, ordered.size)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Covariance(Check):
    """Assumption 4, `Sigma = E x x^T` of the pooled tokens x is positive definite.

    Its `value` and margin are C_Sigma, wanted above 0.

    Attributes:
        Sigma: (d, d), the mean over sequences.
        C_Sigma: its least eigenvalue; 0 with less than d sequences, or where it is rounding.
        token: which tokens, "mean" or "sum".
    """

    Sigma: Array
    C_Sigma: float
    token: str


def assumption_4(x: ArrayLike, token: Literal["mean", "sum"] = "sum") -> Covariance:
    """Assumption 4 on tokens (n, T, d). It is stated for the sum of the tokens; Lemma 17 uses their mean.

    >>> assumption_4([[[1.0, 0.0]], [[0.0, 2.0]]]).C_Sigma
    0.5
    """
    one_of("token", token, ("mean", "sum"))
    tokens = sequences(x)
    n, _, d = tokens.shape
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        pooled = tokens.mean(axis=1) if token == "mean" else tokens.sum(axis=1)
        Sigma = pooled.T @ pooled / n
    within_float64("x", tokens, "products of pooled tokens", pooled, Sigma)
    values = np.linalg.svd(pooled, compute_uv=False)
    least = float(values[-1]) if n >= d and values[-1] > max(n, d) * EPS * values[0] else 0.0
    C_Sigma = least**2 / n
    return Covariance(
        name="4",
        value=C_Sigma,
        wanted=0.0,
        margin=C_Sigma,
        holds=C_Sigma > 0,
        Sigma=Sigma,
        C_Sigma=C_Sigma,
        token=token,
    )


def _line(x: Array, y: Array) -> Line | None:
    """Through points (x, y); None where there is none, or its slope is no float64 number."""
    if len(x) < 3 or np.ptp(y) == 0 or np.ptp(x) == 0:
        return None
    dx, e = ordinary(x - x.mean())
    dy = y - y.mean()
    unit_slope = float((dx @ dy) / (dx @ dx))  # of 2^-e x
    left = dy - unit_slope * dx
    slope = float(rescaled(unit_slope, -e))
    level = float(y.mean() - slope * x.mean())
    return Line(slope, level, 1.0 - float((left @ left) / (dy @ dy)), len(x)) if np.isfinite(slope) else None


def _exponents(t: Array, tail: Array, tolerance: float) -> tuple[float, float]:
    """The c >= 0 with `tail - tolerance <= exp(-t^c)`: large enough for all t < 1, small enough for all t > 1."""
    excess = tail - tolerance
    asked = (excess > 0) & (t > 0)  # elsewhere every c will do
    t, excess = t[asked], excess[asked]
    room = -np.log(np.minimum(excess, 1.0))  # t^c must be at most this
    if (room[t == 1] < 1).any() or (room[t < 1] == 0).any():
        return np.inf, 0.0
    # At t > 1 even c = 0 leaves t^c = 1, so less room than 1 is none.
    if (room[t > 1] < 1).any():
        return np.inf, 0.0
    low = (np.log(room[t < 1]) / np.log(t[t < 1])).max(initial=0.0)
    high = (np.log(room[t > 1]) / np.log(t[t > 1])).min(initial=np.inf)
    return float(low), float(high)


def settings_outside(model: Encoder) -> tuple[str, ...]:
    """Settings of an encoder that no theorem is about; empty for the shallow encoder of the theory."""
    given = {name: getattr(model, name) for name in USUAL}
    return tuple(f"{name} = {value!r}" for name, value in given.items() if value != USUAL[name])
