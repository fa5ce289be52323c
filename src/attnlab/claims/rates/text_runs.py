"""Runs of Figures 1 and 4 and of what is claimed of them: step rules that fine-tune a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from attnlab.claims.rates.rule_runs import Job, RuleSetting, run_rules
from attnlab.claims.scale import Scale, Tell
from attnlab.claims.texts import BERT, NONE, Corpus, Files, Reader, card_remark, looked_at

# What bert-base-uncased has.
BASE = {"vocabulary": 30_522, "dim": 768, "depth": 12, "heads": 12}
WANTED = "BERT-base"


@dataclass(frozen=True, kw_only=True)
class Setting(RuleSetting):
    """What is fine-tuned, on what, and for how long.

    The paper states batch, steps of the rules and their caps. It is silent on length, dropout, the pooling, weight
    decay, schedules and the constant of SPS on batches.
    """

    texts: Literal["mnli", "toxic"]
    length: int
    dropout: float = 0.1
    batch: int = 32
    sgd_step: float = 1e-3
    sngd_step: float = 1e-2

    @property
    def records(self) -> tuple[float, ...]:
        """Parts of a run after which metrics are recorded: few, as each goes through all texts."""
        return (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


PAPER_MNLI = Setting(
    texts="mnli", train=392_702, test=9_815, steps=122_720, length=128, adam_step=2e-5, sngd_cap=0.1, sps_cap=0.1
)
PAPER_TOXIC = Setting(
    texts="toxic", train=269_038, test=10_000, steps=84_080, length=300, adam_step=1e-5, sngd_cap=0.01, sps_cap=0.01
)
# Ten epochs as in the paper, of few texts.
FEW = {"batch": 16, "length": 32, "dropout": 0.0, "test": 200}
QUICK_MNLI = replace(PAPER_MNLI, train=512, steps=320, seeds=2, **FEW)
QUICK_TOXIC = replace(PAPER_TOXIC, train=256, steps=160, **FEW)
# On made-up texts, in place of those that a figure asks for.
SMALL = {"train": 128, "test": 64, "batch": 16, "length": 16, "dropout": 0.0, "seeds": 2}
SMOKE_STEPS = 40
SILENT = (
    "length of a text, dropout, what the head sees (here the first token, as in the implementation that it names), "
    "weight decay and schedules (here none), seeds, and the constant of SPS on batches (1/2 here, as in Section 2)"
)
PAPER_HOURS = 32.0  # of a run on two V100, says the paper
PAPER_SECONDS = {"mnli": 20.0, "toxic": 50.0}  # of a step on two cores, by its floating-point operations


def text_data(
    scale: Scale, tell: Tell, *, paper: Setting, quick: Setting, files: Files = NONE
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Every rule from the same starts, through the same batches."""
    setting = scale.pick(quick, quick, paper)
    corpus, reader = looked_at(setting.texts, scale, BERT, files, test=setting.test)
    setting = on_hand(setting, reader, scale)
    if setting == paper:
        tell(0, len(paper.rules()) * paper.seeds, cost(paper))
    arrays, facts = train_all(setting, corpus, reader, tell)
    facts |= described(facts, setting, paper)
    facts |= {
        "cost at paper scale": cost(paper),
        "the paper does not say": SILENT,
        "compared": "one choice of each of these; batch, length, steps and texts of this scale were chosen before any "
        "run. Speed is read as train loss at the end, which is judged, and as its mean over steps, which is told",
    }
    return arrays, facts


def on_hand(setting: Setting, reader: Reader, scale: Scale) -> Setting:
    """What is run: with a tiny model as much of it as made-up texts allow."""
    if reader.pretrained:
        return setting
    steps = SMOKE_STEPS if scale is Scale.SMOKE else min(setting.steps, 400)
    return replace(setting, **SMALL, steps=steps)


def train_all(
    setting: Setting, corpus: Corpus, reader: Reader, tell: Tell
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Every rule from every seed, of the head and of the batches; arrays (seeds, records) by rule, and facts."""
    corpus = corpus.taken(setting.train, setting.test)
    train, test = reader.encoded(corpus, setting.length)
    load = partial(reader.load, corpus.train.classes, dropout=setting.dropout)
    model, _ = load(0)
    arrays, facts = run_rules(setting, Job(train, test, model, lambda seed: load(seed)[1]), tell)
    return arrays, {
        **facts,
        **corpus.facts(),
        "model": reader.title,
        "pretrained": reader.pretrained,
        "sizes": {name: getattr(model, name) for name in BASE},
        "classes": list(corpus.train.names),
        "texts that were cut": [int(data.info["truncated"]) for data in (train, test)],
        "a seed decides": "the start of the head, and the order of the batches",
    }


def described(facts: Mapping[str, Any], setting: Setting, paper: Setting) -> dict[str, Any]:
    """What was run beside what the paper ran."""
    base = facts["sizes"] == BASE and facts["pretrained"]
    return {
        "stand-in": bool(facts["texts stand in"]) or not facts["pretrained"],
        "model stands in": "" if base else stands_in_for_base(str(facts["model"])),
        "paper": {"steps": paper.steps, "train": paper.train, "batch": paper.batch},
        "as the paper": base and setting == paper and facts["train"] == paper.train,
    }


def stands_in_for_base(model: str) -> str:
    """That a model is another than the paper's, and what is known of it."""
    return f"In place of {WANTED}: {model}. {card_remark(model)}".rstrip()


def cost(paper: Setting) -> str:
    """What all runs at the paper's sizes take."""
    runs = len(paper.rules()) * paper.seeds
    days = runs * paper.steps * PAPER_SECONDS[paper.texts] / 86_400
    return (
        f"{runs} runs of {paper.steps} steps of BERT-base: about {days:.0f} days on two cores, estimated; on two V100 "
        f"{PAPER_HOURS:g} hours for each run, says the paper"
    )
