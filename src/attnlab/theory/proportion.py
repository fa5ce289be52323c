"""How well a proportion is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.data.tokens import Array


def wilson(hits: Any, trials: Any, z: float = 1.96) -> tuple[Array, Array]:
    """Wilson's 95 % interval of a proportion.

    >>> low, high = wilson(50, 50)
    >>> round(float(low), 3), float(high)
    (0.929, 1.0)
    """
    p = np.asarray(hits) / trials
    middle = p + z**2 / (2 * trials)
    spread = z * np.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2))
    scale = 1 + z**2 / trials
    return np.maximum((middle - spread) / scale, 0.0), np.minimum((middle + spread) / scale, 1.0)
