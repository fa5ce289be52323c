"""Attention on data of extreme scale, against 60 digits whose exponents have no end.

Tokens, queries, heads and weights are multiplied by powers of two that leave logits of order one. What float64 has no
numbers for on the way, mpmath has.
"""

import jax
import mpmath
import numpy as np
import oracle
import pytest
from mpmath import mp

import attnlab as al
from attnlab import InputError
from attnlab.models.extremes import ExtremeLayer, are_extreme, logits_overflow, prepared, token_powers
from attnlab.models.heads import Linear
from attnlab.models.layer import Layer
from attnlab.models.layer_problem import make_problem
from attnlab.models.softmax import weights

N, T, D = 2, 3, 2
LOGISTIC = oracle.LOSSES["logistic"]
# Of tokens, queries and, for a linear head, of its vector.
LINEAR = [(-400, 250, 400), (400, -390, -399), (-500, -400, 300), (300, 400, -300), (0, 300, 0), (0, 0, 500)]


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(400):
        yield


def drawn(seed, queries=None, mask=False):
    rng = np.random.default_rng([61, seed])
    rows = (N,) if queries is None else (N, queries)
    x, z, v = rng.standard_normal((N, T, D)), rng.standard_normal((*rows, D)), rng.standard_normal(D)
    visible = None
    if mask:
        visible = np.ones((*rows, T), dtype=bool)
        visible[0, ..., 1] = False
    params = {"W": rng.standard_normal((D, D))}
    return al.Tokens(x=x, z=z, y=rng.choice([-1.0, 1.0], rows), v=v, mask=visible), params


def times(tokens, x=0, z=0, v=0):
    """Powers of two, which may be one for each sequence."""
    by_sequence = np.broadcast_to(x, (N,)), np.broadcast_to(z, (N,))
    of_x = by_sequence[0].reshape(N, 1, 1)
    of_z = by_sequence[1].reshape(N, *[1] * (tokens.z.ndim - 1))
    return al.Tokens(
        x=np.ldexp(tokens.x, of_x),
        z=np.ldexp(tokens.z, of_z),
        y=tokens.y,
        v=np.ldexp(tokens.v, v),
        mask=tokens.mask,
    )


def check_gradient(tokens, params, head):
    mantissa, log_scale = al.models.gradient(tokens, params, head=head.given)
    for name, want in oracle.gradient(tokens, params, head, LOGISTIC).items():
        assert oracle.direction_error(mantissa[name], want) < 1e-12, name
        assert oracle.log_norm_error(mantissa[name], log_scale[name], want) < 1e-12, name


def check_loss(tokens, params, head):
    found = al.models.loss(tokens, params, head=head.given)
    assert oracle.relative(found, oracle.objective(tokens, params, head, LOGISTIC)) < 1e-13


def check_excess(tokens, params, head):
    want = oracle.excess(tokens, params, head, LOGISTIC)
    log = al.models.excess_loss(tokens, params, head=head.given, log=True)
    if want < 0:
        assert np.isnan(log)
        return
    assert abs(float(log - mpmath.log(want))) < 1e-12 * max(1.0, abs(float(mpmath.log(want))))


def check_all(tokens, params, head):
    assert are_extreme(tokens, al.models.as_head(head.given)) or "K" in params
    check_gradient(tokens, params, head)
    check_loss(tokens, params, head)
    check_excess(tokens, params, head)


# --- linear heads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "j", "v"), LINEAR)
def test_one_matrix(k, j, v):
    """Scores of 2^(k + v): of order one, tiny, or so large that the loss is linear."""
    for seed in range(3):
        tokens, params = drawn(seed)
        far = times(tokens, k, j, v)
        check_all(far, {"W": np.ldexp(params["W"], -k - j)}, oracle.linear(far.v))


@pytest.mark.parametrize(("k", "j", "v"), [(-400, 250, 400), (300, -480, -290)])
def test_several_queries_and_masks(k, j, v):
    for seed in range(2):
        tokens, params = drawn(seed, queries=2, mask=True)
        far, W = times(tokens, k, j, v), np.ldexp(params["W"], -k - j)
        check_all(far, {"W": W}, oracle.linear(far.v))
        plain = al.models.attention(tokens, params)
        np.testing.assert_allclose(al.models.attention(far, W), plain, rtol=1e-13)


@pytest.mark.parametrize("powers", [(-300, 100), (350, 300), (-100, 500)], ids=str)
@pytest.mark.parametrize(("k", "j"), [(-300, 200), (200, 250), (0, 0)])
def test_keys_and_queries_of_very_different_sizes(k, j, powers):
    """By K the logits move as fast as Q is large, and the other way round."""
    for seed in range(2):
        tokens, _ = drawn(seed)
        rng = np.random.default_rng([62, seed])
        K, Q = rng.standard_normal((D, 1)), rng.standard_normal((D, 1))
        far = times(tokens, k, j - sum(powers), -k)
        params = {"K": np.ldexp(K, powers[0]), "Q": np.ldexp(Q, powers[1] - k - j)}
        check_all(far, params, oracle.linear(far.v))


@pytest.mark.parametrize("seed", range(3))
def test_a_trained_head(seed):
    """By u the objective moves as the tokens are long, sequence by sequence."""
    tokens, params = drawn(seed)
    u = np.random.default_rng([63, seed]).standard_normal(D)
    for powers, j, of_u in (((-400, -401), 300, 400), ((350, 352), -480, -351), ((-300, -600), 200, 290)):
        x = np.array(powers)
        far = times(tokens, x, j - x)
        given = {"W": np.ldexp(params["W"], -j), "u": np.ldexp(u, of_u)}
        check_gradient(far, given, oracle.linear(given["u"]))
        check_loss(far, given, oracle.linear(given["u"]))


@pytest.mark.parametrize("seed", range(3))
def test_every_sequence_has_its_own_scale(seed):
    """The first of 2^-300, the second of 2^300 and more: logits are alike, scores and gradients are not."""
    tokens, params = drawn(seed)
    for x, v in (((-300, 300), -300), ((-300, -310), 305), ((250, -250), -251)):
        far = times(tokens, np.array(x), -np.array(x), v)
        check_all(far, params, oracle.linear(far.v))


@pytest.mark.parametrize("k", [-400, 400])
def test_tokens_that_differ_in_their_last_digits(k):
    """What they have in common is 2^30 times as large as what tells them apart, which alone moves the logits."""
    for seed in range(3):
        rng = np.random.default_rng([65, seed])
        apart = rng.integers(-(2**10), 2**10, (N, T, D)) / 2.0**40  # with the 1 a float64 number, and so are means of 3
        tokens, params = drawn(seed)
        near = al.Tokens(x=1.0 + 3.0 * apart, z=tokens.z, y=tokens.y, v=tokens.v)
        far = times(near, k, 30 - k, -k)
        check_gradient(far, params, oracle.linear(far.v))


@pytest.mark.parametrize(("k", "v"), [(-400, 400), (-300, -200), (200, 350), (300, -500)])
def test_what_a_token_gains_above_the_top_one(k, v):
    """y v.(x_t - x_top) = gain e^log_size, as gradient flow takes it; scores of 2^(k + v)."""
    for seed in range(3):
        tokens, params = drawn(seed)
        far, W = times(tokens, k, -k, v), params["W"]
        layer = al.models.Attention().at(far, W).objective
        problem = prepared(layer, far, Linear(), params)[1]
        with jax.enable_x64(True):
            w = weights(layer.logits(params, problem))
            _, gain, log_size = layer.gains(problem, w)
        logits = np.einsum("ntd,de,ne->nt", tokens.x, W, tokens.z)
        for i, t in np.ndindex(N, T):
            apart = tokens.x[i, t] - tokens.x[i, logits[i].argmax()]
            want = tokens.y[i] * (apart @ tokens.v) * mp.mpf(2) ** (k + v)
            found = mp.mpf(float(gain[i, 0, t])) * mp.exp(mp.mpf(float(log_size[i, 0])))
            assert abs(found - want) <= 1e-12 * mp.mpf(2) ** (k + v)


def test_the_vector_of_another_head_is_not_looked_at():
    """A head of tokens alone does not see v, however large."""
    tokens, params = drawn(0)
    far = times(tokens, v=900)
    assert are_extreme(far, Linear())
    assert not are_extreme(far, al.models.as_head("relu-sum"))
    without = al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y)
    assert al.models.loss(far, params, head="relu-sum") == al.models.loss(without, params, head="relu-sum")


# --- other heads ------------------------------------------------------------------------------------------------------


def other_head(name, seed, v, power):
    rng = np.random.default_rng([64, seed])
    return {
        "concave": lambda: oracle.concave(v, float(np.ldexp(0.3, -2 * power))),
        "mlp": lambda: oracle.mlp(np.ldexp(rng.standard_normal((D, 4)), -power), rng.standard_normal(4)),
        "relu-sum": oracle.relu_sum,
        "user": lambda: oracle.user(D),
    }[name]()


@pytest.mark.parametrize(
    ("name", "k", "j"),
    [
        ("concave", -400, 250),
        ("concave", 400, -600),
        ("mlp", -400, 250),
        ("mlp", 400, -600),
        ("relu-sum", -400, 100),
        ("user", 0, 400),
    ],
)
def test_other_heads(name, k, j):
    """In units in which what they see is of order one."""
    for seed in range(2):
        tokens, params = drawn(seed)
        far = times(tokens, k, j, -k)
        check_all(far, {"W": np.ldexp(params["W"], -k - j)}, other_head(name, seed, far.v, k))


@pytest.mark.parametrize(("name", "k"), [("concave", -400), ("mlp", 300), ("user", 0)])
def test_other_heads_once_attention_has_saturated(name, k):
    """At ever larger W the weights of the other tokens go from order one to e^-300, and the excess with them."""
    for factor in (3.0, 30.0, 300.0):
        tokens, _ = drawn(0)
        far = times(tokens, k, 300 - k, -k)
        W = factor * np.ldexp(np.eye(D), -300)
        check_all(far, {"W": W}, other_head(name, 0, far.v, k))


@pytest.mark.parametrize("power", [-1015, -900, -500])
def test_slopes_of_a_head_near_the_end_of_floats(power):
    """Tokens of 2^900 before a network of 2^power: products of its slopes are no float64 numbers, or lose digits."""
    for seed in range(2):
        tokens, params = drawn(seed)
        far = times(tokens, 900, -900)
        check_gradient(far, params, other_head("mlp", seed, far.v, -power))


# --- what is taken out, and when --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-500, 0, 500])
def test_powers_are_those_of_what_is_seen(size):
    """A token that no query sees may be of any size; each query has a power of its own."""
    tokens, _ = drawn(0, queries=2)
    x, z = np.ldexp(tokens.x, size), tokens.z.copy()
    x[0, 1], z[0, 1] = 2.0**900, np.ldexp(z[0, 1], 300)
    mask = np.ones((N, 2, T), dtype=bool)
    mask[0, :, 1] = False
    odd = al.Tokens(x=x, z=z, y=tokens.y, v=tokens.v, mask=mask)
    powers = token_powers(odd, Linear())
    seen = np.abs(x[0, [0, 2]]).max()
    np.testing.assert_array_equal(powers.x, [np.frexp(seen)[1], np.frexp(np.abs(x[1]).max())[1]])
    np.testing.assert_array_equal(powers.z, np.frexp(np.abs(z).max(-1))[1])
    mask[0, 1, 1] = True  # one query sees it
    partly = al.Tokens(x=x, z=z, y=tokens.y, v=tokens.v, mask=mask)
    assert token_powers(partly, Linear()).x[0] == 901


@pytest.mark.parametrize("part", ["x", "z", "v"])
@pytest.mark.parametrize(("power", "extreme"), [(169, False), (170, True), (-171, False), (-172, True)])
def test_data_are_ordinary_to_two_to_the_170(part, power, extreme):
    """Entries from 1 to 2: exponents from -170 to 170 are ordinary."""
    ones = {"x": np.full((1, 2, 2), 1.5), "z": np.full((1, 2), 1.5), "v": np.full(2, 1.5)}
    ones["x"][0, 1] = 1.0
    ones[part] = np.ldexp(ones[part], power)
    tokens = al.Tokens(y=[1], **ones)
    assert are_extreme(tokens, Linear()) is extreme
    layer = al.models.Attention().at(tokens, np.zeros((2, 2))).objective
    assert type(layer) is (ExtremeLayer if extreme else Layer)


def test_factors_of_extreme_size_ask_for_it_alone():
    """K and Q that are multiplied; one matrix W is taken as it is."""
    tokens, _ = drawn(0)
    model = al.models.Attention().at(tokens, np.zeros((D, D))).objective
    huge = np.ldexp(np.eye(D), 300)
    assert type(prepared(model, tokens, Linear(), {"W": huge})[0]) is Layer
    assert type(prepared(model, tokens, Linear(), {"K": huge, "Q": np.eye(D)})[0]) is ExtremeLayer
    assert type(prepared(model, tokens, Linear())[0]) is Layer


@pytest.mark.parametrize("v", [400, 900])
def test_scores_beyond_the_largest_number_are_refused(v):
    tokens, params = drawn(0)
    far = times(tokens, 600, -600, v)
    if 600 + v < 1020:
        assert np.isfinite(al.models.loss(far, params, loss="correlation"))
        return
    with pytest.raises(InputError, match=r"scores y v\.x beyond 1\.8e308"):
        al.models.loss(far, params, loss="correlation")


# --- logits that overflow ---------------------------------------------------------------------------------------------


def problem_of(tokens, W):
    model = al.models.Attention().at(tokens, np.zeros((D, D))).objective
    return prepared(model, tokens, Linear(), {"W": W})[1]


@pytest.mark.parametrize("k", [0, 300, -300])
@pytest.mark.parametrize(
    ("power", "overflows"), [(900, False), (1018, False), (1023, False), (1024, True), (1150, True)]
)
def test_logits_overflow_where_they_are_beyond_the_largest_number(power, overflows, k):
    """Tokens +-2^k e_1, query 2^(150 - k) e_1, W = 2^(power - 150) E_11: the logits are +-2^power."""
    x = np.ldexp([[[1.0, 0.0], [-1.0, 0.0]]], k)
    tokens = al.Tokens(x=x, z=[[2.0 ** (150 - k), 0.0]], y=[1], v=[2.0**-k, 0.0])
    W = np.ldexp(np.outer([1.0, 0.0], [1.0, 0.0]), power - 150)
    told = logits_overflow(problem_of(tokens, W), {"W": W})
    assert bool(False if told is None else told) is overflows
    if overflows:
        with pytest.raises(InputError, match=r"logits .* overflow"):
            al.models.attention(tokens, W)
    else:
        np.testing.assert_array_equal(al.models.attention(tokens, W), [[1.0, 0.0]])


@pytest.mark.parametrize("power", [-150, -60, 0])
def test_keys_that_overflow_are_refused_however_small_the_tokens_are(power):
    """W z = 2^1050 is no float64 number, though its product with ordinary tokens of 2^power may be."""
    tokens = al.Tokens(x=np.ldexp([[[1.0, 0.0], [-1.0, 0.0]]], power), z=[[2.0**50, 0.0]], y=[1], v=[1.0, 0.0])
    with pytest.raises(InputError, match=r"logits .* overflow|is not finite"):
        al.models.attention(tokens, np.ldexp(np.eye(D), 1000))


def test_the_bound_is_no_less_than_the_logits():
    """Where the bound says that surely none overflows, none does, by fractions; all signs alike, so nothing cancels."""
    for d in (1, 2, 7, 40):
        ones = np.full((1, 2, d), 1.9)
        ones[0, 1] = 0.0
        for power in range(990, 1024):
            W = np.ldexp(np.full((d, d), 1.9), power // 2)
            z = np.ldexp(np.full((1, d), 1.9), power - power // 2)
            tokens = al.Tokens(x=ones, z=z, y=[1], v=np.zeros(d))
            problem = make_problem(tokens, Linear())
            logit = d * d * 1.9**3 * mp.mpf(2) ** power / 2  # half of it on either side of the mean
            overflows = logit >= mp.mpf(2) ** 1024
            told = logits_overflow(problem, {"W": W})
            assert bool(False if told is None else told) is bool(overflows), (d, power)


def test_each_trial_is_judged_by_itself():
    tokens = al.data.sphere(n=1, T=2, d=2, seed=0, trials=3)
    powers = np.array([0, 600, 0])[:, None, None]
    far = al.Tokens(x=np.ldexp(tokens.x, powers[..., None]), z=np.ldexp(tokens.z, powers), y=tokens.y, v=tokens.v)
    W = np.broadcast_to(np.eye(2), (3, 2, 2))
    columns = np.ones((3, 2, 1))
    model = al.models.Attention().at(tokens, np.zeros((2, 2))).objective
    problem = prepared(model, far, Linear())[1]
    for params in ({"W": W}, {"K": columns, "Q": columns}):
        np.testing.assert_array_equal(logits_overflow(problem, params), [False, True, False])
