"""Gradient flow on degenerate data, at extremes, and with wrong arguments."""

from importlib import import_module

import numpy as np
import pytest

import attnlab as al
from attnlab.train.flow import flow, record_times
from attnlab.train.flowtrajectory import FlowStatus, FlowTrajectory
from sampling import first_few

EYE = np.eye(2)


def at_rest():
    one = dict(y=[1.0], v=[1.0, 0.0])
    return {
        "one token": al.Tokens(x=EYE[None, :1], z=[[1.0, 0.0]], **one),
        "twins": al.Tokens(x=np.ones((1, 3, 2)), z=[[1.0, 0.0]], **one),
        "zero query": al.Tokens(x=EYE[None], z=[[0.0, 0.0]], **one),
        "ties": al.Tokens(x=[[[0.5, 1.0], [0.5, -3.0]]], z=[[1.0, 2.0]], **one),
        "all but one masked": al.Tokens(x=EYE[None], z=[[1.0, 0.0]], mask=[[True, False]], **one),
        "one dimension": al.Tokens(x=np.ones((1, 2, 1)), z=[[1.0]], y=[1.0], v=[1.0]),
    }


@pytest.mark.parametrize("parameterization", first_few(["W", "KQ"], 1))
@pytest.mark.parametrize("case", at_rest())
def test_nothing_moves_where_nothing_can(case, parameterization):
    tokens = at_rest()[case]
    run = flow(tokens, parameterization=parameterization, time=1e30, record=[0.0, 1e30])
    assert run.status is FlowStatus.FINISHED
    assert all((run.weights[k] == run.initial[k]).all() for k in run.weights)
    assert run.support.tolist() == tokens.visible.tolist()
    assert run.attention.sum() == pytest.approx(1.0)


def test_a_tie_is_not_broken_by_rounding():
    """Scores 0.3 and 0.1 + 0.2 are one score: t = 1e30 times their difference would be 1e13."""

    def end(score):
        x = np.array([[[score, 1.0, 0.0], [0.3, -1.0, 0.2], [-0.7, 0.1, 1.0]]])
        tokens = al.Tokens(x=x, z=[[1.0, 0.5, -0.2]], y=[1.0], v=[1.0, 0.0, 0.0])
        return flow(tokens, init="zeros", time=1e30, record=None).W

    assert 0.1 + 0.2 != 0.3
    assert np.abs(end(0.3) - end(0.1 + 0.2)).max() < 1e-6


def test_collinear_and_duplicate_tokens():
    x = np.array([[[1.0, 1.0], [2.0, 2.0], [2.0, 2.0], [-1.0, -1.0]]])
    tokens = al.Tokens(x=x, z=[[1.0, 0.0]], y=[1.0], v=[1.0, 0.0])
    run = flow(tokens, init="zeros", time=1e20, record=None)
    assert run.support.tolist() == [[False, True, True, False]]
    assert run.attention[0, 1] == pytest.approx(0.5)


def test_a_start_that_is_saturated_stands_still():
    """Off-token weight e^-3000: in time 1e14 nothing happens, and nothing is NaN."""
    start = np.array([[3000.0, 0.0], [0.0, 0.0]])
    run = flow(al.data.two_tokens(), init=start, record=[0.0, 1e14])
    assert np.array_equal(run.W, start)
    assert run.metrics["log_off_attention"].tolist() == [-3000.0, -3000.0]


def test_a_start_on_the_wrong_token_takes_its_time():
    """From logit -40 the flow needs t of about e^40 to leave: 1e14 is too short, 1e20 is enough."""
    start = np.array([[-40.0, 0.0], [0.0, 0.0]])
    assert flow(al.data.two_tokens(), init=start, time=1e14, record=None).selected.tolist() == [1]
    assert flow(al.data.two_tokens(), init=start, time=1e20, record=None).selected.tolist() == [0]


@pytest.mark.parametrize("scale", [1e-120, 1e-8, 1e8, 1e120])
def test_huge_and_tiny_tokens(scale):
    plain = al.data.two_tokens()
    tokens = al.Tokens(x=plain.x * scale, z=plain.z, y=plain.y, v=plain.v / scale)
    run = flow(tokens, init="zeros", time=1e14 / scale**2, loss="correlation", record=None)
    a = run.W[0, 0] * scale
    assert np.log(2 * a + 2 * np.sinh(a)) == pytest.approx(np.log(1e14), abs=1e-6)


def test_giving_up_is_reported():
    tokens = al.data.sphere(3, 4, 5, seed=3, trials=2)
    run = flow(tokens, time=1e8, max_steps=20)
    assert run.status is FlowStatus.INCOMPLETE
    assert set(run.failures) == {0, 1}
    assert "20 steps" in run.failures[0]
    assert not run.success.any()
    assert (run.steps == 20).all()
    assert ((run.reached > 0) & (run.reached < 1e8)).all()
    assert np.isfinite(run.W).all()
    assert np.isnan(run.exponent).all()
    for i in range(2):
        there = run.times <= run.reached[i]
        assert np.isfinite(run.metrics["loss"][i, there]).all()
        assert np.isnan(run.metrics["loss"][i, ~there]).all()
    # What was reached is right: the flow to that very time ends there.
    again = flow(tokens[0], time=float(run.reached[0]), record=None)
    assert np.abs(again.W - run.W[0]).max() < 1e-6


def test_sequences_and_masks():
    rng = np.random.default_rng(0)
    tokens = al.Tokens.self_attention(
        rng.standard_normal((2, 3, 6)), np.ones((2, 3)), rng.standard_normal(6), query="all", mask="causal"
    )
    run = flow(tokens, time=1e20, record=None)
    assert run.selected.shape == (2, 3)
    assert run.attention.shape == run.support.shape == (2, 3, 3)
    assert (run.attention[~tokens.visible] == 0).all()
    assert not run.support[~tokens.visible].any()
    assert (run.selected == al.optimal_tokens(tokens)).all()


def test_targets_metrics_and_tracking():
    tokens = al.data.two_tokens()
    target = np.array([[1.0, 0.0], [0.0, 0.0]])
    run = flow(
        tokens, time=1e9, record=[0.0, 1.0, 1e9], targets={"svm": target}, track=[1],
        metrics={"corner": lambda view: view.W[0, 0]},
    )  # fmt: skip
    assert run.metrics["corner"][-1] == run.W[0, 0]
    assert run.metrics["misalignment_svm"][-1] == pytest.approx(al.misalignment(run.W, target), rel=1e-6)
    assert run.metrics["attention"][-1] == pytest.approx(run.attention[0, 1], rel=1e-9)
    assert "step_length" not in run.metrics


def test_progress_is_told(monkeypatch):
    monkeypatch.setattr(import_module("attnlab.train.flow"), "SECONDS_BETWEEN_LOOKS", 0.0)
    seen = []
    run = flow(al.data.two_tokens(trials=2), time=1e5, on_step=seen.append)
    assert len(seen) == run.steps.sum()
    assert [p.trial for p in seen] == sorted(p.trial for p in seen)
    assert seen[-1].trial == 1
    assert seen[-1].trials == 2
    assert seen[-1].time == pytest.approx(1e5)
    assert all(p.seconds > 0 for p in seen)


def test_saved_and_read_back(tmp_path):
    run = flow(al.data.two_tokens(trials=2), time=1e5, max_steps=15)
    back = FlowTrajectory.load(run.save(tmp_path / "flow"))
    assert back.status is run.status
    assert back.failures == run.failures
    assert back.config == run.config
    for name in ("times", "selected", "attention", "exponent", "reached", "steps", "evaluations", "jacobians", "W"):
        assert np.array_equal(getattr(back, name), getattr(run, name), equal_nan=True), name
    assert all(np.array_equal(back.metrics[k], run.metrics[k], equal_nan=True) for k in run.metrics)
    with pytest.raises(al.InputError, match="not a saved flow"):
        FlowTrajectory.load(al.data.two_tokens().save(tmp_path / "tokens.npz"))


def test_repr_and_missing_names():
    run = flow(al.data.two_tokens(), time=10.0)
    assert repr(run).startswith("FlowTrajectory(W, time=10, norm=")
    with pytest.raises(AttributeError, match="there is no K"):
        run.K  # noqa: B018


def test_record_times():
    assert record_times(1, 0.05).tolist() == pytest.approx([0, 1e-5, 1e-4, 1e-3, 1e-2, 0.05])
    assert record_times(None, 1.0).size == 0
    assert record_times([3.0, 1.0, 3.0], 5.0).tolist() == [1.0, 3.0]
    grid = record_times(10, 1e14)
    assert len(grid) == 142
    assert grid[[0, 1, -1]].tolist() == [0.0, 1.0, 1e14]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"time": 0.0}, "`time` is 0.0"),
        ({"time": np.inf}, "`time` is inf"),
        ({"time": np.nan}, "`time` is nan"),
        ({"time": 1e307}, "`time` is 1e\\+307"),
        ({"time": "long"}, "`time` is 'long'"),
        ({"rtol": 0.0}, "`rtol` is 0.0"),
        ({"atol": 1.0}, "`atol` is 1.0"),
        ({"max_steps": 0}, "`max_steps` is 0"),
        ({"record": 0}, "`record` is 0"),
        ({"record": [-1.0]}, "`record` is"),
        ({"record": [1e15]}, "`record` is"),
        ({"record": "often"}, "`record` is 'often'"),
        ({"record": [np.nan]}, "`record` has 1 entries that are NaN"),
        ({"parameterization": "V"}, "`parameterization` is 'V'"),
        ({"parameterization": "KQ", "init": "zeros"}, "stationary"),
        ({"rank": 2}, "`rank`"),
        ({"head": "deep"}, "`head` is 'deep'"),
        ({"loss": "focal"}, "`loss` is 'focal'"),
        ({"init": np.full((2, 2), np.nan)}, "NaN"),
        ({"seed": -1}, "`seed` is -1"),
    ],
)
def test_wrong_arguments_are_named(options, words):
    with pytest.raises(al.InputError, match=words):
        flow(al.data.two_tokens(), **options)


def test_wrong_tokens():
    with pytest.raises(al.InputError, match="`tokens` is an array"):
        flow(np.eye(2))


def test_a_moment_is_one_step_along_the_gradient():
    """At t = 1e-12 the flow is W(0) - t grad, to the square of t."""
    tokens = al.data.sphere(3, 4, 5, seed=1)
    run = flow(tokens, init="zeros", time=1e-12, record=[0.0, 5e-13, 1e-12])
    mantissa, log_scale = al.models.gradient(tokens, np.zeros((5, 5)))
    step = -1e-12 * mantissa["W"] * np.exp(log_scale["W"])
    assert np.abs(run.W - step).max() < 1e-9 * np.abs(step).max()
    assert run.metrics["norm"] == pytest.approx(np.linalg.norm(step) * np.array([0.0, 0.5, 1.0]), rel=1e-9)
    assert run.reached == 1e-12
