"""Figures 2 and 9 of the encoder's paper: verdicts on made-up curves, drawing, and the data themselves."""

import json
from typing import Any

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.figures.encoder import course, scaling, widths
from attnlab.figures.encoder.runs import Plan
from attnlab.figures.multihead.heads import prefixed

WIDTHS = np.array([10, 100, 1000])
EPOCHS, STOPS, PAIRS = np.arange(0, 401, 10), np.array([0, 1, 50, 51, 399, 400]), np.array([0, 50, 399])
TRIALS = 5


def made_up(
    rates=(0.005, 0.03, 0.06),
    slow=0.1,
    way=(0.5, 0.4, 0.3),
    late=(0.03, 0.02, 0.01),
    bend=0.0,
    own=WIDTHS,
    trials=TRIALS,
):
    """Errors that fall as exp(-rate t), steps that fall as exp(-slow t), kernels that move by `way` in all."""
    t = EPOCHS.astype(float)
    mse = np.exp(-np.asarray(rates)[:, None] * t - bend * np.maximum(t - 250, 0) ** 2)
    step = np.broadcast_to(0.01 * np.exp(-slow * t), mse.shape)
    away = np.asarray(way)[:, None] * np.array([0.0, 0.01, 0.9, 0.9, 1.0, 1.0])
    found = {
        "mse": mse,
        "step": step,
        "concentration": 1.0 + mse,
        "frozen": mse,
        "least": np.ones(3),
        "away": away,
        "largest": np.ones((3, 6)),
        "apart": 1e-2 * np.ones((3, 1)) * np.array([1.0, 0.1, 0.01]),
        "first": 0.9 * np.asarray(way),
        "late": np.asarray(late),
    }
    return {name: np.repeat(values[: len(own), None], trials, axis=1) for name, values in found.items()}


FACTS: dict[str, Any] = {
    "n": 100,
    "T": 10,
    "d": 100,
    "epochs": 400,
    "early epoch": 50,
    "scan epoch": 200,
    "seeds by width": dict.fromkeys(("m = 10", "m = 100", "m = 1000"), TRIALS),
    "deviation of the logits at the start": {
        f"{name}_{scale}": dict.fromkeys(("m = 10", "m = 100", "m = 1000"), 0.01)
        for name in ("main", "unit", "control")
        for scale in ("linear", "sqrt")
    },
}


def figure_2(main: Any = None, other: Any = None):
    """Three readings beside the main one, and a scan in which 1 and N(0, 1) are lost."""
    left = np.full((len(widths.NORMS), 3, 2), 1e-6)
    left[:, 0] = 1e-2
    left[5:] = np.inf
    arrays = {
        "widths": WIDTHS,
        "other_widths": WIDTHS,
        "scan_widths": WIDTHS,
        "epochs": EPOCHS,
        "stops": STOPS,
        "pairs": PAIRS,
        "scan_left": left,
        **prefixed("main", made_up(**(main or {}))),
    }
    for name in widths.OTHERS:
        arrays |= prefixed(name, made_up(**(other or {})))
    return arrays


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rates": (0.005, 0.01, 0.06)}, "falls 10000-fold in every run"),
    ({"rates": (0.02, 0.03, 0.06)}, "m = 10 ends 100 times above"),
    ({"bend": 1e-2}, "along a line"),
    ({"slow": 0.01}, "steps at epoch 50"),
    ({"late": (0.4, 0.3, 0.2)}, "as far after epoch 50"),
    ({"late": (0.01, 0.02, 0.03)}, "the less the kernel moves"),
]


def test_widths_are_judged():
    good = widths.judge(figure_2(other={"slow": 0.0}), FACTS)
    assert good.verdict is Verdict.HOLDS, good.seen  # other readings do not decide
    json.dumps(good.to_json(), allow_nan=False)
    assert "Other readings compared: 3." in good.seen
    assert good.seen.count("6 of 7 checks are seen") == 3
    assert "by epoch 200 at 0.05, 0.1, 0.17, 0.32, 0.56, and no run does at 1, N(0, 1)." in good.seen
    for ways, words in BAD:
        bad = widths.judge(figure_2(ways), FACTS)
        assert bad.verdict is Verdict.FAILS, ways
        failing = [check.name for check in bad.checks if check.part.verdict is Verdict.FAILS]
        assert any(words in name for name in failing), failing
        assert widths.judge(figure_2(ways), {**FACTS, "epochs": 20}).verdict is Verdict.NOT_APPLICABLE


def test_the_way_from_the_start_is_told_apart_from_steadiness():
    assert "does not fall with the width" in widths.judge(figure_2({"way": (0.3, 0.4, 0.5)}), FACTS).seen
    assert "also falls with the width" in widths.judge(figure_2(), FACTS).seen


def test_few_seeds_decide_nothing():
    found = widths.judge(figure_2({"trials": 1}), FACTS)
    assert found.verdict is Verdict.TOO_FEW
    assert "Too few to tell" in found.seen


def test_a_run_that_overflows_is_told_and_left_out():
    arrays = figure_2()
    arrays["main_mse"][0, 1, 5:] = np.inf
    arrays["main_step"][0, 1, 5:] = np.inf
    for name in ("away", "apart", "largest"):
        arrays[f"main_{name}"][0, 1, 2:] = np.nan
    arrays["main_late"][0, 1] = np.nan
    arrays["main_first"][0, 1] = np.nan
    found = widths.judge(arrays, FACTS)
    assert found.verdict is Verdict.HOLDS, found.seen  # narrow networks may overflow
    json.dumps(found.to_json(), allow_nan=False)
    assert found.table["seeds that overflow"] == {"m = 10": 1.0, "m = 100": 0.0, "m = 1000": 0.0}
    picture = widths.draw(arrays, FACTS)
    assert "overflow:\n1 of 5 (m = 10)" in [text.get_text() for text in picture.axes[0].texts]
    picture.canvas.draw()
    arrays["main_mse"][1, 0, 9:] = np.inf  # from n on none
    assert widths.judge(arrays, FACTS).verdict is Verdict.FAILS


def figure_9(linear: Any = None, sqrt: Any = None, control: Any = None):
    arrays = {"widths": WIDTHS, "other_widths": WIDTHS, "epochs": EPOCHS, "stops": STOPS, "pairs": PAIRS}
    for name, ways in (("main", linear), ("unit", None), ("control", control)):
        arrays |= prefixed(f"{name}_linear", made_up(**(ways or {})))
        arrays |= prefixed(f"{name}_sqrt", made_up(**((sqrt or {}) if name == "main" else {})))
    return arrays


def test_scalings_are_judged():
    good = scaling.judge(figure_9(control={"rates": (0.001, 0.001, 0.001)}), FACTS)
    assert good.verdict is Verdict.HOLDS, good.seen  # the control does not decide
    json.dumps(good.to_json(), allow_nan=False)
    ratio = good.numbers["control"]["error at the end, 1/m over m^(-1/2)"]
    assert ratio["m = 10"] == 4.953  # exp(1.6)
    other: list[tuple[dict[str, Any], str]] = [
        ({"rates": (0.005, 0.045, 0.09)}, "within a factor 1.25"),
        ({"way": (0.5, 0.3, 0.2)}, "kernels move as far"),
    ]
    for ways, words in other + BAD:
        bad = scaling.judge(figure_9(ways), FACTS)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]


def test_drawing():
    panels = widths.draw(figure_2(), FACTS).axes
    assert len(panels) == 8
    np.testing.assert_allclose(panels[0].get_lines()[1].get_ydata(), np.exp(-0.03 * EPOCHS))
    assert panels[3].get_lines()[0].get_xdata().tolist() == PAIRS.tolist()
    # 0, the distance of a kernel from itself, is drawn where the axis is linear only
    assert panels[2].get_lines()[0].get_xdata()[0] == 0
    picture = scaling.draw(figure_9(), FACTS)
    assert len(picture.axes) == 8
    np.testing.assert_allclose(picture.axes[7].get_lines()[0].get_ydata(), 1.0)
    assert len(picture.axes[3].get_lines()) == 3 + 1 + 3  # tau0 = 1/m, epoch 50, tau0 = m^(-1/2)
    picture.canvas.draw()


def test_at_least_three_seeds_at_every_width_of_the_main_reading():
    assert min(widths.trials_of(Scale.PAPER)["main"].values()) >= 3
    assert min(scaling.trials_of(Scale.PAPER)["main"].values()) >= 3
    assert list(widths.trials_of(Scale.PAPER)["main"]) == [10, 100, 1000, 4000]


@pytest.mark.slow
def test_data_of_widths(monkeypatch):
    plan = Plan(epochs=4, every=2, pairs=(0, 2, 3), early=2)
    for module in (widths, course):
        monkeypatch.setattr(module, "long_plan", lambda scale: plan)
    monkeypatch.setattr(widths, "trials_of", lambda scale: {key: {10: 2} for key in ("main", "others", "scan")})
    monkeypatch.setattr(widths, "NORMS", (0.17, None))
    told = []
    arrays, known = widths.widths_data(Scale.SMOKE, lambda *parts: told.append(parts))
    assert [parts[:2] for parts in told] == [(i, 5) for i in range(6)]
    shapes = {"mse": (1, 2, 5), "step": (1, 2, 5), "apart": (1, 2, 3), "first": (1, 2), "late": (1, 2)}
    for name, shape in shapes.items():
        assert arrays[f"main_{name}"].shape == shape
        assert np.isfinite(arrays[f"main_{name}"]).all()
    assert known["seeds by width"] == {"m = 10": 2}
    # What the scan has at its epoch is what the main run has there; tokens as drawn are lost.
    at = list(arrays["epochs"]).index(known["scan epoch"])
    share = arrays["main_mse"][0, :, at] / arrays["main_mse"][0, :, 0]
    np.testing.assert_allclose(arrays["scan_left"][0, 0], share, rtol=1e-9)
    assert (arrays["scan_left"][1] > 1e6).all()
