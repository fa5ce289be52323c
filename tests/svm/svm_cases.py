"""Seeded problems for the margin solvers."""

import numpy as np
from level_verifier import single

from attnlab import Tokens

SIZES = [(1, 2, 2), (1, 4, 5), (2, 3, 3), (3, 3, 4), (3, 5, 6), (4, 4, 5), (5, 5, 10), (6, 8, 10), (8, 3, 9), (2, 9, 9)]


def problem(seed, sizes=SIZES):
    """Tokens and a random selection. In turn: cross-attention, self-attention, every query, causal, masked."""
    rng = np.random.default_rng([77, seed])
    n, T, d = sizes[seed % len(sizes)]
    kind = ("cross", "self", "all", "causal", "masked")[(seed // len(sizes)) % 5]
    x = rng.standard_normal((n, T, d))
    if rng.random() < 0.5:
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
    if kind == "self":
        tokens = Tokens.self_attention(x, np.ones(n), query=int(rng.integers(T)))
        return tokens, rng.integers(T, size=n)
    if kind in ("all", "causal"):
        n = min(n, max(1, d // T))  # one sequence's queries are T independent vectors at most d
        x = x[:n]
        tokens = Tokens.self_attention(x, np.ones((n, T)), query="all", mask="causal" if kind == "causal" else None)
        allowed = np.arange(1, T + 1) if kind == "causal" else np.full(T, T)
        return tokens, np.stack([rng.integers(allowed) for _ in range(n)])
    z = rng.standard_normal((n, d))
    if kind == "cross":
        return Tokens(x=x, z=z, y=np.ones(n)), rng.integers(T, size=n)
    selected = rng.integers(T, size=n)
    mask = rng.random((n, T)) < 0.7
    mask[np.arange(n), selected] = True
    return Tokens(x=x, z=z, y=np.ones(n), mask=mask), selected


def correlated(seed, n=5, T=5, d=10, tokens=0.99, queries=0.999):
    """Tokens that all nearly agree, and queries that agree even more."""
    rng = np.random.default_rng([78, seed])

    def near(shape, correlation):
        common = rng.standard_normal(d)
        return np.sqrt(correlation) * common + np.sqrt(1 - correlation) * rng.standard_normal((*shape, d))

    made = Tokens(x=near((n, T), tokens), z=near((n,), queries), y=np.ones(n))
    return made, rng.integers(T, size=n)


def cross(seed, n=4, T=4, d=6):
    """A plain feasible problem."""
    rng = np.random.default_rng([79, seed])
    tokens = Tokens(x=rng.standard_normal((n, T, d)), z=rng.standard_normal((n, d)), y=np.ones(n))
    return tokens, rng.integers(T, size=n)


def scaled(tokens, k, j):
    """Tokens times 2^k, queries times 2^j."""
    return Tokens(x=np.ldexp(tokens.x, k), z=np.ldexp(tokens.z, j), y=tokens.y, mask=tokens.mask)


def kept_tokens(tokens, seed, share=0.5):
    """A random set of visible tokens for each query, never empty."""
    rng = np.random.default_rng([5, seed])
    noise = rng.random(tokens.visible.shape)
    kept = tokens.visible & (noise < share)
    first = np.where(tokens.visible, noise, 2.0).argmin(-1)
    return kept | single(first, tokens.T)
