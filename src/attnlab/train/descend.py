"""`descend`: run a step rule on a model, all trials in one compiled program."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, Unpack

import numpy as np
import optax
from numpy.typing import ArrayLike

from attnlab.checks import enough_memory, flag, instance, seeds, shown
from attnlab.data.families import Seed
from attnlab.data.fingerprint import fingerprint
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.functions import check_metrics
from attnlab.models.losses import LossLike, as_loss
from attnlab.models.model import Data, Init, Model, Targets
from attnlab.models.precision import in_float64
from attnlab.optim.rule import StepRule
from attnlab.train.feeding import Feeding
from attnlab.train.job import Job, make_job
from attnlab.train.loop import Loop, Progress
from attnlab.train.metrics import UserMetrics
from attnlab.train.options import Options, split, the_model
from attnlab.train.schedule import record_steps
from attnlab.train.settling import judge_of
from attnlab.train.trajectory import Facts, Trajectory

Record: TypeAlias = int | Sequence[int] | np.ndarray | Literal["epochs"] | None
USUAL_METRICS = 20  # that are recorded
COPIES_OF_RECORDS = 4  # while they are gathered: as arrays of one step, and stacked
# What does not decide the numbers of a run.
ASIDE = ("tokens", "rule", "on_step", "resume", "model", "options")


@in_float64
def descend(
    tokens: Data,
    rule: optax.GradientTransformation,
    *,
    steps: int | None = None,
    model: Model | None = None,
    loss: LossLike | None = None,
    init: Init = None,
    seed: Seed = 0,
    record: Record = 20,
    metrics: UserMetrics | None = None,
    targets: Targets | None = None,
    track: ArrayLike | None = None,
    test: Data | None = None,
    on_step: Callable[[Progress], None] | None = None,
    resume: Trajectory | None = None,
    **options: Unpack[Options],
) -> Trajectory:
    """Train a model, by steps that see all examples or batches of them, and report what happened.

    Without a `model` this is one attention layer: minimized is `(1/n) sum_i sum_k loss(y_ik h(x_i^T softmax(x_i W
    z_ik)))` over W, or over K and Q with W = K Q^T.

    Args:
        tokens: the data; a trial axis makes a batch of independent runs in one program. `al.Sequences` (real labels)
            for models that take them.
        rule: a rule of `attnlab.optim`, or any optax optimizer.
        steps: last step (2000). With `resume` this is still counted from the start of the first run.
        model: any `al.Model`: `al.models.Attention` (None), `MultiHead`, `Encoder`, `FullyConnected`, or your own.
        loss: "logistic", "exponential", "correlation", "hinge", or a function of one margin; "half_sum" (the sum of
            squared errors over 2), "mse_mean" or "half_mean"; "cross_entropy" for outputs of several classes. None
            is the usual one of the model: "logistic", or "half_sum" for networks.
        init: where to start: None for the law of the model; "uniform", "gaussian", "zeros"; or weights by name.
        seed: of the random start. Trial i uses stream (seed, i); or a seed for each trial.
        record: records per decade (log-spaced), or the steps to record, or None for none; "epochs" for the end of every
            epoch.
        metrics: your own, name -> function of what `model.view` gives, written with `jax.numpy`.
        targets: weights to compare with, or a dict of such. For one layer a direction (d, d) of W, per trial or shared;
            a vector (d,) is compared with the trained head. Gives `misalignment_NAME` and `cosine_NAME` (NAME is
            "target" for a bare array).
        track: tokens whose attention is recorded, shape of the labels; default the best-scoring ones. For several
            heads a mask (n, T).
        test: other data of the same T, d and trials, whose loss is recorded as `test_loss`, with `test_accuracy` (of
            several heads `test_error`) where labels are classes. The head vector v is that of the test data.
        on_step: called with a `Progress` about twice a second.
        resume: a saved run of the same settings to go on from; the result is the same as of one long run.
        options: `parameterization`, `head`, `train_head`, `rank` (the width of K and Q) and `engine` are short for
            `model=al.models.Attention(...)`. `init_scale` multiplies a random start. `stop_misalignment` stops at the
            first record where every misalignment is at most this; `stop_seconds` at the first look at the clock after
            this long, 0 at the first look. `batch` is the number of examples that a step sees; every epoch takes all
            of them once, in an order drawn from (seed, trial, epoch). `epochs` stands in place of `steps`; `portion`
            bounds how many examples are computed at a time, on the way back (gradients are added up) and at records.
            `precision="float32"` is for deep networks.

    What is recorded is listed at `attnlab.train.metrics.measure`, and at `records` of the model.

    Tokens, queries and weights of one layer may be of any scale: powers of two are taken out where products would leave
    float64. A trial gives the same bytes alone and in any batch, in any process and on any number of threads of one
    machine.

    Returns:
        A `Trajectory`. Its `status` says how the run ended, `diverged` and `stalled_at` which trials overflowed or
        stand still, `remarks` what else to know. A plain optax rule is given plain gradients, which underflow where
        attention saturates; see `al.optim.scale_free`.

    >>> import attnlab as al
    >>> run = al.descend(al.data.sphere(n=5, T=5, d=10, seed=0), al.ngd(0.1), steps=300)
    >>> run.selected.tolist() == al.optimal_tokens(al.data.sphere(n=5, T=5, d=10, seed=0)).tolist()
    True
    """
    began = time.perf_counter()
    layer, init_scale, stops, feeding = split(dict(options))
    trained = the_model(model, layer)
    data = _accepted(trained, tokens, rule)
    last = feeding.steps(steps, data)
    seed = seeds("seed", seed)
    if on_step is not None and not callable(on_step):
        raise InputError(message(f"`on_step` is {shown(on_step)}; wanted a function of a `Progress`."))
    user = check_metrics(metrics)
    if resume is not None:
        instance("resume", resume, Trajectory, "an al.Trajectory", "al.Trajectory.load('part.npz') reads a saved one")
    config = _config(
        data,
        rule,
        trained,
        strict=False,
        feeding=feeding,
        steps=last,
        loss=loss,
        init=init,
        init_scale=init_scale,
        seed=seed,
        record=record,
        metrics=metrics,
        targets=targets,
        track=track,
        test=test,
        stop_misalignment=stops.misalignment,
        stop_seconds=stops.seconds,
    )
    job = make_job(
        data,
        trained,
        as_loss(trained.usual_loss if loss is None else loss),
        init=init,
        init_scale=init_scale,
        seed=seed,
        isotropic=_is_isotropic(rule),
        matrices=bool(user),
        targets=targets,
        track=track,
        test=test,
        feeding=feeding,
    )
    schedule = _schedule(record, job, last)
    _check_room(schedule, data, job)
    if stops.misalignment is not None:
        _check_alignment(trained, job, schedule)
    loop = Loop(job, rule, user, data.trials, config, began, seed)
    if resume is not None:
        loop.go_on(resume, schedule)
    run = loop.run(schedule, last, on_step, stops.misalignment, stops.seconds)
    if job.batches is not None:
        return run
    judge = judge_of(data, trained, job.objective.loss, isotropic=_is_isotropic(rule))
    return replace(run, judge=judge)


def _schedule(record: Record, job: Job, last: int) -> tuple[int, ...]:
    """The steps at which metrics are taken; the end of every epoch for "epochs"."""
    if not isinstance(record, str) or record != "epochs":
        return record_steps(record, last)  # pyright: ignore[reportArgumentType]
    if job.batches is None:
        raise InputError(message("`record` is 'epochs', which is for runs by batches.", "batch=100"))
    return record_steps(range(0, last + 1, job.batches.per_epoch), last)


def _is_isotropic(rule: optax.GradientTransformation) -> bool:
    return isinstance(rule, StepRule) and rule.isotropic


def _accepted(model: Model, tokens: object, rule: object) -> Data:
    """The data as the model takes them."""
    data = model.accepts(tokens, "tokens")
    if isinstance(rule, type) or not (hasattr(rule, "init") and hasattr(rule, "update")):
        raise InputError(message(f"`rule` is {shown(rule)}; wanted a step rule or an optax optimizer.", "al.ngd(0.1)"))
    return data


def _check_alignment(model: Model, job: Job, schedule: tuple[int, ...]) -> None:
    if not job.targets:
        raise InputError(message("`stop_misalignment` needs something to align with.", "pass `targets=`"))
    if not model.aligns:
        raise InputError(message(f"`stop_misalignment` is not for {model!r}, which records no misalignment."))
    if not schedule:
        raise InputError(message("`stop_misalignment` is looked at when recording; `record` asks for none."))


def _check_room(schedule: tuple[int, ...], data: Data, job: Job) -> None:
    """Refuse records that would not fit into memory."""
    each = USUAL_METRICS + 2 * len(job.targets)
    trials = data.trials or 1
    count = COPIES_OF_RECORDS * float(len(schedule)) * each * trials
    enough_memory(count, f"{len(schedule)} records of {trials} trials", "a smaller `record`, or fewer trials")


def run_config(tokens: Data, rule: optax.GradientTransformation, *, strict: bool = True, **options: object) -> Facts:
    """Everything that decides the numbers of `descend(tokens, rule, **options)`, as JSON.

    Data and functions stand as fingerprints. Two calls with equal configurations give equal results. A function that
    cannot be known by what it holds raises a StoreError, or, unless `strict`, is marked as unknown.
    """
    flag("strict", strict)
    try:
        every = inspect.signature(descend).bind(tokens, rule, **options)
        layer, init_scale, stops, feeding = split(every.arguments.get("options", {}))
    except TypeError as error:
        raise InputError(message(f"`options` do not fit `descend`: {error}.")) from error
    every.apply_defaults()
    model = the_model(every.arguments["model"], layer)
    settings = {name: value for name, value in every.arguments.items() if name not in ASIDE}
    data = _accepted(model, tokens, rule)
    settings["steps"] = feeding.steps(settings["steps"], data)
    return _config(
        data,
        rule,
        model,
        strict=strict,
        feeding=feeding,
        init_scale=init_scale,
        stop_misalignment=stops.misalignment,
        stop_seconds=stops.seconds,
        **settings,
    )


def _config(
    data: Data,
    rule: optax.GradientTransformation,
    model: Model,
    *,
    strict: bool,
    feeding: Feeding,
    **settings: object,
) -> Facts:
    """The settings of a run as JSON, with data and functions as fingerprints."""
    settings |= feeding.about()
    if feeding.batch is not None:
        model = model.directly()
    settings["loss"] = model.usual_loss if settings["loss"] is None else settings["loss"]
    if isinstance(settings["test"], Tokens | Sequences):
        settings["test"] = settings["test"].digest()
    # Of a foreign rule both halves count: some hold their numbers in the state that `init` makes.
    known = rule if isinstance(rule, StepRule) else {"name": "optax", "init": rule.init, "update": rule.update}
    named = {"tokens": data.digest(), "rule": known, "model": model.settled(data, _is_isotropic(rule)), **settings}
    return fingerprint(named, strict=strict)
