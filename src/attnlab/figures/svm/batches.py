"""Batches of runs by the step rule of *Transformers as Support Vector Machines*, and what they ended with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnlab.data import Tokens, optimal_tokens, scores
from attnlab.data.tokens import Array
from attnlab.svm import solve_margins

Parameterization = Literal["W", "KQ"]
Norm = Literal["frobenius", "nuclear"]

STEP_SIZE = 0.1
RULE = "normalized GD, step 0.1, norms of K and Q apart, 2.22e-16 added to norms and as regularizer of K and Q"
# The norm whose max-margin problem each parameterization solves, by the paper.
OWN: dict[Parameterization, Norm] = {"W": "frobenius", "KQ": "nuclear"}
NORM_NAMES: dict[str, str] = {"frobenius": "Frobenius", "nuclear": "nuclear"}
# A constraint is tight if its value exceeds 1 by at most this. Frobenius solutions are exact to rounding; the values of
# a nuclear solution are known to the square root of its gap.
TIGHT: dict[Norm, float] = {"frobenius": 1e-6, "nuclear": 1e-3}
PROXY = 1.1  # mean constraint value under which the paper counts B.1 as met


def train(
    tokens: Tokens, parameterization: Parameterization, *, steps: int, seed: int, rule: Any = None, **options: Any
) -> Any:
    """`descend` by the paper's rule, or another; nothing is recorded but the last weights."""
    from attnlab.optim import ngd
    from attnlab.train import descend

    rule = ngd(STEP_SIZE, guard="paper") if rule is None else rule
    return descend(tokens, rule, steps=steps, parameterization=parameterization, seed=seed, record=None, **options)


def started(tokens: Tokens, parameterization: Parameterization, seed: int, block: slice) -> dict[str, Array]:
    """The start of some of the trials, the same as in a run of all of them."""
    from attnlab.models import Attention

    start = Attention(parameterization).start(tokens, None, 1.0, seed)
    return {name: weight[block] for name, weight in start.items()}


def train_along(
    tokens: Tokens, parameterization: Parameterization, stops: Sequence[int], **options: Any
) -> tuple[Any, Array]:
    """The run to the last of the stops, and W at each of them, (trials, stops, d, d).

    The run goes on from stop to stop: a program that records by itself takes twice as long to compile.
    """
    run, path = None, []
    for steps in stops:
        run = train(tokens, parameterization, steps=steps, resume=run, **options)
        path.append(run.W)
    return run, np.stack(path, axis=1)


def constraint_values(tokens: Tokens, selected: NDArray[np.intp], W: Array) -> Array:
    """(x_selected - x_t)^T W z of a batch, (trials, n, T); infinite at the selected tokens, NaN where W is."""
    chosen = np.take_along_axis(tokens.x, selected[..., None, None], axis=-2)
    values = np.einsum("rntd,rde,rne->rnt", chosen - tokens.x, W, tokens.z, optimize=True)
    np.put_along_axis(values, selected[..., None], np.inf, axis=-1)
    return values


def top_attention(tokens: Tokens, W: Array) -> Array:
    """Largest softmax weight, mean over queries, for W of shape (trials, ..., d, d)."""
    logits = np.einsum("rntd,r...de,rne->r...nt", tokens.x, W, tokens.z, optimize=True)
    below = logits.max(-1, keepdims=True) - logits
    return (1.0 / np.exp(-below).sum(-1)).mean(-1)


def some(tokens: Tokens, keep: NDArray[Any]) -> Tokens:
    """Some trials of a batch."""
    v = None if tokens.v is None else tokens.v[keep]
    return Tokens(x=tokens.x[keep], z=tokens.z[keep], y=tokens.y[keep], v=v)


def ended(tokens: Tokens, selected: NDArray[np.intp], W: Array, parameterization: Parameterization) -> dict[str, Any]:
    """What each run of a batch ended with, by name; each (trials,).

    | name | meaning |
    |---|---|
    | `best` | all queries on their best token |
    | `feasible` | some matrix separates the selected tokens |
    | `local` | the selection is locally optimal (Definition 2) |
    | `loose` | some query has no support token, of which the definition says nothing |
    | `best_feasible` | some matrix separates the best tokens |
    | `proxy`, `exact` | B.1 for the best tokens: mean constraint value below 1.1; all values 1 |
    | `cosine` | with the max-margin solution of the selected tokens, in the norm of the parameterization |
    | `attention`, `margin` | largest softmax weight, mean over queries; least lead of a selected token in logits |
    | `gap` | relative duality gap of that solution; NaN if there is none |
    """
    from attnlab.train import cosine

    norm, best = OWN[parameterization], optimal_tokens(tokens)
    for_best = solve_margins(tokens, best, norm=norm)
    at_best = (selected == best).all(-1)
    solution, gap = for_best.W.copy(), for_best.gap.copy()
    if not at_best.all():
        others = solve_margins(some(tokens, ~at_best), selected[~at_best], norm=norm)
        solution[~at_best], gap[~at_best] = others.W, others.gap
    feasible = np.isfinite(gap)
    tight = constraint_values(tokens, selected, solution) <= 1.0 + TIGHT[norm]
    gamma = scores(tokens)
    lead = np.take_along_axis(gamma, selected[..., None], axis=-1) - gamma
    values = constraint_values(tokens, best, for_best.W)
    compared = values[np.isfinite(values) | np.isnan(values)].reshape(len(values), -1)
    return {
        "best": at_best,
        "feasible": feasible,
        "local": feasible & ~(tight & (lead <= 0)).any((-2, -1)),
        "loose": feasible & ~tight.any(-1).all(-1),
        "best_feasible": for_best.feasible,
        "proxy": compared.mean(-1) < PROXY,
        "exact": compared.max(-1) <= 1.0 + TIGHT[norm],
        "cosine": cosine(W, solution),
        "attention": top_attention(tokens, W),
        "margin": constraint_values(tokens, selected, W).min((-2, -1)),
        "gap": np.where(feasible, gap, np.nan),
    }


def listed(values: Any, digits: int = 4) -> list[float]:
    """Rounded numbers as a list; None where there is none."""
    return [float(np.round(v, digits)) if np.isfinite(v) else None for v in np.ravel(values)]  # type: ignore[misc]


def percent(hits: Sequence[Any] | Array) -> float:
    """Share of true values, in percent."""
    return 100.0 * float(np.mean(hits))


def mean_interval(values: Array, draws: int = 1000) -> tuple[Array, Array, Array]:
    """Mean over trials (rows) and its 95 % bootstrap interval; NaN are left out."""
    rng, kept = np.random.default_rng(0), values[np.isfinite(values).all(-1)]
    picked = kept[rng.integers(len(kept), size=(draws, len(kept)))].mean(1)
    low, high = np.quantile(picked, (0.025, 0.975), axis=0)
    return kept.mean(0), low, high
