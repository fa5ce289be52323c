"""Planting faults in formulas and solvers, to see whether the verdict of a claim turns.

A fault is a change to the source of one function, as small as a factor, an exponent, a sign or a dropped term: the text
`old` is replaced by `new`, the function compiled again in its own module, and put in its place wherever attnlab's
modules refer to it. Text that is not found exactly once is an error, so a table of faults cannot go stale in silence.
"""

from __future__ import annotations
import __future__

import gc
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import jax

from attnlab.claims import Scale, Verdict, find


@dataclass(frozen=True)
class Fault:
    """One row: which claim, where the fault is planted, and what it is.

    Attributes:
        claim: id of the claim whose verdict must turn.
        where: "module:function" or "module:Class.method" without the leading "attnlab."; or "module:CONSTANT".
        old: text in the source of that function, found exactly once; for a constant, empty.
        new: what takes its place; for a constant, its new value as an expression.
        what: the fault in a few words.
    """

    claim: str
    where: str
    old: str
    new: str
    what: str

    @property
    def name(self) -> str:
        return f"{self.claim}: {self.what}"


def verdict_under(fault: Fault, scale: Scale = Scale.SMOKE) -> tuple[Verdict, Verdict]:
    """The verdict with the fault in place, and the one on record."""
    (claim,) = find([fault.claim])
    with planted(fault):
        return claim.measure(scale).verdict, claim.expected_at(scale)


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Attnlab with the fault in it."""
    module_name, _, qualname = fault.where.partition(":")
    module = importlib.import_module(f"attnlab.{module_name}")
    owner, name = _owner(module, qualname)
    original = inspect.getattr_static(owner, name)
    faulty = _faulty(module, original, name, fault)
    places = [(owner, name)] if inspect.isclass(owner) else _places(original, name)
    _forget()
    try:
        for place, attribute in places:
            setattr(place, attribute, faulty)
        yield
    finally:
        for place, attribute in places:
            setattr(place, attribute, original)
        _forget()


def _owner(module: ModuleType, qualname: str) -> tuple[Any, str]:
    """The module or class that holds the name, and the last part of it."""
    owner: Any = module
    *outer, name = qualname.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name


def _faulty(module: ModuleType, original: Any, name: str, fault: Fault) -> Any:
    if not fault.old:
        return eval(fault.new, dict(vars(module)))
    source = _source(original)
    if source.count(fault.old) != 1:
        raise LookupError(f"{fault.where} has {fault.old!r} {source.count(fault.old)} times; wanted once.")
    changed = compile(
        source.replace(fault.old, fault.new), f"<{fault.name}>", "exec", __future__.annotations.compiler_flag
    )
    scratch: dict[str, Any] = {}
    exec(changed, vars(module), scratch)
    made = scratch[name]
    if isinstance(made, cached_property):
        made.__set_name__(None, name)
    return made


def _source(original: Any) -> str:
    """Of a function behind its decorators, or of a property, class or static method."""
    for inner in ("fget", "func", "__func__"):
        if isinstance(original, property | cached_property | classmethod | staticmethod) and hasattr(original, inner):
            original = getattr(original, inner)
    return textwrap.dedent(inspect.getsource(inspect.unwrap(original)))


def _places(original: Any, name: str) -> list[tuple[ModuleType, str]]:
    """Everywhere in attnlab's modules that this very object stands under a name; a constant only under its own."""
    found = []
    for module in _modules():
        for attribute, value in list(vars(module).items()):
            if value is original and (callable(original) or attribute == name):
                found.append((module, attribute))
    return found


def _modules() -> list[ModuleType]:
    return [module for key, module in list(sys.modules.items()) if key.split(".")[0] == "attnlab" and module]


def _forget() -> None:
    """Everything that was computed and kept in memory, compiled programs included."""
    for module in _modules():
        for value in list(vars(module).values()):
            for kept in (value, *(vars(value).values() if inspect.isclass(value) else ())):
                if callable(getattr(kept, "cache_clear", None)):
                    kept.cache_clear()
    jax.clear_caches()
    gc.collect()
