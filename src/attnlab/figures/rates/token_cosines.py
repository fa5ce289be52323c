"""Figure 10 of *Implicit Bias and Fast Convergence Rates for Self-attention*: cosines between token embeddings."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.rates.token_cosines import NEAR, cosine_data, inputs_of, near_checks, stand_in, too_small
from attnlab.claims.texts import NONE, Files, libraries
from attnlab.data.tokens import Array
from attnlab.figures.figure import Arrays, Facts, Figure, Finding
from attnlab.figures.rates.curves import number
from attnlab.figures.style import BLUE, GREY, ORANGE, new_figure, styled

COLORS = (BLUE, ORANGE)


def quantile(counts: Array, bins: Array, level: float) -> float:
    """Of cosines counted by bin, to half a bin.

    >>> quantile(np.array([1.0, 2.0, 1.0]), np.array([0.0, 1.0, 2.0, 3.0]), 0.5)
    1.5
    """
    reached = np.searchsorted(np.cumsum(counts), level * counts.sum())
    return float(0.5 * (bins[reached] + bins[reached + 1]))


def row(counts: Array, bins: Array) -> dict[str, Any]:
    """What is told of a distribution that is counted by bin."""
    middles, total = 0.5 * (bins[1:] + bins[:-1]), counts.sum()
    mean = (counts * middles).sum() / total
    deviation = np.sqrt((counts * (middles - mean) ** 2).sum() / total)
    return {
        "pairs": int(total),
        "mean": number(mean),
        "deviation": number(deviation),
        f"share within {NEAR:g} of 0": number(counts[np.abs(middles) < NEAR].sum() / total),
        "5 %": number(quantile(counts, bins, 0.05)),
        "median": number(quantile(counts, bins, 0.5)),
        "95 %": number(quantile(counts, bins, 0.95)),
    }


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """Most cosines of a text are near 0."""
    table = {title: row(arrays[f"{name}_counts"], arrays["bins"]) for name, title in facts["sets"].items()}
    table["two tokens of the vocabulary"] = row(arrays["random_counts"], arrays["bins"])
    nothing = stand_in(facts)
    return Finding.of(
        *near_checks(arrays, facts),
        table=table,
        remarks=[tail_remark(arrays, facts, table), twice_remark(arrays, facts)],
        brief="" if nothing else too_small(facts),
        stand_in=nothing,
    )


def tail_remark(arrays: Arrays, facts: Facts, table: dict[str, dict[str, Any]]) -> str:
    """The distribution is not centred, and has a tail to the right."""
    told = [
        f"{title}: mean {table[title]['mean']:g}, 5 % below {table[title]['5 %']:g}, 5 % above {table[title]['95 %']:g}"
        for title in facts["sets"].values()
    ]
    random = table["two tokens of the vocabulary"]
    return (
        f"{'; '.join(told)}. Two tokens of the vocabulary: mean {random['mean']:g}, deviation {random['deviation']:g}; "
        f"random directions would have deviation {facts['dimension'] ** -0.5:.2g}. Tokens of one text are nearer to "
        "each other, with a tail to the right."
    )


def twice_remark(arrays: Arrays, facts: Facts) -> str:
    """What counting repeated tokens would add."""
    shares = []
    for name, title in facts["sets"].items():
        twice, pairs = arrays[f"{name}_twice"].sum(), arrays[f"{name}_pairs"].sum()
        shares.append(f"{100 * twice / (twice + pairs):.2g} % ({title})")
    return f"Pairs of one token with itself, at cosine 1, would add {' and '.join(shares)} of all pairs."


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """The distribution over the texts of each set, and of the share near 0 by text."""
    picture, axes = new_figure(1, 2, width=8.0, height=3.3)
    left, right = axes[0]
    bins = arrays["bins"]
    middles, width = 0.5 * (bins[1:] + bins[:-1]), bins[1] - bins[0]
    left.axvspan(-NEAR, NEAR, color="#eeeeee", linewidth=0)
    random = arrays["random_counts"] / arrays["random_counts"].sum() / width
    for (name, title), color, style in zip(facts["sets"].items(), COLORS, ("-", "--"), strict=False):
        counts = arrays[f"{name}_counts"]
        left.plot(middles, counts / counts.sum() / width, color=color, linestyle=style, label=title)
        ordered = np.sort(arrays[f"{name}_near"])
        shares = (np.arange(len(ordered)) + 1) / len(ordered)
        right.plot(ordered, shares, color=color, linestyle=style, label=title)
    left.plot(middles, random, color=GREY, linewidth=1.0, linestyle=":", label="two tokens of the vocabulary")
    left.set(xlim=(-0.4, 1.0), ylim=(0, None), xlabel="cosine of two tokens of a text", ylabel="density")
    left.set_title(f"a  Cosines; grey: within {NEAR:g} of 0")
    left.legend(loc="upper right")
    right.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
    right.set(
        xlim=(0, 1), ylim=(0, 1.02), xlabel=f"share of a text's cosines within {NEAR:g} of 0", ylabel="share of texts"
    )
    right.set_title("b  Texts with at most this share")
    counted = ", ".join(f"{count} texts of {title}" for title, count in facts["texts by set"].items())
    picture.supxlabel(f"{counted}; table of {facts['model']}, dimension {facts['dimension']}.", fontsize=7.5)
    return picture


def _figure(files: Files) -> Figure:
    return Figure(
        id="rates-10",
        axes={"bins": "edge", "*counts": "bar", "*": "text"},
        title="Cosines between token embeddings",
        data=partial(cosine_data, files=files),
        draw=draw,
        judge=judge,
        missing=libraries,
        inputs=partial(inputs_of, files),
        on_files=_figure,
        says='"for every sentence, we compute the cosine similarity between every pair of token embeddings" of a '
        'pre-trained BERT: "a significant fraction of all the cosine similarities fall within a small range around 0, '
        'suggesting a nearly orthogonal behavior" (Figure 10, Appendix C.3).',
    )


FIGURES = [_figure(NONE)]
