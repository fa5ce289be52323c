"""What decides the result of a function: its code, the helpers and globals it reaches, the modules these import."""

from __future__ import annotations

import builtins
import functools
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from attnlab.data.fingerprint import fingerprint, module_of
from attnlab.store.sources import Package, attnlab_package


def reach(*roots: Any, package: Package | None = None) -> dict[str, Any]:
    """Everything that decides what functions return, as JSON that changes whenever its meaning does.

    Of a function in attnlab: the files that its module imports, directly or through others. Of a function of the
    user's: its source, its defaults and closed-over values, and the same of every global that it or its helpers name:
    functions, classes, modules of the user's, numbers, arrays. Of other packages only their names.

    Args:
        roots: functions, partials, methods, or values.
        package: the package that is known by its files; attnlab.

    >>> limit = 0.5
    >>> def measure(scale): return limit
    >>> first = reach(measure)
    >>> first == reach(measure)
    True
    """
    walk = _walked(roots, package or attnlab_package())
    return {"files": walk.package.digest(walk.modules), "own": walk.own}


def reached_modules(*roots: Any) -> frozenset[str]:
    """The modules of attnlab that functions reach, by their dotted names."""
    walk = _walked(roots, attnlab_package())
    return walk.package.reached(walk.modules)


def _walked(roots: tuple[Any, ...], package: Package) -> _Walk:
    walk = _Walk(package)
    for root in roots:
        walk.visit("", root)
    return walk


class _Walk:
    def __init__(self, package: Package) -> None:
        self.package = package
        self.modules: set[str] = set()  # of the package
        self.own: dict[str, Any] = {}  # by name: hashes of source, fingerprints of values
        self._seen: set[int] = set()

    def visit(self, name: str, value: Any, looked_up: frozenset[str] = frozenset()) -> None:
        if isinstance(value, functools.partial):
            self._all(name, [value.func, *value.args, *value.keywords.values()])
        elif inspect.ismethod(value):
            self._all(name, [value.__self__, value.__func__])
        elif isinstance(value, ModuleType):
            self._module(value, looked_up)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif inspect.isclass(value):
            self._class(value)
        elif isinstance(wrapped := getattr(value, "__wrapped__", None), FunctionType):
            self._function(wrapped)
        elif not callable(value) or hasattr(value, "describe"):
            self.own[name] = fingerprint(value, strict=False)
            self._classes_within(value)
        else:
            self._class(type(value))
            self.own[name] = fingerprint(value, strict=False)

    def _all(self, name: str, values: list[Any]) -> None:
        for i, value in enumerate(values):
            self.visit(f"{name}.{i}", value)

    def _new(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        return True

    def _inside(self, module: str | None) -> bool:
        return module is not None and module in self.package.modules

    def _function(self, function: FunctionType) -> None:
        if not self._new(function):
            return
        name = f"{module_of(function)}.{function.__qualname__}"
        foreign = _foreign(sys.modules.get(function.__module__)) and not self._inside(function.__module__)
        if self._inside(function.__module__):
            self.modules.add(function.__module__)
        elif not foreign:
            self.own[name] = _source(function)
            self._globals(function)
        cells = [_content(cell) for cell in function.__closure__ or ()]
        if foreign:  # a decorator of another package may hold a function of the user's
            self._all(name, [cell for cell in cells if callable(cell)])
        else:
            self._all(name, [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])
        if isinstance(wrapped := getattr(function, "__wrapped__", None), FunctionType):
            self._function(wrapped)

    def _globals(self, function: FunctionType) -> None:
        names = frozenset(_names(function.__code__))
        for name in sorted(names):
            if name in function.__globals__ and not hasattr(builtins, name):
                self.visit(f"{module_of(function)}.{name}", function.__globals__[name], names)

    def _class(self, kind: type) -> None:
        if not self._new(kind):
            return
        if self._inside(kind.__module__):
            self.modules.add(kind.__module__)
        elif not _foreign(sys.modules.get(kind.__module__)):
            self.own[f"{module_of(kind)}.{kind.__qualname__}"] = _source(kind)
            members = [getattr(member, "__func__", getattr(member, "fget", member)) for member in vars(kind).values()]
            for function in members:
                if isinstance(function, FunctionType):
                    self._function(function)
            for base in kind.__bases__:
                self._class(base)

    def _classes_within(self, value: Any) -> None:
        if isinstance(value, Mapping):
            self._all("", [v for v in value.values() if callable(v)])
        elif isinstance(value, list | tuple):
            self._all("", [v for v in value if callable(v)])

    def _module(self, module: ModuleType, looked_up: frozenset[str]) -> None:
        if self._inside(module.__name__):
            self.modules |= self.package.homes(module.__name__, looked_up)
        elif not _foreign(module) and self._new(module):
            self.own[module.__name__] = hashlib.blake2b(_text(module), digest_size=16).hexdigest()
            for name, value in vars(module).items():  # a helper file may have helpers of its own
                if isinstance(value, FunctionType | ModuleType | type):
                    self.visit(name, value, looked_up)


def _names(code: CodeType) -> Iterator[str]:
    """Every name that code looks up, in functions within it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable without a value yet
        return None


def _source(thing: Any) -> str:
    """A hash of the source, or of the compiled code where there is none or where it is shared, as with lambdas."""
    return hashlib.blake2b(
        repr(fingerprint(thing, strict=False)).encode() + _written(thing), digest_size=16
    ).hexdigest()


def _written(thing: Any) -> bytes:
    try:
        return inspect.getsource(thing).encode()
    except (OSError, TypeError):
        return b""


def _text(module: ModuleType) -> bytes:
    file = getattr(module, "__file__", None)
    return Path(file).read_bytes() if file and Path(file).suffix == ".py" else module.__name__.encode()


def is_installed(module: ModuleType) -> bool:
    """Can other processes import it by its name: is it attnlab's, or does it come with Python or a package?"""
    return module.__name__.split(".")[0] == "attnlab" or _foreign(module)


def _foreign(module: ModuleType | None) -> bool:
    """Does a module come with Python or from an installed package?"""
    if module is None:
        return False
    if module.__name__ == "__main__":
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return True
    place = Path(file).resolve()
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(place.is_relative_to(folder) for folder in installed)
