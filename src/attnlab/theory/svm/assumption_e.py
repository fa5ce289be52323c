"""Assumption E of *Transformers as Support Vector Machines*: a head that prefers its token to mixtures with lower ones.

For every query and every share `s` of its selected token alpha and of the tokens that score lower,
`y h(sum_t s_t x_t) <= gamma_alpha - c (1 - s_alpha)`, with one c > 0 for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import whole
from attnlab.data.scale import lengths
from attnlab.data.selection import TIE, scores
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.functions import told_as
from attnlab.models.heads import Along, Concave, Head, HeadLike, Linear, Mlp, ReluSum, as_head
from attnlab.models.precision import in_float64
from attnlab.theory.arrays import one_data_set
from attnlab.theory.check import Check
from attnlab.theory.svm.geometry import checked

LEAST_OFF = 1e-4  # of the share of lower tokens: differences of head values over less are rounding
SIZES = 0.5 ** np.arange(1, 15)  # of moves towards a token, or away from it, by which a mixture is made worse
ROUNDS = 40  # of such moves


@in_float64
def assumption_e(
    tokens: Tokens,
    selected: ArrayLike | None = None,
    *,
    head: HeadLike | tuple[HeadLike, ...] | None = None,
    samples: int = 256,
    seed: int = 0,
) -> Check:
    """E: no mixture of the selected token with lower ones scores higher, by c for each share of the others.

    `c = min (gamma_alpha - y h(x(s))) / (1 - s_alpha)` over queries and shares s of the selected token alpha and those
    that score lower. A linear head has `c = min (gamma_alpha - gamma_t)` over lower t, and so has a convex one with
    labels 1; a concave one has the least slope at the selected token. For other heads the least ratio is searched for,
    from every lower token, from slopes and from random mixtures, so that the true c is at most what is found.

    Args:
        tokens: one data set.
        selected: a visible token per query; None for the best.
        head: as in `al.scores`; a tuple gives each of K queries its own.
        samples: random mixtures per query that a search starts from.
        seed: of these.

    Returns:
        `value` and `margin` are c, in units of scores; inf where no query has a lower token. Evidence: exact (is c
        known, or the least that was found?), query and shares (where it is least), slope (the largest |grad h| met,
        which a Lipschitz constant is at least).

    Assumption E of *Transformers as Support Vector Machines*; Theorem 10 asks for it.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=3, T=4, d=5, seed=0)
    >>> assumption_e(tokens).holds, assumption_e(tokens, head=al.models.Concave(5.0)).holds
    (True, False)
    """
    samples, seed = whole("samples", samples, 0, 10**6), whole("seed", seed, 0)
    heads = _heads(one_data_set(tokens), head)
    gamma = _scores(tokens, heads)
    visible = tokens.visible.reshape(gamma.shape)
    if selected is None:
        chosen = np.where(visible, gamma, -np.inf).argmax(-1)
    else:
        chosen = checked(tokens, selected).reshape(gamma.shape[:-1])
    score = np.take_along_axis(gamma, chosen[..., None], -1)
    same = TIE * np.where(visible, np.abs(gamma), 0.0).max(-1, keepdims=True)
    with np.errstate(over="ignore"):  # infinity is more, too
        low = visible & (score - gamma > same)
    rng = np.random.default_rng(seed)
    found = [_worst(tokens, one, k, chosen, low, score, samples, rng) for k, one in heads]
    least, place, shares, _ = min(found, key=lambda one: one[0])
    slope = max(one[3] for one in found)
    exact = all(_is_known(one, tokens.y) for _, one in heads)
    where = place if tokens.K is not None or place is None else place[:1]
    rounding = TIE * float(np.abs(gamma[visible]).max())
    return Check(
        name="E",
        value=least,
        wanted=0.0,
        margin=least,
        holds=bool(least > rounding),
        evidence={"exact": exact, "query": where, "shares": shares, "slope": slope},
    )


def _heads(tokens: Tokens, head: Any) -> list[tuple[int | slice, Head]]:
    """Heads by the queries that they belong to."""
    if not isinstance(head, tuple | list):
        return [(slice(None), as_head("linear" if head is None else head))]
    if len(head) != tokens.K:
        queries = "one query without an axis" if tokens.K is None else f"{tokens.K} queries"
        raise InputError(message(f"`head` has {len(head)} heads, one for each query; `tokens` has {queries}."))
    return [(k, as_head(one)) for k, one in enumerate(head)]


def _scores(tokens: Tokens, heads: list[tuple[int | slice, Head]]) -> Array:
    """y_ik h_k(x_it), (n, K, T)."""
    gamma = np.empty((tokens.n, tokens.K or 1, tokens.T))
    for k, head in heads:
        every = scores(tokens, None if isinstance(head, Linear) else head).reshape(gamma.shape)
        gamma[:, k] = every[:, k]
    return gamma


def _is_known(head: Head, y: Array) -> bool:
    """Is the least ratio at one lower token, or at a slope towards one?"""
    if isinstance(head, Linear | Along | Concave):
        return True
    convex = isinstance(head, ReluSum) or (
        type(head) is Mlp and (head.out is None or bool((np.asarray(head.out) >= 0).all()))
    )
    return convex and bool((y == 1).all())


def _worst(
    tokens: Tokens,
    head: Head,
    k: int | slice,
    chosen: NDArray[np.intp],
    low: NDArray[np.bool_],
    score: Array,
    samples: int,
    rng: np.random.Generator,
) -> tuple[float, tuple[int, int] | None, Array | None, float]:
    """The least ratio over the queries of one head, its query, its shares, and the largest slope met."""
    queries = np.zeros(low.shape[:-1], dtype=bool)
    queries[:, k] = True
    rows, columns = np.nonzero(queries & low.any(-1))
    if not rows.size:
        return np.inf, None, None, 0.0
    x, y = tokens.x[rows], tokens.y.reshape(low.shape[:-1])[rows, columns]
    own_low, own_score = low[rows, columns], score[rows, columns, 0]
    at = np.eye(tokens.T)[chosen[rows, columns]]  # (q, T) shares of the selected token
    apply, slope_of = _functions(head, tokens)

    def ratios(shares: Array) -> Array:
        """Of mixtures (q, m, T); inf where lower tokens have no share to speak of."""
        off = np.where(own_low[:, None], shares, 0.0).sum(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            values = y[:, None] * apply(np.einsum("qmt,qtd->qmd", shares, x))
            drops = own_score[:, None] - values
            found = drops / np.maximum(off, LEAST_OFF)
        if not np.isfinite(found).all():
            raise InputError(message("`tokens` or `head` are so large that scores of mixtures are beyond float64."))
        return np.where(off >= LEAST_OFF, found, np.inf)

    slope = slope_of(np.einsum("qt,qtd->qd", at, x)[:, None])  # (q, 1, d)
    steepest = _longest(slope)
    # Towards one lower token, from the selected one: linear in the shares, so that single tokens decide.
    with np.errstate(over="ignore", invalid="ignore"):
        towards = np.einsum("qt,qtd->qd", at, x)[:, None] - x
        by_slope = np.where(own_low, y[:, None] * np.einsum("qmd,qtd->qt", slope, towards), np.inf)
    starts = _starts(at, own_low, samples, rng)
    value, shares = _descended(ratios, starts, at, own_low)
    ends = slope_of(np.einsum("qt,qtd->qd", shares, x)[:, None])
    steepest = max(steepest, _longest(ends))
    infinitesimal = by_slope.min(-1)
    least = np.minimum(value, infinitesimal)
    worst = int(least.argmin())
    where = shares[worst] if value[worst] <= infinitesimal[worst] else at[worst]
    # Adding zero makes -0 a 0.
    return float(least[worst]) + 0.0, (int(rows[worst]), int(columns[worst])), where, steepest


def _longest(slopes: Array) -> float:
    """The largest length of a vector along the last axis, at any scale."""
    return float(lengths(slopes.reshape(-1, slopes.shape[-1])).max())


def _functions(head: Head, tokens: Tokens) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """h and its gradient, of outputs (q, m, d)."""
    with told_as("head", "al.Tokens, in `constants`"):
        constants = head.constants(tokens)
    one = jax.jit(jax.vmap(jax.vmap(lambda o: head.apply(constants, o))))
    slopes = jax.jit(jax.vmap(jax.vmap(jax.grad(lambda o: head.apply(constants, o)))))
    return lambda o: np.asarray(one(jnp.asarray(o))), lambda o: np.asarray(slopes(jnp.asarray(o)))


def _starts(at: Array, low: NDArray[np.bool_], samples: int, rng: np.random.Generator) -> Array:
    """Mixtures (q, m, T): each lower token alone, halfway to it, and random ones."""
    T = low.shape[-1]
    alone = np.where(low[:, :, None], np.eye(T), at[:, None])
    # Gamma draws of shape 1 and 0.2: mixtures of many tokens and of few.
    drawn = rng.standard_gamma(np.where(np.arange(samples) % 2, 0.2, 1.0)[:, None], (len(low), samples, T))
    drawn = np.where((low | (at > 0))[:, None], drawn + 1e-12, 0.0)
    drawn = drawn / drawn.sum(-1, keepdims=True)
    return np.concatenate([alone, 0.5 * (alone + at[:, None]), drawn], axis=1)


def _descended(
    ratios: Callable[[Array], Array], starts: Array, at: Array, low: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """The least ratio (q,) and its shares (q, T), by moves towards single tokens and away from them."""
    every = np.arange(len(starts))
    values = ratios(starts)
    best = starts[every, values.argmin(1)]
    value = values.min(1)
    corners = np.where((low | (at > 0))[:, :, None], np.eye(low.shape[-1]), at[:, None])  # (q, T, T)
    for _ in range(ROUNDS):
        here = best[:, None]
        towards = [here + size * (corners - here) for size in SIZES]
        away = [np.maximum(here - size * here * (corners > 0), 0.0) for size in SIZES]
        away = [moved / np.maximum(moved.sum(-1, keepdims=True), 1e-300) for moved in away]
        tried = np.concatenate([*towards, *away], axis=1)
        values = ratios(tried)
        better = values.min(1) < value
        if not better.any():
            break
        best = np.where(better[:, None], tried[every, values.argmin(1)], best)
        value = np.minimum(values.min(1), value)
    return value, best
