"""How fast the gradient can change: the constants of Lemma 4, as printed and corrected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import real_array
from attnlab.data.selection import scores
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.theory.geometry import one_data_set

LOSSES = ("logistic", "exponential", "correlation")


@dataclass(frozen=True, kw_only=True)
class LossConstants:
    """M0: Lipschitz constant of the slope of a loss; M1: bound on that slope; on the margins that can occur."""

    M0: float
    M1: float

    def __repr__(self) -> str:
        return f"LossConstants(M0={self.M0:.4g}, M1={self.M1:.4g})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LipschitzConstants:
    """Lipschitz constants of the gradient in the Frobenius norm, for the linear head.

    Attributes:
        W: of the gradient in W.
        terms: what each query adds to it, laid out as the labels.
        loss: the constants of the loss that were used.
    """

    W: float
    terms: Array
    loss: LossConstants

    def K(self, Q: ArrayLike) -> float:
        """Of the gradient in K while Q stays: `|Q|^2 L_W`, spectral norm (the chain rule gives one |Q| per factor)."""
        return _spectral("Q", Q) ** 2 * self.W

    def Q(self, K: ArrayLike) -> float:
        """Of the gradient in Q while K stays: `|K|^2 L_W`."""
        return _spectral("K", K) ** 2 * self.W

    def K_printed(self, Q: ArrayLike) -> float:
        """`|Q| L_W`, as Lemma 4 prints it: too small wherever |Q| > 1 matters."""
        return _spectral("Q", Q) * self.W

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
    if loss not in LOSSES:
        raise InputError(
            message(f"`loss` is {loss!r}; wanted one of {', '.join(LOSSES)}.", "for your own loss pass LossConstants")
        )
    one_data_set(tokens)
    if loss == "logistic":
        return LossConstants(M0=0.25, M1=1.0)
    if loss == "correlation":
        return LossConstants(M0=0.0, M1=1.0)
    bound = float(np.exp(np.abs(scores(tokens))[tokens.visible].max()))
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
    used = loss if isinstance(loss, LossConstants) else loss_constants(tokens, loss)
    visible = tokens.visible.reshape(tokens.n, -1, tokens.T)  # (n, K, T)
    sizes = np.linalg.norm(tokens.x[:, None] * visible[..., None], ord=2, axis=(-2, -1)).reshape(tokens.y.shape)
    v, z = float(np.linalg.norm(tokens.v)), np.linalg.norm(tokens.z, axis=-1)
    terms = v * z**2 * sizes**3 * (used.M0 * v * sizes + 3.0 * used.M1) / tokens.n
    return LipschitzConstants(W=float(terms.sum()), terms=terms, loss=used)


def _spectral(name: str, value: ArrayLike) -> float:
    matrix = real_array(name, value)
    if matrix.ndim != 2 or 0 in matrix.shape or not np.isfinite(matrix).all():
        raise InputError(message(f"`{name}` has shape {matrix.shape}; wanted a finite matrix (d, m)."))
    return float(np.linalg.norm(matrix, ord=2))
