"""Figure 6 of *On the Optimization and Generalization of Multi-head Attention*: fine-tuning with more or fewer heads.

Model and texts are those of `--weights` and `--data`, or found where `attnlab data` says. Where they are not at hand,
and at smoke scale, a tiny Bert of random weights on made-up texts stands in for them, which the figure says.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.multihead.text import LOSSES, heads_checks, slopes, stands_in, too_small
from attnlab.claims.multihead.text_runs import METRICS, STARTS, heads_data
from attnlab.claims.texts import NONE, ROBERTA, Files, libraries, text_inputs
from attnlab.data.tokens import Array
from attnlab.figures.figure import Arrays, Facts, Figure, Finding
from attnlab.figures.multihead.heads import DASHES
from attnlab.figures.rates.curves import number
from attnlab.figures.style import BLUE, GREY, band, new_figure, styled

COLUMNS = {
    "loss": "train loss",
    "accuracy": "train accuracy",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
}
TWO_ERRORS = 2.0
LEARNED = 0.6  # train accuracy of two balanced classes from which on a run is said to have learned


def table_of(arrays: Arrays) -> dict[str, dict[str, Any]]:
    """Means over seeds at the end, by start and number of heads; and what is known before training."""
    table = {}
    for start, words in STARTS.items():
        for i, h in enumerate(arrays["heads"]):
            row = {COLUMNS[name]: number(arrays[f"{start}_{name}"][i, :, -1].mean()) for name in METRICS}
            row["train loss, mean over steps"] = number(mean_over_steps(arrays, start)[i].mean())
            row["cosine of features with those of all heads"] = number(arrays[f"{start}_features_kept"][i])
            row["linear classifier before training"] = number(arrays[f"{start}_linear_accuracy"][i])
            table[f"{words}, {h} {'head' if h == 1 else 'heads'}"] = row
    return table


def mean_over_steps(arrays: Arrays, start: str) -> Array:
    """The train loss, mean over all steps by straight lines between records, (heads, seeds)."""
    steps = arrays["steps"]
    return np.trapezoid(arrays[f"{start}_loss"], steps, axis=-1) / steps[-1]


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """Losses at the end by number of heads; a control from random weights; what masking does before training."""
    stand_in = stands_in(facts)
    lost = facts["runs that left the finite numbers"]
    remarks = [
        facts["model stands in"],
        control_remark(arrays),
        masking_remark(arrays, facts) if facts["pretrained"] else "",
        seeds_remark(facts),
        f"Left the finite numbers: {'; '.join(lost)}." if lost else "",
    ]
    return Finding.of(
        *heads_checks(arrays),
        table=table_of(arrays),
        remarks=remarks,
        brief="" if stand_in else too_small(facts),
        stand_in=stand_in,
    )


def control_remark(arrays: Arrays) -> str:
    """The same from random weights, which says something only if these learned."""
    told = []
    for metric, words in LOSSES.items():
        slope = slopes(arrays, "random", metric)
        error = slope.std(ddof=1) / np.sqrt(slope.size) if slope.size > 1 else np.inf
        told.append(f"{slope.mean():.2g} ± {TWO_ERRORS * error:.2g} ({words})")
    accuracy = float(arrays["random_accuracy"][..., -1].mean())
    learned = "" if accuracy >= LEARNED else ", which have learned nothing by then, so that the control says nothing"
    return (
        f"From random weights, where there is no pretrained feature to lose, the same slopes are {' and '.join(told)}; "
        f"the train accuracy of these runs ends at {accuracy:.2g}{learned} (a control with a step of its own, not "
        "judged)."
    )


def masking_remark(arrays: Arrays, facts: Facts) -> str:
    """What masking heads does to pretrained features before any training."""
    few, every = arrays["heads"][0], arrays["heads"][-1]
    cosine = arrays["pretrained_features_kept"][0]
    low, high = arrays["pretrained_linear_accuracy"][[0, -1]]
    error = float(np.sqrt((low * (1 - low) + high * (1 - high)) / facts["test"]))
    if high - low > TWO_ERRORS * error:
        meaning = "So fewer heads start from worse features, and a slower run is not slower optimization alone."
    else:
        meaning = (
            "That these features are worse is not seen, that they are other ones is: whether a run is slower for its "
            "start or for its heads cannot be told apart here."
        )
    return (
        f"Masking changes what was pretrained: before training, what the head sees with {few} of {every} heads has "
        f"cosine {cosine:.2g} with that of all heads, and a linear classifier of it is right on {low:.2g} of unseen "
        f"texts ({high:.2g} with all; standard error of the difference {error:.2g}). {meaning}"
    )


def seeds_remark(facts: Facts) -> str:
    """What was trained on, and over how many seeds."""
    return (
        f"{facts['seeds']} seeds; {facts['epochs']:.3g} epochs of {facts['train']} texts, at most {facts['length']} "
        f"tokens each; test: {facts['test']} texts, {facts['texts for the test']}."
    )


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """Train loss, test loss and test accuracy from both starts, and features before training."""
    picture, axes = new_figure(2, 4, width=10.4, height=4.9)
    names = ("loss", "test_loss", "test_accuracy")
    for row, (start, words) in enumerate(STARTS.items()):
        if start == "pretrained" and not facts["pretrained"]:
            words = "stand-in"
        for column, name in enumerate(names):
            panel = axes[row, column]
            draw_heads(panel, arrays, f"{start}_{name}")
            panel.set(xlabel="step", ylabel=COLUMNS[name])
            panel.set_title(f"{'abcefg'[3 * row + column]}  {words}: {COLUMNS[name]}")
        for name in ("loss", "test_loss"):
            axes[row, names.index(name)].set_ylim(bottom=0)
        axes[row, 2].set_ylim(0.4, 1.0)
    draw_features(axes[0, 3], arrays)
    draw_legend(axes[1, 3], axes[0, 0], facts)
    return picture


def draw_heads(panel: Any, arrays: Arrays, name: str) -> None:
    """One band for each number of heads: median and range of the seeds."""
    from matplotlib import colormaps

    steps, heads = arrays["steps"], arrays["heads"]
    shades = colormaps["viridis_r"](np.linspace(0.15, 0.95, len(heads)))
    for i, h in enumerate(heads):
        values = arrays[name][i]
        shown = np.isfinite(values).any(axis=0)
        label = f"{h} head" if h == 1 else f"{h} heads"
        style = DASHES[i % len(DASHES)]
        band(panel, steps[shown], values[:, shown], color=shades[i], style=style, label=label, share=1.0)
    panel.set_xlim(0, steps[-1])


def draw_features(panel: Any, arrays: Arrays) -> None:
    """What is left of the features before training, by number of heads."""
    places = np.arange(len(arrays["heads"]))
    curves = (
        ("pretrained_features_kept", "cosine with those of all heads", "s", "-", "black"),
        ("pretrained_linear_accuracy", "linear classifier, unseen texts", "o", "-", BLUE),
        ("random_linear_accuracy", "the same, random start", "o", "--", GREY),
    )
    for name, label, mark, style, color in curves:
        panel.plot(places, arrays[name], color=color, linestyle=style, marker=mark, markersize=3.5, label=label)
    panel.set_xticks(places, [str(h) for h in arrays["heads"]])
    panel.set(xlabel="heads kept", ylim=(0, 1.04))
    panel.set_title("d  Features before training")
    panel.legend(loc="lower right", fontsize=7)


def draw_legend(panel: Any, described: Any, facts: Facts) -> None:
    """Numbers of heads, and what was trained on what, in a cell of their own."""
    panel.axis("off")
    texts = facts["texts"].replace(", which stand in for ", "\nstand in for ")
    title = (
        f"{texts}\n{facts['model']}\n{facts['train']} texts, batch {facts['batch']}, {facts['epochs']:.3g} epochs\n"
        f"AdamW {facts['step']:g} (random: {facts['random_step']:g})\n{facts['seeds']} seeds: median, least to largest"
    )
    handles, labels = described.get_legend_handles_labels()
    panel.legend(handles, labels, loc="center", handlelength=3.2, title=title, alignment="left")


def _figure(files: Files) -> Figure:
    return Figure(
        id="multihead-6",
        axes={
            "steps": "step",
            "heads": "head",
            "*_features_kept": "head",
            "*_linear_accuracy": "head",
            "*": "head seed step",
        },
        title="Fine-tuning a language model with more or fewer heads",
        data=partial(heads_data, files=files),
        draw=draw,
        judge=judge,
        missing=libraries,
        inputs=partial(text_inputs, ("sst2",), ROBERTA, files),
        on_files=_figure,
        says='A pre-trained roberta-base on SST-2, AdamW with step 5e-6, batch 32, 5 epochs: "increasing the number of '
        'heads speeds up the optimization and generalization" (Figure 6).',
    )


FIGURES = [_figure(NONE)]
