"""Hidden states and weights of a language model, as `probe` takes them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnlab.checks import instance
from attnlab.data.sequences import Sequences
from attnlab.data.texts import Texts
from attnlab.data.tokenizer import Tokenizer
from attnlab.models.text import TextTransformer


def probe_arrays(
    model: TextTransformer,
    weights: Any,
    data: Sequences,
    *,
    precision: Literal["float64", "float32"] = "float32",
) -> dict[str, Any]:
    """What `al.probe` takes of a language model on encoded texts: `al.probe(**probe_arrays(model, weights, data))`.

    Sinks are the first and the last token of every text, which are special ones; of a causal model the first.

    Args:
        model: `al.models.Bert` or `al.models.Gpt2`.
        weights: its weights.
        data: encoded texts, each a prompt.
        precision: in which the model runs.

    Returns:
        hidden, W_Q, W_K, b_Q, mask, ids, sinks and causal.

    >>> import attnlab as al
    >>> texts = al.data.made_up_texts(40, seed=0)
    >>> tokenizer = al.data.Tokenizer.of_texts(texts)
    >>> data = texts.encode(tokenizer, length=10)
    >>> model = al.models.Bert(classes=2, vocabulary=tokenizer.vocabulary, dim=16, heads=2, mlp=16)
    >>> al.probe(**probe_arrays(model, model.initial(data, seed=0), data), queries=8).counts.total()
    4
    """
    instance("model", model, TextTransformer, "al.models.Bert or al.models.Gpt2", "the order is (model, weights, data)")
    states = model.states(data, weights, precision=precision)
    mask = real_tokens(data)
    ids = np.asarray(data.ids)
    longest = max(1, int(np.flatnonzero(mask.any(0)).max(initial=0)) + 1)  # all beyond is padding
    return {
        "hidden": np.stack([layer.h[:, :longest] for layer in states]),
        "W_Q": np.stack([layer.W_Q for layer in states]),
        "W_K": np.stack([layer.W_K for layer in states]),
        "b_Q": np.stack([layer.b_Q for layer in states]),
        "mask": mask[:, :longest],
        "ids": ids[:, :longest],
        "sinks": [0] if model.causal else [0, -1],
        "causal": model.causal,
    }


def texts_of_tokens(texts: Texts, tokenizer: Tokenizer, *, tokens: int, length: int, seed: int) -> Sequences:
    """Texts in an order drawn by the seed, as many as have so many tokens together; all where they have fewer.

    >>> from attnlab.data import made_up_texts
    >>> texts = made_up_texts(40, seed=0)
    >>> some = texts_of_tokens(texts, Tokenizer.of_texts(texts), tokens=60, length=10, seed=0)
    >>> bool(real_tokens(some).sum() >= 60 > real_tokens(some)[:-1].sum())
    True
    """
    order = np.random.default_rng(seed).permutation(texts.n)[:tokens]  # a text has a token at least
    lengths = real_tokens(texts.take(order).encode(tokenizer, length=length)).sum(1)
    count = int(np.searchsorted(np.cumsum(lengths), tokens)) + 1
    return texts.take(order[:count]).encode(tokenizer, length=length)


def real_tokens(data: Sequences) -> NDArray[np.bool_]:
    """(n, T), False for padding."""
    return np.ones((data.n, data.T), dtype=bool) if data.mask is None else np.asarray(data.mask, dtype=bool)
