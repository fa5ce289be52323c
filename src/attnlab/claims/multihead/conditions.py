"""Conditions of the appendix, written out from its text, to check instances that other code has chosen.

Nothing here comes from `attnlab.theory`: a wrong constant there chooses instances that miss these conditions, and the
claim then says that it does not apply. T tokens of dimension d, none longer than R >= 1; D is the distance of the
target from the start over all heads, g the longest head of the target.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from attnlab.data.tokens import Array


def longest_token(x: Array) -> float:
    """R of Assumption 1: the longest token, or 1 if that is less."""
    lengths = [float(np.sqrt(np.dot(token, token))) for token in x.reshape(-1, x.shape[-1])]
    return max(1.0, *lengths)


def beta_1(T: int, R: float, m: float) -> float:
    """Corollary 1: sqrt(T) R (2 R^2 m + 1)."""
    return sqrt(T) * (2 * R**3 * m + R)


def beta_2(T: int, d: int, R: float, m: float, H: float) -> float:
    """Corollary 1: beta_3 / sqrt(H) + beta_1^2 / 4."""
    return beta_3(T, d, R, m) / sqrt(H) + beta_1(T, R, m) ** 2 / 4


def beta_3(T: int, d: int, R: float, m: float) -> float:
    """Corollary 1: 2 sqrt(T d) R^3 (3 sqrt(d) R^2 m + 1)."""
    return 6 * d * sqrt(T) * R**5 * m + 2 * sqrt(T * d) * R**3


def sharp_beta_1(T: int, R: float, m: float) -> float:
    """sqrt(T) R (R^2 m + 1), see multihead-C-SH."""
    return sqrt(T) * (R**3 * m + R)


def sharp_beta_3(T: int, R: float, m: float) -> float:
    """sqrt(T) R^3 (2 R^2 m + 1), see multihead-C-SH."""
    return sqrt(T) * (2 * R**5 * m + R**3)


def root_of_heads(T: int, d: int, R: float, D: float, g: float) -> float:
    """Theorem 3 and Lemma 10, Eq. (74): what sqrt(H) must be at least."""
    return 36 * sqrt(T * d) * R**3 * (3 * sqrt(d) * R**2 * (3 * D + g) + 1) * D**2


def sharp_root_of_heads(T: int, R: float, D: float, g: float) -> float:
    """The same with 18 beta_3(3 D + g) D^2 for the sharp beta_3."""
    return 18 * sharp_beta_3(T, R, 3 * D + g) * D**2


def rho(T: int, d: int, R: float, D: float, g: float, H: float) -> float:
    """Theorem 3: (2 sqrt(T d) R^3 / sqrt(H) + T R^2 / 4) alpha^2."""
    alpha = 3 * sqrt(d) * R**2 * (3 * sqrt(T) * R**3 * (3 * D + g) + 2 * sqrt(T) * R)
    return (2 * sqrt(T * d) * R**3 / sqrt(H) + T * R**2 / 4) * alpha**2


def sharp_rho(T: int, R: float, D: float, g: float, H: float) -> float:
    """What the proof of Theorem 3 needs, with sharp constants: beta_2 where one step of size 1 can lead."""
    m = 3 * D + g
    further = m + sharp_beta_1(T, R, m)
    return sharp_beta_3(T, R, further) / sqrt(H) + sharp_beta_1(T, R, further) ** 2 / 4


def root_of_heads_98(T: int, d: int, R: float, B2: float, B_phi: float, gamma: float, eps: float) -> float:
    """Proposition 7, Eq. (98): what sqrt(H) must be at least."""
    G = (2 * B_phi + np.log(1 / eps)) / gamma
    return float(5 * sqrt(T * d) * R**3 * (B2 / B_phi) * (3 * sqrt(d) * R**2 + 1) * G**2 * max(1.0, G))
