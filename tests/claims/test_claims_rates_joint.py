"""The claims on joint training come out as recorded, and notice what is planted against them."""

from dataclasses import replace

import numpy as np
import pytest

import attnlab as al
from attnlab.claims import Scale, Verdict, check
from attnlab.claims.rates import (
    joint_data,
    joint_dynamics,
    joint_errata,
    joint_leaps,
    joint_limits,
    joint_proofs,
    joint_quarter,
    joint_remarks,
    joint_samples,
    joint_slow,
    joint_smoothness,
)
from attnlab.theory.rates.joint import JointModel, condition_1, decayed_sum, near_orthogonality

SMOKE = Scale.SMOKE
MODULES = (
    joint_data,
    joint_dynamics,
    joint_limits,
    joint_smoothness,
    joint_errata,
    joint_proofs,
    joint_quarter,
    joint_remarks,
)


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
    smaller = joint_samples.condition_case(n, 4, form="complete")
    assert condition_1(smaller.model, smaller.step)
    assert not condition_1(smaller.model, smaller.step, form="proof")


@pytest.mark.parametrize("n", [2, 10])
def test_the_extreme_sets_stand_at_the_ends_of_lemma_9(n):
    case = joint_samples.extreme_case(n)
    assert condition_1(case.model, case.step)
    assert min(case.slack().values()) >= 1
    squared = np.sum(case.tokens.x**2, -1) / (case.model.rho**2 * case.model.d)  # (trials, n, 2)
    planted = np.take_along_axis(squared, case.tokens.info["planted"][..., None], -1) / case.model.alpha**2
    assert planted.min() == pytest.approx(0.5, rel=0.02)
    assert planted.max() == pytest.approx(1.5, rel=0.02)
    products = np.einsum("ritd,rjsd->ritjs", case.tokens.x, case.tokens.x).reshape(case.trials, 2 * n, 2 * n)
    assert np.abs(products[:, ~np.eye(2 * n, dtype=bool)]).max() == 0
    assert case.tokens.v is not None
    signs = np.einsum("rid,rd->ri", planted_tokens(case), case.tokens.v)
    assert (np.sign(signs) == case.tokens.y).all()


def planted_tokens(case):
    return np.take_along_axis(case.tokens.x, case.tokens.info["planted"][..., None, None], 2)[:, :, 0]


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
        ("omega_1", 4.0, joint_dynamics.loss_falls_as_exp_of_cube_root),
        ("omega_1", 3.0, joint_smoothness.gradient_is_at_least_the_loss),
        ("omega_2", 100.0, joint_dynamics.gaps_grow_attention_rises_losses_stay_together),
        ("omega_0", 0.99, joint_smoothness.curvature_is_bounded_by_the_loss),
    ],
)
@pytest.mark.slow
def test_a_wrong_constant_is_noticed(monkeypatch, constant, factor, measure):
    assert measure(SMOKE).verdict is not Verdict.FAILS  # and draws the sets with the right constants
    monkeypatch.setattr(JointModel, constant, enlarged(constant, factor))
    assert measure(SMOKE).verdict is Verdict.FAILS


def test_lemmas_9_and_12_notice_other_data(monkeypatch):
    case = joint_samples.condition_case(2, 50)
    for factor, measure in (
        (2, joint_data.tokens_are_nearly_orthogonal),
        (5, joint_data.half_attended_samples_are_separable),
    ):
        assert measure(SMOKE).verdict is Verdict.HOLDS
        longer = replace(case, model=replace(case.model, rho=factor * case.model.rho))
        with monkeypatch.context() as patched:
            patched.setattr(joint_data, "condition_case", lambda n, trials, form, longer=longer: longer)
            assert measure(SMOKE).verdict is Verdict.FAILS


def test_lemma_11_notices_attention_that_falls(monkeypatch):
    case = joint_samples.condition_case(2, 4)
    leaps = joint_samples.leaps_of(case)
    fallen = replace(leaps, lead=leaps.lead[:, ::-1])
    monkeypatch.setattr(joint_dynamics, "followed", lambda scale: iter([(case, fallen)]))
    monkeypatch.setattr(joint_dynamics, "plain_runs", lambda scale: iter([]))
    assert joint_dynamics.gaps_grow_attention_rises_losses_stay_together(SMOKE).verdict is Verdict.FAILS


def test_norms_notice_a_longer_path(monkeypatch):
    case = joint_samples.condition_case(2, 4)
    leaps = joint_samples.leaps_of(case)
    monkeypatch.setattr(joint_dynamics, "plain_runs", lambda scale: iter([]))
    for name, factor in (("norm_u", 1.1), ("norm_W", 1.1)):
        longer = replace(leaps, **{name: factor * getattr(leaps, name)})
        monkeypatch.setattr(joint_dynamics, "followed", lambda scale, longer=longer: iter([(case, longer)]))
        assert joint_dynamics.norms_stay_within_the_step_sums(SMOKE).verdict is Verdict.FAILS
    shorter = replace(leaps, norm_W=0.01 * leaps.norm_W)
    monkeypatch.setattr(joint_dynamics, "followed", lambda scale: iter([(case, shorter)]))
    assert joint_dynamics.attention_norm_grows_as_log_t(SMOKE).verdict is Verdict.FAILS


def test_theorems_3_and_4_notice_another_limit(monkeypatch):
    corrected = joint_limits.attention_reaches_the_max_margin_direction
    assert corrected(SMOKE).verdict is Verdict.HOLDS
    slow = joint_limits._slow

    def with_less_margin(case, trial):
        return replace(slow(case, trial), margin=0.2 * slow(case, trial).margin)

    def farther_at_the_end(case, trial):
        run = slow(case, trial)
        late = run.sigma >= joint_limits._begin(case, trial, 0.5, corrected=False)
        return replace(run, misalignment=np.where(late, 0.6, run.misalignment))

    monkeypatch.setattr(joint_limits, "_slow", with_less_margin)
    assert joint_limits.head_keeps_a_quarter_of_the_margin(SMOKE).verdict is Verdict.FAILS
    monkeypatch.setattr(joint_limits, "_slow", farther_at_the_end)
    assert corrected(SMOKE).verdict is Verdict.FAILS


def test_the_constant_of_theorem_9_is_judged_where_it_is_positive(monkeypatch):
    found = joint_limits.attention_reaches_the_max_margin_direction(SMOKE)
    assert found.numbers["largest C from an earlier time, over log t"] > 1
    names = {part.name: part for part in found.parts}
    (earlier,) = [part for name, part in names.items() if "first time after which" in name]
    assert earlier.tightness == pytest.approx(1.0)
    right = joint_limits.alignment_constant
    monkeypatch.setattr(joint_limits, "alignment_constant", lambda *args, **options: 0.9 * right(*args, **options))
    assert joint_limits.attention_reaches_the_max_margin_direction(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_smoothness_notices_bounds_that_are_too_small(monkeypatch):
    bounds = joint_smoothness.output_bounds
    for name in ("gradient", "curvature"):

        def smaller(*args, name=name):
            return {**bounds(*args), name: 0.1 * bounds(*args)[name]}

        monkeypatch.setattr(joint_smoothness, "output_bounds", smaller)
        assert joint_smoothness.outputs_are_smooth(SMOKE).verdict is Verdict.FAILS
    monkeypatch.setattr(joint_smoothness, "log_segment_bound", lambda model, step: 0.1 * step * model.B)
    assert joint_smoothness.loss_changes_little_within_a_step(SMOKE).verdict is Verdict.FAILS


@pytest.mark.parametrize("times", [12.0, 14.0])
def test_adverse_tokens_have_the_products_of_lemma_9(times):
    model = JointModel(n=9, d=(times * 9) ** 2 * np.log(10 * 81 / 0.1), alpha=6.0, rho=0.1)
    tokens = joint_proofs.adverse_tokens(model)
    events = near_orthogonality(tokens, model, within_samples=True)
    assert all(event >= 1 for event in events.values())
    assert [float(events[name]) for name in ("E1", "E3", "E5")] == pytest.approx([1.0, 1.0, 1.0])
    q = np.sqrt(model.d * np.log(10 * 81 / 0.1))
    planted, others = tokens.x[:, 0], tokens.x[:, 1]
    by_hand = 0.36 * model.d / 2 - 2 * 8 * 0.36 * q - 2 * 9 * 0.06 * q
    assert (planted[0] + others[0]) @ planted.sum(0) == pytest.approx(by_hand)


def test_weights_turned_against_a_sample_have_the_stated_cosine_and_lead():
    """Against the lead of an explicit matrix at the angle."""
    case = joint_samples.condition_case(2, 4)
    tokens, W_mm = case.tokens[0], case.W_mm[0] / case.Lambda[0]
    leads = joint_quarter._turned_leads(case, 0, 0.3)
    planted = tokens.info["planted"]
    for i in range(2):
        pull = np.outer(tokens.x[i, planted[i]] - tokens.x[i, 1 - planted[i]], tokens.z[i])
        aside = pull - np.sum(pull * W_mm) * W_mm
        W = 0.7 * W_mm - np.sqrt(1 - 0.49) * aside / np.linalg.norm(aside)
        assert np.linalg.norm(W) == pytest.approx(1.0)
        assert np.sum(W * W_mm) == pytest.approx(0.7)
        assert np.sum(W * pull) == pytest.approx(leads[i])


def test_the_moving_attention_is_that_of_two_opposite_tokens():
    """R_t+1 against the softmax of explicit logits, at the least time."""
    terms, lengths = joint_proofs._attention_terms(SMOKE)
    B, t = lengths[0], 1e6
    step = np.log(2) / (3 * B) / 100
    u = step * float(decayed_sum(t + 1)) / B * np.array([B, -B])  # scores of the tokens over B
    logits = 0.5 * step / (t + 1) * B**2 * np.array([1.0, -1.0])
    gain = np.tanh((logits[0] - logits[1]) / 2)  # difference of softmax([a, -a])[0] and softmax([-a, a])[0]
    assert terms[0] * step**2 * (t + 1) ** (-2 / 3) == pytest.approx((u[0] - u[1]) * gain)
    assert terms.max() / lengths[np.argmax(terms)] ** 3 <= 3


def test_no_data_model_of_condition_1_has_tokens_that_small():
    found = joint_errata.small_tokens_under_condition_1(SMOKE)
    assert found.verdict is Verdict.NOT_APPLICABLE
    assert max(found.slack.values()) < 1e-6
    assert found.numbers["exponent of the least constant in d"] > 0.45


def test_scores_of_other_tokens_stay_equal_where_their_lengths_are():
    even, uneven = (joint_samples.extreme_case(2, T=3, uneven=u) for u in (False, True))
    assert min(even.slack().values()) >= 1
    assert min(uneven.slack().values()) >= 1
    assert joint_samples.leaps_of(even, until=0.1).spread.max() == 0
    assert joint_samples.leaps_of(uneven, until=0.1).spread.min() > 0


def test_other_tokens_of_one_score_are_as_their_mean():
    case = joint_samples.extreme_case(2, T=4)
    for trial in range(case.trials):
        reduced = joint_remarks.with_mean_of_others(case.tokens[trial])
        W = al.solve_margin(reduced, reduced.info["planted"]).W
        np.testing.assert_allclose(W, case.W_mm[trial], rtol=1e-9, atol=1e-12 * np.abs(W).max())


@pytest.mark.slow
def test_the_slow_flow_of_several_others_is_the_late_course_of_descend():
    """On all tokens, and on the mean of the others."""
    step = 0.0025
    case = joint_samples.extreme_case(2, T=4)
    some = [4, 5]
    drawn = case.tokens[some]
    # Tokens three times as long, so that margins are seen within the run.
    tokens = al.Tokens(x=3 * drawn.x, z=3 * drawn.z, y=drawn.y, v=drawn.v, info=drawn.info)
    longer = replace(
        case, tokens=tokens, step=step, W_mm=case.W_mm[some] / 9, u_mm=case.u_mm[some], Lambda=case.Lambda[some] / 9
    )
    run = joint_samples.run_of(longer, 20_000)
    sigma = step * (decayed_sum(run.steps[-1:], 1.0) - 1)
    for trial in range(2):
        reduced = joint_remarks.with_mean_of_others(tokens[trial])
        slow = joint_slow.slow_flow(reduced, longer.W_mm[trial], sigma, others=3)
        assert slow.norm[0] == pytest.approx(run.metrics["norm"][trial, -1], abs=0.6 * step)
        assert slow.attention[0] == pytest.approx(run.metrics["attention_min"][trial, -1], abs=0.02)


def test_random_starts_are_as_small_as_lemma_2_asks():
    case = joint_samples.condition_case(2, 20, form="complete")
    u, W = joint_remarks.random_start(case, 0, head=True)
    model, D = case.model, case.tokens.d
    # |W_0| and |u_0| in all d dimensions, from what is seen of them in the span of the tokens.
    whole_W = np.linalg.norm(W, axis=(-2, -1)) / D * model.d
    whole_u = np.linalg.norm(u, axis=-1) / np.sqrt(D) * np.sqrt(model.d)
    np.testing.assert_allclose(whole_W * 8 * model.B**2 * case.Lambda / case.step, 1.0, atol=0.4)
    np.testing.assert_allclose(np.sqrt(np.mean(whole_u**2)) * 8 / case.step, 1.0, atol=0.2)
    assert not joint_remarks.random_start(case, 0, head=False)[0].any()


def test_a_random_head_turns_the_first_step_of_attention():
    case = joint_samples.condition_case(2, 20, form="complete")
    still, _, start = joint_remarks.started(case, 0, False)
    turned, _, _ = joint_remarks.started(case, 0, True)
    np.testing.assert_allclose(still.norm_W[:, 0], start)  # from u_0 = 0 the first step leaves W where it is
    np.testing.assert_allclose(turned.norm_W[:, 0], case.step, rtol=0.3)
    assert (turned.lead[:, 0] < 0).any()
    assert start.max() < case.step / 4
