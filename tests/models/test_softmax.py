"""Softmax and its derivatives of first and second order, component by component, far into saturation."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import oracle
import pytest
from hypothesis import given, settings, strategies as st
from mpmath import mp, mpf

import attnlab as al
from attnlab.models.softmax import pull_back, weights

T = 5
softmax = al.models.softmax


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True), mp.workdps(60):
        yield


def draw(seed: int, size: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return size * rng.standard_normal(T), rng.standard_normal(T)


def product(logits, g) -> list:
    """(S' g)_t = s_t sum_tau s_tau (g_t - g_tau)."""
    s, g = oracle.softmax(oracle.exact(logits)), oracle.exact(g)
    return [st * mp.fsum(sr * (gt - gr) for sr, gr in zip(s, g, strict=True)) for st, gt in zip(s, g, strict=True)]


def worst(got, want: list) -> float:
    """Largest relative error of a component that float64 can hold; smaller ones must be negligible too."""
    errors = [0.0]
    for p, q in zip(np.ravel(got), want, strict=True):
        if abs(q) > mpf(10) ** -290:
            errors.append(oracle.relative(p, q))
        else:
            assert abs(p) <= 1e-289
    return max(errors)


forward = jax.jit(lambda a, g: jax.jvp(softmax, (a,), (g,))[1])
reverse = jax.jit(lambda a, g: jax.vjp(softmax, a)[1](g)[0])


@pytest.mark.parametrize("size", [0.0, 1.0, 10.0, 40.0, 300.0])
@pytest.mark.parametrize("seed", range(4))
def test_values_and_both_modes_in_every_component(seed, size):
    a, g = draw(seed, size)
    assert worst(softmax(a), oracle.softmax(oracle.exact(a))) < 1e-15 * (10 + np.abs(a).max())
    assert worst(forward(a, g), product(a, g)) < 1e-13
    assert worst(reverse(a, g), product(a, g)) < 1e-13


@pytest.mark.parametrize("gap", [0.5, 37.0, 600.0])
@pytest.mark.parametrize("top", range(T))
def test_saturated_at_every_position(top, gap):
    a, g = draw(9, 1.0)
    a = np.round(a * 8) / 8
    a[top] = np.max(np.delete(a, top)) + gap
    for derivative in (forward, reverse):
        assert worst(derivative(a, g), product(a, g)) < 1e-13


def test_ties_at_the_top():
    a, g = np.array([50.0, 3.0, 50.0, -2.0, 50.0]), np.array([0.3, -1.0, 0.8, 0.1, 0.3])
    for derivative in (forward, reverse):
        assert worst(derivative(a, g), product(a, g)) < 1e-13
        np.testing.assert_array_equal(derivative(np.zeros(T), np.ones(T)), 0.0)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-800, 800), min_size=T, max_size=T), st.floats(-1e6, 1e6))
def test_rows_sum_to_one_and_constants_are_annihilated(a, c):
    a = np.array(a)
    with jax.enable_x64(True):
        s = np.asarray(softmax(a))
        assert abs(s.sum() - 1) < 1e-15 * T
        assert s.min() >= 0
        np.testing.assert_array_equal(forward(a, np.full(T, c)), 0.0)
        np.testing.assert_array_equal(reverse(a, np.full(T, c)), 0.0)


@pytest.mark.parametrize("size", [1.0, 30.0, 200.0])
@pytest.mark.parametrize("seed", range(3))
def test_jacobian_is_symmetric_and_its_columns_sum_to_nothing(seed, size):
    a, _ = draw(seed, size)
    J = np.asarray(jax.jacfwd(softmax)(a))
    R = np.asarray(jax.jacrev(softmax)(a))
    s = oracle.softmax(oracle.exact(a))
    others = [mp.fsum(s[r] for r in range(T) if r != t) for t in range(T)]  # 1 - s_t
    truth = [[s[t] * others[t] if t == k else -s[t] * s[k] for k in range(T)] for t in range(T)]
    np.testing.assert_allclose(J, J.T, rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(J, R, rtol=1e-13, atol=1e-300)
    assert worst(J, oracle.flat(truth)) < 1e-13
    assert np.abs(J.sum(0)).max() <= 4e-16 * np.abs(J).max()
    assert np.abs(J.sum(1)).max() <= 4e-16 * np.abs(J).max()


@pytest.mark.parametrize("size", [1.0, 10.0, 60.0])
@pytest.mark.parametrize("seed", range(3))
def test_second_derivative(seed, size):
    """d2(g.s)/da_j da_k = s_j [ (delta_jk - s_k)(g_j - m) - s_k (g_k - m) ], m = g.s, summed pairwise."""
    a, g = draw(seed, size)
    hessian = np.asarray(jax.hessian(lambda b: jnp.dot(g, softmax(b)))(a))
    s, e = oracle.softmax(oracle.exact(a)), oracle.exact(g)
    with mp.workdps(60):
        above = [mp.fsum(sr * (gt - gr) for sr, gr in zip(s, e, strict=True)) for gt in e]
        off = [mp.fsum(s[r] for r in range(T) if r != j) for j in range(T)]  # 1 - s_j
        truth = [
            [s[j] * ((off[j] - s[j]) * above[j] if j == k else -s[k] * (above[j] + above[k])) for k in range(T)]
            for j in range(T)
        ]
    want = np.array([[float(e) for e in row] for row in truth])
    np.testing.assert_allclose(hessian, want, rtol=1e-11, atol=1e-13 * np.abs(want).max())
    assert np.abs(hessian - want).max() < 1e-13 * np.abs(want).max()


def test_hidden_logits_give_exact_zeros():
    a = np.array([1.0, -np.inf, 3.0, -np.inf, 2.0])
    keep = np.isfinite(a)
    g = np.array([0.5, 1e5, -1.0, -3.0, 2.0])
    s = np.asarray(softmax(a))
    np.testing.assert_array_equal(s[~keep], 0.0)
    np.testing.assert_allclose(s[keep], np.asarray(softmax(a[keep])), rtol=1e-15)
    for derivative in (forward, reverse):
        got = np.asarray(derivative(a, g))
        np.testing.assert_array_equal(got[~keep], 0.0)
        np.testing.assert_allclose(got[keep], np.asarray(derivative(a[keep], g[keep])), rtol=1e-14)
    hessian = np.asarray(jax.hessian(lambda b: jnp.dot(g, softmax(b)))(a))
    np.testing.assert_array_equal(hessian[~keep], 0.0)
    np.testing.assert_array_equal(hessian[:, ~keep], 0.0)
    assert np.isfinite(hessian).all()


def test_any_leading_axes_jit_and_vmap():
    rng = np.random.default_rng(0)
    a, g = 20 * rng.standard_normal((2, 3, T)), rng.standard_normal((2, 3, T))
    whole = np.asarray(softmax(a))
    slopes = np.asarray(forward(a, g))
    back = np.asarray(reverse(a, g))
    np.testing.assert_allclose(jax.jit(jax.vmap(softmax))(a), whole, rtol=1e-15)
    np.testing.assert_allclose(jax.vmap(forward)(a, g), slopes, rtol=1e-14)
    np.testing.assert_allclose(jax.vmap(jax.vmap(reverse))(a, g), back, rtol=1e-13)
    for i in np.ndindex(2, 3):
        np.testing.assert_allclose(softmax(a[i]), whole[i], rtol=1e-15)
        assert worst(slopes[i], product(a[i], g[i])) < 1e-13
        assert worst(back[i], product(a[i], g[i])) < 1e-13


def test_float32_stays_float32():
    with jax.enable_x64(False):
        s = softmax(jnp.array([100.0, 0.0]))
        slope = jax.grad(lambda a: softmax(a)[0])(jnp.array([60.0, 0.0]))
    assert s.dtype == np.float32
    np.testing.assert_allclose(slope, [np.exp(-60.0), -np.exp(-60.0)], rtol=1e-5)


@pytest.mark.parametrize("gap", [1.0, 50.0, 1500.0])
@pytest.mark.parametrize("seed", range(3))
def test_pull_back_keeps_mantissa_and_scale_apart(seed, gap):
    """Rows whose slopes differ by hundreds of powers of e, one of them zero; entries of the largest are of order g."""
    rng = np.random.default_rng(seed)
    a = np.round(8 * rng.standard_normal((3, T))) / 8
    a[np.arange(3), rng.integers(0, T, 3)] += 16 + gap
    g = rng.standard_normal((3, T))
    log_weight, sign = np.array([0.5, -400.0, -np.inf]), np.array([-1.0, 1.0, -1.0])
    rows = (jnp.array(p) for p in (g, np.zeros(3), log_weight, sign))
    mantissa, scale = (np.asarray(p) for p in pull_back(weights(jnp.array(a)), *rows))
    factor = [int(s) * mp.exp(mpf(c)) for c, s in zip(log_weight, sign, strict=True)]  # e^-inf is 0
    truth = [[factor[i] * e for e in product(a[i], g[i])] for i in range(3)]
    assert oracle.direction_error(mantissa, truth) < 1e-13
    assert oracle.log_norm_error(mantissa, scale, truth) < 1e-13
    assert 1e-3 < np.abs(mantissa).max() < 10
    np.testing.assert_array_equal(mantissa[2], 0.0)


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e5])
def test_weights_in_and_out_of_the_log_domain(offset):
    a = np.array([[0.0, -3.0, -800.0, -np.inf, 2.0], [5.0, 5.0, 5.0, 5.0, 5.0]]) + offset
    w = weights(jnp.array(a))
    for i in range(2):
        seen = np.isfinite(a[i])
        s = oracle.softmax(oracle.exact(a[i][seen]))
        np.testing.assert_allclose(w.probs[i][seen], [float(p) for p in s], rtol=1e-14)
        np.testing.assert_allclose(w.log_probs[i][seen], [float(mpmath.log(p)) for p in s], rtol=1e-14)
    np.testing.assert_array_equal(np.asarray(w.log_probs[0])[3], -np.inf)
    np.testing.assert_array_equal(np.argmax(w.top, -1), [4, 0])
    np.testing.assert_array_equal(np.sum(w.top, -1), 1)
