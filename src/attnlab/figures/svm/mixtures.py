"""Figure 9 of *Transformers as Support Vector Machines*: a concave head makes attention mix tokens."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Verdict
from attnlab.claims.scale import Scale
from attnlab.errors import InputError, message
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, new_figure, styled
from attnlab.figures.svm.concave import (
    SETTING,
    TOKENS,
    best_mixture,
    follow,
    kept_by_formula,
    on_sphere,
    train,
    with_scores,
)
from attnlab.figures.svm.kept import (
    KEPT,
    NOTHING_MASKED,
    RETAINED,
    apart,
    draw_mean,
    exceeds,
    known,
    mean_and_error,
    predict,
    rank_correlation,
    tally,
)
from attnlab.figures.sweep import sweep

SEED = 900
# Data sets are drawn in full at every scale, so that all runs share the first ones.
MOST = 100
STRENGTHS = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5)
# "Correlation above 0.95" of the paper.
NEAR = 0.05
METHODS = {"gd": "normalized GD", "flow": "gradient flow"}
LOOKS = {"gd": (ORANGE, "s"), "flow": (BLUE, "o")}


def nine_block(point: Mapping[str, Any], seeds: NDArray[np.int64]) -> dict[str, np.ndarray]:
    """Some of the data sets at one strength λ, trained by one method."""
    rng = np.random.default_rng(SEED)
    picked = with_scores(on_sphere(rng, MOST), np.zeros(MOST), rng).pick(seeds)
    mixing = picked._replace(strength=np.full(len(seeds), point["strength"]))
    W, probs, reasons = (train if point["method"] == "gd" else follow)(mixing)
    predicted = predict(mixing.tokens, W, probs)
    return {
        "count": (probs > KEPT).sum((-2, -1)),
        "exact": kept_by_formula(mixing.scores, mixing.strength),
        "deviation": np.abs(probs[:, 0] - best_mixture(mixing.scores, mixing.strength)).max(-1),
        "reasons": reasons,
        "margin": apart(W[:, None], predicted.margin)[:, 0],
        "mixture": apart(W[:, None], predicted.mixture)[:, 0],
        "norm": np.linalg.norm(W, axis=(-2, -1)),
    }


def nine_settings(scale: Scale) -> dict[str, Any]:
    """Trials for each λ: of normalized GD, and of gradient flow."""
    return {"trials": scale.pick(8, 40, MOST), "flows": scale.pick(1, 6, MOST)}


def nine_data(scale: Scale, tell: Tell, **settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The same data sets at every strength λ; arrays are (strengths, trials)."""
    given = {**nine_settings(scale), **settings}
    strengths = scale.pick((0.0, 0.5, 2.5), STRENGTHS, STRENGTHS)
    trials = {"gd": given["trials"], "flow": given["flows"]}
    if max(trials.values()) > MOST:
        raise InputError(message(f"`trials` and `flows` are {given['trials']} and {given['flows']}; at most {MOST}."))
    arrays: dict[str, np.ndarray] = {"strengths": np.array(strengths)}
    facts: dict[str, Any] = {"setting": SETTING, "seed": SEED, "trials per λ": dict(trials)}
    for method, count in trials.items():
        points = [{"method": method, "strength": strength} for strength in strengths]
        results = sweep(nine_block, points, count, tell, METHODS[method])
        arrays |= {f"{method}_{key}": np.stack([found[key] for found in results]) for key in results[0]}
        for strength, found in zip(strengths, results, strict=True):
            facts[f"{METHODS[method]}, λ = {strength:g}"] = tally(found["reasons"])
    return arrays, facts


def settled(arrays: Arrays, method: str, name: str) -> np.ndarray:
    """1 - corr of retained trials, the others NaN."""
    return np.where(arrays[f"{method}_reasons"] == RETAINED, arrays[f"{method}_{name}"], np.nan)


@styled
def draw_nine(arrays: Arrays, facts: Facts) -> Any:
    """Tokens kept, 1 - corr by strength and by tokens kept, and the account of the filter."""
    figure, axes = new_figure(2, 2, width=7.6, height=6.2)
    (counts, by_strength), (by_count, filtered) = axes
    x = arrays["strengths"]
    for method, (color, marker) in LOOKS.items():
        draw_mean(counts, x, arrays[f"{method}_count"].T.astype(float), color=color,
                  style="-" if method == "flow" else "--", marker=marker, label=METHODS[method])  # fmt: skip
        for name, style, told in (("mixture", "-", "W^{SVMeq}"), ("margin", ":", "W^{mm}")):
            values = settled(arrays, "flow", name) if method == "flow" else arrays[f"gd_{name}"]
            if np.isfinite(values).any():
                label = f"{'flow' if method == 'flow' else 'GD, no filter'}: ${told}$"
                draw_mean(by_strength, x, values.T, color=color, style=style, marker=marker, label=label)
                places, grouped = _by_count(arrays[f"{method}_count"], values)
                draw_mean(by_count, places, grouped, color=color, style=style, marker=marker, label=label)
        share = (arrays[f"{method}_reasons"] == RETAINED).mean(1)
        whole = (arrays[f"{method}_reasons"] == NOTHING_MASKED).mean(1)
        place = np.arange(len(x)) + (0.2 if method == "flow" else -0.2)
        filtered.bar(place, 100 * share, 0.36, color=color, edgecolor="black", linewidth=0.5,
                     label=f"{METHODS[method]}: retained")  # fmt: skip
        filtered.bar(place, 100 * whole, 0.36, bottom=100 * share, facecolor="white", edgecolor=color, hatch="//",
                     linewidth=0.5, label=f"{METHODS[method]}: all kept")  # fmt: skip
    exact = arrays["gd_exact"].mean(1)
    counts.plot(x, exact, color=GREY, linestyle=":", linewidth=1.2, label="exact (simplex projection)")
    few = settled(arrays, "gd", "mixture")
    if np.isfinite(few).any():
        by_count.scatter(arrays["gd_count"][np.isfinite(few)], few[np.isfinite(few)], s=10, marker="x", color=GREEN,
                         linewidth=0.8, zorder=4, label="GD, filter: $W^{SVMeq}$")  # fmt: skip
    counts.set(title="a  Tokens kept", xlabel="λ", ylabel="tokens above 1e-3, mean ± 2 s.e.", ylim=(0, TOKENS + 0.5))
    counts.legend(loc="lower right")
    by_strength.set(title="b  Distance to the predictions", xlabel="λ", ylabel="1 - corr, mean ± 2 s.e.", yscale="log")
    by_count.set(title="c  The same by tokens kept", xlabel="tokens kept", ylabel="1 - corr, mean ± 2 s.e.",
                 yscale="log", xticks=range(1, TOKENS))  # fmt: skip
    handles, labels = by_count.get_legend_handles_labels()
    by_count.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    filtered.set_xticks(range(len(x)), [f"{strength:g}" for strength in x])
    filtered.set(title="d  What the filter leaves", xlabel="λ", ylabel="% of trials", ylim=(0, 100))
    filtered.grid(False)
    filtered.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return figure


def _by_count(counts: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values in columns by number of kept tokens, numbers with fewer than 2 trials left out."""
    there = np.isfinite(values)
    places = np.array([k for k in range(1, TOKENS) if (there & (counts == k)).sum() >= 2])
    return places, np.where(there.reshape(-1, 1) & (counts.reshape(-1, 1) == places), values.reshape(-1, 1), np.nan)


def judge_nine(arrays: Arrays, facts: Facts) -> Finding:
    """One token at λ = 0, more with λ, and predictions within the paper's 0.05 at every λ."""
    x, counts = arrays["strengths"], {method: arrays[f"{method}_count"] for method in METHODS}
    wrong = []
    for method, count in counts.items():
        if not (count[x == 0.0] == 1).all():
            wrong.append(f"one token at λ = 0 ({METHODS[method]})")
        if any(exceeds(fewer - more, 0.0) for fewer, more in pairwise(count.astype(float))):
            wrong.append(f"more tokens with larger λ ({METHODS[method]})")
    flows = settled(arrays, "flow", "mixture")
    for strength, steps, run in zip(x, arrays["gd_mixture"], flows, strict=True):
        for name, values in (("normalized GD without the filter", steps), ("gradient flow", run)):
            if np.isfinite(values).any() and exceeds(values, NEAR):
                wrong.append(f"correlation above 0.95 at λ = {strength:g} ({name})")
    retained = {method: arrays[f"{method}_reasons"] == RETAINED for method in METHODS}
    several = {method: int((retained[method] & (counts[method] > 1)).sum()) for method in METHODS}
    numbers: dict[str, Any] = {
        "tokens kept, exact": arrays["gd_exact"].mean(1).tolist(),
        "share of trials with all tokens at the largest λ, exact": float((arrays["gd_exact"][-1] == TOKENS).mean()),
        "same number as exact, gradient flow": f"{int((counts['flow'] == arrays['flow_exact']).sum())} of "
        f"{counts['flow'].size}",
        "error of attention against the exact mixture, gradient flow, largest": float(arrays["flow_deviation"].max()),
        "error of attention against the exact mixture, normalized GD, largest": float(arrays["gd_deviation"].max()),
    }
    for method, told in METHODS.items():
        loose = arrays["gd_mixture"] if method == "gd" else flows
        margin = arrays["gd_margin"] if method == "gd" else settled(arrays, "flow", "margin")
        numbers |= {
            f"tokens kept, {told}": counts[method].mean(1).tolist(),
            f"retained per λ, {told}": retained[method].sum(1).tolist(),
            f"retained with several tokens, {told}": several[method],
            f"corr W^SVMeq, {told}{', no filter' if method == 'gd' else ''}": _corrs(loose),
            f"corr W^mm, {told}{', no filter' if method == 'gd' else ''}": _corrs(margin),
            f"rank correlation of tokens kept and 1 - corr W^SVMeq, {told}": known(_trend(counts[method], loose)),
            f"rank correlation of tokens kept and 1 - corr W^mm, {told}": known(_trend(counts[method], margin)),
            f"|W| at the end, median, {told}": float(np.median(arrays[f"{method}_norm"])),
        }
    low = np.nanmin([1 - m for v in (arrays["gd_mixture"], flows) for m in mean_and_error(v.T)[0]])
    seen = (
        f"From {counts['flow'][0].mean():.2f} kept tokens at λ = {x[0]:g} to {counts['flow'][-1].mean():.2f} of "
        f"{TOKENS} at λ = {x[-1]:g} (exact {arrays['flow_exact'][-1].mean():.2f}; all in "
        f"{100 * (arrays['gd_exact'][-1] == TOKENS).mean():.0f} % of data sets); mean corr with W^SVMeq at least "
        f"{low:.3f}. Of runs that keep several tokens the filter retains {several['flow']} by gradient flow and "
        f"{several['gd']} by normalized GD, whose constant steps swing around the mixture."
    )
    seen += f" Not as the paper says: {'; '.join(wrong)}." if wrong else ""
    return Finding(seen=seen, verdict=Verdict.FAILS if wrong else Verdict.HOLDS, numbers=numbers)


def _trend(counts: np.ndarray, values: np.ndarray) -> float:
    there = np.isfinite(values)
    return rank_correlation(counts[there], values[there])


def _corrs(values: np.ndarray) -> list[Any]:
    """Mean correlation in each row, with words where there is none."""
    return ["none" if np.isnan(m) else round(1.0 - float(m), 4) for m in mean_and_error(values.T)[0]]


FIGURES = [
    Figure(
        id="svm-9",
        axes={"strengths": "strength", "*": "strength trial"},
        title="A concave head keeps more tokens",
        says="With h(o) = v.o - λ|o|^2 and orthonormal tokens the number of kept tokens grows with λ, from one at "
        "λ = 0 to all of them beyond λ = 2; the correlation with W^SVMeq stays above 0.95 and falls with the number "
        "of kept tokens.",
        data=nine_data,
        settings=nine_settings,
        draw=draw_nine,
        judge=judge_nine,
    ),
]
