"""CIFAR-10 as files: the official Python or binary batches, the archives of either, or an npz of arrays."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from attnlab.data.batchpickle import ROW, read_batch
from attnlab.data.files import read_npz
from attnlab.data.idx import Split
from attnlab.data.places import Labelled, OnDisk
from attnlab.errors import InputError, message

BATCHES: dict[Split, tuple[str, ...]] = {
    "train": ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"),
    "test": ("test_batch",),
}
SIDE, CHANNELS = 32, 3
RECORD = 1 + ROW  # of a binary batch: a label, then an image
MOST = 2**26  # bytes of a batch; the official ones have half as many
PADDING = 2**20  # bytes that a tar file may have after its end; usually a few thousand
PYTHON, BINARY = "Python batches", "binary batches"
FOLDERS = {PYTHON: "cifar-10-batches-py", BINARY: "cifar-10-batches-bin"}
ENDINGS = {PYTHON: "", BINARY: ".bin"}
ARCHIVES = {"cifar-10-python.tar.gz": PYTHON, "cifar-10-binary.tar.gz": BINARY}
NPZ_WANTED = "an npz with arrays x_train (n,32,32,3) of bytes, y_train (n,), x_test and y_test"


def find_cifar(place: Path, split: Split) -> OnDisk | str:
    """What a folder holds of a split of CIFAR-10, the official files first."""
    for form, name in FOLDERS.items():
        files = [f"{batch}{ENDINGS[form]}" for batch in BATCHES[split]]
        for folder in (place / name, place):
            paths = tuple(folder / file for file in files)
            if all(path.is_file() for path in paths):
                return OnDisk(folder, form, paths, partial(_of_batches, paths, form), partial(_count, paths, form))
    for name, form in ARCHIVES.items():
        archive = place / name
        if archive.is_file():
            return OnDisk(place, f"archive of {form}", (archive,), partial(_of_archive, archive, split, form))
    whole = [path for path in sorted(place.glob("*.npz")) if _rows_in_npz(path, split) is not None]
    if len(whole) == 1:
        path = whole[0]
        return OnDisk(place, "npz", (path,), partial(_of_npz, path, split), partial(_rows_in_npz, path, split))
    if whole:
        return f"several npz files: {', '.join(path.name for path in whole)}"
    return f"no {BATCHES[split][0]}[.bin], no archive, no npz of x_{split} and y_{split}"


def _of_batches(paths: tuple[Path, ...], form: str) -> Labelled:
    return _joined([READERS[form](_content(path), str(path)) for path in paths])


def _count(paths: tuple[Path, ...], form: str) -> int | None:
    """Images in binary batches, by their size; a pickle does not tell before it is read."""
    return sum(path.stat().st_size for path in paths) // RECORD if form == BINARY else None


def _content(path: Path) -> bytes:
    """The bytes of a batch, if there are no more than a batch has."""
    try:
        size = path.stat().st_size
        _check_size(size, str(path))
        return path.read_bytes()
    except OSError as error:
        raise InputError(message(f"`{path}` cannot be read ({error.strerror}); wanted a batch of CIFAR-10.")) from error


def _check_size(size: int, where: str) -> None:
    if size > MOST:
        raise InputError(message(f"`{where}` has {size} bytes; a batch of CIFAR-10 has about {MOST // 2}."))


def _of_archive(path: Path, split: Split, form: str) -> Labelled:
    """The batches of a split in a gzipped tar file; nothing is unpacked to the disk."""
    wanted = [f"{batch}{ENDINGS[form]}" for batch in BATCHES[split]]
    held: dict[str, bytes] = {}
    try:
        with gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                content = archive.extractfile(member) if name in wanted and member.isfile() else None
                if content is not None:
                    _check_size(member.size, f"{path}/{name}")
                    held[name] = content.read()
            unpacked.read(PADDING)  # to the very end, where gzip compares its checksum
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        problem = f"`{path}` is cut off or damaged ({error}); wanted {path.name} as it is published."
        raise InputError(message(problem, "remove it, and it is downloaded anew")) from error
    missing = [name for name in wanted if name not in held]
    if missing:
        raise InputError(message(f"`{path}` lacks {', '.join(missing)}; wanted {path.name} as it is published."))
    return _joined([READERS[form](held[name], f"{path}/{name}") for name in wanted])


def read_binary(content: bytes, where: str) -> Labelled:
    """Images, bytes (n, 3072), and labels, (n,), of the content of a binary batch."""
    if not content or len(content) % RECORD:
        wanted = f"a binary batch of CIFAR-10, records of {RECORD} bytes: a label and an image"
        raise InputError(message(f"`{where}` has {len(content)} bytes; wanted {wanted}."))
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        raise InputError(message(f"`{where}` has a label {labels.max()}; wanted labels 0 to 9."))
    return records[:, 1:], labels


READERS: dict[str, Callable[[bytes, str], Labelled]] = {PYTHON: read_batch, BINARY: read_binary}


def _joined(batches: list[Labelled]) -> Labelled:
    """Images, (n, 32, 32, 3), from rows that have all red first, then green, then blue."""
    rows = np.concatenate([images for images, _ in batches])
    pixels = rows.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels), np.concatenate([labels for _, labels in batches])


def _rows_in_npz(path: Path, split: Split) -> int | None:
    """How many images an npz says that it has, by the header of their array alone; None where it has none of them."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"x_{split}.npy") as images:
            archive.getinfo(f"y_{split}.npy")
            np.lib.format.read_magic(images)
            shape, _, _ = np.lib.format.read_array_header_1_0(images)
            return shape[0] if shape else 0
    except (OSError, KeyError, ValueError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError):
        return None


def _of_npz(path: Path, split: Split) -> Labelled:
    arrays, _ = read_npz(path, NPZ_WANTED)
    names = (f"x_{split}", f"y_{split}")
    pixels, labels = (arrays[name] for name in names)
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (SIDE, SIDE, CHANNELS) or not len(pixels):
        held = f"{names[0]} of type {pixels.dtype} and shape {pixels.shape}"
        raise InputError(message(f"`{path}` has {held}; wanted {NPZ_WANTED}."))
    if labels.shape == (len(pixels), 1):  # a column, as some write it
        labels = labels[:, 0]
    if labels.dtype.kind not in "iu" or labels.shape != (len(pixels),):
        held = f"{names[1]} of type {labels.dtype} and shape {labels.shape} for {len(pixels)} images"
        raise InputError(message(f"`{path}` has {held}; wanted {NPZ_WANTED}."))
    if labels.min() < 0 or labels.max() > 9:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise InputError(message(f"`{path}` has a label {wrong}; wanted labels 0 to 9."))
    return pixels, labels
