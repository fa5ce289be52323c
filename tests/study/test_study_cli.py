"""`attnlab study`."""

import json

import pandas
import pytest

from attnlab.cli import main

SWEEP = """
import attnlab as al


def block(point, seeds):
    if point["n"] == 3:
        raise ValueError("no 3")
    return {"even": seeds % 2 == 0, "value": seeds * point["n"]}


study = al.Study(block, {"n": [1, 2, 3]}, trials=10)
good = al.Study(block, {"n": [1, 2]}, trials=10)
"""


@pytest.fixture
def sweep(tmp_path):
    file = tmp_path / "sweep.py"
    file.write_text(SWEEP)
    return str(file)


def run(capsys, *arguments):
    code = main(["study", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_run_status_export(sweep, tmp_path, capsys):
    code, status = run(capsys, "status", f"{sweep}:study")
    assert (code, status["missing"], status["done"]) == (1, 30, 0)
    code, ran = run(capsys, "run", f"{sweep}:study", "--jobs", "1", "--retries", "0")
    assert (code, ran["computed"], ran["failed"]) == (1, 20, 10)
    code, status = run(capsys, "status", f"{sweep}:study")
    assert (code, status["errors"]) == (1, {"ValueError: no 3": 10})
    code, ran = run(capsys, "run", f"{sweep}:good", "--trials", "12", "--jobs", "1")
    assert (code, ran["computed"], ran["kept"]) == (0, 4, 20)
    code, _ = run(capsys, "export", f"{sweep}:good", "--out", str(tmp_path / "t.csv"))
    assert (code, len(pandas.read_csv(tmp_path / "t.csv"))) == (0, 20)
    code, _ = run(capsys, "export", f"{sweep}:good", "--format", "parquet")
    assert (code, len(pandas.read_parquet(tmp_path / "sweep.parquet"))) == (0, 20)
    assert main(["study", "export", f"{sweep}:good", "--format", "latex", "--of", "even"]) == 0
    assert capsys.readouterr().out.startswith(r"\begin{tabular}{lr}")


def test_words(sweep, capsys):
    assert main(["study", "run", f"{sweep}:good", "--jobs", "1"]) == 0
    assert "20" in capsys.readouterr().out
    assert main(["study", "run", sweep]) == 2
    assert "has 2 studies" in capsys.readouterr().err
    assert main(["study", "run", "nowhere.py"]) == 2
    assert main(["study", "run", f"{sweep}:good", "--scheduler", "nonsense://"]) in (1, 2)
