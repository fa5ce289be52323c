"""Figures 4 and 7 of *On the Convergence of Encoder-only Shallow Transformers*: both scalings in a vision transformer.

Both are drawn from the same runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.encoder.pictures import missing
from attnlab.claims.encoder.vision import NARROW, accuracy_checks, end_words, loss_checks, stand_in, too_brief
from attnlab.claims.encoder.vision_data import vision_data
from attnlab.claims.encoder.vision_runs import MAIN, OTHERS, SCALINGS, mean_over_time
from attnlab.claims.images import image_inputs
from attnlab.figures.encoder.scalings import LOOKS, draw_scalings, finite, scaling_legend, seed_table, spread
from attnlab.figures.figure import Arrays, Facts, Figure, Finding
from attnlab.figures.rates.curves import plain_log
from attnlab.figures.style import new_figure, styled

MAPPED_WIDTH = 1024  # whose attention is shown


def judge_losses(arrays: Arrays, facts: Facts) -> Finding:
    """Figure 4: alike at width 16, slower with 1/m at larger ones, the more the wider; attention changes a lot."""
    columns = {
        "loss at the end": arrays["main_loss"][..., -1],
        "mean loss over the epochs": finite(mean_over_time(arrays["epochs"], arrays["main_loss"])),
        "row entropy at the start": arrays["entropy_before"],
        "row entropy at the end": arrays["entropy_after"],
        "attention moved": arrays["moved"],
    }
    return Finding.of(
        *loss_checks(arrays),
        table=seed_table(arrays["widths"], columns),
        remarks=[end_words(arrays), reading_words(facts), *other_remarks(arrays), lost_remark(arrays)],
        brief=too_brief(facts),
        stand_in=stand_in(facts),
    )


def judge_accuracy(arrays: Arrays, facts: Facts) -> Finding:
    """Figure 7: with m^(-1/2) the training loss falls faster, and the test accuracy ends higher."""
    end = arrays["main_test_accuracy"][..., -1]
    columns = {
        "training loss at the end": arrays["main_loss"][..., -1],
        "training accuracy at the end": arrays["main_accuracy"][..., -1],
        "test loss at the end": arrays["main_test_loss"][..., -1],
        "test accuracy at the end": end,
        "mean test accuracy over the epochs": finite(mean_over_time(arrays["epochs"], arrays["main_test_accuracy"])),
    }
    narrow = list(arrays["widths"]).index(NARROW)
    remark = (
        f"The paper does not say which width it shows; judged are those above {NARROW}. At m = {NARROW} test accuracy "
        f"ends at {spread(end[0, narrow])} with m^(-1/2) and {spread(end[1, narrow])} with 1/m."
    )
    return Finding.of(
        *accuracy_checks(arrays),
        table=seed_table(arrays["widths"], columns),
        remarks=[reading_words(facts), remark, *other_remarks(arrays, "test_accuracy"), lost_remark(arrays)],
        brief=too_brief(facts),
        stand_in=stand_in(facts),
    )


def reading_words(facts: Facts) -> str:
    """What is shown large, on what."""
    return (
        f"Main reading: {MAIN.words}; {facts['images to train on']} images ({facts['images']}), "
        f"{facts['epochs']} epochs, {facts['seeds']} seeds."
    )


def other_remarks(arrays: Arrays, metric: str = "loss") -> list[str]:
    """What the other readings of the text show."""
    remarks = []
    for name, setting in OTHERS.items():
        parts = []
        for j, width in enumerate(arrays["other_widths"]):
            ends = [spread(arrays[f"{name}_{metric}"][i, j, :, -1]) for i in range(len(SCALINGS))]
            parts.append(f"at m = {width} {ends[0]} with m^(-1/2) and {ends[1]} with 1/m")
        what = metric.replace("_", " ")
        epochs = int(arrays["other_epochs"][-1])
        remarks.append(f"Other reading, {setting.words}: {what} after epoch {epochs} {'; '.join(parts)}.")
    return remarks


def lost_remark(arrays: Arrays) -> str:
    """Which runs overflowed, of all readings."""
    lost = {name: int((arrays[f"{name}_lost_at"] >= 0).sum()) for name in ("main", *OTHERS)}
    if not any(lost.values()):
        return "No run overflowed."
    told = [f"{count} of {arrays[f'{name}_lost_at'].size} ({name})" for name, count in lost.items() if count]
    return f"Runs that overflowed: {', '.join(told)}."


@styled
def draw_losses(arrays: Arrays, facts: Facts) -> Any:
    """Training loss by width; the image and its attention maps; the other readings."""
    picture, axes = new_figure(3, 4, width=10.6, height=8.0)
    top, middle, below = axes
    for panel in axes.ravel():
        panel.set_visible(False)
    for panel, width, values in zip(top, arrays["widths"], np.moveaxis(arrays["main_loss"], 1, 0), strict=False):
        panel.set_visible(True)
        draw_scalings(panel, arrays["epochs"], values)
        panel.set_title(f"m = {width}")
        plain_log(panel)
    top[0].set_ylabel("training loss (cross entropy, nats)")
    top[0].set_title(f"a  m = {arrays['widths'][0]}", fontweight="bold")
    draw_entropies(top[3], arrays)
    draw_maps(middle, arrays, facts)
    places = [(name, j) for name in OTHERS for j in range(len(arrays["other_widths"]))]
    titles = {"cls": "class token", "small": "positions 0.02"}
    for panel, (name, j) in zip(below, places, strict=False):
        panel.set_visible(True)
        draw_scalings(panel, arrays["other_epochs"], arrays[f"{name}_loss"][:, j])
        panel.set_title(f"{titles[name]}, m = {arrays['other_widths'][j]}")
        plain_log(panel)
    below[0].set_title(f"d  {below[0].get_title(loc='left')}", fontweight="bold")
    below[0].set_ylabel("training loss (nats)")
    more = (
        " b: short lines at the start, every seed at the end, dotted uniform attention.\n"
        f"d: other readings, seeds: {facts['seeds of other readings']}, fewer epochs."
    )
    scaling_legend(picture, top[0], facts, more)
    return picture


def draw_entropies(panel: Any, arrays: Arrays) -> None:
    """Row entropies at the end by width, every seed; those at the start as short lines."""
    panel.set_visible(True)
    places = np.arange(len(arrays["widths"]))
    for i, scaling in enumerate(SCALINGS):
        look, shift = LOOKS[scaling], 0.16 * (2 * i - 1)
        ends = arrays["entropy_after"][i]  # (widths, seeds)
        x = np.broadcast_to((places + shift)[:, None], ends.shape)
        panel.scatter(x, ends, s=16, color=look.color, marker="os"[i], zorder=3)
        starts = arrays["entropy_before"][i].mean(-1)
        panel.hlines(starts, places + shift - 0.13, places + shift + 0.13, color=look.color, linewidth=1.4)
    panel.set_xticks(places, labels=[str(width) for width in arrays["widths"]])
    most = float(np.log(arrays["maps"].shape[-1]))  # of uniform attention
    panel.axhline(most, color="black", linewidth=0.8, linestyle=":")
    panel.set(xlabel="width m", ylabel="entropy of a row (nats)", ylim=(0, 1.08 * most))
    panel.set_title("b  Attention", fontweight="bold")


def draw_maps(panels: Any, arrays: Arrays, facts: Facts) -> None:
    """The image, its map at the start, and at the end with both scalings."""
    widths = list(arrays["widths"])
    j = widths.index(MAPPED_WIDTH) if MAPPED_WIDTH in widths else len(widths) - 1
    maps = arrays["maps"][:, j]
    shown = {
        "start, $m^{-1/2}$": maps[0, 0],
        "end, $m^{-1/2}$": maps[0, 1],
        "end, $m^{-1}$": maps[1, 1],
    }
    panels[0].set_visible(True)
    panels[0].imshow(arrays["picture"], cmap="gray_r", vmin=0, vmax=1)
    panels[0].set(xticks=[], yticks=[])
    panels[0].grid(visible=False)
    panels[0].set_title(f"c  A test image ({facts['label of the image shown']})", fontweight="bold")
    top = float(np.nanmax(maps)) if np.isfinite(maps).any() else 1.0
    drawn = None
    for panel, (title, values) in zip(panels[1:], shown.items(), strict=True):
        panel.set_visible(True)
        drawn = panel.imshow(values, cmap="viridis", vmin=0.0, vmax=top)
        panel.grid(visible=False)
        panel.set_title(f"{title}, m = {widths[j]}")
        ticks = np.arange(0, len(values), 5)
        panel.set(xlabel="patch looked at", ylabel="patch that looks", xticks=ticks, yticks=ticks)
    panels[-1].figure.colorbar(drawn, ax=panels[-1], label="attention", shrink=0.85)


@styled
def draw_accuracy(arrays: Arrays, facts: Facts) -> Any:
    """Training loss above, test accuracy below, a column for each width."""
    widths = arrays["widths"]
    picture, axes = new_figure(2, len(widths), width=3.0 * len(widths) + 0.6, height=5.2)
    rows: Mapping[str, str] = {"loss": "training loss (cross entropy, nats)", "test_accuracy": "test accuracy"}
    for row, (metric, label) in zip(axes, rows.items(), strict=True):
        for panel, width, values in zip(row, widths, np.moveaxis(arrays[f"main_{metric}"], 1, 0), strict=True):
            draw_scalings(panel, arrays["epochs"], values)
            panel.set_title(f"m = {width}", fontweight="bold")
            if metric == "loss":
                plain_log(panel)
            else:
                panel.set_ylim(0, 1.0)
        row[0].set_ylabel(label)
    scaling_legend(picture, axes[0, 0], facts, f" {facts['test images']} test images.")
    return picture


AXES = {
    "widths": "width",
    "other_widths": "width=other_widths",
    "epochs": "epoch",
    "other_epochs": "epoch=other_epochs",
    "picture": "row column",
    "maps": "scaling width end query token",
    "main_lost_at": "scaling width seed",
    "main_*": "scaling width seed epoch",
    "*_lost_at": "scaling width=other_widths seed",
    **{f"{name}_*": "scaling width=other_widths seed epoch=other_epochs" for name in OTHERS},
    "*": "scaling width seed",
}

FIGURES = [
    Figure(
        id="encoder-4",
        axes=AXES,
        title="Both scalings in a vision transformer on MNIST",
        data=vision_data,
        draw=draw_losses,
        judge=judge_losses,
        missing=missing,
        inputs=partial(image_inputs, "mnist"),
        says='"When the width is smaller, e.g., 16, both" scalings "have similar convergence results. However, as the '
        'width increases to 1024 and 16384, the" 1/m "setting admits a slower rate than that of" m^(-1/2), '
        '"especially a extremely slow rate under" m = 16384; under m^(-1/2) "the self-attention layer changes a lot '
        'during training" (Figure 4).',
    ),
    Figure(
        id="encoder-7",
        axes=AXES,
        title="Train loss and test accuracy of a vision transformer",
        data=vision_data,
        draw=draw_accuracy,
        judge=judge_accuracy,
        missing=missing,
        inputs=partial(image_inputs, "mnist"),
        shares="encoder-4",
        says='On MNIST the m^(-1/2) "setting achieves faster convergence in training loss and higher test accuracy" '
        "than 1/m (Figure 7).",
    ),
]
