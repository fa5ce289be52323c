"""The one door for what users give: arrays, numbers, choices. Each returns what was given, checked and converted."""

from __future__ import annotations

import math
import numbers
import os
import reprlib
import warnings
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.errors import InputError, message

Array = NDArray[np.float64]
Kind = TypeVar("Kind")

EXACT = 2**53  # whole numbers up to this are float64 numbers
SPARE = 0.8  # of the memory that is free, the part that one call may take
SMALL = 1_000_000  # this many numbers always fit: nobody is asked how much memory is free
LARGEST = float(np.finfo(np.float64).max)
DEEPEST = 64  # NumPy's arrays have no more axes


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
    given = numpy_array(name, value)
    if given.dtype == object:
        return _from_objects(name, given)
    if given.dtype.kind in "iu":
        _check_exact(name, given)
    elif given.dtype.kind not in "bf" and not _is_small_number(given.dtype):
        raise InputError(_not_real(name, f"has type {given.dtype}", _HINTS.get(given.dtype.kind)))
    if given.dtype.kind == "f" and given.dtype.itemsize > 8:
        _check_range(name, given)
    enough_memory(given.size, f"`{name}` of shape {given.shape}", "give less at a time")
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
    given = numpy_array(name, value, wanted)
    if given.dtype == object and all(_is_whole(entry) for entry in given.flat):
        given = _within_index(name, given)
    if given.dtype.kind not in "iu":
        raise InputError(message(f"`{name}` has type {given.dtype}; wanted {wanted}.", "np.asarray(..., dtype=int)"))
    return _within_index(name, given)


def boolean_array(name: str, value: ArrayLike, wanted: str = "booleans, or 0 and 1") -> NDArray[np.bool_]:
    """An array of booleans, given as such or as 0 and 1."""
    given = numpy_array(name, value, wanted)
    if given.dtype == bool:
        return np.array(given)
    if given.dtype.kind not in "iuf":
        raise InputError(message(f"`{name}` is not boolean: it has type {given.dtype}; wanted {wanted}."))
    other = given[(given != 0) & (given != 1)]
    if other.size:
        raise InputError(message(f"`{name}` is not boolean: it holds {other.flat[0]:g}; wanted {wanted}."))
    return given.astype(bool)


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """A whole number, at least (and at most) this large; True is none.

    >>> whole("steps", np.int64(3))
    3
    """
    found = _as_whole(value)
    if found is None or found < least or (most is not None and found > most):
        upper = "" if most is None else f" and at most {most}"
        raise InputError(message(f"`{name}` is {shown(value)}; wanted a whole number at least {least}{upper}."))
    return found


def seeds(name: str, value: Any) -> int | list[int]:
    """A seed, or a list of seeds: one for each trial.

    >>> seeds("seed", 3), seeds("seed", np.arange(2))
    (3, [0, 1])
    """
    is_one = isinstance(value, np.ndarray) and value.ndim == 0
    if is_one or not isinstance(value, list | tuple | range | np.ndarray):
        return whole(name, value, 0)
    if not len(value):
        raise InputError(message(f"`{name}` is an empty list; wanted a seed, or one for each trial."))
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu" and value.min() >= 0:
        return value.tolist()  # thousands, of a block of a study
    return [whole(f"{name}[{i}]", one, 0) for i, one in enumerate(value)]


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
        and math.isfinite(found)
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
    if not any(_same_kind(value, one) and value == one for one in choices):
        raise InputError(message(f"`{name}` is {shown(value)}; wanted one of {', '.join(map(repr, choices))}."))


def flag(name: str, value: Any) -> bool:
    """True or False."""
    return bool(instance(name, value, bool | np.bool_, "True or False"))  # type: ignore[arg-type]


def instance(name: str, value: Any, kind: type[Kind], wanted: str, hint: str | None = None) -> Kind:
    """Refuse what is not an object of this class; `wanted` names the class as users know it."""
    if not is_a(value, kind):
        raise InputError(message(f"`{name}` is {shown(value)}; wanted {wanted}.", hint))
    return value


def no_batch(name: str, data: Any, hint: str | None = None) -> None:
    """Refuse a batch of trials, where one data set is wanted."""
    trials = getattr(data, "trials", None)
    if trials is not None:
        raise InputError(message(f"`{name}` is a batch of {trials} trials; wanted one data set.", hint or f"{name}[0]"))


def enough_memory(count: float, what: str, hint: str = "smaller sizes, or fewer trials at a time") -> None:
    """Refuse, before anything is allocated, what would not fit: `count` float64 numbers of `what`."""
    if count <= SMALL:
        return
    needed, free = 8.0 * count if count <= LARGEST else np.inf, free_memory()
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
    """A value as it stands in a message: short, and never a page of numbers.

    >>> shown(np.zeros((2, 3))), shown([0.5] * 1000), shown(np.float64(0.5))
    ('an array of shape (2, 3)', '[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, ...]', '0.5')
    """
    try:
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple) and shape:
            return f"an array of shape {shape}"
        if not isinstance(value, str | numbers.Number | bytes | tuple | list | dict | None | np.generic):
            return _called(value)
        text = _SHORT.repr(value.item() if isinstance(value, np.generic) else value)
    except Exception:  # a foreign object's own fault must not hide ours
        return _called(value)
    return text if len(text) <= most else f"{text[:most]}..."


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def _called(value: Any) -> str:
    """What kind of thing it is."""
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def is_a(value: Any, kind: Any) -> bool:
    """isinstance, for objects that lie about their class as well."""
    try:
        return isinstance(value, kind)
    except Exception:
        return False


def numpy_array(name: str, value: ArrayLike, wanted: str = "an array of real numbers") -> NDArray[Any]:
    """What NumPy makes of it, of whatever type, with its complaints in our words."""
    try:
        masked = _has_masked(value)
        given = None if masked else _read(value)
    except MemoryError as error:
        raise InputError(message(f"`{name}` does not fit into memory as an array.", "give less at a time")) from error
    except Exception as error:  # tensors of other libraries raise what they like
        if "inhomogeneous" in str(error) and isinstance(error, ValueError):
            raise InputError(_not_real(name, "is a ragged list", _ragged_hint(name), wanted)) from error
        raise InputError(_not_real(name, f"is {shown(value)}", _tensor_hint(error), wanted)) from error
    if given is None:
        hint = "value.filled(True)" if name == "mask" else "value.filled(0.0), and `mask` for hidden tokens"
        raise InputError(_not_real(name, "has masked entries", hint, wanted))
    return given


def _read(value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray | list | tuple | int | float):
        return np.asarray(value)
    with warnings.catch_warnings():  # what `__array__` of a foreign object warns of is not for our user
        warnings.simplefilter("ignore")
        return np.asarray(value)


def _has_masked(value: Any) -> bool:
    """Is an entry hidden by a masked array, given as such or within lists? NumPy would show what is behind."""
    level: dict[int, Any] = {id(value): value}
    for _ in range(DEEPEST + 1):
        if any(isinstance(one, np.ma.MaskedArray) and np.ma.getmaskarray(one).any() for one in level.values()):
            return True
        lists = [one for one in level.values() if isinstance(one, list | tuple)]
        level = {id(entry): entry for one in lists for entry in one if not isinstance(entry, float | int)}
        if not level:
            return False
    raise ValueError(f"nested more than {DEEPEST} deep")  # a list that holds itself, over which NumPy would go on


def _ragged_hint(name: str) -> str:
    if name == "mask":
        return "all rows must have one length; hide padding by False"
    return "all rows must have one length; pad them, and hide the padding with `mask`"


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
    "T": "value.astype(float), if the text is numbers",
    "M": "(value - value.min()) / np.timedelta64(1, 's') is seconds",
    "m": "value / np.timedelta64(1, 's') is seconds",
}


def _not_real(name: str, what: str, hint: str | None, wanted: str = "an array of real numbers") -> str:
    return message(f"`{name}` {what}; wanted {wanted}.", hint)


def _is_small_number(dtype: np.dtype[Any]) -> bool:
    """bfloat16, the eight-bit floats and four-bit integers, which NumPy knows only as foreign types."""
    return dtype.kind == "V" and dtype.fields is None and ("float" in dtype.name or "int" in dtype.name)


def _from_objects(name: str, given: NDArray[Any]) -> Array:
    """Python numbers of any kind (also fractions and decimals), one by one."""
    found = np.empty(given.shape)
    for place, entry in np.ndenumerate(given):
        number = _real(entry)
        if number is None:
            given_as = f"holds {shown(entry)} at index {place}" if place else f"is {shown(entry)}"
            raise InputError(_not_real(name, given_as, _object_hint(entry)))
        if _is_whole(entry) and int(number) != entry:
            raise InputError(_too_exact(name))
        found[place] = number
    return found


def _real(entry: Any) -> float | None:
    """One object as a float; None where it is no real number, or one beyond float64."""
    if is_a(entry, str | bytes | complex | np.complexfloating | np.ndarray | np.datetime64 | np.timedelta64):
        return None
    try:
        found = float(entry)
        # 1e999 as a decimal comes out infinite without having been so.
        return None if np.isinf(found) and entry != found else found
    except Exception:
        return None


def _object_hint(entry: Any) -> str | None:
    if is_a(entry, dict | set | frozenset) or hasattr(type(entry), "__next__"):
        return "list(value) has an order, and a length"
    return "value.toarray()" if hasattr(type(entry), "toarray") else None


def _check_exact(name: str, given: NDArray[Any]) -> None:
    if given.dtype.itemsize < 8:
        return
    beyond = given[(given > EXACT) | (given < -EXACT)]
    if any(int(float(entry)) != entry for entry in beyond.tolist()):
        raise InputError(_too_exact(name))


def _too_exact(name: str) -> str:
    return message(
        f"`{name}` has whole numbers beyond 2^53, which float64 would round.",
        "value.astype(float), if rounding them is meant",
    )


def _check_range(name: str, given: NDArray[Any]) -> None:
    """Long floats reach further than float64 does."""
    if (np.isfinite(given) & (np.abs(given) > LARGEST)).any():
        raise InputError(_not_real(name, f"has numbers beyond {LARGEST:.1e}", "scale them down; float64 ends there"))


def _within_index(name: str, given: NDArray[Any]) -> NDArray[np.intp]:
    limits = np.iinfo(np.intp)
    if given.size and (given.max() > limits.max or given.min() < limits.min):
        raise InputError(message(f"`{name}` has whole numbers beyond 2^63; wanted numbers of tokens or trials."))
    return given.astype(np.intp)


def _is_whole(value: Any) -> bool:
    return is_a(value, int | np.integer) and not is_a(value, bool)


def _as_whole(value: Any) -> int | None:
    try:
        return int(value) if _is_whole(value) else None
    except Exception:  # of a class of its own
        return None


def _same_kind(value: Any, one: Any) -> bool:
    """Of one type; text of NumPy is text."""
    return type(value) is type(one) or (type(value) is np.str_ and type(one) is str)


def _as_float(value: Any) -> float | None:
    """A Python, NumPy or zero-dimensional number; None for all else."""
    if is_a(value, bool | np.bool_ | list | tuple):
        return None
    if is_a(value, float | int | np.floating | np.integer):
        return _real(value)
    try:
        given = numpy_array("", value)
        return float(real_array("", given)) if given.ndim == 0 and given.dtype != bool else None
    except InputError:
        return None


def _bytes(count: float) -> str:
    """A size for people.

    >>> _bytes(3e9)
    '3.0 GB'
    """
    if np.isinf(count):
        return "more than any machine has"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.1f} {unit}" if count < 1e6 else f"{count:.1e} {unit}"
