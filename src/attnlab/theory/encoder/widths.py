"""How wide must it be? The widths that make conditions (2) and (3) hold, and how likely.

*On the Convergence of Encoder-only Shallow Transformers*, Theorems 1 to 3, Lemmas 15 to 20 and Table 3. The paper
states orders; here the constants of its own inequalities are kept, those it hides in O and all logarithms are 1.
Compare growth, not numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from attnlab.errors import InputError, message
from attnlab.theory.formula import AT_LEAST_ONE, AT_LEAST_ZERO, POSITIVE, SHARE, choice, formula

Init = Literal["lecun", "he", "ntk"]
Scaling = Literal["sqrt", "linear"]
# What the names below stand for: sizes, what may fail, and the variance of weights.
sizes = dict.fromkeys(("width", "N", "T", "d"), AT_LEAST_ONE)
bound = partial(formula, **sizes, delta=SHARE, variance=POSITIVE)
STATEMENTS = ("T1", "T2", "T3", "L15", "L16", "L17", "L18", "L19", "L20")


@dataclass(frozen=True, kw_only=True)
class RequiredWidth:
    """The width from which conditions (2) and (3) hold.

    Attributes:
        init, scaling: of which case.
        corrected: with slips of the proof repaired?
        condition_2, condition_3: what each asks for.
        rest: what both need besides: d, N and N / lambda_0.
        order: how the larger grows with N, as the power of N.
    """

    init: Init
    scaling: Scaling
    corrected: bool
    condition_2: float
    condition_3: float
    rest: float
    order: int

    @property
    def width(self) -> float:
        """The largest of the three; inf where lambda_0 = 0."""
        return max(self.condition_2, self.condition_3, self.rest)


@bound(init=choice("lecun", "he", "ntk"), scaling=choice("sqrt", "linear"), C_x=POSITIVE, lambda0=AT_LEAST_ZERO)
def required_width(
    init: Init, scaling: Scaling, *, N: int, T: int, d: int, C_x: float, lambda0: float, corrected: bool = True
) -> RequiredWidth:
    """The width that the proof asks for.

    | weights, tau0 | condition (2) | condition (3) |
    |---|---|---|
    | LeCun or He, m^(-1/2) | `16 N^2 T^3 C_x^2 / (d l^2) max(1, 4 C_x^4 T^2 / d)` | \
`1024 N^3 C_x^12 T^10 / (d^4 l^3)` |
    | LeCun or He, 1/m | the same, without the max | `4/l N T^2 C_x^(4/3) (1 + 4 C_x^4 T^2 / d^2)^(2/3)` |
    | N(0, 1), 1/m, paper | `4/l N T^(5/2) C_x^3` | `4/l N T^2 C_x^(4/3) (1 + 4 C_x^4 T^2)^(2/3)` |
    | N(0, 1), 1/m, corrected | `16 N^2 T^3 C_x^2 max(1, 4 C_x^4 T^2) / l^2` | \
`64 N^3 T^6 C_x^4 (1 + 4 C_x^4 T^2)^2 / l^3` |

    with l = lambda_0, Eqs. (49), (50), (54), (55), (60), (61). Corrected: Eq. (45) leaves out the entries of the query
    and the key, the max above, which leaves the order as it is. Eqs. (60) and (61) take alpha^2 to grow with m, but
    with tau1^2 = 1/m it does not; then no width suffices for C_P = 1, and the widths above are for C_P = sqrt(m).

    Args:
        init: "lecun", "he" or "ntk" for N(0, 1).
        scaling: "sqrt" for tau0 = m^(-1/2), "linear" for 1/m. The paper has no N(0, 1) with "sqrt".
        N, T, d, C_x: sequences, tokens, dimension, bound on the tokens.
        lambda0: see `lambda_0`; it has the variance of W_V in it.
        corrected: False for the widths as printed.

    >>> sizes = {"T": 1, "d": 1, "C_x": 1.0, "lambda0": 1.0}
    >>> required_width("ntk", "linear", N=10, corrected=False, **sizes).condition_2
    40.0
    >>> required_width("ntk", "linear", N=10, **sizes).order
    3
    """
    if init == "ntk" and scaling == "sqrt":
        raise InputError(message("No theorem is about `init='ntk'` with `scaling='sqrt'`.", "scaling='linear'"))
    if lambda0 == 0:
        second, third, rest = np.inf, np.inf, np.inf
    else:
        sizes = (np.float64(N), np.float64(T), np.float64(d), np.float64(C_x), np.float64(lambda0))
        second, third = (float(asked) for asked in _asked(init, scaling, *sizes, corrected))
        rest = max(float(d), float(N), N / lambda0)
    order = (3 if corrected else 1) if init == "ntk" else {"sqrt": 3, "linear": 2}[scaling]
    return RequiredWidth(
        init=init, scaling=scaling, corrected=corrected, condition_2=second, condition_3=third, rest=rest, order=order
    )


def _asked(
    init: Init, scaling: Scaling, N: float, T: float, d: float, C_x: float, l0: float, corrected: bool
) -> tuple[float, float]:
    through = 4.0 * C_x**4 * T**2  # what the softmax adds, before d
    if init == "ntk":
        if not corrected:
            return 4.0 * N * T**2.5 * C_x**3 / l0, _flat(N, T, C_x, l0, through)
        second = 16.0 * N**2 * T**3 * (C_x / l0) ** 2 * max(1.0, through)
        return second, 64.0 * N**3 * T**6 * (C_x ** (4.0 / 3.0) / l0) ** 3 * (1.0 + through) ** 2
    # Ratios before powers: l0 is of the order of C_x^2, and its square may be 0 where this is not.
    second = 16.0 * N**2 * T**3 * (C_x / l0) ** 2 / d
    if scaling == "linear":
        return second, _flat(N, T, C_x, l0, through / d**2)
    third = 1024.0 * N**3 * (C_x**4 / l0) ** 3 * T**10 / d**4
    return second * (max(1.0, through / d) if corrected else 1.0), third


def _flat(N: float, T: float, C_x: float, l0: float, through: float) -> float:
    """m from `(m lambda_0 / 4)^(3/2) >= N^(3/2) T^3 C_x^2 (1 + through)`."""
    return 4.0 / l0 * N * T**2 * (C_x**2 * (1.0 + through)) ** (2.0 / 3.0)


@bound(statement=choice(*STATEMENTS), c_hat=POSITIVE, factor=POSITIVE)
def probability(
    statement: str, *, width: int, N: int, T: int, d: int, delta: float = 0.05, c_hat: float = 1.0, factor: float = 1.0
) -> float:
    """With what probability a statement holds, as the paper states it; 0 where that says nothing.

    | statement | at least |
    |---|---|
    | T1, T2 | `1 - 8 exp(-m/2) - delta - u` |
    | T3 | `1 - 8 exp(-m/2)` |
    | L15 | `1 - u` |
    | L16 | `1 - delta` |
    | L17, L19 | `1 - exp(-d)` |
    | L18 | `1 - delta - exp(-d)` |
    | L20 | `1 - 2 exp(-m/2)` |

    with `u = exp(-factor (N-1)^(-c_hat) / T)`, which is close to 1 for many sequences: then T1, T2 and L15 say nothing.

    Args:
        statement: one of the above.
        width, N, T, d: sizes.
        delta: what the statement is allowed to fail.
        c_hat: exponent of Assumption 3.
        factor: the constant that Omega hides.

    >>> probability("L20", width=100, N=1, T=1, d=1)
    1.0
    >>> round(probability("L15", width=1, N=101, T=10, d=1), 4)
    0.001
    """
    start, small = float(np.exp(-0.5 * width)), float(np.exp(-float(d)))
    unlike = float(np.exp(-factor * float(N - 1) ** -c_hat / T)) if N > 1 else 0.0
    lost = {
        "T1": 8.0 * start + delta + unlike,
        "T2": 8.0 * start + delta + unlike,
        "T3": 8.0 * start,
        "L15": unlike,
        "L16": delta,
        "L17": small,
        "L18": delta + small,
        "L19": small,
        "L20": 2.0 * start,
    }[statement]
    return max(0.0, 1.0 - lost)


@bound(C_x=AT_LEAST_ZERO)
def lemma_16_error(
    width: float, *, N: int, T: int, d: int, C_x: float, variance: float = 1.0, delta: float = 0.05
) -> float:
    """How far the attended first tokens are from mean tokens at tau0 = 1/m: a bound on `|P P^T - P* P*^T|_F`.

    `8 N variance C_x^4 T^2 d sqrt(L / m)` with `L = log(2 d^2 N^2 / delta)`, with probability 1 - delta; `variance` is
    the root of the product of those of W_Q and W_K. Lemma 16, which prints T for T^2 and sqrt(L) for L in its width.

    >>> round(lemma_16_error(10**6, N=2, T=2, d=4, C_x=1.0), 3)
    0.717
    """
    log = np.log(2.0 * d**2 * N**2 / delta)
    return float(8.0 * N * variance * C_x**4 * T**2 * d * np.sqrt(log / width))


@bound(lambda_star=AT_LEAST_ZERO)
def lemma_16_width(
    lambda_star: float, *, N: int, T: int, d: int, C_x: float, variance: float = 1.0, delta: float = 0.05
) -> float:
    """The width from which `lemma_16_error` is at most a quarter of lambda_star, the least eigenvalue of P* P*^T.

    It is inf where that is 0, as for N > d.

    >>> round(lemma_16_width(1.0, N=2, T=2, d=4, C_x=1.0))
    8228975
    """
    if lambda_star == 0:
        return np.inf
    return (4.0 * lemma_16_error(1, N=N, T=T, d=d, C_x=C_x, variance=variance, delta=delta) / lambda_star) ** 2


class LiteratureWidth(NamedTuple):
    """One row of Table 3: which width is known to suffice for global convergence, N sequences and L layers."""

    source: str
    model: str
    depth: str
    init: str
    activation: str
    width: str


LITERATURE = (
    LiteratureWidth("Allen-Zhu et al. 2019a", "FCNN/CNN", "deep", "NTK", "ReLU", "N^24 L^12"),
    LiteratureWidth("Du et al. 2019a", "FCNN/CNN", "deep", "NTK", "smooth", "N^4 2^O(L)"),
    LiteratureWidth("Oymak and Soltanolkotabi 2020", "FCNN", "shallow", "standard Gaussian", "ReLU", "N^2"),
    LiteratureWidth("Zou and Gu 2019", "FCNN", "deep", "He", "ReLU", "N^8 L^12"),
    LiteratureWidth("Du et al. 2019b", "FCNN", "shallow", "NTK", "ReLU", "N^6"),
    LiteratureWidth("Nguyen 2021", "FCNN", "deep", "LeCun", "ReLU", "N^3"),
    LiteratureWidth("Chen et al. 2021", "FCNN", "deep", "NTK", "ReLU", "L^22"),
    LiteratureWidth("Song et al. 2021", "FCNN", "shallow", "He/LeCun", "smooth", "N^(3/2)"),
    LiteratureWidth("Bombari et al. 2022", "FCNN", "deep", "He/LeCun", "smooth", "sqrt(N)"),
    LiteratureWidth("Allen-Zhu et al. 2019b", "RNN", "-", "NTK", "ReLU", "N^c, c > 1"),
    LiteratureWidth("Hron et al. 2020", "Transformer", "deep", "NTK", "ReLU", "-"),
    LiteratureWidth("Yang 2020", "Transformer", "deep", "NTK", "softmax+ReLU", "-"),
    LiteratureWidth("this paper", "Transformer", "shallow", "LeCun/He/NTK", "softmax+ReLU", "N"),
)
