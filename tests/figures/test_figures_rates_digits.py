"""Figure 9 of the rates paper: with a folder of IDX files, with scikit-learn, and with neither."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from attnlab import InputError
from attnlab.claims import Scale, Verdict, texts
from attnlab.cli import main
from attnlab.figures import find, make
from attnlab.figures.rates import digits

FIGURE = digits.FIGURES[0]
STEPS = np.unique(np.geomspace(1, 4000, 50).astype(int))
FACTS = {"sets": 4, "n": 50, "T": 5, "d": 64, "share of sequences whose image has the best score": 1.0, "MNIST": True}


def idx(array):
    array = np.asarray(array, dtype=np.uint8)
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture(params=[8, 28])
def folder(tmp_path, request):
    """Two kinds of noisy strokes, as large as those of scikit-learn and of MNIST."""
    size, rng = request.param, np.random.default_rng(0)
    kinds = rng.integers(0, 2, 200)
    shapes = np.stack([np.eye(size), np.eye(size)[::-1]])
    images = 180 * shapes[kinds] + rng.integers(0, 70, (200, size, size))
    place = tmp_path / "mnist"
    place.mkdir()
    (place / "train-images-idx3-ubyte").write_bytes(idx(images))
    (place / "train-labels-idx1-ubyte").write_bytes(idx(kinds))
    return place


def made_up(ngd=3.0, gd=1.0, least=0.99):
    arrays = {"steps": STEPS, "floor": np.full(4, 0.4)}
    for name, speed in {"gd": gd, "ngd": ngd, "ngd_free": ngd}.items():
        t = speed * STEPS / 2000.0
        found = {
            "loss": 0.4 + np.exp(-t), "log_excess_loss": -t, "norm": t, "attention": 1 - np.exp(-t),
            "attention_min": np.full(len(t), least), "misalignment_svm": np.exp(-t),
        }  # fmt: skip
        arrays |= {f"{name}_{key}": np.tile(values, (4, 1)) for key, values in found.items()}
    return arrays


def test_order_and_limit_decide(tmp_path):
    assert digits.judge(made_up(), FACTS).verdict is Verdict.HOLDS
    slow = digits.judge(made_up(ngd=2.0), FACTS)  # 1 - cos ends at e^-4
    assert slow.verdict is Verdict.FAILS
    assert "reaches 0.99" in slow.seen.split("Not seen:")[1]
    other = digits.judge(made_up(ngd=2.0), {**FACTS, "MNIST": False})
    assert other.verdict is Verdict.NOT_APPLICABLE
    assert "substitute" in other.seen
    behind = digits.judge(made_up(gd=4.0), FACTS)
    assert "NGD is nearer" in behind.seen.split("Not seen:")[1]
    mixed = made_up()
    mixed["ngd_attention_min"][0, -1] = 1e-9
    assert "in 3 of 4 sets" in digits.judge(mixed, FACTS).seen
    for arrays in (made_up(), made_up(least=0.1)):
        digits.draw(arrays, FACTS)
    digits.draw(mixed, FACTS).savefig(tmp_path / "9.png")


def test_without_images_it_says_what_is_missing(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv(digits.FOLDER, raising=False)
    monkeypatch.setattr(digits, "digits_installed", lambda: False)
    assert "needs scikit-learn: pip install 'attnlab[digits]'" in FIGURE.about()["status"]
    with pytest.raises(InputError, match="ATTNLAB_MNIST"):
        make(FIGURE, "smoke", out=tmp_path)
    assert main(["figure", "rates-9", "--out", str(tmp_path / "none")]) == 2
    assert "needs scikit-learn" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert main(["figure", "rates-9", "--list"]) == 0
    assert "attnlab[digits]" in capsys.readouterr().out
    monkeypatch.setenv(digits.FOLDER, str(tmp_path))
    assert FIGURE.status == "ready"


def test_other_files_are_other_data(monkeypatch, folder):
    monkeypatch.setenv(digits.FOLDER, str(folder))
    first = digits.inputs()
    assert set(first) == {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"}
    images = (folder / "train-images-idx3-ubyte").read_bytes()
    (folder / "train-images-idx3-ubyte").write_bytes(images[:-1] + b"\x07")
    assert digits.inputs() != first
    monkeypatch.delenv(digits.FOLDER)
    assert digits.inputs() == {}


@pytest.mark.slow
def test_a_folder_of_files_is_used(monkeypatch, folder):
    monkeypatch.setenv(digits.FOLDER, str(folder))
    monkeypatch.setattr(digits, "STEPS", 300)
    arrays, facts = digits.digits_data(Scale.SMOKE, lambda *_: None)
    assert str(folder) in facts["images"]
    assert facts["accuracy of the classifier on unseen images"] > 0.95
    assert arrays["ngd_attention"][:, -1].min() > arrays["gd_attention"][:, -1].max()
    digits.judge(arrays, facts)


@pytest.mark.slow
def test_smoke_with_scikit_learn(monkeypatch, tmp_path):
    pytest.importorskip("sklearn")
    monkeypatch.delenv(digits.FOLDER, raising=False)
    shown = make(FIGURE, "smoke", out=tmp_path).finding.numbers["shown"]
    assert shown["NGD has the smaller loss"]
    assert shown["NGD is nearer to W_mm"]


def test_what_cannot_be_made_is_listed_and_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(texts, "find_spec", lambda name: None)
    assert main(["figure", "--paper", "rates", "--list"]) == 0
    table = capsys.readouterr().out
    for number in range(1, 11):
        assert f"rates-{number} " in table
    assert "needs the libraries tokenizers" in " ".join(table.split())
    assert main(["figure", "rates-1", "--out", str(tmp_path / "none")]) == 2
    assert "rates-1 cannot be made: needs the libraries tokenizers" in capsys.readouterr().err
    assert [figure.status == "ready" for figure in find(["rates-1", "rates-2", "rates-10"])] == [False, True, False]
    with pytest.raises(InputError, match="cannot be made"):
        make(find(["rates-4"])[0], "smoke", out=tmp_path)


def test_asking_for_all_leaves_out_what_cannot_be_made(monkeypatch, capsys, tmp_path):
    only = replace(FIGURE, id="rates-1", missing=lambda: "needs time")
    monkeypatch.setattr("attnlab.figures.figures", lambda paper=None: [only])
    assert main(["figure", "--out", str(tmp_path)]) == 0
    assert "rates-1  left out: needs time" in capsys.readouterr().err
