"""Image sets as their publishers write them, byte by byte, for tests that read them."""

import gzip
import struct

import numpy as np

SPELLINGS = {
    "train": (
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        ("train-images.idx3-ubyte", "train-labels.idx1-ubyte"),
    ),
    "test": (
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"),
    ),
}


def idx(array, kind=0x08):
    array = np.asarray(array, dtype=np.uint8)
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape) + array.tobytes()


def grey(n=12, seed=0, side=28):
    """Noise with labels 0, 1, ..., 9, 0, ..."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, side, side)).astype(np.uint8), (np.arange(n) % 10).astype(np.uint8)


def write_idx(folder, split, images, labels, *, spelling=0, zipped=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(SPELLINGS[split][spelling], (images, labels), strict=True):
        content = idx(array)
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)


def colours(n=3, seed=0):
    """Rows as CIFAR-10 has them, (n, 3072), and labels."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3072)).astype(np.uint8), rng.integers(0, 10, n)


def picture(row):
    """One row as an image, (32, 32, 3), pixel by pixel."""
    image = np.zeros((32, 32, 3), dtype=np.uint8)
    for channel in range(3):
        for i in range(32):
            for j in range(32):
                image[i, j, channel] = row[1024 * channel + 32 * i + j]
    return image


def binary_batch(rows, labels):
    return b"".join(bytes([label]) + row.tobytes() for label, row in zip(labels, rows, strict=True))


def short(text):
    """A text of Python 2, in a pickle."""
    return b"U" + bytes([len(text)]) + text


def number(value):
    return b"J" + struct.pack("<i", value)


def array_of_bytes(array, kind=b"u1"):
    """A NumPy array as Python 2 pickled it."""
    shape = b"(" + b"".join(map(number, array.shape)) + b"t"
    dtype = b"cnumpy\ndtype\n" + short(kind) + b"K\x00K\x01\x87R" + b"(K\x03" + short(b"|") + b"NNN"
    dtype += number(-1) + number(-1) + b"K\x00tb"
    content = array.tobytes()
    begin = b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
    return begin + b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(content)) + content + b"tb"


def python2_batch(rows, labels, **others):
    """A batch as the publishers wrote it: protocol 2 of Python 2."""
    names = [f"image_{k}.png".encode() for k in range(len(rows))]
    entries = {
        b"batch_label": short(b"training batch 1 of 5"),
        b"labels": b"]q\x02(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e",
        b"data": array_of_bytes(rows),
        b"filenames": b"](" + b"".join(map(short, names)) + b"e",
    } | {name.encode(): value for name, value in others.items()}
    return b"\x80\x02}q\x00(" + b"".join(short(name) + value for name, value in entries.items()) + b"u."
