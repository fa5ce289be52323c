"""The tokenized mixture and the planted model: every fact of their definitions, by loops."""

import numpy as np
import pytest

import attnlab as al
from attnlab.data.mixture import head_output, planted, tokenized_mixture
from attnlab.errors import InputError

BOUNDED = {"T": 8, "d": 6, "sparsity": 0.25, "patterns": 3, "signal": 1.5, "Z_mu": 0.2, "Z_nu": 0.5}


@pytest.mark.parametrize("noise", ["bounded", "extreme"])
def test_bounded_mixture_keeps_to_assumption_3(noise):
    tokens = tokenized_mixture(400, noise=noise, **BOUNDED)
    info, S, M = tokens.info, 1.5, 3
    patterns, relevant = info["patterns"], info["relevant"]
    np.testing.assert_allclose(patterns @ patterns.T, S**2 * np.eye(5))
    np.testing.assert_array_equal(info["oracle"], patterns[0] - patterns[1])
    np.testing.assert_array_equal(tokens.v, info["oracle"])
    assert (relevant.sum(1) == 2).all()
    products, lengths, seen = [], [], set()
    for x, y, mask in zip(tokens.x, tokens.y, relevant, strict=True):
        for row, is_relevant in zip(x, mask, strict=True):
            if is_relevant:
                np.testing.assert_array_equal(row, patterns[0] if y > 0 else patterns[1])
            else:
                j = 2 + int(np.argmax(row @ patterns[2:].T))
                seen.add(j)
                products.append(np.abs(patterns @ (row - patterns[j])))
                lengths.append(np.linalg.norm(row - patterns[j]))
    products = np.max(products, axis=0)
    assert seen == {2, 3, 4}
    assert (products[:2] <= 0.2 + 1e-12).all()
    assert (products[2:] <= 0.5 / M + 1e-12).all()
    if noise == "extreme":
        np.testing.assert_allclose(products, [0.2, 0.2, 0.5 / M, 0.5 / M, 0.5 / M])
        np.testing.assert_allclose(lengths, info["Z"])
    assert products.min() > 0.9 * 0.5 / M
    # Two mu, one coordinate beyond the patterns, three nu.
    assert info["Z"] == pytest.approx(np.sqrt(3 * (0.2 / S) ** 2 + 3 * (0.5 / (M * S)) ** 2))
    assert info["R"] == pytest.approx(np.sqrt(S**2 + info["Z"] ** 2 + 2 * 0.5 / M))
    assert np.linalg.norm(tokens.x, axis=-1).max() <= info["R"] + 1e-12
    assert (info["S"], info["M"], info["zeta"], info["Z_mu"], info["Z_nu"]) == (1.5, 3, 0.25, 0.2, 0.5)


@pytest.mark.parametrize(("noise", "variance"), [("bounded", 1 / 3), ("extreme", 1.0)])
def test_bounded_noise_has_its_moments(noise, variance):
    tokens = tokenized_mixture(3000, noise=noise, Z_mu=0.4, Z_nu=0.8)
    rest = tokens.x[~tokens.info["relevant"]]
    parts = (rest - 2.0 * np.eye(4)[2 + np.argmax(rest[:, 2:], axis=1)]) / 0.2  # both bounds are 0.4 / S
    np.testing.assert_allclose(parts.mean(0), 0.0, atol=0.03)
    np.testing.assert_allclose(parts.T @ parts / len(parts), variance * np.eye(4), atol=0.03)


def test_gaussian_mixture_has_its_moments_and_no_bounds():
    tokens = tokenized_mixture(4000, sigma=0.1)
    rest = tokens.x[~tokens.info["relevant"]]
    noise = rest - 2.0 * np.eye(4)[2 + np.argmax(rest[:, 2:], axis=1)]
    np.testing.assert_allclose(noise.std(0), 0.1, rtol=0.03)
    np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.003)
    assert abs(tokens.y.mean()) < 0.06
    for name in ("Z_mu", "Z_nu", "Z", "R"):
        assert tokens.info[name] == np.inf


def test_relevant_tokens_are_anywhere_or_first():
    anywhere = tokenized_mixture(3000, sparsity=0.3).info["relevant"].mean(0)
    np.testing.assert_allclose(anywhere, 0.3, atol=0.04)
    first = tokenized_mixture(20, sparsity=0.3, relevant="first").info["relevant"]
    np.testing.assert_array_equal(first, np.tile(np.arange(10) < 3, (20, 1)))


def test_small_signals_have_R_one():
    assert tokenized_mixture(3, signal=0.1, noise="bounded").info["R"] == 1.0


@pytest.mark.parametrize("family", [tokenized_mixture, planted])
def test_trials_do_not_depend_on_their_number(family, tmp_path):
    one, three, five = family(6, seed=3), family(6, seed=3, trials=3), family(6, seed=3, trials=5)
    np.testing.assert_array_equal(three.x[0], one.x)
    np.testing.assert_array_equal(five.x[:3], three.x)
    np.testing.assert_array_equal(five[2].y, three[2].y)
    assert not np.array_equal(three.x[0], three.x[1])
    name = "relevant" if family is tokenized_mixture else "teacher_U"
    np.testing.assert_array_equal(three[0].info[name], one.info[name])
    again = al.Tokens.load(three.save(tmp_path / "set.npz"))
    assert again.digest() == three.digest()
    np.testing.assert_array_equal(again.info[name], three.info[name])


def test_head_output_by_loops():
    rng = np.random.default_rng(0)
    x, U, W = rng.standard_normal((2, 4, 3)), rng.standard_normal((4, 3)), rng.standard_normal((3, 3))
    for i in range(2):
        total = 0.0
        for t in range(4):
            scores = np.array([x[i, t] @ W @ x[i, s] for s in range(4)])
            weights = np.exp(scores) / np.exp(scores).sum()
            total += sum(weights[s] * (U[t] @ x[i, s]) for s in range(4))
        assert head_output(x, U, W)[i] == pytest.approx(total, rel=1e-12)


def test_planted_labels_are_the_teachers_and_keep_the_margin():
    tokens = planted(300, seed=1)
    U, W = tokens.info["teacher_U"], tokens.info["teacher_W"]
    assert np.linalg.norm(U) == pytest.approx(1.0)
    assert np.linalg.norm(W) == pytest.approx(5.0)
    outputs = head_output(tokens.x, U, W)
    np.testing.assert_allclose(outputs, tokens.info["outputs"])
    np.testing.assert_array_equal(np.sign(outputs), tokens.y)
    assert np.abs(outputs).min() > 0.2
    assert tokens.info["acceptance"] == 300 / tokens.info["attempts"].sum()
    assert 0.7 < tokens.info["acceptance"] < 0.95


def test_planted_rejects_as_often_as_plain_draws_miss_the_margin():
    """Without a margin nothing is rejected, and the share of outputs beyond 0.2 is the acceptance with it."""
    plain = planted(4000, margin=0.0, seed=2)
    assert (plain.info["attempts"] == 1).all()
    kept = float(np.mean(np.abs(plain.info["outputs"]) > 0.2))
    assert planted(4000, seed=2).info["acceptance"] == pytest.approx(kept, abs=0.03)


def test_a_test_set_has_the_teacher_of_its_train_set():
    train = planted(5, seed=0, trials=3)
    test = planted(7, teacher=train, seed=9, trials=3)
    np.testing.assert_array_equal(test.info["teacher_U"], train.info["teacher_U"])
    np.testing.assert_array_equal(test.info["teacher_W"], train.info["teacher_W"])
    for i in range(3):
        outputs = head_output(test.x[i], train.info["teacher_U"][i], train.info["teacher_W"][i])
        np.testing.assert_array_equal(np.sign(outputs), test.y[i])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: tokenized_mixture(sparsity=0.15), "sparsity"),
        (lambda: tokenized_mixture(sparsity=0.0), "sparsity"),
        (lambda: tokenized_mixture(sparsity=1.0), "sparsity"),
        (lambda: tokenized_mixture(sparsity=np.nan), "sparsity"),
        (lambda: tokenized_mixture(d=3), "`d` is 3"),
        (lambda: tokenized_mixture(patterns=0), "patterns"),
        (lambda: tokenized_mixture(signal=0.0), "signal"),
        (lambda: tokenized_mixture(noise="laplace"), "noise"),
        (lambda: tokenized_mixture(noise="bounded", Z_mu=-0.1), "Z_mu"),
        (lambda: tokenized_mixture(Z_mu=0.1), "no bound"),
        (lambda: tokenized_mixture(sigma=np.inf), "sigma"),
        (lambda: tokenized_mixture(relevant="last"), "relevant"),
        (lambda: planted(margin=-1.0), "margin"),
        (lambda: planted(5, margin=1e6), "too few draws"),
        (lambda: planted(norm_W=0.0), "norm_W"),
        (lambda: planted(norm_U=np.inf), "norm_U"),
        (lambda: planted(5, teacher=tokenized_mixture()), "no planted teacher"),
        (lambda: planted(5, teacher=planted(5), trials=2), "trials = None"),
    ],
)
def test_wrong_inputs_are_named(call, named):
    with pytest.raises(InputError, match=named):
        call()
