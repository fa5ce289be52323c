"""Data sets that meet Assumptions 1 and 2 and on which the bounds are as close as we could bring them."""

from __future__ import annotations

import numpy as np

from attnlab.data import Tokens, separated_signal

# Tokens per sequence of `crowded`, and how long its best token is.
CROWD = 10
LENGTH = 2.0
# Of `crowded`: how far behind the origin the other tokens lie, and how far aside the crowd stands, both over the length
# of the best token. A search over both (T = 10, up to 2e4 steps) found 1 - cosine closest to the bound of Theorem 5 at
# (0.9, 0.105) with the printed t_0 and at (0.9, 0.034) with the corrected one; at depth 0.25 the products inside the
# sequence are small enough for Lemma 3.
DEPTHS_AND_SIDES = ((0.9, 0.105), (0.25, 0.034), (0.9, 0.034))
OTHER_SIDE = 1e-3


def pairs(trials: int) -> Tokens:
    """One sequence of two tokens per data set: that of Section 3.3; two opposite tokens, for which B^2 Lambda = 1/2,
    the least there is; then random ones, up to length 1, whose query is the best token or not."""
    drawn = [_pair([1.0, 0.0], [0.0, 0.0], gap=1.0), _pair([1.0, 0.0], [-1.0, 0.0], gap=2.0)]
    for i in range(2, trials):
        rng = np.random.default_rng([11, i])
        tokens = rng.standard_normal((2, 2))
        tokens *= rng.uniform(0.5, 1.0, (2, 1)) / np.linalg.norm(tokens, axis=-1, keepdims=True)
        drawn.append(_pair(*tokens[rng.permutation(2)], gap=rng.uniform(0.5, 2.0), best=int(rng.integers(2))))
    return Tokens.stack(drawn[:trials])


def _pair(first: object, second: object, *, gap: float, best: int = 0) -> Tokens:
    """Two tokens with scores `gap` apart; the query is the first."""
    x = np.array([first, second], dtype=np.float64)
    lead = x[best] - x[1 - best]
    return Tokens.self_attention(x[None], [1.0], gap * lead / (lead @ lead))


def crowded(trials: int) -> Tokens:
    """One sequence per data set: the best token, a crowd of equal ones a little aside, and one on the other side.

    W_mm points between the crowd and the one, close to the one. Normalized GD first follows the crowd, which has most
    of the attention that is left, and turns only when its lead over the crowd has grown by log T: 1 - cosine stays at
    side^2 / 2 until then, as long as a bound of order log(t) / t lets it.
    """
    rng = np.random.default_rng(12)
    shapes = list(DEPTHS_AND_SIDES)
    while len(shapes) < trials:
        shapes.append((rng.uniform(0.1, 0.9), 10.0 ** rng.uniform(-2.0, -0.5)))
    drawn = []
    for depth, side in shapes[:trials]:
        x = np.zeros((CROWD, 2))
        x[0] = 1.0, 0.0
        x[1:] = -depth, side
        x[-1] = -depth, -OTHER_SIDE
        # Scores depend on the first coordinate only: 1 apart.
        drawn.append(Tokens.self_attention(LENGTH * x[None], [1.0], [1.0 / (LENGTH * (1.0 + depth)), 0.0]))
    return Tokens.stack(drawn)


def orthogonal_unlike_gaps(trials: int) -> Tokens:
    """Example 1 with exactly orthogonal noise tokens, n = 4, T = 3; the signals of one label score 1, those of the
    other 1, 2, 3 or 4, so that Upsilon differs from one data set to the next."""
    drawn = separated_signal(n=4, T=3, d=16, noise=0.25, orthogonal=True, trials=trials)
    heads = []
    for i in range(trials):
        tokens = drawn[i]
        signals = tokens.x[np.arange(tokens.n), tokens.info["planted"]]
        up, down = (signals[tokens.y == label][0] for label in (1.0, -1.0))
        heads.append(up - (1.0 + i % 4) * down)
    return Tokens(x=drawn.x, z=drawn.z, y=drawn.y, v=np.stack(heads), info=drawn.info)


def rays(gaps: tuple[float, ...] = (1.0, 2.0, 5.0)) -> Tokens:
    """One sequence of two tokens per data set on one line, along which all motion is: the two tokens of Section 3.3,
    and opposite tokens with these gaps between their scores."""
    opposite = [_pair([1.0, 0.0], [-1.0, 0.0], gap=gap) for gap in gaps]
    return Tokens.stack([_pair([1.0, 0.0], [0.0, 0.0], gap=1.0), *opposite])
