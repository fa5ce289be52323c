"""Judges of directions, scores and coordinates: right to rounding at any scale, in extended precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.calls import Call

Wide = np.longdouble


def compared(call: Call, found: Any) -> str | None:
    """Of `cosine`, `misalignment` and `kernel_distance`, which is a misalignment."""
    a, b = (np.array(given, dtype=np.float64).astype(Wide) for given in call.args)
    length = np.sqrt((a * a).sum((-2, -1)) * (b * b).sum((-2, -1)))
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = ((a * b).sum((-2, -1)) / length).astype(np.float64)
    wanted = cosine if "cosine" in call.function.__name__ else 1.0 - cosine
    found = np.asarray(found, dtype=np.float64)
    if found.shape != wanted.shape:
        return f"shape {found.shape}, wanted {wanted.shape}"
    known = (length > 0) & np.isfinite(length)
    if (np.isnan(found) == known).any():
        return "NaN where both have a direction, or none where one has not"
    if (np.abs(found - wanted)[known] > 1e-12).any():
        return f"{found} is not {wanted}"
    return None


def scored(call: Call, found: Any) -> str | None:
    """Of `scores` and `optimal_tokens` with the linear head: right to rounding, the best token among visible ones."""
    tokens, *heads = call.args
    if heads or tokens.v is None:
        return None
    x, v, y = (np.asarray(part).astype(Wide) for part in (tokens.x, tokens.v, tokens.y))
    products = x * v[..., None, None, :]
    gamma, sizes = products.sum(-1), np.abs(products).sum(-1)  # (..., n, T)
    if tokens.K is not None:
        gamma, sizes = gamma[..., None, :], sizes[..., None, :]
    gamma = y[..., None] * gamma
    sizes = np.broadcast_to(sizes, gamma.shape)
    tiny = np.finfo(np.float64).tiny
    if "scores" in call.function.__name__:
        wrong = np.abs(np.asarray(found).astype(Wide) - gamma) > 1e-13 * sizes + tiny
        return "scores are not y v.x" if wrong.any() else None
    chosen = np.asarray(found[0] if isinstance(found, tuple) else found)[..., None]
    if not np.take_along_axis(tokens.visible, chosen, -1).all():
        return "a hidden token is called best"
    seen = np.where(tokens.visible, gamma, -np.inf)
    largest = np.where(tokens.visible, sizes, 0).max(-1, keepdims=True)
    if (np.take_along_axis(gamma, chosen, -1) < seen.max(-1, keepdims=True) - 4e-12 * largest).any():
        return "another token has a higher score"
    return None


def spanned(call: Call, found: Any) -> str | None:
    """Of `in_span`: an orthonormal basis in which tokens are what they were, each to rounding of its own size."""
    tokens, (small, basis) = call.args[0], found
    r = basis.shape[-1]
    grams = np.einsum("...ar,...as->...rs", basis, basis)
    kept = np.abs(basis).max(-2) > 0
    if (np.abs(grams - np.eye(r) * kept[..., None, :]) > 1e-12).any():
        return "the basis is not orthonormal"
    for name in ("x", "z"):
        before, after = (getattr(one, name).astype(Wide) for one in (tokens, small))
        back = _rows(after[..., :r]) @ np.swapaxes(basis, -1, -2) if tokens.trials else after[..., :r] @ basis.T
        back = back.reshape(before.shape)
        length = np.sqrt((before * before).sum(-1, keepdims=True))
        if (np.abs(back - before) > 1e-12 * length + np.finfo(np.float64).tiny).any():
            return f"`{name}` is not what it was"
    return None


def _rows(array: np.ndarray) -> np.ndarray:
    """(trials, rows, r)."""
    return array.reshape(len(array), -1, array.shape[-1])
