"""A call as a line of Python, for people who mend what it breaks."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnlab as al
from fuzz.calls import Call


def written(call: Call) -> str:
    """The call as it would be typed."""
    parts = [value(argument) for argument in call.args]
    parts += [f"{name}={value(argument)}" for name, argument in call.kwargs.items()]
    return f"{function(call.function)}({', '.join(parts)})"


def function(given: Any) -> str:
    """A function with its module; a method with its object."""
    owner = getattr(given, "__self__", None)
    name = getattr(given, "__qualname__", getattr(given, "__name__", repr(given)))
    if owner is not None and not isinstance(owner, type):
        return f"{value(owner)}.{given.__name__}"
    return f"{given.__module__}.{name}"


def value(given: Any, most: int = 4000) -> str:
    """An argument as it would be typed, or a short word for it."""
    if isinstance(given, al.Tokens | al.Sequences):
        fields = {name: getattr(given, name, None) for name in ("x", "z", "y", "v", "mask")}
        inside = ", ".join(f"{name}={value(array)}" for name, array in fields.items() if array is not None)
        return f"al.{type(given).__name__}({inside})"
    if isinstance(given, np.ma.MaskedArray):
        return f"np.ma.masked_array({given.data.tolist()}, mask={np.ma.getmaskarray(given).tolist()})"
    if isinstance(given, np.ndarray):
        kind = "" if given.dtype in (np.float64, np.int64, np.bool_) else f", dtype={str(given.dtype)!r}"
        return f"np.array({given.tolist()!r}{kind})"[:most]
    if isinstance(given, tuple | list):
        inside = ", ".join(value(entry) for entry in given)
        return f"[{inside}]" if isinstance(given, list) else f"({inside},)"
    if isinstance(given, dict):
        return "{" + ", ".join(f"{key!r}: {value(entry)}" for key, entry in given.items()) + "}"
    if callable(given) and hasattr(given, "__qualname__"):
        return f"<{given.__qualname__}>"
    try:
        return repr(given)[:most]
    except Exception:
        return f"<{type(given).__name__}>"
