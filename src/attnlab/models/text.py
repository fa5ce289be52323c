"""`TextTransformer`: what transformers on tokens of text have in common; see `Bert` and `Gpt2`.

Tokens are rows of a table, with positions added. A layer adds attention and an MLP to them. Of one head
`q = W_Q h + b_Q`, `k = W_K h + b_K`, attention is `softmax(q k^T / sqrt(d_h))`, where h is what enters attention: the
tokens themselves (norms come after, as in BERT) or their norm (norms come before, as in GPT-2).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.checks import instance, no_batch, number, one_of, shown, whole
from attnlab.data.sequences import Sequences
from attnlab.data.tokenizer import check_vocabulary
from attnlab.errors import InputError, message
from attnlab.models.fixed import Fixed
from attnlab.models.headtokens import HeadTokens, head_matrix, self_attention_tokens
from attnlab.models.layers import dropped, layer_norm, saturating_softmax
from attnlab.models.model import Model, Weight, Weights
from attnlab.models.precision import in_float64
from attnlab.models.problem import Example, Forward, Problem
from attnlab.models.scaled import GivenWeights, Params
from attnlab.models.textparts import active_heads, layer_numbers, linear, norm_shapes, normal
from attnlab.models.textstates import LayerStates, joined_states

Pool = Literal["first", "last", "mean"]
Activation = Literal["gelu", "gelu_tanh", "relu"]
ACTIVATIONS = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}
MOST_SIZE = 10**7
MOST_DEPTH = 200
TOGETHER = 64  # sequences whose states are computed at a time


class TextTransformer(Model[Sequences]):
    """A transformer that reads the ids of tokens. `Bert` and `Gpt2` are such."""

    usual_loss: ClassVar[str] = "cross_entropy"
    portion: ClassVar[int | None] = 64
    norm_first: ClassVar[bool]  # are norms before attention and MLP, or after?
    causal: ClassVar[bool]  # does a token see only itself and those before?
    pools: ClassVar[tuple[Pool, ...]]

    classes: int | None
    vocabulary: int
    dim: int = 64
    depth: int = 2
    heads: int = 4
    mlp: int = 256
    positions: int = 512
    pool: Pool = "first"
    dropout: float = 0.0
    activation: Activation = "gelu"
    eps: float = 1e-12
    active: int | tuple[tuple[int, ...], ...] | None = None
    fixed: Fixed | None = None

    def __post_init__(self) -> None:
        for name in ("vocabulary", "dim", "heads", "mlp", "positions"):
            object.__setattr__(self, name, whole(name, getattr(self, name), most=MOST_SIZE))
        object.__setattr__(self, "depth", whole("depth", self.depth, most=MOST_DEPTH))
        if self.classes is not None:
            object.__setattr__(self, "classes", whole("classes", self.classes, 2, MOST_SIZE))
        if self.dim % self.heads:
            raise InputError(message(f"`heads` is {self.heads}, which does not divide `dim` = {self.dim}."))
        one_of("pool", self.pool, self.pools)
        one_of("activation", self.activation, tuple(ACTIVATIONS))
        number("dropout", self.dropout, least=0, below=1)
        number("eps", self.eps, above=0, most=1)
        if self.fixed is not None:
            instance("fixed", self.fixed, Fixed, "weights that `model.freeze` holds")
        if self.active is not None:
            object.__setattr__(self, "active", active_heads(self.active, self.depth, self.heads))

    # Data and weights.

    @property
    def width(self) -> int:
        """Numbers of a query of one head."""
        return self.dim // self.heads

    @property
    def draws(self) -> bool:
        """Dropout does."""
        return self.dropout > 0

    def accepts(self, data: object, name: str = "data") -> Sequences:
        """Sequences with ids of tokens, of a tokenizer that goes with these weights."""
        wanted = "al.Sequences with ids"
        texts = instance(name, data, Sequences, wanted, "texts.encode(tokenizer, length=32)")
        if texts.ids is None:
            raise InputError(
                message(f"`{name}` is {texts!r}; wanted {wanted} of tokens.", "texts.encode(tokenizer, length=32)")
            )
        check_vocabulary(name, texts, self.vocabulary)
        if self.positions < texts.T:
            problem = f"`{name}` has sequences of {texts.T} tokens; the model has {self.positions} positions."
            raise InputError(message(problem, f"texts.encode(tokenizer, length={self.positions})"))
        return texts

    def shapes(self, data: Sequences) -> dict[str, Weight]:
        """Of the weights by name, less those that are fixed; those of layer l, from 0, begin with `layerl_`."""
        held = {} if self.fixed is None else self.fixed.arrays
        return {name: weight for name, weight in self.all_shapes().items() if name not in held}

    def all_shapes(self) -> dict[str, Weight]:
        """Of all weights, also of those that are fixed."""
        shapes = self.embedding_shapes()
        for layer in range(self.depth):
            shapes |= {f"layer{layer}_{name}": weight for name, weight in self._layer_shapes().items()}
        shapes |= self.pooling_shapes()
        if self.classes is None:
            return shapes | {"head_W": normal(self.dim), "head_b": Weight((), "zeros")}
        return shapes | linear("head_", self.classes, self.dim)

    @abstractmethod
    def embedding_shapes(self) -> dict[str, Weight]:
        """Of tables and what else makes tokens."""

    def pooling_shapes(self) -> dict[str, Weight]:
        """Of what stands between the last layer and the head."""
        return {}

    def _layer_shapes(self) -> dict[str, Weight]:
        shapes: dict[str, Weight] = {}
        for name in ("Q", "K", "V", "O"):
            shapes |= {name: normal(self.dim, self.dim), f"{name}_b": Weight((self.dim,), "zeros")}
        shapes |= norm_shapes("", self.dim)
        shapes |= linear("mlp1_", self.mlp, self.dim)
        shapes |= linear("mlp2_", self.dim, self.mlp)
        return shapes | norm_shapes("mlp_", self.dim)

    def freeze(self, weights: GivenWeights, *parts: str | int) -> tuple[Self, Weights]:
        """The model with some weights held fixed, and the others, which are trained.

        Fixed weights cost no gradient and no memory of the step rule. Below the first part that is trained nothing is
        computed on the way back.

        Args:
            weights: all weights of the model by name; what it holds already may be left out.
            parts: numbers of layers, "embeddings", "pooler" or "head"; "body" for all but the head.

        >>> import attnlab as al
        >>> texts = al.data.made_up_texts(20, seed=0)
        >>> data = texts.encode(al.data.Tokenizer.of_texts(texts))
        >>> model = al.models.Bert(classes=2, vocabulary=100, dim=8, heads=2, mlp=8)
        >>> model, weights = model.freeze(model.initial(data), "body")
        >>> sorted(weights), sorted(model.whole(weights)) == sorted(model.all_shapes())
        (['head_W', 'head_b'], True)
        """
        every = self.whole(instance("weights", weights, Mapping, "weights by name", "model.initial(data)"))
        chosen = {name for part in parts for name in self._names_of(part)}
        fixed = {name: array for name, array in every.items() if name in chosen}
        if len(fixed) == len(every):
            raise InputError(message(f"`parts` {parts} leave nothing to train.", "model.freeze(weights, 'body')"))
        held = Fixed.of(fixed) if fixed else None
        return replace(self, fixed=held), {name: array for name, array in every.items() if name not in chosen}

    def whole(self, weights: Mapping[str, Any]) -> Weights:
        """All weights: those given, and those that are fixed."""
        held = {} if self.fixed is None else self.fixed.arrays
        every = {**held, **weights}
        shapes = self.all_shapes()
        if set(every) != set(shapes):
            odd = sorted(set(every) ^ set(shapes))
            raise InputError(message(f"`weights` lack, or have too many: {', '.join(odd[:5])}.", "model.initial(data)"))
        for name, weight in shapes.items():
            if np.shape(every[name]) != weight.shape:
                given = f"`weights[{name!r}]` has shape {np.shape(every[name])}"
                raise InputError(message(f"{given}; wanted {weight.shape}."))
        return {name: np.asarray(every[name]) for name in shapes}

    def _names_of(self, part: str | int) -> list[str]:
        """The weights of a part of the model."""
        names = list(self.all_shapes())
        layered = [name for name in names if name.startswith("layer")]
        head = [name for name in names if name.startswith("head_")]
        pooler = list(self.pooling_shapes())
        parts = {
            "embeddings": list(self.embedding_shapes()),
            "pooler": pooler,
            "head": head,
            "body": [name for name in names if name not in head],
        }
        if isinstance(part, str) and part in parts:
            return parts[part]
        wanted = f"a layer from 0 to {self.depth - 1}, or one of {', '.join(parts)}"
        if isinstance(part, str | bool):
            raise InputError(message(f"`parts` has {shown(part)}; wanted {wanted}."))
        layer = whole("parts", part, 0, self.depth - 1)
        return [name for name in layered if name.startswith(f"layer{layer}_")]

    def constants(self, data: Sequences, weights: Weights) -> dict[str, np.ndarray]:
        """Which heads work, (depth, heads), and the weights that are fixed: they enter as data."""
        held = {"active": self._works()} | ({} if self.fixed is None else dict(self.fixed.arrays))
        if data.trials is None:
            return held
        return {name: np.broadcast_to(array, (data.trials, *array.shape)) for name, array in held.items()}

    def _works(self) -> np.ndarray:
        works = np.ones((self.depth, self.heads))
        if self.active is not None:
            for layer, chosen in enumerate(active_heads(self.active, self.depth, self.heads)):
                works[layer] = np.isin(np.arange(self.heads), chosen)
        return works

    def compiled_as(self) -> Self:
        """The same, whichever heads work and whatever is fixed: these are data."""
        return replace(self, active=None, fixed=None)

    # In the compiled program, on one example.

    def output(self, weights: Params, example: Example) -> Array:
        """The logits of one text, (classes,), or one number."""
        every = self._every(weights, example)
        return self._head(every, self._features(every, example))

    def forward(self, weights: Params, problem: Problem) -> Forward:
        """Outputs for all examples; `hidden` is what the head sees, (n, dim)."""
        examples, axes = problem.examples()
        every = self._every(weights, examples)
        features = jax.vmap(self._features, (None, axes))(every, examples)
        return Forward(jax.vmap(self._head, (None, 0))(every, features), hidden=features)

    def _every(self, weights: Params, example: Example) -> dict[str, Any]:
        """All weights, and which heads work, in one precision."""
        held: Mapping[str, Any] = {"active": self._works()} if example.constants is None else example.constants
        precision = next(iter(weights.values())).dtype
        return {name: jnp.asarray(array, precision) for name, array in held.items()} | dict(weights)

    def _features(self, every: Params, example: Example) -> Array:
        """What the head sees of one text, (dim,)."""
        tokens, _ = self._run(every, example)
        return self._pooled(every, tokens, example.mask, example.key)

    def _head(self, every: Params, features: Array) -> Array:
        return jnp.asarray(every["head_W"]) @ features + every["head_b"]

    def _run(
        self, every: Params, example: Example, layers: Sequence[int] = ()
    ) -> tuple[Array, list[tuple[Array, ...]]]:
        """Tokens (T, dim) after all layers; and of some layers what enters attention, its queries and its keys."""
        tokens = self.embedded(every, example)
        visible = self._visible(example.mask, tokens.shape[0])
        seen = []
        for layer in range(self.depth):
            prefix = f"layer{layer}_"
            own = {name.removeprefix(prefix): w for name, w in every.items() if name.startswith(prefix)}
            own["active"] = every["active"][layer]
            if layer in layers:
                seen.append(self._asked(own, tokens))
            tokens = self._layer(own, tokens, visible, example.key, 10 * layer)
        return tokens, seen

    @abstractmethod
    def embedded(self, every: Params, example: Example) -> Array:
        """Tokens (T, dim) as they enter the first layer."""

    def _layer(self, own: Params, tokens: Array, visible: Array | None, key: Array | None, place: int) -> Array:
        """Tokens (T, dim) after attention and MLP."""
        tokens = tokens + self._dropped(self._attended(own, tokens, visible, key, place), key, place + 1)
        if not self.norm_first:
            tokens = self.normed(tokens, own, "")
        entering = self.normed(tokens, own, "mlp_") if self.norm_first else tokens
        hidden = ACTIVATIONS[self.activation](entering @ own["mlp1_W"].T + own["mlp1_b"])
        tokens = tokens + self._dropped(hidden @ own["mlp2_W"].T + own["mlp2_b"], key, place + 2)
        return tokens if self.norm_first else self.normed(tokens, own, "mlp_")

    def _attended(self, own: Params, tokens: Array, visible: Array | None, key: Array | None, place: int) -> Array:
        """What the heads that work add to the tokens (T, dim)."""
        h, queries, keys = self._asked(own, tokens)
        values = self._of_heads(own, "V", h)
        logits = jnp.einsum("htk,hsk->hts", queries, keys) / math.sqrt(self.width)
        if visible is not None:
            logits = jnp.where(visible, logits, -jnp.inf)
        attention = self._dropped(saturating_softmax(logits), key, place + 3)
        mixed = jnp.einsum("hts,hsk->thk", attention, values) * own["active"][:, None]
        return mixed.reshape(tokens.shape) @ own["O"].T + own["O_b"]

    def _asked(self, own: Params, tokens: Array) -> tuple[Array, Array, Array]:
        """What enters attention (T, dim), and the queries and keys of all heads (heads, T, d_h)."""
        h = self.normed(tokens, own, "") if self.norm_first else tokens
        return h, self._of_heads(own, "Q", h), self._of_heads(own, "K", h)

    def _of_heads(self, own: Params, name: str, h: Array) -> Array:
        every = h @ own[name].T + own[f"{name}_b"]
        return every.reshape(-1, self.heads, self.width).swapaxes(0, 1)

    def _visible(self, mask: Array | None, T: int) -> Array | None:
        """Which tokens each token sees, (T, T) or (T,); a token that only fills up sees itself, and is seen by none."""
        if not self.causal:
            return mask
        before = jnp.tril(jnp.ones((T, T), dtype=bool))
        return before if mask is None else before & (mask | jnp.eye(T, dtype=bool))

    def _pooled(self, every: Params, tokens: Array, mask: Array | None, key: Array | None) -> Array:
        """The first token, the last one or the mean of those that are there, (dim,)."""
        T = tokens.shape[0]
        visible = jnp.ones(T, dtype=bool) if mask is None else mask
        if self.pool == "mean":
            return jnp.sum(jnp.where(visible[:, None], tokens, 0.0), axis=0) / jnp.sum(visible)
        if self.pool == "first":
            return tokens[jnp.argmax(visible)]
        return tokens[T - 1 - jnp.argmax(visible[::-1])]

    def normed(self, tokens: Array, own: Params, prefix: str) -> Array:
        """Tokens after the layer norm of this name."""
        return layer_norm(tokens, own[f"{prefix}gain"], own[f"{prefix}shift"], self.eps)

    def _dropped(self, values: Array, key: Array | None, place: int) -> Array:
        return dropped(values, self.dropout, key, place)

    # For probing, with NumPy.

    @in_float64
    def states(
        self,
        data: Sequences,
        weights: GivenWeights,
        *,
        layers: Sequence[int] | None = None,
        precision: Literal["float64", "float32"] = "float64",
    ) -> list[LayerStates]:
        """What enters each attention layer, its queries and its keys, after biases, of every token of every text.

        Tokens that only fill up have states too, which nothing sees: leave them out by `data.mask`. Which heads are
        active changes what enters later layers; queries and keys of all heads are given.

        Args:
            data: encoded texts, one data set.
            weights: of the model, by name.
            layers: which layers, from 0; None for all.
            precision: what is computed in, and given.

        >>> import attnlab as al
        >>> texts = al.data.made_up_texts(20, seed=0)
        >>> data = texts.encode(al.data.Tokenizer.of_texts(texts), length=8)
        >>> model = al.models.Bert(classes=2, vocabulary=100, dim=8, heads=2, mlp=8)
        >>> first, second = model.states(data, model.initial(data))
        >>> first.h.shape, first.q.shape, first.W_Q.shape
        ((20, 8, 8), (20, 2, 8, 4), (2, 4, 8))
        """
        one_of("precision", precision, ("float64", "float32"))
        data = self.accepts(data)
        no_batch("data", data)
        checked = self.check(data, weights)
        chosen = tuple(range(self.depth)) if layers is None else layer_numbers(layers, self.depth)
        problem = self.problem(data, checked)
        typed = {name: np.asarray(array, precision) for name, array in checked.items()}
        rows = {name: np.asarray(array) for name, array in problem.rows().items()}
        size = min(TOGETHER, data.n)
        parts = []
        for begin in range(0, data.n, size):
            begin = min(begin, data.n - size)  # the last overlaps: one shape, one program
            few = problem._replace(**{name: array[begin : begin + size] for name, array in rows.items()})
            parts.append((begin, jax.tree.map(np.asarray, _states(self.compiled_as(), chosen, typed, few))))
        every = self.whole(checked)
        joined = [joined_states(place, parts, data.n) for place in range(len(chosen))]
        return [LayerStates.of(every, layer, self.heads, *states) for layer, states in zip(chosen, joined, strict=True)]

    def heads_as_tokens(self, data: Sequences, weights: GivenWeights) -> list[HeadTokens]:
        """Every head of every layer, of those that work, on the states that enter its layer.

        Labels are 1 and scores 0, as no token of a layer inside has any: selections and margins can be asked for, local
        optimality cannot.
        """
        works = self._works()
        heads = []
        for states in self.states(data, weights):
            tokens = self_attention_tokens(states.h, data.mask, causal=self.causal)
            for head in np.flatnonzero(works[states.layer]):
                W = head_matrix(states.W_Q[head], states.W_K[head], states.b_Q[head], self.width**-0.5)
                heads.append(HeadTokens(f"layer {states.layer} head {head}", tokens, W, states.layer, int(head)))
        return heads


@partial(jax.jit, static_argnums=(0, 1))
def _states(model: TextTransformer, layers: tuple[int, ...], weights: Params, problem: Problem) -> Any:
    """Of each layer what enters attention, queries and keys of all examples."""
    examples, axes = problem.examples()

    def of_one(every: Params, example: Example) -> list[tuple[Array, ...]]:
        return model._run(every, example, layers)[1]

    return jax.vmap(of_one, (None, axes))(model._every(weights, examples), examples)


def positions_of(mask: Array | None, T: int) -> Array:
    """How many tokens that are there stand before each, (T,): filling up, wherever it is, moves no token."""
    if mask is None:
        return jnp.arange(T)
    return jnp.maximum(jnp.cumsum(mask) - 1, 0)
