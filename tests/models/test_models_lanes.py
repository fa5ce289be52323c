"""Trials along the last axis: the gradients of `Layer`, for every trial, whatever the number of them."""

from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.models.lanes import MOST_BYTES, Lanes, in_lanes, lane_einsum, trials_first
from attnlab.models.losses import as_loss
from attnlab.models.scaled import norm
from attnlab.train.blocks import LANE_BYTES, MAX_LANES, VECTOR, lane_count
from sampling import first_few


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def tokens_of(n=3, T=4, d=5, K=None, trials=6, seed=0, mask=None):
    rng = np.random.default_rng(seed)
    queries = (trials, n, d) if K is None else (trials, n, K, d)
    return al.Tokens(
        x=rng.standard_normal((trials, n, T, d)),
        z=rng.standard_normal(queries),
        y=rng.choice([-1.0, 1.0], queries[:-1]),
        v=rng.standard_normal((trials, d)),
        mask=mask,
    )


def both_gradients(tokens, weights, loss="logistic", parameterization="W", engine="direct"):
    """Mantissas and log-scales, trials first: by lanes, and by the layer under `jax.vmap`."""
    model = al.models.Attention(parameterization, engine=engine)
    given = {name: np.asarray(w, dtype=float) for name, w in weights.items()}
    prepared = model.prepare(tokens, as_loss(loss), given, isotropic=engine == "kernel")
    layer, problem, params = prepared.objective, prepared.problem, prepared.params
    assert layer.has_lanes(problem, params)

    @jax.jit
    def by_lanes(problem, params, at):
        gradient = layer.lanes(problem).gradient(in_lanes(params), layer.loss, at)
        return trials_first(gradient)

    lanes = by_lanes(problem, params, 0)
    plain, _ = jax.jit(jax.vmap(layer.gradient))(params, problem)
    return jax.tree.map(np.asarray, (lanes, plain))


def assert_same(lanes, plain, rtol=1e-11):
    for name, mantissa in plain.mantissa.items():
        shift = np.exp(lanes.log_scale[name] - plain.log_scale[name])
        shift = shift.reshape(-1, *[1] * (mantissa.ndim - 1))
        np.testing.assert_allclose(lanes.mantissa[name] * shift, mantissa, rtol=0, atol=rtol, err_msg=name)
        sizes = np.abs(lanes.mantissa[name]).reshape(len(shift), -1).max(-1)
        assert ((np.abs(sizes - 1) < 1e-14) | (sizes == 0)).all()


def gaussian(tokens, names=("W",), scale=1.0, seed=1, columns=None):
    rng = np.random.default_rng(seed)
    shape = (tokens.trials, tokens.d, tokens.d if columns is None else columns)
    return {name: scale * rng.standard_normal(shape) for name in names}


FORMS = {
    "W": {},
    "coordinates": {"engine": "kernel"},
    "K and Q": {"parameterization": "KQ"},
}
CASES = {
    "plain": {},
    "queries": {"K": 3},
    "causal": {"T": 4, "K": 4, "mask": "causal"},
    "one sequence": {"n": 1},
    "one token": {"T": 1},
    "one dimension": {"d": 1},
    "two tokens": {"T": 2, "n": 5},
    "many tokens": {"T": 12, "n": 2},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_the_layer(form, case):
    if (form, case) == ("coordinates", "one token"):
        pytest.skip("there are no coordinates: nothing moves")
    tokens = tokens_of(**CASES[case])
    names = ("K", "Q") if form == "K and Q" else ("W",)
    assert_same(*both_gradients(tokens, gaussian(tokens, names), **FORMS[form]))


@pytest.mark.parametrize("scale", first_few((1e3, 1e-3, 1e6, 1e-8), 1))
@pytest.mark.parametrize("loss", ["exponential", "logistic", "correlation"])
def test_also_when_softmax_saturates(scale, loss):
    tokens = tokens_of(n=4, T=5, trials=8)
    assert_same(*both_gradients(tokens, gaussian(tokens, scale=scale), loss=loss))
    assert_same(*both_gradients(tokens, gaussian(tokens, ("K", "Q"), np.sqrt(scale)), loss, "KQ"))


def test_few_columns_of_k_and_q():
    tokens = tokens_of(d=6)
    lanes, plain = both_gradients(tokens, gaussian(tokens, ("K", "Q"), columns=2), parameterization="KQ")
    assert lanes.mantissa["K"].shape == (6, 6, 2)
    assert_same(lanes, plain)


def with_twins(trials=4):
    """The best token is there twice, and a sequence has equal tokens only."""
    tokens = tokens_of(n=3, T=4, trials=trials, seed=3)
    x = tokens.x.copy()
    x[:, 0, 2] = x[:, 0, 1]
    x[:, 1] = x[:, 1, :1]
    return al.Tokens(x=x, z=tokens.z, y=tokens.y, v=tokens.v)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_twins_and_equal_tokens(scale):
    tokens = with_twins()
    assert_same(*both_gradients(tokens, gaussian(tokens, scale=scale)))


def test_without_anything_to_gain_the_gradient_is_zero():
    tokens = tokens_of(n=2, T=3)
    equal = al.Tokens(x=np.repeat(tokens.x[:, :, :1], 3, axis=2), z=tokens.z, y=tokens.y, v=tokens.v)
    lanes, plain = both_gradients(equal, gaussian(equal))
    assert not lanes.mantissa["W"].any()
    assert not plain.mantissa["W"].any()
    assert np.isfinite(lanes.log_scale["W"]).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.floats(-3, 3), st.integers(0, 10**6))
def test_any_shape(n, T, d, log_scale, seed):
    tokens = tokens_of(n=n, T=T, d=d, trials=3, seed=seed)
    assert_same(*both_gradients(tokens, gaussian(tokens, scale=10.0**log_scale, seed=seed)))


def test_a_trial_has_the_same_bits_among_any_number_of_others():
    tokens = tokens_of(n=5, T=5, d=10, trials=64)
    model = al.models.Attention("KQ")
    weights = gaussian(tokens, ("K", "Q"))
    prepared = model.prepare(tokens, as_loss("logistic"), weights)
    layer = prepared.objective

    @jax.jit
    def steps(problem, params):
        lanes = layer.lanes(problem)

        def step(at, params):
            gradient = lanes.gradient(params, layer.loss, at).mantissa
            lengths = jax.tree.map(lambda m: jax.vmap(norm, in_axes=-1)(m), gradient)
            return jax.tree.map(lambda p, g, length: p - 0.1 * g / length, params, gradient, lengths)

        return trials_first(jax.lax.fori_loop(0, 5, step, in_lanes(params)))

    everyone = steps(prepared.problem, prepared.params)
    for count in (2, 4, 8, 16, 24, 40, 56):
        first = slice(count)
        few = steps(*jax.tree.map(itemgetter(first), (prepared.problem, prepared.params)))
        for name, weights in few.items():
            np.testing.assert_array_equal(weights, everyone[name][:count], err_msg=f"{name} of {count}")


@pytest.mark.parametrize(
    "spec", ["ij,j->i", "nke,de->nkd", "nkd,ntd->nkt", "nkt,ntd->nkd", "nkd,nke->de", "nktp,p->nkt", "nkt,nktp->p"]
)
def test_written_out_sums_are_those_of_numpy(spec):
    sizes = dict(zip("ijnktdep", (2, 3, 2, 3, 4, 5, 6, 7), strict=True))
    rng = np.random.default_rng(0)
    names, result = spec.split("->")
    a, b = (rng.standard_normal([*(sizes[axis] for axis in axes), 8]) for axes in names.split(","))
    of_a, of_b = names.split(",")
    wanted = np.einsum(f"{of_a}r,{of_b}r->{result}r", a, b)
    np.testing.assert_allclose(lane_einsum(spec, jnp.asarray(a), jnp.asarray(b)), wanted, rtol=1e-12)


def test_norms_know_where_the_trials_are():
    rng = np.random.default_rng(0)
    array = rng.standard_normal((3, 4, 5))
    for axis in (0, 1, 2):
        others = tuple(k for k in range(3) if k != axis)
        wanted = np.sqrt(np.sum(array**2, axis=others))
        np.testing.assert_allclose(jax.vmap(norm, in_axes=axis)(array), wanted, rtol=1e-14)
    np.testing.assert_allclose(norm(array), np.sqrt(np.sum(array**2)), rtol=1e-14)
    slope = jax.grad(norm)(jnp.asarray(array))
    np.testing.assert_allclose(slope, array / np.sqrt(np.sum(array**2)), rtol=1e-14)


@given(st.integers(1, 5000), st.integers(1, MOST_BYTES * 2))
def test_blocks_of_lanes_are_whole_vectors_that_fit(trials, size):
    count = lane_count(trials, size)
    assert 2 <= count <= MAX_LANES
    assert count in (2, 4) or count % VECTOR == 0
    assert count <= VECTOR or count * size <= LANE_BYTES
    # No more blocks than there must be, none of them mostly repeated.
    blocks = -(-trials // count)
    assert count * blocks < trials + max(2, VECTOR) * blocks


def test_large_problems_have_no_lanes():
    for shape in ({"n": 30, "T": 30, "d": 30}, {"n": 2, "T": 2, "d": 101}, {"n": 101, "T": 2, "d": 2}):
        tokens = tokens_of(**shape, trials=1)
        prepared = al.models.Attention(engine="direct").prepare(tokens, as_loss("logistic"), gaussian(tokens))
        assert not prepared.objective.has_lanes(prepared.problem, prepared.params)


def test_nor_have_other_heads_trained_heads_and_extreme_tokens():
    tokens = tokens_of(trials=2)
    for model in (al.models.Attention(head="relu-sum"), al.models.Attention(train_head=True)):
        start = gaussian(tokens) | ({"u": np.zeros((2, 5))} if model.train_head else {})
        prepared = model.prepare(tokens, as_loss("logistic"), start)
        assert not prepared.objective.has_lanes(prepared.problem, prepared.params)
    large = al.Tokens(x=1e120 * tokens.x, z=tokens.z, y=tokens.y, v=tokens.v)
    prepared = al.models.Attention().prepare(large, as_loss("logistic"), gaussian(large, scale=0.0))
    assert not prepared.objective.has_lanes(prepared.problem, prepared.params)


def test_lanes_hold_what_the_form_needs():
    tokens = tokens_of()
    prepared = al.models.Attention(engine="kernel").prepare(
        tokens, as_loss("logistic"), gaussian(tokens), isotropic=True
    )
    lanes = Lanes.of(jax.tree.map(jnp.asarray, prepared.problem))
    assert lanes.x is None
    assert lanes.features is not None
    assert lanes.features.shape == (3, 1, 4, 9, 6)
