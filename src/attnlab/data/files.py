"""npz files that are either whole or not there, and fingerprints of what went into a computation."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.errors import InputError, StoreError, message

FACTS = "facts"  # name of the JSON entry beside the arrays


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Write arrays and JSON facts to `path` (.npz is added); an old file is replaced only once the new one is whole."""
    path = Path(path)
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    text = json.dumps(facts, default=_plain, sort_keys=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(partial, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays, **{FACTS: np.array(text)})
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def read_npz(path: str | os.PathLike[str], wanted: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and facts of an npz file; `wanted` says in words what should be in it, for the error messages."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise InputError(message(f"`{path}` holds a single array; wanted {wanted}."))
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(str(arrays.pop(FACTS, "{}")))
    except FileNotFoundError:
        raise InputError(message(f"There is no file `{path}`; wanted {wanted}.")) from None
    except InputError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(message(f"`{path}` is not readable as npz ({error}); wanted {wanted}.")) from error
    return arrays, facts


def _plain(value: Any) -> Any:
    """NumPy values as JSON."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")


def digest(*arrays: np.ndarray) -> str:
    """A hash of arrays: their shapes, types and bytes."""
    h = hashlib.blake2b(digest_size=16)
    for array in arrays:
        h.update(f"{array.shape}{array.dtype}".encode())
        h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()


def fingerprint(value: Any) -> Any:
    """`value` as JSON that changes whenever its meaning does.

    Arrays become hashes; functions become their name with a hash of source, defaults and closed-over values (not of
    globals they read); frozen dataclasses and objects with `describe()` become their parts.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        value = float(value)
        return value if np.isfinite(value) else repr(value)
    if isinstance(value, np.generic):
        return fingerprint(value.item())
    if isinstance(value, Mapping):
        return {str(k): fingerprint(v) for k, v in value.items()}
    if hasattr(value, "describe"):
        return fingerprint(value.describe())
    if isinstance(value, list | tuple):
        return [fingerprint(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: fingerprint(getattr(value, f.name)) for f in fields(value)}
    if callable(value):
        return _function(value)
    if hasattr(value, "__array__"):
        return {"array": digest(np.asarray(value))}
    raise StoreError(
        message(f"A {type(value).__name__} has no fingerprint.", "use numbers, arrays, functions, dataclasses")
    )


def _function(function: Any) -> dict[str, Any]:
    if hasattr(function, "func") and hasattr(function, "keywords"):  # functools.partial
        return {
            "partial": fingerprint(function.func),
            "with": fingerprint([function.args, function.keywords]),
        }
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        name = getattr(function, "__qualname__", None)
        if name is None:
            raise StoreError(message(f"The function {function!r} has no name or code to know it by."))
        return {"function": f"{getattr(function, '__module__', '')}.{name}"}
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = repr((code.co_code, [c for c in code.co_consts if not inspect.iscode(c)], code.co_names))
    closed = [cell.cell_contents for cell in function.__closure__ or ()]
    return {
        "function": f"{function.__module__}.{function.__qualname__}",
        "source": hashlib.blake2b(source.encode(), digest_size=8).hexdigest(),
        "defaults": fingerprint([function.__defaults__ or (), function.__kwdefaults__ or {}]),
        "closed": fingerprint(closed),
    }
