"""What users feed the commands: wrong files, wrong words, places that cannot be written, too little time."""

import json
import pickle
import threading
import zipfile

import numpy as np
import pytest

import attnlab as al
from attnlab.cli import main, solve
from attnlab.cli.selection import token_sets
from attnlab.data import files
from attnlab.data.files import read_npz
from attnlab.errors import InputError


@pytest.fixture
def tokens(tmp_path, monkeypatch):
    """Three queries of four tokens, in tokens.npz."""
    monkeypatch.chdir(tmp_path)
    found = al.data.sphere(n=3, T=4, d=8, seed=1)
    found.save("tokens.npz")
    return found


def refused(capsys, *arguments) -> str:
    """The message of a command that is refused."""
    assert main(list(arguments)) == 2, arguments
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    for stray in ("Traceback", "allow_pickle", "`head`"):
        assert stray not in captured.err
    return captured.err


def test_files_that_hold_no_tokens(tokens, tmp_path, capsys, monkeypatch):
    content = (tmp_path / "tokens.npz").read_bytes()
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(content[:-40])
    (tmp_path / "pickled.npz").write_bytes(pickle.dumps({"x": 1}))
    with open("objects.npz", "wb") as file:
        np.savez(file, x=np.array([None]), z=1, y=1)
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(2**22))
    monkeypatch.setattr(files, "BOMB_BYTES", 2**21)
    np.savez("text.npz", x=np.array([["a"]]), z=np.ones((1, 1)), y=[1])
    for file, words in [
        ("folder", "is a folder"),
        ("empty.npz", "it is empty"),
        ("cut.npz", "cut off or damaged"),
        ("pickled.npz", "holds Python objects"),
        ("objects.npz", "holds Python objects"),
        ("bomb.npz", "would unpack to"),
        ("/dev/zero", "a pipe or a device"),
        ("text.npz", "`x` has type"),
        ("a[/]b.npz", "no file `a[/]b.npz`"),
    ]:
        assert words in refused(capsys, "solve", file)


@pytest.mark.parametrize(
    "words", ["0,1,,2", "0,1,2,", ",0,1,2", "0,2+2,1", "0,1+,2", "0,+1,2", "0,1.0,2", "0,1_0,2", "0,٣,2", "", " "]
)
def test_selections_that_say_nothing_clear_are_refused(tokens, capsys, words):
    assert "`--selected`" in refused(capsys, "solve", "tokens.npz", "--selected", words)


@pytest.mark.parametrize("words", ["0,-1,2", "0,4,2", "0,99999999999999999999999,2", "0,1+4,2", "0,1+-1,2"])
def test_tokens_that_there_are_not_are_refused(tokens, capsys, words):
    assert "token" in refused(capsys, "solve", "tokens.npz", "--selected", words)


@pytest.mark.parametrize("words", ["0,1,2", "0, 1, 2", " 0 1 2 ", "0 ,1,  2", "00,01,2"])
def test_selections_with_blanks_are_read(words):
    assert token_sets(words) == [[0], [1], [2]]


def test_a_long_selection_is_not_repeated_in_full():
    with pytest.raises(InputError) as caught:
        token_sets("0," * 5000)
    assert len(str(caught.value)) < 300


def test_a_mask_that_is_no_array_of_booleans(tokens, tmp_path, capsys):
    (tmp_path / "folder.npy").mkdir()
    np.save("objects.npy", np.array([None]), allow_pickle=True)
    np.savez("named.npz", a=np.ones(3))
    (tmp_path / "named.npz").rename(tmp_path / "named.npy")
    for file, words in [
        ("folder.npy", "is a folder"),
        ("objects.npy", "holds Python objects"),
        ("named.npy", "holds named arrays"),
    ]:
        told = refused(capsys, "solve", "tokens.npz", "--selected", "0,0,0", "--mask", file)
        assert words in told
        assert told.count("hint:") == 1


def test_places_that_cannot_be_written_are_refused_before_anything_is_computed(tokens, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(solve._Work, "_solved", lambda self: pytest.fail("computed in vain"))
    (tmp_path / "folder").mkdir()
    for out, words in [
        ("none/a.npz", "there is no folder `none`"),
        ("folder", "a folder; wanted a file"),
        ("tokens.npz", "the file of the tokens"),
        ("tokens", "the file of the tokens"),
        ("tokens.npz/a.npz", "a file is where a folder should be"),
    ]:
        assert words in refused(capsys, "solve", "tokens.npz", "--out", out)
    al.Tokens.load("tokens.npz")
    for command in (["demo"], ["figure", "svm-7"], ["claim", "svm-L1"]):
        told = refused(capsys, *command, "--out", "tokens.npz")
        assert "Cannot write `tokens.npz`: a file is where a folder should be" in told


def test_the_file_that_was_written_is_named(tokens, capsys):
    assert main(["solve", "tokens.npz", "--out", "mine", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["out"] == "mine.npz"
    assert "mine.npz" in captured.err
    read_npz("mine.npz", "W")


def test_a_table_that_leaves_out_queries_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    al.data.sphere(n=33, T=3, d=40, seed=1).save("many.npz")
    assert main(["solve", "many.npz"]) == 0
    told = capsys.readouterr().out
    assert "30 of 33, --json has all" in " ".join(told.split())
    assert main(["solve", "many.npz", "--json"]) == 0
    queries = json.loads(capsys.readouterr().out)["queries"]
    assert [query["query"] for query in queries] == [str(i) for i in range(33)]
    al.data.sphere(n=30, T=3, d=40, seed=1).save("all.npz")
    assert main(["solve", "all.npz"]) == 0
    assert "--json has all" not in capsys.readouterr().out


def test_huge_tokens_are_solved_or_refused_by_name(tokens, capsys):
    np.savez("huge.npz", x=1e200 * tokens.x, z=1e200 * tokens.z, y=tokens.y, v=1e200 * tokens.v)
    assert "`v`" in refused(capsys, "solve", "huge.npz")
    np.savez("head.npz", x=1e200 * tokens.x, z=1e-200 * tokens.z, y=tokens.y, v=1e200 * tokens.v)
    assert main(["solve", "head.npz", "--selected", "0,1,2", "--json"]) == 0  # no scores are needed
    result = json.loads(capsys.readouterr().out)
    assert result["margin"] == pytest.approx(al.solve_margin(tokens, [0, 1, 2]).margin, rel=1e-9)
    assert result["optimal"] is None


# Time


class Slow:
    """Stands for something that takes long: waits until it is let go."""

    def __init__(self):
        self.go = threading.Event()
        self.gone = threading.Event()

    def __call__(self, *_, **__):
        self.go.wait(60)
        self.gone.set()


@pytest.fixture
def slow():
    found = Slow()
    yield found
    found.go.set()
    assert found.gone.wait(60)


def test_out_of_time_before_anything_is_solved(tokens, tmp_path, capsys, monkeypatch, slow):
    monkeypatch.setattr(solve._Work, "_solved", slow)
    assert main(["solve", "tokens.npz", "--selected", "0,1,2", "--time-limit", "1.5", "--json"]) == 3
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["status"], result["out"], result["selected"]) == ("out_of_time", None, [0, 1, 2])
    assert "time is up: no W was found in 1.5 seconds" in captured.err
    assert not (tmp_path / "tokens-margin.npz").exists()


def test_out_of_time_with_w_known(tokens, capsys, monkeypatch, slow):
    want = al.solve_margin(tokens, al.optimal_tokens(tokens))
    monkeypatch.setattr(al.theory, "is_locally_optimal", slow)
    assert main(["solve", "tokens.npz", "--time-limit", "8"]) == 3
    captured = capsys.readouterr()
    assert "W was found; the rest was not" in captured.err
    assert "support tokens" in captured.out
    np.testing.assert_allclose(read_npz("tokens-margin.npz", "W")[0]["W"], want.W, rtol=1e-12)


def test_enough_time_changes_nothing(tokens, capsys):
    results = []
    for limit in ([], ["--time-limit", "1e30"]):
        assert main(["solve", "tokens.npz", "--json", *limit]) == 0
        results.append(capsys.readouterr().out)
    assert results[0] == results[1]
    assert "There is no file" in refused(capsys, "solve", "none.npz", "--time-limit", "60")


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_a_time_limit_is_a_number_of_seconds(tokens, capsys, limit):
    assert "`--time-limit`" in refused(capsys, "solve", "tokens.npz", "--time-limit", limit)


# Claims of one's own


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\nx +\n", "line 2: SyntaxError"),
        ("import numpy\n\nundefined\n", "line 3: NameError: name 'undefined'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("import no_such_module\n", "line 1: ModuleNotFoundError"),
    ],
)
def test_a_file_of_claims_that_cannot_be_run(tmp_path, capsys, text, words):
    file = tmp_path / "mine.py"
    file.write_text(text)
    told = refused(capsys, "claim", f"{file}:mine")
    assert words in told
    assert str(file) in told


def test_a_claim_that_fails_to_measure_is_a_fault_with_its_name(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "from attnlab.claims import Claim\ndef measure(scale):\n    return 1 / 0\n"
        'mine = Claim(id="mine-1", title="Mine", statement="x", reason="y", measure=measure)\n'
    )
    assert main(["claim", f"{file}:mine"]) == 70
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert "mine-1" in told
    assert "Traceback" not in told


def test_jobs_that_are_none(capsys):
    assert "`jobs` is 0" in refused(capsys, "claim", "svm-L1", "--jobs", "0")
