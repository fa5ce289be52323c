"""Hard-margin classifiers without bias, for features or for a kernel: the best margin between two bounds.

    min |u|   subject to   y_i u.x_i >= 1;          margin of the best unit direction = 1 / |u|

Any multipliers a >= 0 of the dual, with u = sum a_i y_i x_i, bracket that margin:

    lower = min_i y_i u.x_i / |u|   <=   margin   <=   upper = |sum a_i y_i x_i| / sum a_i

For a kernel everything is read from the Gram matrix, |u|^2 = a.K_y a and y_i u.x_i = (K_y a)_i with K_y = y y^T * K. A
proof that no u separates is the upper bound taken to zero: weights whose combination cancels.

The dual is solved for a working set of points, exactly: active sets, or non-negative least squares where those fail.
Points that the result misclassifies join; points without weight leave. Each round raises the least |u|, so it ends. Up
to a thousand points the working set is all of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.lapack import dgeqrf, dpotrs  # pyright: ignore[reportAttributeAccessIssue]

from attnlab.checks import finite_array
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.svm.certificate import UNSURE
from attnlab.svm.dual import active_set
from attnlab.svm.nonnegative import non_negative
from attnlab.svm.points import FeaturePoints, KernelPoints, SignedPoints
from attnlab.svm.proof import proving_vectors, unit_exponents
from attnlab.svm.rows import ORDINARY, check_tolerance
from attnlab.svm.separation import (
    HardMargin as HardMargin,
    Lengths,
    SeparationStatus as SeparationStatus,
    not_separable,
)

# Up to WHOLE points the working set is all of them; up to DENSE all of them are tried once, if they may be independent.
WHOLE, DENSE, JOIN, ROUNDS = 1000, 4000, 400, 200


def linear_margin(features: ArrayLike, labels: ArrayLike, *, tolerance: float = 1e-10) -> HardMargin:
    """The least u with `y_i u.x_i >= 1`, and the best margin 1 / |u| it proves.

    With the optimal tokens as features this is the u-SVM, to which the head converges under joint training.

    Args:
        features: x, (N, d).
        labels: y, +1 or -1, (N,).
        tolerance: relative gap of the two bounds to reach.

    Returns:
        A `HardMargin`; labels that no u separates are an outcome, with a proof.

    >>> found = linear_margin([[2.0, 0.0], [0.0, 2.0]], [1, -1])
    >>> found.weights.tolist(), round(found.margin, 12)
    ([0.5, -0.5], 1.414213562373)
    """
    x, y = finite_array("features", features), _labels(labels)
    if x.shape[:1] != y.shape or x.ndim != 2 or x.shape[1] == 0:
        raise InputError(message(f"`features` has shape {x.shape}; {len(y)} labels need ({len(y)}, d)."))
    tolerance = check_tolerance(tolerance)
    with np.errstate(all="ignore"):
        return _checked(least_classifier(x, y, tolerance), y[:, None] * x)


def least_classifier(x: Array, y: Array, tolerance: float) -> HardMargin:
    """`linear_margin` of features of any scale; a proof that nothing separates is judged by its norm alone."""
    sizes = np.abs(x).max(axis=1, initial=0.0)
    if not sizes.any():
        return not_separable(np.ones(len(y)) / len(y), 0.0, 0.0)
    if not _is_ordinary(sizes):
        units, exponents = unit_exponents(x)
        common = Lengths.of(exponents, sizes > 0)
        small = np.ldexp(units, common.kept[:, None])
        points, scale = _features(small, y)
        return common.restored(
            _attempt(points, scale, tolerance), FeaturePoints(y[:, None] * small), "features", tolerance
        )
    return _attempt(*_features(x, y), tolerance)


def _features(x: Array, y: Array) -> tuple[FeaturePoints, float]:
    """The signed points in units of their largest entry, and that."""
    scale = float(np.abs(x).max())
    return FeaturePoints(y[:, None] * (x / scale)), scale


def _is_ordinary(sizes: Array) -> bool:
    """Are the sizes of the points such that their squares and quotients are float64 numbers? Zeros are no obstacle."""
    largest = float(sizes.max())
    smallest = float(sizes.min(where=sizes > 0, initial=np.inf))
    return 1.0 / ORDINARY**4 <= largest <= ORDINARY**4 and smallest >= largest / ORDINARY**4


def _checked(found: HardMargin, signed: Array) -> HardMargin:
    """Not separable only with weights whose combination cancels in every entry."""
    if found.status is not SeparationStatus.NOT_SEPARABLE:
        return found
    assert found.farkas is not None
    proof = proving_vectors(signed, found.farkas)
    if proof is None:
        return replace(found, status=SeparationStatus.UNDECIDED)
    return replace(found, farkas=proof)


def _attempt(points: SignedPoints, scale: float, tolerance: float) -> HardMargin:
    """Bracket the margin; undecided where linear algebra fails."""
    try:
        return _solve(points, scale, tolerance)
    except np.linalg.LinAlgError:
        unknown = np.full(len(points.lengths), np.nan)
        return not_separable(unknown, np.inf, np.inf, SeparationStatus.UNDECIDED)


def kernel_margin(gram: ArrayLike, labels: ArrayLike, *, tolerance: float = 1e-8) -> HardMargin:
    """The best margin of a classifier without bias in the feature space of a kernel, from its Gram matrix.

    A Gram matrix knows lengths to about 1e-8 of the largest: margins below 1e-7 of it count as none.

    With the tangent kernel of a network at its start this is the margin of property P3 of *On the Optimization and
    Generalization of Multi-head Attention*; the directions there have norm sqrt(2), so multiply by that.

    Args:
        gram: K_ij = k(x_i, x_j), symmetric and positive semidefinite, (N, N); it may be singular.
        labels: y, +1 or -1, (N,).
        tolerance: relative gap of the two bounds to reach.

    Returns:
        A `HardMargin` without weights.

    >>> kernel_margin([[4.0, 0.0], [0.0, 4.0]], [1, -1]).multipliers.tolist()
    [0.25, 0.25]
    """
    K, y = finite_array("gram", gram), _labels(labels)
    if K.shape != (len(y), len(y)):
        raise InputError(message(f"`gram` has shape {K.shape}; {len(y)} labels need {(len(y), len(y))}."))
    tolerance = check_tolerance(tolerance)
    with np.errstate(all="ignore"):
        return _least_in_feature_space(K, y, tolerance)


def _least_in_feature_space(K: Array, y: Array, tolerance: float) -> HardMargin:
    """`kernel_margin` of a Gram matrix of any scale."""
    largest = float(np.abs(K).max())
    if largest == 0:
        return not_separable(np.ones(len(y)) / len(y), 0.0, 0.0)
    _check_kernel(K / largest)
    diagonal = np.maximum(K.diagonal(), 0.0)
    if not _is_ordinary(np.append(diagonal, largest)):
        exponents = np.where(diagonal > 0, (np.frexp(diagonal)[1] + 1) // 2, 0).astype(np.intp)  # of the lengths
        common = Lengths.of(exponents, diagonal > 0)
        powers = common.kept - exponents
        small = np.ldexp(np.ldexp(K, powers[:, None]), powers)
        if not float(np.abs(small).max()) <= 4.0 * float(small.diagonal().max()):
            raise InputError(_no_gram())
        _check_kernel(small / float(np.abs(small).max()))
        points, scale = _kernel(small, y)
        whole = KernelPoints(points.signed * float(np.abs(small).max()))
        return common.restored(_attempt(points, scale, tolerance), whole, "gram", tolerance)
    return _attempt(*_kernel(K, y), tolerance)


def _kernel(K: Array, y: Array) -> tuple[KernelPoints, float]:
    """The signed Gram matrix in units of its largest entry, and the root of that."""
    largest = float(np.abs(K).max())
    K = K / largest
    return KernelPoints((0.5 * (K + K.T)) * np.outer(y, y)), float(np.sqrt(largest))


def _solve(points: SignedPoints, scale: float, tolerance: float) -> HardMargin:
    """Bracket the margin of points that are given in units of `scale`."""
    zero = points.lengths == 0
    if zero.any():  # y u.0 >= 1
        return not_separable(zero / zero.sum(), 0.0, 0.0)
    bound = 1.0 / points.lengths
    weights, proved = _search(points, bound / bound.max(), tolerance)
    multipliers = weights * bound
    if multipliers.sum() == 0:
        return not_separable(np.full(len(bound), np.nan), np.inf, np.inf, SeparationStatus.UNDECIDED)
    values, length, u = points.measured(multipliers)
    upper = length / float(multipliers.sum())
    sizes, combined = float(multipliers @ points.lengths), length
    if not proved and upper * length > (1.0 + tolerance) * values.min():
        other = points.sharper(multipliers)
        if other[0].min() * length > values.min() * other[1]:
            values, length, u = other
    least = float(values.min())
    lowest = float((values - points.seen(multipliers, u)[2]).min())
    lower = least / length if length > 0 else 0.0
    with np.errstate(all="ignore"):
        weights = None if u is None else u / least / scale
    told = weights is None or np.isfinite(weights).all()
    if proved or not (lowest > 0 and combined > 0 and lower > 0 and told):
        cancelled = proved and combined <= points.cancels * sizes
        status = SeparationStatus.NOT_SEPARABLE if cancelled else SeparationStatus.UNDECIDED
        return not_separable(multipliers / multipliers.sum(), upper * scale, combined / sizes, status)
    gap = max(upper / lower - 1.0, 0.0)
    stated = multipliers / combined / lower / scale / scale
    certified = gap <= tolerance and lowest >= (1.0 - UNSURE) * least
    # |u - u*|^2 <= |u|^2 - |u*|^2, so a value is uncertain by that much times |x|.
    slack = np.sqrt(gap * (2.0 + gap)) / lower * points.lengths + 1e-12
    return HardMargin(
        weights=weights,
        multipliers=stated if np.isfinite(stated).all() else multipliers / multipliers.max(),
        lower=lower * scale,
        upper=upper * scale,
        gap=gap,
        support=values <= least * (1.0 + slack) if float(slack.max()) <= 0.05 else None,
        status=SeparationStatus.OPTIMAL if certified else SeparationStatus.INACCURATE,
    )


def _search(points: SignedPoints, bound: Array, tolerance: float) -> tuple[Array, bool]:
    """Multipliers of the unit points; or, with True, weights of points that cancel."""
    N = len(bound)
    if N <= DENSE:
        whole = _by_active_sets(points, np.arange(N), bound, tolerance)
        if whole is not None:
            return whole, False
    chosen = np.arange(N)
    if N > WHOLE:
        chosen = np.sort(np.argsort(points.values(np.ones(N)))[:JOIN])
    weights = np.zeros(N)
    for _ in range(ROUNDS):
        inside, cancelled = _exact(points, chosen, bound[chosen], tolerance)
        weights = np.zeros(N)
        weights[chosen] = inside
        if cancelled:
            return weights, True
        short = points.values(weights) / bound
        left = np.setdiff1d(np.argsort(short)[:JOIN], chosen[inside > 0])
        left = left[short[left] < 1.0 - 0.1 * min(tolerance, 1e-6)]
        if not np.setdiff1d(left, chosen).size:
            break
        chosen = np.union1d(chosen[inside > 0], left)
    return weights, False


def _by_active_sets(points: SignedPoints, index: NDArray[np.intp], bound: Array, tolerance: float) -> Array | None:
    """Multipliers of some of the points if active sets find them: dependent points can mislead that method."""
    if not points.may_be_independent(len(index)):
        return None
    gram = points.gram(index)
    found = active_set(gram, bound)
    if found is None:
        return None
    values = gram @ found
    least, total = float((values / bound).min()), float(bound @ found)
    good = least > 0 and float(found @ values) <= (1.0 + max(tolerance, points.settles)) * least * total
    return found if good else None


def _exact(points: SignedPoints, index: NDArray[np.intp], bound: Array, tolerance: float) -> tuple[Array, bool]:
    """Multipliers of some of the points, by least distance: with G = F F^T, min |[F^T; b] w - e| over w >= 0.

    With residual r: if it is zero the weighted points cancel; else the multipliers are w over -r_last.
    """
    found = None
    if len(index) < len(points.lengths):  # all of them were tried already
        found = _by_active_sets(points, index, bound, tolerance)
    if found is not None:
        return found, False
    F = points.factor(index)
    stacked = np.vstack([F.T, bound])
    target = np.zeros(len(stacked))
    target[-1] = 1.0
    w = non_negative(stacked, target)
    if w is None:
        return np.zeros(len(bound)), False
    if np.linalg.norm(w @ F) <= points.cancels * w.sum():
        return w, True
    # |r|^2 = -r_last at the solution. The square keeps its digits where 1 - b.w has none.
    plain = w / float(np.sum((w @ F) ** 2) + (1.0 - bound @ w) ** 2)
    return min((plain, _polished(F, bound, plain)), key=lambda a: _gap(F, bound, a)), False


def _polished(F: Array, bound: Array, multipliers: Array) -> Array:
    """The same support with its equations solved again: u from F u = b, then the multipliers from u = F^T a.

    With F^T = Q R for the support these are u = Q R^-T b and a = R^-1 Q^T u.
    """
    index = np.flatnonzero(multipliers > 0)
    if len(index) > F.shape[1]:
        return multipliers
    R = dgeqrf(F[index].T)[0][: len(index)]
    solved = dpotrs(R, bound[index])[0]
    if not np.isfinite(solved).all():
        return multipliers
    again = np.zeros_like(multipliers)
    again[index] = np.maximum(solved, 0.0)
    return again


def _gap(F: Array, bound: Array, multipliers: Array) -> float:
    u = multipliers @ F
    least, total = float((F @ u / bound).min()), float(bound @ multipliers)
    return float(u @ u) / (least * total) - 1.0 if least > 0 and total > 0 else np.inf


def _check_kernel(K: Array) -> None:
    """Refuse a matrix that is no Gram matrix: not symmetric, or with an eigenvalue below 0 by more than rounding."""
    if float(np.abs(K - K.T).max()) > 1e-9:
        raise InputError(message("`gram` is not symmetric; wanted K_ij = k(x_i, x_j).", "0.5 * (K + K.T)"))
    try:
        np.linalg.cholesky(K + 1e-11 * len(K) * np.eye(len(K)))
    except np.linalg.LinAlgError:
        raise InputError(_no_gram()) from None


def _no_gram() -> str:
    return message("`gram` has a negative eigenvalue; wanted a positive semidefinite matrix.", "K = F @ F.T")


def _labels(given: ArrayLike) -> Array:
    labels = finite_array("labels", given)
    if labels.ndim != 1 or not labels.size or not (np.abs(labels) == 1).all():
        raise InputError(
            message(f"`labels` has shape {labels.shape}; wanted +1 or -1 for each point.", "for 0/1 pass 2 * y - 1")
        )
    return labels
