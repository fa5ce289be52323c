"""Phase one: one gradient step from zero, with a random sign for each head.

Section 5.1 of *On the Optimization and Generalization of Multi-head Attention*. All heads start at zero; head h takes
one step of size alpha_h sqrt(H) on n_1 sequences. Then W_h = 0 and every row of U_h is alpha_h c, with

    c = (1 / (2 n_1)) sum_i y_i (mean token of sequence i)

so the heads form two groups, and any number of them costs no more than two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from attnlab.checks import finite_array, instance, no_batch, number, one_of, whole
from attnlab.data.scale import length
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.multihead import DECODERS, Decoder, MultiHead
from attnlab.theory.arrays import within_float64
from attnlab.theory.formula import AT_LEAST_ONE, AT_LEAST_ZERO, SHARE, formula
from attnlab.theory.multihead.guarantees import GoodStart
from attnlab.theory.multihead.margins import OF_MIXTURE, Mixture, gamma_star

# Heads that all differ are kept one by one; more than this is a mistake.
MOST_SINGLE_HEADS = 100_000


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PhaseOne:
    """Weights after phase one, one entry for each group of equal heads.

    Attributes:
        weights: U, (G, T, d) for the full decoder and (G, d) otherwise, and W (G, d, d), which is zero.
        counts: heads of each group, (G,).
        alpha: step of each group, (G,).
        c: the row that all heads share up to alpha, (d,).
    """

    weights: dict[str, Array]
    counts: Array
    alpha: Array
    c: Array

    @property
    def heads(self) -> float:
        """H."""
        return float(self.counts.sum())

    @property
    def longest(self) -> float:
        """Largest norm of a head."""
        return float(max(length(U) for U in self.weights["U"]))

    def __repr__(self) -> str:
        return f"PhaseOne(heads={self.heads:g}, groups={self.counts.size}, longest={self.longest:.4g})"


def mean_row(tokens: Tokens) -> Array:
    """c, (d,) or (trials, d)."""
    MultiHead(1).accepts(tokens, "tokens")
    with np.errstate(over="ignore", invalid="ignore"):
        row = 0.5 * np.mean(tokens.y[..., None] * tokens.x.mean(-2), axis=-2)
    within_float64("tokens.x", tokens.x, "sums of tokens", row)
    return row


def phase_one(
    tokens: Tokens,
    heads: float,
    *,
    decoder: Decoder = "full",
    alpha_law: Literal["sign", "uniform"] = "sign",
    seed: int = 0,
) -> PhaseOne:
    """The step, on one data set.

    Args:
        tokens: the n_1 sequences; fresh ones are for phase two.
        heads: H, up to 10^18 with signs.
        decoder: with one vector u per head the row is T c for "pooling" and c for "last".
        alpha_law: "sign" draws alpha = +1 or -1 with probability 1/2, "uniform" from the interval [-1, 1]; heads then
            all differ. The paper writes Unif(+-1).
        seed: of alpha.

    With signs there are two groups. Should all heads have the same sign, they are still kept as two groups, of H - 1
    and one; a single head is one group.

    >>> from attnlab.data.mixture import tokenized_mixture
    >>> phase_one(tokenized_mixture(n=50), heads=1e12)
    PhaseOne(heads=1e+12, groups=2, longest=0.3016)
    """
    no_batch("tokens", MultiHead(1).accepts(tokens, "tokens"))
    if number("heads", heads) != round(number("heads", heads, least=1, most=1e18)):
        raise InputError(message(f"`heads` is {heads}; wanted a whole number from 1 to 1e18."))
    one_of("decoder", decoder, DECODERS)
    one_of("alpha_law", alpha_law, ("sign", "uniform"))
    alpha, counts = _groups(int(heads), alpha_law, np.random.default_rng(whole("seed", seed, 0)))
    c = mean_row(tokens)
    row = tokens.T * c if decoder == "pooling" else c
    U = alpha[:, None] * row
    if decoder == "full":
        U = np.repeat(U[:, None, :], tokens.T, axis=1)
    weights = {"U": U, "W": np.zeros((alpha.size, tokens.d, tokens.d))}
    return PhaseOne(weights=weights, counts=counts, alpha=alpha, c=c)


@formula(mixture=OF_MIXTURE)
def centre(mixture: Mixture, oracle: Array, *, corrected: bool = True) -> Array:
    """Where c goes as n_1 grows: `(zeta / 4) u*`, for y mu_y has mean u* / 2. Printed in Lemma 2 is `(zeta / 2) u*`."""
    return mixture.zeta / (4.0 if corrected else 2.0) * finite_array("oracle", oracle)


def parts(tokens: Tokens) -> tuple[Array, Array]:
    """p_1 and p_2 of Lemma 16, so that `c = (zeta / 4) u* + (zeta / 2) p_1 + ((1 - zeta) / 2) p_2`.

    `p_1 = mean_i y_i mu_{y_i} - u* / 2` and `p_2 = mean_i y_i (mean irrelevant token of sequence i)`, each (d,).
    """
    instance("tokens", tokens, Tokens, "al.Tokens")
    if tokens.trials is not None or not {"relevant", "patterns", "oracle"} <= set(tokens.info):
        raise InputError(message("`tokens` are not one data set of the family tokenized_mixture.", "tokens[trial]"))
    relevant = np.asarray(tokens.info["relevant"], dtype=bool)
    patterns, oracle = np.asarray(tokens.info["patterns"]), np.asarray(tokens.info["oracle"])
    y = tokens.y[:, None]
    first = np.mean(y * np.where(y > 0, patterns[0], patterns[1]), axis=0) - oracle / 2.0
    irrelevant = np.where(relevant[..., None], 0.0, tokens.x).sum(1) / (~relevant).sum(1)[:, None]
    return first, np.mean(y * irrelevant, axis=0)


@formula(mixture=OF_MIXTURE, d=AT_LEAST_ONE, n_1=AT_LEAST_ONE, delta=SHARE, C=AT_LEAST_ZERO)
def lemma_2_bound(mixture: Mixture, d: int, n_1: int, delta: float, C: float) -> float:
    """P of Eq. (6), `C (2 S + Z) (sqrt(d / n_1) + sqrt(log(1 / delta) / n_1))`, with probability 1 - 2 delta.

    Lemma 2 prints 1 - delta; its proof joins two events. C is a constant that the paper does not name.
    """
    spread = (np.sqrt(float(d)) + np.sqrt(np.log(1.0 / delta))) / np.sqrt(float(n_1))
    return float(C * (2.0 * mixture.S + mixture.Z) * spread)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Proposition 2: what the weights after phase one promise.

    Attributes:
        start: B2, B_phi and gamma; None where `gamma_star` is not above zero, and nothing is promised.
        gamma_star: Eq. (7).
        B2, B_phi: of P1 and P2.
        heads: from which P3 is promised; nan where `gamma_star` is not above zero.
    """

    nan_where_nothing_is_promised: ClassVar[tuple[str, ...]] = ("heads",)

    start: GoodStart | None
    gamma_star: float
    B2: float
    B_phi: float
    heads: float


@formula(mixture=OF_MIXTURE, P=AT_LEAST_ZERO, n=AT_LEAST_ONE, delta=SHARE)
def proposition_2(mixture: Mixture, P: float, n: int, delta: float, *, corrected: bool = True) -> Promise:
    """Constants of a good start after phase one that ended within P of its centre, with probability 1 - delta each.

        B2 = sqrt(T) (S + P),   B_phi = T R (S + P) sqrt(2 log(n / delta)),   gamma = gamma_star / 2
        sqrt(H) >= 4 (2 R^3 T (S + P) + sqrt(T) R) sqrt(2 log(n / delta)) / gamma_star

    That is as in the appendix. Corrected: for alpha = +1 or -1 all sequences share one random sum, so `log(2 / delta)`
    serves all of them in B_phi; P3 holds with gamma = gamma_star, for every H and every draw; and P enters `gamma_star`
    with T in place of T^2.5.
    """
    m = mixture
    star = gamma_star(m, P, power=1.0 if corrected else 2.5)
    B2 = max(1.0, float(np.sqrt(float(m.T)) * (m.S + P)))
    log = np.log(2.0 / delta) if corrected else np.log(n / delta)
    B_phi = max(1.0, float(m.T * m.R * (m.S + P) * np.sqrt(2.0 * log)))
    if not star > 0:
        return Promise(start=None, gamma_star=star, B2=B2, B_phi=B_phi, heads=np.nan)
    reach = 2.0 * m.R**3 * m.T * (m.S + P) + np.sqrt(float(m.T)) * m.R
    heads = 1.0 if corrected else max(1.0, float((4.0 * reach / star) ** 2 * 2.0 * log))
    start = GoodStart(B2=B2, B_phi=B_phi, gamma=star if corrected else star / 2.0)
    return Promise(start=start, gamma_star=star, B2=B2, B_phi=B_phi, heads=heads)


def _groups(heads: int, law: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """alpha and counts."""
    if law == "uniform":
        if heads > MOST_SINGLE_HEADS:
            kept = f"with alpha from an interval every head is kept, at most {MOST_SINGLE_HEADS}"
            raise InputError(message(f"`heads` is {heads}; {kept}.", "alpha_law='sign'"))
        return rng.uniform(-1.0, 1.0, heads), np.ones(heads)
    plus = int(rng.binomial(heads, 0.5))
    if heads == 1:
        return np.array([1.0 if plus else -1.0]), np.ones(1)
    if plus in (0, heads):
        return np.full(2, 1.0 if plus else -1.0), np.array([heads - 1.0, 1.0])
    return np.array([1.0, -1.0]), np.array([float(plus), float(heads - plus)])
