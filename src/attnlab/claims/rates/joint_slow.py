"""Eq. (10) in the time in which attention moves.

W moves by at most eta per unit of log t, while u is through its own course within a few units of log t once its margins
are large. For small eta the head therefore stands, at every moment, at the limit of training with attention held
still: its direction is the max-margin one of the attended tokens z_i = sum_t s_it x_it, and losses are in proportion to
its multipliers. What is left is a flow of W in the slow time `sigma = eta (H_t - 1)`, H_t = 1 + 1/2 + ... + 1/t, that
contains eta no more. Its error is of the order of eta. For T = 2 it is an equation for n numbers c_i,

    W = sum_i c_i D_i z_i^T,   dc_i / dsigma = w_i / |sum_j w_j D_j z_j^T|,   w_i = loss_i gap_i s_i (1 - s_i),

with D_i the planted less the other token and z_i the query. What is integrated is c less its share in
`sigma W_mm / |W_mm|`: it stays small, and so do its errors, while c grows without end.

Several other tokens that share one score are as one token that counts as often in the softmax (`others`): their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import expit

from attnlab.data import Tokens
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.svm.dual import least_distance

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class SlowRun:
    """What W and u do in slow time.

    Attributes:
        sigma: slow times, (R,).
        norm: |W|.
        misalignment: 1 - cos(W, W_mm).
        attention: least attention of a planted token.
        margin: least y u.x_opt / |u|.
        pull, radial: part of the unit direction in which W moves along W_mm, and along W.
    """

    sigma: Array
    norm: Array
    misalignment: Array
    attention: Array
    margin: Array
    pull: Array
    radial: Array


def slow_flow(tokens: Tokens, W_mm: Array, sigma: Array, *, accuracy: float = 1e-9, others: int = 1) -> SlowRun:
    """Follow one data set of two tokens per sequence from W = 0 to the slow times `sigma`, ascending.

    The token that is not planted counts as `others` tokens in the softmax.
    """
    if tokens.trials is not None or tokens.T != 2:
        raise InputError(message("The slow flow is for one data set with T = 2."))
    flow = _Flow.of(tokens, others)
    target = W_mm / np.linalg.norm(W_mm)
    ends = (0.0, float(sigma[-1]))
    # The velocity is a difference, known to its rounding; summed over the whole time that is as much as can be asked.
    drift = 4 * EPS * float(np.abs(flow.optimal).max()) * float(sigma[-1])
    atol = max(accuracy, drift)
    start = np.zeros(tokens.n)
    solved = solve_ivp(flow.velocity, ends, start, "LSODA", t_eval=sigma, rtol=accuracy, atol=atol)
    if not solved.success:
        raise InputError(message(f"The slow flow could not be followed: {solved.message}"))
    records = [_record(flow, target, time, rest) for time, rest in zip(sigma, solved.y.T, strict=True)]
    return SlowRun(sigma, *np.array(records).T)


def _record(flow: _Flow, target: Array, time: float, rest: Array) -> tuple[float, ...]:
    """norm, misalignment, attention, margin, pull and radial part at one slow time."""
    W = flow.weights(rest)
    along = float(np.sum(W * target))
    W_aside = W - along * target
    along += time
    aside = float(np.linalg.norm(W_aside))
    norm = float(np.hypot(aside, along))
    attention = expit(flow.logits(time, rest)[0])
    margin = float(np.min(flow.signed @ flow.head(attention)[0]))
    moves = flow.weights(flow.velocity(time, rest) + flow.optimal)
    pull = float(np.sum(moves * target))
    radial = (pull * along + float(np.sum(moves * W_aside))) / norm
    return norm, aside**2 / (norm * (norm + along)), float(attention.min()), margin, pull, radial


@dataclass(frozen=True, eq=False)
class _Flow:
    """The arrays of the equation for c."""

    signed: Array  # y_i x_opt, (n, d)
    lead: Array  # D_i, (n, d)
    queries: Array  # z_i
    signed_lead: Array  # y_i D_i
    gram: Array  # of the D_i z_i^T
    optimal: Array  # c of W_mm / |W_mm|
    pace: float  # 1 / |W_mm|: by so much per unit of sigma the least logit lead grows along W_mm
    ahead: Array  # by how much the others grow more
    crowd: float  # log of how many tokens the other one stands for

    @classmethod
    def of(cls, tokens: Tokens, others: int) -> _Flow:
        planted = tokens.info["planted"][:, None, None]
        opt = np.take_along_axis(tokens.x, planted, 1)[:, 0]
        lead = opt - np.take_along_axis(tokens.x, 1 - planted, 1)[:, 0]
        y = tokens.y[:, None]
        gram = (lead @ lead.T) * (tokens.z @ tokens.z.T)
        multipliers = least_distance(gram, np.ones(tokens.n))[0]
        optimal = multipliers / np.sqrt(multipliers @ gram @ multipliers)
        leads = gram @ optimal
        pace = float(leads.min())
        ahead = np.where(multipliers > 0, 0.0, leads - pace)  # constraints with a multiplier are tight
        return cls(y * opt, lead, tokens.z, y * lead, gram, optimal, pace, ahead, float(np.log(others)))

    def weights(self, c: Array) -> Array:
        """sum_i c_i D_i z_i^T."""
        return np.einsum("i,id,ie->de", c, self.lead, self.queries)

    def head(self, attention: Array) -> tuple[Any, Any]:
        """The max-margin direction on the attended tokens, and its multipliers."""
        attended = self.signed - (1 - attention)[:, None] * self.signed_lead
        gram, ones = attended @ attended.T, np.ones(len(attended))
        multipliers = np.linalg.solve(gram, ones)
        if multipliers.min() < 0:  # some sample is not on the margin
            multipliers = least_distance(gram, ones)[0]
        u = attended.T @ multipliers
        return u / np.linalg.norm(u), multipliers

    def logits(self, time: float, rest: Array) -> tuple[Array, Array]:
        """Log odds of the planted tokens; and less the part that grows for all."""
        beyond = self.gram @ rest + time * self.ahead - self.crowd
        return time * self.pace + beyond, beyond

    def velocity(self, time: float, rest: Array) -> Array:
        logits, beyond = self.logits(time, rest)
        u, multipliers = self.head(expit(logits))
        # log of attention (1 - attention), of which only differences count
        common = np.where(logits >= 0, -beyond, logits + time * self.pace)
        log_slope = common - 2 * np.log1p(np.exp(-np.abs(logits)))
        w = multipliers * (self.signed_lead @ u) * np.exp(log_slope - log_slope.max())
        return w / np.sqrt(w @ self.gram @ w) - self.optimal
