"""`Images`: pictures with class labels, and the patches of them that an attention model reads as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import enough_memory, finite_array, instance, numpy_array, shown, whole, whole_array
from attnlab.data.sequences import Sequences
from attnlab.data.taking import taken
from attnlab.data.tokens import Array, facts_about
from attnlab.errors import InputError, message

BRIGHTEST = 255  # of a byte; scaled, 1
# While patches are made there are two float64 numbers a pixel, and two booleans of the check for finite ones.
COPIES = 2.25
# Beside a mean further off than this, pixels from 0 to 1 would lose their digits.
FARTHEST = 1e6
EXTREME = 1e100  # deviations from one over this to this
# Pixels that came back from normalised ones may leave [0, 1] by rounding, and by no more.
ROUNDING = 1e-9
LAYOUT = ("height", "width", "channels", "patch")
UNIT_HINT = "bytes 0 to 255 as pixels.astype(np.uint8), or floats from 0 to 1 as pixels / pixels.max()"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Images:
    """Pictures of one size with class labels, checked once and then frozen.

    Args:
        pixels: shape (n, height, width, channels), or (n, height, width) for one channel. Bytes (uint8, 0 to 255) stay
            bytes, which take an eighth of the memory; floats go from 0 to 1, and float32 stays float32.
        y: class labels, whole numbers from 0, shape (n,).
        classes: how many classes there are; default: one more than the largest label.
        info: where the pictures came from (source, split, ...); never used in computing.

    >>> import numpy as np, attnlab as al
    >>> al.data.Images(pixels=np.zeros((3, 8, 8), dtype=np.uint8), y=[0, 2, 1])
    Images(n=3, 8 x 8 x 1, classes=3)
    """

    pixels: NDArray[Any]
    y: NDArray[np.intp]
    classes: int
    info: Mapping[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        *,
        pixels: ArrayLike,
        y: ArrayLike,
        classes: int | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        pixels_ = _pixel_array(pixels)
        y_, count = _labels(y, classes, len(pixels_))
        for name, value in (("pixels", pixels_), ("y", y_)):
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        object.__setattr__(self, "classes", count)
        object.__setattr__(self, "info", facts_about(info))

    @property
    def n(self) -> int:
        """Number of pictures."""
        return self.pixels.shape[0]

    @property
    def height(self) -> int:
        """Rows of pixels."""
        return self.pixels.shape[1]

    @property
    def width(self) -> int:
        """Columns of pixels."""
        return self.pixels.shape[2]

    @property
    def channels(self) -> int:
        """Numbers per pixel: 1 for grey, 3 for red, green and blue."""
        return self.pixels.shape[3]

    @property
    def counts(self) -> NDArray[np.intp]:
        """Pictures of each class, shape (classes,)."""
        return np.bincount(self.y, minlength=self.classes)

    def patches(self, size: int, *, mean: ArrayLike | None = None, std: ArrayLike | None = None) -> Sequences:
        """Every picture as a sequence of square patches, the tokens of a vision transformer.

        Patches go row by row over the grid, and the numbers of a patch by row, column and channel: x has shape
        (n, T, d) with T = (height / size)(width / size) and d = size^2 channels. Each number is (p - mean) / std, where
        p is the pixel scaled to [0, 1].

        Args:
            size: pixels along a side of a patch; must divide height and width.
            mean, std: one number each, or one per channel; default: nothing is subtracted or divided.

        Returns:
            `al.Sequences` with the class labels as `y`. To `info` come `height`, `width`, `channels`, `patch`,
            `classes`, `mean` and `std` (per channel) and `bytes` (were pixels bytes?), which lead `from_patches` back.

        >>> import numpy as np, attnlab as al
        >>> pictures = al.data.Images(pixels=np.zeros((3, 28, 28), dtype=np.uint8), y=[0, 2, 1])
        >>> pictures.patches(7, mean=0.1307, std=0.3081)
        Sequences(n=3, T=16, d=49)
        """
        side = self._side(size)
        mean_, std_ = _normalisation(0.0 if mean is None else mean, 1.0 if std is None else std, self.channels)
        enough_memory(COPIES * self.pixels.size, f"`patches` of {self.n} images", "images.take(...) of fewer")
        rows, columns = self.height // side, self.width // side
        grid = self.pixels.reshape(self.n, rows, side, columns, side, self.channels)
        tokens = grid.swapaxes(2, 3).astype(np.float64)  # (n, rows, columns, side, side, channels)
        if self.pixels.dtype == np.uint8:
            tokens /= BRIGHTEST
        tokens -= mean_
        tokens /= std_
        facts = {
            "height": self.height,
            "width": self.width,
            "channels": self.channels,
            "patch": side,
            "classes": self.classes,
            "mean": mean_.tolist(),
            "std": std_.tolist(),
            "bytes": self.pixels.dtype == np.uint8,
        }
        x = tokens.reshape(self.n, rows * columns, side * side * self.channels)
        return Sequences(x=x, y=self.y, info={**self.info, **facts})

    @classmethod
    def from_patches(cls, sequences: Sequences) -> Images:
        """The pictures that `patches` made these sequences of: exactly where pixels were bytes, else up to rounding.

        >>> import numpy as np, attnlab as al
        >>> pictures = al.data.Images(pixels=np.arange(32, dtype=np.uint8).reshape(2, 4, 4), y=[0, 1])
        >>> again = al.data.Images.from_patches(pictures.patches(2, mean=0.5, std=0.25))
        >>> bool((again.pixels == pictures.pixels).all())
        True
        """
        data = instance("sequences", sequences, Sequences, "al.Sequences of patches", "images.patches(4)")
        height, width, channels, side = _layout(data)
        rows, columns = height // side, width // side
        if data.x.shape[1:] != (rows * columns, side * side * channels):
            wanted = f"(n, {rows * columns}, {side * side * channels})"
            raise InputError(
                message(f"`sequences` have x of shape {data.x.shape}; their layout in `info` wants {wanted}.")
            )
        grid = data.x.reshape(data.n, rows, columns, side, side, channels)
        mean, std = _normalisation(data.info["mean"], data.info["std"], channels)
        pixels = _unscaled(grid.swapaxes(2, 3).reshape(data.n, height, width, channels), mean, std)
        if data.info.get("bytes") is True:  # whatever else stands there is not ours
            pixels = np.rint(BRIGHTEST * pixels).astype(np.uint8)
        gone = (*LAYOUT, "classes", "mean", "std", "bytes")
        info = {name: fact for name, fact in data.info.items() if name not in gone}
        return cls(pixels=pixels, y=_whole_labels(data.y), classes=data.info.get("classes"), info=info)

    def take(self, which: int | ArrayLike, *, seed: int | None = None, balanced: bool = False) -> Images:
        """Some of the pictures: so many of them, or those of given numbers.

        Args:
            which: how many; or the numbers of pictures, in the order wanted, or one boolean per picture.
            seed: with a count: pictures at random, without any twice; None for the first ones.
            balanced: with a count: classes take turns, so that the number of pictures of any two differs by at most 1.

        With one seed (or none) the fewer are the beginning of the more: `take(10, seed=0)` are the first ten of
        `take(100, seed=0)`. The number of classes stays.

        >>> import numpy as np, attnlab as al
        >>> pictures = al.data.Images(pixels=np.zeros((6, 4, 4), dtype=np.uint8), y=[0, 0, 0, 0, 1, 1])
        >>> pictures.take(4, balanced=True).y
        array([0, 1, 0, 1])
        """
        return self._picked(taken(self.y, self.classes, which, seed, balanced, "images"))

    def only(self, classes: Sequence[int] | ArrayLike) -> Images:
        """The pictures of some classes, which become classes 0, 1, ... in the order given.

        `info["only"]` keeps the numbers that the classes had at first; their `names`, if there are any, go along.

        >>> import numpy as np, attnlab as al
        >>> pictures = al.data.Images(pixels=np.zeros((4, 2, 2), dtype=np.uint8), y=[0, 7, 3, 7])
        >>> pictures.only((7, 0)).y
        array([1, 0, 0])
        """
        wanted = f"class numbers from 0 to {self.classes - 1}, each once"
        chosen = whole_array("classes", classes, wanted)
        if chosen.ndim != 1 or not chosen.size or chosen.min() < 0 or chosen.max() >= self.classes:
            raise InputError(message(f"`classes` is {shown(classes)}; wanted {wanted}.", "images.only((0, 1))"))
        if len(np.unique(chosen)) < len(chosen):
            raise InputError(message(f"`classes` is {shown(classes)}, with one twice; wanted {wanted}."))
        empty = chosen[self.counts[chosen] == 0]
        if empty.size:
            there = ", ".join(map(str, np.flatnonzero(self.counts)))
            raise InputError(message(f"`classes` has {empty[0]}, of which there is no image.", f"there are: {there}"))
        number = np.full(self.classes, -1)
        number[chosen] = np.arange(len(chosen))
        kept = number[self.y] >= 0
        info = {"only": list(range(self.classes)), **self.info}
        for name in ("only", "names"):  # what is said of each class
            if isinstance(info.get(name), list) and len(info[name]) == self.classes:
                info[name] = [info[name][one] for one in chosen]
        return Images(pixels=self.pixels[kept], y=number[self.y[kept]], classes=len(chosen), info=info)

    def _picked(self, places: NDArray[np.intp]) -> Images:
        return Images(pixels=self.pixels[places], y=self.y[places], classes=self.classes, info=self.info)

    def _side(self, size: Any) -> int:
        side = whole("size", size)
        if self.height % side or self.width % side:
            common = np.gcd(self.height, self.width)
            fitting = [s for s in range(1, common + 1) if common % s == 0]
            raise InputError(
                message(
                    f"`size` is {shown(side)}, which does not divide images of {self.height} x {self.width} pixels.",
                    f"sizes that do: {', '.join(map(str, fitting))}",
                )
            )
        return side

    def __repr__(self) -> str:
        parts = [f"n={self.n}", f"{self.height} x {self.width} x {self.channels}", f"classes={self.classes}"]
        origin = [str(self.info[name]) for name in ("source", "split") if name in self.info]
        if origin:
            parts.append(" ".join(origin))
        return f"Images({', '.join(parts)})"


def _pixel_array(pixels: ArrayLike) -> NDArray[Any]:
    """Bytes or floats from 0 to 1, (n, height, width, channels), fresh."""
    given = numpy_array("pixels", pixels)
    if given.dtype == np.uint8:
        array = np.array(given)
    elif given.dtype.kind in "iub":
        raise InputError(message(f"`pixels` have type {given.dtype}; wanted uint8, or floats.", UNIT_HINT))
    else:
        array = finite_array("pixels", pixels)
        if given.dtype == np.float32:
            array = array.astype(np.float32)
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or 0 in array.shape:
        wanted = "(n, height, width, channels), or (n, height, width), with no empty axis"
        raise InputError(message(f"`pixels` have shape {array.shape}; wanted {wanted}."))
    if array.dtype != np.uint8 and (array.min() < 0 or array.max() > 1):
        problem = f"`pixels` go from {array.min():g} to {array.max():g}; wanted floats from 0 to 1, or uint8."
        raise InputError(message(problem, UNIT_HINT))
    return array


def _labels(y: ArrayLike, classes: int | None, n: int) -> tuple[NDArray[np.intp], int]:
    """Labels (n,), and the number of classes."""
    array = whole_array("y", y, "class labels: whole numbers from 0")
    if array.shape != (n,):
        raise InputError(message(f"`y` has shape {array.shape}; {n} images need labels of shape ({n},)."))
    count = whole("classes", int(array.max()) + 1 if classes is None else classes)
    outside = array[(array < 0) | (array >= count)]
    if outside.size:
        problem = f"`y` holds {outside[0]}; labels of {count} classes go from 0 to {count - 1}."
        raise InputError(message(problem, "images.only(...) renumbers classes"))
    # Counts per class are an array of as many numbers.
    enough_memory(count, f"`classes` = {count}", "labels go from 0 to the number of classes")
    return array, count


def _normalisation(mean: ArrayLike, std: ArrayLike, channels: int) -> tuple[Array, Array]:
    """Mean and deviation per channel, (channels,), of sizes that leave the pixels their digits."""
    mean_, std_ = _per_channel("mean", mean, channels), _per_channel("std", std, channels)
    if np.abs(mean_).max() > FARTHEST:
        raise InputError(message(f"`mean` is {shown(mean)}; wanted numbers from -{FARTHEST:g} to {FARTHEST:g}."))
    if std_.min() < 1 / EXTREME or std_.max() > EXTREME:
        raise InputError(message(f"`std` is {shown(std)}; wanted numbers from {1 / EXTREME:g} to {EXTREME:g}."))
    return mean_, std_


def _per_channel(name: str, value: Any, channels: int) -> Array:
    """One number per channel, (channels,), of one or of as many."""
    array = finite_array(name, value)
    if array.shape not in ((), (channels,)):
        wanted = f"one number, or one per channel: ({channels},)"
        raise InputError(message(f"`{name}` has shape {array.shape}; wanted {wanted}."))
    return np.array(np.broadcast_to(array, (channels,)))


def _layout(data: Sequences) -> tuple[int, int, int, int]:
    """Height, width, channels and size of a patch, from `info`."""
    missing = [name for name in (*LAYOUT, "mean", "std") if name not in data.info]
    if missing or data.trials is not None:
        lack = f"lack {', '.join(missing)} in `info`" if missing else f"have {data.trials} trials"
        raise InputError(message(f"`sequences` {lack}; wanted what `Images.patches` returns.", "images.patches(4)"))
    height, width, channels, side = (whole(f"info['{name}']", data.info[name]) for name in LAYOUT)
    if height % side or width % side:
        raise InputError(message(f"`info` has patches of {shown(side)} in images of {shown(height)} x {shown(width)}."))
    return height, width, channels, side


def _unscaled(pixels: Array, mean: Array, std: Array) -> Array:
    """Pixels from 0 to 1 of normalised ones; what lies outside by rounding alone is taken back."""
    with np.errstate(over="ignore"):
        scaled = pixels * std + mean
    if scaled.min() < -ROUNDING or scaled.max() > 1 + ROUNDING:
        raise InputError(
            message(
                f"`sequences` have x that is no image: with `mean` and `std` undone it goes from {scaled.min():g} to "
                f"{scaled.max():g}; wanted 0 to 1.",
            )
        )
    return np.clip(scaled, 0.0, 1.0)


def _whole_labels(y: Array) -> NDArray[np.intp]:
    if (y != np.rint(y)).any() or np.abs(y).max() > np.iinfo(np.int32).max:
        raise InputError(message("`sequences` have labels `y` that are no class numbers; wanted whole numbers from 0."))
    return y.astype(np.intp)
