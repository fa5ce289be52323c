"""The other norms of `bracket_margin`, each as the best of many Euclidean ones.

With positive definite M and N of trace 1, and positive D of sum 1, Hoelder's inequality says, with equality at the M, N
and D named,

    |W|_nuclear <= |M^-1/4 W N^-1/4|_F,      M ~ (W W^T)^1/2,  N ~ (W^T W)^1/2,
    sum |S|     <= |D^-1/2 S|_F entry by entry,  D ~ |S|.

So the nuclear problem is a Euclidean one in the metric of its own solution W. The dual problem of the spectral norm has
the nuclear norm of S = sum l A, and that of the largest entry has sum |S|: they are Euclidean in the metric of their
own S. From step to step the metric follows W or S, and a part of it is even, less and less: what is zero now may grow.
"""

from __future__ import annotations

import numpy as np

from attnlab.data.tokens import Array
from attnlab.svm.augmented import Metric

EVEN, LEAST_EVEN, FALL = 0.3, 1e-4, 0.5


def metric_of(norm: str, W: Array, S: Array, round_: int) -> Metric:
    """The metric for the next steps in this norm, from where W and S = sum l A are; `round_` counts from 0."""
    if norm == "frobenius":
        return Metric()
    even = max(EVEN * FALL**round_, LEAST_EVEN)
    if norm == "entrywise max":
        sizes = np.abs(S)
        sizes = sizes + even * float(sizes.max())
        return Metric(entries=np.sqrt(float(sizes.max()) / sizes))
    left, singular, right = np.linalg.svd(W if norm == "nuclear" else S)
    sizes = singular / singular[0] + even  # (min(a, b),)
    power = 0.25 if norm == "nuclear" else -0.25
    return Metric(left=_side(left, sizes, even, power), right=_side(right.T, sizes, even, power))


def _side(basis: Array, sizes: Array, even: float, power: float) -> Array:
    """U diag(sizes^power) U^T, where directions beyond those that have sizes have the size `even`."""
    full = np.full(len(basis), even)
    full[: len(sizes)] = sizes
    return (basis * full**power) @ basis.T
