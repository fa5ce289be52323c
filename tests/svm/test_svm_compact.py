"""Interior points on matrices of the queries' dimension: the bounds they state, and every equation of a step."""

import numpy as np
import pytest
from svm_cases import correlated, cross

from attnlab.data.span import spanning
from attnlab.svm import margin_rows, polish
from attnlab.svm.compact import _advance, _start, _State, _System, approach
from attnlab.svm.frobenius import solve_rows
from attnlab.svm.interior import Stack

TARGET = 1e-3


def problem(tokens, selected):
    """One problem in coordinates of the spans, with unit rows; and its Frobenius solution, feasible."""
    rows = margin_rows(tokens, selected)
    plain = solve_rows(rows, np.asarray(selected), tokens.d)
    left, right = spanning(rows.p), spanning(rows.queries)
    bound = 1.0 / rows.norms
    size = bound.max()
    unit = rows.unit()
    free = np.zeros(len(rows), dtype=bool)
    stack = Stack((unit.p @ left)[None], (unit.queries @ right)[None], rows.query, (bound / size)[None], free)
    pulls = plain.multipliers.reshape(-1)[rows.where] * rows.norms
    return stack, (left.T @ plain.W @ right / size)[None], pulls[None]


def together(parts):
    """Problems of one shape as one stack."""
    stacks, W, multipliers = zip(*parts, strict=True)
    joined = (np.concatenate([getattr(s, name) for s in stacks]) for name in ("f", "queries", "bound"))
    f, queries, bound = joined
    whole = Stack(f, queries, stacks[0].query, bound, stacks[0].free)
    return whole, np.concatenate(W), np.concatenate(multipliers)


def matrices(stack):
    """A_j = f_j z_j^T of the first problem, written out, (N, a, b)."""
    return np.array([np.outer(f, stack.queries[0][q]) for f, q in zip(stack.f[0], stack.query, strict=True)])


def halfway(steps, seeds=(0, 1, 2)):
    """A stack after some steps, off the central path."""
    stack, W, multipliers = together([problem(*cross(seed)) for seed in seeds])
    now = _start(stack, W, multipliers)
    for _ in range(steps):
        _advance(stack, now, _State(stack, now))
    return stack, now, _State(stack, now)


@pytest.mark.parametrize("make", [cross, correlated])
@pytest.mark.parametrize("seed", range(8))
def test_the_gap_bounds_that_of_explicit_matrices(make, seed):
    stack, W, multipliers = problem(*make(seed))
    near = approach(stack, TARGET, W, multipliers)
    A = matrices(stack)
    values = np.array([np.sum(a * near.W[0]) for a in A]) / stack.bound[0]
    image = np.linalg.norm(np.tensordot(near.multipliers[0], A, 1), 2)
    nuclear = np.linalg.norm(near.W[0], "nuc")
    assert near.gap[0] <= TARGET
    assert values.min() == pytest.approx(1.0, abs=1e-9)
    assert near.multipliers.min() >= 0
    assert image == pytest.approx(1.0, abs=1e-12)
    assert -1e-12 <= nuclear / (stack.bound[0] @ near.multipliers[0]) - 1.0 <= near.gap[0] + 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_of_clarabel_is_between_the_bounds(seed):
    cvxpy = pytest.importorskip("cvxpy")
    stack, W, multipliers = problem(*cross(seed))
    near = approach(stack, TARGET, W, multipliers)
    A = matrices(stack)
    X = cvxpy.Variable(A.shape[1:])
    limits = [A.reshape(len(A), -1) @ cvxpy.vec(X, order="C") >= stack.bound[0]]
    best = cvxpy.Problem(cvxpy.Minimize(cvxpy.normNuc(X)), limits).solve(solver=cvxpy.CLARABEL)
    assert stack.bound[0] @ near.multipliers[0] <= best * (1 + 1e-7)
    assert best <= np.linalg.norm(near.W[0], "nuc") * (1 + 1e-7)
    assert np.linalg.norm(near.W[0], "nuc") <= best * (1 + TARGET + 1e-7)


def test_ordinary_problems_are_all_solved_this_way(monkeypatch):
    def refused(*_):
        raise AssertionError("the slower method was asked for")

    monkeypatch.setattr(polish, "_slowly", refused)
    stack, W, multipliers = together([problem(*cross(seed)) for seed in range(20)])
    found = polish.least_nuclear(stack, 1e-8, W, multipliers)
    assert found.gap.max() <= 1e-13
    assert found.rank.min() >= 1
    assert found.rank.tolist() == np.linalg.matrix_rank(found.W, rtol=1e-9).tolist()


def test_problems_of_a_stack_do_not_know_of_each_other():
    parts = [problem(*cross(seed)) for seed in range(6)]
    whole = approach(together(parts)[0], TARGET, *together(parts)[1:])
    for i, part in enumerate(parts):
        alone = approach(part[0], TARGET, *part[1:])
        np.testing.assert_allclose(whole.W[i], alone.W[0], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(whole.gap[i], alone.gap[0], rtol=1e-4)


def test_a_problem_without_solution_is_given_up_alone():
    stack, W, multipliers = together([problem(*cross(seed)) for seed in range(4)])
    stack.f[1, 1] = -stack.f[1, 0]  # two rows that contradict each other
    found = approach(stack, TARGET, W, multipliers)
    assert np.isinf(found.gap[1])
    assert (np.delete(found.gap, 1) <= TARGET).all()


@pytest.mark.parametrize("steps", [0, 2])
def test_a_step_solves_the_linearized_equations(steps):
    stack, now, state = halfway(steps)
    weight = np.array([0.0, 0.3, 1.0])
    step = _System(stack, now, state).direction(weight)
    target = weight * state.mu

    def values(h):
        multipliers, R = now.multipliers + h * step.multipliers, now.R + h * step.R
        return stack.values(stack.adjoint(multipliers) @ R)

    slope = (values(0.5) - values(-0.5)) / 1.0  # exact for a quadratic function
    np.testing.assert_allclose(slope - step.slack, stack.bound - values(0.0) + now.slack, atol=1e-9)
    tied = now.multipliers * step.slack + now.slack * step.multipliers
    np.testing.assert_allclose(tied, target[:, None] - now.multipliers * now.slack, atol=1e-9)
    for r in range(3):
        R, S, dR, dS = now.R[r], state.S[r], step.R[r], step.S[r]
        root = np.linalg.cholesky(S)  # the direction of Helmberg, Kojima and Monteiro: scaled by S, then symmetric
        scaled = root.T @ (R + dR) @ root + _sym(root.T @ R @ dS @ np.linalg.inv(root).T)
        np.testing.assert_allclose(scaled, 2 * target[r] * np.eye(len(R)), atol=1e-9)
        M, dM = state.M[r], step.M[r]
        np.testing.assert_allclose(dS, -(M.T @ dM + dM.T @ M), atol=1e-12)


def test_the_corrector_leaves_errors_of_third_order():
    stack, now, state = halfway(1)
    system = _System(stack, now, state)
    first = system.direction(np.zeros(3))
    second = system.direction(np.zeros(3), first, np.ones(3))

    def wrong(step, h):
        """How far what a path of first and second order leads to is from the equations, along the path."""
        bend = h * h
        R = now.R + h * first.R + bend * (step.R - first.R)
        multipliers = now.multipliers + h * first.multipliers + bend * (step.multipliers - first.multipliers)
        slack = now.slack + h * first.slack + bend * (step.slack - first.slack)
        rest = stack.values(state.M @ now.R) - now.slack - stack.bound
        rows = stack.values(stack.adjoint(multipliers) @ R) - slack - stack.bound - (1 - h) * rest
        tied = multipliers * slack - (1 - h) * now.multipliers * now.slack
        return max(np.abs(rows).max(), np.abs(tied).max())

    assert wrong(second, 1e-3) <= 0.02 * wrong(first, 1e-3)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_lengths_end_at_the_boundary_and_never_beyond(steps):
    stack, now, state = halfway(steps)
    system = _System(stack, now, state)
    step = system.direction(np.zeros(3))
    for r, (primal, dual) in enumerate(zip(*system.lengths(step), strict=True)):
        ahead = np.linalg.eigvalsh(now.R[r] + primal * step.R[r])[0], (now.slack + primal * step.slack)[r].min()
        assert min(ahead) == pytest.approx(0.0, abs=1e-9)  # exactly at it
        multipliers = now.multipliers[r] + dual * step.multipliers[r]
        M = np.tensordot(multipliers, stack.f[r][:, :, None] * stack.z[r][:, None, :], 1)
        assert multipliers.min() >= -1e-12
        assert np.linalg.norm(M, 2) <= 1 + 1e-12


def _sym(Y):
    return 0.5 * (Y + Y.T)
