"""Deep residual encoders and a trained W_H: against slow loops, differences, and the encoder without them."""

from __future__ import annotations

import numpy as np
import pytest

import attnlab as al
from attnlab.models import Encoder
from sampling import first_few

DATA = al.data.gaussian_sequences(n=4, T=3, d=3, seed=0)
MODELS = {
    "all": Encoder(4, residual="projected", depth=2, feed_forward="trained", init="ntk"),
    "deep residual": Encoder(3, residual="identity", depth=2),
    "deep projected": Encoder(4, residual="projected", depth=2, init="he", pool="sum"),
    "trained W_H": Encoder(4, feed_forward="trained"),
}


def slow_blocks(model, weights, x):
    """Block by block and token by token: what enters each block, and its attention; last what leaves."""
    tokens, entering, attention = x, [x], []
    for block in range(model.depth):
        end = "" if block == 0 else str(block + 1)
        queries, keys = tokens @ weights["W_Q" + end].T, tokens @ weights["W_K" + end].T
        after, shares = [], []
        for t in range(len(x)):
            logits = model.tau0 * np.array([queries[t] @ keys[s] for s in range(len(x))])
            share = np.exp(logits - logits.max())
            shares.append(share / share.sum())
            raw = weights["W_V" + end] @ (shares[t] @ tokens)
            if model.residual is not None:
                raw = raw + (tokens[t] @ weights["S"] if model.residual == "projected" and block == 0 else tokens[t])
            if model.feed_forward == "trained":
                raw = raw @ weights["W_H" + end]
            after.append(model.tau1 * np.maximum(raw, 0.0))
        tokens = np.array(after)
        entering.append(tokens)
        attention.append(np.array(shares))
    return entering, attention


def slow_output(model, weights, x):
    """The last block, pooled."""
    tokens = slow_blocks(model, weights, x)[0][-1]
    pooled = tokens.mean(0) if model.pool == "mean" else tokens.sum(0)
    return pooled @ weights["w_O"]


def flat(weights):
    return np.concatenate([weights[name].ravel() for name in sorted(weights)])


@pytest.mark.parametrize("name", first_few(MODELS, 2))
def test_outputs_gradient_and_kernel(name):
    model = MODELS[name]
    weights = model.initial(DATA, seed=1)
    np.testing.assert_allclose(
        model.outputs(DATA, weights), [slow_output(model, weights, x) for x in DATA.x], rtol=1e-12
    )
    for head in model.heads_as_tokens(DATA, weights):
        shares = np.exp(head.logits) / np.exp(head.logits).sum(-1, keepdims=True)
        for i, x in enumerate(DATA.x):
            entering, attention = slow_blocks(model, weights, x)
            np.testing.assert_allclose(head.tokens.x[i], entering[head.layer], rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(shares[i], attention[head.layer], rtol=1e-11)
    rng = np.random.default_rng(0)
    towards = {key: rng.standard_normal(w.shape) * (key != "S") for key, w in weights.items()}
    h = 1e-6
    ends = [{key: w + by * towards[key] for key, w in weights.items()} for by in (h, -h)]
    slope = (model.loss(DATA, ends[0]) - model.loss(DATA, ends[1])) / (2 * h)
    mantissa, log_scale = model.gradient(DATA, weights)
    gradient = {key: m * np.exp(log_scale[key]) for key, m in mantissa.items()}
    assert flat(gradient) @ flat(towards) == pytest.approx(float(slope), rel=1e-6)
    features = model.features(DATA, weights)
    rows = np.concatenate([features[key].reshape(4, -1) for key in sorted(features) if key != "S"], axis=1)
    np.testing.assert_allclose(al.theory.ntk(DATA, model, weights), rows @ rows.T, rtol=1e-9)
    product = model.hessian_product(DATA, weights, towards)
    change = [model.gradient(DATA, end) for end in ends]
    plain = [flat({key: m * np.exp(s[key]) for key, m in mantissa.items()}) for mantissa, s in change]
    np.testing.assert_allclose(flat(product), (plain[0] - plain[1]) / (2 * h), rtol=1e-4, atol=1e-5)


def test_a_unit_matrix_for_W_H_changes_nothing():
    plain, with_matrix = Encoder(4), Encoder(4, feed_forward="trained")
    weights = plain.initial(DATA, seed=2)
    found = with_matrix.outputs(DATA, weights | {"W_H": np.eye(4)})
    np.testing.assert_allclose(found, plain.outputs(DATA, weights), rtol=1e-14)


@pytest.mark.parametrize("name", ["deep projected", "trained W_H"])
def test_training_under_saturation_and_flow(name):
    model = MODELS[name]
    start = model.initial(DATA, seed=1)
    signs = al.Sequences(x=DATA.x, y=np.sign(DATA.y))
    run = al.descend(signs, al.ngd(0.3), model=model, init=start, loss="logistic", steps=1500, record=[0, 750, 1500])
    assert run.metrics["log_loss"][-1] < 1.5 * run.metrics["log_loss"][1] < -745
    assert np.isfinite(run.metrics["log_gradient_norm"]).all()
    if "S" in start:
        np.testing.assert_array_equal(run.weights["S"], start["S"])
    near = al.flow(DATA, model=model, init=start, time=0.01)
    small = al.descend(DATA, al.gd(1e-5), model=model, init=start, steps=1000, record=None).weights["w_O"]
    smaller = al.descend(DATA, al.gd(5e-6), model=model, init=start, steps=2000, record=None).weights["w_O"]
    limit = 2 * smaller - small  # the error of descent is of first order in its step
    np.testing.assert_allclose(near.weights["w_O"], limit, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_the_report_says_that_no_theorem_is_about_them(name):
    model = MODELS[name]
    report = al.encoder_report(DATA, model, seed=3)
    weights = model.initial(DATA, seed=3)
    setting = "depth = 2" if model.depth == 2 else "feed_forward = 'trained'"
    assert report.verdict.startswith("No theorem is about")
    assert setting in report.verdict
    assert not report.guaranteed
    assert (report.promised_step, report.promised_rate, report.widths, report.constants) == (0.0, 1.0, {}, None)
    assert report.misfit == pytest.approx(np.linalg.norm(model.outputs(DATA, weights) - DATA.y), rel=1e-12)
    largest = np.linalg.eigvalsh(al.theory.ntk(DATA, model, weights))[-1]
    assert report.stable_step == pytest.approx(2 / largest, rel=1e-9)
    told = report.to_json()
    assert told["lambda_0"] is None
    assert "alpha" not in told
    assert told["outside"] == list(report.outside)
    assert "promised up to" not in str(report)


def test_a_shallow_encoder_is_inside():
    report = al.encoder_report(DATA, Encoder(8), seed=3)
    assert report.outside == ()
    assert report.constants is not None
    assert report.misfit == report.constants.start_distance
