"""Figures 4 and 5 of *On the Optimization and Generalization of Multi-head Attention*: a planted head."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.figures.figure import Arrays, Check, Facts, Figure, Finding
from attnlab.figures.multihead.heads import (
    REACHED,
    by_heads,
    dots_by_heads,
    draw_error,
    draw_heads,
    head_axes,
    loss_axis,
    pick,
)
from attnlab.figures.multihead.planted_runs import (
    FOUND,
    KEPT,
    LOW,
    LOWER,
    MOMENTUM,
    NAMES,
    faster_data,
    finds,
    scaled_data,
    steps_to,
)
from attnlab.figures.rates.curves import plain_log, spelt
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, new_figure, styled

DRAWN = ("scaled", "momentum", "adam")  # from top to bottom
# Runs of fewer steps are too short for a verdict.
LONG = 1000


def rule_checks(kind: str, curves: dict[str, np.ndarray], many: dict[str, np.ndarray], gamma: float) -> list[Check]:
    """What the paper says of every rule.

    Margins and losses are judged on runs that find the planted head; how many do is a check of its own, on more sets.
    """
    found = finds(curves)  # (heads, sets)
    whole = found[0] & found[-1]  # sets whose head both the fewest and the most heads find
    margins = curves["normalized_margin"][:, :, -1]
    end = curves["loss"][:, :, -1]
    return [
        Check(f"{kind}: the most heads end with less train loss than one head", (end[-1] < end[0])[whole]),
        Check(
            f"{kind}: every run that finds the planted head reaches {REACHED:g} gamma_attn",
            (margins >= REACHED * gamma)[found],
            at_least=1.0,
        ),
        Check(f"{kind}: one head finds the planted head", found[0]),
        Check(f"{kind}: the most heads find it, on {many['loss'].shape[1]} sets", finds(many)[-1]),
    ]


def rule_remarks(words: str, heads: np.ndarray, curves: dict[str, np.ndarray], gamma: float) -> str:
    """One sentence or two on a rule, by medians over sets."""
    found = finds(curves)
    share = np.median(curves["normalized_margin"][:, :, -1], axis=1) / gamma
    loss = np.median(curves["loss"][:, :, -1], axis=1)
    least = int(share.argmin())
    said = (
        f"{words}: after {curves['steps'][-1]} steps the median train loss is {loss[0]:.1e} with one head and "
        f"{loss[-1]:.1e} with {heads[-1]}; median margins are {share[least]:.2f} (H = {heads[least]}) to "
        f"{share.max():.2f} gamma_attn (H = {heads[share.argmax()]}). {found.sum()} of {found.size} runs find the "
        f"planted head"
    )
    return f"{said}{stuck(heads, curves, found)}. {speed(heads, curves)}"


def speed(heads: np.ndarray, curves: dict[str, np.ndarray]) -> str:
    """Median steps to two levels of the train loss: with one head, with the most, and the least of all."""
    told = []
    for level in (LOW, LOWER):
        times = np.median(steps_to(curves, level), axis=1)
        best = int(times.argmin())
        told.append(
            f"train loss {level:g} takes {spelt(times[0])} steps with one head, {spelt(times[-1])} with {heads[-1]}, "
            f"and least with {heads[best]} ({spelt(times[best])})"
        )
    return f"By medians, {'; '.join(told)}."


def stuck(heads: np.ndarray, curves: dict[str, np.ndarray], found: np.ndarray) -> str:
    """Which sets end elsewhere, at which H, and at which cosine."""
    places = []
    for one in np.flatnonzero(~found.all(0)):
        missed = np.flatnonzero(~found[:, one])
        cosines = curves["cosine_W_teacher"][missed, one, -1]
        listed = ", ".join(str(heads[i]) for i in missed)
        places.append(f"set {one + 1} ends at cos(W, W*) {cosines.min():.2f} to {cosines.max():.2f} for H = {listed}")
    return f"; {'; '.join(places)}" if places else ""


def rule_table(kind: str, heads: np.ndarray, curves: dict[str, np.ndarray], gamma: float) -> dict[str, Any]:
    """Medians over sets by number of heads."""
    times = {level: np.median(steps_to(curves, level), axis=1) for level in (LOW, LOWER)}
    middles = {key: np.median(curves[key][:, :, -1], axis=1) for key in KEPT}
    half = curves["normalized_margin"][:, :, int(np.flatnonzero(curves["steps"] <= curves["steps"][-1] / 2)[-1])]
    return {
        f"{kind}: train loss": by_heads(heads, middles["loss"]),
        f"{kind}: test loss": by_heads(heads, middles["test_loss"]),
        f"{kind}: test error": by_heads(heads, middles["test_error"]),
        **{
            f"{kind}: steps to train loss {level:g}": {
                f"H = {H}": spelt(value) for H, value in zip(heads, values, strict=True)
            }
            for level, values in times.items()
        },
        f"{kind}: margin / gamma_attn": by_heads(heads, middles["normalized_margin"] / gamma),
        f"{kind}: the same at half the steps": by_heads(heads, np.median(half, axis=1) / gamma),
        f"{kind}: cos(W, W*)": by_heads(heads, middles["cosine_W_teacher"]),
        f"{kind}: cos(U, U*)": by_heads(heads, middles["cosine_U_teacher"]),
        f"{kind}: share of sets that find the planted head": by_heads(heads, finds(curves).mean(1)),
    }


def too_brief(steps: np.ndarray) -> str:
    """Why a run decides nothing, if it does not."""
    return f"Runs of {steps[-1]} steps decide nothing." if steps[-1] < LONG else ""


def judge_scaled(arrays: Arrays, facts: Facts) -> Finding:
    """Heads help somewhat, every number of them reaches the margin and finds the planted head."""
    heads, gamma, words = arrays["heads"], facts["gamma_attn"], facts["rules"]["scaled"]
    curves, longer, many = (pick(arrays, name, NAMES) for name in ("scaled", "longer", "many"))
    remarks = [
        rule_remarks(words, heads, curves, gamma),
        longer_remark(heads, longer, gamma),
        found_remark("GD", heads[-1], many),
    ]
    return Finding.of(
        *rule_checks("GD", curves, many, gamma),
        table=rule_table("GD", heads, curves, gamma),
        remarks=remarks,
        brief=too_brief(curves["steps"]),
    )


def longer_remark(heads: np.ndarray, longer: dict[str, np.ndarray], gamma: float) -> str:
    """Where the margin of the most heads ends."""
    good = finds(longer)[-1]
    half = int(np.flatnonzero(longer["steps"] <= longer["steps"][-1] / 2)[-1])
    share = longer["normalized_margin"][-1][good] / gamma  # (sets, records)
    grown = share[:, -1] - share[:, half]
    return (
        f"H = {heads[-1]} goes on to step {longer['steps'][-1]}: margins of the {good.sum()} runs that find the "
        f"planted head end at {listed(share[:, -1])} gamma_attn, and grew by {listed(grown)} in the second half. "
        "gamma_attn is no limit: it is the least margin of the planted head on the data, and a trained head may have a "
        "larger one."
    )


def found_remark(kind: str, most: int, many: dict[str, np.ndarray]) -> str:
    """How often the planted head is found, and what that means for a figure of five sets."""
    found = finds(many)[-1]
    share = found.mean()
    return (
        f"{kind} with H = {most} finds the planted head on {found.sum()} of {found.size} sets; with that share a "
        f"figure of five sets shows all five at it with probability {share**5:.2f}."
    )


def listed(values: np.ndarray) -> str:
    """Numbers in words."""
    return ", ".join(f"{value:.2f}" for value in values.ravel()) or "none"


def judge_faster(arrays: Arrays, facts: Facts) -> Finding:
    """As Figure 4, and both rules are faster than its GD."""
    heads, few, gamma, rules = arrays["heads"], arrays["few"], facts["gamma_attn"], facts["rules"]
    runs = {name: pick(arrays, name, NAMES) for name in rules}
    chosen = np.isin(heads, few)
    times = {name: steps_to(curves) for name, curves in runs.items()}
    times |= {name: times[name][chosen] for name in ("momentum", "adam")}  # (few, sets)
    # Only where both rules find the planted head; who finds it is a check of its own.
    found = {name: finds(curves) for name, curves in runs.items()}
    found |= {name: found[name][chosen] for name in ("momentum", "adam")}
    last = int(runs["same"]["steps"][-1])
    loss = {name: loss_at(runs[name], last) for name in ("momentum", "adam", "same")}
    loss |= {name: loss[name][chosen] for name in ("momentum", "adam")}
    sooner = [
        Check(
            f"{kind} has less train loss after {last} steps than GD of Figure 4 (H = {', '.join(map(str, few))})",
            per_set(loss[name] < loss["same"], found[name] & found["same"]),
        )
        for name, kind in (("momentum", "momentum with the same step"), ("adam", "Adam"))
    ]
    many = {name: runs[f"many_{name}"] for name in ("momentum", "adam")}
    table = rule_table("momentum", heads, runs["momentum"], gamma) | rule_table("Adam", heads, runs["adam"], gamma)
    for name in ("same", "tenth", "tenfold"):
        table[f"control, {rules[name]}: steps to train loss {LOW:g}"] = {
            f"H = {H}": spelt(value) for H, value in zip(few, np.median(times[name], axis=1), strict=True)
        }
    return Finding.of(
        *sooner,
        *rule_checks("momentum", runs["momentum"], many["momentum"], gamma),
        *rule_checks("Adam", runs["adam"], many["adam"], gamma),
        table=table,
        remarks=[
            rule_remarks(rules["momentum"], heads, runs["momentum"], gamma),
            rule_remarks(rules["adam"], heads, runs["adam"], gamma),
            momentum_remark(rules, few, times, found),
            found_remark("momentum", heads[-1], many["momentum"]),
            found_remark("Adam", heads[-1], many["adam"]),
        ],
        brief=too_brief(runs["adam"]["steps"]),
    )


def loss_at(curves: dict[str, np.ndarray], step: int) -> np.ndarray:
    """Train loss at the last record up to a step, (heads, sets)."""
    at = int(np.flatnonzero(curves["steps"] <= step)[-1])
    return curves["loss"][:, :, at]


def per_set(seen: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """Of (heads, sets), is it seen at all numbers of heads that are judged? Sets with none that is are left out."""
    some = np.flatnonzero(judged.any(axis=0))
    return np.array([bool(seen[judged[:, one], one].all()) for one in some], dtype=bool)


def momentum_remark(rules: Any, few: np.ndarray, times: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> str:
    """What a comparison with GD can show."""
    middles = {name: ", ".join(map(spelt, np.median(times[name], axis=1))) for name in times}
    runs = found["tenfold"].size
    finding = {name: int(found[name].sum()) for name in ("same", "momentum", "tenfold")}
    return (
        f"Median steps to train loss {LOW:g} for H = {', '.join(map(str, few))}: {rules['same']} {middles['same']}; "
        f"{rules['momentum']} {middles['momentum']}; {rules['tenth']} {middles['tenth']}; {rules['tenfold']} "
        f"{middles['tenfold']}. Momentum {MOMENTUM:g} adds up to {1 / (1 - MOMENTUM):.3g} times its step, so the fair "
        "twins are momentum with a tenth of the step and GD of Figure 4, and momentum with its step and GD with ten "
        f"times that. Of {runs} runs the planted head is found by {finding['same']} (GD of Figure 4), "
        f"{finding['momentum']} (momentum) and {finding['tenfold']} (GD with ten times the step)."
    )


# Drawing ----------------------------------------------------------------------------------------------------------

CONTROLS = {"same": (ORANGE, "-"), "tenth": (GREY, "--"), "tenfold": (GREEN, ":")}


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """Ten panels for each rule that is drawn."""
    names = [name for name in DRAWN if name in facts["rules"]]
    picture, axes = new_figure(2 * len(names), 5, width=13.4, height=4.9 * len(names) + 0.5)
    for i, name in enumerate(names):
        panels = axes[2 * i : 2 * i + 2].ravel()
        draw_rule(panels, arrays["heads"], pick(arrays, name, NAMES), facts)
        if name == "scaled":
            draw_longer(panels[3], arrays, facts)
        draw_times(panels[4], arrays, facts, name)
        letter = "" if len(names) == 1 else f"{'ab'[i]}  "
        panels[0].set_title(f"{letter}{facts['rules'][name]}", fontweight="bold")
    title = f"heads H; {facts['sets']} sets (n = {facts['n']}). Lines: median over sets; bands: middle half. "
    title += f"Thin dotted: margin of the data, gamma_attn; cosine {FOUND:g}"
    picture.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(arrays["heads"]),
        handlelength=3.2,
        title=title,
    )
    return picture


def draw_rule(panels: Any, heads: np.ndarray, curves: dict[str, np.ndarray], facts: Facts) -> None:
    """Curves of one rule over steps, and how many sets find the planted head."""
    labels = {
        "loss": "train loss",
        "test_loss": "test loss",
        "test_error": "test error",
        "normalized_margin": "least margin / average |U|",
        "": "",
        "norm_U": "average |U|",
        "norm_W": "average |W|",
        "cosine_W_teacher": "cos(W, W*)",
        "cosine_U_teacher": "cos(U, U*)",
    }
    for panel, (key, label) in zip(panels, labels.items(), strict=False):
        if key:
            draw_heads(panel, heads, curves["steps"], curves[key], positive=key.startswith("norm_"))
            panel.set_ylabel(label)
    for panel in (*panels[:2], *panels[5:7]):
        plain_log(panel)
    draw_error(panels[2], facts["test sequences"])
    gamma = facts["gamma_attn"]
    panels[3].axhline(gamma, color="black", linewidth=0.9, linestyle=":")
    panels[3].set_ylim(-gamma, 1.3 * gamma)
    for panel in panels[7:9]:
        panel.set_ylim(min(-0.05, panel.get_ylim()[0]), 1.04)
    dots_by_heads(panels[9], heads, curves["cosine_W_teacher"][:, :, -1], color=BLUE)
    panels[9].axhline(FOUND, color="black", linewidth=0.9, linestyle=":")
    panels[9].set(ylim=(-1.04, 1.04), ylabel="cos(W, W*) at the end, every set")


def draw_longer(panel: Any, arrays: Arrays, facts: Facts) -> None:
    """The margin of the most heads, for longer: where does it end?"""
    longer = pick(arrays, "longer", NAMES)
    good = finds(longer)[-1]
    later = longer["steps"] >= arrays["scaled_steps"][-1]
    if good.any():
        margin = np.median(longer["normalized_margin"][-1][good], axis=0)
        panel.plot(longer["steps"][later], margin[later], color="black", linewidth=2.2)
    panel.set_xlim(1, longer["steps"][-1])
    panel.set_title(f"black: H = {arrays['most'][-1]} for longer, where it finds W*", fontsize=7.5)


def draw_times(axes: Any, arrays: Arrays, facts: Facts, name: str) -> None:
    """Steps to a low train loss by number of heads, beside those of the controls."""
    for control, (color, style) in CONTROLS.items():
        if control in facts["rules"]:
            times = capped(steps_to(pick(arrays, control, NAMES)), facts["steps"][control])
            look = {"color": color, "linestyle": style, "linewidth": 3.2, "alpha": 0.7}
            dots_by_heads(axes, arrays["few"], times, label=facts["rules"][control], **look)
    times = capped(steps_to(pick(arrays, name, NAMES)), facts["steps"][name])
    dots_by_heads(axes, arrays["heads"], times, color=BLUE, label=facts["rules"][name])
    compared = any(control in facts["rules"] for control in CONTROLS)
    loss_axis(axes, head_room=30.0 if compared else 1.0)
    axes.set_ylabel(f"steps to train loss {LOW:g}\n(never: at the last step)")
    if compared:
        axes.legend(loc="upper left", fontsize=6.5)


def capped(times: np.ndarray, last: int) -> np.ndarray:
    """Times with the last step in place of never."""
    return np.minimum(times, last)


FIGURES = [
    Figure(
        id="multihead-4",
        axes={**head_axes("longer", "many", heads="most"), **head_axes("scaled"), "few": "head=few"},
        title="A planted head, steps that grow as sqrt(H)",
        data=scaled_data,
        draw=draw,
        judge=judge_scaled,
        says="On data of one planted head, GD from zero with steps that grow as sqrt(H) is somewhat faster with more "
        "heads; all models reach the margin gamma_attn = 0.2 of the data and find the planted head (Figure 4).",
    ),
    Figure(
        id="multihead-5",
        axes={
            **head_axes("many_momentum", "many_adam", heads="most"),
            **head_axes("same", "tenth", "tenfold", heads="few"),
            **head_axes("momentum", "adam"),
        },
        title="A planted head, momentum and Adam",
        data=faster_data,
        draw=draw,
        judge=judge_faster,
        says="On data of one planted head, adding momentum significantly speeds up GD, and so does Adam; with both, "
        "more heads are faster, all models reach the margin and find the planted head (Figure 5).",
    ),
]
