"""What normalization keeps, and what counts as a proof that no W separates: at every scale, entry by entry."""

import warnings

import numpy as np
import pytest
from exact_verifier import judge_proof
from svm_cases import cross, scaled

import attnlab as al
from attnlab import InputError, Tokens
from attnlab.svm import MarginStatus, norms
from attnlab.svm.proof import cancellation, proving, proving_vectors
from attnlab.svm.rows import Rows, selected_rows
from attnlab.svm.scales import REACH, normalized


@pytest.fixture(autouse=True)
def _every_warning_is_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("seed", range(5))
def test_normalized_rows_are_the_rows_times_powers_of_two(seed):
    rng = np.random.default_rng(seed)
    tokens, selected = cross(seed)
    powers = rng.integers(-500, 500, tokens.n)
    far = Tokens(x=np.ldexp(tokens.x, powers[:, None, None]), z=tokens.z, y=tokens.y)
    rows = selected_rows(far, selected)
    small, scale = normalized(rows)
    own = -(scale.exponent + scale.excess)
    for j in range(len(rows)):
        whole, part = (np.outer(one.p[j], one.queries[one.query[j]]) for one in (rows, small))
        np.testing.assert_array_equal(np.ldexp(whole, own[j]), part)
    sizes = np.abs(small.p).max(1) * np.abs(small.queries).max(1)[small.query]
    assert 0.25 <= sizes.min() < 1.0
    assert sizes.max() <= 2.0**REACH
    assert (scale.excess >= 0).all()


@pytest.mark.parametrize("power", [-1000, -300, 0, 300, 900])
def test_cancellation_is_the_same_at_every_scale(power):
    """Three rows of which the third is minus the sum of the others, but for one part in 2^20 of one entry."""
    p = np.array([[1.0, 2.0], [3.0, -1.0], [-4.0, -1.0 + 2.0**-20]])
    for split in (0, power // 2):
        rows = Rows(np.ldexp(p, power - split), np.ldexp(np.array([[1.0, 0.5]]), split), np.zeros(3, dtype=int),
                    np.arange(3), (1, 3))  # fmt: skip
        assert cancellation(rows, np.ones(3)) == pytest.approx(2.0**-20 / (4 - 2.0**-20), rel=1e-12)
        assert proving(rows, np.ones(3)) is None
        assert proving(rows, np.zeros(3)) is None
        assert proving(rows, np.array([-1.0, 1.0, 1.0])) is None


def test_a_proof_may_leave_out_what_is_rounding_only():
    """The third row weighs nothing; with it the second entry would not cancel."""
    p = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    rows = Rows(p, np.array([[1.0, 0.0]]), np.zeros(3, dtype=int), np.arange(3), (1, 3))
    np.testing.assert_array_equal(proving(rows, np.array([0.5, 0.5, 1e-16])), [0.5, 0.5, 0.0])
    assert proving(rows, np.array([0.5, 0.5, 1e-3])) is None


def two_rows(shift=None):
    """1 and -1, the first of them twice as long if `shift` says so."""
    return Rows(np.array([[1.0], [-1.0]]), np.ones((1, 1)), np.zeros(2, dtype=int), np.arange(2), (1, 2), shift=shift)


def test_products_that_overflow_cancel_like_any_others():
    """Differences and queries of 2^600: no product of the two is a float64 number."""
    p = np.ldexp(np.array([[1.0, 2.0], [-1.0, -2.0]]), 600)
    rows = Rows(p, np.ldexp(np.array([[1.0, 3.0]]), 600), np.zeros(2, dtype=int), np.arange(2), (1, 2))
    assert cancellation(rows, np.array([0.5, 0.5])) == 0.0
    assert cancellation(rows, np.array([0.25, 0.75])) == 0.5


def test_a_difference_beyond_the_largest_number_counts_in_full():
    assert cancellation(two_rows(), np.array([0.5, 0.5])) == 0.0
    doubled = two_rows(np.array([1, 0]))
    assert cancellation(doubled, np.array([1.0, 2.0])) == 0.0
    assert cancellation(doubled, np.array([0.5, 0.5])) == pytest.approx(1 / 3)


def test_only_what_is_rounding_is_left_out_of_a_proof():
    p = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    rows = Rows(p, np.array([[1.0, 0.0]]), np.zeros(3, dtype=int), np.arange(3), (1, 3))
    assert proving(rows, np.array([0.5, 0.5, 1e-9])) is None


def test_vectors_that_cancel_in_every_entry_are_a_proof():
    points, even = np.array([[1.0, 1e-200], [-1.0, -1e-200]]), np.array([0.5, 0.5])
    np.testing.assert_array_equal(proving_vectors(points, even), even)
    assert proving_vectors(np.array([[1.0, 1e-200], [-1.0, 1e-200]]), even) is None
    assert proving_vectors(np.array([[1.0, 1.0], [-1.0, -1.0 + 1e-6]]), even) is None
    for wrong in ([0.0, 0.0], [-0.5, -0.5], [np.nan, 0.5], [0.4, 0.6]):
        assert proving_vectors(points, np.array(wrong)) is None
    three = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_array_equal(proving_vectors(three, np.array([0.5, 0.5, 1e-16])), [0.5, 0.5, 0.0])


def test_a_proof_with_rows_beyond_reach():
    """Opposite rows 2^450 apart: weights 2^-450 and 1 prove it."""
    tokens = Tokens(x=[[[2.0**250], [0.0]], [[-(2.0**-200)], [0.0]]], z=[[1.0], [1.0]], y=[1, 1])
    for norm in ("frobenius", "nuclear", norms.SPECTRAL, norms.ENTRYWISE_L1):
        found = al.solve_margin(tokens, [0, 0], norm=norm, throw=False)
        assert found.status is MarginStatus.INFEASIBLE
        assert found.farkas[0, 1] == pytest.approx(2.0**-450, rel=1e-9, abs=0.0)
        assert judge_proof(tokens, found) == []


def test_constraints_of_extreme_scale_refuse_products_that_overflow():
    tokens, selected = cross(0)
    rows = al.svm.margin_rows(scaled(tokens, 500, 600), selected)
    for product_of in (rows.gram, lambda: rows.query_gram, lambda: rows.norms, lambda: rows.values(np.eye(tokens.d))):
        with pytest.raises(InputError, match="`x` and `z` are so large"):
            product_of()
    near = al.svm.margin_rows(tokens, selected)
    small = al.svm.margin_rows(scaled(tokens, -600, 100), selected)
    np.testing.assert_allclose(np.ldexp(small.norms, 500), near.norms, rtol=1e-14)
