"""Local convergence: Theorem 7 with Lemmas 13 and 14, Theorem 9, and what depends on the start."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, Verdict, erratum, within
from attnlab.claims.matrices import inner, unit
from attnlab.claims.scale import Scale
from attnlab.claims.svm.dynamics import STEP, downhill, ends, leads_of, with_unit_radius
from attnlab.claims.svm.sandwich import Sandwich, sandwich
from attnlab.data import Tokens, optimal_tokens, sphere
from attnlab.data.tokens import Array
from attnlab.optim import ngd
from attnlab.theory import default_eps, is_locally_optimal, local_cone, score_sides
from attnlab.theory.geometry import solved_selections
from attnlab.train import cosine, descend, flow, regularization_path

SIZE = (2, 4, 3)
CLOSE = 1e-3
ROUNDING = 1e-12  # 1 - cosine below which searches for the least loss are not told apart
EPS = 0.1  # of Lemma 14; 1 / (1 + pi) = 1 - eps
FINE = 1e-3  # length of a normalized step over the radius at which the cone begins


class Basins(NamedTuple):
    """Locally optimal selections of random data, one trial each, with the cones that descent does not leave.

    Attributes:
        tokens: a batch; the data of a seed are repeated for each of its selections.
        passed_over: selections whose support is empty for some query, which the definition says nothing about.
        selected: (trials, n).
        best: is it the selection of the best tokens? (trials,)
        support: tokens that hold the margin, (trials, n, T).
        axis: the max-margin matrix of the selection, (trials, d, d).
        mu, radius: of the cone, (trials,).
        seed: of the data, (trials,).
    """

    tokens: Tokens
    passed_over: int
    selected: NDArray[np.intp]
    best: NDArray[np.bool_]
    support: NDArray[np.bool_]
    axis: Array
    mu: Array
    radius: Array
    seed: NDArray[np.intp]

    @property
    def multiple(self) -> Array:
        """The radius in units of the norm of the max-margin matrix."""
        return self.radius / np.linalg.norm(self.axis, axis=(-2, -1))

    def pick(self, index: Any) -> Basins:
        """Some of them."""
        chosen = np.flatnonzero(index).tolist()
        picked = {name: getattr(self, name)[chosen] for name in self._fields[2:]}
        return self._replace(tokens=Tokens.stack([self.tokens[i] for i in chosen]), **picked)


@cache
def basins(seeds: int) -> Basins:
    """Every locally optimal selection of this many data sets."""
    found, passed_over = [], 0
    for seed in range(seeds):
        tokens = sphere(*SIZE, seed=seed)
        best = optimal_tokens(tokens)
        for chosen, solution in solved_selections(tokens, limit=1000):
            verdict = is_locally_optimal(tokens, chosen, solution=solution)
            passed_over += verdict.holds and verdict.vacuous
            if not verdict or verdict.vacuous:
                continue
            cone = local_cone(tokens, chosen, solution=solution)
            is_best = bool((chosen == best).all())
            found.append((tokens, chosen, is_best, solution.support, solution.W, cone.mu, cone.R, seed))
    data, *arrays = zip(*found, strict=True)
    return Basins(Tokens.stack(data), passed_over, *(np.array(part) for part in arrays))


def near(axis: Array, mu: Array, rng: np.random.Generator) -> Array:
    """Random unit matrices with 1 - cosine to the axis from 0 to mu."""
    axis = unit(axis)
    side = rng.standard_normal(axis.shape)
    side = unit(side - inner(side, axis)[:, None, None] * axis)
    lost = (mu * rng.uniform(0.0, 1.0, len(axis)))[:, None, None]
    return (1.0 - lost) * axis + np.sqrt(lost * (2.0 - lost)) * side


def runs_from_the_cone(found: Basins, steps: int, fine: float = FINE, seed: int = 0) -> tuple[Array, NDArray[np.intp]]:
    """Normalized descent from random points of each cone at its radius: the last W, and the tokens it selects."""
    scaled = with_unit_radius(found.tokens, found.radius)
    start = near(found.axis, found.mu, np.random.default_rng(seed))
    run = descend(scaled, ngd(fine), steps=steps, record=None, init=start)
    return run.W * found.radius[:, None, None], run.selected


def cone_holds_descent(scale: Scale) -> Outcome:
    """Normalized descent from every cone; gradient flow from those whose radius it can start from."""
    found = basins(scale.pick(12, 40, 200))
    W, selected = runs_from_the_cone(found, scale.pick(10_000, 20_000, 20_000))
    end = ends(found.tokens, W, found.selected)
    stays = (selected == found.selected).all(-1)
    worst = float(end.apart.max()) if stays.all() else np.inf
    numbers: dict[str, Any] = {
        "of them not the best tokens": int((~found.best).sum()), "stay": int(stays.sum()),
        "least and largest radius / |W_mm|": [found.multiple.min(), found.multiple.max()],
        "passed over: some query without support": found.passed_over,
        "from 5 |W_mm| on the axis, outside the hypothesis, some leave": _leave_from_closer(found),
    }  # fmt: skip
    if scale is not Scale.SMOKE:
        numbers["gradient flow"] = flowing = _flow_from_the_cone(found)
        worst = float(np.maximum(worst, flowing["worst"]))  # keeps NaN, as max() does not
    return within(
        worst, CLOSE, instances=len(stays), seeds=np.unique(found.seed).tolist(), numbers=numbers,
        slack={"least mu": float(found.mu.min()), "|W(0)| / R_mu": 1.0},
    )  # fmt: skip


def _leave_from_closer(found: Basins) -> dict[str, int]:
    start = 5.0 * found.axis
    run = descend(found.tokens, ngd(STEP), steps=3000, record=None, init=start)
    left = ~(run.selected == found.selected).all(-1)
    return {"left": int(left.sum()), "of": len(left)}


def _flow_from_the_cone(found: Basins, most: int = 12) -> dict[str, Any]:
    """Gradient flow starts where the gradient is e^-radius; to radii of 100 |W_mm| there is time enough."""
    near_enough = (found.multiple < 100.0) & ~found.best
    part = found.pick(near_enough & (np.cumsum(near_enough) <= most))
    start = near(part.axis, part.mu, np.random.default_rng(0)) * part.radius[:, None, None]
    run = flow(part.tokens, time=1e200, init=start, record=None)
    end = ends(part.tokens, run.W, part.selected)
    stays = bool((run.selected == part.selected).all() and run.success.all())
    return {"trials": len(part.mu), "worst": float(end.apart.max()) if stays else np.inf}


def in_cone_sandwich(scale: Scale) -> Sandwich:
    """Both bounds of Lemma 13 at random W and V of each cone, |W| from R_mu to 10 R_mu and |V| = |W_mm|."""
    found, rng = basins(scale.pick(12, 40, 200)), np.random.default_rng(1)
    W, V = (near(found.axis, found.mu, rng) for _ in range(2))
    W = W * (found.radius * 10.0 ** rng.uniform(0.0, 1.0, len(found.mu)))[:, None, None]
    V = V * np.linalg.norm(found.axis, axis=(-2, -1), keepdims=True)
    lead = leads_of(found.tokens, found.selected)
    gaps = np.where(found.support, lead, np.inf).min(-1), np.where(found.support, lead, -np.inf).max(-1)
    return sandwich(found.tokens, W, V, found.selected, gaps, (1.0 / 8.0, 2.0))


def lemma_13(scale: Scale) -> Outcome:
    """The larger of lower/middle and middle/upper."""
    found, bounds = basins(scale.pick(12, 40, 200)), in_cone_sandwich(scale)
    return within(
        float(bounds.tightness().max()), 1.0, instances=len(found.mu), seeds=np.unique(found.seed).tolist(),
        numbers={
            "stationary points": int((bounds.middle <= 0).sum()),
            "largest lower/middle": (bounds.lower / bounds.middle).max(),
            "largest middle/upper": (bounds.middle / bounds.upper).max(),
            "passed over: some query without support": found.passed_over,
        },
        slack={"least mu": float(found.mu.min())},
    )  # fmt: skip


def lemma_14(scale: Scale) -> Outcome:
    """The ratio of the two sides at random W of each cone."""
    found, rng = basins(scale.pick(12, 40, 200)), np.random.default_rng(2)
    W = near(found.axis, found.mu, rng) * (found.radius * 10.0 ** rng.uniform(0.0, 1.0, len(found.mu)))[:, None, None]
    direction, _ = downhill(found.tokens, W)
    ratio = inner(direction, unit(W)) / inner(direction, unit(found.axis))
    return within(
        float(ratio.max()) - 1.0, EPS / (1.0 - EPS), instances=len(ratio), seeds=np.unique(found.seed).tolist(),
        numbers={"largest ratio": float(ratio.max())}, slack={"least mu": float(found.mu.min())},
        note="At |W| >= R_mu; the lemma's own radius holds an unspecified constant.",
    )  # fmt: skip


def local_path_converges(scale: Scale) -> Outcome:
    """The least loss over the cone at R, 3 R and 10 R, with eps and R_0 as the theorem gives them, R >= R_0.

    Some R_0 are hardly above |W_mm|, where nothing has begun to converge: R is at least 10 |W_mm|.
    """
    every = basins(scale.pick(12, 40, 200))
    found = every.pick(~every.best)
    eps = np.array([default_eps(found.tokens[i], s) for i, s in enumerate(found.selected)])
    low = [score_sides(found.tokens[i], s)[0] for i, s in enumerate(found.selected)]
    lead = np.where(low, leads_of(found.tokens, found.selected), np.inf).min((-2, -1))
    x, v = found.tokens.x, found.tokens.v
    longest = np.linalg.norm(x[..., :, None, :] - x[..., None, :, :], axis=-1).max((-3, -2, -1))
    assert v is not None
    first = np.log(4.0 * longest * np.linalg.norm(v, axis=-1) * found.tokens.T / lead) / eps
    radius = np.maximum(first, 10.0 * np.linalg.norm(found.axis, axis=(-2, -1)))
    # Radii count in the length of the matrix that is given, which is R here.
    path = regularization_path(
        found.tokens, radius[:, None, None] * unit(found.axis), radii=(1, 3, 10), selected=found.selected, cone=eps,
        restarts=scale.pick(1, 4, 6),
    )  # fmt: skip
    apart = path.misalignment
    assert apart is not None
    both = path.solved[:, 1:] & path.solved[:, :-1]
    falls = bool((~both | (np.diff(apart) < 0) | (apart[:, 1:] < ROUNDING)).all() and path.solved[:, -1].all())
    multiples = first / np.linalg.norm(found.axis, axis=(-2, -1))
    names, counts = np.unique([status.name for status in path.status.ravel()], return_counts=True)
    return within(
        float(apart[:, -1].max()) if falls else np.inf, CLOSE, instances=len(eps), seeds=np.unique(found.seed).tolist(),
        numbers={
            "R_0 / |W_mm|, least and largest": [multiples.min(), multiples.max()],
            "worst of the solved at R, 3 R, 10 R": np.where(path.solved, apart, 0.0).max(0),
            "searches": dict(zip(names.tolist(), counts.tolist(), strict=True)),
        },
        slack={"least eps": float(eps.min()), "Assumption E: least lead over lower tokens": float(lead.min())},
        note=f"{int((~path.solved).sum())} of {path.solved.size} searches ended without a minimum inside the cone, "
        f"{int((~path.solved[:, -1]).sum())} of them at 10 R.",
    )  # fmt: skip


def limit_depends_on_the_start(scale: Scale) -> Outcome:
    """Data with several locally optimal selections: where runs from two of their cones end."""
    every = basins(scale.pick(12, 40, 200))
    several = np.isin(every.seed, every.seed[~every.best])
    found = every.pick(several)
    W, selected = runs_from_the_cone(found, scale.pick(10_000, 20_000, 20_000))
    end = ends(found.tokens, W, found.selected)
    settled = (selected == found.selected).all(-1) & (end.apart <= CLOSE)
    pairs = [
        float(cosine(W[i], W[j]))
        for i in range(len(W))
        for j in range(i)
        if found.seed[i] == found.seed[j] and settled[i] and settled[j]
    ]
    return Outcome(
        verdict=Verdict.FAILS if pairs and min(pairs) < 1.0 - CLOSE else Verdict.HOLDS, instances=len(pairs),
        worst=1.0 - min(pairs) if pairs else None, seeds=np.unique(found.seed).tolist(),
        numbers={"cosines of two limits of one data set": sorted(pairs)},
    )  # fmt: skip


def limit_is_that_of_the_basin(scale: Scale) -> Outcome:
    """From one cone, two starts and two step lengths lead to one direction."""
    found = basins(scale.pick(12, 40, 200))
    steps, worst = scale.pick(10_000, 20_000, 20_000), 0.0
    for seed, coarser in enumerate((1.0, 3.0)):
        W, selected = runs_from_the_cone(found, int(steps / coarser), coarser * FINE, seed)
        stays = (selected == found.selected).all()
        apart = ends(found.tokens, W, found.selected).apart.max() if stays else np.inf
        worst = float(np.maximum(worst, apart))
    return within(worst, CLOSE, instances=2 * len(found.mu), seeds=np.unique(found.seed).tolist(),
                  slack={"least mu": float(found.mu.min())})  # fmt: skip


IN_THE_CONE = "W in C_{mu,R}: 1 - cosine(W, W_mm(a)) <= mu and |W| >= R_mu"
HAS_SUPPORT = "every query has a support token"
CLAIMS: list[Claim] = [
    Claim(
        id="svm-T7",
        title="Descent that starts in the cone of a locally optimal selection converges to its direction",
        statement="If a is locally optimal, the cone C_{mu,R} around W_mm(a) has no stationary point, and gradient "
        "descent that starts in it has W(k)/|W(k)| -> W_mm(a)/|W_mm(a)| (Theorem 7).",
        hypotheses=("a is locally optimal", IN_THE_CONE, HAS_SUPPORT, "small steps"),
        tolerance=CLOSE,
        reason="1 - cosine with W_mm(a) at the end of normalized descent, and of gradient flow",
        measure=cone_holds_descent,
    ),
    Claim(
        id="svm-L13",
        title="No stationary point in the cone of a locally optimal selection",
        statement="For W, V in C_{mu,R} with |V| = |W_mm(a)|: (2/n) sum -l'_i q_i Gap_i >= -<grad L(W), V> >= "
        "(1/8n) sum -l'_i q_i gap_i > 0, with q_i = 1 - s_a, gap and Gap the least and largest lead over support "
        "tokens (Lemma 13, with the order of (75) as its proof needs it).",
        hypotheses=("a is locally optimal", IN_THE_CONE, HAS_SUPPORT),
        tolerance=1.0,
        reason="the larger of lower/middle and middle/upper, which must not pass 1",
        measure=lemma_13,
    ),
    Claim(
        id="svm-L14",
        title="In the cone no direction descends much faster than its axis",
        statement="In C_{mu,R}, <grad L(W), W/|W|> >= (1 + pi) <grad L(W), W_mm(a)/|W_mm(a)|> for large enough R "
        "(Lemma 14).",
        hypotheses=("a is locally optimal", IN_THE_CONE, HAS_SUPPORT),
        tolerance=EPS / (1.0 - EPS),
        reason="ratio of the two sides less 1, against pi with 1/(1 + pi) = 1 - 0.1",
        measure=lemma_14,
    ),
    Claim(
        id="svm-T9",
        title="Local regularization paths converge to the direction of their selection",
        statement="If a is locally optimal and eps small, the least loss over cone_eps(a) with R_0 <= |W| <= R has "
        "W(R)/|W(R)| -> W_mm(a)/|W_mm(a)| (Theorem 9; 10 with several queries).",
        hypotheses=("a is locally optimal", "Assumption E (linear head)", "R >= R_0 = log(4 B T / c) / eps"),
        tolerance=CLOSE,
        reason="1 - cosine at 10 R, R = max(R_0, 10 |W_mm|), where all must be solved; it must fall from R to 10 R",
        measure=local_path_converges,
    ),
    erratum(
        id="svm-E16",
        title="The limit depends on where descent starts",
        printed="the direction that gradient descent converges to does not depend on the initialization and the step "
        "size (Section 9).",
        corrected="it does not within one basin: from the cone of a locally optimal selection, all starts and small "
        "steps lead to its max-margin direction.",
        hypotheses=("several locally optimal selections", IN_THE_CONE),
        tolerance=CLOSE,
        reason="1 - cosine with the direction of the cone, over starts and two step lengths",
        measure_printed=limit_depends_on_the_start,
        measure_corrected=limit_is_that_of_the_basin,
    ),
]
