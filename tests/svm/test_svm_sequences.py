"""Several queries per sequence, causal and general masks: against cvxpy, and what a mask must and must not change."""

import numpy as np
import pytest
from level_verifier import judge_level, judge_level_farkas, least_norm, single
from verifier import judge

import attnlab as al
from attnlab import InputError, Tokens
from attnlab.svm import MarginStatus
from attnlab.svm.generalized import solve_generalized
from attnlab.svm.norms import SPECTRAL

KINDS = ("every", "causal", "masked", "cross")


def sequences(seed, kind, n=2, T=3, d=6):
    """Tokens with several queries each, and a random visible selection."""
    rng = np.random.default_rng([90, seed, KINDS.index(kind)])
    x = rng.standard_normal((n, T, d))
    if kind == "cross":
        K = 2
        z, mask = rng.standard_normal((n, K, d)), None
    elif kind == "masked":
        K = 4
        z, mask = rng.standard_normal((n, K, d)), rng.random((n, K, T)) < 0.6
        mask[..., 0] |= ~mask.any(-1)
    else:
        K = T
        z, mask = x, "causal" if kind == "causal" else None
    tokens = Tokens(x=x, z=z, y=np.ones((n, K)), mask=mask)
    noise = np.where(tokens.visible, rng.random(tokens.visible.shape), -1.0)
    return tokens, noise.argmax(-1)


def some_kept(tokens, selected, seed):
    rng = np.random.default_rng([91, seed])
    return single(selected, tokens.T) | (tokens.visible & (rng.random(tokens.visible.shape) < 0.3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_one_selected_token_per_query(seed, kind):
    tokens, selected = sequences(seed, kind)
    solution = al.solve_margin(tokens, selected)
    assert judge(tokens, solution).faults == ()
    want = least_norm(tokens, single(selected, tokens.T), "frobenius")
    assert 1 / solution.margin == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_several_kept_tokens_per_query(seed, kind):
    tokens, selected = sequences(seed, kind)
    kept = some_kept(tokens, selected, seed)
    solution = solve_generalized(tokens, kept, throw=False)
    if solution.status is MarginStatus.INFEASIBLE:
        assert judge_level_farkas(tokens, kept, solution) == []
        assert least_norm(tokens, kept, "frobenius") == np.inf
        return
    assert solution.status is MarginStatus.OPTIMAL
    assert judge_level(tokens, kept, solution, np.linalg.norm, np.linalg.norm, gap=1e-10) == []
    assert 1 / solution.margin == pytest.approx(least_norm(tokens, kept, "frobenius"), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_in_other_norms(kind):
    tokens, selected = sequences(1, kind)
    kept = single(selected, tokens.T)
    for norm in ("nuclear", SPECTRAL):
        name = norm if isinstance(norm, str) else norm.name
        solution = solve_generalized(tokens, kept, norm=norm)
        assert 1 / solution.margin == pytest.approx(least_norm(tokens, kept, name), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_first_causal_query_contributes_nothing(seed):
    """It sees one token: its query may be anything, even zero or huge, and it has no multiplier and no value."""
    tokens, selected = sequences(seed, "causal")
    before = al.solve_margin(tokens, selected)
    for first in (0.0, 1e6, -3.0):
        z = tokens.z.copy()
        z[:, 0] = first
        after = al.solve_margin(Tokens(x=tokens.x, z=z, y=tokens.y, mask="causal"), selected)
        np.testing.assert_allclose(after.W, before.W, rtol=0, atol=1e-12 * float(np.linalg.norm(before.W)))
        assert not after.multipliers[:, 0].any()
        assert np.isnan(after.values[:, 0]).all()
        assert not after.support[:, 0].any()


@pytest.mark.parametrize("seed", range(5))
def test_a_causal_query_does_not_see_what_follows(seed):
    """The last token is seen by the last query alone."""
    tokens, selected = sequences(seed, "causal")
    solution = al.solve_margin(tokens, selected)
    unseen = ~np.tril(np.ones((tokens.T, tokens.T), dtype=bool))
    assert np.isnan(solution.values[:, unseen]).all()
    assert not solution.multipliers[:, unseen].any()


@pytest.mark.parametrize("seed", range(5))
def test_hiding_tokens_can_only_raise_the_margin(seed):
    """A mask removes constraints."""
    tokens, selected = sequences(seed, "every")
    rng = np.random.default_rng(seed)
    last = al.solve_margin(tokens, selected).margin
    mask = np.ones(tokens.visible.shape, dtype=bool)
    for _ in range(4):
        mask = (mask & (rng.random(mask.shape) < 0.8)) | single(selected, tokens.T)
        solution = al.solve_margin(Tokens(x=tokens.x, z=tokens.z, y=tokens.y, mask=mask), selected)
        assert solution.margin >= last * (1 - 1e-10)
        last = solution.margin


@pytest.mark.parametrize("seed", range(3))
def test_queries_of_a_sequence_are_sequences_with_one_query(seed):
    tokens, selected = sequences(seed, "masked")
    n, K, d = tokens.z.shape
    flat = Tokens(x=np.repeat(tokens.x, K, axis=0), z=tokens.z.reshape(-1, d), y=np.ones(n * K),
                  mask=tokens.visible.reshape(n * K, -1))  # fmt: skip
    one, other = al.solve_margin(tokens, selected), al.solve_margin(flat, selected.reshape(-1))
    np.testing.assert_allclose(one.W, other.W, rtol=0, atol=1e-12 * float(np.linalg.norm(one.W)))
    kept = some_kept(tokens, selected, seed)
    one = solve_generalized(tokens, kept, throw=False)
    other = solve_generalized(flat, kept.reshape(n * K, -1), throw=False)
    assert one.status is other.status
    np.testing.assert_allclose(one.W, other.W, rtol=0, atol=1e-10)


def test_a_selection_that_the_mask_hides_is_refused():
    tokens, selected = sequences(0, "causal")
    wrong = selected.copy()
    wrong[0, 0] = 1
    with pytest.raises(InputError, match="hides"):
        al.solve_margin(tokens, wrong)
    with pytest.raises(InputError, match="hides"):
        solve_generalized(tokens, single(wrong, tokens.T))


def test_a_zero_query_that_sees_several_tokens_is_infeasible():
    tokens, selected = sequences(0, "every")
    z = tokens.z.copy()
    z[1, 2] = 0.0
    broken = Tokens(x=tokens.x, z=z, y=tokens.y)
    solution = solve_generalized(broken, single(selected, tokens.T), throw=False)
    assert solution.status is MarginStatus.INFEASIBLE
    assert solution.farkas[1, 2].sum() == pytest.approx(1.0)
    level = single(selected, tokens.T)
    level[1, 2] = True  # nothing is asked of it but to be level, which it is
    assert solve_generalized(broken, level).status is MarginStatus.OPTIMAL
