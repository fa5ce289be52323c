"""Joint training on data of figure 3 ends where an independent implementation ended (seeds 0, 1, 2; 3000 steps)."""

import numpy as np
import pytest

import attnlab as al
from attnlab.optim import gd, joint_decay, joint_separate, joint_total, polyak
from attnlab.svm import linear_margin, solve_margins

pytestmark = pytest.mark.slow


def drawn(seeds, *, n=10, d=100, alpha=3.0, rho=0.1):
    """The data model from `default_rng(seed)`: direction, tokens, position; in coordinates of the span."""
    sets, heads = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        star, white, planted = rng.standard_normal(d), rng.standard_normal((n, 2, d)), rng.integers(0, 2, n)
        x = white * np.where(np.arange(2) == planted[:, None], alpha * rho, rho)[..., None]
        opt = x[np.arange(n), planted]
        y = np.where(opt @ star >= 0, 1.0, -1.0)
        basis = np.linalg.qr(np.vstack([x.reshape(-1, d), star]).T)[0]
        sets.append(al.Tokens.self_attention(x @ basis, y, star @ basis, info={"planted": planted}))
        heads.append(linear_margin(opt @ basis, y).weights)
    tokens = al.Tokens.stack(sets)
    return tokens, {"svm": solve_margins(tokens, tokens.info["planted"]).W, "head": np.array(heads)}


def run(data, rule, steps=3000, record=None):
    tokens, targets = data
    return al.descend(
        tokens,
        rule,
        steps=steps,
        loss="exponential",
        train_head=True,
        init="zeros",
        record=record or [steps],
        targets=targets,
        track=tokens.info["planted"],
    ).metrics


@pytest.fixture(scope="module")
def three():
    return drawn((0, 1, 2))


@pytest.mark.parametrize(
    ("rule", "log_loss", "head", "svm", "norm"),
    [
        (gd(0.02), (-3.65, -3.94, -3.71), (0.970, 0.990, 0.982), (0.980, 0.943, 0.955), (1.97, 1.59, 1.73)),
        (joint_total(0.002), (-4.35, -5.17, -4.56), (0.976, 0.994, 0.986), (0.984, 0.957, 0.969), (2.25, 1.86, 2.03)),
        (polyak(cap=10.0), (-9.97, -10.2, -10.0), (0.991, 0.997, 0.995), (0.992, 0.974, 0.989), (3.70, 2.54, 3.22)),
    ],
    ids=["GD", "joint norm", "Polyak"],
)
def test_figure_3_at_3000_steps(three, rule, log_loss, head, svm, norm):
    found = run(three, rule)
    np.testing.assert_allclose(found["log_loss"][:, -1], log_loss, atol=0.06 if rule.name == "polyak" else 0.006)
    np.testing.assert_allclose(found["cosine_head"][:, -1], head, atol=6e-4)
    np.testing.assert_allclose(found["cosine_svm"][:, -1], svm, atol=6e-4)
    np.testing.assert_allclose(found["norm"][:, -1], norm, atol=0.006)


def test_uncapped_polyak_halves_the_log_loss_each_step(three):
    found = run(three, polyak(), steps=300, record=[100, 200, 300])
    np.testing.assert_allclose(found["log_loss"][:, 1:] - found["log_loss"][:, :-1], -50, atol=0.5)
    assert (found["cosine_head"][:, -1] > 0.999).all()
    assert (found["cosine_svm"][:, -1] > 0.99).all()


def test_separate_norms_can_lock_a_sample_on_the_other_token(three):
    """Seed 0 ends with one sample on the token that was not planted; seeds 1 and 2 train as wanted."""
    found = run(three, joint_separate(0.002))
    np.testing.assert_allclose(found["log_loss"][1:, -1], (-5.64, -5.18), atol=0.006)
    np.testing.assert_allclose(found["cosine_head"][1:, -1], (0.998, 0.995), atol=0.001)
    np.testing.assert_allclose(found["cosine_svm"][1:, -1], (0.995, 0.997), atol=0.001)
    np.testing.assert_allclose(found["norm"][1:, -1], (5.81, 5.66), atol=0.006)
    assert found["attention_min"][0, -1] < 1e-3
    assert found["cosine_head"][0, -1] < 0.8
    sixteen = drawn(range(16))
    locked = run(sixteen, joint_separate(0.002))["attention_min"][:, -1] < 0.1
    assert locked.tolist() == [True] + 15 * [False]
    for rule in (gd(0.02), joint_total(0.002)):
        assert (run(sixteen, rule)["attention_min"][:, -1] > 0.1).all()


def test_decaying_steps_are_frozen_at_the_step_size_of_figure_3(three):
    found = run(three, joint_decay(0.002), steps=10_000)
    np.testing.assert_allclose(found["log_loss"][:, -1], -0.066, atol=0.004)
    np.testing.assert_allclose(found["norm_u"][:, -1], 0.124, atol=0.002)
    np.testing.assert_allclose(found["norm"][:, -1], 0.018, atol=0.001)
    assert found["attention"][0, -1] == pytest.approx(0.507, abs=6e-4)
    assert (found["attention"][:, -1] < 0.52).all()


def test_decaying_steps_align_at_larger_step_sizes(three):
    times = [4, 39, 613, 50_000]
    tokens, targets = three
    for seed, step, wanted in ((1, 0.5, (0.719, 0.938, 0.980, 0.993)), (2, 0.1, (0.454, 0.507, 0.643, 0.859))):
        one = (tokens[seed], {name: value[seed] for name, value in targets.items()})
        found = run(one, joint_decay(step), steps=50_000, record=times)
        np.testing.assert_allclose(found["cosine_svm"], wanted, atol=0.002)
    larger = run(drawn((1,), d=1000, alpha=6.0), joint_decay(0.1), steps=50_000, record=times)
    np.testing.assert_allclose(larger["cosine_svm"][0], (0.906, 0.996, 0.999, 0.9997), atol=6e-4)
