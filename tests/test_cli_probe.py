"""`attnlab probe` as a newcomer runs it."""

import json
from pathlib import Path

import numpy as np
import pytest

import attnlab as al
from attnlab.cli import main
from attnlab.cli.probe import _numbers, _positions
from attnlab.errors import InputError
from reports.probe_data import tiny_model, untrained

QUICK = ["--queries", "5", "--draws", "2", "--splits", "1"]


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNLAB_STORE", str(tmp_path / "store"))


def test_arrays_are_probed_kept_and_drawn(capsys):
    np.savez("arrays.npz", **untrained(0, layers=2), sinks=[0], extra=np.zeros(2))
    assert main(["probe", "arrays.npz", "--json", "--figure", "probe.png", *QUICK]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert len(found["heads"]) == 6
    assert "not read: extra" in told.err
    assert Path("probe.png").read_bytes()[:4] == b"\x89PNG"
    kept = al.Store().size().count
    assert kept == 6
    assert main(["probe", "arrays.npz", "--json", "--figure", "probe.png", *QUICK]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert al.Store().size().count == kept
    expected = al.probe(**untrained(0, layers=2), sinks=[0], queries=5, draws=2, splits=1).to_json()
    assert found["heads"] == json.loads(json.dumps(expected["heads"]))


def test_layers_and_heads_are_chosen_and_more_are_taken_from_the_store(capsys):
    np.savez("arrays.npz", **untrained(1, layers=3))
    assert main(["probe", "arrays.npz", "--layers", "0-1", "--heads", "2", "--sinks=0,-1", *QUICK]) == 0
    text = capsys.readouterr().out
    assert "L0H2" in text
    assert "L1H2" in text
    assert "L2H2" not in text
    assert "To be said with it" in text
    assert al.Store().size().count == 2
    assert main(["probe", "arrays.npz", "--heads", "2", "--sinks=0,-1", *QUICK]) == 0
    assert al.Store().size().count == 3


def test_too_little_data_is_a_verdict_not_an_error(capsys):
    np.savez("one.npz", q=np.ones((3, 2)), k=np.ones((3, 2)))
    assert main(["probe", "one.npz"]) == 0
    assert "there is one prompt" in capsys.readouterr().out


WRONG = {
    "neither": ([], "neither given"),
    "both": (["good.npz", "--model", "here"], "both given"),
    "no text": (["--model", "here"], "without `--text`"),
    "no file": (["nothing.npz"], "no file"),
    "NaN": (["nan.npz"], "`q` has 1 entries"),
    "shapes": (["shapes.npz"], "`k` has shape"),
    "no arrays": (["other.npz"], "`q` is missing"),
    "layers": (["good.npz", "--layers", "9"], "`layers` is"),
    "words for layers": (["good.npz", "--layers", "first"], "`--layers` is 'first'"),
    "sinks": (["good.npz", "--sinks", "first"], "`--sinks` is 'first'"),
    "figure": (["good.npz", "--figure", "probe.txt"], "png, pdf or svg"),
    "example": (["good.npz", "--figure", "probe.png", "--example", "L9H9", *QUICK], "no head 'L9H9'"),
    "no model": (["--model", "nowhere", "--text", "lines.txt"], "nowhere"),
    "encoding": (["--model", "nowhere", "--text", "latin.txt"], "latin.txt"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_ends_with_2_and_a_message(name, capsys):
    q = np.random.default_rng(0).standard_normal((6, 5, 2))
    np.savez("good.npz", q=q, k=q[::-1])
    np.savez("nan.npz", q=np.where(np.arange(60).reshape(6, 5, 2) == 7, np.nan, q), k=q)
    np.savez("shapes.npz", q=q, k=q[:4])
    np.savez("other.npz", x=q)
    Path("lines.txt").write_text("a line\n\nanother line\n")
    Path("latin.txt").write_bytes("caf\xe9 au lait\n".encode("latin-1"))
    arguments, told = WRONG[name]
    assert main(["probe", *arguments]) == 2
    message = capsys.readouterr()
    assert told in message.err
    assert not message.out


def test_numbers_in_words():
    assert _numbers("--layers", None) is None
    assert _numbers("--layers", "0-2, 7") == [0, 1, 2, 7]
    assert _positions(" 0, -1 ") == [0, -1]
    for wrong in ("", "3-1", "1-", "-1", "a", "1,,2", "0-99999999"):
        with pytest.raises(InputError, match="--heads"):
            _numbers("--heads", wrong)


def test_a_language_model_and_a_text(capsys):
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")

    folder, lines = tiny_model("model")
    Path("lines.txt").write_text("\n\n".join(lines))
    arguments = ["probe", "--model", folder, "--text", "lines.txt", "--length", "12", "--json", *QUICK]
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert len(json.loads(told.out)["heads"]) == 4
    assert "left out" in told.err
    assert "tokens;" in told.err
