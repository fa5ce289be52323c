"""Figure 4 of *Transformers as Support Vector Machines*: ranks of the two max-margin solutions."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.claim import Verdict
from attnlab.claims.scale import Scale
from attnlab.claims.stages import Stages
from attnlab.data import optimal_tokens, sphere
from attnlab.data.tokens import Array
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.style import BLUE, GREEN, ORANGE, new_figure, styled
from attnlab.figures.svm.batches import NORM_NAMES, Norm, listed, some
from attnlab.svm import solve_margins

SEED = 4
NORMS: tuple[Norm, ...] = ("frobenius", "nuclear")
# Singular values above this, relative to the largest, count; solutions are certified to GAP first.
COUNTS, GAP = 1e-6, 1e-8


def ranks_settings(scale: Scale) -> dict[str, Any]:
    return {
        "d": scale.pick((5, 10), (2, 5, 10, 20), (2, 3, 4, 5, 10, 15, 20)),
        "trials": scale.pick(5, 15, 100),
    }


def ranks_data(scale: Scale, tell: Tell, **settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Ranks of the solutions for the best tokens, over the dimension, for several n and T."""
    sizes = ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15))[: scale.pick(2, 5, 5)]
    given = {**ranks_settings(scale), **settings}
    dims: tuple[int, ...] = given["d"]
    trials: int = given["trials"]
    # Sets whose best tokens cannot be separated are drawn again, up to this many draws per set wanted.
    patience = scale.pick(5, 10, 60)
    stage = Stages(tell, len(sizes) * len(dims))
    cells = [
        stage(f"n = {n}, T = {T}, d = {d}", partial(_separable_ranks, n, T, d, trials, patience))
        for (n, T), d in itertools.product(sizes, dims)
    ]
    arrays: dict[str, np.ndarray] = {"d": np.array(dims), "size": np.array(sizes)}
    for key in cells[0]:
        arrays[key] = np.stack([cell[key] for cell in cells]).reshape(len(sizes), len(dims), *cells[0][key].shape)
    kept = np.isfinite(arrays["frobenius_rank"]).sum(-1)
    facts = {
        "trials per point": trials, "selection": "the best tokens", "seed": SEED,
        "sizes (n, T)": [list(size) for size in sizes], "d": list(dims),
        "sets drawn, per size and d": arrays["drawn"].tolist(),
        "sets kept (best tokens separable), per size and d": kept.tolist(),
        "most draws per set wanted": patience, "rank": "singular values above 1e-6 of the largest",
        "solutions with a duality gap above 1e-8": int(sum((arrays[f"{norm}_gap"] > GAP).sum() for norm in NORMS)),
        "largest duality gap": float(max(np.nanmax(arrays[f"{norm}_gap"]) for norm in NORMS)),
    }  # fmt: skip
    return arrays, facts


def _separable_ranks(n: int, T: int, d: int, trials: int, patience: int) -> dict[str, np.ndarray]:
    """How many sets are drawn until `trials` can be separated, and ranks and gaps of those; NaN for sets not found."""
    found = {f"{norm}_{what}": np.full(trials, np.nan) for norm in NORMS for what in ("rank", "gap")}
    drawn = kept = round_ = 0
    while kept < trials and drawn < patience * trials:
        tokens = sphere(n=n, T=T, d=d, seed=SEED + 1000 * round_, trials=trials)
        best = optimal_tokens(tokens)
        good = np.flatnonzero(solve_margins(tokens, best).feasible)[: trials - kept]
        # The draws that were looked at: all, or up to the last one that was needed.
        drawn += trials if kept + len(good) < trials else int(good[-1]) + 1
        for norm in NORMS if len(good) else ():
            solved = solve_margins(some(tokens, good), best[good], norm=norm)
            found[f"{norm}_rank"][kept : kept + len(good)] = _rank(solved.W)
            found[f"{norm}_gap"][kept : kept + len(good)] = solved.gap
        kept, round_ = kept + len(good), round_ + 1
    return {"drawn": np.array(drawn), **found}


def _rank(W: Array) -> Array:
    singular = np.linalg.svd(W, compute_uv=False)
    return (singular > COUNTS * singular[:, :1]).sum(-1).astype(float)


def _bounds(arrays: Arrays) -> Array:
    """min(n, d) for each size and dimension."""
    return np.minimum(arrays["size"][:, :1], arrays["d"])


def _mean(values: Array) -> Array:
    """Mean over trials; NaN where there is none."""
    count = np.isfinite(values).sum(-1)
    return np.where(count > 0, np.nansum(values, axis=-1) / np.maximum(count, 1), np.nan)


def judge_4(arrays: Arrays, facts: Facts) -> Finding:
    """No rank above min(n, d); the Frobenius one usually equal to it, the nuclear one lower on average."""
    bound = _bounds(arrays)
    some_kept = np.isfinite(arrays["frobenius_rank"]).any(-1)
    frobenius, nuclear = (arrays[f"{norm}_rank"] for norm in NORMS)
    above = int(sum((rank > bound[..., None]).sum() for rank in (frobenius, nuclear)))
    full = np.isfinite(frobenius) & (frobenius == bound[..., None])
    usual = bool((full.sum(-1) > 0.5 * np.isfinite(frobenius).sum(-1))[some_kept].all())
    # At d = 2 there is no room between 1 and 2 for a difference to show.
    ratio = (_mean(nuclear) / _mean(frobenius))[some_kept & (bound >= 3)]
    certified = facts["solutions with a duality gap above 1e-8"] == 0
    good = above == 0 and usual and certified and bool((ratio < 1).all())
    share = 100 * full.sum() / np.isfinite(frobenius).sum()
    return Finding(
        seen=f"{above} ranks exceed min(n, d). The Frobenius solution has rank min(n, d) in {share:.1f} % of the sets "
        "(less where a query holds no margin); the nuclear one has on average "
        f"{100 * ratio.min():.0f} to {100 * ratio.max():.0f} % of the Frobenius rank where min(n, d) is at least 3.",
        verdict=Verdict.HOLDS if good else Verdict.FAILS,
        numbers={
            f"mean rank {NORM_NAMES[norm]}, n = {n}, T = {T}, per d": listed(row, 2)
            for norm in NORMS
            for (n, T), row in zip(arrays["size"].tolist(), _mean(arrays[f"{norm}_rank"]), strict=True)
        } | {"d": arrays["d"].tolist(), "Frobenius rank equal to min(n, d), %": float(share),
             "sets kept, drawn": [int(np.isfinite(frobenius).sum()), int(arrays["drawn"].sum())],
             "cells without any separable set": int((~some_kept).sum())},
    )  # fmt: skip


@styled
def draw_4(arrays: Arrays, facts: Facts) -> Any:
    """Two panels: over n, and over T; mean ranks with their 10 to 90 % range."""
    picture, axes = new_figure(1, 2, width=7.2, height=4.1)
    sizes = [tuple(size) for size in arrays["size"].tolist()]
    panels = ((axes[0, 0], "a  T = 5, several n", "n", 0, [s for s in sizes if s[1] == 5]),
              (axes[0, 1], "b  n = 5, several T", "T", 1, [s for s in sizes if s[0] == 5]))  # fmt: skip
    for panel, title, letter, varies, shown in panels:
        for i, (size, color, marker) in enumerate(zip(shown, (BLUE, ORANGE, GREEN), "os^", strict=False)):
            for norm, style, face in (("frobenius", "-", color), ("nuclear", "--", "white")):
                values = arrays[f"{norm}_rank"][sizes.index(size)]
                there = np.isfinite(values).any(-1)
                low, high = np.nanquantile(values[there], (0.1, 0.9), axis=-1)
                mean, d = _mean(values)[there], arrays["d"][there] + 0.15 * (i - 1)
                panel.errorbar(d, mean, yerr=np.maximum([mean - low, high - mean], 0.0), color=color, linestyle=style,
                               marker=marker, markersize=4, markerfacecolor=face, elinewidth=0.8, capsize=1.5,
                               label=f"{NORM_NAMES[norm]}, {letter} = {size[varies]}")  # fmt: skip
        panel.set(title=title, xlabel="dimension d", ylabel="rank", ylim=(0, None))
        panel.set_xticks(arrays["d"])
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, handlelength=2.6)
    picture.supxlabel(f"mean over {facts['trials per point']} separable sets (fewer where rare, see the note); "
                      "bars: middle 80 %", fontsize=7.5)  # fmt: skip
    return picture


FIGURES = [
    Figure(
        id="svm-4",
        axes={"d": "d", "size": "size part", "drawn": "size d", "*": "size d trial"},
        title="Ranks of the Frobenius and nuclear max-margin solutions", data=ranks_data,
        settings=ranks_settings, draw=draw_4,
        judge=judge_4, says="For the best tokens of random sets, the ranks of both solutions are bounded by n and d "
        "(the caption says max(n, d); Lemma 1 and the size of W give min(n, d)), and the nuclear solution has the "
        "lower rank (Figure 4).",
    ),
]  # fmt: skip
