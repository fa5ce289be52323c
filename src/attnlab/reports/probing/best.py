"""The best margin that any weights could give: brackets from `attnlab.svm`, one for each head of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.reports.probing.layout import Mask
from attnlab.svm import bracket_margins

# Names of norms here and in `attnlab.svm`.
NORMS = {"frobenius": "frobenius", "nuclear": "nuclear", "spectral": "spectral", "max": "entrywise max"}


@dataclass(frozen=True, eq=False)
class Best:
    """Best margins of B selections.

    Attributes:
        lower, upper: (B,) between which the best margin is.
        W: (B, a, b) weights of norm 1 that attain the lower one.
        multipliers: (B, n, T) which rivals hold it.
    """

    lower: Array
    upper: Array
    W: Array
    multipliers: Array


def best_margins(
    keys: Array,
    queries: Array,
    selected: NDArray[np.intp],
    choosable: Mask,
    *,
    norm: str,
    tolerance: float,
    start: Array,
) -> Best:
    """Of keys (B, n, T, a), queries (B, n, b), selected (B, n) and choosable (B, n, T), from weights that separate."""
    brackets = bracket_margins(
        keys, queries, selected, norm=NORMS[norm], mask=choosable, tolerance=tolerance, start=start
    )
    return Best(
        lower=np.array([one.lower for one in brackets]),
        upper=np.array([one.upper for one in brackets]),
        W=np.stack([one.W for one in brackets]),
        multipliers=np.stack([one.multipliers for one in brackets]),
    )


def norm_of(weights: Array, norm: str) -> Array:
    """(B,) of weights (B, a, b).

    >>> W = np.diag([3.0, 4.0])[None]
    >>> [float(norm_of(W, norm)[0]) for norm in NORMS]
    [5.0, 7.0, 4.0, 4.0]
    """
    if norm == "max":
        return np.abs(weights).max((-2, -1))
    if norm == "frobenius":
        return np.linalg.norm(weights, axis=(-2, -1))
    singular = np.linalg.svd(weights, compute_uv=False)
    return singular.sum(-1) if norm == "nuclear" else singular.max(-1)
