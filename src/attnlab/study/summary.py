"""Shares and medians over trials, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from attnlab.checks import shown
from attnlab.errors import InputError, message
from attnlab.study.table import library

How = Literal["median", "share", "mean"]
HOWS = ("median", "share", "mean")
LEVEL = 0.95
DRAWS = 2000  # of the bootstrap


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def summarized(table: Any, by: Sequence[str], of: Sequence[str], how: How | None) -> Any:
    """One row for each group and each of the columns: value, low, high, and how many trials it is of.

    `trials` counts those with a number, `nan` those without, `failed` those with an error.
    """
    pandas = library("pandas", "A summary")
    rows = []
    grouped = table.groupby(list(by), sort=False, dropna=False) if by else [((), table)]
    for key, group in grouped:
        settings = dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True))
        failed = int(group["error"].notna().sum())
        for name in of:
            chosen = how or usual(table[name])
            values = group.loc[group["error"].isna(), name].to_numpy(dtype=float)
            numbers = values[~np.isnan(values)]
            estimate = ESTIMATES[chosen](name, numbers)
            facts = {"trials": len(numbers), "nan": len(values) - len(numbers), "failed": failed}
            rows.append({**settings, "of": name, "how": chosen, **estimate._asdict(), **facts})
    return pandas.DataFrame(rows)


def usual(column: Any) -> How:
    """Shares of booleans, medians of numbers."""
    return "share" if str(column.dtype).startswith("bool") else "median"


def share(name: str, values: np.ndarray) -> Estimate:
    """Share of true values, with Wilson's interval.

    >>> [round(x, 3) for x in share("best", np.array([1.0, 1.0, 0.0, 1.0]))]
    [0.75, 0.301, 0.954]
    """
    if not np.isin(values, (0.0, 1.0)).all():
        raise InputError(
            message(f"`of` is {name!r}, whose values are not true or false; a share has none.", "how='median'")
        )
    if not len(values):
        return Estimate(np.nan, np.nan, np.nan)
    from attnlab.theory.proportion import wilson  # loads JAX

    low, high = wilson(values.sum(), len(values))
    return Estimate(float(values.mean()), float(low), float(high))


def median(name: str, values: np.ndarray) -> Estimate:
    """The median, with an interval between two of the values: distribution-free, of at least 95 %.

    The k-th smallest and the k-th largest of m values enclose the median with probability
    1 - 2 P(Binomial(m, 1/2) < k). With fewer than 6 values no k will do, and low and high are NaN.

    >>> median("loss", np.arange(11.0))
    Estimate(value=5.0, low=1.0, high=9.0)
    """
    from scipy.stats import binom

    if not len(values):
        return Estimate(np.nan, np.nan, np.nan)
    ordered = np.sort(values)
    outside = int(binom.ppf((1 - LEVEL) / 2, len(values), 0.5))
    if binom.cdf(outside, len(values), 0.5) > (1 - LEVEL) / 2:
        outside -= 1
    if outside < 0:
        return Estimate(_middle(ordered), np.nan, np.nan)
    return Estimate(_middle(ordered), float(ordered[outside]), float(ordered[-1 - outside]))


def _middle(ordered: np.ndarray) -> float:
    """The median; of two infinite neighbours that infinity."""
    upper, lower = ordered[len(ordered) // 2], ordered[(len(ordered) - 1) // 2]
    return float(lower) if lower == upper else float(lower) / 2 + float(upper) / 2


def mean(name: str, values: np.ndarray) -> Estimate:
    """The mean, with its percentile bootstrap interval; the draws are the same every time."""
    if not len(values):
        return Estimate(np.nan, np.nan, np.nan)
    rng = np.random.default_rng(0)
    with np.errstate(invalid="ignore", over="ignore"):  # values may be infinite
        means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(DRAWS)]
        low, high = np.quantile(means, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return Estimate(float(values.mean()), float(low), float(high))


ESTIMATES: dict[str, Callable[[str, np.ndarray], Estimate]] = {"share": share, "median": median, "mean": mean}


def names(argument: str, given: Any, known: Sequence[str]) -> list[str]:
    """One name or several, each of them a column."""
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
        raise InputError(message(f"`{argument}` is {shown(given)}; wanted a name, or a list of names."))
    for name in listed:
        if name not in known:
            raise InputError(message(f"`{argument}` has {name!r}; wanted some of {', '.join(known)}."))
    return list(listed)
