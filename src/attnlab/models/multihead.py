"""Multi-head self-attention with a linear decoder.

One head maps a sequence x (T, d) to `F(x; U, W) = <U, softmax(x W x^T) x>`, where row t of the logits belongs to the
query x_t. H heads are averaged as `H^(-1/2) sum_h F(x; U_h, W_h)`, and the objective is the mean over sequences of
`loss(y output)`.

Heads that start equal stay equal under every step rule. They are kept once, as a group with a count: the output is
`H^(-1/2) sum_g c_g F_g`, and the gradient of each head of a group is that of the output in F_g without its count. A
million heads that start at zero cost as much as one.

Narrow heads share one decoder U and have factors in place of U_h and W_h: `W_h = W_Qh W_Kh^T`, `U_h = U (W_Vh W_Oh)^T`,
so that F is `<U, softmax(x W_Q W_K^T x^T) x W_V W_O>`. What is said of whole heads holds of these products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from attnlab.checks import boolean_array, finite_array, instance, number, one_of, shown, whole
from attnlab.data.families import Seed
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.groups import of_all, of_groups
from attnlab.models.headtokens import HeadTokens
from attnlab.models.losses import Loss
from attnlab.models.model import Init, Model, Targets, Weight, Weights
from attnlab.models.powers import check_range
from attnlab.models.problem import Example, Forward, Held, Objective, Prepared, Problem, Seen
from attnlab.models.scaled import GivenWeights, Params, Value
from attnlab.models.softmax import softmax

Decoder = Literal["full", "pooling", "last"]
DECODERS: tuple[Decoder, ...] = ("full", "pooling", "last")
MOST_HEADS = 1e100
MOST_DIVISOR = 1e150
FACTORS = ("W_Q", "W_K", "W_V", "W_O")


class HeadsCompared(NamedTuple):
    """What the records of a trial compare with."""

    relevant: np.ndarray | None  # (n, T) tokens whose attention is recorded


class MultiHead(Model[Tokens]):
    """H heads of self-attention with a decoder each, in groups of equal heads.

    Args:
        heads: H, as large as you like.
        decoder: "full" (U of shape (T, d)), "pooling" (one vector u for all tokens), or "last" (u on the last token).
        counts: heads per group, summing to H. None: one group where all heads start equal, else H groups of one.
        normalization: c of `H^(-c) sum_h F_h`; theory is about 1/2.
        head_width: columns of W_Q, W_K and W_V of each head, "d/H" for an equal share of d; None for whole U and W.

    Weights are {"U": (G, T, d), "W": (G, d, d)}, or U (G, d) for the other decoders, one entry per group. Those of
    narrow heads are W_Q, W_K and W_V (G, d, head_width), W_O (G, head_width, d), and one U (T, d) or (d,) for all.
    Derivatives by them are by the weights of one head of each group.

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
    normalization: float = 0.5
    head_width: int | Literal["d/H"] | None = None

    def __init__(
        self,
        heads: int,
        decoder: Decoder = "full",
        counts: Sequence[float] | np.ndarray | None = None,
        normalization: float = 0.5,
        head_width: int | Literal["d/H"] | None = None,
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
        normalization = number("normalization", normalization, least=0)
        if normalization * np.log(float(heads)) > np.log(MOST_DIVISOR):
            problem = f"`normalization` is {normalization:g} with {heads:g} heads; wanted H^c at most {MOST_DIVISOR:g}."
            raise InputError(message(problem, "normalization=0.5"))
        if head_width is not None and not (isinstance(head_width, str) and head_width == "d/H"):
            head_width = whole("head_width", head_width)
        settings = {"heads": int(heads), "decoder": decoder, "counts": counts}
        for name, value in {**settings, "normalization": normalization, "head_width": head_width}.items():
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

    @property
    def shared(self) -> tuple[str, ...]:
        """Weights that all heads have in common: the decoder of narrow heads."""
        return () if self.head_width is None else ("U",)

    @property
    def logits_by(self) -> str:
        """A weight that every head has."""
        return "W" if self.head_width is None else "W_Q"

    def _width_of(self, d: int) -> int:
        """Columns of the factors of narrow heads, for tokens of dimension d."""
        if isinstance(self.head_width, int):
            return self.head_width
        if d % self.heads:
            problem = f"`head_width` is 'd/H', and {self.heads} heads do not divide d = {d} into whole numbers."
            raise InputError(message(problem, "head_width= takes a number"))
        return d // self.heads

    def head_shapes(self, data: Tokens) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights of one head."""
        tokens = self.accepts(data)
        d = tokens.d
        decoder = {"U": (tokens.T, d) if self.decoder == "full" else (d,)}
        if self.head_width is None:
            return decoder | {"W": (d, d)}
        width = self._width_of(d)
        return decoder | {name: (width, d) if name == "W_O" else (d, width) for name in FACTORS}

    def shapes(self, data: Tokens) -> dict[str, Weight]:
        """Of all groups, as many as there are where heads start apart."""
        groups = self.heads if self.counts is None else len(self.counts)
        law = "gaussian" if self.head_width is None else "lecun"
        return {
            name: Weight(shape if name in self.shared else (groups, *shape), law)
            for name, shape in self.head_shapes(data).items()
        }

    def start(self, data: Tokens, init: Init, scale: float, seed: Seed) -> Weights:
        """ "zeros" (one group), "gaussian" (every head of its own), or {"U": .., "W": ..} of the groups.

        Narrow heads start by any law but "zeros", or (None) by "lecun".
        """
        if self.head_width is not None and isinstance(init, str) and init == "zeros":
            problem = "`init='zeros'` with `head_width`: zero is a stationary point, training would never move."
            raise InputError(message(problem, "init='gaussian' with init_scale=, or weights by name"))
        if self.head_width is not None or not isinstance(init, str | None):
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
        shapes = self.head_shapes(data)
        if not isinstance(weights, Mapping) or set(weights) != set(shapes):
            given = sorted(map(str, weights)) if isinstance(weights, Mapping) else shown(weights)
            wanted = ", ".join(f"{key!r}: .." for key in shapes)
            raise InputError(message(f"`{name}` has {given}; wanted {{{wanted}}}."))
        checked = {}
        for key, shape in shapes.items():
            check_one = of_all if key in self.shared else of_groups
            checked[key] = check_one(f"{name}[{key!r}]", weights[key], shape, data.trials)
        axis = 0 if data.trials is None else 1
        groups = {value.shape[axis] for key, value in checked.items() if key not in self.shared}
        if len(groups) > 1:
            names = " and ".join(key for key in shapes if key not in self.shared)
            numbers = sorted(groups)
            raise InputError(message(f"`{name}` has {names} of {numbers} groups; wanted one number of groups."))
        return checked

    def constants(self, data: Tokens, weights: Weights) -> dict[str, np.ndarray]:
        """Heads per group, and what their sum is divided by."""
        counts = self.grouped(weights[self.logits_by].shape[-3])
        divisor = np.array(self._divisor(counts))
        if data.trials is None:
            return {"counts": counts, "divisor": divisor}
        return {"counts": np.tile(counts, (data.trials, 1)), "divisor": np.tile(divisor, data.trials)}

    def _divisor(self, counts: np.ndarray) -> float:
        """H^c, of so many heads in each group."""
        heads = counts.sum()
        return float(np.sqrt(heads) if self.normalization == 0.5 else heads**self.normalization)

    def held(self, data: Tokens, weights: Weights, *, isotropic: bool) -> Held | None:
        """Rules that see lengths and sums alone see those of all heads; others see one head of each group."""
        counts = self.constants(data, weights)["counts"]
        if (counts == 1).all():
            return None
        root = {}
        for name, w in weights.items():
            roots = np.ones((*counts.shape[:-1], 1)) if name in self.shared else np.sqrt(counts)
            root[name] = roots.reshape(*roots.shape, *[1] * (w.ndim - roots.ndim))
        if isotropic:
            return Held({name: 1.0 / r for name, r in root.items()})
        return Held(None, metric={name: 1.0 / (r * r) for name, r in root.items()})

    def problem(self, data: Tokens, weights: Weights, held: Held | None = None) -> Problem:
        """Tokens and labels; queries are the tokens."""
        return Problem.of(x=data.x, y=data.y, constants=self.constants(data, weights), held=held)

    def heads_as_tokens(self, data: Tokens, weights: GivenWeights) -> list[HeadTokens]:
        """One head of each group; every token asks, and its logits are `x_t W x_s`, those of a layer with W^T."""
        checked = self.whole_heads(self.check(data, weights))
        labels = np.repeat(data.y[..., None], data.T, axis=-1)
        tokens = Tokens(x=data.x, z=data.x, y=labels, v=np.zeros(data.d))
        each = np.swapaxes(np.moveaxis(np.asarray(checked["W"]), -3, 0), -1, -2)  # (G, ..., d, d)
        return [HeadTokens(f"W[{group}]", tokens, W, head=group) for group, W in enumerate(each)]

    def bytes_at_work(self, data: Tokens, weights: Weights) -> int:
        """Of the logits of every group, sequence, query and token."""
        groups = weights[self.logits_by].shape[-3]
        return groups * data.n * data.T * data.T * np.dtype(np.float64).itemsize

    def compiled_as(self) -> MultiHead:
        """Any number of heads, and any normalization: they enter as data."""
        return MultiHead(1, self.decoder, head_width=None if self.head_width is None else 1)

    # In the compiled program, on one trial.

    def output(self, weights: Params, example: Example) -> Array:
        """The average over heads, of one sequence."""
        counts = self.grouped(weights[self.logits_by].shape[0])
        constants = {"counts": jnp.asarray(counts), "divisor": jnp.asarray(self._divisor(counts))}
        alone = Problem.of(x=example.x[None], y=None, constants=constants)
        return self.forward(weights, alone).outputs[0]

    def forward(self, weights: Params, problem: Problem) -> Forward:
        """Outputs (n,), and attention (G, n, T, T)."""
        counts, divisor = head_counts(problem), head_divisor(problem)
        whole = self.whole_heads(weights)
        attention = self.attend(whole["W"], problem.x)
        each = self.decoded(whole["U"], attention, problem.x)
        return Forward(each @ counts / divisor, jnp.transpose(attention, (3, 0, 2, 1)))

    def whole_heads(self, weights: Params) -> Params:
        """{"U", "W"} of every group: themselves, or the products of narrow factors."""
        if self.head_width is None:
            return weights
        values = weights["W_V"] @ weights["W_O"]  # (G, d, d)
        return {
            "U": weights["U"] @ values.swapaxes(-1, -2),
            "W": weights["W_Q"] @ weights["W_K"].swapaxes(-1, -2),
        }

    def attend(self, W: Value, x: Array) -> Array:
        """Attention weights (n, s, t, G) of tokens s for queries t, for W (G, d, d).

        In this order products come as they are stored, one of all sequences and one of each, and sums over tokens run
        along all queries and groups at once.
        """
        queries = jnp.einsum("ntd,gde->ntge", x, W)  # W^T x_t
        return softmax(jnp.einsum("nse,ntge->nstg", x, queries), axis=1)

    def decoded(self, U: Value, attention: Array, x: Array) -> Array:
        """<U, A x> of every sequence and group, (n, G), for attention (n, s, t, G)."""
        if self.decoder == "full":
            scores = jnp.einsum("nsd,gtd->nstg", x, U)
            return jnp.sum(attention * scores, axis=(1, 2))
        queries = attention if self.decoder == "pooling" else attention[:, :, -1:]
        return jnp.sum(jnp.sum(queries, axis=2) * jnp.einsum("nsd,gd->nsg", x, U), axis=1)

    def records(self, objective: Objective, seen: Seen) -> Params:
        """Metrics of one trial; norms, distances and cosines are over all H heads.

        | name | meaning |
        |---|---|
        | `error` | share of sequences with a margin of at most 0 |
        | `norm` | Euclidean norm of all weights |
        | `norm_U`, `norm_W` | H^(-c) sum_h |U_h|, and the mean of |W_h|; of narrow heads of the products |
        | `largest_norm` | the largest norm of one head, less what all share |
        | `margin`, `normalized_margin` | least y output, and that over norm_U |
        | `attention` | mean weight on the tracked tokens, over heads, sequences and queries |
        | `distance_NAME`, `cosine_WEIGHT_NAME` | from each target, over all weights and by weight |

        The last line and `attention` are there if asked for. `log_gradient_norm` and `step_length` are over all
        heads for rules that see lengths alone; for others (Adam) over one head of each group.
        """
        problem, forward = seen.problem, seen.forward
        counts, divisor = head_counts(problem), head_divisor(problem)
        heads = jnp.sum(counts)
        weights = {name: self._by_groups(name, w) for name, w in objective.weights(seen.params, problem).items()}
        times = {name: jnp.ones(1) if name in self.shared else counts for name in weights}
        squares = {name: _squared(w) for name, w in weights.items()}
        of_heads = sum(square for name, square in squares.items() if name not in self.shared)
        of_whole = squares
        if self.head_width is not None:
            whole = self.whole_heads(objective.weights(seen.params, problem))
            of_whole = {name: _squared(w) for name, w in whole.items()}
        norm_U = jnp.sum(counts * jnp.sqrt(of_whole["U"])) / divisor
        margins = problem.y * forward.outputs
        margin = jnp.min(margins)
        metrics = {
            "error": _error(margins),
            "norm": jnp.sqrt(sum((jnp.sum(squares[name]) for name in self.shared), jnp.sum(counts * of_heads))),
            "norm_U": norm_U,
            "norm_W": jnp.sum(counts * jnp.sqrt(of_whole["W"])) / heads,
            "largest_norm": jnp.sqrt(jnp.max(of_heads)),
            "margin": margin,
            "normalized_margin": jnp.where(norm_U > 0, margin / jnp.where(norm_U > 0, norm_U, 1.0), jnp.nan),
        }
        if seen.compared.relevant is not None:
            on = jnp.sum(jnp.where(seen.compared.relevant[None, :, None, :], forward.attention, 0.0), axis=-1)
            metrics["attention"] = jnp.sum(counts * jnp.mean(on, axis=(1, 2))) / heads
        for name, given in seen.targets.items():
            target = {key: self._by_groups(key, w) for key, w in given.items()}
            away = sum(jnp.sum(times[key] * _squared(weights[key] - target[key])) for key in weights)
            metrics[f"distance_{name}"] = jnp.sqrt(away)
            for key, w in weights.items():
                inner = jnp.sum(times[key] * jnp.sum(w * target[key], axis=tuple(range(1, w.ndim))))
                size = jnp.sum(times[key] * squares[key]) * jnp.sum(times[key] * _squared(target[key]))
                safe = jnp.sqrt(jnp.where(size > 0, size, 1.0))
                metrics[f"cosine_{key}_{name}"] = jnp.where(size > 0, inner / safe, jnp.nan)
        return metrics

    def _by_groups(self, name: str, weight: Value) -> Value:
        """With an axis of groups, of one for what all share."""
        return weight[None] if name in self.shared else weight

    def test_records(self, loss: Loss, outputs: Array, y: Array) -> Params:
        """`test_loss`, and `test_error`: the share of test sequences with a margin of at most 0."""
        return {"test_loss": loss.objective(outputs, y), "test_error": _error(y * outputs)}

    # What records compare with.

    def compared(self, data: Tokens, prepared: Prepared, start: Weights, track: ArrayLike | None) -> HeadsCompared:
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
        groups = start[self.logits_by].shape[axis]
        for name, target in named.items():
            given = target[self.logits_by].shape[axis]
            if given not in (1, groups):
                raise InputError(message(f"target {name!r} has {given} groups; wanted 1 or {groups}."))
            named[name] = {key: np.array(np.broadcast_to(w, start[key].shape)) for key, w in target.items()}
        return named


def head_counts(problem: Problem) -> Array:
    """Heads per group, (G,)."""
    assert problem.constants is not None
    return problem.constants["counts"]


def head_divisor(problem: Problem) -> Array:
    """What the sum over heads is divided by."""
    assert problem.constants is not None
    return problem.constants["divisor"]


def _squared(weights: Value) -> Array:
    """Squared norms of groups, (G,)."""
    return jnp.sum(weights * weights, axis=tuple(range(1, weights.ndim)))


def _error(margins: Array) -> Array:
    return jnp.mean(jnp.where(margins > 0, 0.0, 1.0))
