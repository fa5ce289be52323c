"""Planting faults in formulas and solvers, to see whether the verdict of a claim turns.

A fault is a change to the source of one function, as small as a factor, an exponent, a sign or a dropped term: the text
`old` is replaced by `new`, the function compiled again in its own module, and its code put in the place of the old one.
Text that is not found exactly once is an error, so a table of faults cannot go stale in silence.
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
from types import FunctionType, ModuleType
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
    module, original, name = located(fault)
    _forget()
    try:
        with _constant(original, name, fault) if not fault.old else _function(module, original, name, fault):
            yield
    finally:
        _forget()


def located(fault: Fault) -> tuple[ModuleType, Any, str]:
    """The module, and what the fault is planted in, with its name there."""
    module_name, _, qualname = fault.where.partition(":")
    module = importlib.import_module(f"attnlab.{module_name}")
    owner: Any = module
    *outer, name = qualname.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return module, inspect.getattr_static(owner, name), name


def faulty_source(original: Any, fault: Fault) -> str:
    """The source of a function with the fault in it; LookupError where the text is not there exactly once."""
    source = textwrap.dedent(inspect.getsource(_inner(original)))
    if source.count(fault.old) != 1:
        raise LookupError(f"{fault.where} has {fault.old!r} {source.count(fault.old)} times; wanted once.")
    return source.replace(fault.old, fault.new)


@contextmanager
def _function(module: ModuleType, original: Any, name: str, fault: Fault) -> Iterator[None]:
    """The function with another code: it is the same object, so whoever holds it runs the fault."""
    function = _inner(original)
    text = faulty_source(original, fault)
    changed = compile(text, f"<{fault.name}>", "exec", __future__.annotations.compiler_flag)
    scratch: dict[str, Any] = {}
    exec(changed, vars(module), scratch)
    faulty = _inner(scratch[name])
    kept = function.__code__, function.__defaults__, function.__kwdefaults__
    try:
        function.__code__, function.__defaults__, function.__kwdefaults__ = (
            faulty.__code__,
            faulty.__defaults__,
            faulty.__kwdefaults__,
        )
        yield
    finally:
        function.__code__, function.__defaults__, function.__kwdefaults__ = kept


def _inner(thing: Any) -> FunctionType:
    """The function behind decorators, properties, class and static methods."""
    for kind, attribute in ((property, "fget"), (cached_property, "func"), (classmethod | staticmethod, "__func__")):
        if isinstance(thing, kind):
            thing = getattr(thing, attribute)
    function = inspect.unwrap(thing)
    if not isinstance(function, FunctionType):
        raise LookupError(f"{thing!r} is not a function.")
    return function


@contextmanager
def _constant(original: Any, name: str, fault: Fault) -> Iterator[None]:
    """A constant with another value, in every module of attnlab that has it under its name."""
    places = [module for module in _modules() if vars(module).get(name, _modules) is original]
    value = eval(fault.new, dict(vars(places[0])))
    try:
        for module in places:
            setattr(module, name, value)
        yield
    finally:
        for module in places:
            setattr(module, name, original)


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
