"""The report on a model: every number is the one that the definition gives."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import attnlab as al
from attnlab.models import Attention, Encoder, MultiHead
from attnlab.reports import model as module


class WithValues(al.Model):
    """Attention with a trained value matrix."""

    def shapes(self, data):
        return {"W": al.weights((data.d, data.d)), "V": al.weights((data.d, data.d))}

    def output(self, weights, example):
        attention = al.models.softmax(example.x @ weights["W"] @ example.z)
        return example.v @ (weights["V"] @ (attention @ example.x))


class Classes(al.Model):
    """Three outputs of a sequence, without attention."""

    def shapes(self, data):
        return {"U": al.weights((3, data.d))}

    def output(self, weights: Mapping[str, Any], example):
        return weights["U"] @ example.x[0]


TOKENS = al.data.sphere(n=4, T=3, d=4, seed=1)
SEQUENCES = al.data.gaussian_sequences(n=4, T=3, d=4, seed=1)
QUERIES = al.Tokens.self_attention(TOKENS.x, np.tile(TOKENS.y[:, None], (1, 3)), TOKENS.v, query="all", mask="causal")


def softmax(logits, visible=True):
    e = np.where(visible, np.exp(logits - logits.max(-1, keepdims=True)), 0.0)
    return e / e.sum(-1, keepdims=True)


def layer(data, weights):
    W = weights["W"] if "W" in weights else weights["K"] @ weights["Q"].T
    attention = softmax(np.einsum("ntd,de,n...e->n...t", data.x, W, data.z), data.visible)
    return np.einsum("n...t,ntd,d->n...", attention, data.x, data.v), attention


def with_values(data, weights):
    attention = softmax(np.einsum("ntd,de,ne->nt", data.x, weights["W"], data.z))
    return np.einsum("nt,ntd,ed,e->n", attention, data.x, weights["V"], data.v), attention


def heads(data, weights):
    attention = softmax(np.einsum("ntd,gde,nse->gnts", data.x, weights["W"], data.x))  # x W x^T, a row for each query
    each = np.einsum("gnts,nsd,gd->gn", attention, data.x, weights["U"])
    return each.sum(0) / np.sqrt(len(each)), attention


def encoder(data, weights):
    queries, keys = data.x @ weights["W_Q"].T, data.x @ weights["W_K"].T
    attention = softmax(queries @ np.swapaxes(keys, 1, 2) / np.sqrt(5))
    hidden = np.maximum(attention @ data.x @ weights["W_V"].T, 0).mean(1)
    return hidden @ weights["w_O"], attention


CASES = {
    "none": (None, TOKENS, {"W": (4, 4)}, layer),
    "none, KQ": (None, TOKENS, {"K": (4, 2), "Q": (4, 2)}, layer),
    "queries": (Attention(), QUERIES, {"W": (4, 4)}, layer),
    "values": (WithValues(), TOKENS, {"W": (4, 4), "V": (4, 4)}, with_values),
    "heads": (MultiHead(2, "pooling"), TOKENS, {"U": (2, 4), "W": (2, 4, 4)}, heads),
    "encoder": (Encoder(5), SEQUENCES, dict.fromkeys(("W_Q", "W_K", "W_V"), (5, 4)) | {"w_O": (5,)}, encoder),
}


def drawn(shapes, scale=1.5):
    rng = np.random.default_rng(6)
    return {name: scale * rng.standard_normal(shape) for name, shape in shapes.items()}


def objective(outputs, data, squared):
    if squared:
        return 0.5 * np.sum((outputs - data.y) ** 2)
    return np.sum(np.log1p(np.exp(-data.y * outputs))) / data.n


def jacobian(function, weights, step=1e-4):
    """Of a function of weights by all of them, by differences of fourth order."""
    columns = []
    for name in sorted(weights):
        for place in np.ndindex(weights[name].shape):
            ends = []
            for s in (-2, -1, 1, 2):
                moved = {k: w.copy() for k, w in weights.items()}
                moved[name][place] += s * step
                ends.append(function(moved))
            columns.append((ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step))
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("name", CASES)
def test_every_number_is_that_of_the_definition(name):
    model, data, shapes, by_hand = CASES[name]
    weights, squared = drawn(shapes), name == "encoder"
    outputs, attention = by_hand(data, weights)
    found = al.report(data, model, weights)
    np.testing.assert_allclose(found.outputs, outputs, rtol=1e-12)
    np.testing.assert_allclose(found.attention, attention, rtol=1e-11, atol=1e-15)
    assert found.top_attention == pytest.approx(attention.max(-1).mean(), rel=1e-12)
    loss = objective(outputs, data, squared)
    assert found.loss == pytest.approx(loss, rel=1e-12)
    assert found.log_loss == pytest.approx(np.log(loss), rel=1e-11)
    assert found.loss_name == ("half_sum" if squared else "logistic")
    if squared:
        assert found.error is None
        assert found.margin is None
    else:
        assert found.error == np.mean(data.y * outputs <= 0)
        assert found.margin == pytest.approx((data.y * outputs).min(), rel=1e-11)
    rows = jacobian(lambda w: by_hand(data, w)[0].ravel(), weights)
    values = np.linalg.eigvalsh(rows @ rows.T)
    assert found.eigenvalues is not None
    np.testing.assert_allclose(found.eigenvalues, values, rtol=1e-7, atol=1e-8 * float(values[-1]))
    assert len(found.heads) == {"values": 0, "heads": 2}.get(name, 1)
    written = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert written["loss"] == found.loss
    assert written["margin"] == found.margin
    assert f"{found.loss:.4g}" in found.verdict
    assert repr(found.model) in str(found)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_differences(name):
    model, data, shapes, by_hand = CASES[name]
    weights = drawn(shapes)
    slope = jacobian(lambda w: objective(by_hand(data, w)[0], data, name == "encoder"), weights)
    found = al.report(data, model, weights).log_gradient_norm
    assert found == pytest.approx(np.log(np.linalg.norm(slope)), rel=1e-8, abs=1e-8)


def test_gradients_that_underflow_are_reported_by_their_logarithm():
    """Two tokens, W = [[a, 0], [0, 0]]: s_2 = e^-a is all there is, and the gradient is as small, to all digits."""
    tokens, a = al.data.two_tokens(), 2000.125
    weights = {"W": np.array([[a, 0.0], [0.0, 0.0]])}
    mantissa, log_scale = Attention().gradient(tokens, weights)
    want = float(log_scale["W"]) + np.log(np.linalg.norm(mantissa["W"]))
    found = al.report(tokens, None, weights)
    assert want < -1500
    assert found.log_gradient_norm == pytest.approx(want, rel=1e-14)
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", ["none", "queries", "heads"])
def test_heads_are_compared_with_the_max_margin_of_what_they_look_at(name):
    model, data, shapes, by_hand = CASES[name]
    weights = drawn(shapes, 8.0)
    found = al.report(data, model, weights)
    attention = by_hand(data, weights)[1]
    for g, row in enumerate(found.heads):
        own = attention[g] if name == "heads" else attention
        W = weights["W"][g].T if name == "heads" else weights["W"]  # x_s W^T x_t is the logit x_t W x_s
        assert row.top_attention == pytest.approx(own.max(-1).mean(), rel=1e-10)
        assert row.saturated == np.mean(own.max(-1) > 0.99)
        np.testing.assert_array_equal(row.selected, own.argmax(-1))
        tokens = data
        if name == "heads":
            tokens = al.Tokens(x=data.x, z=data.x, y=np.repeat(data.y[:, None], 3, axis=1), v=data.v)
        solution = al.solve_margin(tokens, own.argmax(-1), throw=False)
        assert row.solution.feasible == solution.feasible
        assert row.record()["separable"] == solution.feasible
        if solution.feasible:
            cosine = np.sum(W * solution.W) / np.linalg.norm(W) / np.linalg.norm(solution.W)
            assert row.misalignment == pytest.approx(1 - cosine, rel=1e-8)
        else:
            assert row.misalignment is None
            assert row.record()["margin"] is None
        assert row.to_json()["selected"] == own.argmax(-1).tolist()


def test_a_trained_layer_points_where_theory_says():
    run = al.descend(TOKENS, al.ngd(0.5), steps=3000, record=None)
    found = al.report(TOKENS, None, run.weights)
    right = np.sign(al.models.Attention().outputs(TOKENS, run.weights)) == TOKENS.y
    assert found.error == np.mean(~right)
    assert f"{found.error:.1%} of the labels are not fitted" in found.verdict
    assert found.heads[0].saturated == 1.0
    assert found.heads[0].misalignment < 1e-3
    assert al.report(TOKENS, Attention(), run.weights).to_json() == found.to_json()


def test_heads_that_are_left_out_are_told(monkeypatch):
    model, weights = MultiHead(2, "pooling"), drawn({"U": (2, 4), "W": (2, 4, 4)})
    assert al.report(TOKENS, model, weights).left_out == ""
    monkeypatch.setattr(module, "MOST_HEADS", 1)
    found = al.report(TOKENS, model, weights)
    assert len(found.heads) == 1
    assert found.left_out == "heads after the first 1 of 2"
    assert found.left_out in str(found)
    monkeypatch.setattr(module, "MOST_LOGITS", SEQUENCES.n * SEQUENCES.T**2 - 1)
    network = al.models.Encoder(3)
    found = al.report(SEQUENCES, network, network.start(SEQUENCES, None, 1.0, 0))
    assert found.left_out.startswith("all heads")
    assert found.to_json()["left_out"] == found.left_out
    dense = al.models.FullyConnected(3)
    assert al.report(SEQUENCES, dense, dense.start(SEQUENCES, None, 1.0, 0)).left_out == ""


def test_wide_heads_and_heads_of_large_weights_are_left_out(monkeypatch):
    """Block 1 compares tokens of d numbers, block 2 of as many as the width."""
    network = al.models.Encoder(SEQUENCES.d + 2, depth=2)
    weights = network.initial(SEQUENCES)
    assert [head.name for head in al.report(SEQUENCES, network, weights).heads] == ["block 1", "block 2"]
    logits = SEQUENCES.n * SEQUENCES.T**2
    monkeypatch.setattr(module, "MOST_COMPARED", logits * SEQUENCES.d)
    found = al.report(SEQUENCES, network, weights)
    assert [head.name for head in found.heads] == ["block 1"]
    assert found.left_out.startswith(f"block 2 ({logits} logits of wide tokens")
    largest = (SEQUENCES.d + 2) ** 2
    monkeypatch.setattr(module, "MOST_NUMBERS", largest)
    assert al.report(SEQUENCES, network, weights).heads
    monkeypatch.setattr(module, "MOST_NUMBERS", largest - 1)
    assert al.report(SEQUENCES, network, weights).left_out.startswith(f"all heads (a weight of {largest} numbers")


def test_classes_have_leads_for_margins():
    data = al.Sequences(x=SEQUENCES.x, y=[0, 2, 1, 1])
    weights = drawn({"U": (3, 4)})
    found = al.report(data, Classes(), weights, loss="cross_entropy")
    outputs = data.x[:, 0] @ weights["U"].T
    right = outputs[np.arange(4), data.y.astype(int)]
    others = np.where(np.arange(3) == data.y[:, None], -np.inf, outputs).max(1)
    assert found.margin == pytest.approx((right - others).min(), rel=1e-12)
    assert found.error == np.mean(right <= others)
    assert found.loss == pytest.approx(np.mean(np.log(np.exp(outputs).sum(1)) - right), rel=1e-12)
    assert found.top_attention is None
    assert "Attention" not in found.verdict
    json.dumps(found.to_json(), allow_nan=False)


def test_zero_weights_and_losses_without_a_logarithm(monkeypatch):
    monkeypatch.setattr(module, "MOST_GRADIENTS", 10)
    for model, weights, loss in (
        (None, {"W": np.zeros((4, 4))}, "correlation"),
        (WithValues(), {"W": np.zeros((4, 4)), "V": np.zeros((4, 4))}, "hinge"),
        (MultiHead(10**6), {"U": np.zeros((1, 3, 4)), "W": np.zeros((1, 4, 4))}, None),
    ):
        found = al.report(TOKENS, model, weights, loss=loss)
        assert found.eigenvalues is None
        assert all(row.misalignment is None for row in found.heads)
        json.dumps(found.to_json(), allow_nan=False)
        assert str(found)


def test_what_is_refused():
    weights = drawn({"W": (4, 4)})
    batch = al.data.sphere(n=4, T=3, d=4, trials=2)
    for arguments, says in (
        ((batch, None, weights), "`data` is a batch of 2 trials"),
        ((batch, WithValues(), WithValues().initial(batch)), "`data` is a batch of 2 trials"),
        ((TOKENS, weights, Attention()), "the order is"),
        ((Attention(), TOKENS, weights), "the order is"),
        ((TOKENS, Attention, weights), "wanted an al.Model"),
        ((TOKENS, WithValues(), weights), "`weights` has"),
        ((SEQUENCES, None, weights), "wanted al.Tokens"),
        ((TOKENS, None, {"W": np.eye(3)}), "has shape"),
    ):
        with pytest.raises(al.InputError) as caught:
            al.report(*arguments)
        assert says in str(caught.value)
    with pytest.raises(al.InputError, match="`loss` is 'squared'"):
        al.report(TOKENS, None, weights, loss="squared")
    with pytest.raises(al.InputError, match="labels"):
        al.report(SEQUENCES, Encoder(3), Encoder(3).initial(SEQUENCES), loss="logistic")
