"""Weights that a model holds and does not train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnlab.data.fingerprint import digest


@dataclass(frozen=True)
class Fixed:
    """Arrays by name, known by their hash: equal ones are the same setting of a model."""

    hash: str
    arrays: Mapping[str, np.ndarray] = field(compare=False, repr=False)

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Fixed:
        """These arrays, copied and then left alone."""
        held = {name: np.array(array) for name, array in sorted(arrays.items())}
        for array in held.values():
            array.flags.writeable = False
        return cls(digest(np.array(list(held)), *held.values()), held)

    def describe(self) -> dict[str, Any]:
        """For the record of a run."""
        return {"fixed": sorted(self.arrays), "hash": self.hash}
