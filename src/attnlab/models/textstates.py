"""What an attention layer of a transformer on text sees and asks, for probing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class LayerStates(NamedTuple):
    """What one attention layer sees and asks, for probing: `q = h W_Q^T + b_Q` and `k = h W_K^T + b_K` of each head."""

    layer: int  # from 0
    h: np.ndarray  # (n, T, d) hidden states that enter attention
    q: np.ndarray  # (n, heads, T, d_h) queries; the logits of a head are q k^T / sqrt(d_h)
    k: np.ndarray  # (n, heads, T, d_h) keys
    W_Q: np.ndarray  # (heads, d_h, d)
    W_K: np.ndarray  # (heads, d_h, d)
    b_Q: np.ndarray  # (heads, d_h)
    b_K: np.ndarray  # (heads, d_h)

    @classmethod
    def of(
        cls, weights: Mapping[str, np.ndarray], layer: int, heads: int, h: np.ndarray, q: np.ndarray, k: np.ndarray
    ) -> LayerStates:
        """The states of a layer beside its weights, in one precision."""
        dim = h.shape[-1]
        W_Q, W_K = (weights[f"layer{layer}_{name}"].reshape(heads, -1, dim) for name in ("Q", "K"))
        b_Q, b_K = (weights[f"layer{layer}_{name}_b"].reshape(heads, -1) for name in ("Q", "K"))
        return cls(layer, h, q, k, *(np.asarray(one, h.dtype) for one in (W_Q, W_K, b_Q, b_K)))


def joined_states(place: int, parts: list[tuple[int, Any]], n: int) -> list[np.ndarray]:
    """h, q and k of one layer of all n texts, from parts that begin at some text and may overlap."""
    joined = []
    for which in range(3):
        first = parts[0][1][place][which]
        every = np.empty((n, *first.shape[1:]), first.dtype)
        for begin, part in parts:
            every[begin : begin + len(part[place][which])] = part[place][which]
        joined.append(every)
    return joined
