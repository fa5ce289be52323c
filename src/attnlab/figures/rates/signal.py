"""Figures 2 and 5 of *Implicit Bias and Fast Convergence Rates for Self-attention*: one signal token among noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.claim import Verdict
from attnlab.claims.scale import Scale
from attnlab.claims.stages import Stages
from attnlab.data import Tokens, antipodal_signal, optimal_tokens, orthogonal_signal, scores
from attnlab.data.tokens import Array
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.rates.curves import (
    LN10,
    NEAR,
    NEARER,
    Look,
    arrival,
    draw_rules,
    for_good,
    middle,
    number,
    plain_log,
    run_rules,
    slope,
    spelt,
)
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure, styled
from attnlab.svm import solve_margins

SEED = 2
STEPS = 3000
GD_STEP, STEP, CAP, MOMENTUM = 0.25, 0.025, 100.0, 0.9
# Momentum 0.9 adds up to ten times the step; the control takes that step without momentum.
BOOST = 10.0
LOOKS = {
    "gd": Look("GD", GREY, (0, (1, 1))),
    "ngd": Look("NGD", BLUE, "-"),
    "momentum": Look("NGD with momentum 0.9", ORANGE, "--"),
    "control": Look("NGD, tenfold step (control)", PURPLE, (0, (6, 1.5, 1, 1.5, 1, 1.5))),
    "polyak": Look("Polyak step", GREEN, "-."),
}
# With caps as in the paper, and without.
COLUMNS = ("capped", "free")
KEPT = ("loss", "log_excess_loss", "norm", "attention", "log_off_attention", "misalignment_svm", "log_gradient_norm")
# The loss counts as arrived within this fraction of its floor; slopes as linear within this of 1.
LOSS_NEAR, LINEAR = 0.01, 0.1
SATURATED = 0.95
EARLY = 100  # slopes are fitted from this step on


def _rules(column: str, polyak_cap: float) -> dict[str, Any]:
    """The rules of a column; plain GD has no cap and stands in the first only."""
    from attnlab.optim import gd, ngd, ngd_momentum, polyak

    capped = column == "capped"
    cap = CAP if capped else np.inf
    rules = {
        "ngd": ngd(STEP, cap=cap),
        "momentum": ngd_momentum(STEP, momentum=MOMENTUM, cap=cap),
        "control": ngd(BOOST * STEP, cap=BOOST * cap),
        "polyak": polyak(cap=polyak_cap if capped else np.inf),
    }
    return {"gd": gd(GD_STEP), **rules} if capped else rules


def _start(tokens: Tokens, margins: Any) -> tuple[Array, Array]:
    """Gaussian W of deviation step / (8 |W_mm| B^2 d), trial i from its own stream; and these deviations."""
    length = np.linalg.norm(margins.W, axis=(-2, -1))
    largest = np.linalg.norm(tokens.x, axis=-1).max((-2, -1))
    deviation = STEP / (8 * length * largest**2 * tokens.d)
    white = np.stack([np.random.default_rng([SEED, i, 1]).standard_normal((tokens.d,) * 2) for i in range(len(length))])
    return deviation[:, None, None] * white, deviation


def signal_settings(scale: Scale) -> dict[str, Any]:
    return {"n": 20, "T": 6, "d": 100, "trials": scale.pick(3, 8, 20)}


def signal_data(
    scale: Scale, tell: Tell, *, family: Callable[..., Tokens], polyak_cap: float, **settings: Any
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Every rule on the same sets from the same starts, with the caps of the paper and without."""
    given, record = {**signal_settings(scale), **settings}, scale.pick(20, 60, 60)
    tokens = family(seed=SEED, **given)
    best = optimal_tokens(tokens)
    margins = solve_margins(tokens, best)
    start, deviation = _start(tokens, margins)
    rules = {
        f"{column}_{name}": (f"{LOOKS[name].label}, {'with' if column == 'capped' else 'without'} caps", rule)
        for column in COLUMNS
        for name, rule in _rules(column, polyak_cap).items()
    }
    options = {"steps": STEPS, "init": start, "record": record, "targets": {"svm": margins.W}}
    arrays = run_rules(tokens, rules, KEPT, Stages(tell, len(rules)), **options)
    arrays["floor"] = np.exp(-scores(tokens).max(-1)).mean(-1)
    lengths = np.linalg.norm(margins.W, axis=(-2, -1))
    facts = {
        "n": tokens.n, "T": tokens.T, "d": tokens.d, "sets": given["trials"], "steps": STEPS, "seed": SEED,
        "loss": "exponential, head fixed", "GD step": GD_STEP, "NGD step": STEP, "NGD cap": CAP,
        "momentum": MOMENTUM, "Polyak cap": polyak_cap, "control": f"NGD with step {BOOST * STEP}, cap {BOOST * CAP}",
        "start": "Gaussian entries of deviation step / (8 |W_mm| B^2 d)",
        "deviation of the start, least and largest": [number(deviation.min()), number(deviation.max())],
        "|W_mm|, least and largest": [number(lengths.min()), number(lengths.max())],
        "largest duality gap of W_mm": float(margins.gap.max()),
        "sets that cannot be separated": int((~margins.feasible).sum()),
        "the paper does not say": "number of steps, sets, and how momentum is formed",
    }  # fmt: skip
    return arrays, facts


def _pick(arrays: Arrays, column: str, name: str, key: str) -> np.ndarray:
    """A curve; plain GD is the same in both columns."""
    return arrays[f"{'capped' if name == 'gd' else column}_{name}_{key}"]


def _names(column: str) -> list[str]:
    """The rules that were run in a column."""
    return [name for name in LOOKS if column == "capped" or name != "gd"]


def _times(arrays: Arrays, column: str, name: str, cosine: float) -> Array:
    return arrival(arrays["steps"], _pick(arrays, column, name, "misalignment_svm"), 1 - cosine)


def _cap_binds(arrays: Arrays, name: str, facts: Facts) -> np.ndarray:
    """Where the cap of the paper decides the step, (trials, records)."""
    length = arrays[f"capped_{name}_log_gradient_norm"]
    if name == "polyak":
        raw = np.log(0.5) + arrays["capped_polyak_log_excess_loss"] - 2 * length
        return raw >= np.log(facts["Polyak cap"])
    return np.log(facts["NGD step"]) - length >= np.log(facts["NGD cap"])


def _ahead_when_ngd_arrives(arrays: Arrays) -> dict[str, bool]:
    """Is the capped Polyak step ahead of NGD, in the median of each metric, when half the NGD runs are at 0.9?"""
    at = int(np.searchsorted(arrays["steps"], middle(_times(arrays, "capped", "ngd", NEAR))))
    at = min(at, len(arrays["steps"]) - 1)
    sign = {"log_excess_loss": -1, "norm": 1, "attention": 1, "misalignment_svm": -1}
    return {
        key: bool(
            np.median(s * arrays[f"capped_polyak_{key}"][:, at]) > np.median(s * arrays[f"capped_ngd_{key}"][:, at])
        )
        for key, s in sign.items()
    }


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """Order of the rules by the steps they take to align; limits; rates of normalized GD."""
    steps, sets = arrays["steps"], facts["sets"]
    times = {
        (c, name, cos): _times(arrays, c, name, cos) for c in COLUMNS for name in _names(c) for cos in (NEAR, NEARER)
    }
    median = {key: middle(value) for key, value in times.items()}
    late = steps >= EARLY
    fit = partial(slope, np.log(steps[late]))
    free_slope = fit(np.log(arrays["free_ngd_misalignment_svm"][:, late]))
    growth = fit(np.log(arrays["free_ngd_norm"][:, late]))
    bound = _cap_binds(arrays, "ngd", facts)
    cap_from = middle(for_good(steps, bound))
    ps_share = float(_cap_binds(arrays, "polyak", facts).mean())
    overtaken = for_good(steps, arrays["capped_ngd_misalignment_svm"] < arrays["capped_polyak_misalignment_svm"])
    at_end = arrays["capped_ngd_loss"][:, -1] / arrays["floor"] - 1
    saturated = float(np.median(arrays["capped_ngd_attention"][:, -1]))
    ahead = _ahead_when_ngd_arrives(arrays)
    shown = {
        "NGD aligns before GD": median["capped", "ngd", NEAR] < median["capped", "gd", NEAR],
        "the Polyak step aligns before NGD": all(
            median["capped", "polyak", c] < median["capped", "ngd", c] for c in (NEAR, NEARER)
        ),
        "the Polyak step is ahead in every metric when NGD reaches cosine 0.9": all(ahead.values()),
        "momentum aligns before NGD": median["capped", "momentum", NEARER] < median["capped", "ngd", NEARER],
        "the norm of NGD grows linearly without the cap": bool(np.abs(np.median(growth) - 1) <= LINEAR),
        "1 - cos of NGD falls at least as 1/t without the cap": bool(np.median(free_slope) <= -1 + LINEAR),
        "attention saturates": saturated >= SATURATED,
        "the loss goes to its floor, not to 0": bool(np.median(at_end) <= LOSS_NEAR),
    }
    reached = "; ".join(f"{LOOKS[n].label} {spelt(median['capped', n, NEAR])} and {spelt(median['capped', n, NEARER])}"
                        for n in LOOKS)  # fmt: skip
    crossings = int(np.isfinite(overtaken).sum())
    boost = median["capped", "control", NEARER] / median["capped", "momentum", NEARER]
    capped = f"so it is GD with step {facts['Polyak cap']:g}" if ps_share == 1 else "elsewhere it is the raw step"
    crossover = (
        f"it is ahead of NGD only at first: in {crossings} of {sets} sets NGD has the smaller 1 - cos for good within "
        f"{facts['steps']} steps, from step {spelt(middle(overtaken))} on (median)"
        if crossings
        else f"NGD does not overtake it in {facts['steps']} steps"
    )
    seen = (
        f"Median steps to cosine 0.9 and 0.99 with the paper's caps: {reached}. The control, tenfold step without "
        f"momentum, needs {boost:.2f} times the steps of momentum. The cap decides the Polyak step at "
        f"{100 * ps_share:.0f} % of the recorded steps, {capped}; {crossover}. NGD's own cap binds from step "
        f"{spelt(cap_from)}. Without caps 1 - cos ends at "
        f"{np.median(arrays['free_polyak_misalignment_svm'][:, -1]):.1e} for the Polyak step and "
        f"{np.median(arrays['free_ngd_misalignment_svm'][:, -1]):.1e} for NGD, whose 1 - cos falls as t^"
        f"{np.median(free_slope):.2f} and whose norm grows as t^{np.median(growth):.2f}."
    )
    missed = [name for name, good in shown.items() if not good]
    if missed:
        seen += f" Not seen: {'; '.join(missed)}."
    numbers: dict[str, Any] = {
        "median steps to cosine 0.9 and 0.99": {
            f"{LOOKS[n].label}, {c}": [number(median[c, n, NEAR]), number(median[c, n, NEARER])]
            for c in COLUMNS for n in _names(c)
        },
        "sets that reach 0.99": {f"{LOOKS[n].label}, {c}": int(np.isfinite(times[c, n, NEARER]).sum())
                                 for c in COLUMNS for n in _names(c)},
        "sets where the Polyak step is first at 0.9 and at 0.99": [
            int((times["capped", "polyak", c] < times["capped", "ngd", c]).sum()) for c in (NEAR, NEARER)],
        "1 - cos at the end, median": {f"{LOOKS[n].label}, {c}": number(
            np.median(arrays[f"{c}_{n}_misalignment_svm"][:, -1])) for c in COLUMNS for n in _names(c)},
        "attention at the end, median": {f"{LOOKS[n].label}, {c}": number(
            np.median(arrays[f"{c}_{n}_attention"][:, -1])) for c in COLUMNS for n in _names(c)},
        "NGD overtakes the Polyak step at, quartiles": [
            number(np.quantile(overtaken, q, method="inverted_cdf")) for q in (0.25, 0.5, 0.75)],
        f"slope of log(1 - cos) of NGD from step {EARLY}, without and with cap: median": [
            number(np.median(free_slope)),
            number(np.median(fit(np.log(arrays["capped_ngd_misalignment_svm"][:, late]))))],
        "polyak ahead when NGD reaches 0.9": ahead, "shown": shown, "sets": sets,
    }  # fmt: skip
    return Finding(seen=seen, verdict=Verdict.FAILS if missed else Verdict.HOLDS, numbers=numbers)


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """One row per metric; caps of the paper on the left, none on the right."""
    picture, axes = new_figure(5, 2, width=7.2, height=10.4)
    steps = arrays["steps"]
    rows: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
        ("loss", "train loss", lambda v: v),
        ("log_excess_loss", "-log10 (loss above floor)", lambda v: -v / LN10),
        ("norm", "|W|", lambda v: v),
        ("attention", "attention on the best token\n(mean over sequences)", lambda v: v),
        ("misalignment_svm", "1 - cos(W, W_mm)", lambda v: v),
    )
    for j, column in enumerate(COLUMNS):
        for i, (key, label, shape) in enumerate(rows):
            panel = axes[i, j]
            draw_rules(panel, steps, {n: shape(_pick(arrays, column, n, key)) for n in LOOKS}, LOOKS)
            panel.set_ylabel(label if j == 0 else "")
        plain_log(axes[1, j])
        axes[2, j].set(yscale="log", ylim=(0.01, None))
        axes[3, j].set_ylim(0, 1.03)
        axes[4, j].set(yscale="log", xlabel="step")
        axes[0, j].axhline(float(arrays["floor"].mean()), color="black", linewidth=0.9, linestyle=":")
        axes[2, j].plot(steps[1:], facts["NGD step"] * steps[1:], color="black", linewidth=0.9, linestyle=":")
        _draw_guide(axes[4, j], arrays, column)
    caps = f"caps: NGD {facts['NGD cap']:g}, Polyak {facts['Polyak cap']:g}"
    axes[0, 0].set_title(f"a  With the paper's {caps}")
    axes[0, 1].set_title("b  Without caps")
    picture.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, handlelength=3.2,
                   title=f"{facts['sets']} sets (n = {facts['n']}, T = {facts['T']}, d = {facts['d']}): median, "
                   "middle 80 %. Thin dotted: floor of the loss; step size of NGD times t; log² t / t (Theorem 1)"
                   )  # fmt: skip
    return picture


def _draw_guide(axes: Any, arrays: Arrays, column: str) -> None:
    """The slope of Theorem 1, log^2 t / t, through the NGD curve at step EARLY."""
    steps = arrays["steps"][arrays["steps"] >= EARLY]
    at = np.median(arrays[f"{column}_ngd_misalignment_svm"][:, arrays["steps"] >= EARLY][:, 0])
    shape = np.log(steps) ** 2 / steps
    axes.plot(steps, at * shape / shape[0], color="black", linewidth=0.9, linestyle=":")


FIGURES = [
    Figure(
        id="rates-2",
        axes={"steps": "step", "floor": "trial", "*": "trial step"},
        title="Step rules on orthogonal signals",
        data=partial(signal_data, family=orthogonal_signal, polyak_cap=10.0), draw=draw, judge=judge,
        settings=signal_settings,
        says="On Example 1 with sigma = 0 the loss goes to its floor, |W| grows linearly, attention saturates and W "
        "aligns with W_mm as Lemma 1, Eq. (9) and Theorem 1 say; NGD is significantly faster than GD, the Polyak step "
        "faster than NGD in every metric (and slows down once its cap binds), momentum gives a boost (Figure 2).",
    ),
    Figure(
        id="rates-5",
        axes={"steps": "step", "floor": "trial", "*": "trial step"},
        title="Step rules on antipodal signals",
        data=partial(signal_data, family=antipodal_signal, polyak_cap=5.0), draw=draw, judge=judge,
        settings=signal_settings,
        says="With antipodal instead of orthogonal signals, and cap 5 of the Polyak step, the picture is that of "
        "Figure 2 (Figure 5).",
    ),
]  # fmt: skip
