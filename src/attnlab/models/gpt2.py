"""`Gpt2`: decoders of text in the layout of GPT-2, where a token sees itself and those before it."""

from __future__ import annotations

import os
from typing import ClassVar, Self

import jax.numpy as jnp
from jax import Array

from attnlab.models.checkpoint import fresh_head, read_gpt2
from attnlab.models.model import Weight, Weights
from attnlab.models.problem import Example
from attnlab.models.scaled import Params
from attnlab.models.text import Activation, Pool, TextTransformer, positions_of
from attnlab.models.textparts import Parts, norm_shapes, normal, parts_of


class Gpt2(TextTransformer):
    """A causal transformer on tokens of text; norms come before attention and MLP, and one after all layers.

    Args:
        classes: outputs, for the loss "cross_entropy"; None for one number.
        vocabulary: tokens in the table.
        dim, depth, heads, mlp: numbers of a token, layers, heads of a layer, hidden neurons of a layer.
        positions: the longest sequence.
        pool: what the head sees: the last token that is there ("last"), or the mean of those that are there ("mean").
        dropout: share of numbers left out in training: of the embedding, attention, what attention and MLP add, and
            what the head sees.
        activation: "gelu_tanh", "gelu" or "relu".
        eps: added to variances in norms.
        active, fixed: see `Bert`.

    Random weights are N(0, 0.02^2), shifts are zero.

    >>> import attnlab as al
    >>> data = al.Sequences(ids=[[3, 1, 4], [1, 5, 0]], lengths=[3, 2], y=[0, 1])
    >>> model = Gpt2(classes=2, vocabulary=6, dim=8, depth=1, heads=2, mlp=8)
    >>> model.outputs(data, model.initial(data)).shape
    (2, 2)
    """

    norm_first: ClassVar[bool] = True
    causal: ClassVar[bool] = True
    pools: ClassVar[tuple[Pool, ...]] = ("last", "mean")

    pool: Pool = "last"
    activation: Activation = "gelu_tanh"
    eps: float = 1e-5

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        classes: int | None = 2,
        pool: Pool = "last",
        dropout: float = 0.0,
        active: int | tuple[tuple[int, ...], ...] | None = None,
        frozen: Parts = (),
        seed: int = 0,
    ) -> tuple[Self, Weights]:
        """Pretrained weights, and the model that they are of, with a fresh head; see `Bert.load`."""
        config, weights = read_gpt2(folder)
        model = cls(classes=classes, pool=pool, dropout=dropout, active=active, **config)
        weights |= fresh_head(model.all_shapes(), seed)
        return model.freeze(weights, *parts_of(frozen))

    def embedding_shapes(self) -> dict[str, Weight]:
        """Tables of tokens and positions."""
        return {"tokens": normal(self.vocabulary, self.dim), "positions": normal(self.positions, self.dim)}

    def pooling_shapes(self) -> dict[str, Weight]:
        """The last norm."""
        return norm_shapes("last_", self.dim)

    def embedded(self, every: Params, example: Example) -> Array:
        """The sum of token and position, (T, dim)."""
        assert example.ids is not None
        tokens = jnp.asarray(every["tokens"])[example.ids]
        tokens = tokens + jnp.asarray(every["positions"])[positions_of(example.mask, tokens.shape[0])]
        return self._dropped(tokens, example.key, 10 * self.depth)

    def _pooled(self, every: Params, tokens: Array, mask: Array | None, key: Array | None) -> Array:
        features = super()._pooled(every, self.normed(tokens, every, "last_"), mask, key)
        return self._dropped(features, key, 10 * self.depth + 1)
