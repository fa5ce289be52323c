"""What is wrong is said, by name, before or instead of computing."""

import json
import sys
import threading

import numpy as np
import pytest
import study_work as work

import attnlab as al
from attnlab.study import read_study
from attnlab.study.outcome import checked_arrays

GRID = {"p": [0.2, 0.7], "n": [1, 2]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trials": 0}, "`trials` is 0"),
        ({"trials": 2.5}, "`trials` is 2.5"),
        ({"seed": -1}, "`seed` is -1"),
        ({"block": 0}, "`block` is 0"),
        ({"name": ""}, "`name` is"),
        ({"grid": {"n": []}}, "`grid\\['n'\\]` is"),
        ({"grid": {"n": 3}}, "wanted a list of values"),
        ({"grid": []}, "empty list"),
        ({"grid": 3}, "`grid` is 3"),
        ({"grid": {"n": [1, 1]}}, "a point twice, as number 0 and 1: n=1"),
        ({"grid": [{"n": 1}, {"n": 1}]}, "a point twice"),
        ({"grid": [{"n": 1}, {"m": 1}]}, "wanted equal ones"),
        ({"grid": [{"n": 1}, 5]}, "`grid\\[1\\]` is 5"),
        ({"grid": {"seed": [1]}}, "column of its own"),
        ({"grid": {"a b": [1]}}, "wanted a word"),
        ({"grid": {"n": [object()]}}, "wanted numbers, text"),
        ({"grid": {"n": [float("nan")]}}, "wanted finite"),
        ({"grid": {"n": [2**63]}}, "below 2\\^63"),
        ({"grid": {"n": [-(2**63)]}}, "below 2\\^63"),
        ({"grid": {"n": np.ones((2, 2))}}, "wanted a list of values"),
        ({"seed": 2**20}, "`seed` is 1048576"),
        ({"trials": 2**32}, "`trials` is 4294967296"),
        ({"function": 3}, "`function` is 3"),
        ({"function": lambda seeds: {}}, "wanted \\(point, seeds\\)"),
        ({"function": "nothing"}, "wanted one of direction"),
        ({"function": "direction", "grid": {"m": [1]}}, "does not know; wanted some of T,"),
        ({"function": "direction", "grid": {"rule": ["newton"]}}, "`rule` is 'newton'"),
        ({"function": "direction", "grid": {"family": ["cube"]}}, "`family` is 'cube'"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(tmp_path, options, said):
    given = {"function": work.coins, "grid": GRID, "store": tmp_path, **options}
    with pytest.raises(al.InputError, match=said):
        al.Study(given.pop("function"), given.pop("grid"), **given)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "wanted a dict of arrays"),
        ({}, "wanted a dict of arrays"),
        ({"x": [1, 2]}, "`x` of shape \\(2,\\) for 3 seeds"),
        ({"x": [[1], [1, 2], [3]]}, "no array"),
        ({"x": [None] * 3}, "of type object"),
        ({"p": [1, 2, 3]}, "named 'p'"),
        ({"seed": [1, 2, 3]}, "named 'seed'"),
        ({1: [1, 2, 3]}, "named 1"),
    ],
)
def test_what_a_block_may_not_return(returned, said):
    with pytest.raises(al.InputError, match=said):
        checked_arrays(returned, 3, ["p"])


def test_nan_and_infinity_are_outcomes(tmp_path):
    def block(point, seeds):
        values = work.uniform(seeds)
        values[seeds == 2] = np.nan
        values[seeds == 3] = np.inf
        return {"value": values}

    study = al.Study(block, {"n": [1]}, trials=10, store=tmp_path)
    study.run()
    status = study.status()
    assert (status.done, status.failed, status.nan) == (10, 0, {"value": 1})
    row = study.summary(of="value").iloc[0]
    assert (row["trials"], row["nan"], row["failed"]) == (9, 1, 0)
    assert row["high"] == np.inf or np.isfinite(row["high"])


def test_another_shape_in_one_block_is_a_failure_of_that_block(tmp_path):
    def block(point, seeds):
        width = 3 if 4 in seeds else 2
        return {"value": np.zeros((len(seeds), width))}

    study = al.Study(block, {"n": [1]}, trials=8, block=4, store=tmp_path)
    study.run()
    rows = study.frame()
    assert rows["error"].notna().tolist() == [False] * 4 + [True] * 4
    assert "`value` of shape (3,) per trial where other blocks returned (2,)" in rows["error"].iloc[-1]
    assert list(rows.columns[3:5]) == ["value_0", "value_1"]
    assert study.status().failed == 4


def test_other_names_in_one_block(tmp_path):
    study = al.Study(lambda point, seeds: {point["name"]: 1.0}, {"name": ["a", "b"]}, trials=2, store=tmp_path)
    study.run()
    assert "returned b where other blocks returned a" in study.frame()["error"].iloc[-1]


def test_a_function_that_cannot_be_sent(tmp_path):
    lock = threading.Lock()

    def block(point, seeds):
        with lock:
            return {"value": work.uniform(seeds)}

    study = al.Study(block, {"n": [1]}, trials=2, store=tmp_path)
    with pytest.raises(al.InputError, match="cannot be sent to another process"):
        study.run(jobs=2)


def test_nothing_yet(tmp_path):
    study = al.Study(work.coins, GRID, trials=2, store=tmp_path)
    for ask in (study.frame, study.summary, study.dataset, study.to_latex):
        with pytest.raises(al.InputError, match=r"no (trials|results) yet"):
            ask()
    assert (study.status().missing, study.status().done) == (8, 0)


def test_a_study_whose_results_are_words_has_no_summary(tmp_path):
    study = al.Study(lambda point, seeds: {"word": "x"}, {"n": [1]}, trials=2, store=tmp_path)
    study.run()
    assert study.frame()["word"].tolist() == ["x", "x"]
    for ask in (study.summary, study.to_latex):
        with pytest.raises(al.InputError, match="no results that are numbers"):
            ask()


def test_words_of_summaries(tmp_path):
    study = al.Study(work.coins, GRID, trials=2, store=tmp_path)
    study.run()
    for options, said in (
        ({"by": "m"}, "`by` has 'm'"),
        ({"of": "losses"}, "`of` has 'losses'"),
        ({"how": "most"}, "`how` is 'most'"),
        ({"of": "value", "how": "share"}, "not true or false"),
        ({"by": 3}, "`by` is 3"),
    ):
        with pytest.raises(al.InputError, match=said):
            study.summary(**options)
    with pytest.raises(al.InputError, match="`x` has 'm'"):
        study.plot("m", "value")
    with pytest.raises(al.InputError, match="`client` is int"):
        study.run(client=5)


def test_values_at_the_ends_of_what_is_taken(tmp_path):
    grid = {"n": np.array([2**63 - 1, 1 - 2**63]), "word": ("a", None, True)}
    study = al.Study(lambda point, seeds: {"seed_again": seeds}, grid, trials=2, seed=2**20 - 1, store=tmp_path)
    study.run()
    frame = study.frame()
    assert len(study.points) == 6
    assert (frame["seed"] == frame["seed_again"]).all()
    assert frame["seed"].iloc[1] == (2**20 - 1) * 2**32 + 1
    assert frame["n"].iloc[0] == 2**63 - 1
    empty = al.Study(lambda point, seeds: {}, [{}], trials=1, store=tmp_path / "empty")
    assert "the only point, trials 0 to 0" in empty.run(retries=0).log[0]


def test_nan_is_counted_by_trial(tmp_path):
    def block(point, seeds):
        pairs = np.zeros((len(seeds), 2))
        pairs[seeds % 2 == 0] = np.nan
        return {"pair": pairs, "word": np.array(["nan"] * len(seeds))}

    study = al.Study(block, {"n": [1]}, trials=5, store=tmp_path)
    study.run()
    assert study.status().nan == {"pair": 3}


def test_a_file_may_use_what_lies_beside_it(tmp_path):
    (tmp_path / "beside_the_sweep.py").write_text("def triple(seeds):\n    return 3 * seeds\n")
    (tmp_path / "sweep.py").write_text(
        "import attnlab as al, beside_the_sweep\n"
        "def block(point, seeds):\n    return {'value': beside_the_sweep.triple(seeds)}\n"
        f"study = al.Study(block, {{'n': [1]}}, trials=4, store={str(tmp_path / 's')!r})\n"
    )
    found = read_study(tmp_path / "sweep.py")
    found.run(jobs=2)
    assert found.frame()["value"].tolist() == [0, 3, 6, 9]
    (tmp_path / "beside_the_sweep.py").write_text("def triple(seeds):\n    return 4 * seeds\n")
    sys.modules.pop("beside_the_sweep")
    assert read_study(tmp_path / "sweep.py").status().missing == 4


def test_studies_of_one_name_in_two_files_are_two(tmp_path):
    for name, factor in (("one", 2), ("two", 3)):
        (tmp_path / f"{name}.py").write_text(
            f"import attnlab as al\ndef block(point, seeds):\n    return {{'value': {factor} * seeds}}\n"
            f"study = al.Study(block, {{'n': [1]}}, trials=2, store={str(tmp_path / 's')!r})\n"
        )
        ran = read_study(tmp_path / f"{name}.py").run()
        assert (ran.computed, ran.log) == (2, ())


def test_a_store_of_another_version_is_told(tmp_path):
    study = al.Study(work.coins, GRID, trials=2, store=tmp_path)
    study.run()
    (ledger,) = (tmp_path / "studies").glob("*.json")
    about = json.loads(ledger.read_text())
    ledger.write_text(json.dumps(about | {"versions": about["versions"] | {"attnlab": "0.0.1"}, "code": "other"}))
    ran = study.run()
    assert ran.log[0].startswith("Results of an earlier run are not used: attnlab 0.0.1 is now")
    assert study.run().log == ()
    about = json.loads(ledger.read_text())
    ledger.write_text(json.dumps(about | {"versions": about["versions"] | {"numpy": "1.0"}}))
    assert study.run().log[0].startswith("Some results may be of an earlier run, when versions were others: numpy 1.0")
    ledger.write_text(json.dumps(about | {"format": -1}))
    assert "code that it reaches, was changed" in study.run().log[0]
    ledger.write_text("[]")
    assert study.run().log == ()


def test_files(tmp_path):
    (tmp_path / "sweep.py").write_text(
        "import attnlab as al\n"
        "def block(point, seeds):\n    return {'twice': 2 * seeds}\n"
        f"study = al.Study(block, {{'n': [1, 2]}}, trials=3, store={str(tmp_path / 's')!r})\n"
    )
    found = read_study(tmp_path / "sweep.py")
    found.run(jobs=2)  # the function goes with its code
    assert found.frame()["twice"].tolist() == [0, 2, 4, 0, 2, 4]
    (tmp_path / "two.py").write_text((tmp_path / "sweep.py").read_text() + "other = study.with_trials(5)\n")
    assert read_study(tmp_path / "two.py", "other").trials == 5
    bad = {
        "none.py": ("x = 1\n", "0 studies"),
        "many.py": ((tmp_path / "two.py").read_text(), "2 studies"),
        "a.toml": ("trials = 3\n", "must name a `measure`"),
        "b.toml": ("measure = 'direction'\nsteps = 3\n[grid]\nn = [1]\n", "has steps"),
        "c.toml": ("measure = \n", "is no TOML"),
        "d.txt": ("", "wanted a .py or a .toml"),
        "broken.py": ("study = (", "cannot be run \\(SyntaxError"),
        "raises.py": ("import nothing_of_this_name\n", "cannot be run \\(ModuleNotFoundError"),
        "twice.py": ("import attnlab as al\nal.Study('direction', {'d': [5, 5]})\n", "a point twice"),
    }
    for name, (content, said) in bad.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(al.InputError, match=said):
            read_study(tmp_path / name)
    with pytest.raises(al.InputError, match="There is no file"):
        read_study(tmp_path / "nowhere.py")
