"""The first motion of a gradient flow, where the whole time is not enough for more: a straight line in time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnlab.data.tokens import Array


@dataclass(frozen=True)
class FirstMotion:
    """Weights `start - t mantissa e^log_scale` at a time t, in place of `Coordinates`; a point is the time, (..., 1).

    Attributes:
        start: weights at time 0.
        mantissa, log_scale: their gradient there.
    """

    start: dict[str, Array]
    mantissa: dict[str, Array]
    log_scale: dict[str, float]

    def weights(self, point: Array) -> dict[str, Array]:
        """The weights at times (..., 1)."""
        return {name: self._moved(name, point) for name in self.start}

    def _moved(self, name: str, point: Array) -> Array:
        if not self.mantissa[name].any():
            return np.broadcast_to(self.start[name], (*point.shape[:-1], *self.start[name].shape))
        with np.errstate(divide="ignore", under="ignore"):
            step = np.exp(np.log(point) + self.log_scale[name])[..., None]
            return self.start[name] - step * self.mantissa[name]
