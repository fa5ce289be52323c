"""The Frobenius max-margin problem, solved in the dual and certified in the primal."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InfeasibleSelection, InputError, message
from attnlab.svm.dual import FAR, ROUNDS, active_set, gram_free, least_distance, refine
from attnlab.svm.rows import Rows, check_scale, check_selected, check_tolerance, selected_rows
from attnlab.svm.solution import MarginSolution, MarginStatus

TOLERANCE = 1e-10
# Above this many constraints products with the Gram matrix beat factoring it; above the second it is never formed.
FREE, DENSE = 300, 3000
# A Farkas vector counts if the rows it weighs cancel to this, relative to their sizes.
CANCELS = 1e-11
# A row whose value falls short by less than this is left to the certificate; on hard data it is rounding.
VIOLATED = 1e-7
# Tight rows are written out as vectors of d^2 numbers if these are at most so many in all.
SHARP = 20_000_000
EPS = float(np.finfo(np.float64).eps)


def solve_margin(
    tokens: Tokens,
    selected: ArrayLike,
    *,
    norm: Literal["frobenius"] = "frobenius",
    tolerance: float = TOLERANCE,
    throw: bool = True,
) -> MarginSolution:
    """The max-margin direction of a selection: least |W| with `(x_selected - x_t)^T W z >= 1` for all other tokens.

    This is where gradient descent on W goes once attention has settled on `selected` (Theorem 7 of *Transformers as
    Support Vector Machines*). Solved over one multiplier per constraint, never over d^2 variables.

    Args:
        tokens: one data set; masks and several queries are respected.
        selected: a token per query, (n,) or (n, K); for instance `run.selected` or `al.optimal_tokens(tokens)`.
        norm: "frobenius".
        tolerance: relative duality gap to reach.
        throw: raise `InfeasibleSelection` where no W separates; else return a solution whose status says so.

    Returns:
        A `MarginSolution` with its certificate.

    >>> import attnlab as al
    >>> svm = al.solve_margin(al.data.two_tokens(), [0])
    >>> svm.W.tolist(), svm.margin
    ([[1.0, 0.0], [0.0, 0.0]], 1.0)
    """
    if norm != "frobenius":
        raise InputError(message(f"`norm` is {norm!r}; wanted 'frobenius'."))
    if not isinstance(tokens, Tokens):
        raise InputError(message(f"`tokens` is a {type(tokens).__name__}; wanted al.Tokens."))
    check_tolerance(tolerance)
    chosen = check_selected(tokens, selected)
    solution = solve_rows(selected_rows(tokens, chosen), chosen, tokens.d, tolerance)
    if throw and not solution.feasible:
        raise InfeasibleSelection(_told(solution), solution)
    return solution


def solve_rows(rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float = TOLERANCE) -> MarginSolution:
    """Solve for given constraint rows, some of which may be equalities."""
    if rows.equal is not None and rows.equal.any():
        return _solve_with_equalities(rows, selected, d, tolerance)
    if len(rows) == 0:
        return _unconstrained(rows, selected, d)
    check_scale(rows.norms)
    if rows.norms.min() == 0:  # 0 >= 1: a duplicate of the selected token, or a zero query
        impossible = (rows.norms == 0).astype(float)
        return _infeasible(rows, impossible / impossible.sum(), selected, d)
    # Rows scaled to unit length: <A_j/|A_j|, W> >= 1/|A_j|; the common size of the bounds is taken out.
    unit = rows.unit()
    bound = 1.0 / rows.norms
    size = float(bound.max())
    bound = bound / size

    def finished(scaled: Array) -> MarginSolution | None:
        return certify(rows, scaled / rows.norms * size, selected, d, tolerance)

    solution = None
    if len(rows) > FREE:
        solution, weights = _solve_free(rows, unit, bound, size, selected, d, tolerance)
        if len(rows) > DENSE:
            good = solution is not None and solution.gap < FAR
            return solution if good and solution else _without_solution(rows, weights, selected, d, solution)
        if solution is not None and solution.gap <= tolerance:
            return solution
    gram = unit.gram()
    found = active_set(gram, bound)
    solution = _better(solution, finished(found) if found is not None else None)
    if solution is not None and solution.gap <= tolerance:
        return solution
    weights, distance = least_distance(gram, bound)
    if distance > 0:
        for candidate in (weights / distance, refine(gram, bound, weights / distance)):
            solution = _better(solution, finished(candidate))
    solution = _sharpened(rows, weights > 0, solution, selected, d, tolerance)
    if solution is not None and solution.gap < FAR:
        return solution
    return _without_solution(rows, weights / rows.norms, selected, d, solution)


def _solve_with_equalities(rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float) -> MarginSolution:
    """Solve in the space of the W that meet the equalities: rows projected onto it, dense."""
    assert rows.equal is not None
    if len(rows) > DENSE:
        raise InputError(message(f"{len(rows)} constraints with equalities among them; at most {DENSE} are supported."))
    level, above = np.flatnonzero(rows.equal & (rows.norms > 0)), np.flatnonzero(~rows.equal)
    if not above.size:
        return _unconstrained(rows, selected, d)
    gram = rows.gram()
    values, vectors = np.linalg.eigh(gram[np.ix_(level, level)])
    kept = values > 1e-12 * max(values.max(initial=0.0), 1e-300)
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    across = gram[np.ix_(level, above)]
    projected = gram[np.ix_(above, above)] - across.T @ inverse @ across
    lengths = np.sqrt(np.maximum(projected.diagonal(), 0.0))
    gone = lengths <= 1e-9 * np.maximum(rows.norms[above], 1e-300)

    def whole(inside: Array) -> Array:
        """Multipliers of all rows: those of the equalities take the sum back to their null space."""
        full = np.zeros(len(rows))
        full[above] = inside
        full[level] = -inverse @ (across @ inside)
        return full

    if gone.any():  # a row that the equalities force to zero
        return _infeasible(rows, whole(np.where(gone, 1.0 / gone.sum(), 0.0)), selected, d)
    bound = 1.0 / lengths
    size = float(bound.max())
    scaled, bound = projected / np.outer(lengths, lengths), bound / size
    found = active_set(scaled, bound)
    solution = None if found is None else certify(rows, whole(found / lengths * size), selected, d, tolerance)
    if solution is not None and solution.gap <= tolerance:
        return solution
    inside, distance = least_distance(scaled, bound)
    if distance > 0:
        for candidate in (inside / distance, refine(scaled, bound, inside / distance)):
            solution = _better(solution, certify(rows, whole(candidate / lengths * size), selected, d, tolerance))
    tight = rows.equal.copy()
    tight[above] = inside > 0
    solution = _sharpened(rows, tight, solution, selected, d, tolerance)
    if solution is not None and solution.gap < FAR:
        return solution
    weights = whole(inside / lengths)
    return _without_solution(rows, weights, selected, d, solution)


def _sharpened(
    rows: Rows,
    tight: NDArray[np.bool_],
    solution: MarginSolution | None,
    selected: NDArray[np.intp],
    d: int,
    tolerance: float,
) -> MarginSolution | None:
    """A solution of smaller gap if solving for the tight rows themselves, not for their Gram matrix, gives one.

    Where two demands nearly contradict each other the Gram matrix squares the condition number, and sum l A loses to
    cancellation what W need not lose. With A^T = Q R for the tight rows, W = Q R^-T b is corrected twice against the
    rows, and the multipliers are R^-1 Q^T W.
    """
    index = np.flatnonzero(tight & (rows.norms > 0))
    if (solution is not None and solution.gap <= tolerance) or not 0 < index.size <= d * d <= SHARP / index.size:
        return solution
    part = rows.part(index)
    unit = part.unit()
    bound = (1.0 if part.equal is None else (~part.equal).astype(float)) / part.norms
    wide = np.einsum("jd,je->jde", unit.p, unit.queries[unit.query]).reshape(index.size, -1)
    Q, R = np.linalg.qr(wide.T)
    pivots = np.abs(R.diagonal())
    if not pivots.min() > EPS * pivots.max():
        return solution
    flat = np.zeros(d * d)
    for _ in range(3):
        flat += Q @ solve_triangular(R, bound - wide @ flat, trans=1)
    multipliers = np.zeros(len(rows))
    multipliers[index] = solve_triangular(R, Q.T @ flat) / part.norms
    return _better(solution, certify(rows, multipliers, selected, d, tolerance, W=flat.reshape(d, d)))


def _better(one: MarginSolution | None, other: MarginSolution | None) -> MarginSolution | None:
    """The one of smaller gap."""
    known = [s for s in (one, other) if s is not None]
    return min(known, key=lambda s: s.gap) if known else None


def _solve_free(
    rows: Rows, unit: Rows, bound: Array, size: float, selected: NDArray[np.intp], d: int, tolerance: float
) -> tuple[MarginSolution | None, Array]:
    """Solve without the Gram matrix: a solution if W separates, and weights that may prove that none does."""
    proof = np.zeros(len(rows))

    def gap(scaled: Array) -> float:
        image = unit.gram_times(scaled)
        least, total = float(np.min(image / bound)), float(bound @ scaled)
        return np.inf if least <= 0 or total <= 0 else float(scaled @ image) / (least * total) - 1.0

    def rescue(scaled: Array) -> Array | None:
        """Cutting planes: solve for some rows exactly, add those that their W violates most, until none is left.

        Ends with the exact multipliers, or with weights of rows that cancel: a proof that no W separates.
        """
        chosen = np.argsort(scaled)[-min(len(scaled), DENSE // 3) :]
        for _ in range(ROUNDS):
            chosen = np.sort(chosen)
            part = unit.part(chosen)
            gram = part.gram()
            inside, distance = least_distance(gram, bound[chosen])
            weights = np.zeros(len(rows))
            weights[chosen] = inside
            if np.linalg.norm(unit.adjoint(weights)) <= CANCELS * weights.sum():
                proof[:] = weights
                return weights
            lead = unit.gram_times(weights) - distance * bound
            worst = np.argsort(lead)[: DENSE // 6]
            worst = worst[lead[worst] < -VIOLATED * distance * bound[worst]]
            if not worst.size:
                weights[chosen] = refine(gram, bound[chosen], inside / distance)
                return weights
            chosen = np.union1d(chosen[inside > 0], worst)
        return None

    scaled = gram_free(unit.gram_times, bound, tolerance=tolerance, gap=gap, rescue=rescue)
    return certify(rows, scaled / rows.norms * size, selected, d, tolerance), proof / rows.norms


def certify(
    rows: Rows,
    multipliers: Array,
    selected: NDArray[np.intp],
    d: int,
    tolerance: float,
    W: Array | None = None,
) -> MarginSolution | None:
    """The solution that these multipliers give, with its gap; None if W does not separate.

    For any l >= 0 and any W with least value m > 0: W / m is feasible, and |W*| >= sum l / |sum l A|. Without a W
    of its own the solution is sum l A.
    """
    above = slice(None) if rows.equal is None else ~rows.equal
    multipliers = multipliers.copy()
    multipliers[above] = np.maximum(multipliers[above], 0.0)
    raw = rows.adjoint(multipliers)
    W = raw if W is None else W
    values = rows.values(W)
    least, total = float(values[above].min()), float(multipliers[above].sum())
    length, dual_length = sqrt(np.vdot(W, W)), sqrt(np.vdot(raw, raw))
    if not (least > 0 and total > 0 and isfinite(length) and isfinite(dual_length)):
        return None
    W, values, length = W / least, values / least, length / least
    multipliers *= length / dual_length  # so that sum l A has the length of W
    gap = max(length * dual_length / total - 1.0, 0.0)
    # Rounding, where long terms of sum l A cancel, and where values near 1 are differences of large numbers.
    rounding = 4 * EPS * float(np.abs(multipliers) @ rows.norms) / length
    rounding += 1.0 - float((values - 4 * EPS * rows.sizes(W))[above].min())
    # |W - W*|^2 <= |W|^2 - |W*|^2 for feasible W, and |W*| >= |W| / (1 + gap).
    uncertain = gap + max(rounding, 0.0)
    error = sqrt(uncertain * (2.0 + uncertain)) / (1.0 + uncertain)
    slack = error * length * rows.norms + 1e-12
    widest = float(slack.max())
    reason = None
    if widest > 0.05:
        reason = f"the gap {gap:.1e} leaves constraint values uncertain by up to {widest:.1e}"
    return MarginSolution(
        W=W,
        margin=1.0 / length,
        multipliers=rows.scatter(multipliers),
        values=rows.scatter(values, np.nan),
        value_error=rows.scatter(slack, np.nan),
        support=None if reason else rows.scatter(_tight(rows, values, slack)) > 0,
        rank_floor=None if reason else error * length,
        gap=gap,
        violation=_violation(rows, W),
        direction_error=error,
        status=MarginStatus.OPTIMAL if gap <= tolerance else MarginStatus.INACCURATE,
        farkas=None,
        farkas_residual=None,
        norm="frobenius",
        selected=selected,
        reason=reason,
    )


def _tight(rows: Rows, values: Array, slack: Array) -> Array:
    tight = values <= 1.0 + slack
    return (tight if rows.equal is None else tight & ~rows.equal).astype(float)


def _violation(rows: Rows, W: Array) -> float:
    """The most by which a constraint is missed."""
    values = rows.values(W)
    if rows.equal is None:
        return max(0.0, 1.0 - float(values.min()))
    return max(0.0, 1.0 - float(values[~rows.equal].min()), float(np.abs(values[rows.equal]).max(initial=0.0)))


def _without_solution(
    rows: Rows, weights: Array, selected: NDArray[np.intp], d: int, solution: MarginSolution | None
) -> MarginSolution:
    """Infeasible if the weights prove it; else the poor solution there is, or undecided."""
    if _weight(rows, weights) > 0:
        cancelled = float(np.linalg.norm(rows.adjoint(weights)))
        if cancelled <= CANCELS * float(np.abs(weights) @ rows.norms):
            return _infeasible(rows, weights, selected, d)
    if solution is not None:
        return solution
    return _infeasible(rows, weights, selected, d, MarginStatus.UNDECIDED)


def _weight(rows: Rows, weights: Array) -> float:
    """The sum of the weights of the inequalities."""
    return float(weights.sum() if rows.equal is None else weights[~rows.equal].sum())


def _infeasible(
    rows: Rows, weights: Array, selected: NDArray[np.intp], d: int, status: MarginStatus = MarginStatus.INFEASIBLE
) -> MarginSolution:
    total = _weight(rows, weights)
    weights = weights / total if total > 0 else weights
    sizes = float(np.abs(weights) @ rows.norms)
    residual = float(np.linalg.norm(rows.adjoint(weights))) / sizes if sizes > 0 else 0.0
    nothing = np.full(rows.shape, np.nan)
    return MarginSolution(
        W=np.full((d, d), np.nan), margin=0.0, multipliers=nothing, values=nothing, value_error=nothing, support=None,
        rank_floor=None, gap=np.inf, violation=np.inf, direction_error=np.inf, status=status,
        farkas=rows.scatter(weights), farkas_residual=residual, norm="frobenius", selected=selected,
        reason=status.value,
    )  # fmt: skip


def _unconstrained(rows: Rows, selected: NDArray[np.intp], d: int) -> MarginSolution:
    nothing = np.full(rows.shape, np.nan)
    return MarginSolution(
        W=np.zeros((d, d)), margin=np.inf, multipliers=np.zeros(rows.shape), values=nothing, value_error=nothing,
        support=np.zeros(rows.shape, dtype=bool), rank_floor=0.0, gap=0.0, violation=0.0, direction_error=0.0,
        status=MarginStatus.UNCONSTRAINED, farkas=None, farkas_residual=None, norm="frobenius", selected=selected,
    )  # fmt: skip


def _told(solution: MarginSolution) -> str:
    assert solution.farkas is not None
    worst = np.unravel_index(int(np.argmax(solution.farkas)), solution.farkas.shape)
    return message(
        f"{solution.status.value} The heaviest constraint of the proof: query {tuple(map(int, worst[:-1]))} against "
        f"its token {int(worst[-1])}.",
        "a larger dimension d, another `selected`, or throw=False to get the certificate",
    )
