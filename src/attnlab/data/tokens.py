"""`Tokens`: the one container that everything else takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import boolean_array, finite_array, instance, shown, whole_array
from attnlab.data.files import read_npz, write_npz
from attnlab.data.fingerprint import digest
from attnlab.errors import InputError, NoSuchTrial, message

Array = NDArray[np.float64]


class Sized:
    """Sizes of tokens x, (n, T, d) or (trials, n, T, d)."""

    x: Array

    @property
    def trials(self) -> int | None:
        """Length of the trial axis, or None without one."""
        return self.x.shape[0] if self.x.ndim == 4 else None

    @property
    def n(self) -> int:
        """Number of sequences."""
        return self.x.shape[-3]

    @property
    def T(self) -> int:
        """Tokens per sequence."""
        return self.x.shape[-2]

    @property
    def d(self) -> int:
        """Dimension of a token."""
        return self.x.shape[-1]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tokens(Sized):
    """Sequences of tokens with their queries, labels and prediction head, checked once and then frozen.

    Attention with weights W looks at sequence i through `softmax(x_i W z_i)`.

    Args:
        x: tokens, shape (n, T, d).
        z: queries, shape (n, d); or (n, K, d) when each sequence is asked K questions.
        y: labels +1 or -1, shape (n,), or (n, K) with K queries.
        v: direction of the linear head, shape (d,); may be left out if the head does not use it.
        mask: which tokens each query may see (True = visible), or "causal" (query k sees tokens 0..k; needs K = T).
            Shape (T,) or (n, T) for one query, (K, T) or (n, K, T) for K queries.
        info: where the data came from (family, seed, attempts, ...); kept when saving, never used in computing.

    Every array may carry a leading trial axis, told by `x` of shape (trials, n, T, d); then `v`, `mask` may do
    without one and are shared by all trials. Arrays are copied to float64 and made read-only.

    >>> import numpy as np, attnlab as al
    >>> al.Tokens(x=np.eye(2)[None], z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    Tokens(n=1, T=2, d=2)
    """

    x: Array
    z: Array
    y: Array
    v: Array | None = None
    mask: NDArray[np.bool_] | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        *,
        x: ArrayLike,
        z: ArrayLike,
        y: ArrayLike,
        v: ArrayLike | None = None,
        mask: ArrayLike | Literal["causal"] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        x_ = token_array(x)
        lead, (n, T, d) = x_.shape[:-3], x_.shape[-3:]
        z_ = _queries(z, lead, n, d, x_.shape)
        rows = z_.shape[len(lead) : -1]  # (n,) or (n, K)
        fields: dict[str, Any] = {
            "x": x_,
            "z": z_,
            "y": _labels(y, lead + rows),
            "v": None if v is None else _head_vector(v, lead, d),
            "mask": None if mask is None else _mask(mask, lead, rows, T),
        }
        for name, value in fields.items():
            if value is not None:
                value.flags.writeable = False
            object.__setattr__(self, name, value)
        object.__setattr__(self, "info", facts_about(info))

    @classmethod
    def self_attention(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        v: ArrayLike | None = None,
        query: int | Literal["all"] = 0,
        *,
        mask: ArrayLike | Literal["causal"] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Tokens:
        """Tokens whose query is one of their own rows (`query=0`: the first), or every row (`query="all"`, K = T)."""
        x_ = token_array(x)
        T = x_.shape[-2]
        if isinstance(query, str) and query == "all":
            return cls(x=x_, z=x_, y=y, v=v, mask=mask, info=info)
        if isinstance(query, bool) or not isinstance(query, int | np.integer):
            raise InputError(message(f"`query` is {shown(query)}; wanted a row number or 'all'."))
        if not -T <= query < T:
            raise InputError(message(f"`query` is {query}; sequences of {T} tokens have rows 0 to {T - 1}."))
        return cls(x=x_, z=x_[..., query, :], y=y, v=v, mask=mask, info=info)

    @property
    def K(self) -> int | None:
        """Queries per sequence, or None when each sequence has one query (z of shape (n, d))."""
        return self.z.shape[-2] if self.z.ndim == self.x.ndim else None

    @property
    def visible(self) -> NDArray[np.bool_]:
        """The mask in full, all True where none was given: shape (..., n, T) or (..., n, K, T)."""
        if self.mask is not None:
            return self.mask
        return np.ones((*self.y.shape, self.T), dtype=bool)

    def __getitem__(self, trial: int | slice | list[int] | NDArray[np.bool_]) -> Tokens:
        """One trial of a batch, or some: a slice, a list of numbers, or one boolean per trial."""
        which = trials_of(trial, self.trials, "tokens")
        pick = {k: a[which] for k, a in self._arrays().items()}
        per_trial = {k: _pick_trial(v, which, self.x.shape[0]) for k, v in self.info.items()}
        return Tokens(**pick, info=per_trial)

    @classmethod
    def stack(cls, trials: Iterable[Tokens]) -> Tokens:
        """One batch from tokens of equal shapes, in order. Facts in `info` that every trial has are stacked too."""
        try:
            each = list(trials)
        except Exception as error:  # not one, or one that breaks off
            raise InputError(message(f"`trials` is {shown(trials)}; wanted a list of al.Tokens.")) from error
        if not each:
            raise InputError(message("`trials` is empty; wanted at least one Tokens."))
        for place, one in enumerate(each):
            instance(f"trials[{place}]", one, Tokens, "al.Tokens")
        shapes = {tuple(sorted((k, a.shape) for k, a in t._arrays().items())) for t in each}
        if len(shapes) > 1 or each[0].trials is not None:
            raise InputError(
                message(
                    "`trials` differ in shape, or have a trial axis already.",
                    "stack unbatched Tokens of one shape",
                )
            )
        arrays = {k: np.stack([t._arrays()[k] for t in each]) for k in each[0]._arrays()}
        shared = [k for k in each[0].info if all(k in t.info for t in each)]
        return cls(**arrays, info={k: _stack_fact([t.info[k] for t in each]) for k in shared})

    def digest(self) -> str:
        """A hash of the arrays: equal for equal data, whatever its history."""
        present = sorted(self._arrays().items())
        return digest(np.array([name for name, _ in present]), *(array for _, array in present))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the arrays and `info` to an npz file; an old file is replaced only once the new one is whole."""
        return write_npz(path, self._arrays(), {"info": dict(self.info)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokens:
        """Read what `save` wrote, or any npz with arrays x, z, y and perhaps v, mask."""
        wanted = "an npz with arrays `x` (n,T,d), `z` (n,d), `y` (n,) and perhaps `v` (d,), `mask`"
        arrays, facts = read_npz(path, wanted)
        missing = [k for k in ("x", "z", "y") if k not in arrays]
        if missing:
            names = ", ".join(sorted(arrays)) or "nothing"
            problem = f"`{path}` lacks {', '.join(missing)}; it holds {names}; wanted {wanted}."
            raise InputError(message(problem, "np.savez(path, x=x, z=z, y=y)"))
        known = {k: arrays[k] for k in ("x", "z", "y", "v", "mask") if k in arrays}
        info = {k: _as_array(v) for k, v in facts_about(facts.get("info")).items()}
        return cls(**known, info=info)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        named = {"x": self.x, "z": self.z, "y": self.y, "v": self.v, "mask": self.mask}
        return {k: a for k, a in named.items() if a is not None}

    def __repr__(self) -> str:
        parts = [f"trials={self.trials}"] if self.trials is not None else []
        parts += [f"n={self.n}", f"T={self.T}", f"d={self.d}"]
        if self.K is not None:
            parts.append(f"K={self.K}")
        if self.mask is not None:
            parts.append("masked")
        if "family" in self.info:
            parts.append(f"family={self.info['family']}")
        return f"Tokens({', '.join(parts)})"


def facts_about(info: Any) -> dict[str, Any]:
    """A copy of `info`; empty for None."""
    given = {} if info is None else info
    return dict(instance("info", given, Mapping, "a mapping of names to facts", "info={'seed': 0}"))


def trials_of(trial: Any, trials: int | None, what: str) -> Any:
    """What picks one trial of a batch, or at least one in a slice or list."""
    if trials is None:
        raise InputError(message(f"These {what} have no trial axis to index.", "`x` has shape (n, T, d)"))
    wanted = f"a trial from 0 to {trials - 1}, a slice, a list of trials, or one boolean per trial"
    if isinstance(trial, slice):
        try:
            some = len(range(trials)[trial])
        except (TypeError, ValueError) as error:
            raise InputError(message(f"`{what}[...]` is indexed by {trial!r}; wanted {wanted}.")) from error
        if not some:
            raise InputError(
                message(f"`{what}[{trial.start}:{trial.stop}:{trial.step}]` has no trial; wanted {wanted}.")
            )
        return trial
    numbers = _true_at(trial, trials)
    if numbers is None:
        numbers = whole_array(f"{what}[...]", trial, wanted)
    if numbers.ndim > 1 or not numbers.size or numbers.min() < -trials or numbers.max() >= trials:
        raise NoSuchTrial(message(f"`{what}[...]` is indexed by {shown(trial)}; wanted {wanted}."))
    return numbers if numbers.ndim else int(numbers)


def _true_at(which: Any, trials: int) -> NDArray[np.intp] | None:
    """Where one boolean per trial is True; None for anything else."""
    flags = isinstance(which, np.ndarray) and which.dtype == bool and which.shape == (trials,)
    return np.flatnonzero(which) if flags else None


def token_array(x: ArrayLike) -> Array:
    """Tokens (n, T, d), or with a trial axis before: fresh, finite, no axis empty."""
    array = finite_array("x", x)
    if array.ndim not in (3, 4) or 0 in array.shape:
        raise InputError(
            message(
                f"`x` has shape {array.shape}; wanted (n, T, d), or (trials, n, T, d), with no empty axis.",
                "one sequence of T tokens is x[None]" if array.ndim == 2 else None,
            )
        )
    return array


def _queries(z: ArrayLike, lead: tuple[int, ...], n: int, d: int, x_shape: tuple[int, ...]) -> Array:
    array = finite_array("z", z)
    one, many = (*lead, n, d), (*lead, n, "K", d)
    head = array.shape[: len(lead) + 1]
    if array.shape == one or (
        array.ndim == len(many) and head == (*lead, n) and array.shape[-1] == d and array.shape[-2] > 0
    ):
        return array
    raise InputError(
        message(
            f"`z` has shape {array.shape}; `x` of shape {x_shape} needs `z` of shape {one}, or "
            f"({', '.join(map(str, many))}) for K queries.",
            "for self-attention use Tokens.self_attention(x, y, v)",
        )
    )


def _labels(y: ArrayLike, wanted: tuple[int, ...]) -> Array:
    array = finite_array("y", y)
    if array.shape != wanted:
        raise InputError(message(f"`y` has shape {array.shape}; the queries need labels of shape {wanted}."))
    wrong = array[np.abs(array) != 1]
    if wrong.size:
        seen = ", ".join(f"{u:g}" for u in np.unique(wrong)[:5])
        raise InputError(message(f"`y` holds {seen}; labels must be +1 or -1.", "for 0/1 labels pass 2 * y - 1"))
    return array


def _head_vector(v: ArrayLike, lead: tuple[int, ...], d: int) -> Array:
    array = finite_array("v", v)
    if array.shape not in ((d,), (*lead, d)):
        raise InputError(message(f"`v` has shape {array.shape}; tokens of dimension {d} need {(*lead, d)}."))
    return np.array(np.broadcast_to(array, (*lead, d)))


def _mask(mask: ArrayLike | str, lead: tuple[int, ...], rows: tuple[int, ...], T: int) -> NDArray[np.bool_]:
    full = (*lead, *rows, T)
    if isinstance(mask, str):
        if mask != "causal":
            raise InputError(message(f"`mask` is {mask!r}; wanted a boolean array or 'causal'."))
        if len(rows) != 2 or rows[1] != T:
            raise InputError(
                message(
                    f"`mask='causal'` needs one query per token (K = T = {T}); these have "
                    + (f"K = {rows[1]}." if len(rows) == 2 else "one query per sequence."),
                    "Tokens.self_attention(x, y, v, query='all', mask='causal')",
                )
            )
        array = np.tril(np.ones((T, T), dtype=bool))
    else:
        array = boolean_array("mask", mask, "booleans (True = visible), or 0 and 1")
    allowed = (full, (*rows, T), (*rows[1:], T))
    if array.shape not in allowed:
        shapes = " or ".join(str(s) for s in dict.fromkeys(reversed(allowed)))
        raise InputError(message(f"`mask` has shape {array.shape}; wanted {shapes}."))
    array = np.array(np.broadcast_to(array, full))
    hidden = ~array.any(-1)
    if hidden.any():
        where = tuple(int(i) for i in np.argwhere(hidden)[0])
        raise InputError(
            message(
                f"`mask` hides every token from {int(hidden.sum())} queries, the first at index {where}; "
                "each query must see at least one token.",
                "True means visible",
            )
        )
    return array


def _stack_fact(values: list[Any]) -> Any:
    """One fact for all trials: what they share, an array of what each has, or a list where neither can be."""
    try:
        if not any(isinstance(v, np.ndarray) for v in values):
            if all(v == values[0] for v in values):
                return values[0]
            if not all(isinstance(v, bool | int | float | str | np.generic) for v in values):
                return list(values)
        if len({np.shape(v) for v in values}) > 1:
            return list(values)
        return np.stack([np.asarray(v) for v in values])
    except Exception:  # objects that do not compare, or have no shape
        return list(values)


def _as_array(value: Any) -> Any:
    """A list of numbers, however nested, as the array it was; anything else as it is."""
    if not isinstance(value, list):
        return value
    try:
        array = np.asarray(value)
    except Exception:  # a ragged list, or one of things that are no numbers
        return value
    return array if array.dtype.kind in "biuf" else value


def _pick_trial(value: Any, trial: Any, trials: int) -> Any:
    per_trial = isinstance(value, np.ndarray) and value.ndim > 0 and value.shape[0] == trials
    return value[trial] if per_trial else value
