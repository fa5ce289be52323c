"""Figure 1 of *On the Convergence of Encoder-only Shallow Transformers*: similarity of embedded sentences."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.encoder.sentences import LABELS, checks_of, sentence_data, stand_in
from attnlab.claims.encoder.similarity import FAR, STRAIGHT, bending, lines_of, tail_checks
from attnlab.claims.seen import between_readings, verdict_of
from attnlab.claims.texts import BERT, NONE, Files, libraries, text_inputs
from attnlab.figures.encoder.tails import LITERAL, draw_tails, table_of, widths_of
from attnlab.figures.figure import Arrays, Facts, Figure, Finding
from attnlab.figures.rates.curves import Look
from attnlab.figures.style import BLUE, ORANGE

LOOKS = {
    "pretrained": Look(LABELS["pretrained"], BLUE, "-"),
    "random": Look(LABELS["random"], ORANGE, "--"),
}


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """The tail falls at least exponentially; a reading, unless its logarithm is a line, too."""
    remarks = [line_remark(arrays), table_remark(arrays, facts), LITERAL]
    checks = checks_of(dict(arrays))
    finding = Finding.of(*checks, table=table_of(arrays, LOOKS), remarks=remarks, stand_in=stand_in(dict(facts)))
    line = verdict_of(tail_checks(LABELS["pretrained"], arrays["pretrained_values"]))
    return replace(finding, verdict=between_readings(finding.verdict, line))


def line_remark(arrays: Arrays) -> str:
    """The stricter reading, which was asked first: log P is a line."""
    _, fits = lines_of(arrays["pretrained_values"])
    _, far = lines_of(arrays["pretrained_values"], FAR)
    bend = float(np.exp(bending(arrays["pretrained_values"]).mean()))
    straight = "it is one" if fits.mean() >= STRAIGHT else "it is none"
    faster = ": faster than exponentially" if bend > 1 else ""
    return (
        f"Read as a line in t, as for Figure 6, log P has R^2 {fits.mean():.3f} ({fits.min():.3f} to "
        f"{fits.max():.3f}); with the {STRAIGHT:g} asked there {straight}. Beyond the median it falls {bend:.2g} times "
        f"as fast as before{faster}, and a line fitted there alone has R^2 {far.mean():.3f}. "
        "Two readings were tried, this one first; the other, a decay at "
        "least exponential, stands in the checks."
    )


def table_remark(arrays: Arrays, facts: Facts) -> str:
    """What was embedded, and what a random table of the same size gives."""
    widths = widths_of(arrays, LOOKS)
    fit = table_of(arrays, LOOKS)[LOOKS["random"].label]["R^2 of the line"]
    return (
        f"{facts['draws']} draws of {facts['sentences of a draw']} texts, {facts['texts']}; table of {facts['model']}, "
        f"dimension {facts['dimension']}. Median {widths['pretrained'][0]:.3g}, and {widths['random'][0]:.3g} with a "
        f"random table of the same size, for which R^2 is {fit} (told, not judged): there two texts are alike by the "
        "tokens that they share."
    )


def draw(arrays: Arrays, facts: Facts) -> Any:
    """Tails with each table, linear and log."""
    what = f"{facts['sentences of a draw']} texts: {facts['texts']}; {facts['model']}"
    return draw_tails(arrays, LOOKS, what, facts["draws"])


def _figure(files: Files) -> Figure:
    return Figure(
        id="encoder-1",
        axes={"*_values": "draw pair"},
        title="Similarity of embedded sentences",
        data=partial(sentence_data, files=files),
        draw=draw,
        judge=judge,
        missing=libraries,
        inputs=partial(text_inputs, ("imdb",), BERT, files),
        on_files=_figure,
        says='"We randomly sample 100 (normalized) sentences with embedding and plot the probability (frequency) of '
        "P(|<X_n^T X_n, X_n'^T X_n'>| >= t) as t increases. We repeat it over 10 runs [...] We can observe an "
        'exponential decay as t increases" (IMDB, Section 4.2, Figure 1).',
    )


FIGURES = [_figure(NONE)]
