"""`MarginSolution`: a max-margin direction with the evidence for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from attnlab.data.frames import data_frame
from attnlab.data.tokens import Array
from attnlab.svm.face import OptimalFace


class MarginStatus(Enum):
    """What was found, as a sentence."""

    OPTIMAL = "Solved: the duality gap certifies it."
    INACCURATE = "A feasible W was found, but the duality gap is above the tolerance; see `gap`."
    INFEASIBLE = "No W separates the selected tokens from the others; see `farkas`."
    UNDECIDED = "Too close to call in float64: neither a separating W nor a proof that there is none was found."
    UNCONSTRAINED = "There is nothing to separate: every query sees one token. W = 0."


Value = TypeVar("Value")


class Lazy(Generic[Value]):
    """A field that may be given as a function without arguments, which is then called when the field is first read.

    Laying out the evidence of a small problem takes longer than solving it, and most of it is never read.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Value:
        if instance is None:
            if "__dataclass_fields__" in owner.__dict__:
                return self
            raise AttributeError(self.name)  # the dataclass, in the making, asks for a default: there is none
        fields = instance.__dict__
        if callable(fields[self.name]):
            fields[self.name] = fields[self.name]()
        return fields[self.name]

    def __set__(self, instance: object, value: Value | Callable[[], Value]) -> None:
        instance.__dict__[self.name] = value


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MarginSolution:
    """The least W with `(x_selected - x_t)^T W z >= 1` for every query and every other visible token.

    Attributes:
        W: (d, d), scaled so that the least constraint value is 1 (up to `violation`); NaN if infeasible.
        margin: 1 / |W|, the margin of the unit direction; 0 if infeasible, inf if unconstrained.
        multipliers: dual variables, laid out as the tokens are, zero at selected and masked tokens:
            `W = sum multipliers (x_selected - x_t) z^T`. For the nuclear norm that sum has largest singular value 1.
            Of order |x|^-2 |z|^-2, they may have no float64 numbers where W has: see `multiplier_exponent`.
        values: (x_selected - x_t)^T W z, laid out likewise; NaN at selected and masked tokens.
        value_error: how far each of those may be from the exact solution's, by the gap; laid out likewise.
        support: tokens whose constraint is tight; None with `reason` where the gap is too large to tell.
        rank: number of singular values of W that are certainly not zero; None likewise.
        rank_floor: singular values up to this may be zero in the exact solution; None likewise.
        gap: relative duality gap `(|W| / least value) (|sum l A| / sum l) - 1`, from these W and multipliers.
        violation: how far the least constraint value is below 1.
        direction_error: bound on |W - W*| / |W| (Frobenius), from the gap and from what rounding may hide of it, which
            counts where constraints differ by many orders of magnitude; None where there is none.
        status: what was found, as a sentence.
        farkas: if infeasible, weights l >= 0 of sum 1, laid out as the tokens are, with `sum l A = 0`.
        farkas_residual: |sum l A| / sum l |A| for those.
        norm: which norm was minimized.
        selected: the selection this is for.
        reason: why support, rank or unique is None.
        unique: is this the only optimum? Always, in the Frobenius norm and others that are strictly convex. For the
            nuclear norm as the gap tells, None with `reason` where it does not; None in other norms.
        face: for the nuclear norm: all optima; see `distance_to_face`.
        multiplier_exponent: the multipliers are `2^multiplier_exponent` times those given; 0 but for data of extreme
            scale.
    """

    W: Array
    margin: float
    multipliers: Lazy[Array] = Lazy()
    values: Lazy[Array] = Lazy()
    value_error: Lazy[Array] = Lazy()
    support: Lazy[NDArray[np.bool_] | None] = Lazy()
    rank_floor: float | None
    gap: float
    violation: Lazy[float] = Lazy()
    direction_error: float | None
    status: MarginStatus
    farkas: Array | None
    farkas_residual: float | None
    norm: str
    selected: NDArray[np.intp]
    reason: str | None = None
    unique: bool | None = None
    face: OptimalFace | None = None
    multiplier_exponent: int = 0

    @property
    def feasible(self) -> bool:
        """Was a separating W found?"""
        return self.status in (MarginStatus.OPTIMAL, MarginStatus.INACCURATE, MarginStatus.UNCONSTRAINED)

    @cached_property
    def rank(self) -> int | None:
        """Singular values of W above `rank_floor` and rounding."""
        if self.rank_floor is None:
            return None
        power = -int(np.frexp(np.abs(self.W).max())[1])  # sums of squares of entries near 1e308 are no numbers
        singular = np.linalg.svd(np.ldexp(self.W, power), compute_uv=False)
        rounding = 8 * len(self.W) * float(np.finfo(np.float64).eps) * float(singular[0])
        return int((singular > np.ldexp(self.rank_floor, power) + rounding).sum())

    def __repr__(self) -> str:
        if not self.feasible:
            return f"MarginSolution({self.norm}, {self.status.name.lower()})"
        support = "?" if self.support is None else int(self.support.sum())
        return (
            f"MarginSolution({self.norm}, margin={self.margin:.4g}, support={support} of "
            f"{int(np.isfinite(self.values).sum())}, rank={self.rank}, gap={self.gap:.1e}, {self.status.name.lower()})"
        )

    def frame(self) -> Any:
        """The constraints as a pandas DataFrame: a row for each query and each token that it is compared with.

        Columns: `query`, `token`, `value` of the constraint, `value_error`, `multiplier`, `support`.

        >>> import attnlab as al
        >>> al.solve_margin(al.data.two_tokens(), [0]).frame()["value"].tolist()
        [1.0]
        """
        compared = np.isfinite(self.values) if self.feasible else np.ones(self.values.shape, dtype=bool)
        places = np.argwhere(compared.reshape(-1, self.values.shape[-1]))
        support = np.full(compared.shape, np.nan) if self.support is None else self.support
        columns = {"query": places[:, 0], "token": places[:, 1]}
        named = {"value": self.values, "value_error": self.value_error, "multiplier": self.multipliers}
        columns |= {name: array[compared] for name, array in {**named, "support": support}.items()}
        return data_frame(columns, "`values` and `multipliers` are the same numbers")

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON; null where there is none."""

        def number(value: float | None) -> float | None:
            return value if value is not None and np.isfinite(value) else None

        return {
            "status": self.status.name.lower(),
            "message": self.status.value,
            "norm": self.norm,
            "margin": number(self.margin),
            "gap": number(self.gap),
            "violation": number(self.violation),
            "direction_error": number(self.direction_error),
            "rank": self.rank,
            "unique": self.unique,
            "support": None if self.support is None else np.argwhere(self.support).tolist(),
            "selected": self.selected.tolist(),
            "reason": self.reason,
            "farkas_residual": number(self.farkas_residual),
        }
