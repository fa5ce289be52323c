"""The parts of the dual solver one by one, and the way without the Gram matrix against the dense one."""

import numpy as np
import pytest
from svm_cases import correlated, cross, problem
from verifier import judge, judge_farkas

import attnlab as al
from attnlab import Tokens
from attnlab.svm import MarginStatus, frobenius, margin_rows
from attnlab.svm.dual import active_set, least_distance, refine
from attnlab.svm.grouped import Grouped
from attnlab.svm.working import FINE, conjugate_gradients


def dual_problem(tokens, selected):
    """Gram matrix and bounds in rows of unit norm."""
    rows = margin_rows(tokens, selected)
    return rows.gram() / np.outer(rows.norms, rows.norms), rows.norms.min() / rows.norms


def kkt(gram, bound, multipliers):
    """Largest of: negative multiplier, unmet constraint, product of multiplier and slack."""
    slack = gram @ multipliers - bound
    return max(-multipliers.min(), -slack.min(), np.abs(multipliers * slack).max())


@pytest.fixture
def without_gram(monkeypatch):
    """Every problem counts as too large for its Gram matrix."""
    monkeypatch.setattr(frobenius, "DENSE", 0)
    monkeypatch.setattr(frobenius, "FREE", 0, raising=False)


# --- active set --------------------------------------------------------------------------------------------------


def test_active_set_returns_an_optimum_or_nothing():
    found = 0
    for seed in range(200):
        gram, bound = dual_problem(*cross(seed, n=5, T=5, d=2 + seed % 9))
        multipliers = active_set(gram, bound)
        if multipliers is not None:
            found += 1
            assert kkt(gram, bound, multipliers) <= 1e-10 * max(1.0, multipliers.max())
    assert found >= 120  # d >= 4 of 2..10 is nearly always separable


def test_active_set_settles_on_ordinary_data():
    for seed in range(100):
        assert active_set(*dual_problem(*cross(seed, n=5, T=5, d=10))) is not None


def test_multipliers_are_never_negative():
    """Not even by rounding: the last step of refinement may move a zero multiplier either way."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        x = rng.integers(-2, 3, (3, 3)).astype(float)
        gram, bound = x @ x.T, np.ones(3)
        found = active_set(gram, bound) if np.linalg.matrix_rank(x) == 3 else None
        assert found is None or (found >= 0).all()
    signed = np.array([[1.0, -1.0], [0.0, -1.0]])
    lengths = np.linalg.norm(signed, axis=1)
    gram = signed @ signed.T / np.outer(lengths, lengths)
    found = active_set(gram, lengths.min() / lengths)
    assert (found >= 0).all()


def test_active_set_gives_up_on_equal_rows():
    assert active_set(np.ones((2, 2)), np.ones(2)) is None


def test_active_set_gives_up_on_opposite_rows():
    assert active_set(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.ones(2)) is None


def test_active_set_by_hand():
    """Independent rows: multipliers are the bounds. With a strong overlap the easier of two rows is loose."""
    found = active_set(np.eye(3), np.array([1.0, 0.5, 0.25]))
    assert found is not None
    np.testing.assert_allclose(found, [1.0, 0.5, 0.25], rtol=1e-15)
    gram, bound = np.array([[1.0, 0.9], [0.9, 1.0]]), np.array([1.0, 0.5])
    found = active_set(gram, bound)
    assert found is not None
    np.testing.assert_allclose(found, [1.0, 0.0], rtol=1e-15)


# --- least distance ----------------------------------------------------------------------------------------------


def test_least_distance_solves_the_feasible_and_refutes_the_rest():
    counts = [0, 0]
    for seed in range(200):
        gram, bound = dual_problem(*cross(seed, n=4, T=4, d=1 + seed % 6))
        weights, distance = least_distance(gram, bound)
        assert (weights >= 0).all()
        length = np.sqrt(max(weights @ gram @ weights, 0.0))
        if distance > 1e-9:
            counts[0] += 1
            multipliers = refine(gram, bound, weights / distance)
            assert kkt(gram, bound, multipliers) <= 1e-8 * max(1.0, multipliers.max() ** 2)
        else:
            counts[1] += 1
            assert length <= 1e-7 * weights.sum()
    assert min(counts) >= 40


def test_least_distance_by_hand():
    """One row of unit norm and bound b: u = b / (1 + b^2), distance 1 / (1 + b^2)."""
    for b in (1.0, 0.5):
        weights, distance = least_distance(np.ones((1, 1)), np.array([b]))
        assert weights[0] == pytest.approx(b / (1 + b * b), rel=1e-14)
        assert distance == pytest.approx(1 / (1 + b * b), rel=1e-14)
    weights, distance = least_distance(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.ones(2))
    np.testing.assert_allclose(weights, [0.5, 0.5], rtol=1e-12)
    assert distance == pytest.approx(0.0, abs=1e-15)


def test_least_distance_agrees_with_the_active_set():
    for seed in range(50):
        gram, bound = dual_problem(*cross(seed))
        weights, distance = least_distance(gram, bound)
        exact = active_set(gram, bound)
        assert exact is not None
        np.testing.assert_allclose(weights / distance, exact, rtol=0, atol=1e-10)


def test_refine_keeps_the_support_and_solves_its_system():
    for seed in range(50):
        gram, bound = dual_problem(*cross(seed))
        exact = active_set(gram, bound)
        assert exact is not None
        rough = exact * (1 + 1e-6 * np.random.default_rng(seed).standard_normal(len(exact)))
        better = refine(gram, bound, rough)
        np.testing.assert_allclose(better, exact, rtol=0, atol=1e-12 * float(exact.max()))
        np.testing.assert_array_equal(better > 0, exact > 0)


def test_refine_leaves_a_wrong_support_alone():
    """Where the system of the given support has a negative solution the input comes back."""
    gram, bound = np.array([[1.0, 0.9], [0.9, 1.0]]), np.array([1.0, 0.5])
    given = np.array([0.7, 0.2])
    np.testing.assert_array_equal(refine(gram, bound, given), given)


def test_refine_leaves_no_support_and_a_dependent_one_alone():
    np.testing.assert_array_equal(refine(np.eye(2), np.ones(2), np.zeros(2)), np.zeros(2))
    gram, bound, given = np.ones((2, 2)), np.array([1.0, 1.0]), np.array([0.3, 0.7])
    np.testing.assert_array_equal(refine(gram, bound, given), given)


def test_data_that_defeat_the_active_set_are_solved_by_least_squares():
    """Repeated sequences make the tight rows dependent."""
    tokens, selected = cross(4)
    many = Tokens(x=np.tile(tokens.x, (3, 1, 1)), z=np.tile(tokens.z, (3, 1)), y=np.ones(3 * tokens.n))
    chosen = np.tile(selected, 3)
    assert active_set(*dual_problem(many, chosen)) is None
    solution = al.solve_margin(many, chosen)
    assert solution.status is MarginStatus.OPTIMAL
    assert judge(many, solution).faults == ()


# --- without the Gram matrix -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n_T_d", [(1, 2, 3), (5, 5, 10), (20, 6, 100), (20, 20, 15), (28, 28, 64), (27, 30, 40), (6, 8, 10)]
)
def test_large_problems_without_their_gram_matrix(n_T_d, without_gram, monkeypatch):
    n, T, d = n_T_d
    tokens = al.data.sphere(n, T, d, seed=3)
    selected = np.random.default_rng(1).integers(T, size=n)
    free = al.solve_margin(tokens, selected)
    monkeypatch.setattr(frobenius, "DENSE", 10**6)
    monkeypatch.setattr(frobenius, "FREE", 10**6, raising=False)
    dense = al.solve_margin(tokens, selected)
    assert free.status is dense.status is MarginStatus.OPTIMAL
    assert max(free.gap, dense.gap) <= 1e-10
    assert np.linalg.norm(free.W - dense.W) <= (free.direction_error + dense.direction_error) * np.linalg.norm(dense.W)
    assert np.linalg.norm(free.W - dense.W) <= 1e-5 * np.linalg.norm(dense.W)


@pytest.mark.parametrize(("n_T_d", "most"), [((28, 28, 64), 90), ((27, 30, 40), 120), ((40, 40, 32), 180)])
def test_ordinary_data_take_few_products_and_nothing_else(n_T_d, most, without_gram, monkeypatch):
    """Working sets alone; each solved by some steps of conjugate gradients."""
    products = []
    times = Grouped.gram_times

    def never(*_):
        raise AssertionError("interior points were asked for")

    monkeypatch.setattr(Grouped, "gram_times", lambda self, weights: products.append(1) or times(self, weights))
    monkeypatch.setattr(frobenius, "by_interior_points", never)
    n, T, d = n_T_d
    selected = np.random.default_rng(1).integers(T, size=n)
    assert al.solve_margin(al.data.sphere(n, T, d, seed=3), selected).gap <= 1e-10
    assert len(products) < most


@pytest.mark.parametrize("seed", range(5))
def test_conjugate_gradients_solve_the_chosen_rows_from_any_start(seed):
    rng = np.random.default_rng(seed)
    tokens, selected = cross(seed, n=5, T=5, d=10)
    gram, bound = dual_problem(tokens, selected)
    inside = rng.random(len(bound)) < 0.6
    start = np.where(inside, rng.standard_normal(len(bound)), 0.0)
    group = Grouped.of(margin_rows(tokens, selected))
    found, ended = conjugate_gradients(group, bound, inside, start, accuracy=FINE, patience=100)
    assert ended
    want = np.zeros(len(bound))
    want[inside] = np.linalg.solve(gram[np.ix_(inside, inside)], bound[inside])
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-10 * np.abs(want).max())


def test_random_problems_without_their_gram_matrix(without_gram):
    for seed in range(0, 250, 2):
        tokens, selected = problem(seed)
        solution = al.solve_margin(tokens, selected)
        if solution.status is not MarginStatus.UNCONSTRAINED:
            assert judge(tokens, solution).faults == (), seed


def test_correlated_problems_without_their_gram_matrix(without_gram):
    for seed in range(10):
        tokens, selected = correlated(seed)
        assert judge(tokens, al.solve_margin(tokens, selected), gap=1e-8).faults == (), seed


def test_infeasible_problems_without_their_gram_matrix(without_gram):
    """What is claimed is proved; nothing infeasible is called solved."""
    proofs = 0
    for seed in range(40):
        tokens, selected = cross(seed, n=5, T=5, d=2)
        free = al.solve_margin(tokens, selected, throw=False)
        if free.status is MarginStatus.INFEASIBLE:
            proofs += 1
            assert judge_farkas(tokens, selected, free.farkas)[1] == ()
        elif free.status is MarginStatus.OPTIMAL:
            assert judge(tokens, free).faults == ()
        else:
            assert free.status in (MarginStatus.UNDECIDED, MarginStatus.INACCURATE)
    assert proofs >= 10


def test_the_dense_way_and_the_other_agree_on_feasibility(monkeypatch):
    """No problem is feasible one way and infeasible the other."""
    for seed in range(60):
        tokens, selected = cross(seed, n=5, T=5, d=2 + seed % 3)
        verdicts = []
        for limit in (10**6, 0):
            monkeypatch.setattr(frobenius, "DENSE", limit)
            monkeypatch.setattr(frobenius, "FREE", limit, raising=False)
            verdicts.append(al.solve_margin(tokens, selected, throw=False).status)
        assert not (verdicts[0] is MarginStatus.OPTIMAL and verdicts[1] is MarginStatus.INFEASIBLE), seed
        assert not (verdicts[0] is MarginStatus.INFEASIBLE and verdicts[1] is MarginStatus.OPTIMAL), seed
