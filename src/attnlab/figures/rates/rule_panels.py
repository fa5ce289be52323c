"""Several step rules on a deep network, as Figures 1, 4, 6 and 7 show them: curves, caps, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.claims.rates.rule_runs import METRICS, end_of, mean_loss
from attnlab.figures.figure import Arrays, Facts
from attnlab.figures.rates.curves import Look, number, plain_log
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, SKY, band

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
        table[LOOKS[name].label] = row
    return table


def cap_remark(arrays: Arrays, facts: Facts) -> str:
    """How often a cap decided the step, and what the rule is there."""
    caps = {"sngd": facts["sngd_cap"], "sps": facts["sps_cap"]}
    told = []
    for name, cap in caps.items():
        share = 100 * end_of(arrays, name, "capped_share").mean()
        told.append(f"the cap {cap:g} decides {share:.0f} % of the steps of {LOOKS[name].label}")
    return f"Over all seeds {' and '.join(told)}; there a rule is SGD with the cap as its step."


def speed_remark(arrays: Arrays) -> str:
    """The same orders by another reading of speed."""
    ratios = []
    for name in ("sngd", "adam", "sps"):
        ratio = (mean_loss(arrays, name) / mean_loss(arrays, "sgd")).mean()
        ratios.append(f"{ratio:.2g} ({LOOKS[name].label})")
    return f"Train loss in the mean over steps, another reading of speed, over that of SGD: {', '.join(ratios)}."


def lost_remark(facts: Facts) -> str:
    """Runs that ended early; empty if none did."""
    lost = facts["runs that left the finite numbers"]
    return f"Left the finite numbers: {'; '.join(lost)}." if lost else ""


# Drawing ----------------------------------------------------------------------------------------------------------


def draw_rules(axes: Any, arrays: Arrays, facts: Facts) -> None:
    """Losses, accuracies and capped shares in five of the first six cells, (2, 3)."""
    (train_loss, train_accuracy, capped), (test_loss, test_accuracy, _) = axes[:2]
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
    for panel in (*axes[-1], capped):
        panel.set_xlabel("step")


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


def draw_legend(panel: Any, described: Any, facts: Facts, title: str, others: Mapping[str, str] | None = None) -> None:
    """The rules with their steps and caps, and what was trained on what, in a cell of their own."""
    panel.axis("off")
    handles, _ = described.get_legend_handles_labels()
    settings = {
        "sgd": f"step {facts['sgd_step']:g}",
        "sngd": f"step {facts['sngd_step']:g}, cap {facts['sngd_cap']:g}",
        "sps": f"cap {facts['sps_cap']:g}",
        "adam": f"step {facts['adam_step']:g}",
        **(others or {}),
    }
    labels = [f"{LOOKS[name].label}, {settings[name]}" for name in facts["rules"]]
    panel.legend(handles, labels, loc="center", handlelength=3.2, title=title, alignment="left")
