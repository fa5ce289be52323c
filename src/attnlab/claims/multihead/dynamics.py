"""Training from zero and from signs: equal heads stay equal, attention waits a step, the loss falls like 1 / k."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.multihead.derivatives import head
from attnlab.claims.parts import Count, Identity, Limit
from attnlab.claims.scale import Scale
from attnlab.data.mixture import tokenized_mixture
from attnlab.data.tokens import Array, Tokens
from attnlab.models import MultiHead
from attnlab.models.multihead import DECODERS, Decoder
from attnlab.optim import gd
from attnlab.train import Trajectory, descend

STEPS, STEP = 200, 0.2
COUNTS = (2, 4)  # of six heads
EVERY_HEAD = tuple(g for g, c in enumerate(COUNTS) for _ in range(c))
EQUAL = 1e-12


def now_U(view: Any) -> Any:
    """U of each group."""
    return view.params["U"]


def now_W(view: Any) -> Any:
    """W of each group."""
    return view.params["W"]


def data(trials: int | None) -> Tokens:
    """Small mixtures."""
    return tokenized_mixture(n=20, T=5, d=4, sparsity=0.2, seed=0, trials=trials)


def started(tokens: Tokens, decoder: Decoder) -> dict[str, Array]:
    """Two groups for each trial: at zero in every other trial, else plus and minus one matrix, W = 0."""
    shapes = MultiHead(1, decoder).head_shapes(tokens)
    trials = tokens.trials or 1
    U = np.random.default_rng(1).standard_normal((trials, 1, *shapes["U"])) * 0.3
    signs = np.array([1.0, -1.0]).reshape(1, 2, *[1] * len(shapes["U"]))
    on = (np.arange(trials) % 2 == 1).reshape(-1, 1, *[1] * len(shapes["U"]))
    return {"U": np.where(on, signs * U, 0.0), "W": np.zeros((trials, 2, *shapes["W"]))}


def run(tokens: Tokens, model: MultiHead, start: Any, *, steps: int = STEPS) -> Trajectory:
    """Gradient descent with the weights of the first steps, of the last, and of some between."""
    record = sorted({0, 1, 2, 3, steps // 4, steps // 2, steps})
    return descend(
        tokens, gd(STEP), model=model, init=start, steps=steps, record=record, metrics={"U": now_U, "W": now_W}
    )


def difference(one: Array, other: Array) -> float:
    """The largest, relative to the largest entry."""
    return float(np.abs(one - other).max() / np.abs(other).max())


def groups_are_exact(scale: Scale) -> Outcome:
    """Six heads in two groups against six single heads; and H heads from zero against one head with U' = sqrt(H) U
    and the step of W divided by H."""
    trials = scale.pick(2, 4, 20)
    tokens = data(trials)
    grouped = Identity("two groups against six heads: U, W and margins", tolerance=EQUAL)
    single = Identity("H heads from zero against one head: sqrt(H) U and W", tolerance=EQUAL)
    for decoder in scale.pick(DECODERS[:1], DECODERS[::2], DECODERS):
        start = started(tokens, decoder)
        two = run(tokens, MultiHead(6, decoder, counts=COUNTS), start).metrics
        six = run(tokens, MultiHead(6, decoder), {k: w[:, EVERY_HEAD] for k, w in start.items()}).metrics
        for k in ("U", "W"):
            grouped.add(difference(two[k][:, :, EVERY_HEAD], six[k]))
        grouped.add(difference(two["margin"], six["margin"]))
    for H in scale.pick((6,), (10**6,), (6, 10**6, 10**12)):
        many = run(tokens, MultiHead(H, counts=(H / 2, H / 2)), started(tokens, "full")).weights
        U, W = one_head(tokens[0], H)  # the first trial starts at zero
        single.add([difference(np.sqrt(H) * many["U"][0, 0], U), difference(many["W"][0, 0], W)])
    return outcome(grouped, single, seeds=(0,), numbers={"trials": trials, "steps": STEPS})


def one_head(tokens: Tokens, H: float) -> tuple[Array, Array]:
    """One head from zero: U' with the step itself, W with the step over H."""
    U, W = np.zeros((tokens.T, tokens.d)), np.zeros((tokens.d, tokens.d))
    for _ in range(STEPS):
        derivatives = head(tokens.x, U, W)
        slope = -expit(-tokens.y * derivatives.value) * tokens.y / tokens.n
        gradient = slope @ derivatives.gradient
        U = U - STEP * gradient[: U.size].reshape(U.shape)
        W = W - STEP / H * gradient[U.size :].reshape(W.shape)
    return U, W


def attention_waits(scale: Scale) -> Outcome:
    """Heads that differ, entries of W that move in the first step, and W that do not move in the second."""
    unequal = Count("entries of U and W that differ between heads")
    early = Count("entries of W that are not zero after one step")
    late = Count("trials whose W is still zero after two steps")
    trials, moved = scale.pick(2, 4, 20), {}
    for decoder in scale.pick(DECODERS[:1], DECODERS[::2], DECODERS):
        tokens = data(trials)
        start = {k: np.zeros_like(w[:, EVERY_HEAD]) for k, w in started(tokens, decoder).items()}
        records = run(tokens, MultiHead(6, decoder), start).metrics  # (trials, records, heads, ..)
        for k in ("U", "W"):
            unequal.add(records[k] != records[k][:, :, :1])
        early.add(records["W"][:, :2] != 0)
        after_two = np.abs(records["W"][:, 2]).max((-3, -2, -1))
        late.add(after_two == 0)
        moved[decoder] = float(after_two.min())
    return outcome(unequal, early, late, seeds=(0,), numbers={"least of largest |W| after two steps": moved})


# The rate of figure 2 ---------------------------------------------------------------------------------------------

SLOPE = 0.1  # of a curve that is still bending from step 500 to 2000
FIRST, LAST = 500, 2000


def loss_falls_like_one_over_k(scale: Scale) -> Outcome:
    """|slope + 1| of log mean loss from step 500 to 2000, over trials; for many heads the slope is shown only."""
    tokens = tokenized_mixture(n=scale.pick(20, 100, 100), seed=0, trials=scale.pick(3, 3, 5))
    judged, shown = scale.pick(((1, 4), ()), ((1, 8), (64,)), ((1, 2, 4, 8), (16, 32, 64)))
    limits, slopes, ranges = [], {}, {}
    for H in (*judged, *shown):
        run = descend(tokens, gd(1.0), model=MultiHead(H), init="zeros", steps=LAST, record=[FIRST, LAST])
        logs = run.metrics["log_loss"]  # (trials, 2)
        of_trials = np.diff(logs, axis=-1)[:, 0] / np.log(LAST / FIRST)
        mean = np.log(np.mean(np.exp(logs), axis=0))
        slopes[H] = float((mean[1] - mean[0]) / np.log(LAST / FIRST))
        ranges[H] = [float(of_trials.min()), float(of_trials.max())]
        if H in judged:
            limits.append(Limit(f"|slope + 1|, H = {H}", tolerance=SLOPE))
            limits[-1].add(abs(slopes[H] + 1.0))
    numbers = {"slope by H": slopes, "of single trials": ranges, "judged": judged}
    return outcome(*limits, instances=len(limits), seeds=(0,), numbers=numbers)


SMALL_MIXTURE = (
    "Tokenized mixture of the paper, n = 20, T = 5, d = 4, sparsity 0.2; gradient descent, 200 steps of 0.2."
)
CLAIMS = [
    Claim(
        id="multihead-C-RED",
        title="Groups of equal heads are exact",
        statement="Heads that start equal follow the same path as one head with a count; from zero, H heads are one "
        "head with U' = sqrt(H) U whose W takes steps divided by H.",
        hypotheses=("start at zero, or at plus and minus one matrix (as after phase one)",),
        setting=SMALL_MIXTURE,
        reason="relative difference of weights and margins over 200 steps; 1e-12 for rounding",
        measure=groups_are_exact,
    ),
    Claim(
        id="multihead-C-DEC",
        title="From zero, attention waits a step",
        statement="From theta_0 = 0 all heads stay equal; the first step moves U alone, W moves from the second.",
        hypotheses=("theta_0 = 0",),
        setting=SMALL_MIXTURE,
        reason="entries that differ between heads, entries of W after one step, W after two: exact zeros are counted",
        measure=attention_waits,
    ),
    Claim(
        id="multihead-C-TR",
        title="Late training loss falls like 1 / k",
        statement="With gradient descent of step 1 on the mixture of figure 2, L(theta_k) falls like 1 / k late in "
        "training (the circled part of figure 2).",
        hypotheses=("data and step size of figure 2", "H <= 8; with more heads the rate is still being approached"),
        setting="Tokenized mixture of figure 2 (T = 10, d = 4, sparsity 0.1, S = 2, noise 0.1), n = 100 (20 at smoke), "
        "start at zero, 2000 steps of 1.",
        reason="|slope + 1| of the mean loss from step 500 to 2000 in log-log, for each H; 0.1 as it still bends",
        measure=loss_falls_like_one_over_k,
    ),
]
