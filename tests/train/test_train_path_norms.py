"""Regularization paths in the ball of any norm: against box-constrained searches, the other two routes, and margins."""

from types import SimpleNamespace

import numpy as np
import pytest
from path_cases import log_excess, reference_tokens
from scipy.optimize import minimize

from attnlab import InputError, Tokens, optimal_tokens, solve_margin
from attnlab.models import Concave
from attnlab.svm import norms
from attnlab.train.normball import NormBall
from attnlab.train.path import PathStatus, regularization_path

TOKENS = reference_tokens(0, 2, 3, 2)
SELECTED = optimal_tokens(TOKENS)
ALL = [norms.FROBENIUS, norms.NUCLEAR, norms.SPECTRAL, norms.ENTRYWISE_L1, norms.ENTRYWISE_MAX]


def named(norm):
    return norm.name


def least_margin(tokens, selected, W):
    logits = np.einsum("ntd,de,ne->nt", tokens.x, W, tokens.z)
    leads = np.take_along_axis(logits, selected[:, None], 1) - logits
    return leads[np.arange(tokens.T) != selected[:, None]].min()


@pytest.mark.parametrize("norm", ALL, ids=named)
def test_projections_are_nearest(norm):
    """No point of the ball is further along W - P than P; a point inside is its own projection."""
    ball = NormBall(norm)
    rng = np.random.default_rng(0)
    for scale in (0.5, 1.0, 30.0):
        W = scale * rng.standard_normal((4, 3))
        P = ball.project(W)
        if norm.value(W) <= 1:
            np.testing.assert_array_equal(P, W)
            continue
        assert norm.value(P) == pytest.approx(1.0, abs=1e-12)
        # The largest of <W - P, V> over the ball is the dual norm.
        assert norm.dual(W - P) <= np.sum((W - P) * P) * (1 + 1e-9) + 1e-12
    small = 0.9 * W / norm.value(W)
    np.testing.assert_array_equal(ball.project(small), small)


def test_the_box_is_that_of_bounded_searches():
    """|W|_max <= R is a bound on every entry, for which SciPy has a search of its own."""
    radii = (1.0, 4.0, 12.0)
    path = regularization_path(TOKENS, norm=norms.ENTRYWISE_MAX, radii=radii, restarts=3)
    assert path.solved.all()
    assert path.norm == "entrywise max"
    for R, value, W in zip(radii, path.value, path.W, strict=True):
        ends = []
        for seed in range(4):
            start = np.random.default_rng(seed).uniform(-R, R, 4)
            found = minimize(
                lambda w: log_excess(TOKENS, w.reshape(2, 2)),
                start,
                method="L-BFGS-B",
                bounds=[(-R, R)] * 4,
                options={"ftol": 1e-14, "gtol": 1e-9},
            )
            ends.append(found.fun)
        assert value == pytest.approx(min(ends), abs=1e-6)
        assert value <= min(ends) + 1e-9
        assert np.abs(W).max() == pytest.approx(R, rel=1e-12)
        assert value == pytest.approx(log_excess(TOKENS, W), rel=1e-9)


@pytest.mark.parametrize("name", ["frobenius", pytest.param("nuclear", marks=pytest.mark.slow)])
def test_norms_that_have_searches_of_their_own_agree(name):
    norm = {"frobenius": norms.FROBENIUS, "nuclear": norms.NUCLEAR}[name]
    toward = solve_margin(TOKENS, SELECTED, norm=name).W
    # In a small ball the loss has several minima, and each search may end in another.
    settings = {"radii": (10,), "restarts": 2}
    own = regularization_path(TOKENS, toward, norm=name, **settings)
    general = regularization_path(TOKENS, toward, norm=norm, **settings)
    np.testing.assert_allclose(general.radii, own.radii, rtol=1e-9)
    np.testing.assert_allclose(general.value, own.value, rtol=1e-8)
    np.testing.assert_allclose(general.W, own.W, atol=1e-4 * np.abs(own.W).max())
    for R, value, W in zip(general.radii, general.value, general.W, strict=True):
        assert norm.value(W) <= R * (1 + 1e-12)
        assert value == pytest.approx(log_excess(TOKENS, W), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ALL, ids=named)
@pytest.mark.parametrize("instance", [(1, 3, 4, 4), (2, 3, 3, 3)])
def test_the_margin_tends_to_the_largest(norm, instance):
    """Of W(R) / R: below the largest by at most a constant over R, whichever optimum it tends to."""
    tokens = reference_tokens(*instance)
    selected = optimal_tokens(tokens)
    svm = solve_margin(tokens, selected, norm=norm)
    path = regularization_path(tokens, svm.W, norm=norm, radii=(10, 30, 100), restarts=1)
    assert path.solved.all()
    short = []
    for R, W in zip(path.radii, path.W, strict=True):
        assert norm.value(W) == pytest.approx(R, rel=1e-9)
        short.append(1 - least_margin(tokens, selected, W) / (R * svm.margin))
    assert all(left > -1e-9 for left in short)
    assert short[0] > 2 * short[1] > 4 * short[2]
    assert short[2] < 0.02


@pytest.mark.slow
def test_the_sum_of_entries_is_that_of_split_searches():
    """|W|_1 <= R is a sum of positive and negative parts, for SciPy's constrained search."""
    R = 6.0
    path = regularization_path(TOKENS, norm=norms.ENTRYWISE_L1, radii=(R,), restarts=3)
    ends = []
    for seed in range(4):
        start = np.random.default_rng(seed).uniform(0, R / 8, 8)
        found = minimize(
            lambda w: log_excess(TOKENS, (w[:4] - w[4:]).reshape(2, 2)),
            start,
            method="SLSQP",
            bounds=[(0, R)] * 8,
            constraints={"type": "ineq", "fun": lambda w: R - w.sum()},
            options={"ftol": 1e-13, "maxiter": 1000},
        )
        ends.append(found.fun)
    assert path.value[0] == pytest.approx(min(ends), abs=1e-6)


def test_a_minimum_inside_the_ball():
    """A head that prefers mixtures has its best weights at a finite length."""
    tokens = Tokens(x=[[[1.0, 0.0], [0.0, 1.0]]], z=[[1.0, 0.0]], y=[1], v=[1.0, 0.8])
    settings = {"head": Concave(1.0), "radii": (0.1, 20.0), "restarts": 2}
    general = regularization_path(tokens, norm=norms.SPECTRAL, **settings)
    assert general.status[0] is PathStatus.SPHERE
    assert general.status[1] is PathStatus.INTERIOR
    # v.o - |o|^2 on the segment is largest where o_0 - o_1 = 0.1: logit difference 2 atanh(0.1)
    assert (general.W[1][0, 0] - general.W[1][1, 0]) == pytest.approx(2 * np.arctanh(0.1), abs=1e-5)


def test_a_trial_is_the_same_alone_and_in_a_batch():
    batch = Tokens.stack([TOKENS, reference_tokens(3, 2, 3, 2)])
    settings = {"norm": norms.ENTRYWISE_MAX, "radii": (1, 4), "restarts": 1}
    both = regularization_path(batch, **settings)
    alone = regularization_path(batch[0], **settings)
    np.testing.assert_allclose(both.value[0], alone.value, rtol=1e-9)
    assert both.W.shape == (2, 2, 2, 2)


def test_what_does_not_fit_is_told():
    toward = solve_margin(TOKENS, SELECTED).W
    with pytest.raises(InputError, match="`norm` is 'spectral'"):
        regularization_path(TOKENS, norm="spectral")
    for wrong in (3, SimpleNamespace(name="mine", value=np.sum), SimpleNamespace(name=1, value=1, dual=1, prox=1)):
        with pytest.raises(InputError, match="wanted 'frobenius', 'nuclear', or a norm"):
            regularization_path(TOKENS, norm=wrong)
    with pytest.raises(InputError, match="`selected` is not for `norm` 'spectral'"):
        regularization_path(TOKENS, toward, selected=SELECTED, norm=norms.SPECTRAL)
    with pytest.raises(InputError, match="`m`"):
        regularization_path(TOKENS, norm=norms.SPECTRAL, m=2)
