"""The gradient identity, and what normalized GD does step by step: Eq. (14), Lemmas 2 to 5."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.matrices import inner, length
from attnlab.claims.parts import Bound, Identity, Limit, Share, least
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
from attnlab.data import Tokens, bad_direction, gaussian_start, sphere
from attnlab.data.tokens import Array
from attnlab.optim import gd, ngd, polyak
from attnlab.theory import initialization, rate_bounds

ROUNDING = 1e-12
# The share of starts that Lemma 2 may miss.
DELTA = 0.01

SMALL_START = "small start (Lemma 2)"
A1 = "Assumption 1"
A1_ALL = "Assumption 1, with the products that the proof of Lemma 3 uses besides"
A2 = "Assumption 2"
STEP = "step <= log(2T - 1) / (2 B^2)"

DATA = (
    "Families (2 data sets of each at smoke, 3 at quick, 10 at paper scale): one sequence of two tokens, B^2 Lambda "
    "from 1/2 on; one sequence of a best token before a crowd of eight, T = 10; Example 1 with orthogonal noise, "
    "n = 4, T = 3, unlike score gaps; from quick on Example 1 at n = T = 2, d = 20000. Exponential loss"
)
RUNS = (
    f"{DATA}; normalized GD without a cap at the largest step of Theorem 5, from Gaussian starts as large as Lemma 2 "
    "allows, 1e4 steps for the crowd and 1e5 for the others (paper scale: ten times as many)."
)


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
    error = Identity("Eq. (14): error over the sizes of the terms", tolerance=1e-10)
    every = families(scale, figure_2=True)
    by_family = {}
    for data in every:
        W = random_weights(data, scale.pick(12, 30, 100))
        along = random_weights(data, W.shape[1], seed=1)
        errors = identity_error(data, W, along)
        error.add(errors)
        by_family[data.name] = float(errors.max())
    slack = least(*(data.equality_slack() for data in every))
    return outcome(error, seeds=(0, 1), numbers={"largest error": by_family}, slack=slack)


# K2 ---------------------------------------------------------------------------------------------------------------


def opposite_pairs(n: int = 200, d: int = 8) -> Tokens:
    """Sequences of a unit token and its opposite in random directions, so that some query meets the direction in which
    a Gaussian start is worst."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((n, d))
    first /= np.linalg.norm(first, axis=-1, keepdims=True)
    x = np.stack([first, -first], axis=1)
    v = np.ones(d)
    return Tokens.self_attention(x[None], np.sign(first @ v)[None], v)


def small_starts_are_fair(scale: Scale) -> Outcome:
    """Starts of the largest scale that the lemma allows, for the step of figure 2, and for one so large that the other
    part of the bound binds."""
    draws = scale.pick(450, 600, 2000)
    shares = []
    numbers = {}
    every = [*families(scale, figure_2=True), family_of("opposite pairs", opposite_pairs())]
    large = [data for data in every if data.constants[0].d >= np.log(2.0 / DELTA)]
    for data in large:
        c = data.constants[0]
        fair = Share(f"{data.name}: every best token starts with at least 1/(kT)", at_least=1.0 - DELTA)
        short = Share(f"{data.name}: |W(0)| <= step / (4 B^2 Lambda)", at_least=1.0 - DELTA)
        shares += [fair, short]
        for label, step in (("small step", 0.025), ("large step", 1e6)):
            limit = initialization(data.tokens[0], 0.0, step, constants=c).evidence["largest_scale"]
            W = gaussian_start(data.tokens.d - 1, c.d, limit, trials=draws)  # (draws, d, d)
            keys = W @ data.tokens.z[0].T  # (draws, d, n)
            logits = np.einsum("ntd,rdn->rnt", data.tokens.x[0], keys)
            best = np.tile(data.best[:1], (draws, 1))
            attention = np.exp(split(logits, best).log_on).min(-1) * 2 * c.T
            size = length(W) * 4 * c.condition / step
            fair.add(attention >= 1)
            short.add(size <= 1)
            numbers[f"{data.name}, {label}"] = {
                "least attention x kT": float(attention.min()),
                "largest |W(0)| / allowed": float(size.max()),
                "deviation of the entries": limit,
            }
    d_least = min(data.constants[0].d for data in large)
    return outcome(
        *shares,
        instances=2 * draws * len(large),
        seeds=(0,),
        tried=2 * draws * len(every),
        numbers=numbers,
        slack={"allowed / used deviation": 1.0, "d / log(2/delta)": d_least / np.log(2.0 / DELTA)},
        note="Families with d < log(2/delta) are left out.",
    )


# K3 ---------------------------------------------------------------------------------------------------------------


def attention_and_floor(path: Run) -> tuple[Array, Array]:
    """Attention on each best token from step 1 on, (trials, m, n), and min(its start, 1/T), (trials, 1, n)."""
    on = np.exp(split(path.logits, path.family.best).log_on)
    return on[:, 1:], np.minimum(on[:, :1], 1.0 / path.family.tokens.T)


def lead_lost(path: Run) -> Array:
    """By how much each lead a_opt - a_t shrinks in a step while its token has at most 1 - 1/(2T); -inf elsewhere,
    (trials, pairs of neighbouring records, n, T - 1)."""
    parts = split(path.logits, path.family.best)
    on = np.exp(parts.log_on)
    next_to = np.diff(path.steps) == 1
    shrinks = (parts.lead[:, :-1] - parts.lead[:, 1:])[:, next_to]
    early = (on[:, :-1] <= 1.0 - 0.5 / path.family.tokens.T)[:, next_to]
    return np.where(early[..., None], shrinks, -np.inf)


def judge_lemma_3(runs: Sequence[Run]) -> Outcome:
    """Attention against min(its start, 1/T), and leads from step to step, on the data sets that meet all that the proof
    uses."""
    attention = Bound("Eq. (15): min(start, 1/T) / attention, t >= 1", rounding=ROUNDING)
    lead = Limit("Eq. (17): largest lead lost in a step", tolerance=ROUNDING)
    tried = 0
    for path in runs:
        tried += path.family.trials
        meets = path.family.meets_all
        on, promised = attention_and_floor(path)
        attention.add_at_least(on[meets], promised[meets])
        shrinks = lead_lost(path)[meets]
        lead.add(shrinks[np.isfinite(shrinks)])
    return outcome(
        attention,
        lead,
        instances=sum(int(path.family.meets_all.sum()) for path in runs),
        tried=tried,
        slack=least(*(path.slack() for path in runs)),
        numbers={"steps": {path.family.name: int(path.steps[-1]) for path in runs}},
        note=f"Leads are compared from step to step over the first {DENSE} steps. Data sets that miss the products "
        "that the proof uses besides Assumption 1 are tried, not judged.",
    )


def attention_never_falls_below_its_start(scale: Scale) -> Outcome:
    """Runs at the largest step size, recorded at every step first and then log-spaced."""
    return judge_lemma_3([run(data.name, scale) for data in families(scale)])


def other_rules_keep_attention_too(scale: Scale) -> Outcome:
    """GD at the largest step of Theorem 6, and the Polyak step at the largest of Theorem 7 with beta = 1 - 1/(2T)."""
    data = families(scale)[2]  # orthogonal: several sequences, unlike gaps
    beta = 1.0 - 0.5 / data.tokens.T
    largest = {
        "GD": min(rate_bounds.largest_step(c, "gd") for c in data.constants),
        "Polyak step": min(rate_bounds.polyak_constants(c, 1.0, beta).largest_step for c in data.constants),
    }
    rules = {"GD": gd(largest["GD"]), "Polyak step": polyak(constant=largest["Polyak step"])}
    tallies = []
    for name, rule in rules.items():
        start = starts(data, largest[name])
        path = followed(data, rule, start, list(range(scale.pick(60, 200, 1000))))
        on = np.exp(split(path.metrics["logits"], data.best).log_on)  # (trials, steps, n)
        # Theorem 7 speaks only while every best token has at most beta.
        speaks = np.logical_and.accumulate((on[:, :-1] <= beta).all(-1), axis=1) if name != "GD" else True
        tally = Bound(f"{name}: min(start, 1/T) / attention", rounding=ROUNDING)
        promised = np.minimum(on[:, :1], 1.0 / data.tokens.T)
        tally.add_at_least(on[:, 1:], promised, says=np.broadcast_to(speaks, on[:, 1:, 0].shape)[..., None])
        tallies.append(tally)
    return outcome(*tallies, slack=data.slack(), seeds=(1,), numbers={"largest steps": largest})


# K4 ---------------------------------------------------------------------------------------------------------------


def correlation(data: Family, W: Array) -> Array:
    """<-grad/|grad|, W_mm/|W_mm|>, (trials, m)."""
    g, _ = downhill(data, W)
    return inner(g, data.unit_target[:, None]) / length(g)


def gradient_leans_to_the_max_margin_direction(scale: Scale) -> Outcome:
    """Random W, and W along the runs; also data with T = 2, where Assumption 2 is no restriction."""
    bound = Bound("Lemma 4: 1/(2 B^2 Lambda) / cosine", rounding=ROUNDING)
    shared = families(scale, figure_2=True)
    wide = [
        family_of("bad direction", bad_direction(trials=1)),
        family_of("unit tokens, T = 2", sphere(n=5, T=2, d=8, trials=scale.pick(2, 10, 50))),
    ]
    by_family = {}
    for data in [*shared, *wide]:
        W = random_weights(data, scale.pick(12, 30, 100))
        if data in shared:
            along = run(data.name, scale)
            W = np.concatenate([W, along.W[:, :: max(1, len(along.steps) // 40)]], axis=1)
        cosine = correlation(data, W)
        promised = 0.5 / data.each("condition")[:, None]
        bound.add_at_least(cosine, promised)
        by_family[data.name] = float((promised / cosine).max())
    slack = least(*(data.equality_slack() for data in [*shared, *wide]))
    return outcome(bound, seeds=(0,), numbers={"bound / cosine, largest": by_family}, slack=slack)


# K5 ---------------------------------------------------------------------------------------------------------------


def add_norms(lower: Bound, upper: Bound, data: Family, step: float, t: ArrayLike, norms: Array) -> None:
    """Norms (trials, m) at steps t (m,) against the two bounds of Lemma 5."""
    for i, c in enumerate(data.constants):
        low, high = rate_bounds.norm_bounds(c, step, t)
        lower.add_at_least(norms[i], low)
        upper.add(norms[i], high)


def first_norms(data: Family, step: float, start: Array) -> Array:
    """|W_1| after one step of normalized GD from a start, (trials, 1)."""
    g, _ = downhill(data, start[:, None])
    return length(start[:, None] + step * g / length(g)[..., None, None])


def norm_grows_in_proportion_to_time(scale: Scale) -> Outcome:
    """All runs; figure 2 too, since Assumption 1 is not asked for. And the first step from the longest starts along
    W_mm and against it. And how |W_t| falls behind with the cap."""
    lower = Bound("Lemma 5: step t / (4 B^2 Lambda) / |W_t|", rounding=ROUNDING)
    upper = Bound("Lemma 5: |W_t| / (2 step max(1, 1/(4 B^2 Lambda)) t)", rounding=ROUNDING)
    runs = [run(data.name, scale) for data in families(scale, figure_2=True)]
    for path in runs:
        data = path.family
        late = path.steps >= 1
        add_norms(lower, upper, data, path.step, path.steps[late], path.norm[:, late])
        longest = path.step / (4.0 * data.each("condition"))[:, None, None] * data.unit_target
        for start in (longest, -longest):
            add_norms(lower, upper, data, path.step, np.array([1.0]), first_norms(data, path.step, start))
    paper = runs[-1]
    steps = scale.pick(3_000, 30_000, 30_000)
    capped = followed(paper.family, ngd(paper.step, cap=100.0), starts(paper.family, paper.step), [steps])
    speed = {path.family.name: (path.norm[:, -1] / (path.step * path.steps[-1])).tolist() for path in runs}
    unasked = ("Assumption 1", "step size", "Lemma 3")
    slack = least(*(path.slack() for path in runs))
    return outcome(
        lower,
        upper,
        slack={name: value for name, value in slack.items() if not any(word in name for word in unasked)},
        numbers={
            "|W_t| / (step t) at the end": speed,
            f"the same for figure 2 with cap 100 at {steps}": capped.metrics["norm"][:, -1] / (paper.step * steps),
        },
        note=f"{FIGURE_2} is judged too: the lemma does not ask for Assumption 1.",
    )


CLAIMS = [
    Claim(
        id="rates-K1",
        title="The gradient, one term per sequence",
        statement="<-grad L(W_t), W> = (1/n) sum_i loss_i gap_i phi_i,opt (1 - phi_i,opt) [a_i,opt - sum_t phi_it a_it "
        "/ sum_t phi_it], sums over t other than opt, a_i = X_i W x_i1 (Eq. 14).",
        hypotheses=(A2, "exponential loss"),
        setting=f"{DATA}, and the data of figure 2; random W of lengths 0.01 to 300 against random directions.",
        reason="error relative to the sum of the sizes of the terms; 1e-10 is rounding at logits up to 300",
        measure=gradient_has_one_term_per_sequence,
    ),
    Claim(
        id="rates-K2",
        title="A small random start favours no token",
        statement="With entries of deviation at most B^-2 d^-1/2 min(log((kT-1)/(T-1)) / C', step d^-1/2 / (8 Lambda)) "
        "and d >= log(2/delta), every best token starts with attention at least 1/(kT) with probability 1 - delta, and "
        "|W_0| <= step / (4 B^2 Lambda) (Lemma 2; k = 2, C' = 6 sqrt 2).",
        hypotheses=("entries N(0, deviation^2) at the largest allowed deviation", "d >= log(2/delta), delta = 0.01"),
        setting=f"{DATA}; the data of figure 2; and 200 pairs of opposite unit tokens in random directions, d = 8. 450 "
        "starts per data set at smoke, for a small step and for one so large that attention limits the start.",
        reason="shares of starts that keep each of the two promises, by their intervals, against 1 - delta. The paper "
        "does not give C'; the one here is a valid Gaussian bound",
        measure=small_starts_are_fair,
    ),
    Claim(
        id="rates-K3",
        title="A best token never loses attention below its start",
        statement="phi^t_j,opt >= min(phi^0_j,opt, 1/T) for all t, and while phi_j,opt <= 1 - 1/(2T) each ratio "
        "phi_j,opt/phi_j,t is non-decreasing (Lemma 3, Eqs. 15 and 17).",
        hypotheses=(SMALL_START, A1_ALL, A2, "normalized GD", STEP),
        setting=RUNS,
        reason="promised over measured attention; and the largest lead lost in a step, up to the rounding of logits",
        measure=attention_never_falls_below_its_start,
    ),
    Claim(
        id="rates-K3b",
        title="Nor does it under gradient descent or the Polyak step",
        statement="phi^t_j,opt >= min(phi^0_j,opt, 1/T) also for GD with step <= log(2T-1)/(B^4 zeta) (proof of "
        "Theorem 6) and, while phi <= beta, for the Polyak step with eta <= omega_1 log(2T-1)/(2 B^2) (proof of "
        "Theorem 7).",
        hypotheses=(SMALL_START, A1_ALL, A2, "the largest allowed step", "Polyak step: phi <= beta = 1 - 1/(2T)"),
        setting="Example 1 with orthogonal noise, n = 4, T = 3, unlike score gaps; exponential loss; every one of the "
        "first 60 steps at smoke, 200 at quick.",
        reason="promised over measured attention, from step 1 on",
        measure=other_rules_keep_attention_too,
    ),
    Claim(
        id="rates-K4",
        title="The gradient leans to the max-margin direction everywhere",
        statement="<-grad/|grad|, W_mm/|W_mm|> >= 1/(2 B^2 Lambda) at any W (Lemma 4).",
        hypotheses=(A2,),
        setting=f"{DATA}; the data of figure 2 and of Appendix C.1; unit tokens with T = 2. Random W of lengths "
        "0.01 to 300, and W along the runs.",
        reason="the bound over the cosine; opposite tokens attain it",
        measure=gradient_leans_to_the_max_margin_direction,
    ),
    Claim(
        id="rates-K5",
        title="The norm grows in proportion to time",
        statement="step t / (4 B^2 Lambda) <= |W_t| <= 2 step max(1, 1/(4 B^2 Lambda)) t for t >= 1 (Lemma 5, Eq. 9).",
        hypotheses=(SMALL_START, A2, "normalized GD without a cap"),
        setting=f"{RUNS} Also the data of figure 2, and one step from the longest starts along W_mm and against it.",
        reason="each bound against the norm; from the longest start against W_mm opposite tokens attain the lower one",
        measure=norm_grows_in_proportion_to_time,
    ),
]
