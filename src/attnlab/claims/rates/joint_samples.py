"""Data for the claims on joint training: sets that meet Condition 1, and sets like those of the figures.

Condition 1 leaves its absolute constants open. Two choices are used: what the proofs ask of d (`form="proof"`), which
makes d at least 10^14, and Condition 2 with its absolute constant at 1 (`form="complete"`), which makes d at least
10^5 and bounds much closer to what they bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

import attnlab as al
from attnlab.claims.rates.joint_leaps import Leaps, leap
from attnlab.data import Tokens
from attnlab.data.highdim import gaussian_signal_in_span
from attnlab.data.tokens import Array
from attnlab.svm import linear_margin, solve_margins
from attnlab.theory.rates.joint import JointModel, condition_1, near_orthogonality
from attnlab.train import Trajectory

Form = Literal["proof", "complete"]
FORMS: tuple[Form, ...] = ("proof", "complete")
# What every run records besides the usual: the weights themselves, so that NumPy can judge the rest.
WATCHED = {
    "u": lambda view: view.params["u"],
    "W_now": lambda view: view.W,
    "logits": lambda view: view.logits[:, 0],
    "margins": lambda view: view.margins[:, 0],
}
EDGE = 1.01  # how far inside the border of each condition the sets lie
# Ends of the events E1 and E2 of Lemma 9, for squared lengths over their means.
SHORT, LONG = 0.5 * EDGE, 1.5 / EDGE
# Squared lengths of (first planted token, its companion, other planted tokens, their companions), over their means.
EXTREMES = {
    "all short": (SHORT, SHORT, SHORT, SHORT),
    "all long": (LONG, LONG, LONG, LONG),
    "one short": (SHORT, SHORT, LONG, LONG),
    "one long": (LONG, LONG, SHORT, SHORT),
    "one short with a long companion": (SHORT, LONG, LONG, LONG),
}


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
        form: which form of Condition 1 they were made to meet, if any.
    """

    tokens: Tokens
    model: JointModel
    step: float
    Lambda: Array
    W_mm: Array
    u_mm: Array
    gamma: Array
    form: Form = "proof"

    @property
    def trials(self) -> int:
        """How many sets."""
        return len(self.Lambda)

    @property
    def name(self) -> str:
        """For a reader."""
        constants = "constants of the proofs" if self.form == "proof" else "constant 1"
        return f"n = {self.model.n}, {constants}"

    def condition_slack(self) -> dict[str, float]:
        """Condition 1: what there is over what is wanted, for each part."""
        return condition_1(self.model, self.step, form=self.form).evidence["ratios"]

    def slack(self) -> dict[str, float]:
        """Condition 1, and the events of Lemma 9."""
        ratios = self.condition_slack()
        events = near_orthogonality(self.tokens, self.model)
        return {**ratios, "events of Lemma 9": min(float(event.min()) for event in events.values())}


def edge_model(n: int, form: Form = "proof") -> JointModel:
    """The least data model that meets Condition 1: alpha = 6, B = 1 and the least d, plus 1 %."""
    alpha = 6.0 * EDGE
    unit = JointModel(n=n, d=1.0, alpha=alpha, rho=1.0)
    least = unit.proof_dimension() if form == "proof" else unit.least_dimension()
    d = float(np.ceil(EDGE * least))
    return JointModel(n=n, d=d, alpha=alpha, rho=EDGE / (alpha * float(np.sqrt(1.5 * d))))


def edge_step(model: JointModel) -> float:
    """The largest step size that Condition 1 allows, less 1 %."""
    return min(model.step_caps.values()) / EDGE


@lru_cache(maxsize=16)
def condition_case(n: int, trials: int, seed: int = 0, form: Form = "proof", T: int = 2) -> Case:
    """Drawn sets that meet Condition 1."""
    model = edge_model(n, form)
    return replace(_case(model, edge_step(model), seed, trials, T), form=form)


@lru_cache(maxsize=16)
def extreme_case(n: int, form: Form = "complete", T: int = 2, uneven: bool = False) -> Case:
    """Orthogonal tokens whose lengths stand at the ends of what Lemma 9 promises: one set for each of `EXTREMES`, with
    the planted token as the query, and one with another token as the query of every second sample.

    All tokens of a sample but the planted one are of one length, so that their scores stay equal; with `uneven` the
    last of them is at the other end.

    The proofs use nothing but the events of Lemma 9, so what they promise holds on these sets too; it is closer to
    what is measured than on drawn ones, whose lengths are all alike.
    """
    model = edge_model(n, form)
    sets = []
    for lengths in EXTREMES.values():
        for every_second in (False, True):
            sets.append(_extreme_set(model, lengths, every_second, T, uneven))
    return replace(_solved(Tokens.stack(sets), model, edge_step(model)), form=form)


@lru_cache(maxsize=8)
def slowed_case(n: int, factor: float = 100.0) -> Case:
    """The extreme sets with a step that much smaller than the largest: terms of second order in it are gone."""
    case = extreme_case(n)
    return with_step(case, case.step / factor)


def _extreme_set(
    model: JointModel, lengths: tuple[float, float, float, float], every_second: bool, T: int, uneven: bool
) -> Tokens:
    """Token t of sample i lies on the axis T i + t."""
    first_planted, first_other, planted_length, other_length = lengths
    samples = np.arange(model.n)
    planted = samples % 2 if every_second else np.zeros(model.n, dtype=int)
    squared = np.tile(np.where(samples == 0, first_other, other_length)[:, None], T)  # (n, T)
    if uneven:
        squared[:, -1] = SHORT + LONG - squared[:, -1]
    squared[samples, planted] = np.where(samples == 0, first_planted, planted_length) * model.alpha**2
    size = model.rho * np.sqrt(model.d)
    x = np.zeros((model.n, T, T * model.n))
    for t in range(T):
        x[samples, t, T * samples + t] = size * np.sqrt(squared[:, t])
    y = np.where(samples % 2, -1.0, 1.0)
    v = y @ x[samples, planted]
    return Tokens.self_attention(x, y, v, info={"planted": planted})


@lru_cache(maxsize=8)
def plain_case(n: int, d: float, alpha: float, rho: float, step: float, trials: int, seed: int = 0) -> Case:
    """Sets of a data model that need not meet Condition 1."""
    return _case(JointModel(n=n, d=d, alpha=alpha, rho=rho), step, seed, trials)


def _case(model: JointModel, step: float, seed: int, trials: int, T: int = 2) -> Case:
    tokens = gaussian_signal_in_span(
        n=model.n, T=T, d=model.d, strength=model.alpha, noise=model.rho, seed=seed, trials=trials
    )
    return _solved(tokens, model, step)


def _solved(tokens: Tokens, model: JointModel, step: float) -> Case:
    margins = solve_margins(tokens, tokens.info["planted"])
    heads = np.array([_head(tokens[i]) for i in range(len(tokens.x))])
    return Case(
        tokens=tokens,
        model=model,
        step=step,
        Lambda=np.linalg.norm(margins.W, axis=(-2, -1)),
        W_mm=margins.W,
        u_mm=heads,
        gamma=1 / np.linalg.norm(heads, axis=-1),
    )


def _head(tokens: Tokens) -> Array:
    planted = tokens.info["planted"][:, None, None]
    opt = np.take_along_axis(tokens.x, planted, 1)[:, 0]
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
    spread = np.geomspace(1, steps, int(20 * np.log10(steps)))
    record = sorted({*range(1, min(steps, 50) + 1), *spread.astype(int).tolist()})
    return al.descend(
        case.tokens,
        al.optim.joint_decay(case.step, power=power),
        steps=steps,
        loss="exponential",
        train_head=True,
        init="zeros",
        record=record,
        metrics=WATCHED,
        track=case.tokens.info["planted"],
        targets={"svm": case.W_mm, "head": case.u_mm},
    )


def with_step(case: Case, step: float) -> Case:
    """The same data, trained with another step size."""
    return replace(case, step=step)
