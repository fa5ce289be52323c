"""`descend`: run a step rule on attention, all trials in one compiled program."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
import optax
from numpy.typing import ArrayLike

from attnlab.data.fingerprint import fingerprint
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import AttentionModel, Problem, make_problem
from attnlab.models.evaluate import HeadLike, LossLike
from attnlab.models.frame import Frame
from attnlab.models.heads import as_head
from attnlab.models.losses import as_loss
from attnlab.models.precision import in_float64
from attnlab.optim.rule import StepRule
from attnlab.train.blocks import in_blocks
from attnlab.train.engine import Engine, choose_engine, into_frame
from attnlab.train.metrics import UserMetrics, View
from attnlab.train.program import Reads, advance, largest
from attnlab.train.schedule import record_steps
from attnlab.train.start import Init, initial_weights, target_directions, tracked_tokens
from attnlab.train.trajectory import Status, Trajectory, library_versions

# Between two looks at the clock, the callback and the stop rules a run computes for about this long.
SECONDS_BETWEEN_LOOKS = 0.5
FIRST_LOOK = 64  # steps
RECORDS_TOGETHER = 32  # taken by one call of the compiled program
# What two parts of one run must agree on.
SAME_RUN = (
    "tokens",
    "rule",
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


@in_float64
def descend(
    tokens: Tokens,
    rule: optax.GradientTransformation,
    *,
    steps: int = 2000,
    parameterization: Literal["W", "KQ"] = "W",
    loss: LossLike = "logistic",
    head: HeadLike = "linear",
    train_head: bool = False,
    rank: int | None = None,
    init: Init = "uniform",
    init_scale: float = 1.0,
    seed: int = 0,
    record: int | Sequence[int] | None = 20,
    metrics: UserMetrics | None = None,
    targets: ArrayLike | Mapping[str, ArrayLike] | None = None,
    track: ArrayLike | None = None,
    on_step: Callable[[Progress], None] | None = None,
    stop_misalignment: float | None = None,
    stop_seconds: float | None = None,
    resume: Trajectory | None = None,
    engine: Engine = "auto",
) -> Trajectory:
    """Train attention by full-batch steps and report what happened.

    Minimizes `(1/n) sum_i sum_k loss(y_ik h(x_i^T softmax(x_i W z_ik)))` over W, or over K and Q with W = K Q^T.

    Args:
        tokens: the data; a trial axis makes a batch of independent runs in one program.
        rule: a rule of `attnlab.optim`, or any optax optimizer.
        steps: last step. With `resume` this is still counted from the start of the first run.
        parameterization: "W" or "KQ".
        loss: "logistic", "exponential", "correlation", or a function of one margin.
        head: "linear" (v of the tokens), "relu-sum", a head of `attnlab.models`, or a function of one output.
        train_head: also train the linear head, from zero, as parameter u.
        rank: width m of K and Q (default d).
        init: "uniform" (entries in +-init_scale/sqrt(d)), "gaussian" (deviation init_scale), "zeros", an array, or a
            dict of arrays.
        init_scale, seed: of the random start. Trial i uses stream (seed, i).
        record: records per decade (log-spaced), or the steps to record, or None for none.
        metrics: your own, name -> function of a `View`, written with `jax.numpy`.
        targets: direction (d, d) to compare W with, per trial or shared, or a dict of them; a vector (d,) is compared
            with the trained head. Gives `misalignment_NAME` and `cosine_NAME` (NAME is "target" for a bare array).
        track: tokens whose attention is recorded, shape of the labels; default the best-scoring ones.
        on_step: called with a `Progress` about twice a second.
        stop_misalignment: stop at the first record where every misalignment is at most this.
        stop_seconds: stop at the first look at the clock after this long.
        resume: a saved run of the same settings to go on from; the result is the same as of one long run.
        engine: "direct" holds W as a matrix; "kernel" holds its coordinates in the span of the rows x z^T, in which it
            moves, so that a step costs the same whatever d is. Both take the same steps, to rounding; "auto" chooses
            the cheaper by the shapes.

    Returns:
        A `Trajectory`.

    >>> import attnlab as al
    >>> run = al.descend(al.data.sphere(n=5, T=5, d=10, seed=0), al.ngd(0.1), steps=300)
    >>> run.selected.tolist() == al.optimal_tokens(al.data.sphere(n=5, T=5, d=10, seed=0)).tolist()
    True
    """
    began = time.perf_counter()
    _check_tokens_and_rule(tokens, rule)
    if not isinstance(steps, int | np.integer) or steps < 0:
        raise InputError(message(f"`steps` is {steps!r}; wanted a whole number at least 0."))
    head_, loss_ = as_head(head), as_loss(loss)
    model = AttentionModel.of(parameterization, loss_, head_, train_head)
    start = initial_weights(
        init, tokens, parameterization, rank=rank, scale=init_scale, seed=seed, train_head=train_head
    )
    config = run_config(
        tokens, rule, strict=False, steps=steps, parameterization=parameterization, loss=loss, head=head_,
        train_head=train_head, rank=rank, init=init, init_scale=init_scale, seed=seed, record=record, metrics=metrics,
        targets=targets, track=track, stop_misalignment=stop_misalignment, stop_seconds=stop_seconds, engine=engine,
    )  # fmt: skip
    scored = tokens
    if train_head and tokens.v is None:
        if track is None:
            raise InputError(message("These tokens have no `v` to tell the best token by.", "pass `track=`"))
        scored = Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=np.zeros(tokens.d), mask=tokens.mask)
    problem = make_problem(scored, head_)
    batch, params, directions = (
        _batched(problem, tokens), _batched(start, tokens), target_directions(targets, tokens, train_head),
    )  # fmt: skip
    frame = None
    if config["engine"] == "kernel":
        frame, batch, params, directions = into_frame(batch, params, directions, matrices=bool(metrics))
    loop = _Loop(
        model=model,
        rule=rule,
        problem=batch,
        frame=frame,
        tracked=_batched(tracked_tokens(track, tokens, problem), tokens),
        targets=directions,
        user=tuple((metrics or {}).items()),
        single=tokens.trials is None,
        one_query=tokens.K is None,
        start=start,
        config=config,
        began=began,
    )
    if stop_misalignment is not None and not loop.targets:
        raise InputError(message("`stop_misalignment` needs something to align with.", "pass `targets=`"))
    schedule = record_steps(record, int(steps))
    if stop_misalignment is not None and not schedule:
        raise InputError(message("`stop_misalignment` is looked at when recording; `record` asks for none."))
    loop.begin(params)
    if resume is not None:
        loop.go_on(resume, schedule)
    return loop.run(schedule, int(steps), on_step, stop_misalignment, stop_seconds)


def _check_tokens_and_rule(tokens: Any, rule: Any) -> None:
    if not isinstance(tokens, Tokens):
        raise InputError(
            message(f"`tokens` is a {type(tokens).__name__}; wanted al.Tokens.", "al.Tokens(x=, z=, y=, v=)")
        )
    if not (hasattr(rule, "init") and hasattr(rule, "update")):
        raise InputError(message(f"`rule` is {rule!r}; wanted a step rule or an optax optimizer.", "al.ngd(0.1)"))


def run_config(
    tokens: Tokens, rule: optax.GradientTransformation, *, strict: bool = True, **options: Any
) -> dict[str, Any]:
    """Everything that decides the numbers of `descend(tokens, rule, **options)`, as JSON.

    Data and functions stand as fingerprints. Two calls with equal configurations give equal results. A function that
    cannot be known by what it holds raises a StoreError, or, unless `strict`, is marked as unknown.
    """
    _check_tokens_and_rule(tokens, rule)
    every = inspect.signature(descend).bind(tokens, rule, **options)
    every.apply_defaults()
    settings = {k: v for k, v in every.arguments.items() if k not in ("tokens", "rule", "on_step", "resume")}
    settings["head"] = as_head(settings["head"])
    settings["engine"] = choose_engine(settings["engine"], tokens, rule, settings["parameterization"])
    # Of a foreign rule both halves count: some hold their numbers in the state that `init` makes.
    known = rule if isinstance(rule, StepRule) else {"name": "optax", "init": rule.init, "update": rule.update}
    return fingerprint({"tokens": tokens.digest(), "rule": known, **settings}, strict=strict)


@dataclass
class _Loop:
    """A run in progress: the arrays on their way, and what has been recorded."""

    model: AttentionModel
    rule: optax.GradientTransformation
    problem: Problem
    frame: Frame | None
    tracked: Array
    targets: dict[str, Array]
    user: tuple[tuple[str, Callable[[View], Any]], ...]
    single: bool
    one_query: bool
    start: dict[str, Array]
    config: dict[str, Any]
    began: float
    compiled: bool = False

    def begin(self, params: dict[str, Array]) -> None:
        self.step, self.earlier = 0, 0.0
        self.params: Any = params
        self.state: Any = jax.tree.map(np.asarray, jax.vmap(self.rule.init)(params))
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
        leaves, tree = jax.tree.flatten((self._coordinates(), self.state))
        if [np.shape(a) for a in leaves] != [a.shape for a in run.rule_state]:
            raise InputError(message("`resume` has a rule state of another shape than this rule's."))
        coordinates, self.state = tree.unflatten(list(run.rule_state))
        self.params = {k: w[None] if self.single else w for k, w in run.weights.items()} | coordinates
        for i, at in enumerate(run.steps):
            if int(at) in schedule:
                pick = {k: v[None, i] if self.single else v[:, i] for k, v in run.metrics.items()}
                self.records.append((int(at), pick))

    def run(
        self,
        schedule: tuple[int, ...],
        steps: int,
        on_step: Callable[[Progress], None] | None,
        stop_misalignment: float | None,
        stop_seconds: float | None,
    ) -> Trajectory:
        done = {at for at, _ in self.records}
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
            look = max(1, int(look * min(8.0, max(0.25, SECONDS_BETWEEN_LOOKS / max(lap, 1e-6)))))
            for i, at in enumerate(self.step - sum(lengths) + np.cumsum(lengths)):
                if at == ahead[0]:
                    ahead.pop(0)
                    if at in schedule:
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
                model=self.model,
                update=self.rule.update,
                reads=reads,
                user=self.user,
                recording=recording,
            ),
            (self.problem, self.params, self.state, self.tracked, self.targets),
            np.array(lengths + [0] * (together - len(lengths))),
            len(lengths),
            compiled=self.compiled,
        )
        self.compiled = True
        self.step += sum(lengths)
        return found

    def _coordinates(self) -> dict[str, Any]:
        """What holds W in place of the matrix, from which it could not be found again to the last digit."""
        return {} if self.frame is None else {"W": self.params["W"]}

    def _lost(self) -> bool:
        """Have all trials overflowed?"""
        bad = [~np.isfinite(p).reshape(p.shape[0], -1).all(1) for p in self.params.values()]
        return bool(np.logical_or.reduce(bad).all())

    def _aligned(self, limit: float) -> bool:
        """Does the run stand at a record where every misalignment is at most `limit`?"""
        if not self.records or self.records[-1][0] != self.step:
            return False
        apart = [v for k, v in self.records[-1][1].items() if k in {f"misalignment_{name}" for name in self.targets}]
        return all((v <= limit).all() for v in apart)

    def trajectory(self, status: Status) -> Trajectory:
        """The run as it stands."""

        def without_axis(a: Any) -> np.ndarray:
            return np.array(a[0] if self.single else a)

        params = weights = self.params
        if self.frame is not None:
            weights = {**params, "W": self.frame.matrices(params["W"])}
        selected = np.asarray(largest(params, self.problem, self.model))
        names = self.records[0][1] if self.records else {}
        stacked = {k: np.stack([found[k] for _, found in self.records], axis=1) for k in names}
        return Trajectory(
            steps=np.array([at for at, _ in self.records], dtype=np.int64),
            metrics={k: without_axis(v) for k, v in stacked.items()},
            weights={k: without_axis(v) for k, v in weights.items()},
            initial=self.start,
            selected=without_axis(selected[..., 0] if self.one_query else selected),
            last_step=self.step,
            status=status,
            seconds=self.seconds,
            config=self.config,
            versions=library_versions(),
            rule_state=tuple(np.asarray(a) for a in jax.tree.leaves((self._coordinates(), self.state))),
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


def _batched(tree: Any, tokens: Tokens) -> Any:
    """Arrays with a trial axis, of length 1 where the tokens have none."""
    return jax.tree.map(lambda a: np.asarray(a)[None], tree) if tokens.trials is None else tree
