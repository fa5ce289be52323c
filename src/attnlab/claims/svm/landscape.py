"""The loss as a landscape: Lemmas 2, 4, 7, 8, 9 and 17, Theorem 3."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, within
from attnlab.claims.matrices import inner, length
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
from attnlab.theory import lipschitz_constants
from attnlab.train import descend

LOSSES = ("logistic", "exponential", "correlation")
ENTRY_SCALES = (0.1, 0.3, 1.0, 3.0)
RADII = (5.0, 50.0, 500.0)
LEADING = 2.0  # the constant of Lemma 7
INDEPENDENT = 1e-6  # a least singular value above this is full rank for certain
ROUNDING = 1e-12


def loss_is_above_its_infimum(scale: Scale) -> Outcome:
    """The excess loss at random weights, and how it falls along random directions that separate."""
    rng = np.random.default_rng(2)
    seeds = range(scale.pick(1, 4, 20))
    positive, judged, outside, gap = True, 0, -np.inf, np.inf
    falls = dict.fromkeys(RADII, 0.0)
    for seed in seeds:
        tokens = sphere(**SIZES, seed=seed, trials=TRIALS)
        gap = min(gap, float(score_gaps(tokens).min()))
        for spread in (*ENTRY_SCALES, 30.0):
            log_excess = excess_loss(tokens, spread * rng.standard_normal((TRIALS, tokens.d, tokens.d)), log=True)
            positive &= bool(np.isfinite(log_excess).all())
            judged += TRIALS
        W = _separating(tokens, rng)
        low, high = _limits_of_the_fall(tokens, W)
        for R in RADII:
            log_excess = excess_loss(tokens, R * W, log=True)
            outside = max(outside, float(np.maximum(log_excess + R - high, low - log_excess - R).max()))
            slope = log_excess - excess_loss(tokens, (R + 1.0) * W, log=True)
            falls[R] = max(falls[R], float(np.abs(slope - 1.0).max()))
            judged += TRIALS
    return within(
        outside if positive else np.inf, 0.0, instances=judged, seeds=seeds, slack={"score gap": gap},
        numbers={"excess is positive everywhere": positive,
                 "largest |fall of the log from R to R + 1 - 1|": {f"R = {R:g}": off for R, off in falls.items()}},
    )  # fmt: skip


def _limits_of_the_fall(tokens: Tokens, W: Array) -> tuple[Array, Array]:
    """Logarithms of constants between which e^R (L(R W) - L*) lies for every R > 0, if W has margin 1.

    Attention to a token of margin m is at most e^-Rm, and at least e^-Rm / T; the logistic loss is convex, so that its
    slope at the best and at the worst score bound the rest.
    """
    best = optimal_tokens(tokens)
    gamma, lead = scores(tokens), _leads(tokens, best, W)
    gap = gamma.max(-1, keepdims=True) - gamma
    steep, flat = (1.0 / (1.0 + np.exp(score)) for score in (gamma.min(-1), gamma.max(-1)))
    high = (steep[..., None] * gap).sum((-2, -1)) / tokens.n
    tight = lead.reshape(len(lead), -1).argmin(-1)[:, None]
    low = np.take_along_axis((flat[..., None] * gap).reshape(len(gap), -1), tight, axis=-1)[:, 0]
    return np.log(low / (tokens.n * tokens.T)), np.log(high)


def _separating(tokens: Tokens, rng: np.random.Generator) -> Array:
    """A W of margin 1 per trial, half way from the max-margin one to where a random change would undo it."""
    best = optimal_tokens(tokens)
    W = solve_margins(tokens, best).W
    change = rng.standard_normal(W.shape)
    lead, other = _leads(tokens, best, W), _leads(tokens, best, change)
    room = np.where(other < 0, lead / np.maximum(-other, 1e-300), np.inf).reshape(len(W), -1).min(-1)
    W = W + 0.5 * np.minimum(room, 1.0)[:, None, None] * change
    return W / _leads(tokens, best, W).reshape(len(W), -1).min(-1)[:, None, None]


def _leads(tokens: Tokens, best: NDArray[np.intp], W: Array) -> Array:
    """(x_best - x_t)^T W z, inf at the best token itself."""
    logits = np.einsum("rntd,rde,rne->rnt", tokens.x, W, tokens.z)
    lead = np.take_along_axis(logits, best[..., None], axis=-1) - logits
    return np.where(np.arange(tokens.T) == best[..., None], np.inf, lead)


def gradient_is_lipschitz(scale: Scale) -> Outcome:
    """Gradients at pairs of weights, near and far, for three losses."""
    rng = np.random.default_rng(4)
    draws = scale.pick(2, 6, 60)
    tokens = sphere(**SIZES, seed=4, trials=TRIALS)
    shape = (TRIALS, tokens.d, tokens.d)
    largest = {}
    for loss in LOSSES:
        constants = np.array([lipschitz_constants(tokens[i], loss).W for i in range(TRIALS)])
        largest[loss] = 0.0
        for spread in ENTRY_SCALES:
            for apart in (1e-3, 1.0):
                for _ in range(draws):
                    W = spread * rng.standard_normal(shape)
                    step = apart * spread * rng.standard_normal(shape)
                    change = slopes(tokens, W + step, loss)["W"] - slopes(tokens, W, loss)["W"]
                    largest[loss] = max(largest[loss], float((length(change) / (constants * length(step))).max()))
    pairs = TRIALS * draws * len(ENTRY_SCALES) * 2
    return within(max(largest.values()), 1.0, instances=pairs * len(LOSSES), seeds=(4,),
                  numbers={"largest ratio": largest, "pairs of each loss": pairs})  # fmt: skip


def softmax_derivative_is_near_its_leading_part(scale: Scale) -> Outcome:
    """Random logits, and vectors a and scores of random entries or of random signs, where the bound is attained."""
    rng = np.random.default_rng(7)
    draws = scale.pick(2000, 20_000, 200_000)
    worst, judged = 0.0, 0
    for T in (2, 3, 5, 10):
        # Logits up to 6 apart: 1 - s_1 is then large enough for the plain formula to be exact to 1e-9 of the bound.
        s = np.exp(rng.uniform(0.0, 6.0, (draws, T)))
        s /= s.sum(-1, keepdims=True)
        a, gamma = rng.standard_normal((2, draws, T))
        signs = rng.random(draws) < 0.5
        a[signs], gamma[signs] = np.sign(a[signs]), np.sign(gamma[signs])
        whole = (a * s * gamma).sum(-1) - (a * s).sum(-1) * (s * gamma).sum(-1)
        part = ((a[:, :1] - a[:, 1:]) * s[:, 1:] * (gamma[:, :1] - gamma[:, 1:])).sum(-1)
        bound = LEADING * np.ptp(gamma, axis=-1) * np.abs(a).max(-1) * s[:, 1:].sum(-1) ** 2
        differ = bound > 0  # else all scores are equal, and both sides are 0
        worst = max(worst, float((np.abs(whole - part)[differ] / bound[differ]).max()))
        judged += int(differ.sum())
    return within(worst, 1.0 + 1e-9, instances=judged, tried=4 * draws, seeds=(7,),
                  numbers={"not compared, all scores equal": 4 * draws - judged})  # fmt: skip


def each_step_lowers_the_loss(scale: Scale, step: float = 1.0) -> Outcome:
    """Plain gradient descent with step 1 / L_W from random starts, every step."""
    steps = scale.pick(200, 500, 5000)
    tokens = with_unit_constant(sphere(**SIZES, seed=8, trials=TRIALS))
    W_mm = solve_margins(tokens, optimal_tokens(tokens)).W
    run = descend(tokens, gd(step), steps=steps, record=range(steps + 1), targets=W_mm, init_scale=3.0, seed=8)
    excess, log_size = run.metrics["excess_loss"], run.metrics["log_gradient_norm"]
    promised = 0.5 * step * np.exp(2.0 * log_size[:, :-1])
    share = promised / np.maximum(excess[:, :-1] - excess[:, 1:], 1e-300)
    total = promised.sum(-1) / excess[:, 0]
    falls = np.exp(log_size[:, -1] - log_size[:, 0])
    return within(
        float(max(share.max(), total.max())), 1.0, instances=share.size,
        seeds=(8,), slack={"1 - eta L_W": 1.0 - step},
        numbers={"data sets": TRIALS, "steps": steps, "sum of promised drops / excess loss at the start": total.max(),
                 "last gradient / first, largest": falls.max()},
    )  # fmt: skip


@cache
def loss_falls_toward_the_max_margin_direction(scale: Scale) -> Outcome:
    """<grad L(W), W^mm> at random W under B.1 and B.2, and against its closed form."""
    rng = np.random.default_rng(9)
    draws = scale.pick(2, 4, 30)
    seeds = range(scale.pick(1, 2, 5))
    worst, judged, tried, least, counts = 0.0, 0, 0, np.inf, {"B.1": 0, "B.2": 0}
    slack: dict[str, float] = {}
    for name, sample in _samples(seeds):
        tokens, W_mm, kept = sample.tokens, sample.margins.W, sample.meets
        slack = {k: min(v, slack.get(k, np.inf)) for k, v in {**slack, **sample.slack}.items()}
        tried += TRIALS * draws * len(ENTRY_SCALES)
        for spread in np.repeat(ENTRY_SCALES, draws):
            W = spread * rng.standard_normal(W_mm.shape)
            slope = slopes(tokens, W)["W"]
            value, closed = inner(slope, W_mm)[kept], _closed_form(sample, W)[kept]
            downhill = bool((value < 0).all())
            error = np.abs(value / closed - 1.0).max() if name == "B.1" else 0.0
            worst = max(worst, float(error) if downhill else np.inf)
            least = min(least, float((-value / (length(slope) * length(W_mm))[kept]).min()))
            counts[name] += len(value)
            judged += len(value)
    return within(worst, 1e-10, instances=judged, tried=tried, seeds=seeds, slack=slack,
                  numbers={"points": counts, "least cosine of -gradient and W^mm": least})  # fmt: skip


def _samples(seeds: range) -> Iterator[tuple[str, Sample]]:
    """Data sets under B.1 and under B.2."""
    for seed in seeds:
        yield "B.1", all_support(seed)
        yield "B.2", equal_others(seed)


def _closed_form(sample: Sample, W: Array) -> Array:
    """(1/n) sum_i l'_i s_opt (gamma_opt - gamma^T s): the slope along W^mm where every constraint value is 1."""
    s, gamma = attention(sample.tokens, W), scores(sample.tokens)
    at_best = np.take_along_axis(s, sample.best[..., None], axis=-1)[..., 0]
    lead = (s * (np.take_along_axis(gamma, sample.best[..., None], axis=-1) - gamma)).sum(-1)
    slope = -1.0 / (1.0 + np.exp((s * gamma).sum(-1)))
    return (slope * at_best * lead).mean(-1)


def descent_diverges_without_stationary_points(scale: Scale) -> Outcome:
    """Gradient descent with step 1 / L_W under B.1 and B.2: growth of W along W^mm, and the last tenth of the way."""
    steps = scale.pick(1000, 10_000, 100_000)
    seeds = range(scale.pick(1, 1, 4))
    failing, judged, tried, shrinks, grows = 0, 0, 0, 0.0, np.inf
    slack: dict[str, float] = {"1 - eta L_W": 0.0}
    for _, sample in _samples(seeds):
        slack = {k: min(v, slack.get(k, np.inf)) for k, v in {**slack, **sample.slack}.items()}
        tokens = with_unit_constant(sample.tokens)
        W_mm = solve_margins(tokens, sample.best).W
        run = descend(tokens, gd(1.0), steps=steps, targets=W_mm)
        along = run.metrics["cosine_target"] * run.metrics["norm"]
        before = int(np.searchsorted(run.steps, steps // 10))
        shrink = np.exp(run.metrics["log_gradient_norm"][:, -1] - run.metrics["log_gradient_norm"][:, before])
        grow = run.metrics["norm"][:, -1] / run.metrics["norm"][:, before]
        good = (np.diff(along, axis=-1) > 0).all(-1) & (shrink < 1) & (grow > 1)
        failing += int((sample.meets & ~good).sum())
        judged, tried = judged + int(sample.meets.sum()), tried + TRIALS
        shrinks = max(shrinks, float(shrink[sample.meets].max(initial=0.0)))
        grows = min(grows, float(grow[sample.meets].min(initial=np.inf)))
    return within(
        failing, 0, instances=judged, tried=tried, seeds=seeds, slack=slack,
        numbers={"steps": steps, "gradient, last / a tenth of the way, largest": shrinks,
                 "norm, last / a tenth of the way, least": grows},
        note="A limit is not reached in finite time: that the gradient falls and the norm grows over the last decade "
        "of steps is evidence for it. That there is no stationary point is what Lemma 9 measures.",
    )  # fmt: skip


def stacked_rows_are_independent(scale: Scale) -> Outcome:
    """Random A, P and B, with P as small as it may be and B far outside it; ranks by singular values."""
    rng = np.random.default_rng(17)
    draws = scale.pick(200, 2000, 20_000)
    dependent, judged, tried, least, slack = 0, 0, 0, np.inf, np.inf
    for n, m, p in ((1, 1, 2), (2, 3, 5), (3, 2, 8), (5, 4, 9)):
        A, P, B = _stack(rng, draws, n, m, p)
        shadow = np.linalg.svd(B @ P @ np.swapaxes(P, 1, 2), compute_uv=False)[:, m - 1]
        independent = np.minimum(shadow, np.linalg.svd(A, compute_uv=False)[:, -1])
        meets = independent > INDEPENDENT
        stacked = np.linalg.svd(np.concatenate([A, B], axis=1), compute_uv=False)
        ratio = (stacked[:, -1] / stacked[:, 0])[meets]
        dependent += int((ratio <= ROUNDING).sum())
        least, slack = min(least, ratio.min(initial=np.inf)), min(slack, independent[meets].min(initial=np.inf))
        judged, tried = judged + len(ratio), tried + draws
    return within(dependent, 0, instances=judged, tried=tried, seeds=(17,),
                  slack={"least singular value of A and of B on P": slack},
                  numbers={"least singular value of [A; B] over the largest": least})  # fmt: skip


def _stack(rng: np.random.Generator, draws: int, n: int, m: int, p: int) -> tuple[Array, Array, Array]:
    """A; an orthonormal basis of a P of dimension m in its null space, as columns; B with rows mostly in those of A."""
    A = rng.standard_normal((draws, n, p))
    null = np.linalg.svd(A)[2][:, n:]  # orthonormal rows
    P = np.linalg.qr(np.swapaxes(null, 1, 2) @ rng.standard_normal((draws, p - n, m)))[0]
    inside = rng.standard_normal((draws, m, m)) @ np.swapaxes(P, 1, 2)
    return A, P, inside + 10.0 * rng.standard_normal((draws, m, n)) @ A


ASSUMPTION_B = "the best token of each query is unique, and all others are support tokens (B.1) or score the same (B.2)"

CLAIMS = [
    Claim(
        id="svm-L2",
        title="The loss is above its infimum, and falls to it along separating directions",
        statement="If not all tokens are optimal, L(W) > L* = (1/n) sum_i l(gamma_opt) for every W; if W separates the "
        "optimal tokens, L(R W) -> L* as R grows; with margin 1, e^R (L(R W) - L*) stays between two positive "
        "constants (Lemma 2, with the rate that its proof gives).",
        hypotheses=("a decreasing loss and a linear head", "some token scores below the best of its query"),
        tolerance=0.0,
        reason="by how much the log of e^R (L(R W) - L*) is outside the two constants, which follow from scores and "
        "margins alone; negative is inside. An excess loss that is not positive counts as inf",
        measure=loss_is_above_its_infimum,
    ),
    Claim(
        id="svm-L4",
        title="The gradient is Lipschitz with the constant L_W",
        statement="|grad L(W) - grad L(W')|_F <= L_W |W - W'|_F with "
        "L_W = (1/n) sum_i |v| |z_i|^2 |X_i|^3 (M0 |v| |X_i| + 3 M1) (Lemma 4, its part on W).",
        hypotheses=("the slope of the loss is bounded by M1 and M0-Lipschitz on the margins that occur",),
        tolerance=1.0,
        reason="the ratio of the two sides",
        measure=gradient_is_lipschitz,
    ),
    Claim(
        id="svm-L7",
        title="Leading part of the softmax derivative",
        statement="|a^T S' gamma - sum_{t>=2} (a_1 - a_t) s_t (gamma_1 - gamma_t)| <= 2 Gamma A (1 - s_1)^2 with "
        "Gamma = max |gamma_t - gamma_u|, A = max |a_t| (Lemma 7).",
        tolerance=1.0 + 1e-9,
        reason="the ratio of the two sides, to rounding; with a of opposite signs and T = 2 they are equal",
        measure=softmax_derivative_is_near_its_leading_part,
    ),
    Claim(
        id="svm-L8",
        title="Every step of gradient descent lowers the loss",
        statement="With step eta <= 1 / L_W, L(W(k+1)) - L(W(k)) <= -(eta / 2) |grad L(W(k))|^2 for every k, so that "
        "the squared gradients have a finite sum (Lemma 8, which prints 2 / L_W: see svm-E4).",
        hypotheses=("eta = 1 / L_W, with the constant of Lemma 4 of each data set",),
        tolerance=1.0,
        reason="promised over measured drop of a step; the promised drops must also add up to no more than L(0) - L*",
        measure=each_step_lowers_the_loss,
    ),
    Claim(
        id="svm-L9",
        title="The loss falls toward W^mm from everywhere",
        statement="Under Assumption B, <grad L(W), W^mm> < 0 for every W; under B.1 it equals "
        "(1/n) sum_i l'_i s_opt (gamma_opt - gamma^T s) (Lemma 9, its sign; for its constant see svm-E5).",
        hypotheses=(ASSUMPTION_B,),
        tolerance=1e-10,
        reason="relative error of the closed form under B.1, a sum of rounded terms; a wrong sign counts as inf",
        measure=loss_falls_toward_the_max_margin_direction,
    ),
    Claim(
        id="svm-T3",
        title="No stationary point: the gradient vanishes, W diverges",
        statement="Under Assumption B and with eta <= 1 / L_W, |grad L(W(k))| -> 0 and |W(k)| -> inf from any start "
        "(Theorem 3).",
        hypotheses=(ASSUMPTION_B, "eta = 1 / L_W"),
        tolerance=0,
        reason="a count of runs whose part along W^mm does not grow at every record, or whose gradient grows or norm "
        "falls over the last decade of steps",
        measure=descent_diverges_without_stationary_points,
    ),
    Claim(
        id="svm-L17",
        title="Independent rows, stacked",
        statement="If A has independent rows, P is a subspace of its null space, and the rows of B projected on P are "
        "independent, then the rows of [A; B] are independent (Lemma 17).",
        hypotheses=("n + m <= p", "A and the projection of B have full row rank"),
        tolerance=0,
        reason=f"a count of dependent cases; dependent is a singular value below {ROUNDING:g} of the largest",
        measure=stacked_rows_are_independent,
    ),
]  # fmt: skip
