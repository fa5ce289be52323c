"""Squared errors of a network as an optimization problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.checks import shown
from attnlab.errors import InputError, message
from attnlab.models.attention import Params, ScaledGradient, unit_scale

Reduction = Literal["half_sum", "mse_mean", "half_mean"]
# What the sum of squared errors of n sequences is multiplied by.
REDUCTIONS: dict[Reduction, Any] = {
    "half_sum": lambda n: 0.5,
    "mse_mean": lambda n: 1.0 / n,
    "half_mean": lambda n: 0.5 / n,
}


class RegressionProblem(NamedTuple):
    """The arrays of one trial (or a batch of trials)."""

    x: Any  # (n, T, d)
    y: Any  # (n,)


class RegressionEvaluation(NamedTuple):
    """What the model computes at one point."""

    outputs: Array  # (n,)
    errors: Array  # (n,) outputs less labels
    hidden: Array  # (n, m)
    attention: Array  # (n, T, T)


@dataclass(frozen=True)
class RegressionModel:
    """What is trained: a network on a sum of squared errors. Hashable; equal models share compiled programs.

    Attributes:
        network: see `attnlab.models.network.Network`.
        reduction: "half_sum", "mse_mean" or "half_mean".
        plain: parameters are the weights themselves, whatever the parameterization of the network is.
    """

    network: Any
    reduction: Reduction
    plain: bool = False

    @classmethod
    def of(cls, network: Any, loss: Any, *, plain: bool = False) -> RegressionModel:
        """A model from its parts, checked."""
        if not isinstance(loss, str) or loss not in REDUCTIONS:
            raise InputError(
                message(f"`loss` is {shown(loss)}; a network is trained on {', '.join(map(repr, REDUCTIONS))}.",
                        "loss='mse_mean'")
            )  # fmt: skip
        return cls(network, loss, plain)

    def weights(self, params: Params, x: Any) -> Params:
        """The weights of the network, from the parameters as they are held; frozen ones have no gradient."""
        scale = self.network.held(*x.shape[-2:])
        own = dict(params) if self.plain else {name: scale[name] * p for name, p in params.items()}
        return own | {name: jax.lax.stop_gradient(own[name]) for name in self.network.frozen}

    def evaluate(self, params: Params, problem: RegressionProblem) -> RegressionEvaluation:
        """Outputs and errors."""
        found = self.network.forward(self.weights(params, problem.x), problem.x)
        return RegressionEvaluation(found.outputs, found.outputs - problem.y, found.hidden, found.attention)

    def gradient(self, params: Params, problem: RegressionProblem) -> tuple[ScaledGradient, RegressionEvaluation]:
        """The gradient by the parameters as they are held, and the evaluation it came from."""

        def outputs(p: Params) -> tuple[Array, RegressionEvaluation]:
            found = self.evaluate(p, problem)
            return found.outputs, found

        _, pull_back, found = jax.vjp(outputs, params, has_aux=True)
        size = jnp.max(jnp.abs(found.errors))
        size = jnp.where(size > 0, size, 1.0)
        (by_params,) = pull_back(found.errors / size)
        scale = jnp.log(2.0 * self._factor(problem.y.shape[-1])) + jnp.log(size)
        parts = {name: unit_scale(g, scale) for name, g in by_params.items()}
        return ScaledGradient({k: m for k, (m, _) in parts.items()}, {k: s for k, (_, s) in parts.items()}), found

    def objective(self, evaluation: RegressionEvaluation) -> Array:
        """The sum of squared errors, reduced."""
        return self._factor(evaluation.errors.shape[-1]) * jnp.sum(evaluation.errors**2, axis=-1)

    def objective_of(self, y: Any, outputs: Any) -> Any:
        """The same, from labels and outputs (..., n)."""
        return self._factor(y.shape[-1]) * jnp.sum(jnp.square(outputs - y), axis=-1)

    def log_objective(self, evaluation: RegressionEvaluation) -> Array:
        """Its logarithm, also where squares underflow."""
        logs = 2.0 * jnp.log(jnp.abs(evaluation.errors))
        return jax.nn.logsumexp(logs) + jnp.log(self._factor(logs.shape[-1]))

    def log_excess(self, problem: RegressionProblem, evaluation: RegressionEvaluation) -> Array:
        """log of the objective above zero."""
        return self.log_objective(evaluation)

    def _factor(self, n: int) -> float:
        return REDUCTIONS[self.reduction](n)
