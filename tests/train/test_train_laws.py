"""What training must do: follow long-double reference runs, closed forms, and the figures of the fast-rates paper."""

import attention_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.train import Status

LD = np.longdouble
EPS = float(np.finfo(np.float64).eps)
E11 = np.array([[1.0, 0.0], [0.0, 0.0]])
HIDDEN = 0.5 * (np.exp(-0.2) + np.exp(-0.5))  # loss floor of `bad_direction`
MAX_MARGIN = np.array([[-0.2096645, -0.725], [-0.725, -0.0083866]])  # its max-margin direction


# --- long double -------------------------------------------------------------------------------------------------


def test_normalized_descent_follows_long_double_for_2000_steps():
    """Four trials at n = T = 5, d = 10; by then the gradients are far below the rounding of one."""
    tokens = al.data.sphere(n=5, T=5, d=10, seed=7, trials=4)
    run = al.descend(tokens, al.ngd(0.1), steps=2000, record=[2000])
    want = oracle.descend(tokens, run.initial, oracle.normalized(0.1), 2000)
    assert oracle.error(run.W, want["W"]) < 1e-11
    assert run.metrics["log_gradient_norm"].max() < -10


def test_keys_and_queries_follow_long_double_as_well_as_their_conditioning_allows():
    """The reference is run twice, the second time from a start moved by 1e-12: how far that spreads in 200 steps
    bounds what rounding by 1e-16 at each of them can do."""
    tokens = al.data.sphere(n=5, T=5, d=10, seed=8, trials=3)
    steps, nudge = 200, 1e-12
    run = al.descend(tokens, al.ngd(0.1), steps=steps, parameterization="KQ", record=None)
    want = oracle.descend(tokens, run.initial, oracle.normalized(0.1), steps)
    rng = np.random.default_rng(0)
    moved = {k: w.astype(LD) * (1 + nudge * rng.standard_normal(w.shape)) for k, w in run.initial.items()}
    other = oracle.descend(tokens, moved, oracle.normalized(0.1), steps)
    product = {name: w["K"] @ np.swapaxes(w["Q"], -1, -2) for name, w in (("want", want), ("other", other))}
    amplification = max(1.0, oracle.error(product["other"], product["want"]) / nudge)
    assert amplification < 10
    assert oracle.error(run.W, product["want"]) < EPS * steps * amplification


@pytest.mark.slow
def test_large_steps_for_20000_steps_leave_no_nan():
    tokens = al.data.sphere(n=5, T=5, d=10, seed=1, trials=64)
    run = al.descend(tokens, al.ngd(1.0), steps=20000, targets=np.eye(10), record=5)
    assert run.status is Status.FINISHED
    assert np.isfinite(run.W).all()
    for name, values in run.metrics.items():
        assert not np.isnan(values).any(), name
    assert run.metrics["log_gradient_norm"][:, -1].min() < -745  # beyond the smallest float
    np.testing.assert_allclose(run.metrics["step_length"], 1.0, rtol=1e-12)


# --- closed forms ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_tokens_for_a_million_steps():
    """W_11 grows by the step, nothing else moves: misalignment r^2 / (h (h + w)), h = sqrt(w^2 + r^2), slope -2."""
    run = al.descend(
        al.data.two_tokens(trials=3), al.ngd(0.1), steps=10**6, init="gaussian", targets=E11, seed=3, record=10
    )
    start = run.initial["W"].astype(LD)
    w = start[:, :1, 0] + LD("0.1") * run.steps
    r2 = (start**2).sum((-2, -1))[:, None] - start[:, :1, 0] ** 2
    h = np.sqrt(w**2 + r2)
    # Where w < 0 the angle is beyond 90 degrees and r^2 / (h (h + w)) still holds.
    want = (r2 / (h * (h + w))).astype(float)
    got = run.metrics["misalignment_target"]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    late = run.steps >= 1000
    for i in range(3):
        slope = np.polyfit(np.log(run.steps[late]), np.log(got[i, late]), 1)[0]
        assert slope == pytest.approx(-2.0, rel=0.01)
    np.testing.assert_array_equal(run.W[:, [0, 1, 1], [1, 0, 1]], run.initial["W"][:, [0, 1, 1], [1, 0, 1]])
    assert run.metrics["log_gradient_norm"][:, -1] == pytest.approx(-(1e5 + 1), rel=1e-3)


def test_gradient_descent_on_two_tokens_is_the_scalar_recurrence():
    start = np.array([[0.3, 0.2], [-0.5, 0.7]])
    run = al.descend(
        al.data.two_tokens(), al.gd(0.4), steps=700, init=start, loss="exponential", targets=E11, record=[0, 9, 700]
    )
    w, path = LD(start[0, 0]), []
    for t in range(701):
        phi = 1 / (1 + np.exp(-w))
        path.append((w, np.exp(-phi), phi))
        if t < 700:
            w = w + LD(0.4) * np.exp(-phi) * phi * (1 - phi)
    assert run.W[0, 0] == pytest.approx(float(w), rel=1e-13)
    for r, t in enumerate((0, 9, 700)):
        assert run.metrics["loss"][r] == pytest.approx(float(path[t][1]), rel=1e-13)
        assert run.metrics["attention"][r] == pytest.approx(float(path[t][2]), rel=1e-13)
    np.testing.assert_array_equal(run.W.ravel()[1:], start.ravel()[1:])


def on_bad_direction(rule, steps, record, start=-0.1):
    return al.descend(
        al.data.bad_direction(), rule, steps=steps, init=start * np.eye(2), loss="exponential",
        targets=MAX_MARGIN, record=record,
    )  # fmt: skip


def test_polyak_on_the_bad_direction_knows_its_floor():
    """s = (L - L*) / (2 |g|^2) with L* = (e^-.2 + e^-.5) / 2 = 0.7126307, against a long-double loop."""

    def rule(t, g, found):
        floor = (np.exp(-LD("0.2")) + np.exp(-LD("0.5"))) / 2
        return {"W": -(found.loss - floor) / (2 * (g["W"] ** 2).sum()) * g["W"]}

    run = on_bad_direction(al.polyak(), 12, list(range(13)))
    assert pytest.approx(0.7126307, abs=5e-8) == HIDDEN
    np.testing.assert_allclose(run.metrics["loss"] - run.metrics["excess_loss"], HIDDEN, rtol=1e-14)
    want = oracle.descend(al.data.bad_direction(), run.initial, rule, 12, "exponential")
    assert oracle.error(run.W, want["W"]) < 1e-11
    given = on_bad_direction(al.polyak(floor=float(HIDDEN)), 6, None)
    np.testing.assert_allclose(given.W, on_bad_direction(al.polyak(), 6, [6]).W, rtol=1e-9)


def test_capped_polyak_is_gradient_descent_bit_for_bit():
    a = on_bad_direction(al.polyak(cap=1e-3), 300, [300])
    b = on_bad_direction(al.gd(1e-3), 300, [300])
    assert a.W.tobytes() == b.W.tobytes()


# --- printed runs ------------------------------------------------------------------------------------------------

# log L, |W| at t = 3000 of joint training on `gaussian_signal`, seeds 0, 1, 2 (NGD with separate norms: 1 and 2).
PRINTED = {
    "gd": (al.gd(0.02), [(-3.65, 1.97), (-3.94, 1.59), (-3.71, 1.73)]),
    "joint total": (al.joint_total(0.002), [(-4.35, 2.25), (-5.17, 1.86), (-4.56, 2.03)]),
    "joint separate": (al.joint_separate(0.002), [None, (-5.64, 5.81), (-5.18, 5.66)]),
    "polyak": (al.polyak(cap=10.0), [(-9.97, 3.70), (-10.2, 2.54), (-10.0, 3.22)]),
}
SIGNALS = al.Tokens.stack([al.data.gaussian_signal(seed=s) for s in range(3)])


def train_jointly(rule, record=None):
    return al.descend(SIGNALS, rule, steps=3000, train_head=True, loss="exponential", init="zeros", record=record)


@pytest.mark.parametrize("name", PRINTED)
def test_joint_training_reaches_the_printed_losses_and_norms(name):
    rule, printed = PRINTED[name]
    run = train_jointly(rule)
    loss = oracle.evaluate(oracle.arrays_of(SIGNALS), run.W.astype(LD), run.u.astype(LD), "exponential").loss
    for i, pair in enumerate(printed):
        if pair is None:
            continue
        digits = 0.05 if abs(pair[0]) >= 10 else 0.005
        assert float(np.log(loss[i])) == pytest.approx(pair[0], abs=1.01 * digits)
        assert np.linalg.norm(run.W[i]) == pytest.approx(pair[1], abs=0.00505)


def test_uncapped_polyak_halves_the_exponent_per_step():
    """log L = -t / 2, far below the smallest float; the first W gradient is exactly zero."""
    run = train_jointly(al.polyak(), record=[0, 3000])
    np.testing.assert_allclose(run.metrics["log_loss"][:, -1], -1500.0, rtol=1e-4)
    np.testing.assert_array_equal(run.metrics["log_loss"][:, 0], 0.0)
    assert np.isfinite(run.W).all()


def test_the_bad_direction_is_left_as_printed():
    run = on_bad_direction(al.gd(0.1), 10000, [0, 100, 1000, 10000])
    np.testing.assert_allclose(run.metrics["cosine_target"], [0.147, 0.913, 0.9977, 0.9994], atol=6e-4)
    assert run.metrics["excess_loss"][-1] == pytest.approx(1.1e-3, abs=5e-5)
    assert al.models.attention(al.data.bad_direction(), run.initial["W"])[1, 0] == pytest.approx(0.214, abs=5e-4)
    faster = on_bad_direction(al.gd(1.0), 1000, [100, 1000])
    np.testing.assert_allclose(faster.metrics["cosine_target"], [0.9977, 0.9994], atol=2e-4)
    trapped = on_bad_direction(al.gd(0.1), 10000, [10000], start=-0.4)
    assert 0.40 < trapped.metrics["cosine_target"][-1] < 0.46
    assert trapped.metrics["excess_loss"][-1] == pytest.approx(0.52, abs=0.01)


def test_normalized_steps_leave_the_bad_direction_sooner():
    run = on_bad_direction(al.ngd(0.025), 1000, [100, 1000])
    assert run.metrics["cosine_target"][0] == pytest.approx(0.9954, abs=1e-4)
    assert run.metrics["cosine_target"][1] > 0.9998


# --- many queries ------------------------------------------------------------------------------------------------


def causal(seed=0, flip=False):
    rng = np.random.default_rng(seed)
    x, y, v = rng.standard_normal((2, 4, 3)), rng.choice([-1.0, 1.0], (2, 4)), rng.standard_normal(3)
    y[:, 0] *= -1 if flip else 1
    return al.Tokens.self_attention(x, y, v, query="all", mask="causal")


def test_causal_sequences_descend_as_a_plain_loop_does():
    tokens = causal()
    run = al.descend(tokens, al.gd(0.2), steps=50, record=list(range(51)))
    want = oracle.descend(tokens, run.initial, oracle.constant(0.2), 50)
    assert oracle.error(run.W, want["W"]) < 1e-13
    at = oracle.evaluate(oracle.arrays_of(tokens), want["W"])
    assert run.metrics["loss"][-1] == pytest.approx(float(at.loss), rel=1e-13)
    assert (np.diff(run.metrics["loss"]) < 0).all()
    assert run.selected.shape == (2, 4)
    assert (run.selected[:, 0] == 0).all()
    np.testing.assert_array_equal(run.selected, at.logits.argmax(-1))


def test_a_query_that_sees_one_token_has_no_say():
    """Its label changes the loss and no weight."""
    a = al.descend(causal(), al.gd(0.2), steps=50, record=[50])
    b = al.descend(causal(flip=True), al.gd(0.2), steps=50, record=[50])
    assert a.W.tobytes() == b.W.tobytes()
    assert a.metrics["loss"][0] != b.metrics["loss"][0]


# --- edges -------------------------------------------------------------------------------------------------------


def assert_no_nan(run):
    assert np.isfinite(run.W).all()
    for name, values in run.metrics.items():
        assert not np.isnan(values).any(), name


@pytest.mark.parametrize("shape", [(3, 1, 2), (1, 3, 2), (1, 2, 1)])
def test_smallest_shapes(shape):
    n, T, d = shape
    rng = np.random.default_rng(1)
    tokens = al.Tokens(
        x=rng.standard_normal(shape), z=rng.standard_normal((n, d)), y=np.ones(n), v=rng.standard_normal(d)
    )
    run = al.descend(tokens, al.ngd(0.1), steps=50, targets=np.ones((d, d)))
    assert_no_nan(run)
    if T == 1:
        assert run.W.tobytes() == run.initial["W"].tobytes()
        assert (run.metrics["attention"] == 1).all()
        assert np.isneginf(run.metrics["log_gradient_norm"]).all()
        assert not run.metrics["step_length"].any()
    else:
        np.testing.assert_allclose(run.metrics["step_length"], 0.1, rtol=1e-12)
    if T == 2:
        # One free direction: x_0 - x_1 times z; from any start the weight goes straight along it.
        way = np.sign(run.W - run.initial["W"]).item()
        assert run.W.item() == pytest.approx(run.initial["W"].item() + way * 5.0, rel=1e-12)


def test_one_token_joint_training_by_polyak_steps():
    """T = 1: W never has a gradient, the head goes on for ever with log L = -t / 2."""
    tokens = al.Tokens(x=[[[1.0, 0.0]]], z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    run = al.descend(tokens, al.polyak(), steps=3000, train_head=True, loss="exponential", init="zeros", record=None)
    np.testing.assert_array_equal(run.W, np.zeros((2, 2)))
    np.testing.assert_allclose(run.u, [1500.0, 0.0], rtol=1e-12)


def tied(first, permute):
    """Sequences whose tokens have one sum, exactly in decimals and up to rounding in floats; v sums the entries."""
    x = np.array([[first, first[::-1], first[1:] + first[:1]]] * 2) / 10.0
    rng = np.random.default_rng(permute)
    return al.Tokens(x=x, z=rng.standard_normal((2, 3)), y=[1.0, -1.0], v=np.ones(3))


def test_exactly_tied_scores_give_no_step():
    """Every token scores the same under v, so attention has nothing to learn and stays where it is."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 3, 3))
    x[..., 2] = 0.1
    tokens = al.Tokens(x=x, z=rng.standard_normal((2, 3)), y=[1.0, -1.0], v=[0.0, 0.0, 1.0])
    run = al.descend(tokens, al.ngd(0.1), steps=30)
    assert run.W.tobytes() == run.initial["W"].tobytes()
    assert_no_nan(run)


@settings(deadline=None, max_examples=20, database=None, derandomize=True)
@given(first=st.lists(st.integers(-9, 9), min_size=3, max_size=3), seed=st.integers(0, 9))
def test_scores_tied_up_to_rounding_give_no_step(first, seed):
    run = al.descend(tied(first, seed), al.ngd(0.1), steps=30)
    assert run.W.tobytes() == run.initial["W"].tobytes()


@pytest.mark.parametrize("scale", [1e50, 1e-50])
def test_huge_and_tiny_tokens(scale):
    small = al.data.sphere(n=5, T=5, d=10, seed=7, trials=4)
    tokens = al.Tokens(x=small.x * scale, z=small.z * scale, y=small.y, v=small.v * scale)
    run = al.descend(tokens, al.ngd(0.1), steps=100, record=[0, 1, 100])
    assert_no_nan(run)
    np.testing.assert_allclose(run.metrics["step_length"], 0.1, rtol=1e-10)
