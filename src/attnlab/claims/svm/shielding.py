"""What makes a selection locally optimal: support tokens (Definition 2) or a shield of lower tokens (Lemma 5)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, erratum, within
from attnlab.claims.scale import Scale
from attnlab.data import Tokens, optimal_tokens, sphere
from attnlab.svm import MarginSolution
from attnlab.theory import barrier, is_locally_optimal, score_sides
from attnlab.theory.geometry import solved_selections

SIZE = (2, 4, 3)


class Compared(NamedTuple):
    """Lemma 5 on one selection: is it locally optimal, does its own direction shield it, can the definition tell?"""

    optimal: bool
    shielded: bool
    vacuous: bool
    unshieldable: bool


@cache
def compared_selections(seeds: int) -> tuple[Compared, ...]:
    """All selections of some data sets."""
    found = []
    for seed in range(seeds):
        tokens = sphere(*SIZE, seed=seed)
        for chosen, solution in solved_selections(tokens, limit=1000):
            if solution.feasible and solution.support is not None:
                found.append(compare(tokens, chosen, solution))
    return tuple(found)


def compare(tokens: Tokens, chosen: NDArray[np.intp], solution: MarginSolution) -> Compared:
    """Definition 2 against the cone: both from one certified solution."""
    verdict = is_locally_optimal(tokens, chosen, solution=solution)
    # A barrier of 0 is met where a support token scores higher; it is known as well as the constraint values are.
    unsure = 2.0 * float(np.nanmax(solution.value_error)) * solution.margin
    low, high = score_sides(tokens, chosen)
    return Compared(
        optimal=verdict.holds, shielded=barrier(tokens, chosen, solution.W) > unsure, vacuous=verdict.vacuous,
        unshieldable=bool((high.any(-1) & ~low.any(-1)).any()),
    )  # fmt: skip


def lemma_5(scale: Scale) -> Outcome:
    """Selections on which the two descriptions disagree, among those with support tokens for every query."""
    seeds = scale.pick(6, 40, 200)
    every = compared_selections(seeds)
    judged = [c for c in every if not c.vacuous]
    differ = sum(c.optimal != c.shielded for c in judged)
    rng, everything = np.random.default_rng(0), True
    for seed in range(min(seeds, 40)):
        tokens = sphere(*SIZE, seed=seed)
        everything &= barrier(tokens, optimal_tokens(tokens), rng.standard_normal((tokens.d, tokens.d))) == np.inf
    return within(
        differ if everything else np.inf, 0, instances=len(judged), tried=len(every), seeds=range(seeds),
        numbers={
            "locally optimal": sum(c.optimal for c in judged), "passed over: some query without support":
            len(every) - len(judged), "the cone of the best tokens is everything": bool(everything),
        },
    )  # fmt: skip


def lemma_5_without_support(scale: Scale) -> Outcome:
    """The same with the selections that were passed over: Definition 2 holds for want of a support token."""
    seeds = scale.pick(40, 40, 200)
    every = compared_selections(seeds)
    differ = [c for c in every if c.optimal != c.shielded]
    return within(
        len(differ), 0, instances=len(every), seeds=range(seeds),
        numbers={
            "selections with a query without support": sum(c.vacuous for c in every), "disagreements": len(differ),
            "of them without support for a query that nothing can shield":
            sum(c.vacuous and c.unshieldable for c in differ),
        },
    )  # fmt: skip


def lemma_5_with_support(scale: Scale) -> Outcome:
    """Every disagreement has a query without support tokens, all of whose other tokens score higher."""
    every = compared_selections(scale.pick(40, 40, 200))
    judged = [c for c in every if not (c.vacuous and c.unshieldable)]
    return within(sum(c.optimal != c.shielded for c in judged), 0, instances=len(judged), tried=len(every))


HAS_SUPPORT = "every query has a support token"
CLAIMS: list[Claim] = [
    Claim(
        id="svm-L5",
        title="Locally optimal means shielded by lower tokens",
        statement="a is locally optimal iff W_mm(a) is in cone_eps(a) for small eps > 0; for the best tokens that cone "
        "is everything (Lemma 5; 16 with several queries).",
        hypotheses=("the selection can be separated", HAS_SUPPORT),
        tolerance=0,
        reason="a count of selections on which the two differ",
        measure=lemma_5,
    ),
    erratum(
        id="svm-E8",
        title="Local optimality where a query has no support token",
        printed="a is locally optimal iff W_mm(a) is in cone_eps(a) for small eps > 0, for every a that can be "
        "separated (Lemma 5, with Definition 2 read as it stands).",
        corrected="the same, but for selections with a query that has no support token and only higher-scoring others: "
        "there Definition 2 is met for want of a token, and the cone is empty.",
        hypotheses=("the selection can be separated",),
        tolerance=0,
        reason="a count of selections on which the two differ",
        measure_printed=lemma_5_without_support,
        measure_corrected=lemma_5_with_support,
    ),
]
