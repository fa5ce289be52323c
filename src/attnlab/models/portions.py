"""Many examples a portion at a time, so that what a model holds on its way is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array

Total = TypeVar("Total")


def of_each(function: Callable[[Array], Array], n: int, size: int) -> Array:
    """What `function` gives for rows 0 to n - 1, called with the numbers of at most `size` of them.

    >>> of_each(lambda rows: 10 * rows, n=5, size=2).tolist()
    [0, 10, 20, 30, 40]
    """
    portions, rest = divmod(n, size)
    if portions == 0:
        return function(jnp.arange(n))
    of_full = jax.lax.map(function, jnp.arange(portions * size).reshape(portions, size))
    of_full = of_full.reshape(portions * size, *of_full.shape[2:])
    if rest == 0:
        return of_full
    return jnp.concatenate([of_full, function(jnp.arange(n - rest, n))])


def sum_of_all(function: Callable[[Array], Total], add: Callable[[Total, Total], Total], n: int, size: int) -> Total:
    """The sum of what `function` gives for the numbers of at most `size` rows, over rows 0 to n - 1.

    >>> int(sum_of_all(jnp.sum, jnp.add, n=5, size=2))
    10
    """
    portions, rest = divmod(n, size)
    if portions == 0:
        return function(jnp.arange(n))

    def one_more(i: Array, total: Total) -> Total:
        return add(total, function(i * size + jnp.arange(size)))

    total = jax.lax.fori_loop(1, portions, one_more, function(jnp.arange(size)))
    return total if rest == 0 else add(total, function(jnp.arange(n - rest, n)))
