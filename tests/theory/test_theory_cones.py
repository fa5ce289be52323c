"""Cones and their constants: against loops, hand computation, and what Lemma 5 and Lemma 13 say of them."""

import dataclasses
import math

import numpy as np
import pytest
import theory_oracle as oracle

import attnlab as al
from attnlab.errors import InfeasibleSelection, InputError
from attnlab.theory import (
    barrier,
    default_eps,
    in_barrier_cone,
    in_cone,
    is_locally_optimal,
    local_cone,
    locally_optimal_selections,
    score_sides,
)

SHAPES = [
    (2, 3, 3, None, False), (2, 4, 3, None, False), (3, 3, 2, None, False), (1, 5, 2, None, False),
    (2, 4, 3, None, True), (1, 3, 4, 2, False), (2, 2, 1, None, False),
]  # fmt: skip


def near(W: np.ndarray, mu: float, rng: np.random.Generator) -> np.ndarray:
    """A matrix as long as W with cosine 1 - mu to it."""
    side = rng.standard_normal(W.shape)
    side -= np.sum(side * W) / np.sum(W * W) * W
    side *= np.linalg.norm(W) / np.linalg.norm(side)
    return (1 - mu) * W + math.sqrt(1 - (1 - mu) ** 2) * side


def test_membership():
    axis = np.array([[3.0, 0.0], [4.0, 0.0]])
    rng = np.random.default_rng(0)
    for mu in (1e-12, 1e-3, 0.3, 1.5):
        point = near(axis, mu, rng)
        assert in_cone(point, axis, mu=mu * 1.01)
        assert not in_cone(point, axis, mu=mu * 0.99)
        assert in_cone(point, axis, mu=mu * 1.01, R=4.999)
        assert not in_cone(point, axis, mu=mu * 1.01, R=5.001)
        assert in_cone(100 * point, axis / 7, mu=mu * 1.01, R=5.001)
    assert in_cone(axis, axis, mu=0.0, R=5.0)
    assert not in_cone(np.zeros((2, 2)), axis, mu=2.0)
    for wrong, text in [({"mu": -0.1}, "`mu` is -0.1"), ({"mu": math.nan}, "`mu` is nan")]:
        with pytest.raises(InputError, match=text):
            in_cone(axis, axis, **wrong)
    with pytest.raises(InputError, match="`direction` is the zero matrix"):
        in_cone(axis, 0 * axis, mu=0.1)
    with pytest.raises(InputError, match="`W` has shape"):
        in_cone([1.0, 2.0], axis, mu=0.1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_constants_against_loops(shape):
    count = 0
    for seed in range(4):
        tokens = oracle.draw(seed, *shape)
        for selected in locally_optimal_selections(tokens):
            W = oracle.max_margin(tokens, selected)
            tight = oracle.support(tokens, selected)
            if not tight:
                continue
            count += 1
            length = math.sqrt(float(np.sum(W * W)))
            delta, A, spread, gap = math.inf, 0.0, 0.0, math.inf
            most = 0
            for index, i in oracle.queries(tokens):
                seen = [t for t in range(tokens.T) if tokens.visible[(*index, t)]]
                most = max(most, len(seen))
                inside = [t for t in seen if (index, t) in tight]
                beyond = [t for t in seen if t not in inside and t != selected[index]]
                z = tokens.z[index]
                for t in inside:
                    lead = oracle.score(tokens, index, selected[index]) - oracle.score(tokens, index, t)
                    gap = min(gap, lead)
                    for s in beyond:
                        delta = min(delta, 0.5 * float((tokens.x[i, t] - tokens.x[i, s]) @ W @ z))
                for t in seen:
                    A = max(A, float(np.linalg.norm(tokens.x[i, t]) * np.linalg.norm(z)) * length)
                    for s in seen:
                        spread = max(spread, oracle.score(tokens, index, t) - oracle.score(tokens, index, s))
            cone = local_cone(tokens, selected)
            assert cone.delta == pytest.approx(delta, rel=1e-5)
            assert pytest.approx(A, rel=1e-6) == cone.A
            assert cone.spread == pytest.approx(spread, rel=1e-12)
            assert cone.gap == pytest.approx(gap, rel=1e-12)
            assert cone.mu == pytest.approx((min(0.5, delta) / A) ** 2 / 8, rel=1e-5)
            R = max(2, 1 / delta) * length * math.log(64 * most * spread * A / gap)
            assert pytest.approx(R, rel=1e-5) == cone.R
            assert 0 < cone.mu < 1
            assert 2 * length < cone.R
            np.testing.assert_array_equal(cone.empty, is_locally_optimal(tokens, selected).empty)
            assert cone.contains(cone.start * (1 + 1e-12))
            assert not cone.contains(cone.start * 0.99)
            assert cone.contains(cone.start * 0.99, R=0.0)
    assert count > 0


def test_radius_by_hand():
    """One query, tokens 1, 0, -2 on a line: W = 1, values 1 and 3."""
    tokens = al.Tokens(x=[[[1.0], [0.0], [-2.0]]], z=[[1.0]], y=[1], v=[0.5])
    cone = local_cone(tokens, [0])
    assert cone.delta == pytest.approx(1.0)
    assert pytest.approx(2.0) == cone.A
    assert cone.mu == pytest.approx((0.5 / 2) ** 2 / 8)
    assert cone.spread == 1.5
    assert cone.gap == 0.5
    assert pytest.approx(2 * math.log(64 * 3 * 1.5 * 2 / 0.5)) == cone.R
    assert repr(cone) == "LocalCone(mu=0.00781, R=14.1, delta=1, gap=0.5)"
    near_tie = al.Tokens(x=[[[1.0], [0.0], [-0.25]]], z=[[1.0]], y=[1], v=[0.5])
    cone = local_cone(near_tie, [0])
    assert cone.delta == pytest.approx(0.125)
    assert pytest.approx(8 * math.log(64 * 3 * 0.625 * 1 / 0.5)) == cone.R


def test_refusals_of_the_local_cone():
    tokens = al.data.two_tokens()
    with pytest.raises(InputError, match="`selected` is not locally optimal: 1 support tokens score no less"):
        local_cone(tokens, [1])
    alone = al.Tokens(x=[[[0.0, 1.0]]], z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    with pytest.raises(InputError, match="single token"):
        local_cone(alone, [0])


def test_queries_without_support_are_passed_over_and_flagged():
    x = np.array([[[1.0], [0.0]], [[0.0], [-10.0]]])
    tokens = al.Tokens(x=x, z=[[1.0], [1.0]], y=[1, -1], v=[1.0])
    cone = local_cone(tokens, [0, 0])
    assert cone.empty.tolist() == [False, True]
    assert cone.gap == 1.0
    assert cone.delta == np.inf
    assert repr(cone).endswith("1 queries without support)")


@pytest.mark.parametrize("seed", range(4))
def test_inside_the_cone_margins_keep_their_order(seed):
    """(68): for V in the cone, as long as W^mm, support values stay in [1/2, 3/2] and the others delta above them."""
    rng = np.random.default_rng(seed)
    tokens = oracle.draw(seed, 2, 4, 3)
    for selected in locally_optimal_selections(tokens):
        cone = local_cone(tokens, selected)
        tight = oracle.support(tokens, selected)
        for _ in range(20):
            V = near(cone.direction, cone.mu * rng.uniform(0.5, 1.0), rng)
            assert cone.contains(V, R=0.0)
            values = oracle.values(tokens, selected, V)
            for (query, t), value in values.items():
                if (query, t) in tight:
                    assert 0.5 - 1e-9 <= value <= 1.5 + 1e-9
                    continue
                inside = [values[w] for w in tight if w[0] == query]
                assert not inside or value >= max(inside) + cone.delta - 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_no_stationary_point_inside_the_cone(seed):
    """Lemma 13: -<grad L(W), V> > 0 for W in C_{mu,R} and V in the cone."""
    rng = np.random.default_rng(seed)
    tokens = oracle.draw(seed, 2, 4, 3)
    found = locally_optimal_selections(tokens)
    for selected, vacuous in list(zip(found, found.vacuous, strict=True))[:4]:
        if vacuous:
            continue
        cone = local_cone(tokens, selected)
        length = np.linalg.norm(cone.direction)
        far = [near(cone.direction, cone.mu, rng) * (cone.R / length * rng.uniform(1, 3)) for _ in range(5)]
        assert all(in_cone(W, cone.direction, mu=cone.mu * (1 + 1e-6), R=cone.R * (1 - 1e-9)) for W in far)
        mantissa, _ = al.models.gradient(al.Tokens.stack([tokens] * 5), np.array(far))
        for slope in mantissa["W"]:
            assert -np.sum(slope * near(cone.direction, cone.mu, rng)) > 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_barrier_against_a_loop(shape):
    for seed in range(6):
        tokens = oracle.draw(seed, *shape)
        rng = np.random.default_rng(seed)
        for selected in list(oracle.every_selection(tokens))[::3]:
            W = rng.standard_normal((tokens.d, tokens.d))
            wanted = oracle.barrier(tokens, selected, W)
            assert barrier(tokens, selected, W) == pytest.approx(wanted, rel=1e-9, abs=1e-12)
            assert barrier(tokens, selected, 1e200 * W) == pytest.approx(wanted, rel=1e-9, abs=1e-12)
            if np.isfinite(wanted):
                assert in_barrier_cone(tokens, selected, W, eps=wanted - 1e-9)
                assert not in_barrier_cone(tokens, selected, W, eps=wanted + 1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_locally_optimal_means_inside_the_barrier_cone(shape):
    """Lemma 5: W^mm is in cone_eps for small eps iff the selection is locally optimal, but for empty support sets."""
    inside = outside = 0
    for seed in range(8):
        tokens = oracle.draw(seed, *shape)
        for selected in oracle.every_selection(tokens):
            verdict = is_locally_optimal(tokens, selected)
            if not verdict.feasible or not verdict.solution.W.any():
                continue
            reach = barrier(tokens, selected, verdict.solution.W)
            if not verdict.vacuous:
                assert verdict.holds == (reach > 1e-9)
                inside, outside = inside + verdict.holds, outside + (not verdict.holds)
            elif not verdict:
                assert reach <= 1e-9, "this half of the lemma needs no support set"
            eps = default_eps(tokens, selected, solution=verdict.solution)
            assert eps == reach / 2
            if verdict and not verdict.vacuous:
                assert in_barrier_cone(tokens, selected, verdict.solution.W)
    if shape[2] > 1:  # on a line the query that is easier to separate has no support
        assert inside
        assert outside


def test_an_empty_support_set_breaks_lemma_5():
    """Locally optimal, but the second query has a higher token, no lower one, and no support: the cone is empty."""
    x = np.array([[[1.0], [0.0]], [[0.0], [-10.0]]])
    tokens = al.Tokens(x=x, z=[[1.0], [1.0]], y=[1, -1], v=[1.0])
    verdict = is_locally_optimal(tokens, [0, 0])
    assert verdict
    assert verdict.vacuous
    assert barrier(tokens, [0, 0], verdict.solution.W) == -np.inf


def test_the_cone_of_the_best_tokens_is_everything():
    for shape in SHAPES:
        tokens = oracle.draw(0, *shape)
        W = np.random.default_rng(0).standard_normal((tokens.d, tokens.d))
        assert barrier(tokens, oracle.best(tokens), W) == np.inf
        assert in_barrier_cone(tokens, oracle.best(tokens), W, eps=1e6)


def test_score_sides_against_a_loop_and_with_ties():
    for shape in SHAPES:
        tokens = oracle.draw(2, *shape)
        for selected in list(oracle.every_selection(tokens))[::2]:
            low, high = score_sides(tokens, selected)
            for where in np.ndindex(*low.shape):
                *query, t = where
                query = tuple(query)
                counts = tokens.visible[where] and t != selected[query]
                below = oracle.score(tokens, query, t) < oracle.score(tokens, query, selected[query])
                assert low[where] == (counts and below)
                assert high[where] == (counts and not below)
    tied = al.Tokens(x=[[[1.0, 0.0], [1.0, 1.0]]], z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    low, high = score_sides(tied, [0])
    assert not low.any()
    assert high.tolist() == [[False, True]]


def test_default_eps_without_a_solution():
    infeasible = al.Tokens(x=[[[0.0], [1.0], [-1.0]]], z=[[1.0]], y=[1], v=[1.0])
    with pytest.raises(InfeasibleSelection):
        default_eps(infeasible, [0])
    told = al.solve_margin(infeasible, [0], throw=False)
    with pytest.raises(InputError, match="`solution` has no W"):
        default_eps(infeasible, [0], solution=told)
    alone = al.Tokens(x=[[[0.0, 1.0]]], z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    assert default_eps(alone, [0]) == np.inf
    with pytest.raises(InputError, match="`W` is the zero matrix"):
        barrier(alone, [0], np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"`W` has shape \(3, 3\); wanted \(2, 2\)"):
        barrier(alone, [0], np.eye(3))


def test_results_are_frozen():
    cone = local_cone(al.data.two_tokens(), [0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        cone.R = 0.0  # pyright: ignore[reportAttributeAccessIssue]
