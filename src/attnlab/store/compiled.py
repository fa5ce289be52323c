"""Programs that JAX compiled, kept beside the runs so that the next command starts sooner."""

from __future__ import annotations

import os
import stat
import zlib
from contextlib import suppress
from pathlib import Path

from attnlab.store.results import Size
from attnlab.store.store import Store

SUFFIX = "-cache"  # how JAX ends the name of a program
ZLIB = b"\x78"  # how JAX begins one that Python itself can unpack
CHECKED = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


def compiled_folder(store: Store) -> Path:
    """Where programs are kept."""
    return store.path / "compiled"


def compiled_size(store: Store) -> Size:
    """Number of programs, and bytes of all of them."""
    sizes = []
    with suppress(OSError), os.scandir(compiled_folder(store)) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                with suppress(OSError):
                    sizes.append(entry.stat().st_size)
    return Size(len(sizes), sum(sizes))


def drop_broken(folder: Path) -> int:
    """Remove programs of this folder that a killed process or a full disk left half-written; returns how many.

    JAX never writes a program that is there, so a broken one would stay, with a warning at every start. Each is looked
    at once: what was found whole is made read-only.
    """
    dropped = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                with suppress(OSError):
                    dropped += _dropped(entry)
    return dropped


def _dropped(entry: os.DirEntry[str]) -> bool:
    """Look at a program that nobody has looked at yet; remove it if it is not whole."""
    if stat.S_IMODE(entry.stat().st_mode) == CHECKED:
        return False
    content = Path(entry.path).read_bytes()
    if _is_whole(content):
        os.chmod(entry.path, CHECKED)
        return False
    os.unlink(entry.path)
    return True


def _is_whole(content: bytes) -> bool:
    """Does it unpack to its end? Of another packing, JAX will tell."""
    if not content.startswith(ZLIB):
        return bool(content)
    try:
        zlib.decompress(content)
    except zlib.error:
        return False
    return True
