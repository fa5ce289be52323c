"""The page as files: one ES module and one style sheet, the same for the server, the notebook and the exported file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "page"
# In the order in which one may use the other; the last one exports what hosts call.
MODULES = (
    "drawing",
    "charts",
    "state",
    "geometry",
    "labels",
    "marks",
    "edits",
    "plane",
    "panels",
    "legend",
    "tools",
    "controls",
    "takeaway",
    "hosts",
    "explorer",
)
IMPORT = re.compile(r"^import \{[^}]*\} from \"\./\w+\.js\";\n", re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async function|function|const|class|let) )", re.MULTILINE)


@cache
def module_text() -> str:
    """All modules as one, which imports nothing: their names are unique, and the last one's exports stay."""
    parts = []
    for name in MODULES:
        text = IMPORT.sub("", (FOLDER / f"{name}.js").read_text(encoding="utf-8"))
        parts.append(text if name == MODULES[-1] else EXPORT.sub("", text))
    return "\n".join(parts)


@cache
def style_text() -> str:
    """The style sheet."""
    return (FOLDER / "explorer.css").read_text(encoding="utf-8")


def page_text() -> str:
    """The page of the server."""
    return """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>attnlab explorer</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="explorer.css">
</head>
<body>
<div id="explorer"></div>
<script type="module" src="start.js"></script>
</body>
</html>
"""


START = """import { render, serverHost } from "./explorer.js";
render(document.getElementById("explorer"), serverHost());
"""
