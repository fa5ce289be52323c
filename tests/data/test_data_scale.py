"""Exact powers of two: norms, sums of products and scores of numbers of every size float64 has."""

from fractions import Fraction

import numpy as np
import pytest

import attnlab as al
from attnlab.data.scale import (
    dot,
    exponent,
    is_ordinary,
    length,
    lengths,
    matrix_lengths,
    ordinary,
    rescaled,
    rows_to_one,
    spectral_norm,
    to_one,
)
from attnlab.errors import InputError

POWERS = (-1060, -900, -600, -400, -100, 0, 100, 400, 600, 900, 1010)
EPS = float(np.finfo(float).eps)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def squared(vector):
    """The sum of squares, exactly."""
    return sum((Fraction(float(entry)) ** 2 for entry in np.ravel(vector)), Fraction(0))


@pytest.mark.parametrize("power", POWERS)
def test_lengths_at_every_scale(power):
    vectors = np.ldexp(draw(abs(power), 5, 4), power)
    for found, vector in zip(lengths(vectors), vectors, strict=True):
        exact = squared(vector)
        error = Fraction(float(found)) ** 2 / exact - 1
        # Denormal numbers have fewer digits.
        assert abs(error) < max(8 * EPS, 2.0 ** (-1070 - power))
    assert length(vectors) == pytest.approx(float(lengths(vectors.reshape(1, -1))[0]), rel=1e-14, abs=0.0)
    np.testing.assert_allclose(matrix_lengths(vectors[None]), [length(vectors)], rtol=1e-14)


@pytest.mark.parametrize("power", POWERS[1:])
def test_spectral_norms_scale(power):
    matrix = draw(1, 3, 4)
    assert spectral_norm(np.ldexp(matrix, power)) == pytest.approx(
        np.ldexp(spectral_norm(matrix), power), rel=1e-13, abs=0.0
    )


def test_ordinary_arrays_keep_their_digits():
    array = draw(2, 4, 3, 5)
    np.testing.assert_array_equal(lengths(array), np.linalg.norm(array, axis=-1))
    np.testing.assert_array_equal(matrix_lengths(array), np.linalg.norm(array, axis=(-2, -1)))
    assert length(array) == np.linalg.norm(array)
    assert spectral_norm(array[0]) == np.linalg.norm(array[0], ord=2)
    assert ordinary(array) == (array, 0) or ordinary(array)[1] == 0
    assert ordinary(array)[0] is array


@pytest.mark.parametrize("largest", [5e-324, 1e-310, 1e-70, 1.0, 1e70, 1.7e308])
def test_powers_are_taken_out_exactly(largest):
    array = largest * np.array([[1.0, -0.5], [0.25, 0.0]])
    scaled, e = to_one(array)
    assert 0.5 <= np.abs(scaled).max() < 1
    assert exponent(array) == e
    np.testing.assert_array_equal(np.ldexp(scaled, e), array)
    rows, exponents = rows_to_one(array)
    np.testing.assert_array_equal(np.ldexp(rows, exponents), array)
    assert ((np.abs(rows).max(-1) >= 0.5) | ~array.any(-1)).all()


def test_what_is_ordinary():
    assert is_ordinary(np.array([0.0, 1.0, -1e60, 1e-60]))
    for odd in (1e71, 1e-71, -5e-324, 1.7e308):
        assert not is_ordinary(np.array([1.0, odd]))
    assert to_one(np.zeros(3))[1] == 0
    assert length(np.zeros((0, 2))) == 0.0


def test_beyond_float64_is_inf_without_a_word():
    assert lengths(np.full((1, 4), 1.7e308)) == np.inf
    assert rescaled(np.array([1.0, 0.0]), 5000).tolist() == [np.inf, 0.0]
    assert rescaled(1.0, -5000) == 0.0


@pytest.mark.parametrize("seed", range(40))
def test_sums_of_products_are_right_whatever_the_sizes(seed):
    rng = np.random.default_rng(seed)
    left, right = (np.ldexp(rng.standard_normal(6), rng.integers(-1070, 1020, 6)) for _ in range(2))
    left[rng.integers(6)] = 0.0
    mantissa, e = dot(left, right)
    exact = sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(left, right, strict=True)), Fraction(0))
    largest = max(abs(Fraction(float(a)) * Fraction(float(b))) for a, b in zip(left, right, strict=True))
    assert abs(Fraction(float(mantissa)) * Fraction(2) ** int(e) - exact) <= 8 * Fraction(EPS) * largest


def tokens_at(seed, power_x, power_v, **more):
    rng = np.random.default_rng(seed)
    x, z = np.ldexp(rng.standard_normal((3, 4, 5)), power_x), rng.standard_normal((3, 5))
    return al.Tokens(x=x, z=z, y=rng.choice([-1.0, 1.0], 3), v=np.ldexp(rng.standard_normal(5), power_v), **more)


@pytest.mark.parametrize("power_x", [-1000, -400, 0, 400, 900])
@pytest.mark.parametrize("power_v", [-1000, -400, 0, 400, 900])
def test_scores_scale_with_tokens_and_head(power_x, power_v):
    total, plain = power_x + power_v, al.scores(tokens_at(0, 0, 0))
    tokens = tokens_at(0, power_x, power_v)
    if total > 1020:
        with pytest.raises(InputError, match=r"`x` has entries up to .*`v` up to"):
            al.scores(tokens)
        return
    np.testing.assert_allclose(al.scores(tokens), np.ldexp(plain, total), rtol=1e-14, atol=1e-322)


@pytest.mark.parametrize("power_x", [-1000, -600, 0, 400])
@pytest.mark.parametrize("power_v", [-1000, -600, 0, 400])
@pytest.mark.parametrize("queries", [False, True])
def test_best_tokens_do_not_depend_on_scale(power_x, power_v, queries):
    for seed in range(5):
        plain, scaled = tokens_at(seed, 0, 0), tokens_at(seed, power_x, power_v)
        if queries:
            plain, scaled = (
                al.Tokens.self_attention(t.x, np.repeat(t.y[:, None], 4, 1), t.v, "all", mask="causal")
                for t in (plain, scaled)
            )
        best, ties = al.optimal_tokens(scaled, return_ties=True)
        np.testing.assert_array_equal(best, al.optimal_tokens(plain))
        assert (ties == 1).all()


def test_sums_that_cancel_are_scores_though_their_parts_are_beyond_float64():
    tokens = al.Tokens(x=[[[1e300, 1e300], [1.0, 0.0]]], z=[[1.0, 0.0]], y=[1], v=[1e200, -1e200])
    assert al.scores(tokens).tolist() == [[0.0, 1e200]]


def test_hidden_tokens_do_not_drown_faint_ones():
    tokens = al.Tokens(x=[[[1e-200], [2e-200], [1e200]]], z=[[1.0]], y=[1], v=[1e-200], mask=[[True, True, False]])
    assert al.optimal_tokens(tokens).tolist() == [1]


@pytest.mark.parametrize("power", [-1000, -400, 400, 1000])
def test_coordinates_of_the_span_scale(power):
    tokens = al.data.sphere(n=2, T=3, d=20, seed=1)
    scaled = al.Tokens(x=np.ldexp(tokens.x, power), z=tokens.z, y=tokens.y, v=tokens.v)
    (small, basis), (far, other) = al.data.in_span(tokens), al.data.in_span(scaled)
    np.testing.assert_allclose(other, basis, atol=1e-14)
    np.testing.assert_allclose(np.ldexp(far.x, -power), small.x, atol=1e-14)


def test_vectors_too_long_for_float64_have_no_coordinates():
    tokens = al.Tokens(x=np.full((1, 2, 4), 1.7e308), z=np.ones((1, 4)), y=[1])
    with pytest.raises(InputError, match=r"`tokens.x` has entries up to 1.7e\+308"):
        al.data.in_span(tokens)


@pytest.mark.parametrize("e", [-1, 0, 1, 900])
def test_rescaled_is_times_the_power(e):
    np.testing.assert_array_equal(rescaled(np.array([3.0, -0.5]), e), np.array([3.0, -0.5]) * 2.0**e)


def test_a_sum_of_zeros_has_exponent_zero():
    mantissa, e = dot(np.array([[0.0, 5.0], [4.0, 1.0]]), np.array([[1e300, 0.0], [2.0, 0.0]]))
    np.testing.assert_array_equal(e, [0, 5])  # 4 = 0.5 * 2^3, 2 = 0.5 * 2^2
    np.testing.assert_array_equal(mantissa, [0.0, 0.25])
