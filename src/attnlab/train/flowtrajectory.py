"""What a gradient flow leaves behind."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnlab.data.files import read_npz, write_npz
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.train.trajectory import Facts, Trained

# A token whose weight falls faster than t^-1/2 loses it. One that is left behind falls like t^-margin with margin at
# least 1 (the generalized max-margin problem), one that stays has exponent 0: this is halfway.
KEPT_EXPONENT = -0.5


class FlowStatus(Enum):
    """How a flow ended, as a sentence."""

    FINISHED = "Every trial reached the final time."
    UNMOVED = "The final time was reached, but some trials moved by less than float64 can show; see `moved`."
    INCOMPLETE = "The integrator gave up before the final time in some trials; see `reached` and `failures`."


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class FlowTrajectory(Trained):
    """A run of `flow`: where it ended, what was measured on the way, and how hard it was to integrate.

    Attributes:
        times: recorded times, (R,).
        metrics: name -> values, (R,) or (trials, R); the names of `attnlab.train.metrics.measure` without those of
            steps. NaN at times that a trial did not reach.
        weights: {"W"} or {"K", "Q"} at the time `reached`.
        initial: the same at time 0.
        selected: token with the largest attention weight at the end, (n,) or (n, K), after the trial axis.
        attention: attention weights at the end, (n, T) or (n, K, T) after the trial axis.
        exponent: e such that each weight went like t^e over the last decade of time; -inf where masked, NaN where the
            trial gave up.
        time: the final time asked for.
        reached: the time at which `weights` stand, () or (trials,).
        status: how the flow ended.
        failures: why a trial gave up, by trial number.
        steps, evaluations, jacobians: of the integrator, () or (trials,).
        seconds: time taken, compilation included.
        config: settings and seed, with data and functions as fingerprints.
        versions: of attnlab and of the libraries below it.
    """

    times: Array
    metrics: Mapping[str, Array]
    weights: Mapping[str, Array]
    initial: Mapping[str, Array]
    selected: NDArray[np.intp]
    attention: Array
    exponent: Array
    time: float
    reached: Array
    status: FlowStatus
    failures: Mapping[int, str]
    steps: NDArray[np.int64]
    evaluations: NDArray[np.int64]
    jacobians: NDArray[np.int64]
    seconds: float
    config: Facts
    versions: Mapping[str, str]

    @property
    def support(self) -> NDArray[np.bool_]:
        """Which tokens keep weight: those whose weight fell slower than t^-1/2 over the last decade of time."""
        return self.exponent > KEPT_EXPONENT

    @property
    def success(self) -> NDArray[np.bool_]:
        """Which trials reached the final time; shape () or (trials,)."""
        return np.asarray(self.reached) >= self.time

    @property
    def moved(self) -> NDArray[np.bool_]:
        """Which trials have other weights at the end than at the start; shape () or (trials,)."""
        axes = {name: tuple(range(0 if self.trials is None else 1, w.ndim)) for name, w in self.weights.items()}
        changed = [np.any(w != self.initial[name], axis=axes[name]) for name, w in self.weights.items()]
        return np.logical_or.reduce(changed)

    @property
    def trials(self) -> int | None:
        """Length of the trial axis, or None without one."""
        return self.reached.shape[0] if self.reached.ndim else None

    def __repr__(self) -> str:
        trials = "" if self.trials is None else f"trials={self.trials}, "
        where = f"{trials}time={self.time:.4g}, norm={self._norm(self.trials):.4g}, steps={int(np.sum(self.steps))}"
        return f"FlowTrajectory({'+'.join(self.weights)}, {where}, {self.status.name.lower()})"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write everything to one npz file; an old file is replaced only once the new one is whole."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        for group in _GROUPS:
            arrays |= {f"{group}/{name}": value for name, value in getattr(self, group).items()}
        facts = {
            "kind": "flow",
            "time": self.time,
            "status": self.status.name,
            "failures": {str(i): why for i, why in self.failures.items()},
            "seconds": self.seconds,
            "config": dict(self.config),
            "versions": dict(self.versions),
        }
        return write_npz(path, arrays, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FlowTrajectory:
        """Read what `save` wrote."""
        wanted = "a flow saved by FlowTrajectory.save"
        arrays, facts = read_npz(path, wanted)
        if facts.pop("kind", None) != "flow":
            raise InputError(message(f"`{path}` is not a saved flow; wanted {wanted}."))
        try:
            return cls._from_file(arrays, facts)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(message(f"`{path}` lacks parts of a flow; wanted {wanted}.", "save it again")) from error

    @classmethod
    def _from_file(cls, arrays: dict[str, np.ndarray], facts: Facts) -> FlowTrajectory:
        groups: dict[str, dict[str, np.ndarray]] = {group: {} for group in _GROUPS}
        for key in [key for key in arrays if "/" in key]:
            group, _, name = key.partition("/")
            groups[group][name] = arrays.pop(key)
        status = FlowStatus[facts.pop("status")]
        failures = {int(i): why for i, why in facts.pop("failures").items()}
        return cls(status=status, failures=failures, **facts, **arrays, **groups)  # pyright: ignore[reportArgumentType]


_ARRAYS = ("times", "selected", "attention", "exponent", "reached", "steps", "evaluations", "jacobians")
_GROUPS = ("metrics", "weights", "initial")
