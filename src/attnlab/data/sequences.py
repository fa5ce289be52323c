"""`Sequences`: tokens with real labels or classes, what networks are trained on; and seeded draws of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import boolean_array, finite_array, is_a, one_of, shown, whole, whole_array
from attnlab.data.families import each_trial, room_for
from attnlab.data.files import read_npz, write_npz
from attnlab.data.fingerprint import digest
from attnlab.data.tokens import Array, Sized, Tokens, facts_about, token_array, trials_of
from attnlab.errors import InputError, message


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sequences(Sized):
    """Sequences of tokens with real labels or classes, checked once and then frozen.

    Args:
        x: tokens, shape (n, T, d), or (trials, n, T, d) for a batch of independent data sets; may be left out (d = 0)
            where tokens are known by their `ids`.
        y: labels, shape (n,) after the trial axis: any real numbers, or classes 0 to C - 1.
        mask: which tokens are there (True) and which only fill a sequence up to T, shape (n, T) after the trial axis.
        lengths: in place of a mask: how many tokens of each sequence are there, shape (n,); the first so many.
        ids: numbers of the tokens in a vocabulary, shape (n, T) after the trial axis.
        segments: of which text of a pair each token is, 0 or 1 (or more), shape (n, T) after the trial axis.
        info: where the data came from; never used in computing.

    >>> Sequences(x=np.ones((3, 2, 4)), y=[0.5, -1.0, 2.0])
    Sequences(n=3, T=2, d=4)
    >>> Sequences(ids=[[5, 7, 2], [5, 2, 0]], lengths=[3, 2], y=[0, 1]).mask.tolist()
    [[True, True, True], [True, True, False]]
    """

    x: Array
    y: Array
    mask: NDArray[np.bool_] | None = None
    ids: NDArray[np.intp] | None = None
    segments: NDArray[np.intp] | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        *,
        x: ArrayLike | None = None,
        y: ArrayLike,
        mask: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        segments: ArrayLike | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        ids_ = None if ids is None else _token_ids("ids", ids, "numbers of tokens in a vocabulary")
        segments_ = None if segments is None else _token_ids("segments", segments, "numbers of texts, from 0 on")
        if x is not None:
            x_ = token_array(x)
        elif ids_ is not None:
            x_ = np.zeros((*ids_.shape, 0))
        else:
            raise InputError(
                message("`x` is missing; wanted tokens (n, T, d), or `ids` (n, T).", "al.Sequences(x=, y=)")
            )
        y_ = finite_array("y", y)
        if y_.shape != x_.shape[:-2]:
            what = f"`ids` of shape {x_.shape[:-1]}" if x is None else f"`x` of shape {x_.shape}"
            raise InputError(message(f"`y` has shape {y_.shape}; {what} needs labels of shape {x_.shape[:-2]}."))
        for name, numbers in (("ids", ids_), ("segments", segments_)):
            if numbers is not None and numbers.shape != x_.shape[:-1]:
                wanted = f"{x_.shape[:-1]}, one for each token"
                raise InputError(message(f"`{name}` has shape {numbers.shape}; wanted {wanted}."))
        visible = _visible(mask, lengths, x_.shape[:-1])
        arrays = {"x": x_, "y": y_, "mask": visible, "ids": ids_, "segments": segments_}
        for name, value in arrays.items():
            if value is not None:
                value.flags.writeable = False
            object.__setattr__(self, name, value)
        object.__setattr__(self, "info", facts_about(info))

    @classmethod
    def of(cls, data: Any, name: str = "sequences") -> Sequences:
        """Whole sequences of vectors as they are, or the x and y of `Tokens` with one label per sequence; no masks."""
        if is_a(data, Sequences) and data.mask is None and data.d > 0:
            return data
        if is_a(data, Tokens) and data.mask is None and data.K is None:
            return cls(x=data.x, y=data.y, info=data.info)
        ours = is_a(data, Tokens) or is_a(data, Sequences)
        given = f"{data!r}, with a mask, ids alone or labels of single queries" if ours else type(data).__name__
        raise InputError(
            message(f"`{name}` is {given}; wanted al.Sequences of whole sequences.", "al.Sequences(x=x, y=y)")
        )

    @classmethod
    def of_vectors(cls, x: ArrayLike, y: ArrayLike, read: Literal["embedding", "sequence"] = "embedding") -> Sequences:
        """Vectors x (n, D): each as one token of dimension D ("embedding"), or as D tokens of dimension 1 ("sequence").

        >>> Sequences.of_vectors(np.ones((3, 5)), np.ones(3), "sequence")
        Sequences(n=3, T=5, d=1)
        """
        vectors = finite_array("x", x)
        if vectors.ndim not in (2, 3):
            raise InputError(message(f"`x` has shape {vectors.shape}; wanted vectors (n, D), or (trials, n, D)."))
        one_of("read", read, ("embedding", "sequence"))
        return cls(x=vectors[..., None, :] if read == "embedding" else vectors[..., None], y=y)

    def __getitem__(self, trial: int | slice | list[int]) -> Sequences:
        """One trial of a batch, or some: a slice, or a list of numbers."""
        which = trials_of(trial, self.trials, "sequences")
        return Sequences(**{name: array[which] for name, array in self._arrays().items()}, info=self.info)

    @property
    def lengths(self) -> NDArray[np.intp]:
        """How many tokens of each sequence are there, (n,) after the trial axis."""
        if self.mask is None:
            return np.full(self.y.shape, self.T)
        return self.mask.sum(-1)

    def rows(self, which: slice | ArrayLike) -> Sequences:
        """Some of the sequences, of every trial: a slice, or their numbers.

        >>> gaussian_sequences(5, 3, 4).rows([0, 2])
        Sequences(n=2, T=3, d=4)
        """
        chosen = _row_numbers(which, self.n)
        lead = (slice(None),) * (self.x.ndim - 3)
        return Sequences(**{name: array[(*lead, chosen)] for name, array in self._arrays().items()}, info=self.info)

    def repeated(self, trials: int) -> Sequences:
        """The same data in every trial: runs that differ in their random start alone."""
        if self.trials is not None:
            raise InputError(message(f"These sequences have {self.trials} trials already."))
        count = whole("trials", trials)
        room_for("These sequences", self.n, self.T, max(self.d, 1), count)
        every = {name: np.broadcast_to(array, (count, *array.shape)) for name, array in self._arrays().items()}
        return Sequences(**every, info=self.info)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the arrays and `info` to an npz file; an old file is replaced only once the new one is whole."""
        return write_npz(path, self._arrays(), {"info": dict(self.info)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sequences:
        """Read what `save` wrote, or any npz with arrays y and x or ids, and perhaps mask or lengths."""
        wanted = "an npz with arrays `x` (n,T,d), or `ids` (n,T), and `y` (n,)"
        arrays, facts = read_npz(path, wanted)
        missing = [name for name in ("y",) if name not in arrays]
        if "x" not in arrays and "ids" not in arrays:
            missing = ["x", *missing]
        if missing:
            held = ", ".join(sorted(arrays)) or "nothing"
            problem = f"`{path}` lacks {', '.join(missing)}; it holds {held}; wanted {wanted}."
            raise InputError(message(problem, "np.savez(path, x=x, y=y)"))
        known = {name: arrays[name] for name in ("x", "y", "mask", "lengths", "ids", "segments") if name in arrays}
        return cls(**known, info=facts.get("info"))

    def digest(self) -> str:
        """A hash of the arrays: equal for equal data, whatever its history."""
        arrays = self._arrays()
        beside = [name for name in ("mask", "ids", "segments") if name in arrays]
        return digest(np.array(["sequences", *beside]), self.x, self.y, *(arrays[name] for name in beside))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        named = {"x": self.x, "y": self.y, "mask": self.mask, "ids": self.ids, "segments": self.segments}
        empty = self.ids is not None and self.d == 0
        return {name: array for name, array in named.items() if array is not None and not (name == "x" and empty)}

    def __repr__(self) -> str:
        trials = "" if self.trials is None else f"trials={self.trials}, "
        held = (("masked", self.mask), ("ids", self.ids), ("segments", self.segments))
        beside = [word for word, array in held if array is not None]
        return f"Sequences({', '.join([f'{trials}n={self.n}, T={self.T}, d={self.d}', *beside])})"


def _token_ids(name: str, ids: ArrayLike, wanted: str) -> NDArray[np.intp]:
    """Whole numbers from 0 on, (n, T), or with a trial axis before."""
    numbers = whole_array(name, ids, wanted)
    if numbers.ndim not in (2, 3) or 0 in numbers.shape:
        raise InputError(
            message(f"`{name}` has shape {numbers.shape}; wanted (n, T), or (trials, n, T), with no empty axis.")
        )
    if numbers.min() < 0:
        raise InputError(message(f"`{name}` holds {numbers.min()}; wanted numbers from 0 on."))
    return np.array(numbers)


def _visible(mask: ArrayLike | None, lengths: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    """The mask (..., n, T) that is given, or that of these lengths; None where every token is there."""
    if mask is not None and lengths is not None:
        raise InputError(message("`mask` and `lengths` are both given; wanted one of them."))
    if lengths is not None:
        counts = whole_array("lengths", lengths, "how many tokens of each sequence are there")
        T = shape[-1]
        if counts.shape != shape[:-1] or counts.min() < 1 or counts.max() > T:
            raise InputError(
                message(f"`lengths` is {shown(lengths)}; wanted numbers from 1 to {T}, of shape {shape[:-1]}.")
            )
        return np.arange(T) < counts[..., None]
    if mask is None:
        return None
    visible = boolean_array("mask", mask, "booleans (True = a token is there), or 0 and 1")
    if visible.shape not in (shape, shape[1:]):
        raise InputError(message(f"`mask` has shape {visible.shape}; wanted {shape}."))
    visible = np.array(np.broadcast_to(visible, shape))
    empty = ~visible.any(-1)
    if empty.any():
        where = tuple(int(i) for i in np.argwhere(empty)[0])
        raise InputError(
            message(
                f"`mask` hides every token of {int(empty.sum())} sequences, the first at index {where}.",
                "True is visible",
            )
        )
    return visible


def _row_numbers(which: slice | ArrayLike, n: int) -> slice | NDArray[np.intp]:
    """A slice that picks something, or numbers from -n to n - 1."""
    if isinstance(which, slice):
        try:
            some = range(n)[which]
        except (TypeError, ValueError) as error:
            raise InputError(message(f"`which` is {which!r}; wanted a slice, or numbers of sequences.")) from error
        if not len(some):
            raise InputError(message(f"`which` is {which!r}, which has none of {n} sequences."))
        return which
    numbers = whole_array("which", which, "a slice, or numbers of sequences")
    if numbers.ndim != 1 or not numbers.size or numbers.min() < -n or numbers.max() >= n:
        raise InputError(
            message(f"`which` is {shown(which)}; wanted numbers of sequences from 0 to {n - 1}, in a list.")
        )
    return numbers


def gaussian_sequences(
    n: int = 100,
    T: int = 10,
    d: int = 100,
    *,
    rows: Literal["unit", "raw"] = "unit",
    seed: int = 0,
    trials: int | None = None,
) -> Sequences:
    """Gaussian tokens with labels N(0, 1), the data of figures 2, 5 and 9 of *On the Convergence of Encoder-only
    Shallow Transformers*; defaults are its sizes.

    Args:
        n, T, d: sequences, tokens per sequence, dimension of a token.
        rows: "raw" has entries N(0, 1); "unit" divides every token by its norm, so that C_x = 1.
        seed, trials: see `attnlab.data.families`.

    Draw order: x, y.

    >>> bool(np.allclose(np.linalg.norm(gaussian_sequences(5, 3, 4).x, axis=-1), 1.0))
    True
    """
    room_for("gaussian_sequences", n, T, d, trials)
    one_of("rows", rows, ("unit", "raw"))

    def draw(rng: np.random.Generator) -> tuple[Array, Array]:
        x, y = rng.standard_normal((n, T, d)), rng.standard_normal(n)
        return (x / np.linalg.norm(x, axis=-1, keepdims=True) if rows == "unit" else x), y

    drawn = each_trial(draw, whole("seed", seed, 0), trials)
    x, y = (np.stack(part) if trials is not None else part[0] for part in zip(*drawn, strict=True))
    return Sequences(x=x, y=y, info={"family": "gaussian_sequences", "rows": rows, "seed": int(seed)})
