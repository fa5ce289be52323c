"""The explorer: drag a token, and watch where attention goes. Needs the extra `explore`.

| name | what |
|---|---|
| `explore` | the page on a local server, or a widget in a notebook |
| `Explorer` | what it returns: `url`, `save(path)`, `wait()`, `close()` |

| file | what it is for |
|---|---|
| `scene` | what a message asks about, checked |
| `answers`, `basins` | what is answered, by the laboratory itself |
| `worker` | newest first, older ones not at all; programs compiled ahead |
| `server`, `guard` | the page, the WebSocket, and who may speak to them |
| `presets`, `script`, `export`, `widget` | scenes to begin with; as Python; as one file; in a notebook |
| `page/` | the page: ES modules and a style sheet |
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from attnlab.explore.handle import Explorer as Explorer, explore as explore


class _Room(ModuleType):
    """`al.explore` is a function. Once this package is imported it is also the package: so that is callable too."""

    def __call__(self, *arguments: Any, **options: Any) -> Explorer:
        return explore(*arguments, **options)


sys.modules[__name__].__class__ = _Room
