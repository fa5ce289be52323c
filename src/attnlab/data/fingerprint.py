"""What went into a computation, as JSON that changes whenever its meaning does."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import sys
import tokenize
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from attnlab.errors import StoreError, message

HINT = "use numbers, text, arrays, named functions, functools.partial, dataclasses, or give it `describe()`"


def digest(*arrays: np.ndarray) -> str:
    """A hash of arrays: their shapes, types and values."""
    h = hashlib.blake2b(digest_size=16)
    for array in arrays:
        h.update(f"{array.shape}{array.dtype}".encode())
        if array.dtype.kind == "f":
            array = array + 0.0  # -0.0 is 0.0
        h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()


def fingerprint(value: Any, *, strict: bool = True) -> Any:
    """`value` as JSON: equal for equal meanings, in every process.

    What cannot be known raises a StoreError; unless `strict`, it is called {"unknown": ...} instead.

    Arrays become hashes. Functions become their name with a hash of their code, defaults and closed-over values, and
    so do the functions they wrap; globals that a function reads are not seen. Dataclasses become their class and
    fields, objects with `describe()` what that returns.

    >>> fingerprint({"step": 0.1, "cap": float("inf")})
    {'step': 0.1, 'cap': {'float': 'inf'}}
    """
    if strict:
        return _told(value)
    if isinstance(value, Mapping):
        return {str(k): fingerprint(v, strict=False) for k, v in value.items()}
    try:
        return _told(value)
    except StoreError:
        return {"unknown": _name(value)}


def module_of(thing: Any) -> str:
    """The module of a function or class. Of a script that is run, the name under which others would import it."""
    name = getattr(thing, "__module__", None) or ""
    file = getattr(sys.modules.get("__main__"), "__file__", None) if name == "__main__" else None
    return Path(file).stem if file else name


def _told(value: Any) -> Any:
    """What is known of a value; a StoreError whatever the objects inside it raise when asked."""
    try:
        return _known(value, ())
    except StoreError:
        raise
    except Exception as error:
        first = str(error).split("\n")[0]
        raise StoreError(
            message(f"{_name(value)} has no fingerprint ({type(error).__name__}: {first}).", HINT)
        ) from error


def _known(value: Any, above: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.generic):
        return _known(value.item(), above)
    if isinstance(value, float):
        return float(value) if np.isfinite(value) else {"float": repr(float(value))}
    if id(value) in above:
        return {"itself": above.index(id(value))}
    inside = functools.partial(_known, above=(*above, id(value)))
    if isinstance(value, Mapping):
        named = {str(k): inside(v) for k, v in value.items()}
        if len(named) < len(value):
            raise StoreError(message(f"The names {list(value)} are not different as text."))
        return named
    if hasattr(value, "describe"):
        return inside(value.describe())
    if isinstance(value, list | tuple):
        return [inside(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__qualname__, **{f.name: inside(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, functools.partial):
        return {"partial": [inside(part) for part in (value.func, value.args, value.keywords)]}
    if inspect.ismodule(value):
        return {"module": value.__name__}
    if inspect.ismethod(value) and not isinstance(value.__self__, type):
        return {"method": value.__qualname__, "of": inside(value.__self__), "code": inside(value.__func__)}
    if callable(value):
        return _function(value, inside)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise StoreError(message("An array of objects has no fingerprint.", "use numbers, or a list"))
        return {"array": digest(array)}
    raise StoreError(message(f"{_name(value)} has no fingerprint.", HINT))


def _function(function: Any, inside: Any) -> Any:
    """One entry for each function from a decorated one down to the one it wraps."""
    given, layers = function, []
    while function is not None:
        function = getattr(function, "__func__", function)  # of a class method
        layers.append(_layer(function, inside))
        function = getattr(function, "__wrapped__", None)
    known = [layer for layer in layers if layer is not None]
    if not known:
        raise StoreError(message(f"{given!r} has no name or code to know it by.", HINT))
    return known[0] if len(known) == 1 else known


def _layer(function: Any, inside: Any) -> dict[str, Any] | None:
    name = getattr(function, "__qualname__", None)
    full = f"{module_of(function)}.{name}"
    code = getattr(function, "__code__", None)
    if code is None:  # compiled: the name says it all, unless it is only a shell around another function
        return {"function": full} if name is not None and not hasattr(function, "__wrapped__") else None
    return {
        "function": full,
        "code": _code(function, code),
        "defaults": inside([function.__defaults__ or (), function.__kwdefaults__ or {}]),
        "closed": inside([_content(cell) for cell in function.__closure__ or ()]),
    }


def _code(function: Any, code: CodeType) -> str:
    """A hash of the source; of the bytecode for lambdas, several of which may share a line."""
    text = None
    if function.__name__ != "<lambda>":
        with contextlib.suppress(OSError, TypeError, SyntaxError, tokenize.TokenError):
            text = inspect.getsource(function)
    return hashlib.blake2b((text or _bytecode(code)).encode(), digest_size=8).hexdigest()


def _bytecode(code: CodeType) -> str:
    constants = [_bytecode(c) if inspect.iscode(c) else _constant(c) for c in code.co_consts]
    return repr((code.co_code, constants, code.co_names))


def _constant(value: Any) -> str:
    # The order of a set of text changes from process to process.
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise StoreError(message("A function closes over a variable that has no value yet.", HINT)) from None


def _name(value: Any) -> str:
    return f"`{getattr(value, '__qualname__', type(value).__name__)}`"
