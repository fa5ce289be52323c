"""The folder on disk: whole runs or none, whatever is killed and whoever else writes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from attnlab.data.owners import PATTERN, abandoned, owned_name
from attnlab.data.places import cache_folder
from attnlab.data.writing import NO_SPACE, WriteError, sync_folder, to_the_end, write_json
from attnlab.errors import InputError, StoreError, message
from attnlab.store.keys import Identity

T = TypeVar("T")

VARIABLE = "ATTNLAB_STORE"
ABOUT = "run.json"
SEAL = "check"  # in run.json: a hash of the rest, since a flipped digit is still JSON
REPLACED = "replaced"  # in a working directory: runs that were moved out of the way of fresher ones
TRIES = 3
LIBRARIES = ("attnlab", "jax", "jaxlib", "numpy", "scipy", "optax", "matplotlib")
_RUN = re.compile(r"[0-9a-f]{32}(\.damaged-.*)?")
_CHECKPOINT = re.compile(r"[0-9a-f]{32}\.npz(\.damaged-.*)?")
_WORK = re.compile(PATTERN)
_OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
# What a hand can do to a run; all other errors of the system (no permission, no memory) are no damage.
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL)


class NotKept(StoreError):
    """A result was computed and could not be written; it is here, as `computed`."""

    def __init__(self, text: str, computed: Any = None) -> None:
        super().__init__(text)
        self.computed = computed


def default_root() -> Path:
    """$ATTNLAB_STORE, else $XDG_CACHE_HOME/attnlab, else ~/.cache/attnlab."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    cache = cache_folder()
    if cache is None:
        raise StoreError(message("There is no home folder to keep runs in.", f"set {VARIABLE} to a folder"))
    return cache


@cache
def versions() -> dict[str, str]:
    """Python, attnlab, and the libraries below it."""
    return {"python": sys.version.split()[0], **{name: metadata.version(name) for name in LIBRARIES}}


class Folder:
    """`runs/<key>/`, `partial/<key>.npz` and `tmp/` under one root; nothing is made before something is written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs, self.partial, self.tmp = root / "runs", root / "partial", root / "tmp"
        self._cleared = False

    def find(self, identity: Identity, load: Callable[[Path, dict[str, Any]], T]) -> T | None:
        """The kept run read by `load(its directory, its run.json)`, or None. A damaged one is moved aside."""
        path = self.runs / identity.key
        if not self._cleared:  # what is looked for may have been moved out of the way by one who was killed
            self._clear_abandoned(now=changed(self.tmp))
        before = self._inode(path)
        if before is None:
            return None
        try:
            return load(path, _about(path, identity))
        except Exception as error:  # whatever can be wrong with a file
            if unreadable := _refused(error):
                raise self.error("read", unreadable) from error
        if self._inode(path) == before:  # and not a good one that another process has put there since
            self.set_aside(path)
        return None

    def place(
        self,
        identity: Identity,
        facts: Mapping[str, Any],
        save: Callable[[Path], Any],
        load: Callable[[Path, dict[str, Any]], T],
        *,
        replace: bool = False,
    ) -> T | None:
        """Keep what `save(directory)` writes. If another process was first, ours is dropped and theirs returned.

        With `replace` an old run gives way, and is back in its place if we are killed before ours is there.
        """
        about = _sealed({**asdict(identity), **facts, "versions": versions(), "when": datetime.now(UTC).isoformat()})
        for _ in range(TRIES):
            with self.working() as work:
                try:
                    run = _written(work / "new", save, about)
                    if replace:
                        self._take_out(identity.key, work)
                    os.rename(run, self.runs / identity.key)
                    sync_folder(self.runs)
                    return None
                except OSError as error:
                    cleared = error.errno == errno.ENOENT and not work.exists()  # by one who took us for dead
                    if not cleared and error.errno not in _OCCUPIED:
                        raise
                theirs = self.find(identity, load)
                if theirs is not None:
                    return theirs
        raise self.error("write to", f"`runs/{identity.key}` cannot be replaced")

    def checkpoint(self, key: str) -> Path:
        """Where an unfinished run is kept."""
        return self.partial / f"{key}.npz"

    def replace_checkpoint(self, key: str, save: Callable[[Path], Any]) -> None:
        """Write the checkpoint by `save(path)`; the one before it stays until the new one is whole."""
        with self.working() as work:
            save(work / "checkpoint.npz")
            os.replace(work / "checkpoint.npz", self.checkpoint(key))

    @contextmanager
    def working(self) -> Iterator[Path]:
        """A directory of our own on the same file system, gone afterwards."""
        try:
            for folder in (self.runs, self.partial, self.tmp):
                folder.mkdir(parents=True, exist_ok=True)
            work = self.tmp / owned_name()
            try:
                work.mkdir()
                yield work
            finally:
                to_the_end(lambda: self._clear_up(work))
        except OSError as error:
            raise self.error("write to", error) from error

    def make_ready(self) -> None:
        """Fail now, not after hours of computing, if nothing can be written; clear up after killed processes."""
        with self.working() as work:
            self._clear_abandoned(now=changed(work))

    def _clear_abandoned(self, now: float) -> None:
        """Clear up after killed processes; now is by the clock of the file system, which other machines share."""
        self._cleared = True
        for old in self._entries(self.tmp, _WORK):
            if abandoned(old.name, now - changed(old)):
                self._clear_up(old)

    def set_aside(self, path: Path) -> None:
        """Rename what cannot be read, so that it is out of the way and still there."""
        aside = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%d%H%M%S}-{uuid.uuid4().hex[:8]}")
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self.error("move a damaged run aside in", error) from error

    def finished(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Directory and run.json of every kept run that has one."""
        for path in self._entries(self.runs, _RUN):
            if "." not in path.name:
                with suppress(OSError, ValueError, RecursionError):
                    yield path, json.loads((path / ABOUT).read_text(encoding="utf-8"))

    def everything(self) -> list[Path]:
        """All that the store has written: runs, damaged ones, checkpoints."""
        return self._entries(self.runs, _RUN) + self._entries(self.partial, _CHECKPOINT)

    def remove(self, path: Path) -> None:
        """Remove a run or checkpoint at one stroke, so that no reader finds half of it."""
        with self.working() as work, suppress(FileNotFoundError):
            os.rename(path, work / path.name)

    def error(self, verb: str, reason: OSError | str) -> StoreError:
        """The error for a folder that cannot be used: why, and what to do."""
        number = reason.errno if isinstance(reason, OSError) else None
        hint = f"set {VARIABLE} to a folder you can write to"
        if number in NO_SPACE:
            hint = f"free some space, or set {VARIABLE} to a folder on another disk; what is finished is safe"
        return StoreError(message(f"Cannot {verb} the store `{self.root}`: {_words(reason)}.", hint))

    def _take_out(self, key: str, work: Path) -> None:
        """Move a run out of the way, to where `_clear_up` finds it."""
        (work / REPLACED).mkdir()
        with suppress(FileNotFoundError):
            os.rename(self.runs / key, work / REPLACED / key)

    def _clear_up(self, work: Path) -> None:
        """Remove a working directory; a run that was to be replaced and was not goes back to its place.

        If it cannot go back, it stays here for the next who clears up.
        """
        for run in self._entries(work / REPLACED, _RUN):
            if not os.path.lexists(self.runs / run.name):
                try:
                    os.rename(run, self.runs / run.name)
                except OSError:
                    return
        shutil.rmtree(work, ignore_errors=True)

    def _inode(self, path: Path) -> int | None:
        try:
            return path.lstat().st_ino
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self.error("read", error) from error

    def _entries(self, folder: Path, named: re.Pattern[str]) -> list[Path]:
        """Entries with a name of ours, in order; what else lies there is none of our business."""
        try:
            return sorted(path for path in folder.iterdir() if named.fullmatch(path.name))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self.error("read", error) from error


def whole(path: Path) -> Path:
    """`path`, if it is a zip file to its end (`numpy.load` would leave a shorter one open)."""
    with zipfile.ZipFile(path):
        return path


def bytes_in(path: Path) -> int:
    """Bytes of the files in a directory, or of one file; nothing for what has just gone."""
    total = 0
    for part in [path, *path.rglob("*")] if path.is_dir() else [path]:
        with suppress(OSError):
            total += part.stat().st_size if part.is_file() else 0
    return total


def changed(path: Path) -> float:
    """When a run or checkpoint was written, in seconds; now for what has just gone."""
    with suppress(OSError):
        return path.lstat().st_mtime
    return time.time()


def _about(path: Path, identity: Identity) -> dict[str, Any]:
    """run.json, if it is whole and describes the run of this identity."""
    about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    if SEAL in about and _sealed({k: v for k, v in about.items() if k != SEAL}) != about:
        raise ValueError(f"{ABOUT} was changed")
    if {k: about[k] for k in asdict(identity)} != asdict(identity):
        raise ValueError(f"{ABOUT} describes another run")
    return about


def _sealed(about: dict[str, Any]) -> dict[str, Any]:
    """With a hash of all the rest."""
    text = json.dumps(about, sort_keys=True)
    return {**about, SEAL: hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}


def _written(run: Path, save: Callable[[Path], Any], about: dict[str, Any]) -> Path:
    run.mkdir()
    save(run)
    write_json(run / ABOUT, about)
    return run


def _refused(error: Exception) -> OSError | str | None:
    """Why the system did not let us read (no permission, too many files, no memory): that is no damage."""
    cause = error.__cause__ if isinstance(error, InputError) else error
    if isinstance(cause, MemoryError):
        return "out of memory"
    if isinstance(cause, OSError) and cause.errno not in _DAMAGE:
        return cause
    return None


def _words(reason: OSError | str) -> str:
    if isinstance(reason, WriteError):
        return reason.reason
    if isinstance(reason, OSError):
        return reason.strerror or str(reason)
    return reason
