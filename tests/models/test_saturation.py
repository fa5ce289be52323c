"""Gradients of saturated attention, where the gradient itself is e^-1000, against 60 digits."""

import mpmath
import numpy as np
import oracle
import pytest
from mpmath import mp

import attnlab as al

N, T, D = 3, 4, 3
EPS = np.finfo(float).eps


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60):
        yield


def grid(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Short binary fractions, none zero: products of three of them, and means over four, are exact in float64."""
    return (2 * rng.integers(-16, 16, shape) + 1) / 16


def generic(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def make_head(name: str, rng: np.random.Generator, v: np.ndarray) -> oracle.OracleHead:
    d = v.size
    return {
        "linear": lambda: oracle.linear(v),
        "concave": lambda: oracle.concave(v, 0.3),
        "mlp": lambda: oracle.mlp(rng.standard_normal((d, 8)), rng.standard_normal(8)),
        "relu-sum": oracle.relu_sum,
        "user": lambda: oracle.user(d),
    }[name]()


def saturated(draw, seed: int, margin: float, kind: str, queries: int | None = None, n: int = N, d: int = D):
    """Tokens and weights whose smallest logit gap is `margin` or a little more; whole factors keep the grid exact."""
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        x, v = draw(rng, n, T, d), rng.standard_normal(d)
        rows = (n,) if queries is None else (n, queries)
        z, y = draw(rng, *rows, d), rng.choice([-1.0, 1.0], rows)
        K, Q = draw(rng, d, max(1, d - 1)), draw(rng, d, max(1, d - 1))
        W = draw(rng, d, d) if kind == "W" else K @ Q.T
        tokens = al.Tokens(x=x, z=z, y=y, v=v)
        smallest = oracle.logit_gaps(tokens, W).min()
        if smallest > 0.1:
            factor = np.ceil(margin / smallest)
            return tokens, ({"W": factor * W} if kind == "W" else {"K": factor * K, "Q": Q}), rng
    raise AssertionError("no draw without ties")


def largest_logit(tokens: al.Tokens, params) -> float:
    """Size of the terms that make up the logits, of which rounding takes its share."""
    W = np.abs(params["W"]) if "W" in params else np.abs(params["K"]) @ np.abs(params["Q"]).T
    z = np.abs(tokens.z if tokens.K is not None else tokens.z[:, None])
    return np.einsum("ntd,de,nke->nkt", np.abs(tokens.x), W, z).max()


def check(tokens, params, head, loss="logistic", tolerance=1e-12):
    ell = oracle.LOSSES[loss]
    mantissa, log_scale = al.models.gradient(tokens, params, loss=ell.given, head=head.given)
    truth = oracle.gradient(tokens, params, head, ell)
    for key, want in truth.items():
        error = oracle.direction_error(mantissa[key], want)
        assert error < tolerance, (key, error)
        if oracle.norm(oracle.flat(want)) == 0:
            assert np.isfinite(log_scale[key])
        else:
            error = oracle.log_norm_error(mantissa[key], log_scale[key], want)
            assert error < max(1e-12, tolerance), (key, "log norm", error)
    return mantissa, log_scale


@pytest.mark.parametrize("margin", [10, 100, 1000])
@pytest.mark.parametrize("kind", ["W", "KQ"])
@pytest.mark.parametrize("head", ["linear", "concave", "mlp", "relu-sum", "user"])
def test_direction_and_size_are_exact_to_rounding(head, kind, margin):
    for seed in range(3):
        tokens, params, rng = saturated(grid, seed, margin, kind)
        check(tokens, params, make_head(head, rng, tokens.v))


@pytest.mark.parametrize("margin", [10, 1000])
@pytest.mark.parametrize("loss", ["exponential", "correlation", "user"])
@pytest.mark.parametrize("head", ["linear", "user"])
def test_every_loss(head, loss, margin):
    tokens, params, rng = saturated(grid, 11, margin, "W")
    check(tokens, params, make_head(head, rng, tokens.v), loss)


@pytest.mark.parametrize("margin", [10, 100, 1000])
@pytest.mark.parametrize("head", ["linear", "user"])
def test_several_queries(head, margin):
    tokens, params, rng = saturated(grid, 3, margin, "W", queries=T)
    check(tokens, params, make_head(head, rng, tokens.v))


@pytest.mark.parametrize("margin", [10, 100, 1000])
@pytest.mark.parametrize("kind", ["W", "KQ"])
def test_data_off_the_grid_lose_only_the_rounding_of_the_logits(kind, margin):
    for seed in range(4):
        tokens, params, rng = saturated(generic, seed, margin, kind)
        tolerance = 1e-13 + 8 * EPS * largest_logit(tokens, params)
        check(tokens, params, make_head("user", rng, tokens.v), tolerance=tolerance)


@pytest.mark.parametrize("margin", [100, 1000])
def test_trained_head(margin):
    tokens, params, rng = saturated(grid, 7, margin, "W")
    u = rng.standard_normal(D)
    tokens = al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y)
    check(tokens, params | {"u": u}, oracle.linear(u))


@pytest.mark.parametrize("seed", range(4))
def test_hidden_tokens_have_no_say(seed):
    tokens, params, rng = saturated(grid, seed, 200, "W")
    mask = np.ones((N, T), dtype=bool)
    mask[np.arange(N), rng.integers(0, T, N)] = False
    masked = al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, mask=mask)
    tolerance = 1e-13 + 8 * EPS * largest_logit(tokens, params)  # means over three tokens are rounded
    head = make_head("linear", rng, tokens.v)
    mantissa, scale = check(masked, params, head, tolerance=tolerance)
    x = tokens.x.copy()
    x[~mask] = 1e8 * rng.standard_normal(x[~mask].shape)
    other = al.Tokens(x=x, z=tokens.z, y=tokens.y, v=tokens.v, mask=mask)
    m, s = al.models.gradient(other, params)
    np.testing.assert_array_equal(m["W"], mantissa["W"])
    assert s["W"] == scale["W"]


def test_causal_rows_each_have_their_own_leader():
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x = grid(rng, N, T, D)
        tokens = al.Tokens.self_attention(
            x, rng.choice([-1.0, 1.0], (N, T)), rng.standard_normal(D), "all", mask="causal"
        )
        W = grid(rng, D, D)
        if oracle.logit_gaps(tokens, W).min() > 0.1:
            break
    else:
        pytest.fail("no draw has clear leaders")
    for factor in (10.0, 100.0, 1000.0):
        tolerance = 1e-12 + 8 * EPS * largest_logit(tokens, {"W": factor * W})
        check(tokens, {"W": factor * W}, oracle.linear(tokens.v), tolerance=tolerance)


@pytest.mark.slow
def test_sequences_of_very_different_margins():
    """Gaps of 5, 200 and 3000: the least saturated sequence rules, alone the others are as exact."""
    rng = np.random.default_rng(0)
    x = np.tile(grid(rng, T, D), (3, 1, 1))
    z = np.array([1.0, 40.0, 600.0])[:, None] * np.tile(grid(rng, D), (3, 1))
    y, v = np.array([1.0, -1.0, 1.0]), rng.standard_normal(D)
    W = grid(rng, D, D)
    gaps = oracle.logit_gaps(al.Tokens(x=x, z=z, y=y, v=v), W)[:, 0]
    W *= np.ceil(5 / gaps[0])
    for head in ("linear", "user"):
        check(al.Tokens(x=x, z=z, y=y, v=v), {"W": W}, make_head(head, rng, v))
        for i in range(3):
            check(al.Tokens(x=x[i : i + 1], z=z[i : i + 1], y=y[i : i + 1], v=v), {"W": W}, make_head(head, rng, v))


def test_dead_sequence_beside_a_saturated_one():
    """A ReLU head dead on two sequences (zero gradient, moderate logits) must not hide the third at e^-800."""
    rng = np.random.default_rng(2)
    x = np.abs(grid(rng, N, T, D)) * np.array([-1.0, -1.0, 1.0])[:, None, None]
    z = np.array([[0.5, 0.25, 0.125], [0.25, 0.125, 0.5], [1.0, 0.5, 0.25]])
    for seed in range(50):
        W = grid(np.random.default_rng(seed), D, D)
        tokens = al.Tokens(x=x, z=z, y=[1.0, 1.0, -1.0])
        gap = oracle.logit_gaps(tokens, W)[2, 0]
        if gap > 0.1:
            break
    else:
        pytest.fail("no draw has a clear leader")
    W *= np.ceil(800 / gap)
    _, scale = check(tokens, {"W": W}, oracle.relu_sum())
    assert scale["W"] < -700
    only_dead = al.Tokens(x=x[:1], z=z[:1], y=[1.0])
    m, s = check(only_dead, {"W": W}, oracle.relu_sum())
    np.testing.assert_array_equal(m["W"], 0.0)
    assert np.isfinite(s["W"])


@pytest.mark.parametrize("gap", [1, 20, 40, 100, 1000])
@pytest.mark.parametrize("head", ["linear", "concave", "mlp", "user"])
def test_duplicate_of_the_top_token(head, gap):
    """Two equal tokens share the weight; the gradient still points along what tells them from the third."""
    rng = np.random.default_rng(3)
    best, other, third = np.array([1.0, 0.5, 0.25]), np.array([-0.5, 0.25, 1.0]), np.array([0.5, -1.0, 0.75])
    z = np.array([[1.0, 0.0, 0.0]])
    W = np.zeros((3, 3))
    W[0, 0] = 2.0 * gap
    x = np.stack([best, other, best, third])[None]
    check(al.Tokens(x=x, z=z, y=[1.0], v=[0.3, -0.7, 0.9]), {"W": W}, make_head(head, rng, np.array([0.3, -0.7, 0.9])))


@pytest.mark.parametrize("gap", [1, 20, 36, 50, 200, 2000])
@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_two_different_tokens_of_equal_score_share_the_top(rows, gap):
    """Tokens (1, 1) and (1, -1) tie in logit and in score: each must take half of what the others give up."""
    x = np.array([[1.0, 1.0], [1.0, -1.0], [0.0, 0.0], [-1.0, 0.5]])[list(rows)][None]
    tokens = al.Tokens(x=x, z=[[1.0, 0.0]], y=[1.0], v=[1.0, 0.0])
    check(tokens, {"W": np.array([[float(gap), 0.0], [0.0, 0.0]])}, oracle.linear(tokens.v))


@pytest.mark.parametrize("gap", [1, 30, 60, 700])
@pytest.mark.parametrize("head", ["linear", "mlp", "user"])
def test_exact_tie_of_the_top_logits(head, gap):
    rng = np.random.default_rng(4)
    x = np.array([[1.0, 0.5, 0.25], [1.0, -0.75, 0.5], [0.0, 1.0, 1.0], [-0.5, 0.25, 0.125]])[None]
    v = np.array([0.3, -0.7, 0.9])
    W = np.zeros((3, 3))
    W[0, 0] = gap
    check(al.Tokens(x=x, z=[[1.0, 0.0, 0.0]], y=[1.0], v=v), {"W": W}, make_head(head, rng, v))


@pytest.mark.parametrize("kind", ["W", "KQ"])
def test_one_token_has_no_gradient(kind):
    rng = np.random.default_rng(0)
    tokens = al.Tokens(x=rng.standard_normal((N, 1, D)), z=rng.standard_normal((N, D)), y=np.ones(N), v=np.ones(D))
    K, Q = rng.standard_normal((2, D, 2))
    params = {"W": 100 * K @ Q.T} if kind == "W" else {"K": K, "Q": Q}
    m, s = al.models.gradient(tokens, params)
    for key in params:
        np.testing.assert_array_equal(m[key], 0.0)
        assert np.isfinite(s[key])
    seen = al.Tokens(
        x=rng.standard_normal((N, T, D)),
        z=rng.standard_normal((N, D)),
        y=np.ones(N),
        v=np.ones(D),
        mask=np.arange(T) == 1,
    )
    m, s = al.models.gradient(seen, params)
    for key in params:
        np.testing.assert_array_equal(m[key], 0.0)
        assert np.isfinite(s[key])


@pytest.mark.parametrize("factor", [0.0, 1.0, 300.0])
def test_equal_scores_have_exactly_zero_gradient(factor):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((N, T, D))
    x[..., 0] = 0.7
    tokens = al.Tokens(x=x, z=rng.standard_normal((N, D)), y=[1, -1, 1], v=[2.0, 0.0, 0.0])
    m, s = al.models.gradient(tokens, factor * rng.standard_normal((D, D)))
    np.testing.assert_array_equal(m["W"], 0.0)
    assert np.isfinite(s["W"])


@pytest.mark.parametrize("margin", [1, 100, 1000])
@pytest.mark.parametrize("head", ["linear", "concave"])
def test_large_common_offset(head, margin):
    """Tokens 1e6 away from the origin on a grid that float64 still holds: nothing of the differences is lost."""
    offset = np.array([2.0**20, -(2.0**19), 2.0**20])
    for seed in range(100):
        rng = np.random.default_rng(seed)
        x, z, W = grid(rng, 1, T, D), grid(rng, 1, D), grid(rng, D, D)
        gap = oracle.logit_gaps(al.Tokens(x=x, z=z, y=[1.0]), W).min()
        if gap > 0.1:
            break
    else:
        pytest.fail("no draw has a clear leader")
    v = np.array([0.5, 2.0, 0.5]) if head == "linear" else np.array([0.5, 2.0, 0.5]) * 2.0**-20
    params = {"W": np.ceil(margin / gap) * W}
    strength = 2.0**-40
    h = oracle.linear(v) if head == "linear" else oracle.concave(v, strength)
    check(al.Tokens(x=x + offset, z=z, y=[1.0], v=v), params, h)


@pytest.mark.parametrize("margin", [1, 100, 1000])
@pytest.mark.parametrize("power", [-332, 332])  # 2^332 is about 1e100
@pytest.mark.parametrize("kind", ["W", "KQ"])
def test_tiny_and_huge_tokens(kind, power, margin):
    tokens, params, _ = saturated(grid, 6, margin, kind)
    scale = 2.0**power
    small = {"W": params["W"] / scale} if kind == "W" else {"K": params["K"] / scale, "Q": params["Q"]}
    scaled = al.Tokens(x=scale * tokens.x, z=tokens.z, y=tokens.y, v=tokens.v / scale)
    check(scaled, small, oracle.linear(scaled.v))
    # With the head left alone too, under a loss whose slope does not over- or underflow.
    unscaled_head = al.Tokens(x=scale * tokens.x, z=tokens.z, y=tokens.y, v=tokens.v)
    check(unscaled_head, small, oracle.linear(tokens.v), loss="correlation")


@pytest.mark.parametrize("margin", [10, 1000])
@pytest.mark.parametrize(("n", "d"), [(1, 3), (1, 1)])
@pytest.mark.slow
def test_smallest_shapes(n, d, margin):
    tokens, params, rng = saturated(grid, 8, margin, "W", n=n, d=d)
    for head in ("linear", "concave", "user"):
        check(tokens, params, make_head(head, rng, tokens.v))


@pytest.mark.parametrize("factor", [1.0, 50.0, 5000.0])
def test_two_token_example_in_closed_form(factor):
    """gradient = -e^-phi phi (1 - phi) E_11 with phi = 1 / (1 + e^-w), exponential loss."""
    m, s = al.models.gradient(al.data.two_tokens(), factor * np.eye(2), loss="exponential")
    phi = 1 / (1 + mp.exp(-factor))
    want = -phi + mpmath.log(phi) - factor + mpmath.log(phi)  # 1 - phi = phi e^-w
    np.testing.assert_array_equal(m["W"], [[-1.0, 0.0], [0.0, 0.0]])
    assert oracle.relative(s["W"], want) < 1e-14


def test_trials_with_different_saturation_keep_their_own_scale():
    tokens, params, _ = saturated(grid, 0, 1, "W")
    batch = al.Tokens.stack([tokens] * 3)
    W = np.array([1.0, 500.0, 3000.0])[:, None, None] * params["W"]
    m, s = al.models.gradient(batch, W)
    for i in range(3):
        alone, scale = al.models.gradient(tokens, W[i])
        np.testing.assert_allclose(m["W"][i], alone["W"], rtol=0, atol=1e-14)
        np.testing.assert_allclose(s["W"][i], scale["W"], rtol=1e-14)
    assert s["W"][2] < -2900
