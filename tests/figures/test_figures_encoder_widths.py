"""Figures 2 and 9 of the encoder's paper: verdicts on made-up curves, drawing, and the data themselves."""

import json
from typing import Any

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.figures.encoder import widths
from attnlab.figures.encoder.runs import Plan
from attnlab.figures.multihead.heads import prefixed

WIDTHS = np.array([10, 100, 1000])
EPOCHS, STOPS, PAIRS = np.arange(0, 401, 10), np.array([0, 1, 50, 51, 399, 400]), np.array([0, 50, 399])
TRIALS = 3


def made_up(rates=(0.005, 0.03, 0.06), slow=0.1, jumps=(1e-2, 1e-3, 1e-4), way=(0.5, 0.4, 0.3), late=0.02, bend=0.0):
    """Losses that fall as exp(-rate t), steps that fall as exp(-slow t), kernels that move by `way` in all."""
    t = EPOCHS.astype(float)
    mse = np.exp(-np.asarray(rates)[:, None] * t - bend * np.maximum(t - 250, 0) ** 2)
    step = np.broadcast_to(0.01 * np.exp(-slow * t), mse.shape)
    away = np.asarray(way)[:, None] * np.array([0.0, 0.01, 0.9, 0.9, 1.0, 1.0])
    apart = np.asarray(jumps)[:, None] * np.array([1.0, 0.1, 0.01])
    found = {
        "mse": mse, "step": step, "concentration": 1.0 + mse, "frozen": mse, "least": np.ones(3),
        "away": away, "largest": np.ones((3, 6)), "apart": apart, "late": np.full(3, late),
    }  # fmt: skip
    return {name: np.repeat(values[:, None], TRIALS, axis=1) for name, values in found.items()}


def facts(*names):
    return {
        "n": 100, "T": 10, "d": 100, "epochs": 400, "early epoch": 50, "seeds by width": dict.fromkeys(
            ("m = 10", "m = 100", "m = 1000"), TRIALS), "readings": {name: {"words": name} for name in names},
        "deviation of the logits at the start": {name: dict.fromkeys(("m = 10", "m = 100", "m = 1000"), 0.01)
                                                 for name in ("linear", "sqrt", "raw_linear", "raw_sqrt")},
    }  # fmt: skip


def both(adopted: Any = None, scaled: Any = None, literal=np.inf):
    loss = np.full((3, TRIALS, 13), literal)
    loss[..., 0] = 1.0
    return {
        "widths": WIDTHS, "epochs": EPOCHS, "stops": STOPS, "pairs": PAIRS, "literal_loss": loss,
        "literal_largest": np.full((3, TRIALS), 40.0), **prefixed("adopted", made_up(**(adopted or {}))),
        **prefixed("scaled", made_up(**(scaled or {}))),
    }  # fmt: skip


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rates": (0.005, 0.03, 0.01)}, "the loss falls 10000-fold"),
    ({"rates": (0.03, 0.03, 0.06)}, "the narrowest network ends 100 times above"),
    ({"bend": 1e-2}, "straight line"),
    ({"slow": 0.01}, "steps at epoch 50"),
    ({"late": 0.45}, "moves less after epoch 50"),
    ({"jumps": (1e-3, 1e-2, 1e-4), "way": (0.4, 0.5, 0.3)}, "the steadier the kernel"),
]
READ = ("adopted", "scaled", "literal")


def test_widths_are_judged():
    good = widths.judge_widths(both(scaled={"slow": 0.0}), facts(*READ))
    assert good.verdict is Verdict.HOLDS, good.seen  # one reading is enough
    assert "in 9 of 9 runs, by step 1" in good.seen
    for ways, words in BAD:
        bad = widths.judge_widths(both(ways, ways), facts(*READ))
        assert bad.verdict is Verdict.FAILS
        assert bad.seen.count(words) == 2, (words, bad.seen)
    # what one reading shows does not make up for another
    bad = widths.judge_widths(both(BAD[3][0], BAD[1][0]), facts(*READ))
    assert bad.verdict is Verdict.FAILS
    brief = widths.judge_widths(both(BAD[3][0], BAD[1][0]), {**facts(*READ), "epochs": 20})
    assert brief.verdict is Verdict.NOT_APPLICABLE
    assert "in 0 of 9 runs, never" in widths.judge_widths(both(literal=2.0), facts(*READ)).seen


def test_a_run_that_overflows_is_told_and_left_out():
    arrays = both()
    arrays["scaled_mse"][0, 1, 5:] = np.inf
    arrays["scaled_step"][0, 1, 5:] = np.inf
    for name in ("away", "apart", "largest"):
        arrays[f"scaled_{name}"][0, 1, 2:] = np.nan
    arrays["scaled_late"][0, 1] = np.nan
    seen = widths.judge_widths(arrays, facts(*READ))
    assert seen.verdict is Verdict.HOLDS
    json.dumps(seen.numbers, allow_nan=False)
    assert seen.numbers["scaled"]["seeds that overflow"] == {"m = 10": 1.0, "m = 100": 0.0, "m = 1000": 0.0}
    picture = widths.draw_both(arrays, facts(*READ))
    assert "left out: 1 of 3 at m = 10 in b." in picture.legends[0].get_title().get_text()
    picture.canvas.draw()
    # narrow networks may overflow; from n on none
    for one in ("adopted", "scaled"):
        arrays[f"{one}_mse"][1, 0, 9:] = np.inf
    assert widths.judge_widths(arrays, facts(*READ)).verdict is Verdict.FAILS


def scalings(linear: Any = None, sqrt: Any = None, raw: Any = None):
    one = made_up(**(sqrt or {}))
    return {
        "widths": WIDTHS, "narrow": WIDTHS, "epochs": EPOCHS, "stops": STOPS, "pairs": PAIRS,
        **prefixed("linear", made_up(**(linear or {}))),
        **prefixed("sqrt", one), **prefixed("raw_linear", made_up(**(raw or {}))), **prefixed("raw_sqrt", one),
    }  # fmt: skip


def test_scalings_are_judged():
    names = facts("linear", "sqrt", "raw_linear", "raw_sqrt")
    good = widths.judge_scaling(scalings(raw={"rates": (0.001, 0.001, 0.001)}), names)
    assert good.verdict is Verdict.HOLDS, good.seen  # the control does not decide
    assert good.numbers["control: loss at the end, 1/m over m^(-1/2)"]["m = 10"] == 4.953  # exp(1.6)
    other: list[tuple[dict[str, Any], str]] = [
        ({"rates": (0.005, 0.035, 0.06)}, "losses at the end within"),
        ({"way": (0.5, 0.4, 0.2)}, "kernel distances within"),
    ]
    for ways, words in other + BAD:
        bad = widths.judge_scaling(scalings(ways), names)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]


def test_drawing():
    panels = widths.draw_both(both(), facts(*READ)).axes
    assert len(panels) == 8
    np.testing.assert_allclose(panels[0].get_lines()[1].get_ydata(), np.exp(-0.03 * EPOCHS))
    assert panels[3].get_lines()[0].get_xdata().tolist() == PAIRS.tolist()
    # 0, the distance of a kernel from itself, is drawn where the axis is linear only
    assert panels[2].get_lines()[0].get_xdata()[0] == 0
    picture = widths.draw_scaling(scalings(), facts("linear", "sqrt", "raw_linear", "raw_sqrt"))
    assert len(picture.axes) == 8
    np.testing.assert_allclose(picture.axes[7].get_lines()[0].get_ydata(), 1.0)
    assert len(picture.axes[3].get_lines()) == 3 + 1 + 3  # tau0 = 1/m, epoch 50, tau0 = m^(-1/2)
    picture.canvas.draw()


@pytest.mark.slow
def test_data_of_widths(monkeypatch):
    assert widths.planned_runs(Scale.PAPER)[1] == {10: 5, 100: 5, 1000: 4, 4000: 2}
    plan = Plan(epochs=4, every=2, pairs=(0, 2, 3), early=2)
    monkeypatch.setattr(widths, "planned_runs", lambda scale: (plan, {10: 2}))
    told = []
    arrays, known = widths.widths_data(Scale.SMOKE, lambda *parts: told.append(parts))
    assert [parts[:2] for parts in told] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    shapes = {"mse": (1, 2, 5), "step": (1, 2, 5), "away": (1, 2, 5), "apart": (1, 2, 3), "late": (1, 2)}
    for reading in widths.READINGS:
        for name, shape in shapes.items():
            assert arrays[f"{reading}_{name}"].shape == shape
            assert np.isfinite(arrays[f"{reading}_{name}"]).all()
    assert (arrays["literal_loss"][..., -1] > 1e6).all()
    assert (arrays["literal_largest"] > 20).all()
    assert known["seeds by width"] == {"m = 10": 2}
