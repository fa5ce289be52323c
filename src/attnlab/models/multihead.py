"""Multi-head self-attention with a linear decoder, as an optimization problem.

One head maps a sequence x (T, d) to `F(x; U, W) = <U, softmax(x W x^T) x>`, where row t of the logits belongs to the
query x_t. H heads are averaged as `H^(-1/2) sum_h F(x; U_h, W_h)`, and the objective is the mean over sequences of
`loss(y output)`.

Heads that start equal stay equal under every step rule. They are kept once, as a group with a count: the output is
`H^(-1/2) sum_g c_g F_g`, and the gradient of each head of a group is that of the output in F_g without its count. A
million heads that start at zero cost as much as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from attnlab.checks import enough_memory, finite_array, instance, number, one_of, shown
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import Params, ScaledGradient, unit_scale
from attnlab.models.functions import check_loss
from attnlab.models.losses import Loss, as_loss
from attnlab.models.powers import MOST_WEIGHT, check_finite, check_range
from attnlab.models.precision import in_float64
from attnlab.models.softmax import softmax

Decoder = Literal["full", "pooling", "last"]
MOST_HEADS = 1e100
DECODERS: tuple[Decoder, ...] = ("full", "pooling", "last")


class HeadsProblem(NamedTuple):
    """The arrays of one trial (or a batch of trials)."""

    x: Any  # (n, T, d)
    y: Any  # (n,)
    counts: Any  # (G,) heads per group
    # (G,) the parameters of a group are held times this: 1, or sqrt(count), which makes their norm that of all heads.
    held: Any


class HeadsEvaluation(NamedTuple):
    """What the model computes at one point."""

    attention: Array  # (G, n, T, T)
    outputs: Array  # (n,)
    margins: Array  # (n,)


@dataclass(frozen=True)
class HeadsModel:
    """What is trained: the decoder and the loss. Hashable; equal models share compiled programs.

    Parameters are U, (G, T, d) for the full decoder and (G, d) for the others, and W (G, d, d).
    """

    decoder: Decoder
    loss: Loss

    @classmethod
    def of(cls, decoder: str = "full", loss: Any = "logistic") -> HeadsModel:
        """A model from its parts, checked."""
        one_of("decoder", decoder, DECODERS)
        chosen = as_loss(loss)
        check_loss(chosen)
        return cls(decoder, chosen)  # type: ignore[arg-type]

    def attention(self, W: Array, x: Array) -> Array:
        """Attention weights of every query, (G, n, T, T), for W (G, d, d)."""
        keys = jnp.einsum("nsd,ged->gnse", x, W)  # W x_s
        return softmax(jnp.einsum("nte,gnse->gnts", x, keys))

    def decoded(self, U: Array, attention: Array, x: Array) -> Array:
        """<U, A x> of every group and sequence, (G, n)."""
        if self.decoder == "full":
            scores = jnp.einsum("gtd,nsd->gnts", U, x)
            return jnp.sum(attention * scores, axis=(-2, -1))
        kept = attention if self.decoder == "pooling" else attention[:, :, -1:]
        return jnp.einsum("gns,gns->gn", jnp.sum(kept, axis=-2), jnp.einsum("gd,nsd->gns", U, x))

    def outputs(self, params: Params, problem: HeadsProblem) -> tuple[Array, Array]:
        """Outputs (n,) and attention weights."""
        heads = jnp.sum(problem.counts)
        own = {name: p / problem.held.reshape(-1, *[1] * (p.ndim - 1)) for name, p in params.items()}
        attention = self.attention(own["W"], problem.x)
        each = self.decoded(own["U"], attention, problem.x)
        return jnp.einsum("g,gn->n", problem.counts, each) / jnp.sqrt(heads), attention

    def evaluate(self, params: Params, problem: HeadsProblem) -> HeadsEvaluation:
        """Attention weights, outputs and margins."""
        outputs, attention = self.outputs(params, problem)
        return HeadsEvaluation(attention, outputs, problem.y * outputs)

    def gradient(self, params: Params, problem: HeadsProblem) -> tuple[ScaledGradient, HeadsEvaluation]:
        """The gradient by the parameters as they are held, and the evaluation it came from.

        Held once per group (`held` = 1) this is the gradient of one head; held times sqrt(count), it is that of the
        objective in coordinates whose norm is that of all heads.
        """
        outputs, pull_back, attention = jax.vjp(lambda p: self.outputs(p, problem), params, has_aux=True)
        margins = problem.y * outputs
        log_slope = self.loss.log_slope(margins) - jnp.log(float(margins.shape[0]))
        scale = jnp.max(log_slope)
        scale = jnp.where(jnp.isneginf(scale), 0.0, scale)
        slope = self.loss.slope_sign(margins) * problem.y * jnp.exp(log_slope - scale)
        (by_params,) = pull_back(slope)
        # By a parameter held as s times that of one head the output moves c / s as fast; wanted is s.
        share = problem.held**2 / problem.counts
        parts = {name: unit_scale(g * share.reshape(-1, *[1] * (g.ndim - 1)), scale) for name, g in by_params.items()}
        gradient = ScaledGradient({k: m for k, (m, _) in parts.items()}, {k: s for k, (_, s) in parts.items()})
        return gradient, HeadsEvaluation(attention, outputs, margins)

    def objective(self, evaluation: HeadsEvaluation) -> Array:
        """Mean loss over sequences."""
        return jnp.mean(self.loss.value(evaluation.margins))

    def log_objective(self, evaluation: HeadsEvaluation) -> Array:
        """Its logarithm, also where the objective underflows; NaN for losses that can be negative."""
        logs = self.loss.log_value(evaluation.margins)
        return jax.nn.logsumexp(logs) - jnp.log(float(logs.shape[0]))

    def log_excess(self, problem: HeadsProblem, evaluation: HeadsEvaluation) -> Array:
        """log of the objective above its infimum, which is zero."""
        return self.log_objective(evaluation)


Of = Literal["loss", "output"]


def check_sequences(tokens: Any, name: str = "tokens") -> None:
    """Refuse what a model of several heads would not see: masks, and labels of single queries."""
    instance(name, tokens, Tokens, "al.Tokens", "al.Tokens.self_attention(x, y)")
    check_range(name, tokens.x, 2)
    if tokens.mask is not None or tokens.K is not None:
        what = "a mask" if tokens.mask is not None else f"{tokens.K} queries with labels of their own"
        raise InputError(
            message(f"`{name}` has {what}; in a model of several heads every token asks, and sees all others.",
                    "al.Tokens.self_attention(x, y, v), with y of shape (n,)")
        )  # fmt: skip


@dataclass(frozen=True)
class MultiHead:
    """H heads of self-attention with a decoder each, in groups of equal heads.

    Args:
        heads: H, as large as you like.
        decoder: "full" (U of shape (T, d)), "pooling" (one vector u for all tokens), or "last" (u on the last token).
        counts: heads per group, summing to H. None: one group where all heads start equal, else H groups of one.

    Weights are {"U": (G, T, d), "W": (G, d, d)}, or U (G, d) for the other decoders, one entry per group.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=6, T=3, d=4, seed=0)
    >>> run = al.descend(tokens, al.gd(1.0), model=MultiHead(heads=10**6), init="zeros", steps=50)
    >>> run.weights["U"].shape, run.weights["W"].shape
    ((1, 3, 4), (1, 4, 4))
    """

    heads: int
    decoder: Decoder = "full"
    counts: tuple[float, ...] | None = None

    def __init__(self, heads: int, decoder: Decoder = "full", counts: Sequence[float] | None = None) -> None:
        if number("heads", heads, least=1, most=MOST_HEADS) % 1:
            raise InputError(message(f"`heads` is {heads!r}; wanted a whole number at least 1."))
        HeadsModel.of(decoder)
        if counts is not None:
            given = finite_array("counts", counts)
            if given.ndim != 1 or not given.size or given.min() < 1 or abs(given.sum() - heads) > 1e-9 * heads:
                raise InputError(
                    message(f"`counts` is {shown(counts)}; wanted at least 1 head in each group, {heads} in all.")
                )
            counts = tuple(map(float, given))
        for name, value in (("heads", int(heads)), ("decoder", decoder), ("counts", counts)):
            object.__setattr__(self, name, value)

    def grouped(self, groups: int) -> np.ndarray:
        """Heads in each of so many groups."""
        if self.counts is not None:
            if len(self.counts) != groups:
                raise InputError(message(f"The weights have {groups} groups, `counts` {len(self.counts)}."))
            return np.array(self.counts)
        if groups == 1:
            return np.array([float(self.heads)])
        if groups != self.heads:
            raise InputError(
                message(f"The weights have {groups} groups for {self.heads} heads.", "pass `counts=`, heads per group")
            )
        return np.ones(groups)

    def shapes(self, tokens: Tokens) -> dict[str, tuple[int, ...]]:
        """Of the weights of one head."""
        check_sequences(tokens)
        return {"U": (tokens.T, tokens.d) if self.decoder == "full" else (tokens.d,), "W": (tokens.d, tokens.d)}

    def check(self, tokens: Tokens, weights: Mapping[str, ArrayLike], name: str = "weights") -> dict[str, np.ndarray]:
        """Weights as float64 with group axis, and the trial axis of `tokens` if it has one."""
        check_sequences(tokens)
        if not isinstance(weights, Mapping) or set(weights) != {"U", "W"}:
            given = sorted(map(str, weights)) if isinstance(weights, Mapping) else shown(weights)
            raise InputError(message(f"`{name}` has {given}; wanted {{'U': .., 'W': ..}}."))
        lead = () if tokens.trials is None else (tokens.trials,)
        found, groups = {}, set()
        for key, shape in self.shapes(tokens).items():
            value = finite_array(f"{name}[{key!r}]", weights[key])
            if value.shape == shape:  # one head: a group of its own
                value = value[None]
            if value.ndim == len(shape) + 1 and value.shape[1:] == shape:
                value = np.broadcast_to(value, lead + value.shape)
            grouped = value.ndim > len(shape) and value.shape[-len(shape) - 1] > 0
            if not grouped or value.shape[: -len(shape) - 1] != lead or value.shape[-len(shape) :] != shape:
                per_trial = ", or that per trial" if lead else ""
                sizes = ", ".join(map(str, shape))
                raise InputError(
                    message(f"`{name}[{key!r}]` has shape {value.shape}; wanted shape (G, {sizes}){per_trial}.")
                )
            check_range(f"{name}[{key!r}]", value, len(shape), MOST_WEIGHT)
            found[key] = np.array(value)
            groups.add(value.shape[len(lead)])
        if len(groups) > 1:
            raise InputError(message(f"`{name}` has U and W of {sorted(groups)} groups; wanted one number of groups."))
        return found

    def problem(self, tokens: Tokens, groups: int, *, all_heads: bool = False) -> HeadsProblem:
        """The arrays for so many groups; with `all_heads` parameters are held times sqrt(count)."""
        counts = self.grouped(groups)
        lead = () if tokens.trials is None else (tokens.trials,)
        counts = np.array(np.broadcast_to(counts, (*lead, groups)))
        return HeadsProblem(tokens.x, tokens.y, counts, np.sqrt(counts) if all_heads else np.ones_like(counts))

    def output(self, tokens: Tokens, weights: Mapping[str, ArrayLike]) -> np.ndarray:
        """`H^(-1/2) sum_h F(x_i; U_h, W_h)`, (n,) after the trial axis."""
        return self._evaluated(tokens, weights, "logistic")[1]

    def attention(self, tokens: Tokens, weights: Mapping[str, ArrayLike]) -> np.ndarray:
        """softmax(x_i W_g x_i^T), (G, n, T, T) after the trial axis."""
        return self._evaluated(tokens, weights, "logistic")[2]

    def loss(self, tokens: Tokens, weights: Mapping[str, ArrayLike], *, loss: Any = "logistic") -> np.ndarray:
        """The training objective, mean loss(y output)."""
        return self._evaluated(tokens, weights, loss)[0]

    @in_float64
    def _evaluated(self, tokens: Tokens, weights: Mapping[str, ArrayLike], loss: Any) -> tuple[np.ndarray, ...]:
        params, problem, model = self._prepared(tokens, weights, loss)
        found = tuple(map(np.asarray, _evaluated(model, params, problem, tokens.trials is not None)))
        check_finite("loss" if np.isfinite(found[1]).all() else "output", found)
        return found

    @in_float64
    def gradient(
        self, tokens: Tokens, weights: Mapping[str, ArrayLike], *, loss: Any = "logistic"
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The gradient of the objective by the weights of one head of each group, as (mantissa, log_scale)."""
        params, problem, model = self._prepared(tokens, weights, loss)
        scaled = _sloped(model, params, problem, tokens.trials is not None)
        check_finite("gradient", [*scaled.mantissa.values(), *scaled.log_scale.values()])
        return jax.tree.map(np.asarray, scaled.mantissa), jax.tree.map(np.asarray, scaled.log_scale)

    @in_float64
    def features(self, tokens: Tokens, weights: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
        """The gradient of every output by the weights of one head of each group: U (n, G, T, d), W (n, G, d, d)."""
        params, problem, model = self._prepared(tokens, weights, "logistic", one=True)
        slopes = _featured(model, params, problem)
        check_finite("gradient of the output", slopes.values())
        return jax.tree.map(np.asarray, slopes)

    @in_float64
    def hessian_product(
        self,
        tokens: Tokens,
        weights: Mapping[str, ArrayLike],
        direction: Mapping[str, ArrayLike],
        *,
        of: Of = "loss",
        loss: Any = "logistic",
    ) -> dict[str, np.ndarray]:
        """The Hessian over all heads, times a direction that is equal within groups; one entry per group.

        `of` is "loss", or "output" for the sum of the outputs (one sequence: of that output). One data set.
        """
        one_of("of", of, ("loss", "output"))
        params, problem, model = self._prepared(tokens, weights, loss, one=True)
        towards = self.check(tokens, direction, "direction")
        product = _curved(model, params, problem, towards, of)
        check_finite("product with the Hessian", product.values())
        return jax.tree.map(np.asarray, product)

    @in_float64
    def hessian(
        self, tokens: Tokens, weights: Mapping[str, ArrayLike], *, of: Of = "loss", loss: Any = "logistic"
    ) -> np.ndarray:
        """The dense Hessian over all groups, in the order U then W of the flattened weights; for small sizes.

        With groups of one head each it is that of all heads. One data set.
        """
        one_of("of", of, ("loss", "output"))
        params, problem, model = self._prepared(tokens, weights, loss, one=True)
        size = sum(p.size for p in params.values())
        enough_memory(4.0 * size * size, f"The Hessian of {size} weights", "hessian_product")
        if (problem.counts != 1).any():
            problem = "`weights` are of groups of several heads; the dense Hessian is over single ones."
            raise InputError(message(problem, "hessian_product works on groups"))
        hessian = np.asarray(_dense(model, params, problem, of))
        check_finite("Hessian", [hessian])
        return hessian

    def _prepared(
        self, tokens: Tokens, weights: Mapping[str, ArrayLike], loss: Any, *, one: bool = False
    ) -> tuple[dict[str, np.ndarray], HeadsProblem, HeadsModel]:
        check_sequences(tokens)
        if one and tokens.trials is not None:
            raise InputError(
                message(f"`tokens` is a batch of {tokens.trials} trials; wanted one data set.", "tokens[0]")
            )
        params = self.check(tokens, weights)
        groups = params["W"].shape[-3]
        return params, self.problem(tokens, groups), HeadsModel.of(self.decoder, loss)


@partial(jax.jit, static_argnames=("model", "batch"))
def _evaluated(model: HeadsModel, params: Any, problem: HeadsProblem, batch: bool) -> tuple[Any, ...]:
    def one(params: Any, problem: HeadsProblem) -> tuple[Any, ...]:
        found = model.evaluate(params, problem)
        return model.objective(found), found.outputs, found.attention

    return (jax.vmap(one) if batch else one)(params, problem)


@partial(jax.jit, static_argnames=("model", "batch"))
def _sloped(model: HeadsModel, params: Any, problem: HeadsProblem, batch: bool) -> ScaledGradient:
    def one(params: Any, problem: HeadsProblem) -> ScaledGradient:
        return model.gradient(params, problem)[0]

    return (jax.vmap(one) if batch else one)(params, problem)


def _per_head(problem: HeadsProblem, by_params: Any) -> Any:
    """A derivative by the parameters of groups, as one by those of a single head of each."""
    return jax.tree.map(lambda g: g / problem.counts.reshape(-1, *[1] * (g.ndim - 1)), by_params)


@partial(jax.jit, static_argnames="model")
def _featured(model: HeadsModel, params: Any, problem: HeadsProblem) -> Any:
    def slope(x: Any) -> Any:
        alone = problem._replace(x=x[None], y=problem.y[:1])
        return _per_head(problem, jax.grad(lambda p: model.outputs(p, alone)[0][0])(params))

    return jax.vmap(slope)(problem.x)


def _scalar(model: HeadsModel, problem: HeadsProblem, of: Of) -> Any:
    if of == "loss":
        return lambda p: model.objective(model.evaluate(p, problem))
    return lambda p: jnp.sum(model.outputs(p, problem)[0])


@partial(jax.jit, static_argnames=("model", "of"))
def _curved(model: HeadsModel, params: Any, problem: HeadsProblem, towards: Any, of: Of) -> Any:
    slope = jax.grad(_scalar(model, problem, of))
    return _per_head(problem, jax.jvp(slope, (params,), (towards,))[1])


@partial(jax.jit, static_argnames=("model", "of"))
def _dense(model: HeadsModel, params: Any, problem: HeadsProblem, of: Of) -> Any:
    from jax.flatten_util import ravel_pytree

    flat, back = ravel_pytree(params)
    value = _scalar(model, problem, of)
    return jax.hessian(lambda p: value(back(p)))(flat)
