"""The two ways to hold W take the same steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.errors import InputError
from attnlab.models.engine import choose_engine
from attnlab.models.frame import frame_size, make_frame
from sampling import first_few

RULES = {
    "gd": al.gd(0.5),
    "ngd": al.ngd(0.1),
    "capped ngd": al.ngd(0.1, cap=3.0),
    "momentum A": al.ngd_momentum(0.02),
    "momentum B": al.ngd_momentum(0.02, form="B", cap=5.0),
    "polyak": al.polyak(cap=20.0),
}


def both(tokens, rule, **options):
    direct, kernel = (al.descend(tokens, rule, engine=engine, **options) for engine in ("direct", "kernel"))
    assert (direct.config["model"]["engine"], kernel.config["model"]["engine"]) == ("direct", "kernel")
    return direct, kernel


def assert_same(direct, kernel, rtol=1e-9):
    for name, weights in direct.weights.items():
        scale = np.abs(weights).max()
        np.testing.assert_allclose(kernel.weights[name], weights, rtol=0, atol=rtol * scale, err_msg=name)
    assert set(direct.metrics) == set(kernel.metrics)
    for name, values in direct.metrics.items():
        np.testing.assert_allclose(kernel.metrics[name], values, rtol=1e-6, atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(kernel.selected, direct.selected)


@pytest.mark.parametrize("rule", first_few(RULES.values(), 3), ids=RULES)
def test_every_rule_takes_the_same_steps(rule):
    tokens = al.data.sphere(n=4, T=4, d=20, seed=1, trials=3)
    target = al.solve_margins(tokens, al.optimal_tokens(tokens)).W
    assert_same(*both(tokens, rule, steps=200, targets={"svm": target}, loss="exponential"))


@pytest.mark.slow
def test_the_head_may_be_trained_too():
    tokens = al.data.gaussian_signal(n=5, d=30, seed=2, trials=2)
    targets = {"W": np.random.default_rng(0).standard_normal((30, 30)), "u": tokens.v}
    for rule in (al.joint_decay(0.5), al.joint_total(0.05), al.joint_separate(0.05), al.polyak(cap=1.0)):
        assert_same(*both(tokens, rule, steps=100, targets=targets, train_head=True, init="gaussian", init_scale=0.01))


@pytest.mark.slow
def test_heads_losses_masks_and_several_queries():
    rng = np.random.default_rng(5)
    x, z = rng.standard_normal((3, 4, 12)), rng.standard_normal((3, 4, 12))
    tokens = al.Tokens(x=x, z=z, y=rng.choice([-1.0, 1.0], (3, 4)), v=rng.standard_normal(12), mask="causal")
    for head, loss in (("linear", "logistic"), ("relu-sum", "exponential")):
        assert_same(*both(tokens, al.ngd(0.1), steps=100, head=head, loss=loss))


def test_metrics_of_your_own_see_the_matrix():
    tokens = al.data.sphere(n=3, T=3, d=15, seed=0)
    metrics = {"corner": lambda view: view.W[0, 1], "param": lambda view: view.params["W"][2, 3]}
    direct, kernel = both(tokens, al.ngd(0.1), steps=30, metrics=metrics)
    assert_same(direct, kernel)
    assert kernel.metrics["corner"][-1] == pytest.approx(kernel.W[0, 1], abs=1e-14)


def test_far_into_saturation():
    tokens = al.data.orthogonal_signal(n=6, T=4, d=40, seed=3)
    svm = al.solve_margin(tokens, al.optimal_tokens(tokens)).W
    direct, kernel = both(tokens, al.ngd(10.0), steps=3000, init="zeros", loss="exponential", targets={"svm": svm})
    assert direct.metrics["log_gradient_norm"][-1] < -1000
    assert_same(direct, kernel)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_any_scale_of_data(scale):
    drawn = al.data.sphere(n=3, T=4, d=16, seed=4)
    # One sequence is much smaller than the others: its directions count as much.
    size = scale * np.array([1.0, 1e-20, 1.0])[:, None, None]
    tokens = al.Tokens(x=drawn.x * size, z=drawn.z, y=drawn.y, v=drawn.v / scale)
    direct, kernel = both(tokens, al.ngd(0.1 / scale), steps=50, init="zeros")
    assert_same(direct, kernel)
    rows = np.einsum("td,e->tde", tokens.x[1] - tokens.x[1].mean(0), tokens.z[1])
    products = [np.einsum("tde,de->t", rows, run.W) for run in (direct, kernel)]
    np.testing.assert_allclose(products[1], products[0], rtol=1e-7)


def test_a_start_of_any_size():
    tokens = al.data.sphere(n=2, T=3, d=12, seed=7)
    for size in (1e-200, 1e200):
        direct, kernel = both(tokens, al.ngd(size), steps=3, init=size * np.ones((12, 12)))
        np.testing.assert_allclose(kernel.metrics["norm"], direct.metrics["norm"], rtol=1e-9)
        np.testing.assert_allclose(kernel.W, direct.W, rtol=0, atol=1e-9 * size)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(2, 4), st.integers(1, 9), st.integers(1, 3), st.integers(0, 99))
def test_a_frame_keeps_logits_lengths_and_angles(n, T, d, K, seed):
    rng = np.random.default_rng(seed)
    x, z = rng.standard_normal((2, n, T, d)), rng.standard_normal((2, n, K, d))
    x[:, :, 0] = x[:, :, -1]  # dependent tokens
    x -= x.mean(2, keepdims=True)
    W, other = rng.standard_normal((2, 2, d, d))
    frame, p = make_frame(x, z, None, W)
    assert frame.basis.shape[1:] == frame_size(n, K, T, d)
    np.testing.assert_allclose(frame.matrices(p), W, atol=1e-12)
    moved = p + rng.standard_normal(p.shape)
    V = frame.matrices(moved)
    logits = np.einsum("rntd,rde,rnke->rnkt", x, V, z)
    np.testing.assert_allclose(np.einsum("rnktp,rp->rnkt", frame.features, moved), logits, atol=1e-10)
    row = np.concatenate([moved, frame.frozen_norm[:, None], np.zeros((2, 1))], axis=-1)
    rest = frame.rows_of(other)[:, 0]
    np.testing.assert_allclose(np.linalg.norm(row, axis=-1), np.linalg.norm(V, axis=(-2, -1)))
    np.testing.assert_allclose(np.linalg.norm(rest, axis=-1), np.linalg.norm(other, axis=(-2, -1)))
    np.testing.assert_allclose((row * rest).sum(-1), np.einsum("rij,rij->r", V, other), atol=1e-10)


@pytest.mark.parametrize("rule", [al.ngd_momentum(0.05), al.ngd(0.1)], ids=["momentum", "ngd"])
def test_a_run_in_two_parts_is_the_same_run(tmp_path, rule):
    tokens = al.data.sphere(n=4, T=3, d=20, seed=6, trials=2)
    whole = al.descend(tokens, rule, steps=80, engine="kernel")
    part = al.descend(tokens, rule, steps=30, engine="kernel")
    part = al.Trajectory.load(part.save(tmp_path / "part.npz"))
    again = al.descend(tokens, rule, steps=80, engine="kernel", resume=part)
    np.testing.assert_array_equal(again.W, whole.W)
    np.testing.assert_array_equal(again.metrics["loss"], whole.metrics["loss"])
    with pytest.raises(InputError, match="engine"):
        al.descend(tokens, rule, steps=80, engine="direct", resume=part)


def test_which_engine_is_chosen():
    wide, narrow = al.data.orthogonal_signal(), al.data.sphere(n=6, T=8, d=10)
    assert choose_engine("auto", wide, True, "W") == "kernel"
    assert choose_engine("auto", narrow, True, "W") == "direct"
    assert choose_engine("auto", wide, True, "KQ") == "direct"
    assert choose_engine("auto", wide, False, "W") == "direct"
    assert not al.adam(0.1).isotropic
    assert not al.ngd(0.1, guard="paper").isotropic
    one_token = al.Tokens(x=np.ones((2, 1, 30)), z=np.ones((2, 30)), y=[1, -1], v=np.ones(30))
    assert choose_engine("kernel", one_token, True, "W") == "direct"


@pytest.mark.parametrize("options", [{"rule": al.adam(0.1)}, {"parameterization": "KQ"}])
def test_rules_that_see_single_entries_are_refused(options):
    options = {"rule": al.ngd(0.1), **options}
    with pytest.raises(InputError, match="engine='kernel'"):
        al.descend(al.data.sphere(), steps=1, engine="kernel", **options)
    with pytest.raises(InputError, match="`engine`"):
        al.descend(al.data.sphere(), al.ngd(0.1), steps=1, engine="fast")


def test_a_record_at_every_step_of_a_long_run():
    steps = 12_000
    run = al.descend(al.data.two_tokens(), al.ngd(0.1), steps=steps, record=range(steps + 1), init="zeros")
    np.testing.assert_allclose(run.metrics["norm"], 0.1 * np.arange(steps + 1), rtol=1e-9)


def test_programs_are_forgotten_before_memory_maps_run_out(monkeypatch):
    from attnlab.train import program

    tokens = al.data.two_tokens()
    first = al.descend(tokens, al.ngd(0.1), steps=3)
    monkeypatch.setattr(program, "LOOK_EVERY", 1)
    monkeypatch.setattr(program, "MOST_MAPS", 0)
    before = program.memory_maps()
    program.make_room()
    assert 0 < program.memory_maps() < before
    np.testing.assert_array_equal(al.descend(tokens, al.ngd(0.1), steps=3).W, first.W)
