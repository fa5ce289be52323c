"""Several kept tokens per sequence: against cvxpy, an independent judge, and the laws of the margin problem."""

import numpy as np
import pytest
from level_verifier import judge_level, judge_level_farkas, least_norm, single
from svm_cases import cross, kept_tokens, problem

import attnlab as al
from attnlab import InfeasibleSelection, InputError, Tokens
from attnlab.svm import MarginStatus
from attnlab.svm.generalized import level_rows, solve_generalized
from attnlab.svm.norms import ENTRYWISE_L1, SPECTRAL


@pytest.mark.parametrize("seed", range(0, 50, 3))
def test_the_judge_accepts_every_kind_of_data(seed):
    """Cross, self, every query, causal, masked; feasible or not, whatever is claimed is proved."""
    tokens, _ = problem(seed)
    kept = kept_tokens(tokens, seed)
    solution = solve_generalized(tokens, kept, throw=False)
    if solution.status is MarginStatus.INFEASIBLE:
        assert judge_level_farkas(tokens, kept, solution) == []
    elif solution.status is not MarginStatus.UNCONSTRAINED:
        assert solution.status is MarginStatus.OPTIMAL
        assert judge_level(tokens, kept, solution, np.linalg.norm, np.linalg.norm, gap=1e-10) == []


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_cvxpy(seed):
    tokens, _ = cross(seed, n=3, T=4, d=5)
    kept = kept_tokens(tokens, seed)
    solution = solve_generalized(tokens, kept)
    assert 1 / solution.margin == pytest.approx(least_norm(tokens, kept, "frobenius"), rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_nuclear_agrees_with_cvxpy(seed):
    tokens, _ = cross(seed, n=3, T=4, d=5)
    kept = kept_tokens(tokens, seed)
    solution = solve_generalized(tokens, kept, norm="nuclear")
    assert solution.norm == "nuclear"
    assert np.linalg.svd(solution.W)[1].sum() == pytest.approx(least_norm(tokens, kept, "nuclear"), rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_any_kept_token_may_be_the_anchor(seed):
    """Tokens in another order have another first kept token, and the same W."""
    tokens, _ = cross(seed)
    kept = kept_tokens(tokens, seed, share=0.7)
    back = Tokens(x=tokens.x[:, ::-1], z=tokens.z, y=tokens.y)
    one, other = solve_generalized(tokens, kept, throw=False), solve_generalized(back, kept[:, ::-1], throw=False)
    assert one.status is other.status
    if one.status is MarginStatus.OPTIMAL:
        np.testing.assert_allclose(other.W, one.W, rtol=0, atol=1e-10 * float(np.linalg.norm(one.W)))


@pytest.mark.parametrize("seed", range(5))
def test_one_kept_token_is_the_plain_problem(seed):
    tokens, selected = cross(seed)
    kept = single(selected, tokens.T)
    np.testing.assert_array_equal(solve_generalized(tokens, kept).W, al.solve_margin(tokens, selected).W)
    np.testing.assert_array_equal(solve_generalized(tokens, kept.astype(int)).selected, selected)


def test_keeping_all_tokens_leaves_nothing_to_separate():
    tokens, _ = cross(0)
    solution = solve_generalized(tokens, np.ones((tokens.n, tokens.T), dtype=bool))
    assert solution.status is MarginStatus.UNCONSTRAINED
    assert not solution.W.any()


def test_one_token_one_sequence_one_dimension():
    alone = Tokens(x=[[[2.0]]], z=[[1.0]], y=[1])
    assert solve_generalized(alone, [[True]]).status is MarginStatus.UNCONSTRAINED
    line = Tokens(x=[[[2.0], [2.0], [-1.0]]], z=[[0.5]], y=[1])
    assert solve_generalized(line, [[True, True, False]]).W.item() == pytest.approx(2 / 3, rel=1e-14)
    uneven = Tokens(x=[[[2.0], [1.0], [-1.0]]], z=[[0.5]], y=[1])
    assert solve_generalized(uneven, [[True, True, False]], throw=False).status is MarginStatus.INFEASIBLE


def test_duplicates_among_the_kept_change_nothing():
    tokens, _ = cross(3)
    kept = kept_tokens(tokens, 3)
    first = kept.argmax(-1)
    x = np.concatenate([tokens.x, tokens.x[np.arange(tokens.n), first][:, None]], axis=1)
    twice = Tokens(x=x, z=tokens.z, y=tokens.y)
    more = np.concatenate([kept, np.ones((tokens.n, 1), dtype=bool)], axis=1)
    want = solve_generalized(tokens, kept).W
    np.testing.assert_allclose(solve_generalized(twice, more).W, want, rtol=0, atol=1e-11 * float(np.linalg.norm(want)))


def test_a_lost_token_equal_to_a_kept_one_is_infeasible_with_a_proof():
    tokens, _ = cross(4)
    x = tokens.x.copy()
    x[1, 3] = 0.25 * x[1, 0] + 0.75 * x[1, 2]  # between two kept tokens
    tokens = Tokens(x=x, z=tokens.z, y=tokens.y)
    kept = np.array([[True, False, False, False]] * tokens.n)
    kept[1] = [True, False, True, False]
    with pytest.raises(InfeasibleSelection, match="level") as caught:
        solve_generalized(tokens, kept)
    assert judge_level_farkas(tokens, kept, caught.value.solution) == []


@pytest.mark.parametrize("seed", range(3))
def test_scaling_tokens_and_queries_scales_the_weights(seed):
    tokens, _ = cross(seed)
    kept = kept_tokens(tokens, seed)
    scaled = Tokens(x=1e60 * tokens.x, z=1e-40 * tokens.z, y=tokens.y)
    want = solve_generalized(tokens, kept).W
    np.testing.assert_allclose(
        1e20 * solve_generalized(scaled, kept).W, want, rtol=0, atol=1e-11 * float(np.linalg.norm(want))
    )


def test_other_norms_and_tolerances_are_passed_on():
    tokens, _ = cross(1, n=3, T=4, d=5)
    kept = kept_tokens(tokens, 1)
    for norm in (ENTRYWISE_L1, SPECTRAL):
        solution = solve_generalized(tokens, kept, norm=norm, tolerance=1e-6)
        assert judge_level(tokens, kept, solution, norm.value, norm.dual, gap=1e-6) == []
        assert norm.value(solution.W) == pytest.approx(least_norm(tokens, kept, norm.name), rel=2e-6)


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ([[True, False]], "has shape"),
        (np.zeros((4, 4), dtype=bool), "empty for 4 queries"),
        (np.full((4, 4), 2), "boolean"),
        (np.full((4, 4), np.nan), "boolean"),
        ([["a"] * 4] * 4, "boolean"),
    ],
)
def test_wrong_sets_are_refused(kept, told):
    tokens, _ = cross(0)
    with pytest.raises(InputError, match=told):
        solve_generalized(tokens, kept)


def test_wrong_arguments_are_refused():
    tokens, selected = cross(0)
    mask = np.ones((4, 4), dtype=bool)
    mask[2, 1] = False
    hiding = Tokens(x=tokens.x, z=tokens.z, y=tokens.y, mask=mask)
    with pytest.raises(InputError, match=r"hides.*\(2, 1\)"):
        solve_generalized(hiding, np.ones((4, 4), dtype=bool))
    kept = single(selected, 4)
    with pytest.raises(InputError, match="`norm` is 'l7'"):
        solve_generalized(tokens, kept, norm="l7")
    with pytest.raises(InputError, match="tolerance"):
        solve_generalized(tokens, kept, tolerance=-1.0)
    with pytest.raises(InputError, match="batch"):
        solve_generalized(Tokens.stack([tokens, tokens]), kept)
    with pytest.raises(InputError, match=r"wanted al\.Tokens"):
        solve_generalized(tokens.x, kept)


def test_the_rows_mark_what_must_be_level():
    tokens, _ = cross(2)
    kept = kept_tokens(tokens, 2, share=0.8)
    rows, anchor = level_rows(tokens, kept)
    assert len(rows) == tokens.n * (tokens.T - 1)
    assert rows.equal.sum() == kept.sum() - tokens.n
    assert kept[np.arange(tokens.n), anchor].all()


def test_a_level_that_float64_misses_is_not_called_optimal():
    """W_12 must be 0; a rounding error of it times 1e200 is no level."""
    tokens = al.Tokens(
        x=[[[1e200, 0.0], [0.0, 0.0]], [[1e170, 0.0], [0.0, 0.0]]], z=[[0.0, 1.0], [1.0, 1.0]], y=[1, 1], v=[0.0, 0.0]
    )
    solution = al.svm.solve_generalized(tokens, [[True, True], [True, False]])
    assert solution.status is MarginStatus.INACCURATE or solution.violation < 1e-8


def test_a_proof_beyond_float64_is_not_shown():
    tokens = al.Tokens(
        x=[[[0.0], [1e-308], [0.0]], [[0.0], [1.0], [0.0]]], z=[[0.4955501556396484], [1.0]], y=[1, 1], v=[0.0]
    )
    solution = al.svm.solve_generalized(tokens, [[True, True, True], [False, True, False]], throw=False)
    if solution.status is MarginStatus.INFEASIBLE:
        assert solution.farkas is not None
        assert np.isfinite(solution.farkas).all()


def test_weights_beyond_float64_are_refused():
    """Tokens of 1.7e308 and of 1e8, level with tokens of 1: the least W has entries of 1e-316."""
    far = 1.7e308
    tokens = al.Tokens(
        x=[
            [[0.0] * 4] * 3,
            [[-1e-8, 0.0, 0.0, -far], [0.0] * 4, [0.0] * 4],
            [[0.0, 0.0, 0.0, 1e8], [0.0, 0.0, -1.0, 0.0], [-far, 0.0, 0.0, 0.0]],
        ],
        z=[[0.0] * 4, [-1e-8, 0.0, 0.0, -far], [0.0, 0.0, 0.0, 1e8]],
        y=[1, 1, 1],
    )
    kept = [[True, True, True], [True, False, False], [True, True, False]]
    with pytest.raises(InputError, match="W would be of size 1e-316"):
        al.svm.solve_generalized(tokens, kept, throw=False)
