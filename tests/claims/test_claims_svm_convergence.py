"""Claims on convergence: their tools against independent ones, and whether a planted fault changes the verdict."""

import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose

import attnlab as al
from attnlab.claims import Kind, Scale, Verdict, check
from attnlab.claims.matrices import inner, unit
from attnlab.claims.parts import Bound
from attnlab.claims.svm import (
    basins,
    conjecture,
    dynamics,
    errata_convergence,
    first_step,
    global_convergence,
    lemma_10,
    local_convergence,
    local_paths,
    local_steps,
    sandwich,
    selection,
    shielding,
    traps,
)
from attnlab.theory import assumption_b2

MODULES = (
    global_convergence,
    lemma_10,
    first_step,
    local_convergence,
    local_steps,
    local_paths,
    shielding,
    selection,
    conjecture,
    errata_convergence,
)
CLAIMS = [claim for module in MODULES for claim in module.CLAIMS]
OWN = [*global_convergence.CLAIMS, *lemma_10.CLAIMS, *shielding.CLAIMS]  # those whose counterexamples are traps


@pytest.fixture(autouse=True)
def _nothing_remembered():
    for function in (traps.traps, traps.runs_on_traps, basins.basins, shielding.compared_selections):
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


def without_overlap(name, **settings):
    """As a trap, but with orthogonal queries: what one sequence does is nothing to the other."""
    made = real_trap(name, **settings)
    z = np.array(made.z)
    z[1] -= (z[1] @ z[0]) * z[0]
    return al.Tokens(x=made.x, z=z, y=made.y, v=made.v, info=made.info)


real_trap = al.data.trap


@pytest.mark.slow
@pytest.mark.parametrize("measure", [global_convergence.theorem_4_printed, global_convergence.theorem_5_printed])
def test_theorems_stand_on_harmless_data(measure, monkeypatch):
    monkeypatch.setattr(traps, "trap", without_overlap)
    assert measure(Scale.SMOKE).verdict is Verdict.HOLDS


@pytest.mark.slow
def test_theorem_4_is_not_applicable_where_no_set_meets_b2(monkeypatch):
    monkeypatch.setattr(traps, "trap", lambda name, seed=0, **_: al.data.sphere(2, 3, 4, seed=seed))
    assert global_convergence.theorem_4_printed(Scale.SMOKE).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("name", ["plain", "E17", "T4", "T5"])
def test_traps_meet_their_hypotheses_by_other_code(name):
    delta = 0.05 if name == "T5" else 0.0
    found = traps.traps(name, 4, delta)
    assert len(found.how) == found.drawn == 4
    assert traps.held_by_no_support(found) == 4
    tokens = eval(found.how[2], {"al": al})
    assert_allclose(tokens.x, found.tokens.x[2], rtol=0, atol=0)
    example = found.example(2)
    assert_allclose(example["W"], tokens.info["start"], rtol=0, atol=0)


@pytest.mark.slow
def test_examples_of_false_statements_are_kept_and_can_be_made_again():
    for claim in CLAIMS:
        if claim.slip is None or claim.slip.kind is not Kind.STATEMENT or claim not in OWN:
            continue
        example = claim.measure(Scale.SMOKE).example
        tokens = eval(example["how"], {"al": al})
        for name in ("x", "z", "y", "v"):
            assert_allclose(example[name], getattr(tokens, name), rtol=0, atol=0)


def test_lemma_10_stands_on_a_harmless_ray(monkeypatch):
    assert lemma_10.lemma_10_printed(Scale.SMOKE).verdict is Verdict.FAILS
    real = traps.traps

    def along_the_axis(name, seeds):
        found = real(name, seeds)
        return found._replace(other=found.best)

    monkeypatch.setattr(lemma_10, "traps", along_the_axis)
    assert lemma_10.lemma_10_printed(Scale.SMOKE).verdict is Verdict.HOLDS


def test_corrected_lemma_10_is_not_idle(monkeypatch):
    """With a hundredth of log(N kappa) the bound is passed: the measure can tell."""
    assert lemma_10.lemma_10_corrected(Scale.SMOKE).verdict is Verdict.HOLDS
    real = lemma_10._log_weight_ratio
    monkeypatch.setattr(lemma_10, "_log_weight_ratio", lambda tokens: 0.01 * real(tokens))
    assert lemma_10.lemma_10_corrected(Scale.SMOKE).verdict is Verdict.FAILS


def test_nan_is_never_a_success(monkeypatch):
    monkeypatch.setattr(lemma_10, "ratio_of_lemma_10", lambda tokens, W, best: np.full(len(W), np.nan))
    assert lemma_10.lemma_10_corrected(Scale.SMOKE).verdict is Verdict.FAILS


def rate_found(metrics):
    rate = Bound("(34)")
    global_convergence.rate_of_the_proof(rate, metrics, 0.1, np.ones(1), 4)
    return rate.part()


def test_the_rate_of_the_proof_notices_a_run_that_turns_away():
    norm = np.linspace(1.0, 50.0, 40)[None]
    toward = {"norm": norm, "misalignment_best": 0.5 / norm, "excess_loss": np.exp(-norm)}
    away = toward | {"misalignment_best": np.where(norm < 25, 0.5 / norm, 0.4)}
    assert rate_found(toward).verdict is Verdict.HOLDS
    assert rate_found(toward).instances > 20
    assert rate_found(away).verdict is Verdict.FAILS


def test_a_trapped_run_is_told_by_every_record():
    run = traps.Runs(
        selected=np.array([[1, 0]]),
        from_best=np.array([[0.3, 0.4, 0.5]]),
        from_other=np.array([[0.1, 0.01, 0.0001]]),
        lead=np.array([[-3.0, -6.0, -9.0]]),
    )
    held = np.array([[1, 0]])
    assert traps.trapped(run, "gradient flow", held).all()
    rising = run._replace(lead=run.lead[:, ::-1])
    on_the_best = run._replace(selected=np.array([[0, 0]]))
    nowhere = run._replace(from_other=np.full((1, 3), 0.1))
    for doctored in (rising, on_the_best, nowhere):
        assert not traps.trapped(doctored, "gradient flow", held).any()


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


def with_other_axes(scale):
    found = basins.at_scale(scale)
    rng = np.random.default_rng(0)
    size = np.linalg.norm(found.axis, axis=(-2, -1), keepdims=True)
    return found._replace(axis=found.axis + 0.5 * size * unit(rng.standard_normal(found.axis.shape)))


def test_local_lemmas_notice_another_axis(monkeypatch):
    assert local_convergence.lemma_13(Scale.SMOKE).verdict is Verdict.HOLDS
    assert local_convergence.lemma_14(Scale.SMOKE).verdict is Verdict.HOLDS
    monkeypatch.setattr(local_convergence, "at_scale", with_other_axes)
    assert local_convergence.lemma_14(Scale.SMOKE).verdict is Verdict.FAILS


def test_local_bound_notices_swapped_gaps(monkeypatch):
    real = local_convergence.sandwich
    monkeypatch.setattr(local_convergence, "sandwich", lambda *given: real(*given[:5], factors=(2.0, 1.0 / 8.0)))
    assert local_convergence.lemma_13(Scale.SMOKE).verdict is Verdict.FAILS


def test_points_near_an_axis_are_in_its_cone():
    found = basins.basins(12)
    W = basins.near(found.axis, found.mu, np.random.default_rng(0))
    assert_allclose(np.linalg.norm(W, axis=(-2, -1)), 1.0, rtol=1e-12)
    assert (al.misalignment(W, found.axis) <= found.mu * (1 + 1e-6)).all()
    for border in basins.border_points(found, np.random.default_rng(0)):
        assert_allclose(al.misalignment(border, found.axis), found.mu, rtol=1e-6)


def test_sets_built_close_to_the_border_are_what_they_say():
    for number, (room, lead) in enumerate(basins.TIGHT_SETS):
        tokens = basins.close_to_the_border(room, lead, number)
        cone = al.theory.local_cone(tokens, [0, 0])
        assert_allclose([cone.delta, cone.gap], [room, lead], rtol=1e-6)
        assert al.optimal_tokens(tokens).tolist() != [0, 0]


def test_the_longest_stay_against_a_search():
    rng = np.random.default_rng(0)
    axis = unit(rng.standard_normal((50, 3, 3)))
    mu = rng.uniform(0.01, 0.2, 50)
    W = 3.0 * basins.near(axis, mu, rng, share=1.0)
    direction = unit(axis + rng.standard_normal(axis.shape))
    stay = local_steps.longest_stay(W, direction, axis, mu)
    for i in range(50):
        steps = np.geomspace(1e-3, 1e2, 400)
        outside = al.misalignment(W[i] + steps[:, None, None] * direction[i], axis[i]) > mu[i] * (1 + 1e-9)
        first = steps[outside][0] if outside.any() else np.inf
        assert first >= 0.999 * stay[i]
        if stay[i] < 90.0:
            assert first <= 1.04 * max(stay[i], 1e-3)  # the grid is 3 % wide


def test_the_step_bound_by_hand():
    """zeta(mu) after (83), number by number: mu = 1/2, eps = 1/5, -<grad, axis> = 2, |grad| = 3."""
    rho = 2.0 / (4.0 / 5.0)
    zeta = (3.0 / 10.0) * rho / (1.0 / 2.0) / 9.0
    found = local_steps.longest_step(*(np.array([value]) for value in (0.5, 0.2, 2.0, 3.0)))
    assert_allclose(found, zeta, rtol=1e-14)


def test_what_each_sequence_pushes_adds_up_to_the_gradient():
    tokens = al.data.sphere(n=3, T=4, d=5, seed=1, trials=6)
    W = 3.0 * np.random.default_rng(0).standard_normal((6, 5, 5))
    pushes, log_scales = dynamics.pushes_of(tokens, W)
    total = np.einsum("rn,rnd,rne->rde", np.exp(log_scales), pushes, tokens.z)
    mantissa, scale = al.models.gradient(tokens, W)
    expected = -mantissa["W"] * np.exp(scale["W"])[:, None, None]
    assert_allclose(total, expected, rtol=1e-9, atol=1e-12 * np.abs(expected).max())


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
            lambda s, g=g, strength=strength: strength * s @ s - g @ s,
            np.full(6, 1 / 6),
            bounds=[(0, 1)] * 6,
            constraints={"type": "eq", "fun": lambda s: s.sum() - 1.0},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
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
    real = dynamics.optimal_tokens
    monkeypatch.setattr(dynamics, "optimal_tokens", lambda tokens: (real(tokens) + 1) % tokens.T)
    assert conjecture.conjecture(Scale.SMOKE).verdict is Verdict.FAILS


def test_d_notices_another_locally_optimal_selection(monkeypatch):
    assert conjecture.d_leaves_one_selection(Scale.SMOKE).verdict is Verdict.HOLDS
    monkeypatch.setattr(conjecture, "assumption_d", lambda tokens: True)
    assert conjecture.d_leaves_one_selection(Scale.SMOKE).verdict is Verdict.FAILS


def test_the_stronger_condition_by_hand():
    """One sequence of two tokens: the best token always supports the other selection."""
    assert conjecture.every_best_token_supports(al.data.two_tokens())
    assert not conjecture.every_best_token_supports(al.data.trap("plain"))


def test_the_exact_test_in_place_of_the_mean_margin_would_stand(monkeypatch):
    weaker = errata_convergence.mean_margin_is_weaker_than_b1(Scale.SMOKE)
    assert weaker.verdict is Verdict.HOLDS
    errata_convergence.tests_of_b1.cache_clear()
    monkeypatch.setattr(errata_convergence, "assumption_b1_proxy", errata_convergence.assumption_b1)
    standing = errata_convergence.mean_margin_is_weaker_than_b1(Scale.SMOKE)
    errata_convergence.tests_of_b1.cache_clear()
    assert standing.verdict is not Verdict.HOLDS


def test_blended_solutions_separate_and_are_near_optimal():
    W, rank, gap = errata_convergence.blended(Scale.SMOKE, 1e-6)
    tokens = al.data.sphere(5, 5, 10, seed=4, trials=len(W))
    margins = dynamics.margins_of(tokens, W, al.optimal_tokens(tokens))
    others = np.arange(5) != al.optimal_tokens(tokens)[..., None]
    assert margins[others].min() >= 1 - 1e-9
    assert 0 < gap.min() <= gap.max() <= 2e-6
    assert (rank <= 5).all()
