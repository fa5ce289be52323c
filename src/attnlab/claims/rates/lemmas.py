"""The gradient identity, and what normalized GD does step by step: Eq. (14), Lemmas 2 to 5."""

from __future__ import annotations

import numpy as np

from attnlab.claims.claim import Claim, Outcome, within
from attnlab.claims.matrices import inner
from attnlab.claims.rates.instances import (
    DENSE,
    FIGURE_2,
    Family,
    Run,
    downhill,
    families,
    family_of,
    followed,
    leads,
    logits_of,
    random_weights,
    run,
    split,
    starts,
    weights_of,
)
from attnlab.claims.scale import Scale
from attnlab.data import bad_direction, gaussian_start, sphere
from attnlab.data.tokens import Array
from attnlab.optim import ngd
from attnlab.theory import initialization, rate_bounds

ROUNDING = 1e-12

SMALL_START = "small start (Lemma 2)"
A1, A2 = "Assumption 1, with the products its proof uses besides", "Assumption 2"
STEP = "step <= log(2T - 1) / (2 B^2)"


# K1 ---------------------------------------------------------------------------------------------------------------


def identity_error(data: Family, W: Array, along: Array) -> Array:
    """Of Eq. (14) at W along another matrix, relative to the sum of the sizes of its terms, (trials, m)."""
    g, log_scale = downhill(data, W)
    parts = split(logits_of(data, W), data.best)
    h = (parts.share * leads(logits_of(data, along), data.best)).sum(-1)
    log_w = weights_of(data, parts) - np.log(data.tokens.n)
    w = np.exp(log_w - log_scale[..., None])
    return np.abs(inner(g, along) - (w * h).sum(-1)) / (w * np.abs(h)).sum(-1)


def gradient_has_one_term_per_sequence(scale: Scale) -> Outcome:
    """Random W of lengths 0.01 to 300, against random directions."""
    count = scale.pick(12, 30, 100)
    every = families(scale, figure_2=True)
    worst = {}
    for data in every:
        W, along = random_weights(data, count), random_weights(data, count, seed=1)
        worst[data.name] = float(identity_error(data, W, along).max())
    return within(
        max(worst.values()), 1e-10, instances=count * sum(d.trials for d in every), seeds=(0, 1), numbers=worst,
        slack={k: v for d in every for k, v in d.slack().items() if "Assumption 2" in k},
    )  # fmt: skip


# K2 ---------------------------------------------------------------------------------------------------------------


def small_starts_are_fair(scale: Scale) -> Outcome:
    """Starts of the largest scale that the lemma allows, for the step of figure 2, and for one so large that the other
    part of the bound binds."""
    draws = scale.pick(20, 100, 1000)
    missed, tried, numbers, delta = 0.0, 0, {}, 0.01
    for data in families(scale, figure_2=True):
        if data.constants[0].d < np.log(2 / delta):
            continue  # the lemma asks for d >= log(2 / delta)
        c = data.constants[0]
        for label, step in (("small step", 0.025), ("large step", 1e6)):
            limit = initialization(data.tokens[0], 0.0, step, constants=c).evidence["largest_scale"]
            W = gaussian_start(data.tokens.d - 1, c.d, limit, trials=draws)
            one = np.broadcast_to(data.tokens.x[0], (draws, *data.tokens.x[0].shape))
            logits = np.einsum("rntd,rde,ne->rnt", one, W, data.tokens.z[0])
            best = np.tile(data.best[:1], (draws, 1))
            attention = np.exp(split(logits, best).log_on).min(-1) * 2 * c.T
            length = np.linalg.norm(W, axis=(-2, -1)) * 4 * c.condition / step
            missed = max(missed, int(((attention < 1) | (length > 1)).sum()) / draws)
            tried += draws
            numbers[f"{data.name}, {label}"] = {
                "least attention x kT": float(attention.min()), "largest |W(0)| / allowed": float(length.max()),
                "scale": limit,
            }  # fmt: skip
    return within(missed, delta, instances=tried, seeds=(0,), numbers=numbers,
                  slack={"largest allowed / used scale": 1.0})  # fmt: skip


# K3 ---------------------------------------------------------------------------------------------------------------


def attention_drop(found: Run) -> tuple[float, float]:
    """How far a best token falls under min(its start, 1/T), and by how much a lead shrinks in one step while its token
    has at most 1 - 1/(2T)."""
    T = found.family.tokens.T
    parts = split(found.logits, found.family.best)
    on = np.exp(parts.log_on)
    fall = float((np.minimum(on[:, :1], 1.0 / T) - on).max())
    next_to = np.diff(found.steps) == 1
    shrink = (parts.lead[:, :-1] - parts.lead[:, 1:])[:, next_to]
    early = (on[:, :-1] <= 1.0 - 0.5 / T)[:, next_to]
    return fall, float(np.where(early[..., None], shrink, -np.inf).max())


def attention_never_falls_below_its_start(scale: Scale) -> Outcome:
    """Runs at the largest step size, recorded at every step first and then log-spaced."""
    runs = [run(data.name, scale) for data in families(scale)]
    drops = {r.family.name: attention_drop(r) for r in runs}
    paper = run(FIGURE_2, scale)
    fall, shrink = attention_drop(paper)
    return within(
        max(max(pair) for pair in drops.values()), ROUNDING, instances=sum(r.family.trials for r in runs),
        slack={k: v for r in runs for k, v in r.slack().items()},
        numbers={
            "fall below min(start, 1/T), largest lead lost in a step": drops, "steps": [int(r.steps[-1]) for r in runs],
            "figure 2 (misses Assumption 1)": {"fall": fall, "lead lost": shrink, **paper.family.slack()},
        },
        note=f"Leads are compared from step to step over the first {DENSE} steps.",
    )  # fmt: skip


# K4 ---------------------------------------------------------------------------------------------------------------


def correlation(data: Family, W: Array) -> Array:
    """<-grad/|grad|, W_mm/|W_mm|> over its bound 1 / (2 B^2 Lambda), (trials, m)."""
    g, _ = downhill(data, W)
    cosine = inner(g, data.unit_target[:, None]) / np.linalg.norm(g, axis=(-2, -1))
    return cosine * 2.0 * data.each("condition")[:, None]


def gradient_leans_to_the_max_margin_direction(scale: Scale) -> Outcome:
    """Random W, and W along the runs; also data with T = 2, where Assumption 2 is no restriction."""
    count = scale.pick(12, 30, 100)
    every = families(scale, figure_2=True)
    wide = [
        family_of("bad direction", bad_direction(trials=1)),
        family_of("unit tokens, T = 2", sphere(n=5, T=2, d=8, trials=scale.pick(2, 10, 50))),
    ]
    least, judged = {}, 0
    for data in [*every, *wide]:
        W = random_weights(data, count)
        if data in every:
            along = run(data.name, scale)
            W = np.concatenate([W, along.W[:, :: max(1, len(along.steps) // 40)]], axis=1)
        found = correlation(data, W)
        least[data.name], judged = float(found.min()), judged + found.size
    return within(
        1.0 / min(least.values()), 1.0 + ROUNDING, instances=judged, seeds=(0,),
        numbers={"least cosine x 2 B^2 Lambda": least},
        slack={k: v for d in [*every, *wide] for k, v in d.slack().items() if "Assumption 2" in k},
    )  # fmt: skip


# K5 ---------------------------------------------------------------------------------------------------------------


def norm_excess(found: Run) -> float:
    """The larger of lower bound / |W_t| and |W_t| / upper bound, over all t >= 1."""
    late = found.steps >= 1
    worst = 0.0
    for i, c in enumerate(found.family.constants):
        lower, upper = rate_bounds.norm_bounds(c, found.step, found.steps[late])
        norm = found.norm[i, late]
        worst = max(worst, float((lower / norm).max()), float((norm / upper).max()))
    return worst


def norm_grows_in_proportion_to_time(scale: Scale) -> Outcome:
    """All runs; figure 2 too, since Assumption 1 is not asked for. And how |W_t| falls behind with the cap there."""
    runs = [run(data.name, scale) for data in families(scale, figure_2=True)]
    last = runs[-1]
    steps = scale.pick(3_000, 30_000, 30_000)
    capped = followed(last.family, ngd(last.step, cap=100.0), starts(last.family, last.step), [steps])
    speed = {r.family.name: (r.norm[:, -1] / (r.step * r.steps[-1])).tolist() for r in runs}
    behind = (capped.metrics["norm"][:, -1] / (last.step * steps)).tolist()
    return within(
        max(map(norm_excess, runs)), 1.0, instances=sum(r.family.trials for r in runs),
        slack={k: v for r in runs for k, v in r.slack().items() if "Assumption 1" not in k and "step size" not in k},
        numbers={
            "largest bound ratio": {r.family.name: norm_excess(r) for r in runs},
            "|W_t| / (step t) at the end": speed, f"the same for figure 2 with cap 100 at {steps}": behind,
        },
    )  # fmt: skip


CLAIMS = [
    Claim(
        id="rates-K1",
        title="The gradient, one term per sequence",
        statement="<-grad L(W_t), W> = (1/n) sum_i loss_i gap_i phi_i,opt (1 - phi_i,opt) [a_i,opt - sum_t phi_it a_it "
        "/ sum_t phi_it], sums over t other than opt, a_i = X_i W x_i1 (Eq. 14).",
        hypotheses=(A2, "exponential loss"),
        tolerance=1e-10,
        reason="error relative to the sum of the sizes of the terms",
        measure=gradient_has_one_term_per_sequence,
    ),
    Claim(
        id="rates-K2",
        title="A small random start favours no token",
        statement="With entries of deviation at most B^-2 d^-1/2 min(log((kT-1)/(T-1)) / C', step d^-1/2 / (8 Lambda)) "
        "and d >= log(2/delta), every best token starts with attention at least 1/(kT) with probability 1 - delta, and "
        "|W_0| <= step / (4 B^2 Lambda) (Lemma 2; k = 2, C' = 6 sqrt 2).",
        hypotheses=("entries N(0, scale^2) at the largest allowed scale", "d >= log(2/delta), delta = 0.01"),
        tolerance=0.01,
        reason="share of draws that miss, on the worst set; the lemma allows delta",
        measure=small_starts_are_fair,
    ),
    Claim(
        id="rates-K3",
        title="A best token never loses attention below its start",
        statement="phi^t_j,opt >= min(phi^0_j,opt, 1/T) for all t, and while phi_j,opt <= 1 - 1/(2T) each ratio "
        "phi_j,opt/phi_j,t is non-decreasing (Lemma 3, Eqs. 15 and 17).",
        hypotheses=(SMALL_START, A1, A2, "normalized GD", STEP),
        tolerance=ROUNDING,
        reason="the larger of a fall in attention and a lost lead; rounding of logits",
        measure=attention_never_falls_below_its_start,
    ),
    Claim(
        id="rates-K4",
        title="The gradient leans to the max-margin direction everywhere",
        statement="<-grad/|grad|, W_mm/|W_mm|> >= 1/(2 B^2 Lambda) at any W (Lemma 4).",
        hypotheses=(A2,),
        tolerance=1.0 + ROUNDING,
        reason="the bound over the least cosine; it is attained",
        measure=gradient_leans_to_the_max_margin_direction,
    ),
    Claim(
        id="rates-K5",
        title="The norm grows in proportion to time",
        statement="step t / (4 B^2 Lambda) <= |W_t| <= 2 step max(1, 1/(4 B^2 Lambda)) t for t >= 1 (Lemma 5, Eq. 9).",
        hypotheses=(SMALL_START, A2, "normalized GD without a cap"),
        tolerance=1.0,
        reason="the larger of lower bound / norm and norm / upper bound",
        measure=norm_grows_in_proportion_to_time,
    ),
]
