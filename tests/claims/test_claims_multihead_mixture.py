"""Claims of section 5 of the multi-head paper: verdicts, and whether a planted fault is noticed."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.multihead import first_phase, good_start, mixture_margins, mixtures, saturation, section_5_3
from attnlab.claims.scale import Scale
from attnlab.theory import multihead as mh

MODULES = (saturation, mixture_margins, section_5_3, first_phase, good_start)
EVERY = [claim for module in MODULES for claim in module.CLAIMS]
SMOKE = Scale.SMOKE


@pytest.mark.parametrize("claim", EVERY, ids=lambda claim: claim.id)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome
    assert all(slack >= -1e-12 for slack in found.outcome.slack.values())


def tightness(outcome, words):
    (only,) = [part.tightness for part in outcome.parts if words in part.name]
    assert only is not None
    return only


def test_proposition_3_is_nearly_attained():
    found = saturation.attention_expresses(SMOKE)
    assert tightness(found, "Eq. (10)") > 0.9
    assert tightness(found, "Eq. (11)") > 0.9


def judged(measure, **options):
    return measure(SMOKE, **options).verdict


def scaled(function, factor):
    return lambda *args, **kwargs: factor * function(*args, **kwargs)


@pytest.mark.parametrize(
    ("module", "name", "factor", "measure"),
    [
        (saturation, "saturation_scale", 0.99, saturation.softmax_saturates),
        (saturation, "attention_scale", 0.3, saturation.attention_expresses),
        (saturation, "gamma_attn", 1.02, saturation.attention_expresses),
        (mixture_margins, "gamma_lin", 1.001, mixture_margins.linear_oracle_keeps_its_margin),
        (mixture_margins, "largest_ordered_signal", 1.05, mixture_margins.order_has_a_boundary),
        (section_5_3, "head_requirement", 1.001, section_5_3.no_target_is_feasible),
        (good_start, "gamma_star", 1.02, good_start.linearized_model_separates),
        (first_phase, "mean_row", 1.0001, first_phase.phase_one_is_a_step),
        (first_phase, "centre", 1.5, first_phase.centre_of_phase_one),
    ],
)
def test_a_wrong_constant_is_noticed(monkeypatch, module, name, factor, measure):
    assert judged(measure) is Verdict.HOLDS
    monkeypatch.setattr(module, name, scaled(getattr(module, name), factor))
    assert judged(measure) is Verdict.FAILS


def test_a_wrong_step_of_phase_one_is_noticed(monkeypatch):
    def longer(*args, **kwargs):
        phase = mh.phase_one(*args, **kwargs)
        return replace(phase, weights={**phase.weights, "U": phase.weights["U"] * (1 + 1e-7)})

    monkeypatch.setattr(first_phase, "phase_one", longer)
    assert judged(first_phase.phase_one_is_a_step) is Verdict.FAILS


def test_margins_that_depend_on_heads_are_noticed(monkeypatch):
    original = good_start.linearized_margins
    monkeypatch.setattr(
        good_start, "linearized_margins", lambda tokens, phase: original(tokens, phase) + 1e-9 * phase.counts.size
    )
    assert judged(good_start.linearized_model_separates) is Verdict.FAILS


def test_outputs_beyond_their_bound_are_noticed(monkeypatch):
    original = mh.proposition_2
    monkeypatch.setattr(
        good_start, "proposition_2", lambda *a, **k: replace(original(*a, **k), B_phi=0.7 * original(*a, **k).B_phi)
    )
    assert judged(good_start.outputs_are_bounded) is Verdict.FAILS


def test_heads_that_are_too_long_are_noticed(monkeypatch):
    original = mixtures.started

    def longer(*args, **kwargs):
        start = original(*args, **kwargs)
        return replace(start, phase=replace(start.phase, weights={"U": 8 * start.phase.weights["U"]}))

    monkeypatch.setattr(good_start, "started", longer)
    assert judged(good_start.heads_are_short) is Verdict.FAILS


def test_too_few_heads_are_not_judged(monkeypatch):
    original = mh.proposition_2
    monkeypatch.setattr(
        good_start, "proposition_2", lambda *a, **k: replace(original(*a, **k), heads=0.5 * original(*a, **k).heads)
    )
    assert judged(good_start.margin_with_many_heads) is Verdict.NOT_APPLICABLE


def test_margins_depend_on_alpha_through_the_mean_of_its_size():
    """As `margin_with_many_heads` takes it: heads of their own against two groups with the mean of |alpha|."""
    setting = good_start.STRONG
    tokens = setting.draw(5)
    alpha = np.random.default_rng(0).uniform(-1, 1, 7)
    c = mh.centre(mh.Mixture.of(tokens), tokens.info["oracle"])
    U = alpha[:, None, None] * np.tile(c, (setting.T, 1))
    weights = {"U": U, "W": np.zeros((7, setting.d, setting.d))}
    each = mh.PhaseOne(weights=weights, counts=np.ones(7), alpha=alpha, c=c)
    grouped = good_start.displaced(setting, np.zeros(setting.d), alpha=float(np.abs(alpha).mean()))
    np.testing.assert_allclose(
        mixtures.linearized_margins(tokens, each), mixtures.linearized_margins(tokens, grouped), rtol=1e-12
    )


def test_hostile_noise_keeps_to_its_bounds_and_costs_most():
    setting = mixtures.LOUD[0]
    hostile, random = setting.draw_hostile(20), setting.draw(500, kind="extreme")
    assert min(mixtures.assumption_3(mh.Mixture.of(hostile), hostile).values()) > -1e-12
    margins = [tokens.y * (tokens.x @ tokens.info["oracle"]).sum(1) for tokens in (hostile, random)]
    assert margins[0].max() < margins[1].min()


def test_the_constant_that_saturation_needs_does_not_depend_on_the_signal():
    constants = saturation.scale_with_small_signal(SMOKE, power=2).numbers["constant for S^2 by S"]
    assert len(constants) == 4
    np.testing.assert_allclose(list(constants.values()), constants[1.0], rtol=1e-6)


def test_tail_of_signs_is_that_of_simulation_and_of_enumeration():
    for H in (1, 2, 3, 6):
        sums = np.array([sum(1 if k >> h & 1 else -1 for h in range(H)) for k in range(2**H)])
        for level in (-0.5, 0.0, 0.5, 1.0, 1.9999, 2.0, 3.5, 6.0):
            assert good_start.two_sided_tail(H, level) == pytest.approx(np.mean(np.abs(sums) > level))
    large = good_start.two_sided_tail(1_000_000, 2000.0)
    assert large == pytest.approx(2 * norm.sf(2.0), rel=0.01)


def test_true_margin_beats_gamma_star_only_by_what_the_bound_gives_away():
    """Without noise and at the centre the bound of Eq. (7) is attained."""
    setting = mixtures.Setting(zeta=0.3, S=1.7, noise=0.0)
    tokens = setting.draw(50)
    phase = good_start.displaced(setting, np.zeros(setting.d))
    margins = mixtures.linearized_margins(tokens, phase)
    np.testing.assert_allclose(margins, mh.gamma_star(mh.Mixture.of(tokens), 0.0), rtol=1e-12)


def test_noise_beyond_its_bounds_shows_as_slack_below_zero():
    tokens = mixtures.LOUD[0].draw(50, kind="extreme")
    mixture = mh.Mixture.of(tokens)
    assert min(mixtures.assumption_3(mixture, tokens).values()) > -1e-12
    for name in ("Z_mu", "Z_nu"):
        assert min(mixtures.assumption_3(replace(mixture, **{name: 0.4}), tokens).values()) < -0.01


def test_requirement_of_section_5_3_by_hand():
    """T = 10, d = 4, M = 2, S = 2, zeta = eps = 0.1, n = 100, H = 5: written out."""
    mixture, shape = mh.Mixture(T=10, M=2, S=2.0, zeta=0.1), mh.Shape(T=10, d=4, R=2.0)
    wide = np.log(100) / (np.sqrt(5.0) * 2 * 0.9)
    tall = 8 * np.sqrt(6.0) / 12 * np.log(90)
    D, g = np.sqrt(wide**2 + 5 * tall**2), np.sqrt(wide**2 / 5 + tall**2)
    needed = 36 * np.sqrt(40) * 8 * (3 * 2 * 4 * (3 * D + g) + 1) * D**2
    found = section_5_3.least_requirement(shape, mixture, 0.1, 100, 5.0)
    assert found == pytest.approx(needed / np.sqrt(5), rel=1e-12)
