"""Figure 6 of *On the Convergence of Encoder-only Shallow Transformers*: similarity of embedded images."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnlab.claims.encoder.pictures import missing, pictures
from attnlab.claims.encoder.vision import stand_in
from attnlab.claims.encoder.vision_runs import MAIN
from attnlab.claims.images import image_inputs
from attnlab.claims.scale import Scale
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array
from attnlab.figures.encoder.scalings import spread
from attnlab.figures.figure import Arrays, Check, Facts, Figure, Finding, Tell
from attnlab.figures.rates.curves import Look, plain_log
from attnlab.figures.style import BLUE, ORANGE, band, new_figure, styled

SEED = 6
LAWS = {"one": 1.0, "small": 0.02}  # deviations of the positions
LOOKS = {
    "one": Look("positions N(0, 1)", BLUE, "-"),
    "small": Look("positions N(0, 0.02²)", ORANGE, "--"),
}
POINTS = 60  # of a tail
FITTED = (0.05, 0.99)  # quantiles between which the line is fitted
STRAIGHT = 0.95  # R^2 from which on the tail is called exponential


def embedded(data: Sequences, deviation: float, seed: int, patch: int) -> Array:
    """Images as the untrained transformer embeds them, (n, T, d): linear map of the patches, plus positions; norm 1."""
    model = replace(MAIN, position_scale=deviation).model(16, "sqrt", patch)
    weights = model.initial(data, seed)
    X = data.x @ weights["embed_W"].T + weights["embed_b"] + weights["positions"]
    return X / np.linalg.norm(X, axis=(1, 2), keepdims=True)


def similarities(X: Array) -> Array:
    """<X_n^T X_n, X_k^T X_k> of every pair n < k.

    >>> similarities(np.stack([np.eye(2), 2.0 * np.eye(2)])).tolist()
    [8.0]
    """
    squares = np.einsum("nti,ntj->nij", X, X).reshape(len(X), -1)  # (n, d d)
    products = squares @ squares.T
    return products[np.triu_indices(len(X), 1)]


class Line(NamedTuple):
    """A line fitted to log P, and how well it fits."""

    slope: float
    intercept: float
    fit: float  # R^2


def line_fit(values: Array) -> Line:
    """log P(value >= t) as a line in t, between the fitted quantiles.

    >>> line = line_fit(-np.log(1.0 - (np.arange(2000) + 0.5) / 2000))
    >>> round(line.slope, 2), line.fit > 0.999
    (-1.0, True)
    """
    ordered = np.sort(values)
    tail = np.log(1.0 - np.arange(len(ordered)) / len(ordered))
    inside = slice(*(int(q * len(ordered)) for q in FITTED))
    t, logs = ordered[inside], tail[inside]
    slope, intercept = np.polyfit(t, logs, 1)
    left = logs - slope * t - intercept
    fit = 1.0 - (left**2).sum() / ((logs - logs.mean()) ** 2).sum()
    return Line(float(slope), float(intercept), float(fit))


def similarity_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tails of the similarity over several draws of images and embeddings, with two laws of the positions."""
    images, draws = scale.pick(40, 100, 100), scale.pick(4, 10, 10)
    seen = pictures(scale)
    values = {name: [] for name in LAWS}
    for draw in range(draws):
        tell(draw, draws, f"draw {draw}")
        data = seen.patches(seen.train.take(images, seed=SEED + draw))
        for name, deviation in LAWS.items():
            values[name].append(similarities(embedded(data, deviation, draw, seen.patch)))
    tell(draws, draws, "done")
    arrays: dict[str, np.ndarray] = {}
    for name, found in values.items():
        arrays[f"{name}_values"] = np.stack(found)  # (draws, pairs)
    facts = {
        **seen.facts(seen.train.take(images, seed=SEED)),
        "images of a draw": images,
        "draws": draws,
        "pairs of a draw": images * (images - 1) // 2,
        "embedding": "untrained: linear map of the patches and positions, d = 64, no class token; |X|_F = 1",
        "laws of the positions": {LOOKS[name].label: f"deviation {deviation:g}" for name, deviation in LAWS.items()},
        "line": f"log P fitted between the {FITTED[0]:g} and {FITTED[1]:g} quantiles",
        "the paper does not say": "whether the embedding is trained, the law of its positions, how X is normalised, "
        "how many images and draws (here as for Figure 1: 100 and 10)",
    }
    return arrays, facts


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """The logarithm of the tail is a falling line, straight in the mean over draws, with both laws.

    The paper plots ten runs and speaks of decay; here the mean over draws is judged, and draws that are less straight
    are counted and told beside it.
    """
    checks, columns, curved = [], {}, 0
    for name, look in LOOKS.items():
        lines = [line_fit(values) for values in arrays[f"{name}_values"]]
        slopes, fits = np.array([line.slope for line in lines]), np.array([line.fit for line in lines])
        checks.append(Check(f"{look.label}: the line fitted to log P falls", slopes < 0, at_least=1.0))
        checks.append(Check(f"{look.label}: log P is a line in t, R^2 at least {STRAIGHT:g}", fits, at_least=STRAIGHT))
        curved += int((fits < STRAIGHT).sum())
        quantiles = np.quantile(arrays[f"{name}_values"], (0.01, 0.5, 0.99), axis=1)
        columns[look.label] = {
            "1 % quantile": spread(quantiles[0]),
            "median": spread(quantiles[1]),
            "99 % quantile": spread(quantiles[2]),
            "slope of log P": spread(slopes),
            "R^2 of the line": spread(fits),
        }
    counted = (
        f"Judged is the mean over draws; single draws below R^2 = {STRAIGHT:g}: {curved} of "
        f"{len(LAWS) * facts['draws']}, so that asking it of every draw would {'fail' if curved else 'hold too'}."
    )
    remarks = [counted, scale_remark(arrays, facts), LITERAL]
    return Finding.of(*checks, table=columns, remarks=remarks, stand_in=stand_in(facts))


LITERAL = (
    "No similarity is below its least value, so that P = 1 there, above the exp(-t^c) of Assumption 3: it is the decay "
    "that is seen, not the inequality at every t."
)


def scale_remark(arrays: Arrays, facts: Facts) -> str:
    """The law of the positions decides the scale of t."""
    middles = {name: float(np.median(arrays[f"{name}_values"])) for name in LAWS}
    widths = {}
    for name in LAWS:
        low, high = np.quantile(arrays[f"{name}_values"], (0.01, 0.99))
        widths[name] = high - low
    ratio = widths["small"] / widths["one"]
    return (
        f"The law of the positions decides the scale: medians {middles['one']:.3g} and {middles['small']:.3g}, and the "
        f"range from 1 % to 99 % is {ratio:.3g} times as wide with the small ones. {facts['draws']} draws of "
        f"{facts['images of a draw']} images, {facts['images']}, of an untrained embedding."
    )


def tails(values: Array) -> tuple[Array, Array]:
    """Places t, and the share of similarities from t on in every draw, (draws, t)."""
    t = np.linspace(values.min(), values.max(), POINTS)
    ordered = np.sort(values, axis=1)
    below = np.stack([np.searchsorted(row, t, side="left") for row in ordered])
    return t, 1.0 - below / values.shape[1]


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """Tails with each law, linear and log."""
    picture, axes = new_figure(2, 2, width=7.4, height=5.6)
    for column, (name, look) in enumerate(LOOKS.items()):
        values = arrays[f"{name}_values"]
        t, share = tails(values)
        fits = np.array([line_fit(row).fit for row in values])
        for panel in axes[:, column]:
            there = (share > 0).all(0) if panel is axes[1, column] else np.ones(len(t), dtype=bool)
            band(panel, t[there], share[:, there], color=look.color, style=look.style, label=look.label, share=1.0)
            panel.set_xlabel("t")
        ends = np.quantile(values, FITTED)
        line = line_fit(values.ravel())
        axes[1, column].plot(
            ends, np.exp(line.slope * ends + line.intercept), color="black", linewidth=0.9, linestyle=":"
        )
        axes[0, column].set_title(f"{'ac'[column]}  {look.label}", fontweight="bold")
        axes[1, column].set_title(f"{'bd'[column]}  The same, log: R² {fits.min():.3f} to {fits.max():.3f}")
        plain_log(axes[1, column])
    for panel in axes[:, 0]:
        panel.set_ylabel("P(⟨XᵀX, X'ᵀX'⟩ ≥ t)")
    picture.supxlabel(
        f"{facts['images of a draw']} images of {facts['images']}. Line: median of {facts['draws']} draws; band: their "
        "range, as far as all draws go; dotted: line fitted to all draws.",
        fontsize=7.5,
    )
    return picture


FIGURES = [
    Figure(
        id="encoder-6",
        title="Similarity of embedded images",
        data=similarity_data,
        draw=draw,
        judge=judge,
        missing=missing,
        inputs=partial(image_inputs, "mnist"),
        says="For MNIST images embedded by the vision transformer P(|<X^T X, X'^T X'>| >= t) shows \"exponential "
        'decay" as t increases, as Assumption 3 asks (Figure 6).',
    ),
]
