"""`descend` on networks: steps by hand, parameterizations, records, continuation, errors."""

import jax
import numpy as np
import optax
import pytest

import attnlab as al
from attnlab.models import Encoder, FullyConnected
from attnlab.models.encoder_kernel import kernel_blocks, kernel_parts
from attnlab.theory.tangent import ntk
from sampling import first_few

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def by_hand(model, data, weights, step, steps, loss, factors=None):
    """Gradient descent with `model.gradient`, each matrix with its own factor of the step."""
    weights = dict(weights)
    for _ in range(steps):
        mantissa, log_scale = model.gradient(data, weights, loss=loss)
        for k in weights:
            weights[k] = weights[k] - step * (factors or {}).get(k, 1.0) * mantissa[k] * np.exp(log_scale[k])
    return weights


@pytest.fixture(scope="module")
def data():
    return al.data.gaussian_sequences(6, 3, 5, seed=1)


@pytest.mark.parametrize(
    "model", [Encoder(9), Encoder(9, init="ntk", scaling="linear", pool="sum"), FullyConnected(7, layers=3)], ids=str
)
@pytest.mark.parametrize("loss", first_few(["half_sum", "mse_mean", "half_mean"], 1))
def test_steps_are_those_of_gradient_descent(model, loss, data):
    run = al.descend(data, al.gd(0.05), model=model, loss=loss, steps=20, seed=3)
    want = by_hand(model, data, model.initial(data, 3), 0.05, 20, loss)
    for k, w in want.items():
        np.testing.assert_allclose(run.weights[k], w, rtol=1e-11, atol=1e-13)
    assert run.metrics["loss"][0] == pytest.approx(float(model.loss(data, model.initial(data, 3), loss=loss)))
    assert run.metrics["loss"][-1] == pytest.approx(float(model.loss(data, want, loss=loss)), rel=1e-10)


def test_a_step_on_the_mean_is_a_smaller_one_on_the_sum(data):
    mean = al.descend(data, al.gd(0.6), model=Encoder(9), loss="mse_mean", steps=30)
    half = al.descend(data, al.gd(0.6 * 2 / data.n), model=Encoder(9), loss="half_sum", steps=30)
    for k in mean.weights:
        np.testing.assert_allclose(mean.weights[k], half.weights[k], rtol=1e-10, atol=1e-13)


def test_ntk_parameterization_is_a_step_of_its_own_for_each_matrix(data):
    model, plain = Encoder(9, parameterization="ntk"), Encoder(9)
    run = al.descend(data, al.gd(0.4), model=model, steps=15, seed=2)
    factors = {"W_Q": 1 / 5, "W_K": 1 / 5, "W_V": 1 / 5, "w_O": 1 / 9}
    want = by_hand(plain, data, plain.initial(data, 2), 0.4, 15, "half_sum", factors)
    for k, w in want.items():
        np.testing.assert_allclose(run.weights[k], w, rtol=1e-11, atol=1e-13)
    first = al.descend(data, al.gd(0.4), model=model, steps=7, seed=2)
    rest = al.descend(data, al.gd(0.4), model=model, steps=15, seed=2, resume=first)
    for k in want:
        np.testing.assert_array_equal(rest.weights[k], run.weights[k])


@pytest.mark.parametrize(
    "rule", first_few([al.adam(0.01), al.polyak(), al.ngd(0.05), al.gd(0.1), al.heavy_ball(0.05)], 3), ids=str
)
def test_every_rule_lowers_the_loss_and_goes_on_bit_for_bit(rule, data, tmp_path):
    model = Encoder(16)
    whole = al.descend(data, rule, model=model, steps=60, record=[0, 25, 60])
    part = al.descend(data, rule, model=model, steps=25, record=[0, 25])
    kept = al.Trajectory.load(part.save(tmp_path / "part.npz"))
    rest = al.descend(data, rule, model=model, steps=60, record=[0, 25, 60], resume=kept)
    assert whole.metrics["loss"][-1] < 0.5 * whole.metrics["loss"][0]
    for k in whole.weights:
        np.testing.assert_array_equal(whole.weights[k], rest.weights[k])
    np.testing.assert_array_equal(whole.metrics["loss"], rest.metrics["loss"])


def test_any_optax_optimizer_drops_in(data):
    run = al.descend(data, optax.rmsprop(0.01), model=Encoder(16), steps=100)
    assert run.metrics["loss"][-1] < 0.1 * run.metrics["loss"][0]


def test_trials_are_single_runs():
    batch = al.data.gaussian_sequences(5, 2, 4, seed=0, trials=3)
    model = Encoder(8)
    runs = al.descend(batch, al.gd(0.1), model=model, steps=25, seed=5)
    for i in range(3):
        start = {k: w[i] for k, w in runs.initial.items()}
        alone = al.descend(batch[i], al.gd(0.1), model=model, steps=25, init=start)
        np.testing.assert_allclose(alone.weights["W_V"], runs.weights["W_V"][i], rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(alone.metrics["moved"], runs.metrics["moved"][i], rtol=1e-10, atol=1e-14)
    seeds = al.descend(batch[0].repeated(2), al.gd(0.1), model=model, steps=3, seed=5)
    assert not np.allclose(seeds.weights["W_V"][0], seeds.weights["W_V"][1])


def test_what_is_recorded(data):
    model = Encoder(12, residual="projected")
    run = al.descend(data, al.gd(0.2), model=model, steps=10, record=[0, 10], seed=4)
    trained = ("W_Q", "W_K", "W_V", "w_O")
    np.testing.assert_array_equal(run.weights["S"], run.initial["S"])
    away = {k: np.linalg.norm(run.weights[k] - run.initial[k]) for k in trained}
    for k in trained:
        assert run.metrics[f"moved_{k}"][-1] == pytest.approx(away[k], rel=1e-10)
    assert "moved_S" not in run.metrics
    assert run.metrics["moved"][-1] == pytest.approx(np.sqrt(sum(a**2 for a in away.values())), rel=1e-10)
    size = np.sqrt(sum(np.sum(run.weights[k] ** 2) for k in trained))
    begun = np.sqrt(sum(np.sum(run.initial[k] ** 2) for k in trained))
    assert run.metrics["norm"][-1] == pytest.approx(size, rel=1e-12)
    ahead = al.descend(data, al.gd(0.2), model=model, steps=11, record=None, seed=4)
    step = np.sqrt(sum(np.sum((ahead.weights[k] - run.weights[k]) ** 2) for k in trained))
    assert run.metrics["relative_step"][-1] == pytest.approx(step / begun, rel=1e-9)
    assert run.metrics["step_length"][-1] == pytest.approx(step, rel=1e-9)
    assert run.metrics["log_gradient_norm"][-1] == pytest.approx(np.log(step / 0.2), abs=1e-9)
    hidden = [model.hidden(data, w) for w in (run.initial, run.weights)]
    assert run.metrics["hidden_moved"][-1] == pytest.approx(np.linalg.norm(hidden[1] - hidden[0]), rel=1e-10)
    assert run.metrics["log_loss"][-1] == pytest.approx(np.log(run.metrics["loss"][-1]), abs=1e-12)
    assert run.selected.shape == (data.n, data.T)
    np.testing.assert_array_equal(run.selected, model.attention(data, run.weights).argmax(-1))
    assert "W_Q+W_V" in repr(run).replace("W_K+", "").replace("S+", "")
    with pytest.raises(AttributeError, match="there is no K"):
        run.W  # noqa: B018


def test_relative_step_under_ntk_parameterization_is_that_of_the_weights(data):
    model = Encoder(12, parameterization="ntk")
    runs = [al.descend(data, al.gd(0.3), model=model, steps=s, record=[s]) for s in (4, 5)]
    step = np.sqrt(sum(np.sum((runs[1].weights[k] - runs[0].weights[k]) ** 2) for k in runs[0].weights))
    begun = np.sqrt(sum(np.sum(w**2) for w in runs[0].initial.values()))
    assert runs[0].metrics["relative_step"][0] == pytest.approx(step / begun, rel=1e-9)


def test_a_start_at_zero_stays_there(data):
    model = Encoder(4)
    zero = {k: np.zeros_like(w) for k, w in model.initial(data).items()}
    run = al.descend(data, al.gd(0.1), model=model, init=zero, steps=3, record=[0, 3])
    assert all(not w.any() for w in run.weights.values())
    assert run.metrics["loss"][-1] == pytest.approx(0.5 * np.sum(data.y**2))
    assert np.isnan(run.metrics["relative_step"]).all()
    assert run.status.name == "FINISHED"


def test_test_loss_and_metrics_of_your_own(data):
    model, other = Encoder(8), al.data.gaussian_sequences(4, 3, 5, seed=9)

    def kernel(view):
        return sum(kernel_blocks(model, view.params, kernel_parts(model, view.params, view.x)).values())

    run = al.descend(data, al.gd(0.1), model=model, steps=6, record=[0, 6], test=other, metrics={"kernel": kernel})
    assert run.metrics["test_loss"][-1] == pytest.approx(float(model.loss(other, run.weights)), rel=1e-11)
    for i, weights in enumerate((run.initial, run.weights)):
        np.testing.assert_allclose(run.metrics["kernel"][i], ntk(data, model, weights), rtol=1e-10, atol=1e-13)


def test_a_step_that_is_too_large_is_told():
    data = al.data.gaussian_sequences(20, 3, 10, rows="raw")
    run = al.descend(data, al.gd(1.0), model=Encoder(500), steps=200)
    assert run.status.name == "NOT_FINITE"
    assert bool(run.diverged)


def test_classification_tokens_are_taken():
    tokens = al.data.sphere(5, 3, 4)
    run = al.descend(tokens, al.gd(0.2), model=Encoder(16), steps=300)
    assert run.metrics["loss"][-1] < 1e-2
    dense = al.descend(tokens, al.gd(0.2), model=FullyConnected(16), steps=10)
    assert dense.selected.shape == (5, 0)


def test_a_lone_run_is_kept_by_its_settings(tmp_path, data):
    store = al.Store(tmp_path)
    first = store.descend(data, al.gd(0.1), model=Encoder(6), steps=5)
    again = store.descend(data, al.gd(0.1), model=Encoder(6), steps=5)
    other = store.descend(data, al.gd(0.1), model=Encoder(6, tied=True), steps=5)
    np.testing.assert_array_equal(first.weights["W_V"], again.weights["W_V"])
    assert first.config != other.config


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"init": "zeros"}, "`init` is 'zeros'; a network starts from its own law"),
        ({"init": {"W_Q": np.ones((2, 2))}}, "`init` has ['W_Q']"),
        ({"loss": "logistic"}, "`loss` 'logistic' is of the margin y f with labels +1 and -1; `y` holds"),
        ({"targets": np.ones((5, 5))}, "`targets` is not for a network"),
        ({"track": np.ones(3)}, "`track` is not for a network"),
        ({"init_scale": 2.0}, "`init_scale` is not for a network"),
        ({"parameterization": "KQ"}, "`parameterization` is not for a `model`"),
        ({"test": al.data.gaussian_sequences(3, 3, 4)}, "wanted data with the T, d and trials"),
        ({"test": [1]}, "`test` is list"),
        ({"seed": -1}, "`seed` is -1"),
        ({"metrics": {"loss": lambda v: 0.0}}, "`metrics` names 'loss'"),
    ],
)
def test_what_is_refused(options, says, data):
    with pytest.raises(al.InputError) as caught:
        al.descend(data, al.gd(0.1), model=Encoder(4), steps=2, **options)
    assert says in str(caught.value)


def test_sequences_need_a_network(data):
    for model in (None, al.models.MultiHead(2)):
        with pytest.raises(al.InputError, match=r"`tokens` is a Sequences; wanted al\.Tokens"):
            al.descend(data, al.gd(0.1), model=model, steps=2)
    with pytest.raises(al.InputError, match=r"`tokens` is list; wanted al.Sequences"):
        al.descend([1], al.gd(0.1), model=Encoder(3), steps=2)


def test_jax_settings_are_left_alone(data):
    before = jax.config.read("jax_enable_x64")
    al.descend(data, al.gd(0.1), model=Encoder(4), steps=2)
    assert jax.config.read("jax_enable_x64") == before
