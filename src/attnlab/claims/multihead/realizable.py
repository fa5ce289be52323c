"""What realizability and good starts promise: Corollaries 2 to 5."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnlab.claims.claim import Claim, Outcome, Verdict, within
from attnlab.claims.multihead.population import Population, last, losses, sets_of, signal_and_noise, zero_start
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array, Tokens
from attnlab.models.multihead import MultiHead
from attnlab.optim.descent import gd
from attnlab.theory.multihead import (
    GENERALIZATION,
    GoodStart,
    RealizableBounds,
    Shape,
    corollary_2,
    head_requirement,
    heads_needed,
    proposition_7,
    realizable_bounds,
)
from attnlab.theory.multihead.ntk import head_norms, ntk_margin, outputs
from attnlab.theory.multihead.report import COIN
from attnlab.train.descend import descend

# Longest runs, by scale.
LONGEST = (1_000_000, 8_000_000, 8_000_000)
TIGHT, PROPOSITION_7 = 0.1, 2.0
# Heads are the least, and the step the largest, that are allowed.
AT_THE_EDGE = {"H over the requirement": 1.0, "largest step over step": 1.0}


@dataclass(frozen=True, kw_only=True, eq=False)
class Realizable:
    """Zero start and g_0: loss eps is reached within `(offset + log(1 / eps)) / margin`, for each eps at most 1.

    The weights that do it read the first coordinate and are spread evenly over the heads; every output has at least
    `margin` per distance, so that their loss is below `eps e^-offset`. With offset = 2 it is g_0 of Proposition 7,
    corrected. Another offset is as good, as long as it is above 0.
    """

    population: Population
    shape: Shape
    offset: float

    @property
    def margin(self) -> float:
        """Least y output for distance 1."""
        x, y = self.population.x, self.population.y
        return float((y[:, None] * x[:, :, 0]).sum(1).min() / np.sqrt(x.shape[1]))

    def distance(self, eps: float) -> float:
        """g_0."""
        return (self.offset - float(np.log(eps))) / self.margin

    def heads(self, K: float) -> tuple[float, float]:
        """Heads that both corollaries accept, and g(1 / K), a bound on the longest head of the target."""
        D = self.distance(1.0 / K)
        if self.offset != PROPOSITION_7:
            return heads_needed(self.shape, D, c=GENERALIZATION)
        good = GoodStart(B2=1.0, B_phi=1.0, gamma=float(np.sqrt(2.0)) * self.margin)
        H = max(head_requirement(self.shape, D, 1.0 + D, GENERALIZATION), proposition_7(self.shape, good, 1.0 / K))
        return float(np.ceil(H)), 1.0 + D

    def bounds(self, K: float, n: int) -> tuple[float, RealizableBounds]:
        """Heads, and the bounds at the largest step."""
        H, g = self.heads(K)
        facts = dict(D=self.distance(1.0 / K), g=g, D_one=self.distance(1.0), H=H, K=K, n=n, start_loss=COIN)
        step = realizable_bounds(self.shape, step=1.0, **facts).largest_step  # type: ignore[arg-type]
        return H, realizable_bounds(self.shape, step=step, **facts)  # type: ignore[arg-type]

    def speaks_from(self, longest: int) -> int:
        """The first K, up to `longest`, for which the train bound is below the start loss; else `longest`."""
        for K in np.unique(np.geomspace(10, longest, 200).astype(int)):
            if not self.bounds(float(K), 1)[1].train.vacuous:
                return int(K)
        return longest


def cases(scale: Scale) -> dict[str, Realizable]:
    """Constants as printed and sharp; a tight g_0 and that of Proposition 7."""
    p = signal_and_noise()
    every = {}
    for sharp in (True, False):
        for name, offset in (("tight g_0", TIGHT), ("g_0 of Proposition 7", PROPOSITION_7)):
            case = Realizable(population=p, shape=p.shape(sharp=sharp), offset=offset)
            every[f"{'sharp' if sharp else 'printed'} constants, {name}"] = case
    return every if scale is not Scale.SMOKE else {name: case for name, case in every.items() if "tight" in name}


def train_bound(scale: Scale) -> Outcome:
    """Train loss over 2 / K + 5 g_0^2 / (4 step K), and distance over 4 g_0, after K steps."""
    ratios, facts = {}, {}
    for name, case in cases(scale).items():
        K = case.speaks_from(scale.pick(*LONGEST))
        if case.bounds(float(K), 1)[1].train.vacuous:
            K = 10_000
        H, bounds = case.bounds(float(K), 1)
        p = case.population
        run = descend(Tokens.self_attention(p.x, p.y), gd(bounds.largest_step), model=MultiHead(int(H)), init="zeros",
                      steps=K, record=[K])  # fmt: skip
        loss, moved = float(run.metrics["loss"][-1]), float(run.metrics["norm"][-1])
        ratios[name] = max(loss / bounds.train.value, moved / bounds.distance)
        facts[name] = {"K": K, "H": H, "step": bounds.largest_step, "train loss": loss, "bound": bounds.train.value,
                       "distance": moved, "bound on it": bounds.distance, "vacuous": bounds.train.vacuous}  # fmt: skip
    found = within(max(ratios.values()), 1.0, instances=len(ratios), numbers=facts,
                   slack=AT_THE_EDGE)  # fmt: skip
    return spoken(found, [not f["vacuous"] for f in facts.values()])


def gap_bound(scale: Scale) -> Outcome:
    """(mean gap - 2 standard errors) over 17 g_0^2 / (step n), for n where that is below log 2."""
    ratios, facts, sets, seeds = {}, {}, sets_of(scale), []
    for name, case in cases(scale).items():
        for K in (10, scale.pick(100, 1_000, 1_000)):
            n = int(2.0 * case.bounds(float(K), 1)[1].generalization.value / COIN)
            H, bounds = case.bounds(float(K), n)
            gap, error = measured_gap(case.population, n, sets, zero_start(case.population), np.array([H]),
                                      bounds.largest_step, K)  # fmt: skip
            seeds.append(n)
            ratios[f"{name}, K = {K}"] = (gap - 2.0 * error) / bounds.generalization.value
            facts[f"{name}, K = {K}"] = {"n": n, "H": H, "gap": gap, "standard error": error,
                                         "bound": bounds.generalization.value,
                                         "vacuous": not bounds.generalization.value < COIN}  # fmt: skip
    found = within(max(ratios.values()), 1.0, instances=sets * len(ratios), seeds=seeds,
                   slack=AT_THE_EDGE, numbers={"measured over bound": ratios, **facts})  # fmt: skip
    return spoken(found, [not f["vacuous"] for f in facts.values()])


def measured_gap(
    population: Population, n: int, sets: int, start: dict[str, Array], counts: Array, step: float, K: int
) -> tuple[float, float]:
    """Mean over training sets of test less train loss after K steps, and its standard error."""
    shares = population.draw(n, sets, seed=n % 2**32)
    final = losses(population, last(population, shares, start, counts, step, K), counts)
    gaps = final.mean(-1) - np.sum(shares * final, axis=-1)
    return float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(sets))


# Corollary 2 ------------------------------------------------------------------------------------------------------


def starts(population: Population, heads: float) -> dict[str, tuple[dict[str, Array], Array]]:
    """Weights and counts: zero, and phase one with as many signs of each kind."""
    row = 0.5 * np.mean(population.y[:, None] * population.x.mean(1), axis=0)
    T, d = population.x.shape[1:]
    U = np.array([1.0, -1.0])[:, None, None] * np.tile(row, (T, 1))
    two = {"U": U, "W": np.zeros((2, d, d))}
    return {"zero": (zero_start(population), np.array([heads])), "phase one": (two, np.full(2, heads / 2.0))}


def good_start_bounds(scale: Scale) -> Outcome:
    """Train loss and gap over the bounds of Corollary 2, printed and corrected, from two good starts.

    Gaps are measured at an n where the bound says something. For the train loss that takes millions of steps, which
    only the larger scales take.
    """
    ratios, facts, sets = {}, {}, sets_of(scale)
    p = signal_and_noise()
    tokens = Tokens.self_attention(p.x, p.y)
    for sharp in (False, True):
        shape = p.shape(sharp=sharp)
        for corrected in (False, True):
            for K in (10, scale.pick(100, 1_000, 1_000)):
                for start_name, (weights, counts) in starts(p, 2.0).items():
                    good = constants(tokens, weights, counts)
                    H, step = heads_and_step(shape, good, K, corrected)
                    once = corollary_2(shape, good, K=K, n=1, step=step, H=H, corrected=corrected)
                    n = int(2.0 * once.generalization.value / COIN)
                    bounds = corollary_2(shape, good, K=K, n=n, step=step, H=H, corrected=corrected)
                    gap, error = measured_gap(p, n, sets, weights, counts * (H / 2.0), step, K)
                    name = f"{label(sharp, corrected)}, {start_name}, K = {K}"
                    ratios[f"gap, {name}"] = (gap - 2.0 * error) / bounds.generalization.value
                    facts[f"gap, {name}"] = {"n": n, "H": H, "measured": gap, "bound": bounds.generalization.value,
                                             "vacuous": not bounds.generalization.value < COIN}  # fmt: skip
            name = f"train loss, {label(sharp, corrected)}, zero"
            ratios[name], facts[name] = train_from_zero(scale, tokens, shape, corrected)
    found = within(max(ratios.values()), 1.0, instances=len(ratios), seeds=(0,), slack=AT_THE_EDGE,
                   numbers={"measured over bound": ratios, **facts})  # fmt: skip
    return spoken(found, [not f["vacuous"] for f in facts.values()])


def train_from_zero(scale: Scale, tokens: Tokens, shape: Shape, corrected: bool) -> tuple[float, dict[str, float]]:
    """Loss over bound, and what was found, after as many steps as make the bound speak, if the scale allows so many."""
    weights = {"U": np.zeros((1, tokens.T, tokens.d)), "W": np.zeros((1, tokens.d, tokens.d))}
    good = constants(tokens, weights, np.ones(1))
    K = 1_000
    for candidate in np.unique(np.geomspace(10, scale.pick(1_000, 8_000_000, 8_000_000), 100).astype(int)):
        H, step = heads_and_step(shape, good, int(candidate), corrected)
        if corollary_2(shape, good, K=float(candidate), n=1, step=step, H=H, corrected=corrected).train.value < COIN:
            K = int(candidate)
            break
    H, step = heads_and_step(shape, good, K, corrected)
    bound = corollary_2(shape, good, K=K, n=1, step=step, H=H, corrected=corrected).train.value
    run = descend(tokens, gd(step), model=MultiHead(int(H)), init="zeros", steps=K, record=[K])
    loss = float(run.metrics["loss"][-1])
    return loss / bound, {"K": K, "H": H, "measured": loss, "bound": bound, "vacuous": not bound < COIN}


def heads_and_step(shape: Shape, good: GoodStart, K: int, corrected: bool) -> tuple[float, float]:
    """As Corollary 2 asks, and an even number of heads."""
    needed = corollary_2(shape, good, K=K, n=1, step=1.0, corrected=corrected).heads
    H = 2.0 * float(np.ceil(max(needed, proposition_7(shape, good, 1.0 / K)) / 2.0))
    return H, float(corollary_2(shape, good, K=K, n=1, step=1.0, H=H, corrected=corrected).largest_step)


def constants(tokens: Tokens, weights: dict[str, Array], counts: Array) -> GoodStart:
    """B2, B_phi and gamma of a start, none of which depends on H here."""
    model = MultiHead(int(counts.sum()), counts=counts.tolist())
    B_phi = max(1.0, float(np.abs(outputs(tokens, model, weights)).max()))
    B2 = max(1.0, float(head_norms(weights).max()))
    return GoodStart(B2=B2, B_phi=B_phi, gamma=ntk_margin(tokens, model, weights).lower)


def label(sharp: bool, corrected: bool) -> str:
    """For tables."""
    return f"{'sharp' if sharp else 'paper'} beta, {'corrected' if corrected else 'printed'} g_0"


def spoken(found: Outcome, speak: list[bool]) -> Outcome:
    """Vacuous, if it holds and no bound says anything."""
    if found.verdict is Verdict.HOLDS and not any(speak):
        return Outcome(**{**vars(found), "verdict": Verdict.VACUOUS})
    return found


DATA = ("tokens of norm at most R = 1", "zero start, or phase one", "heads and step size as asked for")

CLAIMS = [
    Claim(
        id="multihead-C-C2",
        title="What a good start promises",
        statement="From a good start, with heads and step size as asked for, train loss <= 2 / K + 5 g_0^2 / (4 step K)"
        " and E[test - train loss] <= 17 g_0^2 / (step n), g_0 = G printed, sqrt(2) G corrected (Corollaries 2 and 5).",
        hypotheses=("P1 to P3, measured on the population", *DATA),
        tolerance=1.0,
        reason="measured over bound, for gaps less 2 standard errors; the bound on the gap is below log 2",
        measure=good_start_bounds,
    ),
    Claim(
        id="multihead-C-C3",
        title="Train loss under realizability",
        statement="If each loss eps is reached within g_0(eps) of the start, then after K steps train loss <= 2 / K + "
        "5 g_0(1/K)^2 / (4 step K) and |theta_K - theta_0| <= 4 g_0(1/K) (Corollary 3).",
        hypotheses=("Assumption 2, by construction", *DATA),
        tolerance=1.0,
        reason="measured over bound; with sharp constants the bound is below the loss at the start",
        measure=train_bound,
    ),
    Claim(
        id="multihead-C-C4",
        title="Generalization gap under realizability",
        statement="Under the same, E[test - train loss] <= 17 g_0(1/K)^2 / (step n) (Corollary 4).",
        hypotheses=("Assumption 2, by construction, for every training set", *DATA),
        tolerance=1.0,
        reason="(mean - 2 standard errors) over bound, which is below log 2",
        measure=gap_bound,
    ),
]  # fmt: skip
