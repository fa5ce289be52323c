"""Shallow encoders in batches, on plain arrays: outputs, gradients, and the constants that bound them.

Tokens are pooled by their sum, as in all proofs of *On the Convergence of Encoder-only Shallow Transformers*; the mean
is the same with tau1 / T in place of tau1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlab.data.tokens import Array
from attnlab.theory.encoder import Constants
from attnlab.theory.encoder.constants import least_singular_value

LETTERS = "QKVO"
# N, T, d, m of draws whose scales are drawn as well.
SHAPES = ((4, 3, 5, 8), (3, 2, 2, 6), (6, 4, 3, 5), (2, 1, 4, 4), (1, 5, 2, 7))


class Draws(NamedTuple):
    """B encoders, each with N sequences of its own."""

    x: Array  # (B, N, T, d)
    Q: Array  # (B, m, d)
    K: Array  # (B, m, d)
    V: Array  # (B, m, d)
    O: Array  # (B, m)  # noqa: E741
    tau0: Array  # (B,)
    tau1: Array  # (B,)

    def moved(self, by: dict[str, Array], times: Array | float = 1.0) -> Draws:
        """With parameters moved along these directions, times a number for each draw."""
        far = np.broadcast_to(times, len(self.x))
        return self._replace(**{p: getattr(self, p) + _along(far, by[p]) * by[p] for p in by})

    def weights(self, i: int) -> dict[str, Array]:
        """The weights of one draw, under their usual names."""
        return {"W_Q": self.Q[i], "W_K": self.K[i], "W_V": self.V[i], "w_O": self.O[i]}


def _along(number: Array, like: Array) -> Array:
    return number.reshape(-1, *[1] * (like.ndim - 1))


class Passed(NamedTuple):
    """What the encoders compute."""

    attention: Array  # (B, N, T, T)
    attended: Array  # (B, N, T, d)
    inside: Array  # (B, N, T, m), before the relu
    hidden: Array  # (B, N, m), F_pre
    outputs: Array  # (B, N)


def evaluate(draws: Draws, residual: Array | None = None) -> Passed:
    """One pass; `residual` (B, d, m) adds x S before the relu. Complex weights are passed on, signs by real parts."""
    x = draws.x
    product = np.swapaxes(draws.Q, -1, -2) @ draws.K
    logits = draws.tau0[:, None, None, None] * (x @ product[:, None] @ np.swapaxes(x, -1, -2))
    logits = logits - logits.real.max(-1, keepdims=True)
    attention = np.exp(logits)
    attention = attention / attention.sum(-1, keepdims=True)
    attended = attention @ x
    inside = attended @ np.swapaxes(draws.V, -1, -2)[:, None]
    if residual is not None:
        inside = inside + x @ residual[:, None]
    hidden = draws.tau1[:, None, None] * np.where(inside.real > 0, inside, 0.0).sum(-2)
    return Passed(attention, attended, inside, hidden, np.einsum("bnm,bm->bn", hidden, draws.O))


def jacobian(draws: Draws, passed: Passed | None = None) -> dict[str, Array]:
    """Gradients of every output by each parameter, (B, N, m, d) and (B, N, m): Eqs. (7) to (10) with slopes of relu."""
    at = evaluate(draws) if passed is None else passed
    slopes, products = _pulled_back(draws, at)
    tau1 = draws.tau1[:, None, None, None]
    through = (draws.tau0 * draws.tau1)[:, None, None, None]
    return {
        "Q": through * (draws.K[:, None] @ np.swapaxes(products, -1, -2)),
        "K": through * (draws.Q[:, None] @ products),
        "V": tau1 * (np.swapaxes(slopes, -1, -2) @ at.attended),
        "O": at.hidden,
    }


def loss_gradient(draws: Draws, passed: Passed, errors: Array) -> dict[str, Array]:
    """Gradient of half the sum of squares for errors f - y (B, N), without a gradient for each output."""
    slopes, products = _pulled_back(draws, passed)
    slopes = slopes * errors[:, :, None, None]
    product = np.einsum("bn,bnde->bde", errors, products)
    through = (draws.tau0 * draws.tau1)[:, None, None]
    flat = [a.reshape(len(a), -1, a.shape[-1]) for a in (slopes, passed.attended)]
    return {
        "Q": through * (draws.K @ np.swapaxes(product, -1, -2)),
        "K": through * (draws.Q @ product),
        "V": draws.tau1[:, None, None] * (np.swapaxes(flat[0], -1, -2) @ flat[1]),
        "O": np.einsum("bn,bnm->bm", errors, passed.hidden),
    }


def _pulled_back(draws: Draws, at: Passed) -> tuple[Array, Array]:
    """w_O where the relu is active (B, N, T, m), and X^T R X (B, N, d, d), R what the softmax passes back."""
    slopes = np.where(at.inside > 0, draws.O[:, None, None, :], 0.0)
    by_attention = (slopes @ draws.V[:, None]) @ np.swapaxes(draws.x, -1, -2)
    # b_t (s_t - sum_k b_k s_k) as b_t sum_k b_k (s_t - s_k), which does not cancel.
    gaps = by_attention[..., :, None] - by_attention[..., None, :]
    by_logits = at.attention * np.einsum("bnik,bnitk->bnit", at.attention, gaps)
    return slopes, np.swapaxes(draws.x, -1, -2) @ by_logits @ draws.x


def spectral(array: Array) -> Array:
    """Spectral norm of each matrix (B, m, d), or length of each vector (B, m)."""
    return np.linalg.norm(array, 2, axis=(-2, -1)) if array.ndim == 3 else np.linalg.norm(array, axis=-1)


def frobenius(array: Array) -> Array:
    """Frobenius norm of each entry of a batch, (B,)."""
    return np.linalg.norm(array.reshape(len(array), -1), axis=-1)


def changes(one: Draws, other: Draws) -> dict[str, Array]:
    """Spectral norms of what each parameter changes by, (B,)."""
    return {p: spectral(getattr(other, p) - getattr(one, p)) for p in LETTERS}


def total_change(one: Draws, other: Draws) -> Array:
    """Euclidean norm of the change of all parameters together, (B,)."""
    squares = [frobenius(getattr(other, p) - getattr(one, p)) ** 2 for p in LETTERS]
    return np.sqrt(np.sum(squares, axis=0))


def stacked(gradients: dict[str, Array]) -> Array:
    """All gradients of an output in one row, (B, N, P)."""
    return np.concatenate([gradients[p].reshape(*gradients[p].shape[:2], -1) for p in LETTERS], axis=-1)


def bound_constants(*ends: Draws, start_loss: Array | None = None) -> list[Constants]:
    """The constants of each draw with l_P the largest norm among the ends: the least that the lemmas allow."""
    first = ends[0]
    B, N, T, d = first.x.shape
    C_x = np.linalg.norm(first.x, axis=(-2, -1)).max(-1) / np.sqrt(T)
    bars = {p: np.max([spectral(getattr(end, p)) for end in ends], axis=0) for p in LETTERS}
    losses = np.zeros(B) if start_loss is None else start_loss

    def of(i: int) -> Constants:
        halves = {p: 0.5 * float(bars[p][i]) for p in LETTERS}  # l_P = |W_P| + C_P
        return Constants(
            N=N,
            T=T,
            d=d,
            width=first.O.shape[-1],
            tau0=float(first.tau0[i]),
            tau1=float(first.tau1[i]),
            C_x=float(C_x[i]),
            norms=halves,
            radius={p: max(half, 1e-300) for p, half in halves.items()},
            alpha=0.0,
            start_loss=float(losses[i]),
        )

    return [of(i) for i in range(B)]


def least_singular_values(hidden: Array) -> Array:
    """alpha of each draw (B,), from F_pre (B, N, m)."""
    return np.array([least_singular_value(rows) for rows in hidden])


def first_rows(passed: Passed) -> Array:
    """Phi: the attended first token of each sequence, (B, N, d)."""
    return passed.attended[:, :, 0]


# Draws ------------------------------------------------------------------------------------------------------------


def random_pairs(count: int, shape: tuple[int, int, int, int], seed: int = 0) -> tuple[Draws, Draws]:
    """Encoders with scales log-uniform over a decade either way, and others at distances over six decades."""
    rng = np.random.default_rng((seed, *shape))
    N, T, d, m = shape

    def scale() -> Array:
        return 10.0 ** rng.uniform(-1.0, 1.0, count)

    x = rng.standard_normal((count, N, T, d)) * scale()[:, None, None, None]
    Q, K, V = (rng.standard_normal((count, m, d)) * scale()[:, None, None] for _ in range(3))
    one = Draws(x, Q, K, V, rng.standard_normal((count, m)) * scale()[:, None], scale(), scale())
    size = 10.0 ** rng.uniform(-6.0, 0.0, (4, count))
    by = {}
    for p, share in zip(LETTERS, size, strict=True):
        step = rng.standard_normal(getattr(one, p).shape)
        by[p] = step * _along(share * spectral(getattr(one, p)) / spectral(step), step)
    return one, one.moved(by)


def aligned_pairs(count: int, tokens: int, seed: int = 0) -> tuple[Draws, Draws]:
    """Where bounds are met, or nearly: equal sequences u (one token) or (u, -u), weights of rank one along u.

    With W_V = v u^T and w_O = v for v >= 0 every relu that matters is active; both ends lie along the same directions.
    """
    rng = np.random.default_rng((seed, tokens, 7))
    N, d, m = 3, 4, 6
    u = rng.standard_normal((count, d))
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    a, v = rng.standard_normal((count, m)), rng.uniform(0.1, 1.0, (count, m))
    a, v = (w / np.linalg.norm(w, axis=-1, keepdims=True) for w in (a, v))
    signs = np.array([1.0, -1.0])[:tokens]
    x = np.broadcast_to((signs[:, None] * u[:, None, :])[:, None], (count, N, tokens, d))
    x = x * 10.0 ** rng.uniform(-0.5, 0.5, count)[:, None, None, None]
    reach = np.linalg.norm(x[:, 0, 0], axis=-1) ** 2
    ranks = {
        "Q": a[:, :, None] * u[:, None, :],
        "K": a[:, :, None] * u[:, None, :],
        "V": v[:, :, None] * u[:, None, :],
        "O": v,
    }
    size = {p: 10.0 ** rng.uniform(-1.0, 1.0, count) for p in LETTERS}
    # Logits +-0.05 are where the softmax is steepest; one token has no logits to speak of.
    tau0 = 0.05 / (size["Q"] * size["K"] * reach) if tokens > 1 else np.full(count, 1e-8)
    weights = {p: _along(size[p], ranks[p]) * ranks[p] for p in LETTERS}
    one = Draws(x=x, tau0=tau0, tau1=10.0 ** rng.uniform(-1, 1, count), **weights)
    share = {p: 10.0 ** rng.uniform(-6.0, -3.0, count) for p in LETTERS}
    return one, one.moved({p: _along(share[p] * size[p], ranks[p]) * ranks[p] for p in LETTERS})


def opposed_pairs(moves: str, count: int, logits: float | None = None) -> tuple[Draws, Draws]:
    """Two tokens cos(e) and -sin(e) of one dimension, where changes through the softmax come closest to their bounds.

    The sequence has norm 1, so that both tokens together use up Assumption 1. One neuron; |W_V| = |w_O| = 1. All angles
    e up to 45 degrees, by all logits of the first token to itself up to 8, a grid of count^2; or that logit alone. The
    parameter `moves` moves by 1e-5.
    """
    angles = np.linspace(0.0, np.pi / 4, count)
    first_logits = np.linspace(0.0, 8.0, count) if logits is None else np.array([logits])
    angle, logit = (grid.ravel() for grid in np.meshgrid(angles, first_logits, indexing="ij"))
    B = len(angle)
    one = np.ones((B, 1, 1))
    x = np.stack([np.cos(angle), -np.sin(angle)], axis=-1)[:, None, :, None]  # (B, 1, 2, 1)
    steered = logit[:, None, None] * one  # a unit partner and tau0 = 1 make it the logit of a unit token
    queries, keys = (steered, one) if moves != "K" else (one, steered)
    draws = Draws(x, queries, keys, one, one[:, :, 0], np.ones(B), np.ones(B))
    return draws, draws.moved({moves: np.full_like(getattr(draws, moves), 1e-5)})


def lone_pairs(moves: str, T: int = 20) -> tuple[Draws, Draws]:
    """One token of length 1 among T - 1 zeros, to which it gives half its attention: Lemma 7 on longer sequences."""
    x = (np.arange(T) == 0.0).astype(float)[None, None, :, None]
    one = np.ones((1, 1, 1))
    steered = np.log(T - 1.0) * one
    queries, keys = (steered, one) if moves == "Q" else (one, steered)
    draws = Draws(x, queries, keys, one, one[:, :, 0], np.ones(1), np.ones(1))
    return draws, draws.moved({moves: np.full((1, 1, 1), 1e-5)})


def tokens(N: int, T: int, d: int, *, seed: int = 0, rows: str = "unit", count: int = 1) -> Array:
    """Gaussian tokens (count, N, T, d), of length 1 unless `rows` is "raw"."""
    x = np.random.default_rng((seed, N, T, d)).standard_normal((count, N, T, d))
    return x / np.linalg.norm(x, axis=-1, keepdims=True) if rows == "unit" else x


def starts(
    law: str, scaling: str, N: int, T: int, d: int, m: int, *, seed: int = 0, rows: str = "unit", count: int = 1
) -> tuple[Draws, float]:
    """Encoders as they start under the law "lecun", "he" or "ntk" with tau0 = m^(-1/2) or 1/m, and the variance of W_V.

    Tokens do not change with the law or the width, nor do standard normal weights with the law.
    """
    rng = np.random.default_rng((seed, d, m, 1))
    gain = {"lecun": 1.0, "he": 2.0}.get(law)
    variance = 1.0 if gain is None else gain / d
    Q, K, V = (np.sqrt(variance) * rng.standard_normal((count, m, d)) for _ in range(3))
    w_O = np.sqrt(1.0 if gain is None else gain / m) * rng.standard_normal((count, m))
    x = tokens(N, T, d, seed=seed, rows=rows, count=count)
    tau0 = float(m) ** {"sqrt": -0.5, "linear": -1.0}[scaling]
    tau1 = 1.0 if gain is not None else float(m) ** -0.5
    return Draws(x, Q, K, V, w_O, np.full(count, tau0), np.full(count, tau1)), variance


def steep_pairs(count: int, moves: str, length: float = 1.0, seed: int = 0) -> tuple[Draws, Draws]:
    """Steep attention of nearly no output: W_Q or W_K goes from 0 to a logit of 0.01 to 1, with |W_V| = |w_O| = 1e-6,
    tokens of this length and tau0 = 1e10 / length^2.

    Its second derivative, third cumulants of skew tokens times tau0^2, is what the bounds must hold then.
    """
    rng = np.random.default_rng((seed, 11))
    size = rng.uniform(0.5, 2.0, (5, count))
    x = np.zeros((count, 1, 3, 1))
    longest = length * size[0]
    x[:, 0, 2, 0], x[:, 0, 0, 0] = longest, 0.05 * longest * rng.uniform(0.0, 1.0, count)
    other, tau0 = size[1][:, None, None], 1e10 / length**2 * size[2]
    zero = np.zeros((count, 1, 1))
    small = {"V": 1e-6 * size[3][:, None, None], "O": 1e-6 * size[4][:, None]}
    queries, keys = (zero, other) if moves == "Q" else (other, zero)
    one = Draws(x, queries, keys, small["V"], small["O"], tau0, np.ones(count))
    logit = 10.0 ** rng.uniform(-2.0, 0.0, count)
    return one, one.moved({moves: np.ones((count, 1, 1))}, logit / (tau0 * other[:, 0, 0] * longest**2))
