"""Figures 4 and 5 of the multi-head paper: verdicts on doctored curves, drawing, the files."""

from typing import Any

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.figures import figures, make
from attnlab.figures.multihead import heads, planted

HEADS, FEW = np.array([1, 2, 8, 64]), np.array([1, 8, 64])
STEPS = np.unique([0, *np.geomspace(1, 1000, 30).astype(int)])
GAMMA = 0.2


def made_up(name, level=1.0, *, exponent=-0.2, margin=0.19, cosine=0.99, own=HEADS):
    """Three sets; the loss falls as level H^exponent / t, margin and cosines rise to what they end at."""
    t = np.maximum(STEPS, 1).astype(float)
    loss = level * own[:, None] ** float(exponent) / t
    rising = np.where(STEPS > 1, 1 - 0.9 / t, np.nan) * np.ones((len(own), 1))
    found = {
        "loss": loss, "test_loss": 2 * loss, "test_error": 0.3 * loss / loss.max(), "norm_U": np.log1p(t) + 0 * loss,
        "norm_W": np.log(t) + 0 * loss, "normalized_margin": margin * rising, "cosine_W_teacher": cosine * rising,
        "cosine_U_teacher": 0.99 * rising,
    }  # fmt: skip
    found = {key: np.repeat(values[:, None], 3, axis=1) for key, values in found.items()}
    return heads.prefixed(name, {"steps": STEPS, **found})


def facts(*names, controls=()):
    return {"gamma_attn": GAMMA, "n": 1000, "sets": 3, "test sequences": 3000, "controls": list(controls),
            "rules": {name: f"rule {name}" for name in names}}  # fmt: skip


ONE, FOUR = facts("scaled"), facts("momentum", "adam", "same", "tenfold", controls=("same", "tenfold"))


def four(**ways):
    usual = {"momentum": {"level": 1.0}, "adam": {"level": 0.5}, "same": {"level": 9.0}, "tenfold": {"level": 1.1}}
    every = {name: {**way, **ways.get(name, {})} for name, way in usual.items()}
    arrays = {"heads": HEADS, "few": FEW}
    for name, way in every.items():
        arrays |= made_up(name, own=FEW if name in FOUR["controls"] else HEADS, **way)
    return arrays


def test_growing_steps_are_judged():
    good = planted.judge_scaled({"heads": HEADS, **made_up("scaled")}, ONE)
    assert good.verdict is Verdict.HOLDS, good.seen
    doctored: list[tuple[dict[str, Any], str]] = [
        ({"exponent": 0.2}, "the train loss falls with H"),
        ({"margin": 0.15}, "every H reaches 0.8 gamma_attn"),
        ({"cosine": 0.9}, "every H finds the planted head"),
    ]
    for ways, words in doctored:
        bad = planted.judge_scaled({"heads": HEADS, **made_up("scaled", **ways)}, ONE)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]
        short = {key: v[v <= 100] if key == "scaled_steps" else v for key, v in made_up("scaled", **ways).items()}
        kept = len(short["scaled_steps"])
        short = {key: v[..., :kept] for key, v in short.items()}
        assert planted.judge_scaled({"heads": HEADS, **short}, ONE).verdict is Verdict.NOT_APPLICABLE


def test_one_number_of_heads_that_fails_is_noticed():
    arrays = {"heads": HEADS, **made_up("scaled")}
    arrays["scaled_cosine_W_teacher"][1, :2, -1] = 0.1
    finding = planted.judge_scaled(arrays, ONE)
    assert finding.verdict is Verdict.FAILS
    shares = next(v for k, v in finding.numbers.items() if "share of runs" in k)
    assert shares == {"H = 1": 1.0, "H = 2": 0.3333, "H = 8": 1.0, "H = 64": 1.0}
    assert "10 of 12 runs" in finding.seen


def test_controls_decide_what_is_faster():
    good = planted.judge_faster(four(), FOUR)
    assert good.verdict is Verdict.HOLDS, good.seen
    assert "momentum 0.91, 0.91, 0.91" in good.seen
    for ways, words in (
        ({"same": {"level": 0.9}}, "momentum ends with less train loss"),
        ({"tenfold": {"level": 0.4}}, "Adam ends with less train loss"),
        ({"adam": {"margin": 0.1}}, "Adam: every H reaches"),
        ({"momentum": {"cosine": 0.5}}, "momentum: every H finds"),
    ):
        bad = planted.judge_faster(four(**ways), FOUR)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]


def test_drawing():
    panels = planted.draw({"heads": HEADS, **made_up("scaled", cosine=0.9)}, ONE).axes
    assert len(panels) == 10
    assert [bar.get_height() for bar in panels[9].patches] == [0.0] * 4
    assert len(planted.draw(four(), FOUR).axes) == 20


def test_rules_and_heads_of_figure_5(monkeypatch):
    asked = []

    def run_heads(tokens, rule, kept, own, tell, **options):
        tell(own[-1])
        asked.append((tuple(own), [rule(H).describe() for H in own], options["steps"]))
        np.testing.assert_array_equal(options["targets"]["teacher"]["W"][:, 0], tokens.info["teacher_W"])
        np.testing.assert_array_equal(options["test"].info["teacher_U"], tokens.info["teacher_U"])
        assert not np.array_equal(options["test"].x[:, : tokens.n], tokens.x)
        return {"steps": STEPS}

    monkeypatch.setattr(planted, "run_heads", run_heads)
    told = []
    planted.faster_data(Scale.PAPER, lambda done, total, _: told.append((done, total)))
    assert told == [(6, 20), (13, 20), (16, 20), (19, 20), (20, 20)]
    every, few = (1, 2, 4, 8, 16, 32, 64), (1, 8, 64)
    assert [own for own, _, _ in asked] == [every, every, few, few]
    assert {steps for _, _, steps in asked} == {1000}
    momentum, adam, same, tenfold = (rules for _, rules, _ in asked)
    for rules, own, name, step, power in (
        (momentum, every, "heavy_ball", 0.1, 0.5), (adam, every, "adam", 0.01, 0.0), (same, few, "gd", 0.1, 0.5),
        (tenfold, few, "gd", 1.0, 0.5),
    ):  # fmt: skip
        assert {rule["name"] for rule in rules} == {name}
        np.testing.assert_allclose([rule["step"] for rule in rules], step * np.array(own) ** power)
    assert {rule["momentum"] for rule in momentum} == {0.9}


def test_the_figures_of_the_paper_are_listed():
    assert [figure.id for figure in figures("multihead")] == [f"multihead-{i}" for i in range(2, 7)]
    assert "SST-2" in figures("multihead")[-1].status


@pytest.mark.slow
def test_files(tmp_path):
    made = make(planted.FIGURES[0], "smoke", out=tmp_path)
    assert made.facts["gamma_attn"] == GAMMA
    assert all(0.5 < share < 1 for share in made.facts["share of drawn sequences that were kept"])
