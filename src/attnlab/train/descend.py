"""`descend`: run a step rule on attention, all trials in one compiled program."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import optax
from numpy.typing import ArrayLike

from attnlab.checks import enough_memory, flag, instance, number, shown, whole
from attnlab.data.fingerprint import fingerprint
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.evaluate import HeadLike, LossLike
from attnlab.models.functions import check_metrics
from attnlab.models.heads import as_head
from attnlab.models.multihead import MultiHead
from attnlab.models.network import Network
from attnlab.models.precision import in_float64
from attnlab.optim.rule import StepRule
from attnlab.train.attention import attention_job
from attnlab.train.engine import Engine, choose_engine
from attnlab.train.heads import heads_job
from attnlab.train.loop import Job, Loop, Progress
from attnlab.train.metrics import UserMetrics
from attnlab.train.network import network_job
from attnlab.train.schedule import MOST_STEPS, record_steps
from attnlab.train.start import Init
from attnlab.train.trajectory import Trajectory

USUAL_METRICS = 20  # that are recorded
COPIES_OF_RECORDS = 4  # while they are gathered: as arrays of one step, and stacked


@in_float64
def descend(
    tokens: Tokens | Sequences,
    rule: optax.GradientTransformation,
    *,
    steps: int = 2000,
    model: MultiHead | Network | None = None,
    parameterization: Literal["W", "KQ"] = "W",
    loss: LossLike | None = None,
    head: HeadLike = "linear",
    train_head: bool = False,
    rank: int | None = None,
    init: Init | None = None,
    init_scale: float = 1.0,
    seed: int = 0,
    record: int | Sequence[int] | None = 20,
    metrics: UserMetrics | None = None,
    targets: ArrayLike | Mapping[str, Any] | None = None,
    track: ArrayLike | None = None,
    on_step: Callable[[Progress], None] | None = None,
    stop_misalignment: float | None = None,
    stop_seconds: float | None = None,
    resume: Trajectory | None = None,
    engine: Engine = "auto",
    test: Tokens | Sequences | None = None,
) -> Trajectory:
    """Train attention by full-batch steps and report what happened.

    Minimizes `(1/n) sum_i sum_k loss(y_ik h(x_i^T softmax(x_i W z_ik)))` over W, or over K and Q with W = K Q^T.

    Args:
        tokens: the data; a trial axis makes a batch of independent runs in one program.
        rule: a rule of `attnlab.optim`, or any optax optimizer.
        steps: last step. With `resume` this is still counted from the start of the first run.
        model: None for one layer with one head, as above; an `al.models.MultiHead`, which reads x and y of the tokens;
            or an `al.models.Encoder` or `FullyConnected`, which is trained on squared errors and takes `al.Sequences`
            (real labels) as well. A model takes of the options below those that name it.
        parameterization: "W" or "KQ".
        loss: "logistic" (None), "exponential", "correlation", or a function of one margin. For a network "half_sum"
            (None), the sum of squared errors over 2, "mse_mean", their mean, or "half_mean".
        head: "linear" (v of the tokens), "relu-sum", a head of `attnlab.models`, or a function of one output.
        train_head: also train the linear head, from zero, as parameter u.
        rank: width m of K and Q (default d).
        init: "uniform" (None; entries in +-init_scale/sqrt(d)), "gaussian" (deviation init_scale), "zeros", an array,
            or a dict of arrays. A network starts from its own law (None), or from a dict of its weights.
        init_scale, seed: of the random start. Trial i uses stream (seed, i).
        record: records per decade (log-spaced), or the steps to record, or None for none.
        metrics: your own, name -> function of a `View`, written with `jax.numpy`.
        targets: direction (d, d) to compare W with, per trial or shared, or a dict of them; a vector (d,) is compared
            with the trained head. Gives `misalignment_NAME` and `cosine_NAME` (NAME is "target" for a bare array).
        track: tokens whose attention is recorded, shape of the labels; default the best-scoring ones.
        on_step: called with a `Progress` about twice a second.
        stop_misalignment: stop at the first record where every misalignment is at most this.
        stop_seconds: stop at the first look at the clock after this long; 0 stops at the first look.
        resume: a saved run of the same settings to go on from; the result is the same as of one long run.
        engine: "direct" holds W as a matrix; "kernel" holds its coordinates in the span of the rows x z^T, in which it
            moves, so that a step costs the same whatever d is. Both take the same steps, to rounding; "auto" chooses
            the cheaper by the shapes.
        test: for a `model`: other tokens, whose loss and error are recorded as `test_loss` and `test_error`.

    What is recorded of a network is listed at `attnlab.train.network.measure`. For several heads, `init` is "zeros",
    "gaussian" (every head of its own), or {"U": .., "W": ..} of its groups; `targets` are weights {"U": .., "W": ..} of
    one head, or of every group; `track` is a mask (n, T) of tokens whose attention is recorded; see
    `attnlab.train.heads.measure`.

    Tokens, queries and weights may be of any scale: powers of two are taken out where products would leave float64. A
    trial gives the same bytes alone and in any batch, in any process and on any number of threads of one machine.

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
    _check_tokens_and_rule(tokens, rule, model)
    loss, init = _usual(model, loss, init)
    steps = whole("steps", steps, 0, MOST_STEPS)
    _check_stops(stop_misalignment, stop_seconds, on_step)
    user = check_metrics(metrics)
    if resume is not None:
        instance("resume", resume, Trajectory, "an al.Trajectory", "al.Trajectory.load('part.npz') reads a saved one")
    options: dict[str, Any] = dict(
        parameterization=parameterization, head=as_head(head), train_head=train_head, rank=rank, targets=targets,
        track=track,
    )  # fmt: skip
    shared: dict[str, Any] = dict(loss=loss, init=init, init_scale=init_scale, seed=seed, metrics=metrics)
    config = run_config(
        tokens, rule, strict=False, model=model, test=test, steps=steps, record=record,
        stop_misalignment=stop_misalignment, stop_seconds=stop_seconds, engine=engine, **options, **shared,
    )  # fmt: skip
    if model is not None:
        _refuse_unused({**options, "engine": engine, "stop_misalignment": stop_misalignment})
        shared |= dict(targets=targets, track=track, test=test)
    if isinstance(model, Network):
        job = network_job(Sequences.of(tokens, "tokens"), model, **shared)
    elif model is not None:
        job = heads_job(tokens, model, rule, **shared)  # type: ignore[arg-type]
    elif test is not None:
        raise InputError(message("`test` is recorded for a `model` only.", "al.models.loss(test, run.weights)"))
    else:
        job = attention_job(tokens, engine=config["engine"], **options, **shared)  # type: ignore[arg-type]
    schedule = record_steps(record, steps)
    _check_room(schedule, tokens, job)
    if stop_misalignment is not None and not job.targets:
        raise InputError(message("`stop_misalignment` needs something to align with.", "pass `targets=`"))
    if stop_misalignment is not None and not schedule:
        raise InputError(message("`stop_misalignment` is looked at when recording; `record` asks for none."))
    loop = Loop(job, rule, user, tokens.trials, config, began)
    if resume is not None:
        loop.go_on(resume, schedule)
    return loop.run(schedule, steps, on_step, stop_misalignment, stop_seconds)


def _refuse_unused(asked: dict[str, Any]) -> None:
    """Options that a `model` would not heed must stand as they are by default."""
    unused = {"parameterization": "W", "head": as_head("linear"), "train_head": False, "rank": None,
              "engine": "auto", "stop_misalignment": None}  # fmt: skip
    given = [name for name, usual in unused.items() if asked[name] != usual]
    if given:
        raise InputError(message(f"`{given[0]}` is not for a `model`, which says itself what is trained."))


def _check_tokens_and_rule(tokens: Any, rule: Any, model: Any) -> None:
    if not isinstance(tokens, Tokens) and not (isinstance(tokens, Sequences) and isinstance(model, Network)):
        hint = "model=al.models.Encoder(width)" if isinstance(tokens, Sequences) else "al.Tokens(x=, z=, y=, v=)"
        raise InputError(message(f"`tokens` is {shown(tokens)}; wanted al.Tokens.", hint))
    if isinstance(rule, type) or not (hasattr(rule, "init") and hasattr(rule, "update")):
        raise InputError(message(f"`rule` is {shown(rule)}; wanted a step rule or an optax optimizer.", "al.ngd(0.1)"))
    if model is not None and not isinstance(model, MultiHead | Network):
        problem = f"`model` is {shown(model)}; wanted a model of attnlab, or None."
        raise InputError(message(problem, "al.models.MultiHead(heads=8)"))


def _check_stops(stop_misalignment: Any, stop_seconds: Any, on_step: Any) -> None:
    if stop_misalignment is not None:
        number("stop_misalignment", stop_misalignment, least=0)
    if stop_seconds is not None:
        number("stop_seconds", stop_seconds, least=0)
    if on_step is not None and not callable(on_step):
        raise InputError(message(f"`on_step` is {shown(on_step)}; wanted a function of a `Progress`."))


def _check_room(schedule: tuple[int, ...], tokens: Tokens | Sequences, job: Job) -> None:
    """Refuse records that would not fit into memory."""
    each = USUAL_METRICS + 2 * len(job.targets)
    count = COPIES_OF_RECORDS * float(len(schedule)) * each * (tokens.trials or 1)
    enough_memory(
        count, f"{len(schedule)} records of {tokens.trials or 1} trials", "a smaller `record`, or fewer trials"
    )


def _usual(model: Any, loss: Any, init: Any) -> tuple[Any, Any]:
    """Loss and start where they are not given."""
    if isinstance(model, Network):
        return ("half_sum" if loss is None else loss), init
    return ("logistic" if loss is None else loss), ("uniform" if init is None else init)


def run_config(
    tokens: Tokens | Sequences, rule: optax.GradientTransformation, *, strict: bool = True, **options: Any
) -> dict[str, Any]:
    """Everything that decides the numbers of `descend(tokens, rule, **options)`, as JSON.

    Data and functions stand as fingerprints. Two calls with equal configurations give equal results. A function that
    cannot be known by what it holds raises a StoreError, or, unless `strict`, is marked as unknown.
    """
    _check_tokens_and_rule(tokens, rule, options.get("model"))
    flag("strict", strict)
    try:
        every = inspect.signature(descend).bind(tokens, rule, **options)
    except TypeError as error:
        raise InputError(message(f"`options` do not fit `descend`: {error}.")) from error
    every.apply_defaults()
    settings = {k: v for k, v in every.arguments.items() if k not in ("tokens", "rule", "on_step", "resume")}
    settings["head"] = as_head(settings["head"])
    settings["loss"], settings["init"] = _usual(settings["model"], settings["loss"], settings["init"])
    if isinstance(tokens, Tokens) and settings["model"] is None:
        settings["engine"] = choose_engine(settings["engine"], tokens, rule, settings["parameterization"])
    if isinstance(settings["test"], Tokens | Sequences):
        settings["test"] = settings["test"].digest()
    # Of a foreign rule both halves count: some hold their numbers in the state that `init` makes.
    known = rule if isinstance(rule, StepRule) else {"name": "optax", "init": rule.init, "update": rule.update}
    return fingerprint({"tokens": tokens.digest(), "rule": known, **settings}, strict=strict)
