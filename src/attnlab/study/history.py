"""What code a study was run with before, so that a change is told and not wondered at."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.data.fingerprint import digest
from attnlab.data.writing import write_json
from attnlab.errors import AttnlabError
from attnlab.store.folder import versions
from attnlab.store.keys import FORMAT
from attnlab.study.design import Design
from attnlab.study.sending import innermost

WATCHED = ("python", "attnlab", "jax", "numpy", "scipy")


def earlier_code(design: Design, name: str) -> str:
    """Say if the store has results of a study of this name and file that were made with other code; write down ours."""
    now = {"code": _hash(design.code), "format": FORMAT, "versions": {key: versions()[key] for key in WATCHED}}
    home = digest(np.frombuffer(_home(design.function).encode(), dtype=np.uint8))
    path = design.store.path / "studies" / f"{_file_name(name)}-{home[:12]}.json"
    before = _read(path)
    if before != now:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, now)
        except (OSError, AttnlabError):
            pass  # the store itself will tell that it cannot be written
    return _told(before, now) if before else ""


def _told(before: dict[str, Any], now: dict[str, Any]) -> str:
    old, new = before.get("versions", {}), now["versions"]
    changed = [f"{key} {old.get(key, '?')} is now {value}" for key, value in new.items() if old.get(key) != value]
    if before.get("code") != now["code"] or before.get("format") != now["format"]:
        reason = "; ".join(changed) or "the block function, or code that it reaches, was changed"
        return f"Results of an earlier run are not used: {reason}. They stay in the store."
    if changed:
        return f"Some results may be of an earlier run, when versions were others: {'; '.join(changed)}."
    return ""


def _hash(code: dict[str, Any]) -> str:
    return digest(np.frombuffer(json.dumps(code, sort_keys=True).encode(), dtype=np.uint8))


def _home(function: Any) -> str:
    """The file of a function, so that functions of equal names in several files are told apart."""
    inner = innermost(function)
    file = getattr(getattr(inner, "__code__", None), "co_filename", "")
    return str(Path(file).resolve()) if Path(file).is_file() else str(getattr(inner, "__module__", ""))


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:100]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
