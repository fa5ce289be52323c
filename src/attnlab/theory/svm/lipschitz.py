"""How fast the gradient can change: the constants of Lemma 4, as printed and corrected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import instance, one_of
from attnlab.data.scale import is_ordinary, length, lengths, rescaled, rows_to_one, spectral_norm
from attnlab.data.selection import scores
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.theory.arrays import finite, one_data_set, within_float64
from attnlab.theory.formula import AT_LEAST_ZERO, formula, keep

LOSSES = ("logistic", "exponential", "correlation")
# e to this is a float64 number.
LARGEST_SCORE = 709.0
# Sizes from one over this to this for which the formula is computed as it stands.
MODERATE = 1e10


@dataclass(frozen=True, kw_only=True)
class LossConstants:
    """M0: Lipschitz constant of the slope of a loss; M1: bound on that slope; on the margins that can occur."""

    M0: float
    M1: float

    def __post_init__(self) -> None:
        keep(self, M0=AT_LEAST_ZERO, M1=AT_LEAST_ZERO)

    def __repr__(self) -> str:
        return f"LossConstants(M0={self.M0:.4g}, M1={self.M1:.4g})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LipschitzConstants:
    """Lipschitz constants of the gradient in the Frobenius norm, for the linear head.

    Attributes:
        W: of the gradient in W; inf where it is larger than any float64 number.
        terms: what each query adds to it, laid out as the labels.
        loss: the constants of the loss that were used.
    """

    W: float
    terms: Array
    loss: LossConstants

    @formula()
    def K(self, Q: ArrayLike) -> float:
        """Of the gradient in K while Q stays: `|Q|^2 L_W`, spectral norm (the chain rule gives one |Q| per factor)."""
        return _spectral("Q", Q) ** 2 * self.W

    @formula()
    def Q(self, K: ArrayLike) -> float:
        """Of the gradient in Q while K stays: `|K|^2 L_W`."""
        return _spectral("K", K) ** 2 * self.W

    @formula()
    def K_printed(self, Q: ArrayLike) -> float:
        """`|Q| L_W`, as Lemma 4 prints it: too small wherever |Q| > 1 matters."""
        return _spectral("Q", Q) * self.W

    @formula()
    def Q_printed(self, K: ArrayLike) -> float:
        """`|K| L_W`, as Lemma 4 prints it."""
        return _spectral("K", K) * self.W

    def __repr__(self) -> str:
        return f"LipschitzConstants(W={self.W:.4g}, {self.loss!r})"


def loss_constants(tokens: Tokens, loss: str = "logistic") -> LossConstants:
    """M0 and M1 of Assumption A: `|l'(a) - l'(b)| <= M0 |a - b|` and `|l'| <= M1` on the margins these tokens allow.

    Logistic (1/4, 1); correlation (0, 1); exponential (e^B, e^B) with B the largest |score| of a visible token: the
    margin is a mean of scores, so it stays in [-B, B].

    Args:
        tokens: one data set, with `v`.
        loss: "logistic", "exponential" or "correlation".

    >>> import attnlab as al
    >>> loss_constants(al.data.two_tokens())
    LossConstants(M0=0.25, M1=1)
    """
    one_of("loss", loss, LOSSES)
    one_data_set(tokens)
    if loss == "logistic":
        return LossConstants(M0=0.25, M1=1.0)
    if loss == "correlation":
        return LossConstants(M0=0.0, M1=1.0)
    largest = float(np.abs(scores(tokens))[tokens.visible].max())
    if largest > LARGEST_SCORE:
        slope = "the slope of the exponential loss, e to that, is beyond float64"
        raise InputError(
            message(f"`tokens` have scores up to {largest:.4g}; {slope}.", "divide `v`, or take the logistic loss")
        )
    bound = float(np.exp(largest))
    return LossConstants(M0=bound, M1=bound)


def lipschitz_constants(tokens: Tokens, loss: str | LossConstants = "logistic") -> LipschitzConstants:
    """Lipschitz constants of the gradient, `L_W = (1/n) sum_i |v| |z_i|^2 |X_i|^3 (M0 |v| |X_i| + 3 M1)`.

    |X_i| is the spectral norm of the visible tokens of the query; with K queries the sum runs over all of them.
    A step `1 / L_W` is safe for gradient descent (Lemma 8), and far smaller than need be.

    Args:
        tokens: one data set, with `v` (linear head).
        loss: a name, or `LossConstants` for your own loss.

    Returns:
        `LipschitzConstants`: `.W`, and `.K(Q)`, `.Q(K)` for one factor with the other fixed.

    Lemma 4 of *Transformers as Support Vector Machines*; its L_K and L_Q lack a factor, see `K_printed`.

    >>> import attnlab as al
    >>> constants = lipschitz_constants(al.data.two_tokens(), "correlation")
    >>> constants.W, constants.K([[2.0], [0.0]]), constants.K_printed([[2.0], [0.0]])
    (3.0, 12.0, 6.0)
    """
    one_data_set(tokens)
    if tokens.v is None:
        raise InputError(message("`tokens` have no `v`; Lemma 4 is for the linear head, which needs it.", "pass v="))
    if not isinstance(loss, str | LossConstants):
        instance("loss", loss, LossConstants, "the name of a loss, or LossConstants for your own")
    used = loss if isinstance(loss, LossConstants) else loss_constants(tokens, loss)
    visible = tokens.visible.reshape(tokens.n, -1, tokens.T)  # (n, K, T)
    sizes = _spectral_norms(tokens.x[:, None] * visible[..., None]).reshape(tokens.y.shape)
    v, z = length(tokens.v), lengths(tokens.z)
    within_float64("tokens.v", tokens.v, "lengths", np.array(v))
    within_float64("tokens.z", tokens.z, "lengths", z)
    largest = max(v, float(z.max()), float(sizes.max()), used.M0, used.M1)
    least = min(float(np.min(part, where=part > 0, initial=1.0)) for part in (np.array(v), z, sizes))
    if largest < MODERATE and least > 1.0 / MODERATE:
        terms = v * z**2 * sizes**3 * (used.M0 * v * sizes + 3.0 * used.M1) / tokens.n
    else:
        curved = _product(np.array(used.M0), np.array(v), np.array(v), z, z, sizes, sizes, sizes, sizes)
        straight = _product(np.array(3.0), np.array(used.M1), np.array(v), z, z, sizes, sizes, sizes)
        with np.errstate(over="ignore"):
            terms = (curved / tokens.n) + (straight / tokens.n)
    with np.errstate(over="ignore"):
        return LipschitzConstants(W=float(terms.sum()), terms=terms, loss=used)


def _spectral_norms(matrices: Array) -> Array:
    """Largest singular values over the last two axes, of matrices of any size."""
    if is_ordinary(matrices):
        return np.linalg.norm(matrices, ord=2, axis=(-2, -1))
    flat, e = rows_to_one(matrices.reshape(*matrices.shape[:-2], -1))
    norms = rescaled(np.linalg.norm(flat.reshape(matrices.shape), ord=2, axis=(-2, -1)), e[..., 0])
    within_float64("tokens.x", matrices, "lengths", norms)
    return norms


def _product(*factors: Array) -> Array:
    """The product of numbers at least 0 whose powers may leave float64 while it does not; inf where it does."""
    mantissa, exponent = np.array(1.0), np.array(0)
    for factor in factors:
        part, power = np.frexp(factor)
        mantissa, exponent = mantissa * part, exponent + power
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(mantissa, exponent)


def _spectral(name: str, value: ArrayLike) -> float:
    return spectral_norm(finite(name, value, ("d", "m")))
