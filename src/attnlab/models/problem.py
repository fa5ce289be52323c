"""A data set and a model as a compiled program takes them: arrays, and what is done with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.models.losses import Loss
from attnlab.models.motion import Motion, flat_motion, flat_velocity
from attnlab.models.portions import of_each, sum_of_all
from attnlab.models.reverse import attention_weights, scaled_vjp
from attnlab.models.scaled import Params, ScaledGradient, in_single, normalized

if TYPE_CHECKING:
    from attnlab.models.lanes import Lanes
    from attnlab.models.model import Model


class Example(NamedTuple):
    """What a model sees of one example."""

    x: Array  # (T, d) tokens
    z: Array | None = None  # (d,) or (K, d) queries; None for al.Sequences
    v: Array | None = None  # (d,) the head vector of the data, if they have one
    mask: Array | None = None  # (T,) or (K, T), True where a token is visible; None where all are
    constants: Mapping[str, Array] | None = None  # arrays of the model that are not trained, by name
    ids: Array | None = None  # (T,) numbers of the tokens in a vocabulary, of al.Sequences that have them
    segments: Array | None = None  # (T,) of which text of a pair each token is, likewise
    key: Array | None = None  # for what is random in training (dropout); None where nothing is to be


class Held(NamedTuple):
    """Parameters that are trained in place of the weights: `weights = factor * parameters`, entry by entry.

    Groups of equal heads are held times the root of their number, so that lengths are those of all heads; under the
    "ntk" parameterization a matrix is held times the root of its columns.
    """

    factor: Params | None  # by name, each of the shape of its weight, or of 1 along an axis; None for 1
    metric: Params | None = None  # gradients by parameters are multiplied by this

    def weights(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The weights at these parameters."""
        if self.factor is None:
            return dict(params)
        return {name: self.factor[name] * p for name, p in params.items()}

    def params(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of these weights."""
        if self.factor is None:
            return dict(weights)
        return {name: w / self.factor[name] for name, w in weights.items()}

    def slopes(self, by_params: Mapping[str, Any]) -> dict[str, Any]:
        """A derivative by parameters of which some stand for several, as one by each."""
        if self.metric is None:
            return dict(by_params)
        return {name: self.metric[name] * slope for name, slope in by_params.items()}


class Problem(NamedTuple):
    """The arrays of one trial (or a batch of trials)."""

    x: Array  # (n, T, d)
    y: Array  # (n,) or (n, K)
    z: Array | None = None  # (n, d) or (n, K, d)
    v: Array | None = None  # (d,)
    mask: Array | None = None  # (n, T) or (n, K, T)
    constants: Mapping[str, Array] | None = None  # arrays of the model that are not trained, by name
    held: Held | None = None  # None: parameters are the weights
    ids: Array | None = None  # (n, T)
    segments: Array | None = None  # (n, T)
    keys: Array | None = None  # (n,) random keys, in training of models that draw

    @classmethod
    def of(cls, **arrays: Any) -> Problem:
        """The arrays as they come, of NumPy; a compiled program takes them for those of JAX."""
        return cls(**arrays)

    def examples(self) -> tuple[Example, Example]:
        """All examples, and which of their arrays have one entry for each."""
        given = {"x": self.x, "z": self.z, "mask": self.mask, "ids": self.ids, "segments": self.segments}
        given["key"] = self.keys
        axes = {name: None if array is None else 0 for name, array in given.items()}
        examples = Example(**given, v=self.v, constants=self.constants)
        return examples, Example(**cast(dict[str, Any], axes))

    def rows(self) -> Params:
        """The arrays with one entry for each sequence."""
        named = {"x": self.x, "y": self.y, "z": self.z, "mask": self.mask}
        named |= {"ids": self.ids, "segments": self.segments, "keys": self.keys}
        return {name: array for name, array in named.items() if array is not None}

    def alone(self, row: Params) -> Problem:
        """The problem of one sequence, given by its entries of `rows`."""
        return self._replace(**{name: array[None] for name, array in row.items()})

    def taken(self, which: Array) -> Problem:
        """The problem of some sequences, by their numbers."""
        return self._replace(**{name: array[which] for name, array in self.rows().items()})


class Forward(NamedTuple):
    """What a model computes for all examples."""

    outputs: Array  # (n,), (n, K) or (n, C)
    attention: Array | None = None  # weights of the last softmax, tokens last; None: read from the program
    hidden: Array | None = None  # (n, m) what the output layer sees, where a model says so


class Seen(NamedTuple):
    """One trial at one recorded step."""

    problem: Any
    params: Params
    gradient: ScaledGradient
    forward: Any
    update: Params  # the next step
    compared: Any  # what the records compare with, as the model prepared it
    targets: dict[str, Any]
    portion: int | None = None  # examples to evaluate at a time, with no gradient nor update; None for all at once
    test: Any = None  # the problem of the test examples, if there are any


@dataclass(frozen=True)
class Objective:
    """What is minimised: the loss of a model's outputs. Hashable; equal objectives share compiled programs.

    All methods are JAX on one trial.
    """

    model: Model
    loss: Loss
    frozen: tuple[str, ...] = ()  # weights that are not trained

    def weights(self, params: Params, problem: Problem) -> dict[str, Any]:
        """The weights at these parameters; frozen ones have no gradient."""
        weights = dict(params) if problem.held is None else problem.held.weights(params)
        return weights | {name: jax.lax.stop_gradient(weights[name]) for name in self.frozen}

    def logits(self, params: Params, problem: Problem) -> Array:
        """Of one attention layer; other models do not tell."""
        raise NotImplementedError(f"{self.model!r} has no logits of its own")

    def outputs(self, params: Params, problem: Problem) -> Array:
        """Outputs alone, (n, ...)."""
        return self.model.forward(self.weights(params, problem), problem).outputs

    def evaluate(self, params: Params, problem: Problem) -> Forward:
        """Outputs and attention."""
        weights = self.weights(params, problem)
        forward = self.model.forward(weights, problem)
        if forward.attention is not None:
            return forward
        return _with_attention(forward, attention_weights(self.model.forward, weights, problem))

    def gradient(self, params: Params, problem: Problem) -> tuple[ScaledGradient, Forward]:
        """The gradient by the parameters, and the evaluation it came from."""
        forward, back = self._way_back(params, problem)
        return back(*self.loss.slope(forward.outputs, problem.y)), forward

    def gradient_in_portions(self, params: Params, problem: Problem, size: int) -> tuple[ScaledGradient, Forward]:
        """The same, with no more than `size` examples at a time on the way back.

        Outputs come first, then their slopes, which may depend on all of them, then the way back portion by portion:
        the same gradient for any loss, to rounding, at the price of one more way forward.
        """
        n = problem.y.shape[0]
        if n <= size:
            return self.gradient(params, problem)
        forward = self.evaluate_in_portions(params, problem, size)
        slope, log_scale = self.loss.slope(forward.outputs, problem.y)

        def of_portion(which: Array) -> ScaledGradient:
            _, back = self._way_back(params, problem.taken(which))
            return back(slope[which], log_scale)

        return sum_of_all(of_portion, ScaledGradient.plus, n, size), forward

    def evaluate_in_portions(self, params: Params, problem: Problem, size: int) -> Forward:
        """Outputs, of no more than `size` examples at a time; attention and hidden layer are not gathered."""
        return _with_attention(Forward(self._outputs(self.weights(params, problem), problem, size)), [])

    def _outputs(self, weights: Params, problem: Problem, size: int | None) -> Array:
        """Outputs at these weights, of no more than `size` examples at a time; None for all at once."""
        if size is None:
            return self.model.forward(weights, problem).outputs

        def outputs_of(which: Array) -> Array:
            return self.model.forward(weights, problem.taken(which)).outputs

        return of_each(outputs_of, problem.y.shape[0], size)

    def _way_back(self, params: Params, problem: Problem) -> tuple[Forward, Callable[[Array, Array], ScaledGradient]]:
        """The evaluation, and the way from slopes by the outputs, as mantissa and log-scale, to the gradient.

        Parameters in float32 are pulled back as plain numbers: saturation is out of their reach.
        """

        def forward_of(params: Params) -> Forward:
            return self.model.forward(self.weights(params, problem), problem)

        if in_single(params):
            outputs, pull, forward = jax.vjp(lambda p: _outputs_first(forward_of(p)), params, has_aux=True)

            def to_params(slope: Array, log_scale: Array, /) -> tuple[Any, Any]:
                (mantissa,) = pull(slope.astype(outputs.dtype))
                return mantissa, dict.fromkeys(mantissa, log_scale.astype(outputs.dtype))

            forward = _with_attention(forward, [])
        else:
            forward, to_params, attention = scaled_vjp(forward_of, params)
            forward = _with_attention(forward, attention)

        def back(slope: Array, log_scale: Array) -> ScaledGradient:
            mantissa, scales = to_params(slope, log_scale)
            if problem.held is not None:
                mantissa = problem.held.slopes(mantissa)
            return normalized(mantissa, scales)

        return forward, back

    def has_lanes(self, problem: Problem, params: Params) -> bool:
        """Can gradients be computed with trials along the last axis? See `attnlab.models.lanes`."""
        return False

    def lanes(self, problem: Problem) -> Lanes:
        """What computes them, for trials that `has_lanes` accepts."""
        raise NotImplementedError(f"{self.model!r} has no lanes")

    def value(self, problem: Problem, forward: Forward) -> Array:
        """The objective."""
        return self.loss.objective(forward.outputs, problem.y)

    def log_value(self, problem: Problem, forward: Forward) -> Array:
        """Its logarithm, also where it underflows; NaN for losses that can be negative."""
        return self.loss.log_objective(forward.outputs, problem.y)

    def log_excess(self, problem: Problem, forward: Forward) -> Array:
        """log of the objective above its infimum, as far as that is known: zero."""
        return self.log_value(problem, forward)

    def excess(self, problem: Problem, forward: Forward) -> tuple[Array, Array]:
        """Sign and log magnitude of the objective above its infimum, as far as that is known: zero."""
        log_value = self.log_value(problem, forward)
        return jnp.ones_like(log_value), log_value

    def largest_attention(self, params: Params, problem: Problem) -> Array:
        """The token with the largest attention weight, for every query."""
        attention = self.evaluate(params, problem).attention
        assert attention is not None
        if attention.size:
            return jnp.argmax(attention, axis=-1)
        return jnp.zeros(attention.shape[:-1], dtype=int)

    def log_attention(self, params: Params, problem: Problem) -> Array:
        """Logarithms of the attention weights."""
        attention = self.evaluate(params, problem).attention
        assert attention is not None
        return jnp.log(attention)

    def motion(self, params: Params, problem: Problem) -> Motion:
        """How gradient flow begins at these parameters."""
        return flat_motion(self, params, problem)

    def velocity(self, y: Array, u: Array, log_unit: Array, system: Params, problem: Problem) -> Array:
        """dy/du of gradient flow at log-time u, in the coordinates of `motion`; `log_unit` is log of the time unit."""
        return flat_velocity(self, y, u + log_unit, system, problem)

    def records(self, seen: Seen) -> Params:
        """What is recorded beside loss, gradient and step."""
        return self.model.records(self, seen)

    def test_records(self, weights: Params, problem: Problem, portion: int | None) -> Params:
        """What is recorded of test examples, no more than `portion` at a time; the objective is prepared for them."""
        outputs = self._outputs(weights, problem, portion)
        return self.model.test_records(self.loss, outputs, problem.y)

    def view(self, seen: Seen) -> Any:
        """What a user's own metrics see."""
        weights = self.weights(seen.params, seen.problem)
        return self.model.view(weights, seen.problem, seen.forward)


def _outputs_first(forward: Forward) -> tuple[Array, Forward]:
    return forward.outputs, forward


def _with_attention(forward: Forward, attention: list[Array]) -> Forward:
    if forward.attention is not None:
        return forward
    none = jnp.zeros((forward.outputs.shape[0], 0, 0), forward.outputs.dtype)
    return forward._replace(attention=attention[-1] if attention else none)


@dataclass(frozen=True)
class Prepared:
    """A model on its data, ready to be trained; every array has the trial axis of the data, if they have one.

    Attributes:
        objective: what is minimised.
        problem: the data, as the objective takes them.
        params: parameters at the start.
        weights: parameters -> weights, with NumPy.
        exact: are the parameters found again from the weights to the last digit?
        as_targets: directions to compare with, of all trials -> the same in the coordinates of the parameters.
        check_loss: refuses labels and outputs that do not go with the loss, which outputs alone do not need.
        batched: have problem and parameters a trial axis even if the data have none?
    """

    objective: Any
    problem: Any
    params: Params
    weights: Callable[[Mapping[str, Any]], dict[str, Any]]
    exact: bool = True
    as_targets: Callable[[dict[str, Any]], dict[str, Any]] = dict
    batched: bool = False
    check_loss: Callable[[], None] = lambda: None
