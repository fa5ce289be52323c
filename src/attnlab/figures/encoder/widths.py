"""Figure 2 of *On the Convergence of Encoder-only Shallow Transformers*: training at several widths."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.scale import Scale
from attnlab.claims.stages import Stages
from attnlab.data.tokens import Array
from attnlab.figures.encoder.course import (
    SMALLER,
    Course,
    long_plan,
    other_reading,
    row,
    short_plan,
    too_brief,
    width_checks,
    width_table,
)
from attnlab.figures.encoder.runs import (
    LOOKS,
    MAIN,
    OWN,
    SEED,
    UNIT,
    WIDTH_AXES,
    Reading,
    base_facts,
    draw_widths,
    log_axis,
    middles,
    row_title,
    rule,
    seeds_in_words,
    tell_overflow,
    train_widths,
)
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.multihead.heads import pick, prefixed
from attnlab.figures.rates.curves import number, plain_log
from attnlab.figures.style import new_figure, styled

# What else the text allows, each trained in full.
OTHERS = {
    "unit": UNIT,
    "frobenius": Reading(words="tokens of norm 0.32 (|X|_F = 1), half the sum", norm=10**-0.5, loss="half_sum"),
    "parameterized": Reading(
        words="tokens N(0, 1), half the sum, NTK parameterization", norm=None, loss="half_sum", parameterization="ntk"
    ),
}
READINGS = {"main": MAIN, **OTHERS}
# Token norms for the paper's loss as it is written; None is N(0, 1) as drawn, of norm about 10.
NORMS: tuple[float | None, ...] = (0.05, 0.1, 0.17, 10**-0.5, 0.56, 1.0, None)
# Errors by token norm are those at this epoch.
SCANNED = 200
NAMES = ("mse", "step", "concentration", "frozen", "least", "away", "largest", "apart", "first", "late")
DRAWN = {
    "mse": "mean squared error",
    "step": "|step| / |weights at the start|",
    "away": "kernel distance, K⁰ to Kᵗ",
    "apart": "kernel distance, Kᵗ to Kᵗ⁺¹",
}
FLOORS = {"mse": 1e-30, "step": 1e-15, "apart": 1e-16}  # of the axes: below them is rounding


def trials_of(scale: Scale) -> dict[str, dict[int, int]]:
    """Seeds by width: of the main reading, of the others, and of the scan of token norms."""
    return {
        "main": scale.pick({10: 2, 100: 2}, {10: 4, 100: 4, 1000: 2}, {10: 5, 100: 5, 1000: 5, 4000: 3}),
        "others": scale.pick({10: 2, 100: 2}, {10: 3, 100: 3}, {10: 3, 100: 3, 1000: 2}),
        "scan": scale.pick({10: 1, 100: 1}, {10: 2, 100: 2}, {10: 3, 100: 3, 1000: 2, 4000: 1}),
    }


def widths_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The main reading with all kernels, the others with few, and errors by token norm."""
    plan, few, trials = long_plan(scale), short_plan(scale), trials_of(scale)
    stage = Stages(tell, len(trials["main"]) + len(OTHERS) * len(trials["others"]) + len(trials["scan"]))
    arrays: dict[str, np.ndarray] = {
        "widths": np.array([*trials["main"]]),
        "other_widths": np.array([*trials["others"]]),
        "scan_widths": np.array([*trials["scan"]]),
        "epochs": np.array(plan.record),
        "stops": np.array(plan.stops),
        "pairs": np.array(plan.pairs),
    }
    arrays |= prefixed("main", train_widths(MAIN, trials["main"], plan, stage))
    for name, reading in OTHERS.items():
        arrays |= prefixed(name, train_widths(reading, trials["others"], few, stage))
    epoch = min(SCANNED, plan.epochs)
    arrays["scan_left"] = scan_norms(trials["scan"], epoch, stage)
    facts = base_facts(plan, trials["main"], READINGS) | {
        "seeds by width, other readings": {f"m = {m}": count for m, count in trials["others"].items()},
        "seeds by width, scan of token norms": {f"m = {m}": count for m, count in trials["scan"].items()},
        "token norms of the scan": [spelt_norm(norm) for norm in NORMS],
        "scan epoch": epoch,
        "how the main reading was chosen": f"{len(READINGS)} readings were trained in full and {len(NORMS)} token "
        "norms scanned; of those that show what the paper says, the one with the paper's own loss is shown large, at "
        "a token norm inside the range that works",
    }
    return arrays, facts


def spelt_norm(norm: float | None) -> str:
    """A token norm in words."""
    return "N(0, 1)" if norm is None else f"{norm:.2g}"


def scan_norms(trials: Mapping[int, int], epoch: int, stage: Stages) -> np.ndarray:
    """Error at an epoch over that at the start, half the sum of squares: (norms, widths, seeds), infinite if lost."""
    left = np.full((len(NORMS), len(trials), max(trials.values())), np.nan)
    for j, (width, count) in enumerate(trials.items()):
        left[:, j, :count] = stage(f"token norms, width {width}", partial(_left, width, count, epoch))["left"]
    return left


def _left(width: int, count: int, epoch: int) -> dict[str, np.ndarray]:
    """Of one width, (norms, seeds).

    A run counts as lost if it overflows, or if it ends dead: with all outputs 0, where no gradient is left.
    """
    from attnlab.train import descend

    left = np.zeros((len(NORMS), count))
    for i, norm in enumerate(NORMS):
        reading = Reading(words="", norm=norm, loss="half_sum")
        run = descend(
            reading.data(count),
            rule(reading.step),
            model=reading.model(width),
            loss="half_sum",
            steps=epoch,
            record=[0, epoch],
            metrics=OWN,
            seed=SEED,
        )
        loss = run.metrics["loss"]
        ratio = loss[:, -1] / loss[:, 0] if run.steps[-1] == epoch else np.full(count, np.inf)
        dead = run.metrics["relative_step"][:, -1] == 0.0
        left[i] = np.where(dead | ~np.isfinite(ratio), np.inf, ratio)
    return {"left": left}


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """The main reading shows what the paper says; the others beside it."""
    curves = pick(arrays, "main", NAMES)
    course = Course.of(curves, arrays, facts)
    sentences, numbers = [], {}
    for name, reading in OTHERS.items():
        own = pick(arrays, name, NAMES)
        sentence, shown = other_reading(
            reading.words, Course.of(own, arrays, facts, arrays["other_widths"]), own, facts
        )
        sentences.append(sentence)
        numbers[reading.words] = shown
    scan = scanned(arrays, facts)
    numbers["error left by token norm, half the sum: median by width"] = scan["table"]
    remarks = [
        f"Main reading: {MAIN.words}, mean pooling; {seeds_in_words(facts['seeds by width'])}. Medians by width:",
        f"errors {row(middles(course.early))} at epoch {facts['early epoch']} and {row(middles(course.end))} at the "
        f"end; the kernel moves {row(middles(course.first))} up to epoch {facts['early epoch']} and "
        f"{row(middles(course.late))} after.",
        order_by_way(course),
        f"Other readings compared: {len(OTHERS)}. " + " ".join(sentences),
        scan["sentence"],
    ]
    return Finding.of(
        *width_checks(course, facts),
        table=width_table(course, curves, facts),
        remarks=remarks,
        numbers=numbers,
        brief=too_brief(facts),
    )


def order_by_way(course: Course) -> str:
    """Whether the wider network is also the steadier one by its distance from K^0."""
    way = middles(course.whole)
    ordered = bool((np.diff(way) < 0).all())
    said = "also falls with the width" if ordered else "does not fall with the width"
    return f"The distance of the kernel from K^0 {said}: {row(way)}."


def scanned(arrays: Arrays, facts: Facts) -> dict[str, Any]:
    """For which token norms all runs of m >= n converge, in words and as a table of medians."""
    left, widths = arrays["scan_left"], arrays["scan_widths"]
    wide = widths >= facts["n"]
    missing = np.isnan(left)
    converged = (left * SMALLER <= 1.0) | missing
    works = [spelt_norm(norm) for norm, one in zip(NORMS, converged[:, wide], strict=True) if one.all()]
    never = (left * SMALLER > 1.0) | missing
    fails = [spelt_norm(norm) for norm, one in zip(NORMS, never[:, wide], strict=True) if one.all()]
    table = {
        spelt_norm(norm): {
            f"m = {m}": number(v) if np.isfinite(v) else "lost" for m, v in zip(widths, one, strict=True)
        }
        for norm, one in zip(NORMS, middles(left, 2), strict=True)
    }
    sentence = (
        f"Of {len(NORMS)} token norms with half the sum of squares, every run of m >= n falls {SMALLER:g}-fold by "
        f"epoch {facts['scan epoch']} at {', '.join(works) or 'none'}, and no run does at {', '.join(fails) or 'none'}."
    )
    return {"sentence": sentence, "table": table}


def draw_row(panels: Any, curves: Mapping[str, Array], arrays: Arrays, facts: Facts) -> None:
    """Error, steps, way of the kernel from its start, and from epoch to epoch."""
    places = {"mse": arrays["epochs"], "step": arrays["epochs"], "away": arrays["stops"], "apart": arrays["pairs"]}
    for panel, (name, label) in zip(panels, DRAWN.items(), strict=True):
        draw_widths(panel, arrays["widths"], places[name], curves[name], positive=name != "away")
        panel.set(ylabel=label, xlim=(0, facts["epochs"]))
        if name in FLOORS:
            log_axis(panel, FLOORS[name])
        panel.axvline(facts["early epoch"], color="black", linewidth=0.8, linestyle=":")
    panels[2].set_ylim(0, None)
    tell_overflow(panels[0], arrays["widths"], curves["mse"])


def draw_small(panel: Any, widths: Array, mse: Array, arrays: Arrays, facts: Facts, title: str) -> None:
    """The error of another reading."""
    draw_widths(panel, widths, arrays["epochs"], mse)
    panel.set(xlim=(0, facts["epochs"]), ylabel=DRAWN["mse"])
    log_axis(panel, FLOORS["mse"])
    panel.set_title(title)
    tell_overflow(panel, widths, mse)


def width_legend(picture: Any, axes: Any, facts: Facts, more: str = "") -> None:
    """Widths, and how lines and bands are to be read."""
    sizes = f"n = {facts['n']}, T = {facts['T']}, d = {facts['d']}"
    title = f"width m; {sizes}. Line: median over seeds; band: their range. "
    title += f"{seeds_in_words(facts['seeds by width']).capitalize()}.\nDotted: epoch {facts['early epoch']}.{more}"
    picture.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(LOOKS), handlelength=3.2, title=title
    )


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """The main reading large; below it the others, and errors by token norm."""
    picture, axes = new_figure(2, 4, width=11.0, height=6.2)
    axes[0, 0].get_gridspec().set_height_ratios((1.3, 1.0))
    draw_row(axes[0], pick(arrays, "main", NAMES), arrays, facts)
    row_title(axes[0], "a  Tokens of norm 0.17, half the sum of squares, step 1, τ₀ = $m^{-1/2}$")
    titles = {
        "unit": "b  Norm 1, mean of squares",
        "frobenius": "c  Norm 0.32, half the sum",
        "parameterized": "d  N(0, 1), NTK parameters",
    }
    for panel, (name, title) in zip(axes[1], titles.items(), strict=False):
        draw_small(panel, arrays["other_widths"], arrays[f"{name}_mse"], arrays, facts, title)
    draw_scan(axes[1, 3], arrays, facts)
    width_legend(picture, axes[0, 0], facts, " b to e: other readings, fewer seeds; crosses: overflow or dead.")
    return picture


def draw_scan(panel: Any, arrays: Arrays, facts: Facts) -> None:
    """Error left by token norm: medians as lines, every run as a dot, lost runs as crosses at the top."""
    norms = np.array([10.0 if norm is None else norm for norm in NORMS])
    top = 1e3
    for m, left in zip(arrays["scan_widths"], np.moveaxis(arrays["scan_left"], 1, 0), strict=True):
        look = LOOKS[int(m)]
        middle = middles(left, 1)
        shown = np.isfinite(middle)
        panel.plot(norms[shown], np.maximum(middle[shown], FLOORS["mse"]), color=look.color, linestyle=look.style)
        there = np.isfinite(left)
        x = np.broadcast_to(norms[:, None], left.shape)
        panel.scatter(x[there], np.maximum(left[there], FLOORS["mse"]), s=8, color=look.color, zorder=3)
        gone = np.isinf(left)
        # Crosses of different widths stand side by side.
        shift = 1.0 + 0.14 * (list(arrays["scan_widths"]).index(m) - 1.5)
        panel.scatter(shift * x[gone], np.full(gone.sum(), top), s=16, marker="x", color=look.color, zorder=3)
    panel.set_xscale("log")
    panel.set_ylim(FLOORS["mse"], 20 * top)
    plain_log(panel)
    panel.set_xticks([0.05, 0.17, 1.0, 10.0], labels=["0.05", "0.17", "1", "N(0, 1)"])
    panel.minorticks_off()
    panel.set_xlim(0.035, 25.0)
    panel.set(xlabel="norm of a token", ylabel=f"error at epoch {facts['scan epoch']} / at 0")
    panel.set_title("e  Half the sum, by token norm")


FIGURES = [
    Figure(
        id="encoder-2",
        axes=WIDTH_AXES,
        title="Training at several widths, τ₀ = m^(-1/2)",
        data=widths_data,
        draw=draw,
        judge=judge,
        says="On Gaussian sequences with Gaussian labels, GD with step 1 from LeCun's start converges linearly except "
        "where the width (10) is below the number of sequences; after epoch 50 the weights move very little while the "
        "loss still falls; the tangent kernel changes early and is nearly constant later, the steadier the wider the "
        "network is (Figure 2).",
    ),
]
