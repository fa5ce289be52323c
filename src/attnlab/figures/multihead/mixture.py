"""Figures 2 and 3 of *On the Optimization and Generalization of Multi-head Attention*: the tokenized mixture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnlab.claims.scale import Scale
from attnlab.claims.stages import Stages
from attnlab.data.mixture import tokenized_mixture
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.multihead.heads import (
    HEADS,
    REACHED,
    by_heads,
    dots_by_heads,
    draw_error,
    draw_heads,
    found,
    head_axes,
    late_slope,
    loss_axis,
    middle_at,
    pick,
    prefixed,
    rises,
    run_heads,
    trend,
)
from attnlab.figures.rates.curves import plain_log
from attnlab.figures.style import BLUE, new_figure, styled
from attnlab.theory.multihead.margins import Mixture, gamma_attn

SEED, TEST_SEED, TEST = 20, 21, 300
SIGMA, STEP, ADAM_STEP = 0.1, 1.0, 0.06
KEPT = ("loss", "log_loss", "test_loss", "test_error", "norm_U", "norm_W", "attention", "normalized_margin")
NAMES = ("steps", *KEPT)
DRAWN = ("gd", "scaled", "adam")  # from top to bottom
# The loss is said to fall as 1/t late; its slope is taken between these steps, for at most so many heads.
LATE, SLOPE_NEAR, SETTLED_HEADS = (500, 2000), 0.1, 8
# Adam's loss stops where gradients reach its eps; numbers of heads are compared before that.
EARLY = 10


def mixture_settings(scale: Scale) -> dict[str, Any]:
    return {"n": 100, "trials": scale.pick(2, 3, 5)}


def mixture_data(
    scale: Scale, tell: Tell, runs: dict[str, tuple[str, Callable[[int], Any], int]], settings: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Every rule and number of heads on the same sets, from zero. `runs`: name -> (in words, rule of H, steps)."""
    given, heads = {**mixture_settings(scale), **settings}, scale.pick((1, 4, 16), (1, 4, 16, 64), HEADS)
    tokens = tokenized_mixture(sigma=SIGMA, seed=SEED, **given)
    test = tokenized_mixture(TEST, sigma=SIGMA, seed=TEST_SEED, trials=given["trials"])
    arrays: dict[str, np.ndarray] = {"heads": np.array(heads)}
    stage, info = Stages(tell, len(runs) * len(heads)), tokens.info
    options = {"test": test, "track": info["relevant"]}
    for name, (words, rule, steps) in runs.items():
        arrays |= prefixed(name, run_heads(tokens, rule, KEPT, heads, stage, words, steps=steps, **options))
    mixture = Mixture(T=tokens.T, M=info["M"], S=info["S"], zeta=info["zeta"])
    facts = {
        "n": tokens.n,
        "T": tokens.T,
        "d": tokens.d,
        "test sequences": TEST,
        "sets": given["trials"],
        "seed": SEED,
        "S, M, zeta, sigma": [info["S"], info["M"], info["zeta"], SIGMA],
        "gamma_attn": float(gamma_attn(mixture)),
        "rules": {name: words for name, (words, _, _) in runs.items()},
        "steps": {name: steps for name, (_, _, steps) in runs.items()},
        "start": "zero",
        "the paper does not say": "numbers of heads, numbers of steps, the factor of sqrt(H), how the margin is "
        "normalized (here by the average |U|), which tokens are relevant (here a random one of each sequence)",
        "all heads stay equal": "GD with H heads from zero is GD with one head, the step of W divided by H",
    }
    return arrays, facts


def constant_data(scale: Scale, tell: Tell, **settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Gradient descent with one step size for all H."""
    from attnlab.optim import gd

    runs = {"gd": (f"GD, step {STEP:g}", lambda _: gd(STEP), scale.pick(300, 2000, 10_000))}
    return mixture_data(scale, tell, runs, settings)


def faster_data(scale: Scale, tell: Tell, **settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Gradient descent with a step that grows as sqrt(H), and Adam."""
    from attnlab.optim import adam, gd

    growing, steps = f"GD, step {STEP:g} sqrt(H)", scale.pick(300, 2000, 2000)
    runs = {
        "scaled": (growing, lambda H: gd(STEP * float(np.sqrt(H))), steps),
        "adam": (f"Adam, step {ADAM_STEP:g}", lambda _: adam(ADAM_STEP), scale.pick(100, 500, 500)),
    }
    return mixture_data(scale, tell, runs, settings)


def judge_constant(arrays: Arrays, facts: Facts) -> Finding:
    """Larger H is slower; late the loss falls as 1/t; few heads come near the margin, many fall short."""
    heads, gamma, curves = arrays["heads"], facts["gamma_attn"], pick(arrays, "gd", NAMES)
    last = int(curves["steps"][-1])
    window = (min(LATE[0], last / 4), min(LATE[1], last))
    late = np.median(late_slope(curves, window), axis=1)
    final = np.median(late_slope(curves, (last / 4, last)), axis=1)
    loss, margin = middle_at(curves, "loss"), middle_at(curves, "normalized_margin")
    share = margin / gamma
    earlier = middle_at(curves, "normalized_margin", last / 10) / gamma
    settled = heads <= SETTLED_HEADS
    shown = {
        "the train loss rises with H": rises(loss),
        f"the late train loss falls as 1/t for H <= {SETTLED_HEADS}": bool(
            (np.abs(late[settled] + 1) <= SLOPE_NEAR).all()
        ),
        f"one head reaches {REACHED:g} gamma_attn": bool(share[heads == 1].min() > REACHED),
        "the margin falls with H": rises(-margin),
    }
    seen = (
        f"After {last} steps of size {STEP:g} the median train loss is {loss[0]:.1e} with one head and {loss[-1]:.1e} "
        f"with {heads[-1]}. Between steps {window[0]:g} and {window[1]:g} it falls as t^{late[0]:.2f} and "
        f"t^{late[-1]:.2f}, from step {last / 4:g} on as t^{final[0]:.2f} and t^{final[-1]:.2f}. The margin ends at "
        f"{share[0]:.2f} gamma_attn with one head and {share[-1]:.2f} with {heads[-1]}; in the last tenfold of steps "
        f"it grew by {share[0] - earlier[0]:.3f} and {share[-1] - earlier[-1]:.3f} gamma_attn. The largest test error "
        f"at the end is {curves['test_error'][:, :, -1].max():g}."
    )
    numbers = {
        "train loss at the end": by_heads(heads, loss),
        "test loss at the end": by_heads(heads, middle_at(curves, "test_loss")),
        f"slope of log loss, steps {window[0]:g} to {window[1]:g}": by_heads(heads, late),
        f"slope of log loss, steps {last / 4:g} to {last}": by_heads(heads, final),
        "margin at the end over gamma_attn": by_heads(heads, share),
        "attention on the relevant token at the end": by_heads(heads, middle_at(curves, "attention")),
        "average |U|": by_heads(heads, middle_at(curves, "norm_U")),
        "average |W|": by_heads(heads, middle_at(curves, "norm_W")),
    }
    return found(seen, shown, numbers)


def judge_faster(arrays: Arrays, facts: Facts) -> Finding:
    """Under both rules larger H is faster, most of all under Adam; under GD the margin falls away from gamma_attn."""
    heads, gamma = arrays["heads"], facts["gamma_attn"]
    runs = {name: pick(arrays, name, NAMES) for name in ("scaled", "adam")}
    scaled, adam = runs["scaled"], runs["adam"]
    share = {name: middle_at(curves, "normalized_margin") / gamma for name, curves in runs.items()}
    logs = {name: np.log10(middle_at(curves, "loss")) for name, curves in runs.items()}
    early = {key: middle_at(adam, key, EARLY) for key in ("loss", "test_loss")}
    gain = {name: float(values[0] - values[-1]) for name, values in logs.items()}
    best, worst = np.quantile(np.log10(scaled["loss"][-1, :, -1]), (0.0, 1.0))
    shown = {
        "GD: every H > 1 ends with less train and test loss than one head": all(
            bool((middle_at(scaled, key)[1:] < middle_at(scaled, key)[0]).all()) for key in ("loss", "test_loss")
        ),
        "GD: the train loss falls with H on the whole": trend(heads, logs["scaled"]) < 0,
        f"Adam: at step {EARLY} train and test loss fall with H": all(rises(-values) for values in early.values()),
        "Adam gains more by heads than GD": gain["adam"] > gain["scaled"],
        "GD: the margin falls with H on the whole, and is least for the most heads": bool(
            trend(heads, share["scaled"]) < 0 and share["scaled"].argmin() == len(heads) - 1
        ),
    }
    seen = (
        f"GD with step sqrt(H): after {facts['steps']['scaled']} steps the median train loss is "
        f"10^{logs['scaled'][0]:.1f} with one head and 10^{logs['scaled'][-1]:.1f} with {heads[-1]} (10^{best:.1f} to "
        f"10^{worst:.1f} over sets); least with {heads[logs['scaled'].argmin()]}. The margin ends at "
        f"{share['scaled'][0]:.2f} and {share['scaled'][-1]:.2f} gamma_attn. Adam: at step {EARLY} the loss is "
        f"{early['loss'][0]:.1e} and {early['loss'][-1]:.1e}, after {facts['steps']['adam']} steps "
        f"10^{logs['adam'][0]:.1f} and 10^{logs['adam'][-1]:.1f}, a level at which gradients are as small as Adam's "
        f"eps; the margin ends at {share['adam'][0]:.2f} and {share['adam'][-1]:.2f} gamma_attn."
    )
    numbers = {
        f"{facts['rules'][name]}: {label}": by_heads(heads, values)
        for name, curves in runs.items()
        for label, values in {
            "log10 of the train loss at the end": logs[name],
            f"train loss at step {EARLY}": middle_at(curves, "loss", EARLY),
            "test loss at the end": middle_at(curves, "test_loss"),
            "margin at the end over gamma_attn": share[name],
            "attention at the end": middle_at(curves, "attention"),
        }.items()
    }
    return found(seen, shown, numbers)


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """Eight panels for each rule."""
    names = [name for name in DRAWN if name in facts["rules"]]
    picture, axes = new_figure(2 * len(names), 4, width=11.0, height=4.9 * len(names) + 0.5)
    for i, name in enumerate(names):
        curves = pick(arrays, name, NAMES)
        _draw_rule(axes[2 * i : 2 * i + 2].ravel(), arrays["heads"], curves, facts)
        if name == "gd":
            _draw_guide(axes[0, 0], curves["steps"], np.median(curves["loss"][0], axis=0))
        letter = "" if len(names) == 1 else f"{'ab'[i]}  "
        axes[2 * i, 0].set_title(f"{letter}{facts['rules'][name]}", fontweight="bold")
    picture.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(arrays["heads"]),
        handlelength=3.2,
        title=f"heads H; {facts['sets']} sets (n = {facts['n']}): median, middle half. "
        f"Thin dotted: gamma_attn{'; 1/t' if 'gd' in names else ''}",
    )
    return picture


def _draw_rule(panels: Any, heads: np.ndarray, curves: dict[str, np.ndarray], facts: Facts) -> None:
    labels = {
        "loss": "train loss",
        "test_loss": "test loss",
        "test_error": "test error",
        "normalized_margin": "least margin / average |U|",
        "norm_U": "average |U|",
        "norm_W": "average |W|",
        "attention": "attention on the relevant token",
    }
    for panel, (key, label) in zip(panels, labels.items(), strict=False):
        draw_heads(panel, heads, curves["steps"], curves[key], positive=key.startswith("norm_"))
        panel.set_ylabel(label)
    for panel in panels[:2]:
        panel.set_yscale("log")
    for panel in panels[4:6]:
        plain_log(panel)
    draw_error(panels[2], facts["test sequences"])
    gamma = facts["gamma_attn"]
    panels[3].axhline(gamma, color="black", linewidth=0.9, linestyle=":")
    panels[3].set_ylim(-0.1 * gamma, 1.08 * gamma)
    panels[6].set_ylim(0, 1.03)
    dots_by_heads(panels[7], heads, curves["loss"][:, :, -1], color=BLUE)
    loss_axis(panels[7])


def _draw_guide(axes: Any, steps: np.ndarray, loss: np.ndarray) -> None:
    """1/t, a factor 3 below the curve with one head at the end."""
    late = steps >= steps[-1] / 20
    axes.plot(steps[late], loss[-1] / 3 * steps[-1] / steps[late], color="black", linewidth=0.9, linestyle=":")


FIGURES = [
    Figure(
        id="multihead-2",
        axes=head_axes("gd"),
        title="More heads, one step size: slower",
        data=constant_data,
        settings=mixture_settings,
        draw=draw,
        judge=judge_constant,
        says="On the tokenized mixture, GD with step 1 decreases the train loss more slowly the more heads there are; "
        "late the loss falls as 1/t; with few heads GD achieves the margin gamma_attn, with many it falls short "
        "(Figure 2).",
    ),
    Figure(
        id="multihead-3",
        axes=head_axes("scaled", "adam"),
        title="More heads, steps that grow as sqrt(H), or Adam: faster",
        data=faster_data,
        settings=mixture_settings,
        draw=draw,
        judge=judge_faster,
        says="On the tokenized mixture, with steps that grow as sqrt(H), and with Adam at step 0.06, train and test "
        "loss fall faster the more heads there are, most of all with Adam; the margin of GD still falls away from "
        "gamma_attn as heads are added (Figure 3).",
    ),
]
