"""A kept verdict is found again only while everything that its function reaches is the same."""

import functools
import importlib
import sys
import textwrap

import numpy as np
import pytest

from attnlab import Store
from attnlab.claims import Claim, check, find
from attnlab.claims.check import claims
from attnlab.store.reach import reach

OWN = """
import numpy as np
import helpers
from helpers import halved

LIMIT = 0.5
TABLE = {"a": 1.0}
WEIGHTS = np.arange(3.0)

class Ruler:
    factor = 1.0
    def measure(self, x):
        return self.factor * x

def inner(x):
    return x + LIMIT

def measure(scale):
    def nested():
        return TABLE["a"]
    return inner(halved(1.0)) + WEIGHTS.sum() + Ruler().measure(1.0) + helpers.more.doubled(1.0) + nested()

def stranger():
    return 7
"""
HELPERS = "import more\ndef halved(x):\n    return x / 2\n"
MORE = "def doubled(x):\n    return 2 * x\n"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Hands out the user's function as freshly loaded from files with some text replaced."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(old="", new=""):
        assert any(old in text for text in (OWN, HELPERS, MORE))
        for name, text in (("mine", OWN), ("helpers", HELPERS), ("more", MORE)):
            (tmp_path / f"{name}.py").write_text(text.replace(old, new) if old else text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("mine")

    yield load
    for name in ("mine", "helpers", "more"):
        sys.modules.pop(name, None)


def test_the_same_files_give_the_same_key(own):
    assert reach(own().measure) == reach(own().measure)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 0.5", "LIMIT = 2.0"),
        ('"a": 1.0', '"a": 2.0'),
        ("np.arange(3.0)", "np.arange(4.0)"),
        ("factor = 1.0", "factor = 2.0"),
        ("self.factor * x", "self.factor + x"),
        ("x + LIMIT", "x - LIMIT"),
        ("x / 2", "x / 3"),
        ("2 * x", "3 * x"),
        ("halved(1.0)", "halved(2.0)"),
    ],
)
def test_editing_anything_it_reaches_changes_the_key(own, old, new):
    before = reach(own().measure)
    assert reach(own(old, new).measure) != before


def test_editing_what_it_does_not_reach_changes_nothing(own):
    before = reach(own().measure)
    assert reach(own("return 7", "return 8").measure) == before


def test_values_of_globals_count_even_if_no_file_changed(own):
    module = own()
    before = reach(module.measure)
    module.LIMIT = 2.0
    assert reach(module.measure) != before
    assert reach(functools.partial(module.measure, "quick")) != reach(functools.partial(module.measure, "smoke"))


def test_functions_of_attnlab_are_known_by_the_files_they_import(own):
    module = own("return 7", "return al.descend(al.data.sphere(n=2, T=2, d=2, seed=0), al.ngd(0.1))")
    import attnlab as al

    module.al = al
    files = reach(module.stranger)["files"]
    assert files != reach(module.inner)["files"]
    assert reach(al.solve_margin)["files"] != reach(al.descend)["files"]


def test_a_changed_global_is_not_answered_by_the_old_verdict(tmp_path, own):
    text = textwrap.dedent("""
        from attnlab.claims import within
        def stranger(scale):
            return within(LIMIT, 1.0, instances=1)
        """)
    for value, verdict in ((0.5, "holds"), (2.0, "fails")):
        module = own("def stranger():\n    return 7", text)
        module.LIMIT = value
        claim = Claim(id="mine-1", title="Mine", statement="It holds.", reason="none", measure=module.stranger)
        (found,) = check([claim], "smoke", store=Store(tmp_path / "store"))
        assert (found.outcome.verdict.value, found.outcome.worst) == (verdict, value)


def test_claims_of_the_papers_have_keys_of_their_own_modules():
    one, other = find(["svm-L7", "encoder-L9"])
    assert reach(one.measure)["files"] != reach(other.measure)["files"]
    assert all(len(reach(claim.measure)["files"]) == 32 for claim in claims())


def test_recursion_and_arrays_are_taken(own):
    def fact(n):
        return 1 if n == 0 else n * fact(n - 1)

    assert reach(fact) == reach(fact)
    assert reach(np.eye(2)) != reach(np.eye(3))


def test_functions_typed_at_a_prompt_count_as_the_users():
    names = {"__name__": "__main__", "limit": 1.0}
    exec("def measure(scale):\n    return limit", names)
    before = reach(names["measure"])
    names["limit"] = 2.0
    assert reach(names["measure"]) != before
    unknown = {"__name__": "no_such_module", "limit": 1.0}
    exec("def measure(scale):\n    return limit", unknown)
    assert reach(unknown["measure"])["own"]


def test_code_of_installed_packages_counts_by_its_name_only():
    assert reach(np.linalg.norm)["own"] == {}
    assert reach(textwrap.dedent)["own"] == {}


class Rule:
    """Something callable that says what it is."""

    def __init__(self, step):
        self.step = step

    def describe(self):
        return {"step": self.step}

    def __call__(self, x):
        return x


def test_what_describes_itself_is_known_by_that():
    assert reach(Rule(0.1)) == reach(Rule(0.1))
    assert reach(Rule(0.1)) != reach(Rule(0.2))
