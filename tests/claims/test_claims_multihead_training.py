"""Claims on training multi-head attention: verdicts, oracles, and whether planted faults show."""

from dataclasses import replace

import numpy as np
import pytest

import attnlab as al
from attnlab.claims.check import check
from attnlab.claims.multihead import dynamics, tangent, theorem_1, theory_runs
from attnlab.claims.multihead.theory_runs import Recipe
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Verdict
from attnlab.theory.multihead.ntk import slopes

SMOKE = Scale.SMOKE
EVERY = [claim for module in (theorem_1, dynamics, tangent) for claim in module.CLAIMS]


def judged(measure):
    return measure(SMOKE).verdict


@pytest.mark.slow
@pytest.mark.parametrize("claim", EVERY, ids=lambda claim: claim.id)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome
    assert all(slack >= -1e-9 for slack in found.outcome.slack.values())
    assert not any(part.unsolved for part in found.outcome.parts)


@pytest.mark.slow
def test_theorem_1_at_its_exact_head_requirement():
    """Written out: the heads, the step size and the bound, and the curve that stays below it."""
    ((plan, run),) = theory_runs.followed((Recipe(),))
    D = np.sqrt(2.0) * 1.6 / 1.96  # the mean tokens have margin 0.98, times sqrt(2 T)
    assert pytest.approx(D, rel=1e-9) == plan.D
    root = 36 * np.sqrt(4) * (3 * np.sqrt(2) * (3 * D + plan.g) + 1) * D**2
    assert 0 <= plan.H - root**2 <= 2
    alpha = 3 * np.sqrt(2) * (3 * np.sqrt(2) * (3 * D + plan.g) + 2 * np.sqrt(2))
    rho = (2 * np.sqrt(4) / np.sqrt(plan.H) + 2 / 4) * alpha**2
    assert plan.step == pytest.approx(1 / rho, rel=1e-12)
    bound = 2 * plan.target_loss + 5 * D**2 / (4 * plan.step * plan.K)
    assert bound == pytest.approx(0.5977, abs=2e-4)
    assert bound < plan.start_loss == pytest.approx(np.log(2))
    assert run.loss[1:].mean() == pytest.approx(0.2091, abs=2e-4)
    assert len(run.loss) == plan.K + 1


@pytest.mark.slow
def test_runs_are_those_of_descend():
    """Also side by side with another run, whose data and steps are its own."""
    chosen = Recipe(start="signs", sharp=True)
    pairs = theory_runs.followed((chosen, Recipe(data="signal and noise", seed=1, step=0.1, time=5.0)))
    ((plan, run),) = [pair for pair in pairs if pair[0].recipe == chosen]
    steps = [0, 1, 100, plan.K]
    other = al.descend(
        plan.tokens,
        al.gd(plan.step),
        model=plan.model,
        init=plan.start,
        steps=plan.K,
        record=steps,
        targets={"target": plan.target, "start": plan.start},
    ).metrics
    np.testing.assert_allclose(run.loss[steps], other["loss"], rtol=1e-11)
    np.testing.assert_allclose(run.distance[steps], other["distance_target"], rtol=1e-10)
    np.testing.assert_allclose(run.moved[steps], other["distance_start"], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(run.longest[steps], other["largest_norm"], rtol=1e-10)
    np.testing.assert_allclose(np.log(run.gradient[steps]), other["log_gradient_norm"], atol=1e-9)
    # Between the start and the target: 11 points, of which the start is the worst here.
    between = [
        float(
            plan.model.loss(plan.tokens, {k: plan.target[k] + a * (plan.start[k] - plan.target[k]) for k in plan.start})
        )
        for a in np.linspace(0, 1, 11)
    ]
    assert theory_runs.largest_between(plan, run)[0] == pytest.approx(max(between), rel=1e-12)


@pytest.mark.parametrize("start", ["zero", "signs"])
@pytest.mark.parametrize("data", ["short", "signal and noise"])
def test_targets_have_the_margin_they_are_made_for(start, data):
    plan = theory_runs.plan(Recipe(data=data, start=start, sharp=True))
    along = {k: plan.target[k] - plan.start[k] for k in plan.start}
    margins = plan.tokens.y * slopes(plan.tokens, plan.model, plan.start, along)
    assert margins.min() == pytest.approx(1.6, rel=1e-9)
    assert theory_runs.distance(plan.target, plan.start, plan.counts) == pytest.approx(plan.D, rel=1e-9)
    assert np.linalg.norm(plan.tokens.x, axis=-1).max() <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("sharp", [False, True])
def test_conditions_of_theorem_3_are_checked_from_the_plan_alone(sharp):
    """Constants that a plan carries are not believed: heads taken away, a longer step or more steps are seen."""
    plan = theory_runs.plan(Recipe(sharp=sharp))
    assert min(theory_runs.slack_of_theorem_3(plan).values()) >= -1e-9
    half = plan.H // 4
    as_far = {k: plan.start[k] + np.sqrt(2.0) * (w - plan.start[k]) for k, w in plan.target.items()}
    fewer = replace(plan, model=al.models.MultiHead(2 * half, counts=(half, half)), target=as_far)
    assert theory_runs.slack_of_theorem_3(fewer)["sqrt(H) / needed - 1"] < -0.1
    longer = replace(plan, step=1.01 * plan.step)
    assert theory_runs.slack_of_theorem_3(longer)["1 / (rho step) - 1"] < -0.005
    more = replace(plan, K=2 * plan.K)
    assert theory_runs.slack_of_theorem_3(more)["D^2 / (step K L(theta)) - 1"] < -0.4


# Records that are wrong -------------------------------------------------------------------------------------------


def doctored(monkeypatch, **changes):
    """Runs whose records are changed."""
    for name in ("printed_runs", "sharp_runs", "long_steps", "few_heads"):
        original = getattr(theorem_1, name)

        def other(scale, original=original):
            return [
                (plan, replace(run, **{k: change(getattr(run, k)) for k, change in changes.items()}))
                for plan, run in original(scale)
            ]

        monkeypatch.setattr(theorem_1, name, other)


@pytest.mark.slow
def test_a_loss_above_its_bounds_is_noticed(monkeypatch):
    doctored(monkeypatch, loss=lambda loss: 3 * loss)  # still descends
    for measure in (theorem_1.training_loss_is_bounded, theorem_1.regret, theorem_1.regret_with_curvature):
        assert judged(measure) is Verdict.FAILS


@pytest.mark.slow
def test_a_loss_that_rises_at_the_end_is_noticed(monkeypatch):
    doctored(monkeypatch, loss=lambda loss: np.append(loss[:-1], 2.0))
    assert judged(theorem_1.training_loss_is_bounded) is Verdict.FAILS
    assert judged(theorem_1.every_step_descends) is Verdict.FAILS


@pytest.mark.slow
def test_weights_that_wander_are_noticed(monkeypatch):
    doctored(monkeypatch, distance=lambda d: 3.1 * d, moved=lambda d: 3 * d)
    assert judged(theorem_1.iterates_stay_near) is Verdict.FAILS
    assert judged(theorem_1.training_loss_is_bounded) is Verdict.FAILS


@pytest.mark.slow
def test_steps_longer_than_lemma_7_allows_are_noticed(monkeypatch):
    """Steps ten times too long miss the condition; where that is not checked, they do not descend."""
    original = theorem_1.beta2
    monkeypatch.setattr(theorem_1, "beta2", lambda *args: original(*args) / 10)
    assert judged(theorem_1.every_step_descends) is Verdict.UNSOLVED
    monkeypatch.setattr(theorem_1, "printed_beta2", theorem_1.beta2)
    assert judged(theorem_1.every_step_descends) is Verdict.FAILS


@pytest.mark.slow
def test_a_bound_that_says_nothing_is_vacuous(monkeypatch):
    original = theorem_1.theorem_1
    monkeypatch.setattr(
        theorem_1, "theorem_1", lambda *a, **k: replace(original(*a, **k), value=original(*a, **k).value + 1.0)
    )
    telling = [part for part in theorem_1.training_loss_is_bounded(SMOKE).parts if "below the loss" in part.name]
    assert [part.verdict for part in telling] == [Verdict.VACUOUS, Verdict.VACUOUS]


@pytest.mark.slow
def test_too_few_heads_are_not_judged(monkeypatch):
    original = theory_runs.head_requirement
    theory_runs.followed.cache_clear()
    monkeypatch.setattr(theory_runs, "head_requirement", lambda *a, **k: 0.9 * original(*a, **k))
    outcome = theorem_1.training_loss_is_bounded(SMOKE)
    theory_runs.followed.cache_clear()
    assert outcome.slack["sqrt(H) / needed - 1"] < 0
    assert outcome.verdict is Verdict.UNSOLVED
    assert (outcome.instances, outcome.tried) == (0, 12)


@pytest.mark.slow
def test_a_wrong_reduction_is_noticed(monkeypatch):
    original = dynamics.one_head
    monkeypatch.setattr(dynamics, "one_head", lambda tokens, H: original(tokens, H + 1e-9))
    assert judged(dynamics.groups_are_exact) is Verdict.FAILS


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["unequal heads", "early attention", "late attention"])
def test_wrong_first_steps_are_noticed(monkeypatch, fault):
    original = dynamics.run

    def other(*args, **options):
        found = original(*args, **options)
        metrics = {k: v.copy() for k, v in found.metrics.items()}
        if fault == "unequal heads":
            metrics["U"][0, -1, 3] *= 1 + 1e-15
        else:
            metrics["W"][0, 1 if fault == "early attention" else 2] = 1e-300 if fault == "early attention" else 0.0
        return replace(found, metrics=metrics)

    monkeypatch.setattr(dynamics, "run", other)
    assert judged(dynamics.attention_waits) is Verdict.FAILS


@pytest.mark.slow
def test_another_rate_is_noticed(monkeypatch):
    original = dynamics.descend

    def faster(*args, **options):
        found = original(*args, **options)
        return replace(found, metrics={**found.metrics, "log_loss": 1.2 * found.metrics["log_loss"]})

    monkeypatch.setattr(dynamics, "descend", faster)
    assert judged(dynamics.loss_falls_like_one_over_k) is Verdict.FAILS
