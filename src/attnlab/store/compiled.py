"""Programs that JAX compiled, kept beside the runs so that the next process starts sooner."""

from __future__ import annotations

import os
import stat
import warnings
import zlib
from contextlib import suppress
from pathlib import Path

from attnlab.checks import instance
from attnlab.errors import StoreError, message
from attnlab.store.results import Size
from attnlab.store.store import Store

SUFFIX = "-cache"  # how JAX ends the name of a program
ZLIB = b"\x78"  # how JAX begins one that Python itself can unpack
CHECKED = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
WORTH_KEEPING = 0.2  # seconds of compilation


def keep_programs(store: Store | None = None) -> Path:
    """Keep what JAX compiles from here on, and take what is kept: in a new process the first run then starts sooner.

    The commands do so by themselves. A library does not change its user's JAX settings unasked, and this sets two of
    them: `jax_compilation_cache_dir` and `jax_persistent_cache_min_compile_time_secs`. Programs that a killed process
    left half-written are removed.

    Args:
        store: programs stand in its folder `compiled`; default `al.Store()`.

    Returns:
        That folder.

    Raises:
        StoreError: if it cannot be written.

    >>> import tempfile, attnlab as al
    >>> al.store.keep_programs(al.Store(tempfile.mkdtemp())).name
    'compiled'
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    folder = compiled_folder(Store() if store is None else instance("store", store, Store, "an al.Store"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(message(f"{str(folder)!r} cannot be made: {error.strerror}.", "al.Store(folder)")) from error
    if not os.access(folder, os.W_OK):
        raise StoreError(message(f"{str(folder)!r} cannot be written.", "al.Store(folder)"))
    drop_broken(folder)
    # A full disk costs time, not the run.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache")
    compilation_cache.reset_cache()  # JAX reads where it is only once
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
    return folder


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
