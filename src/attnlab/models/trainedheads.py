"""Prediction heads with weights of their own, which are trained together with the attention below them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.checks import number, shown, whole
from attnlab.errors import InputError, message
from attnlab.models.functions import gives_a_number, told_as
from attnlab.models.network import FLOW_KINK, MOST_WIDTH, rounded_relu
from attnlab.models.precision import in_float64
from attnlab.models.scaled import Params
from attnlab.models.weight import Weight, are_weights


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


def weights_of(head: TrainedHead, columns: int) -> dict[str, Weight]:
    """Those of a head by name, for outputs of so many numbers; refused where `shapes` gives something else."""
    with told_as("head", "the length of one output, in `shapes`"):
        own = head.shapes(columns)
    if not are_weights(own):
        problem = f"`shapes` of `head` gives {shown(own)}; wanted weights by name."
        raise InputError(message(problem, '{"u": al.weights((columns,))}'))
    return dict(own)


@in_float64
def check_trained(head: TrainedHead, columns: int) -> None:
    """Refuse a head that does not make one real number of its weights and an output."""
    own = {name: jax.ShapeDtypeStruct(w.shape, jnp.float64) for name, w in weights_of(head, columns).items()}
    output = jax.ShapeDtypeStruct((columns,), jnp.float64)
    gives_a_number("head", head.apply, "its weights and one output, in `apply`", own, output)


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
