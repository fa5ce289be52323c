"""Figure 10 of the rates paper: cosines by hand, verdicts on made-up ones, drawing, and the data of a tiny model."""

import json

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.claims.rates import token_cosines as runs
from attnlab.data import Sequences
from attnlab.figures.rates import token_cosines

FACTS = {
    "sets": {"civil": "CivilComments", "mnli": "MultiNLI"},
    "texts by set": {"CivilComments": 30, "MultiNLI": 30},
    "model": "bert-base-uncased",
    "dimension": 768,
    "stand-in": False,
    "as the paper": True,
}


def made_up(civil=0.7, mnli=0.7):
    rng = np.random.default_rng(0)
    arrays = {"bins": runs.BINS}
    middles = 0.5 * (runs.BINS[1:] + runs.BINS[:-1])
    for name, share in (("civil", civil), ("mnli", mnli)):
        arrays[f"{name}_near"] = np.clip(share + 0.1 * rng.standard_normal(30), 0, 1)
        arrays[f"{name}_counts"] = np.round(1000 * np.exp(-0.5 * (middles / 0.08) ** 2))
        arrays[f"{name}_pairs"], arrays[f"{name}_twice"] = np.full(30, 98), np.full(30, 2)
    return {**arrays, "random_counts": arrays["civil_counts"]}


def test_shares_near_zero_are_judged():
    good = token_cosines.judge(made_up(), FACTS)
    assert good.verdict is Verdict.HOLDS
    json.dumps(good.to_json(), allow_nan=False)
    assert "would add 2 % (CivilComments) and 2 % (MultiNLI) of all pairs" in good.seen
    bad = token_cosines.judge(made_up(mnli=0.3), FACTS)
    assert bad.verdict is Verdict.FAILS
    assert "MultiNLI: in a text" in bad.seen.split("Not seen:")[1]
    smaller = token_cosines.judge(made_up(mnli=0.3), {**FACTS, "as the paper": False, "model": "MiniLM"})
    assert smaller.verdict is Verdict.NOT_APPLICABLE
    assert "The table of MiniLM stands in" in smaller.seen
    other = token_cosines.judge(made_up(), {**FACTS, "stand-in": True})
    assert other.verdict is Verdict.NOT_APPLICABLE


def test_drawing(tmp_path):
    picture = token_cosines.draw(made_up(), FACTS)
    picture.savefig(tmp_path / "drawn.png")
    assert len(picture.axes) == 2
    one = {**FACTS, "sets": {"mnli": "my.tsv"}, "texts by set": {"my.tsv": 30}}
    token_cosines.draw(made_up(), one).canvas.draw()


def test_cosines_are_those_of_pairs_of_different_tokens():
    table = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [1.0, 0.0], [-1.0, 0.0]])
    data = Sequences(ids=[[3, 0, 1, 2, 1], [3, 0, 4, 0, 0], [3, 1, 0, 0, 0]], lengths=[5, 3, 2], y=[0, 0, 0])
    found = runs.cosines_of(data, table, frozenset({3}))
    # Tokens 0, 1, 2 and once more 1; then 0 and 4; the last text has one token and no pair.
    assert found["pairs"].tolist() == [3, 1]
    assert found["twice"].tolist() == [1, 0]
    np.testing.assert_allclose(found["near"], [1 / 3, 0.0])
    np.testing.assert_allclose(found["mean"], [(0.0 + 0.6 + 0.8) / 3, -1.0])
    assert found["counts"].sum() == 4


def test_quantiles_of_counts():
    rng = np.random.default_rng(0)
    values = np.clip(0.2 * rng.standard_normal(20_000), -1, 1)
    counts = np.histogram(values, runs.BINS)[0].astype(float)
    told = token_cosines.row(counts, runs.BINS)
    assert told["median"] == pytest.approx(np.median(values), abs=0.01)
    assert told["95 %"] == pytest.approx(np.quantile(values, 0.95), abs=0.01)
    assert told["deviation"] == pytest.approx(0.2, rel=0.02)


def test_data(monkeypatch, tmp_path):
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ATTNLAB_WEIGHTS", raising=False)
    for scale in (Scale.SMOKE, Scale.QUICK):  # without files made-up texts stand in at both
        arrays, facts = runs.cosine_data(scale, lambda *parts: None)
        assert facts["stand-in"]
        assert set(facts["sets"]) == {"civil", "mnli"}
        assert (arrays["mnli_near"] <= 1).all()
        json.dumps(facts, allow_nan=False)
        token_cosines.judge(arrays, facts)


def test_the_control_is_of_directions_without_special_tokens():
    pytest.importorskip("tokenizers")
    from attnlab.claims.texts import tiny_reader
    from attnlab.data import made_up_texts

    reader = tiny_reader(made_up_texts(60, seed=0))
    directions = runs._directions(reader)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0)
    special = runs.special_ids(reader)
    assert {reader.tokenizer.tokens([one])[0] for one in special} == {"[CLS]", "[SEP]", "[PAD]"}
    opposite = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])  # the last is special
    counts = runs.random_counts(opposite, frozenset({2}))
    assert counts[0] == counts.sum() > 0  # all at cosine -1


@pytest.mark.parametrize(("name", "stands_in"), [("mnli_train.jsonl", False), ("mine.jsonl", True)])
def test_a_file_that_is_given_is_the_papers_if_its_name_says_so(tmp_path, name, stands_in):
    from attnlab.claims.texts import Files

    file = tmp_path / "texts" / name
    file.parent.mkdir()
    file.write_text(json.dumps({"premise": "one", "hypothesis": "two", "label": "neutral"}))
    found, title, other = runs.unlabelled("given", Files(data=str(file)))
    assert found.texts == ("one", "two")
    assert (title, other) == (name, stands_in)
