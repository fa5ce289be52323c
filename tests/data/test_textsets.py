"""Where text sets and language models are looked for, and which files they are made of."""

import json

import pytest

from attnlab import InputError
from attnlab.data.textsets import (
    TEXT_SETS,
    TextFiles,
    files_in,
    find_texts,
    find_weights,
    read_set,
    text_places,
    text_sets,
)

ROWS = "sentence\tlabel\n" + "".join(f"text {i}\t{i % 2}\n" for i in range(20))


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ATTNLAB_WEIGHTS", raising=False)
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def put(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(ROWS)
    return folder


@pytest.mark.parametrize(
    ("names", "train", "test"),
    [
        (("train.tsv", "dev.tsv", "test.tsv"), "train.tsv", "dev.tsv"),
        (("train.tsv", "test.tsv"), "train.tsv", "test.tsv"),
        (("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"), "train.tsv", "dev_matched.tsv"),
        (
            ("multinli_1.0_train.jsonl", "multinli_1.0_dev_matched.jsonl", "README.txt"),
            "multinli_1.0_train.jsonl",
            "multinli_1.0_dev_matched.jsonl",
        ),
        (("only.csv",), "only.csv", None),
        (("train.csv.gz", "notes.md"), "train.csv.gz", None),
    ],
)
def test_files_are_known_by_their_names(tmp_path, names, train, test):
    found = files_in(put(tmp_path / "set", *names))
    assert isinstance(found, TextFiles)
    assert found.train.name == train
    assert (found.test.name if found.test else None) == test


def test_what_is_no_set_is_said_in_words(tmp_path):
    assert files_in(tmp_path / "none") == "no such folder"
    assert "no .tsv" in files_in(put(tmp_path / "empty", "README.md"))
    assert "none has train in its name" in files_in(put(tmp_path / "two", "a.csv", "b.csv"))
    assert files_in(tmp_path / ("x" * 300)) in ("no such folder", "File name too long")


def test_a_set_is_found_in_a_folder_of_its_name_alone(own):
    put(own, "train.tsv")
    assert find_texts("sst2") is None
    put(own / "sst2", "train.tsv", "dev.tsv")
    found = find_texts("sst2")
    assert found is not None
    assert found.train == own / "sst2" / "train.tsv"
    assert text_places("sst2")[0] == own / "sst2"


def test_what_is_given_must_be_there(own):
    file = put(own, "mine.tsv") / "mine.tsv"
    assert find_texts("sst2", file) == TextFiles(file, None)
    with pytest.raises(InputError, match=r"`data` is .*no such folder"):
        find_texts("sst2", own / "absent")


def test_the_test_is_a_file_of_its_own_or_a_part(own):
    whole = put(own / "sst2", "train.tsv", "dev.tsv")
    train, test = read_set("sst2", files_in(whole), test=5)
    assert (train.n, test.n) == (20, 20)
    part = put(own / "other", "train.tsv")
    train, test = read_set("sst2", files_in(part), test=100)
    assert (train.n, test.n) == (16, 4)
    assert not set(train.texts) & set(test.texts)


def test_names_say_whose_texts_they_are(tmp_path):
    toxic = TEXT_SETS["toxic"]
    assert not toxic.is_in(tmp_path / "toxic" / "jigsaw.csv")
    assert toxic.is_in(tmp_path / "civilcomments_v1.0" / "all.csv")
    assert TEXT_SETS["mnli"].is_in(tmp_path / "MNLI" / "train.tsv")


def test_weights(own, monkeypatch):
    names = ("bert-base-uncased", "minilm")
    assert find_weights(names) is None
    for name in reversed(names):
        (own / name).mkdir()
        (own / name / "config.json").write_text("{}")
        assert find_weights(names) == str(own / name)
    monkeypatch.setenv("ATTNLAB_WEIGHTS", "somewhere/else")
    assert find_weights(names) == "somewhere/else"
    assert find_weights(names, "given") == "given"


def test_the_list_is_plain_json(own):
    put(own / "imdb", "reviews.csv")
    listed = {one["name"]: one for one in json.loads(json.dumps(text_sets()))}
    assert listed["imdb"]["found"]
    assert listed["imdb"]["folder"] == str(own / "imdb")
    assert "folder" not in listed["minilm"]
    assert listed["imdb"]["files"] == {"train": "reviews.csv", "test": "a part of reviews.csv"}
    assert not listed["minilm"]["found"]
    assert listed["mnli"]["looked_in"][0] == str(own / "mnli")
