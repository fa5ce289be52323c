"""Claims on starts, stability and generalization: planted faults change verdicts; the machinery against other ways."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import attnlab as al
from attnlab.claims import Verdict
from attnlab.claims.multihead import generalization, population, realizable, tangent, two_phases
from attnlab.claims.scale import Scale
from attnlab.data.mixture import tokenized_mixture
from attnlab.models.multihead import MultiHead
from attnlab.theory.multihead import GoodStart

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


# Verdicts ---------------------------------------------------------------------------------------------------------


FAST = [
    (tangent, "multihead-C-NTK"),
    (tangent, "multihead-C-P7"),
    (tangent, "multihead-E3"),
    (generalization, "multihead-C-L3"),
    (generalization, "multihead-C-T2"),
    (generalization, "multihead-E11"),
    (realizable, "multihead-C-C4"),
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
    monkeypatch.setattr(tangent, "ntk_margin", lambda *a: original(*a, tolerance=1e-8).__class__(
        **{**vars(original(*a)), "upper": 1.01 * original(*a).upper}))  # fmt: skip
    assert tangent.margin_brackets(SMOKE).verdict is Verdict.FAILS


def test_a_shorter_move_misses_the_target(monkeypatch):
    monkeypatch.setattr(GoodStart, "move", lambda self, eps: -float(np.log(eps)) / (2 * self.gamma) + 0.1)
    assert tangent.target_exists(SMOKE).verdict is Verdict.FAILS


def test_printed_distance_fails_for_one_sequence_alone():
    printed = tangent.reachable(SMOKE, printed=True)
    assert printed.verdict is Verdict.FAILS
    assert printed.worst is not None
    assert printed.worst > 1.5
    ratios = printed.numbers["least loss within G over eps"]
    assert ratios["T = 1, d = 1, eps = 0.001"] > 1.5


def test_printed_distance_is_out_of_reach_in_closed_form():
    """T = 1: the output is |U| |x| at best, so the least loss within G is log(1 + exp(-(2 + log 1/eps) / sqrt 2))."""
    ratios = tangent.reachable(SMOKE, printed=True).numbers["least loss within G over eps"]
    least = np.log1p(np.exp(-(2 + np.log(1e4)) / np.sqrt(2))) / 1e-4
    assert ratios["T = 1, d = 1, eps = 0.0001"] <= least <= 1.2 * ratios["T = 1, d = 1, eps = 0.0001"]


def test_a_smaller_factor_breaks_the_recursion(monkeypatch):
    from attnlab.theory.multihead.bounds import Shape

    original = Shape.beta1
    monkeypatch.setattr(Shape, "beta1", lambda self, m: 0.01 * original(self, m))
    assert generalization.recursion(SMOKE, printed=False) > 1.0


def test_expansiveness_is_nearly_attained_and_needs_the_curvature(monkeypatch):
    from attnlab.theory.multihead.bounds import Shape

    assert 0.99 < generalization.expansiveness(SMOKE) <= 1.0
    monkeypatch.setattr(Shape, "beta3", lambda self, m: 0.0)
    monkeypatch.setattr(Shape, "beta2", lambda self, m, H: 0.0)
    assert generalization.expansiveness(SMOKE) > 1.0


def test_a_smaller_bound_is_broken(monkeypatch):
    bound = generalization.theorem_2

    def tiny(*args, **options):
        return type(bound(*args, **options))(value=1e-12, trivial=1.0)

    monkeypatch.setattr(generalization, "theorem_2", tiny)
    assert generalization.generalization_bound(SMOKE).verdict is Verdict.FAILS


def test_bounds_that_say_nothing_are_called_so(monkeypatch):
    monkeypatch.setattr(generalization, "COIN", 1e-6)
    monkeypatch.setattr(generalization.Regime, "slack", lambda self: {"none": 1.0})
    real = generalization.Regime.of(1.45, sharp=True, K=10)
    monkeypatch.setattr(generalization.Regime, "of", classmethod(lambda cls, *a, **k: real))
    assert generalization.generalization_bound(SMOKE).verdict is Verdict.VACUOUS


def test_padding_keeps_the_sequences():
    tokens = tokenized_mixture(n=3, trials=2)
    more = two_phases.padded(tokens, 5)
    assert more.n == 5
    assert (more.x[:, :3] == tokens.x).all()
    assert not more.x[:, 3:].any()


@pytest.mark.slow
def test_padded_training_is_training():
    tokens = tokenized_mixture(n=3, trials=2)
    start, counts = two_phases.starts(2)
    model = MultiHead(two_phases.HEADS, counts=counts)
    plain = al.descend(tokens, al.gd(0.2), model=model, init=start, steps=20, record=None)
    padded = al.descend(two_phases.padded(tokens, 6), al.gd(0.4), model=model, init=start, steps=20, record=None)
    for k in ("U", "W"):
        assert_allclose(plain.weights[k], padded.weights[k], rtol=1e-9, atol=1e-14)
    one = {k: plain.weights[k][1] for k in ("U", "W")}
    assert_allclose(two_phases.mean_loss(tokens[1], one, counts), model.loss(tokens[1], one), rtol=1e-12)


def test_good_starts_have_the_constants_of_the_report():
    from attnlab.theory.multihead.report import good_initialization

    p = population.signal_and_noise()
    tokens = al.Tokens.self_attention(p.x, p.y)
    for weights, counts in realizable.starts(p, 2.0).values():
        found = realizable.constants(tokens, weights, counts)
        again = good_initialization(tokens, MultiHead(10**6, counts=(counts * 5e5).tolist()), weights).start
        assert again is not None
        assert_allclose([found.B2, found.B_phi, found.gamma], [again.B2, again.B_phi, again.gamma], rtol=1e-9)
