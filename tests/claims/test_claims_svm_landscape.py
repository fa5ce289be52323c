"""The claims on the landscape hold, and notice what is planted against them."""

from dataclasses import replace

import numpy as np
import pytest

import attnlab as al
from attnlab.claims import Scale, Verdict, check
from attnlab.claims.svm import feasibility, landscape, samples, smoothness
from attnlab.data import Tokens

SMOKE = Scale.SMOKE


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim", [*landscape.CLAIMS, *smoothness.CLAIMS, *feasibility.CLAIMS], ids=lambda claim: claim.id
)
def test_as_expected(claim):
    (found,) = check([claim], "smoke")
    assert found.as_expected, found.outcome


def test_equal_others_meet_b2_and_keep_the_best_token():
    drawn, sample = al.data.sphere(**samples.SIZES, seed=3, trials=50), samples.equal_others(3)
    assert sample.meets.all()
    assert (al.optimal_tokens(drawn) == sample.best).all()
    assert drawn.v is not None
    moved = sample.tokens.x - drawn.x
    assert np.abs(moved - np.einsum("rntd,rd,re->rnte", moved, drawn.v, drawn.v)).max() < 1e-12  # only along v


def test_all_support_marks_exactly_the_tight_ones():
    sample = samples.all_support(1)
    largest = np.array([np.nanmax(found.values) for found in sample.margins])
    assert (sample.meets == (largest < 1 + 1e-6)).all()
    assert 0 < sample.meets.sum() < len(largest)


def test_unit_constant_is_one():
    tokens = samples.with_unit_constant(al.data.sphere(**samples.SIZES, seed=0, trials=3))
    assert [al.theory.lipschitz_constants(tokens[i]).W for i in range(3)] == pytest.approx([1.0] * 3, rel=1e-12)


def test_lemma_7_notices_a_smaller_constant(monkeypatch):
    assert landscape.softmax_derivative_is_near_its_leading_part(SMOKE).verdict is Verdict.HOLDS
    monkeypatch.setattr(landscape, "LEADING", 1.99)
    assert landscape.softmax_derivative_is_near_its_leading_part(SMOKE).verdict is Verdict.FAILS


def test_lemma_17_judges_only_what_meets_its_hypotheses(monkeypatch):
    stack = landscape._stack

    def dependent_a(*args):
        A, P, B = stack(*args)
        return 0.0 * A, P, B

    monkeypatch.setattr(landscape, "_stack", dependent_a)
    outcome = landscape.stacked_rows_are_independent(SMOKE)
    assert outcome.verdict is Verdict.NOT_APPLICABLE
    assert outcome.tried == 800


def test_lemma_17_notices_a_row_that_depends(monkeypatch):
    stack = landscape._stack

    def p_outside_the_null_space(*args):
        A, _, B = stack(*args)
        P = np.linalg.qr(np.swapaxes(A, 1, 2))[0]
        return A, P[..., : B.shape[1]], np.repeat(A[:, :1], B.shape[1], axis=1)

    monkeypatch.setattr(landscape, "_stack", p_outside_the_null_space)
    assert landscape.stacked_rows_are_independent(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_lemma_2_notices_another_rate(monkeypatch):
    separating = landscape._separating
    monkeypatch.setattr(landscape, "_separating", lambda tokens, rng: 1.05 * separating(tokens, rng))
    assert landscape.loss_is_above_its_infimum(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_lemma_4_finds_what_the_formulas_say():
    """Two opposite tokens: 1 / 11.02 for the correlation loss; 1 / 4 is the limit for the logistic one."""
    assert smoothness.steepest("correlation", 16)[0][0] == pytest.approx(2**1.5 / (3 * 6 * 3**0.5), rel=2e-3)
    assert 0.2 < smoothness.steepest("logistic", 16)[0][0] < 0.25


@pytest.mark.slow
def test_lemma_4_notices_a_small_constant(monkeypatch):
    true = smoothness.lipschitz_constants
    monkeypatch.setattr(smoothness, "lipschitz_constants", lambda *a: replace(true(*a), W=0.2 * true(*a).W))
    smoothness.steepest.cache_clear()
    assert smoothness.gradient_is_lipschitz(SMOKE).verdict is Verdict.FAILS
    smoothness.steepest.cache_clear()


@pytest.mark.slow
def test_lemma_8_notices_too_long_a_step():
    assert smoothness.each_step_lowers_the_loss(SMOKE, step=50.0).verdict is Verdict.FAILS


def test_a_generic_solver_finds_the_max_margin_solutions():
    tokens = al.data.sphere(n=2, T=4, d=5, seed=3)
    best = al.optimal_tokens(tokens)
    A = feasibility.constraint_matrices(tokens, best)
    rng = np.random.default_rng(0)
    frobenius = feasibility._least_frobenius(A, rng)
    assert frobenius == pytest.approx(al.solve_margin(tokens, best).W, abs=1e-6)
    nuclear = feasibility._least_nuclear(A, rng)
    wanted = np.linalg.norm(al.solve_margin(tokens, best, norm="nuclear").W, ord="nuc")
    assert np.linalg.norm(nuclear, ord="nuc") == pytest.approx(wanted, rel=1e-6)


def test_written_out_loss_against_the_model():
    tokens = al.data.sphere(**samples.SIZES, seed=1, trials=3)
    W = np.random.default_rng(0).standard_normal((3, tokens.d, tokens.d))
    excess, distance = landscape.written_out(tokens, W)
    least = np.log1p(np.exp(-al.scores(tokens).max(-1))).mean(-1)
    assert excess == pytest.approx(al.models.loss(tokens, W) - least, rel=1e-12)
    assert (excess < distance).all()


@pytest.mark.slow
def test_lemma_9_notices_data_without_assumption_b(monkeypatch):
    def careless(seed):
        sample = samples.all_support(seed)
        return replace(sample, meets=np.ones_like(sample.meets))

    monkeypatch.setattr(landscape, "all_support", careless)
    assert landscape.loss_falls_toward_the_max_margin_direction.__wrapped__(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_theorem_3_notices_a_run_that_stands_still(monkeypatch):
    monkeypatch.setattr(landscape, "gd", lambda step: al.gd(1e-30))
    assert landscape.descent_diverges_without_stationary_points(SMOKE).verdict is Verdict.FAILS


def test_score_gaps_leave_out_queries_that_see_one_token():
    tokens = Tokens.self_attention([[[[1.0, 0.0], [0.25, 0.0]]]], [[[1.0, 1.0]]], [1.0, 0.0], "all", mask="causal")
    assert samples.score_gaps(tokens).tolist() == [0.75]
