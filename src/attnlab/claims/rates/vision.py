"""Figures 6 and 7: step rules on vision transformers, what the paper says of them, judged over seeds.

*Implicit Bias and Fast Convergence Rates for Self-attention*, Section 5 and Appendix C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from attnlab.claims.claim import Claim, Outcome
from attnlab.claims.images import image_inputs, missing_images
from attnlab.claims.rates.rule_runs import RULES, Arrays, Facts, log_ratio, outcome_of_runs, too_small
from attnlab.claims.rates.vision_runs import (
    PAPER_CIFAR,
    PAPER_MNIST,
    QUICK_CIFAR,
    QUICK_MNIST,
    Setting,
    described,
    train_all,
)
from attnlab.claims.scale import Scale
from attnlab.claims.seen import Check
from attnlab.claims.verdict import Verdict
from attnlab.data.tokens import Array

SIMILAR = 2.0  # a train loss that is smaller by less than this factor is called no significant gain
TINY = {"train": 200, "test": 50, "steps": 4, "depth": 1, "heads": 2, "mlp": 8, "dim": 8, "head_dim": 4}
# Smaller than the runs of the figures at the same scale, and without controls.
MNIST_PLANS = {
    Scale.SMOKE: replace(QUICK_MNIST, **TINY, controls=()),
    Scale.QUICK: replace(QUICK_MNIST, train=3_000, steps=300, controls=()),
    Scale.PAPER: replace(PAPER_MNIST, controls=()),
}
CIFAR_PLANS = {
    Scale.SMOKE: replace(QUICK_CIFAR, **TINY),
    Scale.QUICK: replace(QUICK_CIFAR, depth=2, heads=4, train=2_000, steps=300),
    Scale.PAPER: PAPER_CIFAR,
}


def loss_checks(arrays: Arrays) -> list[Check]:
    """What the paper says of speed, read as train loss at the end; logarithms, so that seeds have a mean."""
    return [
        Check(
            "SNGD trains slower than SGD: log of its train loss over that of SGD", log_ratio(arrays, "sngd", "sgd"), 0.0
        ),
        Check(
            f"Adam has no significant gain over SGD: log of SGD's train loss over Adam's is at most log {SIMILAR:g}",
            log_ratio(arrays, "sgd", "adam"),
            at_most=float(np.log(SIMILAR)),
        ),
        Check("SPS outperforms SGD: log of SGD's train loss over that of SPS", log_ratio(arrays, "sgd", "sps"), 0.0),
    ]


def growth(arrays: Arrays, name: str, layer: str) -> Array:
    """log of the norm of a layer at the end over that at the start, (seeds,)."""
    norms = arrays[f"{name}_norm_{layer}"]
    return np.log(norms[:, -1] / norms[:, 0])


def growth_checks(arrays: Arrays, facts: Facts) -> list[Check]:
    """The norms of layers grow, in the mean over the layers that are drawn."""
    checks = []
    for name, title in RULES.items():
        of_layers = np.stack([growth(arrays, name, layer) for layer in facts["layers"]])  # (layers, seeds)
        label = f"norms of layers grow with {title}: mean log of end over start"
        checks.append(Check(label, of_layers.mean(0), 0.0))
    return checks


def what_was_seen(facts: Facts) -> str:
    """The images of runs, in words."""
    return f"{facts['train']} images of {facts['images']}"


def measured(scale: Scale, plans: Mapping[Scale, Setting], paper: Setting, *, norms: bool) -> Outcome:
    """Runs of the claims' plan on the paper's images, and the checks of them."""
    arrays, facts = train_all(plans[scale], lambda done, total, what: None)
    facts |= described(facts, plans[scale], paper)
    checks = loss_checks(arrays) + (growth_checks(arrays, facts) if norms else [])
    return outcome_of_runs(arrays, facts, checks, brief=too_small(facts, what_was_seen(facts)))


def _claim(
    *,
    id: str,
    title: str,
    says: str,
    setting: str,
    name: str,
    plans: Mapping[Scale, Setting],
    paper: Setting,
    norms: bool,
) -> Claim:
    growth = ", and the mean log of the norms of three layers at the end over the start above 0" if norms else ""
    return Claim(
        id=id,
        title=title,
        statement=says,
        hypotheses=("images, steps and model as the paper's",),
        setting=setting,
        reason="log of the train loss at the end of one rule over that of another: SNGD over SGD and SGD over SPS "
        f"above 0, SGD over Adam at most log {SIMILAR:g}{growth}; means over three seeds and two standard errors. Runs "
        "smaller than the paper's can support it, not refute it",
        measure=partial(measured, plans=plans, paper=paper, norms=norms),
        missing=partial(missing_images, name),
        inputs=partial(image_inputs, name),
        expected=Verdict.NOT_APPLICABLE,
        at_scale={Scale.PAPER: (Verdict.HOLDS, "what the paper reports; days of runs, not measured by us")},
    )


CLAIMS = [
    _claim(
        id="rates-F6",
        title="Step rules on a small vision transformer, MNIST",
        says="SNGD trains slower than SGD, Adam has no significant gain over SGD (Figure 6), and SPS outperforms SGD "
        "(Section 5).",
        setting="MNIST, shifted patches, no token sees itself, batches of 100, steps and caps of the paper, three "
        "seeds. quick: 3,000 images, 300 steps, patches of 7 x 7, width 64; paper: all, 40 epochs",
        name="mnist",
        plans=MNIST_PLANS,
        paper=PAPER_MNIST,
        norms=False,
    ),
    _claim(
        id="rates-F7",
        title="Step rules on a small vision transformer, CIFAR-10",
        says="SNGD trains slower than SGD, the norms of layers grow with every rule (Figure 7), SPS outperforms SGD, "
        "and Adam has no significant gap to it (Section 5).",
        setting="CIFAR-10, shifted patches, no token sees itself, batches of 100, steps and caps of the paper, three "
        "seeds. quick: 2,000 images, 300 steps, depth 2, 4 heads, patches of 8 x 8, width 64; paper: all, 80 epochs",
        name="cifar10",
        plans=CIFAR_PLANS,
        paper=PAPER_CIFAR,
        norms=True,
    ),
]
