"""The max-margin solutions of all selections of a data set, each proof of infeasibility put to use for all it proves.

A proof that no W separates a selection weighs the constraints of some of its queries. It is a proof as well for every
other selection that agrees on those queries, so these need not be solved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.checks import LARGEST, whole
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.svm import MarginSolution, MarginStatus, solve_margin
from attnlab.theory.arrays import one_data_set

# Selections in one table of proofs, and axes that such a table may have: NumPy's arrays have 64 at most.
BLOCK, AXES = 1_000_000, 32

Solved = tuple[NDArray[np.intp], MarginSolution]


def selection_count(tokens: Tokens) -> int:
    """How many selections there are: the product over queries of the tokens each sees."""
    return math.prod(int(k) for k in tokens.visible.sum(-1).ravel())


def solved_selections(tokens: Tokens, limit: int) -> Iterator[Solved]:
    """Each selection of visible tokens, in lexicographic order, with its max-margin solution (infeasible ones too)."""
    one_data_set(tokens)
    total, limit = selection_count(tokens), whole("limit", limit, 0)
    if total > limit:
        count = f"{total:.4g}" if total < LARGEST else "more than 1e308"
        raise InputError(
            message(
                f"`tokens` have {count} selections; wanted at most `limit` = {limit}.",
                "fewer sequences or tokens, or a larger limit; al.is_locally_optimal judges a single selection",
            )
        )
    choices = [np.flatnonzero(row) for row in tokens.visible.reshape(-1, tokens.T)]
    first = _first_of_table(choices)
    for begin in product(*choices[:first]):
        yield from _solved_table(tokens, begin, choices[first:])


def _first_of_table(choices: list[NDArray[np.intp]]) -> int:
    """The query from which on the selections are few enough for one table."""
    first, size = len(choices), 1
    while first > 0 and len(choices) - first < AXES and size * len(choices[first - 1]) <= BLOCK:
        first -= 1
        size *= len(choices[first])
    return first


def _solved_table(tokens: Tokens, begin: Sequence[Any], choices: list[NDArray[np.intp]]) -> Iterator[Solved]:
    """The selections that begin so."""
    proofs: list[MarginSolution] = []
    proven = np.full([len(choice) for choice in choices], -1)  # the number of the proof, an axis for each query
    numbers = proven.reshape(-1)
    for position, end in enumerate(product(*choices)):
        chosen = np.array((*begin, *end), dtype=np.intp).reshape(tokens.y.shape)
        if numbers[position] >= 0:
            yield chosen, replace(proofs[numbers[position]], selected=chosen)
            continue
        solution = solve_margin(tokens, chosen, throw=False)
        if solution.status is MarginStatus.INFEASIBLE:
            place = np.unravel_index(position, proven.shape)
            weighed = _weighed(solution)[len(begin) :]
            proven[tuple(k if used else slice(None) for k, used in zip(place, weighed, strict=True))] = len(proofs)
            proofs.append(solution)
        yield chosen, solution


def _weighed(solution: MarginSolution) -> list[bool]:
    """Does the proof weigh a constraint of the query? One answer for each."""
    assert solution.farkas is not None
    return (solution.farkas.reshape(-1, solution.farkas.shape[-1]) != 0).any(axis=-1).tolist()
