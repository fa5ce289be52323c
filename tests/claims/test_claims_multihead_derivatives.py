"""Claims on gradients and curvature of multi-head attention: verdicts, oracles, and whether planted faults show."""

import numpy as np
import pytest

from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.multihead import curvature, derivatives, gradients
from attnlab.claims.scale import Scale
from attnlab.models import MultiHead
from attnlab.theory import multihead as mh

SMOKE = Scale.SMOKE
EVERY = [claim for module in (gradients, curvature) for claim in module.CLAIMS]


def judged(measure, **options):
    return measure(SMOKE, **options).verdict


COMPILED = [pytest.param(claim, marks=pytest.mark.slow, id=claim.id) for claim in EVERY if claim.id == "multihead-C-L1"]
PLAIN = [pytest.param(claim, id=claim.id) for claim in EVERY if claim.id != "multihead-C-L1"]


@pytest.mark.parametrize("claim", COMPILED + PLAIN)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome
    assert all(slack >= -1e-12 for slack in found.outcome.slack.values())


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


# Planted faults ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no square", "by_W", "by_W_of_by_U", "by_W_twice"])
def test_wrong_formulas_of_lemma_1_are_noticed(monkeypatch, fault):
    if fault == "no square":  # the Jacobian without its second term
        monkeypatch.setattr(gradients, "jacobians", lambda x, W: mh.attention_of(x, W)[..., None] * np.eye(x.shape[-2]))
    else:
        original = getattr(gradients, fault)
        monkeypatch.setattr(gradients, fault, lambda *args: (1 + 1e-5) * original(*args))
    assert judged(gradients.derivatives_are_those_of_the_lemma) is Verdict.FAILS


@pytest.mark.parametrize(
    ("field", "factor", "sharp"),
    [("gradient", 0.99, False), ("by_U", 0.99, False), ("by_W", 0.25, False), ("hessian", 0.3, False),
     ("gradient", 0.99, True), ("by_W", 0.5, True), ("hessian", 0.9, True)],
)  # fmt: skip
def test_bounds_of_one_head_that_are_too_small_are_noticed(monkeypatch, field, factor, sharp):
    assert judged(gradients.one_head_is_bounded, sharp=sharp) is Verdict.HOLDS

    def smaller(*args, **options):
        found = mh.token_bounds(*args, **options)
        object.__setattr__(found, field, factor * getattr(found, field))
        return found

    monkeypatch.setattr(gradients, "token_bounds", smaller)
    assert judged(gradients.one_head_is_bounded, sharp=sharp) is Verdict.FAILS


@pytest.mark.parametrize(("which", "factor"), [(0, 0.9), (1, 0.7)])
def test_bounds_of_other_decoders_that_are_too_small_are_noticed(monkeypatch, which, factor):
    original = gradients.betas

    def smaller(*args, **options):
        found = list(original(*args, **options))
        found[which] = factor * found[which]
        return found

    monkeypatch.setattr(gradients, "betas", smaller)
    assert judged(gradients.other_decoders_are_bounded) is Verdict.FAILS


@pytest.mark.parametrize(("which", "factor"), [(0, 0.5), (1, 0.4)])
def test_bounds_of_the_loss_that_are_too_small_are_noticed(monkeypatch, which, factor):
    original = curvature.betas

    def smaller(*args, **options):
        found = list(original(*args, **options))
        found[which] = factor * found[which]
        return found

    monkeypatch.setattr(curvature, "betas", smaller)
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
        curved, beta3 = original(scale)
        return curved * np.sqrt(curvature.MANY)[:, None], beta3

    monkeypatch.setattr(curvature, "relative_curvature", flat)
    assert judged(curvature.least_eigenvalue_shrinks) is Verdict.FAILS
    assert judged(curvature.least_eigenvalue_rises) is Verdict.FAILS


def test_segments_that_are_too_long_are_noticed(monkeypatch):
    """Segments 100 times too long have no room, and the loss between their ends can be large."""
    original = curvature.longest_allowed
    monkeypatch.setattr(curvature, "longest_allowed", lambda *a, **k: 100 * original(*a, **k))
    outcome = curvature.loss_is_quasi_convex_nearby(SMOKE)
    assert min(outcome.slack.values()) < 0
    assert outcome.worst is not None
    assert outcome.worst > 4 / 3


def test_segment_through_zero_by_hand():
    draws = curvature.there_and_back(np.array([0.7]))
    assert derivatives.outputs(draws)[0, 0] == pytest.approx(2 * 0.7 * np.tanh(0.7))
    turned = draws._replace(U=-draws.U, W=-draws.W)
    np.testing.assert_allclose(derivatives.outputs(turned), derivatives.outputs(draws), rtol=1e-14)


def test_moved_draws_move_over_all_heads():
    draws = derivatives.draw(3, 2, 4, 3, 2)
    by = np.random.default_rng(0).standard_normal((3, 4, 10))
    by /= np.sqrt(np.sum(by**2, (-2, -1), keepdims=True))
    after = draws.moved(by, np.array([0.1, 1.0, 10.0]))
    apart = np.sqrt(np.sum((after.U - draws.U) ** 2, (1, 2, 3)) + np.sum((after.W - draws.W) ** 2, (1, 2, 3)))
    np.testing.assert_allclose(apart, [0.1, 1.0, 10.0], rtol=1e-9)
