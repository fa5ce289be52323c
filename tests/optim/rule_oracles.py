"""Step rules as their papers print them, in long double: slow, plain, and independent of the library.

An oracle is a function `(gradients, parameters, facts) -> updates` that keeps what it must remember in a closure.
Gradients are dicts of long-double arrays, whose range (e^-11355 to e^11355) holds gradients no float64 can.
"""

import numpy as np

LD = np.longdouble


def norm(a):
    return np.sqrt(np.sum(np.asarray(a, LD) ** 2))


def total_norm(g):
    return np.sqrt(sum(norm(a) ** 2 for a in g.values()))


def factors(g, step, cap, norms, eps=0):
    """min(step / (|g| + eps), cap) for every parameter; 0 where the gradient is zero."""
    lengths = {k: norm(a) if norms == "separate" else total_norm(g) for k, a in g.items()}
    return {k: min(LD(step) / (r + LD(eps)), LD(cap)) if r > 0 else LD(0) for k, r in lengths.items()}


def gd(step):
    return lambda g, params, facts: {k: -LD(step) * a for k, a in g.items()}


def ngd(step, cap=np.inf, norms="separate", eps=0, regularizer=0):
    def update(g, params, facts):
        if len(g) > 1:
            g = {k: a + 2 * LD(regularizer) * params[k] for k, a in g.items()}
        s = factors(g, step, cap, norms, eps)
        return {k: -s[k] * a for k, a in g.items()}

    return update


def momentum_a(step, b=0.9, cap=np.inf, norms="separate"):
    v = {}

    def update(g, params, facts):
        s = factors(g, step, cap, norms)
        for k, a in g.items():
            v[k] = LD(b) * v.get(k, 0) + s[k] * a
        return {k: -a for k, a in v.items()}

    return update


def momentum_b(step, b=0.9, cap=np.inf, norms="separate"):
    v = {}

    def update(g, params, facts):
        s = factors(g, step, cap, norms)
        for k, a in g.items():
            v[k] = LD(b) * v.get(k, 0) + a
        return {k: -s[k] * v[k] for k in g}

    return update


def polyak(cap=np.inf, constant=0.5):
    """`facts["excess"]` is loss - floor."""

    def update(g, params, facts):
        squared, excess = total_norm(g) ** 2, facts["excess"]
        s = min(LD(constant) * excess / squared, LD(cap)) if squared > 0 and excess > 0 else LD(0)
        return {k: -s * a for k, a in g.items()}

    return update


def joint_decay(step, power=2 / 3):
    count = [0]

    def update(g, params, facts):
        count[0] += 1  # t + 1, with t from 0
        t = LD(count[0])
        decay = {k: t ** -LD(power) if k == "u" else 1 / t for k in g}
        return {k: -LD(step) * decay[k] * a / norm(a) if norm(a) > 0 else 0 * a for k, a in g.items()}

    return update


def adam(step, b1=0.9, b2=0.999, eps=1e-8):
    m, v, count = {}, {}, [0]

    def update(g, params, facts):
        count[0] += 1
        moves = {}
        for k, a in g.items():
            m[k] = LD(b1) * m.get(k, 0) + (1 - LD(b1)) * a
            v[k] = LD(b2) * v.get(k, 0) + (1 - LD(b2)) * a**2
            mean, square = m[k] / (1 - LD(b1) ** count[0]), v[k] / (1 - LD(b2) ** count[0])
            moves[k] = -LD(step) * mean / (np.sqrt(square) + LD(eps))
        return moves

    return update
