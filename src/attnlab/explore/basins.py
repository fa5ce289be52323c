"""Which start ends where: `al.limits` from starts that lie on a grid or a circle of the plane."""

from __future__ import annotations

import time
from typing import Any, Literal, cast

import numpy as np

from attnlab.checks import instance, number, one_of, shown, whole
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.explore.answers import Cancelled, Stale
from attnlab.explore.scene import SHAPES, Facts, Scene, balanced_factors, pulled

SIDE, AROUND = 16, 64  # starts along an edge of the grid, and around the circle
STEPS = 6400  # of the longest run
SECONDS = 20.0
FIELDS = ("shape", "radius", "query", "parameterization")


def basins(scene: Scene, given: Any, stale: Cancelled = lambda: False) -> Facts:
    """For each start the selection it ends in; starts differ from the scene's in what they make of one query.

    `given` has the fields "shape" (grid or circle), "radius", "query" and "parameterization".
    """
    from attnlab.reports.limits import limits

    asked = instance("basins", given, dict, f"an object with {', '.join(FIELDS)}")
    if set(asked) != set(FIELDS):
        raise InputError(message(f"`basins` has fields {shown(sorted(map(str, asked)))}; wanted {', '.join(FIELDS)}."))
    one_of("basins.shape", asked["shape"], SHAPES)
    one_of("basins.parameterization", asked["parameterization"], ("W", "KQ"))
    radius = number("basins.radius", asked["radius"], above=0, most=100)
    query = whole("basins.query", asked["query"], 0, scene.rows - 1)
    if scene.head != "linear":
        problem = "`basins` are told apart by the selected tokens; a concave head keeps several."
        raise InputError(message(problem, "head 'linear'"))
    places = _places(asked["shape"], radius)  # (starts, 2)
    began = time.perf_counter()

    def look(_: int, __: int) -> None:
        if stale():
            raise Stale
        if time.perf_counter() - began > SECONDS:
            raise InputError(
                message(f"`basins` take longer than {SECONDS:g} seconds here.", "al.limits takes its time")
            )

    starts = pulled(scene.start, scene.queries[query], places @ scene.plane)
    keys, queries = balanced_factors(starts)
    found = limits(
        scene.tokens,
        len(places),
        rule=scene.step_rule(),
        steps=STEPS,
        parameterization=cast(Literal["W", "KQ"], asked["parameterization"]),
        loss=cast(Any, scene.loss),
        init={"W": starts} if asked["parameterization"] == "W" else {"K": keys, "Q": queries},
        on_step=look,
    )
    return {
        "shape": asked["shape"],
        "radius": radius,
        "query": query,
        "places": places.round(6).tolist(),
        "limit": found.limit_of.tolist(),
        "settled": (found.settled_at >= 0).tolist(),
        "limits": [row.record() for row in found.limits if row.runs],
        "verdict": found.verdict,
        "seconds": found.seconds,
    }


def _places(shape: str, radius: float) -> Array:
    """Where W at step 0 takes the query, in the plane; (starts, 2)."""
    if shape == "circle":
        angles = 2.0 * np.pi * np.arange(AROUND) / AROUND
        return radius * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    # Middles of cells: none is zero, from which K and Q would never move.
    line = radius * (2.0 * (np.arange(SIDE) + 0.5) / SIDE - 1.0)
    across, up = np.meshgrid(line, line)
    return np.stack([across.reshape(-1), up.reshape(-1)], axis=-1)
