"""Data sets made of hostile arrays that the containers accept, and selections on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import attnlab as al
from fuzz.arrays import WRAPPINGS, anything, finite, uniform
from fuzz.scalars import junk
from fuzz.source import Source

SMALL = (2, 1, 3, 4)


@dataclass(frozen=True)
class Sizes:
    """Of a data set: sequences, tokens, dimension, queries per sequence, trials."""

    n: int
    T: int
    d: int
    K: int | None = None
    trials: int | None = None

    @property
    def lead(self) -> tuple[int, ...]:
        return () if self.trials is None else (self.trials,)

    @property
    def rows(self) -> tuple[int, ...]:
        """Of the queries, trials in front."""
        return (*self.lead, self.n) if self.K is None else (*self.lead, self.n, self.K)


def any_sizes(src: Source, *, trials: bool = False, queries: bool = True) -> Sizes:
    n, T, d = src.choose(SMALL), src.choose((3, 2, 1, 4, 5)), src.choose(SMALL)
    K = src.choose((1, 2, 3)) if queries and src.rarely(4) else None
    return Sizes(n, T, d, K, src.choose((1, 2, 3)) if trials else None)


def labels(src: Source, shape: tuple[int, ...]) -> np.ndarray:
    return np.array([(1.0, -1.0)[i] for i in src.indices(2, int(np.prod(shape)))]).reshape(shape)


def mask(src: Source, sizes: Sizes) -> np.ndarray | None:
    """None, some tokens hidden, or all but one."""
    kind = src.choose(("none", "none", "none", "some", "one"))
    if kind == "none":
        return None
    shape = (*sizes.rows, sizes.T)
    bits = src.indices(2, int(np.prod(shape))) if kind == "some" else [1] * int(np.prod(shape))
    seen = ~np.array(bits, dtype=bool).reshape(-1, sizes.T)
    kept = src.indices(sizes.T, len(seen))
    seen[np.arange(len(seen)), kept] = True
    return seen.reshape(shape)


def tokens_of(src: Source, sizes: Sizes, *, masked: bool = True, v: bool | None = None) -> al.Tokens:
    """Tokens of these sizes; queries may be the tokens' own rows."""
    x = finite(src, (*sizes.lead, sizes.n, sizes.T, sizes.d))
    shape = (*sizes.rows, sizes.d)
    z = np.array(x[..., 0, :]) if sizes.K is None and src.rarely(3) else finite(src, shape)
    with_v = src.index(4) < 3 if v is None else v
    return al.Tokens(
        x=x,
        z=z,
        y=labels(src, sizes.rows),
        v=finite(src, (sizes.d,)) if with_v else None,
        mask=mask(src, sizes) if masked else None,
    )


def tokens(src: Source, *, trials: bool = False, queries: bool = True, v: bool | None = None) -> al.Tokens:
    """One data set, or a batch."""
    return tokens_of(src, any_sizes(src, trials=trials, queries=queries), v=v)


def maybe_tokens(src: Source, given: Any) -> Any:
    """The data set; now and then something else in its place."""
    if src.rarely(25):
        return src.choose((None, given.x, [given], {"x": given.x}, "tokens", 3, batch_of(given), al.Tokens))
    return given


def batch_of(given: Any) -> Any:
    """The same data with a trial axis."""
    return al.Tokens.stack([given, given]) if isinstance(given, al.Tokens) and given.trials is None else given


def selection(src: Source, data: al.Tokens) -> Any:
    """A token for every query: mostly a visible one, else anything."""
    shape = data.y.shape
    chosen = np.array(src.indices(data.T, int(np.prod(shape))), dtype=int).reshape(shape)
    if data.mask is not None and src.index(8) < 7:
        hidden = ~np.take_along_axis(data.mask, chosen[..., None], -1)[..., 0]
        chosen = np.where(hidden, data.mask.argmax(-1), chosen)
    if src.rarely(12):
        return src.choose(
            (
                None,
                chosen.astype(float),
                chosen + data.T,
                chosen - data.T,
                chosen.tolist(),
                chosen[..., None],
                chosen.astype(bool),
                chosen.astype(str),
                chosen.astype(object),
                np.full(shape, 10**25, dtype=object),
                np.full(shape, 2**63, dtype=np.uint64),
                chosen.astype(np.int8),
                [],
                "all",
                0,
                {0: 1},
                np.ma.masked_array(chosen, mask=True),
                chosen.astype(complex),
                [[0], [0, 1]],
                np.full(shape, np.nan),
            )
        )
    return chosen


def kept(src: Source, data: al.Tokens) -> Any:
    """Which tokens keep attention: at least one visible token of every query, else anything."""
    shape = (*data.y.shape, data.T)
    found = np.array(src.indices(2, int(np.prod(shape))), dtype=bool).reshape(shape)
    found &= data.visible
    first = np.arange(data.T) == data.visible.argmax(-1)[..., None]
    found |= first & ~found.any(-1, keepdims=True)
    if src.rarely(10):
        return anything(src, shape)
    return found


def matrix(src: Source, *shape: int) -> Any:
    """Weights: an array of any scale, or anything."""
    return anything(src, shape)


def sequences(src: Source, sizes: Sizes | None = None) -> al.Sequences:
    """Sequences with real labels."""
    sizes = any_sizes(src, queries=False) if sizes is None else sizes
    return al.Sequences(x=finite(src, (*sizes.lead, sizes.n, sizes.T, sizes.d)), y=finite(src, (*sizes.lead, sizes.n)))


def plain_tokens(src: Source, sizes: Sizes) -> al.Tokens:
    """Tokens in general position at scale 1: for arguments beside the data."""
    return al.Tokens(
        x=uniform(src, (*sizes.lead, sizes.n, sizes.T, sizes.d)),
        z=uniform(src, (*sizes.rows, sizes.d)),
        y=labels(src, sizes.rows),
        v=uniform(src, (sizes.d,)),
    )


def wrapped(src: Source, array: np.ndarray) -> Any:
    """The array in some wrapping."""
    return src.choose(WRAPPINGS)(src, array)


def solution(src: Source, data: al.Tokens, chosen: Any) -> Any:
    """What may be passed as `solution`: none, the right one, that of other tokens, or anything."""
    kind = src.choose(("none", "none", "right", "other", "junk"))
    if kind == "none":
        return None
    if kind == "junk":
        return junk(src)
    if kind == "other":
        return al.solve_margin(al.data.two_tokens(), [0])
    try:
        return al.solve_margin(data, chosen, throw=False)
    except Exception:
        return None
