"""An independent judge of max-margin solutions: explicit d x d constraint matrices, plain loops, extended precision.

Nothing here uses the solver's own constraint rows. Extended precision has a wide exponent range too, so tokens of
size 1e100 are judged like any others.
"""

from dataclasses import dataclass

import numpy as np

Wide = np.longdouble


@dataclass(frozen=True)
class Verdict:
    """What was measured, and everything that is wrong."""

    gap: float
    violation: float
    stationarity: float
    slackness: float
    faults: tuple[str, ...]


def constraints(tokens, selected):
    """Every constraint as (position of its other token, matrix A): (x_selected - x_t) z^T, visible tokens only."""
    selected = np.asarray(selected)
    found = []
    for position in np.ndindex(selected.shape):
        i = position[0]
        query = np.array(tokens.z[position], dtype=Wide)
        for t in range(tokens.T):
            if t == selected[position]:
                continue
            if tokens.mask is not None and not tokens.mask[(*position, t)]:
                continue
            difference = np.array(tokens.x[i, selected[position]], dtype=Wide) - np.array(tokens.x[i, t], dtype=Wide)
            matrix = np.empty((tokens.d, tokens.d), dtype=Wide)
            for a in range(tokens.d):
                for b in range(tokens.d):
                    matrix[a, b] = difference[a] * query[b]
            found.append(((*position, t), matrix))
    return found


def size(matrix):
    """Frobenius norm."""
    return np.sqrt(np.sum(np.square(np.asarray(matrix, dtype=Wide))))


def combine(found, weights, d):
    """sum l A, where l is laid out as the tokens are."""
    total = np.zeros((d, d), dtype=Wide)
    for where, matrix in found:
        total += Wide(weights[where]) * matrix
    return total


def _off_the_constraints(found, weights):
    rest = np.array(weights, dtype=float)
    for where, _ in found:
        rest[where] = 0.0
    return bool(np.any(rest != 0))


def judge(tokens, solution, *, gap=1e-10, rounding=1e-12):
    """Is this the max-margin solution it claims to be, to the relative duality gap `gap`?"""
    found, d, faults = constraints(tokens, solution.selected), tokens.d, []
    W = np.array(solution.W, dtype=Wide)
    values = np.array([np.sum(matrix * W) for _, matrix in found])
    sizes = np.array([size(matrix) for _, matrix in found])
    multipliers = np.array([Wide(solution.multipliers[where]) for where, _ in found])
    sum_l, norm, image = multipliers.sum(), size(W), combine(found, solution.multipliers, d)
    scale = 1 + float(norm * sizes.max())  # rounding W to float64 moves values by this much
    if not (np.isfinite(values).all() and np.isfinite(multipliers).all() and sum_l > 0 and norm > 0):
        return Verdict(np.inf, np.inf, np.inf, np.inf, ("not a finite solution",))
    least = values.min()
    violation = float(max(0, 1 - least))
    if violation > rounding * scale:
        faults.append(f"infeasible by {violation:.1e}")
    if abs(float(least - 1)) > rounding * scale:
        faults.append(f"least value is 1 + {float(least - 1):.1e}")
    if (multipliers < 0).any():
        faults.append("negative multiplier")
    if _off_the_constraints(found, solution.multipliers):
        faults.append("multiplier where there is no constraint")
    stationarity = float(size(W - image) / (norm + (multipliers * sizes).sum()))
    if stationarity > rounding:
        faults.append(f"W is not the sum of its multipliers: {stationarity:.1e}")
    slackness = float((multipliers * np.abs(values - 1)).sum() / sum_l)
    if slackness > gap + rounding * scale:
        faults.append(f"complementary slackness {slackness:.1e}")
    measured = float((norm / least) * (size(image) / sum_l) - 1) if least > 0 else np.inf
    if not -rounding <= measured <= gap:
        faults.append(f"gap {measured:.1e}")
    duality = float(abs(norm**2 - sum_l) / norm**2)
    if duality > 2 * gap + rounding * scale:
        faults.append(f"|W|^2 and sum l differ by {duality:.1e}")
    if abs(solution.gap - measured) > 1e-3 * abs(measured) + 1e-14 * scale + 1e-13:
        faults.append(f"stated gap {solution.gap:.1e}, measured {measured:.1e}")
    if abs(float(solution.margin * norm) - 1) > rounding * scale:
        faults.append("margin is not 1 / |W|")
    stated = np.array([solution.values[where] for where, _ in found])
    if np.abs((stated - values).astype(float)).max() > rounding * scale:
        faults.append("stated constraint values are not those of W")
    if solution.support is not None:
        tight = np.array([solution.support[where] for where, _ in found])
        if _off_the_constraints(found, solution.support):
            faults.append("support where there is no constraint")
        loose = np.sqrt(2 * gap) * scale
        if (values[tight] > 1 + loose + 1e-9).any():
            faults.append("support holds a loose constraint")
        if (values[~tight] <= 1 + 1e-13).any():
            faults.append("support misses a tight constraint")
        if (multipliers[~tight] * (values[~tight] - 1) > gap * sum_l + rounding * scale * sum_l).any():
            faults.append("support misses a constraint that pulls")
    return Verdict(measured, violation, stationarity, slackness, tuple(faults))


def judge_farkas(tokens, selected, farkas, *, cancels=1e-10):
    """Do these weights prove that no W separates? Returns the relative residual and everything that is wrong."""
    found, faults = constraints(tokens, selected), []
    if farkas is None or np.shape(farkas) != (*np.shape(selected), tokens.T):
        return np.inf, ("not laid out as the tokens are",)
    weights = np.array([Wide(farkas[where]) for where, _ in found])
    if not np.isfinite(weights).all() or (weights < 0).any():
        faults.append("weights below 0")
    if _off_the_constraints(found, farkas):
        faults.append("weight where there is no constraint")
    if abs(float(weights.sum() - 1)) > 1e-12:
        faults.append(f"weights sum to {float(weights.sum())}")
    whole = (np.abs(weights) * np.array([size(matrix) for _, matrix in found])).sum()
    residual = float(size(combine(found, farkas, tokens.d)) / whole) if whole > 0 else 0.0
    if not residual <= cancels:
        faults.append(f"rows cancel only to {residual:.1e}")
    return residual, tuple(faults)
