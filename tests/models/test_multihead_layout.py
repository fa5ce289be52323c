"""Several heads against the plain form of their definition, over odd sizes, decoders and saturation."""

from __future__ import annotations

import numpy as np
import pytest

import attnlab as al
from attnlab.models import MultiHead

SIZES = [(1, 1, 1, 1), (1, 4, 3, 2), (5, 1, 2, 3), (4, 3, 1, 1), (7, 5, 4, 8)]  # n, T, d, heads


def tokens_of(n, T, d, seed, trials=None):
    rng = np.random.default_rng(seed)
    lead = () if trials is None else (trials,)
    x = rng.standard_normal((*lead, n, T, d))
    return al.Tokens.self_attention(x, np.sign(rng.standard_normal((*lead, n))), np.zeros((*lead, d)))


def plain_outputs(x, weights, decoder):
    """One sequence and one head at a time."""
    outputs = np.zeros(len(x))
    for U, W in zip(weights["U"], weights["W"], strict=True):
        for i, tokens in enumerate(x):
            logits = tokens @ W @ tokens.T
            attention = np.exp(logits - logits.max(axis=1, keepdims=True))
            attended = attention / attention.sum(axis=1, keepdims=True) @ tokens
            outputs[i] += np.sum(U * (attended if decoder != "last" else attended[-1]))
    return outputs / np.sqrt(len(weights["W"]))


@pytest.mark.parametrize("decoder", ["full", "pooling", "last"])
@pytest.mark.parametrize(("n", "T", "d", "heads"), SIZES)
def test_outputs_are_those_of_the_definition(n, T, d, heads, decoder):
    tokens, model = tokens_of(n, T, d, seed=n + T), MultiHead(heads, decoder)
    weights = model.start(tokens, "gaussian", 1.0, 3)
    np.testing.assert_allclose(
        model.outputs(tokens, weights), plain_outputs(tokens.x, weights, decoder), rtol=1e-12, atol=1e-13
    )
    attention = model.attention(tokens, weights)
    assert attention.shape == (heads, n, T, T)
    logits = np.einsum("nte,gef,nsf->gnts", tokens.x, weights["W"], tokens.x)
    wanted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(attention, wanted / wanted.sum(axis=-1, keepdims=True), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("decoder", ["full", "pooling", "last"])
@pytest.mark.parametrize(("n", "T", "d", "heads"), SIZES)
def test_gradient_is_that_of_finite_differences(n, T, d, heads, decoder):
    tokens, model = tokens_of(n, T, d, seed=7), MultiHead(heads, decoder)
    weights = model.start(tokens, "gaussian", 0.5, 1)
    mantissa, log_scale = model.gradient(tokens, weights)
    rng = np.random.default_rng(0)
    towards = {name: rng.standard_normal(w.shape) for name, w in weights.items()}
    step = 1e-5
    there, back = ({k: w + s * towards[k] for k, w in weights.items()} for s in (step, -step))
    slope = (model.loss(tokens, there) - model.loss(tokens, back)) / (2 * step)
    known = sum(np.sum(mantissa[k] * np.exp(log_scale[k]) * towards[k]) for k in weights)
    assert known == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_gradient_after_saturation_is_known_by_its_logarithm():
    """Two tokens (a, 0) and (b, 0): all weight off the top is e^-(a - b) w a, far below the smallest float."""
    x = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    tokens = al.Tokens.self_attention(x, np.ones(1), np.zeros(2))
    weights = {"U": np.array([[1.0, 0.0]]), "W": np.array([[[2000.0, 0.0], [0.0, 2000.0]]])}
    mantissa, log_scale = MultiHead(1, "pooling").gradient(tokens, weights)
    assert np.abs(mantissa["W"]).max() == pytest.approx(1.0)
    # Output 1, slope -sigmoid(-1), times s_off = e^-2000 of either query.
    assert float(log_scale["W"]) == pytest.approx(-2000.0 - np.log1p(np.e), rel=1e-13)


@pytest.mark.parametrize(("n", "T", "heads"), [(4, 3, 2), (60, 8, 8)])  # several trials to a block, and one
def test_a_trial_is_the_same_alone_and_among_others(n, T, heads):
    tokens, model = tokens_of(n, T, 4, seed=2, trials=3), MultiHead(heads)
    start = model.start(tokens, "gaussian", 1.0, 0)
    options = {"model": model, "steps": 30, "record": None}
    together = al.descend(tokens, al.gd(0.5), init=start, **options)
    for i in range(3):
        alone = al.descend(tokens[i], al.gd(0.5), init={k: w[i] for k, w in start.items()}, **options)
        for name, weight in alone.weights.items():
            np.testing.assert_array_equal(weight, together.weights[name][i])
