"""Runs of figures 4 and 7 and of what is claimed of them: both scalings in a vision transformer at several widths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.encoder.pictures import Pictures, pictures
from attnlab.claims.encoder.vision_runs import CHOICE, MAIN, OPEN, OTHERS, SCALINGS, WIDTHS, train_all
from attnlab.claims.scale import Scale, Tell
from attnlab.claims.stages import Stages
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array

EPOCHS = 50  # the paper's
SEED = 4  # of the choice of images
FEW = 5  # epochs, whose middles are recorded too
MAPPED = 50  # test images whose attention is compared before and after training
KEPT = ("loss", "accuracy", "test_loss", "test_accuracy")
# By the seconds of a step that were measured on two idle cores: 0.01, 0.01 and 0.035 by width. No GPU was at hand.
COST = "estimated: two to three hours on two idle cores; on a GPU perhaps a quarter of an hour, not measured"


@dataclass(frozen=True)
class Plan:
    """How much is trained: the main reading, and the others on fewer seeds and epochs."""

    images: int
    test: int
    epochs: int
    widths: tuple[int, ...]
    seeds: int
    other_epochs: int
    other_widths: tuple[int, ...]
    other_seeds: int

    @property
    def runs(self) -> int:
        """How many in all."""
        main = len(self.widths) * self.seeds
        others = len(OTHERS) * len(self.other_widths) * self.other_seeds
        return len(SCALINGS) * (main + others)


PLANS = {
    Scale.SMOKE: Plan(400, 100, 6, (16, 256), 2, 4, (256,), 1),
    Scale.QUICK: Plan(10_000, 2_000, 10, WIDTHS, 3, 5, (1024, 16384), 1),
    Scale.PAPER: Plan(60_000, 10_000, EPOCHS, WIDTHS, 3, 10, (1024, 16384), 2),
}


def vision_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The runs behind figures 4 and 7: every reading, width, scaling and seed, with attention before and after."""
    plan, cost = PLANS[scale], COST if scale is Scale.PAPER else ""
    arrays, facts = trained(plan, pictures(scale), Stages(tell, plan.runs, cost))
    return arrays, facts | ({"cost": cost} if cost else {})


def trained(plan: Plan, seen: Pictures, stage: Stages) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All runs of a plan on these images."""
    images = seen.train.take(min(plan.images, seen.train.n), seed=SEED)
    tests = seen.test.take(min(plan.test, seen.test.n), seed=SEED)
    data, test = seen.patches(images), seen.patches(tests)
    per_epoch = -(-data.n // min(MAIN.batch, data.n))
    steps, few = (record_steps(per_epoch, epochs) for epochs in (plan.epochs, plan.other_epochs))
    mapped = test.rows(np.arange(min(MAPPED, test.n)))
    ended = partial(attention_moved, mapped)
    arrays: dict[str, np.ndarray] = {
        "widths": np.array(plan.widths),
        "other_widths": np.array(plan.other_widths),
        "epochs": np.array(steps) / per_epoch,
        "other_epochs": np.array(few) / per_epoch,
        "picture": tests.pixels[0, :, :, 0] / tests.pixels.max(),
    }
    arrays |= train_all(
        "main", MAIN, data, seen.patch, plan.widths, plan.seeds, steps, KEPT, stage, test=test, ended=ended
    )
    arrays |= {name: arrays.pop(f"main_{name}") for name in ("entropy_before", "entropy_after", "moved", "maps")}
    arrays["maps"] = arrays["maps"][:, :, 0]  # of the first seed
    for name, setting in OTHERS.items() if plan.other_seeds else ():
        arrays |= train_all(
            name,
            setting,
            data,
            seen.patch,
            plan.other_widths,
            plan.other_seeds,
            few,
            KEPT,
            stage,
            told=f"{setting.words}: ",
            test=test,
        )
    facts = {
        **seen.facts(images, tests),
        "label of the image shown": int(tests.y[0]),
        "epochs": plan.epochs,
        "epochs of the paper": EPOCHS,
        "epochs of other readings": plan.other_epochs,
        "seeds": plan.seeds,
        "seeds of other readings": plan.other_seeds,
        "steps of an epoch": per_epoch,
        "main reading": {"words": MAIN.words, **MAIN.facts()},
        "other readings": {name: setting.words for name, setting in OTHERS.items()},
        "the paper does not say": OPEN,
        "how the main reading was chosen": CHOICE,
        "images of attention": mapped.n,
        "loss": "cross entropy, in float32",
    }
    return arrays, facts


def record_steps(per_epoch: int, epochs: int) -> list[int]:
    """The end of every epoch, and its middle where there are few.

    >>> record_steps(10, 2)
    [0, 5, 10, 15, 20]
    """
    between = per_epoch // 2 if epochs <= FEW and per_epoch > 1 else per_epoch
    return sorted(
        {*range(0, epochs * per_epoch, per_epoch), *range(between, epochs * per_epoch + 1, per_epoch)}
        | {epochs * per_epoch}
    )


def attention_moved(data: Sequences, model: Any, run: Any) -> dict[str, Array]:
    """What a run did to the attention on some images: entropies, how far it moved, and the maps of the first image,
    (before or after, T, T); NaN if the run overflowed.
    """
    if int(run.lost_at) >= 0:
        nothing = np.array(np.nan)
        maps = np.full((2, data.T, data.T), np.nan)
        return {"entropy_before": nothing, "entropy_after": nothing, "moved": nothing, "maps": maps}
    # Of the one head, (images, T, T); a row is what one token looks at.
    before, after = (
        model.attention(data, weights).reshape(data.n, data.T, data.T) for weights in (run.initial, run.weights)
    )
    return {
        "entropy_before": entropy(before).mean(),
        "entropy_after": entropy(after).mean(),
        "moved": moved(before, after).mean(),
        "maps": np.stack([before[0], after[0]]),
    }


def entropy(attention: Array) -> Array:
    """Of every row, in nats: log T where it is uniform, 0 where one token takes all.

    >>> entropy(np.array([[0.5, 0.5], [1.0, 0.0]])).round(3).tolist()
    [0.693, 0.0]
    """
    logs = np.log(np.where(attention > 0, attention, 1.0))
    return np.abs((attention * logs).sum(-1))


def moved(before: Array, after: Array) -> Array:
    """The share of attention that went to other tokens, of every row.

    >>> moved(np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5])).tolist()
    0.5
    """
    return 0.5 * np.abs(after - before).sum(-1)
