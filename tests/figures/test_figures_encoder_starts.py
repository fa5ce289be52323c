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


def made_up(rate):
    """Three seeds, one at the largest width; the error falls as exp(-rate t)."""
    mse = np.exp(-np.broadcast_to(rate, 4)[:, None, None] * EPOCHS) * np.ones((4, 3, 1))
    found = {"mse": mse, "step": 0.01 * mse, "frozen": mse**0.5, "away": np.full((4, 3, 5), 0.1),
             "largest": np.ones((4, 3, 5)), "least": np.ones((4, 3))}  # fmt: skip
    for values in found.values():
        values[3, 1:] = np.nan
    return found


def arrays(lecun: Any = 0.02, he: Any = 0.03, ntk: Any = 0.005, ntk10: Any = 0.02):
    rates = {"lecun": lecun, "he": he, "ntk": ntk, "ntk10": ntk10}
    half = {name: values[3:] for name, values in made_up(0.02).items()}
    curves = {key: values for name, rate in rates.items() for key, values in prefixed(name, made_up(rate)).items()}
    return {"widths": np.array(WIDTHS), "epochs": EPOCHS, **curves, **prefixed("half", half)}


FACTS = {"n": 100, "T": 10, "d": 100, "epochs": 400, "early epoch": 50,
         "seeds by width": {f"m = {m}": c for m, c in zip(WIDTHS, COUNTS, strict=True)}}  # fmt: skip


def test_starts_are_judged():
    good = starts.judge(arrays(), FACTS)
    assert good.verdict is Verdict.HOLDS, good.seen
    json.dumps(good.numbers, allow_nan=False)
    # exp(-0.02 t) <= 0.1 from t = 115.1 on; 120 is the next record
    assert good.numbers["LeCun, step 1"]["epochs to 0.1 of the start"]["m = 10"] == 120
    for ways, words in (
        ({"he": 0.1}, "LeCun and He reach"),
        ({"he": (0.03, 0.03, 0.03, 1e-4)}, "LeCun and He reach"),  # never at the largest width
        ({"ntk": (0.025, 0.005, 0.005, 0.005)}, "NTK ends above"),
        ({"ntk10": (0.02, 0.02, 0.02, 0.004)}, "NTK ends lower with step 10"),
    ):
        bad = starts.judge(arrays(**ways), FACTS)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]
    assert starts.judge(arrays(he=0.1), {**FACTS, "epochs": 20}).verdict is Verdict.NOT_APPLICABLE


def test_drawing():
    picture = starts.draw(arrays(), FACTS)
    assert len(picture.axes) == 12
    np.testing.assert_allclose(picture.axes[1].get_lines()[3].get_ydata(), np.exp(-0.03 * EPOCHS))
    # at the largest width also He's start with half the loss
    assert len(picture.axes[11].get_lines()) == len(picture.axes[10].get_lines()) + 1
    picture.canvas.draw()
    few = {key: values[:2] if values.shape[0] == 4 else values for key, values in arrays().items()}
    few = {key: values for key, values in few.items() if not key.startswith("half")}
    shown = [panel.get_visible() for panel in starts.draw(few, FACTS).axes[8:]]
    assert shown == [True, True, False, False]


@pytest.mark.slow
def test_data(monkeypatch):
    monkeypatch.setattr(starts, "STARTS", {"ntk": starts.STARTS["ntk"]})
    monkeypatch.setattr(starts, "WIDTHS", (10, 100))
    found, facts = starts.starts_data(Scale.SMOKE, lambda *parts: None)
    assert facts["epochs"] == 20
    for name, count in (("ntk", 2), ("half", 1)):
        assert found[f"{name}_mse"].shape == (count, 2, len(found["epochs"]))
        assert np.isfinite(found[f"{name}_mse"]).all()
        assert found[f"{name}_away"].shape == (count, 2, 5)
    # He's kernel has 2 m / d times the size of NTK's
    ratio = found["half_largest"][0, :, 0] / found["ntk_largest"][1, :, 0]
    np.testing.assert_allclose(ratio, 2.0, rtol=0.5)
    np.testing.assert_allclose(found["ntk_largest"][0, :, 0], found["ntk_largest"][1, :, 0], rtol=0.5)
