"""The report on an encoder: promises are kept, what is missed is named, steps are in the units of the loss."""

import json

import numpy as np
import pytest

import attnlab as al
from attnlab.models import Encoder, FullyConnected
from attnlab.theory.encoder import Constants, rate_bound
from attnlab.theory.tangent import ntk
from sampling import first_few


def small(width=512, pool="sum", n=3, T=2, d=8, **options):
    data, model = al.data.gaussian_sequences(n, T, d, seed=1), Encoder(width, pool=pool, **options)
    return data, model, model.initial(data, 2)


def with_misfit(data, model, weights, size):
    """The same tokens with labels that far from the outputs at the start."""
    outputs = model.outputs(data, weights)
    away = data.y - outputs
    return al.Sequences(x=data.x, y=outputs + size * away / np.linalg.norm(away))


@pytest.mark.parametrize("pool", first_few(["sum", "mean"], 1))
@pytest.mark.parametrize("loss", ["half_sum", "mse_mean", "half_mean"])
def test_a_promise_that_is_made_is_kept(pool, loss):
    data, model, weights = small(pool=pool)
    far = al.encoder_report(data, model, weights, loss=loss)
    assert not far.guaranteed
    assert "Nothing is guaranteed" in repr(far)
    near = with_misfit(data, model, weights, 0.99 * far.enough_misfit)
    report = al.encoder_report(near, model, weights, loss=loss)
    assert report.guaranteed
    assert report.failing == {}
    assert "guarantees" in repr(report)
    run = al.descend(near, al.gd(report.promised_step), model=model, init=weights, loss=loss, steps=200)
    shares = run.metrics["loss"] / run.metrics["loss"][0]
    assert (shares <= report.promised_rate**run.steps * (1 + 1e-9)).all()
    assert report.local_rate <= report.promised_rate < 1
    # Proposition 1 in its own units.
    own = Constants.of(near.x, near.y, weights, tau0=model.tau0, tau1=model.tau1 * model.pooling(2))
    want = rate_bound(own.largest_step(), own.alpha, run.steps)
    np.testing.assert_allclose(report.promised_rate**run.steps, want, rtol=1e-9)
    just_short = with_misfit(data, model, weights, 1.01 * far.enough_misfit)
    assert not al.encoder_report(just_short, model, weights, loss=loss).guaranteed


@pytest.mark.parametrize("loss", ["half_sum", "mse_mean", "half_mean"])
def test_the_stable_step_is_where_the_linearized_loss_begins_to_grow(loss):
    data, model, weights = small(width=4096, n=4)
    near = with_misfit(data, model, weights, 1e-7)  # so close that the kernel does not move
    limit = al.encoder_report(near, model, weights, loss=loss).stable_step
    ends = {}
    for share in (0.9, 1.1):
        run = al.descend(near, al.gd(share * limit), model=model, init=weights, loss=loss, steps=30, record=[0, 30])
        ends[share] = run.metrics["loss"][1] / run.metrics["loss"][0]
        rate = al.encoder_report(near, model, weights, loss=loss, step=share * limit).local_rate
        assert (rate > 1) == (share > 1)
    assert ends[0.9] < 1 < ends[1.1]


def test_local_rate_is_that_of_the_slowest_part():
    data, model, weights = small(width=2048)
    near = with_misfit(data, model, weights, 1e-8)
    report = al.encoder_report(near, model, weights, step=0.3 / ntk(data, model, weights).trace())
    values, vectors = np.linalg.eigh(ntk(data, model, weights))
    slow = al.Sequences(x=data.x, y=model.outputs(data, weights) + 1e-8 * vectors[:, 0])
    run = al.descend(slow, al.gd(report.step), model=model, init=weights, steps=1, record=[0, 1])
    assert run.metrics["loss"][1] / run.metrics["loss"][0] == pytest.approx(report.local_rate, rel=1e-4)
    assert report.local_rate == pytest.approx((1 - report.step * values[0]) ** 2, rel=1e-12)
    np.testing.assert_allclose(report.eigenvalues, values, rtol=1e-10)


def test_what_is_missed_is_told():
    data, model, weights = small(width=2)
    report = al.encoder_report(data, model, weights)
    assert report.failing["width >= n"] == 1.5
    assert report.failing["(2)"] == np.inf
    assert report.enough_misfit == 0.0
    twice = al.Sequences(x=np.concatenate([data.x, data.x[:, ::-1]]), y=np.arange(6.0))  # tokens in another order
    wide = Encoder(512, pool="sum")
    again = al.encoder_report(twice, wide)
    assert again.constants.alpha == 0
    assert not again.guaranteed
    assert again.eigenvalues[0] == pytest.approx(0.0, abs=1e-9 * again.eigenvalues[-1])


def test_an_exact_fit_is_guaranteed():
    data, model, weights = small()
    fitted = al.Sequences(x=data.x, y=model.outputs(data, weights))
    report = al.encoder_report(fitted, model, weights)
    assert report.guaranteed
    assert all(c.margin > 1e6 for c in report.conditions)  # outputs of two libraries may differ in the last digit


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"init": "ntk", "scaling": "linear"},
        {"init": "ntk", "scaling": "sqrt"},
        {"residual": "projected"},
        {"scaling": 0.3},
        {"width": 8, "residual": "identity"},
    ],
)
def test_json_and_text_for_every_kind(options):
    data, model, weights = small(**options)
    report = al.encoder_report(data, model, weights, loss="mse_mean", step=0.5)
    facts = json.loads(json.dumps(report.to_json()))
    assert facts["guaranteed"] is report.guaranteed
    assert facts["step"] == 0.5
    assert facts["condition_3"]["margin"] == pytest.approx(report.conditions[1].margin)
    assert ("no theorem is about it" in repr(report)) == (report.widths == {})
    covered = options in ({}, {"init": "ntk", "scaling": "linear"})
    assert bool(report.widths) == covered
    assert f"n = 3, T = 2, d = 8, C_x = {report.constants.C_x:.4g}" in repr(report)


def test_drawn_weights_are_those_of_the_law():
    data, model, weights = small()
    drawn, given = al.encoder_report(data, model, seed=2), al.encoder_report(data, model, weights)
    assert drawn.to_json() == given.to_json()
    assert al.encoder_report(data, model, seed=3).constants.alpha != drawn.constants.alpha
    wider = al.encoder_report(data, model, weights, radius=10.0)
    assert wider.conditions[0].margin != given.conditions[0].margin


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 3, 1), (2, 1, 4), (1, 2, 5)])
def test_smallest_sizes(sizes):
    data = al.data.gaussian_sequences(*sizes)
    report = al.encoder_report(data, Encoder(16))
    assert repr(report)
    assert np.isfinite(report.local_rate)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": FullyConnected(4)}, "`model` is a FullyConnected"),
        ({"loss": "logistic"}, "`loss` is 'logistic'"),
        ({"step": 0.0}, "`step` is 0.0"),
        ({"data": al.data.gaussian_sequences(2, 2, 2, trials=2)}, "batch of 2 trials"),
        ({"weights": {"W_Q": 1}}, "`weights` has ['W_Q']"),
        ({"radius": -1.0}, "radius"),
    ],
)
def test_what_is_refused(change, says):
    usual = {"data": al.data.gaussian_sequences(3, 2, 4), "model": Encoder(4), "weights": None}
    given = usual | change
    with pytest.raises(al.InputError) as caught:
        al.encoder_report(given.pop("data"), given.pop("model"), given.pop("weights"), **given)
    assert says in str(caught.value)


def test_labels_whose_loss_is_beyond_floats_are_told():
    data = al.Sequences(x=np.ones((2, 3, 2)), y=[-1.7e308, 0.0])
    with pytest.raises(al.InputError, match="beyond float64"):
        al.encoder_report(data, al.models.Encoder(3))


def test_tokens_of_every_size():
    """Zeros, tiny and long tokens; what would overflow is refused by name."""
    model = Encoder(4)
    x = np.random.default_rng(0).standard_normal((2, 2, 3))
    zero = al.encoder_report(al.Sequences(x=0.0 * x, y=[1.0, 2.0]), model)
    assert zero.local_rate == 1.0
    assert zero.stable_step == np.inf
    assert zero.widths == {}
    for size in (1e-120, 1e-30, 1e-3, 1e3, 1e15):
        report = al.encoder_report(al.Sequences(x=size * x, y=[1.0, 2.0]), model)
        json.dumps(report.to_json(), allow_nan=False)
        assert repr(report)
        assert np.isfinite(report.local_rate)
    with pytest.raises(al.InputError, match="overflow beyond"):
        al.encoder_report(al.Sequences(x=1e80 * x, y=[1.0, 2.0]), model)


@pytest.mark.parametrize(
    "setting", [{"depth": 2}, {"tied": True}, {"parameterization": "ntk"}, {"attention_kind": "relu"}]
)
def test_what_no_theorem_is_about_is_measured_and_nothing_is_promised(setting):
    ((name, value),) = setting.items()
    report = al.encoder_report(al.data.gaussian_sequences(3, 2, 4), Encoder(4, **setting), seed=1)
    assert f"{name} = {value!r}" in report.verdict
    assert report.verdict.startswith("No theorem is about")
    assert not report.guaranteed
    assert report.constants is None
