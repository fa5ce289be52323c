"""IDX files, the format of MNIST: two zero bytes, a type, the number of axes, their lengths, then the numbers."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np

from attnlab.errors import InputError, message

UNSIGNED_BYTE = 0x08


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The numbers of an IDX file of bytes with so many axes; plain, or gzipped if its name ends in .gz."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except OSError as error:  # gzip.BadGzipFile is one
        raise InputError(message(f"`{path}` cannot be read ({error}); wanted an IDX file.")) from error
    except (EOFError, zlib.error) as error:
        raise InputError(message(f"`{path}` is a damaged gzip file ({error}); wanted an IDX file.")) from error
    head = 4 + 4 * axes
    wanted = bytes((0, 0, UNSIGNED_BYTE, axes))
    if content[:4] != wanted:
        raise InputError(message(f"`{path}` begins with {content[:4].hex(' ') or 'nothing'}; wanted {wanted.hex(' ')}, "
                                 f"an IDX file of bytes with {axes} {'axis' if axes == 1 else 'axes'}."))  # fmt: skip
    if len(content) < head:
        raise InputError(message(f"`{path}` ends within its header."))
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", axes, offset=4))
    if len(content) - head != prod(shape):
        raise InputError(message(f"`{path}` says {' x '.join(map(str, shape))} = {prod(shape)} numbers; it holds "
                                 f"{len(content) - head}."))  # fmt: skip
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


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
    if digits.size and digits.max() > 9:
        raise InputError(message(f"`{folder}` has a label {digits.max()}; wanted digits 0 to 9."))
    return images, digits
