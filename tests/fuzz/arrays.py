"""Hostile arrays: of every scale, degenerate in every way, and in every wrapping that a user may have them in."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from fuzz.source import Source

Shape = tuple[int, ...]

EPS = float(np.finfo(np.float64).eps)
SIZES = (
    1.0,
    1e-8,
    1e8,
    1.0 + EPS,
    1e-154,
    1e154,
    1e-170,
    1e170,
    1e-200,
    1e200,
    1e-300,
    1e300,
    1e-308,
    5e-324,
    1.7e308,
)
ENTRIES = (0.0, -0.0, *SIZES, *(-size for size in SIZES))
GRAIN = 2**20


def finite(src: Source, shape: Shape) -> np.ndarray:
    """An array of finite float64 numbers."""
    return np.asarray(src.choose(STYLES)(src, shape))


def anything(src: Source, shape: Shape) -> Any:
    """What a user may give where an array of this shape is wanted: mostly such an array, else something else."""
    array = finite(src, shape)
    if src.rarely(8):
        return src.choose(WRAPPINGS)(src, array)
    return array


def whole_numbers(src: Source, shape: Shape) -> np.ndarray:
    """From -2 to 2: ties, zeros, duplicates."""
    count = int(np.prod(shape))
    return np.array([float((i + 2) % 5 - 2) for i in src.indices(5, count)]).reshape(shape)


def uniform(src: Source, shape: Shape) -> np.ndarray:
    """Between -1 and 1, in general position."""
    count = int(np.prod(shape))
    return np.array([1.0 - 2.0 * i / GRAIN for i in src.indices(GRAIN, count)]).reshape(shape)


def one_scale(src: Source, shape: Shape) -> np.ndarray:
    """The same, very large or very small."""
    return _times(uniform(src, shape), src.choose(SIZES))


def row_scales(src: Source, shape: Shape) -> np.ndarray:
    """A scale of its own for every row."""
    rows = shape[:-1] if shape else ()
    scales = [src.choose(SIZES) for _ in range(int(np.prod(rows)))]
    return _times(uniform(src, shape), np.array(scales).reshape(*rows, 1) if shape else src.choose(SIZES))


def column_scales(src: Source, shape: Shape) -> np.ndarray:
    """A scale of its own for every column."""
    scales = [src.choose(SIZES) for _ in range(shape[-1] if shape else 1)]
    return _times(uniform(src, shape), np.array(scales) if shape else scales[0])


def mixed_entries(src: Source, shape: Shape) -> np.ndarray:
    """Every entry its own extreme."""
    count = int(np.prod(shape))
    return np.array([src.choose(ENTRIES) for _ in range(count)]).reshape(shape)


def constant_column(src: Source, shape: Shape) -> np.ndarray:
    """One column is the same everywhere, and may be huge."""
    array = uniform(src, shape)
    if array.ndim and array.shape[-1]:
        array[..., src.index(array.shape[-1])] = src.choose(ENTRIES)
    return array


def duplicates(src: Source, shape: Shape) -> np.ndarray:
    """Rows that are copies of one another."""
    array = uniform(src, shape)
    if array.ndim < 2 or not array.size:
        return array
    for row in array.reshape(-1, shape[-2], shape[-1]):
        row[:] = row[src.indices(len(row), len(row))]
    return array


def dependent_rows(src: Source, shape: Shape) -> np.ndarray:
    """Rows that are small multiples of the first one."""
    array = whole_numbers(src, shape)
    if array.ndim < 2 or not array.size:
        return array
    multiples = [float((i + 1) % 4 - 2) for i in src.indices(4, int(np.prod(shape[:-1])))]
    return array.reshape(-1, shape[-1])[0] * np.array(multiples).reshape(*shape[:-1], 1)


def nearly_equal(src: Source, shape: Shape) -> np.ndarray:
    """All but equal: differences in the last digits."""
    base = uniform(src, shape[-1:] if shape else ())
    return base * (1.0 + EPS * np.rint(3.0 * uniform(src, shape)))


def all_zero(src: Source, shape: Shape) -> np.ndarray:
    """Nothing but zeros, of either sign."""
    return np.zeros(shape) * src.choose((1.0, -1.0))


STYLES: tuple[Callable[[Source, Shape], np.ndarray], ...] = (
    whole_numbers,
    uniform,
    one_scale,
    row_scales,
    column_scales,
    mixed_entries,
    constant_column,
    duplicates,
    dependent_rows,
    nearly_equal,
    all_zero,
    uniform,
)


def _times(array: np.ndarray, scale: Any) -> np.ndarray:
    """The product, kept within float64."""
    with np.errstate(over="ignore"):
        return np.clip(array * scale, -1.7e308, 1.7e308)


# -- Wrappings: the same numbers in another form, or no numbers at all.


def _with_entry(entry: float) -> Callable[[Source, np.ndarray], Any]:
    def wrapped(src: Source, array: np.ndarray) -> Any:
        array = array.copy()
        if array.size:
            array.reshape(-1)[src.index(array.size)] = entry
        return array

    return wrapped


def _ragged(src: Source, array: np.ndarray) -> Any:
    nested = array.tolist()
    if array.ndim < 2 or not array.size:
        return [nested, [nested]]
    inner = nested
    while isinstance(inner[0][0], list):
        inner = inner[0]
    inner[0] = inner[0][:-1]
    return nested


def _objects(src: Source, array: np.ndarray) -> Any:
    found = array.astype(object)
    if found.size:
        found.reshape(-1)[0] = src.choose((Fraction(1, 3), 2, None, "x", 10**25, [1], object(), 1j, b"x", np.nan))
    return found


def _masked(src: Source, array: np.ndarray) -> Any:
    hidden = np.zeros(array.shape, dtype=bool)
    if array.size and src.index(2):
        hidden.reshape(-1)[src.index(array.size)] = True
    return np.ma.masked_array(array, mask=hidden)


def _memory_mapped(src: Source, array: np.ndarray) -> Any:
    if not array.size:
        return array
    mapped = np.memmap(_scratch() / f"mapped{src.index(4)}", dtype=np.float64, mode="w+", shape=array.shape or (1,))
    mapped[...] = array
    return mapped


@cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="attnlab-fuzz-"))


def _less_precise(dtype: Any) -> Callable[[Source, np.ndarray], Any]:
    def wrapped(src: Source, array: np.ndarray) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(dtype)

    return wrapped


def _many_digits(src: Source, array: np.ndarray) -> Any:
    return np.full(array.shape, src.choose((2**53 + 1, 2**62, -(2**63), 3)), dtype=np.int64)


def _jax(src: Source, array: np.ndarray) -> Any:
    with np.errstate(over="ignore"):
        return jnp.asarray(array)  # float32 for users who did not switch to 64 bits


def _every_second(src: Source, array: np.ndarray) -> Any:
    return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array


def _read_only(src: Source, array: np.ndarray) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


def _other_shape(src: Source, array: np.ndarray) -> Any:
    ways = (
        lambda: array[None],
        lambda: array.reshape(-1),
        lambda: np.moveaxis(array, 0, -1) if array.ndim else array,
        lambda: array[:0] if array.ndim else array,
        lambda: np.concatenate([array, array]) if array.ndim else np.array([array, array]),
        lambda: array[..., :0] if array.ndim else array,
        lambda: np.zeros((0,) * array.ndim),
        lambda: np.zeros((1,) * 6),
        lambda: array.sum(),
    )
    with np.errstate(all="ignore"):
        return src.choose(ways)()


def _no_array(src: Source, array: np.ndarray) -> Any:
    return src.choose(
        (
            None,
            0,
            1.0,
            "abc",
            "",
            [],
            {},
            {"x": 1},
            set(),
            b"x",
            object(),
            ...,
            slice(None),
            10**25,
            True,
            1j,
            [[]],
            [None],
            ["a"],
            (x for x in ()),
            np.datetime64("2020-01-01"),
            np.array("2"),
            range(3),
            len,
            np.nan,
            np.inf,
            int,
            [[1.0, "a"]],
            np.zeros((2, 2), dtype=[("a", float)]),
            Unreadable(),
        )
    )


class Unreadable:
    """An object whose conversions all fail in their own way."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("not now")

    def __float__(self) -> float:
        raise RuntimeError("never")

    def __repr__(self) -> str:
        raise RuntimeError("no words either")


WRAPPINGS: tuple[Callable[[Source, np.ndarray], Any], ...] = (
    lambda src, array: array.tolist(),
    lambda src, array: array > 0,
    lambda src, array: array.astype(str),
    lambda src, array: array + 1j,
    lambda src, array: np.asfortranarray(array),
    lambda src, array: array[..., ::-1] if array.ndim else array,
    _with_entry(np.nan),
    _with_entry(np.inf),
    _with_entry(-np.inf),
    _ragged,
    _objects,
    _masked,
    _memory_mapped,
    _less_precise(np.float16),
    _less_precise(np.float32),
    _less_precise(ml_dtypes.bfloat16),
    _many_digits,
    _jax,
    _every_second,
    _read_only,
    _other_shape,
    _other_shape,
    _no_array,
    _no_array,
)
