"""Formulas of numbers: what they take is declared, checked and converted; what leaves float64 is said.

    @formula(D=AT_LEAST_ZERO, step=POSITIVE)
    def bound(D, step): return D**2 / step

A formula is computed as it is written. Where a power overflows it is computed again in NumPy's numbers, whose largest
is inf: so inf means "larger than any float64 number". A result that is no number at all, as inf / inf, is refused.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from attnlab.checks import flag, instance, number, one_of, real_array, shown
from attnlab.errors import InputError, message

Domain = Callable[[str, Any], Any]
Function = TypeVar("Function", bound=Callable[..., Any])

NUMBER: Domain = number
POSITIVE: Domain = partial(number, above=0)
AT_LEAST_ZERO: Domain = partial(number, least=0)
AT_LEAST_ONE: Domain = partial(number, least=1)
SHARE: Domain = partial(number, above=0, below=1)


def keep(owner: Any, **domains: Domain) -> None:
    """Check attributes of a frozen object; numbers of foreign kinds, as fractions, become floats."""
    for name, domain in domains.items():
        value = getattr(owner, name)
        checked = domain(name, value)
        if not isinstance(value, int | float):  # np.float64 is a float; np.float32 would cast what it meets
            object.__setattr__(owner, name, checked)


def or_infinite(name: str, value: Any) -> float:
    """A number at least 0, or inf: what is known where nothing is."""
    infinite = isinstance(value, float | np.floating) and value == np.inf
    return np.inf if infinite else number(name, value, least=0)


def choice(*choices: str) -> Domain:
    """One of these words."""

    def check(name: str, value: Any) -> Any:
        one_of(name, value, choices)
        return value

    return check


def of_class(kind: type, wanted: str) -> Domain:
    """An object of this class."""
    return lambda name, value: instance(name, value, kind, wanted)


def numbers(*, above: float = -np.inf, least: float = -np.inf, below: float = np.inf, infinite: bool = False) -> Domain:
    """An array, or a number, of numbers within limits; NaN is none of them, and inf only where it is allowed."""

    def check(name: str, value: Any) -> Any:
        array = real_array(name, value)
        inside = (array >= least) & ((array > above) | np.isinf(above)) & ((array < below) | np.isinf(below))
        if not (inside & (infinite | np.isfinite(array))).all():
            limits = {"above": above, "at least": least, "below": below}
            words = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if np.isfinite(limit))
            kind = "numbers" if infinite else "finite numbers"
            raise InputError(message(f"`{name}` is {shown(value)}; wanted {kind} {words}".rstrip() + "."))
        return array

    return check


def formula(**domains: Domain) -> Callable[[Function], Function]:
    """Check the arguments named, and keep the result a number, or inf.

    None, where it is a default, stays None; what is True or False by default is a flag. Names that a function does not
    have are passed over, so that `partial(formula, step=POSITIVE)` says what a name stands for in a whole module.
    """

    def decorate(function: Function) -> Function:
        parameters = inspect.signature(function).parameters
        names = tuple(parameters)
        optional = {name for name, one in parameters.items() if one.default is None}
        flags = {name: flag for name, one in parameters.items() if isinstance(one.default, bool)}
        domain_of = {**flags, **domains}

        def accepted(name: str, value: Any) -> Any:
            if name not in domain_of or (value is None and name in optional):
                return value
            return domain_of[name](name, value)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            given = [accepted(name, value) for name, value in zip(names, args, strict=False)]
            named = {name: accepted(name, value) for name, value in kwargs.items()}
            return _computed(function, names, [*given, *args[len(given) :]], named)

        return checked  # type: ignore[return-value]

    return decorate


def _computed(function: Callable[..., Any], names: tuple[str, ...], args: list[Any], kwargs: dict[str, Any]) -> Any:
    problem = None
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    with np.errstate(all="ignore"):
        try:
            result = function(*args, **kwargs)
        except ValueError as error:
            if "broadcast" not in str(error) or isinstance(error, InputError):
                raise
            raise InputError(_shapes(arguments)) from error
        except (OverflowError, ZeroDivisionError) as error:
            result, problem = _beyond(function, args, kwargs), error
    if result is None or _has_nan(result):
        raise InputError(_told(function, arguments)) from problem
    return result


def _beyond(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The same in NumPy's numbers, which end in inf, and back in Python's; None where that does not help."""
    wide, named = _each(tuple(args), _as_numpy), _each(kwargs, _as_numpy)
    try:
        return _each(function(*wide, **named), lambda value: float(value) if isinstance(value, np.floating) else value)
    except (OverflowError, ZeroDivisionError):
        return None


def _told(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    given = ", ".join(f"`{name}` = {shown(value)}" for name, value in arguments.items() if name != "self")
    where = f" for {given}" if given else ""
    text = f"`{function.__name__}` leaves the range of float64, which ends at 1.8e308,{where}"
    return message(text.rstrip(",") + ".", "numbers nearer to 1")


def _shapes(arguments: dict[str, Any]) -> str:
    arrays = {name: value.shape for name, value in arguments.items() if isinstance(value, np.ndarray)}
    given = ", ".join(f"`{name}` {shape}" for name, shape in arrays.items())
    return message(f"The shapes {given} do not go together; wanted shapes that broadcast.")


def _as_numpy(value: Any) -> Any:
    return np.float64(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value changed, or all that is inside a tuple, a mapping or a data class."""
    if type(value) is tuple:
        return tuple(_each(one, change) for one in value)
    if isinstance(value, Mapping):
        return {name: _each(one, change) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        other = copy.copy(value)
        for one in fields(value):
            object.__setattr__(other, one.name, _each(getattr(value, one.name), change))
        return other
    return change(value)


def _has_nan(value: Any) -> bool:
    if isinstance(value, float | np.floating | np.ndarray):
        return bool(np.isnan(value).any())
    if isinstance(value, tuple):
        return any(map(_has_nan, value))
    if isinstance(value, Mapping):
        return any(map(_has_nan, value.values()))
    if is_dataclass(value) and not isinstance(value, type):
        documented = getattr(type(value), "nan_where_nothing_is_promised", ())
        return any(_has_nan(getattr(value, one.name)) for one in fields(value) if one.name not in documented)
    return False
