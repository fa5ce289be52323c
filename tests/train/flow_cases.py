"""Problems with known answers for gradient flow."""

import cvxpy as cp
import mpmath as mp
import numpy as np

from attnlab import Tokens


def orthonormal(lead, seed):
    """One sequence of ten orthonormal tokens, as in figure 9; Y = 1. `lead` trials."""

    def one(i):
        rng = np.random.default_rng([seed, i])
        x = np.linalg.qr(rng.standard_normal((10, 10)))[0]
        v, z = (a / np.linalg.norm(a) for a in rng.standard_normal((2, 10)))
        return Tokens(x=x[None], z=z[None], y=[1.0], v=v)

    return Tokens.stack([one(i) for i in range(lead)])


def best_mixture(scores, strength):
    """argmax over the simplex of `scores . s - strength |s|^2`: scores / (2 strength) projected (erratum E6)."""
    target = np.sort(scores / (2 * strength))[::-1]
    shift = (np.cumsum(target) - 1) / np.arange(1, len(target) + 1)
    last = np.flatnonzero(target > shift)[-1]
    return np.maximum(scores / (2 * strength) - shift[last], 0.0)


def two_token_time(logit, loss):
    """Time that the two-token example needs from logit 0: `t = int (-loss'(s) s (1 - s))^-1 da`, s = sigmoid(a)."""
    if loss == "correlation":
        return 2 * mp.mpf(logit) + 2 * mp.sinh(mp.mpf(logit))

    def inverse_speed(a):
        s = 1 / (1 + mp.exp(-a))
        slope = 1 / (1 + mp.exp(s)) if loss == "logistic" else mp.exp(-s)
        return (2 + 2 * mp.cosh(a)) / slope

    return mp.quad(inverse_speed, mp.linspace(0, mp.mpf(logit), 21))


def max_margin(tokens, selected, norm):
    """Direction of least norm with `(x_selected - x_t)^T W z >= 1`, by cvxpy, for one query per sequence."""
    W = cp.Variable((tokens.d, tokens.d))
    lead = tokens.x[np.arange(tokens.n), selected][:, None] - tokens.x
    rows = [(lead[i, t] @ W) @ tokens.z[i] >= 1 for i in range(tokens.n) for t in range(tokens.T) if t != selected[i]]
    objective = cp.normNuc(W) if norm == "nuclear" else cp.sum_squares(W)
    cp.Problem(cp.Minimize(objective), rows).solve(solver=cp.CLARABEL)
    assert W.value is not None
    return W.value
