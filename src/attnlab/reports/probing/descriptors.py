"""What a head does, in a few cheap numbers: offsets, words, sinks, entropy, logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.reports.probing.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Descriptors:
    """What a head does, over all its queries; None where there is nothing to tell it by.

    Attributes:
        offset: key minus query, the most frequent one; negative for earlier keys.
        offset_share: queries that select the key at that offset.
        word: number of the word that is selected most often, whoever asks.
        word_share: queries that select it.
        same_word_share: queries that select another token of the same word as they are.
        sink_mass: mean attention weight on sinks.
        entropy: mean entropy of the attention weights, over that of equal weights; 0 looks at one token.
        largest_logit: max q.k / sqrt(d_h).
    """

    offset: int | None
    offset_share: float | None
    word: int | None
    word_share: float | None
    same_word_share: float | None
    sink_mass: float | None
    entropy: float | None
    largest_logit: float | None


def describe(q: Array, k: Array, layout: Layout) -> Descriptors:
    """Of queries and keys (P, T, d_h)."""
    seen = layout.seen()
    asking = np.asarray(seen.any(-1))  # (P, T)
    if not asking.any():
        return Descriptors(**dict.fromkeys(Descriptors.__annotations__))
    logits = np.matmul(q, k.transpose(0, 2, 1)) / np.sqrt(q.shape[-1])  # (P, query, key)
    attention = _softmax(np.where(seen, logits, -np.inf), asking)
    sink_mass = (attention * layout.sinks[:, None, :]).sum(-1)[asking].mean()
    chosen = _chosen(logits, layout)
    offset, offset_share = _most_frequent(chosen[2] - chosen[1])
    word, word_share, same = None, None, None
    if layout.ids is not None and len(chosen[0]):
        words = layout.ids[chosen[0], chosen[2]]
        word, word_share = _most_frequent(words)
        own = layout.ids[chosen[0], chosen[1]]
        same = float(np.mean((words == own) & (chosen[1] != chosen[2])))
    return Descriptors(
        offset=offset,
        offset_share=offset_share,
        word=word,
        word_share=word_share,
        same_word_share=same,
        sink_mass=float(sink_mass),
        entropy=_entropy(attention, seen, asking),
        largest_logit=float(logits[seen].max()),
    )


def _chosen(logits: Array, layout: Layout) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Prompt, query and selected key of every query that has a choice."""
    prompt, query = np.nonzero(layout.queries())
    open_to = layout.choosable()[prompt, query]
    key = np.where(open_to, logits[prompt, query], -np.inf).argmax(-1)
    return prompt, query, key


def _softmax(logits: Array, asking: NDArray[np.bool_]) -> Array:
    """Along the last axis; zeros where a query sees nothing."""
    top = np.where(asking, logits.max(-1), 0.0)[..., None]
    weights = np.exp(logits - top)
    return weights / np.where(asking, weights.sum(-1), 1.0)[..., None]


def _entropy(attention: Array, seen: NDArray[np.bool_], asking: NDArray[np.bool_]) -> float | None:
    """Mean over queries that see at least two keys."""
    count = seen.sum(-1)
    several = asking & (count >= 2)
    if not several.any():
        return None
    own = attention[several]
    entropy = -(own * np.log(np.where(own > 0, own, 1.0))).sum(-1)
    return float((entropy / np.log(count[several])).mean())


def _most_frequent(values: NDArray[np.intp]) -> tuple[int | None, float | None]:
    """The value that is there most often (of several the least), and its share."""
    if not len(values):
        return None, None
    distinct, counts = np.unique(values, return_counts=True)
    best = counts.argmax()
    return int(distinct[best]), float(counts[best] / len(values))
