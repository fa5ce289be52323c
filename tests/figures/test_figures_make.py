"""The machinery: data once, then drawing; files; notes."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from attnlab import InputError, Store
from attnlab.claims import Verdict
from attnlab.data.files import read_npz
from attnlab.figures import Check, Figure, Finding, figures, find, make, make_all
from attnlab.figures.style import new_figure, styled


def data(scale, tell):
    tell(1, 1, "computing")
    arrays = {"curve": np.arange(scale.pick(3, 4, 5)) / 2.0, "named": np.array(["a", "b"])}
    return arrays, {"seeds": [1, 2], "attempts": 7, "drops": {"tied": 2}}


@styled
def draw(arrays, facts):
    picture, axes = new_figure(1, 1, width=2, height=2)
    axes[0, 0].plot(arrays["curve"])
    return picture


def judge(arrays, facts):
    return Finding(seen=f"It ends at {arrays['curve'][-1]}.", verdict=Verdict.HOLDS, numbers={"end": 1.0})


LINE = Figure(id="svm-99", title="A line", says="It rises.", data=data, draw=draw, judge=judge)


def test_everything_about_a_figure_is_written(tmp_path):
    made = make(LINE, "quick", out=tmp_path / "new")
    assert {path.suffix for path in made.files} == {".png", ".pdf", ".npz", ".csv", ".json", ".md"}
    assert all(path.stat().st_size > 0 for path in made.files)
    from matplotlib.image import imread

    assert imread(tmp_path / "new" / "svm-99.png").shape[:2] == (400, 400)  # 2 inches at 200 dots
    arrays, facts = read_npz(tmp_path / "new" / "svm-99.npz", "arrays")
    np.testing.assert_array_equal(arrays["curve"], [0.0, 0.5, 1.0, 1.5])
    assert facts["drops"] == {"tied": 2}
    rows = list(csv.reader((tmp_path / "new" / "svm-99.csv").read_text().splitlines()))
    assert rows[0] == ["quantity", "curve", "axis_0", "value"]
    assert ["curve", "1.5", "", "1.5"] in rows
    told = json.loads((tmp_path / "new" / "svm-99.json").read_text())
    assert told["verdict"] == "holds"
    assert told["scale"] == "quick"
    note = (tmp_path / "new" / "svm-99.md").read_text()
    for words in ("It rises.", "It ends at 1.5.", "attempts: 7", "tied: 2", "Verdict: holds"):
        assert words in note


def test_drawing_again_does_not_compute_again(tmp_path):
    computed = []

    def tell(done, total, what):
        computed.append(what)

    store = Store(tmp_path / "store")
    first = make(LINE, "smoke", out=tmp_path / "a", store=store, on_part=tell)
    again = make(LINE, "smoke", out=tmp_path / "b", store=store, on_part=tell)
    assert computed == ["computing"]
    assert again.seconds == first.seconds
    make(LINE, "smoke", out=tmp_path / "b", store=store, fresh=True, on_part=tell)
    assert computed == ["computing"] * 2


def test_figures_of_the_same_runs_share_them(tmp_path):
    computed = []
    store = Store(tmp_path / "store")
    other = replace(LINE, id="svm-98", shares="svm-99")
    for figure in (LINE, other, replace(LINE, id="svm-97")):
        make(figure, "smoke", out=tmp_path, store=store, on_part=lambda done, total, what: computed.append(what))
    assert len(computed) == 2  # that of another id is its own
    assert (tmp_path / "svm-98.png").exists()


def test_the_note_of_ones_own_figure_does_not_speak_of_a_paper(tmp_path):
    make(LINE, "smoke", out=tmp_path)
    make(replace(LINE, id="mine-1"), "smoke", out=tmp_path)
    assert "**The paper says.** It rises." in (tmp_path / "svm-99.md").read_text()
    assert "paper says" not in (tmp_path / "mine-1.md").read_text()
    assert "It rises." in (tmp_path / "mine-1.md").read_text()


def test_long_arrays_are_left_to_the_npz(tmp_path, monkeypatch):
    from attnlab.figures import tidy

    monkeypatch.setattr(tidy.tidy_csv, "__defaults__", (3,))
    make(LINE, "paper", out=tmp_path)
    rows = list(csv.reader((tmp_path / "svm-99.csv").read_text().splitlines()))
    assert ["curve", "", "(5,): in the npz file"] in rows
    assert ["named", "1", "b"] in rows


def test_figures_are_listed_and_found():
    listed = figures()
    names = [figure.id for figure in listed]
    assert len(set(names)) == len(names)
    numbers = [int(name.split("-")[1]) for name in names if name.startswith("svm")]
    assert numbers == sorted(numbers)
    json.dumps([figure.about() for figure in listed])
    assert find("svm-7")[0].id == "svm-7"
    with pytest.raises(InputError, match="no figure svm-77"):
        find(["svm-77"])
    with pytest.raises(InputError, match="`paper` is 'x'"):
        figures("x")


# Checks -----------------------------------------------------------------------------------------------------------


def test_checks_respect_how_many_sets_there_are():
    verdicts = {
        (5, 5): Verdict.HOLDS,
        (3, 3): Verdict.TOO_FEW,  # three of three may be chance
        (4, 5): Verdict.TOO_FEW,
        (0, 5): Verdict.FAILS,
        (14, 16): Verdict.HOLDS,
        (8, 16): Verdict.TOO_FEW,
        (2, 16): Verdict.FAILS,
    }
    for (seen, sets), verdict in verdicts.items():
        check = Check("it is so", np.arange(sets) < seen)
        assert check.part.verdict is verdict, (seen, sets)
        assert check.measured == f"{seen} of {sets}"
    assert Check("all", [True, True], at_least=1.0).part.verdict is Verdict.HOLDS
    assert Check("all", [True, False], at_least=1.0).part.verdict is Verdict.FAILS
    assert Check("rare", [False] * 30, at_most=0.3).part.verdict is Verdict.HOLDS
    assert Check("none", np.array([], bool)).part.verdict is Verdict.NOT_APPLICABLE


def test_checks_of_numbers_go_by_their_mean():
    assert Check("above 0", [0.9, 1.0, 1.1], at_least=0.0).part.verdict is Verdict.HOLDS
    assert Check("above 0", [-1.0, 1.0, 0.5], at_least=0.0).part.verdict is Verdict.TOO_FEW
    assert Check("below 0", [0.9, 1.0, 1.1], at_most=0.0).part.verdict is Verdict.FAILS
    with pytest.raises(ValueError, match="at_least"):
        Check("no level", [0.9, 1.0]).part  # noqa: B018


def test_the_verdict_follows_from_the_checks():
    good, bad, few = Check("it falls", [True] * 5), Check("it ends low", [False] * 5), Check("it is even", [True] * 2)
    assert Finding.of(good).verdict is Verdict.HOLDS
    assert Finding.of(good, few).verdict is Verdict.TOO_FEW
    found = Finding.of(good, bad, few, table={"loss": {"H = 1": 0.5}}, remarks=["So it is."], numbers={"sets": 5})
    assert found.verdict is Verdict.FAILS
    assert found.seen == (
        "Seen: it falls (5 of 5). Not seen: it ends low (0 of 5). Too few to tell: it is even (2 of 2). So it is."
    )
    brief = Finding.of(good, bad, brief="Ten steps decide nothing.")
    assert brief.verdict is Verdict.NOT_APPLICABLE
    assert "Ten steps decide nothing." in brief.seen
    facts = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert facts["checks"][1] == {"check": "it ends low", "seen": "0 of 5", "verdict": "fails"}
    assert facts["table"] == {"loss": {"H = 1": 0.5}}


def test_checks_and_tables_are_in_the_note(tmp_path):
    def judged(arrays, facts):
        table = {"loss | end": {"H = 1": 0.123456, "H = 2": None}, "steps": {"H = 2": "never"}}
        return Finding.of(Check("it rises", [True] * 5), table=table)

    make(
        Figure(id="svm-99", title="A line", says="It rises.", data=data, draw=draw, judge=judged), "smoke", out=tmp_path
    )
    note = (tmp_path / "svm-99.md").read_text()
    for line in ("| it rises | 5 of 5 | holds |", "|  | H = 1 | H = 2 |", "| steps |  | never |", "loss \\| end"):
        assert line in note, line
    assert "## Numbers" not in note


OTHER = replace(LINE, id="svm-98", title="The same line", shares="svm-99")
HALF = replace(LINE, id="svm-97", title="Another line")


def test_figures_in_processes_are_those_made_one_by_one(tmp_path):
    """In the order asked for, the same files to the letter but for how long it took; data that are shared once."""
    store = Store(tmp_path / "store")
    parts = []
    together = make_all(
        [LINE, HALF, OTHER], "smoke", out=tmp_path / "a", store=store, jobs=2, on_part=lambda *a: parts.append(a)
    )
    assert [made.figure.id for made in together] == ["svm-99", "svm-97", "svm-98"]
    assert together[0].seconds == together[2].seconds
    assert parts[0] == (0, 3, "starting")
    assert sorted(part[2] for part in parts[1:]) == ["svm-97 done", "svm-99, svm-98 done"]
    assert parts[-1][:2] == (3, 3)
    for made in together:
        alone = make(made.figure, "smoke", out=tmp_path / "b", store=store)
        assert made.to_json() == alone.to_json() | {"files": [str(path) for path in made.files]}
        for kind in ("csv", "npz", "md"):
            name = f"{made.figure.id}.{kind}"
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_figures_in_processes_that_cannot_be_made(tmp_path):
    with pytest.raises(InputError, match="svm-97 cannot be made: no data"):
        make_all([LINE, replace(HALF, missing=lambda: "no data")], "smoke", out=tmp_path, jobs=2)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="`jobs`"):
        make_all([LINE], "smoke", out=tmp_path, jobs=0)
    assert make_all([], "smoke", out=tmp_path) == []
