"""Where image sets lie: a folder that is given, $ATTNLAB_DATA, the cache folder; and how they get there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.data.idx import Split
from attnlab.data.writing import as_path
from attnlab.errors import InputError, message

VARIABLE = "ATTNLAB_DATA"
EXTRA = "pip install 'attnlab[images]'"
Labelled = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class OnDisk:
    """One split of an image set, found in a folder.

    Attributes:
        folder: where.
        form: what kind of files.
        files: which.
        read: reads pixels and labels.
        count: says how many images there are, or None where that is not cheap to know.
    """

    folder: Path
    form: str
    files: tuple[Path, ...]
    read: Callable[[], Labelled]
    count: Callable[[], int | None] = lambda: None


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded, and the MD5 sum that it must have."""

    url: str
    md5: str


# What a folder holds of a split, or in words why it holds nothing.
Find = Callable[[Path, Split], OnDisk | str]


def cache_folder() -> Path | None:
    """$XDG_CACHE_HOME/attnlab, else ~/.cache/attnlab; None where there is no home folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (cache if cache.is_absolute() else Path.home() / ".cache") / "attnlab"
    except RuntimeError:
        return None


def places_of(name: str, folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """Folders in which an image set is looked for, in order."""
    if folder is not None:
        given = _expanded(as_path("folder", folder, "a folder"))
        return [given, given / name]
    places = []
    if os.environ.get(VARIABLE):
        root = _expanded(Path(os.environ[VARIABLE]))
        places += [root / name, root]
    kept = _kept(name)
    return places if kept is None else [*places, kept]


def search(find: Find, places: list[Path], split: Split) -> tuple[OnDisk | None, list[str]]:
    """The split in the first place that holds it; and of every place before that, why it is not there."""
    reasons = []
    for place in places:
        found = _look(find, place, split)
        if isinstance(found, OnDisk):
            return found, reasons
        reasons.append(f"{place} ({found})")
    return None, reasons


def found_or_fetched(
    name: str,
    split: Split,
    folder: str | os.PathLike[str] | None,
    *,
    find: Find,
    wanted: str,
    remote: Mapping[str, Remote],
) -> OnDisk:
    """The split on disk, downloaded first if it is in none of the places; `wanted` says in words which files."""
    found, reasons = search(find, places_of(name, folder), split)
    if found is not None:
        return found
    problem = f"`{name}`, split `{split}`, is not there; looked in: {'; '.join(reasons) or 'no folder'}"
    if folder is not None:
        raise InputError(message(f"{problem}. Wanted: {wanted}.", f"al.data.{name}(folder), the folder of these files"))
    into = _kept(name)
    if into is None:
        raise InputError(message(f"{problem}. Wanted: {wanted}.", f"set {VARIABLE} to a folder with the files"))
    by_hand = f"put the files into {into}, or set {VARIABLE} to a folder with {name}/"
    if not pooch_installed():
        raise InputError(message(f"{problem}. Wanted: {wanted}.", f"{by_hand}; or {EXTRA}, and they are downloaded"))
    try:
        fetch(remote, into)
    except Exception as error:  # no network, a broken file, a full disk: each has a class of its own
        failed = f"downloading failed ({_one_line(error)})"
        raise InputError(message(f"{problem}; {failed}. Wanted: {wanted}.", by_hand)) from error
    found, reasons = search(find, [into], split)
    if found is None:
        raise InputError(message(f"`{name}` was downloaded, but is not whole: {'; '.join(reasons)}.", by_hand))
    return found


def fetch(remote: Mapping[str, Remote], into: Path) -> None:
    """Download files into a folder; those with the right sum that are there already stay."""
    import pooch  # pyright: ignore

    with _quiet(pooch.get_logger()):
        for file, source in remote.items():
            pooch.retrieve(source.url, f"md5:{source.md5}", fname=file, path=into, progressbar=False)


def pooch_installed() -> bool:
    """Is pooch, which downloads, there?"""
    return find_spec("pooch") is not None


def _kept(name: str) -> Path | None:
    """Where what is downloaded of a set goes."""
    cache = cache_folder()
    return None if cache is None else cache / "data" / name


def _look(find: Find, place: Path, split: Split) -> OnDisk | str:
    try:
        if place.is_dir():
            return find(place, split)
        return "a file, not a folder" if place.exists() else "no such folder"
    except OSError as error:  # a name that is too long, a folder that may not be read
        return error.strerror or type(error).__name__


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # no home folder of that name
        return path


@contextmanager
def _quiet(logger: Any) -> Iterator[None]:
    """The core prints nothing, and neither do those whom it asks."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}".rstrip(": ")
