"""Proofs that nothing separates, checked in rational numbers: what the weights combine must cancel."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

CANCELS = Fraction(1, 10**9)  # relative to the sizes of what is added up
ONE = Fraction(1, 10**9)  # the weights add up to 1 to this


def cancels(tokens: Any, selected: Any, where: list[tuple[int, ...]], equal: np.ndarray, farkas: Any) -> str | None:
    """Do these weights prove that no W separates the selected tokens?"""
    if farkas is None or np.shape(farkas) != (*np.shape(selected), tokens.T):
        return "the proof is not laid out as the tokens are"
    weights = np.asarray(farkas, dtype=np.float64)
    if not np.isfinite(weights).all():
        return "the proof is not finite"
    elsewhere = np.ones(weights.shape, dtype=bool)
    for position in where:
        elsewhere[position] = False
    if (weights[elsewhere] != 0).any():
        return "the proof has weight where there is no constraint"
    p, q, exact = [], [], []
    for position in where:
        i, t = position[0], position[-1]
        own = tokens.x[i, selected[position[:-1]]]
        p.append([Fraction(float(a)) - Fraction(float(b)) for a, b in zip(own, tokens.x[i, t], strict=True)])
        q.append([Fraction(float(a)) for a in tokens.z[position[:-1]]])
        exact.append(Fraction(float(weights[position])))
    return _weights(exact, equal) or _products_cancel(exact, p, q)


def features_cancel(x: np.ndarray, y: np.ndarray, farkas: Any) -> str | None:
    """Do these weights prove that no direction separates the labels?"""
    if farkas is None or np.shape(farkas) != y.shape or not np.isfinite(farkas).all():
        return "the proof is not one finite weight per point"
    exact = [Fraction(float(weight)) for weight in farkas]
    p = [[Fraction(float(a)) * int(sign) for a in row] for row, sign in zip(x, y, strict=True)]
    one = [[Fraction(1)]] * len(p)
    return _weights(exact, np.zeros(len(p), dtype=bool)) or _products_cancel(exact, p, one)


def kernel_cancels(signed: np.ndarray, farkas: Any, lengths_to: float = 1e-6) -> str | None:
    """The same of a Gram matrix, which knows lengths to 1e-7 of the largest."""
    if farkas is None or np.shape(farkas) != signed.shape[:1] or not np.isfinite(farkas).all():
        return "the proof is not one finite weight per point"
    weights = np.asarray(farkas).astype(np.longdouble)
    if (weights < 0).any() or abs(float(weights.sum() - 1)) > float(ONE):
        return "the proof has negative weights, or they do not add up to 1"
    square = weights @ signed @ weights
    size = (weights * np.sqrt(np.maximum(np.diag(signed), 0))).sum()
    largest = np.sqrt(np.abs(signed).max())
    if square > (np.longdouble(lengths_to) * max(size, np.longdouble(1e-3) * largest)) ** 2 and size > 0:
        return f"the proof leaves {float(np.sqrt(square) / size):.1e} of its size"
    return None


def _weights(exact: list[Fraction], equal: np.ndarray) -> str | None:
    counted = [weight for weight, level in zip(exact, equal, strict=True) if not level]
    if any(weight < 0 for weight in counted):
        return "the proof has negative weights"
    if abs(sum(counted, Fraction(0)) - 1) > ONE:
        return f"the weights of the proof add up to {float(sum(counted, Fraction(0)))}"
    return None


def _products_cancel(weights: list[Fraction], p: list[list[Fraction]], q: list[list[Fraction]]) -> str | None:
    """Is sum l p q^T zero, relative to the sum of its sizes?"""
    total: dict[tuple[int, int], Fraction] = {}
    sizes = Fraction(0)
    for weight, left, right in zip(weights, p, q, strict=True):
        if weight == 0:
            continue
        sizes += abs(weight) * max(map(abs, left)) * max(map(abs, right))
        for a, above in enumerate(left):
            for b, beside in enumerate(right):
                total[a, b] = total.get((a, b), Fraction(0)) + weight * above * beside
    worst = max(map(abs, total.values()), default=Fraction(0))
    if worst > CANCELS * sizes:
        return f"the proof leaves {float(worst / sizes):.1e} of its size"
    return None
