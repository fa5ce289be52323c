"""What a run leaves behind."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnlab.data.files import read_npz, write_npz
from attnlab.data.frames import data_frame
from attnlab.data.scale import matrix_lengths
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.train.settling import Judge

NAMED = 8  # weights that a run prints by name
Facts: TypeAlias = dict[str, Any]  # what is written as JSON: settings, versions, and how a run ended


class Status(Enum):
    """Why a run ended, as a sentence."""

    FINISHED = "All steps were taken."
    ALIGNED = "Every trial reached the wanted alignment, so the run stopped early."
    OUT_OF_TIME = "The time limit was reached; continue with `resume=`."
    NOT_FINITE = "Loss or weights of every trial overflowed; take a smaller step."
    PARTLY_FINITE = "All steps were taken, but loss or weights of some trials overflowed; see `diverged`."
    STALLED = "The rule moves the weights no more, though the gradient is not zero; see `stalled_at` and `remarks`."
    RUNNING = "The run was still going when this was taken; continue with `resume=`."


class Trained:
    """The weights of whatever was trained."""

    weights: Mapping[str, Array]

    @property
    def W(self) -> Array:
        """The combined weights: W itself, or K Q^T."""
        if "W" in self.weights:
            return self.weights["W"]
        with np.errstate(over="ignore", invalid="ignore"):  # of a run that overflowed
            return self.K @ np.swapaxes(self.Q, -1, -2)

    @property
    def K(self) -> Array:
        """Key weights (d, m)."""
        return self._weight("K")

    @property
    def Q(self) -> Array:
        """Query weights (d, m)."""
        return self._weight("Q")

    def _norm(self, trials: int | None) -> float:
        """Of W or K Q^T of one layer, or of all weights; the median over trials."""
        with np.errstate(over="ignore", invalid="ignore"):  # of a run that overflowed
            if set(self.weights) - {"u"} in ({"W"}, {"K", "Q"}):
                return float(np.median(matrix_lengths(self.W)))
            lead = 0 if trials is None else 1
            squares = [np.sum(w**2, axis=tuple(range(lead, w.ndim))) for w in self.weights.values()]
            return float(np.median(np.sqrt(sum(squares))))

    def _weight(self, name: str) -> Array:
        if name not in self.weights:
            raise AttributeError(f"this run trained {', '.join(self.weights)}; there is no {name}")
        return self.weights[name]


class Ended(Trained):
    """A run that knows what it takes to tell whether the tokens it selects are those of its limit."""

    selected: NDArray[np.intp]
    judge: Judge | None
    kept: NDArray[np.bool_]

    @cached_property
    def settled(self) -> NDArray[np.bool_] | None:
        """Which trials keep the tokens they select, however long they go on; shape () or (trials,).

        For W that is proved for gradient flow, which small steps follow: the loss is below that of any other selection
        of the best tokens, or the selection is locally optimal, rivals that score higher have fallen behind, and what
        they can still do is less than one logit. For K and Q, and rivals that score higher, it is checked against the
        max-margin solution in the nuclear norm, and not proved. False says that it is not known. None where there is
        no such theory: other models than one attention layer with a linear head that is not trained, other losses than
        logistic, exponential and correlation, runs by batches.
        """
        if self.judge is not None:
            return self.judge.settled(self.W, self.selected)
        return self.kept if self.kept.dtype == bool else None

    def _settling(self) -> str:
        """For the printed line: how many trials have settled, where that is told at once, and what to do about it."""
        if self.judge is not None and not self.judge.is_cheap:
            return ""
        if self.settled is None:
            return ""
        settled, trials = int(np.sum(self.settled)), int(np.size(self.settled))
        hint = "" if settled == trials else "; more steps or al.flow"
        if self.settled.ndim == 0:
            return ", settled" if settled else f", not settled{hint}"
        others = f"{hint} for the others" if hint else ""
        return f", settled in {settled} of {trials}{others}"


class Saved(Ended):
    """A run that has one npz file to itself; its fields are arrays, but for `groups` of arrays and `facts`."""

    kind: ClassVar[tuple[str, str]]  # as files name it, and messages
    groups: ClassVar[tuple[str, ...]] = ("metrics", "weights", "initial")
    facts: ClassVar[tuple[str, ...]] = ("status", "seconds", "config", "versions")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write everything to one npz file; an old file is replaced only once the new one is whole."""
        arrays, facts = {}, {"kind": self.kind[0]}
        for name, value in vars(self).items():
            if name in ("judge", "settled", "kept"):
                continue
            if name in self.facts:
                facts[name] = value.name if isinstance(value, Enum) else value
            elif name in self.groups:
                parts = value if isinstance(value, Mapping) else dict(enumerate(value))
                arrays |= {f"{name}/{key}": part for key, part in parts.items()}
            else:
                arrays[name] = value
        if (self.judge is None or self.judge.is_cheap) and self.settled is not None:
            arrays["kept"] = self.settled
        return write_npz(path, arrays, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        kind, what = cls.kind
        wanted = f"a {what} saved by {cls.__name__}.save"
        arrays, facts = read_npz(path, wanted)
        if facts.pop("kind", None) != kind:
            raise InputError(message(f"`{path}` is not a saved {what}; wanted {wanted}."))
        try:
            groups: dict[str, dict[str, np.ndarray]] = {group: {} for group in cls.groups}
            for key in [key for key in arrays if "/" in key]:
                group, _, name = key.partition("/")
                groups[group][name] = arrays.pop(key)
            return cls(**cls._fields(facts | arrays | groups))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            problem = f"`{path}` lacks parts of a {what}; wanted {wanted}."
            raise InputError(message(problem, f"save the {what} again")) from error

    @classmethod
    def _fields(cls, parts: Facts) -> Facts:
        """What stands in a file as the fields of a run."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Trajectory(Saved):
    """A run of `descend`: where it ended, what was measured on the way, and what it takes to continue or repeat it.

    Attributes:
        steps: recorded steps, (R,).
        metrics: name -> values, (R,) or (trials, R); see `attnlab.train.metrics.measure` for the names.
        weights: final {"W"} or {"K", "Q"}, and {"u"} if the head was trained; or those of the model.
        initial: the same at step 0.
        selected: token with the largest attention weight at the end, (n,) or (n, K), after the trial axis; of every
            group of heads and every query, (G, n, T), for a model of several heads; (n, T) for an encoder. Empty where
            a run by batches evaluates its examples in portions.
        trials: length of the trial axis, or None without one.
        last_step: the step at which `weights` stand.
        status: why the run ended.
        seconds: time taken, compilation included.
        config: settings and seed, with data and functions as fingerprints.
        versions: of attnlab and of the libraries below it.
        rule_state: state of the step rule, after the coordinates of W where it is held by these; for continuing.
        stalled_at: the step from which each trial stands still though its gradient is not zero, () or (trials,); -1
            where it does not. Of rules of attnlab the first record at which that was seen.
        underflow_at: the first step at which entries of the gradient underflowed that a plain optax rule was given, ()
            or (trials,); -1 for none, and for rules of attnlab, which take gradients of any size.
        lost_at: of a run by batches the step that led to loss or weights that are not finite, () or (trials,); -1 for
            none. It was not taken: `weights` are the last finite ones.
        judge, kept: what `settled` is told by: data and loss, or what a file says.
    """

    kind = ("trajectory", "run")
    groups = (*Saved.groups, "rule_state")
    facts = (*Saved.facts, "trials", "last_step")

    steps: NDArray[np.int64]
    metrics: Mapping[str, Array]
    weights: Mapping[str, Array]
    initial: Mapping[str, Array]
    selected: NDArray[np.intp]
    trials: int | None
    last_step: int
    status: Status
    seconds: float
    config: Facts
    versions: Mapping[str, str]
    rule_state: tuple[np.ndarray, ...]
    stalled_at: NDArray[np.int64] = field(default_factory=lambda: np.array(-1))
    underflow_at: NDArray[np.int64] = field(default_factory=lambda: np.array(-1))
    lost_at: NDArray[np.int64] = field(default_factory=lambda: np.array(-1))
    judge: Judge | None = None
    kept: NDArray[Any] = field(default_factory=lambda: np.zeros(0))

    @property
    def u(self) -> Array:
        """The trained head (d,)."""
        return self._weight("u")

    @property
    def diverged(self) -> NDArray[np.bool_]:
        """Which trials left the finite numbers; shape () or (trials,)."""
        lead = 0 if self.trials is None else 1
        finite = [np.isfinite(w).all(tuple(range(lead, w.ndim))) for w in self.weights.values()]
        return ~np.logical_and.reduce(finite) | (np.asarray(self.lost_at) >= 0)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the numbers should know: trials that stand still, gradients that underflowed, metrics that
        overflowed. Empty for most runs."""
        remarks = [_stalled_remark(self), _underflow_remark(self), _lost_remark(self), _loss_remark(self)]
        remarks += [_metric_remark(self, name) for name in self.metrics]
        return tuple(remark for remark in remarks if remark)

    def frame(self) -> Any:
        """What was recorded as a pandas DataFrame: one row for each record, of every trial where there are several.

        Columns are `step`, `trial` where there is a trial axis, and every metric that is one number at each record.

        >>> import attnlab as al
        >>> run = al.descend(al.data.two_tokens(), al.ngd(0.1), steps=10, record=[0, 5, 10])
        >>> run.frame()[["step", "norm"]].round(1).values.tolist()[1:]
        [[5.0, 0.6], [10.0, 1.0]]
        """
        count = 1 if self.trials is None else self.trials
        shape = (count, len(self.steps))
        columns: dict[str, Any] = {} if self.trials is None else {"trial": np.repeat(np.arange(count), shape[1])}
        columns["step"] = np.tile(self.steps, count)
        for name, values in self.metrics.items():
            if np.shape(values) == (shape if self.trials is not None else shape[1:]):
                columns[name] = np.ravel(values)
        return data_frame(columns, "`metrics` has the same numbers")

    def __repr__(self) -> str:
        trials = "" if self.trials is None else f"trials={self.trials}, "
        loss = f", loss={np.median(self.metrics['loss'][..., -1]):.4g}" if len(self.steps) else ""
        rule = self.config["rule"]["name"]
        trained = "+".join(self.weights) if len(self.weights) <= NAMED else f"{len(self.weights)} weights"
        what = f"{rule} on {trained}"
        where = f"{trials}step={self.last_step}{loss}, norm={self._norm(self.trials):.4g}"
        return f"Trajectory({what}, {where}, {self.status.name.lower()}{self._settling()})"

    @classmethod
    def _fields(cls, parts: Facts) -> Facts:
        state = parts["rule_state"]
        leaves = tuple(state[str(i)] for i in range(len(state)))
        return parts | {"status": Status[parts["status"]], "rule_state": leaves}


# What is infinite or NaN only where it overflowed, or where the weights did.
_FINITE = (
    "loss",
    "excess_loss",
    "test_loss",
    "norm",
    "largest_norm",
    "moved",
    "hidden_moved",
    "step_length",
    "last_step_length",
    "last_gradient_norm",
    "attention",
    "attention_min",
    "top_attention",
)
_INFINITE_ALONE = ("relative_step",)  # NaN where the start is zero
_FINITE_OF_PARTS = ("norm_", "moved_", "distance_")


def _stalled_remark(run: Trajectory) -> str | None:
    stands = np.asarray(run.stalled_at) >= 0
    if not stands.any():
        return None
    first = int(np.min(np.asarray(run.stalled_at)[stands]))
    return f"{_share(stands, run)}nothing moves from step {first} on, though the gradient is not zero."


def _underflow_remark(run: Trajectory) -> str | None:
    lost = np.asarray(run.underflow_at) >= 0
    if not lost.any():
        return None
    first = int(np.min(np.asarray(run.underflow_at)[lost]))
    return (
        f"{_share(lost, run)}entries of the gradient underflow to zero before the optax rule sees them, from step "
        f"{first} on; if its steps do not depend on the size of the gradient, use al.optim.scale_free(rule)."
    )


def _lost_remark(run: Trajectory) -> str | None:
    lost = np.asarray(run.lost_at) >= 0
    if not lost.any():
        return None
    first = int(np.min(np.asarray(run.lost_at)[lost]))
    return f"{_share(lost, run)}step {first} would have led out of the finite numbers; weights stand before it."


def _loss_remark(run: Trajectory) -> str | None:
    """Of a loss given as a function, whose slope may underflow: named losses know theirs in the log domain."""
    logs, loss = run.metrics.get("log_gradient_norm"), run.config.get("loss")
    if not isinstance(loss, Mapping) or "function" not in loss or logs is None or not logs.shape[-1]:
        return None
    zero = np.isneginf(logs[..., -1])
    if not zero.any():
        return None
    return (
        f"{_share(zero, run)}the gradient is exactly zero at the last record, and nothing moves from there on; where a "
        "loss given as a function underflows, so does its slope."
    )


def _metric_remark(run: Trajectory, name: str) -> str | None:
    ours = name in _FINITE or name in _INFINITE_ALONE or name.startswith(_FINITE_OF_PARTS)
    if not ours and name not in (run.config.get("metrics") or {}):
        return None
    values = run.metrics[name]
    bad = np.isinf(values) if name in _INFINITE_ALONE else ~np.isfinite(values)
    if not bad.any():
        return None
    records = 0 if run.trials is None else 1  # the axis of records
    at = bad.any(axis=tuple(i for i in range(bad.ndim) if i != records))
    logs = run.metrics.get(f"log_{name}")
    hint = f"; `log_{name}` holds its logarithm" if logs is not None and np.isfinite(logs[bad]).all() else ""
    return f"`{name}` is not finite, first at step {int(run.steps[np.argmax(at)])}{hint}."


def _share(which: NDArray[np.bool_], run: Trajectory) -> str:
    return "" if run.trials is None else f"In {int(which.sum())} of {run.trials} trials "


@cache  # of files on disk
def _version(library: str) -> str:
    return metadata.version(library)


def library_versions() -> dict[str, str]:
    """Versions of attnlab and of the libraries that decide its numbers."""
    return {name: _version(name) for name in ("attnlab", "jax", "jaxlib", "numpy", "optax")}
