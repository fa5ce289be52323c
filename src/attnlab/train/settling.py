"""Will a run keep the tokens that it selects? A proof that needs no further training.

Write m_j = <A_j, W> for the lead of a selected token over another token of its query, A_j = (x_selected - x_t) z^T, and
c_j for the slope of the loss times the lead in score, over n. Once attention is nearly all on the selected tokens,
gradient flow is

    dW/dt = sum_j c_j e^(-m_j) A_j.

Tokens that score less (c_j > 0) push W towards the selection, rivals that score more (c_j < 0) pull it away. In the
time s in which the pushes sum to one, those alone are gradient flow on the convex function F = log sum_j c_j e^(-m_j).
Let A* = sum_j l_j A_j be the shortest convex combination of the A_j: it points along the max-margin W, and <A_j, A*> =
|A*|^2 + k_j with k_j >= 0, where k_j = 0 for support tokens. For every C orthogonal to A* and every s

    |W(s) - W(0) - C - s A*|^2 <= |C|^2 + 2 s E,    E = KL(l, shares of the pushes at W(0) + C),

since half the derivative of the left side is at most E. Proof: with V = W(0) + C + s A*, and p the shares of the
pushes, that half is <W - V, sum_j p_j A_j - A*>. By convexity <W - V, sum_j p_j A_j> <= F(V) - F(W). Here F(V) <=
F(W(0) + C) - s |A*|^2, as every m_j gains at least that; and F(W) >= sum_j l_j (log c_j - m_j - log l_j), which is the
same sum without the m_j, less <A*, W>. Put together, all that depends on s cancels, and E is left.

So m_j gains s (|A*|^2 + k_j) but for the square root of that, while F falls no faster than <A*, W>: the share of a
rival with k_j > 0 dies out. That no rival has k_j = 0 is local optimality. Paths of a convex function never part, so
what rivals, and attention that is not yet one-hot, add to the flow moves W no further than they add up to; `_keeps`
bounds that along s. If in all it is less than one logit, the selected tokens stay.

The proof is of the flow. Steps of gradient descent are the flow once they are short beside the scale on which pushes
change, as those of `gd` become by themselves; those of `ngd` are so for step |A_j| well below 1.

Where every selected token is the best of its query there are no rivals, and the loss alone can tell: it falls, and if
it is below what any other selection costs, no query can ever change its mind, whatever is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnlab.data.selection import TIE, scores
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError
from attnlab.models.losses import Loss, MarginLoss
from attnlab.models.model import Data, Model
from attnlab.models.precision import in_float64
from attnlab.svm import MarginSolution, solve_margins

# Off the selected token at most this much weight, over one and over the spread of scores.
SATURATED = 0.25
# A push then differs from c_j e^(-m_j) by at most this times slope spread (1 + spread) times what is off: the slope of
# the loss changes by e^(spread off) <= 1 + 1.14 spread off, scores by spread off, and weights by the factor 1 + off.
BLUR = 3.0
# C at these shares of the way to where the pushes of support tokens are as at the limit.
WAYS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
# Where bounds are added up: s |A*|^2 from the first to the last of these, in so many intervals.
FIRST, LAST, INTERVALS = 1e-3, 1e5, 120
# For K and Q, of which there is no proof: the largest share of a rival, how much of its final lead it must have, and
# the margin of W over the best one.
RIVAL_SHARE, OF_FINAL_LEAD, MARGIN_SHARE = 0.01, 0.5, 0.75
# A mean over sequences of a function whose log-slope is 1-Lipschitz.
KNOWN_LOSSES = ("logistic", "exponential", "correlation")
Solve = Callable[[NDArray[np.intp]], Sequence[MarginSolution]]
LEAST_CALL = 1024  # numbers of a call of a compiled function
CHEAP = 2e8  # trials times the square of the constraints, up to which printing a run may ask


@dataclass(frozen=True, eq=False)
class Judge:
    """What it takes to tell whether a run has settled, beside its weights.

    Attributes:
        tokens: the data.
        loss: what was minimized.
        norm: "frobenius" where W is trained by steps that know no direction better than another; "nuclear" for K and
            Q; None where the loss alone can tell.
    """

    tokens: Tokens
    loss: MarginLoss
    norm: Literal["frobenius", "nuclear"] | None

    @property
    def is_cheap(self) -> bool:
        """Is it told in about a second?"""
        tokens = self.tokens
        constraints = tokens.y[0].size if tokens.trials is not None else tokens.y.size
        return (tokens.trials or 1) * float(constraints * tokens.T) ** 2 <= CHEAP

    def settled(self, W: Array, selected: NDArray[np.intp], solve: Solve | None = None) -> NDArray[np.bool_]:
        """Which trials keep the tokens they select; shape () or (trials,).

        `solve` gives the max-margin solutions of some trials, by their numbers; None solves for them.
        """
        single = self.tokens.trials is None
        tokens = Tokens.stack([self.tokens]) if single else self.tokens
        W, selected = (W[None], selected[None]) if single else (W, selected)
        found = _settled(tokens, self, W, selected, solve)
        return found[0] if single else found


def judge_of(data: Data, model: Model, loss: Loss, *, isotropic: bool = True) -> Judge | None:
    """The judge of a run of this model; None where there is no theory of where it goes.

    Rules that are not isotropic go to other directions than those of `model.margin_norm`: of them only the loss tells.
    """
    if model.margin_norm is None or not isinstance(data, Tokens) or data.v is None:
        return None
    if not isinstance(loss, MarginLoss) or loss.name not in KNOWN_LOSSES:
        return None
    return Judge(data, loss, model.margin_norm if isotropic else None)


@dataclass(frozen=True, eq=False)
class _Ending:
    """All trials at the end, by their queries: arrays (R, M, T), where M counts the queries of a data set.

    Attributes:
        other: visible tokens that are not selected.
        m: lead of the selected token in logits.
        lead: the same in score; 0 where the two are equal.
        gamma: score of the selected token, (R, M).
        log_slope: logarithm of the slope of the loss there, over n, (R, M).
    """

    other: NDArray[np.bool_]
    m: Array
    lead: Array
    gamma: Array
    log_slope: Array


@in_float64
def _settled(
    tokens: Tokens, judge: Judge, W: Array, selected: NDArray[np.intp], solve: Solve | None
) -> NDArray[np.bool_]:
    loss, norm = judge.loss, judge.norm
    with np.errstate(all="ignore"):
        end = _ending(tokens, loss, W, selected)
        settled = _by_loss(end, loss) | ~end.other.any((-2, -1))
        if norm is None:
            return settled
        # Only where attention is nearly one-hot there is something to prove.
        weight = np.where(end.other, np.exp(-end.m), 0.0).sum(-1)
        open_ = np.flatnonzero(~settled & (weight < SATURATED).all(-1) & np.isfinite(W).all((-2, -1)))
        if not open_.size:
            return settled
        try:
            if solve is None:
                some = Tokens.stack([tokens[i] for i in open_.tolist()])
                solutions: Sequence[MarginSolution] = solve_margins(some, selected[open_], norm=norm)
            else:
                solutions = solve(open_)
        except InputError:  # data of extreme scale
            return settled
        for i, solution in zip(open_.tolist(), solutions, strict=True):
            settled[i] = _stays(tokens[i], _of_trial(end, i), solution, W[i])
    return settled


def _ending(tokens: Tokens, loss: MarginLoss, W: Array, selected: NDArray[np.intp]) -> _Ending:
    R, n, T, d = tokens.x.shape
    K = 1 if tokens.K is None else tokens.K
    x, z = tokens.x[:, :, None], tokens.z.reshape(R, n, K, d)
    seen = np.einsum("rde,rnke->rnkd", W, z)
    logits = np.einsum("rnktd,rnkd->rnkt", np.broadcast_to(x, (R, n, K, T, d)), seen).reshape(R, n * K, T)
    gamma = scores(tokens).reshape(R, n * K, T)
    visible = np.broadcast_to(tokens.visible, (*tokens.y.shape, T)).reshape(R, n * K, T)
    chosen = selected.reshape(R, n * K, 1)
    own = np.take_along_axis(gamma, chosen, -1)
    lead = own - gamma
    size = np.where(visible, np.abs(gamma), 0.0).max(-1, keepdims=True)
    return _Ending(
        other=visible & (np.arange(T) != chosen),
        m=np.take_along_axis(logits, chosen, -1) - logits,
        lead=np.where(np.abs(lead) <= TIE * size, 0.0, lead),
        gamma=own[..., 0],
        log_slope=_padded(loss.log_slope, own[..., 0]) - np.log(n),
    )


def _padded(function: Callable[..., Any], *arrays: Array) -> Array:
    """A JAX function of numbers, called with arrays of few lengths, so that it is compiled for these alone."""
    size = arrays[0].size
    length = LEAST_CALL
    while length < size:
        length *= 4
    flat = [np.concatenate([array.reshape(-1), np.ones(length - size)]) for array in arrays]
    return np.asarray(function(*flat))[:size].reshape(arrays[0].shape)


def _of_trial(end: _Ending, i: int) -> _Ending:
    return _Ending(end.other[i], end.m[i], end.lead[i], end.gamma[i], end.log_slope[i])


def _by_loss(end: _Ending, loss: MarginLoss) -> NDArray[np.bool_]:
    """Best tokens everywhere, and a loss below that of half of one query's attention on a second-best token."""
    is_best = (~end.other | (end.lead > 0)).all((-2, -1))
    m = np.where(end.other, end.m, np.inf)
    least = np.minimum(m.min(-1, keepdims=True), 0.0)
    weight = np.exp(least - m)
    drop = (weight * np.where(end.other, end.lead, 0.0)).sum(-1) / (weight.sum(-1) + np.exp(least[..., 0]))
    gap = np.where(end.other, end.lead, np.inf).min(-1)
    rise = np.where(drop > 0, _padded(loss.log_rise, end.gamma, np.where(drop > 0, drop, 1.0)), -np.inf)
    compared = np.isfinite(gap) & (gap > 0)
    barrier = _padded(loss.log_rise, end.gamma, np.where(compared, gap, 1.0) / 2.0)
    lowest = np.where(compared, barrier, np.inf).min(-1)
    return is_best & (np.logaddexp.reduce(rise, axis=-1) < lowest)


def _stays(tokens: Tokens, end: _Ending, solution: MarginSolution, W: Array) -> bool:
    if not solution.feasible or solution.support is None:
        return False
    shape = end.m.shape
    if (solution.support.reshape(shape) & (end.lead <= 0)).any():
        return False
    if solution.norm == "nuclear":
        share = end.m[end.other].min() / (np.linalg.svd(W, compute_uv=False).sum() * solution.margin)
        return bool(share >= MARGIN_SHARE) and _seems_to_keep(end, solution.values.reshape(shape))
    multipliers = np.where(end.lead > 0, solution.multipliers.reshape(shape), 0.0)
    return _keeps(end, _rows(tokens, end, solution), multipliers[end.other])


def _seems_to_keep(end: _Ending, values: Array) -> bool:
    """Rivals push little, and have half of the lead over support tokens that they will have at the limit."""
    push = np.where(end.other, end.log_slope[:, None] + np.log(np.abs(end.lead)) - end.m, -np.inf)
    rival, low = end.other & (end.lead < 0), end.other & (end.lead > 0)
    if not rival.any():
        return True
    strongest = push[low].max()
    if not (push[rival] <= strongest + np.log(RIVAL_SHARE)).all():
        return False
    nearest = end.m[low].min()
    return bool((end.m[rival] - nearest >= OF_FINAL_LEAD * (values[rival] - 1.0) * nearest).all())


def _rows(tokens: Tokens, end: _Ending, solution: MarginSolution) -> Array:
    """A_j of the other tokens, (N, d^2)."""
    query, token = np.nonzero(end.other)
    sequence = query // (len(end.m) // tokens.n)
    chosen = solution.selected.reshape(-1)[query]
    p = tokens.x[sequence, chosen] - tokens.x[sequence, token]
    z = tokens.z.reshape(-1, tokens.d)[query]
    return np.einsum("jd,je->jde", p, z).reshape(len(p), -1)


def _keeps(end: _Ending, A: Array, multipliers: Array) -> bool:
    """The proof above, tried with several C."""
    query = np.nonzero(end.other)[0]
    m, lead = end.m[end.other], end.lead[end.other]
    low, share = lead > 0, multipliers / multipliers.sum()
    holds = share > 0
    if not np.isfinite(A).all() or not holds.any():
        return False
    axis = share @ A  # A*
    size = float(axis @ axis)
    log_c = end.log_slope[query] + np.log(np.abs(lead))
    at_limit = np.log(share[holds])
    push = (log_c - m)[holds]
    # Where the pushes of support tokens would have their final shares: <A_j, C> = push - log share, up to a constant.
    missing = push - at_limit
    C = np.linalg.lstsq(A[holds], missing - share[holds] @ missing, rcond=None)[0]
    C = C - axis * (axis @ C) / size
    spread = np.array([np.ptp(np.append(end.lead[i][end.other[i]], 0.0)) for i in range(len(end.m))])
    bound = _Bound(A, axis, m, log_c, low, query, spread, end.log_slope)
    return any(bound.proves(way * C, share, holds) for way in WAYS)


@dataclass(frozen=True, eq=False)
class _Bound:
    """One trial, by its N other tokens; see the text at the top."""

    A: Array  # (N, d^2)
    axis: Array
    m: Array
    log_c: Array
    low: NDArray[np.bool_]
    query: NDArray[np.intp]
    spread: Array  # of scores, of each query
    log_slope: Array  # of each query

    def proves(self, C: Array, share: Array, holds: NDArray[np.bool_]) -> bool:
        """Is all that disturbs the flow of the pushes less than one logit, with this C?"""
        A, axis, low = self.A, self.axis, self.low
        size = float(axis @ axis)
        k = np.maximum(A @ axis - size, 0.0)
        along = A @ C
        u = self.log_c - self.m - along
        E = float(np.logaddexp.reduce(u[low]) - share[holds] @ (u[holds] - np.log(share[holds])))
        floor = float(share[holds] @ (u[holds] - np.log(share[holds])))  # F is at least this at s = 0
        lengths = np.linalg.norm(A, axis=1)
        beside = np.sqrt(np.maximum(lengths**2 - (A @ axis) ** 2 / size, 0.0))  # of A_j - A*, orthogonal to A*
        s = np.concatenate([[0.0], np.geomspace(FIRST, LAST, INTERVALS) / size])[:, None]
        # The end of an interval where a bound grows, its begin where it falls.
        stray = np.sqrt(C @ C + 2.0 * np.append(s[1:], s[-1:], axis=0) * max(E, 0.0))
        log_weight = 1.0 - self.m - along - s * (size + k) + beside * stray  # (S, N), of e^-m
        log_ratio = 1.0 - self.m - along - floor - s * k + beside * stray  # of e^-m over the sum of pushes
        log_ratio = np.where(low, np.minimum(log_ratio, -self.log_c), log_ratio)
        queries = np.arange(len(self.spread))[:, None] == self.query
        off = np.exp(log_weight) @ queries.T  # (S, M), weight off the selected token
        if not (off * np.maximum(1.0, self.spread) <= SATURATED).all():
            return False
        # What is left of pushes where attention is not one-hot, over their sum; and the rivals.
        blur = BLUR * np.exp(self.log_slope) * self.spread * (1.0 + self.spread)
        disturbed = np.exp(log_ratio) * (blur * off)[:, self.query]
        rivals = np.where(low | ~np.isfinite(self.log_c), 0.0, np.exp(log_ratio + self.log_c))
        both = (disturbed + rivals) @ lengths
        total = float(both[:-1] @ np.diff(s[:, 0])) + self._tail(both[-1], k, beside, E, float(stray[-1, 0]))
        return bool(2.0 * lengths.max() * total <= 1.0)

    def _tail(self, last: float, k: Array, beside: Array, E: float, stray: float) -> float:
        """What comes after the last s, where every term falls at least so fast."""
        slowest = min(float(self.axis @ self.axis), float(k[~self.low].min(initial=np.inf)))
        slope = slowest - float(beside.max()) * E / stray if E > 0 else slowest
        return last / slope if slope > 0 else np.inf
