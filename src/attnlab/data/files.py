"""npz files that are either whole or not there."""

from __future__ import annotations

import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.errors import InputError, message

FACTS = "facts"  # name of the JSON entry beside the arrays
# What reading a damaged or foreign file may raise.
BROKEN = (
    ValueError,
    TypeError,
    OSError,
    EOFError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


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
        # Opened here: given a path, np.load leaks the file when its content is broken.
        with open(path, "rb") as file:
            content = np.load(file, allow_pickle=False)
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise InputError(message(f"`{path}` holds a single array; wanted {wanted}."))
            arrays = {name: content[name] for name in content.files}
        facts = json.loads(str(arrays.pop(FACTS, "{}")))
        if not isinstance(facts, dict):
            raise ValueError(f"its entry `{FACTS}` is not a JSON object")
    except FileNotFoundError:
        raise InputError(message(f"There is no file `{path}`; wanted {wanted}.")) from None
    except (PermissionError, IsADirectoryError) as error:
        raise InputError(message(f"`{path}` cannot be opened ({error.strerror}); wanted {wanted}.")) from error
    except InputError:
        raise
    except BROKEN as error:
        raise InputError(message(f"`{path}` is not readable as npz ({error}); wanted {wanted}.")) from error
    return arrays, facts


def _plain(value: Any) -> Any:
    """NumPy values as JSON."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")
