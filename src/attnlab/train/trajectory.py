"""What a run leaves behind."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.data.files import read_npz, write_npz
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message


class Status(Enum):
    """Why a run ended, as a sentence."""

    FINISHED = "All steps were taken."
    ALIGNED = "Every trial reached the wanted alignment, so the run stopped early."
    OUT_OF_TIME = "The time limit was reached; continue with `resume=`."
    NOT_FINITE = "The weights of every trial overflowed; take a smaller step."
    RUNNING = "The run was still going when this was taken; continue with `resume=`."


class Trained:
    """The weights of whatever was trained."""

    weights: Mapping[str, Array]

    @property
    def W(self) -> Array:
        """The combined weights: W itself, or K Q^T."""
        if "W" in self.weights:
            return self.weights["W"]
        return self.K @ np.swapaxes(self.Q, -1, -2)

    @property
    def K(self) -> Array:
        """Key weights (d, m)."""
        return self._weight("K")

    @property
    def Q(self) -> Array:
        """Query weights (d, m)."""
        return self._weight("Q")

    def _weight(self, name: str) -> Array:
        if name not in self.weights:
            raise AttributeError(f"this run trained {', '.join(self.weights)}; there is no {name}")
        return self.weights[name]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Trajectory(Trained):
    """A run of `descend`: where it ended, what was measured on the way, and what it takes to continue or repeat it.

    Attributes:
        steps: recorded steps, (R,).
        metrics: name -> values, (R,) or (trials, R); see `attnlab.train.metrics.measure` for the names.
        weights: final {"W"} or {"K", "Q"}, and {"u"} if the head was trained; or those of the model.
        initial: the same at step 0.
        selected: token with the largest attention weight at the end, (n,) or (n, K), after the trial axis; of every
            group of heads and every query, (G, n, T), for a model of several heads; (n, T) for an encoder.
        trials: length of the trial axis, or None without one.
        last_step: the step at which `weights` stand.
        status: why the run ended.
        seconds: time taken, compilation included.
        config: settings and seed, with data and functions as fingerprints.
        versions: of attnlab and of the libraries below it.
        rule_state: state of the step rule, after the coordinates of W where it is held by these; for continuing.
    """

    steps: NDArray[np.int64]
    metrics: Mapping[str, Array]
    weights: Mapping[str, Array]
    initial: Mapping[str, Array]
    selected: NDArray[np.intp]
    trials: int | None
    last_step: int
    status: Status
    seconds: float
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    rule_state: tuple[np.ndarray, ...]

    @property
    def u(self) -> Array:
        """The trained head (d,)."""
        return self._weight("u")

    @property
    def diverged(self) -> NDArray[np.bool_]:
        """Which trials ended with weights that are not finite; shape () or (trials,)."""
        lead = 0 if self.trials is None else 1
        finite = [np.isfinite(w).all(tuple(range(lead, w.ndim))) for w in self.weights.values()]
        return ~np.logical_and.reduce(finite)

    def __repr__(self) -> str:
        trials = "" if self.trials is None else f"trials={self.trials}, "
        lead = 0 if self.trials is None else 1
        if {"W", "K"} & set(self.weights):
            norm = np.median(np.linalg.norm(self.W, axis=(-2, -1)))
        else:
            with np.errstate(over="ignore", invalid="ignore"):  # of a run that overflowed
                squares = [np.sum(w**2, axis=tuple(range(lead, w.ndim))) for w in self.weights.values()]
                norm = np.median(np.sqrt(sum(squares)))
        loss = f", loss={np.median(self.metrics['loss'][..., -1]):.4g}" if len(self.steps) else ""
        rule = self.config["rule"]["name"]
        return (
            f"Trajectory({rule} on {'+'.join(self.weights)}, {trials}step={self.last_step}{loss}, norm={norm:.4g}, "
            f"{self.status.name.lower()})"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write everything to one npz file; an old file is replaced only once the new one is whole."""
        arrays: dict[str, np.ndarray] = {"steps": self.steps, "selected": self.selected}
        for group in ("metrics", "weights", "initial"):
            arrays |= {f"{group}/{name}": value for name, value in getattr(self, group).items()}
        arrays |= {f"rule_state/{i}": leaf for i, leaf in enumerate(self.rule_state)}
        facts = {
            "kind": "trajectory",
            "trials": self.trials,
            "last_step": self.last_step,
            "status": self.status.name,
            "seconds": self.seconds,
            "config": dict(self.config),
            "versions": dict(self.versions),
        }
        return write_npz(path, arrays, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trajectory:
        """Read what `save` wrote."""
        wanted = "a run saved by Trajectory.save"
        arrays, facts = read_npz(path, wanted)
        if facts.get("kind") != "trajectory":
            raise InputError(message(f"`{path}` is not a saved run; wanted {wanted}."))
        groups: dict[str, dict[str, np.ndarray]] = {
            "metrics": {},
            "weights": {},
            "initial": {},
            "rule_state": {},
        }
        for key, value in arrays.items():
            group, _, name = key.partition("/")
            if name:
                groups[group][name] = value
        state = groups.pop("rule_state")
        return cls(
            steps=arrays["steps"],
            selected=arrays["selected"],
            trials=facts["trials"],
            last_step=facts["last_step"],
            status=Status[facts["status"]],
            seconds=facts["seconds"],
            config=facts["config"],
            versions=facts["versions"],
            rule_state=tuple(state[str(i)] for i in range(len(state))),
            **groups,
        )


def library_versions() -> dict[str, str]:
    """Versions of attnlab and of the libraries that decide its numbers."""
    return {name: metadata.version(name) for name in ("attnlab", "jax", "jaxlib", "numpy", "optax")}
