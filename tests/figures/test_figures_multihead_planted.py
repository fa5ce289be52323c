"""Figures 4 and 5 of the multi-head paper: verdicts on doctored curves, drawing, the files."""

import json
from typing import Any

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.figures import figures, make
from attnlab.figures.multihead import heads, planted, planted_runs

HEADS, FEW, MOST = np.array([1, 2, 8, 64]), np.array([1, 8, 64]), np.array([64])
STEPS = np.unique([0, *np.geomspace(1, 1000, 60).astype(int)])
GAMMA = 0.2
SETS, MANY = 5, 12


def made_up(name, level=1.0, *, exponent=-0.2, margin=0.19, cosine=0.99, own=HEADS, sets=SETS):
    """The loss falls as level H^exponent / t, margin and cosines rise to what they end at."""
    t = np.maximum(STEPS, 1).astype(float)
    loss = level * own[:, None] ** float(exponent) / t
    rising = np.where(STEPS > 1, 1 - 0.9 / t, np.nan) * np.ones((len(own), 1))
    found = {
        "loss": loss,
        "test_loss": 2 * loss,
        "test_error": 0.3 * loss / loss.max(),
        "norm_U": np.log1p(t) + 0 * loss,
        "norm_W": np.log(t) + 0 * loss,
        "normalized_margin": margin * rising,
        "cosine_W_teacher": cosine * rising,
        "cosine_U_teacher": 0.99 * rising,
    }
    found = {key: np.repeat(values[:, None], sets, axis=1) for key, values in found.items()}
    return heads.prefixed(name, {"steps": STEPS, **found})


def facts(*names):
    return {
        "gamma_attn": GAMMA,
        "n": 1000,
        "sets": SETS,
        "test sequences": 3000,
        "rules": {name: f"rule {name}" for name in names},
        "steps": dict.fromkeys(names, 1000),
    }


FOUR = facts("scaled", "longer", "many")
FIVE = facts("momentum", "adam", "same", "tenth", "tenfold", "many_momentum", "many_adam")
SIZES: dict[str, Any] = {"few": FEW, "most": MOST, "heads": HEADS}


def figure_4(many: Any = None, **ways: Any):
    arrays = {**SIZES, **made_up("scaled", **ways), **made_up("longer", own=MOST)}
    return arrays | made_up("many", own=MOST, sets=MANY, **(many or {}))


def figure_5(**ways: Any):
    usual = {
        "momentum": {"level": 1.0},
        "adam": {"level": 0.5},
        "same": {"level": 9.0, "own": FEW},
        "tenth": {"level": 9.0, "own": FEW},
        "tenfold": {"level": 1.1, "own": FEW},
        "many_momentum": {"own": MOST, "sets": MANY},
        "many_adam": {"own": MOST, "sets": MANY},
    }
    arrays = dict(SIZES)
    for name, way in usual.items():
        arrays |= made_up(name, **{**way, **ways.get(name, {})})
    return arrays


def test_growing_steps_are_judged():
    good = planted.judge_scaled(figure_4(), FOUR)
    assert good.verdict is Verdict.HOLDS, good.seen
    json.dumps(good.to_json(), allow_nan=False)
    doctored: list[tuple[dict[str, Any], str]] = [
        ({"exponent": 0.2}, "less train loss than one head"),
        ({"margin": 0.15}, "reaches 0.8 gamma_attn"),
        ({"cosine": 0.9}, "one head finds the planted head"),
        ({"many": {"cosine": 0.9}}, "the most heads find it, on 12 sets"),
    ]
    for ways, words in doctored:
        bad = planted.judge_scaled(figure_4(**ways), FOUR)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]


def test_short_runs_decide_nothing():
    arrays = figure_4(margin=0.15)
    kept = int((STEPS <= 100).sum())
    short = {key: v[..., :kept] if key not in SIZES else v for key, v in arrays.items()}
    assert planted.judge_scaled(short, FOUR).verdict is Verdict.NOT_APPLICABLE


def test_a_set_that_is_stuck_is_told_and_its_margin_not_judged():
    arrays = figure_4()
    for key, value in (("cosine_W_teacher", -0.9), ("normalized_margin", -0.5), ("loss", 0.3)):
        arrays[f"scaled_{key}"][3, 2] = value  # H = 64, the third set
    found = planted.judge_scaled(arrays, FOUR)
    assert found.verdict is Verdict.HOLDS, found.seen
    assert "19 of 20 runs find the planted head; set 3 ends at cos(W, W*) -0.90 to -0.90 for H = 64." in found.seen
    shares = found.table["GD: share of sets that find the planted head"]
    assert shares == {"H = 1": 1.0, "H = 2": 1.0, "H = 8": 1.0, "H = 64": 0.8}


def test_how_often_the_head_is_found_respects_the_number_of_sets():
    arrays = figure_4()
    arrays["many_cosine_W_teacher"][0, :5, -1] = -0.9
    found = planted.judge_scaled(arrays, FOUR)
    assert found.verdict is Verdict.TOO_FEW
    assert "the most heads find it, on 12 sets (7 of 12)" in found.seen.split("Too few to tell:")[1]


def test_controls_decide_what_is_faster():
    good = planted.judge_faster(figure_5(), FIVE)
    assert good.verdict is Verdict.HOLDS, good.seen
    for ways, words in (
        ({"same": {"level": 0.9}}, "momentum with the same step has less train loss"),
        ({"same": {"level": 0.4}}, "Adam has less train loss after 1000 steps"),
        ({"adam": {"margin": 0.1}}, "Adam: every run that finds"),
        ({"momentum": {"cosine": 0.5}}, "momentum: one head finds"),
        ({"many_adam": {"cosine": 0.5}}, "Adam: the most heads find it"),
    ):
        bad = planted.judge_faster(figure_5(**ways), FIVE)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]
    # The twins with the same sum of steps are told and do not decide.
    assert planted.judge_faster(figure_5(tenfold={"level": 0.1}), FIVE).verdict is Verdict.HOLDS


def test_speed_is_compared_where_both_find_the_head():
    seen = np.array([[True, False, True], [True, True, False]])
    judged = np.array([[True, False, False], [True, True, False]])
    assert planted.per_set(seen, judged).tolist() == [True, True]
    assert planted.per_set(~seen, judged).tolist() == [False, False]


def test_drawing():
    panels = planted.draw(figure_4(cosine=0.9), FOUR).axes
    assert len(panels) == 10
    assert panels[9].collections[0].get_offsets().shape == (len(HEADS) * SETS, 2)
    picture = planted.draw(figure_5(), FIVE)
    assert len(picture.axes) == 20
    picture.canvas.draw()


def asked_for(monkeypatch, data):
    """Heads, rules and steps of every run of a figure at paper scale."""
    asked = []

    def run_heads(tokens, rule, kept, own, stage, words, **options):
        for H in own:
            stage(f"{words}, {H}", dict)
        rules = [rule(H).describe() for H in own]
        asked.append({"heads": tuple(own), "rules": rules, "steps": options["steps"], "sets": len(tokens.x)})
        np.testing.assert_array_equal(options["targets"]["teacher"]["W"][:, 0], tokens.info["teacher_W"])
        np.testing.assert_array_equal(options["test"].info["teacher_U"], tokens.info["teacher_U"])
        assert not np.array_equal(options["test"].x[:, : tokens.n], tokens.x)
        return {"steps": STEPS}

    monkeypatch.setattr(planted_runs, "run_heads", run_heads)
    told = []
    data(Scale.PAPER, lambda done, total, _: told.append((done, total)))
    total = sum(len(one["heads"]) for one in asked)
    assert told == [(i, total) for i in range(total + 1)]
    return asked


def test_rules_and_heads_of_figure_5(monkeypatch):
    asked = asked_for(monkeypatch, planted_runs.faster_data)
    every, few, most = (1, 2, 4, 8, 16, 32, 64), (1, 8, 64), (64,)
    assert [one["heads"] for one in asked] == [every, every, few, few, few, most, most]
    assert [one["sets"] for one in asked] == [5] * 5 + [32] * 2
    steps = (1.0, 0.01, 1.0, 0.1, 10.0, 1.0, 0.01)
    names = ("heavy_ball", "adam", "gd", "heavy_ball", "gd", "heavy_ball", "adam")
    for one, name, step in zip(asked, names, steps, strict=True):
        power = 0.0 if name == "adam" else 0.5
        assert {rule["name"] for rule in one["rules"]} == {name}
        np.testing.assert_allclose([rule["step"] for rule in one["rules"]], step * np.array(one["heads"]) ** power)
        if name == "heavy_ball":
            assert {rule["momentum"] for rule in one["rules"]} == {0.9}


def test_figure_4_goes_on_until_the_margin_is_seen(monkeypatch):
    scaled, longer, many = asked_for(monkeypatch, planted_runs.scaled_data)
    assert scaled["steps"] >= 4000
    assert longer["steps"] >= 2 * scaled["steps"]
    assert longer["heads"] == many["heads"] == (64,)
    assert longer["rules"] == many["rules"] == scaled["rules"][-1:]


def test_the_figures_of_the_paper_are_listed():
    assert [figure.id for figure in figures("multihead")] == [f"multihead-{i}" for i in range(2, 7)]
    assert {figure.status for figure in figures("multihead")} == {"ready"}


@pytest.mark.slow
def test_files(tmp_path):
    made = make(planted.FIGURES[0], "smoke", out=tmp_path)
    assert made.facts["gamma_attn"] == GAMMA
    assert all(0.5 < share < 1 for share in made.facts["share of drawn sequences that were kept"])
