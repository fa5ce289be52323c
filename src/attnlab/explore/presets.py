"""Scenes that have something to show, and what to look for in each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from attnlab.explore.scene import Facts, read_scene, written


@dataclass(frozen=True)
class Preset:
    """A scene with a name, and a hint to whoever looks at it.

    Attributes:
        id: in the address of the page.
        title: in the menu.
        hint: what to see and what to try.
        scene: the fields of the message.
        view: how the page shows it, where that is not as usual.
    """

    id: str
    title: str
    hint: str
    scene: Facts
    view: Facts

    def to_json(self) -> Facts:
        """What the page is told."""
        about = {"id": self.id, "title": self.title, "hint": self.hint, "view": self.view}
        return about | {"scene": written(read_scene(self.scene))}


@cache
def presets() -> tuple[Preset, ...]:
    """All of them; the first is the first picture."""
    return (_parting(), _trap(), _local(), _tie(), _infeasible(), _concave())


def _parting() -> Preset:
    from attnlab.data import two_clusters

    hint = (
        "One matrix W and the product of K and Q select the same tokens, but part ways in direction: W turns to the "
        "max-margin direction in the Frobenius norm, (K, Q) to that in the nuclear norm. Drag a token or a query."
    )
    scene = _of_tokens(two_clusters(seed=6)) | {"start": [[0.05, 0.02], [-0.03, 0.04]]}
    return Preset("parting", "W and (K, Q) part ways", hint, scene, {})


def _trap() -> Preset:
    from attnlab.data import trap

    hint = (
        "The counterexample to Theorem 4: from this start, what the second sequence gains takes the first one further "
        "from its best token, and it stays there for ever. Drag the start of W z, or ask which start ends where."
    )
    scene = _of_tokens(trap("plain")) | {"start": [[-2.0, 0.0], [0.0, 0.0]]}
    return Preset("trap", "Two sequences that trap each other", hint, scene, {"radius": 3.0})


def _local() -> Preset:
    hint = (
        "The token on the left is not the best one. But the only token that holds its direction in place scores "
        "lower: it is locally optimal, and descent from this start stays with it. Drag the start to the right."
    )
    scene: Facts = {
        "x": [[[1.2, 0.9], [-1.1, 0.35], [-0.1, -0.15], [0.3, -0.8]]],
        "z": [[1.0, 0.4]],
        "y": [1],
        "v": [0.1, 1.0],
        "start": [[-3.0, 0.0], [1.2, 0.0]],
    }
    return Preset("local", "Local against global", hint, scene, {"radius": 4.0})


def _tie() -> Preset:
    hint = (
        "Two tokens have the same score, and descent has no reason to prefer one to the other for their scores. "
        "Move one of them a little along the direction of the head."
    )
    scene: Facts = {
        "x": [[[1.0, 0.6], [-0.6, 1.0], [-0.3, -0.9]]],
        "z": [[1.0, 0.2]],
        "y": [1],
        "v": [0.25, 1.0],
        "start": [[0.05, 0.0], [0.0, 0.02]],
    }
    return Preset("tie", "A tie", hint, scene, {})


def _infeasible() -> Preset:
    hint = (
        "Both sequences ask the same query and have opposite labels: no W gives both their best token. The weighted "
        "differences of the proof (Farkas) add up to zero. Turn one query away, and the best tokens can be separated."
    )
    scene: Facts = {
        "x": [[[0.9, 0.5], [-0.6, 0.2], [0.2, -0.8]], [[0.3, 0.9], [-0.9, -0.1], [0.5, -0.5]]],
        "z": [[1.0, 0.3], [1.0, 0.3]],
        "y": [1, -1],
        "v": [1.0, 0.4],
        "start": [[0.05, 0.0], [0.0, 0.02]],
    }
    return Preset("infeasible", "Infeasible", hint, scene, {"of": "best"})


def _concave() -> Preset:
    hint = (
        "A head that prefers mixtures, h(o) = v.o - λ|o|²: attention keeps two tokens, level with each other, and "
        "loses the third. Less strength λ lets it keep one."
    )
    scene: Facts = {
        "x": [[[1.0, 0.2], [0.25, 1.0], [-0.7, -0.5]]],
        "z": [[1.0, 0.3]],
        "y": [1],
        "v": [1.0, 1.1],
        "head": "concave",
        "strength": 0.6,
        "rule": "gd",
        "step": 1.0,
        "start": [[0.05, 0.0], [0.0, 0.02]],
    }
    return Preset("concave", "A concave head keeps two tokens", hint, scene, {})


def _of_tokens(tokens: Any) -> Facts:
    """The data, with four digits: enough for the eye, and short in an address."""
    return {
        "x": tokens.x.round(4).tolist(),
        "z": tokens.z.round(4).tolist(),
        "y": tokens.y.tolist(),
        "v": tokens.v.round(4).tolist(),
    }
