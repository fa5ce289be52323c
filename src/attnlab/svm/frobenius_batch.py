"""Hundreds of Frobenius max-margin problems of one shape at once: the active-set method on stacked arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.svm.certificate import EPS, UNSURE
from attnlab.svm.dual import MET, ROUNDS
from attnlab.svm.stacked import StackedRows, Together

# Numbers in the Gram matrices that are worked on at a time.
GRAMS = 50_000
# Products for the first guess: for the step length, and steps.
POWERS, STEPS = 4, 16


def frobenius_together(rows: StackedRows) -> Together:
    """Multipliers and certificates of all trials; an infinite gap where a trial did not settle.

    Some at a time, so that the Gram matrices stay in the processor's cache and memory does not grow with trials.
    """
    trials, N, d = rows.p.shape
    found = Together.empty(trials, N, d)
    step = max(1, GRAMS // N**2)
    with np.errstate(all="ignore"):
        for start in range(0, trials, step):
            some = slice(start, start + step)
            found.multipliers[some], settled = _multipliers(rows, some)
            _certify(rows, some, found)
            found.gap[some][~settled] = np.inf
    return found


def _multipliers(rows: StackedRows, some: slice) -> tuple[Array, NDArray[np.bool_]]:
    """The active-set method on some trials side by side; multipliers, and which of them are settled."""
    norms = rows.norms[some]
    trials, N = norms.shape
    unit = rows.p[some] / rows.p_lengths[some, :, None]
    q = rows.queries[some] / rows.q_lengths[some, :, None]
    bound = 1.0 / norms
    bound /= bound.max(-1, keepdims=True)
    gram = np.matmul(q, q.transpose(0, 2, 1)).take(rows.query, axis=1).take(rows.query, axis=2)
    gram *= np.matmul(unit, unit.transpose(0, 2, 1))
    found, settled = np.zeros((trials, N)), np.zeros(trials, dtype=bool)
    guess = _first_guess(gram, bound)
    left = np.flatnonzero((norms.min(-1) > 0) & guess.any(-1))
    diagonal = np.arange(N)
    for _ in range(ROUNDS):
        if not left.size:
            break
        inside, G, b = guess[left], gram[left], bound[left]
        # Rows outside the guess become rows of the identity, so that all systems have one size.
        system = G * (inside[:, :, None] & inside[:, None, :])
        system[:, diagonal, diagonal] = 1.0
        try:
            solved = np.linalg.solve(system, (b * inside)[..., None])
        except np.linalg.LinAlgError:
            break
        values, solved = np.matmul(G, solved)[..., 0], solved[..., 0]
        better = np.where(inside, solved > 0, values < (1.0 - MET) * b)
        same = (better == inside).all(-1)
        found[left[same]], settled[left[same]] = solved[same], True
        guess[left] = better
        left = left[~same & better.any(-1)]
    return np.where(settled[:, None], found / norms, 0.0), settled


def _first_guess(gram: Array, bound: Array) -> NDArray[np.bool_]:
    """Which rows will be tight, by accelerated projected gradients: products are cheap beside solving systems."""
    b = v = bound[..., None]
    step = np.ones_like(v[:, :1])
    for _ in range(POWERS):  # towards one over the largest eigenvalue
        v = np.matmul(gram, step * v)
        step = 1.0 / np.abs(v).max(1, keepdims=True)
    x = ahead = b * step
    for k in range(STEPS):
        new = np.maximum(ahead - step * (np.matmul(gram, ahead) - b), 0.0)
        ahead = new + (k / (k + 3.0)) * (new - x)
        x = new
    return (x > np.matmul(gram, x) - b)[..., 0]


def _certify(rows: StackedRows, some: slice, found: Together) -> None:
    """W scaled to least value 1, and the certificate, of some trials; see `frobenius.certify`."""
    p, q = rows.p[some], rows.queries[some]
    trials, N, d = p.shape
    by_query = (trials, q.shape[1], -1, d)
    lifted = np.maximum(found.multipliers[some], 0.0)
    gathered = np.matmul(lifted.reshape(trials, q.shape[1], 1, -1), p.reshape(by_query))[:, :, 0]
    raw = np.matmul(gathered.transpose(0, 2, 1), q)

    def least_value(W: Array) -> Array:
        seen = np.matmul(q, W.transpose(0, 2, 1))  # W q, (R, M, d)
        return np.matmul(p.reshape(by_query), seen[..., None]).reshape(trials, N).min(-1)

    least, total = least_value(raw), lifted.sum(-1)
    length = np.sqrt(np.einsum("rde,rde->r", raw, raw))
    good = (least > 0) & (total > 0)
    W = np.where(good[:, None, None], raw / least[:, None, None], np.nan)
    found.W[some] = W
    found.margin[some] = least / length
    # Where rounding may have moved the least value, or the bound, the trial is judged alone.
    found.rounding[some] = 8 * EPS * (length / least) * rows.longest[some]
    good &= found.rounding[some] <= UNSURE
    found.gap[some] = np.where(good, np.maximum(length**2 / (least * total) - 1.0, 0.0), np.inf)
    found.violation[some] = np.maximum(0.0, 1.0 - least_value(W))
