"""Runs of Figures 6 and 7 and of what is claimed of them: step rules on a small vision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from attnlab.claims.images import TITLES as SETS, at_hand
from attnlab.claims.rates.rule_runs import Job, RuleSetting, run_rules
from attnlab.claims.scale import Scale, Tell
from attnlab.data.images import Images
from attnlab.data.imagesets import cifar10, digits, mnist
from attnlab.data.sequences import Sequences
from attnlab.models.vision import VisionTransformer

TITLES = {**SETS, "digits": "8 x 8 digits of scikit-learn"}
LOADERS = {"mnist": mnist, "cifar10": cifar10}
OTHER_CAP = 10.0  # of SPS in Figure 7


@dataclass(frozen=True, kw_only=True)
class Setting(RuleSetting):
    """What is trained, on what, and for how long.

    The paper states patch, depth, heads, mlp, batch, epochs, steps of the rules and their caps. It is silent on dim,
    head_dim, pool, position_scale, dropout and the constant of SPS on batches; the first four follow the
    implementation that it names.
    """

    images: Literal["mnist", "cifar10", "digits"]
    patch: int
    depth: int
    heads: int
    mlp: int
    controls: tuple[str, ...] = ()
    batch: int = 100
    sgd_step: float = 0.1
    sngd_step: float = 0.001
    adam_step: float = 0.001
    dim: int = 128
    head_dim: int = 64
    pool: Literal["cls", "mean"] = "cls"
    position_scale: float = 1.0
    dropout: float = 0.0

    @property
    def layers(self) -> tuple[str, str, str]:
        """Weights whose norms are drawn: queries of the first block, the MLP of the last one, and the head."""
        return "block1_Q", f"block{self.depth}_mlp1_W", "head_W"

    def rules(self) -> dict[str, Any]:
        """The step rules by name, and SPS with another cap where that is a control."""
        from attnlab.optim import polyak

        rules = super().rules()
        if "sps_other" in self.controls:
            rules["sps_other"] = polyak(cap=OTHER_CAP, constant=self.sps_constant, floor=0.0)
        return rules

    def model(self, data: Sequences) -> VisionTransformer:
        """The transformer for small data sets: shifted patches, and no token sees itself."""
        return VisionTransformer(
            classes=int(data.info["classes"]),
            patch=self.patch,
            channels=int(data.info["channels"]),
            dim=self.dim,
            depth=self.depth,
            heads=self.heads,
            head_dim=self.head_dim,
            mlp=self.mlp,
            pool=self.pool,
            tokenization="shifted",
            locality=True,
            position_scale=self.position_scale,
            dropout=self.dropout,
        )


PAPER_MNIST = Setting(
    images="mnist",
    train=60_000,
    test=10_000,
    steps=24_000,
    patch=4,
    depth=2,
    heads=8,
    mlp=128,
    sngd_cap=0.01,
    sps_cap=0.01,
    controls=("sps_other",),
)
PAPER_CIFAR = Setting(
    images="cifar10",
    train=50_000,
    test=10_000,
    steps=40_000,
    patch=4,
    depth=8,
    heads=32,
    mlp=512,
    sngd_cap=0.1,
    sps_cap=10.0,
)
QUICK_MNIST = replace(PAPER_MNIST, train=5_000, test=1_000, steps=1_000, patch=7, dim=64, head_dim=16)
QUICK_CIFAR = replace(
    PAPER_CIFAR, train=4_000, test=500, steps=500, patch=8, depth=4, heads=8, mlp=128, dim=64, head_dim=16
)
SILENT = (
    "embedding width, width of a head, pooling, law of the positions, dropout, normalisation of pixels, seeds, and the "
    "constant of SPS on batches (1/2 here, as in Section 2)"
)
# On the digits, in place of the images that a figure asks for.
SMALL = {"images": "digits", "train": 500, "test": 200, "patch": 2, "dim": 16, "head_dim": 8, "mlp": 32}
SMOKE_STEPS = 100
# Seconds of a step at the paper's sizes, measured on two cores.
PAPER_SECONDS = {"mnist": 0.5, "cifar10": 13.0}
PAPER_GPU = {"mnist": "minutes", "cifar10": "about 2 hours, says the paper,"}


def vision_data(scale: Scale, tell: Tell, *, paper: Setting, quick: Setting) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every rule from the same starts, through the same batches."""
    setting = setting_of(scale, paper, quick)
    if setting == paper:
        tell(0, len(paper.rules()) * paper.seeds, cost(paper))
    arrays, facts = train_all(setting, tell)
    facts |= described(facts, setting, paper)
    facts |= {
        "cost at paper scale": cost(paper),
        "the paper does not say": SILENT,
        "compared": "one choice of each of these; no step, cap or size was tuned. Of SPS on MNIST two caps: that of "
        "Figure 6 and, as a control, that of Figure 7. Speed is read as train loss at the end, which is judged, and as "
        "its mean over steps, which is told",
    }
    return arrays, facts


def described(facts: Mapping[str, Any], setting: Setting, paper: Setting) -> dict[str, Any]:
    """What was run beside what the paper ran."""
    title = TITLES[setting.images]
    stands_in = setting.images != paper.images
    alike = replace(setting, controls=paper.controls) == paper
    return {
        "images": f"{title}, which stand in for {TITLES[paper.images]}" if stands_in else title,
        "stand-in": stands_in,
        "paper": {"steps": paper.steps, "depth": paper.depth, "heads": paper.heads, "patch": paper.patch},
        "as the paper": alike and facts["train"] == paper.train,
    }


def cost(paper: Setting) -> str:
    """What all runs at the paper's sizes take."""
    runs = len(paper.rules()) * paper.seeds
    hours = runs * paper.steps * PAPER_SECONDS[paper.images] / 3600
    gpu = PAPER_GPU[paper.images]
    return f"{runs} runs of {paper.steps} steps: about {hours:.0f} hours on two cores; {gpu} for each run on a GPU"


def setting_of(scale: Scale, paper: Setting, quick: Setting) -> Setting:
    """What is run at a scale; where the images are not at hand, as much of it on the digits of scikit-learn."""
    wanted = scale.pick(quick, quick, paper)
    if scale is Scale.SMOKE:
        return replace(wanted, **SMALL, depth=1, heads=2, batch=50, steps=SMOKE_STEPS, controls=())
    if not at_hand(wanted.images):
        return replace(wanted, **SMALL, depth=2, heads=2)
    return wanted


def patches_of(setting: Setting) -> tuple[Sequences, Sequences, str]:
    """Patches to train on and for the test, each pixel less their mean and over their deviation; a note on the set."""
    load = LOADERS.get(setting.images, lambda split: digits(split))
    train = load(split="train")
    test = load(split="test")
    train = train.take(min(setting.train, train.n), seed=0)
    test = test.take(min(setting.test, test.n), seed=0)
    mean, std = _mean_and_deviation(train)
    made = [images.patches(setting.patch, mean=mean, std=std) for images in (train, test)]
    return made[0], made[1], str(train.info.get("note", ""))


def _mean_and_deviation(images: Images) -> tuple[float, float]:
    pixels = images.pixels / (255.0 if images.pixels.dtype == np.uint8 else 1.0)
    return float(pixels.mean()), float(pixels.std())


def train_all(setting: Setting, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Every rule from every seed; arrays (seeds, records) by rule and metric, and the settings."""
    train, test, note = patches_of(setting)
    arrays, facts = run_rules(setting, Job(train, test, setting.model(train)), tell)
    return arrays, {**facts, "note on the images": note}
