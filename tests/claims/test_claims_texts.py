"""Claims of real texts: verdicts on made-up runs, what is missing without texts or model, and runs of tiny ones."""

import json
import shutil

import numpy as np
import pytest

from attnlab import InputError
from attnlab.claims import Scale, Verdict, check, find, texts
from attnlab.claims.encoder import sentences
from attnlab.claims.multihead import text as heads
from attnlab.claims.rates import text as rules, token_cosines
from attnlab.cli import main
from attnlab.data import made_up_texts

IDS = ["rates-F1", "rates-F4", "rates-F10", "encoder-F1", "multihead-F6"]
TITLES = ["MultiNLI", "CivilComments", "MultiNLI and CivilComments", "IMDB", "SST-2"]


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No text set and no model anywhere."""
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ATTNLAB_WEIGHTS", raising=False)


def outcome_of(id, scale=Scale.PAPER):
    (claim,) = find([id])
    return claim.measure(scale)


class Anything:
    """Stands for files, texts and a model that nobody reads."""


@pytest.fixture
def unread(monkeypatch):
    for module in (rules, heads):
        monkeypatch.setattr(module, "NONE", Given())
        monkeypatch.setattr(module, "read_corpus", lambda *_, **__: None)
        monkeypatch.setattr(module, "pretrained_reader", lambda folder: None)


class Given:
    def texts(self, name):
        return Anything()

    def model(self, names):
        return "folder"


def of_rules(**ends):
    ends = {"sgd": 1.0, "sngd": 0.3, "sps": 0.25, "adam": 0.2} | ends
    factors = np.exp([[-0.02], [0.0], [0.02]])
    part = np.array([0.0, 0.5, 1.0])
    arrays = {"steps": 100 * part}
    for i, (name, end) in enumerate(ends.items()):
        arrays[f"{name}_loss"] = 1.1 * (end / 1.1) ** part * np.roll(factors, i)
        arrays[f"{name}_capped_share"] = np.tile(part, (3, 1))
    return arrays


@pytest.mark.parametrize(
    ("id", "wrong", "words"),
    [
        ("rates-F1", {"sngd": 1.05}, "SNGD trains faster than SGD"),
        ("rates-F1", {"sps": 0.9}, "SPS is nearer to Adam than to SGD"),
        ("rates-F4", {"sps": 1.05}, "SPS trains faster than SGD"),
    ],
)
def test_rules_are_judged(monkeypatch, unread, id, wrong, words):
    plans = {"rates-F1": rules.MNLI_PLANS, "rates-F4": rules.TOXIC_PLANS}[id]
    facts = {
        "seeds": 3,
        "runs that left the finite numbers": [],
        "sizes": dict(vocabulary=30_522, dim=768, depth=12, heads=12),
        "pretrained": True,
        "model": "bert-base-uncased",
        "texts": "texts",
    }

    def runs(arrays, scale=Scale.PAPER, stands_in=False):
        told = facts | {"train": plans[scale].train, "steps": plans[scale].steps, "texts stand in": stands_in}
        monkeypatch.setattr(rules, "train_all", lambda *_: (arrays, dict(told)))
        return outcome_of(id, scale)

    good = runs(of_rules())
    assert good.verdict is Verdict.HOLDS
    json.dumps(good.to_json(), allow_nan=False)
    assert runs(of_rules(), Scale.QUICK).verdict is Verdict.HOLDS  # what is seen early is seen
    bad = runs(of_rules(**wrong))
    assert bad.verdict is Verdict.FAILS
    assert words in " ".join(part.name for part in bad.parts if part.verdict is Verdict.FAILS)
    short = runs(of_rules(**wrong), Scale.QUICK)
    assert short.verdict is Verdict.NOT_APPLICABLE
    assert "speaks neither for nor against" in short.note
    other = runs(of_rules(), stands_in=True)
    assert other.verdict is Verdict.NOT_APPLICABLE
    assert "Nothing is decided on texts" in other.note


@pytest.mark.parametrize(("metric", "words"), [("loss", "train loss"), ("test_loss", "test loss")])
def test_heads_are_judged(monkeypatch, unread, metric, words):
    def runs(*, turned, train=heads.PAPER.train):
        factors = np.array([[0.98], [1.0], [1.02]])
        arrays = {"heads": np.array([1, 4, 12]), "steps": np.array([0, 1])}
        for start in heads.STARTS:
            for name in ("loss", "test_loss"):
                ends = np.array([0.5, 0.4, 0.3])[:: -1 if name == turned else 1]
                arrays[f"{start}_{name}"] = np.stack([end * factors * np.ones(2) for end in ends])
        facts = {
            "seeds": 3,
            "sizes": dict(vocabulary=50_265, dim=768, depth=12, heads=12),
            "pretrained": True,
            "model": "roberta-base",
            "texts": "SST-2",
            "texts stand in": False,
            "train": train,
            "steps": 100,
            "step": 5e-6,
        }
        monkeypatch.setattr(heads, "train_all", lambda *_: (arrays, facts))
        return outcome_of("multihead-F6")

    assert runs(turned=None).verdict is Verdict.HOLDS
    bad = runs(turned=metric)
    assert bad.verdict is Verdict.FAILS
    assert [words in part.name for part in bad.parts if part.verdict is Verdict.FAILS] == [True]
    assert runs(turned=metric, train=100).verdict is Verdict.NOT_APPLICABLE


def test_cosines_are_judged(monkeypatch):
    def found(share, **facts):
        arrays = {"mnli_near": np.full(20, share) + 0.01 * np.arange(20)}
        told = {"sets": {"mnli": "MultiNLI"}, "model": "bert", "stand-in": False, "as the paper": True, **facts}
        monkeypatch.setattr(token_cosines, "cosine_data", lambda *_: (arrays, told))
        return outcome_of("rates-F10").verdict

    assert found(0.6) is Verdict.HOLDS
    assert found(0.2) is Verdict.FAILS
    assert found(0.2, **{"as the paper": False}) is Verdict.NOT_APPLICABLE
    assert found(0.6, **{"stand-in": True}) is Verdict.NOT_APPLICABLE


def test_tails_are_judged(monkeypatch):
    rng = np.random.default_rng(0)

    def found(values, stands_in=False):
        facts = {"draws": 10, "stand-in": stands_in, "texts": "IMDB", "model": "bert"}
        arrays = {"pretrained_values": values, "random_values": values}
        monkeypatch.setattr(sentences, "sentence_data", lambda *_: (arrays, facts))
        return outcome_of("encoder-F1").verdict

    assert found(rng.exponential(size=(10, 2000))) is Verdict.READING
    assert found(rng.pareto(1.5, size=(10, 2000))) is Verdict.FAILS
    assert found(rng.exponential(size=(10, 2000)), stands_in=True) is Verdict.NOT_APPLICABLE


def test_without_texts_claims_say_what_they_need(nowhere, capsys):
    for claim, title in zip(find(IDS), TITLES, strict=True):
        assert claim.status.startswith(f"needs {title} and a pretrained model"), claim.status
    with pytest.raises(InputError, match="rates-F1 cannot be measured: needs MultiNLI"):
        check(find(["rates-F1"]), "smoke")
    assert main(["claim", "multihead-F6", "--scale", "smoke"]) == 2
    assert "ATTNLAB_DATA" in capsys.readouterr().err


def test_either_without_the_other_is_missing(nowhere, tmp_path, monkeypatch):
    place = tmp_path / "data" / "sst2"
    place.mkdir(parents=True)
    (place / "train.tsv").write_text("sentence\tlabel\na\t0\nb\t1\n")
    assert texts.missing_texts(("sst2",), texts.ROBERTA).startswith("needs a pretrained model (folder roberta-base")
    monkeypatch.setenv("ATTNLAB_WEIGHTS", "somewhere")
    assert texts.missing_texts(("sst2",), texts.ROBERTA) == texts.libraries()
    own = texts.Files(weights="somewhere")
    with pytest.raises(InputError, match="is given; this needs IMDB"):
        texts.looked_at("imdb", Scale.QUICK, texts.BERT, own, test=5)


def test_figures_that_take_no_files_refuse_them(nowhere, capsys):
    assert main(["figure", "svm-2", "--weights", "x", "--scale", "smoke"]) == 2
    told = capsys.readouterr().err
    assert "`--weights` is given; svm-2 looks at no such file" in told
    assert "rates-1" in told
    assert main(["figure", "rates-1", "--data", "x.tsv", "--scale", "smoke"]) == 2
    assert "made-up texts alone" in capsys.readouterr().err
    assert main(["figure", "rates-1", "--data", "x.tsv", "--weights", "y"]) == 2
    assert "`data` is 'x.tsv': no such folder" in capsys.readouterr().err


@pytest.fixture
def tiny(nowhere, tmp_path, monkeypatch):
    """A tiny random Bert, and made-up texts in the folders of all sets."""
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(texts, "pretrained_reader", lambda folder: texts.tiny_reader(made_up_texts(200, seed=0)))
    for module in (rules, heads, token_cosines):
        reader = texts.tiny_reader(made_up_texts(200, seed=0))
        monkeypatch.setattr(module, "pretrained_reader", lambda folder, reader=reader: reader)
    monkeypatch.setenv("ATTNLAB_WEIGHTS", "somewhere")
    for name in ("mnli", "sst2", "imdb", "civil"):
        place = tmp_path / "data" / name
        place.mkdir(parents=True)
        kind = "inference" if name == "mnli" else "sentiment"
        made = made_up_texts(120, kind=kind, seed=1)
        rows = (
            [
                json.dumps({"premise": a, "hypothesis": b, "label": made.names[y]})
                for a, b, y in zip(made.texts, made.pairs or made.texts, made.y, strict=True)
            ]
            if kind == "inference"
            else [json.dumps({"text": a, "label": int(y)}) for a, y in zip(made.texts, made.y, strict=True)]
        )
        (place / f"{name}_train.jsonl").write_text("\n".join(rows))
    shutil.copytree(tmp_path / "data" / "civil", tmp_path / "data" / "toxic")


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_claims_run(tiny, id):
    found = outcome_of(id, Scale.SMOKE)
    (claim,) = find([id])
    assert claim.status == "ready"
    assert found.verdict in (Verdict.NOT_APPLICABLE, claim.expected_at(Scale.SMOKE))
    assert found.parts
    json.dumps(found.to_json(), allow_nan=False)
    assert any(key.endswith("_train.jsonl") for key in claim.inputs())
