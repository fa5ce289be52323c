"""Runs by batches: which examples a step sees, and what such a run promises."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import attnlab as al
from attnlab.train.batches import Batches, Feed, order_of
from attnlab.train.trajectory import Status
from sampling import first_few

pytestmark = pytest.mark.usefixtures("compiled_quickly")


class TwoLayers(al.Model):
    """A small network with three classes, or one number."""

    classes: int = 3

    def shapes(self, data):
        return {"A": al.weights((5, data.d)), "B": al.weights((self.classes, 5))}

    def output(self, weights, example):
        out = jnp.asarray(weights["B"]) @ jnp.tanh(jnp.mean(example.x @ weights["A"].T, axis=0))
        return out if self.classes > 1 else out[0]


class Noisy(TwoLayers):
    """The same with inputs left out at random in training."""

    @property
    def draws(self):
        return True

    def output(self, weights, example):
        x = example.x
        if example.key is not None:
            x = jnp.where(jax.random.bernoulli(example.key, 0.5, x.shape), 2 * x, 0.0)
        return super().output(weights, example._replace(x=x))


def sequences(n=23, seed=0, classes=3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n) if classes > 1 else rng.standard_normal(n)
    return al.Sequences(x=rng.standard_normal((n, 3, 4)), y=y)


def orders(n, batch, seed, epochs, trial=0):
    """The examples of every epoch, as the program draws them."""
    batches = Batches(n, batch)
    key = Feed.start(batches, seed, trial + 1).key[trial]
    with jax.enable_x64(True):
        return [np.asarray(order_of(batches, jnp.asarray(key), jnp.asarray(epoch))) for epoch in range(epochs)]


RULES = {
    "gd": al.gd(0.2),
    "ngd": al.ngd(0.05, cap=0.3, norms="total"),
    "polyak": al.polyak(cap=0.2, floor=0.0),
    "momentum": al.heavy_ball(0.05),
    "adam": al.adam(0.01),
    "adamw": al.adam(0.01, decay=0.1),
    "optax": optax.sgd(0.05, momentum=0.9, nesterov=True),
    "optax_with_value": optax.polyak_sgd(max_learning_rate=0.1),
}


@pytest.mark.parametrize("batch", [5, 23, 1])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_run_is_plain_steps_on_the_examples_of_every_epoch(batch, seed):
    """Against a loop in Python, with the gradient of the model on the examples of each batch."""
    data, model = sequences(seed=seed), TwoLayers()
    run = al.descend(data, al.gd(0.2), model=model, loss="cross_entropy", batch=batch, epochs=2, seed=seed, record=[0])
    weights = dict(run.initial)
    for order in orders(data.n, batch, seed, epochs=2):
        for begin in range(0, data.n, batch):
            part = data.rows(order[begin : begin + batch])
            mantissa, log_scale = model.gradient(part, weights, loss="cross_entropy")
            weights = {name: w - 0.2 * mantissa[name] * np.exp(log_scale[name]) for name, w in weights.items()}
    assert run.last_step == 2 * -(-data.n // batch)
    for name, w in weights.items():
        np.testing.assert_allclose(run.weights[name], w, rtol=1e-10, atol=1e-12)


def test_every_epoch_sees_every_example_once_in_an_order_of_its_own():
    first, second, third = orders(50, 7, seed=3, epochs=3)
    for order in (first, second, third):
        assert sorted(order) == list(range(50))
    assert (first != second).any()
    assert (second != third).any()
    assert (first != orders(50, 7, seed=3, epochs=1, trial=1)[0]).any()
    assert (first != orders(50, 7, seed=4, epochs=1)[0]).any()


@pytest.mark.parametrize("name", RULES)
def test_a_run_resumed_in_the_middle_of_an_epoch_is_one_run_to_the_last_bit(name):
    data = sequences()
    settings = {"model": TwoLayers(), "loss": "cross_entropy", "batch": 5, "test": sequences(9, seed=1)}
    whole = al.descend(data, RULES[name], steps=17, record=[4, 7, 17], **settings)
    part = al.descend(data, RULES[name], steps=7, record=[4, 7], **settings)
    resumed = al.descend(data, RULES[name], steps=17, record=[4, 7, 17], resume=part, **settings)
    for key, w in whole.weights.items():
        np.testing.assert_array_equal(resumed.weights[key], w)
    for key, values in whole.metrics.items():
        np.testing.assert_array_equal(resumed.metrics[key], values)


def test_a_saved_run_is_resumed_to_the_last_bit(tmp_path):
    data = sequences()
    settings = {"model": Noisy(), "loss": "cross_entropy", "batch": 6, "precision": "float32"}
    whole = al.descend(data, al.adam(0.01), epochs=3, **settings)
    path = al.descend(data, al.adam(0.01), steps=6, **settings).save(tmp_path / "part.npz")
    resumed = al.descend(data, al.adam(0.01), epochs=3, resume=al.Trajectory.load(path), **settings)
    np.testing.assert_array_equal(resumed.weights["A"], whole.weights["A"])


@pytest.mark.parametrize("model", [TwoLayers(), Noisy()])
def test_numbers_do_not_depend_on_what_is_recorded(model):
    data = sequences()
    runs = [
        al.descend(data, al.adam(0.01), model=model, loss="cross_entropy", batch=5, epochs=3, record=record)
        for record in (None, "epochs", [1, 2, 3, 8], 20)
    ]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.weights["A"], runs[0].weights["A"])
    assert runs[1].steps.tolist() == [0, 5, 10, 15]


def test_a_batch_of_all_examples_takes_the_steps_of_a_run_without_batches():
    data, settings = sequences(), {"model": TwoLayers(), "loss": "cross_entropy", "steps": 40}
    by_batches = al.descend(data, al.gd(0.3), batch=data.n, **settings)
    whole = al.descend(data, al.gd(0.3), **settings)
    np.testing.assert_allclose(by_batches.weights["A"], whole.weights["A"], rtol=1e-11)
    np.testing.assert_allclose(by_batches.metrics["loss"], whole.metrics["loss"], rtol=1e-11)
    np.testing.assert_allclose(by_batches.metrics["accuracy"], whole.metrics["accuracy"])


@pytest.mark.parametrize("loss", ["cross_entropy", "half_sum", "mse_mean"])
@pytest.mark.parametrize("portion", first_few([4, 100, 1, 5], 1))
def test_gradients_added_up_over_portions_are_those_of_the_whole_batch(loss, portion):
    classes = 3 if loss == "cross_entropy" else 1
    data, model = sequences(classes=classes), TwoLayers(classes)
    settings = {"model": model, "loss": loss, "batch": 10, "epochs": 2}
    whole = al.descend(data, al.gd(0.01), **settings)
    added = al.descend(data, al.gd(0.01), portion=portion, **settings)
    np.testing.assert_allclose(added.weights["A"], whole.weights["A"], rtol=1e-11)
    np.testing.assert_allclose(added.metrics["loss"], whole.metrics["loss"], rtol=1e-11)


def test_the_first_trial_is_the_same_alone_and_among_others():
    data = sequences()
    for settings in ({}, {"precision": "float32"}):
        alone = al.descend(data, al.adam(0.01), model=TwoLayers(), loss="cross_entropy", batch=5, epochs=2, **settings)
        among = al.descend(
            data.repeated(3), al.adam(0.01), model=TwoLayers(), loss="cross_entropy", batch=5, epochs=2, **settings
        )
        np.testing.assert_array_equal(among.weights["A"][0], alone.weights["A"])
        assert (among.weights["A"][1] != among.weights["A"][0]).any()


@pytest.mark.slow
def test_attention_and_several_heads_take_batches_too():
    """Against a loop in Python over tokens of the batch."""
    tokens = al.data.sphere(n=7, T=4, d=5, seed=1)
    for model, options in ((al.models.Attention(), {}), (al.models.MultiHead(2), {"init": "gaussian"})):
        run = al.descend(tokens, al.gd(0.5), model=model, batch=3, epochs=2, record=[0, 6], **options)
        weights = dict(run.initial)
        for order in orders(7, 3, 0, epochs=2):
            for begin in (0, 3, 6):
                some = order[begin : begin + 3]
                part = al.Tokens(x=tokens.x[some], z=tokens.z[some], y=tokens.y[some], v=tokens.v)
                mantissa, scale = model.gradient(part, weights)
                weights = {name: w - 0.5 * mantissa[name] * np.exp(scale[name]) for name, w in weights.items()}
        np.testing.assert_allclose(run.weights["W"], weights["W"], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("kind", ["ngd", "polyak"])
def test_the_share_of_capped_steps_is_counted(kind):
    """Against norms and losses of the batches, found again from a run of every length."""
    data, model = sequences(n=12), TwoLayers()
    settings = {"model": model, "loss": "cross_entropy", "batch": 4}
    rule = al.ngd(0.1, cap=0.17, norms="total") if kind == "ngd" else al.polyak(cap=2.5, floor=0.0)
    capped = 0
    order = np.concatenate(orders(12, 4, 0, epochs=4))
    for step in range(12):
        weights = al.descend(data, rule, steps=step, record=None, **settings).weights
        part = data.rows(order[4 * step : 4 * step + 4])
        mantissa, scale = model.gradient(part, weights, loss="cross_entropy")
        length = np.sqrt(sum(np.sum((m * np.exp(scale[name])) ** 2) for name, m in mantissa.items()))
        loss = model.loss(part, weights, loss="cross_entropy")
        capped += 0.1 / length > 0.17 if kind == "ngd" else 0.5 * loss / length**2 > 2.5
    run = al.descend(data, rule, steps=12, record=[12], **settings)
    assert 0 < capped < 12  # both happen
    assert run.metrics["capped_share"][-1] == pytest.approx(capped / 12)


def test_adam_with_decay_is_optax_adamw():
    data = sequences()
    settings = {"model": TwoLayers(), "loss": "cross_entropy", "batch": 5, "epochs": 3}
    ours = al.descend(data, al.adam(0.01, decay=0.3), **settings)
    theirs = al.descend(data, optax.adamw(0.01, weight_decay=0.3), **settings)
    np.testing.assert_allclose(ours.weights["A"], theirs.weights["A"], rtol=1e-12)


def test_the_last_step_is_recorded():
    data, model = sequences(n=12), TwoLayers()
    settings = {"model": model, "loss": "cross_entropy", "batch": 4}
    before = al.descend(data, al.gd(0.2), steps=5, **settings)
    after = al.descend(data, al.gd(0.2), steps=6, record=[0, 6], **settings)
    moved = np.sqrt(sum(np.sum((after.weights[name] - w) ** 2) for name, w in before.weights.items()))
    assert after.metrics["last_step_length"].tolist() == pytest.approx([0.0, moved], rel=1e-9)
    assert after.metrics["last_gradient_norm"].tolist() == pytest.approx([0.0, moved / 0.2], rel=1e-9)


def test_a_step_out_of_the_finite_numbers_is_not_taken():
    data = sequences(classes=1)
    run = al.descend(data, al.gd(1e8), model=TwoLayers(1), loss="half_sum", batch=4, epochs=400)
    assert run.status is Status.NOT_FINITE
    assert run.diverged
    assert all(np.isfinite(w).all() for w in run.weights.values())
    again = al.descend(data, al.gd(1e8), model=TwoLayers(1), loss="half_sum", batch=4, steps=int(run.lost_at))
    assert again.status is Status.FINISHED
    np.testing.assert_array_equal(again.weights["B"], run.weights["B"])
    assert any(str(run.lost_at) in remark for remark in run.remarks)


def test_float32_follows_float64_for_a_while():
    data = sequences()
    settings = {"model": TwoLayers(), "loss": "cross_entropy", "batch": 5, "epochs": 2}
    double = al.descend(data, al.adam(0.01), **settings)
    single = al.descend(data, al.adam(0.01), precision="float32", **settings)
    np.testing.assert_allclose(single.weights["A"], double.weights["A"], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(single.weights["A"], single.weights["A"].astype(np.float32))
    assert (single.weights["A"] != double.weights["A"]).any()


@pytest.mark.parametrize("name", first_few(RULES, 2))
def test_float32_keeps_its_type_without_batches_too(name):
    settings = {"model": TwoLayers(), "loss": "cross_entropy", "steps": 30}
    single = al.descend(sequences(), RULES[name], precision="float32", **settings)
    double = al.descend(sequences(), RULES[name], **settings)
    np.testing.assert_array_equal(single.weights["A"], single.weights["A"].astype(np.float32))
    np.testing.assert_allclose(single.weights["A"], double.weights["A"], rtol=2e-2, atol=2e-3)


def test_what_a_model_draws_differs_from_step_to_step_and_is_left_out_of_records():
    data, model = sequences(), Noisy()
    run = al.descend(data, al.gd(0.1), model=model, loss="cross_entropy", batch=5, epochs=2)
    still = al.descend(data, al.gd(0.1), model=TwoLayers(), loss="cross_entropy", batch=5, epochs=2)
    assert (run.weights["A"] != still.weights["A"]).any()
    assert run.metrics["loss"][-1] == pytest.approx(float(model.loss(data, run.weights, loss="cross_entropy")))
    # One example at every step: what is left out is not the same twice.
    one = al.Sequences(x=np.ones((1, 1, 40)), y=[0])
    small = al.descend(one, al.gd(0.1), model=model, loss="cross_entropy", batch=1, steps=2, record=None)
    first = al.descend(one, al.gd(0.1), model=model, loss="cross_entropy", batch=1, steps=1, record=None)
    touched = [
        (a - b) != 0 for a, b in ((small.weights["A"], first.weights["A"]), (first.weights["A"], small.initial["A"]))
    ]
    assert (touched[0] != touched[1]).any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 24}, "`batch` is 24; there are 23"),
        ({"batch": 0}, "`batch` is 0"),
        ({"batch": 5, "epochs": 2, "steps": 3}, "wanted one of them"),
        ({"epochs": 2}, "`epochs` is for runs by batches"),
        ({"portion": 2}, "`portion` is for runs by batches"),
        ({"record": "epochs"}, "`record` is 'epochs'"),
        ({"batch": 5, "precision": "float16"}, "`precision` is 'float16'"),
        ({"batch": 5, "epochs": 10**15}, "`epochs`"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(options, words):
    with pytest.raises(al.InputError, match=words):
        al.descend(sequences(), al.gd(0.1), model=TwoLayers(), loss="cross_entropy", **options)


def test_what_a_layer_cannot_do_is_refused():
    tokens = al.data.sphere(n=4, T=3, d=3, seed=0)
    with pytest.raises(al.InputError, match="trained in float64"):
        al.descend(tokens, al.gd(0.1), precision="float32")
    with pytest.raises(al.InputError, match="`portion` is not for"):
        al.descend(tokens, al.gd(0.1), batch=2, portion=1)
    with pytest.raises(al.InputError, match="ordinary scale"):
        al.descend(al.Tokens(x=1e200 * tokens.x, z=tokens.z, y=tokens.y, v=tokens.v), al.ngd(0.1), batch=2)
    with pytest.raises(al.InputError, match="which needs `batch`"):
        al.descend(sequences(), al.gd(0.1), model=Noisy(), loss="cross_entropy")


def test_a_run_with_other_batches_is_not_resumed():
    data, settings = sequences(), {"model": TwoLayers(), "loss": "cross_entropy"}
    part = al.descend(data, al.gd(0.1), batch=5, steps=3, **settings)
    for other in ({"batch": 6}, {}, {"batch": 5, "precision": "float32"}):
        with pytest.raises(al.InputError, match="another"):
            al.descend(data, al.gd(0.1), steps=6, resume=part, **settings, **other)


def test_a_store_knows_batches_apart(tmp_path):
    store, data = al.Store(tmp_path), sequences()
    settings = {"model": TwoLayers(), "loss": "cross_entropy", "steps": 6}
    runs = [store.descend(data, al.gd(0.1), **settings, **some) for some in ({}, {"batch": 5}, {"batch": 6})]
    assert len({run.weights["A"].tobytes() for run in runs}) == 3
    again = store.descend(data, al.gd(0.1), **settings, batch=5)
    np.testing.assert_array_equal(again.weights["A"], runs[1].weights["A"])


def test_masks_and_ids_reach_the_model_with_their_batch():
    class Bag(al.Model):
        words: int = 6

        def shapes(self, data):
            return {"E": al.weights((self.words, 2))}

        def output(self, weights, example):
            rows = weights["E"][example.ids]
            return jnp.asarray(example.mask).astype(float) @ rows

    rng = np.random.default_rng(0)
    ids, lengths, y = rng.integers(0, 6, (9, 4)), rng.integers(1, 5, 9), rng.integers(0, 2, 9)
    data = al.Sequences(ids=ids, lengths=lengths, y=y)
    padded = np.where(np.asarray(data.mask), ids, 3)  # what only fills up may be anything
    other = al.Sequences(ids=padded, lengths=lengths, y=y)
    settings = {"model": Bag(), "loss": "cross_entropy", "batch": 4, "epochs": 5}
    run, same = al.descend(data, al.gd(0.1), **settings), al.descend(other, al.gd(0.1), **settings)
    np.testing.assert_array_equal(run.weights["E"], same.weights["E"])


def test_metrics_are_taken_where_they_are_recorded_and_nowhere_else(monkeypatch):
    """A run looks at the clock between its records; evaluating all examples there would take longer than its steps."""
    monkeypatch.setattr("attnlab.train.loop.SECONDS_BY_BATCHES", 0.0)
    taken = []

    def counted(view):
        jax.debug.callback(lambda value: taken.append(float(value)), view.params["A"][0, 0])
        return view.params["A"][0, 0]

    settings = {"model": TwoLayers(), "loss": "cross_entropy", "batch": 5, "metrics": {"counted": counted}}
    run = al.descend(sequences(), al.gd(0.1), steps=9, record=[0, 6, 9], **settings)
    jax.effects_barrier()
    assert run.steps.tolist() == [0, 6, 9]
    assert len(taken) == 3
