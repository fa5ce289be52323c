"""Figure 1 of the encoder's paper: verdicts on made-up similarities, drawing, and the data of a tiny model."""

import json

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.claims.encoder import sentences as runs
from attnlab.data import Sequences
from attnlab.figures.encoder import sentences

FACTS = {
    "texts": "IMDB (train.csv)",
    "model": "bert-base-uncased",
    "stand-in": False,
    "sentences of a draw": 100,
    "draws": 10,
    "dimension": 768,
}


def made_up(kind="exponential", draws=10):
    rng = np.random.default_rng(0)
    drawn = {
        "exponential": lambda: 0.05 + 0.01 * rng.exponential(size=(draws, 4950)),
        "gaussian": lambda: 0.05 + 0.01 * rng.standard_normal((draws, 4950)),
        "heavy": lambda: 0.05 + 0.01 * rng.pareto(1.5, size=(draws, 4950)),
    }
    return {"pretrained_values": drawn[kind](), "random_values": 3 * drawn["exponential"]()}


@pytest.mark.parametrize(
    ("kind", "verdict", "words"),
    [
        ("exponential", Verdict.HOLDS, "it is one"),
        ("gaussian", Verdict.READING, "faster than exponentially"),
        ("heavy", Verdict.FAILS, "it is none"),
    ],
)
def test_tails_are_judged(kind, verdict, words):
    finding = sentences.judge(made_up(kind), FACTS)
    assert finding.verdict is verdict, finding.seen
    assert words in finding.seen
    assert "Two readings were tried" in finding.seen
    json.dumps(finding.to_json(), allow_nan=False)
    other = sentences.judge(made_up(kind), {**FACTS, "stand-in": True})
    assert other.verdict is Verdict.NOT_APPLICABLE
    assert "Nothing is decided on IMDB" in other.seen


def test_one_draw_is_too_few():
    assert sentences.judge(made_up(draws=1), {**FACTS, "draws": 1}).verdict is Verdict.TOO_FEW


def test_drawing(tmp_path):
    picture = sentences.draw(made_up(), FACTS)
    picture.savefig(tmp_path / "drawn.png")
    assert len(picture.axes) == 4
    assert picture.axes[0].get_lines()[0].get_ydata()[0] == 1.0


def test_padding_is_no_token():
    table = np.random.default_rng(0).standard_normal((5, 3))
    long = Sequences(ids=[[1, 2, 0, 0]], lengths=[2], y=[0])
    short = Sequences(ids=[[1, 2]], y=[0])
    for data in (long, short):
        X = runs.embedded(data, table)
        np.testing.assert_allclose(np.linalg.norm(X), 1.0)
        np.testing.assert_allclose(X[0, :2], table[[1, 2]] / np.linalg.norm(table[[1, 2]]))
    assert not runs.embedded(long, table)[0, 2:].any()


def test_data(monkeypatch, tmp_path):
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ATTNLAB_WEIGHTS", raising=False)
    arrays, facts = runs.sentence_data(Scale.SMOKE, lambda *parts: None)
    assert arrays["pretrained_values"].shape == arrays["random_values"].shape == (4, 40 * 39 // 2)
    assert (arrays["random_values"][0] != arrays["random_values"][1]).any()
    assert facts["stand-in"]
    json.dumps(facts, allow_nan=False)
