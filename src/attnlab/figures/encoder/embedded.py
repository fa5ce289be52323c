"""Figure 6 of *On the Convergence of Encoder-only Shallow Transformers*: similarity of embedded images."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.encoder.pictures import missing, pictures
from attnlab.claims.encoder.similarity import FITTED, STRAIGHT, lines_of, similarities, tail_checks
from attnlab.claims.encoder.vision import stand_in
from attnlab.claims.encoder.vision_runs import MAIN
from attnlab.claims.images import image_inputs
from attnlab.claims.scale import Scale
from attnlab.claims.seen import Check, between_readings, verdict_of
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array
from attnlab.figures.encoder.tails import LITERAL, draw_tails, draws_remark, table_of, widths_of
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.rates.curves import Look
from attnlab.figures.style import BLUE, ORANGE

SEED = 6
LAWS = {"one": 1.0, "small": 0.02}  # deviations of the positions
LOOKS = {
    "one": Look("positions N(0, 1)", BLUE, "-"),
    "small": Look("positions N(0, 0.02²)", ORANGE, "--"),
}


def embedded(data: Sequences, deviation: float, seed: int, patch: int) -> Array:
    """Images as the untrained transformer embeds them, (n, T, d): linear map of the patches, plus positions; norm 1."""
    model = replace(MAIN, position_scale=deviation).model(16, "sqrt", patch)
    weights = model.initial(data, seed)
    X = data.x @ weights["embed_W"].T + weights["embed_b"] + weights["positions"]
    return X / np.linalg.norm(X, axis=(1, 2), keepdims=True)


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

    The paper plots ten runs and speaks of decay. Asked first was every draw, then the mean over draws: where the two
    differ, the verdict is that it is a reading.
    """
    checks = []
    for name, look in LOOKS.items():
        checks += tail_checks(look.label, arrays[f"{name}_values"])
    remarks = [draws_remark(arrays, LOOKS), scale_remark(arrays, facts), LITERAL]
    finding = Finding.of(*checks, table=table_of(arrays, LOOKS), remarks=remarks, stand_in=stand_in(facts))
    fits = np.concatenate([lines_of(arrays[f"{name}_values"])[1] for name in LOOKS])
    every_draw = verdict_of([Check(f"every draw has R^2 at least {STRAIGHT:g}", fits >= STRAIGHT, at_least=1.0)])
    return replace(finding, verdict=between_readings(finding.verdict, every_draw))


def scale_remark(arrays: Arrays, facts: Facts) -> str:
    """The law of the positions decides the scale of t."""
    widths = widths_of(arrays, LOOKS)
    ratio = widths["small"][1] / widths["one"][1]
    return (
        f"The law of the positions decides the scale: medians {widths['one'][0]:.3g} and {widths['small'][0]:.3g}, and "
        f"the range from 1 % to 99 % is {ratio:.3g} times as wide with the small ones. {facts['draws']} draws of "
        f"{facts['images of a draw']} images, {facts['images']}, of an untrained embedding."
    )


def draw(arrays: Arrays, facts: Facts) -> Any:
    """Tails with each law, linear and log."""
    return draw_tails(arrays, LOOKS, f"{facts['images of a draw']} images of {facts['images']}", facts["draws"])


FIGURES = [
    Figure(
        id="encoder-6",
        axes={"*_values": "draw pair"},
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
