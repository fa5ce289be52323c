"""Runs whose attention settles on several tokens: which tokens are kept, and what theory predicts for the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.data.tokens import Tokens
from attnlab.svm import MarginStatus, combine, finite_part, solve_generalized, solve_margins
from attnlab.train import misalignment

# A token counts as kept above this weight (Section 6 of *Transformers as Support Vector Machines*).
KEPT = 1e-3
# What becomes of an attempt; the figures take the first kind.
RETAINED, BETWEEN, NOTHING_MASKED, INFEASIBLE, UNFINISHED = range(5)
REASONS = {
    RETAINED: "retained",
    BETWEEN: "dropped: a weight between the two thresholds",
    NOTHING_MASKED: "dropped: no token is masked",
    INFEASIBLE: "dropped: the max-margin problem has no solution",
    UNFINISHED: "dropped: the flow did not reach the final time",
}


def sort_out(attention: np.ndarray, masked: float) -> np.ndarray:
    """For each trial, the paper's filter: every weight above `KEPT` or below `masked`, and some token masked.

    >>> import numpy as np
    >>> sort_out(np.array([[[1.0, 1e-9]], [[0.9, 1e-5]], [[0.5, 0.5]]]), masked=1e-6).tolist()
    [0, 1, 2]
    """
    between = ((attention >= masked) & (attention <= KEPT)).any((-2, -1))
    nothing = ~(attention < masked).any((-2, -1))
    return np.where(between, BETWEEN, np.where(nothing, NOTHING_MASKED, RETAINED))


def tally(reasons: np.ndarray) -> dict[str, int]:
    """How many attempts went which way."""
    counted = {told: int((reasons == reason).sum()) for reason, told in REASONS.items()}
    return {"attempts": len(reasons), **{told: count for told, count in counted.items() if count}}


@dataclass(frozen=True)
class Predictions:
    """Directions predicted for the weights of each trial; NaN where there is none.

    Attributes:
        margin: W^mm, max-margin with the kept tokens level, (trials, d, d).
        mixture: W^SVMeq, the mixture of W^mm and W^fin nearest to the trained weights.
        single: W^1token, max-margin for the most attended tokens alone.
        feasible: is there a W^mm? (trials,).
        gap: of W^mm.
        residual: of W^fin, in units of log attention.
    """

    margin: np.ndarray
    mixture: np.ndarray
    single: np.ndarray
    feasible: np.ndarray
    gap: np.ndarray
    residual: np.ndarray


def predict(tokens: Tokens, W: np.ndarray, attention: np.ndarray) -> Predictions:
    """What Section 6 of *Transformers as Support Vector Machines* predicts from the kept tokens of trained weights."""
    trials = len(W)
    margin, mixture = np.full(W.shape, np.nan), np.full(W.shape, np.nan)
    gap, residual = np.full(trials, np.nan), np.full(trials, np.nan)
    for i in range(trials):
        data, kept = tokens[i], attention[i] > KEPT
        found = solve_generalized(data, kept, throw=False)
        if not found.feasible or found.status is MarginStatus.UNCONSTRAINED or not found.W.any():
            continue
        finite = finite_part(data, attention[i], kept, throw=False)
        margin[i], mixture[i] = found.W, combine(finite.W, found.W, W[i]).W
        gap[i], residual[i] = found.gap, finite.residual
    single = solve_margins(tokens, attention.argmax(-1)).W
    return Predictions(margin, mixture, single, np.isfinite(gap), gap, residual)


def apart(path: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """1 - corr of each trial's recorded weights (trials, records, d, d) with its direction; NaN without one."""
    found = np.full(path.shape[:2], np.nan)
    there = np.isfinite(direction).all((-2, -1))
    if there.any():
        found[there] = misalignment(path[there], direction[there][:, None])
    return found


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the first axis and its standard error, NaN left out; NaN where there is nothing (or one, for errors).

    >>> [float(a) for a in mean_and_error(np.array([1.0, 3.0, np.nan]))]
    [2.0, 1.0]
    """
    there = np.isfinite(values)
    count = there.sum(0)
    mean = np.where(there, values, 0.0).sum(0) / np.where(count, count, np.nan)
    squares = np.where(there, values - mean, 0.0) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(squares.sum(0) / np.where(count > 1, count - 1, np.nan) / count)
    return mean, error


def known(value: Any) -> float | str:
    """A number for the record, in words where there is none."""
    return float(value) if np.isfinite(value) else "none"


def exceeds(values: np.ndarray, bound: float) -> bool:
    """Is the mean above the bound by more than two standard errors? Few values (errors unknown) never are."""
    mean, error = mean_and_error(values)
    return bool(mean - 2.0 * error > bound)


def draw_mean(axes: Any, x: Any, values: np.ndarray, *, color: str, style: str, label: str, marker: str = "") -> None:
    """The mean over trials (first axis) with two standard errors shaded."""
    mean, error = mean_and_error(values)
    low = np.maximum(mean - 2.0 * error, 0.05 * mean)  # a log axis cannot show zero
    axes.fill_between(x, low, mean + 2.0 * error, color=color, alpha=0.2, linewidth=0)
    axes.plot(x, mean, color=color, linestyle=style, label=label, marker=marker, markersize=3.5)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's; NaN where one of the two does not vary.

    >>> round(rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0])), 12)
    1.0
    """
    from scipy.stats import rankdata

    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])
