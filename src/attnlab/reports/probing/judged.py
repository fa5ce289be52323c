"""From shares to verdicts: chance, ceiling, index, z, and which heads stand out when all are looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.reports.probing.measure import Measured
from attnlab.reports.probing.metrics import Metric

# An index is given where the ceiling is this many deviations above chance; else it divides by noise.
CLEAR = 4.0
# Of the heads that are said to be above chance, this part may be so by chance (Benjamini and Hochberg).
FALSE_DISCOVERIES = 0.05


class HeadVerdict(Enum):
    """What can be said of a head."""

    BOTH = "above chance in both metrics"
    ONE = "above chance in one of two metrics"
    ONLY = "above chance in the one metric that was measured"
    CHANCE = "not distinguishable from chance"
    TOO_LITTLE = "too little data"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One head in one metric, beside the others.

    Attributes:
        share: rho, mean over the halves: least lead over norm, as part of the best margin for the head's selections.
        chance: rho_0, mean over rotated weights.
        ceiling: rho_1, mean over the halves, of the max-margin weights of the other half.
        index: (rho - rho_0) / (rho_1 - rho_0); None where the ceiling is not clear of chance.
        index_range: least and largest over the halves; None likewise.
        share_range: least and largest rho over the halves.
        z: (rho - rho_0) / (sd sqrt(1 + 1/K)), sd pooled over heads.
        p: chance of so large a z.
        above: is it above chance, all heads of the probe considered?
        agreement, chance_agreement: held-out queries for which max-margin weights select as the head does, and the same
            for rotated heads.
    """

    share: float
    chance: float
    ceiling: float
    index: float | None
    index_range: tuple[float, float] | None
    share_range: tuple[float, float]
    z: float
    p: float
    above: bool
    agreement: float
    chance_agreement: float


def judge(measured: Sequence[Measured]) -> tuple[list[Judged | None], float]:
    """All heads in one metric, None for those with too little data; and the pooled deviation of chance."""
    usable = [one for one in measured if not one.reason]
    if not usable:
        return [None] * len(measured), 0.0
    deviation = pooled_deviation([one.chance for one in usable])
    z = np.array([_z(one, deviation) for one in usable])
    p = np.array([0.5 * math.erfc(value / math.sqrt(2.0)) for value in z])
    above = discoveries(p)
    found = [_judged(*row, deviation) for row in zip(usable, z, p, above, strict=True)]
    rest = iter(found)
    return [None if one.reason else next(rest) for one in measured], deviation


def pooled_deviation(chance: Sequence[Array]) -> float:
    """Deviation of rotated shares, each a mean over halves: (K, F) for each head, around the head's own mean.

    >>> pooled_deviation([np.array([[1.0], [3.0]]), np.array([[7.0], [7.0]])])
    1.0
    """
    variances = [np.var(shares.mean(-1), ddof=1) for shares in chance]
    return float(np.sqrt(np.mean(variances)))


def discoveries(p: Array, rate: float = FALSE_DISCOVERIES) -> NDArray[np.bool_]:
    """Which of many p-values stand out, so that of those about `rate` are false (Benjamini and Hochberg).

    >>> discoveries(np.array([0.001, 0.03, 0.04, 0.9]), 0.05).tolist()
    [True, False, False, False]
    """
    order = np.argsort(p)
    limits = rate * np.arange(1, len(p) + 1) / len(p)
    passing = np.flatnonzero(p[order] <= limits)
    found = np.zeros(len(p), dtype=bool)
    if len(passing):
        found[order[: passing[-1] + 1]] = True
    return found


def verdict(judged: Mapping[Metric, Judged | None]) -> HeadVerdict:
    """Of one head, from the metrics in which it was probed."""
    known = [one for one in judged.values() if one is not None]
    if not known or len(known) < len(judged):
        return HeadVerdict.TOO_LITTLE
    count = sum(one.above for one in known)
    if not count:
        return HeadVerdict.CHANCE
    if len(known) == 1:
        return HeadVerdict.ONLY
    return HeadVerdict.BOTH if count == 2 else HeadVerdict.ONE


def _z(measured: Measured, deviation: float) -> float:
    draws = len(measured.chance)
    excess = float(measured.share.mean() - measured.chance.mean())
    scale = deviation * math.sqrt(1.0 + 1.0 / draws)
    if scale > 0:
        return excess / scale
    return 0.0 if excess == 0 else math.copysign(math.inf, excess)


def _judged(measured: Measured, z: float, p: float, above: bool, deviation: float) -> Judged:
    share, chance, ceiling = (float(part.mean()) for part in (measured.share, measured.chance, measured.ceiling))
    index = None
    index_range = None
    if ceiling - chance > CLEAR * deviation:
        index = (share - chance) / (ceiling - chance)
        in_halves = (measured.share - chance) / (ceiling - chance)
        index_range = (float(in_halves.min()), float(in_halves.max()))
    return Judged(
        share=share,
        chance=chance,
        ceiling=ceiling,
        index=index,
        index_range=index_range,
        share_range=(float(measured.share.min()), float(measured.share.max())),
        z=float(z),
        p=float(p),
        above=bool(above),
        agreement=float(measured.agreement.mean()),
        chance_agreement=float(measured.chance_agreement.mean()),
    )
