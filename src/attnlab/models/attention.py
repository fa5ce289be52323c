"""`Attention`: one layer with one head, `softmax(x W z)`, the model of *Transformers as Support Vector Machines*."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from attnlab.checks import enough_memory, finite_array, flag, instance, number, one_of, shown, whole
from attnlab.data.directions import unit
from attnlab.data.families import START_STREAM, Seed, each_trial, start_seed
from attnlab.data.selection import token_numbers
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.engine import Engine, choose_engine
from attnlab.models.extremes import logits_overflow, prepared
from attnlab.models.frame import make_frame
from attnlab.models.functions import check_functions
from attnlab.models.heads import Head, HeadLike, Linear, as_head
from attnlab.models.headtokens import HeadTokens
from attnlab.models.layer import Layer
from attnlab.models.layer_problem import LayerProblem
from attnlab.models.losses import Loss, LossLike
from attnlab.models.model import (
    COPIES,
    Data,
    Init,
    Model,
    Shapes,
    Targets,
    Weight,
    Weights,
    stacked,
    unit_rows,
)
from attnlab.models.powers import of_one_scale
from attnlab.models.precision import in_float64
from attnlab.models.problem import Example, Prepared
from attnlab.models.scaled import GivenWeights, Params, Tree
from attnlab.models.softmax import softmax

STARTS = ("uniform", "gaussian", "zeros")


class Attention(Model[Tokens]):
    """`h(x^T softmax(x W z))`, with W itself trained, or W = K Q^T.

    Args:
        parameterization: "W" or "KQ".
        head: "linear" (v of the tokens), "relu-sum", a head of `attnlab.models`, or a function of one output.
        width: m, columns of K and Q (default d).
        train_head: also train the linear head, from zero, as weight u.
        engine: "direct" holds W as a matrix; "kernel" holds its coordinates in the span of the rows x z^T, in which it
            moves, so that a step costs the same whatever d is. Both take the same steps, to rounding; "auto" chooses
            the cheaper by the shapes.

    >>> import attnlab as al
    >>> tokens = al.data.two_tokens()
    >>> Attention().attention(tokens, {"W": [[3.0, 0.0], [0.0, 0.0]]}).round(3).tolist()
    [[0.953, 0.047]]
    """

    aligns: ClassVar[bool] = True
    single: ClassVar[bool] = False
    portion: ClassVar[int | None] = None
    parameterization: Literal["W", "KQ"] = "W"
    head: HeadLike = "linear"
    width: int | None = None
    train_head: bool = False
    engine: Engine = "auto"

    def __post_init__(self) -> None:
        one_of("parameterization", self.parameterization, ("W", "KQ"))
        one_of("engine", self.engine, ("auto", "direct", "kernel"))
        object.__setattr__(self, "head", as_head(self.head))
        flag("train_head", self.train_head)
        if self.train_head and not self.is_linear:
            raise InputError(message(f"`train_head` needs the linear head; this head is {self.the_head.name!r}."))
        if self.width is not None:
            object.__setattr__(self, "width", whole("rank", self.width))
            if self.parameterization == "W":
                raise InputError(
                    message("`rank` bounds the width of K and Q; there is none with parameterization='W'.")
                )

    @property
    def the_head(self) -> Head:
        """The head as an object."""
        return as_head(self.head)

    @property
    def is_linear(self) -> bool:
        """Is the head v . o?"""
        return isinstance(self.head, Linear)

    @property
    def floor_is_known(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Other heads than the linear one may prefer mixtures of tokens to any one token."""
        return self.is_linear

    @property
    def names(self) -> tuple[str, ...]:
        """Of the attention weights."""
        return ("W",) if self.parameterization == "W" else ("K", "Q")

    @classmethod
    def of_weights(cls, weights: GivenWeights, head: HeadLike = "linear") -> Attention:
        """The layer that weights belong to: an array is W; a dict may hold K and Q, and the head vector u."""
        named = weights if isinstance(weights, Mapping) else {"W": weights}
        return cls("KQ" if "K" in named else "W", head, train_head="u" in named)

    # Data and weights, with NumPy.

    def accepts(self, data: object, name: str = "tokens") -> Tokens:
        """Tokens."""
        return instance(name, data, Tokens, "al.Tokens", "al.Tokens(x=, z=, y=, v=)")

    def check_trainable(self, data: Tokens) -> None:
        """Data may be of any scale."""

    def shapes(self, data: Tokens) -> dict[str, Weight]:
        """W, or K and Q, and u."""
        columns = data.d if self.width is None else self.width
        shapes = {name: Weight((data.d, columns), "uniform") for name in self.names}
        return shapes | ({"u": Weight((data.d,), "zeros")} if self.train_head else {})

    def start(self, data: Tokens, init: Init, scale: float, seed: Seed) -> Weights:
        """ "uniform" (None; entries in +-scale/sqrt(d)), "gaussian" (deviation scale), "zeros", an array, or a dict."""
        scale, seed = number("init_scale", scale, least=0), start_seed(seed, data.trials)
        law = "uniform" if init is None else init
        if not isinstance(law, str):
            return self._given(law, data)
        if law not in STARTS:
            raise InputError(
                message(f"`init` is {shown(init)}; wanted 'uniform', 'gaussian', 'zeros', an array, or a dict.")
            )
        if law == "zeros" and self.parameterization == "KQ":
            raise InputError(
                message(
                    "`init='zeros'` with (K, Q): zero is a stationary point, training would never move.",
                    "init={'K': 0.1 * np.random.default_rng(0).standard_normal((d, d)), 'Q': np.zeros((d, d))}",
                )
            )
        shape = self.shapes(data)[self.names[0]].shape
        size = COPIES * float(len(self.names) * np.prod(shape, dtype=np.float64)) * (data.trials or 1)
        enough_memory(size, f"Weights of {' and '.join(self.names)} and their gradients")

        def draw(rng: np.random.Generator) -> Weights:
            weights = {}
            for name in self.names:
                if law == "zeros":
                    weights[name] = np.zeros(shape)
                elif law == "gaussian":
                    weights[name] = scale * rng.standard_normal(shape)
                else:
                    weights[name] = scale * rng.uniform(-1.0, 1.0, shape) / np.sqrt(data.d)
            return weights | ({"u": np.zeros(data.d)} if self.train_head else {})

        with np.errstate(over="ignore"):
            weights = stacked(each_trial(draw, seed, data.trials, START_STREAM), data.trials)
        if not all(np.isfinite(weight).all() for weight in weights.values()):
            raise InputError(message(f"`init_scale` is {scale:g}; random weights of that size overflow."))
        return weights

    def _given(self, init: GivenWeights, data: Tokens) -> Weights:
        weights = check_weights(init, data, "init")
        if set(weights) - {"u"} != set(self.names):
            names = ", ".join(self.names)
            raise InputError(message(f"`init` gives {sorted(weights)}; this parameterization trains {names}."))
        if "u" in weights and not self.train_head:
            raise InputError(message("`init` gives `u`, but the head is not trained.", "train_head=True"))
        if self.width is not None and weights["K"].shape[-1] != self.width:
            raise InputError(message(f"`init` has width {weights['K'].shape[-1]}, but `rank` is {self.width}."))
        if "K" in weights and not (weights["K"].any() or weights["Q"].any()):
            raise InputError(message("`init` has K = Q = 0, a stationary point: training would never move."))
        if self.train_head and "u" not in weights:
            weights["u"] = np.zeros(weights[self.names[0]].shape[:-1])
        return weights

    def check(self, data: Tokens, weights: GivenWeights, name: str = "weights") -> Weights:
        """Weights as float64, with the trial axis of the data if they have one; an array is W."""
        return check_weights(weights, data, name)

    def prepare(
        self,
        data: Tokens,
        loss: Loss,
        start: Weights,
        *,
        held: bool = True,
        isotropic: bool = False,
        matrices: bool = False,
    ) -> Prepared:
        """The layer on its data; of extreme scale too, and W by its coordinates where that is cheaper."""
        margin_loss = loss.of_margins(data.n)
        head = self.the_head
        check_functions(data, margin_loss, head)
        layer = Layer(self.parameterization, margin_loss, head.apply, self.is_linear, head.quadratic, "u" in start)
        objective, problem = prepared(layer, self._with_head_vector(data, start), head, start)
        refuse_overflow(problem, start, at_start=held)
        if not held or self.chosen_engine(data, isotropic) == "direct":
            return Prepared(objective, problem, start, dict)
        alone, first = (problem, start) if data.trials is not None else _with_axis((problem, start))
        frame, coordinates = make_frame(alone.x, alone.z, alone.visible, first["W"])
        # Metrics of a user's own may ask for W; without them the way back to it, most of the memory, is left out.
        problem = alone._replace(frame=frame if matrices else frame.without_matrices())

        def back(params: Mapping[str, np.ndarray]) -> Weights:
            return {**params, "W": frame.matrices(params["W"])}

        def rows(targets: dict[str, Any]) -> dict[str, Any]:
            return {name: frame.rows_of(target) if target.ndim == 3 else target for name, target in targets.items()}

        params = {**first, "W": coordinates}
        return Prepared(objective, problem, params, back, exact=False, as_targets=rows, batched=True)

    def chosen_engine(self, data: Tokens, isotropic: bool) -> Literal["direct", "kernel"]:
        """The engine to use, by the shapes alone: same configuration, same numbers."""
        return choose_engine(self.engine, data, isotropic, self.parameterization)

    def settled(self, data: Tokens, isotropic: bool) -> Attention:
        """The same with its engine chosen, as the record of a run names it."""
        return replace(self, engine=self.chosen_engine(data, isotropic))

    def heads_as_tokens(self, data: Tokens, weights: GivenWeights) -> list[HeadTokens]:
        """The layer itself; tokens are scored by the trained head where there is one."""
        checked = self.check(data, weights)
        W = checked["W"] if "W" in checked else checked["K"] @ np.swapaxes(checked["Q"], -1, -2)
        scored_by = checked.get("u", np.zeros(data.d) if data.v is None else data.v)
        return [HeadTokens("W", replace(data, v=scored_by), W)]

    @property
    def margin_norm(self) -> Literal["frobenius", "nuclear"] | None:
        """By the parameterization, for the linear head of the data."""
        if self.train_head or not self.is_linear:
            return None
        return "frobenius" if self.parameterization == "W" else "nuclear"

    def directly(self) -> Attention:
        """The same, with W held as a matrix."""
        return replace(self, engine="direct")

    def random_points(
        self, problem: LayerProblem, shapes: Shapes, trial: int, rng: np.random.Generator, count: int
    ) -> np.ndarray:
        """Combinations of `x_t z^T`: what is orthogonal to all of them changes no logit."""
        alone = jax.tree.map(lambda array: array[trial], (problem.x, problem.z, problem.powers))
        (x, _), (z, _) = of_one_scale(*alone)
        x, z = x / max(np.abs(x).max(), 1e-300), z / max(np.abs(z).max(), 1e-300)
        n, T, d = x.shape
        if self.parameterization == "W":
            mixed = np.einsum("sntk,ntd->snkd", rng.standard_normal((count, n, T, z.shape[1])), x)
            return unit_rows(np.einsum("snkd,nke->sde", mixed, z).reshape(count, d * d))
        columns = dict(shapes)["K"][-1]
        K = np.einsum("sjm,jd->sdm", rng.standard_normal((count, n * T, columns)), x.reshape(-1, d))
        Q = np.einsum("sjm,jd->sdm", rng.standard_normal((count, n * z.shape[1], columns)), z.reshape(-1, d))
        halves = [unit_rows(half.reshape(count, -1)) for half in (K, Q)]
        return unit_rows(np.concatenate(halves, axis=1))

    def constants(self, data: Tokens, weights: Weights) -> dict[str, np.ndarray]:
        """Those of the head."""
        return self.the_head.constants(self._with_head_vector(data, weights))

    def _with_head_vector(self, data: Tokens, weights: Weights) -> Tokens:
        """Scores need some `v`; where the trained head is the only one, it is that."""
        if data.v is not None or "u" not in weights or not self.is_linear:
            return data
        return replace(data, v=weights["u"])

    # On one example, and on all.

    def output(self, weights: Params, example: Example) -> Array:
        """h(o) of one example, for each of its queries."""
        W = weights["W"] if "W" in weights else weights["K"] @ weights["Q"].T
        logits = jnp.einsum("td,de,...e->...t", example.x, W, example.z)
        if example.mask is not None:
            logits = jnp.where(example.mask, logits, -jnp.inf)
        attended = softmax(logits) @ example.x
        if "u" in weights:
            return attended @ weights["u"]
        if self.is_linear:
            assert example.v is not None
            return attended @ example.v
        constants = example.constants or {}
        return jnp.vectorize(lambda o: self.the_head.apply(constants, o), signature="(d)->()")(attended)

    def outputs(self, data: Data, weights: GivenWeights) -> np.ndarray:
        """h(o) for every query, (n,) or (n, K)."""
        return self.as_shown(super().outputs(data, weights), self.accepts(data), -1)

    def attention(self, data: Data, weights: GivenWeights) -> np.ndarray:
        """softmax(x W z), (n, T) or (n, K, T); exact zeros where masked."""
        return self.as_shown(super().attention(data, weights), self.accepts(data), -2)

    def features(self, data: Data, weights: GivenWeights) -> dict[str, np.ndarray]:
        """The gradient of every output by the weights, (n, d, d), or (n, K, d, d) with a query axis."""
        slopes, accepted = super().features(data, weights), self.accepts(data)
        return {name: self.as_shown(slope, accepted, 1) for name, slope in slopes.items()}

    @in_float64
    def excess(
        self, data: Tokens, weights: GivenWeights, loss: LossLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sign and log magnitude of the objective less its value with all attention on the best tokens."""
        prepared = self.at(data, weights, loss)
        sign, log_size = _excess(prepared.objective, prepared.params, prepared.problem, data.trials is not None)
        return np.asarray(sign), np.asarray(log_size)

    def for_flow(self) -> Attention:
        """The same; with a trained head it is not followed."""
        if self.train_head:
            raise InputError(message("`train_head` is not for `flow`, which follows attention at a fixed head."))
        return self

    # What records compare with.

    def compared(self, data: Tokens, prepared: Prepared, start: Weights, track: ArrayLike | None) -> np.ndarray:
        """The tokens whose attention is recorded, with a query axis: those given, or the best-scoring ones."""
        if track is None:
            if self.train_head and data.v is None:
                raise InputError(message("These tokens have no `v` to tell the best token by.", "pass `track=`"))
            reference = np.asarray(prepared.problem.reference)
            return reference[0] if prepared.batched and data.trials is None else reference
        given = token_numbers("track", track, data)
        return np.expand_dims(given, -1) if data.K is None else given

    def targets(self, data: Tokens, targets: Targets | None, start: Weights) -> dict[str, np.ndarray]:
        """Unit directions of W, or of u."""
        if targets is None:
            return {}
        named = dict(targets) if isinstance(targets, Mapping) else {"target": targets}
        for name in named:
            if not isinstance(name, str):
                raise InputError(message(f"`targets` has the name {shown(name)}; wanted names that are text."))
        return {name: self._direction(data, f"targets[{name!r}]", given) for name, given in named.items()}

    def _direction(self, data: Tokens, name: str, given: GivenWeights) -> np.ndarray:
        """A unit matrix, or a unit vector for the trained head, with the trial axis of the data."""
        value = finite_array(name, cast(ArrayLike, given))
        shapes = [(data.d, data.d)] + ([(data.d,)] if self.train_head else [])
        fits = [shape for shape in shapes if value.shape in (shape, (data.trials, *shape))]
        if not fits:
            wanted = " or ".join(map(str, shapes))
            per_trial = "" if data.trials is None else ", or that per trial"
            raise InputError(message(f"`{name}` has shape {value.shape}; wanted {wanted}{per_trial}."))
        shape = fits[0]
        if not value.any(tuple(range(value.ndim - len(shape), value.ndim))).all():
            raise InputError(message(f"`{name}` is zero, or of some trial; wanted a direction."))
        lead = () if data.trials is None else (data.trials,)
        every = np.broadcast_to(value, lead + shape)
        as_matrix = every if len(shape) == 2 else every[..., None, :]
        return unit(np, as_matrix).reshape(every.shape)

    def as_shown(self, array: np.ndarray, data: Tokens, axis: int) -> np.ndarray:
        """Without the axis of queries where there is a single one."""
        return array if data.K is not None else np.squeeze(array, axis)

    def describe(self) -> dict[str, Any]:
        """What the layer is known by in the record of a run."""
        return super().describe() | {"head": self.the_head}


def check_weights(weights: GivenWeights, tokens: Tokens, argument: str = "weights") -> Weights:
    """Weights by name, W or K and Q, perhaps with u: finite, of right shape, with the trial axis of `tokens`."""
    instance("tokens", tokens, Tokens, "al.Tokens", "al.Tokens(x=, z=, y=, v=)")
    named = dict(weights) if isinstance(weights, Mapping) else {"W": weights}
    if set(named) - {"u"} not in ({"W"}, {"K", "Q"}):
        given = sorted(map(str, named))
        raise InputError(
            message(f"`{argument}` are named {given}; wanted W, or K and Q, perhaps with the head vector u.")
        )
    lead = () if tokens.trials is None else (tokens.trials,)
    arrays = {name: finite_array(name, given) for name, given in named.items()}
    columns = arrays["K"].shape[-1] if "K" in arrays and arrays["K"].ndim else 0
    shapes = {"W": (tokens.d, tokens.d), "K": (tokens.d, columns), "Q": (tokens.d, columns), "u": (tokens.d,)}
    checked = {}
    for name, value in arrays.items():
        wanted = shapes[name]
        if value.shape not in (wanted, lead + wanted):
            per_trial = f", or {lead + wanted}" if lead else ""
            raise InputError(message(f"`{name}` has shape {value.shape}; wanted {wanted}{per_trial}."))
        if 0 in value.shape:
            raise InputError(message(f"`{name}` has shape {value.shape}; wanted at least one column."))
        checked[name] = np.array(np.broadcast_to(value, lead + wanted))
    return checked


def refuse_overflow(problem: LayerProblem, weights: Weights, *, at_start: bool) -> None:
    """Refuse weights at which logits overflow; at the start of a run only if they do in all trials, as the others
    tell by their status."""
    trials = logits_overflow(problem, weights)
    if trials is None or not (np.all(trials) if at_start else np.any(trials)):
        return
    where, hint = "`weights`", "smaller weights"
    if at_start:
        where, hint = "`init`", "smaller tokens or queries, a smaller `init_scale`, or init='zeros'"
    raise InputError(message(f"The logits x W z of `tokens` at {where} overflow: some are beyond 1.8e308.", hint))


@partial(jax.jit, static_argnums=(0, 3))
def _excess(layer: Layer, params: Params, problem: LayerProblem, batch: bool) -> tuple[Array, Array]:
    def one(params: Params, problem: LayerProblem) -> tuple[Array, Array]:
        return layer.excess(problem, layer.evaluate(params, problem))

    return (jax.vmap(one) if batch else one)(params, problem)


def _with_axis(tree: Tree) -> Tree:
    return jax.tree.map(lambda array: np.asarray(array)[None], tree)
