"""Gradient flow against closed forms, small steps of gradient descent, and the laws it must obey."""

import mpmath as mp
import numpy as np
import pytest
from attention_oracle import arrays_of, gradients
from flow_cases import best_mixture, max_margin, orthonormal, two_token_time
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.train.flow import flow


def small_steps(tokens, start, time, steps):
    """Gradient descent in long double with `steps` steps of size time / steps."""
    data, weights = arrays_of(tokens), {k: np.asarray(w, np.longdouble) for k, w in start.items()}
    for _ in range(steps):
        slope, _ = gradients(data, weights)
        weights = {k: w - time / np.longdouble(steps) * slope[k] for k, w in weights.items()}
    return {k: np.asarray(w, np.float64) for k, w in weights.items()}


@pytest.mark.parametrize("loss", ["logistic", "exponential", "correlation"])
@pytest.mark.parametrize("time", [1e-3, 3.0, 1e5, 1e14, 1e30])
def test_two_tokens_have_a_closed_form(loss, time):
    run = flow(al.data.two_tokens(), time=time, loss=loss, init="zeros", record=None)
    reached = two_token_time(run.W[0, 0], loss)
    # The logit grows like log t: an error in it is the same error in log t. A step may err by 1e-9 * 70 + 1e-10, and
    # errors die out like 1/t.
    assert abs(float(mp.log(reached / time))) < 1e-6
    assert np.count_nonzero(run.W) == 1


def test_every_recorded_time_is_on_the_curve():
    times = [0.0, 0.5, 7.0, 1e3, 1e9, 1e20, 1e21]
    run = flow(al.data.two_tokens(), time=1e21, loss="correlation", init="zeros", record=times)
    assert run.times.tolist() == times
    logits = run.metrics["norm"]
    assert logits[0] == 0.0
    got = [float(two_token_time(a, "correlation")) for a in logits[1:]]
    assert np.allclose(got, times[1:], rtol=1e-6)
    assert run.metrics["log_gradient_norm"][-1] == pytest.approx(-logits[-1], abs=1e-6)


@pytest.mark.parametrize("kind", ["W", "KQ", "causal"])
def test_small_steps_of_gradient_descent_come_closer_in_proportion(kind):
    rng = np.random.default_rng(5)
    tokens = al.data.sphere(3, 4, 5, seed=3)
    if kind == "causal":
        tokens = al.Tokens(x=tokens.x, z=tokens.x, y=rng.choice([-1.0, 1.0], (3, 4)), v=tokens.v, mask="causal")
    names = ("K", "Q") if kind == "KQ" else ("W",)
    start = {name: 0.5 * rng.standard_normal((5, 5)) for name in names}
    run = flow(tokens, time=20.0, parameterization="KQ" if kind == "KQ" else "W", init=start, record=None)
    apart = []
    for steps in (200, 400, 800):
        near = small_steps(tokens, start, 20.0, steps)
        apart.append(max(np.abs(near[k] - run.weights[k]).max() for k in names))
    # First order: halving the step halves the error, with a correction of the order of the step.
    assert 1.85 < apart[0] / apart[1] < 2.15
    assert 1.92 < apart[1] / apart[2] < 2.08
    # Two Richardson steps remove the errors of orders one and two.
    best = small_steps(tokens, start, 20.0, 800), small_steps(tokens, start, 20.0, 400)
    better = {k: 2 * best[0][k] - best[1][k] for k in names}
    assert max(np.abs(better[k] - run.weights[k]).max() for k in names) < 0.05 * apart[2]


@pytest.mark.parametrize("strength", [0.1, 0.5, 1.0, 2.0])
def test_concave_head_finds_the_exact_support(strength):
    """Figure 9 by flow: three instances per strength, 12 in all, each with the support of the simplex problem."""
    tokens = orthonormal(3, 900)
    run = flow(tokens, time=1e14, head=al.models.Concave(strength), loss="correlation", init="zeros", record=None)
    assert run.success.all()
    for i in range(3):
        exact = best_mixture(tokens.x[i, 0] @ tokens.v[i], strength)
        assert (run.support[i, 0] == (exact > 0)).all()
        # A token that is left behind holds about 1 / t times the inverse of its gap; the others are as accurate
        # as the steps were.
        assert np.abs(run.attention[i, 0] - exact).max() < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.1, 0.5, 1.0, 2.0])
def test_concave_head_to_the_far_end(strength):
    tokens = orthonormal(2, 900)
    head = al.models.Concave(strength)
    run = flow(tokens, time=1e100, head=head, loss="correlation", init="zeros", record=None, max_steps=5000)
    assert run.success.all()
    for i in range(2):
        exact = best_mixture(tokens.x[i, 0] @ tokens.v[i], strength)
        assert (run.support[i, 0] == (exact > 0)).all()
        assert np.abs(run.attention[i, 0] - exact).max() < 1e-8


@pytest.mark.slow
def test_a_token_that_comes_back_late():
    """A weight that has faded to 1e-12 while its gain was negative grows again, and is in the mixture after 1e16."""
    tokens = orthonormal(46, 900)[45]
    exact = best_mixture(tokens.x[0] @ tokens.v, 0.1)
    options = dict(head=al.models.Concave(0.1), loss="correlation", init="zeros", record=None, max_steps=3000)
    early = flow(tokens, time=1e14, **options)
    assert (early.support.sum(), np.sum(exact > 0)) == (1, 2)
    gain = tokens.x[0] @ tokens.v - 0.2 * early.attention[0]
    assert np.argmax(gain) != early.selected[0]  # it is not at rest
    late = flow(tokens, time=1e30, **options)
    assert late.success
    assert np.abs(late.attention[0] - exact).max() < 1e-8
    assert (late.support[0] == (exact > 0)).all()


def test_W_tends_to_the_frobenius_direction():
    """W = W_mm log t + O(1): squaring the time quarters the misalignment."""
    tokens = al.data.sphere(3, 4, 5, seed=3, trials=3)
    runs = [flow(tokens, time=time, record=None) for time in (1e75, 1e150)]
    for i in range(3):
        assert (runs[0].selected[i] == runs[1].selected[i]).all()
        W = max_margin(tokens[i], runs[1].selected[i], "frobenius")
        early, late = (al.misalignment(run.W[i], W) for run in runs)
        assert late < 0.3 * early
        assert late < 1e-3  # a regularization path reaches this at 100 times the norm of W_mm; here it is above 300
        assert (runs[1].support[i].sum(-1) == 1).all()


@pytest.mark.slow
def test_K_and_Q_tend_to_the_nuclear_direction():
    """Where the nuclear solution has rank one, small balanced K and Q find it; it differs from the Frobenius one."""
    tokens = al.data.two_clusters(seed=0, trials=10)
    start = np.stack([np.linalg.qr(np.random.default_rng(i).standard_normal((2, 2)))[0] for i in range(10)])
    start = {"K": 0.1 * start, "Q": 0.1 * start}
    runs = [flow(tokens, time=t, parameterization="KQ", init=start, record=None) for t in (1e14, 1e100)]
    told_apart = 0
    for i in range(10):
        nuclear, frobenius = (max_margin(tokens[i], runs[1].selected[i], norm) for norm in ("nuclear", "frobenius"))
        if np.linalg.svd(nuclear, compute_uv=False)[1] > 1e-4 * np.linalg.norm(nuclear):
            continue  # rank two grows like a power of log t: out of reach
        early, late = (al.misalignment(run.W[i], nuclear) for run in runs)
        assert late < 0.5 * early
        assert late < 1e-2
        if al.misalignment(nuclear, frobenius) > 0.02:
            told_apart += 1
            assert late < 0.05 * al.misalignment(runs[1].W[i], frobenius)
    assert told_apart >= 2


@pytest.mark.parametrize("parameterization", ["W", "KQ"])
def test_the_result_depends_on_the_tolerance_by_no_more_than_its_error(parameterization):
    tokens = al.data.sphere(3, 4, 5, seed=8)
    ends = [
        flow(tokens, parameterization=parameterization, time=1e10, rtol=rtol, atol=rtol / 10, record=None).W
        for rtol in (1e-6, 1e-8, 1e-11)
    ]
    loose, tight = (np.linalg.norm(W - ends[2]) / np.linalg.norm(W) for W in ends[:2])
    # A few hundred steps, each of which errs by at most rtol, relatively.
    assert loose < 1e3 * 1e-6
    assert tight < 1e3 * 1e-8
    assert tight < loose


def test_what_is_orthogonal_to_the_tokens_is_frozen():
    tokens = al.data.sphere(3, 4, 5, seed=2)
    start = np.random.default_rng(0).standard_normal((5, 5))
    lead = tokens.x[:, 1:] - tokens.x[:, :1]
    rows = np.einsum("ntd,ne->ntde", lead, tokens.z).reshape(9, 25)
    moved = (flow(tokens, init=start, record=None).W - start).ravel()
    inside = rows.T @ np.linalg.lstsq(rows.T, moved, rcond=None)[0]
    assert np.linalg.norm(moved - inside) < 1e-13 * np.linalg.norm(moved)


def test_the_balance_of_K_and_Q_is_conserved():
    """d/dt (K^T K - Q^T Q) = 0."""
    tokens = al.data.sphere(3, 4, 5, seed=2)
    run = flow(tokens, parameterization="KQ", record=None)

    def balance(w):
        return w["K"].T @ w["K"] - w["Q"].T @ w["Q"]

    assert np.abs(balance(run.weights) - balance(run.initial)).max() < 1e-6 * np.linalg.norm(run.K) ** 2


def test_wide_factors_are_followed_in_their_span():
    """K and Q wider than the data: same as the width reduced by hand."""
    tokens = al.data.sphere(2, 2, 3, seed=4)
    rng = np.random.default_rng(1)
    K, Q = rng.standard_normal((2, 3, 9))
    turn = np.linalg.qr(np.concatenate([K, Q]).T)[0]
    wide = flow(tokens, parameterization="KQ", init={"K": K, "Q": Q}, time=1e6, record=None)
    narrow = flow(tokens, parameterization="KQ", init={"K": K @ turn, "Q": Q @ turn}, time=1e6, record=None)
    assert np.abs(wide.W - narrow.W).max() < 1e-6
    assert np.abs(wide.K @ turn @ turn.T - wide.K).max() < 1e-12


def test_a_trial_is_the_same_alone_and_in_a_batch():
    tokens = al.data.sphere(3, 4, 5, seed=6, trials=3)
    start = np.random.default_rng(3).standard_normal((3, 5, 5))
    together = flow(tokens, init=start, time=1e6)
    alone = flow(tokens[1], init=start[1], time=1e6)
    assert (together.W[1] == alone.W).all()
    assert (together.metrics["loss"][1] == alone.metrics["loss"]).all()
    assert together.steps[1] == alone.steps
    assert together.trials == 3
    assert alone.trials is None


@settings(max_examples=10, deadline=None)
@given(st.integers(-60, 60), st.integers(-60, 60))
def test_scaling_the_data_scales_time_and_weights(power_x, power_v):
    """Tokens times a and queries times b: W / (a b) at time t / (a b)^2. The head is undone by the inverse of a."""
    tokens = al.data.sphere(3, 4, 5, seed=6)
    a, b = 2.0**power_x, 2.0**power_v
    scaled = al.Tokens(x=a * tokens.x, z=b * tokens.z, y=tokens.y, v=tokens.v / a)
    plain = flow(tokens, init="zeros", time=1e8, record=None)
    other = flow(scaled, init="zeros", time=1e8 / (a * b) ** 2, record=None)
    assert np.abs(other.W * (a * b) - plain.W).max() < 1e-6


def test_the_loss_never_rises():
    run = flow(al.data.sphere(3, 4, 5, seed=11, trials=3), parameterization="KQ", time=1e12)
    assert (np.diff(run.metrics["loss"], axis=-1) <= 1e-12).all()
    assert (np.diff(run.metrics["log_excess_loss"], axis=-1) < 1e-9).all()


def test_late_loss_falls_like_one_over_time():
    """The excess loss of a linear head is proportional to 1 / t in the end: dL/dlog t = -|t grad|^2 / t."""
    run = flow(al.data.two_tokens(), init="zeros", time=1e20, loss="correlation")
    late = run.times >= 1e15
    slope = np.polyfit(np.log(run.times[late]), run.metrics["log_excess_loss"][late], 1)[0]
    assert slope == pytest.approx(-1.0, abs=1e-6)
    assert run.exponent[0] == pytest.approx([0.0, -1.0], abs=1e-6)
