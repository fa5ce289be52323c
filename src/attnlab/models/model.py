"""`Model`: what can be trained, predicted with and explained. Two methods make one.

    class WithValues(al.Model):                       # attention with a trained value matrix
        def shapes(self, data):
            return {"W": al.weights((data.d, data.d)), "V": al.weights((data.d, data.d))}

        def output(self, weights, example):
            attention = al.models.softmax(example.x @ weights["W"] @ example.z)
            return example.v @ (weights["V"] @ (attention @ example.x))

Everything else follows, for one data set or a batch of trials, and may be overridden where mathematics knows better.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from attnlab.checks import enough_memory, finite_array, number, shown, whole
from attnlab.data.families import START_STREAM, Seed, each_trial, start_seed
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.evaluate import Data, Evaluated
from attnlab.models.functions import check_constants, check_loss, check_output, told_as, told_of
from attnlab.models.hashable import check_hashable
from attnlab.models.headtokens import HeadTokens, one_head
from attnlab.models.losses import Loss, LossLike, as_loss
from attnlab.models.powers import LEAST_SQUARABLE, MOST_WEIGHT, check_range
from attnlab.models.problem import Example, Forward, Held, Objective, Prepared, Problem, Seen
from attnlab.models.scaled import GivenWeights, Params, norm, norm_of
from attnlab.models.weight import COPIES, LAWS, MOST_SCALE, Law, Weight, Weights, are_weights, stacked

D = TypeVar("D", bound=Data)  # what a model takes
Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]  # of parameters by name
Init: TypeAlias = str | GivenWeights | None
Targets: TypeAlias = GivenWeights | Mapping[str, GivenWeights]  # as a user names what records compare with
Directions: TypeAlias = Mapping[str, np.ndarray | Weights]  # the same by name, checked


class View(NamedTuple):
    """What a metric of your own sees: one trial at one recorded step."""

    params: Params  # the weights; of one head per group, where heads are in groups
    x: Array  # (n, T, d)
    outputs: Array  # (n,), (n, K) or (n, C)
    attention: Array | None  # of the last softmax, tokens along the last axis
    hidden: Array | None  # (n, m), where the model has such a layer
    y: Array  # the labels


class Compared(NamedTuple):
    """What the records of a trial compare with."""

    start: Weights  # at step 0
    hidden: np.ndarray | None = None  # (n, m) at step 0


@dataclass_transform(frozen_default=True)
class Model(Evaluated, Generic[D]):
    """A model: which weights it has, and what it puts out for one example.

    A subclass is a frozen dataclass, made one where it is not: fields are its settings, and equal models share compiled
    programs. It defines `shapes` and `output`; all other methods have defaults.
    """

    usual_loss: ClassVar[str] = "logistic"
    floor_is_known: ClassVar[bool] = True  # does `log_excess` reach down to the least loss there is?
    aligns: ClassVar[bool] = False  # are `misalignment_NAME` of targets recorded?
    single: ClassVar[bool] = True  # may it be trained in float32?
    portion: ClassVar[int | None] = 500  # examples evaluated at a time in runs by batches; None for all at once

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclass(frozen=True)(cls)
        # Those of this class do the same, and leave room for a decorator of the user's own.
        for name in ("__setattr__", "__delattr__"):
            delattr(cls, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    @abstractmethod
    def shapes(self, data: D) -> dict[str, Weight]:
        """Weights by name, in the order in which they are drawn; see `al.weights`."""

    @abstractmethod
    def output(self, weights: Params, example: Example) -> Array:
        """The output for one example, in jax.numpy: a number, or one for each query, or one for each class."""

    # Data and weights, with NumPy.

    def checked_shapes(self, data: D) -> dict[str, Weight]:
        """`shapes`, refused where it names no weight that is trained."""
        with told_as("model", "the data, in `shapes`"):
            shapes = self.shapes(data)
        wanted = "weights by name, at least one of them trained"
        if not are_weights(shapes) or not any(one.trained for one in shapes.values()):
            problem = f"`shapes` of `model` gives {shown(shapes)}; wanted {wanted}."
            raise InputError(message(problem, '{"W": al.weights((data.d, data.d))}'))
        return dict(shapes)

    def accepts(self, data: object, name: str = "data") -> D:
        """The data set, checked; what it cannot be trained on is an InputError."""
        if not isinstance(data, Tokens | Sequences):
            raise InputError(
                message(f"`{name}` is {shown(data)}; wanted al.Tokens or al.Sequences.", "al.Tokens(x=, z=, y=, v=)")
            )
        check_range(name, data.x, 2, least=LEAST_SQUARABLE)
        return cast(D, data)

    def check_trainable(self, data: D) -> None:
        """Refuse data whose products over many steps might leave float64."""
        check_range("tokens", data.x, 2)

    def start(self, data: D, init: Init, scale: float, seed: Seed) -> Weights:
        """Weights at step 0, with the trial axis of the data; trial i draws from its own stream (seed, i).

        `init` is None for the law of each weight, the name of a law for all that are trained, or weights by name.
        """
        scale, seed = number("init_scale", scale, least=0, most=MOST_SCALE), start_seed(seed, data.trials)
        shapes = self.checked_shapes(data)
        if init is not None and not isinstance(init, str):
            named = init if isinstance(init, Mapping) or len(shapes) != 1 else {next(iter(shapes)): init}
            return self.check(data, named, "init")
        if init is not None and init not in LAWS:
            raise InputError(message(f"`init` is {init!r}; wanted one of {', '.join(LAWS)}, or weights by name."))
        count = sum(math.prod(weight.shape) for weight in shapes.values())
        what = f"The weights of {self!r} for {data!r}, and their gradients"
        enough_memory(COPIES * float(count) * (data.trials or 1), what, "a smaller model")

        def draw(rng: np.random.Generator) -> Weights:
            # By their own laws first, so that what is not trained is the same whatever the others start from.
            drawn = {name: weight.draw(rng) for name, weight in shapes.items()}
            for name, weight in shapes.items():
                if weight.trained and init is not None:
                    drawn[name] = Weight(weight.shape, cast(Law, init)).draw(rng)
                if weight.trained:
                    drawn[name] = scale * drawn[name]
            return drawn

        return stacked(each_trial(draw, seed, data.trials, START_STREAM), data.trials)

    def initial(self, data: D, seed: Seed = 0) -> Weights:
        """Random weights for this data by the laws of the model, per trial where there are trials."""
        return self.start(self.accepts(data), None, 1.0, seed)

    def check(self, data: D, weights: GivenWeights, name: str = "weights") -> Weights:
        """Weights as float64, with the trial axis of the data if they have one."""
        shapes = {key: weight.shape for key, weight in self.checked_shapes(data).items()}
        if not isinstance(weights, Mapping) or set(weights) != set(shapes):
            given = sorted(map(str, weights)) if isinstance(weights, Mapping) else shown(weights)
            raise InputError(
                message(f"`{name}` has {given}; wanted {', '.join(shapes)}.", "model.initial(data, seed=0)")
            )
        lead = () if data.trials is None else (data.trials,)
        checked = {}
        for key, shape in shapes.items():
            value = finite_array(f"{name}[{key!r}]", weights[key])
            if value.shape not in (shape, lead + shape):
                per_trial = ", or that per trial" if lead else ""
                raise InputError(message(f"`{name}[{key!r}]` has shape {value.shape}; wanted {shape}{per_trial}."))
            check_range(f"{name}[{key!r}]", value, len(shape), MOST_WEIGHT)
            checked[key] = np.array(np.broadcast_to(value, lead + shape))
        return checked

    def constants(self, data: D, weights: Weights) -> dict[str, np.ndarray]:
        """Arrays that `output` finds in `example.constants`, with the trial axis of the data; none by default.

        They enter as data: models that differ in them alone share a program, if `compiled_as` leaves them out.
        """
        return {}

    def compiled_as(self) -> Model[D]:
        """The model that programs are compiled for: this one, less the settings that enter by `constants`."""
        return self

    def bytes_at_work(self, data: D, weights: Weights) -> int:
        """What a step of one trial holds beside data and weights, where that is far more than these."""
        return 0

    @property
    def draws(self) -> bool:
        """Is something random in training, drawn by `example.key`: dropout, say?"""
        return False

    def held(self, data: D, weights: Weights, *, isotropic: bool) -> Held | None:
        """The parameters that are trained in place of the weights; None for the weights themselves.

        `isotropic` says whether the step rule sees gradients through their sums and lengths alone.
        """
        return None

    def prepare(
        self,
        data: D,
        loss: Loss,
        start: Weights,
        *,
        held: bool = True,
        isotropic: bool = False,
        matrices: bool = False,
    ) -> Prepared:
        """The model on its data, as compiled programs take it.

        Args:
            data, start: checked data and weights.
            loss: what is minimised.
            held: in the coordinates in which it is trained, or in those of the weights.
            isotropic: does the step rule see gradients through their sums and lengths alone?
            matrices: do a user's metrics want to see the weights?
        """
        check_hashable("model", self)
        check_loss(loss)
        chosen = self.held(data, start, isotropic=held and isotropic)
        if chosen is not None and not held:
            chosen = chosen._replace(factor=None)
        problem = self.problem(data, start, chosen)
        frozen = tuple(name for name, weight in self.checked_shapes(data).items() if not weight.trained)
        objective = Objective(self.compiled_as(), loss, frozen)
        with_trials = data.trials is not None
        classes = check_output(objective.model, start, problem, with_trials=with_trials)

        def check_labels() -> None:
            loss.check_labels(np.asarray(data.y), classes)

        if chosen is None:
            return Prepared(objective, problem, start, dict, check_loss=check_labels)
        params, exact = chosen.params(start), chosen.factor is None
        return Prepared(objective, problem, params, chosen.weights, exact=exact, check_loss=check_labels)

    def at(self, data: Data, weights: GivenWeights, loss: LossLike | None = None) -> Prepared:
        """The model on its data at given weights, in the coordinates of the weights themselves."""
        data = self.accepts(data)
        chosen = as_loss(self.usual_loss if loss is None else loss)
        return self.prepare(data, chosen, self.check(data, weights), held=False)

    def problem(self, data: D, weights: Weights, held: Held | None = None) -> Problem:
        """The arrays of a data set."""
        constants = check_constants(self.constants(data, weights), data.trials)
        if isinstance(data, Tokens):
            return Problem.of(x=data.x, y=data.y, z=data.z, v=data.v, mask=data.mask, constants=constants, held=held)
        named = {"mask": data.mask, "ids": data.ids, "segments": data.segments}
        return Problem.of(x=data.x, y=data.y, **named, constants=constants, held=held)

    def heads_as_tokens(self, data: D, weights: GivenWeights) -> list[HeadTokens]:
        """Each attention head as the layer `softmax(x W z)` on tokens, so that every max-margin question can be asked
        of it; none by default, as only the model knows its heads."""
        return []

    def tokens_of(self, data: Data, weights: GivenWeights, layer: int = 0, head: int = 0) -> HeadTokens:
        """One head as a layer on tokens, by its numbers from 0; an InputError of a model that does not name its heads.

        >>> import attnlab as al
        >>> tokens = al.data.sphere(n=6, T=3, d=4, seed=0)
        >>> model = al.models.MultiHead(heads=2)
        >>> run = al.descend(tokens, al.gd(0.1), model=model, init="gaussian", steps=10)
        >>> second = model.tokens_of(tokens, run.weights, head=1)
        >>> al.solve_margin(second.tokens, second.selected, throw=False).status.name
        'OPTIMAL'
        """
        layer, head = whole("layer", layer, 0), whole("head", head, 0)
        return one_head(self.heads_as_tokens(self.accepts(data), weights), layer, head, self)

    @property
    def margin_norm(self) -> Literal["frobenius", "nuclear"] | None:
        """The norm in which one attention layer with fixed token scores goes to a max-margin W: "frobenius" where W is
        trained, "nuclear" for K and Q. None, as usual, where there is no such theory; then no run is judged settled."""
        return None

    def tangent_kernel(
        self, weights: Weights, x: np.ndarray, other: np.ndarray | None, block: int
    ) -> np.ndarray | None:
        """The tangent kernel of tokens x with others (None: with themselves), where it is known without making
        gradients; else None. `block` bounds the numbers of an array."""
        return None

    # In the compiled program, on one trial.

    def forward(self, weights: Params, problem: Problem) -> Forward:
        """Outputs (n, ...) for all examples."""
        examples, axes = problem.examples()
        return Forward(jax.vmap(self.output, (None, axes))(weights, examples))

    def records(self, objective: Objective, seen: Seen) -> Params:
        """Metrics of one trial beside `loss`, `log_loss`, `log_gradient_norm` and `step_length`.

        | name | meaning |
        |---|---|
        | `norm`, `norm_NAME` | Euclidean norm of all trained weights, and of each |
        | `moved`, `moved_NAME` | the same of their way from the start; in portions not of each |
        | `top_attention` | mean largest weight of the last softmax; not in runs by batches |
        | `accuracy` | share of examples whose label is that of the output, of losses that know classes |
        | `distance_NAME`, `cosine_WEIGHT_NAME` | from each target, over all weights and by weight |
        """
        weights = objective.weights(seen.params, seen.problem)
        trained = [name for name in weights if name not in objective.frozen]
        # Networks of many weights are of ordinary scale, and their programs long enough.
        length = norm_of if seen.portion is None else norm
        norms = {name: length(weights[name]) for name in trained}
        moved = {name: length(weights[name] - seen.compared.start[name]) for name in trained}
        metrics = {
            "norm": length(jnp.stack(list(norms.values()))),
            **{f"norm_{name}": size for name, size in norms.items()},
            "moved": length(jnp.stack(list(moved.values()))),
        }
        if seen.portion is None:
            metrics |= {f"moved_{name}": size for name, size in moved.items()}
        if seen.forward.attention.size:
            metrics["top_attention"] = jnp.mean(jnp.max(seen.forward.attention, axis=-1))
        accuracy = objective.loss.accuracy(seen.forward.outputs, seen.problem.y)
        if accuracy is not None:
            metrics["accuracy"] = accuracy
        for name, target in seen.targets.items():
            away = [norm_of(weights[key] - value) for key, value in target.items()]
            metrics[f"distance_{name}"] = norm_of(jnp.stack(away))
            for key, value in target.items():
                product = jnp.sum(weights[key] * value) / (norm_of(value) * norm_of(weights[key]))
                metrics[f"cosine_{key}_{name}"] = product
        return metrics

    def test_records(self, loss: Loss, outputs: Array, y: Array) -> Params:
        """Metrics of one trial on its test examples: `test_loss`, and `test_accuracy` of losses that know classes."""
        metrics = {"test_loss": loss.objective(outputs, y)}
        accuracy = loss.accuracy(outputs, y)
        return metrics if accuracy is None else metrics | {"test_accuracy": accuracy}

    def view(self, weights: Params, problem: Problem, forward: Forward) -> NamedTuple:
        """What a user's own metrics see."""
        return View(weights, problem.x, forward.outputs, forward.attention, forward.hidden, problem.y)

    # What records compare with.

    def compared(self, data: D, prepared: Prepared, start: Weights, track: ArrayLike | None) -> NamedTuple | np.ndarray:
        """What the records of a run compare with; `track` is that of `al.descend`."""
        if track is not None:
            raise InputError(message(f"`track` is not for {self!r}.", "metrics= takes your own"))
        return Compared(start)

    def tested(self, data: D, loss: Loss, weights: Weights, test: Data) -> Prepared:
        """The model on other examples, of the sizes of the data."""
        other = self.accepts(test, "test")
        if type(other) is not type(data) or (other.trials, other.T, other.d) != (data.trials, data.T, data.d):
            raise InputError(message(f"`test` is {test!r}; wanted data with the T, d and trials of {data!r}."))
        with told_of("test"):
            prepared = self.prepare(other, loss, weights, held=False)
            prepared.check_loss()
        return prepared

    def targets(self, data: D, targets: Targets | None, start: Weights) -> Directions:
        """What records compare the weights with, by name of the target and of the weight."""
        if targets is None:
            return {}
        names = set(start)
        if not isinstance(targets, Mapping):
            raise InputError(message(f"`targets` is {shown(targets)}; wanted weights by name, or a dict of such."))
        named = cast(Mapping[str, GivenWeights], {"target": targets} if set(targets) == names else targets)
        return {str(name): self.check(data, given, f"targets[{name!r}]") for name, given in named.items()}

    def for_flow(self) -> Model[D]:
        """The same, made fit to be followed by gradient flow: with rounded kinks, say."""
        return self

    def directly(self) -> Model[D]:
        """The same, held by its weights and not by their coordinates in a span."""
        return self

    def random_points(
        self, problem: Any, shapes: Shapes, trial: int, rng: np.random.Generator, count: int
    ) -> np.ndarray:
        """Random parameters of one trial as unit vectors (count, size), from which a search may start."""
        parts = [unit_rows(rng.standard_normal((count, math.prod(shape)))) for _, shape in shapes]
        return unit_rows(np.concatenate(parts, axis=1))

    def as_shown(self, array: np.ndarray, data: D, axis: int) -> np.ndarray:
        """An array with an axis of queries as results show it; one layer leaves out the axis of a single query."""
        return array

    def settled(self, data: D, isotropic: bool) -> Model[D]:
        """The same with every choice made that it leaves to the data, as the record of a run names it."""
        return self

    def describe(self) -> dict[str, Any]:
        """What the model is known by in the record of a run: its class, its settings, and its code if it is yours."""
        about: dict[str, Any] = {"class": type(self).__qualname__}
        if is_dataclass(self):
            about |= {field.name: getattr(self, field.name) for field in fields(self)}
        code = _code_of(type(self))
        return about | ({"code": code} if code else {})


def _code_of(kind: type) -> dict[str, Any]:
    """The functions and constants of a user's own class, and of the classes of theirs that it is made from."""
    code: dict[str, Any] = {}
    for parent in reversed(kind.__mro__):
        if parent.__module__.split(".")[0] in ("attnlab", "builtins", "abc", "typing"):
            continue
        public = {name: value for name, value in vars(parent).items() if not name.startswith("__")}
        named = {name: value for name, value in public.items() if name != "_abc_impl"}
        code |= {name: value.fget if isinstance(value, property) else value for name, value in named.items()}
    return code


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows divided by their lengths; zero rows stay."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)
