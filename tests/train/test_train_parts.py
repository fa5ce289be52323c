"""The small parts of a run: when it records, where it starts, how trials are cut into blocks."""

import os
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.models.attention import Attention
from attnlab.train import log_spaced
from attnlab.train.blocks import BLOCK_BYTES, MAX_BLOCK, block_size, in_blocks
from attnlab.train.schedule import record_steps

few = settings(deadline=None, max_examples=60, database=None, derandomize=True)


# --- schedule ----------------------------------------------------------------------------------------------------


@few
@given(short=st.integers(0, 10**6), more=st.integers(0, 10**6), per_decade=st.integers(1, 50))
def test_a_longer_run_records_at_the_same_places(short, more, per_decade):
    a, b = log_spaced(short, per_decade), log_spaced(short + more, per_decade)
    assert a[0] == 0
    assert a[-1] == short
    assert list(a) == sorted(set(a))
    assert set(a) - {short} <= set(b)
    assert {s for s in b if s <= short} - {short} == set(a) - {short}


@few
@given(decades=st.integers(0, 9), per_decade=st.integers(1, 40))
def test_every_power_of_ten_is_on_the_grid_and_steps_are_evenly_spaced(decades, per_decade):
    grid = np.array(log_spaced(10**decades, per_decade))
    assert {10**k for k in range(decades + 1)} <= set(grid.tolist())
    ideal = 10.0 ** (np.arange(per_decade * decades + 1) / per_decade)
    assert np.abs(ideal[:, None] - grid[None, :]).min(1).max() <= 0.5 + 1e-6
    assert len(grid) <= per_decade * decades + 2


def test_schedules_by_hand():
    assert log_spaced(0) == (0,)
    assert log_spaced(1) == (0, 1)
    assert log_spaced(30, per_decade=3) == (0, 1, 2, 5, 10, 22, 30)
    assert log_spaced(5000) == log_spaced(5000, per_decade=20)
    assert record_steps(3, 30) == (0, 1, 2, 5, 10, 22, 30)
    assert record_steps(np.int64(1), 100) == (0, 1, 10, 100)
    assert record_steps(None, 30) == ()
    assert record_steps([7, 3, 3, 0], 7) == (0, 3, 7)
    assert record_steps(np.array([2, 5]), 7) == (2, 5)
    assert record_steps([], 7) == ()
    assert record_steps(range(0, 9, 4), 8) == (0, 4, 8)


@pytest.mark.parametrize("record", [0, -3, [0, 8], [-1], [1.5], "all", 2.0, [[1]]])
def test_bad_schedules_are_refused(record):
    with pytest.raises(al.InputError, match="`record`"):
        record_steps(record, 7)


# --- blocks ------------------------------------------------------------------------------------------------------


def test_block_size():
    assert block_size(1, 10) == 2  # a lone small trial runs twice
    assert block_size(1, BLOCK_BYTES // 2 + 1) == 1
    assert block_size(15, 10) == 15
    assert block_size(16, 10) == 16
    assert block_size(1000, 10) == MAX_BLOCK == 16
    assert block_size(1000, BLOCK_BYTES // 4) == 4
    assert block_size(3, BLOCK_BYTES // 4) == 3
    assert block_size(1000, BLOCK_BYTES + 1) == 1
    assert block_size(5, 0) == 5
    assert BLOCK_BYTES == 128 * 1024


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("trials", [1, 2, 15, 16, 17, 31, 32, 33, 40])
def test_blocks_put_every_trial_in_its_place(trials, compiled):
    """Each trial appears once and in order, whatever is left over; all blocks have one size and run in 64 bits."""
    seen, lock = [], threading.Lock()

    def program(tree, b, shift):
        with lock:
            seen.append((len(b), jnp.zeros(1).dtype))
        return {"sum": jnp.asarray(tree["a"]).sum(-1) + b + shift, "b": jnp.asarray(b)[:, None]}

    a = np.arange(3.0 * trials).reshape(trials, 3)
    b = 1e-9 * np.arange(trials)
    got = in_blocks(program, ({"a": a}, b), 0.25, compiled=compiled)
    np.testing.assert_array_equal(got["sum"], a.sum(-1) + b + 0.25)
    np.testing.assert_array_equal(got["b"], b[:, None])
    assert type(got["b"]) is np.ndarray
    assert {k for k, _ in seen} == {min(max(trials, 2), 16)}
    assert {str(t) for _, t in seen} == {"float64"}
    assert len(seen) == -(-trials // 16)


def test_blocks_shrink_for_large_trials():
    sizes = []

    def program(a):
        sizes.append(len(a))
        return a

    a = np.arange(7.0)[:, None] * np.ones(BLOCK_BYTES // 8 // 3)
    np.testing.assert_array_equal(in_blocks(program, (a,), compiled=True), a)
    assert sizes == [3, 3, 3]


def test_the_first_block_goes_ahead_alone_while_the_program_is_not_compiled():
    order, gate = [], threading.Barrier(2, timeout=20)

    def program(a):
        first = a[0] == 0
        order.append(float(a[0]))
        if not first:
            gate.wait()  # the other two run side by side
        return a

    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    in_blocks(program, (np.arange(48.0),), compiled=False)
    assert order[0] == 0.0
    assert sorted(order) == [0.0, 16.0, 32.0]


# --- start -------------------------------------------------------------------------------------------------------

TOKENS = al.data.sphere(n=2, T=3, d=40, trials=3)


def start(init, tokens=TOKENS, parameterization="W", *, rank=None, scale=1.0, seed=0, train_head=False):
    return Attention(parameterization, width=rank, train_head=train_head).start(tokens, init, scale, seed)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_uniform_start_fills_its_interval(scale):
    W = start("uniform", scale=scale)["W"]
    bound = scale / np.sqrt(40)
    assert W.shape == (3, 40, 40)
    assert 0.995 * bound < W.max() <= bound
    assert -0.995 * bound > W.min() >= -bound
    assert abs(W.mean()) < 5 * bound / np.sqrt(3 * W.size)
    assert W.std() == pytest.approx(bound / np.sqrt(3), rel=0.03)


@pytest.mark.parametrize("scale", [1.0, 0.02])
def test_gaussian_start_has_its_deviation(scale):
    W = start("gaussian", scale=scale)["W"]
    assert W.std() == pytest.approx(scale, rel=0.04)
    assert abs(W.mean()) < 5 * scale / np.sqrt(W.size)
    assert np.mean((W / scale) ** 4) == pytest.approx(3.0, rel=0.1)


def test_keys_and_queries_are_drawn_apart_with_the_bound_of_the_dimension():
    found = start("uniform", parameterization="KQ", rank=7)
    assert found["K"].shape == found["Q"].shape == (3, 40, 7)
    assert not np.isin(found["K"], found["Q"]).any()
    assert 0.98 / np.sqrt(40) < np.abs(found["K"]).max() <= 1 / np.sqrt(40)
    assert start("gaussian", parameterization="KQ")["Q"].shape == (3, 40, 40)


@pytest.mark.parametrize("init", ["uniform", "gaussian"])
def test_a_trial_starts_alike_in_any_company(init):
    one = al.data.sphere(n=2, T=3, d=40)
    for parameterization in ("W", "KQ"):
        many = start(init, parameterization=parameterization, seed=4)
        alone = start(init, one, parameterization, seed=4)
        for k, w in alone.items():
            assert w.ndim == 2
            assert w.tobytes() == many[k][0].tobytes()
            assert not np.array_equal(many[k][0], many[k][1])
    assert not np.array_equal(start(init, seed=4)["W"], start(init, seed=5)["W"])


def test_the_start_is_not_the_data():
    """Weights and tokens of one seed come from different streams."""
    one = al.data.sphere(n=40, T=1, d=40)
    W = start("gaussian", one)["W"]
    first = np.random.default_rng([0, 0]).standard_normal(40)
    assert not np.isin(W, first).any()


def test_zeros_and_the_head():
    found = start("zeros", train_head=True)
    assert found["W"].shape == (3, 40, 40)
    assert not found["W"].any()
    assert found["u"].shape == (3, 40)
    assert not found["u"].any()
    assert "u" not in start("zeros")
    assert start("uniform", train_head=True)["u"].shape == (3, 40)


def test_given_arrays_are_used_as_they_are():
    rng = np.random.default_rng(0)
    W = rng.standard_normal((40, 40))
    shared = start(W)["W"]
    assert shared.shape == (3, 40, 40)
    np.testing.assert_array_equal(shared, np.stack([W] * 3))
    each = rng.standard_normal((3, 40, 40))
    np.testing.assert_array_equal(start({"W": each})["W"], each)
    K, Q = rng.standard_normal((2, 40, 5))
    found = start({"K": K, "Q": Q}, parameterization="KQ", rank=5, train_head=True)
    np.testing.assert_array_equal(found["K"][2], K)
    assert found["u"].shape == (3, 40)
    u = rng.standard_normal(40)
    np.testing.assert_array_equal(start({"W": W, "u": u}, train_head=True)["u"][1], u)
    half = start({"K": K, "Q": 0 * Q}, parameterization="KQ")
    assert not half["Q"].any()


def test_a_start_is_a_copy():
    W = np.ones((40, 40))
    found = start(W)["W"]
    W[0, 0] = 7.0
    assert found[0, 0, 0] == 1.0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"init": "ones"}, "`init` is 'ones'"),
        ({"init": "uniform", "scale": -1.0}, "`init_scale` is -1.0"),
        ({"init": "uniform", "scale": float("nan")}, "`init_scale`"),
        ({"init": "uniform", "rank": 3}, "`rank`"),
        ({"init": "uniform", "parameterization": "KQ", "rank": 0}, "`rank` is 0"),
        ({"init": "uniform", "parameterization": "KQ", "rank": 2.0}, "`rank` is 2.0"),
        ({"init": "zeros", "parameterization": "KQ"}, "stationary"),
        ({"init": np.zeros((3, 3))}, r"`W` has shape \(3, 3\)"),
        ({"init": np.zeros((2, 40, 40))}, r"`W` has shape \(2, 40, 40\)"),
        ({"init": np.full((40, 40), np.nan)}, "NaN"),
        ({"init": {"W": np.zeros((40, 40)), "u": np.zeros(40)}}, "`u`"),
        ({"init": {"K": np.ones((40, 2)), "Q": np.ones((40, 2))}}, "`init` gives"),
        ({"init": np.ones((40, 40)), "parameterization": "KQ"}, "`init` gives"),
        ({"init": {"K": np.ones((40, 2)), "Q": np.ones((40, 3))}, "parameterization": "KQ"}, "`Q` has shape"),
        ({"init": {"K": np.ones((40, 2)), "Q": np.ones((40, 2))}, "parameterization": "KQ", "rank": 3}, "`rank` is 3"),
        ({"init": {"K": np.zeros((40, 2)), "Q": np.zeros((40, 2))}, "parameterization": "KQ"}, "stationary"),
        ({"init": {"V": np.zeros((40, 40))}}, "V"),
    ],
)
def test_bad_starts_are_refused(options, match):
    with pytest.raises(al.InputError, match=match):
        start(**options)
