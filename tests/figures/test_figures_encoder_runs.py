"""Runs behind the encoder's figures: segments and one long run, kernels by another way, and what is listed."""

import numpy as np
import pytest

from attnlab.claims.stages import Stages
from attnlab.figures import figures
from attnlab.figures.encoder import runs
from attnlab.figures.encoder.runs import Plan, Reading
from attnlab.models.encoder_kernel import kernel_blocks, kernel_parts
from attnlab.theory.tangent import kernel_distance, ntk
from attnlab.train import descend

PLAN = Plan(epochs=8, every=4, pairs=(0, 3, 7), early=3)
SMALL = 12  # sequences


def test_what_is_listed():
    listed = {figure.id: figure.status for figure in figures("encoder")}
    assert list(listed) == [f"encoder-{i}" for i in range(1, 10)]
    assert set(listed.values()) == {"ready"}


def test_where_a_plan_looks():
    assert PLAN.stops == (0, 1, 3, 4, 7, 8)
    assert PLAN.record == tuple(range(9))
    long = Plan(epochs=400, every=100, pairs=(0, 50), early=50)
    assert long.record == (*range(11), 50, 100, 200, 300, 400)
    assert long.stops == (0, 1, 50, 51, 400)


@pytest.mark.parametrize("reading", [
    pytest.param(Reading(words="", step=2.0), marks=pytest.mark.slow),
    Reading(words="", norm=None, loss="half_sum", parameterization="ntk", step=0.1),
])  # fmt: skip
def test_segments_and_kernels_are_those_of_one_run(reading):
    data, network = reading.data(2, SMALL), reading.model(10)
    parts = [*runs.segments(data, network, reading.step, reading.loss, PLAN)]

    def kernel(view):
        return sum(kernel_blocks(network, view.params, kernel_parts(network, view.params, view.x)).values())

    whole = descend(data, runs.rule(reading.step), model=network, loss=reading.loss, steps=8, record=PLAN.stops,
                    metrics={"kernel": kernel}, seed=runs.SEED)  # fmt: skip
    for name, weights in whole.weights.items():
        np.testing.assert_allclose(parts[-1].weights[name], weights, rtol=0, atol=1e-12)
    at = np.isin(PLAN.record, PLAN.stops)
    for name in ("loss", "relative_step"):
        np.testing.assert_allclose(parts[-1].metrics[name][:, at], whole.metrics[name], rtol=1e-12)
    for i, part in enumerate(parts):
        own = runs.kernels(data, network, part.weights)
        np.testing.assert_allclose(own, whole.metrics["kernel"][:, i], rtol=1e-10, atol=1e-13)
        one = ntk(data[1], network, {name: w[1] for name, w in part.weights.items()})
        np.testing.assert_array_equal(own[1], one)


def test_what_is_kept_of_training():
    reading = Reading(words="", step=2.0)
    kept = runs.train_widths(reading, {10: 2, 100: 1}, PLAN, Stages(), SMALL)
    assert {name: values.shape for name, values in kept.items()} == {
        **{name: (2, 2, 9) for name in ("mse", "step", "concentration", "frozen")},
        **{name: (2, 2, 6) for name in ("away", "largest")},
        "apart": (2, 2, 3), "first": (2, 2), "late": (2, 2), "least": (2, 2),
    }  # fmt: skip
    for values in kept.values():
        assert np.isfinite(values[0]).all()
        assert np.isfinite(values[1, 0]).all()
        assert np.isnan(values[1, 1]).all()  # a seed that this width has not
    # The first step by hand: start, its errors, gradient descent with the kernel of the start.
    data, network = reading.data(1, SMALL), reading.model(100)
    start = network.initial(data, runs.SEED)
    errors, kernel = network.outputs(data, start)[0] - data.y[0], runs.kernels(data, network, start)[0]
    np.testing.assert_allclose(kept["mse"][1, 0, 0], np.mean(errors**2), rtol=1e-12)
    slope = network.gradient(data, start, loss="mse_mean")
    step = [2.0 * slope[0][name] * np.exp(slope[1][name])[(...,) + (None,) * (w.ndim - 1)] for name, w in start.items()]
    length = np.sqrt(sum((s**2).sum() for s in step) / sum((w**2).sum() for w in start.values()))
    np.testing.assert_allclose(kept["step"][1, 0, 0], length, rtol=1e-10)
    for at in range(9):
        np.testing.assert_allclose(kept["frozen"][1, 0, at], np.mean(errors**2), rtol=1e-9)
        errors = errors - 2.0 * 2.0 / SMALL * kernel @ errors
    moved = {name: w - s for (name, w), s in zip(start.items(), step, strict=True)}
    np.testing.assert_allclose(kept["apart"][1, 0, 0], kernel_distance(kernel, runs.kernels(data, network, moved)[0]),
                               rtol=1e-6)  # fmt: skip
    np.testing.assert_allclose(kept["apart"][:, :, 0], kept["away"][:, :, 1])
    np.testing.assert_allclose(kept["first"], kept["away"][:, :, PLAN.stops.index(PLAN.early)])
    np.testing.assert_allclose(kept["largest"][1, 0, 0], np.linalg.eigvalsh(kernel)[-1], rtol=1e-10)


def test_numbers_of_curves():
    mse = np.array([[1.0, 2.0, np.inf], [1.0, 0.5, 0.25], [np.nan] * 3])
    assert runs.lost(mse[None]).tolist() == [1]
    factor, fit = runs.straight(np.arange(3.0), mse, 0)
    np.testing.assert_allclose([factor[1], fit[1]], [0.5, 1.0])
    assert np.isnan(factor[[0, 2]]).all()
    half = Reading(words="", loss="half_sum")
    np.testing.assert_allclose(half.squares(np.array([3.0]), 6), [1.0])
    assert half.factor(6) == 1.0
    assert Reading(words="").factor(100) == 0.02


def test_lines_end_at_rounding():
    epochs = np.arange(8.0)
    mse = np.array([1.0, 0.5, 1e-2, 1e-4, 1e-6, 1e-32, 2e-32, 1e-32])
    factor, fit = runs.straight(epochs, mse[None], 2)
    np.testing.assert_allclose([factor[0], fit[0]], [1e-2, 1.0])
    factor, _ = runs.straight(epochs, mse[None], 3)
    assert np.isnan(factor[0])  # two records are no line


def test_tokens_have_the_norm_of_the_reading():
    unit, small = (Reading(words="", norm=norm).data(2, SMALL) for norm in (1.0, 0.17))
    np.testing.assert_allclose(np.linalg.norm(small.x, axis=-1), 0.17)
    np.testing.assert_allclose(small.x, 0.17 * unit.x)
    np.testing.assert_array_equal(small.y, unit.y)
    drawn = Reading(words="", norm=None).data(2, SMALL)
    assert 8 < np.linalg.norm(drawn.x, axis=-1).mean() < 12


def test_logits_spread_as_one_over_d():
    reading = Reading(words="")
    narrow, wide = (runs.spread(reading.model(m), reading.data(1, SMALL)) for m in (100, 1000))
    np.testing.assert_allclose([narrow, wide], 1.0 / runs.D, rtol=0.1)
    linear = Reading(words="", scaling="linear")
    np.testing.assert_allclose(runs.spread(linear.model(100), linear.data(1, SMALL)), narrow / 10, rtol=1e-10)
