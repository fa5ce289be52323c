"""Cases of the images in `attnlab.data`."""

from __future__ import annotations

import gzip
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import attnlab as al
from fuzz.arrays import anything
from fuzz.calls import Call, case
from fuzz.material import sequences
from fuzz.scalars import choice, flag, junk, number, or_junk, positive, seed, some_of
from fuzz.source import Source

BYTES = 256
# Where a file is cut off: nowhere, within its header, within its numbers.
CUTS = (None, 0, 3, 7, 15, 400, -1)


def pixels(src: Source, n: int, height: int, width: int, channels: int) -> np.ndarray:
    """Bytes, or floats from 0 to 1."""
    count = n * height * width * channels
    drawn = np.array(src.indices(BYTES, count), dtype=np.uint8).reshape(n, height, width, channels)
    return drawn if src.index(3) else (drawn / 255).astype(src.choose((np.float64, np.float32)))


def images(src: Source) -> al.data.Images:
    """A few small ones, of few classes, some of them perhaps empty."""
    n, height, width = src.choose((3, 1, 5)), src.choose((4, 1, 6)), src.choose((4, 2, 3))
    labels = [src.index(3) for _ in range(n)]
    classes = src.choose((None, None, 3, 4)) if max(labels) < 3 else None
    return al.data.Images(pixels=pixels(src, n, height, width, src.choose((1, 3))), y=labels, classes=classes)


@case("data.Images", weight=8)
def make_images(src: Source) -> Call:
    n, height, width, channels = (src.choose((2, 1, 3)) for _ in range(4))
    plain = pixels(src, n, height, width, channels)
    shape = plain.shape if src.index(2) else plain.shape[:3]
    given = plain if src.index(2) else anything(src, shape)
    y: Any = [src.index(3) for _ in range(n)]
    kwargs = {"pixels": given, "y": anything(src, (n,)) if src.rarely(4) else y}
    kwargs |= some_of(src, {"classes": or_junk(lambda src: src.choose((3, 4, 1, 10**6, 10**12)))})
    if src.rarely(8):
        kwargs["info"] = src.choose((None, {}, {"source": object()}, [], 3, "ab"))
    return Call(al.data.Images, (), kwargs)


def normalisation(src: Source, plain: Any) -> Any:
    """One number, or as many as there may be channels; mostly of a common size."""
    if src.index(3):
        return src.choose((0.5, 0.1307, 2.0, 1e-9, 1e5))
    return plain(src) if src.index(2) else [plain(src) for _ in range(src.choose((3, 1, 2)))]


def judged(call: Call, found: Any) -> str | None:
    """Patches lead back to the images that they are of."""
    data = call.facts["images"]
    again = al.data.Images.from_patches(found)
    if (again.y != data.y).any() or again.classes != data.classes or again.pixels.shape != data.pixels.shape:
        return "other labels or sizes come back"
    exact = data.pixels.dtype == np.uint8
    far = np.abs(again.pixels.astype(float) - data.pixels.astype(float)).max()
    return None if far <= (0 if exact else 1e-9) else "other pixels come back"


@case("data.Images.patches", weight=6, judge=judged)
def patches(src: Source) -> Call:
    data = images(src)
    size = or_junk(lambda src: src.choose((1, 2, 4, 3, 6, 10**12)))(src)
    options = {"mean": lambda src: normalisation(src, number), "std": lambda src: normalisation(src, positive)}
    return Call(data.patches, (size,), some_of(src, options), {"images": data})


@case("data.Images.from_patches", weight=3)
def from_patches(src: Source) -> Call:
    data = images(src).patches(1)
    info = dict(data.info)
    for name in ("height", "width", "channels", "patch", "classes", "mean", "std", "bytes"):
        if src.rarely(6):
            info[name] = junk(src)
    changed = al.Sequences(x=data.x * src.choose((1, 1, 2, -1)), y=data.y + src.choose((0, 0, 0.5, -1)), info=info)
    return Call(al.data.Images.from_patches, (src.choose((changed, changed, changed, sequences(src), None, 5)),))


@case("data.Images.take", weight=4)
def take(src: Source) -> Call:
    data = images(src)
    several: Any = src.choose(
        ([0], [0, 0, -1], np.zeros(data.n, dtype=bool), np.ones(data.n, dtype=bool), [9], slice(2))
    )
    which = src.choose((1, 2, data.n, data.n + 1, several)) if src.index(6) else junk(src)
    return Call(data.take, (which,), some_of(src, {"seed": seed, "balanced": flag}))


@case("data.Images.only", weight=3)
def only(src: Source) -> Call:
    data = images(src)
    classes = src.choose(((0,), (0, 1), [2, 0], (1, 1), (9,), (-1,), (), np.array([1]), {0, 1}, "01", range(2)))
    return Call(data.only, (junk(src) if src.rarely(5) else classes,))


@cache
def folder_of_files() -> Path:
    """One for all calls of a process; gone with its temporary folder."""
    keeper = tempfile.TemporaryDirectory(prefix="attnlab-fuzz-")
    _KEPT.append(keeper)
    return Path(keeper.name)


_KEPT: list[Any] = []


def idx_file(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def damaged(src: Source, content: bytes) -> bytes:
    """Mostly whole; else cut off, or with a byte of another value."""
    if not src.rarely(4):
        return content
    content = content[: src.choose(CUTS)]
    if src.index(2) and content:
        place = src.index(min(len(content), 64))
        content = content[:place] + bytes([src.index(BYTES)]) + content[place + 1 :]
    return content


def empty_folder(src: Source) -> Path:
    """A folder with nothing left of the call before."""
    folder = folder_of_files()
    for path in folder.iterdir():
        path.unlink()
    return folder


def some_folder(src: Source, made: Path) -> Any:
    """Never None: that would look for the user's own files, and download them."""
    nowhere = ("/nowhere", 5, "", "/dev/null", b"x", 1.5, object(), "a\0", "~nobody", "x" * 400, "/dev")
    return src.choose(nowhere) if src.rarely(6) else src.choose((made, str(made)))


split = choice("train", "test")


@case("data.mnist", weight=2, covers=("data.fashion_mnist",))
def mnist(src: Source) -> Call:
    folder, begin = empty_folder(src), src.choose(("train", "t10k"))
    side, n = 28, src.choose((3, 1, 2))
    if src.rarely(8):
        side, n = src.choose((27, 0, 28)), src.choose((0, 1))
    numbers = np.arange(n * side * side).reshape(n, side, side) % BYTES
    labels = np.array([src.choose((0, 1, 9)) for _ in range(n)], dtype=np.uint8)
    if src.rarely(8):
        labels = src.choose((labels + 9, labels[:-1], np.array([3, 4, 5, 6])))
    for name, array in ((f"{begin}-images-idx3-ubyte", numbers), (f"{begin}-labels.idx1-ubyte", labels)):
        content = damaged(src, idx_file(array))
        if src.rarely(3):
            (folder / f"{name}.gz").write_bytes(damaged(src, gzip.compress(content)))
        else:
            (folder / name).write_bytes(content)
    function = src.choose((al.data.mnist, al.data.fashion_mnist))
    there = "train" if begin == "train" else "test"
    return Call(function, (some_folder(src, folder), split(src) if src.rarely(4) else there))


def batch_files(src: Source, rows: np.ndarray, labels: list[int]) -> dict[str, bytes]:
    """A batch for the test, in one of the forms."""
    import io
    import pickle

    form = src.index(4)
    if form == 0:
        return {"test_batch.bin": b"".join(bytes([k]) + row.tobytes() for k, row in zip(labels, rows, strict=True))}
    if form == 1:
        file = io.BytesIO()
        np.savez(file, x_test=rows.reshape(-1, 32, 32, 3), y_test=np.array(labels))
        return {"some.npz": file.getvalue()}
    held = {b"data": rows, b"labels": labels, b"batch_label": src.choose((b"a", "text", b"b", junk, 1.5, [[]]))}
    return {"test_batch": pickle.dumps(held, src.choose((2, 3, 4, 2, 5, 0)))}


@case("data.cifar10", weight=2)
def cifar10(src: Source) -> Call:
    folder = empty_folder(src)
    n = src.choose((2, 1, 3))
    rows = (np.arange(n * 3072) % BYTES).astype(np.uint8).reshape(n, 3072)
    labels = [10 if src.rarely(15) else src.choose((0, 3, 9)) for _ in range(n)]
    for name, content in batch_files(src, rows, labels).items():
        (folder / name).write_bytes(damaged(src, content))
    return Call(al.data.cifar10, (some_folder(src, folder), split(src) if src.rarely(4) else "test"))


@case("data.digits", weight=0.3)
def digits(src: Source) -> Call:
    return Call(al.data.digits, (split(src),))
