"""The attention layer straight from its definition, twice: in mpmath (any precision) and in NumPy (for differences).

Nothing here shares a formula with `attnlab.models`: softmax is the ratio of exponentials, the Jacobian product is the
double sum over pairs of tokens, losses are subtracted as they stand with enough digits to do so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import mpmath
import numpy as np
from mpmath import mp, mpf

import attnlab as al

COEFFICIENTS = (0.75, -1.25, 0.5, 1.5, -0.25, 1.0)


# --- functions a user might pass -----------------------------------------------------------------------------------


def smooth_head(o):
    """sum_j c_j tanh(o_j) + e^(0.3 o_0)."""
    return jnp.dot(jnp.array(COEFFICIENTS[: o.shape[0]]), jnp.tanh(o)) + jnp.exp(0.3 * o[0])


def hyperbola(u):
    """sqrt(1 + u^2) - u: positive, decreasing, convex."""
    return jnp.sqrt(1.0 + u * u) - u


# --- heads ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OracleHead:
    """What `attnlab` is given, and the same head as mpmath value and gradient and as a NumPy function."""

    given: Any
    value: Callable[[list], Any]
    slope: Callable[[list], list]
    numpy: Callable[[np.ndarray], np.ndarray]


def _dot(a, b):
    return mp.fsum(p * q for p, q in zip(a, b, strict=True))


def linear(v: np.ndarray) -> OracleHead:
    w = exact(v)
    return OracleHead("linear", lambda o: _dot(w, o), lambda o: w, lambda o: o @ v.astype(np.longdouble))


def relu_sum() -> OracleHead:
    return OracleHead(
        "relu-sum",
        lambda o: mp.fsum(max(e, mpf(0)) for e in o),
        lambda o: [mpf(1) if e > 0 else mpf(0) for e in o],
        lambda o: np.maximum(o, 0).sum(-1),
    )


def mlp(V: np.ndarray, out: np.ndarray | None = None) -> OracleHead:
    columns, top = exact(V.T), exact(np.ones(V.shape[1]) if out is None else out)

    def active(o):
        return [(c, t) for c, t in zip(columns, top, strict=True) if _dot(c, o) > 0]

    return OracleHead(
        al.models.Mlp(V, out),
        lambda o: mp.fsum(t * _dot(c, o) for c, t in active(o)),
        lambda o: [mp.fsum(t * c[j] for c, t in active(o)) for j in range(V.shape[0])],
        lambda o: np.maximum(o @ V, 0) @ (np.ones(V.shape[1]) if out is None else out),
    )


def concave(v: np.ndarray, strength: float) -> OracleHead:
    w, lam = exact(v), mpf(strength)
    return OracleHead(
        al.models.Concave(strength),
        lambda o: _dot(w, o) - lam * _dot(o, o),
        lambda o: [a - 2 * lam * b for a, b in zip(w, o, strict=True)],
        lambda o: o @ v.astype(np.longdouble) - strength * (o * o).sum(-1),
    )


def user(d: int) -> OracleHead:
    c = COEFFICIENTS[:d]
    rate = mpf(0.3)
    return OracleHead(
        smooth_head,
        lambda o: mp.fsum(mpf(a) * mp.tanh(e) for a, e in zip(c, o, strict=True)) + mp.exp(rate * o[0]),
        lambda o: [
            mpf(a) * mpmath.sech(e) ** 2 + (rate * mp.exp(rate * o[0]) if j == 0 else 0)
            for j, (a, e) in enumerate(zip(c, o, strict=True))
        ],
        lambda o: np.tanh(o) @ np.array(c, dtype=np.longdouble) + np.exp(np.longdouble(0.3) * o[..., 0]),
    )


# --- losses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OracleLoss:
    given: Any
    value: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    numpy: Callable[[np.ndarray], np.ndarray]


LOSSES = {
    "logistic": OracleLoss(
        "logistic",
        lambda u: mpmath.log1p(mp.exp(-u)),
        lambda u: -1 / (1 + mp.exp(u)),
        lambda u: np.log1p(np.exp(-u)),
    ),
    "exponential": OracleLoss("exponential", lambda u: mp.exp(-u), lambda u: -mp.exp(-u), lambda u: np.exp(-u)),
    "correlation": OracleLoss("correlation", lambda u: -u, lambda u: mpf(-1), lambda u: -u),
    "user": OracleLoss(
        hyperbola,
        lambda u: mp.sqrt(1 + u * u) - u,
        lambda u: u / mp.sqrt(1 + u * u) - 1,
        lambda u: np.sqrt(1 + u * u) - u,
    ),
}


# --- the layer in mpmath -------------------------------------------------------------------------------------------


def exact(array) -> Any:
    """Nested lists of the exact values of floats."""
    array = np.asarray(array)
    return mpf(float(array)) if array.ndim == 0 else [exact(row) for row in array]


def weight_matrix(params: dict[str, np.ndarray]) -> list:
    if "W" in params:
        return exact(params["W"])
    K, Q = exact(params["K"]), exact(params["Q"])
    return [[_dot(k, q) for q in Q] for k in K]


def queries(tokens: al.Tokens):
    """(sequence, query vector, label, visible tokens) for every query, in order."""
    shape = tokens.y.shape
    visible = tokens.visible
    for index in np.ndindex(*shape):
        yield index[0], exact(tokens.z[index]), int(tokens.y[index]), np.flatnonzero(visible[index])


def softmax(logits: list) -> list:
    top = max(logits)
    e = [mp.exp(a - top) for a in logits]
    total = mp.fsum(e)
    return [p / total for p in e]


def forward(tokens: al.Tokens, params, head: OracleHead):
    """Per query: (sequence, z, y, visible, tokens seen, softmax, output, margin)."""
    W = weight_matrix(params)
    rows = [exact(x) for x in tokens.x]
    for i, z, y, seen in queries(tokens):
        key = [_dot(w, z) for w in W]
        x = [rows[i][t] for t in seen]
        s = softmax([_dot(t, key) for t in x])
        o = [_dot(s, [t[j] for t in x]) for j in range(tokens.d)]
        yield i, z, y, seen, x, s, o, y * head.value(o)


def objective(tokens, params, head: OracleHead, loss: OracleLoss):
    return mp.fsum(loss.value(q[-1]) for q in forward(tokens, params, head)) / tokens.n


def gradient(tokens, params, head: OracleHead, loss: OracleLoss) -> dict[str, list]:
    """(1/n) sum loss' X^T S' g z^T with (S' g)_t = s_t sum_tau s_tau (g_t - g_tau); then the chain rule for K, Q."""
    d = tokens.d
    dW = [[mpf(0)] * d for _ in range(d)]
    du = [mpf(0)] * d
    for _, z, y, _, x, s, o, u in forward(tokens, params, head):
        weight = loss.slope(u) / tokens.n
        slope = head.slope(o)
        g = [y * _dot(t, slope) for t in x]
        h = [st * mp.fsum(sr * (gt - gr) for sr, gr in zip(s, g, strict=True)) for st, gt in zip(s, g, strict=True)]
        left = [weight * _dot(h, [t[j] for t in x]) for j in range(d)]
        for j in range(d):
            du[j] += weight * y * o[j]
            for e in range(d):
                dW[j][e] += left[j] * z[e]
    if "W" in params:
        found = {"W": dW}
    else:
        K, Q = exact(params["K"]), exact(params["Q"])
        m = range(len(K[0]))
        found = {
            "K": [[_dot(dW[j], [q[c] for q in Q]) for c in m] for j in range(d)],
            "Q": [[_dot([row[e] for row in dW], [k[c] for k in K]) for c in m] for e in range(d)],
        }
    return found | ({"u": du} if "u" in params else {})


def excess(tokens, params, head: OracleHead, loss: OracleLoss):
    """Objective less its value with each query on its best visible token; needs digits to spare."""
    total = mpf(0)
    for _, _, y, _, x, _, _, u in forward(tokens, params, head):
        total += loss.value(u) - loss.value(max(y * head.value(t) for t in x))
    return total / tokens.n


def logit_gaps(tokens, W: np.ndarray) -> np.ndarray:
    """Per query, the lead of the largest visible logit over the second (infinite with one token), in float64."""
    z = tokens.z if tokens.K is not None else tokens.z[..., None, :]
    visible = tokens.visible if tokens.K is not None else tokens.visible[..., None, :]
    logits = np.where(visible, np.einsum("ntd,de,nke->nkt", tokens.x, W, z), -np.inf)
    if tokens.T == 1:
        return np.full(logits.shape[:2], np.inf)
    ranked = np.sort(logits, axis=-1)
    return ranked[..., -1] - ranked[..., -2]


# --- comparing -----------------------------------------------------------------------------------------------------


def flat(nested) -> list:
    return [e for row in nested for e in flat(row)] if isinstance(nested, list) else [nested]


def norm(entries: list):
    return mp.sqrt(mp.fsum(e * e for e in entries))


def direction_error(mantissa: np.ndarray, truth: list) -> float:
    """|m/|m| - g/|g|| with |.| Euclidean, in the working precision of mpmath."""
    got, want = flat(exact(mantissa)), flat(truth)
    a, b = norm(got), norm(want)
    if b == 0:
        return float(a != 0)
    if a == 0:
        return float("inf")
    return float(norm([p / a - q / b for p, q in zip(got, want, strict=True)]))


def log_norm_error(mantissa: np.ndarray, log_scale, truth: list) -> float:
    """Error of log_scale + log|m|, relative to max(1, |log|g||)."""
    want = mpmath.log(norm(flat(truth)))
    got = mpf(float(log_scale)) + mpmath.log(norm(flat(exact(mantissa))))
    return float(abs(got - want) / max(1, abs(want)))


def relative(got, want) -> float:
    want = mpf(want)
    got = mpf(float(got))
    return float(abs(got - want)) if want == 0 else float(abs(got / want - 1))


# --- the layer in NumPy, for finite differences ----------------------------------------------------------------------


def objective_numpy(tokens: al.Tokens, params: dict[str, np.ndarray], head: OracleHead, loss: OracleLoss) -> np.ndarray:
    """The objective in extended precision; parameters may carry any leading axes."""
    W = params["W"] if "W" in params else params["K"] @ np.swapaxes(params["Q"], -1, -2)
    z = tokens.z if tokens.K is not None else tokens.z[:, None, :]
    y = tokens.y if tokens.K is not None else tokens.y[:, None]
    visible = tokens.visible if tokens.K is not None else tokens.visible[:, None, :]
    key = np.swapaxes(W @ np.swapaxes(z, -1, -2)[(slice(None), *[None] * (W.ndim - 2))], -1, -2)  # (n, ..., K, d)
    x = tokens.x[(slice(None), *[None] * (W.ndim - 2))]  # (n, ..., T, d)
    logits = key @ np.swapaxes(x, -1, -2)
    shape = (tokens.n, *[1] * (W.ndim - 2), *visible.shape[1:])
    e = np.where(visible.reshape(shape), np.exp(logits - logits.max(-1, keepdims=True)), 0)
    o = (e / e.sum(-1, keepdims=True)) @ x
    h = np.einsum("n...kd,...d->n...k", o, params["u"]) if "u" in params else head.numpy(o)
    margins = y.reshape(shape[:-1]) * h
    return loss.numpy(margins).sum(-1).sum(0) / tokens.n


# Central differences of sixth order: error h^6, rounding eps/h.
STENCIL = {1: 3 / 4, 2: -3 / 20, 3: 1 / 60}


def finite_differences(tokens, params, head, loss, step: float = 2e-3) -> dict[str, np.ndarray]:
    wide = {k: np.asarray(p, dtype=np.longdouble) for k, p in params.items()}
    found = {}
    for name, p in wide.items():
        unit = np.eye(p.size, dtype=np.longdouble).reshape(p.size, *p.shape)
        others = {k: np.broadcast_to(q, (p.size, *q.shape)) for k, q in wide.items() if k != name}
        slope = np.zeros(p.size, dtype=np.longdouble)
        for k, c in STENCIL.items():
            up = objective_numpy(tokens, others | {name: p + k * step * unit}, head, loss)
            down = objective_numpy(tokens, others | {name: p - k * step * unit}, head, loss)
            slope += np.longdouble(c) * (up - down) / np.longdouble(step)
        found[name] = slope.reshape(p.shape)
    return found
