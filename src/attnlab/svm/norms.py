"""Norms of weights for the max-margin problem, each told by three functions.

A norm enters the solver of `attnlab.svm.generic` through its proximal map and the certificate through its dual norm:

    dual(M)     = max <M, W> over |W| <= 1
    prox(W, t)  = argmin over V of  t |V| + |V - W|_F^2 / 2  =  W - (projection of W onto the dual ball of radius t)

`Norm(name="mine", value=..., dual=..., prox=...)` adds one. `check_norm` measures whether the three fit together.

| name | value | dual |
|---|---|---|
| `FROBENIUS` | root of the sum of squares | itself |
| `NUCLEAR` | sum of the singular values | spectral |
| `SPECTRAL` | largest singular value | nuclear |
| `ENTRYWISE_L1` | sum of absolute entries | largest absolute entry |
| `ENTRYWISE_MAX` | largest absolute entry | sum of absolute entries (slow: hundreds to thousands of steps) |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnlab.checks import instance, number, whole
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A norm on matrices.

    Args:
        name: what results call it.
        value: |W|, of a matrix of any shape.
        dual: the dual norm, max <M, W> over |W| <= 1.
        prox: (W, t) -> argmin over V of t |V| + |V - W|_F^2 / 2, for t > 0.
        rotation_invariant: does |U W V| = |W| hold for orthogonal U and V? Then some optimum has its columns in the
            span of the token differences and its rows in that of the queries (Lemma 1 of *Transformers as Support
            Vector Machines*, whose projection argument holds for every such norm), and the solver works in those
            coordinates. It is never wrong to leave this False.
        corners: for a norm whose unit ball has few corners: M -> corners V of it, (k, rows, columns), among them one
            with <V, M> = dual(M). The problem is then a linear program, solved exactly without the proximal map.
        strictly_convex: is |V + W| < |V| + |W| unless one of them is a multiple of the other? Then there is one optimum
            only. It is never wrong to leave this False.

    >>> ENTRYWISE_L1.value(np.array([[3.0, -1.0]])), ENTRYWISE_L1.dual(np.array([[3.0, -1.0]]))
    (4.0, 3.0)
    >>> ENTRYWISE_L1.prox(np.array([[3.0, -0.5]]), 1.0)
    array([[ 2., -0.]])
    """

    name: str
    value: Callable[[Array], float]
    dual: Callable[[Array], float]
    prox: Callable[[Array, float], Array]
    rotation_invariant: bool = False
    corners: Callable[[Array], Array] | None = None
    strictly_convex: bool = False


def check_norm(norm: Norm, shape: tuple[int, int] = (4, 3), *, seed: int = 0, tolerance: float = 1e-9) -> None:
    """Raise `InputError` if the three functions of a norm contradict each other on random matrices.

    V = prox(W, t) is the minimizer exactly if M = (W - V) / t has dual(M) <= 1 and <M, V> = |V|. Both are tested, with
    dual(W) |V| >= <W, V>, |2 W| = 2 |W|, and rotations where the norm claims to be invariant.

    >>> check_norm(SPECTRAL)
    """
    instance("norm", norm, Norm, "an al.svm.Norm", "attnlab.svm.norms has ready-made ones")
    rng = np.random.default_rng(whole("seed", seed, 0))
    number("tolerance", tolerance, least=0.0)
    try:
        with np.errstate(all="ignore"):  # 0 / 0 is a contradiction too: NaN is at most nothing
            faults = _contradictions(norm, shape, rng)
    except InputError:
        raise
    except Exception as error:  # what the user's functions raise, and what is no number
        raise InputError(
            message(
                f"`norm` {norm.name!r} cannot be evaluated: {type(error).__name__}: {error}",
                "value and dual return numbers, prox a matrix",
            )
        ) from error
    for fault, excess, t in faults:
        if not excess <= tolerance:
            raise InputError(
                message(f"`norm` {norm.name!r} contradicts itself: {fault} (by {excess:.1e}, at t = {t:.3g}).")
            )


def _contradictions(norm: Norm, shape: tuple[int, int], rng: np.random.Generator) -> list[tuple[str, float, float]]:
    """(what may not fit, by how much it does not, at which t), for random matrices of several sizes."""
    found = []
    for scale in np.geomspace(0.1, 10.0, 7):
        W = rng.standard_normal(shape)
        t = float(scale * norm.value(W) / W.size)
        V = norm.prox(W, t)
        M = (W - V) / t
        size = norm.value(V)
        faults = {
            "|2 W| is not 2 |W|": abs(norm.value(2.0 * W) - 2.0 * norm.value(W)) / norm.value(W),
            "dual((W - prox(W, t)) / t) exceeds 1": norm.dual(M) - 1.0,
            "<(W - prox(W, t)) / t, prox(W, t)> is not |prox(W, t)|": abs(float(np.sum(M * V)) - size) / max(size, t),
            "<W, V> exceeds dual(W) |V|": float(np.sum(W * V)) / (norm.dual(W) * max(size, t)) - 1.0,
        }
        if norm.rotation_invariant:
            U = np.linalg.qr(rng.standard_normal((shape[0], shape[0])))[0]
            faults["|U W| is not |W| for orthogonal U"] = abs(norm.value(U @ W) / norm.value(W) - 1.0)
        if norm.corners is not None:
            given = norm.corners(W)
            faults["a corner is longer than 1"] = max(norm.value(V) for V in given) - 1.0
            best = float(np.einsum("kab,ab->k", given, W).max())
            faults["no corner attains the dual norm"] = 1.0 - best / norm.dual(W)
        found += [(fault, float(excess), t) for fault, excess in faults.items()]
    return found


def _length(W: Array) -> float:
    return float(np.linalg.norm(W))


def _shrink_length(W: Array, t: float) -> Array:
    length = _length(W)
    return W * (1.0 - t / length) if length > t else np.zeros_like(W)


def _singular(W: Array) -> Array:
    singular: Array = np.linalg.svd(W, compute_uv=False).astype(np.float64)
    return singular


def _shrink_singular(W: Array, t: float) -> Array:
    left, singular, right = np.linalg.svd(W, full_matrices=False)
    return (left * np.maximum(singular - t, 0.0)) @ right


def _cap_singular(W: Array, t: float) -> Array:
    left, singular, right = np.linalg.svd(W, full_matrices=False)
    return (left * np.minimum(singular, _cap(singular, t))) @ right


def _shrink_entries(W: Array, t: float) -> Array:
    return np.sign(W) * np.maximum(np.abs(W) - t, 0.0)


def _largest_entries(M: Array, most: int = 20) -> Array:
    """Matrices with one entry, +1 or -1, at the largest entries of M."""
    largest = np.argsort(np.abs(M), axis=None)[-most:]
    corners = np.zeros((len(largest), M.size))
    corners[np.arange(len(largest)), largest] = np.where(M.reshape(-1)[largest] < 0, -1.0, 1.0)
    return corners.reshape(-1, *M.shape)


def _cap_entries(W: Array, t: float) -> Array:
    cap = _cap(np.abs(W).reshape(-1), t)
    return np.clip(W, -cap, cap)


def _cap(sizes: Array, t: float) -> float:
    """The c >= 0 with sum max(sizes - c, 0) = t; 0 if the sizes sum to t or less. It costs one sort."""
    down = np.sort(sizes)[::-1]
    above = np.cumsum(down) - t
    level = above / np.arange(1, len(down) + 1)
    last = int(np.flatnonzero(down >= level)[-1])
    return max(float(level[last]), 0.0)


FROBENIUS = Norm(
    name="frobenius",
    value=_length,
    dual=_length,
    prox=_shrink_length,
    rotation_invariant=True,
    strictly_convex=True,
)
NUCLEAR = Norm(
    name="nuclear",
    value=lambda W: float(_singular(W).sum()),
    dual=lambda W: float(_singular(W)[0]),
    prox=_shrink_singular,
    rotation_invariant=True,
)
SPECTRAL = Norm(
    name="spectral",
    value=lambda W: float(_singular(W)[0]),
    dual=lambda W: float(_singular(W).sum()),
    prox=_cap_singular,
    rotation_invariant=True,
)
ENTRYWISE_L1 = Norm(
    name="entrywise l1",
    value=lambda W: float(np.abs(W).sum()),
    dual=lambda W: float(np.abs(W).max()),
    prox=_shrink_entries,
    corners=_largest_entries,
)
ENTRYWISE_MAX = Norm(
    name="entrywise max",
    value=lambda W: float(np.abs(W).max()),
    dual=lambda W: float(np.abs(W).sum()),
    prox=_cap_entries,
)
