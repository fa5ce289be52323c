"""Losses of several outputs, of real labels and of margins with a kink; outputs that no loss can take."""

from functools import partial

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import oracle
import pytest
from hypothesis import given, settings, strategies as st
from mpmath import mp, mpf

import attnlab as al
from attnlab.models.losses import LOSSES, MarginLoss, as_loss

CROSS_ENTROPY = as_loss("cross_entropy")
FACTORS = {"half_sum": lambda n: mpf(1) / 2, "mse_mean": lambda n: mpf(1) / n, "half_mean": lambda n: mpf(1) / (2 * n)}


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True), mp.workdps(60):
        yield


def told(loss, outputs, y):
    """Objective, its logarithm, and its gradient as mantissa and log-scale, with NumPy."""
    return [np.asarray(part) for part in _parts(loss, np.asarray(outputs, dtype=float), np.asarray(y, dtype=float))]


@partial(jax.jit, static_argnums=0)
def _parts(loss, outputs, y):
    return loss.objective(outputs, y), loss.log_objective(outputs, y), *loss.slope(outputs, y)


# --- cross-entropy --------------------------------------------------------------------------------------------------


def exact_cross_entropy(outputs, y):
    """The mean of log(1 + sum over other classes of e^(output_c - output_y)), and its gradient."""
    n, values, slopes = len(y), [], []
    for row, label in zip(oracle.exact(outputs), y, strict=True):
        odds = [mp.exp(c - row[int(label)]) if k != int(label) else mpf(0) for k, c in enumerate(row)]
        against = mp.fsum(odds)
        values.append(mpmath.log1p(against))
        by_row = [odd / (1 + against) / n for odd in odds]
        by_row[int(label)] = -against / (1 + against) / n
        slopes.append(by_row)
    return mp.fsum(values) / n, slopes


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 300.0, 1000.0])
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_cross_entropy_is_that_of_fifty_digits(classes, size):
    rng = np.random.default_rng(int(size) + classes)
    for fitted in (False, True):
        outputs, y = rng.uniform(-size, size, (5, classes)), rng.integers(0, classes, 5)
        if fitted:  # every label leads, so that the loss is e^-size
            outputs[np.arange(5), y] = np.max(outputs) + size
        value, slopes = exact_cross_entropy(outputs, y)
        objective, log_objective, mantissa, log_scale = told(CROSS_ENTROPY, outputs, y)
        if value > mpf(10) ** -300:
            assert oracle.relative(objective, value) < 1e-13
        else:
            assert objective == pytest.approx(0.0, abs=1e-299)
        assert abs(float(log_objective) - mpmath.log(value)) < 1e-13 * max(1, abs(mpmath.log(value)))
        assert oracle.direction_error(mantissa, slopes) < 1e-12
        assert oracle.log_norm_error(mantissa, log_scale, slopes) < 1e-13
        assert np.abs(mantissa).max() == pytest.approx(1.0, rel=1e-14)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(st.floats(-1000, 1000), min_size=6, max_size=6), st.lists(st.integers(0, 1), min_size=3, max_size=3))
def test_of_two_classes_it_is_the_logistic_loss_of_their_difference(entries, y):
    outputs, y = np.array(entries).reshape(3, 2), np.array(y)
    sign = 2.0 * y - 1.0  # class 1 is the label +1
    with jax.enable_x64(True):
        of_classes = told(CROSS_ENTROPY, outputs, y)
        of_margins = told(LOSSES["logistic"], outputs[:, 1] - outputs[:, 0], sign)
    np.testing.assert_allclose(of_classes[0], of_margins[0], rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(of_classes[1], of_margins[1], rtol=1e-13, atol=1e-15)
    slope = of_margins[2] * np.exp(of_margins[3] - of_classes[3])
    np.testing.assert_allclose(of_classes[2], np.stack([-slope, slope], axis=1), rtol=1e-11, atol=1e-300)


def test_cross_entropy_does_not_see_what_is_added_to_all_classes():
    rng = np.random.default_rng(0)
    outputs, y = np.round(64 * rng.standard_normal((4, 3))) / 64, [0, 1, 2, 2]
    for shift in (64.0, -4096.0):
        for one, other in zip(told(CROSS_ENTROPY, outputs, y), told(CROSS_ENTROPY, outputs + shift, y), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)
    mantissa = told(CROSS_ENTROPY, outputs, y)[2]
    np.testing.assert_allclose(mantissa.sum(1), 0.0, atol=1e-15)


def test_cross_entropy_of_one_class_is_zero():
    objective, log_objective, mantissa, log_scale = told(CROSS_ENTROPY, np.array([[3.0], [-2.0]]), [0, 0])
    assert objective == 0.0
    assert log_objective == -np.inf
    np.testing.assert_array_equal(mantissa, 0.0)
    assert np.isfinite(log_scale)


@pytest.mark.parametrize(
    ("y", "classes", "says"),
    [
        ([0.0, 3.0], 3, "`y` holds 3; .* wants classes 0 to 2"),
        ([0.0, -1.0], 3, "`y` holds -1"),
        ([0.0, 0.5], 3, "`y` holds 0.5"),
        ([0.0, 1.0], None, "'cross_entropy' is of several classes"),
    ],
)
def test_labels_that_are_no_classes(y, classes, says):
    with pytest.raises(al.InputError, match=says):
        CROSS_ENTROPY.check_labels(np.array(y), classes)
    CROSS_ENTROPY.check_labels(np.array([0.0, 2.0, 1.0]), 3)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "cross_entropy"])
def test_losses_of_one_output_refuse_classes(name):
    with pytest.raises(al.InputError, match=f"`loss` '{name}' is of one output; this model has 3"):
        LOSSES[name].check_labels(np.array([1.0, -1.0]), 3)
    LOSSES[name].check_labels(np.array([1.0, -1.0]), None)
    if name in ("half_sum", "mse_mean", "half_mean"):
        LOSSES[name].check_labels(np.array([0.25, -7.0]), None)
    else:
        with pytest.raises(al.InputError, match=r"`y` holds 0\.25"):
            LOSSES[name].check_labels(np.array([1.0, 0.25]), None)


def test_classes_are_not_for_margins():
    with pytest.raises(al.InputError, match="several classes"):
        CROSS_ENTROPY.of_margins(3)
    with pytest.raises(al.InputError, match="several classes"):
        al.descend(al.data.sphere(n=3, T=2, d=2), al.gd(0.1), loss="cross_entropy", steps=1)


# --- squared errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize("size", [1e-170, 1e-8, 1.0, 1e100])
@pytest.mark.parametrize("shape", [(4,), (3, 2)])
def test_squared_errors(name, size, shape):
    """Logarithm and gradient also where squares underflow; n counts sequences, not queries."""
    rng = np.random.default_rng(1)
    outputs, y = size * rng.standard_normal(shape), size * rng.standard_normal(shape)
    factor = FACTORS[name](shape[0])
    pairs = list(zip(oracle.flat(oracle.exact(outputs)), oracle.flat(oracle.exact(y)), strict=True))
    value = factor * mp.fsum((a - b) ** 2 for a, b in pairs)
    slopes = [2 * factor * (a - b) for a, b in pairs]
    objective, log_objective, mantissa, log_scale = told(LOSSES[name], outputs, y)
    if mpf(10) ** -300 < value:
        assert oracle.relative(objective, value) < 1e-14
    assert abs(float(log_objective) - mpmath.log(value)) < 1e-13 * max(1, abs(mpmath.log(value)))
    assert mantissa.shape == shape
    assert oracle.direction_error(mantissa, slopes) < 1e-14
    assert oracle.log_norm_error(mantissa, log_scale, slopes) < 1e-14


@pytest.mark.parametrize("name", FACTORS)
def test_squared_errors_of_zero(name):
    loss, y = LOSSES[name], np.array([1.0, -3.0])
    objective, log_objective, mantissa, log_scale = told(loss, y, y)
    assert objective == 0.0
    assert log_objective == -np.inf
    np.testing.assert_array_equal(mantissa, 0.0)
    assert np.isfinite(log_scale)
    assert bool(loss.is_settled(jnp.asarray(y * (1 + 1e-15)), jnp.asarray(y)))
    assert not bool(loss.is_settled(jnp.asarray(y * (1 + 1e-12)), jnp.asarray(y)))
    assert not bool(LOSSES["logistic"].is_settled(jnp.asarray(y), jnp.asarray(y)))


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize("shape", [(5,), (4, 3)])
def test_squared_errors_are_a_mean_of_functions_of_margins(name, shape):
    """(output - y)^2 = (1 - u)^2 for labels of either sign."""
    rng = np.random.default_rng(2)
    outputs, y = 2 * rng.standard_normal(shape), rng.choice([-1.0, 1.0], shape)
    own, margins = LOSSES[name], LOSSES[name].of_margins(shape[0])
    factor = float(FACTORS[name](shape[0])) * shape[0]
    u = jnp.linspace(-3.0, 5.0, 17)
    np.testing.assert_allclose(margins.value(u), factor * (1 - u) ** 2, rtol=1e-14)
    one, other = told(own, outputs, y), told(margins, outputs, y)
    np.testing.assert_allclose(one[:2], other[:2], rtol=1e-13)
    np.testing.assert_allclose(one[2] * np.exp(one[3]), other[2] * np.exp(other[3]), rtol=1e-12)
    assert margins == own.of_margins(shape[0])
    assert hash(margins) == hash(own.of_margins(shape[0]))
    assert (margins == own.of_margins(shape[0] + 1)) == (name != "half_sum")


# --- hinge, and all together ----------------------------------------------------------------------------------------


def test_hinge_and_its_kink():
    loss, u = LOSSES["hinge"], np.array([-1000.0, -1.0, 0.0, 0.5, 1.5, 1000.0])
    assert isinstance(loss, MarginLoss)
    np.testing.assert_array_equal(loss.value(jnp.asarray(u)), np.maximum(0.0, 1.0 - u))
    y = np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0])
    objective, log_objective, mantissa, log_scale = told(loss, y * u, y)
    want = np.maximum(0.0, 1.0 - u).mean()
    assert objective == pytest.approx(want, rel=1e-15)
    assert log_objective == pytest.approx(np.log(want), rel=1e-14)
    np.testing.assert_allclose(mantissa * np.exp(log_scale), np.where(u < 1, -y, 0.0) / 6, rtol=1e-14)
    at_kink = float(told(loss, [1.0], [1.0])[2][0] * np.exp(told(loss, [1.0], [1.0])[3]))
    assert -1.0 <= at_kink <= 0.0  # any subgradient
    fitted = told(loss, [2.0, -3.0], [1.0, -1.0])
    assert fitted[0] == 0.0
    assert fitted[1] == -np.inf
    np.testing.assert_array_equal(fitted[2], 0.0)


@pytest.mark.parametrize("name", LOSSES)
def test_slope_is_the_gradient_of_the_objective(name):
    rng = np.random.default_rng(3)
    several = name == "cross_entropy"
    outputs = jnp.asarray(rng.standard_normal((4, 3) if several else (4,)))
    y = jnp.asarray(rng.integers(0, 3, 4) if several else rng.choice([-1.0, 1.0], 4)).astype(float)
    mantissa, log_scale = LOSSES[name].slope(outputs, y)
    want = jax.grad(lambda o: LOSSES[name].objective(o, y))(outputs)
    np.testing.assert_allclose(mantissa * jnp.exp(log_scale), want, rtol=1e-12, atol=1e-16)
    log_objective = LOSSES[name].log_objective(outputs, y)
    if LOSSES[name].objective(outputs, y) > 0:
        np.testing.assert_allclose(jnp.exp(log_objective), LOSSES[name].objective(outputs, y), rtol=1e-13)
    assert as_loss(name) is LOSSES[name]
    assert hash(as_loss(name)) == hash(LOSSES[name])


# --- outputs and models that cannot be trained ---------------------------------------------------------------------


TOKENS = al.data.sphere(n=4, T=3, d=4, seed=3)


MATRICES = {"W": al.weights((4, 4)), "V": al.weights((4, 4))}


def puts_out(output, weights=MATRICES):
    """A model of these weights with this output."""
    return type("Made", (al.Model,), {"shapes": lambda self, data: weights, "output": output})()


BROKEN = {
    "NumPy": (lambda self, w, e: np.exp(e.x @ w["W"] @ e.z)[0], "asks for numbers while it is compiled"),
    "if": (lambda self, w, e: e.z[0] if e.z[0] > 0 else e.z[1], "asks for numbers while it is compiled"),
    "matrix": (lambda self, w, e: e.x @ w["W"], r"shape \(3, 4\)"),
    "complex": (lambda self, w, e: (1j * e.x @ w["W"] @ e.z)[0], "type complex128"),
    "whole": (lambda self, w, e: jnp.argmax(e.x @ w["W"] @ e.z), "type int64"),
    "missing": (lambda self, w, e: e.x[0] @ w["U"] @ e.z, "KeyError: 'U'"),
    "shapes": (lambda self, w, e: e.x @ w["W"][:2] @ e.z, "TypeError"),
    "nothing": (lambda self, w, e: None, "None is not a valid value"),
    "text": (lambda self, w, e: "none", "TypeError"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_bad_models_are_told_as_the_model(name):
    output, says = BROKEN[name]
    model = puts_out(output)
    for call in (
        lambda: al.descend(TOKENS, al.gd(0.1), model=model),
        lambda: model.loss(TOKENS, model.initial(TOKENS)),
    ):
        with pytest.raises(al.InputError, match=f"`model`.*{says}"):
            call()


@pytest.mark.parametrize("n", [2, 3])
def test_one_output_for_several_queries_is_refused(n):
    """Also where there are as many sequences as queries, and shapes would go together."""
    rng = np.random.default_rng(n)
    data = al.Tokens(
        x=rng.standard_normal((n, 3, 4)), z=rng.standard_normal((n, 2, 4)), y=np.ones((n, 2)), v=np.ones(4)
    )
    model = puts_out(lambda self, w, e: e.x[0] @ w["W"] @ e.z[0])
    with pytest.raises(al.InputError, match="`model`"):
        al.descend(data, al.gd(0.1), model=model, steps=2)


def test_several_outputs_for_one_label_want_classes():
    model = puts_out(lambda self, w, e: w["W"] @ e.x[0])
    with pytest.raises(al.InputError, match="`loss` 'logistic' is of one output; this model has 4"):
        al.descend(TOKENS, al.gd(0.1), model=model)
    with pytest.raises(al.InputError, match="`y` holds -1"):
        al.descend(TOKENS, al.gd(0.1), model=model, loss="cross_entropy")
    data = al.Sequences(x=TOKENS.x, y=[0, 3, 2, 0])
    run = al.descend(data, al.gd(1.0), model=model, loss="cross_entropy", steps=20, record=None)
    assert model.loss(data, run.weights, loss="cross_entropy") < model.loss(data, run.initial, loss="cross_entropy")


def test_output_of_single_precision_is_refused():
    model = puts_out(lambda self, w, e: (e.x[0] @ w["W"] @ e.z).astype(jnp.float32))
    with pytest.raises(al.InputError, match=r"puts out shape .* of type float32 for one example; wanted .* float64"):
        al.descend(TOKENS, al.gd(0.1), model=model, steps=2, record=None)


@pytest.mark.parametrize(
    "weights", [{}, {"W": (4, 4)}, {"W": 4}, [], None, {"W": al.weights((4,), trained=False)}], ids=str
)
def test_models_with_nothing_to_train(weights):
    """No weights, what are no weights, and weights that stay as they are."""
    model = puts_out(lambda self, w, e: sum(jnp.sum(v) for v in w.values()) * e.x[0, 0], weights)
    with pytest.raises(al.InputError):
        al.descend(TOKENS, al.gd(0.1), model=model, steps=2)


def test_models_that_cannot_be_told_apart_or_take_no_such_data():
    class Field(al.Model):
        factor: object = 1.0

        def shapes(self, data):
            return MATRICES

        def output(self, weights, example):
            return example.x[0] @ weights["W"] @ (self.factor * example.z)

    with pytest.raises(al.InputError, match=r"`model`.*no hash"):
        al.descend(TOKENS, al.gd(0.1), model=Field(factor=np.ones(4)))
    with pytest.raises(al.InputError, match="`model` is"):
        al.descend(TOKENS, al.gd(0.1), model=Field)
    with pytest.raises(al.InputError, match="`model`"):
        al.descend(al.Sequences(x=TOKENS.x, y=TOKENS.y), al.gd(0.1), model=Field())  # which has no queries
    with pytest.raises(TypeError, match="output"):
        type("Half", (al.Model,), {"shapes": Field.shapes})()


def test_test_data_are_of_the_kind_of_the_data():
    model = puts_out(lambda self, w, e: e.x[0] @ w["W"] @ e.z)
    with pytest.raises(al.InputError, match="`test`"):
        al.descend(TOKENS, al.gd(0.1), model=model, test=al.Sequences(x=TOKENS.x, y=TOKENS.y), steps=2)


@pytest.mark.parametrize(
    ("init", "says"),
    [
        ({"W": np.eye(4)}, r"`init` has \['W'\]; wanted W, V"),
        ({"W": np.eye(4), "V": np.eye(3)}, r"`init\['V'\]` has shape \(3, 3\); wanted \(4, 4\)"),
        ({"W": np.eye(4), "V": np.full((4, 4), np.nan)}, r"`init\['V'\]`"),
        (np.eye(4), "`init` has .*wanted W, V"),
        ("normal", "`init` is 'normal'; wanted one of lecun"),
    ],
)
def test_weights_that_are_not_those_of_the_model(init, says):
    with pytest.raises(al.InputError, match=says):
        al.descend(TOKENS, al.gd(0.1), model=puts_out(lambda self, w, e: e.x[0] @ w["W"] @ w["V"] @ e.z), init=init)
