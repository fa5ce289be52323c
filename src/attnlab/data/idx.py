"""IDX files, the format of MNIST: two zero bytes, a type, the number of axes, their lengths, then the numbers."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from attnlab.checks import enough_memory
from attnlab.errors import InputError, message

UNSIGNED_BYTE = 0x08
# An image takes a byte for a pixel in the file, and a number, twice, once it is read.
COPIES = 2


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The numbers of an IDX file of bytes with so many axes; plain, or gzipped if its name ends in .gz.

    No more is read, or unpacked, than the header says.
    """
    try:
        with open_idx(path) as file:
            return _numbers(file, path, axes)
    except OSError as error:  # gzip.BadGzipFile is one
        raise InputError(message(f"`{path}` cannot be read ({error}); wanted an IDX file.")) from error
    except (EOFError, zlib.error) as error:
        raise InputError(message(f"`{path}` is a damaged gzip file ({error}); wanted an IDX file.")) from error


def open_idx(path: Path) -> BinaryIO:
    """The file, unpacked as it is read."""
    return cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb"))


def _numbers(file: BinaryIO, path: Path, axes: int) -> np.ndarray:
    head = file.read(4 + 4 * axes)
    wanted = bytes((0, 0, UNSIGNED_BYTE, axes))
    if head[:4] != wanted:
        kind = f"an IDX file of bytes with {axes} {'axis' if axes == 1 else 'axes'}"
        begins = head[:4].hex(" ") or "nothing"
        raise InputError(message(f"`{path}` begins with {begins}; wanted {wanted.hex(' ')}, {kind}."))
    if len(head) < 4 + 4 * axes:
        raise InputError(message(f"`{path}` ends within its header."))
    shape = tuple(int(size) for size in np.frombuffer(head, ">u4", axes, offset=4))
    enough_memory(COPIES * prod(shape), f"`{path}`, which says {_times(shape)} numbers,", "a smaller file")
    content = file.read(prod(shape) + 1)
    if len(content) != prod(shape):
        held = f"{len(content)}" if len(content) < prod(shape) else "more"
        raise InputError(message(f"`{path}` says {_times(shape)} = {prod(shape)} numbers; it holds {held}."))
    return np.frombuffer(content, np.uint8).reshape(shape)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def find_idx(folder: Path, names: tuple[str, ...]) -> Path:
    """The first of these names in the folder, plain or with .gz."""
    if not folder.is_dir():
        raise InputError(message(f"`{folder}` is no folder; wanted one with the MNIST files {names[0]}[.gz]."))
    tried = [folder / f"{name}{end}" for name in names for end in ("", ".gz")]
    for path in tried:
        if path.is_file():
            return path
    raise InputError(message(f"`{folder}` has none of {', '.join(path.name for path in tried)}."))


def digit_images(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images, (N, height, width), and their digits, (N,), of the MNIST training files in a folder."""
    images = read_idx(find_idx(folder, ("train-images-idx3-ubyte", "train-images.idx3-ubyte")), 3)
    digits = read_idx(find_idx(folder, ("train-labels-idx1-ubyte", "train-labels.idx1-ubyte")), 1)
    if len(images) != len(digits):
        raise InputError(message(f"`{folder}` has {len(images)} images and {len(digits)} labels; wanted as many."))
    if not images.size:
        raise InputError(message(f"`{folder}` has images of shape {images.shape}; wanted at least one pixel."))
    if digits.max() > 9:
        raise InputError(message(f"`{folder}` has a label {digits.max()}; wanted digits 0 to 9."))
    return images, digits
