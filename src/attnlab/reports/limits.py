"""`limits`: where can gradient descent go on these tokens, and how often does it go there?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import optax
from numpy.typing import NDArray

from attnlab.checks import instance, one_of, shown, whole
from attnlab.data.selection import scores
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import Attention
from attnlab.models.losses import LossLike, as_loss
from attnlab.models.model import Init
from attnlab.optim import ngd
from attnlab.reports.limittable import Limit, LimitsReport
from attnlab.svm import MarginSolution, solve_margin
from attnlab.theory.arrays import one_data_set
from attnlab.theory.svm.geometry import is_locally_optimal
from attnlab.theory.svm.selections import selection_count, solved_selections
from attnlab.train.descend import descend
from attnlab.train.settling import Judge, judge_of
from attnlab.train.trajectory import Trajectory

FIRST_LOOK = 100  # steps; then after 200, 400, 800 ...
FEWER = 8  # the batch of runs shrinks by this factor
NORM_OF: dict[str, Literal["frobenius", "nuclear"]] = {"W": "frobenius", "KQ": "nuclear"}


def limits(
    tokens: Tokens,
    starts: int = 500,
    *,
    rule: optax.GradientTransformation | None = None,
    steps: int = 12_800,
    parameterization: Literal["W", "KQ"] = "W",
    loss: LossLike = "logistic",
    init: Init = None,
    init_scale: float = 1.0,
    seed: int = 0,
    enumerate_up_to: int = 4096,
    on_step: Callable[[int, int], None] | None = None,
) -> LimitsReport:
    """Where gradient descent can go on these tokens: every locally optimal selection, and the share of starts it gets.

    Gradient descent is run from all starts at once. After 100, 200, 400 ... steps those are told that have settled, see
    `Trajectory.settled`, and the runs end when all have, or after `steps`.

    Args:
        tokens: one data set with a head `v`.
        starts: random starts; start i is that of trial i of `descend`.
        rule: an isotropic step rule; None for `al.ngd(0.1)`. What a rule remembers of earlier steps, as momentum does,
            begins anew after each look.
        steps: the longest run.
        parameterization: "W", or "KQ" for K and Q, with max-margin directions in the nuclear norm.
        loss: "logistic", "exponential" or "correlation".
        init, init_scale, seed: as for `descend`; arrays of starts have an axis of length `starts` first.
        enumerate_up_to: with at most so many selections all of them are solved for, so that limits are listed to which
            no start goes; otherwise only those that runs find.
        on_step: called with the steps taken and the number of settled runs.

    Returns:
        A `LimitsReport`. Every start is counted in one of its rows.

    >>> import attnlab as al
    >>> found = limits(al.data.sphere(n=2, T=3, d=3, seed=0), starts=20)
    >>> sum(limit.runs for limit in found.limits)
    20
    """
    began = time.perf_counter()
    one_data_set(instance("tokens", tokens, Tokens, "al.Tokens"))
    starts, steps = whole("starts", starts), whole("steps", steps)
    most = whole("enumerate_up_to", enumerate_up_to, 0)
    one_of("parameterization", parameterization, tuple(NORM_OF))
    if on_step is not None and not callable(on_step):
        raise InputError(message(f"`on_step` is {shown(on_step)}; wanted a function of two numbers."))
    rule = ngd(0.1) if rule is None else rule
    judge = _judge(tokens, rule, parameterization, loss)
    known = Solutions(tokens, NORM_OF[parameterization])
    weights, selected = _started(tokens, starts, parameterization, init, init_scale, seed)
    settled_at, before = np.full(starts, -1), 0
    for last in _looks(steps):
        # Those that have settled stay where they are; the others go on.
        left = _one_of_few_sizes(np.flatnonzero(settled_at < 0), starts)
        run = descend(
            Tokens.stack([tokens] * len(left)),
            rule,
            steps=last - before,
            record=None,
            init={name: weight[left] for name, weight in weights.items()},
            parameterization=parameterization,
            loss=loss,
        )
        for name, weight in weights.items():
            weight[left] = run.weights[name]
        selected[left] = run.selected
        settled_at[left[_settled(run, judge, known)]] = last
        before = last
        if on_step is not None:
            on_step(last, int((settled_at >= 0).sum()))
        if (settled_at >= 0).all():
            break
    enumerated = selection_count(tokens) <= most
    possible = known.all_locally_optimal(most) if enumerated else []
    return LimitsReport(
        limits=_rows(tokens, selected, settled_at, known, possible),
        selected=selected,
        settled_at=settled_at,
        total=selection_count(tokens),
        enumerated=enumerated,
        parameterization=parameterization,
        norm=NORM_OF[parameterization],
        weights=weights,
        last_step=before,
        seconds=time.perf_counter() - began,
    )


def _judge(tokens: Tokens, rule: optax.GradientTransformation, parameterization: Any, loss: LossLike) -> Judge:
    """Refuses what cannot be judged."""
    if tokens.v is None:
        raise InputError(message("`tokens` have no `v`: without scores no token is better than another.", "pass v="))
    if not getattr(rule, "isotropic", False):
        problem = f"`rule` is {shown(rule)}, which goes to other directions than these max-margin ones"
        raise InputError(message(f"{problem}; wanted one that knows no coordinates.", "al.ngd(0.1), al.gd(0.1)"))
    judge = judge_of(tokens, Attention(parameterization), as_loss(loss))
    if judge is None:
        wanted = "wanted 'logistic', 'exponential' or 'correlation'"
        raise InputError(message(f"`loss` is {shown(loss)}; {wanted}."))
    return judge


def _one_of_few_sizes(left: NDArray[np.intp], starts: int) -> NDArray[np.intp]:
    """The starts that are left, the first of them repeated up to one of few numbers: each compiles a program."""
    size = starts
    while size // FEWER >= len(left):
        size //= FEWER
    return np.append(left, np.repeat(left[:1], size - len(left)))


def _looks(steps: int) -> list[int]:
    looks = []
    at = FIRST_LOOK
    while at < steps:
        looks.append(at)
        at *= 2
    return [*looks, steps]


def _started(
    tokens: Tokens, starts: int, parameterization: Any, init: Init, init_scale: float, seed: int
) -> tuple[dict[str, Array], NDArray[np.intp]]:
    """Weights of all starts, those of the trials of `descend`, and room for what they select."""
    batch = Tokens.stack([tokens] * starts)
    weights = Attention(parameterization).start(batch, init, init_scale, seed)
    return {name: np.array(weight) for name, weight in weights.items()}, np.zeros(batch.y.shape, dtype=np.intp)


def _settled(run: Trajectory, judge: Judge, known: Solutions) -> NDArray[np.bool_]:
    """Which runs have settled."""
    some = Judge(Tokens.stack([judge.tokens] * len(run.selected)), judge.loss, judge.norm)
    return some.settled(run.W, run.selected, lambda which: [known.of(run.selected[i]) for i in which.tolist()])


class Solutions:
    """The max-margin solutions of selections of one data set, each solved once."""

    def __init__(self, tokens: Tokens, norm: Literal["frobenius", "nuclear"]) -> None:
        self.tokens = tokens
        self.norm: Literal["frobenius", "nuclear"] = norm
        self._known: dict[bytes, MarginSolution] = {}

    def of(self, selected: NDArray[np.intp]) -> MarginSolution:
        """Of one selection."""
        key = np.asarray(selected, dtype=np.int64).tobytes()
        if key not in self._known:
            self._known[key] = solve_margin(self.tokens, selected, norm=self.norm, throw=False)
        return self._known[key]

    def all_locally_optimal(self, limit: int) -> list[NDArray[np.intp]]:
        """Every locally optimal selection, in lexicographic order; what some W separates is solved in this norm."""
        found = []
        for chosen, solution in solved_selections(self.tokens, limit):
            if not solution.feasible:
                continue
            if self.norm == "frobenius":
                self._known[np.asarray(chosen, dtype=np.int64).tobytes()] = solution
            if is_locally_optimal(self.tokens, chosen, solution=self.of(chosen)):
                found.append(chosen)
        return found


def _rows(
    tokens: Tokens,
    selected: NDArray[np.intp],
    settled_at: NDArray[np.int64],
    known: Solutions,
    possible: Sequence[NDArray[np.intp]],
) -> tuple[Limit, ...]:
    """A row for every selection that is locally optimal or at which a run ends; the most frequent first."""
    starts = len(selected)
    flat = selected.reshape(starts, -1)
    listed = np.array([chosen.reshape(-1) for chosen in possible], dtype=flat.dtype).reshape(-1, flat.shape[1])
    distinct = np.unique(np.concatenate([flat, listed]), axis=0)
    gamma = np.where(tokens.visible, scores(tokens), -np.inf)
    rows = []
    for chosen in distinct:
        here = (flat == chosen).all(-1)
        settled = settled_at[here & (settled_at >= 0)]
        laid_out = chosen.reshape(tokens.y.shape)
        own = np.take_along_axis(gamma, laid_out[..., None], -1)[..., 0]
        rows.append(
            Limit(
                selected=laid_out,
                optimality=is_locally_optimal(tokens, laid_out, solution=known.of(laid_out)),
                score=float(own.mean()),
                is_best=bool((own == gamma.max(-1)).all()),
                settled=len(settled),
                unsettled=int(here.sum()) - len(settled),
                starts=starts,
                steps=_middle(settled),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.settled, -row.unsettled, row.name)))


def _middle(steps: NDArray[np.int64]) -> int | None:
    """The median, as one of the steps."""
    return int(np.sort(steps)[(len(steps) - 1) // 2]) if len(steps) else None
