"""How far from singular the hidden layer starts: lambda_0, alpha^2, and their bounds.

*On the Convergence of Encoder-only Shallow Transformers*, Lemma 15 and Appendix C.3.

| name | what |
|---|---|
| `lambda_0` | least eigenvalue of E1 on the attended first tokens, with its bounds |
| `lemma_15` | bounds on it from the tokens and the attention weights alone |
| `chernoff_bound` | what it gives the hidden layer of a finite width |
| `predict_alpha` | alpha^2 from all attended tokens |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnlab.data.scale import lengths, ordinary, rescaled
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.theory.arrays import BLOCK, EPS, finite, sequences, within_float64
from attnlab.theory.encoder.assumptions import assumption_1, assumption_2, similarities
from attnlab.theory.encoder.constants import least_singular_value
from attnlab.theory.encoder.kernels import arc_cosine_1, pooled_expectation
from attnlab.theory.formula import AT_LEAST_ONE, AT_LEAST_ZERO, POSITIVE, formula


@dataclass(frozen=True, kw_only=True)
class Lambda0:
    """The least eigenvalue of `E relu(P w) relu(P w)^T` for w ~ N(0, variance I), between bounds.

    Attributes:
        value: the eigenvalue.
        error: what rounding may have added or taken: n eps of the largest eigenvalue.
        hermite: lower bound `variance / 4` times the least eigenvalue of P P^T, Eq. (38). 0 where n > d.
        gershgorin: lower bound `variance / 4 min_k (|p_k|^2 - sum_j |p_k.p_j|)`, Eq. (39) with the absolute values that
            it needs; below 0 it says nothing.
        upper: `variance |P|_F^2 / (2 n)`, the mean eigenvalue.
    """

    value: float
    error: float
    hermite: float
    gershgorin: float
    upper: float


@formula(variance=POSITIVE)
def lambda_0(phi: ArrayLike, variance: float) -> Lambda0:
    """lambda_0 of Lemma 15 for rows phi (n, d), the attended first tokens, and W_V of this variance.

    The lower bounds need n <= d: phi phi^T has no larger rank. The value itself is positive for any n as long as no two
    rows are parallel.

    >>> eigenvalue = lambda_0([[2.0, 0.0], [0.0, 2.0]], 1.0)
    >>> eigenvalue.hermite, eigenvalue.gershgorin, eigenvalue.upper, round(eigenvalue.value, 6)
    (1.0, 1.0, 2.0, 1.36338)
    """
    rows, e = ordinary(finite("phi", phi, ("n", "d")))
    (unit, of_variance) = ordinary(np.array(variance))
    variance, power = float(unit), 2 * e + of_variance
    value, error = _least_eigenvalue(variance * arc_cosine_1(rows))
    gram = rows @ rows.T
    squares = np.diag(gram)
    discs = squares - (np.abs(gram).sum(axis=1) - squares)
    bounds = {
        "value": value,
        "error": error,
        "hermite": 0.25 * variance * least_singular_value(rows) ** 2,
        "gershgorin": 0.25 * variance * float(discs.min()),
        "upper": 0.5 * variance * float(squares.mean()),
    }
    in_units = {name: float(rescaled(bound, power)) for name, bound in bounds.items()}
    within_float64("phi", np.asarray(phi), "squares of such rows, times `variance`,", np.array(list(in_units.values())))
    return Lambda0(**in_units)


@dataclass(frozen=True, kw_only=True)
class Lemma15:
    """Bounds on lambda_0 that see only tokens and attention weights.

    Attributes:
        lower: `variance / 4 min_k (C_k |b_k|^2 - |b_k| sum_j |b_j| s_kj^(1/2))`, with C_k the least eigenvalue of
            X_k X_k^T and s as of Assumption 3; below 0 it says nothing.
        upper: `variance T C_x^2 / 2`, Eq. (42).
        threshold: `C_lambda^2 / (4 T (N - 1)^2)`. With all s at most this, half of C_lambda is left; with the t of the
            paper, four times as large, nothing would be.
        largest: the largest s.
        promised: `variance C_lambda / (8 T)`, at most lambda_0 on that event.
        promised_pooled: `variance C_lambda T / 8`, at most `variance` times the least eigenvalue of
            `pooled_expectation` on the same event: better by T^2.
    """

    lower: float
    upper: float
    threshold: float
    largest: float
    promised: float
    promised_pooled: float

    @property
    def event(self) -> bool:
        """Are all pairs so dissimilar that `promised` holds? Only N <= d can be."""
        return self.promised > 0 and self.largest <= self.threshold


@formula(variance=POSITIVE)
def lemma_15(x: ArrayLike, beta: ArrayLike, variance: float) -> Lemma15:
    """Lemma 15 with its constants.

    Args:
        x: tokens, (n, T, d).
        beta: attention weights of the first token of each sequence, (n, T).
        variance: of W_V.

    >>> bounds = lemma_15([[[1.0, 0.0]], [[0.0, 1.0]]], [[1.0], [1.0]], 8.0)
    >>> bounds.lower, bounds.upper, bounds.promised, bounds.event
    (2.0, 4.0, 1.0, True)
    """
    tokens = sequences(x)
    n, T, _ = tokens.shape
    norms = lengths(finite("beta", beta, (n, T)))
    if not (norms > 0).all():
        raise InputError(message("`beta` has rows of zeros; wanted attention weights, which sum to 1."))
    rank, s = assumption_2(tokens), similarities(tokens)
    np.fill_diagonal(s, 0.0)
    discs = rank.least * norms**2 - norms * (np.sqrt(s) @ norms)
    C = rank.C_lambda
    return Lemma15(
        lower=0.25 * variance * float(discs.min()),
        upper=0.5 * variance * T * assumption_1(tokens).C_x ** 2,
        threshold=C**2 / (4.0 * T * (n - 1) ** 2) if n > 1 else np.inf,
        largest=float(s.max()),
        promised=0.125 * variance * C / T,
        promised_pooled=0.125 * variance * C * T,
    )


@formula(lambda0=AT_LEAST_ZERO, width=AT_LEAST_ONE, tau1=POSITIVE)
def chernoff_bound(lambda0: float, width: int, tau1: float, *, corrected: bool = True) -> float:
    """`tau1^2 m lambda_0 / 4`, a lower bound on eigenvalues of F F^T for `F = tau1 relu(P W_V^T)`, m >> n / lambda_0.

    Eq. (48) prints it without tau1^2, which matters for N(0, 1) weights, where tau1^2 = 1/m.

    >>> chernoff_bound(0.5, 64, 0.125), chernoff_bound(0.5, 64, 0.125, corrected=False)
    (0.125, 8.0)
    """
    return (tau1 * tau1 if corrected else 1.0) * width * lambda0 / 4.0


@dataclass(frozen=True, kw_only=True)
class AlphaPrediction:
    """What alpha^2 comes to at a width.

    Attributes:
        value: `tau1^2 m variance` times the least eigenvalue of `pooled_expectation`, the limit of large m.
        error: what rounding may have added or taken.
        hermite: a lower bound on it, with 1/4 the least eigenvalue of S S^T, where row n of S is the sum of the
            attended tokens of sequence n.
    """

    value: float
    error: float
    hermite: float


@formula(width=AT_LEAST_ONE, variance=POSITIVE, tau1=POSITIVE)
def predict_alpha(
    attended: ArrayLike, *, width: int, variance: float, tau1: float, block: int = BLOCK
) -> AlphaPrediction:
    """alpha^2 from the attended tokens (n, T, d), all of them.

    Appendix C.3 bounds alpha^2 by the first tokens alone, as if F_pre F_pre^T were a sum of positive semidefinite
    matrices; it has cross terms besides, so that may fail. This prediction holds for any tokens, in the limit.

    >>> predict_alpha([[[2.0]]], width=10, variance=1.0, tau1=1.0).value
    20.0
    """
    tokens, e = ordinary(finite("attended", attended, ("n", "T", "d")))
    scale = tau1 * tau1 * width * variance
    value, error = _least_eigenvalue(pooled_expectation(tokens, block=block))
    hermite = 0.25 * least_singular_value(tokens.sum(axis=1)) ** 2
    parts = {"value": scale * value, "error": scale * error, "hermite": scale * hermite}
    in_units = {name: float(rescaled(part, 2 * e)) for name, part in parts.items()}
    within_float64("attended", np.asarray(attended), "squares of such tokens", np.array(list(in_units.values())))
    return AlphaPrediction(**in_units)


def _least_eigenvalue(kernel: Array) -> tuple[float, float]:
    """Least eigenvalue of a positive semidefinite matrix, and its rounding error."""
    values = np.linalg.eigvalsh(kernel)
    return max(0.0, float(values[0])), float(len(kernel) * EPS * values[-1])
