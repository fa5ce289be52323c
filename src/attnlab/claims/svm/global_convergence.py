"""Global convergence with equal scores: Theorems 4 and 5, Lemma 10, and where they need another hypothesis."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from attnlab.claims.claim import Claim, Outcome, Verdict, erratum, within
from attnlab.claims.matrices import inner, unit
from attnlab.claims.scale import Scale
from attnlab.claims.svm.dynamics import (
    STEP,
    TRAPPING_START,
    downhill,
    ends,
    equal_score_data,
    leads_of,
    margins_of,
    slack_of_b2,
    stacked,
    trap,
)
from attnlab.data import Tokens, optimal_tokens, scores
from attnlab.data.tokens import Array
from attnlab.optim import gd, ngd
from attnlab.svm import solve_margin, solve_margins
from attnlab.theory import assumption_b1, assumption_b2, assumption_d, is_locally_optimal, lipschitz_constants
from attnlab.train import descend, flow

CLOSE = 1e-3  # 1 - cosine that counts as having arrived
PI = 0.1  # the slack of Lemma 10 that is tested
DECADES = (1e1, 1e2, 1e3, 1e4)
SIZES = ((1, 4, 6), (3, 4, 6))
RATES = ((5, 5, 5), (3, 3, 3), (5, 3, 10))


@cache
def trapped(scale: Scale) -> dict[str, Any]:
    """Gradient descent, normalized descent and gradient flow on the trap, from the trapping start and from 0.

    Records, by rule and start, the cosines with the max-margin direction of the best tokens and with that of the other
    tokens, and the lead of the best token of sequence 1 in logits, at rising times.
    """
    tokens = trap()
    other = solve_margin(tokens, [1, 0])
    pair = stacked(tokens, 2)
    starts = np.stack([TRAPPING_START, np.zeros((2, 2))])
    targets = {"best": solve_margin(tokens, optimal_tokens(tokens)).W, "other": other.W}
    metrics = {"lead": _lead_of_the_first}
    step = 1.0 / lipschitz_constants(tokens).W
    powers = scale.pick(5, 6, 7)
    found: dict[str, Any] = {"step of gradient descent": step}
    for name, rule, steps in (("gradient descent", gd(step), powers), ("normalized", ngd(STEP), 4)):
        record = [10**k for k in range(2, steps + 1)]
        run = descend(pair, rule, steps=record[-1], record=record, init=starts, targets=targets, metrics=metrics)
        found[name] = _tails(run)
    record = [10.0**k for k in (2, 4, 8, 14, 30, 100)]
    found["flow"] = _tails(flow(pair, time=1e100, record=record, init=starts, targets=targets, metrics=metrics))
    return found


def _lead_of_the_first(view: Any) -> Any:
    return view.logits[0, 0, 0] - view.logits[0, 0, 1]


def _tails(run: Any) -> dict[str, Any]:
    names = ("misalignment_best", "misalignment_other", "lead")
    return {
        start: {"selected": run.selected[i].tolist(), **{k: run.metrics[k][i].tolist() for k in names}}
        for i, start in enumerate(("trapping start", "zero"))
    }


def leaves_for_the_other(run: dict[str, Any]) -> bool:
    """Does it go to the other direction at every recorded time, sequence 1 ever further from its best token?"""
    nearer, lead = np.diff(run["misalignment_other"]), np.array(run["lead"])
    return bool((nearer < 0).all() and (np.diff(lead) < 0).all() and lead[-1] < 0 and run["selected"] == [1, 0])


def trap_hypotheses() -> dict[str, float]:
    """The assumptions on the trap, each as a number that is positive, or at least 0, where it holds."""
    tokens = trap()
    b1, b2, d = assumption_b1(tokens), assumption_b2(tokens), assumption_d(tokens)
    assert b1.holds
    assert b2.holds
    return {
        "B.1: slack": b1.slack, "B.1: room of the interpolator": b1.evidence["room"], "B.2: slack": b2.slack,
        "B.2: least gap of scores": b2.evidence["gap"], "D: slack (it does not hold)": d.slack,
    }  # fmt: skip


def trap_contradicts(rules: tuple[str, ...], scale: Scale) -> Outcome:
    """The printed theorem on the trap: it stands unless every rule leaves for the other direction."""
    runs = trapped(scale)
    away = [leaves_for_the_other(runs[rule]["trapping start"]) for rule in rules]
    far = min(runs[rule]["trapping start"]["misalignment_best"][-1] for rule in rules)
    verdict = Verdict.FAILS if all(away) and far > CLOSE else Verdict.HOLDS
    return Outcome(
        verdict=verdict, instances=len(rules), worst=far, slack=trap_hypotheses(),
        numbers={"step of gradient descent": runs["step of gradient descent"], **{r: runs[r] for r in rules}},
        note="Two sequences of two tokens, queries e1; from W(0) = -2 e1 e1^T sequence 1 stays with its worse token.",
    )  # fmt: skip


def theorem_4_printed(scale: Scale) -> Outcome:
    """Gradient descent with step 1 / L_W, and its limit of small steps."""
    return trap_contradicts(("gradient descent", "flow"), scale)


def settled_runs_converge(spread: float, scale: Scale) -> Outcome:
    """One sequence from any start; three sequences where attention settled on the best tokens."""
    trials, worst, judged, drawn, slack = scale.pick(8, 40, 200), 0.0, 0, 0, {}
    numbers: dict[str, Any] = {"spread of scores": spread}
    for seed, (n, T, d) in enumerate(SIZES):
        tokens = equal_score_data(n, T, d, trials, seed, spread)
        for size in (0.3, 1.0):
            run = descend(tokens, ngd(STEP), steps=3000, record=None, init="gaussian", init_scale=size)
            end = ends(tokens, run.W, run.selected)
            kept = end.best if n > 1 else np.ones(trials, dtype=bool)
            judged, drawn = judged + int(kept.sum()), drawn + trials
            apart = float(end.from_best[kept].max())
            worst = float(np.maximum(worst, apart))  # keeps NaN, as max() does not
            numbers[f"n = {n}, start {size}"] = {
                "settled on the best": int(end.best.sum()), "of": trials, "worst": apart,
                "least |W| / |W_mm|": float(end.multiple[kept].min()),
            }  # fmt: skip
        measured = slack_of_b2(tokens)
        slack |= {f"n = {n}, {name}": value for name, value in measured.items()}
    if scale is not Scale.SMOKE:
        numbers["gradient descent"] = plain = _descent_goes_on(spread, scale)
        worst = worst if plain["falls"] and not plain.get("below (34)") else np.inf
    return within(worst, CLOSE, instances=judged, tried=drawn, numbers=numbers, slack=slack, seeds=range(len(SIZES)))


def _descent_goes_on(spread: float, scale: Scale) -> dict[str, Any]:
    """Plain gradient descent is slow as log t: it must come nearer from decade to decade, not arrive."""
    trials = 8
    tokens = equal_score_data(*SIZES[0], trials, 0, spread)
    step = 1.0 / max(lipschitz_constants(tokens[i]).W for i in range(trials))
    best = solve_margins(tokens, optimal_tokens(tokens))
    steps = scale.pick(10**4, 10**5, 10**6)
    run = descend(tokens, gd(step), steps=steps, init="zeros", targets={"best": best.W})
    decades = [10**k for k in range(3, 7) if 10**k <= steps]
    apart = run.metrics["misalignment_best"][:, np.isin(run.steps, decades)]
    found = {"step": step, "steps": decades, "worst": apart.max(0).tolist(), "falls": bool((np.diff(apart) < 0).all())}
    return found if spread else found | rate_of_the_proof(run.metrics, step, best.margin, tokens.T)


def rate_of_the_proof(metrics: Any, step: float, margin: Array, T: int) -> dict[str, int]:
    """Equation (34): once |W| >= R_pi, cosine >= 1 - eps + C / |W(k)|, with 1 / (1 + pi) = 1 - eps.

    C = <W(k0), W_mm/|W_mm|> - (1 - eps) |W(k0)| - 2 step (1 - eps) (L(W(k0)) - L*), at the first record k0 beyond
    R_pi = |W_mm| log(T - 1) / pi, which one sequence needs.
    """
    eps = 0.3
    norm, cosine, excess = (metrics[name] for name in ("norm", "cosine_best", "excess_loss"))
    beyond = norm * margin[:, None] >= np.log(T - 1.0) * (1.0 - eps) / eps
    first = np.argmax(beyond, axis=1)[:, None]
    start, aligned, left = (np.take_along_axis(a, first, axis=1) for a in (norm, cosine, excess))
    C = start * aligned - (1.0 - eps) * start - 2.0 * step * (1.0 - eps) * left
    # Rounding of the two sides, at the first record where they are equal but for the loss.
    short = beyond & ~(norm * cosine >= (1.0 - eps - 1e-12) * norm + C)
    return {"records judged by (34)": int(beyond.sum()), "below (34)": int(short.sum())}


def theorem_4_corrected(scale: Scale) -> Outcome:
    """With scores exactly equal."""
    return settled_runs_converge(0.0, scale)


def theorem_5_printed(scale: Scale) -> Outcome:
    """The trap has one other token per sequence: its other scores are within every delta of each other."""
    return trap_contradicts(("gradient descent", "flow"), scale)


def theorem_5_corrected(scale: Scale) -> Outcome:
    """Other scores within 0.02 and within 0.1 of each other."""
    near, far = (settled_runs_converge(spread, scale) for spread in (0.02, 0.1))
    assert near.worst is not None
    assert far.worst is not None
    return within(
        float(np.maximum(near.worst, far.worst)), CLOSE, instances=near.instances + far.instances,
        tried=(near.tried or 0) + (far.tried or 0), seeds=near.seeds, slack={**near.slack, **far.slack},
        numbers={"0.02": near.to_json()["numbers"], "0.1": far.to_json()["numbers"]},
    )  # fmt: skip


def ratio_of_lemma_10(tokens: Tokens, W: Array, best: Array) -> Array:
    """<grad L(W), W/|W|> / <grad L(W), W_mm/|W_mm|>, which the lemma bounds by 1 + pi for large |W|."""
    direction, _ = downhill(tokens, W)
    return inner(direction, unit(W)) / inner(direction, unit(best))


def lemma_10_printed(scale: Scale) -> Outcome:
    """The ray of the trap's other direction, ever further out."""
    tokens = trap()
    best, other = solve_margin(tokens, [0, 0]).W, solve_margin(tokens, [1, 0]).W
    radii = np.array(DECADES) * np.linalg.norm(best)
    W = radii[:, None, None] * unit(other)
    ratio = ratio_of_lemma_10(stacked(tokens, len(radii)), W, best)
    return within(
        float(ratio[-1]) - 1.0, PI, instances=len(radii), slack=trap_hypotheses(),
        numbers={"|W| / |W_mm|": list(DECADES), "ratio": ratio, "pi": PI},
        note="The ratio tends to 1/cos of the two directions, 3.0, along a whole ray: no radius is large enough.",
    )  # fmt: skip


def lemma_10_corrected(scale: Scale) -> Outcome:
    """The ratio against 1 + log(N kappa) |W_mm| / |W|, at random W: all of them with one sequence, those that separate
    the best tokens with three."""
    trials, excess, judged, drawn, slack = scale.pick(50, 400, 2000), -np.inf, 0, 0, {}
    for seed, (n, T, d) in enumerate(SIZES):
        tokens = equal_score_data(n, T, d, trials, seed)
        found = solve_margins(tokens, optimal_tokens(tokens))
        rng = np.random.default_rng(seed)
        for noise in (0.1, 0.3, 3.0):
            W = unit(unit(found.W) + noise * unit(rng.standard_normal(found.W.shape)))
            W *= (10.0 ** rng.uniform(0.0, 4.0, trials) / found.margin)[:, None, None]
            bound = 1.0 + _log_weight_ratio(tokens) / (np.linalg.norm(W, axis=(-2, -1)) * found.margin)
            kept = (margins_of(tokens, W, optimal_tokens(tokens)) >= 0).all((-2, -1)) | (n == 1)
            beyond = (ratio_of_lemma_10(tokens, W, found.W) - bound)[kept]
            excess = float(np.maximum(excess, beyond.max(initial=-np.inf)))  # keeps NaN, as max() does not
            judged, drawn = judged + int(kept.sum()), drawn + trials
        slack |= {f"n = {n}, {name}": value for name, value in slack_of_b2(tokens).items()}
    return within(
        excess, 0.0, instances=judged, tried=drawn, slack=slack, seeds=range(len(SIZES)),
        numbers={"largest ratio - bound": excess},
        note="So R_pi = |W_mm| log(N kappa) / pi will do, with N constraints.",
    )  # fmt: skip


def _log_weight_ratio(tokens: Tokens) -> Array:
    """log(N kappa) per trial; kappa is 1 for one sequence, else the most that the weights of two sequences differ by.

    The inner products of the lemma are means of margins m over all constraints with weights c_i e^-m, where
    c_i = |l'_i| gap_i s_best^2. Such a mean is at most the least margin plus log(N max c / min c), and the least margin
    is at most |W| / |W_mm|. Where the best token has the largest weight, s_best is from 1/T to 1.
    """
    constraints = np.log(tokens.n * (tokens.T - 1.0))
    if tokens.n == 1:
        return np.full(tokens.trials or 1, constraints)
    gap = leads_of(tokens, optimal_tokens(tokens)).max(-1)
    top = scores(tokens).max(-1)
    most, least = gap / (1.0 + np.exp(top - gap)), gap / (1.0 + np.exp(top))
    return constraints + np.log(most.max(-1) / least.min(-1)) + 2.0 * np.log(tokens.T)


def every_rule_is_trapped(scale: Scale) -> Outcome:
    """All three rules on the trap, and how often random data with equal scores trap a run."""
    outcome = trap_contradicts(("gradient descent", "normalized", "flow"), scale)
    return Outcome(
        verdict=outcome.verdict, instances=outcome.instances, worst=outcome.worst, slack=outcome.slack,
        numbers={**outcome.numbers, **_mechanism(), "random data": _random_rates(scale)}, seeds=range(len(RATES)),
        note=outcome.note,
    )  # fmt: skip


def _mechanism() -> dict[str, Any]:
    """Why the trap holds: one step for sequence 2 moves sequence 1 the other way, and further."""
    tokens = trap()
    D = tokens.x[:, 0] - tokens.x[:, 1]
    other = is_locally_optimal(tokens, [1, 0])
    # At margins 5 and 15 the step of gradient descent lowers the margin of sequence 2: (63a) asks it to grow.
    W = np.zeros((2, 2))
    W[:, 0] = np.linalg.solve(D, [5.0, 15.0])
    towards = np.einsum("nd,de,ne->n", D, downhill(tokens, W)[0], tokens.z)
    return {
        "-<A_1, A_2>": -float(D[0] @ D[1]), "|A_2|^2": float(D[1] @ D[1]),
        "the other selection is locally optimal": other.holds, "queries without support tokens": int(other.empty.sum()),
        "<A_i, -grad L> at margins (5, 15), up to a factor": towards,
    }  # fmt: skip


def _random_rates(scale: Scale) -> dict[str, Any]:
    """Runs that leave the best tokens behind: some best token trails in logits, and ever more."""
    trials, found = scale.pick(30, 100, 1000), {}
    for seed, (n, T, d) in enumerate(RATES[: scale.pick(1, 3, 3)]):
        tokens = equal_score_data(n, T, d, trials, seed)
        run = descend(tokens, ngd(STEP), steps=9000, record=[3000, 9000], init="gaussian", init_scale=0.3)
        lead = run.metrics["margin"]
        found[f"n = {n}, T = {T}, d = {d}"] = {
            "not on the best tokens": int((lead[:, 0] < 0).sum()), "nor later, and further": int(_trails(lead).sum()),
            "of": trials, **slack_of_b2(tokens),
        }  # fmt: skip
    return found


def _trails(lead: Array) -> Any:
    return (lead[:, 0] < 0) & (lead[:, 1] < lead[:, 0])


def what_still_holds(scale: Scale) -> Outcome:
    """The trap from W(0) = 0: all rules go to the max-margin direction of the best tokens."""
    runs = trapped(scale)
    rules = ("gradient descent", "normalized", "flow")
    nearer = all((np.diff(runs[rule]["zero"]["misalignment_best"]) < 0).all() for rule in rules)
    right = all(runs[rule]["zero"]["selected"] == [0, 0] for rule in rules)
    arrived = max(runs[rule]["zero"]["misalignment_best"][-1] for rule in ("normalized", "flow"))
    return within(arrived if nearer and right else np.inf, CLOSE, instances=len(rules),
                  numbers={rule: runs[rule]["zero"] for rule in rules})  # fmt: skip


ARRIVED = "1 - cosine with the max-margin direction after 3000 normalized steps; plain descent must come nearer"
CLAIMS: list[Claim] = [
    erratum(
        id="svm-T4",
        title="Equal scores: gradient descent from any start finds the max-margin direction",
        printed="under Assumptions A and B.2, gradient descent with a step of at most O(1/L_W) has W(k)/|W(k)| -> "
        "W_mm/|W_mm| from every W(0) (Theorem 4).",
        corrected="the same with one sequence, n = 1; with more, wherever attention settles on the best tokens.",
        hypotheses=("Assumption A (logistic loss)", "B.2: all other scores equal", "a separating W exists"),
        tolerance=CLOSE,
        reason=ARRIVED,
        measure_printed=theorem_4_printed,
        measure_corrected=theorem_4_corrected,
    ),
    erratum(
        id="svm-T5",
        title="Nearly equal scores: the same limit",
        printed="for every W(0) there is a delta > 0 such that, if the other scores of each sequence are within delta "
        "of each other, gradient descent has W(k)/|W(k)| -> W_mm/|W_mm| (Theorem 5).",
        corrected="the same with one sequence, n = 1; with more, wherever attention settles on the best tokens.",
        hypotheses=("Assumption A (logistic loss)", "other scores within delta", "a separating W exists"),
        tolerance=CLOSE,
        reason=ARRIVED + "; delta = 0.02 and 0.1",
        measure_printed=theorem_5_printed,
        measure_corrected=theorem_5_corrected,
    ),
    erratum(
        id="svm-L10",
        title="Far out, no direction descends faster than the max-margin one",
        printed="under B.2, for every pi > 0 there is an R such that |W| >= R gives <grad L(W), W/|W|> >= "
        "(1 + pi) <grad L(W), W_mm/|W_mm|> (Lemma 10).",
        corrected="the same for n = 1, and for W that separate the best tokens, with R = |W_mm| log(N kappa) / pi.",
        hypotheses=("Assumption A (logistic loss)", "B.2: all other scores equal", "a separating W exists"),
        tolerance=0.0,
        reason="excess of the ratio of the two sides over its bound, at random W from 1 to 10^4 times |W_mm|",
        measure_printed=lemma_10_printed,
        measure_corrected=lemma_10_corrected,
    ),
    erratum(
        id="svm-E17",
        title="Two sequences can trap each other",
        printed="under B.2 gradient descent reaches the max-margin direction of the best tokens from every start "
        "(Theorems 4 and 5, by Lemma 10).",
        corrected="two sequences that meet B.2, and B.1 too, can hold each other back: from W(0) = -2 e1 e1^T descent "
        "tends to another direction, from W(0) = 0 to the max-margin direction of the best tokens.",
        hypotheses=("B.1: all constraints tight", "B.2: all other scores equal", "a separating W exists"),
        tolerance=CLOSE,
        reason="1 - cosine from W(0) = 0 at the end of normalized descent and of gradient flow to t = 1e100; every "
        "rule must come nearer at every recorded time",
        measure_printed=every_rule_is_trapped,
        measure_corrected=what_still_holds,
    ),
]
