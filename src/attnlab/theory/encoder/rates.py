"""What Proposition 1 promises: how fast the loss falls, and how little everything moves.

*On the Convergence of Encoder-only Shallow Transformers*. Under its conditions (2) and (3) and with a step size
gamma <= 1 / C, `loss_t <= (1 - c gamma alpha^2)^t loss_0`. Eq. (4) has c = 1/2. The proof as written keeps only
`alpha / 2` of the least singular value of F_pre, which is c = 1/4; but it counts 16 where its own sum gives 4, and with
4 the printed rate follows, and any c up to 0.85 with it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.theory.encoder.constants import OF_CONSTANTS, Constants
from attnlab.theory.formula import AT_LEAST_ZERO, POSITIVE, formula, numbers


@formula(gamma=POSITIVE, alpha=AT_LEAST_ZERO, t=numbers(least=0, infinite=True), c=POSITIVE)
def rate_bound(gamma: float, alpha: float, t: ArrayLike, c: float = 0.5) -> Array:
    """`(1 - c gamma alpha^2)^t`, what the loss is at most after t steps, as a share of what it was. Eq. (4).

    Args:
        gamma: step size.
        alpha: least singular value of F_pre at the start.
        t: steps, a number or an array, at least 0.
        c: 1/2 as printed, 1/4 as the written proof has it.

    Where `c gamma alpha^2 > 1` the step is far larger than any that is promised something, and the bound is inf.

    >>> round(float(rate_bound(0.01, 2.0, 100)), 6)
    0.13262
    >>> rate_bound(0.5, 2.0, [0, 1, 2]).tolist()
    [1.0, 0.0, 0.0]
    """
    steps = np.asarray(t)
    lost = c * gamma * alpha * alpha
    if lost >= 1:
        return np.where(steps == 0, 1.0, 0.0 if lost == 1 else np.inf)[()]
    # log1p keeps rates that 1 - c gamma alpha^2 would round away.
    return np.exp(steps * np.log1p(-lost))


@formula(c=POSITIVE)
def rate_follows(c: float) -> bool:
    """Does the induction of Proposition 1 close for this c?

    It asks for `2 / c <= 8`, so that (2) holds parameters within C_P, and `(1 - 1 / (16 c))^2 >= c`, so that what (3)
    leaves of the least singular value gives the rate back.

    >>> [rate_follows(c) for c in (0.2, 0.25, 0.5, 0.85, 0.9)]
    [False, True, True, True, False]
    """
    return bool(2.0 / c <= 8.0 and (1.0 - 1.0 / (16.0 * c)) ** 2 >= c)


@formula(alpha=AT_LEAST_ZERO, c=POSITIVE)
def drift_bound(alpha: float, c: float = 0.5, *, corrected: bool = True) -> float:
    """How far F_pre moves in the Frobenius norm: `alpha / (16 c)`, so alpha / 8 at the printed rate.

    The paper has alpha / 2 for any c. The least singular value stays at least alpha less this.

    >>> drift_bound(4.0), drift_bound(4.0, corrected=False)
    (0.5, 2.0)
    """
    return alpha / (16.0 * c) if corrected else alpha / 2.0


@formula(constants=OF_CONSTANTS)
def weight_bounds(constants: Constants) -> dict[str, float]:
    """How far each parameter moves in the Frobenius norm while Proposition 1 applies: C_P, Eqs. (29) to (34)."""
    return dict(constants.radius)


@formula(constants=OF_CONSTANTS, norm=AT_LEAST_ZERO)
def residual_alpha(constants: Constants, norm: float = 1.0, *, corrected: bool = True) -> float:
    """A lower bound on alpha once a residual is added, `alpha - sqrt(N) tau1 T C_x |S|`; below 0 it says nothing.

    Args:
        constants: of the model without the residual.
        norm: |S|, spectral; 1 for the identity.
        corrected: printed, Eq. (62) multiplies by `|w_O| |W_V|`, which stand for a hidden layer that already has w_O in
            it.

    Appendix C.7.

    >>> start = {"W_Q": [[0.0]], "W_K": [[0.0]], "W_V": [[3.0]], "w_O": [1.0]}
    >>> residual_alpha(Constants.of([[[1.0]]], [0.0], start, tau0=1.0, tau1=1.0))  # relu(3 + 1) is 4, relu(3 - 1) is 2
    2.0
    """
    if constants.shortcut > 0:
        raise InputError(message("`constants` already have a residual; wanted those of the model without."))
    moved = float(np.sqrt(float(constants.N))) * constants.tau1 * constants.T * constants.C_x * norm
    if not corrected:
        moved *= constants.norms["O"] * constants.norms["V"]
    return constants.alpha - moved
