"""Prediction heads with weights of their own, which are trained together with the attention below them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array

from attnlab.checks import number, whole
from attnlab.models.network import FLOW_KINK, MOST_WIDTH, rounded_relu
from attnlab.models.scaled import Params
from attnlab.models.weight import Weight


class TrainedHead(ABC):
    """A head of `CrossAttention` with weights: which they are, and what it makes of one output and them.

    A frozen dataclass, so that equal heads share compiled programs.
    """

    @abstractmethod
    def shapes(self, columns: int) -> dict[str, Weight]:
        """Weights by name, for outputs of so many numbers."""

    @abstractmethod
    def apply(self, weights: Params, output: Array) -> Array:
        """h(output), one number, in `jax.numpy`."""

    def for_flow(self) -> TrainedHead:
        """The same without kinks, which gradient flow cannot cross."""
        return self


@dataclass(frozen=True)
class TrainedLinear(TrainedHead):
    """h(o) = u . o with a trained u, which starts Gaussian of about unit length.

    >>> {name: weight.shape for name, weight in TrainedLinear().shapes(5).items()}
    {'u': (5,)}
    """

    def shapes(self, columns: int) -> dict[str, Weight]:
        """The vector u."""
        return {"u": Weight((columns,), "lecun")}

    def apply(self, weights: Params, output: Array) -> Array:
        """u . o."""
        return jnp.dot(output, weights["u"])


@dataclass(frozen=True)
class TrainedMlp(TrainedHead):
    """h(o) = sum_j a_j relu((A o)_j) with trained A (hidden, columns) and a (hidden,).

    Args:
        hidden: neurons.
        kink_width: over so much of its argument relu is rounded, `(x + sqrt(x^2 + width^2)) / 2`; 0 for relu itself.

    >>> {name: weight.shape for name, weight in TrainedMlp(8).shapes(5).items()}
    {'A': (8, 5), 'a': (8,)}
    """

    hidden: int
    kink_width: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", whole("hidden", self.hidden, most=MOST_WIDTH))
        number("kink_width", self.kink_width, least=0)

    def shapes(self, columns: int) -> dict[str, Weight]:
        """Both layers."""
        return {"A": Weight((self.hidden, columns), "he"), "a": Weight((self.hidden,), "lecun")}

    def apply(self, weights: Params, output: Array) -> Array:
        """a . relu(A o)."""
        inner = jnp.asarray(weights["A"]) @ output
        hidden = jnp.maximum(inner, 0.0) if self.kink_width == 0 else rounded_relu(inner, self.kink_width)
        return jnp.dot(hidden, weights["a"])

    def for_flow(self) -> TrainedMlp:
        """The same with kinks that gradient flow can slide along."""
        return self if self.kink_width > 0 else replace(self, kink_width=FLOW_KINK)
