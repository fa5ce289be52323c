"""One attention head as a layer of its own: the tokens it sees, the queries that ask, and its weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message


class HeadTokens(NamedTuple):
    """One attention head as the layer `softmax(x W z)`, of which every max-margin question can be asked.

    `al.solve_margin(head.tokens, head.selected)` is the limit that theory promises it, and
    `al.misalignment(head.W, svm.W)` how far it is from there.
    """

    name: str
    tokens: Tokens
    W: np.ndarray  # (d, d)
    layer: int = 0  # both from 0
    head: int = 0

    @property
    def logits(self) -> Array:
        """x W z, laid out as the tokens are, -inf where masked."""
        tokens = self.tokens
        z = tokens.z[..., None, :] if tokens.K is None else tokens.z
        logits = np.einsum("...ntd,...de,...nke->...nkt", tokens.x, self.W, z, optimize=True)
        laid_out = logits.reshape(*tokens.y.shape, tokens.T)
        return np.where(tokens.visible, laid_out, -np.inf)

    @property
    def selected(self) -> NDArray[np.intp]:
        """The token to which each query gives most, laid out as the labels."""
        return self.logits.argmax(-1)


def one_head(heads: list[HeadTokens], layer: int, head: int, model: object) -> HeadTokens:
    """The head of these numbers, or an `InputError` that says which there are."""
    if not heads:
        problem = f"{model!r} does not say which max-margin problem its heads solve."
        raise InputError(message(problem, "override `heads_as_tokens(data, weights)`"))
    for one in heads:
        if (one.layer, one.head) == (layer, head):
            return one
    layers = 1 + max(one.layer for one in heads)
    in_each = 1 + max(one.head for one in heads)
    wanted = f"`layer` from 0 to {layers - 1} and `head` from 0 to {in_each - 1}"
    raise InputError(message(f"`layer` is {layer} and `head` {head}; wanted {wanted}."))


def self_attention_tokens(
    h: Array, mask: NDArray[np.bool_] | None, *, causal: bool = False, others_only: bool = False
) -> Tokens:
    """States h (n, T, d) of which each asks the others; queries have a 1 in a coordinate of their own, tokens a 0.

    By that coordinate queries have a shift: logits `(W_Q h_t + b_Q) . W_K h_s` are those of one matrix of d + 1 rows.
    A shift of keys adds the same to all logits of a query, and is left out. States that only fill up are seen by none
    and see only themselves, which asks for nothing.

    Args:
        h: what enters attention.
        mask: which states are there, (n, T); None for all.
        causal: does a state see only itself and those before?
        others_only: does none see itself?
    """
    n, T, _ = h.shape
    there = np.ones((n, T), dtype=bool) if mask is None else mask
    sees = np.broadcast_to(there[:, None, :] & there[:, :, None], (n, T, T))
    if causal:
        sees = sees & np.tri(T, dtype=bool)
    if others_only:
        sees = sees & ~np.eye(T, dtype=bool)
    fills_up = np.eye(T, dtype=bool) & ~there[:, :, None]
    visible = sees | fills_up
    x = np.concatenate([h, np.zeros((n, T, 1))], axis=-1)
    z = np.concatenate([h, np.ones((n, T, 1))], axis=-1)
    hides = None if visible.all() else visible
    return Tokens(x=x, z=z, y=np.ones((n, T)), v=np.zeros(x.shape[-1]), mask=hides)


def head_matrix(W_Q: Array, W_K: Array, b_Q: Array | None, scale: float) -> Array:
    """W of one head on `self_attention_tokens`: `scale` W_K^T (W_Q, b_Q), with a last row of zeros; (d + 1, d + 1)."""
    shift = np.zeros(len(W_Q)) if b_Q is None else b_Q
    asked = np.concatenate([W_Q, shift[:, None]], axis=1)  # (d_h, d + 1)
    keys = np.concatenate([W_K, np.zeros((len(W_K), 1))], axis=1)
    return scale * keys.T @ asked
