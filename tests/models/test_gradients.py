"""Gradients against finite differences: every head, loss, parameterization and kind of mask."""

import numpy as np
import oracle
import pytest

import attnlab as al
from sampling import first_few

N, T, D = 3, 4, 3
HEADS = ("linear", "relu-sum", "mlp", "mlp-out", "concave", "user")
MASKS = ("none", "padding", "causal", "general")
PARAMETERS = ("W", "KQ", "KQ-low", "W+u")


def make_tokens(rng: np.random.Generator, mask: str, trials: int | None = None) -> al.Tokens:
    lead = () if trials is None else (trials,)
    x, v = rng.standard_normal((*lead, N, T, D)), rng.standard_normal((*lead, D))
    if mask == "none":
        return al.Tokens(x=x, z=rng.standard_normal((*lead, N, D)), y=rng.choice([-1.0, 1.0], (*lead, N)), v=v)
    if mask == "padding":
        visible = np.arange(T) < rng.permuted(np.tile([[1], [3], [4]], (*lead, 1, 1)), axis=-2)
        return al.Tokens(
            x=x, z=rng.standard_normal((*lead, N, D)), y=rng.choice([-1.0, 1.0], (*lead, N)), v=v, mask=visible
        )
    y = rng.choice([-1.0, 1.0], (*lead, N, T))
    if mask == "causal":
        return al.Tokens.self_attention(x, y, v, query="all", mask="causal")
    visible = rng.random((*lead, N, T, T)) < 0.6
    visible[..., 0] |= ~visible.any(-1)
    return al.Tokens(x=x, z=rng.standard_normal((*lead, N, T, D)), y=y, v=v, mask=visible)


def make_params(rng: np.random.Generator, kind: str, trials: int | None = None) -> dict[str, np.ndarray]:
    lead = () if trials is None else (trials,)
    if kind.startswith("KQ"):
        m = D - 1 if kind == "KQ-low" else D
        return {name: 0.7 * rng.standard_normal((*lead, D, m)) for name in "KQ"}
    found = {"W": 0.5 * rng.standard_normal((*lead, D, D))}
    return found | ({"u": rng.standard_normal((*lead, D))} if kind == "W+u" else {})


def make_head(rng: np.random.Generator, name: str, tokens: al.Tokens) -> oracle.OracleHead:
    V, out = rng.standard_normal((D, 5)), rng.standard_normal(5)
    return {
        "linear": lambda: oracle.linear(tokens.v),
        "relu-sum": oracle.relu_sum,
        "mlp": lambda: oracle.mlp(V),
        "mlp-out": lambda: oracle.mlp(V, out),
        "concave": lambda: oracle.concave(tokens.v, 0.3),
        "user": lambda: oracle.user(D),
    }[name]()


def distance_to_kink(tokens: al.Tokens, params: dict[str, np.ndarray], head: str, given) -> float:
    """Smallest |argument of a ReLU| over all attention outputs."""
    if head not in ("relu-sum", "mlp", "mlp-out"):
        return np.inf
    W = {k: p for k, p in params.items() if k != "u"}
    s = al.models.attention(tokens, W)
    o = np.einsum("n...t,ntd->n...d", s, tokens.x)
    return np.abs(o if head == "relu-sum" else o @ np.asarray(given.V)).min()


def smooth_case(mask: str, kind: str, head: str):
    """Tokens, parameters and head, drawn until no ReLU is near its kink."""
    for seed in range(200):
        rng = np.random.default_rng([seed, MASKS.index(mask), PARAMETERS.index(kind), HEADS.index(head)])
        tokens, params = make_tokens(rng, mask), make_params(rng, kind)
        h = make_head(rng, head, tokens)
        if distance_to_kink(tokens, params, head, h.given) > 0.03:
            return tokens, params, h
    raise AssertionError("no draw stays clear of the kinks")


def gradient_value(tokens, params, **kinds):
    mantissa, log_scale = al.models.gradient(tokens, params, **kinds)
    assert set(mantissa) == set(log_scale) == set(params)
    lead = log_scale[next(iter(params))].shape
    for m in mantissa.values():
        size = np.abs(m).reshape(*lead, -1).max(-1)
        assert np.all((np.abs(size - 1.0) < 1e-15) | (size == 0.0)), "the largest entry of a mantissa is 1"
    return {k: m * np.exp(log_scale[k]).reshape(lead + (1,) * (m.ndim - len(lead))) for k, m in mantissa.items()}


@pytest.mark.slow  # a program is compiled for each
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", ["W", "KQ", "KQ-low"])
@pytest.mark.parametrize("head", HEADS)
def test_gradient_is_the_slope_of_the_objective(head, kind, mask):
    tokens, params, h = smooth_case(mask, kind, head)
    for name, loss in oracle.LOSSES.items():
        got = gradient_value(tokens, params, loss=loss.given, head=h.given)
        want = oracle.finite_differences(tokens, params, h, loss)
        for key in params:
            error = np.abs(got[key] - want[key]).max() / np.abs(want[key]).max()
            assert error < 1e-10, (name, key, error)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("loss", oracle.LOSSES)
def test_gradient_with_a_trained_head(loss, mask):
    tokens, params, h = smooth_case(mask, "W+u", "linear")
    ell = oracle.LOSSES[loss]
    got = gradient_value(tokens, params, loss=ell.given)
    want = oracle.finite_differences(tokens, params, h, ell)
    for key in ("W", "u"):
        assert np.abs(got[key] - want[key]).max() < 1e-10 * np.abs(want[key]).max(), key
    bare = al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y, mask=tokens.mask)  # the head is in the weights alone
    again = gradient_value(bare, params, loss=ell.given)
    for key in ("W", "u"):
        np.testing.assert_array_equal(again[key], got[key])


@pytest.mark.parametrize(
    ("head", "kind", "mask"),
    [("linear", "W", "none"), ("linear", "W+u", "causal"), ("user", "KQ-low", "general"), ("mlp", "W", "padding")],
)
@pytest.mark.slow
def test_trials_are_independent(head, kind, mask):
    rng = np.random.default_rng(5)
    tokens, params = make_tokens(rng, mask, trials=3), make_params(rng, kind, trials=3)
    given = make_head(rng, head, tokens).given if head != "linear" else "linear"
    mantissa, log_scale = al.models.gradient(tokens, params, head=given)
    values = al.models.loss(tokens, params, head=given)
    assert values.shape == (3,)
    for i in range(3):
        one = {k: p[i] for k, p in params.items()}
        m, s = al.models.gradient(tokens[i], one, head=given)
        np.testing.assert_allclose(values[i], al.models.loss(tokens[i], one, head=given), rtol=1e-14)
        for key in params:
            np.testing.assert_allclose(mantissa[key][i], m[key], rtol=0, atol=1e-14)
            np.testing.assert_allclose(log_scale[key][i], s[key], rtol=0, atol=1e-14)


@pytest.mark.parametrize("mask", first_few(MASKS, 2))
@pytest.mark.parametrize("head", HEADS)
def test_loss_is_the_mean_over_sequences_of_the_sum_over_queries(head, mask):
    tokens, params, h = smooth_case(mask, "KQ-low", head)
    for name, loss in oracle.LOSSES.items():
        got = al.models.loss(tokens, params, loss=loss.given, head=h.given)
        want = oracle.objective(tokens, params, h, loss)
        # An objective that can vanish is judged by the size of its terms.
        size = max(abs(want), 1) if name == "correlation" else abs(want)
        assert abs(float(got) - want) < 1e-14 * size, name


def test_weights_given_once_are_shared_by_all_trials():
    rng = np.random.default_rng(0)
    tokens = make_tokens(rng, "none", trials=3)
    W = rng.standard_normal((D, D))
    m, s = al.models.gradient(tokens, W)
    for i in range(3):
        alone, scale = al.models.gradient(tokens[i], W)
        np.testing.assert_allclose(m["W"][i], alone["W"], rtol=0, atol=1e-14)
        np.testing.assert_allclose(s["W"][i], scale["W"], rtol=0, atol=1e-14)


def test_kq_gradient_is_the_chain_rule_of_the_w_gradient():
    rng = np.random.default_rng(1)
    tokens = make_tokens(rng, "general")
    K, Q = rng.standard_normal((2, D, 2))
    of_w = gradient_value(tokens, {"W": K @ Q.T})["W"]
    of_kq = gradient_value(tokens, {"K": K, "Q": Q})
    np.testing.assert_allclose(of_kq["K"], of_w @ Q, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(of_kq["Q"], of_w.T @ K, rtol=1e-12, atol=1e-15)
