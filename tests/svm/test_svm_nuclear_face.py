"""All optima of the nuclear problem: uniqueness, the bound on their spread, the distance of a W from them."""

from dataclasses import replace

import numpy as np
import pytest
from nuclear_verifier import judge_arrays
from svm_cases import correlated, cross

import attnlab as al
from attnlab import Tokens
from attnlab.errors import InputError
from attnlab.svm import Rows, margin_rows
from attnlab.svm.face import OptimalFace, as_matrices, as_vectors, distance_to_face, null_directions
from attnlab.svm.frobenius import solve_rows
from attnlab.svm.nuclear import solve_nuclear
from attnlab.svm.optima import Certified, second_optimum, spread_of_optima, symmetric_parts


def solve(tokens, selected, **options):
    return solve_nuclear(margin_rows(tokens, selected), np.asarray(selected), tokens.d, **options)


def orthogonal(sizes, left=None, right=None, extra=()):
    """Rows a_i u_i v_i^T for orthonormal u, v: optima are all U S V^T with S >= 0 and diagonal 1 / a.

    `extra` are further rows (p, q).
    """
    r = len(sizes)
    d = r if left is None else len(left)
    left = np.eye(d) if left is None else left
    right = np.eye(d) if right is None else right
    p = np.concatenate([np.asarray(sizes)[:, None] * left[:, :r].T, *[np.atleast_2d(e[0]) for e in extra]])
    q = np.concatenate([right[:, :r].T, *[np.atleast_2d(e[1]) for e in extra]])
    return Rows(p, q, np.arange(len(p)), np.arange(len(p)), (len(p), 1)), d


def turned(seed, d):
    rng = np.random.default_rng(seed)
    return (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))


def nearest(G, diagonal, rows=()):
    """Oracle: distance of symmetric G from the cone {S >= 0 : diag S = t diagonal, <B, S> >= t} by cvxpy."""
    cvxpy = pytest.importorskip("cvxpy")
    S, t = cvxpy.Variable(G.shape, PSD=True), cvxpy.Variable()
    limits = [cvxpy.diag(S) == t * diagonal] + [cvxpy.trace(B @ S) >= t for B in rows]
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm(S - G, "fro")), limits)
    problem.solve(solver=cvxpy.CLARABEL)
    return problem.value


def test_vectors_of_symmetric_matrices_keep_inner_products():
    A, B = (np.random.default_rng(s).standard_normal((4, 4)) for s in (0, 1))
    A, B = A + A.T, B + B.T
    assert as_vectors(A) @ as_vectors(B) == pytest.approx(np.vdot(A, B), rel=1e-13)
    np.testing.assert_allclose(as_matrices(as_vectors(A), 4), A, rtol=1e-14)


@pytest.mark.parametrize("seed", range(10))
def test_random_problems_have_one_optimum(seed):
    solution = solve(*cross(seed))
    assert solution.unique is True
    assert solution.face.dimension == 0
    assert 0 < solution.direction_error < 1e-2
    np.testing.assert_allclose(solution.face.U @ solution.face.S @ solution.face.V.T, solution.W, atol=1e-7)


@pytest.mark.parametrize("seed", range(8))
def test_the_stated_error_holds_for_another_solver(seed):
    """cvxpy's W has its own gap g; both are within their bounds of the one optimum."""
    cvxpy = pytest.importorskip("cvxpy")
    tokens, selected = cross(seed, n=3, T=3, d=4)
    rows, solution = margin_rows(tokens, selected), solve(tokens, selected)
    W = cvxpy.Variable((4, 4))
    values = cvxpy.sum(cvxpy.multiply(rows.p @ W, rows.queries[rows.query]), axis=1)
    cvxpy.Problem(cvxpy.Minimize(cvxpy.normNuc(W)), [values >= 1]).solve(solver=cvxpy.CLARABEL)
    length = np.linalg.norm(solution.W)
    # The spread grows like the square root of the gap: cvxpy's 1e-8 against ours of at least 1e-16.
    assert np.linalg.norm(W.value - solution.W) <= 1e4 * solution.direction_error * length


@pytest.mark.parametrize("sizes", [(1.0, 1.0), (1.0, 3.0), (1.0, 2.0, 4.0), (1.0, 1.0, 1.0, 1.0)])
def test_orthogonal_rows_have_many_optima(sizes):
    r = len(sizes)
    left, right = turned(r, r + 2)
    rows, d = orthogonal(sizes, left, right)
    solution = solve_nuclear(rows, np.zeros(r, dtype=int), d)
    assert solution.unique is False
    assert solution.direction_error is None
    assert solution.face.dimension == r * (r - 1) // 2
    assert solution.rank == r
    assert solution.support.all()
    # Any other point of the face is certified by the same multipliers.
    rng = np.random.default_rng(0)
    for _ in range(5):
        unit = rng.standard_normal((r, r))
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        S = (unit @ unit.T) / np.sqrt(np.outer(sizes, sizes))
        W = left[:, :r] @ S @ right[:, :r].T
        A = np.einsum("ja,jb->jab", rows.p, rows.queries)
        assert judge_arrays(A, W, solution.multipliers[:, 0]) == []
        assert distance_to_face(3.0 * W, solution) <= 1e-7


@pytest.mark.parametrize("seed", range(6))
def test_distance_to_a_face_against_cvxpy(seed):
    sizes = np.array([1.0, 2.0, 1.5])
    left, right = turned(seed, 4)
    rows, d = orthogonal(sizes, left, right)
    solution = solve_nuclear(rows, np.zeros(3, dtype=int), d)
    W = np.random.default_rng(seed).standard_normal((d, d)) + (seed % 3) * left @ right.T
    W /= np.linalg.norm(W)
    inside = left[:, :3].T @ W @ right[:, :3]
    G = (inside + inside.T) / 2
    rest = 1.0 - np.linalg.norm(G) ** 2  # what no U S V^T reaches
    wanted = np.sqrt(rest + nearest(G, 1.0 / sizes) ** 2)
    assert distance_to_face(W, solution) == pytest.approx(wanted, abs=1e-6)


def test_loose_rows_cut_the_face():
    """A third row that the solution's centre meets: optima [[1, s], [s, 1]] with 1 + s >= 1 / 1.2."""
    e = np.eye(2)
    rows, d = orthogonal((1.0, 1.0), extra=[(1.2 * e[0], e[0] + e[1])])
    solution = solve_nuclear(rows, np.zeros(3, dtype=int), d)
    assert solution.unique is False
    assert solution.support.ravel().tolist() == [True, True, False]
    corner = 1.0 / 1.2 - 1.0
    assert distance_to_face([[1.0, corner], [corner, 1.0]], solution) <= 1e-7
    beyond = np.array([[1.0, -0.9], [-0.9, 1.0]])
    cut = np.array([[1.0, corner], [corner, 1.0]])
    cosine = np.vdot(beyond, cut) / np.linalg.norm(beyond) / np.linalg.norm(cut)
    assert distance_to_face(beyond, solution) == pytest.approx(np.sqrt(1 - cosine**2), abs=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_distance_to_one_optimum_is_the_sine_of_the_angle(seed):
    tokens, selected = cross(seed)
    solution = solve(tokens, selected)
    W = np.random.default_rng(seed).standard_normal(solution.W.shape)
    W *= np.sign(np.vdot(W, solution.W))
    cosine = float(al.cosine(W, solution.W))
    assert distance_to_face(W, solution) == pytest.approx(np.sqrt(1 - cosine**2), abs=1e-9)
    assert distance_to_face(1e200 * solution.W, solution) <= 1e-9
    assert distance_to_face(-solution.W, solution) == pytest.approx(1.0, abs=1e-12)


def test_distance_refuses_what_it_cannot_measure():
    tokens, selected = cross(0)
    solution = solve(tokens, selected)
    for wrong in (np.zeros_like(solution.W), np.full_like(solution.W, np.nan), np.ones((2, 2))):
        with pytest.raises(InputError, match="`W`"):
            distance_to_face(wrong, solution)
    plain = solve_rows(margin_rows(tokens, selected), selected, tokens.d)
    with pytest.raises(InputError, match="no optimal face"):
        distance_to_face(solution.W, plain)


@pytest.mark.parametrize("seed", range(8))
def test_uniqueness_agrees_with_the_span_condition(seed):
    """Explicit matrices: {sym(U^T A_j V) : l_j > 0} spans Sym(r) if and only if unique, where rank W = r."""
    tokens, selected = cross(seed) if seed < 4 else correlated(seed)
    solution = solve(tokens, selected)
    M = np.zeros((tokens.d, tokens.d))
    parts, rows = [], margin_rows(tokens, selected)
    multipliers = solution.multipliers.ravel()[rows.where]
    for j in range(len(rows)):
        M += multipliers[j] * np.outer(rows.p[j], rows.queries[rows.query[j]])
    U, singular, V = np.linalg.svd(M)
    r = int((singular > 1 - 1e-6).sum())
    assert r == solution.rank
    for j in np.flatnonzero(multipliers > 1e-6 * multipliers.sum()):
        B = U[:, :r].T @ np.outer(rows.p[j], rows.queries[rows.query[j]]) @ V[:r].T
        parts.append(((B + B.T) / np.linalg.norm(B)).ravel())
    spans = np.linalg.matrix_rank(np.array(parts), tol=1e-8) == r * (r + 1) // 2
    assert bool(spans) is solution.unique


def test_non_unique_solutions_of_tokens_say_so():
    """Two queries e1, e2 and token differences e1, e2: the smallest data set with many optima."""
    tokens = Tokens(x=[[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]], z=np.eye(2), y=[1, 1])
    solution = solve(tokens, [0, 0])
    assert solution.unique is False
    assert solution.summary()["unique"] is False
    assert solution.summary()["direction_error"] is None
    assert "rank=2" in repr(solution)
    assert replace(solution, unique=None).face is solution.face


def degraded(seed, t):
    """An optimum and what is certified of a mixture with the Frobenius solution, feasible as both are."""
    tokens, selected = cross(seed)
    rows, best = margin_rows(tokens, selected), solve(tokens, selected)
    plain = solve_rows(rows, selected, tokens.d)
    W = (1 - t) * best.W + t * plain.W
    unit = plain.multipliers / np.linalg.norm(rows.adjoint(plain.multipliers.ravel()[rows.where]), 2)
    multipliers = ((1 - t) * best.multipliers + t * unit).ravel()[rows.where]
    W = W / rows.values(W).min()
    left, singular, right = np.linalg.svd(rows.adjoint(multipliers))
    multipliers = multipliers / singular[0]
    nuclear = np.linalg.norm(W, "nuc")
    known = Certified(
        rows=rows, W=W, values=rows.values(W), multipliers=multipliers, equal=np.zeros(len(rows), dtype=bool),
        nuclear=nuclear, gap=nuclear / multipliers.sum() - 1.0, rank=best.rank, left=left, singular=singular,
        right=right.T,
    )  # fmt: skip
    return best, known


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("t", [1e-3, 1e-5, 1e-7])
def test_the_optimum_is_within_the_spread_that_a_worse_solution_proves(seed, t):
    best, known = degraded(seed, t)
    U, V = known.left[:, : known.rank], known.right[:, : known.rank]
    B, inside = symmetric_parts(known.rows, U, V), U.T @ known.W @ V
    face = OptimalFace(
        U, V, (inside + inside.T) / 2, B, np.ones(len(B)), known.rows.norms, np.ones(len(B), dtype=bool), 0
    )
    spread, value_error = spread_of_optima(known, face)
    assert known.gap > 0
    assert np.linalg.norm(known.W - best.W) <= spread
    assert (np.abs(known.values - known.rows.values(best.W)) <= value_error + 1e-9).all()


@pytest.mark.parametrize("power", [-40, -3, 5, 40])
def test_what_is_proved_does_not_depend_on_the_scale(power):
    """Powers of two scale every number exactly."""
    tokens, selected = cross(1)
    scaled = Tokens(x=tokens.x * 2.0**power, z=tokens.z, y=tokens.y)
    one, other = solve(tokens, selected), solve(scaled, selected)
    assert other.direction_error == pytest.approx(one.direction_error, rel=1e-3)
    np.testing.assert_allclose(other.value_error, one.value_error, rtol=1e-3)


def test_the_second_optimum_is_half_way_along_the_longer_way():
    """Optima [[1, s], [s, 1]] with s from -1 / 6, where the third row is tight, to 1: half way from 0 is s = 1 / 2."""
    e = np.eye(2)
    B = np.array([np.outer(e[0], e[0]), np.outer(e[1], e[1]), 1.2 * np.array([[1.0, 0.5], [0.5, 0.0]])])
    face = OptimalFace(e, e, e, B, np.ones(3), np.ones(3), np.array([True, True, False]), 1)
    change = second_optimum(face, null_directions(face))
    assert change is not None
    np.testing.assert_allclose(change, [[0.0, 0.5], [0.5, 0.0]], atol=1e-12)
