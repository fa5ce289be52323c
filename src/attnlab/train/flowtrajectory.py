"""What a gradient flow leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.train.settling import Judge
from attnlab.train.trajectory import Facts, Saved

# A token whose weight falls faster than t^-1/2 loses it. One that is left behind falls like t^-margin with margin at
# least 1 (the generalized max-margin problem), one that stays has exponent 0: this is halfway.
KEPT_EXPONENT = -0.5


class FlowStatus(Enum):
    """How a flow ended, as a sentence."""

    FINISHED = "Every trial reached the final time."
    UNMOVED = "The final time was reached, but some trials moved by less than float64 can show; see `moved`."
    INCOMPLETE = "The integrator gave up before the final time in some trials; see `reached` and `failures`."


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class FlowTrajectory(Saved):
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
        judge, kept: what `settled` is told by: data and loss, or what a file says.
    """

    kind = ("flow", "flow")
    facts = (*Saved.facts, "time", "failures")

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
    judge: Judge | None = None
    kept: NDArray[Any] = field(default_factory=lambda: np.zeros(0))

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
        return f"FlowTrajectory({'+'.join(self.weights)}, {where}, {self.status.name.lower()}{self._settling()})"

    @classmethod
    def _fields(cls, parts: Facts) -> Facts:
        failures = {int(i): why for i, why in parts["failures"].items()}
        return parts | {"status": FlowStatus[parts["status"]], "failures": failures}
