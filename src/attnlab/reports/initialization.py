"""Does a multi-head model satisfy the theory? From data and start to heads, step size and bounds.

Definition 1, Proposition 7 and Corollary 2 of *On the Optimization and Generalization of Multi-head Attention*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import LARGEST, instance, number, shown, whole
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.multihead import MultiHead
from attnlab.reports.report import Fact, Report, Row, Section
from attnlab.theory.check import Check, at_least, shown_number
from attnlab.theory.multihead.bounds import Shape
from attnlab.theory.multihead.guarantees import (
    COIN,
    Bound,
    GoodStart,
    GoodStartBounds,
    corollary_2,
    proposition_7,
)
from attnlab.theory.multihead.ntk import NtkMargin, check_model, head_norms, ntk_margin, outputs

# Steps, and sequences, up to which bounds are looked at for the first that says something.
FURTHEST = 2.0**200
# The least number above 0.
LEAST_STEP = 5e-324


@dataclass(frozen=True, kw_only=True)
class Promises:
    """Corollary 2 for one start, with constants as printed or corrected.

    Attributes:
        corrected: which of them.
        heads_target: from which the target with loss 1 / K exists (Proposition 7).
        heads: that both bounds need (Corollary 2).
        enough: has the model so many?
        largest_step: up to which the bounds speak.
        allowed: is the step size at most that?
        train: bound on the train loss after K steps.
        gap: bound on the expected test loss less train loss.
        test: bound on the expected test loss, the sum.
        steps_needed: the first power of two of steps from which, at the largest step, `train` says something.
        sequences_needed: the first power of two of sequences, and as many steps, from which `test` does.
    """

    corrected: bool
    heads_target: float
    heads: float
    enough: bool
    largest_step: float
    allowed: bool
    train: Bound
    gap: Bound
    test: Bound
    steps_needed: float
    sequences_needed: float

    @property
    def applies(self) -> bool:
        """Are heads and step size as the bounds ask?"""
        return self.enough and self.allowed

    def rows(self, heads: float, step: float) -> list[Row]:
        """What is asked of a model with so many heads and this step, and what is promised then."""
        which = "corrected" if self.corrected else "printed"
        return [
            at_least(f"heads for a target of loss 1/K, {which}", heads, self.heads_target),
            at_least(f"heads for the bounds, {which}", heads, self.heads),
            Check(
                name=f"step size, {which}",
                value=step,
                wanted=self.largest_step,
                margin=self.largest_step / step if step > 0 else np.inf,
                holds=self.allowed,
            ),
            BoundRow.of(f"train loss at most, {which}", self.train),
            BoundRow.of(f"test less train loss at most, {which}", self.gap),
            BoundRow.of(f"test loss at most, {which}", self.test),
            Fact(f"train bound says something from K, {which}", shown_number(self.steps_needed)),
            Fact(f"test bound says something from n = K, {which}", shown_number(self.sequences_needed)),
        ]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; null for what is not finite."""
        return {
            "corrected": self.corrected,
            "heads_target": _finite(self.heads_target),
            "heads": _finite(self.heads),
            "enough": self.enough,
            "largest_step": _finite(self.largest_step),
            "allowed": self.allowed,
            "steps_needed": _finite(self.steps_needed),
            "sequences_needed": _finite(self.sequences_needed),
            "train": _bound_json(self.train),
            "gap": _bound_json(self.gap),
            "test": _bound_json(self.test),
            "applies": self.applies,
        }


class BoundRow(Check):
    """An upper bound, wanted below what is known without it; one that is not below says nothing."""

    @classmethod
    def of(cls, name: str, bound: Bound) -> BoundRow:
        """The row of a bound."""
        return cls(
            name=name,
            value=bound.value,
            wanted=bound.trivial,
            margin=bound.trivial - bound.value,
            holds=not bound.vacuous,
        )

    def cells(self) -> dict[str, str]:
        """As of a check, but for the word."""
        return {**super().cells(), "holds": "yes" if self.holds else "says nothing"}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InitializationReport(Report):
    """Properties P1 to P3 of a start, and what follows; print it.

    Attributes:
        shape: tokens, dimension, R and decoder, and which constants.
        n: sequences.
        heads: H of the model.
        B2: longest head, or 1 if that is less (P1).
        B_phi: largest output in absolute value, or 1 (P2).
        margin: the best gamma between two bounds (P3).
        start_loss: train loss at the start.
        steps, step: K and the step size that the bounds are for.
        printed, corrected: what is promised; None where P3 fails.
    """

    shape: Shape
    n: int
    heads: int
    B2: float
    B_phi: float
    margin: NtkMargin
    start_loss: float
    steps: int
    step: float
    printed: Promises | None
    corrected: Promises | None

    @property
    def good(self) -> bool:
        """Is the start good in the sense of Definition 1?"""
        return self.margin.separable

    @property
    def start(self) -> GoodStart | None:
        """Its constants, gamma at its lower bound; None where P3 fails."""
        return GoodStart(B2=self.B2, B_phi=self.B_phi, gamma=self.margin.lower) if self.good else None

    @property
    def verdict(self) -> str:
        """Is it a good start, and do the bounds apply?"""
        if self.corrected is None:
            return f"Not a good start, nothing is promised: P3 fails. {self.margin.solution.status.value}"
        missing = []
        if not self.corrected.enough:
            missing.append("more heads")
        if not self.corrected.allowed:
            missing.append("a smaller step")
        after = f"after K = {self.steps} steps of size {self.step:.4g}"
        if missing:
            return f"A good start, but the bounds {after} ask for {' and '.join(missing)}."
        return f"A good start: the bounds {after} apply."

    def sections(self) -> tuple[Section, ...]:
        """The model, Definition 1, and Corollary 2 with both kinds of constants."""
        shape = self.shape
        sharp = ", sharp constants" if shape.sharp else ""
        facts = [
            Fact("model", f"{self.heads:.4g} heads, {shape.decoder} decoder{sharp}"),
            Fact("data", f"n = {self.n}, T = {shape.T}, d = {shape.d}, R = {shape.R:.4g}"),
            Fact("train loss at the start", shown_number(self.start_loss)),
        ]
        properties: list[Row] = [
            Fact("P1, no head is longer than B2", shown_number(self.B2)),
            Fact("P2, no output is larger than B_phi", shown_number(self.B_phi)),
            Check(
                name="P3, margin gamma of the linearized model",
                value=self.margin.lower,
                wanted=0.0,
                margin=self.margin.lower,
                holds=self.good,
            ),
            Fact("P3, gamma is at most", shown_number(self.margin.upper)),
        ]
        sections = [Section("", facts), Section("Definition 1", properties)]
        if self.corrected is not None and self.printed is not None:
            rows: list[Row] = []
            # One below the other, each quantity with its two constants.
            for pair in zip(self._asked(self.corrected), self._asked(self.printed), strict=True):
                rows += pair
            sections.append(Section("Corollary 2", rows))
        return tuple(sections)

    def _asked(self, promises: Promises) -> list[Row]:
        return promises.rows(float(self.heads), self.step)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {
            **super().to_json(),
            "T": self.shape.T,
            "d": self.shape.d,
            "R": self.shape.R,
            "decoder": self.shape.decoder,
            "sharp": self.shape.sharp,
            "n": self.n,
            "heads": self.heads,
            "good": self.good,
            "B2": self.B2,
            "B_phi": self.B_phi,
            "gamma": [self.margin.lower, self.margin.upper],
            "start_loss": self.start_loss,
            "steps": self.steps,
            "step": _finite(self.step),
            "printed": None if self.printed is None else self.printed.to_json(),
            "corrected": None if self.corrected is None else self.corrected.to_json(),
        }


def good_initialization(
    tokens: Tokens,
    model: MultiHead,
    weights: Mapping[str, ArrayLike],
    *,
    steps: int | None = None,
    step: float | None = None,
    R: float | None = None,
    sharp: bool = False,
) -> InitializationReport:
    """Check P1 to P3 for a start, and say which heads, step size and bounds follow.

    Args:
        tokens: the training data.
        model: the model.
        weights: its start, {"U", "W"}, one entry per group of heads.
        steps: K; None takes as many as there are sequences.
        step: the step size; None takes the largest that the corrected bounds allow.
        R: bound on all token norms, also those of data to come; None takes the largest here, at least 1.
        sharp: constants without the dimension.

    Bounds are computed for the heads that the model has, or those needed if it has less.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=4, T=3, d=5)
    >>> report = good_initialization(tokens, MultiHead(10**6), {"U": np.zeros((3, 5)), "W": np.zeros((5, 5))})
    >>> report.good, report.corrected.enough
    (True, False)
    """
    instance("tokens", tokens, Tokens, "al.Tokens")
    check_model(model)
    shape = Shape.of(tokens.x, decoder=model.decoder, sharp=sharp)
    if R is not None:
        if not number("R", R) >= shape.R:
            least = f"wanted a finite number at least {shape.R:.6g}, as tokens have it"
            raise InputError(message(f"`R` is {shown(R)}; {least}."))
        shape = Shape(T=shape.T, d=shape.d, R=float(R), decoder=model.decoder, sharp=sharp)
    K = tokens.n if steps is None else whole("steps", steps)
    step = None if step is None else number("step", step, above=0)
    margin = ntk_margin(tokens, model, weights)
    started = outputs(tokens, model, weights)  # (n,)
    B2 = max(1.0, float(head_norms(model.check(tokens, weights)).max()))
    B_phi = max(1.0, float(np.abs(started).max()))
    loss = float(np.logaddexp(0.0, -tokens.y * started).mean())
    printed = None
    corrected = None
    if margin.separable:
        start = GoodStart(B2=B2, B_phi=B_phi, gamma=margin.lower)
        if step is None:
            step = _at_best(shape, start, model.heads, K, corrected=True).largest_step
        case = _Case(shape=shape, start=start, heads=model.heads, K=K, n=tokens.n, step=step, start_loss=loss)
        printed = case.promises(corrected=False)
        corrected = case.promises(corrected=True)
    return InitializationReport(
        shape=shape,
        n=tokens.n,
        heads=model.heads,
        B2=B2,
        B_phi=B_phi,
        margin=margin,
        start_loss=loss,
        steps=int(K),
        step=np.nan if step is None else float(step),
        printed=printed,
        corrected=corrected,
    )


def _at_best(shape: Shape, start: GoodStart, H: float, K: float, *, corrected: bool) -> GoodStartBounds:
    """Corollary 2 at its largest step, with H heads or those needed if H is less, for one sequence."""
    needed = corollary_2(shape, start, K=K, n=1, step=1.0, corrected=corrected).heads
    heads = min(max(float(H), needed), LARGEST)
    step = corollary_2(shape, start, K=K, n=1, step=1.0, H=heads, corrected=corrected).largest_step
    step = max(step, LEAST_STEP)  # of a step beyond that the bounds are inf, and say nothing
    return corollary_2(shape, start, K=K, n=1, step=step, H=heads, corrected=corrected)


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A good start, and the run that Corollary 2 is asked about."""

    shape: Shape
    start: GoodStart
    heads: int
    K: float
    n: int
    step: float
    start_loss: float

    def promises(self, *, corrected: bool) -> Promises:
        """What is promised, with constants as printed or corrected."""
        best = self._at_best(self.K, corrected)
        target = proposition_7(self.shape, self.start, 1.0 / self.K)
        bounds = corollary_2(
            self.shape,
            self.start,
            K=self.K,
            n=self.n,
            step=max(self.step, LEAST_STEP),
            H=min(max(float(self.heads), best.heads), LARGEST),
            corrected=corrected,
        )
        train = float(bounds.train.value)
        gap = float(bounds.generalization.value)

        def train_says(k: float) -> bool:
            return self._at_best(k, corrected).train.value < self.start_loss

        def test_says(k: float) -> bool:
            there = self._at_best(k, corrected)
            return there.train.value + there.generalization.value / k < COIN

        return Promises(
            corrected=corrected,
            heads_target=float(target),
            heads=float(best.heads),
            enough=bool(max(best.heads, target) <= self.heads),
            largest_step=float(best.largest_step),
            allowed=bool(self.step <= best.largest_step),
            train=Bound(value=train, trivial=self.start_loss),
            gap=Bound(value=gap, trivial=COIN),
            test=Bound(value=train + gap, trivial=COIN),
            steps_needed=_first(train_says),
            sequences_needed=_first(test_says),
        )

    def _at_best(self, K: float, corrected: bool) -> GoodStartBounds:
        return _at_best(self.shape, self.start, self.heads, K, corrected=corrected)


def _first(says: Callable[[float], bool]) -> float:
    """The first power of two for which it is true; inf if there is none."""
    k = 1.0
    while k <= FURTHEST:
        if says(k):
            return k
        k *= 2.0
    return np.inf


def _finite(value: float) -> float | None:
    """A number as JSON knows it; null for what is not finite."""
    return float(value) if np.isfinite(value) else None


def _bound_json(bound: Bound) -> dict[str, Any]:
    return {"value": _finite(bound.value), "trivial": bound.trivial, "vacuous": bound.vacuous}
