"""Step rules against each other on the data of Figures 2 and 5: caps, momentum, the Polyak step, the logistic loss."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, erratum, within
from attnlab.claims.scale import Scale
from attnlab.data import Tokens, antipodal_signal, optimal_tokens, orthogonal_signal
from attnlab.optim import gd, ngd, ngd_momentum, polyak
from attnlab.svm import solve_margins
from attnlab.theory.fast_rates.compare import cap_binds, time_to
from attnlab.theory.fast_rates.orthogonality import assumption_1, assumption_2
from attnlab.theory.fitting import fit_rate
from attnlab.train import Trajectory, descend

SEED = 2
STEP, CAP, MOMENTUM = 0.025, 100.0, 0.9  # of NGD in Figures 2 and 5
STEPS = 3000  # the paper does not say how many
POLYAK_CAP = {"figure 2": 10.0, "figure 5": 5.0}
FAMILIES = {"figure 2": orthogonal_signal, "figure 5": antipodal_signal}

NOT_THE_THEOREM = "Assumption 1 does not hold on these data (slack below 1): the paper's experiment, not its theorem."


def trained(tokens: Tokens, rule: Any, steps: int, *, loss: str = "exponential", **options: Any) -> Trajectory:
    """A run from W = 0 (or `init`), compared with W_mm."""
    W = solve_margins(tokens, optimal_tokens(tokens)).W
    options = {"init": "zeros", "record": 40} | options
    return descend(tokens, rule, steps=steps, loss=loss, targets={"svm": W}, **options)


def trials(scale: Scale) -> int:
    """Data sets per figure."""
    return scale.pick(3, 6, 20)


def data_slack(tokens: Tokens) -> dict[str, float]:
    """Of Assumptions 1 and 2, the least over trials; they hold from 1 on."""
    each = [tokens[i] for i in range(tokens.trials or 0)]
    return {
        "Assumption 1": min(assumption_1(one).slack for one in each),
        "Assumption 2": np.inf if all(assumption_2(one) for one in each) else 0.0,
    }


def polyak_at_its_cap(scale: Scale) -> Outcome:
    """Entries in which the Polyak step, once its cap binds, and gradient descent with the cap as step differ.

    With the caps of the figures, and on Figure 2's data with one that binds only later.
    """
    steps = scale.pick(50, 500, STEPS)
    differing, counted, tried, first = 0, 0, 0, {}
    for figure, cap in (*POLYAK_CAP.items(), ("figure 2", 1000.0)):
        tokens = FAMILIES[figure](seed=SEED, trials=trials(scale))
        rule = polyak(cap=cap)
        run = trained(tokens, rule, steps, record=range(steps + 1))
        bound = cap_binds(rule, run)
        assert bound is not None
        start = _bound_from(bound[:, :-1])
        tried += len(bound)
        first[f"{figure}, cap {cap:g}"] = start
        if start is None:
            continue
        counted += len(bound)
        there = trained(tokens, rule, start, record=None).W
        ends = [trained(tokens, each, steps - start, record=None, init=there).W for each in (rule, gd(cap))]
        differing += int((ends[0] != ends[1]).sum())
    return within(
        differing, 0, instances=counted, tried=tried, seeds=[SEED],
        numbers={"steps": steps, "step from which the cap binds": first},
    )  # fmt: skip


def _bound_from(bound: NDArray[np.bool_]) -> int | None:
    """The step from which the cap binds in all trials and ever after; None if it never does."""
    free = np.flatnonzero(~bound.all(0))
    start = int(free[-1]) + 1 if len(free) else 0
    return start if start < bound.shape[1] else None


def momentum_is_faster(scale: Scale) -> Outcome:
    """Time to cosine 0.99 with momentum over that without; and over that of plain NGD with ten times the step."""
    ratios, control, times = [], [], {}
    for figure, family in FAMILIES.items():
        tokens = family(seed=SEED, trials=trials(scale))
        plain, heavy, long = (
            time_to(run.steps, run.metrics["misalignment_svm"], 0.99)
            for run in (
                trained(tokens, ngd(STEP, cap=CAP), STEPS),
                trained(tokens, ngd_momentum(STEP, cap=CAP, momentum=MOMENTUM), STEPS),
                trained(tokens, ngd(10 * STEP, cap=10 * CAP), STEPS),
            )
        )
        # Where plain NGD does not come so far, it took longer than the run.
        ratios.append(heavy / np.minimum(plain, STEPS))
        control.append(heavy / long)
        times[figure] = {"NGD": plain, "NGD with momentum": heavy, "NGD, 10 times the step": long}
    return within(
        float(np.max(ratios)), 1.0, instances=np.size(ratios), seeds=[SEED],
        numbers={
            "time to cosine 0.99": times, "with momentum over without, median": float(np.median(ratios)),
            "with momentum over 10 times the step, least to largest": [float(np.min(control)), float(np.max(control))],
        },
        note="The control is plain NGD with 1/(1 - 0.9) = 10 times the step, what momentum makes of a steady gradient.",
    )  # fmt: skip


def logistic_is_as_fast(scale: Scale) -> Outcome:
    """Exponent of 1 - cos in the last decade for both losses, less the proved 1; and the limit."""
    steps = scale.pick(STEPS, 10 * STEPS, 10 * STEPS)
    tokens = orthogonal_signal(seed=SEED, trials=trials(scale))
    exponents, ends, times = {}, {}, {}
    for loss in ("logistic", "exponential"):
        run = trained(tokens, ngd(STEP), steps, loss=loss)
        apart = run.metrics["misalignment_svm"]
        exponents[loss] = fit_rate(run.steps, apart, start=steps / 10)
        ends[loss], times[loss] = float(apart[:, -1].max()), np.median(time_to(run.steps, apart, 0.99))
    worst = max(1.0 - fit.rate for fit in exponents.values())
    return within(
        worst if max(ends.values()) <= 0.01 else np.inf, 0.1, instances=2 * trials(scale), seeds=[SEED],
        slack=data_slack(tokens),
        numbers={
            "exponent in the last decade": {loss: [-fit.high, -fit.rate, -fit.low] for loss, fit in exponents.items()},
            "largest 1 - cos at the end": ends, "median time to cosine 0.99": times, "steps": steps,
        },
        note=NOT_THE_THEOREM,
    )  # fmt: skip


@lru_cache(maxsize=1)  # both halves of the erratum ask for it
def _raced(scale: Scale) -> dict[str, tuple[Trajectory, Trajectory]]:
    """The Polyak step and NGD, both capped as in the figures."""
    runs = {}
    for figure, family in FAMILIES.items():
        tokens = family(seed=SEED, trials=trials(scale))
        rules = polyak(cap=POLYAK_CAP[figure]), ngd(STEP, cap=CAP)
        runs[figure] = tuple(trained(tokens, rule, STEPS) for rule in rules)
    return runs


def polyak_ahead_to_the_end(scale: Scale) -> Outcome:
    """Trials in which the Polyak step is behind NGD at the last step, in direction or in excess loss."""
    behind = {"direction": [], "excess loss": []}
    for one, other in _raced(scale).values():
        for name, metric in (("direction", "misalignment_svm"), ("excess loss", "log_excess_loss")):
            behind[name].append(one.metrics[metric][:, -1] > other.metrics[metric][:, -1])
    either = np.logical_or(*(np.concatenate(each) for each in behind.values()))
    return within(
        int(either.sum()), 0, instances=len(either), seeds=[SEED],
        numbers={"steps": STEPS, "trials behind": {name: int(np.sum(each)) for name, each in behind.items()}},
        note="The number of steps in the figure is not printed; see the crossing for where it matters.",
    )  # fmt: skip


def polyak_ahead_at_first(scale: Scale) -> Outcome:
    """Trials in which the Polyak step does not reach cosine 0.9 first, or is not behind NGD in direction at the end."""
    wrong, crossings, ratios = 0, {}, []
    for figure, runs in _raced(scale).items():
        steps, (one, other) = runs[0].steps, (run.metrics["misalignment_svm"] for run in runs)
        first, second = (time_to(steps, apart, 0.9) for apart in (one, other))
        wrong += int((~((first < second) & (one[:, -1] > other[:, -1]))).sum())
        ratios.append(first / second)
        crossings[figure] = [int(steps[row][-1]) if row.any() else None for row in one < other]
    return within(
        wrong, 0, instances=np.size(ratios), seeds=[SEED],
        numbers={"last step at which PS is ahead": crossings, "time to cosine 0.9 over that of NGD": np.array(ratios)},
    )  # fmt: skip


CLAIMS = [
    Claim(
        id="rates-K14",
        title="At its cap the Polyak step is gradient descent",
        statement="When eta_t >= eta_max, the updates of the Polyak step are identical to standard GD with step size "
        "eta_max (Section 3.3).",
        hypotheses=("the cap binds at every step from some step on",),
        tolerance=0,
        reason="a count of entries of W that are not the same, to the last bit",
        measure=polyak_at_its_cap,
    ),
    Claim(
        id="rates-K27",
        title="Momentum speeds normalized gradient descent up",
        statement="NGD with momentum results in a performance boost over NGD (Section 6 and Figure 2).",
        hypotheses=("data and steps of Figures 2 and 5",),
        tolerance=1.0,
        reason="largest ratio of the times to cosine 0.99, with momentum over without",
        measure=momentum_is_faster,
    ),
    Claim(
        id="rates-K28",
        title="The logistic loss has the same limit and rate",
        statement="NGD on the logistic loss converges to the same W_mm at the same rate, 1 - cos = O(log^2 t / t) "
        "(Section 3.2).",
        hypotheses=("data and step of Figure 2, no cap",),
        tolerance=0.1,
        reason="by how much the exponent of 1 - cos in the last decade falls short of 1; and 1 - cos <= 0.01 at the "
        "end",
        measure=logistic_is_as_fast,
    ),
    erratum(
        id="rates-E11",
        title="With its cap, the Polyak step is ahead of normalized GD only at first",
        printed='"As seen in Fig. 2, PS leads to even faster convergence than NGD across all metrics, including the '
        'train loss" (Section 3.3).',
        corrected="With the caps of Figures 2 and 5, PS reaches cosine 0.9 before NGD and is behind it at step 3000. "
        "(The text goes on: the rates are much faster in the beginning, but slow down as training progresses.)",
        hypotheses=("data, steps and caps of Figures 2 and 5",),
        tolerance=0,
        reason="printed: trials in which PS is behind at step 3000 in direction or loss. Corrected: trials in which it "
        "does not reach cosine 0.9 first, or is not behind in direction at step 3000",
        measure_printed=polyak_ahead_to_the_end,
        measure_corrected=polyak_ahead_at_first,
    ),
]
