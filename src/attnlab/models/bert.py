"""`Bert`: encoders of text in the layouts of BERT, MiniLM, DistilBERT and RoBERTa."""

from __future__ import annotations

import os
from typing import ClassVar, Self

import jax.numpy as jnp
from jax import Array

from attnlab.checks import flag, whole
from attnlab.data.sequences import Sequences
from attnlab.errors import InputError, message
from attnlab.models.checkpoint import fresh_head, read_bert
from attnlab.models.model import Weight, Weights
from attnlab.models.problem import Example
from attnlab.models.scaled import Params
from attnlab.models.text import MOST_SIZE, Pool, TextTransformer, positions_of
from attnlab.models.textparts import Parts, linear, norm_shapes, normal, parts_of

PAIRS = 2  # texts of a pair


class Bert(TextTransformer):
    """A transformer encoder on tokens of text, all of which see each other; norms come after attention and MLP.

    Args:
        classes: outputs, for the loss "cross_entropy"; None for one number.
        vocabulary: tokens in the table.
        dim, depth, heads, mlp: numbers of a token, layers, heads of a layer, hidden neurons of a layer.
        positions: the longest sequence.
        pool: what the head sees: the first token ("first"), or the mean of those that are there ("mean").
        dropout: share of numbers left out in training: of the embedding, attention, what attention and MLP add, and
            what the head sees.
        activation: "gelu", "gelu_tanh" or "relu".
        eps: added to variances in norms.
        active: which heads work, for every layer a tuple of numbers from 0; or how many of the first in every layer.
            None for all. Others add nothing, and have no gradient.
        fixed: weights that are not trained, made by `model.freeze`.
        segments: texts of a pair that are told apart by a table of their own; 0 for none (DistilBERT).
        pooler: does the first token go through a dense layer and tanh before the head?

    Random weights are N(0, 0.02^2), shifts are zero.

    >>> import attnlab as al
    >>> texts = al.data.made_up_texts(60, seed=0)
    >>> data = texts.encode(al.data.Tokenizer.of_texts(texts), length=12)
    >>> model = Bert(classes=2, vocabulary=100, dim=16, depth=1, heads=2, mlp=16, positions=12)
    >>> run = al.descend(data, al.adam(0.01), model=model, batch=20, epochs=10, record=[0, 30], precision="float32")
    >>> bool(run.metrics["loss"][-1] < 0.7 * run.metrics["loss"][0])
    True
    """

    norm_first: ClassVar[bool] = False
    causal: ClassVar[bool] = False
    pools: ClassVar[tuple[Pool, ...]] = ("first", "mean")

    segments: int = PAIRS
    pooler: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "segments", whole("segments", self.segments, 0, MOST_SIZE))
        flag("pooler", self.pooler)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        classes: int | None = 2,
        pool: Pool = "first",
        dropout: float = 0.0,
        active: int | tuple[tuple[int, ...], ...] | None = None,
        frozen: Parts = (),
        seed: int = 0,
    ) -> tuple[Self, Weights]:
        """Pretrained weights, and the model that they are of, with a fresh head.

        Args:
            folder: one with config.json and model.safetensors (or its parts and their index); or a name on the
                Hugging Face hub, which needs huggingface_hub and a network once.
            classes, pool, dropout, active: see `Bert`. Where the mean is pooled, a pooler in the file is left out.
            frozen: what is not trained: numbers of layers, "embeddings", "pooler", or "body" for all but the head;
                see `freeze`.
            seed: of the head.

        Returns:
            The model, and the weights that are trained, in float32, for `al.descend(..., model=model, init=weights)`.

        Positions of RoBERTa begin at 2 in its table; the two rows before are left out.
        """
        config, weights = read_bert(folder, with_pooler=pool == "first")
        model = cls(classes=classes, pool=pool, dropout=dropout, active=active, **config)
        weights |= fresh_head(model.all_shapes(), seed)
        return model.freeze(weights, *parts_of(frozen))

    def accepts(self, data: object, name: str = "data") -> Sequences:
        """Sequences with ids of tokens, and with no more segments than there are."""
        texts = super().accepts(data, name)
        if self.segments > 1 and texts.segments is not None and texts.segments.max() >= self.segments:
            given = f"`{name}` has tokens of segment {texts.segments.max()}"
            raise InputError(message(f"{given}; the model knows {self.segments}, from 0 on."))
        return texts

    def embedding_shapes(self) -> dict[str, Weight]:
        """Tables of tokens, positions and segments, and a norm."""
        shapes = {"tokens": normal(self.vocabulary, self.dim), "positions": normal(self.positions, self.dim)}
        if self.segments:
            shapes["segments"] = normal(self.segments, self.dim)
        return shapes | norm_shapes("embed_", self.dim)

    def pooling_shapes(self) -> dict[str, Weight]:
        """The dense layer before the head."""
        return linear("pooler_", self.dim, self.dim) if self.pooler and self.pool == "first" else {}

    def embedded(self, every: Params, example: Example) -> Array:
        """The sum of token, position and segment, normed; (T, dim)."""
        assert example.ids is not None
        tokens = jnp.asarray(every["tokens"])[example.ids]
        tokens = tokens + jnp.asarray(every["positions"])[positions_of(example.mask, tokens.shape[0])]
        if self.segments:
            table = jnp.asarray(every["segments"])
            alone = self.segments == 1 or example.segments is None
            tokens = tokens + (table[0] if alone else table[example.segments])
        return self._dropped(self.normed(tokens, every, "embed_"), example.key, 10 * self.depth)

    def _pooled(self, every: Params, tokens: Array, mask: Array | None, key: Array | None) -> Array:
        features = super()._pooled(every, tokens, mask, key)
        if self.pooling_shapes():
            features = jnp.tanh(jnp.asarray(every["pooler_W"]) @ features + every["pooler_b"])
        return self._dropped(features, key, 10 * self.depth + 1)
