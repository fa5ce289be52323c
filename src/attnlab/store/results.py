"""What the store hands back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.checks import shown
from attnlab.errors import InputError, StoreError, message

# Names that an npz file, or the call that writes one, has taken.
TAKEN = ("facts", "file", "allow_pickle")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Kept:
    """One kept computation.

    Attributes:
        arrays: name -> array, read-only.
        facts: what else `compute` returned, as JSON reads it back.
        key: the hash it is kept under.
        seconds: time that computing it took.
    """

    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]
    key: str
    seconds: float

    def __repr__(self) -> str:
        return f"Kept({', '.join(self.arrays) or 'no arrays'}; {len(self.facts)} facts; {self.key[:8]})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Summary:
    """One kept run as `Store.runs` lists it: what, when, how long, how large, where."""

    key: str
    kind: str
    config: Any
    when: datetime
    seconds: float
    status: str
    versions: Mapping[str, str]
    bytes: int
    path: Path

    def __repr__(self) -> str:
        return (
            f"Summary({self.kind}, {self.key[:8]}, {self.when:%Y-%m-%d %H:%M}, {self.seconds:.3g} s, "
            f"{self.bytes} bytes, {self.status})"
        )


@dataclass(frozen=True)
class Size:
    """How many finished runs, and how many bytes in all (checkpoints and damaged runs included)."""

    count: int
    bytes: int


@dataclass(frozen=True)
class Done:
    """What `on_done` of `Store.map` is told: `done` of `total`, of which `kept` were ready before the call."""

    done: int
    total: int
    seconds: float
    kept: int


def checked(outcome: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What `compute` returned, as arrays of its own and facts as JSON reads them back."""
    arrays, facts = outcome if isinstance(outcome, tuple) and len(outcome) == 2 else (outcome, {})
    if not isinstance(arrays, Mapping) or not isinstance(facts, Mapping):
        raise InputError(
            message("`compute` must return a dict of arrays, or (dict of arrays, dict of facts); it returned "
                    f"{_kinds(outcome)}.", "return {'loss': loss}, {'seed': 0}")
        )  # fmt: skip
    own: dict[str, np.ndarray] = {}
    for name, value in arrays.items():
        if not isinstance(name, str) or not name or name in TAKEN:
            raise InputError(
                message(f"`compute` named an array {name!r}.", f"use a word other than {', '.join(TAKEN)}")
            )
        try:
            array = np.array(value)
        except Exception as error:  # a ragged list, or what raises when it is read
            raise InputError(
                message(f"`compute` returned `{name}`, which is no array: {shown(value)}.", "lists of equal lengths")
            ) from error
        if array.dtype.hasobject or array.dtype.isbuiltin == 2:  # npz forgets types that NumPy does not know
            raise InputError(message(f"`compute` returned `{name}` with entries that are not numbers or text.",
                                     "return what is not an array as a fact"))  # fmt: skip
        own[name] = frozen(array)
    try:
        text = json.dumps(dict(facts), default=lambda v: np.asarray(v).tolist())
    except (TypeError, ValueError) as error:
        raise StoreError(message(f"`compute` returned facts that JSON cannot hold ({error}).",
                                 "facts are numbers, text, lists and dicts of them")) from error  # fmt: skip
    return own, json.loads(text)


def frozen(array: np.ndarray) -> np.ndarray:
    """`array`, read-only."""
    array.flags.writeable = False
    return array


def _kinds(outcome: Any) -> str:
    if isinstance(outcome, tuple):
        return f"({', '.join(type(part).__name__ for part in outcome)})"
    return type(outcome).__name__
