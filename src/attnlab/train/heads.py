"""Multi-head attention as a job for the loop, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from attnlab.checks import boolean_array, enough_memory, instance, number, shown, whole
from attnlab.data.families import START_STREAM
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import Params, ScaledGradient
from attnlab.models.evaluate import LossLike
from attnlab.models.functions import call_metrics
from attnlab.models.multihead import HeadsEvaluation, HeadsModel, HeadsProblem, MultiHead, check_sequences
from attnlab.optim.rule import StepRule, scaled, total_log_norm
from attnlab.train.attention import with_trials
from attnlab.train.loop import Job
from attnlab.train.metrics import UserMetrics, check_names
from attnlab.train.start import COPIES, Init

MOST_SCALE = 1e90  # of random weights, whose squares are summed


class HeadsView(NamedTuple):
    """What a metric of your own sees: one trial at one recorded step; weights are those of one head per group."""

    params: Params
    counts: Array  # (G,)
    attention: Array  # (G, n, T, T)
    outputs: Array  # (n,)
    margins: Array  # (n,)


class Compared(NamedTuple):
    """What the records of a trial compare with."""

    relevant: Any  # (n, T) tokens whose attention is recorded, or None
    test: Any  # (x, y) of other sequences, or None


def heads_job(
    tokens: Tokens,
    model: MultiHead,
    rule: Any,
    *,
    targets: Any,
    track: ArrayLike | None,
    test: Tokens | None,
    loss: LossLike,
    init: Init,
    init_scale: float,
    seed: int,
    metrics: UserMetrics | None,
) -> Job:
    """Multi-head attention with these options; see `descend`."""
    instance("model", model, MultiHead, "a model of attnlab, or None", "al.models.MultiHead(heads=8)")
    check_sequences(tokens)
    start = _start(tokens, model, init, init_scale, seed)
    groups = start["W"].shape[-3]
    # Lengths and sums over all heads, for rules that see nothing else; other rules see one head of each group.
    all_heads = isinstance(rule, StepRule) and rule.isotropic
    problem = with_trials(model.problem(tokens, groups, all_heads=all_heads), tokens)
    core = HeadsModel.of(model.decoder, loss)
    held = problem.held

    def times(weights: dict[str, Any], factor: np.ndarray) -> dict[str, Any]:
        return {k: w * factor.reshape(*factor.shape, *[1] * (w.ndim - 2)) for k, w in weights.items()}

    def selected(params: dict[str, Any]) -> np.ndarray:
        return np.asarray(_largest(params, problem, core))

    compared = with_trials(Compared(_relevant(track, tokens), _test(test, tokens)), tokens)
    return Job(
        model=core, measure=measure, problem=problem, params=times(with_trials(start, tokens), held),
        tracked=compared, targets=_targets(targets, tokens, model, groups), start=start,
        weights=lambda params: times(params, 1.0 / held), selected=selected,
        exact=("U", "W") if all_heads and (held != 1).any() else (),
    )  # fmt: skip


def _start(tokens: Tokens, model: MultiHead, init: Init, scale: float, seed: int) -> dict[str, np.ndarray]:
    lead = () if tokens.trials is None else (tokens.trials,)
    scale, seed = number("init_scale", scale, least=0, most=MOST_SCALE), whole("seed", seed, 0)
    if not isinstance(init, str):
        if not isinstance(init, Mapping):
            raise InputError(message("`init` is an array; wanted {'U': .., 'W': ..} for a model of several heads."))
        return model.check(tokens, init, "init")
    groups = len(model.counts) if model.counts is not None else 1 if init == "zeros" else model.heads
    shapes = model.shapes(tokens)
    size = sum(float(np.prod(shape)) for shape in shapes.values()) * groups * (tokens.trials or 1)
    enough_memory(
        COPIES * size, f"Weights of {groups} groups of heads and their gradients", "fewer heads, or `counts=`"
    )
    if init == "zeros":
        return {name: np.zeros((*lead, groups, *shape)) for name, shape in shapes.items()}
    if init != "gaussian":
        raise InputError(
            message(
                f"`init` is {shown(init)}; a model of several heads starts at 'zeros', 'gaussian' or given weights.",
                "init='zeros'",
            )
        )
    drawn = []
    for i in range(tokens.trials or 1):
        rng = np.random.default_rng([seed, i, START_STREAM])
        drawn.append({name: scale * rng.standard_normal((groups, *shape)) for name, shape in shapes.items()})
    if tokens.trials is None:
        return drawn[0]
    return {name: np.stack([one[name] for one in drawn]) for name in shapes}


def _relevant(track: ArrayLike | None, tokens: Tokens) -> np.ndarray | None:
    if track is None:
        return None
    wanted = f"a mask of shape {tokens.x.shape[:-1]}, True at the tokens to follow"
    mask = boolean_array("track", track, wanted)
    if mask.shape != tokens.x.shape[:-1]:
        raise InputError(message(f"`track` has shape {mask.shape}; wanted {wanted}."))
    return mask


def _test(test: Tokens | None, tokens: Tokens) -> tuple[np.ndarray, np.ndarray] | None:
    if test is None:
        return None
    check_sequences(test, "test")
    if (test.trials, test.T, test.d) != (tokens.trials, tokens.T, tokens.d):
        raise InputError(message(f"`test` is {test!r}; wanted tokens with the T, d and trials of {tokens!r}."))
    return test.x, test.y


def _targets(targets: Any, tokens: Tokens, model: MultiHead, groups: int) -> dict[str, dict[str, np.ndarray]]:
    if targets is None:
        return {}
    if not isinstance(targets, Mapping):
        raise InputError(message(f"`targets` is {shown(targets)}; wanted {{'U': .., 'W': ..}}, or a dict of them."))
    named = {"target": targets} if set(targets) == {"U", "W"} else dict(targets)
    found = {}
    for name, given in named.items():
        weights = with_trials(model.check(tokens, given, f"targets[{name!r}]"), tokens)
        shape = {k: (w.shape[0], groups, *w.shape[2:]) for k, w in weights.items()}
        if weights["W"].shape[1] not in (1, groups):
            raise InputError(message(f"target {name!r} has {weights['W'].shape[1]} groups; wanted 1 or {groups}."))
        found[name] = {k: np.array(np.broadcast_to(w, shape[k])) for k, w in weights.items()}
    return found


@partial(jax.jit, static_argnums=2)
def _largest(params: Any, problem: HeadsProblem, model: HeadsModel) -> Any:
    return jax.vmap(lambda p, q: jnp.argmax(model.evaluate(p, q).attention, axis=-1))(params, problem)


def measure(
    model: HeadsModel,
    problem: HeadsProblem,
    params: Params,
    gradient: ScaledGradient,
    evaluation: HeadsEvaluation,
    update: Params,
    tracked: Compared,
    targets: dict[str, Params],
    user: tuple[tuple[str, Callable[[HeadsView], Any]], ...],
) -> dict[str, Any]:
    """All metrics of one trial; norms, distances and cosines are over all H heads.

    | name | meaning |
    |---|---|
    | `loss`, `log_loss` | the objective, and its logarithm (also where it underflows) |
    | `error` | share of sequences with a margin of at most 0 |
    | `norm` | Euclidean norm of all weights |
    | `norm_U`, `norm_W` | H^(-1/2) sum_h |U_h|, and the mean of |W_h| |
    | `largest_norm` | the largest norm of one head |
    | `margin`, `normalized_margin` | least y output, and that over norm_U |
    | `log_gradient_norm`, `step_length` | over all weights; length of the next step |
    | `attention` | mean weight on the tracked tokens, over heads, sequences and queries |
    | `test_loss`, `test_error` | on the test sequences |
    | `distance_NAME`, `cosine_U_NAME`, `cosine_W_NAME` | from each target |

    The last two lines and `attention` are there if asked for. `log_gradient_norm` and `step_length` are over all heads
    for rules that see lengths alone; for others (Adam) over one head of each group.
    """
    counts, heads = problem.counts, jnp.sum(problem.counts)
    own = {name: p / problem.held.reshape(-1, *[1] * (p.ndim - 1)) for name, p in params.items()}
    squares = {name: jnp.sum(w * w, axis=tuple(range(1, w.ndim))) for name, w in own.items()}
    norm_U = jnp.sum(counts * jnp.sqrt(squares["U"])) / jnp.sqrt(heads)
    margin = jnp.min(evaluation.margins)
    found = {
        "loss": model.objective(evaluation),
        "log_loss": model.log_objective(evaluation),
        "error": jnp.mean(jnp.where(evaluation.margins > 0, 0.0, 1.0)),
        "norm": jnp.sqrt(jnp.sum(counts * (squares["U"] + squares["W"]))),
        "norm_U": norm_U,
        "norm_W": jnp.sum(counts * jnp.sqrt(squares["W"])) / heads,
        "largest_norm": jnp.sqrt(jnp.max(squares["U"] + squares["W"])),
        "margin": margin,
        "normalized_margin": jnp.where(norm_U > 0, margin / jnp.where(norm_U > 0, norm_U, 1.0), jnp.nan),
        "log_gradient_norm": total_log_norm(gradient.mantissa, gradient.log_scale),
        "step_length": jnp.exp(total_log_norm(*scaled(update, None))),
    }
    if tracked.relevant is not None:
        on = jnp.sum(jnp.where(tracked.relevant[None, :, None, :], evaluation.attention, 0.0), axis=-1)
        found["attention"] = jnp.sum(counts * jnp.mean(on, axis=(1, 2))) / heads
    if tracked.test is not None:
        x, y = tracked.test
        other = model.evaluate(params, problem._replace(x=x, y=y))
        found["test_loss"] = model.objective(other)
        found["test_error"] = jnp.mean(jnp.where(other.margins > 0, 0.0, 1.0))
    for name, target in targets.items():
        apart = sum(jnp.sum(counts * _squared(own[k] - target[k])) for k in own)
        found[f"distance_{name}"] = jnp.sqrt(apart)
        for k, w in own.items():
            inner = jnp.sum(counts * jnp.sum(w * target[k], axis=tuple(range(1, w.ndim))))
            size = jnp.sum(counts * squares[k]) * jnp.sum(counts * _squared(target[k]))
            found[f"cosine_{k}_{name}"] = jnp.where(size > 0, inner / jnp.sqrt(jnp.where(size > 0, size, 1.0)), jnp.nan)
    check_names(user, found)
    view = HeadsView(own, counts, evaluation.attention, evaluation.outputs, evaluation.margins)
    return found | call_metrics(user, view)


def _squared(weights: Array) -> Array:
    return jnp.sum(weights * weights, axis=tuple(range(1, weights.ndim)))
