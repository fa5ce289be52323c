"""How fast does a curve fall? Rates of decay read off log-spaced records.

A family says that `log y = level - rate * x(t)`, with a clock x(t) of its own:

| family | y falls like | clock x(t) |
|---|---|---|
| "power" | t^-rate | log t |
| "log2_over_t" | (log^2 t / t)^rate | log t - 2 log log t |
| "inverse_log" | (log t)^-rate | log log t |
| "stretched" | exp(-rate t^(1/3)) | t^(1/3) |

The rate is a least-squares slope in which every stretch of log t counts the same, however the records are spaced.

Its interval is not a regression error: what a smooth curve leaves after a fit is no noise, and neighbouring records
repeat each other. The range is cut into four parts, equal in log t, and the rate is fitted in each. These local rates
are equal if the family is right; their least and largest are the drift. Where there are several trials, the spread of
their rates gives a Student interval of the mean rate. The interval spans both.

A curve that stays within 1 % has no rate: it is constant, and the fit says so. Trials whose rates differ by more than
half of their mean have no common one, and the fit says that too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student

from attnlab.checks import instance, number, one_of, real_array
from attnlab.data.scale import ordinary, rescaled
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.theory.check import plain

Family = Literal["power", "log2_over_t", "inverse_log", "stretched"]
# log^2 t / t falls only beyond e^2, and log log t needs t > 1: all families start here.
FIRST_STEP = 10.0
PARTS = 4
RECORDS_PER_PART = 3
# Shorter ranges than this many decades tell no rate.
SHORTEST = 1.0
# Local rates that differ by more than this share of the rate are not one rate.
STEADY = 0.25
# Rates of trials that differ by more than this share of their mean are not one rate.
ALIKE = 0.5
# A curve whose logarithm stays within this over the whole range is constant.
FLAT = 0.01
# A family is told from another if it misses the curve by at most this share of what the other misses.
CLEARLY = 0.5
# A family describes a curve if it misses log y by at most this, root mean square.
DESCRIBES = 0.05
CONFIDENCE = 0.95
# Misfits below this are rounding, and no smaller than each other.
ROUNDING = 1e-12

_CLOCKS: dict[str, Callable[[Array], Array]] = {
    "power": np.log,
    "log2_over_t": lambda t: np.log(t) - 2.0 * np.log(np.log(t)),
    "inverse_log": lambda t: np.log(np.log(t)),
    "stretched": np.cbrt,
}
FAMILIES: tuple[Family, ...] = ("power", "log2_over_t", "inverse_log", "stretched")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RateFit:
    """A fitted rate.

    Attributes:
        family: which family; see the table above.
        rate: the mean over trials; positive where the curve falls.
        low, high: the interval: spans the drift and, with several trials, the Student interval of their mean.
        local: local rates in the four parts of the range, mean over trials.
        rates: of each trial, (trials,).
        constant: whether the curve of each trial stays within 1 % over the range, so that it has no rate, (trials,).
        between: the 95 % Student interval of the mean rate over trials; None with one.
        misfit: root mean square of what the fit leaves of log y, the largest over trials.
        first, last: the range of steps.
        records: in that range.
        reason: why the rate tells little, as a sentence; None where the range is long enough, no curve is constant, the
            rate is steady, and that of the trials alike.
    """

    family: Family
    rate: float
    low: float
    high: float
    local: Array
    rates: Array
    constant: NDArray[np.bool_]
    between: tuple[float, float] | None
    misfit: float
    first: float
    last: float
    records: int
    reason: str | None

    @property
    def conclusive(self) -> bool:
        """Is the range long enough, and the rate steady over it and alike in all trials?"""
        return self.reason is None

    @property
    def decades(self) -> float:
        """Length of the range."""
        return float(np.log10(self.last / self.first))

    def against(self, proved: float) -> str:
        """ "faster", "as proved" or "slower": the interval lies above, around or below the proved rate.

        >>> steps = np.geomspace(10, 1e5, 60)
        >>> fit_rate(steps, steps**-2.0).against(1.0)
        'faster'
        """
        proved = number("proved", proved)
        if self.low > proved:
            return "faster"
        return "slower" if self.high < proved else "as proved"

    def __repr__(self) -> str:
        doubt = "" if self.conclusive else f"; {self.reason}"
        return (
            f"RateFit({self.family}: {self.rate:.3g} in [{self.low:.3g}, {self.high:.3g}] "
            f"over {self.first:.3g} to {self.last:.3g}{doubt})"
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON."""
        return plain(vars(self))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FamilyComparison:
    """Which family describes a curve.

    Attributes:
        fits: a `RateFit` by family, best first.
        best: the family that is clearly the best and describes the curve; None where it cannot be told.
        reason: why not, as a sentence; None if it can.
    """

    fits: Mapping[Family, RateFit]
    best: Family | None
    reason: str | None

    def __repr__(self) -> str:
        misses = ", ".join(f"{name} {fit.misfit:.1e}" for name, fit in self.fits.items())
        return f"FamilyComparison({self.best or 'cannot tell: ' + str(self.reason)}; misfits: {misses})"


def fit_rate(
    steps: ArrayLike,
    values: ArrayLike | None = None,
    *,
    log_values: ArrayLike | None = None,
    family: Family = "power",
    start: float | None = None,
    stop: float | None = None,
) -> RateFit:
    """Fit the rate at which positive values fall.

    To fit the exponent a of `exp(-c t^a)` as well, pass `-log y` as values to the family "power": its rate is -a.

    Args:
        steps: recorded steps, (R,), increasing.
        values: what falls, (R,) or (trials, R), positive; or
        log_values: its logarithm, where it underflows.
        family: see the table above.
        start, stop: only the steps from `start` to `stop` count. None: from 10, to the last one. Rates are statements
            about late steps: leave the first ones out.

    Returns:
        A `RateFit`. `reason` says when the range is too short to tell, a curve constant, the rate not steady, or that
        of one trial far from that of another.

    >>> steps = np.geomspace(10, 1e6, 101)
    >>> fit_rate(steps, 3.0 / steps)
    RateFit(power: 1 in [1, 1] over 10 to 1e+06)
    >>> fit_rate(steps[:15], 3.0 / steps[:15]).reason
    'The range from 10 to 50.1 is shorter than a decade.'
    >>> fit_rate(steps, 0.3 + 1e-3 / steps).reason
    'The curve is constant to 1 % from 10 to 1e+06: there is no rate.'
    """
    one_of("family", family, FAMILIES)
    t, logs = _in_range(*_curves(steps, values, log_values), start, stop)
    x, weights = _CLOCKS[family](t), _shares(np.log(t))
    rates, misfits = _slopes(x, logs, weights)
    local = np.stack([_slopes(x[part], logs[:, part], weights[part])[0] for part in _parts(np.log(t))], axis=1)
    drift = local.mean(0)
    low, high = float(drift.min()), float(drift.max())
    between = _mean_interval(rates)
    if between is not None:
        low, high = min(low, between[0]), max(high, between[1])
    rate = float(rates.mean())
    constant = logs.max(1) / 2 - logs.min(1) / 2 <= FLAT / 2  # halves, as logarithms may be as large as floats
    return RateFit(
        family=family,
        rate=rate,
        low=min(low, rate),
        high=max(high, rate),
        local=drift,
        rates=rates,
        constant=constant,
        between=between,
        misfit=float(misfits.max()),
        first=float(t[0]),
        last=float(t[-1]),
        records=len(t),
        reason=_doubt(t, rate, drift, rates, constant),
    )


def compare_families(
    steps: ArrayLike,
    values: ArrayLike | None = None,
    *,
    log_values: ArrayLike | None = None,
    families: Sequence[Family] = FAMILIES,
    start: float | None = None,
    stop: float | None = None,
) -> FamilyComparison:
    """Which family describes a curve best, if that can be told.

    All families have two free numbers, so their misfits compare. One is called the best if it misses the curves by at
    most half of what every other misses, in each trial, describes them to 5 %, and the range has a decade.

    Args:
        steps, values, log_values, start, stop: as for `fit_rate`.
        families: those to compare.

    >>> steps = np.geomspace(10, 1e6, 101)
    >>> compare_families(steps, np.log(steps) ** 2 / steps).best
    'log2_over_t'
    >>> compare_families(steps[:15], 1 / steps[:15]).reason
    'The range from 10 to 50.1 is shorter than a decade.'
    """
    names_given = list(instance("families", families, Sequence, "names of families"))
    for name in names_given:
        one_of("family", name, FAMILIES)
    if len(set(names_given)) < 2:
        raise InputError(message(f"`families` is {families!r}; wanted at least two to compare.", ", ".join(FAMILIES)))
    t, logs = _in_range(*_curves(steps, values, log_values), start, stop)
    fits = {name: fit_rate(t, log_values=logs, family=name) for name in names_given}
    misfits = np.stack([_slopes(_CLOCKS[name](t), logs, _shares(np.log(t)))[1] for name in fits])
    misfits = np.maximum(misfits, ROUNDING)
    unit, _ = ordinary(misfits)
    order = np.argsort(np.sqrt((unit**2).mean(1)), kind="stable")
    names = list(fits)
    first, *others = (names[i] for i in order)
    lead = misfits[order[0]] <= CLEARLY * misfits[order[1:]].min(0)
    reason = None
    if _short(t):
        reason = _short(t)
    elif fits[first].misfit > DESCRIBES:
        reason = f"None describes the curve: the best, {first}, misses it by {100 * fits[first].misfit:.2g} %."
    elif not lead.all():
        close = [name for name in others if not (misfits[order[0]] <= CLEARLY * misfits[names.index(name)]).all()]
        reason = f"{first} and {', '.join(close)} describe this range about equally well."
    return FamilyComparison(
        fits={name: fits[name] for name in (first, *others)}, best=None if reason else first, reason=reason
    )


def _curves(steps: ArrayLike, values: ArrayLike | None, log_values: ArrayLike | None) -> tuple[Array, Array]:
    """Checked steps (R,) and logarithms (trials, R)."""
    if (values is None) == (log_values is None):
        raise InputError(message("Wanted one of `values` and `log_values`.", "pass logarithms where values underflow"))
    name, given = ("values", values) if log_values is None else ("log_values", log_values)
    t, y = real_array("steps", steps), real_array(name, given if given is not None else ())
    if t.ndim != 1 or y.ndim not in (1, 2) or y.shape[-1:] != t.shape:
        raise InputError(
            message(f"`{name}` has shape {y.shape} and `steps` {t.shape}; wanted (R,) or (trials, R), and (R,).")
        )
    if not np.isfinite(t).all() or (t[1:] <= t[:-1]).any():
        raise InputError(message("`steps` must be finite and increase."))
    if values is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            y = np.where(y > 0, np.log(np.where(y > 0, y, 1.0)), np.nan)
    return t, np.atleast_2d(y)


def _in_range(t: Array, logs: Array, start: float | None, stop: float | None) -> tuple[Array, Array]:
    """The records of the range; all of them must have a value, and every part enough of them."""
    first = FIRST_STEP if start is None else number("start", start)
    last = np.inf if stop is None or (isinstance(stop, float) and stop == np.inf) else number("stop", stop)
    if not FIRST_STEP <= first < last:
        wanted = f"wanted {FIRST_STEP:g} <= start < stop"
        hint = "log^2 t / t begins to fall only at e^2"
        raise InputError(message(f"`start` is {first:g} and `stop` {last:g}; {wanted}.", hint))
    inside = (t >= first) & (t <= last)
    t, logs = t[inside], logs[:, inside]
    bad = ~np.isfinite(logs)
    if bad.any():
        at = t[bad.any(0)][0]
        raise InputError(
            message(f"`values` has no positive, finite value at step {at:g}.", "pass `log_values=`, or another range")
        )
    if len(t) < PARTS * RECORDS_PER_PART or min(part.sum() for part in _parts(np.log(t))) < RECORDS_PER_PART:
        wanted = f"wanted {RECORDS_PER_PART} in each quarter of the range of log t"
        given = f"`steps` has {len(t)} records from step {first:g} on, too few for a rate"
        raise InputError(message(f"{given}; {wanted}.", "descend(..., record=20) takes 20 per decade"))
    return t, logs


def _shares(logt: Array) -> Array:
    """The stretch of log t that each record stands for, up to a factor."""
    widths = np.diff(logt)
    return np.append(widths, 0.0) + np.append(0.0, widths)


def _parts(logt: Array) -> list[NDArray[np.bool_]]:
    """The records of each part; parts share the records on their borders."""
    borders = np.linspace(logt[0], logt[-1], PARTS + 1)
    slack = 1e-9 * (logt[-1] - logt[0])
    return [(logt >= a - slack) & (logt <= b + slack) for a, b in pairwise(borders)]


def _slopes(x: Array, logs: Array, weights: Array) -> tuple[Array, Array]:
    """Falling slope of each curve, and the weighted root mean square of what is left."""
    w = weights / weights.sum()
    (x, of_x), (logs, of_y) = ordinary(x), ordinary(logs)
    dx = x - w @ x
    dy = logs - (logs @ w)[:, None]
    slopes = (dy * (w * dx)).sum(1) / (w @ dx**2)
    left = dy - slopes[:, None] * dx
    rates, misfits = rescaled(-slopes, of_y - of_x), rescaled(np.sqrt((left**2) @ w), of_y)
    if not (np.isfinite(rates).all() and np.isfinite(misfits).all()):
        raise InputError(message("`log_values` fall at a rate beyond float64; wanted moderate numbers."))
    return rates, misfits


def _mean_interval(rates: Array) -> tuple[float, float] | None:
    if len(rates) < 2:
        return None
    unit, e = ordinary(rates)
    half = student.ppf(0.5 + 0.5 * CONFIDENCE, len(unit) - 1) * unit.std(ddof=1) / np.sqrt(len(unit))
    return float(rescaled(unit.mean() - half, e)), float(rescaled(unit.mean() + half, e))


def _short(t: Array) -> str | None:
    if np.log10(t[-1] / t[0]) >= SHORTEST * (1.0 - 1e-9):
        return None
    return f"The range from {t[0]:.3g} to {t[-1]:.3g} is shorter than a decade."


def _doubt(t: Array, rate: float, local: Array, rates: Array, constant: NDArray[np.bool_]) -> str | None:
    """Why the rate tells little; None if it does."""
    if _short(t):
        return _short(t)
    if constant.any():
        which = "The curve" if len(constant) == 1 else f"The curve of {constant.sum()} of {len(constant)} trials"
        return f"{which} is constant to {100 * FLAT:g} % from {t[0]:.3g} to {t[-1]:.3g}: there is no rate."
    if np.ptp(local) > STEADY * abs(rate):
        return f"The rate is not steady: {local[0]:.3g} in the first quarter of the range, {local[-1]:.3g} in the last."
    if rates.max() / 2 - rates.min() / 2 > ALIKE * abs(rate) / 2:
        return f"The trials have no common rate: {rates.min():.3g} in one, {rates.max():.3g} in another."
    return None
