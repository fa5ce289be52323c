"""One attention layer as a job for the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import AttentionModel
from attnlab.models.evaluate import LossLike
from attnlab.models.extremes import logits_overflow, prepared
from attnlab.models.functions import check_functions
from attnlab.models.heads import Head
from attnlab.models.losses import as_loss
from attnlab.train.engine import into_frame
from attnlab.train.loop import Job
from attnlab.train.metrics import UserMetrics, measure
from attnlab.train.program import largest
from attnlab.train.start import Init, initial_weights, refuse_overflow, target_directions, tracked_tokens


def attention_job(
    tokens: Tokens,
    *,
    engine: str,
    parameterization: str,
    head: Head,
    train_head: bool,
    rank: int | None,
    targets: ArrayLike | Mapping[str, ArrayLike] | None,
    track: ArrayLike | None,
    loss: LossLike,
    init: Init,
    init_scale: float,
    seed: int,
    metrics: UserMetrics | None,
) -> Job:
    """Attention with these options; see `descend`."""
    model = AttentionModel.of(parameterization, as_loss(loss), head, train_head)
    check_functions(tokens, model.loss, head)
    start = initial_weights(
        init, tokens, parameterization, rank=rank, scale=init_scale, seed=seed, train_head=train_head
    )
    scored = tokens
    if train_head and tokens.v is None:
        if track is None:
            raise InputError(message("These tokens have no `v` to tell the best token by.", "pass `track=`"))
        scored = Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=np.zeros(tokens.d), mask=tokens.mask)
    model, alone = prepared(model, scored, head, start)
    refuse_overflow(logits_overflow(alone, start))
    tracked = with_trials(tracked_tokens(track, tokens, alone), tokens)
    problem, params = with_trials(alone, tokens), with_trials(start, tokens)
    directions = target_directions(targets, tokens, train_head)
    frame = None
    if engine == "kernel":
        frame, problem, params, directions = into_frame(problem, params, directions, matrices=bool(metrics))

    def weights(params: dict[str, Any]) -> dict[str, Any]:
        return params if frame is None else {**params, "W": frame.matrices(params["W"])}

    def selected(params: dict[str, Any]) -> np.ndarray:
        found = np.asarray(largest(params, problem, model))
        return found[..., 0] if tokens.K is None else found

    return Job(
        model=model, measure=measure, problem=problem, params=params, tracked=tracked, targets=directions, start=start,
        weights=weights, selected=selected, exact=() if frame is None else ("W",),
    )  # fmt: skip


def with_trials(tree: Any, tokens: Tokens | Sequences) -> Any:
    """Arrays with a trial axis, of length 1 where the tokens have none."""
    return jax.tree.map(lambda a: np.asarray(a)[None], tree) if tokens.trials is None else tree
