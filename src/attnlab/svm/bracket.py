"""`bracket_margin`: the best margin of a selection between two certified bounds, far sooner than a solution."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import number
from attnlab.data.scale import exponent, lengths, to_one
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.svm.augmented import Augmented
from attnlab.svm.coarse import coarse_rounds
from attnlab.svm.given import key_array, known_norm, query_array, selection_array, start_array, visible_array
from attnlab.svm.norms import ENTRYWISE_MAX, FROBENIUS, Norm
from attnlab.svm.ranges import LEAST, MOST, decimal
from attnlab.svm.reweighted import FINEST, metric_of
from attnlab.svm.rows import Rows, array_rows

# Newton steps; for the other norms, also the most in one metric, and the share of the tolerance that ends it sooner.
STEPS, OTHER_STEPS, BETWEEN, INNER = 200, 1000, 30, 0.2
# From this tolerance on first order is tried before Newton steps (in 32 bits, which hold seven digits).
COARSE = 1e-3
# A bound this small, relative to the lengths of the constraints that give it, is a margin of nothing.
NOTHING = 1e-6
EPS = float(np.finfo(np.float64).eps)
# Constraints this much shorter than the longest are not searched with the others; the shortest alone bounds the margin.
SHORTEST = 2.0**-100
# More than underflow can have changed, in rows of order one.
UNDERFLOW = 2.0**-900


class BracketStatus(Enum):
    """What was found, as a sentence."""

    CLOSED = "The bounds of the margin agree to the tolerance."
    NOT_SEPARABLE = "No margin: `upper` is at most a millionth of the length of the constraints that prove it."
    WIDE = "The bounds hold, but differ by more than the tolerance after the most steps."
    UNCONSTRAINED = "There is nothing to separate: every query sees one token. W = 0, and the margin is infinite."


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Bracket:
    """The best margin of a selection, max over |W| <= 1 of min (x_selected - x_t)^T W z, between two bounds.

    Both hold in exact arithmetic, for the arrays given: rounding has been allowed for.

    Attributes:
        lower: the margin that `W` has; negative where W does not separate.
        upper: a margin that no W of length 1 exceeds: the dual norm of `sum l (x_selected - x_t) z^T`, l `multipliers`.
        W: (a, b), of length 1 in the norm.
        multipliers: l >= 0 of sum 1, laid out as the tokens are, (n, T) or (n, K, T); 0 at selected and hidden tokens.
        norm: in which W is measured.
        status: what was found, as a sentence.
        steps: Newton steps taken; 0 where first order was enough.
    """

    lower: float
    upper: float
    W: Array
    multipliers: Array
    norm: str
    status: BracketStatus
    steps: int

    @property
    def separable(self) -> bool:
        """Does W separate the selected tokens from the others?"""
        return self.lower > 0.0

    @property
    def gap(self) -> float:
        """(upper - lower) / upper; 0 where both are equal, inf where upper is 0 and lower is below."""
        if self.lower == self.upper:
            return 0.0
        return (self.upper - self.lower) / self.upper if self.upper > 0.0 else float("inf")

    def __repr__(self) -> str:
        return f"Bracket({self.norm}, margin in [{self.lower:.4g}, {self.upper:.4g}], {self.status.name.lower()})"

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON; null where there is none."""
        return {
            "status": self.status.name.lower(),
            "message": self.status.value,
            "norm": self.norm,
            "lower": self.lower if np.isfinite(self.lower) else None,
            "upper": self.upper if np.isfinite(self.upper) else None,
            "separable": self.separable,
            "steps": self.steps,
        }


def bracket_margin(
    x: ArrayLike,
    z: ArrayLike,
    selected: ArrayLike,
    *,
    norm: str | Norm = "frobenius",
    mask: ArrayLike | None = None,
    tolerance: float = 1e-2,
    start: ArrayLike | None = None,
) -> Bracket:
    """Bounds of the best margin of a selection: max over |W| <= 1 of min over t of (x_selected - x_t)^T W z.

    The coarse way to ask what `solve_margin` answers exactly, for arrays whose queries may have another dimension than
    their tokens. It stops as soon as the two bounds agree to the tolerance. A selection that nothing separates has the
    margin 0; the status says so.

    Args:
        x: tokens, or keys, (n, T, a).
        z: queries, (n, b), or (n, K, b) for K queries of each sequence.
        selected: a token per query, (n,) or (n, K).
        norm: of W: "frobenius", "nuclear", "spectral" or "entrywise max", by name or as `al.svm.norms` has them.
        mask: which tokens a query sees (True), (n, T), or (n, K, T) for K queries.
        tolerance: stop where upper - lower <= tolerance * upper.
        start: a W (a, b) to begin from; it makes no difference to what the bounds mean.

    Returns:
        A `Bracket`. Where every query sees one token only, both bounds are infinite and W is 0.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=30, T=10, d=16, seed=0)
    >>> bracket = al.svm.bracket_margin(tokens.x, tokens.z, al.optimal_tokens(tokens))
    >>> bracket.lower <= al.solve_margin(tokens, al.optimal_tokens(tokens)).margin <= bracket.upper
    True
    >>> al.svm.bracket_margin([[[1.0, 0.0], [0.0, 1.0]]], [[1.0, 0.0, 0.0]], [0]).W.shape
    (2, 3)
    """
    keys = key_array(x, 3)
    queries = query_array(z, keys.shape[:-2])
    chosen = selection_array(selected, queries.shape[:-1], keys.shape[-2])
    visible = visible_array(mask, chosen, keys.shape[-2])
    measure, reach = known_norm(norm), number("tolerance", tolerance, least=0.0)
    first = None if start is None else start_array(start, (keys.shape[-1], queries.shape[-1]))
    return _bracket(keys, queries, chosen, visible, measure, reach, first)


def bracket_margins(
    x: ArrayLike,
    z: ArrayLike,
    selected: ArrayLike,
    *,
    norm: str | Norm = "frobenius",
    mask: ArrayLike | None = None,
    tolerance: float = 1e-2,
    start: ArrayLike | None = None,
) -> list[Bracket]:
    """`bracket_margin` of many problems of one shape: every argument has one more axis, the first.

    `mask` and `start` may do without it, and are then shared. Each problem works on the few constraints that matter to
    it, whose number differs, so they are solved one after the other: for 7 problems of 116 queries, the linear systems
    alone, padded to the largest, took as long as all of this or longer.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=5, T=4, d=6, seed=0, trials=3)
    >>> [bracket.status.name for bracket in bracket_margins(tokens.x, tokens.z, al.optimal_tokens(tokens))]
    ['CLOSED', 'CLOSED', 'CLOSED']
    """
    keys = key_array(x, 4)
    queries = query_array(z, keys.shape[:-2])
    chosen = selection_array(selected, queries.shape[:-1], keys.shape[-2])
    visible = visible_array(mask, chosen, keys.shape[-2])
    measure, reach = known_norm(norm), number("tolerance", tolerance, least=0.0)
    first = None if start is None else start_array(start, (keys.shape[-1], queries.shape[-1]), len(keys))
    return [
        _bracket(
            keys[k],
            queries[k],
            chosen[k],
            None if visible is None else visible[k],
            measure,
            reach,
            None if first is None else first[k],
        )
        for k in range(len(keys))
    ]


@dataclass(eq=False)
class _Best:
    """The best W and the best multipliers so far, for rows of order one, none of them zero."""

    rows: Rows
    norm: Norm
    W: Array
    multipliers: Array
    lower: float = -np.inf
    upper: float = np.inf
    steps: int = 0

    def see(self, W: Array, values: Array) -> None:
        """The margin of W, given its values."""
        length = self.norm.value(W) if np.isfinite(W).all() else np.inf
        if 0 < length < np.inf:
            margin = float(values.min()) / length
            if margin > self.lower:
                self.W, self.lower = W, margin

    def bound(self, multipliers: Array, total: Array) -> None:
        """The bound that multipliers give, whose sum l A is given."""
        weight = float(multipliers.sum())
        known = 0 < weight < np.inf and bool(np.isfinite(total).all())
        bound = self.norm.dual(total) / weight if known else np.inf
        # A bound may say that there is no margin and not be the smallest: others may weigh shorter constraints.
        says_nothing = bound <= NOTHING * float(multipliers @ self.rows.norms) / weight if known else False
        if bound < self.upper or (says_nothing and not self.nothing()):
            self.multipliers, self.upper = multipliers / weight, bound

    def nothing(self) -> bool:
        """Is the bound as good as zero?"""
        return self.upper <= NOTHING * float(self.multipliers @ self.rows.norms)

    def done(self, tolerance: float) -> bool:
        """Do the bounds agree, or does the upper one say that there is no margin?"""
        return self.upper - self.lower <= tolerance * self.upper or self.nothing()


def _bracket(
    x: Array,
    z: Array,
    chosen: NDArray[np.intp],
    mask: NDArray[np.bool_] | None,
    norm: Norm,
    tolerance: float,
    start: Array | None,
) -> Bracket:
    """The bracket of checked arrays."""
    rows = array_rows(x, z, mask, chosen)
    if not len(rows):
        return Bracket(
            lower=np.inf,
            upper=np.inf,
            W=np.zeros((x.shape[-1], z.shape[-1])),
            multipliers=np.zeros(rows.shape),
            norm=norm.name,
            status=BracketStatus.UNCONSTRAINED,
            steps=0,
        )
    small, power = _order_one(rows)
    norms = lengths(small.p) * lengths(small.queries)[small.query]
    ordinary = norms > SHORTEST
    best = _search(small if ordinary.all() else small.part(np.flatnonzero(ordinary)), norm, tolerance, start)
    W = best.W / norm.value(best.W)
    if ordinary.all():
        multipliers = best.multipliers
        lower, upper = _attained(small, W, norm), _bounded(small, multipliers, norm)
        status = BracketStatus.NOT_SEPARABLE if best.nothing() else BracketStatus.WIDE
        if upper - lower <= tolerance * upper:
            status = BracketStatus.CLOSED
    else:
        lower, upper, shortest = _beside_short_rows(rows, small, norms, W, norm)
        multipliers = _alone(shortest, len(rows))
        status = BracketStatus.NOT_SEPARABLE if upper == 0.0 else BracketStatus.WIDE
    return Bracket(
        lower=_at_power(lower, power),
        upper=_at_power(upper, power),
        W=W,
        multipliers=rows.scatter(multipliers),
        norm=norm.name,
        status=status,
        steps=best.steps,
    )


def _search(rows: Rows, norm: Norm, tolerance: float, start: Array | None) -> _Best:
    """First order where that is enough, then Newton steps."""
    W = rows.adjoint(1.0 / rows.norms) if start is None else start
    W = to_one(W)[0]
    if not W.any():
        W = np.ones_like(W)
    if not len(rows):
        return _Best(rows, norm, W, rows.norms)
    shortest = _alone(int(rows.norms.argmin()), len(rows))
    best = _Best(rows, norm, W, shortest)
    best.bound(shortest, rows.adjoint(shortest))
    first = rows.values(W)
    best.see(W, first)
    with np.errstate(all="ignore"):  # numbers that overflow on the way are no evidence, and are not kept
        if norm is FROBENIUS and tolerance >= COARSE and not best.done(tolerance):
            first = _by_first_order(best, first, tolerance)
        if not best.done(tolerance):
            _by_newton(best, Augmented(rows, first), tolerance)
    return best


def _by_first_order(best: _Best, values: Array, tolerance: float) -> Array:
    """Rounds as long as they come to their ends; the values of the constraints after the last."""
    for found in coarse_rounds(best.rows, values, tolerance):
        values = found.values
        best.see(found.W, values)
        best.bound(found.multipliers, found.W)
        if best.done(tolerance):
            break
    return values


def _by_newton(best: _Best, search: Augmented, tolerance: float) -> None:
    """The steps, each in one metric; in other norms than Frobenius' the metric follows."""
    norm = best.norm
    metrics = since = 0
    for step in range(1, (STEPS if norm is FROBENIUS else OTHER_STEPS) + 1):
        if best.done(tolerance):
            return
        search.step()
        best.steps = step
        best.see(search.W, search.values)
        best.bound(search.multipliers, search.total)
        since += 1
        if norm is not FROBENIUS and (since == BETWEEN or search.gap() <= INNER * max(tolerance, FINEST)):
            search.use(metric_of(norm.name, search.W, search.total, metrics, tolerance))
            metrics, since = metrics + 1, 0


def _order_one(rows: Rows) -> tuple[Rows, int]:
    """The same constraints with the longest difference and the longest query of order one; 2^power takes them back."""
    shift = 0 if rows.shift is None else int(rows.shift.max())
    p = rows.p if rows.shift is None else np.ldexp(rows.p, (rows.shift - shift)[:, None])
    p_power, q_power = exponent(p), exponent(rows.queries)
    p, queries = np.ldexp(p, -p_power), np.ldexp(rows.queries, -q_power)
    return Rows(p, queries, rows.query, rows.where, rows.shape, None, rows.each), p_power + q_power + shift


def _attained(rows: Rows, W: Array, norm: Norm) -> float:
    """The least of A W / |W|, lowered by what rounding may have added."""
    terms = sum(W.shape) + 8
    least = float((rows.values(W) - terms * EPS * rows.sizes(W)).min())
    length, unsure = norm.value(W), 8 * sum(W.shape) * EPS
    return least / (length * (1.0 + unsure if least > 0 else 1.0 - unsure)) - UNDERFLOW


def _bounded(rows: Rows, multipliers: Array, norm: Norm) -> float:
    """The dual norm of sum l A / sum l, raised by what rounding may have taken away."""
    total = rows.adjoint(multipliers)
    each = int(np.bincount(rows.query).max())
    terms = each + len(rows.queries) + 8
    sizes = Rows(np.abs(rows.p), np.abs(rows.queries), rows.query, rows.where, rows.shape, None, rows.each)
    # No dual norm of a matrix is more than the sum of its absolute entries.
    rounding = terms * EPS * float(sizes.adjoint(multipliers).sum())
    unsure = (8 * sum(total.shape) + total.size + len(rows)) * EPS
    return (norm.dual(total) * (1.0 + unsure) + rounding) / (float(multipliers.sum()) * (1.0 - unsure)) + UNDERFLOW


def _beside_short_rows(rows: Rows, small: Rows, norms: Array, W: Array, norm: Norm) -> tuple[float, float, int]:
    """Both bounds where constraints are zero, or next to nothing beside the others; and which one gives the upper."""
    zero = ~(rows.p.any(axis=1) & np.asarray(rows.queries.any(axis=1))[rows.query])
    lower = 0.0 if zero.any() else np.inf
    if not zero.all():
        lower = min(lower, _attained(small.part(np.flatnonzero(~zero)), W, norm))
    if zero.any():
        return lower, 0.0, int(zero.argmax())
    # The dual norms of a constraint alone are its length; or, for the sum of entries, at most this times its length.
    most = np.sqrt(W.size) if norm is ENTRYWISE_MAX else 1.0
    return lower, float(norms.min()) * most * (1.0 + 1e-12) + UNDERFLOW, int(norms.argmin())


def _alone(place: int, count: int) -> Array:
    """All weight on one constraint."""
    weights = np.zeros(count)
    weights[place] = 1.0
    return weights


def _at_power(bound: float, power: int) -> float:
    """A bound of rows of order one for the rows they came from."""
    if bound == 0.0 or not np.isfinite(bound):
        return bound
    size = int(np.frexp(bound)[1]) + power
    if size > MOST or size < LEAST:
        raise InputError(
            message(
                f"`x` and `z` are of such sizes that the margin would be about {decimal(size)}; float64 numbers go "
                "from 1e-308 to 1e308.",
                f"np.ldexp(x, {-power}) has margins of order one",
            )
        )
    return float(np.ldexp(bound, power))
