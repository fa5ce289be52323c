"""Local convergence: Theorem 7 with Lemmas 13 and 14, and what depends on the start."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, outcome, reading
from attnlab.claims.matrices import length
from attnlab.claims.parts import Bound, Count, Limit
from attnlab.claims.scale import Scale
from attnlab.claims.svm.basins import (
    FINE,
    ON_THE_BORDER,
    Basins,
    at_scale,
    border_points,
    near,
    ratio_of_lemma_14,
    runs_from_the_border,
)
from attnlab.claims.svm.dynamics import STEP, ends, leads_of
from attnlab.claims.svm.sandwich import Sandwich, sandwich
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.tokens import Array
from attnlab.optim import ngd
from attnlab.train import cosine, descend, flow, misalignment

CLOSE = 1e-3
LEFT = 0.5  # share of 1 - cosine that may be left at the end
GROWN = 10.0  # a run whose norm has grown less zigzags: its steps are not small
# Slacks pi of Lemma 14 with the radius, in units of R_mu, at which each is asked.
SLACKS = ((0.1, 10.0), (0.01, 100.0), (0.001, 1000.0))


def cone_holds_descent(scale: Scale) -> Outcome:
    """Normalized descent from the border of every cone; gradient flow from those whose radius it can start from."""
    found = at_scale(scale)
    away = Count("runs that end on other tokens")
    left = Limit("1 - cos with W_mm(a) at the end / at the start", tolerance=LEFT)
    arrived = Limit("1 - cos with W_mm(a) at the end", tolerance=CLOSE)
    grown = Bound("|W(0)| / |W(k)|")
    start, W, selected, shortened = _runs_that_grow(found, scale.pick(10_000, 20_000, 20_000))
    at_start, at_end = misalignment(start, found.axis), misalignment(W, found.axis)
    away.add((selected != found.selected).any(-1))
    left.add(at_end / at_start)
    arrived.add(at_end)
    grown.add(length(start), length(W))
    numbers: dict[str, Any] = {
        "selections that are not the best tokens": int((~found.best).sum()),
        "start outside the tolerance of 1e-3": int((at_start > CLOSE).sum()),
        "1 - cos at the start, least and largest": [float(at_start.min()), float(at_start.max())],
        "share of it that is left, median": float(np.median(at_end / at_start)),
        "run again with steps a tenth as long": shortened,
        "R_mu / |W_mm|, least and largest": [float(found.multiple.min()), float(found.multiple.max())],
        "passed over: some query without support": found.passed_over,
        "from 5 |W_mm| on the axis, which may be outside the hypothesis": _leave_from_closer(found),
    }
    tallies = [away, left, arrived, grown]
    if scale is not Scale.SMOKE:
        tallies.append(_flow_from_the_cone(found))
    seeds = np.unique(found.seed).tolist()
    return outcome(*tallies, seeds=seeds, numbers=numbers, slack=found.slack)


def _runs_that_grow(found: Basins, steps: int) -> tuple[Array, Array, NDArray[np.intp], int]:
    """First W, last W and selection of runs from every border; those that zigzag again, in finer steps; how many."""
    start, W, selected = runs_from_the_border(found, steps)
    zigzags = length(W) < GROWN * length(start)
    if zigzags.any():
        _, W[zigzags], selected[zigzags] = runs_from_the_border(found, 10 * steps, FINE / 10.0, which=zigzags)
    return start, W, selected, int(zigzags.sum())


def _leave_from_closer(found: Basins) -> dict[str, int]:
    run = descend(found.tokens, ngd(STEP), steps=3000, record=None, init=5.0 * found.axis)
    leaves = (run.selected != found.selected).any(-1)
    return {"leave": int(leaves.sum()), "of": len(leaves)}


def _flow_from_the_cone(found: Basins, most: int = 12) -> Limit:
    """Gradient flow starts where the gradient is e^-radius; to radii of 100 |W_mm| there is time enough."""
    arrived = Limit("gradient flow: 1 - cos with W_mm(a) at t = 1e200", tolerance=CLOSE)
    near_enough = (found.multiple < 100.0) & ~found.best
    part = found.pick(near_enough & (np.cumsum(near_enough) <= most))
    start = near(part.axis, part.mu, np.random.default_rng(0), ON_THE_BORDER) * part.radius[:, None, None]
    run = flow(part.tokens, time=1e200, init=start, record=None)
    arrived.leave_unsolved(int((~run.success).sum()))
    stays = (run.selected == part.selected).all(-1)
    from_axis = np.where(stays, misalignment(run.W, part.axis), np.inf)
    arrived.add(from_axis[np.asarray(run.success)])
    return arrived


def in_cone_sandwich(found: Basins) -> Sandwich:
    """Both bounds of Lemma 13 at random W and V on the border of each cone, |W| from R_mu to 10 R_mu, |V| = |W_mm|."""
    rng = np.random.default_rng(1)
    W = near(found.axis, found.mu, rng, ON_THE_BORDER)
    V = near(found.axis, found.mu, rng, ON_THE_BORDER) * length(found.axis)[:, None, None]
    radii = found.radius * 10.0 ** rng.uniform(0.0, 1.0, len(found.mu))
    radii = np.where(rng.uniform(size=len(radii)) < 0.5, found.radius, radii)  # half of them at R_mu itself
    lead = leads_of(found.tokens, found.selected)
    least = np.where(found.support, lead, np.inf).min(-1)
    largest = np.where(found.support, lead, -np.inf).max(-1)
    factors = (1.0 / 8.0, 2.0)
    return sandwich(found.tokens, W * radii[:, None, None], V, found.selected, (least, largest), factors)


def lemma_13(scale: Scale) -> Outcome:
    """Both sides of (75), in the order that its proof needs."""
    found = at_scale(scale)
    bounds = in_cone_sandwich(found)
    stationary = Count("-<grad L(W), V> is not positive")
    below = Bound("(1/8n) sum -l' q gap / -<grad L, V>")
    above = Bound("-<grad L, V> / (2/n) sum -l' q Gap")
    stationary.add(bounds.middle <= 0)
    positive = bounds.middle > 0
    below.add(bounds.lower[positive], bounds.middle[positive])
    above.add(bounds.middle[positive], bounds.upper[positive])
    numbers = {"passed over: some query without support": found.passed_over}
    seeds = np.unique(found.seed).tolist()
    return outcome(below, above, stationary, seeds=seeds, numbers=numbers, slack=found.slack)


def lemma_14(scale: Scale) -> Outcome:
    """The ratio of the two sides on the border of each cone, at radii that grow as the slack pi falls."""
    found = at_scale(scale)
    rng = np.random.default_rng(2)
    tallies = []
    for slack, multiple in SLACKS:
        limit = Limit(f"ratio of the two sides less 1, at {multiple:g} R_mu", tolerance=slack)
        for W in border_points(found, rng):
            ratio = ratio_of_lemma_14(found, W * (multiple * found.radius)[:, None, None])
            limit.add(ratio - 1.0)
        tallies.append(limit)
    note = "The lemma's own radius holds an unspecified constant; multiples of R_mu stand in for it."
    return outcome(*tallies, seeds=np.unique(found.seed).tolist(), slack=found.slack, note=note)


def limit_and_start(scale: Scale) -> Outcome:
    """Where runs end: from two cones of one data set, and from one cone by two starts and two step lengths."""
    found = at_scale(scale)
    steps = scale.pick(10_000, 20_000, 20_000)
    apart = Count("two cones of one data set with the same limit")
    same = Limit("one cone: 1 - cos of the limits of two starts and two step lengths", tolerance=CLOSE)
    own = Limit("1 - cos of a limit with the max-margin direction of what it selects", tolerance=CLOSE)
    away = Count("runs that leave their cone's selection")
    last = []
    for seed, coarser in enumerate((1.0, 3.0)):
        _, W, selected = runs_from_the_border(found, int(steps / coarser), coarser * FINE, seed)
        away.add((selected != found.selected).any(-1))
        own.add(ends(found.tokens, W, selected).apart)
        last.append(W)
    same.add(misalignment(last[0], last[1]))
    pairs = _cosines_of_pairs(found, last[0])
    apart.add(pairs >= 1.0 - CLOSE)
    numbers = {"cosines of two limits of one data set": sorted(pairs.tolist())}
    seeds = np.unique(found.seed).tolist()
    return outcome(apart, same, own, away, seeds=seeds, numbers=numbers, slack=found.slack)


def _cosines_of_pairs(found: Basins, W: Array) -> Array:
    """Of the last W of every two selections of one data set."""
    pairs = []
    for i in range(len(W)):
        for j in range(i):
            if found.seed[i] == found.seed[j]:
                pairs.append(float(cosine(W[i], W[j])))
    return np.array(pairs)


IN_THE_CONE = "W in C_{mu,R}: 1 - cosine(W, W_mm(a)) <= mu and |W| >= R_mu"
HAS_SUPPORT = "every query has a support token"
CONES = (
    "Every locally optimal selection of random unit tokens, (n, T, d) = (2, 4, 3), and six sets built by hand in which "
    "a higher-scoring token lies just beyond the margin (delta down to 0.01); mu and R_mu as in (67) and (74). "
)
CLAIMS: list[Claim] = [
    Claim(
        id="svm-T7",
        title="Descent that starts in the cone of a locally optimal selection converges to its direction",
        statement="If a is locally optimal, gradient descent that starts in the cone C_{mu,R} around W_mm(a) has "
        "|W(k)| -> infinity and W(k)/|W(k)| -> W_mm(a)/|W_mm(a)| (Theorem 7; that the cone has no stationary point is "
        "svm-L13, its step svm-T7-step).",
        hypotheses=("a is locally optimal", IN_THE_CONE, HAS_SUPPORT, "small steps"),
        setting=CONES
        + "Normalized steps of 10^-3 R_mu from a random point of the border at |W| = R_mu, logistic loss; "
        "beyond smoke scale also gradient flow to t = 1e200.",
        reason="1 - cosine with W_mm(a) at the end over that at the start, which is mu: |W| grows 11 times or more, so "
        "that at most half may be left, although steps of 10^-3 R_mu leave a floor of 4e-9 in cones as thin as "
        "mu = 1e-8. Runs that zigzag (|W| grows less than tenfold) are made again with a tenth of the step. Also "
        "1 - cosine itself, and a count of runs that leave.",
        measure=cone_holds_descent,
    ),
    Claim(
        id="svm-L13",
        title="No stationary point in the cone of a locally optimal selection",
        statement="For W, V in C_{mu,R} with |V| = |W_mm(a)|: (2/n) sum -l'_i q_i Gap_i >= -<grad L(W), V> >= "
        "(1/8n) sum -l'_i q_i gap_i > 0, with q_i = 1 - s_a, gap and Gap the least and largest lead over support "
        "tokens (Lemma 13, with the order of (75) as its proof needs it).",
        hypotheses=("a is locally optimal", IN_THE_CONE, HAS_SUPPORT),
        setting=CONES + "Random W and V on the border, |W| from R_mu to 10 R_mu, logistic loss.",
        reason="Each side over the other, which must not pass 1; and no W with -<grad L(W), V> <= 0.",
        measure=lemma_13,
    ),
    Claim(
        id="svm-L14",
        title="In the cone no direction descends much faster than its axis",
        statement="For every pi there is an R such that in C_{mu,R}, <grad L(W), W/|W|> >= (1 + pi) <grad L(W), "
        "W_mm(a)/|W_mm(a)|> (Lemma 14).",
        hypotheses=("a is locally optimal", IN_THE_CONE, HAS_SUPPORT),
        setting=CONES + "W on the border, at random and tilted to favour one sequence; logistic loss.",
        reason="Ratio of the two sides less 1, at most pi = 0.1, 0.01 and 0.001 at 10, 100 and 1000 times R_mu.",
        measure=lemma_14,
    ),
    reading(
        id="svm-E16",
        title="The limit depends on where descent starts, and not within one basin",
        statement="Two cones of one data set have two limits; within one cone all starts and small steps have the same "
        "limit, which is the max-margin direction of the tokens selected.",
        slip=Slip(
            kind=Kind.READING,
            where="Section 9",
            quote="this implicit bias is unaffected by the step size, as long as it is sufficiently small for "
            "convergence, and remains independent of the initialization process",
            charitable="The sentence before it speaks of specific requirements, and Section 5 of the paper says itself "
            "that the start decides between locally optimal directions. Read as the bias towards the max-margin "
            "direction of the tokens that are selected, it held for every run.",
            correction="Read for one basin; across basins the limit differs, as Theorem 7 implies.",
        ),
        hypotheses=("several locally optimal selections", IN_THE_CONE),
        setting=CONES + "Two random starts on the border of each cone, normalized steps of 10^-3 and 3 10^-3 R_mu.",
        reason="Counts, and 1 - cosine of two limits and of a limit with its max-margin direction, at most 1e-3.",
        measure=limit_and_start,
    ),
]
