"""Runs of Figure 6 and of what is claimed of it: a language model fine-tuned with more or fewer of its heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.scale import Scale, Tell
from attnlab.claims.stages import Stages
from attnlab.claims.texts import NONE, ROBERTA, Corpus, Files, Reader, looked_at
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array

# What roberta-base has.
BASE = {"vocabulary": 50_265, "dim": 768, "depth": 12, "heads": 12}
METRICS = ("loss", "accuracy", "test_loss", "test_accuracy")
STARTS = {"pretrained": "pretrained", "random": "random start"}
RECORDS = (0.0, 0.1, 0.3, 0.6, 1.0)  # parts of a run after which metrics are recorded
RIDGE = 0.1  # of the mean square of the features, for the linear classifier before training


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is fine-tuned, on what, and for how long.

    The paper states AdamW, its step, batch and epochs. It is silent on how heads are varied, weight decay, schedule,
    dropout and length.

    Attributes:
        heads: how many of the first heads of every layer are kept.
        step: of AdamW from pretrained weights.
        random_step: of AdamW from random weights, which need larger ones.
    """

    train: int
    test: int
    steps: int
    heads: tuple[int, ...]
    step: float
    random_step: float
    batch: int = 32
    length: int = 64
    decay: float = 0.01
    dropout: float = 0.1
    seeds: int = 3

    @property
    def epochs(self) -> float:
        """How often every text is seen."""
        return self.steps * self.batch / self.train

    @property
    def runs(self) -> int:
        """How many in all."""
        return len(STARTS) * len(self.heads) * self.seeds

    def rule(self, start: str) -> Any:
        """AdamW for this start."""
        from attnlab.optim import adam

        return adam(self.step if start == "pretrained" else self.random_step, decay=self.decay)


PAPER = Setting(train=67_349, test=872, steps=10_525, heads=(1, 2, 4, 8, 12), step=5e-6, random_step=1e-4)
QUICK = Setting(
    train=320,
    test=200,
    steps=100,
    heads=(1, 4, 12),
    step=5e-5,
    random_step=3e-4,
    batch=16,
    length=24,
    dropout=0.0,
)
SMOKE = replace(QUICK, train=160, test=80, steps=40, heads=(1, 2), step=3e-3, random_step=3e-3, length=16, seeds=2)
PAPER_SECONDS = 10.0  # of a step on two cores, by its floating-point operations
SILENT = (
    "how the number of heads is varied (here only the first ones of every layer work, the rest add nothing), weight "
    "decay (0.01 here), schedule (none here), dropout, length of a text, seeds"
)


def cost(paper: Setting) -> str:
    """What all runs at the paper's sizes take."""
    days = paper.runs * paper.steps * PAPER_SECONDS / 86_400
    return (
        f"{paper.runs} runs of {paper.steps} steps of RoBERTa-base: about {days:.0f} days on two cores, estimated; on "
        "a GPU perhaps half an hour each, not measured"
    )


def heads_data(scale: Scale, tell: Tell, *, files: Files = NONE) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Every number of heads from both starts, over seeds."""
    setting = scale.pick(SMOKE, QUICK, PAPER)
    corpus, reader = looked_at("sst2", scale, ROBERTA, files, test=setting.test)
    if not reader.pretrained:
        setting = SMOKE
    if setting == PAPER:
        tell(0, setting.runs, cost(PAPER))
    arrays, facts = train_all(setting, corpus, reader, tell)
    facts |= described(facts, setting)
    facts |= {
        "cost at paper scale": cost(PAPER),
        "the paper does not say": SILENT,
        "compared": "one way to vary heads; steps, sizes and texts of this scale were chosen before any run. Speed is "
        "read as loss at the end, which is judged, and as its mean over steps, which is told",
    }
    return arrays, facts


def train_all(
    setting: Setting, corpus: Corpus, reader: Reader, tell: Tell
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All runs; arrays (heads, seeds, records) by start and metric; of the features before training (heads,)."""
    corpus = corpus.taken(setting.train, setting.test)
    train, test = reader.encoded(corpus, setting.length)
    model, _ = reader.load(corpus.train.classes, 0, dropout=setting.dropout)
    heads = tuple(sorted({min(h, model.heads) for h in setting.heads}))
    setting = replace(setting, train=train.n, test=test.n, heads=heads)
    record = sorted({round(part * setting.steps) for part in RECORDS})
    shape = (len(heads), setting.seeds)
    arrays: dict[str, np.ndarray] = {"steps": np.array(record), "heads": np.array(heads)}
    lost: list[str] = []
    stage = Stages(tell, setting.runs)
    for start in STARTS:
        curves = {name: np.full((*shape, len(record)), np.nan) for name in METRICS}
        for seed in range(setting.seeds):
            weights = _start(reader, corpus.train.classes, setting, start, seed, train, model)
            if seed == 0:
                features = stage.keep(f"{start}, features", partial(_features, model, heads, weights, train, test))
                arrays |= {f"{start}_{name}": values for name, values in features.items()}
            for i, h in enumerate(heads):
                masked = replace(model, active=h)
                one = partial(_one_run, setting, masked, weights, start, seed, train, test, record)
                run = stage(f"{STARTS[start]}, {h} heads, seed {seed}", one)
                for name in METRICS:
                    curves[name][i, seed, : len(run[name])] = run[name]
                if run["lost"]:
                    lost.append(f"{start}, {h} heads, seed {seed}")
        arrays |= {f"{start}_{name}": values for name, values in curves.items()}
    return arrays, {
        **asdict(setting),
        **corpus.facts(),
        "epochs": setting.epochs,
        "rules": {start: repr(setting.rule(start)) for start in STARTS},
        "model": reader.title,
        "pretrained": reader.pretrained,
        "sizes": {name: getattr(model, name) for name in BASE},
        "texts that were cut": [int(data.info["truncated"]) for data in (train, test)],
        "precision": "float32",
        "runs that left the finite numbers": lost,
    }


def _features(
    model: Any, heads: tuple[int, ...], weights: Mapping[str, np.ndarray], train: Sequences, test: Sequences
) -> dict[str, Array]:
    """What is left, before training, of what the head sees with all heads: its cosine, and how well a line tells it."""
    kept, accuracy = np.zeros(len(heads)), np.zeros(len(heads))
    seen = {h: [replace(model, active=h).hidden(data, weights) for data in (train, test)] for h in heads}
    for i, h in enumerate(heads):
        kept[i] = row_cosine(seen[h][1], seen[heads[-1]][1])
        accuracy[i] = linear_accuracy(seen[h][0], train.y, seen[h][1], test.y)
    return {"features_kept": kept, "linear_accuracy": accuracy}


def _start(
    reader: Reader, classes: int, setting: Setting, start: str, seed: int, data: Sequences, model: Any
) -> dict[str, np.ndarray]:
    """The weights at step 0."""
    if start == "pretrained":
        return reader.load(classes, seed, dropout=setting.dropout)[1]
    return {name: array.astype(np.float32) for name, array in model.initial(data, 1000 + seed).items()}


def _one_run(
    setting: Setting,
    model: Any,
    weights: Mapping[str, np.ndarray],
    start: str,
    seed: int,
    train: Sequences,
    test: Sequences,
    record: list[int],
) -> dict[str, Any]:
    """Metrics of one run, and whether it left the finite numbers."""
    from attnlab.train import descend

    run = descend(
        train,
        setting.rule(start),
        model=model,
        init=dict(weights),
        loss="cross_entropy",
        steps=setting.steps,
        batch=setting.batch,
        seed=seed,
        record=record,
        test=test,
        precision="float32",
    )
    return {**{name: run.metrics[name] for name in METRICS}, "lost": bool(run.diverged)}


def row_cosine(one: Array, other: Array) -> float:
    """Cosine of what the head sees with some heads and with all, mean over texts; both (n, d).

    >>> row_cosine(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[2.0, 0.0], [3.0, 0.0]]))
    0.5
    """
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return float(np.mean((one * other).sum(-1) / np.where(lengths > 0, lengths, 1.0)))


def linear_accuracy(features: Array, y: Array, unseen: Array, answers: Array) -> float:
    """Accuracy on unseen texts of a linear classifier (ridge regression) of fixed features.

    >>> x = np.array([[1.0], [2.0], [-1.0], [-2.0]])
    >>> linear_accuracy(x, np.array([1, 1, 0, 0]), x, np.array([1, 1, 0, 1]))
    0.75
    """
    features, unseen = np.asarray(features, dtype=np.float64), np.asarray(unseen, dtype=np.float64)
    mean = features.mean(0)
    centred = features - mean
    classes = np.arange(int(max(y.max(), answers.max())) + 1)
    targets = (y[:, None] == classes).astype(np.float64)  # (n, classes)
    weight = RIDGE * float((centred**2).mean()) * len(centred)
    square = centred.T @ centred + (weight + np.finfo(float).tiny) * np.eye(centred.shape[1])
    solved = np.linalg.solve(square, centred.T @ (targets - targets.mean(0)))
    scores = (unseen - mean) @ solved + targets.mean(0)
    return float(np.mean(scores.argmax(-1) == answers))


def described(facts: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """What was run beside what the paper ran."""
    base = facts["sizes"] == BASE and facts["pretrained"]
    return {
        "stand-in": bool(facts["texts stand in"]) or not facts["pretrained"],
        "model stands in": "" if base else f"In place of RoBERTa-base: {facts['model']}.",
        "paper": {"steps": PAPER.steps, "train": PAPER.train, "step": PAPER.step},
        "as the paper": base and setting == PAPER and facts["train"] == PAPER.train,
    }
