"""Hostile single arguments: numbers, whole numbers, choices, callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from fuzz.arrays import SIZES, Unreadable
from fuzz.source import Source

JUNK: tuple[Any, ...] = (
    None,
    -1,
    0,
    "a",
    "",
    np.nan,
    np.inf,
    -np.inf,
    -1.0,
    0.0,
    10**25,
    -(10**25),
    True,
    False,
    1j,
    [1.0],
    [],
    {},
    (),
    np.array([1.0]),
    np.array(1.0),
    np.array([]),
    np.float32(0.5),
    np.int64(3),
    np.bool_(True),
    b"x",
    object(),
    ...,
    Fraction(1, 2),
    Decimal("0.1"),
    slice(None),
    len,
    "1",
    1e400,
    2.5,
    10**12,
    2**63,
    2**64,
    -(2**63),
    1e-320,
    Unreadable(),
)


def junk(src: Source) -> Any:
    """Anything at all."""
    return src.choose(JUNK)


HUGE = 10**6  # whole numbers above this are refused as sizes, but would run for hours as numbers of steps
MODEST = tuple(one for one in JUNK if not (isinstance(one, int | np.integer) and abs(int(one)) > HUGE))


def or_modest_junk(plain: Callable[[Source], Any], one_in: int = 6) -> Callable[[Source], Any]:
    """The same without huge whole numbers, for what may rightly be as large as patience."""

    def drawn(src: Source) -> Any:
        found = plain(src)
        return src.choose(MODEST) if src.rarely(one_in) else found

    return drawn


def or_junk(plain: Callable[[Source], Any], one_in: int = 6) -> Callable[[Source], Any]:
    """Mostly the plain thing, now and then anything at all."""

    def drawn(src: Source) -> Any:
        found = plain(src)
        return junk(src) if src.rarely(one_in) else found

    return drawn


def positive_number(src: Source) -> float:
    """Above 0, of every size, in every number type."""
    size = src.choose((1.0, 0.5, 0.1, 2.0, 10.0, 0.01, 100.0, 1e-3, 1e6, *SIZES))
    return src.choose((float, float, float, np.float64))(size)


def any_number(src: Source) -> float:
    """Of either sign, or zero."""
    sign = src.choose((1.0, -1.0, 0.0))
    return sign * positive_number(src)


def share_number(src: Source) -> float:
    """From 0 to 1."""
    return src.choose((0.5, 0.1, 0.9, 0.01, 0.99, 1e-12, 1.0 - 2.0**-53, 5e-324, 1e-300, 0.0, 1.0))


def small_whole(src: Source) -> Any:
    """From 1 to 6."""
    return src.choose((2, 1, 3, 4, 5, 6, np.int64(2)))


def any_whole(src: Source) -> Any:
    """From 1 to what no machine holds."""
    return src.choose((2, 1, 3, 5, 10, 100, 10**4, 10**6, 10**9, 10**15, 10**18, 10**25, np.int32(7)))


def any_seed(src: Source) -> Any:
    """A seed, also a large one."""
    return src.choose((0, 1, 2, 3, 10**9, 2**32, 2**64, np.int64(5)))


def true_or_false(src: Source) -> bool:
    return bool(src.index(2))


positive = or_junk(positive_number)
number = or_junk(any_number)
share = or_junk(share_number)
small = or_junk(small_whole)
whole = or_junk(any_whole)
seed = or_junk(any_seed, 10)
flag = or_junk(true_or_false, 12)


def tolerance(src: Source) -> Any:
    """A relative gap, mostly left to the function."""
    if src.rarely(8):
        return junk(src)
    return src.choose((None, None, None, 1e-10, 1e-6, 1e-3, 0.0, 1e-16, 1.0, 1e300, np.float64(1e-8)))


def choice(*options: Any, one_in: int = 10) -> Callable[[Source], Any]:
    """One of the words, now and then a wrong one."""

    def drawn(src: Source) -> Any:
        found = src.choose(options)
        return src.choose(("", "wrong", None, 3, [], object(), *JUNK[:6])) if src.rarely(one_in) else found

    return drawn


class UsersOwn(Exception):
    """Raised by the caller's own function: it passes through as it is."""


def raising(*args: Any, **more: Any) -> Any:
    """A callable of the user that fails."""
    raise UsersOwn("the caller's own function failed")


def optional(plain: Callable[[Source], Any], one_in: int = 3) -> Callable[[Source], Any]:
    """Mostly left out (None)."""

    def drawn(src: Source) -> Any:
        return plain(src) if src.rarely(one_in) else None

    return drawn


def some_of(src: Source, options: dict[str, Callable[[Source], Any]], one_in: int = 3) -> dict[str, Any]:
    """Some of the keyword arguments; the others keep their defaults."""
    return {name: draw(src) for name, draw in options.items() if src.rarely(one_in)}


def all_of(src: Source, options: dict[str, Callable[[Source], Any]]) -> dict[str, Any]:
    """All of the keyword arguments."""
    return {name: draw(src) for name, draw in options.items()}


def any_of(src: Source, many: Sequence[Callable[[Source], Any]]) -> Any:
    """Of one of the makers."""
    return src.choose(many)(src)
