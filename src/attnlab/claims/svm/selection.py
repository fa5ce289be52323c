"""Which tokens are selected: how many a concave head keeps (Lemma 6), and the conjecture on global convergence."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, erratum, within
from attnlab.claims.scale import Scale
from attnlab.claims.svm.dynamics import STEP
from attnlab.data import Tokens, optimal_tokens, sphere
from attnlab.data.tokens import Array
from attnlab.models import Concave
from attnlab.optim import ngd
from attnlab.theory import assumption_b1, assumption_d
from attnlab.train import descend, flow

TOKENS = 10  # orthonormal, as many as dimensions
STRONGEST = 2.5  # penalties are uniform up to this


class Mixtures(NamedTuple):
    """Pairs of scores and penalty that meet the condition of Lemma 6 for some tau.

    Attributes:
        gamma: scores of the tokens, falling, (pairs, T).
        penalty: lambda, (pairs,).
        tau: (pairs,).
        drawn: pairs of (scores, penalty) and tau that were tried.
        room: least slack of the two strict inequalities.
    """

    gamma: Array
    penalty: Array
    tau: NDArray[np.intp]
    drawn: int
    room: float


def mixtures(draws: int, seed: int) -> Mixtures:
    """Scores of orthonormal tokens under a unit v, that is a point of the sphere; every tau that fits is kept."""
    rng = np.random.default_rng(seed)
    v = rng.standard_normal((draws, TOKENS))
    gamma = -np.sort(-v / np.linalg.norm(v, axis=1, keepdims=True), axis=1)
    penalty = rng.uniform(0.0, STRONGEST, draws)
    gaps = gamma[:, :-1] - gamma[:, 1:]
    taus = np.arange(2, TOKENS)
    above = taus * gaps[:, 1:] / 2.0 - penalty[:, None]
    below = np.broadcast_to((penalty - gaps[:, 0])[:, None], above.shape)
    room = np.minimum(above, below)
    draw, which = np.nonzero(room > 0)
    return Mixtures(gamma[draw], penalty[draw], taus[which], room.size, float(room[room > 0].min(initial=np.inf)))


def best_mixture(gamma: Array, penalty: Array) -> Array:
    """The weights on the simplex that maximize gamma . s - penalty |s|^2, by bisection on the level they rise above.

    s_t = max(gamma_t / (2 penalty) - level, 0) with sum 1: the Euclidean projection of gamma / (2 penalty).
    """
    height = gamma / (2.0 * penalty[:, None])
    low, high = height.max(1) - 1.0, height.max(1)
    for _ in range(80):
        level = 0.5 * (low + high)
        too_low = np.maximum(height - level[:, None], 0.0).sum(1) > 1.0
        low, high = np.where(too_low, level, low), np.where(too_low, high, level)
    return np.maximum(height - (0.5 * (low + high))[:, None], 0.0)


def kept_by_rule(gamma: Array, penalty: Array) -> NDArray[np.intp]:
    """How many tokens the best mixture keeps: token k is kept iff sum_{j <= k} (gamma_j - gamma_k) < 2 penalty."""
    behind = np.cumsum(gamma, axis=1) - np.arange(1, gamma.shape[1] + 1) * gamma
    return (behind < 2.0 * penalty[:, None]).sum(1)


def mixture_has_two_to_tau_tokens(scale: Scale) -> Outcome:
    """Pairs whose best mixture keeps fewer than two tokens, or more than tau."""
    found = mixtures(scale.pick(2000, 50_000, 200_000), seed=0)
    kept = (best_mixture(found.gamma, found.penalty) > 1e-12).sum(1)
    outside = int(((kept < 2) | (kept > found.tau)).sum())
    numbers: dict[str, Any] = {
        "tokens kept, mean by tau": {int(t): float(kept[found.tau == t].mean()) for t in np.unique(found.tau)}
    }
    if scale is not Scale.SMOKE:
        numbers["gradient flow"] = reached = _flow_reaches_the_mixture(found, scale.pick(0, 6, 30))
        outside += reached["trials"] - reached["as computed"]
    return within(
        outside, 0, instances=len(kept), tried=found.drawn, seeds=[0], numbers=numbers,
        slack={"least room in tau gap_tau / 2 > lambda > gap_1": found.room},
    )  # fmt: skip


def _flow_reaches_the_mixture(found: Mixtures, most: int) -> dict[str, int]:
    """Train W on orthonormal tokens and count those that keep weight."""
    right, expected = 0, kept_by_rule(found.gamma, found.penalty)
    picked = np.linspace(0, len(found.tau) - 1, most).astype(int)
    for i in picked:
        tokens = Tokens(x=np.eye(TOKENS)[None], z=np.eye(TOKENS)[:1], y=[1.0], v=found.gamma[i])
        head = Concave(float(found.penalty[i]))
        run = flow(tokens, head=head, loss="correlation", init="zeros", time=1e30, record=None)
        right += int(run.support.sum() == expected[i])
    return {"trials": len(picked), "as computed": right}


def squares_as_printed(scale: Scale) -> Outcome:
    """Pairs whose best mixture has sum of squares over its first tau weights above their squared sum over tau."""
    found = mixtures(scale.pick(2000, 50_000, 200_000), seed=1)
    squares, even = _squares(found)
    return within(float((squares - even).max()), 1e-12, instances=len(even), tried=found.drawn, seeds=[1],
                  slack={"least room in tau gap_tau / 2 > lambda > gap_1": found.room})  # fmt: skip


def _squares(found: Mixtures) -> tuple[Array, Array]:
    weights = best_mixture(found.gamma, found.penalty)
    first = np.where(np.arange(TOKENS) < found.tau[:, None], weights, 0.0)
    return (first**2).sum(1), first.sum(1) ** 2 / found.tau


def squares_and_support(scale: Scale) -> Outcome:
    """The inequality the other way round, the exact rule for the support, and both ends of it."""
    found = mixtures(scale.pick(2000, 50_000, 200_000), seed=1)
    squares, even = _squares(found)
    kept = (best_mixture(found.gamma, found.penalty) > 1e-12).sum(1)
    other = int((kept != kept_by_rule(found.gamma, found.penalty)).sum())
    two = (kept >= 2) == (found.penalty > (found.gamma[:, 0] - found.gamma[:, 1]) / 2.0)
    wrong = other + int((~two).sum()) + int(((kept < 2) | (kept > found.tau)).sum())
    return within(float((even - squares).max()) if not wrong else np.inf, 1e-12, instances=len(kept), tried=found.drawn,
                  seeds=[1], numbers={"support other than by the rule": other})  # fmt: skip


def conjecture(scale: Scale) -> Outcome:
    """Data with B.1 and D, exactly tested: runs that do not end on the best tokens."""
    wrong, judged, drawn, numbers, slack = 0, 0, 0, {}, {"B.1": np.inf, "D": np.inf}
    for d in scale.pick((6,), (3, 6, 12, 24), (3, 6, 12, 24)):
        data = [sphere(n=2, T=3, d=d, seed=seed) for seed in range(scale.pick(12, 40, 400))]
        kept = []
        for tokens in data:
            b1, other = assumption_b1(tokens), assumption_d(tokens)
            if b1 and other and not b1.evidence["tied"]:
                kept.append(tokens)
                slack = {"B.1": min(slack["B.1"], b1.slack), "D": min(slack["D"], other.slack)}
        drawn += len(data)
        if not kept:
            numbers[f"d = {d}"] = {"of": 0}
            continue
        batch = Tokens.stack(kept)
        run = descend(batch, ngd(STEP), steps=1500, record=None, init_scale=0.1)
        right = int((run.selected == optimal_tokens(batch)).all(-1).sum())
        numbers[f"d = {d}"] = {"on the best tokens": right, "of": len(kept), "drawn": len(data)}
        wrong, judged = wrong + len(kept) - right, judged + len(kept)
    return within(
        wrong, 0, instances=judged, tried=drawn, seeds=range(scale.pick(12, 40, 400)), numbers=numbers, slack=slack,
        note="A conjecture: that nothing contradicts it here is no proof.",
    )  # fmt: skip


CLAIMS: list[Claim] = [
    Claim(
        id="svm-L6",
        title="A concave head keeps two to tau tokens",
        statement="With orthonormal tokens, scores gamma_1 >= gamma_2 >= ..., correlation loss and head "
        "h(o) = v.o - lambda |o|^2: if tau (gamma_tau - gamma_{tau+1}) / 2 > lambda > gamma_1 - gamma_2, the optimal "
        "attention has 2 to tau nonzeros (Lemma 6).",
        hypotheses=("orthonormal tokens, label +1", "tau gap_tau / 2 > lambda > gap_1"),
        tolerance=0,
        reason="a count of pairs (scores, lambda) outside that range, and of gradient flows that keep other tokens",
        measure=mixture_has_two_to_tau_tokens,
    ),
    erratum(
        id="svm-E6",
        title="The step of Cauchy and Schwarz in Lemma 6",
        printed="the tau weights of the proof have sum of squares at most their squared sum over tau.",
        corrected="at least; the lemma stands: token k is kept iff sum_{j <= k} (gamma_j - gamma_k) < 2 lambda, so "
        "that two tokens are kept iff lambda > (gamma_1 - gamma_2) / 2, and at most tau under the lemma's condition.",
        hypotheses=("orthonormal tokens, label +1", "tau gap_tau / 2 > lambda > gap_1"),
        tolerance=1e-12,
        reason="excess of one side over the other, for weights of sum 1; the rule against a bisection, as a count",
        measure_printed=squares_as_printed,
        measure_corrected=squares_and_support,
    ),
    Claim(
        id="svm-Conj",
        title="Conjecture: tight constraints and support by the best tokens give global convergence",
        statement="If best tokens are unique and B.1 and D hold, gradient descent with a suitable constant step "
        "converges in direction to W_mm of the best tokens, for almost all data (Section 5.2).",
        hypotheses=(
            "unique best tokens",
            "B.1: all constraints tight",
            "D: the best token supports every other selection",
        ),
        tolerance=0,
        reason="a count of runs that do not end on the best tokens; normalized descent, 1500 steps, a small start",
        measure=conjecture,
    ),
]
