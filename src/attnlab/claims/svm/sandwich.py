"""Both sides of the bounds on -<grad L(W), V> in a cone (Lemmas 12 and 13), at any size of W."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.matrices import inner
from attnlab.claims.svm.dynamics import downhill, loss_slopes, margins_of
from attnlab.data import Tokens
from attnlab.data.tokens import Array


class Sandwich(NamedTuple):
    """lower <= middle <= upper is what a lemma says; all three over one positive factor per trial."""

    lower: Array
    middle: Array
    upper: Array


def sandwich(
    tokens: Tokens,
    W: Array,
    V: Array,
    selected: NDArray[np.intp],
    gaps: tuple[Array, Array],
    factors: tuple[float | Array, float | Array],
) -> Sandwich:
    """`factor (1/n) sum_i -l'_i q_i gap_i` with the least and the largest gaps, and `-<grad L(W), V>` between them.

    q_i = 1 - s_selected is what attention leaves to other tokens. With |W| in the hundreds it is far below the smallest
    float, so everything is taken relative to the size of the gradient.
    """
    direction, log_scale = downhill(tokens, W)
    margins = margins_of(tokens, W, selected)
    is_other = np.arange(tokens.T) != selected[..., None]
    # q = e / (1 + e) with e the sum of e^-margin over other tokens.
    shift = np.where(is_other, -margins, -np.inf).max(-1)
    odds = shift + np.log(np.exp(np.where(is_other, -margins - shift[..., None], -np.inf)).sum(-1))
    q = np.exp(odds - np.logaddexp(0.0, odds) - log_scale[..., None])
    slope = loss_slopes(tokens, W)
    lower, upper = ((slope * q * gap).mean(-1) * factor for gap, factor in zip(gaps, factors, strict=True))
    return Sandwich(lower=lower, middle=inner(direction, V), upper=upper)
