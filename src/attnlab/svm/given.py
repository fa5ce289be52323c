"""What `bracket_margin` is given: arrays of tokens, queries and selections, and a norm, checked once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import boolean_array, finite_array, shown, whole_array
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.svm.norms import ENTRYWISE_MAX, FROBENIUS, NUCLEAR, SPECTRAL, Norm

NORMS = {norm.name: norm for norm in (FROBENIUS, NUCLEAR, SPECTRAL, ENTRYWISE_MAX)}


def key_array(x: ArrayLike, axes: int) -> Array:
    """Tokens (n, T, a), or with an axis of problems before."""
    array = finite_array("x", x)
    if array.ndim != axes or 0 in array.shape:
        wanted = "(n, T, a)" if axes == 3 else "(problems, n, T, a)"
        hint = "al.svm.bracket_margins takes many problems at once" if array.ndim == 4 else None
        raise InputError(message(f"`x` has shape {array.shape}; wanted {wanted}, with no empty axis.", hint))
    return array


def query_array(z: ArrayLike, lead: tuple[int, ...]) -> Array:
    """Queries (n, b) or (n, K, b), likewise; `lead` is all before the tokens of x."""
    array = finite_array("z", z)
    if array.ndim - len(lead) not in (1, 2) or array.shape[: len(lead)] != lead or 0 in array.shape:
        one = ", ".join(map(str, lead))
        raise InputError(
            message(f"`z` has shape {array.shape}; wanted queries ({one}, b), or ({one}, K, b) for K of each sequence.")
        )
    return array


def selection_array(selected: ArrayLike, shape: tuple[int, ...], T: int) -> NDArray[np.intp]:
    """A token per query."""
    chosen = whole_array("selected", selected)
    if chosen.shape != shape:
        raise InputError(message(f"`selected` has shape {chosen.shape}; wanted one token per query, {shape}."))
    if chosen.min() < 0 or chosen.max() >= T:
        wrong = chosen.max() if chosen.max() >= T else chosen.min()
        raise InputError(message(f"`selected` names token {wrong}; sequences of {T} tokens have 0 to {T - 1}."))
    return chosen


def visible_array(mask: ArrayLike | None, chosen: NDArray[np.intp], T: int) -> NDArray[np.bool_] | None:
    """The mask in full, which shows every selected token; None for none."""
    if mask is None:
        return None
    given = boolean_array("mask", mask, "booleans (True = visible), or 0 and 1")
    full = (*chosen.shape, T)
    if given.ndim == 0 or given.shape not in (full[k:] for k in range(len(full))):
        raise InputError(message(f"`mask` has shape {given.shape}; wanted {full}, or its last axes."))
    visible = np.broadcast_to(given, full)
    if not np.take_along_axis(visible, chosen[..., None], axis=-1).all():
        raise InputError(message("`selected` names tokens that the mask hides from their query."))
    return visible


def known_norm(norm: str | Norm) -> Norm:
    """One of the four, by name or as it is."""
    name = norm.name if isinstance(norm, Norm) and norm in NORMS.values() else norm
    if isinstance(name, str) and name in NORMS:
        return NORMS[name]
    raise InputError(message(f"`norm` is {shown(norm)}; wanted one of {', '.join(map(repr, NORMS))}."))


def start_array(start: ArrayLike, shape: tuple[int, int], problems: int | None = None) -> Array:
    """A W, which the bounds do not depend on; one for each problem, where there are several."""
    array = finite_array("start", start)
    allowed = [shape] if problems is None else [(problems, *shape), shape]
    if array.shape not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise InputError(message(f"`start` has shape {array.shape}; wanted {wanted}."))
    return array if problems is None else np.broadcast_to(array, (problems, *shape))
