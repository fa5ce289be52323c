"""Figures 1 and 4: step rules that fine-tune a language model, what the paper says of them, judged over seeds.

*Implicit Bias and Fast Convergence Rates for Self-attention*, Sections 1 and 5, Appendix C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from attnlab.claims.claim import Claim, Outcome
from attnlab.claims.rates.rule_runs import RULES, Arrays, Facts, log_ratio, outcome_of_runs, too_small
from attnlab.claims.rates.text_runs import (
    PAPER_MNLI,
    PAPER_TOXIC,
    QUICK_MNLI,
    QUICK_TOXIC,
    Setting,
    described,
    train_all,
)
from attnlab.claims.scale import Scale
from attnlab.claims.seen import Check
from attnlab.claims.texts import BERT, NONE, missing_texts, pretrained_reader, read_corpus, text_inputs
from attnlab.claims.verdict import Verdict

TINY = {"train": 32, "test": 8, "steps": 2, "batch": 4, "length": 8}
# Smaller than the runs of the figures at the same scale.
MNLI_PLANS = {
    Scale.SMOKE: replace(QUICK_MNLI, **TINY),
    Scale.QUICK: replace(QUICK_MNLI, steps=240, train=384),
    Scale.PAPER: PAPER_MNLI,
}
TOXIC_PLANS = {
    Scale.SMOKE: replace(QUICK_TOXIC, **TINY),
    Scale.QUICK: replace(QUICK_TOXIC, steps=80, train=128),
    Scale.PAPER: PAPER_TOXIC,
}


def loss_checks(arrays: Arrays) -> list[Check]:
    """What the paper says of speed, read as train loss at the end; logarithms, so that seeds have a mean.

    "Closely resembling the performance of Adam" is read as: nearer to Adam than to SGD.
    """
    checks = []
    for name in ("sngd", "sps"):
        title = RULES[name]
        gain = log_ratio(arrays, "sgd", name)
        away = np.abs(log_ratio(arrays, name, "adam"))
        label = f"{title} trains faster than SGD: log of SGD's train loss over that of {title}"
        checks.append(Check(label, gain, 0.0))
        label = f"{title} is nearer to Adam than to SGD: distance to SGD less that to Adam, in log of the train loss"
        checks.append(Check(label, np.abs(gain) - away, 0.0))
    return checks


def what_was_seen(facts: Facts) -> str:
    """Texts and model of runs, in words."""
    return f"{facts['train']} texts of {facts['texts']}, {facts['model']}"


def stands_in(facts: Facts) -> str:
    """Why nothing is decided: other texts than the paper's, or random weights; empty if neither."""
    if not facts["stand-in"]:
        return ""
    model = "" if facts["pretrained"] else f" with {facts['model']}"
    return f"Nothing is decided on {facts['texts']}{model}."


def measured(scale: Scale, plans: Mapping[Scale, Setting], paper: Setting) -> Outcome:
    """Runs of the claims' plan on the texts and with the model that are found, and the checks of them."""
    plan = plans[scale]
    paths, folder = NONE.texts(plan.texts), NONE.model(BERT)
    assert paths is not None  # `missing` says so before
    assert folder is not None
    corpus = read_corpus(plan.texts, paths, test=plan.test)
    arrays, facts = train_all(plan, corpus, pretrained_reader(folder), lambda done, total, what: None)
    facts |= described(facts, plan, paper)
    stand_in = stands_in(facts)
    return outcome_of_runs(
        arrays,
        facts,
        loss_checks(arrays),
        brief="" if stand_in else too_small(facts, what_was_seen(facts)),
        stand_in=stand_in,
        note=facts["model stands in"],
    )


def _claim(*, id: str, title: str, says: str, setting: str, plans: Mapping[Scale, Setting], paper: Setting) -> Claim:
    return Claim(
        id=id,
        title=title,
        statement=says,
        hypotheses=("texts, steps and model as the paper's",),
        setting=setting,
        reason="log of the train loss at the end of SGD over that of SNGD and of SPS above 0, and larger than the "
        "distance to that of Adam; means over seeds and two standard errors. Runs smaller than the paper's can support "
        "it, not refute it; other texts than its own decide nothing",
        measure=partial(measured, plans=plans, paper=paper),
        missing=partial(missing_texts, (paper.texts,), BERT),
        inputs=partial(text_inputs, (paper.texts,), BERT),
        expected=Verdict.NOT_APPLICABLE,
        at_scale={Scale.PAPER: (Verdict.HOLDS, "what the paper reports; months of runs here, not measured by us")},
    )


CLAIMS = [
    _claim(
        id="rates-F1",
        title="Step rules that fine-tune a language model, MultiNLI",
        says='Fine-tuning on MultiNLI, SNGD and SPS "demonstrate significantly faster training, closely resembling the '
        'performance of Adam" (Figure 1); they "train significantly faster than SGD" (Section 5).',
        setting="MultiNLI and a pretrained BERT, steps and caps of the paper. quick: 384 texts, 240 steps of 16 texts "
        "cut at 32 tokens, two seeds; paper: all, 10 epochs, three seeds",
        plans=MNLI_PLANS,
        paper=PAPER_MNLI,
    ),
    _claim(
        id="rates-F4",
        title="Step rules that fine-tune a language model, CivilComments",
        says='Fine-tuning on CivilComments "shows similar results" (Section 5, Figure 4): SNGD and SPS train faster '
        "than SGD, and nearly as fast as Adam.",
        setting="CivilComments and a pretrained BERT, steps and caps of the paper. quick: 128 texts, 80 steps of 16 "
        "texts cut at 32 tokens, three seeds; paper: all, 10 epochs",
        plans=TOXIC_PLANS,
        paper=PAPER_TOXIC,
    ),
]
