"""Reverse-mode derivatives that neither underflow nor lose digits where attention has saturated.

JAX pulls a gradient back as plain numbers. Through a softmax whose other tokens hold e^-1000 of the weight it arrives
as zero, and a normalized step has nothing to normalize. Here every array on the way back is a mantissa with the
logarithm of one common scale. All operations but the softmax are linear in what they pull back: they work on the
mantissa, and leave the scale alone. The softmax multiplies by its smallest weights, which it knows by their logarithms.

`scaled_vjp` reads the program that JAX makes of a function, equation by equation. A function that calls
`attnlab.models.softmax` anywhere, in any depth, is pulled back this way; inside `jax.lax.scan`, `while_loop` or `cond`
the softmax is pulled back by JAX, accurate down to weights of 1e-308.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from attnlab.models.scaled import finite_scale
from attnlab.models.softmax import NOISE, pull_back, softmax_p, weights

# Equations that only call a program of their own, and the names under which they keep it.
# A function with a derivative of its own keeps it, whatever it calls.
_CALLS = ("jit", "pjit", "closed_call", "checkpoint", "remat")
_PROGRAMS = ("jaxpr", "call_jaxpr")


class Cotangent(NamedTuple):
    """A derivative `mantissa * e^log_scale`."""

    mantissa: Array
    log_scale: Array  # ()


PullBack = Callable[[Sequence[Cotangent | None]], Sequence[Cotangent | None]]


@dataclass(frozen=True)
class _Step:
    """One equation on the tape: what it read that moves, what it wrote, and the way back."""

    inputs: list[Var]
    outputs: list[Var]
    back: PullBack


@dataclass
class _Run:
    """A program as it is evaluated."""

    values: dict[Var, Any] = field(default_factory=dict)
    moving: set[Var] = field(default_factory=set)  # what depends on the parameters
    tape: list[_Step] = field(default_factory=list)
    attention: list[Array] = field(default_factory=list)  # results of every softmax, its axis last

    def read(self, variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else self.values[variable]

    def moves(self, variable: Any) -> bool:
        return not isinstance(variable, Literal) and variable in self.moving


def scaled_vjp(
    function: Callable[[Any], Any], params: Any
) -> tuple[Any, Callable[[Array, Array], tuple[Any, Any]], list[Array]]:
    """The value of a function, the way back through it, and the attention weights it computed.

    Args:
        function: of one tree of arrays; gives an array, or a tree whose first leaf is the one to pull back from.
        params: where.

    Returns:
        (value, back, attention): `back(mantissa, log_scale)` takes the derivative of something by the first leaf of the
        value, and gives that by the parameters, as a tree of mantissas and a tree of log-scales; `attention` lists
        what each call of `attnlab.models.softmax` gave.

    >>> import jax, jax.numpy as jnp
    >>> from attnlab.models import softmax
    >>> with jax.enable_x64(True):
    ...     value, back, _ = scaled_vjp(lambda a: softmax(a)[1], jnp.array([2000.0, 0.0]))
    ...     mantissa, log_scale = back(jnp.ones(()), jnp.zeros(()))  # s_1 s_2 = e^-2000
    >>> mantissa.tolist(), float(log_scale)
    ([-1.0, 1.0], -2000.0)
    """
    leaves, tree = jax.tree.flatten(params)
    program, shape = jax.make_jaxpr(lambda *given: function(tree.unflatten(given)), return_shape=True)(*leaves)
    results, way_back, attention = _evaluated(program, leaves, [True] * len(leaves))
    value = jax.tree.structure(shape).unflatten(results)

    def back(mantissa: Array, log_scale: Array) -> tuple[Any, Any]:
        others = [None] * (len(results) - 1)
        by_leaf = way_back([Cotangent(mantissa, log_scale), *others])
        known = [_zero(leaf) if one is None else one for one, leaf in zip(by_leaf, leaves, strict=True)]
        return tree.unflatten([one.mantissa for one in known]), tree.unflatten([one.log_scale for one in known])

    return value, back, attention


def attention_weights(function: Callable[..., Any], *arguments: Any) -> list[Array]:
    """What each softmax gave on the way through a function, in order."""
    flat, tree = jax.tree.flatten(arguments)
    program = jax.make_jaxpr(lambda *given: function(*tree.unflatten(given)))(*flat)
    return _evaluated(program, flat, [True] * len(flat))[2]


def _evaluated(
    program: ClosedJaxpr, arguments: Sequence[Any], moving: Sequence[bool]
) -> tuple[list[Any], PullBack, list[Array]]:
    """The results of a program, the way back to those of its arguments that move, and its attention weights."""
    jaxpr, run = program.jaxpr, _Run()
    run.values.update(zip(jaxpr.constvars, program.consts, strict=True))
    run.values.update(zip(jaxpr.invars, arguments, strict=True))
    wanted = [variable for variable, moves in zip(jaxpr.invars, moving, strict=True) if moves]
    run.moving.update(wanted)
    for equation in jaxpr.eqns:
        _take(equation, jaxpr, run)
    results = [run.read(variable) for variable in jaxpr.outvars]

    def back(cotangents: Sequence[Cotangent | None]) -> list[Cotangent | None]:
        gathered: dict[Var, Cotangent] = {}
        _give(run, gathered, jaxpr.outvars, cotangents)
        for step in reversed(run.tape):
            of_outputs = [gathered.pop(variable, None) for variable in step.outputs]
            if any(one is not None for one in of_outputs):
                _give(run, gathered, step.inputs, step.back(of_outputs))
        return [gathered.get(variable) for variable in wanted]

    return results, back, run.attention


def _give(
    run: _Run, gathered: dict[Var, Cotangent], variables: Sequence[Any], cotangents: Sequence[Cotangent | None]
) -> None:
    """Add derivatives to those that are known of these variables already."""
    for variable, cotangent in zip(variables, cotangents, strict=True):
        if cotangent is not None and run.moves(variable):
            before = gathered.get(variable)
            gathered[variable] = cotangent if before is None else _sum(before, cotangent)


def _take(equation: JaxprEqn, jaxpr: Jaxpr, run: _Run) -> None:
    """Evaluate one equation, and put the way back on the tape if it moves."""
    inner = _called(equation)
    if inner is not None:
        inputs = equation.invars
    else:
        inputs = list(dict.fromkeys(variable for variable in equation.invars if not isinstance(variable, Literal)))
    values = [run.read(variable) for variable in inputs]
    movable = [run.moves(variable) and _is_real(value) for variable, value in zip(inputs, values, strict=True)]
    from_here = [v for v, moves in zip(inputs, movable, strict=True) if moves and isinstance(v, Var)]
    if equation.primitive is softmax_p:
        results, back = _through_softmax(values[0], equation.params["axis"], run)
    elif inner is not None:
        results, back, attention = _evaluated(inner, values, movable)
        run.attention += attention
    else:
        alone = jaxpr.replace(constvars=[], invars=inputs, outvars=equation.outvars, eqns=[equation])
        results, back = _through_linear(jaxpr_as_fun(ClosedJaxpr(alone, ())), values, movable)
    run.values.update(zip(equation.outvars, results, strict=True))
    if from_here:
        run.moving.update(v for v, result in zip(equation.outvars, results, strict=True) if _is_real(result))
        run.tape.append(_Step(from_here, equation.outvars, back))


def _called(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The program that an equation calls, if there is a softmax in it."""
    if equation.primitive.name not in _CALLS:
        return None
    for name in _PROGRAMS:
        program = equation.params.get(name)
        if program is not None:
            closed = program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, ())
            return closed if _attends(closed.jaxpr) else None
    return None


def _attends(jaxpr: Jaxpr) -> bool:
    return any(equation.primitive is softmax_p or _called(equation) is not None for equation in jaxpr.eqns)


def _through_softmax(logits: Array, axis: int, run: _Run) -> tuple[list[Array], PullBack]:
    # Tokens go first if they are last: rows of a few tokens are many loops of a few turns for XLA, a few tokens of
    # many rows are not.
    along = 0 if axis == logits.ndim - 1 else axis
    logits = jnp.moveaxis(logits, axis, along)
    attention, visible = weights(logits, along), ~jnp.isneginf(logits)
    run.attention.append(jnp.moveaxis(attention.probs, along, -1))

    def back(cotangents: Sequence[Cotangent | None]) -> list[Cotangent]:
        (cotangent,) = cotangents
        assert cotangent is not None
        by_weights = jnp.moveaxis(cotangent.mantissa, axis, along)
        # Rows may differ in size by any factor: what is rounding error of one may be all there is of another. And so
        # may tokens: those without weight say nothing of the rounding of the others.
        by_weights = jnp.where(visible, by_weights, 0.0)
        size = jnp.max(jnp.abs(by_weights), axis=along, keepdims=True)
        size = jnp.where(size > 0, size, 1.0)
        scaled = by_weights / size
        of_top = jnp.sum(jnp.where(attention.top, scaled, 0.0), axis=along, keepdims=True)
        rounding = NOISE * (jnp.abs(scaled) + jnp.abs(of_top))
        size = jnp.squeeze(size, along)
        to_logits = pull_back(attention, scaled, rounding, jnp.log(size), jnp.ones_like(size), visible, axis=along)
        mantissa, log_scale = to_logits
        return [Cotangent(jnp.moveaxis(mantissa, along, axis), cotangent.log_scale + log_scale)]

    return [jnp.moveaxis(attention.probs, along, axis)], back


def _through_linear(
    function: Callable[..., Sequence[Any]], values: Sequence[Any], movable: Sequence[bool]
) -> tuple[list[Any], PullBack]:
    """Of an equation whose way back is linear in what it is given, as all are."""
    if not any(movable):
        return list(function(*values)), lambda cotangents: []
    places = [k for k, moves in enumerate(movable) if moves]

    def of_movable(*some: Any) -> list[Any]:
        every = list(values)
        for k, value in zip(places, some, strict=True):
            every[k] = value
        return list(function(*every))

    results, pull = jax.vjp(of_movable, *[values[k] for k in places])

    def back(cotangents: Sequence[Cotangent | None]) -> list[Cotangent]:
        mantissas, log_scale = _of_one_scale(cotangents)
        parts = [_no_tangent(r) if m is None else m for m, r in zip(mantissas, results, strict=True)]
        return [Cotangent(mantissa, log_scale) for mantissa in pull(parts)]

    return results, back


def _of_one_scale(cotangents: Sequence[Cotangent | None]) -> tuple[list[Array | None], Array]:
    """Mantissas, and the scale that all of them have."""
    given = [one for one in cotangents if one is not None]
    if len(given) == 1:
        return [None if one is None else one.mantissa for one in cotangents], given[0].log_scale
    units = [None if one is None else _unit(one) for one in cotangents]
    top = _common([one for one in units if one is not None])
    return [None if one is None else one.mantissa * jnp.exp(one.log_scale - top) for one in units], top


def _sum(one: Cotangent, other: Cotangent) -> Cotangent:
    one, other = _unit(one), _unit(other)
    top = _common([one, other])
    mantissa = one.mantissa * jnp.exp(one.log_scale - top) + other.mantissa * jnp.exp(other.log_scale - top)
    return Cotangent(mantissa, top)


def _unit(one: Cotangent) -> Cotangent:
    """The same with largest entry 1; a zero has the scale -inf, so that it hides nothing."""
    size = jnp.max(jnp.abs(one.mantissa), initial=0.0)
    some = size > 0
    log_scale = jnp.where(some, one.log_scale + jnp.log(jnp.where(some, size, 1.0)), -jnp.inf)
    return Cotangent(one.mantissa / jnp.where(some, size, 1.0), log_scale)


def _common(units: list[Cotangent]) -> Array:
    return finite_scale(jnp.max(jnp.stack([one.log_scale for one in units])))


def _zero(leaf: Array) -> Cotangent:
    return Cotangent(jnp.zeros_like(leaf), jnp.zeros(()))


def _no_tangent(result: Any) -> Any:
    if _is_real(result):
        return jnp.zeros_like(result)
    return np.zeros(jnp.shape(result), jax.dtypes.float0)


def _is_real(value: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.floating))
