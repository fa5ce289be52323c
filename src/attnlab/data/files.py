"""npz files: written whole or not at all, and read no further than they are sound and fit into memory."""

from __future__ import annotations

import json
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from attnlab.checks import enough_memory
from attnlab.data.writing import as_path, whole_file
from attnlab.errors import InputError, message

Content = TypeVar("Content")

FACTS = "facts"  # name of the JSON entry beside the arrays
ENTRY = ".npy"  # how the names of arrays end inside an npz file
ZIP, NPY = b"PK", b"\x93NUMPY"  # how the files begin
_END = struct.Struct("<4s4H2LH")  # of a zip file: mark, disks, entries here and in all, directory, comment
MANY = 0xFFFF  # stands for a number that is elsewhere
# Arrays that unpack to more than this many bytes, and to this many times the file, are not data but a trap.
BOMB_BYTES = 2**27
BOMB_RATIO = 100
_SAVE_HINT = 'np.savez("tokens.npz", x=x, z=z, y=y) writes plain arrays of numbers'


class FactsError(InputError, TypeError):
    """Facts, or `info`, hold what JSON cannot."""


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Write arrays and JSON facts to `path` (.npz is added); an old file is replaced only once the new one is whole."""
    path = npz_path(path)
    text = _as_json(facts)
    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise InputError(message(f"`{name}` holds Python objects; wanted numbers or text.", _SAVE_HINT))
    with whole_file(path) as file:
        np.savez(file, allow_pickle=False, **arrays, **{FACTS: np.array(text)})
    return path


def npz_path(path: str | os.PathLike[str]) -> Path:
    """Where `write_npz` writes: the path, with .npz added.

    >>> npz_path("run").name
    'run.npz'
    """
    given = as_path("path", path)
    if given.suffix == ".npz":
        return given
    if not given.name:
        raise InputError(message(f"`path` is {str(given)!r}; wanted the name of a file.", "folder/name.npz"))
    return given.with_name(given.name + ".npz")


def read_npz(path: str | os.PathLike[str], wanted: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and facts of an npz file; `wanted` says in words what should be in it, for the error messages.

    Nothing is unpacked before the sizes that the file declares are summed and found to be sane and to fit into memory.
    Every array is read to its end, where its checksum is compared. Python objects are never loaded.
    """
    return _read(path, wanted, "npz", _npz_content)


def read_npy(path: str | os.PathLike[str], wanted: str) -> np.ndarray:
    """The one array of an npy file, as `read_npz` reads."""
    return _read(path, wanted, "npy", _npy_content)


def _read(
    path: str | os.PathLike[str], wanted: str, kind: str, content: Callable[[IO[bytes], str, str], Content]
) -> Content:
    """What `content(file, name, wanted)` makes of a plain file; whatever is wrong with it, in our words."""
    given = as_path("path", path)
    try:
        _check_plain(given, wanted)
        with open(given, "rb") as file:
            return content(file, str(path), wanted)
    except FileNotFoundError:
        raise InputError(message(f"There is no file `{path}`; wanted {wanted}.")) from None
    except InputError:
        raise
    except OSError as error:
        raise InputError(message(f"`{path}` cannot be opened ({error.strerror}); wanted {wanted}.")) from error
    except Exception as error:  # foreign and damaged files raise whatever they like
        reason, hint = _why(error)
        raise InputError(message(f"`{path}` is not readable as {kind} ({reason}); wanted {wanted}.", hint)) from error


def _check_plain(path: Path, wanted: str) -> None:
    """Refuse folders, and pipes and devices, which may have no end."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError(message(f"`{path}` is a folder; wanted {wanted}.", "give the name of a file in it"))
    if not stat.S_ISREG(mode):
        raise InputError(message(f"`{path}` is a pipe or a device; wanted {wanted}.", "save it to a file first"))


def _npz_content(file: IO[bytes], path: str, wanted: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    start = file.read(len(NPY))
    file.seek(0)
    if start == NPY:
        raise InputError(message(f"`{path}` holds a single array; wanted {wanted}.", _SAVE_HINT))
    if not start.startswith(ZIP):
        raise ValueError(_what_it_is(start))
    # Opened by us: given a path, np.load leaks the file when its content is broken.
    with np.load(file, allow_pickle=False) as content:
        archive: zipfile.ZipFile = content.zip
        _check_count(file, len(archive.infolist()))
        entries = _array_entries(archive)
        _check_sizes(entries, os.fstat(file.fileno()).st_size, path)
        arrays = {entry.filename.removesuffix(ENTRY): _array(archive, entry) for entry in entries}
    facts = json.loads(str(arrays.pop(FACTS, "{}")))
    if not isinstance(facts, dict):
        raise ValueError(f"its entry `{FACTS}` is not a JSON object")
    return arrays, facts


def _npy_content(file: IO[bytes], path: str, wanted: str) -> np.ndarray:
    start = file.read(len(NPY))
    file.seek(0)
    if start.startswith(ZIP):
        raise InputError(message(f"`{path}` holds named arrays; wanted {wanted}.", "np.save, and not np.savez"))
    if start != NPY:
        raise ValueError(_what_it_is(start))
    _check_memory(os.fstat(file.fileno()).st_size, path)
    return np.lib.format.read_array(file, allow_pickle=False)


def _check_count(file: IO[bytes], found: int) -> None:
    """Compare with the number of entries at the end of the file: a damaged directory may hide some of them."""
    file.seek(-_END.size, os.SEEK_END)
    mark, *_, count, _, _, _ = _END.unpack(file.read(_END.size))
    if mark == b"PK\x05\x06" and count not in (found, MANY):
        raise zipfile.BadZipFile("entries are missing")


def _array_entries(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The entries that are arrays. Others are opened and left: a name that was damaged is noticed there."""
    arrays = []
    for entry in archive.infolist():
        if entry.filename.endswith(ENTRY):
            arrays.append(entry)
        else:
            archive.open(entry).close()
    return arrays


def _check_sizes(entries: list[zipfile.ZipInfo], on_disk: int, path: str) -> None:
    """Refuse, by the sizes that it declares, what would unpack to more than a file of data does."""
    names = [entry.filename for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError("it holds two arrays of one name")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * on_disk:
        raise InputError(
            message(
                f"`{path}` of {on_disk} bytes would unpack to {unpacked}, more than {BOMB_RATIO} times as many; "
                "it is not read.",
                "if the arrays are meant, write them with np.savez and not np.savez_compressed",
            )
        )
    _check_memory(unpacked, path)


def _check_memory(unpacked: int, path: str) -> None:
    """Refuse what does not fit; the cause tells those who ask that the file itself is sound."""
    try:
        enough_memory(unpacked / 8, f"Reading `{path}`", "close other programs, or read it on a larger machine")
    except InputError as error:
        raise InputError(str(error)) from MemoryError()


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """One array, read to the end of its entry: only there is its checksum compared."""
    with archive.open(entry) as content:
        array = np.lib.format.read_array(content, allow_pickle=False)
        if content.read(1):
            raise ValueError(f"its entry `{entry.filename}` is longer than it says")
    return array


def _what_it_is(start: bytes) -> str:
    if not start:
        return "it is empty"
    if start.startswith(b"\x80"):
        return "it is a pickle"
    return "it does not begin as one"


def _why(error: Exception) -> tuple[str, str | None]:
    """What is wrong with the content of a file, and what helps; the words of other libraries only where they fit."""
    text = str(error)
    if "pickle" in text:
        return "it holds Python objects, and loading those could run any code", _SAVE_HINT
    if isinstance(error, MemoryError):
        return "its arrays do not fit into memory", None
    if isinstance(error, zipfile.BadZipFile | zlib.error | EOFError) or "EOF" in text:
        return "it is cut off or damaged", None
    return text or type(error).__name__, None


def _as_json(facts: Mapping[str, Any]) -> str:
    try:
        return json.dumps(facts, default=_plain, sort_keys=True)
    except FactsError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise FactsError(message(f"Facts cannot be stored as JSON ({error}).", "names are text")) from error


def _plain(value: Any) -> Any:
    """NumPy values as JSON."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise FactsError(
        message(f"{type(value).__name__} cannot be stored as JSON.", "numbers, text, and lists and dicts of them")
    )
