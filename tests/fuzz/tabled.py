"""Cases told by a row of a table: a name, what its arguments are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import attnlab
from fuzz.calls import Call, add
from fuzz.scalars import all_of, some_of
from fuzz.source import Source

Draw = Callable[[Source], Any]


def resolve(name: str) -> Any:
    """The public object of this dotted name."""
    return reduce(getattr, name.split("."), attnlab)


def row(
    name: str,
    *positional: Draw,
    needed: dict[str, Draw] | None = None,
    options: dict[str, Draw] | None = None,
    **more: Any,
) -> None:
    """A case whose arguments are drawn one by one: positional ones, keywords that are needed, keywords that may be."""

    def make(src: Source) -> Call:
        args = tuple(draw(src) for draw in positional)
        return Call(resolve(name), args, all_of(src, needed or {}) | some_of(src, options or {}))

    add(name, make, **more)


def method(name: str, owner: Draw, *positional: Draw, options: dict[str, Draw] | None = None, **more: Any) -> None:
    """The same for a method of an object that is drawn."""

    def make(src: Source) -> Call:
        function = getattr(owner(src), name.rpartition(".")[2])
        return Call(function, tuple(draw(src) for draw in positional), some_of(src, options or {}))

    add(name, make, **more)


def attempt(make: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """An object of hostile arguments; a plain one where those are refused (which is judged elsewhere)."""
    try:
        return make()
    except Exception:
        return otherwise()
