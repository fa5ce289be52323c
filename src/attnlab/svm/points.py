"""Points with their labels as signs, given as features or by their Gram matrix: what `svm.linear` asks of both."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg.blas import dnrm2  # pyright: ignore[reportAttributeAccessIssue]
from scipy.linalg.lapack import dpstrf  # pyright: ignore[reportAttributeAccessIssue]

from attnlab.data.tokens import Array
from attnlab.svm.certificate import EPS

# Weights prove that nothing separates if what they combine cancels to this, relative to its size. A Gram matrix knows
# squares of lengths to 1e-16, lengths therefore to 1e-8.
CANCELS_FEATURES, CANCELS_KERNEL = 1e-11, 1e-7


class FeaturePoints:
    """Signed points y_i x_i, and the same at unit length."""

    cancels = CANCELS_FEATURES
    # Below this gap of theirs active sets have the last word; for features, least squares may still do better.
    settles = 1e-12

    def __init__(self, signed: Array) -> None:
        self.signed = signed
        self.lengths = np.linalg.norm(signed, axis=1)
        self.unit = signed / np.where(self.lengths > 0, self.lengths, 1.0)[:, None]

    def may_be_independent(self, count: int) -> bool:
        """May so many of the points be linearly independent?"""
        return count <= self.signed.shape[1]

    def gram(self, index: NDArray[np.intp]) -> Array:
        part = self.unit[index]
        return part @ part.T

    def factor(self, index: NDArray[np.intp]) -> Array:
        """F with gram = F F^T: the points, in coordinates of their span where that is smaller."""
        part = self.unit[index]
        return part if part.shape[1] <= len(index) else np.linalg.qr(part.T)[1].T

    def values(self, weights: Array) -> Array:
        """y_i u.x_i / |x_i| of u = sum weights y x / |x|."""
        return self.unit @ (weights @ self.unit)

    def measured(self, multipliers: Array) -> tuple[Array, float, Array | None]:
        """y_i u.x_i, |u|, and u, of u = sum a y x."""
        u = multipliers @ self.signed
        return self.signed @ u, float(dnrm2(u)), u

    def sharper(self, multipliers: Array) -> tuple[Array, float, Array | None]:
        """The same of the u that meets the equations of the support: it does not lose what cancels in the sum."""
        index = np.flatnonzero(multipliers > 0)
        u: Array = scipy.linalg.lstsq(self.signed[index], np.ones(len(index)))[0]  # pyright: ignore
        return self.signed @ u, float(dnrm2(u)), u

    def seen(self, multipliers: Array, u: Array | None) -> tuple[Array, float, Array]:
        """y_i u.x_i, |u|, and how far rounding may have moved the former."""
        assert u is not None
        return self.signed @ u, float(dnrm2(u)), 4 * EPS * (np.abs(self.signed) @ np.abs(u))


class KernelPoints:
    """The signed Gram matrix, and the same with unit diagonal."""

    cancels = CANCELS_KERNEL
    settles = 1e-3  # least squares on a factor of a Gram matrix knows no more than the matrix does

    def __init__(self, signed: Array) -> None:
        self.signed = signed
        self.lengths = np.sqrt(np.maximum(signed.diagonal(), 0.0))
        safe = np.where(self.lengths > 0, self.lengths, 1.0)
        self.unit = signed / safe[:, None] / safe

    def may_be_independent(self, count: int) -> bool:
        return count <= len(self.signed)

    def gram(self, index: NDArray[np.intp]) -> Array:
        return self.unit[np.ix_(index, index)]

    def factor(self, index: NDArray[np.intp]) -> Array:
        triangle, pivots, rank, _ = dpstrf(self.gram(index), tol=-1.0, lower=1)  # Cholesky's, largest pivots first
        F = np.empty((len(index), rank))
        F[pivots - 1] = np.tril(triangle)[:, :rank]
        return F

    def values(self, weights: Array) -> Array:
        return self.unit @ weights

    def measured(self, multipliers: Array) -> tuple[Array, float, Array | None]:
        values = self.signed @ multipliers
        return values, float(np.sqrt(max(multipliers @ values, 0.0))), None

    def sharper(self, multipliers: Array) -> tuple[Array, float, Array | None]:
        return self.measured(multipliers)

    def seen(self, multipliers: Array, u: Array | None) -> tuple[Array, float, Array]:
        values, length, _ = self.measured(multipliers)
        return values, length, 4 * EPS * (np.abs(self.signed) @ np.abs(multipliers))


SignedPoints = FeaturePoints | KernelPoints
