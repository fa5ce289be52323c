"""Runs on data sets that trap descent, each shown to meet its hypotheses by code that did not make it."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.scale import Scale
from attnlab.claims.svm.dynamics import STEP, with_unit_radius
from attnlab.data import Tokens, optimal_tokens, trap
from attnlab.data.tokens import Array
from attnlab.optim import gd, ngd
from attnlab.svm import MarginSolutions, solve_margins
from attnlab.theory import assumption_b1, assumption_b2, is_locally_optimal, lipschitz_constants
from attnlab.train import descend, flow

CLOSE = 1e-3  # 1 - cosine that counts as having arrived
# Everything but the spread of scores, which Theorem 5 leaves open.
EQUAL = 1e-10
RULES = ("gradient descent", "normalized descent", "gradient flow")


class Traps(NamedTuple):
    """Data sets of one name that meet the hypotheses.

    Attributes:
        tokens: a batch.
        how: the call that makes each again.
        drawn: how many were made, those that miss a hypothesis included.
        starts: weights from which descent should be trapped, (trials, d, d).
        held: tokens that it should then select, (trials, n).
        best, other: max-margin solutions of the best tokens and of `held`.
        slack: of the hypotheses, on the set closest to missing one.
    """

    tokens: Tokens
    how: tuple[str, ...]
    drawn: int
    starts: Array
    held: NDArray[np.intp]
    best: MarginSolutions
    other: MarginSolutions
    slack: dict[str, float]

    def example(self, trial: int, **more: Any) -> dict[str, Any]:
        """One of them as a counterexample."""
        tokens = self.tokens[trial]
        facts = {"how": self.how[trial], "x": tokens.x, "z": tokens.z, "y": tokens.y, "v": tokens.v}
        return {**facts, "W": self.starts[trial], "selected": self.held[trial], **more}


@cache
def traps(name: str, seeds: int, delta: float = 0.0) -> Traps | None:
    """Of the first `seeds` traps of this name those that meet the hypotheses of what they contradict; None if none.

    Checked by `attnlab.theory` and the certified solver, not by the formulas that made the set: best tokens are unique,
    other scores are within `delta`, some W separates the best tokens, and for "E17" and "plain" B.1 holds.
    """
    made = [_made(name, seed, delta) for seed in range(seeds)]
    checks = [assumption_b2(tokens, tolerance=EQUAL) for tokens, _ in made]
    within = [check.evidence["tied"] == 0 and check.evidence["deviation"] <= delta + EQUAL for check in checks]
    slack = {
        "least gap of scores": min(check.evidence["gap"] for check in checks),
        "largest spread of other scores": max(check.evidence["deviation"] for check in checks),
    }
    meets = np.array(within)
    if name in ("plain", "E17"):
        tight = [assumption_b1(tokens) for tokens, _ in made]
        meets &= [check.holds for check in tight]
        slack["B.1: least room of the interpolator"] = min(check.evidence["room"] for check in tight)
    everything = Tokens.stack([tokens for tokens, _ in made])
    meets &= solve_margins(everything, optimal_tokens(everything)).feasible
    kept = np.flatnonzero(meets).tolist()
    if not kept:
        return None
    tokens = Tokens.stack([made[i][0] for i in kept])
    held = np.array([made[i][0].info["selected"] for i in kept], dtype=np.intp)
    best = solve_margins(tokens, optimal_tokens(tokens))
    slack["margin of the best tokens"] = float(np.min(best.margin))
    return Traps(
        tokens=tokens,
        how=tuple(made[i][1] for i in kept),
        drawn=seeds,
        starts=np.stack([made[i][0].info["start"] for i in kept]),
        held=held,
        best=best,
        other=solve_margins(tokens, held),
        slack=slack,
    )


def _made(name: str, seed: int, delta: float) -> tuple[Tokens, str]:
    """One trap, and the call that makes it."""
    if name == "plain":
        return trap(name), "al.data.trap('plain')"
    if name == "T5":
        return trap(name, seed=seed, delta=delta), f"al.data.trap('T5', seed={seed}, delta={delta:g})"
    return trap(name, seed=seed), f"al.data.trap({name!r}, seed={seed})"


class Runs(NamedTuple):
    """Where runs of one rule went, at rising times.

    Attributes:
        selected: tokens at the end, (trials, n).
        from_best, from_other: 1 - cosine with the two max-margin directions, (trials, records).
        lead: of the best token over the held one in the logits of sequence 0, (trials, records).
    """

    selected: NDArray[np.intp]
    from_best: Array
    from_other: Array
    lead: Array

    def is_held(self, held: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Do the held tokens stay selected, sequence 0 ever further from its best token? (trials,)"""
        falls = (np.diff(self.lead) < 0).all(-1) & (self.lead[:, -1] < 0)
        return falls & (self.selected == held).all(-1)

    def arrives_elsewhere(self) -> NDArray[np.bool_]:
        """Is it at the other direction at the end, and not at that of the best tokens? (trials,)"""
        return (self.from_other[:, -1] <= CLOSE) & (self.from_best[:, -1] > CLOSE)


def trapped(runs: Runs, rule: str, held: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which runs contradict that descent finds the direction of the best tokens.

    Plain gradient descent is as slow as log t: it is judged by where it goes, the others also by where they arrive.
    """
    if rule == "gradient descent":
        return runs.is_held(held)
    return runs.is_held(held) & runs.arrives_elsewhere()


@cache
def runs_on_traps(name: str, seeds: int, delta: float, rule: str, scale: Scale) -> Runs:
    """One rule from the start of each trap."""
    found = traps(name, seeds, delta)
    assert found is not None
    start = found.starts
    options: dict[str, Any] = {
        "targets": {"best": found.best.W, "other": found.other.W},
        "metrics": {"lead": _lead_of_the_follower},
    }
    if rule == "gradient flow":
        run: Any = flow(found.tokens, time=1e100, record=[1e2, 1e4, 1e8, 1e14, 1e30, 1e100], init=start, **options)
    elif rule == "normalized descent":
        run = descend(found.tokens, ngd(STEP), steps=10**4, record=[10**2, 10**3, 10**4], init=start, **options)
    else:
        # Steps of 1 / L_W, each set with its own L_W: unit steps on queries that are shorter by sqrt(L_W).
        roots = np.sqrt([lipschitz_constants(found.tokens[i]).W for i in range(len(start))])
        record = [10**k for k in range(2, scale.pick(4, 4, 6) + 1)]
        scaled = with_unit_radius(found.tokens, 1.0 / roots)
        run = descend(scaled, gd(1.0), steps=record[-1], record=record, init=start * roots[:, None, None], **options)
    names = ("misalignment_best", "misalignment_other", "lead")
    return Runs(np.asarray(run.selected), *(np.asarray(run.metrics[metric]) for metric in names))


def _lead_of_the_follower(view: Any) -> Any:
    return view.logits[0, 0, 0] - view.logits[0, 0, 1]


def held_by_no_support(found: Traps) -> int:
    """On how many sets the held selection is locally optimal, for want of a support token of sequence 0."""
    verdicts = [is_locally_optimal(found.tokens[i], held) for i, held in enumerate(found.held)]
    return sum(verdict.holds and bool(verdict.empty[0]) for verdict in verdicts)
