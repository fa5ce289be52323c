"""What makes a selection locally optimal: its support tokens (Definition 2) or a shield of lower tokens (Lemma 5)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, erratum, outcome
from attnlab.claims.parts import Count
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data import Tokens, optimal_tokens, sphere, trap
from attnlab.svm import MarginSolution, solve_margin
from attnlab.theory import barrier, is_locally_optimal, score_sides
from attnlab.theory.svm.geometry import solved_selections

SIZE = (2, 4, 3)
SEVERAL = (2, 3, 4)  # n, T, d with several queries
QUERIES = 2


class Compared(NamedTuple):
    """One selection.

    Attributes:
        optimal: is it locally optimal?
        shielded: is its own direction in its cone?
        vacuous: has some query no support token?
        unguarded: has some query higher-scoring tokens, and no support token?
    """

    optimal: bool
    shielded: bool
    vacuous: bool
    unguarded: bool


def random_set(seed: int, queries: int | None = None) -> Tokens:
    """Unit tokens; with several queries per sequence, each with a unit vector and a label of its own."""
    if queries is None:
        return sphere(*SIZE, seed=seed)
    n, T, d = SEVERAL
    drawn = sphere(n, T, d, seed=seed)
    rng = np.random.default_rng([seed, 1])
    z = rng.standard_normal((n, queries, d))
    z /= np.linalg.norm(z, axis=-1, keepdims=True)
    return Tokens(x=drawn.x, z=z, y=rng.choice([-1.0, 1.0], (n, queries)), v=drawn.v)


@cache
def compared_selections(seeds: int, queries: int | None = None) -> tuple[Compared, ...]:
    """All selections of some data sets that can be separated, with a certified support."""
    compared = []
    for seed in range(seeds):
        tokens = random_set(seed, queries)
        for chosen, solution in solved_selections(tokens, limit=1000):
            if solution.feasible and solution.support is not None:
                compared.append(compare(tokens, chosen, solution))
    return tuple(compared)


def compare(tokens: Tokens, chosen: NDArray[np.intp], solution: MarginSolution) -> Compared:
    """The definition against the cone: both from one certified solution."""
    verdict = is_locally_optimal(tokens, chosen, solution=solution)
    # A barrier of 0 is met where a support token scores higher; it is known as well as the constraint values are.
    unsure = 2.0 * float(np.nanmax(solution.value_error)) * solution.margin
    _, high = score_sides(tokens, chosen)
    assert solution.support is not None
    return Compared(
        optimal=verdict.holds,
        shielded=barrier(tokens, chosen, solution.W) > unsure,
        vacuous=verdict.vacuous,
        unguarded=bool((high.any(-1) & ~solution.support.any(-1)).any()),
    )


def described_alike(scale: Scale, *, queries: int | None) -> Outcome:
    """Selections on which the two descriptions disagree, among those with support tokens for every query."""
    seeds = scale.pick(6, 40, 200) if queries is None else scale.pick(3, 12, 60)
    every = compared_selections(seeds, queries)
    judged = [c for c in every if not c.vacuous]
    unshielded = Count("locally optimal, and W_mm(a) outside every cone_eps(a)")
    unsupported = Count("not locally optimal, and W_mm(a) in some cone_eps(a)")
    smaller = Count("W outside the cone of the best tokens")
    unshielded.add([not c.shielded for c in judged if c.optimal])
    unsupported.add([c.shielded for c in judged if not c.optimal])
    rng = np.random.default_rng(0)
    for seed in range(seeds):
        tokens = random_set(seed, queries)
        W = rng.standard_normal((tokens.d, tokens.d))
        smaller.add(barrier(tokens, optimal_tokens(tokens), W) != np.inf)
    numbers = {
        "locally optimal": sum(c.optimal for c in judged),
        "passed over: some query without support": len(every) - len(judged),
    }
    facts = {"instances": len(judged), "tried": len(every), "seeds": range(seeds), "numbers": numbers}
    return outcome(unshielded, unsupported, smaller, **facts)


def lemma_5(scale: Scale) -> Outcome:
    """One query per sequence."""
    return described_alike(scale, queries=None)


def lemma_16(scale: Scale) -> Outcome:
    """Two queries per sequence."""
    return described_alike(scale, queries=QUERIES)


def lemma_5_as_printed(scale: Scale) -> Outcome:
    """With the selections that were passed over: a support set may be empty. Random data, and traps."""
    differ = Count("random data: locally optimal and in the cone disagree")
    on_traps = Count("traps: locally optimal and in the cone disagree")
    seeds = scale.pick(40, 40, 200)
    every = compared_selections(seeds)
    contradicts = [c for c in every if c.optimal != c.shielded]
    differ.add([c.optimal != c.shielded for c in every])
    many = scale.pick(6, 20, 100)
    for seed in range(many):
        tokens = trap("T4", seed=seed)
        held = np.array(tokens.info["selected"])
        solution = solve_margin(tokens, held)
        one = compare(tokens, held, solution)
        on_traps.add(one.optimal != one.shielded)
    tokens = trap("T4", seed=0)
    numbers = {
        "selections with a query without support": sum(c.vacuous for c in every),
        "disagreements on random data": len(contradicts),
        "of them without support for a query with higher-scoring tokens": sum(c.unguarded for c in contradicts),
    }
    example = {"how": "al.data.trap('T4', seed=0)", "x": tokens.x, "z": tokens.z, "y": tokens.y, "v": tokens.v}
    example["selected"] = tokens.info["selected"]
    tried = len(every) + many
    return outcome(differ, on_traps, instances=tried, seeds=range(seeds), numbers=numbers, example=example)


def lemma_5_corrected(scale: Scale) -> Outcome:
    """Without selections that have a query with higher-scoring tokens, and no support token."""
    every = compared_selections(scale.pick(40, 40, 200))
    differ = Count("locally optimal and in the cone disagree")
    judged = [c for c in every if not c.unguarded]
    differ.add([c.optimal != c.shielded for c in judged])
    return outcome(differ, tried=len(every))


HAS_SUPPORT = "every query has a support token"
COUNTED = "Counts of selections on which the two differ, each way, and of W outside the cone of the best tokens."
CLAIMS: list[Claim] = [
    Claim(
        id="svm-L5",
        title="Locally optimal means shielded by lower tokens",
        statement="a is locally optimal iff W_mm(a) is in cone_eps(a) for small eps > 0; for the best tokens that cone "
        "is everything (Lemma 5, Frobenius norm).",
        hypotheses=("the selection can be separated", HAS_SUPPORT),
        setting="All selections of random unit tokens, (n, T, d) = (2, 4, 3), one query each.",
        reason=COUNTED,
        measure=lemma_5,
    ),
    Claim(
        id="svm-L16",
        title="Locally optimal means shielded by lower tokens, with several queries",
        statement="The same with K queries per sequence, each with its own token and label (Lemma 16).",
        hypotheses=("the selection can be separated", HAS_SUPPORT),
        setting="All selections of random unit tokens, (n, T, d) = (2, 3, 4), K = 2 random queries and labels each.",
        reason=COUNTED,
        measure=lemma_16,
    ),
    erratum(
        id="svm-E8",
        title="Local optimality where a query has no support token",
        printed="a is locally optimal iff W_mm(a) is in cone_eps(a) for small eps > 0, for every a that can be "
        "separated (Lemmas 5 and 16).",
        corrected="the same where every query that has higher-scoring tokens has a support token too: without one the "
        "definition is met for want of a token, and W_mm(a) need not be in the cone, which may be empty.",
        slip=Slip(
            kind=Kind.STATEMENT,
            where="Lemmas 5 and 16, with Definition 4",
            quote="is allowed to be an empty set",
            charitable="With a support token for every query the lemmas held for every selection (svm-L5, svm-L16). "
            "Definition 4 says that the set may be empty, and traps are such sets.",
            correction="Ask that every query with higher-scoring tokens have a support token.",
        ),
        hypotheses=("the selection can be separated",),
        setting="All selections of random unit tokens, (n, T, d) = (2, 4, 3), and the trapped selection of "
        "al.data.trap('T4', seed).",
        reason="Counts of selections on which the two differ.",
        measure_printed=lemma_5_as_printed,
        measure_corrected=lemma_5_corrected,
    ),
]
