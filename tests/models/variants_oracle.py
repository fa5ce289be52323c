"""`CrossAttention` straight from its definition: a NumPy loop over sequences and queries, and the same in mpmath."""

import mpmath
import numpy as np
from mpmath import mp, mpf


def softmax(logits, exp):
    top = max(logits)
    parts = [exp(a - top) for a in logits]
    return [part / sum(parts) for part in parts]


def matvec(A, b):
    return [sum((a * c for a, c in zip(row, b, strict=True)), start=0 * b[0]) for row in A]


def transposed(A):
    return [list(column) for column in zip(*A, strict=True)]


def key_of(weights, query):
    """W z, or K Q^T z, or z."""
    if "W" in weights:
        return matvec(weights["W"], query)
    if "K" in weights:
        return matvec(weights["K"], matvec(transposed(weights["Q"]), query))
    return query


def outputs(tokens, weights, head, exp=np.exp):
    """h_k(V^T x^T softmax(x W z)) for all sequences and queries, as lists of lists; `head(k, weights, o)`."""
    found = []
    for i in range(tokens.n):
        x = tokens.x[i].tolist()
        asked = tokens.z[i] if tokens.K is not None else tokens.z[i][None]
        row = []
        for k, z in enumerate(asked.tolist()):
            if "p" in weights:
                z = weights["p"][k] if tokens.K is not None else weights["p"]
            visible = tokens.visible[i] if tokens.K is None else tokens.visible[i, k]
            seen = [token for token, is_seen in zip(x, visible, strict=True) if is_seen]
            attention = softmax(matvec(seen, key_of(weights, z)), exp)
            o = matvec(transposed(seen), attention)
            row.append(head(k, weights, matvec(transposed(weights["V"]), o) if "V" in weights else o))
        found.append(row)
    return found


def loss(tokens, weights, head, exp=np.exp, log1p=np.log1p):
    """(1/n) sum_i sum_k log(1 + e^(-y h))."""
    y = tokens.y.reshape(tokens.n, -1)
    total = 0
    for row, labels in zip(outputs(tokens, weights, head, exp), y.tolist(), strict=True):
        total = total + sum(log1p(exp(-label * output)) for label, output in zip(labels, row, strict=True))
    return total / tokens.n


def exact(array):
    """Nested lists of mpf."""
    if np.ndim(array) == 0:
        return mpf(float(array))
    return [exact(one) for one in array]


def exact_gradient(tokens, weights, head, name, digits):
    """The gradient by one weight, from central differences in so many digits: mpf entries, flattened."""
    array = np.asarray(weights[name], dtype=float)
    with mp.workdps(digits):
        step = mpf(10) ** (-40)
        slopes = []
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = {key: exact(value) for key, value in weights.items()}
                entry = moved[name]
                for index in place[:-1]:
                    entry = entry[index]
                entry[place[-1]] = entry[place[-1]] + sign * step
                ends.append(loss(tokens, moved, head, mp.exp, mpmath.log1p))
            slopes.append((ends[0] - ends[1]) / (2 * step))
        return slopes
