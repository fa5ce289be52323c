"""The loop of a run: steps, records, stops and continuation, whatever is trained."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import cast

import jax
import numpy as np
import optax

from attnlab.data.families import Seed
from attnlab.errors import InputError, message
from attnlab.models.scaled import Params, Tree, Value
from attnlab.optim.rule import StepRule
from attnlab.train.batches import Feed
from attnlab.train.blocks import in_blocks
from attnlab.train.ending import (
    FIRST_STOP,
    FIRST_STOP_IN_LANES,
    Record,
    lost,
    moves,
    same,
    standing_since,
    stands,
    stops_of,
)
from attnlab.train.job import Job
from attnlab.train.metrics import UserFunctions
from attnlab.train.program import Plan, Reads, advance, advance_in_place, gradient_norms, make_room
from attnlab.train.trajectory import Facts, Status, Trajectory, library_versions
from attnlab.train.typed import in_precision_of, owned
from attnlab.train.watch import PATIENCE, Watch

# Between two looks at the clock, the callback and the stop rules a run computes for about this long. A run by batches
# longer: every call of the program of a deep network gets its memory anew, which takes as long as a third of a step.
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BY_BATCHES = 2.0
FIRST_LOOK = 64  # steps
FIRST_WORK = 2**26  # entries of data and weights times steps, where that is more
LEAST_WORK = 256  # entries; a step of fewer takes no less time
RECORDS_TOGETHER = 32  # taken by one call of the compiled program
# What two parts of one run must agree on; of the model, each of its settings.
SAME_RUN = ("tokens", "rule", "model", "loss", "init", "init_scale", "seed", "batch", "portion", "precision")


@dataclass(frozen=True)
class Progress:
    """What `on_step` is told: where the run stands, and a way to take it away as a `Trajectory`."""

    step: int
    steps: int
    seconds: float
    snapshot: Callable[[], Trajectory]


class Loop:
    """A run in progress: the arrays on their way, and what has been recorded."""

    def __init__(
        self,
        job: Job,
        rule: optax.GradientTransformation,
        user: UserFunctions,
        trials: int | None,
        config: Facts,
        began: float,
        seed: Seed,
    ) -> None:
        self.job, self.rule, self.user = job, rule, user
        self.trials, self.config, self.began = trials, config, began
        self.compiled = False
        make_room()
        self.step, self.earlier = 0, 0.0
        self.params: Params = job.params
        self.state: Tree = in_precision_of(job.params, _first_state(rule, job.params))
        by_batches = job.batches is not None
        self.watching = not isinstance(rule, StepRule) and not by_batches
        # What a rule does on one batch does not tell what it will do on the next.
        self.settles = getattr(rule, "settles", False) and not by_batches
        # A foreign rule may add up what it likes in an order that depends on the number of lanes.
        self.in_lanes = job.lanes and isinstance(rule, StepRule)
        if job.batches is not None:
            self.state = (self.state, Feed.start(job.batches, seed, trials or 1))
        elif self.watching:
            self.state = (self.state, Watch.start(trials or 1))
        self.records: list[tuple[int, Record]] = []
        self.last_stop: tuple[int, Params] = (0, job.params)  # of a run without records: its step and parameters there

    def go_on(self, run: Trajectory, schedule: tuple[int, ...]) -> None:
        """Take up `run` where it ended, keeping those of its records that the schedule asks for."""
        differ = _differences(run.config, self.config)
        if differ:
            problem = f"`resume` is a run with another {', '.join(differ)}; both parts must have the same settings."
            raise InputError(message(problem, "to start afresh from its weights use init=run.weights"))
        if run.last_step > self.config["steps"]:
            raise InputError(
                message(f"`resume` stands at step {run.last_step}, past `steps` = {self.config['steps']}.")
            )

        self.step, self.earlier = run.last_step, run.seconds
        leaves, tree = jax.tree.flatten((self._exact(), self.state))
        given = list(run.rule_state)
        if self.watching and len(given) == len(leaves) - len(Watch._fields):  # of a file from before there was a watch
            given += list(Watch.start(self.trials or 1, run.last_step))
        if [np.shape(a) for a in leaves] != [a.shape for a in given]:
            raise InputError(message("`resume` has a rule state of another shape than this rule's."))
        exact, self.state = tree.unflatten(given)
        weights = {k: w[None] if self.trials is None else w for k, w in run.weights.items()}
        self.params = {k: w.astype(self.job.params[k].dtype) for k, w in (weights | exact).items()}
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
        stops = stops_of(schedule, steps, FIRST_STOP_IN_LANES if self.in_lanes else FIRST_STOP)
        ahead = sorted(({at for at in stops if at >= self.step} | {steps}) - done)
        # A stop rule on what is recorded must see each record before the next step is taken.
        together = 1 if stop_misalignment is not None or not schedule else RECORDS_TOGETHER
        by_batches = self.job.batches is not None
        watched = on_step is not None or stop_seconds is not None
        look = 1 if by_batches else self._first_look(watched)  # a step of a deep network may take seconds
        wanted_lap = SECONDS_BY_BATCHES if by_batches else SECONDS_BETWEEN_LOOKS
        while ahead:
            if self.step in stops and self._lost().all():
                return self.trajectory(Status.NOT_FINITE)
            if self._idle(self._last_record()):
                return self.trajectory(Status.STALLED)
            if stop_misalignment is not None and self._aligned(stop_misalignment):
                return self.trajectory(Status.ALIGNED)
            lengths = _next_lengths(self.step, ahead, look, together)
            lap, before = time.perf_counter(), (self.step, self.params, self.state)
            taken = self._advance(lengths, together, recording=bool(schedule), wanted=wanted)
            lap = time.perf_counter() - lap
            reached = before[0] + np.cumsum(lengths)
            reached = reached[: self._until_the_end(before, lengths, taken, together, wanted)]
            pace = min(8.0, max(0.25, wanted_lap / max(lap, 1e-6)))
            look = max(1, int(min(look * pace, steps)))  # a run of many records need not ever use up its look
            for i, at in enumerate(reached):
                if at == ahead[0]:
                    ahead.pop(0)
                    if at in wanted:
                        self.records.append((int(at), {k: v[:, i] for k, v in taken.items()}))
            unrecorded = not schedule and not by_batches
            if unrecorded and self.step in stops and self._at_rest_since_last_stop():
                return self.trajectory(Status.STALLED)
            if on_step is not None:
                on_step(Progress(self.step, steps, self.seconds, partial(self.trajectory, Status.RUNNING)))
            if ahead and stop_seconds is not None and self.seconds - self.earlier > stop_seconds:
                return self.trajectory(Status.OUT_OF_TIME)
        return self.trajectory(self._ending())

    def _first_look(self, watched: bool) -> int:
        """Steps before the first look at the clock; where nobody waits for it, as many as are soon done."""
        if watched or not self.in_lanes:
            return FIRST_LOOK
        entries = sum(array.size for array in jax.tree.leaves((self.job.problem, self.job.params)))
        return max(FIRST_LOOK, FIRST_WORK // max(LEAST_WORK, entries))

    @property
    def seconds(self) -> float:
        """Time spent on this run so far, in all its parts."""
        return self.earlier + time.perf_counter() - self.began

    def _advance(self, lengths: list[int], together: int, recording: bool, wanted: Set[int] = frozenset()) -> Record:
        """Go through these intervals; the metrics at their ends, each (trials, together, ...).

        In a run by batches metrics are taken only at `wanted` ends: others are there for a look at the clock.
        """
        plan = self._plan(recording)
        empty = [0] * (together - len(lengths))
        ends = self.step + np.cumsum(lengths)
        recorded = [int(end) in wanted for end in ends]
        alone = self.job.portion is not None
        # A large network is trained in place. Nothing looks back at where it was, as runs by batches never do.
        params, state = (owned(self.params), owned(self.state)) if alone else (self.params, self.state)
        self.params, self.state, metrics = in_blocks(
            partial(advance_in_place if alone else advance, objective=self.job.objective, plan=plan),
            (self.job.problem, params, state, self.job.compared, self.job.targets, self.job.test),
            self.step,
            np.array(lengths + empty),
            np.array(recorded + [False] * len(empty)),
            len(lengths),
            compiled=self.compiled,
            alone=alone,
            at_work=self.job.at_work,
            lanes=self.in_lanes,
        )
        self.compiled = True
        self.step += sum(lengths)
        return jax.tree.map(np.asarray, metrics)

    def _plan(self, recording: bool) -> Plan:
        """What is compiled."""
        reads: Reads = "scaled"
        if not isinstance(self.rule, StepRule):
            reads = "extra" if isinstance(self.rule, optax.GradientTransformationExtraArgs) else "plain"
        return Plan(
            update=self.rule.update,
            reads=reads,
            binds=None if self.job.batches is None else getattr(self.rule, "binds", None),
            user=self.user,
            recording=recording,
            batches=self.job.batches,
            portion=self.job.portion,
            tester=self.job.tester,
            lanes=self.in_lanes,
        )

    def _lost(self) -> np.ndarray:
        """Which trials have left the finite numbers; of a run by batches they stand at the last finite weights."""
        return self.state[1].lost_at >= 0 if self.job.batches is not None else lost(self.params)

    def _exact(self) -> dict[str, Value]:
        """The parameters that the weights do not give back to the last digit."""
        return {name: self.params[name] for name in self.job.exact}

    def _last_record(self) -> Record | None:
        """The record of this very step, if there is one."""
        return self.records[-1][1] if self.records and self.records[-1][0] == self.step else None

    def _aligned(self, limit: float) -> bool:
        """Does the run stand at a record where every misalignment is at most `limit`?"""
        record = self._last_record()
        if record is None:
            return False
        names = {f"misalignment_{name}" for name in self.job.targets}
        return all((value <= limit).all() for name, value in record.items() if name in names)

    def _idle(self, record: Record | None) -> bool:
        """Will no trial ever move again, some though their gradient is not zero?"""
        if self.watching:
            return bool((self.state[1].still >= PATIENCE).all())
        if record is None or not self.settles:
            return False
        return not moves(record).any() and bool(stands(record).any())

    def _until_the_end(
        self,
        before: tuple[int, Params, Tree],
        lengths: list[int],
        taken: Record,
        together: int,
        wanted: set[int],
    ) -> int:
        """How many of these intervals there were before a record at which the run is over; the run goes back there.

        How many are taken together depends on the clock; where a run ends must not.
        """
        reached = before[0] + np.cumsum(lengths)
        if self.watching and self._idle(None):
            self.step = int(self.state[1].taken.max())
            return int(np.sum(reached <= self.step))
        if self.job.batches is not None:
            if not self._lost().all():
                return len(lengths)
            # Nothing has moved since the last trial was lost: the run ends where it is next looked at.
            count = 1 + int(np.searchsorted(reached[:-1], int(self.state[1].lost_at.max())))
            self.step = int(reached[count - 1])
            return count

        def over_after(count: int) -> bool:
            self.step, self.params, self.state = before
            self._advance(lengths[:count], together, recording=bool(taken))
            return bool(lost(self.params).all())

        count = len(lengths)
        if lost(self.params).all():
            count = 1 + bisect_left(range(1, count), True, key=over_after)  # once lost is lost for ever
        resting = [] if not taken else np.flatnonzero(~np.all(moves(taken)[:, :count], axis=0))
        for i in resting:
            if int(reached[i]) in wanted and self._idle({name: values[:, i] for name, values in taken.items()}):
                count = int(i) + 1
                break
        if self.step != reached[count - 1]:
            over_after(count)
        return count

    def _at_rest_since_last_stop(self) -> bool:
        """Of a run without records: has nothing moved since the last stop, though some gradient is not zero?"""
        (at, earlier), now = self.last_stop, self.params
        if self.step > at and same(earlier, now).all() and self._stalled().any():
            return self.settles
        self.last_stop = (self.step, now)
        return False

    def _stalled(self) -> np.ndarray:
        """In which trials does one more step change nothing, though the gradient is not zero?"""
        here = (self.step, self.params, self.state)
        self._advance([1], RECORDS_TOGETHER if self.records else 1, recording=bool(self.records))
        unmoved = same(here[1], self.params)
        self.step, self.params, self.state = here
        return unmoved & (np.asarray(gradient_norms(self.params, self.job.problem, self.job.objective)) > -np.inf)

    def _stalled_at(self) -> np.ndarray:
        """The step from which each trial stands still though its gradient is not zero; -1 where it moves."""
        if self.job.batches is not None:
            return np.full(self.trials or 1, -1)
        if self.watching and (self.state[1].still > 0).any():
            return self.state[1].stalled_at
        if self._last_record() is not None and self.settles:
            since = standing_since(self.records)
            if (since >= 0).any():
                return since
        at, params = self.last_stop
        unmoved = same(params, self.params) if self.step > at else np.zeros(self.trials or 1, dtype=bool)
        return np.where(unmoved & self._stalled(), at, -1) if unmoved.any() else np.full(len(unmoved), -1)

    def _ending(self) -> Status:
        """How a run that took all its steps ended."""
        overflowed = self._lost()
        if overflowed.any():
            return Status.NOT_FINITE if overflowed.all() else Status.PARTLY_FINITE
        return Status.STALLED if (self._stalled_at() >= 0).any() else Status.FINISHED

    def trajectory(self, status: Status) -> Trajectory:
        """The run as it stands."""

        def without_axis(a: Value) -> np.ndarray:
            return np.array(a[0] if self.trials is None else a)

        going = status in (Status.RUNNING, Status.OUT_OF_TIME)
        stalled_at = np.full(self.trials or 1, -1) if going else self._stalled_at()
        none = np.full(self.trials or 1, -1)
        underflow_at = self.state[1].underflow if self.watching else none
        lost_at = none if self.job.batches is None else self.state[1].lost_at
        names = self.records[0][1] if self.records else {}
        stacked = {k: np.stack([record[k] for _, record in self.records], axis=1) for k in names}
        stacked = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in stacked.items()}
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
            rule_state=tuple(np.array(a) for a in jax.tree.leaves((self._exact(), self.state))),
            stalled_at=without_axis(stalled_at),
            underflow_at=without_axis(underflow_at),
            lost_at=without_axis(lost_at),
        )


def _first_state(rule: optax.GradientTransformation, params: Params) -> Tree:
    """Of every trial; computed once where the weights do not matter."""
    trials = len(next(iter(params.values())))
    try:
        alike = jax.vmap(rule.init, out_axes=None)(params)
    except ValueError:  # it depends on the trial
        return jax.tree.map(np.asarray, jax.vmap(rule.init)(params))
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (trials, *np.shape(leaf))).copy(), alike)


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


def _differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Names of the settings in which two runs differ."""
    names = [name for name in SAME_RUN if one.get(name) != other.get(name)]
    models = one.get("model"), other.get("model")
    if "model" not in names or not all(isinstance(model, Mapping) for model in models):
        return names
    before, now = (dict(cast(Mapping[str, object], model)) for model in models)
    if before.get("class") != now.get("class"):
        return names
    fields = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return [name for name in names if name != "model"] + fields
