"""The constants in which *Implicit Bias and Fast Convergence Rates for Self-attention* states its rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.checks import number
from attnlab.data.scale import lengths, ordinary, rescaled
from attnlab.data.selection import optimal_tokens
from attnlab.data.span import in_span
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.svm import MarginSolution, linear_margin, solve_margin
from attnlab.theory.arrays import one_data_set
from attnlab.theory.formula import formula, of_class
from attnlab.theory.svm.geometry import Leads, belongs


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RateConstants:
    """Constants of one data set. With `gap_i = gamma_i,opt - low_i`, where low_i is the least score of sequence i:

    Attributes:
        Lambda: |W_mm|, one over the best margin; inf where no W separates the best tokens.
        B: largest norm of a visible token or query.
        gaps: gap_i, (n,); NaN where a query sees one token.
        kappa_plus, kappa_minus: e^(largest gap), e^(least gap); these and what follows are inf where they are larger
            than any float64 number, as for gaps beyond 709.
        upsilon: `kappa_plus log(kappa_plus) / log(kappa_minus)`, as in the main text.
        upsilon_proof: `(largest gap / least gap) e^(max_i gamma_i,opt - min_i low_i)`, what Eq. (22) in the proof of
            Lemma 3 needs; never below `upsilon`.
        upsilon_printed: `(largest gap / least gap) e^(min_i gamma_i,opt - max_i low_i)`, as in Table 1.
        zeta: `largest gap / min_i e^low_i`, what the proof of Theorem 6 needs.
        zeta_printed: `largest gap / max_i e^low_i`, as in Table 1.
        head_margin: 1 / |u_mm| of the best tokens as points; 0 where no u separates them.
        n, T, d: sizes of the data; d is that before `in_span`, if the tokens went through it.
        tied: queries whose best token is not unique; the first one is taken.
    """

    Lambda: float
    B: float
    gaps: Array
    kappa_plus: float
    kappa_minus: float
    upsilon: float
    upsilon_proof: float
    upsilon_printed: float
    zeta: float
    zeta_printed: float
    head_margin: float
    n: int
    T: int
    d: int
    tied: int

    @property
    def feasible(self) -> bool:
        """Does some W separate the best tokens?"""
        return bool(np.isfinite(self.Lambda))

    @property
    def largest_gap(self) -> float:
        """max_i gap_i."""
        return float(np.nanmax(self.gaps))

    @property
    def least_gap(self) -> float:
        """min_i gap_i."""
        return float(np.nanmin(self.gaps))

    @property
    @formula()
    def condition(self) -> float:
        """`B^2 Lambda`, at least 1/2 by Cauchy-Schwarz."""
        return self.B**2 * self.Lambda

    def __repr__(self) -> str:
        gaps = f"{self.least_gap:.4g}..{self.largest_gap:.4g}"
        return (
            f"RateConstants(Lambda={self.Lambda:.4g}, B={self.B:.4g}, gaps={gaps},"
            f" upsilon={self.upsilon:.4g}, n={self.n}, T={self.T}, d={self.d})"
        )


OF_RATES = of_class(RateConstants, "what al.theory.rate_constants returns")


def rate_constants(tokens: Tokens, *, solution: MarginSolution | None = None) -> RateConstants:
    """Lambda, B, the score gaps and what is made of them.

    Args:
        tokens: one data set with one query per sequence, T >= 2, and `v`.
        solution: the Frobenius max-margin solution of the best tokens, if there is one already.

    Returns:
        `RateConstants`. Equal scores give upsilon = inf, and best tokens that nothing separates Lambda = inf.

    Section 3.1, Table 1 and Theorem 6 of *Implicit Bias and Fast Convergence Rates for Self-attention*.

    >>> import attnlab as al
    >>> rate_constants(al.data.two_tokens())
    RateConstants(Lambda=1, B=1, gaps=1..1, upsilon=2.718, n=1, T=2, d=2)
    """
    one_query(tokens)
    visible = tokens.visible
    compares = visible.sum(-1) > 1
    if not compares.any():
        raise InputError(
            message("`tokens` let every query see one token; the constants compare the best with others.", "use T >= 2")
        )
    leads = Leads.of(tokens, None)
    unit = int(np.max(leads.exponent))  # not 0 only for scores too faint for float64
    gamma = rescaled(leads.gamma, leads.exponent - unit)
    best, count = optimal_tokens(tokens, return_ties=True)
    top = np.take_along_axis(gamma, best[:, None], axis=-1)[:, 0]
    other = visible & (np.arange(tokens.T) != best[:, None])
    low = np.where(other, gamma, np.inf).min(-1)
    unit_gaps = np.where(compares, top - np.where(compares, low, 0.0), np.nan)
    top, low, gaps = (rescaled(part, unit) for part in (top, low, unit_gaps))
    if solution is None:
        solution = _solved(tokens, best)
    else:
        belongs(tokens, best, solution)
        if solution.norm != "frobenius":
            raise InputError(message(f"`solution` is for the {solution.norm} norm; wanted the Frobenius one."))
    largest, least = float(np.nanmax(gaps)), float(np.nanmin(gaps))
    high, bottom = top[compares], low[compares]
    with np.errstate(over="ignore", under="ignore"):  # scores beyond 700 have no finite exponential
        ratio = float(np.nanmax(unit_gaps) / np.nanmin(unit_gaps)) if np.nanmin(unit_gaps) > 0 else np.inf
        kappa_plus, kappa_minus = float(np.exp(largest)), float(np.exp(least))
        upsilon = _times(ratio, kappa_plus)
        proof = _times(ratio, float(np.exp(high.max() - bottom.min())))
        printed = _times(ratio, float(np.exp(high.min() - bottom.max())))
        zeta, zeta_printed = (_zeta(largest, float(edge)) for edge in (bottom.min(), bottom.max()))
    B = float(max(lengths(tokens.x)[visible].max(), lengths(tokens.z).max()))
    if not np.isfinite(B):
        raise InputError(message("`tokens` have lengths beyond float64, which ends at 1.8e308.", "divide them by 2^10"))
    return RateConstants(
        Lambda=_norm_of(solution),
        B=B,
        gaps=gaps,
        kappa_plus=kappa_plus,
        kappa_minus=kappa_minus,
        upsilon=upsilon,
        upsilon_proof=proof,
        upsilon_printed=printed,
        zeta=zeta,
        zeta_printed=zeta_printed,
        head_margin=_head_margin(tokens, best),
        n=tokens.n,
        T=tokens.T,
        d=dimension(tokens),
        tied=int((count > 1).sum()),
    )


def _times(ratio: float, exponential: float) -> float:
    """Their product; inf where the ratio is, however small the exponential."""
    return np.inf if np.isinf(ratio) else ratio * exponential


def _zeta(gap: float, low: float) -> float:
    """gap e^-low; 0 where all scores are the same, however low they are."""
    return gap * float(np.exp(-low)) if gap > 0 else 0.0


def _norm_of(solution: MarginSolution) -> float:
    """|W_mm|, inf where there is none."""
    if not solution.margin > 0:
        return np.inf
    norm = 1.0 / solution.margin
    if not np.isfinite(norm):
        problem = f"`tokens` have a margin of {solution.margin:.1e}, one over which is beyond float64"
        raise InputError(message(f"{problem}.", "scale the tokens by a; W then scales by 1 / a"))
    return norm


def one_query(tokens: Tokens) -> Tokens:
    """`tokens`, refused if a batch, or with several queries per sequence."""
    one_data_set(tokens)
    if tokens.K is not None:
        raise InputError(
            message(f"`tokens` have K = {tokens.K} queries per sequence; these theorems are for one.", "z of (n, d)")
        )
    return tokens


def dimension(tokens: Tokens) -> int:
    """d of the data, before `in_span` if they went through it."""
    given = tokens.info.get("dimension", tokens.d)
    return int(number("info['dimension']", given, least=1))


def _solved(tokens: Tokens, best: NDArray[np.intp]) -> MarginSolution:
    """The max-margin solution, in few coordinates where W would be large: the norm is the same."""
    wide = tokens.d > tokens.n * tokens.T + tokens.n
    return solve_margin(in_span(tokens)[0] if wide else tokens, best, throw=False)


def _head_margin(tokens: Tokens, best: NDArray[np.intp]) -> float:
    # The margin scales as the points do; its multipliers, which nobody asks for here, might leave float64.
    points, power = ordinary(np.take_along_axis(tokens.x, best[:, None, None], axis=1)[:, 0])
    head = linear_margin(points, tokens.y)
    return float(rescaled(head.margin, power)) if head.separable else 0.0
