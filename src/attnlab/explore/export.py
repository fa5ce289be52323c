"""One self-contained HTML file: a scene with its answers, and frames in which one token stands elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import replace
from typing import Any

import numpy as np

from attnlab.checks import instance, shown, whole
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.explore.answers import Answers, Cancelled, Stale
from attnlab.explore.files import module_text, style_text
from attnlab.explore.scene import Facts, Scene, written
from attnlab.explore.script import as_python

SIDE = 11  # frames along an edge of the square in which the token moves
REACH = 0.6  # half of that edge, over the spread of all tokens
LONGEST_TITLE = 200
START = """
const content = JSON.parse(document.getElementById("content").textContent);
render(document.getElementById("explorer"), frozenHost(content));
"""


def exported(
    scene: Scene, moved: Any = None, title: Any = None, stale: Cancelled = lambda: False, *, side: int = SIDE
) -> str:
    """The text of the file.

    Args:
        scene: what it shows.
        moved: [sequence, token] of the token that the reader can drag; None for the first of the first.
        title: over the page.
        stale: is nobody waiting any more?
        side: frames along an edge of the square of places to which the token can be dragged; 0 for none.
    """
    sequence, token = _moved(moved, scene)
    name = _title(title)
    content: Facts = {
        "scene": written(scene),
        "title": name,
        "python": as_python(scene),
        "answers": _answers(scene),
        "moved": [sequence, token],
        "frames": [],
    }
    for place in _places(scene, sequence, token, side):
        if stale():
            raise Stale
        there = _with_token(scene, sequence, token, place)
        content["frames"].append({"token": there.tokens.x[sequence, token].tolist(), **_answers(there)})
    return _page(name, content)


def _answers(scene: Scene) -> Facts:
    answers = Answers(scene)
    solved = answers.solved()
    return {"solved": solved, "trained": answers.trained()}


def _moved(moved: Any, scene: Scene) -> tuple[int, int]:
    given = [0, 0] if moved is None else instance("moved", moved, list, "[sequence, token]")
    if len(given) != 2:
        raise InputError(message(f"`moved` is {shown(moved)}; wanted [sequence, token]."))
    sequence = whole("moved[0]", given[0], 0, scene.tokens.n - 1)
    return sequence, whole("moved[1]", given[1], 0, scene.lengths[sequence] - 1)


def _title(title: Any) -> str:
    name = "attnlab explorer" if title is None else instance("title", title, str, "text")
    if len(name) > LONGEST_TITLE:
        raise InputError(message(f"`title` has {len(name)} characters; at most {LONGEST_TITLE} are taken."))
    return name


def _places(scene: Scene, sequence: int, token: int, side: int) -> Array:
    """Where the token can be dragged to: a square around where it is, in the plane; (side^2, 2)."""
    if side == 0:
        return np.zeros((0, 2))
    points = (scene.tokens.x @ scene.plane.T)[np.arange(scene.tokens.T) < np.array(scene.lengths)[:, None]]
    spread = float(np.ptp(points, axis=0).max()) or 1.0
    middle = scene.tokens.x[sequence, token] @ scene.plane.T
    line = REACH * spread * np.linspace(-1.0, 1.0, side)
    across, up = np.meshgrid(line, line)
    return middle + np.stack([across.reshape(-1), up.reshape(-1)], axis=-1)


def _with_token(scene: Scene, sequence: int, token: int, place: Array) -> Scene:
    """The scene with this token moved in the plane; what the plane does not see of it stays."""
    tokens = scene.tokens
    x = np.array(tokens.x)
    x[sequence, token] += (place - x[sequence, token] @ scene.plane.T) @ scene.plane
    return replace(scene, tokens=Tokens(x=x, z=tokens.z, y=tokens.y, v=tokens.v, mask=tokens.mask))


def _page(title: str, content: Facts) -> str:
    script = module_text() + START
    style = style_text()
    policy = f"default-src 'none'; img-src data: blob:; script-src {_hash(script)}; style-src {_hash(style)}"
    # Inside a script element "</" and "<!--" would end or change it.
    data = json.dumps(content, allow_nan=False).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{html.escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n'
        f'<body>\n<div id="explorer"></div>\n<script type="application/json" id="content">{data}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def _hash(text: str) -> str:
    """What a content security policy knows a script by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
