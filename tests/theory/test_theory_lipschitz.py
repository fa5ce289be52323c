"""Lemma 4: no pair of weights beats the corrected constants; the printed ones are beaten."""

import math

import numpy as np
import pytest
import theory_oracle as oracle

import attnlab as al
from attnlab.errors import InputError
from attnlab.theory import LossConstants, lipschitz_constants, loss_constants

LOSSES = ["logistic", "exponential", "correlation"]
SHAPES = [(2, 3, 3, None, False), (1, 2, 1, None, False), (3, 4, 2, None, True), (2, 3, 2, 2, True)]


def gradient(tokens: al.Tokens, weights, loss: str) -> dict:
    mantissa, log_scale = al.models.gradient(tokens, weights, loss=loss)
    return {k: m * np.exp(log_scale[k])[..., None, None] for k, m in mantissa.items()}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_constant_against_a_loop(shape, loss):
    tokens = oracle.draw(0, *shape)
    top = max(
        abs(oracle.score(tokens, q, t)) for q, _ in oracle.queries(tokens) for t in range(tokens.T)
        if tokens.visible[(*q, t)]
    )  # fmt: skip
    M0, M1 = {"logistic": (0.25, 1), "exponential": (math.exp(top),) * 2, "correlation": (0, 1)}[loss]
    total, v = 0.0, math.sqrt(float(tokens.v @ tokens.v))
    for q, i in oracle.queries(tokens):
        X = tokens.x[i][tokens.visible[q]]
        size = math.sqrt(np.linalg.eigvalsh(X @ X.T)[-1])
        total += v * float(tokens.z[q] @ tokens.z[q]) * size**3 * (M0 * v * size + 3 * M1) / tokens.n
    got = lipschitz_constants(tokens, loss)
    assert pytest.approx(total, rel=1e-10) == got.W
    assert got.terms.shape == tokens.y.shape
    assert pytest.approx(M0) == got.loss.M0
    assert pytest.approx(M1) == got.loss.M1
    assert got.loss == loss_constants(tokens, loss)
    Q = np.diag([3.0, 2.0])
    assert got.K(Q) == got.Q(Q) == pytest.approx(9 * total)
    assert got.K_printed(Q) == got.Q_printed(Q) == pytest.approx(3 * total)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_no_pair_of_weights_beats_the_corrected_constants(seed, loss):
    tokens = oracle.draw(seed, 2, 3, 2, 2, True)
    bound, rng, d = lipschitz_constants(tokens, loss), np.random.default_rng(seed), tokens.d
    scale = np.repeat([1e-3, 0.1, 1.0, 10.0], 2)[:, None, None]
    step = np.tile([1e-4, 1.0], 4)[:, None, None]  # pairs near each other and far apart
    W, K, Q = scale * rng.standard_normal((8, d, d)), *(scale * rng.standard_normal((2, 8, d, 2)))
    W_, K_, Q_ = (A + step * scale * rng.standard_normal(A.shape) for A in (W, K, Q))

    def gradients(**pairs: list) -> dict:
        joined = {name: np.concatenate(value) for name, value in pairs.items()}
        many = al.Tokens.stack([tokens] * len(next(iter(joined.values()))))
        return {name: np.split(g, len(g) // 8) for name, g in gradient(many, joined, loss).items()}

    here, there = gradients(W=[W, W_])["W"]
    both = gradients(K=[K, K_, K], Q=[Q, Q, Q_])
    for r in range(8):
        assert np.linalg.norm(here[r] - there[r]) <= bound.W * np.linalg.norm(W[r] - W_[r])
        change = np.linalg.norm(both["K"][0][r] - both["K"][1][r])
        assert change <= bound.K(Q[r]) * np.linalg.norm(K[r] - K_[r])
        change = np.linalg.norm(both["Q"][0][r] - both["Q"][2][r])
        assert change <= bound.Q(K[r]) * np.linalg.norm(Q[r] - Q_[r])


def steepest(Q: float) -> float:
    """Largest |change of grad_K| / |change of K| between near points at fixed Q, on the one-dimensional example."""
    k = np.linspace(0.0, 0.8, 81)[:, None, None] / Q
    one = al.Tokens(x=[[[1.0], [-1.0]]], z=[[1.0]], y=[1], v=[1.0])
    slopes = gradient(al.Tokens.stack([one] * len(k)), {"K": k, "Q": np.full_like(k, Q)}, "logistic")["K"]
    return float(np.abs(np.diff(slopes[:, 0, 0]) / np.diff(k[:, 0, 0])).max())


def test_the_printed_constant_of_k_is_too_small():
    """n = 1, T = 2, d = m = 1, tokens 1 and -1, z = v = 1. Then L = f(K Q) with f(a) = log(1 + exp(-tanh a)), so
    grad_K changes at a rate of up to Q^2 max|f''| = 0.441 Q^2, against 9.49 |Q| as printed: too small from 21.5 on.
    """
    tokens = al.Tokens(x=[[[1.0], [-1.0]]], z=[[1.0]], y=[1], v=[1.0])
    bound = lipschitz_constants(tokens)
    a = np.linspace(-4, 4, 80_001)
    slope, out = 1 / np.cosh(a) ** 2, np.tanh(a)
    sigma = 1 / (1 + np.exp(out))
    curvature = float(np.abs(sigma * (1 - sigma) * slope**2 + 2 * sigma * out * slope).max())
    onset = bound.W / curvature
    assert onset == pytest.approx(21.51, abs=0.01)
    for Q in (1.0, 20.0, 23.0, 40.0, 60.0):
        seen = steepest(Q)
        assert seen == pytest.approx(Q**2 * curvature, rel=1e-3)
        assert seen <= bound.K([[Q]])
        assert (seen > bound.K_printed([[Q]])) == (onset < Q)
    assert steepest(60.0) / bound.K_printed([[60.0]]) == pytest.approx(2.789, abs=5e-3)


def test_your_own_loss_by_its_constants():
    tokens = oracle.draw(0, 2, 3, 3)
    mine = lipschitz_constants(tokens, LossConstants(M0=0.25, M1=1.0))
    assert mine.W == lipschitz_constants(tokens, "logistic").W
    assert repr(mine.loss) == "LossConstants(M0=0.25, M1=1)"
    assert repr(mine).startswith("LipschitzConstants(W=")


def test_refusals():
    tokens = oracle.draw(0, 2, 3, 3)
    with pytest.raises(InputError, match="`loss` is 'hinge'; wanted one of 'logistic'"):
        lipschitz_constants(tokens, "hinge")
    with pytest.raises(InputError, match="have no `v`"):
        lipschitz_constants(al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y))
    with pytest.raises(InputError, match="batch of 2 trials"):
        lipschitz_constants(al.Tokens.stack([tokens, tokens]))
    for wrong in ([1.0], [[np.nan]], [[]]):
        with pytest.raises(InputError, match="`Q` has "):
            lipschitz_constants(tokens).K(wrong)
    with pytest.raises(InputError, match="`K` has shape"):
        lipschitz_constants(tokens).Q([1.0])


def test_a_constant_beyond_floats_is_infinite_without_a_word():
    """The two parts of the term, 1e308 and 1.5e308, are floats; their sum is none."""
    tokens = al.Tokens(x=[[[1.0, 0.0], [0.0, 1.0]]], z=[[1e154, 0.0]], y=[1.0], v=[1.0, 0.0])
    both, curved = (lipschitz_constants(tokens, LossConstants(M0=1.0, M1=M1)) for M1 in (0.5, 0.0))
    np.testing.assert_allclose([both.W, curved.W], [np.inf, 1e308])
