"""Inner products of tokens, and by which factor they meet the inequalities of nearly orthogonal tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.data.scale import is_ordinary, lengths, to_one
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message

# Relative to the longest vector, the length from which products of two are float64 numbers.
SHORTEST = 1e-140


@dataclass(frozen=True, kw_only=True)
class OrthogonalityRatios:
    """Left over right side of each inequality, at its worst; it holds where this is at least 1, inf where vacuous.

    With f = 4 n Upsilon T:

    Attributes:
        line_1: `|x_it|^2 >= f |<x_it, x_js>|`, j other than i, s not the best token of j.
        line_2: `<x_i,opt, x_j,opt> >= f |<x_it, x_ks>|`, y_i = y_j other than y_k.
        within: `|x_i,opt|^2 / 4 >= |<x_it, x_is>|`, s not the best token, t other than s: what the proof of Lemma 3
            uses inside a sequence, and Assumption 1 does not say.
        queries: `|z_j|^2 >= f |<z_i, z_j>|`, i other than j, unless both queries are best tokens of one label: what the
            proof uses between queries. Assumption 1 covers it but where z_i is a best token and z_j is not.
        pairs: share of the pairs of line 1 that hold.
    """

    line_1: float
    line_2: float
    within: float
    queries: float
    pairs: float

    @property
    def printed(self) -> float:
        """The worst of the two printed lines."""
        return min(self.line_1, self.line_2)

    @property
    def extra(self) -> float:
        """The worst of the two that the proof uses besides."""
        return min(self.within, self.queries)


def orthogonality_ratios(tokens: Tokens, best: ArrayLike, factor: float) -> OrthogonalityRatios:
    """The inequalities of Assumption 1 with factor f = `factor`, and the two that its use needs besides.

    Args:
        tokens: one data set with one query per sequence; masked tokens are left out.
        best: the optimal token of each sequence, (n,).
        factor: 4 n Upsilon T.

    Everything is read from the Gram matrix of the tokens, (n T, n T).
    """
    n, T = tokens.n, tokens.T
    best = np.asarray(best)
    rows = _in_reach("x", tokens.x.reshape(n * T, tokens.d), tokens.visible.reshape(-1))
    gram = rows @ rows.T
    size = np.abs(gram)
    sample = np.repeat(np.arange(n), T)
    token = np.tile(np.arange(T), n)
    seen = tokens.visible.reshape(-1)
    other = seen & (token != np.repeat(best, T))  # visible, and not the best of its sequence
    apart = sample[:, None] != sample
    line_1 = _ratios(np.diag(gram)[:, None], size, factor, apart & seen[:, None] & other)
    inside = ~apart & seen[:, None] & other & (token[:, None] != token)
    top = np.arange(n) * T + best
    within = _ratios(np.repeat(gram[top, top], T)[:, None], size, 4.0, inside)
    return OrthogonalityRatios(
        line_1=float(line_1.min(initial=np.inf)),
        line_2=_line_2(gram[np.ix_(top, top)], size, tokens.y, sample, seen, factor),
        within=float(within.min(initial=np.inf)),
        queries=_queries(tokens, best, factor),
        pairs=float((line_1 >= 1).mean()) if line_1.size else 1.0,
    )


def sufficient_dimension(n: int, T: int, *, upsilon: float = np.e, delta: float = 0.1) -> float:
    """d from which Example 1 meets Assumption 1 with probability 1 - delta: `256 Upsilon^2 n^2 T^2 log(4n / delta)`.

    An explicit constant for Lemma 6 of *Implicit Bias and Fast Convergence Rates for Self-attention*; with
    `sufficient_signal`.
    """
    return float(256.0 * upsilon**2 * n**2 * T**2 * np.log(4.0 * n / delta))


def sufficient_signal(
    n: int, T: int, d: int, noise: float, *, signal_noise: float = 0.0, upsilon: float = np.e, delta: float = 0.1
) -> float:
    """The signal norm U that goes with it, from

        U^2 = (8 n Upsilon T + 2) max(noise, signal_noise)^2 sqrt(d log(4n / delta))

    >>> round(sufficient_signal(2, 2, 20_000, 0.005), 2)
    0.81
    """
    loudest = max(abs(noise), abs(signal_noise))
    return float(loudest * np.sqrt((8.0 * n * upsilon * T + 2.0) * np.sqrt(d * np.log(4.0 * n / delta))))


def _ratios(left: Array, right: Array, factor: float, where: NDArray[np.bool_]) -> Array:
    """left / (factor right) at the places asked for; where right is 0 the sign of left decides, whatever the factor."""
    above, below = np.broadcast_arrays(left, right)
    above, below = above[where], below[where]
    decided = np.where(above >= 0, np.inf, -np.inf)
    with np.errstate(over="ignore", under="ignore"):
        return np.divide(above / factor, below, out=decided, where=below > 0)


def _in_reach(name: str, rows: Array, used: NDArray[np.bool_]) -> Array:
    """The rows, all times one power of two, so that products are float64 numbers; ratios of them do not change."""
    if is_ordinary(rows):
        return rows
    seen = np.where(used[:, None], rows, 0.0)
    scaled = to_one(seen)[0]
    sizes = lengths(scaled)
    if ((sizes > 0) & (sizes < SHORTEST)).any():
        shortest, longest = lengths(seen)[sizes > 0].min(), np.abs(seen).max()
        given = f"`tokens.{name}` has vectors of lengths from {shortest:.1e} to {longest:.1e}"
        raise InputError(message(f"{given}; products of the shortest are beyond float64, beside those of the longest."))
    return scaled


def _line_2(
    tops: Array, size: Array, y: Array, sample: NDArray[np.intp], seen: NDArray[np.bool_], factor: float
) -> float:
    same = y[:, None] == y
    if same.all():
        return np.inf
    least = np.where(same, tops, np.inf).min(-1)  # over j of the label of i
    across = ~same[np.ix_(sample, sample)] & seen[:, None] & seen
    # Over t, k, s; a negative left side is worst against the smallest right side.
    most = np.where(across, size, 0.0).max(-1).reshape(len(y), -1).max(-1)
    fewest = np.where(across, size, np.inf).min(-1).reshape(len(y), -1).min(-1)
    right = np.where(least >= 0, most, fewest)
    return float(_ratios(least, right, factor, np.ones(len(y), dtype=bool)).min())


def _queries(tokens: Tokens, best: NDArray[np.intp], factor: float) -> float:
    z, y = tokens.z, tokens.y
    scaled = _in_reach("z", z, np.ones(len(y), dtype=bool))
    products = scaled @ scaled.T
    is_best = (z == np.take_along_axis(tokens.x, best[:, None, None], axis=1)[:, 0]).all(-1)
    alike = is_best[:, None] & is_best & (y[:, None] == y)
    asked = ~alike & ~np.eye(len(y), dtype=bool)
    return float(_ratios(np.diag(products), np.abs(products), factor, asked).min(initial=np.inf))
