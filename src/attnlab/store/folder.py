"""The folder on disk: whole runs or none, whatever is killed and whoever else writes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
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

from attnlab.errors import InputError, StoreError, message
from attnlab.store.keys import Identity

T = TypeVar("T")

VARIABLE = "ATTNLAB_STORE"
ABOUT = "run.json"
LIBRARIES = ("attnlab", "jax", "jaxlib", "numpy", "scipy", "optax", "matplotlib")
DAY = 86400.0
_RUN = re.compile(r"[0-9a-f]{32}(\.damaged-.*)?")
_CHECKPOINT = re.compile(r"[0-9a-f]{32}\.npz(\.damaged-.*)?")
_WORK = re.compile(r"(?P<place>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}")


def default_root() -> Path:
    """$ATTNLAB_STORE, else $XDG_CACHE_HOME/attnlab, else ~/.cache/attnlab."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (cache if cache.is_absolute() else Path.home() / ".cache") / "attnlab"
    except RuntimeError as error:
        raise StoreError(message("There is no home folder to keep runs in.", f"set {VARIABLE} to a folder")) from error


@cache
def versions() -> dict[str, str]:
    """Python, attnlab, and the libraries below it."""
    return {"python": sys.version.split()[0], **{name: metadata.version(name) for name in LIBRARIES}}


class Folder:
    """`runs/<key>/`, `partial/<key>.npz` and `tmp/` under one root; nothing is made before something is written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs, self.partial, self.tmp = root / "runs", root / "partial", root / "tmp"

    def find(self, identity: Identity, load: Callable[[Path, dict[str, Any]], T]) -> T | None:
        """The kept run read by `load(its directory, its run.json)`, or None. A damaged one is moved aside."""
        path = self.runs / identity.key
        before = None
        try:
            before = _inode(path)
            if before is None:
                return None
            about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
            if {k: about[k] for k in asdict(identity)} != asdict(identity):
                raise ValueError(f"{ABOUT} describes another run")
            return load(path, about)
        except Exception as error:  # whatever can be wrong with a file
            if unreadable := _refused(error):
                raise self.error("read", unreadable) from error
        if _inode(path) == before:  # and not a good one that another process has put there since
            self.set_aside(path)
        return None

    def place(
        self,
        identity: Identity,
        facts: Mapping[str, Any],
        save: Callable[[Path], Any],
        load: Callable[[Path, dict[str, Any]], T],
    ) -> T | None:
        """Keep what `save(directory)` writes. If another process was first, ours is dropped and theirs returned."""
        about = {**asdict(identity), **facts, "versions": versions(), "when": datetime.now(UTC).isoformat()}
        with self.working() as work:
            save(work)
            _write_json(work / ABOUT, about)
            for _ in range(3):
                try:
                    os.rename(work, self.runs / identity.key)
                    return None
                except OSError as error:
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
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
            work = self.tmp / f"{_place()}-{os.getpid()}-{_start(os.getpid())}-{uuid.uuid4().hex[:8]}"
            work.mkdir()
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
        except OSError as error:
            raise self.error("write to", error.strerror or str(error)) from error

    def make_ready(self) -> None:
        """Fail now, not after hours of computing, if nothing can be written; clear up after killed processes."""
        with self.working():
            for old in _entries(self.tmp, _WORK):
                if _abandoned(old):
                    shutil.rmtree(old, ignore_errors=True)

    def set_aside(self, path: Path) -> None:
        """Rename what cannot be read, so that it is out of the way and still there."""
        aside = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%d%H%M%S}-{uuid.uuid4().hex[:8]}")
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self.error("write to", error.strerror or str(error)) from error

    def finished(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Directory and run.json of every kept run that has one."""
        for path in _entries(self.runs, _RUN):
            if "." not in path.name:
                with suppress(OSError, ValueError):
                    yield path, json.loads((path / ABOUT).read_text(encoding="utf-8"))

    def everything(self) -> list[Path]:
        """All that the store has written: runs, damaged ones, checkpoints."""
        return _entries(self.runs, _RUN) + _entries(self.partial, _CHECKPOINT)

    def remove(self, path: Path) -> None:
        """Remove a run or checkpoint at one stroke, so that no reader finds half of it."""
        with self.working() as work, suppress(FileNotFoundError):
            os.rename(path, work / path.name)

    def error(self, verb: str, reason: str) -> StoreError:
        """The error for a folder that cannot be used."""
        return StoreError(
            message(
                f"Cannot {verb} the store `{self.root}`: {reason}.",
                f"set {VARIABLE} to a folder you can write to",
            )
        )


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
        return path.stat().st_mtime
    return time.time()


def _entries(folder: Path, named: re.Pattern[str]) -> list[Path]:
    """Entries with a name of ours, in order; what else lies there is none of our business."""
    try:
        return sorted(path for path in folder.iterdir() if named.fullmatch(path.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _write_json(path: Path, content: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def _refused(error: Exception) -> str | None:
    """Why the system did not let us read (no permission, too many files, no memory): that is no damage."""
    cause = error.__cause__ if isinstance(error, InputError) else error
    if isinstance(cause, MemoryError):
        return "out of memory"
    if isinstance(cause, OSError) and cause.errno in (
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
        errno.EIO,
    ):
        return cause.strerror
    return None


def _place() -> str:
    """This machine and this space of process numbers (containers may share a host name)."""
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return hashlib.blake2b(f"{socket.gethostname()} {space}".encode(), digest_size=4).hexdigest()


def _start(pid: int) -> int | None:
    """When a process started, in ticks; 0 if that cannot be known, None if there is no such process."""
    try:
        # The name of the program, in brackets, may hold anything.
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(rest[18])
    except (OSError, ValueError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return 0


def _abandoned(work: Path) -> bool:
    """Has the process that works in this directory gone? Of other machines we know only that a day is long enough."""
    owner = _WORK.fullmatch(work.name)
    if owner is None:
        return False
    if owner["place"] == _place():
        return _start(int(owner["pid"])) != int(owner["start"])
    return time.time() - changed(work) > DAY
