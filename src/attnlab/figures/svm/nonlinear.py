"""Figures 8 and 11 of *Transformers as Support Vector Machines*: several tokens kept under a nonlinear head."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.claims.claim import Verdict
from attnlab.claims.scale import Scale
from attnlab.figures.figure import Arrays, Check, Facts, Figure, Finding, Tell
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure, styled
from attnlab.figures.svm.attempts import followed, found
from attnlab.figures.svm.kept import (
    BETWEEN,
    INFEASIBLE,
    NOTHING_MASKED,
    RETAINED,
    UNFINISHED,
    draw_mean,
    known,
    mean_and_error,
    rank_correlation,
)

# Prediction, colour, line, name.
LINES = (
    ("single", GREY, ":", r"$W^{1token}$"),
    ("margin", ORANGE, "--", r"$W^{mm}$"),
    ("mixture", BLUE, "-", r"$W^{SVMeq}$"),
)
PLAIN = {"mixture": "W^SVMeq", "margin": "W^mm", "single": "W^1token"}
LOOKS = {4: (BLUE, "-", "o"), 6: (ORANGE, "--", "s"), 8: (GREEN, "-.", "^"), 10: (PURPLE, ":", "D")}
# "Correlation above 0.99" of the paper.
NEAR = 0.01
ROUNDING = 1e-12
# "Once masked weights are below 1e-9", and the limits that are listed.
SETTLED = 1e-9
SHOWN = (1e-6, 1e-9, 1e-12, 1e-15)
LIMITS = 10.0 ** np.arange(-16.0, -5.0)


def eight_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Retained runs of normalized GD."""
    return found(scale, tell)


def eleven_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The same runs, and gradient flow on the first attempts."""
    arrays, facts = found(scale, tell)
    more, about = followed(scale, tell)
    return {**arrays, **more}, {**facts, **about}


@styled
def draw_eight(arrays: Arrays, facts: Facts) -> Any:
    """Upper: 1 - corr along training. Lower: 1 - corr at the end against the largest masked weight."""
    dims = arrays["dims"]
    figure, axes = new_figure(2, len(dims), width=max(2.45 * len(dims), 3.6), height=4.6)
    later = arrays["steps"] > 0
    lowest = _decade_below([arrays[f"{name}_d{d}"][:, later] for d in dims for name, *_ in LINES])
    for column, d in enumerate(dims):
        upper, lower = axes[:, column]
        count = len(arrays[f"mixture_d{d}"])
        for name, color, style, label in LINES:
            if count:
                draw_mean(upper, arrays["steps"][later], arrays[f"{name}_d{d}"][:, later], color=color, style=style,
                          label=label)  # fmt: skip
        upper.set(title=f"d = {d}: {count} of {len(arrays[f'reasons_d{d}'])} retained", xlabel="iteration",
                  yscale="log", ylim=(lowest, 1.0))  # fmt: skip
        least = 10.0 ** np.floor(np.log10(min(arrays[f"mixture_d{e}"][:, -1].min(initial=1e-3) for e in dims)))
        one = (arrays[f"kept_d{d}"] == 1).all(-1)
        for where, marker, color, label in ((one, "x", GREY, "one token each"), (~one, "o", BLUE, "several tokens")):
            lower.scatter(arrays[f"masked_d{d}"][where], arrays[f"mixture_d{d}"][where, -1], s=9, marker=marker,
                          color=color, alpha=0.6, linewidth=0.7, label=label)  # fmt: skip
        lower.set(xscale="log", yscale="log", xlabel="largest masked weight", ylim=(least, 1.0), xlim=(1e-18, 1e-5))
        lower.set_xticks([1e-16, 1e-12, 1e-8])
    axes[0, 0].set_ylabel("1 - corr(W(k), ·), mean ± 2 s.e.")
    axes[1, 0].set_ylabel(r"1 - corr(W, $W^{SVMeq}$) at the end")
    for row in axes:
        handles, labels = row[0].get_legend_handles_labels()
        row[-1].legend(handles, labels, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _decade_below(curves: list[np.ndarray]) -> float:
    """The power of ten below every band that `draw_mean` draws."""
    lows = []
    for values in curves:
        if len(values):
            mean, error = mean_and_error(values)
            lows.append(np.nanmin(np.fmax(mean - 2.0 * error, 0.05 * mean)))
    return float(10.0 ** np.floor(np.log10(min(lows, default=1e-3))))


def judge_eight(arrays: Arrays, facts: Facts) -> Finding:
    """The order of the three predictions at each d, run by run, and the mean alignment at the largest d."""
    checks, table, numbers = [], {}, {}
    for d in arrays["dims"]:
        ends = {name: arrays[f"{name}_d{d}"][:, -1] for name, *_ in LINES}
        if not len(ends["mixture"]):
            continue
        no_farther = ends["mixture"] <= ends["margin"] + ROUNDING
        leads = ends["single"] - ends["margin"]
        checks.append(Check(f"W^SVMeq is no farther than W^mm in any run at d = {d}", no_farther, at_least=1.0))
        checks.append(Check(f"W^mm is nearer than W^1token at d = {d}", leads[np.isfinite(leads)], at_least=0.0))
        table[f"d = {d}"] = {
            f"1 - corr with {label}, mean ± 2 s.e.": _mean_and_interval(ends[name]) for name, label in PLAIN.items()
        }
        numbers[f"d = {d}"] = _about_eight(arrays, d, ends)
    if not table:
        return Finding(seen="No attempt was retained.", verdict=Verdict.NOT_APPLICABLE, numbers={})
    largest = max(arrays["dims"])
    ends = arrays[f"mixture_d{largest}"][:, -1]
    checks.append(
        Check(f"mean 1 - corr with W^SVMeq is at most {NEAR} at the largest d, {largest}", ends, at_most=NEAR)
    )
    remarks = ["W^SVMeq is fitted and may be W^mm alone: that it is no farther checks the fit, not the theory."]
    return Finding.of(*checks, table=table, remarks=remarks, numbers=numbers)


def _mean_and_interval(values: np.ndarray) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:.3g} ± {2.0 * error:.2g}"


def _about_eight(arrays: Arrays, d: int, ends: dict[str, np.ndarray]) -> dict[str, Any]:
    """Numbers for one d."""
    masked, several = arrays[f"masked_d{d}"], arrays[f"kept_d{d}"] > 1
    trend = rank_correlation(masked, ends["mixture"])
    return {
        "retained": len(masked),
        **{f"corr {name}, mean": known(1.0 - mean_and_error(values)[0]) for name, values in ends.items()},
        **{f"corr {name}, standard error": known(mean_and_error(values)[1]) for name, values in ends.items()},
        **{f"corr {name}, median": known(1.0 - np.nanmedian(values)) for name, values in ends.items()},
        "largest masked weight, median": float(np.median(masked)),
        "rank correlation of masked weight and 1 - corr": known(trend),
        "sequences with several tokens": int(several.sum()),
        "of those with label -1": int((several & (arrays[f"labels_d{d}"] < 0)).sum()),
        "sequences with every ReLU off": int(arrays[f"dead_d{d}"].sum()),
        **_by_dead(ends["mixture"], arrays[f"dead_d{d}"]),
        "no W^1token": int(np.isnan(ends["single"]).sum()),
        "|W| at the end, median": float(np.median(arrays[f"norm_d{d}"])),
        "duality gap, largest": float(arrays[f"gap_d{d}"].max()),
        "residual of W^fin, largest": float(arrays[f"residual_d{d}"].max()),
    }  # fmt: skip


def _by_dead(apart: np.ndarray, dead: np.ndarray) -> dict[str, Any]:
    """Runs with a sequence that exerts no force, and the others."""
    some = dead.any(-1)
    told = {"with": apart[some], "without": apart[~some]}
    return {
        f"corr mixture, mean, runs {name} a sequence with every ReLU off": f"{1 - values.mean():.4f} ({len(values)})"
        for name, values in told.items() if len(values)
    }  # fmt: skip


@styled
def draw_eleven(arrays: Arrays, facts: Facts) -> Any:
    """Normalized GD above, gradient flow and the account of the filter below."""
    figure, axes = new_figure(2, 2, width=7.6, height=5.8)
    (along, limited), (flows, filtered) = axes
    later = arrays["steps"] > 0
    for d in arrays["dims"]:
        color, style, marker = LOOKS[int(d)]
        mixture, masked = arrays[f"mixture_d{d}"], arrays[f"masked_d{d}"]
        if len(mixture):
            draw_mean(along, arrays["steps"][later], mixture[:, later], color=color, style=style, label=f"d = {d}")
            limits, values = _below_limits(mixture[:, -1], masked)
            if not limits.size:
                continue
            draw_mean(limited, limits, values, color=color, style=style, marker=marker, label=f"d = {d}")
    for d in arrays["flow_dims"]:
        color, style, _ = LOOKS[int(d)]
        values = arrays[f"flow_mixture_d{d}"]
        if len(values):
            draw_mean(flows, arrays["times"][1:], values[:, 1:], color=color, style=style,
                      label=f"d = {d} ({len(values)} runs)")  # fmt: skip
    _draw_filter(filtered, arrays)
    for panel in (along, limited, flows):
        panel.axhline(NEAR, color=GREY, linewidth=1, linestyle=(0, (1, 1)))
        panel.set(yscale="log", ylabel=r"1 - corr with $W^{SVMeq}$, mean ± 2 s.e.")
        if panel.get_legend_handles_labels()[0]:
            panel.legend(loc="best")
    along.set(title="a  Normalized GD, retained runs", xlabel="iteration")
    limited.set(title="b  Those with masked weights below Γ", xlabel="Γ", xscale="log")
    flows.set(title="c  Gradient flow, kink rounded", xlabel="time t", xscale="log")
    return figure


def _below_limits(apart: np.ndarray, masked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each limit the runs (rows) below it, the others NaN; limits with fewer than 3 runs are left out."""
    values = np.where(masked[:, None] < LIMITS, apart[:, None], np.nan)
    enough = np.isfinite(values).sum(0) >= 3
    return LIMITS[enough], values[:, enough]


def _draw_filter(axes: Any, arrays: Arrays) -> None:
    """What became of the attempts, for each d, by normalized GD (left bar) and by the flow (right bar)."""
    kinds: tuple[tuple[tuple[int, ...], str, str, str], ...] = (
        ((RETAINED,), BLUE, "", "retained"),
        ((BETWEEN,), ORANGE, "//", "a weight in between"),
        ((NOTHING_MASKED,), "white", "", "nothing masked"),
        ((INFEASIBLE, UNFINISHED), GREY, "xx", "no solution, or flow not finished"),
    )
    bars = [(place - 0.19, arrays[f"reasons_d{d}"]) for place, d in enumerate(arrays["dims"])]
    bars += [(place + 0.19, arrays[f"flow_reasons_d{d}"]) for place, d in enumerate(arrays["dims"])
             if d in arrays["flow_dims"]]  # fmt: skip
    x, base = np.array([place for place, _ in bars]), np.zeros(len(bars))
    for reasons, color, hatch, label in kinds:
        share = np.array([np.isin(given, reasons).mean() for _, given in bars])
        axes.bar(x, 100 * share, 0.34, bottom=100 * base, facecolor=color, hatch=hatch, label=label, edgecolor="black",
                 linewidth=0.5)  # fmt: skip
        base += share
    axes.set_xticks(range(len(arrays["dims"])), [f"d = {d}" for d in arrays["dims"]])
    axes.set(title="d  The filter: GD (left bars), flow (right)", ylabel="% of attempts", ylim=(0, 100))
    axes.grid(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)


def judge_eleven(arrays: Arrays, facts: Facts) -> Finding:
    """Is the mean correlation above 0.99 at d >= 8, and at every d once masked weights are below 1e-9?"""
    checks, table = [], {}
    for d in arrays["dims"]:
        end, masked = arrays[f"mixture_d{d}"][:, -1], arrays[f"masked_d{d}"]
        if d >= 8 and len(end):
            checks.append(Check(f"mean 1 - corr is at most {NEAR} at d = {d}, all retained runs", end, at_most=NEAR))
        settled = end[masked < SETTLED]
        if len(settled):
            checks.append(Check(f"mean 1 - corr is at most {NEAR} at d = {d}, Γ = 1e-9", settled, at_most=NEAR))
        table[f"d = {d}"] = {f"1 - corr (runs), Γ = {limit:g}": _with_count(end[masked < limit]) for limit in SHOWN}
    flows = np.concatenate([arrays[f"flow_mixture_d{d}"][:, -1] for d in arrays["flow_dims"]])
    dead = np.concatenate([arrays[f"flow_dead_d{d}"] for d in arrays["flow_dims"]])
    tried = sum(len(arrays[f"flow_reasons_d{d}"]) for d in arrays["flow_dims"])
    retained = [arrays[f"reasons_d{d}"] == RETAINED for d in arrays["dims"]]
    numbers = {
        "retained by normalized GD, %": [100 * float(share.mean()) for share in retained],
        "retained by gradient flow": f"{len(flows)} of {tried}",
        "corr by gradient flow, mean": known(1.0 - mean_and_error(flows)[0]),
        "corr by gradient flow, least": known(1.0 - flows.max(initial=-np.inf)),
        **{f"gradient flow: {name}": seen for name, seen in _by_dead(flows, dead).items()},
    }
    if not checks:
        return Finding(seen="No run was settled.", verdict=Verdict.NOT_APPLICABLE, numbers=numbers)
    remarks = []
    if len(flows):
        dropped = 100 * (1 - np.mean(np.concatenate(retained)))
        remarks.append(
            f"Gradient flow settles {len(flows)} of {tried} attempts, with mean corr {1 - flows.mean():.4f}; "
            f"normalized GD chatters at kinks, and the filter drops {dropped:.0f} % of its attempts."
        )
    return Finding.of(*checks, table=table, remarks=remarks, numbers=numbers)


def _with_count(values: np.ndarray) -> str:
    return f"{_mean_and_interval(values)} ({len(values)})" if len(values) else "none"


EIGHT_AXES = {
    "steps": "step",
    "dims": "d=dims",
    **{f"{name}_d*": "trial step" for name in ("margin", "mixture", "single")},
    **{f"{name}_d*": "trial" for name in ("masked", "norm", "gap", "residual", "reasons")},
    **{f"{name}_d*": "trial sequence" for name in ("kept", "labels", "dead")},
}
FLOW_AXES = {
    "flow_dims": "d=flow_dims",
    **{f"flow_{name}_d*": "trial time" for name in ("margin", "mixture")},
    **{f"flow_{name}_d*": "trial" for name in ("masked", "reasons")},
    **{f"flow_{name}_d*": "trial sequence" for name in ("kept", "dead")},
}

FIGURES = [
    Figure(
        id="svm-8",
        axes=EIGHT_AXES,
        title="Several tokens under a nonlinear head",
        says="With an MLP head and some labels -1, normalized GD keeps several tokens of some inputs. Its direction is "
        "best described by W^SVMeq = W^fin + gamma W^mm, then by W^mm, then by the one-token SVM; the correlation "
        "with W^SVMeq exceeds 0.99 for large d, and is better the smaller the masked weights are.",
        data=eight_data,
        draw=draw_eight,
        judge=judge_eight,
    ),
    Figure(
        id="svm-11",
        axes={**EIGHT_AXES, **FLOW_AXES},
        title="How settled a run must be",
        says="The correlation with W^SVMeq exceeds 0.99 for d >= 8, or once every masked weight is below 1e-9.",
        data=eleven_data,
        draw=draw_eleven,
        judge=judge_eleven,
    ),
]
