"""Figure 8 of *On the Convergence of Encoder-only Shallow Transformers*: two digits as a regression."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.encoder.pictures import missing
from attnlab.claims.encoder.vision import stand_in, too_brief
from attnlab.claims.encoder.vision_regression import PRINTED, SETTING, error_checks, error_gaps, regression_data
from attnlab.claims.encoder.vision_runs import PLAIN, SCALINGS, mean_over_time
from attnlab.claims.images import image_inputs
from attnlab.data.tokens import Array
from attnlab.figures.encoder.scalings import draw_scalings, finite, scaling_legend, seed_table
from attnlab.figures.figure import Arrays, Facts, Figure, Finding
from attnlab.figures.rates.curves import arrival, plain_log, spelt
from attnlab.figures.style import new_figure, styled


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """The training error falls slower with tau0 = 1/m, at the widths where the paper sees a difference."""
    mean = mean_over_time(arrays["epochs"], arrays["main_error"])  # (scalings, widths, seeds)
    columns = {
        "mean training error over the epochs": finite(mean),
        "training error at the end": arrays["main_error"][..., -1],
        "squared error at the end": arrays["main_loss"][..., -1],
    }
    table = seed_table(arrays["widths"], columns)
    for row, times in zip(table.values(), arrivals(arrays, facts, 0.01), strict=True):
        row["epochs to 1 % of mistakes, by seed"] = ", ".join(spelt(time) for time in times)
    return Finding.of(
        *error_checks(arrays),
        table=table,
        remarks=[narrow_remark(arrays, error_gaps(arrays)), printed_remark(arrays, facts)],
        brief=too_brief(facts),
        stand_in=stand_in(facts),
    )


def arrivals(arrays: Arrays, facts: Facts, share: float) -> Array:
    """First recorded epoch with at most this share of mistakes: rows of seeds by width, then scaling."""
    by_width = np.swapaxes(arrays["main_error"], 0, 1)  # (widths, scalings, seeds, records)
    flat = by_width.reshape(-1, *by_width.shape[2:])
    most = 4.0 * share * facts["images to train on"]
    return np.stack([arrival(arrays["epochs"], errors, most) for errors in flat])


def narrow_remark(arrays: Arrays, gap: Array) -> str:
    """The smallest width, of which the paper does not speak here."""
    width = int(arrays["widths"][0])
    low, high = gap[0].min(), gap[0].max()
    return (
        "The paper does not say which widths it shows; judged are those where Figure 4 sees a difference. At m = "
        f"{width} the gap is {low:.2g} to {high:.2g} decades."
    )


def printed_remark(arrays: Arrays, facts: Facts) -> str:
    """What the step of the classification does here."""
    lost = arrays["printed_lost_at"]  # (scalings, widths, seeds)
    parts = []
    for (i, j), scaling in zip(np.ndindex(*lost.shape[:2]), np.repeat(SCALINGS, lost.shape[1]), strict=True):
        name = f"m = {arrays['widths'][j]}, {PLAIN[str(scaling)]}"
        steps = [str(int(step)) for step in lost[i, j] if step >= 0]
        if steps:
            parts.append(f"{name} (step {', '.join(steps)})")
    where = f": {'; '.join(parts)}" if parts else ""
    losses = arrays["printed_loss"]
    worse = int((losses[..., -1] > losses[..., 0]).sum())
    told = f"{int((lost >= 0).sum())} of {lost.size} runs overflow{where}"
    more = f", and {worse} others end with a larger squared error than they began with" if worse else ""
    return f"With step {PRINTED.step:g}, that of the classification, {told}{more}."


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """Training error above, squared error below, a column for each width."""
    widths = arrays["widths"]
    picture, axes = new_figure(2, len(widths), width=3.0 * len(widths) + 0.6, height=5.2)
    for panel, width, errors in zip(axes[0], widths, np.moveaxis(arrays["main_error"], 1, 0), strict=True):
        draw_scalings(panel, arrays["epochs"], errors)
        panel.set_yscale("symlog", linthresh=4.0)
        panel.set_ylim(0, 4.0 * facts["images to train on"])
        panel.set_title(f"m = {width}", fontweight="bold")
    for panel, losses in zip(axes[1], np.moveaxis(arrays["main_loss"], 1, 0), strict=True):
        draw_scalings(panel, arrays["epochs"], losses)
        plain_log(panel)
    axes[0, 0].set_ylabel("training error Σ (sign f - y)²")
    axes[1, 0].set_ylabel("mean squared error")
    scaling_legend(
        picture, axes[0, 0], facts, f" Digits 0 and 1, step {SETTING.step:g}, momentum {SETTING.momentum:g}."
    )
    return picture


FIGURES = [
    Figure(
        id="encoder-8",
        axes={
            "widths": "width",
            "epochs": "epoch",
            "*_lost_at": "scaling width seed",
            "printed_*": "scaling width seed end",
            "*": "scaling width seed epoch",
        },
        title="Two digits as a regression",
        data=regression_data,
        draw=draw,
        judge=judge,
        missing=missing,
        inputs=partial(image_inputs, "mnist"),
        says="On the digits 0 and 1 of MNIST, trained on squared errors, the training error sum (sign f - y)^2 falls "
        'such that "the convergence speed of" m^(-1/2) "is faster than that of" 1/m (Figure 8).',
    ),
]
