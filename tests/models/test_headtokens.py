"""Each head of a model as a layer on tokens: the same attention, and max-margin problems of its own."""

from dataclasses import replace

import numpy as np
import pytest

import attnlab as al
from attnlab.models import Attention, Bert, CrossAttention, Encoder, Gpt2, MultiHead, TrainedLinear, VisionTransformer

TOKENS = al.data.sphere(n=4, T=3, d=4, seed=0)
RNG = np.random.default_rng(0)
PATCHES = al.Sequences(x=RNG.standard_normal((3, 4, 4)), y=[0, 1, 2], lengths=[4, 3, 4])
TEXTS = al.Sequences(ids=RNG.integers(1, 9, (3, 5)), lengths=[5, 3, 4], y=[0, 1, 0])
DEEP = {
    "vision": (VisionTransformer(classes=3, patch=2, dim=6, depth=2, heads=2, mlp=5), PATCHES),
    "locality": (VisionTransformer(3, 2, dim=4, mlp=0, locality=True, pool="mean", norm=False), PATCHES),
    "bert": (Bert(classes=2, vocabulary=9, dim=6, depth=2, heads=2, mlp=4), TEXTS),
    "gpt2": (Gpt2(classes=2, vocabulary=9, dim=6, depth=2, heads=2, mlp=4), TEXTS),
}


def spread(model, data):
    """Weights of order one, so that no two heads look alike; shifts too."""
    rng = np.random.default_rng(4)
    return {name: w + 0.7 * rng.standard_normal(w.shape) for name, w in model.initial(data).items()}


def softmax(logits):
    parts = np.exp(logits - logits.max(-1, keepdims=True))
    return parts / parts.sum(-1, keepdims=True)


def test_one_layer_is_itself():
    weights = Attention("KQ").initial(TOKENS)
    head = Attention("KQ").tokens_of(TOKENS, weights)
    np.testing.assert_allclose(softmax(head.logits), Attention("KQ").attention(TOKENS, weights), rtol=1e-12)
    run = al.descend(TOKENS, al.ngd(0.1), steps=500)
    head = Attention().tokens_of(TOKENS, run.weights)
    np.testing.assert_array_equal(head.selected, run.selected)
    np.testing.assert_array_equal(head.tokens.v, TOKENS.v)
    own = {"W": run.W, "u": np.arange(4.0)}
    np.testing.assert_array_equal(Attention(train_head=True).tokens_of(TOKENS, own).tokens.v, own["u"])


@pytest.mark.parametrize("trials", [None, 2])
def test_heads_of_several(trials):
    data = al.data.sphere(n=3, T=3, d=4, trials=trials, seed=0)
    model = MultiHead(heads=3)
    weights = model.start(data, "gaussian", 1.0, 1)
    attention = np.moveaxis(model.attention(data, weights), -4, 0)
    for head in model.heads_as_tokens(data, weights):
        np.testing.assert_allclose(softmax(head.logits), attention[head.head], rtol=1e-12)
        assert model.tokens_of(data, weights, head=head.head).name == head.name


def test_a_batch_of_one_layer():
    data = al.data.sphere(n=3, T=3, d=4, trials=2, seed=0)
    weights = Attention("KQ").initial(data)
    head = Attention("KQ").tokens_of(data, weights)
    np.testing.assert_allclose(softmax(head.logits), Attention("KQ").attention(data, weights), rtol=1e-12)


@pytest.mark.parametrize("name", DEEP)
def test_heads_of_transformers_attend_as_the_model_does(name):
    """The last softmax of the model is that of the last layer; fillers see only themselves there."""
    model, data = DEEP[name]
    weights = spread(model, data)
    last = [head for head in model.heads_as_tokens(data, weights) if head.layer == model.depth - 1]
    assert len(last) == model.heads
    attention = model.attention(data, weights)  # (n, heads, T, T)
    there = data.mask
    if attention.shape[-1] == data.T + 1:  # a class token
        there = np.concatenate([np.ones((data.n, 1), dtype=bool), there], axis=1)
    for head in last:
        found = softmax(head.logits)
        np.testing.assert_allclose(found[there], attention[:, head.head][there], rtol=1e-9, atol=1e-12)
        fillers = np.broadcast_to(np.eye(there.shape[1]), found.shape)[~there]
        np.testing.assert_array_equal(found[~there], fillers)


def test_layers_inside_attend_as_the_states_say():
    model, data = DEEP["bert"]
    weights = spread(model, data)
    for states in model.states(data, weights):
        for head in range(2):
            found = model.tokens_of(data, weights, states.layer, head)
            logits = states.q[:, head] @ states.k[:, head].swapaxes(-1, -2) / np.sqrt(3)
            wanted = softmax(np.where(data.mask[:, None, :], logits, -np.inf))
            np.testing.assert_allclose(softmax(found.logits)[data.mask], wanted[data.mask], rtol=1e-9, atol=1e-12)


def test_heads_that_do_not_work_are_left_out():
    model, data = DEEP["bert"]
    weights = model.initial(data)
    some = Bert(classes=2, vocabulary=9, dim=6, depth=2, heads=2, mlp=4, active=((0,), (1,)))
    assert [(head.layer, head.head) for head in some.heads_as_tokens(data, weights)] == [(0, 0), (1, 1)]
    with pytest.raises(al.InputError, match="`layer` is 0 and `head` 1"):
        some.tokens_of(data, weights, 0, 1)


ENCODERS = [
    Encoder(5),
    Encoder(5, tied=True, scaling="linear"),
    Encoder(7, depth=3, init="ntk", parameterization="ntk"),
    Encoder(4, depth=2, residual="identity", feed_forward="trained", pool="sum"),
    Encoder(6, depth=2, residual="projected", hidden_scale=0.3),
]


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("model", ENCODERS, ids=range(len(ENCODERS)))
def test_heads_of_encoders_attend_as_each_block_does(model, trials):
    """The last block is the model's own attention; one before is that of an encoder which ends there."""
    data = al.data.gaussian_sequences(n=3, T=3, d=4, trials=trials, seed=2)
    weights = spread(model, data)
    heads = model.heads_as_tokens(data, weights)
    assert [head.layer for head in heads] == list(range(model.depth))
    for head in heads:
        shorter = replace(model, depth=head.layer + 1)
        own = {name: weights[name] for name in shorter.initial(data)}
        np.testing.assert_allclose(softmax(head.logits), shorter.attention(data, own), rtol=1e-11, atol=1e-14)
        assert model.tokens_of(data, weights, head.layer).name == head.name


def test_encoders_without_softmax_or_with_tokens_that_overflow():
    data = al.data.gaussian_sequences(n=3, T=3, d=4, seed=2)
    uniform = Encoder(5, attention_kind="uniform")
    with pytest.raises(al.InputError, match="does not say which max-margin problem"):
        uniform.tokens_of(data, uniform.initial(data))
    deep = Encoder(4, depth=30, hidden_scale=1e15)
    with pytest.raises(al.InputError, match="`weights` make tokens overflow before block"):
        deep.tokens_of(data, deep.initial(data))


def test_the_max_margin_problem_of_a_head_inside():
    """What separates the selected states has their margin, and asks nothing of fillers or of the shift of tokens."""
    model, data = DEEP["gpt2"]
    head = model.tokens_of(data, spread(model, data), 1, 1)
    solution = al.solve_margin(head.tokens, head.selected)
    logits = np.where(head.tokens.visible, np.einsum("ntd,de,nke->nkt", head.tokens.x, solution.W, head.tokens.z), -9e9)
    chosen = np.take_along_axis(logits, head.selected[..., None], -1)
    others = np.arange(data.T) != head.selected[..., None]
    assert (chosen - logits)[others].min() == pytest.approx(1.0, rel=1e-6)
    np.testing.assert_allclose(solution.W[-1], 0.0, atol=1e-9)


@pytest.mark.parametrize("parameterization", ["W", "KQ"])
def test_frozen_attention_and_a_trained_query(parameterization):
    """Tokens are seen through the frozen W, and are scored as before."""
    names = ("W",) if parameterization == "W" else ("K", "Q")
    model = CrossAttention(parameterization, values=None, query="trained", frozen=names)
    weights = model.initial(TOKENS, 3)
    head = model.tokens_of(TOKENS, weights)
    np.testing.assert_allclose(softmax(head.logits), model.attention(TOKENS, weights), rtol=1e-10)
    np.testing.assert_allclose(head.W[:, 0], weights["p"])
    np.testing.assert_allclose(head.tokens.x @ head.tokens.v, TOKENS.x @ TOKENS.v, rtol=1e-8, atol=1e-9)


def test_more_trained_queries_than_numbers_of_a_token():
    data = al.Tokens(x=RNG.standard_normal((3, 3, 2)), z=np.zeros((3, 4, 2)), y=np.ones((3, 4)), v=[1.0, 0.5])
    model = CrossAttention(values=None, query="trained")
    weights = model.initial(data, 1)
    head = model.tokens_of(data, weights)
    assert head.tokens.d == 4
    np.testing.assert_allclose(softmax(head.logits), model.attention(data, weights), rtol=1e-12)


def test_values_score_the_tokens():
    model = CrossAttention(values=2, head=TrainedLinear())
    weights = model.initial(TOKENS)
    head = model.tokens_of(TOKENS, weights)
    assert head.tokens.v is not None
    np.testing.assert_allclose(head.tokens.v, weights["V"] @ weights["u"])
    np.testing.assert_allclose(softmax(head.logits), model.attention(TOKENS, weights), rtol=1e-12)
    assert not CrossAttention(head="relu-sum").tokens_of(TOKENS, CrossAttention().initial(TOKENS)).tokens.v.any()


def test_a_model_that_names_no_heads_says_so():
    data = al.data.gaussian_sequences(n=3, T=3, d=3, seed=1)
    model = al.models.FullyConnected(4)
    with pytest.raises(al.InputError, match="does not say which max-margin problem"):
        model.tokens_of(data, model.initial(data))
    with pytest.raises(al.InputError, match="`layer`"):
        Attention().tokens_of(TOKENS, np.eye(4), layer=-1)
    with pytest.raises(al.InputError, match="wanted `layer` from 0 to 0 and `head` from 0 to 0"):
        Attention().tokens_of(TOKENS, np.eye(4), head=1)
