"""Figure 5 of *On the Convergence of Encoder-only Shallow Transformers*: LeCun's, He's and the NTK start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.figures.encoder.runs import (
    EARLY,
    EPOCHS,
    WIDTHS,
    Plan,
    Reading,
    base_facts,
    by_width,
    draw_widths,
    lost,
    middles,
    train_widths,
)
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.multihead.heads import found, prefixed
from attnlab.figures.rates.curves import Look, arrival, plain_log, spelt
from attnlab.figures.style import GREY, SKY, band, new_figure, styled

STARTS = {
    "lecun": Reading(words="LeCun, step 1"),
    "he": Reading(words="He, step 1", init="he"),
    "ntk": Reading(words="NTK, step 1", init="ntk"),
    "ntk10": Reading(words="NTK, step 10", init="ntk", step=10.0),
}
# At the largest width He's step is beyond the stable one; with half the mean squared error it is not.
HALF = Reading(words="He, half the loss", init="he", loss="half_mean")
# Colours that no width has; both NTK runs share one.
RED = "#D55E00"
LOOKS = {
    "lecun": Look("LeCun, step 1", "black", "-"),
    "he": Look("He, step 1", SKY, "--"),
    "ntk": Look("NTK, step 1", RED, "-."),
    "ntk10": Look("NTK, step 10", RED, (0, (1, 1))),
    "half": Look("He, half the loss", GREY, (0, (4, 1, 1, 1, 1, 1))),
}
MSE_FLOOR, STEP_FLOOR = 1e-12, 1e-9  # of the axes
# Speed is the first epoch with this part of the error at the start; two starts are alike within this factor of it.
LEVEL, ALIKE = 0.1, 3.0


def starts_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All starts at all widths on the same sequences; He's also with half the loss at the largest width."""
    epochs, early = scale.pick(20, EPOCHS, EPOCHS), scale.pick(10, EARLY, EARLY)
    plan = Plan(epochs=epochs, every=10, pairs=(0, early), early=early)
    trials = scale.pick({10: 2, 100: 2}, {10: 3, 100: 3, 1000: 2}, {10: 5, 100: 5, 1000: 4, 4000: 1})
    runs: dict[str, tuple[Reading, dict[int, int]]] = {name: (one, trials) for name, one in STARTS.items()}
    if WIDTHS[-1] in trials:
        runs["half"] = (HALF, {WIDTHS[-1]: trials[WIDTHS[-1]]})
    total, done = sum(len(own) for _, own in runs.values()), 0
    arrays = {"widths": np.array([*trials]), "epochs": np.array(plan.record), "stops": np.array(plan.stops)}
    for name, (reading, own) in runs.items():

        def told(width: int, words: str = reading.words) -> None:
            nonlocal done
            tell(done, total, f"{words}, width {width}")
            done += 1

        arrays |= prefixed(name, train_widths(reading, own, plan, told))
    tell(total, total, "done")
    facts = base_facts(plan, trials, {name: one for name, (one, _) in runs.items()}) | {
        "frozen kernel": "errors r that follow r - step (2/n) K^0 r: what training would do if the kernel stayed",
    }
    return arrays, facts


def arrivals(arrays: Arrays, name: str) -> Array:
    """Median first epoch at which the error is at most LEVEL of its start, by width; infinite if never."""
    times = []
    for curves in arrays[f"{name}_mse"]:
        own = curves[~np.isnan(curves[:, 0])]
        times.append(np.median(arrival(arrays["epochs"], own / own[:, :1], LEVEL)))
    return np.array(times)


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """LeCun and He alike, NTK slower at the same step, and faster with step 10 than with step 1."""
    widths = arrays["widths"]
    end = {name: middles(arrays[f"{name}_mse"][..., -1]) for name in STARTS}
    times = {name: arrivals(arrays, name) for name in STARTS}
    sharp = {name: middles(arrays[f"{name}_largest"][..., 0]) * one.step * one.factor(facts["n"])
             for name, one in STARTS.items()}  # fmt: skip
    ratio = np.where(times["lecun"] == times["he"], 1.0, times["lecun"] / times["he"])
    slower = (end["ntk"] > end["lecun"]) & (end["ntk"] > end["he"])
    shown = {
        f"LeCun and He reach {LEVEL:g} of the error within a factor {ALIKE:g} of the epochs": bool(
            ((ratio <= ALIKE) & (ratio >= 1 / ALIKE)).all()),
        "at every width NTK ends above LeCun and He, with the same step": bool(slower.all()),
        "at every width NTK ends lower with step 10 than with step 1": bool((end["ntk10"] < end["ntk"]).all()),
    }  # fmt: skip

    def row(values: Mapping[str, Array], name: str) -> str:
        return ", ".join(f"{v:.2g}" for v in values[name])

    seen = f"Widths {', '.join(map(str, widths))}. Median mean squared errors at epoch {facts['epochs']}: "
    seen += "; ".join(f"{one.words}: {row(end, name)}" for name, one in STARTS.items())
    seen += f". Epochs to {LEVEL:g} of the start: "
    seen += "; ".join(f"{one.words}: {', '.join(map(spelt, times[name]))}" for name, one in STARTS.items())
    still = {name: middles(arrays[f"{name}_frozen"][..., -1]) for name in ("lecun", "ntk")}
    grown = {name: middles(arrays[f"{name}_largest"][..., -1] / arrays[f"{name}_largest"][..., 0]) for name in STARTS}
    seen += (
        f". If kernels stayed as they start, LeCun would end at {row(still, 'lecun')} and NTK at {row(still, 'ntk')}: "
        f"the largest eigenvalue grows {row(grown, 'lecun')}-fold (LeCun) and {row(grown, 'ntk')}-fold (NTK)."
    )
    top = {name: arrays[f"{name}_mse"][-1].max(-1) for name in STARTS}
    seen += (
        f" At m = {widths[-1]} step times largest eigenvalue starts at {sharp['he'][-1]:.2f} for He, where 2 is "
        f"stable; its error is {np.nanmedian(top['he']):.2g} at its largest."
    )
    if "half_mse" in arrays:
        seen += f" With half the loss it ends at {float(middles(arrays['half_mse'][..., -1])[0]):.2g}."
    numbers: dict[str, Any] = {
        STARTS[name].words: {
            "mean squared error at the end": by_width(widths, end[name]),
            f"epochs to {LEVEL:g} of the start": by_width(widths, times[name]),
            "the same, if the kernel stayed: at the end": by_width(widths, middles(arrays[f"{name}_frozen"][..., -1])),
            "step times largest eigenvalue of K^0 (2 is stable)": by_width(widths, sharp[name]),
            "smallest eigenvalue of K^0": by_width(widths, middles(arrays[f"{name}_least"])),
            "growth of the largest eigenvalue": by_width(widths, grown[name]),
            "kernel distance 0 to the end": by_width(widths, middles(arrays[f"{name}_away"][..., -1])),
            "relative step at epoch 0": by_width(widths, middles(arrays[f"{name}_step"][..., 0])),
            "largest error of any epoch": by_width(widths, middles(arrays[f"{name}_mse"].max(-1))),
            "seeds that overflow": by_width(widths, lost(arrays[f"{name}_mse"])),
        }
        for name in STARTS
    }
    if "half_mse" in arrays:
        numbers[HALF.words] = {"mean squared error at the end": float(middles(arrays["half_mse"][..., -1])[0]),
                               "largest error of any epoch": float(middles(arrays["half_mse"].max(-1))[0])}  # fmt: skip
    return found(seen, shown, numbers, brief=facts["epochs"] < EPOCHS)


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """A column for each start, as in the paper, with its steps below; then a column for each width."""
    widths, epochs = arrays["widths"], arrays["epochs"]
    picture, axes = new_figure(3, 4, width=11.0, height=8.4)
    for j, name in enumerate(STARTS):
        draw_widths(axes[0, j], widths, epochs, arrays[f"{name}_mse"])
        draw_widths(axes[1, j], widths, epochs, arrays[f"{name}_step"])
        axes[0, j].set_title(f"{'abcd'[j]}  {LOOKS[name].label}", fontweight="bold")
        _share_log(axes[0, j], [arrays[f"{one}_mse"] for one in STARTS], MSE_FLOOR)
        _share_log(axes[1, j], [arrays[f"{one}_step"] for one in STARTS], STEP_FLOOR)
    axes[0, 0].set_ylabel("mean squared error")
    axes[1, 0].set_ylabel("|step| / |weights at the start|")
    axes[2, 0].set_ylabel("mean squared error")
    for j, panel in enumerate(axes[2]):
        if j >= len(widths):
            panel.set_visible(False)
            continue
        for name, look in LOOKS.items():
            curves = _curves(arrays, name, j)
            if curves is None:
                continue
            band(panel, epochs, curves, color=look.color, style=look.style, label=look.label, share=1.0)
            if name in ("lecun", "ntk"):
                panel.plot(epochs, np.nanmedian(arrays[f"{name}_frozen"][j], axis=0), color=look.color, linewidth=0.7)
        panel.set_title(f"{'efgh'[j]}  Width {widths[j]}", fontweight="bold")
        panel.set(xlim=(0, epochs[-1]), xlabel="epoch")
        _share_log(panel, [arrays[f"{one}_mse"] for one in STARTS], MSE_FLOOR)
    counts = ", ".join(f"{count} ({name})" for name, count in facts["seeds by width"].items())
    first = axes[0, 0].get_legend_handles_labels()
    picture.legend(*first, loc="outside upper center", ncols=len(widths), handlelength=3.2,
                   title=f"a to d: width m; n = {facts['n']}, T = {facts['T']}, d = {facts['d']}. Line: median; band: "
                   f"range. Seeds: {counts}")  # fmt: skip
    last = axes[2, len(widths) - 1].get_legend_handles_labels()
    picture.legend(*last, loc="outside lower center", ncols=len(LOOKS), handlelength=3.2,
                   title="e on: start. Thin lines: LeCun and NTK with step 1, if the kernel stayed as it starts"
                   )  # fmt: skip
    return picture


def _curves(arrays: Arrays, name: str, j: int) -> Array | None:
    """The errors of a start at one width; None if there are none."""
    if name != "half":
        values = arrays[f"{name}_mse"][j]
    elif "half_mse" in arrays and arrays["widths"][j] == WIDTHS[-1]:
        values = arrays["half_mse"][0]
    else:
        return None
    return np.where(np.isfinite(values), values, np.nan)[~np.isnan(values[:, 0])]


def _share_log(panel: Any, all_curves: list[Array], floor: float) -> None:
    """One log axis for all panels of a row, from a floor on."""
    values = np.concatenate([curves.ravel() for curves in all_curves])
    values = values[np.isfinite(values) & (values > 0)]
    panel.set_ylim(max(values.min() / 2, floor), values.max() * 2)
    plain_log(panel)


FIGURES = [
    Figure(
        id="encoder-5", title="LeCun's, He's and the NTK start", data=starts_data, draw=draw, judge=judge,
        says="In the setting of Figure 2 with step 1, LeCun's and He's start behave alike and converge faster than the "
        "NTK start; the NTK start allows a larger step, and step 10 speeds it up (Figure 5).",
    ),
]  # fmt: skip
