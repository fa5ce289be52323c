"""What an expert writes to train one attention layer with normalized gradient descent, on many trials at once.

Each of these makes a function of the number of steps that returns the weights. They take the same tokens and the same
start, (R, d, d) of W or of K and Q, and divide the gradient of the mean logistic loss by its norm, each weight by its
own.

- `plain_jax`: `jax.grad` of the formula with `jax.nn.softmax`, `lax.scan`, `vmap` over trials, one `jit`.
- `batched_torch`: the gradient in closed form, one einsum for each product, all trials in each operation.
- `compiled_loop`: a loop over the n T logits of one trial, compiled by Numba, which follows the logits alone
  (a <- a - eta G h with the Gram matrix G of the features) and needs no d x d weights until the end; W only. Its
  softmax is centred on the top token, as ours is: of the peers it alone is right after saturation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Weights = dict[str, np.ndarray]
Train = Callable[[int], Weights]
ETA = 0.1
TINY = 2.22e-16  # what published code adds to the norm


def plain_jax(tokens: Any, start: Weights) -> Train:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def loss(weights: Any, x: Any, z: Any, y: Any, v: Any) -> Any:
        queries = z @ weights["W"].T if "W" in weights else (z @ weights["Q"]) @ weights["K"].T
        attention = jax.nn.softmax(jnp.einsum("ntd,nd->nt", x, queries), axis=-1)
        margins = y * jnp.einsum("nt,nt->n", attention, x @ v)
        return jnp.mean(jax.nn.softplus(-margins))

    def unit(slope: Any) -> Any:
        return slope / (jnp.linalg.norm(slope) + TINY)

    @jax.jit
    @jax.vmap
    def run(weights: Any, x: Any, z: Any, y: Any, v: Any, steps: Any) -> Any:
        def step(weights: Any, _: Any) -> Any:
            slopes = jax.grad(loss)(weights, x, z, y, v)
            return {name: w - ETA * unit(slopes[name]) for name, w in weights.items()}, None

        return jax.lax.scan(step, weights, steps)[0]

    given = [jnp.asarray(array) for array in (tokens.x, tokens.z, tokens.y, tokens.v)]
    begin = {name: jnp.asarray(w) for name, w in start.items()}

    def train(steps: int) -> Weights:
        counts = jnp.zeros((len(tokens.y), steps))
        return {name: np.asarray(w) for name, w in run(begin, *given, counts).items()}

    return train


def batched_torch(tokens: Any, start: Weights) -> Train:
    import torch

    torch.set_num_threads(1)  # more of them collapse on operations this small
    x, z, y, v = (torch.tensor(array) for array in (tokens.x, tokens.z, tokens.y, tokens.v))
    gains = y[..., None] * torch.einsum("rntd,rd->rnt", x, v)
    n = y.shape[1]

    @torch.no_grad()
    def train(steps: int) -> Weights:
        weights = {name: torch.tensor(w) for name, w in start.items()}
        inner = z
        for _ in range(steps):
            if "W" in weights:
                queries = torch.einsum("rde,rne->rnd", weights["W"], z)
            else:
                inner = torch.einsum("rem,rne->rnm", weights["Q"], z)
                queries = torch.einsum("rdm,rnm->rnd", weights["K"], inner)
            attention = torch.softmax(torch.einsum("rntd,rnd->rnt", x, queries), -1)
            margins = (attention * gains).sum(-1)
            pull = attention * (gains - margins[..., None]) * (-torch.sigmoid(-margins) / n)[..., None]
            keys = torch.einsum("rnt,rntd->rnd", pull, x)
            if "W" in weights:
                slopes = {"W": torch.einsum("rnd,rne->rde", keys, z)}
            else:
                back = torch.einsum("rnd,rdm->rnm", keys, weights["K"])
                slopes = {
                    "K": torch.einsum("rnd,rnm->rdm", keys, inner),
                    "Q": torch.einsum("rne,rnm->rem", z, back),
                }
            for name, slope in slopes.items():
                norm = torch.linalg.matrix_norm(slope, keepdim=True) + TINY
                weights[name].addcdiv_(slope, norm, value=-ETA)
        return {name: w.numpy() for name, w in weights.items()}

    return train


def compiled_loop(tokens: Any, start: Weights) -> Train:
    import numba

    @numba.njit(parallel=True)
    def run(logits: Any, grams: Any, gains: Any, signs: Any, steps: int) -> Any:
        trials, n, T = logits.shape
        moved = np.zeros_like(logits)
        for r in numba.prange(trials):
            a, gram, total = logits[r].copy().ravel(), grams[r], np.zeros(n * T)
            h, change = np.empty(n * T), np.empty(n * T)
            log_off, slopes = np.empty(n), np.empty(n)
            for _ in range(steps):
                for i in range(n):
                    row = a[i * T : (i + 1) * T]
                    top = row.argmax()
                    gain = gains[r, i, top]
                    # Everything is divided by the weight of the heaviest token but the top one.
                    second = -np.inf
                    for t in range(T):
                        if t != top:
                            second = max(second, row[t] - row[top])
                    weight, mean = 0.0, 0.0
                    for t in range(T):
                        if t != top:
                            e = np.exp(row[t] - row[top] - second)
                            h[i * T + t] = e
                            weight += e
                            mean += e * (gains[r, i, t] - gain)
                    peak = np.exp(second)
                    weight = 1.0 + peak * weight
                    mean /= weight
                    pull = 0.0
                    for t in range(T):
                        if t != top:
                            h[i * T + t] *= (gains[r, i, t] - gain - peak * mean) / weight
                            pull += h[i * T + t]
                    h[i * T + top] = -pull
                    log_off[i] = second
                    slopes[i] = -1.0 / (1.0 + np.exp(gain + peak * mean))
                scale = log_off.max()
                for i in range(n):
                    factor = slopes[i] * np.exp(log_off[i] - scale)
                    for t in range(T):
                        h[i * T + t] *= factor
                squares = 0.0
                for k in range(n * T):
                    change[k] = 0.0
                    for j in range(n * T):
                        change[k] += gram[k, j] * h[j]
                    squares += h[k] * change[k]
                rate = ETA / np.sqrt(squares)
                for k in range(n * T):
                    a[k] -= rate * change[k]
                    total[k] -= rate * h[k]
            moved[r] = total.reshape(n, T)
        return moved

    x, z, y, v = tokens.x, tokens.z, tokens.y, tokens.v
    trials, n, T, _ = x.shape

    def train(steps: int) -> Weights:
        # The Gram matrix of the features x_it z_i^T of all logits.
        among_tokens = np.einsum("ritd,rjsd->ritjs", x, x)
        among_queries = np.einsum("rid,rjd->rij", z, z)
        grams = (among_tokens * among_queries[:, :, None, :, None]).reshape(trials, n * T, n * T)
        logits = np.einsum("ritd,rde,rie->rit", x, start["W"], z, optimize=True)
        gains = y[..., None] * np.einsum("ritd,rd->rit", x, v)
        moved = run(logits, grams, gains, y, steps)
        return {"W": start["W"] + np.einsum("rit,ritd,rie->rde", moved, x, z, optimize=True)}

    return train


def product(weights: Weights) -> np.ndarray:
    """W, or K Q^T."""
    if "W" in weights:
        return weights["W"]
    return np.einsum("rdm,rem->rde", weights["K"], weights["Q"])
