"""Figures 6 and 7 of *Implicit Bias and Fast Convergence Rates for Self-attention*: vision transformers on images.

The images are MNIST and CIFAR-10 of a folder that `al.data.mnist` and `al.data.cifar10` look in. Where they are not at
hand, and at smoke scale, the 8 x 8 digits of scikit-learn stand in for them, which the figure says.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.images import at_hand, image_inputs
from attnlab.claims.rates.rule_runs import end_of, log_ratio, mean_loss, too_small
from attnlab.claims.rates.vision import growth, growth_checks, loss_checks, what_was_seen
from attnlab.claims.rates.vision_runs import (
    OTHER_CAP,
    PAPER_CIFAR,
    PAPER_MNIST,
    QUICK_CIFAR,
    QUICK_MNIST,
    vision_data,
)
from attnlab.data.digitpatches import NEEDS, digits_installed
from attnlab.figures.figure import Arrays, Facts, Figure, Finding
from attnlab.figures.rates.curves import number
from attnlab.figures.rates.rule_panels import (
    LOOKS,
    cap_remark,
    draw_legend,
    draw_metric,
    draw_rules,
    lost_remark,
    speed_remark,
    table_of,
)
from attnlab.figures.style import new_figure, styled


def table_with_norms(arrays: Arrays, facts: Facts) -> dict[str, dict[str, Any]]:
    """Means over seeds at the last step, and how norms of layers grew."""
    table = table_of(arrays, facts)
    for name in facts["rules"]:
        for layer in facts["layers"]:
            grown = np.exp(growth(arrays, name, layer)).mean()
            table[LOOKS[name].label][f"norm of {layer}, end / start"] = number(grown)
    return table


def control_remark(arrays: Arrays, facts: Facts) -> str:
    """SPS with the cap of Figure 7; empty where it was not run."""
    if "sps_other" not in facts["rules"]:
        return ""
    share = 100 * end_of(arrays, "sps_other", "capped_share").mean()
    ratio = np.exp(log_ratio(arrays, "sgd", "sps_other")).mean()
    whole = (mean_loss(arrays, "sgd") / mean_loss(arrays, "sps_other")).mean()
    return (
        f"With cap {OTHER_CAP:g}, that of Figure 7, it decides {share:.0f} % of them, and SGD's train loss is "
        f"{ratio:.2g} times that of SPS at the end and {whole:.2g} times in the mean over steps (a control, not "
        "judged)."
    )


def judge(arrays: Arrays, facts: Facts, *, norms: bool) -> Finding:
    """Train losses at the end over seeds, caps, and for Figure 7 the growth of norms."""
    checks = loss_checks(arrays)
    if norms:
        checks += growth_checks(arrays, facts)
    remarks = [cap_remark(arrays, facts), control_remark(arrays, facts), speed_remark(arrays), lost_remark(facts)]
    stand_in = f"Nothing is decided on {facts['images']}." if facts["stand-in"] else ""
    brief = "" if stand_in else too_small(facts, what_was_seen(facts))
    return Finding.of(*checks, table=table_with_norms(arrays, facts), remarks=remarks, brief=brief, stand_in=stand_in)


# Drawing ----------------------------------------------------------------------------------------------------------


@styled
def draw(arrays: Arrays, facts: Facts, *, norms: bool) -> Any:
    """Losses, accuracies and capped shares; for Figure 7 norms of layers below."""
    picture, axes = new_figure(3 if norms else 2, 3, width=8.4, height=7.0 if norms else 4.9)
    draw_rules(axes, arrays, facts)
    if norms:
        for panel, layer, letter in zip(axes[2], facts["layers"], "fgh", strict=True):
            draw_norms(panel, arrays, facts, layer)
            panel.set_title(f"{letter}  {layer_words(layer)}")
        axes[2, 0].set_ylabel("norm / norm at the start")
    draw_legend(axes[1, 2], axes[0, 0], facts, legend_title(facts), {"sps_other": f"cap {OTHER_CAP:g}"})
    return picture


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


def legend_title(facts: Facts) -> str:
    """What was trained on what."""
    title = (
        f"{facts['images']}\n{facts['train']} images, batch {facts['batch']}, {facts['epochs']:.3g} epochs\n"
        f"depth {facts['depth']}, {facts['heads']} heads, width {facts['dim']}, patch {facts['patch']}\n"
        f"{facts['seeds']} seeds: median, least to largest"
    )
    return title.replace(", which stand in for ", "\nstand in for ")


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
        axes={"steps": "step", "*": "seed step"},
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
        axes={"steps": "step", "*": "seed step"},
        title="A small vision transformer on CIFAR-10",
        says=SAYS_CIFAR,
        data=partial(vision_data, paper=PAPER_CIFAR, quick=QUICK_CIFAR),
        draw=partial(draw, norms=True),
        judge=partial(judge, norms=True),
        missing=partial(missing, "cifar10"),
        inputs=partial(image_inputs, "cifar10"),
    ),
]
