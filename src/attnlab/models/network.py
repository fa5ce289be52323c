"""Networks with one real output per sequence, trained on squared errors: what all of them share.

A network says which weights it has, how they start, and how tokens become outputs (`forward`, a pure function written
with JAX). Everything else, for one data set or a batch of trials, is here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from attnlab.checks import enough_memory, finite_array, shown, whole
from attnlab.data.families import START_STREAM, each_trial
from attnlab.data.sequences import Sequences
from attnlab.errors import InputError, message
from attnlab.models.attention import Params, ScaledGradient
from attnlab.models.powers import LEAST_SQUARABLE, MOST_WEIGHT, check_finite, check_range
from attnlab.models.precision import in_float64
from attnlab.models.regression import Reduction, RegressionModel, RegressionProblem

Law = Literal["lecun", "he", "ntk"]
LAWS: tuple[Law, ...] = ("lecun", "he", "ntk")
Weights = Mapping[str, ArrayLike]
MOST_WIDTH = 10**9


class Forward(NamedTuple):
    """What a network computes for sequences (n, T, d)."""

    outputs: Array  # (n,)
    hidden: Array  # (n, m), what the output layer sees
    attention: Array  # (n, T, T); (n, 0, 0) without attention


class Network(ABC):
    """A network of some width, frozen and hashable; equal networks share compiled programs.

    Attributes:
        width: m.
        init: law of the random start, "lecun", "he" or "ntk".
        parameterization: "standard", or "ntk": weights are held divided by 1 / sqrt(columns), so that gradient descent
            with step s moves a matrix of c columns by s / c times its gradient.
        frozen: names of weights that are drawn and never trained.
    """

    width: int
    init: Law
    parameterization: Literal["standard", "ntk"]
    frozen: tuple[str, ...] = ()

    @abstractmethod
    def shapes(self, T: int, d: int) -> dict[str, tuple[int, ...]]:
        """Of the weights by name, in the order in which they are drawn."""

    @abstractmethod
    def forward(self, weights: Params, x: Array) -> Forward:
        """Outputs, hidden layer and attention for x (n, T, d); JAX, one trial."""

    def outputs(self, weights: Params, x: Array) -> Array:
        """Outputs (n,) alone; JAX, one trial."""
        return self.forward(weights, x).outputs

    @property
    def tau1(self) -> float:
        """Scale of the hidden layer: m^(-1/2) for the law "ntk", 1 for the others."""
        return self.width**-0.5 if self.init == "ntk" else 1.0

    def variances(self, T: int, d: int) -> dict[str, float]:
        """Of the Gaussian entries at the start: 1, 2 or as many over the number of columns, by law."""
        gain = {"lecun": 1.0, "he": 2.0}.get(self.init)
        return {name: 1.0 if gain is None else gain / shape[-1] for name, shape in self.shapes(T, d).items()}

    def held(self, T: int, d: int) -> dict[str, float]:
        """Weights are trained divided by this."""
        if self.parameterization == "standard":
            return dict.fromkeys(self.shapes(T, d), 1.0)
        return {name: shape[-1] ** -0.5 for name, shape in self.shapes(T, d).items()}

    def initial(self, data: Sequences, seed: int = 0) -> dict[str, np.ndarray]:
        """Random weights for this data, per trial where there are trials; trial i draws from its own stream."""
        data, seed = Sequences.of(data), whole("seed", seed, 0)
        shapes, variances = self.shapes(data.T, data.d), self.variances(data.T, data.d)
        self._room(data)

        def draw(rng: np.random.Generator) -> dict[str, np.ndarray]:
            return {name: np.sqrt(variances[name]) * rng.standard_normal(shape) for name, shape in shapes.items()}

        drawn = each_trial(draw, seed, data.trials, START_STREAM)
        if data.trials is None:
            return drawn[0]
        return {name: np.stack([one[name] for one in drawn]) for name in shapes}

    def _room(self, data: Sequences) -> None:
        """Refuse weights that would not fit into memory."""
        count = sum(math.prod(shape) for shape in self.shapes(data.T, data.d).values())
        enough_memory(2.0 * count * (data.trials or 1), f"The weights of {self!r} for {data!r}", "a smaller width")

    def check(self, data: Sequences, weights: Weights, name: str = "weights") -> dict[str, np.ndarray]:
        """Weights as float64, with the trial axis of the data if it has one."""
        data = Sequences.of(data, "data")
        check_range("data", data.x, 2, least=LEAST_SQUARABLE)
        shapes = self.shapes(data.T, data.d)
        if not isinstance(weights, Mapping) or set(weights) != set(shapes):
            given = sorted(map(str, weights)) if isinstance(weights, Mapping) else shown(weights)
            raise InputError(
                message(f"`{name}` has {given}; wanted {', '.join(shapes)}.", "model.initial(data, seed=0)")
            )
        lead = () if data.trials is None else (data.trials,)
        found = {}
        for key, shape in shapes.items():
            value = finite_array(f"{name}[{key!r}]", weights[key])
            if value.shape not in (shape, lead + shape):
                raise InputError(
                    message(f"`{name}[{key!r}]` has shape {value.shape}; wanted {shape}"
                            f"{', or that per trial' if lead else ''}.")
                )  # fmt: skip
            check_range(f"{name}[{key!r}]", value, len(shape), MOST_WEIGHT)
            found[key] = np.array(np.broadcast_to(value, lead + shape))
        return found

    def output(self, data: Sequences, weights: Weights) -> np.ndarray:
        """Outputs (n,), after the trial axis."""
        return self._forward(data, weights).outputs

    def hidden(self, data: Sequences, weights: Weights) -> np.ndarray:
        """What the output layer sees, F_pre (n, m), after the trial axis."""
        return self._forward(data, weights).hidden

    def attention(self, data: Sequences, weights: Weights) -> np.ndarray:
        """Attention weights (n, T, T) of the last block, after the trial axis."""
        return self._forward(data, weights).attention

    @in_float64
    def _forward(self, data: Sequences, weights: Weights) -> Any:
        data = Sequences.of(data)
        found = _forwarded(self, self.check(data, weights), data.x, data.trials is not None)
        check_finite("output", found)
        return jax.tree.map(np.asarray, found)

    @in_float64
    def loss(self, data: Sequences, weights: Weights, *, loss: Reduction = "half_sum") -> np.ndarray:
        """The training objective; see `attnlab.models.regression.REDUCTIONS`."""
        data = Sequences.of(data)
        model = RegressionModel.of(self, loss)
        value = np.asarray(model.objective_of(data.y, self.output(data, weights)))
        check_finite("loss", [value])
        return value

    @in_float64
    def gradient(
        self, data: Sequences, weights: Weights, *, loss: Reduction = "half_sum"
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The gradient of the objective by the weights, as (mantissa, log_scale)."""
        data = Sequences.of(data)
        model, checked = RegressionModel.of(self, loss, plain=True), self.check(data, weights)
        scaled = _sloped(model, checked, RegressionProblem(data.x, data.y), data.trials is not None)
        check_finite("gradient", [*scaled.mantissa.values(), *scaled.log_scale.values()])
        return jax.tree.map(np.asarray, scaled.mantissa), jax.tree.map(np.asarray, scaled.log_scale)


@partial(jax.jit, static_argnames=("network", "batch"))
def _forwarded(network: Network, weights: Params, x: Any, batch: bool) -> Forward:
    return (jax.vmap(network.forward) if batch else network.forward)(weights, x)


@partial(jax.jit, static_argnames=("model", "batch"))
def _sloped(model: RegressionModel, weights: Params, problem: RegressionProblem, batch: bool) -> ScaledGradient:
    def one(weights: Params, problem: RegressionProblem) -> ScaledGradient:
        return model.gradient(weights, problem)[0]

    return (jax.vmap(one) if batch else one)(weights, problem)
