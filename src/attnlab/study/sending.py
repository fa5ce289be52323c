"""A block function as bytes for other processes."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from attnlab.errors import InputError, message
from attnlab.store.reach import is_installed


def packed(function: Callable[..., Any]) -> bytes:
    """The function for a process that can import what is installed, and nothing else.

    A function of a script, a notebook or a file of the user's goes with its code; one of an installed package by name.
    """
    import cloudpickle

    module = sys.modules.get(getattr(innermost(function), "__module__", None) or "")
    by_value = module is not None and not is_installed(module)
    try:
        return _with_code(function, module) if by_value and module is not None else cloudpickle.dumps(function)
    except Exception as error:
        problem = f"The block function cannot be sent to another process ({type(error).__name__}: {error})."
        raise InputError(
            message(problem, "open files, locks and the like inside of the function, or run(jobs=1)")
        ) from error


def unpacked(content: bytes) -> Callable[..., Any]:
    """The function; a clear error where its module is not there."""
    try:
        return pickle.loads(content)
    except ModuleNotFoundError as error:
        problem = f"The block function needs the module `{error.name}`, which a worker cannot import."
        hint = "install it there, put its functions into the file of the block function, or client.upload_file(...)"
        raise InputError(message(problem, hint)) from error


def innermost(function: Any) -> Any:
    """The function within partials."""
    while hasattr(function, "func"):  # partials
        function = function.func
    return function


def _with_code(function: Callable[..., Any], module: ModuleType) -> bytes:
    import cloudpickle

    if module.__name__ == "__main__":
        return cloudpickle.dumps(function)
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
