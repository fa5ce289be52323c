"""Figure 8 of *Implicit Bias and Fast Convergence Rates for Self-attention*: a start that favours a wrong token."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.claims.claim import Verdict
from attnlab.claims.scale import Scale
from attnlab.data import bad_direction, optimal_tokens, scores
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.rates.curves import arrival, number, run_rule, spelt
from attnlab.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure, styled
from attnlab.svm import solve_margin

STEP, STEPS = 0.1, 20_000
SHOWN, TRAPPED = 0.1, 0.4  # c of the start W = -c I: as small as the paper means, and too large
KEPT = ("loss", "log_excess_loss", "attention_min", "misalignment_svm", "each")
ARRIVED = 0.01  # 1 - cos, and attention off the best tokens, at which a run counts as arrived


def _each(view: Any) -> Any:
    """Softmax weights of every sequence, (n, T)."""
    return view.probs[:, 0]


def start_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Gradient descent from W = -c I for many c side by side."""
    from attnlab.optim import gd

    sizes = np.unique([*np.linspace(0.05, 1.0, scale.pick(6, 20, 39)).round(4), SHOWN, TRAPPED])
    one, tokens = bad_direction(), bad_direction(trials=len(sizes))
    best = optimal_tokens(one)
    margin = solve_margin(one, best)
    tell(0, 1, f"{len(sizes)} starts")
    arrays = run_rule(
        tokens, gd(STEP), KEPT, steps=STEPS, init=-sizes[:, None, None] * np.eye(2), record=scale.pick(20, 40, 40),
        targets={"svm": margin.W}, metrics={"each": _each},
    )  # fmt: skip
    tell(1, 1, "done")
    probs = arrays.pop("each")  # (starts, records, n, T)
    arrays["opt"] = np.take_along_axis(probs, best[None, None, :, None], axis=-1)[..., 0]
    arrays |= {
        "sizes": sizes, "x": one.x, "best": best, "W_mm": margin.W,
        "floor": np.exp(-scores(one).max(-1)).mean(),
    }  # fmt: skip
    facts = {
        "n": 2, "T": 2, "d": 2, "steps": STEPS, "rule": f"GD, step {STEP}", "loss": "exponential, head fixed",
        "start": "W = -c I", "c shown, and too large": [SHOWN, TRAPPED], "starts": len(sizes),
        "duality gap of W_mm": float(margin.gap),
        "the paper does not say": "the start, its size, the step size, the number of steps",
    }  # fmt: skip
    return arrays, facts


def _at(arrays: Arrays, c: float) -> int:
    return int(np.flatnonzero(np.isclose(arrays["sizes"], c))[0])


def _escapes(arrays: Arrays) -> np.ndarray:
    """Starts from which the run has arrived, or is on its way with every best token in the majority."""
    return arrays["attention_min"][:, -1] > 0.5


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """The small start ends along W_mm though sequence 2 begins below one half; where larger starts are caught."""
    small, large = _at(arrays, SHOWN), _at(arrays, TRAPPED)
    cosine = 1 - arrays["misalignment_svm"]
    first, last = arrays["opt"][small, 0], arrays["opt"][small, -1]
    excess = np.exp(arrays["log_excess_loss"][:, -1])
    free = _escapes(arrays)
    largest, least = (
        float(f(arrays["sizes"][ok])) if ok.any() else np.nan for f, ok in ((np.max, free), (np.min, ~free))
    )
    shown = {
        "sequence 2 begins below one half, sequence 1 above": bool(first[1] < 0.5 < first[0]),
        "attention on both best tokens goes to 1": bool((1 - last).max() <= ARRIVED),
        "W aligns with W_mm": bool(arrays["misalignment_svm"][small, -1] <= ARRIVED),
        "the loss goes to its floor": bool(excess[small] <= ARRIVED),
    }
    missed = [name for name, good in shown.items() if not good]
    when = arrival(arrays["steps"], arrays["misalignment_svm"], ARRIVED)[small]
    seen = (
        f"From W = -{SHOWN} I attention on the best token of sequence 2 rises from {first[1]:.3f} to {last[1]:.4f} and "
        f"the cosine with W_mm from {cosine[small, 0]:.3f} to {cosine[small, -1]:.4f} (0.99 at step {spelt(when)}); "
        f"the loss ends {excess[small]:.1e} above its floor. The size of the start matters: of the sizes c tried in "
        f"W = -c I, c = {largest:g} is the largest that escapes and c = {least:g} the least that is trapped. From "
        f"c = {TRAPPED} the cosine ends at {cosine[large, -1]:.2f}, attention on the best token of sequence 2 falls "
        f"from {arrays['opt'][large, 0, 1]:.3f} to {arrays['opt'][large, -1, 1]:.1e}, the loss stays "
        f"{excess[large]:.2f} above."
    )
    if missed:
        seen += f" Not seen: {'; '.join(missed)}."
    numbers = {
        "c": [number(c) for c in arrays["sizes"]], "cosine at the end, per c": [number(v) for v in cosine[:, -1]],
        "attention on the best token of sequence 2 at the end, per c": [number(v) for v in arrays["opt"][:, -1, 1]],
        "escapes, per c": free.tolist(), "shown": shown,
    }  # fmt: skip
    return Finding(seen=seen, verdict=Verdict.FAILS if missed else Verdict.HOLDS, numbers=numbers)


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """Tokens with both directions; then attention, direction and loss of the two starts, and all starts."""
    picture, axes = new_figure(2, 3, width=9.6, height=5.8)
    small, large = _at(arrays, SHOWN), _at(arrays, TRAPPED)
    steps = arrays["steps"] + 1  # the start itself has a place on a log axis
    for i in (0, 1):
        _draw_tokens(axes[0, i], arrays, i)
    attention, direction, loss, every = axes[0, 2], *axes[1]
    for at, c, style in ((small, SHOWN, "-"), (large, TRAPPED, "--")):
        for i, color in ((0, BLUE), (1, ORANGE)):
            attention.plot(steps, arrays["opt"][at, :, i], color=color, linestyle=style,
                           label=f"sequence {i + 1}, c = {c}")  # fmt: skip
        direction.plot(steps, arrays["misalignment_svm"][at], color=GREEN, linestyle=style, label=f"c = {c}")
        loss.plot(steps, arrays["loss"][at], color=PURPLE, linestyle=style, label=f"c = {c}")
    attention.axhline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    attention.set(title="c  Attention on the best token", ylabel="softmax weight", ylim=(-0.03, 1.05))
    attention.legend(loc="lower right", bbox_to_anchor=(1.0, 0.05))
    direction.set(title="d  Direction", ylabel="1 - cos(W, W_mm)", yscale="log")
    direction.legend(loc="lower left", title="start W = -c I")
    loss.axhline(float(arrays["floor"]), color="black", linewidth=0.9, linestyle=":", label="floor")
    loss.set(title="e  Train loss", ylabel="loss")
    loss.legend(loc="center right")
    for panel in (attention, direction, loss):
        panel.set(xscale="log", xlabel="step + 1", xlim=(1, steps[-1]))
    free = _escapes(arrays)
    for chosen, marker, label, face in (
        (free, "o", "reaches both best tokens", GREEN),
        (~free, "s", "trapped", "white"),
    ):
        every.scatter(arrays["sizes"][chosen], 1 - arrays["misalignment_svm"][chosen, -1], marker=marker, s=20,
                      facecolor=face, edgecolor="black", linewidth=0.7, label=label, zorder=3)  # fmt: skip
    every.set(title=f"f  After {facts['steps']} steps, by size of the start", xlabel="c in W(0) = -c I",
              ylabel="cos(W, W_mm)", ylim=(0, 1.05))  # fmt: skip
    every.legend(loc="lower left")
    return picture


def _draw_tokens(axes: Any, arrays: Arrays, i: int) -> None:
    """The two tokens of a sequence, and what the start and W_mm make of its first token, as unit directions."""
    tokens, best = arrays["x"][i], int(arrays["best"][i])
    reach = 1.15 * np.abs(tokens).max()
    for matrix, color, style, label in ((-np.eye(2), ORANGE, "--", "W(0) x₁"), (arrays["W_mm"], BLUE, "-", "W_mm x₁")):
        ray = matrix @ tokens[0]
        ray = 0.8 * reach * ray / np.linalg.norm(ray)
        axes.annotate("", xy=ray, xytext=(0, 0),
                      arrowprops={"arrowstyle": "->", "color": color, "linestyle": style, "lw": 1.8})  # fmt: skip
        axes.plot([], [], color=color, linestyle=style, label=label)
    for t, token in enumerate(tokens):
        axes.scatter(*token, marker="*" if t == best else "o", s=90 if t == best else 30, zorder=4,
                     facecolor="black" if t == best else "white", edgecolor="black", linewidth=0.9,
                     label="best token" if t == best else "other token")  # fmt: skip
        axes.annotate(f"x{'₁₂'[t]}", token, textcoords="offset points", xytext=(0, 8), ha="center")
    axes.set(title=f"{'ab'[i]}  Sequence {i + 1}", xlabel="first coordinate", ylabel="second coordinate",
             xlim=(-reach, reach), ylim=(-reach, reach))  # fmt: skip
    axes.set_aspect("equal")
    axes.legend(loc="upper center" if i == 0 else "lower left", ncols=2, handlelength=2.4)


FIGURES = [
    Figure(
        id="rates-8",
        axes={
            "sizes": "size",
            "steps": "step",
            "x": "sequence token axis",
            "best": "sequence",
            "W_mm": "row column",
            "floor": "",
            "opt": "size step sequence",
            "*": "size step",
        },
        title="A start in a bad direction", data=start_data, draw=draw, judge=judge,
        says="With n = d = T = 2, a small start that gives the best token of sequence 2 less than half the attention "
        "does no harm: GD converges to W_mm, and the loss to its minimum (Figure 8).",
    ),
]  # fmt: skip
