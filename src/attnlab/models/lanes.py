"""One attention layer with a linear head on many trials at once, the trials along the last axis of every array.

`attnlab.models.layer` computes one trial, and JAX maps it over the first axis of a batch. For small problems that is
slow: products of 10 x 10 matrices and sums over five tokens leave most of a processor idle. Here the trials are lanes.
Every operation does the same to as many trials as fit into a vector register, and a product of matrices is a sum of
elementwise products, written out. The formulas are those of `Layer.gradient` and `softmax.pull_back`, in the units of
the exponentials instead of the probabilities, which spares one exponential and one division for each token.

All sums are written out term by term, so that their order, and every bit of a trial, is the same in any batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.models.layer_problem import LayerProblem
from attnlab.models.losses import Loss, MarginLoss
from attnlab.models.scaled import Params, ScaledGradient, Tree, finite_scale, in_fixed_order
from attnlab.models.softmax import NOISE

# A sum of more terms than these is not written out: programs would take long to compile.
MOST_TERMS = 100
# Of one trial. Larger ones keep a processor busy on their own, and 8 of them are to stay in its cache.
MOST_BYTES = 128 * 1024
TOKENS = 2  # the axis of the tokens in arrays (n, K, T, R)


def in_lanes(tree: Tree) -> Tree:
    """Arrays with trials first as arrays with trials last."""
    return jax.tree.map(lambda array: jnp.moveaxis(array, 0, -1), tree)


def trials_first(tree: Tree) -> Tree:
    """And back."""
    return jax.tree.map(lambda array: jnp.moveaxis(array, -1, 0), tree)


def fit_lanes(problem: LayerProblem, params: Params) -> bool:
    """Are these trials, given with trials first, small enough for sums that are written out?"""
    _, n, K, T, d = *problem.y.shape, *problem.x.shape[2:]
    columns = [p.shape[-1] for p in params.values()]
    if problem.frame is None:
        held, longest = [problem.x, problem.z], max(n * K, T, d, *columns)
    else:
        held, longest = [problem.frame.features], max(n * K * T, *columns)
    entries = sum(array[0].size for array in (*held, *params.values()))
    return longest <= MOST_TERMS and entries * 8 <= MOST_BYTES


class Lanes(NamedTuple):
    """What the steps of a block of R trials need of their problem, for W, its coordinates in a frame, or (K, Q)."""

    x: Array | None  # (n, T, d, R) tokens; None in a frame
    z: Array | None  # (n, K, d, R) queries; None in a frame
    features: Array | None  # (n, K, T, p, R) of the frame, if there is one
    visible: Array | None  # (n, K, T, R), or None when all are
    gain: Array  # (n, K, T, R) what the margin gains with all attention on a token
    rounding: Array  # (n, K, R) differences of gains up to this are zero
    shared: Array  # (n, K, R) what the common part of the tokens adds to the margin

    @classmethod
    def of(cls, problem: LayerProblem) -> Lanes:
        """Of the problems of a block of trials, trials first."""

        def of_one(problem: LayerProblem) -> dict[str, Array]:
            v, y = problem.head["v"], problem.y
            largest = jnp.max(jnp.abs(problem.x) @ jnp.abs(v), axis=-1)[:, None]
            return {
                "gain": y[..., None] * (problem.x @ v)[:, None, :],
                "rounding": NOISE * jnp.broadcast_to(largest, y.shape),
                "shared": y * jnp.einsum("nd,d->n", problem.common, v)[:, None],
            }

        frame = problem.frame
        given = {
            "x": problem.x if frame is None else None,
            "z": problem.z if frame is None else None,
            "features": None if frame is None else frame.features,
            "visible": problem.visible,
        }
        return cls(**in_lanes(given | jax.vmap(of_one)(problem)))

    def gradient(self, params: Params, loss: Loss, at: Array) -> ScaledGradient:
        """The gradient of the objective of every trial, at step `at`: mantissas (..., R) and log-scales (R,)."""
        assert isinstance(loss, MarginLoss), "a layer takes no other"
        apart = Apart(at)
        logits, queries = self._logits(params, apart)
        to_logits, log_scale = self._to_logits(logits, loss, apart)
        mantissas = self._to_params(to_logits, params, queries, apart)
        return _normalized({name: mantissas[name] for name in params}, log_scale)

    def _logits(self, params: Params, apart: Apart) -> tuple[Array, Array | None]:
        """(n, K, T, R), -inf for what is not visible; and, of (K, Q), the queries z Q (n, K, m, R)."""
        queries = None
        if self.features is not None:
            logits = apart.einsum("nktp,p->nkt", self.features, params["W"])
        else:
            if "W" in params:
                keys = apart.einsum("nke,de->nkd", self.z, params["W"])
            else:
                queries = apart.einsum("nke,em->nkm", self.z, params["Q"])
                keys = apart.einsum("nkm,dm->nkd", queries, params["K"])
            logits = apart.einsum("nkd,ntd->nkt", keys, self.x)
        if self.visible is not None:
            logits = jnp.where(self.visible, logits, -jnp.inf)
        return logits, queries

    def _to_logits(self, logits: Array, loss: MarginLoss, apart: Apart) -> tuple[Array, Array]:
        """The gradient by the logits, (n, K, T, R) of order one, and its log-scale (R,).

        With `g_t` what token t gains above the top one, tokens are of two kinds. Those that differ from the top one in
        gain have weights in proportion to `r_t`, in units of `e^peak`, the heaviest of them; the top one and its twins,
        as good as it, have weights `e_t` in units of the top. With `mean = sum r_t g_t` and `total = sum e_t + e^peak
        sum r_t` the margin gains `e^peak mean / total` from what differs, which is pulled by `r_t (g_t - e^peak mean /
        total)`. The others are pulled by `-e_t mean / total`, which makes the sum zero.
        """
        largest = jnp.max(logits, axis=TOKENS, keepdims=True)
        top_gain = jnp.max(jnp.where(logits == largest, self.gain, -jnp.inf), axis=TOKENS, keepdims=True)
        above = self.gain - top_gain
        differs = jnp.abs(above) > self.rounding[:, :, None]
        differs = differs if self.visible is None else differs & self.visible
        shifted = logits - largest
        log_peak = jnp.max(jnp.where(differs, shifted, -jnp.inf), axis=TOKENS, keepdims=True)
        peak_or_one = finite_scale(log_peak)
        exponentials = jnp.exp(jnp.where(differs, shifted - peak_or_one, shifted))
        relative = jnp.where(differs, exponentials, 0.0)
        alike = jnp.where(differs, 0.0, exponentials)
        of_alike, of_others, mean = apart(_sums, alike, relative, relative * above)
        peak = jnp.exp(peak_or_one)
        total = of_alike + peak * of_others
        mixed = peak * mean / total  # what the other tokens add to the margin
        margins = self.shared + (top_gain + mixed)[:, :, 0]
        log_slope, sign = jax.vmap(lambda u: (loss.log_slope(u), loss.slope_sign(u)), -1, -1)(margins)
        # The objective averages over sequences.
        log_row = log_peak[:, :, 0] + log_slope - math.log(logits.shape[0])
        log_scale = finite_scale(jnp.max(log_row, axis=(0, 1)))
        row = (sign * jnp.exp(log_row - log_scale))[:, :, None] / total
        pull = exponentials * jnp.where(differs, above - mixed, -mean / total)
        return apart(jnp.multiply, row, pull), log_scale

    def _to_params(self, to_logits: Array, params: Params, queries: Array | None, apart: Apart) -> dict[str, Array]:
        """From the gradient by the logits to that by the parameters."""
        if self.features is not None:
            return {"W": apart.einsum("nkt,nktp->p", to_logits, self.features)}
        keys = apart.einsum("nkt,ntd->nkd", to_logits, self.x)
        if queries is None:
            return {"W": apart.einsum("nkd,nke->de", keys, self.z)}
        to_queries = apart.einsum("nkd,dm->nkm", keys, params["K"])
        return {
            "K": apart.einsum("nkd,nkm->dm", keys, queries),
            "Q": apart.einsum("nke,nkm->em", self.z, to_queries),
        }


class Apart:
    """Computes arrays on their own, each once.

    XLA copies the code of an array into everything that reads it; of a product of matrices, which each of its readers
    would then compute for each of its entries. A branch of which it cannot know that it is always taken keeps the
    product together. (It ignores barriers when it fuses.)
    """

    def __init__(self, at: Array) -> None:
        self.always = at >= 0  # a step that only the running program knows

    def __call__(self, function: Callable[..., Any], *operands: Any) -> Any:
        """`function(*operands)`."""
        shapes = jax.eval_shape(function, *operands)

        def never(*_: Any) -> Any:
            return jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)

        return jax.lax.cond(self.always, function, never, *operands)

    def einsum(self, spec: str, a: Any, b: Any) -> Array:
        """`jnp.einsum` of two arrays with lanes: `spec` names all axes but the last, in the order of the result."""
        return self(lambda a, b: lane_einsum(spec, a, b), a, b)


def lane_einsum(spec: str, a: Array, b: Array) -> Array:
    """The sum of products that `spec` says, for each lane, written out term by term.

    >>> import numpy as np
    >>> a, b = np.ones((2, 3, 8)), np.ones((3, 8))
    >>> lane_einsum("ij,j->i", a, b).shape
    (2, 8)
    """
    names, result = spec.split("->")
    of_a, of_b = names.split(",")
    sizes = dict(zip(of_a + of_b, a.shape[:-1] + b.shape[:-1], strict=True))
    summed = [name for name in sizes if name not in result]

    def part(array: Array, axes: str, at: dict[str, int]) -> Array:
        """The entries of one term, with an axis for each of the result."""
        taken = array[tuple(at.get(name, slice(None)) for name in axes)]
        kept = [name for name in result if name in axes]
        assert kept == [name for name in axes if name in result], "axes in the order of the result"
        return taken.reshape(*(sizes[name] if name in kept else 1 for name in result), array.shape[-1])

    places = itertools.product(*(range(sizes[name]) for name in summed))
    terms = (dict(zip(summed, place, strict=True)) for place in places)
    return in_fixed_order(part(a, of_a, at) * part(b, of_b, at) for at in terms)


def _sums(*arrays: Array) -> list[Array]:
    """Of each over the tokens, (n, K, 1, R)."""
    return [in_fixed_order(array[:, :, t : t + 1] for t in range(array.shape[TOKENS])) for array in arrays]


def _normalized(mantissas: dict[str, Array], log_scale: Array) -> ScaledGradient:
    """With largest entry 1 in every trial."""
    sizes = {name: jnp.max(jnp.abs(m), axis=tuple(range(m.ndim - 1))) for name, m in mantissas.items()}
    divisors = {name: jnp.where(size > 0, size, 1.0) for name, size in sizes.items()}
    return ScaledGradient(
        mantissa={name: m / divisors[name] for name, m in mantissas.items()},
        log_scale={name: log_scale + jnp.log(divisor) for name, divisor in divisors.items()},
    )
