"""Which numbers float64 has: exponents of results, and how they are told."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array

# The exponents, as np.frexp has them, of float64 numbers that keep all their digits.
LEAST, MOST = -1021, 1024


def largest_exponent(sizes: Array | float, powers: NDArray[np.intp] | int) -> int | None:
    """The exponent of the largest of sizes times 2^powers; None if all are zero."""
    mantissa, exponent = np.frexp(np.asarray(sizes))
    exponents = (exponent + powers)[mantissa != 0]
    return int(exponents.max()) if exponents.size else None


def decimal(exponent: float) -> str:
    """2^exponent, about."""
    return f"1e{round(exponent * np.log10(2.0))}"
