"""Settings of a figure that are changed: checked against those it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnlab.checks import shown
from attnlab.errors import InputError, message


def changed_settings(figure: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, each of the type of the setting in its place; without those that are as they were."""
    changed = {}
    for name, value in given.items():
        if name not in known:
            wanted = f"wanted some of {', '.join(known)}" if known else "it has none that can be changed"
            raise InputError(message(f"{figure} has no setting {name!r}; {wanted}.", "attnlab figure --list --json"))
        found = _like(f"{figure}: `{name}`", known[name], value)
        if found != known[name]:
            changed[name] = found
    return changed


def settings_in_words(given: Sequence[str]) -> dict[str, Any]:
    """n=3 d=5,10 as {"n": 3, "d": (5, 10)}; what is no number stays text.

    >>> settings_in_words(["n=3", "d=5,10", "step=0.1"])
    {'n': 3, 'd': (5, 10), 'step': 0.1}
    """
    settings = {}
    for words in given:
        name, equals, text = words.partition("=")
        if not name or not equals or not text:
            raise InputError(message(f"`--set` has {words!r}; wanted NAME=VALUE.", "--set n=3 T=10 d=5,10 trials=30"))
        values = tuple(_value(part) for part in text.split(","))
        settings[name] = values if "," in text else values[0]
    return settings


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _like(name: str, known: Any, value: Any) -> Any:
    """A whole number for a whole number, a tuple of them for a tuple; at least 1."""
    if isinstance(known, tuple):
        listed = value if isinstance(value, list | tuple | range) else [value]
        if not listed:
            raise InputError(message(f"{name} is empty; wanted at least one value."))
        return tuple(_like(name, known[0], one) for one in listed)
    if isinstance(known, int):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise InputError(message(f"{name} is {shown(value)}; wanted a whole number at least 1."))
        return int(value)
    if isinstance(known, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, type(known)):
        return value
    raise InputError(message(f"{name} is {shown(value)}; wanted one like {shown(known)}."))
