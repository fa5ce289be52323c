"""Batches against one problem at a time, and against the judge."""

import numpy as np
import pytest
from svm_cases import correlated, cross
from verifier import judge, judge_farkas

import attnlab as al
from attnlab import InputError, Tokens
from attnlab.svm import MarginStatus, batch as batch_module, frobenius_batch


def batch(problems):
    tokens, selected = zip(*problems, strict=True)
    return Tokens.stack(tokens), np.array(selected)


def masked(seed):
    rng = np.random.default_rng(seed)
    tokens, selected = cross(seed)
    mask = rng.random((tokens.n, tokens.T)) < 0.6
    mask[np.arange(tokens.n), selected] = True
    mask[0] = True
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, mask=mask), selected


def every_query(seed, mask=None):
    rng = np.random.default_rng(seed)
    tokens = Tokens.self_attention(rng.standard_normal((2, 3, 7)), np.ones((2, 3)), query="all", mask=mask)
    high = [1, 2, 3] if mask == "causal" else [3, 3, 3]
    return tokens, np.array([rng.integers(high) for _ in range(2)])


KINDS = {
    "plain": lambda s: cross(s),
    "wide": lambda s: cross(s, n=5, T=5, d=10),
    "often infeasible": lambda s: cross(s, n=5, T=5, d=2),
    "one dimension": lambda s: cross(s, n=1, T=3, d=1),
    "correlated": lambda s: correlated(s),
    "masked": masked,
    "every query": every_query,
    "causal": lambda s: every_query(s, "causal"),
    "one token": lambda s: cross(s, T=1),
    "two tokens": lambda s: cross(s, n=1, T=2, d=2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_trials_one_by_one(kind):
    problems = [KINDS[kind](seed) for seed in range(30)]
    tokens, selected = batch(problems)
    found = al.solve_margins(tokens, selected)
    assert len(found) == 30
    assert found.W.shape == (30, tokens.d, tokens.d)
    for i, (one, chosen) in enumerate(problems):
        want, got = al.solve_margin(one, chosen, throw=False), found[i]
        assert found.status[i] is got.status
        assert got.status is want.status
        assert found.feasible[i] == want.feasible
        np.testing.assert_array_equal(got.selected, chosen)
        np.testing.assert_allclose(found.W[i], got.W, rtol=0, atol=1e-12 * float(np.linalg.norm(got.W)))
        if want.status is MarginStatus.INFEASIBLE:
            assert np.isnan(found.W[i]).all()
            assert judge_farkas(one, chosen, got.farkas)[1] == ()
        elif want.status is not MarginStatus.UNCONSTRAINED:
            assert judge(one, got).faults == ()
            error = (want.direction_error + got.direction_error) * np.linalg.norm(want.W)
            assert np.linalg.norm(found.W[i] - want.W) <= error
            assert found.margin[i] == pytest.approx(want.margin, rel=1e-9)
            assert found.gap[i] <= 1e-10


def test_a_batch_of_five_hundred():
    tokens = al.data.sphere(n=5, T=5, d=10, seed=5, trials=500)
    selected = np.random.default_rng(0).integers(5, size=(500, 5))
    found = al.solve_margins(tokens, selected)
    assert found.feasible.all()
    assert found.gap.max() <= 1e-10
    for i in range(0, 500, 25):
        assert judge(tokens[i], found[i]).faults == ()


def test_degenerate_trials_do_not_disturb_the_others():
    """A zero query, a duplicate of the selected token and repeated sequences, between ordinary trials."""
    problems = [cross(seed) for seed in range(6)]
    x, z = (np.stack([getattr(t, name) for t, _ in problems]) for name in ("x", "z"))
    selected = np.stack([s for _, s in problems])
    z[1, 2] = 0.0
    x[3, 1] = x[3, 1, :1]
    x[4, 1], z[4, 1], selected[4, 1] = x[4, 0], z[4, 0], selected[4, 0]
    found = al.solve_margins(Tokens(x=x, z=z, y=np.ones((6, 4))), selected)
    assert found.feasible.tolist() == [True, False, True, False, True, True]
    for i in (0, 2, 5):
        np.testing.assert_allclose(found.W[i], al.solve_margin(*problems[i]).W, rtol=0, atol=1e-12)
    for i in (1, 3):
        tokens = Tokens(x=x[i], z=z[i], y=np.ones(4))
        assert judge_farkas(tokens, selected[i], found[i].farkas)[1] == ()
    assert judge(Tokens(x=x[4], z=z[4], y=np.ones(4)), found[4]).faults == ()


def test_order_of_trials_does_not_matter():
    tokens, selected = batch([cross(seed, n=5, T=5, d=3) for seed in range(20)])
    order = np.random.default_rng(0).permutation(20)
    shuffled = Tokens(x=tokens.x[order], z=tokens.z[order], y=tokens.y[order])
    a, b = al.solve_margins(tokens, selected), al.solve_margins(shuffled, selected[order])
    np.testing.assert_array_equal(a.feasible[order], b.feasible)
    np.testing.assert_allclose(a.W[order], b.W, rtol=1e-9, atol=1e-12)


def test_indexing():
    tokens, selected = batch([cross(seed) for seed in range(5)])
    found = al.solve_margins(tokens, selected)
    np.testing.assert_array_equal(found[-1].W, found[4].W)
    assert [s.margin for s in found[1:3]] == [found[1].margin, found[2].margin]
    assert len(list(found)) == 5
    assert found[2] is found[2]
    with pytest.raises(IndexError):
        found[5]
    assert repr(found).startswith("MarginSolutions(5: 5 optimal; largest gap=")


def test_ordinary_trials_are_solved_together(monkeypatch):
    """None of 200 falls back to being solved alone, whatever the scale; and memory is bounded by working in parts."""
    monkeypatch.setattr(frobenius_batch, "GRAMS", 7 * 20**2)

    def never(*_):
        raise AssertionError("a trial was solved alone")

    monkeypatch.setattr(batch_module, "solver", lambda norm: (never, 1e-10))
    tokens = al.data.sphere(n=5, T=5, d=10, seed=0, trials=200)
    selected = np.random.default_rng(0).integers(5, size=(200, 5))
    found = al.solve_margins(tokens, selected)
    assert found.feasible.all()
    assert found.status == [MarginStatus.OPTIMAL] * 200
    small = al.solve_margins(Tokens(x=1e-3 * tokens.x, z=1e5 * tokens.z, y=tokens.y), selected)
    np.testing.assert_allclose(small.W, found.W / 1e2, rtol=0, atol=1e-12 * np.abs(found.W).max())


def test_repr_without_a_feasible_trial():
    tokens, selected = batch([cross(0), cross(1)])
    found = al.solve_margins(Tokens(x=tokens.x, z=0 * tokens.z, y=tokens.y), selected)
    assert repr(found) == "MarginSolutions(2: 2 infeasible; largest gap=none)"
    assert found.status == [MarginStatus.INFEASIBLE] * 2


def test_a_batch_of_one():
    tokens, selected = cross(0)
    found = al.solve_margins(Tokens.stack([tokens]), selected[None])
    np.testing.assert_allclose(found[0].W, al.solve_margin(tokens, selected).W, atol=1e-13)


def test_tolerance_reaches_every_trial():
    """A gap of exactly zero is met by luck alone; whatever is above it must be called inaccurate."""
    tokens, selected = batch([cross(seed) for seed in range(8)])
    found = al.solve_margins(tokens, selected, tolerance=0.0)
    assert found.status == [MarginStatus.INACCURATE if gap > 0 else MarginStatus.OPTIMAL for gap in found.gap]
    assert MarginStatus.INACCURATE in found.status


@pytest.mark.parametrize(
    ("selected", "told"),
    [
        (np.zeros((3, 3), int), r"shape \(3, 3\)"),
        (np.zeros(4, int), r"shape \(4,\)"),
        (np.zeros((3, 4)), "whole numbers"),
        (np.zeros((3, 4), bool), "whole numbers"),
        (np.full((3, 4), 4), "4"),
        (np.full((3, 4), -1), "-1|whole numbers"),
        (np.array([[0] * 4, [0] * 4, [0, 0, 0, 9]]), "0 to 3"),
    ],
)
def test_wrong_selections_are_refused(selected, told):
    tokens, _ = batch([cross(seed) for seed in range(3)])
    with pytest.raises(InputError, match=told):
        al.solve_margins(tokens, selected)


def test_masked_selections_of_a_later_trial_are_refused():
    tokens, selected = batch([masked(seed) for seed in range(3)])
    hidden = np.argwhere(~tokens.mask)
    trial, i, t = hidden[hidden[:, 0] == 2][0]
    selected[trial, i] = t
    with pytest.raises(InputError, match="mask hides"):
        al.solve_margins(tokens, selected)


def test_one_data_set_is_refused():
    with pytest.raises(InputError, match=r"no trial axis.*\n\nhint: al\.solve_margin"):
        al.solve_margins(*cross(0))
