"""Figures 2 and 3 of the multi-head paper: an oracle for the curves, verdicts on doctored ones, drawing."""

from typing import Any

import numpy as np
import pytest

from attnlab.claims import Verdict
from attnlab.claims.stages import Stages
from attnlab.data.mixture import tokenized_mixture
from attnlab.figures.multihead import heads, mixture

HEADS = np.array([1, 4, 64])
STEPS = np.unique([0, *np.geomspace(1, 4000, 40).astype(int)])
GAMMA = float(np.sqrt(20.0))


def made_up(name, exponent, share, power=1.0):
    """Three sets; the loss falls as t^-power from H^exponent, the margin goes to a share of gamma_attn for each H."""
    t = np.maximum(STEPS, 1).astype(float)
    loss = 0.1 * HEADS[:, None] ** float(exponent) * t ** -float(power)
    rising = (1 - np.exp(-t)) * np.ones((3, 1))
    found = {
        "loss": loss, "log_loss": np.log(loss), "test_loss": 2 * loss, "test_error": np.zeros_like(loss),
        "norm_U": 2 * rising, "norm_W": rising * (STEPS > 1), "attention": 0.9 * rising,
        "normalized_margin": GAMMA * np.asarray(share)[:, None] * rising,
    }  # fmt: skip
    found = {key: np.repeat(values[:, None], 3, axis=1) for key, values in found.items()}
    return heads.prefixed(name, {"steps": STEPS, **found})


def facts(*names):
    return {"gamma_attn": GAMMA, "n": 100, "sets": 3, "test sequences": 300,
            "rules": dict.fromkeys(names, "a rule"), "steps": dict.fromkeys(names, 4000)}  # fmt: skip


def constant(exponent=0.3, share=(0.9, 0.7, 0.3), **ways):
    return {"heads": HEADS, **made_up("gd", exponent, share, **ways)}


def test_constant_steps_are_judged():
    good = mixture.judge_constant(constant(), facts("gd"))
    assert good.verdict is Verdict.HOLDS, good.seen
    doctored: list[tuple[dict[str, Any], str]] = [
        ({"exponent": -0.3}, "the train loss rises with H"),
        ({"power": 0.8}, "falls as 1/t"),
        ({"share": (0.75, 0.5, 0.3)}, "one head reaches 0.8"),
        ({"share": (0.9, 0.3, 0.7)}, "the margin falls with H"),
    ]
    for ways, words in doctored:
        bad = mixture.judge_constant(constant(**ways), facts("gd"))
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]


def faster(scaled=(-0.3, (0.9, 0.7, 0.3)), adam=(-4.0, (0.9, 0.8, 0.8))):
    return {"heads": HEADS, **made_up("scaled", *scaled), **made_up("adam", *adam)}


def test_growing_steps_and_adam_are_judged():
    names = facts("scaled", "adam")
    good = mixture.judge_faster(faster(), names)
    assert good.verdict is Verdict.HOLDS, good.seen
    for ways, words in (
        ({"scaled": (0.1, (0.9, 0.7, 0.3))}, "GD: every H > 1 ends with less"),
        ({"scaled": (-0.3, (0.9, 0.3, 0.7))}, "GD: the margin falls"),
        ({"adam": (0.1, (0.9, 0.8, 0.8))}, "Adam: at step 10"),
        ({"adam": (-0.1, (0.9, 0.8, 0.8))}, "Adam gains more"),
    ):
        bad = mixture.judge_faster(faster(**ways), names)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]


def test_drawing():
    panels = mixture.draw(constant(), facts("gd")).axes
    assert len(panels) == 8
    assert panels[3].get_lines()[-1].get_ydata()[0] == GAMMA
    # 1/t through a third of the end of the curve with one head
    np.testing.assert_allclose(panels[0].get_lines()[-1].get_ydata()[-1], 0.1 / 4000 / 3, rtol=1e-9)
    # W = 0 at the first step has no place on a log axis
    assert panels[5].get_lines()[0].get_xdata()[0] == STEPS[2]
    panels = mixture.draw(faster(), facts("adam", "scaled")).axes
    assert len(panels) == 16
    # GD is drawn above Adam, in whatever order the facts come
    np.testing.assert_array_equal(panels[0].get_lines()[2].get_ydata()[-1], faster()["scaled_loss"][2, 0, -1])


def descent(x, y, H, step, steps):
    """GD on one head held as sqrt(H) U and W, with step and step / H: what H equal heads do, written out."""
    n, T, d = x.shape
    U, W, xt = np.zeros((T, d)), np.zeros((d, d)), np.swapaxes(x, 1, 2)

    def attend():
        A = np.exp(x @ W @ xt)
        A /= A.sum(-1, keepdims=True)
        return A, U @ xt, y * np.sum(A * (U @ xt), (1, 2))

    for _ in range(steps):
        A, Q, margins = attend()
        slope = -y / (1 + np.exp(margins)) / n
        D = A * (Q - np.sum(A * Q, -1, keepdims=True))
        by_U, by_W = np.einsum("n,ntd->td", slope, A @ x), np.einsum("n,nde->de", slope, xt @ D @ x)
        U, W = U - step * by_U, W - step / H * by_W
    A, _, margins = attend()
    return U, W, A, margins


@pytest.mark.slow
def test_curves_are_those_of_one_head_with_another_step():
    from attnlab.optim import gd

    tokens, test = tokenized_mixture(30, seed=0, trials=2), tokenized_mixture(40, seed=1, trials=2)
    relevant = tokens.info["relevant"]
    told = []
    stage = Stages(lambda done, total, words: told.append(words), 2)
    found = heads.run_heads(tokens, lambda H: gd(0.5 * np.sqrt(H)), mixture.KEPT, (1, 9), stage, "GD", steps=10,
                            test=test, track=relevant)  # fmt: skip
    assert told == ["GD, H = 1", "GD, H = 9", "done"]
    assert found["loss"].shape == (2, 2, len(found["steps"]))
    for i, H in enumerate((1, 9)):
        for trial in range(2):
            U, W, A, margins = descent(tokens.x[trial], tokens.y[trial], H, 0.5 * np.sqrt(H), 10)
            wanted = {
                "loss": np.log1p(np.exp(-margins)).mean(), "norm_U": np.linalg.norm(U), "norm_W": np.linalg.norm(W),
                "normalized_margin": margins.min() / np.linalg.norm(U),
                "attention": np.where(relevant[trial][:, None], A, 0.0).sum(-1).mean(),
            }  # fmt: skip
            for key, value in wanted.items():
                np.testing.assert_allclose(found[key][i, trial, -1], value, rtol=1e-8, err_msg=key)


@pytest.mark.slow
def test_files(tmp_path):
    from attnlab.figures import make

    made = make(mixture.FIGURES[0], "smoke", out=tmp_path)
    np.testing.assert_allclose(made.facts["gamma_attn"], GAMMA, rtol=1e-12)
    assert made.finding.verdict is Verdict.HOLDS, made.finding.seen
