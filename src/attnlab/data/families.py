"""Seeded families of tokens, as the papers define them.

`trials=None` gives one data set; `trials=R` a batch whose trial i is drawn from its own stream (seed, i) and so
does not depend on R. Trial 0 of a batch is the data set that the same seed gives alone. `seed=[3, 7, 11]` gives a batch
of the data sets of these seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnlab.checks import enough_memory, number, seeds, shown, whole
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message

R = TypeVar("R")
# A number, or one for each trial.
Seed: TypeAlias = int | Sequence[int] | NDArray[np.integer]
# Redraws of one sequence after which a score gap is called out of reach.
MAX_ATTEMPTS = 100_000
# Keeps the stream of initial weights apart from that of the data drawn with the same seed.
START_STREAM = 1
# Lengths and deviations from one over this to this leave room for Gaussian tails, sums and quotients.
EXTREME = 1e300
# Within these lengths squares are ordinary numbers.
SQUARABLE = 1e100
# What Tokens of one trial take besides their numbers, in numbers: objects, their headers, `info`.
OVERHEAD = 50
# How often the tokens of a batch are in memory while it is put together; and those of one trial while drawn.
BATCH_COPIES, DRAW_COPIES = 3, 5


def sphere(
    n: int = 6, T: int = 8, d: int = 10, *, gap: float = 0.0, seed: Seed = 0, trials: int | None = None
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
    room_for("sphere", n, T, d, trials)
    gap = number("gap", gap, least=0)
    if gap >= 2:
        raise InputError(message(f"`gap` is {gap}; scores of unit tokens, from -1 to 1, never differ by 2."))
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


def two_clusters(*, seed: Seed = 0, trials: int | None = None) -> Tokens:
    """The two-dimensional set of figure 1: n = d = 2, T = 3, both labels +1.

    Sequence 1 is 0.3 Gaussian noise around (-1, 0), sequence 2 around (1, 0); queries and head are unit vectors.
    Draw order: v, x, z.
    """

    room_for("two_clusters", 2, 3, 2, trials)

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
    seed: Seed = 0,
    trials: int | None = None,
) -> Tokens:
    """Example 1 of the fast-rates paper: one signal token per sequence among noise; the query is the first token.

    Signals mu+ and mu- are orthogonal of norm U = `signal`. The token at a uniform position is
    mu_y + N(0, signal_noise^2 S), all others N(0, noise^2 S), where S projects away from both signals. The head
    v = (mu+ - mu-) / U^2 then scores the signal token 1 and every other 0. Defaults are those of figure 2.

    `info["planted"]` is the signal's position. Draw order: signals (QR of a d x 2 Gaussian), y, position, noise.
    """
    room_for("orthogonal_signal", n, T, d, trials)
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
    seed: Seed = 0,
    trials: int | None = None,
) -> Tokens:
    """`orthogonal_signal` with mu- = -mu+ and head v = mu+ / U^2 (figure 5 of the fast-rates paper).

    Draw order as there; mu+ is the first column of the QR factor.
    """
    room_for("antipodal_signal", n, T, d, trials)
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
    signal = number("signal", signal, least=1 / EXTREME, most=EXTREME)
    noise = number("noise", noise, least=-EXTREME, most=EXTREME)
    signal_noise = number("signal_noise", signal_noise, least=-EXTREME, most=EXTREME)
    # Always two Gaussians, so that both families draw the same numbers from the same seed.
    basis = np.linalg.qr(rng.standard_normal((d, 2)))[0].T[:directions]  # orthonormal rows
    plus, minus = signal * basis[0], signal * (basis[1] if directions == 2 else -basis[0])
    apart = plus - minus if directions == 2 else plus
    v = apart / signal**2 if 1 / SQUARABLE <= signal <= SQUARABLE else apart / signal / signal
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
    seed: Seed = 0,
    trials: int | None = None,
) -> Tokens:
    """The joint-training model of the fast-rates paper: the planted token is N(0, strength^2 noise^2 I), others
    N(0, noise^2 I), and y = sign(v . planted token) for a fixed unit v; the query is the first token.

    The planted token (`info["planted"]`) need not have the best score under v. Defaults are those of figure 3.
    Draw order: v, tokens, position.
    """
    room_for("gaussian_signal", n, T, d, trials)
    strength, noise = deviations(strength, noise)

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

    room_for("two_tokens", 1, 2, 2, trials)

    def draw(_: np.random.Generator) -> Tokens:
        return Tokens.self_attention([[[1.0, 0.0], [0.0, 0.0]]], [1.0], [1.0, 0.0])

    return _batch("two_tokens", draw, 0, trials)


def bad_direction(*, trials: int | None = None) -> Tokens:
    """Two sequences on which a wrong start favours the wrong token (appendix C.1 of the fast-rates paper).

    Best tokens are the second of sequence 1 and the first of sequence 2. From W(0) = -0.1 I gradient descent still
    reaches the max-margin direction; from -0.4 I and beyond it is trapped.
    """

    room_for("bad_direction", 2, 2, 2, trials)

    def draw(_: np.random.Generator) -> Tokens:
        x = [[[1.0, 0.2], [-1.0, -0.2]], [[-2.5, 0.5], [2.5, -0.5]]]
        return Tokens.self_attention(x, [-1.0, 1.0], [0.0, 1.0])

    return _batch("bad_direction", draw, 0, trials)


def _batch(family: str, draw: Callable[[np.random.Generator], Tokens], seed: Seed, trials: int | None) -> Tokens:
    drawn = each_trial(draw, seed, trials)
    alone = trials is None and isinstance(seeds("seed", seed), int)
    tokens = drawn[0] if alone else Tokens.stack(drawn)
    info = {"family": family, "seed": seeds("seed", seed), **tokens.info}
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, mask=tokens.mask, info=info)


def each_trial(draw: Callable[[np.random.Generator], R], seed: Seed, trials: int | None, *stream: int) -> list[R]:
    """What is drawn for each trial from its own stream, see `streams`; one draw where there is no trial axis."""
    return [draw(np.random.default_rng([*origin, *stream])) for origin in streams(seed, trials)]


def streams(seed: Seed, trials: int | None) -> list[tuple[int, int]]:
    """Where the random numbers of each trial come from: (seed, i), or (its own seed, 0) where each trial has one.

    >>> streams(7, 2), streams([3, 5], None)
    ([(7, 0), (7, 1)], [(3, 0), (5, 0)])
    """
    given = seeds("seed", seed)
    if isinstance(given, int):
        return [(given, i) for i in range(trial_count(trials))]
    if trials is not None and trial_count(trials) != len(given):
        raise InputError(message(f"`seed` has {len(given)} seeds for {trials} trials; wanted one for each trial."))
    return [(one, 0) for one in given]


def start_seed(seed: Seed, trials: int | None) -> int | list[int]:
    """The seed of starts, or one for each trial; a list is none for data without a trial axis."""
    return whole("seed", seed, 0) if trials is None else seeds("seed", seed)


def trial_count(trials: int | None) -> int:
    """How many data sets to draw: 1 where there is no trial axis."""
    if trials is None:
        return 1
    if isinstance(trials, bool) or not isinstance(trials, int | np.integer) or trials < 1:
        raise InputError(message(f"`trials` is {shown(trials)}; wanted at least 1, or None for no trial axis."))
    return int(trials)


def room_for(
    family: str,
    n: int,
    T: int,
    d: int,
    trials: int | None,
    *,
    besides: Callable[[int, int, int], int] = lambda n, T, d: 0,
    facts: Callable[[int, int, int], int] = lambda n, T, d: 0,
) -> None:
    """Refuse sizes that are none, or whose tokens would not fit into memory.

    `besides(n, T, d)` says how many numbers are needed besides the tokens while one trial is drawn, `facts(n, T, d)`
    how many are kept in the `info` of each.
    """
    n, T, d = (whole(name, size) for name, size in (("n", n), ("T", T), ("d", d)))
    one = n * (T + 1) * d + facts(n, T, d)
    batch = 0 if trials is None else BATCH_COPIES * trial_count(trials) * (one + OVERHEAD)
    count = batch + DRAW_COPIES * one + besides(n, T, d)
    sizes = {"n": n, "T": T, "d": d} | ({} if trials is None else {"trials": trials})
    enough_memory(count, f"{family} with {', '.join(f'`{name}` = {shown(size)}' for name, size in sizes.items())}")


def deviations(strength: float, noise: float, most: float = EXTREME) -> tuple[float, float]:
    """`strength` and `noise`, whose product must be a float64 number too."""
    strength, noise = number("strength", strength), number("noise", noise, least=-most, most=most)
    if abs(strength * noise) > most:
        raise InputError(message(f"`strength` times `noise` is {strength * noise:g}; wanted at most {most:g}."))
    return strength, noise


def _unit(rng: np.random.Generator, *shape: int) -> Array:
    gaussian = rng.standard_normal(shape)
    return gaussian / np.linalg.norm(gaussian, axis=-1, keepdims=True)


def _signs(rng: np.random.Generator, n: int) -> Array:
    return np.where(rng.integers(0, 2, n) == 1, 1.0, -1.0)
