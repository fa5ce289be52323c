"""Figure 6 of the encoder's paper: verdicts on made-up similarities, drawing, and the data themselves."""

import json

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.claims.encoder.pictures import Pictures
from attnlab.data import Images
from attnlab.figures.encoder import embedded

FACTS = {"MNIST": True, "images": "MNIST, 28 x 28", "images of a draw": 100, "draws": 10}


def made_up(kind="exponential", draws=10):
    rng = np.random.default_rng(0)
    drawn = {
        "exponential": lambda: 0.05 + 0.01 * rng.exponential(size=(draws, 4950)),
        "two heaps": lambda: rng.choice([0.1, 0.9], size=(draws, 4950)) + 0.001 * rng.random((draws, 4950)),
    }
    return {"one_values": drawn[kind](), "small_values": 3 * drawn["exponential"]()}


def test_tails_are_judged():
    good = embedded.judge(made_up(), FACTS)
    assert good.verdict is Verdict.HOLDS, good.seen
    json.dumps(good.to_json(), allow_nan=False)
    assert "single draws below R^2 = 0.95: 0 of 20, so that asking it of every draw would hold too" in good.seen
    bad = embedded.judge(made_up("two heaps"), FACTS)
    assert bad.verdict is Verdict.FAILS
    assert "positions N(0, 1): log P is a line" in bad.seen.split("Not seen:")[1]
    assert "10 of 20" in bad.seen
    assert embedded.judge(made_up(draws=1), {**FACTS, "draws": 1}).verdict is Verdict.TOO_FEW
    other = embedded.judge(made_up("two heaps"), {**FACTS, "MNIST": False})
    assert other.verdict is Verdict.NOT_APPLICABLE
    assert "stand in" in other.seen


def test_draws_that_disagree_with_their_mean_make_it_a_reading():
    arrays = made_up()
    arrays["one_values"][0] = 0.05 + 0.01 * np.random.default_rng(1).standard_normal(4950)  # R^2 0.88; the others 1
    finding = embedded.judge(arrays, FACTS)
    assert all(check.part.verdict is Verdict.HOLDS for check in finding.checks)
    assert finding.verdict is Verdict.READING
    assert "1 of 20, so that asking it of every draw would fail" in finding.seen


def test_drawing():
    picture = embedded.draw(made_up(), FACTS)
    assert len(picture.axes) == 4
    curve = picture.axes[0].get_lines()[0].get_ydata()
    assert curve[0] == 1.0
    assert (np.diff(curve) <= 0).all()
    picture.canvas.draw()


def test_similarities_are_those_of_the_definition(monkeypatch):
    rng = np.random.default_rng(1)
    images = Images(pixels=rng.random((12, 8, 8)), y=np.arange(12) % 10, classes=10)
    seen = Pictures(images, images, 2, 0.4, 0.3, "a test")
    X = embedded.embedded(seen.patches(images), 1.0, 0, 2)
    assert X.shape == (12, 16, 64)
    np.testing.assert_allclose(np.linalg.norm(X, axis=(1, 2)), 1.0)
    by_hand = np.trace((X[0].T @ X[0]).T @ (X[1].T @ X[1]))
    np.testing.assert_allclose(embedded.similarities(X)[0], by_hand)
    # Larger positions are common to all images: they are more alike in what they share, and spread less.
    wide, narrow = (embedded.similarities(embedded.embedded(seen.patches(images), s, 0, 2)) for s in (0.02, 1.0))
    assert np.std(narrow) < np.std(wide)


def test_data(monkeypatch):
    pytest.importorskip("sklearn")
    arrays, facts = embedded.similarity_data(Scale.SMOKE, lambda *parts: None)
    assert arrays["one_values"].shape == (4, 40 * 39 // 2)
    assert "scikit-learn" in facts["images"]
    assert facts["stand-in"]
    json.dumps(facts, allow_nan=False)
