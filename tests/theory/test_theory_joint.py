"""Conditions and bounds of joint training, against loops and formulas written out by hand."""

from itertools import product

import numpy as np
import pytest

import attnlab as al
from attnlab.data.highdim import gaussian_signal_in_span
from attnlab.theory.rates import joint
from attnlab.theory.rates.joint import JointModel, condition_1

FIGURE_3 = JointModel(n=10, d=100, alpha=3.0, rho=0.1)


def test_constants_of_figure_3():
    assert pytest.approx(0.3 * np.sqrt(150)) == FIGURE_3.B
    assert FIGURE_3.omega_0 == pytest.approx(13 * FIGURE_3.B**5 * 100)
    assert FIGURE_3.omega_1 == pytest.approx(FIGURE_3.B / (8 * np.sqrt(1.5 * 10)))  # the form of Lemma 13
    assert FIGURE_3.omega_2 == pytest.approx(0.03 * np.sqrt(np.log(1e4)))
    caps = list(FIGURE_3.step_caps.values())
    assert caps[:3] == pytest.approx([0.00617, 1.875e-4, 0.0629], rel=2e-3)
    assert 1e-9 < caps[3] < 1e-7
    assert FIGURE_3.omega([0.5, 2.0]) == pytest.approx([FIGURE_3.omega_0, 4 * FIGURE_3.omega_0])


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"alpha": 5.9}, "alpha / 6"),
        ({"d": 1e5}, "d / least d"),
        ({"rho": 1e-4}, "B / 1"),
        ({"n": 1}, "n / 2"),
        ({"rho": 1e-3}, "B/(128 omega_0 sqrt(1.5 n)) / eta"),
    ],
)
def test_each_part_of_condition_1_is_seen(change, part):
    sizes = {"n": 2, "d": 1e6, "alpha": 6.0, "rho": 1.5 / (6 * np.sqrt(1.5e6))}
    step = 0.9 * min(JointModel(**sizes).step_caps.values())
    assert condition_1(JointModel(**sizes), step)
    found = condition_1(JointModel(**{**sizes, **change}), step)
    assert not found
    assert found.evidence["ratios"][part] < 1


def test_condition_1_forms():
    model = JointModel(n=2, d=1e6, alpha=6.0, rho=1.5 / (6 * np.sqrt(1.5e6)))
    step = min(model.step_caps.values())
    assert condition_1(model, step * 0.999, form="main")  # its constant is that of the last cap
    assert not condition_1(model, step * 1.01, form="main")
    assert not condition_1(model, step, form="proof")
    assert not condition_1(model, step, start=1e-3)
    assert not condition_1(model, step, constant=100.0)


def test_near_orthogonality_against_loops():
    tokens = al.data.gaussian_signal(n=3, T=3, d=7, seed=4)
    model = JointModel(n=3, d=7, alpha=3.0, rho=0.1)
    x, opt = tokens.x, tokens.info["planted"]
    q = np.sqrt(7 * np.log(90 / 0.1))
    low = dict.fromkeys(("E1", "E2", "E3", "E4", "E5", "own"), np.inf)
    for (i, j), s, t in product(product(range(3), range(3)), range(3), range(3)):
        a, b = (3.0 if s == opt[i] else 1.0), (3.0 if t == opt[j] else 1.0)
        value = x[i, s] @ x[j, t]
        if i == j and s == t:
            size = value / (a**2 * 0.01 * 7)
            kind, ratio = "E1" if a > 1 else "E2", min(size / 0.5, 1.5 / size)
        elif i == j:
            if not (a > 1) ^ (b > 1):
                continue
            kind, ratio = "own", 2 * a * b * 0.01 * q / abs(value)
        else:
            kind = "E3" if a * b > 3 else "E5" if a * b > 1 else "E4"
            ratio = 2 * a * b * 0.01 * q / abs(value)
        low[kind] = min(low[kind], ratio)
    found = joint.near_orthogonality(tokens, model)
    assert {k: float(v) for k, v in found.items()} == pytest.approx({k: v for k, v in low.items() if k != "own"})
    within = joint.near_orthogonality(tokens, model, within_samples=True)["E5"]
    assert within == pytest.approx(min(low["E5"], low["own"]))


def test_separation_against_loops_and_batches():
    tokens = al.data.gaussian_signal(n=4, T=3, d=9, seed=1, trials=3)
    model = JointModel(n=4, d=9, alpha=3.0, rho=0.1)
    found = joint.separation(tokens, model)
    for trial in range(3):
        x, y, opt = tokens.x[trial], tokens.y[trial], tokens.info["planted"][trial]
        u = sum(y[i] * x[i, opt[i]] for i in range(4))
        least = min(
            y[j] * (x[j, opt[j]] + x[j, t]) @ u / np.linalg.norm(u) for j in range(4) for t in range(3) if t != opt[j]
        )
        assert found[trial] == pytest.approx(least / (0.3 / 4 * np.sqrt(9 / 4)))


@pytest.mark.parametrize("power", [2 / 3, 0.9, 1.0])
def test_decayed_sum_is_the_sum(power):
    terms = np.arange(1.0, 200_001) ** -power
    for t in (0, 1, 7, 1000, 1001, 5000, 200_000):
        assert joint.decayed_sum(t, power) == pytest.approx(terms[:t].sum(), rel=1e-13, abs=1e-300)


def test_printed_and_corrected_forms_differ_as_said():
    model = JointModel(n=2, d=1e6, alpha=6.0, rho=1.0 / (6 * np.sqrt(1.5e6)))
    ratio = 24 * 4 * np.sqrt(2e6 / model.log_term)
    assert joint.radius(model, 2.0, 1e-9, corrected=False) == pytest.approx(
        4e9 * max(np.log(4e9 * ratio), 5 * np.log(40 * model.B**2 * 2e9))
    )
    assert joint.radius(model, 2.0, 0.5, loss_ratio=1e30, corrected=True) > joint.radius(
        model, 2.0, 0.5, loss_ratio=1e30, corrected=False
    )
    values = {"norm": 10.0, "cosine": 0.95, "loss": 0.0, "log_time": 50.0}
    printed = joint.alignment_constant(model, 1e-3, 2.0, 0.1, **values, corrected=False)
    assert printed == pytest.approx(2 * model.B**2 * 2 / 1e-3 * 10 * (0.9 - 0.95))
    assert joint.alignment_constant(model, 1e-3, 2.0, 0.1, **values, corrected=True) == 0
    values["cosine"] = 0.5
    corrected = joint.alignment_constant(model, 1e-3, 2.0, 0.1, **values, corrected=True)
    assert corrected == pytest.approx(joint.alignment_constant(model, 1e-3, 2.0, 0.1, **values, corrected=False))
    p = 1e-3 * 100 / (8 * model.B**2 * 4)
    length = model.rho * np.sqrt(1.5e6)
    wanted = {
        "main": 0.25 - 1 / (1 + np.exp(p)),
        "appendix": 0.25 - length / (1 + np.exp(-p)),
        "corrected": 0.25 - length / (1 + np.exp(p)),
    }
    for form, value in wanted.items():
        assert joint.margin_bound(model, 1e-3, 100.0, 2.0, 1.0, form=form) == pytest.approx(value)


def test_score_gaps_and_curvature_are_as_printed():
    """Lemma 11's omega_2 and Lemma 13's omega(theta), written out for n = 2, d = 1000, alpha = 6, rho = 0.1."""
    model = JointModel(n=2, d=1000, alpha=6.0, rho=0.1)
    omega_2 = (0.6 / 2) * np.sqrt(np.log(10 * 4 / 0.1))
    sums = np.array([1.0, 1.0 + 2 ** (-2 / 3) + 3 ** (-2 / 3)])
    np.testing.assert_allclose(joint.score_gap_bound(model, 0.01, [1, 3]), 0.01 * omega_2 * sums)
    B = 0.6 * np.sqrt(1500)  # about 23
    small = 13 * B**5 * 1000  # |u| below 1, and B below d
    assert joint.curvature_bound(model, 0.3, 0.2) == pytest.approx(8 * small)
    assert joint.curvature_bound(model, 0.3, 2.0) == pytest.approx(8 * 4 * small)
    assert joint.curvature_bound(JointModel(n=2, d=4, alpha=6.0, rho=0.01), 0.3, 0.2) == pytest.approx(8 * 13 * 4)
    long = JointModel(n=2, d=4, alpha=6.0, rho=1.0)  # B above d
    assert joint.curvature_bound(long, 0.0, 0.0) == pytest.approx(8 * 13 * (6 * np.sqrt(6)) ** 6)


@pytest.mark.parametrize("epsilon", [0.5, 0.01])
def test_times_and_radii_are_as_printed(epsilon):
    """Theorem 9's t_eps and Eq. (56)'s R_eps, both branches, written out for n = 3, d = 1e6 and B = 2."""
    model = JointModel(n=3, d=1e6, alpha=10.0, rho=2.0 / (10 * np.sqrt(1.5e6)))
    step, Lambda = 1e-7, 0.7
    of_losses = 24 * 9 * np.sqrt(2e6 / np.log(90 / 0.1))
    wanted = (10 * 2 * 0.7) ** 2 / 1e-7 * (of_losses / 250) ** (1 / 3) * epsilon ** (-4 / 3)
    assert joint.log_alignment_time(model, step, Lambda, epsilon, corrected=False) == pytest.approx(wanted)
    more = (7 * 4 * 0.7) ** (1 / 3)  # 7 B^2 Lambda times C n^2
    assert joint.log_alignment_time(model, step, Lambda, epsilon, corrected=True) == pytest.approx(wanted * more)
    few = joint.log_alignment_time(model, step, Lambda, epsilon, loss_ratio=1e-9, corrected=False)
    assert few == pytest.approx((14.0) ** 2 / 1e-7 * 28.0 ** (1 / 3) * epsilon ** (-4 / 3))
    early = joint.log_alignment_time(model, step, 1e-4, epsilon, loss_ratio=1e-30, corrected=False)
    assert early == pytest.approx(4e-4 / 1e-7)
    radius = 1.4 / epsilon * max(np.log(4 * of_losses / epsilon), 5 * np.log(40 * 4 * 0.7 / epsilon))
    assert joint.radius(model, Lambda, epsilon, corrected=False) == pytest.approx(radius)
    large = joint.radius(model, Lambda, epsilon, loss_ratio=1e30, corrected=False)
    assert large == pytest.approx(1.4 / epsilon * np.log(4 * of_losses / 24 * 1e30 / epsilon))


def test_loss_bounds_are_as_printed():
    """Theorem 8 and the lines before it, at t = 8 for n = 4, d = 100, alpha = 6, rho = 0.1."""
    model = JointModel(n=4, d=100, alpha=6.0, rho=0.1)
    omega_1 = 0.6 / 8 * 5
    omega_0 = 13 * (0.6 * np.sqrt(150)) ** 5 * 100
    total = sum((s + 1) ** (-2 / 3) for s in range(8))
    assert joint.log_loss_bound(model, 1e-9, 8) == pytest.approx(-1e-9 * omega_1 / 2 * 2)
    assert joint.log_loss_bound(model, 1e-9, 8, summed=True) == pytest.approx(-1e-9 * omega_1 / 2 * total)
    line = -(1e-9 * omega_1 - 8e-18 * omega_0) * total
    assert joint.log_loss_bound(model, 1e-9, 8, summed=True, halved=False) == pytest.approx(line)


def test_model_is_read_from_tokens():
    found = JointModel.of(al.data.gaussian_signal(n=20, d=4000, strength=5.0, noise=0.3, seed=0, trials=3))
    assert (found.alpha, found.rho) == pytest.approx((5.0, 0.3), rel=0.02)
    far = JointModel.of(gaussian_signal_in_span(n=3, d=1e12, strength=5.0, noise=0.3))
    assert (far.alpha, far.rho, far.d) == pytest.approx((5.0, 0.3, 1e12), rel=1e-4)


def test_planted_tokens_must_be_known():
    with pytest.raises(al.errors.InputError, match="planted"):
        joint.separation(al.data.sphere(n=2, T=2, d=3), FIGURE_3)
    with pytest.raises(al.errors.InputError, match="shape"):
        joint.separation(al.data.sphere(n=2, T=2, d=3), FIGURE_3, planted=[0])


def test_tokens_in_their_span_have_the_inner_products_of_the_dimension():
    """First two moments of the Gram matrix, and labels, as for tokens drawn in full."""
    sizes = {"n": 2, "T": 2, "d": 12, "strength": 2.0, "noise": 0.5, "trials": 2_000}
    grams = []
    for family in (al.data.gaussian_signal, gaussian_signal_in_span):
        tokens = family(**sizes)
        opt = tokens.info["planted"][..., None, None]
        x = np.concatenate([np.take_along_axis(tokens.x, o, -2) for o in (opt, 1 - opt)], -2).reshape(-1, 4, tokens.d)
        assert tokens.v is not None
        assert (np.sign(np.einsum("rnd,rd->rn", x[:, ::2], tokens.v)) == tokens.y).all()
        grams.append(
            np.concatenate([np.einsum("rid,rjd->rij", x, x), np.einsum("rid,rd->ri", x, tokens.v)[..., None]], -1)
        )
    for moment in (1, 2):
        one, other = (np.mean(g**moment, 0) for g in grams)
        error = np.sqrt(sum(np.var(g**moment, 0) for g in grams) / sizes["trials"])
        assert (np.abs(one - other) < 5 * error).all()
