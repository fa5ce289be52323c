"""Networks with one real output per sequence and a width: what the encoder and its baselines share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from attnlab.checks import shown
from attnlab.data.families import Seed
from attnlab.data.sequences import Sequences
from attnlab.errors import InputError, message
from attnlab.models.model import Compared, Init, Model, Targets, Weight, Weights
from attnlab.models.powers import LEAST_SQUARABLE, check_range
from attnlab.models.problem import Example, Held, Objective, Prepared, Problem, Seen
from attnlab.models.scaled import Params, norm

NetworkLaw = Literal["lecun", "he", "ntk"]
NETWORK_LAWS: tuple[NetworkLaw, ...] = ("lecun", "he", "ntk")
MOST_WIDTH = 10**9
# Over so much of their argument kinks are rounded for gradient flow: where it arrives at a kink from both sides it has
# to slide along, and an integrator would cross it forever.
FLOW_KINK = 1e-5


class _Settings:
    """Fields that every network has, in an order of its own."""

    width: int
    init: NetworkLaw
    parameterization: Literal["standard", "ntk"]
    kink_width: float


class Network(_Settings, Model[Sequences]):
    """A network of some width.

    Attributes:
        width: m.
        init: law of the random start, "lecun", "he" or "ntk".
        parameterization: "standard", or "ntk": weights are held divided by 1 / sqrt(columns), so that gradient descent
            with step s moves a matrix of c columns by s / c times its gradient.
    """

    usual_loss: ClassVar[str] = "half_sum"
    portion: ClassVar[int | None] = None

    @abstractmethod
    def sizes(self, T: int, d: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights by name, in the order in which they are drawn."""

    def relu(self, x: Array) -> Array:
        """max(x, 0), its kink rounded over `kink_width` if that is not 0."""
        return jax.nn.relu(x) if self.kink_width == 0 else rounded_relu(x, self.kink_width)

    def for_flow(self) -> Network:
        """The same with kinks that gradient flow can slide along."""
        return self if self.kink_width > 0 else replace(self, kink_width=FLOW_KINK)

    @property
    def tau1(self) -> float:
        """Scale of the hidden layer: m^(-1/2) for the law "ntk", 1 for the others."""
        return self.width**-0.5 if self.init == "ntk" else 1.0

    def variances(self, T: int, d: int) -> dict[str, float]:
        """Of the Gaussian entries at the start: 1, 2 or as many over the number of columns, by law."""
        gain = {"lecun": 1.0, "he": 2.0}.get(self.init)
        return {name: 1.0 if gain is None else gain / shape[-1] for name, shape in self.sizes(T, d).items()}

    def hold_factors(self, T: int, d: int) -> dict[str, float]:
        """Weights are trained divided by this."""
        if self.parameterization == "standard":
            return dict.fromkeys(self.sizes(T, d), 1.0)
        return {name: shape[-1] ** -0.5 for name, shape in self.sizes(T, d).items()}

    def shapes(self, data: Sequences) -> dict[str, Weight]:
        """Of the weights by name."""
        variances = self.variances(data.T, data.d)
        return {
            name: Weight(shape, "gaussian", float(np.sqrt(variances[name])))
            for name, shape in self.sizes(data.T, data.d).items()
        }

    def accepts(self, data: object, name: str = "data") -> Sequences:
        """Sequences, or the x and y of tokens."""
        sequences = Sequences.of(data, name)
        check_range(name, sequences.x, 2, least=LEAST_SQUARABLE)
        return sequences

    def start(self, data: Sequences, init: Init, scale: float, seed: Seed) -> Weights:
        """From the law of the network (None), or from given weights."""
        if isinstance(init, str):
            raise InputError(
                message(
                    f"`init` is {shown(init)}; a network starts from its own law, or from given weights.",
                    "al.models.Encoder(width, init='he')",
                )
            )
        if not (np.ndim(scale) == 0 and scale == 1):
            raise InputError(message("`init_scale` is not for a network.", "init= takes its weights"))
        return super().start(data, init, 1.0, seed)

    def held(self, data: Sequences, weights: Weights, *, isotropic: bool) -> Held | None:
        """Under the "ntk" parameterization each matrix times the root of its number of columns."""
        if self.parameterization == "standard":
            return None
        lead = () if data.trials is None else (data.trials,)
        factors = self.hold_factors(data.T, data.d)
        return Held({name: np.full((*lead, *[1] * (w.ndim - len(lead))), factors[name]) for name, w in weights.items()})

    def output(self, weights: Params, example: Example) -> Array:
        """The output of one sequence."""
        return self.forward(weights, Problem.of(x=example.x[None], y=None)).outputs[0]

    def records(self, objective: Objective, seen: Seen) -> Params:
        """Metrics of one trial, of the weights that are trained; norms are Frobenius norms.

        | name | meaning |
        |---|---|
        | `norm`, `moved` | of all weights, and of their way from the start |
        | `moved_NAME` | the way of one matrix from its start |
        | `hidden_moved` | the way of the hidden layer F_pre (n, m) |
        | `relative_step` | length of the next step, over the norm of the start; NaN if that is 0 |

        `log_gradient_norm` and `step_length` are of the parameters as they are held.
        """
        held, compared = seen.problem.held, seen.compared
        weights = objective.weights(seen.params, seen.problem)
        step = seen.update if held is None else held.weights(seen.update)
        trained = [name for name in weights if name not in objective.frozen]
        moved = {name: norm(weights[name] - compared.start[name]) for name in trained}
        begun = _total([norm(compared.start[name]) for name in trained])
        metrics = {
            "norm": _total([norm(weights[name]) for name in trained]),
            "moved": _total(list(moved.values())),
            **{f"moved_{name}": length for name, length in moved.items()},
            "hidden_moved": norm(seen.forward.hidden - compared.hidden),
            "relative_step": _total([norm(step[name]) for name in trained]) / jnp.where(begun > 0, begun, jnp.nan),
        }
        return metrics

    def compared(self, data: Sequences, prepared: Prepared, start: Weights, track: ArrayLike | None) -> Compared:
        """Weights and hidden layer at the start."""
        if track is not None:
            raise InputError(message("`track` is not for a network.", "metrics= takes your own"))
        return Compared(start, self._hidden_at_start(data, start))

    def _hidden_at_start(self, data: Sequences, start: Weights) -> np.ndarray:
        """F_pre (n, m), infinite in trials that overflow; not in all."""
        forward = self.unchecked_forward(data, start)
        if not np.isfinite(forward.outputs).any():
            raise InputError(message("`init` makes every output overflow at the start.", "smaller weights"))
        return np.asarray(forward.hidden)

    def targets(self, data: Sequences, targets: Targets | None, start: Weights) -> dict[str, Weights]:
        """None: what a network is to become is not known by its weights."""
        if targets is not None:
            raise InputError(message("`targets` is not for a network.", "init= takes its weights, metrics= your own"))
        return {}


def rounded_relu(x: Array, width: float) -> Array:
    """`(x + sqrt(x^2 + width^2)) / 2`: above relu by width / 2 at the kink, and by width^2 / (4 |x|) far from it."""
    root = jnp.sqrt(x * x + width * width)
    # Without cancellation for x < 0.
    return jnp.where(x > 0, 0.5 * (x + root), 0.5 * width * width / (root - jnp.minimum(x, 0.0)))


def _total(norms: list[Array]) -> Array:
    return norm(jnp.stack(norms))
