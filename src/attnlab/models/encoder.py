"""The encoder-only shallow Transformer of *On the Convergence of Encoder-only Shallow Transformers*.

For a sequence X (T, d): attention `B = softmax(tau0 X W_Q^T W_K X^T)`, row by row; hidden layer
`a = tau1 pool(relu(B X W_V^T))`; output `f = a w_O`. Eq. (1.2) pools by the mean over tokens, all proofs by the sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.checks import enough_memory, flag, number, one_of, whole
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.encoder_kernel import encoder_kernels
from attnlab.models.headtokens import HeadTokens
from attnlab.models.model import Weight, Weights
from attnlab.models.network import MOST_WIDTH, NETWORK_LAWS, Network, NetworkLaw
from attnlab.models.precision import in_float64
from attnlab.models.problem import Forward, Problem
from attnlab.models.scaled import GivenWeights, Params
from attnlab.models.softmax import softmax

Pool = Literal["mean", "sum"]
Scaling = Literal["sqrt", "linear"]
MOST_BLOCKS = 100  # each is compiled by itself
MOST_SCALE = 1e60


class Encoder(Network):
    """A shallow encoder: one head, no bias, no mask.

    Args:
        width: m, rows of W_Q, W_K and W_V.
        scaling: tau0 inside the softmax: "sqrt" is m^(-1/2), "linear" is m^(-1), or a number.
        init: law of the start and tau1. "lecun" and "he" have variances 1 and 2 over the number of columns and
            tau1 = 1; "ntk" has variances 1 and tau1 = m^(-1/2).
        pool: "mean" or "sum" over tokens; "mean" is "sum" with tau1 / T.
        hidden_scale: tau1, where it is not to follow from `init`.
        attention_kind: "softmax"; "relu" in its place; or "uniform", B = 1/T, the limit of scaling "linear".
        residual: None; "identity" adds X before the relu, which needs m = d; "projected" adds X S with a fixed random S
            (d, m) of variance 1 / d, kept among the weights. Block l > 1 adds the hidden tokens that it attends to.
        depth: blocks. Block l > 1 attends to the hidden tokens of the one before, with weights W_Q2 (m, m) and so on.
        feed_forward: "identity" is the W_H = 1 of the theory; "trained" has a matrix W_H (m, m) in every block, between
            attention and relu, which starts with variance 1 / m (2 / m for "he").
        tied: W_K = W_Q, which keeps attention from becoming uniform under scaling "linear".
        parameterization: "ntk" trains each matrix divided by the root of its number of columns.
        kink_width: over so much of its argument relu is rounded, `(x + sqrt(x^2 + width^2)) / 2`; 0 for relu itself.

    >>> import attnlab as al
    >>> data = al.data.gaussian_sequences(n=8, T=3, d=5)
    >>> run = al.descend(data, al.gd(1.0), model=Encoder(64), loss="mse_mean", steps=200)
    >>> bool(run.metrics["loss"][-1] < 1e-3 * run.metrics["loss"][0])
    True
    """

    width: int
    scaling: Scaling | float = "sqrt"
    init: NetworkLaw = "lecun"
    pool: Pool = "mean"
    hidden_scale: float | None = None
    attention_kind: Literal["softmax", "relu", "uniform"] = "softmax"
    residual: Literal["identity", "projected"] | None = None
    depth: int = 1
    tied: bool = False
    parameterization: Literal["standard", "ntk"] = "standard"
    kink_width: float = 0.0
    feed_forward: Literal["identity", "trained"] = "identity"

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", whole("width", self.width, most=MOST_WIDTH))
        object.__setattr__(self, "depth", whole("depth", self.depth, most=MOST_BLOCKS))
        one_of("init", self.init, NETWORK_LAWS)
        one_of("pool", self.pool, ("mean", "sum"))
        one_of("attention_kind", self.attention_kind, ("softmax", "relu", "uniform"))
        one_of("feed_forward", self.feed_forward, ("identity", "trained"))
        one_of("residual", self.residual, (None, "identity", "projected"))
        one_of("parameterization", self.parameterization, ("standard", "ntk"))
        number("kink_width", self.kink_width, least=0)
        flag("tied", self.tied)
        if isinstance(self.scaling, str):
            one_of("scaling", self.scaling, ("sqrt", "linear"))
        else:
            object.__setattr__(self, "scaling", _scale("scaling", self.scaling))
        if self.hidden_scale is not None:
            object.__setattr__(self, "hidden_scale", _scale("hidden_scale", self.hidden_scale))

    @property
    def tau0(self) -> float:
        """Scale inside the softmax."""
        if isinstance(self.scaling, str):
            return self.width ** {"sqrt": -0.5, "linear": -1.0}[self.scaling]
        return self.scaling

    @property
    def tau1(self) -> float:
        """Scale of the hidden layer, before pooling."""
        return super().tau1 if self.hidden_scale is None else self.hidden_scale

    def sizes(self, T: int, d: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights by name, in the order in which they are drawn."""
        m = self.width
        if self.residual == "identity" and m != d:
            raise InputError(
                message(
                    f"`residual` is 'identity' with width {m} and tokens of dimension {d}; they must be equal.",
                    "residual='projected'",
                )
            )
        sizes: dict[str, tuple[int, ...]] = {}
        for block in range(self.depth):
            for name in ("W_Q", "W_V") if self.tied else ("W_Q", "W_K", "W_V"):
                sizes[_named(name, block)] = (m, d if block == 0 else m)
            if self.feed_forward == "trained":
                sizes[_named("W_H", block)] = (m, m)
        sizes["w_O"] = (m,)
        if self.residual == "projected":
            sizes["S"] = (d, m)
        return sizes

    def shapes(self, data: Sequences) -> dict[str, Weight]:
        """Of the weights by name; the projection of the residual is drawn and never trained."""
        shapes = super().shapes(data)
        if self.residual == "projected":
            shapes["S"] = replace(shapes["S"], trained=False)
        return shapes

    def variances(self, T: int, d: int) -> dict[str, float]:
        """Of the Gaussian entries at the start."""
        variances = super().variances(T, d)
        for name in variances:
            if name.startswith("W_H") and self.init == "ntk":
                variances[name] = 1.0 / self.width
        return variances | ({"S": 1.0 / d} if self.residual == "projected" else {})

    def pooling(self, T: int) -> float:
        """What the sum over tokens is multiplied by: 1, or 1 / T for the mean."""
        return 1.0 / T if self.pool == "mean" else 1.0

    def logits(self, weights: Params, tokens: Array, block: int = 0) -> Array:
        """tau0 X W_Q^T W_K X^T of a block for its tokens (n, T, c), (n, T, T)."""
        n, T, c = tokens.shape
        queries = weights[_named("W_Q", block)]
        keys = queries if self.tied else weights[_named("W_K", block)]
        if c * (self.width + n * T) <= 2 * n * T * self.width:
            # Tokens are narrow beside the width: W_Q^T W_K once, and not queries and keys of every token.
            product = jnp.einsum("mc,me->ce", queries, keys)
            logits = jnp.einsum("ntc,ce,nse->nts", tokens, product, tokens, optimize=[(0, 1), (0, 1)])
        else:
            logits = jnp.einsum("ntm,nsm->nts", tokens @ queries.T, tokens @ keys.T)
        return self.tau0 * logits

    def attend(self, logits: Array) -> Array:
        """Attention weights of logits (..., T, T)."""
        if self.attention_kind == "uniform":
            return jnp.full_like(logits, 1.0 / logits.shape[-1])
        return jax.nn.relu(logits) if self.attention_kind == "relu" else softmax(logits)

    def raw(self, weights: Params, tokens: Array, attended: Array, block: int = 0) -> Array:
        """What a block puts into its relu, (n, T, m), of its tokens (n, T, c) as they are and as it attends to them."""
        raw = jnp.einsum("ntc,mc->ntm", attended, weights[_named("W_V", block)])
        if self.residual is not None:
            raw = raw + (tokens @ weights["S"] if self.residual == "projected" and block == 0 else tokens)
        return raw if self.feed_forward == "identity" else raw @ weights[_named("W_H", block)]

    def tangent_kernel(
        self, weights: Weights, x: np.ndarray, other: np.ndarray | None, block: int
    ) -> np.ndarray | None:
        """Of one block without making gradients; see `attnlab.models.encoder_kernel`."""
        if self.depth > 1 or self.feed_forward == "trained":
            return None
        kernels = encoder_kernels(self, weights, x, other, block=block)
        return np.add.reduce(list(kernels.values()))

    @in_float64
    def heads_as_tokens(self, data: Sequences, weights: GivenWeights) -> list[HeadTokens]:
        """The head of each block, on the tokens that enter it: `W = tau0 W_K^T W_Q`.

        Labels are 1 and scores 0, as tokens of a block have none: selections and margins can be asked for, local
        optimality cannot. Without a softmax there is no max-margin problem, and no head is named.
        """
        if self.attention_kind != "softmax":
            return []
        sequences = self.accepts(data)
        checked = self.check(sequences, weights)
        columns = max(checked[_named("W_Q", block)].shape[-1] for block in range(self.depth))
        numbers = float(self.depth * columns**2 * (sequences.trials or 1))
        enough_memory(numbers, f"W of every head of {self!r}", "a smaller width, or one block")
        heads = []
        for block, x in enumerate(_entering(self, checked, self.problem(sequences, checked), sequences.trials)):
            if not np.isfinite(x).all():
                raise InputError(
                    message(f"`weights` make tokens overflow before block {block + 1}.", "smaller weights")
                )
            tokens = Tokens(x=x, z=x, y=np.ones(x.shape[:-1]), v=np.zeros(x.shape[-1]))
            queries = checked[_named("W_Q", block)]
            keys = queries if self.tied else checked[_named("W_K", block)]
            W = self.tau0 * np.swapaxes(keys, -1, -2) @ queries
            heads.append(HeadTokens(f"block {block + 1}", tokens, W, layer=block))
        return heads

    def _states(self, weights: Params, x: Array) -> list[Array]:
        """The tokens (n, T, c) that each block attends to."""
        states = [x]
        for block in range(self.depth - 1):
            tokens, _ = self._block(weights, states[-1], block)
            states.append(self.tau1 * tokens)
        return states

    def forward(self, weights: Params, problem: Problem) -> Forward:
        """Outputs, hidden layer and attention."""
        x = problem.x
        tokens, attention = self._block(weights, x, 0)
        for block in range(1, self.depth):
            tokens, attention = self._block(weights, self.tau1 * tokens, block)
        hidden = self.tau1 * self.pooling(x.shape[-2]) * jnp.sum(tokens, axis=-2)
        return Forward(hidden @ weights["w_O"], attention, hidden)

    def _block(self, weights: Params, tokens: Array, block: int) -> tuple[Array, Array]:
        attention = self.attend(self.logits(weights, tokens, block))
        attended = jnp.einsum("nts,nsc->ntc", attention, tokens)
        return self.relu(self.raw(weights, tokens, attended, block)), attention


def _entering(model: Encoder, weights: Weights, problem: Problem, trials: int | None) -> list[np.ndarray]:
    """The tokens that enter each block, with the trial axis of the data."""
    states = jax.jit(model._states if trials is None else jax.vmap(model._states))(weights, problem.x)
    return [np.asarray(state) for state in states]


def _scale(name: str, value: float) -> float:
    """A finite number, not so large or small that products with it leave float64."""
    scale = number(name, value)
    if scale != 0 and not 1 / MOST_SCALE <= abs(scale) <= MOST_SCALE:
        raise InputError(
            message(f"`{name}` is {scale:g}; wanted 0, or a size from {1 / MOST_SCALE:g} to {MOST_SCALE:g}.")
        )
    return scale


def _named(name: str, block: int) -> str:
    return name if block == 0 else f"{name}{block + 1}"
