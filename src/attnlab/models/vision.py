"""`VisionTransformer`: transformers for small images, of any depth, and the one-layer ones that theory speaks of.

For patches X (T, p p c) of an image: tokens `t = E X + b` with a class token before them and positions added; then
`depth` blocks, each `t <- t + attention(norm(t))` and `t <- t + mlp(norm(t))`; the class token, or the mean of all
tokens, goes through a last norm and a linear head. Attention of a head is
`softmax(tau0 t W_Q^T W_K t^T) t W_V^T W_O^T`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.checks import flag, instance, no_batch, number, one_of, whole
from attnlab.data.sequences import Sequences
from attnlab.errors import InputError, message
from attnlab.models.headtokens import HeadTokens, head_matrix, self_attention_tokens
from attnlab.models.layers import dropped, layer_norm, saturating_softmax
from attnlab.models.model import Model, Weight, Weights
from attnlab.models.powers import LEAST_SQUARABLE, check_range
from attnlab.models.precision import in_float64
from attnlab.models.problem import Example, Problem
from attnlab.models.scaled import GivenWeights, Params, Value

Pool = Literal["cls", "mean"]
Scaling = Literal["sqrt", "linear"]
Tokenization = Literal["patch", "shifted"]
SHIFTS = ((-1, -1), (-1, 1), (1, -1), (1, 1))  # of images, by half a patch, down and to the right
MOST_SIZE = 10**7
MOST_DEPTH = 200


class VisionTransformer(Model[Sequences]):
    """A transformer on patches of images, `al.data.Images.patches(size)`.

    Args:
        classes: outputs, for the loss "cross_entropy"; None for one number.
        patch: side of a patch in pixels; tokens have patch^2 channels numbers.
        channels: of a pixel.
        dim: of a token inside.
        depth: blocks.
        heads, head_dim: of each block; queries, keys and values of one head have head_dim numbers (dim / heads).
        mlp: hidden neurons (GELU) of each block; 0 for none.
        pool: what the head sees: the class token ("cls"), or the mean of all tokens ("mean"; without a class token).
        tokenization: "shifted" also shows each patch of the image moved by half a patch to its four corners, normed.
        locality: no token sees itself, and tau0 is learned ("locality self-attention").
        scaling: tau0 is head_dim^(-1/2) ("sqrt") or head_dim^(-1) ("linear"); its start where it is learned.
        position_scale: deviation of the positions at the start; 0 leaves positions out.
        norm: layer norms before attention, MLP and head; False for none.
        dropout: share of numbers left out in training, after the embedding, in attention and in the MLP.
        fold: compute W_Q^T W_K and W_O W_V once per batch, not queries, keys and values of every token. The same
            outputs and gradients, to rounding; None does so where head_dim is larger than dim.
        grid: rows and columns of patches, where the image is not square; only shifted patches ask.

    Linear layers start uniform between -1 and 1 over the root of their inputs, as is usual.

    >>> import numpy as np, attnlab as al
    >>> data = al.Sequences(x=np.random.default_rng(0).normal(size=(20, 16, 4)), y=np.arange(20) % 10)
    >>> model = VisionTransformer(classes=10, patch=2, dim=8, heads=2, mlp=16)
    >>> run = al.descend(data, al.adam(0.01), model=model, batch=10, epochs=40, precision="float32")
    >>> bool(run.metrics["loss"][-1] < 0.7 * run.metrics["loss"][0])
    True
    """

    usual_loss: ClassVar[str] = "cross_entropy"

    classes: int | None
    patch: int
    channels: int = 1
    dim: int = 64
    depth: int = 1
    heads: int = 1
    head_dim: int | None = None
    mlp: int = 128
    pool: Pool = "cls"
    tokenization: Tokenization = "patch"
    locality: bool = False
    scaling: Scaling = "sqrt"
    position_scale: float = 1.0
    norm: bool = True
    dropout: float = 0.0
    fold: bool | None = None
    grid: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("patch", "channels", "dim", "heads"):
            object.__setattr__(self, name, whole(name, getattr(self, name), most=MOST_SIZE))
        object.__setattr__(self, "depth", whole("depth", self.depth, most=MOST_DEPTH))
        object.__setattr__(self, "mlp", whole("mlp", self.mlp, 0, MOST_SIZE))
        if self.classes is not None:
            object.__setattr__(self, "classes", whole("classes", self.classes, 2, MOST_SIZE))
        if self.head_dim is not None:
            object.__setattr__(self, "head_dim", whole("head_dim", self.head_dim, most=MOST_SIZE))
        elif self.dim % self.heads:
            problem = f"`heads` is {self.heads}, which does not divide `dim` = {self.dim}."
            raise InputError(message(problem, "pass `head_dim`, numbers of a query of one head"))
        one_of("pool", self.pool, ("cls", "mean"))
        one_of("tokenization", self.tokenization, ("patch", "shifted"))
        one_of("scaling", self.scaling, ("sqrt", "linear"))
        for name in ("locality", "norm"):
            flag(name, getattr(self, name))
        if self.fold is not None:
            flag("fold", self.fold)
        number("position_scale", self.position_scale, least=0, most=1e30)
        number("dropout", self.dropout, least=0, below=1)
        if self.grid is not None:
            rows, columns = _two_sizes(self.grid)
            object.__setattr__(self, "grid", (rows, columns))

    # Data and weights.

    @property
    def width(self) -> int:
        """Numbers of a query of one head."""
        return self.dim // self.heads if self.head_dim is None else self.head_dim

    @property
    def tau0(self) -> float:
        """Scale inside the softmax; at the start, where it is learned."""
        return float(self.width) ** {"sqrt": -0.5, "linear": -1.0}[self.scaling]

    @property
    def folded(self) -> bool:
        """Are products of weights computed in place of queries, keys and values?"""
        return self.width > self.dim if self.fold is None else self.fold

    @property
    def draws(self) -> bool:
        """Dropout does."""
        return self.dropout > 0

    def accepts(self, data: object, name: str = "data") -> Sequences:
        """Patches of images."""
        patches = instance(name, data, Sequences, "al.Sequences of patches", "images.patches(4)")
        check_range(name, patches.x, 2, least=LEAST_SQUARABLE)
        wanted = self.patch**2 * self.channels
        if patches.d != wanted:
            sides = f"{self.patch} x {self.patch} pixels of {self.channels} channels"
            raise InputError(message(f"`{name}` has tokens of {patches.d} numbers; patches of {sides} have {wanted}."))
        if self.tokenization == "shifted":
            self._grid(patches.T)
            if patches.mask is not None:
                raise InputError(message(f"`{name}` has a mask; shifted patches need the whole image."))
        if self.locality and patches.lengths.min() + (self.pool == "cls") < 2:
            raise InputError(message(f"`{name}` has one token; with `locality` no token sees itself."))
        return patches

    def _grid(self, T: int) -> tuple[int, int]:
        """Rows and columns of patches."""
        side = math.isqrt(T)
        rows, columns = (side, side) if self.grid is None else self.grid
        if rows * columns != T:
            problem = f"`grid` is {self.grid}; {T} patches are no {'square' if self.grid is None else 'such grid'}."
            raise InputError(message(problem, "grid=(rows, columns)"))
        return rows, columns

    def shapes(self, data: Sequences) -> dict[str, Weight]:
        """Of the weights by name; those of block l begin with `blockl_`."""
        inputs = data.d * (1 + len(SHIFTS)) if self.tokenization == "shifted" else data.d
        shapes = _norm_shapes("embed_", inputs) if self.tokenization == "shifted" else {}
        shapes |= _linear("embed", self.dim, inputs)
        if self.pool == "cls":
            shapes["cls"] = Weight((self.dim,), "gaussian")
        if self.position_scale:
            shapes["positions"] = Weight(
                (data.T + (self.pool == "cls"), self.dim), "gaussian", scale=self.position_scale
            )
        for block in range(1, self.depth + 1):
            shapes |= {f"block{block}_{name}": weight for name, weight in self._block_shapes().items()}
        if self.norm:
            shapes |= _norm_shapes("head_", self.dim)
        if self.classes is None:
            columns = Weight((self.dim,), "uniform")
            return shapes | {"head_W": columns, "head_b": Weight((), "uniform", scale=self.dim**-0.5)}
        return shapes | _linear("head", self.classes, self.dim)

    def _block_shapes(self) -> dict[str, Weight]:
        inner = self.heads * self.width
        shapes = _norm_shapes("", self.dim) if self.norm else {}
        for name in ("Q", "K", "V"):
            shapes[name] = Weight((inner, self.dim), "uniform")
        shapes["O"] = Weight((self.dim, inner), "uniform")
        shapes["O_b"] = _bias(self.dim, inner)
        if self.locality:
            # Its logarithm is learned; this is where it starts.
            shapes["log_tau"] = Weight((), "ones", scale=math.log(self.tau0))
        if self.mlp:
            shapes |= _norm_shapes("mlp_", self.dim) if self.norm else {}
            shapes |= _linear("mlp1", self.mlp, self.dim)
            shapes |= _linear("mlp2", self.dim, self.mlp)
        return shapes

    def constants(self, data: Sequences, weights: Weights) -> dict[str, np.ndarray]:
        """The scale inside the softmax, which enters as data: both scalings share a program."""
        lead = () if data.trials is None else (data.trials,)
        return {"tau0": np.full(lead, self.tau0)}

    def compiled_as(self) -> VisionTransformer:
        """The same less the scaling, and less the law of positions, which only starts know."""
        return replace(self, scaling="sqrt", position_scale=1.0 if self.position_scale else 0.0)

    # On one example.

    def output(self, weights: Params, example: Example) -> Array:
        """The logits of one image, (classes,), or one number."""
        tokens, visible, _ = self._run(weights, example)
        seen = tokens[0] if self.pool == "cls" else _mean(tokens, visible)
        if self.norm:
            seen = layer_norm(seen, weights["head_gain"], weights["head_shift"])
        return jnp.asarray(weights["head_W"]) @ seen + weights["head_b"]

    def _run(self, weights: Params, example: Example) -> tuple[Array, Array | None, list[Array]]:
        """Tokens (T, dim) after all blocks, which of them are there, and what enters the attention of each block."""
        tokens, visible = self._embedded(weights, example)
        entering = []
        for block in range(1, self.depth + 1):
            prefix = f"block{block}_"
            own = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
            own["tau0"] = self._tau0(own, example)
            entering.append(self._normed(own, tokens))
            tokens = self._block(own, tokens, visible, example.key, block)
        return tokens, visible, entering

    def _normed(self, own: Params, tokens: Array) -> Array:
        """What enters attention."""
        return layer_norm(tokens, own["gain"], own["shift"]) if self.norm else tokens

    def _tau0(self, weights: Params, example: Example) -> Value:
        """The scale inside the softmax of a block: learned, or that of the scaling."""
        if self.locality:
            return jnp.exp(weights["log_tau"])
        return jnp.asarray(self.tau0) if example.constants is None else example.constants["tau0"]

    def _embedded(self, weights: Params, example: Example) -> tuple[Array, Array | None]:
        """Tokens (T, dim) with class token and positions, and which of them are there."""
        patches, visible = example.x, example.mask
        if self.tokenization == "shifted":
            patches = shifted_patches(patches, self._grid(patches.shape[0]), self.patch, self.channels)
            patches = layer_norm(patches, weights["embed_gain"], weights["embed_shift"])
        tokens = patches @ weights["embed_W"].T + weights["embed_b"]
        if self.pool == "cls":
            tokens = jnp.concatenate([jnp.asarray(weights["cls"])[None], tokens])
            if visible is not None:
                visible = jnp.concatenate([jnp.ones(1, dtype=bool), visible])
        if self.position_scale:
            tokens = tokens + weights["positions"]
        return self._dropped(tokens, example.key, 0), visible

    def _block(self, weights: Params, tokens: Array, visible: Array | None, key: Array | None, block: int) -> Array:
        """Tokens (T, dim) after attention and MLP."""
        attended = self._attended(weights, self._normed(weights, tokens), visible, key, block)
        tokens = tokens + self._dropped(attended, key, 10 * block)
        if not self.mlp:
            return tokens
        normed = layer_norm(tokens, weights["mlp_gain"], weights["mlp_shift"]) if self.norm else tokens
        hidden = jax.nn.gelu(normed @ weights["mlp1_W"].T + weights["mlp1_b"], approximate=False)
        added = self._dropped(hidden, key, 10 * block + 1) @ weights["mlp2_W"].T + weights["mlp2_b"]
        return tokens + self._dropped(added, key, 10 * block + 2)

    def _attended(self, weights: Params, tokens: Array, visible: Array | None, key: Array | None, block: int) -> Array:
        """What all heads together add to the tokens (T, dim)."""
        heads, width = self.heads, self.width
        Q, K, V = (weights[name].reshape(heads, width, self.dim) for name in ("Q", "K", "V"))
        out = weights["O"].reshape(self.dim, heads, width)
        if self.folded:
            asked = jnp.einsum("td,hde->hte", tokens, jnp.einsum("hkd,hke->hde", Q, K))
            logits = jnp.einsum("hte,se->hts", asked, tokens)
        else:
            queries = jnp.einsum("td,hkd->htk", tokens, Q)
            keys = jnp.einsum("td,hkd->htk", tokens, K)
            logits = jnp.einsum("htk,hsk->hts", queries, keys)
        logits = logits * weights["tau0"]
        attention = self._dropped(saturating_softmax(self._masked(logits, visible)), key, 10 * block + 3)
        if self.folded:
            mixed = jnp.einsum("hts,sd->htd", attention, tokens)
            added = jnp.einsum("htd,hed->te", mixed, jnp.einsum("ehk,hkd->hed", out, V))
        else:
            values = jnp.einsum("td,hkd->htk", tokens, V)
            added = jnp.einsum("htk,ehk->te", jnp.einsum("hts,hsk->htk", attention, values), out)
        return added + weights["O_b"]

    @in_float64
    def heads_as_tokens(self, data: Sequences, weights: GivenWeights) -> list[HeadTokens]:
        """Every head of every block, on the states that enter it, the class token among them.

        Labels are 1 and scores 0, as no token of a block inside has any: selections and margins can be asked for, local
        optimality cannot.
        """
        patches = self.accepts(data)
        no_batch("data", patches)
        checked = self.check(patches, weights)
        problem = self.problem(patches, checked)
        there = patches.mask
        if there is not None and self.pool == "cls":
            there = np.concatenate([np.ones((patches.n, 1), dtype=bool), there], axis=1)
        heads = []
        for layer, h in enumerate(_entering(self.compiled_as(), checked, problem)):
            tokens = self_attention_tokens(np.asarray(h), there, others_only=self.locality)
            own = f"block{layer + 1}_"
            W_Q, W_K = (checked[f"{own}{name}"].reshape(self.heads, self.width, self.dim) for name in ("Q", "K"))
            scale = float(np.exp(checked[f"{own}log_tau"])) if self.locality else self.tau0
            for head in range(self.heads):
                W = head_matrix(W_Q[head], W_K[head], None, scale)
                heads.append(HeadTokens(f"block {layer + 1} head {head}", tokens, W, layer, head))
        return heads

    def _masked(self, logits: Array, visible: Array | None) -> Array:
        """Logits (heads, T, T) with -inf where a token is not to be seen."""
        if self.locality:
            logits = jnp.where(jnp.eye(logits.shape[-1], dtype=bool), -jnp.inf, logits)
        return logits if visible is None else jnp.where(visible, logits, -jnp.inf)

    def _dropped(self, values: Array, key: Array | None, place: int) -> Array:
        return dropped(values, self.dropout, key, place)


@partial(jax.jit, static_argnums=0)
def _entering(model: VisionTransformer, weights: Params, problem: Problem) -> list[Array]:
    """What enters the attention of each block, (n, T, dim), of all images."""
    examples, axes = problem.examples()
    return jax.vmap(lambda w, example: model._run(w, example)[2], (None, axes))(weights, examples)


def shifted_patches(patches: Array, grid: tuple[int, int], side: int, channels: int) -> Array:
    """Each patch (T, p p c), and beside it what stands there when the image is moved by half a patch to each corner.

    What moves in from outside is zero.
    """
    rows, columns = grid
    split = patches.reshape(rows, columns, side, side, channels)
    image = split.transpose(0, 2, 1, 3, 4).reshape(rows * side, columns * side, channels)
    half = side // 2 or 1
    padded = jnp.pad(image, ((half, half), (half, half), (0, 0)))
    height, width = image.shape[:2]
    moved = [padded[half + half * i :, half + half * j :][:height, :width] for i, j in SHIFTS]
    every = jnp.concatenate([image, *moved], axis=-1)
    cut = every.reshape(rows, side, columns, side, -1).transpose(0, 2, 1, 3, 4)
    return cut.reshape(rows * columns, -1)


def _mean(tokens: Array, visible: Array | None) -> Array:
    """Of the tokens that are there, (dim,)."""
    if visible is None:
        return jnp.mean(tokens, axis=0)
    return jnp.sum(jnp.where(visible[:, None], tokens, 0.0), axis=0) / jnp.sum(visible)


def _linear(name: str, outputs: int, inputs: int) -> dict[str, Weight]:
    return {f"{name}_W": Weight((outputs, inputs), "uniform"), f"{name}_b": _bias(outputs, inputs)}


def _bias(outputs: int, inputs: int) -> Weight:
    """Uniform between -1 and 1 over the root of the inputs."""
    return Weight((outputs,), "uniform", scale=math.sqrt(outputs / inputs))


def _norm_shapes(prefix: str, size: int) -> dict[str, Weight]:
    return {f"{prefix}gain": Weight((size,), "ones"), f"{prefix}shift": Weight((size,), "zeros")}


def _two_sizes(grid: object) -> tuple[int, int]:
    """Two whole numbers."""
    if not isinstance(grid, tuple | list) or len(grid) != 2:
        raise InputError(message(f"`grid` is {grid!r}; wanted (rows, columns) of patches."))
    return whole("grid[0]", grid[0], most=MOST_SIZE), whole("grid[1]", grid[1], most=MOST_SIZE)
