"""What stays finite when attention settles on several tokens, and how it mixes with what grows.

The weights of a long run are W^fin + gamma W^mm / |W^mm|. The max-margin part W^mm of `solve_generalized` grows and
holds the kept tokens level; the finite part W^fin sets how attention is shared among them. `finite_part` finds W^fin
from the attention, `combine` the mixture that explains measured weights best (Section 6 of *Transformers as Support
Vector Machines*).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import finite_array, flag, real_array
from attnlab.data.directions import misalignment
from attnlab.data.span import spanning
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.svm.generalized import check_kept
from attnlab.svm.ranges import LEAST, MOST, largest_exponent
from attnlab.svm.rows import ORDINARY

# Logarithms that differ by more have no sums.
FARTHEST = 1e300
# Log-ratios that no W fits better than this, relative to the largest of them, are not those of an attention map.
FITS = 1e-6
# Up to this many numbers the least-squares system is written out; beyond, it is solved by products alone.
WRITTEN_OUT = 4_000_000


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FinitePart:
    """The least W whose attention has the given ratios among the kept tokens.

    Attributes:
        W: (d, d); zero if every query keeps one token.
        residual: largest `|(x_t - x_s)^T W z - log(s_t / s_s)|` over pairs of kept tokens.
        consistent: is the residual at most 1e-6 of the largest log-ratio (or of 1)?
    """

    W: Array
    residual: float
    consistent: bool

    def __repr__(self) -> str:
        return f"FinitePart(|W|={_direction(self.W)[1]:.4g}, residual={self.residual:.1e})"


def finite_part(
    tokens: Tokens, attention: ArrayLike, kept: ArrayLike, *, logarithmic: bool = False, throw: bool = True
) -> FinitePart:
    """W^fin: the least W (Frobenius) with `(x_t - x_s)^T W z = log(s_t / s_s)` for the kept tokens of each query.

    It lies in the span of the equalities of `solve_generalized`, and the max-margin W is orthogonal to that span: the
    two parts never mix (Section 6 of *Transformers as Support Vector Machines*).

    Args:
        tokens: one data set.
        attention: softmax weights, (n, T) or (n, K, T). Only ratios among kept tokens matter.
        kept: which tokens keep attention, as in `solve_generalized`.
        logarithmic: `attention` holds logarithms, up to one constant per query: log weights, or the logits x W z.
            Then nothing underflows.
        throw: raise `InputError` where no W has these ratios; else return the least-squares W, whose `consistent` is
            False. It weighs queries as if their tokens and they themselves had one size.

    Returns:
        A `FinitePart`.

    >>> import attnlab as al
    >>> tokens = al.Tokens(x=[[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]], z=[[1.0, 0.0]], y=[1])
    >>> finite_part(tokens, [[3.0, 1.0, 0.0]], [[True, True, False]], logarithmic=True).W.round(12).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    level = check_kept(tokens, kept)
    flag("logarithmic", logarithmic)
    flag("throw", throw)
    logs = _logarithms(attention, level, logarithmic)
    T, d = tokens.T, tokens.d
    level, logs = level.reshape(-1, T), logs.reshape(-1, T)
    queries = tokens.z.reshape(-1, d)
    sequence = np.repeat(np.arange(tokens.n), len(queries) // tokens.n)
    # A query that keeps one token asks nothing; its tokens, of whatever size, are to decide nothing.
    sharing = level.sum(-1) > 1
    if not sharing.any():
        return FinitePart(W=np.zeros((d, d)), residual=0.0, consistent=True)
    level, logs, queries, sequence = level[sharing], logs[sharing], queries[sharing], sequence[sharing]
    query, token = np.nonzero(level)
    x = np.where(level[:, :, None], tokens.x[sequence], 0.0)
    x, queries, powers, power = _at_common_scale(x, queries)
    # Deviations from the mean of the kept tokens treat all pairs alike: no anchor.
    count = level.sum(-1)
    p = (x - (x.sum(1) / count[:, None])[:, None])[query, token]
    target = (logs - (logs.sum(-1) / count)[:, None])[query, token]
    with np.errstate(all="ignore"):
        W = _least_solution(p, queries, query, target, powers[query])
        values = np.ldexp(np.einsum("jd,jd->j", p, (queries @ W.T)[query]), powers[query])
        residual = _spread(values - target, query, len(queries))
        largest = largest_exponent(np.abs(W), -power) if np.isfinite(residual) else MOST + 1
        W = np.ldexp(W, -power)
    if largest is not None and not LEAST <= largest <= MOST:
        told = "small that the weights with this attention overflow"
        if largest < LEAST:
            told = "large that the weights with this attention underflow"
        raise InputError(
            message(
                f"`tokens` are so {told} float64.",
                "scale the tokens by a and the queries by b; W then scales by 1 / (a b)",
            )
        )
    consistent = residual <= FITS * max(1.0, _spread(target, query, len(queries)))
    if throw and not consistent:
        raise InputError(
            message(
                f"`attention` is not what any W gives on the kept tokens: log-ratios are missed by {residual:.1e}.",
                "equal tokens have equal attention; throw=False returns the least-squares W",
            )
        )
    return FinitePart(W=W, residual=residual, consistent=consistent)


def _at_common_scale(x: Array, queries: Array) -> tuple[Array, Array, NDArray[np.intp], int]:
    """Tokens (M, T, d) and queries (M, d) with what their products were divided by: 2^(powers + power).

    Nothing changes at ordinary scale. Else the tokens and the query of each row are of order one, and `powers`, (M,),
    at most 0, tells how much shorter than the longest its products were.
    """
    sizes, far = np.abs(x).max((1, 2)), np.abs(queries).max(1)
    ordinary = all(part.min() > 1.0 / ORDINARY and part.max() < ORDINARY for part in (sizes, far))
    if ordinary:
        return x, queries, np.zeros(len(x), dtype=np.intp), 0
    token_exponents, query_exponents = np.frexp(sizes)[1].astype(np.intp), np.frexp(far)[1].astype(np.intp)
    powers = token_exponents + query_exponents
    live = (sizes > 0) & (far > 0)
    power = int(powers[live].max()) if live.any() else 0
    x = np.ldexp(x, -token_exponents[:, None, None])
    queries = np.ldexp(queries, -query_exponents[:, None])
    return x, queries, np.where(live, powers - power, 0), power


def _logarithms(attention: ArrayLike, level: NDArray[np.bool_], logarithmic: bool) -> Array:
    """Log attention of the kept tokens, zero elsewhere, with the largest of each query taken off."""
    given = real_array("attention", attention)
    if given.shape != level.shape:
        raise InputError(message(f"`attention` has shape {given.shape}; wanted one entry per token, {level.shape}."))
    inside = given[level]
    if logarithmic and not np.isfinite(inside).all():
        raise InputError(message("`attention` has logarithms of kept tokens that are not finite."))
    if not logarithmic and not ((inside > 0) & np.isfinite(inside)).all():
        raise InputError(
            message(
                "`attention` of some kept tokens is not a positive number.",
                "kept tokens have attention above 0; if it underflowed, pass logarithms and logarithmic=True",
            )
        )
    logs = np.full(level.shape, -np.inf)
    logs[level] = inside if logarithmic else np.log(inside)
    with np.errstate(over="ignore"):
        below = np.where(level, logs - logs.max(-1, keepdims=True), 0.0)
    if (below < -FARTHEST).any():
        raise InputError(
            message(
                f"`attention` has logarithms of kept tokens that differ by {-below.min():.1e}; {FARTHEST:.0e} is most."
            )
        )
    return below


def _least_solution(
    p: Array, queries: Array, query: NDArray[np.intp], target: Array, powers: NDArray[np.intp]
) -> Array:
    """The least W with 2^powers_j p_j . W q_j = target_j, by least squares.

    The rows of a query share one scale, which is removed; infinite where that leaves no float64 numbers.
    W = U M V^T with U, V orthonormal bases of the differences and of the queries (both at any scale).
    """
    starts = np.flatnonzero(np.diff(query, prepend=-1))
    largest = np.maximum.reduceat(np.abs(p).max(1), starts)
    far, near = largest[np.cumsum(np.diff(query, prepend=-1) > 0) - 1], np.abs(queries).max(1)[query]
    possible = (far > 0) & (near > 0)  # 0 = target is left to the residual
    if not possible.any():
        return np.zeros((p.shape[1], queries.shape[1]))
    p, query, target, powers = p[possible], query[possible], target[possible], powers[possible]
    far, near = far[possible], near[possible]
    # One common size is divided out last; what is left per row scales that row only.
    sizes = far.max(), near.max()
    row = np.ldexp((far / sizes[0]) * (near / sizes[1]), powers)
    p = p / far[:, None]
    q = queries[query] / near[:, None]
    U, V = spanning(p), spanning(queries[np.unique(query)])
    left, right = p @ U, q @ V
    shape = (left.shape[1], right.shape[1])
    wanted = target / row
    if not np.isfinite(wanted).all():
        return np.full((p.shape[1], queries.shape[1]), np.inf)
    if left.size * right.shape[1] <= WRITTEN_OUT:
        system = np.einsum("ja,jb->jab", left, right).reshape(len(left), -1)
        M = np.linalg.lstsq(system, wanted, rcond=None)[0].reshape(shape)
    else:
        M = _least_squares_by_products(left, right, wanted)
    return U @ M @ V.T / sizes[0] / sizes[1]


def _least_squares_by_products(left: Array, right: Array, target: Array) -> Array:
    """The same least-squares M, from products with the rows alone."""
    from scipy.sparse.linalg import LinearOperator, lsmr

    make: Any = LinearOperator
    shape = (left.shape[1], right.shape[1])
    rows = make(
        (len(target), shape[0] * shape[1]),
        matvec=lambda m: np.einsum("ja,ja->j", left, right @ m.reshape(shape).T),
        rmatvec=lambda w: (left.T @ (w.reshape(-1, 1) * right)).reshape(-1),
    )
    return lsmr(rows, target, atol=1e-14, btol=1e-14, conlim=0.0, maxiter=20 * len(target))[0].reshape(shape)


def _spread(errors: Array, query: NDArray[np.intp], queries: int) -> float:
    """The largest difference of two entries of one query; every query has some."""
    high, low = np.full(queries, -np.inf), np.full(queries, np.inf)
    np.maximum.at(high, query, errors)
    np.minimum.at(low, query, errors)
    return float((high - low).max())


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Combination:
    """W^SVMeq = W^fin + gamma W^mm / |W^mm|, the mixture of the two parts that is nearest in angle to a measured W.

    Attributes:
        W: the mixture; W^mm itself where gamma is infinite, zero if both parts are.
        gamma: at least 0; inf where W^mm alone does best (always if W^fin = 0).
        correlation: cosine of the mixture with the measured W; NaN if both parts are zero.
        misalignment: 1 - correlation, without cancellation.
        finite_correlation, margin_correlation: cosines of W^fin and of W^mm alone; NaN for a part that is zero.
        least_squares_gamma: the gamma, of either sign, that brings the mixture nearest in distance.
        least_squares_correlation: cosine of that mixture; NaN if it is zero.
    """

    W: Array
    gamma: float
    correlation: float
    misalignment: float
    finite_correlation: float
    margin_correlation: float
    least_squares_gamma: float
    least_squares_correlation: float

    def __repr__(self) -> str:
        return f"Combination(gamma={self.gamma:.4g}, misalignment={self.misalignment:.3g})"


def combine(finite: ArrayLike, margin: ArrayLike, W: ArrayLike) -> Combination:
    """The mixture of the finite and the max-margin part that explains the direction of measured weights best.

    With unit matrices f, m, w along the three, a = <f, w>, b = <m, w> and c = <f, m>, the correlation of
    `finite + gamma m` with W is greatest at

        gamma = |finite| (b - a c) / (a - b c)      if both differences are positive,

    and otherwise at an end: gamma = 0 (W^fin alone) or infinite (W^mm alone), whichever correlates better. The parts
    returned by `finite_part` and `solve_generalized` have c = 0; then gamma = |finite| b / a, and the squares of the
    two correlations add up to that of the mixture.

    Args:
        finite: W^fin, (d, d), for instance `finite_part(...).W`.
        margin: W^mm, (d, d), for instance `solve_generalized(...).W`.
        W: the measured weights, not zero.

    Returns:
        A `Combination`.

    >>> mixed = combine([[3.0, 0.0]], [[0.0, 2.0]], [[3.0, 4.0]])
    >>> mixed.gamma, mixed.W.tolist(), round(mixed.correlation, 12)
    (4.0, [[3.0, 4.0]], 1.0)
    """
    parts = [_matrix(name, given) for name, given in (("finite", finite), ("margin", margin), ("W", W))]
    if len({part.shape for part in parts}) > 1:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise InputError(message(f"`finite`, `margin`, `W` have shapes {shapes}; wanted one shape."))
    with np.errstate(over="ignore"):
        (f, size), (m, reach), (w, length) = (_direction(part) for part in parts)
    for name, number in (("finite", size), ("margin", reach), ("W", length)):
        if not np.isfinite(number):
            raise InputError(message(f"`{name}` is longer than the largest float64 number, 1.8e308.", f"{name} / 16"))
    if length == 0:
        raise InputError(message("`W` is zero; it has no direction to compare with."))
    a, b, c = float(np.sum(f * w)), float(np.sum(m * w)), float(np.sum(f * m))
    rise, fall = b - a * c, a - b * c
    if size and reach and rise > 0 and fall > 0:
        with np.errstate(over="ignore"):
            gamma = size * (rise / fall)
    else:
        gamma = np.inf if reach and (not size or b > a) else 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        best = parts[1] if gamma == np.inf else parts[0] + gamma * m
        nearest = length * b - size * c if reach else 0.0
        mixed = parts[0] + nearest * m
    if not (np.isfinite(best).all() and np.isfinite(mixed).all()):
        raise InputError(
            message(
                "`finite` and `W` are so long that their mixture is no matrix of float64 numbers.",
                "divide both by one power of two; gamma is divided by it too",
            )
        )
    return Combination(
        W=best,
        gamma=gamma,
        correlation=_cosine(best, w),
        misalignment=float(misalignment(best, w)) if best.any() else np.nan,
        finite_correlation=a if size else np.nan,
        margin_correlation=b if reach else np.nan,
        least_squares_gamma=nearest,
        least_squares_correlation=_cosine(mixed, w),
    )


def _matrix(name: str, given: ArrayLike) -> Array:
    matrix = finite_array(name, given)
    if matrix.ndim != 2:
        raise InputError(message(f"`{name}` has shape {matrix.shape}; wanted one matrix of finite numbers."))
    return matrix


def _direction(matrix: Array) -> tuple[Array, float]:
    """The unit matrix along this one, and its norm, at any scale; zero for zero."""
    largest = float(np.abs(matrix).max(initial=0.0))
    if largest == 0:
        return matrix, 0.0
    length = float(np.linalg.norm(matrix / largest))
    with np.errstate(under="ignore"):
        return matrix / largest / length, largest * length


def _cosine(matrix: Array, direction: Array) -> float:
    unit, length = _direction(matrix)
    return float(np.sum(unit * direction)) if length else np.nan
