"""Directions compared: against arithmetic of 60 digits."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnlab as al

few = settings(deadline=None, max_examples=60, database=None, derandomize=True)


@pytest.fixture(autouse=True, scope="module")
def _sixty_digits():
    with mpmath.workdps(60):
        yield


def exact_cosine(a, b):
    a, b = ([mpmath.mpf(float(x)) for x in np.ravel(m)] for m in (a, b))
    inner = mpmath.fsum(x * y for x, y in zip(a, b, strict=True))
    return inner / mpmath.sqrt(mpmath.fsum(x * x for x in a) * mpmath.fsum(y * y for y in b))


@few
@given(seed=st.integers(0, 2**32 - 1), d=st.integers(1, 6), log_a=st.integers(-200, 200), log_b=st.integers(-200, 200))
def test_both_match_exact_arithmetic_at_any_scale(seed, d, log_a, log_b):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((d, d + 1)) * 10.0**log_a
    b = rng.standard_normal((d, d + 1)) * 10.0**log_b
    want = exact_cosine(a, b)
    assert float(abs(al.cosine(a, b) - want)) < 1e-15 * (2 + d)
    assert float(abs(al.misalignment(a, b) / (1 - want) - 1)) < 1e-13


@few
@given(log_angle=st.floats(-16, 0), seed=st.integers(0, 2**32 - 1))
def test_a_small_angle_off_a_sparse_direction_keeps_full_relative_accuracy(log_angle, seed):
    """Misalignments from 1/2 down to 1e-32 of the direction E_11."""
    rng = np.random.default_rng(seed)
    target = np.zeros((3, 3))
    target[0, 0] = rng.uniform(0.5, 2.0)
    a = np.where(target > 0, rng.uniform(0.5, 2.0), 10.0**log_angle * rng.standard_normal((3, 3)))
    want = 1 - exact_cosine(a, target)
    assert float(abs(al.misalignment(a, target) / want - 1)) < 1e-14
    assert float(abs(al.misalignment(target, a) / want - 1)) < 1e-12 + 1e-15 / 10**log_angle


@few
@given(log_angle=st.floats(-15, 0), seed=st.integers(0, 2**32 - 1))
def test_angles_between_full_matrices_are_right_to_rounding(log_angle, seed):
    """Rounding a full matrix to unit length turns it by up to 1e-16; the angle is right to a few times that."""
    rng = np.random.default_rng(seed)
    b = rng.standard_normal((4, 4))
    a = 3.7 * (b + 10.0**log_angle * rng.standard_normal((4, 4)))
    angle = mpmath.sqrt(2 * (1 - exact_cosine(a, b)))
    got = mpmath.sqrt(2 * mpmath.mpf(float(al.misalignment(a, b))))
    assert float(abs(got - angle)) < 3e-16 + 1e-14 * 10**log_angle


@few
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-600, 600))
def test_a_power_of_two_changes_no_bit(seed, power):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, 3, 3))
    scaled = a * 2.0**power
    assert al.misalignment(scaled, b) == al.misalignment(a, b)
    assert al.cosine(scaled, b) == al.cosine(a, b)


def test_opposite_and_orthogonal_directions():
    a = np.array([[3.0, -4.0], [0.0, 0.0]])
    assert al.cosine(a, -2 * a) == pytest.approx(-1.0, abs=1e-15)
    assert al.misalignment(a, -2 * a) == pytest.approx(2.0, abs=1e-15)
    b = np.array([[4.0, 3.0], [0.0, 0.0]])
    assert al.cosine(a, b) == pytest.approx(0.0, abs=1e-16)
    assert al.misalignment(a, b) == pytest.approx(1.0, abs=1e-15)
    assert al.misalignment(a, 7 * a) < 1e-31


def test_zero_has_no_direction():
    """NaN, and no warning (warnings are errors here)."""
    zero, one = np.zeros((2, 2)), np.eye(2)
    for a, b in ((zero, one), (one, zero), (zero, zero)):
        assert np.isnan(al.cosine(a, b))
        assert np.isnan(al.misalignment(a, b))
    stack = np.stack([zero, one])
    np.testing.assert_array_equal(np.isnan(al.cosine(stack, one)), [True, False])
    np.testing.assert_array_equal(np.isnan(al.misalignment(one, stack)), [True, False])


def test_leading_axes_broadcast():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 1, 3, 2)), rng.standard_normal((5, 3, 2))
    for function in (al.cosine, al.misalignment):
        got = function(a, b)
        assert got.shape == (4, 5)
        want = [[function(a[i, 0], b[j]) for j in range(5)] for i in range(4)]
        np.testing.assert_allclose(got, want, rtol=1e-14)
    assert np.ndim(al.cosine(a[0, 0], b[0])) == 0


@pytest.mark.parametrize("function", [al.cosine, al.misalignment])
def test_shapes_are_checked(function):
    with pytest.raises(al.InputError, match="`a` has shape"):
        function([1.0, 2.0], np.eye(2))
    with pytest.raises(al.InputError, match="`b` has shape"):
        function(np.eye(2), 3.0)
    with pytest.raises(al.InputError, match=r"`a` has matrices of shape \(2, 2\), `b` of \(3, 3\)"):
        function(np.eye(2), np.eye(3))
