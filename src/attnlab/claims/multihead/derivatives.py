"""Derivatives of multi-head attention in closed form, for batches of random draws.

With A = softmax(x W x^T), tokens seen by query t have, under the weights A_t, a mean, a covariance with each other and
with their scores <u_t, x_s>, and a third central moment. These are all derivatives that there are:

    by U:        mean_t                              by W:        sum_t x_t (x) cov_t(score, x)
    by U and W:  x_t (x) cov_t(x, x)                 by W twice:  sum_t x_t x_t^T (x) cov_t(score, x, x)

Sums of differences, so nothing cancels where attention is saturated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from attnlab.data.tokens import Array, Tokens
from attnlab.models.multihead import Decoder
from attnlab.theory.multihead import attention_of


class Head(NamedTuple):
    """One head, with derivatives in the order U then W of the flattened weights; P = T d + d^2."""

    value: Array  # (...)
    gradient: Array  # (..., P)
    hessian: Array  # (..., P, P)


def head(x: Array, U: Array, W: Array) -> Head:
    """One head with a full decoder, for x and U (..., T, d) and W (..., d, d) that broadcast."""
    T, d = x.shape[-2:]
    A = attention_of(x, W)
    tokens = _centred_tokens(A, x)  # (..., t, s, d)
    scores = _centred_scores(A, U @ np.swapaxes(x, -1, -2))  # (..., t, s)
    by_U = np.broadcast_to(A @ x, scores.shape[:-2] + x.shape[-2:])
    by_W = np.einsum("...ti,...ts,...ts,...tsj->...ij", x, A, scores, tokens, optimize=True)
    lead = by_W.shape[:-2]

    covariance = np.einsum("...ts,...tsj,...tsb->...tjb", A, tokens, tokens)
    third_moment = np.einsum("...ts,...ts,...tsj,...tsb->...tjb", A, scores, tokens, tokens)
    mixed = np.einsum("...ta,...tjb->...tjab", x, covariance) + np.zeros((*lead, T, d, d, d))
    twice = np.einsum("...ti,...ta,...tjb->...ijab", x, x, third_moment)
    hessian = np.zeros((*lead, T * d + d * d, T * d + d * d))
    hessian[..., : T * d, T * d :] = mixed.reshape(*lead, T * d, d * d)
    hessian[..., T * d :, : T * d] = np.swapaxes(hessian[..., : T * d, T * d :], -1, -2)
    hessian[..., T * d :, T * d :] = twice.reshape(*lead, d * d, d * d)

    gradient = np.concatenate([by_U.reshape(*lead, -1), by_W.reshape(*lead, -1)], axis=-1)
    return Head(np.einsum("...td,...td->...", U, by_U), gradient, hessian)


def _centred_tokens(A: Array, x: Array) -> Array:
    """x_s - mean_t, from differences: (..., t, s, d)."""
    return np.einsum("...tk,...skd->...tsd", A, x[..., :, None, :] - x[..., None, :, :])


def _centred_scores(A: Array, scores: Array) -> Array:
    """score_ts - mean_t, from differences: (..., t, s)."""
    return np.einsum("...tk,...tsk->...ts", A, scores[..., :, None] - scores[..., None, :])


def decoded(full: Head, T: int, d: int, decoder: Decoder) -> Head:
    """The same with one vector u, for which U is 1 u^T or e_T u^T; by the chain rule."""
    if decoder == "full":
        return full
    rows = np.ones(T) if decoder == "pooling" else np.eye(T)[-1]
    chain = np.zeros((T * d + d * d, d + d * d))
    chain[: T * d, :d] = np.kron(rows[:, None], np.eye(d))
    chain[T * d :, d:] = np.eye(d * d)
    return Head(full.value, full.gradient @ chain, chain.T @ full.hessian @ chain)


class Draws(NamedTuple):
    """Random data and weights; B draws."""

    x: Array  # (B, n, T, d)
    y: Array  # (B, n)
    U: Array  # (B, H, T, d)
    W: Array  # (B, H, d, d)

    @property
    def heads(self) -> int:
        """H."""
        return self.U.shape[1]

    @property
    def longest(self) -> Array:
        """The longest head of each draw, |theta|_{2,inf}."""
        return np.sqrt(np.sum(self.U**2, (-2, -1)) + np.sum(self.W**2, (-2, -1))).max(-1)

    @property
    def longest_U(self) -> Array:
        """The longest U of each draw."""
        return np.linalg.norm(self.U, axis=(-2, -1)).max(-1)

    @property
    def R(self) -> Array:
        """The longest token of each draw, or 1 if that is less (Assumption 1)."""
        return np.maximum(1.0, np.linalg.norm(self.x, axis=-1).max((-2, -1)))

    def tokens(self, draw: int) -> Tokens:
        """The data of one draw."""
        return Tokens.self_attention(self.x[draw], self.y[draw], np.ones(self.x.shape[-1]))

    def moved(self, by: Array, length: Array | float = 1.0) -> Draws:
        """Weights moved by `length` times `by` (B, H, P)."""
        T, d = self.x.shape[-2:]
        step = np.asarray(length)[..., None, None] * by
        return self._replace(
            U=self.U + step[..., : T * d].reshape(*step.shape[:-1], T, d),
            W=self.W + step[..., T * d :].reshape(*step.shape[:-1], d, d),
        )


def draw(B: int, n: int, H: int, T: int, d: int, *, seed: int = 0) -> Draws:
    """Gaussian entries times scales that are log-uniform, of their own for tokens, U and W of every draw.

    Labels are random in every other draw; in the others they fit the model, so that the loss can be small. In every
    third draw all sequences are one, its tokens plus or minus one vector, and all rows of all U are equal: then tokens
    and scores spread as far as they can, and heads and sequences pull together.
    """
    rng = np.random.default_rng([seed, n, H, T, d])
    scale_x, scale_U, scale_W = (
        10.0 ** rng.uniform(low, high, (B, 1, 1, 1)) for low, high in ((-1.0, 0.5), (-2.0, 1.0), (-2.0, 1.5))
    )
    x = scale_x * rng.standard_normal((B, n, T, d))
    U = scale_U * rng.standard_normal((B, H, T, d))
    W = scale_W * rng.standard_normal((B, H, d, d))
    y = rng.choice([-1.0, 1.0], (B, n))
    signs = rng.choice([-1.0, 1.0], (B, 1, T, 1))
    third = (np.arange(B) % 3 == 0)[:, None, None, None]
    x = np.where(third, signs * x[:, :1, :1], x)
    U = np.where(third, U[:, :1, :1], U)
    fitting = np.sign(outputs(Draws(x, y, U, W)))
    second = (np.arange(B) % 2 == 0)[:, None]
    return Draws(x, np.where(second & (fitting != 0), fitting, y), U, W)


def in_line(signs: ArrayLike, d: int, R: float, tilt: Array, length: Array) -> Draws:
    """One sequence of tokens plus or minus one vector, with label 1, where bounds on derivatives are nearly attained.

    Token t is `signs_t R v` with equal entries of the unit vector v. Head h has logits `signs_t signs_s tilt_h`, and
    row t of U_h is `signs_t length_h v / sqrt(T)`: |U_h| = |length_h|, and all rows pull W the same way.

    Args:
        signs: of the tokens, (T,).
        d, R: dimension and length of the tokens.
        tilt, length: of every head, (B, H).
    """
    sign = np.asarray(signs, float)
    T, B = len(sign), len(tilt)
    v = np.full(d, 1.0 / np.sqrt(d))
    x = np.broadcast_to(R * sign[:, None] * v, (B, 1, T, d))
    U = length[..., None, None] / np.sqrt(T) * sign[:, None] * v
    W = tilt[..., None, None] / R**2 * np.outer(v, v)
    return Draws(x, np.ones((B, 1)), U, W)


class Pieces(NamedTuple):
    """The logistic loss of H heads and its derivatives, without forming the Hessian over all of them.

    The Hessian is `factors^T factors`, of rank n, plus one block for each head.
    """

    value: Array  # (B,)
    slope: Array  # (B,) mean |loss'|
    gradient: Array  # (B, H P)
    factors: Array  # (B, n, H P)
    blocks: Array  # (B, H, P, P)


class Loss(NamedTuple):
    """The logistic loss of H heads, over all their weights."""

    value: Array  # (B,)
    slope: Array  # (B,) mean |loss'|
    gradient: Array  # (B, H P)
    hessian: Array  # (B, H P, H P)


def pieces(draws: Draws) -> Pieces:
    """Mean logistic loss of `H^(-1/2) sum_h F(x; U_h, W_h)` with its derivatives."""
    each = head(draws.x[:, :, None], draws.U[:, None], draws.W[:, None])  # (B, n, H, ..)
    B, n, H, P = each.gradient.shape
    margins = draws.y * each.value.sum(-1) / np.sqrt(H)
    slopes = each.gradient.reshape(B, n, H * P) / np.sqrt(H)
    pull = -expit(-margins) * draws.y / n  # loss' y / n
    curved = expit(margins) * expit(-margins)  # loss''
    return Pieces(
        value=np.logaddexp(0.0, -margins).mean(-1),
        slope=expit(-margins).mean(-1),
        gradient=np.einsum("bn,bnp->bp", pull, slopes),
        factors=np.sqrt(curved / n)[..., None] * slopes,
        blocks=np.einsum("bn,bnhpq->bhpq", pull, each.hessian) / np.sqrt(H),
    )


def loss(draws: Draws) -> Loss:
    """The same with the dense Hessian, for few heads."""
    parts = pieces(draws)
    P = parts.blocks.shape[-1]
    hessian = np.swapaxes(parts.factors, -1, -2) @ parts.factors
    for h in range(draws.heads):
        block = slice(h * P, (h + 1) * P)
        hessian[:, block, block] += parts.blocks[:, h]
    return Loss(parts.value, parts.slope, parts.gradient, hessian)


def outputs(draws: Draws) -> Array:
    """`H^(-1/2) sum_h F(x; U_h, W_h)`, (B, n)."""
    A = attention_of(draws.x[:, :, None], draws.W[:, None])
    return np.einsum("bnhts,bhtd,bnsd->bn", A, draws.U, draws.x) / np.sqrt(draws.heads)


def loss_value(draws: Draws) -> Array:
    """Mean logistic loss alone, (B,)."""
    return np.logaddexp(0.0, -draws.y * outputs(draws)).mean(-1)
