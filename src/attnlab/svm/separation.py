"""The best margin of a classifier with the evidence for it, and how it is stated for points of any length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.svm.certificate import UNSURE
from attnlab.svm.ranges import LEAST, MOST, decimal, largest_exponent

# Points longer than the shortest by more than two to this are shortened.
LONGEST = 200


class SeparationStatus(Enum):
    """What was found, as a sentence."""

    OPTIMAL = "Solved: the two bounds of the margin agree to the tolerance."
    INACCURATE = "A separating direction was found, but the bounds of the margin differ by more than the tolerance."
    NOT_SEPARABLE = "No direction separates the labels; see `farkas`."
    UNDECIDED = "Too close to call in float64: neither a separating direction nor a proof that there is none was found."


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HardMargin:
    """The best margin of a classifier without bias, with the evidence for it.

    Attributes:
        weights: u, (d,), scaled so that the least y_i u.x_i is 1; None for a kernel, or if none was found.
        multipliers: a >= 0, (N,), scaled so that `u = sum a_i y_i x_i`, up to the gap: the classifier is the sign of
            sum a_i y_i k(x_i, x). NaN if no u was found.
        lower: the margin of u; 0 if no u was found.
        upper: a margin that no unit direction exceeds; inf where no bound was found.
        gap: upper / lower - 1; inf if no u was found.
        support: points on the margin; None where the gap is too large to tell.
        status: what was found, as a sentence.
        farkas: if nothing separates, weights l >= 0 of sum 1 with `sum l_i y_i x_i = 0`.
        farkas_residual: |sum l y x| / sum l |x| for those.
    """

    weights: Array | None
    multipliers: Array
    lower: float
    upper: float
    gap: float
    support: NDArray[np.bool_] | None
    status: SeparationStatus
    farkas: Array | None = None
    farkas_residual: float | None = None

    @property
    def margin(self) -> float:
        """The margin attained, `lower`."""
        return self.lower

    @property
    def separable(self) -> bool:
        """Was a separating direction found?"""
        return self.status in (SeparationStatus.OPTIMAL, SeparationStatus.INACCURATE)

    def __repr__(self) -> str:
        if not self.separable:
            return f"HardMargin({self.status.name.lower()}, margin at most {self.upper:.1e})"
        support = "?" if self.support is None else int(self.support.sum())
        return (
            f"HardMargin(margin={self.lower:.4g}, support={support} of {len(self.multipliers)}, gap={self.gap:.1e}, "
            f"{self.status.name.lower()})"
        )


def not_separable(
    weights: Array, upper: float, residual: float, status: SeparationStatus = SeparationStatus.NOT_SEPARABLE
) -> HardMargin:
    """Weights that cancel, and the margin that nothing exceeds because of them."""
    return HardMargin(
        weights=None, multipliers=np.full(len(weights), np.nan), lower=0.0, upper=upper, gap=np.inf, support=None,
        status=status, farkas=weights, farkas_residual=residual,
    )  # fmt: skip


class Points(Protocol):
    """Signed points, given as such or by their Gram matrix."""

    def measured(self, multipliers: Array) -> tuple[Array, float, Array | None]:
        """y_i u.x_i, |u|, and u if it is known, of u = sum a y x."""
        ...

    def seen(self, multipliers: Array, u: Array | None) -> tuple[Array, float, Array]:
        """y_i u.x_i, |u|, and how far rounding may have moved the former."""
        ...


@dataclass(frozen=True, eq=False)
class Lengths:
    """Points x_i = 2^(least + excess_i) x'_i, where the x' have lengths of order 2^kept: 1 to 2^200.

    Longer points are shortened by 2^excess. That asks more of u than they do, so u classifies them; and the bounds are
    stated for what they ask.
    """

    least: int
    kept: NDArray[np.intp]
    excess: NDArray[np.intp]

    @classmethod
    def of(cls, exponents: NDArray[np.intp], live: NDArray[np.bool_]) -> Lengths:
        least = int(exponents[live].min()) if live.any() else 0
        kept = np.where(live, np.minimum(exponents - least, LONGEST), 0)
        return cls(least, kept, np.where(live, exponents - least - kept, 0))

    def restored(self, found: HardMargin, points: Points, name: str, tolerance: float) -> HardMargin:
        """What was found for the points x' as a statement about x."""
        if not found.separable:
            assert found.farkas is not None
            weights = np.ldexp(found.farkas, -self.excess)
            total = float(weights.sum())
            upper = float(np.ldexp(found.upper, self.least))
            return replace(found, farkas=weights / total if total > 0 else weights, upper=upper)
        powers = -2 * self.least - self.excess
        self._check("the multipliers", np.abs(found.multipliers), powers, name)
        self._check("the margin", found.lower, self.least, name)
        if found.weights is not None:
            self._check("the weights", np.abs(found.weights), -self.least, name)
        multipliers = np.ldexp(found.multipliers, powers)
        left = np.ldexp(multipliers, -powers)  # small ones may have become zero
        if self.excess.any() or not np.array_equal(left, found.multipliers):
            found = self._certified_again(replace(found, multipliers=left), points, tolerance)
        return replace(
            found,
            weights=None if found.weights is None else np.ldexp(found.weights, -self.least),
            multipliers=multipliers,
            lower=float(np.ldexp(found.lower, self.least)),
            upper=float(np.ldexp(found.upper, self.least)),
        )

    def _certified_again(self, found: HardMargin, points: Points, tolerance: float) -> HardMargin:
        """The same with the bounds for what the points ask, and for the numbers that are left."""
        weights = found.weights
        if weights is not None:
            asked = float(np.ldexp(points.seen(found.multipliers, weights)[0], self.excess).min())
            weights = weights / asked if asked > 1.0 + 1e-9 else weights
            weights = np.ldexp(np.ldexp(weights, -self.least), self.least)
        values, length, rounding = points.seen(found.multipliers, weights)
        combined = points.measured(found.multipliers)[1]
        least = float(np.ldexp(values, self.excess).min())
        proved = float(np.ldexp(values - rounding, self.excess).min())
        lower = least / length
        if not (proved > 0 and lower > 0):  # a margin below the least float64 number is none that can be shown
            return not_separable(np.full(len(values), np.nan), np.inf, np.inf, SeparationStatus.UNDECIDED)
        asks = float(np.ldexp(found.multipliers, -self.excess).sum())
        upper = combined / asks if asks > 0 else np.inf
        gap = max(upper / lower - 1.0, 0.0)
        certified = gap <= tolerance and proved >= (1.0 - UNSURE) * least
        return replace(
            found,
            weights=weights,
            lower=lower,
            upper=upper,
            gap=gap,
            support=None,
            status=found.status if certified else SeparationStatus.INACCURATE,
        )

    def _check(self, what: str, sizes: Array | float, powers: NDArray[np.intp] | int, name: str) -> None:
        """Refuse what float64 has no numbers for."""
        largest = largest_exponent(sizes, powers)
        if largest is None or LEAST <= largest <= MOST:
            return
        power = self.least if name == "features" else 2 * self.least
        hint = f"np.ldexp({name}, {-power})"
        if self.excess.any():
            hint = "the points differ by too many orders of magnitude; leave the extreme ones out"
        raise InputError(
            message(
                f"`{name}` has points of length {decimal(self.least)}; {what} would be of size {decimal(largest)}, and "
                "float64 numbers go from 1e-308 to 1e308.",
                hint,
            )
        )
