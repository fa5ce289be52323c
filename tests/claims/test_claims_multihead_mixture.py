"""Claims of section 5 of the multi-head paper: verdicts, and whether a planted fault is noticed."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.multihead import first_phase, mixture_margins, mixtures, saturation
from attnlab.claims.scale import Scale
from attnlab.theory import multihead as mh

MODULES = (saturation, mixture_margins, first_phase)
EVERY = [claim for module in MODULES for claim in module.CLAIMS]
SMOKE = Scale.SMOKE


@pytest.mark.parametrize("claim", EVERY, ids=lambda claim: claim.id)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome
    assert all(slack >= -1e-12 for slack in found.outcome.slack.values())


def test_proposition_3_passes_18_of_18():
    outcome = saturation.attention_expresses(SMOKE)
    assert outcome.numbers["passed"] == "18 of 18"
    masses = [found["mass / eps"] for found in outcome.numbers["ratios"].values()]
    assert max(masses) > 0.1  # off-relevant attention is there to be seen


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
        (mixture_margins, "head_requirement", 1e-14, mixture_margins.no_target_is_feasible),
        (first_phase, "gamma_star", 1.5, first_phase.linearized_model_separates),
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
        found = mh.phase_one(*args, **kwargs)
        return replace(found, weights={**found.weights, "U": found.weights["U"] * (1 + 1e-8)})

    monkeypatch.setattr(first_phase, "phase_one", longer)
    assert judged(first_phase.phase_one_is_a_step) is Verdict.FAILS


def test_margins_that_depend_on_heads_are_noticed(monkeypatch):
    original = first_phase.linearized_margins
    monkeypatch.setattr(
        first_phase, "linearized_margins", lambda tokens, phase: original(tokens, phase) + 1e-9 * phase.counts.size
    )
    assert judged(first_phase.linearized_model_separates) is Verdict.FAILS


def test_outputs_beyond_their_bound_are_noticed(monkeypatch):
    original = mh.proposition_2
    monkeypatch.setattr(
        first_phase, "proposition_2", lambda *a, **k: replace(original(*a, **k), B_phi=0.03 * original(*a, **k).B_phi)
    )
    assert judged(first_phase.outputs_are_bounded) is Verdict.FAILS


def test_heads_that_are_too_long_are_noticed(monkeypatch):
    original = mixtures.started

    def longer(*args, **kwargs):
        found = original(*args, **kwargs)
        return replace(found, phase=replace(found.phase, weights={"U": 8 * found.phase.weights["U"]}))

    monkeypatch.setattr(first_phase, "started", longer)
    assert judged(first_phase.heads_are_short) is Verdict.FAILS


def test_tail_of_signs_is_that_of_simulation_and_of_enumeration():
    for H in (1, 2, 3, 6):
        sums = np.array([sum(1 if k >> h & 1 else -1 for h in range(H)) for k in range(2**H)])
        for level in (-0.5, 0.0, 0.5, 1.0, 1.9999, 2.0, 3.5, 6.0):
            assert first_phase.two_sided_tail(H, level) == pytest.approx(np.mean(np.abs(sums) > level))
    large = first_phase.two_sided_tail(1_000_000, 2000.0)
    assert large == pytest.approx(2 * norm.sf(2.0), rel=0.01)


def test_true_margin_beats_gamma_star_only_by_what_the_bound_gives_away():
    """Without noise and at the centre the bound of Eq. (7) is attained."""
    setting = mixtures.Setting(zeta=0.3, S=1.7, noise=0.0)
    tokens = setting.draw(50)
    phase = first_phase.within_P(setting, 0.0, seed=0)
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
    found = mixture_margins.least_requirement(shape, mixture, 0.1, 100, 5.0)
    assert found == pytest.approx(needed / np.sqrt(5), rel=1e-12)
