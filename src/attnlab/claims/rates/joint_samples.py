"""Data for the claims on joint training: sets that meet Condition 1, and sets like those of the figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

import attnlab as al
from attnlab.claims.rates.joint_leaps import Leaps, leap
from attnlab.data import Tokens
from attnlab.data.highdim import gaussian_signal_in_span
from attnlab.data.tokens import Array
from attnlab.svm import linear_margin, solve_margins
from attnlab.theory.fast_rates.joint import JointModel, condition_1
from attnlab.train import Trajectory

# What every run records of its own: the weights themselves, so that NumPy can judge the rest.
WATCHED = {
    "u": lambda view: view.params["u"],
    "W_now": lambda view: view.W,
    "logits": lambda view: view.logits[:, 0],
    "margins": lambda view: view.margins[:, 0],
}
EDGE = 1.01  # how far inside the border of each condition the sets lie


@dataclass(frozen=True, eq=False)
class Case:
    """Data sets of one model, with their max-margin solutions.

    Attributes:
        tokens: a batch.
        model: the data model they were drawn from.
        step: eta.
        Lambda: |W_mm| per trial.
        W_mm: max-margin attention weights per trial.
        u_mm: max-margin heads on the planted tokens, per trial.
        gamma: their margins.
    """

    tokens: Tokens
    model: JointModel
    step: float
    Lambda: Array
    W_mm: Array
    u_mm: Array
    gamma: Array

    def slack(self) -> dict[str, float]:
        """Condition 1 as the proofs use it: what there is over what is wanted, for each part."""
        return condition_1(self.model, self.step, form="proof").evidence["ratios"]


def edge_model(n: int) -> JointModel:
    """The least data model that meets Condition 1 as the proofs use it: alpha = 6, B = 1 and the least d, plus 1 %."""
    alpha = 6.0 * EDGE
    d = np.ceil(EDGE * JointModel(n=n, d=1.0, alpha=alpha, rho=1.0).proof_dimension())
    return JointModel(n=n, d=float(d), alpha=alpha, rho=EDGE / (alpha * float(np.sqrt(1.5 * d))))


def edge_step(model: JointModel) -> float:
    """The largest step size that Condition 1 allows, less 1 %."""
    return min(model.step_caps.values()) / EDGE


@lru_cache(maxsize=8)
def condition_case(n: int, trials: int, seed: int = 0) -> Case:
    """Sets that meet Condition 1, with all constants that the proofs ask for."""
    model = edge_model(n)
    return _case(model, edge_step(model), seed, trials)


@lru_cache(maxsize=8)
def plain_case(n: int, d: float, alpha: float, rho: float, step: float, trials: int, seed: int = 0) -> Case:
    """Sets of a data model that need not meet Condition 1."""
    return _case(JointModel(n=n, d=d, alpha=alpha, rho=rho), step, seed, trials)


def _case(model: JointModel, step: float, seed: int, trials: int) -> Case:
    tokens = gaussian_signal_in_span(
        n=model.n, d=model.d, strength=model.alpha, noise=model.rho, seed=seed, trials=trials
    )
    planted = tokens.info["planted"]
    margins = solve_margins(tokens, planted)
    heads = [_head(tokens[i]) for i in range(trials)]
    return Case(
        tokens, model, step, Lambda=np.linalg.norm(margins.W, axis=(-2, -1)), W_mm=margins.W, u_mm=np.array(heads),
        gamma=1 / np.linalg.norm(heads, axis=-1),
    )  # fmt: skip


def _head(tokens: Tokens) -> Array:
    opt = np.take_along_axis(tokens.x, tokens.info["planted"][:, None, None], 1)[:, 0]
    weights = linear_margin(opt, tokens.y).weights
    assert weights is not None  # the labels come from a linear rule
    return weights


@lru_cache(maxsize=16)
def leaps_of(case: Case, until: float = 30.0, power: float = 2 / 3, finer: int = 1) -> Leaps:
    """Eq. (10) in leaps, to the end of training."""
    return leap(case.tokens, case.model, case.step, target=case.W_mm, until=until, power=power, finer=finer)


@lru_cache(maxsize=16)
def run_of(case: Case, steps: int, power: float = 2 / 3) -> Trajectory:
    """Eq. (10) step by step, recorded at every step up to 50 and then 20 times per decade."""
    record = sorted({*range(1, min(steps, 50) + 1), *np.geomspace(1, steps, int(20 * np.log10(steps))).astype(int)})
    return al.descend(
        case.tokens, al.optim.joint_decay(case.step, power=power), steps=steps, loss="exponential", train_head=True,
        init="zeros", record=[int(t) for t in record], metrics=WATCHED, track=case.tokens.info["planted"],
        targets={"svm": case.W_mm, "head": case.u_mm},
    )  # fmt: skip


def with_step(case: Case, step: float) -> Case:
    """The same data, trained with another step size."""
    return replace(case, step=step)
