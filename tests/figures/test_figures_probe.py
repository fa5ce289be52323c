"""The picture of a probe: drawn for every shape of report, and its words in their places."""

import numpy as np
import pytest

import attnlab as al
from attnlab.errors import InputError
from attnlab.figures.probe import LETTERS, _furthest, _lines, _window, _written, draw_probe
from attnlab.reports.probing.metrics import Metric
from reports.probe_data import queries_and_keys, untrained

SMALL = {"queries": 5, "draws": 2, "splits": 1}


@pytest.fixture(scope="module")
def report():
    given = untrained(0, layers=2)
    words = np.array([[f"w{i}" for i in row] for row in given["ids"]])
    return al.probe(**given, words=words, **SMALL)


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_a_picture_of_each_kind(report, tmp_path, ending):
    path = draw_probe(report, tmp_path / f"probe.{ending}", example="L1H0")
    assert path.stat().st_size > 5000


def test_one_metric_no_words_one_head_and_heads_with_too_little_data(tmp_path):
    q, k = queries_and_keys(untrained(1))
    draw_probe(al.probe(q, k, **SMALL), tmp_path / "one-metric.png")
    draw_probe(al.probe(q[0, 0], k[0, 0], **SMALL), tmp_path / "one-head.png")
    draw_probe(al.probe(q, 0 * k, **SMALL), tmp_path / "nothing.png")
    assert len(list(tmp_path.iterdir())) == 3


def test_examples_are_pairs_of_the_head(report):
    head = _furthest(report)
    least = [min(one.z for one in other.judged.values()) for other in report.heads]
    assert min(one.z for one in head.judged.values()) == max(least)
    lines = _lines(report, head)
    pairs = head.support[Metric.HIDDEN].pairs
    assert lines
    for line, (prompt, query, selected, rival) in zip(lines[:1], pairs[:1], strict=True):
        roles = {role: word for word, role in line if role}
        assert roles["rival"] == report.words[prompt, rival]
        assert roles.get("selected", roles.get("both")) == report.words[prompt, selected]
        assert roles.get("query", roles.get("both")) == report.words[prompt, query]


@pytest.mark.parametrize("seed", range(10))
def test_lines_are_no_longer_than_they_may_be(seed):
    rng = np.random.default_rng(seed)
    words = [("x" * rng.integers(1, 12), "") for _ in range(60)]
    first = int(rng.integers(50))
    for place, role in zip((first, first + 2, first + 5), ("query", "selected", "rival"), strict=True):
        words[place] = (words[place][0], role)
    line = _window(words)
    assert sum(len(word) + 1 for word, _ in line) <= LETTERS
    assert [role for _, role in line if role] == ["query", "selected", "rival"]
    before, after = words.index(line[0]), len(words) - 1 - words[::-1].index(line[-1])
    assert after - before + 1 >= len(line)


def test_short_numbers():
    assert [_written(value, 1) for value in (-0.04, 0.96, 1.23, -1.0, 10.06)] == ["0", "1.0", "1.2", "-1.0", "10.1"]
    assert [_written(value, 0) for value in (-0.4, 0.6, 10.0, -20.4)] == ["0", "1", "10", "-20"]


def test_wrong_arguments_are_named(report, tmp_path):
    with pytest.raises(InputError, match="`report`"):
        draw_probe({}, tmp_path / "probe.png")
    with pytest.raises(InputError, match="`path`"):
        draw_probe(report, tmp_path / "probe.doc")
    with pytest.raises(InputError, match="no head"):
        draw_probe(report, tmp_path / "probe.png", example="L7H7")
