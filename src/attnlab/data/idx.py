"""IDX files, the format of MNIST: two zero bytes, a type, the number of axes, their lengths, then the numbers."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar, cast

import numpy as np

from attnlab.checks import enough_memory
from attnlab.errors import InputError, message

Content = TypeVar("Content")

UNSIGNED_BYTE = 0x08
# While a file is read its bytes are in memory twice, eight to a float64 number.
NUMBERS = 2 / 8
Split = Literal["train", "test"]
# By the split: the names of the file of images and of that of labels, each in the two spellings that go about.
NAMES: dict[Split, tuple[tuple[str, str], tuple[str, str]]] = {
    "train": (
        ("train-images-idx3-ubyte", "train-images.idx3-ubyte"),
        ("train-labels-idx1-ubyte", "train-labels.idx1-ubyte"),
    ),
    "test": (
        ("t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte"),
        ("t10k-labels-idx1-ubyte", "t10k-labels.idx1-ubyte"),
    ),
}


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The numbers of an IDX file of bytes with so many axes; plain, or gzipped if its name ends in .gz.

    No more is read, or unpacked, than the header says.
    """
    return _opened(path, lambda file: _numbers(file, path, axes))


def _opened(path: Path, read: Callable[[BinaryIO], Content]) -> Content:
    """What `read(file)` finds; what can be wrong with a file, in our words."""
    try:
        with open_idx(path) as file:
            return read(file)
    except OSError as error:  # gzip.BadGzipFile is one
        raise InputError(message(f"`{path}` cannot be read ({error}); wanted an IDX file.")) from error
    except (EOFError, zlib.error) as error:
        raise InputError(message(f"`{path}` is a damaged gzip file ({error}); wanted an IDX file.")) from error


def begin_of_idx(path: Path, axes: int, most: int = 0) -> tuple[tuple[int, ...], bytes]:
    """The lengths of the axes as the header says them, and the first numbers: a look that costs little."""
    return _opened(path, lambda file: (_shape(file, path, axes), file.read(most)))


def open_idx(path: Path) -> BinaryIO:
    """The file, unpacked as it is read."""
    return cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb"))


def _shape(file: BinaryIO, path: Path, axes: int) -> tuple[int, ...]:
    """What the header says, checked."""
    head = file.read(4 + 4 * axes)
    wanted = bytes((0, 0, UNSIGNED_BYTE, axes))
    if head[:4] != wanted:
        kind = f"an IDX file of bytes with {axes} {'axis' if axes == 1 else 'axes'}"
        begins = head[:4].hex(" ") or "nothing"
        raise InputError(message(f"`{path}` begins with {begins}; wanted {wanted.hex(' ')}, {kind}."))
    if len(head) < 4 + 4 * axes:
        raise InputError(message(f"`{path}` ends within its header."))
    return tuple(int(size) for size in np.frombuffer(head, ">u4", axes, offset=4))


def _numbers(file: BinaryIO, path: Path, axes: int) -> np.ndarray:
    shape = _shape(file, path, axes)
    enough_memory(NUMBERS * prod(shape), f"`{path}`, which says {_times(shape)} numbers,", "a smaller file")
    content = file.read(prod(shape) + 1)
    if len(content) != prod(shape):
        held = f"{len(content)}" if len(content) < prod(shape) else "more"
        raise InputError(message(f"`{path}` says {_times(shape)} = {prod(shape)} numbers; it holds {held}."))
    return np.frombuffer(content, np.uint8).reshape(shape)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def first_of(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first of these names in the folder, plain or with .gz; None where there is none of them."""
    return next((path for path in _spellings(folder, names) if path.is_file()), None)


def find_idx(folder: Path, names: tuple[str, ...]) -> Path:
    """The first of these names in the folder, plain or with .gz; where there is none, an error lists them."""
    if not folder.is_dir():
        raise InputError(message(f"`{folder}` is no folder; wanted one with the MNIST files {names[0]}[.gz]."))
    found = first_of(folder, names)
    if found is None:
        tried = ", ".join(path.name for path in _spellings(folder, names))
        raise InputError(message(f"`{folder}` has none of {tried}."))
    return found


def _spellings(folder: Path, names: tuple[str, ...]) -> list[Path]:
    return [folder / f"{name}{end}" for name in names for end in ("", ".gz")]


def digit_images(folder: Path, split: Split = "train") -> tuple[np.ndarray, np.ndarray]:
    """Images, (N, height, width), and their digits, (N,), of the MNIST files in a folder."""
    images, labels = NAMES[split]
    return labelled_images(find_idx(folder, images), find_idx(folder, labels))


def labelled_images(images_file: Path, labels_file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images, (N, height, width), of one file and their labels, 0 to 9, of the other."""
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    if len(images) != len(labels):
        held = f"{len(images)} images and {len(labels)} labels"
        raise InputError(message(f"`{images_file}` and `{labels_file.name}` hold {held}; wanted as many."))
    if not images.size:
        raise InputError(message(f"`{images_file}` has images of shape {images.shape}; wanted at least one pixel."))
    if labels.max() > 9:
        raise InputError(message(f"`{labels_file}` has a label {labels.max()}; wanted labels 0 to 9."))
    return images, labels
