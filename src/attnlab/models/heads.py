"""Prediction heads h: one attention output (a vector of length d) -> one number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from attnlab.checks import finite_array, number, shown
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.hashable import check_hashable
from attnlab.models.precision import in_float64
from attnlab.models.scaled import Params


class Head(ABC):
    """A head: constants taken from the data or from the user, and a function of them and one output.

    The constants enter a run as data, so that heads which differ only in them share one compiled program.
    """

    name: str
    # Is h a polynomial of degree at most 2? Then h(a) - h(b) = grad h((a + b) / 2) . (a - b) exactly.
    quadratic: bool = False

    @abstractmethod
    def constants(self, tokens: Tokens) -> dict[str, np.ndarray]:
        """Arrays that `apply` needs, each with the trial axis of `tokens` if it has one."""

    @staticmethod
    @abstractmethod
    def apply(constants: Params, output: Array) -> Array:
        """h(output), one number."""

    def describe(self) -> dict[str, object]:
        """What defines this head, for the record of a run."""
        return {"name": self.name, **vars(self)}

    @in_float64
    def token_values(self, tokens: Tokens) -> np.ndarray:
        """h(x_it) for every token, shape (..., n, T)."""
        apply = jax.vmap(jax.vmap(self.apply, (None, 0)), (None, 0))
        if tokens.trials is not None:
            apply = jax.vmap(apply)
        values = np.asarray(apply(self.constants(tokens), jnp.asarray(tokens.x)))
        if values.shape != tokens.x.shape[:-1]:
            wrong = values.shape[tokens.x.ndim - 1 :]
            raise InputError(message(f"`head` maps a token to an array of shape {wrong}; wanted one number."))
        return values


def _per_trial(name: str, array: ArrayLike, shape: tuple[int | str, ...], tokens: Tokens) -> np.ndarray:
    """`array` checked against `shape`, with the trial axis of `tokens` put in front if it lacks one."""
    value = finite_array(name, array)
    lead = () if tokens.trials is None else (tokens.trials,)
    fits = [_matches(value.shape, wanted) for wanted in (shape, lead + shape)]
    if not any(fits):
        wanted = ", ".join(map(str, shape))
        per_trial = ", or that per trial" if lead else ""
        raise InputError(message(f"`{name}` has shape {value.shape}; the head needs ({wanted}){per_trial}."))
    return value if fits[1] else np.broadcast_to(value, lead + value.shape)


def _matches(given: tuple[int, ...], wanted: tuple[int | str, ...]) -> bool:
    """Equal lengths, and equal sizes wherever `wanted` has a number and not a name."""
    return len(given) == len(wanted) and all(isinstance(w, str) or g == w for g, w in zip(given, wanted, strict=True))


def _head_vector(tokens: Tokens) -> np.ndarray:
    if tokens.v is None:
        raise InputError(message("These tokens have no `v`, which this head needs.", "pass v= to Tokens, or head="))
    return tokens.v


@dataclass(frozen=True)
class Linear(Head):
    """h(o) = v . o with the `v` of the tokens."""

    name = "linear"
    quadratic = True

    def constants(self, tokens: Tokens) -> dict[str, np.ndarray]:
        return {"v": _head_vector(tokens)}

    def token_values(self, tokens: Tokens) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):  # `scores` refuses what is not finite
            return np.einsum("...ntd,...d->...nt", tokens.x, _head_vector(tokens))

    @staticmethod
    def apply(constants: Params, output: Array) -> Array:
        return jnp.dot(constants["v"], output)


@dataclass(frozen=True, eq=False)
class Along(Head):
    """h(o) = v . o with a `v` (d,) of its own, whatever that of the tokens; it may have a trial axis.

    Heads of this kind in a tuple are the K heads h_k of K queries, in `CrossAttention`.
    """

    v: ArrayLike
    name = "along"
    quadratic = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "v", finite_array("v", self.v))

    def constants(self, tokens: Tokens) -> dict[str, np.ndarray]:
        return {"v": _per_trial("v", self.v, (tokens.d,), tokens)}

    @staticmethod
    def apply(constants: Params, output: Array) -> Array:
        return jnp.dot(constants["v"], output)


@dataclass(frozen=True)
class Concave(Head):
    """h(o) = v . o - strength |o|^2, which prefers to mix tokens (Lemma 6 of the attention-SVM paper)."""

    strength: float
    name = "concave"
    quadratic = True

    def __post_init__(self) -> None:
        finite_array("strength", self.strength)

    def constants(self, tokens: Tokens) -> dict[str, np.ndarray]:
        return {"v": _head_vector(tokens), "strength": _per_trial("strength", self.strength, (), tokens)}

    @staticmethod
    def apply(constants: Params, output: Array) -> Array:
        return jnp.dot(constants["v"], output) - constants["strength"] * jnp.dot(output, output)


@dataclass(frozen=True)
class ReluSum(Head):
    """h(o) = sum of the positive entries of o."""

    name = "relu-sum"

    def constants(self, tokens: Tokens) -> dict[str, np.ndarray]:
        return {}

    @staticmethod
    def apply(constants: Params, output: Array) -> Array:
        return jnp.sum(jnp.maximum(output, 0.0))


@dataclass(frozen=True, eq=False)
class Mlp(Head):
    """h(o) = sum_j out_j relu((V^T o)_j); `V` (d, width), `out` (width,) or all ones. Both may have a trial axis."""

    V: ArrayLike
    out: ArrayLike | None = None
    name = "mlp"

    def __post_init__(self) -> None:
        object.__setattr__(self, "V", finite_array("V", self.V))
        if self.out is not None:
            object.__setattr__(self, "out", finite_array("out", self.out))

    def constants(self, tokens: Tokens) -> dict[str, np.ndarray]:
        V = _per_trial("V", self.V, (tokens.d, "width"), tokens)
        out = np.ones(V.shape[-1]) if self.out is None else self.out
        return {"V": V, "out": _per_trial("out", out, (V.shape[-1],), tokens)}

    @staticmethod
    def apply(constants: Params, output: Array) -> Array:
        return jnp.dot(constants["out"], jnp.maximum(output @ constants["V"], 0.0))


@dataclass(frozen=True, eq=False)
class RoundedMlp(Mlp):
    """h(o) = sum_j r((V^T o)_j) with r(u) = width log(1 + e^(u / width)), a ReLU whose kink is rounded.

    A flow that meets a kink of the ReLU slides along it; no integrator of smooth flows can follow. As the width
    shrinks, the flow of this head tends to that sliding motion.
    """

    width: float = 1e-4
    name = "rounded mlp"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "width", number("width", self.width, above=0.0))

    def constants(self, tokens: Tokens) -> dict[str, np.ndarray]:
        width = np.full(() if tokens.trials is None else tokens.trials, self.width)
        return {**super().constants(tokens), "width": width}

    @staticmethod
    def apply(constants: Params, output: Array) -> Array:
        width = constants["width"]
        return jnp.dot(constants["out"], width * jax.nn.softplus(output @ constants["V"] / width))


@dataclass(frozen=True)
class _OfOutput:
    """A user's function as an `apply`; equal for equal functions, so that a second run finds its program compiled."""

    function: Callable[[Array], Array]

    def __call__(self, constants: Params, output: Array) -> Array:
        return self.function(output)


@dataclass(frozen=True)
class FunctionHead(Head):
    """h(o) = your own function of one output vector, written with `jax.numpy`."""

    function: Callable[[Array], Array]
    name: str = field(default="function", compare=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputError(message(f"`function` is {shown(self.function)}; wanted a function of one output."))
        if not isinstance(self.name, str):
            raise InputError(message(f"`name` is {shown(self.name)}; wanted text."))
        check_hashable("function", self.function)

    def constants(self, tokens: Tokens) -> dict[str, np.ndarray]:
        return {}

    @property
    def apply(self) -> _OfOutput:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _OfOutput(self.function)


HeadLike = str | Head | Callable[[Array], Array]


def as_head(head: HeadLike) -> Head:
    """A head by name ("linear", "relu-sum"), as it is, or from your own function."""
    if isinstance(head, Head):
        return head
    if isinstance(head, str):
        named = {"linear": Linear(), "relu-sum": ReluSum()}
        if head not in named:
            raise InputError(
                message(
                    f"`head` is {head!r}; wanted one of {', '.join(named)}, a head object, or a function.",
                    "al.models.Concave(strength), al.models.Mlp(V)",
                )
            )
        return named[head]
    if isinstance(head, type):
        problem = f"`head` is the class {head.__name__}; wanted an object of it."
        raise InputError(message(problem, f"{head.__name__}(...)"))
    if not callable(head):
        raise InputError(
            message(f"`head` is {shown(head)}; wanted a name, a head object, or a function of one output.")
        )
    check_hashable("head", head)
    return FunctionHead(head)
