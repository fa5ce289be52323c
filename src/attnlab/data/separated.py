"""Tokens that truly meet the near-orthogonality that the rate theorems assume."""

from __future__ import annotations

import numpy as np

from attnlab.checks import flag, number
from attnlab.data.families import EXTREME, _batch, _signal_set, room_for
from attnlab.data.products import orthogonality_ratios, sufficient_dimension, sufficient_signal
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message

# Draws of one data set after which the sizes are called out of reach.
MAX_DRAWS = 200
# Arrays of the size of the Gram matrix of all tokens that are in memory while the assumption is checked.
GRAMS = 6


def separated_signal(
    n: int = 2,
    T: int = 2,
    d: int = 20_000,
    *,
    signal: float = 1.0,
    noise: float = 0.005,
    orthogonal: bool = False,
    seed: int = 0,
    trials: int | None = None,
) -> Tokens:
    """Example 1 with noiseless signals, drawn again until both labels occur and Assumption 1 holds.

    Also until the two inequalities hold that its use needs besides; see `al.theory.assumption_1`. Figure 2's own sizes
    (`orthogonal_signal`) miss the assumption by a factor of some hundreds.

    Args:
        n, T, d: sequences (at least 2, for both labels), tokens per sequence (at least 2), dimension.
        signal: norm U of the signals.
        noise: deviation of a noise coordinate; a noise token is about noise sqrt(d) long.
        orthogonal: make the noise tokens exactly orthogonal and noise sqrt(d) long. Then the assumption holds at any
            size, from d = n (T - 1) + 2 on.
        seed, trials: as for all families.

    Returns:
        Tokens with `info["planted"]` and `info["attempts"]`, the number of draws.

    Draw order: that of `orthogonal_signal`, again and again; with `orthogonal` the noise is made orthogonal after that.

    Assumption 1 and Example 1 of *Implicit Bias and Fast Convergence Rates for Self-attention*.

    >>> separated_signal(n=4, T=3, d=16, noise=0.25, orthogonal=True)
    Tokens(n=4, T=3, d=16, family=separated_signal)
    """
    room_for("separated_signal", n, T, d, trials, besides=lambda n, T, d: GRAMS * (n * T) ** 2)
    if n < 2 or T < 2:
        raise InputError(
            message(f"`n` is {n} and `T` is {T}; wanted at least 2 of each: both labels, and something to tell apart.")
        )
    number("signal", signal, least=1 / EXTREME, most=EXTREME)
    number("noise", noise, least=1 / EXTREME, most=EXTREME)
    flag("orthogonal", orthogonal)
    least = n * (T - 1) + 2 if orthogonal else 3
    if d < least:
        raise InputError(message(f"`d` is {d}; noise tokens and signals need at least {least}.", f"use d >= {least}"))

    def draw(rng: np.random.Generator) -> Tokens:
        for attempt in range(1, MAX_DRAWS + 1):
            tokens = _signal_set(rng, n=n, T=T, d=d, signal=signal, noise=noise, signal_noise=0.0, directions=2)
            planted = tokens.info["planted"]
            if orthogonal:
                tokens = _with_orthogonal_noise(tokens, noise * np.sqrt(d))
            # Scores are 1 at the signal and 0 elsewhere, so Upsilon = e.
            ratios = orthogonality_ratios(tokens, planted, 4.0 * n * np.e * T)
            if len(np.unique(tokens.y)) == 2 and min(ratios.printed, ratios.extra) >= 1:
                info = {"planted": planted, "attempts": attempt}
                return Tokens.self_attention(tokens.x, tokens.y, tokens.v, info=info)
        raise InputError(
            message(
                f"Assumption 1 was not met in {MAX_DRAWS} draws at `n` = {n}, `T` = {T}, `d` = {d}, `noise` = {noise}.",
                f"d = {sufficient_dimension(n, T):.0f} with signal / noise >= "
                f"{sufficient_signal(n, T, int(sufficient_dimension(n, T)), 1.0):.0f} is enough nine times in ten; "
                "orthogonal=True meets it at any size",
            )
        )

    return _batch("separated_signal", draw, seed, trials)


def _with_orthogonal_noise(tokens: Tokens, length: float) -> Tokens:
    """The same signals, noise tokens made orthogonal to each other and to the signals."""
    x = np.array(tokens.x)
    is_noise = np.arange(tokens.T) != tokens.info["planted"][:, None]
    # The noise was drawn away from both signals; QR does not leave its span.
    x[is_noise] = length * np.linalg.qr(x[is_noise].T)[0].T
    return Tokens.self_attention(x, tokens.y, tokens.v, info=tokens.info)
