"""Keys and queries as wide as the rank of the convex optimum: Lemma 3."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.parts import Bound, Count, Identity, Limit
from attnlab.claims.scale import Scale
from attnlab.claims.svm.other_norms import constraint_matrices
from attnlab.data import Tokens, optimal_tokens, sphere
from attnlab.data.tokens import Array
from attnlab.svm import distance_to_face, margin_rows, solve_factored, solve_margin
from attnlab.svm.factors import Factors, local_solutions, random_starts

FACTORED = 1e-4  # relative; what a search over factors is asked to reach
STARTS = 6


def narrow_factors_reach_the_convex_optimum(scale: Scale) -> Outcome:
    """Searches over K and Q from random factors, which know nothing of the convex optimum.

    None may end below the certified optimum of the convex problem. With as many columns as its rank the lowest must
    reach it, and the product there must be one of its solutions. With one column less, where the convex solution is
    unique, all must stay above.
    """
    seeds = range(scale.pick(4, 20, 100))
    below = Bound("C_cvx / value of a search", rounding=1e-7)
    reached = Identity("least value found / C_cvx - 1", tolerance=FACTORED)
    inside = Limit("distance of K Q^T from the convex solution set", tolerance=np.sqrt(FACTORED))
    narrower = Count("one column less reaches C_cvx")
    excess = []
    from_near = 0
    for seed in seeds:
        tokens = sphere(n=3, T=4, d=5, seed=seed)
        best = optimal_tokens(tokens)
        convex = solve_margin(tokens, best, norm="nuclear")
        if convex.rank is None:
            continue
        optimum = float(np.linalg.norm(convex.W, ord="nuc"))
        values, products = searched(tokens, best, convex.rank, seed)
        below.add_at_least(values, optimum)
        if values.min() > optimum * (1.0 + FACTORED):
            # A column can end at zero, in a minimum a little above the optimum: begin at the optimum itself.
            from_near += 1
            known = solve_factored(tokens, best, convex.rank, convex=convex)
            products = (known.K @ known.Q.T)[None]
            values = sizes(tokens, best, products)
            below.add_at_least(values, optimum)
        lowest = int(np.argmin(values))
        if values[lowest] <= optimum * (1.0 + FACTORED):
            reached.add(values[lowest] / optimum - 1.0)
            inside.add(distance_to_face(products[lowest], convex))
        else:  # a minimum above the optimum contradicts nothing
            reached.leave_unsolved(1)
        if convex.rank > 1 and convex.unique:
            fewer, _ = searched(tokens, best, convex.rank - 1, seed)
            below.add_at_least(fewer, optimum)
            narrower.add(fewer.min() <= optimum * (1.0 + 1e-9))
            excess.append(fewer.min() / optimum - 1.0)
    return outcome(
        below,
        reached,
        inside,
        narrower,
        instances=reached.instances,
        tried=len(seeds),
        seeds=seeds,
        numbers={
            "excess with one column less, least and largest": [min(excess, default=None), max(excess, default=None)],
            "data sets that no random start solves": from_near,
        },
        note="Over factors the problem is not convex. Where random starts end above the optimum, its own "
        "factors show that it is reached.",
    )


def searched(tokens: Tokens, best: NDArray[np.intp], width: int, seed: int) -> tuple[Array, Array]:
    """|W|_* over the margin of W = K Q^T where searches from random factors end, and those W.

    The value is taken from W and the constraints themselves, not from what the search says of it.
    """
    factors = Factors.of(margin_rows(tokens, best))
    guess = np.full(len(factors.f), 1.0 / len(factors.f))
    guess /= np.linalg.norm(factors.adjoint(guess), 2)
    drawn = random_starts(factors, width, STARTS, seed, float(guess.sum()))
    split = factors.f.shape[1]
    products = []
    for point in local_solutions(factors, drawn, guess):
        if np.isfinite(point.value):
            products.append(factors.left @ point.both[:split] @ point.both[split:].T @ factors.right.T)
    W = np.array(products)
    return sizes(tokens, best, W), W


def sizes(tokens: Tokens, best: NDArray[np.intp], W: Array) -> Array:
    """|W|_* over the least constraint value of W, (points,)."""
    margins = np.einsum("rde,jde->rj", W, constraint_matrices(tokens, best)).min(-1)
    return np.linalg.norm(W, ord="nuc", axis=(-2, -1)) / margins


CLAIMS: list[Claim] = [
    Claim(
        id="svm-L3",
        title="A rank bound that the convex optimum meets changes nothing",
        statement="If the solutions of the nuclear problem without rank bound have rank at most m, then keys and "
        "queries of width m reach the same value, C = min |W|_*, and their products are solutions of it; where a "
        "narrower one reached C it would be a solution too (Lemma 3).",
        hypotheses=("the rank of the convex optimum is certified and equals m",),
        setting="Random data on the sphere, (n, T, d) = (3, 4, 5); 6 searches over K and Q from random factors, of the "
        "width of the certified rank and of one less.",
        reason="values from the products themselves: no search below the certified optimum, the lowest within 1e-4 of "
        "it, its product within 1e-2 of the solution set (a relative excess e allows a distance of order sqrt e); with "
        "one column less than the rank of a unique solution a count of searches that reach it",
        measure=narrow_factors_reach_the_convex_optimum,
    ),
]
