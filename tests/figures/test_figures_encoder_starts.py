"""Figure 5 of the encoder's paper: verdicts on made-up curves, drawing, and the data themselves."""

import json
from typing import Any

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.figures.encoder import starts
from attnlab.figures.encoder.runs import WIDTHS
from attnlab.figures.multihead.heads import prefixed

EPOCHS = np.arange(0, 401, 10)
COUNTS = (3, 3, 3, 1)


def made_up(rate, late=0.0):
    """Three seeds, one at the largest width; the error falls as exp(-rate t), and from epoch 100 slower by `late`."""
    slower = np.exp(np.broadcast_to(late, 4)[:, None, None] * np.maximum(EPOCHS - 100, 0))
    mse = np.exp(-np.broadcast_to(rate, 4)[:, None, None] * EPOCHS) * slower * np.ones((4, 3, 1))
    found = {
        "mse": mse,
        "step": 0.01 * mse,
        "frozen": mse**0.5,
        "away": np.full((4, 3, 5), 0.1),
        "largest": np.ones((4, 3, 5)),
        "least": np.ones((4, 3)),
    }
    for values in found.values():
        values[3, 1:] = np.nan
    return found


def arrays(lecun: Any = 0.05, he: Any = 0.06, ntk: Any = 0.005, ntk10: Any = 0.02, late: Any = 0.0):
    rates = {"lecun": lecun, "he": he, "ntk": ntk, "ntk10": ntk10}
    found = {"widths": np.array(WIDTHS), "other_widths": np.array(WIDTHS), "epochs": EPOCHS}
    for name, rate in rates.items():
        found |= prefixed(f"main_{name}", made_up(rate, late if name == "he" else 0.0))
        found |= prefixed(f"unit_{name}", made_up(0.02))
    return found


FACTS = {
    "n": 100,
    "T": 10,
    "d": 100,
    "epochs": 400,
    "early epoch": 50,
    "seeds by width": {f"m = {m}": c for m, c in zip(WIDTHS, COUNTS, strict=True)},
}


def test_starts_are_judged():
    good = starts.judge(arrays(), FACTS)
    assert good.verdict is Verdict.HOLDS, good.seen
    json.dumps(good.to_json(), allow_nan=False)
    assert "exception" not in good.seen
    # exp(-0.05 t) <= 0.1 from t = 46 on; 50 is the next record
    assert good.table["LeCun, step 1: epochs to 0.1 of the error"]["m = 10"] == "50"
    for ways, words in (
        ({"he": 0.3}, "LeCun and He reach"),
        ({"he": 0.02}, "both then fall"),
        ({"ntk": 0.2}, "NTK reaches 0.1 of the error after"),
        ({"ntk10": 0.004}, "NTK reaches it sooner with step 10"),
    ):
        bad = starts.judge(arrays(**ways), FACTS)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]
    assert starts.judge(arrays(he=0.3), {**FACTS, "epochs": 20}).verdict is Verdict.NOT_APPLICABLE


def test_one_start_that_slows_is_told():
    found = starts.judge(arrays(late=(0.0, 0.0, 0.055, 0.0)), FACTS)
    assert "An exception: He slows and ends far above LeCun at m = 1000" in found.seen
    assert "m = 100 " not in found.seen.split("An exception")[1].split(".")[0]


def test_drawing():
    picture = starts.draw(arrays(), FACTS)
    assert len(picture.axes) == 12
    np.testing.assert_allclose(picture.axes[1].get_lines()[3].get_ydata(), np.exp(-0.06 * EPOCHS))
    assert len(picture.axes[4].get_lines()) == 4 + 2  # four starts, two with the kernel of the start
    picture.canvas.draw()
    few = {key: values[:2] if values.shape[0] == 4 else values for key, values in arrays().items()}
    shown = [panel.get_visible() for panel in starts.draw(few, FACTS).axes[4:8]]
    assert shown == [True, True, False, False]


@pytest.mark.slow
def test_data(monkeypatch):
    monkeypatch.setattr(starts, "CHANGES", {name: starts.CHANGES[name] for name in ("he", "ntk")})
    found, facts = starts.starts_data(Scale.SMOKE, lambda *parts: None)
    assert facts["epochs"] == 24
    for name in ("he", "ntk"):
        assert found[f"main_{name}_mse"].shape == (2, 2, len(found["epochs"]))
        assert np.isfinite(found[f"main_{name}_mse"]).all()
        assert found[f"main_{name}_away"].shape == (2, 2, 5)
    # He's kernel has 2 m / d times the size of NTK's
    ratio = found["main_he_largest"][1, :, 0] / found["main_ntk_largest"][1, :, 0]
    np.testing.assert_allclose(ratio, 2.0, rtol=0.5)
    # With He's start attention is nearly uniform, and tokens of norm 0.17 have a kernel 0.17^2 times as large.
    share = found["main_he_largest"][1, :1, 0] / found["unit_he_largest"][1, :1, 0]
    np.testing.assert_allclose(share, 0.17**2, rtol=0.05)
