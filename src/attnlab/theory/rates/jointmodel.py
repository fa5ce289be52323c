"""The data model of joint training: its constants, its conditions, and whether data are like it.

Section 4 and Appendix B of *Implicit Bias and Fast Convergence Rates for Self-attention*; bounds are in `joint`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import instance, number, whole_array
from attnlab.data.scale import lengths, ordinary, rescaled
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.theory.check import Check, at_least
from attnlab.theory.formula import AT_LEAST_ZERO, POSITIVE, SHARE, choice, formula, keep, numbers, of_class

# Largest ratio of two samples' losses that Lemma 11 allows: as printed, and as its second case needs.
LOSS_RATIO, LOSS_RATIO_NEEDED = 24.0, 48.0


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
        keep(self, n=POSITIVE, d=POSITIVE, alpha=POSITIVE, rho=POSITIVE, delta=SHARE)

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
        instance("tokens", tokens, Tokens, "al.Tokens")
        d = number("info['dimension']", tokens.info.get("dimension", tokens.d)) if d is None else number("d", d)
        if not d > 0:
            raise InputError(message(f"`d` is {d:g}; wanted a dimension above 0."))
        lead, others = _parts(tokens, planted)
        deviations = _deviation(lead, d), _deviation(others, d)
        if not all(0 < one < np.inf for one in deviations):
            problem = "`tokens` have planted or other tokens that are all zero, or of lengths beyond float64"
            raise InputError(message(f"{problem}.", "the model needs both to be random"))
        return cls(n=tokens.n, d=d, alpha=deviations[0] / deviations[1], rho=deviations[1], delta=delta)

    @property
    @formula()
    def B(self) -> float:
        """alpha rho sqrt(1.5 d), the bound on token lengths."""
        return self.alpha * self.rho * float(np.sqrt(1.5 * self.d))

    @property
    @formula()
    def log_term(self) -> float:
        """log(10 n^2 / delta)."""
        return float(np.log(10 * self.n**2 / self.delta))

    @property
    @formula()
    def omega_0(self) -> float:
        """13 (B or 1)^5 (B or d), whichever is larger."""
        return 13 * max(self.B, 1.0) ** 5 * max(self.B, self.d)

    @property
    @formula()
    def omega_1(self) -> float:
        """(alpha rho / 8) sqrt(d / n), of the gradient bound."""
        return self.alpha * self.rho / 8 * float(np.sqrt(self.d / self.n))

    @property
    @formula()
    def omega_2(self) -> float:
        """(alpha rho / n) sqrt(log(10 n^2 / delta)), of the score gap."""
        return self.alpha * self.rho / self.n * float(np.sqrt(self.log_term))

    @formula(norm_u=numbers(least=0))
    def omega(self, norm_u: ArrayLike) -> Array:
        """omega(theta) = omega_0 (|u| or 1)^2, of the curvature bound."""
        return self.omega_0 * np.maximum(norm_u, 1.0) ** 2

    @property
    @formula()
    def step_caps(self) -> dict[str, float]:
        """The four caps of Condition 2 on the step size, by formula."""
        a, r, n, B = self.alpha, self.rho, self.n, self.B
        return {
            "1/(18 alpha^2 rho^2 d)": 1 / (18 * (a * r) ** 2 * self.d),
            "alpha rho/(160 n)": a * r / (160 * n),
            "log(2)/(3 B)": float(np.log(2)) / (3 * B),
            "B/(128 omega_0 sqrt(1.5 n))": B / (128 * self.omega_0 * float(np.sqrt(1.5 * n))),
        }

    @formula(constant=AT_LEAST_ZERO)
    def least_dimension(self, constant: float = 1.0) -> float:
        """constant * alpha^4 n^4 log(10 n^2 / delta)."""
        return constant * (self.alpha * self.n) ** 4 * self.log_term

    @formula(loss_ratio=POSITIVE)
    def proof_dimension(self, loss_ratio: float = LOSS_RATIO_NEEDED) -> float:
        """(2^10 C alpha^2 n^2)^2 log(10 n^2 / delta): what the proof of Lemma 11 asks of d."""
        return (2**10 * loss_ratio * (self.alpha * self.n) ** 2) ** 2 * self.log_term


def _deviation(vectors: Array, d: float) -> float:
    """The root of the mean squared length over d."""
    scaled, e = ordinary(vectors)
    with np.errstate(over="ignore"):
        return float(rescaled(np.sqrt(np.mean(np.sum(scaled**2, -1)) / d), e))


OF_MODEL = of_class(JointModel, "al.theory.JointModel")
FORM = choice("complete", "main", "proof")


@formula(model=OF_MODEL, step=POSITIVE, form=FORM, constant=AT_LEAST_ZERO, start=AT_LEAST_ZERO)
def condition_1(
    model: JointModel,
    step: float,
    *,
    form: Literal["complete", "main", "proof"] = "complete",
    constant: float = 1.0,
    start: float = 0.0,
) -> Check:
    """Condition 1 in its main-text form, in the complete form (Condition 2), or as the proofs use it.

    Args:
        model: the data model.
        step: eta.
        form: "complete"; "main" has one cap on the step, with the constant 2038 that its last cap implies; "proof" is
            complete, with what the proofs ask of d and eta in place of the absolute constant.
        constant: the absolute constant in `d >= constant alpha^4 n^4 log(10 n^2/delta)`, which the paper leaves open.
        start: norm of the initial weights.

    Returns:
        `margin` is the least ratio of what there is to what is wanted; it holds from 1 on. Evidence: `ratios`, that
        ratio for each part.

    >>> fig3 = JointModel(n=10, d=100, alpha=3.0, rho=0.1)
    >>> condition_1(fig3, 0.002).holds
    False
    """
    dimension = model.proof_dimension() if form == "proof" else model.least_dimension(constant)
    if form == "main":
        caps = {
            "1/(C_2 sqrt(n) B^4 (B or d))": 1 / (2038 * np.sqrt(float(model.n)) * model.B**4 * max(model.B, model.d))
        }
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
    return at_least(f"Condition 1 ({form})", min(ratios.values()), 1.0, {"ratios": ratios})


@formula(model=OF_MODEL)
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
    different = ~np.eye(tokens.n, dtype=bool)
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
        "E3": products(both, a**2 * q, different, (-2, -1)),
        "E4": products(rest, q, different[..., None, None], (-4, -3, -2, -1)),
        "E5": products(mixed, a * q, (different | within_samples)[..., None], (-3, -2, -1)),
    }


@formula(model=OF_MODEL)
def separation(tokens: Tokens, model: JointModel, *, planted: ArrayLike | None = None) -> Array:
    """Lemma 12: the least `<y_j (x_opt + x_t), u/|u|>` with `u = sum_i y_i x_opt`, over `(alpha rho/4) sqrt(d/n)`.

    At least 1 where the lemma holds; shape () or (trials,).
    """
    lead, others = _parts(tokens, planted)
    u = np.einsum("...i,...id->...d", tokens.y, lead)
    sizes = lengths(u)
    if not (sizes > 0).all() or not np.isfinite(sizes).all():
        raise InputError(message("`tokens` have planted tokens whose sum, by label, is 0 or beyond float64."))
    u = u / sizes[..., None]
    values = tokens.y[..., None] * np.einsum("...jtd,...d->...jt", lead[..., None, :] + others, u)
    return values.min((-2, -1)) / (model.alpha * model.rho / 4 * np.sqrt(model.d / model.n))


def _parts(tokens: Tokens, planted: ArrayLike | None) -> tuple[Array, Array]:
    """Planted tokens (..., n, d) and the others (..., n, T - 1, d)."""
    instance("tokens", tokens, Tokens, "al.Tokens")
    if tokens.T < 2:
        raise InputError(message("`tokens` have T = 1; wanted a planted token and others.", "use T >= 2"))
    if planted is None and "planted" not in tokens.info:
        raise InputError(message("`tokens` do not say which one is planted.", "pass `planted=`"))
    chosen = tokens.info["planted"] if planted is None else planted
    given = whole_array("planted", chosen, "the number of a token for each sequence")
    if given.shape != tokens.x.shape[:-2]:
        raise InputError(message(f"`planted` has shape {given.shape}; wanted {tokens.x.shape[:-2]}."))
    if given.min() < 0 or given.max() >= tokens.T:
        raise InputError(message(f"`planted` has numbers from {given.min()} to {given.max()}; T = {tokens.T}."))
    is_planted = np.arange(tokens.T) == given[..., None]
    lead = np.take_along_axis(tokens.x, given[..., None, None], axis=-2)[..., 0, :]
    return lead, tokens.x[~is_planted].reshape(*given.shape, tokens.T - 1, tokens.d)
