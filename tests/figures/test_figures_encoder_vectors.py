"""Figure 3 of the encoder's paper: verdicts on made-up curves, drawing, and the data themselves."""

import json
from typing import Any

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.figures.encoder import vectors

EPOCHS = np.arange(0, 401, 20)


def made_up(token=0.05, dense=0.05, raw=1e-5, unit=1e-5, shift=0.0):
    rates = {"token": token, "dense": dense, "tokens_raw": raw, "tokens_unit": unit}
    found: dict[str, Any] = {"epochs": EPOCHS, "raw_values": np.full((2, 20), 1700.0)}
    for name, rate in rates.items():
        found[f"{name}_mse"] = np.repeat(np.exp(-rate * EPOCHS)[None], 2, axis=0)
        many = name.startswith("tokens")
        values = 10.0 ** -np.array([0, 0.3, *range(5, 23)]) if many else 0.9 ** np.arange(20.0)
        found[f"{name}_values"] = np.repeat(values[None], 2, axis=0)
        found[f"{name}_singular"] = found[f"{name}_values"] ** (3 if many else 1)
    found["dense_mse"] = found["dense_mse"] + shift
    return found


FACTS = {"n": 20, "D": 100, "width": 100, "epochs": 400, "step": 1.0, "seeds": 2}


def test_vectors_are_judged():
    good = vectors.judge(made_up(), FACTS)
    assert good.verdict is Verdict.HOLDS, good.seen
    json.dumps(good.to_json(), allow_nan=False)
    assert "K^0 has 2 and 2 eigenvalues" in good.seen
    assert "rank 2 and 2 for 20 vectors" in good.seen
    for ways, words in (
        ({"shift": 1e-6}, "the same loss"),
        ({"token": 0.02, "dense": 0.02}, "with one token the loss falls"),
        ({"raw": 1e-3}, "with many tokens"),
        ({"unit": 1e-3}, "with many tokens"),
    ):
        bad = vectors.judge(made_up(**ways), FACTS)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]
    assert vectors.judge(made_up(raw=1e-3), {**FACTS, "epochs": 20}).verdict is Verdict.NOT_APPLICABLE


def test_drawing():
    picture = vectors.draw(made_up(), FACTS)
    assert len(picture.axes) == 3
    np.testing.assert_allclose(picture.axes[0].get_lines()[0].get_ydata(), np.exp(-0.05 * EPOCHS))
    picture.canvas.draw()


@pytest.mark.slow
def test_data(monkeypatch):
    monkeypatch.setattr(vectors, "D", 12)
    monkeypatch.setattr(vectors, "STEP", 0.1)
    arrays, facts = vectors.vectors_data(Scale.SMOKE, lambda *parts: None)
    records, n = len(arrays["epochs"]), facts["n"]
    for name in vectors.LOOKS:
        assert arrays[f"{name}_mse"].shape == (2, records)
        assert arrays[f"{name}_values"].shape == (2, n)
        assert np.isfinite(arrays[f"{name}_mse"]).all()
    # One token leaves attention nothing to choose: the same network, step by step.
    np.testing.assert_allclose(arrays["token_mse"], arrays["dense_mse"], rtol=0, atol=1e-14)
    np.testing.assert_allclose(arrays["token_values"], arrays["dense_values"], rtol=1e-8, atol=1e-12)
    # With tokens of dimension 1 the hidden layer is a positive and a negative part: rank 2.
    np.testing.assert_allclose(arrays["tokens_raw_singular"][:, 2:], 0.0, atol=1e-12)
    assert (arrays["tokens_raw_singular"][:, 1] > 1e-3).all()
    x, y = vectors.vectors(3, 5)
    again, _ = vectors.vectors(2, 5)
    assert (x.shape, y.shape) == ((3, 5, 12), (3, 5))
    np.testing.assert_array_equal(x[:2], again)
