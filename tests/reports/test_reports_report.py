"""What all reports share: the printer, JSON and data frames; and the row that every check is."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import attnlab as al
from attnlab.reports import Fact, Report, Section
from attnlab.theory import encoder, multihead
from attnlab.theory.check import Check, at_least, plain


class Small(Report):
    """Two facts, then two checks and a fact."""

    @property
    def verdict(self):
        return "So so."

    def sections(self):
        facts = [Fact("data", "n = 4, of two kinds"), Fact("loss", "0.5")]
        checks = [at_least("width", 50.0, 100.0), at_least("a long name", 3.0, 1.0), Fact("depth", "1")]
        return Section("", facts), Section("asked for", checks), Section("empty", [])


TEXT = """\
So so.

data  n = 4, of two kinds
loss  0.5

asked for
             value  wanted  margin  holds
width        50     100     0.5     no
a long name  3      1       3       yes
depth        1"""


def reports():
    """One of each kind."""
    tokens = al.data.sphere(n=4, T=3, d=5)
    zero = {"U": np.zeros((3, 5)), "W": np.zeros((5, 5))}
    same = al.Tokens.self_attention(np.ones((2, 1, 2)), [1.0, -1.0])
    nothing = {"U": np.zeros((1, 2)), "W": np.zeros((2, 2))}
    return {
        "small": Small(),
        "rates": al.rates(al.data.two_tokens(), [al.gd(0.5), al.ngd(0.1)], steps=50),
        "good": al.good_initialization(tokens, al.models.MultiHead(10**6), zero),
        "bad": al.good_initialization(same, al.models.MultiHead(2), nothing),
        "encoder": al.encoder_report(al.data.gaussian_sequences(n=4, T=2, d=16), al.models.Encoder(64)),
    }


def test_one_printer():
    assert repr(Small()) == str(Small()) == TEXT


@pytest.mark.parametrize("kind", ["small", "rates", "good", "bad", "encoder"])
def test_every_report_prints_its_verdict_and_each_of_its_rows(kind):
    report = reports()[kind]
    assert isinstance(report, Report)
    lines = repr(report).splitlines()
    assert lines[0] == report.verdict
    assert report.verdict.endswith((".", "`farkas`"))
    for row in report.rows:
        assert any(line.startswith(row.name) for line in lines), row.name
    names = [row.name for row in report.rows]
    assert len(set(names)) == len(names)
    facts = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert facts["verdict"] == report.verdict
    assert [row["name"] for row in facts["rows"]] == names
    if kind != "rates":
        assert all({"name", "value", "wanted", "margin", "holds"} <= set(row) for row in facts["rows"])


def test_a_frame_has_the_rows(monkeypatch):
    """pandas is asked for a table of records; here something that keeps them stands for it."""
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    records = Small().frame()
    assert [record["name"] for record in records] == ["data", "loss", "width", "a long name", "depth"]
    assert records[2] == {"name": "width", "value": 50.0, "wanted": 100.0, "margin": 0.5, "holds": False}
    assert records[0] == {"name": "data", "value": "n = 4, of two kinds", "wanted": None, "margin": None, "holds": None}


def test_a_real_frame():
    pandas = pytest.importorskip("pandas")
    frame = Small().frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["name", "value", "wanted", "margin", "holds"]


def test_without_pandas_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(al.InputError, match="pip install 'attnlab\\[study\\]'"):
        Small().frame()


def test_rates_frame_has_a_row_for_each_rule(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    table = reports()["rates"]
    records = table.frame()
    assert [record["name"] for record in records] == [row.name for row in table.rows]
    for record, row in zip(records, table.rows, strict=True):
        assert record["1 - cos at the end"] == row.misalignment[0]
        assert record["cos 0.9 at step"] == row.reached[0].median
        assert record["hypotheses hold"] is row.prediction.applies


def test_rates_say_which_rule_is_closest():
    table = reports()["rates"]
    ends = {row.name: row.misalignment[0] for row in table.rows}
    assert f"{min(ends, key=ends.__getitem__)} comes closest" in table.verdict


def test_what_moved_says_where_it_is_now():
    with pytest.raises(AttributeError, match=r"al\.good_initialization"):
        multihead.good_initialization  # noqa: B018
    with pytest.raises(AttributeError, match=r"al\.reports\.stability"):
        multihead.stability  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        multihead.nothing  # noqa: B018
    assert al.reports.stability is not None


def test_a_check_is_a_truth_value_with_evidence():
    check = Check(name="B.1", value=1.5, wanted=1.0, margin=-0.5, holds=False, evidence={"worst": np.array([np.inf])})
    assert not check
    assert repr(check) == "Check(B.1 does not hold, margin=-0.5)"
    assert check.to_json() == {
        "name": "B.1",
        "value": 1.5,
        "wanted": 1.0,
        "margin": -0.5,
        "holds": False,
        "evidence": {"worst": ["inf"]},
    }


@pytest.mark.parametrize(
    "check",
    [
        al.theory.assumption_b1(al.data.two_tokens()),
        al.theory.assumption_b1_proxy(al.data.two_tokens()),
        al.theory.assumption_b2(al.data.two_tokens()),
        al.theory.assumption_c(al.data.two_tokens()),
        al.theory.assumption_d(al.data.two_tokens()),
        al.theory.is_locally_optimal(al.data.two_tokens(), [0]),
        al.theory.assumption_1(al.data.two_tokens()),
        al.theory.assumption_2(al.data.two_tokens()),
        al.theory.initialization(al.data.two_tokens(), 1e-3, 0.1),
        al.theory.condition_1(al.theory.JointModel(n=10, d=100, alpha=3.0, rho=0.1), 0.002),
        encoder.assumption_1(np.eye(3)[:, None]),
        encoder.assumption_2(np.eye(3)[:, None]),
        encoder.assumption_3(np.eye(3)[:, None]),
        encoder.assumption_4(np.eye(3)[:, None]),
    ],
    ids=lambda check: f"{type(check).__name__} {check.name}",
)
def test_every_check_is_the_same_row(check):
    assert isinstance(check, Check)
    assert bool(check) is check.holds
    assert set(check.record()) == {"name", "value", "wanted", "margin", "holds"}
    json.dumps(check.to_json(), allow_nan=False)
    assert repr(check).startswith(f"{type(check).__name__}({check.name} ")


def test_plain_json_of_anything():
    given = {1: np.float64(np.nan), "a": (np.int64(3), np.bool_(True)), "b": None, "c": -np.inf, "d": {2.0}}
    assert plain(given) == {"1": "nan", "a": [3, True], "b": None, "c": "-inf", "d": "{2.0}"}
