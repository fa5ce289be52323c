"""Claims on starts, stability and generalization: planted faults change verdicts; the machinery against other ways."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import attnlab as al
from attnlab.claims import Verdict
from attnlab.claims.multihead import expansion, generalization, population, realizable, tangent, two_phases
from attnlab.claims.scale import Scale
from attnlab.models.multihead import MultiHead
from attnlab.theory.multihead import GoodStart
from attnlab.theory.multihead.ntk import head_norms

SMOKE = Scale.SMOKE


def named(module, name):
    return next(claim for claim in module.CLAIMS if claim.id == name)


# The finite population --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_gradient_on_shares_is_that_of_the_written_out_set():
    p = population.signal_and_noise(0.5, 0.7, T=3)
    shares = p.draw(50, 2, seed=0)
    rng = np.random.default_rng(0)
    weights = {"U": rng.standard_normal((2, 2, 3, 2)), "W": rng.standard_normal((2, 2, 2, 2))}
    counts = np.array([3.0, 2.0])
    found = population.gradient(p, shares, weights, counts)
    model = MultiHead(5, counts=counts.tolist())
    tokens = p.tokens(shares[1], 50)
    assert tokens.n == 50
    one = {k: w[1] for k, w in weights.items()}
    mantissa, log_scale = model.gradient(tokens, one)
    for k in ("U", "W"):
        assert_allclose(found[k][1], mantissa[k] * np.exp(log_scale[k]), rtol=1e-10, atol=1e-14)
    assert_allclose(np.sum(shares * population.losses(p, weights, counts), -1)[1], model.loss(tokens, one), rtol=1e-12)


@pytest.mark.slow
def test_descent_is_descend():
    p = population.signal_and_noise()
    shares, counts = p.draw(12, 1, seed=1), np.array([6.0])
    final = population.last(p, shares, population.zero_start(p), counts, 0.5, 30)
    run = al.descend(p.tokens(shares[0], 12), al.gd(0.5), model=MultiHead(6), init="zeros", steps=30, record=None)
    for k in ("U", "W"):
        assert_allclose(final[k][0], run.weights[k], rtol=1e-9, atol=1e-14)


def test_left_out_shares():
    shares = np.array([[0.5, 0.5, 0.0]])
    found = population.with_left_out(shares, 4)
    assert_allclose(found[0], [[0.5, 0.5, 0.0], [0.25, 0.5, 0.0], [0.5, 0.25, 0.0], [0.5, 0.5, 0.0]])


def test_target_has_its_loss_and_distance():
    p = population.signal_and_noise()
    target = population.Target.at(p, 1.3)
    weights = target.weights(p, 7.0)
    each = population.losses(p, {k: w[None] for k, w in weights.items()}, np.array([7.0]))
    assert_allclose(each.max(), target.loss, rtol=1e-12)
    assert_allclose(np.sqrt(7 * (weights["U"] ** 2).sum()), 1.3)


def test_all_sets_of_two_sequences_are_listed():
    p = population.noisy_labels((1.0, 0.5))
    shares, chances = p.every_set(6)
    assert_allclose(chances.sum(), 1.0)
    assert_allclose(chances @ shares, [0.5, 0.5])
    assert len(shares) == 7
    large, far = p.every_set(10_000)
    assert_allclose(far.sum(), 1.0, rtol=1e-12)
    assert_allclose(far @ (large[:, 0] - 0.5) ** 2, 0.25 / 10_000, rtol=1e-9)
    with pytest.raises(ValueError, match="two sequences"):
        population.signal_and_noise().every_set(3)


def test_expected_gap_is_that_of_simulation_and_of_the_first_step():
    p, counts, step = population.noisy_labels((1.0,)), np.array([5.0]), 0.3
    gap, risk = population.expected_gap(p, 20, population.zero_start(p), counts, step, 1)
    # One step from zero moves the output by step m / 2, m the mean label; the gap is E[m output] / 2 to first order.
    assert_allclose(gap, step / (4 * 20), rtol=1e-2)
    shares = p.draw(20, 20_000, seed=0)
    final = population.losses(p, population.last(p, shares, population.zero_start(p), counts, step, 1), counts)
    drawn = final.mean(-1) - np.sum(shares * final, axis=-1)
    assert abs(drawn.mean() - gap) < 4 * drawn.std() / np.sqrt(20_000)
    assert_allclose(risk, final.mean(), rtol=1e-3)


def test_logistic_regression_is_the_model_on_one_token():
    H, step = 1e6, 0.07
    p = realizable.ONE_TOKEN
    final = population.last(p, np.ones((1, 1)), population.zero_start(p), np.array([H]), step, 50)
    assert_allclose(realizable.logistic_descent(step, 50), np.sqrt(H) * head_norms(final).max(), rtol=1e-12)
    outputs = population.output(p, final, np.array([H]))
    assert_allclose(realizable.logistic_descent(step, 50), outputs[0, 0], rtol=1e-12)


# Conditions -------------------------------------------------------------------------------------------------------


def test_conditions_are_met_and_missed():
    p = population.noisy_labels((1.0,))
    regime = generalization.Regime.of(p, 0.2, generalization.blind_loss(p, 0.2))
    assert generalization.met(regime.slack())
    for changes in ({"H": regime.H / 100}, {"step": 1.01 * regime.step}, {"K": 10 * regime.K}):
        assert not generalization.met(generalization.Regime(**{**vars(regime), **changes}).slack())


def test_a_target_that_moves_attention_alone_says_nothing():
    p = population.noisy_labels((1.0, 0.5))
    assert_allclose(generalization.blind_loss(p, 3.0), np.log(2.0), rtol=1e-12)


def test_assumption_2_is_measured():
    good = realizable.Realizable(population=population.two_lengths((1.0, 0.5), 0.5), least=0.1)
    assert good.assumption_2(100.0) <= 1.0
    assert good.assumption_2(100.0) > 0.9
    short = realizable.Realizable(population=good.population, least=0.1)
    object.__setattr__(short, "actual", lambda eps: 0.9 * good.actual(eps))
    assert short.assumption_2(100.0) > 1.0


def test_good_starts_have_the_constants_of_the_report():
    from attnlab.reports import good_initialization

    p = population.two_lengths((1.0,), 0.5)
    tokens = al.Tokens.self_attention(p.x, p.y)
    for weights, counts in realizable.starts(p, 2.0).values():
        measured = realizable.good_start(p, weights, counts)
        again = good_initialization(tokens, MultiHead(10**6, counts=(counts * 5e5).tolist()), weights).start
        assert again is not None
        assert_allclose([measured.B2, measured.B_phi], [again.B2, again.B_phi], rtol=1e-9)
        assert_allclose(measured.gamma, again.gamma, rtol=1e-3)


# Verdicts ---------------------------------------------------------------------------------------------------------


FAST = [
    (tangent, "multihead-C-NTK"),
    (tangent, "multihead-C-P7"),
    (tangent, "multihead-E3"),
    (generalization, "multihead-C-L3"),
    (generalization, "multihead-C-T2"),
    (generalization, "multihead-E11"),
    (expansion, "multihead-C-19"),
    (realizable, "multihead-C-C2g"),
    (realizable, "multihead-C-C4"),
    (realizable, "multihead-E3-cor"),
]
SLOW = [
    (generalization, "multihead-C-L11"),
    (realizable, "multihead-C-C2"),
    (realizable, "multihead-C-C3"),
    (two_phases, "multihead-C-GAP"),
]


@pytest.mark.parametrize(("module", "name"), [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)])
def test_verdict_is_the_one_on_record(module, name):
    claim = named(module, name)
    assert claim.measure(SMOKE).verdict is claim.expected


def test_a_wrong_margin_is_noticed(monkeypatch):
    monkeypatch.setattr(tangent, "gamma_star", lambda *a, **k: 1e3)
    assert tangent.margin_brackets(SMOKE).verdict is Verdict.FAILS


def test_a_loose_bracket_is_noticed(monkeypatch):
    original = tangent.ntk_margin
    monkeypatch.setattr(
        tangent, "ntk_margin", lambda *a: replace(original(*a), lower=0.99 * original(*a).lower, upper=np.inf)
    )
    assert tangent.margin_brackets(SMOKE).verdict is Verdict.FAILS


def test_a_shorter_move_is_noticed(monkeypatch):
    """The target then misses its loss, or fewer heads are taken than are asked for."""
    monkeypatch.setattr(GoodStart, "move", lambda self, eps: -float(np.log(eps)) / (2 * self.gamma) + 0.1)
    assert not tangent.target_exists(SMOKE).verdict.stands


def test_printed_distance_is_out_of_reach_in_closed_form():
    """n = 1, zero start: the output is (2 + log 1/eps) / sqrt 2 at best, up to a term that vanishes with many heads."""
    printed = tangent.reachable(SMOKE, printed=True)
    assert printed.verdict is Verdict.FAILS
    assert printed.worst is not None
    least = np.log1p(np.exp(-(2 + np.log(1e4)) / np.sqrt(2))) / 1e-4
    assert printed.worst <= least <= 1.2 * printed.worst
    assert printed.worst > 1.5


def tightness(outcome, words):
    (only,) = [part.tightness for part in outcome.parts if words in part.name]
    assert only is not None
    return only


def test_a_first_step_adds_the_slope_of_the_sequence_that_is_left_out():
    """One token with either label: step / (2 n) is added, (step / n) beta1 log 2 is allowed."""
    bound = generalization.Bound("growth")
    regime = generalization.noisy_regime()
    generalization.add_growth(bound, regime, n=10, sets=2)
    assert regime.K == 1
    beta1 = 2 * (3 * 0.16 + regime.g) + 1
    assert_allclose(bound.tightness, 0.5 / (beta1 * np.log(2)), rtol=1e-12)


def test_both_branches_of_expansiveness_are_close_to_their_bound():
    found = expansion.expansiveness(SMOKE)
    assert tightness(found, "small steps") > 0.3
    assert tightness(found, "large steps") > 0.7


def test_at_the_saddle_curvature_is_what_the_loss_of_zero_gives():
    """beta3 = 2 sqrt(2) there, the true curvature sqrt(2) / 2 and the loss log 2."""
    growth, curved, _ = expansion.one_step(*expansion.saddle())
    assert_allclose((growth - 1.0)[0] / 0.05, np.sqrt(2) / 2, rtol=1e-4)
    assert_allclose(curved[0], 2 * np.sqrt(2) * np.log(2), rtol=1e-4)


def test_bounds_on_gaps_are_far_from_tight_and_say_so():
    """What one token with noisy labels gives to first order, step^2 / (4 (8 log 2 step + 9 D^2)) for K = 1."""
    found = generalization.generalization_bound(SMOKE)
    assert found.verdict is Verdict.LOOSE
    row = found.numbers["n = 20000"]["T = 1, D = 0.16"]
    assert row["K"] == 1
    by_hand = row["step"] ** 2 / (4 * (8 * np.log(2) * row["step"] + 9 * 0.16**2))
    assert_allclose(row["gap"] / row["bound"], by_hand, rtol=1e-3)
    assert 5e-4 < tightness(found, "one token") < 1e-3


def test_long_runs_reach_where_bounds_speak():
    case = realizable.Realizable(population=realizable.ONE_TOKEN, least=0.5)
    K = case.speaks_from()
    assert not case.bounds(float(K), 1, 36.0)[1].train.vacuous
    assert case.bounds(K / 2.0, 1, 36.0)[1].train.vacuous


def test_padding_keeps_the_sequences():
    tokens = two_phases.draw(3, seed=0, trials=2)
    more = two_phases.padded(tokens, 5)
    assert more.n == 5
    assert (more.x[:, :3] == tokens.x).all()
    assert not more.x[:, 3:].any()


@pytest.mark.slow
def test_padded_training_is_training():
    tokens = two_phases.draw(3, seed=0, trials=2)
    start, counts = two_phases.starts(2)
    model = MultiHead(two_phases.HEADS, counts=counts)
    plain = al.descend(tokens, al.gd(0.2), model=model, init=start, steps=20, record=None)
    padded = al.descend(two_phases.padded(tokens, 6), al.gd(0.4), model=model, init=start, steps=20, record=None)
    for k in ("U", "W"):
        assert_allclose(plain.weights[k], padded.weights[k], rtol=1e-9, atol=1e-14)
    one = {k: plain.weights[k][1] for k in ("U", "W")}
    assert_allclose(two_phases.mean_loss(tokens[1], one, counts), model.loss(tokens[1], one), rtol=1e-12)
