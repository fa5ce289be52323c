"""Constants of Proposition 1, from data and start to conditions, step size and rate.

*On the Convergence of Encoder-only Shallow Transformers*. Sums over tokens are written for sum pooling; for mean
pooling tau1 is the hidden scale divided by T, and nothing else changes. The loss is half the sum of squares.

Where a printed formula has a slip, `corrected=False` gives it as printed. The statements survive: only constants
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import instance, number
from attnlab.data.scale import length, matrix_lengths, spectral_norm
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.theory.arrays import EPS, finite, sequences
from attnlab.theory.check import Check, at_least
from attnlab.theory.encoder.forward import NAMES, checked_weights, hidden, residual_matrix
from attnlab.theory.formula import AT_LEAST_ONE, AT_LEAST_ZERO, POSITIVE, formula, keep, of_class


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What Proposition 1 is about.

    Attributes:
        N, T, d, width: sequences, tokens, dimension, width m.
        tau0: scale inside the softmax.
        tau1: scale of the hidden layer, with the 1 / T of mean pooling.
        C_x: least number with `|X_n|_F <= sqrt(T) C_x` (Assumption 1).
        norms: spectral norms of the four parameters at the start, by "Q", "K", "V", "O".
        radius: C_P, how far each parameter may move.
        alpha: least singular value of F_pre at the start, the N-th one; 0 where N > m.
        start_loss: half the sum of squares at the start.
        shortcut: spectral norm of what the residual multiplies tokens by; 0 without one.

    >>> constants = Constants(N=1, T=1, d=1, width=4, tau0=0.5, tau1=1.0, C_x=2.0, norms=dict.fromkeys("QKVO", 1.0),
    ...                   radius=dict.fromkeys("QKVO", 1.0), alpha=3.0, start_loss=0.5)
    >>> constants.rho, constants.zeta, constants.condition_2.wanted
    (2.0, 16.0, 512.0)
    """

    N: int
    T: int
    d: int
    width: int
    tau0: float
    tau1: float
    C_x: float
    norms: Mapping[str, float]
    radius: Mapping[str, float]
    alpha: float
    start_loss: float
    shortcut: float = 0.0

    def __post_init__(self) -> None:
        keep(self, N=AT_LEAST_ONE, T=AT_LEAST_ONE, d=AT_LEAST_ONE, width=AT_LEAST_ONE, tau1=POSITIVE)
        keep(self, tau0=AT_LEAST_ZERO, C_x=AT_LEAST_ZERO, alpha=AT_LEAST_ZERO)
        keep(self, start_loss=AT_LEAST_ZERO, shortcut=AT_LEAST_ZERO)
        for name, values in (("norms", self.norms), ("radius", self.radius)):
            instance(name, values, Mapping, "one number for each of Q, K, V, O")
            if set(values) != set(NAMES):
                named = sorted(map(str, values))
                raise InputError(message(f"`{name}` has {named}; wanted one number for each of Q, K, V, O."))
        norms = {letter: number(f"norms[{letter}]", self.norms[letter], least=0) for letter in NAMES}
        radius = {letter: number(f"radius[{letter}]", self.radius[letter], above=0) for letter in NAMES}
        object.__setattr__(self, "norms", norms)
        object.__setattr__(self, "radius", radius)

    @classmethod
    def of(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        weights: Mapping[str, ArrayLike],
        *,
        tau0: float,
        tau1: float,
        radius: float | Mapping[str, float] = 1.0,
        residual: ArrayLike | str | None = None,
    ) -> Constants:
        """The constants of given data and start.

        Args:
            x, y: tokens (n, T, d) and labels (n,).
            weights, tau0, tau1, residual: as for `forward`.
            radius: C_P, one number or one for each of "Q", "K", "V", "O".

        alpha comes from the singular values of F_pre: squares of small ones drown in the rounding of F F^T. One that
        is rounding of F_pre itself, below `max(N, m) eps` of the largest, is 0.

        >>> start = {"W_Q": [[0.0]], "W_K": [[0.0]], "W_V": [[3.0]], "w_O": [1.0]}
        >>> constants = Constants.of([[[1.0], [1.0]]], [4.0], start, tau0=1.0, tau1=0.5)
        >>> constants.C_x, constants.alpha, constants.start_loss
        (1.0, 3.0, 0.5)
        """
        tokens = sequences(x)
        n, T, d = tokens.shape
        start = checked_weights(weights, d)
        labels = finite("y", y, (n,))
        tau0, tau1 = number("tau0", tau0, least=0), number("tau1", tau1, above=0)
        inside, outputs = hidden(tokens, start, tau0, tau1, residual)
        S = residual_matrix(residual, d, len(start["w_O"]))
        return cls(
            N=n,
            T=T,
            d=d,
            width=len(start["w_O"]),
            tau0=float(tau0),
            tau1=float(tau1),
            C_x=float(matrix_lengths(tokens).max() / np.sqrt(T)),
            norms={letter: _norm(start[name]) for letter, name in NAMES.items()},
            radius=dict(radius) if isinstance(radius, Mapping) else dict.fromkeys(NAMES, number("radius", radius)),
            alpha=least_singular_value(inside),
            start_loss=_start_loss(outputs, labels),
            shortcut=0.0 if S is None else spectral_norm(S),
        )

    @property
    @formula()
    def lambda_bar(self) -> dict[str, float]:
        """`|W_P| + C_P`, which bounds the norm of each parameter on the way."""
        return {name: self.norms[name] + self.radius[name] for name in NAMES}

    @property
    @formula()
    def rho(self) -> float:
        """`N^(1/2) T^(3/2) tau1 C_x`."""
        return float(np.sqrt(float(self.N)) * self.T * np.sqrt(float(self.T)) * self.tau1 * self.C_x)

    @property
    @formula()
    def reach(self) -> float:
        """`2 tau0 C_x^2 T`, the factor of everything that goes through the softmax."""
        return 2.0 * self.tau0 * self.C_x * self.C_x * self.T

    @property
    @formula()
    def z(self) -> float:
        """z of Proposition 1, `l_O^2 (1 + 4 tau0^2 C_x^4 T^2 l_V^2 (l_Q^2 + l_K^2))`; l is `lambda_bar`."""
        bar = self.lambda_bar
        return bar["O"] ** 2 * (1.0 + (self.reach * bar["V"]) ** 2 * (bar["Q"] ** 2 + bar["K"] ** 2))

    @property
    @formula()
    def zeta(self) -> float:
        """z of Lemma 14, another number than that of Proposition 1: `2 tau0 C_x^2 T (l_Q + l_K)`."""
        return self.reach * (self.lambda_bar["Q"] + self.lambda_bar["K"])

    @property
    @formula()
    def hidden_bar(self) -> float:
        """`|F_pre| <= rho hidden_bar`: l_V, and with a residual `l_V + |S| / sqrt(T)` (Appendix C.7)."""
        return self.lambda_bar["V"] + self.shortcut / float(np.sqrt(float(self.T)))

    @property
    @formula()
    def slopes(self) -> dict[str, float]:
        """Lemma 12: the gradient of the loss by each parameter is at most this times `|f - y|`."""
        bar = self.lambda_bar
        through = self.rho * self.reach * bar["V"] * bar["O"]
        return {
            "Q": through * bar["K"],
            "K": through * bar["Q"],
            "V": self.rho * bar["O"],
            "O": self.rho * self.hidden_bar,
        }

    @property
    @formula()
    def condition_2(self) -> Check:
        """Eq. (2): `alpha^2 >= 8 rho max(entries) sqrt(2 loss)`, which keeps every parameter within its C_P.

        Its margin is the left side over the right one. Evidence: entries, and largest, the parameter whose entry is the
        maximum. Entries are `l_V / C_O`, `l_O / C_V`, `2 tau0 C_x^2 T l_K l_V l_O / C_Q` and the same with l_Q / C_K,
        under the parameter whose C_P they hold.
        """
        bar = self.lambda_bar
        through = self.reach * bar["V"] * bar["O"]
        entries = {
            "O": self.hidden_bar / self.radius["O"],
            "V": bar["O"] / self.radius["V"],
            "Q": through * bar["K"] / self.radius["Q"],
            "K": through * bar["Q"] / self.radius["K"],
        }
        largest = max(entries, key=lambda name: entries[name])
        right = 8.0 * self.rho * max(entries.values()) * self.start_distance
        return at_least("(2)", self.alpha**2, right, {"entries": entries, "largest": largest})

    @property
    @formula()
    def condition_3(self) -> Check:
        """Eq. (3): `alpha^3 >= 32 rho^2 z sqrt(2 loss) / l_O`, which keeps F_pre near where it was."""
        right = 32.0 * self.rho**2 * self.z * self.start_distance / self.lambda_bar["O"]
        return at_least("(3)", self.alpha**3, right)

    @property
    @formula()
    def start_distance(self) -> float:
        """`sqrt(2 loss)`, which is `|f - y|` at the start."""
        return float(np.sqrt(2.0 * self.start_loss))

    @property
    def applies(self) -> bool:
        """Does Proposition 1 promise a rate: m >= N, alpha > 0 and both conditions?"""
        return self.width >= self.N and self.alpha > 0 and self.condition_2.holds and self.condition_3.holds

    @formula()
    def c1(self, *, corrected: bool = True) -> float:
        """`|f' - f| <= c1 |theta' - theta|`: `rho (l_V + l_O + l_O l_V zeta)`. Eq. (36); printed without that l_O."""
        bar = self.lambda_bar
        factor = bar["O"] if corrected else 1.0
        return self.rho * (self.hidden_bar + bar["O"] + factor * bar["V"] * self.zeta)

    @formula()
    def c2(self) -> float:
        """`|grad f| <= c2`, Eq. (11): the root of the sum of squares of `slopes`."""
        return float(np.linalg.norm(list(self.slopes.values())))

    @formula()
    def c3(self, *, corrected: bool = True) -> float:
        """`|grad f' - grad f| <= c3 |theta' - theta|`, Eq. (14), where no preactivation changes its sign.

            c3^2 = N (p1^2 + p2^2 + q(l_K, l_K)^2 + q(l_Q, l_Q)^2),   a = 1 + l_V zeta,   b = l_O C_x sqrt(T) a + 1
            p1 = tau1 C_x T^(3/2) a,   p2 = tau1 C_x T^(3/2) (l_O zeta + b)
            q(l, k) = tau0 tau1 C_x T^(3/2) (2 l T C_x^2 (l_V b + l_O) + l_V l_O C_x^2 T (1 + 3 k zeta))

        Printed q has T for T^(3/2), `C_x^2 T + 3 k zeta` for the last bracket, and k = l_K in both. The proof takes
        the slope of relu to be Lipschitz, so across a kink the gradient may change by more.
        """
        bar, zeta, T, C_x = self.lambda_bar, self.zeta, float(self.T), self.C_x
        a = 1.0 + bar["V"] * zeta
        b = bar["O"] * C_x * np.sqrt(T) * a + 1.0
        each = self.tau1 * C_x * T * np.sqrt(T)

        def q(moved: str) -> float:
            first = 2.0 * bar[moved] * T * C_x * C_x * (bar["V"] * b + bar["O"])
            if not corrected:
                last = C_x * C_x * T + 3.0 * bar["K"] * zeta
                return self.tau0 * self.tau1 * C_x * T * (first + bar["V"] * bar["O"] * last)
            return self.tau0 * each * (first + bar["V"] * bar["O"] * C_x * C_x * T * (1.0 + 3.0 * bar[moved] * zeta))

        parts = [each * a, each * (bar["O"] * zeta + b), q("K"), q("Q")]
        return float(np.sqrt(float(self.N)) * np.linalg.norm(parts))

    @formula()
    def smoothness(self, *, corrected: bool = True) -> float:
        """C of Proposition 1, `c1 c2 + c3 sqrt(2 loss)`. Eq. (37) prints `2 c3 loss` for the last term."""
        last = self.start_distance if corrected else 2.0 * self.start_loss
        return self.c1(corrected=corrected) * self.c2() + self.c3(corrected=corrected) * last

    @formula()
    def largest_step(self, *, corrected: bool = True) -> float:
        """`1 / C`; inf where C is 0, that is, where all tokens are 0."""
        C = self.smoothness(corrected=corrected)
        return 1.0 / C if C > 0 else np.inf


OF_CONSTANTS = of_class(Constants, "al.theory.encoder.Constants")


def _norm(array: Array) -> float:
    """The spectral norm of a matrix, the Euclidean one of a vector."""
    return spectral_norm(array) if array.ndim == 2 else length(array)


def _start_loss(outputs: Array, labels: Array) -> float:
    """Half the sum of squared errors, which are numbers where their squares may not be."""
    with np.errstate(over="ignore"):
        loss = 0.5 * float(np.sum((outputs - labels) ** 2))
    if not np.isfinite(loss):
        largest = f"`y` has entries up to {np.abs(labels).max():.1e}, the outputs up to {np.abs(outputs).max():.1e}"
        raise InputError(message(f"The loss at the start is beyond float64: {largest}.", "smaller labels or tokens"))
    return loss


def least_singular_value(rows: Array) -> float:
    """The least s with `|rows^T r| >= s |r|` for all r; 0 if there are more rows than columns, or it is rounding."""
    rows = finite("rows", rows, ("n", "m"))
    n, m = rows.shape
    # SVD scales by itself, and takes numbers up to the largest.
    if n > m:
        return 0.0
    values = np.linalg.svd(rows, compute_uv=False)
    return float(values[-1]) if values[-1] > max(n, m) * EPS * values[0] else 0.0
