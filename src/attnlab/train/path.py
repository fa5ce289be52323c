"""`regularization_path`: the least loss over growing balls of weights.

    W-RP     W(R)   = argmin of L(W)      over |W|_F <= R
    KQ-RP    K,Q(R) = argmin of L(K Q^T)  over |K|^2 + |Q|^2 <= 2R, that is over |W|_* <= R of rank <= m
    local RP the same over cone_eps(selected)

As R grows the direction tends to the Frobenius, or nuclear, max-margin direction of the best tokens (Theorem 2 of
*Transformers as Support Vector Machines*; Lemma 15 for the nuclear ball), or of the tokens that the cone belongs to
(Theorems 9 and 10). The loss is not convex in W. At each radius one search goes on from the solution at the radius
before, one starts at the max-margin direction if it is given, some start at random; the lowest is kept, and what each
of them found is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import enough_memory, instance, one_of, shown, whole
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import AttentionModel, Problem
from attnlab.models.evaluate import HeadLike, LossLike
from attnlab.models.extremes import prepared
from attnlab.models.functions import check_functions
from attnlab.models.heads import as_head
from attnlab.models.losses import as_loss
from attnlab.models.powers import exponent, lowered
from attnlab.models.precision import in_float64
from attnlab.train.alignment import misalignment
from attnlab.train.blocks import in_blocks
from attnlab.train.pathresult import PathProgress, PathStatus, RegularizationPath
from attnlab.train.pathstart import Starts, check_radii, check_toward, cone_of, sizes
from attnlab.train.sphere import Cone, Lowest, Measure, Region, lowest, unpack

TOLERANCE = 1e-10  # of the residual, at which a search ends
EVALUATIONS = 5000  # of one search
FLOOR = 1.0  # with `toward`, a search also ends where the gradient of the log excess is below TOLERANCE times this
# A residual up to this is a minimum; the direction is then right to about 1e-6 of the condition number.
SOLVED = 1e-6
# Inside the cone by no more than this share of eps is at its edge.
EDGE = 1e-3
# A W whose nuclear norm is below the radius by more than this share of it is inside the ball.
ROOM = 1e-6
SMALLEST = 1e-290  # radius; squares and products with it are formed by logarithms alone
NUMBERS_PER_WEIGHT = 60  # that a search keeps: twice its memory of 20 steps, and the rest
# A ball search begins this far inside the sphere.
INSIDE = 0.99


@in_float64
def regularization_path(
    tokens: Tokens,
    toward: ArrayLike | None = None,
    *,
    radii: Sequence[float] = (1, 3, 10, 30, 100),
    norm: Literal["frobenius", "nuclear"] = "frobenius",
    loss: LossLike = "logistic",
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
        norm: "frobenius" bounds |W|_F; "nuclear" bounds (|K|^2 + |Q|^2) / 2 with W = K Q^T.
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
    instance("tokens", tokens, Tokens, "al.Tokens", "al.Tokens(x=, z=, y=, v=)")
    one_of("norm", norm, ("frobenius", "nuclear"))
    if on_step is not None and not callable(on_step):
        raise InputError(message(f"`on_step` is {shown(on_step)}; wanted a function of a `PathProgress`."))
    width, restarts, seed = _whole_numbers(tokens, norm, m, restarts, seed)
    multiples = check_radii(radii)
    head_ = as_head("linear" if head is None else head)
    model = AttentionModel.of("W" if norm == "frobenius" else "KQ", as_loss(loss), head_)
    if measure is not None:
        one_of("measure", measure, ("log excess", "loss"))
    check_functions(tokens, model.loss, head_)
    axis = check_toward(toward, tokens)
    unit_radius = np.ones(tokens.trials or 1) if axis is None else sizes(axis, norm)
    _check_radii(multiples, unit_radius)
    _check_room(tokens, width, restarts)
    model, alone = prepared(model, tokens, head_)
    problem = jax.tree.map(lambda a: np.asarray(a) if tokens.trials else np.asarray(a)[None], alone)
    around = None
    if selected is not None:
        problem, around = cone_of(tokens, problem, head_, selected, cone, axis)
    elif cone is not None:
        raise InputError(message("`cone` is given without `selected`, the tokens that it belongs to."))
    walk = _Walk(
        model=model,
        measure=measure or ("log excess" if model.linear else "loss"),
        problem=problem,
        cone=around,
        starts=Starts(problem=problem, toward=axis, cone=around, width=width, restarts=restarts, seed=seed),
    )
    stages: list[_Stage] = []
    for k, multiple in enumerate(multiples):
        stages.append(walk.stage(k, multiple * unit_radius, stages[-1] if stages else None))
        if on_step is not None:
            on_step(PathProgress(k + 1, len(multiples), time.perf_counter() - began))
    return _path(stages, walk, tokens, multiples, unit_radius, axis, norm, began)


def _whole_numbers(tokens: Tokens, norm: str, m: Any, restarts: Any, seed: Any) -> tuple[int | None, int, int]:
    if norm == "frobenius" and m is not None:
        raise InputError(message("`m` is the width of K and Q; there is none with norm='frobenius'."))
    width = None
    if norm == "nuclear":
        width = tokens.d if m is None else whole("m", m)
    return width, whole("restarts", restarts, 0), whole("seed", seed, 0)


def _check_radii(multiples: Array, unit_radius: Array) -> None:
    """Refuse radii that are no floats, once they count in units of `toward`."""
    with np.errstate(over="ignore", under="ignore"):
        radii = multiples * unit_radius[:, None]
    if not (np.isfinite(radii) & (radii > SMALLEST)).all():
        raise InputError(
            message(f"`radii` times the norm of `toward` is {radii.min():g} to {radii.max():g}; wanted numbers from "
                    f"{SMALLEST:g} to 1.8e308.", "scale the tokens, and solve for `toward` again")
        )  # fmt: skip


def _check_room(tokens: Tokens, width: int | None, restarts: int) -> None:
    """Refuse searches whose memories would not fit."""
    size = tokens.d * (tokens.d if width is None else 2 * width)
    searches = float(tokens.trials or 1) * (restarts + 2)
    enough_memory(NUMBERS_PER_WEIGHT * searches * size, f"{searches:.0f} searches", "fewer `restarts`")


@dataclass(frozen=True, eq=False)
class _Stage:
    """One radius of all trials: the best of the searches, (trials, ...), and the value of each."""

    best: Lowest
    found: Array  # (trials, starts)
    winner: NDArray[np.intp]
    inside: NDArray[np.bool_]  # is the minimum inside the ball?


@dataclass(eq=False)
class _Walk:
    """The searches of all trials and starts, radius by radius."""

    model: AttentionModel
    measure: Measure
    problem: Problem
    cone: Cone | None
    starts: Starts
    compiled: frozenset[str] = frozenset()

    def stage(self, number: int, radius: Array, before: _Stage | None) -> _Stage:
        """Solve at one radius per trial."""
        # |K|^2 + |Q|^2 = 2R
        length = radius if self.model.parameterization == "W" else np.sqrt(2.0 * radius)
        points = self.starts.at(number, None if before is None else before.best.weights)
        trials, searches = points.shape[:2]
        # Where attention has settled on worse tokens the gradient is exponentially small. A search can follow it out
        # of there, slowly; that is worth it only where no search starts in the right place.
        guided = self.measure == "log excess" and self.starts.toward is not None
        lanes = self._search("sphere", points, length, FLOOR if guided else 0.0)
        value = np.where(np.isfinite(lanes.value), lanes.value, np.inf)
        winner = value.argmin(1)
        best = Lowest(*(part[np.arange(trials), winner] for part in lanes))
        best = best._replace(value=value.min(1), evaluations=lanes.evaluations.sum(1))
        rough = np.isfinite(best.value) & (best.residual > TOLERANCE)
        if rough.any():
            best = self._refined(best, rough, searches, length)
        inward = best.radial > 0
        if before is not None:
            inward |= before.best.value < best.value  # the smaller ball did better
        inward &= np.isfinite(best.value) & (self.cone is None)
        inside = np.zeros(trials, dtype=bool)
        if inward.any():
            candidates = INSIDE * best.weights[:, None]
            if before is not None:  # what was inside a smaller ball is inside this one
                candidates = np.concatenate([candidates, before.best.weights[:, None]], axis=1)
            balls = self._search("ball", candidates, length, 0.0)
            at = np.where(np.isfinite(balls.value), balls.value, np.inf).argmin(1)
            ball = Lowest(*(part[np.arange(trials), at] for part in balls))
            inside = inward & (ball.value < best.value) & (ball.residual <= SOLVED)
            ball = ball._replace(radial=best.radial, evaluations=best.evaluations + balls.evaluations.sum(1))
            best = Lowest(*(_pick(inside, one, other) for one, other in zip(ball, best, strict=True)))
        return _Stage(best, value, winner, inside)

    def _refined(self, best: Lowest, rough: NDArray[np.bool_], searches: int, length: Array) -> Lowest:
        """`best` with those trials that are `rough` searched on, to the strict tolerance."""
        # As many lanes as before, all alike: the program is compiled already.
        lanes = self._search("sphere", np.repeat(best.weights[:, None], searches, axis=1), length, 0.0)
        fine = Lowest(*(part[:, 0] for part in lanes))
        fine = fine._replace(evaluations=best.evaluations + fine.evaluations)
        better = rough & (fine.residual < best.residual)
        return Lowest(*(_pick(better, one, other) for one, other in zip(fine, best, strict=True)))

    def _search(self, region: Region, points: Array, length: Array, floor: float) -> Lowest:
        """All searches of all trials, in one compiled program; (trials, searches, ...)."""
        trials, searches, _ = points.shape

        def per_lane(a: Any) -> Array:
            return np.repeat(np.asarray(a), searches, axis=0)

        program = partial(
            lowest, model=self.model, measure=self.measure, region=region, tolerance=TOLERANCE, evaluations=EVALUATIONS
        )
        # A search on the sphere sees the direction of its start; squares of a start of 1e-200 would underflow.
        points = points if region == "ball" else lowered(points, exponent(points, (-1,)), 1)
        lanes = (
            jax.tree.map(per_lane, self.problem),
            jax.tree.map(per_lane, self.cone),
            points.reshape(trials * searches, -1),
            per_lane(length),
            np.full(trials * searches, floor),
        )
        found = in_blocks(program, lanes, compiled=region in self.compiled)
        self.compiled |= {region}
        return Lowest(*(part.reshape(trials, searches, *part.shape[1:]) for part in found))

    def slack(self, W: Array) -> Array | None:
        """By how much W, (trials, m, d, d), is inside the cone."""
        if self.cone is None:
            return None
        return np.stack([self.starts.shield(W[:, k]) for k in range(W.shape[1])], axis=1) - self.cone.eps[:, None]


def _pick(which: NDArray[np.bool_], one: Array, other: Array) -> Array:
    return np.where(which.reshape(-1, *[1] * (one.ndim - 1)), one, other)


def _path(
    stages: list[_Stage],
    walk: _Walk,
    tokens: Tokens,
    multiples: Array,
    unit_radius: Array,
    axis: Array | None,
    norm: str,
    began: float,
) -> RegularizationPath:
    best = Lowest(*(np.stack(parts, axis=1) for parts in zip(*(s.best for s in stages), strict=True)))
    inside = np.stack([s.inside for s in stages], axis=1)
    lost = ~np.isfinite(best.value)
    weights = np.where(lost[..., None], np.nan, best.weights)
    named = unpack(weights, tokens.d, norm == "nuclear")
    W = named["W"] if "W" in named else np.einsum("...im,...jm->...ij", named["K"], named["Q"])
    residual = best.residual
    if norm == "nuclear":
        # Unbalanced K and Q on the sphere make any W inside the nuclear ball; the whole gradient vanishes there.
        spent = sizes(np.where(lost[..., None, None], 1.0, W).reshape(-1, *W.shape[-2:]), norm).reshape(lost.shape)
        slackened = ~lost & ~inside & (spent < (1.0 - ROOM) * multiples * unit_radius[:, None])
        inside = inside | slackened
        residual = np.where(slackened, best.size, residual)
    best = best._replace(residual=residual)
    slack = walk.slack(W)
    share = None if walk.cone is None else slack / np.maximum(walk.cone.eps, 1e-300)[:, None]
    off = None if axis is None else misalignment(W, axis[:, None])

    def alone(a: Any) -> Any:
        return a if a is None or tokens.trials is not None else a[0]

    return RegularizationPath(
        multiples=multiples,
        radii=alone(multiples * unit_radius[:, None]),
        W=alone(W),
        K=alone(named.get("K")),
        Q=alone(named.get("Q")),
        value=alone(best.value),
        measure=walk.measure,
        residual=alone(np.where(lost, np.nan, best.residual)),
        radial=alone(np.where(lost, np.nan, best.radial)),
        starts=walk.starts.names,
        found=alone(np.stack([s.found for s in stages], axis=1)),
        winner=alone(np.stack([s.winner for s in stages], axis=1)),
        evaluations=alone(best.evaluations),
        misalignment=alone(off),
        toward=alone(axis),
        slack=alone(slack),
        eps=None if walk.cone is None else alone(walk.cone.eps),
        status=alone(_statuses(best, inside, share)),
        norm=norm,
        seconds=time.perf_counter() - began,
    )


def _statuses(best: Lowest, inside: NDArray[np.bool_], slack: Array | None) -> NDArray[np.object_]:
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
