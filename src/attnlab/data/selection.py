"""How good each token is, and which one is best."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, Protocol, overload, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import flag, instance, real_array, shown, whole_array
from attnlab.data.scale import dot
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, TiedScoresWarning, message

# Scores closer than this, relative to the largest score of the sequence, are the same score: a dot product in
# float64 does not tell them apart.
TIE = 1e-12
# Below this size products that underflow may be what tells one score from another.
FAINT = 1e-280
LEAST_EXPONENT = -(2**30)


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
    instance("tokens", tokens, Tokens, "al.Tokens")
    values = _linear(tokens) if head is None else _by_head(head, tokens)
    return tokens.y[..., None] * (values if tokens.K is None else values[..., None, :])


def token_numbers(name: str, value: ArrayLike, tokens: Tokens) -> NDArray[np.intp]:
    """The number of a visible token for every query, laid out as the labels."""
    wanted = f"token numbers from 0 to {tokens.T - 1} of shape {tokens.y.shape}"
    given = whole_array(name, value, wanted)
    if given.shape != tokens.y.shape:
        raise InputError(message(f"`{name}` has shape {given.shape}; wanted {wanted}."))
    if given.min() < 0 or given.max() >= tokens.T:
        raise InputError(message(f"`{name}` has numbers from {given.min()} to {given.max()}; wanted {wanted}."))
    if not np.take_along_axis(tokens.visible, given[..., None], axis=-1).all():
        raise InputError(message(f"`{name}` names tokens that the mask hides from their query."))
    return given


def comparable_scores(tokens: Tokens, head: TokenHead | Callable[[Any], Any] | None = None) -> tuple[Array, Any]:
    """Scores `gamma 2^e`, as gamma and e, where e is 0 unless a query has scores that are too faint to be compared.

    Tokens of size 1e-200 and a head of that size have scores that float64 takes for 0; scaled, query by query, they
    are told apart. e has the layout of the labels, with an axis of length 1 behind; or is the number 0.
    """
    gamma, visible = scores(tokens, head), tokens.visible
    if head is not None or (np.where(visible, np.abs(gamma), 0.0).max(-1) > FAINT).all():
        return gamma, 0
    mantissas, exponents = dot(tokens.x, _of_rows(tokens.v))  # (..., n, T)
    if tokens.K is not None:
        mantissas, exponents = (np.broadcast_to(a[..., None, :], gamma.shape) for a in (mantissas, exponents))
    counts = visible & (mantissas != 0)
    top = np.where(counts, exponents, LEAST_EXPONENT).max(-1, keepdims=True)
    top = np.where(counts.any(-1, keepdims=True), top, 0)
    with np.errstate(over="ignore", under="ignore"):  # hidden tokens may be anything
        return tokens.y[..., None] * np.ldexp(mantissas, exponents - top), top


def _linear(tokens: Tokens) -> Array:
    """v . x_it, also where single products are beyond float64 and their sum is not."""
    if tokens.v is None:
        raise InputError(message("These tokens have no `v`, which the linear head needs.", "pass v= or head="))
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.einsum("...ntd,...d->...nt", tokens.x, tokens.v)
        if not np.isfinite(values).all():
            values = np.ldexp(*dot(tokens.x, _of_rows(tokens.v)))
    if not np.isfinite(values).all():
        problem = "The products of `x` with `v` are beyond float64, which ends at 1.8e308"
        sizes = f"`x` has entries up to {np.abs(tokens.x).max():.1e}, `v` up to {np.abs(tokens.v).max():.1e}"
        raise InputError(message(f"{problem}; {sizes}.", "divide one of them; scores scale with both"))
    return values


def _of_rows(v: Array | None) -> Array:
    """The head laid out as the tokens are."""
    assert v is not None
    return v[..., None, None, :]


def _by_head(head: Any, tokens: Tokens) -> Array:
    """h(x_it) for a head object or a function, finite and of the shape of the tokens."""
    if isinstance(head, TokenHead) and not isinstance(head, type):
        values = real_array("head.token_values(tokens)", _called(head.token_values, tokens, tokens))
        if values.shape != tokens.x.shape[:-1]:
            wanted = f"wanted {tokens.x.shape[:-1]}, one for each token"
            raise InputError(message(f"`head` gives values of shape {values.shape}; {wanted}."))
    elif callable(head):
        values = _values_of_function(head, tokens)
    else:
        raise InputError(message(f"`head` is {shown(head)}; wanted None, a head object, or a function of one token."))
    if not np.isfinite(values).all():
        raise InputError(message("`head` gives NaN or infinite values for some tokens; all must be finite."))
    return values


def _values_of_function(head: Callable[[Any], Any], tokens: Tokens) -> Array:
    import jax

    flat = tokens.x.reshape(-1, tokens.d)
    with jax.enable_x64(True):
        values = real_array("head(token)", _called(jax.vmap(head), flat, tokens))
    if values.shape != flat.shape[:1]:
        raise InputError(
            message(f"`head` maps a token of shape ({tokens.d},) to shape {values.shape[1:]}; wanted one number.")
        )
    return values.reshape(tokens.x.shape[:-1])


def _called(head: Callable[[Any], Any], argument: Any, tokens: Tokens) -> Any:
    """What a head of the user's gives, and what it raises in our words: most often it is NumPy on a traced array."""
    try:
        with np.errstate(all="ignore"):
            return head(argument)
    except InputError:
        raise
    except Exception as error:
        traced = "Tracer" in type(error).__name__ or "Concretization" in type(error).__name__
        hint = "use jax.numpy in it, not numpy" if traced else f"it is called with one token, of shape ({tokens.d},)"
        first = str(error).split("\n")[0]
        raise InputError(message(f"`head` fails: {type(error).__name__}: {first}", hint)) from error


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
    flag("return_ties", return_ties)
    found = comparable_scores(tokens, head)[0]
    gamma = np.where(tokens.visible, found, -np.inf)
    best = gamma.max(-1, keepdims=True)
    size = np.where(tokens.visible, np.abs(found), 0.0).max(-1, keepdims=True)
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
