"""`RegularizationPath`: the least loss over growing balls of weights, with the evidence for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from attnlab.data.directions import unit
from attnlab.data.tokens import Array
from attnlab.train.sphere import Measure
from attnlab.train.trajectory import Trained


class PathStatus(Enum):
    """What was found at one radius, as a sentence."""

    SPHERE = "Solved: a minimum on the sphere, and the loss falls outwards there."
    INTERIOR = "Solved: the minimum over the ball lies inside it, not on the sphere."
    INWARD = "A minimum on the sphere, but the loss falls inwards there: it is not the minimum over the ball."
    INACCURATE = "No search reached a minimum; see `residual`."
    FLAT = "The measure changes on the sphere by less than a search can see: to it any direction is as good."
    EDGE = "The search ended at the edge of the cone, where the loss still falls outwards."
    UNDEFINED = "No search could start: no start has a loss above that of the reference tokens and is in the cone."


@dataclass(frozen=True)
class PathProgress:
    """What `on_step` is told after each radius."""

    done: int
    total: int
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RegularizationPath(Trained):
    """The least loss at each radius. Arrays have the trial axis first, if there is one, then one of radii.

    Attributes:
        multiples: the radii as they were asked for, (m,).
        radii: R, (..., m): the bound on |W|_F, on |W|_* = (|K|^2 + |Q|^2) / 2, or on another norm of W.
        weights: by name, each (..., m, ...); NaN where nothing was found. `W`, `K`, `Q` are those of one layer.
        value: the measure there, (..., m); inf where nothing was found.
        measure: "log excess", relative to the best tokens or to `selected`; or "loss".
        residual: how far the first-order condition is from being met, (..., m): on the sphere |tangential gradient| /
            |gradient|; inside the ball |gradient| R, in units of the measure. With a norm of `attnlab.svm.norms`
            1 - <-gradient, W> / (R dual(gradient)) on its sphere, and dual(gradient) R inside.
        radial: derivative of the measure by log R at the solution on the sphere, (..., m).
        starts: names of the searches.
        found: the value each search ended at, (..., m, starts).
        winner: which search was lowest, (..., m).
        evaluations: of loss and gradient, by all searches, (..., m).
        misalignment: 1 - cosine with `toward`, (..., m), or None.
        toward: what it was compared with, or None.
        slack: by how much W is inside the cone, (..., m): barrier less eps; None without a cone.
        eps: of the cone, (...), or None.
        status: a `PathStatus` per radius, (..., m).
        norm: the name of the norm.
        seconds: how long it took.
    """

    multiples: Array
    radii: Array
    weights: Mapping[str, Array]
    value: Array
    measure: Measure
    residual: Array
    radial: Array
    starts: tuple[str, ...]
    found: Array
    winner: NDArray[np.intp]
    evaluations: NDArray[np.intp]
    misalignment: Array | None
    toward: Array | None
    slack: Array | None
    eps: Array | None
    status: NDArray[np.object_]
    norm: str
    seconds: float

    @property
    def directions(self) -> Array:
        """W / |W|_F."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return unit(np, self.W)

    @property
    def spread(self) -> Array:
        """How far the searches ended apart: largest less least value, (..., m). 0 means all agree."""
        ended = np.isfinite(self.found)
        top = np.where(ended, self.found, -np.inf).max(-1)
        return np.where(ended.any(-1), top - np.where(ended.any(-1), self.value, 0.0), np.nan)

    @property
    def solved(self) -> NDArray[np.bool_]:
        """Where a minimum over the ball was found, (..., m)."""
        return (self.status == PathStatus.SPHERE) | (self.status == PathStatus.INTERIOR)

    def __repr__(self) -> str:
        last = ""
        if self.misalignment is not None:
            last = f", misalignment={np.max(self.misalignment[..., -1]):.1e} at {self.multiples[-1]:g} times"
        trials = f"trials={len(self.value)}, " if self.value.ndim == 2 else ""
        done = f"solved={int(self.solved.sum())} of {self.solved.size}"
        return f"RegularizationPath({self.norm}, {trials}{len(self.multiples)} radii, {done}{last})"
