"""`descend(..., test=)`: what is recorded of other data is what the model says of them, for every model."""

from __future__ import annotations

import numpy as np
import pytest

import attnlab as al
from attnlab.errors import InputError
from attnlab.models import Attention, Encoder, FullyConnected, MultiHead
from sampling import first_few

TRAIN, TEST = al.data.sphere(n=5, T=3, d=4, seed=0), al.data.sphere(n=3, T=3, d=4, seed=1)
TRIALS, TEST_TRIALS = (al.data.sphere(n=n, T=3, d=4, seed=seed, trials=2) for n, seed in ((5, 0), (3, 1)))
NUMBERS, OTHERS = (al.data.gaussian_sequences(n=n, T=3, d=4, seed=n) for n in (5, 3))


class Own(al.Model):
    def shapes(self, data):
        return {"W": al.weights((data.d, data.d))}

    def output(self, weights, example):
        assert example.v is not None
        return example.v @ (al.models.softmax(example.x @ weights["W"] @ example.z) @ example.x)


MODELS = {
    "W": Attention(engine="direct"),
    "coordinates": Attention(engine="kernel"),
    "KQ": Attention("KQ"),
    "trained head": Attention(train_head=True),
    "relu head": Attention(head="relu-sum"),
    "heads": MultiHead(2),
    "own": Own(),
    "encoder": Encoder(3),
    "dense": FullyConnected(3),
}
GAUSSIAN = {"init": "gaussian", "init_scale": 0.5}


def data_of(model):
    return (NUMBERS, OTHERS) if isinstance(model, Encoder | FullyConnected) else (TRAIN, TEST)


BY_BATCHES = [pytest.param(name, 2, marks=[] if name == "coordinates" else pytest.mark.slow) for name in MODELS]


@pytest.mark.parametrize(("name", "batch"), [*first_few([(name, None) for name in MODELS], 3), *BY_BATCHES])
def test_records_are_what_the_model_says_of_the_test_data(name, batch):
    model = MODELS[name]
    train, test = data_of(model)
    start = {} if isinstance(model, Encoder | FullyConnected) else GAUSSIAN
    options = {"model": model, "steps": 8, "record": [0, 8], "batch": batch, **start}
    run = al.descend(train, al.gd(0.1), test=test, **options)
    assert run.metrics["test_loss"][-1] == pytest.approx(float(model.loss(test, run.weights)), rel=1e-12)
    assert run.metrics["test_loss"][0] == pytest.approx(float(model.loss(test, run.initial)), rel=1e-12)
    assert run.metrics["test_loss"][-1] != pytest.approx(run.metrics["loss"][-1], rel=1e-6)
    if model.usual_loss == "logistic":
        share = float(np.mean(test.y * model.outputs(test, run.weights) > 0))
        found = run.metrics.get("test_accuracy", 1.0 - run.metrics.get("test_error", np.nan))
        assert found[-1] == pytest.approx(share, abs=1e-15)
    if name not in ("coordinates", "heads"):
        return
    # Being watched changes nothing.
    alone = al.descend(train, al.gd(0.1), **options)
    for key, value in alone.metrics.items():
        np.testing.assert_allclose(run.metrics[key], value, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("model", [Attention(engine="kernel"), Own()], ids=["layer", "own"])
def test_trials_have_test_data_of_their_own(model):
    run = al.descend(TRIALS, al.ngd(0.1), model=model, test=TEST_TRIALS, steps=8, record=[8])
    np.testing.assert_allclose(run.metrics["test_loss"][:, -1], model.loss(TEST_TRIALS, run.weights), rtol=1e-12)
    with pytest.raises(InputError, match="wanted data with the T, d and trials"):
        al.descend(TRIALS, al.ngd(0.1), model=model, test=TEST, steps=2)


@pytest.mark.parametrize(("train_power", "test_power"), [(0, 600), (600, 0), (-400, 500)])
def test_data_of_any_scale_beside_data_of_any_other(train_power, test_power):
    """Powers of two are taken out of each by itself."""

    def scaled(tokens, power):
        return al.Tokens(x=np.ldexp(tokens.x, power), z=tokens.z, y=tokens.y, v=np.ldexp(tokens.v, -power))

    train, test = scaled(TRAIN, train_power), scaled(TEST, test_power)
    W = np.ldexp(np.random.default_rng(0).standard_normal((4, 4)), -test_power)
    run = al.descend(train, al.ngd(0.1), init=W, test=test, steps=0, record=[0], engine="direct")
    assert run.metrics["test_loss"][0] == pytest.approx(float(al.models.loss(test, W)), rel=1e-12)
    plain = al.models.loss(TEST, np.ldexp(W, test_power))
    assert run.metrics["test_loss"][0] == pytest.approx(float(plain), rel=1e-12)


def test_queries_and_masks_of_the_test_data():
    rng = np.random.default_rng(0)
    mask = np.array([[[True, False, True], [True, True, False]]] * 3)
    test = al.Tokens(x=TEST.x, z=rng.standard_normal((3, 2, 4)), y=np.ones((3, 2)), v=TEST.v, mask=mask)
    run = al.descend(TRAIN, al.ngd(0.1), test=test, steps=4, record=[4])
    assert run.metrics["test_loss"][-1] == pytest.approx(float(al.models.loss(test, run.weights)), rel=1e-12)
    assert run.metrics["test_accuracy"][-1] == np.mean(Attention().outputs(test, run.weights) > 0)


@pytest.mark.parametrize("loss", ["exponential", "half_sum", "mse_mean"])
def test_losses_are_averaged_over_the_test_data(loss):
    run = al.descend(TRAIN, al.gd(0.01), loss=loss, test=TEST, steps=4, record=[4])
    assert run.metrics["test_loss"][-1] == pytest.approx(float(al.models.loss(TEST, run.weights, loss=loss)), rel=1e-12)


def test_what_does_not_fit_is_said_of_test():
    with pytest.raises(InputError, match=r"`test` is .*wanted data with the T, d"):
        al.descend(TRAIN, al.gd(0.1), test=al.data.sphere(n=3, T=3, d=5, seed=0), steps=2)
    with pytest.raises(InputError, match="`test`"):
        al.descend(TRAIN, al.gd(0.1), test=OTHERS, steps=2)
    numbers = {"test_loss": lambda view: 0.0}
    with pytest.raises(InputError, match="'test_loss', which is recorded already"):
        al.descend(TRAIN, al.gd(0.1), test=TEST, metrics=numbers, steps=2)
