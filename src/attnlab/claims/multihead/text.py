"""Figure 6: a language model fine-tuned with more or fewer heads, what the paper says of it, judged over seeds.

*On the Optimization and Generalization of Multi-head Attention*, the experiment on SST-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.claim import Claim, Outcome, outcome_of_checks
from attnlab.claims.multihead.text_runs import PAPER, QUICK, STARTS, described, train_all
from attnlab.claims.scale import Scale
from attnlab.claims.seen import Check
from attnlab.claims.texts import NONE, ROBERTA, missing_texts, pretrained_reader, read_corpus, text_inputs
from attnlab.claims.verdict import Verdict
from attnlab.data.tokens import Array

Arrays = Mapping[str, np.ndarray]
Facts = Mapping[str, Any]

LOSSES = {"loss": "train loss", "test_loss": "test loss"}
# Smaller than the runs of the figure at the same scale.
PLANS = {
    Scale.SMOKE: replace(QUICK, train=32, test=8, steps=2, batch=4, length=8, heads=(1, 2), seeds=2),
    Scale.QUICK: replace(QUICK, train=160, steps=50, heads=(1, 12)),
    Scale.PAPER: PAPER,
}


def slopes(arrays: Arrays, start: str, metric: str) -> Array:
    """Change of the log of a loss at the end with each doubling of the heads, by least squares, (seeds,)."""
    doublings = np.log2(arrays["heads"])
    centred = doublings - doublings.mean()
    logs = np.log(arrays[f"{start}_{metric}"][..., -1])  # (heads, seeds)
    return centred @ logs / (centred**2).sum()


def heads_checks(arrays: Arrays) -> list[Check]:
    """Losses from pretrained weights fall with the number of heads."""
    return [
        Check(
            f"with more heads the {words} is smaller: log of it at the end, for each doubling of the heads",
            slopes(arrays, "pretrained", metric),
            at_most=0.0,
        )
        for metric, words in LOSSES.items()
    ]


def stands_in(facts: Facts) -> str:
    """Why nothing is decided: other texts than the paper's, or random weights; empty if neither."""
    if not facts["stand-in"]:
        return ""
    model = "" if facts["pretrained"] else f" with {facts['model']}"
    return f"Nothing is decided on {facts['texts']}{model}."


def too_small(facts: Facts) -> str:
    """Why these runs decide nothing against the paper, if they do not."""
    if facts["as the paper"]:
        return ""
    return (
        f"These runs are smaller than the paper's, {facts['steps']} of {facts['paper']['steps']} steps, of "
        f"{facts['step']:g} in place of {facts['paper']['step']:g} ({facts['train']} texts of {facts['texts']}, "
        f"{facts['model']}): what is not seen here speaks neither for nor against the paper."
    )


def measured(scale: Scale) -> Outcome:
    """Runs of the claim's plan on the texts and with the model that are found, and the checks of them."""
    plan = PLANS[scale]
    paths, folder = NONE.texts("sst2"), NONE.model(ROBERTA)
    assert paths is not None  # `missing` says so before
    assert folder is not None
    corpus = read_corpus("sst2", paths, test=plan.test)
    arrays, facts = train_all(plan, corpus, pretrained_reader(folder), lambda done, total, what: None)
    facts |= described(facts, plan)
    stand_in = stands_in(facts)
    return outcome_of_checks(
        heads_checks(arrays),
        brief="" if stand_in else too_small(facts),
        stand_in=stand_in,
        seeds=range(facts["seeds"]),
        numbers={
            f"{words} at the end by heads, {STARTS[start]}": by_heads(arrays, start, metric)
            for start in STARTS
            for metric, words in LOSSES.items()
        },
        note=facts["model stands in"],
    )


def by_heads(arrays: Arrays, start: str, metric: str) -> dict[str, float]:
    """A metric at the end, mean over seeds, by number of heads."""
    ends = arrays[f"{start}_{metric}"][..., -1].mean(-1)
    return {str(h): float(end) for h, end in zip(arrays["heads"], ends, strict=True)}


CLAIMS = [
    Claim(
        id="multihead-F6",
        title="Fine-tuning a language model with more or fewer heads",
        statement='Fine-tuning on SST-2 with AdamW, "increasing the number of heads speeds up the optimization and '
        'generalization" (Figure 6).',
        hypotheses=("texts, steps and model as the paper's; heads are varied by keeping the first ones",),
        setting="SST-2 and a pretrained model, AdamW, three seeds; random weights of the same sizes as a control. "
        "quick: 160 texts, 50 steps of 5e-5, 1 and 12 heads; paper: all, 5 epochs, 1 to 12 heads",
        reason="log of the train loss and of the test loss at the end falls with each doubling of the heads, means "
        "over seeds and two standard errors. Runs smaller than the paper's can support it, not refute it",
        measure=measured,
        missing=partial(missing_texts, ("sst2",), ROBERTA),
        inputs=partial(text_inputs, ("sst2",), ROBERTA),
        expected=Verdict.NOT_APPLICABLE,
        at_scale={Scale.PAPER: (Verdict.HOLDS, "what the paper reports; days of runs, not measured by us")},
    ),
]
