"""Which files a module reaches: those it really imports, by way of packages too, and no others."""

import sys

import pytest

from attnlab.claims import Scale, find
from attnlab.store.reach import reached_modules
from attnlab.store.sources import Package, attnlab_package


@pytest.fixture
def lab(tmp_path):
    """A package with a room that hands on names from two modules."""
    root = tmp_path / "lab"
    root.mkdir()
    (root / "room").mkdir()
    (root / "__init__.py").write_text("")
    (root / "room" / "__init__.py").write_text(
        "from lab.room.one import first as first\nfrom lab.room.two import second as other\n"
    )
    (root / "room" / "one.py").write_text("from lab import base\ndef first(): return base.x\n")
    (root / "room" / "two.py").write_text("def second(): return 2\n")
    (root / "base.py").write_text("x = 1\n")
    (root / "alone.py").write_text("y = 1\n")
    return root


def reached(root, text):
    (root / "asks.py").write_text(text)
    return {name.removeprefix("lab.") for name in Package(root).reached(["lab.asks"])} - {"asks"}


def test_a_name_is_followed_to_the_module_that_defines_it(lab):
    assert reached(lab, "from lab.room import first\n") == {"room.one", "base"}
    assert reached(lab, "from lab.room import other\n") == {"room.two"}
    assert reached(lab, "from lab.room.two import second\n") == {"room.two"}
    assert reached(lab, "from .room import other\n") == {"room.two"}


def test_packages_are_followed_by_what_is_looked_up_in_them(lab):
    assert reached(lab, "import lab as al\nal.room.other()\n") == {"room.two"}
    assert reached(lab, "from lab import room\nroom.first()\n") == {"room.one", "base"}
    assert reached(lab, "from lab import room\nhand_on(room)\n") == {"room", "room.one", "room.two", "base"}
    assert reached(lab, "from lab import room\nx = 1\nprint(x, room.other())\n") == {"room.two"}
    assert reached(lab, "def late():\n    from lab import base\n") == {"base"}


def test_what_only_a_type_checker_sees_decides_nothing(lab):
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lab import base\n"
    assert reached(lab, text) == set()
    assert reached(lab, text + "else:\n    from lab import alone\n") == {"alone"}


def test_editing_what_is_reached_changes_the_hash_and_nothing_else_does(lab):
    (lab / "asks.py").write_text("from lab.room import first\n")
    before = Package(lab).digest(["lab.asks"])
    for stranger in ("alone.py", "room/two.py", "room/__init__.py"):
        file = lab / stranger
        file.write_text(file.read_text() + "# edited\n")
        assert Package(lab).digest(["lab.asks"]) == before, stranger
    for near in ("asks.py", "room/one.py", "base.py"):
        file = lab / near
        text = file.read_text()
        file.write_text(text + "# edited\n")
        assert Package(lab).digest(["lab.asks"]) != before, near
        file.write_text(text)
    (lab / "room" / "__init__.py").write_text("from lab.room.two import second as first\n")
    assert Package(lab).digest(["lab.asks"]) != before


def test_text_does_not_wander_between_files(lab):
    (lab / "asks.py").write_text("from lab import base, alone\n")
    before = Package(lab).digest(["lab.asks"])
    (lab / "alone.py").write_text("y = 1\nx = 1\n")
    (lab / "base.py").write_text("")
    assert Package(lab).digest(["lab.asks"]) != before


def test_claims_do_not_depend_on_papers_that_are_not_theirs():
    package = attnlab_package()
    reached = package.reached(["attnlab.claims.svm.limits"])
    assert {"attnlab.svm.nuclear", "attnlab.train.path", "attnlab.claims.parts"} <= reached
    assert not any("encoder" in name or "multihead" in name or "cli" in name for name in reached)


@pytest.mark.slow
@pytest.mark.parametrize("id", ["svm-L7", "rates-K5", "multihead-C-P1", "encoder-L9"])
def test_no_module_runs_that_was_not_seen_coming(id):
    """Every attnlab function that is called while a claim is measured stands in a file that its key knows."""
    (claim,) = find(id)
    called = set()

    def note(frame, event, _):
        if event == "call":
            called.add(frame.f_globals.get("__name__", ""))

    sys.setprofile(note)
    try:
        claim.measure(Scale.SMOKE)
    finally:
        sys.setprofile(None)
    ours = {name for name in called if name.startswith("attnlab.")}
    assert f"attnlab.claims.{claim.paper}" in {name.rpartition(".")[0] for name in ours}
    assert ours <= reached_modules(claim.measure)
