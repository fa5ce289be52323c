"""Norms told by dual norm and proximal map: their laws, and the max-margin problem in each, against cvxpy."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from level_verifier import judge_level, judge_level_farkas, least_norm, single
from svm_cases import correlated, cross, problem

import attnlab as al
from attnlab import InputError, Tokens
from attnlab.svm import MarginStatus, generic, level, margin_rows
from attnlab.svm.generalized import level_rows, solve_generalized
from attnlab.svm.generic import solve_rows_norm
from attnlab.svm.level import solve_level, solve_written_out
from attnlab.svm.norms import ENTRYWISE_L1, ENTRYWISE_MAX, FROBENIUS, NUCLEAR, SPECTRAL, Norm, check_norm
from attnlab.svm.nuclear import solve_nuclear
from attnlab.svm.rows import Rows

READY = [FROBENIUS, NUCLEAR, SPECTRAL, ENTRYWISE_L1, ENTRYWISE_MAX]
named = pytest.mark.parametrize("norm", READY, ids=lambda n: n.name)


def shrink_rows(W, t):
    lengths = np.linalg.norm(W, axis=1, keepdims=True)
    return W * np.maximum(1 - t / np.maximum(lengths, 1e-300), 0)


# A user's own: the sum of the lengths of the rows.
ROWS = Norm(
    name="rows",
    value=lambda W: float(np.linalg.norm(W, axis=1).sum()),
    dual=lambda W: float(np.linalg.norm(W, axis=1).max()),
    prox=shrink_rows,
)


def solved(tokens, selected, norm, **options):
    return solve_rows_norm(margin_rows(tokens, selected), norm, np.asarray(selected), tokens.d, **options)


def judged(tokens, selected, norm, solution, gap):
    return judge_level(tokens, single(selected, tokens.T), solution, norm.value, norm.dual, gap=gap)


# --- the norms themselves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [*READY, ROWS], ids=lambda n: n.name)
@pytest.mark.parametrize("shape", [(1, 1), (4, 3), (2, 5), (1, 6)])
def test_the_three_functions_fit_together(norm, shape):
    for seed in range(5):
        check_norm(norm, shape, seed=seed)


@pytest.mark.parametrize("norm", [*READY, ROWS], ids=lambda n: n.name)
@pytest.mark.parametrize("t", [0.1, 1.0, 4.0])
def test_the_proximal_map_minimizes(norm, t):
    """No nearby point, and no multiple, does better than prox(W, t)."""
    rng = np.random.default_rng(1)
    W = rng.standard_normal((3, 4))
    V = norm.prox(W, t)

    def cost(X):
        return t * norm.value(X) + 0.5 * np.sum((X - W) ** 2)

    others = [V + s * rng.standard_normal(V.shape) for s in (1e-1, 1e-3, 1e-5) for _ in range(60)]
    assert cost(V) <= min(cost(X) for X in [*others, np.zeros_like(V), W]) + 1e-12


@named
def test_the_dual_of_the_dual_is_the_norm(norm):
    """max <M, W> over dual(M) <= 1, by cvxpy."""
    measure = {"frobenius": lambda M: cp.norm(M, "fro"), "nuclear": cp.sigma_max, "spectral": cp.normNuc,
               "entrywise l1": lambda M: cp.max(cp.abs(M)), "entrywise max": lambda M: cp.sum(cp.abs(M))}  # fmt: skip
    W = np.random.default_rng(2).standard_normal((3, 2))
    M = cp.Variable((3, 2))
    found = cp.Problem(cp.Maximize(cp.sum(cp.multiply(W, M))), [measure[norm.name](M) <= 1]).solve(solver=cp.CLARABEL)
    assert found == pytest.approx(norm.value(W), rel=1e-6)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (replace(ENTRYWISE_L1, dual=ENTRYWISE_L1.value), "contradicts itself"),
        (replace(ENTRYWISE_L1, dual=lambda W: 0.5 * ENTRYWISE_L1.dual(W)), "exceeds"),
        (replace(SPECTRAL, prox=NUCLEAR.prox), "contradicts itself"),
        (replace(NUCLEAR, prox=lambda W, t: NUCLEAR.prox(W, 2 * t)), "exceeds 1"),
        (replace(NUCLEAR, prox=lambda W, t: NUCLEAR.prox(W, 0.5 * t)), "is not"),
        (replace(FROBENIUS, value=lambda W: float(np.sum(W**2))), r"2 \|W\|"),
        (replace(ENTRYWISE_L1, rotation_invariant=True), "orthogonal U"),
        (replace(ENTRYWISE_L1, corners=lambda M: 2 * ENTRYWISE_L1.corners(M)), "longer than 1"),
        (replace(ENTRYWISE_L1, corners=lambda M: ENTRYWISE_L1.corners(-M)), "no corner attains"),
    ],
)
def test_a_norm_that_contradicts_itself_is_told(wrong, told):
    with pytest.raises(InputError, match=told):
        check_norm(wrong)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8), st.sampled_from([1e-300, 1e-3, 0.5, 1.0, 3.0, 100.0]))
def test_proximal_maps_on_ties_and_zeros(entries, t):
    """The optimality conditions where sizes tie, vanish, or t is as good as nothing."""
    W = np.array([entries], dtype=float)
    for norm in READY:
        V = norm.prox(W, t)
        M = (W - V) / t if t > 1e-200 else np.zeros_like(W)
        assert norm.dual(M) <= 1 + 1e-9
        assert abs(np.sum(M * V) - norm.value(V)) <= 1e-9 * max(1.0, norm.value(V)) or t < 1e-200
        if norm.dual(W) <= t:
            assert norm.value(V) <= 1e-12


# --- the max-margin problem --------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [*READY, ROWS], ids=lambda n: n.name)
@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_cvxpy(norm, seed):
    tokens, selected = cross(seed, n=3, T=4, d=5)
    solution = solved(tokens, selected, norm, steps=20_000)
    assert solution.status is MarginStatus.OPTIMAL
    assert solution.norm == norm.name
    assert judged(tokens, selected, norm, solution, 1e-7) == []
    want = least_norm(tokens, single(selected, tokens.T), norm.name)
    assert norm.value(solution.W) == pytest.approx(want, rel=1e-6)
    assert norm.dual(margin_rows(tokens, selected).adjoint(in_rows(tokens, selected, solution))) == pytest.approx(1.0)


def in_rows(tokens, selected, solution):
    return solution.multipliers.reshape(-1)[margin_rows(tokens, selected).where]


@pytest.mark.parametrize("norm", [NUCLEAR, SPECTRAL, ENTRYWISE_L1], ids=lambda n: n.name)
def test_every_kind_of_data(norm):
    """Cross, self, every query, causal, masked; whatever is claimed is proved."""
    for seed in range(0, 50, 4):
        tokens, selected = problem(seed)
        solution = solved(tokens, selected, norm)
        if solution.status is MarginStatus.INFEASIBLE:
            assert judge_level_farkas(tokens, single(selected, tokens.T), solution) == []
        elif solution.status is not MarginStatus.UNCONSTRAINED:
            assert solution.status is MarginStatus.OPTIMAL, seed
            assert judged(tokens, selected, norm, solution, 1e-7) == [], seed


@pytest.mark.parametrize("norm", [NUCLEAR, SPECTRAL, ENTRYWISE_L1], ids=lambda n: n.name)
@pytest.mark.parametrize("seed", range(4))
def test_correlated_data(norm, seed):
    tokens, selected = correlated(seed)
    solution = solved(tokens, selected, norm)
    assert solution.status is MarginStatus.OPTIMAL
    assert judged(tokens, selected, norm, solution, 1e-7) == []


@pytest.mark.parametrize("seed", range(5))
def test_the_frobenius_norm_is_solved_at_the_start(seed):
    tokens, selected = cross(seed)
    want = al.solve_margin(tokens, selected)
    found = solved(tokens, selected, FROBENIUS, steps=1)
    assert found.status is MarginStatus.OPTIMAL
    np.testing.assert_allclose(found.W, want.W, rtol=0, atol=1e-10 * float(np.linalg.norm(want.W)))


@pytest.mark.parametrize("seed", range(5))
def test_the_interior_point_method_for_the_nuclear_norm_agrees(seed):
    tokens, selected = cross(seed, n=5, T=5, d=10)
    rows = margin_rows(tokens, selected)
    want = solve_nuclear(rows, selected, tokens.d)
    assert solved(tokens, selected, NUCLEAR).margin == pytest.approx(want.margin, rel=2e-7)


@pytest.mark.parametrize("seed", range(5))
def test_norms_are_ordered_and_so_are_the_optima(seed):
    """max <= spectral <= frobenius <= nuclear, frobenius <= l1 at every W, hence for the least of each."""
    tokens, selected = cross(seed)
    least = {norm.name: 1 / solved(tokens, selected, norm).margin for norm in READY}
    slack = 1 + 1e-6
    assert least["entrywise max"] <= least["spectral"] * slack
    assert least["spectral"] <= least["frobenius"] * slack
    assert least["frobenius"] <= least["nuclear"] * slack
    assert least["nuclear"] <= least["entrywise l1"] * slack


@named
def test_scaling_tokens_and_queries_scales_the_margin(norm):
    tokens, selected = cross(1)
    scaled = Tokens(x=1e50 * tokens.x, z=1e-20 * tokens.z, y=tokens.y)
    want, found = solved(tokens, selected, norm), solved(scaled, selected, norm)
    assert found.status is want.status
    assert found.margin == pytest.approx(1e30 * want.margin, rel=1e-6)


@pytest.mark.parametrize("norm", [NUCLEAR, SPECTRAL], ids=lambda n: n.name)
def test_rotations_change_nothing(norm):
    tokens, selected = cross(2)
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((6, 6)))[0] for _ in range(2))
    turned = Tokens(x=tokens.x @ U, z=tokens.z @ V, y=tokens.y)
    assert solved(turned, selected, norm).margin == pytest.approx(solved(tokens, selected, norm).margin, rel=1e-6)


@pytest.mark.parametrize("norm", [SPECTRAL, ENTRYWISE_L1, ENTRYWISE_MAX], ids=lambda n: n.name)
def test_repeated_sequences_change_nothing(norm):
    tokens, selected = cross(4, n=3)
    many = Tokens(x=np.tile(tokens.x, (3, 1, 1)), z=np.tile(tokens.z, (3, 1)), y=np.ones(9))
    one, often = solved(tokens, selected, norm), solved(many, np.tile(selected, 3), norm)
    assert often.status is MarginStatus.OPTIMAL
    assert often.margin == pytest.approx(one.margin, rel=1e-6)


@named
def test_a_duplicate_of_the_selected_token_is_infeasible(norm):
    tokens, selected = cross(1)
    x = tokens.x.copy()
    x[2, (selected[2] + 1) % 4] = x[2, selected[2]]
    broken = Tokens(x=x, z=tokens.z, y=tokens.y)
    solution = solved(broken, selected, norm)
    assert solution.status is MarginStatus.INFEASIBLE
    assert solution.norm == norm.name
    assert judge_level_farkas(broken, single(selected, 4), solution) == []


def test_nothing_to_separate():
    tokens = Tokens(x=np.ones((2, 1, 3)), z=np.ones((2, 3)), y=[1, 1])
    solution = solved(tokens, [0, 0], SPECTRAL)
    assert solution.status is MarginStatus.UNCONSTRAINED
    assert solution.norm == "spectral"


def test_one_dimension():
    tokens = Tokens(x=[[[3.0], [1.0], [2.0]]], z=[[0.5]], y=[1])
    for norm in READY:
        assert solved(tokens, [0], norm).W.item() == pytest.approx(2.0, rel=1e-7)


@pytest.mark.parametrize("norm", [SPECTRAL, ENTRYWISE_MAX], ids=lambda n: n.name)
def test_too_few_steps_are_stated(norm):
    """The gap is the one reached, the judge confirms it, and nothing is read from it."""
    tokens, selected = cross(0, n=5, T=5, d=10)
    solution = solved(tokens, selected, norm, steps=4)
    assert solution.status is MarginStatus.INACCURATE
    assert solution.gap > 1e-7
    assert judged(tokens, selected, norm, solution, solution.gap) == []
    assert solution.support is None
    assert solution.rank is None
    assert solution.reason
    better = solved(tokens, selected, norm, steps=3000, tolerance=1e-6)
    assert better.status is MarginStatus.OPTIMAL
    assert better.margin >= solution.margin


@pytest.mark.parametrize("norm", [NUCLEAR, SPECTRAL, ENTRYWISE_L1], ids=lambda n: n.name)
def test_a_perturbed_solution_fails_the_judge(norm):
    tokens, selected = cross(3)
    solution = solved(tokens, selected, norm)
    assert judged(tokens, selected, norm, solution, 1e-7) == []
    rng = np.random.default_rng(0)
    spoiled = [
        replace(solution, W=solution.W + 1e-3 * rng.standard_normal(solution.W.shape)),
        replace(solution, W=1.001 * solution.W),
        replace(solution, multipliers=-solution.multipliers),
        replace(solution, multipliers=solution.multipliers + 1e-2 * solution.multipliers.max()),
        replace(solution, gap=1e-3),
        replace(solution, margin=1.001 * solution.margin),
    ]
    for wrong in spoiled:
        assert judged(tokens, selected, norm, wrong, 1e-7)


@pytest.mark.parametrize("norm", [NUCLEAR, SPECTRAL, ENTRYWISE_L1], ids=lambda n: n.name)
def test_support_is_what_is_tight(norm):
    tokens, selected = cross(5)
    solution = solved(tokens, selected, norm, tolerance=1e-8)
    slack = np.sqrt(solution.gap) + 1e-9
    inside = np.isfinite(solution.values)
    np.testing.assert_array_equal(solution.support[inside], solution.values[inside] <= 1 + slack)
    assert not solution.support[~inside].any()
    assert solution.support.any()
    # complementary slackness: what pulls is tight, as far as the gap tells
    pull = solution.multipliers[inside] * (solution.values[inside] - 1)
    assert pull.sum() <= 1e-7 * solution.multipliers.sum()


@pytest.mark.parametrize("seed", range(4))
def test_a_working_set_gives_what_all_rows_give(seed, monkeypatch):
    tokens, selected = cross(seed, n=6, T=8, d=10)
    want = solved(tokens, selected, SPECTRAL)
    monkeypatch.setattr(generic, "WORKED_ON", 4)
    found = solved(tokens, selected, SPECTRAL)
    assert found.status is MarginStatus.OPTIMAL
    assert judged(tokens, selected, SPECTRAL, found, 1e-7) == []
    assert found.margin == pytest.approx(want.margin, rel=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_a_working_set_cut_short_is_stated(steps, monkeypatch):
    """Rows that were not worked on count all the same."""
    tokens, selected = cross(0, n=6, T=8, d=10)
    monkeypatch.setattr(generic, "WORKED_ON", 4)
    solution = solved(tokens, selected, SPECTRAL, steps=steps)
    assert solution.status is MarginStatus.INACCURATE
    assert judged(tokens, selected, SPECTRAL, solution, solution.gap) == []


@pytest.mark.slow
def test_many_rows():
    tokens = al.data.sphere(n=40, T=30, d=60, seed=0)
    selected = np.random.default_rng(0).integers(30, size=40)
    solution = solved(tokens, selected, SPECTRAL, tolerance=1e-6)
    assert solution.status is MarginStatus.OPTIMAL
    assert solution.gap <= 1e-6


def test_wrong_arguments_are_refused():
    tokens, selected = cross(0)
    with pytest.raises(InputError, match="wanted a Norm"):
        solved(tokens, selected, "spectral")
    with pytest.raises(InputError, match="tolerance"):
        solved(tokens, selected, SPECTRAL, tolerance=-1.0)
    with pytest.raises(InputError, match="`steps`"):
        solved(tokens, selected, SPECTRAL, steps=0)


# --- equalities --------------------------------------------------------------------------------------------------


def some_level(seed, share=0.3):
    """Tokens, and kept sets with at least one lost token each."""
    tokens, selected = cross(seed)
    kept = single(selected, 4) | (np.random.default_rng(seed).random((4, 4)) < share)
    kept[np.arange(4), (selected + 1) % 4] = False
    return tokens, kept


@pytest.mark.parametrize("norm", [NUCLEAR, SPECTRAL, ENTRYWISE_L1, FROBENIUS], ids=lambda n: n.name)
@pytest.mark.parametrize("seed", range(3))
def test_equalities_in_any_norm(norm, seed):
    tokens, kept = some_level(seed)
    rows, anchor = level_rows(tokens, kept)
    solution = solve_rows_norm(rows, norm, anchor, tokens.d)
    assert solution.status is MarginStatus.OPTIMAL
    assert judge_level(tokens, kept, solution, norm.value, norm.dual, gap=1e-7) == []
    assert norm.value(solution.W) == pytest.approx(least_norm(tokens, kept, norm.name), rel=1e-6)


@pytest.mark.parametrize("norm", [SPECTRAL, ENTRYWISE_L1], ids=lambda n: n.name)
def test_repeated_equalities_in_any_norm(norm):
    """Dependent equalities: every row three times."""
    tokens, kept = some_level(1)
    rows, anchor = level_rows(tokens, kept)
    index = np.repeat(np.arange(len(rows)), 3)
    thrice = Rows(
        rows.p[index], rows.queries, rows.query[index], np.arange(len(index)), (len(index),), rows.equal[index]
    )
    want, found = (solve_rows_norm(r, norm, anchor, tokens.d) for r in (rows, thrice))
    assert found.status is MarginStatus.OPTIMAL
    assert found.margin == pytest.approx(want.margin, rel=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
@pytest.mark.parametrize("seed", range(6))
def test_writing_the_rows_out_gives_what_their_gram_matrix_gives(seed, scale):
    tokens, kept = some_level(seed)
    tokens = Tokens(x=scale * tokens.x, z=tokens.z, y=tokens.y)
    rows, anchor = level_rows(tokens, kept)
    quick, out = solve_level(rows, anchor, tokens.d), solve_written_out(rows, anchor, tokens.d)
    assert quick.status is out.status is MarginStatus.OPTIMAL
    np.testing.assert_allclose(out.W, quick.W, rtol=0, atol=1e-10 * float(np.linalg.norm(out.W)))
    assert judge_level(tokens, kept, out, np.linalg.norm, np.linalg.norm, gap=1e-10) == []


def never(*_, **__):
    raise AssertionError("the slow way was taken")


def test_ordinary_data_take_the_quick_ways(monkeypatch):
    """No rows written out, no non-negative least squares."""
    monkeypatch.setattr(level, "solve_written_out", never)
    monkeypatch.setattr(generic, "least_distance", never)
    for seed in range(10):
        tokens, kept = some_level(seed)
        rows, anchor = level_rows(tokens, kept)
        assert solve_level(rows, anchor, tokens.d).status is MarginStatus.OPTIMAL
        for norm in (NUCLEAR, SPECTRAL):
            assert solve_rows_norm(rows, norm, anchor, tokens.d).status is MarginStatus.OPTIMAL


def test_ordinary_data_take_few_steps(monkeypatch):
    """Splitting methods are known to take 20 to 200 at this accuracy."""
    taken = []
    nearest = generic._Polytope.nearest
    monkeypatch.setattr(generic._Polytope, "nearest", lambda self, P: taken.append(1) or nearest(self, P))
    for seed in range(10):
        tokens, selected = cross(seed, n=5, T=5, d=10)
        for norm in (NUCLEAR, SPECTRAL):
            assert solved(tokens, selected, norm).status is MarginStatus.OPTIMAL
    assert len(taken) / 20 < 200


@pytest.mark.parametrize("distance", [1.0, 1e-3, 1e-6, 1e-8, 1e-9])
def test_a_lost_token_close_to_the_line_of_two_kept_ones(distance):
    """The margin shrinks with the distance, and the equalities still hold."""
    tokens, kept = some_level(0)
    x = tokens.x.copy()
    kept[1] = [True, True, False, False]
    away = np.linalg.svd(x[1, :2])[2][-1]
    x[1, 2] = 0.4 * x[1, 0] + 0.6 * x[1, 1] + distance * away
    close = Tokens(x=x, z=tokens.z, y=tokens.y)
    solution = solve_level(*level_rows(close, kept), close.d, 1e-8)
    assert solution.feasible
    assert solution.status is MarginStatus.OPTIMAL or distance < 1e-6
    assert judge_level(close, kept, solution, np.linalg.norm, np.linalg.norm, gap=max(solution.gap, 1e-8)) == []
    # |W z| >= 1 / distance is needed for that token alone
    assert solution.margin <= distance * np.linalg.norm(tokens.z[1]) * (1 + 1e-9)


def test_zero_queries_and_equal_tokens_written_out():
    """Equalities 0 = 0 ask nothing."""
    tokens, kept = some_level(2)
    z, x = tokens.z.copy(), tokens.x.copy()
    z[0], kept[0] = 0.0, True
    kept[1] = [True, True, False, False]
    x[1, 1] = x[1, 0]
    idle = Tokens(x=x, z=z, y=tokens.y)
    rows, anchor = level_rows(idle, kept)
    quick, out = solve_level(rows, anchor, idle.d), solve_written_out(rows, anchor, idle.d)
    assert quick.status is out.status is MarginStatus.OPTIMAL
    np.testing.assert_allclose(out.W, quick.W, rtol=0, atol=1e-10 * float(np.linalg.norm(out.W)))
    everything = np.ones_like(kept)
    assert solve_written_out(*level_rows(idle, everything), idle.d).status is MarginStatus.UNCONSTRAINED


def test_more_than_can_be_written_out_is_refused(monkeypatch):
    tokens, kept = some_level(0)
    monkeypatch.setattr(level, "WRITTEN_OUT", 10)
    with pytest.raises(InputError, match="writes out"):
        solve_written_out(*level_rows(tokens, kept), tokens.d)


def test_a_lost_token_on_the_line_of_two_kept_ones_is_proved_infeasible():
    """Across a range of places on the line, none is called solved."""
    for seed in range(12):
        tokens, kept = some_level(seed)
        x = tokens.x.copy()
        kept[1] = [True, True, False, False]
        s = np.random.default_rng(seed).uniform(-2, 3)
        x[1, 2] = s * x[1, 0] + (1 - s) * x[1, 1]
        on = Tokens(x=x, z=tokens.z, y=tokens.y)
        rows, anchor = level_rows(on, kept)
        for solution in (
            solve_rows_norm(rows, SPECTRAL, anchor, on.d),
            *(solve_generalized(on, kept, norm=norm, throw=False) for norm in ("frobenius", "nuclear", ENTRYWISE_L1)),
        ):
            assert solution.status is MarginStatus.INFEASIBLE, seed
            assert judge_level_farkas(on, kept, solution) == []
