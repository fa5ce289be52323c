"""The image sets that claims and figures of real images look at: whether they are at hand, and which files they are."""

from __future__ import annotations

import hashlib
from pathlib import Path

from attnlab.data.imagesets import image_sets

TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
# Of a file so much is read to tell it from others, beside its size.
FIRST_BYTES = 65_536


def files_of(name: str) -> list[Path]:
    """The files of a set, to train on and for the test; none unless all are there. Nothing is downloaded."""
    (listed,) = (one for one in image_sets() if one["name"] == name)
    splits = listed["splits"].values()
    if not all(split["found"] for split in splits):
        return []
    return [Path(split["folder"]) / file for split in splits for file in split["files"]]


def at_hand(name: str) -> bool:
    """Are both splits of a set in one of its folders?"""
    return bool(files_of(name))


def missing_images(name: str) -> str:
    """What must be there before these images can be looked at; empty if they are."""
    where = f"put its files into a folder {name} of the folder that ATTNLAB_DATA names"
    return "" if at_hand(name) else f"needs {TITLES[name]}: {where}, or load it once with al.data.{name}()"


def image_inputs(name: str) -> dict[str, str]:
    """The files of a set by name, beginning and size; without them the digits of scikit-learn, which never change."""
    files = files_of(name)
    return {file.name: digest(file) for file in files} or {"images": "digits of scikit-learn"}


def digest(path: Path) -> str:
    """A file by its beginning and size."""
    with path.open("rb") as file:
        begin = file.read(FIRST_BYTES)
    return f"{hashlib.blake2b(begin, digest_size=8).hexdigest()}, {path.stat().st_size} bytes"
