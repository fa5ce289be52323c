"""The tangent kernel against automatic differentiation, its margin against brute force."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

import attnlab as al
from attnlab.data.mixture import planted
from attnlab.errors import InputError
from attnlab.models.multihead import MultiHead
from attnlab.svm.linear import linear_margin
from attnlab.theory.multihead.ntk import head_norms, ntk_gram, ntk_margin, outputs, slopes, total_norm

COUNTS = (4.0, 2.0, 1.0)


def case(decoder, seed=0, n=6):
    tokens = planted(n=n, T=3, d=4, seed=seed)
    model = MultiHead(7, decoder, counts=COUNTS)
    rng = np.random.default_rng(seed)
    weights = {k: 0.5 * rng.standard_normal((3, *shape)) for k, shape in model.head_shapes(tokens).items()}
    return tokens, model, weights


def features(tokens, model, weights):
    """Gradients of the outputs by all heads, written out, from automatic differentiation; (n, p)."""
    found = model.features(tokens, weights)
    rows = [np.sqrt(c) * found[k][:, g].reshape(tokens.n, -1) for g, c in enumerate(COUNTS) for k in ("U", "W")]
    return np.concatenate(rows, axis=1)


@pytest.mark.parametrize("decoder", ["full", "pooling", "last"])
def test_gram_is_that_of_automatic_gradients(decoder):
    tokens, model, weights = case(decoder)
    rows = features(tokens, model, weights)
    assert_allclose(ntk_gram(tokens, model, weights), rows @ rows.T, rtol=1e-12, atol=1e-12)
    assert_allclose(outputs(tokens, model, weights), model.outputs(tokens, weights), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("block", [1, 250, 10**6])
def test_blocks_do_not_change_it(block):
    tokens, model, weights = case("full", n=11)
    whole = ntk_gram(tokens, model, weights)
    assert_allclose(ntk_gram(tokens, model, weights, block=block), whole, rtol=1e-13, atol=1e-14)
    assert (whole == whole.T).all()
    small, large = ntk_margin(tokens, model, weights, block=block), ntk_margin(tokens, model, weights)
    assert_allclose(small.lower, large.lower, rtol=1e-9)


def test_memory_is_bounded():
    """Two hundred sequences with long gradients: no more than the Gram matrix and a few blocks at a time."""
    import tracemalloc

    tokens = al.data.sphere(n=200, T=8, d=40, seed=0)
    weights = {"U": np.zeros((1, 8, 40)), "W": np.zeros((1, 40, 40))}
    block, gradients = 40_000, 200 * (8 * 40 + 40 * 40)
    tracemalloc.start()
    ntk_gram(tokens, MultiHead(5), weights, block=block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * (3 * block + 6 * 200 * 200) < 8 * gradients * 1.1


@pytest.mark.parametrize("decoder", ["full", "pooling", "last"])
def test_margin_is_the_best(decoder):
    """Against the hard margin on written-out features, and against a general solver on the dual."""
    tokens, model, weights = case(decoder, seed=1)
    found = ntk_margin(tokens, model, weights)
    rows = tokens.y[:, None] * features(tokens, model, weights)
    assert_allclose(found.lower, np.sqrt(2) * linear_margin(rows, np.ones(tokens.n)).lower, rtol=1e-9)
    dual = minimize(lambda a: 0.5 * a @ rows @ rows.T @ a - a.sum(), np.ones(tokens.n), bounds=[(0, None)] * tokens.n,
                    jac=lambda a: rows @ rows.T @ a - 1, options={"maxiter": 10_000, "ftol": 1e-15})  # fmt: skip
    assert_allclose(found.lower, np.sqrt(2) / np.linalg.norm(rows.T @ dual.x), rtol=1e-3)
    assert found.lower <= found.upper <= found.lower * (1 + 1e-8)


@pytest.mark.parametrize("decoder", ["full", "pooling", "last"])
def test_direction_has_the_margin_and_norm_sqrt_2(decoder):
    tokens, model, weights = case(decoder, seed=2)
    found = ntk_margin(tokens, model, weights)
    assert found.direction is not None
    assert_allclose(total_norm(found.direction, COUNTS), np.sqrt(2), rtol=1e-12)
    h = 1e-6
    ends = [model.outputs(tokens, {k: weights[k] + s * h * found.direction[k] for k in weights}) for s in (1, -1)]
    measured = (ends[0] - ends[1]) / (2 * h)
    assert_allclose((tokens.y * measured).min(), found.lower, rtol=1e-6)
    assert_allclose(slopes(tokens, model, weights, found.direction), measured, rtol=1e-5, atol=1e-7)


def test_zero_start_sees_mean_tokens():
    tokens = al.data.sphere(n=5, T=3, d=6, seed=3)
    zero = {"U": np.zeros((3, 6)), "W": np.zeros((6, 6))}
    means = tokens.x.mean(1)
    assert_allclose(ntk_gram(tokens, MultiHead(10**15), zero), 3 * means @ means.T, rtol=1e-12, atol=1e-15)
    assert_allclose(
        ntk_margin(tokens, MultiHead(3), zero).lower, np.sqrt(6) * linear_margin(means, tokens.y).lower, rtol=1e-9
    )


def test_nothing_separates():
    x = np.array([[[1.0, 0.0]], [[1.0, 0.0]]])
    found = ntk_margin(
        al.Tokens.self_attention(x, [1.0, -1.0]), MultiHead(2), {"U": [[0.0, 0.0]], "W": np.zeros((2, 2))}
    )
    assert not found.separable
    assert found.lower == 0.0
    assert found.gap == 1.0
    assert "none" in repr(found)


def test_norms():
    weights = {"U": np.array([[[3.0, 0.0]], [[0.0, 0.0]]]), "W": np.array([np.eye(2), [[0.0, 4.0], [0.0, 0.0]]])}
    assert_allclose(head_norms(weights), [np.sqrt(11), 4.0])
    assert_allclose(total_norm(weights, [2, 3]), np.sqrt(2 * 11 + 3 * 16))
    batch = {k: np.stack([w, 2 * w, 0 * w]) for k, w in weights.items()}
    assert_allclose(head_norms(batch), np.outer([1, 2, 0], [np.sqrt(11), 4.0]))
    assert_allclose(total_norm(batch, [2, 3]), np.sqrt(70) * np.array([1, 2, 0]))


def test_bad_input():
    tokens, model, weights = case("full")
    batch = al.data.sphere(n=3, T=3, d=4, trials=2)
    with pytest.raises(InputError, match="one data set"):
        ntk_gram(batch, model, weights)
    with pytest.raises(InputError, match="block"):
        ntk_gram(tokens, model, weights, block=0)
