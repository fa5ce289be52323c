"""Figure 8 of the encoder's paper: verdicts on made-up curves, drawing, and the data themselves."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from attnlab.claims import Verdict
from attnlab.claims.encoder import vision_regression, vision_runs
from attnlab.claims.encoder.pictures import Pictures
from attnlab.data import Images
from attnlab.figures.encoder import digits_regression as regression

EPOCHS = np.arange(0, 5.25, 0.25)
FACTS = {
    "MNIST": True,
    "images": "MNIST, 28 x 28",
    "images to train on": 12_665,
    "images of the whole set": 12_665,
    "epochs": 50,
    "epochs of the paper": 50,
    "seeds": 3,
}


def made_up(sqrt=(1.0, 1.0, 1.0), linear=(1.0, 0.6, 0.3), seeds=3):
    rates = np.array([sqrt, linear])[:, :, None, None] * (1 + 0.02 * np.arange(seeds))[:, None]
    errors = np.floor(6000 * np.exp(-2 * rates * EPOCHS)) * 4
    lost_at = np.full((2, 3, 1), -1)
    lost_at[0, :2] = 17
    printed = np.ones((2, 3, 1, 2))
    printed[lost_at >= 0, 1] = np.nan
    printed[1, 2, 0, 1] = 400.0
    return {
        "widths": np.array(vision_runs.WIDTHS),
        "epochs": EPOCHS,
        "main_error": errors,
        "main_loss": np.exp(-rates * EPOCHS),
        "main_lost_at": np.full(errors.shape[:3], -1),
        "printed_loss": printed,
        "printed_error": printed,
        "printed_lost_at": lost_at,
    }


def test_errors_are_judged():
    good = regression.judge(made_up(), FACTS)
    assert good.verdict is Verdict.HOLDS, good.seen
    json.dumps(good.to_json(), allow_nan=False)
    assert "2 of 6 runs overflow: m = 16, m^(-1/2) (step 17); m = 1024, m^(-1/2) (step 17)" in good.seen
    assert "1 others end with a larger" in good.seen
    assert good.table["m = 16, tau0 = m^(-1/2)"]["epochs to 1 % of mistakes, by seed"] == "2, 2, 2"
    assert "never" in good.table["m = 16384, tau0 = 1/m"]["epochs to 1 % of mistakes, by seed"]
    bad = regression.judge(made_up(linear=(1.0, 1.5, 0.3)), FACTS)
    assert bad.verdict is Verdict.FAILS
    assert "at m = 1024 the training error falls slower" in bad.seen.split("Not seen:")[1]
    assert regression.judge(made_up(seeds=1), FACTS).verdict is Verdict.TOO_FEW
    short = regression.judge(made_up(linear=(1.0, 1.5, 0.3)), {**FACTS, "epochs": 5})
    assert short.verdict is Verdict.NOT_APPLICABLE


def test_drawing():
    picture = regression.draw(made_up(), FACTS)
    assert len(picture.axes) == 6
    np.testing.assert_allclose(picture.axes[3].get_lines()[0].get_ydata(), np.exp(-1.02 * EPOCHS))
    picture.canvas.draw()


def test_the_error_is_four_times_the_mistakes():
    view = SimpleNamespace(outputs=np.array([0.3, -2.0, 5.0]), y=np.array([1.0, 1.0, -1.0]))
    assert float(vision_regression.training_error(view)) == 8.0


def test_records_are_dense_at_first():
    assert vision_regression.record_steps(2, 7) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14]


@pytest.mark.slow
def test_data():
    """Two classes that a bar tells apart are learned; the labels are -1 and +1."""
    rng = np.random.default_rng(0)
    y = np.arange(64) % 2
    pixels = 0.1 * rng.random((64, 8, 8))
    pixels[np.arange(64), 1 + 4 * y] += 0.8
    images = Images(pixels=pixels, y=y, classes=10)
    plan = vision_regression.Plan(64, 30, (16,), 2, 1, 1)
    told = []
    arrays, facts = vision_regression.regressed(plan, Pictures(images, images, 2, 0.2, 0.3, "a test"), told.append)
    assert len(told) == plan.runs == 6
    assert arrays["main_error"].shape == (2, 1, 2, len(arrays["epochs"]))
    assert set(np.unique(arrays["main_error"] % 4)) == {0.0}
    assert (arrays["main_error"][..., -1] < arrays["main_error"][..., 0]).all()
    assert facts["digits"] == "0 as -1, 1 as +1"
    json.dumps(facts, allow_nan=False)
