"""`rates`: several step rules side by side on the same data, and what theory says of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import finite_array, instance, number, one_of, shown, whole, whole_array
from attnlab.data.families import START_STREAM
from attnlab.data.scale import matrix_lengths
from attnlab.data.selection import optimal_tokens
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InfeasibleSelection, InputError, message
from attnlab.models.losses import LossLike, as_loss
from attnlab.models.model import Init
from attnlab.reports.exponents import exponents
from attnlab.reports.ownlimit import Limits, NormName, TrialState, beside_own_limit, limits_of
from attnlab.reports.ruleset import Rule, any_joint, named_rules, usual_rules
from attnlab.reports.table import RatesRow, RatesTable, Reached, TrialRate
from attnlab.reports.timing import capped_share, time_to
from attnlab.theory.rates.predictions import Prediction, Setting, predict, setting
from attnlab.train.descend import descend
from attnlab.train.trajectory import Trajectory

LEVELS = (0.9, 0.99, 0.999)
# Records per decade; times between two of them are interpolated.
RECORD = 40
# |W(0)| over |W_mm|, unless a start is given: small enough for Lemma 2 with usual steps.
START = 1e-5
TINY = 1e-100
# Where each parameterization goes.
NORMS: dict[str, NormName] = {"W": "frobenius", "KQ": "nuclear"}


def rates(
    tokens: Tokens,
    rules: Sequence[Rule] | Mapping[str, Rule] | None = None,
    *,
    steps: int = 3000,
    loss: LossLike = "exponential",
    levels: Sequence[float] = LEVELS,
    parameterization: Literal["W", "KQ"] = "W",
    norm: Literal["frobenius", "nuclear"] | None = None,
    selected: ArrayLike | None = None,
    train_head: bool | None = None,
    init: Init | None = None,
    seed: int = 0,
    record: int = RECORD,
    fit_start: float | None = None,
    on_part: Callable[[int, int, str], None] | None = None,
) -> RatesTable:
    """Run step rules side by side and see how fast each comes to the max-margin direction W_mm.

    Every trial is compared with the W_mm of the tokens that it selects itself. Trials that have not settled, or whose
    tokens no W separates, stay in place and are counted; the exponent of a rule is that of its settled trials. Where
    trials end at other tokens than expected, a rule is run twice: what to compare with is known only in the end.

    Args:
        tokens: one data set, or a batch of trials.
        rules: a list, or name -> rule. None takes `gd` at a tenth of the largest step of Theorem 6 (log(2T-1)/(10 B^4
            zeta)), `ngd` with |W_mm|/300 or the largest step of Theorem 5 if that is less, the same with momentum 0.9,
            the same with ten times the step (which is what momentum 0.9 amounts to on a steady gradient), and `polyak`
            without a cap.
        steps: of each run.
        loss: as for `descend`; the theory is for the exponential loss.
        levels: cosines whose time is looked for.
        parameterization: "W", or "KQ" for W = K Q^T.
        norm: "frobenius" or "nuclear", that of the max-margin problem; None: "frobenius" for W, "nuclear" for K and Q.
        selected: the tokens that W_mm separates from the others, in every trial; None: those that the trial selects.
            A run that ends at others than these is counted as "elsewhere".
        train_head: train u too; None: if a rule is for joint training.
        init: as for `descend`. None: Gaussian with |W(0)| about 1e-5 |W_mm|; zero W if the head is trained.
        seed: of that start.
        record: records per decade. Times between two records are interpolated in log t.
        fit_start: first step of the range the exponent is fitted on; None: the last decade.
        on_part: told (rules done, rules in all, which comes next).

    Returns:
        A `RatesTable`; `print` it, or read `.rows`, `.to_json()`. `rows[0].trials` has state, limit and exponent of
        each trial.

    >>> import attnlab as al
    >>> table = rates(al.data.two_tokens(), [al.gd(0.5), al.ngd(0.1)], steps=2000)
    >>> [round(row.fit.rate, 2) for row in table.rows]
    [0.44, 2.0]

    One trial of five ends at other tokens than the best, and goes to its own limit as fast as the others to theirs:

    >>> tokens = al.data.sphere(n=4, T=5, d=8, seed=0, trials=5)
    >>> (row,) = rates(tokens, [al.ngd(1.0)], steps=3000).rows
    >>> [trial.best for trial in row.trials], row.exponents.round(1).tolist()
    ([True, True, True, True, False], [2.0, 2.0, 2.0, 2.0, 2.0])
    """
    instance("tokens", tokens, Tokens, "al.Tokens")
    steps = whole("steps", steps)
    record = whole("record", record)
    seed = whole("seed", seed, 0)
    one_of("parameterization", parameterization, ("W", "KQ"))
    one_of("norm", norm, (None, "frobenius", "nuclear"))
    if train_head is not None:
        instance("train_head", train_head, bool, "True, False or None")
    if fit_start is not None:
        fit_start = number("fit_start", fit_start, above=0)
    cosines = _levels(levels)
    named = named_rules(rules)
    joint = any_joint(named) if train_head is None else train_head
    measure = NORMS[parameterization] if norm is None else norm
    expected = _expected(tokens, selected, joint, measure)
    start = _start(tokens, expected.Lambda, joint, parameterization, seed) if init is None else init
    here = _unproved(parameterization, measure)
    if here is None:
        spread = _spread(start, tokens.d)
        loss_name = as_loss(loss).name
        here = setting(tokens, expected.solutions, loss=loss_name, train_head=joint, start=spread, steps=steps)
    if not named:
        named = usual_rules(here.constants if isinstance(here, Setting) else ())
    rows = []
    guess = expected
    for i, (name, rule) in enumerate(named.items()):
        if on_part is not None:
            on_part(i, len(named), name)

        def train(targets: Mapping[str, Array], track: NDArray[np.intp], rule: Rule = rule) -> Trajectory:
            return descend(
                tokens,
                rule,
                steps=steps,
                loss=loss,
                parameterization=parameterization,
                train_head=joint,
                init=start,
                record=record,
                targets=targets,
                track=track,
            )

        run, guess, states = beside_own_limit(
            tokens, train, guess, expected, norm=measure, given=selected is not None, joint=joint
        )
        capped = capped_share(rule, run)
        best = (guess.selected == expected.selected).reshape(len(states), -1).all(-1)
        prediction = _predicted(rule, here, capped, best)
        rows.append(_row(name, rule, run, guess, states, best, cosines, fit_start, prediction, capped))
    if on_part is not None:
        on_part(len(named), len(named), "done")
    return RatesTable(
        rules=tuple(rows),
        levels=cosines,
        steps=steps,
        trials=len(expected.solutions),
        parameterization=parameterization,
        norm=measure,
        Lambda=expected.Lambda,
    )


def _row(
    name: str,
    rule: Rule,
    run: Trajectory,
    limits: Limits,
    states: tuple[TrialState, ...],
    best: NDArray[np.bool_],
    levels: tuple[float, ...],
    fit_start: float | None,
    prediction: Prediction,
    capped: float | None,
) -> RatesRow:
    misalignment = np.atleast_2d(run.metrics["misalignment_svm"])  # (trials, R)
    found = exponents(run.steps, misalignment, states, start=fit_start, family=prediction.family)
    trials = []
    for i, (state, fit) in enumerate(zip(states, found.each, strict=True)):
        trial = TrialRate(
            state=state,
            selected=limits.selected[i],
            best=bool(best[i]),
            Lambda=float(limits.Lambda[i]),
            misalignment=float(misalignment[i, -1]),
            exponent=np.nan if fit is None else fit.rate,
            low=np.nan if fit is None else fit.low,
            high=np.nan if fit is None else fit.high,
            problem=found.problems[i],
        )
        trials.append(trial)
    return RatesRow(
        name=name,
        rule=repr(rule),
        reached=tuple(Reached(level=v, times=tuple(time_to(run.steps, misalignment, v).tolist())) for v in levels),
        trials=tuple(trials),
        fit=found.together,
        fit_problem=found.problem,
        theory_fit=found.in_family,
        prediction=prediction,
        capped=capped,
        run=run,
    )


def _unproved(parameterization: str, norm: str) -> Prediction | None:
    """What is said where the theory of rates does not speak; None where it does."""
    if parameterization == "KQ":
        return Prediction(text="nothing proved for K and Q")
    if norm != "frobenius":
        return Prediction(text=f"nothing proved in the {norm} norm")
    return None


def _predicted(rule: Rule, here: Setting | Prediction, capped: float | None, best: NDArray[np.bool_]) -> Prediction:
    """What theory says, which is about the best (or planted) tokens: trials that end at others do not meet it."""
    if isinstance(here, Prediction):
        return here
    prediction = predict(rule, here, capped=capped)
    if best.all() or prediction.family is None:
        return prediction
    unmet = f"the best tokens selected ({best.sum()} of {len(best)} trials)"
    return replace(prediction, unmet=(*prediction.unmet, unmet))


def _levels(levels: Sequence[float]) -> tuple[float, ...]:
    cosines = finite_array("levels", levels)
    if cosines.ndim != 1 or not cosines.size or not (np.abs(cosines) < 1).all():
        problem = f"`levels` is {shown(levels)}; wanted cosines between -1 and 1."
        raise InputError(message(problem, "levels=(0.9, 0.99)"))
    return tuple(float(cosine) for cosine in cosines)


def _expected(tokens: Tokens, selected: ArrayLike | None, joint: bool, norm: NormName) -> Limits:
    """The limits of the given tokens, or of those that theory expects to be selected."""
    if tokens.T == 1:
        problem = "`tokens` have one token per sequence; W has nothing to separate, and no rate."
        raise InputError(message(problem, "use T >= 2"))
    limits = limits_of(tokens, _selection(tokens, selected, joint), norm)
    if selected is None or limits.feasible.any():
        return limits
    count = len(limits.solutions)
    text = f"In {count} of {count} trials no W separates the tokens of `selected`."
    raise InfeasibleSelection(message(text, "a larger dimension d, or another `selected`"), limits.solutions[0])


def _selection(tokens: Tokens, selected: ArrayLike | None, joint: bool) -> NDArray[np.intp]:
    if selected is not None:
        return whole_array("selected", selected, "the number of a token for each query")
    if joint and "planted" in tokens.info:
        return np.asarray(tokens.info["planted"])
    if tokens.v is None:
        raise InputError(message("`tokens` have no `v` to tell the best token by.", "pass `selected=`"))
    return optimal_tokens(tokens)


def _start(
    tokens: Tokens, Lambda: Array, joint: bool, parameterization: str, seed: int
) -> str | Array | dict[str, ArrayLike]:
    """Zero W for joint training; else Gaussian weights with |W| about 1e-5 |W_mm|, of each trial."""
    if parameterization == "W" and joint:
        return "zeros"
    scales = START * np.where(np.isfinite(Lambda), Lambda, _least_length(tokens))
    # Entries of K Q^T are sums of d products, each as large as the square of an entry.
    deviations = scales / tokens.d if parameterization == "W" else np.sqrt(scales) / tokens.d**0.75
    names = ("W",) if parameterization == "W" else ("K", "Q")
    drawn: dict[str, list[Array]] = {name: [] for name in names}
    for trial, deviation in enumerate(deviations):
        rng = np.random.default_rng([seed, trial, START_STREAM])
        for name in names:
            drawn[name].append(deviation * rng.standard_normal((tokens.d, tokens.d)))
    weights = {name: np.stack(w) if tokens.trials is not None else w[0] for name, w in drawn.items()}
    return weights["W"] if parameterization == "W" else dict(weights)


def _least_length(tokens: Tokens) -> Array:
    """Of each trial: no W shorter than 1 / (2 max|x| max|z|) separates tokens with margin 1."""
    axes = (None,) if tokens.trials is None else ()
    longest = [np.max(np.abs(part[axes]), axis=tuple(range(1, part[axes].ndim))) for part in (tokens.x, tokens.z)]
    return 0.5 / np.maximum(longest[0], TINY) / np.maximum(longest[1], TINY)


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
