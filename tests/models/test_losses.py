"""Losses and their logarithms over the whole range of float64, against mpmath."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import oracle
import pytest
from hypothesis import given, settings, strategies as st
from mpmath import mp, mpf

import attnlab as al
from attnlab.errors import InputError

NAMES = ("logistic", "exponential", "correlation")
MARGINS = np.concatenate(
    [
        -np.geomspace(1e-3, 700, 40)[::-1],
        [0.0],
        np.geomspace(1e-3, 700, 40),
        [36.9, 37.0, 37.1, 38.0, 38.1],
        [-36.9, -37.1],
    ]
)
LOG_DROPS = np.array([-1000.0, -100.0, -30.001, -29.999, -20.0, -1.0, 1.0, np.log(50.0)])


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True), mp.workdps(60):
        yield


def of_margins(loss: al.models.Loss) -> al.models.MarginLoss:
    assert isinstance(loss, al.models.MarginLoss)
    return loss


def evaluate(function, u) -> np.ndarray:
    return np.asarray(function(jnp.asarray(u)))


@pytest.mark.parametrize("name", [*NAMES, "user"])
def test_value_and_slope(name):
    truth = oracle.LOSSES[name]
    loss = of_margins(al.models.as_loss(truth.given))
    margins = MARGINS if name != "user" else MARGINS[np.abs(MARGINS) < 50]  # a user's formula cancels by itself
    value, slope = evaluate(loss.value, margins), evaluate(loss.log_slope, margins)
    sign = evaluate(loss.slope_sign, margins)
    tolerance = 1e-14 if name != "user" else 1e-11
    for u, got, log_slope, s in zip(margins, value, slope, sign, strict=True):
        exact = truth.slope(mpf(u))
        assert oracle.relative(got, truth.value(mpf(u))) < tolerance
        assert abs(log_slope - mpmath.log(abs(exact))) < tolerance * max(1, abs(mpmath.log(abs(exact))))
        assert s == mpmath.sign(exact)


@pytest.mark.parametrize("name", ["logistic", "exponential"])
def test_log_value_does_not_underflow(name):
    loss, truth = of_margins(al.models.LOSSES[name]), oracle.LOSSES[name]
    margins = np.concatenate([MARGINS, [1e3, 1e5]])
    with mp.workdps(800):
        for u, got in zip(margins, evaluate(loss.log_value, margins), strict=True):
            want = -mpf(u) if u > 1000 and name == "logistic" else mpmath.log(truth.value(mpf(u)))
            assert abs(got - want) < 1e-14 * max(1, abs(want)), u


def test_log_value_of_the_correlation_loss():
    """log(-u) where the loss is positive, NaN where it is negative."""
    log_value = of_margins(al.models.LOSSES["correlation"]).log_value
    np.testing.assert_allclose(evaluate(log_value, [-2.0, -1.0, -0.25]), np.log([2.0, 1.0, 0.25]), rtol=1e-15)
    assert np.isnan(evaluate(log_value, [2.0])).all()


def rise(name: str, margin: float, log_drop: float, sign: int):
    """loss(margin - drop) - loss(margin) with digits to spare."""
    with mp.workdps(800):
        drop = sign * mp.exp(mpf(log_drop))
        value = oracle.LOSSES[name].value
        change = value(mpf(margin) - drop) - value(mpf(margin))
        return int(mpmath.sign(change)), mpmath.log(abs(change))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_excess_of_any_drop(name, sign):
    """From drops of e^-1000 to 50, at margins of either sign, the logarithm is right to the last digits."""
    loss = of_margins(al.models.LOSSES[name])
    margins = np.array([-700.0, -20.0, -1.0, 0.5, 10.0, 38.0, 700.0])
    u, c = (g.ravel() for g in np.meshgrid(margins, LOG_DROPS))
    s, logs = loss.excess(jnp.asarray(u), jnp.asarray(c), jnp.full(u.shape, float(sign)))
    for margin, log_drop, got_sign, got in zip(u, c, np.asarray(s), np.asarray(logs), strict=True):
        want_sign, want = rise(name, margin, log_drop, sign)
        assert got_sign == want_sign, (margin, log_drop)
        # An error e of the logarithm is a relative error e of the excess.
        assert abs(got - want) < 3e-13 + 2e-15 * abs(want), (margin, log_drop, float(got - want))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.floats(-700, 700), st.floats(-1000, np.log(50)), st.sampled_from([-1, 1]))
def test_excess_anywhere(name, margin, log_drop, sign):
    loss = of_margins(al.models.LOSSES[name])
    with jax.enable_x64(True):
        s, log = loss.excess(jnp.asarray(margin), jnp.asarray(log_drop), jnp.asarray(float(sign)))
    want_sign, want = rise(name, margin, log_drop, sign)
    assert int(s) == want_sign
    assert abs(float(log) - want) < 3e-13 + 2e-15 * abs(want)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("log_drop", [-1000.0, -100.0, -20.0, -15.5, -14.5, -12.0, -8.0, -3.0, 0.0, 2.0])
def test_excess_of_a_user_loss(log_drop, sign):
    """Nine digits wherever the drop lies, though nothing but the function is known."""
    loss = of_margins(al.models.as_loss(oracle.hyperbola))
    margins = np.array([-3.0, -0.5, 0.25, 2.0])
    s, logs = loss.excess(jnp.asarray(margins), jnp.full(4, log_drop), jnp.full(4, float(sign)))
    for margin, got_sign, got in zip(margins, np.asarray(s), np.asarray(logs), strict=True):
        want_sign, want = rise("user", margin, log_drop, sign)
        assert got_sign == want_sign
        assert abs(got - want) < 1e-9, (margin, float(got - want))


def test_excess_of_a_user_loss_that_is_not_monotone():
    """(u - 1)^2 falls, then rises: the sign of its change is its own."""
    loss = of_margins(al.models.as_loss(lambda u: (u - 1.0) ** 2))
    for margin, drop in [(0.0, 0.5), (3.0, 0.5), (1.5, 1.0), (1.25, 1.0), (0.5, -2.0)]:
        s, log = loss.excess(jnp.asarray(margin), jnp.log(abs(drop)), jnp.sign(drop))
        want = (margin - drop - 1) ** 2 - (margin - 1) ** 2
        assert float(s) == np.sign(want)
        if want:
            np.testing.assert_allclose(float(log), np.log(abs(want)), rtol=1e-12)
    s, log = loss.excess(jnp.asarray([3.0, 0.0]), jnp.asarray([-50.0, -50.0]), jnp.asarray([1.0, 1.0]))
    np.testing.assert_array_equal(s, [-1.0, 1.0])
    np.testing.assert_allclose(log, [-50 + np.log(4), -50 + np.log(2)], rtol=1e-12)


def test_user_losses_are_equal_when_their_function_is():
    one, two = al.models.as_loss(oracle.hyperbola), al.models.as_loss(oracle.hyperbola)
    assert one == two
    assert hash(one) == hash(two)
    assert one != al.models.as_loss(lambda u: jnp.exp(-u))
    assert one != al.models.LOSSES["logistic"]
    assert one.name == "hyperbola"
    assert al.models.as_loss(one) is one
    values = of_margins(one).value(jnp.ones((2, 3)))
    assert values.shape == (2, 3)


@pytest.mark.parametrize("wrong", ["absolute", 3, None])
def test_unknown_losses_are_named(wrong):
    with pytest.raises(InputError, match=r"`loss` is .*wanted"):
        al.models.as_loss(wrong)
