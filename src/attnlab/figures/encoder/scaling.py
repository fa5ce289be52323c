"""Figure 9 of *On the Convergence of Encoder-only Shallow Transformers*: training at several widths, tau0 = 1/m."""

from __future__ import annotations

from dataclasses import replace
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
    MAIN,
    UNIT,
    WIDTH_AXES,
    D,
    Plan,
    Reading,
    base_facts,
    by_width,
    draw_middles,
    draw_widths,
    log_axis,
    middles,
    row_title,
    seeds_in_words,
    spread,
    tell_overflow,
    train_widths,
)
from attnlab.figures.encoder.widths import DRAWN, FLOORS, NAMES, draw_row, draw_small, width_legend
from attnlab.figures.figure import Arrays, Check, Facts, Figure, Finding, Tell
from attnlab.figures.multihead.heads import pick, prefixed
from attnlab.figures.rates.curves import arrival, spelt
from attnlab.figures.style import new_figure, styled

# Logits of the main reading are tiny under both scalings. Tokens N(0, 1) have logits of order 1 under m^(-1/2), and
# learn with step 1/d, to first order, as fast as tokens of norm 1 with step 1.
CONTROL = Reading(words="tokens N(0, 1), mean of squares, step 1/d", norm=None, step=1.0 / D)
PAIRS = {"main": MAIN, "unit": UNIT, "control": CONTROL}
# Two scalings are alike if errors reach 1 / SMALLER within this factor of the epochs, and kernels move as far within
# this.
ALIKE, ALIKE_KERNEL = 1.25, 0.05


def trials_of(scale: Scale) -> dict[str, dict[int, int]]:
    """Seeds by width of the main reading, and of the two others."""
    others = scale.pick({10: 2, 100: 2}, {10: 3, 100: 3}, {10: 3, 100: 3, 1000: 1})
    return {
        "main": scale.pick({10: 2, 100: 2}, {10: 4, 100: 4, 1000: 2}, {10: 5, 100: 5, 1000: 3, 4000: 3}),
        "unit": others,
        "control": others,
    }


def planned_runs(scale: Scale) -> dict[str, tuple[Reading, Plan, dict[int, int]]]:
    """Every reading under both scalings: name -> reading, plan, seeds by width."""
    runs = {}
    for name, reading in PAIRS.items():
        for scaling in ("linear", "sqrt"):
            plan = long_plan(scale) if name == "main" else short_plan(scale)
            runs[f"{name}_{scaling}"] = (replace(reading, scaling=scaling), plan, trials_of(scale)[name])
    return runs


def scaling_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """tau0 = 1/m and tau0 = m^(-1/2) from the same draws, for the main reading and two others."""
    runs, plan, trials = planned_runs(scale), long_plan(scale), trials_of(scale)
    stage = Stages(tell, sum(len(seeds) for _, _, seeds in runs.values()))
    arrays: dict[str, np.ndarray] = {
        "widths": np.array([*trials["main"]]),
        "other_widths": np.array([*trials["unit"]]),
        "epochs": np.array(plan.record),
        "stops": np.array(plan.stops),
        "pairs": np.array(plan.pairs),
    }
    deviations = {}
    for name, (reading, own_plan, seeds) in runs.items():
        arrays |= prefixed(name, train_widths(reading, seeds, own_plan, stage))
        deviations[name] = {f"m = {m}": spread(reading.model(m), reading.data(1)) for m in seeds}
    facts = base_facts(plan, trials["main"], {name: reading for name, (reading, _, _) in runs.items()}) | {
        "seeds by width, other readings": {f"m = {m}": count for m, count in trials["unit"].items()},
        "deviation of the logits at the start": deviations,
        "same draws": "data and start of a seed are the same under both scalings, so runs are compared in pairs",
        "how the main reading was chosen": "as for Figure 2, under the other scaling",
    }
    return arrays, facts


def epochs_to(arrays: Arrays, name: str) -> Array:
    """First epoch with 1 / SMALLER of the first error, (widths, seeds); infinite if never, NaN without the seed."""
    mse = arrays[f"{name}_mse"]
    with np.errstate(invalid="ignore"):
        share = mse / mse[..., :1]
    times = np.stack([arrival(arrays["epochs"], one, 1.0 / SMALLER) for one in share])
    return np.where(np.isnan(mse[..., 0]), np.nan, times)


def alike_checks(arrays: Arrays, course: Course) -> list[Check]:
    """tau0 = 1/m beside tau0 = m^(-1/2), run by run, for m >= n."""
    linear, sqrt = epochs_to(arrays, "main_linear"), epochs_to(arrays, "main_sqrt")
    with np.errstate(invalid="ignore"):
        same_speed = np.maximum(linear, sqrt) <= ALIKE * np.minimum(linear, sqrt)
        gap = np.abs(arrays["main_linear_away"][..., -1] - arrays["main_sqrt_away"][..., -1])
        same_way = gap <= ALIKE_KERNEL
    finite = np.isfinite(linear) & np.isfinite(sqrt)
    return [
        Check(
            f"for m >= n both scalings reach {1 / SMALLER:g} of the error within a factor {ALIKE:g} of the epochs",
            course.of_wide(same_speed & finite),
        ),
        Check(f"for m >= n their kernels move as far, within {ALIKE_KERNEL:g}", course.of_wide(same_way)),
    ]


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """tau0 = 1/m looks as tau0 = m^(-1/2) does, and shows what the paper says of both."""
    curves = pick(arrays, "main_linear", NAMES)
    course = Course.of(curves, arrays, facts)
    unit = pick(arrays, "unit_linear", NAMES)
    other, shown = other_reading(UNIT.words, Course.of(unit, arrays, facts, arrays["other_widths"]), unit, facts)
    times = {scaling: middles(epochs_to(arrays, f"main_{scaling}")) for scaling in ("linear", "sqrt")}
    table = width_table(course, curves, facts)
    for scaling, words in (("linear", "1/m"), ("sqrt", "m^(-1/2)")):
        table[f"epochs to {1 / SMALLER:g} of the error, {words}"] = by_width(arrays["widths"], times[scaling])
    remarks = [
        f"Main reading: {MAIN.words}; {seeds_in_words(facts['seeds by width'])}. Median epochs to {1 / SMALLER:g} of "
        f"the error: {spelt_row(times['linear'])} with 1/m, {spelt_row(times['sqrt'])} with m^(-1/2).",
        why_alike(arrays, facts),
        f"Other readings compared: 2. {other}",
        control_remark(arrays, facts),
    ]
    return Finding.of(
        *width_checks(course, facts),
        *alike_checks(arrays, course),
        table=table,
        remarks=remarks,
        numbers={UNIT.words: shown, "control": control_numbers(arrays)},
        brief=too_brief(facts),
    )


def spelt_row(epochs: Array) -> str:
    """Epochs by width in words."""
    return ", ".join(spelt(value) for value in epochs)


def why_alike(arrays: Arrays, facts: Facts) -> str:
    """Attention is nearly uniform in the main reading, whatever the scaling."""
    widest = f"m = {arrays['widths'][-1]}"
    deviation = facts["deviation of the logits at the start"]
    ends = [float(middles(arrays[f"main_{scaling}_concentration"][..., -1]).max()) for scaling in ("linear", "sqrt")]
    return (
        f"At {widest} logits start with deviation {deviation['main_linear'][widest]:.1e} (1/m) and "
        f"{deviation['main_sqrt'][widest]:.1e} (m^(-1/2)), so attention is nearly uniform under both: T times the mean "
        f"of |beta|^2 is 1 if uniform, and its median ends at {ends[0]:.3g} and {ends[1]:.3g} at most."
    )


def control_ratio(arrays: Arrays) -> Array:
    """Median over seeds, in pairs, of the error at the end with 1/m over that with m^(-1/2), by width."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return middles(arrays["control_linear_mse"][..., -1] / arrays["control_sqrt_mse"][..., -1])


def control_remark(arrays: Arrays, facts: Facts) -> str:
    """With tokens that let attention choose, the scalings differ."""
    widths = arrays["other_widths"]
    widest = f"m = {widths[-1]}"
    deviation = facts["deviation of the logits at the start"]
    return (
        f"Control, {CONTROL.words}: logits start with deviation {deviation['control_linear'][widest]:.1e} and "
        f"{deviation['control_sqrt'][widest]:.1e} at {widest}; the median error at the end with 1/m is "
        f"{row(control_ratio(arrays))} times that with m^(-1/2) (m = {', '.join(map(str, widths))})."
    )


def control_numbers(arrays: Arrays) -> dict[str, Any]:
    """Errors and attention of the control, medians by width."""
    widths = arrays["other_widths"]
    numbers = {"error at the end, 1/m over m^(-1/2)": by_width(widths, control_ratio(arrays))}
    for scaling, words in (("linear", "1/m"), ("sqrt", "m^(-1/2)")):
        focus = middles(arrays[f"control_{scaling}_concentration"])
        numbers |= {
            f"error at the end, {words}": by_width(widths, middles(arrays[f"control_{scaling}_mse"][..., -1])),
            f"T mean |beta|^2 at the start, {words}": by_width(widths, focus[:, 0]),
            f"T mean |beta|^2 at the end, {words}": by_width(widths, focus[:, -1]),
        }
    return numbers


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """tau0 = 1/m with tau0 = m^(-1/2) over it; below, another reading and the control."""
    picture, axes = new_figure(2, 4, width=11.0, height=6.2)
    axes[0, 0].get_gridspec().set_height_ratios((1.3, 1.0))
    draw_row(axes[0], pick(arrays, "main_linear", NAMES), arrays, facts)
    places = (arrays["epochs"], arrays["epochs"], arrays["stops"], arrays["pairs"])
    for panel, x, name in zip(axes[0], places, DRAWN, strict=True):
        draw_middles(panel, arrays["widths"], x, arrays[f"main_sqrt_{name}"], black=True)
        if name in FLOORS:
            panel.autoscale(axis="y")  # room for both
            log_axis(panel, FLOORS[name])
    row_title(axes[0], "a  Tokens of norm 0.17, half the sum of squares, step 1, τ₀ = 1/m")
    epochs, others = arrays["epochs"], arrays["other_widths"]
    draw_small(axes[1, 0], others, arrays["unit_linear_mse"], arrays, facts, "b  Norm 1, mean of squares")
    draw_middles(axes[1, 0], others, epochs, arrays["unit_sqrt_mse"], black=True)
    draw_small(axes[1, 1], others, arrays["control_linear_mse"], arrays, facts, "c  N(0, 1), step 1/d")
    draw_middles(axes[1, 1], others, epochs, arrays["control_sqrt_mse"], black=True)
    draw_attention(axes[1, 2], arrays, facts)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = arrays["control_linear_mse"] / arrays["control_sqrt_mse"]
    draw_widths(axes[1, 3], others, epochs, ratio)
    axes[1, 3].set_ylim(0, None)
    axes[1, 3].axhline(1.0, color="black", linewidth=0.8)
    axes[1, 3].set(ylabel="error, 1/m over $m^{-1/2}$", xlim=(0, facts["epochs"]))
    axes[1, 3].set_title("e  As c: ratio in pairs")
    tell_overflow(axes[1, 3], others, arrays["control_sqrt_mse"])
    width_legend(picture, axes[0, 0], facts, " Dashed black: median with τ₀ = $m^{-1/2}$, same draws.")
    return picture


def draw_attention(panel: Any, arrays: Arrays, facts: Facts) -> None:
    """How far the attention of the control is from uniform."""
    others, epochs = arrays["other_widths"], arrays["epochs"]
    draw_widths(panel, others, epochs, arrays["control_linear_concentration"] - 1.0)
    draw_middles(panel, others, epochs, arrays["control_sqrt_concentration"] - 1.0, black=True)
    log_axis(panel, 1e-8)
    panel.set(ylabel="T mean |β|² − 1 (0: uniform)", xlim=(0, facts["epochs"]))
    panel.set_title("d  As c: attention")


FIGURES = [
    Figure(
        id="encoder-9",
        axes=WIDTH_AXES,
        title="Training at several widths, τ₀ = 1/m",
        data=scaling_data,
        draw=draw,
        judge=judge,
        says="With tau0 = 1/m in place of m^(-1/2) the results are those of Figure 2: linear convergence, weights that "
        "hardly move after epoch 50, a kernel that settles and is the steadier the wider the network is (Figure 9).",
    ),
]
