"""What is said about a paper is fair: where it stands, its own words, how it was read, and what is right."""

import re
from functools import cache
from pathlib import Path

import pytest

from attnlab.claims import Kind, Verdict, claims

TEXTS = Path(__file__).parents[3] / "shared" / "seeds"
NAMES = {
    "svm": ("attention-svm.txt",),
    "rates": ("fast-rates.txt",),
    "multihead": ("multihead-tmlr-version.txt", "multihead-review-version.txt"),
    "encoder": ("encoder-convergence.txt",),
}
SLIPS = [claim for claim in claims() if claim.slip is not None]
OF_A_SLIP = (Verdict.ERRATUM, Verdict.SLIP, Verdict.READING)


def letters(text):
    """Only letters and digits: how a page sets mathematics, breaks lines and joins letters does not matter."""
    for joined, apart in (("ﬁ", "fi"), ("ﬂ", "fl"), ("ﬀ", "ff"), ("ﬃ", "ffi"), ("ﬄ", "ffl")):
        text = text.replace(joined, apart)
    text = re.sub(r"-\s*\n\s*", "", text)
    return re.sub(r"[^0-9a-zA-Z]", "", text).lower()


@cache
def printed(paper):
    return "".join(letters((TEXTS / name).read_text(encoding="utf-8")) for name in NAMES[paper])


@pytest.mark.parametrize("claim", SLIPS, ids=lambda claim: claim.id)
def test_a_slip_says_where_what_and_how_it_was_read(claim):
    slip = claim.slip
    assert slip.where.strip()
    assert slip.quote.strip()
    assert len(slip.quote) <= 400
    assert len(slip.charitable.split()) >= 5
    assert len(slip.correction.split()) >= 3
    assert claim.expected in (slip.kind.verdict, Verdict.HOLDS)


@pytest.mark.parametrize("claim", SLIPS, ids=lambda claim: claim.id)
def test_the_quoted_words_are_the_papers(claim):
    if not TEXTS.is_dir():
        pytest.skip("the papers' texts are not here")
    if "code" in claim.slip.where.lower() or "notebook" in claim.slip.where.lower():
        pytest.skip("quotes code, not the paper")
    for words in claim.slip.quote.split("..."):
        assert letters(words) in printed(claim.paper), words


def test_only_false_statements_and_constants_are_errata():
    for claim in claims():
        if claim.expected in OF_A_SLIP:
            assert claim.slip is not None, claim.id
        if claim.expected is Verdict.ERRATUM:
            assert claim.slip.kind in (Kind.STATEMENT, Kind.CONSTANT), claim.id
