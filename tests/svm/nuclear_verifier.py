"""An independent judge of nuclear max-margin solutions: explicit d x d matrices, plain loops, problem data only."""

import numpy as np
from verifier import constraints


def matrices(tokens, selected):
    """Positions and constraint matrices in float64, (N, d, d)."""
    found = constraints(tokens, selected)
    return [where for where, _ in found], np.array([matrix.astype(float) for _, matrix in found])


def judge_nuclear(tokens, solution, *, gap=1e-8, rounding=1e-11):
    """Everything that is wrong with this as the least-nuclear-norm solution, to the relative duality gap `gap`."""
    where, A = matrices(tokens, solution.selected)
    multipliers = np.array([solution.multipliers[w] for w in where])
    return judge_arrays(A, solution.W, multipliers, gap=gap, rounding=rounding) + _judge_stated(where, A, solution)


def judge_arrays(A, W, multipliers, *, equal=None, gap=1e-8, rounding=1e-11):
    """The same for bare arrays: A (N, d, d), W (d, d), multipliers (N,), which rows say `= 0`."""
    if not (np.isfinite(W).all() and np.isfinite(multipliers).all()):
        return ["not a finite solution"]
    equal = np.zeros(len(A), dtype=bool) if equal is None else equal
    sizes = np.linalg.norm(A, axis=(1, 2))
    values = np.array([np.sum(a * W) for a in A])
    scale = 1.0 + np.linalg.norm(W) * sizes.max()
    least, total = values[~equal].min(), multipliers[~equal].sum()
    image = sum(m * a for m, a in zip(multipliers, A, strict=True))
    spectral, nuclear = np.linalg.norm(image, 2), np.linalg.svd(W, compute_uv=False).sum()
    cancels = 1.0 + np.abs(multipliers) @ sizes
    faults = []
    if abs(least - 1) > rounding * scale:
        faults.append(f"least value is 1 + {least - 1:.1e}")
    if np.abs(values[equal]).max(initial=0.0) > rounding * scale:
        faults.append("an equality does not hold")
    if (multipliers[~equal] < 0).any():
        faults.append("negative multiplier")
    if abs(spectral - 1) > 1e-14 * cancels:
        faults.append(f"largest singular value of the dual matrix is 1 + {spectral - 1:.1e}")
    measured = nuclear / least * spectral / total - 1 if least > 0 and total > 0 else np.inf
    if not -1e-14 * (cancels + scale) <= measured <= gap:
        faults.append(f"gap {measured:.1e}")
    slackness = (multipliers * (values - 1))[~equal].sum() / total
    if abs(slackness) > gap + rounding * scale:
        faults.append(f"complementary slackness {slackness:.1e}")
    return faults


def _judge_stated(where, A, solution):
    """Do the numbers stated in the solution follow from its arrays?"""
    values = np.array([np.sum(a * solution.W) for a in A])
    stated = np.array([solution.values[w] for w in where])
    nuclear = np.linalg.svd(solution.W, compute_uv=False)
    scale = 1.0 + np.linalg.norm(solution.W) * np.linalg.norm(A, axis=(1, 2)).max()
    faults = []
    if np.abs(stated - values).max() > 1e-12 * scale:
        faults.append("stated constraint values are not those of W")
    if abs(solution.margin * nuclear.sum() - 1) > 1e-12 * scale:
        faults.append("margin is not 1 / |W|_*")
    if solution.rank is not None and nuclear[solution.rank :].max(initial=0.0) > 1e-12 * nuclear[0]:
        faults.append("W has more than `rank` singular values")
    if solution.support is not None:
        tight = np.array([solution.support[w] for w in where])
        if (values[tight] > 1 + 1e-6 * scale).any():
            faults.append("support holds a loose constraint")
        if (values[~tight] <= 1 + 1e-13).any():
            faults.append("support misses a tight constraint")
        multipliers = np.array([solution.multipliers[w] for w in where])
        if (multipliers[~tight] > 1e-8 * multipliers.sum()).any():
            faults.append("support misses a constraint that pulls")
    return faults
