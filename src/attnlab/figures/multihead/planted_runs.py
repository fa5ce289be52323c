"""Runs on data of one planted head: rules, sets, and when a run has found the head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.claims.scale import Scale
from attnlab.claims.stages import Stages
from attnlab.data.mixture import planted
from attnlab.figures.figure import Tell
from attnlab.figures.multihead.heads import HEADS, prefixed, run_heads
from attnlab.figures.rates.curves import arrival, number

SEED, TEST_SEED = 40, 41
STEP, MOMENTUM, ADAM_STEP = 1.0, 0.9, 0.01
KEPT = (
    "loss",
    "test_loss",
    "test_error",
    "norm_U",
    "norm_W",
    "normalized_margin",
    "cosine_W_teacher",
    "cosine_U_teacher",
)
NAMES = ("steps", *KEPT)
# The planted head counts as found at this cosine of W, and of U.
FOUND = 0.95
# A rule is as fast as its first step with this train loss; times to the lower one are told too.
LOW, LOWER = 0.05, 0.01


@dataclass(frozen=True, kw_only=True)
class Run:
    """One rule on the planted data.

    Attributes:
        words: the rule, for people.
        rule: number of heads -> step rule.
        steps: how many.
        heads: "all", "few" (fewest, middle, most) or "most".
        many: on many sets, to see how often the planted head is found.
    """

    words: str
    rule: Callable[[int], Any]
    steps: int
    heads: str = "all"
    many: bool = False


def growing_gd(step: float, steps: int, **options: Any) -> Run:
    """Gradient descent with a step that grows as sqrt(H)."""
    from attnlab.optim import gd

    return Run(words=f"GD, step {step:g} sqrt(H)", rule=lambda H: gd(step * float(np.sqrt(H))), steps=steps, **options)


def growing_momentum(step: float, steps: int, **options: Any) -> Run:
    """The same with momentum."""
    from attnlab.optim.momentum import heavy_ball

    return Run(
        words=f"GD with momentum {MOMENTUM:g}, step {step:g} sqrt(H)",
        rule=lambda H: heavy_ball(step * float(np.sqrt(H)), momentum=MOMENTUM),
        steps=steps,
        **options,
    )


def constant_adam(steps: int, **options: Any) -> Run:
    """Adam with one step for all H."""
    from attnlab.optim import adam

    return Run(words=f"Adam, step {ADAM_STEP:g}", rule=lambda _: adam(ADAM_STEP), steps=steps, **options)


def planted_data(scale: Scale, tell: Tell, runs: dict[str, Run]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Every rule and number of heads on the same sets, from zero; some rules on more sets."""
    n, n_test = scale.pick(200, 1000, 1000), scale.pick(300, 3000, 3000)
    sets = {False: scale.pick(2, 4, 5), True: scale.pick(2, 8, 32)}
    heads = scale.pick((1, 16), (1, 8, 64), HEADS)
    few = tuple(sorted({heads[0], heads[len(heads) // 2], heads[-1]}))
    heads_of = {"all": heads, "few": few, "most": heads[-1:]}
    drawn = {}
    for many, count in sets.items():
        tokens = planted(n, seed=SEED, trials=count)
        test = planted(n_test, teacher=tokens, seed=TEST_SEED, trials=count)
        drawn[many] = (tokens, test)
    arrays: dict[str, np.ndarray] = {"heads": np.array(heads), "few": np.array(few), "most": np.array(heads[-1:])}
    stage = Stages(tell, sum(len(heads_of[run.heads]) for run in runs.values()))
    for name, run in runs.items():
        tokens, test = drawn[run.many]
        teacher = {key: np.asarray(tokens.info[f"teacher_{key}"])[:, None] for key in ("U", "W")}
        curves = run_heads(
            tokens,
            run.rule,
            KEPT,
            heads_of[run.heads],
            stage,
            f"{run.words}, {name}",
            steps=run.steps,
            test=test,
            targets={"teacher": teacher},
        )
        arrays |= prefixed(name, curves)
    tokens, _ = drawn[False]
    facts = {
        "n": n,
        "T": tokens.T,
        "d": tokens.d,
        "test sequences": n_test,
        "sets": sets[False],
        "many sets": sets[True],
        "seed": SEED,
        "gamma_attn": float(tokens.info["margin"]),
        "norms of U* and W*": [1.0, 5.0],
        "share of drawn sequences that were kept": [number(v) for v in np.atleast_1d(tokens.info["acceptance"])],
        "rules": {name: run.words for name, run in runs.items()},
        "heads": {name: run.heads for name, run in runs.items()},
        "steps": {name: run.steps for name, run in runs.items()},
        "start": "zero",
        "the paper does not say": "the law of the planted head, numbers of heads and of steps, the factor of sqrt(H), "
        "the momentum, Adam's step, how the margin is normalized (here by the average |U|)",
        "all heads stay equal": "GD with H heads from zero is GD with one head, the step of W divided by H",
    }
    return arrays, facts


def scaled_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Gradient descent with a step that grows as sqrt(H); the most heads for longer, and on more sets."""
    runs = {
        "scaled": growing_gd(STEP, scale.pick(60, 2000, 4000)),
        "longer": growing_gd(STEP, scale.pick(80, 4000, 8000), heads="most"),
        "many": growing_gd(STEP, scale.pick(60, 1000, 1000), heads="most", many=True),
    }
    return planted_data(scale, tell, runs)


def faster_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Momentum with the step of Figure 4, and Adam; controls that tell momentum from a larger step."""
    steps, fewer = scale.pick(60, 1500, 1500), scale.pick(60, 1000, 1000)
    runs = {
        "momentum": growing_momentum(STEP, steps),
        "adam": constant_adam(scale.pick(60, 1500, 3000)),
        # The same step without momentum is Figure 4.
        "same": growing_gd(STEP, fewer, heads="few"),
        # Momentum adds up to 1 / (1 - momentum) times the step: the same sum, with and without.
        "tenth": growing_momentum(STEP * (1 - MOMENTUM), fewer, heads="few"),
        "tenfold": growing_gd(STEP / (1 - MOMENTUM), fewer, heads="few"),
        "many_momentum": growing_momentum(STEP, fewer, heads="most", many=True),
        "many_adam": constant_adam(fewer, heads="most", many=True),
    }
    return planted_data(scale, tell, runs)


def finds(curves: dict[str, np.ndarray]) -> np.ndarray:
    """Which runs end at the planted head, (heads, sets)."""
    return (curves["cosine_W_teacher"][:, :, -1] > FOUND) & (curves["cosine_U_teacher"][:, :, -1] > FOUND)


def steps_to(curves: dict[str, np.ndarray], level: float = LOW) -> np.ndarray:
    """First recorded step with this train loss, (heads, sets); infinite if never."""
    return np.stack([arrival(curves["steps"], one, level) for one in curves["loss"]])
