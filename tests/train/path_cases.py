"""Data and independent oracles for regularization paths."""

import cvxpy as cp
import numpy as np

from attnlab import Tokens, optimal_tokens


def reference_tokens(seed, n, T, d):
    """The instances of the reference runs: unit vectors, drawn in the order v, y, x, z."""
    rng = np.random.default_rng(seed)

    def unit(*shape):
        a = rng.standard_normal(shape)
        return a / np.linalg.norm(a, axis=-1, keepdims=True)

    v, y, x, z = unit(d), np.where(rng.random(n) < 0.5, 1.0, -1.0), unit(n, T, d), unit(n, d)
    return Tokens(x=x, z=z, y=y, v=v)


def nuclear_margin(tokens, selected):
    """The nuclear max-margin matrix, by cvxpy."""
    W = cp.Variable((tokens.d, tokens.d))
    rows = [
        (tokens.x[i, a] - tokens.x[i, t]) @ W @ tokens.z[i] >= 1
        for i, a in enumerate(selected)
        for t in range(tokens.T)
        if t != a
    ]
    cp.Problem(cp.Minimize(cp.normNuc(W)), rows).solve(solver="CLARABEL")
    return W.value


def log_excess(tokens, W, selected=None):
    """log of the mean excess logistic loss over the selected tokens, as the textbook writes it."""
    gamma = tokens.y[:, None] * (tokens.x @ tokens.v)
    selected = optimal_tokens(tokens) if selected is None else np.asarray(selected)
    logits = np.einsum("ntd,de,ne->nt", tokens.x, W, tokens.z)
    s = np.exp(logits - logits.max(1, keepdims=True))
    s /= s.sum(1, keepdims=True)
    top = np.take_along_axis(gamma, selected[:, None], 1)
    drop = (s * (top - gamma)).sum(1)
    return np.log(np.mean(np.log1p(np.expm1(drop) / (1 + np.exp(top[:, 0])))))
