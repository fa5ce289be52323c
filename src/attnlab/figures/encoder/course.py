"""What the paper says of training at several widths, check by check, on the runs of one reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Verdict
from attnlab.data.tokens import Array
from attnlab.figures.encoder.runs import EARLY, EPOCHS, Plan, by_width, lost, middles, straight
from attnlab.figures.figure import Arrays, Check, Facts
from attnlab.figures.rates.curves import for_good, number, spelt

# Linear convergence: so many times smaller at the end, and a line through log error explains so much of it.
SMALLER, STRAIGHT = 1e4, 0.98
GAP = 100.0  # between the narrowest network and the next
SMALL = 0.1  # steps and ways of the kernel are small at this part of what they were


def long_plan(scale: Scale) -> Plan:
    """The paper's epochs, with kernels at two dozen of them; a few epochs at smoke scale."""
    if scale is Scale.SMOKE:
        return Plan(epochs=24, every=4, pairs=(0, 12, 23), early=12)
    pairs = (0, 2, 5, 10, 20, 35, EARLY, 75, 100, 150, 250, EPOCHS - 1)
    return Plan(epochs=EPOCHS, every=5, pairs=pairs, early=EARLY)


def short_plan(scale: Scale) -> Plan:
    """The same epochs, with kernels at start, early epoch and end only."""
    plan = long_plan(scale)
    return Plan(epochs=plan.epochs, every=plan.every, pairs=(0, plan.early), early=plan.early)


def too_brief(facts: Facts) -> str:
    """Why a run decides nothing, if it does not."""
    epochs = facts["epochs"]
    return f"Runs of {epochs} of the paper's {EPOCHS} epochs decide nothing." if epochs < EPOCHS else ""


@dataclass(frozen=True, kw_only=True)
class Course:
    """Numbers of every run of one reading, each (widths, seeds); NaN where a width has no such seed.

    Attributes:
        there: which runs there are.
        start, early, end: mean squared error at epoch 0, at the early epoch, and at the end.
        factor, fit: per epoch from the early epoch on, and R^2 of the line.
        step: length of the step at the early epoch over the largest.
        slow: the epoch from which on steps stay at most SMALL of the largest.
        first, late, whole: kernel distance from 0 to the early epoch, from there to the end, from 0 to the end.
    """

    widths: Array
    wide: np.ndarray
    there: np.ndarray
    start: Array
    early: Array
    end: Array
    factor: Array
    fit: Array
    step: Array
    slow: Array
    first: Array
    late: Array
    whole: Array

    @classmethod
    def of(cls, curves: Mapping[str, Array], arrays: Arrays, facts: Facts, widths: Array | None = None) -> Course:
        """From the arrays of `train_widths`."""
        widths = arrays["widths"] if widths is None else widths
        epochs, early = arrays["epochs"], facts["early epoch"]
        mse, step = curves["mse"], curves["step"]
        at = int(np.flatnonzero(epochs == early)[0])
        factor, fit = straight(epochs.astype(float), mse, early)
        finite = np.where(np.isfinite(step), step, 0.0)
        largest = finite.max(-1)  # (widths, seeds)
        small = step <= SMALL * largest[..., None]
        return cls(
            widths=widths,
            wide=widths >= facts["n"],
            there=~np.isnan(mse[..., 0]),
            start=mse[..., 0],
            early=mse[..., at],
            end=mse[..., -1],
            factor=factor,
            fit=fit,
            step=step[..., at] / np.where(largest > 0, largest, np.nan),
            slow=np.stack([for_good(epochs, one) for one in small]),
            first=curves["first"],
            late=curves["late"],
            whole=curves["away"][..., -1],
        )

    def of_wide(self, seen: np.ndarray) -> np.ndarray:
        """Booleans of all runs that are at least as wide as there are sequences, (runs,)."""
        return seen[self.wide][self.there[self.wide]]

    def of_neighbours(self, seen: np.ndarray) -> np.ndarray:
        """Booleans (widths - 1, seeds) of a width and the next, where both have the seed."""
        return seen[self.there[1:] & self.there[:-1]]


def width_checks(course: Course, facts: Facts) -> list[Check]:
    """What Figures 2 and 9 say, in the order of their panels."""
    early = facts["early epoch"]
    with np.errstate(invalid="ignore"):
        converged = course.end * SMALLER <= course.start
        line = course.fit >= STRAIGHT
        still = course.end <= SMALL * course.early
        slow = course.step <= SMALL
        settled = course.late <= SMALL * course.first
        stuck = course.end[:1] >= GAP * course.end[1:2]
        steadier = course.late[1:] < course.late[:-1]
    both = course.there[:1] & course.there[1:2]
    return [
        Check(f"for m >= n the error falls {SMALLER:g}-fold in every run", course.of_wide(converged), at_least=1.0),
        Check(
            f"for m >= n its logarithm falls along a line from epoch {early} on (R^2 >= {STRAIGHT:g})",
            course.of_wide(line),
        ),
        Check(f"m = {course.widths[0]} ends {GAP:g} times above m = {course.widths[1]}", stuck[both]),
        Check(f"for m >= n steps at epoch {early} are at most {SMALL:g} of the largest", course.of_wide(slow)),
        Check(f"while the error still falls {1 / SMALL:g}-fold after it", course.of_wide(still)),
        Check(
            f"for m >= n the kernel moves at most {SMALL:g} as far after epoch {early} as before",
            course.of_wide(settled),
        ),
        Check(f"the wider, the less the kernel moves after epoch {early}", course.of_neighbours(steadier)),
    ]


def width_table(course: Course, curves: Mapping[str, Array], facts: Facts) -> dict[str, dict[str, Any]]:
    """Medians over seeds by width, and the range of the error at the end."""
    early = facts["early epoch"]
    widths = course.widths
    ends = [[number(np.nanmin(one)), number(np.nanmax(one))] for one in course.end]
    return {
        "seeds": by_width(widths, course.there.sum(1)),
        "seeds that overflow": by_width(widths, lost(curves["mse"])),
        "error at epoch 0": by_width(widths, middles(course.start)),
        f"error at epoch {early}": by_width(widths, middles(course.early)),
        "error at the end": by_width(widths, middles(course.end)),
        "error at the end, least and largest": {f"m = {m}": pair for m, pair in zip(widths, ends, strict=True)},
        f"factor per epoch from epoch {early} on": by_width(widths, middles(course.factor)),
        "R^2 of the line": by_width(widths, middles(course.fit)),
        f"step at epoch {early} over the largest": by_width(widths, middles(course.step)),
        f"steps stay below {SMALL:g} of the largest from epoch": {
            f"m = {m}": spelt(value) for m, value in zip(widths, middles(course.slow), strict=True)
        },
        f"kernel distance, epoch 0 to {early}": by_width(widths, middles(course.first)),
        f"kernel distance, epoch {early} to the end": by_width(widths, middles(course.late)),
        "kernel distance, epoch 0 to the end": by_width(widths, middles(course.whole)),
        "largest eigenvalue of K at the end over the start": by_width(
            widths, middles(curves["largest"][..., -1] / curves["largest"][..., 0])
        ),
    }


def row(values: Array) -> str:
    """Medians by width in words."""
    return ", ".join(f"{value:.2g}" if np.isfinite(value) else "overflow" for value in values)


def other_reading(words: str, course: Course, curves: Mapping[str, Array], facts: Facts) -> tuple[str, dict[str, Any]]:
    """A sentence on a reading that is not the main one, and which checks it shows."""
    checks = width_checks(course, facts)
    failed = [check for check in checks if check.part.verdict is Verdict.FAILS]
    seen = sum(check.part.verdict.stands for check in checks)
    overflow = int(lost(curves["mse"]).sum())
    sentence = f"{words[0].upper()}{words[1:]}: median errors end at {row(middles(course.end))}"
    sentence += f" (m = {', '.join(str(m) for m in course.widths)})"
    if overflow:
        sentence += f", {overflow} of {int(course.there.sum())} runs overflow"
    sentence += f"; {seen} of {len(checks)} checks are seen"
    if failed:
        sentence += ", not: " + "; ".join(f"{check.name} ({check.measured})" for check in failed)
    shown = {check.name: f"{check.measured}, {check.part.verdict.value}" for check in checks}
    return f"{sentence}.", {"checks": shown, **width_table(course, curves, facts)}
