"""`solve_margin`: one question, whatever the norm; and which solver answers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import flag, instance, shown
from attnlab.data.tokens import Tokens
from attnlab.errors import InfeasibleSelection, InputError, message
from attnlab.svm import frobenius, generic, nuclear
from attnlab.svm.norms import Norm
from attnlab.svm.rows import Rows, check_selected, check_tolerance, selected_rows
from attnlab.svm.solution import MarginSolution, MarginStatus

NormLike = Literal["frobenius", "nuclear"] | Norm
Solver = Callable[[Rows, NDArray[np.intp], int, float], MarginSolution]


def solve_margin(
    tokens: Tokens,
    selected: ArrayLike,
    *,
    norm: NormLike = "frobenius",
    tolerance: float | None = None,
    throw: bool = True,
) -> MarginSolution:
    """The max-margin direction of a selection: least |W| with `(x_selected - x_t)^T W z >= 1` for all other tokens.

    Once attention has settled on `selected`, gradient descent on W goes to the solution of the Frobenius problem, and
    gradient descent on (K, Q) to that of the nuclear problem (Theorems 2, 7 and 9 of *Transformers as Support Vector
    Machines*). Solved over one multiplier per constraint, never over d^2 variables.

    Args:
        tokens: one data set; masks and several queries are respected.
        selected: a token per query, (n,) or (n, K); for instance `run.selected` or `al.optimal_tokens(tokens)`.
        norm: "frobenius", "nuclear", or a `al.svm.Norm` of your own.
        tolerance: relative duality gap to reach; None: 1e-10 for the Frobenius norm, 1e-8 for the nuclear one, 1e-7 for
            others.
        throw: raise `InfeasibleSelection` where no W separates; else return a solution whose status says so.

    Returns:
        A `MarginSolution` with its certificate.

    >>> import attnlab as al
    >>> svm = al.solve_margin(al.data.two_tokens(), [0])
    >>> svm.W.tolist(), svm.margin
    ([[1.0, 0.0], [0.0, 0.0]], 1.0)
    >>> tokens = al.data.sphere(n=5, T=5, d=10, seed=0)
    >>> [al.solve_margin(tokens, [0, 1, 2, 3, 4], norm=norm).rank for norm in ("frobenius", "nuclear")]
    [5, 3]
    """
    if not isinstance(tokens, Tokens):
        instance("tokens", tokens, Tokens, "al.Tokens")
    solve, usual = solver(norm)
    flag("throw", throw)
    if tolerance is not None:
        tolerance = check_tolerance(tolerance)
    chosen = check_selected(tokens, selected)
    solution = solve(selected_rows(tokens, chosen), chosen, tokens.d, usual if tolerance is None else tolerance)
    if throw and not solution.feasible:
        raise InfeasibleSelection(_told(solution), solution)
    return solution


def solver(norm: NormLike) -> tuple[Solver, float]:
    """What solves constraint rows, some of them equalities, in this norm; and the gap it reaches unless told."""
    if isinstance(norm, str) and norm == "frobenius":
        return frobenius.solve_rows, frobenius.TOLERANCE
    if isinstance(norm, str) and norm == "nuclear":
        return nuclear.solve_nuclear, nuclear.TOLERANCE
    if isinstance(norm, Norm):
        return partial(_in_norm, norm), generic.TOLERANCE
    raise InputError(
        message(f"`norm` is {shown(norm)}; wanted 'frobenius', 'nuclear' or an al.svm.Norm.", "see attnlab.svm.norms")
    )


def _in_norm(norm: Norm, rows: Rows, selected: NDArray[np.intp], d: int, tolerance: float) -> MarginSolution:
    return generic.solve_rows_norm(rows, norm, selected, d, tolerance)


def _told(solution: MarginSolution) -> str:
    hint = "a larger dimension d, another `selected`, or throw=False to get the certificate"
    if solution.status is MarginStatus.UNDECIDED or solution.farkas is None:
        return message(solution.status.value, hint)
    worst = np.unravel_index(int(np.argmax(solution.farkas)), solution.farkas.shape)
    return message(
        f"{solution.status.value} The heaviest constraint of the proof: query {tuple(map(int, worst[:-1]))} against "
        f"its token {int(worst[-1])}.",
        hint,
    )
