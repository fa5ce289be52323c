"""The finite part of W that holds attention in place, and its mixture with the max-margin direction."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from level_verifier import pairs, single
from svm_cases import cross, kept_tokens, problem

from attnlab import InputError, Tokens
from attnlab.svm import MarginStatus, finite
from attnlab.svm.finite import combine, finite_part
from attnlab.svm.generalized import solve_generalized
from attnlab.svm.norms import ENTRYWISE_L1, SPECTRAL


def logits(tokens, W):
    """x W z, laid out as the tokens are."""
    seen = np.einsum("ab,...b->...a", W, tokens.z)
    return np.einsum("itd,i...d->i...t", tokens.x, seen)


def weights_of(tokens, seed):
    return np.random.default_rng([6, seed]).standard_normal((tokens.d, tokens.d))


def explicit(tokens, kept):
    """The equalities over all pairs, as rows of length d^2, in float64."""
    level = pairs(tokens, kept)[0]
    return np.array([A.astype(float).ravel() for A in level]).reshape(len(level), tokens.d**2)


# --- the finite part ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(0, 50, 3))
def test_the_finite_part_has_the_attention_and_is_the_least(seed):
    """Against the pseudo-inverse of all pairs, written out."""
    tokens, _ = problem(seed)
    kept, W = kept_tokens(tokens, seed, share=0.7), weights_of(tokens, seed)
    found = finite_part(tokens, logits(tokens, W), kept, logarithmic=True)
    rows = explicit(tokens, kept)
    assert found.consistent
    # W itself has this attention, so the least such W is its projection.
    want = (np.linalg.pinv(rows, rcond=1e-11) @ (rows @ W.ravel())).reshape(W.shape) if len(rows) else np.zeros_like(W)
    np.testing.assert_allclose(found.W, want, rtol=0, atol=1e-9 * float(np.linalg.norm(W)))
    assert found.residual <= 1e-10 * (1 + np.abs(rows @ W.ravel()).max(initial=0.0))


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", SPECTRAL, ENTRYWISE_L1])
def test_the_two_parts_are_orthogonal(norm):
    """W^fin is in the span of the equalities, W^mm meets them: in every norm."""
    checked = 0
    for seed in range(12):
        tokens, _ = cross(seed)
        kept = kept_tokens(tokens, seed)
        solution = solve_generalized(tokens, kept, norm=norm, throw=False)
        finite = finite_part(tokens, logits(tokens, weights_of(tokens, seed)), kept, logarithmic=True).W
        if solution.status is MarginStatus.OPTIMAL and finite.any():
            checked += 1
            inner = abs(np.sum(finite * solution.W))
            assert inner <= 1e-12 * np.linalg.norm(finite) * np.linalg.norm(solution.W), seed
    assert checked >= 8


@pytest.mark.parametrize("seed", range(5))
def test_attention_and_its_logarithm_say_the_same(seed):
    tokens, _ = cross(seed)
    kept, raw = kept_tokens(tokens, seed, share=0.8), logits(tokens, weights_of(tokens, seed))
    attention = np.exp(raw) / np.exp(raw).sum(-1, keepdims=True)
    plain = finite_part(tokens, attention, kept)
    for same in (np.log(attention), raw, raw + np.arange(tokens.n)[:, None]):
        found = finite_part(tokens, same, kept, logarithmic=True)
        np.testing.assert_allclose(found.W, plain.W, rtol=0, atol=1e-11 * float(np.linalg.norm(plain.W)))
    # what the lost tokens have does not matter, be it zero
    found = finite_part(tokens, np.where(kept, attention, 0.0), kept)
    np.testing.assert_array_equal(found.W, plain.W)


def test_logarithms_do_not_underflow():
    tokens = Tokens(x=[[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]], z=[[1.0, 0.0]], y=[1])
    kept = [[True, True, False]]
    with pytest.raises(InputError, match="logarithmic=True"):
        finite_part(tokens, [[1.0, np.exp(-3000.0), 0.0]], kept)
    found = finite_part(tokens, [[0.0, -3000.0, -np.inf]], kept, logarithmic=True)
    np.testing.assert_allclose(found.W, [[1500.0, 0.0], [0.0, 0.0]], rtol=1e-15)


def test_one_kept_token_needs_no_finite_part():
    tokens, selected = cross(0)
    found = finite_part(tokens, np.ones((4, 4)), single(selected, 4))
    assert not found.W.any()
    assert found.consistent
    assert found.residual == 0.0


def test_equal_tokens_with_unequal_attention_are_refused():
    tokens = Tokens(x=[[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]], z=[[1.0, 2.0]], y=[1])
    kept, attention = [[True, True, True]], np.array([[0.6, 0.2, 0.2]])
    with pytest.raises(InputError, match="not what any W gives"):
        finite_part(tokens, attention, kept)
    found = finite_part(tokens, attention, kept, throw=False)
    assert not found.consistent
    # the best compromise for the twins is their mean, log(3) apart from one another
    assert found.residual == pytest.approx(np.log(3.0), rel=1e-12)
    assert finite_part(tokens, [[0.4, 0.4, 0.2]], kept).residual <= 1e-15


def test_a_zero_query_has_equal_attention_or_none_that_fits():
    tokens = Tokens(x=[[[1.0, 0.0], [0.0, 1.0]]], z=[[0.0, 0.0]], y=[1])
    kept = [[True, True]]
    assert not finite_part(tokens, [[0.5, 0.5]], kept).W.any()
    with pytest.raises(InputError, match="not what any W gives"):
        finite_part(tokens, [[0.6, 0.4]], kept)


@pytest.mark.parametrize(("a", "b"), [(1e100, 1e-60), (1e-120, 1e20), (1e-70, 1e-70)])
def test_the_finite_part_scales(a, b):
    tokens, _ = cross(1)
    kept, raw = kept_tokens(tokens, 1, share=0.8), logits(tokens, weights_of(tokens, 1))
    want = finite_part(tokens, raw, kept, logarithmic=True).W
    scaled = Tokens(x=a * tokens.x, z=b * tokens.z, y=tokens.y)
    found = finite_part(scaled, raw, kept, logarithmic=True).W
    np.testing.assert_allclose(found * a * b, want, rtol=0, atol=1e-12 * float(np.linalg.norm(want)))


def test_queries_of_very_different_sizes_are_all_met():
    tokens, _ = cross(2)
    kept, raw = kept_tokens(tokens, 2, share=0.9), logits(tokens, weights_of(tokens, 2))
    uneven = Tokens(x=tokens.x, z=tokens.z * np.array([1e-4, 1.0, 1e3, 1e-2])[:, None], y=tokens.y)
    assert finite_part(uneven, raw, kept, logarithmic=True).consistent


def test_weights_beyond_float64_are_refused():
    tokens, _ = cross(2)
    tiny = Tokens(x=1e-200 * tokens.x, z=1e-200 * tokens.z, y=tokens.y)
    with pytest.raises(InputError, match="overflow"):
        finite_part(tiny, logits(tokens, weights_of(tokens, 2)), np.ones((4, 4), dtype=bool), logarithmic=True)


@pytest.mark.parametrize("seed", range(5))
def test_products_alone_give_the_same_finite_part(seed, monkeypatch):
    tokens, _ = cross(seed)
    kept, raw = kept_tokens(tokens, seed, share=0.7), logits(tokens, weights_of(tokens, seed))
    want = finite_part(tokens, raw, kept, logarithmic=True).W
    monkeypatch.setattr(finite, "WRITTEN_OUT", 0)
    found = finite_part(tokens, raw, kept, logarithmic=True)
    assert found.consistent
    np.testing.assert_allclose(found.W, want, rtol=0, atol=1e-8 * float(np.linalg.norm(want)))


@pytest.mark.parametrize(
    ("attention", "logarithmic", "told"),
    [
        (np.ones((4, 3)), False, "has shape"),
        (np.zeros((4, 4)), False, "positive"),
        (np.full((4, 4), np.nan), False, "positive"),
        (np.full((4, 4), np.inf), True, "not finite"),
        ("attention", False, "wanted an array of real numbers"),
    ],
)
def test_wrong_attention_is_refused(attention, logarithmic, told):
    tokens, _ = cross(0)
    with pytest.raises(InputError, match=told):
        finite_part(tokens, attention, np.ones((4, 4), dtype=bool), logarithmic=logarithmic)


@pytest.mark.parametrize("size", [5e-324, 1e-300, 1e300, 1.7e308])
def test_a_query_that_keeps_one_token_decides_nothing(size):
    """Neither its tokens nor the query itself, of whatever size, move the rest."""
    x = [[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [[size, size], [1.0, 1.0], [0.0, -size]]]
    tokens = Tokens(x=x, z=[[1.0, 1e-8], [size, 0.0]], y=[1, 1])
    kept, logs = np.array([[True, True, True], [True, False, False]]), [[3.0, 1.0, 2.0], [0.0, 5.0, 7.0]]
    found = finite_part(tokens, logs, kept, logarithmic=True)
    alone = finite_part(Tokens(x=x[:1], z=[[1.0, 1e-8]], y=[1]), logs[:1], kept[:1], logarithmic=True)
    np.testing.assert_array_equal(found.W, alone.W)
    assert (found.residual, found.consistent) == (alone.residual, alone.consistent)


def test_ratios_that_miss_by_more_than_any_number_are_an_error():
    """Weights that share the attention of tokens of 1e-8 give those of 1e300 a lead of 1e308 and more."""
    x = [[[1e300, 1e300], [-1e300, 1e300]], [[1e-8, 1e-8], [-1e-8, 1e-8]]]
    tokens = Tokens(x=x, z=[[1.0, 1.0], [1.0, 1.0]], y=[1, 1])
    kept = np.ones((2, 2), dtype=bool)
    assert np.isfinite(finite_part(tokens, [[0.0, 0.0], [1.0, 0.0]], kept, logarithmic=True, throw=False).residual)
    with pytest.raises(InputError, match="`tokens` are so small"):
        finite_part(tokens, [[0.0, 0.0], [10.0, 0.0]], kept, logarithmic=True, throw=False)


# --- the mixture -------------------------------------------------------------------------------------------------


def correlation(a, b):
    return np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_no_other_gamma_does_better(seed, orthogonal):
    """Against a fine grid from 0 to infinity, for any three matrices."""
    rng = np.random.default_rng(seed)
    finite, margin, W = rng.standard_normal((3, 3, 3))
    if orthogonal:
        margin = margin - finite * np.sum(finite * margin) / np.sum(finite**2)
    mixed = combine(finite, margin, W)
    unit = margin / np.linalg.norm(margin)
    grid = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 2001)])
    mixtures = finite + grid[:, None, None] * unit
    others = np.einsum("gab,ab->g", mixtures, W) / np.linalg.norm(mixtures, axis=(1, 2)) / np.linalg.norm(W)
    assert mixed.correlation >= max(others.max(), correlation(unit, W)) - 1e-13
    assert mixed.gamma >= 0
    shape = unit if np.isinf(mixed.gamma) else finite + mixed.gamma * unit
    assert mixed.correlation == pytest.approx(correlation(shape, W), abs=1e-12)
    assert mixed.correlation == pytest.approx(correlation(mixed.W, W), abs=1e-12)
    assert mixed.misalignment == pytest.approx(1 - mixed.correlation, abs=1e-12)
    steps = [np.linalg.norm(finite + (mixed.least_squares_gamma + g) * unit - W) for g in (-1e-3, 0.0, 1e-3)]
    assert steps[1] < min(steps[0], steps[2])
    nearest = finite + mixed.least_squares_gamma * unit
    assert mixed.least_squares_correlation == pytest.approx(correlation(nearest, W), abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_squares_of_the_correlations_add_up(seed):
    """Spec: corr^2 = corr(W^fin)^2 + corr(W^mm)^2, gamma = B C / A, where both correlate and are orthogonal."""
    rng = np.random.default_rng(seed)
    finite, margin, noise = rng.standard_normal((3, 4, 4))
    margin -= finite * np.sum(finite * margin) / np.sum(finite**2)
    W = finite + 3 * margin + 0.3 * noise
    mixed = combine(finite, margin, W)
    assert mixed.finite_correlation > 0
    assert mixed.margin_correlation > 0
    want = mixed.finite_correlation**2 + mixed.margin_correlation**2
    assert mixed.correlation**2 == pytest.approx(want, rel=1e-12)
    A, B, C = np.sum(finite * W), np.sum(margin * W) / np.linalg.norm(margin), np.sum(finite**2)
    assert mixed.gamma == pytest.approx(B * C / A, rel=1e-9)


@pytest.mark.parametrize(
    ("finite_sign", "margin_sign", "gamma"), [(1, -1, 0.0), (-1, 1, np.inf), (0, 1, np.inf), (0, -1, 0.0)]
)
def test_a_part_that_points_away_is_left_out(finite_sign, margin_sign, gamma):
    """Spec: if A <= 0 the supremum is the better of the two correlations; likewise if B <= 0."""
    finite, margin, other = np.diag([2.0, 0, 0]), np.diag([0, 5.0, 0]), np.diag([0, 0, 1.0])
    mixed = combine(finite, margin, finite_sign * finite + margin_sign * margin + other)
    assert mixed.gamma == gamma
    assert mixed.correlation == max(mixed.finite_correlation, mixed.margin_correlation)


def test_both_parts_pointing_away():
    mixed = combine([[1.0, 0.0]], [[0.0, 1.0]], [[-1.0, -3.0]])
    assert mixed.gamma == 0.0
    assert mixed.correlation == pytest.approx(-1 / np.sqrt(10))


def test_parts_that_are_zero():
    zero, margin, W = np.zeros((2, 2)), np.diag([3.0, 0.0]), np.diag([1.0, 1.0])
    alone = combine(zero, margin, W)
    np.testing.assert_array_equal(alone.W, margin)
    assert alone.gamma == np.inf
    assert alone.correlation == pytest.approx(np.sqrt(0.5))
    assert alone.least_squares_correlation == pytest.approx(np.sqrt(0.5))
    assert np.isnan(alone.finite_correlation)
    still = combine(margin, zero, W)
    np.testing.assert_array_equal(still.W, margin)
    assert (still.gamma, still.least_squares_gamma) == (0.0, 0.0)
    assert np.isnan(still.margin_correlation)
    neither = combine(zero, zero, W)
    assert not neither.W.any()
    assert np.isnan(neither.correlation)
    assert np.isnan(neither.misalignment)


def test_scales_do_not_matter():
    finite, margin, W = np.random.default_rng(3).random((3, 3, 3))
    want = combine(finite, margin, W)
    found = combine(1e-150 * finite, 1e200 * margin, 1e180 * W)
    assert found.gamma == pytest.approx(1e-150 * want.gamma, rel=1e-12)
    assert found.correlation == pytest.approx(want.correlation, rel=1e-12)


def test_a_tiny_misalignment_is_not_lost_to_rounding():
    finite, margin = np.diag([1.0, 0, 0]), np.diag([0, 1.0, 0])
    mixed = combine(finite, margin, np.array([[1.0, 0, 0], [0, 1.0, 0], [1e-12, 0, 0]]))
    assert mixed.misalignment == pytest.approx(0.25e-24, rel=1e-6)


def test_it_explains_what_it_was_made_of():
    """W = W^fin + 40 W^mm of a random problem is found again."""
    for seed in range(10):
        tokens, _ = cross(seed)
        kept = kept_tokens(tokens, seed)
        margin = solve_generalized(tokens, kept).W
        finite = finite_part(tokens, logits(tokens, weights_of(tokens, seed)), kept, logarithmic=True).W
        mixed = combine(finite, margin, finite + 40 * margin)
        assert mixed.misalignment <= 1e-24
        assert mixed.least_squares_gamma == pytest.approx(40 * np.linalg.norm(margin), rel=1e-9)
        if finite.any():
            assert mixed.gamma == pytest.approx(40 * np.linalg.norm(margin), rel=1e-9)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (([[1.0]], [[1.0]], [[0.0]]), "`W` is zero"),
        (([[1.0, 2.0]], [[1.0]], [[1.0]]), "wanted one shape"),
        (([1.0], [[1.0]], [[1.0]]), "`finite`"),
        (([[1.0]], [[np.nan]], [[1.0]]), "`margin`"),
    ],
)
def test_wrong_parts_are_refused(parts, told):
    with pytest.raises(InputError, match=told):
        combine(*parts)
