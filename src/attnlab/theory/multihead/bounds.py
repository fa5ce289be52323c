"""How fast multi-head attention can change, and what gradient descent therefore needs: heads and a step size.

Section 3 and Theorem 1 of *On the Optimization and Generalization of Multi-head Attention*, with exact constants. A
`Shape` says which model: tokens, dimension, the bound R on token norms, the decoder, and whether the constants are
those of the paper or the sharper ones, which do not grow with the dimension.

| name | what |
|---|---|
| `token_bounds` | Proposition 1: gradient and Hessian of one head on given tokens |
| `Shape.beta1`, `Shape.beta2`, `Shape.beta3` | Corollary 1: what bounds gradient, Hessian and least eigenvalue |
| `segment_condition` | Proposition 4: how close two parameters must be for the loss between them to be at most 4/3 |
| `head_requirement`, `heads_needed` | the heads that Theorems 1 and 2 ask for |
| `smoothness`, `largest_step` | rho and the largest step size |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnlab.checks import finite_array, one_of, whole
from attnlab.data.scale import lengths
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.models.multihead import DECODERS, Decoder
from attnlab.theory.formula import AT_LEAST_ONE, AT_LEAST_ZERO, flag, formula, keep, of_class

# Head requirements of the paper, sqrt(H) >= c sqrt(T d) R^3 (3 sqrt(d) R^2 (3 D + g) + 1) D^2, have one of these c.
TRAINING, GENERALIZATION = 36.0, 256.0
# Rounds of a search that has settled long before.
MOST_ROUNDS = 1000


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The model, as far as bounds see it.

    Attributes:
        T, d: tokens per sequence, dimension.
        R: bound on token norms (Assumption 1); at least 1.
        decoder: "full" is that of the paper. For one vector u per head, "pooling" or "last", sqrt(T) becomes T or 1.
        sharp: constants without the dimension, `beta1 = sqrt(T) R (R^2 m + 1)`, `beta3 = sqrt(T) R^3 (2 R^2 m + 1)`.

    >>> Shape(T=4, d=1, R=1.0).beta1(0.5)
    4.0
    """

    T: int
    d: int
    R: float
    decoder: Decoder = "full"
    sharp: bool = False

    def __post_init__(self) -> None:
        keep(self, T=AT_LEAST_ONE, d=AT_LEAST_ONE, R=AT_LEAST_ONE)
        one_of("decoder", self.decoder, DECODERS)
        flag("sharp", self.sharp)

    @classmethod
    def of(cls, x: Array, *, decoder: Decoder = "full", sharp: bool = False) -> Shape:
        """The shape of given tokens, (..., T, d), with R their largest norm, or 1 if that is less."""
        tokens = token_rows("x", x)
        R = max(1.0, float(lengths(tokens).max()))
        return cls(T=tokens.shape[-2], d=tokens.shape[-1], R=R, decoder=decoder, sharp=sharp)

    @property
    @formula()
    def length(self) -> float:
        """sqrt(T) for the full decoder, T for pooling, 1 for the last token."""
        return {"full": float(np.sqrt(float(self.T))), "pooling": float(self.T), "last": 1.0}[self.decoder]

    @formula(m=AT_LEAST_ZERO)
    def beta1(self, m: float) -> float:
        """`|grad L| <= beta1 L`, where no head is longer than m: `sqrt(T) R (2 R^2 m + 1)`."""
        factor = 1.0 if self.sharp else 2.0
        return self.length * self.R * (factor * self.R**2 * m + 1.0)

    @formula(m=AT_LEAST_ZERO)
    def beta3(self, m: float) -> float:
        """`least eigenvalue of the Hessian of L >= -beta3 L / sqrt(H)`: `2 sqrt(T d) R^3 (3 sqrt(d) R^2 m + 1)`."""
        if self.sharp:
            return self.length * self.R**3 * (2.0 * self.R**2 * m + 1.0)
        root = np.sqrt(float(self.d))
        return float(2.0 * self.length * root * self.R**3 * (3.0 * root * self.R**2 * m + 1.0))

    @formula(m=AT_LEAST_ZERO, H=AT_LEAST_ONE)
    def beta2(self, m: float, H: float) -> float:
        """`|Hessian of L| <= beta2`: `beta3 / sqrt(H) + beta1^2 / 4`."""
        return self.beta3(m) / float(np.sqrt(H)) + self.beta1(m) ** 2 / 4.0


OF_SHAPE = of_class(Shape, "al.theory.multihead.Shape")
# What the names below stand for, unless a bound says otherwise.
bound = partial(formula, shape=OF_SHAPE, D=AT_LEAST_ZERO, g=AT_LEAST_ZERO, H=AT_LEAST_ONE)


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenBounds:
    """Bounds on the derivatives of one head, for each sequence.

    Attributes:
        by_U, by_W: on the gradient by U and by W.
        gradient: their sum, which bounds the whole gradient.
        hessian: on the largest absolute eigenvalue of the Hessian.
    """

    by_U: Array
    by_W: Array
    gradient: Array
    hessian: Array


@formula()
def token_bounds(x: Array, U: Array, *, sharp: bool = False) -> TokenBounds:
    """Proposition 1 for tokens x (..., T, d) and a full decoder U (..., T, d); exact norms in place of R.

    With `a = max_t |x_t|`, `b = max_tj |x_tj|` and `s = sum_t max_k |<u_t, x_k>|`:

        |gradient| <= 2 a^2 s + sqrt(T) a,   |Hessian| <= 6 d a^2 b^2 s + 2 sqrt(T d) a^2 b

    Sharp: `a^2 s + sqrt(T) a` and `2 a^4 s + sqrt(T) a^3`.
    """
    x, U = token_rows("x", x), token_rows("U", U)
    T, d = x.shape[-2:]
    if U.shape[-2:] != (T, d) or np.broadcast_shapes(U.shape[:-2], x.shape[:-2]) != x.shape[:-2]:
        raise InputError(message(f"`U` has shape {U.shape}; tokens of shape {x.shape} need (..., {T}, {d})."))
    longest = lengths(x).max(-1)
    entry = np.abs(x).max((-2, -1))
    scores = np.abs(U @ np.swapaxes(x, -1, -2)).max(-1).sum(-1)
    by_U = np.sqrt(float(T)) * longest
    by_W = (1.0 if sharp else 2.0) * longest**2 * scores
    if sharp:
        hessian = 2.0 * longest**4 * scores + np.sqrt(float(T)) * longest**3
    else:
        hessian = 6.0 * d * (longest * entry) ** 2 * scores + 2.0 * np.sqrt(float(T * d)) * longest**2 * entry
    return TokenBounds(by_U=by_U, by_W=by_W, gradient=by_U + by_W, hessian=hessian)


@bound(m1=AT_LEAST_ZERO, m2=AT_LEAST_ZERO, distance=AT_LEAST_ZERO)
def segment_condition(shape: Shape, m1: float, m2: float, distance: float) -> float:
    """Proposition 4: the heads from which `loss <= 4/3 max(its ends)` on a segment of this length.

    `sqrt(H) >= 2 max(beta3(m1), beta3(m2)) distance^2`, where m1 and m2 are the longest heads at the ends.
    """
    return float((2.0 * max(shape.beta3(m1), shape.beta3(m2)) * distance**2) ** 2)


@bound(c=AT_LEAST_ZERO)
def head_requirement(shape: Shape, D: float, g: float, c: float = TRAINING) -> float:
    """The least H of Theorem 1 (c = 36) or Theorem 2 and Lemma 11 (c = 256), at least 1.

        sqrt(H) >= c sqrt(T d) R^3 (3 sqrt(d) R^2 (3 D + g) + 1) D^2   which is (c / 2) beta3(3 D + g) D^2

    Args:
        shape: the model.
        D: distance of the target from the start, over all heads.
        g: longest head of the target.
        c: the constant.
    """
    return max(1.0, (0.5 * c * shape.beta3(3.0 * D + g) * D**2) ** 2)


@bound(start=AT_LEAST_ZERO, c=AT_LEAST_ZERO)
def heads_needed(
    shape: Shape, D: float, *, start: float = 0.0, c: float = TRAINING, rounds: int = 5
) -> tuple[float, float]:
    """H that meets `head_requirement`, and g, for a target whose move is spread evenly over the heads.

    Then `g <= start + D / sqrt(H)`, with `start` the longest head at the start, so that H asks for g and g for H. More
    heads make g smaller, so the larger of two successive rounds always meets its own requirement. H is whole.
    """
    rounds = whole("rounds", rounds, most=MOST_ROUNDS)

    def longest(H: float) -> float:
        return start + D / float(np.sqrt(H))

    before = H = 1.0
    for _ in range(rounds):
        before, H = H, float(np.ceil(head_requirement(shape, D, longest(H), c)))
    H = max(before, H)
    return H, longest(H)


@bound()
def smoothness(shape: Shape, D: float, g: float, H: float) -> float:
    """rho of Theorem 1: the loss is rho-smooth along gradient descent while it stays within 3 D of the target.

        rho = (2 sqrt(T d) R^3 / sqrt(H) + T R^2 / 4) alpha^2
        alpha = 3 sqrt(d) R^2 (3 sqrt(T) R^3 (3 D + g) + 2 sqrt(T) R)

    With sharp constants it is `beta2(m + beta1(m))` for m = 3 D + g, what the proof rounds up to this form.
    """
    m, length, R = 3.0 * D + g, shape.length, shape.R
    if shape.sharp:
        return shape.beta2(m + shape.beta1(m), H)
    root = np.sqrt(float(shape.d))
    front = 2.0 * length * root * R**3 / np.sqrt(H) + length**2 * R**2 / 4.0
    return float(front * growth(shape, D, g) ** 2)


@bound()
def growth(shape: Shape, D: float, g: float) -> float:
    """alpha of Theorem 1, see `smoothness`."""
    length, R = shape.length, shape.R
    return float(3.0 * np.sqrt(float(shape.d)) * R**2 * (3.0 * length * R**3 * (3.0 * D + g) + 2.0 * length * R))


@bound(K=AT_LEAST_ZERO, target_loss=AT_LEAST_ZERO, start_loss=AT_LEAST_ZERO)
def largest_step(
    shape: Shape, D: float, g: float, H: float, *, K: float, target_loss: float, start_loss: float
) -> float:
    """The step size of Theorems 1 and 2: `min(1, 1 / rho, D^2 / (K target_loss), D^2 / start_loss)`."""
    rooms = [1.0, 1.0 / smoothness(shape, D, g, H)]
    rooms += [D**2 / need for need in (K * target_loss, start_loss) if need > 0]
    return min(rooms)


def token_rows(name: str, value: Any) -> Array:
    """A finite array of rows, (..., T, d), with no empty axis."""
    array = finite_array(name, value)
    if array.ndim < 2 or not array.size:
        raise InputError(message(f"`{name}` has shape {array.shape}; wanted (..., T, d), with no empty axis."))
    return array
