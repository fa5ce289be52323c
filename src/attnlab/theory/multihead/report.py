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
from attnlab.theory.multihead.bounds import Shape
from attnlab.theory.multihead.guarantees import Bound, GoodStart, GoodStartBounds, corollary_2, proposition_7
from attnlab.theory.multihead.ntk import NtkMargin, head_norms, ntk_margin, outputs

# Loss of a model that always says 0: a bound on the test loss above it says nothing.
COIN = float(np.log(2.0))
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

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        bounds = {name: getattr(self, name) for name in ("train", "gap", "test")}
        plain = {k: v for k, v in vars(self).items() if k not in bounds}
        plain = {k: v if isinstance(v, bool) or np.isfinite(v) else None for k, v in plain.items()}
        said = {name: {"value": b.value, "trivial": b.trivial, "vacuous": b.vacuous} for name, b in bounds.items()}
        return {**plain, **said, "applies": self.applies}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Report:
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

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {
            "T": self.shape.T, "d": self.shape.d, "R": self.shape.R, "decoder": self.shape.decoder,
            "sharp": self.shape.sharp, "n": self.n, "heads": self.heads, "good": self.good, "B2": self.B2,
            "B_phi": self.B_phi, "gamma": [self.margin.lower, self.margin.upper], "start_loss": self.start_loss,
            "steps": self.steps, "step": self.step if np.isfinite(self.step) else None,
            "printed": None if self.printed is None else self.printed.to_json(),
            "corrected": None if self.corrected is None else self.corrected.to_json(),
        }  # fmt: skip

    def __repr__(self) -> str:
        s = self.shape
        lines = [
            f"{self.heads:.4g} heads, {s.decoder} decoder, n = {self.n}, T = {s.T}, d = {s.d}, R = {s.R:.4g}"
            f"{', sharp constants' if s.sharp else ''}; train loss at the start {self.start_loss:.4g}",
            f"P1  no head is longer than       B2    = {self.B2:.4g}",
            f"P2  no output is larger than     B_phi = {self.B_phi:.4g}",
        ]
        if self.printed is None or self.corrected is None:
            status = self.margin.solution.status.value
            return "\n".join([*lines, f"P3  fails: {status}", "Not a good start; nothing is promised."])
        lines += [
            f"P3  the linearized model has     gamma = {self.margin.lower:.6g}, at most {self.margin.upper:.6g}",
            f"A good start. After K = {self.steps} steps of size {self.step:.4g}:",
        ]
        rows = [["", "corrected", "printed"]]
        for name, cell in _ROWS:
            rows.append([name, *(cell(p) for p in (self.corrected, self.printed))])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(lines + ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows])


def good_initialization(
    tokens: Tokens,
    model: MultiHead,
    weights: Mapping[str, ArrayLike],
    *,
    steps: int | None = None,
    step: float | None = None,
    R: float | None = None,
    sharp: bool = False,
) -> Report:
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
    >>> found = good_initialization(tokens, MultiHead(10**6), {"U": np.zeros((3, 5)), "W": np.zeros((5, 5))})
    >>> found.good, found.corrected.enough
    (True, False)
    """
    instance("tokens", tokens, Tokens, "al.Tokens")
    instance("model", model, MultiHead, "al.models.MultiHead")
    shape = Shape.of(tokens.x, decoder=model.decoder, sharp=sharp)
    if R is not None:
        if not number("R", R) >= shape.R:
            least = f"wanted a finite number at least {shape.R:.6g}, as tokens have it"
            raise InputError(message(f"`R` is {shown(R)}; {least}."))
        shape = Shape(T=shape.T, d=shape.d, R=float(R), decoder=model.decoder, sharp=sharp)
    K = tokens.n if steps is None else whole("steps", steps)
    step = None if step is None else number("step", step, above=0)
    margin = ntk_margin(tokens, model, weights)
    started = outputs(tokens, model, weights)
    B2 = max(1.0, float(head_norms(model.check(tokens, weights)).max()))
    B_phi = max(1.0, float(np.abs(started).max()))
    loss = float(np.logaddexp(0.0, -tokens.y * started).mean())
    promised: list[Promises | None] = [None, None]
    if margin.separable:
        start = GoodStart(B2=B2, B_phi=B_phi, gamma=margin.lower)
        if step is None:
            step = _at_best(shape, start, model.heads, K, corrected=True).largest_step
        promised = [_promises(shape, start, model.heads, K, tokens.n, step, loss, c) for c in (False, True)]
    return Report(
        shape=shape, n=tokens.n, heads=model.heads, B2=B2, B_phi=B_phi, margin=margin, start_loss=loss, steps=int(K),
        step=np.nan if step is None else float(step), printed=promised[0], corrected=promised[1],
    )  # fmt: skip


def _at_best(shape: Shape, start: GoodStart, H: float, K: float, *, corrected: bool) -> GoodStartBounds:
    """Corollary 2 at its largest step, with H heads or those needed if H is less, for one sequence."""
    needed = corollary_2(shape, start, K=K, n=1, step=1.0, corrected=corrected).heads
    heads = min(max(float(H), needed), LARGEST)
    step = corollary_2(shape, start, K=K, n=1, step=1.0, H=heads, corrected=corrected).largest_step
    step = max(step, LEAST_STEP)  # of a step beyond that the bounds are inf, and say nothing
    return corollary_2(shape, start, K=K, n=1, step=step, H=heads, corrected=corrected)


def _promises(
    shape: Shape, start: GoodStart, H: int, K: float, n: int, step: float, start_loss: float, corrected: bool
) -> Promises:
    best, target = _at_best(shape, start, H, K, corrected=corrected), proposition_7(shape, start, 1.0 / K)
    heads = min(max(float(H), best.heads), LARGEST)
    found = corollary_2(shape, start, K=K, n=n, step=max(step, LEAST_STEP), H=heads, corrected=corrected)
    train, gap = float(found.train.value), float(found.generalization.value)

    def train_says(k: float) -> bool:
        return _at_best(shape, start, H, k, corrected=corrected).train.value < start_loss

    def test_says(k: float) -> bool:
        there = _at_best(shape, start, H, k, corrected=corrected)
        return there.train.value + there.generalization.value / k < COIN

    return Promises(
        corrected=corrected, heads_target=float(target), heads=float(best.heads),
        enough=bool(max(best.heads, target) <= H), largest_step=float(best.largest_step),
        allowed=bool(step <= best.largest_step), train=Bound(value=train, trivial=start_loss),
        gap=Bound(value=gap, trivial=COIN), test=Bound(value=train + gap, trivial=COIN),
        steps_needed=_first(train_says), sequences_needed=_first(test_says),
    )  # fmt: skip


def _first(says: Callable[[float], bool]) -> float:
    """The first power of two for which it is true; inf if there is none."""
    k = 1.0
    while k <= FURTHEST:
        if says(k):
            return k
        k *= 2.0
    return np.inf


def _said(bound: Bound) -> str:
    return f"{bound.value:.4g}{' (says nothing)' if bound.vacuous else ''}"


def _yes(good: bool) -> str:
    return "" if good else ", not met"


_ROWS = (
    ("heads for a target of loss 1/K", lambda p: f"{p.heads_target:.3g}"),
    ("heads for the bounds", lambda p: f"{p.heads:.3g}{_yes(p.enough)}"),
    ("largest step size", lambda p: f"{p.largest_step:.4g}{_yes(p.allowed)}"),
    ("train loss at most", lambda p: _said(p.train)),
    ("test less train loss at most", lambda p: _said(p.gap)),
    ("test loss at most", lambda p: _said(p.test)),
    ("train bound says something from K", lambda p: f"{p.steps_needed:.3g}"),
    ("test bound says something from n = K", lambda p: f"{p.sequences_needed:.3g}"),
)
