"""The tangent kernel of multi-head attention, and the best margin of the model linearized at its start.

Property P3 of *On the Optimization and Generalization of Multi-head Attention* asks for a direction of norm sqrt(2)
along which every output, linearized, moves towards its label by gamma. The best gamma is a hard-margin problem on the
gradients of the outputs. With `A = softmax(x W x^T)`, `Q = U x^T` and `D = A (Q - rowsum(A Q))`, entry by entry, the
gradient of one head is `A x` by U and `x^T D x` by W; of H heads, each is divided by sqrt(H).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import instance, no_batch, number
from attnlab.data.scale import lengths
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.multihead import Decoder, MultiHead
from attnlab.svm.linear import HardMargin, kernel_margin
from attnlab.theory.arrays import BLOCK
from attnlab.theory.multihead.margins import attention_weights

# Numbers up to which sums of their squares are float64 numbers.
LONGEST = 1e140


def check_model(model: object) -> None:
    """Refuse what the theory is not about."""
    checked = instance("model", model, MultiHead, "al.models.MultiHead")
    for name, wanted in (("normalization", 0.5), ("head_width", None)):
        given = getattr(checked, name)
        if given != wanted:
            problem = f"`model` has {name} = {given!r}; the theory is about {name} = {wanted!r}."
            raise InputError(message(problem, "al.theory.ntk and al.theory.hessian_norm take any model"))


class HeadGradient(NamedTuple):
    """Outputs (n,) of one head and their gradients, U as the decoder has it and W (n, d, d)."""

    output: Array
    U: Array
    W: Array

    @property
    def flat(self) -> Array:
        """The gradients as rows, U before W."""
        n = len(self.output)
        return np.concatenate([self.U.reshape(n, -1), self.W.reshape(n, -1)], axis=1)


def head_gradient(x: Array, U: Array, W: Array, decoder: Decoder = "full") -> HeadGradient:
    """Output and gradient of one head, for each sequence of x (n, T, d)."""
    rows = np.ones(x.shape[-2])
    if decoder == "last":
        rows[:-1] = 0.0
    full = U if decoder == "full" else rows[:, None] * U
    A = attention_weights(x, W)
    Q = full @ np.swapaxes(x, -1, -2)
    each = np.sum(A * Q, axis=-1, keepdims=True)
    by_U = A @ x
    if decoder != "full":
        by_U = np.einsum("t,ntd->nd", rows, by_U)
    return HeadGradient(each.sum((-2, -1)), by_U, np.swapaxes(x, -1, -2) @ (A * (Q - each)) @ x)


def outputs(tokens: Tokens, model: MultiHead, weights: Mapping[str, ArrayLike]) -> Array:
    """`H^(-1/2) sum_h F(x_i; U_h, W_h)`, (n,); one data set."""
    parts = _Parts.of(tokens, model, weights)
    sums = np.zeros(tokens.n)
    for g, rows, gradient in parts.blocks():
        sums[rows] += parts.counts[g] * gradient.output
    return sums / np.sqrt(parts.counts.sum())


def ntk_gram(tokens: Tokens, model: MultiHead, weights: Mapping[str, ArrayLike], *, block: int = BLOCK) -> Array:
    """Inner products of the gradients of the outputs, `(1/H) sum_h <f_h(x_i), f_h(x_j)>`, (n, n).

    Besides the matrix itself it takes memory for about `block` numbers, whatever n, T, d and H are: gradients are made
    for one group of heads and one block of sequences at a time.

    >>> import attnlab as al
    >>> tokens = al.Tokens.self_attention([[[1.0, 0.0], [1.0, 2.0]]], [1.0])
    >>> start = {"U": np.zeros((2, 2)), "W": np.zeros((2, 2))}
    >>> ntk_gram(tokens, al.models.MultiHead(heads=10**9), start).tolist()  # T |mean token|^2
    [[4.0]]
    """
    parts = _Parts.of(tokens, model, weights, block)
    gram = np.zeros((tokens.n, tokens.n))
    for g, rows, gradient in parts.blocks():
        flat, share = gradient.flat, parts.counts[g] / parts.counts.sum()
        gram[rows, rows] += share * (flat @ flat.T)
        for others in parts.before(rows):
            gram[rows, others] += share * (flat @ parts.gradient(g, others).flat.T)
    lower = np.tril(gram, -1)
    return lower + lower.T + np.diag(np.diag(gram))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NtkMargin:
    """The best margin of the linearized model, between two bounds.

    Attributes:
        lower: the margin of `direction`, measured on the gradients themselves; 0 if nothing separates.
        upper: a margin that no direction of norm sqrt(2) exceeds, from the Gram matrix.
        direction: the weights that one head of each group moves by, {"U", "W"}; norm sqrt(2) over all heads. None if
            nothing separates.
        solution: what the solver found, for directions of norm 1.
    """

    lower: float
    upper: float
    direction: dict[str, Array] | None
    solution: HardMargin

    @property
    def gap(self) -> float:
        """`(upper - lower) / upper`; 1 if nothing separates."""
        return (self.upper - self.lower) / self.upper if self.upper > 0 and self.lower > 0 else 1.0

    @property
    def separable(self) -> bool:
        """Was a direction found that moves every output towards its label?"""
        return self.direction is not None

    def __repr__(self) -> str:
        if not self.separable:
            return f"NtkMargin(none: {self.solution.status.value})"
        return f"NtkMargin({self.lower:.6g}, gap={self.gap:.1e})"


def ntk_margin(
    tokens: Tokens, model: MultiHead, weights: Mapping[str, ArrayLike], *, tolerance: float = 1e-8, block: int = BLOCK
) -> NtkMargin:
    """The largest gamma of property P3 at these weights.

    Args:
        tokens: one data set.
        model, weights: the model and its start.
        tolerance: relative gap of the two bounds to reach.
        block: see `ntk_gram`.

    >>> import attnlab as al
    >>> tokens = al.Tokens.self_attention([[[1.0, 0.0]], [[0.0, 1.0]]], [1.0, -1.0])
    >>> round(ntk_margin(tokens, al.models.MultiHead(heads=4), {"U": np.zeros((1, 2)), "W": np.zeros((2, 2))}).lower, 6)
    1.0
    """
    solution = kernel_margin(ntk_gram(tokens, model, weights, block=block), tokens.y, tolerance=tolerance)
    upper = float(np.sqrt(2.0) * solution.upper)
    if not solution.separable:
        return NtkMargin(lower=0.0, upper=upper, direction=None, solution=solution)
    direction = _combined(_Parts.of(tokens, model, weights, block), solution.multipliers * tokens.y)
    margin = float(np.min(tokens.y * slopes(tokens, model, weights, direction, block=block)))
    if not margin > 0:  # the Gram matrix promised more than float64 gradients hold
        return NtkMargin(lower=0.0, upper=upper, direction=None, solution=solution)
    return NtkMargin(lower=margin, upper=max(upper, margin), direction=direction, solution=solution)


def slopes(
    tokens: Tokens,
    model: MultiHead,
    weights: Mapping[str, ArrayLike],
    direction: Mapping[str, ArrayLike],
    *,
    block: int = BLOCK,
) -> Array:
    """Derivative of every output at `weights`, (n,); `direction` is what one head of each group moves by."""
    parts, towards = _Parts.of(tokens, model, weights, block), model.check(tokens, direction, "direction")
    slopes_along = np.zeros(tokens.n)
    for g, rows, gradient in parts.blocks():
        along = np.concatenate([towards["U"][g].ravel(), towards["W"][g].ravel()])
        slopes_along[rows] += parts.counts[g] * (gradient.flat @ along)
    return slopes_along / np.sqrt(parts.counts.sum())


def head_norms(weights: Mapping[str, Array]) -> Array:
    """Norm of one head of each group, (..., G), for weights U (..., G, T, d) or (..., G, d), and W (..., G, d, d)."""
    lead = weights["W"].shape[:-2]
    if all(np.abs(w).max(initial=0.0) < LONGEST for w in weights.values()):
        return np.sqrt(sum(np.sum(w.reshape(*lead, -1) ** 2, axis=-1) for w in weights.values()))
    return lengths(np.concatenate([w.reshape(*lead, -1) for w in weights.values()], axis=-1))


def total_norm(weights: Mapping[str, Array], counts: ArrayLike) -> Array:
    """Norm over all heads, (...)."""
    return lengths(np.sqrt(np.asarray(counts, dtype=np.float64)) * head_norms(weights))


def _combined(parts: _Parts, coefficients: Array) -> dict[str, Array]:
    """Gradients of the outputs combined, as weights of one head of each group; norm sqrt(2) over all heads."""
    combined = {name: np.zeros_like(w) for name, w in parts.weights.items()}
    for g, rows, gradient in parts.blocks():
        for name, by in (("U", gradient.U), ("W", gradient.W)):
            combined[name][g] += np.tensordot(coefficients[rows], by, axes=1)
    scale = np.sqrt(2.0) / total_norm(combined, parts.counts)
    return {name: scale * w for name, w in combined.items()}


@dataclass(frozen=True, eq=False)
class _Parts:
    """A data set in blocks, and weights in groups."""

    x: Array
    weights: dict[str, Array]
    counts: Array
    decoder: Decoder
    size: int

    @classmethod
    def of(cls, tokens: Tokens, model: MultiHead, weights: Mapping[str, ArrayLike], block: int = BLOCK) -> _Parts:
        instance("tokens", tokens, Tokens, "al.Tokens")
        check_model(model)
        no_batch("tokens", tokens)
        checked = model.check(tokens, weights)
        T, d, block = tokens.T, tokens.d, int(number("block", block, least=1, most=2.0**62))
        # Two blocks of gradients are held at once, and what the attention weights take while one is made.
        size = max(1, int(block // (2 * (2 * T * d + d * d) + 3 * T * T)))
        return cls(tokens.x, checked, model.grouped(checked["W"].shape[0]), model.decoder, size)

    def gradient(self, g: int, rows: slice) -> HeadGradient:
        U, W = self.weights["U"][g], self.weights["W"][g]
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            gradient = head_gradient(self.x[rows], U, W, self.decoder)
        # Squares of gradients, summed over all weights, must be numbers too.
        if not all((np.abs(part) < LONGEST).all() for part in gradient):
            sizes = f"tokens have entries up to {np.abs(self.x).max():.1e}, weights up to {np.abs(U).max():.1e}"
            problem = f"Gradients of the outputs at `weights` exceed {LONGEST:g} for `tokens`"
            raise InputError(message(f"{problem}: {sizes}.", "divide the tokens by their largest norm"))
        return gradient

    def blocks(self) -> Iterator[tuple[int, slice, HeadGradient]]:
        for g in range(len(self.counts)):
            for first in range(0, len(self.x), self.size):
                rows = slice(first, first + self.size)
                yield g, rows, self.gradient(g, rows)

    def before(self, rows: slice) -> Iterator[slice]:
        for first in range(0, rows.start, self.size):
            yield slice(first, first + self.size)
