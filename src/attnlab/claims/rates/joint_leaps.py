"""Eq. (10) over astronomically many steps.

Condition 1 makes the step size so small that the loss moves only after some 10^50 steps. The first steps are taken one
by one; later ones many at a time. A leap from t to t' moves u by `eta sum (s+1)^-p` and W by `eta sum 1/(s+1)` over the
steps between, along the mean of the unit gradients at both its ends. Halving the leaps tells the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, softmax

from attnlab.data import Tokens
from attnlab.data.tokens import Array
from attnlab.theory.rates.joint import JointModel, decayed_sum

SINGLE = 64  # steps taken one by one
GROWTH = 0.2  # a leap is at most this part of the time so far, in the time of u ...
REACH = 0.1  # ... and changes no margin by more than about this


@dataclass(frozen=True, eq=False)
class Leaps:
    """A run of Eq. (10): times, and per trial and time what the lemmas speak of.

    Attributes:
        t: times, (R,).
        log_loss: (trials, R), without cancellation near 0.
        log_ratio: log of the largest ratio of two samples' losses.
        gap: least score lead of a planted token.
        spread: largest difference between the scores of two other tokens of a sample.
        lead: least logit lead of a planted token.
        gradient: |grad_u L| / L.
        norm_u, norm_W: norms.
        pull: cosine of -grad_W with the max-margin direction; inf where the gradient is zero.
        margin: least y u.x_opt / |u|.
        attended: least y u.z, with z the attended token of a sample.
        u, W: at the end.
    """

    t: Array
    log_loss: Array
    log_ratio: Array
    gap: Array
    spread: Array
    lead: Array
    gradient: Array
    norm_u: Array
    norm_W: Array
    pull: Array
    margin: Array
    attended: Array
    u: Array
    W: Array


def leap(
    tokens: Tokens,
    model: JointModel,
    step: float,
    *,
    target: Array,
    until: float = 30.0,
    power: float = 2 / 3,
    finer: int = 1,
    start: tuple[Array, Array] | None = None,
) -> Leaps:
    """Run Eq. (10) until the path of u is `until / B` long.

    Args:
        tokens: a batch; the planted tokens are `info["planted"]`.
        model: its data model.
        step: eta.
        target: max-margin directions, (trials, d, d).
        until: where to stop; the largest margin is then about this.
        power: p of Eq. (10).
        finer: divide the leaps by this.
        start: u (trials, d) and W (trials, d, d) to start from; None: zero.
    """
    u, W = (np.zeros(target.shape[:-1]), np.zeros(target.shape)) if start is None else start
    target = target / np.linalg.norm(target, axis=(-2, -1), keepdims=True)
    t = 0.0
    times: list[float] = []
    looks: list[dict[str, Array]] = []
    while True:
        here = _look(tokens, u, W, target)
        if t:
            times.append(t)
            looks.append(here)
        path = step * float(decayed_sum(t, power))
        if path * model.B >= until * (1 - 1e-9):
            break
        further = min(GROWTH * path, REACH / model.B) / finer
        further = min(further, until / model.B - path)  # the last leap lands on the end
        after = t + 1 if t < SINGLE else _time_after(t, further / step, power)
        by_u = step * float(decayed_sum(after, power) - decayed_sum(t, power))
        by_W = step * float(decayed_sum(after, 1.0) - decayed_sum(t, 1.0))
        du, dW = here["du"], here["dW"]
        if after > t + 1:
            ahead = _look(tokens, u + by_u * du, W + by_W * dW, target)
            du = (du + ahead["du"]) / 2
            dW = (dW + ahead["dW"]) / 2
        u = u + by_u * du
        W = W + by_W * dW
        t = after
    recorded = [name for name in looks[0] if name not in ("du", "dW")]
    series = {name: np.stack([look[name] for look in looks], axis=1) for name in recorded}
    return Leaps(t=np.array(times), u=u, W=W, **series)


def _time_after(t: float, further: float, power: float) -> float:
    """When `sum (s+1)^-power` will have grown by so much."""
    return max(t + 1.0, np.ceil((t ** (1 - power) + (1 - power) * further) ** (1 / (1 - power))))


def log_losses(tokens: Tokens, u: Array, W: Array) -> Array:
    """log L at given weights, per trial, without cancellation near 0."""
    return _log_mean(-_forward(tokens, u, W)[-1])


def _forward(tokens: Tokens, u: Array, W: Array) -> tuple[Array, Array, Array, Array]:
    """Scores, logits, attention weights (trials, n, T) and margins (trials, n)."""
    scores = tokens.y[..., None] * np.einsum("rntd,rd->rnt", tokens.x, u)
    logits = np.einsum("rntd,rde,rne->rnt", tokens.x, W, tokens.z)
    probs = softmax(logits, axis=-1)
    return scores, logits, probs, np.sum(probs * scores, -1)


def _look(tokens: Tokens, u: Array, W: Array, target: Array) -> dict[str, Array]:
    """Everything at one point, and the unit directions of descent."""
    planted = tokens.info["planted"][..., None]
    scores, logits, probs, margins = _forward(tokens, u, W)
    weight = np.exp(-margins - np.logaddexp.reduce(-margins, axis=-1, keepdims=True))  # loss_i / sum of losses
    outputs = np.einsum("rnt,rntd->rnd", probs, tokens.x)
    grad_u = np.einsum("rn,rnd->rd", weight * tokens.y, outputs)
    # scores - margin, from differences of scores
    ahead = np.einsum("rnk,rntk->rnt", probs, scores[..., :, None] - scores[..., None, :])
    grad_W = np.einsum("rn,rnt,rntd,rne->rde", weight, probs * ahead, tokens.x, tokens.z)

    is_planted = np.arange(tokens.T) == planted
    highest = np.where(is_planted, -np.inf, scores).max(-1)
    lowest = np.where(is_planted, np.inf, scores).min(-1)

    def leads(values: Array) -> Array:
        lead = np.take_along_axis(values, planted, -1)
        return np.where(is_planted, np.inf, lead - values).min((-2, -1))

    size_u, size_W = np.linalg.norm(grad_u, axis=-1), np.linalg.norm(grad_W, axis=(-2, -1))
    norm_u = np.linalg.norm(u, axis=-1)
    moved = np.where(size_W > 0, size_W, 1.0)[:, None, None]
    opt = np.take_along_axis(scores, planted, -1)[..., 0].min(-1)
    return {
        "du": grad_u / size_u[:, None],
        "dW": grad_W / moved,
        "log_loss": _log_mean(-margins),
        "log_ratio": margins.max(-1) - margins.min(-1),
        "gap": leads(scores),
        "spread": (highest - lowest).max(-1),
        "lead": leads(logits),
        "gradient": size_u,
        "norm_u": norm_u,
        "norm_W": np.linalg.norm(W, axis=(-2, -1)),
        "pull": np.where(size_W > 0, np.sum(grad_W * target, (-2, -1)) / moved[:, 0, 0], np.inf),
        "margin": opt / np.where(norm_u > 0, norm_u, 1.0),
        "attended": margins.min(-1),
    }


def _log_mean(logs: Array) -> Array:
    """log mean e^logs over the last axis, accurate also where all logs are near 0."""
    near = np.abs(logs).max(-1) < 1
    small = np.log1p(np.mean(np.expm1(np.where(near[..., None], logs, 0.0)), -1))
    return np.where(near, small, logsumexp(logs, axis=-1) - np.log(logs.shape[-1]))
