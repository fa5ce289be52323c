"""What a user gives to `al.probe`, checked once and brought into one layout: heads of padded prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import boolean_array, finite_array, flag, numpy_array, shown, whole_array
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message

Mask = NDArray[np.bool_]
# Products of four such arrays are far from the end of float64 numbers.
LARGEST = 1e50


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """Which tokens there are and which keys each query may choose; the same for all heads.

    Attributes:
        real: (P, T), False for padding.
        sinks: (P, T), True for keys that are not to be chosen.
        pattern: (P, T, T), which keys a query sees; None where it sees all real tokens.
        causal: a query sees no later key.
        ids: (P, T) numbers of the words; None where they are not known.
    """

    real: Mask
    sinks: Mask
    pattern: Mask | None = None
    causal: bool = False
    ids: NDArray[np.intp] | None = None

    def seen(self) -> Mask:
        """(P, T, T): which keys each query sees, sinks among them."""
        seen = self.real[:, :, None] & self.real[:, None, :]
        if self.causal:
            T = self.real.shape[1]
            seen &= np.tri(T, dtype=bool)
        return seen if self.pattern is None else seen & self.pattern

    def choosable(self) -> Mask:
        """(P, T, T): the same without sinks."""
        return self.seen() & ~self.sinks[:, None, :]

    def queries(self) -> Mask:
        """(P, T): queries that have a choice, of at least two keys."""
        return self.choosable().sum(-1) >= 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Heads:
    """All heads in one layout.

    Attributes:
        q, k: (L, H, P, T, d_h).
        hidden: (L, P, T, D) with W_Q, W_K (L, H, d_h, D) and b_Q (L, H, d_h); None where only q and k were given.
    """

    q: Array
    k: Array
    hidden: Array | None = None
    W_Q: Array | None = None
    W_K: Array | None = None
    b_Q: Array | None = None


def ordinary_array(name: str, value: ArrayLike) -> Array:
    """A finite array whose products are finite too."""
    array = finite_array(name, value)
    largest = float(np.abs(array).max(initial=0.0))
    if largest > LARGEST:
        raise InputError(
            message(f"`{name}` has entries of {largest:.1e}; wanted at most {LARGEST:.0e}.", "scale it down")
        )
    return array


def heads_of_arrays(
    q: ArrayLike | None, k: ArrayLike | None, groups: ArrayLike | None
) -> tuple[Heads, Grouping | None]:
    """Queries and keys as (L, H, P, T, d_h), and how the tokens of all prompts were grouped."""
    if q is None or k is None:
        missing = "q" if q is None else "k"
        raise InputError(message(f"`{missing}` is missing.", "al.probe(q, k), or al.probe(hidden=h, W_Q=..., W_K=...)"))
    queries = ordinary_array("q", q)
    keys = ordinary_array("k", k)
    tokens = 2 if groups is None else 1
    queries = _with_axes("q", queries, tokens)
    keys = _with_axes("k", keys, tokens)
    layers, heads = queries.shape[:2]
    if keys.shape[0] != layers or keys.shape[2:] != queries.shape[2:] or not keys.shape[1] or heads % keys.shape[1]:
        problem = f"`k` has shape {np.shape(k)} and `q` has {np.shape(q)}; wanted the same."
        raise InputError(message(problem, "only the number of heads of `k` may be a part of that of `q` (shared keys)"))
    keys = np.repeat(keys, heads // keys.shape[1], axis=1)
    if groups is None:
        return Heads(q=queries, k=keys), None
    grouping = Grouping.of(groups, queries.shape[-2], "q")
    return Heads(q=grouping.padded(queries, 2), k=grouping.padded(keys, 2)), grouping


def heads_of_hidden(
    hidden: ArrayLike,
    W_Q: ArrayLike | None,
    W_K: ArrayLike | None,
    b_Q: ArrayLike | None,
    groups: ArrayLike | None,
) -> tuple[Heads, Grouping | None]:
    """Hidden states (L, P, T, D) with weights (L, H, d_h, D), and the queries and keys that they give."""
    if W_Q is None or W_K is None:
        missing = "W_Q" if W_Q is None else "W_K"
        raise InputError(message(f"`{missing}` is missing; `hidden` needs both W_Q and W_K."))
    states = ordinary_array("hidden", hidden)
    most = 4 if groups is None else 3
    if not 2 <= states.ndim <= most or not states.size:
        axes = "layers, prompts, T, D" if groups is None else "layers, tokens, D"
        raise InputError(message(f"`hidden` has shape {states.shape}; wanted ({axes}), or the last of these axes."))
    states = states.reshape((1,) * (most - states.ndim) + states.shape)
    grouping = None
    if groups is not None:
        grouping = Grouping.of(groups, states.shape[-2], "hidden")
        states = grouping.padded(states, 1)
    layers, D = states.shape[0], states.shape[-1]
    weights_q = _weights("W_Q", W_Q, layers, D)
    weights_k = _weights("W_K", W_K, layers, D)
    if weights_q.shape != weights_k.shape:
        raise InputError(message(f"`W_K` has shape {np.shape(W_K)} and `W_Q` has {np.shape(W_Q)}; wanted the same."))
    bias = _bias(b_Q, weights_q.shape[:3])
    q = np.einsum("lptD,lhdD->lhptd", states, weights_q, optimize=True) + bias[:, :, None, None, :]
    k = np.einsum("lptD,lhdD->lhptd", states, weights_k, optimize=True)  # the bias of keys cancels in every lead
    return Heads(q=q, k=k, hidden=states, W_Q=weights_q, W_K=weights_k, b_Q=bias), grouping


def _with_axes(name: str, array: Array, tokens: int) -> Array:
    """With leading axes for layers and heads (and prompts)."""
    most = 3 + tokens
    if not 2 <= array.ndim <= most:
        axes = "layers, heads, prompts, T, d_h" if tokens == 2 else "layers, heads, tokens, d_h"
        raise InputError(message(f"`{name}` has shape {array.shape}; wanted ({axes}), or the last of these axes."))
    if not array.size:
        raise InputError(message(f"`{name}` has shape {array.shape}, and no entries."))
    return array.reshape((1,) * (most - array.ndim) + array.shape)


def _weights(name: str, value: ArrayLike, layers: int, D: int) -> Array:
    weights = ordinary_array(name, value)
    if 2 <= weights.ndim <= 4:
        weights = weights.reshape((1,) * (4 - weights.ndim) + weights.shape)
    if weights.ndim != 4 or weights.shape[0] != layers or weights.shape[-1] != D or not weights.size:
        wanted = f"({layers}, heads, d_h, {D}): q = W_Q h"
        hint = "weights of torch's Linear are (heads * d_h, D): reshape(heads, d_h, D)"
        raise InputError(message(f"`{name}` has shape {np.shape(value)}; wanted {wanted}.", hint))
    return weights


def _bias(b_Q: ArrayLike | None, shape: tuple[int, ...]) -> Array:
    if b_Q is None:
        return np.zeros(shape)
    bias = ordinary_array("b_Q", b_Q)
    if 1 <= bias.ndim <= 3:
        bias = bias.reshape((1,) * (3 - bias.ndim) + bias.shape)
    if bias.shape != shape:
        raise InputError(message(f"`b_Q` has shape {np.shape(b_Q)}; wanted {shape} (layers, heads, d_h)."))
    return bias


@dataclass(frozen=True, eq=False)
class Grouping:
    """Tokens of all prompts in a row: the prompt of each token, its place there, and (prompts, longest prompt)."""

    prompt: NDArray[np.intp]
    place: NDArray[np.intp]
    shape: tuple[int, int]

    @staticmethod
    def of(groups: ArrayLike, count: int, name: str) -> Grouping:
        """From the prompt of each token. Tokens of one prompt keep their order; they need not be neighbours."""
        given = numpy_array("groups", groups, "the prompt of each token")
        if given.ndim != 1 or given.shape[0] != count or not count or given.dtype.kind not in "iuUSb":
            problem = f"`groups` is {shown(groups)}; wanted the prompt of each of the {count} tokens of `{name}`."
            raise InputError(message(problem, "groups=[0, 0, 0, 1, 1]: three tokens, then two"))
        _, prompt, lengths = np.unique(given, return_inverse=True, return_counts=True)
        order = np.argsort(prompt, kind="stable")
        starts = np.cumsum(lengths) - lengths
        place = np.empty(count, dtype=np.intp)
        place[order] = np.arange(count) - np.repeat(starts, lengths)
        return Grouping(prompt, place, (len(lengths), int(lengths.max())))

    @property
    def count(self) -> int:
        """Number of tokens."""
        return len(self.prompt)

    def padded(self, values: NDArray[Any], axis: int = 0) -> NDArray[Any]:
        """With the axis over tokens as two, (prompts, longest prompt); zeros where there is no token."""
        full = np.zeros(values.shape[:axis] + self.shape + values.shape[axis + 1 :], dtype=values.dtype)
        full[(slice(None),) * axis + (self.prompt, self.place)] = values
        return full


def checked_layout(
    shape: tuple[int, int],
    *,
    grouping: Grouping | None,
    mask: ArrayLike | None,
    causal: bool,
    sinks: ArrayLike | Sequence[int] | None,
    ids: ArrayLike | None,
) -> Layout:
    """The layout of (P, T) tokens."""
    real = np.ones(shape, dtype=bool)
    if grouping is not None:
        real = grouping.padded(np.ones(grouping.count, dtype=bool))
    pattern = None
    if mask is not None:
        given = _padded(boolean_array("mask", mask), grouping)
        if given.shape == shape:
            real = real & given
        elif given.shape == (*shape, shape[1]):
            pattern = given
        else:
            problem = f"`mask` has shape {np.shape(mask)}; wanted {shape} (prompts, T), True for tokens that are there"
            raise InputError(message(f"{problem}, or {(*shape, shape[1])}, True where a query sees a key."))
    numbers = None
    if ids is not None:
        numbers = _padded(whole_array("ids", ids, "the number of the word of each token"), grouping)
        if numbers.shape != shape:
            raise InputError(message(f"`ids` has shape {np.shape(ids)}; wanted {shape} (prompts, T)."))
    return Layout(
        real=real,
        sinks=_sinks(sinks, real, grouping),
        pattern=pattern,
        causal=flag("causal", causal),
        ids=numbers,
    )


def checked_words(words: Any, shape: tuple[int, int], grouping: Grouping | None) -> NDArray[np.str_] | None:
    """(P, T) texts of the tokens, for pictures."""
    if words is None:
        return None
    given = numpy_array("words", words, "the text of each token")
    if given.dtype.kind not in "US":
        raise InputError(message(f"`words` has type {given.dtype}; wanted the text of each token."))
    texts = _padded(given.astype(str), grouping)
    if texts.shape != shape:
        raise InputError(message(f"`words` has shape {np.shape(words)}; wanted {shape} (prompts, T)."))
    return texts


def _padded(values: NDArray[Any], grouping: Grouping | None) -> NDArray[Any]:
    """Values of the tokens of all prompts as those of prompts; others as they are."""
    flat = grouping is not None and values.shape == (grouping.count,)
    return grouping.padded(values) if flat else values  # pyright: ignore[reportOptionalMemberAccess]


def _sinks(sinks: Any, real: Mask, grouping: Grouping | None) -> Mask:
    """Positions, counted over the real tokens of each prompt (negative ones from its end), or booleans."""
    if sinks is None:
        return np.zeros(real.shape, dtype=bool)
    given = numpy_array("sinks", sinks, "positions, or booleans")
    if given.dtype.kind == "b":
        marked = _padded(given, grouping)
        if marked.shape != real.shape:
            problem = f"`sinks` has shape {given.shape}; wanted {real.shape} (prompts, T), True for sinks."
            raise InputError(message(problem, "sinks=[0, -1]: the first and the last token of every prompt"))
        return marked & real
    positions = whole_array("sinks", sinks, "positions, or booleans") if given.size else np.zeros(0, dtype=np.intp)
    if positions.ndim > 1:
        problem = f"`sinks` has shape {given.shape}; wanted a list of positions, or booleans of shape {real.shape}."
        raise InputError(message(problem, "sinks=[0, -1]: the first and the last token of every prompt"))
    from_start = np.cumsum(real, axis=1) - 1
    from_end = from_start - real.sum(1, keepdims=True)
    return real & (np.isin(from_start, positions) | np.isin(from_end, positions))
