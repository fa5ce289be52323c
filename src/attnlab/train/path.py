"""`regularization_path`: the least loss over growing balls of weights.

    W-RP     W(R)   = argmin of L(W)      over |W|_F <= R, or over the ball of any other norm
    KQ-RP    K,Q(R) = argmin of L(K Q^T)  over |K|^2 + |Q|^2 <= 2R, that is over |W|_* <= R of rank <= m
    local RP the same over cone_eps(selected)

As R grows the direction tends to the Frobenius, or nuclear, max-margin direction of the best tokens (Theorem 2 of
*Transformers as Support Vector Machines*; Lemma 15 for the nuclear ball), or of the tokens that the cone belongs to
(Theorems 9 and 10). The loss is not convex in W. At each radius one search goes on from the solution at the radius
before, one starts at the max-margin direction if it is given, some start at random; the lowest is kept, and what each
of them found is reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import enough_memory, one_of, shown, whole
from attnlab.data.directions import misalignment
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import Attention
from attnlab.models.heads import HeadLike, as_head
from attnlab.models.losses import LossLike, as_loss
from attnlab.models.model import Data, Model, Shapes
from attnlab.models.precision import in_float64
from attnlab.models.scaled import GivenWeights
from attnlab.train.normball import MatrixNorm, NormBall
from attnlab.train.options import the_model
from attnlab.train.pathresult import PathProgress, PathStatus, RegularizationPath
from attnlab.train.pathstart import Starts, check_lengths, check_radii, check_toward, cone_of, sizes, weights_toward
from attnlab.train.pathwalk import SOLVED, Solutions, Stage, Walk
from attnlab.train.sphere import Measure, unpack

# Inside the cone by no more than this share of eps is at its edge.
EDGE = 1e-3
# A W whose nuclear norm is below the radius by more than this share of it is inside the ball.
ROOM = 1e-6
NUMBERS_PER_WEIGHT = 60  # that a search keeps: twice its memory of 20 steps, and the rest


@in_float64
def regularization_path(
    tokens: Data,
    toward: GivenWeights | None = None,
    *,
    radii: Sequence[float] | np.ndarray = (1, 3, 10, 30, 100),
    model: Model | None = None,
    norm: Literal["frobenius", "nuclear"] | MatrixNorm = "frobenius",
    loss: LossLike | None = None,
    head: HeadLike | None = None,
    measure: Measure | None = None,
    m: int | None = None,
    restarts: int = 6,
    selected: ArrayLike | None = None,
    cone: float | ArrayLike | None = None,
    seed: int = 0,
    on_step: Callable[[PathProgress], None] | None = None,
) -> RegularizationPath:
    """Minimise the loss over balls of growing radius and follow the direction of the minimiser.

    Args:
        tokens: the data; a trial axis makes a batch.
        toward: a max-margin matrix (d, d), or one per trial. `radii` then count in units of its norm, a search starts
            from it at each radius, and the misalignment with it is reported.
        radii: increasing, above 0. Without `toward` they are radii themselves.
        model: any `al.Model`, whose weights together stay in the ball; `toward` are then weights by name. None for one
            attention layer, to which `norm`, `head`, `m`, `selected` and `cone` belong.
        norm: "frobenius" bounds |W|_F; "nuclear" bounds (|K|^2 + |Q|^2) / 2 with W = K Q^T; a norm of
            `attnlab.svm.norms`, or one of your own, bounds that of W. Such a path is slower, and has no cone.
        loss, head: as in `al.descend`.
        measure: what is minimised: "log excess" over the best tokens (the default for the linear head), exact however
            small it is; or "loss" (the default for other heads, which may prefer mixtures of tokens to any one token).
        m: width of K and Q (default d).
        restarts: searches from random weights at each radius.
        selected: tokens, laid out as the labels, around which to stay: the local path of Theorem 9. Needs `toward`,
            their max-margin matrix. The excess loss is then measured from them.
        cone: eps of cone_eps(selected). Default: half of what `toward` itself reaches.
        seed: of the restarts. Trial i uses stream (seed, i).
        on_step: called with a `PathProgress` after each radius.

    Returns:
        A `RegularizationPath`.

    >>> import attnlab as al
    >>> tokens = al.data.two_tokens()
    >>> path = regularization_path(tokens, al.solve_margin(tokens, [0]).W, radii=(1, 10), restarts=2)
    >>> path.directions[-1].round(6).tolist(), path.misalignment.max() < 1e-12
    ([[1.0, 0.0], [0.0, 0.0]], np.True_)
    """
    began = time.perf_counter()
    ball = None if isinstance(norm, str) else NormBall.of(norm)
    if ball is None:
        one_of("norm", norm, ("frobenius", "nuclear"))
    called = cast(str, norm) if ball is None else ball.norm.name
    _check_ball(ball, model, selected)
    if on_step is not None and not callable(on_step):
        raise InputError(message(f"`on_step` is {shown(on_step)}; wanted a function of a `PathProgress`."))
    if measure is not None:
        one_of("measure", measure, ("log excess", "loss"))
    searched = _model(model, "frobenius" if ball is not None else called, head, m)
    data = searched.accepts(tokens, "tokens")
    searched.check_trainable(data)
    restarts, seed = whole("restarts", restarts, 0), whole("seed", seed, 0)
    multiples = check_radii(radii)
    blank = _blank(searched, data, seed)
    prepared = searched.prepare(data, as_loss(searched.usual_loss if loss is None else loss), blank, isotropic=True)
    prepared.check_loss()
    if model is None:
        axis = check_toward(cast(ArrayLike | None, toward), cast(Tokens, data))
    else:
        axis = weights_toward(toward, searched, data, blank)
    unit_radius = np.ones(data.trials or 1) if axis is None else sizes(axis, called, ball)
    check_lengths(multiples, unit_radius)
    lead = 0 if data.trials is None else 1
    frozen = prepared.objective.frozen
    shapes = tuple((name, p.shape[lead:]) for name, p in prepared.params.items() if name not in frozen)
    frozen_params = {name: np.asarray(prepared.params[name]) for name in frozen}
    fixed = {name: p if data.trials else p[None] for name, p in frozen_params.items()}
    _check_room(data, shapes, restarts)
    problem = jax.tree.map(lambda a: np.asarray(a) if data.trials else np.asarray(a)[None], prepared.problem)
    around = None
    if selected is not None:
        if model is not None:
            raise InputError(message("`selected` is for one attention layer, not for a `model`."))
        problem, around = cone_of(cast(Tokens, data), problem, as_head(head or "linear"), selected, cone, axis)
    elif cone is not None:
        raise InputError(message("`cone` is given without `selected`, the tokens that it belongs to."))
    walk = Walk(
        objective=prepared.objective,
        measure=measure or ("log excess" if searched.floor_is_known else "loss"),
        norm=called,
        ball=ball,
        shapes=shapes,
        problem=problem,
        fixed=fixed,
        weights=prepared.weights,
        cone=around,
        starts=Starts(
            model=searched, problem=problem, shapes=shapes, toward=axis, cone=around, restarts=restarts, seed=seed
        ),
    )
    stages: list[Stage] = []
    for k, multiple in enumerate(multiples):
        stages.append(walk.stage(k, multiple * unit_radius, stages[-1] if stages else None))
        if on_step is not None:
            on_step(PathProgress(k + 1, len(multiples), time.perf_counter() - began))
    return _path(stages, walk, data, multiples, unit_radius, axis, began)


def _model(model: Model | None, norm: str, head: HeadLike | None, m: int | None) -> Model:
    """The model, or the layer that the options are short for."""
    if norm == "frobenius" and m is not None:
        raise InputError(message("`m` is the width of K and Q; there is none with norm='nuclear' alone."))
    if model is None:
        width = None if m is None else whole("m", m)
        layer = Attention("W" if norm == "frobenius" else "KQ", "linear" if head is None else head, width)
        return layer.directly()
    if norm == "nuclear" or head is not None:
        name = "norm" if norm == "nuclear" else "head"
        raise InputError(message(f"`{name}` is for one attention layer; a `model` says itself what is trained."))
    return the_model(model, {}).directly()


def _check_ball(ball: NormBall | None, model: Model | None, selected: ArrayLike | None) -> None:
    """Refuse what goes with the two norms that have searches of their own only."""
    if ball is None:
        return
    for name, given in (("model", model), ("selected", selected)):
        if given is not None:
            raise InputError(message(f"`{name}` is not for `norm` {ball.norm.name!r}.", "norm='frobenius'"))


def _blank(model: Model, data: Data, seed: int) -> dict[str, Array]:
    """Zero weights, at which nothing is ever evaluated, and those that are not trained as they are drawn."""
    lead = () if data.trials is None else (data.trials,)
    shapes = model.shapes(data)
    drawn = {} if all(weight.trained for weight in shapes.values()) else model.initial(data, seed)
    return {name: np.zeros(lead + weight.shape) if weight.trained else drawn[name] for name, weight in shapes.items()}


def _check_room(data: Data, shapes: Shapes, restarts: int) -> None:
    """Refuse searches whose memories would not fit."""
    size = sum(math.prod(shape) for _, shape in shapes)
    searches = float(data.trials or 1) * (restarts + 2)
    enough_memory(NUMBERS_PER_WEIGHT * searches * size, f"{searches:.0f} searches", "fewer `restarts`")


def _path(
    stages: list[Stage],
    walk: Walk,
    data: Data,
    multiples: Array,
    unit_radius: Array,
    axis: Array | None,
    began: float,
) -> RegularizationPath:
    best: Solutions = jax.tree.map(lambda *parts: np.stack(parts, axis=1), *(s.best for s in stages))
    inside = np.stack([s.inside for s in stages], axis=1)
    lost = ~np.isfinite(best.value)
    weights = np.where(lost[..., None], np.nan, best.weights)
    named = _weights(weights, walk)
    W = weights[..., None]  # of a model without W a column of all its weights
    if axis is None or axis.ndim == 3:
        W = _matrices(named, W)
    residual = best.residual
    if walk.factored:
        # Unbalanced K and Q on the sphere make any W inside the nuclear ball; the whole gradient vanishes there.
        spent = sizes(np.where(lost[..., None, None], 1.0, W).reshape(-1, *W.shape[-2:]), walk.norm).reshape(lost.shape)
        slackened = ~lost & ~inside & (spent < (1.0 - ROOM) * multiples * unit_radius[:, None])
        inside = inside | slackened
        residual = np.where(slackened, best.size, residual)
    best = best._replace(residual=residual)
    slack = walk.slack(W)
    share = None if walk.cone is None else slack / np.maximum(walk.cone.eps, 1e-300)[:, None]
    off = None
    if axis is not None:
        off = misalignment(W, axis[:, None] if axis.ndim == 3 else axis[:, None, :, None])

    def alone(a: Any) -> Any:
        return a if a is None or data.trials is not None else a[0]

    return RegularizationPath(
        multiples=multiples,
        radii=alone(multiples * unit_radius[:, None]),
        weights={name: alone(array) for name, array in named.items()},
        value=alone(best.value),
        measure=walk.measure,
        residual=alone(np.where(lost, np.nan, best.residual)),
        radial=alone(np.where(lost, np.nan, best.radial)),
        starts=walk.starts.names,
        found=alone(np.stack([s.ends for s in stages], axis=1)),
        winner=alone(np.stack([s.winner for s in stages], axis=1)),
        evaluations=alone(best.evaluations),
        misalignment=alone(off),
        toward=alone(axis),
        slack=alone(slack),
        eps=None if walk.cone is None else alone(walk.cone.eps),
        status=alone(_statuses(best, inside, share)),
        norm=walk.norm,
        seconds=time.perf_counter() - began,
    )


def _weights(vectors: Array, walk: Walk) -> dict[str, Array]:
    """The weights at parameters (trials, m, size), by name."""
    params = unpack(vectors, walk.shapes)
    at_radius = []
    for k in range(vectors.shape[1]):
        trained = {name: p[:, k] for name, p in params.items()}
        at_radius.append(walk.weights(trained | walk.fixed))
    return {name: np.stack([weights[name] for weights in at_radius], axis=1) for name in at_radius[0]}


def _matrices(named: Mapping[str, Array], otherwise: Array) -> Array:
    """W, or K Q^T, of one attention layer."""
    if set(named) == {"W"}:
        return named["W"]
    if set(named) == {"K", "Q"}:
        return np.einsum("...im,...jm->...ij", named["K"], named["Q"])
    return otherwise


def _statuses(best: Solutions, inside: NDArray[np.bool_], slack: Array | None) -> NDArray[np.object_]:
    status = np.full(best.value.shape, PathStatus.SPHERE, dtype=object)
    status[(best.radial > 0) & ~inside] = PathStatus.INWARD
    status[inside] = PathStatus.INTERIOR
    rough = ~(best.residual <= SOLVED)
    status[rough] = PathStatus.INACCURATE
    # A direction found at a smaller radius is kept where the measure has reached its floor; here there is none.
    status[np.logical_and.accumulate(~(best.size > 0) & ~inside, axis=1)] = PathStatus.FLAT
    if slack is not None:
        status[rough & (slack <= EDGE)] = PathStatus.EDGE
    status[~np.isfinite(best.value)] = PathStatus.UNDEFINED
    return status
