"""Tallies: what a claim judges, part by part, each with how much it could have noticed.

| tally | judges | notices |
|---|---|---|
| `Bound` | measured <= promised | a promise smaller than the closest instance: see `tightness` |
| `Identity` | a relative error against a tolerance | any error above the tolerance |
| `Limit` | a value that should become small | a value above the tolerance |
| `Count` | that nothing contradicts | one contradiction |
| `Share` | a share of successes against a level, by its interval | a share off by the width of the interval |
| `Mean` | a mean against a level, by its standard error | a mean off by two standard errors |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnlab.checks import real_array
from attnlab.claims.given import alike, level, part_name, truths
from attnlab.claims.part import Part as Part
from attnlab.claims.verdict import Verdict
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message

# Parts whose measured over promised value stays below this cannot tell a right constant from a wrong one.
TIGHT = 1e-3
# A part with a larger share of unsolved instances is called unsolved.
UNSOLVED = 0.05
# Quantile of the intervals of shares and means: two standard errors.
SIGMAS = 2.0


@dataclass
class Tally:
    """What all tallies share: a name, the instances seen, those that stayed unsolved, the guard of the formula."""

    name: str
    guard: str = field(default="", kw_only=True)
    instances: int = field(default=0, init=False)
    unsolved: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """The name is words, and what is compared with is a number."""
        part_name(self.name)
        for name in ("rounding", "tolerance", "at_least", "at_most"):
            given = getattr(self, name, None)
            if given is not None or (name == "tolerance" and hasattr(self, name)):
                setattr(self, name, level(name, given))

    def leave_unsolved(self, count: int) -> None:
        """So many instances could not be judged: a search did not finish, or a chosen one missed a hypothesis."""
        self.unsolved += int(count)

    def part(self) -> Part:
        """What was found."""
        raise NotImplementedError

    def _part(self, verdict: Verdict, **facts: Any) -> Part:
        tried = self.instances + self.unsolved
        if verdict is not Verdict.FAILS and tried and self.unsolved > UNSOLVED * tried:
            verdict = Verdict.UNSOLVED
        return Part(
            name=self.name,
            verdict=verdict,
            instances=self.instances,
            unsolved=self.unsolved,
            guard=self.guard,
            **facts,
        )


@dataclass
class Bound(Tally):
    """measured <= promised, as their ratio.

    >>> bound = Bound("|grad| / bound")
    >>> bound.add(np.array([0.1, 0.5]), 2.0)
    >>> bound.part().verdict.value, bound.part().tightness
    ('holds', 0.25)
    """

    rounding: float = field(default=1e-9, kw_only=True)
    tightness: float = field(default=-np.inf, init=False)
    silent: int = field(default=0, init=False)

    def add(self, measured: Any, promised: Any, *, says: Any = True) -> None:
        """Upper bounds: `measured` should be at most `promised`; both are at least 0, or both are NaN-free numbers with
        a positive promise. Where `says` is False the promise is empty there: counted, not judged."""
        measured, promised, says = alike(measured=measured, promised=promised, says=says)
        nothing = (measured <= 0) & (promised == 0)  # 0 <= 0
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratios = np.where(nothing, 0.0, measured / promised)
        ratios = np.where((promised < 0) & ~nothing, np.inf, ratios)  # a negative promise is broken by a length
        self._take(ratios, says)

    def add_at_least(self, measured: Any, promised: Any, *, says: Any = True) -> None:
        """Lower bounds: `measured` should be at least `promised`, which is positive."""
        self.add(promised, measured, says=says)

    def add_logs(self, measured: Any, promised: Any, *, says: Any = True) -> None:
        """Upper bounds of positive numbers too large or small for floats, by their logarithms."""
        measured, promised, says = alike(measured=measured, promised=promised, says=says)
        with np.errstate(over="ignore", invalid="ignore"):
            ratios = np.exp(measured - promised)
        both_zero = (measured == -np.inf) & (promised == -np.inf)
        self._take(np.where(both_zero, 0.0, ratios), says)

    def add_ratios(self, ratios: Any, *, says: Any = True) -> None:
        """Upper bounds as measured over promised."""
        ratios, says = alike(ratios=ratios, says=says)
        self._take(ratios, says)

    def _take(self, ratios: Array, says: Any) -> None:
        judged = ratios[np.asarray(says, bool)]
        self.silent += ratios.size - judged.size
        self.instances += judged.size
        if judged.size:
            self.tightness = float(np.maximum(self.tightness, judged.max()))  # NaN stays

    def part(self) -> Part:
        if not self.instances:
            verdict = Verdict.VACUOUS if self.silent else Verdict.NOT_APPLICABLE
            return self._part(verdict, form="bound", worst=None, limit=1.0, tightness=None, notices="nothing")
        held = self.tightness <= 1.0 + self.rounding  # NaN fails
        verdict = Verdict.FAILS if not held else Verdict.HOLDS if self.tightness >= TIGHT else Verdict.LOOSE
        return self._part(
            verdict,
            form="bound",
            worst=self.tightness,
            limit=1.0,
            tightness=max(self.tightness, 0.0) if held else self.tightness,
            notices=_room(self.tightness),
        )


def _room(tightness: float) -> str:
    """How much smaller a promise would still hold."""
    if not tightness <= 1.0:
        return "a promise this small is broken" if tightness > 1.0 + 1e-6 else "attained"
    if tightness > 0.99:
        return "attained: no smaller constant would hold"
    if tightness <= 0:
        return "no positive constant, however small, would be broken"
    return f"a constant {1.0 / tightness:.3g} times smaller would still hold"


@dataclass
class Identity(Tally):
    """Two sides that are equal: their relative error stays below a tolerance that rounding explains."""

    tolerance: float = field(kw_only=True)
    error: float = field(default=-np.inf, init=False)

    def add(self, errors: Any) -> None:
        """Relative errors."""
        errors = np.abs(real_array("errors", errors)).ravel()
        self.instances += errors.size
        if errors.size:
            self.error = float(np.maximum(self.error, errors.max()))

    def part(self) -> Part:
        if not self.instances:
            return self._part(Verdict.NOT_APPLICABLE, form="identity", worst=None, limit=self.tolerance, tightness=None)
        held = self.error <= self.tolerance
        return self._part(
            Verdict.HOLDS if held else Verdict.FAILS,
            form="identity",
            worst=self.error,
            limit=self.tolerance,
            tightness=1.0 if held else None,
            notices=f"a relative error above {self.tolerance:.2g} would be seen",
        )


@dataclass
class Limit(Tally):
    """A value that theory says becomes small (or negative), against what is asked of it here."""

    tolerance: float = field(kw_only=True)
    value: float = field(default=-np.inf, init=False)

    def add(self, values: Any) -> None:
        """Values that should be at most the tolerance."""
        values = real_array("values", values).ravel()
        self.instances += values.size
        if values.size:
            self.value = float(np.maximum(self.value, values.max()))

    def part(self) -> Part:
        if not self.instances:
            return self._part(Verdict.NOT_APPLICABLE, form="limit", worst=None, limit=self.tolerance, tightness=None)
        return self._part(
            Verdict.HOLDS if self.value <= self.tolerance else Verdict.FAILS,
            form="limit",
            worst=self.value,
            limit=self.tolerance,
            tightness=None,
            notices=f"a value above {self.tolerance:.2g} would be seen",
        )


@dataclass
class Count(Tally):
    """Cases of which none may contradict."""

    contradictions: int = field(default=0, init=False)

    def add(self, contradicts: Any) -> None:
        """True where an instance contradicts."""
        contradicts = truths("contradicts", contradicts).ravel()
        self.instances += contradicts.size
        self.contradictions += int(contradicts.sum())

    def part(self) -> Part:
        if not self.instances:
            return self._part(Verdict.NOT_APPLICABLE, form="count", worst=None, limit=0.0, tightness=None)
        return self._part(
            Verdict.HOLDS if not self.contradictions else Verdict.FAILS,
            form="count",
            worst=float(self.contradictions),
            limit=0.0,
            tightness=None,
            notices=f"one contradiction in {self.instances} would be seen",
        )


@dataclass
class Share(Tally):
    """A share of successes that should be at least (or at most) a level; the interval decides."""

    at_least: float | None = field(default=None, kw_only=True)
    at_most: float | None = field(default=None, kw_only=True)
    successes: int = field(default=0, init=False)

    def add(self, succeeded: Any) -> None:
        """True where an instance is a success."""
        succeeded = truths("succeeded", succeeded).ravel()
        self.instances += succeeded.size
        self.successes += int(succeeded.sum())

    def interval(self) -> tuple[float, float]:
        """Wilson's interval at two standard errors."""
        n, k, z = self.instances, self.successes, SIGMAS
        middle = (k + z**2 / 2.0) / (n + z**2)
        half = z / (n + z**2) * np.sqrt(k * (n - k) / n + z**2 / 4.0)
        return float(middle - half), float(middle + half)

    def part(self) -> Part:
        level = self.at_least if self.at_least is not None else self.at_most
        if not self.instances:
            return self._part(Verdict.NOT_APPLICABLE, form="share", worst=None, limit=level, tightness=None)
        low, high = self.interval()
        share = self.successes / self.instances
        # A share of one of all, or of none, is as stated however few they are: no instance contradicts it.
        everywhere = self.at_least == 1.0 or self.at_most == 0.0
        if everywhere:
            verdict = Verdict.HOLDS if share == level else Verdict.FAILS
        else:
            verdict = _by_interval(low, high, self.at_least, self.at_most)
        return self._part(
            verdict,
            form="share",
            worst=share,
            limit=level,
            tightness=None,
            notices=f"{self.successes} of {self.instances}, interval {low:.3g} to {high:.3g}",
        )


@dataclass
class Mean(Tally):
    """A mean that should be at least (or at most) a level; two standard errors decide."""

    at_least: float | None = field(default=None, kw_only=True)
    at_most: float | None = field(default=None, kw_only=True)
    values: list[float] = field(default_factory=list, init=False)

    def add(self, values: Any) -> None:
        """One value per independent instance."""
        values = real_array("values", values).ravel()
        self.instances += values.size
        self.values.extend(values.tolist())

    def part(self) -> Part:
        level = self.at_least if self.at_least is not None else self.at_most
        if not self.instances:
            return self._part(Verdict.NOT_APPLICABLE, form="mean", worst=None, limit=level, tightness=None)
        with np.errstate(over="ignore", invalid="ignore"):  # infinite values have no mean: NaN fails
            mean = float(np.mean(self.values))
            error = float(np.std(self.values, ddof=1) / np.sqrt(self.instances)) if self.instances > 1 else np.inf
        low, high = mean - SIGMAS * error, mean + SIGMAS * error
        return self._part(
            _by_interval(low, high, self.at_least, self.at_most),
            form="mean",
            worst=mean,
            limit=level,
            tightness=None,
            notices=f"{mean:.3g} ± {SIGMAS * error:.2g} (2 standard errors, {self.instances} instances)",
        )


def _by_interval(low: float, high: float, at_least: float | None, at_most: float | None) -> Verdict:
    if at_least is not None and at_most is None:
        wrong, right = high < at_least, low >= at_least
    elif at_most is not None and at_least is None:
        wrong, right = low > at_most, high <= at_most
    else:
        given = f"`at_least` is {at_least} and `at_most` is {at_most}"
        raise InputError(message(f"{given}; wanted a number for one of them.", "at_least=0.5"))
    if wrong or np.isnan(low):
        return Verdict.FAILS
    return Verdict.HOLDS if right else Verdict.TOO_FEW


def together(parts: Iterable[Part]) -> Verdict:
    """The verdict on a statement of several parts.

    One part that fails is enough. Parts that say nothing, or that no instance met, do not decide beside others that do.
    A statement all of whose bounds are far from tight does not plainly hold, however many counts stand beside them.
    """
    parts = list(parts)
    verdicts = {part.verdict for part in parts}
    for decisive in (Verdict.FAILS, Verdict.UNSOLVED, Verdict.TOO_FEW):
        if decisive in verdicts:
            return decisive
    if not verdicts & {Verdict.HOLDS, Verdict.LOOSE}:
        return Verdict.VACUOUS if Verdict.VACUOUS in verdicts else Verdict.NOT_APPLICABLE
    telling = [part for part in parts if part.verdict in (Verdict.HOLDS, Verdict.LOOSE) and part.form != "count"]
    if telling and all(part.verdict is Verdict.LOOSE for part in telling):
        return Verdict.LOOSE
    return Verdict.HOLDS


def least(*slacks: Mapping[str, float]) -> dict[str, float]:
    """By name, the least slack of all."""
    merged: dict[str, float] = {}
    for slack in slacks:
        for name, value in slack.items():
            merged[name] = min(merged.get(name, np.inf), float(value))
    return merged
