"""When locally optimal directions disappear (Section 5.2), what descent converges to, and K and Q (Section 3)."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.parts import Count, Limit
from attnlab.claims.scale import Scale
from attnlab.claims.svm.dynamics import STEP, ends
from attnlab.data import Tokens, optimal_tokens, sphere
from attnlab.data.tokens import Array
from attnlab.models import attention
from attnlab.optim import ngd
from attnlab.svm import solve_margin, solve_margins
from attnlab.theory import assumption_b1, assumption_d, is_locally_optimal, locally_optimal_selections
from attnlab.train import descend, flow

SMALL = {"n": 2, "T": 3}  # all nine selections can be solved for
CLOSE = 1e-3
SETTLED = 1e-6  # attention that is left to other tokens
NEARLY = 0.05  # excess of K and Q over the least value


def conjecture(scale: Scale) -> Outcome:
    """Data with B.1 and D, exactly tested: where runs end, and in which direction."""
    astray = Count("runs that do not end on the best tokens")
    arrived = Limit("1 - cos with W_mm after 10^4 normalized steps", tolerance=CLOSE)
    flowed = Limit("1 - cos with W_mm, gradient flow at t = 1e100", tolerance=CLOSE)
    count = scale.pick(20, 40, 400)
    numbers: dict[str, Any] = {}
    slack = {"B.1": np.inf, "D": np.inf}
    drawn = 0
    for d in scale.pick((6,), (3, 6, 12, 24), (3, 6, 12, 24)):
        kept = []
        for seed in range(count):
            tokens = sphere(**SMALL, d=d, seed=seed)
            b1, every = assumption_b1(tokens), assumption_d(tokens)
            if b1 and every and not b1.evidence["tied"]:
                kept.append(tokens)
                slack = {"B.1": min(slack["B.1"], b1.margin), "D": min(slack["D"], every.margin)}
        drawn += count
        numbers[f"d = {d}"] = {"drawn": count, "with B.1 and D": len(kept)}
        if not kept:
            continue
        batch = Tokens.stack(kept)
        run = descend(batch, ngd(STEP), steps=10**4, record=None, init_scale=0.1)
        end = ends(batch, run.W, run.selected)
        astray.add(~end.best)
        arrived.add(end.from_best)
        few = batch[: scale.pick(4, 8, 100)]
        slow = flow(few, time=1e100, record=None, init_scale=0.1)
        flowed.leave_unsolved(int((~slow.success).sum()))
        flowed.add(ends(few, slow.W, slow.selected).from_best[np.asarray(slow.success)])
    note = "A conjecture: that nothing contradicts it here is no proof."
    tallies = (astray, arrived, flowed)
    return outcome(*tallies, tried=drawn, seeds=range(count), numbers=numbers, slack=slack, note=note)


def d_leaves_one_selection(scale: Scale) -> Outcome:
    """Sets with D that have another locally optimal selection, and sets with the stronger condition but without D."""
    others = Count("D, and another selection is locally optimal")
    implied = Count("every best token supports every other selection, and D does not hold")
    count = scale.pick(20, 60, 400)
    numbers: dict[str, Any] = {}
    drawn = 0
    for d in scale.pick((4, 12), (3, 4, 6, 12, 24), (3, 4, 6, 12, 24)):
        strong = plain = 0
        for seed in range(count):
            tokens = sphere(**SMALL, d=d, seed=seed)
            d_holds = bool(assumption_d(tokens))
            stronger = every_best_token_supports(tokens)
            if d_holds:
                others.add(len(locally_optimal_selections(tokens)) > 1)
            if stronger:
                implied.add(not d_holds)
            plain += d_holds
            strong += stronger
        drawn += count
        numbers[f"d = {d}"] = {"drawn": count, "D": plain, "the stronger condition": strong}
    return outcome(others, implied, tried=drawn, seeds=range(count), numbers=numbers)


def every_best_token_supports(tokens: Tokens) -> bool:
    """For every selection that can be separated: is each unselected best token a support token?

    Solved here by itself, selection by selection, from the constraint values.
    """
    best = optimal_tokens(tokens)
    for choice in product(range(tokens.T), repeat=tokens.n):
        selected = np.array(choice)
        solution = solve_margin(tokens, selected, throw=False)
        if not solution.feasible:
            continue
        values = solution.values[np.arange(tokens.n), best]
        errors = solution.value_error[np.arange(tokens.n), best]
        unselected = selected != best
        if (values[unselected] > 1.0 + errors[unselected]).any():
            return False
    return True


def limits_are_locally_optimal(scale: Scale) -> Outcome:
    """Runs from random starts: is what they select locally optimal, and is its direction where they go?"""
    other = Count("settled on a selection that is not locally optimal")
    arrived = Limit("1 - cos with the max-margin direction of the selected tokens", tolerance=CLOSE)
    trials = scale.pick(12, 60, 500)
    steps = scale.pick(10**4, 10**4, 10**5)
    numbers: dict[str, Any] = {}
    drawn = 0
    for seed, d in enumerate(scale.pick((3,), (3, 5, 10), (3, 5, 10))):
        tokens = sphere(5, 5, d, gap=0.1, seed=seed, trials=trials)
        run = descend(tokens, ngd(STEP), steps=steps, record=None, init="uniform")
        end = ends(tokens, run.W, run.selected)
        settled = _left_to_others(tokens, run.W) <= SETTLED
        verdicts = [is_locally_optimal(tokens[i], run.selected[i]) for i in range(trials)]
        optimal = np.array([verdict.holds for verdict in verdicts])
        decided = settled & np.array([verdict.decided for verdict in verdicts])
        other.add(~optimal[decided])
        other.leave_unsolved(int((~decided).sum()))
        arrived.add(end.apart[decided & optimal])
        drawn += trials
        numbers[f"d = {d}"] = {
            "drawn": trials,
            "settled": int(settled.sum()),
            "on the best tokens": int(end.best.sum()),
            "locally optimal": int(optimal[decided].sum()),
        }
    return outcome(other, arrived, tried=drawn, seeds=range(len(numbers)), numbers=numbers)


def _left_to_others(tokens: Tokens, W: Array) -> Array:
    """The attention that W leaves to tokens that it does not select, largest over sequences, (trials,)."""
    return (1.0 - attention(tokens, W).max(-1)).max(-1)


def kq_reaches_the_least_value(scale: Scale) -> Outcome:
    """K and Q by gradient flow: half their squared norms per margin, against the least value of (KQ-SVM).

    Flow keeps K^T K - Q^T Q, so that K and Q become balanced as they grow; steps that are normalized for K and for Q
    apart do not, and there only W = K Q^T can be judged.
    """
    value = Limit("flow: (|K|^2 + |Q|^2) / 2 per least margin, over the least nuclear norm, less 1", tolerance=NEARLY)
    rises = Count("flow: that excess is larger at a later time")
    nuclear = Limit(
        "normalized steps: |K Q^T|_* per least margin, over the least nuclear norm, less 1", tolerance=NEARLY
    )
    weaker = Count("W trained without factors has a smaller excess")
    trials = scale.pick(2, 6, 60)
    tokens = sphere(3, 4, 6, gap=0.1, seed=0, trials=trials)
    metrics: Any = {"squares": _half_of_the_squares, "least": _least_lead}
    run = flow(tokens, time=1e250, record=[1e30, 1e100, 1e250], parameterization="KQ", metrics=metrics)
    finished = np.asarray(run.success)
    ratios = run.metrics["squares"] / run.metrics["least"]  # (trials, times)
    excess = ratios / _least_nuclear_norm(tokens, run.selected)[:, None] - 1.0
    value.add(excess[finished, -1])
    value.leave_unsolved(int((~finished).sum()))
    rises.add(np.diff(excess[finished]) >= 0)
    by_rule = {}
    for factors in ("KQ", "W"):
        plain = descend(tokens, ngd(STEP), steps=10**4, record=[10**4], parameterization=factors, metrics=metrics)
        sizes = np.linalg.norm(plain.W, ord="nuc", axis=(-2, -1)) / plain.metrics["least"][:, -1]
        by_rule[factors] = sizes / _least_nuclear_norm(tokens, plain.selected) - 1.0
    nuclear.add(by_rule["KQ"])
    weaker.add(by_rule["W"] <= by_rule["KQ"])
    numbers = {
        "flow: largest excess at t = 1e30, 1e100, 1e250": excess[finished].max(0),
        "normalized steps on K and Q: median excess": float(np.median(by_rule["KQ"])),
        "normalized steps on W: median excess": float(np.median(by_rule["W"])),
    }
    return outcome(value, rises, nuclear, weaker, tried=trials, seeds=[0], numbers=numbers)


def _half_of_the_squares(view: Any) -> Any:
    return 0.5 * sum((part**2).sum() for part in view.params.values())


def _least_lead(view: Any) -> Any:
    """By how much the selected token leads the next in logits, least over sequences."""
    import jax.numpy as jnp

    ranked = jnp.sort(view.logits, axis=-1)
    return (ranked[..., -1] - ranked[..., -2]).min()


def _least_nuclear_norm(tokens: Tokens, selected: Any) -> Array:
    """Of W that separate the selected tokens, (trials,)."""
    return np.linalg.norm(solve_margins(tokens, selected, norm="nuclear").W, ord="nuc", axis=(-2, -1))


RANDOM = "Unit tokens, queries and head, labels +1 or -1; "
CLAIMS: list[Claim] = [
    Claim(
        id="svm-Conj",
        title="Conjecture: tight constraints and support by the best tokens give global convergence",
        statement="If best tokens are unique and B.1 and D hold, gradient descent with a suitable constant step "
        "converges in direction to W_mm of the best tokens, for almost all data (Section 5.2).",
        hypotheses=(
            "unique best tokens",
            "B.1: all constraints tight",
            "D: the best token supports every other selection",
        ),
        setting=RANDOM + "n = 2, T = 3, d = 3 to 24, those with B.1 and D; small uniform starts, 10^4 normalized steps "
        "of 0.1, and gradient flow to t = 1e100, which is descent with small constant steps; logistic loss.",
        reason="A count of runs that end elsewhere; 1 - cosine with W_mm at most 1e-3, as |W| is hundreds of |W_mm|.",
        measure=conjecture,
    ),
    Claim(
        id="svm-D",
        title="Assumption D leaves one locally optimal selection; a stronger condition implies it",
        statement="Under D the best tokens are the only locally optimal selection. If for every selection each "
        "unselected best token is a support token, D holds (Section 5.2).",
        hypotheses=("unique best tokens",),
        setting=RANDOM + "n = 2, T = 3, d = 3 to 24, all nine selections solved for.",
        reason="Counts of data sets that contradict; the stronger condition is decided apart from D.",
        measure=d_leaves_one_selection,
    ),
    Claim(
        id="svm-Def2",
        title="Descent converges to locally optimal directions only",
        statement="The directions that gradient descent converges to are the locally optimal ones of Definition 2 "
        "(Section 5.2 calls the evidence strong; it is not proved).",
        hypotheses=("linear head", "scores apart by at least 0.1"),
        setting=RANDOM + "n = T = 5, d = 3, 5, 10 (3 at smoke), score gap 0.1 as in Figure 5; uniform starts, 10^4 "
        "normalized steps of 0.1 (10^5 at paper scale, where slow runs are among the draws), logistic loss.",
        reason="A count of runs that settled (attention left to other tokens at most 1e-6) on a selection that is not "
        "locally optimal, the others being unsolved; and 1 - cosine with the direction of the selection.",
        measure=limits_are_locally_optimal,
    ),
    Claim(
        id="svm-KQ",
        title="Descent on K and Q is biased towards the global minimum of (KQ-SVM)",
        statement="Gradient descent on K and Q tends to the least of (|K|^2 + |Q|^2)/2 that separates the selected "
        "tokens, which is the least nuclear norm (Section 3, of Figures 1 and 7).",
        hypotheses=("linear head", "m = d"),
        setting=RANDOM + "n = 3, T = 4, d = 6, score gap 0.1; K and Q from uniform starts by gradient flow to "
        "t = 1e250, and by 10^4 normalized steps of 0.1; logistic loss.",
        reason="Excess of (|K|^2 + |Q|^2)/2 per least margin over the certified least nuclear norm of the same "
        "selection: it must fall with time, to 5 % at t = 1e250. It falls slowly (2.2 % were left on six sets of "
        "(2, 3, 4)), so that whether it tends to 0 is not decided here. For normalized steps, which do not keep K and "
        "Q balanced, the same of |K Q^T|_*, which must also beat training W itself.",
        measure=kq_reaches_the_least_value,
    ),
]
