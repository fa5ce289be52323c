"""Fully connected networks, the baselines of *On the Convergence of Encoder-only Shallow Transformers*."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.checks import one_of, whole
from attnlab.models.attention import Params
from attnlab.models.network import LAWS, MOST_WIDTH, Forward, Law, Network


@dataclass(frozen=True)
class FullyConnected(Network):
    """`f = w_O . tau1 relu(W_V x)` on the flattened tokens x; with three layers another relu layer W_V2 (m, m).

    Args:
        width: m.
        layers: 2 or 3.
        init: "lecun", "he" or "ntk", as for `Encoder`.
        parameterization: "standard" or "ntk", as for `Encoder`.

    >>> import numpy as np, attnlab as al
    >>> x, y = np.eye(4), np.arange(4.0)
    >>> as_tokens = al.data.Sequences.of_vectors(x, y)
    >>> own = FullyConnected(8).initial(as_tokens)
    >>> same = al.models.Encoder(8).initial(as_tokens) | own  # one token: attention has nothing to choose
    >>> bool(np.allclose(al.models.Encoder(8).output(as_tokens, same), FullyConnected(8).output(as_tokens, own)))
    True
    """

    width: int
    layers: Literal[2, 3] = 2
    init: Law = "lecun"
    parameterization: Literal["standard", "ntk"] = "standard"

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", whole("width", self.width, most=MOST_WIDTH))
        one_of("layers", self.layers, (2, 3))
        one_of("init", self.init, LAWS)
        one_of("parameterization", self.parameterization, ("standard", "ntk"))

    def shapes(self, T: int, d: int) -> dict[str, tuple[int, ...]]:
        """Of the weights by name, in the order in which they are drawn."""
        m = self.width
        return {"W_V": (m, T * d), **({"W_V2": (m, m)} if self.layers == 3 else {}), "w_O": (m,)}

    def forward(self, weights: Params, x: Array) -> Forward:
        """Outputs and hidden layer for x (n, T, d); JAX, one trial."""
        n = x.shape[0]
        hidden = self.tau1 * jax.nn.relu(x.reshape(n, -1) @ weights["W_V"].T)
        if self.layers == 3:
            hidden = self.tau1 * jax.nn.relu(hidden @ weights["W_V2"].T)
        return Forward(hidden @ weights["w_O"], hidden, jnp.zeros((n, 0, 0), dtype=x.dtype))
