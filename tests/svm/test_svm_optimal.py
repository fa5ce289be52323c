"""Solutions against the independent judge, other solvers, and closed forms."""

import cvxpy as cp
import mpmath
import numpy as np
import pytest
import scipy.optimize
from svm_cases import SIZES, correlated, cross, problem
from verifier import constraints, judge

import attnlab as al
from attnlab import Tokens
from attnlab.svm import MarginStatus


@pytest.mark.parametrize("block", range(10))
def test_thousand_random_problems_are_solved_to_1e_10(block):
    """Every size meets d >= max(T - 1, queries), so every selection is feasible (Theorems 1 and 8)."""
    for seed in range(100 * block, 100 * block + 100):
        tokens, selected = problem(seed)
        solution = al.solve_margin(tokens, selected)
        if solution.status is MarginStatus.UNCONSTRAINED:
            assert not constraints(tokens, selected)
            continue
        assert solution.status is MarginStatus.OPTIMAL, seed
        verdict = judge(tokens, solution, gap=1e-10)
        assert verdict.faults == (), (seed, verdict)


def test_random_problems_are_of_every_kind():
    made = [problem(seed)[0] for seed in range(len(SIZES) * 5)]
    assert {(t.n, t.T, t.d) for t in made} >= set(SIZES)
    assert any(t.K == t.T for t in made)
    assert any(t.mask is not None and t.K is None for t in made)
    assert any(np.array_equal(t.z[0], t.x[0, k]) for t in made if t.K is None for k in range(t.T))


def test_strongly_correlated_problems_are_solved_to_1e_8():
    for seed in range(100):
        tokens, selected = correlated(seed)
        verdict = judge(tokens, al.solve_margin(tokens, selected), gap=1e-8)
        assert verdict.faults == (), (seed, verdict)


@pytest.mark.parametrize("n_T_d", [(20, 6, 100), (10, 10, 50), (30, 30, 30)])
def test_larger_problems(n_T_d):
    n, T, d = n_T_d
    tokens = al.data.sphere(n, T, d, seed=1)
    selected = np.random.default_rng(0).integers(T, size=n)
    solution = al.solve_margin(tokens, selected)
    assert judge(tokens, solution).faults == ()


# --- other solvers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 13, 26, 36, 43])
@pytest.mark.parametrize("objective", ["norm", "sum_squares"])
def test_agrees_with_cvxpy(seed, objective):
    """To cvxpy's accuracy; ours is the shorter of the two, once both are scaled to be feasible."""
    tokens, selected = problem(seed)
    A = np.array([matrix.astype(float) for _, matrix in constraints(tokens, selected)])
    W = cp.Variable((tokens.d, tokens.d))
    stacked = A.reshape(len(A), -1)
    length = cp.norm(W, "fro") if objective == "norm" else cp.sum_squares(W)
    cp.Problem(cp.Minimize(length), [stacked @ cp.vec(W, order="C") >= 1]).solve()
    assert W.value is not None
    solution = al.solve_margin(tokens, selected)
    assert al.misalignment(solution.W, W.value) < 1e-6
    np.testing.assert_allclose(solution.W, W.value, rtol=0, atol=1e-4 * float(np.linalg.norm(solution.W)))
    theirs = np.linalg.norm(W.value) / (stacked @ W.value.ravel()).min()
    assert np.linalg.norm(solution.W) <= theirs * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_sequential_quadratic_programming(seed):
    tokens, selected = cross(seed, n=2, T=3, d=3)
    A = np.array([matrix.astype(float).ravel() for _, matrix in constraints(tokens, selected)])
    start = np.linalg.lstsq(A, np.ones(len(A)), rcond=None)[0]
    found = scipy.optimize.minimize(
        lambda w: 0.5 * w @ w,
        start,
        jac=lambda w: w,
        constraints={"type": "ineq", "fun": lambda w: A @ w - 1, "jac": lambda w: A},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    np.testing.assert_allclose(al.solve_margin(tokens, selected).W.ravel(), found.x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [lambda: cross(5, n=3, T=3, d=4), lambda: correlated(2, n=3, T=3, d=4)])
def test_agrees_with_fifty_digits(make):
    """The tight constraints taken from the solution, their system solved in 50 digits: all signs come out right."""
    tokens, selected = make()
    solution = al.solve_margin(tokens, selected)
    found = constraints(tokens, selected)
    with mpmath.workdps(50):
        A = [[mpmath.mpf(float(a)) for a in _exact(tokens, selected, where).ravel()] for where, _ in found]
        tight = [j for j, (where, _) in enumerate(found) if solution.multipliers[where] > 0]
        gram = mpmath.matrix([[mpmath.fdot(A[i], A[j]) for j in tight] for i in tight])
        multipliers = mpmath.lu_solve(gram, mpmath.ones(len(tight), 1))
        W = [mpmath.fsum(multipliers[k] * A[j][a] for k, j in enumerate(tight)) for a in range(tokens.d**2)]
        assert all(multipliers[k] > 0 for k in range(len(tight)))
        assert all(mpmath.fdot(row, W) > 1 - mpmath.mpf(10) ** -12 for row in A)
        exact = np.array([float(w) for w in W]).reshape(tokens.d, tokens.d)
    np.testing.assert_allclose(solution.W, exact, rtol=0, atol=1e-9 * float(np.linalg.norm(exact)))


def _exact(tokens, selected, where):
    i, t = where
    return np.outer(tokens.x[i, selected[i]] - tokens.x[i, t], tokens.z[i])


# --- closed forms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_one_sequence_of_two_tokens(seed):
    """W = p z^T / (|p|^2 |z|^2), margin |p| |z|, rank 1."""
    tokens, selected = cross(seed, n=1, T=2, d=1 + seed % 5)
    p, z = tokens.x[0, selected[0]] - tokens.x[0, 1 - selected[0]], tokens.z[0]
    solution = al.solve_margin(tokens, selected)
    want = np.outer(p, z) / ((p @ p) * (z @ z))
    np.testing.assert_allclose(solution.W, want, rtol=0, atol=1e-14 * float(np.linalg.norm(want)))
    assert solution.margin == pytest.approx(np.linalg.norm(p) * np.linalg.norm(z), rel=1e-14)
    assert solution.multipliers[0, 1 - selected[0]] == pytest.approx(1 / ((p @ p) * (z @ z)), rel=1e-14)
    assert solution.rank == 1
    assert solution.support.sum() == 1


def test_two_tokens():
    solution = al.solve_margin(al.data.two_tokens(), [0])
    np.testing.assert_array_equal(solution.W, [[1.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(solution.multipliers, [[0.0, 1.0]])
    assert (solution.margin, solution.gap, solution.violation, solution.rank) == (1.0, 0.0, 0.0, 1)
    assert repr(solution) == "MarginSolution(frobenius, margin=1, support=1 of 1, rank=1, gap=0.0e+00, optimal)"


def test_bad_direction():
    tokens = al.data.bad_direction()
    solution = al.solve_margin(tokens, [1, 0])
    np.testing.assert_allclose(solution.W, [[-0.2096645, -0.725], [-0.725, -0.0083866]], atol=5e-7)
    assert 1 / solution.margin == pytest.approx(1.0465560, abs=5e-7)
    np.testing.assert_allclose(solution.multipliers, [[0.958666, 0.0], [0.0, 0.136613]], atol=5e-7)
    assert solution.support.tolist() == [[True, False], [False, True]]
    assert judge(tokens, solution).faults == ()


def test_orthonormal_tokens():
    """With x_selected = 0 and the others -e_t, and query e_1: W = sum_t e_t e_1^T, all multipliers 1."""
    tokens = Tokens(x=[np.vstack([np.zeros(4), -np.eye(4)])], z=[np.eye(4)[0]], y=[1])
    solution = al.solve_margin(tokens, [0])
    np.testing.assert_allclose(solution.W, np.outer(np.ones(4), np.eye(4)[0]), atol=1e-15)
    np.testing.assert_allclose(solution.multipliers, [[0, 1, 1, 1, 1]], atol=1e-15)
    assert solution.margin == pytest.approx(0.5, rel=1e-15)
    assert solution.rank == 1


def test_stated_error_of_the_direction_holds():
    """Multipliers moved by a known amount: the stated bound covers the true distance."""
    tokens, selected = cross(1)
    solution = al.solve_margin(tokens, selected)
    A = np.array([matrix.astype(float) for _, matrix in constraints(tokens, selected)])
    from attnlab.svm.certificate import certify
    from attnlab.svm.rows import margin_rows

    rng = np.random.default_rng(0)
    exact = np.array([solution.multipliers[where] for where, _ in constraints(tokens, selected)])
    for size in (1e-1, 1e-2, 1e-4, 1e-6):
        moved = np.maximum(exact * (1 + size * rng.standard_normal(len(A))), 0)
        loose = certify(margin_rows(tokens, selected), moved, solution.selected, tokens.d, 1e-10)
        distance = np.linalg.norm(loose.W - solution.W) / np.linalg.norm(loose.W)
        assert loose.status is MarginStatus.INACCURATE
        assert distance <= loose.direction_error
        assert loose.gap > 0
        assert (loose.support is None) == (loose.rank is None) == (loose.reason is not None)
        if loose.support is not None:  # a tight constraint is never missed
            assert (loose.support | ~solution.support).all()
            assert loose.rank <= solution.rank


def test_a_loose_tolerance_is_reported_as_met():
    tokens, selected = cross(2)
    assert al.solve_margin(tokens, selected, tolerance=1e-3).status is MarginStatus.OPTIMAL
    unmet = [al.solve_margin(*cross(seed), tolerance=0.0) for seed in range(8)]
    assert all((s.status is MarginStatus.INACCURATE) == (s.gap > 0) for s in unmet)
    assert any(s.gap > 0 for s in unmet)
