"""Auxiliary lemmas of the encoder paper: never violated over shapes and scales, and reached where they are tight."""

import numpy as np
import pytest
from encoder_oracle import LETTERS, SHAPES, changes, draw, far, gradient, jacobian, moved, one_output, rows

from attnlab.errors import InputError
from attnlab.theory import encoder as en

SEEDS = range(12 * len(SHAPES))
ROUNDING = 1e-9


def pair(seed, S=None):
    """A start, its constants, and two points within its radius."""
    x, y, weights, tau0, tau1 = draw(seed)
    rng = np.random.default_rng((seed, 1))
    radius = {letter: float(10 ** rng.uniform(-2, 1)) for letter in LETTERS}
    if S is not None:
        S = rng.standard_normal((x.shape[2], len(weights["w_O"]))) * 10 ** rng.uniform(-1, 1)
    constants = en.Constants.of(x, y, weights, tau0=tau0, tau1=tau1, radius=radius, residual=S)
    return x, y, constants, moved(weights, radius, rng), moved(weights, radius, rng), S


def hidden_of(x, weights, c, S):
    found = [one_output(one, weights, c.tau0, c.tau1, S) for one in x]
    return np.array([h for h, _ in found]), np.array([f for _, f in found])


def test_gradients_of_the_oracle():
    """Central differences."""
    for seed in range(len(SHAPES)):
        x, _, weights, tau0, tau1 = draw(seed, scale=0.3)
        S = np.random.default_rng(seed).standard_normal((x.shape[2], len(weights["w_O"]))) if seed % 2 else None
        found = gradient(x[0], weights, tau0, tau1, S)
        for letter, name in LETTERS.items():
            slopes = np.zeros_like(weights[name])
            for at in np.ndindex(slopes.shape):
                ends = []
                for step in (1e-6, -1e-6):
                    near = {k: w.copy() for k, w in weights.items()}
                    near[name][at] += step
                    ends.append(one_output(x[0], near, tau0, tau1, S)[1])
                slopes[at] = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose(found[letter], slopes, atol=1e-6 * (1 + np.abs(slopes).max()))


@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_on_changes_and_gradients(seed):
    """Lemmas 7, 8, 9, 10, 12 and 13, every other time with a residual."""
    x, y, c, one, other, S = pair(seed, S="drawn" if seed % 2 else None)
    d = changes(one, other)
    low, high = en.lemma_8(c.T)
    for sequence in x:
        b, b_ = rows(sequence, one, c.tau0), rows(sequence, other, c.tau0)
        bound = en.lemma_7(c, dQ=d["Q"], dK=d["K"])
        assert (np.linalg.norm(b - b_, axis=1) <= bound * (1 + ROUNDING) + 1e-12).all()
        norms = np.linalg.norm(b, axis=1)
        assert ((low - 1e-12 <= norms) & (norms <= high + 1e-12)).all()
    (F, f), (F_, f_) = hidden_of(x, one, c, S), hidden_of(x, other, c, S)
    dF, slack = np.linalg.norm(F - F_), 1e-12 * np.linalg.norm(F)
    assert dF <= en.lemma_9(c, dQ=d["Q"], dK=d["K"], dV=d["V"]) * (1 + ROUNDING) + slack
    assert np.linalg.norm(f - f_) <= en.lemma_10(c, dO=d["O"], dF=dF) * (1 + ROUNDING) + slack * c.lambda_bar["O"]
    bounds, J = en.lemma_12(c, misfit=float(np.linalg.norm(f - y))), jacobian(x, one, c.tau0, c.tau1, S)
    steps = np.cumsum([0, *(one[name].size for name in LETTERS.values())])
    for k, letter in enumerate(LETTERS):
        part = J[:, steps[k] : steps[k + 1]]
        assert np.linalg.norm((f - y) @ part) <= bounds[letter] * (1 + ROUNDING)
    assert np.linalg.norm(J) <= en.lemma_13(c) * (1 + ROUNDING)


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_change_by_little_where_no_sign_does(seed):
    """Lemma 14: shrink the step until no preactivation changes its sign on the way."""
    x, _, c, one, other, _ = pair(seed)
    rng = np.random.default_rng(seed)
    for _ in range(40):
        between = [{k: one[k] + s * (other[k] - one[k]) for k in one} for s in np.linspace(0, 1, 9)]
        signs = [en.forward(x, w, c.tau0, c.tau1).preactivation > 0 for w in between]
        if all((s == signs[0]).all() for s in signs):
            break
        other = {k: one[k] + rng.uniform(0.2, 0.6) * (other[k] - one[k]) for k in one}
    else:
        pytest.fail("a preactivation is 0")
    J, J_ = jacobian(x, one, c.tau0, c.tau1), jacobian(x, other, c.tau0, c.tau1)
    change = np.linalg.norm(J - J_, ord=2)
    assert change <= en.lemma_14(c, far(one, other)) * (1 + ROUNDING) + 1e-12 * np.linalg.norm(J)


def test_across_a_kink_the_gradient_jumps():
    """Two points 2e-9 apart on either side of a kink: no Lipschitz constant covers that."""
    weights = {"W_Q": np.zeros((1, 1)), "W_K": np.zeros((1, 1)), "w_O": np.ones(1)}
    x, ends = np.ones((1, 1, 1)), [{**weights, "W_V": np.array([[v]])} for v in (1e-9, -1e-9)]
    c = en.Constants.of(x, [0.0], ends[0], tau0=1.0, tau1=1.0)
    jump = np.linalg.norm(np.subtract(*(jacobian(x, w, 1.0, 1.0) for w in ends)))
    assert jump > 1e6 * en.lemma_14(c, far(*ends))


# Where bounds are reached -----------------------------------------------------------------------------------------


def tight(T=3, N=4, m=5, d=2, radius=1e-9):
    """All tokens look at one, which has all the length: every step of Lemmas 9 to 13 is an equality, but for Q and K.

    With T tokens `C_x sqrt(T)` is the length of that token, so hidden layers are T times relu of it.
    """
    rng = np.random.default_rng(7)
    long, short = 2.0, 1e-7
    x = np.zeros((N, T, d))
    x[:, :, 0] = short
    x[:, 0, 0] = long
    w = np.abs(rng.standard_normal(m))
    W_V = np.zeros((m, d))
    W_V[:, 0] = w
    Q = np.zeros((m, d))
    Q[0, 0] = 1e6
    weights = {"W_Q": Q, "W_K": Q, "W_V": W_V, "w_O": 0.7 * w}
    return en.Constants.of(x, np.zeros(N), weights, tau0=1.0, tau1=0.3, radius=radius), x, weights


@pytest.mark.parametrize("T", [1, 3])
def test_lemmas_9_to_13_are_reached(T):
    c, x, weights = tight(T)
    step = {**weights, "W_V": 1.5 * weights["W_V"]}
    d = changes(weights, step)
    (F, f), (F_, _) = hidden_of(x, weights, c, None), hidden_of(x, step, c, None)
    assert np.linalg.norm(F_ - F) == pytest.approx(en.lemma_9(c, dQ=0.0, dK=0.0, dV=d["V"]), rel=1e-6)
    further = {**weights, "w_O": weights["w_O"] + 0.1 * F[0] / np.linalg.norm(F[0])}
    _, f_ = hidden_of(x, further, c, None)
    dO = changes(weights, further)["O"]
    assert np.linalg.norm(f_ - f) == pytest.approx(en.lemma_10(c, dO=dO, dF=0.0), rel=1e-6)
    (_, f_both) = hidden_of(x, step, c, None)
    assert np.linalg.norm(f_both - f) == pytest.approx(en.lemma_10(c, dO=0.0, dF=np.linalg.norm(F_ - F)), rel=1e-6)
    J = jacobian(x, weights, c.tau0, c.tau1)
    bounds, size = en.lemma_12(c, misfit=float(np.linalg.norm(f))), weights["W_V"].size
    by_V, by_O = f @ J[:, 2 * size : 3 * size], f @ J[:, 3 * size :]
    assert np.linalg.norm(by_V) == pytest.approx(bounds["V"], rel=1e-6)
    assert np.linalg.norm(by_O) == pytest.approx(bounds["O"], rel=1e-6)


def test_the_residual_part_of_lemma_10_is_reached():
    """With W_V = 0 the hidden layer is the residual alone."""
    x = np.zeros((2, 4, 4))
    x[:] = np.eye(4) * 2.0
    weights = {"W_Q": np.zeros((4, 4)), "W_K": np.zeros((4, 4)), "W_V": np.zeros((4, 4)), "w_O": np.zeros(4)}
    c = en.Constants.of(x, [0.0, 0.0], weights, tau0=1.0, tau1=0.5, residual="identity", radius=1e-12)
    F, _ = hidden_of(x, weights, c, np.eye(4))
    # |sum_i e_i| = 2 where the triangle inequality gives 4: that is all that is lost.
    assert np.linalg.norm(F) == pytest.approx(0.5 * en.lemma_10(c, dO=1.0, dF=0.0), rel=1e-9)
    S = np.ones((4, 4)) / 4.0
    c = en.Constants.of(x, [0.0, 0.0], weights, tau0=1.0, tau1=0.5, residual=3.0 * S, radius=1e-12)
    F, _ = hidden_of(x, weights, c, 3.0 * S)
    assert c.shortcut == pytest.approx(3.0)
    assert np.linalg.norm(F) == pytest.approx(0.5 * en.lemma_10(c, dO=1.0, dF=0.0), rel=1e-9)


def test_lemmas_in_closed_form():
    norms, radius = {"Q": 1.0, "K": 2.0, "V": 3.0, "O": 4.0}, {"Q": 0.5, "K": 0.25, "V": 0.125, "O": 2.0}
    c = en.Constants(N=9, T=4, d=2, width=3, tau0=0.3, tau1=0.7, C_x=1.1, norms=norms, radius=radius, alpha=0.0,
                     start_loss=1.0, shortcut=5.0)  # fmt: skip
    reach, rho = 2 * 0.3 * 1.1**2 * 4, 3 * 8 * 0.7 * 1.1
    assert en.lemma_7(c, dQ=0.2, dK=0.9) == pytest.approx(reach * (1.5 * 0.9 + 2.25 * 0.2))
    wanted = rho * (0.4 + 3.125 * reach * (1.5 * 0.9 + 2.25 * 0.2))
    assert en.lemma_9(c, dQ=0.2, dK=0.9, dV=0.4) == pytest.approx(wanted)
    assert en.lemma_10(c, dO=0.3, dF=0.6) == pytest.approx(rho * (3.125 + 2.5) * 0.3 + 6.0 * 0.6)
    by = {"Q": rho * reach * 2.25 * 3.125 * 6, "K": rho * reach * 1.5 * 3.125 * 6, "V": rho * 6, "O": rho * 5.625}
    assert en.lemma_12(c, misfit=0.8) == pytest.approx({k: 0.8 * v for k, v in by.items()})
    assert en.lemma_13(c) == pytest.approx(np.sqrt(sum(v**2 for v in by.values())))
    for corrected in (False, True):
        assert en.lemma_14(c, 0.3, corrected=corrected) == pytest.approx(0.3 * c.c3(corrected=corrected))
    assert en.lemma_8(9) == (1 / 3, 1.0)
    assert en.lemma_14(c, 2.0) == 2.0 * c.c3(corrected=True)
    for call in (lambda: en.lemma_7(c, dQ=-1.0, dK=0.0), lambda: en.lemma_9(c, dQ=0.0, dK=0.0, dV=-1.0),
                 lambda: en.lemma_10(c, dO=np.nan, dF=0.0), lambda: en.lemma_12(c, misfit=-1.0),
                 lambda: en.lemma_14(c, -1.0), lambda: en.lemma_8(0), lambda: en.lemma_4(1.0, 1.0, 1.0),
                 lambda: en.lemma_5(0, 1, 1.0), lambda: en.lemma_6(0), lambda: en.lemma_20(3, -1.0)):  # fmt: skip
        with pytest.raises(InputError):
            call()


# Random variables -------------------------------------------------------------------------------------------------


def test_products_of_gaussians_stay_within_lemma_4():
    rng = np.random.default_rng(0)
    for variance in (0.3, 2.0):
        draws = variance * rng.standard_normal(200_000) * rng.standard_normal(200_000)
        for delta in (0.5, 0.05):
            bound = en.lemma_4(np.sqrt(2) * variance, np.sqrt(2) * variance, delta)
            assert (np.abs(draws) >= bound).mean() <= delta
    log = np.log(2 / 0.1)
    assert en.lemma_4(3.0, 0.0, 0.1) == pytest.approx(3 * np.sqrt(2 * log))
    assert en.lemma_4(0.0, 3.0, 0.1) == pytest.approx(6 * log)


def test_gaussian_matrices_stay_within_lemmas_5_6_and_20():
    rng = np.random.default_rng(1)
    W = rng.standard_normal((1000, 64, 16))
    values = np.linalg.svd(W, compute_uv=False)
    low, high = en.lemma_5(64, 16, 1.0)
    assert (low, high) == (8 - 4 - 1, 8 + 4 + 1)
    assert ((values[:, -1] < low) | (values[:, 0] > high)).mean() <= 2 * np.exp(-0.5)
    assert (values[:, 0] <= en.lemma_6(64)).all()
    assert en.lemma_6(64) == 24.0
    assert en.lemma_6(64, 0.25) == 12.0
    w = W[:, :, 0]
    moved_ = w + 2.0 * w / np.linalg.norm(w, axis=1, keepdims=True)
    assert (np.linalg.norm(moved_, axis=1) <= en.lemma_20(64, 2.0)).all()
    assert en.lemma_20(64, 2.0) == 26.0
