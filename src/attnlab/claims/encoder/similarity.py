"""Figures 1 and 6: similarity of embedded sentences and images, whose tail is said to decay exponentially.

*On the Convergence of Encoder-only Shallow Transformers*, Section 4.2 and Appendix E.2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlab.claims.seen import Check
from attnlab.data.tokens import Array

FITTED = (0.05, 0.99)  # quantiles between which the line is fitted
STRAIGHT = 0.95  # R^2 from which on the tail is called exponential
NEAR, FAR = (FITTED[0], 0.5), (0.5, FITTED[1])  # its halves
AS_FAST = 0.8  # the far half falls at least so many times as fast as the near one, if the decay is exponential


def similarities(X: Array) -> Array:
    """<X_n^T X_n, X_k^T X_k> of every pair n < k.

    >>> similarities(np.stack([np.eye(2), 2.0 * np.eye(2)])).tolist()
    [8.0]
    """
    squares = (np.swapaxes(X, 1, 2) @ X).reshape(len(X), -1)  # (n, d d)
    products = squares @ squares.T
    return products[np.triu_indices(len(X), 1)]


class Line(NamedTuple):
    """A line fitted to log P, and how well it fits."""

    slope: float
    intercept: float
    fit: float  # R^2


def line_fit(values: Array, between: tuple[float, float] = FITTED) -> Line:
    """log P(value >= t) as a line in t, between quantiles.

    >>> line = line_fit(-np.log(1.0 - (np.arange(2000) + 0.5) / 2000))
    >>> round(line.slope, 2), line.fit > 0.999
    (-1.0, True)
    """
    ordered = np.sort(values)
    tail = np.log(1.0 - np.arange(len(ordered)) / len(ordered))
    inside = slice(*(int(q * len(ordered)) for q in between))
    t, logs = ordered[inside], tail[inside]
    slope, intercept = np.polyfit(t, logs, 1)
    left = logs - slope * t - intercept
    fit = 1.0 - (left**2).sum() / ((logs - logs.mean()) ** 2).sum()
    return Line(float(slope), float(intercept), float(fit))


def lines_of(values: Array, between: tuple[float, float] = FITTED) -> tuple[Array, Array]:
    """Slope and R^2 of the line of every draw, (draws,) each; `values` (draws, pairs)."""
    lines = [line_fit(row, between) for row in values]
    return np.array([line.slope for line in lines]), np.array([line.fit for line in lines])


def tail_checks(label: str, values: Array) -> list[Check]:
    """The logarithm of the tail falls in every draw, and is a line in the mean over draws."""
    slopes, fits = lines_of(values)
    return [
        Check(f"{label}: the line fitted to log P falls", slopes < 0, at_least=1.0),
        Check(f"{label}: log P is a line in t, R^2 at least {STRAIGHT:g}", fits, at_least=STRAIGHT),
    ]


def bending(values: Array) -> Array:
    """log of the slope of log P beyond the median over that before it, of every draw, (draws,).

    0 for an exponential tail, above 0 where it falls faster than one, below 0 for a heavier one.

    >>> rng = np.random.default_rng(0)
    >>> exponential, heavy = rng.exponential(size=(5, 4000)), rng.pareto(2.0, size=(5, 4000))
    >>> bool(abs(bending(exponential).mean()) < 0.1), bool((bending(heavy) < -0.5).all())
    (True, True)
    """
    near, _ = lines_of(values, NEAR)
    far, _ = lines_of(values, FAR)
    return np.log(far / near)


def decay_checks(label: str, values: Array) -> list[Check]:
    """The tail falls in every draw, and at least exponentially: log P is a line, or bends down."""
    slopes, _ = lines_of(values)
    return [
        Check(f"{label}: the line fitted to log P falls", slopes < 0, at_least=1.0),
        Check(
            f"{label}: beyond the median log P falls at least {AS_FAST:g} times as fast as before (log of the ratio)",
            bending(values),
            at_least=float(np.log(AS_FAST)),
        ),
    ]
