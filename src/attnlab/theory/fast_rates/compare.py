"""`rates`: several step rules side by side on the same data, and what theory says of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optax
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import finite_array, instance, number, real_array, shown, whole, whole_array
from attnlab.data.families import START_STREAM
from attnlab.data.scale import matrix_lengths
from attnlab.data.selection import optimal_tokens
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InfeasibleSelection, InputError, message
from attnlab.models.evaluate import LossLike
from attnlab.models.losses import as_loss
from attnlab.optim import gd, ngd, ngd_momentum, polyak
from attnlab.svm import MarginSolution, linear_margin, solve_margin, solve_margins
from attnlab.theory.fast_rates.predictions import Prediction, predict, setting
from attnlab.theory.fast_rates.table import RatesRow, RatesTable, Reached
from attnlab.theory.fitting import FIRST_STEP, fit_rate
from attnlab.train.descend import descend
from attnlab.train.start import Init
from attnlab.train.trajectory import Trajectory

LEVELS = (0.9, 0.99, 0.999)
# Records per decade; times between two of them are interpolated.
RECORD = 40
# |W(0)| over |W_mm|, unless a start is given: small enough for Lemma 2 with usual steps.
START = 1e-5
# Steps of normalized GD to go as far as |W_mm|, unless rules are given.
PACE = 300
# A misalignment below this has lost its digits to rounding.
ROUNDING = 1e-24
JOINT = ("joint_decay", "joint_separate", "joint_total")


def rates(
    tokens: Tokens,
    rules: Sequence[optax.GradientTransformation] | Mapping[str, optax.GradientTransformation] | None = None,
    *,
    steps: int = 3000,
    loss: LossLike = "exponential",
    levels: Sequence[float] = LEVELS,
    selected: ArrayLike | None = None,
    train_head: bool | None = None,
    init: Init | None = None,
    seed: int = 0,
    record: int = RECORD,
    fit_start: float | None = None,
    on_part: Callable[[int, int, str], None] | None = None,
) -> RatesTable:
    """Run step rules side by side and see how fast each comes to the max-margin direction W_mm.

    Args:
        tokens: one data set, or a batch of trials.
        rules: a list, or name -> rule. None takes `gd` at a tenth of the largest step of Theorem 6 (log(2T-1)/(10 B^4
            zeta)), `ngd` with |W_mm|/300 or the largest step of Theorem 5 if that is less, the same with momentum 0.9,
            the same with ten times the step (which is what momentum 0.9 amounts to on a steady gradient), and `polyak`
            without a cap.
        steps: of each run.
        loss: as for `descend`; the theory is for the exponential loss.
        levels: cosines whose time is looked for.
        selected: the tokens that W_mm separates from the others; None: the planted ones if the head is trained and
            `info` names them, else the best-scoring ones.
        train_head: train u too; None: if a rule is for joint training.
        init: as for `descend`. None: Gaussian with |W(0)| about 1e-5 |W_mm|; zero if the head is trained.
        seed: of that start.
        record: records per decade. Times between two records are interpolated in log t.
        fit_start: first step of the range the exponent is fitted on; None: the last decade.
        on_part: told (rules done, rules in all, which comes next).

    Returns:
        A `RatesTable`; `print` it, or read `.rows`, `.to_json()`.

    >>> import attnlab as al
    >>> table = rates(al.data.two_tokens(), [al.gd(0.5), al.ngd(0.1)], steps=2000)
    >>> [round(row.fit.rate, 2) for row in table.rows]
    [0.44, 2.0]
    """
    instance("tokens", tokens, Tokens, "al.Tokens")
    steps, record, seed = whole("steps", steps), whole("record", record), whole("seed", seed, 0)
    if train_head is not None:
        instance("train_head", train_head, bool, "True, False or None")
    if fit_start is not None:
        fit_start = number("fit_start", fit_start, above=0)
    wanted = _levels(levels)
    named = _named(rules)
    joint = any(getattr(rule, "name", None) in JOINT for rule in named.values()) if train_head is None else train_head
    chosen = _selection(tokens, selected, joint)
    solutions = _solved(tokens, chosen)
    W = solutions[0].W if tokens.trials is None else np.stack([s.W for s in solutions])
    Lambda = np.array([1.0 / s.margin for s in solutions])
    start = _start(tokens, Lambda, joint, seed) if init is None else init
    spread = _spread(start, tokens.d)
    here = setting(tokens, solutions, loss=as_loss(loss).name, train_head=joint, start=spread, steps=steps)
    if not named:
        named = _usual(here.constants, joint)
    targets = {"svm": W} | ({"head": _head(tokens, chosen)} if joint else {})
    rows = []
    for i, (name, rule) in enumerate(named.items()):
        if on_part is not None:
            on_part(i, len(named), name)
        run = descend(
            tokens, rule, steps=steps, loss=loss, train_head=joint, init=start, record=record, targets=targets,
            track=chosen,
        )  # fmt: skip
        capped = capped_share(rule, run)
        rows.append(_row(name, rule, run, wanted, fit_start, predict(rule, here, capped=capped), capped))
    if on_part is not None:
        on_part(len(named), len(named), "done")
    return RatesTable(rows=tuple(rows), levels=wanted, steps=steps, trials=len(solutions), Lambda=Lambda)


def time_to(steps: ArrayLike, misalignment: ArrayLike, level: float) -> Array:
    """The first step at which the cosine is at least `level`, interpolated between records; inf where it never is.

    Between records log(misalignment) is taken as linear in log t.

    Args:
        steps: recorded steps, (R,).
        misalignment: 1 - cosine, (R,) or (trials, R).
        level: the cosine to reach.

    Returns:
        A time for each trial.

    >>> time_to([1, 10, 100], [1.0, 0.1, 0.01], 0.98).round(9).tolist()
    [50.0]
    """
    t, apart = finite_array("steps", steps), np.atleast_2d(real_array("misalignment", misalignment))
    if t.ndim != 1 or not t.size or apart.shape[1:] != t.shape:
        given = f"`misalignment` has shape {apart.shape} and `steps` {t.shape}"
        raise InputError(message(f"{given}; wanted (R,) or (trials, R), and (R,)."))
    limit = 1.0 - number("level", level, above=-1, below=1)
    there = apart <= limit
    k = there.argmax(-1)
    found = np.where(there.any(-1), t[k], np.inf)
    before = np.maximum(k - 1, 0)
    pick = np.arange(len(apart))
    m0, m1, t0, t1 = apart[pick, before], apart[pick, k], t[before], t[k]
    inside = there.any(-1) & (k > 0) & (t0 > 0) & (m0 > limit) & (m1 > 0)
    with np.errstate(all="ignore"):
        share = (np.log(m0) - np.log(limit)) / (np.log(m0) - np.log(m1))
        between = np.exp(np.log(t0) + share * (np.log(t1) - np.log(t0)))
    return np.where(inside, between, found)


def cap_binds(rule: Any, run: Trajectory) -> NDArray[np.bool_] | None:
    """At which records the next step is one that the cap of the rule shortens or just reaches, (trials, R).

    None where the records do not tell: a foreign rule, or one norm for each of several parameters.
    """
    settings = getattr(rule, "settings", None)
    if settings is None:
        return None
    log_norm = np.atleast_2d(run.metrics["log_gradient_norm"])
    cap = settings.get("cap", np.inf)
    if not np.isfinite(cap):
        return np.zeros(log_norm.shape, dtype=bool)
    if "constant" in settings:
        log_step = np.log(settings["constant"]) + _log_excess(settings["floor"], run) - 2.0 * log_norm
    elif "u" not in run.weights or "total" in (settings.get("norms"), rule.name.removeprefix("joint_")):
        log_step = np.log(settings["step"]) - log_norm
    else:
        return None
    return log_step >= np.log(cap)


def capped_share(rule: Any, run: Trajectory) -> float | None:
    """The share of the steps of a run at which the cap of the rule bound, the mean over trials.

    Read at the records, each of which stands for the steps up to the next; None where they do not tell.
    """
    bound, lengths = cap_binds(rule, run), np.diff(run.steps)
    if bound is None or not len(lengths):
        return None
    return float((bound[:, :-1] * lengths).sum(-1).mean() / lengths.sum())


def _log_excess(floor: Any, run: Trajectory) -> Array:
    if floor != "auto":
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(np.atleast_2d(run.metrics["loss"]) - floor, 0.0))
    return np.atleast_2d(run.metrics["log_loss" if "u" in run.weights else "log_excess_loss"])


def _row(
    name: str,
    rule: Any,
    run: Trajectory,
    levels: tuple[float, ...],
    fit_start: float | None,
    prediction: Prediction,
    capped: float | None,
) -> RatesRow:
    apart = np.atleast_2d(run.metrics["misalignment_svm"])
    reached = [Reached(level=v, times=tuple(time_to(run.steps, apart, v).tolist())) for v in levels]
    lost = (apart < ROUNDING).any(0)
    stop = float(run.steps[lost][0]) - 1 if lost.any() else float(run.steps[-1])
    start = _decade_before(run.steps, stop) if fit_start is None else fit_start
    fit, theory_fit, problem = None, None, None
    try:
        fit = fit_rate(run.steps, apart, start=start, stop=stop)
        if prediction.family is not None:
            theory_fit = fit_rate(run.steps, apart, family=prediction.family, start=start, stop=stop)
    except InputError as error:
        problem = str(error).split("\n")[0]
    return RatesRow(
        name=name, rule=repr(rule), reached=tuple(reached), misalignment=apart[:, -1], fit=fit, fit_problem=problem,
        theory_fit=theory_fit, prediction=prediction, capped=capped, run=run,
    )  # fmt: skip


def _decade_before(steps: NDArray[np.int64], stop: float) -> float:
    """The last record with a decade from it to `stop`, but not before the families of rates begin."""
    early = steps[steps <= stop / 10]
    return max(FIRST_STEP, float(early[-1])) if len(early) else FIRST_STEP


def _levels(levels: Sequence[float]) -> tuple[float, ...]:
    found = finite_array("levels", levels)
    if found.ndim != 1 or not found.size or not (np.abs(found) < 1).all():
        raise InputError(
            message(f"`levels` is {shown(levels)}; wanted cosines between -1 and 1.", "levels=(0.9, 0.99)")
        )
    return tuple(float(level) for level in found)


def _named(rules: Any) -> dict[str, Any]:
    """Rules by name; those of a list are named as they print, shortly, and numbered where that is not enough."""
    if rules is None:
        return {}
    if isinstance(rules, Mapping):
        named = {str(name): rule for name, rule in rules.items()}
    elif hasattr(rules, "update") and hasattr(rules, "init"):
        raise InputError(message("`rules` is one rule; wanted a list of them, or name -> rule.", "rules=[al.ngd(0.1)]"))
    elif not isinstance(rules, Sequence) or isinstance(rules, str):
        raise InputError(message(f"`rules` is {shown(rules)}; wanted a list of rules.", "rules=[al.ngd(0.1)]"))
    else:
        short = [_short(rule) for rule in rules]
        named = {text if short.count(text) == 1 else f"{text} #{i}": rule
                 for i, (text, rule) in enumerate(zip(short, rules, strict=True))}  # fmt: skip
    if not named:
        raise InputError(message("`rules` is empty; wanted at least one rule.", "rules=None takes the usual ones"))
    for name, rule in named.items():
        if not (hasattr(rule, "init") and hasattr(rule, "update")):
            raise InputError(message(f"`rules` has {shown(rule)} for {name!r}; wanted a step rule.", "al.ngd(0.1)"))
    return named


def _short(rule: Any) -> str:
    """`ngd(0.025, cap=100)`: the step, and a cap if there is one."""
    settings = getattr(rule, "settings", None)
    if not isinstance(settings, Mapping):
        return type(rule).__name__
    parts = [f"{settings['step']:g}"] if "step" in settings else [f"constant={settings.get('constant', 0):g}"]
    parts += [f"cap={settings['cap']:g}"] if np.isfinite(settings.get("cap", np.inf)) else []
    parts += [f"form={settings['form']}"] if settings.get("form", "A") != "A" else []
    return f"{rule.name}({', '.join(parts)})"


def _usual(constants: Sequence[Any], joint: bool) -> dict[str, Any]:
    if joint or not constants:
        raise InputError(message("`rules` is None, but there are no usual ones for these data.", "rules=[al.ngd(0.1)]"))
    room = min(float(np.log(2 * c.T - 1)) for c in constants)
    slow = min(0.1 * room / (c.B**4 * c.zeta) for c in constants)
    step = min(min(c.Lambda / PACE, room / (2 * c.B**2)) for c in constants)
    rules = (gd(slow), ngd(step), ngd_momentum(step), ngd(10 * step), polyak())
    return {_short(rule): rule for rule in rules}


def _selection(tokens: Tokens, selected: ArrayLike | None, joint: bool) -> NDArray[np.intp]:
    if selected is not None:
        return whole_array("selected", selected, "the number of a token for each query")
    if joint and "planted" in tokens.info:
        return np.asarray(tokens.info["planted"])
    if tokens.v is None:
        raise InputError(message("`tokens` have no `v` to tell the best token by.", "pass `selected=`"))
    return optimal_tokens(tokens)


def _solved(tokens: Tokens, chosen: NDArray[np.intp]) -> list[MarginSolution]:
    if tokens.T == 1:
        raise InputError(
            message("`tokens` have one token per sequence; W has nothing to separate, and no rate.", "use T >= 2")
        )
    if tokens.trials is None:
        return [solve_margin(tokens, chosen)]
    solutions = list(solve_margins(tokens, chosen))
    lost = [i for i, s in enumerate(solutions) if not s.feasible]
    if lost:
        text = f"In {len(lost)} of {len(solutions)} trials, the first of them {lost[0]}, no W separates the tokens."
        raise InfeasibleSelection(message(text, "a larger dimension d, or another `selected`"), solutions[lost[0]])
    return solutions


def _start(tokens: Tokens, Lambda: Array, joint: bool, seed: int) -> Any:
    if joint:
        return "zeros"
    scales = START * Lambda / tokens.d
    streams = (np.random.default_rng([seed, i, START_STREAM]) for i in range(len(Lambda)))
    W = np.stack([scale * rng.standard_normal((tokens.d,) * 2) for scale, rng in zip(scales, streams, strict=True)])
    return W[0] if tokens.trials is None else W


def _spread(start: Any, d: int) -> float:
    """Deviation of the entries of W(0), the largest over trials."""
    if isinstance(start, str):
        return {"zeros": 0.0, "gaussian": 1.0, "uniform": 1.0 / np.sqrt(3.0 * d)}.get(start, np.inf)
    if isinstance(start, Mapping) and "W" not in start:
        return np.inf  # of K and Q no theorem speaks
    W = finite_array("init", start["W"] if isinstance(start, Mapping) else start)
    if W.ndim < 2 or not W.size:
        raise InputError(message(f"`init` has shape {W.shape}; wanted W of shape ({d}, {d})."))
    return float(matrix_lengths(W).max() / d)


def _head(tokens: Tokens, chosen: NDArray[np.intp]) -> Array:
    """u_mm: the best linear classifier of the selected tokens, per trial."""
    if tokens.K is not None:
        raise InputError(message(f"`tokens` have K = {tokens.K} queries; joint training is for one per sequence."))
    points = np.take_along_axis(tokens.x, chosen[..., None, None], axis=-2)[..., 0, :]
    pairs = zip(points, tokens.y, strict=True) if tokens.trials is not None else [(points, tokens.y)]
    found = [linear_margin(x, y) for x, y in pairs]
    if not all(one.separable for one in found):
        raise InputError(message("No u separates the labels of the selected tokens, so there is no u_mm."))
    weights = np.stack([one.weights for one in found if one.weights is not None])
    return weights[0] if tokens.trials is None else weights
