"""Transformers on text against loops in NumPy, finite differences, and laws that hold for every one of them."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from models_text import KINDS, Oracle, config_of, example_texts, load, tensors_of, write

import attnlab as al
from sampling import first_few

LENGTHS = (7, 4, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pool", first_few([None, "mean"], 1))
def test_outputs_are_those_of_loops_over_layers_heads_and_tokens(kind, pool, tmp_path):
    tensors = write(tmp_path, kind, seed=3)
    options = {} if pool is None else {"pool": pool}
    model, weights = load(kind)(tmp_path, seed=1, **options)
    data, rows = example_texts(kind, LENGTHS, seed=5)
    oracle = Oracle(kind, config_of(kind), tensors)
    outputs, hidden = model.outputs(data, weights), model.hidden(data, weights)
    for i, (ids, segments) in enumerate(rows):
        features = oracle.features(ids, segments, pool)
        np.testing.assert_allclose(hidden[i], features, rtol=0, atol=1e-11)
        np.testing.assert_allclose(
            outputs[i], weights["head_W"].astype(float) @ features + weights["head_b"], rtol=0, atol=1e-11
        )


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_loops_and_belong_to_their_weights(kind, tmp_path):
    tensors = write(tmp_path, kind, seed=4)
    model, weights = load(kind)(tmp_path)
    data, rows = example_texts(kind, LENGTHS, seed=6)
    states = model.states(data, weights)
    oracle = Oracle(kind, config_of(kind), tensors)
    for i, (ids, segments) in enumerate(rows):
        seen, _ = oracle.run(ids, segments)
        for layer, (h, q, k) in zip(states, seen, strict=True):
            T = len(ids)
            np.testing.assert_allclose(layer.h[i, :T], h, rtol=0, atol=1e-11)
            side_by_side = layer.q[i, :, :T].swapaxes(0, 1).reshape(T, -1)
            np.testing.assert_allclose(side_by_side, q, rtol=0, atol=1e-11)
            np.testing.assert_allclose(layer.k[i, :, :T].swapaxes(0, 1).reshape(T, -1), k, rtol=0, atol=1e-11)
    for layer in states:
        again = np.einsum("nte,hke->nhtk", layer.h, layer.W_Q) + layer.b_Q[:, None]
        np.testing.assert_allclose(again, layer.q, rtol=0, atol=1e-12)
        again = np.einsum("nte,hke->nhtk", layer.h, layer.W_K) + layer.b_K[:, None]
        np.testing.assert_allclose(again, layer.k, rtol=0, atol=1e-12)
    (only,) = model.states(data, weights, layers=[1], precision="float32")
    assert only.layer == 1
    assert only.q.dtype == np.float32
    np.testing.assert_allclose(only.q, states[1].q, rtol=0, atol=1e-4)


def test_states_of_more_texts_than_are_computed_at_a_time(tmp_path, monkeypatch):
    write(tmp_path, "bert")
    model, weights = load("bert")(tmp_path)
    data, _ = example_texts("bert", (5, 3, 2, 6, 1), seed=0)
    whole = model.states(data, weights)
    monkeypatch.setattr("attnlab.models.text.TOGETHER", 2)
    for one, other in zip(whole, model.states(data, weights), strict=True):
        np.testing.assert_allclose(one.h, other.h, rtol=0, atol=1e-13)
        np.testing.assert_allclose(one.k, other.k, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", first_few(KINDS, 2))
def test_masked_heads_add_nothing_and_have_no_gradient(kind, tmp_path):
    tensors = write(tmp_path, kind, seed=8)
    model, weights = load(kind)(tmp_path, active=1)
    data, rows = example_texts(kind, LENGTHS, seed=9)
    oracle = Oracle(kind, config_of(kind), tensors, off=(1,))
    for i, (ids, segments) in enumerate(rows):
        np.testing.assert_allclose(model.hidden(data, weights)[i], oracle.features(ids, segments), rtol=0, atol=1e-11)
    width = model.width
    slopes, _ = model.gradient(data, weights)
    for name in ("Q", "K", "V"):
        assert not slopes[f"layer0_{name}"][width:].any()
        assert slopes[f"layer0_{name}"][:width].any()
    assert not slopes["layer1_O"][:, width:].any()
    moved = weights | {"layer1_V": weights["layer1_V"].copy()}
    moved["layer1_V"][width:] += 1.0
    np.testing.assert_array_equal(model.outputs(data, moved), model.outputs(data, weights))


def test_heads_are_chosen_by_layer_and_share_one_program(tmp_path):
    write(tmp_path, "bert")
    model, _ = load("bert")(tmp_path, active=((0,), (1, 0)))
    assert model.active == ((0,), (0, 1))
    assert replace(model, active=0).active == ((), ())
    assert model.compiled_as() == replace(model, active=None).compiled_as()
    for wrong in (3, -1, ((0,),), ((0,), (2,)), "all", 1.5, True):
        with pytest.raises(al.InputError, match="`active`"):
            replace(model, active=wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_changes_a_result(kind, tmp_path):
    """Not by its length, nor by what stands in it, nor by where it is."""
    write(tmp_path, kind, seed=2)
    model, weights = load(kind)(tmp_path)
    rng = np.random.default_rng(0)
    ids, T = rng.integers(0, 15, 4), 9
    padded, mask = rng.integers(15, 30, (3, T)), np.zeros((3, T), dtype=bool)
    for row, begin in enumerate((0, 3, 5)):
        padded[row, begin : begin + 4] = ids
        mask[row, begin : begin + 4] = True
    data = al.Sequences(ids=padded, mask=mask, segments=np.zeros((3, T), int) if kind == "bert" else None, y=[0, 0, 0])
    oracle = Oracle(kind, config_of(kind), tensors_of(kind, 2)).features(ids)
    np.testing.assert_allclose(model.hidden(data, weights), [oracle] * 3, rtol=0, atol=1e-11)
    slopes, scales = model.gradient(data, weights)
    assert all(np.isfinite(slope).all() for slope in slopes.values())
    assert np.isfinite(list(scales.values())).all()
    assert not slopes["tokens"][15:].any()
    assert slopes["tokens"][ids].any()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", {"active": 1}),
        ("roberta", {"pool": "mean"}),
        ("distilbert", {"classes": None}),
        ("gpt2", {}),
        pytest.param("gpt2", {"pool": "mean", "frozen": ("embeddings", 0)}, marks=pytest.mark.slow),
    ],
)
def test_gradients_are_those_of_finite_differences(kind, options, tmp_path):
    write(tmp_path, kind, seed=1)
    model, weights = load(kind)(tmp_path, **options)
    weights = {name: np.asarray(array, dtype=np.float64) for name, array in weights.items()}
    loss = {"loss": "half_mean"} if model.classes is None else {}
    data, _ = example_texts(kind, LENGTHS, seed=3)
    slopes, scales = model.gradient(data, weights, **loss)
    rng = np.random.default_rng(0)
    for name in weights:
        along = rng.standard_normal(weights[name].shape)
        step = 1e-5
        ahead = model.loss(data, weights | {name: weights[name] + step * along}, **loss)
        behind = model.loss(data, weights | {name: weights[name] - step * along}, **loss)
        slope = float(np.sum(slopes[name] * along) * np.exp(scales[name]))
        assert slope == pytest.approx((ahead - behind) / (2 * step), rel=1e-5, abs=1e-9), name


SLOW_PARTS = [pytest.param(parts, marks=pytest.mark.slow) for parts in (("body",), (1, "pooler"), ("head",))]


@pytest.mark.parametrize("parts", [("embeddings", 0), *SLOW_PARTS])
def test_frozen_parts_compute_the_same_and_are_not_trained(parts, tmp_path):
    write(tmp_path, "bert", seed=5)
    whole, every = load("bert")(tmp_path)
    model, weights = load("bert")(tmp_path, frozen=parts)
    data, _ = example_texts("bert", LENGTHS, seed=3)
    np.testing.assert_allclose(model.outputs(data, weights), whole.outputs(data, every), rtol=0, atol=1e-14)
    fixed = set(every) - set(weights)
    assert fixed == {name for part in parts for name in whole._names_of(part)}
    free, log_free = whole.gradient(data, every)
    slopes, log_slopes = model.gradient(data, weights)
    assert set(slopes) == set(weights)
    for name, slope in slopes.items():
        wanted = free[name] * np.exp(log_free[name])
        np.testing.assert_allclose(slope * np.exp(log_slopes[name]), wanted, rtol=0, atol=1e-12)
    run = al.descend(data, al.adam(0.01), model=model, init=weights, batch=3, steps=3, record=None, precision="float32")
    assert set(run.weights) == set(weights)
    assert len(run.rule_state) < 2 * len(every)  # no moments of what is fixed
    after = model.whole(run.weights)
    for name in fixed:
        np.testing.assert_array_equal(after[name], every[name])
    assert all((run.weights[name] != weights[name]).any() for name in ("layer1_Q", "head_W") if name in weights)


def test_a_frozen_body_is_a_setting_known_by_its_content(tmp_path):
    write(tmp_path, "bert", seed=5)
    first, _ = load("bert")(tmp_path, frozen=("body",))
    again, _ = load("bert")(tmp_path, frozen=("body",))
    write(tmp_path / "other", "bert", seed=6)
    other, weights = load("bert")(tmp_path / "other", frozen=("body",))
    assert first == again
    assert hash(first) == hash(again)
    assert first != other
    assert first.compiled_as() == other.compiled_as()
    data, _ = example_texts("bert", LENGTHS)
    configs = [al.train.run_config(data, al.gd(0.1), model=one, init=weights) for one in (first, again, other)]
    assert configs[0] == configs[1] != configs[2]


def test_everything_frozen_and_parts_that_are_not_there_are_refused(tmp_path):
    write(tmp_path, "gpt2")
    model, weights = load("gpt2")(tmp_path)
    with pytest.raises(al.InputError, match="nothing to train"):
        model.freeze(weights, "body", "head")
    for part in ("tail", 2, -1, 0.5, True):
        with pytest.raises(al.InputError, match="`parts`"):
            model.freeze(weights, part)
    with pytest.raises(al.InputError, match="layer0_Q"):
        model.freeze({name: w for name, w in weights.items() if name != "layer0_Q"}, 0)
    with pytest.raises(al.InputError, match="shape"):
        model.freeze(weights | {"layer0_Q": np.ones((2, 2))}, 0)
    again, fewer = model.freeze(weights, 0)
    twice, fewest = again.freeze(fewer, 1)
    assert not {name for name in fewest if name.startswith("layer1_")}
    assert {name for name in fewest if name.startswith("layer0_")}  # what is frozen is what is named last
    assert set(twice.whole(fewest)) == set(weights)


@pytest.mark.parametrize("kind", ["bert", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_dropout_draws_in_training_alone(kind, tmp_path):
    write(tmp_path, kind)
    model, weights = load(kind)(tmp_path, dropout=0.5)
    plain, _ = load(kind)(tmp_path)
    data, _ = example_texts(kind, LENGTHS, seed=1)
    np.testing.assert_array_equal(model.outputs(data, weights), plain.outputs(data, weights))
    how = {"init": weights, "batch": 3, "steps": 2, "record": None}
    runs = []
    for one, seed in ((model, 0), (model, 0), (model, 1), (plain, 0)):
        runs.append(al.descend(data, al.gd(0.1), model=one, seed=seed, **how).weights["head_W"])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).any()
    assert (runs[0] != runs[3]).any()


def test_dropout_in_the_head_is_right_on_average(tmp_path):
    write(tmp_path, "distilbert")
    model, _ = load("distilbert")(tmp_path, dropout=0.25)
    features = jax.numpy.ones((4000, 8))
    dropped = np.stack([model._dropped(features, jax.random.key(seed), 3) for seed in range(2)])
    assert set(np.unique(dropped.round(6))) == {0.0, np.float32(4 / 3).round(6)}
    assert abs(dropped.mean() - 1) < 4 * np.sqrt((1 / 3) / dropped.size)
    assert (dropped[0] != dropped[1]).any()


@pytest.mark.slow
def test_random_models_start_small_and_learn_made_up_text():
    texts = al.data.made_up_texts(200, seed=0)
    tokenizer = al.data.Tokenizer.of_texts(texts)
    data = texts.encode(tokenizer, length=12)
    size = {"vocabulary": tokenizer.vocabulary, "dim": 16, "depth": 2, "heads": 2, "mlp": 32, "positions": 12}
    for model in (al.models.Bert(classes=2, **size), al.models.Gpt2(classes=2, **size)):
        weights = model.initial(data, seed=0)
        assert abs(weights["layer0_Q"].std() - 0.02) < 0.002
        assert (weights["layer0_gain"] == 1).all()
        assert not weights["head_b"].any()
        run = al.descend(
            data, al.adam(0.01), model=model, batch=25, epochs=10, record=[0, 80], precision="float32", seed=0
        )
        assert run.metrics["accuracy"][-1] > 0.95


@pytest.mark.slow
def test_networks_trained_in_place_leave_snapshots_alone_and_can_be_resumed():
    texts = al.data.made_up_texts(60, seed=0)
    tokenizer = al.data.Tokenizer.of_texts(texts)
    data = texts.encode(tokenizer, length=10)
    size = {"vocabulary": tokenizer.vocabulary, "dim": 8, "depth": 1, "heads": 2, "mlp": 8, "positions": 10}
    how = {"model": al.models.Bert(classes=2, dropout=0.1, **size), "batch": 20, "precision": "float32"}
    snapshots = []

    def take(progress):
        snapshot = progress.snapshot()
        snapshots.append((snapshot, {name: w.copy() for name, w in snapshot.weights.items()}))

    whole = al.descend(data, al.adam(0.01), steps=9, on_step=take, record=[0, 3, 9], **how)
    snapshot, weights = snapshots[1]
    again = al.descend(data, al.adam(0.01), steps=9, resume=snapshot, record=[0, 3, 9], **how)
    both = al.descend(data.repeated(2), al.adam(0.01), steps=9, record=[0, 3, 9], **how)
    for name, weight in whole.weights.items():
        np.testing.assert_array_equal(snapshot.weights[name], weights[name])
        np.testing.assert_array_equal(again.weights[name], weight)
        np.testing.assert_array_equal(both.weights[name][0], weight)


def test_pairs_are_told_apart_by_their_segments(tmp_path):
    write(tmp_path, "bert", seed=1)
    model, weights = load("bert")(tmp_path)
    ids = np.array([[1, 2, 3, 4]])
    plain = al.Sequences(ids=ids, y=[0])
    zeros = al.Sequences(ids=ids, segments=np.zeros_like(ids), y=[0])
    pair = al.Sequences(ids=ids, segments=[[0, 0, 1, 1]], y=[0])
    np.testing.assert_array_equal(model.outputs(plain, weights), model.outputs(zeros, weights))
    assert (model.outputs(plain, weights) != model.outputs(pair, weights)).any()


def test_trials_of_a_batch_are_as_each_alone(tmp_path):
    write(tmp_path, "bert", seed=1)
    model, weights = load("bert")(tmp_path, frozen=("embeddings", 0), active=1)
    data, _ = example_texts("bert", LENGTHS, seed=1)
    many = data.repeated(2)
    both = model.outputs(many, weights)
    for one in both:
        np.testing.assert_allclose(one, model.outputs(data, weights), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (al.Sequences(x=np.ones((2, 3, 4)), y=[0, 1]), "with ids"),
        (np.ones((2, 3)), "al.Sequences"),
        (al.Sequences(ids=[[1, 30]], y=[0]), "token 30"),
        (al.Sequences(ids=[[1] * 17], y=[0]), "17 tokens"),
        (al.Sequences(ids=[[1, 2]], y=[0], info={"vocabulary": 31}), "do not match"),
        (al.Sequences(ids=[[1, 2]], segments=[[0, 2]], y=[0]), "segment"),
    ],
)
def test_data_that_the_model_cannot_read_are_refused(data, words, tmp_path):
    write(tmp_path, "bert")
    model, weights = load("bert")(tmp_path)
    with pytest.raises(al.InputError, match=words):
        model.outputs(data, weights)


def test_a_tokenizer_far_smaller_than_the_table_does_not_match():
    data = al.Sequences(ids=[[1, 2]], y=[0], info={"vocabulary": 100})
    model = al.models.Bert(classes=2, vocabulary=1000, dim=4, heads=1, mlp=4, depth=1)
    with pytest.raises(al.InputError, match="100 tokens; the weights are of 1000"):
        model.initial(data)


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": 1},
        {"vocabulary": 0},
        {"heads": 3},
        {"pool": "last"},
        {"dropout": 1.0},
        {"activation": "swish"},
        {"eps": 0.0},
        {"segments": -1},
        {"pooler": 1},
        {"fixed": {}},
        {"depth": 0},
    ],
)
def test_settings_that_make_no_model_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(al.InputError, match=f"`{name}`"):
        al.models.Bert(**({"classes": 2, "vocabulary": 10} | wrong))
