"""Joint training of head and attention: the conditions, constants and bounds of Section 4 and Appendix B of *Implicit
Bias and Fast Convergence Rates for Self-attention*.

The data model (DM) has one planted token N(0, alpha^2 rho^2 I_d) per sequence among others N(0, rho^2 I_d); training
follows Eq. (10), `attnlab.optim.joint_decay`. A `JointModel` holds the numbers of the data model and the constants made
from them. Bounds are plain functions of a model, the step size eta and a time t, and take arrays of times.

`corrected=False` gives a formula as printed; `corrected=True` what its proof gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.theory.assumptions import AssumptionCheck

# Largest ratio of two samples' losses that Lemma 11 allows: as printed, and as its second case needs.
LOSS_RATIO, LOSS_RATIO_NEEDED = 24.0, 48.0
# Sums of (s + 1)^-p are taken term by term up to here, then by the Euler-Maclaurin formula.
SUMMED = 1000


@dataclass(frozen=True, kw_only=True)
class JointModel:
    """The numbers of the data model, and the constants of Appendix B.

    Attributes:
        n, d: sequences and dimension.
        alpha, rho: size of the planted token over that of the others, and deviation of the others.
        delta: probability with which the data may be unusual.

    >>> round(JointModel(n=10, d=100, alpha=3.0, rho=0.1).B, 3)
    3.674
    """

    n: int
    d: float
    alpha: float
    rho: float
    delta: float = 0.1

    def __post_init__(self) -> None:
        for name in ("n", "d", "alpha", "rho"):
            if not getattr(self, name) > 0:
                raise InputError(message(f"`{name}` is {getattr(self, name)}; wanted a positive number."))
        if not 0 < self.delta < 1:
            raise InputError(message(f"`delta` is {self.delta}; wanted a probability between 0 and 1."))

    @classmethod
    def of(
        cls, tokens: Tokens, *, planted: ArrayLike | None = None, d: float | None = None, delta: float = 0.1
    ) -> JointModel:
        """A model with alpha and rho read from the mean squared lengths of the tokens.

        Args:
            tokens: data, with or without a trial axis.
            planted: which token is the planted one; default `info["planted"]`.
            d: dimension that the tokens come from; default `info["dimension"]`, or that of the tokens.
            delta: as in the class.
        """
        d = float(tokens.info.get("dimension", tokens.d)) if d is None else d
        lead, others = _parts(tokens, planted)
        rho = float(np.sqrt(np.mean(np.sum(others**2, -1)) / d))
        return cls(n=tokens.n, d=d, alpha=float(np.sqrt(np.mean(np.sum(lead**2, -1)) / d)) / rho, rho=rho, delta=delta)

    @property
    def B(self) -> float:
        """alpha rho sqrt(1.5 d), the bound on token lengths."""
        return self.alpha * self.rho * float(np.sqrt(1.5 * self.d))

    @property
    def log_term(self) -> float:
        """log(10 n^2 / delta)."""
        return float(np.log(10 * self.n**2 / self.delta))

    @property
    def omega_0(self) -> float:
        """13 (B or 1)^5 (B or d), whichever is larger."""
        return 13 * max(self.B, 1.0) ** 5 * max(self.B, self.d)

    @property
    def omega_1(self) -> float:
        """(alpha rho / 8) sqrt(d / n), of the gradient bound."""
        return self.alpha * self.rho / 8 * float(np.sqrt(self.d / self.n))

    @property
    def omega_2(self) -> float:
        """(alpha rho / n) sqrt(log(10 n^2 / delta)), of the score gap."""
        return self.alpha * self.rho / self.n * float(np.sqrt(self.log_term))

    def omega(self, norm_u: ArrayLike) -> Array:
        """omega(theta) = omega_0 (|u| or 1)^2, of the curvature bound."""
        return self.omega_0 * np.maximum(norm_u, 1.0) ** 2

    @property
    def step_caps(self) -> dict[str, float]:
        """The four caps of Condition 2 on the step size, by formula."""
        a, r, n, B = self.alpha, self.rho, self.n, self.B
        return {
            "1/(18 alpha^2 rho^2 d)": 1 / (18 * (a * r) ** 2 * self.d),
            "alpha rho/(160 n)": a * r / (160 * n),
            "log(2)/(3 B)": float(np.log(2)) / (3 * B),
            "B/(128 omega_0 sqrt(1.5 n))": B / (128 * self.omega_0 * float(np.sqrt(1.5 * n))),
        }

    def least_dimension(self, constant: float = 1.0) -> float:
        """constant * alpha^4 n^4 log(10 n^2 / delta)."""
        return constant * (self.alpha * self.n) ** 4 * self.log_term

    def proof_dimension(self, loss_ratio: float = LOSS_RATIO_NEEDED) -> float:
        """(2^10 C alpha^2 n^2)^2 log(10 n^2 / delta): what the proof of Lemma 11 asks of d."""
        return (2**10 * loss_ratio * (self.alpha * self.n) ** 2) ** 2 * self.log_term


def condition_1(
    model: JointModel,
    step: float,
    *,
    form: Literal["complete", "main", "proof"] = "complete",
    constant: float = 1.0,
    start: float = 0.0,
) -> AssumptionCheck:
    """Condition 1 in its main-text form, in the complete form (Condition 2), or as the proofs use it.

    Args:
        model: the data model.
        step: eta.
        form: "complete"; "main" has one cap on the step, with the constant 2038 that its last cap implies; "proof" is
            complete, with what the proofs ask of d and eta in place of the absolute constant.
        constant: the absolute constant in `d >= constant alpha^4 n^4 log(10 n^2/delta)`, which the paper leaves open.
        start: norm of the initial weights.

    Returns:
        `slack` is the least ratio of what there is to what is wanted; it holds from 1 on. Evidence: `ratios`, that
        ratio for each part.

    >>> fig3 = JointModel(n=10, d=100, alpha=3.0, rho=0.1)
    >>> condition_1(fig3, 0.002).holds
    False
    """
    dimension = model.proof_dimension() if form == "proof" else model.least_dimension(constant)
    if form == "main":
        caps = {"1/(C_2 sqrt(n) B^4 (B or d))": 1 / (2038 * np.sqrt(model.n) * model.B**4 * max(model.B, model.d))}
    else:
        caps = model.step_caps
    if form == "proof":
        caps["alpha rho/(480 n B^3)"] = model.alpha * model.rho / (480 * model.n * model.B**3)
    ratios = {
        "zero start": np.inf if start == 0 else 0.0,
        "alpha / 6": model.alpha / 6,
        "d / least d": model.d / dimension,
        "B / 1": model.B,
        "n / 2": model.n / 2,
        **{f"{name} / eta": cap / step for name, cap in caps.items()},
    }
    ratios = {name: float(ratio) for name, ratio in ratios.items()}
    slack = min(ratios.values())
    return AssumptionCheck(name=f"Condition 1 ({form})", holds=slack >= 1, slack=slack, evidence={"ratios": ratios})


def near_orthogonality(
    tokens: Tokens, model: JointModel, *, planted: ArrayLike | None = None, within_samples: bool = False
) -> dict[str, Array]:
    """The five events of Lemma 9, each as the least ratio of bound to value: at least 1 where the event happens.

    Args:
        tokens: data, with or without a trial axis.
        model: its data model.
        planted: which token is the planted one; default `info["planted"]`.
        within_samples: also compare the planted token with others of its own sequence in E5, as later proofs do.

    Returns:
        "E1" to "E5", each of shape () or (trials,). Of two samples at least.
    """
    lead, others = _parts(tokens, planted)  # (..., n, d) and (..., n, T-1, d)
    q = 2 * model.rho**2 * np.sqrt(model.d * model.log_term)
    apart = ~np.eye(tokens.n, dtype=bool)
    a, size = model.alpha, model.rho**2 * model.d

    def norms(x: Array, scale: float, axes: tuple[int, ...]) -> Array:
        squared = np.sum(x**2, -1) / (scale * size)
        return np.minimum(squared.min(axes) / 0.5, 1.5 / squared.max(axes))

    def products(values: Array, bound: float, used: np.ndarray, axes: tuple[int, ...]) -> Array:
        with np.errstate(divide="ignore"):  # orthogonal tokens: inf
            return bound / np.where(used, np.abs(values), 0.0).max(axes)

    both = lead @ np.swapaxes(lead, -1, -2)
    rest = np.einsum("...isd,...jtd->...ijst", others, others)
    mixed = np.einsum("...id,...jtd->...ijt", lead, others)
    return {
        "E1": norms(lead, a**2, (-1,)),
        "E2": norms(others, 1.0, (-2, -1)),
        "E3": products(both, a**2 * q, apart, (-2, -1)),
        "E4": products(rest, q, apart[..., None, None], (-4, -3, -2, -1)),
        "E5": products(mixed, a * q, (apart | within_samples)[..., None], (-3, -2, -1)),
    }


def separation(tokens: Tokens, model: JointModel, *, planted: ArrayLike | None = None) -> Array:
    """Lemma 12: the least `<y_j (x_opt + x_t), u/|u|>` with `u = sum_i y_i x_opt`, over `(alpha rho/4) sqrt(d/n)`.

    At least 1 where the lemma holds; shape () or (trials,).
    """
    lead, others = _parts(tokens, planted)
    u = np.einsum("...i,...id->...d", tokens.y, lead)
    u = u / np.linalg.norm(u, axis=-1, keepdims=True)
    values = tokens.y[..., None] * np.einsum("...jtd,...d->...jt", lead[..., None, :] + others, u)
    return values.min((-2, -1)) / (model.alpha * model.rho / 4 * np.sqrt(model.d / model.n))


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


def head_norm_bound(step: float, t: ArrayLike, *, summed: bool = False, power: float = 2 / 3) -> Array:
    """Lemma 10: `|u_t| <= eta sum_{s<t} (s+1)^-p <= eta t^(1-p) / (1-p)`, the sum or what it is at most."""
    if summed:
        return step * decayed_sum(t, power)
    return step * np.asarray(t, dtype=float) ** (1 - power) / (1 - power)


def attention_norm_bounds(
    model: JointModel, step: float, t: ArrayLike, Lambda: ArrayLike, *, corrected: bool = False
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


def score_gap_bound(model: JointModel, step: float, t: ArrayLike) -> Array:
    """Lemma 11: every `gamma_opt - gamma_t` is at least `eta omega_2 sum_{s<t} (s+1)^-2/3` (printed with t for s)."""
    return step * model.omega_2 * decayed_sum(t)


def log_segment_bound(model: JointModel, step: float) -> float:
    """Lemma 13: between two iterates log L changes by at most `6 eta^2 B^3 + eta B`, which is at most log 8."""
    return 6 * step**2 * model.B**3 + step * model.B


def curvature_bound(model: JointModel, norm_u: ArrayLike, next_norm_u: ArrayLike) -> Array:
    """Lemma 13: between two iterates `|hess L| <= 8 max(omega(theta_t), omega(theta_t+1)) L(theta_t)`; this over L."""
    return 8 * np.maximum(model.omega(norm_u), model.omega(next_norm_u))


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


def log_loss_bound(model: JointModel, step: float, t: ArrayLike, *, summed: bool = False, halved: bool = True) -> Array:
    """Theorems 2 and 8: `log L(theta_t) <= -(eta omega_1 / 2) t^(1/3)`, with log L(theta_0) = 0, for t >= 1.

    `summed` gives the sharper sum `sum_{s<t} (s+1)^-2/3` of its proof in place of t^(1/3); without `halved` it is the
    line of the proof before, with `eta omega_1 - 8 eta^2 omega_0` in place of `eta omega_1 / 2`.
    """
    grown = decayed_sum(t) if summed else np.asarray(t, dtype=float) ** (1 / 3)
    pace = 0.5 * step * model.omega_1 if halved else step * model.omega_1 - 8 * step**2 * model.omega_0
    return -pace * grown


def radius(
    model: JointModel, Lambda: float, epsilon: float, *, loss_ratio: float = LOSS_RATIO, corrected: bool = False
) -> float:
    """R_eps of Eq. (56): from this norm of W on, the negative gradient points at W_mm almost as much as at W.

    Corrected, C n^2 is `7 C B^2 Lambda n^2`: Eq. (58) carries over the inverted factor of Eq. (36).
    """
    ratio = _weight_ratio(model, Lambda, loss_ratio, corrected)
    return 2 * Lambda / epsilon * max(np.log(4 * ratio / epsilon), 5 * np.log(40 * model.B**2 * Lambda / epsilon))


def log_alignment_time(
    model: JointModel,
    step: float,
    Lambda: float,
    epsilon: float,
    *,
    loss_ratio: float = LOSS_RATIO,
    corrected: bool = False,
) -> float:
    """log t_eps of Theorem 9, from which on its bound is claimed; the time itself is beyond any float."""
    ratio = _weight_ratio(model, Lambda, loss_ratio, corrected)
    root = max(ratio / 250, 10 * model.B**2 * Lambda) ** (1 / 3)
    return max((10 * model.B * Lambda) ** 2 / step * root * epsilon ** (-4 / 3), model.B**2 * Lambda / step)


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
    corrected: bool = False,
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


def log_margin_time(log_time: float, constant: float, model: JointModel, Lambda: float, epsilon: float) -> float:
    """log of the time from which on Theorems 4 and 10 are claimed: of t_eps and exp(C (1/eps or (8 B^2 Lambda)^4))."""
    return max(log_time, constant * max(1 / epsilon, (8 * model.B**2 * Lambda) ** 4))


def _weight_ratio(model: JointModel, Lambda: float, loss_ratio: float, corrected: bool) -> float:
    printed = loss_ratio * model.n**2 * float(np.sqrt(2 * model.d / model.log_term))
    return 7 * model.B**2 * Lambda * printed if corrected else printed


def _parts(tokens: Tokens, planted: ArrayLike | None) -> tuple[Array, Array]:
    """Planted tokens (..., n, d) and the others (..., n, T - 1, d)."""
    if planted is None:
        if "planted" not in tokens.info:
            raise InputError(message("These tokens do not say which one is planted.", "pass `planted=`"))
        planted = tokens.info["planted"]
    given = np.asarray(planted)
    if given.shape != tokens.x.shape[:-2]:
        raise InputError(message(f"`planted` has shape {given.shape}; wanted {tokens.x.shape[:-2]}."))
    is_planted = np.arange(tokens.T) == given[..., None]
    lead = np.take_along_axis(tokens.x, given[..., None, None], axis=-2)[..., 0, :]
    return lead, tokens.x[~is_planted].reshape(*given.shape, tokens.T - 1, tokens.d)
