"""Joint training of head and attention: the conditions, constants and bounds of Section 4 and Appendix B of *Implicit
Bias and Fast Convergence Rates for Self-attention*.

The data model (DM) has one planted token N(0, alpha^2 rho^2 I_d) per sequence among others N(0, rho^2 I_d); training
follows Eq. (10), `attnlab.optim.joint_decay`. A `JointModel` holds the numbers of the data model and the constants made
from them. Bounds are plain functions of a model, the step size eta and a time t, and take arrays of times.

`corrected=False` gives a formula as printed; `corrected=True` what its proof gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from attnlab.data.tokens import Array
from attnlab.theory.formula import AT_LEAST_ZERO, NUMBER, POSITIVE, SHARE, choice, formula, numbers
from attnlab.theory.rates.jointmodel import (
    LOSS_RATIO as LOSS_RATIO,
    LOSS_RATIO_NEEDED as LOSS_RATIO_NEEDED,
    OF_MODEL,
    JointModel as JointModel,
    condition_1 as condition_1,
    near_orthogonality as near_orthogonality,
    separation as separation,
)

# Sums of (s + 1)^-p are taken term by term up to here, then by the Euler-Maclaurin formula.
SUMMED = 1000
TIMES = numbers(least=0, infinite=True)
# What the names below stand for, unless a bound says otherwise.
bound = partial(
    formula,
    model=OF_MODEL,
    step=POSITIVE,
    t=TIMES,
    Lambda=POSITIVE,
    epsilon=POSITIVE,
    loss_ratio=POSITIVE,
    log_time=NUMBER,
    power=NUMBER,
)


@bound()
def decayed_sum(t: ArrayLike, power: float = 2 / 3) -> Array:
    """`sum_{s<t} (s+1)^-power` for whole t of any size.

    >>> decayed_sum([1, 2], power=1.0).tolist()
    [1.0, 1.5]
    """
    t = np.asarray(t, dtype=float)
    first = np.concatenate([[0.0], np.cumsum(np.arange(1.0, SUMMED + 1) ** -power)])
    far = np.maximum(t, SUMMED)
    grown = np.log(far / SUMMED) if power == 1 else (far ** (1 - power) - SUMMED ** (1 - power)) / (1 - power)
    ends = (far**-power - float(SUMMED) ** -power) / 2
    ends -= power * (far ** (-power - 1) - float(SUMMED) ** (-power - 1)) / 12
    return np.where(t <= SUMMED, first[np.minimum(t, SUMMED).astype(int)], first[-1] + grown + ends)


@bound()
def head_norm_bound(step: float, t: ArrayLike, *, summed: bool = False, power: float = 2 / 3) -> Array:
    """Lemma 10: `|u_t| <= eta sum_{s<t} (s+1)^-p <= eta t^(1-p) / (1-p)`, the sum or what it is at most."""
    if summed:
        return step * decayed_sum(t, power)
    return step * np.asarray(t, dtype=float) ** (1 - power) / (1 - power)


@bound(Lambda=numbers(above=0, infinite=True))
def attention_norm_bounds(
    model: JointModel, step: float, t: ArrayLike, Lambda: ArrayLike, *, corrected: bool = True
) -> tuple[Array, Array]:
    """`eta log(t) / (2 B^2 Lambda) <= |W_t| <= eta (1 + log t)`: Eq. (55) and the triangle inequality.

    From u = 0 the first step of W is zero. Corrected, log t is therefore H_t - 1 with H_t = 1 + 1/2 + ... + 1/t, on
    both sides; that is log t - 0.42 for large t.
    """
    if corrected:
        lower = upper = decayed_sum(t, 1.0) - 1.0
    else:
        lower = np.log(np.asarray(t, dtype=float))
        upper = 1.0 + lower
    return step * lower / (2 * model.B**2 * np.asarray(Lambda)), step * upper


@bound()
def score_gap_bound(model: JointModel, step: float, t: ArrayLike) -> Array:
    """Lemma 11: every `gamma_opt - gamma_t` is at least `eta omega_2 sum_{s<t} (s+1)^-2/3` (printed with t for s)."""
    return step * model.omega_2 * decayed_sum(t)


@bound()
def log_segment_bound(model: JointModel, step: float) -> float:
    """Lemma 13: between two iterates log L changes by at most `6 eta^2 B^3 + eta B`, which is at most log 8."""
    return 6 * step**2 * model.B**3 + step * model.B


@bound(norm_u=numbers(least=0), next_norm_u=numbers(least=0))
def curvature_bound(model: JointModel, norm_u: ArrayLike, next_norm_u: ArrayLike) -> Array:
    """Lemma 13: between two iterates `|hess L| <= 8 max(omega(theta_t), omega(theta_t+1)) L(theta_t)`; this over L."""
    return 8 * np.maximum(model.omega(norm_u), model.omega(next_norm_u))


@bound(B=numbers(least=0), d=POSITIVE, norm_u=numbers(least=0))
def output_bounds(B: ArrayLike, d: int, norm_u: ArrayLike) -> Mapping[str, Array]:
    """Equations (51) to (53) and what follows them, for tokens of length at most B.

    "head" and "attention" bound the change of the output per unit of |u - u'| and of |W - W'|, the latter at a head
    of norm `norm_u`; "gradient" and "curvature" the norms of its first two derivatives.
    """
    B, norm_u = np.asarray(B, dtype=float), np.asarray(norm_u, dtype=float)
    return {
        "head": B,
        "attention": 2 * B**3 * norm_u,
        "gradient": B + 2 * B**3 * norm_u,
        "curvature": 6 * d * B**5 * norm_u + 2 * np.sqrt(d) * B**3,
    }


@bound()
def log_loss_bound(model: JointModel, step: float, t: ArrayLike, *, summed: bool = False, halved: bool = True) -> Array:
    """Theorems 2 and 8: `log L(theta_t) <= -(eta omega_1 / 2) t^(1/3)`, with log L(theta_0) = 0, for t >= 1.

    `summed` gives the sharper sum `sum_{s<t} (s+1)^-2/3` of its proof in place of t^(1/3); without `halved` it is the
    line of the proof before, with `eta omega_1 - 8 eta^2 omega_0` in place of `eta omega_1 / 2`.
    """
    grown = decayed_sum(t) if summed else np.asarray(t, dtype=float) ** (1 / 3)
    pace = 0.5 * step * model.omega_1 if halved else step * model.omega_1 - 8 * step**2 * model.omega_0
    return -pace * grown


@bound()
def radius(
    model: JointModel, Lambda: float, epsilon: float, *, loss_ratio: float = LOSS_RATIO, corrected: bool = True
) -> float:
    """R_eps of Eq. (56): from this norm of W on, the negative gradient points at W_mm almost as much as at W.

    Corrected, C n^2 is `7 C B^2 Lambda n^2`: Eq. (58) carries over the inverted factor of Eq. (36).
    """
    ratio = _weight_ratio(model, Lambda, loss_ratio, corrected)
    return 2 * Lambda / epsilon * max(np.log(4 * ratio / epsilon), 5 * np.log(40 * model.B**2 * Lambda / epsilon))


@bound()
def log_alignment_time(
    model: JointModel,
    step: float,
    Lambda: float,
    epsilon: float,
    *,
    loss_ratio: float = LOSS_RATIO,
    corrected: bool = True,
) -> float:
    """log t_eps of Theorem 9, from which on its bound is claimed; the time itself is beyond any float."""
    ratio = _weight_ratio(model, Lambda, loss_ratio, corrected)
    root = max(ratio / 250, 10 * model.B**2 * Lambda) ** (1 / 3)
    return max((10 * model.B * Lambda) ** 2 / step * root * epsilon ** (-4 / 3), model.B**2 * Lambda / step)


@bound(epsilon=SHARE, norm=POSITIVE, cosine=NUMBER, loss=AT_LEAST_ZERO)
def alignment_constant(
    model: JointModel,
    step: float,
    Lambda: float,
    epsilon: float,
    *,
    norm: float,
    cosine: float,
    loss: float,
    log_time: float,
    corrected: bool = True,
) -> float:
    """C(eta, B, Lambda, eps) of Theorem 9: cos(W_t, W_mm) >= 1 - eps - C / log t from t_eps on.

    Args:
        model, step, Lambda, epsilon: as above.
        norm, cosine, loss: |W|, cos(W, W_mm) and the loss at time t_eps.
        log_time: log t_eps.
        corrected: sum up the steps of Eq. (10), whose squares add up to at most eta^2 / t_eps, and take 0 for a
            negative sum: what is divided by |W_t| >= eta log(t) / (2 B^2 Lambda) must not be negative.
    """
    front = 2 * model.B**2 * Lambda / step
    if corrected:
        return front * max(0.0, (1 - epsilon) * (norm + step**2 * np.exp(-log_time)) - norm * cosine)
    return front * (1 - epsilon) * norm * (1 - cosine / (1 - epsilon) - 2 * step * loss / norm)


@bound(log_t=numbers(infinite=True), gamma=NUMBER, form=choice("main", "appendix", "corrected"))
def margin_bound(
    model: JointModel,
    step: float,
    log_t: ArrayLike,
    Lambda: float,
    gamma: float,
    *,
    form: Literal["main", "appendix", "corrected"] = "corrected",
) -> Array:
    """Theorems 4 and 10: what `min_i y_i u_t.x_opt / |u_t|` is at least.

    With `p = eta log(t) / (8 B^2 Lambda^2)`: "main" is gamma/4 - 1/(1 + e^p), without the length rho sqrt(1.5 d) of
    the other token; "appendix" has that length and a sign turned, gamma/4 - rho sqrt(1.5 d)/(1 + e^-p); "corrected"
    is gamma/4 - rho sqrt(1.5 d)/(1 + e^p).
    """
    p = step * np.asarray(log_t, dtype=float) / (8 * model.B**2 * Lambda**2)
    length = 1.0 if form == "main" else model.rho * np.sqrt(1.5 * model.d)
    return gamma / 4 - length * expit(p if form == "appendix" else -p)


@bound(constant=AT_LEAST_ZERO)
def log_margin_time(log_time: float, constant: float, model: JointModel, Lambda: float, epsilon: float) -> float:
    """log of the time from which on Theorems 4 and 10 are claimed: of t_eps and exp(C (1/eps or (8 B^2 Lambda)^4))."""
    return max(log_time, constant * max(1 / epsilon, (8 * model.B**2 * Lambda) ** 4))


def _weight_ratio(model: JointModel, Lambda: float, loss_ratio: float, corrected: bool) -> float:
    printed = loss_ratio * model.n**2 * float(np.sqrt(2 * model.d / model.log_term))
    return 7 * model.B**2 * Lambda * printed if corrected else printed
