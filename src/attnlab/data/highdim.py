"""Gaussian tokens of any dimension, in coordinates of their span.

Attention sees tokens only through their inner products. Those of m Gaussian vectors in dimension d have the law of
L L^T for a lower triangular L with `L_ii^2 ~ chi^2(d - i)` and standard normal entries below (Bartlett). The rows of
L are thus the tokens, in orthonormal coordinates of their span, and d = 10^15 costs no more than d = 10.
"""

from __future__ import annotations

import numpy as np

from attnlab.checks import number, shown, whole
from attnlab.data.families import deviations, each_trial, room_for
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message

# Tokens of dimension d are about sqrt(d) deviations long.
LARGEST_DIMENSION, LARGEST_DEVIATION = 1e300, 1e150


def gaussian_signal_in_span(
    n: int = 10,
    T: int = 2,
    d: float = 100,
    *,
    strength: float = 3.0,
    noise: float = 0.1,
    seed: int = 0,
    trials: int | None = None,
) -> Tokens:
    """`gaussian_signal` with all inner products of the law of dimension d, in n T + 1 coordinates.

    The first coordinate is that of the unit vector v which gives the labels. `info["dimension"]` is d,
    `info["planted"]` the position of the planted token. Draw order: tokens along v, their rest, position.

    Args:
        n, T: sequences, tokens per sequence.
        d: dimension that the tokens come from, at least n T + 1; may be as large as 1e300.
        strength, noise: the planted token is N(0, strength^2 noise^2 I), others N(0, noise^2 I).
        seed, trials: trial i is drawn from its own stream (seed, i).

    >>> gaussian_signal_in_span(n=2, d=1e12)
    Tokens(n=2, T=2, d=5, family=gaussian_signal_in_span)
    """
    n, T = whole("n", n), whole("T", T)
    room_for("gaussian_signal_in_span", n, T, n * T + 1, trials, besides=lambda n, T, d: 2 * (n * T) ** 2)
    strength, noise = deviations(strength, noise, LARGEST_DEVIATION)
    dimension = number("d", d)
    if not n * T + 1 <= dimension < LARGEST_DIMENSION:
        least = f"{n * T} tokens in general position need at least {n * T + 1}"
        raise InputError(message(f"`d` is {shown(d)}; {least}, and at most {LARGEST_DIMENSION:g}."))
    drawn = each_trial(lambda rng: _draw(rng, n, T, dimension, strength, noise), whole("seed", seed, 0), trials)
    tokens = drawn[0] if trials is None else Tokens.stack(drawn)
    info = {"family": "gaussian_signal_in_span", "seed": int(seed), "dimension": dimension, **tokens.info}
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, info=info)


def _draw(rng: np.random.Generator, n: int, T: int, d: float, strength: float, noise: float) -> Tokens:
    m = n * T
    along = rng.standard_normal(m)
    rest = np.tril(rng.standard_normal((m, m)), -1)
    rest[np.diag_indices(m)] = np.sqrt(rng.chisquare(d - 1 - np.arange(m)))
    planted = rng.integers(0, T, n)
    is_planted = np.arange(T) == planted[:, None]
    x = np.column_stack([along, rest]).reshape(n, T, m + 1)
    x *= np.where(is_planted, strength * noise, noise)[..., None]
    y = np.where(x[is_planted][:, 0] >= 0, 1.0, -1.0)
    return Tokens.self_attention(x, y, np.eye(m + 1)[0], info={"planted": planted})
