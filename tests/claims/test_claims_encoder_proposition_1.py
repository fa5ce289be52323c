"""Claims on Proposition 1 and Theorems 1 and 2 of the encoder paper: verdicts, oracles, planted faults."""

import numpy as np
import pytest

import attnlab as al
from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.encoder import batch, conditions, proposition_1
from attnlab.claims.scale import Scale
from attnlab.theory.encoder import Constants

SMOKE = Scale.SMOKE
EVERY = [claim for module in (proposition_1, conditions) for claim in module.CLAIMS]


@pytest.mark.parametrize("claim", EVERY, ids=lambda claim: claim.id)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome
    assert all(slack >= 0 for slack in found.outcome.slack.values())


@pytest.fixture
def fresh():
    proposition_1.runs.cache_clear()
    yield
    proposition_1.runs.cache_clear()


def follows():
    return proposition_1.training_follows_the_proposition(SMOKE)


# Proposition 1 ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("law", "scaling", "pool"), [("lecun", "sqrt", "sum"), ("ntk", "linear", "mean")])
def test_runs_are_those_of_descend(law, scaling, pool):
    wanted = f"{law}, tau0 {scaling}, {pool}, {proposition_1.STEPS[2]}"
    (plan,) = [p for p in proposition_1.plans(64, 2, 0) if p.name == wanted]
    model = al.models.Encoder(64, scaling, law, pool=pool)
    data = al.Sequences(x=plan.draws.x[0], y=plan.y)
    run = al.descend(data, al.gd(plan.step), model=model, init=plan.draws.weights(0), steps=30, record=list(range(31)))
    found = proposition_1.runs(64, 30, 4, 0)
    i = [p.name for p in found.plans].index(plan.name)
    # Outputs of size 1 are rounded to 1e-16, and so are their distances to the labels.
    np.testing.assert_allclose(np.sqrt(found.loss[:, i]), np.sqrt(run.metrics["loss"]), rtol=1e-9, atol=1e-15)
    for step, record in ((0, 0), (10, 1), (30, 3)):
        assert found.drift[record, i] == pytest.approx(run.metrics["hidden_moved"][step], rel=1e-4, abs=1e-15)
        for p, name in zip("QKVO", ("W_Q", "W_K", "W_V", "w_O"), strict=True):
            assert found.moved[p][record, i] == pytest.approx(run.metrics[f"moved_{name}"][step], rel=1e-4, abs=1e-15)


def test_plans_meet_the_conditions_with_a_margin_of_one_tenth():
    made = proposition_1.plans(64, 5, 0)
    assert len(made) == 5 * 2 * 3
    for plan in made:
        least = min(plan.constants.condition_2.margin, plan.constants.condition_3.margin)
        assert least == pytest.approx(1 / 0.9, rel=1e-6)
        assert plan.constants.applies
        model = al.models.Encoder(64, pool="sum", hidden_scale=plan.draws.tau1[0], scaling=plan.draws.tau0[0])
        assert model.tau1 == plan.constants.tau1
    steps = {plan.kind: plan.step for plan in made[:3]}
    J = np.concatenate([g[0].reshape(4, -1) for g in batch.jacobian(made[0].draws).values()], axis=1)
    assert 1.0 / steps[proposition_1.STEPS[2]] == pytest.approx(np.linalg.eigvalsh(J @ J.T)[-1], rel=1e-10)
    assert steps["1 / C"] == made[0].constants.largest_step("corrected")
    assert steps["1 / C as printed"] == made[0].constants.largest_step("paper")


def test_rate_that_fits_is_the_largest_that_does():
    found = proposition_1.runs(64, 30, 4, 0)
    t = np.arange(31)
    for i in (0, 2, 8):
        plan, own = found.plans[i], proposition_1.ratios_of(found, i)
        c = 0.5 / own["0.5 / c that fits"]
        lost = plan.step * plan.constants.alpha**2
        shares = found.loss[:, i] / found.loss[0, i]
        assert (shares <= (1 - 0.999 * c * lost) ** t * (1 + 1e-9)).all()
        assert (shares > (1 - 1.001 * c * lost) ** t)[1:].any()


@pytest.mark.parametrize(("name", "wrong"), [
    ("RATES", (5.0,)),
    ("drift_bound", lambda alpha: 1e-9 * alpha),
    ("weight_bounds", lambda constants: dict.fromkeys("QKVO", 1e-9)),
])  # fmt: skip
def test_bounds_that_are_too_small_are_noticed(monkeypatch, name, wrong):
    assert follows().verdict is Verdict.HOLDS
    monkeypatch.setattr(proposition_1, name, wrong)
    assert follows().verdict is Verdict.FAILS


def test_runs_that_miss_the_conditions_are_not_judged(monkeypatch, fresh):
    monkeypatch.setattr(proposition_1, "SHARE", 1.1)
    assert follows().verdict is Verdict.NOT_APPLICABLE
    assert follows().tried == 24


def test_runs_that_go_uphill_are_noticed(monkeypatch, fresh):
    original = proposition_1.loss_gradient
    monkeypatch.setattr(proposition_1, "loss_gradient", lambda *a: {p: -1e-3 * g for p, g in original(*a).items()})
    assert follows().verdict is Verdict.FAILS


def test_kernels_that_are_too_large_are_noticed(monkeypatch):
    from attnlab.theory import tangent

    original = tangent.ntk
    monkeypatch.setattr(tangent, "ntk", lambda *a: 2.0 * original(*a))
    assert proposition_1.gradients_are_long_enough(SMOKE).verdict is Verdict.FAILS


def test_only_runs_within_the_hypotheses_are_judged():
    """Steps 1 / C are judged, both of them; the largest eigenvalue allows larger ones, which are only reported."""
    found = proposition_1.runs(64, 30, 4, 0)
    within, beyond = [], []
    for i, plan in enumerate(found.plans):
        (beyond if plan.kind == proposition_1.STEPS[2] else within).append(proposition_1.ratios_of(found, i))
    outcome = follows()
    assert (outcome.instances, outcome.tried) == (len(within), 24) == (16, 24)
    assert outcome.worst == max(max(own.values()) for own in within)
    numbers = outcome.numbers
    assert numbers["largest ratio with steps 1 / largest eigenvalue of K"] == max(max(own.values()) for own in beyond)
    share = found.loss[-1, 0] / found.loss[0, 0]
    assert numbers["lecun, tau0 sqrt, sum, 1 / C, m=64, seed 0"]["last loss / first"] == share
    names = ("0.5 / c that fits", "drift of F / (alpha / 8)", "fall of the least singular value / (alpha / 8)")
    along = proposition_1.proof_repaired(SMOKE).numbers["largest ratio along runs"]
    assert along == max(own[name] for own in within for name in names)


# E2 -----------------------------------------------------------------------------------------------------------------


def test_decrease_by_hand():
    np.testing.assert_allclose(proposition_1.least_decrease(0.5, 4), 2.0, rtol=1e-9)
    np.testing.assert_allclose(proposition_1.least_decrease(0.875, 4), 32 / 49, rtol=1e-9)


def test_long_sequence_by_hand():
    T = 7
    one, other = proposition_1.long_sequence(T)
    rows = batch.evaluate(one).attention[0, 0]
    np.testing.assert_allclose(rows[1:, 0], 0.5, rtol=1e-12)

    def hidden(draws):
        x, key, total = draws.x[0, 0, :, 0], draws.K[0, 0, 0], 0.0
        for query in x:
            w = np.exp(query * key * x - (query * key * x).max())
            total += w @ x / w.sum()
        return total

    C_x = np.sqrt(np.sum(one.x**2) / T)
    moved = abs(hidden(other) - hidden(one))
    allowed = T**1.5 * C_x * 2 * C_x**2 * abs(other.K - one.K).item()
    assert proposition_1.drift_line(T, True) == pytest.approx(moved / allowed, rel=1e-6)
    assert proposition_1.drift_line(T, False) == pytest.approx(moved / allowed / T, rel=1e-6)


# Conditions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("law", "scaling"), [("lecun", "sqrt"), ("ntk", "linear")])
def test_margins_are_those_of_the_theory(law, scaling):
    draws, _ = batch.starts(law, scaling, conditions.N, conditions.T, conditions.D, 300)
    y = batch.evaluate(draws).outputs[0] + np.array([1.0, 0, 0, 0])
    wanted = Constants.of(draws.x[0], y, draws.weights(0), tau0=draws.tau0[0], tau1=draws.tau1[0], radius=3.0)
    found = conditions.margins(law, scaling, 300, 3.0)
    assert found.condition_2.margin == pytest.approx(wanted.condition_2.margin, rel=1e-9)
    assert found.condition_3.margin == pytest.approx(wanted.condition_3.margin, rel=1e-9)


@pytest.mark.parametrize("wanted", [(0.3, 0.5), (0.5, 0.3), (0.7, 0.5), (0.5, 0.7)])
def test_wrong_slopes_are_noticed(wanted):
    cases = (("lecun", "sqrt", False),)
    assert conditions.margins_grow(SMOKE, cases, (0.5, 0.5)).verdict is Verdict.HOLDS
    assert conditions.margins_grow(SMOKE, cases, wanted).verdict is Verdict.FAILS


def test_margins_with_fixed_radius_do_not_grow_for_normal_weights():
    found = conditions.grown(SMOKE, "ntk", "linear")
    assert abs(found["slopes"][0]) < 0.1
    limit = conditions.margin_has_a_limit(SMOKE).numbers["limit of the margin of (2)"]
    assert (0.85 * limit < found["margin of (2)"]).all()
    assert (found["margin of (2)"] < 1.02 * limit).all()


def test_extrapolated_width_by_hand(monkeypatch):
    def made(law, scaling, m, radius):
        return Constants(N=1, T=1, d=1, width=m, tau0=0.0, tau1=1.0, C_x=1.0, norms=dict.fromkeys("QKVO", 1e-9),
                         radius=dict.fromkeys("QKVO", 1.0), alpha=1e-2 * m**0.25, start_loss=0.5)  # fmt: skip

    monkeypatch.setattr(conditions, "margins", made)
    found = conditions.grown(SMOKE, "lecun", "sqrt")
    assert found["slopes"] == pytest.approx((0.5, 0.75), abs=1e-6)
    # alpha^2 = 1e-4 sqrt(m) meets 8 at m = (8e4)^2; alpha^3 = 1e-6 m^(3/4) meets 32 at (3.2e7)^(4/3).
    assert found["widths where margins reach 1, extrapolated"] == pytest.approx([6.4e9, 3.2e7 ** (4 / 3)], rel=1e-6)


def test_powers_of_N_by_hand():
    asked = conditions.asked_powers()
    assert asked["lecun, tau0 sqrt"] == pytest.approx([3.0, 2.0], abs=1e-3)  # N^2 d, and N^3 / d, with d = N
    assert asked["lecun, tau0 linear"] == pytest.approx([3.0, 2.0], abs=1e-3)
    assert asked["ntk, tau0 linear"] == pytest.approx([2.0, 3.0], abs=1e-3)


def test_width_of_condition_2_against_margins_measured_when_wide():
    """At large m the margin of (2) is sqrt(m / width)."""
    n, m = 16, 2**15
    draws, _ = batch.starts("lecun", "linear", n, conditions.T, n, m)
    found = Constants.of(draws.x[0], batch.evaluate(draws).outputs[0] + 1.0, draws.weights(0), tau0=1 / m, tau1=1.0)
    least = np.linalg.eigvalsh(conditions.arc_cosine_1(draws.x[0].mean(1)))[0]
    width = 64.0 * n**3 / (conditions.T * least**2)
    # Norms of W_V are sqrt(m / d) + 2 and not sqrt(m / d).
    corrected = found.condition_2.margin * found.lambda_bar["V"] / np.sqrt(m / n)
    assert corrected == pytest.approx(np.sqrt(m / width), rel=0.15)
    reached = conditions.measured_power(SMOKE)[1][16]
    assert reached == pytest.approx(width, rel=1.0)  # a mean over other tokens


def test_swapped_scalings_are_noticed(monkeypatch):
    original = conditions.evaluate
    monkeypatch.setattr(conditions, "evaluate", lambda d: original(d._replace(tau0=d.O.shape[-1] ** -1.5 / d.tau0)))
    assert conditions.attention_by_scaling(SMOKE).verdict is Verdict.FAILS


def test_a_law_with_the_wrong_scale_is_noticed(monkeypatch):
    original = conditions.alphas
    monkeypatch.setattr(conditions, "alphas", lambda law, *a: original(law, *a) * (1.2 if law == "he" else 1.0))
    assert conditions.alpha_by_law(SMOKE).verdict is Verdict.FAILS


def test_eigenvalue_without_tau1_is_off_by_the_width():
    printed, corrected = (conditions.hidden_eigenvalue(SMOKE, printed=p) for p in (True, False))
    assert printed.verdict is Verdict.FAILS
    assert float(corrected.worst or np.inf) < 0.3
    assert float(printed.worst or 0.0) > 0.2 * min(printed.numbers["width"])
