"""`attnlab data` says what is there, and fetches nothing."""

import json

import numpy as np
import pytest

from attnlab.cli import main
from attnlab.data import places


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of one's own, with a little of CIFAR-10 and half of MNIST."""

    def never(*_):
        raise AssertionError("nothing is to be downloaded")

    monkeypatch.setattr(places, "fetch", never)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path / "own"))
    own = tmp_path / "own"
    (own / "cifar10").mkdir(parents=True)
    pixels, labels = np.zeros((7, 32, 32, 3), dtype=np.uint8), np.zeros(7, dtype=int)
    np.savez(own / "cifar10" / "little.npz", x_train=pixels, y_train=labels, x_test=pixels[:3], y_test=labels[:3])
    (own / "train-images-idx3-ubyte").write_bytes(b"")
    (own / "sst2").mkdir()
    (own / "sst2" / "train.tsv").write_text("sentence\tlabel\nfine\t1\n")
    return own


def test_json(folder, capsys):
    assert main(["data", "--json"]) == 0
    printed = capsys.readouterr()
    sets = {one["name"]: one for one in json.loads(printed.out)}
    assert list(sets)[:4] == ["mnist", "fashion_mnist", "cifar10", "digits"]
    assert list(sets)[4:] == ["mnli", "toxic", "civil", "sst2", "imdb", "bert-base-uncased", "roberta-base", "minilm"]
    assert sets["sst2"]["files"] == {"train": "train.tsv", "test": "a part of train.tsv"}
    assert not sets["minilm"]["found"]
    splits = sets["cifar10"]["splits"]
    assert [splits[split]["images"] for split in ("train", "test")] == [7, 3]
    assert splits["train"]["files"] == ["little.npz"]
    assert not sets["mnist"]["splits"]["train"]["found"]
    assert sets["mnist"]["looked_in"][:2] == [str(folder / "mnist"), str(folder)]
    assert "no train-labels-idx1-ubyte" in sets["mnist"]["splits"]["train"]["why"][1]


def test_table(folder, capsys):
    assert main(["data"]) == 0
    printed = capsys.readouterr()
    for words in ("28 x 28 x 1, 10 classes", "missing", "1442", f"cifar10 is in {folder / 'cifar10'}\n"):
        assert words in printed.out
    assert f"mnist was looked for in {folder / 'mnist'}\n" in printed.out
    assert f"sst2 is in {folder / 'sst2'}\n" in printed.out
    assert f"minilm was looked for in {folder / 'minilm'}\n" in printed.out
    assert "cifar10 was looked for" not in printed.out
    assert "…" not in printed.out
    assert "ATTNLAB_DATA" in printed.err


def test_help_and_wrong_usage(capsys):
    with pytest.raises(SystemExit) as end:
        main(["data", "--help"])
    assert end.value.code == 0
    assert "Nothing is downloaded" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit) as end:
        main(["data", "mnist"])
    assert end.value.code == 2
