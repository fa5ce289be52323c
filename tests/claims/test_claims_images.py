"""Claims of real images: verdicts on made-up runs, what is missing without the images, and runs on tiny ones."""

import json
from dataclasses import replace

import numpy as np
import pytest

from attnlab import InputError
from attnlab.claims import Scale, Verdict, check, find
from attnlab.claims.encoder import vision, vision_regression
from attnlab.claims.encoder.pictures import Pictures
from attnlab.claims.rates import vision as rules, vision_runs
from attnlab.cli import main
from attnlab.data import Images

IDS = ["rates-F6", "rates-F7", "encoder-F4", "encoder-F7", "encoder-F8"]
EPOCHS = np.arange(6)
STEPS = np.array([0, 50, 500])
LAYERS = ["block1_Q", "block2_mlp1_W", "head_W"]


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No image set anywhere."""
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def falling(sqrt, linear, top):
    """Curves that fall with these rates by width, (2, widths, seeds, epochs)."""
    rates = np.array([sqrt, linear])[:, :, None, None] * (1 + 0.01 * np.arange(3))[:, None]
    return top * np.exp(-rates * EPOCHS)


def scalings(sqrt=(0.5, 0.5, 0.4), linear=(0.5, 0.3, 0.02), moved=0.6):
    loss = falling(sqrt, linear, 2.3)
    return {
        "widths": np.array([16, 1024, 16384]),
        "epochs": EPOCHS,
        "main_loss": loss,
        "main_test_accuracy": np.exp(-loss),
        "main_error": 4 * np.floor(falling(sqrt, linear, 1000)),
        "moved": np.full(loss.shape[:3], moved) + 0.01 * np.arange(3),
    }


def whole(epochs=50):
    return {
        "MNIST": True,
        "images to train on": 60_000,
        "images of the whole set": 60_000,
        "epochs": epochs,
        "epochs of the paper": 50,
        "seeds": 3,
    }


@pytest.fixture(autouse=True)
def _nothing_kept():
    """Made-up runs are not taken for others."""
    yield
    vision.runs_of.cache_clear()


def outcome_of(id, scale=Scale.PAPER):
    (claim,) = find([id])
    return claim.measure(scale)


@pytest.mark.parametrize(
    ("id", "wrong", "words"),
    [
        ("encoder-F4", {"linear": (0.1, 0.05, 0.02)}, "at m = 16 both scalings train alike"),
        ("encoder-F4", {"linear": (0.5, 0.6, 0.02)}, "at m = 1024 the loss falls slower"),
        ("encoder-F4", {"moved": 0.1}, "moves at least 0.25 of the attention"),
        ("encoder-F7", {"linear": (0.5, 0.3, 0.6)}, "at m = 16384 test accuracy ends higher"),
        ("encoder-F8", {"linear": (0.5, 0.3, 0.6)}, "at m = 16384 the training error falls slower"),
    ],
)
def test_scalings_are_judged(monkeypatch, id, wrong, words):
    """One order turned round, as the two scalings exchanged at one width would do, turns the verdict."""

    def runs(arrays, facts):
        monkeypatch.setattr(vision, "mnist_pictures", lambda: None)
        monkeypatch.setattr(vision_regression, "mnist_pictures", lambda: None)
        vision.runs_of.cache_clear()
        monkeypatch.setattr(vision, "trained", lambda *_: (arrays, facts))
        monkeypatch.setattr(vision_regression, "regressed", lambda *_: (arrays, facts))
        return outcome_of(id)

    good = runs(scalings(), whole())
    assert good.verdict is Verdict.HOLDS
    json.dumps(good.to_json(), allow_nan=False)
    bad = runs(scalings(**wrong), whole())
    assert bad.verdict is Verdict.FAILS
    assert words in " ".join(part.name for part in bad.parts if part.verdict is Verdict.FAILS)
    short = runs(scalings(**wrong), whole(epochs=10))
    assert short.verdict is Verdict.NOT_APPLICABLE
    assert "10 of 50 epochs" in short.note


def of_rules(growth=1.5, **ends):
    ends = {"sgd": 0.1, "sngd": 2.0, "sps": 0.05, "adam": 0.09} | ends
    factors = np.exp([[-0.05], [0.0], [0.05]])
    part = STEPS / STEPS[-1]
    arrays = {"steps": STEPS}
    for i, (name, end) in enumerate(ends.items()):
        arrays[f"{name}_loss"] = 2.3 * (end / 2.3) ** part * np.roll(factors, i)
        arrays[f"{name}_capped_share"] = np.tile(part, (3, 1))
        for layer in LAYERS:
            arrays[f"{name}_norm_{layer}"] = 3.0 * growth ** (part * factors)
    return arrays


@pytest.mark.parametrize(
    ("id", "wrong", "words"),
    [
        ("rates-F6", {"sngd": 0.05}, "SNGD trains slower than SGD"),
        ("rates-F6", {"adam": 0.01}, "Adam has no significant gain"),
        ("rates-F7", {"sps": 0.3}, "SPS outperforms SGD"),
        ("rates-F7", {"growth": 0.8}, "norms of layers grow with SNGD"),
    ],
)
def test_rules_are_judged(monkeypatch, id, wrong, words):
    plan = {"rates-F6": rules.MNIST_PLANS, "rates-F7": rules.CIFAR_PLANS}[id]
    facts = {"layers": LAYERS, "seeds": 3, "steps": 500, "runs that left the finite numbers": []}

    def runs(arrays, scale=Scale.PAPER):
        told = facts | {"train": plan[scale].train}
        monkeypatch.setattr(rules, "train_all", lambda *_: (arrays, dict(told)))
        return outcome_of(id, scale)

    assert runs(of_rules()).verdict is Verdict.HOLDS
    assert runs(of_rules(), Scale.QUICK).verdict is Verdict.HOLDS  # what is seen early is seen
    bad = runs(of_rules(**wrong))
    assert bad.verdict is Verdict.FAILS
    assert words in " ".join(part.name for part in bad.parts if part.verdict is Verdict.FAILS)
    short = runs(of_rules(**wrong), Scale.QUICK)
    assert short.verdict is Verdict.NOT_APPLICABLE
    assert "speaks neither for nor against" in short.note


def test_without_images_claims_say_what_they_need(nowhere, capsys):
    for claim in find(IDS):
        assert claim.status.startswith(f"needs {'CIFAR-10' if claim.id == 'rates-F7' else 'MNIST'}: ")
        assert claim.about()["status"] == claim.status
    with pytest.raises(InputError, match="encoder-F4 cannot be measured: needs MNIST"):
        check(find(["encoder-F4"]), "smoke")
    assert main(["claim", "rates-F6", "--scale", "smoke"]) == 2
    assert main(["claim", "--list", "--paper", "rates"]) == 0
    assert "ATTNLAB_DATA" in "".join(capsys.readouterr().out.split())


def test_of_all_claims_those_without_images_are_left_out(nowhere, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ATTNLAB_STORE", str(tmp_path / "store"))
    few = find(["encoder-L2", "rates-F6"])
    monkeypatch.setattr("attnlab.claims.claims", lambda paper=None: few)
    assert main(["claim", "--scale", "smoke", "--json"]) == 0
    written = capsys.readouterr()
    assert [one["id"] for one in json.loads(written.out)] == [few[0].id]
    assert "rates-F6  left out: needs MNIST" in written.err


def small_pictures():
    """Bars in ten places."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 10
    pixels = 0.1 * rng.random((60, 8, 8))
    pixels[np.arange(60), y % 8] += 0.8
    images = Images(pixels=pixels, y=y, classes=10)
    return Pictures(images, images, 2, 0.2, 0.3, "")


@pytest.mark.slow
@pytest.mark.parametrize("id", ["encoder-F4", "encoder-F7", "encoder-F8"])
def test_scalings_run(monkeypatch, id):
    vision.runs_of.cache_clear()
    monkeypatch.setattr(vision, "mnist_pictures", small_pictures)
    monkeypatch.setattr(vision_regression, "mnist_pictures", small_pictures)
    found = outcome_of(id, Scale.SMOKE)
    (claim,) = find([id])
    assert found.verdict in (Verdict.NOT_APPLICABLE, Verdict.HOLDS)
    assert found.instances == 3
    assert len(found.parts) == {"encoder-F4": 4, "encoder-F7": 2, "encoder-F8": 1}[id]
    assert claim.expected_at(Scale.SMOKE) is Verdict.NOT_APPLICABLE


@pytest.mark.slow
def test_rules_run(monkeypatch):
    images = small_pictures().train
    monkeypatch.setitem(vision_runs.LOADERS, "mnist", lambda split: images)
    tiny = replace(rules.MNIST_PLANS[Scale.SMOKE], patch=2, batch=20)
    monkeypatch.setitem(rules.MNIST_PLANS, Scale.SMOKE, tiny)
    found = outcome_of("rates-F6", Scale.SMOKE)
    assert [part.instances for part in found.parts] == [3, 3, 3]
    assert set(found.numbers["share of steps whose cap decides"]) == {"SNGD", "SPS"}
