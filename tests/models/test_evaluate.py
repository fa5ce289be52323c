"""Attention weights, checks of weights and heads, and the caller's JAX configuration."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import attnlab as al
from attnlab.errors import InputError

N, T, D = 3, 4, 3


def make_tokens(seed: int = 0, **kinds) -> al.Tokens:
    rng = np.random.default_rng(seed)
    return al.Tokens(
        x=rng.standard_normal((N, T, D)), z=rng.standard_normal((N, D)), y=[1, -1, 1], v=rng.standard_normal(D), **kinds
    )


@pytest.mark.parametrize("factor", [0.0, 1.0, 30.0, 1000.0])
def test_attention_is_softmax_over_the_visible(factor):
    rng = np.random.default_rng(1)
    mask = rng.random((N, T)) < 0.6
    mask[:, 0] = True
    W = factor * rng.standard_normal((D, D))
    for tokens in (make_tokens(), make_tokens(mask=mask)):
        s = al.models.attention(tokens, W)
        assert s.shape == (N, T)
        assert s.dtype == np.float64
        np.testing.assert_array_equal(s[~tokens.visible], 0.0)
        np.testing.assert_allclose(s.sum(-1), 1.0, rtol=1e-15)
        logits = np.where(tokens.visible, np.einsum("ntd,de,ne->nt", tokens.x, W, tokens.z), -np.inf)
        e = np.exp(logits - logits.max(-1, keepdims=True))
        np.testing.assert_allclose(s, e / e.sum(-1, keepdims=True), rtol=1e-14 * (10 + 10 * factor), atol=1e-300)


def test_attention_of_several_queries_trials_and_parameterizations():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((2, N, T, D)), np.ones((2, N, T))
    tokens = al.Tokens.self_attention(x, y, query="all", mask="causal")  # no v: attention needs none
    K, Q = rng.standard_normal((2, D, 2))
    s = al.models.attention(tokens, {"K": K, "Q": Q, "u": np.ones(D)})
    assert s.shape == (2, N, T, T)
    np.testing.assert_array_equal(s[..., np.triu_indices(T, 1)[0], np.triu_indices(T, 1)[1]], 0.0)
    np.testing.assert_array_equal(s[..., 0, 0], 1.0)
    np.testing.assert_allclose(s, al.models.attention(tokens, K @ Q.T), rtol=1e-13)
    np.testing.assert_allclose(s[1], al.models.attention(tokens[1], K @ Q.T), rtol=1e-13)


@pytest.mark.parametrize("head", ["linear", "user"])
def test_callers_configuration_is_untouched(head):
    tokens = make_tokens()
    given = oracle.smooth_head if head == "user" else head
    W = np.eye(D)
    for enabled in (False, True) if head == "linear" else (False,):
        with jax.enable_x64(enabled):
            before = jnp.zeros(2).dtype
            results = [
                al.models.loss(tokens, W, head=given),
                al.models.excess_loss(tokens, W, head=given),
                al.models.attention(tokens, W),
                al.models.gradient(tokens, W, head=given)[0]["W"],
                al.models.gradient(tokens, W, head=given)[1]["W"],
                al.scores(tokens, al.models.as_head(given)),
                al.optimal_tokens(tokens, al.models.as_head(given), return_ties=True)[0],
            ]
            assert jnp.zeros(2).dtype == before == (np.float64 if enabled else np.float32)
        assert all(type(r) is np.ndarray or isinstance(r, np.generic) for r in results)
        assert all(r.dtype == np.float64 for r in results[:-1])


def test_configuration_survives_an_error():
    def broken(o):
        raise RuntimeError("no value")

    tokens = make_tokens()
    for call in (al.models.loss, al.models.gradient, al.models.excess_loss):
        with pytest.raises(InputError, match="`head` raises RuntimeError: no value"):
            call(tokens, np.eye(D), head=broken)
    with pytest.raises(InputError, match="no value"):
        al.scores(tokens, broken)
    assert jnp.zeros(2).dtype == np.float32


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones((D, D + 1)), r"`W` has shape \(3, 4\); wanted \(3, 3\)"),
        (np.ones(D), r"`W` has shape \(3,\)"),
        (1.0, r"`W` has shape \(\)"),
        (np.full((D, D), np.nan), "`W` has 9 entries that are NaN or infinite"),
        ({"W": np.full((D, D), np.inf)}, "`W` has 9 entries that are NaN or infinite"),
        ({"K": np.ones((D, 2))}, r"named \['K'\]; wanted W, or K and Q"),
        ({"W": np.eye(D), "K": np.eye(D)}, "wanted W, or K and Q"),
        ({}, "wanted W, or K and Q"),
        ({"K": np.ones((D, 2)), "Q": np.ones((D, 1))}, r"`Q` has shape \(3, 1\); wanted \(3, 2\)"),
        ({"K": np.ones((2, D)), "Q": np.ones((2, D))}, r"`K` has shape \(2, 3\)"),
        ({"K": 1.0, "Q": np.ones((D, 1))}, "`K` has shape"),
        ({"K": np.ones((D, 0)), "Q": np.ones((D, 0))}, "`K` has shape"),
        ({"W": np.eye(D), "u": np.ones(D + 1)}, r"`u` has shape \(4,\)"),
        (np.eye(D) * 1j, "`W`"),
        ("abc", "`W`"),
    ],
)
def test_wrong_weights_are_named(weights, words):
    for call in (al.models.loss, al.models.gradient, al.models.attention):
        named = {k: v for k, v in weights.items() if k != "u"} if isinstance(weights, dict) else weights
        if call is al.models.attention and isinstance(weights, dict) and "u" in weights:
            al.models.attention(make_tokens(), named)
            continue
        with pytest.raises(InputError, match=words):
            call(make_tokens(), weights)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (lambda: "softplus", "`head` is 'softplus'; wanted one of linear, relu-sum"),
        (lambda: 3, "`head` is 3; wanted"),
        (lambda: al.models.Mlp(np.ones((D + 1, 2))), r"`V` has shape \(4, 2\); the head needs \(3, width\)"),
        (lambda: al.models.Mlp(np.ones((D, 2)), np.ones(3)), r"`out` has shape \(3,\); the head needs \(2\)"),
        (lambda: al.models.Mlp(np.full((D, 2), np.nan)), "`V` has 6 entries that are NaN"),
        (lambda: al.models.Concave(np.inf), "`strength` has 1 entries that are NaN or infinite"),
        (lambda: lambda o: o, r"shape \(3,\); wanted one number"),
    ],
)
def test_wrong_heads_are_named(head, words):
    for call in (al.models.loss, al.models.gradient):
        with pytest.raises(InputError, match=words):
            call(make_tokens(), np.eye(D), head=head())


def test_heads_that_need_v_say_so():
    tokens = make_tokens()
    bare = al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y)
    for head in ("linear", al.models.Concave(0.1)):
        with pytest.raises(InputError, match="no `v`"):
            al.models.loss(bare, np.eye(D), head=head)
    assert np.isfinite(al.models.loss(bare, np.eye(D), head="relu-sum"))


def test_only_the_linear_head_is_trained():
    with pytest.raises(InputError, match="`train_head` needs the linear head"):
        al.models.gradient(make_tokens(), {"W": np.eye(D), "u": np.ones(D)}, head="relu-sum")
    with pytest.raises(InputError, match="`parameterization` is 'QK'; wanted one of 'W', 'KQ'"):
        al.models.Attention("QK")


def test_trained_head_takes_the_place_of_v():
    tokens, W = make_tokens(), np.eye(D)
    u = np.array([0.5, -1.0, 2.0])
    swapped = al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=u)
    np.testing.assert_allclose(al.models.loss(tokens, {"W": W, "u": u}), al.models.loss(swapped, W), rtol=1e-15)


def test_head_constants_may_differ_by_trial():
    rng = np.random.default_rng(3)
    tokens = al.data.sphere(n=N, T=T, d=D, trials=2)
    V, out = rng.standard_normal((2, D, 5)), rng.standard_normal((2, 5))
    both = al.models.loss(tokens, np.eye(D), head=al.models.Mlp(V, out))
    shared = al.models.loss(tokens, np.eye(D), head=al.models.Mlp(V[0], out[0]))
    for i in range(2):
        alone = al.models.loss(tokens[i], np.eye(D), head=al.models.Mlp(V[i], out[i]))
        np.testing.assert_allclose(both[i], alone, rtol=1e-14)
    np.testing.assert_allclose(shared[0], both[0], rtol=1e-14)


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_log_objective_does_not_underflow(loss):
    """Scores of 2000: the objective is e^-2000, its logarithm is not."""
    tokens = al.Tokens(x=[[[2000.0, 0.0], [0.0, 1.0]]], z=[[1.0, 0.0]], y=[1.0], v=[1.0, 0.0])
    log = al.models.Attention().loss(tokens, np.eye(2), loss=loss, log=True)
    np.testing.assert_allclose(log, -2000.0, rtol=1e-14)


def test_log_objective_averages_over_sequences_and_adds_queries():
    rng = np.random.default_rng(0)
    tokens = al.Tokens.self_attention(rng.standard_normal((N, T, D)), np.ones((N, T)), np.ones(D), "all", mask="causal")
    log = al.models.Attention().loss(tokens, np.eye(D), log=True)
    np.testing.assert_allclose(np.exp(log), al.models.loss(tokens, np.eye(D)), rtol=1e-14)


def test_scaled_gradient_value():
    mantissa, log_scale = al.models.gradient(make_tokens(), np.eye(D))
    value = al.models.ScaledGradient(mantissa, log_scale).value()["W"]
    np.testing.assert_allclose(value, mantissa["W"] * np.exp(log_scale["W"]), rtol=1e-6)


def test_products_beyond_floats_are_refused_also_where_tokens_are_almost_equal():
    """W z is infinite; logits of tokens that differ in the last digit would be inf - inf."""
    almost = np.nextafter(1.0, 2.0)
    tokens = al.Tokens(x=[[[almost, almost], [almost, 1.0]]], z=[[0.0, 2.0]], y=[1.0], v=[1.0, 1.0])
    with pytest.raises(al.InputError, match="not finite"):
        al.models.attention(tokens, {"W": np.array([[1.0, 1.0], [1.7e308, 1.7e308]])})
    attention = al.models.attention(tokens, {"W": np.array([[1.0, 1.0], [8e307, 8e307]])})
    np.testing.assert_array_equal(attention, [[1.0, 0.0]])
