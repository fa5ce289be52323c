"""Figures 4 and 7 of the encoder's paper: verdicts on made-up curves, drawing, the data, and which images are seen."""

import json

import numpy as np
import pytest

from attnlab import InputError
from attnlab.claims import Scale, Verdict, images
from attnlab.claims.encoder import pictures, vision_data, vision_runs
from attnlab.claims.encoder.pictures import Pictures
from attnlab.data import Images
from attnlab.figures import find, make
from attnlab.figures.encoder import vision

EPOCHS = np.arange(11)
FACTS = {
    "MNIST": True,
    "images": "MNIST, 28 x 28",
    "images to train on": 60_000,
    "images of the whole set": 60_000,
    "test images": 10_000,
    "label of the image shown": 7,
    "epochs": 50,
    "epochs of the paper": 50,
    "seeds": 3,
    "seeds of other readings": 2,
}
SHORT = {**FACTS, "images to train on": 10_000, "epochs": 10}


def curves(sqrt, linear, seeds=3, epochs=EPOCHS):
    """Losses that fall with these rates by width, a little differently for every seed: (2, widths, seeds, epochs)."""
    rates = np.array([sqrt, linear])[:, :, None, None] * (1 + 0.01 * np.arange(seeds))[:, None]
    return 2.3 * np.exp(-rates * epochs)


def made_up(sqrt=(0.5, 0.5, 0.4), linear=(0.5, 0.3, 0.02), moved=0.6, seeds=3):
    loss = curves(sqrt, linear, seeds)
    shape = loss.shape[:3]
    few = curves(sqrt[1:], linear[1:], 2, np.arange(4))
    found = {
        "widths": np.array(vision_runs.WIDTHS),
        "other_widths": np.array(vision_runs.WIDTHS[1:]),
        "epochs": EPOCHS,
        "other_epochs": np.arange(4),
        "picture": np.zeros((28, 28)),
        "maps": np.full((2, 3, 2, 16, 16), 1 / 16),
        "entropy_before": np.full(shape, 2.7),
        "entropy_after": np.full(shape, 1.2),
        "moved": np.full(shape, moved) + 0.01 * np.arange(seeds),
    }
    for name, values in {"main": loss, "cls": few, "small": few}.items():
        found[f"{name}_loss"] = found[f"{name}_test_loss"] = values
        found[f"{name}_accuracy"] = found[f"{name}_test_accuracy"] = np.exp(-values)
        found[f"{name}_lost_at"] = np.full(values.shape[:3], -1)
    return found


def not_seen(finding):
    return finding.seen.split("Not seen:")[1]


def test_losses_are_judged():
    good = vision.judge_losses(made_up(), FACTS)
    assert good.verdict is Verdict.HOLDS, good.seen
    json.dumps(good.to_json(), allow_nan=False)
    assert "No run overflowed" in good.seen
    assert "Other reading, head on a class token" in good.seen
    for ways, words in (
        ({"linear": (0.1, 0.05, 0.02)}, "at m = 16 both scalings train alike"),
        ({"linear": (0.5, 0.6, 0.02)}, "at m = 1024 the loss falls slower"),
        ({"linear": (0.5, 0.3, 0.6)}, "at m = 16384 the loss falls slower"),
        ({"linear": (0.5, 0.1, 0.35)}, "the gap is larger at the largest width"),
        ({"moved": 0.1}, "training moves at least 0.25"),
    ):
        bad = vision.judge_losses(made_up(**ways), FACTS)
        assert bad.verdict is Verdict.FAILS
        assert words in not_seen(bad)


def test_accuracies_are_judged():
    good = vision.judge_accuracy(made_up(), FACTS)
    assert good.verdict is Verdict.HOLDS, good.seen
    json.dumps(good.to_json(), allow_nan=False)
    late = made_up()
    late["main_test_accuracy"] = late["main_test_accuracy"][::-1]
    bad = vision.judge_accuracy(late, FACTS)
    assert bad.verdict is Verdict.FAILS
    assert "at m = 1024 test accuracy ends higher" in not_seen(bad)


def test_one_seed_is_too_few_and_short_runs_refute_nothing():
    assert vision.judge_losses(made_up(seeds=1), FACTS).verdict is Verdict.TOO_FEW
    wrong = made_up(linear=(0.5, 0.6, 0.02))
    assert vision.judge_losses(wrong, FACTS).verdict is Verdict.FAILS
    brief = vision.judge_losses(wrong, SHORT)
    assert brief.verdict is Verdict.NOT_APPLICABLE
    assert "10000 of 60000 images in 10 of 50 epochs" in brief.seen
    for arrays in (wrong, made_up()):  # images that stand in for MNIST neither refute nor support
        other = vision.judge_losses(arrays, {**FACTS, "MNIST": False})
        assert other.verdict is Verdict.NOT_APPLICABLE
        assert "stand in" in other.seen


def test_runs_that_overflow_are_told_and_count_as_slow():
    lost = made_up()
    lost["main_loss"][1, 2, 0, 4:] = np.nan
    lost["main_lost_at"][1, 2, 0] = 300
    found = vision.judge_losses(lost, FACTS)
    assert "Runs that overflowed: 1 of 18 (main)" in found.seen
    assert "1 of 3 overflowed" in found.table["m = 16384, tau0 = 1/m"]["loss at the end"]
    for draw in (vision.draw_losses, vision.draw_accuracy):
        draw(lost, FACTS).canvas.draw()


def test_drawing():
    picture = vision.draw_losses(made_up(), FACTS)
    assert [panel.get_visible() for panel in picture.axes[:12]] == [True] * 12
    np.testing.assert_allclose(picture.axes[0].get_lines()[0].get_ydata(), 2.3 * np.exp(-0.505 * EPOCHS))
    picture.canvas.draw()
    below = vision.draw_accuracy(made_up(), FACTS)
    assert len(below.axes) == 6
    below.canvas.draw()


def test_mean_over_time_and_gaps():
    epochs = np.array([0.0, 1.0, 3.0])
    np.testing.assert_allclose(vision_runs.mean_over_time(epochs, epochs), 1.5)
    np.testing.assert_allclose(vision_runs.log_ratio(np.array([10.0, np.inf]), np.array([1.0, np.inf])), [1.0, 0.0])


# Which images -----------------------------------------------------------------------------------------------------


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No MNIST anywhere."""
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_without_mnist_a_stand_in_is_named(nowhere):
    pytest.importorskip("sklearn")
    seen = pictures.pictures(Scale.QUICK)
    facts = seen.facts(seen.train, seen.test)
    assert "scikit-learn" in facts["images"]
    assert "ATTNLAB_DATA" in facts["stand-in"]
    assert not facts["MNIST"]
    assert "quick" in pictures.pictures(Scale.SMOKE).stand_in
    assert find(["encoder-4"])[0].inputs() == {"images": "digits of scikit-learn"}
    assert seen.patches(seen.train.take(3)).x.shape == (3, 16, 4)


def test_without_any_images_it_says_what_is_missing(nowhere, monkeypatch):
    monkeypatch.setattr(pictures, "digits_installed", lambda: False)
    for figure in find(["encoder-4", "encoder-6", "encoder-7", "encoder-8"]):
        assert "scikit-learn" in figure.status
        with pytest.raises(InputError, match="ATTNLAB_DATA"):
            make(figure, "smoke", out=nowhere / "out")


def test_other_files_are_other_data(nowhere, monkeypatch):
    names = ["images", "labels"]
    for name in names:
        (nowhere / name).write_bytes(b"one")
    listed = {"name": "mnist", "splits": {"train": {"found": True, "folder": str(nowhere), "files": names}}}
    monkeypatch.setattr(images, "image_sets", lambda: [listed])
    first = images.image_inputs("mnist")
    assert set(first) == set(names)
    assert pictures.missing() == ""
    (nowhere / "labels").write_bytes(b"two")
    assert images.image_inputs("mnist") != first


# The data ---------------------------------------------------------------------------------------------------------


def small_pictures():
    """Bars in ten places, as large as the digits of scikit-learn."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 10
    pixels = 0.1 * rng.random((60, 8, 8))
    pixels[np.arange(60), y % 8] += 0.8
    images = Images(pixels=pixels, y=y, classes=10)
    return Pictures(images, images, 2, 0.2, 0.3, "a test")


@pytest.mark.slow
def test_data(monkeypatch):
    told = []
    monkeypatch.setattr(vision_data, "OTHERS", {"small": vision_runs.OTHERS["small"]})
    plan = vision_data.Plan(40, 12, 2, (16,), 2, 1, (16,), 1)
    arrays, facts = vision_data.trained(plan, small_pictures(), told.append)
    assert len(told) == plan.runs == 6
    assert arrays["main_loss"].shape == (2, 1, 2, 3)
    assert arrays["small_loss"].shape == (2, 1, 1, 2)
    np.testing.assert_allclose(arrays["main_loss"][..., 0], np.log(10), rtol=0.5)
    np.testing.assert_allclose(arrays["maps"].sum(-1), 1.0, rtol=1e-9)
    # At the start both scalings have the same weights, and 1/m makes logits sqrt(16) times smaller: more uniform.
    assert (arrays["entropy_before"][1] > arrays["entropy_before"][0]).all()
    assert (arrays["entropy_before"] <= np.log(16)).all()
    assert facts["stand-in"] == "a test"
    json.dumps(facts, allow_nan=False)


def test_both_figures_are_drawn_from_one_training():
    first, second = find(["encoder-4", "encoder-7"])
    assert first.data is second.data
    assert first.inputs() == second.inputs()
    assert second.shares == first.id
