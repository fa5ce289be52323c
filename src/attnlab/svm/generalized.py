"""The generalized max-margin problem: several tokens of a sequence keep attention, the others lose it.

Where attention settles on a set O_i of tokens and not on one, the weights have two parts. The part that grows is
max-margin with the kept tokens level: it is solved for here. The part that stays, and the mixture of the two, are in
`attnlab.svm.finite`.

One kept token of each query, the anchor r, states the whole problem: `(x_r - x_t)^T W z = 0` for the other kept tokens
and `>= 1` for the rest. Any kept token may be the anchor. The equalities make all kept tokens worth the same, so a
constraint from one of them is the constraint from each: the W that meet them are the same set, with the same least W.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import boolean_array, flag, instance
from attnlab.data.tokens import Tokens
from attnlab.errors import InfeasibleSelection, InputError, message
from attnlab.svm.margin import NormLike, solver
from attnlab.svm.rows import Rows, check_tolerance, selected_rows
from attnlab.svm.solution import MarginSolution, MarginStatus


def level_rows(tokens: Tokens, kept: ArrayLike) -> tuple[Rows, NDArray[np.intp]]:
    """The constraints of the generalized problem, equalities marked, and each query's anchor: its first kept token.

    >>> import attnlab as al
    >>> tokens = al.Tokens(x=[[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]], z=[[1.0, 0.0]], y=[1])
    >>> rows, anchor = level_rows(tokens, [[True, True, False]])
    >>> rows.equal.tolist(), anchor.tolist()
    ([True, False], [0])
    """
    level = check_kept(tokens, kept)
    anchor = level.argmax(-1)
    rows = selected_rows(tokens, anchor)
    return replace(rows, equal=level.reshape(-1)[rows.where]), anchor


def solve_generalized(
    tokens: Tokens,
    kept: ArrayLike,
    *,
    norm: NormLike = "frobenius",
    tolerance: float | None = None,
    throw: bool = True,
) -> MarginSolution:
    """The least W that holds the kept tokens level and every other visible token at least 1 below them.

        min |W|   subject to   (x_t - x_s)^T W z = 0  (t, s kept),   (x_t - x_s)^T W z >= 1  (t kept, s not)

    With one kept token per query this is `solve_margin` (Section 6 of *Transformers as Support Vector Machines*).

    Args:
        tokens: one data set; masks and several queries are respected.
        kept: which tokens keep attention, boolean, (n, T) or (n, K, T); at least one visible token per query.
        norm: "frobenius", "nuclear", or a `Norm`.
        tolerance: relative duality gap to reach; None takes what the solver of that norm reaches by default.
        throw: raise `InfeasibleSelection` where there is no such W; else return a solution whose status says so.

    Returns:
        A `MarginSolution`. `selected` holds the anchors, the first kept token of each query. Multipliers of kept
        tokens, which belong to equalities, may have any sign; so may their weights in `farkas`.

    >>> import attnlab as al
    >>> tokens = al.Tokens(x=[[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]], z=[[1.0, 0.0]], y=[1])
    >>> solve_generalized(tokens, [[True, True, False]]).W.round(12).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    solve, usual = solver(norm)
    flag("throw", throw)
    if tolerance is not None:
        tolerance = check_tolerance(tolerance)
    rows, anchor = level_rows(tokens, kept)
    solution = solve(rows, anchor, tokens.d, usual if tolerance is None else tolerance)
    if throw and not solution.feasible:
        told = "No W holds the kept tokens level and above the others; the weights in `farkas` prove it."
        if solution.status is not MarginStatus.INFEASIBLE:
            told = solution.status.value
        hint = "a larger dimension d, another `kept`, or throw=False to get the certificate"
        raise InfeasibleSelection(message(told, hint), solution)
    return solution


def check_kept(tokens: Tokens, kept: ArrayLike) -> NDArray[np.bool_]:
    """Kept tokens as a boolean array laid out as the tokens are, all visible, at least one for each query."""
    instance("tokens", tokens, Tokens, "al.Tokens")
    if tokens.trials is not None:
        raise InputError(message("`tokens` is a batch of trials; wanted one data set.", "index it: tokens[0]"))
    visible = tokens.visible
    given = boolean_array("kept", kept, "True where a token keeps attention, or 0 and 1")
    if given.shape != visible.shape:
        raise InputError(message(f"`kept` has shape {given.shape}; wanted one entry per token, {visible.shape}."))
    level = given
    if (level & ~visible).any():
        where = tuple(int(k) for k in np.argwhere(level & ~visible)[0])
        raise InputError(message(f"`kept` names tokens that the mask hides, the first at index {where}."))
    empty = ~level.any(-1)
    if empty.any():
        where = tuple(int(k) for k in np.argwhere(empty)[0])
        raise InputError(
            message(f"`kept` is empty for {int(empty.sum())} queries, the first at index {where}; each keeps a token.")
        )
    return level
