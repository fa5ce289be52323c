"""Max-margin problems at any scale: solved where float64 has room, taken back with the exponents kept.

Scaling all tokens by a and all queries by b scales W by 1 / (a b). Rows that are not ordinary (`Rows.ordinary`) are
therefore solved as

    A'_j = 2^-(exponent + excess_j) A_j,       W = 2^-exponent W',

with powers of two, so that nothing is rounded: data scaled by powers of two give the same W' to the last bit. The
exponent is that of the shortest row, which W is about one over. Rows up to 2^REACH times as long stay so. Longer ones
are shortened by 2^excess: that asks more of W than they do, so W meets them; and the gap is stated for what they ask.

If the answer itself is beyond float64 (W, or the margin), an InputError says so. Multipliers, of order |A|^-2 in the
Frobenius norm, then keep their common power of two apart, as `multiplier_exponent`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnlab.data.scale import exponent
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.svm.certificate import EPS, MET, UNSURE, infeasible, status_of
from attnlab.svm.coordinates import balanced_solution
from attnlab.svm.face import OptimalFace, at_power
from attnlab.svm.proof import proving, unit_exponents
from attnlab.svm.ranges import LEAST, MOST, decimal, largest_exponent
from attnlab.svm.rows import Rows
from attnlab.svm.solution import MarginSolution, MarginStatus

# Rows longer than the shortest by more than 2^REACH are shortened.
REACH = 400

Solve = Callable[[Rows, NDArray[np.intp], int, float], MarginSolution]


@dataclass(frozen=True, eq=False)
class Scale:
    """A = 2^(exponent + excess) A', W = 2^-exponent W'; `excess` (N,) is 0 but for rows of extreme lengths."""

    exponent: int
    excess: NDArray[np.intp]

    @property
    def even(self) -> bool:
        """Are all rows scaled alike?"""
        return not self.excess.any()


@dataclass(frozen=True)
class Measure:
    """What is minimized: the norm, its dual, and the degree: multipliers are of order |A|^-degree."""

    value: Callable[[Array], float]
    dual: Callable[[Array], float]
    degree: int


def at_any_scale(
    solve: Solve, rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float, measure: Measure
) -> MarginSolution:
    """What `solve` finds for rows of any scale, with every claim checked on these rows.

    Args:
        solve: solves rows of ordinary scale.
        rows, selected, d, tolerance: as for `solve`.
        measure: the norm that `solve` minimizes.
    """
    with np.errstate(all="ignore"):
        if rows.ordinary:
            solution = _attempt(solve, rows, selected, d, tolerance)
        else:
            small, scale = normalized(rows)
            inside = _attempt(solve, small, selected, d, tolerance)
            solution = restored(inside, small, rows, scale, tolerance, measure)
        if solution.farkas is None:  # W separates
            return solution
        return _decided(solution, rows, selected, d, measure.value)


def _attempt(solve: Solve, rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float) -> MarginSolution:
    """What `solve` finds; undecided where its linear algebra fails."""
    try:
        return solve(rows, selected, d, tolerance)
    except np.linalg.LinAlgError:
        return infeasible(rows, np.zeros(len(rows)), selected, d, MarginStatus.UNDECIDED)


def _decided(
    solution: MarginSolution, rows: Rows, selected: NDArray[np.intp], d: int, size: Callable[[Array], float]
) -> MarginSolution:
    """Infeasible only with weights that prove it on these rows; a second look where there are none."""
    assert solution.farkas is not None
    weights = solution.farkas.reshape(-1)[rows.where]
    if solution.status is MarginStatus.INFEASIBLE:
        proof = proving(rows, weights)
        if proof is weights:
            return solution
        if proof is not None:
            return replace(infeasible(rows, proof, selected, d), norm=solution.norm)
    other = balanced_solution(rows, selected, d, size)
    if other is None:
        other = infeasible(rows, weights, selected, d, MarginStatus.UNDECIDED)
    return replace(other, norm=solution.norm)


def normalized(rows: Rows) -> tuple[Rows, Scale]:
    """The same constraints with queries of order one and differences of order 1 to 2^REACH."""
    p, p_exponent = unit_exponents(rows.p)
    queries, q_exponent = unit_exponents(rows.queries)
    if rows.shift is not None:
        p_exponent = p_exponent + rows.shift
    exponents = p_exponent + q_exponent[rows.query]  # (N,), of |A_j|
    live = (p != 0).any(axis=1) & np.asarray((queries != 0).any(axis=1))[rows.query]
    asking = live if rows.equal is None else live & ~rows.equal
    if not asking.any():
        asking = live
    least = int(exponents[asking].min()) if asking.any() else 0
    lengths = np.where(live, np.clip(exponents - least, -REACH, REACH), 0)
    excess = np.where(live, exponents - least - lengths, 0)
    p = np.ldexp(p, lengths[:, None])
    small = Rows(p, queries, rows.query, rows.where, rows.shape, rows.equal, rows.each)
    return small, Scale(least, excess)


def restored(
    found: MarginSolution, small: Rows, rows: Rows, scale: Scale, tolerance: float, measure: Measure
) -> MarginSolution:
    """What was found for the normalized rows `small` as a solution of the rows they came from."""
    if found.status is MarginStatus.UNCONSTRAINED:
        return found
    if not found.feasible:
        assert found.farkas is not None
        weights = _taken_back(found.farkas.reshape(-1)[rows.where], rows, scale)
        again = infeasible(rows, weights, found.selected, len(found.W), found.status)
        return replace(again, norm=found.norm)
    inside = found.multipliers.reshape(-1)[rows.where]
    powers = -measure.degree * scale.exponent - scale.excess
    check_range("W", np.abs(found.W), -scale.exponent, rows, scale)
    check_range("the margin", found.margin, scale.exponent, rows, scale)
    taken = _beyond_range(np.abs(inside), powers)
    powers = powers - taken
    W, multipliers = np.ldexp(found.W, -scale.exponent), np.ldexp(inside, powers)
    scaled = replace(
        found,
        W=W,
        margin=float(np.ldexp(found.margin, scale.exponent)),
        multipliers=rows.scatter(multipliers),
        multiplier_exponent=taken,
        rank_floor=None if found.rank_floor is None else float(np.ldexp(found.rank_floor, -scale.exponent)),
        face=_scaled_face(found.face, scale.exponent),
    )
    # Small entries may have become denormal numbers, or zero.
    kept = np.array_equal(np.ldexp(W, scale.exponent), found.W) and np.array_equal(
        np.ldexp(multipliers, -powers), inside
    )
    if kept and scale.even:
        return scaled
    return _certified_again(scaled, found.W, np.ldexp(multipliers, -powers), small, rows, scale, tolerance, measure)


def _scaled_face(face: OptimalFace | None, power: int) -> OptimalFace | None:
    """The face at the scale of the data; None where its bounds are no float64 numbers there."""
    if face is None:
        return None
    with np.errstate(over="ignore"):
        scaled = at_power(face, power)
    finite = all(np.isfinite(part).all() for part in (scaled.S, scaled.B, scaled.sizes))
    return scaled if finite else None


def _certified_again(
    solution: MarginSolution,
    W: Array,
    multipliers: Array,
    small: Rows,
    rows: Rows,
    scale: Scale,
    tolerance: float,
    measure: Measure,
) -> MarginSolution:
    """The same where entries were rounded, or rows shortened, which ask less than was asked for them.

    `W` and `multipliers` are those of the normalized rows.
    """
    least = float(small.inequalities(np.ldexp(small.values(W), scale.excess)).min())
    if least > 1.0:  # only a shortened row asked for so much
        W = W / least
    given = np.ldexp(W, -scale.exponent)
    W = np.ldexp(given, scale.exponent)  # what is left of it
    values = small.values(W)
    check_range("a constraint value", np.abs(values), scale.excess, rows, scale)
    sizes = np.ldexp(small.sizes(W), scale.excess)
    values = np.ldexp(values, scale.excess)
    least, proved = (float(small.inequalities(part).min()) for part in (values, values - 4 * EPS * sizes))
    level = slice(0) if rows.equal is None else rows.equal
    missed = np.abs(values[level])
    if not proved > 0 or (missed > MET * (1.0 + sizes[level])).any():
        raise InputError(
            message(
                "`x` and `z` differ so much in size, from sequence to sequence, that the entries of W do not all have "
                "float64 numbers, which go from 1e-308 to 1e308.",
                "leave the longest or the shortest tokens and queries out",
            )
        )
    asks = float(small.inequalities(np.ldexp(multipliers, -scale.excess)).sum())
    length = measure.value(W)
    gap = np.inf
    if asks > 0:
        gap = max(length / least * (measure.dual(small.adjoint(multipliers)) / asks) - 1.0, 0.0)
    certified = solution.status is MarginStatus.OPTIMAL and gap <= tolerance and 1.0 - proved <= UNSURE
    solution = replace(
        solution,
        W=given,
        margin=float(np.ldexp(1.0 / length, scale.exponent)),
        values=rows.scatter(values, np.nan),
        gap=gap,
        violation=max(0.0, 1.0 - proved, float(missed.max(initial=0.0))),
        status=status_of(certified),
    )
    if certified and scale.even:
        return solution
    return replace(
        solution,
        value_error=rows.scatter(np.full(len(rows), np.inf), np.nan),
        support=None,
        rank_floor=None,
        direction_error=None,
        reason=solution.status.value if scale.even else f"the constraints differ in size by more than 2^{REACH}",
        unique=solution.unique if solution.norm == "frobenius" else None,
        face=None,
    )


def _taken_back(weights: Array, rows: Rows, scale: Scale) -> Array:
    """Weights of normalized rows as weights of the rows they came from, the largest of an inequality of order one."""
    mantissa, exponent = np.frexp(weights)
    exponent = exponent - scale.excess
    counted = rows.inequalities(weights) > 0
    if not counted.any():
        return weights
    largest = rows.inequalities(exponent)[counted].max()
    return np.ldexp(mantissa, exponent - largest)


def check_range(what: str, sizes: Array | float, powers: NDArray[np.intp] | int, rows: Rows, scale: Scale) -> None:
    """Refuse sizes times 2^powers that are too large for float64, or so small that even the largest loses digits."""
    largest = largest_exponent(sizes, powers)
    if largest is None or LEAST <= largest <= MOST:
        return
    p_exponent, q_exponent = (exponent(vectors) for vectors in (rows.p, rows.queries))
    if rows.shift is not None:
        p_exponent += int(rows.shift.max())
    whole = p_exponent + q_exponent
    hint = f"np.ldexp(x, {-p_exponent}) and np.ldexp(z, {-q_exponent}); W is then 2^{whole} times as large"
    if what == "a constraint value":
        hint = "tokens, or queries, of one data set differ by too many orders of magnitude; leave the extreme ones out"
    raise InputError(
        message(
            f"`x` has token differences up to {decimal(p_exponent)} and `z` queries up to {decimal(q_exponent)}; "
            f"{what} would be of size {decimal(largest)}, and float64 numbers go from 1e-308 to 1e308.",
            hint,
        )
    )


def _beyond_range(sizes: Array, powers: NDArray[np.intp]) -> int:
    """The exponent of the largest of sizes times 2^powers, where float64 has not all its digits; else 0."""
    largest = largest_exponent(sizes, powers)
    return 0 if largest is None or LEAST <= largest <= MOST else largest
