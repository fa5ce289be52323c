"""Definitions by plain loops, with max-margin problems solved over all d^2 entries: the slow way, written apart."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.optimize import linprog, nnls

import attnlab as al

TIGHT = 1e-6


def draw(seed: int, n: int, T: int, d: int, K: int | None = None, masked: bool = False) -> al.Tokens:
    rng = np.random.default_rng([seed, n, T, d, K or 0, masked])
    rows = (n,) if K is None else (n, K)
    mask = rng.random((*rows, T)) < 0.7
    mask[..., rng.integers(T)] = True
    return al.Tokens(
        x=rng.standard_normal((n, T, d)),
        z=rng.standard_normal((*rows, d)),
        y=rng.choice([-1.0, 1.0], rows),
        v=rng.standard_normal(d),
        mask=mask if masked else None,
    )


def queries(tokens: al.Tokens):
    """Index of each query in the labels, with its sequence."""
    for index in np.ndindex(*tokens.y.shape):
        yield index, index[0]


def score(tokens: al.Tokens, index, t: int) -> float:
    terms = [float(a) * float(b) for a, b in zip(tokens.v, tokens.x[index[0], t], strict=True)]
    return float(tokens.y[index]) * math.fsum(terms)


def best(tokens: al.Tokens) -> np.ndarray:
    found = np.zeros(tokens.y.shape, dtype=int)
    for index, _ in queries(tokens):
        seen = [t for t in range(tokens.T) if tokens.visible[(*index, t)]]
        found[index] = max(seen, key=lambda t: score(tokens, index, t))
    return found


def constraints(tokens: al.Tokens, selected: np.ndarray):
    """[(query, token, matrix)]."""
    found = []
    for index, i in queries(tokens):
        a = int(selected[index])
        for t in range(tokens.T):
            if t != a and tokens.visible[(*index, t)]:
                found.append((index, t, np.outer(tokens.x[i, a] - tokens.x[i, t], tokens.z[index])))
    return found


def separating(tokens: al.Tokens, selected: np.ndarray) -> bool:
    """Is there a W with all values positive? A linear program over the entries of W."""
    A = np.array([matrix.ravel() for _, _, matrix in constraints(tokens, selected)])
    if not len(A):
        return True
    cost = np.zeros(A.shape[1] + 1)
    cost[-1] = -1.0
    rows = np.hstack([-A, np.ones((len(A), 1))])
    bounds = [(-1, 1)] * A.shape[1] + [(None, 1)]
    return -linprog(cost, A_ub=rows, b_ub=np.zeros(len(A)), bounds=bounds, method="highs").fun > 1e-9


def max_margin(tokens: al.Tokens, selected: np.ndarray) -> np.ndarray | None:
    """Least W by non-negative least squares over all entries; None if no W separates."""
    listed = constraints(tokens, selected)
    if not listed:
        return np.zeros((tokens.d, tokens.d))
    E = np.vstack([np.array([m.ravel() for _, _, m in listed]).T, np.ones(len(listed))])
    f = np.zeros(len(E))
    f[-1] = 1.0
    u, distance = nnls(E, f, maxiter=10_000)
    if distance < 1e-9:
        return None
    r = E @ u - f
    return (-r[:-1] / r[-1]).reshape(tokens.d, tokens.d)


def values(tokens: al.Tokens, selected: np.ndarray, W: np.ndarray) -> dict:
    return {(index, t): float(np.sum(m * W)) for index, t, m in constraints(tokens, selected)}


def support(tokens: al.Tokens, selected: np.ndarray) -> set | None:
    W = max_margin(tokens, selected)
    if W is None:
        return None
    return {where for where, value in values(tokens, selected, W).items() if value <= 1 + TIGHT}


def failing(tokens: al.Tokens, selected: np.ndarray) -> list | None:
    """Support tokens that score no less than the selected one; None if infeasible."""
    found = support(tokens, selected)
    if found is None:
        return None
    return sorted(
        (index, t) for index, t in found if score(tokens, index, int(selected[index])) <= score(tokens, index, t)
    )


def every_selection(tokens: al.Tokens):
    seen = [[t for t in range(tokens.T) if tokens.visible[(*index, t)]] for index, _ in queries(tokens)]
    for choice in itertools.product(*seen):
        yield np.array(choice).reshape(tokens.y.shape)


def barrier(tokens: al.Tokens, selected: np.ndarray, W: np.ndarray) -> float:
    worst = math.inf
    for index, i in queries(tokens):
        mine = score(tokens, index, int(selected[index]))
        others = [t for t in range(tokens.T) if t != selected[index] and tokens.visible[(*index, t)]]
        low = [t for t in others if score(tokens, index, t) < mine]
        high = [t for t in others if score(tokens, index, t) >= mine]
        if not high:
            continue
        best_shield = -math.inf
        for t in low:
            best_shield = max(
                best_shield,
                min(float((tokens.x[i, t] - tokens.x[i, s]) @ W @ tokens.z[index]) for s in high),
            )
        worst = min(worst, best_shield)
    return worst / math.sqrt(float(np.sum(W * W)))
