"""Figures 4 and 7: both scalings in a vision transformer on MNIST, what the paper says of them, judged over seeds.

*On the Convergence of Encoder-only Shallow Transformers*, Section 5.2 and Appendix E.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from attnlab.claims.claim import Claim, Outcome, outcome_of_checks
from attnlab.claims.encoder.pictures import mnist_pictures
from attnlab.claims.encoder.vision_data import EPOCHS, Plan, trained
from attnlab.claims.encoder.vision_runs import MAIN, WIDTHS, log_ratio, mean_over_time
from attnlab.claims.images import image_inputs, missing_images
from attnlab.claims.scale import Scale
from attnlab.claims.seen import Check
from attnlab.claims.stages import Stages
from attnlab.claims.verdict import Verdict
from attnlab.data.tokens import Array

Arrays = Mapping[str, np.ndarray]
Facts = Mapping[str, Any]

NARROW = 16  # where the paper sees no difference
ALIKE = 0.1  # decades between losses that are called alike: a factor 1.26
# Share of attention that training must have moved to other tokens, to have changed "a lot".
MUCH = 0.25
# Smaller than the runs of the figures at the same scale, and without other readings.
PLANS = {
    Scale.SMOKE: Plan(256, 100, 2, (16, 64), 3, 1, (), 0),
    Scale.QUICK: Plan(4_000, 1_000, 5, WIDTHS, 3, 1, (), 0),
    Scale.PAPER: Plan(60_000, 10_000, EPOCHS, WIDTHS, 3, 1, (), 0),
}


def gaps(arrays: Arrays, name: str, epochs: str, metric: str = "loss") -> Array:
    """Decades by which the mean loss over the epochs is larger with tau0 = 1/m, (widths, seeds)."""
    mean = mean_over_time(arrays[epochs], arrays[f"{name}_{metric}"])  # (scalings, widths, seeds)
    return log_ratio(mean[1], mean[0])


def wide(arrays: Arrays) -> dict[int, int]:
    """Places of the widths at which the paper sees a difference."""
    return {int(width): j for j, width in enumerate(arrays["widths"]) if width > NARROW}


def slower_check(width: int, gap: Array, what: str) -> Check:
    """With tau0 = 1/m a mean over the epochs is larger; `gap` in decades, one per seed, judged by its mean."""
    return Check(f"at m = {width} {what} falls slower with tau0 = 1/m (gap in decades)", gap, at_least=0.0)


def loss_checks(arrays: Arrays) -> list[Check]:
    """Figure 4: alike at width 16, slower with 1/m at larger ones, the more the wider; attention changes a lot."""
    gap, widths = gaps(arrays, "main", "epochs"), wide(arrays)
    narrow = list(arrays["widths"]).index(NARROW)
    checks = [Check(f"at m = {NARROW} both scalings train alike (gap in decades)", np.abs(gap[narrow]), at_most=ALIKE)]
    checks += [slower_check(width, gap[j], "the loss") for width, j in widths.items()]
    if len(widths) > 1:
        first, last = (gap[j] for j in (min(widths.values()), max(widths.values())))
        checks.append(
            Check("the gap is larger at the largest width (difference in decades)", last - first, at_least=0.0)
        )
    for j, width in enumerate(arrays["widths"]):
        name = f"at m = {width}, tau0 = m^(-1/2), training moves at least {MUCH:g} of the attention"
        checks.append(Check(name, np.nan_to_num(arrays["moved"][0, j]), at_least=MUCH))
    return checks


def end_words(arrays: Arrays) -> str:
    """The same gaps by another reading of speed, which is not judged: the loss at the end."""
    ends = arrays["main_loss"][..., -1]  # (scalings, widths, seeds)
    gap = np.nanmean(log_ratio(ends[1], ends[0]), axis=-1)
    told = [f"{one:+.2g} at m = {width}" for one, width in zip(gap, arrays["widths"], strict=True)]
    return f"By the loss at the end alone the gap in decades is {', '.join(told)}."


def accuracy_checks(arrays: Arrays) -> list[Check]:
    """Figure 7: with m^(-1/2) the training loss falls faster, and the test accuracy ends higher."""
    gap, end = gaps(arrays, "main", "epochs"), arrays["main_test_accuracy"][..., -1]
    checks = [slower_check(width, gap[j], "the training loss") for width, j in wide(arrays).items()]
    for width, j in wide(arrays).items():
        name = f"at m = {width} test accuracy ends higher with tau0 = m^(-1/2) (difference)"
        checks.append(Check(name, np.nan_to_num(end[0, j]) - np.nan_to_num(end[1, j]), at_least=0.0))
    return checks


def stand_in(facts: Facts) -> str:
    """Why nothing is decided: other images than the paper's; empty if they are its own."""
    if facts["MNIST"]:
        return ""
    return "The paper speaks of MNIST; these images only stand in for it, and decide nothing."


def too_brief(facts: Facts) -> str:
    """Why nothing fails here: fewer images and epochs than the paper's; empty if it could."""
    seen, whole = facts["images to train on"], facts["images of the whole set"]
    epochs = facts["epochs of the paper"]
    if facts["epochs"] < epochs or seen < whole:
        return (
            f"These runs see {seen} of {whole} images in {facts['epochs']} of {epochs} epochs: what is not seen here "
            "may come later."
        )
    return ""


@cache
def runs_of(scale: Scale) -> tuple[Arrays, Facts]:
    """Runs of the claims' plan on MNIST, which serve both claims."""
    return trained(PLANS[scale], mnist_pictures(), Stages())


def measured(scale: Scale, checks: Callable[[Arrays], Sequence[Check]]) -> Outcome:
    """The runs, and these checks of them."""
    arrays, facts = runs_of(scale)
    return outcome_of_checks(
        checks(arrays),
        brief=too_brief(facts),
        seeds=range(facts["seeds"]),
        numbers={
            "train loss at the end, mean over seeds": by_width(arrays, "loss"),
            "test accuracy at the end, mean over seeds": by_width(arrays, "test_accuracy"),
        },
        note=f"{end_words(arrays)} {facts['images to train on']} images, {facts['epochs']} epochs; {MAIN.words}. "
        f"{OPEN_NOTE}",
    )


def by_width(arrays: Arrays, metric: str) -> dict[str, dict[str, float]]:
    """Means over seeds at the end, by scaling and width."""
    ends = arrays[f"main_{metric}"][..., -1].mean(-1)  # (scalings, widths)
    names = [f"m = {width}" for width in arrays["widths"]]
    return {
        label: dict(zip(names, map(float, row), strict=True))
        for label, row in zip(("m^(-1/2)", "1/m"), ends, strict=True)
    }


OPEN_NOTE = (
    "The paper leaves open what the head sees and the law of the positions, which decide much: figure encoder-4 shows "
    "other readings."
)
SETTING = (
    "MNIST, patches of 7 x 7, one layer, one head, d = 64, widths 16, 1024 and 16384, steps of 0.1 with momentum 0.9, "
    "batches of 128, three seeds. quick: 4,000 images, 5 epochs; paper: all 60,000, 50 epochs"
)
NEVER = "what the paper reports; hours of runs, not measured by us"
CLAIMS = [
    Claim(
        id="encoder-F4",
        title="Both scalings of a vision transformer on MNIST",
        statement="At width 16 both scalings train alike; at 1024 and 16384 the loss falls slower with tau0 = 1/m than "
        "with m^(-1/2), most at 16384; with m^(-1/2) training changes the attention a lot (Section 5.2, Figure 4).",
        hypotheses=("images, epochs and model as the paper's",),
        setting=SETTING,
        reason="log10 of the mean train loss over the epochs, 1/m over m^(-1/2): within 0.1 at width 16, above 0 at "
        "1024 and 16384 and larger at the latter; at least a quarter of the attention moved; means over three seeds "
        "and two standard errors. Runs smaller than the paper's can support it, not refute it",
        measure=partial(measured, checks=loss_checks),
        missing=partial(missing_images, "mnist"),
        inputs=partial(image_inputs, "mnist"),
        at_scale={Scale.SMOKE: (Verdict.NOT_APPLICABLE, "a few steps"), Scale.PAPER: (Verdict.HOLDS, NEVER)},
    ),
    Claim(
        id="encoder-F7",
        title="Test accuracy of both scalings on MNIST",
        statement="With tau0 = m^(-1/2) the training loss falls faster than with 1/m, and the test accuracy ends "
        "higher (Appendix E.2, Figure 7).",
        hypotheses=("images, epochs and model as the paper's",),
        setting=SETTING,
        reason="log10 of the mean train loss over the epochs, 1/m over m^(-1/2), and the difference of the test "
        "accuracies at the end, above 0 at 1024 and 16384; means over three seeds and two standard errors. Runs "
        "smaller than the paper's can support it, not refute it",
        measure=partial(measured, checks=accuracy_checks),
        missing=partial(missing_images, "mnist"),
        inputs=partial(image_inputs, "mnist"),
        expected=Verdict.NOT_APPLICABLE,
        at_scale={Scale.PAPER: (Verdict.HOLDS, NEVER)},
    ),
]
