"""A study from a file: Python with a `Study` in it, or TOML for a ready measure."""

from __future__ import annotations

import os
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

from attnlab.checks import shown
from attnlab.data.writing import as_path
from attnlab.errors import AttnlabError, InputError, message
from attnlab.study.study import Study

KEYS = ("measure", "grid", "points", "trials", "seed", "name", "block")
_HINT = """measure = "direction", trials = 200, [grid], n = [5, 10]"""


def read_study(path: str | os.PathLike[str], name: str | None = None) -> Study:
    """The study that a file describes.

    Args:
        path: NAME.py with one `Study` among its names, or NAME.toml with `measure`, `trials`, `seed` and a table `grid`
            of lists (or an array of tables `points`).
        name: which, in a Python file that has several.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "small.toml"
    >>> _ = file.write_text("measure = 'direction'\\ntrials = 20\\n[grid]\\nd = [5, 10]\\n")
    >>> read_study(file)
    Study(small, 2 points, 20 trials each)
    """
    file = as_path("path", path, "a file")
    if not file.is_file():
        raise InputError(message(f"There is no file `{file}`.", "a Python file with a Study, or a TOML file"))
    if file.suffix == ".toml":
        return _from_toml(file)
    if file.suffix != ".py":
        raise InputError(message(f"`{file}` ends in {file.suffix!r}; wanted a .py or a .toml file."))
    return _from_python(file, name)


def _from_python(file: Path, name: str | None) -> Study:
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as by `python FILE`: what lies beside it can be imported
    try:
        found = runpy.run_path(str(file), run_name=file.stem)
    except AttnlabError:
        raise
    except Exception as error:
        problem = f"`{file}` cannot be run ({type(error).__name__}: {error})."
        raise InputError(message(problem, f"python {file}")) from error
    studies = {key: value for key, value in found.items() if isinstance(value, Study)}
    if name is not None:
        if name not in studies:
            raise InputError(message(f"`{file}` has no study named {name!r}; it has {', '.join(studies) or 'none'}."))
        return studies[name]
    if len(studies) != 1:
        listed = ", ".join(studies) or "none"
        raise InputError(message(f"`{file}` has {len(studies)} studies ({listed}); wanted one.", f"{file}:NAME"))
    return next(iter(studies.values()))


def _from_toml(file: Path) -> Study:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(message(f"`{file}` is no TOML: {error}.", _HINT)) from error
    unknown = sorted(set(content) - set(KEYS))
    if unknown:
        raise InputError(message(f"`{file}` has {', '.join(unknown)}; wanted some of {', '.join(KEYS)}.", _HINT))
    if ("grid" in content) == ("points" in content) or not isinstance(content.get("measure"), str):
        raise InputError(message(f"`{file}` must name a `measure`, and have either `grid` or `points`.", _HINT))
    grid: Any = content["grid"] if "grid" in content else content["points"]
    if "grid" in content and isinstance(grid, dict):
        grid = {key: value if isinstance(value, list) else [value] for key, value in grid.items()}
    options = {key: content[key] for key in ("trials", "seed", "block") if key in content}
    name = content.get("name", file.stem)
    if not isinstance(name, str):
        raise InputError(message(f"`name` is {shown(name)}; wanted a word."))
    return Study(content["measure"], grid, name=name, **options)
