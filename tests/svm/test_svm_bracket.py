"""`bracket_margin`: both bounds hold in exact arithmetic, enclose the optimum, and close where they can."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import attnlab as al
from attnlab.svm import BracketStatus, bracket_margin

NORMS = ("frobenius", "nuclear", "spectral", "entrywise max")


def exact_norm(name, matrix):
    """A norm, in 60 digits."""
    if name == "frobenius":
        return mpmath.sqrt(mpmath.fsum(entry**2 for entry in matrix))
    if name == "entrywise max":
        return max(abs(entry) for entry in matrix)
    if name == "entrywise l1":
        return mpmath.fsum(abs(entry) for entry in matrix)
    singular = mpmath.svd_r(matrix, compute_uv=False)
    return singular[0] if name == "spectral" else mpmath.fsum(singular)


DUAL = {"frobenius": "frobenius", "nuclear": "spectral", "spectral": "nuclear", "entrywise max": "entrywise l1"}


def assert_certified(bracket, x, z, selected, mask=None):
    """lower <= what W attains, and what the multipliers bound <= upper, in 60 digits."""
    x, z, selected = np.asarray(x), np.asarray(z), np.asarray(selected)
    seen = (
        np.ones((*selected.shape, x.shape[1]), dtype=bool)
        if mask is None
        else np.broadcast_to(mask, (*selected.shape, x.shape[1]))
    )
    with mpmath.workdps(60):
        W = mpmath.matrix(bracket.W.tolist())
        least, total, weight = mpmath.inf, mpmath.zeros(x.shape[2], z.shape[-1]), mpmath.mpf(0)
        assert (bracket.multipliers >= 0).all()
        for at in np.ndindex(selected.shape):
            query = mpmath.matrix(z[at].tolist())
            chosen = mpmath.matrix(x[at[0], selected[at]].tolist())
            looked = W * query
            for t in range(x.shape[1]):
                if t == selected[at] or not seen[(*at, t)]:
                    assert bracket.multipliers[(*at, t)] == 0
                    continue
                row = chosen - mpmath.matrix(x[at[0], t].tolist())
                least = min(least, (row.T * looked)[0])
                multiplier = mpmath.mpf(float(bracket.multipliers[(*at, t)]))
                weight += multiplier
                total += multiplier * row * query.T
        assert abs(weight - 1) < 1e-12
        length = exact_norm(bracket.norm, W)
        assert abs(length - 1) < 1e-12
        assert bracket.lower <= least / length
        assert exact_norm(DUAL[bracket.norm], total) / weight <= bracket.upper
        assert bracket.lower <= bracket.upper


def drawn(seed, n=4, T=4, a=3, b=5):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, T, a)), rng.standard_normal((n, b)), rng.integers(T, size=n)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(4))
def test_both_bounds_hold_in_exact_arithmetic(norm, seed):
    x, z, selected = drawn(seed)
    bracket = bracket_margin(x, z, selected, norm=norm)
    assert_certified(bracket, x, z, selected)
    assert bracket.status is not BracketStatus.WIDE


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("seed", range(10))
def test_the_optimum_is_between_the_bounds(norm, seed):
    tokens = al.data.sphere(n=8, T=6, d=8, seed=seed)
    selected = np.random.default_rng(seed).integers(6, size=8)
    exact = al.solve_margin(tokens, selected, norm=norm, throw=False)
    bracket = bracket_margin(tokens.x, tokens.z, selected, norm=norm)
    assert bracket.lower <= exact.margin * (1 + 1e-6)
    assert exact.margin <= bracket.upper * (1 + 1e-6)
    assert bracket.separable == exact.feasible
    assert bracket.status is (BracketStatus.CLOSED if exact.feasible else BracketStatus.NOT_SEPARABLE)
