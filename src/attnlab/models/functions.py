"""A user's own functions, tried once before they are compiled, so that what goes wrong in them is told in words."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from attnlab.checks import shown
from attnlab.data.tokens import Tokens
from attnlab.errors import AttnlabError, InputError, message
from attnlab.models.hashable import check_hashable
from attnlab.models.heads import Concave, Head, Linear, Mlp, ReluSum
from attnlab.models.losses import LOSSES, Loss
from attnlab.models.problem import Problem
from attnlab.models.scaled import Params, Tree

if TYPE_CHECKING:
    from attnlab.models.model import Model

UserMetric: TypeAlias = Callable[[Any], ArrayLike]  # of what `view` of the model gives
UserMetrics: TypeAlias = Mapping[str, UserMetric]
UserFunctions: TypeAlias = tuple[tuple[str, UserMetric], ...]
ArrayTypes: TypeAlias = tuple[jax.ShapeDtypeStruct, ...]

# What JAX raises where a function wants numbers while it is being compiled.
_TRACED = (
    jax.errors.TracerArrayConversionError,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerIntegerConversionError,
)
_OURS = (Linear, ReluSum, Concave, Mlp)


@contextmanager
def told_as(name: str, called: str) -> Iterator[None]:
    """What goes wrong inside is the fault of the argument `name`, a function, and is said so."""
    try:
        yield
    except AttnlabError:
        raise
    except _TRACED as error:
        raise InputError(
            message(
                f"`{name}` asks for numbers while it is compiled: NumPy, float() or a Python `if` on an array.",
                "write it with jax.numpy: jnp.sum for np.sum, jnp.where for if",
            )
        ) from error
    except Exception as error:
        problem = f"`{name}` raises {type(error).__name__}: {_first_line(error)}"
        raise InputError(message(problem, f"it is called with {called}, and written with jax.numpy")) from error


@contextmanager
def told_of(name: str) -> Iterator[None]:
    """What is refused inside is refused of the argument `name`."""
    try:
        yield
    except InputError as error:
        raise InputError(f"Of `{name}`: {error}") from error


def check_functions(tokens: Tokens, loss: Loss, head: Head) -> None:
    """Refuse a head or a loss of the user's own that cannot be compiled, or does not give one real number."""
    check_head(tokens, head)
    check_loss(loss)


def check_head(tokens: Tokens, head: Head) -> None:
    """Refuse a fixed head of the user's own that cannot be compiled, or does not give one real number."""
    if isinstance(head, _OURS):
        return
    one = tokens if tokens.trials is None else tokens[0]
    with told_as("head", "one attention output, a vector (d,)"):
        constants = head.constants(one)
    output = jax.ShapeDtypeStruct((tokens.d,), jnp.float64)
    gives_a_number("head", head.apply, "one attention output, a vector (d,)", constants, output)


def check_loss(loss: Loss) -> None:
    """Refuse a loss of the user's own that cannot be compiled, or does not give one real number."""
    function = getattr(loss, "function", getattr(loss, "value", None))
    if loss not in LOSSES.values() and function is not None:
        gives_a_number("loss", function, "one margin, a number", jax.ShapeDtypeStruct((), jnp.float64))


def gives_a_number(name: str, function: Callable[..., object], called: str, *arguments: Tree) -> None:
    """Refuse a function, the argument `name`, that cannot be compiled, or does not give one real number."""
    with told_as(name, called):
        result = jax.eval_shape(function, *arguments)
    if getattr(result, "shape", None) != ():
        what = f"an array of shape {result.shape}" if hasattr(result, "shape") else shown(result)
        raise InputError(message(f"`{name}` gives {what}; wanted one number.", f"it is called with {called}"))
    if result.dtype.kind != "f":
        problem = f"`{name}` gives a number of type {result.dtype}; wanted a real number, to take derivatives of."
        raise InputError(message(problem, "jnp.asarray(..., dtype=float)"))


def check_constants(constants: Mapping[str, np.ndarray], trials: int | None) -> dict[str, np.ndarray] | None:
    """Arrays that a model gives its examples; of a batch they must have the axis of trials. None for none."""
    for name, array in constants.items():
        if trials is not None and np.shape(array)[:1] != (trials,):
            given = f"`constants` of `model` gives {name!r} of shape {np.shape(array)} for {trials} trials"
            wanted = "one for each trial, along the first axis"
            raise InputError(message(f"{given}; wanted {wanted}.", "np.broadcast_to(a, (data.trials, *a.shape))"))
    return dict(constants) or None


def check_output(model: Model, weights: Params, problem: Problem, *, with_trials: bool) -> int | None:
    """Refuse a model whose `output` cannot be compiled, or ignores a mask; the number of its classes, if any.

    Args:
        model: what computes the outputs of all examples of one trial.
        weights, problem: of one trial, or of several.
        with_trials: have they an axis of trials?
    """
    if problem.mask is not None and np.all(problem.mask):  # hides nothing
        problem = problem._replace(mask=None)
    lead = 1 if with_trials else 0
    arrays, tree = jax.tree.flatten((weights, problem))
    types = tuple(jax.ShapeDtypeStruct(np.shape(array)[lead:], jnp.result_type(array)) for array in arrays)
    with told_as("model", "weights and one example"):
        outputs, reads_mask = _traced(model, tree, types)
    if not reads_mask:
        hidden = "The data hide tokens by a mask that `output` of `model` does not read."
        raise InputError(message(hidden, "softmax(jnp.where(example.mask, logits, -jnp.inf))"))
    labels = np.shape(problem.y)[lead:]
    if outputs.shape == labels and outputs.dtype == jnp.float64:
        return None
    if len(labels) == 1 and outputs.ndim == 2 and outputs.dtype == jnp.float64:
        return outputs.shape[1]
    wanted = "a number of type float64, or one for each class"
    if len(labels) == 2:
        wanted = f"{labels[1]} numbers of type float64, one for each query"
    given = f"`model` puts out shape {outputs.shape[1:]} of type {outputs.dtype} for one example"
    raise InputError(message(f"{given}; wanted {wanted}.", "return what jax.numpy gives"))


@lru_cache(maxsize=256)  # tracing takes milliseconds, of many a call most of the time
def _traced(model: Model, tree: Hashable, types: ArrayTypes) -> tuple[jax.ShapeDtypeStruct, bool]:
    """Of the outputs for weights and a problem of these shapes: their type, and whether the mask, if any, is read."""

    def outputs_of(mask: Array | None, weights: Params, problem: Problem) -> Array:
        return jnp.asarray(model.forward(weights, problem._replace(mask=mask)).outputs)

    weights, problem = jax.tree.unflatten(tree, types)
    program, outputs = jax.make_jaxpr(outputs_of, return_shape=True)(problem.mask, weights, problem)
    if problem.mask is None:
        return outputs, True
    mask = program.jaxpr.invars[0]
    reads_mask = any(mask is read for equation in program.eqns for read in equation.invars)
    return outputs, reads_mask


def check_metrics(metrics: UserMetrics | None) -> UserFunctions:
    """Names and functions of a user's own metrics; `None` is none."""
    if metrics is None:
        return ()
    wanted = "a dict of names and functions"
    if not hasattr(metrics, "items"):
        raise InputError(message(f"`metrics` is {shown(metrics)}; wanted {wanted}.", 'metrics={"mine": function}'))
    for name, function in metrics.items():
        if not isinstance(name, str) or not callable(function):
            raise InputError(message(f"`metrics` has {shown(name)}: {shown(function)}; wanted {wanted}."))
        check_hashable(f"metrics[{name!r}]", function)
    return tuple(metrics.items())


def call_metrics(user: UserFunctions, view: object) -> dict[str, Array]:
    """Values of a user's own metrics, while a program is compiled."""
    values = {}
    for name, function in user:
        with told_as(f"metrics[{name!r}]", f"a {type(view).__name__}"):
            value = jnp.asarray(function(view))
        if value.dtype.kind not in "fiub":
            raise InputError(message(f"`metrics[{name!r}]` gives numbers of type {value.dtype}; wanted real ones."))
        values[name] = value
    return values


def _first_line(error: Exception, most: int = 200) -> str:
    text = str(error).strip().split("\n")[0]
    return text if len(text) <= most else f"{text[:most]}..."
