"""Where pretrained models lie: a folder, or a name on the Hugging Face hub."""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnlab.data.writing import as_path
from attnlab.errors import InputError, message

EXTRA = "pip install 'attnlab[text]'"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
# What is downloaded of a model: never weights that are pickles.
FILES = ["config.json", "tokenizer.json", "*.safetensors", "*.safetensors.index.json"]


def model_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder itself, or that of a model of this name on the Hugging Face hub, downloaded once.

    >>> model_folder("no such folder")
    Traceback (most recent call last):
    attnlab.errors.InputError: `folder` is 'no such folder'; there is no such folder, and it is no name on the hub.
    <BLANKLINE>
    hint: a folder with config.json, model.safetensors and tokenizer.json
    """
    path = as_path("folder", folder, "a folder, or a name on the Hugging Face hub")
    expanded = Path(os.path.expanduser(path))
    try:
        if expanded.is_dir():
            return expanded
        exists = expanded.exists()
    except OSError:  # a name too long for a file
        exists = False
    hint = "a folder with config.json, model.safetensors and tokenizer.json"
    if exists:
        raise InputError(message(f"`folder` is {str(path)!r}, which is a file; wanted its folder.", hint))
    name = str(path)
    if not HUB_NAME.fullmatch(name):
        raise InputError(message(f"`folder` is {name!r}; there is no such folder, and it is no name on the hub.", hint))
    return _downloaded(name, hint)


def _downloaded(name: str, hint: str) -> Path:
    """The folder of a model on the hub."""
    if find_spec("huggingface_hub") is None:
        problem = f"`folder` is {name!r}; there is no such folder. As a name on the hub it needs huggingface_hub."
        raise InputError(message(problem, f"{hint}; or {EXTRA}"))
    from huggingface_hub import snapshot_download  # pyright: ignore

    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except Exception as error:  # no network, no such model, no room: each has a class of its own
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        problem = f"`folder` is {name!r}; there is no such folder, and it could not be had from the hub ({why})."
        raise InputError(message(problem, hint)) from error


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object from a file of a model."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            message(f"`{path.parent}` has no {path.name}; wanted {what}.", "give the folder of the model")
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(message(f"`{path}` cannot be read ({error}); wanted {what} as JSON.")) from error
    if not isinstance(known, dict):
        raise InputError(message(f"`{path}` holds a {type(known).__name__}; wanted {what} as a JSON object."))
    return known
