"""Figures 2 and 9 of *On the Convergence of Encoder-only Shallow Transformers*: training at several widths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.figures.encoder.runs import (
    EARLY,
    EPOCHS,
    LOOKS,
    LOST,
    OWN,
    SEED,
    D,
    Plan,
    Reading,
    base_facts,
    by_width,
    draw_middles,
    draw_widths,
    kernels,
    log_axis,
    lost,
    middles,
    row_title,
    rule,
    spread,
    straight,
    train_widths,
)
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.multihead.heads import found, pick, prefixed, rises
from attnlab.figures.rates.curves import for_good, number, spelt
from attnlab.figures.style import new_figure, styled

ADOPTED = Reading(words="tokens of norm 1, mean squared error")
SCALED = Reading(words="tokens N(0, 1), NTK parameterization, half the sum of squares", rows="raw", loss="half_sum",
                 parameterization="ntk")  # fmt: skip
LITERAL = Reading(words="tokens N(0, 1), half the sum of squares", rows="raw", loss="half_sum")
READINGS = {"adopted": ADOPTED, "scaled": SCALED}
# Tokens of norm sqrt(d) with a step 1 / d learn as fast, to first order, as tokens of norm 1 with step 1.
CONTROLS = {
    "raw_sqrt": Reading(words="tokens N(0, 1), step 1/d, tau0 = m^(-1/2)", rows="raw", step=1.0 / D),
    "raw_linear": Reading(words="tokens N(0, 1), step 1/d, tau0 = 1/m", rows="raw", step=1.0 / D, scaling="linear"),
}
LITERAL_STEPS = 12
DRAWN = ("mse", "step", "away", "apart")
FLOORS = {"mse": 1e-16}  # of the axes; other axes end at 1e-12
NAMES = ("mse", "step", "concentration", "frozen", "least", "away", "largest", "apart", "late")
# Linear convergence: so many times smaller at the end, and log loss a straight line in the last three quarters.
SMALLER, STRAIGHT = 1e4, 0.98
GAP = 100.0  # between the narrowest network and the next
SLOW = 0.1  # a step is small at this part of the largest
# Two scalings look alike within this factor of the loss at the end, and this difference of kernel distances.
ALIKE, ALIKE_KERNEL = 10**0.5, 0.05


def planned_runs(scale: Scale) -> tuple[Plan, dict[int, int]]:
    """How long, and how many trials for each width."""
    if scale is Scale.SMOKE:
        return Plan(epochs=24, every=4, pairs=(0, 12, 23), early=12), {10: 2, 100: 2}
    pairs = (0, 2, 5, 10, 20, 35, EARLY, 75, 100, 150, 250, EPOCHS - 1)
    plan = Plan(epochs=EPOCHS, every=10, pairs=pairs, early=EARLY)
    return plan, scale.pick({}, {10: 3, 100: 3, 1000: 2}, {10: 5, 100: 5, 1000: 4, 4000: 2})


def widths_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Both readings at all widths, and a few steps of the literal one."""
    plan, trials = planned_runs(scale)
    total, done = 3 * len(trials), 0
    arrays: dict[str, np.ndarray] = {
        "widths": np.array([*trials]), "epochs": np.array(plan.record), "stops": np.array(plan.stops),
        "pairs": np.array(plan.pairs),
    }  # fmt: skip

    def told(width: int) -> None:
        nonlocal done
        tell(done, total, f"width {width}")
        done += 1

    for name, reading in READINGS.items():
        arrays |= prefixed(name, train_widths(reading, trials, plan, told))
    arrays |= prefixed("literal", literal_runs(trials, told))
    tell(total, total, "done")
    facts = base_facts(plan, trials, READINGS | {"literal": LITERAL}) | {"literal epochs": LITERAL_STEPS}
    return arrays, facts


def literal_runs(trials: Mapping[int, int], tell: Any) -> dict[str, np.ndarray]:
    """A few steps of the paper's words as they stand: loss (widths, trials, steps), largest eigenvalue of K^0."""
    from attnlab.train import descend

    most = max(trials.values())
    loss = np.full((len(trials), most, LITERAL_STEPS + 1), np.nan)
    largest = np.full((len(trials), most), np.nan)
    for i, (width, count) in enumerate(trials.items()):
        tell(width)
        data, network = LITERAL.data(count), LITERAL.model(width)
        run = descend(data, rule(LITERAL.step), model=network, loss=LITERAL.loss, steps=LITERAL_STEPS,
                      record=range(LITERAL_STEPS + 1), metrics=OWN, seed=SEED)  # fmt: skip
        loss[i, :count] = np.inf
        loss[i, :count, : len(run.steps)] = np.nan_to_num(run.metrics["loss"], nan=np.inf, posinf=np.inf)
        largest[i, :count] = np.linalg.eigvalsh(kernels(data, network, run.initial))[:, -1]
    return {"loss": loss, "largest": largest}


def scaling_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """tau0 = 1/m and tau0 = m^(-1/2) on the same draws; then both on tokens N(0, 1), with kernels at fewer epochs."""
    plan, trials = planned_runs(scale)
    few = Plan(epochs=plan.epochs, every=plan.every, pairs=(0, plan.early), early=plan.early)
    linear = Reading(words="tokens of norm 1, tau0 = 1/m", scaling="linear")
    runs = {"linear": (linear, plan), "sqrt": (ADOPTED, plan)} | {name: (one, few) for name, one in CONTROLS.items()}
    narrow = {m: count for m, count in trials.items() if m <= 1000}
    total, done = sum(len(narrow if name in CONTROLS else trials) for name in runs), 0
    arrays: dict[str, np.ndarray] = {
        "widths": np.array([*trials]), "narrow": np.array([*narrow]), "epochs": np.array(plan.record),
        "stops": np.array(plan.stops), "pairs": np.array(plan.pairs),
    }  # fmt: skip
    spreads = {}
    for name, (reading, own) in runs.items():

        def told(width: int, words: str = reading.words) -> None:
            nonlocal done
            tell(done, total, f"{words}, width {width}")
            done += 1

        own_trials = narrow if name in CONTROLS else trials
        arrays |= prefixed(name, train_widths(reading, own_trials, own, told))
        spreads[name] = {f"m = {m}": spread(reading.model(m), reading.data(1)) for m in own_trials}
    tell(total, total, "done")
    facts = base_facts(plan, trials, {name: reading for name, (reading, _) in runs.items()}) | {
        "deviation of the logits at the start": spreads,
        "same draws": "data and start of a seed are the same under both scalings, so losses are compared in pairs",
        "control": "tokens N(0, 1) with step 1/d: the product of step and largest eigenvalue is that of tokens of "
        "norm 1 with step 1, attention is not",
    }  # fmt: skip
    return arrays, facts


def shows(curves: Mapping[str, np.ndarray], arrays: Arrays, facts: Facts) -> tuple[dict[str, bool], dict[str, Any]]:
    """What the paper says of Figures 2 and 9, one by one, for the runs of one reading; and the numbers it rests on."""
    widths, epochs, early = arrays["widths"], arrays["epochs"], facts["early epoch"]
    wide = widths >= facts["n"]
    mse, step = curves["mse"], curves["step"]
    end, start = middles(mse[..., -1]), middles(mse[..., 0])
    late = epochs >= epochs[-1] / 4
    factor, fit = straight(epochs[late].astype(float), mse[..., late])
    factor, fit = middles(factor), middles(fit)
    at = int(np.flatnonzero(epochs == early)[0])
    largest = np.where(np.isfinite(step), step, -np.inf).max(-1, where=~np.isnan(step), initial=-np.inf)
    share = middles(step[..., at] / np.where(np.isfinite(largest), largest, np.nan))
    slow = np.array([np.median(for_good(epochs, own[~np.isnan(own[:, 0])] <= SLOW * top[~np.isnan(own[:, 0])][:, None]))
                     for own, top in zip(step, largest, strict=True)])  # fmt: skip
    away, moved = middles(curves["away"]), middles(curves["late"])
    first = away[:, np.flatnonzero(arrays["stops"] == early)[0]]
    jump = middles(curves["apart"].max(-1))
    fell = np.nan_to_num(mse[..., -1] / mse[..., 0], nan=0.0, posinf=np.inf)  # NaN: no such seed
    shown = {
        f"for m >= n the loss falls {SMALLER:g}-fold in every run": bool((fell[wide] * SMALLER <= 1.0).all()),
        "for m >= n its logarithm ends as a straight line": bool((fit[wide] >= STRAIGHT).all()),
        f"the narrowest network ends {GAP:g} times above the next": bool(end[0] >= GAP * end[1]),
        f"for m >= n steps at epoch {early} are at most {SLOW:g} of the largest": bool((share[wide] <= SLOW).all()),
        f"for m >= n the kernel moves less after epoch {early} than before": bool((moved < first)[wide].all()),
        "the wider, the steadier the kernel (by its largest change in an epoch, or by its whole way)":
            rises(-jump) or rises(-away[:, -1]),
    }  # fmt: skip
    numbers = {
        "mean squared error at the start": by_width(widths, start),
        **{f"mean squared error at epoch {int(epochs[i])}": by_width(widths, middles(mse[..., i]))
           for i in (at, int(np.flatnonzero(late)[0]))},
        "mean squared error at the end": by_width(widths, end),
        "least and largest at the end": {f"m = {m}": [number(v) for v in (np.nanmin(own), np.nanmax(own))]
                                         for m, own in zip(widths, mse[..., -1], strict=True)},
        "seeds that overflow": by_width(widths, lost(mse)),
        "largest error of any epoch": by_width(widths, middles(mse.max(-1))),
        "factor per epoch, last three quarters": by_width(widths, factor), "R^2 of the line": by_width(widths, fit),
        f"relative step at epochs 0, {early} and the end": {
            f"m = {m}": [number(v) for v in middles(own, 0)[[0, at, -1]]]
            for m, own in zip(widths, step, strict=True)},
        f"step at epoch {early} over the largest": by_width(widths, share),
        f"steps stay below {SLOW:g} of the largest from epoch": by_width(widths, slow),
        f"kernel distance 0 to {early}": by_width(widths, first),
        f"kernel distance {early} to the end": by_width(widths, moved),
        "kernel distance 0 to the end": by_width(widths, away[:, -1]),
        "largest kernel distance of neighbouring epochs": by_width(widths, jump),
        "largest eigenvalue of K^0": by_width(widths, middles(curves["largest"][..., 0])),
        "largest eigenvalue of K at the end": by_width(widths, middles(curves["largest"][..., -1])),
    }  # fmt: skip
    return shown, numbers


def _brief(facts: Facts) -> bool:
    return facts["epochs"] < EPOCHS


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _told(numbers: Mapping[str, Any], facts: Facts) -> str:
    """The numbers of one reading as a sentence or two."""
    early = facts["early epoch"]

    def row(name: str) -> str:
        return ", ".join("overflow" if v is None else f"{v:.2g}" for v in numbers[name].values())

    slow = numbers[f"steps stay below {SLOW:g} of the largest from epoch"].values()
    return (
        f"median mean squared errors end at {row('mean squared error at the end')}; steps stay below "
        f"a tenth of the largest from epoch {', '.join(spelt(np.inf if v is None else v) for v in slow)}; kernel "
        f"distances are {row(f'kernel distance 0 to {early}')} from epoch 0 to {early} and "
        f"{row(f'kernel distance {early} to the end')} from there to the end"
    )


def judge_widths(arrays: Arrays, facts: Facts) -> Finding:
    """Holds if one reading shows all that the paper says."""
    widths = ", ".join(str(m) for m in arrays["widths"])
    seen, numbers, whole = f"Widths {widths}.", {}, []
    for name in READINGS:
        good, measured = shows(pick(arrays, name, NAMES), arrays, facts)
        numbers[facts["readings"][name]["words"]] = {**measured, "shown": good}
        missed = [key for key, value in good.items() if not value]
        whole.append(not missed)
        overflow = int(lost(arrays[f"{name}_mse"]).sum())
        seen += f" {_capital(facts['readings'][name]['words'])}: {_told(measured, facts)}"
        seen += f"; runs that overflow: {overflow}" if overflow else ""
        seen += f"; not seen: {'; '.join(missed)}." if missed else "; all that the paper says is seen."
    passed = np.where((arrays["literal_loss"] > LOST).any(-1), (arrays["literal_loss"] > LOST).argmax(-1), np.nan)
    there = ~np.isnan(arrays["literal_loss"][..., 0])
    diverged, eigenvalues = int(np.isfinite(passed[there]).sum()), middles(arrays["literal_largest"])
    latest = f"by step {int(np.nanmax(passed))}" if diverged else "never"
    seen += (
        f" Taken literally ({facts['readings']['literal']['words']}, step {LITERAL.step:g}) the largest eigenvalue of "
        f"K^0 is {', '.join(f'{v:.4g}' for v in eigenvalues)}, where 2 is stable, and the loss passes {LOST:g} in "
        f"{diverged} of {int(there.sum())} runs, {latest}."
    )
    numbers["literal"] = {
        "largest eigenvalue of K^0": by_width(arrays["widths"], eigenvalues),
        f"step at which the loss passes {LOST:g}": by_width(arrays["widths"], middles(passed)) if diverged else None,
        "runs that diverge": diverged,
    }
    return found(seen, {"one reading shows all that the paper says": any(whole)}, numbers, brief=_brief(facts))


def judge_scaling(arrays: Arrays, facts: Facts) -> Finding:
    """Holds if tau0 = 1/m looks as tau0 = m^(-1/2) does, and shows what the paper says of both."""
    widths, narrow = arrays["widths"], arrays["narrow"]
    good, numbers = shows(pick(arrays, "linear", NAMES), arrays, facts)

    def ratio(a: str, b: str) -> Array:
        return middles(np.log10(arrays[f"{a}_mse"][..., -1] / arrays[f"{b}_mse"][..., -1]))

    def ways(name: str) -> Array:
        return middles(arrays[f"{name}_away"][..., -1])

    apart, control = ratio("linear", "sqrt"), ratio("raw_linear", "raw_sqrt")
    gap = np.abs(ways("linear") - ways("sqrt"))
    later = arrays["pairs"] > facts["early epoch"]
    jumps = middles(np.median((arrays["linear_apart"] / arrays["sqrt_apart"])[..., later], axis=-1))
    shown = {
        f"losses at the end within a factor {ALIKE:.2g} of those with tau0 = m^(-1/2)": bool(
            (np.abs(apart) <= np.log10(ALIKE)).all()),
        f"kernel distances within {ALIKE_KERNEL:g}": bool((gap <= ALIKE_KERNEL).all()),
        **good,
    }  # fmt: skip
    deviation = facts["deviation of the logits at the start"]
    focus = {name: middles(arrays[f"{name}_concentration"])[:, [0, -1]] for name in ("linear", *CONTROLS)}
    last = f"m = {narrow[-1]}"
    seen = (
        f"tau0 = 1/m, widths {', '.join(map(str, widths))}: {_told(numbers, facts)}. In pairs, losses at the end are "
        f"{', '.join(f'{10**v:.2g}' for v in apart)} times those with tau0 = m^(-1/2), kernel distances differ by at "
        f"most {gap.max():.2g}, and from one epoch to the next (after epoch {facts['early epoch']}) they are "
        f"{', '.join(f'{v:.2g}' for v in jumps)} times as large. At {last} logits start with deviation "
        f"{deviation['linear'][last]:.1e} (1/m) and {deviation['sqrt'][last]:.1e} (m^(-1/2)), so attention is nearly "
        f"uniform under both (T mean |beta|^2 ends at {focus['linear'][:, 1].max():.4f} at most under 1/m, where 1 is "
        f"uniform). Control, tokens N(0, 1) with step 1/d: "
        f"logits of deviation {deviation['raw_linear'][last]:.1e} and {deviation['raw_sqrt'][last]:.1e} at {last}, "
        f"losses at the end {', '.join(f'{10**v:.2g}' for v in control)} times those with tau0 = m^(-1/2) "
        f"(widths {', '.join(map(str, narrow))})."
    )
    numbers = {
        "tau0 = 1/m": numbers,
        "loss at the end, 1/m over m^(-1/2)": by_width(widths, 10**apart),
        "kernel distance of neighbouring epochs, 1/m over m^(-1/2)": by_width(widths, jumps),
        "kernel distance 0 to the end, m^(-1/2)": by_width(widths, ways("sqrt")),
        "control: loss at the end, 1/m over m^(-1/2)": by_width(narrow, 10**control),
        **{f"{CONTROLS[name].words}: {label}": by_width(narrow, values) for name in CONTROLS for label, values in {
            "loss at the end": middles(arrays[f"{name}_mse"][..., -1]),
            "T mean |beta|^2 at the start": focus[name][:, 0], "T mean |beta|^2 at the end": focus[name][:, 1],
            "kernel distance 0 to the end": ways(name),
        }.items()},
    }  # fmt: skip
    return found(seen, shown, numbers, brief=_brief(facts))


def _draw_row(panels: Any, curves: Mapping[str, np.ndarray], arrays: Arrays, facts: Facts) -> None:
    """Loss, steps, way of the kernel from its start, and from epoch to epoch."""
    widths, stops = arrays["widths"], arrays["stops"]
    for panel, x, name, label in zip(
        panels,
        (arrays["epochs"], arrays["epochs"], stops, arrays["pairs"]),
        DRAWN,
        ("mean squared error", "|step| / |weights at the start|", "kernel distance, K⁰ to Kᵗ",
         "kernel distance, Kᵗ to Kᵗ⁺¹"),
        strict=True,
    ):  # fmt: skip
        draw_widths(panel, widths, x, curves[name], positive=name != "away")
        panel.set(ylabel=label, xlim=(0, facts["epochs"]))
        if name != "away":
            log_axis(panel, FLOORS.get(name, 1e-12))
        panel.axvline(facts["early epoch"], color="black", linewidth=0.8, linestyle=":")
    panels[2].set_ylim(0, None)


def _seeds(facts: Facts) -> str:
    """How many seeds each width has, in words."""
    counts = facts["seeds by width"]
    if len(set(counts.values())) == 1:
        return f"{next(iter(counts.values()))} seeds"
    return f"seeds: {', '.join(f'{count} ({name})' for name, count in counts.items())}"


def _legend(picture: Any, axes: Any, facts: Facts, more: str = "") -> None:
    picture.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(LOOKS), handlelength=3.2,
                   title=f"width m; n = {facts['n']}, T = {facts['T']}, d = {facts['d']}. Line: median; band: range. "
                   f"{_seeds(facts).capitalize()}. Dotted: epoch {facts['early epoch']}.{more}")  # fmt: skip


@styled
def draw_both(arrays: Arrays, facts: Facts) -> Any:
    """One row for each reading."""
    picture, axes = new_figure(2, 4, width=11.0, height=5.8)
    gone: list[str] = []
    for i, name in enumerate(READINGS):
        curves = pick(arrays, name, NAMES)
        _draw_row(axes[i], curves, arrays, facts)
        row_title(axes[i], f"{'ab'[i]}  {_capital(facts['readings'][name]['words'])}")
        gone += [f"{count} of {facts['seeds by width'][f'm = {m}']} at m = {m} in {'ab'[i]}"
                 for m, count in zip(arrays["widths"], lost(curves["mse"]), strict=True) if count]  # fmt: skip
    left = f"\nSeeds that overflow are left out: {', '.join(gone)}." if gone else ""
    _legend(picture, axes[0, 0], facts, left)
    return picture


@styled
def draw_scaling(arrays: Arrays, facts: Facts) -> Any:
    """tau0 = 1/m with tau0 = m^(-1/2) over it; below, the control."""
    picture, axes = new_figure(2, 4, width=11.0, height=5.8)
    epochs, narrow = arrays["epochs"], arrays["narrow"]
    _draw_row(axes[0], pick(arrays, "linear", NAMES), arrays, facts)
    for panel, x, name in zip(axes[0], (epochs, epochs, arrays["stops"], arrays["pairs"]), DRAWN, strict=True):
        draw_middles(panel, arrays["widths"], x, arrays[f"sqrt_{name}"], black=True)
        if name != "away":
            panel.autoscale(axis="y")  # room for both
            log_axis(panel, FLOORS.get(name, 1e-12))
    row_title(axes[0], "a  Tokens of norm 1, step 1: τ₀ = 1/m; dashed black: median with τ₀ = $m^{-1/2}$")
    row_title(axes[1], "b  Control, tokens N(0, 1), step 1/d: τ₀ = 1/m; thin: median with τ₀ = $m^{-1/2}$")
    rows = {
        "mse": "mean squared error", "step": "|step| / |weights at the start|",
        "concentration": "T mean |β|², less 1 (0: uniform)",
    }  # fmt: skip
    for panel, (name, label) in zip(axes[1], rows.items(), strict=False):
        less = 1.0 if name == "concentration" else 0.0
        draw_widths(panel, narrow, epochs, arrays[f"raw_linear_{name}"] - less)
        draw_middles(panel, narrow, epochs, arrays[f"raw_sqrt_{name}"] - less)
        panel.set_ylabel(label)
        log_axis(panel, FLOORS.get(name, 1e-12))
    draw_widths(axes[1, 3], narrow, epochs, arrays["raw_linear_mse"] / arrays["raw_sqrt_mse"])
    axes[1, 3].axhline(1.0, color="black", linewidth=0.8)
    axes[1, 3].set_ylabel("error with τ₀ = 1/m over error\nwith τ₀ = $m^{-1/2}$, in pairs")
    _legend(picture, axes[0, 0], facts)
    return picture


FIGURES = [
    Figure(
        id="encoder-2", title="Training at several widths, τ₀ = m^(-1/2)", data=widths_data, draw=draw_both,
        judge=judge_widths,
        says="On Gaussian sequences with Gaussian labels, GD with step 1 from LeCun's start converges linearly except "
        "where the width (10) is below the number of sequences; after epoch 50 the weights move very little while the "
        "loss still falls; the tangent kernel changes early and is nearly constant later, the steadier the wider the "
        "network is (Figure 2).",
    ),
    Figure(
        id="encoder-9", title="Training at several widths, τ₀ = 1/m", data=scaling_data, draw=draw_scaling,
        judge=judge_scaling,
        says="With tau0 = 1/m in place of m^(-1/2) the results are those of Figure 2: linear convergence, weights that "
        "hardly move after epoch 50, a kernel that settles and is the steadier the wider the network is (Figure 9).",
    ),
]  # fmt: skip
