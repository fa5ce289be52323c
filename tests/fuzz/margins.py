"""Judges of max-margin solutions at the scale of the data: nothing of the solver is used, nothing can overflow.

Extended precision has 15 bits of exponent, so that products of five float64 numbers are safe in it; proofs that there
is no solution are checked in rational numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzz.calls import Call
from fuzz.proofs import cancels, features_cancel, kernel_cancels

Wide = np.longdouble
ROUNDING = 1e-11  # of values, relative to the sizes of what is summed up in them
GROSS = 1e-2  # however large those sizes are
USUAL = {"frobenius": 1e-10, "nuclear": 1e-8}
USUAL_OF_NORMS = 1e-7


@dataclass(frozen=True)
class Problem:
    """Rows p W q, one per constraint, in extended precision."""

    p: np.ndarray  # (N, d)
    q: np.ndarray  # (N, d)
    where: list[tuple[int, ...]]  # position of the other token
    equal: np.ndarray  # (N,)


def rows_of(tokens: Any, selected: np.ndarray, kept: np.ndarray | None = None) -> Problem:
    """Every constraint of one data set."""
    x, z = tokens.x.astype(Wide), tokens.z.astype(Wide)
    p, q, where, equal = [], [], [], []
    for position in np.ndindex(selected.shape):
        for t in range(tokens.T):
            hidden = tokens.mask is not None and not tokens.mask[(*position, t)]
            if hidden or t == selected[position]:
                continue
            p.append(x[position[0], selected[position]] - x[position[0], t])
            q.append(z[position])
            where.append((*position, t))
            equal.append(kept is not None and bool(kept[(*position, t)]))
    d = tokens.d
    return Problem(np.array(p).reshape(-1, d), np.array(q).reshape(-1, d), where, np.array(equal, dtype=bool))


def certified(call: Call, solution: Any) -> str | None:
    """Of `solve_margin`."""
    return _judged(call.args[0], solution, None, _tolerance(call))


def all_certified(call: Call, solutions: Any) -> str | None:
    """Of `solve_margins`: every one of the batch, and what the batch says of it."""
    tokens = call.args[0]
    if len(solutions) != tokens.trials:
        return f"{len(solutions)} solutions of {tokens.trials} trials"
    for i in range(len(solutions)):
        fault = _judged(tokens[i], solutions[i], None, _tolerance(call))
        if fault is None and solutions.status[i] is not solutions[i].status:
            fault = f"the batch says {solutions.status[i].name}, the solution {solutions[i].status.name}"
        if fault is None and bool(solutions.feasible[i]) != solutions[i].feasible:
            fault = "the batch and the solution differ in `feasible`"
        if fault is not None:
            return f"trial {i}: {fault}"
    return None


def level_certified(call: Call, solution: Any) -> str | None:
    """Of `solve_generalized`: kept tokens level."""
    kept = np.asarray(call.args[1], dtype=bool)
    return _judged(call.args[0], solution, kept, _tolerance(call))


def proven(call: Call, solution: Any) -> str | None:
    """Of any function of tokens that ends for want of a separating W: is there a proof that there is none?"""
    return _judged(call.args[0], solution, None, 0.0)


def factored(call: Call, solution: Any) -> str | None:
    """Of `solve_factored`: feasible, and W = K Q^T as it says."""
    if solution.status.name in ("INFEASIBLE", "UNDECIDED") or not np.isfinite(solution.W).all():
        return None if solution.status.name != "OPTIMAL" else "no finite W"
    problem = rows_of(call.args[0], np.asarray(solution.selected))
    values, sizes = _values(problem, solution.W.astype(Wide))
    slack = np.minimum(1e-7 * (1 + sizes), GROSS)
    if solution.certified_global and len(values) and (values < 1 - slack).any():
        return f"called global, but the least value is {float(values.min())}"
    return None


def _tolerance(call: Call) -> float:
    """The relative gap that was asked for; of a norm object the usual one is that of the general solver."""
    given, norm = call.kwargs.get("tolerance"), call.kwargs.get("norm", "frobenius")
    if given is not None:
        return float(given)
    return USUAL[norm] if isinstance(norm, str) else USUAL_OF_NORMS


def _judged(tokens: Any, solution: Any, kept: np.ndarray | None, tolerance: float) -> str | None:
    name = solution.status.name
    if name not in ("OPTIMAL", "INFEASIBLE", "UNCONSTRAINED", "INACCURATE", "UNDECIDED"):
        return f"unknown status {name}"
    problem = rows_of(tokens, np.asarray(solution.selected), kept)
    if name == "UNCONSTRAINED":
        return "there are constraints" if (~problem.equal).any() else None
    if name == "INFEASIBLE":
        return cancels(tokens, solution.selected, problem.where, problem.equal, solution.farkas)
    if name == "OPTIMAL":
        return _optimal(problem, solution, tolerance)
    return None


def _optimal(problem: Problem, solution: Any, tolerance: float) -> str | None:
    """What keeps this solution from being certified, if anything does."""
    W = np.asarray(solution.W).astype(Wide)
    raw = np.array([solution.multipliers[where] for where in problem.where]).astype(Wide)
    if not (np.isfinite(W).all() and np.isfinite(raw).all()):
        return "W or multipliers are not finite"
    if (raw[~problem.equal] < 0).any():
        return "a negative multiplier"
    values, sizes = _values(problem, W)
    slack = np.minimum(ROUNDING * (1 + sizes), GROSS).astype(float)
    least = float(values[~problem.equal].min())
    stated = min(float(solution.violation), tolerance)
    if least < 1 - float(slack.max()) - stated:
        return f"infeasible: the least value is {least!r}"
    if problem.equal.any() and (np.abs(values[problem.equal]) > 1e-8 * (1 + sizes[problem.equal])).any():
        return "kept tokens are not level"
    image = np.einsum("j,ja,jb->ab", raw, problem.p, problem.q)
    total = raw[~problem.equal].sum()
    length, reach = norms(solution.norm, W), dual(solution.norm, image)
    if not (total > 0 and length > 0):
        return "W or the multipliers are zero"
    gap = float((length / Wide(least)) * (reach / total) - 1)
    allowed = tolerance + 1e-9 + float(slack.max())
    if not gap <= allowed:
        return f"the gap is {gap:.2e}, not {solution.gap:.2e}"
    if not abs(float(Wide(solution.margin) * length) - 1) <= 1e-9:
        return f"margin {solution.margin!r} is not 1 / |W|"
    stated = np.array([solution.values[where] for where in problem.where])
    if (np.abs(stated - values) > ROUNDING * (1 + sizes)).any():
        return "stated values are not those of W"
    return None


def _values(problem: Problem, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Constraint values, and the sums of their absolute terms."""
    values = np.einsum("ja,ab,jb->j", problem.p, W, problem.q)
    sizes = np.einsum("ja,ab,jb->j", np.abs(problem.p), np.abs(W), np.abs(problem.q))
    return values, sizes


def norms(name: str, W: np.ndarray) -> Any:
    """|W|."""
    if name == "entrywise l1":
        return np.abs(W).sum()
    if name == "entrywise max":
        return np.abs(W).max()
    if name == "frobenius":
        return np.sqrt((W * W).sum())
    singular, scale = _singular(W)
    return (singular.sum() if name == "nuclear" else singular.max()) * scale


def dual(name: str, M: np.ndarray) -> Any:
    """The dual norm of M."""
    other = {
        "nuclear": "spectral",
        "spectral": "nuclear",
        "entrywise l1": "entrywise max",
        "entrywise max": "entrywise l1",
    }
    return norms(other.get(name, name), M)


def _singular(W: np.ndarray) -> tuple[np.ndarray, Any]:
    """Singular values in units of a power of two, and that unit."""
    largest = np.abs(W).max()
    if largest == 0:
        return np.zeros(1), Wide(1)
    unit = np.ldexp(Wide(1), int(np.frexp(largest)[1]))
    return np.linalg.svd((W / unit).astype(float), compute_uv=False), unit


def separated(call: Call, found: Any) -> str | None:
    """Of `linear_margin`."""
    x = np.array(call.args[0], dtype=np.float64)
    y = np.array(call.args[1], dtype=np.float64)
    name = found.status.name
    if name == "NOT_SEPARABLE":
        return features_cancel(x, y, found.farkas)
    if name != "OPTIMAL":
        return None
    signed = (y[:, None] * x).astype(Wide)
    u, a = np.asarray(found.weights).astype(Wide), np.asarray(found.multipliers).astype(Wide)
    if not (np.isfinite(u).all() and np.isfinite(a).all()):
        return "weights or multipliers are not finite"
    if (a < 0).any() or not a.sum() > 0:
        return "multipliers are negative or zero"
    values, length = signed @ u, np.sqrt((u * u).sum())
    upper = np.sqrt(((a @ signed) ** 2).sum()) / a.sum()
    slack = min(ROUNDING * (1 + float((np.abs(signed) @ np.abs(u)).max())), GROSS)
    if values.min() < 1 - slack:
        return f"the least value is {float(values.min())!r}"
    return _bracket(found, values.min() / length, upper, float(call.kwargs["tolerance"]) + slack)


def kernel_separated(call: Call, found: Any) -> str | None:
    """Of `kernel_margin`."""
    K = np.array(call.args[0], dtype=np.float64).astype(Wide)
    y = np.array(call.args[1], dtype=np.float64).astype(Wide)
    signed = (K + K.T) / 2 * np.outer(y, y)
    name = found.status.name
    if name == "NOT_SEPARABLE":
        return kernel_cancels(signed, found.farkas)
    if name != "OPTIMAL":
        return None
    a = np.asarray(found.multipliers).astype(Wide)
    if not np.isfinite(a).all() or (a < 0).any() or not a.sum() > 0:
        return "multipliers are not finite, negative or zero"
    values = signed @ a
    square = a @ values
    if not square > 0:
        return "the direction has no length"
    length = np.sqrt(square)
    slack = 1e-12 * float((np.abs(signed) @ a).max() / values.min()) if values.min() > 0 else 0.0
    return _bracket(found, values.min() / length, length / a.sum(), float(call.kwargs["tolerance"]) + min(slack, GROSS))


def _bracket(found: Any, lower: Any, upper: Any, allowed: float) -> str | None:
    """Do the stated bounds of the margin follow?"""
    if not float(upper / lower - 1) <= allowed + 1e-9:
        return f"the gap is {float(upper / lower - 1):.2e}, not {found.gap:.2e}"
    for name, stated, measured in (("lower", found.lower, lower), ("upper", found.upper, upper)):
        if not abs(float(Wide(stated) / measured) - 1) <= allowed + 1e-9:
            return f"`{name}` is stated as {stated!r}, measured {float(measured)!r}"
    return None
