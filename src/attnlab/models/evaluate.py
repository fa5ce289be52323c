"""Any model on a data set, with NumPy arrays in and out: outputs, attention, loss, gradient, features, curvature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from attnlab.checks import enough_memory, flag, no_batch, one_of
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.losses import LossLike
from attnlab.models.powers import check_finite
from attnlab.models.precision import in_float64
from attnlab.models.problem import Forward, Objective, Prepared, Problem
from attnlab.models.scaled import GivenWeights, Params, ScaledGradient

Data: TypeAlias = Tokens | Sequences
Of = Literal["loss", "output"]
Arrays = dict[str, np.ndarray]


class Evaluated(ABC):
    """What every model can be asked with NumPy arrays; results have the trial axis of the data, if they have one."""

    usual_loss: ClassVar[str]

    @abstractmethod
    def at(self, data: Data, weights: GivenWeights, loss: LossLike | None = None) -> Prepared:
        """The model on its data at given weights, in the coordinates of the weights themselves."""

    @in_float64
    def outputs(self, data: Data, weights: GivenWeights) -> np.ndarray:
        """The output for every example: (n,), (n, K) for K queries, (n, C) for C classes."""
        return np.asarray(self._forward(data, weights).outputs)

    @in_float64
    def hidden(self, data: Data, weights: GivenWeights) -> np.ndarray:
        """What the output layer sees, (n, m), of models that have such a layer."""
        hidden = self._forward(data, weights).hidden
        if hidden is None:
            problem = f"`hidden` is not for {self!r}, which does not say what its output layer sees."
            raise InputError(message(problem, "al.models.Encoder and FullyConnected do"))
        return np.asarray(hidden)

    @in_float64
    def attention(self, data: Data, weights: GivenWeights) -> np.ndarray:
        """Attention weights of the last softmax, tokens along the last axis."""
        return np.asarray(self._forward(data, weights).attention)

    @in_float64
    def loss(self, data: Data, weights: GivenWeights, *, loss: LossLike | None = None, log: bool = False) -> np.ndarray:
        """The training objective; with `log` its logarithm, also where the objective is too small for a float."""
        flag("log", log)
        prepared = self.at(data, weights, loss)
        prepared.check_loss()
        value, log_value = map(np.asarray, _values(*_parts(prepared, data)))
        if not log:
            check_finite("loss", [value], "log=True")
        return log_value if log else value

    @in_float64
    def gradient(self, data: Data, weights: GivenWeights, *, loss: LossLike | None = None) -> tuple[Arrays, Arrays]:
        """The gradient of the objective by the weights, as (mantissa, log_scale); it is `mantissa * e^log_scale`."""
        prepared = self.at(data, weights, loss)
        prepared.check_loss()
        slope = _slopes(*_parts(prepared, data))
        check_finite("gradient", [*slope.mantissa.values(), *slope.log_scale.values()])
        return jax.tree.map(np.asarray, slope.mantissa), jax.tree.map(np.asarray, slope.log_scale)

    @in_float64
    def features(self, data: Data, weights: GivenWeights) -> Arrays:
        """The gradient of every output by the weights, (n, ...); of one data set."""
        prepared = self._one(data, weights)
        slopes = _jacobian(prepared.objective, prepared.params, prepared.problem)
        check_finite("gradient of the output", slopes.values())
        return jax.tree.map(np.asarray, slopes)

    @in_float64
    def hessian_product(
        self,
        data: Data,
        weights: GivenWeights,
        direction: GivenWeights,
        *,
        of: Of = "loss",
        loss: LossLike | None = None,
    ) -> Arrays:
        """The Hessian times a direction; `of` the loss, or of the sum of the outputs. Of one data set."""
        one_of("of", of, ("loss", "output"))
        prepared = self._one(data, weights, loss)
        prepared.check_loss()
        towards = self.at(data, direction, loss).params
        product = _product(prepared.objective, prepared.params, prepared.problem, towards, of)
        check_finite("product with the Hessian", product.values())
        return jax.tree.map(np.asarray, product)

    @in_float64
    def hessian(
        self, data: Data, weights: GivenWeights, *, of: Of = "loss", loss: LossLike | None = None
    ) -> np.ndarray:
        """The dense Hessian by the flattened weights, in the order of their sorted names; for small sizes."""
        one_of("of", of, ("loss", "output"))
        prepared = self._one(data, weights, loss)
        prepared.check_loss()
        size = sum(p.size for p in prepared.params.values())
        enough_memory(4.0 * size * size, f"The Hessian of {size} weights", "hessian_product")
        held = prepared.problem.held
        if held is not None and held.metric is not None:
            problem = "`weights` are of groups of several heads; the dense Hessian is over single ones."
            raise InputError(message(problem, "hessian_product works on groups"))
        hessian = np.asarray(_dense(prepared.objective, prepared.params, prepared.problem, of))
        check_finite("Hessian", [hessian])
        return hessian

    @in_float64
    def unchecked_forward(self, data: Data, weights: GivenWeights) -> Forward:
        """All of the above at once, also where it overflows."""
        return jax.tree.map(np.asarray, _forwarded(*_parts(self.at(data, weights), data)))

    def _forward(self, data: Data, weights: GivenWeights) -> Forward:
        forward = self.unchecked_forward(data, weights)
        check_finite("output", jax.tree.leaves(forward))
        return forward

    def _one(self, data: Data, weights: GivenWeights, loss: LossLike | None = None) -> Prepared:
        no_batch("data", data)
        return self.at(data, weights, loss)


def _parts(prepared: Prepared, data: Data) -> tuple[Objective, Params, Problem, bool]:
    return prepared.objective, prepared.params, prepared.problem, data.trials is not None


@partial(jax.jit, static_argnums=(0, 3))
def _forwarded(objective: Objective, params: Params, problem: Problem, batch: bool) -> Forward:
    def one(params: Params, problem: Problem) -> Forward:
        seen = objective.evaluate(params, problem)
        return Forward(seen.outputs, seen.attention, seen.hidden)

    if batch and problem.y.shape[0] == 1:
        # XLA sums in another order along an axis of trials of length one than along any other, or none.
        alone = jax.tree.map(lambda array: array[0], (params, problem))
        return jax.tree.map(lambda array: array[None], one(*alone))
    return (jax.vmap(one) if batch else one)(params, problem)


@partial(jax.jit, static_argnums=(0, 3))
def _values(objective: Objective, params: Params, problem: Problem, batch: bool) -> tuple[Array, Array]:
    def one(params: Params, problem: Problem) -> tuple[Array, Array]:
        seen = objective.evaluate(params, problem)
        return objective.value(problem, seen), objective.log_value(problem, seen)

    return (jax.vmap(one) if batch else one)(params, problem)


@partial(jax.jit, static_argnums=(0, 3))
def _slopes(objective: Objective, params: Params, problem: Problem, batch: bool) -> ScaledGradient:
    def one(params: Params, problem: Problem) -> ScaledGradient:
        return objective.gradient(params, problem)[0]

    return (jax.vmap(one) if batch else one)(params, problem)


@partial(jax.jit, static_argnums=0)
def _jacobian(objective: Objective, params: Params, problem: Problem) -> Params:
    def of_one(row: Params) -> Params:
        alone = problem.alone(row)
        return jax.jacrev(lambda p: objective.outputs(p, alone)[0])(params)

    slopes = jax.vmap(of_one)(problem.rows())
    return slopes if problem.held is None else problem.held.slopes(slopes)


def _scalar(objective: Objective, problem: Problem, of: Of) -> Callable[[Params], Array]:
    if of == "loss":
        return lambda p: objective.value(problem, objective.evaluate(p, problem))
    return lambda p: jnp.sum(objective.outputs(p, problem))


@partial(jax.jit, static_argnums=(0, 4))
def _product(objective: Objective, params: Params, problem: Problem, towards: Params, of: Of) -> Params:
    slope = jax.grad(_scalar(objective, problem, of))
    product = jax.jvp(slope, (params,), (towards,))[1]
    return product if problem.held is None else problem.held.slopes(product)


@partial(jax.jit, static_argnums=(0, 3))
def _dense(objective: Objective, params: Params, problem: Problem, of: Of) -> Array:
    flat, back = ravel_pytree(params)
    value = _scalar(objective, problem, of)
    return jax.hessian(lambda p: value(back(p)))(flat)
