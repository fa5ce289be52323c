"""The max-margin problem over keys and queries, W = K Q^T with K and Q of shape (d, m).

    minimize (|K|^2 + |Q|^2) / 2   subject to   <A_j, K Q^T> >= 1

This is the nuclear-norm problem with rank(W) <= m: the best factors of a given W are balanced, and cost |W|_*. If the
nuclear-norm optimum has rank at most m, its factors solve it. If not, the problem is not convex. Then several starts
go through an augmented Lagrangian (L-BFGS inside), and Newton's method on the KKT conditions

    K = M Q,  Q = M^T K,  M = sum_j l_j A_j,  l >= 0,  l_j (<A_j, K Q^T> - 1) = 0

takes the results to rounding. The best KKT point is returned. For any l >= 0 the number `sum l / |M|`, with the
spectral norm, bounds the optimum from below; so the distance to the bound is a certificate, and the point is a global
optimum where |M| <= 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import enough_memory, flag, whole
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InfeasibleSelection, InputError, message
from attnlab.svm.certificate import EPS
from attnlab.svm.factors import Factors, Point, balanced, local_solutions, polished, random_starts
from attnlab.svm.rows import Rows, check_selected, check_tolerance, selected_rows
from attnlab.svm.scales import check_range, normalized
from attnlab.svm.solution import MarginSolution, MarginStatus

TOLERANCE = 1e-8
# KKT residuals up to this make a local solution.
STATIONARY = 1e-7


class FactoredStatus(Enum):
    """What was found, as a sentence."""

    GLOBAL = "Solved: the value meets a certified lower bound."
    LOCAL = "A local solution: a KKT point. The global optimum is at least `lower_bound`; see `gap`."
    INACCURATE = "K and Q separate the selected tokens, but are no KKT point to the tolerance; see `stationarity`."
    NOT_FOUND = "No K and Q of this width that separate the selected tokens were found; there may be some."
    INFEASIBLE = "No W of any rank separates the selected tokens from the others; see `convex.farkas`."
    UNDECIDED = "Whether any W separates the selected tokens is too close to call in float64."
    UNCONSTRAINED = "There is nothing to separate: every query sees one token. K = Q = 0."


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class FactoredSolution:
    """Least K and Q with `(x_selected - x_t)^T K Q^T z >= 1` for every query and every other visible token.

    Attributes:
        K, Q: (d, m), balanced: K^T K = Q^T Q. Unique only up to a common rotation of their columns; NaN if none.
        W: K Q^T.
        value: (|K|^2 + |Q|^2) / 2 = |W|_*; inf if none was found.
        lower_bound: no K and Q of any width do better than this; from multipliers, certified.
        gap: value / lower_bound - 1.
        certified_global: is the gap within the tolerance?
        multipliers: l, laid out as the tokens are.
        spectral: |M|; at most 1 proves a KKT point globally optimal.
        stationarity: |(K - M Q, Q - M^T K)| / |(K, Q)|.
        slackness: sum l |value_j - 1| / sum l.
        violation: how far the least constraint value is below 1.
        found: the value of each start, best first; inf for those that found nothing. Empty if none was needed.
        convex: the nuclear-norm solution without a bound on the rank.
        convex_rank: its rank, or None where its gap is too large to tell.
        m: the width.
        selected: the selection this is for.
        status: what was found, as a sentence.
    """

    K: Array
    Q: Array
    W: Array
    value: float
    lower_bound: float
    gap: float
    certified_global: bool
    multipliers: Array
    spectral: float
    stationarity: float
    slackness: float
    violation: float
    found: Array
    convex: MarginSolution
    convex_rank: int | None
    m: int
    selected: NDArray[np.intp]
    status: FactoredStatus

    @property
    def feasible(self) -> bool:
        """Were K and Q found that separate?"""
        return bool(np.isfinite(self.value))

    def __repr__(self) -> str:
        if not self.feasible:
            return f"FactoredSolution(m={self.m}, {self.status.name.lower()})"
        return (
            f"FactoredSolution(m={self.m}, value={self.value:.6g}, gap={self.gap:.1e}, "
            f"convex rank={self.convex_rank}, {self.status.name.lower()})"
        )


def solve_factored(
    tokens: Tokens,
    selected: ArrayLike,
    m: int,
    *,
    convex: MarginSolution | None = None,
    restarts: int = 6,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    throw: bool = True,
) -> FactoredSolution:
    """Least keys and queries of width m whose product separates the selected tokens.

    Args:
        tokens: one data set; masks and several queries are respected.
        selected: a token per query, (n,) or (n, K).
        m: width of K and Q, that is the largest rank of W.
        convex: the nuclear-norm solution of the same problem, if there is one already.
        restarts: random starts, besides the truncated convex solution; used only if its rank is above m.
        seed: of those.
        tolerance: relative gap up to which the solution counts as globally optimal.
        throw: raise `InfeasibleSelection` where no W of any rank separates.

    Returns:
        A `FactoredSolution`; its status says whether it is a global or a local solution.

    Section 3 and Lemma 3 of *Transformers as Support Vector Machines*.

    >>> import attnlab as al
    >>> found = solve_factored(al.data.two_tokens(), [0], 1)
    >>> found.value, found.W.tolist(), found.certified_global
    (1.0, [[1.0, 0.0], [0.0, 0.0]], True)
    """
    chosen = check_selected(tokens, selected)
    flag("throw", throw)
    tolerance = check_tolerance(tolerance)
    m, restarts, seed = whole("m", m), whole("restarts", restarts, 0), whole("seed", seed, 0)
    enough_memory(2.0 * tokens.d * m, f"K and Q of width `m` = {m}", "`m` beyond d gains nothing")
    rows = selected_rows(tokens, chosen)
    if convex is None:
        from attnlab.svm.nuclear import solve_nuclear

        convex = solve_nuclear(rows, chosen, tokens.d, tolerance)
    _check_convex(convex, tokens, chosen)
    if len(rows) == 0 or not convex.feasible:
        without = _without(rows, convex, chosen, m, tokens.d)
        if throw and not convex.feasible:
            raise InfeasibleSelection(message(without.status.value, "throw=False returns the certificate"), convex)
        return without
    search = Search(m, restarts, seed, tolerance)
    with np.errstate(all="ignore"):
        if rows.ordinary:
            return _solve(rows, convex, chosen, search)
        return _solve_scaled(rows, convex, chosen, search)


@dataclass(frozen=True)
class Search:
    """The width, and how hard to look for K and Q of it; see `solve_factored`."""

    m: int
    restarts: int
    seed: int
    tolerance: float


def _solve_scaled(rows: Rows, convex: MarginSolution, chosen: NDArray[np.intp], search: Search) -> FactoredSolution:
    """For rows of any scale: K and Q each take half of the exponent of W."""
    small, scale = normalized(rows)
    if scale.exponent % 2:
        small, scale = replace(small, p=2.0 * small.p), replace(scale, exponent=scale.exponent - 1)
    power, half = scale.exponent, scale.exponent // 2
    inside = np.ldexp(convex.multipliers.reshape(-1)[rows.where], power + scale.excess)
    near = replace(convex, W=np.ldexp(convex.W, power), multipliers=rows.scatter(inside))
    if near.rank_floor is not None:
        near = replace(near, rank_floor=float(np.ldexp(near.rank_floor, power)))
    found = _solve(small, near, chosen, search)
    if not found.feasible:
        return replace(found, convex=convex, found=np.ldexp(found.found, -power))
    multipliers = found.multipliers.reshape(-1)[rows.where]
    for what, sizes, powers in (
        ("K and Q", np.abs(found.K), -half),
        ("W", np.abs(found.W), -power),
        ("|W|_*", found.value, -power),
        ("the multipliers", np.abs(multipliers), -power - scale.excess),
    ):
        check_range(what, sizes, powers, rows, scale)
    left = np.ldexp(np.ldexp(found.W, -power), power)  # small entries may have become zero
    if not (np.ldexp(small.values(left) - 4 * EPS * small.sizes(left), scale.excess) > 0).all():
        return _without(rows, convex, chosen, search.m, len(convex.W), FactoredStatus.NOT_FOUND)
    asks = float(np.ldexp(multipliers, -scale.excess).sum())
    bound = found.lower_bound
    if not scale.even:
        bound = asks / found.spectral if found.spectral > 0 else 0.0
    gap = max(found.value / bound - 1.0, 0.0) if bound > 0 else np.inf
    status = found.status
    if status is FactoredStatus.GLOBAL and gap > search.tolerance:
        status = FactoredStatus.INACCURATE
    return replace(
        found,
        K=np.ldexp(found.K, -half),
        Q=np.ldexp(found.Q, -half),
        W=np.ldexp(found.W, -power),
        value=float(np.ldexp(found.value, -power)),
        lower_bound=float(np.ldexp(bound, -power)),
        gap=gap,
        certified_global=gap <= search.tolerance,
        multipliers=rows.scatter(np.ldexp(multipliers, -power - scale.excess)),
        found=np.ldexp(found.found, -power),
        convex=convex,
        status=status,
    )


def _solve(rows: Rows, convex: MarginSolution, chosen: NDArray[np.intp], search: Search) -> FactoredSolution:
    """For rows of ordinary scale; `convex` separates them."""
    try:
        return _best_point(rows, convex, chosen, search)
    except np.linalg.LinAlgError:
        return _without(rows, convex, chosen, search.m, len(convex.W), FactoredStatus.NOT_FOUND)


def _best_point(rows: Rows, convex: MarginSolution, chosen: NDArray[np.intp], search: Search) -> FactoredSolution:
    m, tolerance = search.m, search.tolerance
    factors = Factors.of(rows)
    pull = convex.multipliers.reshape(-1)[rows.where] * factors.size
    pulled = float(np.linalg.norm(factors.adjoint(pull), 2))
    if not pulled > 0:  # no multipliers came with it: equal ones are as good a start as any
        pull = np.ones(len(rows))
        pulled = max(float(np.linalg.norm(factors.adjoint(pull), 2)), 1e-3 * len(rows))
    pull = pull / pulled
    bound = factors.lower_bound(pull) / factors.size
    if convex.rank is not None and convex.rank <= m:
        # Only as many columns as the rank: others are zero, and Newton's method would leave them so.
        points, found = [polished(factors, factors.reduced(convex.W, convex.rank), pull)], np.zeros(0)
    else:
        width = min(m, factors.f.shape[1], factors.z.shape[1])
        drawn = random_starts(factors, width, search.restarts, search.seed, float(pull.sum()))
        points = local_solutions(factors, [factors.reduced(convex.W, width), *drawn], pull)
        found = np.array([point.value for point in points]) / factors.size
    return _solution(rows, factors, points[0], m, bound, found, convex, chosen, tolerance)


def _check_convex(convex: MarginSolution, tokens: Tokens, chosen: NDArray[np.intp]) -> None:
    if not isinstance(convex, MarginSolution):
        raise InputError(message(f"`convex` is a {type(convex).__name__}; wanted what al.solve_margin returns."))
    if convex.norm != "nuclear":
        raise InputError(message(f"`convex` minimises the {convex.norm} norm; wanted norm='nuclear'."))
    wanted = (*tokens.y.shape, tokens.T)
    same = convex.multipliers.shape == wanted and convex.W.shape == (tokens.d, tokens.d)
    if not (same and np.array_equal(convex.selected, chosen)):
        raise InputError(message("`convex` is the solution for other tokens or another selection.", "leave it out"))


def _solution(
    rows: Rows,
    factors: Factors,
    point: Point,
    m: int,
    bound: float,
    found: Array,
    convex: MarginSolution,
    chosen: NDArray[np.intp],
    tolerance: float,
) -> FactoredSolution:
    """The point in the coordinates of the tokens, with its certificate computed there."""
    if not np.isfinite(point.value):
        return _without(rows, convex, chosen, m, len(factors.left), FactoredStatus.NOT_FOUND, found, bound)
    a = factors.f.shape[1]
    K, Q = _rebalanced(factors.left @ point.both[:a], factors.right @ point.both[a:], m)
    K, Q = K / np.sqrt(factors.size), Q / np.sqrt(factors.size)
    W = K @ Q.T
    least = float(rows.values(W).min())
    if not (least > 0 and np.isfinite(least)):
        return _without(rows, convex, chosen, m, len(factors.left), FactoredStatus.NOT_FOUND, found, bound)
    K, Q, W = K / np.sqrt(least), Q / np.sqrt(least), W / least
    multipliers = np.maximum(point.multipliers, 0.0) / factors.size
    M = rows.adjoint(multipliers)
    total, spectral = float(multipliers.sum()), float(np.linalg.norm(M, 2))
    values = rows.values(W)
    value = 0.5 * float(np.sum(K**2) + np.sum(Q**2))
    bound = max(bound, total / spectral if spectral > 0 else 0.0)
    length = np.sqrt(np.sum(K**2) + np.sum(Q**2))
    stationarity = float(np.sqrt(np.sum((K - M @ Q) ** 2) + np.sum((Q - M.T @ K) ** 2)) / length)
    slackness = float(multipliers @ np.abs(values - 1.0)) / total if total > 0 else np.inf
    gap = max(value / bound - 1.0, 0.0) if bound > 0 else np.inf
    if gap <= tolerance:
        status = FactoredStatus.GLOBAL
    elif max(stationarity, slackness) <= STATIONARY:
        status = FactoredStatus.LOCAL
    else:
        status = FactoredStatus.INACCURATE
    return FactoredSolution(
        K=K, Q=Q, W=W, value=value, lower_bound=bound, gap=gap, certified_global=gap <= tolerance,
        multipliers=rows.scatter(multipliers), spectral=spectral, stationarity=stationarity, slackness=slackness,
        violation=max(0.0, 1.0 - float(values.min())), found=found, convex=convex, convex_rank=convex.rank, m=m,
        selected=chosen, status=status,
    )  # fmt: skip


def _rebalanced(K: Array, Q: Array, m: int) -> tuple[Array, Array]:
    """Factors of the same product, of width m, with K^T K = Q^T Q, diagonal: no others cost less."""
    left, upper = np.linalg.qr(K)
    right, lower = np.linalg.qr(Q)
    u, values, v = np.linalg.svd(upper @ lower.T)
    both = balanced(left @ u, values, v @ right.T, m)
    return both[: len(K)], both[len(K) :]


def _without(
    rows: Rows,
    convex: MarginSolution,
    chosen: NDArray[np.intp],
    m: int,
    d: int,
    status: FactoredStatus | None = None,
    found: Array | None = None,
    bound: float = np.inf,
) -> FactoredSolution:
    """No K and Q: because there are no constraints, because none can be, or because none was found."""
    if status is None:
        known = {
            MarginStatus.UNCONSTRAINED: FactoredStatus.UNCONSTRAINED,
            MarginStatus.UNDECIDED: FactoredStatus.UNDECIDED,
        }
        status = known.get(convex.status, FactoredStatus.INFEASIBLE)
    free = status is FactoredStatus.UNCONSTRAINED
    nothing = np.full((d, m), 0.0 if free else np.nan)
    bound = 0.0 if free else bound if status is not FactoredStatus.UNDECIDED else 0.0
    number = 0.0 if free else np.inf
    return FactoredSolution(
        K=nothing, Q=nothing.copy(), W=np.full((d, d), 0.0 if free else np.nan), value=number, lower_bound=bound,
        gap=number, certified_global=free, multipliers=np.full(rows.shape, 0.0 if free else np.nan), spectral=number,
        stationarity=number, slackness=number, violation=number, found=np.zeros(0) if found is None else found,
        convex=convex, convex_rank=convex.rank, m=m, selected=chosen, status=status,
    )  # fmt: skip
