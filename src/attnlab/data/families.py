"""Seeded families of tokens, as the papers define them.

`trials=None` gives one data set; `trials=R` a batch whose trial i is drawn from its own stream (seed, i) and so
does not depend on R. Trial 0 of a batch is the data set that the same seed gives alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message

R = TypeVar("R")
# Redraws of one sequence after which a score gap is called out of reach.
MAX_ATTEMPTS = 100_000
# Keeps the stream of initial weights apart from that of the data drawn with the same seed.
START_STREAM = 1


def sphere(
    n: int = 6, T: int = 8, d: int = 10, *, gap: float = 0.0, seed: int = 0, trials: int | None = None
) -> Tokens:
    """Tokens, queries and head uniform on the unit sphere; labels +1 or -1 with probability 1/2 (cross-attention).

    Args:
        n, T, d: sequences, tokens per sequence, dimension.
        gap: redraw a sequence until its best score leads every other by at least `gap` (figures 2, 5 and 6 of
            *Transformers as Support Vector Machines* use 0.1). `info["attempts"]` counts the draws per sequence.
        seed, trials: see the module's first lines.

    Draw order: v, y, x (failing sequences again, in rounds), z.

    >>> import attnlab as al
    >>> al.data.sphere(n=6, T=8, d=10, seed=0)
    Tokens(n=6, T=8, d=10, family=sphere)
    """
    _sizes(n=n, T=T, d=d)
    if not gap >= 0:
        raise InputError(message(f"`gap` is {gap}; wanted a number at least 0."))
    if gap > 0 and d == 1 and T > 1:
        raise InputError(message("`gap` > 0 with d = 1: unit tokens are +1 or -1, so scores tie.", "use d >= 2"))

    def draw(rng: np.random.Generator) -> Tokens:
        v = _unit(rng, d)
        y = _signs(rng, n)
        x = _unit(rng, n, T, d)
        attempts = np.ones(n, dtype=int)
        while gap > 0 and T > 1:
            ranked = np.sort(y[:, None] * (x @ v), axis=-1)
            short = np.flatnonzero(ranked[:, -1] - ranked[:, -2] < gap)
            if not short.size:
                break
            if attempts[short].max() >= MAX_ATTEMPTS:
                raise InputError(
                    message(
                        f"`gap` = {gap} was not met in {MAX_ATTEMPTS} draws at T = {T}, d = {d}.",
                        "lower `gap`",
                    )
                )
            x[short] = _unit(rng, short.size, T, d)
            attempts[short] += 1
        return Tokens(x=x, z=_unit(rng, n, d), y=y, v=v, info={"attempts": attempts})

    return _batch("sphere", draw, seed, trials)


def two_clusters(*, seed: int = 0, trials: int | None = None) -> Tokens:
    """The two-dimensional set of figure 1: n = d = 2, T = 3, both labels +1.

    Sequence 1 is 0.3 Gaussian noise around (-1, 0), sequence 2 around (1, 0); queries and head are unit vectors.
    Draw order: v, x, z.
    """

    def draw(rng: np.random.Generator) -> Tokens:
        v = _unit(rng, 2)
        x = 0.3 * rng.standard_normal((2, 3, 2)) + np.array([-1.0, 1.0])[:, None, None] * np.array([1.0, 0.0])
        return Tokens(x=x, z=_unit(rng, 2, 2), y=np.ones(2), v=v)

    return _batch("two_clusters", draw, seed, trials)


def orthogonal_signal(
    n: int = 20,
    T: int = 6,
    d: int = 100,
    *,
    signal: float = 1.0,
    noise: float = 0.05,
    signal_noise: float = 0.0,
    seed: int = 0,
    trials: int | None = None,
) -> Tokens:
    """Example 1 of the fast-rates paper: one signal token per sequence among noise; the query is the first token.

    Signals mu+ and mu- are orthogonal of norm U = `signal`. The token at a uniform position is
    mu_y + N(0, signal_noise^2 S), all others N(0, noise^2 S), where S projects away from both signals. The head
    v = (mu+ - mu-) / U^2 then scores the signal token 1 and every other 0. Defaults are those of figure 2.

    `info["planted"]` is the signal's position. Draw order: signals (QR of a d x 2 Gaussian), y, position, noise.
    """
    _sizes(n=n, T=T, d=d)
    if d < 2:
        raise InputError(message(f"`d` is {d}; two orthogonal signals need d >= 2."))
    draw = partial(_signal_set, n=n, T=T, d=d, signal=signal, noise=noise, signal_noise=signal_noise, directions=2)
    return _batch("orthogonal_signal", draw, seed, trials)


def antipodal_signal(
    n: int = 20,
    T: int = 6,
    d: int = 100,
    *,
    signal: float = 1.0,
    noise: float = 0.05,
    signal_noise: float = 0.0,
    seed: int = 0,
    trials: int | None = None,
) -> Tokens:
    """`orthogonal_signal` with mu- = -mu+ and head v = mu+ / U^2 (figure 5 of the fast-rates paper).

    Draw order as there; mu+ is the first column of the QR factor.
    """
    _sizes(n=n, T=T, d=d)
    draw = partial(_signal_set, n=n, T=T, d=d, signal=signal, noise=noise, signal_noise=signal_noise, directions=1)
    return _batch("antipodal_signal", draw, seed, trials)


def _signal_set(
    rng: np.random.Generator,
    *,
    n: int,
    T: int,
    d: int,
    signal: float,
    noise: float,
    signal_noise: float,
    directions: int,
) -> Tokens:
    if not signal > 0:
        raise InputError(message(f"`signal` is {signal}; wanted a positive norm."))
    for name, value in (("noise", noise), ("signal_noise", signal_noise)):
        if not np.isfinite(value):
            raise InputError(message(f"`{name}` is {value}; wanted a finite number."))
    # Always two Gaussians, so that both families draw the same numbers from the same seed.
    basis = np.linalg.qr(rng.standard_normal((d, 2)))[0].T[:directions]  # orthonormal rows
    plus, minus = signal * basis[0], signal * (basis[1] if directions == 2 else -basis[0])
    v = (plus - minus) / signal**2 if directions == 2 else plus / signal**2
    y = _signs(rng, n)
    planted = rng.integers(0, T, n)
    white = rng.standard_normal((n, T, d))
    x = white - (white @ basis.T) @ basis
    is_signal = np.arange(T) == planted[:, None]
    x *= np.where(is_signal, signal_noise, noise)[..., None]
    x[is_signal] += np.where(y[:, None] > 0, plus, minus)
    return Tokens.self_attention(x, y, v, info={"planted": planted})


def gaussian_signal(
    n: int = 10,
    T: int = 2,
    d: int = 100,
    *,
    strength: float = 3.0,
    noise: float = 0.1,
    seed: int = 0,
    trials: int | None = None,
) -> Tokens:
    """The joint-training model of the fast-rates paper: the planted token is N(0, strength^2 noise^2 I), others
    N(0, noise^2 I), and y = sign(v . planted token) for a fixed unit v; the query is the first token.

    The planted token (`info["planted"]`) need not have the best score under v. Defaults are those of figure 3.
    Draw order: v, tokens, position.
    """
    _sizes(n=n, T=T, d=d)

    def draw(rng: np.random.Generator) -> Tokens:
        v = _unit(rng, d)
        white = rng.standard_normal((n, T, d))
        planted = rng.integers(0, T, n)
        is_planted = np.arange(T) == planted[:, None]
        x = white * np.where(is_planted, strength * noise, noise)[..., None]
        y = np.where(x[is_planted] @ v >= 0, 1.0, -1.0)
        return Tokens.self_attention(x, y, v, info={"planted": planted})

    return _batch("gaussian_signal", draw, seed, trials)


def two_tokens(*, trials: int | None = None) -> Tokens:
    """The two-token example of the fast-rates paper: x = (1,0), (0,0), y = 1, v = (1,0); W_mm = E_11 exactly.

    Normalized GD moves W_11 by its step size each step, so 1 - cos(W_t, W_mm) falls as t^-2.
    """

    def draw(_: np.random.Generator) -> Tokens:
        return Tokens.self_attention([[[1.0, 0.0], [0.0, 0.0]]], [1.0], [1.0, 0.0])

    return _batch("two_tokens", draw, 0, trials)


def bad_direction(*, trials: int | None = None) -> Tokens:
    """Two sequences on which a wrong start favours the wrong token (appendix C.1 of the fast-rates paper).

    Best tokens are the second of sequence 1 and the first of sequence 2. From W(0) = -0.1 I gradient descent still
    reaches the max-margin direction; from -0.4 I and beyond it is trapped.
    """

    def draw(_: np.random.Generator) -> Tokens:
        x = [[[1.0, 0.2], [-1.0, -0.2]], [[-2.5, 0.5], [2.5, -0.5]]]
        return Tokens.self_attention(x, [-1.0, 1.0], [0.0, 1.0])

    return _batch("bad_direction", draw, 0, trials)


def _batch(family: str, draw: Callable[[np.random.Generator], Tokens], seed: int, trials: int | None) -> Tokens:
    drawn = each_trial(draw, seed, trials)
    tokens = drawn[0] if trials is None else Tokens.stack(drawn)
    info = {"family": family, "seed": int(seed), **tokens.info}
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, mask=tokens.mask, info=info)


def each_trial(draw: Callable[[np.random.Generator], R], seed: int, trials: int | None, *stream: int) -> list[R]:
    """What is drawn for each trial from its own stream (seed, i, ...); one draw where there is no trial axis."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(message(f"`seed` is {seed!r}; wanted a whole number at least 0."))
    if trials is not None and (not isinstance(trials, int | np.integer) or trials < 1):
        raise InputError(message(f"`trials` is {trials}; wanted at least 1, or None for no trial axis."))
    return [draw(np.random.default_rng([seed, i, *stream])) for i in range(trials or 1)]


def _sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if not isinstance(value, int | np.integer) or value < 1:
            raise InputError(message(f"`{name}` is {value!r}; wanted a whole number at least 1."))


def _unit(rng: np.random.Generator, *shape: int) -> Array:
    gaussian = rng.standard_normal(shape)
    return gaussian / np.linalg.norm(gaussian, axis=-1, keepdims=True)


def _signs(rng: np.random.Generator, n: int) -> Array:
    return rng.choice([-1.0, 1.0], n)
