"""Powers of two taken out of arrays: exact, against exact arithmetic of fractions."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.models import powers

SIZES = st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


@given(st.lists(SIZES, min_size=1, max_size=5))
@settings(deadline=None)
def test_the_exponent_is_the_least_power_above_all(entries):
    e = int(powers.exponent(np.array(entries), (0,)))
    largest = max(abs(Fraction(a)) for a in entries)
    if largest == 0:
        assert e == 0
    else:
        assert Fraction(2) ** (e - 1) <= largest < Fraction(2) ** e


def test_exponents_along_some_axes():
    array = np.array([[[3.0, 0.5], [0.0, 0.0]], [[1e-300, 0.0], [0.0, -8.0]]])
    np.testing.assert_array_equal(powers.exponent(array, (-1,)), [[2, 0], [-996, 4]])
    np.testing.assert_array_equal(powers.exponent(array, (-2, -1)), [2, 4])
    lowered = powers.lowered(array, powers.exponent(array, (-1,)), 1)
    np.testing.assert_array_equal(np.abs(lowered).max(-1) >= 0.5, [[True, False], [True, True]])
    np.testing.assert_array_equal(lowered[0, 0], [0.75, 0.125])
    np.testing.assert_array_equal(powers.lowered(array, np.array([1, 3]), 2)[1, 1], [0.0, -1.0])


def test_rows_of_several_powers_as_rows_of_one():
    """2^e times each row; the largest power of a row that is not zero comes out."""
    rows = np.array([[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]])
    array, top = powers.of_one_power(rows, np.array([10, 900, 12]))
    assert top == 12
    np.testing.assert_array_equal(array, [[0.25, 0.5], [0.0, 0.0], [3.0, 0.0]])
    assert powers.of_one_power(np.zeros((2, 2)), np.array([5, 6]))[1] == 0


@pytest.mark.parametrize(("exponents", "ordinary"), [([0, 170], True), ([-170], True), ([171], False), ([-171], False)])
def test_what_is_ordinary(exponents, ordinary):
    assert powers.is_ordinary(np.array(exponents)) is ordinary


@pytest.mark.parametrize("name", ["K", "Q"])
@pytest.mark.parametrize(("exponent", "ordinary"), [(200, True), (201, False), (-200, True), (-201, False)])
def test_factors_that_are_multiplied_without_care(name, exponent, ordinary):
    weights = {"K": np.eye(2), "Q": np.eye(2), "W": np.full((2, 2), 1e300)}
    weights[name] = np.ldexp(np.full((2, 2), 0.5), exponent)
    assert powers.are_ordinary(weights) is ordinary
    weights[name] = np.stack([np.eye(2), weights[name]])
    assert powers.are_ordinary(weights) is ordinary


@pytest.mark.parametrize("exponent", [-50, -7, 0, 30])
def test_ranges_are_inclusive(exponent):
    array = np.array([[np.ldexp(0.75, exponent), 0.0], [0.0, 0.0]])
    powers.check_range("x", array[:1], 1, most=exponent, least=exponent)
    for most, least in ((exponent - 1, -100), (100, exponent + 1)):
        with pytest.raises(al.InputError, match="`x` has entries of about"):
            powers.check_range("x", array[:1], 1, most=most, least=least)


def test_a_range_is_that_of_every_row_and_has_a_mirror():
    """Without `least` it reaches as far down as up; a zero row is of exponent 0."""
    small = np.ldexp(0.5, -171)
    powers.check_range("x", np.array([[2 * small, 1.0], [0.0, 0.0]]), 1)
    with pytest.raises(al.InputError, match=r"of about 3e-52; .* from 7e-52 to 1e\+51") as caught:
        powers.check_range("x", np.array([[1.0, 0.5], [small, 0.0]]), 1)
    assert "divide `x` by its largest entry" in str(caught.value)
    powers.check_range("x", np.array([[1.0, 0.5], [small, 0.0]]), 2)  # the largest of both rows


@pytest.mark.parametrize(("spread", "refused"), [(1000, False), (1001, True)])
def test_a_matrix_whose_small_entries_would_vanish(spread, refused):
    matrix = np.array([[np.ldexp(0.5, 500), 0.0], [1.0, np.ldexp(0.5, 500 - spread)]])
    if not refused:
        powers.check_spread("W", matrix)
        return
    for wide in (matrix, np.stack([np.eye(2), matrix])):
        with pytest.raises(al.InputError, match="`W` has entries whose sizes differ by more than 1e300"):
            powers.check_spread("W", wide)
    powers.check_spread("W", np.zeros((2, 2)))
    powers.check_spread("W", np.stack([1e-200 * np.eye(2), 1e200 * np.eye(2)]))  # each trial by itself


@given(SIZES, st.integers(-2100, 2100))
@settings(deadline=None)
def test_times_a_power_is_exact_where_it_is_a_normal_float(a, power):
    found = float(powers.times_power(jnp.asarray(a), jnp.asarray(power)))
    exact = Fraction(a) * Fraction(2) ** power
    normal = a == 0 or Fraction(2) ** -1022 <= abs(exact) < Fraction(2) ** 1024
    if normal and (a == 0 or abs(a) >= np.finfo(float).tiny):  # XLA takes denormal numbers for zero
        assert Fraction(found) == exact


@pytest.mark.parametrize("entries", [[3.0, -0.1], [1e300, 1.0], [-2e-300, 1e-305], [0.0, 0.0], [1.0, 0.5]])
def test_a_unit_and_its_power(entries):
    unit, power = powers.unit_power(np.array(entries))
    np.testing.assert_array_equal(np.ldexp(np.asarray(unit), int(power)), entries)
    assert float(jnp.max(jnp.abs(unit))) < 1
    assert float(jnp.max(jnp.abs(unit))) >= 0.5 or not any(entries)


def test_what_is_not_finite_has_no_power():
    unit, power = powers.unit_power(np.array([np.inf, 1.0]))
    assert int(power) == 0
    np.testing.assert_array_equal(unit, [np.inf, 1.0])


def test_results_that_overflowed_are_refused():
    powers.check_finite("loss", [1.0, np.zeros(3)])
    with pytest.raises(al.InputError, match="The loss at `weights` is not finite") as caught:
        powers.check_finite("loss", [1.0, np.array([0.0, np.nan])], "log=True")
    assert "hint: log=True" in str(caught.value)
