"""The claims on joint training come out as recorded, and notice what is planted against them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict, check
from attnlab.claims.rates import (
    joint_data,
    joint_dynamics,
    joint_errata,
    joint_leaps,
    joint_limits,
    joint_samples,
    joint_slow,
    joint_smoothness,
)
from attnlab.theory.fast_rates.joint import JointModel, condition_1, decayed_sum

SMOKE = Scale.SMOKE
MODULES = (joint_data, joint_dynamics, joint_limits, joint_smoothness, joint_errata)


@pytest.mark.slow
@pytest.mark.parametrize("claim", [c for m in MODULES for c in m.CLAIMS], ids=lambda claim: claim.id)
def test_as_expected(claim):
    (found,) = check([claim], "smoke")
    assert found.as_expected, found.outcome


@pytest.mark.parametrize("n", [2, 10])
def test_the_judged_sets_meet_condition_1(n):
    case = joint_samples.condition_case(n, 4)
    assert condition_1(case.model, case.step, form="proof")
    assert condition_1(case.model, case.step)
    assert np.linalg.norm(case.tokens.x, axis=-1).max() <= case.model.B


@pytest.mark.slow
def test_leaps_are_the_steps_of_descend():
    """One by one at first, to rounding; many at a time later, more closely the finer they are."""
    case = joint_samples.plain_case(3, 200.0, 6.0, 0.1, 0.01, 3)
    run = joint_samples.run_of(case, 3000)
    single = np.flatnonzero(run.steps <= 50)
    errors = []
    for finer in (1, 4):
        leaps = joint_leaps.leap(case.tokens, case.model, case.step, target=case.W_mm, until=1.0, finer=finer)
        for name, metric in (("log_loss", "log_loss"), ("norm_u", "norm_u"), ("norm_W", "norm")):
            first = getattr(leaps, name)[:, : len(single)]
            np.testing.assert_allclose(first, run.metrics[metric][:, single], rtol=1e-9, atol=1e-15)
        at = np.interp(np.log(leaps.t[-1]), np.log(run.steps), np.arange(len(run.steps)))
        assert at < len(run.steps) - 1
        u = [np.interp(leaps.t[-1], run.steps, row) for row in run.metrics["norm"]]
        errors.append(np.abs(leaps.norm_W[:, -1] / u - 1).max())
    assert errors[1] < 2e-3
    assert errors[1] <= errors[0] * 1.1


@pytest.mark.slow
def test_slow_flow_is_the_late_course_of_descend():
    """They differ by no more than the order of the step size, over a range of it."""
    for step in (0.04, 0.01, 0.0025):
        case = joint_samples.plain_case(4, 1000.0, 6.0, 0.2, step, 2)
        run = joint_samples.run_of(case, 20_000)
        for trial in range(2):
            sigma = step * (decayed_sum(run.steps[-1:], 1.0) - 1)
            slow = joint_slow.slow_flow(case.tokens[trial], case.W_mm[trial], sigma)
            assert slow.norm[0] == pytest.approx(run.metrics["norm"][trial, -1], abs=0.6 * step)
            assert slow.misalignment[0] == pytest.approx(run.metrics["misalignment_svm"][trial, -1], rel=0.25)
            assert slow.attention[0] == pytest.approx(run.metrics["attention_min"][trial, -1], abs=0.02)


def test_slow_flow_stands_by_its_accuracy():
    case = joint_samples.condition_case(2, 4)
    sigma = np.geomspace(0.1, 1e8, 8)
    one, other = (joint_slow.slow_flow(case.tokens[1], case.W_mm[1], sigma, accuracy=a) for a in (1e-7, 1e-10))
    np.testing.assert_allclose(one.misalignment, other.misalignment, rtol=1e-4)
    np.testing.assert_allclose(one.margin, other.margin, rtol=1e-5)
    assert (np.diff(other.norm) > 0).all()
    assert (np.diff(other.misalignment) < 0).all()


def enlarged(name, factor):
    value = getattr(JointModel, name).fget
    return property(lambda self: factor * value(self))


@pytest.mark.parametrize(
    ("constant", "factor", "measure"),
    [
        ("omega_1", 9.0, joint_dynamics.loss_falls_as_exp_of_cube_root),
        ("omega_1", 5.0, joint_smoothness.gradient_is_at_least_the_loss),
        ("omega_2", 1e8, joint_dynamics.gaps_grow_attention_rises_losses_stay_together),
        ("omega_0", 1e-7, joint_smoothness.curvature_is_bounded_by_the_loss),
    ],
)
@pytest.mark.slow
def test_a_wrong_constant_is_noticed(monkeypatch, constant, factor, measure):
    joint_samples.condition_case(2, 4)  # drawn with the right constants
    joint_samples.run_of(joint_samples.condition_case(2, 4), joint_smoothness.STEPS)
    monkeypatch.setattr(JointModel, constant, enlarged(constant, factor))
    assert measure(SMOKE).verdict is Verdict.FAILS


def test_lemmas_9_and_12_notice_other_data(monkeypatch):
    case = joint_samples.condition_case(2, 50)
    longer = replace(case, model=replace(case.model, rho=2 * case.model.rho))
    monkeypatch.setattr(joint_data, "condition_case", lambda n, trials: longer)
    assert joint_data.tokens_are_nearly_orthogonal(SMOKE).verdict is Verdict.FAILS
    monkeypatch.setattr(joint_data, "condition_case", lambda n, trials: replace(
        case, model=replace(case.model, rho=5 * case.model.rho)))  # fmt: skip
    assert joint_data.half_attended_samples_are_separable(SMOKE).verdict is Verdict.FAILS


def test_lemma_11_notices_attention_that_falls(monkeypatch):
    case = joint_samples.condition_case(2, 4)
    leaps = joint_samples.leaps_of(case)
    fallen = replace(leaps, lead=leaps.lead[:, ::-1])
    monkeypatch.setattr(joint_dynamics, "_followed", lambda scale: iter([(case, fallen)]))
    monkeypatch.setattr(joint_dynamics, "_plain", lambda scale: iter([]))
    assert joint_dynamics.gaps_grow_attention_rises_losses_stay_together(SMOKE).verdict is Verdict.FAILS


def test_norms_notice_a_longer_path(monkeypatch):
    case = joint_samples.condition_case(2, 4)
    leaps = joint_samples.leaps_of(case)
    monkeypatch.setattr(joint_dynamics, "_plain", lambda scale: iter([]))
    for name, factor in (("norm_u", 1.1), ("norm_W", 1.1)):
        longer = replace(leaps, **{name: factor * getattr(leaps, name)})
        monkeypatch.setattr(joint_dynamics, "_followed", lambda scale, longer=longer: iter([(case, longer)]))
        assert joint_dynamics.norms_stay_within_the_step_sums(SMOKE).verdict is Verdict.FAILS
    shorter = replace(leaps, norm_W=0.01 * leaps.norm_W)
    monkeypatch.setattr(joint_dynamics, "_followed", lambda scale: iter([(case, shorter)]))
    assert joint_dynamics.attention_norm_grows_as_log_t(SMOKE).verdict is Verdict.FAILS


def test_theorems_3_and_4_notice_another_limit(monkeypatch):
    corrected = partial(joint_limits.attention_reaches_the_max_margin_direction, corrected=True)
    assert corrected(SMOKE).verdict is Verdict.HOLDS
    slow = joint_limits._slow

    def elsewhere(case, trial):
        run = slow(case, trial)
        return replace(run, misalignment=run.misalignment + 0.6, margin=0.2 * run.margin)

    monkeypatch.setattr(joint_limits, "_slow", elsewhere)
    assert joint_limits.head_keeps_a_quarter_of_the_margin(SMOKE).verdict is Verdict.FAILS
    monkeypatch.setattr(joint_limits, "alignment_constant", lambda *args, **kwargs: 0.0)
    assert corrected(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_smoothness_notices_bounds_that_are_too_small(monkeypatch):
    bounds = joint_smoothness.output_bounds
    for name in ("gradient", "curvature"):
        monkeypatch.setattr(joint_smoothness, "output_bounds", lambda *args, name=name: {
            **bounds(*args), name: 0.1 * bounds(*args)[name]})  # fmt: skip
        assert joint_smoothness.outputs_are_smooth(SMOKE).verdict is Verdict.FAILS
    monkeypatch.setattr(joint_smoothness, "log_segment_bound", lambda model, step: 0.1 * step * model.B)
    assert joint_smoothness.loss_changes_little_within_a_step(SMOKE).verdict is Verdict.FAILS
