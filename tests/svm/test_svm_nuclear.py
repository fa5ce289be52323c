"""The nuclear max-margin problem: certificates by an independent judge, objectives by cvxpy, laws."""

from dataclasses import replace

import numpy as np
import pytest
from nuclear_verifier import judge_arrays, judge_nuclear
from svm_cases import correlated, cross, problem
from verifier import judge_farkas

import attnlab as al
from attnlab import Tokens
from attnlab.errors import InputError
from attnlab.svm import MarginStatus, Rows, margin_rows, nuclear
from attnlab.svm.frobenius import solve_rows
from attnlab.svm.nuclear import solve_nuclear

SMALL = [(5, 5, 1), (5, 5, 2), (5, 5, 3), (3, 4, 2), (2, 6, 3), (8, 3, 3), (6, 8, 4), (4, 3, 2)]


def solve(tokens, selected, **options):
    return solve_nuclear(margin_rows(tokens, selected), np.asarray(selected), tokens.d, **options)


def cvxpy_objective(tokens, selected):
    cvxpy = pytest.importorskip("cvxpy")
    rows = margin_rows(tokens, selected)
    W = cvxpy.Variable((tokens.d, tokens.d))
    values = cvxpy.sum(cvxpy.multiply(rows.p @ W, rows.queries[rows.query]), axis=1)
    found = cvxpy.Problem(cvxpy.Minimize(cvxpy.normNuc(W)), [values >= 1])
    found.solve(solver=cvxpy.CLARABEL)
    return found.value


def checked(tokens, selected, gap=1e-8):
    solution = solve(tokens, selected)
    if solution.status is MarginStatus.INFEASIBLE:
        assert judge_farkas(tokens, selected, solution.farkas)[1] == ()
    elif solution.status is not MarginStatus.UNCONSTRAINED:
        assert solution.status is MarginStatus.OPTIMAL, solution
        assert judge_nuclear(tokens, solution, gap=gap) == []
    return solution


@pytest.mark.parametrize("seed", range(0, 50, 2))
def test_every_kind_of_problem_is_certified(seed):
    checked(*problem(seed))


@pytest.mark.slow
def test_300_random_problems_reach_the_gap():
    sizes = [(5, 5, 10), (6, 8, 10), (3, 4, 6), (8, 4, 12)]
    for seed in range(300):
        n, T, d = sizes[seed % 4]
        tokens = al.data.sphere(n=n, T=T, d=d, seed=seed)
        solution = checked(tokens, al.optimal_tokens(tokens))
        assert solution.rank is not None


@pytest.mark.slow
def test_100_correlated_problems_reach_the_gap():
    for seed in range(100):
        n, T, d = [(5, 5, 10), (6, 8, 10)][seed % 2]
        checked(*correlated(seed, n=n, T=T, d=d))


@pytest.mark.parametrize("seed", range(5))
def test_correlated_problems(seed):
    checked(*correlated(seed, n=6, T=8, d=10))


def test_every_verdict_in_small_dimension_is_proved():
    """About as many constraints as dimensions: many infeasible, many with tiny margins."""
    statuses = [checked(*problem(seed, SMALL), gap=1e-8).status for seed in range(80)]
    assert statuses.count(MarginStatus.INFEASIBLE) >= 15
    assert statuses.count(MarginStatus.OPTIMAL) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_objective_agrees_with_cvxpy(seed):
    tokens, selected = cross(seed, n=4, T=4, d=6) if seed % 2 else correlated(seed, n=3, T=4, d=6)
    assert 1.0 / solve(tokens, selected).margin == pytest.approx(cvxpy_objective(tokens, selected), rel=1e-6)


def test_ranks_are_those_of_the_reference_table():
    """n = T = 5, d = 10: mean 2.67 and at most 4 over 6 draws there; Frobenius has 5."""
    tokens = al.data.sphere(n=5, T=5, d=10, seed=4, trials=40)
    told = [solve(tokens[i], al.optimal_tokens(tokens[i])).rank for i in range(40)]
    ranks = [rank for rank in told if rank is not None]
    assert ranks == told
    assert 2.0 <= np.mean(ranks) <= 3.2
    assert max(ranks) <= 5


@pytest.mark.parametrize("seed", range(10))
def test_rank_is_exact_and_at_most_the_number_of_queries(seed):
    tokens, selected = cross(seed, n=4, T=4, d=6)
    solution = solve(tokens, selected)
    singular = np.linalg.svd(solution.W, compute_uv=False)
    assert solution.rank <= 4
    assert singular[solution.rank - 1] > 1e-3 * singular[0]
    assert singular[solution.rank :].max(initial=0.0) <= 1e-13 * singular[0]


@pytest.mark.parametrize("seed", range(10))
def test_between_the_frobenius_norm_and_its_rank_bound(seed):
    """|W_F|_F <= |W_*|_F <= |W_*|_* <= |W_F|_*."""
    tokens, selected = cross(seed)
    plain, solution = solve_rows(margin_rows(tokens, selected), selected, tokens.d), solve(tokens, selected)
    nuclear_norms = [np.linalg.norm(s.W, "nuc") for s in (solution, plain)]
    assert np.linalg.norm(plain.W) <= np.linalg.norm(solution.W) * (1 + 1e-9)
    assert nuclear_norms[0] <= nuclear_norms[1] * (1 + 1e-9)


def test_one_query_is_the_frobenius_problem():
    """W = w z^T has one singular value."""
    tokens, selected = cross(3, n=1, T=6, d=6)
    plain = solve_rows(margin_rows(tokens, selected), selected, 6)
    solution = solve(tokens, selected)
    np.testing.assert_allclose(solution.W, plain.W, atol=1e-9 * float(np.linalg.norm(plain.W)))
    assert (solution.rank, solution.unique) == (1, True)


def test_orthogonal_problem_in_closed_form():
    """Rows a_i e_i e_i^T: W = diag(1 / a), |W|_* = sum 1 / a, multipliers 1 / a; any off-diagonal that keeps W >= 0."""
    a = np.array([1.0, 2.0, 4.0])
    solution = solve_nuclear(Rows(np.diag(a), np.eye(3), np.arange(3), np.arange(3), (3, 1)), np.zeros(3, int), 3)
    assert 1.0 / solution.margin == pytest.approx(1.75, rel=1e-12)
    np.testing.assert_allclose(solution.multipliers[:, 0], 1.0 / a, rtol=1e-9)
    np.testing.assert_allclose(np.diag(solution.W), 1.0 / a, rtol=1e-9)
    assert solution.unique is False
    assert solution.direction_error is None


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fault", ["W", "W scaled", "multipliers", "multipliers negative", "rank", "values"])
def test_the_judge_rejects_perturbed_solutions(seed, fault):
    tokens, selected = cross(seed)
    good = solve(tokens, selected)
    assert judge_nuclear(tokens, good) == []
    rng = np.random.default_rng(seed)
    if fault == "W":
        bad = replace(good, W=good.W + 1e-4 * rng.standard_normal(good.W.shape))
    elif fault == "W scaled":
        bad = replace(good, W=1.0001 * good.W)
    elif fault == "multipliers":
        bad = replace(good, multipliers=good.multipliers * (1 + 1e-3 * rng.random(good.multipliers.shape)))
    elif fault == "multipliers negative":
        bad = replace(good, multipliers=np.where(good.multipliers == good.multipliers.max(), -1e-6, good.multipliers))
    elif fault == "rank":
        # A little of every direction, as an interior point leaves it: full rank, stated rank unchanged.
        bad = replace(good, W=good.W + 1e-9 * np.linalg.norm(good.W) * np.eye(tokens.d))
        assert bad.rank == good.rank
    else:
        bad = replace(good, values=good.values + 1e-6)
    assert judge_nuclear(tokens, bad) != []


@pytest.mark.parametrize("scale", [1e-60, 1e-8, 1e8, 1e60])
def test_scale_of_the_tokens_only_scales_the_solution(scale):
    tokens, selected = cross(1)
    scaled = Tokens(x=tokens.x * scale, z=tokens.z, y=tokens.y)
    one, other = solve(tokens, selected), solve(scaled, selected)
    np.testing.assert_allclose(other.W * scale, one.W, atol=1e-7 * float(np.linalg.norm(one.W)))
    assert (one.rank, one.unique, one.gap <= 1e-12) == (other.rank, other.unique, other.gap <= 1e-12)
    np.testing.assert_array_equal(one.support, other.support)


@pytest.mark.parametrize("seed", range(5))
def test_rotations_rotate_the_solution(seed):
    tokens, selected = cross(seed)
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((tokens.d, tokens.d)))[0] for _ in range(2))
    turned = Tokens(x=tokens.x @ left.T, z=tokens.z @ right.T, y=tokens.y)
    one, other = solve(tokens, selected), solve(turned, selected)
    np.testing.assert_allclose(other.W, left @ one.W @ right.T, atol=1e-6 * float(np.linalg.norm(one.W)))


@pytest.mark.parametrize("seed", range(5))
def test_repeated_rows_change_nothing(seed):
    """Multipliers of equal rows are not unique; W is."""
    tokens, selected = cross(seed)
    rows = margin_rows(tokens, selected)
    index = np.repeat(np.arange(len(rows)), 3)
    often = Rows(rows.p[index], rows.queries, rows.query[index], np.arange(len(index)), (len(index),))
    one, three = solve(tokens, selected), solve_nuclear(often, selected, tokens.d)
    assert three.status is MarginStatus.OPTIMAL
    np.testing.assert_allclose(three.W, one.W, atol=1e-6 * float(np.linalg.norm(one.W)))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_nothing_to_separate(d):
    tokens = Tokens(x=np.ones((2, 1, d)), z=np.ones((2, d)), y=np.ones(2))
    solution = solve(tokens, np.zeros(2, dtype=int))
    assert solution.status is MarginStatus.UNCONSTRAINED
    assert solution.norm == "nuclear"
    assert not solution.W.any()


def test_duplicates_zero_queries_and_opposite_demands_are_infeasible():
    base, _ = cross(0, n=2, T=3, d=4)
    twin = base.x.copy()
    twin[0, 1] = twin[0, 0]
    silent = base.z.copy()
    silent[1] = 0.0
    opposite = np.concatenate([base.x[:1], base.x[:1]])
    for x, z in ((twin, base.z), (base.x, silent), (opposite, np.stack([base.z[0], -base.z[0]]))):
        tokens = Tokens(x=x, z=z, y=np.ones(2))
        solution = solve(tokens, np.array([0, 0]))
        assert solution.status is MarginStatus.INFEASIBLE
        assert judge_farkas(tokens, np.array([0, 0]), solution.farkas)[1] == ()
        assert (solution.norm, solution.rank, solution.unique, solution.face) == ("nuclear", None, None, None)


def test_one_dimension_in_closed_form():
    """d = 1: W is a number, 1 over the least product."""
    tokens = Tokens(x=[[[3.0], [1.0], [2.5]]], z=[[2.0]], y=[1])
    solution = solve(tokens, np.array([0]))
    assert solution.W[0, 0] == pytest.approx(1.0, rel=1e-12)
    assert (solution.rank, solution.unique) == (1, True)
    assert solution.support.tolist() == [[False, False, True]]


@pytest.mark.parametrize("tilt", [1e-2, 1e-4, 1e-6])
def test_nearly_opposite_demands_leave_a_tiny_margin(tilt):
    """One direction of queries, so W = w z^T: the margin is tilt / 2 to first order, as for the Frobenius norm."""
    x = np.array([[[1.0, 0.0], [0.0, 0.0]], [[1.0, tilt], [0.0, 0.0]]])
    tokens = Tokens(x=x, z=[[0.0, 1.0], [0.0, 1.0]], y=[1, 1])
    solution = solve(tokens, np.array([0, 1]))
    assert solution.margin == pytest.approx(tilt / 2, rel=1e-3)
    assert (solution.status is MarginStatus.OPTIMAL) == (solution.gap <= 1e-8)


def test_a_loose_solution_has_no_rank():
    """The Frobenius solution as an answer: its gap is certified, its rank is not read."""
    tokens, selected = cross(2, n=5, T=5, d=8)
    rows = margin_rows(tokens, selected)
    plain = solve_rows(rows, selected, 8)
    loose = nuclear.certify_nuclear(rows, plain.W, plain.multipliers.ravel()[rows.where], 0, selected, 8, 1e-8)
    assert loose.status is MarginStatus.INACCURATE
    assert loose.gap > 1e-3
    assert (loose.rank, loose.support, loose.unique) == (None, None, None)
    assert "gap" in loose.reason
    exact = 1.0 / solve(tokens, selected).margin
    assert exact <= 1.0 / loose.margin <= (1 + loose.gap) * exact * (1 + 1e-9)


def test_a_tolerance_that_means_nothing_is_refused():
    with pytest.raises(InputError, match="`tolerance`"):
        solve(*cross(0), tolerance=-1.0)


def test_tightest_tolerance_is_answered_honestly():
    solution = solve(*cross(0), tolerance=0.0)
    assert solution.gap <= 1e-12
    assert (solution.status is MarginStatus.OPTIMAL) == (solution.gap == 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_working_sets_reach_the_solution_of_all_rows(seed, monkeypatch):
    tokens, selected = cross(seed, n=8, T=12, d=8)
    whole = solve(tokens, selected)
    monkeypatch.setattr(nuclear, "MANY", 45)
    parts = solve(tokens, selected)
    assert judge_nuclear(tokens, parts) == []
    np.testing.assert_allclose(parts.W, whole.W, atol=1e-6 * float(np.linalg.norm(whole.W)))


def with_equalities(seed, share=0.3):
    rng = np.random.default_rng(seed)
    tokens, selected = cross(seed)
    rows = margin_rows(tokens, selected)
    equal = rng.random(len(rows)) < share
    equal[0], equal[-1] = True, False
    rows = Rows(rows.p, rows.queries, rows.query, rows.where, rows.shape, equal)
    A = np.array([np.outer(rows.p[j], rows.queries[rows.query[j]]) for j in range(len(rows))])
    return rows, A, equal, selected, tokens.d


@pytest.mark.parametrize("seed", range(12))
def test_equalities_hold_and_the_rest_is_optimal(seed):
    rows, A, equal, selected, d = with_equalities(seed)
    solution = solve_nuclear(rows, selected, d)
    assert solution.status is MarginStatus.OPTIMAL
    multipliers = solution.multipliers.ravel()[rows.where]
    assert judge_arrays(A, solution.W, multipliers, equal=equal) == []
    assert not solution.support.ravel()[rows.where][equal].any()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_equalities_against_cvxpy(seed):
    cvxpy = pytest.importorskip("cvxpy")
    rows, _, equal, selected, d = with_equalities(seed)
    W = cvxpy.Variable((d, d))
    values = cvxpy.sum(cvxpy.multiply(rows.p @ W, rows.queries[rows.query]), axis=1)
    found = cvxpy.Problem(cvxpy.Minimize(cvxpy.normNuc(W)), [values[~equal] >= 1, values[equal] == 0])
    found.solve(solver=cvxpy.CLARABEL)
    assert 1.0 / solve_nuclear(rows, selected, d).margin == pytest.approx(found.value, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_dependent_equalities_change_nothing(seed):
    rows, _, equal, selected, d = with_equalities(seed)
    index = np.repeat(np.arange(len(rows)), 2)
    often = Rows(rows.p[index], rows.queries, rows.query[index], np.arange(len(index)), (len(index),), equal[index])
    one, two = solve_nuclear(rows, selected, d), solve_nuclear(often, selected, d)
    assert two.status is MarginStatus.OPTIMAL
    np.testing.assert_allclose(two.W, one.W, atol=1e-6 * float(np.linalg.norm(one.W)))


def test_an_inequality_that_an_equality_forbids_is_infeasible():
    rows, _, equal, selected, d = with_equalities(1)
    p, equal = rows.p.copy(), np.zeros_like(equal)
    first, second = np.flatnonzero(rows.query == rows.query[0])[:2]
    p[second], equal[first] = 2.0 * p[first], True
    solution = solve_nuclear(Rows(p, rows.queries, rows.query, rows.where, rows.shape, equal), selected, d)
    assert solution.status is MarginStatus.INFEASIBLE
    assert solution.norm == "nuclear"
