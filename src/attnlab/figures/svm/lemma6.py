"""Figure 12 of *Transformers as Support Vector Machines*: how many tokens a concave head keeps, by Lemma 6."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.claim import Verdict
from attnlab.claims.scale import Scale
from attnlab.claims.stages import Stages
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure, styled
from attnlab.figures.svm.concave import (
    SETTING,
    TOKENS,
    Mixing,
    best_mixture,
    follow,
    kept_by_formula,
    on_sphere,
    train,
    with_scores,
)
from attnlab.figures.svm.kept import KEPT, draw_mean, mean_and_error, rank_correlation, tally

SEED = 1200
STRONGEST = 2.5
BOUNDS = tuple(range(2, TOKENS))
SHOWN = {3: (BLUE, ""), 5: (ORANGE, "//"), 7: (GREEN, ".."), 9: (PURPLE, "xx")}
DRAWN_TOGETHER = 20_000
BINS = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, STRONGEST])


def meets(scores: np.ndarray, strength: np.ndarray, bound: int) -> np.ndarray:
    """The hypothesis of Lemma 6: bound * gap_bound / 2 > strength > gap_1, with gap_t = g_t - g_(t+1), g sorted."""
    ranked = -np.sort(-scores, axis=-1)
    gap = ranked[:, :-1] - ranked[:, 1:]
    return (bound * gap[:, bound - 1] / 2.0 > strength) & (strength > gap[:, 0])


def accepted(bound: int, wanted: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Scores and strengths that meet the hypothesis, and how many were drawn to find them."""
    rng = np.random.default_rng([SEED, bound])
    scores, strengths, drawn = np.zeros((0, TOKENS)), np.zeros(0), 0
    while True:
        some, strength = on_sphere(rng, DRAWN_TOGETHER), rng.uniform(0.0, STRONGEST, DRAWN_TOGETHER)
        good = np.flatnonzero(meets(some, strength, bound))[: wanted - len(scores)]
        scores, strengths = np.concatenate([scores, some[good]]), np.concatenate([strengths, strength[good]])
        if len(scores) == wanted:
            return scores, strengths, drawn + int(good[-1]) + 1
        drawn += DRAWN_TOGETHER


def twelve_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """For each bound: exact numbers of kept tokens, and those of trained attention on the first pairs (λ, X)."""
    wanted = scale.pick(200, 2000, 2000)
    trials, flows = scale.pick((4, 1), (30, 3), (100, 25))
    found = [accepted(bound, wanted) for bound in BOUNDS]
    scores, strengths = np.stack([s for s, _, _ in found]), np.stack([s for _, s, _ in found])
    attempts = np.array([drawn for _, _, drawn in found])
    arrays = {
        "bounds": np.array(BOUNDS),
        "attempts": attempts,
        "strengths": strengths,
        "exact": kept_by_formula(scores, strengths),
    }
    facts: dict[str, Any] = {
        "setting": SETTING, "seeds": [[SEED, bound] for bound in BOUNDS], "law of λ": f"uniform on (0, {STRONGEST})",
        "accepted per τ": wanted, "trained per τ": {"normalized GD": trials, "gradient flow": flows},
        "drawn per τ": attempts.tolist(),
    }  # fmt: skip
    first = scores[:, :trials].reshape(-1, TOKENS), strengths[:, :trials].reshape(-1)
    drawn = with_scores(*first, np.random.default_rng(SEED))
    stage = Stages(tell, 2 * len(BOUNDS))
    for method, words, run, count in (("gd", "normalized GD", train, trials), ("flow", "gradient flow", follow, flows)):
        cells = []
        for i, bound in enumerate(BOUNDS):
            mixing = drawn.pick(np.arange(i * trials, i * trials + count))
            cells.append(stage(f"{words}, τ = {bound}", partial(_trained, mixing, run)))
        arrays |= {f"{method}_{key}": np.stack([cell[key] for cell in cells]) for key in cells[0]}
        facts[words] = tally(arrays[f"{method}_reasons"].ravel())
    return arrays, facts


def _trained(mixing: Mixing, run: Callable[[Mixing], tuple[np.ndarray, ...]]) -> dict[str, np.ndarray]:
    """Which tokens are kept where a method ends, and how far attention is from the exact mixture."""
    _, probs, reasons = run(mixing)
    error = np.abs(probs[:, 0] - best_mixture(mixing.scores, mixing.strength)).max(-1)
    return {"count": (probs[:, 0] > KEPT).sum(-1), "error": error, "reasons": reasons}


@styled
def draw_twelve(arrays: Arrays, facts: Facts) -> Any:
    """Kept tokens by bound and by strength, their histograms, and how rare the hypothesis is."""
    figure, axes = new_figure(2, 2, width=7.6, height=5.8)
    (by_bound, by_strength), (histogram, rates) = axes
    bounds, exact = arrays["bounds"], arrays["exact"]
    by_bound.plot(bounds, bounds, color=GREY, linewidth=1, linestyle=":", label="τ, the bound of Lemma 6")
    draw_mean(by_bound, bounds, exact.T.astype(float), color="black", style="-", label="exact")
    for method, color, marker, shift, label in (("gd", ORANGE, "s", 0.12, "normalized GD"),
                                                ("flow", BLUE, "o", -0.12, "gradient flow")):  # fmt: skip
        mean, error = mean_and_error(arrays[f"{method}_count"].T.astype(float))
        by_bound.errorbar(bounds + shift, mean, 2 * error, color=color, marker=marker, markersize=4, linestyle="none",
                          linewidth=1, label=f"{label} ({arrays[f'{method}_count'].shape[1]} per τ)")  # fmt: skip
    by_bound.set(title="a  Kept tokens by τ", xlabel="τ", ylabel="tokens kept, mean ± 2 s.e.")
    by_bound.legend(loc="upper left")
    inside = np.digitize(arrays["strengths"].ravel(), BINS) - 1
    columns = np.where(inside[:, None] == np.arange(len(BINS) - 1), exact.reshape(-1, 1), np.nan)
    centre = (BINS[:-1] + BINS[1:]) / 2
    draw_mean(by_strength, centre, columns, color="black", style="-", marker="o", label="exact, all τ")
    by_strength.set(title="b  Kept tokens by λ, all τ", xlabel="λ", ylabel="tokens kept, mean ± 2 s.e.")
    for place, (bound, (color, hatch)) in enumerate(SHOWN.items()):
        share = [(exact[bounds == bound] == k).mean() for k in range(1, TOKENS)]
        histogram.bar(np.arange(1, TOKENS) + 0.2 * (place - 1.5), 100 * np.array(share), 0.2, facecolor=color,
                      hatch=hatch, edgecolor="black", linewidth=0.4, label=f"τ = {bound}")  # fmt: skip
    histogram.set(title="c  Exact numbers of kept tokens", xlabel="tokens kept", ylabel="% of pairs (λ, X)",
                  xticks=range(1, TOKENS))  # fmt: skip
    histogram.set_axisbelow(True)
    histogram.legend(loc="upper right")
    rate = exact.shape[1] / arrays["attempts"]
    error = np.sqrt(rate * (1 - rate) / arrays["attempts"])
    rates.errorbar(bounds, 100 * rate, 200 * error, color=BLUE, marker="o", markersize=4, label="accepted, %")
    rates.set(title="d  How often the hypothesis is met", xlabel="τ", ylabel="% of draws (λ, X), ± 2 s.e.")
    rates.set_ylim(0, None)
    mean = rates.twinx()
    strength, error = mean_and_error(arrays["strengths"].T)
    mean.errorbar(bounds, strength, 2 * error, color=ORANGE, linestyle="--", marker="s", markersize=4,
                  label="mean λ (right axis)")  # fmt: skip
    mean.set(ylabel="mean λ of accepted pairs")
    mean.set_ylim(0, None)
    mean.spines["right"].set_visible(True)
    mean.grid(False)
    lines = [axis.get_legend_handles_labels() for axis in (rates, mean)]
    rates.legend(lines[0][0] + lines[1][0], lines[0][1] + lines[1][1], loc="upper left")
    return figure


def judge_twelve(arrays: Arrays, facts: Facts) -> Finding:
    """Every exact number between 2 and τ; τ, λ and the number positively correlated."""
    bounds, exact, strengths = arrays["bounds"], arrays["exact"], arrays["strengths"]
    outside = int(((exact < 2) | (exact > bounds[:, None])).sum())
    spread = np.broadcast_to(bounds[:, None], exact.shape).ravel()
    pairs = {
        "τ and λ": (spread, strengths), "τ and number": (spread, exact), "λ and number": (strengths, exact)
    }  # fmt: skip
    ranks = {name: rank_correlation(a.ravel(), b.ravel()) for name, (a, b) in pairs.items()}
    trained: dict[str, Any] = {}
    for method, told in (("gd", "normalized GD"), ("flow", "gradient flow")):
        counts, error = arrays[f"{method}_count"], arrays[f"{method}_error"]
        mine = exact[:, : counts.shape[1]]
        trained |= {
            f"same number as exact, {told}": f"{int((counts == mine).sum())} of {counts.size}",
            f"outside [2, τ], {told}": int(((counts < 2) | (counts > bounds[:, None])).sum()),
            f"error of attention, largest, {told}": float(error.max()),
            f"error of attention, median, {told}": float(np.median(error)),
        }
    numbers = {
        "pairs": exact.size, "outside [2, τ], exact": outside,
        "acceptance, %": [round(100 * float(r), 2) for r in exact.shape[1] / arrays["attempts"]],
        "mean λ": [round(float(s), 3) for s in strengths.mean(1)],
        "mean number": [round(float(e), 3) for e in exact.mean(1)],
        "rank correlation": ranks, **trained,
    }  # fmt: skip
    seen = (
        f"{exact.size - outside} of {exact.size} exact numbers are within [2, τ]; on average "
        f"{exact[0].mean():.2f} at τ = {bounds[0]} and {exact[-1].mean():.2f} at τ = {bounds[-1]}. The hypothesis is "
        f"met by {numbers['acceptance, %'][0]:g} % of pairs at τ = {bounds[0]}, {numbers['acceptance, %'][-1]:g} % at "
        f"τ = {bounds[-1]}. Gradient flow ends with the exact number in "
        f"{trained['same number as exact, gradient flow']} runs, normalized GD in "
        f"{trained['same number as exact, normalized GD']}."
    )
    good = outside == 0 and all(rank > 0 for rank in ranks.values())
    return Finding(seen=seen, verdict=Verdict.HOLDS if good else Verdict.FAILS, numbers=numbers)


FIGURES = [
    Figure(
        id="svm-12",
        axes={"bounds": "bound", "attempts": "bound", "*": "bound trial"},
        title="How many tokens a concave head keeps",
        says="Where τ γ_τ^gap / 2 > λ > γ_1^gap the attention keeps at least two and at most τ tokens (Lemma 6); τ, λ "
        "and the number of kept tokens are positively correlated.",
        data=twelve_data,
        draw=draw_twelve,
        judge=judge_twelve,
    ),
]
