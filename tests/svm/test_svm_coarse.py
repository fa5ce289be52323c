"""Rounds of first order enclose the margin and come as close as asked; Newton steps do the rest."""

import numpy as np
import pytest

from attnlab.svm import BracketStatus, bracket_margin, coarse
from attnlab.svm.rows import array_rows


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


def rounds_of(x, z, selected, seen, W, tolerance=0.03):
    rows = array_rows(x, z, seen, selected)
    return rows, list(coarse.coarse_rounds(rows, rows.values(W), tolerance))


@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(6))
def test_the_last_round_is_as_close_as_asked(seed, spread):
    x, z, selected, seen, W = problem(seed, spread=spread)
    sharp = bracket_margin(x, z, selected, mask=seen, tolerance=1e-8)
    _, rounds = rounds_of(x, z, selected, seen, W)
    lower = max(one.values.min() / np.linalg.norm(one.W) for one in rounds)
    upper = min(np.linalg.norm(one.W) / one.multipliers.sum() for one in rounds)
    assert sharp.lower * (1 - 0.03) <= lower <= sharp.upper
    assert sharp.lower <= upper <= sharp.upper * (1 + 0.03)


@pytest.mark.parametrize("seed", range(4))
def test_every_round_says_what_its_multipliers_give(seed):
    x, z, selected, seen, W = problem(seed)
    rows, rounds = rounds_of(x, z, selected, seen, W)
    assert rounds
    matrices = rows.p[:, :, None] * rows.queries[rows.query][:, None, :]  # (N, a, b)
    for one in rounds:
        total = np.tensordot(one.multipliers, matrices, axes=1)
        np.testing.assert_allclose(one.W, total, rtol=1e-12, atol=1e-12 * np.abs(total).max())
        np.testing.assert_allclose(one.values, np.tensordot(matrices, one.W, axes=2), rtol=1e-9, atol=1e-12)
        assert one.multipliers.min() >= 0


@pytest.mark.parametrize("tolerance", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("seed", range(5))
def test_first_order_is_enough_for_a_coarse_bracket(seed, tolerance):
    """No Newton step is taken, and the bracket is as narrow and as true as one that takes them."""
    x, z, selected, seen, _ = problem(seed, n=40, T=9, a=12, b=10)
    sharp = bracket_margin(x, z, selected, mask=seen, tolerance=1e-8)
    found = bracket_margin(x, z, selected, mask=seen, tolerance=tolerance)
    assert found.steps == 0
    assert found.status is BracketStatus.CLOSED
    assert found.gap <= tolerance
    assert found.lower <= sharp.upper
    assert sharp.lower <= found.upper


def test_a_bracket_that_is_fine_takes_newton_steps():
    x, z, selected, seen, _ = problem(0)
    found = bracket_margin(x, z, selected, mask=seen, tolerance=1e-6)
    assert found.steps > 0
    assert found.gap <= 1e-6


@pytest.mark.parametrize("limit", ["STEPS", "MOST"])
def test_where_first_order_gives_up_newton_steps_go_on(limit, monkeypatch):
    """Rounds that do not end, or too many constraints for their Gram matrix: the bracket is as narrow all the same."""
    monkeypatch.setattr(coarse, limit, 8)
    x, z, selected, seen, _ = problem(1, spread=0.5)
    found = bracket_margin(x, z, selected, mask=seen)
    assert found.steps > 0
    assert found.status is BracketStatus.CLOSED


def test_what_nothing_separates_is_not_waited_for():
    """Equal tokens and queries with opposite selections: the upper bound is zero after one round, and that ends it."""
    x = np.array([[[1.0], [0.0]], [[1.0], [0.0]]])
    rows = array_rows(x, np.ones((2, 1)), None, np.array([0, 1]))
    rounds = list(coarse.coarse_rounds(rows, rows.values(np.eye(1)), 0.03))
    assert len(rounds) == 1
    assert bracket_margin(x, np.ones((2, 1)), [0, 1]).status is BracketStatus.NOT_SEPARABLE
