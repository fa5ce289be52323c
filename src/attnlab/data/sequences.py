"""`Sequences`: tokens with real labels, what an encoder is trained on; and seeded draws of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import finite_array, is_a, one_of, whole
from attnlab.data.families import each_trial, room_for
from attnlab.data.files import read_npz, write_npz
from attnlab.data.fingerprint import digest
from attnlab.data.tokens import Array, Sized, Tokens, facts_about, token_array, trials_of
from attnlab.errors import InputError, message


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sequences(Sized):
    """Sequences of tokens with real labels, checked once and then frozen.

    Args:
        x: tokens, shape (n, T, d), or (trials, n, T, d) for a batch of independent data sets.
        y: labels, any real numbers, shape (n,) after the trial axis.
        info: where the data came from; never used in computing.

    >>> Sequences(x=np.ones((3, 2, 4)), y=[0.5, -1.0, 2.0])
    Sequences(n=3, T=2, d=4)
    """

    x: Array
    y: Array
    info: Mapping[str, Any] = field(default_factory=dict)

    def __init__(self, *, x: ArrayLike, y: ArrayLike, info: Mapping[str, Any] | None = None) -> None:
        x_, y_ = token_array(x), finite_array("y", y)
        if y_.shape != x_.shape[:-2]:
            raise InputError(
                message(f"`y` has shape {y_.shape}; `x` of shape {x_.shape} needs labels of shape {x_.shape[:-2]}.")
            )
        for name, value in (("x", x_), ("y", y_)):
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        object.__setattr__(self, "info", facts_about(info))

    @classmethod
    def of(cls, data: Any, name: str = "sequences") -> Sequences:
        """Sequences as they are, or the x and y of `Tokens` without mask and with one label per sequence."""
        if is_a(data, Sequences):
            return data
        if is_a(data, Tokens) and data.mask is None and data.K is None:
            return cls(x=data.x, y=data.y, info=data.info)
        given = f"{data!r}, with a mask or labels of single queries" if is_a(data, Tokens) else type(data).__name__
        raise InputError(message(f"`{name}` is {given}; wanted al.Sequences.", "al.Sequences(x=x, y=y)"))

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
        return Sequences(x=self.x[which], y=self.y[which], info=self.info)

    def repeated(self, trials: int) -> Sequences:
        """The same data in every trial: runs that differ in their random start alone."""
        if self.trials is not None:
            raise InputError(message(f"These sequences have {self.trials} trials already."))
        count = whole("trials", trials)
        room_for("These sequences", self.n, self.T, self.d, count)
        x, y = (np.broadcast_to(a, (count, *a.shape)) for a in (self.x, self.y))
        return Sequences(x=x, y=y, info=self.info)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write x, y and `info` to an npz file; an old file is replaced only once the new one is whole."""
        return write_npz(path, {"x": self.x, "y": self.y}, {"info": dict(self.info)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sequences:
        """Read what `save` wrote, or any npz with arrays x and y."""
        wanted = "an npz with arrays `x` (n,T,d) and `y` (n,)"
        arrays, facts = read_npz(path, wanted)
        missing = [k for k in ("x", "y") if k not in arrays]
        if missing:
            held = ", ".join(sorted(arrays)) or "nothing"
            problem = f"`{path}` lacks {', '.join(missing)}; it holds {held}; wanted {wanted}."
            raise InputError(message(problem, "np.savez(path, x=x, y=y)"))
        return cls(x=arrays["x"], y=arrays["y"], info=facts.get("info"))

    def digest(self) -> str:
        """A hash of the arrays: equal for equal data, whatever its history."""
        return digest(np.array(["sequences"]), self.x, self.y)

    def __repr__(self) -> str:
        trials = "" if self.trials is None else f"trials={self.trials}, "
        return f"Sequences({trials}n={self.n}, T={self.T}, d={self.d})"


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

    drawn = each_trial(draw, seed, trials)
    x, y = (np.stack(part) if trials is not None else part[0] for part in zip(*drawn, strict=True))
    return Sequences(x=x, y=y, info={"family": "gaussian_sequences", "rows": rows, "seed": int(seed)})
