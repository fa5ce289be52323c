"""The fuzzer notices what it is there for: every kind of fault is planted, and must be reported."""

import dataclasses
import json
import warnings

import numpy as np
import pytest

import attnlab as al
from attnlab.errors import AttnlabError, InputError
from attnlab.svm import margin
from fuzz import run
from fuzz.calls import Call, Case, table
from fuzz.outcomes import Kind, outcome
from fuzz.smaller import shrunk
from fuzz.source import Replay, Seeded

CALLS = 60


def kinds(case, calls=CALLS):
    """Kinds of outcomes of so many calls."""
    return {outcome(case, Seeded(5, i))[0].kind for i in range(calls)}


def planted(function, **more):
    """A case of a function without arguments."""
    return Case("planted", lambda src: Call(function), **more)


def raises(error):
    def function():
        raise error

    return function


@dataclasses.dataclass
class Result:
    numbers: dict
    reason: str | None = None


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda: 1.0, Kind.FINITE),
        (raises(ValueError("NumPy's own")), Kind.UNTYPED),
        (raises(InputError("`x` is wrong")), Kind.TYPED),
        (raises(InputError("something is wrong")), Kind.VAGUE),
        (raises(AttnlabError("`x` is wrong")), Kind.TYPED),
        (lambda: np.array([1.0, np.nan]), Kind.NOT_FINITE),
        (lambda: Result({"a": [(1.0, np.float64(np.inf))]}), Kind.NOT_FINITE),
        (lambda: Result({"a": [np.nan]}, reason="too few"), Kind.REFUSED),
        (lambda: warnings.warn("overflow", RuntimeWarning, stacklevel=1), Kind.WARNING),
        (lambda: warnings.warn("tied", al.errors.TiedScoresWarning, stacklevel=1), Kind.FINITE),
    ],
)
def test_kinds_of_outcomes(function, kind):
    assert outcome(planted(function), Seeded(0))[0].kind is kind


def test_an_object_that_cannot_be_printed_is_noticed():
    class Mute:
        def __repr__(self):
            raise RuntimeError

    assert outcome(planted(Mute), Seeded(0))[0].kind is Kind.UNTYPED


def test_a_call_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr("fuzz.outcomes.LONGEST", 0.2)

    def function():
        while True:
            pass

    assert outcome(planted(function), Seeded(0))[0].kind is Kind.TOO_LONG


def changed(monkeypatch, **fields):
    """`solve_margin` whose solutions are spoilt: each field by a function of the solution."""
    honest = margin.solve_margin

    def solve_margin(*args, **kwargs):
        solution = honest(*args, **kwargs)
        wrong = {name: spoil(solution) for name, spoil in fields.items()}
        return dataclasses.replace(solution, **wrong) if solution.status.name == "OPTIMAL" else solution

    monkeypatch.setattr(al, "solve_margin", solve_margin, raising=False)
    return table()["svm.solve_margin"]


@pytest.mark.parametrize(
    "fields",
    [
        {"W": lambda s: s.W * (1 - 1e-6)},
        {"W": lambda s: s.W * (1 + 1e-6)},
        {"W": lambda s: s.W + 1e-3 * np.abs(s.W).max() * np.sign(np.eye(len(s.W)) + 0.5)},
        {"multipliers": lambda s: s.multipliers * 0.0},
        {"multipliers": lambda s: -s.multipliers},
        {"margin": lambda s: 1.001 * s.margin},
        {"values": lambda s: s.values + 1e-3},
    ],
)
def test_a_wrong_solution_is_noticed(monkeypatch, fields):
    assert Kind.UNCERTIFIED in kinds(changed(monkeypatch, **fields))


def test_a_solution_with_nan_is_noticed(monkeypatch):
    assert Kind.NOT_FINITE in kinds(changed(monkeypatch, violation=lambda s: np.nan))


def test_an_empty_proof_is_noticed(monkeypatch):
    honest = margin.solve_margin

    def solve_margin(*args, **kwargs):
        solution = honest(*args, **{**kwargs, "throw": False})
        if solution.status.name != "OPTIMAL":
            return solution
        weights = np.where(np.isnan(solution.values), 0.0, 1.0)
        return dataclasses.replace(solution, status=al.svm.MarginStatus.INFEASIBLE, farkas=weights / weights.sum())

    monkeypatch.setattr(al, "solve_margin", solve_margin, raising=False)
    assert Kind.UNCERTIFIED in kinds(table()["svm.solve_margin"])


def test_a_fault_is_made_small_and_repeats():
    def make(src):
        numbers = src.indices(100, 20)
        return Call(lambda: raises(ValueError())() if max(numbers) > 40 else 1.0)

    case = Case("planted", make)
    seeded = next(src for src in map(Seeded, range(99)) if outcome(case, src)[0].kind is Kind.UNTYPED)
    key = outcome(case, Replay(seeded.tape))[0].key("planted")
    least = shrunk(case, seeded.tape, key)
    assert sum(least) == 41
    assert outcome(case, Replay(least))[0].key("planted") == key


def test_the_same_seed_makes_the_same_calls():
    case = table()["svm.solve_margin"]
    first, again = (Seeded(3, 1) for _ in range(2))
    case.make(first)
    case.make(again)
    assert first.tape == again.tape
    replay = Replay(first.tape)
    case.make(replay)
    assert replay.tape == first.tape


def test_the_command_reports_faults_and_exits_with_1(monkeypatch, tmp_path, capsys):
    def broken(*args, **kwargs):
        raise ValueError("planted")

    honest = al.svm.combine
    monkeypatch.setattr(al.svm, "combine", broken)
    monkeypatch.setattr(
        run, "together", lambda seed, processes, seconds, calls, only: run.work(seed, 0, seconds, calls, only)
    )
    monkeypatch.setattr(run, "ENVIRONMENT", {})
    faults = tmp_path / "faults.json"
    given = ["--calls", "5", "--only", "svm.combine", "--faults", str(faults)]
    assert run.main(given) == 1
    assert "svm.combine: UNTYPED ValueError" in capsys.readouterr().out
    assert json.loads(faults.read_text())["faults"][0]["count"] == 5
    assert run.main(["--again", str(faults)]) == 1
    monkeypatch.setattr(al.svm, "combine", honest)
    assert run.main(["--again", str(faults)]) == 0
