"""Multi-head attention: against slow loops, finite differences and dense Hessians."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.errors import InputError
from attnlab.models import MultiHead
from sampling import first_few

DECODERS = ("full", "pooling", "last")


def tokens_of(n=4, T=3, d=3, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return al.Tokens.self_attention(scale * rng.standard_normal((n, T, d)), rng.choice([-1.0, 1.0], n), np.ones(d))


def weights_of(tokens, groups, decoder="full", seed=1, scale=0.7):
    rng = np.random.default_rng(seed)
    shapes = MultiHead(1, decoder).head_shapes(tokens)
    return {name: scale * rng.standard_normal((groups, *shape)) for name, shape in shapes.items()}


def slow_output(x, U, W, decoder):
    """One head on one sequence, entry by entry."""
    T, d = x.shape
    total = 0.0
    for t in range(T):
        logits = [sum(x[t, i] * W[i, j] * x[s, j] for i in range(d) for j in range(d)) for s in range(T)]
        weight = np.exp(logits) / np.exp(logits).sum()
        row = {"full": U[t] if U.ndim == 2 else None, "pooling": U, "last": U if t == T - 1 else np.zeros(d)}[decoder]
        total += sum(weight[s] * float(np.dot(row, x[s])) for s in range(T))
    return total


def flat(weights):
    return np.concatenate([weights["U"].ravel(), weights["W"].ravel()])


@pytest.mark.parametrize("decoder", DECODERS)
def test_output_of_groups_against_a_loop_over_heads(decoder):
    tokens, counts = tokens_of(), (2, 3)
    weights = weights_of(tokens, 2, decoder)
    found = MultiHead(5, decoder, counts=counts).outputs(tokens, weights)
    heads = [(weights["U"][g], weights["W"][g]) for g, c in enumerate(counts) for _ in range(c)]
    wanted = [sum(slow_output(x, U, W, decoder) for U, W in heads) / np.sqrt(5) for x in tokens.x]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    loss = MultiHead(5, decoder, counts=counts).loss(tokens, weights)
    assert loss == pytest.approx(np.mean(np.log1p(np.exp(-tokens.y * np.array(wanted)))), rel=1e-12)


@pytest.mark.parametrize("decoder", DECODERS)
def test_gradient_and_hessian_against_finite_differences(decoder):
    tokens = tokens_of(n=3, T=3, d=2)
    model, weights = MultiHead(2, decoder), weights_of(tokens, 2, decoder)
    rng = np.random.default_rng(5)
    towards = {name: rng.standard_normal(w.shape) for name, w in weights.items()}
    mantissa, log_scale = model.gradient(tokens, weights)
    gradient = {name: m * np.exp(log_scale[name]) for name, m in mantissa.items()}

    def moved(h):
        return {name: w + h * towards[name] for name, w in weights.items()}

    h = 1e-5
    slope = (model.loss(tokens, moved(h)) - model.loss(tokens, moved(-h))) / (2 * h)
    assert flat(gradient) @ flat(towards) == pytest.approx(float(slope), rel=1e-7)
    ends = []
    for at in (moved(h), moved(-h)):
        m, s = model.gradient(tokens, at)
        ends.append(flat({name: m[name] * np.exp(s[name]) for name in m}))
    product = flat(model.hessian_product(tokens, weights, towards))
    np.testing.assert_allclose(product, (ends[0] - ends[1]) / (2 * h), rtol=1e-6, atol=1e-9)
    dense = model.hessian(tokens, weights)
    np.testing.assert_allclose(dense, dense.T, atol=1e-14)
    np.testing.assert_allclose(dense @ flat(towards), product, rtol=1e-10, atol=1e-13)
    # Of the outputs it has a block per head, and none for U alone.
    blocks = model.hessian(tokens, weights, of="output")
    size = weights["U"][0].size
    assert np.abs(blocks[: 2 * size, : 2 * size]).max() < 1e-14
    assert np.abs(blocks[:size, 2 * size + tokens.d**2 :]).max() < 1e-14


def test_features_are_gradients_of_single_outputs():
    tokens = tokens_of()
    model, weights = MultiHead(3, counts=(1, 2)), weights_of(tokens, 2)
    features = model.features(tokens, weights)
    h, i, at = 1e-6, 2, (1, 0, 2)
    for name in ("U", "W"):
        ends = []
        for sign in (1, -1):
            changed = {k: w.copy() for k, w in weights.items()}
            changed[name][at] += sign * h
            ends.append(model.outputs(tokens, changed)[i])
        # Moving the whole group moves the output by its count times as much as one head does.
        assert 2 * features[name][(i, *at)] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.floats(-3, 3))
def test_gradient_of_the_formula(seed, log_scale):
    """x^T D x with D = A (Q - sum A Q), and A x, of the paper's Lemma 1; shapes fixed, so that one program serves."""
    tokens = tokens_of(seed=seed, scale=10**log_scale)
    model, weights = MultiHead(1), weights_of(tokens, 1, seed=seed + 1)
    features = model.features(tokens, weights)
    for i, x in enumerate(tokens.x):
        logits = x @ weights["W"][0] @ x.T
        A = np.exp(logits - logits.max(-1, keepdims=True))
        A /= A.sum(-1, keepdims=True)
        Q = weights["U"][0] @ x.T
        D = A * (Q - (A * Q).sum(-1, keepdims=True))
        size = np.abs(x).max()
        np.testing.assert_allclose(features["U"][i, 0], A @ x, rtol=1e-9, atol=1e-12 * size)
        np.testing.assert_allclose(features["W"][i, 0], x.T @ D @ x, rtol=1e-7, atol=1e-10 * size**3)


def test_gradients_do_not_underflow():
    tokens = tokens_of(n=3)
    weights = {"U": np.zeros((1, 3, 3)), "W": np.zeros((1, 3, 3))}
    weights["U"][:] = 1e4 * tokens.x.mean((0, 1))
    label = np.sign(MultiHead(1).outputs(tokens, weights)[0])
    same = al.Tokens.self_attention(tokens.x[:1], [label], np.ones(3))
    mantissa, log_scale = MultiHead(1).gradient(same, weights)
    assert np.abs(mantissa["U"]).max() == pytest.approx(1.0)
    assert log_scale["U"] < -800


def test_many_heads_are_free_and_exact():
    tokens = tokens_of(n=5)
    one, many = (al.descend(tokens, al.gd(0.5), model=MultiHead(H), init="zeros", steps=200, record=None)
                 for H in (1, 10**18))  # fmt: skip
    assert one.weights["U"].shape == many.weights["U"].shape == (1, 3, 3)
    # H heads from zero: sqrt(H) U moves as one head does, W by 1/H of it.
    steps = al.descend(tokens, al.gd(0.5), model=MultiHead(4), init="zeros", steps=2, record=None)
    assert np.abs(steps.weights["W"]).max() > 0
    first = al.descend(tokens, al.gd(0.5), model=MultiHead(4), init="zeros", steps=1, record=None)
    assert np.abs(first.weights["W"]).max() == 0
    assert np.abs(many.weights["W"]).max() < 1e-8


GROUP_RULES = [al.ngd(0.05), al.adam(0.05), al.gd(1.0), al.ngd_momentum(0.02), al.polyak(cap=1.0)]


@pytest.mark.parametrize("rule", first_few(GROUP_RULES, 2), ids=lambda rule: rule.name)
def test_groups_train_as_their_heads_do(rule):
    tokens, rep = tokens_of(n=6), [0, 0, 1, 1, 1, 1]
    weights = weights_of(tokens, 2, scale=0.3)
    target = weights_of(tokens, 1, seed=9)
    groups = al.descend(tokens, rule, model=MultiHead(6, counts=(2, 4)), init=weights, steps=200, targets=target)
    heads = al.descend(tokens, rule, model=MultiHead(6), init={k: w[rep] for k, w in weights.items()}, steps=200,
                       targets=target)  # fmt: skip
    for name in weights:
        np.testing.assert_allclose(groups.weights[name][rep], heads.weights[name], atol=1e-12)
    summed = ("log_gradient_norm", "step_length")  # over one head of each group for Adam
    for name, values in heads.metrics.items():
        if rule.name != "adam" or name not in summed:
            np.testing.assert_allclose(groups.metrics[name], values, rtol=1e-9, atol=1e-11, err_msg=name)


def test_what_is_recorded():
    train, test = tokens_of(n=6, seed=2), tokens_of(n=7, seed=3)
    relevant = np.random.default_rng(0).random((6, 3)) < 0.5
    weights, target = weights_of(train, 2), weights_of(train, 1, seed=4)
    model = MultiHead(7, counts=(3, 4))
    own = {"out": lambda view: view.outputs[0], "least": lambda view: (view.y * view.outputs).min()}
    run = al.descend(train, al.gd(0.1), model=model, init=weights, steps=5, record=[0, 5], targets=target,
                     track=relevant, test=test, metrics=own)  # fmt: skip
    end, found = run.weights, {name: values[-1] for name, values in run.metrics.items()}
    c = np.array([3, 4])
    norms = {k: np.sqrt((end[k] ** 2).sum((1, 2))) for k in end}
    assert found["norm"] == pytest.approx(np.sqrt((c * (norms["U"] ** 2 + norms["W"] ** 2)).sum()))
    assert found["norm_U"] == pytest.approx((c * norms["U"]).sum() / np.sqrt(7))
    assert found["norm_W"] == pytest.approx((c * norms["W"]).sum() / 7)
    assert found["largest_norm"] == pytest.approx(np.sqrt(norms["U"] ** 2 + norms["W"] ** 2).max())
    margins = train.y * model.outputs(train, end)
    assert found["margin"] == found["least"] == pytest.approx(margins.min())
    assert found["normalized_margin"] == pytest.approx(margins.min() / found["norm_U"])
    assert found["error"] == (margins <= 0).mean()
    assert found["test_loss"] == pytest.approx(float(model.loss(test, end)))
    assert found["test_error"] == ((test.y * model.outputs(test, end)) <= 0).mean()
    attention = model.attention(train, end)
    on = (attention * relevant[None, :, None, :]).sum(-1).mean((1, 2))
    assert found["attention"] == pytest.approx((c * on).sum() / 7)
    apart = sum((c * ((end[k] - target[k]) ** 2).sum((1, 2))).sum() for k in end)
    assert found["distance_target"] == pytest.approx(np.sqrt(apart))
    both = (c * (end["W"] * target["W"]).sum((1, 2))).sum()
    lengths = np.sqrt((c * norms["W"] ** 2).sum() * 7 * (target["W"] ** 2).sum())
    assert found["cosine_W_target"] == pytest.approx(both / lengths)
    assert found["out"] == pytest.approx(model.outputs(train, end)[0])
    np.testing.assert_array_equal(run.selected, attention.argmax(-1))


def test_trials_save_and_resume(tmp_path):
    batch = al.Tokens.stack([tokens_of(seed=s) for s in range(3)])
    model = MultiHead(2)
    for rule in (al.ngd(0.1), al.adam(0.1)):
        whole = al.descend(batch, rule, model=model, init="gaussian", init_scale=0.1, seed=3, steps=60)
        assert whole.trials == 3
        assert whole.weights["U"].shape == (3, 2, 3, 3)
        part = al.descend(batch, rule, model=model, init="gaussian", init_scale=0.1, seed=3, steps=20)
        part = al.Trajectory.load(part.save(tmp_path / "part.npz"))
        again = al.descend(batch, rule, model=model, init="gaussian", init_scale=0.1, seed=3, steps=60, resume=part)
        np.testing.assert_array_equal(again.weights["U"], whole.weights["U"])
        alone = al.descend(batch[0], rule, model=model, init="gaussian", init_scale=0.1, seed=3, steps=60)
        np.testing.assert_allclose(alone.weights["U"], whole.weights["U"][0], rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match="another heads"):
        al.descend(
            batch, al.adam(0.1), model=MultiHead(3), init="gaussian", init_scale=0.1, seed=3, steps=60, resume=part
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": MultiHead(2), "init": "uniform"}, "zeros"),
        ({"model": MultiHead(2), "init": np.zeros((3, 3))}, "'U'"),
        ({"model": MultiHead(2), "init": {"U": np.zeros((2, 3, 3))}}, "wanted"),
        ({"model": MultiHead(2), "init": {"U": np.zeros((2, 3, 3)), "W": np.zeros((2, 3, 4))}}, "shape"),
        ({"model": MultiHead(3), "init": {"U": np.zeros((2, 3, 3)), "W": np.zeros((2, 3, 3))}}, "counts"),
        ({"model": MultiHead(2), "init": "zeros", "track": np.zeros((4, 2), bool)}, "track"),
        ({"model": MultiHead(2), "init": "zeros", "test": tokens_of(T=4)}, "test"),
        ({"model": MultiHead(2), "init": "zeros", "targets": np.zeros((3, 3))}, "targets"),
        ({"model": "many", "init": "zeros"}, "model"),
        ({"model": MultiHead(2), "init": "zeros", "metrics": {"loss": lambda view: 0.0}}, "recorded already"),
        ({"model": MultiHead(2), "init": "zeros", "parameterization": "KQ"}, "parameterization"),
        ({"model": MultiHead(2), "init": "zeros", "train_head": True}, "train_head"),
        ({"model": MultiHead(2), "init": "zeros", "test": np.zeros((4, 3, 3))}, "test"),
        ({"model": MultiHead(2), "init": "zeros", "engine": "kernel"}, "engine"),
        ({"model": MultiHead(2), "init": "zeros", "targets": {"U": np.ones((3, 3)), "W": np.ones((3, 3))},
          "stop_misalignment": 0.1}, "stop_misalignment"),
    ],
)  # fmt: skip
def test_bad_options_are_named(options, words):
    with pytest.raises(InputError, match=words):
        al.descend(tokens_of(), al.gd(0.1), steps=2, **options)


def test_masks_and_labels_of_single_queries_are_refused():
    plain = tokens_of()
    masked = al.Tokens(x=plain.x, z=plain.z, y=plain.y, v=plain.v, mask=[True, True, False])
    queries = al.Tokens(x=plain.x, z=plain.x, y=np.ones((4, 3)), v=plain.v)
    for tokens in (masked, queries):
        with pytest.raises(InputError, match="every token asks"):
            al.descend(tokens, al.gd(0.1), model=MultiHead(2), init="zeros", steps=2)
        with pytest.raises(InputError, match="every token asks"):
            MultiHead(2).loss(tokens, {"U": np.zeros((3, 3)), "W": np.zeros((3, 3))})
        with pytest.raises(InputError, match="`test`"):
            al.descend(plain, al.gd(0.1), model=MultiHead(2), init="zeros", steps=2, test=tokens)


@pytest.mark.parametrize("bad", [{"heads": 0}, {"heads": 1.5}, {"heads": 2, "decoder": "first"},
                                 {"heads": 2, "counts": (1, 2)}, {"heads": 2, "counts": (0, 2)}])  # fmt: skip
def test_bad_models_are_refused(bad):
    with pytest.raises(InputError):
        MultiHead(**bad)


def test_curvature_beyond_floats_is_an_error():
    tokens = al.Tokens(x=np.full((2, 3, 2), 1e8), z=np.zeros((2, 2)), y=[1, 1])
    weights = {"U": np.zeros((2, 3, 2)), "W": np.zeros((2, 2, 2))}
    weights["U"][1, 0, 1] = -2.0
    with pytest.raises(InputError, match="Hessian at `weights` is not finite"):
        MultiHead(2).hessian(tokens, weights, loss="exponential")
