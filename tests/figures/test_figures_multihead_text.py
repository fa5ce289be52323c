"""Figure 6 of the multi-head paper: judgement and drawing on made-up runs, and runs of a tiny model."""

import json
from dataclasses import replace

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.claims.multihead import text_runs
from attnlab.figures import find, make
from attnlab.figures.multihead import text

STEPS = np.array([0, 50, 100])
FACTS = {
    "texts": "SST-2 (train.tsv)",
    "texts for the test": "dev.tsv",
    "stand-in": False,
    "pretrained": True,
    "as the paper": True,
    "model": "roberta-base",
    "model stands in": "",
    "paper": {"steps": 10_525, "step": 5e-6},
    "runs that left the finite numbers": [],
    "train": 320,
    "test": 200,
    "batch": 16,
    "epochs": 5.0,
    "length": 24,
    "seeds": 3,
    "steps": 100,
    "step": 5e-5,
    "random_step": 3e-4,
}


def made_up(train=(0.5, 0.4, 0.3), test=(0.55, 0.5, 0.45), seeds=3, *, spread=0.02):
    factors = np.exp(spread * np.linspace(-1, 1, seeds))[:, None]
    part = STEPS / STEPS[-1]
    arrays = {"steps": STEPS, "heads": np.array([1, 4, 12])}
    for start in text_runs.STARTS:
        for name, ends in (("loss", train), ("test_loss", test)):
            arrays[f"{start}_{name}"] = np.stack([0.69 * (end / 0.69) ** part * factors for end in ends])
        for name in ("accuracy", "test_accuracy"):
            arrays[f"{start}_{name}"] = np.tile(0.5 + 0.3 * part, (3, seeds, 1))
        arrays[f"{start}_features_kept"] = np.array([0.4, 0.7, 1.0])
        arrays[f"{start}_linear_accuracy"] = np.array([0.6, 0.7, 0.8])
    return arrays


def test_more_heads_are_judged():
    good = text.judge(made_up(), FACTS)
    assert good.verdict is Verdict.HOLDS
    json.dumps(good.to_json(), allow_nan=False)
    assert "has cosine 0.4 with that of all heads" in good.seen
    assert "right on 0.6 of unseen texts (0.8 with all; standard error of the difference 0.045)" in good.seen
    assert "start from worse features" in good.seen
    assert "a control with a step of its own, not judged" in good.seen
    assert good.table["pretrained, 1 head"]["train loss"] == pytest.approx(0.5, rel=0.01)


def test_a_control_that_learns_nothing_and_features_that_stay_are_told():
    arrays = made_up()
    arrays["random_accuracy"][:] = 0.5
    arrays["pretrained_linear_accuracy"] = np.array([0.78, 0.8, 0.8])
    seen = text.judge(arrays, FACTS).seen
    assert "ends at 0.5, which have learned nothing by then, so that the control says nothing" in seen
    assert "worse features" not in seen
    assert "cannot be told apart here" in seen


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"train": (0.3, 0.4, 0.5)}, "train loss"), ({"test": (0.45, 0.5, 0.55)}, "test loss")],
)
def test_each_statement_can_fail(wrong, words):
    bad = text.judge(made_up(**wrong), FACTS)
    assert bad.verdict is Verdict.FAILS
    assert f"with more heads the {words} is smaller" in bad.seen.split("Not seen:")[1]
    small = text.judge(made_up(**wrong), {**FACTS, "as the paper": False})
    assert small.verdict is Verdict.NOT_APPLICABLE
    assert "100 of 10525 steps, of 5e-05 in place of 5e-06" in small.seen
    other = text.judge(made_up(), {**FACTS, "stand-in": True})
    assert other.verdict is Verdict.NOT_APPLICABLE


def test_slopes_are_those_of_doublings():
    arrays = made_up(train=(0.8, 0.2, 0.8 * 2 ** -np.log2(12)), spread=0.0)
    np.testing.assert_allclose(text.slopes(arrays, "pretrained", "loss"), -np.log(2))


def test_drawing(tmp_path):
    arrays = made_up()
    arrays["random_loss"][0, 1, 1:] = np.nan
    facts = {**FACTS, "runs that left the finite numbers": ["random, 1 heads, seed 1"]}
    picture = text.draw(arrays, facts)
    picture.savefig(tmp_path / "drawn.png")
    assert len([axes for axes in picture.axes if axes.get_title(loc="left")]) == 7
    words = [one.get_text() for one in picture.axes[7].get_legend().get_texts()]
    assert words == ["1 head", "4 heads", "12 heads"]
    assert "Left the finite numbers: random, 1 heads, seed 1." in text.judge(arrays, facts).seen


def test_settings_are_those_of_the_paper():
    paper = text_runs.PAPER
    assert (paper.batch, round(paper.epochs), paper.step, max(paper.heads)) == (32, 5, 5e-6, 12)
    assert repr(paper.rule("pretrained")).startswith("adam(step=5e-06")
    assert "decay=0.01" in repr(paper.rule("random"))
    assert "days on two cores" in text_runs.cost(paper)
    assert text_runs.QUICK.epochs == 5


def test_a_linear_classifier_finds_what_is_linear():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 5))
    y = (x @ np.array([1.0, -2.0, 0.0, 0.5, 0.0]) > 0).astype(int)
    assert text_runs.linear_accuracy(x[:300], y[:300], x[300:], y[300:]) > 0.9
    noise = rng.integers(2, size=400)
    assert text_runs.linear_accuracy(x[:300], noise[:300], x[300:], noise[300:]) < 0.65
    constant = np.ones((10, 3))
    assert 0 <= text_runs.linear_accuracy(constant, y[:10], constant, y[:10]) <= 1


@pytest.mark.slow
def test_runs_of_a_tiny_model(monkeypatch, tmp_path):
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ATTNLAB_WEIGHTS", raising=False)
    monkeypatch.setattr(text_runs, "SMOKE", replace(text_runs.SMOKE, train=32, test=8, steps=4))
    monkeypatch.setattr(text_runs, "RECORDS", (0.0, 1.0))
    arrays, facts = text_runs.heads_data(Scale.SMOKE, lambda *parts: None)
    assert arrays["heads"].tolist() == [1, 2]
    assert arrays["pretrained_loss"].shape == (2, 2, 2)
    assert (arrays["pretrained_loss"][:, :, 1] != arrays["random_loss"][:, :, 1]).all()
    np.testing.assert_allclose(arrays["pretrained_features_kept"][-1], 1.0)  # all heads
    assert arrays["pretrained_features_kept"][0] < 1
    assert facts["stand-in"]
    json.dumps(facts, allow_nan=False)


@pytest.mark.slow
def test_smoke(tmp_path):
    pytest.importorskip("tokenizers")
    made = make(find(["multihead-6"])[0], "smoke", out=tmp_path)
    assert made.finding.verdict is Verdict.NOT_APPLICABLE
    assert "Masking changes" not in made.finding.seen  # nothing was pretrained
