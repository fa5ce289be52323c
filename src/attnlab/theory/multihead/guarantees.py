"""What gradient descent on multi-head attention is promised: train loss, stability, generalization.

Theorems 1 and 2, Lemmas 3, 8, 9 and 11, Proposition 7 and Corollaries 2 to 5 of *On the Optimization and Generalization
of Multi-head Attention*, with exact constants. In all of them D is the distance of the target from the start,
`step` the step size and K the number of steps.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from functools import partial

import numpy as np

from attnlab.checks import LARGEST, instance, number
from attnlab.errors import InputError, message
from attnlab.theory.formula import AT_LEAST_ONE, AT_LEAST_ZERO, POSITIVE, Domain, keep, of_class, or_infinite
from attnlab.theory.multihead.bounds import GENERALIZATION, TRAINING, Shape, bound, head_requirement, smoothness

# Loss of a model that always says 0: a bound on the test loss above it says nothing.
COIN = float(np.log(2.0))
# Above 0, at most 1.
LOSS: Domain = partial(number, above=0, most=1)
# What the names below stand for, unless a promise says otherwise.
promise = partial(bound, step=POSITIVE, K=POSITIVE, n=POSITIVE, target_loss=AT_LEAST_ZERO, eps=LOSS)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """An upper bound.

    Attributes:
        value: the bound.
        trivial: what is known without it; a bound that is not below says nothing.
    """

    value: float
    trivial: float = np.inf

    def __post_init__(self) -> None:
        for name in ("value", "trivial"):
            value = float(instance(name, getattr(self, name), numbers.Real, "a number"))
            if np.isnan(value):
                raise InputError(message(f"`{name}` is NaN; wanted a number, or inf."))
            object.__setattr__(self, name, value)

    @property
    def vacuous(self) -> bool:
        """Does it say nothing?"""
        return not self.value < self.trivial

    def margin(self, measured: float) -> float:
        """By how much a measured value stays below."""
        return self.value - number("measured", measured)


@promise(start_loss=or_infinite)
def theorem_1(D: float, step: float, K: float, target_loss: float, *, start_loss: float = np.inf) -> Bound:
    """Mean, and so last, train loss of K steps: `2 target_loss + 5 D^2 / (4 step K)`. The distance is at most 4 D."""
    return Bound(value=2.0 * target_loss + 5.0 * D**2 / (4.0 * step * K), trivial=start_loss)


@promise(curvature=AT_LEAST_ZERO)
def lemma_8(D: float, step: float, K: float, target_loss: float, curvature: float) -> Bound:
    """Mean train loss of K descending steps: `target_loss + D^2 / (2 step K) + curvature / (2 K)`.

    `curvature` is the sum over k < K of `tau_k |target - theta_k|^2`, with
    `tau_k = max(beta3(target), beta3(theta_k)) / sqrt(H)` times the largest loss between them.
    """
    return Bound(value=target_loss + D**2 / (2.0 * step * K) + curvature / (2.0 * K))


@promise(start_loss=AT_LEAST_ZERO)
def lemma_9(D: float, step: float, K: float, target_loss: float, start_loss: float) -> Bound:
    """Mean train loss, where all steps meet `segment_condition` with the target.

    `2 target_loss + 3 D^2 / (4 step K) + start_loss / (2 K)`.
    """
    return Bound(value=2.0 * target_loss + 3.0 * D**2 / (4.0 * step * K) + start_loss / (2.0 * K))


@promise()
def lemma_11(shape: Shape, D: float, g: float, step: float, K: float, n: int, target_loss: float) -> Bound:
    """Mean distance after K steps with and without one sequence, of n.

    `(2 step / n) beta1(3 D + g) (2 K target_loss + 9 D^2 / (4 step))`, for heads as of `head_requirement` with c = 256.
    """
    return Bound(value=2.0 * step / n * shape.beta1(3.0 * D + g) * _regret(D, step, K, target_loss))


@promise(lipschitz=AT_LEAST_ZERO, stability=AT_LEAST_ZERO)
def lemma_3(lipschitz: float, stability: float) -> Bound:
    """Expected generalization gap from the mean distance of Lemma 11: `2 lipschitz stability`."""
    return Bound(value=2.0 * lipschitz * stability)


@promise(trivial=or_infinite)
def theorem_2(D: float, step: float, K: float, n: int, target_loss: float, *, trivial: float = np.inf) -> Bound:
    """Expected test loss less train loss after K steps: `(4 / n) (2 K target_loss + 9 D^2 / (4 step))`."""
    return Bound(value=4.0 / n * _regret(D, step, K, target_loss), trivial=trivial)


@dataclass(frozen=True, kw_only=True)
class GoodStart:
    """A start that is good in the sense of Definition 1.

    Attributes:
        B2: bound on the norm of each head, at least 1 (P1).
        B_phi: bound on the outputs, at least 1 (P2).
        gamma: margin of the linearized model for some direction of norm sqrt(2) (P3).
    """

    B2: float
    B_phi: float
    gamma: float

    def __post_init__(self) -> None:
        keep(self, B2=AT_LEAST_ONE, B_phi=AT_LEAST_ONE, gamma=POSITIVE)

    @promise()
    def move(self, eps: float) -> float:
        """`G = (2 B_phi + log(1 / eps)) / gamma`: start + G direction has loss at most eps, given enough heads."""
        return (2.0 * self.B_phi - float(np.log(eps))) / self.gamma

    @promise()
    def distance(self, eps: float, *, corrected: bool = True) -> float:
        """g_0 of Proposition 7: how far that is. The direction has norm sqrt(2), so sqrt(2) G; printed is G."""
        return (np.sqrt(2.0) if corrected else 1.0) * self.move(eps)

    @promise()
    def longest(self, eps: float, *, corrected: bool = True) -> float:
        """g of Proposition 7: no head there is longer than `B2 + g_0`."""
        return self.B2 + self.distance(eps, corrected=corrected)


OF_START = of_class(GoodStart, "al.theory.multihead.GoodStart")


@promise(start=OF_START)
def proposition_7(shape: Shape, start: GoodStart, eps: float) -> float:
    """The heads from which a good start reaches loss eps at `start + G direction`.

        sqrt(H) >= 5 sqrt(T d) R^3 (B2 / B_phi) (3 sqrt(d) R^2 + 1) G^2 max(1, G)

    The 5 stands for 2 (1 + sqrt 2), so it survives the correction of g_0. With sharp constants the two factors in front
    are half of beta3 at m = 1.
    """
    G = start.move(eps)
    return max(1.0, (5.0 * 0.5 * shape.beta3(1.0) * start.B2 / start.B_phi * G**2 * max(1.0, G)) ** 2)


@dataclass(frozen=True, kw_only=True)
class RealizableBounds:
    """Corollaries 3 and 4: what follows where each loss 1 / K is reached within g_0(1 / K) of the start.

    Attributes:
        heads: that the train bound needs (c = 36).
        heads_generalization: that the generalization bound needs (c = 256).
        largest_step: up to which both speak.
        train: `2 / K + 5 g_0^2 / (4 step K)`.
        generalization: `17 g_0^2 / (step n)`.
        distance: the weights move no further, 4 g_0.
    """

    heads: float
    heads_generalization: float
    largest_step: float
    train: Bound
    generalization: Bound
    distance: float


@promise(D_one=POSITIVE, start_loss=POSITIVE)
def realizable_bounds(
    shape: Shape, *, D: float, g: float, D_one: float, H: float, step: float, K: float, n: int, start_loss: float
) -> RealizableBounds:
    """Corollaries 3 and 4.

    Args:
        shape: the model.
        D, g: g_0(1 / K) and g(1 / K): distance from the start, and longest head, of parameters with loss at most 1 / K.
            The proofs take the distance to be D, not less.
        D_one: g_0(1).
        H, step, K, n: heads, step size, steps, sequences.
        start_loss: train loss at the start.
    """
    rho = smoothness(shape, D, g, H)
    return RealizableBounds(
        heads=head_requirement(shape, D, g, TRAINING),
        heads_generalization=head_requirement(shape, D, g, GENERALIZATION),
        largest_step=min(1.0, 1.0 / rho, D_one**2, D_one**2 / start_loss),
        train=Bound(value=2.0 / K + 5.0 * D**2 / (4.0 * step * K), trivial=start_loss),
        generalization=Bound(value=17.0 * D**2 / (step * n)),
        distance=4.0 * D,
    )


@dataclass(frozen=True, kw_only=True)
class GoodStartBounds:
    """Corollary 2 (Corollary 5 has its constants).

    Attributes:
        heads: needed for both bounds.
        largest_step: up to which they speak, with H heads.
        train: bound on the train loss after K steps.
        generalization: bound on the expected test loss less train loss.
        D: distance g_0(1 / K) of the target.
    """

    heads: float
    largest_step: float
    train: Bound
    generalization: Bound
    D: float


@promise(start=OF_START, K=AT_LEAST_ONE)
def corollary_2(
    shape: Shape, start: GoodStart, *, K: float, n: int, step: float, H: float | None = None, corrected: bool = True
) -> GoodStartBounds:
    """What a good start promises after K steps on n sequences.

        sqrt(H) >= 256 sqrt(T d) R^3 B2 (3 sqrt(d) R^2 (4 g_0 + B2) + 1) g_0^2
        step <= min(1, 1 / rho(K), g_0(1)^2 / log(1 + e^B_phi))
        train <= 2 / K + 5 g_0^2 / (4 step K),   test - train <= 17 g_0^2 / (step n)

    with g_0 = g_0(1 / K). Corrected, g_0 is sqrt(2) of what is printed, see `GoodStart.distance`.

    Args:
        shape: the model.
        start: its constants.
        K, n, step: steps, sequences, step size.
        H: heads; None takes as many as are needed.
        corrected: False for the constants as printed.
    """
    D = start.distance(1.0 / K, corrected=corrected)
    g = D + start.B2
    heads = max(1.0, (0.5 * GENERALIZATION * start.B2 * shape.beta3(3.0 * D + g) * D**2) ** 2)
    start_loss = float(np.logaddexp(0.0, start.B_phi))
    room = start.distance(1.0, corrected=corrected) ** 2 / start_loss
    rho = smoothness(shape, D, g, min(heads, LARGEST) if H is None else H)
    return GoodStartBounds(
        heads=heads,
        largest_step=min(1.0, 1.0 / rho, room),
        D=D,
        train=Bound(value=2.0 / K + 5.0 * D**2 / (4.0 * step * K), trivial=start_loss),
        generalization=Bound(value=17.0 * D**2 / (step * n)),
    )


def _regret(D: float, step: float, K: float, target_loss: float) -> float:
    """`2 K target_loss + 9 D^2 / (4 step)`."""
    return 2.0 * K * target_loss + 9.0 * D**2 / (4.0 * step)
