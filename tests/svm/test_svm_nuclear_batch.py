"""Batches of nuclear problems: each is solved as it would be alone, and none is dropped."""

import numpy as np
import pytest
from nuclear_verifier import judge_nuclear
from svm_cases import correlated
from verifier import judge_farkas

import attnlab as al
from attnlab import Tokens
from attnlab.svm import MarginStatus, margin_rows
from attnlab.svm.nuclear import solve_nuclear
from attnlab.svm.nuclear_batch import nuclear_together
from attnlab.svm.stacked import stacked


def batch_of(size, seed, trials=30):
    n, T, d = size
    tokens = al.data.sphere(n=n, T=T, d=d, seed=seed, trials=trials)
    return tokens, np.random.default_rng(seed).integers(T, size=(trials, n))


@pytest.mark.parametrize(
    ("size", "seed"), [((5, 5, 10), 0), ((3, 4, 6), 1), ((5, 5, 2), 2), ((2, 3, 1), 3), ((4, 2, 9), 4)]
)
def test_a_batch_gives_the_solutions_of_its_problems(size, seed):
    tokens, selected = batch_of(size, seed)
    batch = al.solve_margins(tokens, selected, norm="nuclear")
    assert len(batch) == 30
    for i in range(30):
        alone = solve_nuclear(margin_rows(tokens[i], selected[i]), selected[i], tokens.d)
        one = batch[i]
        assert one.status is alone.status
        assert bool(batch.feasible[i]) is alone.feasible
        assert (one.rank, one.unique, one.norm) == (alone.rank, alone.unique, "nuclear")
        if alone.feasible:
            assert judge_nuclear(tokens[i], one) == []
            assert batch.margin[i] == pytest.approx(alone.margin, rel=1e-9)
            assert batch.gap[i] <= 1e-8
        else:
            assert judge_farkas(tokens[i], selected[i], one.farkas)[1] == ()
            assert np.isnan(batch.W[i]).all()


def test_stacked_facts_follow_from_the_arrays():
    """Explicit matrices for every trial."""
    tokens, selected = batch_of((4, 4, 6), 5)
    rows = stacked(tokens, selected)
    found = nuclear_together(rows)
    for i in range(30):
        A = np.einsum("ja,jb->jab", rows.p[i], rows.queries[i][rows.query])
        values = np.einsum("jab,ab->j", A, found.W[i])
        singular = np.linalg.svd(found.W[i], compute_uv=False)
        spectral = np.linalg.norm(np.einsum("j,jab->ab", found.multipliers[i], A), 2)
        assert values.min() == pytest.approx(1.0, abs=1e-12)
        assert found.violation[i] == pytest.approx(max(0.0, 1.0 - values.min()), abs=1e-13)
        assert spectral == pytest.approx(1.0, abs=1e-12)
        assert (found.multipliers[i] >= 0).all()
        assert found.margin[i] * singular.sum() == pytest.approx(1.0, abs=1e-12)
        assert found.gap[i] == pytest.approx(singular.sum() / found.multipliers[i].sum() - 1.0, abs=1e-13)
        assert found.gap[i] <= 1e-8
        assert (singular > 1e-12 * singular[0]).sum() == found.rank[i]


def test_a_batch_solved_some_at_a_time_is_the_same_batch(monkeypatch):
    tokens, selected = batch_of((3, 4, 6), 0, trials=7)
    rows = stacked(tokens, selected)
    whole = nuclear_together(rows)
    monkeypatch.setattr("attnlab.svm.nuclear_batch.NUMBERS", 2 * 9**2)
    some = nuclear_together(rows)
    np.testing.assert_allclose(some.W, whole.W, atol=1e-7)
    np.testing.assert_array_equal(some.rank, whole.rank)


def test_correlated_trials():
    cases = [correlated(seed, n=6, T=8, d=10) for seed in range(12)]
    tokens = Tokens(x=np.stack([t.x for t, _ in cases]), z=np.stack([t.z for t, _ in cases]), y=np.ones((12, 6)))
    batch = al.solve_margins(tokens, np.stack([s for _, s in cases]), norm="nuclear")
    assert batch.gap.max() <= 1e-8
    assert all(judge_nuclear(tokens[i], batch[i]) == [] for i in range(12))


def test_zero_rows_and_feasible_trials_side_by_side():
    tokens, selected = batch_of((2, 3, 4), 0, trials=3)
    x, z = tokens.x.copy(), tokens.z.copy()
    x[1, 0, :] = x[1, 0, 0]  # three times the same token
    z[2, 1] = 0.0
    mixed = Tokens(x=x, z=z, y=tokens.y)
    batch = al.solve_margins(mixed, selected, norm="nuclear")
    assert batch.status == [MarginStatus.OPTIMAL, MarginStatus.INFEASIBLE, MarginStatus.INFEASIBLE]
    assert all(judge_farkas(mixed[i], selected[i], batch[i].farkas)[1] == () for i in (1, 2))


def test_nothing_to_separate_in_a_batch():
    tokens = al.data.sphere(n=2, T=1, d=3, seed=0, trials=2)
    batch = al.solve_margins(tokens, np.zeros((2, 2), dtype=int), norm="nuclear")
    assert batch.status == [MarginStatus.UNCONSTRAINED] * 2
