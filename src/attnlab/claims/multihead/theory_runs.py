"""Gradient descent under the conditions of Theorem 1: as many heads as it asks for, and its step size.

Tokens are short (R = 1) and easy to separate, so that the bound says something: it is below the loss at the start.
Heads that start equal are one group, so that millions of them cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.data.tokens import Array, Tokens
from attnlab.models import MultiHead, in_float64
from attnlab.models.multihead import HeadsModel, HeadsProblem
from attnlab.svm import linear_margin
from attnlab.theory.multihead import Shape, head_requirement, smoothness

Weights = dict[str, Array]
Start = Literal["zero", "signs"]

REACH = 1.6  # the target has linearized margins of at least this
TOGETHER = 1024  # steps of one call
PARTS = np.linspace(0.0, 1.0, 21)  # of the segments to the target


def short_tokens(seed: int, n: int = 10) -> Tokens:
    """Two tokens (0.98 y, noise), with noise uniform in +-0.15: no longer than 1."""
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) % 2, -1.0, 1.0)
    first = np.broadcast_to(0.98 * y[:, None], (n, 2))
    return Tokens.self_attention(np.stack([first, rng.uniform(-0.15, 0.15, (n, 2))], axis=-1), y, np.array([1.0, 0.0]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A run of gradient descent, and the constants that the theorem speaks of.

    Attributes:
        tokens, model, start, target: weights are those of one head of each group.
        shape, step_shape: the constants behind heads and step size.
        D: distance of start and target over all heads.
        g: longest head of the target.
        step, K: step size, steps.
        start_loss, target_loss: train losses.
    """

    tokens: Tokens
    model: MultiHead
    start: Weights
    target: Weights
    shape: Shape
    step_shape: Shape
    D: float
    g: float
    step: float
    K: int
    start_loss: float
    target_loss: float

    @property
    def H(self) -> int:
        """Heads."""
        return self.model.heads

    @property
    def counts(self) -> Array:
        """Heads of each group."""
        return self.model.grouped(len(self.start["W"]))


def distance(one: Weights, other: Weights, counts: Array) -> Array:
    """Over all heads; weights may have leading axes."""
    return np.sqrt(sum(np.sum(counts * np.sum((one[k] - other[k]) ** 2, (-2, -1)), -1) for k in ("U", "W")))


def longest(weights: Weights) -> Array:
    """The longest head."""
    return np.sqrt(sum(np.sum(weights[k] ** 2, (-2, -1)) for k in ("U", "W"))).max(-1)


def direction(tokens: Tokens, start: Weights) -> tuple[Weights, float]:
    """The direction of norm sqrt(2) over all heads with the best linearized margin at the start, and that margin.

    Of two groups of equal size, each times the root of its share; divide by sqrt(H / 2) for one head.
    """
    found = MultiHead(2).features(tokens, start)
    flat = np.concatenate([found[k].reshape(tokens.n, -1) for k in ("U", "W")], axis=-1)
    best = linear_margin(flat, tokens.y)
    assert best.weights is not None, best
    unit = np.sqrt(2.0) * best.weights / np.linalg.norm(best.weights)
    cut = found["U"][0].size
    parts = {"U": unit[:cut].reshape(found["U"][0].shape), "W": unit[cut:].reshape(found["W"][0].shape)}
    return parts, float(np.sqrt(2.0) * best.lower)


def plan(seed: int, start: Start = "zero", *, sharp_heads: bool = False, sharp_step: bool = False) -> Plan:
    """As many heads as Theorem 1 asks for, its largest step size, and as many steps as that allows.

    Heads form two groups of equal size, which start at zero or at plus and minus one matrix, as after phase one.
    With `sharp_heads` and `sharp_step` heads and step size come from the constants that do not grow with d.
    """
    tokens = short_tokens(seed)
    row = 0.2 * np.mean(tokens.y[:, None] * tokens.x.mean(1), axis=0) if start == "signs" else np.zeros(tokens.d)
    U = np.array([1.0, -1.0])[:, None, None] * np.tile(row, (tokens.T, 1))
    begin = {"U": U, "W": np.zeros((2, tokens.d, tokens.d))}
    along, gamma = direction(tokens, begin)
    shape = Shape.of(tokens.x, sharp=sharp_heads)
    D = float(np.sqrt(2.0)) * REACH / gamma

    def reached(H: float) -> Weights:
        return {k: begin[k] + REACH / gamma * along[k] / np.sqrt(H / 2.0) for k in begin}

    H = 2.0
    for _ in range(5):  # more heads have a shorter longest head, which asks for fewer
        H = 2.0 * np.ceil(head_requirement(shape, D, float(longest(reached(H)))) / 2.0)
    target = reached(H)
    g = float(longest(target))
    model = MultiHead(int(H), counts=(H / 2.0, H / 2.0))
    losses = [float(model.loss(tokens, weights)) for weights in (begin, target)]
    step_shape = Shape.of(tokens.x, sharp=sharp_step)
    step = min(1.0, 1.0 / smoothness(step_shape, D, g, H), D**2 / losses[0])
    return Plan(
        tokens=tokens, model=model, start=begin, target=target, shape=shape, step_shape=step_shape, D=D, g=g,
        step=step, K=int(D**2 / (step * losses[1])), start_loss=losses[0], target_loss=losses[1],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Followed:
    """What happened, at steps 0 to K.

    Attributes:
        loss: train loss.
        gradient: its gradient's norm over all heads.
        between: the largest loss at 21 points between the iterate and the target.
        distance, moved: over all heads, from the target and from the start.
        longest: the longest head.
    """

    loss: Array
    gradient: Array
    between: Array
    distance: Array
    moved: Array
    longest: Array


@in_float64
def follow(plan: Plan) -> Followed:
    """Every step of gradient descent."""
    problem = plan.model.problem(plan.tokens, 2)
    params, parts = plan.start, []
    for _ in range(0, plan.K + 1, TOGETHER):
        params, found = _steps(HeadsModel.of("full"), problem, params, plan.target, plan.step)
        parts.append(jax.tree.map(np.asarray, found))
    weights, loss, gradient, between = jax.tree.map(lambda *a: np.concatenate(a)[: plan.K + 1], *parts)
    return Followed(
        loss=loss, gradient=gradient, between=between, distance=distance(weights, plan.target, plan.counts),
        moved=distance(weights, plan.start, plan.counts), longest=longest(weights),
    )  # fmt: skip


@partial(jax.jit, static_argnames="model")
def _steps(model: HeadsModel, problem: HeadsProblem, params: Any, target: Any, step: Any) -> Any:
    def loss(params: Any) -> Any:
        return model.objective(model.evaluate(params, problem))

    def one(params: Any, _: Any) -> Any:
        slope = model.gradient(params, problem)[0].value()
        size = jnp.sqrt(sum(jnp.sum(problem.counts[:, None, None] * g**2) for g in slope.values()))
        between = jax.vmap(lambda a: loss(jax.tree.map(lambda p, t: t + a * (p - t), params, target)))(PARTS)
        after = jax.tree.map(lambda p, g: p - step * g, params, slope)
        return after, (params, loss(params), size, jnp.max(between))

    return jax.lax.scan(one, params, None, length=TOGETHER)


@cache
def followed(seed: int, start: Start, sharp_heads: bool, sharp_step: bool) -> tuple[Plan, Followed]:
    """Plan and run, once."""
    made = plan(seed, start, sharp_heads=sharp_heads, sharp_step=sharp_step)
    return made, follow(made)
