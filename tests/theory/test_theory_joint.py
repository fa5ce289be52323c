"""Conditions and bounds of joint training, against loops and formulas written out by hand."""

from itertools import product

import numpy as np
import pytest

import attnlab as al
from attnlab.data.highdim import gaussian_signal_in_span
from attnlab.theory.fast_rates import joint
from attnlab.theory.fast_rates.joint import JointModel, condition_1

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
    assert joint.radius(model, 2.0, 1e-9) == pytest.approx(
        4e9 * max(np.log(4e9 * ratio), 5 * np.log(40 * model.B**2 * 2e9))
    )
    assert joint.radius(model, 2.0, 0.5, loss_ratio=1e30, corrected=True) > joint.radius(
        model, 2.0, 0.5, loss_ratio=1e30
    )
    values = {"norm": 10.0, "cosine": 0.95, "loss": 0.0, "log_time": 50.0}
    printed = joint.alignment_constant(model, 1e-3, 2.0, 0.1, **values)
    assert printed == pytest.approx(2 * model.B**2 * 2 / 1e-3 * 10 * (0.9 - 0.95))
    assert joint.alignment_constant(model, 1e-3, 2.0, 0.1, **values, corrected=True) == 0
    values["cosine"] = 0.5
    corrected = joint.alignment_constant(model, 1e-3, 2.0, 0.1, **values, corrected=True)
    assert corrected == pytest.approx(joint.alignment_constant(model, 1e-3, 2.0, 0.1, **values))
    p = 1e-3 * 100 / (8 * model.B**2 * 4)
    length = model.rho * np.sqrt(1.5e6)
    wanted = {"main": 0.25 - 1 / (1 + np.exp(p)), "appendix": 0.25 - length / (1 + np.exp(-p)),
              "corrected": 0.25 - length / (1 + np.exp(p))}  # fmt: skip
    for form, value in wanted.items():
        assert joint.margin_bound(model, 1e-3, 100.0, 2.0, 1.0, form=form) == pytest.approx(value)


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
        assert (np.sign(np.einsum("rnd,rd->rn", x[:, ::2], tokens.v)) == tokens.y).all()
        grams.append(
            np.concatenate([np.einsum("rid,rjd->rij", x, x), np.einsum("rid,rd->ri", x, tokens.v)[..., None]], -1)
        )
    for moment in (1, 2):
        one, other = (np.mean(g**moment, 0) for g in grams)
        error = np.sqrt(sum(np.var(g**moment, 0) for g in grams) / sizes["trials"])
        assert (np.abs(one - other) < 5 * error).all()
