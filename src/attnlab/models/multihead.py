"""Multi-head self-attention with a linear decoder.

One head maps a sequence x (T, d) to `F(x; U, W) = <U, softmax(x W x^T) x>`, where row t of the logits belongs to the
query x_t. H heads are averaged as `H^(-1/2) sum_h F(x; U_h, W_h)`, and the objective is the mean over sequences of
`loss(y output)`.

Heads that start equal stay equal under every step rule. They are kept once, as a group with a count: the output is
`H^(-1/2) sum_g c_g F_g`, and the gradient of each head of a group is that of the output in F_g without its count. A
million heads that start at zero cost as much as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from attnlab.checks import boolean_array, finite_array, instance, number, one_of, shown
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.losses import Loss
from attnlab.models.model import Data, HeadTokens, Init, Model, Targets, Weight, Weights
from attnlab.models.powers import MOST_WEIGHT, check_range
from attnlab.models.problem import Example, Forward, Held, Objective, Prepared, Problem, Seen
from attnlab.models.scaled import GivenWeights, Params, Value
from attnlab.models.softmax import softmax

Decoder = Literal["full", "pooling", "last"]
DECODERS: tuple[Decoder, ...] = ("full", "pooling", "last")
MOST_HEADS = 1e100


class HeadsCompared(NamedTuple):
    """What the records of a trial compare with."""

    relevant: np.ndarray | None  # (n, T) tokens whose attention is recorded


class MultiHead(Model[Tokens]):
    """H heads of self-attention with a decoder each, in groups of equal heads.

    Args:
        heads: H, as large as you like.
        decoder: "full" (U of shape (T, d)), "pooling" (one vector u for all tokens), or "last" (u on the last token).
        counts: heads per group, summing to H. None: one group where all heads start equal, else H groups of one.

    Weights are {"U": (G, T, d), "W": (G, d, d)}, or U (G, d) for the other decoders, one entry per group. Derivatives
    by them are by the weights of one head of each group.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=6, T=3, d=4, seed=0)
    >>> run = al.descend(tokens, al.gd(1.0), model=MultiHead(heads=10**6), init="zeros", steps=50)
    >>> run.weights["U"].shape, run.weights["W"].shape
    ((1, 3, 4), (1, 4, 4))
    """

    portion: ClassVar[int | None] = None
    heads: int
    decoder: Decoder = "full"
    counts: tuple[float, ...] | None = None

    def __init__(
        self, heads: int, decoder: Decoder = "full", counts: Sequence[float] | np.ndarray | None = None
    ) -> None:
        if number("heads", heads, least=1, most=MOST_HEADS) % 1:
            raise InputError(message(f"`heads` is {heads!r}; wanted a whole number at least 1."))
        one_of("decoder", decoder, DECODERS)
        if counts is not None:
            given = finite_array("counts", counts)
            if given.ndim != 1 or not given.size or given.min() < 1 or abs(given.sum() - heads) > 1e-9 * heads:
                raise InputError(
                    message(f"`counts` is {shown(counts)}; wanted at least 1 head in each group, {heads} in all.")
                )
            counts = tuple(map(float, given))
        for name, value in (("heads", int(heads)), ("decoder", decoder), ("counts", counts)):
            object.__setattr__(self, name, value)

    # Data and weights, with NumPy.

    def accepts(self, data: object, name: str = "data") -> Tokens:
        """Tokens in which every token asks and sees all others."""
        tokens = instance(name, data, Tokens, "al.Tokens", "al.Tokens.self_attention(x, y)")
        check_range(name, tokens.x, 2)
        if tokens.mask is not None or tokens.K is not None:
            what = "a mask" if tokens.mask is not None else f"{tokens.K} queries with labels of their own"
            raise InputError(
                message(
                    f"`{name}` has {what}; in a model of several heads every token asks, and sees all others.",
                    "al.Tokens.self_attention(x, y, v), with y of shape (n,)",
                )
            )
        return tokens

    def grouped(self, groups: int) -> np.ndarray:
        """Heads in each of so many groups."""
        if self.counts is not None:
            if len(self.counts) != groups:
                raise InputError(message(f"The weights have {groups} groups, `counts` {len(self.counts)}."))
            return np.array(self.counts)
        if groups == 1:
            return np.array([float(self.heads)])
        if groups != self.heads:
            raise InputError(
                message(f"The weights have {groups} groups for {self.heads} heads.", "pass `counts=`, heads per group")
            )
        return np.ones(groups)

    def head_shapes(self, data: Tokens) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights of one head."""
        tokens = self.accepts(data)
        return {"U": (tokens.T, tokens.d) if self.decoder == "full" else (tokens.d,), "W": (tokens.d, tokens.d)}

    def shapes(self, data: Tokens) -> dict[str, Weight]:
        """Of all groups, as many as there are where heads start apart."""
        groups = self.heads if self.counts is None else len(self.counts)
        return {name: Weight((groups, *shape), "gaussian") for name, shape in self.head_shapes(data).items()}

    def start(self, data: Tokens, init: Init, scale: float, seed: int) -> Weights:
        """ "zeros" (one group), "gaussian" (every head of its own), or {"U": .., "W": ..} of the groups."""
        if not isinstance(init, str | None):
            return super().start(data, init, scale, seed)
        if init == "gaussian":
            return super().start(data, None, scale, seed)
        if init != "zeros":
            wanted = "a model of several heads starts at 'zeros', 'gaussian' or given weights"
            raise InputError(message(f"`init` is {shown(init)}; {wanted}.", "init='zeros'"))
        alike = MultiHead(1, self.decoder) if self.counts is None else self
        return Model.start(alike, data, init, scale, seed)

    def check(self, data: Tokens, weights: GivenWeights, name: str = "weights") -> Weights:
        """Weights as float64 with group axis, and the trial axis of the data if they have one."""
        if not isinstance(weights, Mapping) or set(weights) != {"U", "W"}:
            given = sorted(map(str, weights)) if isinstance(weights, Mapping) else shown(weights)
            raise InputError(message(f"`{name}` has {given}; wanted {{'U': .., 'W': ..}}."))
        checked = {
            key: self._of_groups(f"{name}[{key!r}]", weights[key], shape, data.trials)
            for key, shape in self.head_shapes(data).items()
        }
        groups = {key: value.shape[0 if data.trials is None else 1] for key, value in checked.items()}
        if len(set(groups.values())) > 1:
            numbers = sorted(set(groups.values()))
            raise InputError(message(f"`{name}` has U and W of {numbers} groups; wanted one number of groups."))
        return checked

    def _of_groups(self, name: str, given: ArrayLike, shape: tuple[int, ...], trials: int | None) -> np.ndarray:
        """One weight as (G, ...) after the trial axis; that of one head is a group of its own."""
        lead = () if trials is None else (trials,)
        value = finite_array(name, given)
        if value.shape == shape:
            value = value[None]
        if value.ndim == len(shape) + 1 and value.shape[1:] == shape:
            value = np.broadcast_to(value, lead + value.shape)
        grouped = value.ndim > len(shape) and value.shape[-len(shape) - 1] > 0
        if not grouped or value.shape[: -len(shape) - 1] != lead or value.shape[-len(shape) :] != shape:
            per_trial = ", or that per trial" if lead else ""
            sizes = ", ".join(map(str, shape))
            raise InputError(message(f"`{name}` has shape {value.shape}; wanted shape (G, {sizes}){per_trial}."))
        check_range(name, value, len(shape), MOST_WEIGHT)
        return np.array(value)

    def constants(self, data: Tokens, weights: Weights) -> dict[str, np.ndarray]:
        """Heads per group."""
        counts = self.grouped(weights["W"].shape[-3])
        return {"counts": counts if data.trials is None else np.tile(counts, (data.trials, 1))}

    def held(self, data: Tokens, weights: Weights, *, isotropic: bool) -> Held | None:
        """Rules that see lengths and sums alone see those of all heads; others see one head of each group."""
        counts = self.constants(data, weights)["counts"]
        if (counts == 1).all():
            return None
        root = {
            name: np.sqrt(counts).reshape(*counts.shape, *[1] * (w.ndim - counts.ndim)) for name, w in weights.items()
        }
        if isotropic:
            return Held({name: 1.0 / r for name, r in root.items()})
        return Held(None, metric={name: 1.0 / (r * r) for name, r in root.items()})

    def problem(self, data: Tokens, weights: Weights, held: Held | None = None) -> Problem:
        """Tokens and labels; queries are the tokens."""
        return Problem.of(x=data.x, y=data.y, constants=self.constants(data, weights), held=held)

    def heads_as_tokens(self, data: Tokens, weights: GivenWeights) -> list[HeadTokens]:
        """One head of each group; every token asks, and its logits are `x_t W x_s`, those of a layer with W^T."""
        checked = self.check(data, weights)
        labels = np.repeat(data.y[:, None], data.T, axis=1)
        tokens = Tokens(x=data.x, z=data.x, y=labels, v=np.zeros(data.d))
        return [HeadTokens(f"W[{group}]", tokens, W.T) for group, W in enumerate(checked["W"])]

    def compiled_as(self) -> MultiHead:
        """Any number of heads: their counts enter as data."""
        return MultiHead(1, self.decoder)

    # In the compiled program, on one trial.

    def output(self, weights: Params, example: Example) -> Array:
        """The average over heads, of one sequence."""
        counts = self.grouped(weights["W"].shape[0])
        alone = Problem.of(x=example.x[None], y=None, constants={"counts": jnp.asarray(counts)})
        return self.forward(weights, alone).outputs[0]

    def forward(self, weights: Params, problem: Problem) -> Forward:
        """Outputs (n,), and attention (G, n, T, T)."""
        counts = head_counts(problem)
        attention = self.attend(weights["W"], problem.x)
        each = self.decoded(weights["U"], attention, problem.x)
        return Forward(jnp.einsum("g,gn->n", counts, each) / jnp.sqrt(jnp.sum(counts)), attention)

    def attend(self, W: Value, x: Array) -> Array:
        """Attention weights of every query, (G, n, T, T), for W (G, d, d)."""
        keys = jnp.einsum("nsd,ged->nsge", x, W)  # W x_s
        return softmax(jnp.einsum("nte,nsge->gnts", x, keys))

    def decoded(self, U: Value, attention: Array, x: Array) -> Array:
        """<U, A x> of every group and sequence, (G, n)."""
        if self.decoder == "full":
            scores = jnp.einsum("gtd,nsd->gnts", U, x)
            return jnp.sum(attention * scores, axis=(-2, -1))
        queries = attention if self.decoder == "pooling" else attention[:, :, -1:]
        return jnp.einsum("gns,gns->gn", jnp.sum(queries, axis=-2), jnp.einsum("gd,nsd->gns", U, x))

    def records(self, objective: Objective, seen: Seen) -> Params:
        """Metrics of one trial; norms, distances and cosines are over all H heads.

        | name | meaning |
        |---|---|
        | `error` | share of sequences with a margin of at most 0 |
        | `norm` | Euclidean norm of all weights |
        | `norm_U`, `norm_W` | H^(-1/2) sum_h |U_h|, and the mean of |W_h| |
        | `largest_norm` | the largest norm of one head |
        | `margin`, `normalized_margin` | least y output, and that over norm_U |
        | `attention` | mean weight on the tracked tokens, over heads, sequences and queries |
        | `distance_NAME`, `cosine_U_NAME`, `cosine_W_NAME` | from each target |

        The last line and `attention` are there if asked for. `log_gradient_norm` and `step_length` are over all
        heads for rules that see lengths alone; for others (Adam) over one head of each group.
        """
        problem, forward = seen.problem, seen.forward
        counts = head_counts(problem)
        heads = jnp.sum(counts)
        weights = objective.weights(seen.params, problem)
        squares = {name: _squared(w) for name, w in weights.items()}
        norm_U = jnp.sum(counts * jnp.sqrt(squares["U"])) / jnp.sqrt(heads)
        margins = problem.y * forward.outputs
        margin = jnp.min(margins)
        metrics = {
            "error": _error(margins),
            "norm": jnp.sqrt(jnp.sum(counts * (squares["U"] + squares["W"]))),
            "norm_U": norm_U,
            "norm_W": jnp.sum(counts * jnp.sqrt(squares["W"])) / heads,
            "largest_norm": jnp.sqrt(jnp.max(squares["U"] + squares["W"])),
            "margin": margin,
            "normalized_margin": jnp.where(norm_U > 0, margin / jnp.where(norm_U > 0, norm_U, 1.0), jnp.nan),
        }
        if seen.compared.relevant is not None:
            on = jnp.sum(jnp.where(seen.compared.relevant[None, :, None, :], forward.attention, 0.0), axis=-1)
            metrics["attention"] = jnp.sum(counts * jnp.mean(on, axis=(1, 2))) / heads
        for name, target in seen.targets.items():
            away = sum(jnp.sum(counts * _squared(weights[key] - target[key])) for key in weights)
            metrics[f"distance_{name}"] = jnp.sqrt(away)
            for key, w in weights.items():
                inner = jnp.sum(counts * jnp.sum(w * target[key], axis=tuple(range(1, w.ndim))))
                size = jnp.sum(counts * squares[key]) * jnp.sum(counts * _squared(target[key]))
                safe = jnp.sqrt(jnp.where(size > 0, size, 1.0))
                metrics[f"cosine_{key}_{name}"] = jnp.where(size > 0, inner / safe, jnp.nan)
        return metrics

    def test_records(self, loss: Loss, outputs: Array, y: Array) -> Params:
        """`test_loss`, and `test_error`: the share of test sequences with a margin of at most 0."""
        return {"test_loss": loss.objective(outputs, y), "test_error": _error(y * outputs)}

    # What records compare with.

    def compared(
        self, data: Tokens, prepared: Prepared, start: Weights, track: ArrayLike | None, test: Data | None
    ) -> HeadsCompared:
        """Tokens to follow, a mask (n, T)."""
        relevant = None
        if track is not None:
            wanted = f"a mask of shape {data.x.shape[:-1]}, True at the tokens to follow"
            relevant = boolean_array("track", track, wanted)
            if relevant.shape != data.x.shape[:-1]:
                raise InputError(message(f"`track` has shape {relevant.shape}; wanted {wanted}."))
        return HeadsCompared(relevant)

    def targets(self, data: Tokens, targets: Targets | None, start: Weights) -> dict[str, Weights]:
        """Weights of one head, or of every group, to compare with."""
        named = cast(dict[str, Weights], super().targets(data, targets, start))
        axis = 0 if data.trials is None else 1
        groups = start["W"].shape[axis]
        for name, target in named.items():
            given = target["W"].shape[axis]
            if given not in (1, groups):
                raise InputError(message(f"target {name!r} has {given} groups; wanted 1 or {groups}."))
            named[name] = {key: np.array(np.broadcast_to(w, start[key].shape)) for key, w in target.items()}
        return named


def head_counts(problem: Problem) -> Array:
    """Heads per group, (G,)."""
    assert problem.constants is not None
    return problem.constants["counts"]


def _squared(weights: Value) -> Array:
    """Squared norms of groups, (G,)."""
    return jnp.sum(weights * weights, axis=tuple(range(1, weights.ndim)))


def _error(margins: Array) -> Array:
    return jnp.mean(jnp.where(margins > 0, 0.0, 1.0))
