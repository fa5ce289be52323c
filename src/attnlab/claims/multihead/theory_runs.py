"""Gradient descent under the conditions of the theory: as many heads as it asks for, and its step size.

Tokens are short (R = 1) and easy to separate, so that the bounds say something: they are below the loss at the start.
Heads that start equal are one group, so that millions of them cost nothing; runs of one shape go side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.claims.multihead.conditions import (
    longest_token,
    rho,
    root_of_heads,
    sharp_rho,
    sharp_root_of_heads,
)
from attnlab.data.tokens import Array, Tokens
from attnlab.models import MultiHead, in_float64
from attnlab.models.multihead import head_counts
from attnlab.models.problem import Objective, Problem
from attnlab.svm import linear_margin
from attnlab.theory.multihead import Shape, attention_of, head_requirement, smoothness
from attnlab.theory.multihead.ntk import head_gradient

Weights = dict[str, Array]
Start = Literal["zero", "signs"]
Data = Literal["short", "signal and noise"]

TOGETHER = 1024  # steps of one call
SIDE_BY_SIDE = 8  # runs of one call
PARTS = np.linspace(0.0, 1.0, 11)  # of the segments to the target


def data(name: Data, seed: int, n: int = 10) -> Tokens:
    """Sequences of two tokens no longer than 1.

    Short: both are (0.98 y, noise), noise uniform in +-0.15. Signal and noise: (y, 0) and (0, +-1), in either order.
    """
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) % 2, -1.0, 1.0)
    if name == "short":
        first = np.broadcast_to(0.98 * y[:, None], (n, 2))
        x = np.stack([first, rng.uniform(-0.15, 0.15, (n, 2))], axis=-1)
        return Tokens.self_attention(x, y, np.array([1.0, 0.0]))
    signal = np.stack([y, np.zeros(n)], axis=-1)
    noise = np.stack([np.zeros(n), rng.choice([-1.0, 1.0], n)], axis=-1)
    turned = rng.random(n) < 0.5
    first, second = np.where(turned[:, None], noise, signal), np.where(turned[:, None], signal, noise)
    return Tokens.self_attention(np.stack([first, second], axis=1), y, np.array([1.0, 0.0]))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a run is planned.

    Attributes:
        data, seed: of the sequences.
        start: at zero, or at plus and minus one matrix, as after phase one.
        reach: the target has linearized margins of at least this; negative for a target on the wrong side.
        sharp: heads and step size from the constants that do not grow with d.
        heads: H; None takes as many as Theorem 1 asks for.
        step: the step size; None takes the largest that Theorem 1 allows.
        time: step size times steps is at most this; None takes as many steps as Theorem 1 allows.
    """

    data: Data = "short"
    seed: int = 0
    start: Start = "zero"
    reach: float = 1.6
    sharp: bool = False
    heads: int | None = None
    step: float | None = None
    time: float | None = None

    @property
    def name(self) -> str:
        """For tables."""
        constants = "sharp" if self.sharp else "printed"
        heads = "" if self.heads is None else f", {self.heads} heads"
        step = "" if self.step is None else f", step {self.step:g}"
        return f"{self.data} {self.seed}, start {self.start}, reach {self.reach:g}, constants {constants}{heads}{step}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A run of gradient descent, and the constants that the theorem speaks of.

    Attributes:
        recipe: what it was made from.
        tokens, model, start, target: weights are those of one head of each group.
        shape: the constants behind heads and step size.
        D: distance of start and target over all heads.
        g: longest head of the target.
        step, K: step size, steps.
        start_loss, target_loss: train losses.
    """

    recipe: Recipe
    tokens: Tokens
    model: MultiHead
    start: Weights
    target: Weights
    shape: Shape
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


def train_loss(tokens: Tokens, weights: Weights, counts: Array) -> Array:
    """Mean logistic loss of groups of heads; weights may have leading axes."""
    A = attention_of(tokens.x, weights["W"][..., None, :, :])  # (.., G, n, T, T)
    each = np.einsum("...gnts,...gtd,nsd->...gn", A, weights["U"], tokens.x, optimize=True)
    outputs = np.einsum("g,...gn->...n", counts, each) / np.sqrt(counts.sum())
    return np.logaddexp(0.0, -tokens.y * outputs).mean(-1)


def direction(tokens: Tokens, start: Weights) -> tuple[Weights, float]:
    """The direction of norm sqrt(2) over all heads with the best linearized margin at the start, and that margin.

    Of two groups of equal size, each times the root of its share; divide by sqrt(H / 2) for one head.
    """
    each = [head_gradient(tokens.x, U, W).flat for U, W in zip(start["U"], start["W"], strict=True)]
    best = linear_margin(np.concatenate(each, axis=-1) / np.sqrt(2.0), tokens.y)
    assert best.weights is not None, best
    unit = (np.sqrt(2.0) * best.weights / np.linalg.norm(best.weights)).reshape(2, -1)  # (G, P)
    cut = start["U"][0].size
    parts = {"U": unit[:, :cut].reshape(start["U"].shape), "W": unit[:, cut:].reshape(start["W"].shape)}
    return parts, float(np.sqrt(2.0) * best.lower)


def plan(recipe: Recipe) -> Plan:
    """As many heads as Theorem 1 asks for, and its step size and steps where the recipe leaves them open.

    Heads form two groups of equal size.
    """
    tokens = data(recipe.data, recipe.seed)
    mean = np.mean(tokens.y[:, None] * tokens.x.mean(1), axis=0)
    row = 0.2 * mean if recipe.start == "signs" else np.zeros(tokens.d)
    start = {
        "U": np.array([1.0, -1.0])[:, None, None] * np.tile(row, (tokens.T, 1)),
        "W": np.zeros((2, tokens.d, tokens.d)),
    }
    along, gamma = direction(tokens, start)
    shape = Shape.of(tokens.x, sharp=recipe.sharp)
    move = recipe.reach / gamma
    D = float(np.sqrt(2.0)) * abs(move)

    def reached(H: float) -> Weights:
        return {k: start[k] + move * along[k] / np.sqrt(H / 2.0) for k in start}

    H = float(recipe.heads or 2)
    for _ in range(0 if recipe.heads else 5):  # more heads have a shorter longest head, which asks for fewer
        H = 2.0 * np.ceil(head_requirement(shape, D, float(longest(reached(H)))) / 2.0)
    target = reached(H)
    g = float(longest(target))
    counts = np.array([H / 2.0, H / 2.0])
    start_loss = float(train_loss(tokens, start, counts))
    target_loss = float(train_loss(tokens, target, counts))
    largest = min(1.0, 1.0 / smoothness(shape, D, g, H), D**2 / start_loss)
    step = largest if recipe.step is None else recipe.step
    time = D**2 / target_loss if recipe.time is None else min(recipe.time, D**2 / target_loss)
    return Plan(
        recipe=recipe,
        tokens=tokens,
        model=MultiHead(int(H), counts=counts.tolist()),
        start=start,
        target=target,
        shape=shape,
        D=D,
        g=g,
        step=step,
        K=max(1, int(time / step)),
        start_loss=start_loss,
        target_loss=target_loss,
    )


def slack_of_theorem_3(plan: Plan) -> dict[str, float]:
    """By how much heads and step size meet Theorem 3, relatively: from weights and tokens alone, by its printed text.

    With sharp constants the same conditions with those.
    """
    x, y = plan.tokens.x, plan.tokens.y
    T, d, H = x.shape[1], x.shape[2], float(sum(plan.counts))
    R = longest_token(x)
    squares, longest_head = 0.0, 0.0
    for count, U, W, U_0, W_0 in zip(
        plan.counts, plan.target["U"], plan.target["W"], plan.start["U"], plan.start["W"], strict=True
    ):
        squares += float(count) * float(np.sum((U - U_0) ** 2) + np.sum((W - W_0) ** 2))
        longest_head = max(longest_head, float(np.sqrt(np.sum(U**2) + np.sum(W**2))))
    D = float(np.sqrt(squares))
    outputs = [plan.model.outputs(plan.tokens, weights) for weights in (plan.start, plan.target)]
    start_loss, target_loss = (float(np.mean(np.log1p(np.exp(-y * output)))) for output in outputs)
    if plan.recipe.sharp:
        needed, smooth = sharp_root_of_heads(T, R, D, longest_head), sharp_rho(T, R, D, longest_head, H)
    else:
        needed, smooth = root_of_heads(T, d, R, D, longest_head), rho(T, d, R, D, longest_head, H)
    return {
        "sqrt(H) / needed - 1": float(np.sqrt(H)) / needed - 1.0,
        "1 / step - 1": 1.0 / plan.step - 1.0,
        "1 / (rho step) - 1": 1.0 / (smooth * plan.step) - 1.0,
        "D^2 / (step K L(theta)) - 1": D**2 / (plan.step * plan.K * target_loss) - 1.0,
        "D^2 / (step L(theta_0)) - 1": D**2 / (plan.step * start_loss) - 1.0,
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class Followed:
    """What happened, at steps 0 to K.

    Attributes:
        loss: train loss.
        gradient: its gradient's norm over all heads.
        weights: of one head of each group, (K + 1, G, ..).
        distance, moved: over all heads, from the target and from the start.
        longest: the longest head.
    """

    loss: Array
    gradient: Array
    weights: Weights
    distance: Array
    moved: Array
    longest: Array


@in_float64
def follow(plans: list[Plan]) -> list[Followed]:
    """Every step of gradient descent, for plans of one shape side by side."""
    prepared = [p.model.at(p.tokens, p.start) for p in plans]
    stacked = [(p.start, ready.problem, p.step) for p, ready in zip(plans, prepared, strict=True)]
    stacked += [stacked[-1]] * (SIDE_BY_SIDE - len(stacked))
    params, problem, step = jax.tree.map(lambda *a: np.stack(a), *stacked)
    parts = []
    for _ in range(0, max(p.K for p in plans) + 1, TOGETHER):
        params, states = _steps(prepared[0].objective, problem, params, step)
        parts.append(jax.tree.map(np.asarray, states))
    weights, loss, gradient = jax.tree.map(lambda *a: np.concatenate(a), *parts)  # (steps, runs, ..)
    runs = []
    for i, p in enumerate(plans):
        steps = slice(0, p.K + 1)
        iterates = {k: w[steps, i] for k, w in weights.items()}
        runs.append(
            Followed(
                loss=loss[steps, i],
                gradient=gradient[steps, i],
                weights=iterates,
                distance=distance(iterates, p.target, p.counts),
                moved=distance(iterates, p.start, p.counts),
                longest=longest(iterates),
            )
        )
    return runs


def largest_between(plan: Plan, run: Followed) -> Array:
    """The largest loss at 11 points between each iterate and the target, (K + 1,); for short runs."""
    largest = np.full(len(run.loss), -np.inf)
    for part in PARTS:
        weights = {k: plan.target[k] + part * (w - plan.target[k]) for k, w in run.weights.items()}
        largest = np.maximum(largest, train_loss(plan.tokens, weights, plan.counts))
    return largest


@partial(jax.jit, static_argnames="objective")
def _steps(objective: Objective, problem: Problem, params: Any, step: Any) -> Any:
    def one(params: Any, problem: Problem, step: Any) -> Any:
        scaled, forward = objective.gradient(params, problem)
        slope = scaled.value()
        size = jnp.sqrt(sum(jnp.sum(head_counts(problem)[:, None, None] * g**2) for g in slope.values()))
        after = jax.tree.map(lambda p, g: p - step * g, params, slope)
        return after, (params, objective.value(problem, forward), size)

    def all_runs(params: Any, _: Any) -> Any:
        return jax.vmap(one)(params, problem, step)

    return jax.lax.scan(all_runs, params, None, length=TOGETHER)


@cache
def followed(recipes: tuple[Recipe, ...]) -> tuple[tuple[Plan, Followed], ...]:
    """Plans and runs, once; those of similar length side by side."""
    plans = sorted((plan(recipe) for recipe in recipes), key=lambda p: p.K)
    pairs: list[tuple[Plan, Followed]] = []
    for first in range(0, len(plans), SIDE_BY_SIDE):
        group = plans[first : first + SIDE_BY_SIDE]
        pairs += zip(group, follow(group), strict=True)
    return tuple(pairs)


def recipes(*groups: Iterable[Recipe]) -> tuple[Recipe, ...]:
    """All of them, each once."""
    return tuple(dict.fromkeys(recipe for group in groups for recipe in group))
