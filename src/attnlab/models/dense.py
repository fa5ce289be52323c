"""Fully connected networks, the baselines of *On the Convergence of Encoder-only Shallow Transformers*."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp

from attnlab.checks import number, one_of, whole
from attnlab.models.network import MOST_WIDTH, NETWORK_LAWS, Network, NetworkLaw
from attnlab.models.problem import Forward, Problem
from attnlab.models.scaled import Params


class FullyConnected(Network):
    """`f = w_O . tau1 relu(W_V x)` on the flattened tokens x; with three layers another relu layer W_V2 (m, m).

    Args:
        width: m.
        layers: 2 or 3.
        init: "lecun", "he" or "ntk", as for `Encoder`.
        parameterization: "standard" or "ntk", as for `Encoder`.
        kink_width: of relu, as for `Encoder`.

    >>> import numpy as np, attnlab as al
    >>> x, y = np.eye(4), np.arange(4.0)
    >>> as_tokens = al.data.Sequences.of_vectors(x, y)
    >>> own = FullyConnected(8).initial(as_tokens)
    >>> same = al.models.Encoder(8).initial(as_tokens) | own  # one token: attention has nothing to choose
    >>> bool(np.allclose(al.models.Encoder(8).outputs(as_tokens, same), FullyConnected(8).outputs(as_tokens, own)))
    True
    """

    width: int
    layers: Literal[2, 3] = 2
    init: NetworkLaw = "lecun"
    parameterization: Literal["standard", "ntk"] = "standard"
    kink_width: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", whole("width", self.width, most=MOST_WIDTH))
        one_of("layers", self.layers, (2, 3))
        one_of("init", self.init, NETWORK_LAWS)
        number("kink_width", self.kink_width, least=0)
        one_of("parameterization", self.parameterization, ("standard", "ntk"))

    def sizes(self, T: int, d: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights by name, in the order in which they are drawn."""
        m = self.width
        middle = {"W_V2": (m, m)} if self.layers == 3 else {}
        return {"W_V": (m, T * d), **middle, "w_O": (m,)}

    def forward(self, weights: Params, problem: Problem) -> Forward:
        """Outputs and hidden layer."""
        n = problem.x.shape[0]
        hidden = self.tau1 * self.relu(problem.x.reshape(n, -1) @ weights["W_V"].T)
        if self.layers == 3:
            hidden = self.tau1 * self.relu(hidden @ weights["W_V2"].T)
        no_attention = jnp.zeros((n, 0, 0), dtype=problem.x.dtype)
        return Forward(hidden @ weights["w_O"], no_attention, hidden)
