"""Figures 2, 5 and 6 of *Transformers as Support Vector Machines*: which tokens do runs select?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Verdict
from attnlab.claims.scale import Scale
from attnlab.data import Tokens, optimal_tokens, sphere
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure, styled
from attnlab.figures.svm.batches import (
    NORM_NAMES,
    OWN,
    RULE,
    Parameterization,
    ended,
    listed,
    percent,
    some,
    started,
    train,
)
from attnlab.figures.sweep import sweep, trials_of
from attnlab.svm import solve_margins
from attnlab.theory.proportion import wilson

GAP = 0.1
STEPS = 4000
BOTH: tuple[Parameterization, ...] = ("W", "KQ")
SPELT = {"W": "W", "KQ": "(K, Q)"}
KINDS = ("best", "local", "proxy", "exact")
# An independent NumPy program with other seeds: hits of 60 trials, in the order of KINDS.
REFERENCE_TRIALS = 60
REFERENCE_SIZE = (5, 5)  # n and T
REFERENCE: dict[str, dict[int, tuple[int, int, int, int]]] = {
    "W": {2: (20, 52, 0, 0), 3: (30, 60, 0, 0), 5: (47, 60, 2, 0), 10: (60, 60, 43, 0), 20: (60, 60, 60, 1),
          40: (60, 60, 60, 20)},
    "KQ": {2: (19, 54, 0, 0), 3: (30, 59, 0, 0), 5: (48, 60, 0, 0), 10: (57, 60, 15, 0), 20: (60, 60, 51, 0),
           40: (60, 60, 60, 1)},
}  # fmt: skip
# Two programs disagree if the exact test would see such a difference by chance less often than this, over all tests.
LEVEL = 0.01
# "Tends to one": at the largest dimension at least this share of runs finds the best tokens.
NEARLY_ALL = 95.0


def _tokens(n: int, T: int, d: int, trials: int) -> Tokens:
    return sphere(n=n, T=T, d=d, gap=GAP, seed=100 + d, trials=trials)


def bars_block(point: Mapping[str, Any], seeds: NDArray[np.int64]) -> dict[str, np.ndarray]:
    """What some runs of one bar group ended with; figures 2 and 5 share those of W."""
    d, trained, block = point["d"], point["trained"], trials_of(seeds)
    every = _tokens(point["n"], point["T"], d, block.stop)
    tokens = some(every, np.arange(block.start, block.stop))
    start = started(every, trained, 100 + d, block)
    run = train(tokens, trained, steps=point["steps"], seed=100 + d, init=start)
    return {**ended(tokens, run.selected, run.W, trained), "attempts": every.info["attempts"][block]}


def bars_settings(scale: Scale) -> dict[str, Any]:
    """Of figures 2 and 5."""
    dims = scale.pick((20,), (2, 5, 10, 20), (2, 3, 5, 10, 20, 40))
    return {"n": 5, "T": 5, "d": dims, "trials": scale.pick(16, 60, 500), "steps": STEPS}


def _bars(
    tell: Tell, trained: tuple[Parameterization, ...], given: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    n, T, dims, trials, steps = (given[name] for name in ("n", "T", "d", "trials", "steps"))
    arrays: dict[str, np.ndarray] = {"d": np.array(dims)}
    cells = [(name, d) for name in trained for d in dims]
    points = [{"n": n, "T": T, "d": d, "trained": name, "steps": steps} for name, d in cells]
    results = sweep(bars_block, points, trials, tell, "training " + " and ".join(SPELT[name] for name in trained))
    found: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in trained}
    for (name, _), cell in zip(cells, results, strict=True):
        found[name].append(cell)
    for name in trained:
        arrays |= {f"{name}_{key}": np.stack([cell[key] for cell in found[name]]) for key in found[name][0]}
    attempts = arrays[f"{trained[0]}_attempts"]
    facts = {
        "n": n, "T": T, "trials per d": trials, "steps": steps, "rule": RULE, "loss": "logistic",
        "start": "entries uniform in +-1/sqrt(d)", "score gap": GAP, "seeds": [100 + d for d in dims],
        "sequences drawn for the score gap, per d": [int(a.sum()) for a in attempts],
        "sequences kept, per d": [int(a.size) for a in attempts],
        **{
            f"{SPELT[name]}: {what}, per d": (~arrays[f"{name}_{key}"]).sum(-1).tolist()
            for name in trained
            for key, what in (("feasible", "selections that cannot be separated"),
                              ("best_feasible", "best tokens that cannot be separated"))
        },
        **{
            f"{SPELT[name]}: runs with a query without support token, per d": arrays[f"{name}_loose"].sum(-1).tolist()
            for name in trained
        },
        **{f"{SPELT[name]}: largest duality gap": float(np.nanmax(arrays[f"{name}_gap"])) for name in trained},
    }  # fmt: skip
    return arrays, facts


def bars_of_w(scale: Scale, tell: Tell, **settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The runs of figure 5 (a), on their own."""
    return _bars(tell, ("W",), {**bars_settings(scale), **settings})


def bars_of_both(scale: Scale, tell: Tell, **settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """W and (K, Q) at n = T = 5 over the dimension."""
    return _bars(tell, BOTH, {**bars_settings(scale), **settings})


def _trained_in(arrays: Arrays) -> list[str]:
    return [name for name in BOTH if f"{name}_best" in arrays]


def unlike_reference(arrays: Arrays, kinds: tuple[str, ...], facts: Facts) -> tuple[float, int, str]:
    """How likely the largest difference from the reference is by chance: its exact p-value times the number of
    comparisons, that number, and where it is."""
    from scipy.stats import fisher_exact

    found = []
    compared = (facts["n"], facts["T"]) == REFERENCE_SIZE
    for name in _trained_in(arrays) if compared else []:
        for i, d in enumerate(arrays["d"].tolist()):
            for kind in kinds:
                if d in REFERENCE[name]:
                    mine, theirs = arrays[f"{name}_{kind}"][i], REFERENCE[name][d][KINDS.index(kind)]
                    table = [[int(mine.sum()), int((~mine).sum())], [theirs, REFERENCE_TRIALS - theirs]]
                    found.append((float(fisher_exact(table).pvalue), f"{SPELT[name]}, {kind}, d = {d}"))  # pyright: ignore[reportAttributeAccessIssue]
    least, where = min(found, default=(1.0, "nothing compared"))
    return min(1.0, least * len(found)), len(found), where


def _bars_finding(arrays: Arrays, kinds: tuple[str, ...], facts: Facts) -> Finding:
    chance, comparisons, where = unlike_reference(arrays, kinds, facts)
    dims, names = arrays["d"].tolist(), _trained_in(arrays)
    share = {(name, kind): [percent(row) for row in arrays[f"{name}_{kind}"]] for name in names for kind in KINDS}
    rises = all(share[name, "best"][-1] >= max(NEARLY_ALL, share[name, "best"][0]) for name in names)
    rarer = all((np.array(share[name, "proxy"]) <= share[name, "best"]).all() for name in names)
    alike = chance >= LEVEL
    seen = "; ".join(
        f"{SPELT[name]}: Global {', '.join(f'{v:.0f}' for v in share[name, 'best'])} % and Local "
        f"{', '.join(f'{v:.0f}' for v in share[name, 'local'])} % at d = {', '.join(map(str, dims))}"
        for name in names
    )
    if "proxy" in kinds:
        seen += "; B.1 by the 1.1 rule / exactly " + "; ".join(
            f"{SPELT[name]} " + ", ".join(
                f"{a:.0f}/{b:.0f}" for a, b in zip(share[name, "proxy"], share[name, "exact"], strict=True)
            ) + " %" for name in names
        )  # fmt: skip
    agreement = f" {'Agrees' if alike else 'Disagrees'} with an independent program of 60 trials per d."
    seen += f".{agreement if comparisons else ''}"
    return Finding(
        seen=seen,
        verdict=Verdict.HOLDS if rises and alike and (rarer or "proxy" not in kinds) else Verdict.FAILS,
        numbers={
            **{f"{SPELT[name]} {kind} %": listed(share[name, kind], 1) for name in names for kind in kinds},
            "Global rises to at least 95 %": rises,
            **({"B.1 (1.1 rule) never more frequent than Global": rarer} if "proxy" in kinds else {}),
            "chance of the largest difference from the reference": chance,
            "that difference": where,
            "comparisons with the reference": comparisons,
            **{
                f"{SPELT[name]} mean {what}, per d": listed(np.nanmean(arrays[f"{name}_{key}"], axis=-1))
                for name in names
                for key, what in (("cosine", "cosine with its max-margin solution"),
                                  ("attention", "largest softmax weight"), ("margin", "least lead in logits"))
            },
        },
    )  # fmt: skip


def judge_2(arrays: Arrays, facts: Facts) -> Finding:
    """Global and Local against the reference; Global rises to nearly all."""
    return _bars_finding(arrays, ("best", "local"), facts)


def judge_5(arrays: Arrays, facts: Facts) -> Finding:
    """All four kinds against the reference; Global rises to nearly all; B.1 is rarer."""
    return _bars_finding(arrays, KINDS, facts)


def _draw_bars(axes: Any, arrays: Arrays, name: str, with_b1: bool) -> None:
    """Percentages with 95 % intervals, one group per dimension."""
    local = arrays[f"{name}_local"]
    looks = [
        ("Global", arrays[f"{name}_best"], BLUE, ""),
        ("Local (Global included)", local, ORANGE, "\\\\\\"),
        ("Not Local", ~local, GREY, "///"),
    ]
    if with_b1:
        looks += [
            ("B.1: mean value < 1.1", arrays[f"{name}_proxy"], GREEN, "..."),
            ("B.1 exactly", arrays[f"{name}_exact"], PURPLE, "xxx"),
        ]
    place, width = np.arange(len(arrays["d"])), 0.84 / len(looks)
    for i, (label, hits, color, hatch) in enumerate(looks):
        share = hits.mean(-1)
        low, high = wilson(hits.sum(-1), hits.shape[-1])
        error = 100 * np.maximum([share - low, high - share], 0.0)
        axes.bar(place + (i - (len(looks) - 1) / 2) * width, 100 * share, 0.92 * width, yerr=error, color=color,
                 hatch=hatch, edgecolor="white", linewidth=0.3, label=label, zorder=2,
                 error_kw={"elinewidth": 0.8, "capsize": 1.5, "ecolor": "black"})  # fmt: skip
    axes.set_xticks(place, [str(d) for d in arrays["d"]])
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="dimension d", ylabel="% of runs (95 % interval)", ylim=(0, 105))


@styled
def draw_2(arrays: Arrays, facts: Facts) -> Any:
    """Bars of W without B.1."""
    picture, axes = new_figure(1, 1, width=5.6, height=3.2)
    _draw_bars(axes[0, 0], arrays, "W", with_b1=False)
    size = f"n = {facts['n']}, T = {facts['T']}"
    axes[0, 0].set(title=f"Training W: selected tokens, {size}, {facts['trials per d']} sets per d")
    picture.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return picture


@styled
def draw_5(arrays: Arrays, facts: Facts) -> Any:
    """Bars of W and of (K, Q)."""
    picture, axes = new_figure(2, 1, width=7.2, height=5.8)
    for panel, letter, name in zip(axes[:, 0], "ab", BOTH, strict=True):
        _draw_bars(panel, arrays, name, with_b1=True)
        panel.set(title=f"{letter}  Training {SPELT[name]}; B.1 at the {NORM_NAMES[OWN[name]]} max-margin matrix "
                  f"of the best tokens; {facts['trials per d']} sets per d")  # fmt: skip
    picture.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return picture


def sizes_block(point: Mapping[str, Any], seeds: NDArray[np.int64]) -> dict[str, np.ndarray]:
    """Which of some runs find the best tokens, for W and for (K, Q), and whether these can be separated."""
    d, block = point["d"], trials_of(seeds)
    every = _tokens(point["n"], point["T"], d, block.stop)
    tokens = some(every, np.arange(block.start, block.stop))
    best = optimal_tokens(tokens)
    found = {
        "attempts": every.info["attempts"][block].sum(-1),
        "best_feasible": solve_margins(tokens, best).feasible,
    }
    for name in BOTH:
        start = started(every, name, 100 + d, block)
        run = train(tokens, name, steps=point["steps"], seed=100 + d, init=start)
        found[f"{name}_best"] = (run.selected == best).all(-1)
    return found


def sizes_settings(scale: Scale) -> dict[str, Any]:
    """Of figure 6. Twice as many steps changed none of 384 answers, at four sizes with small d."""
    return {
        "d": scale.pick((20,), (5, 40), (5, 10, 20, 40, 80)),
        "trials": scale.pick(16, 16, 100),
        "steps": scale.pick(1000, 2000, 2000),
    }


def sizes_data(scale: Scale, tell: Tell, **settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Who finds the best tokens, over the dimension, for several n and T."""
    given = {**sizes_settings(scale), **settings}
    sizes = scale.pick(((5, 5),), ((5, 5), (20, 5), (5, 20)), ((5, 5), (10, 5), (20, 5), (5, 10), (5, 20)))
    dims, trials, steps = given["d"], given["trials"], given["steps"]
    points = [{"n": n, "T": T, "d": d, "steps": steps} for n, T in sizes for d in dims]
    results = sweep(sizes_block, points, trials, tell, "training W and (K, Q)")
    arrays: dict[str, np.ndarray] = {"d": np.array(dims), "size": np.array(sizes)}
    for name in results[0]:
        arrays[name] = np.stack([cell[name] for cell in results]).reshape(len(sizes), len(dims), trials)
    drawn = arrays["attempts"].sum(-1)
    facts = {
        "trials per point": trials, "steps": steps, "rule": RULE, "loss": "logistic", "score gap": GAP,
        "start": "entries uniform in +-1/sqrt(d)", "seeds": [100 + d for d in dims],
        "sizes (n, T)": [list(size) for size in sizes],
        "sequences drawn for the score gap, per size and d": drawn.tolist(),
        "sequences kept, per size": [n * trials for n, _ in sizes],
        "best tokens that cannot be separated, per size and d": (~arrays["best_feasible"]).sum(-1).tolist(),
    }  # fmt: skip
    return arrays, facts


def judge_6(arrays: Arrays, facts: Facts) -> Finding:
    """Each curve rises, and at the largest dimension nearly all runs find the best tokens."""
    ends, rises, numbers = [], True, {}
    for name in BOTH:
        share = 100 * arrays[f"{name}_best"].mean(-1)
        ends += share[:, -1].tolist()
        rises &= bool((share[:, -1] >= share[:, 0]).all())
        for (n, T), row in zip(arrays["size"].tolist(), share, strict=True):
            numbers[f"{SPELT[name]} Global %, n = {n}, T = {T}, per d"] = listed(row, 1)
    trials = arrays["W_best"].shape[-1]
    _, high = wilson(np.array(ends) / 100 * trials, trials)
    reached = bool((100 * high >= NEARLY_ALL).all())
    dims = arrays["d"].tolist()
    return Finding(
        seen=f"The share of runs on the best tokens rises with d for every n and T; at d = {dims[-1]} it is "
        f"{min(ends):.0f} to {max(ends):.0f} %." if rises else
        f"Some curve is lower at d = {dims[-1]} than at d = {dims[0]}.",
        verdict=Verdict.HOLDS if rises and reached else Verdict.FAILS,
        numbers={**numbers, "d": dims, "95 % reached at the largest d within sampling error": reached},
    )  # fmt: skip


@styled
def draw_6(arrays: Arrays, facts: Facts) -> Any:
    """Two panels: over n, and over T; solid for W, dashed for (K, Q)."""
    picture, axes = new_figure(1, 2, width=7.2, height=3.3)
    sizes = [tuple(size) for size in arrays["size"].tolist()]
    panels = ((axes[0, 0], "a  T = 5, several n", 0, [s for s in sizes if s[1] == 5]),
              (axes[0, 1], "b  n = 5, several T", 1, [s for s in sizes if s[0] == 5]))  # fmt: skip
    for panel, title, varies, shown in panels:
        for size, color, marker in zip(shown, (BLUE, ORANGE, GREEN), "os^", strict=False):
            for name, style in (("W", "-"), ("KQ", "--")):
                hits = arrays[f"{name}_best"][sizes.index(size)]
                low, high = wilson(hits.sum(-1), hits.shape[-1])
                panel.fill_between(arrays["d"], 100 * low, 100 * high, color=color, alpha=0.13, linewidth=0)
                panel.plot(arrays["d"], 100 * hits.mean(-1), color=color, linestyle=style, marker=marker, markersize=4,
                           label=f"{SPELT[name]}, {'nT'[varies]} = {size[varies]}")  # fmt: skip
        panel.set(title=title, xscale="log", xlabel="dimension d", ylim=(-3, 103))
        panel.set_xticks(arrays["d"], [str(d) for d in arrays["d"]])
        panel.minorticks_off()
        panel.legend(loc="lower right", handlelength=3.2)
    axes[0, 0].set_ylabel("% of runs on the best tokens\n(shaded: 95 % interval)")
    return picture


FIGURES = [
    Figure(
        id="svm-2",
        axes={"d": "d", "*_attempts": "d trial sequence", "*": "d trial"},
        title="Training W: global and local convergence over the dimension", data=bars_of_w, draw=draw_2,
        judge=judge_2, settings=bars_settings,
        says="With n = T = 5, runs that train W select locally optimal tokens, and the share that "
        "selects the best tokens (Global) rises to 100 % as d grows (Figure 2; the setting of Figure 5 a).",
    ),
    Figure(
        id="svm-5",
        axes={"d": "d", "*_attempts": "d trial sequence", "*": "d trial"},
        title="Global and local convergence of W and (K, Q), with Assumption B.1", data=bars_of_both,
        draw=draw_5, judge=judge_5, settings=bars_settings,
        says="With n = T = 5 and 500 sets per d, the share of runs that select the best "
        "tokens (Global) rises to 100 % with d, for W (a) and for (K, Q) (b); Assumption B.1, counted as met when the "
        "mean constraint value is below 1.1, is met less often than that (Figure 5).",
    ),
    Figure(
        id="svm-6",
        axes={"d": "d", "size": "size part", "*": "size d trial"},
        title="Global convergence over n, T and d", data=sizes_data, draw=draw_6, judge=judge_6,
        settings=sizes_settings,
        says="The probability that W (solid) and (K, Q) (dashed) converge to the best tokens tends to 1 as d grows, "
        "for n and T up to 20 (Figure 6).",
    ),
]  # fmt: skip
