"""`rates`: several step rules side by side on the same data, and what theory says of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import optax
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import finite_array, instance, number, shown, whole, whole_array
from attnlab.data.families import START_STREAM
from attnlab.data.scale import matrix_lengths
from attnlab.data.selection import optimal_tokens
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InfeasibleSelection, InputError, message
from attnlab.models.losses import LossLike, as_loss
from attnlab.models.model import Init
from attnlab.optim import gd, ngd, ngd_momentum, polyak
from attnlab.reports.table import RatesRow, RatesTable, Reached
from attnlab.reports.timing import capped_share, time_to
from attnlab.svm import MarginSolution, linear_margin, solve_margin, solve_margins
from attnlab.theory.fitting import FIRST_STEP, fit_rate
from attnlab.theory.rates.constants import RateConstants
from attnlab.theory.rates.predictions import Prediction, predict, setting
from attnlab.train.descend import descend
from attnlab.train.trajectory import Trajectory

Rule = optax.GradientTransformation

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
    rules: Sequence[Rule] | Mapping[str, Rule] | None = None,
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
    steps = whole("steps", steps)
    record = whole("record", record)
    seed = whole("seed", seed, 0)
    if train_head is not None:
        instance("train_head", train_head, bool, "True, False or None")
    if fit_start is not None:
        fit_start = number("fit_start", fit_start, above=0)
    cosines = _levels(levels)
    named = _named(rules)
    joint = _any_joint(named) if train_head is None else train_head
    chosen = _selection(tokens, selected, joint)
    solutions = _solved(tokens, chosen)
    W = np.stack([solution.W for solution in solutions])  # (trials, d, d)
    Lambda = np.array([1.0 / solution.margin for solution in solutions])
    start = _start(tokens, Lambda, joint, seed) if init is None else init
    here = setting(
        tokens,
        solutions,
        loss=as_loss(loss).name,
        train_head=joint,
        start=_spread(start, tokens.d),
        steps=steps,
    )
    if not named:
        named = _usual(here.constants, joint)
    targets = {"svm": W[0] if tokens.trials is None else W}
    if joint:
        targets["head"] = _head(tokens, chosen)
    rows = []
    for i, (name, rule) in enumerate(named.items()):
        if on_part is not None:
            on_part(i, len(named), name)
        run = descend(
            tokens,
            rule,
            steps=steps,
            loss=loss,
            train_head=joint,
            init=start,
            record=record,
            targets=targets,
            track=chosen,
        )
        capped = capped_share(rule, run)
        prediction = predict(rule, here, capped=capped)
        rows.append(_row(name, rule, run, cosines, fit_start, prediction, capped))
    if on_part is not None:
        on_part(len(named), len(named), "done")
    return RatesTable(rules=tuple(rows), levels=cosines, steps=steps, trials=len(solutions), Lambda=Lambda)


def _any_joint(named: Mapping[str, Rule]) -> bool:
    """Is one of the rules for head and attention together?"""
    return any(getattr(rule, "name", None) in JOINT for rule in named.values())


def _row(
    name: str,
    rule: Rule,
    run: Trajectory,
    levels: tuple[float, ...],
    fit_start: float | None,
    prediction: Prediction,
    capped: float | None,
) -> RatesRow:
    misalignment = np.atleast_2d(run.metrics["misalignment_svm"])  # (trials, R)
    reached = [Reached(level=v, times=tuple(time_to(run.steps, misalignment, v).tolist())) for v in levels]
    rounded = (misalignment < ROUNDING).any(0)
    stop = float(run.steps[rounded][0]) - 1 if rounded.any() else float(run.steps[-1])
    start = _decade_before(run.steps, stop) if fit_start is None else fit_start
    fit = None
    theory_fit = None
    problem = None
    try:
        fit = fit_rate(run.steps, misalignment, start=start, stop=stop)
        if prediction.family is not None:
            theory_fit = fit_rate(run.steps, misalignment, family=prediction.family, start=start, stop=stop)
    except InputError as error:
        problem = str(error).split("\n")[0]
    return RatesRow(
        name=name,
        rule=repr(rule),
        reached=tuple(reached),
        misalignment=misalignment[:, -1],
        fit=fit,
        fit_problem=problem,
        theory_fit=theory_fit,
        prediction=prediction,
        capped=capped,
        run=run,
    )


def _decade_before(steps: NDArray[np.int64], stop: float) -> float:
    """The last record with a decade from it to `stop`, but not before the families of rates begin."""
    early = steps[steps <= stop / 10]
    return max(FIRST_STEP, float(early[-1])) if len(early) else FIRST_STEP


def _levels(levels: Sequence[float]) -> tuple[float, ...]:
    cosines = finite_array("levels", levels)
    if cosines.ndim != 1 or not cosines.size or not (np.abs(cosines) < 1).all():
        problem = f"`levels` is {shown(levels)}; wanted cosines between -1 and 1."
        raise InputError(message(problem, "levels=(0.9, 0.99)"))
    return tuple(float(cosine) for cosine in cosines)


def _named(rules: Sequence[Rule] | Mapping[str, Rule] | None) -> dict[str, Rule]:
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
        named = _numbered(rules)
    if not named:
        raise InputError(message("`rules` is empty; wanted at least one rule.", "rules=None takes the usual ones"))
    for name, rule in named.items():
        if not (hasattr(rule, "init") and hasattr(rule, "update")):
            raise InputError(message(f"`rules` has {shown(rule)} for {name!r}; wanted a step rule.", "al.ngd(0.1)"))
    return named


def _numbered(rules: Sequence[Rule]) -> dict[str, Rule]:
    """Each by its short name, with its place in the list where two have the same."""
    short = [_short(rule) for rule in rules]
    named = {}
    for place, (text, rule) in enumerate(zip(short, rules, strict=True)):
        name = text if short.count(text) == 1 else f"{text} #{place}"
        named[name] = rule
    return named


def _short(rule: Rule) -> str:
    """`ngd(0.025, cap=100)`: the step, and a cap if there is one."""
    settings = getattr(rule, "settings", None)
    if not isinstance(settings, Mapping):
        return type(rule).__name__
    parts = [f"{settings['step']:g}"] if "step" in settings else [f"constant={settings.get('constant', 0):g}"]
    if np.isfinite(settings.get("cap", np.inf)):
        parts.append(f"cap={settings['cap']:g}")
    if settings.get("form", "A") != "A":
        parts.append(f"form={settings['form']}")
    return f"{getattr(rule, 'name', '')}({', '.join(parts)})"


def _usual(constants: Sequence[RateConstants], joint: bool) -> dict[str, Rule]:
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
        problem = "`tokens` have one token per sequence; W has nothing to separate, and no rate."
        raise InputError(message(problem, "use T >= 2"))
    if tokens.trials is None:
        return [solve_margin(tokens, chosen)]
    solutions = list(solve_margins(tokens, chosen))
    infeasible = [i for i, solution in enumerate(solutions) if not solution.feasible]
    if infeasible:
        first = infeasible[0]
        text = f"In {len(infeasible)} of {len(solutions)} trials, the first of them {first}, no W separates the tokens."
        raise InfeasibleSelection(message(text, "a larger dimension d, or another `selected`"), solutions[first])
    return solutions


def _start(tokens: Tokens, Lambda: Array, joint: bool, seed: int) -> str | Array:
    """Zero for joint training; else small Gaussian weights, (d, d) or (trials, d, d)."""
    if joint:
        return "zeros"
    starts = []
    for trial, scale in enumerate(START * Lambda / tokens.d):
        rng = np.random.default_rng([seed, trial, START_STREAM])
        starts.append(scale * rng.standard_normal((tokens.d, tokens.d)))
    W = np.stack(starts)
    return W[0] if tokens.trials is None else W


def _spread(start: str | Mapping[str, ArrayLike] | ArrayLike, d: int) -> float:
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
    classifiers = [linear_margin(x, y) for x, y in pairs]
    if not all(one.separable for one in classifiers):
        raise InputError(message("`tokens` have selected tokens whose labels no u separates, so there is no u_mm."))
    weights = np.stack([one.weights for one in classifiers if one.weights is not None])
    return weights[0] if tokens.trials is None else weights
