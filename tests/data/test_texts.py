"""Texts, the files they come from, and the tokens they become."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, strategies as st

import attnlab as al
from attnlab.data.texts import Texts
from attnlab.data.tokenizer import Tokenizer

WORDS = ("a", "fine", "dull", "film", "it", "is", ".", ",", "not", "good")


@pytest.fixture
def file(tmp_path):
    """Writes a file, and gives its path."""

    def written(name, text, encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return path

    return written


# Files.


def test_glue_tsv_with_quotes_in_texts_that_mean_nothing(file):
    path = file("dev.tsv", 'sentence\tlabel\nit \'s a "fine\t1\n" dull\t0\nits end \\\t1\n')
    texts = al.data.read_texts(path)
    assert texts.texts == ("it 's a \"fine", '" dull', "its end \\")
    assert texts.y.tolist() == [1, 0, 1]
    assert texts.names == ("0", "1")
    assert texts.dropped == {}


def test_mnli_jsonl_with_names_and_numbers(file):
    rows = [
        {"premise": "a b", "hypothesis": "c", "label": "contradiction"},
        {"premise": "d", "hypothesis": "e", "label": "neutral"},
        {"premise": "d", "hypothesis": "e", "label": "-"},
    ]
    texts = al.data.read_texts(file("dev.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n"))
    assert texts.names == ("entailment", "neutral", "contradiction")
    assert texts.y.tolist() == [2, 1]
    assert texts.pairs == ("c", "e")
    assert texts.dropped == {"label -": 1, "empty line": 1}
    assert texts.info["rows"] == 4
    numbered = [row | {"label": i} for i, row in enumerate(rows)]
    texts = al.data.read_texts(file("n.jsonl", "\n".join(map(json.dumps, numbered))))
    assert (texts.names, texts.y.tolist()) == (("0", "1", "2"), [0, 1, 2])
    listed = al.data.read_texts(file("list.json", json.dumps(numbered)))
    assert listed.texts == texts.texts


def test_mnli_tsv_with_many_columns(file):
    head = "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label"
    path = file("dev_matched.tsv", f"{head}\n0\t7\tone\ttwo\tneutral\tentailment\n1\t8\tthree\tfour\tx\t-\n")
    texts = al.data.read_texts(path)
    assert (texts.texts, texts.pairs, texts.y.tolist()) == (("one",), ("two",), [0])
    assert texts.dropped == {"label -": 1}


def test_jigsaw_csv_with_and_without_header(file):
    body = '"You said ""no"", twice,\nin two lines",1\nfine,0\n'
    bare = al.data.read_texts(file("a.csv", body))
    named = al.data.read_texts(file("b.csv", f"comment_text,toxic\n{body}"), lower=True)
    assert bare.texts == ('You said "no", twice,\nin two lines', "fine")
    assert named.texts == tuple(text.lower() for text in bare.texts)
    assert bare.y.tolist() == named.y.tolist() == [1, 0]
    assert named.info["lower"] is True


def test_columns_by_name_by_number_and_none(file):
    path = file("reviews.csv", "id,body,stars,more\n1,good film,pos,x\n2,bad film,neg,y\n3,film,neg,\n")
    texts = al.data.read_texts(path, text="body", label="stars")
    assert (texts.names, texts.y.tolist()) == (("neg", "pos"), [1, 0, 0])
    assert al.data.read_texts(path, text=1, label=2, header=True).texts == texts.texts
    assert al.data.read_texts(path, text="body", pair="more", label=False).dropped == {"empty text": 1}
    alone = al.data.read_texts(path, text="body", label=False)
    assert alone.y is None
    assert alone.classes == 0
    with pytest.raises(al.InputError, match="which is the text"):
        al.data.read_texts(path, header=True)
    with pytest.raises(al.InputError, match="which is the label"):
        al.data.read_texts(path, text="body")
    with pytest.raises(al.InputError, match="names no such column"):
        al.data.read_texts(path, text="words", label="stars")
    with pytest.raises(al.InputError, match="no column 9"):
        al.data.read_texts(path, text=9, label=2, header=True)


def test_shares_become_classes_by_a_threshold(file):
    path = file("civil.csv", "comment_text,target\na,0.0\nb,0.5\nc,0.49\nd,1.0\ne,\n")
    texts = al.data.read_texts(path, threshold=0.5)
    assert texts.y.tolist() == [0, 1, 0, 1]
    assert texts.dropped == {"no label": 1}
    with pytest.raises(al.InputError, match=r"not whole.*\n\nhint: threshold"):
        al.data.read_texts(path)
    with pytest.raises(al.InputError, match="labels that are numbers"):
        al.data.read_texts(file("x.csv", "text,label\na,b\n"), threshold=0.5)


def test_classes_of_the_training_set_hold_for_the_test(file):
    train = al.data.read_texts(file("train.csv", "text,label\na,no\nb,yes\nc,maybe\n"))
    path = file("test.csv", "text,label\nd,yes\ne,never\n")
    test = al.data.read_texts(path, classes=train.names)
    assert (train.names, test.names) == (("maybe", "no", "yes"),) * 2
    assert test.y.tolist() == [2]
    assert test.dropped == {"label of no class": 1}
    assert "1 of 2 rows dropped" in repr(test)


def test_labels_written_as_numbers_of_any_kind_are_the_same(file):
    first = al.data.read_texts(file("a.csv", "text,label\na,1.0\nb,-1.0\n"))
    second = al.data.read_texts(file("b.csv", "text,label\na,1\nb,-1\n"))
    assert first.names == second.names == ("-1", "1")
    assert first.y.tolist() == second.y.tolist() == [1, 0]


def test_rows_that_cannot_be_used_are_counted_by_reason(file):
    lines = ["sentence\tlabel", "good\t1", "", "\t0", "  \t1", "bad\t", "no label", "too\tmany\t1", "dull\t0", "x\t0"]
    texts = al.data.read_texts(file("a.tsv", "\n".join(lines) + "\n"))
    assert texts.texts == ("good", "dull", "x")
    assert texts.dropped == {"empty line": 1, "wrong number of columns": 2, "empty text": 2, "no label": 1}
    assert texts.info["rows"] == texts.n + sum(texts.dropped.values())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.tsv", "", "empty"),
        ("a.tsv", "\n\n", "empty"),
        ("a.tsv", "sentence\tlabel\n", "no text that can be read"),
        ("a.tsv", "sentence\tlabel\n\t1\n", "empty text"),
        ("a.tsv", "sentence\tlabel\na b\nc d\ne\t1\n", "2 of 3 rows"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": \n', "line 2"),
        ("a.jsonl", '{"text": "a", "label": 1}\n3\n', "line 2"),
        ("a.jsonl", "", "empty"),
        ("a.csv", "a\nb\n", "no column 1"),
        ("a.xlsx", "a", "ending"),
        ("a.csv.gz", "not packed", "cannot be read"),
    ],
)
def test_files_that_say_nothing_are_refused(file, name, content, words):
    with pytest.raises(al.InputError, match=words):
        al.data.read_texts(file(name, content))


def test_a_label_column_of_sentences_is_refused(file):
    rows = "".join(f"text {i},another {i}\n" for i in range(150))
    with pytest.raises(al.InputError, match="150 different"):
        al.data.read_texts(file("a.csv", "text,label\n" + rows))


def test_encodings(file):
    content = "sentence\tlabel\ncafé\t1\nnaïve\t0\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert al.data.read_texts(file("a.tsv", content, encoding)).texts == ("café", "naïve")
    latin = file("b.tsv", content, "latin-1")
    with pytest.raises(al.InputError, match=r"line 2 has the byte 0xe9[\s\S]*latin-1"):
        al.data.read_texts(latin)
    assert al.data.read_texts(latin, encoding="latin-1").texts == ("café", "naïve")
    with pytest.raises(al.InputError, match="not known"):
        al.data.read_texts(latin, encoding="klingon")
    odd = file("c.tsv", "sentence\tlabel\na\x85b\u2028c\x0bd\t1\r\n\x00\t0\r\n")
    assert al.data.read_texts(odd).texts == ("a\x85b\u2028c\x0bd", "\x00")


def test_packed_files_and_plain_lines(file):
    packed = file("a.tsv.gz", gzip.compress(b"sentence\tlabel\ngood\t1\n"))
    assert al.data.read_texts(packed).texts == ("good",)
    lines = al.data.read_texts(file("b.txt", "one\r\n\ntwo words\n"))
    assert lines.texts == ("one", "two words")
    assert lines.dropped == {"empty text": 1}


def test_very_long_fields_are_read_and_the_limit_of_csv_is_left_as_it_was(file):
    import csv

    before = csv.field_size_limit()
    long = "word " * 50_000
    assert al.data.read_texts(file("a.csv", f"text,label\n{long},1\n")).texts == (long,)
    assert csv.field_size_limit() == before


def test_a_folder_or_no_file_is_refused(tmp_path):
    for path in (tmp_path / "none.tsv", tmp_path):
        with pytest.raises(al.InputError, match="`path`"):
            al.data.read_texts(path, form="tsv")


@given(st.lists(st.tuples(st.text(alphabet=st.characters(exclude_characters="\t\n\r")), st.integers(0, 2)), min_size=1))
def test_what_is_written_as_tsv_is_read_again(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("texts") / "a.tsv"
    lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
    try:
        path.write_bytes("\n".join(lines).encode())
    except UnicodeEncodeError:
        return
    kept = [(text, label) for text, label in rows if text.strip()]
    if not kept:
        with pytest.raises(al.InputError):
            al.data.read_texts(path)
        return
    texts = al.data.read_texts(path, classes=["0", "1", "2"])
    assert list(zip(texts.texts, texts.y.tolist(), strict=True)) == kept
    assert sum(texts.dropped.values()) == len(rows) - len(kept)


# The container.


def test_texts_are_checked():
    for wrong, words in (
        ({"texts": "one text"}, "list of texts"),
        ({"texts": []}, "empty"),
        ({"texts": ["a", 3]}, r"texts\[1\]"),
        ({"texts": ["a"], "pairs": ["b", "c"]}, "`pairs`"),
        ({"texts": ["a"], "y": [0, 1]}, "shape"),
        ({"texts": ["a"], "y": [-1]}, "`y` holds -1"),
        ({"texts": ["a"], "y": [0.5]}, "`y`"),
        ({"texts": ["a"], "y": [2], "names": ["no", "yes"]}, "0 to 1"),
        ({"texts": ["a"], "names": ["no"]}, "no labels"),
    ):
        with pytest.raises(al.InputError, match=words):
            Texts(**wrong)


@pytest.mark.parametrize("seed", range(3))
def test_fewer_are_the_beginning_of_more_and_balanced(seed):
    texts = al.data.made_up_texts(90, kind="inference", seed=seed)
    more, fewer = texts.take(60, seed=seed, balanced=True), texts.take(7, seed=seed, balanced=True)
    assert more.texts[:7] == fewer.texts
    assert more.pairs[:7] == fewer.pairs
    assert np.ptp(more.counts) <= 1
    assert texts.take([3, 1]).texts == (texts.texts[3], texts.texts[1])
    lopsided = texts.take((texts.y != 0) | (np.arange(90) < 9))
    with pytest.raises(al.InputError, match=rf"balanced over 3 classes; class 0 has {lopsided.counts[0]} texts"):
        lopsided.take(lopsided.n, balanced=True)


@pytest.mark.parametrize("test", [0.25, 30, 1, 119])
def test_a_split_is_a_partition_with_the_shares_of_the_classes(test):
    y = np.repeat([0, 1, 2], (60, 40, 20))
    texts = Texts(texts=[f"text {i}" for i in range(120)], y=y)
    train, held = texts.split(test, seed=3)
    assert sorted(train.texts + held.texts) == sorted(texts.texts)
    assert held.n == (30 if test == 0.25 else test)
    assert (np.abs(held.counts - texts.counts * held.n / 120) <= 1).all()
    again, _ = texts.split(test, seed=3)
    other, _ = texts.split(test, seed=4)
    assert again.texts == train.texts
    assert held.n == 1 or other.texts != train.texts


def test_splits_that_are_none_are_refused():
    texts = Texts(texts=["a", "b"], y=[0, 1])
    for wrong in (0, 2, 0.0, 1.0, 1.5, "half", True, None):
        with pytest.raises(al.InputError, match="`test`"):
            texts.split(wrong)
    with pytest.raises(al.InputError, match="`test`"):
        Texts(texts=["a"]).split(1)


def test_made_up_texts_can_be_told_by_their_words():
    texts = al.data.made_up_texts(300, seed=2)
    assert np.ptp(texts.counts) <= 1
    from attnlab.data.madeup import BAD, GOOD

    for text, label in zip(texts.texts, texts.y, strict=True):
        words = text.split()
        assert sum(word in (GOOD if label else BAD) for word in words) == 2
        assert not any(word in (BAD if label else GOOD) for word in words)
    assert al.data.made_up_texts(300, seed=2).texts == texts.texts
    assert al.data.made_up_texts(300, seed=3).texts != texts.texts
    noisy = al.data.made_up_texts(2000, noise=0.5, seed=2)
    assert 0.15 < np.mean(noisy.y != al.data.made_up_texts(2000, seed=2).y) < 0.35
    with pytest.raises(al.InputError, match="`noise`"):
        al.data.made_up_texts(10, noise=2)


# Tokens.


def test_words_become_numbers_with_padding_and_segments():
    tokenizer = Tokenizer.of_words(WORDS)
    texts = Texts(texts=["A fine film.", "dull"], pairs=["it is good", "not good, it is dull"], y=[1, 0])
    data = texts.encode(tokenizer)
    assert tokenizer.tokens(data.ids[0]) == [
        *("[CLS]", "a", "fine", "film", ".", "[SEP]", "it", "is", "good", "[SEP]"),
    ]
    assert data.segments[0].tolist() == [0] * 6 + [1] * 4
    assert data.lengths.tolist() == [10, 10]
    assert data.info["vocabulary"] == tokenizer.vocabulary == 14
    single = Texts(texts=["dull", "a fine film"]).encode(tokenizer)
    assert single.segments is None
    assert tokenizer.tokens(single.ids)[0] == ["[CLS]", "dull", "[SEP]", "[PAD]", "[PAD]"]
    assert single.y.tolist() == [0, 0]
    unknown = tokenizer.tokens(tokenizer.encode(["strange film"]).ids)[0]
    assert unknown == ["[CLS]", "[UNK]", "film", "[SEP]"]


def test_long_texts_are_cut_and_counted():
    tokenizer = Tokenizer.of_words(WORDS)
    texts = Texts(texts=["a fine film , it is good", "dull"], y=[1, 0])
    data = texts.encode(tokenizer, length=5)
    assert data.T == 5
    assert data.info["truncated"] == 1
    assert tokenizer.tokens(data.ids[0]) == ["[CLS]", "a", "fine", "film", "[SEP]"]
    assert texts.encode(tokenizer).info["truncated"] == 0
    assert texts.encode(tokenizer, length=20).T == 20
    pair = Texts(texts=["a fine film , it is good"], pairs=["dull"]).encode(tokenizer, length=7)
    assert tokenizer.tokens(pair.ids[0]) == ["[CLS]", "a", "fine", "film", "[SEP]", "dull", "[SEP]"]
    for wrong in (2, 0, -1, 2.5, "long"):
        with pytest.raises(al.InputError, match="`length`"):
            texts.encode(tokenizer, length=wrong)
    with pytest.raises(al.InputError, match="at least 5"):
        Texts(texts=["a"], pairs=["a"]).encode(tokenizer, length=4)


def test_a_tokenizer_from_its_file_ignores_the_padding_written_there(tmp_path):
    import tokenizers

    inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator(["a fine film"] * 10, trainer)
    inner.add_special_tokens(["<|endoftext|>"])
    inner.enable_padding(length=50)
    inner.enable_truncation(2)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    encoded = tokenizer.encode(["a fine film", "naïve a"])
    assert encoded.ids.shape[1] == encoded.lengths.max()
    assert tokenizer.pad == inner.token_to_id("<|endoftext|>")
    spelled = "".join(tokenizer.tokens(encoded.ids[0, : encoded.lengths[0]])).replace("Ġ", " ")
    assert spelled == "a fine film"
    with pytest.raises(al.InputError, match="no token at number 1"):
        tokenizer.encode(["a", ""])


def test_folders_without_a_tokenizer_are_refused(tmp_path):
    with pytest.raises(al.InputError, match=r"no tokenizer.json[\s\S]*AutoTokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(al.InputError, match="is no tokenizer"):
        Tokenizer.load(tmp_path)
    with pytest.raises(al.InputError, match="no such folder"):
        Tokenizer.load(tmp_path / "none here")
    with pytest.raises(al.InputError, match="`tokenizer`"):
        Texts(texts=["a"]).encode("bert")
    for wrong in ([1, 2], None, "words", [""], ["\ud800"]):
        with pytest.raises(al.InputError, match="`words`"):
            Tokenizer.of_words(wrong)
    with pytest.raises(al.InputError, match="`texts`"):
        Tokenizer.of_texts(["a text"])
    with pytest.raises(al.InputError, match="`ids` holds 99"):
        Tokenizer.of_words(WORDS).tokens([99])


def test_segments_of_sequences_are_kept_checked_and_told_apart(tmp_path):
    data = al.Sequences(ids=[[1, 2], [3, 4]], segments=[[0, 1], [0, 0]], y=[0, 1])
    again = al.Sequences.load(data.save(tmp_path / "a.npz"))
    assert again.segments.tolist() == data.segments.tolist()
    assert again.digest() == data.digest()
    assert data.digest() != al.Sequences(ids=data.ids, segments=[[0, 0], [0, 0]], y=[0, 1]).digest()
    assert data.digest() != al.Sequences(ids=data.ids, y=[0, 1]).digest()
    assert data.rows([1]).segments.tolist() == [[0, 0]]
    assert data.repeated(3)[1].segments.tolist() == data.segments.tolist()
    assert "segments" in repr(data)
    for wrong in ([[0, 1]], [[0, -1], [0, 0]], [[0.5, 1], [0, 0]], "ab"):
        with pytest.raises(al.InputError, match="`segments`"):
            al.Sequences(ids=data.ids, segments=wrong, y=[0, 1])


def test_threads_may_share_a_tokenizer():
    """Each cuts at its own length, whatever the others do meanwhile."""
    texts = al.data.made_up_texts(60, seed=0)
    tokenizer = al.data.Tokenizer.of_texts(texts)
    alone = {length: texts.encode(tokenizer, length=length).ids for length in (4, 6, 20)}
    lengths = [4, 6, 20] * 30
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda length: texts.encode(tokenizer, length=length).ids, lengths))
    for length, ids in zip(lengths, together, strict=True):
        np.testing.assert_array_equal(ids, alone[length])
