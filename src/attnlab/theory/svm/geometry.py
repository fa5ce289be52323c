"""Token geometry that needs a max-margin solution: support tokens and locally optimal selections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import LARGEST, instance, whole
from attnlab.data.scale import rescaled
from attnlab.data.selection import TIE, TokenHead, comparable_scores
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.heads import HeadLike, as_head
from attnlab.svm import MarginSolution, MarginStatus, solve_margin
from attnlab.svm.rows import check_selected
from attnlab.theory.arrays import one_data_set
from attnlab.theory.check import Check
from attnlab.theory.svm.selections import selection_count, solved_selections

DEFINITION = "Definition 2"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LocalOptimality(Check):
    """Is a selection locally optimal? Use it as a truth value; it carries the evidence.

    Its `value` and `margin` are `lead`, wanted above 0; the margin is -inf without a solution.

    Attributes:
        holds: the answer.
        feasible: does some W separate the selected tokens?
        decided: False where float64 cannot tell (no certified support set); then `holds` is False, `reason` says why.
        failing: support tokens that do not score strictly below the selected one, as rows (query..., token): (m, 2),
            or (m, 3) with K queries.
        lead: least lead in score of a selected token over its support tokens; inf without support tokens, None
            without a solution.
        empty: queries that compare several tokens and yet have no support token, laid out as the labels. The
            definition says nothing about them; a verdict that rests on them is `vacuous`.
        ties: support tokens whose score equals that of the selected one (to 1e-12 relative), laid out as the tokens.
        solution: the max-margin solution all this was read from.
        reason: why it does not hold, in words; None if it does.
    """

    feasible: bool
    decided: bool
    failing: NDArray[np.intp]
    lead: float | None
    empty: NDArray[np.bool_]
    ties: NDArray[np.bool_]
    solution: MarginSolution
    reason: str | None

    def __eq__(self, other: object) -> bool:
        return self.holds == bool(other) if isinstance(other, bool | np.bool_) else self is other

    def __hash__(self) -> int:
        return hash(self.holds)

    @property
    def vacuous(self) -> bool:
        """Does some query that compares tokens have no support token?"""
        return bool(self.empty.any())

    def _remark(self) -> str:
        if not self.holds:
            return f": {self.reason}"
        return f", {int(self.empty.sum())} queries without support" if self.vacuous else ""


def support_indices(tokens: Tokens, selected: ArrayLike, solution: MarginSolution | None = None) -> NDArray[np.bool_]:
    """Which tokens hold the margin: `T_i = {t : (x_selected - x_t)^T W z = 1}` at the max-margin W of `selected`.

    Args:
        tokens: one data set.
        selected: a visible token per query, (n,) or (n, K).
        solution: the max-margin solution of `selected`, if there is one already; None solves for it.

    Returns:
        Booleans laid out as the tokens, (n, T) or (n, K, T); False at selected and masked tokens. Raises
        `InfeasibleSelection` if no W separates, `InputError` if the solution is too inaccurate to tell.

    Definition 2 of *Transformers as Support Vector Machines* (4 with K queries).

    >>> import attnlab as al
    >>> support_indices(al.data.two_tokens(), [0])
    array([[False,  True]])
    """
    chosen = checked(tokens, selected)
    solution = solve_margin(tokens, chosen) if solution is None else belongs(tokens, chosen, solution)
    if solution.support is None:
        raise InputError(
            message(f"`solution` does not tell its support: {solution.reason}", "solve again with a smaller tolerance")
        )
    return solution.support


def is_locally_optimal(
    tokens: Tokens, selected: ArrayLike, *, solution: MarginSolution | None = None, head: HeadLike | None = None
) -> LocalOptimality:
    """Does every selected token score above its support tokens? Then gradient descent can converge along its direction.

    A selection alpha is locally optimal if some W separates it and `gamma_alpha > gamma_t` for every support token t
    of every query. The best tokens qualify whenever they are unique and some W separates them. Scores within 1e-12 of
    each other, relative to the largest score of the query, are equal.

    Args:
        tokens: one data set.
        selected: a visible token per query, (n,) or (n, K); for instance `run.selected`.
        solution: the max-margin solution of `selected`, if there is one already; None solves for it.
        head: as in `al.scores`; None is the linear head of `tokens.v`.

    Returns:
        `LocalOptimality`, which is true or false and says why. An infeasible selection is not locally optimal.

    Definition 2 of *Transformers as Support Vector Machines* (4 with K queries); Theorem 7 uses it.

    >>> import attnlab as al
    >>> tokens = al.data.two_tokens()
    >>> is_locally_optimal(tokens, [0])
    LocalOptimality(Definition 2 holds, margin=1)
    >>> bool(is_locally_optimal(tokens, [1]))
    False
    """
    chosen = checked(tokens, selected)
    if solution is None:
        solution = solve_margin(tokens, chosen, throw=False)
    return _judged(tokens, chosen, belongs(tokens, chosen, solution), Leads.of(tokens, head))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LocallyOptimalSelections:
    """Every locally optimal selection of a data set, in lexicographic order.

    Attributes:
        selections: (m, n), or (m, n, K).
        margins: 1 / |W| of each, (m,).
        vacuous: whether some query of it has no support token, (m,); see `LocalOptimality.empty`.
        total: how many selections there are; feasible, infeasible, undecided: what became of them (they add up).
    """

    selections: NDArray[np.intp]
    margins: Array
    vacuous: NDArray[np.bool_]
    total: int
    feasible: int
    infeasible: int
    undecided: int

    def __len__(self) -> int:
        return len(self.selections)

    def __iter__(self) -> Iterator[NDArray[np.intp]]:
        return iter(self.selections)

    def __contains__(self, selected: object) -> bool:
        try:
            given = np.asarray(selected)
        except ValueError:  # a ragged list is no selection
            return False
        return given.shape == self.selections.shape[1:] and any(np.array_equal(given, s) for s in self.selections)

    def __repr__(self) -> str:
        undecided = f", undecided={self.undecided}" if self.undecided else ""
        return f"LocallyOptimalSelections({len(self)} of {self.total}, infeasible={self.infeasible}{undecided})"


def locally_optimal_selections(
    tokens: Tokens, *, head: HeadLike | None = None, limit: int = 100_000
) -> LocallyOptimalSelections:
    """All locally optimal selections, by solving the max-margin problem of each of the `T^n` selections.

    Args:
        tokens: one small data set; with a mask only visible tokens are selected.
        head: as in `al.scores`.
        limit: refuse more selections than this (about 1 ms for each that some W separates; the others cost less).

    Returns:
        `LocallyOptimalSelections`, with the counts of feasible, infeasible and undecided ones.

    Definition 2 of *Transformers as Support Vector Machines*.

    >>> import attnlab as al
    >>> optimal = locally_optimal_selections(al.data.sphere(n=2, T=3, d=3, seed=0))
    >>> optimal.total, al.optimal_tokens(al.data.sphere(n=2, T=3, d=3, seed=0)) in optimal
    (9, True)
    """
    leads, limit = Leads.of(tokens, head), whole("limit", limit, 0)
    selections: list[NDArray[np.intp]] = []
    margins: list[float] = []
    vacuous: list[bool] = []
    feasible = infeasible = undecided = 0
    for chosen, solution in solved_selections(tokens, limit):
        verdict = _judged(tokens, chosen, solution, leads)
        feasible += verdict.decided and verdict.feasible
        infeasible += verdict.decided and not verdict.feasible
        undecided += not verdict.decided
        if verdict:
            selections.append(chosen)
            margins.append(solution.margin)
            vacuous.append(verdict.vacuous)
    return LocallyOptimalSelections(
        selections=np.array(selections, dtype=np.intp).reshape(-1, *tokens.y.shape),
        margins=np.array(margins, dtype=np.float64),
        vacuous=np.array(vacuous, dtype=bool),
        total=selection_count(tokens),
        feasible=feasible,
        infeasible=infeasible,
        undecided=undecided,
    )


def scoring_head(head: HeadLike | None) -> TokenHead | Callable[[Any], Any] | None:
    """A head as `al.scores` takes it: a name becomes the head it stands for, "linear" that of `tokens.v`."""
    if not isinstance(head, str):
        return head
    return None if head == "linear" else as_head(head)


@dataclass(frozen=True, eq=False)
class Leads:
    """Scores `gamma 2^exponent`, and the difference of two gamma of one query under which they are the same.

    The exponent is 0 but for scores too faint for float64; see `comparable_scores`.
    """

    gamma: Array
    same: Array
    exponent: Any = 0

    @classmethod
    def of(cls, tokens: Tokens, head: HeadLike | None) -> Leads:
        """From the data; (n, T) or (n, K, T), and (n, 1) or (n, K, 1)."""
        one_data_set(tokens)
        gamma, exponent = comparable_scores(tokens, scoring_head(head))
        sizes = np.where(tokens.visible, np.abs(gamma), 0.0)
        if sizes.max() > LARGEST / 4.0:
            largest = f"`tokens` have scores up to {sizes.max():.1e}"
            raise InputError(message(f"{largest}; their differences are beyond float64.", "divide `v` by 2^10"))
        # What is hidden from a query may be anything; nothing is read there.
        return cls(np.where(tokens.visible, gamma, 0.0), TIE * sizes.max(-1, keepdims=True), exponent)

    def over(self, chosen: NDArray[np.intp]) -> Array:
        """gamma_chosen - gamma_t, laid out as the tokens; exactly 0 where the two are the same."""
        lead = np.take_along_axis(self.gamma, chosen[..., None], axis=-1) - self.gamma
        return np.where(np.abs(lead) <= self.same, 0.0, lead)

    def largest_spread(self, visible: NDArray[np.bool_]) -> float:
        """The largest difference of two scores of one query, in units of the scores."""
        return float(rescaled(self._spreads(visible), self.exponent).max())

    def log_ratio(self, chosen: NDArray[np.intp], visible: NDArray[np.bool_], support: NDArray[np.bool_]) -> float:
        """The logarithm of that over the least lead of the chosen tokens over their support, however faint both are."""
        with np.errstate(divide="ignore", invalid="ignore"):
            spreads = np.log(self._spreads(visible)) + np.log(2.0) * self.exponent
            leads = np.log(self.over(chosen)) + np.log(2.0) * self.exponent
        return float(spreads.max() - leads[support].min())

    def _spreads(self, visible: NDArray[np.bool_]) -> Array:
        """Of each query, with an axis of length 1 for the tokens."""
        highest = np.where(visible, self.gamma, -np.inf).max(-1, keepdims=True)
        return highest - np.where(visible, self.gamma, np.inf).min(-1, keepdims=True)

    def least(self, lead: Array, where: NDArray[np.bool_]) -> float:
        """The least of some of the leads, in units of the scores; inf without any."""
        return float(rescaled(lead, self.exponent)[where].min(initial=np.inf))


def _judged(tokens: Tokens, chosen: NDArray[np.intp], solution: MarginSolution, leads: Leads) -> LocalOptimality:
    known, proven = solution.support is not None, solution.status is MarginStatus.INFEASIBLE
    support = np.zeros((*chosen.shape, tokens.T), dtype=bool) if solution.support is None else solution.support
    lead = leads.over(chosen)
    compares = tokens.visible.sum(-1) > 1
    failing = np.argwhere(support & (lead <= 0))
    reason = None
    if not known:
        reason = "no W separates it" if proven else f"undecided, {solution.reason}"
    elif len(failing):
        *query, token = (int(i) for i in failing[0])
        where = query[0] if len(query) == 1 else tuple(query)
        reason = f"{len(failing)} support tokens score no less, the first is token {token} of query {where}"
    least = leads.least(lead, support) if known else None
    return LocalOptimality(
        name=DEFINITION,
        value=least,
        wanted=0.0,
        margin=-np.inf if least is None else least,
        holds=reason is None,
        feasible=solution.feasible,
        decided=known or proven,
        failing=failing,
        lead=least,
        empty=compares & ~support.any(-1) & known,
        ties=support & (lead == 0),
        solution=solution,
        reason=reason,
    )


def checked(tokens: Tokens, selected: ArrayLike) -> NDArray[np.intp]:
    """A visible token per query of one data set."""
    return check_selected(one_data_set(tokens), selected)


def belongs(tokens: Tokens, chosen: NDArray[np.intp], solution: MarginSolution) -> MarginSolution:
    """`solution`, refused if it is for other data or another selection."""
    instance("solution", solution, MarginSolution, "what al.solve_margin returns")
    wanted = (*tokens.y.shape, tokens.T)
    if solution.multipliers.shape != wanted or solution.W.shape != (tokens.d, tokens.d):
        given = f"`solution` is for tokens laid out as {solution.multipliers.shape}, d = {len(solution.W)}"
        raise InputError(
            message(f"{given}; wanted {wanted}, d = {tokens.d}.", "leave `solution` out to have it solved")
        )
    if not np.array_equal(solution.selected, chosen):
        given = f"`solution` is for selection {solution.selected.tolist()}"
        raise InputError(
            message(f"{given}; `selected` is {chosen.tolist()}.", "leave `solution` out to have it solved")
        )
    return solution
