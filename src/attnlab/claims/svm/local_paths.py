"""Local regularization paths: Theorem 9, for the Frobenius and for the nuclear norm."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.matrices import unit
from attnlab.claims.parts import Count, Limit
from attnlab.claims.scale import Scale
from attnlab.claims.svm.basins import SIZE, basins
from attnlab.claims.svm.dynamics import leads_of
from attnlab.data import Tokens, optimal_tokens, sphere
from attnlab.data.tokens import Array
from attnlab.svm import MarginSolution, distance_to_face, solve_margin
from attnlab.theory import default_eps, is_locally_optimal, score_sides
from attnlab.theory.svm.geometry import solved_selections
from attnlab.train import RegularizationPath, regularization_path

Norm = Literal["frobenius", "nuclear"]
CLOSE = 1e-3
ROUNDING = 1e-12  # 1 - cosine below which searches for the least loss are not told apart
RADII = (1, 3, 10)


def local_frobenius_path(scale: Scale) -> Outcome:
    """Selections that are locally optimal, and not the best tokens, of random data."""
    every = basins(scale.pick(12, 40, 200))
    found = every.pick(~every.best & (every.seed >= 0))
    solutions = [solve_margin(found.tokens[i], chosen) for i, chosen in enumerate(found.selected)]
    return _judged(found.tokens, found.selected, solutions, "frobenius", scale, found.seed)


def local_nuclear_path(scale: Scale) -> Outcome:
    """The same with support tokens and local optimality from the nuclear max-margin solution."""
    tokens, selected, solutions, seeds = _nuclear_basins(scale.pick(12, 24, 100))
    return _judged(tokens, selected, list(solutions), "nuclear", scale, seeds)


@cache
def _nuclear_basins(seeds: int) -> tuple[Tokens, NDArray[np.intp], tuple[MarginSolution, ...], NDArray[np.intp]]:
    """Locally optimal selections other than the best tokens, by certified nuclear solutions with a known support."""
    rows = []
    for seed in range(seeds):
        tokens = sphere(*SIZE, seed=seed)
        best = optimal_tokens(tokens)
        for chosen, frobenius in solved_selections(tokens, limit=1000):
            if not frobenius.feasible or (chosen == best).all():
                continue
            solution = solve_margin(tokens, chosen, norm="nuclear", throw=False)
            verdict = is_locally_optimal(tokens, chosen, solution=solution)
            if verdict and not verdict.vacuous:
                rows.append((tokens, chosen, solution, seed))
    data, chosen, solutions, seeds_of = zip(*rows, strict=True)
    return Tokens.stack(data), np.array(chosen), solutions, np.array(seeds_of)


def _judged(
    tokens: Tokens,
    selected: NDArray[np.intp],
    solutions: list[MarginSolution],
    norm: Norm,
    scale: Scale,
    seeds: NDArray[np.intp],
) -> Outcome:
    """The least loss over the cone at R, 3 R and 10 R, with eps and R_0 as the theorem gives them, R >= R_0.

    Some R_0 are hardly above |W_mm|, where nothing has begun to converge: R is at least 10 |W_mm|.
    """
    count = len(solutions)
    eps = np.array([default_eps(tokens[i], selected[i], solution=solutions[i]) for i in range(count)])
    first, least_lead = _first_radius(tokens, selected, eps, norm)
    sizes = np.array([_size(solution.W, norm) for solution in solutions])
    radius = np.maximum(first, 10.0 * sizes)
    toward = np.stack([solution.W for solution in solutions])
    # Radii count in the length of the matrix that is given, which is R here.
    scaled = toward * (radius / sizes)[:, None, None]
    path = regularization_path(
        tokens, scaled, radii=RADII, norm=norm, selected=selected, cone=eps, restarts=scale.pick(1, 4, 6)
    )
    off = _off(path, solutions, norm)
    arrived = Limit("distance from the max-margin directions at 10 R, as 1 - cos", tolerance=CLOSE)
    rises = Count("farther at a larger radius")
    solved = path.solved
    arrived.add(off[solved[:, -1], -1])
    arrived.leave_unsolved(int((~solved[:, -1]).sum()))
    both = solved[:, 1:] & solved[:, :-1] & (off[:, 1:] > ROUNDING)
    rises.add((np.diff(off) >= 0)[both])
    names, counts = np.unique([status.name for status in path.status.ravel()], return_counts=True)
    numbers: dict[str, Any] = {
        "R_0 / |W_mm|, least and largest": [float((first / sizes).min()), float((first / sizes).max())],
        "worst of the solved at R, 3 R, 10 R": np.where(solved, off, 0.0).max(0),
        "searches": dict(zip(names.tolist(), counts.tolist(), strict=True)),
    }
    slack = {"least eps": float(eps.min()), "Assumption E: least lead over lower tokens": float(least_lead.min())}
    return outcome(arrived, rises, seeds=np.unique(seeds).tolist(), numbers=numbers, slack=slack)


def _size(W: Array, norm: Norm) -> float:
    return float(np.linalg.norm(W, ord="nuc") if norm == "nuclear" else np.linalg.norm(W))


def _first_radius(tokens: Tokens, selected: NDArray[np.intp], eps: Array, norm: Norm) -> tuple[Array, Array]:
    """R_0 = log(4 B T / c) / eps of the proof, with eps / sqrt(d) for the nuclear norm; and c, the least lead."""
    low = np.stack([score_sides(tokens[i], chosen)[0] for i, chosen in enumerate(selected)])
    lead = np.where(low, leads_of(tokens, selected), np.inf).min((-2, -1))
    x, v = tokens.x, tokens.v
    assert v is not None
    longest = np.linalg.norm(x[..., :, None, :] - x[..., None, :, :], axis=-1).max((-3, -2, -1))
    reach = longest * np.linalg.norm(v, axis=-1)  # B
    share = 1.0 / np.sqrt(tokens.d) if norm == "nuclear" else 1.0
    return np.log(4.0 * reach * tokens.T / lead) / (share * eps), lead


def _off(path: RegularizationPath, solutions: list[MarginSolution], norm: Norm) -> Array:
    """1 - cosine with the solution, or with the nearest of several, (trials, radii)."""
    if norm == "frobenius":
        assert path.misalignment is not None
        return path.misalignment
    rows = []
    for W, solution in zip(path.W, solutions, strict=True):
        sines = np.minimum([distance_to_face(unit(one), solution) for one in W], 1.0)
        rows.append(sines**2 / (1.0 + np.sqrt(1.0 - sines**2)))
    return np.array(rows)


HYPOTHESES = (
    "a is locally optimal, every query has a support token",
    "Assumption E (linear head)",
    "R >= R_0 = log(4 B T / c) / eps",
)
DATA = (
    "Locally optimal selections, not the best tokens, of random unit tokens, (n, T, d) = (2, 4, 3), logistic loss; eps "
    "is half of what W_mm(a) itself reaches; searches by L-BFGS from the axis and from restarts. "
)
REASON = (
    "1 - cosine at 10 R, R = max(R_0, 10 |W_mm|): the proof's deviation falls as 1 / R, so its square is below 1e-3 "
    "there; it must fall from R to 10 R. Searches that end on the border of the cone or do not finish are unsolved."
)
CLAIMS: list[Claim] = [
    Claim(
        id="svm-T9",
        title="Local regularization paths converge to the direction of their selection",
        statement="If a is locally optimal and eps small, the least loss over cone_eps(a) with R_0 <= |W| <= R has "
        "W(R)/|W(R)| -> W_mm(a)/|W_mm(a)| (Theorem 9, Frobenius norm).",
        hypotheses=HYPOTHESES,
        setting=DATA,
        reason=REASON,
        measure=local_frobenius_path,
    ),
    Claim(
        id="svm-T9-nuclear",
        title="Local regularization paths of K and Q converge to nuclear max-margin directions",
        statement="If a is locally optimal for the nuclear norm and eps small, the least loss over cone_eps(a) with "
        "R_0 <= |W|_* <= R tends, over R, to the set of nuclear max-margin solutions of a (Theorem 9, nuclear norm).",
        hypotheses=(*HYPOTHESES[:2], "R >= R_0 = sqrt(d) log(4 B T / c) / eps"),
        setting=DATA + "Support tokens are those of the nuclear solution, certified; W = K Q^T, m = d.",
        reason=REASON + " The distance is to the nearest optimal solution where there are several.",
        measure=local_nuclear_path,
    ),
]
