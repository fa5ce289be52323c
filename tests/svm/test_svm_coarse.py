"""Coarse brackets enclose the margin that certified ones find, and come as close as asked."""

import numpy as np
import pytest

import attnlab as al
from attnlab.svm.coarse import coarse_bracket


def problem(seed, n=20, T=7, a=6, b=5, spread=0.0):
    """Selections that some W makes, with keys and queries of unequal widths, and hidden keys."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, T, a)) * np.exp(-spread * np.arange(a))
    z = rng.standard_normal((n, b)) * np.exp(-spread * np.arange(b))
    W = rng.standard_normal((a, b))
    seen = rng.random((n, T)) < 0.8
    seen[:, :2] = True
    logits = np.where(seen, np.einsum("nta,ab,nb->nt", x, W, z), -np.inf)
    return x, z, logits.argmax(1), seen, W


@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(6))
def test_bounds_enclose_the_margin(seed, spread):
    x, z, selected, seen, W = problem(seed, spread=spread)
    sharp = al.svm.bracket_margin(x, z, selected, mask=seen, tolerance=1e-6)
    found = coarse_bracket(x, z, selected, seen, tolerance=0.03, start=W)
    assert found.lower <= sharp.upper
    assert sharp.lower <= found.upper
    assert found.upper - found.lower <= 0.03 * found.upper


@pytest.mark.parametrize("seed", range(4))
def test_both_bounds_are_what_W_and_multipliers_give(seed):
    x, z, selected, seen, W = problem(seed)
    found = coarse_bracket(x, z, selected, seen, tolerance=0.05, start=W)
    leads, total = [], np.zeros_like(W)
    for i in range(len(x)):
        for t in np.flatnonzero(seen[i]):
            if t != selected[i]:
                A = np.outer(x[i, selected[i]] - x[i, t], z[i])
                leads.append(np.sum(A * found.W))
                total += found.multipliers[i, t] * A
    assert np.linalg.norm(found.W) == pytest.approx(1)
    assert found.lower == pytest.approx(min(leads))
    assert found.multipliers.min() >= 0
    assert found.multipliers.sum() == pytest.approx(1)
    assert found.upper == pytest.approx(np.linalg.norm(total))
    assert not found.multipliers[~seen].any()


def test_what_nothing_separates_has_no_positive_lower_bound():
    x = np.array([[[1.0], [0.0]], [[1.0], [0.0]]])
    found = coarse_bracket(
        x, np.ones((2, 1)), np.array([0, 1]), np.ones((2, 2), dtype=bool), tolerance=0.03, start=np.eye(1)
    )
    assert found.lower <= 0
