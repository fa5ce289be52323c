"""Figures 6 and 7 of the rates paper: runs at a tiny setting, and judgement, drawing and facts on made-up ones."""

from dataclasses import replace

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict, images
from attnlab.claims.rates import vision_runs
from attnlab.figures import find, make
from attnlab.figures.rates import vision
from attnlab.figures.rates.rule_panels import CAPPED

RULES = ("sgd", "sngd", "sps", "adam")
LAYERS = ["block1_Q", "block2_mlp1_W", "head_W"]
STEPS = np.array([0, 10, 100, 1000])
FACTS = {
    "rules": {name: name for name in RULES},
    "layers": LAYERS,
    "sgd_step": 0.1,
    "sngd_step": 0.001,
    "adam_step": 0.001,
    "sngd_cap": 0.01,
    "sps_cap": 0.01,
    "images": "MNIST",
    "stand-in": False,
    "as the paper": True,
    "paper": {"steps": 24_000},
    "runs that left the finite numbers": [],
    **{
        "train": 500,
        "batch": 100,
        "epochs": 5.0,
        "depth": 2,
        "heads": 2,
        "dim": 8,
        "patch": 7,
        "seeds": 3,
        "steps": 1000,
    },
}
TINY = replace(vision_runs.QUICK_MNIST, **vision_runs.SMALL, depth=1, heads=1, steps=4, batch=50, seeds=2)
TINY = replace(TINY, train=100, test=50)


def made_up(seeds=3, *, growth=1.5, spread=0.05, **ends):
    """Losses that fall from 2.3 to given ends, and norms that grow, with a spread over seeds."""
    ends = {"sgd": 0.1, "sngd": 2.0, "sps": 0.05, "adam": 0.09} | ends
    factor = np.exp(spread * np.linspace(-1, 1, seeds))[:, None]
    part = STEPS / STEPS[-1]
    arrays = {"steps": STEPS}
    for i, (name, end) in enumerate(ends.items()):
        factors = np.roll(factor, i, axis=0)
        arrays[f"{name}_loss"] = arrays[f"{name}_test_loss"] = 2.3 * (end / 2.3) ** part * factors
        arrays[f"{name}_accuracy"] = arrays[f"{name}_test_accuracy"] = np.tile(0.1 + 0.8 * part, (seeds, 1))
        if name in CAPPED:
            arrays[f"{name}_capped_share"] = np.tile(part, (seeds, 1))
        for layer in LAYERS:
            arrays[f"{name}_norm_{layer}"] = 3.0 * growth ** (part * factors)
    return arrays


def verdicts(finding):
    return {check.name.split(":")[0]: check.part.verdict for check in finding.checks}


def test_what_the_paper_says_holds_where_it_is_seen():
    for norms in (False, True):
        finding = vision.judge(made_up(), FACTS, norms=norms)
        assert finding.verdict is Verdict.HOLDS
        assert len(finding.checks) == (7 if norms else 3)


@pytest.mark.parametrize(
    ("ends", "failing"),
    [
        ({"sngd": 0.05}, "SNGD trains slower than SGD"),
        ({"adam": 0.01}, "Adam has no significant gain over SGD"),
        ({"sps": 0.3}, "SPS outperforms SGD"),
        ({"growth": 0.8}, "norms of layers grow with Adam"),
    ],
)
def test_each_statement_can_fail(ends, failing):
    finding = vision.judge(made_up(**ends), FACTS, norms=True)
    assert finding.verdict is Verdict.FAILS
    assert verdicts(finding)[failing] is Verdict.FAILS
    small = vision.judge(made_up(**ends), {**FACTS, "as the paper": False}, norms=True)
    assert small.verdict is Verdict.NOT_APPLICABLE
    assert "1000 of 24000 steps (500 images of MNIST)" in small.seen


def test_images_that_stand_in_decide_nothing():
    facts = {**FACTS, "stand-in": True, "as the paper": False, "images": "digits, which stand in for MNIST"}
    finding = vision.judge(made_up(), facts, norms=False)
    assert finding.verdict is Verdict.NOT_APPLICABLE
    assert "Nothing is decided on digits" in finding.seen


def test_few_seeds_that_disagree_are_too_few_to_tell():
    close = vision.judge(made_up(sps=0.1, spread=0.5), FACTS, norms=False)
    assert verdicts(close)["SPS outperforms SGD"] is Verdict.TOO_FEW
    one = vision.judge(made_up(seeds=1), FACTS, norms=False)
    assert one.verdict is Verdict.TOO_FEW


def test_the_table_and_the_note_tell_of_caps():
    arrays = made_up()
    arrays["sps_capped_share"] = np.full((3, len(STEPS)), 0.95)
    finding = vision.judge(arrays, FACTS, norms=False)
    assert finding.table["SPS"]["share of capped steps"] == 0.95
    assert finding.table["SGD"]["share of capped steps"] is None
    assert finding.table["SNGD"]["train loss"] == pytest.approx(2.0, rel=0.01)
    assert "the cap 0.01 decides 95 % of the steps of SPS" in finding.seen
    control = {**FACTS, "rules": {**FACTS["rules"], "sps_other": ""}}
    seen = vision.judge(made_up(sps_other=0.01), control, norms=False).seen
    assert "SGD's train loss is 10 times" in seen


def test_the_mean_over_steps_is_that_of_straight_lines():
    arrays = {"steps": np.array([0, 10, 100]), "sgd_loss": np.array([[2.0, 1.0, 0.0]])}
    assert vision.mean_loss(arrays, "sgd").tolist() == [(15 + 45) / 100]


def test_a_run_that_left_the_finite_numbers_is_told_and_is_no_success(tmp_path):
    arrays = made_up()
    arrays["sps_loss"][1, 2:] = np.nan
    facts = {**FACTS, "runs that left the finite numbers": ["sps, seed 1"]}
    finding = vision.judge(arrays, facts, norms=False)
    assert verdicts(finding)["SPS outperforms SGD"] is Verdict.FAILS
    assert "Left the finite numbers: sps, seed 1." in finding.seen
    vision.draw(arrays, facts, norms=False).savefig(tmp_path / "lost.png")


@pytest.mark.parametrize("norms", [False, True])
def test_it_is_drawn(norms, tmp_path):
    facts = {**FACTS, "images": "digits, which stand in for MNIST"}
    picture = vision.draw(made_up(), facts, norms=norms)
    picture.savefig(tmp_path / "drawn.png")
    labelled = [axes for axes in picture.axes if axes.get_title(loc="left")]
    assert len(labelled) == (8 if norms else 5)
    words = [text.get_text() for text in picture.axes[5].get_legend().get_texts()]
    assert words == ["SGD, step 0.1", "SNGD, step 0.001, cap 0.01", "SPS, cap 0.01", "Adam, step 0.001"]


def test_settings_are_those_of_the_paper():
    paper = vision_runs.PAPER_MNIST
    assert (paper.patch, paper.depth, paper.heads, paper.mlp, paper.batch, paper.epochs) == (4, 2, 8, 128, 100, 40)
    other = vision_runs.PAPER_CIFAR
    assert (other.patch, other.depth, other.heads, other.mlp, other.batch, other.epochs) == (4, 8, 32, 512, 100, 80)
    assert "sps_other" not in other.rules()
    assert repr(paper.rules()["sngd"]) == "ngd(step=0.001, cap=0.01, norms='total', guard='stable')"
    assert "hours on two cores" in vision_runs.cost(paper)


def test_without_images_the_digits_stand_in(monkeypatch):
    monkeypatch.setattr(vision_runs, "at_hand", lambda name: False)
    setting = vision_runs.setting_of(Scale.QUICK, vision_runs.PAPER_MNIST, vision_runs.QUICK_MNIST)
    assert setting.images == "digits"
    monkeypatch.setattr(vision_runs, "at_hand", lambda name: True)
    settings = (vision_runs.PAPER_MNIST, vision_runs.QUICK_MNIST)
    assert vision_runs.setting_of(Scale.QUICK, *settings) == vision_runs.QUICK_MNIST
    assert vision_runs.setting_of(Scale.PAPER, *settings) == vision_runs.PAPER_MNIST
    assert vision_runs.setting_of(Scale.SMOKE, *settings).images == "digits"


def test_other_files_are_other_data(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "cifar10"
    place.mkdir()
    rng = np.random.default_rng(0)
    pixels, y = rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8), np.arange(4)
    np.savez(place / "all.npz", x_train=pixels, y_train=y, x_test=pixels, y_test=y)
    first = images.image_inputs("cifar10")
    assert set(first) == {"all.npz"}
    np.savez(place / "all.npz", x_train=255 - pixels, y_train=y, x_test=pixels, y_test=y)
    assert images.image_inputs("cifar10") != first


def test_runs_at_a_tiny_setting(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(vision_runs.Setting, "records", (0.0, 0.5, 1.0))
    monkeypatch.setattr(vision_runs, "setting_of", lambda *_: TINY)
    monkeypatch.setattr(vision_runs.Setting, "rules", only_sps)
    told = []
    arrays, facts = vision_runs.vision_data(
        Scale.SMOKE, lambda *parts: told.append(parts), paper=vision_runs.PAPER_MNIST, quick=TINY
    )
    assert arrays["steps"].tolist() == [0, 2, 4]
    assert arrays["sps_loss"].shape == arrays["sps_norm_block1_Q"].shape == (2, 3)
    assert (arrays["sps_loss"][0] != arrays["sps_loss"][1]).all()
    np.testing.assert_array_equal(arrays["sps_capped_share"][:, -1], 1.0)  # its cap is far below its steps
    assert facts["stand-in"]
    assert facts["images"] == "8 x 8 digits of scikit-learn, which stand in for MNIST"
    assert facts["train"] == 100
    assert told[-1][0] == told[-1][1] == 2


def only_sps(setting):
    from attnlab.optim import polyak

    return {"sps": polyak(cap=1e-6, floor=0.0)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rates-6", "rates-7"])
def test_smoke(name, tmp_path):
    pytest.importorskip("sklearn")
    made = make(find([name])[0], "smoke", out=tmp_path)
    assert made.finding.table["SPS"]["share of capped steps"] is not None
    assert "stand in for" in made.facts["images"]
