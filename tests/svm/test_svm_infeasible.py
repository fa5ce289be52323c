"""Every verdict is proved: a separating W by the judge, its absence by a Farkas vector."""

import json
from collections import Counter

import numpy as np
import pytest
from svm_cases import cross, problem
from verifier import judge, judge_farkas

import attnlab as al
from attnlab import InfeasibleSelection, Tokens
from attnlab.svm import MarginStatus

SMALL = [(5, 5, 1), (5, 5, 2), (5, 5, 3), (3, 4, 2), (2, 6, 3), (8, 3, 3), (6, 8, 4), (4, 3, 2)]


def test_every_verdict_in_small_dimension_is_proved():
    """400 problems with about as many constraints as dimensions: none is left undecided."""
    seen = Counter()
    for seed in range(400):
        tokens, selected = problem(seed, SMALL)
        solution = al.solve_margin(tokens, selected, throw=False)
        seen[solution.status] += 1
        if solution.status is MarginStatus.INFEASIBLE:
            residual, faults = judge_farkas(tokens, selected, solution.farkas)
            assert solution.farkas_residual == pytest.approx(residual, abs=1e-14)
        elif solution.status is not MarginStatus.UNCONSTRAINED:
            faults = judge(tokens, solution, gap=1e-10).faults
        else:
            faults = ()
        assert faults == (), (seed, solution)
    assert seen[MarginStatus.UNDECIDED] == 0
    assert seen[MarginStatus.INACCURATE] == 0
    assert min(seen[MarginStatus.OPTIMAL], seen[MarginStatus.INFEASIBLE]) >= 80


def test_share_of_feasible_selections_grows_with_the_dimension():
    """n = T = 5, random selections: about 0, 17, 95, 100 and 100 % for d = 1 to 5."""
    share = []
    for d in range(1, 6):
        solved = [al.solve_margin(*cross(seed, n=5, T=5, d=d), throw=False) for seed in range(60)]
        share.append(float(np.mean([s.feasible for s in solved])))
    assert share[0] <= 0.1
    assert share[1] <= 0.5
    assert share[2] >= 0.7
    assert share[3] >= 0.95
    assert share[4] == 1.0
    assert share == sorted(share)


@pytest.fixture
def impossible():
    """Both queries agree, and want opposite things of the same tokens."""
    x = np.array([[[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]])
    return Tokens(x=x, z=[[0.0, 1.0], [0.0, 1.0]], y=[1, 1]), np.array([0, 1])


def test_infeasible_selections_raise_with_their_proof(impossible):
    tokens, selected = impossible
    with pytest.raises(InfeasibleSelection, match="No W separates") as caught:
        al.solve_margin(tokens, selected)
    np.testing.assert_allclose(caught.value.farkas, [[0.0, 0.5], [0.5, 0.0]], atol=1e-12)
    assert caught.value.solution.farkas is caught.value.farkas
    assert caught.value.solution.status is MarginStatus.INFEASIBLE
    assert "hint:" in str(caught.value)
    assert judge_farkas(tokens, selected, caught.value.farkas)[1] == ()


def test_the_message_names_a_constraint_of_the_proof(impossible):
    tokens, selected = impossible
    with pytest.raises(InfeasibleSelection, match=r"query \((0|1),\) against its token (1|0)"):
        al.solve_margin(tokens, selected)


def test_an_infeasible_solution_claims_nothing(impossible):
    solution = al.solve_margin(*impossible, throw=False)
    assert not solution.feasible
    assert solution.status is MarginStatus.INFEASIBLE
    assert np.isnan(solution.W).all()
    assert np.isnan(solution.multipliers).all()
    assert np.isnan(solution.values).all()
    assert solution.margin == 0.0
    assert (solution.gap, solution.violation, solution.direction_error) == (np.inf, np.inf, np.inf)
    assert solution.support is None
    assert solution.rank is None
    assert solution.reason
    assert repr(solution) == "MarginSolution(frobenius, infeasible)"
    json.dumps(solution.summary())


@pytest.mark.parametrize("tilt", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8])
def test_nearly_opposite_demands_leave_a_tiny_margin(tilt):
    """Demands u_1 >= 1 and -(u_1 + tilt u_2) >= 1: u = (1, -2 / tilt). Rounding alone moves the gap by eps / tilt."""
    x = np.array([[[1.0, 0.0], [0.0, 0.0]], [[1.0, tilt], [0.0, 0.0]]])
    tokens = Tokens(x=x, z=[[0.0, 1.0], [0.0, 1.0]], y=[1, 1])
    solution = al.solve_margin(tokens, [0, 1])
    assert solution.status is MarginStatus.OPTIMAL
    assert judge(tokens, solution, gap=max(1e-10, 32 * np.finfo(float).eps / tilt)).faults == ()
    exact = np.array([[0.0, 1.0], [0.0, -2.0 / tilt]])
    off = np.linalg.norm(solution.W - exact) / np.linalg.norm(exact)
    assert off <= min(solution.direction_error, 1e-6)
    assert (np.abs(solution.values - 1.0) <= solution.value_error)[np.isfinite(solution.values)].all()


@pytest.mark.parametrize("seed", range(20))
def test_adding_an_opposite_query_makes_any_problem_infeasible(seed):
    tokens, selected = cross(seed, n=3, T=4, d=6)
    x, z = np.concatenate([tokens.x, tokens.x[:1]]), np.concatenate([tokens.z, -3.0 * tokens.z[:1]])
    doubled = Tokens(x=x, z=z, y=np.ones(len(x)))
    chosen = np.append(selected, selected[0])
    solution = al.solve_margin(doubled, chosen, throw=False)
    assert solution.status is MarginStatus.INFEASIBLE
    assert judge_farkas(doubled, chosen, solution.farkas)[1] == ()
