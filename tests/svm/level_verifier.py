"""An independent judge of generalized max-margin solutions in any norm, and an oracle for them.

Written from the statement of the problem, over all pairs of tokens: no anchor, no constraint rows of the solver.
"""

from itertools import pairwise

import numpy as np

Wide = np.longdouble


def pairs(tokens, kept):
    """(matrices that must be level, matrices that must be at least 1): (x_t - x_s) z^T over the pairs of each query."""
    kept = np.asarray(kept, dtype=bool)
    level, above = [], []
    for position in np.ndindex(kept.shape[:-1]):
        x, z = tokens.x[position[0]].astype(Wide), tokens.z[position].astype(Wide)
        seen = [t for t in range(tokens.T) if tokens.mask is None or tokens.mask[(*position, t)]]
        inside = [t for t in seen if kept[(*position, t)]]
        outside = [t for t in seen if not kept[(*position, t)]]
        level += [np.outer(x[t] - x[s], z) for t, s in pairwise(inside)]  # the rest follows
        above += [np.outer(x[t] - x[s], z) for t in inside for s in outside]
    return level, above


def single(selected, T):
    """One kept token per query."""
    return np.arange(T) == np.asarray(selected)[..., None]


def combined(tokens, selected, weights):
    """sum of weights times (x_selected - x_t) z^T, for weights laid out as the tokens are."""
    total = np.zeros((tokens.d, tokens.d), dtype=Wide)
    for where in np.ndindex(weights.shape):
        position, t = where[:-1], where[-1]
        p = tokens.x[position[0], selected[position]].astype(Wide) - tokens.x[position[0], t].astype(Wide)
        total += Wide(weights[where]) * np.outer(p, tokens.z[position].astype(Wide))
    return total


def judge_level(tokens, kept, solution, value, dual, *, gap, rounding=1e-11):
    """Everything that is wrong with a solution: constraints over all pairs, signs, and the gap it states."""
    level, above = pairs(tokens, kept)
    kept = np.asarray(kept, dtype=bool)
    W, faults = solution.W.astype(Wide), []
    length = float(np.sqrt((W**2).sum()))
    scale = 1 + length * float(max(np.sqrt((A**2).sum()) for A in above))
    least = float(min((A * W).sum() for A in above))
    if abs(least - 1) > rounding * scale:
        faults.append(f"least value {least}")
    if level and float(max(abs((A * W).sum()) for A in level)) > rounding * scale:
        faults.append("kept tokens are not level")
    free = np.array(solution.multipliers)
    hidden = ~tokens.visible | single(solution.selected, tokens.T)
    if (free[hidden] != 0).any():
        faults.append("multiplier without constraint")
    counted = free[~kept & ~hidden]
    if (counted < 0).any():
        faults.append("negative multiplier")
    image = combined(tokens, solution.selected, free).astype(float)
    measured = value(solution.W) / least * dual(image) / counted.sum() - 1
    if not -rounding * scale <= measured <= gap + rounding * scale:
        faults.append(f"gap {measured:.1e}")
    if abs(measured - solution.gap) > 1e-3 * abs(measured) + rounding * scale:
        faults.append(f"stated gap {solution.gap:.1e}, measured {measured:.1e}")
    if abs(solution.margin * value(solution.W) - 1) > rounding * scale:
        faults.append("margin is not 1 / |W|")
    return faults


def judge_level_farkas(tokens, kept, solution, *, cancels=1e-10):
    """Everything that is wrong with a proof that nothing separates."""
    kept, weights, faults = np.asarray(kept, dtype=bool), solution.farkas, []
    hidden = ~tokens.visible | single(solution.selected, tokens.T)
    counted = weights[~kept & ~hidden]
    if (weights[hidden] != 0).any() or (counted < 0).any() or abs(counted.sum() - 1) > 1e-9:
        faults.append("not weights")
    sizes = 0.0
    for where in np.ndindex(weights.shape):
        position, t = where[:-1], where[-1]
        p = tokens.x[position[0], solution.selected[position]] - tokens.x[position[0], t]
        sizes += abs(weights[where]) * np.linalg.norm(p) * np.linalg.norm(tokens.z[position])
    image = combined(tokens, solution.selected, weights).astype(float)
    if np.linalg.norm(image) > cancels * sizes:
        faults.append("rows do not cancel")
    return faults


def least_norm(tokens, kept, norm):
    """The optimum by cvxpy, in all d^2 variables; inf if infeasible."""
    import cvxpy as cp

    measure = {
        "frobenius": lambda W: cp.norm(W, "fro"),
        "nuclear": cp.normNuc,
        "spectral": cp.sigma_max,
        "entrywise l1": lambda W: cp.sum(cp.abs(W)),
        "entrywise max": lambda W: cp.max(cp.abs(W)),
        "rows": lambda W: cp.sum(cp.norm(W, 2, axis=1)),
    }[norm]
    level, above = pairs(tokens, kept)
    W = cp.Variable((tokens.d, tokens.d))
    demands = [cp.sum(cp.multiply(A.astype(float), W)) >= 1 for A in above]
    demands += [cp.sum(cp.multiply(A.astype(float), W)) == 0 for A in level]
    problem = cp.Problem(cp.Minimize(measure(W)), demands)
    value = problem.solve(solver=cp.CLARABEL)
    return float(value)
