"""How far outputs and gradients can move: the auxiliary lemmas of Proposition 1.

*On the Convergence of Encoder-only Shallow Transformers*, Appendix C.1. In all of them parameters have norms of at most
`constants.lambda_bar`, and changes are given by their norms: spectral for matrices (the Frobenius norm, being larger,
may be given too), Euclidean for w_O.

| name | what it bounds |
|---|---|
| `lemma_4` | how far a sub-exponential variable is from its mean |
| `lemma_5`, `lemma_6`, `lemma_20` | singular values of Gaussian matrices, and of those nearby |
| `lemma_7`, `lemma_8` | a row of attention weights: its change, its norm |
| `lemma_9`, `lemma_10` | the change of the hidden layer, and of the outputs |
| `lemma_12` | the gradient of the loss, by parameter |
| `lemma_13`, `lemma_14` | the gradient of the outputs, and its change |

>>> from attnlab.theory.encoder.constants import Constants
>>> start = {"W_Q": [[1.0]], "W_K": [[1.0]], "W_V": [[1.0]], "w_O": [1.0]}
>>> constants = Constants.of([[[1.0]]], [0.0], start, tau0=0.5, tau1=1.0)
>>> lemma_7(constants, dQ=0.1, dK=0.0), lemma_9(constants, dQ=0.1, dK=0.0, dV=0.5), lemma_10(constants, dO=1.0, dF=0.5)
(0.2, 0.9, 3.0)
>>> round(lemma_13(constants), 3), round(lemma_14(constants, change=0.1), 3)
(11.662, 18.604)
"""

from __future__ import annotations

import numpy as np

from attnlab.theory.encoder.constants import OF_CONSTANTS, Constants
from attnlab.theory.formula import AT_LEAST_ONE, AT_LEAST_ZERO, SHARE, formula


@formula(nu=AT_LEAST_ZERO, a=AT_LEAST_ZERO, delta=SHARE)
def lemma_4(nu: float, a: float, delta: float) -> float:
    """`|X - mean| < max(nu sqrt(2 log(2/delta)), 2 a log(2/delta))` with probability 1 - delta, for X ~ SE(nu, a).

    SE(nu, a): `E exp(s (X - mean)) <= exp(nu^2 s^2 / 2)` for |s| < 1/a. The product of two independent N(0, v) is
    SE(sqrt(2) v, sqrt(2) v).

    >>> round(lemma_4(1.0, 1.0, 0.05), 4)
    7.3778
    """
    log = float(np.log(2.0 / delta))
    return max(nu * float(np.sqrt(2.0 * log)), 2.0 * a * log)


@formula(rows=AT_LEAST_ONE, columns=AT_LEAST_ONE, u=AT_LEAST_ZERO)
def lemma_5(rows: int, columns: int, u: float) -> tuple[float, float]:
    """`sqrt(rows) -+ (sqrt(columns) + u)` around all singular values, with probability 1 - 2 exp(-u^2 / 2).

    For a matrix of independent N(0, 1) entries.

    >>> lemma_5(16, 4, 1.0)
    (1.0, 7.0)
    """
    tall, slack = float(np.sqrt(float(rows))), float(np.sqrt(float(columns))) + u
    return tall - slack, tall + slack


@formula(width=AT_LEAST_ONE, variance=AT_LEAST_ZERO)
def lemma_6(width: int, variance: float = 1.0) -> float:
    """`|W| <= 3 sqrt(variance m)` with probability 1 - 2 exp(-m / 2), for Gaussian W (m, d) with m > d.

    >>> lemma_6(64)
    24.0
    """
    return 3.0 * float(np.sqrt(variance * width))


@formula(width=AT_LEAST_ONE, R=AT_LEAST_ZERO)
def lemma_20(width: int, R: float) -> float:
    """`|w'| <= R + 3 sqrt(m)` for all w' within R of a Gaussian w, with probability 1 - 2 exp(-m / 2).

    >>> lemma_20(64, 2.0)
    26.0
    """
    return R + lemma_6(width)


@formula(constants=OF_CONSTANTS, dQ=AT_LEAST_ZERO, dK=AT_LEAST_ZERO)
def lemma_7(constants: Constants, *, dQ: float, dK: float) -> float:
    """`|b' - b| <= 2 tau0 C_x^2 T (l_Q dK + l_K dQ)` for every row b of attention weights."""
    bar = constants.lambda_bar
    return constants.reach * (bar["Q"] * dK + bar["K"] * dQ)


@formula(T=AT_LEAST_ONE)
def lemma_8(T: int) -> tuple[float, float]:
    """`1 / sqrt(T) <= |b| <= 1` for every row b of attention weights.

    >>> lemma_8(4)
    (0.5, 1.0)
    """
    return 1.0 / float(np.sqrt(float(T))), 1.0


@formula(constants=OF_CONSTANTS, dQ=AT_LEAST_ZERO, dK=AT_LEAST_ZERO, dV=AT_LEAST_ZERO)
def lemma_9(constants: Constants, *, dQ: float, dK: float, dV: float) -> float:
    """`|F_pre' - F_pre|_F <= rho (dV + l_V 2 tau0 C_x^2 T (l_Q dK + l_K dQ))`; a residual cancels."""
    return constants.rho * (dV + constants.lambda_bar["V"] * lemma_7(constants, dQ=dQ, dK=dK))


@formula(constants=OF_CONSTANTS, dO=AT_LEAST_ZERO, dF=AT_LEAST_ZERO)
def lemma_10(constants: Constants, *, dO: float, dF: float) -> float:
    """`|f' - f| <= rho l_V dO + l_O dF`, with dF the change of F_pre or its bound; l_V as of `hidden_bar`."""
    return constants.rho * constants.hidden_bar * dO + constants.lambda_bar["O"] * dF


@formula(constants=OF_CONSTANTS, misfit=AT_LEAST_ZERO)
def lemma_12(constants: Constants, misfit: float) -> dict[str, float]:
    """The gradient of the loss by each parameter, for `misfit = |f - y|`.

    `V: rho l_O`, `O: rho l_V`, `Q: 2 rho tau0 l_K l_V l_O T C_x^2`, `K`: the same with l_Q; times the misfit.

    >>> constants = Constants(N=1, T=1, d=1, width=1, tau0=1.0, tau1=1.0, C_x=1.0, norms=dict.fromkeys("QKVO", 0.0),
    ...                   radius=dict.fromkeys("QKVO", 1.0), alpha=0.0, start_loss=0.0)
    >>> lemma_12(constants, misfit=3.0)
    {'Q': 6.0, 'K': 6.0, 'V': 3.0, 'O': 3.0}
    """
    return {name: slope * misfit for name, slope in constants.slopes.items()}


@formula(constants=OF_CONSTANTS)
def lemma_13(constants: Constants) -> float:
    """The gradient of all outputs, (N, parameters), in the spectral and the Frobenius norm: c2."""
    return constants.c2()


@formula(constants=OF_CONSTANTS, change=AT_LEAST_ZERO)
def lemma_14(constants: Constants, change: float, *, corrected: bool = True) -> float:
    """The change of that gradient when parameters change by so much: `c3 change`.

    It holds while no preactivation changes its sign: relu has a kink, and across it the gradient jumps.
    """
    return constants.c3(corrected=corrected) * change
