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

# The even part of the first metric, by which it falls from one to the next, and what it falls to: so much of the
# tolerance, since about so many times it is the gap that it leaves.
EVEN, FALL = 0.3, 0.4
LEAST_EVEN = {"nuclear": 0.1, "entrywise max": 0.1, "spectral": 0.025}
FINEST = 1e-10


def metric_of(norm: str, W: Array, S: Array, round_: int, tolerance: float) -> Metric:
    """The metric for the next steps in this norm, from where W and S = sum l A are; `round_` counts from 0."""
    followed = W if norm == "nuclear" else S
    if not followed.any() or not np.isfinite(followed).all():
        return Metric()
    even = max(EVEN * FALL**round_, LEAST_EVEN[norm] * tolerance, FINEST)
    if norm == "entrywise max":
        sizes = np.abs(S)
        sizes = sizes / float(sizes.max()) + even
        return Metric(entries=1.0 / np.sqrt(sizes))
    left, singular, right = np.linalg.svd(followed)
    sizes = singular / singular[0] + even  # (min(a, b),)
    power = 0.25 if norm == "nuclear" else -0.25
    return Metric(left=_side(left, sizes, even, power), right=_side(right.T, sizes, even, power))


def _side(basis: Array, sizes: Array, even: float, power: float) -> Array:
    """U diag(sizes^power) U^T, where directions beyond those that have sizes have the size `even`."""
    full = np.full(len(basis), even)
    full[: len(sizes)] = sizes
    return (basis * full**power) @ basis.T
