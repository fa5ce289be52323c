"""Claims on gradients and curvature of multi-head attention: verdicts, oracles, and whether planted faults show."""

import numpy as np
import pytest

from attnlab.claims.check import check
from attnlab.claims.multihead import (
    conditions,
    curvature,
    curvature_errata,
    derivatives,
    gradients,
    lemma_1,
    phase_one_lemmas,
)
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Verdict
from attnlab.models import MultiHead
from attnlab.theory import multihead as mh

SMOKE = Scale.SMOKE
EVERY = [c for module in (gradients, curvature, curvature_errata, phase_one_lemmas) for c in module.CLAIMS]
SLOW = ("multihead-C-L1", "multihead-C-L5")


def judged(measure, **options):
    return measure(SMOKE, **options).verdict


def parts(measure, **options):
    return {part.name: part for part in measure(SMOKE, **options).parts}


@pytest.mark.parametrize(
    "claim", [pytest.param(c, id=c.id, marks=[pytest.mark.slow] if c.id in SLOW else []) for c in EVERY]
)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome
    assert all(slack >= -1e-9 for slack in found.outcome.slack.values())
    assert not any(part.unsolved for part in found.outcome.parts)


def slow_head(x, U, W):
    """One head on one sequence, entry by entry."""
    T = len(x)
    total = 0.0
    for t in range(T):
        weights = np.exp([float(x[t] @ W @ x[s]) for s in range(T)])
        total += sum(weights[s] / weights.sum() * float(U[t] @ x[s]) for s in range(T))
    return total


def differences(function, at, h):
    """Gradient by central differences."""
    steps = h * np.eye(at.size)
    return np.array([(function(at + e) - function(at - e)) / (2 * h) for e in steps])


def test_closed_forms_against_loops_and_differences():
    T, d = 3, 2
    rng = np.random.default_rng(0)
    x, theta = rng.standard_normal((T, d)), rng.standard_normal(T * d + d * d)

    def value(at):
        return slow_head(x, at[: T * d].reshape(T, d), at[T * d :].reshape(d, d))

    def slope(at):
        return derivatives.head(x, at[: T * d].reshape(T, d), at[T * d :].reshape(d, d)).gradient

    found = derivatives.head(x, theta[: T * d].reshape(T, d), theta[T * d :].reshape(d, d))
    assert found.value == pytest.approx(value(theta), rel=1e-13)
    np.testing.assert_allclose(found.gradient, differences(value, theta, 1e-6), atol=1e-8)
    np.testing.assert_allclose(found.hessian, differences(slope, theta, 1e-6), atol=1e-8)


def per_head(dense, H, sizes):
    """From all U, then all W, to head after head."""
    U, W = sizes
    order = [i for h in range(H) for i in (*range(h * U, h * U + U), *range(H * U + h * W, H * U + (h + 1) * W))]
    return dense[np.ix_(order, order)]


@pytest.mark.slow
def test_loss_against_automatic_differentiation():
    draws = derivatives.draw(4, 5, 2, 3, 2, seed=5)
    found, model = derivatives.loss(draws), MultiHead(2)
    np.testing.assert_allclose(derivatives.loss_value(draws), found.value, rtol=1e-13)
    for i in range(4):
        tokens, weights = draws.tokens(i), {"U": draws.U[i], "W": draws.W[i]}
        assert found.value[i] == pytest.approx(float(model.loss(tokens, weights)), rel=1e-12)
        wanted = per_head(model.hessian(tokens, weights), 2, (6, 4))
        np.testing.assert_allclose(found.hessian[i], wanted, atol=1e-11 * np.abs(wanted).max())
        m, s = model.gradient(tokens, weights)
        flat = np.concatenate([np.concatenate([(m[k] * np.exp(s[k]))[h].ravel() for k in ("U", "W")]) for h in (0, 1)])
        np.testing.assert_allclose(found.gradient[i], flat, atol=1e-11 * np.abs(flat).max())


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["pooling", "last"])
def test_decoders_against_automatic_differentiation(decoder):
    rng = np.random.default_rng(2)
    x, u, W = rng.standard_normal((1, 3, 2)), rng.standard_normal(2), rng.standard_normal((2, 2))
    rows = np.ones(3) if decoder == "pooling" else np.eye(3)[-1]
    found = derivatives.decoded(derivatives.head(x[0], np.outer(rows, u), W), 3, 2, decoder)
    tokens = derivatives.Draws(x[None], np.ones((1, 1)), np.zeros((1, 1, 3, 2)), W[None, None]).tokens(0)
    weights = {"U": u, "W": W}
    wanted = MultiHead(1, decoder).hessian(tokens, weights, of="output")
    np.testing.assert_allclose(found.hessian, wanted, atol=1e-13)
    features = MultiHead(1, decoder).features(tokens, weights)
    np.testing.assert_allclose(found.gradient, np.concatenate([features[k].ravel() for k in ("U", "W")]), atol=1e-13)


def test_closed_forms_do_not_cancel_when_saturated():
    """Two tokens, all weight on one: covariance is p (1 - p) (x_1 - x_2)^2, far below rounding of the tokens."""
    x = np.array([[1.0, 1e3], [1.0, -1e3]])
    W = np.array([[0.0, 0.05], [0.0, 0.0]])  # logits +-50
    found = derivatives.head(x, np.array([[0.0, 1.0], [0.0, 1.0]]), W)
    spread = np.exp(-100.0) * (2e3) ** 2
    np.testing.assert_allclose(found.gradient[4 + 1], 2 * spread, rtol=1e-10)  # by W_01: sum_t x_t0 cov(u x, x_1)


# Close instances --------------------------------------------------------------------------------------------------


def test_tokens_in_line_by_hand():
    """Two tokens +-3 v: attention of the first query is (e^t, e^-t), and all of the output comes from tanh."""
    draws = derivatives.in_line([1.0, -1.0], 4, 3.0, np.array([[0.7]]), np.array([[2.0]]))
    np.testing.assert_allclose(draws.x[0, 0], [[1.5] * 4, [-1.5] * 4])
    assert draws.longest_U[0] == pytest.approx(2.0)
    assert draws.R[0] == pytest.approx(3.0)
    weights = np.exp([0.7, -0.7])
    np.testing.assert_allclose(mh.attention_of(draws.x[0, 0], draws.W[0, 0])[0], weights / weights.sum())
    assert derivatives.outputs(draws)[0, 0] == pytest.approx(2 * np.sqrt(2) * 3 * np.tanh(0.7))


def test_each_term_of_proposition_1_is_nearly_attained():
    """Third moments of a sign are at most 8 sqrt(3) / 18 = 0.77, so the term with U is attained up to 0.77 / 6."""
    found = parts(gradients.one_head_is_bounded)
    assert found["|grad_U F| / bound"].tightness == pytest.approx(1.0)
    assert found["|grad_W F| / bound"].tightness == pytest.approx(0.5)
    assert found["|hess F| / bound"].tightness == pytest.approx(0.5)
    for name in ("|hess F| / bound, long U", "|hess F| / bound in R, long U"):
        assert found[name].tightness == pytest.approx(8 * np.sqrt(3) / 18 / 6, rel=1e-2)


def test_least_eigenvalue_of_many_heads_is_that_of_the_dense_hessian():
    draws = curvature.unit_heads(3, 16)
    parts_of = derivatives.pieces(draws)
    dense = np.linalg.eigvalsh(derivatives.loss(draws).hessian)[:, 0]
    sparse = [
        curvature.HessianOfHeads(f, b).least_eigenvalue for f, b in zip(parts_of.factors, parts_of.blocks, strict=True)
    ]
    np.testing.assert_allclose(sparse, dense, rtol=1e-9)


# Two transcriptions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("T", "d", "R"), [(2, 3, 1.0), (7, 2, 2.5)])
def test_conditions_are_those_of_the_theory(T, d, R):
    """What chooses instances and what checks them were written apart; they agree to the last digits."""
    shape, sharp = mh.Shape(T=T, d=d, R=R), mh.Shape(T=T, d=d, R=R, sharp=True)
    m, H, D, g = 0.7, 50.0, 1.3, 0.2
    assert conditions.beta_1(T, R, m) == pytest.approx(shape.beta1(m), rel=1e-13)
    assert conditions.beta_2(T, d, R, m, H) == pytest.approx(shape.beta2(m, H), rel=1e-13)
    assert conditions.beta_3(T, d, R, m) == pytest.approx(shape.beta3(m), rel=1e-13)
    assert conditions.sharp_beta_1(T, R, m) == pytest.approx(sharp.beta1(m), rel=1e-13)
    assert conditions.sharp_beta_3(T, R, m) == pytest.approx(sharp.beta3(m), rel=1e-13)
    assert conditions.root_of_heads(T, d, R, D, g) ** 2 == pytest.approx(mh.head_requirement(shape, D, g), rel=1e-13)
    assert conditions.sharp_root_of_heads(T, R, D, g) ** 2 == pytest.approx(mh.head_requirement(sharp, D, g), rel=1e-13)
    assert conditions.rho(T, d, R, D, g, H) == pytest.approx(mh.smoothness(shape, D, g, H), rel=1e-13)
    assert conditions.sharp_rho(T, R, D, g, H) == pytest.approx(mh.smoothness(sharp, D, g, H), rel=1e-13)
    start = mh.GoodStart(B2=1.5, B_phi=2.0, gamma=0.5)
    needed = conditions.root_of_heads_98(T, d, R, 1.5, 2.0, 0.5, 0.01)
    assert needed**2 == pytest.approx(mh.proposition_7(shape, start, 0.01), rel=1e-13)


def test_deviation_of_lemma_14_by_hand():
    """T = 4, S = R = 2, P = 0.5, delta = 1/e, H = 8: 2 (2 * 8 * 4 * 2.5 + 2 * 2) sqrt(2 / 8) = 164."""
    mixture = mh.Mixture(T=4, M=2, S=2.0, zeta=0.5)
    assert pytest.approx(2.0) == mixture.R
    assert phase_one_lemmas.deviation(mixture, 0.5, np.exp(-1.0), 8) == pytest.approx(164.0)


def test_probability_of_leaving_by_counting():
    """Of three signs, the sum is 1 or -1 six times in eight, else 3 or -3."""
    assert phase_one_lemmas.leaves(3, 0.5) == pytest.approx(1.0)
    assert phase_one_lemmas.leaves(3, 1.0) == pytest.approx(0.25)
    assert phase_one_lemmas.leaves(3, 3.0) == pytest.approx(0.0)
    assert phase_one_lemmas.leaves(2, 0.0) == pytest.approx(0.5)


# Wrong formulas ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no square", "by_W", "by_W_of_by_U", "by_W_twice"])
def test_wrong_formulas_of_lemma_1_are_noticed(monkeypatch, fault):
    if fault == "no square":  # the Jacobian without its second term
        monkeypatch.setattr(lemma_1, "jacobians", lambda x, W: mh.attention_of(x, W)[..., None] * np.eye(x.shape[-2]))
    else:
        original = getattr(lemma_1, fault)
        monkeypatch.setattr(lemma_1, fault, lambda *args: (1 + 1e-5) * original(*args))
    assert judged(lemma_1.derivatives_are_those_of_the_lemma) is Verdict.FAILS


@pytest.mark.parametrize(
    ("field", "factor", "sharp"),
    [
        ("gradient", 0.99, False),
        ("by_U", 0.99, False),
        ("by_W", 0.49, False),
        ("hessian", 0.49, False),
        ("gradient", 0.99, True),
        ("by_W", 0.99, True),
        ("hessian", 0.99, True),
    ],
)
def test_bounds_of_one_head_that_are_too_small_are_noticed(monkeypatch, field, factor, sharp):
    assert judged(gradients.one_head_is_bounded, sharp=sharp) is Verdict.HOLDS

    def smaller(*args, **options):
        found = mh.token_bounds(*args, **options)
        object.__setattr__(found, field, factor * getattr(found, field))
        return found

    monkeypatch.setattr(gradients, "token_bounds", smaller)
    assert judged(gradients.one_head_is_bounded, sharp=sharp) is Verdict.FAILS


def shrink(monkeypatch, module, which, factor):
    """beta1 (0) or beta3 (1) of a module times a factor."""
    original = module.betas

    def smaller(*args, **options):
        found = list(original(*args, **options))
        found[which] = factor * found[which]
        return found

    monkeypatch.setattr(module, "betas", smaller)


@pytest.mark.parametrize(("which", "factor"), [(0, 0.99), (1, 0.99)])
def test_bounds_of_other_decoders_that_are_too_small_are_noticed(monkeypatch, which, factor):
    shrink(monkeypatch, gradients, which, factor)
    assert judged(gradients.other_decoders_are_bounded) is Verdict.FAILS


@pytest.mark.parametrize(("which", "factor"), [(0, 0.95), (1, 0.7)])
def test_bounds_of_the_loss_that_are_too_small_are_noticed(monkeypatch, which, factor):
    shrink(monkeypatch, curvature, which, factor)
    assert judged(curvature.loss_is_bounded) is Verdict.FAILS


def test_the_bound_without_its_dimension_is_not_that_of_the_paper():
    """A shape without sqrt(T) is noticed by the pooled decoder, whose gradients grow with T."""
    draws = derivatives.draw(60, 1, 1, 4, 3)
    found = derivatives.head(draws.x[:, 0], np.repeat(draws.U[:, 0, :1], 4, 1), draws.W[:, 0])
    gradient, _ = gradients.norms(derivatives.decoded(found, 4, 3, "pooling"))
    beta1, _ = gradients.betas(draws, np.linalg.norm(draws.U[:, 0, 0], axis=-1), decoder="last")
    assert (gradient / beta1).max() > 1.5


def test_curvature_that_does_not_fall_with_heads_is_noticed(monkeypatch):
    original = curvature.relative_curvature

    def flat(scale):
        heads, curved, allowed = original(scale)
        root = np.sqrt(heads)[:, None]
        return heads, curved * root, allowed * root

    monkeypatch.setattr(curvature, "relative_curvature", flat)
    assert judged(curvature.least_eigenvalue_shrinks) in (Verdict.FAILS, Verdict.TOO_FEW)


def test_segments_that_are_too_long_are_not_judged(monkeypatch):
    """Segments 100 times too long miss the condition; between their ends the loss can indeed be large."""
    original = curvature.longest_allowed
    monkeypatch.setattr(curvature, "longest_allowed", lambda *a, **k: 100 * original(*a, **k))
    outcome = curvature.loss_is_quasi_convex_nearby(SMOKE)
    assert min(outcome.slack.values()) < 0
    assert outcome.verdict is Verdict.UNSOLVED
    monkeypatch.setattr(curvature, "slack_of_18", lambda draws, *a, **k: np.zeros(len(draws.x)))
    assert judged(curvature.loss_is_quasi_convex_nearby) is Verdict.FAILS


def test_segment_through_zero_by_hand():
    draws = curvature_errata.there_and_back(np.array([0.7]))
    assert derivatives.outputs(draws)[0, 0] == pytest.approx(np.sqrt(2) * 0.7 * np.tanh(0.7))
    turned = draws._replace(U=-draws.U, W=-draws.W)
    np.testing.assert_allclose(derivatives.outputs(turned), derivatives.outputs(draws), rtol=1e-14)


def test_moved_draws_move_over_all_heads():
    draws = derivatives.draw(3, 2, 4, 3, 2)
    by = np.random.default_rng(0).standard_normal((3, 4, 10))
    by /= np.sqrt(np.sum(by**2, (-2, -1), keepdims=True))
    after = draws.moved(by, np.array([0.1, 1.0, 10.0]))
    moved = np.sqrt(np.sum((after.U - draws.U) ** 2, (1, 2, 3)) + np.sum((after.W - draws.W) ** 2, (1, 2, 3)))
    np.testing.assert_allclose(moved, [0.1, 1.0, 10.0], rtol=1e-9)
