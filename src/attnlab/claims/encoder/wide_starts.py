"""Constants of Proposition 1 at starts of any width, a few rows of the weights at a time; and their limits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy.special

from attnlab.claims.encoder.batch import Draws, evaluate, tokens
from attnlab.claims.encoder.runs import conditions_written_out
from attnlab.data.tokens import Array
from attnlab.theory.encoder import Constants

BLOCK = 2**21  # numbers of a matrix that are held at a time
GAIN = {"lecun": 1.0, "he": 2.0}  # times 1 / d, or 1 / m for w_O; "ntk" has variance 1


class Case(NamedTuple):
    """A start, with C_P = radius and labels +-1, or at a given distance from the outputs."""

    law: str
    scaling: str  # "sqrt" for tau0 = m^(-1/2), "linear" for 1/m
    N: int
    T: int
    d: int
    m: float  # whole for real starts
    seed: int = 0
    radius: float = 1.0
    distance: float | None = None
    orthonormal: bool = False
    turned: float | None = None  # the angle between the two tokens of each sequence

    @property
    def tau0(self) -> float:
        return float(self.m) ** {"sqrt": -0.5, "linear": -1.0}[self.scaling]

    @property
    def tau1(self) -> float:
        return 1.0 if self.law in GAIN else float(self.m) ** -0.5

    @property
    def variances(self) -> tuple[float, float]:
        """Of the entries of W_Q, W_K and W_V, and of w_O."""
        gain = GAIN.get(self.law)
        return (1.0, 1.0) if gain is None else (gain / self.d, gain / self.m)

    @property
    def x(self) -> Array:
        """Gaussian tokens of length 1, or orthonormal ones, or orthonormal pairs turned to an angle, (N, T, d)."""
        if not self.orthonormal:
            return tokens(self.N, self.T, self.d, seed=self.seed)[0]
        x = np.eye(self.d)[: self.N * self.T].reshape(self.N, self.T, self.d)
        if self.turned is not None:
            x[:, 1] = np.cos(self.turned) * x[:, 0] + np.sin(self.turned) * x[:, 1]
        return x


def blocks(m: float, d: int) -> Iterator[int]:
    """Numbers of rows that add up to m."""
    size = max(1, BLOCK // d)
    for first in range(0, int(m), size):
        yield min(size, int(m) - first)


@cache
def start_constants(case: Case) -> Constants:
    """Norms, alpha and first loss of a start. Largest eigenvalues come from Gram matrices, and alpha from F F^T: its
    least eigenvalue is no smaller than 1/1000 of the largest here, and loses nothing to rounding."""
    rng = np.random.default_rng((case.seed, case.d, int(case.m), 1))
    inner, outer = case.variances
    x, d = case.x, case.d
    gram = {p: np.zeros((d, d)) for p in "QKV"}
    product = np.zeros((d, d))
    for rows in blocks(case.m, d):
        W_Q, W_K = (np.sqrt(inner) * rng.standard_normal((rows, d)) for _ in range(2))
        gram["Q"] += W_Q.T @ W_Q
        gram["K"] += W_K.T @ W_K
        product += W_Q.T @ W_K
    attended = scipy.special.softmax(case.tau0 * x @ product @ np.swapaxes(x, -1, -2), axis=-1) @ x  # (N, T, d)
    kernel = np.zeros((case.N, case.N))
    outputs = np.zeros(case.N)
    square_O = 0.0
    for rows in blocks(case.m, d):
        W_V = np.sqrt(inner) * rng.standard_normal((rows, d))
        w_O = np.sqrt(outer) * rng.standard_normal(rows)
        F = case.tau1 * np.maximum(attended @ W_V.T, 0.0).sum(1)  # (N, rows)
        gram["V"] += W_V.T @ W_V
        kernel += F @ F.T
        outputs += F @ w_O
        square_O += float(w_O @ w_O)
    labels = np.random.default_rng((case.seed, 4)).choice((-1.0, 1.0), case.N)
    distance = float(np.linalg.norm(outputs - labels)) if case.distance is None else case.distance
    norms = {p: float(np.sqrt(np.linalg.eigvalsh(G)[-1])) for p, G in gram.items()}
    return constants(case, {**norms, "O": square_O**0.5}, float(np.sqrt(np.linalg.eigvalsh(kernel)[0])), distance)


def drawn_constants(case: Case, draws: Draws, y: Array) -> Constants:
    """Of a start that is held in memory, with these labels; norms from Gram matrices, as above."""
    at = evaluate(draws)
    norms = {
        p: float(np.sqrt(np.linalg.eigvalsh(W.T @ W)[-1]))
        for p, W in zip("QKV", (draws.Q[0], draws.K[0], draws.V[0]), strict=True)
    }
    norms["O"] = float(np.linalg.norm(draws.O[0]))
    alpha = float(np.linalg.svd(at.hidden[0], compute_uv=False)[-1])
    return constants(case, norms, alpha, float(np.linalg.norm(at.outputs[0] - y)))


def limit_constants(case: Case) -> Constants:
    """What a wide LeCun or He start with orthonormal tokens comes to.

    Norms are sqrt(m variance) + sqrt(d variance). With d large logits vanish, attention is uniform, mean tokens are
    orthogonal of length T^(-1/2), and alpha^2 = (m variance) T (1/2 - 1 / (2 pi)), or without the second term for N =
    1. Outputs are Gaussian with variance (m variance) var(w_O) T / 2.
    """
    inner, outer = case.variances
    size = float(np.sqrt(case.m * inner) + np.sqrt(case.d * inner))
    norms = {"Q": size, "K": size, "V": size, "O": float(np.sqrt(case.m * outer))}
    least = 0.5 - (1.0 / (2.0 * np.pi) if case.N > 1 else 0.0)
    alpha = float(np.sqrt(case.m * inner * case.T * least))
    square = case.N * (1.0 + case.m * inner * outer * case.T / 2.0)
    return constants(case, norms, alpha, float(np.sqrt(square)) if case.distance is None else case.distance)


def constants(case: Case, norms: dict[str, float], alpha: float, distance: float) -> Constants:
    """Of a case, with what was measured of it."""
    return Constants(
        N=case.N,
        T=case.T,
        d=case.d,
        width=max(1, int(case.m)),
        tau0=case.tau0,
        tau1=case.tau1,
        C_x=1.0,
        norms=norms,
        radius=dict.fromkeys("QKVO", case.radius),
        alpha=alpha,
        start_loss=0.5 * distance**2,
    )


def margins(c: Constants) -> tuple[float, float]:
    """Left over right side of (2) and of (3)."""
    return c.condition_2.margin, c.condition_3.margin


def margins_again(c: Constants) -> tuple[float, float]:
    """The same, from the formulas as they are written out a second time."""
    return conditions_written_out(
        N=c.N,
        T=c.T,
        tau0=c.tau0,
        tau1=c.tau1,
        C_x=c.C_x,
        norms=c.norms,
        radius=c.radius,
        alpha=c.alpha,
        distance=c.start_distance,
    )


def critical_width(case: Case, condition: int) -> float:
    """The width from which (2), condition 0, or (3), condition 1, holds in the limit: by halving, as margins grow."""
    low, high = np.log(2.0), np.log(1e18)
    for _ in range(100):
        middle = 0.5 * (low + high)
        wide = case._replace(m=float(np.exp(middle)))
        if margins(limit_constants(wide))[condition] < 1.0:
            low = middle
        else:
            high = middle
    return float(np.exp(high))
