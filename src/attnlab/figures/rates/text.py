"""Figures 1 and 4 of *Implicit Bias and Fast Convergence Rates for Self-attention*: fine-tuning a language model.

Model and texts are those of `--weights` and `--data`, or found where `attnlab data` says. Where they are not at hand,
and at smoke scale, a tiny Bert of random weights on made-up texts stands in for them, which the figure says.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from attnlab.claims.rates.rule_runs import too_small
from attnlab.claims.rates.text import loss_checks, stands_in, what_was_seen
from attnlab.claims.rates.text_runs import PAPER_MNLI, PAPER_TOXIC, QUICK_MNLI, QUICK_TOXIC, Setting, text_data
from attnlab.claims.texts import BERT, NONE, Files, libraries, text_inputs
from attnlab.figures.figure import Arrays, Facts, Figure, Finding
from attnlab.figures.rates.rule_panels import (
    cap_remark,
    draw_legend,
    draw_rules,
    lost_remark,
    speed_remark,
    table_of,
)
from attnlab.figures.style import new_figure, styled


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """Train losses at the end over seeds, and caps."""
    stand_in = stands_in(facts)
    remarks = [
        facts["model stands in"],
        cap_remark(arrays, facts),
        speed_remark(arrays),
        seeds_remark(facts),
        lost_remark(facts),
    ]
    return Finding.of(
        *loss_checks(arrays),
        table=table_of(arrays, facts),
        remarks=remarks,
        brief="" if stand_in else too_small(facts, what_was_seen(facts)),
        stand_in=stand_in,
    )


def seeds_remark(facts: Facts) -> str:
    """What was trained on, and over how many seeds."""
    cut = facts["texts that were cut"][0]
    return (
        f"{facts['seeds']} seeds; {facts['epochs']:.3g} epochs of {facts['train']} texts, {cut} of them cut at "
        f"{facts['length']} tokens; test: {facts['texts for the test']}."
    )


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """Losses, accuracies and capped shares."""
    picture, axes = new_figure(2, 3, width=8.4, height=4.9)
    draw_rules(axes, arrays, facts)
    chance = 1 / len(facts["classes"])
    for panel in (axes[0, 1], axes[1, 1]):
        panel.axhline(chance, color="black", linewidth=0.7, linestyle=":")
        panel.annotate(
            "chance",
            (1, chance),
            (-2, -2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=7,
        )
    draw_legend(axes[1, 2], axes[0, 0], facts, legend_title(facts))
    return picture


def legend_title(facts: Facts) -> str:
    """What was trained on what."""
    texts = facts["texts"].replace(", which stand in for ", "\nstand in for ")
    return (
        f"{texts}\n{facts['model']}\n{facts['train']} texts of at most {facts['length']} tokens\n"
        f"batch {facts['batch']}, {facts['epochs']:.3g} epochs\n{facts['seeds']} seeds: median, least to largest"
    )


# What there is ----------------------------------------------------------------------------------------------------

SAYS_MNLI = (
    'A pre-trained bert-base-uncased on MultiNLI, batch 32: "SNGD and SPS, employing adaptive step-size rules, '
    'demonstrate significantly faster training, closely resembling the performance of Adam" (Figure 1); "both gradient '
    'normalized step-sizes SNGD and SPS train significantly faster than SGD" (Section 5).'
)
SAYS_TOXIC = (
    'The same on CivilComments: "Fig. 4 in the App. shows similar results for the CivilComments dataset" (Section 5). '
    "The cap is 0.01, the step of SNGD itself."
)


def _figure(id: str, title: str, says: str, paper: Setting, quick: Setting, files: Files) -> Figure:
    return Figure(
        id=id,
        axes={"steps": "step", "*": "seed step"},
        title=title,
        says=says,
        data=partial(text_data, paper=paper, quick=quick, files=files),
        draw=draw,
        judge=judge,
        missing=libraries,
        inputs=partial(text_inputs, (paper.texts,), BERT, files),
        on_files=partial(_figure, id, title, says, paper, quick),
    )


FIGURES = [
    _figure("rates-1", "Fine-tuning a language model on sentence pairs", SAYS_MNLI, PAPER_MNLI, QUICK_MNLI, NONE),
    _figure("rates-4", "Fine-tuning a language model on comments", SAYS_TOXIC, PAPER_TOXIC, QUICK_TOXIC, NONE),
]
