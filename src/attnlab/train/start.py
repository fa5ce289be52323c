"""What a run starts from: weights, tokens to follow, directions to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import enough_memory, finite_array, number, shown, whole, whole_array
from attnlab.data.families import START_STREAM
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import Problem
from attnlab.models.evaluate import check_weights
from attnlab.train.alignment import unit

COPIES = 6  # of the weights that a run holds: start, weights, gradient, update, state of the rule
Init = Literal["uniform", "gaussian", "zeros"] | Mapping[str, ArrayLike] | ArrayLike


def initial_weights(
    init: Init,
    tokens: Tokens,
    parameterization: str,
    *,
    rank: int | None,
    scale: float,
    seed: int,
    train_head: bool,
) -> dict[str, Array]:
    """Weights at step 0, each with the trial axis of `tokens` if there is one.

    Trial i draws from its own stream (seed, i), so it does not depend on how many trials there are.
    """
    d, names = tokens.d, ("W",) if parameterization == "W" else ("K", "Q")
    if parameterization == "W" and rank is not None:
        raise InputError(message("`rank` bounds the width of K and Q; there is none with parameterization='W'."))
    width = d if rank is None else whole("rank", rank)
    scale, seed = number("init_scale", scale, least=0), whole("seed", seed, 0)
    lead = () if tokens.trials is None else (tokens.trials,)
    if not isinstance(init, str):
        return _given(init, tokens, names, rank, train_head)
    if init not in ("uniform", "gaussian", "zeros"):
        raise InputError(
            message(f"`init` is {shown(init)}; wanted 'uniform', 'gaussian', 'zeros', an array, or a dict.")
        )
    if init == "zeros" and parameterization == "KQ":
        raise InputError(
            message("`init='zeros'` with (K, Q): zero is a stationary point, training would never move.",
                    "init={'K': 0.1 * np.random.default_rng(0).standard_normal((d, d)), 'Q': np.zeros((d, d))}")
        )  # fmt: skip
    shape = (len(names), d, d if parameterization == "W" else width)
    size = COPIES * float(np.prod(shape, dtype=np.float64)) * (tokens.trials or 1)
    enough_memory(size, f"Weights of {'W' if parameterization == 'W' else 'K and Q'} and their gradients")

    def draw(rng: np.random.Generator) -> Array:
        if init == "gaussian":
            return scale * rng.standard_normal(shape)
        return scale * rng.uniform(-1.0, 1.0, shape) / np.sqrt(d)

    if init == "zeros":
        drawn = np.zeros((*lead, *shape))
    else:
        with np.errstate(over="ignore"):
            each = [draw(np.random.default_rng([seed, i, START_STREAM])) for i in range(tokens.trials or 1)]
        drawn = np.stack(each) if lead else each[0]
        if not np.isfinite(drawn).all():
            raise InputError(message(f"`init_scale` is {scale:g}; random weights of that size overflow."))
    weights = {name: drawn[..., k, :, :] for k, name in enumerate(names)}
    return weights | ({"u": np.zeros((*lead, d))} if train_head else {})


def _given(
    init: Mapping[str, ArrayLike] | ArrayLike,
    tokens: Tokens,
    names: tuple[str, ...],
    rank: int | None,
    train_head: bool,
) -> dict[str, Array]:
    weights = check_weights(init, tokens, "init")
    if set(weights) - {"u"} != set(names):
        raise InputError(message(f"`init` gives {sorted(weights)}; this parameterization trains {', '.join(names)}."))
    if "u" in weights and not train_head:
        raise InputError(message("`init` gives `u`, but the head is not trained.", "train_head=True"))
    if rank is not None and "K" in weights and weights["K"].shape[-1] != rank:
        raise InputError(message(f"`init` has width {weights['K'].shape[-1]}, but `rank` is {rank}."))
    if "K" in weights and not (weights["K"].any() or weights["Q"].any()):
        raise InputError(message("`init` has K = Q = 0, a stationary point: training would never move."))
    if train_head and "u" not in weights:
        weights["u"] = np.zeros(weights[names[0]].shape[:-1])
    return weights


def refuse_overflow(trials: np.ndarray | None) -> None:
    """Refuse a start at which the logits of every trial overflow; the others tell by their status."""
    if trials is not None and np.all(trials):
        raise InputError(
            message(
                "The logits x W z of `tokens` at `init` overflow: some are beyond 1.8e308.",
                "smaller tokens or queries, a smaller `init_scale`, or init='zeros'",
            )
        )


def tracked_tokens(track: ArrayLike | None, tokens: Tokens, problem: Problem) -> np.ndarray:
    """The tokens whose attention is recorded, with a query axis: those given, or the best-scoring ones."""
    if track is None:
        return np.asarray(problem.reference)
    wanted = f"token numbers 0 to {tokens.T - 1} of shape {tokens.y.shape}"
    given = whole_array("track", track, wanted)
    if given.shape != tokens.y.shape:
        raise InputError(message(f"`track` has shape {given.shape}; wanted {wanted}."))
    if given.min() < 0 or given.max() >= tokens.T:
        raise InputError(message(f"`track` has numbers from {given.min()} to {given.max()}; wanted {wanted}."))
    if not np.take_along_axis(tokens.visible, given[..., None], axis=-1).all():
        raise InputError(message("`track` names tokens that the mask hides from their query."))
    return np.expand_dims(given, -1) if tokens.K is None else given


def target_directions(
    targets: ArrayLike | Mapping[str, ArrayLike] | None, tokens: Tokens, train_head: bool
) -> dict[str, Array]:
    """Unit directions, each with a trial axis."""
    if targets is None:
        return {}
    named = dict(targets) if isinstance(targets, Mapping) else {"target": targets}
    lead = (1 if tokens.trials is None else tokens.trials,)
    found = {}
    for name, given in named.items():
        if not isinstance(name, str):
            raise InputError(message(f"`targets` has the name {shown(name)}; wanted names that are text."))
        value = finite_array(f"targets[{name!r}]", given)
        shapes = [(tokens.d, tokens.d)] + ([(tokens.d,)] if train_head else [])
        fits = [s for s in shapes if value.shape in (s, (tokens.trials, *s))]
        if not fits:
            wanted = " or ".join(map(str, shapes))
            per_trial = "" if tokens.trials is None else ", or that per trial"
            raise InputError(message(f"`targets[{name!r}]` has shape {value.shape}; wanted {wanted}{per_trial}."))
        if not value.any(tuple(range(value.ndim - len(fits[0]), value.ndim))).all():
            raise InputError(message(f"`targets[{name!r}]` is zero, or of some trial; wanted a direction."))
        batch = np.broadcast_to(value, lead + fits[0])
        found[name] = unit(np, batch if len(fits[0]) == 2 else batch[:, None, :]).reshape(batch.shape)
    return found
