"""Claims on convergence: their tools against independent ones, and whether a planted fault changes the verdict."""

import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose

import attnlab as al
from attnlab.claims import Scale, Verdict, check
from attnlab.claims.matrices import inner, unit
from attnlab.claims.svm import (
    dynamics,
    errata_convergence,
    first_step,
    global_convergence,
    local_convergence,
    sandwich,
    selection,
    shielding,
)
from attnlab.theory import assumption_b2

MODULES = (global_convergence, first_step, local_convergence, shielding, selection, errata_convergence)
CLAIMS = [claim for module in MODULES for claim in module.CLAIMS]


@pytest.fixture(autouse=True)
def _nothing_remembered():
    for function in (global_convergence.trapped, local_convergence.basins, shielding.compared_selections):
        function.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_verdicts_on_record(claim, tmp_path):
    store = al.Store(tmp_path / "store")
    (found,) = check([claim], "smoke", store=store)
    assert found.as_expected, found.to_json()
    assert found.outcome.instances > 0
    (again,) = check([claim], "smoke", store=store)
    assert again.to_json() == found.to_json()


def test_ids_are_unique():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


@pytest.mark.parametrize("size", [0.1, 3.0, 300.0])
def test_downhill_is_the_gradient(size):
    tokens = al.data.sphere(n=3, T=4, d=5, seed=1, trials=6)
    W = size * np.random.default_rng(0).standard_normal((6, 5, 5))
    direction, log_scale = dynamics.downhill(tokens, W)
    mantissa, scale = al.models.gradient(tokens, W)
    expected = -mantissa["W"] * np.exp(scale["W"] - log_scale)[:, None, None]
    assert_allclose(direction, expected, rtol=1e-9, atol=1e-12 * np.abs(expected).max())


def test_downhill_far_on_the_wrong_side():
    """All attention on two tokens of equal score: the tiny push towards the best one is all there is."""
    tokens = dynamics.equal_score_data(1, 3, 4, 5, 0)
    W = 1e4 * np.random.default_rng(0).standard_normal((5, 4, 4))
    direction, log_scale = dynamics.downhill(tokens, W)
    size = np.linalg.norm(direction, axis=(-2, -1))
    assert (size > 1e-3).all()
    assert log_scale.min() < -1000
    best = al.solve_margins(tokens, al.optimal_tokens(tokens)).W
    assert (inner(direction, best) > 0).all()


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_equal_scores_are_equal(spread):
    tokens, moved = al.data.sphere(n=3, T=5, d=4, seed=2, trials=5), dynamics.equal_score_data(3, 5, 4, 5, 2, spread)
    assert_allclose(moved.x[..., 1:], tokens.x[..., 1:], rtol=0, atol=0)
    first = al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=[1.0, 0.0, 0.0, 0.0])
    assert_allclose(al.optimal_tokens(moved), al.optimal_tokens(first))
    for i in range(5):
        facts = assumption_b2(moved[i]).evidence
        assert 0.5 * spread <= facts["deviation"] <= spread * (1 + 1e-12)  # exactly 0 without a spread
        assert facts["gap"] > 0


def test_scaled_queries_only_change_the_unit_of_length():
    tokens = al.data.sphere(n=2, T=3, d=3, seed=0, trials=2)
    W = np.random.default_rng(1).standard_normal((2, 3, 3))
    radius = np.array([2.0, 50.0])
    scaled = dynamics.with_unit_radius(tokens, radius)
    assert_allclose(
        dynamics.log_attention(scaled, W), dynamics.log_attention(tokens, W * radius[:, None, None]), atol=1e-12
    )


def test_sandwich_against_plain_arithmetic():
    """At a moderate W nothing underflows, and every term can be written down as it stands in the lemma."""
    tokens = al.data.sphere(n=3, T=4, d=5, seed=3, trials=6)
    rng = np.random.default_rng(0)
    W, V = rng.standard_normal((2, 6, 5, 5))
    best = al.optimal_tokens(tokens)
    gaps = rng.uniform(1.0, 2.0, (2, 6, 3))
    found = sandwich.sandwich(tokens, W, V, best, (gaps[0], gaps[1]), (0.25, 2.0))
    s = al.models.attention(tokens, W)
    left = 1.0 - np.take_along_axis(s, best[..., None], -1)[..., 0]
    slope = 1.0 / (1.0 + np.exp((s * al.scores(tokens)).sum(-1)))
    mantissa, scale = al.models.gradient(tokens, W)
    middle = -np.einsum("rij,rij->r", mantissa["W"], V) * np.exp(scale["W"])
    factor = middle / found.middle
    assert_allclose(found.lower * factor, 0.25 * (slope * left * gaps[0]).mean(-1))
    assert_allclose(found.upper * factor, 2.0 * (slope * left * gaps[1]).mean(-1))


def test_sandwich_notices_each_side():
    one = np.ones(3)
    assert sandwich.Sandwich(0.5 * one, one, 2 * one).tightness().max() <= 1
    assert sandwich.Sandwich(1.5 * one, one, 2 * one).tightness().min() > 1
    assert sandwich.Sandwich(0.5 * one, 3 * one, 2 * one).tightness().min() > 1
    assert np.isinf(sandwich.Sandwich(0.5 * one, -one, 2 * one).tightness()).all()


def mild_trap():
    """As the trap, but a step for one sequence costs the other less than it gains: D_2 is shorter along D_1."""
    D = np.array([[3.0, 0.0], [-0.1, 1.0]])
    return al.Tokens(x=np.stack([D, -D], axis=1) / 2.0, z=[[1.0, 0.0], [1.0, 0.0]], y=[1.0, 1.0], v=[0.3, 1.0])


@pytest.mark.slow
def test_theorem_4_stands_on_harmless_data(monkeypatch):
    monkeypatch.setattr(global_convergence, "trap", mild_trap)
    assert global_convergence.theorem_4_printed(Scale.SMOKE).verdict is Verdict.HOLDS


def test_lemma_10_stands_on_a_harmless_ray(monkeypatch):
    assert global_convergence.lemma_10_printed(Scale.SMOKE).verdict is Verdict.FAILS
    along = al.solve_margin(dynamics.trap(), [0, 0])
    monkeypatch.setattr(global_convergence, "solve_margin", lambda *_: along)
    assert global_convergence.lemma_10_printed(Scale.SMOKE).verdict is Verdict.HOLDS


def test_corrected_lemma_10_is_not_idle(monkeypatch):
    """Without log(N kappa) the bound is passed: the measure can tell."""
    assert global_convergence.lemma_10_corrected(Scale.SMOKE).verdict is Verdict.HOLDS
    monkeypatch.setattr(global_convergence, "_log_weight_ratio", lambda tokens: np.full(tokens.trials, -0.5))
    assert global_convergence.lemma_10_corrected(Scale.SMOKE).verdict is Verdict.FAILS


def test_nan_is_never_a_success(monkeypatch):
    monkeypatch.setattr(global_convergence, "ratio_of_lemma_10", lambda tokens, W, best: np.full(len(W), np.nan))
    assert global_convergence.lemma_10_corrected(Scale.SMOKE).verdict is Verdict.FAILS


def test_the_rate_of_the_proof_notices_a_run_that_turns_away():
    norm = np.linspace(1.0, 50.0, 40)[None]
    toward = {"norm": norm, "cosine_best": 1.0 - 0.5 / norm, "excess_loss": np.exp(-norm)}
    away = toward | {"cosine_best": np.where(norm < 25, 1.0 - 0.5 / norm, 0.6)}
    right, wrong = (global_convergence.rate_of_the_proof(m, 0.1, np.ones(1), 4) for m in (toward, away))
    assert right["below (34)"] == 0
    assert 0 < wrong["below (34)"] < wrong["records judged by (34)"]


def test_a_trapped_run_is_told_by_every_record():
    run = {"misalignment_other": [0.1, 0.01, 0.001], "lead": [-3.0, -6.0, -9.0], "selected": [1, 0]}
    assert global_convergence.leaves_for_the_other(run)
    for doctored in ({"lead": [-9.0, -6.0, -3.0]}, {"misalignment_other": [0.001, 0.01, 0.1]}, {"selected": [0, 0]}):
        assert not global_convergence.leaves_for_the_other(run | doctored)


def test_first_step_bounds_notice_a_wrong_constant(monkeypatch):
    assert first_step.lemma_12(Scale.SMOKE).verdict is Verdict.HOLDS
    monkeypatch.setattr(first_step, "size_of_logits", lambda tokens, margin: 1e-3 / margin)
    assert first_step.lemma_12(Scale.SMOKE).verdict is Verdict.FAILS


def test_lemma_11_notices_another_direction(monkeypatch):
    assert first_step.lemma_11(Scale.SMOKE).verdict is Verdict.HOLDS
    real = first_step.downhill
    monkeypatch.setattr(first_step, "downhill", lambda tokens, W: (unit(W), real(tokens, W)[1]))
    assert first_step.lemma_11(Scale.SMOKE).verdict is Verdict.FAILS


def test_radius_of_the_cone_by_hand():
    tokens = al.Tokens.stack([al.data.two_tokens()])
    # T = 2, spread = gap = 1, lengths 1 and 1, margin 1.
    assert_allclose(first_step.radius_of_the_cone(tokens, np.ones(1), np.full(1, 0.5)), 2.0 * np.log(4 * 2 / 0.5))


def with_other_axes(seeds):
    found = real_basins(seeds)
    rng = np.random.default_rng(0)
    size = np.linalg.norm(found.axis, axis=(-2, -1), keepdims=True)
    return found._replace(axis=found.axis + 0.5 * size * unit(rng.standard_normal(found.axis.shape)))


real_basins = local_convergence.basins


def test_local_lemmas_notice_another_axis(monkeypatch):
    assert local_convergence.lemma_13(Scale.SMOKE).verdict is Verdict.HOLDS
    assert local_convergence.lemma_14(Scale.SMOKE).verdict is Verdict.HOLDS
    monkeypatch.setattr(local_convergence, "basins", with_other_axes)
    assert local_convergence.lemma_14(Scale.SMOKE).verdict is Verdict.FAILS


def test_local_bound_notices_swapped_gaps(monkeypatch):
    real = local_convergence.sandwich
    monkeypatch.setattr(local_convergence, "sandwich", lambda *given: real(*given[:5], (2.0, 1.0 / 8.0)))
    assert local_convergence.lemma_13(Scale.SMOKE).verdict is Verdict.FAILS


def test_points_near_an_axis_are_in_its_cone():
    found = local_convergence.basins(12)
    W = local_convergence.near(found.axis, found.mu, np.random.default_rng(0))
    assert_allclose(np.linalg.norm(W, axis=(-2, -1)), 1.0, rtol=1e-12)
    assert (al.misalignment(W, found.axis) <= found.mu * (1 + 1e-6)).all()


def test_lemma_5_notices_a_wrong_barrier(monkeypatch):
    assert shielding.lemma_5(Scale.SMOKE).verdict is Verdict.HOLDS
    shielding.compared_selections.cache_clear()
    monkeypatch.setattr(shielding, "barrier", lambda *_: np.inf)
    assert shielding.lemma_5(Scale.SMOKE).verdict is Verdict.FAILS


def test_best_mixture_against_a_general_solver():
    rng = np.random.default_rng(5)
    gamma = -np.sort(-rng.standard_normal((5, 6)), axis=1)
    penalty = rng.uniform(0.2, 2.0, 5)
    found = selection.best_mixture(gamma, penalty)
    for g, strength, weights in zip(gamma, penalty, found, strict=True):
        best = scipy.optimize.minimize(
            lambda s, g=g, strength=strength: strength * s @ s - g @ s, np.full(6, 1 / 6), bounds=[(0, 1)] * 6,
            constraints={"type": "eq", "fun": lambda s: s.sum() - 1.0}, method="SLSQP", options={"ftol": 1e-14},
        )  # fmt: skip
        assert_allclose(weights, best.x, atol=1e-6)
    assert selection.kept_by_rule(gamma, penalty).tolist() == (found > 1e-12).sum(1).tolist()


def test_support_rule_notices_a_lost_factor(monkeypatch):
    assert selection.squares_and_support(Scale.SMOKE).verdict is Verdict.HOLDS
    real = selection.kept_by_rule
    monkeypatch.setattr(selection, "kept_by_rule", lambda gamma, penalty: real(gamma, penalty / 2.0))
    assert selection.squares_and_support(Scale.SMOKE).verdict is Verdict.FAILS


def test_lemma_6_notices_another_penalty(monkeypatch):
    real = selection.best_mixture
    monkeypatch.setattr(selection, "best_mixture", lambda gamma, penalty: real(gamma, 4.0 * penalty))
    assert selection.mixture_has_two_to_tau_tokens(Scale.SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_conjecture_counts_runs_that_end_elsewhere(monkeypatch):
    real = selection.optimal_tokens
    monkeypatch.setattr(selection, "optimal_tokens", lambda tokens: (real(tokens) + 1) % tokens.T)
    assert selection.conjecture(Scale.SMOKE).verdict is Verdict.FAILS


def test_the_exact_test_in_place_of_the_mean_margin_would_stand(monkeypatch):
    assert errata_convergence.proxy_for_b1(Scale.SMOKE).verdict is Verdict.FAILS
    monkeypatch.setattr(errata_convergence, "assumption_b1_proxy", errata_convergence.assumption_b1)
    standing = errata_convergence.proxy_for_b1(Scale.SMOKE)
    assert standing.worst in (0, None)


def test_blended_solutions_separate_and_are_near_optimal():
    W, rank, gap = errata_convergence.blended(Scale.SMOKE, 1e-6)
    tokens = al.data.sphere(5, 5, 10, seed=4, trials=len(W))
    margins = dynamics.margins_of(tokens, W, al.optimal_tokens(tokens))
    others = np.arange(5) != al.optimal_tokens(tokens)[..., None]
    assert margins[others].min() >= 1 - 1e-9
    assert 0 < gap.min() <= gap.max() <= 2e-6
    assert (rank <= 5).all()
