"""Which code made a result: kept numbers are found again only while the code that decides them is the same."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
# Rooms that decide the numbers of every claim and figure.
NUMBERS = ("data", "models", "optim", "train", "svm", "theory", "claims/scale.py")


@cache
def sources(*names: str) -> str:
    """A hash of attnlab's source files in these folders or files, as "data" or "claims/svm".

    A name with no file counts by itself, so that claims and figures of a user's own paper are named too. Read once
    per process: what counts is the code that runs, not what an editor does to it meanwhile.

    >>> sources("data") == sources("data"), sources("data") == sources("svm")
    (True, False)
    """
    return digest_of(PACKAGE, names)


def digest_of(root: Path, names: tuple[str, ...]) -> str:
    """A hash of the names and contents of all Python files there."""
    h = hashlib.blake2b(digest_size=16)
    for name in names:
        place = root / name
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.is_file() else []
        h.update(f"{name} {len(files)}\n".encode())
        for file in files:
            content = file.read_bytes()
            h.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
            h.update(content)
    return h.hexdigest()
