"""Inner products and lengths of matrices, over the last two axes."""

from __future__ import annotations

import numpy as np

from attnlab.data.tokens import Array


def inner(a: Array, b: Array) -> Array:
    """<a, b> of each pair of matrices."""
    return np.einsum("...ij,...ij->...", a, b)


def length(a: Array) -> Array:
    """Frobenius norm of each matrix."""
    return np.sqrt(inner(a, a))


def unit(a: Array) -> Array:
    """Each matrix over its Frobenius norm."""
    return a / length(a)[..., None, None]
