"""Figures 1 and 4 of the rates paper: judgement, drawing and facts on made-up runs, and runs of a tiny model."""

import json
from dataclasses import replace

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict, texts
from attnlab.claims.rates import text_runs
from attnlab.figures import find, make
from attnlab.figures.rates import text
from attnlab.figures.rates.rule_panels import CAPPED

RULES = ("sgd", "sngd", "sps", "adam")
STEPS = np.array([0, 40, 400])
FACTS = {
    "rules": {name: name for name in RULES},
    "layers": [],
    "sgd_step": 1e-3,
    "sngd_step": 1e-2,
    "adam_step": 2e-5,
    "sngd_cap": 0.1,
    "sps_cap": 0.1,
    "texts": "MultiNLI (train.tsv)",
    "texts for the test": "dev_matched.tsv",
    "texts that were cut": [3, 1],
    "stand-in": False,
    "as the paper": True,
    "pretrained": True,
    "model": "bert-base-uncased",
    "model stands in": "",
    "paper": {"steps": 122_720},
    "runs that left the finite numbers": [],
    "classes": ["entailment", "neutral", "contradiction"],
    "train": 640,
    "batch": 16,
    "epochs": 10.0,
    "length": 32,
    "seeds": 3,
    "steps": 400,
}


def made_up(seeds=3, *, spread=0.05, **ends):
    """Losses that fall from 1.1 to given ends, with a spread over seeds."""
    ends = {"sgd": 1.0, "sngd": 0.3, "sps": 0.25, "adam": 0.2} | ends
    factor = np.exp(spread * np.linspace(-1, 1, seeds))[:, None]
    part = STEPS / STEPS[-1]
    arrays = {"steps": STEPS}
    for i, (name, end) in enumerate(ends.items()):
        arrays[f"{name}_loss"] = arrays[f"{name}_test_loss"] = 1.1 * (end / 1.1) ** part * np.roll(factor, i, axis=0)
        arrays[f"{name}_accuracy"] = arrays[f"{name}_test_accuracy"] = np.tile(0.33 + 0.5 * part, (seeds, 1))
        if name in CAPPED:
            arrays[f"{name}_capped_share"] = np.tile(part, (seeds, 1))
    return arrays


def failing(finding):
    return [check.name.split(":")[0] for check in finding.checks if check.part.verdict is Verdict.FAILS]


def test_what_the_paper_says_holds_where_it_is_seen():
    finding = text.judge(made_up(), FACTS)
    assert finding.verdict is Verdict.HOLDS
    assert len(finding.checks) == 4
    json.dumps(finding.to_json(), allow_nan=False)
    assert "the cap 0.1 decides 100 % of the steps of SPS" in finding.seen


@pytest.mark.parametrize(
    ("ends", "names"),
    [
        ({"sngd": 1.3}, ["SNGD trains faster than SGD", "SNGD is nearer to Adam than to SGD"]),
        ({"sps": 0.9}, ["SPS is nearer to Adam than to SGD"]),
        ({"sngd": 0.02}, []),  # far ahead of both, and nearer to Adam
        ({"adam": 0.01}, ["SNGD is nearer to Adam than to SGD", "SPS is nearer to Adam than to SGD"]),
    ],
)
def test_each_statement_can_fail(ends, names):
    finding = text.judge(made_up(**ends), FACTS)
    assert failing(finding) == names
    assert finding.verdict is (Verdict.FAILS if names else Verdict.HOLDS)
    small = text.judge(made_up(**ends), {**FACTS, "as the paper": False})
    assert small.verdict is (Verdict.NOT_APPLICABLE if names else Verdict.HOLDS)
    if names:
        assert "400 of 122720 steps (640 texts of MultiNLI (train.tsv), bert-base-uncased)" in small.seen


def test_what_stands_in_decides_nothing():
    facts = {**FACTS, "stand-in": True, "as the paper": False, "texts": "texts of x.csv, which stand in for MultiNLI"}
    finding = text.judge(made_up(), facts)
    assert finding.verdict is Verdict.NOT_APPLICABLE
    assert "Nothing is decided on texts of x.csv" in finding.seen
    random = text.judge(made_up(), {**facts, "pretrained": False, "model": "tiny random Bert"})
    assert "with tiny random Bert" in random.seen


def test_the_note_says_what_stands_in_for_what():
    facts = {**FACTS, "model stands in": text_runs.stands_in_for_base("MiniLM (6 layers)")}
    seen = text.judge(made_up(), facts).seen
    assert "In place of BERT-base: MiniLM (6 layers). The model card of MiniLM lists SNLI and MultiNLI" in seen
    assert text_runs.stands_in_for_base("my-bert") == "In place of BERT-base: my-bert."


def test_it_is_drawn(tmp_path):
    facts = {**FACTS, "texts": "made-up texts, which stand in for MultiNLI"}
    picture = text.draw(made_up(), facts)
    picture.savefig(tmp_path / "drawn.png")
    assert len([axes for axes in picture.axes if axes.get_title(loc="left")]) == 5
    words = [one.get_text() for one in picture.axes[5].get_legend().get_texts()]
    assert words == ["SGD, step 0.001", "SNGD, step 0.01, cap 0.1", "SPS, cap 0.1", "Adam, step 2e-05"]
    lost = made_up()
    lost["sps_loss"][1, 1:] = np.nan
    text.draw(lost, facts).canvas.draw()


def test_settings_are_those_of_the_paper():
    mnli, toxic = text_runs.PAPER_MNLI, text_runs.PAPER_TOXIC
    assert (mnli.batch, round(mnli.epochs), mnli.adam_step, mnli.sgd_step, mnli.sngd_step) == (32, 10, 2e-5, 1e-3, 0.01)
    assert (mnli.sngd_cap, mnli.sps_cap) == (0.1, 0.1)
    assert (toxic.batch, round(toxic.epochs), toxic.adam_step, toxic.sgd_step) == (32, 10, 1e-5, 1e-3)
    assert (toxic.sngd_step, toxic.sngd_cap, toxic.sps_cap) == (0.01, 0.01, 0.01)
    assert "32 hours for each run" in text_runs.cost(mnli)
    for quick in (text_runs.QUICK_MNLI, text_runs.QUICK_TOXIC):
        assert quick.epochs == 10
        assert list(quick.rules()) == list(RULES)


def test_only_the_papers_model_and_texts_are_as_the_paper():
    paper = text_runs.PAPER_MNLI
    facts = {**FACTS, "train": paper.train, "sizes": dict(text_runs.BASE), "texts stand in": False}
    assert text_runs.described(facts, paper, paper)["as the paper"]
    assert not text_runs.described({**facts, "sizes": {**text_runs.BASE, "depth": 6}}, paper, paper)["as the paper"]
    assert not text_runs.described(facts, replace(paper, steps=100), paper)["as the paper"]
    assert not text_runs.described({**facts, "train": 1000}, paper, paper)["as the paper"]
    assert text_runs.described({**facts, "texts stand in": True}, paper, paper)["stand-in"]


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """No texts and no model anywhere."""
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ATTNLAB_WEIGHTS", raising=False)


@pytest.mark.slow
def test_runs_of_a_tiny_model(monkeypatch, nothing):
    tiny = {**text_runs.SMALL, "train": 32, "test": 8}
    monkeypatch.setattr(text_runs, "SMALL", tiny)
    monkeypatch.setattr(text_runs, "SMOKE_STEPS", 4)
    monkeypatch.setattr(text_runs.Setting, "records", (0.0, 1.0))
    monkeypatch.setattr(text_runs.Setting, "rules", only_sngd)
    told = []
    arrays, facts = text_runs.text_data(
        Scale.SMOKE, lambda *parts: told.append(parts), paper=text_runs.PAPER_MNLI, quick=text_runs.QUICK_MNLI
    )
    assert arrays["steps"].tolist() == [0, 4]
    assert arrays["sngd_loss"].shape == (2, 2)
    assert (arrays["sngd_loss"][0] != arrays["sngd_loss"][1]).all()  # heads and batches differ
    assert facts["stand-in"]
    assert not facts["pretrained"]
    assert facts["texts"] == "made-up texts, which stand in for MultiNLI"
    assert len(facts["classes"]) == 3
    assert told[-1][0] == told[-1][1] == 2
    json.dumps(facts, allow_nan=False)


def only_sngd(setting):
    from attnlab.optim import ngd

    return {"sngd": ngd(setting.sngd_step, cap=setting.sngd_cap, norms="total")}


def test_other_files_are_other_data(nothing, tmp_path):
    names = ("mnli",)
    assert texts.text_inputs(names, texts.BERT) == {"texts": texts.MADE_UP}
    place = tmp_path / "data" / "mnli"
    place.mkdir(parents=True)
    (place / "train.tsv").write_text("sentence1\tsentence2\tgold_label\na\tb\tneutral\n")
    first = texts.text_inputs(names, texts.BERT)
    assert set(first) == {"mnli/train.tsv"}
    (place / "train.tsv").write_text("sentence1\tsentence2\tgold_label\na\tc\tneutral\n")
    assert texts.text_inputs(names, texts.BERT) != first
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"0" * 100_000 + b"1")
    own = texts.Files(weights=str(model))
    with_model = texts.text_inputs(names, texts.BERT, own)
    assert set(with_model) == {"mnli/train.tsv", "weights/config.json", "weights/model.safetensors"}
    (model / "model.safetensors").write_bytes(b"0" * 100_000 + b"2")
    assert texts.text_inputs(names, texts.BERT, own) != with_model  # alike but for the end
    assert texts.text_inputs(names, texts.BERT, texts.Files(weights="hub/name"))["weights"] == "hub/name"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rates-1", "rates-4"])
def test_smoke(name, tmp_path):
    pytest.importorskip("tokenizers")
    made = make(find([name])[0], "smoke", out=tmp_path)
    assert made.finding.verdict is Verdict.NOT_APPLICABLE
    assert made.finding.table["SPS"]["share of capped steps"] is not None
    assert "stand in for" in made.facts["texts"]
