"""The attention model and its training in plain NumPy and long double, written from the formulas of the papers.

Softmax derivatives take the pairwise form `s_t sum_k s_k (g_t - g_k)`, the gradient is `mean_i l' x^T (S' g) z^T`.
All arrays may have a leading trial axis.
"""

from types import SimpleNamespace

import numpy as np

LD = np.longdouble


def arrays_of(tokens):
    """Long-double arrays of `tokens`, always with a query axis."""
    one = tokens.K is None
    z, y = (np.asarray(a, LD) for a in (tokens.z, tokens.y))
    visible = tokens.visible
    if one:
        z, y, visible = z[..., None, :], y[..., None], visible[..., None, :]
    v = None if tokens.v is None else np.asarray(tokens.v, LD)
    return SimpleNamespace(x=np.asarray(tokens.x, LD), z=z, y=y, v=v, visible=visible)


def evaluate(data, W, v=None, loss="logistic"):
    """Everything about one point: logits, weights, margins, loss, and the gradients in W and in the head."""
    x, z, y = data.x, data.z, data.y
    v = data.v if v is None else v
    keys = z @ np.swapaxes(W, -1, -2)[..., None, :, :]  # (..., n, K, d)
    logits = np.where(data.visible, keys @ np.swapaxes(x, -1, -2), -np.inf)
    s = np.exp(logits - logits.max(-1, keepdims=True))
    s = s / s.sum(-1, keepdims=True)
    values = (x * v[..., None, None, :]).sum(-1)  # (..., n, T)
    g = y[..., None] * values[..., None, :]  # (..., n, K, T)
    margins = (s * g).sum(-1)
    if loss == "logistic":
        each, slope = np.log1p(np.exp(-margins)), -1 / (1 + np.exp(margins))
    else:
        each, slope = np.exp(-margins), -np.exp(-margins)
    pairwise = ((g[..., :, None] - g[..., None, :]) * s[..., None, :]).sum(-1)
    n = x.shape[-3]
    to_logits = slope[..., None] * s * pairwise / n
    left = to_logits @ x  # (..., n, K, d)
    grad_W = (left[..., :, None] * z[..., None, :]).sum((-4, -3))
    grad_u = ((slope * y)[..., None] * (s @ x)).sum((-3, -2)) / n
    value = each.sum((-2, -1)) / n
    return SimpleNamespace(logits=logits, s=s, scores=g, margins=margins, loss=value, W=grad_W, u=grad_u)


def gradients(data, weights, loss="logistic"):
    """The gradient in every parameter of `weights`, and the evaluation it came from."""
    product = weights["W"] if "W" in weights else weights["K"] @ np.swapaxes(weights["Q"], -1, -2)
    found = evaluate(data, product, weights.get("u"), loss)
    if "W" in weights:
        grads = {"W": found.W}
    else:
        grads = {"K": found.W @ weights["Q"], "Q": np.swapaxes(found.W, -1, -2) @ weights["K"]}
    if "u" in weights:
        grads["u"] = found.u
    return grads, found


def size(name, a):
    """Euclidean norm of a parameter per trial, ready to broadcast against it."""
    return np.sqrt(np.sum(a**2, axis=-1 if name == "u" else (-2, -1), keepdims=True))


def normalized(step):
    return lambda t, g, found: {k: -LD(step) * a / size(k, a) for k, a in g.items()}


def constant(step):
    return lambda t, g, found: {k: -LD(step) * a for k, a in g.items()}


def descend(tokens, start, rule, steps, loss="logistic"):
    """`steps` steps of `rule(t, gradients, evaluation)` from `start`; weights in long double."""
    data = arrays_of(tokens)
    weights = {k: np.asarray(w, LD) for k, w in start.items()}
    for t in range(steps):
        moves = rule(t, *gradients(data, weights, loss))
        weights = {k: w + moves[k] for k, w in weights.items()}
    return weights


def error(got, want):
    """Largest difference over all trials, relative to the size of each trial's array."""
    got, want = np.asarray(got, LD), np.asarray(want, LD)
    axes = tuple(range(want.ndim - 2, want.ndim)) if want.ndim >= 2 else None
    return float(np.max(np.abs(got - want).max(axes) / np.abs(want).max(axes)))
