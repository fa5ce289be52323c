"""The loop of a run: steps, records, stops and continuation, whatever is trained."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from attnlab.errors import InputError, message
from attnlab.optim.rule import StepRule
from attnlab.train.blocks import in_blocks
from attnlab.train.metrics import View
from attnlab.train.program import Reads, advance, make_room
from attnlab.train.trajectory import Status, Trajectory, library_versions

# Between two looks at the clock, the callback and the stop rules a run computes for about this long.
SECONDS_BETWEEN_LOOKS = 0.5
FIRST_LOOK = 64  # steps
RECORDS_TOGETHER = 32  # taken by one call of the compiled program
# What two parts of one run must agree on.
SAME_RUN = (
    "tokens",
    "rule",
    "model",
    "parameterization",
    "loss",
    "head",
    "train_head",
    "rank",
    "init",
    "init_scale",
    "seed",
    "engine",
)


@dataclass(frozen=True)
class Progress:
    """What `on_step` is told: where the run stands, and a way to take it away as a `Trajectory`."""

    step: int
    steps: int
    seconds: float
    snapshot: Callable[[], Trajectory]


@dataclass(frozen=True)
class Job:
    """What is trained, on what, from where; every array with a trial axis.

    Attributes:
        model: hashable; has `gradient`, `objective`, `log_objective` and `log_excess`.
        measure: what is recorded; see `attnlab.train.metrics.measure`.
        problem: the data in the form that the model works on.
        params: parameters at step 0, as the model holds them.
        tracked, targets: what `measure` compares with.
        start: weights at step 0, as the user knows them, with the trial axis of the tokens.
        weights: parameters -> weights.
        selected: parameters -> the tokens with the largest attention.
        exact: parameters that cannot be found again from the weights to the last digit.
    """

    model: Any
    measure: Callable[..., dict[str, Any]]
    problem: Any
    params: dict[str, Any]
    tracked: Any
    targets: dict[str, Any]
    start: dict[str, np.ndarray]
    weights: Callable[[dict[str, Any]], dict[str, Any]]
    selected: Callable[[dict[str, Any]], np.ndarray]
    exact: tuple[str, ...] = ()


class Loop:
    """A run in progress: the arrays on their way, and what has been recorded."""

    def __init__(
        self,
        job: Job,
        rule: optax.GradientTransformation,
        user: tuple[tuple[str, Callable[[View], Any]], ...],
        trials: int | None,
        config: dict[str, Any],
        began: float,
    ) -> None:
        self.job, self.rule, self.user, self.trials, self.config, self.began = job, rule, user, trials, config, began
        self.compiled = False
        make_room()
        self.step, self.earlier = 0, 0.0
        self.params: Any = job.params
        self.state: Any = jax.tree.map(np.asarray, jax.vmap(rule.init)(job.params))
        self.records: list[tuple[int, dict[str, np.ndarray]]] = []

    def go_on(self, run: Trajectory, schedule: tuple[int, ...]) -> None:
        """Take up `run` where it ended, keeping those of its records that the schedule asks for."""
        differ = [k for k in SAME_RUN if run.config.get(k) != self.config[k]]
        if differ:
            raise InputError(
                message(f"`resume` is a run with another {', '.join(differ)}; both parts must have the same settings.",
                        "to start afresh from its weights use init=run.weights")
            )  # fmt: skip
        if run.last_step > self.config["steps"]:
            raise InputError(
                message(f"`resume` stands at step {run.last_step}, past `steps` = {self.config['steps']}.")
            )

        self.step, self.earlier = run.last_step, run.seconds
        leaves, tree = jax.tree.flatten((self._exact(), self.state))
        if [np.shape(a) for a in leaves] != [a.shape for a in run.rule_state]:
            raise InputError(message("`resume` has a rule state of another shape than this rule's."))
        exact, self.state = tree.unflatten(list(run.rule_state))
        self.params = {k: w[None] if self.trials is None else w for k, w in run.weights.items()} | exact
        wanted = set(schedule)
        for i, at in enumerate(run.steps):
            if int(at) in wanted:
                pick = {k: v[None, i] if self.trials is None else v[:, i] for k, v in run.metrics.items()}
                self.records.append((int(at), pick))

    def run(
        self,
        schedule: tuple[int, ...],
        steps: int,
        on_step: Callable[[Progress], None] | None,
        stop_misalignment: float | None,
        stop_seconds: float | None,
    ) -> Trajectory:
        done, wanted = {at for at, _ in self.records}, set(schedule)
        ahead = sorted(({at for at in schedule if at >= self.step} | {steps}) - done)
        # A stop rule on what is recorded must see each record before the next step is taken.
        together = 1 if stop_misalignment is not None or not schedule else RECORDS_TOGETHER
        look = FIRST_LOOK
        while ahead:
            if self._lost():
                return self.trajectory(Status.NOT_FINITE)
            if stop_misalignment is not None and self._aligned(stop_misalignment):
                return self.trajectory(Status.ALIGNED)
            lengths = _next_lengths(self.step, ahead, look, together)
            lap = time.perf_counter()
            found = self._advance(lengths, together, recording=bool(schedule))
            lap = time.perf_counter() - lap
            pace = min(8.0, max(0.25, SECONDS_BETWEEN_LOOKS / max(lap, 1e-6)))
            look = max(1, int(min(look * pace, steps)))  # a run of many records need not ever use up its look
            for i, at in enumerate(self.step - sum(lengths) + np.cumsum(lengths)):
                if at == ahead[0]:
                    ahead.pop(0)
                    if at in wanted:
                        self.records.append((int(at), {k: v[:, i] for k, v in found.items()}))
            if on_step is not None:
                on_step(Progress(self.step, steps, self.seconds, partial(self.trajectory, Status.RUNNING)))
            if ahead and stop_seconds is not None and self.seconds - self.earlier > stop_seconds:
                return self.trajectory(Status.OUT_OF_TIME)
        return self.trajectory(Status.NOT_FINITE if self._lost() else Status.FINISHED)

    @property
    def seconds(self) -> float:
        """Time spent on this run so far, in all its parts."""
        return self.earlier + time.perf_counter() - self.began

    def _advance(self, lengths: list[int], together: int, recording: bool) -> dict[str, np.ndarray]:
        reads: Reads = "scaled"
        if not isinstance(self.rule, StepRule):
            reads = "extra" if isinstance(self.rule, optax.GradientTransformationExtraArgs) else "plain"
        self.params, self.state, found = in_blocks(
            partial(
                advance,
                model=self.job.model,
                measure=self.job.measure,
                update=self.rule.update,
                reads=reads,
                user=self.user,
                recording=recording,
            ),
            (self.job.problem, self.params, self.state, self.job.tracked, self.job.targets),
            np.array(lengths + [0] * (together - len(lengths))),
            len(lengths),
            compiled=self.compiled,
        )
        self.compiled = True
        self.step += sum(lengths)
        return found

    def _exact(self) -> dict[str, Any]:
        """The parameters that the weights do not give back to the last digit."""
        return {name: self.params[name] for name in self.job.exact}

    def _lost(self) -> bool:
        """Have all trials overflowed?"""
        bad = [~np.isfinite(p).reshape(p.shape[0], -1).all(1) for p in self.params.values()]
        return bool(np.logical_or.reduce(bad).all())

    def _aligned(self, limit: float) -> bool:
        """Does the run stand at a record where every misalignment is at most `limit`?"""
        if not self.records or self.records[-1][0] != self.step:
            return False
        apart = [
            v for k, v in self.records[-1][1].items() if k in {f"misalignment_{name}" for name in self.job.targets}
        ]
        return all((v <= limit).all() for v in apart)

    def trajectory(self, status: Status) -> Trajectory:
        """The run as it stands."""

        def without_axis(a: Any) -> np.ndarray:
            return np.array(a[0] if self.trials is None else a)

        names = self.records[0][1] if self.records else {}
        stacked = {k: np.stack([found[k] for _, found in self.records], axis=1) for k in names}
        return Trajectory(
            steps=np.array([at for at, _ in self.records], dtype=np.int64),
            metrics={k: without_axis(v) for k, v in stacked.items()},
            weights={k: without_axis(v) for k, v in self.job.weights(self.params).items()},
            initial=self.job.start,
            selected=without_axis(self.job.selected(self.params)),
            trials=self.trials,
            last_step=self.step,
            status=status,
            seconds=self.seconds,
            config=self.config,
            versions=library_versions(),
            rule_state=tuple(np.asarray(a) for a in jax.tree.leaves((self._exact(), self.state))),
        )


def _next_lengths(step: int, ahead: list[int], look: int, together: int) -> list[int]:
    """Intervals from `step` through the next stops, as many as fit into `look` steps; a long one is cut."""
    lengths: list[int] = []
    for stop in ahead[:together]:
        room = look - sum(lengths)
        gap = stop - step - sum(lengths)
        if lengths and gap > room:
            break
        lengths.append(min(gap, room))
        if gap > room:
            break
    return lengths
