"""Expectations over Gaussian weights: arc-cosine kernels, and the tangent kernel of infinite width.

*On the Convergence of Encoder-only Shallow Transformers*, Lemma 1 and Appendix C.3.

For rows p and q at angle theta, and w ~ N(0, I),

    E0 = E 1{p.w > 0} 1{q.w > 0} = (pi - theta) / (2 pi)
    E1 = E relu(p.w) relu(q.w) = |p| |q| (sin theta + (pi - theta) cos theta) / (2 pi)

| name | what |
|---|---|
| `arc_cosine_0`, `arc_cosine_1` | E0 and E1 for all pairs of rows |
| `limiting_ntk`, `kernel_regression` | Lemma 1: the kernel of infinite width, and what it predicts |
| `pooled_expectation` | E1 summed over all pairs of tokens of two sequences |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist

from attnlab.checks import number, one_of
from attnlab.data.scale import exponent, to_one
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.theory.arrays import BLOCK, EPS, finite, sequences, within_float64

Pool = Literal["mean", "sum"]
# sin t - t cos t = sum_k (-1)^(k+1) 2k / (2k+1)! t^(2k+1), to the last digit for t < 1.
_SERIES = [(-1.0) ** (k + 1) * 2.0 * k / float(np.prod(np.arange(1.0, 2.0 * k + 2.0))) for k in range(9, 0, -1)]


def arc_cosine_0(phi: ArrayLike, psi: ArrayLike | None = None) -> Array:
    """E0 for rows phi (n, d) and psi (m, d), or phi and itself; (n, m). 0 for rows of zeros, as the slope of relu at 0.

    >>> arc_cosine_0([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])[0].tolist()
    [0.5, 0.25, 0.0]
    """
    left, right = _rows(phi, psi)
    return _zero(left, right)


def arc_cosine_1(phi: ArrayLike, psi: ArrayLike | None = None) -> Array:
    """E1 for rows phi (n, d) and psi (m, d), or phi and itself; (n, m).

    The angle comes from `|u - v|` and `|u + v|` of unit rows, so that rows almost (anti)parallel lose no digits.

    >>> arc_cosine_1([[2.0, 0.0], [-1.0, 0.0]]).tolist()
    [[2.0, 0.0], [0.0, 0.5]]
    """
    left, right = _rows(phi, psi)
    kernel = _one(left, right)
    within_float64("phi", left.rows, "products of rows", kernel)
    return kernel


def limiting_ntk(x: ArrayLike, other: ArrayLike | None = None, *, pool: Pool = "mean") -> Array:
    """The tangent kernel at infinite width for N(0, 1) weights, tau0 = 1/m and tau1 = m^(-1/2); (n, n) or (n, m).

        K = s (E1 + E0 * (P P^T)),   P: mean tokens,   s = 1 for mean pooling, T^2 for the sum

    The product with E0 goes entry by entry. Lemma 1.

    Args:
        x: tokens, (n, T, d).
        other: tokens (m, T, d) for the columns; None takes x.
        pool: "mean" or "sum".

    >>> limiting_ntk([[[1.0, 0.0], [1.0, 2.0]]]).tolist()  # |mean token|^2
    [[2.0]]
    """
    one_of("pool", pool, ("mean", "sum"))
    tokens = sequences(x)
    T = tokens.shape[1]
    columns = None if other is None else finite("other", other, ("m", T, tokens.shape[2]))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        means, others = tokens.mean(axis=1), None if columns is None else columns.mean(axis=1)
        within_float64("x", tokens, "sums of tokens", means, means if others is None else others)
        left, right = _rows(means, others)
        kernel = _one(left, right) + _zero(left, right) * (left.rows @ right.rows.T)
        kernel = kernel * float(T) ** 2 if pool == "sum" else kernel
    within_float64("x", tokens, "products of tokens", kernel)
    return kernel


def kernel_regression(
    kernel: ArrayLike, across: ArrayLike, misfit: ArrayLike, start: ArrayLike, *, ridge: float = 0.0
) -> Array:
    """What training to the end predicts where the kernel stays: `start + across (kernel + ridge I)^(-1) misfit`.

    Args:
        kernel: of the training data, (n, n).
        across: of test and training data, (m, n).
        misfit: labels less outputs at the start, y - f_0, on the training data (n,).
        start: outputs at the start on the test data (m,). The paper leaves it out, as if it were 0.
        ridge: added to the diagonal.

    Lemma 1 and the remark after it.

    >>> kernel_regression([[2.0, 0.0], [0.0, 1.0]], [[1.0, 1.0]], [2.0, 3.0], [10.0]).tolist()
    [14.0]
    """
    K = finite("kernel", kernel, ("n", "n"))
    n = len(K)
    if K.shape != (n, n):
        raise InputError(message(f"`kernel` of shape {K.shape} is not square."))
    rows = finite("across", across, ("m", n))
    wanted, began = finite("misfit", misfit, (n,)), finite("start", start, (len(rows),))
    ridge = number("ridge", ridge, least=0)
    # By a power of four, of which Cholesky factors take the root, kernels of all sizes are alike.
    half = max(exponent(K), exponent(np.array(ridge))) // 2
    K, ridge = np.ldexp(K, -2 * half), float(np.ldexp(ridge, -2 * half))
    if np.abs(K - K.T).max() > 1e-9 * np.abs(K).max():
        raise InputError(message(f"`kernel` of shape {K.shape} is not symmetric."))
    K[np.diag_indices(n)] += ridge
    problem = message(f"`kernel` of {n} sequences is singular to rounding.", "drop repeated sequences, or pass `ridge`")
    try:
        factor = scipy.linalg.cho_factor(K, lower=True)
    except np.linalg.LinAlgError as error:
        raise InputError(problem) from error
    (pocon,) = scipy.linalg.lapack.get_lapack_funcs(("pocon",), (K,))
    condition, _ = pocon(factor[0], np.abs(K).sum(axis=0).max(), uplo="L")
    if condition < n * EPS:
        raise InputError(problem)
    (unit_rows, row_size), (unit_misfit, misfit_size) = to_one(rows), to_one(wanted)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        moved = unit_rows @ scipy.linalg.cho_solve(factor, unit_misfit)
        predictions = began + np.ldexp(moved, row_size + misfit_size - 2 * half)
    within_float64("misfit", wanted, "predictions", predictions)
    return predictions


def pooled_expectation(attended: ArrayLike, *, block: int = BLOCK) -> Array:
    """`sum_ij E1(p_in, p_jm)` over the attended tokens p_in of sequences n and m; (n, n).

    Args:
        attended: attended tokens, (n, T, d), see `forward`.
        block: numbers that may be held at once, besides the result.

    >>> pooled_expectation([[[1.0, 0.0], [1.0, 0.0]]]).tolist()  # 4 pairs of 1/2 each
    [[2.0]]
    """
    tokens = finite("attended", attended, ("n", "T", "d"))
    block = int(number("block", block, least=1, most=2.0**62))
    n, T, d = tokens.shape
    size = max(1, int(block // (8 * T * T * n)))  # about 8 arrays of such a block live at once
    flat = _Rows.of(tokens.reshape(n * T, d))
    sums = np.zeros((n, n))
    for first in range(0, n, size):
        last = min(n, first + size)
        pairs = _one(flat[first * T : last * T], flat[: last * T])
        sums[first:last, :last] = pairs.reshape(last - first, T, last, T).sum(axis=(1, 3))
    within_float64("attended", tokens, "sums of products of tokens", sums)
    lower = np.tril(sums, -1)
    return lower + lower.T + np.diag(np.diag(sums))


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows, their norms, and rows of norm 1; rows of zeros stay zeros."""

    rows: Array
    norms: Array
    units: Array

    @classmethod
    def of(cls, rows: Array) -> _Rows:
        largest = np.abs(rows).max(axis=1, keepdims=True)
        scaled = rows / np.where(largest > 0, largest, 1.0)  # squares of tiny entries would be 0
        lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
        with np.errstate(over="ignore"):
            norms = (largest * lengths)[:, 0]
        return cls(rows, norms, scaled / np.where(lengths > 0, lengths, 1.0))

    def __getitem__(self, which: slice) -> _Rows:
        return _Rows(self.rows[which], self.norms[which], self.units[which])


def _rows(phi: ArrayLike, psi: ArrayLike | None) -> tuple[_Rows, _Rows]:
    left = _Rows.of(finite("phi", phi, ("n", "d")))
    return left, left if psi is None else _Rows.of(finite("psi", psi, ("m", left.rows.shape[1])))


def _opening(left: _Rows, right: _Rows) -> Array:
    """pi - theta for all pairs."""
    # Distances, unlike cosines, tell how far almost parallel rows are apart.
    return 2.0 * np.arctan2(cdist(left.units, -right.units), cdist(left.units, right.units))


def _zero(left: _Rows, right: _Rows) -> Array:
    share = _opening(left, right) / (2.0 * np.pi)
    return np.where(np.logical_and.outer(left.norms > 0, right.norms > 0), share, 0.0)


def _one(left: _Rows, right: _Rows) -> Array:
    opening = _opening(left, right)
    # sin theta + (pi - theta) cos theta, which is sin t - t cos t for t = pi - theta; below 1 that cancels.
    kernel = np.sin(opening) - opening * np.cos(opening)
    small = opening < 1.0
    t = opening[small]
    kernel[small] = t * t * t * np.polyval(_SERIES, t * t)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return kernel * np.multiply.outer(left.norms, right.norms) / (2.0 * np.pi)
