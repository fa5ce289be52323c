"""Figures 4 and 5 of *On the Optimization and Generalization of Multi-head Attention*: a planted head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnlab.claims.scale import Scale
from attnlab.data.mixture import planted
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.multihead.heads import (
    HEADS,
    REACHED,
    by_heads,
    dots_by_heads,
    draw_error,
    draw_heads,
    found,
    loss_axis,
    middle_at,
    pick,
    prefixed,
    run_heads,
    trend,
)
from attnlab.figures.rates.curves import arrival, number, plain_log, spelt
from attnlab.figures.style import BLUE, GREY, ORANGE, new_figure, styled

SEED, TEST_SEED = 40, 41
STEP, MOMENTUM_STEP, MOMENTUM, ADAM_STEP = 1.0, 0.1, 0.9, 0.01
KEPT = ("loss", "test_loss", "test_error", "norm_U", "norm_W", "normalized_margin", "cosine_W_teacher",
        "cosine_U_teacher")  # fmt: skip
NAMES = ("steps", *KEPT)
DRAWN = ("scaled", "momentum", "adam")  # from top to bottom
# The planted head counts as found at this cosine of W, and of U.
FOUND = 0.95
# Times to reach this train loss are told.
LOW = 0.05
# Runs of fewer steps are too short for a verdict.
LONG = 1000

Runs = dict[str, tuple[str, Callable[[int], Any], int]]


def planted_data(
    scale: Scale, tell: Tell, runs: Runs, controls: tuple[str, ...] = ()
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Every rule and number of heads on the same sets, from zero. `runs`: name -> (in words, rule of H, steps).

    Controls are run for the fewest, the middle and the most heads.
    """
    trials, n, n_test = scale.pick(2, 2, 5), scale.pick(200, 1000, 1000), scale.pick(300, 3000, 3000)
    heads = scale.pick((1, 16), (1, 8, 64), HEADS)
    few = tuple(sorted({heads[0], heads[len(heads) // 2], heads[-1]}))
    tokens = planted(n, seed=SEED, trials=trials)
    test = planted(n_test, teacher=tokens, seed=TEST_SEED, trials=trials)
    teacher = {key: np.asarray(tokens.info[f"teacher_{key}"])[:, None] for key in ("U", "W")}
    arrays: dict[str, np.ndarray] = {"heads": np.array(heads), "few": np.array(few)}
    done, total = 0, sum(len(few if name in controls else heads) for name in runs)
    for name, (words, rule, steps) in runs.items():
        own = few if name in controls else heads

        def told(H: int, words: str = words, began: int = done, own: tuple[int, ...] = own) -> None:
            tell(began + own.index(H), total, f"{words}, H = {H}")

        arrays |= prefixed(name, run_heads(tokens, rule, KEPT, own, told, steps=steps, test=test,
                                           targets={"teacher": teacher}))  # fmt: skip
        done += len(own)
    tell(total, total, "done")
    facts = {
        "n": n, "T": tokens.T, "d": tokens.d, "test sequences": n_test, "sets": trials, "seed": SEED,
        "gamma_attn": float(tokens.info["margin"]), "norms of U* and W*": [1.0, 5.0],
        "share of drawn sequences that were kept": [number(v) for v in np.atleast_1d(tokens.info["acceptance"])],
        "rules": {name: words for name, (words, _, _) in runs.items()}, "controls": list(controls),
        "steps": {name: steps for name, (_, _, steps) in runs.items()}, "start": "zero",
        "the paper does not say": "the law of the planted head, numbers of heads and of steps, the factor of sqrt(H), "
        "the momentum, Adam's step, how the margin is normalized (here by the average |U|)",
        "all heads stay equal": "GD with H heads from zero is GD with one head, the step of W divided by H",
    }  # fmt: skip
    return arrays, facts


def scaled_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Gradient descent with a step that grows as sqrt(H)."""
    return planted_data(scale, tell, {"scaled": _gd(STEP, scale.pick(60, 2000, 2000))})


def faster_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Momentum and Adam; as controls GD with the step of momentum, and with the step of Figure 4."""
    from attnlab.optim import adam
    from attnlab.optim.momentum import heavy_ball

    steps = scale.pick(60, 1000, 1000)
    runs: Runs = {
        "momentum": (f"GD with momentum {MOMENTUM:g}, step {MOMENTUM_STEP:g} sqrt(H)",
                     lambda H: heavy_ball(MOMENTUM_STEP * float(np.sqrt(H)), momentum=MOMENTUM), steps),
        "adam": (f"Adam, step {ADAM_STEP:g}", lambda _: adam(ADAM_STEP), steps),
        "same": _gd(MOMENTUM_STEP, steps),
        "tenfold": _gd(STEP, steps),
    }  # fmt: skip
    return planted_data(scale, tell, runs, controls=("same", "tenfold"))


def _gd(step: float, steps: int) -> tuple[str, Callable[[int], Any], int]:
    from attnlab.optim import gd

    return f"GD, step {step:g} sqrt(H)", lambda H: gd(step * float(np.sqrt(H))), steps


def success(curves: dict[str, np.ndarray]) -> np.ndarray:
    """Which runs end at the planted head, (heads, trials)."""
    return (curves["cosine_W_teacher"][:, :, -1] > FOUND) & (curves["cosine_U_teacher"][:, :, -1] > FOUND)


def _shown(heads: np.ndarray, curves: dict[str, np.ndarray], gamma: float) -> dict[str, bool]:
    """What the paper says of every rule, by medians over sets."""
    cosines = [middle_at(curves, f"cosine_{key}_teacher") for key in ("W", "U")]
    return {
        "the train loss falls with H on the whole": trend(heads, np.log(middle_at(curves, "loss"))) < 0,
        f"every H reaches {REACHED:g} gamma_attn": bool(
            (middle_at(curves, "normalized_margin") >= REACHED * gamma).all()),
        "every H finds the planted head": bool((np.minimum(*cosines) > FOUND).all()),
    }  # fmt: skip


def _told(words: str, heads: np.ndarray, curves: dict[str, np.ndarray], gamma: float) -> str:
    loss, test, margin = (middle_at(curves, key) for key in ("loss", "test_loss", "normalized_margin"))
    good, times = success(curves), [arrival(curves["steps"], each, LOW) for each in curves["loss"]]
    least = int(margin.argmin())
    grown = margin[least] - middle_at(curves, "normalized_margin", curves["steps"][-1] / 2)[least]
    return (
        f"{words}: after {curves['steps'][-1]} steps the median train loss is {loss[0]:.1e} with one head and "
        f"{loss[-1]:.1e} with {heads[-1]} (test {test[0]:.1e} and {test[-1]:.1e}); it reaches {LOW:g} at step "
        f"{spelt(np.median(times[0]))} and {spelt(np.median(times[-1]))}. {good.sum()} of {good.size} runs find the "
        f"planted head, {good[0].sum()} of {good.shape[1]} with one head, {good[-1].sum()} with {heads[-1]}. The "
        f"margin ends between {margin[least] / gamma:.2f} (H = {heads[least]}, of which {grown / gamma:.2f} in the "
        f"second half of the run) and {margin.max() / gamma:.2f} gamma_attn (H = {heads[margin.argmax()]})."
    )


def _numbers(words: str, heads: np.ndarray, curves: dict[str, np.ndarray]) -> dict[str, Any]:
    times = np.array([np.median(arrival(curves["steps"], each, LOW)) for each in curves["loss"]])
    return {
        f"{words}: train loss at the end": by_heads(heads, middle_at(curves, "loss")),
        f"{words}: test loss at the end": by_heads(heads, middle_at(curves, "test_loss")),
        f"{words}: test error at the end": by_heads(heads, middle_at(curves, "test_error")),
        f"{words}: median steps to train loss {LOW:g}": by_heads(heads, times),
        f"{words}: margin at the end": by_heads(heads, middle_at(curves, "normalized_margin")),
        f"{words}: cosine of W": by_heads(heads, middle_at(curves, "cosine_W_teacher")),
        f"{words}: cosine of U": by_heads(heads, middle_at(curves, "cosine_U_teacher")),
        f"{words}: share of runs that find the planted head": by_heads(heads, success(curves).mean(1)),
    }


def _brief(curves: Mapping[str, np.ndarray]) -> bool:
    """Is this a run that only shows that it runs?"""
    return bool(curves["steps"][-1] < LONG)


def judge_scaled(arrays: Arrays, facts: Facts) -> Finding:
    """Heads help somewhat, every number of them reaches the margin and finds the planted head."""
    heads, gamma, words = arrays["heads"], facts["gamma_attn"], facts["rules"]["scaled"]
    curves = pick(arrays, "scaled", NAMES)
    return found(_told(words, heads, curves, gamma), _shown(heads, curves, gamma), _numbers(words, heads, curves),
                 brief=_brief(curves))  # fmt: skip


def judge_faster(arrays: Arrays, facts: Facts) -> Finding:
    """As Figure 4, and both rules are faster than GD: momentum than GD of its step, Adam than GD of Figure 4."""
    heads, few, gamma, rules = arrays["heads"], arrays["few"], facts["gamma_attn"], facts["rules"]
    runs = {name: pick(arrays, name, NAMES) for name in rules}
    shown, numbers, seen = {}, {}, []
    for name, kind in (("momentum", "momentum"), ("adam", "Adam")):
        seen.append(_told(rules[name], heads, runs[name], gamma))
        shown |= {f"{kind}: {key}": good for key, good in _shown(heads, runs[name], gamma).items()}
        numbers |= _numbers(rules[name], heads, runs[name])
    chosen = np.isin(heads, few)
    loss = {name: middle_at(curves, "loss")[slice(None) if name in facts["controls"] else chosen]
            for name, curves in runs.items()}  # fmt: skip
    shown |= {
        "momentum ends with less train loss than GD of the same step": bool((loss["momentum"] < loss["same"]).all()),
        "Adam ends with less train loss than GD of Figure 4": bool((loss["adam"] < loss["tenfold"]).all()),
    }
    ratio = {name: ", ".join(f"{v:.2g}" for v in loss[name] / loss["tenfold"]) for name in ("same", "momentum", "adam")}
    listed = ", ".join(str(H) for H in few)
    seen.append(
        f"Train loss over that of GD with the step of Figure 4 after as many steps, for H = {listed}: GD with the step "
        f"of momentum {ratio['same']}; momentum {ratio['momentum']}; Adam {ratio['adam']}. Momentum {MOMENTUM:g} adds "
        f"up to {1 / (1 - MOMENTUM):g} times its step, which is the step of Figure 4."
    )
    numbers |= {f"control, {rules[name]}: train loss at the end": by_heads(few, loss[name])
                for name in facts["controls"]}  # fmt: skip
    return found(" ".join(seen), shown, numbers, brief=_brief(runs["adam"]))


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """Ten panels for each rule that is no control."""
    names = [name for name in DRAWN if name in facts["rules"] and name not in facts["controls"]]
    picture, axes = new_figure(2 * len(names), 5, width=13.4, height=4.9 * len(names) + 0.5)
    for i, name in enumerate(names):
        _draw_rule(axes[2 * i : 2 * i + 2].ravel(), arrays["heads"], pick(arrays, name, NAMES), facts)
        _draw_ends(axes[2 * i, 4], arrays, facts, name)
        letter = "" if len(names) == 1 else f"{'ab'[i]}  "
        axes[2 * i, 0].set_title(f"{letter}{facts['rules'][name]}", fontweight="bold")
    picture.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(arrays["heads"]),
                   handlelength=3.2, title=f"heads H; {facts['sets']} sets (n = {facts['n']}): median, middle half. "
                   "Thin dotted: margin of the data, gamma_attn")  # fmt: skip
    return picture


def _draw_rule(panels: Any, heads: np.ndarray, curves: dict[str, np.ndarray], facts: Facts) -> None:
    labels = {
        "loss": "train loss", "test_loss": "test loss", "test_error": "test error",
        "normalized_margin": "least margin / average |U|", "": "", "norm_U": "average |U|", "norm_W": "average |W|",
        "cosine_W_teacher": "cos(W, W*)", "cosine_U_teacher": "cos(U, U*)",
    }  # fmt: skip
    for panel, (key, label) in zip(panels, labels.items(), strict=False):
        if key:
            draw_heads(panel, heads, curves["steps"], curves[key], positive=key.startswith("norm_"))
            panel.set_ylabel(label)
    for panel in (*panels[:2], *panels[5:7]):
        plain_log(panel)
    draw_error(panels[2], facts["test sequences"])
    gamma = facts["gamma_attn"]
    panels[3].axhline(gamma, color="black", linewidth=0.9, linestyle=":")
    panels[3].set_ylim(-4 * gamma, 1.5 * gamma)
    for panel in panels[7:9]:
        panel.set_ylim(min(-0.05, panel.get_ylim()[0]), 1.04)
    share = success(curves).mean(1)
    panels[9].bar(np.arange(len(heads)), share, color=BLUE, width=0.6)
    panels[9].set_xticks(np.arange(len(heads)), labels=[str(H) for H in heads])
    panels[9].set(ylim=(0, 1.04), xlabel="heads H", ylabel=f"runs with cosines > {FOUND:g}", axisbelow=True)


def _draw_ends(axes: Any, arrays: Arrays, facts: Facts, name: str) -> None:
    """Train loss at the end by number of heads, beside that of the controls."""
    looks = {"same": (GREY, "--"), "tenfold": (ORANGE, "-")}
    for control in facts["controls"]:
        color, style = looks[control]
        dots_by_heads(axes, arrays["few"], arrays[f"{control}_loss"][:, :, -1], color=color, linestyle=style,
                      linewidth=3.2, alpha=0.7, label=facts["rules"][control])  # fmt: skip
    dots_by_heads(axes, arrays["heads"], arrays[f"{name}_loss"][:, :, -1], color=BLUE,
                  label="as on the left" if facts["controls"] else None)  # fmt: skip
    loss_axis(axes, head_room=10.0 if facts["controls"] else 1.0)
    if facts["controls"]:
        axes.legend(loc="upper left")


FIGURES = [
    Figure(
        id="multihead-4", title="A planted head, steps that grow as sqrt(H)", data=scaled_data, draw=draw,
        judge=judge_scaled,
        says="On data of one planted head, GD from zero with steps that grow as sqrt(H) is somewhat faster with more "
        "heads; all models reach the margin gamma_attn = 0.2 of the data and find the planted head (Figure 4).",
    ),
    Figure(
        id="multihead-5", title="A planted head, momentum and Adam", data=faster_data, draw=draw, judge=judge_faster,
        says="On data of one planted head, momentum significantly speeds up GD, and so does Adam; with both, more "
        "heads are faster, all models reach the margin and find the planted head (Figure 5).",
    ),
]  # fmt: skip
