"""Hidden states and weights of a language model, as `probe` takes them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnlab.checks import instance
from attnlab.data.sequences import Sequences
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


def real_tokens(data: Sequences) -> NDArray[np.bool_]:
    """(n, T), False for padding."""
    return np.ones((data.n, data.T), dtype=bool) if data.mask is None else np.asarray(data.mask, dtype=bool)
