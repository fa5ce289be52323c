"""Figures 6 and 7 of *Implicit Bias and Fast Convergence Rates for Self-attention*: vision transformers on images.

The images are MNIST and CIFAR-10 of a folder that `al.data.mnist` and `al.data.cifar10` look in. Where they are not at
hand, and at smoke scale, the 8 x 8 digits of scikit-learn stand in for them, which the figure says.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.images import at_hand, image_inputs
from attnlab.claims.rates.vision import end_of, growth, growth_checks, log_ratio, loss_checks, mean_loss, too_small
from attnlab.claims.rates.vision_runs import (
    METRICS,
    OTHER_CAP,
    PAPER_CIFAR,
    PAPER_MNIST,
    QUICK_CIFAR,
    QUICK_MNIST,
    vision_data,
)
from attnlab.data.digitpatches import NEEDS, digits_installed
from attnlab.figures.figure import Arrays, Facts, Figure, Finding
from attnlab.figures.rates.curves import Look, number, plain_log
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, SKY, band, new_figure, styled

LOOKS = {
    "sgd": Look("SGD", GREY, (0, (1, 1))),
    "sngd": Look("SNGD", BLUE, "-"),
    "sps": Look("SPS", GREEN, "-."),
    "adam": Look("Adam", ORANGE, "--"),
    "sps_other": Look("SPS (control)", SKY, (0, (6, 1.5, 1, 1.5, 1, 1.5))),
}
CAPPED = ("sngd", "sps", "sps_other")
COLUMNS = {
    "loss": "train loss",
    "accuracy": "train accuracy",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
}


def table_of(arrays: Arrays, facts: Facts) -> dict[str, dict[str, Any]]:
    """Means over seeds at the last step."""
    table = {}
    for name in facts["rules"]:
        row = {COLUMNS[key]: number(end_of(arrays, name, key).mean()) for key in METRICS}
        row["train loss, mean over steps"] = number(mean_loss(arrays, name).mean())
        row["share of capped steps"] = number(end_of(arrays, name, "capped_share").mean()) if name in CAPPED else None
        for layer in facts["layers"]:
            row[f"norm of {layer}, end / start"] = number(np.exp(growth(arrays, name, layer)).mean())
        table[LOOKS[name].label] = row
    return table


def cap_remark(arrays: Arrays, facts: Facts) -> str:
    """How often a cap decided the step, and what the rule is there."""
    caps = {"sngd": facts["sngd_cap"], "sps": facts["sps_cap"]}
    told = []
    for name, cap in caps.items():
        share = 100 * end_of(arrays, name, "capped_share").mean()
        told.append(f"the cap {cap:g} decides {share:.0f} % of the steps of {LOOKS[name].label}")
    sentence = f"Over all seeds {' and '.join(told)}; there a rule is SGD with the cap as its step."
    if "sps_other" in facts["rules"]:
        share = 100 * end_of(arrays, "sps_other", "capped_share").mean()
        ratio = np.exp(log_ratio(arrays, "sgd", "sps_other")).mean()
        whole = (mean_loss(arrays, "sgd") / mean_loss(arrays, "sps_other")).mean()
        sentence += (
            f" With cap {OTHER_CAP:g}, that of Figure 7, it decides {share:.0f} % of them, and SGD's train loss is "
            f"{ratio:.2g} times that of SPS at the end and {whole:.2g} times in the mean over steps (a control, not "
            "judged)."
        )
    return sentence


def speed_remark(arrays: Arrays) -> str:
    """The same orders by another reading of speed."""
    ratios = []
    for name in ("sngd", "adam", "sps"):
        ratio = (mean_loss(arrays, name) / mean_loss(arrays, "sgd")).mean()
        ratios.append(f"{ratio:.2g} ({LOOKS[name].label})")
    return f"Train loss in the mean over steps, another reading of speed, over that of SGD: {', '.join(ratios)}."


def judge(arrays: Arrays, facts: Facts, *, norms: bool) -> Finding:
    """Train losses at the end over seeds, caps, and for Figure 7 the growth of norms."""
    checks = loss_checks(arrays)
    if norms:
        checks += growth_checks(arrays, facts)
    lost = facts["runs that left the finite numbers"]
    remarks = [cap_remark(arrays, facts), speed_remark(arrays)]
    if lost:
        remarks.append(f"Left the finite numbers: {'; '.join(lost)}.")
    stand_in = f"Nothing is decided on {facts['images']}." if facts["stand-in"] else ""
    brief = "" if stand_in else too_small(facts)
    return Finding.of(*checks, table=table_of(arrays, facts), remarks=remarks, brief=brief, stand_in=stand_in)


# Drawing ----------------------------------------------------------------------------------------------------------


@styled
def draw(arrays: Arrays, facts: Facts, *, norms: bool) -> Any:
    """Losses, accuracies and capped shares; for Figure 7 norms of layers below."""
    picture, axes = new_figure(3 if norms else 2, 3, width=8.4, height=7.0 if norms else 4.9)
    (train_loss, train_accuracy, capped), (test_loss, test_accuracy, legend) = axes[:2]
    for panel, key in (
        (train_loss, "loss"),
        (train_accuracy, "accuracy"),
        (test_loss, "test_loss"),
        (test_accuracy, "test_accuracy"),
    ):
        draw_metric(panel, arrays, facts, key)
        panel.set(ylabel=COLUMNS[key].split()[1])
    for panel in (train_loss, test_loss):
        plain_log(panel)
    for panel in (train_accuracy, test_accuracy):
        panel.set_ylim(0, 1.03)
    draw_metric(capped, arrays, facts, "capped_share")
    capped.set(ylabel="share of steps so far\nwhose cap decides", ylim=(-0.03, 1.03))
    titles = ("a  Train loss", "b  Train accuracy", "c  Capped steps", "d  Test loss", "e  Test accuracy")
    for panel, title in zip((train_loss, train_accuracy, capped, test_loss, test_accuracy), titles, strict=True):
        panel.set_title(title)
    if norms:
        for panel, layer, letter in zip(axes[2], facts["layers"], "fgh", strict=True):
            draw_norms(panel, arrays, facts, layer)
            panel.set_title(f"{letter}  {layer_words(layer)}")
        axes[2, 0].set_ylabel("norm / norm at the start")
    for panel in (*axes[-1], capped):
        panel.set_xlabel("step")
    draw_legend(legend, train_loss, facts)
    return picture


def draw_metric(panel: Any, arrays: Arrays, facts: Facts, key: str) -> None:
    """One band for each rule that has this metric: median and range of the seeds."""
    steps = arrays["steps"]
    for name in facts["rules"]:
        values = arrays.get(f"{name}_{key}")
        if values is None:
            continue
        look = LOOKS[name]
        shown = np.isfinite(values).any(axis=0)
        if key == "capped_share":
            shown &= steps > 0
        band(panel, steps[shown], values[:, shown], color=look.color, style=look.style, label=look.label, share=1.0)
    panel.set_xlim(0, steps[-1])


def draw_norms(panel: Any, arrays: Arrays, facts: Facts, layer: str) -> None:
    """Norms of a layer over that at the start, which differs from seed to seed."""
    relative = {"steps": arrays["steps"]}
    for name in facts["rules"]:
        norms = arrays[f"{name}_norm_{layer}"]
        relative[f"{name}_growth"] = norms / norms[:, :1]
    draw_metric(panel, relative, facts, "growth")


def layer_words(layer: str) -> str:
    """A layer in words.

    >>> layer_words("block1_Q"), layer_words("block4_mlp1_W"), layer_words("head_W")
    ('Queries of block 1', 'MLP of block 4', 'Head')
    """
    if not layer.startswith("block"):
        return "Head"
    number_of_block, weight = layer.removeprefix("block").split("_", maxsplit=1)
    kind = "Queries" if weight == "Q" else "MLP"
    return f"{kind} of block {number_of_block}"


def draw_legend(panel: Any, described: Any, facts: Facts) -> None:
    """The rules, and what was trained on what, in a cell of their own."""
    panel.axis("off")
    title = (
        f"{facts['images']}\n{facts['train']} images, batch {facts['batch']}, {facts['epochs']:.3g} epochs\n"
        f"depth {facts['depth']}, {facts['heads']} heads, width {facts['dim']}, patch {facts['patch']}\n"
        f"{facts['seeds']} seeds: median, least to largest"
    )
    title = title.replace(", which stand in for ", "\nstand in for ")
    handles, _ = described.get_legend_handles_labels()
    settings = {
        "sgd": f"step {facts['sgd_step']:g}",
        "sngd": f"step {facts['sngd_step']:g}, cap {facts['sngd_cap']:g}",
        "sps": f"cap {facts['sps_cap']:g}",
        "adam": f"step {facts['adam_step']:g}",
        "sps_other": f"cap {OTHER_CAP:g}",
    }
    labels = [f"{LOOKS[name].label}, {settings[name]}" for name in facts["rules"]]
    panel.legend(handles, labels, loc="center", handlelength=3.2, title=title, alignment="left")


# What there is ----------------------------------------------------------------------------------------------------


def missing(name: str) -> str:
    """What must be there first."""
    return "" if digits_installed() or at_hand(name) else NEEDS


SAYS_MNIST = (
    'A ViT for small data sets on MNIST (patch 4, depth 2, 8 heads, MLP 128, batch 100, 40 epochs): "unlike language '
    'datasets SNGD trains slower than SGD, and Adam achieves no significant gain in terms of training speed over SGD" '
    '(Figure 6); "SPS still outperforms SGD" (Section 5).'
)
SAYS_CIFAR = (
    'The same on CIFAR-10 (depth 8, 32 heads, MLP 512, 80 epochs): "SNGD portrays a slower training speed similar to '
    'the observations for MNIST"; norms of various layers show "growth in parameters similar to our observations on '
    'synthetic datasets" (Figure 7); "SPS still outperforms SGD", "no significant gap between Adam and SGD" '
    "(Section 5)."
)
FIGURES = [
    Figure(
        id="rates-6",
        title="A small vision transformer on MNIST",
        says=SAYS_MNIST,
        data=partial(vision_data, paper=PAPER_MNIST, quick=QUICK_MNIST),
        draw=partial(draw, norms=False),
        judge=partial(judge, norms=False),
        missing=partial(missing, "mnist"),
        inputs=partial(image_inputs, "mnist"),
    ),
    Figure(
        id="rates-7",
        title="A small vision transformer on CIFAR-10",
        says=SAYS_CIFAR,
        data=partial(vision_data, paper=PAPER_CIFAR, quick=QUICK_CIFAR),
        draw=partial(draw, norms=True),
        judge=partial(judge, norms=True),
        missing=partial(missing, "cifar10"),
        inputs=partial(image_inputs, "cifar10"),
    ),
]
