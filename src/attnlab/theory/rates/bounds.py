"""Explicit constants of the rates of *Implicit Bias and Fast Convergence Rates for Self-attention*.

Each takes `RateConstants`; `corrected=False` gives a formula as printed, where print and proof differ.

| name | what |
|---|---|
| `largest_step` | the step size up to which a theorem speaks |
| `norm_bounds` | Lemma 5: what |W_t| lies between |
| `radius` | Lemma 7: R_eps, the norm from which the gradient leans to W_mm |
| `first_time`, `rate_constant`, `cosine_bound` | Theorem 5: t_0, C, and 1 - C (log t)^2 / t |
| `softmax_time`, `softmax_decay`, `softmax_bound` | Lemma 8: from when on, and how much, a best token is attended to |
| `descent_constant`, `descent_bound` | Theorem 6: C_eps of gradient descent, and 1 - eps - C_eps / |W_t| |
| `polyak_constants` | Theorem 7: its constants for the Polyak step |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import lambertw

from attnlab.data.tokens import Array
from attnlab.theory.formula import AT_LEAST_ZERO, POSITIVE, SHARE, choice, formula, numbers, or_infinite
from attnlab.theory.rates.constants import OF_RATES, RateConstants

SHARES = numbers(above=0, below=1)
ANY = numbers(infinite=True)
TIMES = numbers(least=0, infinite=True)


@formula(constants=OF_RATES, rule=choice("ngd", "gd"))
def largest_step(constants: RateConstants, rule: Literal["ngd", "gd"] = "ngd", *, corrected: bool = True) -> float:
    """The largest step size of Theorem 5, `log(2T - 1) / (2 B^2)`, or of Theorem 6, `log(2T - 1) / (B^4 zeta)`.

    Theorem 6 as printed takes zeta from Table 1. For the Polyak step see `polyak_constants`.
    """
    room = np.log(2.0 * constants.T - 1.0)
    if rule == "ngd":
        return float(room / (2.0 * constants.B**2))
    return float(room / (constants.B**4 * (constants.zeta if corrected else constants.zeta_printed)))


@formula(constants=OF_RATES, step=AT_LEAST_ZERO, t=TIMES)
def norm_bounds(constants: RateConstants, step: float, t: ArrayLike) -> tuple[Array, Array]:
    """Lemma 5, t >= 1: `step t / (4 B^2 Lambda) <= |W_t| <= 2 step max(1, 1 / (4 B^2 Lambda)) t`."""
    t = np.asarray(t, dtype=np.float64)
    share = 1.0 / (4.0 * constants.condition)
    return step * share * t, 2.0 * step * max(1.0, share) * t


@formula(constants=OF_RATES, eps=SHARES)
def radius(constants: RateConstants, eps: ArrayLike, *, corrected: bool = True) -> Array:
    """R_eps of Lemma 7: from |W_t| >= R_eps on, `<-grad, W_mm>/|W_mm| >= (1 - eps) <-grad, W_t>/|W_t|`.

        R_eps = (2 Lambda / eps) max( log(64 n B^2 Lambda Upsilon T^3 / eps), 5 log(20 T B^2 Lambda / eps) )

    Printed, the first logarithm is `log(4 n Upsilon T^3 / (B^2 Lambda eps))`: Eq. (36) has a factor upside down.
    """
    eps_ = np.asarray(eps, dtype=np.float64)
    c = constants
    weight = 64.0 * c.condition if corrected else 4.0 / c.condition
    by_samples = np.log(weight * c.n * c.upsilon * c.T**3 / eps_)
    by_tokens = 5.0 * np.log(20.0 * c.T * c.condition / eps_)
    return 2.0 * c.Lambda / eps_ * np.maximum(by_samples, by_tokens)


@formula(constants=OF_RATES, step=POSITIVE)
def first_time(constants: RateConstants, step: float, *, corrected: bool = True) -> float:
    """t_0 of Theorem 5: `max( (10 B Lambda / sqrt(step))^3, step T max(16 n Upsilon T^2, 5) / (20 Lambda) )`.

    Printed, the second part is `log(step T max(n Upsilon T^2 / (B^2 Lambda)^2, 5) / (20 Lambda))`: the proof asks for
    `log t >= log(...)`, that is t >= the argument, and the argument rests on the printed R_eps.
    """
    c = constants
    by_eps = (10.0 * c.B * c.Lambda / np.sqrt(step)) ** 3
    samples = 16.0 * c.n * c.upsilon * c.T**2 if corrected else c.n * c.upsilon * c.T**2 / c.condition**2
    argument = step * c.T * max(samples, 5.0) / (20.0 * c.Lambda)
    return float(max(by_eps, argument if corrected else np.log(argument)))


@formula(constants=OF_RATES, step=POSITIVE, lag=ANY)
def rate_constant(constants: RateConstants, step: float, *, lag: ArrayLike = 0.0) -> Array:
    """C of Theorem 5: `(4 B^2 Lambda / step) (lag + 2 B^2 Lambda (40 Lambda + step))`.

    Args:
        constants: of the data.
        step: step size of normalized GD.
        lag: `|W_t0| - <W_t0, W_mm> / |W_mm|`, which is `|W_t0| (1 - cosine)`; never negative.
    """
    c = constants
    return 4.0 * c.condition / step * (np.asarray(lag) + 2.0 * c.condition * (40.0 * c.Lambda + step))


@formula(C=ANY, t=TIMES)
def cosine_bound(C: ArrayLike, t: ArrayLike) -> Array:
    """`1 - C (log t)^2 / t`, the cosine of W_t and W_mm that Theorem 5 promises for t >= t_0. Below -1 it is empty."""
    t = np.asarray(t, dtype=np.float64)
    return 1.0 - np.asarray(C) * np.log(t) ** 2 / t


@formula(constants=OF_RATES, step=POSITIVE, C=or_infinite)
def softmax_time(constants: RateConstants, step: float, C: float, *, corrected: bool = True) -> float:
    """From when on Lemma 8 speaks: t >= t_0 and `t / (log t)^2 >= 2^11 (B^2 Lambda)^4 C`.

    Printed: `t >= 2^11 (B^2 Lambda)^2 C`; the square of the distance, `2 C (log t)^2 / t`, lost its logarithm, and two
    factors B^2 Lambda are missing.
    """
    t0 = first_time(constants, step, corrected=corrected)
    if not corrected:
        return float(max(t0, 2.0**11 * constants.condition**2 * C))
    # t / log^2 t = M, t > e^2: with s = log t, e^(s/2) = sqrt(M) s, so s = -2 W_{-1}(-1 / (2 sqrt M)).
    level = 2.0**11 * constants.condition**4 * C
    if level <= np.exp(2.0) / 4.0:  # the least of t / log^2 t for t > 1
        return t0
    inner = -0.5 / np.sqrt(level)
    return float(max(t0, np.exp(-2.0 * lambertw(inner, -1).real)))


@formula(constants=OF_RATES, step=AT_LEAST_ZERO, t=TIMES)
def softmax_decay(constants: RateConstants, step: float, t: ArrayLike) -> Array:
    """The exponent of Lemma 8, `step t / (8 B^2 Lambda^2)`: (1 - phi) / phi is at most (T - 1) e^-decay."""
    return step * np.asarray(t, dtype=np.float64) / (8.0 * constants.condition * constants.Lambda)


@formula(constants=OF_RATES, step=AT_LEAST_ZERO, t=TIMES)
def softmax_bound(constants: RateConstants, step: float, t: ArrayLike) -> Array:
    """Lemma 8: the attention of every best token is at least `1 / (1 + (T - 1) exp(-step t / (8 B^2 Lambda^2)))`."""
    return 1.0 / (1.0 + (constants.T - 1.0) * np.exp(-softmax_decay(constants, step, t)))


@formula(constants=OF_RATES, step=POSITIVE, eps=SHARE, norm=ANY, cosine=ANY, loss=ANY)
def descent_constant(
    constants: RateConstants,
    step: float,
    eps: float,
    *,
    norm: ArrayLike,
    cosine: ArrayLike,
    loss: ArrayLike,
    corrected: bool = True,
) -> Array:
    """C_eps of Theorem 6, for gradient descent that has |W| = `norm`, this cosine with W_mm and this loss at t_eps.

        C_eps = (1 - eps) |W| ( 1 - cosine / (1 - eps) + 2 step loss / |W| )

    Printed, there is a factor `2 B^2 Lambda / step` in front and a minus before the last term.
    """
    share = 1.0 - eps
    norm, cosine, loss = (np.asarray(a, dtype=np.float64) for a in (norm, cosine, loss))
    sign, front = (1.0, 1.0) if corrected else (-1.0, 2.0 * constants.condition / step)
    return front * (share * norm - cosine * norm + sign * share * 2.0 * step * loss)


@formula(eps=AT_LEAST_ZERO, C=ANY, norm=ANY)
def descent_bound(eps: float, C: ArrayLike, norm: ArrayLike) -> Array:
    """`1 - eps - C_eps / |W_t|`, the cosine that Theorem 6 promises once |W_t| >= max(R_eps, 1/2)."""
    return 1.0 - eps - np.asarray(C) / np.asarray(norm, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class PolyakConstants:
    """Constants of Theorem 7, while every best token has attention between 1 - beta and beta.

    Attributes:
        omega_1, omega_2: `omega_1 loss <= |gradient| <= omega_2 loss`.
        ratio: at least loss / (loss - least loss); the theorem writes nu and upsilon, and does not say what they are.
        largest_step: `omega_1 log(2T - 1) / (2 B^2)`.
        first_time: t_0.
        C0, C1: `C = C0 (lag + C1)`, with the lag of `rate_constant`.
    """

    omega_1: float
    omega_2: float
    ratio: float
    largest_step: float
    first_time: float
    C0: float
    C1: float

    @formula(lag=ANY)
    def C(self, lag: ArrayLike = 0.0) -> Array:
        """C of the bound `1 - C (log t)^2 / t`."""
        return self.C0 * (np.asarray(lag) + self.C1)


@formula(constants=OF_RATES, step=POSITIVE, beta=SHARE)
def polyak_constants(constants: RateConstants, step: float, beta: float, *, corrected: bool = True) -> PolyakConstants:
    """Constants of Theorem 7 for the Polyak step `step (loss - least loss) / |gradient|^2` without a cap.

        omega_1 = beta (1 - beta) least gap / Lambda,   omega_2 = B^2 largest gap / 2
        ratio = 1 / (1 - exp(-(1 - beta) least gap))
        t_0 = omega_2 ratio t_0(Theorem 5)
        C = (4 B^2 Lambda omega_2 ratio / step) (lag + C1)
        C1 = (2 B^2 Lambda / omega_1) (40 Lambda + step ratio omega_2 / omega_1)

    That is as printed. Corrected, eps_t carries the factor omega_2 ratio as the norm does: `40 Lambda omega_2 ratio` in
    C, and `(10 B Lambda)^3 (omega_2 ratio / step)^(3/2)` in t_0, whose second part has step / (omega_2 ratio) for step.
    """
    c = constants
    omega_1 = beta * (1.0 - beta) * c.least_gap / c.Lambda
    omega_2 = 0.5 * c.B**2 * c.largest_gap
    ratio = float(-1.0 / np.expm1(-(1.0 - beta) * c.least_gap))
    slow = omega_2 * ratio
    t0 = first_time(c, step / slow) if corrected else slow * first_time(c, step, corrected=False)
    C1 = 2.0 * c.condition / omega_1 * (40.0 * c.Lambda * (slow if corrected else 1.0) + step * slow / omega_1)
    return PolyakConstants(
        omega_1=omega_1,
        omega_2=omega_2,
        ratio=ratio,
        first_time=t0,
        C0=4.0 * c.condition * slow / step,
        C1=C1,
        largest_step=omega_1 * largest_step(c),
    )
