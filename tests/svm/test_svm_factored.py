"""The max-margin problem over keys and queries: certificates, global optima for m = 1, laws, and hard inputs."""

import itertools

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import linprog, minimize
from svm_cases import correlated, cross, problem
from verifier import combine, constraints, size

from attnlab import InfeasibleSelection, InputError, Tokens, optimal_tokens, solve_margin
from attnlab.data import two_tokens
from attnlab.svm.factored import FactoredStatus, solve_factored
from attnlab.svm.factors import Factors, local_solution, polished, random_starts
from attnlab.svm.nuclear import solve_nuclear
from attnlab.svm.rows import margin_rows

SOLVED = (FactoredStatus.GLOBAL, FactoredStatus.LOCAL)


def faults(tokens, solution, *, rounding=1e-9):
    """Everything that is wrong with a KKT point, from explicit constraint matrices in extended precision."""
    found, d = constraints(tokens, solution.selected), tokens.d
    K, Q = (np.array(a, dtype=np.longdouble) for a in (solution.K, solution.Q))
    M = combine(found, solution.multipliers, d)
    values = np.array([np.sum(A * (K @ Q.T)) for _, A in found])
    pull = np.array([np.longdouble(solution.multipliers[where]) for where, _ in found])
    length = np.sqrt(size(K) ** 2 + size(Q) ** 2)
    value = (size(K) ** 2 + size(Q) ** 2) / 2
    top = np.linalg.norm(M.astype(float), 2)
    wrong = {
        "shape": K.shape != (d, solution.m) or Q.shape != (d, solution.m),
        "infeasible": values.min() < 1 - rounding,
        "not scaled to least value 1": abs(values.min() - 1) > rounding,
        "negative multiplier": (pull < 0).any(),
        "K is not M Q": size(K - M @ Q) > rounding * length,
        "Q is not M^T K": size(Q - M.T @ K) > rounding * length,
        "slackness": (pull * np.abs(values - 1)).sum() > rounding * pull.sum(),
        "not balanced": size(K.T @ K - Q.T @ Q) > rounding * length**2,
        "value": abs(value / solution.value - 1) > rounding,
        "W": size(K @ Q.T - solution.W) > rounding * size(solution.W),
        "nuclear norm": abs(np.linalg.norm(solution.W, "nuc") / float(value) - 1) > rounding,
        "bound above value": solution.lower_bound > solution.value * (1 + 1e-12),
        "bound below what these multipliers prove": solution.lower_bound < float(pull.sum()) / top * (1 - rounding),
        "spectral": abs(solution.spectral / top - 1) > rounding,
        "gap": abs(solution.gap - (solution.value / solution.lower_bound - 1)) > 1e-12 * (1 + solution.gap),
        "global without proof": solution.certified_global and solution.gap > 1e-8,
        # Strong duality at a KKT point: sum pull = sum l c = <M, K Q^T> = |K|^2 = |Q|^2.
        "duality": abs(float(pull.sum() / value) - 1) > 10 * rounding,
    }
    return [name for name, bad in wrong.items() if bad]


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("seed", range(0, 50, 3))
def test_every_solution_is_a_kkt_point(seed, m):
    tokens, selected = problem(seed)
    found = solve_factored(tokens, selected, m, restarts=2)
    if found.status in (FactoredStatus.NOT_FOUND, FactoredStatus.UNCONSTRAINED):
        return
    assert found.status in SOLVED
    assert faults(tokens, found) == []
    assert found.certified_global == (found.status is FactoredStatus.GLOBAL)
    # A KKT point with |M| <= 1 is globally optimal, and the certificate says so.
    assert (found.spectral <= 1 + 1e-9) == found.certified_global


def test_the_judge_sees_a_perturbed_solution():
    tokens, selected = cross(0)
    found = solve_factored(tokens, selected, 1)
    assert faults(tokens, found) == []
    for name, change in (("K", 1e-6), ("Q", 1e-6), ("multipliers", 1e-6), ("W", 1e-6), ("value", 1e-6)):
        wrong = object.__new__(type(found))
        wrong.__dict__.update(found.__dict__)
        right = getattr(found, name)
        wrong.__dict__[name] = right * (1 + change * np.random.default_rng(0).standard_normal(np.shape(right)))
        assert faults(tokens, wrong)


# --- against other solvers ----------------------------------------------------------------------------------------


def separable(vectors):
    """Is there k with vectors @ k >= 1?"""
    n, d = vectors.shape
    return linprog(np.zeros(d), A_ub=-vectors, b_ub=-np.ones(n), bounds=(None, None)).status == 0


def optima_of_width_one(tokens, selected):
    """The optimum of every sign pattern of the z_i.q: with the signs fixed the problem of width 1 is convex.

    (p.k)(z.q) >= 1 with both factors positive says log(p.k) + log(z.q) >= 0, and the logarithm is concave.
    """
    found = constraints(tokens, selected)
    p, z, query = [], [], []
    for (*where, t), _ in found:
        i = where[0]
        p.append(tokens.x[i, np.asarray(selected)[tuple(where)]] - tokens.x[i, t])
        z.append(tokens.z[tuple(where)])
        query.append(tuple(where))
    p, z, names = np.array(p), np.array(z), sorted(set(query))
    values = []
    for signs in itertools.product((1.0, -1.0), repeat=len(names) - 1):
        sign = np.array([dict(zip(names, (1.0, *signs), strict=True))[q] for q in query])[:, None]
        if not (separable(sign * p) and separable(sign * z)):
            continue
        k, q = cp.Variable(tokens.d), cp.Variable(tokens.d)
        cost = (cp.sum_squares(k) + cp.sum_squares(q)) / 2
        rows = [cp.log((sign * p) @ k) + cp.log((sign * z) @ q) >= 0]
        values.append(cp.Problem(cp.Minimize(cost), rows).solve(solver="CLARABEL"))
    return np.array(values)


@pytest.mark.parametrize("seed", [2, 3, 4, 5, 9, 12, 13, 14, 15, 21, 22, 23, 24, 25])
def test_width_one_against_all_sign_patterns(seed):
    tokens, selected = problem(seed)
    optima = optima_of_width_one(tokens, selected)
    found = solve_factored(tokens, selected, 1)
    if not optima.size:
        assert found.status is FactoredStatus.NOT_FOUND
        return
    # A KKT point is the optimum of its own sign pattern; the starts find the best one here.
    assert np.abs(found.value / optima - 1).min() < 1e-6
    assert found.value == pytest.approx(optima.min(), rel=1e-6)
    ended = found.found[np.isfinite(found.found)]
    assert all(np.abs(value / optima - 1).min() < 1e-6 for value in ended)


@pytest.mark.parametrize("seed", range(8))
def test_enough_width_gives_the_nuclear_norm_optimum(seed):
    tokens, selected = cross(seed, n=3, T=4, d=5)
    W = cp.Variable((5, 5))
    rows = [cp.sum(cp.multiply(A.astype(float), W)) >= 1 for _, A in constraints(tokens, selected)]
    optimum = cp.Problem(cp.Minimize(cp.normNuc(W)), rows).solve(solver="CLARABEL")
    for m in (3, 5, 7):
        found = solve_factored(tokens, selected, m)
        assert found.status is FactoredStatus.GLOBAL
        assert found.value == pytest.approx(optimum, rel=1e-6)
        assert found.convex_rank is not None
        assert found.convex_rank <= 3  # Lemma 1: rank <= n
        assert np.count_nonzero(np.abs(found.K).max(0)) == found.convex_rank
        assert not found.found.size
        assert faults(tokens, found) == []


def test_the_reference_instance():
    """n=3, T=4, d=5, seed 1: rank 2, optimum 2.993000, and 3.1014 for width 1 (Lemma 3)."""
    rng = np.random.default_rng(1)

    def unit(*shape):
        a = rng.standard_normal(shape)
        return a / np.linalg.norm(a, axis=-1, keepdims=True)

    v, y, x, z = unit(5), np.where(rng.random(3) < 0.5, 1.0, -1.0), unit(3, 4, 5), unit(3, 5)
    tokens = Tokens(x=x, z=z, y=y, v=v)
    best = optimal_tokens(tokens)
    one, two, five = (solve_factored(tokens, best, m) for m in (1, 2, 5))
    assert one.convex_rank == 2
    assert two.value == pytest.approx(2.993, rel=1e-4)
    assert five.value == pytest.approx(two.value, rel=1e-12)
    assert one.value == pytest.approx(3.1014, rel=1e-4)
    assert one.status is FactoredStatus.LOCAL
    assert one.lower_bound == pytest.approx(two.value, rel=1e-8)
    assert one.value == pytest.approx(optima_of_width_one(tokens, best).min(), rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_slsqp_finds_nothing_lower_nearby(seed):
    tokens, selected = cross(seed, n=6, T=5, d=6)
    matrices = np.array([A.astype(float) for _, A in constraints(tokens, selected)])
    convex = solve_nuclear(margin_rows(tokens, selected), selected, 6)
    m = convex.rank - 1
    found = solve_factored(tokens, selected, m, convex=convex)
    assert found.status is FactoredStatus.LOCAL
    shape = (2, 6, m)

    def values(theta):
        K, Q = theta.reshape(shape)
        return np.einsum("jde,dm,em->j", matrices, K, Q) - 1

    def slopes(theta):
        K, Q = theta.reshape(shape)
        by_K, by_Q = np.einsum("jde,em->jdm", matrices, Q), np.einsum("jde,dm->jem", matrices, K)
        return np.stack([by_K, by_Q], axis=1).reshape(len(matrices), -1)

    start = np.stack([found.K, found.Q]).ravel()
    for shake in (0.0, 0.03):
        other = minimize(
            lambda t: (t @ t / 2, t), start + shake * np.random.default_rng(seed).standard_normal(start.size), jac=True,
            constraints={"type": "ineq", "fun": values, "jac": slopes}, method="SLSQP", options={"maxiter": 500},
        )  # fmt: skip
        assert other.fun >= found.value * (1 - 1e-6)


# --- laws ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_more_width_never_costs_more_than_less_width_padded(seed):
    tokens, selected = cross(seed, n=5, T=5, d=6)
    found = [solve_factored(tokens, selected, m) for m in (1, 2, 3, 6)]
    values = [f.value for f in found]
    assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise(values))
    np.testing.assert_allclose([f.lower_bound for f in found], values[-1], rtol=1e-8)


@pytest.mark.parametrize(("a", "b"), [(3.0, 0.5), (1e50, 1e-3), (1e-60, 1.0), (1e60, 1e60)])
def test_scaling_tokens_and_queries(a, b):
    tokens, selected = cross(1, n=4, T=4, d=5)
    other = Tokens(x=a * tokens.x, z=b * tokens.z, y=tokens.y)
    for m in (1, 3):
        one, two = solve_factored(tokens, selected, m), solve_factored(other, selected, m)
        assert one.status is two.status
        assert two.value * (a * b) == pytest.approx(one.value, rel=1e-10)
        np.testing.assert_allclose(two.W * (a * b), one.W, rtol=1e-6, atol=1e-8 * np.abs(one.W).max())
        assert faults(other, two) == []


def test_rotating_the_space_rotates_the_solution():
    tokens, selected = cross(2)
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    other = Tokens(x=tokens.x @ turn.T, z=tokens.z @ turn.T, y=tokens.y)
    one, two = solve_factored(tokens, selected, 1), solve_factored(other, selected, 1)
    assert two.value == pytest.approx(one.value, rel=1e-10)
    np.testing.assert_allclose(two.W, turn @ one.W @ turn.T, atol=1e-8)


def test_same_seed_same_solution_and_a_given_convex_solution_is_used():
    tokens, selected = cross(3)
    convex = solve_nuclear(margin_rows(tokens, selected), selected, 6)
    one, two = solve_factored(tokens, selected, 1), solve_factored(tokens, selected, 1, convex=convex)
    np.testing.assert_array_equal(one.K, two.K)
    assert two.convex is convex
    assert len(one.found) == 7
    assert (np.diff(one.found) >= 0).all()
    assert one.found[0] == pytest.approx(one.value, rel=1e-12)
    assert len(solve_factored(tokens, selected, 1, restarts=0).found) == 1
    assert "m=1" in repr(one)


@pytest.mark.parametrize("seed", range(3))
def test_nearly_equal_tokens(seed):
    tokens, selected = correlated(seed)
    found = solve_factored(tokens, selected, 2)
    assert found.status in SOLVED
    assert faults(tokens, found, rounding=1e-7) == []


few = settings(deadline=None, max_examples=40, database=None, derandomize=True)


@few
@given(data=st.data(), n=st.integers(1, 3), T=st.integers(1, 3), d=st.integers(1, 3), m=st.integers(1, 4))
def test_small_whole_numbers(data, n, T, d, m):
    """Duplicates, zero queries, collinear tokens: a KKT point, or an honest status."""
    entries = st.integers(-2, 2)
    x = np.array(data.draw(st.lists(entries, min_size=n * T * d, max_size=n * T * d)), dtype=float).reshape(n, T, d)
    z = np.array(data.draw(st.lists(entries, min_size=n * d, max_size=n * d)), dtype=float).reshape(n, d)
    tokens, selected = Tokens(x=x, z=z, y=np.ones(n)), np.zeros(n, dtype=int)
    convex = solve_margin(tokens, selected, throw=False)
    found = solve_factored(tokens, selected, m, restarts=2, throw=False)
    if not convex.feasible:
        assert found.status is FactoredStatus.INFEASIBLE
        assert not found.feasible
        assert np.isnan(found.K).all()
    elif T == 1:
        assert found.status is FactoredStatus.UNCONSTRAINED
        assert found.value == 0
        assert found.certified_global
        assert not found.K.any()
    elif m >= min(n, d):
        assert found.status is FactoredStatus.GLOBAL
        assert faults(tokens, found, rounding=1e-7) == []
    elif found.status is FactoredStatus.NOT_FOUND:
        assert m == 1
        assert not optima_of_width_one(tokens, selected).size
    else:
        assert found.status in SOLVED
        assert faults(tokens, found, rounding=1e-7) == []


# --- hard inputs ---------------------------------------------------------------------------------------------------


def four_signs():
    """W11, W21, W12 >= 1 and W22 <= -1: no matrix of rank 1 has these signs."""
    e, o = np.eye(2), np.zeros(2)
    x = np.array([[e[0], o], [e[1], o], [e[0], o], [-e[1], o]])
    return Tokens(x=x, z=e[[0, 0, 1, 1]], y=np.ones(4))


def test_a_selection_that_no_matrix_of_this_rank_separates():
    one = solve_factored(four_signs(), [0] * 4, 1)
    assert one.status is FactoredStatus.NOT_FOUND
    assert not one.feasible
    assert one.value == np.inf
    assert np.isinf(one.found).all()
    assert one.lower_bound == pytest.approx(2 * np.sqrt(2))  # W = [[1, 1], [1, -1]] is optimal
    assert "not_found" in repr(one)
    two = solve_factored(four_signs(), [0] * 4, 2)
    assert two.status is FactoredStatus.GLOBAL
    np.testing.assert_allclose(two.W, [[1, 1], [1, -1]], atol=1e-9)


def test_an_infeasible_selection():
    tokens = Tokens(x=[[[1.0, 0.0], [1.0, 0.0]]], z=[[1.0, 1.0]], y=[1.0])
    with pytest.raises(InfeasibleSelection, match="No W of any rank") as caught:
        solve_factored(tokens, [0], 1)
    assert caught.value.farkas is not None
    found = solve_factored(tokens, [0], 1, throw=False)
    assert found.status is FactoredStatus.INFEASIBLE
    assert not found.certified_global


def test_one_dimension():
    tokens = Tokens(x=[[[1.0], [0.0]]], z=[[2.0]], y=[1.0])
    found = solve_factored(tokens, [0], 3)
    assert found.value == pytest.approx(0.5)
    np.testing.assert_allclose(found.K @ found.Q.T, [[0.5]])
    assert found.K.shape == (1, 3)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"m": 0}, "`m`"),
        ({"m": 1.0}, "`m`"),
        ({"m": True}, "`m`"),
        ({"restarts": -1}, "`restarts`"),
        ({"seed": -1}, "`seed`"),
        ({"tolerance": -1.0}, "`tolerance`"),
        ({"selected": [0, 5, 0, 0]}, "token 5"),
        ({"tokens": 3}, "`tokens`"),
        ({"convex": 3}, "`convex` is a int"),
    ],
)
def test_wrong_arguments_are_refused_by_name(change, match):
    tokens, selected = cross(0)
    arguments = {"tokens": tokens, "selected": selected, "m": 1} | change
    with pytest.raises(InputError, match=match):
        solve_factored(**arguments)


def test_a_convex_solution_of_something_else_is_refused():
    tokens, selected = cross(0)
    with pytest.raises(InputError, match="frobenius norm"):
        solve_factored(tokens, selected, 1, convex=solve_margin(tokens, selected))
    other = (selected + 1) % 4
    wrong = solve_nuclear(margin_rows(tokens, other), other, 6)
    with pytest.raises(InputError, match="another selection"):
        solve_factored(tokens, selected, 1, convex=wrong)
    alien = solve_nuclear(margin_rows(two_tokens(), np.array([0])), np.array([0]), 2)
    with pytest.raises(InputError, match="other tokens"):
        solve_factored(tokens, selected, 1, convex=alien)


# --- the parts -----------------------------------------------------------------------------------------------------


def test_newton_converges_quadratically_to_the_point_nearby():
    tokens, selected = cross(0)
    found = solve_factored(tokens, selected, 1)
    rows = margin_rows(tokens, selected)
    factors = Factors.of(rows)
    both = np.concatenate([factors.left.T @ found.K, factors.right.T @ found.Q]) * np.sqrt(factors.size)
    pull = found.multipliers.reshape(-1)[rows.where] * factors.size
    rng = np.random.default_rng(0)
    shaken = [a * (1 + 1e-4 * rng.standard_normal(a.shape)) for a in (both, pull)]
    near = polished(factors, *shaken)
    assert near.value / factors.size == pytest.approx(found.value, rel=1e-12)
    np.testing.assert_allclose(near.multipliers, pull, atol=1e-10 * pull.max())


def test_starts_have_the_cost_asked_for_and_a_local_solution_costs_no_less_than_the_bound():
    tokens, selected = cross(0)
    factors = Factors.of(margin_rows(tokens, selected))
    convex = solve_nuclear(margin_rows(tokens, selected), selected, 6)
    pull = convex.multipliers.reshape(-1)[margin_rows(tokens, selected).where] * factors.size
    assert factors.lower_bound(7.0 * pull) == pytest.approx(factors.lower_bound(pull))
    assert factors.lower_bound(pull) / factors.size == pytest.approx(1 / convex.margin)
    assert factors.lower_bound(0.0 * pull) == 0.0
    starts = random_starts(factors, 2, 3, 0, 5.0)
    assert len(starts) == 3
    for start in starts:
        assert np.sum(start**2) / 2 == pytest.approx(5.0)
        assert local_solution(factors, start, pull).value >= factors.lower_bound(pull) * (1 - 1e-9)
