"""Derivatives as mantissa and logarithm of scale: JAX's own where nothing saturates, mpmath's where everything does."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings, strategies as st
from mpmath import mp, mpf

import attnlab as al
from attnlab.models.reverse import attention_weights, scaled_vjp

softmax = al.models.softmax


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True), mp.workdps(60):
        yield


def agree(function, params, seed=0, rtol=1e-12):
    """Value and derivative are those of JAX, for a random cotangent of the first output."""

    @jax.jit
    def both(params, draw):
        value, back, _ = scaled_vjp(function, params)
        want, pull = jax.vjp(lambda p: jax.tree.leaves(function(p))[0], params)
        cotangent = draw[: want.size].reshape(want.shape)
        return (jax.tree.leaves(value)[0], back(cotangent, jnp.zeros(()))), (want, pull(cotangent)[0])

    draw = jnp.asarray(np.random.default_rng(seed).standard_normal(100))
    (value, (mantissa, log_scale)), (want, slopes) = both(params, draw)
    np.testing.assert_allclose(value, want, rtol=1e-13, atol=1e-300)
    found = jax.tree.map(lambda m, c: np.asarray(m) * np.exp(c), mantissa, log_scale)
    assert jax.tree.structure(found) == jax.tree.structure(slopes)
    for got, truth in zip(jax.tree.leaves(found), jax.tree.leaves(slopes), strict=True):
        size = max(float(np.abs(truth).max(initial=0.0)), 1e-300)
        assert np.abs(got - np.asarray(truth)).max(initial=0.0) <= rtol * size


def arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]


A, B, C = arrays(77, (4, 5), (5, 5), (3, 4, 5))


@jax.jit
def attended(logits, values):
    return softmax(logits) @ values


@jax.custom_jvp
def twice_the_slope(x):
    return jnp.sin(x)


twice_the_slope.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 2 * jnp.cos(primals[0]) * tangents[0]))

FUNCTIONS = {
    "matmul": lambda p: p["W"] @ p["b"],
    "relu and tanh": lambda p: jnp.tanh(jax.nn.relu(A @ p["W"]) @ p["W"]),
    "where": lambda p: jnp.where(p["W"] > 0.1, p["W"] ** 2, -3.0 * p["W"]),
    "a variable twice": lambda p: p["b"] * p["b"] + p["b"] @ p["b"],
    "constant": lambda p: jnp.ones(3) * 2.0,
    "softmax": lambda p: softmax(A @ p["W"]) @ p["b"],
    "same call twice": lambda p: attended(p["W"], p["W"]) @ attended(p["W"], p["b"]),
    "two in a row": lambda p: softmax(softmax(p["W"]) @ p["W"] * 3.0)[:, 1],
    "two side by side": lambda p: softmax(p["W"]) @ softmax(p["b"]) + softmax(p["b"]),
    "jitted": lambda p: jax.jit(lambda q: attended(A @ q["W"], q["b"]) * jnp.sum(q["b"]))(p),
    "jax.nn": lambda p: jax.nn.gelu(softmax(jax.nn.silu(p["W"])) @ jax.nn.softplus(p["b"])),
    "both softmaxes": lambda p: jax.nn.softmax(p["W"]) @ softmax(p["b"]) + jax.nn.logsumexp(softmax(p["W"])),
    "own rule": lambda p: twice_the_slope(softmax(twice_the_slope(p["W"]))),
    "other axis": lambda p: jax.vmap(softmax, in_axes=1, out_axes=1)(p["W"]) @ p["b"],
    "two other axes": lambda p: jax.vmap(jax.vmap(softmax, in_axes=1), in_axes=2)(C * p["b"]),
    "vmapped whole": lambda p: jax.vmap(lambda c: attended(c @ p["W"], p["b"]))(C),
    "remat": lambda p: jax.checkpoint(lambda q: softmax(jnp.sin(q["W"])) @ q["b"])(p),
    "moved about": lambda p: softmax(p["W"].reshape(-1)).reshape(5, 5)[jnp.array([3, 0, 3])] @ p["b"],
    "stopped": lambda p: softmax(p["W"]) @ jax.lax.stop_gradient(p["b"]) + p["b"].sum(),
    "sorted and summed": lambda p: jnp.sort(softmax(p["b"])).cumsum() * jnp.prod(p["W"][0]),
    "scanned": lambda p: jax.lax.scan(lambda c, row: (softmax(c @ p["W"]) + row, c[0]), p["b"], A)[0],
    "cond": lambda p: jax.lax.cond(p["b"].sum() > 0, softmax, jnp.tanh, p["b"]) @ p["W"],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_saturation_it_is_the_derivative_of_jax(name):
    W, b = arrays(len(name), (5, 5), (5,))
    agree(FUNCTIONS[name], {"W": W, "b": b})


OPERATIONS = (
    lambda h, W: h @ W,
    lambda h, W: jax.nn.relu(h) + 0.1 * h,
    lambda h, W: jnp.tanh(h),
    lambda h, W: softmax(h) * W,
    lambda h, W: softmax(h.T).T @ h,
    lambda h, W: h * h,
    lambda h, W: jnp.where(h > W, h, 0.5 * W),
    lambda h, W: jax.jit(softmax)(h - W) + h,
    lambda h, W: h - jnp.mean(h, axis=-1, keepdims=True),
)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(st.integers(0, len(OPERATIONS) - 1), min_size=1, max_size=6), st.integers(0, 99))
def test_any_composition(chosen, seed):
    def function(params):
        h = params["h"]
        for k in chosen:
            h = OPERATIONS[k](h, params["W"])
        return jnp.sum(h, axis=0)

    with jax.enable_x64(True):
        h, W = arrays(seed, (3, 3), (3, 3))
        agree(function, {"h": h, "W": W}, seed, rtol=1e-11)


def test_a_rule_of_the_users_own_holds_also_around_a_softmax():
    """Straight through: the derivative of the identity in place of that of softmax."""

    @jax.custom_vjp
    def straight(a):
        return softmax(a)

    straight.defvjp(lambda a: (softmax(a), None), lambda _, g: (g,))

    @jax.custom_jvp
    def doubled(a):
        return softmax(a)

    doubled.defjvp(lambda p, t: (softmax(p[0]), 2.0 * t[0]))
    (b,) = arrays(3, (5,))
    agree(lambda a: straight(a) * 3.0, b)
    agree(lambda a: doubled(a) * 3.0, b)


def test_only_the_first_output_is_pulled_back():
    W, b = arrays(0, (5, 5), (5,))

    def function(p):
        shared = softmax(p["W"])
        return shared @ p["b"], {"more": shared * p["W"], "none": jnp.arange(3)}, p["W"]

    agree(function, {"W": W, "b": b})
    value, _, _ = scaled_vjp(function, {"W": W, "b": b})
    np.testing.assert_allclose(value[1]["more"], softmax(W) * W, rtol=1e-14)
    np.testing.assert_array_equal(value[1]["none"], [0, 1, 2])


def test_what_does_not_matter_has_derivative_zero():
    W, b = arrays(0, (5, 5), (5,))
    params = {"W": W, "b": b, "unused": jnp.ones((2, 3)), "whole": jnp.array([2, 1]), "compared": jnp.ones(())}
    function = jax.jit(lambda p: jnp.where(p["compared"] > 0, softmax(p["W"])[p["whole"]] @ p["b"], 0.0))
    mantissa, log_scale, _ = pulled(function, params, jnp.ones(2), -1e4)
    for name in ("unused", "whole", "compared"):
        np.testing.assert_array_equal(mantissa[name], np.zeros(params[name].shape))
        assert np.isfinite(log_scale[name])
    assert all(np.abs(mantissa[name]).max() > 0 for name in ("W", "b"))
    assert all(-1e4 - 10 < log_scale[name] < -1e4 + 10 for name in ("W", "b"))


# --- far into saturation, against mpmath ----------------------------------------------------------------------------


def jacobian_product(logits, g):
    """(S' g)_t = s_t sum_tau s_tau (g_t - g_tau), in mpmath."""
    s = oracle.softmax(logits)
    return [p * mp.fsum(q * (gt - gr) for q, gr in zip(s, g, strict=True)) for p, gt in zip(s, g, strict=True)]


def eighths(rng, shape):
    """Entries of which products are exact in float64, so that logits have no rounding error of their own."""
    return np.round(8 * rng.standard_normal(shape)) / 8


def pulled(function, params, mantissa=1.0, log_scale=0.0):
    """Mantissa and log-scale of the derivative, and the attention weights."""
    _, back, attention = scaled_vjp(function, params)
    return *back(jnp.asarray(mantissa), jnp.asarray(log_scale)), attention


def compared(mantissa, log_scale, truth):
    assert oracle.direction_error(np.asarray(mantissa), truth) < 1e-12
    assert oracle.log_norm_error(np.asarray(mantissa), log_scale, truth) < 1e-10


@pytest.mark.parametrize("gap", [40, 1000, 5000])
@pytest.mark.parametrize("seed", range(3))
def test_one_saturated_layer(seed, gap):
    """f = v . V x^T softmax(x W z): by W it is V^T v ... z^T, by V an outer product, whatever the gap."""
    rng, d, T = np.random.default_rng(seed), 3, 4
    x, z, v, W, V = (eighths(rng, shape) for shape in ((T, d), (d,), (d,), (d, d), (d, d)))
    lead = float(np.ptp(np.sort(x @ W @ z)[-2:]))
    assert lead > 0
    W = W * float(2 ** np.ceil(np.log2(gap / lead)))  # exact, and the gap is between `gap` and twice that

    def function(p):
        return v @ (p["V"] @ (softmax(x @ p["W"] @ z) @ x))

    mantissa, log_scale, _ = pulled(function, {"W": jnp.asarray(W), "V": jnp.asarray(V)}, -0.75, -3.0)
    factor = mpf(-0.75) * mp.exp(-3)
    X, Z, U, values = (mp.matrix(a.tolist()) for a in (x, z, v, V))
    logits = list(X * mp.matrix(W.tolist()) * Z)
    by_logits = mp.matrix(jacobian_product(logits, list(X * values.T * U)))
    compared(mantissa["W"], log_scale["W"], (factor * X.T * by_logits * Z.T).tolist())
    attended = X.T * mp.matrix(oracle.softmax(logits))
    compared(mantissa["V"], log_scale["V"], (factor * U * attended.T).tolist())
    assert np.abs(mantissa["W"]).max() > 1e-3


def stacked(p, x, v):
    """Two layers of self-attention with a residual connection, the last token's output."""
    for W in (p["W1"], p["W2"]):
        x = x + softmax(x @ W @ x.T) @ x
    return x[-1] @ v


def stacked_slopes(x, W1, W2, v):
    """By W1 and W2, from the product rule, with matrices of mpmath."""
    tokens, kept = mp.matrix(x.tolist()), []
    for W in (mp.matrix(W1.tolist()), mp.matrix(W2.tolist())):
        logits = (tokens * W * tokens.T).tolist()
        kept.append((tokens, W, logits))
        tokens = tokens + mp.matrix([oracle.softmax(row) for row in logits]) * tokens
    by_tokens = mp.matrix([[0.0] * len(v)] * (len(x) - 1) + [v.tolist()])
    found = []
    for tokens, W, logits in reversed(kept):
        S = mp.matrix([oracle.softmax(row) for row in logits])
        by_S = (by_tokens * tokens.T).tolist()
        H = mp.matrix([jacobian_product(row, g) for row, g in zip(logits, by_S, strict=True)])
        found.append((tokens.T * H * tokens).tolist())
        by_tokens = by_tokens + S.T * by_tokens + H * tokens * W.T + H.T * tokens * W
    return {"W1": found[1], "W2": found[0]}


@pytest.mark.parametrize("sizes", [(1.0, 1.0), (512.0, 1 / 64), (1 / 8, 512.0), (4096.0, 4096.0)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_two_stacked_layers(seed, sizes):
    rng, d, T = np.random.default_rng(seed), 3, 3
    x, v = eighths(rng, (T, d)), eighths(rng, d)
    params = {"W1": sizes[0] * eighths(rng, (d, d)), "W2": sizes[1] * eighths(rng, (d, d))}
    with mp.workdps(120):
        truth = stacked_slopes(x, params["W1"], params["W2"], v)
    mantissa, log_scale, attention = pulled(lambda p: stacked(p, jnp.asarray(x), v), jax.tree.map(jnp.asarray, params))
    # Logits of 1e4 that are not exact have errors of 1e-12 of their own.
    tolerance = 1e-12 * max(1.0, sizes[1] / 8)
    for name, want in truth.items():
        assert oracle.direction_error(np.asarray(mantissa[name]), want) < tolerance, name
        assert oracle.log_norm_error(np.asarray(mantissa[name]), log_scale[name], want) < 1e-10
    assert [a.shape for a in attention] == [(T, T), (T, T)]
    if max(sizes) > 1:  # with a residual connection the gradient may stay large, that by the saturated W does not
        assert min(float(c) for c in log_scale.values()) < -20


@pytest.mark.parametrize("gap", [1000.0, 5000.0])
def test_zero_hides_nothing_of_what_is_added_to_it(gap):
    """One way back through a saturated softmax and one that is zero: e^-gap is what is left."""
    a = jnp.array([gap, 0.0])
    for function in (
        lambda a: softmax(a)[1] + 0.0 * jnp.sum(a),
        lambda a: softmax(a)[1] + jnp.sum(jax.lax.stop_gradient(a) ** 2),
        lambda a: softmax(a)[1] + jnp.where(a[0] > 0, 0.0, a[1]),
        lambda a: softmax(a)[1] + softmax(jnp.zeros(3) * a[0])[2],
    ):
        mantissa, log_scale, _ = pulled(function, a)
        size = float(jnp.max(jnp.abs(mantissa)))
        assert float(log_scale) + np.log(size) == pytest.approx(-gap, rel=1e-12)
        np.testing.assert_allclose(np.asarray(mantissa) / size, [-1.0, 1.0], rtol=1e-12)


def test_tiny_derivatives_add_to_their_sum():
    """e^-1000 + e^-1001, and a third of e^-3000 that does not count."""
    a = jnp.array([1000.0, 0.0, -1.0])
    mantissa, log_scale, _ = pulled(lambda a: softmax(a)[1] + softmax(a)[2] + softmax(3.0 * a)[1], a)
    compared(mantissa, log_scale, [-mp.exp(-1000) - mp.exp(-1001), mp.exp(-1000), mp.exp(-1001)])


@pytest.mark.parametrize("factors", [[1.0, 0.0, 1.0], [1.0, 1e-200, 0.0], [0.0, 0.0, 1e-300]], ids=str)
def test_rows_of_any_size_pass_through_the_same_softmax(factors):
    """The derivative by each row is of its own size; only the largest survive in one array, those are right."""
    a = jnp.array([[1000.0, 0.0], [2.0, 0.0], [3000.0, 1.0]])
    mantissa, log_scale, _ = pulled(lambda a: jnp.asarray(factors) @ softmax(a)[:, 1], a)
    odds = [mp.exp(-gap) for gap in (1000, 2, 2999)]
    slopes = [mpf(w) * odd / (1 + odd) ** 2 for w, odd in zip(factors, odds, strict=True)]
    compared(mantissa, log_scale, [[-s, s] for s in slopes])


@pytest.mark.parametrize("scale", [1.0, 1500.0])
@pytest.mark.parametrize("value", [1e3, 1e30])
def test_masked_tokens_have_no_derivative(value, scale):
    """Whatever their value is, as that of padding: it is not what others are rounded to."""
    seen, (a,) = np.array([True, False, True, True]), arrays(0, (4,))
    g = np.array([1.0, value, -2.0, 0.5])
    mantissa, log_scale, attention = pulled(lambda b: g @ softmax(jnp.where(seen, b, -jnp.inf)), scale * a)
    truth = jacobian_product(oracle.exact(scale * a[seen]), oracle.exact(g[seen]))
    compared(mantissa[seen], log_scale, truth)
    assert float(mantissa[1]) == float(attention[0][1]) == 0.0


def test_a_huge_value_of_a_token_without_weight():
    """1e17 times e^-1000 does not count beside e^-10."""
    a, g = jnp.array([1000.0, 990.0, 0.0]), jnp.array([1.0, 2.0, 1e17])
    mantissa, log_scale, _ = pulled(lambda b: g @ softmax(b), a)
    compared(mantissa, log_scale, jacobian_product(oracle.exact(a), oracle.exact(g)))


def test_one_token_alone():
    W, b = arrays(0, (3, 3), (1, 3))
    agree(lambda p: softmax(b @ p @ b.T) @ b, W)
    mantissa, log_scale, attention = pulled(lambda p: jnp.sum(softmax(b @ p @ b.T) @ b), W)
    np.testing.assert_array_equal(mantissa, 0.0)
    assert np.isfinite(log_scale)
    np.testing.assert_array_equal(attention[0], [[1.0]])


@pytest.mark.parametrize("gap", [3.0, 1000.0])
def test_equal_top_tokens(gap):
    """Two tokens hold half each; by their difference the derivative is 1/4, by the third token e^-gap."""
    a = jnp.array([gap, 0.0, gap])
    for g in ([1.0, 0.5, -1.0], [0.25, 2.0, 0.25]):
        mantissa, log_scale, _ = pulled(lambda b, g=g: jnp.asarray(g) @ softmax(b), a)
        compared(mantissa, log_scale, jacobian_product(oracle.exact(a), oracle.exact(g)))


def test_inside_a_scan_it_is_the_plain_derivative():
    """Right as long as it is a float at all: e^-600, not e^-1000."""
    a = jnp.array([600.0, 0.0])

    def function(b):
        return jax.lax.scan(lambda c, _: (c + softmax(b)[1], None), jnp.zeros(()), None, length=2)[0]

    agree(function, a)
    np.testing.assert_allclose(jax.grad(function)(a), 2 * np.exp(-600.0) * np.array([-1.0, 1.0]), rtol=1e-12)


def test_attention_is_listed_in_the_order_of_the_calls():
    W, b = arrays(0, (3, 3), (3,))

    def function(W, b):
        first = softmax(W)
        second = jax.jit(lambda q: softmax(2.0 * q))(b)
        third = jax.vmap(softmax, in_axes=1, out_axes=1)(W)
        return first @ second + third.sum()

    want = [softmax(W), softmax(2.0 * b), softmax(W.T)]
    found = attention_weights(function, W, b)
    _, _, listed = scaled_vjp(lambda p: function(*p), (W, b))
    for lists in (found, listed):
        assert len(lists) == 3
        for got, truth in zip(lists, want, strict=True):
            np.testing.assert_allclose(got, truth, rtol=1e-14)


def test_it_can_be_compiled_and_mapped():
    """In a batch the scale is that of each, and what is e^-2000 of another is not lost."""
    gaps = jnp.array([1.0, 40.0, 1000.0, 5000.0])
    logits = jnp.stack([gaps, jnp.zeros(4)], axis=1)

    @jax.jit
    @jax.vmap
    def slope(a):
        _, back, _ = scaled_vjp(lambda b: softmax(b)[1], a)
        return back(jnp.ones(()), jnp.zeros(()))

    mantissa, log_scale = slope(logits)
    for i, gap in enumerate([1, 40, 1000, 5000]):
        s = mp.exp(-gap) / (1 + mp.exp(-gap)) ** 2
        compared(mantissa[i], log_scale[i], [-s, s])


def test_forward_over_reverse_is_that_of_jax():
    W, b, u, t = arrays(0, (4, 5), (5,), (4,), (4, 5))

    def value(soft, W):
        return jnp.tanh(u @ soft(W * 2.0) @ b) + jnp.sum(soft(W.T) ** 3)

    @jax.jit
    def orders(W):
        found = []
        for soft in (softmax, jax.nn.softmax):
            f = partial(value, soft)
            found.append(
                (
                    jax.jvp(jax.grad(f), (W,), (t,))[1],
                    jax.jacrev(jax.grad(f))(W),
                    jax.grad(lambda w, f=f: jax.jvp(f, (w,), (t,))[1])(W),
                )
            )
        return found

    for got, want in zip(*orders(W), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-13)
