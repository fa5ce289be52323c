"""Conditions of the generalization bounds, written out from the appendix, to check what other code has chosen.

As in `conditions`, nothing comes from `attnlab.theory`. Every function returns, by name, what is allowed over what is
used: at least 1 where the condition is met.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log, sqrt

from attnlab.claims.multihead.conditions import rho

# Sizes that sit exactly at a condition may miss it by the rounding of a root.
EXACT = 1e-9


def met(slack: Mapping[str, float]) -> bool:
    """Is every ratio at least 1, but for rounding?"""
    return all(ratio >= 1.0 - EXACT for ratio in slack.values())


def theorem_4(
    T: int,
    d: int,
    R: float,
    *,
    D: float,
    g: float,
    H: float,
    step: float,
    K: float,
    target_loss: float,
    start_loss: float,
) -> dict[str, float]:
    """Theorem 4 and Lemma 11, Eq. (84): heads, and the four bounds on the step."""
    root = 256 * sqrt(T * d) * R**3 * (3 * sqrt(d) * R**2 * (3 * D + g) + 1) * D**2
    return {
        "sqrt(H) over 256 sqrt(Td) R^3 (...) D^2": sqrt(H) / root,
        "1 over step": 1 / step,
        "1 / rho over step": 1 / (rho(T, d, R, D, g, H) * step),
        "D^2 / (K target loss) over step": D**2 / (K * target_loss * step),
        "D^2 / start loss over step": D**2 / (start_loss * step),
    }


def corollaries_3_and_4(
    T: int,
    d: int,
    R: float,
    *,
    constant: float,
    g_0: float,
    g: float,
    g_0_of_1: float,
    H: float,
    step: float,
    start_loss: float,
) -> dict[str, float]:
    """Eq. (81) with constant 36, Eq. (95) with 256; g_0 and g at 1 / K."""
    root = constant * sqrt(T * d) * R**3 * (3 * sqrt(d) * R**2 * (3 * g_0 + g) + 1) * g_0**2
    return {
        f"sqrt(H) over {constant:g} sqrt(Td) R^3 (...) g_0^2": sqrt(H) / root,
        "1 over step": 1 / step,
        "1 / rho(K) over step": 1 / (rho(T, d, R, g_0, g, H) * step),
        "g_0(1)^2 over step": g_0_of_1**2 / step,
        "g_0(1)^2 / start loss over step": g_0_of_1**2 / (start_loss * step),
    }


def corollary_5(
    T: int, d: int, R: float, *, B2: float, B_phi: float, gamma: float, K: float, H: float, step: float
) -> dict[str, float]:
    """Corollary 5: heads and step from a good start, g_0 as printed."""
    g_0 = (2 * B_phi + log(K)) / gamma
    root = 256 * sqrt(T * d) * R**3 * B2 * (3 * sqrt(d) * R**2 * (4 * g_0 + B2) + 1) * g_0**2
    return {
        "sqrt(H) over 256 sqrt(Td) R^3 B2 (...) g_0^2": sqrt(H) / root,
        "1 over step": 1 / step,
        "1 / rho(K) over step": 1 / (rho(T, d, R, g_0, g_0 + B2, H) * step),
        "4 B_phi^2 / (gamma^2 log(1 + e^B_phi)) over step": 4 * B_phi**2 / (gamma**2 * log(1 + exp(B_phi)) * step),
    }


def lemma_15(T: int, R: float, *, S: float, P: float, star: float, n: int, delta: float, H: float) -> dict[str, float]:
    """Lemma 15: the heads from which half of gamma_star is promised."""
    root = 4 * (2 * R**3 * T * (S + P) + sqrt(T) * R) / star * sqrt(2 * log(n / delta))
    return {"sqrt(H) over 4 (2 R^3 T (S + P) + sqrt(T) R) / gamma_star ...": sqrt(H) / root}
