"""Where a claim says that a test guards its formula, that test is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(
    {
        match
        for file in (ROOT / "src" / "attnlab" / "claims").rglob("*.py")
        for match in re.findall(r"(tests/[\w/]+\.py)::(\w+)", re.sub(r'"\s*\n\s*f?"', "", file.read_text()))
    }
)


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda value: value)
def test_guards_are_there(file, name):
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), flags=re.M)


def test_some_are_named():
    assert NAMED
