"""Encoders and fully connected networks: values and gradients against loops, finite differences and closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from network_oracle import closed_gradients, encoder_outputs

import attnlab as al
from attnlab.models import Encoder, FullyConnected

KINDS = {
    "plain": {},
    "sum, linear, ntk": {"pool": "sum", "scaling": "linear", "init": "ntk"},
    "he": {"init": "he"},
    "tied": {"tied": True},
    "relu attention": {"attention_kind": "relu", "scaling": 1.0},
    "uniform": {"attention_kind": "uniform"},
    "identity": {"residual": "identity", "width": 4},
    "projected": {"residual": "projected"},
    "two blocks": {"depth": 2},
    "three blocks, ntk": {"depth": 3, "init": "ntk", "scaling": 0.7},
    "scales": {"scaling": 3.0, "hidden_scale": 0.2},
}


def made(kind, n=5, T=3, d=4, seed=0):
    options = {"width": 7, **KINDS[kind]}
    data = al.data.gaussian_sequences(n, T, d, rows="raw", seed=seed)
    model = Encoder(**options)
    return data, model, model.initial(data, seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_values_agree_with_loops(kind, seed):
    data, model, weights = made(kind, seed=seed)
    outputs, hidden = encoder_outputs(model, weights, data.x)
    np.testing.assert_allclose(model.outputs(data, weights), outputs, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(model.hidden(data, weights), hidden, rtol=1e-12, atol=1e-14)
    for loss, factor in (("half_sum", 0.5), ("mse_mean", 1 / data.n), ("half_mean", 0.5 / data.n)):
        want = factor * np.sum((outputs - data.y) ** 2)
        np.testing.assert_allclose(model.loss(data, weights, loss=loss), want, rtol=1e-12)


def plain_gradient(model, data, weights, loss="half_sum"):
    mantissa, log_scale = model.gradient(data, weights, loss=loss)
    return {k: m * np.exp(log_scale[k].reshape(*log_scale[k].shape, *[1] * (m.ndim - log_scale[k].ndim)))
            for k, m in mantissa.items()}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_by_finite_differences(kind):
    data, model, weights = made(kind)
    found = plain_gradient(model, data, weights)
    rng, step = np.random.default_rng(1), 1e-4
    for name in weights:
        direction = rng.standard_normal(weights[name].shape)
        at = [float(model.loss(data, {**weights, name: weights[name] + s * step * direction})) for s in (-2, -1, 1, 2)]
        slope = (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * step)  # of fourth order
        if not model.shapes(data)[name].trained or (model.attention_kind == "uniform" and name in ("W_Q", "W_K")):
            assert not found[name].any()
            continue
        scale = max(abs(slope), np.linalg.norm(found[name]) * np.linalg.norm(direction) * 1e-2)
        assert abs(np.sum(found[name] * direction) - slope) <= 1e-7 * scale, name


@pytest.mark.parametrize("options", [{}, {"pool": "sum"}, {"scaling": "linear", "init": "ntk"}, {"scaling": 2.0}])
def test_gradient_is_the_closed_form_of_the_paper(options):
    data = al.data.gaussian_sequences(4, 3, 5, rows="raw", seed=3)
    model = Encoder(11, **options)
    weights = model.initial(data)
    errors = model.outputs(data, weights) - data.y
    want = {k: np.zeros_like(w) for k, w in weights.items()}
    for r, X in zip(errors, data.x, strict=True):
        for k, g in closed_gradients(model, weights, X).items():
            want[k] += r * g
    for loss, factor in (("half_sum", 1.0), ("mse_mean", 2 / data.n), ("half_mean", 1 / data.n)):
        for k, g in plain_gradient(model, data, weights, loss).items():
            np.testing.assert_allclose(g, factor * want[k], rtol=1e-11, atol=1e-13)


def test_mean_pooling_is_sum_pooling_with_a_smaller_hidden_scale():
    data, mean, weights = made("plain")
    summed = Encoder(7, pool="sum", hidden_scale=1.0 / data.T)
    np.testing.assert_allclose(summed.outputs(data, weights), mean.outputs(data, weights), rtol=1e-13)


@pytest.mark.parametrize("seed", range(5))
def test_one_token_is_the_two_layer_network(seed):
    rng = np.random.default_rng(seed)
    data = al.Sequences.of_vectors(rng.standard_normal((6, 9)), rng.standard_normal(6))
    encoder, dense = Encoder(13, scaling="linear"), FullyConnected(13)
    weights = encoder.initial(data, seed)
    own = {k: weights[k] for k in ("W_V", "w_O")}
    np.testing.assert_allclose(encoder.outputs(data, weights), dense.outputs(data, own), rtol=1e-14, atol=1e-14)
    by_encoder, by_dense = plain_gradient(encoder, data, weights), plain_gradient(dense, data, own)
    assert not by_encoder["W_Q"].any()
    assert not by_encoder["W_K"].any()
    for k in own:
        np.testing.assert_allclose(by_encoder[k], by_dense[k], rtol=1e-13, atol=1e-14)


def test_three_layers_by_hand():
    rng = np.random.default_rng(0)
    data, model = al.Sequences(x=rng.standard_normal((4, 2, 3)), y=np.zeros(4)), FullyConnected(5, layers=3, init="ntk")
    w = model.initial(data)
    inside = np.maximum(data.x.reshape(4, 6) @ w["W_V"].T, 0) / np.sqrt(5)
    want = np.maximum(inside @ w["W_V2"].T, 0) / np.sqrt(5) @ w["w_O"]
    np.testing.assert_allclose(model.outputs(data, w), want, rtol=1e-13)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3))
def test_the_order_of_tokens_does_not_matter(n, T, d, seed):
    data = al.data.gaussian_sequences(n, T, d, seed=seed)
    model = Encoder(6)
    weights = model.initial(data, seed)
    turned = al.Sequences(x=data.x[:, np.random.default_rng(seed).permutation(T)], y=data.y)
    np.testing.assert_allclose(model.outputs(turned, weights), model.outputs(data, weights), rtol=1e-12, atol=1e-13)


def test_attention_becomes_uniform_with_linear_scaling_but_not_when_tied():
    data = al.data.gaussian_sequences(3, 5, 6, rows="raw", seed=1)
    wide = {kind: Encoder(40_000, scaling="linear", init="ntk", tied=kind) for kind in (False, True)}
    apart = {k: np.abs(m.attention(data, m.initial(data)) - 0.2).max() for k, m in wide.items()}
    assert apart[False] < 0.05
    assert apart[True] > 0.5


@pytest.mark.parametrize("law", ["lecun", "he", "ntk"])
def test_variances_of_the_start(law):
    data = al.data.gaussian_sequences(2, 2, 50)
    model = Encoder(3000, init=law, depth=2, residual=None)
    gain = {"lecun": 1.0, "he": 2.0, "ntk": None}[law]
    for name, w in model.initial(data).items():
        want = 1.0 if gain is None else gain / w.shape[-1]
        assert model.variances(2, 50)[name] == pytest.approx(want)
        assert abs(w.var() / want - 1) < 6 * np.sqrt(2 / w.size), name
    assert model.tau1 == (3000**-0.5 if law == "ntk" else 1.0)
    projected = Encoder(3000, init="ntk", residual="projected")
    assert projected.initial(data)["S"].var() * 50 == pytest.approx(1.0, rel=0.02)


def test_scalings():
    assert Encoder(100).tau0 == pytest.approx(0.1)
    assert Encoder(100, scaling="linear").tau0 == pytest.approx(0.01)
    assert Encoder(100, scaling=0.3).tau0 == 0.3
    assert Encoder(100, init="ntk").tau1 == pytest.approx(0.1)
    assert Encoder(100, init="ntk", hidden_scale=2.0).tau1 == 2.0


def test_trials_are_independent_of_their_number():
    batch = al.data.gaussian_sequences(4, 3, 5, seed=2, trials=3)
    model = Encoder(8)
    weights = model.initial(batch, seed=7)
    alone = model.initial(batch[0], seed=7)
    for k in alone:
        np.testing.assert_array_equal(weights[k][0], alone[k])
    np.testing.assert_array_equal(al.data.gaussian_sequences(4, 3, 5, seed=2).x, batch.x[0])
    outputs = model.outputs(batch, weights)
    for i in range(3):
        own = {k: w[i] for k, w in weights.items()}
        np.testing.assert_allclose(outputs[i], model.outputs(batch[i], own), rtol=1e-13)
        slope, each = plain_gradient(model, batch, weights), plain_gradient(model, batch[i], own)
        np.testing.assert_allclose(slope["W_V"][i], each["W_V"], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("scale", [1e-120, 1e-30, 1e30, 1e120])
def test_gradients_of_any_size(scale):
    """Outputs are linear in w_O; the gradient keeps its digits where its squares under- or overflow."""
    data, model, weights = made("plain")
    zero = al.Sequences(x=data.x, y=np.zeros(data.n))
    small = {**weights, "w_O": scale * weights["w_O"]}
    base, log_base = model.gradient(zero, weights)
    found, log_found = model.gradient(zero, small)
    for k, power in {"w_O": 1, "W_V": 2, "W_Q": 2}.items():
        np.testing.assert_allclose(found[k], base[k], rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(log_found[k] - log_base[k], power * np.log(scale), rtol=1e-12)


def test_saturated_attention_has_the_gradient_of_extended_precision():
    mpmath = pytest.importorskip("mpmath")
    data = al.Sequences(x=[[[1.0, 0.0], [0.0, 1.0]]], y=[0.0])
    model = Encoder(2, scaling=1.0, pool="sum")
    weights = {"W_Q": 9.0 * np.eye(2), "W_K": np.eye(2) * 9.0, "W_V": np.array([[1.0, 0.2], [0.1, 1.0]]),
               "w_O": np.array([1.0, -0.5])}  # fmt: skip
    found = plain_gradient(model, data, weights)["W_Q"]
    with mpmath.workdps(60):

        def loss(entry):
            W_Q = mpmath.matrix([[entry, 0], [0, 9]])
            logits = W_Q.T * mpmath.matrix([[9, 0], [0, 9]])
            total = mpmath.mpf(0)
            for i in range(2):
                e = [mpmath.exp(logits[i, j]) for j in range(2)]
                beta = [v / sum(e) for v in e]
                for r, (a, b) in enumerate(((1.0, 0.2), (0.1, 1.0))):
                    total += mpmath.mpf([1.0, -0.5][r]) * max(mpmath.mpf(a) * beta[0] + mpmath.mpf(b) * beta[1], 0)
            return total**2 / 2

        want = mpmath.diff(loss, 9)
    assert found[0, 0] == pytest.approx(float(want), rel=1e-9)
    assert 0 < abs(found[0, 0]) < 1e-30


def test_an_exact_fit_has_no_gradient():
    data, model, weights = made("plain")
    fitted = al.Sequences(x=data.x, y=model.outputs(data, weights))
    mantissa, log_scale = model.gradient(fitted, weights)
    assert all(not m.any() and np.isfinite(log_scale[k]) for k, m in mantissa.items())
    assert model.loss(fitted, weights) == 0.0


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Encoder(0), "`width` is 0"),
        (lambda: Encoder(2.5), "`width` is 2.5"),
        (lambda: Encoder(True), "`width` is True"),
        (lambda: Encoder(3, scaling="cube"), "`scaling` is 'cube'"),
        (lambda: Encoder(3, scaling=np.nan), "`scaling` is nan"),
        (lambda: Encoder(3, hidden_scale=np.inf), "`hidden_scale` is inf"),
        (lambda: Encoder(3, init="xavier"), "`init` is 'xavier'"),
        (lambda: Encoder(3, pool="max"), "`pool` is 'max'"),
        (lambda: Encoder(3, attention_kind="hard"), "`attention_kind` is 'hard'"),
        (lambda: Encoder(3, residual="gated"), "`residual` is 'gated'"),
        (lambda: Encoder(3, parameterization="mup"), "`parameterization` is 'mup'"),
        (lambda: Encoder(3, residual="identity").sizes(2, 4), "width 3 and tokens of dimension 4"),
        (lambda: FullyConnected(3, layers=4), "`layers` is 4"),
        (lambda: FullyConnected(-1), "`width` is -1"),
    ],
)
def test_what_is_refused(build, says):
    with pytest.raises(al.InputError, match=None) as caught:
        build()
    assert says in str(caught.value)


def test_wrong_weights_are_named():
    data, model, weights = made("plain")
    for bad, says in (
        ({k: w for k, w in weights.items() if k != "w_O"}, "wanted W_Q, W_K, W_V, w_O"),
        ({**weights, "W_V": np.ones((2, 2))}, "`weights['W_V']` has shape (2, 2)"),
        ({**weights, "w_O": np.full(7, np.nan)}, "`weights['w_O']` has 7 entries that are NaN"),
        (np.ones(3), "`weights` has an array of shape (3,)"),
    ):
        with pytest.raises(al.InputError) as caught:
            model.outputs(data, bad)
        assert says in str(caught.value)
    with pytest.raises(al.InputError, match=r"wanted al\.Sequences"):
        model.outputs(data.x, weights)
