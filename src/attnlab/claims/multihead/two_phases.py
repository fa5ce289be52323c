"""The generalization gap after both phases of training."""

from __future__ import annotations

import numpy as np

from attnlab.claims.claim import Claim, Outcome, within
from attnlab.claims.scale import Scale
from attnlab.data.mixture import head_output, tokenized_mixture
from attnlab.data.tokens import Array, Tokens
from attnlab.models.multihead import MultiHead
from attnlab.optim.descent import gd
from attnlab.theory.multihead import phase_one
from attnlab.train.descend import descend

HEADS, STEP, FIRST = 8, 0.2, 400
SIGNS = 0  # seed of the signs, the same for all trials, so that they are one batch


def padded(tokens: Tokens, n: int) -> Tokens:
    """With sequences of zeros up to n of them: these have no gradient, so that sets of any size share a program.

    The mean is then over n sequences; a step n / tokens.n as large makes up for it.
    """
    more = n - tokens.n
    x = np.pad(tokens.x, ((0, 0), (0, more), (0, 0), (0, 0)))
    return Tokens.self_attention(x, np.pad(tokens.y, ((0, 0), (0, more)), constant_values=1.0))


def starts(trials: int) -> tuple[dict[str, Array], list[float]]:
    """Phase one of each trial on sequences of its own, as weights with a trial axis; and heads per group."""
    first = tokenized_mixture(n=FIRST, seed=10_000, trials=trials)
    phases = [phase_one(first[t], HEADS, seed=SIGNS) for t in range(trials)]
    return {k: np.stack([p.weights[k] for p in phases]) for k in ("U", "W")}, phases[0].counts.tolist()


def mean_loss(tokens: Tokens, weights: dict[str, Array], counts: list[float]) -> float:
    """Of one trial."""
    each = sum(c * head_output(tokens.x, U, W) for c, U, W in zip(counts, weights["U"], weights["W"], strict=True))
    return float(np.logaddexp(0.0, -tokens.y * each / np.sqrt(sum(counts))).mean())


def gap_by_size(scale: Scale) -> Outcome:
    """Slope of log(mean gap) by log n, where K = n."""
    sizes = [16, 32, 64, 128, 256][: scale.pick(3, 5, 5)]
    trials, tests = scale.pick(5, 20, 50), scale.pick(500, 3_000, 10_000)
    start, counts = starts(trials)
    model = MultiHead(HEADS, counts=counts)
    unseen = tokenized_mixture(n=tests, seed=20_000)
    table = {}
    for n in sizes:
        tokens = tokenized_mixture(n=n, seed=n, trials=trials)
        run = descend(
            padded(tokens, sizes[-1]), gd(STEP * sizes[-1] / n), model=model, init=start, steps=n, record=None
        )
        final = [{k: run.weights[k][t] for k in ("U", "W")} for t in range(trials)]
        train = np.array([mean_loss(tokens[t], w, counts) for t, w in enumerate(final)])
        test = np.array([mean_loss(unseen, w, counts) for w in final])
        gaps = test - train
        table[n] = {"gap": float(gaps.mean()), "standard error": float(gaps.std(ddof=1) / np.sqrt(trials)),
                    "train": float(train.mean())}  # fmt: skip
    gaps = np.array([row["gap"] for row in table.values()])
    positive = gaps > 0
    slope = np.nan
    if positive.sum() >= 2:
        slope = float(np.polyfit(np.log(np.array(sizes)[positive]), np.log(gaps[positive]), 1)[0])
    return within(slope, -0.8, instances=int(positive.sum()), tried=len(sizes), seeds=[*sizes, 10_000, 20_000],
                  numbers={"slope": slope, "by n": table})  # fmt: skip


CLAIMS = [
    Claim(
        id="multihead-C-GAP",
        title="The generalization gap falls as 1/n or faster",
        statement="After phase one and K = n steps of phase two on the tokenized mixture, the expected gap falls as "
        "1 / n up to logarithms (Corollary 2 with Proposition 2).",
        hypotheses=("fresh sequences for phase two", "a constant step, far larger than the bounds allow"),
        tolerance=-0.8,
        reason="slope of log(mean gap) by log n; with K = n the train loss falls too, so it may be steeper than -1",
        measure=gap_by_size,
    ),
]
