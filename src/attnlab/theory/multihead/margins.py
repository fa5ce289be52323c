"""Margins of a linear model, of the linearized model and of attention on the tokenized mixture.

Section 5 and appendices D to F of *On the Optimization and Generalization of Multi-head Attention*. All are lower
bounds that hold for every sequence of the mixture whose noise keeps to its bounds.

| name | what |
|---|---|
| `Mixture` | the constants of the mixture |
| `gamma_lin` | margin of the linear oracle |
| `gamma_star` | Eq. (7): margin of the model linearized after phase one |
| `gamma_attn`, `attention_scale` | Proposition 3: margin of attention that is saturated up to eps, and Gamma_eps |
| `saturation_scale`, `score_bounds` | Lemma 18 and what feeds it |
| `oracle_weights`, `theta_star`, `theta_opt` | U* and W*, as they are, and normalized |
| `largest_ordered_signal` | up to which S the margins are in the order that the paper gives |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import enough_memory, finite_array, instance, whole
from attnlab.data.scale import length
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.theory.arrays import within_float64
from attnlab.theory.formula import (
    AT_LEAST_ONE,
    AT_LEAST_ZERO,
    NUMBER,
    POSITIVE,
    SHARE,
    formula,
    keep,
    numbers,
    of_class,
)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Constants of a tokenized mixture whose noise is bounded (Assumption 3).

    Attributes:
        T: tokens per sequence.
        M: patterns of irrelevant tokens.
        S: norm of every pattern.
        zeta: share of relevant tokens.
        Z_mu: bound on |<z, mu>|.
        Z_nu: bound on M |<z, nu_j>|.
        Z: bound on |z|.

    >>> round(gamma_lin(Mixture(T=10, M=2, S=2.0, zeta=0.1)), 4)
    0.4472
    """

    T: int
    M: int
    S: float
    zeta: float
    Z_mu: float = 0.0
    Z_nu: float = 0.0
    Z: float = 0.0

    def __post_init__(self) -> None:
        keep(self, T=AT_LEAST_ONE, M=AT_LEAST_ONE, S=POSITIVE, zeta=SHARE)
        for name in ("Z_mu", "Z_nu", "Z"):
            if isinstance(getattr(self, name), float) and getattr(self, name) == np.inf:
                hint = "Gaussian noise has none; draw with noise='bounded'"
                raise InputError(message(f"`{name}` is inf; wanted a finite bound, at least 0.", hint))
            keep(self, **{name: AT_LEAST_ZERO})

    @classmethod
    def of(cls, tokens: Tokens) -> Mixture:
        """The constants of tokens drawn by `tokenized_mixture`."""
        instance("tokens", tokens, Tokens, "al.Tokens")
        names = ("M", "S", "zeta", "Z_mu", "Z_nu", "Z")
        if tokens.info.get("family") != "tokenized_mixture" or not all(name in tokens.info for name in names):
            raise InputError(message("`tokens` are not of the family tokenized_mixture."))
        return cls(T=tokens.T, **{name: tokens.info[name] for name in names})

    @property
    def noise(self) -> float:
        """Z-bar, the larger of Z_mu and Z_nu."""
        return max(self.Z_mu, self.Z_nu)

    @property
    @formula()
    def R(self) -> float:
        """Bound on token norms: `sqrt(S^2 + Z^2 + 2 Z_nu / M)`, or 1 if that is less."""
        return max(1.0, float(np.sqrt(self.S**2 + self.Z**2 + 2.0 * self.Z_nu / self.M)))


OF_MIXTURE = of_class(Mixture, "al.theory.multihead.Mixture")


@formula(mixture=OF_MIXTURE)
def gamma_lin(mixture: Mixture) -> float:
    """Margin of `<U, x>`, rows of U along the oracle, |U| = 1: `S sqrt(T/2) (zeta - 2 (1 - zeta) Z_mu / S^2)`."""
    m = mixture
    return float(m.S * np.sqrt(float(m.T) / 2.0) * (m.zeta - 2.0 * (1.0 - m.zeta) * m.Z_mu / m.S**2))


@formula(mixture=OF_MIXTURE)
def attention_gain(mixture: Mixture) -> float:
    """First term of Eq. (7), what training W adds:

    `T (1 - zeta) zeta (zeta S^4 - 7 Zbar S^2 - 12 Zbar^2 - 16 Zbar^3 / S^2) / (4 sqrt(2 (M + 1)))`.
    """
    m, z = mixture, mixture.noise
    bracket = m.zeta * m.S**4 - 7.0 * z * m.S**2 - 12.0 * z**2 - 16.0 * z**3 / m.S**2
    return float(m.T * (1.0 - m.zeta) * m.zeta * bracket / (4.0 * np.sqrt(2.0 * (float(m.M) + 1.0))))


@formula(mixture=OF_MIXTURE, P=AT_LEAST_ZERO, power=NUMBER)
def gamma_star(mixture: Mixture, P: float, *, power: float = 2.5) -> float:
    """Eq. (7): `attention_gain - P T^power (S + Z)^3 + gamma_lin`, for phase one that ends within P of its centre.

    Printed is T^2.5. The derivative of softmax at zero is `I / T - 11^T / T^2`, of spectral norm 1/T, and with it the
    proof gives T^1.
    """
    m = mixture
    return float(attention_gain(m) - P * float(m.T) ** power * (m.S + m.Z) ** 3 + gamma_lin(m))


@formula(mixture=OF_MIXTURE, eps=numbers())
def gamma_attn(mixture: Mixture, eps: ArrayLike = 0.0) -> Array:
    """Eq. (11): margin of attention with at most eps on irrelevant tokens.

    `sqrt(T/2) (S^2 (1 - eps) - 2 eps Z_mu) / S`, which tends to S sqrt(T/2).
    """
    eps_ = np.asarray(eps, dtype=np.float64)
    m = mixture
    return np.sqrt(float(m.T) / 2.0) / m.S * (m.S**2 * (1.0 - eps_) - 2.0 * eps_ * m.Z_mu)


@formula(T=AT_LEAST_ONE, M=AT_LEAST_ONE, zeta=SHARE)
def largest_ordered_signal(T: int, M: int, zeta: float) -> float:
    """S up to which `gamma_attn >= gamma_star` without noise: `S^3 = 4 sqrt(M + 1) / (zeta^2 sqrt(T))`."""
    return float(np.cbrt(4.0 * np.sqrt(M + 1.0) / (zeta**2 * np.sqrt(float(T)))))


@formula(mixture=OF_MIXTURE)
def score_bounds(mixture: Mixture) -> tuple[float, float]:
    """Eq. (129), scores `x_t^T W* x_s` for unnormalized W*: at least A where s is relevant, at most B elsewhere.

    `A = S^4 - S^2 (Z_mu + Z_nu)`, `B = 2 (Z_mu^2 + Z_mu Z_nu + S^2 Z_mu)`.
    """
    m = mixture
    return m.S**4 - m.S**2 * (m.Z_mu + m.Z_nu), 2.0 * m.Z_mu * (m.Z_mu + m.Z_nu + m.S**2)


@formula(A=numbers(above=0), share=numbers(above=0, below=1), eps=numbers(above=0))
def saturation_scale(A: ArrayLike, share: ArrayLike, eps: ArrayLike) -> Array:
    """Lemma 18: Gamma from which softmax(Gamma r) leaves at most eps outside the L = share T largest entries.

    `(2 / A) log((1 / share - 1) / eps)` where these entries are at least A > 0, and all others at most B < A / 2. Never
    below 0: a negative Gamma would turn the order round.
    """
    A_, share_, eps_ = (np.asarray(a, dtype=np.float64) for a in (A, share, eps))
    return np.maximum(0.0, 2.0 / A_ * np.log((1.0 / share_ - 1.0) / eps_))


@formula(mixture=OF_MIXTURE, eps=numbers(above=0))
def attention_scale(mixture: Mixture, eps: ArrayLike) -> Array:
    """Gamma_eps of Proposition 3: `8 sqrt(2 (M + 1)) / (3 S^2) log((1 / zeta - 1) / eps)`, never below 0.

    It takes `A >= 3/4 S^4`, true for Z_mu = Z_nu <= S^2 / 8, and W* in units of its norm.
    """
    m = mixture
    return m.S**2 * np.sqrt(2.0 * (float(m.M) + 1.0)) * saturation_scale(0.75 * m.S**4, m.zeta, eps)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadWeights:
    """U (T, d) and W (d, d) of one head."""

    U: Array
    W: Array

    @property
    def norm(self) -> float:
        """Of both together."""
        return float(np.hypot(length(self.U), length(self.W)))


@formula()
def oracle_weights(patterns: Array, T: int) -> HeadWeights:
    """`U* = 1 (mu+ - mu-)^T` and `W* = mu+ mu+^T + mu- mu-^T + sum_j nu_j (mu+ + mu-)^T`, unnormalized.

    Rows of `patterns` are mu+, mu-, nu_1, ..., nu_M. The query is on the left of W*.
    """
    patterns, T = _patterns(patterns), whole("T", T)
    plus, minus, others = patterns[0], patterns[1], patterns[2:]
    enough_memory(T * len(plus), f"U* of `T` = {T} rows")
    W = np.outer(plus, plus) + np.outer(minus, minus) + np.outer(others.sum(0), plus + minus)
    difference = plus - minus
    within_float64("patterns", patterns, "products of them", W, difference)
    return HeadWeights(U=np.tile(difference, (T, 1)), W=W)


@formula(scale=NUMBER)
def theta_opt(patterns: Array, T: int, scale: float = 1.0) -> HeadWeights:
    """Eq. (9): U* and W* each divided by its norm, S sqrt(2 T) and S^2 sqrt(2 (M + 1)); W then times `scale`."""
    oracle = oracle_weights(patterns, T)
    sizes = length(oracle.U), length(oracle.W)
    if not all(sizes):
        raise InputError(message("`patterns` give U* or W* the norm 0; wanted mu+ and mu- that differ."))
    W = scale * oracle.W / sizes[1]
    return HeadWeights(U=oracle.U / sizes[0], W=W if np.isfinite(W).all() else scale * (oracle.W / sizes[1]))


@formula(signs=numbers(), counts=numbers(least=0))
def theta_star(patterns: Array, T: int, signs: ArrayLike, counts: ArrayLike) -> dict[str, Array]:
    """The direction of property P3, of norm sqrt(2) over all heads, one entry for each group of equal heads.

    Head h has `H^(-1/2) (U_opt, sign(alpha_h) W_opt)`, with H the sum of the counts.
    """
    each = theta_opt(patterns, T)
    alpha = np.sign(np.asarray(signs, dtype=np.float64))
    heads = float(np.sum(np.asarray(counts, dtype=np.float64)))
    if alpha.ndim != 1 or np.shape(counts) != alpha.shape or not heads:
        shapes = f"`signs` has shape {alpha.shape} and `counts` {np.shape(counts)}"
        raise InputError(message(f"{shapes}; wanted (G,), one for each group of heads, and some heads."))
    U = np.tile(each.U, (alpha.size, 1, 1))
    return {"U": U / np.sqrt(heads), "W": alpha[:, None, None] * each.W / np.sqrt(heads)}


@formula(x=finite_array, W=finite_array)
def attention_of(x: Array, W: Array) -> Array:
    """softmax of the rows of `x W x^T` for x (..., T, d) and W (..., d, d), axes before these broadcast."""
    if x.ndim < 2 or not x.size or W.shape[-2:] != (x.shape[-1],) * 2:
        raise InputError(message(f"`x` has shape {x.shape} and `W` {W.shape}; wanted (..., T, d) and (..., d, d)."))
    return attention_weights(x, W)


def attention_weights(x: Array, W: Array) -> Array:
    """The same of arrays that were checked already."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        logits = x @ W @ np.swapaxes(x, -1, -2)
        if not np.isfinite(logits).all():
            sizes = f"`x` has entries up to {np.abs(x).max():.1e}, `W` up to {np.abs(W).max():.1e}"
            raise InputError(message(f"The products x W x^T are beyond float64; {sizes}.", "smaller tokens or weights"))
        weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _patterns(patterns: Array) -> Array:
    rows = finite_array("patterns", patterns)
    if rows.ndim != 2 or len(rows) < 2 or not rows.size:
        raise InputError(message(f"`patterns` has shape {rows.shape}; wanted (M + 2, d): mu+, mu-, nu_1, ..., nu_M."))
    return rows
