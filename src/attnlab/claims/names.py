"""Finding claims and figures by their ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from attnlab.claims.given import id_list
from attnlab.errors import InputError, message

T = TypeVar("T")


def named(
    known: Mapping[str, T], ids: str | Iterable[str], what: str, *, left: Mapping[str, str] | None = None
) -> list[T]:
    """The things of these ids, or of this one, in the order given; a clear word and a guess for an unknown one.

    Args:
        known: id -> thing.
        ids: one id or several; letters of either case.
        what: "claim" or "figure".
        left: ids that exist and are left out, with the reason.

    >>> named({"svm-T2": 2}, "svm-t2", "claim")
    [2]
    """
    wanted = id_list(ids, what)
    for name in wanted:
        if not isinstance(name, str):
            raise InputError(
                message(f"`ids` has {name!r}; wanted the id of a {what} as text.", f"find('{next(iter(known))}')")
            )
    lower = {name.lower(): thing for name, thing in known.items()}
    for name in wanted:
        if name.lower() in lower:
            continue
        if left and name in left:
            raise InputError(message(f"`ids`: {name} is left out: {left[name]}"))
        raise InputError(message(f"`ids`: there is no {what} {name}.", _guess(name, list(known), what)))
    return [lower[name.lower()] for name in wanted]


def _guess(name: str, known: list[str], what: str) -> str:
    lower = {one.lower(): one for one in known}
    within = [one for key, one in lower.items() if name.lower() in key]
    near = [lower[key] for key in get_close_matches(name.lower(), lower, n=6, cutoff=0.6)]
    close = list(dict.fromkeys([*near, *within]))[:6]
    return f"did you mean {', '.join(close)}?" if close else f"attnlab {what} --list"
