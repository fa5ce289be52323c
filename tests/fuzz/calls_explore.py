"""Cases of `al.explore`: scenes as a page sends them, with whatever a foreign client may put into them."""

from __future__ import annotations

import json
from typing import Any

import attnlab as al
from fuzz.arrays import anything
from fuzz.calls import Call, case
from fuzz.scalars import choice, junk
from fuzz.source import Source


def judge_scene(call: Call, explorer: Any) -> str | None:
    """What it is shown with is JSON, and comes back as the same scene."""
    from attnlab.explore.answers import Answers
    from attnlab.explore.scene import read_scene, written

    scene = explorer._shown()
    facts = json.loads(json.dumps(written(scene), allow_nan=False))
    if written(read_scene(facts)) != facts:
        return "the scene does not come back from its JSON"
    json.dumps(Answers(scene).solved(), allow_nan=False)
    return None


@case("explore", weight=0.2, judge=judge_scene)
def explore(src: Source) -> Call:
    n, T, d = src.choose((2, 1, 3)), src.choose((3, 2, 1)), src.choose((2, 1, 3))
    scene: dict[str, Any] = {
        "x": anything(src, (n, T, d)),
        "z": anything(src, (n, d)),
        "y": [1.0] * n,
        "v": anything(src, (d,)),
        "start": anything(src, (d, d)),
        "rule": choice("ngd", "gd", "heavy_ball", "polyak", "adam")(src),
        "loss": choice("logistic", "exponential", "correlation")(src),
    }
    scene = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in scene.items()}
    if src.rarely(3):
        scene[src.choose((*scene, "plane", "pull", "chosen", "steps", "head", "mask", "nothing"))] = junk(src)
    return Call(al.explore, (scene,), {"serve": False})
