"""Assumptions B, C and D of *Transformers as Support Vector Machines*, measured on given data."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from attnlab.checks import instance, number
from attnlab.data.scale import is_ordinary, ordinary, rescaled, rows_to_one, to_one
from attnlab.data.selection import optimal_tokens
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.heads import HeadLike
from attnlab.models.losses import LossLike
from attnlab.svm import MarginSolution, MarginStatus, margin_rows, solve_margin
from attnlab.theory.arrays import finite, one_data_set
from attnlab.theory.check import Check
from attnlab.theory.svm.geometry import Leads, belongs, scoring_head
from attnlab.theory.svm.selections import selection_count, solved_selections

PROXY = 1.1
# Eigenvalues of the unit-row Gram matrix under this, relative to the largest, are dependence of the rows.
DEPENDENT = 1e-12
# The equality system counts as solvable, and a multiplier as nonnegative, to this relative accuracy.
SOLVED = 1e-6


def assumption_b1_proxy(
    tokens: Tokens, *, head: HeadLike | None = None, solution: MarginSolution | None = None, threshold: float = PROXY
) -> Check:
    """The test used in place of B.1: the mean of `(x_opt - x_t)^T W^mm z` over all other tokens is below 1.1.

    Much weaker than B.1 itself; report both.

    Args:
        tokens: one data set.
        head: as in `al.scores`.
        solution: a max-margin solution to use, of any norm and for its own selection; None solves for the best tokens.
        threshold: what the mean must stay below.

    Returns:
        `margin` is the threshold less the mean; inf where nothing is compared, -inf where no W separates.
        Evidence: mean, largest (constraint values), constraints, tied (queries with several best tokens), status.

    Section 4.2 of *Transformers as Support Vector Machines*.

    >>> import attnlab as al
    >>> assumption_b1_proxy(al.data.two_tokens())
    Check(B.1 (proxy) holds, margin=0.1)
    """
    threshold = number("threshold", threshold)
    best, facts, settled = _begun("B.1 (proxy)", threshold, tokens, head, solution)
    if settled is not None:
        return settled
    values = best.values[np.isfinite(best.values)]
    with np.errstate(over="ignore"):
        mean = float(values.mean())
    if np.isinf(mean):  # of the sum
        mean = float((values / values.size).sum())
    facts |= {"mean": mean, "largest": float(values.max())}
    return Check(
        name="B.1 (proxy)",
        value=mean,
        wanted=threshold,
        margin=threshold - mean,
        holds=mean < threshold,
        evidence=facts,
    )


def assumption_b1(tokens: Tokens, *, head: HeadLike | None = None, solution: MarginSolution | None = None) -> Check:
    """B.1: every constraint is tight at W^mm, so that max-margin separation is min-norm interpolation.

    Equivalent: `G l = 1` has a solution l >= 0, with G the Gram matrix of the constraints. Decided by the certified
    constraint values; for the Frobenius norm the interpolator is computed separately as a cross-check.

    Args:
        tokens: one data set.
        head: as in `al.scores`.
        solution: a max-margin solution to use, of any norm and for its own selection; None solves for the best tokens.

    Returns:
        `margin` is the least of (1 + certified error - value) over the constraints: 0 or tiny where B.1 holds, below 0
        by as much as the loosest constraint exceeds 1 where it fails, -inf where the gap certifies no values.
        Evidence: largest (value), error (largest certified error of a value), constraints, tied, status,
        and for the Frobenius norm

        - room: the largest possible least multiplier of the interpolator over the mean multiplier. Positive where B.1
          holds with room to spare, negative where it fails, -inf where nothing interpolates;
        - agrees: do the two tests agree? They can differ only where a value is within `error` of 1.

    Assumption B.1 of *Transformers as Support Vector Machines*.

    >>> import attnlab as al
    >>> check = assumption_b1(al.data.two_tokens())
    >>> check.holds, check.evidence["room"], check.evidence["agrees"]
    (True, 1.0, True)
    """
    best, facts, settled = _begun("B.1", 1.0, tokens, head, solution)
    if settled is not None:
        return settled
    error = float(np.nanmax(best.value_error))
    # Values that are not known to any accuracy (other norms, several optima) show nothing, whatever they are.
    margin = float(np.nanmin(_room(best))) if np.isfinite(error) else -np.inf
    holds = margin >= 0 and best.support is not None
    largest = float(np.nanmax(best.values))
    facts |= {"largest": largest, "error": error}
    if best.norm == "frobenius":
        facts["room"] = _room_of_rows(margin_rows(tokens, best.selected))
        facts["agrees"] = (facts["room"] >= -SOLVED) == holds
    return Check(name="B.1", value=largest, wanted=1.0, margin=margin, holds=holds, evidence=facts)


def interpolation_room(gram: Array) -> float:
    """The largest possible `min l / mean l` over solutions of `gram l = 1`; -inf if there is none.

    All solutions have one sum, |W|^2 of the interpolator, so the mean is a fixed yardstick. With independent rows
    there is one solution; otherwise a linear program picks the best.

    >>> import numpy as np
    >>> interpolation_room(np.array([[2.0, 1.0], [1.0, 2.0]]))
    1.0
    >>> interpolation_room(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    -inf
    """
    given = finite("gram", gram, ("m", "m"))
    if given.shape[0] != given.shape[1]:
        raise InputError(message(f"`gram` has shape {given.shape}; wanted a square matrix."))
    if (np.diagonal(given) < 0).any():
        raise InputError(message("`gram` has a diagonal below 0; wanted inner products of constraints."))
    if not np.diagonal(given).all():
        return -np.inf  # a constraint of length 0 has no value but 0
    bound = 1.0 / np.sqrt(np.diagonal(given))
    with np.errstate(over="ignore", invalid="ignore"):
        units = given * bound[:, None] * bound
        alike = np.abs(units - units.T) <= SOLVED
    if not (np.abs(units) <= 1.0 + SOLVED).all() or not alike.all():
        problem = "is not symmetric, or has entries larger than its diagonal allows"
        raise InputError(message(f"`gram` {problem}; wanted inner products of constraints."))
    return _room_of_units(units, ordinary(bound)[0])


def _room_of_rows(rows: Any) -> float:
    """`interpolation_room` of constraints; where their inner products are beyond float64, of those of unit length."""
    if is_ordinary(rows.p) and is_ordinary(rows.queries):
        return interpolation_room(rows.gram())
    (p, of_p), (q, of_q) = rows_to_one(rows.p), rows_to_one(rows.queries)
    p_lengths, q_lengths = np.linalg.norm(p, axis=-1), np.linalg.norm(q, axis=-1)
    sizes = p_lengths * q_lengths[rows.query]
    if not sizes.all():
        return -np.inf
    p, q = p / p_lengths[:, None], (q / np.where(q_lengths > 0, q_lengths, 1.0)[:, None])[rows.query]
    exponents = -(of_p[:, 0] + of_q[rows.query, 0])
    # Only ratios of the bounds count.
    bound = rescaled(1.0 / sizes, exponents - exponents.max())
    return _room_of_units((p @ p.T) * (q @ q.T), bound)


def _room_of_units(units: Array, bound: Array) -> float:
    """The same for constraints of length 1, which are to be as large as `bound`, all of which may share a factor."""
    values, vectors = np.linalg.eigh(units)
    independent = values > DEPENDENT * values[-1]
    basis = vectors[:, independent]
    scaled = basis @ ((basis.T @ bound) / values[independent])
    if np.linalg.norm(bound - basis @ (basis.T @ bound)) > SOLVED * np.linalg.norm(bound):
        return -np.inf
    multipliers = scaled * bound
    mean = float(multipliers.mean())
    if not mean > 0 or not np.isfinite(multipliers / mean).all():
        return -np.inf  # of sizes so different that the multipliers of some are 0 to float64
    if independent.all():
        return float(multipliers.min()) / mean
    # maximize s with  multipliers + free null-space part >= s
    null = vectors[:, ~independent] * bound[:, None] / np.abs(bound).max()
    rows = np.hstack([-null, np.ones((len(units), 1))])
    cost = np.zeros(rows.shape[1])
    cost[-1] = -1.0
    best = scipy.optimize.linprog(cost, A_ub=rows, b_ub=multipliers / mean, bounds=(None, None), method="highs")
    return float(-best.fun) if best.success else float(multipliers.min()) / mean


def assumption_b2(tokens: Tokens, *, head: HeadLike | None = None, tolerance: float = 1e-10) -> Check:
    """B.2: all tokens of a query but the best score the same, and less than the best.

    Args:
        tokens: one data set.
        head: as in `al.scores`.
        tolerance: scores this close, relative to the largest |score| of the data, are the same.

    Returns:
        `margin` is the allowed less the measured deviation, where the deviation is the largest spread
        `max_t gamma_t - min_t gamma_t` of the non-optimal tokens of a query. A best token that is not unique fails
        whatever the margin. Evidence: deviation, gap (least lead of a best token over another), tied (queries with
        several best tokens).

    Assumption B.2 of *Transformers as Support Vector Machines*; Theorem 5 asks how large the deviation may be.

    >>> import attnlab as al
    >>> assumption_b2(al.data.two_tokens()).evidence["gap"]
    1.0
    """
    tolerance = number("tolerance", tolerance, least=0)
    leads = Leads.of(tokens, head)
    best, tied = _best_tokens(tokens, head)
    # All queries in one unit, that of the largest score: what is 0 then is 0 by comparison.
    unit = int(np.max(leads.exponent))
    gamma = rescaled(leads.gamma, leads.exponent - unit)
    other = tokens.visible & (np.arange(tokens.T) != best[..., None])
    top = np.where(other, gamma, -np.inf).max(-1)
    bottom = np.where(other, gamma, np.inf).min(-1)
    compared = other.any(-1)
    deviation = float((top - bottom)[compared].max()) if compared.any() else 0.0
    gap = leads.least(leads.over(best), other)
    allowed = tolerance * float(np.abs(gamma)[tokens.visible].max())
    measured = float(rescaled(deviation, unit))
    return Check(
        name="B.2",
        value=measured,
        wanted=float(rescaled(allowed, unit)),
        margin=float(rescaled(allowed - deviation, unit)),
        holds=allowed - deviation >= 0 and tied == 0,
        evidence={"deviation": measured, "gap": gap, "tied": tied},
    )


def assumption_c(tokens: Tokens, *, loss: LossLike = "logistic", head: HeadLike | None = None) -> Check:
    """C: the first step of gradient descent from W = 0 raises every best token over every other one of its query.

    `<(x_opt - x_t) z^T, -grad L(0)> > 0` for all queries and visible t other than opt.

    Args:
        tokens: one data set.
        loss: as in `al.models.gradient`.
        head: as in `al.scores`.

    Returns:
        `margin` is the least cosine between a constraint matrix and -grad L(0); 0 where the gradient or a constraint
        matrix is zero, inf where nothing is compared. Evidence: values (the inner products, laid out as the tokens, NaN
        at best and masked tokens), gradient, tied.

    Assumption C of *Transformers as Support Vector Machines*.

    >>> import attnlab as al
    >>> assumption_c(al.data.two_tokens())
    Check(C holds, margin=1)
    """
    from attnlab.models import gradient

    best, tied = _best_tokens(tokens, head)
    weights = np.zeros((tokens.d, tokens.d))
    mantissa, log_scale = gradient(tokens, weights, loss=loss, head="linear" if head is None else head)
    direction = mantissa["W"]
    rows = margin_rows(tokens, best)
    cosines = _cosines(rows, -direction)
    values, slopes = _in_units(rows, direction, float(log_scale["W"]))
    least = float(cosines.min()) if len(rows) else np.inf
    # Cosines that are rounding of a zero product are no evidence of a positive one.
    holds = least > 8 * tokens.d * float(np.finfo(np.float64).eps)
    evidence = {"values": rows.scatter(values, np.nan), "gradient": slopes, "tied": tied}
    margin = least if holds else min(least, 0.0)
    return Check(name="C", value=least, wanted=0.0, margin=margin, holds=holds, evidence=evidence)


def _cosines(rows: Any, direction: Array) -> Array:
    """Cosines of the constraint matrices p q^T with a direction; 0 where either is zero."""
    if is_ordinary(rows.p) and is_ordinary(rows.queries) and is_ordinary(direction):
        values, sizes = rows.values(direction), rows.norms * np.linalg.norm(direction)
        return np.divide(values, sizes, out=np.zeros_like(values), where=sizes > 0)
    p, q, towards = rows_to_one(rows.p)[0], rows_to_one(rows.queries)[0][rows.query], to_one(direction)[0]
    values = np.einsum("jd,jd->j", p, q @ towards.T)
    sizes = np.linalg.norm(p, axis=-1) * np.linalg.norm(q, axis=-1) * np.linalg.norm(towards)
    return np.divide(values, sizes, out=np.zeros_like(values), where=sizes > 0)


def _in_units(rows: Any, direction: Array, log_scale: float) -> tuple[Array, Array]:
    """Inner products of the constraints with -gradient, and the gradient `e^log_scale direction`."""
    scale = float(np.exp(min(log_scale, 709.0))) if direction.any() else 0.0
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        values, gradient = scale * rows.values(-direction), scale * direction
    if log_scale > 709.0 or not (np.isfinite(values).all() and np.isfinite(gradient).all()):
        problem = "`tokens` are so large that the gradient at W = 0, or its products with them, are beyond float64"
        raise InputError(message(f"{problem}.", "divide the tokens; cosines do not change"))
    return values, gradient


def assumption_d(tokens: Tokens, *, head: HeadLike | None = None, limit: int = 100_000) -> Check:
    """D: every other selection that some W separates has, for some query, the unselected best token in its support.

    For every feasible alpha other than opt there is a query with `alpha != opt` and opt a support token of alpha.
    Then opt is the only locally optimal selection. Decided by solving for all `T^n` selections.

    Args:
        tokens: one small data set.
        head: as in `al.scores`.
        limit: refuse more selections than this (about 1 ms for each that some W separates; the others cost less).

    Returns:
        `value` counts the selections that break it. `margin` is the least over selections of the largest over such
        queries of (1 + certified error - value of opt): 0 or tiny where D holds, below 0 by as much as opt exceeds the
        margin at the worst selection; inf if there is no other feasible selection. Evidence: failing (selections,
        (m, n) or (m, n, K)), total, feasible, undecided (selections that float64 cannot judge; with any, D is not
        shown), tied.

    Assumption D of *Transformers as Support Vector Machines*.

    >>> import attnlab as al
    >>> assumption_d(al.data.two_tokens()).evidence["total"]
    2
    """
    best, tied = _best_tokens(tokens, head)
    margin = np.inf
    feasible = 0
    undecided = 0
    failing = []
    for chosen, solution in solved_selections(tokens, limit):
        if solution.feasible and solution.support is not None:
            feasible += 1
        elif solution.status is not MarginStatus.INFEASIBLE:
            undecided += 1
        if not solution.feasible or solution.support is None or np.array_equal(chosen, best):
            continue
        differs = chosen != best
        room = np.take_along_axis(_room(solution), best[..., None], -1)[..., 0]
        most = float(room[differs].max())
        margin = min(margin, most)
        if most < 0:
            failing.append(chosen)
    return Check(
        name="D",
        value=float(len(failing)),
        wanted=0.0,
        margin=margin,
        holds=not failing and not undecided,
        evidence={
            "failing": np.array(failing, dtype=np.intp).reshape(-1, *best.shape),
            "total": selection_count(tokens),
            "feasible": feasible,
            "undecided": undecided,
            "tied": tied,
        },
    )


def _room(solution: MarginSolution) -> Array:
    """1 + certified error - value, laid out as the tokens are: at least 0 exactly at support tokens."""
    return 1.0 + solution.value_error - solution.values


def _begun(
    name: str, wanted: float, tokens: Tokens, head: HeadLike | None, solution: MarginSolution | None
) -> tuple[MarginSolution, dict[str, Any], Check | None]:
    """The solution to judge and what is known of it; and the check, where no W separates or nothing is compared."""
    tied = 0  # queries with several best tokens; nobody asked where the solution was given
    if solution is None:
        best, tied = _best_tokens(tokens, head)
        solution = solve_margin(tokens, best, throw=False)
    else:
        instance("solution", solution, MarginSolution, "what al.solve_margin returns")
        belongs(one_data_set(tokens), solution.selected, solution)
    compared = int(tokens.visible.sum()) - tokens.y.size
    facts = {"tied": tied, "status": solution.status.name.lower(), "constraints": compared}
    if solution.feasible and compared:
        return solution, facts, None
    margin = np.inf if solution.feasible else -np.inf
    settled = Check(name=name, wanted=wanted, margin=margin, holds=solution.feasible, evidence=facts)
    return solution, facts, settled


def _best_tokens(tokens: Tokens, head: HeadLike | None) -> tuple[NDArray[np.intp], int]:
    """The best token of every query of one data set, and how many queries have several."""
    best, count = optimal_tokens(one_data_set(tokens), scoring_head(head), return_ties=True)
    return best, int((count > 1).sum())
