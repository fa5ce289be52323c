"""Figure 1 of *Transformers as Support Vector Machines*, and a demonstration in place of its Figure 3: in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.claims.claim import Verdict
from attnlab.claims.scale import Scale
from attnlab.data import Tokens, optimal_tokens, two_clusters
from attnlab.data.tokens import Array
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, band, new_figure, styled
from attnlab.figures.svm.batches import NORM_NAMES, OWN, RULE, Norm, Parameterization, listed, train_along
from attnlab.svm import linear_margin, solve_margins

SEED_1, SEED_3 = 1, 3
STEPS = 2000
BOTH: tuple[Parameterization, ...] = ("W", "KQ")
NORMS: tuple[Norm, ...] = ("frobenius", "nuclear")
SPELT = {"W": "W", "KQ": "K Qᵀ"}
# Sets whose two solutions have a smaller cosine tell the norms apart.
APART = 0.95
# The least cosine that an independent program saw with the own solution, over eight sets.
REFERENCE = 0.9868


def clusters_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """W and (K, Q) on sets of two sequences in the plane, with both max-margin solutions of what each selected."""
    from attnlab.train import cosine, misalignment

    trials = scale.pick(8, 40, 100)
    tokens = two_clusters(seed=SEED_1, trials=trials)
    best = optimal_tokens(tokens)
    rng = np.random.default_rng([SEED_1, 2])
    start = {"W": np.zeros((trials, 2, 2)),
             "KQ": {"K": 0.1 * rng.standard_normal((trials, 2, 2)), "Q": np.zeros((trials, 2, 2))}}  # fmt: skip
    record = np.unique(np.geomspace(1, STEPS, scale.pick(40, 120, 120)).astype(int)).tolist()
    arrays: dict[str, np.ndarray] = {"x": tokens.x, "z": tokens.z, "steps": np.array([0, *record])}
    infeasible = 0
    for i, name in enumerate(BOTH):
        tell(i, len(BOTH), f"training {SPELT[name]}")
        run, path = train_along(tokens, name, arrays["steps"].tolist(), seed=SEED_1, init=start[name])
        arrays |= {f"{name}_path": path, f"{name}_selected": run.selected,
                   f"{name}_best": (run.selected == best).all(-1)}  # fmt: skip
        for norm in NORMS:
            found = solve_margins(tokens, run.selected, norm=norm)
            infeasible += int((~found.feasible).sum())
            arrays[f"{name}_{norm}"] = found.W
            arrays[f"{name}_{norm}_apart"] = misalignment(path[:, 1:], found.W[:, None])
        arrays[f"{name}_between"] = cosine(arrays[f"{name}_frobenius"], arrays[f"{name}_nuclear"])
    tell(len(BOTH), len(BOTH), "done")
    facts = {
        "n": 2, "T": 3, "d": 2, "trials": trials, "steps": STEPS, "rule": RULE, "loss": "logistic", "seed": SEED_1,
        "start": "W = 0; K Gaussian of deviation 0.1, Q = 0",
        "selections that cannot be separated": infeasible,
        "shown": int(np.flatnonzero(_telling(arrays))[0]) if _telling(arrays).any() else 0,
        "shown is": "the first set whose two solutions have a cosine below 0.95 and where both runs select the same",
    }  # fmt: skip
    return arrays, facts


def _telling(arrays: Arrays) -> np.ndarray:
    """Sets where both runs select the same tokens and the two solutions differ enough to tell the norms apart."""
    same = (arrays["W_selected"] == arrays["KQ_selected"]).all(-1)
    return same & (arrays["W_between"] < APART)


def judge_1(arrays: Arrays, facts: Facts) -> Finding:
    """Each ends near its own solution; where the two differ, nearer to its own than to the other."""
    telling, numbers, good, parts = _telling(arrays), {}, True, []
    for name in BOTH:
        other = next(norm for norm in NORMS if norm != OWN[name])
        own, cross = (1 - arrays[f"{name}_{norm}_apart"][:, -1] for norm in (OWN[name], other))
        nearer = int((own > cross)[telling].sum())
        median = float(np.nanmedian(own))
        good &= median >= REFERENCE and bool((own > cross)[facts["shown"]]) and 2 * nearer > telling.sum()
        parts.append(
            f"{SPELT[name]} ends at median cosine {median:.4f} with the {NORM_NAMES[OWN[name]]} solution, and is "
            f"nearer to it than to the other one in {nearer} of the {int(telling.sum())} sets that tell"
        )
        numbers |= {
            f"{SPELT[name]} cosine with its own solution: median, least": listed([median, np.nanmin(own)]),
            f"{SPELT[name]} in the set shown: own, other": listed([own[facts["shown"]], cross[facts["shown"]]]),
            f"{SPELT[name]} on the best tokens": int(arrays[f"{name}_best"].sum()),
            f"{SPELT[name]} separates its tokens in another direction (cosine below 0.9)": int((own < 0.9).sum()),
        }
    numbers |= {"sets": len(telling), "sets that tell": int(telling.sum()),
                "cosine of the two solutions in the set shown": float(arrays["W_between"][facts["shown"]])}  # fmt: skip
    return Finding(seen="; ".join(parts) + ".", verdict=Verdict.HOLDS if good and telling.any() else Verdict.FAILS,
                   numbers=numbers)  # fmt: skip


def _compressed(curve: Array) -> Array:
    """Lengths on a log scale, directions as they are."""
    length = np.linalg.norm(curve, axis=-1, keepdims=True)
    return curve / np.where(length > 0, length, 1.0) * np.log10(1.0 + length)


@styled
def draw_1(arrays: Arrays, facts: Facts) -> Any:
    """One set in the plane for W and for (K, Q), and all sets that tell as curves."""
    picture, axes = new_figure(1, 3, width=9.4, height=3.9)
    shown = facts["shown"]
    for panel, letter, name, color in zip(axes[0, :2], "ab", BOTH, (BLUE, ORANGE), strict=True):
        _draw_set(panel, arrays, shown, name, color)
        panel.set(title=f"{letter}  {SPELT[name]} z; length log10(1 + |.|)", xlabel="first coordinate")
    axes[0, 0].set_ylabel("second coordinate")
    handles = dict(zip(*reversed(axes[0, 0].get_legend_handles_labels()), strict=True))
    handles |= dict(zip(*reversed(axes[0, 1].get_legend_handles_labels()), strict=True))
    picture.legend(handles.values(), handles.keys(), loc="outside lower left", ncols=4)
    curves, telling, steps = axes[0, 2], _telling(arrays), arrays["steps"][1:]
    looks = {("W", "frobenius"): (BLUE, "-"), ("KQ", "nuclear"): (ORANGE, "--"), ("W", "nuclear"): (GREY, ":"),
             ("KQ", "frobenius"): (PURPLE, "-.")}  # fmt: skip
    for (name, norm), (color, style) in looks.items():
        values = arrays[f"{name}_{norm}_apart"][telling]
        if len(values):
            band(curves, steps, values, color=color, style=style, label=f"{SPELT[name]}, {NORM_NAMES[norm]}")
    curves.set(title="c  1 - cos with each solution", xlabel="step", xscale="log", yscale="log")
    curves.legend(loc="lower left", title=f"{int(telling.sum())} sets that tell:\nmedian, middle 80 %")
    return picture


def _draw_set(axes: Any, arrays: Arrays, shown: int, name: str, color: str) -> None:
    """Tokens, the path of W z for each query, and the rays of both solutions."""
    ends = []
    for i, marker in enumerate("os"):
        tokens, z = arrays["x"][shown, i], arrays["z"][shown, i]
        axes.scatter(*tokens.T, marker=marker, s=20, facecolor="white", edgecolor="black", linewidth=0.8, zorder=3,
                     label=f"tokens of sequence {i + 1}")  # fmt: skip
        axes.scatter(*tokens[arrays[f"{name}_selected"][shown, i]], marker=marker, s=26, color="black", zorder=4,
                     label="selected" if i == 0 else None)  # fmt: skip
        curve = _compressed(arrays[f"{name}_path"][shown] @ z)
        axes.plot(*curve.T, color=color, linewidth=2.2, label=f"{SPELT[name]} z along the run" if i == 0 else None)
        axes.annotate("", xy=curve[-1], xytext=curve[-2], arrowprops={"arrowstyle": "->", "color": color, "lw": 1.6})
        length = 1.25 * np.linalg.norm(curve[-1])
        for norm, style, shade in (("frobenius", "-", GREEN), ("nuclear", "--", PURPLE)):
            ray = arrays[f"{name}_{norm}"][shown] @ z
            ray = length * ray / np.linalg.norm(ray)
            axes.plot([0, ray[0]], [0, ray[1]], color=shade, linestyle=style, linewidth=1, zorder=1,
                      label=f"{NORM_NAMES[norm]} solution" if i == 0 else None)  # fmt: skip
        ends.append((f"query {i + 1}", curve[-1]))
    for text, at in ends:
        axes.annotate(text, at, textcoords="offset points", xytext=(5, 3), fontsize=7.5)
    axes.set_aspect("equal", adjustable="datalim")


def separation_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Logistic regression on labelled points, attention on one sequence of tokens; each with its hard-margin limit."""
    from attnlab.train import misalignment

    sets, many = scale.pick(4, 20, 100), 12
    rng = np.random.default_rng(SEED_3)
    truth = _unit(rng, sets, 2)
    points = rng.standard_normal((sets, many, 2))
    labels = np.where(np.einsum("rid,rd->ri", points, truth) > 0, 1.0, -1.0)
    points += 0.3 * labels[..., None] * truth[:, None]  # so that the labels can be separated
    record = np.unique(np.geomspace(1, STEPS, 50).astype(int))
    tell(0, 2, "logistic regression")
    path = logistic_path(points, labels, record)
    limit = np.stack([_direction(p, y) for p, y in zip(points, labels, strict=True)])
    tell(1, 2, "attention")
    tokens = Tokens(x=rng.standard_normal((sets, 1, many, 2)), z=np.tile([1.0, 0.0], (sets, 1, 1)),
                    y=np.ones((sets, 1)), v=_unit(rng, sets, 2))  # fmt: skip
    run, weights = train_along(tokens, "W", record.tolist(), seed=SEED_3, init="zeros")
    found = solve_margins(tokens, run.selected)
    tell(2, 2, "done")
    arrays = {
        "steps": record, "points": points, "labels": labels, "regression": limit, "regression_path": path,
        "regression_apart": misalignment(path[:, :, None], limit[:, None, None]),
        "tokens": tokens.x[:, 0], "selected": run.selected[:, 0], "attention": found.W[..., 0],
        "attention_path": weights[..., 0],
        "attention_apart": misalignment(weights, found.W[:, None]),
        "best": run.selected[:, 0] == optimal_tokens(tokens)[:, 0],
    }  # fmt: skip
    facts = {
        "sets": sets, "points, and tokens, per set": many, "steps": STEPS, "seed": SEED_3, "shown": 0,
        "rule": "normalized GD, step 0.1, from 0, for both",
        "selections that cannot be separated": int((~found.feasible).sum()),
    }  # fmt: skip
    return arrays, facts


def logistic_path(points: Array, labels: Array, record: np.ndarray) -> Array:
    """Normalized gradient descent on the logistic loss without bias, from 0; weights at the recorded steps."""
    signed = labels[..., None] * points
    weights, path = np.zeros((len(points), 2)), []
    for step in range(1, int(record[-1]) + 1):
        # Only the direction counts: the largest of the factors 1 / (1 + e^margin) is brought to 1.
        log_factor = -np.logaddexp(0.0, np.einsum("rid,rd->ri", signed, weights))
        factor = np.exp(log_factor - log_factor.max(-1, keepdims=True))
        descent = np.einsum("ri,rid->rd", factor, signed)
        weights = weights + 0.1 * descent / np.linalg.norm(descent, axis=-1, keepdims=True)
        if step in record:
            path.append(weights)
    return np.stack(path, axis=1)


def _direction(points: Array, labels: Array) -> Array:
    weights = linear_margin(points, labels).weights
    return np.full(2, np.nan) if weights is None else weights


def _unit(rng: np.random.Generator, *shape: int) -> Array:
    gaussian = rng.standard_normal(shape)
    return gaussian / np.linalg.norm(gaussian, axis=-1, keepdims=True)


def judge_3(arrays: Arrays, facts: Facts) -> Finding:
    """Both end along their hard-margin direction."""
    end = {name: arrays[f"{name}_apart"][:, -1] for name in ("regression", "attention")}
    good = all(float(np.nanmedian(apart)) <= 0.01 for apart in end.values())
    return Finding(
        seen="Median 1 - cos with the hard-margin direction at the end: "
        f"{np.nanmedian(end['regression']):.1e} for logistic regression, which separates labels, and "
        f"{np.nanmedian(end['attention']):.1e} for attention, which separates the selected token from the others.",
        verdict=Verdict.HOLDS if good else Verdict.FAILS,
        numbers={f"1 - cos, {name}: median, largest": [float(np.nanmedian(v)), float(np.nanmax(v))]
                 for name, v in end.items()} | {"attention on the best token": int(arrays["best"].sum()),
                                                "sets": int(facts["sets"])},
    )  # fmt: skip


@styled
def draw_3(arrays: Arrays, facts: Facts) -> Any:
    """Labels separated; tokens separated; and how both directions settle."""
    picture, axes = new_figure(1, 3, width=9.4, height=3.5)
    picture.suptitle("Our own demonstration: logistic regression separates labels, attention separates tokens",
                     fontsize=9)  # fmt: skip
    shown, (left, middle, right) = facts["shown"], axes[0]
    points, labels = arrays["points"][shown], arrays["labels"][shown]
    for sign, marker, face in ((1, "o", "black"), (-1, "s", "white")):
        left.scatter(*points[labels == sign].T, marker=marker, s=22, facecolor=face, edgecolor="black", linewidth=0.8,
                     label=f"label {sign:+d}", zorder=3)  # fmt: skip
    _draw_margin(left, arrays["regression"][shown], arrays["regression_path"][shown, -1], BLUE, (-1.0, 0.0, 1.0))
    tokens, chosen = arrays["tokens"][shown], arrays["selected"][shown]
    middle.scatter(*np.delete(tokens, chosen, axis=0).T, marker="s", s=22, facecolor="white", edgecolor="black",
                   linewidth=0.8, label="other tokens", zorder=3)  # fmt: skip
    middle.scatter(*tokens[chosen], marker="o", s=26, color="black", label="selected token", zorder=3)
    top = float(tokens[chosen] @ arrays["attention"][shown])
    _draw_margin(middle, arrays["attention"][shown], arrays["attention_path"][shown, -1], ORANGE,
                 (top - 1.0, top - 0.5, top))  # fmt: skip
    for panel, spread, title in ((left, points, "a  Logistic regression"), (middle, tokens, "b  Attention, one query")):
        low, high = spread.min(0) - 0.8, spread.max(0) + 0.8
        panel.set(title=title, xlabel="first coordinate", xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        panel.set_aspect("equal", adjustable="box")
    left.set_ylabel("second coordinate")
    handles = [axis.get_legend_handles_labels() for axis in (left, middle)]
    names = dict(zip(handles[0][1] + handles[1][1], handles[0][0] + handles[1][0], strict=True))
    picture.legend(names.values(), names.keys(), loc="outside lower center", ncols=4)
    for name, color, style in (("regression", BLUE, "-"), ("attention", ORANGE, "--")):
        band(right, arrays["steps"], arrays[f"{name}_apart"], color=color, style=style,
             label={"regression": "logistic regression", "attention": "attention"}[name])  # fmt: skip
    right.set(title="c  1 - cos with the hard-margin limit", xlabel="step", xscale="log", yscale="log")
    right.legend(loc="lower left", title=f"{facts['sets']} sets: median, middle 80 %")
    return picture


def _draw_margin(axes: Any, limit: Array, trained: Array, color: str, levels: tuple[float, float, float]) -> None:
    """The lines limit.x = level, dashed at the two ends of the margin, and the trained direction as an arrow."""
    along = np.array([-limit[1], limit[0]]) / np.linalg.norm(limit)
    for level, style in zip(levels, ("--", "-", "--"), strict=True):
        foot = level * limit / (limit @ limit)
        ends = np.stack([foot - 20 * along, foot + 20 * along])
        axes.plot(*ends.T, color=GREY, linestyle=style, linewidth=1,
                  label={"-": "hard-margin line", "--": "margin"}[style])  # fmt: skip
    foot = levels[1] * limit / (limit @ limit)
    axes.annotate("", xy=foot + trained / np.linalg.norm(trained), xytext=foot,
                  arrowprops={"arrowstyle": "->", "color": color, "lw": 2.0})  # fmt: skip
    axes.plot([], [], color=color, linewidth=2, label="trained u" if color == BLUE else "trained W z")


FIGURES = [
    Figure(
        id="svm-1",
        axes={
            "steps": "step",
            "x": "trial sequence token axis",
            "z": "trial sequence axis",
            "*_path": "trial step row column",
            "*_apart": "trial record",
            "*_selected": "trial sequence",
            "*_best": "trial",
            "*_between": "trial",
            "*": "trial row column",
        },
        title="Paths of W and (K, Q) in the plane", data=clusters_data, draw=draw_1, judge=judge_1,
        says="With n = d = 2 and T = 3, W z goes along the Frobenius max-margin solution and K Qᵀ z along the nuclear "
        "one (Figure 1).",
    ),
    Figure(
        id="svm-3",
        axes={
            "steps": "step",
            "points": "trial point axis",
            "labels": "trial point",
            "tokens": "trial token axis",
            "*_path": "trial step axis",
            "*_apart": "trial step",
            "regression": "trial axis",
            "attention": "trial axis",
            "*": "trial",
        },
        title="Our own demonstration: labels separated, tokens separated", data=separation_data,
        draw=draw_3, judge=judge_3, says="Figure 3 is a drawing without data: logistic regression finds the max-margin "
        "separator of labels, attention that of the selected tokens from the others. This is our own demonstration of "
        "it in two dimensions.",
    ),
]  # fmt: skip
