"""Figures that sweep: stopped and gone on with, with other settings, as tidy tables."""

import csv
import io
import os
from pathlib import Path

import numpy as np
import pytest

from attnlab import AttnlabError, InputError, Store
from attnlab.claims import Verdict
from attnlab.figures import Figure, Finding, figures, find, make
from attnlab.figures.settings import settings_in_words
from attnlab.figures.style import new_figure, styled
from attnlab.figures.sweep import sweep
from attnlab.figures.tidy import tidy_csv


@pytest.fixture(autouse=True)
def log(tmp_path, monkeypatch):
    """A file with a line for every trial that was computed."""
    monkeypatch.setenv("SWEEP_LOG", str(tmp_path / "log"))


def computed():
    return Path(os.environ["SWEEP_LOG"]).read_text().split()


def block(point, seeds):
    with open(os.environ["SWEEP_LOG"], "a") as file:
        file.writelines(f"{point['d']}-{seed}\n" for seed in seeds.tolist())
    return {"curve": np.outer(seeds, np.arange(3)) * point["d"]}


def settings(scale):
    return {"d": (2, 5), "trials": 200}


def data(scale, tell, *, d, trials):
    cells = sweep(block, [{"d": size} for size in d], trials, tell, "computing")
    return {"d": np.array(d), "curve": np.stack([cell["curve"] for cell in cells])}, {"trials": trials}


@styled
def draw(arrays, facts):
    picture, axes = new_figure(1, 1, width=2, height=2)
    axes[0, 0].plot(arrays["d"])
    return picture


def judge(arrays, facts):
    return Finding(seen="It rises.", verdict=Verdict.HOLDS, numbers={})


SWEPT = Figure(id="svm-99", title="A sweep", says="It rises.", data=data, draw=draw, judge=judge, settings=settings)


def test_a_stopped_figure_goes_on_where_it_was(tmp_path):
    store = Store(tmp_path / "store")

    def stop(done, total, what):
        if done >= 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(SWEPT, "smoke", out=tmp_path, store=store, on_part=stop)
    before = len(computed())
    assert 150 <= before < 400
    parts = []
    make(SWEPT, "smoke", out=tmp_path, store=store, on_part=lambda *told: parts.append(told))
    assert len(computed()) == len(set(computed())) == 400
    assert parts[0] == (before, 400, "computing")
    assert parts[-1] == (400, 400, "computing")
    made = np.load(tmp_path / "svm-99.npz")["curve"]
    expected = np.array([2, 5])[:, None, None] * np.outer(np.arange(200), np.arange(3))
    np.testing.assert_array_equal(made, expected)
    make(SWEPT, "smoke", out=tmp_path, store=store, fresh=True)
    assert len(computed()) == 800


def test_without_a_store_nothing_is_kept(tmp_path):
    for _ in range(2):
        make(SWEPT, "smoke", out=tmp_path, trials=5)
    assert len(computed()) == 20


def test_other_settings_are_told(tmp_path):
    made = make(SWEPT, "smoke", out=tmp_path, d=[7], trials=3)
    assert made.finding.verdict is Verdict.NOT_APPLICABLE
    note = (tmp_path / "svm-99.md").read_text()
    assert "These are not the paper's settings (d = (7,), trials = 3)" in note
    same = make(SWEPT, "smoke", out=tmp_path, trials=200, d=(2, 5))
    assert same.finding.verdict is Verdict.HOLDS
    for given, said in (
        ({"n": 3}, "has no setting 'n'; wanted some of d, trials"),
        ({"trials": 0}, "wanted a whole number at least 1"),
        ({"trials": 2.5}, "wanted a whole number"),
        ({"d": ()}, "is empty"),
        ({"d": ["x"]}, "wanted a whole number"),
    ):
        with pytest.raises(InputError, match=said):
            make(SWEPT, "smoke", out=tmp_path, **given)
    with pytest.raises(InputError, match="it has none that can be changed"):
        make("svm-1", "smoke", out=tmp_path, n=3)


def test_settings_in_words():
    assert settings_in_words(["n=3", "d=5,10", "step=0.5", "family=sphere"]) == {
        "n": 3,
        "d": (5, 10),
        "step": 0.5,
        "family": "sphere",
    }
    for bad in ("n", "=3", "n="):
        with pytest.raises(InputError, match="wanted NAME=VALUE"):
            settings_in_words([bad])


def test_figures_that_sweep_say_what_can_be_changed():
    from attnlab.claims import Scale

    for figure in find(["svm-2", "svm-5", "svm-6", "svm-7", "svm-10"]):
        assert {"d", "trials", "steps"} <= set(figure.settings(Scale.QUICK))
    with_settings = {figure.id for figure in figures() if figure.settings(Scale.QUICK)}
    listed = {f"svm-{number}" for number in (2, 4, 5, 6, 7, 9, 10)} | {f"rates-{number}" for number in (2, 3, 5, 9)}
    assert with_settings == listed | {"multihead-2", "multihead-3"}


def test_tables_are_tidy():
    arrays = {
        "steps": np.array([0, 10, 20]),
        "loss": np.arange(6.0).reshape(2, 3),
        "W_best": np.array([True, False]),
        "matrix": np.ones((4, 4)),
    }
    rows = list(csv.DictReader(io.StringIO(tidy_csv(arrays, {"trials": 2}))))
    assert set(rows[0]) == {"quantity", "step", "trial", "axis_0", "axis_1", "value"}
    losses = [(row["trial"], row["step"], row["value"]) for row in rows if row["quantity"] == "loss"]
    assert losses[4] == ("1", "10", "4.0")
    assert [row["value"] for row in rows if row["quantity"] == "W_best"] == ["True", "False"]
    assert [row["axis_0"] for row in rows if row["quantity"] == "matrix"][:5] == ["0", "0", "0", "0", "1"]
    doubtful = list(csv.DictReader(io.StringIO(tidy_csv(arrays, {"trials": 3}))))
    assert "trial" not in doubtful[0]  # three trials or three steps: not named rather than named wrongly
    short = list(csv.DictReader(io.StringIO(tidy_csv(arrays, {}, most=5))))
    assert {"(4, 4): in the npz file", "(2, 3): in the npz file"} <= {row["value"] for row in short}


def test_axes_are_those_that_a_figure_says():
    arrays = {"widths": np.array([10, 100]), "late_steps": np.array([5, 7]), "loss": np.arange(8.0).reshape(2, 2, 2)}
    axes = {"widths": "width", "late_steps": "step=late_steps", "*": "scaling width step=late_steps"}
    rows = list(csv.DictReader(io.StringIO(tidy_csv(arrays, {}, axes))))
    assert list(rows[0]) == ["quantity", "step", "scaling", "width", "value"]
    (row,) = [row for row in rows if row["value"] == "6.0"]
    assert (row["scaling"], row["width"], row["step"]) == ("1", "100", "5")
    for words, said in (("width step", "the axes"), ("width scaling width=nothing", "does not fit")):
        with pytest.raises(AttnlabError, match=said):
            tidy_csv(arrays, {}, {"loss": words})
    with pytest.raises(AttnlabError, match="'width' does not fit"):
        tidy_csv({"widths": np.arange(3), "loss": np.zeros(2)}, {}, {"loss": "width"})
