"""Figure 5 of *On the Convergence of Encoder-only Shallow Transformers*: LeCun's, He's and the NTK start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attnlab.claims.scale import Scale
from attnlab.claims.stages import Stages
from attnlab.data.tokens import Array
from attnlab.figures.encoder.course import SMALLER, row, short_plan, too_brief
from attnlab.figures.encoder.runs import (
    MAIN,
    UNIT,
    WIDTH_AXES,
    Reading,
    base_facts,
    by_width,
    draw_widths,
    lost,
    middles,
    row_title,
    seeds_in_words,
    tell_overflow,
    train_widths,
)
from attnlab.figures.figure import Arrays, Check, Facts, Figure, Finding, Tell
from attnlab.figures.multihead.heads import prefixed
from attnlab.figures.rates.curves import Look, arrival, plain_log, spelt
from attnlab.figures.style import SKY, band, new_figure, styled

# Colours that no width has; both NTK runs share one.
RED = "#D55E00"
LOOKS = {
    "lecun": Look("LeCun, step 1", "black", "-"),
    "he": Look("He, step 1", SKY, "--"),
    "ntk": Look("NTK, step 1", RED, "-."),
    "ntk10": Look("NTK, step 10", RED, (0, (1, 1))),
}
CHANGES: dict[str, dict[str, Any]] = {
    "lecun": {},
    "he": {"init": "he"},
    "ntk": {"init": "ntk"},
    "ntk10": {"init": "ntk", "step": 10.0},
}
FLOORS = {"main": 1e-30, "unit": 1e-12}  # of the axes: below the first is rounding
# Speed is the first epoch with this part of the error at the start; two starts are alike within this factor of it.
LEVEL, ALIKE = 0.1, 3.0


def starts_of(reading: Reading) -> dict[str, Reading]:
    """The four starts of one reading."""
    return {
        name: replace(reading, words=f"{reading.words}; {LOOKS[name].label}", **change)
        for name, change in CHANGES.items()
    }


def trials_of(scale: Scale) -> dict[str, dict[int, int]]:
    """Seeds by width of the main reading, and of the other one."""
    return {
        "main": scale.pick({10: 2, 100: 2}, {10: 4, 100: 4, 1000: 1}, {10: 5, 100: 5, 1000: 4, 4000: 3}),
        "unit": scale.pick({10: 1, 100: 1}, {10: 3, 100: 3}, {10: 3, 100: 3, 1000: 1}),
    }


def starts_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All starts at all widths on the same sequences, for the main reading and another one."""
    plan, trials = short_plan(scale), trials_of(scale)
    readings = {"main": starts_of(MAIN), "unit": starts_of(UNIT)}
    stage = Stages(tell, len(CHANGES) * sum(len(seeds) for seeds in trials.values()))
    arrays: dict[str, np.ndarray] = {
        "widths": np.array([*trials["main"]]),
        "other_widths": np.array([*trials["unit"]]),
        "epochs": np.array(plan.record),
        "stops": np.array(plan.stops),
    }
    for kind, starts in readings.items():
        for name, reading in starts.items():
            arrays |= prefixed(f"{kind}_{name}", train_widths(reading, trials[kind], plan, stage))
    every = {f"{kind}_{name}": one for kind, starts in readings.items() for name, one in starts.items()}
    facts = base_facts(plan, trials["main"], every) | {
        "seeds by width, other reading": {f"m = {m}": count for m, count in trials["unit"].items()},
        "frozen kernel": "errors r that follow r - step factor K^0 r: what training would do if the kernel stayed",
        "how the main reading was chosen": "as for Figure 2; two readings were compared here",
    }
    return arrays, facts


def arrivals(arrays: Arrays, name: str) -> Array:
    """First epoch with LEVEL of the first error, (widths, seeds); infinite if never, NaN without the seed."""
    mse = arrays[f"{name}_mse"]
    with np.errstate(invalid="ignore"):
        share = mse / mse[..., :1]
    times = np.stack([arrival(arrays["epochs"], one, LEVEL) for one in share])
    return np.where(np.isnan(mse[..., 0]), np.nan, times)


def start_checks(arrays: Arrays, kind: str, widths: Array, facts: Facts) -> list[Check]:
    """What the paper says, run by run: the same sequences under every start."""
    times = {name: arrivals(arrays, f"{kind}_{name}") for name in CHANGES}
    there = ~np.isnan(times["lecun"])
    wide = there & (widths >= facts["n"])[:, None]
    with np.errstate(invalid="ignore"):
        ratio = times["lecun"] / times["he"]
        alike = (ratio <= ALIKE) & (ratio >= 1.0 / ALIKE)
        slower = (times["ntk"] > times["lecun"]) & (times["ntk"] > times["he"])
        gains = times["ntk10"] < times["ntk"]
        fell = {
            name: arrays[f"{kind}_{name}_mse"][..., -1] * SMALLER <= arrays[f"{kind}_{name}_mse"][..., 0]
            for name in ("lecun", "he")
        }
    level = f"{LEVEL:g} of the error"
    return [
        Check(f"LeCun and He reach {level} within a factor {ALIKE:g} of the epochs", alike[there]),
        Check(f"for m >= n both then fall {SMALLER:g}-fold", (fell["lecun"] & fell["he"])[wide]),
        Check(f"NTK reaches {level} after LeCun and He, with the same step", slower[there]),
        Check("NTK reaches it sooner with step 10 than with step 1", gains[there]),
    ]


def start_table(arrays: Arrays, kind: str, widths: Array, readings: Mapping[str, Reading], n: int) -> dict[str, Any]:
    """Medians over seeds by width."""
    table: dict[str, Any] = {}
    for name, reading in readings.items():
        curves = {key: arrays[f"{kind}_{name}_{key}"] for key in ("mse", "largest", "frozen", "away")}
        words, per_step = LOOKS[name].label, reading.step * reading.factor(n)
        stops = {"epoch 0": 0, "the end": -1}
        table[f"{words}: error at the end"] = by_width(widths, middles(curves["mse"][..., -1]))
        table[f"{words}: epochs to {LEVEL:g} of the error"] = {
            f"m = {m}": spelt(value)
            for m, value in zip(widths, middles(arrivals(arrays, f"{kind}_{name}")), strict=True)
        }
        for when, at in stops.items():
            sharpness = middles(per_step * curves["largest"][..., at])
            table[f"{words}: step times largest eigenvalue of K at {when} (stable below 2)"] = by_width(
                widths, sharpness
            )
        table[f"{words}: error at the end if the kernel stayed"] = by_width(widths, middles(curves["frozen"][..., -1]))
        table[f"{words}: kernel distance, epoch 0 to the end"] = by_width(widths, middles(curves["away"][..., -1]))
        table[f"{words}: seeds that overflow"] = by_width(widths, lost(curves["mse"]))
    return table


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """LeCun and He alike, NTK slower at the same step, and faster with step 10 than with step 1."""
    widths, others, n = arrays["widths"], arrays["other_widths"], facts["n"]
    end = {name: middles(arrays[f"main_{name}_mse"][..., -1]) for name in CHANGES}
    listed = "; ".join(f"{LOOKS[name].label} {row(end[name])}" for name in CHANGES)
    unit = start_checks(arrays, "unit", others, facts)
    seen = "; ".join(f"{check.name}: {check.measured}" for check in unit)
    return Finding.of(
        *start_checks(arrays, "main", widths, facts),
        table=start_table(arrays, "main", widths, starts_of(MAIN), n),
        remarks=[
            f"Main reading: {MAIN.words}; {seeds_in_words(facts['seeds by width'])}. Median errors at epoch "
            f"{facts['epochs']} (m = {', '.join(map(str, widths))}): {listed}.",
            exceptions(arrays, facts),
            f"Other reading compared, {UNIT.words} (m = {', '.join(map(str, others))}): {seen}.",
        ],
        numbers={UNIT.words: start_table(arrays, "unit", others, starts_of(UNIT), n)},
        brief=too_brief(facts),
    )


def exceptions(arrays: Arrays, facts: Facts) -> str:
    """Where He, alike in the beginning, ends far above LeCun: m >= n, by medians."""
    widths = arrays["widths"]
    lecun, he = (middles(arrays[f"main_{name}_mse"][..., -1]) for name in ("lecun", "he"))
    above = (widths >= facts["n"]) & (he > SMALLER * lecun)
    if not above.any():
        return ""
    factor = starts_of(MAIN)["he"].factor(facts["n"])
    sharpness = factor * middles(arrays["main_he_largest"][..., -1])
    worst = middles(arrays["main_he_mse"][..., np.flatnonzero(arrays["epochs"] >= facts["early epoch"])].max(-1))
    places = [
        f"m = {m} (its error is up to {top:.1e} after epoch {facts['early epoch']}, and step times largest eigenvalue "
        f"ends at {sharp:.2f}, where 2 is the edge of stability)"
        for m, top, sharp in zip(widths[above], worst[above], sharpness[above], strict=True)
    ]
    return f"An exception: He slows and ends far above LeCun at {', '.join(places)}."


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """A column for each start, as in the paper; then a column for each width; then the other reading, small."""
    widths, others, epochs = arrays["widths"], arrays["other_widths"], arrays["epochs"]
    picture, axes = new_figure(3, 4, width=11.0, height=8.4)
    axes[0, 0].get_gridspec().set_height_ratios((1.25, 1.25, 1.0))
    for j, name in enumerate(CHANGES):
        for i, kind, own in ((0, "main", widths), (2, "unit", others)):
            mse = arrays[f"{kind}_{name}_mse"]
            draw_widths(axes[i, j], own, epochs, mse)
            _share_log(axes[i, j], [arrays[f"{kind}_{one}_mse"] for one in CHANGES], FLOORS[kind])
            tell_overflow(axes[i, j], own, mse)
        axes[0, j].set_title(f"{'abcd'[j]}  {LOOKS[name].label}", fontweight="bold")
    for panel in axes[:, 0]:
        panel.set_ylabel("mean squared error")
    for j, panel in enumerate(axes[1]):
        if j >= len(widths):
            panel.set_visible(False)
            continue
        _draw_width(panel, arrays, j)
        panel.set_title(f"{'efgh'[j]}  Width {widths[j]}", fontweight="bold")
    row_title(axes[2], "i  Other reading: tokens of norm 1, mean of squares, fewer seeds; starts as in a to d")
    first = axes[0, 0].get_legend_handles_labels()
    sizes = f"n = {facts['n']}, T = {facts['T']}, d = {facts['d']}"
    seeds = seeds_in_words(facts["seeds by width"]).capitalize()
    title = f"a to d, i: width m; {sizes}; a to h: tokens of norm 0.17, half the sum of squares.\n"
    title += f"Line: median over seeds; band: their range. {seeds}"
    picture.legend(*first, loc="outside upper center", ncols=len(widths), handlelength=3.2, title=title)
    last = axes[1, len(widths) - 1].get_legend_handles_labels()
    title = "e to h: start. Thin lines: LeCun and NTK with step 1, if the kernel stayed as it starts"
    picture.legend(*last, loc="outside lower center", ncols=len(LOOKS), handlelength=3.2, title=title)
    return picture


def _draw_width(panel: Any, arrays: Arrays, j: int) -> None:
    """All starts at one width."""
    epochs = arrays["epochs"]
    for name, look in LOOKS.items():
        mse = arrays[f"main_{name}_mse"][j]
        runs = mse[np.isfinite(mse).all(1)]
        if len(runs):
            band(panel, epochs, runs, color=look.color, style=look.style, label=look.label, share=1.0)
        if name in ("lecun", "ntk"):
            panel.plot(epochs, middles(arrays[f"main_{name}_frozen"][j], 0), color=look.color, linewidth=0.7)
    panel.set(xlim=(0, epochs[-1]), xlabel="epoch")
    _share_log(panel, [arrays[f"main_{one}_mse"] for one in CHANGES], FLOORS["main"])


def _share_log(panel: Any, all_curves: list[Array], floor: float) -> None:
    """One log axis for all panels of a row, from a floor on."""
    values = np.concatenate([curves.ravel() for curves in all_curves])
    values = values[np.isfinite(values) & (values > 0)]
    panel.set_ylim(max(values.min() / 2, floor), values.max() * 2)
    plain_log(panel)


FIGURES = [
    Figure(
        id="encoder-5",
        axes=WIDTH_AXES,
        title="LeCun's, He's and the NTK start",
        data=starts_data,
        draw=draw,
        judge=judge,
        says="In the setting of Figure 2 with step 1, LeCun's and He's start behave alike and converge faster than the "
        "NTK start; the NTK start allows a larger step, and step 10 speeds it up (Figure 5).",
    ),
]
