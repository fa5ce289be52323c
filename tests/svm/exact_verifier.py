"""An independent judge of max-margin solutions at any scale: whole numbers times powers of two, nothing rounded.

Constraint values, combinations of constraints and sums are fractions, computed from the tokens as they are. Only norms
of matrices are taken in float64, after an exact scaling to order one.
"""

from fractions import Fraction

import numpy as np

EPS, ROUND, MET = Fraction(1, 2**52), Fraction(1, 10**12), Fraction(1, 10**8)


def exact_constraints(tokens, selected, kept=None):
    """Every constraint as (position of its other token, difference, query, is it an equality?), in fractions."""
    selected, found = np.asarray(selected), []
    for position in np.ndindex(selected.shape):
        chosen, query = tokens.x[position[0], selected[position]], [Fraction(float(b)) for b in tokens.z[position]]
        for t in range(tokens.T):
            where = (*position, t)
            if t == selected[position] or (tokens.mask is not None and not tokens.mask[where]):
                continue
            other = tokens.x[position[0], t]
            difference = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(chosen, other, strict=True)]
            found.append((where, difference, query, kept is not None and bool(np.asarray(kept)[where])))
    return found


def value_of(difference, query, W):
    """difference^T W query, and the sum of the absolute terms."""
    terms = [a * w * b for a, row in zip(difference, W, strict=True) for w, b in zip(row, query, strict=True)]
    return sum(terms), sum(map(abs, terms))


def combined(found, weights, d):
    """sum of weights times the constraint matrices, and of the absolute values."""
    total, sizes = ([[Fraction(0)] * d for _ in range(d)] for _ in range(2))
    for where, difference, query, _ in found:
        weight = Fraction(float(weights[where]))
        if weight == 0:
            continue
        for a in range(d):
            for b in range(d):
                term = weight * difference[a] * query[b]
                total[a][b] += term
                sizes[a][b] += abs(term)
    return total, sizes


def as_floats(matrix):
    """A matrix of fractions as float64 numbers of order one, and the power of two they were divided by."""
    largest = max(abs(entry) for row in matrix for entry in row)
    if largest == 0:
        return np.zeros((len(matrix), len(matrix))), 0
    power = largest.numerator.bit_length() - largest.denominator.bit_length()
    return np.array([[float(entry / Fraction(2) ** power) for entry in row] for row in matrix]), power


def judge_exactly(tokens, solution, value, dual, *, tolerance, kept=None):
    """Everything that is wrong with a solution that claims to be optimal, or to separate; the norm by its functions."""
    found, d, faults = exact_constraints(tokens, solution.selected, kept), tokens.d, []
    if not (np.isfinite(solution.W).all() and np.isfinite(solution.multipliers).all()):
        return ["not finite"]
    W = [[Fraction(float(w)) for w in row] for row in solution.W]
    values = {where: value_of(difference, query, W) for where, difference, query, _ in found}
    least = min(values[where][0] for where, _, _, equal in found if not equal)
    if least <= 0:
        return [f"does not separate: least value {float(least):.3g}"]
    for where, _, _, equal in found:
        if equal and abs(values[where][0]) > MET * values[where][1] + Fraction(float(solution.violation)) + MET:
            faults.append("an equality does not hold")
    if solution.status.name != "OPTIMAL":
        return faults
    lead = [values[where][1] for where, _, _, equal in found if not equal and values[where][0] < 2]
    rounding = 16 * float(EPS * max(lead))
    if abs(float(least) - 1) > rounding + 1e-12:
        faults.append(f"least value is 1 + {float(least - 1):.1e}")
    if rounding > 1e-2:
        faults.append(f"rounding may have moved the least value by {rounding:.1e}")
    stated = [(solution.values[where], values[where]) for where, *_ in found]
    if not all(np.isfinite(s) and abs(Fraction(float(s)) - v) <= 64 * EPS * size + ROUND for s, (v, size) in stated):
        faults.append("stated values are not those of W")
    counted = [solution.multipliers[where] for where, _, _, equal in found if not equal]
    if min(counted) < 0:
        faults.append("negative multiplier")
    image, _ = combined(found, solution.multipliers, d)
    (small, power), (pull, other) = as_floats(W), as_floats(image)
    total = sum(Fraction(float(weight)) for weight in counted)
    if total == 0:
        return [*faults, "no multipliers"]
    ratio = Fraction(value(small)) * Fraction(dual(pull)) * Fraction(2) ** (power + other) / (least * total)
    long = sum(
        abs(Fraction(float(solution.multipliers[where]))) * length(difference) * length(query)
        for where, difference, query, _ in found
    )
    lost = 16 * float(EPS * long / (Fraction(float(np.linalg.norm(pull)) or 1.0) * Fraction(2) ** other))
    if not -1e-9 - lost - rounding <= float(ratio - 1) <= tolerance + lost + rounding:
        faults.append(f"gap {float(ratio - 1):.1e}, tolerance {tolerance:.1e}, rounding {lost + rounding:.1e}")
    margin = Fraction(float(solution.margin)) * Fraction(value(small)) * Fraction(2) ** power
    if abs(float(margin) - 1) > 1e-9:
        faults.append("margin is not 1 / |W|")
    return faults


def length(vector):
    """The largest absolute entry, times the root of the dimension: at least the Euclidean length."""
    return max(map(abs, vector)) * Fraction(np.sqrt(len(vector)))


def judge_proof(tokens, solution, *, cancels=1e-10, kept=None):
    """Everything that is wrong with a proof that no W separates: signs, sum, and an entry that does not cancel."""
    found, faults = exact_constraints(tokens, solution.selected, kept), []
    weights = solution.farkas
    if weights is None or not np.isfinite(weights).all():
        return ["no weights"]
    counted = [weights[where] for where, _, _, equal in found if not equal]
    if min(counted) < 0 or abs(sum(counted) - 1) > 1e-12:
        faults.append("not weights of sum 1")
    total, sizes = combined(found, weights, tokens.d)
    for row, size in zip(total, sizes, strict=True):
        for entry, whole in zip(row, size, strict=True):
            if abs(entry) > Fraction(cancels) * whole:
                faults.append(f"an entry cancels only to {float(entry / whole):.1e}")
    return faults
