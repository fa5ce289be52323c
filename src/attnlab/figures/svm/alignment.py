"""Figures 7 and 10 of *Transformers as Support Vector Machines*: directions of W and of K Q^T."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Verdict
from attnlab.claims.scale import Scale
from attnlab.data import Tokens, sphere
from attnlab.data.tokens import Array
from attnlab.figures.figure import Arrays, Check, Facts, Figure, Finding, Tell
from attnlab.figures.style import BLUE, GREEN, ORANGE, PURPLE, new_figure, styled
from attnlab.figures.svm.batches import (
    RULE,
    STEP_SIZE,
    Norm,
    Parameterization,
    ended,
    listed,
    mean_interval,
    some,
    started,
    top_attention,
    train,
    train_along,
)
from attnlab.figures.svm.kept import draw_mean
from attnlab.figures.sweep import sweep, trials_of
from attnlab.svm import MarginSolutions, solve_margins

SEED_7, SEED_10 = 7, 10
STEPS = 2000
NORMS: tuple[Norm, ...] = ("frobenius", "nuclear")
D, WIDEST = 20, 10
# "Aligned" and "near 0.85", the cosine with the other norm's solution.
ALIGNED, CROSS = 0.99, (0.80, 0.90)
# 1 - cos at which a rank bound m counts as enough, and that m = 1 must exceed tenfold.
ENOUGH = 0.01


class Variant(NamedTuple):
    """One way to train: what, how it is drawn, and the label."""

    parameterization: Parameterization
    color: str
    style: str
    label: str


VARIANTS = {
    "W": Variant("W", BLUE, "-", "W"),
    "KQ": Variant("KQ", ORANGE, "--", "(K, Q)"),
    "KQ_free": Variant("KQ", PURPLE, ":", "(K, Q), no regularizer"),
    "KQ_exact": Variant("KQ", GREEN, "-.", "(K, Q), no regularizer, nothing added to norms"),
}
# The paper's rule adds 2.22e-16 in two places: as a regularizer, and to the norms that gradients are divided by.
SMALL_TERMS = {
    "KQ": "the paper's rule",
    "KQ_exact": "no regularizer, nothing added to norms",
    "KQ_free": "no regularizer",
}


def _rule(variant: str) -> Any:
    """The paper's rule; without its regularizer; and also without what it adds to norms."""
    from attnlab.optim import ngd

    if variant == "KQ_exact":
        return ngd(STEP_SIZE)
    if variant == "KQ_free":
        return ngd(STEP_SIZE, guard="paper", regularizer=0.0)
    return ngd(STEP_SIZE, guard="paper")


def directions_settings(scale: Scale) -> dict[str, Any]:
    """Of figure 7; `every` so many steps something is recorded."""
    return {"n": 6, "T": 8, "d": 10, "trials": scale.pick(8, 40, 100), "steps": STEPS, "every": scale.pick(100, 50, 20)}


def directions_block(point: Mapping[str, Any], seeds: NDArray[np.int64]) -> dict[str, np.ndarray]:
    """Attention and cosines along some runs of one variant, and how they ended."""
    from attnlab.train import cosine

    name, block = point["variant"], trials_of(seeds)
    trained = VARIANTS[name].parameterization
    every = sphere(n=point["n"], T=point["T"], d=point["d"], seed=SEED_7, trials=block.stop)
    tokens = some(every, np.arange(block.start, block.stop))
    start = started(every, trained, SEED_7, block)
    stops = list(range(0, point["steps"] + 1, point["every"]))
    run, path = train_along(tokens, trained, stops, seed=SEED_7, rule=_rule(name), init=start)
    at_end = ended(tokens, run.selected, run.W, trained)
    found = {"attention": top_attention(tokens, path)}
    found |= {key: at_end[key] for key in ("margin", "best", "local", "feasible")}
    for norm in NORMS:
        solved = solve_margins(tokens, run.selected, norm=norm)
        found[norm] = cosine(path, solved.W[:, None])
        found[f"{norm}_rank"] = _ranks(solved)
        found[f"{norm}_gap"] = solved.gap
        if norm == "nuclear":
            found["unique"] = np.array([solution.unique is True for solution in solved])
    return found


def directions_data(scale: Scale, tell: Tell, **settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Attention and cosines with both max-margin solutions of the tokens that each run selected, along the runs."""
    given = {**directions_settings(scale), **settings}
    trials = given.pop("trials")
    wanted = list(VARIANTS)[: scale.pick(2, 4, 4)]
    points = [{"variant": name, **given} for name in wanted]
    results = sweep(directions_block, points, trials, tell, "training W and (K, Q)")
    arrays: dict[str, np.ndarray] = {"steps": np.arange(0, given["steps"] + 1, given["every"])}
    facts: dict[str, Any] = {name: given[name] for name in ("n", "T", "d")}
    facts |= {"trials": trials, "steps": given["steps"], "rule": RULE, "loss": "logistic"}
    facts |= {"start": "entries uniform in +-1/sqrt(d)", "seed": SEED_7}
    for name, found in zip(wanted, results, strict=True):
        label = VARIANTS[name].label
        counts = [int(found["best"].sum()), int(found["local"].sum()), int((~found["feasible"]).sum())]
        facts[f"{label}: on the best tokens / locally optimal / not separable"] = counts
        facts[f"{label}: nuclear solutions that are not unique"] = int((~found["unique"]).sum())
        for key in ("attention", "margin"):
            arrays[f"{name}_{key}"] = found[key]
        for norm in NORMS:
            for key in (norm, f"{norm}_rank", f"{norm}_gap"):
                arrays[f"{name}_{key}"] = found[key]
    return arrays, facts


def _ranks(found: MarginSolutions) -> Array:
    return np.array([np.nan if s.rank is None else s.rank for s in found], dtype=float)


def judge_7(arrays: Arrays, facts: Facts) -> Finding:
    """Each parameterization aligned with its own solution at the end, and near 0.85 with the other; all by means."""
    ends = {
        (name, norm): arrays[f"{name}_{norm}"][:, -1]
        for name in VARIANTS
        for norm in NORMS
        if f"{name}_{norm}" in arrays
    }
    cosines = {pair: values[np.isfinite(values)] for pair, values in ends.items()}
    checks = [
        Check("attention under W saturates, largest weight >= 0.99", arrays["W_attention"][:, -1], at_least=ALIGNED),
        Check("attention under (K, Q) saturates, >= 0.99", arrays["KQ_attention"][:, -1], at_least=ALIGNED),
        Check("cosine of W and the Frobenius solution >= 0.99", cosines["W", "frobenius"], at_least=ALIGNED),
        Check("cosine of K Qᵀ and the nuclear solution >= 0.99", cosines["KQ", "nuclear"], at_least=ALIGNED),
    ]
    for pair, said in ((("W", "nuclear"), "W and the nuclear"), (("KQ", "frobenius"), "K Qᵀ and the Frobenius")):
        checks.append(Check(f"cosine of {said} solution >= {CROSS[0]}", cosines[pair], at_least=CROSS[0]))
        checks.append(Check(f"cosine of {said} solution <= {CROSS[1]}", cosines[pair], at_most=CROSS[1]))
    remarks = []
    if ("KQ_free", "nuclear") in cosines:
        remarks.append(
            "The second alignment needs the regularizer 2.22e-16 (|K|² + |Q|²) of the paper's rule: without it K Qᵀ "
            f"ends at a mean cosine of {cosines['KQ_free', 'nuclear'].mean():.3f}, and if 2.22e-16 is not added to "
            f"the norms that gradients are divided by either, at {cosines['KQ_exact', 'nuclear'].mean():.3f}, after "
            f"{facts['steps']} steps."
        )
    table = {
        f"{VARIANTS[name].label}, {norm} solution": {
            "mean cosine": float(values.mean()),
            "two standard errors": float(2.0 * values.std(ddof=1) / np.sqrt(len(values))),
            "least": float(values.min()),
            "sets": len(values),
        }
        for (name, norm), values in cosines.items()
    }
    margins = {name: arrays[f"{name}_margin"] for name in VARIANTS if f"{name}_margin" in arrays}
    gaps = [np.nanmax(values) for key, values in arrays.items() if key.endswith("_gap")]
    numbers = {
        f"{VARIANTS[name].label}: median least lead in logits": float(np.median(m)) for name, m in margins.items()
    }
    numbers["mean rank, Frobenius solutions"] = float(np.nanmean(arrays["W_frobenius_rank"]))
    numbers["mean rank, nuclear solutions"] = float(np.nanmean(arrays["KQ_nuclear_rank"]))
    numbers["largest duality gap"] = float(max(gaps))
    return Finding.of(*checks, table=table, remarks=remarks, numbers=numbers)


@styled
def draw_7(arrays: Arrays, facts: Facts) -> Any:
    """Attention, cosines with the two solutions, and what the small terms of the paper's rule do for (K, Q)."""
    variants = "KQ_free_nuclear" in arrays
    picture, axes = new_figure(2, 2, width=7.2, height=5.6) if variants else new_figure(1, 3, width=8.6, height=3.2)
    attention, frobenius, nuclear, *rest = axes.ravel()
    steps = arrays["steps"]
    for name in ("W", "KQ"):
        look = VARIANTS[name]
        for panel, key in ((attention, "attention"), (frobenius, "frobenius"), (nuclear, "nuclear")):
            draw_mean(panel, steps, arrays[f"{name}_{key}"], color=look.color, style=look.style, label=look.label)
    for panel in rest:
        for name in ("KQ", "KQ_exact", "KQ_free"):
            look, label = VARIANTS[name], SMALL_TERMS[name]
            draw_mean(panel, steps, arrays[f"{name}_nuclear"], color=look.color, style=look.style, label=label)
        panel.set(title="d  (K, Q) to the nuclear solution: small terms", ylabel="cosine")
    attention.set(title="a  Largest softmax weight", ylabel="mean over queries")
    frobenius.set(title="b  To the Frobenius solution", ylabel="cosine")
    nuclear.set(title="c  To the nuclear solution", ylabel="cosine")
    for panel in axes.ravel():
        panel.set(xlabel="step", xlim=(0, facts["steps"]), ylim=(0, 1.02))
        panel.legend(loc="lower right")
    size = f"n = {facts['n']}, T = {facts['T']}, d = {facts['d']}"
    picture.suptitle(f"{facts['trials']} sets, {size}: mean ± 2 standard errors", fontsize=8.5)
    return picture


def rank_bounds_settings(scale: Scale) -> dict[str, Any]:
    """Of figure 10."""
    return {"d": D, "trials": scale.pick(4, 10, 100), "steps": STEPS}


def rank_bounds_block(
    widths: tuple[int, ...], point: Mapping[str, Any], seeds: NDArray[np.int64]
) -> dict[str, np.ndarray]:
    """Of some runs at all widths, and how many nuclear problems were solved for them."""
    block = trials_of(seeds)
    every = sphere(n=point["n"], T=point["T"], d=point["d"], seed=SEED_10, trials=block.stop)
    apart, solutions, problems = _widths(every, widths, point["steps"], block)
    not_unique = [solution.unique is not True for solution in solutions]
    return {
        "apart": apart,
        "rank": _ranks(solutions)[: len(seeds)],
        "solved": np.bincount(problems, minlength=len(seeds)),
        "not_unique": np.bincount(problems, not_unique, minlength=len(seeds)),
    }


def rank_bounds_data(scale: Scale, tell: Tell, **settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """1 - cos of K Q^T with the nuclear solution of its tokens, for each width m of K and Q."""
    given = {**rank_bounds_settings(scale), **settings}
    trials = given.pop("trials")
    sizes = scale.pick(((5, 5),), ((5, 5), (15, 5), (5, 15)), ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15)))
    widths = scale.pick((1, 5), (1, 2, 3, 5, 10), tuple(range(1, 11)))
    points = [{"n": n, "T": T, **given} for n, T in sizes]
    results = sweep(partial(rank_bounds_block, widths), points, trials, tell, "training (K, Q) of all widths")
    arrays: dict[str, np.ndarray] = {"m": np.array(widths), "size": np.array(sizes)}
    arrays |= {key: np.stack([found[key] for found in results]) for key in ("apart", "rank")}
    facts = {
        **given, "trials per point": trials, "rule": RULE, "loss": "logistic", "seed": SEED_10,
        "start": "entries uniform in +-1/sqrt(d); a smaller m takes the first columns",
        "nuclear problems solved": sum(int(found["solved"].sum()) for found in results),
        "of these without a unique solution": sum(int(found["not_unique"].sum()) for found in results),
        "selections that cannot be separated": int(np.isnan(arrays["apart"]).sum()),
    }  # fmt: skip
    return arrays, facts


def _widths(
    every: Tokens, widths: tuple[int, ...], steps: int, block: slice
) -> tuple[Array, MarginSolutions, NDArray[np.intp]]:
    """1 - cos for every trial of a block and width, (trials, widths), the solutions compared with, and the trial of
    each solution; those of the widest runs come first.

    All widths run side by side in one program: columns of K and Q that start at zero in both stay there.
    """
    from attnlab.train import misalignment

    tokens = some(every, np.arange(block.start, block.stop))
    trials, d, wide = len(tokens.x), tokens.d, max(widths)
    rng = np.random.default_rng([SEED_10, tokens.n, tokens.T])
    start = rng.uniform(-1.0, 1.0, (block.stop, 1, 2, d, WIDEST))[block, ..., :wide] / np.sqrt(d)
    kept = np.arange(wide) < np.array(widths)[:, None, None, None]
    start = (start * kept).reshape(-1, 2, d, wide)
    each = np.repeat(np.arange(trials), len(widths))
    run = train(some(tokens, each), "KQ", steps=steps, seed=0, init={"K": start[:, 0], "Q": start[:, 1]})
    selected = run.selected.reshape(trials, len(widths), -1)
    # Most widths select the same tokens: each problem is solved once.
    order = np.arange(len(widths))[::-1]
    problems, where = _distinct(selected[:, order])
    solutions = solve_margins(some(tokens, problems[:, 0]), problems[:, 1:], norm="nuclear")
    apart = misalignment(run.W.reshape(trials, len(widths), d, d), solutions.W[where[:, order]])
    return apart, solutions, problems[:, 0]


def _distinct(selected: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The different rows (trial, selection...) of (trials, widths, n), first of all those of width 0 in order of
    trials, and the place of each (trial, width) among them."""
    trials, widths, n = selected.shape
    number = np.broadcast_to(np.arange(trials)[None, :, None], (widths, trials, 1))
    rows = np.concatenate([number, selected.transpose(1, 0, 2)], axis=-1).reshape(-1, n + 1)
    unique, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return unique[order], place[inverse.reshape(-1)].reshape(widths, trials).T


def _enough(arrays: Arrays) -> list[int | None]:
    """For each size the least m from which on the mean 1 - cos stays at most ENOUGH."""
    mean = np.nanmean(arrays["apart"], axis=1)
    found: list[int | None] = []
    for row in mean:
        late = [int(m) for i, m in enumerate(arrays["m"]) if (row[i:] <= ENOUGH).all()]
        found.append(late[0] if late else None)
    return found


def judge_10(arrays: Arrays, facts: Facts) -> Finding:
    """Small at and beyond m = n, large at m = 1."""
    mean = np.nanmean(arrays["apart"], axis=1)
    widths, sizes = arrays["m"], arrays["size"].tolist()
    beyond = [float(row[widths >= n].max()) for row, (n, _) in zip(mean, sizes, strict=True) if (widths >= n).any()]
    narrow = float(mean[:, widths == 1].min())
    enough = _enough(arrays)
    good = bool(beyond) and max(beyond) <= ENOUGH and narrow >= 10 * ENOUGH
    met = [f"{m} at n = {n}, T = {T}" for m, (n, T) in zip(enough, sizes, strict=True)]
    return Finding(
        seen=f"Mean 1 - cos falls from {narrow:.2f} or more at m = 1 to at most {max(beyond, default=np.nan):.4f} at "
        f"m >= n. Already less is enough: it stays below {ENOUGH} from m = {'; '.join(met)}. Mean rank of the nuclear "
        f"solutions: {', '.join(f'{r:.1f}' for r in np.nanmean(arrays['rank'], axis=1))}.",
        verdict=Verdict.HOLDS if good else Verdict.FAILS,
        numbers={f"mean 1 - cos, n = {n}, T = {T}, per m": listed(row, 5)
                 for row, (n, T) in zip(mean, sizes, strict=True)}
        | {"m": widths.tolist(), "least m with mean 1 - cos at most 0.01, per size": enough},
    )  # fmt: skip


@styled
def draw_10(arrays: Arrays, facts: Facts) -> Any:
    """Two panels: over T, and over n."""
    picture, axes = new_figure(1, 2, width=7.2, height=3.3)
    sizes = [tuple(size) for size in arrays["size"].tolist()]
    panels = ((axes[0, 0], "a  n = 5, several T", "T", 1, [s for s in sizes if s[0] == 5]),
              (axes[0, 1], "b  T = 5, several n", "n", 0, [s for s in sizes if s[1] == 5]))  # fmt: skip
    looks = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "^"))
    for panel, title, letter, varies, shown in panels:
        for size, (color, style, marker) in zip(sorted(shown), looks, strict=False):
            mean, low, high = mean_interval(arrays["apart"][sizes.index(size)])
            panel.fill_between(arrays["m"], low, high, color=color, alpha=0.2, linewidth=0)
            panel.plot(arrays["m"], mean, color=color, linestyle=style, marker=marker, markersize=4,
                       label=f"{letter} = {size[varies]}")  # fmt: skip
        panel.set(title=title, xlabel="width m of K and Q", yscale="log", ylim=(1e-3, 1.5))
        panel.set_xticks(arrays["m"])
        panel.legend(loc="upper right")
    axes[0, 0].set_ylabel("1 - cos(K Qᵀ, nuclear solution)\nmean, 95 % interval")
    return picture


FIGURES = [
    Figure(
        id="svm-7",
        axes={"steps": "step", "*_margin": "trial", "*_rank": "trial", "*_gap": "trial", "*": "trial step"},
        title="W goes to the Frobenius, (K, Q) to the nuclear max-margin solution", data=directions_data,
        settings=directions_settings,
        draw=draw_7, judge=judge_7, says="With n = 6, T = 8, d = 10 the softmax weights saturate (a), W aligns with "
        "the Frobenius max-margin solution of its tokens (b) and K Qᵀ with the nuclear one (c), each only with its own "
        "(Figure 7).",
    ),
    Figure(
        id="svm-10",
        axes={"m": "m", "size": "size part", "apart": "size trial m", "rank": "size trial"},
        title="How wide K and Q must be", data=rank_bounds_data, draw=draw_10, judge=judge_10,
        settings=rank_bounds_settings,
        says="With d = 20, 1 - cos of K Qᵀ with the nuclear max-margin solution goes to 0 once m is about n or more, "
        "whatever T (Figure 10).",
    ),
]  # fmt: skip
