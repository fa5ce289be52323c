"""Scale laws: tokens by 2^k, queries by 2^j, the head by 2^-k, weights by 2^-(k + j) give the same run in other units.

The scores and logits of such data are the same numbers. Powers of two are exact, so directions must agree to rounding
although products of the arrays leave float64.
"""

import numpy as np
import optax
import pytest

import attnlab as al
from attnlab.errors import InputError
from attnlab.train import FlowStatus, PathStatus, Status

TOKENS = al.data.sphere(n=3, T=4, d=5, seed=4)
START = 0.3 * np.random.default_rng(0).standard_normal((5, 5))
POWERS = [(-400, -400), (-400, 390), (17, 3), (400, -250), (400, 400), (0, 400), (-390, 0)]


def scaled(k, j, tokens=TOKENS):
    assert tokens.v is not None
    return al.Tokens(x=np.ldexp(tokens.x, k), z=np.ldexp(tokens.z, j), y=tokens.y, v=np.ldexp(tokens.v, -k))


def run(rule, k, j, **options):
    return al.descend(scaled(k, j), rule, init=np.ldexp(START, -k - j), steps=60, record=None, **options)


def assert_same_direction(a, b):
    assert al.misalignment(a, b) < 1e-18  # an angle of 1e-9


@pytest.mark.parametrize(("k", "j"), POWERS)
def test_normalized_steps(k, j):
    plain, other = run(al.ngd(0.1), 0, 0), run(al.ngd(float(np.ldexp(0.1, -k - j))), k, j)
    assert other.status is Status.FINISHED
    assert_same_direction(other.W, plain.W)
    np.testing.assert_allclose(np.ldexp(other.W, k + j), plain.W, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(other.selected, plain.selected)


@pytest.mark.parametrize(("k", "j"), [(-200, -200), (200, 250), (-400, 390), (300, -310)])
def test_gradient_descent(k, j):
    """The gradient by W is 2^(k + j) times as large, and W 2^(k + j) times as small: steps by the square of that."""
    plain, other = run(al.gd(0.1), 0, 0), run(al.gd(float(np.ldexp(0.1, -2 * (k + j)))), k, j)
    assert other.status is Status.FINISHED
    np.testing.assert_allclose(np.ldexp(other.W, k + j), plain.W, rtol=1e-9, atol=1e-12)


def test_polyak_takes_the_same_steps_at_any_scale():
    plain, other = run(al.polyak(), 0, 0), run(al.polyak(), -300, -250)
    np.testing.assert_allclose(np.ldexp(other.W, -550), plain.W, rtol=1e-9, atol=1e-12)


def test_signs_take_the_same_steps_at_any_scale():
    rule = [al.optim.scale_free(optax.sign_sgd(step)) for step in (0.01, float(np.ldexp(0.01, 700)))]
    plain, other = run(rule[0], 0, 0), run(rule[1], -400, -300)
    np.testing.assert_allclose(np.ldexp(other.W, -700), plain.W, rtol=1e-12)


@pytest.mark.parametrize(("k", "j"), [(-400, -400), (400, 300), (0, -350)])
def test_factors(k, j):
    K, Q = START[:, :2], START[:, 2:4]
    half = (k + j) // 2
    rule = {at: al.ngd(float(np.ldexp(0.02, -at))) for at in (0, half)}
    plain = al.descend(TOKENS, rule[0], parameterization="KQ", init={"K": K, "Q": Q}, steps=40, record=None)
    init = {"K": np.ldexp(K, -half), "Q": np.ldexp(Q, -half)}
    other = al.descend(scaled(k, j), rule[half], parameterization="KQ", init=init, steps=40, record=None)
    np.testing.assert_allclose(np.ldexp(other.K, half), plain.K, rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(np.ldexp(other.Q, half), plain.Q, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(("k", "j"), [(-400, 300), (200, -390), (120, 110), (-220, 0)])
def test_flow(k, j):
    """Time goes as the square of the units of W."""
    options = {"record": None}
    plain = al.flow(TOKENS, init=START, time=1e4, **options)
    time = float(np.ldexp(1e4, -2 * (k + j)))
    other = al.flow(scaled(k, j), init=np.ldexp(START, -k - j), time=time, **options)
    assert other.status is FlowStatus.FINISHED
    assert_same_direction(other.W, plain.W)
    np.testing.assert_allclose(other.attention, plain.attention, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("k", "j"), [(-400, -300), (300, 400)])
def test_regularization_path(k, j):
    plain = al.regularization_path(TOKENS, radii=(2.0, 8.0), restarts=1)
    other = al.regularization_path(scaled(k, j), radii=np.ldexp([2.0, 8.0], -k - j), restarts=1)
    assert (other.status == PathStatus.SPHERE).all()
    assert (al.misalignment(other.W, plain.W) < 1e-16).all()


@pytest.mark.parametrize(("k", "j"), POWERS)
def test_loss_and_gradient(k, j):
    W = np.ldexp(START, -k - j)
    assert al.models.loss(scaled(k, j), W) == pytest.approx(float(al.models.loss(TOKENS, START)), rel=1e-14)
    log = [al.models.excess_loss(t, w, log=True) for t, w in ((TOKENS, START), (scaled(k, j), W))]
    assert log[1] == pytest.approx(float(log[0]), rel=1e-13)
    mantissa, log_scale = al.models.gradient(TOKENS, START)
    other, other_scale = al.models.gradient(scaled(k, j), W)
    np.testing.assert_allclose(other["W"], mantissa["W"], rtol=1e-12, atol=1e-14)
    assert float(other_scale["W"] - log_scale["W"]) == pytest.approx((k + j) * np.log(2.0), abs=1e-10)


def test_a_sequence_of_another_scale_takes_over_once_the_first_has_saturated():
    """The gradient of the small sequence is 1e-330 of what that of the other was, and all that is left of it.

    Tokens +-e_1 with query e_1 and, 1e-110 times as small, +-e_2 with e_2. At W = 2000 E_11 the first gives e^-4000.
    """
    e, size = np.eye(2), 1e-110
    x = np.stack([np.stack([e[0], -e[0]]), size * np.stack([e[1], -e[1]])])
    tokens = al.Tokens(x=x, z=np.stack([e[0], size * e[1]]), y=[1, 1], v=[1.0, 1.0])
    mantissa, log_scale = al.models.gradient(tokens, 2000.0 * np.outer(e[0], e[0]))
    np.testing.assert_allclose(mantissa["W"], -np.outer(e[1], e[1]), atol=1e-12)
    # (1/n) sigmoid(0) s (1 - s) (gap of scores 2 size)(gap of tokens 2 size)(query size), with s = 1/2
    assert float(log_scale["W"]) == pytest.approx(np.log(0.5 * 0.5 * 0.25 * 4.0) + 3 * np.log(size), abs=1e-10)


def test_ordinary_data_are_worked_on_as_they_are():
    from attnlab.models.extremes import ExtremeLayer
    from attnlab.models.layer import Layer

    assert type(al.models.Attention().at(TOKENS, START).objective) is Layer
    assert type(al.models.Attention().at(scaled(-180, 0), START).objective) is ExtremeLayer


def test_a_matrix_near_the_end_of_floats_is_refused():
    """W z overflows, though the tokens are zero along it; and small entries vanish beside large ones."""
    tokens = al.Tokens(x=[[[1.0, 0.0], [0.0, 0.0]]], z=[[1.0, 1.0]], y=[1], v=[1.0, 0.0])
    W = np.array([[0.5, 0.5], [1.7e308, 1.7e308]])
    for data in (tokens, scaled(200, 0, tokens)):
        with pytest.raises(InputError, match=r"overflow|differ by more than 1e300"):
            al.models.attention(data, W)
        with pytest.raises(InputError, match=r"overflow|differ by more than 1e300"):
            al.descend(data, al.gd(0.1), init=W, steps=2)


def test_a_trial_whose_logits_overflow_is_named_in_the_remarks():
    x = np.zeros((2, 1, 2, 2))
    x[0, 0, 0], x[1, 0, 0] = [0.0, 1e170], [1.0, 0.0]
    tokens = al.Tokens(x=x, z=x[:, :, 0], y=np.ones((2, 1)), v=np.array([1.0, 0.0]))
    told = " ".join(al.descend(tokens, al.gd(0.1), steps=3).remarks)
    assert all(f"`{name}` is not finite" in told for name in ("loss", "attention"))


@pytest.mark.parametrize("seed", range(3))
def test_a_path_reaches_the_end_of_floats(seed):
    """Queries of 2^-1020 ask for a W of 2^1020: the same path at radii up to 1.7e308, where a radius times a point
    before its division by the length of the point would be infinite."""
    tokens = al.data.sphere(n=2, T=3, d=3, seed=seed)
    small = al.Tokens(x=tokens.x, z=np.ldexp(tokens.z, -1020), y=tokens.y, v=tokens.v)
    radii = np.array([4.0, 15.0])
    path = al.regularization_path(tokens, radii=radii, restarts=2)
    far = al.regularization_path(small, radii=np.ldexp(radii, 1020), restarts=2)
    assert far.radii[-1] > 1.6e308
    np.testing.assert_allclose(np.ldexp(far.W, -1020), path.W, atol=1e-9)
    assert [status.name for status in far.status] == [status.name for status in path.status]
