"""The page of claims: readable blocks, nothing mangled, nothing flattened, and the explanation of a claim."""

import re
from importlib import import_module

import pytest

from attnlab.claims import Bound, Claim, Count, Kind, Slip, Verdict, check, claims, outcome
from attnlab.claims.claim import erratum
from attnlab.claims.explain import explained
from attnlab.claims.leftout import LeftOut
from attnlab.claims.page import SPELT, claims_page, escaped, listed, short
from attnlab.papers import TITLES


def measured(scale):
    bound, count = Bound("|grad L|_F / bound"), Count("the loss rises")
    bound.add([0.01, 0.025], 1.0)
    count.add([False] * 4)
    numbers = {
        "sizes (n, T)": [[5, 5], [3, 8]],
        "C_P": 1.5,
        "1 - cos": {"R = 1": {"median": 0.1, "largest": 0.2}, "R = 10": {"median": 0.01, "largest": 0.02}},
        "many": {f"k{i}": float(i) for i in range(40)},
    }
    return outcome(bound, count, numbers=numbers, slack={"score gap": 0.25}, seeds=[0, 1], tried=9, note="A *note*.")


def broken(scale):
    bound = Bound("left / right")
    bound.add(540.0, 1.0)
    return outcome(bound, example={"how": "al.data.two_tokens()", "x": [[1.0, 2.0]]})


PLAIN = Claim(
    id="svm-X1",
    title="A bound on |grad L|",
    statement="<grad L, W_t> <= C_P |W|_* for all W.",
    hypotheses=("x is unit",),
    setting="sphere(n=5, T=5, d=3), logistic loss.",
    reason="ratio of the two sides",
    measure=measured,
)
SLIP = Slip(
    kind=Kind.CONSTANT,
    where="Lemma 4, Eq. (12)",
    quote="at most c",
    charitable="c as an order; still broken.",
    correction="c^2 in place of c",
)
PAIR = erratum(
    id="svm-X2",
    title="A constant",
    printed="at most c.",
    corrected="at most c^2.",
    slip=SLIP,
    reason="ratio",
    measure_printed=broken,
    measure_corrected=measured,
)


@pytest.fixture(scope="module")
def facts():
    return [checked.to_json() for checked in check([PLAIN, PAIR], "smoke")]


@pytest.fixture(scope="module")
def page(facts):
    left = LeftOut(id="svm-X3", title="Something else", where="Appendix Z", why="no instance can be built")
    return claims_page(facts, "1.2.3", [left.about()])


def test_symbols_are_not_mangled_and_lists_not_flattened(page):
    assert "C_P" in page
    assert "C P" not in page
    assert "((5, 5), (3, 8))" in page
    assert r"\<grad L, W_t> \<= C_P |W|\_\* for all W." in page
    assert r"\|grad L\|\_F / bound" in page  # within a table


def test_the_table_leads_to_the_blocks(page):
    headings = re.findall(r"^### (.*)$", page, flags=re.M)
    for target in re.findall(r"\]\(#([^)]*)\)", page):
        assert target in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert page.count("](#") == len(headings) == 2


def test_blocks_are_short_and_say_what_a_reader_asks(page, facts):
    blocks = page.split("\n### ")[1:]
    assert all(len(block.splitlines()) <= 35 for block in blocks)
    wanted = ["Assumes", "slack: score gap 0.25", "Measured on", "Judged", "Found", "4 instances of 9 drawn"]
    wanted += ["seeds 0, 1", "a constant 40 times smaller would still hold", "--fresh", "test_claims_page"]
    for words in wanted:
        assert words in blocks[0], words
    assert "| R = 10 | 0.01 | 0.02 |" in blocks[0]
    assert "more in claims.json" in blocks[0]


def test_both_halves_of_an_erratum_are_shown(page, facts):
    block = page.split("\n### ")[2]
    wanted = ["Lemma 4, Eq. (12); constant", '"at most c"', "c as an order", "c^2 in place of c"]
    wanted += ["printed broken 540 times over", "corrected: a constant 40 times smaller"]
    for words in wanted:
        assert words in block, words
    assert facts[1]["verdict"] == "erratum"
    assert facts[1]["kind"] == "constant"
    assert "| erratum | constant |" in page


def test_left_out_counts_and_legend_are_on_the_page(page):
    assert "no instance can be built" in page
    assert "2 claims: 1 holds, 1 erratum. Errata, slips and readings by kind: 1 constant." in page
    assert page.index("## Symbols") < page.index("## Verdicts") < page.index("### svm-X1")


def test_every_paper_has_a_legend():
    papers = {claim.paper for claim in claims()}
    assert set(TITLES) == papers
    for paper in papers:
        symbols = import_module(f"attnlab.claims.{paper}.contents").SYMBOLS
        assert symbols
        assert all(len(row) == 3 and all(row) for row in symbols)


def test_an_explanation_says_everything(facts):
    plain, pair = (explained(fact) for fact in facts)
    flat = " ".join(plain.split())
    wanted = ["<grad L, W_t> <= C_P", "x is unit", "score gap 0.25", "sphere(n=5", "ratio of the two sides"]
    wanted += ["largest measured / promised 0.025, asked 1, tightness 0.025", "a constant 40 times smaller"]
    wanted += ["one contradiction in 4 would be seen", Verdict.HOLDS.meaning]
    for words in wanted:
        assert words in flat, words
    assert 'Lemma 4, Eq. (12): "at most c"' in pair
    assert "x = [[1., 2.]]" in pair
    assert "al.data.two_tokens()" in pair
    assert max(map(len, plain.splitlines())) <= 100


def test_short_values():
    assert short([1.23456, "a"]) == "(1.235, a)"
    assert short(list(range(SPELT + 1))).endswith(f"... {SPELT + 1} in all)")
    assert short(None) == ""
    assert listed({}) == "- none"
    assert escaped("a_b |W|_* `x`") == r"a_b |W|\_\* \`x\`"
