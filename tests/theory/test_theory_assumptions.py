"""Assumptions B, C and D: on data built to have them or not, and against plain loops."""

import dataclasses

import numpy as np
import pytest
import theory_oracle as oracle
from scipy.optimize import nnls

import attnlab as al
from attnlab.errors import InputError
from attnlab.theory import (
    assumption_b1,
    assumption_b1_proxy,
    assumption_b2,
    assumption_c,
    assumption_d,
    interpolation_room,
    locally_optimal_selections,
)
from attnlab.theory.svm import assumptions


def with_orthogonal_tokens(seed: int, n: int, T: int) -> al.Tokens:
    """Orthogonal tokens of different lengths and orthogonal queries: every constraint is tight."""
    rng = np.random.default_rng(seed)
    d = max(n, T)
    x = np.stack([np.linalg.qr(rng.standard_normal((d, d)))[0][:T] for _ in range(n)])
    x = x * rng.uniform(0.5, 2.0, (n, T, 1))
    z = np.linalg.qr(rng.standard_normal((d, d)))[0][:n] * rng.uniform(0.5, 2.0, (n, 1))
    return al.Tokens(x=x, z=z, y=rng.choice([-1.0, 1.0], n), v=rng.standard_normal(d))


def with_equal_scores(tokens: al.Tokens, tilt: float = 0.0) -> al.Tokens:
    """Non-optimal tokens moved along v to one score below the best; `tilt` spreads them again."""
    x, v = tokens.x.copy(), tokens.v
    best = oracle.best(tokens)
    for i in range(tokens.n):
        others = [t for t in range(tokens.T) if t != best[i]]
        level = x[i, others[0]] @ v
        for k, t in enumerate(others):
            along = (level - tilt * tokens.y[i] * k) / (v @ v)
            x[i, t] = along * v + x[i, t] - (x[i, t] @ v) / (v @ v) * v
    return al.Tokens(x=x, z=tokens.z, y=tokens.y, v=v)


def interpolates(tokens: al.Tokens) -> bool:
    """Has `gram l = 1` a solution l >= 0? By non-negative least squares on the matrices themselves."""
    A = np.array([m.ravel() for _, _, m in oracle.constraints(tokens, oracle.best(tokens))])
    scale = 1 / np.linalg.norm(A, axis=1)
    gram = (A * scale[:, None]) @ (A * scale[:, None]).T
    _, residual = nnls(gram, scale, maxiter=10_000)
    return residual < 1e-7 * np.linalg.norm(scale)


@pytest.mark.parametrize(("n", "T"), [(1, 2), (1, 5), (3, 4), (4, 3), (5, 2)])
def test_b1_holds_for_orthogonal_tokens_and_queries(n, T):
    for seed in range(5):
        tokens = with_orthogonal_tokens(seed, n, T)
        exact, proxy = assumption_b1(tokens), assumption_b1_proxy(tokens)
        assert exact
        assert exact.evidence["agrees"]
        assert exact.evidence["room"] > 0
        assert exact.evidence["constraints"] == n * (T - 1)
        assert 0 <= exact.margin < 1e-4
        assert proxy
        assert proxy.margin == pytest.approx(0.1, abs=1e-6)


def test_b1_fails_where_one_constraint_implies_another():
    x = np.array([[[1.0, 0.0], [0.0, 0.0], [-2.0, 0.0]]])
    tokens = al.Tokens(x=x, z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    exact, proxy = assumption_b1(tokens), assumption_b1_proxy(tokens)
    assert not exact
    assert exact.evidence["largest"] == pytest.approx(3.0)
    assert exact.margin == pytest.approx(-2.0, abs=1e-5)
    assert exact.evidence["room"] == -np.inf
    assert exact.evidence["agrees"]
    assert not proxy
    assert proxy.evidence["mean"] == pytest.approx(2.0)
    assert proxy.margin == pytest.approx(-0.9)
    assert assumption_b1_proxy(tokens, threshold=2.1)
    assert repr(exact) == "Check(B.1 does not hold, margin=-2)"


@pytest.mark.parametrize(("n", "T", "d"), [(2, 3, 6), (2, 2, 3), (3, 3, 12), (1, 4, 5), (2, 3, 2)])
def test_b1_against_nonnegative_interpolation(n, T, d):
    seen = set()
    for seed in range(15):
        tokens = oracle.draw(seed, n, T, d)
        best = oracle.best(tokens)
        W = oracle.max_margin(tokens, best)
        got = assumption_b1(tokens)
        if W is None:
            assert not got
            assert got.margin == -np.inf
            assert got.evidence["status"] == "infeasible"
            assert not assumption_b1_proxy(tokens)
            continue
        assert got.holds == interpolates(tokens)
        assert got.evidence["agrees"]
        assert got.holds == (got.margin >= 0)
        values = list(oracle.values(tokens, best, W).values())
        assert got.evidence["largest"] == pytest.approx(max(values), rel=1e-6)
        assert got.holds == (max(values) < 1 + 1e-6)
        assert assumption_b1_proxy(tokens).margin == pytest.approx(1.1 - np.mean(values), abs=1e-6)
        assert not got or assumption_b1_proxy(tokens), "the proxy is the weaker test"
        seen.add(got.holds)
    assert seen == {True, False} or d == 2


def test_b1_with_dependent_constraints():
    """The same sequence twice: the Gram matrix is singular, and the multipliers may be shared in any way."""
    for seed in range(5):
        once = with_orthogonal_tokens(seed, 2, 3)
        twice = al.Tokens(**{k: np.concatenate([getattr(once, k)] * 2) for k in ("x", "z", "y")}, v=once.v)
        one, two = assumption_b1(once), assumption_b1(twice)
        assert two
        assert two.evidence["agrees"]
        assert two.evidence["room"] == pytest.approx(one.evidence["room"], rel=1e-6)


def test_room_of_interpolation():
    assert interpolation_room(np.diag([1.0, 4.0])) == pytest.approx(0.25 / 0.625)
    # l = (1, -1) up to scale: 2 l1 + 3 l2 = 1, 3 l1 + 5 l2 = 1 has l = (2, -1)
    assert interpolation_room(np.array([[2.0, 3.0], [3.0, 5.0]])) == pytest.approx(-1 / 0.5)
    # Twins share: (l, 0) and (0, l) solve as well as (l, l) / 2.
    assert interpolation_room(np.ones((2, 2))) == pytest.approx(1.0)
    assert interpolation_room(np.array([[1.0, 2.0], [2.0, 4.0]])) == -np.inf


def test_b1_takes_a_solution_of_its_own_selection():
    tokens = al.data.two_tokens()
    bare = al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y)
    other = al.solve_margin(bare, [1])
    assert assumption_b1(bare, solution=other)
    assert assumption_b1_proxy(bare, solution=other)
    nuclear = dataclasses.replace(other, norm="nuclear")
    assert "room" not in assumption_b1(bare, solution=nuclear).evidence
    unsure = dataclasses.replace(other, support=None, reason="wide gap")
    assert not assumption_b1(bare, solution=unsure)
    with pytest.raises(InputError, match=r"`solution` is \[1\]"):
        assumption_b1(bare, solution=[1])
    with pytest.raises(InputError, match="`solution` is for tokens"):
        assumption_b1(oracle.draw(0, 2, 2, 2), solution=other)


def test_the_proxy_is_much_weaker_than_b1():
    """n = T = 5, d = 20, leads of at least 0.1: the proxy always holds, B.1 itself hardly ever."""
    data = al.data.sphere(n=5, T=5, d=20, gap=0.1, seed=120, trials=20)
    proxy = sum(bool(assumption_b1_proxy(data[i])) for i in range(20))
    exact = sum(bool(assumption_b1(data[i])) for i in range(20))
    assert proxy >= 19
    assert exact <= 4


@pytest.mark.parametrize(("n", "T", "d"), [(1, 4, 3), (3, 5, 6), (2, 2, 2), (2, 3, 1)])
def test_b2_on_equalised_scores(n, T, d):
    for seed in range(5):
        tokens = oracle.draw(seed, n, T, d)
        flat = assumption_b2(with_equal_scores(tokens))
        assert flat
        assert flat.evidence["deviation"] < 1e-13
        assert flat.evidence["gap"] > 0
        tilted = assumption_b2(with_equal_scores(tokens, tilt=0.01))
        assert tilted.evidence["deviation"] == pytest.approx(0.01 * (T - 2), abs=1e-12)
        assert tilted.holds == (T == 2)
        assert tilted.holds == (tilted.margin >= 0)
        assert assumption_b2(with_equal_scores(tokens, tilt=0.01), tolerance=10.0)


def test_b2_against_a_loop_and_with_ties():
    for shape in [(3, 4, 3, None, True), (2, 3, 2, 2, False), (2, 3, 2, 2, True), (2, 1, 2, None, False)]:
        tokens = oracle.draw(1, *shape)
        worst, gap = 0.0, np.inf
        for index, _ in oracle.queries(tokens):
            top = oracle.best(tokens)[index]
            rest = [oracle.score(tokens, index, t) for t in range(tokens.T) if tokens.visible[(*index, t)] and t != top]
            if rest:
                worst = max(worst, max(rest) - min(rest))
                gap = min(gap, oracle.score(tokens, index, top) - max(rest))
        got = assumption_b2(tokens)
        assert got.evidence["deviation"] == pytest.approx(worst, abs=1e-13)
        assert got.evidence["gap"] == pytest.approx(gap, abs=1e-13)
    tied = al.Tokens(x=[[[1.0, 0.0], [1.0, 1.0]]], z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    got = assumption_b2(tied)
    assert not got
    assert got.evidence["tied"] == 1
    assert got.evidence["gap"] == 0


LOSSES = ["logistic", "exponential", "correlation"]


@pytest.mark.parametrize("loss", LOSSES)
def test_c_against_finite_differences(loss):
    seen = set()
    for seed, shape in enumerate([(2, 3, 3)] * 8 + [(2, 3, 3, 1, True)]):
        tokens = oracle.draw(seed, *shape)
        steps = 1e-5 * np.eye(tokens.d**2).reshape(-1, tokens.d, tokens.d)
        both = np.concatenate([steps, -steps])
        up, down = np.split(al.models.loss(al.Tokens.stack([tokens] * len(both)), both, loss=loss), 2)
        slope = ((up - down) / 2e-5).reshape(tokens.d, tokens.d)
        got = assumption_c(tokens, loss=loss)
        np.testing.assert_allclose(got.evidence["gradient"], slope, atol=1e-8)
        listed = oracle.constraints(tokens, oracle.best(tokens))
        cosines = [-np.sum(m * slope) / np.linalg.norm(m) / np.linalg.norm(slope) for _, _, m in listed]
        for index, t, m in listed:
            assert got.evidence["values"][(*index, t)] == pytest.approx(-np.sum(m * slope), abs=1e-7)
        assert np.isfinite(got.evidence["values"]).sum() == len(listed)
        assert got.margin == pytest.approx(min(cosines), abs=1e-6)
        assert got.holds == (min(cosines) > 0)
        seen.add(got.holds)
    assert seen == {True, False}


def test_c_where_nothing_moves_or_nothing_is_compared():
    level = al.Tokens(x=[[[0.0, 1.0], [0.0, -1.0]]], z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    got = assumption_c(level)
    assert not got
    assert got.margin == 0
    assert not got.evidence["gradient"].any()
    assert got.evidence["tied"] == 1
    alone = al.Tokens(x=[[[0.0, 1.0]]], z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    for check in (assumption_b1, assumption_b1_proxy, assumption_c, assumption_d):
        assert check(alone)
        assert check(alone).margin == np.inf
    assert assumption_b2(alone)
    assert assumption_c(al.data.two_tokens(), head=al.models.Linear())


def d_by_loop(tokens: al.Tokens) -> tuple[list, int]:
    best, failing, feasible = oracle.best(tokens), [], 0
    for selected in oracle.every_selection(tokens):
        tight = oracle.support(tokens, selected)
        feasible += tight is not None
        if tight is None or np.array_equal(selected, best):
            continue
        if not any(selected[q] != best[q] and (q, int(best[q])) in tight for q, _ in oracle.queries(tokens)):
            failing.append(selected.tolist())
    return failing, feasible


@pytest.mark.parametrize(
    "shape", [(2, 3, 2), (2, 3, 6), (3, 2, 3), (1, 4, 2), (2, 2, 1), (1, 3, 3, 2), (2, 4, 3, None, True)], ids=str
)
def test_d_against_a_loop_and_what_it_implies(shape):
    for seed in range(6):
        tokens = oracle.draw(seed, *shape)
        failing, feasible = d_by_loop(tokens)
        got = assumption_d(tokens)
        assert got.evidence["failing"].tolist() == failing
        assert got.evidence["feasible"] == feasible
        assert got.evidence["undecided"] == 0
        assert got.holds == (not failing)
        assert got.holds == (got.margin >= 0)
        if got:
            found = locally_optimal_selections(tokens)
            best = oracle.best(tokens)
            assert all(np.array_equal(s, best) for s in found)
            assert len(found) == (best in found)


def test_d_slack_is_how_far_the_best_token_lies_beyond_the_margin():
    # Tokens on a line at 0, 1, 5 (scores 0, 1, 5): selecting token 0 leaves the best one at value 5, four beyond.
    tokens = al.Tokens(x=[[[0.0], [1.0], [5.0]]], z=[[1.0]], y=[1], v=[1.0])
    got = assumption_d(tokens)
    assert not got
    assert got.margin == pytest.approx(-4.0, abs=1e-5)
    assert got.evidence["failing"].tolist() == [[0]]
    assert got.evidence["total"] == 3
    assert got.evidence["feasible"] == 2
    with pytest.raises(InputError, match="`limit` = 2"):
        assumption_d(tokens, limit=2)


@pytest.mark.parametrize("build", ["b1", "b2"])
def test_under_b_the_gradient_always_opposes_the_margin_direction(build):
    """<grad L(W), W^mm> < 0 for all W; under B.1 it is (1/n) sum l' s_opt (gamma_opt - gamma.s)."""
    for seed in range(4):
        tokens = with_orthogonal_tokens(seed, 3, 4) if build == "b1" else with_equal_scores(oracle.draw(seed, 3, 4, 6))
        assert assumption_b1(tokens) if build == "b1" else assumption_b2(tokens)
        best = oracle.best(tokens)
        W_mm = oracle.max_margin(tokens, best)
        assert W_mm is not None
        scales = np.repeat([0.1, 1.0, 3.0], 4)[:, None, None]
        weights = scales * np.random.default_rng(seed).standard_normal((12, tokens.d, tokens.d))
        mantissa, log_scale = al.models.gradient(al.Tokens.stack([tokens] * 12), weights)
        slopes = np.einsum("rij,ij->r", mantissa["W"], W_mm) * np.exp(log_scale["W"])
        assert (slopes < 0).all()
        for W, slope in zip(weights, slopes, strict=True):
            if build == "b2":
                continue
            total = 0.0
            for i in range(tokens.n):
                logits = tokens.x[i] @ W @ tokens.z[i]
                s = np.exp(logits - logits.max())
                s = s / s.sum()
                gamma = tokens.y[i] * tokens.x[i] @ tokens.v
                total += -s[best[i]] * (gamma[best[i]] - gamma @ s) / (1 + np.exp(gamma @ s))
            assert slope == pytest.approx(total / tokens.n, rel=1e-8, abs=1e-14)


@pytest.mark.parametrize("check", [assumption_b1, assumption_b1_proxy, assumption_b2, assumption_c, assumption_d])
def test_batches_and_strangers_are_refused(check):
    tokens = oracle.draw(0, 2, 2, 2)
    with pytest.raises(InputError, match="`tokens` is a batch of 2 trials"):
        check(al.Tokens.stack([tokens, tokens]))
    with pytest.raises(InputError, match="`tokens` is "):
        check({})


def test_ties_of_best_tokens_are_counted():
    # The first query has two best tokens, the second one.
    x = [[[1.0, 0.0], [1.0, 1.0], [0.0, 0.5]], [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]]
    tokens = al.Tokens(x=x, z=np.eye(2), y=[1, 1], v=[1.0, 0.0])
    for check in (assumption_b1, assumption_b1_proxy, assumption_b2, assumption_c, assumption_d):
        assert check(tokens).evidence["tied"] == 1
        assert check(oracle.draw(0, 2, 3, 3)).evidence["tied"] == 0


def test_d_is_not_shown_while_a_selection_is_undecided(monkeypatch):
    tokens = al.Tokens(x=[[[1.0], [0.0]]], z=[[1.0]], y=[1], v=[1.0])
    assert assumption_d(tokens)
    real = list(assumptions.solved_selections(tokens, 10))
    blurred = [(chosen, dataclasses.replace(found, support=None, reason="wide gap")) for chosen, found in real]
    monkeypatch.setattr(assumptions, "solved_selections", lambda tokens, limit: blurred)
    got = assumption_d(tokens)
    assert not got
    assert got.evidence["undecided"] == 2
    assert got.evidence["feasible"] == 0
    assert len(got.evidence["failing"]) == 0


def test_b1_is_not_shown_by_values_that_no_gap_certifies():
    """Other norms, and nuclear problems with several optima, have values of unknown error: that proves nothing."""
    from attnlab.svm.norms import SPECTRAL

    tokens = al.data.sphere(n=3, T=4, d=5, seed=0)
    other = al.solve_margin(tokens, al.optimal_tokens(tokens), norm=SPECTRAL)
    assert np.nanmax(other.values) > 1.01
    assert np.isinf(np.nanmax(other.value_error))
    check = assumption_b1(tokens, solution=other)
    assert not check
    assert check.margin == -np.inf
    # Queries e1 and e2, differences e1 and e2: any W with ones on the diagonal and |off-diagonal| alike is an optimum.
    many = al.Tokens(x=[[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]], z=np.eye(2), y=[1, 1], v=[1.0, 1.0])
    solution = al.solve_margin(many, [0, 0], norm="nuclear")
    assert solution.unique is False
    assert not assumption_b1(many, solution=solution)
