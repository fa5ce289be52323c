"""The one door for what users give: arrays, numbers, choices. Each returns what was given, checked and converted."""

from __future__ import annotations

import numbers
import os
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.errors import InputError, message

Array = NDArray[np.float64]
Kind = TypeVar("Kind")

EXACT = 2**53  # whole numbers up to this are float64 numbers
SPARE = 0.8  # of the memory that is free, the part that one call may take


def real_array(name: str, value: ArrayLike) -> Array:
    """A fresh float64 array of what NumPy can read: lists, arrays, data frames, JAX and torch tensors.

    Refused, by name: ragged lists, text, complex numbers, times, masked entries, objects that are no numbers, and whole
    numbers that float64 would round.

    >>> real_array("x", [[1, 2], [3, 4]]).dtype.name
    'float64'
    >>> real_array("x", [[1, 2], [3]])
    Traceback (most recent call last):
    attnlab.errors.InputError: `x` is a ragged list; wanted an array of real numbers.
    <BLANKLINE>
    hint: all rows must have one length; pad them, and hide the padding with `mask`
    """
    given = _as_numpy(name, value)
    if given.dtype == object:
        return _from_objects(name, given)
    if given.dtype.kind in "iu":
        _check_exact(name, given)
    elif given.dtype.kind not in "bf" and not _is_small_float(given.dtype):
        raise InputError(_not_real(name, f"has type {given.dtype}", _HINTS.get(given.dtype.kind)))
    return np.array(given, dtype=np.float64)


def finite_array(name: str, value: ArrayLike) -> Array:
    """A fresh float64 array without NaN or infinity."""
    array = real_array(name, value)
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        place = f", the first at index {where}" if where else ""
        raise InputError(
            message(
                f"`{name}` has {int(bad.sum())} entries that are NaN or infinite{place}; all must be finite.",
                "float64 numbers end at 1.8e308; leave unknown entries out, or hide them with a mask",
            )
        )
    return array


def whole_array(name: str, value: ArrayLike, wanted: str = "whole numbers") -> NDArray[np.intp]:
    """An array of whole numbers, of any integer type; floats and booleans are refused."""
    given = _as_numpy(name, value)
    if given.dtype == object and all(_is_whole(entry) for entry in given.flat):
        given = _within_index(name, given)
    if given.dtype.kind not in "iu":
        raise InputError(message(f"`{name}` has type {given.dtype}; wanted {wanted}.", "np.asarray(..., dtype=int)"))
    return _within_index(name, given)


def boolean_array(name: str, value: ArrayLike, wanted: str = "booleans, or 0 and 1") -> NDArray[np.bool_]:
    """An array of booleans, given as such or as 0 and 1."""
    given = _as_numpy(name, value)
    if given.dtype == bool:
        return given.copy()
    if given.dtype.kind not in "iuf" or not ((given == 0) | (given == 1)).all():
        raise InputError(message(f"`{name}` is not boolean; wanted {wanted}."))
    return given.astype(bool)


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """A whole number, at least (and at most) this large; True is none.

    >>> whole("steps", np.int64(3))
    3
    """
    in_range = _is_whole(value) and value >= least and (most is None or value <= most)
    if not in_range:
        upper = "" if most is None else f" and at most {most}"
        raise InputError(message(f"`{name}` is {shown(value)}; wanted a whole number at least {least}{upper}."))
    return int(value)


def number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> float:
    """A finite number in a range, as a Python float.

    >>> number("step", 0.1, above=0)
    0.1
    """
    found = _as_float(value)
    in_range = (
        found is not None
        and np.isfinite(found)
        and (least is None or found >= least)
        and (above is None or found > above)
        and (most is None or found <= most)
        and (below is None or found < below)
    )
    if not in_range:
        limits = {"at least": least, "above": above, "at most": most, "below": below}
        words = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if limit is not None)
        wanted = f"a finite number {words}".rstrip()
        raise InputError(message(f"`{name}` is {shown(value)}; wanted {wanted}."))
    assert found is not None
    return found


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse what is not one of the choices."""
    if not any(type(value) is type(one) and value == one for one in choices):
        raise InputError(message(f"`{name}` is {shown(value)}; wanted one of {', '.join(map(repr, choices))}."))


def instance(name: str, value: Any, kind: type[Kind], wanted: str, hint: str | None = None) -> Kind:
    """Refuse what is not an object of this class; `wanted` names the class as users know it."""
    if not isinstance(value, kind):
        raise InputError(message(f"`{name}` is {shown(value)}; wanted {wanted}.", hint))
    return value


def enough_memory(count: float, what: str, hint: str = "smaller sizes, or fewer trials at a time") -> None:
    """Refuse, before anything is allocated, what would not fit: `count` float64 numbers of `what`."""
    needed, free = 8.0 * count, free_memory()
    if needed > SPARE * free:
        raise InputError(
            message(f"{what} would take {_bytes(needed)}; {_bytes(free)} of memory are free.", hint),
        )


def free_memory() -> float:
    """Bytes that can be had without swapping; infinite where the system does not tell."""
    try:
        with open("/proc/meminfo") as lines:
            facts = dict(line.split(":", 1) for line in lines)
        return 1024.0 * float(facts["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * float(os.sysconf("SC_AVPHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return float("inf")


def shown(value: Any, most: int = 60) -> str:
    """A value as it stands in a message: short, and never a page of numbers."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {shape}"
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception:  # a foreign object's own fault must not hide ours
        return f"a {kind}"
    plain = isinstance(value, str | numbers.Number | bool | bytes | tuple | list | dict | None | np.generic)
    if not plain:
        return f"a {kind}"
    return text if len(text) <= most else f"{text[:most]}..."


def _as_numpy(name: str, value: ArrayLike) -> NDArray[Any]:
    """What NumPy makes of it, with its complaints in our words."""
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.getmaskarray(value).any():
            raise InputError(_not_real(name, "has masked entries", "value.filled(0.0), and `mask` for hidden tokens"))
        value = value.data
    try:
        return np.asarray(value)
    except ValueError as error:
        if "inhomogeneous" in str(error):
            hint = "all rows must have one length; pad them, and hide the padding with `mask`"
            raise InputError(_not_real(name, "is a ragged list", hint)) from error
        raise InputError(_not_real(name, f"is {shown(value)}", None)) from error
    except MemoryError as error:
        raise InputError(message(f"`{name}` does not fit into memory as an array.", "give less at a time")) from error
    except Exception as error:  # tensors of other libraries raise what they like
        raise InputError(_not_real(name, f"is a {type(value).__name__}", _tensor_hint(error))) from error


def _tensor_hint(error: Exception) -> str:
    text = str(error)
    if "requires grad" in text or "requires_grad" in text:
        return "value.detach()"
    if "Tracer" in type(error).__name__:
        return "inside jax.jit or jax.grad there are no numbers yet; call attnlab outside of it"
    if "BFloat16" in text or "device" in text:
        return "value.detach().float().cpu()"
    return "np.asarray(value) must give an array of numbers"


_HINTS = {
    "c": "value.real, if the imaginary part is zero",
    "U": "value.astype(float), if the text is numbers",
    "S": "value.astype(float), if the text is numbers",
}


def _not_real(name: str, what: str, hint: str | None) -> str:
    return message(f"`{name}` {what}; wanted an array of real numbers.", hint)


def _is_small_float(dtype: np.dtype[Any]) -> bool:
    """bfloat16 and the eight-bit floats, which NumPy knows only as foreign types."""
    return dtype.kind == "V" and "float" in dtype.name


def _from_objects(name: str, given: NDArray[Any]) -> Array:
    """Python numbers of any kind (also fractions and decimals), one by one."""
    found = np.empty(given.shape)
    for place, entry in np.ndenumerate(given):
        where = f" at index {place}" if place else ""
        if isinstance(entry, str | bytes) or entry is None or isinstance(entry, complex | np.complexfloating):
            raise InputError(_not_real(name, f"holds {shown(entry)}{where}", None))
        if _is_whole(entry) and abs(int(entry)) > EXACT:
            raise InputError(_too_exact(name))
        try:
            found[place] = float(entry)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            hint = "value.toarray()" if hasattr(entry, "toarray") else None
            raise InputError(_not_real(name, f"holds {shown(entry)}{where}", hint)) from error
    return found


def _check_exact(name: str, given: NDArray[Any]) -> None:
    if given.dtype.itemsize >= 8 and given.size and (given.max() > EXACT or given.min() < -EXACT):
        raise InputError(_too_exact(name))


def _too_exact(name: str) -> str:
    return message(
        f"`{name}` has whole numbers beyond 2^53, which float64 would round.",
        "value.astype(float), if rounding them is meant",
    )


def _within_index(name: str, given: NDArray[Any]) -> NDArray[np.intp]:
    limits = np.iinfo(np.intp)
    if given.size and (given.max() > limits.max or given.min() < limits.min):
        raise InputError(message(f"`{name}` has whole numbers beyond 2^63; wanted numbers of tokens or trials."))
    return given.astype(np.intp)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _as_float(value: Any) -> float | None:
    """A Python, NumPy or zero-dimensional number; None for all else."""
    if isinstance(value, bool | np.bool_ | str | bytes | complex | np.complexfloating) or np.ndim(value) != 0:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def _bytes(count: float) -> str:
    """A size for people.

    >>> _bytes(3e9)
    '3.0 GB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.1f} {unit}" if count < 1e6 else f"{count:.1e} {unit}"
