"""Many constraints: rows in other forms against plain ones; working sets and interior points against the dense way."""

import pickle

import numpy as np
import pytest
from svm_cases import correlated, cross, problem
from verifier import judge, judge_farkas

import attnlab as al
from attnlab import Tokens
from attnlab.svm import MarginStatus, frobenius, margin_rows, nuclear, rows as rows_module
from attnlab.svm.barrier import by_interior_points, entries
from attnlab.svm.grouped import Grouped, hardest
from attnlab.svm.rows import StreamedRows
from attnlab.svm.working import by_working_sets

# Plain, every query of a sequence, causal and masked ones.
KINDS = [8, 26, 36, 46]


def some_rows(seed):
    tokens, selected = problem(seed)
    return margin_rows(tokens, selected)


# --- rows in other forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", KINDS)
def test_grouped_rows_are_the_rows_of_length_one(seed):
    rows = some_rows(seed)
    group, rng = Grouped.of(rows), np.random.default_rng(seed)
    W, weights = rng.standard_normal((rows.width, rows.queries.shape[1])), rng.standard_normal(len(rows))
    gram = rows.gram() / np.outer(rows.norms, rows.norms)
    np.testing.assert_allclose(group.values(W), rows.values(W) / rows.norms, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(group.adjoint(weights), rows.adjoint(weights / rows.norms), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(group.gram_times(weights), gram @ weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(group.flat(group.spread(weights)), weights)
    for i, block in enumerate(group.blocks):
        own = np.flatnonzero(rows.query == i)
        np.testing.assert_allclose(block[: len(own), : len(own)], gram[np.ix_(own, own)], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", KINDS)
@pytest.mark.parametrize("count", [1, 2, 100])
def test_the_hardest_rows_of_every_query(seed, count):
    rows = some_rows(seed)
    levels = np.random.default_rng(seed).standard_normal(len(rows))
    found = set(hardest(rows, levels, count).tolist())
    for i in range(len(rows.queries)):
        own = np.flatnonzero(rows.query == i)
        assert found & set(own.tolist()) == set(own[np.argsort(levels[own])[:count]].tolist())


@pytest.fixture
def streamed(monkeypatch):
    """Every difference counts as one too many to be kept; two of them are made at a time."""
    monkeypatch.setattr(rows_module, "STREAMED", 0)
    monkeypatch.setattr(rows_module, "BLOCK", 20)


@pytest.mark.parametrize("seed", KINDS)
def test_streamed_rows_are_the_same_rows(seed, streamed, monkeypatch):
    rng = np.random.default_rng(seed)
    far = some_rows(seed)
    monkeypatch.setattr(rows_module, "STREAMED", 10**9)
    near = some_rows(seed)
    assert isinstance(far, StreamedRows)
    assert (len(far), far.width, far.shape, far.ordinary) == (len(near), near.width, near.shape, near.ordinary)
    W, weights = rng.standard_normal((near.width, near.queries.shape[1])), rng.standard_normal(len(near))
    weights[rng.random(len(near)) < 0.5] = 0.0
    for name, argument in (("values", W), ("sizes", W), ("adjoint", weights), ("gathered", weights)):
        wanted = getattr(near, name)(argument)
        np.testing.assert_allclose(getattr(far, name)(argument), wanted, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(far.norms, near.norms, rtol=1e-14)
    some = np.flatnonzero(weights)
    np.testing.assert_array_equal(far.part(some).p, near.p[some])
    np.testing.assert_array_equal(far.part(some).query, near.query[some])
    np.testing.assert_array_equal(far.p, near.p)


def test_streamed_rows_are_solved_alike(streamed, monkeypatch):
    monkeypatch.setattr(frobenius, "FREE", 20)
    for seed in range(0, 50, 3):
        tokens, selected = problem(seed)
        solution = al.solve_margin(tokens, selected, throw=False)
        if solution.status is not MarginStatus.UNCONSTRAINED:
            assert judge(tokens, solution).faults == (), seed


def test_tokens_too_long_to_be_subtracted_are_not_streamed(streamed):
    tokens = Tokens(x=[[[1.7e308, 0.0], [-1.7e308, 1.0]]], z=[[1e-10, 0.0]], y=[1.0])
    solution = al.solve_margin(tokens, [0], throw=False)
    assert solution.feasible
    assert solution.W[0, 0] > 0


def test_tokens_from_a_file_of_32_bit_numbers(streamed, tmp_path):
    tokens, selected = cross(3, n=6, T=9, d=8)
    np.save(tmp_path / "x.npy", tokens.x.astype(np.float32))
    stored = np.load(tmp_path / "x.npy", mmap_mode="r")
    far = Tokens(x=stored, z=tokens.z, y=tokens.y)
    near = Tokens(x=np.array(stored, dtype=np.float64), z=tokens.z, y=tokens.y)
    np.testing.assert_array_equal(al.solve_margin(far, selected).W, al.solve_margin(near, selected).W)


# --- working sets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "T", "d"), [(30, 30, 36), (25, 40, 32), (12, 60, 24)])
def test_working_sets_find_the_solution_of_all_rows(n, T, d):
    tokens = al.data.sphere(n, T, d, seed=n)
    selected = np.random.default_rng(n).integers(T, size=n)
    rows = margin_rows(tokens, selected)
    found = by_working_sets(rows, 1e-10, 300)
    assert found.done
    assert found.gap <= 1e-10
    assert (found.multipliers >= 0).all()
    W = rows.adjoint(found.multipliers)
    gap = np.sum(W * W) / (rows.values(W).min() * found.multipliers.sum()) - 1
    assert gap == pytest.approx(found.gap, abs=1e-12)
    exact = by_interior_points(rows, 1e-10)
    assert np.linalg.norm(W / rows.values(W).min()) == pytest.approx(np.linalg.norm(exact.W), rel=1e-9)


def test_working_sets_say_so_where_they_give_up():
    tokens, selected = correlated(0, n=8, T=12, d=10)
    rows = margin_rows(tokens, selected)
    found = by_working_sets(rows, 1e-10, 1)
    assert not found.done
    assert found.gap > 1e-10


def test_a_loose_tolerance_ends_sooner_with_a_gap_that_holds(monkeypatch):
    products = []
    times = Grouped.gram_times
    monkeypatch.setattr(Grouped, "gram_times", lambda self, weights: products.append(1) or times(self, weights))
    tokens = al.data.sphere(40, 40, 64, seed=0)
    selected = np.random.default_rng(0).integers(40, size=40)
    rough = al.solve_margin(tokens, selected, tolerance=1e-2)
    few = len(products)
    exact = al.solve_margin(tokens, selected)
    assert few < len(products) - few
    assert rough.status is MarginStatus.OPTIMAL
    assert rough.margin <= exact.margin * (1 + 1e-12)
    assert exact.margin <= rough.margin * (1 + rough.gap) * (1 + 1e-12)


# --- interior points ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(0, 50, 4))
def test_interior_points_find_the_least_W(seed):
    tokens, selected = problem(seed)
    rows = margin_rows(tokens, selected)
    exact = al.solve_margin(tokens, selected, throw=False)
    if not len(rows):
        assert exact.status is MarginStatus.UNCONSTRAINED
        return
    found = by_interior_points(rows, 1e-10)
    assert found.gap <= 1e-9
    assert rows.values(found.W).min() == pytest.approx(1.0, abs=1e-12)
    assert np.linalg.norm(found.W) == pytest.approx(np.linalg.norm(exact.W), rel=1e-9)
    lower = found.multipliers.sum() / np.linalg.norm(rows.adjoint(found.multipliers))
    assert np.linalg.norm(found.W) / lower - 1 == pytest.approx(found.gap, abs=1e-12)
    assert entries(rows) == tokens.d * min(rows.queries.shape)


@pytest.mark.parametrize("seed", range(8))
def test_interior_points_prove_that_nothing_separates(seed):
    tokens, selected = cross(seed, n=20, T=12, d=4)
    rows = margin_rows(tokens, selected)
    found = by_interior_points(rows, 1e-10)
    assert np.isinf(found.gap)
    assert judge_farkas(tokens, selected, rows.scatter(found.multipliers / found.multipliers.sum()))[1] == ()


@pytest.mark.parametrize("d", [4, 5, 6, 7, 8, 9, 10])
def test_hardly_separable_or_not_at_all(d, monkeypatch):
    """Twenty queries of as many tokens, from far too few dimensions to enough: every verdict is proved."""
    monkeypatch.setattr(frobenius, "DENSE", 0)
    tokens = al.data.sphere(20, 20, d, seed=d)
    selected = np.random.default_rng(d).integers(20, size=20)
    solution = al.solve_margin(tokens, selected, throw=False)
    if solution.status is MarginStatus.INFEASIBLE:
        assert judge_farkas(tokens, selected, solution.farkas)[1] == ()
    else:
        assert solution.status is MarginStatus.OPTIMAL
        assert solution.gap <= 1e-11
        assert judge(tokens, solution).faults == ()


def test_both_verdicts_occur_above():
    feasible = set()
    for d in (4, 10):
        tokens = al.data.sphere(20, 20, d, seed=d)
        selected = np.random.default_rng(d).integers(20, size=20)
        feasible.add(al.solve_margin(tokens, selected, throw=False).feasible)
    assert feasible == {False, True}


def test_where_W_has_many_entries_cutting_planes_take_over(monkeypatch):
    monkeypatch.setattr(frobenius, "FREE", 20)
    monkeypatch.setattr(frobenius, "DENSE", 30)
    monkeypatch.setattr(frobenius, "ENTRIES", 0)
    monkeypatch.setattr(frobenius, "PATIENCE", 1)
    proofs = 0
    for seed in range(12):
        tokens, selected = cross(seed, n=8, T=8, d=3 + seed % 4)
        solution = al.solve_margin(tokens, selected, throw=False)
        if solution.status is MarginStatus.INFEASIBLE:
            proofs += 1
            assert judge_farkas(tokens, selected, solution.farkas)[1] == ()
        elif solution.status is MarginStatus.OPTIMAL:
            assert judge(tokens, solution).faults == ()
    assert 0 < proofs < 12


# --- the nuclear norm --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(0, 50, 5))
def test_nuclear_working_sets_give_the_solution_of_all_rows(seed, monkeypatch):
    tokens, selected = problem(seed, sizes=[(5, 9, 10), (6, 8, 10)])
    whole = al.solve_margin(tokens, selected, norm="nuclear")
    monkeypatch.setattr(nuclear, "MANY", 10)
    monkeypatch.setattr(nuclear, "RIVALS", 2)
    part = al.solve_margin(tokens, selected, norm="nuclear")
    assert part.status is whole.status is MarginStatus.OPTIMAL
    assert part.margin == pytest.approx(whole.margin, rel=1e-10)
    assert part.gap <= 1e-11
    if whole.unique and part.unique:
        assert part.rank == whole.rank
        np.testing.assert_allclose(part.W, whole.W, atol=1e-6 * np.abs(whole.W).max())


# --- evidence that is laid out when it is read -------------------------------------------------------------------


@pytest.mark.parametrize("seed", KINDS)
def test_evidence_survives_pickling_unread(seed):
    tokens, selected = problem(seed)
    one = al.solve_margin(tokens, selected, throw=False)
    other = pickle.loads(pickle.dumps(al.solve_margin(tokens, selected, throw=False)))
    for name in ("multipliers", "values", "value_error", "support", "violation"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.values is one.values
