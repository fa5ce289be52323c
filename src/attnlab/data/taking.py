"""Which examples of a labelled set are taken: so many, at random, balanced, or those of given numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import flag, numpy_array, shown, whole, whole_array
from attnlab.errors import InputError, message


def taken(
    y: NDArray[np.intp], classes: int, which: int | ArrayLike, seed: int | None, balanced: bool, what: str
) -> NDArray[np.intp]:
    """Places of some of the examples: so many of them, or those of given numbers.

    Args:
        y, classes: labels from 0, and how many classes there are.
        which: how many; or numbers of examples, or one boolean for each.
        seed: with a count: at random, without any twice; None for the first ones.
        balanced: with a count: classes take turns.
        what: as messages call the examples.
    """
    balanced = flag("balanced", balanced)
    if numpy_array("which", which, f"a number of {what}, or numbers of {what}").ndim == 0:
        return _so_many(y, classes, which, seed, balanced, what)
    if seed is not None or balanced:
        given = "`seed`" if seed is not None else "`balanced`"
        raise InputError(
            message(f"{given} goes with a number of {what}; `which` is {shown(which)}.", f"{what}.take(100, seed=0)")
        )
    return _those(len(y), which, what)


def _so_many(
    y: NDArray[np.intp], classes: int, which: Any, seed: int | None, balanced: bool, what: str
) -> NDArray[np.intp]:
    """Places of so many examples, in the order of the file or of a seed."""
    count = whole("which", which, 1, len(y))
    order = np.arange(len(y))
    if seed is not None:
        order = np.random.default_rng(whole("seed", seed, 0)).permutation(len(y))
    if balanced:
        order = in_turns(order, y)
    places = order[:count]
    counts = np.bincount(y[places], minlength=classes)
    if balanced and counts.max() - counts.min() > 1:
        there = np.bincount(y, minlength=classes)
        least = int(there.argmin())
        few = int(there[least])
        problem = f"`which` is {count}, balanced over {classes} classes; class {least} has {few} {what}."
        fewer = f"at most {classes * few}, or " if few else ""
        only = f"{what}.only(...)" if what == "images" else f"{what}.take({what}.y != {least})"
        raise InputError(message(problem, f"{fewer}{only} of the other classes"))
    return places


def _those(n: int, which: ArrayLike, what: str) -> NDArray[np.intp]:
    """Places by their numbers, or where one boolean per example is True."""
    wanted = f"numbers of {what} from 0 to {n - 1}, or one boolean for each"
    given = numpy_array("which", which, wanted)
    places = np.flatnonzero(given) if given.dtype == bool and given.shape == (n,) else None
    if places is None:
        places = whole_array("which", which, wanted)
    if places.ndim != 1 or not places.size or places.min() < -n or places.max() >= n:
        raise InputError(message(f"`which` is {shown(which)}; wanted {wanted}, at least one."))
    return places


def in_turns(order: NDArray[np.intp], y: NDArray[np.intp]) -> NDArray[np.intp]:
    """Places in an order in which all classes take turns: first the first of every class, then the second, ...

    >>> in_turns(np.arange(5), np.array([0, 0, 0, 1, 1]))
    array([0, 3, 1, 4, 2])
    """
    by_class = order[np.argsort(y[order], kind="stable")]
    sizes = np.bincount(y)
    begins = np.cumsum(sizes) - sizes
    turn = np.empty(len(y), dtype=np.intp)
    turn[by_class] = np.arange(len(y)) - begins[y[by_class]]  # how many of its class come before
    return order[np.argsort(turn[order], kind="stable")]
