"""The loss as a landscape: Lemmas 2, 7, 9 and 17, Theorem 3."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.matrices import inner, length
from attnlab.claims.parts import Bound, Count, Identity, Limit, least
from attnlab.claims.scale import Scale
from attnlab.claims.svm.samples import (
    SIZES,
    TRIALS,
    Sample,
    all_support,
    equal_others,
    score_gaps,
    slopes,
    with_unit_constant,
)
from attnlab.data import Tokens, optimal_tokens, scores, sphere
from attnlab.data.tokens import Array
from attnlab.models import attention, excess_loss
from attnlab.optim import gd
from attnlab.svm import solve_margins
from attnlab.train import descend

ENTRY_SCALES = (0.1, 0.3, 1.0, 3.0)
RADII = (5.0, 50.0, 500.0)
LEADING = 2.0  # the constant of Lemma 7
INDEPENDENT = 1e-6  # a least singular value above this is full rank for certain
ROUNDING = 1e-12


def loss_is_above_its_infimum(scale: Scale) -> Outcome:
    """The excess loss at random weights, against a plain transcription; and its fall along separating directions."""
    rng = np.random.default_rng(2)
    seeds = range(scale.pick(1, 4, 20))
    above = Count("L(W) <= L*")
    plain = Identity("stable excess loss against L(W) - L* written out", tolerance=1e-9)
    lipschitz = Bound("(L(W) - L*) / mean of M1 |v| |output - best token|, as in the proof")
    tends = Limit("L(R W) - L* at R = 500", tolerance=1e-100)
    upper = Bound("e^R (L(R W) - L*) / upper constant")
    lower = Bound("lower constant / e^R (L(R W) - L*)")
    gap = np.inf
    for seed in seeds:
        tokens = sphere(**SIZES, seed=seed, trials=TRIALS)
        gap = min(gap, float(score_gaps(tokens).min()))
        for spread in (*ENTRY_SCALES, 30.0):
            W = spread * rng.standard_normal((TRIALS, tokens.d, tokens.d))
            log_excess = excess_loss(tokens, W, log=True)
            above.add(~np.isfinite(log_excess))
            written, distance = written_out(tokens, W)
            resolved = written > 1e-5  # else the difference of two losses is rounding
            plain.add((np.exp(log_excess) / written - 1.0)[resolved])
            lipschitz.add(np.exp(log_excess), distance)
        W = _separating(tokens, rng)
        low, high = _limits_of_the_fall(tokens, W)
        for R in RADII:
            log_excess = excess_loss(tokens, R * W, log=True)
            upper.add_logs(log_excess + R, high)
            lower.add_logs(low, log_excess + R)
        tends.add(excess_loss(tokens, RADII[-1] * W))
    return outcome(above, plain, lipschitz, tends, upper, lower, seeds=seeds, slack={"score gap": gap})


def written_out(tokens: Tokens, W: Array) -> tuple[Array, Array]:
    """L(W) - L* and the mean of |v| |X^T s - x_opt|, from softmax and log(1 + e^-u) as they are printed, (trials,)."""
    assert tokens.v is not None
    logits = np.einsum("rntd,rde,rne->rnt", tokens.x, W, tokens.z)
    s = np.exp(logits - logits.max(-1, keepdims=True))
    s /= s.sum(-1, keepdims=True)
    gamma = tokens.y[..., None] * np.einsum("rntd,rd->rnt", tokens.x, tokens.v)
    losses = np.log1p(np.exp(-(s * gamma).sum(-1)))
    least_losses = np.log1p(np.exp(-gamma.max(-1)))
    best = np.take_along_axis(tokens.x, gamma.argmax(-1)[..., None, None], axis=-2)[..., 0, :]
    away = np.linalg.norm(np.einsum("rnt,rntd->rnd", s, tokens.x) - best, axis=-1)
    return (losses - least_losses).mean(-1), (np.linalg.norm(tokens.v, axis=-1)[:, None] * away).mean(-1)


def _limits_of_the_fall(tokens: Tokens, W: Array) -> tuple[Array, Array]:
    """Logarithms of constants between which e^R (L(R W) - L*) lies for every R > 0, if W has margin 1.

    Attention to a token of margin m is at most e^-Rm, and at least e^-Rm / T; the logistic loss is convex, so that its
    slope at the best and at the worst score bound the rest.
    """
    best = optimal_tokens(tokens)
    gamma = scores(tokens)
    lead = _leads(tokens, best, W)
    gap = gamma.max(-1, keepdims=True) - gamma
    steep = 1.0 / (1.0 + np.exp(gamma.min(-1)))
    flat = 1.0 / (1.0 + np.exp(gamma.max(-1)))
    high = (steep[..., None] * gap).sum((-2, -1)) / tokens.n
    tight = lead.reshape(len(lead), -1).argmin(-1)[:, None]
    low = np.take_along_axis((flat[..., None] * gap).reshape(len(gap), -1), tight, axis=-1)[:, 0]
    return np.log(low / (tokens.n * tokens.T)), np.log(high)


def _separating(tokens: Tokens, rng: np.random.Generator) -> Array:
    """A W of margin 1 per trial, half way from the max-margin one to where a random change would undo it."""
    best = optimal_tokens(tokens)
    W = solve_margins(tokens, best).W
    change = rng.standard_normal(W.shape)
    lead = _leads(tokens, best, W)
    other = _leads(tokens, best, change)
    reach = np.where(other < 0, lead / np.maximum(-other, 1e-300), np.inf).reshape(len(W), -1).min(-1)
    W = W + 0.5 * np.minimum(reach, 1.0)[:, None, None] * change
    return W / _leads(tokens, best, W).reshape(len(W), -1).min(-1)[:, None, None]


def _leads(tokens: Tokens, best: NDArray[np.intp], W: Array) -> Array:
    """(x_best - x_t)^T W z, inf at the best token itself."""
    logits = np.einsum("rntd,rde,rne->rnt", tokens.x, W, tokens.z)
    lead = np.take_along_axis(logits, best[..., None], axis=-1) - logits
    return np.where(np.arange(tokens.T) == best[..., None], np.inf, lead)


def softmax_derivative_is_near_its_leading_part(scale: Scale) -> Outcome:
    """Random logits, and vectors a and scores of random entries or of random signs, where the bound is attained."""
    rng = np.random.default_rng(7)
    draws = scale.pick(2000, 20_000, 200_000)
    error = Bound("|a^T S' gamma - leading part| / (2 Gamma A (1 - s_1)^2)")
    for T in (2, 3, 5, 10):
        # Logits up to 6 apart: 1 - s_1 is then large enough for the plain formula to be exact to 1e-9 of the bound.
        s = np.exp(rng.uniform(0.0, 6.0, (draws, T)))
        s /= s.sum(-1, keepdims=True)
        a, gamma = rng.standard_normal((2, draws, T))
        signs = rng.random(draws) < 0.5
        a[signs] = np.sign(a[signs])
        gamma[signs] = np.sign(gamma[signs])
        whole = (a * s * gamma).sum(-1) - (a * s).sum(-1) * (s * gamma).sum(-1)
        part = ((a[:, :1] - a[:, 1:]) * s[:, 1:] * (gamma[:, :1] - gamma[:, 1:])).sum(-1)
        bound = LEADING * np.ptp(gamma, axis=-1) * np.abs(a).max(-1) * s[:, 1:].sum(-1) ** 2
        error.add(np.abs(whole - part), bound, says=bound > 0)  # else all scores are equal, and both sides are 0
    return outcome(error, tried=4 * draws, seeds=(7,), numbers={"not compared, all scores equal": error.silent})


@cache
def loss_falls_toward_the_max_margin_direction(scale: Scale) -> Outcome:
    """<grad L(W), W_mm> at random W under B.1 and B.2, against its closed form and against the proof's lower bound."""
    rng = np.random.default_rng(9)
    draws = scale.pick(2, 4, 30)
    seeds = range(scale.pick(1, 2, 5))
    uphill = Count("<grad L(W), W_mm> >= 0")
    closed = Identity("closed form under B.1", tolerance=1e-10)
    proof = Bound("(1/n) sum -l'_i (gap of scores) (gap of margins) s_opt (1 - s_opt) / -<grad L(W), W_mm>")
    slack: dict[str, float] = {}
    least_cosine = np.inf
    tried = 0
    for name, sample in _samples(seeds):
        meets = sample.meets
        W_mm = sample.margins.W
        slack = least(slack, sample.slack)
        tried += TRIALS * draws * len(ENTRY_SCALES)
        for spread in np.repeat(ENTRY_SCALES, draws):
            W = spread * rng.standard_normal(W_mm.shape)
            slope = slopes(sample.tokens, W)["W"]
            value = inner(slope, W_mm)
            uphill.add(value[meets] >= 0)
            if name == "B.1":
                closed.add((value / _closed_form(sample, W) - 1.0)[meets])
            proof.add_at_least(-value[meets], _promised_fall(sample, W)[meets])
            cosine = -value / (length(slope) * length(W_mm))
            least_cosine = min(least_cosine, float(cosine[meets].min()))
    return outcome(
        uphill,
        closed,
        proof,
        tried=tried,
        seeds=seeds,
        slack=slack,
        numbers={"least cosine of -gradient and W_mm": least_cosine},
    )


def _samples(seeds: range) -> Iterator[tuple[str, Sample]]:
    """Data sets under B.1 and under B.2."""
    for seed in seeds:
        yield "B.1", all_support(seed)
        yield "B.2", equal_others(seed)


def _slope_and_attention(sample: Sample, W: Array) -> tuple[Array, Array, Array]:
    """l'_i < 0, (trials, n); attention and gamma_opt - gamma_t, (trials, n, T)."""
    s = attention(sample.tokens, W)
    gamma = scores(sample.tokens)
    lead = np.take_along_axis(gamma, sample.best[..., None], axis=-1) - gamma
    return -1.0 / (1.0 + np.exp((s * gamma).sum(-1))), s, lead


def _closed_form(sample: Sample, W: Array) -> Array:
    """(1/n) sum_i l'_i s_opt (gamma_opt - gamma^T s): the slope along W_mm where every constraint value is 1."""
    slope, s, lead = _slope_and_attention(sample, W)
    at_best = np.take_along_axis(s, sample.best[..., None], axis=-1)[..., 0]
    return (slope * at_best * (s * lead).sum(-1)).mean(-1)


def _promised_fall(sample: Sample, W: Array) -> Array:
    """The right side of (26), weighted with -l'_i: what -<grad L(W), W_mm> is at least, (trials,)."""
    slope, s, lead = _slope_and_attention(sample, W)
    at_best = np.take_along_axis(s, sample.best[..., None], axis=-1)[..., 0]
    other = np.arange(sample.tokens.T) != sample.best[..., None]
    score_gap = np.where(other, lead, np.inf).min(-1)
    margin_gap = _leads(sample.tokens, sample.best, sample.margins.W).min(-1)
    others = np.where(other, s, 0.0).sum(-1)  # 1 - s_opt without cancellation
    return (-slope * score_gap * margin_gap * at_best * others).mean(-1)


def descent_diverges_without_stationary_points(scale: Scale) -> Outcome:
    """Gradient descent with step 1 / L_W under B.1 and B.2: growth of W along W_mm, and the last tenth of the way."""
    steps = scale.pick(1000, 10_000, 100_000)
    seeds = range(scale.pick(1, 1, 4))
    along = Count("run whose part along W_mm does not grow between two records")
    shrinks = Limit("gradient at the end over that at a tenth of the way", tolerance=1.0)
    grows = Bound("|W| at a tenth of the way / |W| at the end")
    slack: dict[str, float] = {"1 - eta L_W": 0.0}
    tried = 0
    for _, sample in _samples(seeds):
        slack = least(slack, sample.slack)
        tried += TRIALS
        tokens = with_unit_constant(sample.tokens)
        W_mm = solve_margins(tokens, sample.best).W
        run = descend(tokens, gd(1.0), steps=steps, targets=W_mm)
        size = run.metrics["norm"]
        log_slope = run.metrics["log_gradient_norm"]
        part = run.metrics["cosine_target"] * size
        tenth = int(np.searchsorted(run.steps, steps // 10))
        along.add((np.diff(part[sample.meets], axis=-1) <= 0).any(-1))
        shrinks.add(np.exp(log_slope[:, -1] - log_slope[:, tenth])[sample.meets])
        grows.add(size[sample.meets, tenth], size[sample.meets, -1])
    return outcome(
        along,
        shrinks,
        grows,
        tried=tried,
        seeds=seeds,
        slack=slack,
        numbers={"steps": steps},
        note="A limit is not reached in finite time: that the gradient falls and the norm grows over the last decade "
        "of steps is evidence for it. That there is no stationary point is what Lemma 9 measures.",
    )


def stacked_rows_are_independent(scale: Scale) -> Outcome:
    """Random A, P and B, with P as small as it may be and B far outside it; ranks by singular values."""
    rng = np.random.default_rng(17)
    draws = scale.pick(200, 2000, 20_000)
    dependent = Count(f"a singular value of [A; B] below {ROUNDING:g} of the largest")
    tried = 0
    least_ratio = np.inf
    slack = np.inf
    for n, m, p in ((1, 1, 2), (2, 3, 5), (3, 2, 8), (5, 4, 9)):
        A, P, B = _stack(rng, draws, n, m, p)
        shadow = np.linalg.svd(B @ P @ np.swapaxes(P, 1, 2), compute_uv=False)[:, m - 1]
        independent = np.minimum(shadow, np.linalg.svd(A, compute_uv=False)[:, -1])
        meets = independent > INDEPENDENT
        stacked = np.linalg.svd(np.concatenate([A, B], axis=1), compute_uv=False)
        ratio = (stacked[:, -1] / stacked[:, 0])[meets]
        dependent.add(ratio <= ROUNDING)
        least_ratio = min(least_ratio, ratio.min(initial=np.inf))
        slack = min(slack, independent[meets].min(initial=np.inf))
        tried += draws
    return outcome(
        dependent,
        tried=tried,
        seeds=(17,),
        slack={"least singular value of A and of B on P": slack},
        numbers={"least singular value of [A; B] over the largest": least_ratio},
    )


def _stack(rng: np.random.Generator, draws: int, n: int, m: int, p: int) -> tuple[Array, Array, Array]:
    """A; an orthonormal basis of a P of dimension m in its null space, as columns; B with rows mostly in those of A."""
    A = rng.standard_normal((draws, n, p))
    null = np.linalg.svd(A)[2][:, n:]  # orthonormal rows
    P = np.linalg.qr(np.swapaxes(null, 1, 2) @ rng.standard_normal((draws, p - n, m)))[0]
    inside = rng.standard_normal((draws, m, m)) @ np.swapaxes(P, 1, 2)
    return A, P, inside + 10.0 * rng.standard_normal((draws, m, n)) @ A


ASSUMPTION_B = "the best token of each query is unique, and all others are support tokens (B.1) or score the same (B.2)"
RANDOM = "Random data on the sphere, (n, T, d) = (3, 3, 12), logistic loss"

CLAIMS: list[Claim] = [
    Claim(
        id="svm-L2",
        title="The loss is above its infimum, and falls to it along separating directions",
        statement="If not all tokens are optimal, L(W) > L* = (1/n) sum_i l(gamma_opt) for every W; if W separates the "
        "optimal tokens, L(R W) -> L* as R grows (Lemma 2). With margin 1, e^R (L(R W) - L*) stays between two "
        "positive constants: a rate that the paper does not state, from the same argument.",
        hypotheses=("a decreasing loss and a linear head", "some token scores below the best of its query"),
        setting=RANDOM + "; entries of W of size 0.1 to 30, and separating W of margin R = 5, 50, 500.",
        reason="a count of weights whose loss is not above L*, beside a plain transcription of softmax and loss; the "
        "proof's bound M1 |v| |output - best token|; the excess at R = 500, which e^-500 puts below 1e-200; and both "
        "constants of the rate, which follow from scores and margins alone",
        measure=loss_is_above_its_infimum,
    ),
    Claim(
        id="svm-L7",
        title="Leading part of the softmax derivative",
        statement="|a^T S' gamma - sum_{t>=2} (a_1 - a_t) s_t (gamma_1 - gamma_t)| <= 2 Gamma A (1 - s_1)^2 with "
        "Gamma = max |gamma_t - gamma_u|, A = max |a_t| (Lemma 7).",
        setting="Random softmax weights of 2 to 10 tokens, logits up to 6 apart; a and gamma normal, or signs.",
        reason="the ratio of the two sides, to rounding; with a of opposite signs and T = 2 they are equal",
        measure=softmax_derivative_is_near_its_leading_part,
    ),
    Claim(
        id="svm-L9",
        title="The loss falls toward W_mm from everywhere",
        statement="Under Assumption B, <grad L(W), W_mm> < 0 for every W, by at least the right side of (26); under "
        "B.1 it equals (1/n) sum_i l'_i s_opt (gamma_opt - gamma^T s) (Lemma 9, its sign; its constant: svm-E5).",
        hypotheses=(ASSUMPTION_B,),
        setting=RANDOM + "; entries of W of size 0.1 to 3. B.1 is certified; for B.2 other scores are made equal.",
        reason="a count of wrong signs; relative error of the closed form, a sum of rounded terms; and the bound of "
        "the proof over what was measured",
        measure=loss_falls_toward_the_max_margin_direction,
    ),
    Claim(
        id="svm-T3",
        title="No stationary point: the gradient vanishes, W diverges",
        statement="Under Assumption B and with eta <= 1 / L_W, |grad L(W(k))| -> 0 and |W(k)| -> inf from any start "
        "(Theorem 3).",
        hypotheses=(ASSUMPTION_B, "eta = 1 / L_W"),
        setting=RANDOM + "; plain gradient descent from random starts, 1000 steps (10 000 at quick).",
        reason="a count of runs whose part along W_mm does not grow at every record; gradient and norm at the end "
        "against those at a tenth of the way",
        measure=descent_diverges_without_stationary_points,
    ),
    Claim(
        id="svm-L17",
        title="Independent rows, stacked",
        statement="If A has independent rows, P is a subspace of its null space, and the rows of B projected on P are "
        "independent, then the rows of [A; B] are independent (Lemma 17).",
        hypotheses=("n + m <= p", "A and the projection of B have full row rank"),
        setting="Normal A, a random P of the least dimension, B with rows mostly in those of A; p up to 9.",
        reason=f"a count of dependent cases; dependent is a singular value below {ROUNDING:g} of the largest",
        measure=stacked_rows_are_independent,
    ),
]
