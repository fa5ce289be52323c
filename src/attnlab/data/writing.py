"""The one way to write a file: whole, or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from attnlab.checks import shown
from attnlab.data.owners import PATTERN, abandoned, owned_name
from attnlab.errors import AttnlabError, InputError, message

_PARTIAL = re.compile(rf"\.attnlab-(?P<owner>{PATTERN})\.tmp")
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


class WriteError(AttnlabError, OSError):
    """A file cannot be written. `reason` says why, without the path."""

    def __init__(self, text: str, reason: str = "", number: int | None = None) -> None:
        super().__init__(text)
        self.reason = reason or text
        self.errno = number

    def __reduce__(self) -> tuple[Any, ...]:  # so that it travels between processes
        return type(self), (self.args[0], self.reason, self.errno)


def as_path(name: str, value: Any, wanted: str = "a path") -> Path:
    """A path of text, checked: not a number (which `open` would take for an open file), not empty.

    >>> as_path("path", 5)
    Traceback (most recent call last):
    attnlab.errors.InputError: `path` is 5; wanted a path.
    <BLANKLINE>
    hint: 'folder/name', or a pathlib.Path
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(message(f"`{name}` is {shown(value)}; wanted {wanted}.", "'folder/name', or a pathlib.Path"))
    return Path(text)


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of `path` once it is whole and on the disk.

    If writing fails, is interrupted or killed, what was at `path` before is still there. A link is followed; what is no
    plain file, as /dev/stdout, is written to directly.

    >>> import tempfile
    >>> with whole_file(tempfile.mkdtemp() + "/a.txt") as file:
    ...     file.write(b"all of it")
    9
    """
    given = as_path("path", path)
    try:
        if _is_device(given):
            with open(given, "wb") as file:
                yield file
        else:
            with _replacing(Path(os.path.realpath(given))) as file:
                yield file
    except WriteError:
        raise
    except OSError as error:
        raise cannot_write(given, error) from error


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write text, as `whole_file` writes."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8", errors="surrogateescape"))
    return Path(path)


def write_json(path: str | os.PathLike[str], content: Any) -> Path:
    """Write JSON for people to read, as `whole_file` writes."""
    return write_text(path, json.dumps(content, indent=2) + "\n")


def make_folder(path: str | os.PathLike[str]) -> Path:
    """A folder that can be written to, made if it is not there: asked before hours of computing, not after."""
    folder = as_path("path", path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    check_writable(folder / "any")
    return folder


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse now what could not be written later: no folder, a folder in its place, no right to write."""
    target = Path(os.path.realpath(as_path("path", path)))
    if _is_device(target):
        return
    try:
        _refuse_folder(target)
        probe = _partial_beside(target)
        try:
            open(probe, "xb").close()
        finally:
            _forget(probe)
    except OSError as error:
        raise cannot_write(Path(path), error) from error


def cannot_write(path: Path, error: OSError) -> WriteError:
    """The error for a path that cannot be written: why, and what to do."""
    reason, hint = _why(path, error)
    return WriteError(message(f"Cannot write `{path}`: {reason}.", hint), reason, error.errno)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk too, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    _refuse_folder(target)
    partial = _partial_beside(target)
    try:
        with open(partial, "xb") as file:
            # The file system tells the time: the clocks of other machines, and ours, may be wrong.
            _clear_abandoned(target.parent, now=os.fstat(file.fileno()).st_mtime)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        _forget(partial)
    sync_folder(target.parent)


def _partial_beside(target: Path) -> Path:
    return target.with_name(f".attnlab-{owned_name()}.tmp")


def to_the_end(tidy: Callable[[], None]) -> None:
    """Tidy up; Ctrl-C meanwhile has to wait until that is done."""
    try:
        tidy()
    except KeyboardInterrupt:
        tidy()
        raise


def _forget(partial: Path) -> None:
    def tidy() -> None:
        with suppress(OSError):  # on a disk that cannot be written there is nothing to remove
            partial.unlink()

    to_the_end(tidy)


def _clear_abandoned(folder: Path, now: float) -> None:
    """Remove what killed processes left half-written in this folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            partial = _PARTIAL.fullmatch(entry.name)
            if partial is not None and abandoned(partial["owner"], now - entry.stat(follow_symlinks=False).st_mtime):
                _forget(Path(entry.path))


def _refuse_folder(target: Path) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def _is_device(path: Path) -> bool:
    """Is there something that is neither a file nor a folder: a device, a pipe?"""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _why(path: Path, error: OSError) -> tuple[str, str | None]:
    """What is wrong, and what to do."""
    words = (error.strerror or str(error)).rstrip(".")
    if isinstance(error, IsADirectoryError):
        return "it is a folder", "give the name of a file"
    if isinstance(error, FileNotFoundError):
        return f"there is no folder `{path.parent}`", f"mkdir -p {path.parent}, or choose another folder"
    if isinstance(error, NotADirectoryError | FileExistsError):
        return "a file is where a folder should be", "choose another folder"
    if error.errno in NO_SPACE:
        return words, "free some space or choose another disk; what was there before is unchanged"
    if error.errno in NOT_ALLOWED:
        return words, "choose a folder that you can write to"
    return words, None
