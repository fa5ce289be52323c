"""How good each token is, and which one is best."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, Protocol, overload, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, TiedScoresWarning, message

# Scores closer than this, relative to the largest score of the sequence, are the same score: a dot product in
# float64 does not tell them apart.
TIE = 1e-12


@runtime_checkable
class TokenHead(Protocol):
    """A prediction head that can value every token of a data set."""

    def token_values(self, tokens: Tokens) -> Array:
        """h(x_it), shape (..., n, T)."""
        ...


def scores(tokens: Tokens, head: TokenHead | Callable[[Any], Any] | None = None) -> Array:
    """Token scores `gamma_it = y_i h(x_it)`; for the linear head `y_i v.x_it`.

    Args:
        tokens: the data.
        head: None for the linear head of `tokens.v`, a head of `attnlab.models`, or your own function of one
            token, written with `jax.numpy`.

    Returns:
        Shape (n, T), or (n, K, T) with K queries, after the trial axis if there is one.

    >>> import attnlab as al
    >>> al.scores(al.data.two_tokens())
    array([[1., 0.]])
    """
    if isinstance(head, TokenHead):
        values = np.asarray(head.token_values(tokens), dtype=np.float64)
    elif callable(head):
        values = _values_of_function(head, tokens)
    elif head is not None:
        raise InputError(message(f"`head` is {head!r}; wanted None, a head object, or a function of one token."))
    else:
        if tokens.v is None:
            raise InputError(message("These tokens have no `v`, which the linear head needs.", "pass v= or head="))
        values = np.einsum("...ntd,...d->...nt", tokens.x, tokens.v)
    if not np.isfinite(values).all():
        raise InputError(message("`head` gives NaN or infinite values for some tokens; all must be finite."))
    per_row = values if tokens.K is None else values[..., None, :]
    return tokens.y[..., None] * per_row


def _values_of_function(head: Callable[[Any], Any], tokens: Tokens) -> Array:
    import jax

    flat = tokens.x.reshape(-1, tokens.d)
    with jax.enable_x64(True):
        values = np.asarray(jax.vmap(head)(flat), dtype=np.float64)
    if values.shape != flat.shape[:1]:
        raise InputError(
            message(f"`head` maps a token of shape ({tokens.d},) to shape {values.shape[1:]}; wanted one number.")
        )
    return values.reshape(tokens.x.shape[:-1])


@overload
def optimal_tokens(
    tokens: Tokens,
    head: TokenHead | Callable[[Any], Any] | None = None,
    *,
    return_ties: Literal[False] = False,
) -> NDArray[np.intp]: ...
@overload
def optimal_tokens(
    tokens: Tokens, head: TokenHead | Callable[[Any], Any] | None = None, *, return_ties: Literal[True]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]: ...
def optimal_tokens(
    tokens: Tokens, head: TokenHead | Callable[[Any], Any] | None = None, *, return_ties: bool = False
) -> NDArray[np.intp] | tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The visible token of highest score, `argmax_t gamma_it`, for each query.

    Where several tokens share the best score (to 1e-12 relative) the first is returned and a
    `TiedScoresWarning` says so; with `return_ties=True` nothing is warned and a second array counts the tokens
    that share it (1 = unique).

    >>> import attnlab as al
    >>> al.optimal_tokens(al.data.two_tokens())
    array([0])
    """
    gamma = np.where(tokens.visible, scores(tokens, head), -np.inf)
    best = gamma.max(-1, keepdims=True)
    size = np.where(tokens.visible, np.abs(gamma), 0.0).max(-1, keepdims=True)
    tied = gamma >= best - TIE * size
    count, chosen = tied.sum(-1), tied.argmax(-1)
    if return_ties:
        return chosen, count
    if (count > 1).any():
        warnings.warn(
            f"{int((count > 1).sum())} of {count.size} queries have tied best scores; the first such token is taken.",
            TiedScoresWarning,
            stacklevel=2,
        )
    return chosen
