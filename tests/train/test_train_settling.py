"""`settled`: what is proved stays so, and the inequality of the proof holds along paths."""

import numpy as np
import pytest

import attnlab as al
from attnlab.train.settling import BLUR, SATURATED, Judge

TOKENS = al.data.sphere(n=3, T=4, d=3, seed=2, trials=12)


@pytest.fixture(scope="module")
def runs():
    return {steps: al.descend(TOKENS, al.ngd(0.1), steps=steps, record=None) for steps in (40, 400)}


@pytest.mark.parametrize("steps", [40, 400])
def test_settled_runs_keep_their_tokens(runs, steps):
    run = runs[steps]
    far = al.flow(TOKENS, time=1e20, record=None, init=run.weights)
    assert run.settled.shape == (12,)
    assert (far.selected == run.selected)[run.settled].all()
    assert far.settled.sum() >= run.settled.sum()


def test_more_steps_settle_more(runs):
    early, late = runs[40].settled.sum(), runs[400].settled.sum()
    assert early < late
    assert late > 0


def test_what_is_not_locally_optimal_is_not_settled(runs):
    for run in runs.values():
        local = [bool(al.is_locally_optimal(TOKENS[i], run.selected[i])) for i in range(12)]
        assert not (run.settled & ~np.array(local)).any()


def test_best_tokens_by_the_loss():
    """Two tokens, scores 1 and 0, lead m in logits: settled once the loss is below that of equal attention."""
    tokens = al.data.two_tokens()
    for m in (-1.0, -0.01, 0.01, 1.0):
        W = np.diag([m, 0.0])
        run = al.descend(tokens, al.gd(1e-12), steps=1, record=None, init=W)
        lead = (tokens.x[0, 0] - tokens.x[0, 1]) @ W @ tokens.z[0]
        assert bool(run.settled) == (lead > 0)
        assert run.settled.shape == ()


@pytest.mark.parametrize("size", [0.0, 0.3, 2.0])
def test_paths_stay_as_near_as_the_proof_says(size):
    """|W(s) - W(0) - C - s A*|^2 <= |C|^2 + 2 s E on the flow of F = log sum c e^-m, by small Euler steps."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        A, c, W = rng.standard_normal((6, 9)) + 1.0, rng.uniform(0.1, 1.0, 6), rng.standard_normal(9)
        share = _shortest(A)
        axis, start = share @ A, W.copy()
        C = size * rng.standard_normal(9)
        C -= axis * (axis @ C) / (axis @ axis)
        held = share > 1e-12
        u = np.log(c) - A @ (W + C)
        E = np.logaddexp.reduce(u) - share[held] @ (u[held] - np.log(share[held]))
        floor = share[held] @ (np.log(c[held]) - np.log(share[held]))  # F >= floor - <A*, W>
        assert E >= 0
        s, h = 0.0, 1e-3
        for _ in range(4000):
            u = np.log(c) - A @ W
            assert np.logaddexp.reduce(u) >= floor - axis @ W - 1e-9
            W, s = W + h * np.exp(u - np.logaddexp.reduce(u)) @ A, s + h
            stray = W - start - C - s * axis
            assert stray @ stray <= C @ C + 2.0 * (s + h) * E + 1e-6
            assert axis @ stray >= -1e-9  # along A* paths are ahead, never behind


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
@pytest.mark.parametrize("size", [0.1, 1.0, 6.0])
def test_pushes_of_attention_that_is_nearly_one_hot_are_as_near_as_the_proof_says(size, loss):
    """A token's part of minus the gradient, over e^-m, is c to within 3 slope spread (1 + spread) times the weight off
    the selected token, wherever that weight is at most a quarter, over one and over the spread of scores.
    """
    slope = {"logistic": lambda u: 1.0 / (1.0 + np.exp(u)), "exponential": lambda u: np.exp(-u)}[loss]
    nearest = 0.0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        gamma = np.append(0.0, size * rng.uniform(-1.0, 1.0, 3)) + rng.standard_normal()  # of the selected one first
        spread = np.ptp(gamma)
        weight = rng.uniform(0.2, 1.0, 3)
        off = SATURATED / max(1.0, spread) * rng.uniform(0.1, 1.0)
        weight *= off / weight.sum()  # e^-m
        attention = np.append(1.0, weight) / (1.0 + off)
        mean = attention @ gamma
        pushes = slope(mean) * (mean - gamma[1:]) / (1.0 + off)
        apart = np.abs(pushes - slope(gamma[0]) * (gamma[0] - gamma[1:])).max()
        bound = BLUR * slope(gamma[0]) * spread * (1.0 + spread) * off
        assert apart <= bound
        nearest = max(nearest, apart / bound)
    assert nearest > 0.2  # the bound says something


def _shortest(A):
    """Weights of the shortest convex combination, by Frank-Wolfe with exact line search on pairs."""
    share = np.full(len(A), 1.0 / len(A))
    for _ in range(20_000):
        point = share @ A
        slopes = A @ point
        up = int(np.argmin(slopes))
        down = int(np.argmax(np.where(share > 0, slopes, -np.inf)))
        if up == down:
            break
        way = A[up] - A[down]
        move = min(share[down], max(0.0, -(point @ way) / (way @ way)))
        share[up] += move
        share[down] -= move
    return share


def test_rivals_keep_a_run_unsettled_until_they_are_far():
    """Along the max-margin direction of a locally optimal selection, not the best: settled once W is long."""
    tokens = al.data.sphere(n=3, T=4, d=3, seed=2)
    selected = np.array([3, 0, 2])
    svm = al.solve_margin(tokens, selected)
    assert al.is_locally_optimal(tokens, selected, solution=svm)
    found = []
    for size in (1.0, 3.0, 30.0, 300.0):
        run = al.descend(tokens, al.gd(1e-9), steps=1, record=None, init=size * svm.W)
        found.append(bool(run.settled))
    assert found[0] is False
    assert found[-1] is True
    assert found == sorted(found)


def test_a_selection_that_is_not_locally_optimal_never_settles():
    tokens = al.data.sphere(n=3, T=4, d=3, seed=2)
    selected = np.array([1, 1, 1])
    svm = al.solve_margin(tokens, selected, throw=False)
    assert svm.feasible
    assert not al.is_locally_optimal(tokens, selected, solution=svm)
    run = al.descend(tokens, al.gd(1e-9), steps=1, record=None, init=1000.0 * svm.W)
    assert (run.selected == selected).all()
    assert not run.settled


def test_masks_and_several_queries():
    rng = np.random.default_rng(0)
    x, z, v = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 2, 4)), rng.standard_normal(4)
    tokens = al.Tokens(x=x, z=z, y=np.ones((2, 2)), v=v, mask=[[True, True, False], [True, True, True]])
    run = al.descend(tokens, al.ngd(0.1), steps=1000, record=None)
    far = al.flow(tokens, time=1e20, record=None, init=run.weights)
    assert run.settled
    assert (far.selected == run.selected).all()


def test_one_token_has_always_settled():
    tokens = al.Tokens(x=np.ones((1, 1, 1)), z=np.ones((1, 1)), y=[1.0], v=[1.0])
    assert al.descend(tokens, al.gd(0.1), steps=1, record=None).settled


def test_equal_scores_never_settle():
    tokens = al.Tokens(x=[[[1.0, 0.0], [0.0, 1.0]]], z=[[1.0, 0.0]], y=[1.0], v=[1.0, 1.0])
    run = al.descend(tokens, al.gd(0.1), steps=1, record=None, init=np.array([[50.0, 0.0], [0.0, 0.0]]))
    assert not run.settled


def test_printed_saved_and_not_known(tmp_path, runs):
    run = runs[400]
    assert f"settled in {run.settled.sum()} of 12" in repr(run)
    again = al.Trajectory.load(run.save(tmp_path / "run.npz"))
    assert (again.settled == run.settled).all()
    assert repr(again) == repr(run)
    assert again.judge is None
    other = al.descend(TOKENS[0], al.ngd(0.1), steps=2, record=None, head=al.models.Concave(1.0))
    assert other.settled is None
    assert "settled" not in repr(other)
    assert al.Trajectory.load(other.save(tmp_path / "other.npz")).settled is None


def test_rules_with_coordinates_are_judged_by_the_loss_alone():
    run = al.descend(TOKENS, al.adam(0.1), steps=400, record=None)
    best = (run.selected == al.optimal_tokens(TOKENS)).all(-1)
    assert isinstance(run.judge, Judge)
    assert run.judge.norm is None
    assert not (run.settled & ~best).any()
    assert run.settled.any()


def test_k_and_q():
    run = al.descend(TOKENS, al.ngd(0.1), steps=400, record=None, parameterization="KQ")
    far = al.descend(TOKENS, al.ngd(0.1), steps=4000, record=None, parameterization="KQ", init=run.weights)
    assert run.settled.any()
    assert (far.selected == run.selected)[run.settled].all()
