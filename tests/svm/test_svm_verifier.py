"""The judge itself: it accepts what is right and refuses what is slightly wrong."""

from dataclasses import replace

import numpy as np
import pytest
from svm_cases import cross, problem
from verifier import constraints, judge, judge_farkas

import attnlab as al
from attnlab import Tokens


def _on_constraints(tokens, solution, pick):
    """Position of the constraint with the largest (pick=max) or least multiplier."""
    return pick((where for where, _ in constraints(tokens, solution.selected)), key=lambda w: solution.multipliers[w])


@pytest.fixture
def solved():
    tokens, selected = cross(3)
    solution = al.solve_margin(tokens, selected)
    assert judge(tokens, solution).faults == ()
    return tokens, solution


def test_constraints_by_hand():
    tokens = Tokens(x=[[[1.0, 2.0], [3.0, 5.0], [7.0, 7.0]]], z=[[10.0, 100.0]], y=[1], mask=[[True, True, False]])
    ((where, matrix),) = constraints(tokens, [1])
    assert where == (0, 0)
    np.testing.assert_array_equal(matrix.astype(float), [[20.0, 200.0], [30.0, 300.0]])


@pytest.mark.parametrize("size", [1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("seed", range(5))
def test_moved_solutions_are_refused(solved, size, seed):
    tokens, solution = solved
    noise = np.random.default_rng(seed).standard_normal(solution.W.shape)
    moved = solution.W + size * np.linalg.norm(solution.W) * noise / np.linalg.norm(noise)
    assert judge(tokens, replace(solution, W=moved)).faults


@pytest.mark.parametrize("factor", [0.999999, 1.000001, -1.0, 2.0])
def test_scaled_solutions_are_refused(solved, factor):
    tokens, solution = solved
    assert judge(tokens, replace(solution, W=factor * solution.W)).faults


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-8])
def test_moved_multipliers_are_refused(solved, size):
    tokens, solution = solved
    for pick in (max, min):
        moved = solution.multipliers.copy()
        moved[_on_constraints(tokens, solution, pick)] += size * solution.multipliers.max()
        assert judge(tokens, replace(solution, multipliers=moved)).faults


def test_negative_and_misplaced_multipliers_are_refused(solved):
    tokens, solution = solved
    negative = solution.multipliers.copy()
    negative[_on_constraints(tokens, solution, min)] = -1e-300
    assert "negative multiplier" in judge(tokens, replace(solution, multipliers=negative)).faults
    misplaced = solution.multipliers.copy()
    misplaced[0, solution.selected[0]] = 1e-300
    assert "multiplier where there is no constraint" in judge(tokens, replace(solution, multipliers=misplaced)).faults


def test_false_claims_are_refused(solved):
    tokens, solution = solved
    assert judge(tokens, replace(solution, gap=1e-4)).faults
    assert judge(tokens, replace(solution, margin=1.0001 * solution.margin)).faults
    assert judge(tokens, replace(solution, values=solution.values * (1 + 1e-9))).faults
    assert judge(tokens, replace(solution, selected=(solution.selected + 1) % tokens.T)).faults
    assert judge(tokens, replace(solution, support=np.zeros_like(solution.support))).faults
    assert judge(tokens, replace(solution, support=np.isfinite(solution.values))).faults
    assert judge(tokens, replace(solution, W=np.full_like(solution.W, np.nan))).faults


def test_a_feasible_but_longer_solution_is_refused(solved):
    """The solution of a harder problem is feasible here, with its own multipliers; only the gap tells."""
    tokens, solution = solved
    tight = _on_constraints(tokens, solution, max)
    x = tokens.x.copy()
    i, t = tight
    x[i, t] = x[i, solution.selected[i]] - 0.5 * (x[i, solution.selected[i]] - x[i, t])
    harder = al.solve_margin(Tokens(x=x, z=tokens.z, y=tokens.y), solution.selected)
    assert any("gap" in fault for fault in judge(tokens, harder).faults)


def test_moved_proofs_of_infeasibility_are_refused():
    checked = 0
    for seed in range(40):
        tokens, selected = problem(seed, [(5, 5, 2)])
        solution = al.solve_margin(tokens, selected, throw=False)
        if solution.farkas is None:
            continue
        checked += 1
        assert judge_farkas(tokens, selected, solution.farkas)[1] == ()
        heaviest = np.unravel_index(np.argmax(solution.farkas), solution.farkas.shape)
        for size in (1e-3, 1e-6, 1e-8):
            moved = solution.farkas.copy()
            moved[heaviest] += size
            assert judge_farkas(tokens, selected, moved / moved.sum())[1]
        assert judge_farkas(tokens, selected, 2 * solution.farkas)[1]
        assert judge_farkas(tokens, selected, -solution.farkas)[1]
        assert judge_farkas(tokens, selected, np.zeros_like(solution.farkas))[1]
        assert judge_farkas(tokens, selected, solution.farkas.ravel())[1]
    assert checked >= 10


def test_no_weights_prove_a_feasible_problem_infeasible():
    tokens, selected = cross(0)
    solution = al.solve_margin(tokens, selected)
    rng = np.random.default_rng(0)
    for weights in (solution.multipliers, *rng.random((5, *solution.multipliers.shape))):
        weights = np.where(np.isfinite(solution.values), weights, 0.0)
        assert judge_farkas(tokens, selected, weights / weights.sum())[1]
