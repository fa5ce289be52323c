"""Which keys a head selects, by which lead, and the queries that are asked: the decisive half of a sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.reports.probing.layout import Layout, Mask
from attnlab.reports.probing.metrics import Coordinates

# A lead below this part of the largest logit is a tie.
TIE = 1e-12


@dataclass(frozen=True, eq=False)
class Sample:
    """Queries of one half of the prompts: their prompt and place (m,), and which keys each may choose (m, T)."""

    prompt: NDArray[np.intp]
    place: NDArray[np.intp]
    choosable: Mask

    def keys(self, coordinates: Coordinates) -> Array:
        """(m, T, a)."""
        return coordinates.x[self.prompt]

    def queries(self, coordinates: Coordinates) -> Array:
        """(m, b)."""
        return coordinates.z[self.prompt, self.place]


@dataclass(frozen=True, eq=False)
class Selections:
    """What heads select on a sample, batched over weights.

    Attributes:
        selected: (B, m) key of the largest logit.
        leads: (B, m) its lead over the next; 0 for a tie.
    """

    selected: NDArray[np.intp]
    leads: Array


def select(keys: Array, queries: Array, choosable: Mask, weights: Array) -> Selections:
    """Selections of weights (B, a, b) on keys (m, T, a) and queries (m, b).

    >>> keys = np.array([[[1.0], [4.0], [2.0]]])
    >>> found = select(keys, np.array([[1.0]]), np.ones((1, 3), dtype=bool), np.array([[[1.0]], [[-1.0]]]))
    >>> found.selected.ravel().tolist(), found.leads.ravel().tolist()
    ([1, 0], [2.0, 1.0])
    """
    asked = np.matmul(weights, queries.T)  # (B, a, m)
    logits = np.matmul(keys, asked.transpose(2, 1, 0)).transpose(2, 0, 1)  # (B, m, T)
    logits = np.where(choosable, logits, -np.inf)
    selected = logits.argmax(-1)
    two = np.partition(logits, -2, axis=-1)[..., -2:]
    leads = two[..., 1] - two[..., 0]
    largest = np.abs(np.where(choosable, logits, 0.0)).max(-1)
    return Selections(selected, np.where(leads > TIE * largest, leads, 0.0))


def decisive(leads: Array, count: int) -> NDArray[np.intp]:
    """(B, count): the queries of largest lead, in their own order; the rule knows no scale of the weights.

    >>> decisive(np.array([[0.5, 3.0, 1.0, 2.0]]), 2).tolist()
    [[1, 3]]
    """
    order = np.argsort(-leads, axis=-1, kind="stable")[:, :count]
    return np.sort(order, axis=-1)


def halves(layout: Layout, count: int, splits: int, seed: int) -> list[tuple[Sample, Sample]]:
    """Whole prompts split at random into two halves of about equally many queries, each sampled `2 count` times.

    A half with fewer queries gives all it has; whoever asks sees by its length.
    """
    choosable = layout.choosable()
    asks = choosable.sum(-1) >= 2  # (P, T)
    per_prompt = asks.sum(1)
    found = []
    for split in range(splits):
        rng = np.random.default_rng([seed, split])
        order = rng.permutation(np.flatnonzero(per_prompt))
        total = np.cumsum(per_prompt[order])
        cut = int(np.searchsorted(total, total[-1] / 2)) + 1 if len(order) else 0
        cut = min(cut, len(order) - 1) if len(order) > 1 else cut
        first, second = (_sample(part, asks, choosable, 2 * count, rng) for part in (order[:cut], order[cut:]))
        found.append((first, second))
    return found


def _sample(prompts: NDArray[np.intp], asks: Mask, choosable: Mask, most: int, rng: np.random.Generator) -> Sample:
    prompts = np.sort(prompts)
    row, place = np.nonzero(asks[prompts])
    if len(row) > most:
        chosen = np.sort(rng.choice(len(row), size=most, replace=False))
        row = row[chosen]
        place = place[chosen]
    prompt = prompts[row]
    return Sample(prompt, place, choosable[prompt, place])
