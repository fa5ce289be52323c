"""How W is held while it is trained: as a d x d matrix, or by its coordinates in the span that it moves in."""

from __future__ import annotations

from typing import Literal

from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.extremes import are_extreme
from attnlab.models.frame import frame_size
from attnlab.models.heads import Linear

Engine = Literal["auto", "direct", "kernel"]
# Coordinates are chosen where a step costs at most this part of one with the matrix, so that small problems, for which
# either is a matter of overhead, are left alone.
WORTHWHILE = 0.35
# The basis of the coordinates may have this many entries per trial, 32 MB.
MOST_ENTRIES = 4_000_000


def choose_engine(
    engine: Engine, tokens: Tokens, isotropic: bool, parameterization: str
) -> Literal["direct", "kernel"]:
    """The engine to use. "auto" decides by the shapes alone: same configuration, same numbers."""
    fits = parameterization == "W" and isotropic
    if engine == "kernel" and not fits:
        what = "K and Q" if parameterization != "W" else "this rule"
        raise InputError(
            message(
                f"`engine='kernel'` trains W by rules that see lengths and sums of gradients; not {what}.",
                "engine='auto'",
            )
        )
    if engine != "direct" and are_extreme(tokens, Linear()):
        if engine == "kernel":
            raise InputError(
                message(
                    "`engine='kernel'` takes tokens and queries of ordinary size, from 1e-50 to 1e50.", "engine='auto'"
                )
            )
        return "direct"
    size, r_x, r_z = frame_size(tokens.n, tokens.K or 1, tokens.T, tokens.d)
    if engine == "direct" or size == 0:  # with one token per sequence nothing moves
        return "direct"
    d, T = tokens.d, tokens.T
    cheaper = T * size <= WORTHWHILE * d * (d + T) and size * r_x * r_z <= MOST_ENTRIES
    return "kernel" if engine == "kernel" or (fits and cheaper) else "direct"
