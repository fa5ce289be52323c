"""Margins and weights on the tokenized mixture, and phase one: in 40 digits, by loops and by finite differences."""

import jax
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.data.mixture import head_output, tokenized_mixture
from attnlab.errors import InputError
from attnlab.models.multihead import MultiHead
from attnlab.models.precision import in_float64
from attnlab.models.problem import Problem
from attnlab.theory import multihead as mh
from attnlab.theory.multihead.ntk import slopes

MIXTURES = [
    mh.Mixture(T=10, M=2, S=2.0, zeta=0.1),
    mh.Mixture(T=10, M=2, S=2.0, zeta=0.3, Z_mu=0.05, Z_nu=0.2, Z=0.3),
    mh.Mixture(T=4, M=3, S=0.7, zeta=0.75, Z_mu=0.4, Z_nu=0.1, Z=0.5),
]


@pytest.fixture(autouse=True, scope="module")
def _forty_digits():
    with mp.workdps(40):
        yield


def close(got, wanted, rel=1e-12):
    assert float(got) == pytest.approx(float(wanted), rel=rel)


def draw(n=60, noise="extreme", seed=0, **more):
    return tokenized_mixture(n, 10, 5, **{"sparsity": 0.3, "Z_mu": 0.2, "Z_nu": 0.3, **more}, noise=noise, seed=seed)


# Formulas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", MIXTURES, ids=str)
def test_margins_in_40_digits(m):
    T, S, zeta, Z = mp.mpf(m.T), mp.mpf(m.S), mp.mpf(m.zeta), mp.mpf(m.Z)
    mu, nu = mp.mpf(m.Z_mu), mp.mpf(m.Z_nu)
    bar = max(mu, nu)
    lin = S * mp.sqrt(T) * (zeta - 2 * (1 - zeta) * mu / S**2) / mp.sqrt(2)
    gain = T * (1 - zeta) * zeta * (zeta * S**4 - 7 * bar * S**2 - 12 * bar**2 - 16 * bar**3 / S**2)
    gain /= 4 * mp.sqrt(2 * (m.M + 1))
    close(mh.gamma_lin(m), lin)
    close(mh.attention_gain(m), gain)
    for P in (0.0, 1e-3, 0.5):
        close(mh.gamma_star(m, P), gain - mp.mpf(P) * T ** mp.mpf(2.5) * (S + Z) ** 3 + lin)
        close(mh.gamma_star(m, P, power=1.0), gain - mp.mpf(P) * T * (S + Z) ** 3 + lin)
    for eps in (0.0, 0.1, 0.9):
        e = mp.mpf(eps)
        close(mh.gamma_attn(m, eps), mp.sqrt(T) / (mp.sqrt(2) * S) * (S**2 * (1 - e) - 2 * e * mu))
    for eps in (0.01, 0.3):
        log = mp.log((1 / zeta - 1) / mp.mpf(eps))
        close(mh.attention_scale(m, eps), max(mp.mpf(0), 8 * mp.sqrt(2 * (m.M + 1)) / (3 * S**2) * log))
    A, B = mh.score_bounds(m)
    close(A, S**4 - S**2 * (mu + nu))
    close(B, 2 * (mu**2 + mu * nu + S**2 * mu))
    close(m.R, max(mp.mpf(1), mp.sqrt(S**2 + Z**2 + 2 * nu / m.M)))
    edge = mh.largest_ordered_signal(m.T, m.M, m.zeta)
    close(edge**3, 4 * mp.sqrt(m.M + 1) / (zeta**2 * mp.sqrt(T)))


def test_reference_values():
    for (zeta, S, Z), star in (((0.1, 2, 0.02), 0.502), ((0.3, 2, 0.05), 1.986), ((0.5, 3, 0.1), 11.975)):
        m = mh.Mixture(T=10, M=2, S=S, zeta=zeta, Z_mu=Z, Z_nu=Z, Z=Z)
        assert mh.gamma_star(m, 0.0) == pytest.approx(star, abs=1e-3)
    assert mh.gamma_attn(MIXTURES[0]) == pytest.approx(4.4721, abs=1e-4)


@given(st.floats(0.01, 100), st.integers(2, 30), st.data())
@settings(max_examples=150, deadline=None)
def test_saturation_scale_is_enough_and_not_idle(A, T, data):
    L = data.draw(st.integers(1, T - 1))
    eps = data.draw(st.floats(1e-8, 5.0))
    Gamma = float(mh.saturation_scale(A, L / T, eps))
    B = mp.mpf(A) / 2
    outside = (T - L) * mp.exp(Gamma * B)
    mass = outside / (outside + L * mp.exp(mp.mpf(Gamma) * mp.mpf(A)))
    assert mass <= mp.mpf(eps) * (1 + mp.mpf(1e-12))
    if Gamma > 0:  # at the least Gamma, scores at A and A / 2 leave eps / (1 + eps) outside
        assert float(mass) == pytest.approx(eps / (1 + eps), rel=1e-9)
    else:
        assert eps >= (T / L - 1) * (1 - 1e-12)


@pytest.mark.parametrize(("A", "share", "eps"), [(0.0, 0.5, 0.1), (-1.0, 0.5, 0.1), (1.0, 1.0, 0.1), (1.0, 0.5, 0.0)])
def test_saturation_scale_refuses(A, share, eps):
    with pytest.raises(InputError, match="wanted finite numbers"):
        mh.saturation_scale(A, share, eps)


# Weights ----------------------------------------------------------------------------------------------------------


def test_weights_by_loops():
    tokens = draw()
    patterns = tokens.info["patterns"]
    plus, minus = patterns[0], patterns[1]
    W = np.zeros((5, 5))
    for i in range(5):
        for j in range(5):
            W[i, j] = plus[i] * plus[j] + minus[i] * minus[j]
            W[i, j] += sum(nu[i] * (plus + minus)[j] for nu in patterns[2:])
    found = mh.oracle_weights(patterns, tokens.T)
    np.testing.assert_allclose(found.W, W)
    np.testing.assert_allclose(found.U, np.ones((10, 1)) * (plus - minus))
    S, M = 2.0, 2
    assert np.linalg.norm(found.W) == pytest.approx(S**2 * np.sqrt(2 * (M + 1)))
    assert np.linalg.norm(found.U) == pytest.approx(S * np.sqrt(2 * 10))
    opt = mh.theta_opt(patterns, tokens.T, scale=3.0)
    np.testing.assert_allclose(opt.W, 3 * W / (S**2 * np.sqrt(2 * (M + 1))))
    np.testing.assert_allclose(opt.U, found.U / (S * np.sqrt(20)))
    assert mh.theta_opt(patterns, tokens.T).norm == pytest.approx(np.sqrt(2))


def test_scores_keep_to_their_bounds_and_reach_them():
    tokens = draw(n=3000, Z_nu=0.2)
    m = mh.Mixture.of(tokens)
    W = mh.oracle_weights(tokens.info["patterns"], tokens.T).W
    scores = tokens.x @ W @ np.swapaxes(tokens.x, 1, 2)
    relevant = np.broadcast_to(tokens.info["relevant"][:, None, :], scores.shape)
    A, B = mh.score_bounds(m)
    assert scores[relevant].min() == pytest.approx(A, rel=1e-9)
    assert B * 0.9 < scores[~relevant].max() <= B * (1 + 1e-9)


def test_theta_star_has_norm_sqrt_2_over_all_heads():
    patterns = draw().info["patterns"]
    counts = np.array([7.0, 1e9])
    star = mh.theta_star(patterns, 10, [0.3, -1.0], counts)
    squared = sum(c * (np.sum(U**2) + np.sum(W**2)) for c, U, W in zip(counts, star["U"], star["W"], strict=True))
    assert squared == pytest.approx(2.0)
    np.testing.assert_allclose(star["W"][0], -star["W"][1])
    np.testing.assert_allclose(star["U"][0], star["U"][1])


@in_float64
def test_slope_of_the_output_by_differences_and_by_the_model():
    rng, counts = np.random.default_rng(0), np.array([3.0, 2.0])
    x = rng.standard_normal((6, 4, 3))
    at, along = ({"U": rng.standard_normal((2, 4, 3)), "W": rng.standard_normal((2, 3, 3))} for _ in range(2))
    found = slopes(al.Tokens.self_attention(x, np.ones(6)), MultiHead(5, counts=counts), at, along)

    def outputs(h):
        every = zip(counts, at["U"] + h * along["U"], at["W"] + h * along["W"], strict=True)
        return sum(c * head_output(x, U, W) for c, U, W in every) / np.sqrt(5.0)

    np.testing.assert_allclose(found, (outputs(1e-5) - outputs(-1e-5)) / 2e-5, rtol=1e-6, atol=1e-8)
    problem = Problem(x=x, y=np.ones(6), constants={"counts": counts, "divisor": np.sqrt(5.0)})
    by_model = jax.jvp(lambda p: MultiHead(1).forward(p, problem).outputs, (at,), (along,))[1]
    np.testing.assert_allclose(found, by_model, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(mh.attention_of(x, at["W"][0]).sum(-1), 1.0)


# Phase one --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decoder", "law"), [("full", "sign"), ("full", "uniform"), ("pooling", "sign"), ("last", "sign")]
)
@in_float64
def test_phase_one_is_a_gradient_step_of_the_model(decoder, law):
    tokens = draw(n=20)
    found = mh.phase_one(tokens, 7, decoder=decoder, alpha_law=law, seed=3)
    zero = {name: np.zeros_like(value) for name, value in found.weights.items()}
    counts = np.array(found.counts)
    mantissa, log_scale = MultiHead(7, decoder, counts=counts).gradient(tokens, zero)
    for name, value in found.weights.items():
        step = mantissa[name] * np.exp(log_scale[name]) * np.sqrt(7.0)
        alpha = found.alpha.reshape(-1, *[1] * (value.ndim - 1))
        np.testing.assert_allclose(value, -alpha * step, atol=1e-14)
    assert found.heads == 7
    assert np.abs(found.alpha).max() <= 1


def test_groups_cover_all_heads():
    tokens = draw(n=5)
    for seed in range(30):
        for heads in (1, 2, 3, 10**18):
            found = mh.phase_one(tokens, heads, seed=seed)
            assert found.heads == heads
            assert (found.counts >= 1).all()
            assert found.counts.size == (1 if heads == 1 else 2)
            assert (np.abs(found.alpha) == 1).all()
            assert found.longest == pytest.approx(np.sqrt(10) * np.linalg.norm(found.c))
    seen = {float(mh.phase_one(tokens, 1, seed=s).alpha[0]) for s in range(20)}
    assert seen == {1.0, -1.0}
    both = [mh.phase_one(tokens, 2, seed=s).alpha.tolist() for s in range(40)]
    assert [1.0, 1.0] in both
    assert [-1.0, -1.0] in both
    assert [1.0, -1.0] in both


def test_parts_of_lemma_16_by_loops():
    tokens = draw(n=15, seed=4)
    patterns, u = tokens.info["patterns"], tokens.info["oracle"]
    p_1, p_2, c = -u / 2, np.zeros(5), np.zeros(5)
    for x, y, relevant in zip(tokens.x, tokens.y, tokens.info["relevant"], strict=True):
        p_1 = p_1 + y * (patterns[0] if y > 0 else patterns[1]) / 15
        p_2 = p_2 + y * np.mean([row for row, r in zip(x, relevant, strict=True) if not r], axis=0) / 15
        c = c + y * sum(x) / 10 / 2 / 15
    found = mh.parts(tokens)
    np.testing.assert_allclose(found[0], p_1, atol=1e-14)
    np.testing.assert_allclose(found[1], p_2, atol=1e-14)
    np.testing.assert_allclose(mh.mean_row(tokens), c, atol=1e-14)
    m = mh.Mixture.of(tokens)
    np.testing.assert_allclose(mh.centre(m, u) + 0.15 * p_1 + 0.35 * p_2, c, atol=1e-14)
    np.testing.assert_allclose(mh.centre(m, u, corrected=False), 2 * mh.centre(m, u))


def test_proposition_2_in_40_digits():
    m, P, n, delta = MIXTURES[0], mp.mpf(1e-5), 50, mp.mpf(0.1)
    T, S, R = mp.mpf(10), mp.mpf(2), mp.mpf(2)
    star = mp.mpf(mh.gamma_star(m, 1e-5))
    printed = mh.proposition_2(m, 1e-5, 50, 0.1, corrected=False)
    assert printed.start is not None
    close(printed.B2, mp.sqrt(T) * (S + P))
    close(printed.B_phi, T * R * (S + P) * mp.sqrt(2 * mp.log(n / delta)))
    close(printed.start.gamma, star / 2)
    close(printed.heads, (4 * (2 * R**3 * T * (S + P) + mp.sqrt(T) * R) / star) ** 2 * 2 * mp.log(n / delta))
    found = mh.proposition_2(m, 1e-5, 50, 0.1)
    assert found.start is not None
    assert found.heads == 1
    close(found.B_phi, T * R * (S + P) * mp.sqrt(2 * mp.log(2 / delta)))
    close(found.start.gamma, mh.gamma_star(m, 1e-5, power=1.0))
    nothing = mh.proposition_2(m, 10.0, 50, 0.1)
    assert nothing.start is None
    assert nothing.gamma_star < 0
    assert np.isnan(nothing.heads)
    close(mh.lemma_2_bound(m, 4, 100, 0.1, 0.5), (mp.mpf(2) + mp.sqrt(mp.log(10))) / 10 * mp.mpf(0.5) * 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mh.Mixture(T=10, M=2, S=2.0, zeta=1.0),
        lambda: mh.Mixture(T=10, M=2, S=0.0, zeta=0.5),
        lambda: mh.Mixture(T=10, M=2, S=1.0, zeta=0.5, Z_mu=-1.0),
        lambda: mh.Mixture.of(tokenized_mixture(n=5)),
        lambda: mh.gamma_star(MIXTURES[0], -1.0),
        lambda: mh.phase_one(draw(), 0),
        lambda: mh.phase_one(draw(), 2.5),
        lambda: mh.phase_one(draw(), 1e6, alpha_law="uniform"),
        lambda: mh.phase_one(draw(), 5, alpha_law="normal"),
        lambda: mh.phase_one(draw(), 5, decoder="mean"),
        lambda: mh.phase_one(draw(trials=2), 5),
        lambda: mh.proposition_2(MIXTURES[0], 0.0, 10, 1.0),
    ],
)
def test_wrong_inputs_are_refused(call):
    with pytest.raises(InputError):
        call()
