"""Figure 9 of *Implicit Bias and Fast Convergence Rates for Self-attention*: digit images among noise patches.

The images are the 8 x 8 digits of scikit-learn (extra `digits`), or MNIST's own where the environment variable
ATTNLAB_MNIST names a folder with its IDX files.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.claims.claim import Verdict
from attnlab.claims.scale import Scale
from attnlab.claims.stages import Stages
from attnlab.data import optimal_tokens, scores
from attnlab.data.digitpatches import NEEDS, digit_patches, digits_installed
from attnlab.data.span import in_span
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.rates.curves import NEAR, NEARER, Look, arrival, draw_rules, middle, number, run_rules, spelt
from attnlab.figures.style import BLUE, GREY, ORANGE, new_figure, styled
from attnlab.svm import solve_margins

SEED = 9
STEPS = 4000
GD_STEP, STEP, CAP = 0.05, 0.025, 1000.0
FOLDER = "ATTNLAB_MNIST"
LOOKS = {
    "gd": Look("GD", GREY, (0, (1, 1))),
    "ngd": Look("NGD, cap 1000", BLUE, "-"),
    "ngd_free": Look("NGD, no cap", ORANGE, "--"),
}
KEPT = ("loss", "log_excess_loss", "norm", "attention", "attention_min", "misalignment_svm")
LOST = 0.5  # a sequence that ends with less on its best patch has not found it


def _folder() -> Path | None:
    """The user's folder of IDX files, if one is named."""
    given = os.environ.get(FOLDER)
    return Path(given) if given else None


def missing() -> str:
    """What must be installed first."""
    return "" if _folder() is not None or digits_installed() else f"{NEEDS}, or set {FOLDER} to a folder of IDX files"


def inputs() -> dict[str, str]:
    """The user's files by name and content."""
    folder = _folder()
    files = sorted(folder.glob("train-*")) if folder is not None else []
    return {file.name: hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() for file in files}


def digits_settings(scale: Scale) -> dict[str, Any]:
    return {"n": 50, "T": 5, "trials": scale.pick(3, 8, 20)}


def digits_data(scale: Scale, tell: Tell, **settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """W trained from zero by GD and by NGD, against the max-margin W of the best-scoring patches."""
    from attnlab.optim import gd, ngd

    given, record = {**digits_settings(scale), **settings}, scale.pick(20, 60, 60)
    tokens = digit_patches(source=_folder(), seed=SEED, **given)
    facts = {
        "n": tokens.n, "T": tokens.T, "d": tokens.d, "sets": given["trials"], "steps": STEPS, "seed": SEED,
        "images": f"{tokens.info['images']} zeros and ones of {tokens.info['source']}", "MNIST": _folder() is not None,
        "noise": tokens.info["noise"],
        "accuracy of the classifier on unseen images": tokens.info["accuracy"],
        "share of sequences whose image has the best score": number(np.mean(tokens.info["signal_is_best"])),
        "loss": "exponential, head fixed", "GD step": GD_STEP, "NGD step": STEP, "NGD cap": CAP, "start": "W = 0",
        "the paper does not say": "n, T, the noise, the classifier, step sizes, caps, the number of steps and sets",
    }  # fmt: skip
    if tokens.d > tokens.n * tokens.T:
        tokens, _ = in_span(tokens)  # the same numbers, sooner
    best = optimal_tokens(tokens)
    margins = solve_margins(tokens, best)
    gamma = np.sort(scores(tokens), axis=-1)
    facts |= {
        "sets that cannot be separated": int((~margins.feasible).sum()),
        "largest duality gap of W_mm": float(np.nanmax(margins.gap)),
        "lead of the best score: least, median": [number((gamma[..., -1] - gamma[..., -2]).min()),
                                                  number(np.median(gamma[..., -1] - gamma[..., -2]))],
    }  # fmt: skip
    arrays: dict[str, np.ndarray] = {"floor": np.exp(-gamma[..., -1]).mean(-1)}
    rules = {"gd": gd(GD_STEP), "ngd": ngd(STEP, cap=CAP), "ngd_free": ngd(STEP)}
    told = {name: (LOOKS[name].label, rule) for name, rule in rules.items()}
    options = {"steps": STEPS, "init": "zeros", "record": record, "targets": {"svm": margins.W}}
    arrays |= run_rules(tokens, told, KEPT, Stages(tell, len(rules)), **options)
    return arrays, facts


def _found(arrays: Arrays, name: str) -> np.ndarray:
    """Sets in which every sequence ends with most attention on its best patch."""
    return arrays[f"{name}_attention_min"][:, -1] >= LOST


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """NGD before GD in loss, attention and direction; and how near W comes to W_mm.

    What is not seen on the substitute speaks neither for nor against a statement on MNIST.
    """
    steps = arrays["steps"]
    end = {(name, key): float(np.median(arrays[f"{name}_{key}"][:, -1])) for name in LOOKS for key in KEPT}
    times = {name: middle(arrival(steps, arrays[f"{name}_misalignment_svm"], 1 - NEAR)) for name in LOOKS}
    found = {name: _found(arrays, name) for name in LOOKS}
    shown = {
        "NGD has the smaller loss": end["ngd", "log_excess_loss"] < end["gd", "log_excess_loss"],
        "NGD has more attention on the best patch": end["ngd", "attention"] > end["gd", "attention"],
        "NGD is nearer to W_mm": end["ngd", "misalignment_svm"] < end["gd", "misalignment_svm"],
        "the cosine of NGD with W_mm reaches 0.99": end["ngd", "misalignment_svm"] <= 1 - NEARER,
    }
    missed = [name for name, good in shown.items() if not good]
    apart = arrays["ngd_misalignment_svm"][:, -1]
    where = {"found": apart[found["ngd"]], "lost": apart[~found["ngd"]]}
    median = {key: f"{1 - np.median(v):.3f}" if len(v) else "(none)" for key, v in where.items()}
    seen = (
        f"At the end (medians): attention on the best patch {end['ngd', 'attention']:.3f} for NGD and "
        f"{end['gd', 'attention']:.3f} for GD, cosine with W_mm {1 - end['ngd', 'misalignment_svm']:.3f} and "
        f"{1 - end['gd', 'misalignment_svm']:.3f}; steps to cosine 0.9: {spelt(times['ngd'])} and "
        f"{spelt(times['gd'])}. "
        f"NGD has every sequence on its best patch in {int(found['ngd'].sum())} of {facts['sets']} sets, with median "
        f"cosine {median['found']} there and {median['lost']} in the others. The image has the best score in "
        f"{100 * facts['share of sequences whose image has the best score']:.4g} % of the sequences. Sizes, noise and "
        "steps are our choice."
    )
    verdict = Verdict.HOLDS
    if missed:
        seen += f" Not seen: {'; '.join(missed)}."
        verdict = Verdict.FAILS if facts["MNIST"] else Verdict.NOT_APPLICABLE
    if not facts["MNIST"]:
        seen += " The paper speaks of MNIST; these images are a small substitute for it."
    numbers: dict[str, Any] = {
        "median at the end: log excess loss, attention, 1 - cos, |W|": {
            LOOKS[n].label: [number(end[n, key]) for key in (
                "log_excess_loss", "attention", "misalignment_svm", "norm")] for n in LOOKS
        },
        "sets with every sequence on its best patch": {LOOKS[n].label: int(found[n].sum()) for n in LOOKS},
        "cosine of NGD with W_mm at the end, per set": [number(1 - v) for v in apart],
        "least attention of NGD on a best patch, per set": [number(v) for v in arrays["ngd_attention_min"][:, -1]],
        "median steps to cosine 0.9": {LOOKS[n].label: number(times[n]) for n in LOOKS},
        "shown": shown, "sets": facts["sets"],
    }  # fmt: skip
    return Finding(seen=seen, verdict=verdict, numbers=numbers)


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """The paper's three panels, and 1 - cos on a log scale with the sets that NGD does not solve apart."""
    picture, axes = new_figure(2, 2, width=7.2, height=6.0)
    steps = arrays["steps"]
    (loss, attention), (cosine, apart) = axes
    for panel, key in ((loss, "loss"), (attention, "attention"), (cosine, "misalignment_svm")):
        shape = (lambda v: 1 - v) if panel is cosine else (lambda v: v)
        draw_rules(panel, steps, {name: shape(arrays[f"{name}_{key}"]) for name in LOOKS}, LOOKS)
    loss.axhline(float(np.median(arrays["floor"])), color="black", linewidth=0.9, linestyle=":")
    loss.set(title="a  Train loss (dotted: median floor)", ylabel="loss")
    attention.set(title="b  Attention on the best patch", ylabel="mean over sequences", ylim=(0, 1.03))
    cosine.set(title="c  Direction", ylabel="cos(W, W_mm)", ylim=(None, 1.03))
    found = _found(arrays, "ngd")
    for chosen, style, label in ((found, "-", "every best patch found"), (~found, "--", "some not found")):
        for j, row in enumerate(arrays["ngd_misalignment_svm"][chosen]):
            apart.plot(steps[1:], row[1:], color=BLUE, linestyle=style, linewidth=0.9, alpha=0.8,
                       label=f"{label}: {int(chosen.sum())} sets" if j == 0 else None)  # fmt: skip
    apart.set(title="d  NGD with cap, each set", ylabel="1 - cos(W, W_mm)", xscale="log", yscale="log",
              xlim=(1, steps[-1]))  # fmt: skip
    apart.legend(loc="lower left")
    for panel in (cosine, apart):
        panel.set_xlabel("step")
    picture.legend(*loss.get_legend_handles_labels(), loc="outside lower center", ncols=3, handlelength=3.2,
                   title=f"{facts['sets']} sets (n = {facts['n']}, T = {facts['T']}, {facts['d']} pixels): median, "
                   "middle 80 %")  # fmt: skip
    return picture


FIGURES = [
    Figure(
        id="rates-9",
        axes={"steps": "step", "floor": "trial", "*": "trial step"},
        title="Digit images among noise", data=digits_data, draw=draw, judge=judge, missing=missing,
        settings=digits_settings,
        inputs=inputs, says="On binary MNIST with one digit patch among noise patches and a fixed linear classifier, W "
        "converges in direction to W_mm, NGD faster than GD (Figure 9).",
    ),
]  # fmt: skip
