"""What is answered about a scene: max-margin directions, descent, starts; computed by the laboratory itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.data.directions import misalignment
from attnlab.data.selection import TIE, scores
from attnlab.data.tokens import Array
from attnlab.errors import AttnlabError
from attnlab.explore.scene import Facts, Scene
from attnlab.svm import MarginSolution, solve_generalized, solve_margin

if TYPE_CHECKING:
    from attnlab.train import Progress, Trajectory

PER_DECADE = 16  # records of a path, as many as are drawn
DESCENT_SECONDS = 2.0  # of one parameterization; then the path ends where it is, and the page says so
NUCLEAR_LOGITS = 600  # beyond, the nuclear problem is not solved while a mouse moves
KEPT = 1e-3  # attention above this at the end counts as kept, where a head mixes tokens
DIGITS = 6  # of what is drawn; what is read as a number is sent in full

Norm = Literal["frobenius", "nuclear"]
NORMS: tuple[Norm, ...] = ("frobenius", "nuclear")
NORM_OF: dict[str, Norm] = {"W": "frobenius", "KQ": "nuclear"}
Kept = NDArray[np.bool_]  # which tokens of each query, (rows, T)
Cancelled = Callable[[], bool]


class Stale(Exception):
    """A newer message has come; nobody waits for this answer."""


@dataclass
class Answers:
    """Everything that is said about one scene; solutions are kept, so that no selection is solved twice."""

    scene: Scene
    stale: Cancelled = lambda: False
    _solutions: dict[str, Facts] = field(default_factory=dict)
    _directions: dict[tuple[str, Norm], MarginSolution] = field(default_factory=dict)

    def solved(self) -> Facts:
        """Scores, the best tokens, and the max-margin directions of these and of a chosen selection."""
        scene = self.scene
        gamma = self._scores()
        visible = self._rows(scene.tokens.visible)
        seen = np.where(visible, gamma, -np.inf)
        top = seen.max(-1, keepdims=True)
        tied = seen >= top - TIE * np.abs(np.where(visible, gamma, 0.0)).max(-1, keepdims=True)
        best = tied.argmax(-1)  # as `al.optimal_tokens` has it
        facts = {
            "sequences": (np.arange(scene.rows) // (scene.tokens.K or 1)).tolist(),
            "scores": _numbers(np.where(visible, gamma, np.nan)),
            "best": best.tolist(),
            "tied": [np.flatnonzero(row).tolist() if row.sum() > 1 else [] for row in tied],
            "bestKey": self._solve(self._one_each(best)),
            "start": scene.start.tolist(),
            "tokens": _numbers(scene.tokens.x @ scene.plane.T),
            "queries": _numbers(scene.queries @ scene.plane.T),
            "head": _numbers(np.asarray(scene.tokens.v) @ scene.plane.T),
        }
        if scene.chosen is not None:
            facts["chosenKey"] = self._solve(self._one_each(scene.chosen.reshape(-1)))
        return facts | {"solutions": self._solutions}

    def trained(self) -> Facts:
        """The paths of W and K Q^T, and what they are compared with."""
        return {"runs": {name: self._described(name) for name in NORM_OF}, "solutions": self._solutions}

    def _described(self, name: str) -> Facts:
        """One run, or why there is none."""
        try:
            return self._run(name)
        except AttnlabError as error:
            return {"error": str(error)}

    def _run(self, name: str) -> Facts:
        run = descended(self.scene, name, stale=self.stale)
        path: Array = run.metrics["path"]  # (R, d, d)
        attention = run.metrics["probabilities"].reshape(len(run.steps), self.scene.rows, -1)
        kept = self._kept(attention[-1], run.selected)
        key = self._solve(kept)
        scene = self.scene
        return {
            "steps": run.steps.tolist(),
            "path": _numbers(np.einsum("pd,rde,qe->rqp", scene.plane, path, scene.queries)),
            "attention": _numbers(attention, 4),
            "selected": [np.flatnonzero(row).tolist() for row in kept],
            "key": key,
            "log10Excess": _numbers(run.metrics["log_excess_loss"] / np.log(10.0)),
            "loss": _numbers(run.metrics["loss"], 12),
            "norm": _numbers(run.metrics["norm"], 12),
            "margin": _numbers(margins_along(scene, path, kept, NORM_OF[name]), 12),
            "apart": {norm: _numbers(self._apart(path, key, norm), 12) for norm in NORMS},
            "settled": None if run.settled is None else bool(run.settled),
            "status": run.status.name.lower(),
            "message": run.status.value,
            "W": run.W.tolist() if scene.tokens.d <= 2 else None,
            "singular": _numbers(np.linalg.svd(run.W, compute_uv=False)) if np.isfinite(run.W).all() else [],
        }

    def _kept(self, attention: Array, selected: NDArray[np.intp]) -> Kept:
        """The token that each query selects; of a head that mixes, all that keep attention at the end."""
        if self.scene.head == "linear":
            return self._one_each(selected.reshape(-1))
        return attention >= KEPT

    def _one_each(self, tokens: NDArray[np.intp]) -> Kept:
        return np.arange(self.scene.tokens.T) == tokens[:, None]

    def _scores(self) -> Array:
        """Of the tokens, (rows, T)."""
        head = None if self.scene.head == "linear" else self.scene.head_object()
        gamma = scores(self.scene.tokens, head)
        return self._rows(np.broadcast_to(gamma, self.scene.tokens.visible.shape))

    def _rows(self, array: NDArray[Any]) -> NDArray[Any]:
        """(n, T) or (n, K, T) as (rows, T)."""
        return array.reshape(-1, array.shape[-1])

    def _solve(self, kept: Kept) -> str:
        """The key under which both max-margin directions of these tokens are found in `solutions`."""
        key = " ".join("+".join(map(str, np.flatnonzero(row))) for row in kept)
        if key not in self._solutions:
            self._solutions[key] = {norm: self._solution(key, kept, norm) for norm in NORMS}
        return key

    def _solution(self, key: str, kept: Kept, norm: Norm) -> Facts:
        scene = self.scene
        if norm == "nuclear" and kept.size > NUCLEAR_LOGITS:
            text = f"Not solved while tokens move: {kept.size} logits, at most {NUCLEAR_LOGITS} are."
            return {"status": "too_large", "message": text}
        solution = solved_margin(scene, kept, norm)
        self._directions[key, norm] = solution
        facts = solution.summary() | {"farkas": [], "directions": None}
        if solution.feasible:
            facts["directions"] = _numbers(np.einsum("pd,de,qe->qp", scene.plane, solution.W, scene.queries))
            facts["support"] = _places(solution.support)
        if solution.farkas is not None:
            weights = self._rows(solution.farkas)
            facts["farkas"] = [[*map(int, at), float(weights[*at])] for at in np.argwhere(np.abs(weights) > 1e-9)]
        return facts

    def _apart(self, path: Array, key: str, norm: Norm) -> Array:
        """1 - cos of every W on the path to the max-margin direction; NaN where there is none."""
        solution = self._directions.get((key, norm))
        apart = np.full(len(path), np.nan)
        moved = np.isfinite(path).all((-2, -1)) & path.any((-2, -1))
        if solution is not None and solution.feasible and solution.W.any():
            apart[moved] = misalignment(path[moved], solution.W)
        return apart


def descended(
    scene: Scene,
    name: str,
    *,
    stale: Cancelled = lambda: False,
    steps: int | None = None,
    seconds: float | None = DESCENT_SECONDS,
) -> Trajectory:
    """The run of W or of K and Q that the page draws."""
    from attnlab.train import descend

    looks: list[float] = []  # when it was: before it programs are compiled, which counts for nothing

    def look(progress: Progress) -> None:
        looks.append(time.perf_counter())
        if stale():
            raise Stale
        if seconds is not None and looks[-1] - looks[0] > seconds:
            raise _TimeIsUp(progress)

    arguments: dict[str, Any] = {
        "steps": scene.steps if steps is None else steps,
        "parameterization": name,
        "head": scene.head_object(),
        "loss": scene.loss,
        "init": scene.starts()[name],
        "record": PER_DECADE,
        "metrics": {"path": _path, "probabilities": _probabilities},
    }
    try:
        return descend(scene.tokens, scene.step_rule(), on_step=look, **arguments)
    except _TimeIsUp as end:
        return end.progress.snapshot()


class _TimeIsUp(Exception):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress


def solved_margin(scene: Scene, kept: Kept, norm: Norm) -> MarginSolution:
    """The max-margin direction that holds these tokens, (rows, T), above the others."""
    shape = scene.tokens.y.shape
    if (kept.sum(-1) == 1).all():
        return solve_margin(scene.tokens, kept.argmax(-1).reshape(shape), norm=norm, throw=False)
    return solve_generalized(scene.tokens, kept.reshape(*shape, -1), norm=norm, throw=False)


def margins_along(scene: Scene, path: Array, kept: Kept, norm: Norm) -> Array:
    """The least lead of a kept token over a visible other one, over the norm of W, for each W of a path (R, d, d)."""
    tokens = scene.tokens
    logits = np.einsum("ntd,rde,nke->rnkt", tokens.x, path, tokens.z.reshape(tokens.n, -1, tokens.d))
    logits = logits.reshape(len(path), scene.rows, -1)
    others = tokens.visible.reshape(scene.rows, -1) & ~kept
    least = np.where(kept, logits, np.inf).min(-1)
    lead = (least - np.where(others, logits, -np.inf).max(-1)).min(-1)
    singular = np.linalg.svd(np.where(np.isfinite(path), path, 0.0), compute_uv=False)
    lengths = singular.sum(-1) if norm == "nuclear" else np.sqrt((singular**2).sum(-1))
    return np.divide(lead, lengths, out=np.full(len(path), np.nan), where=lengths > 0)


def _path(view: Any) -> Any:
    return view.W


def _probabilities(view: Any) -> Any:
    return view.probs


def _places(support: NDArray[np.bool_] | None) -> list[list[int]] | None:
    """Rows and tokens that are marked."""
    if support is None:
        return None
    return np.argwhere(support.reshape(-1, support.shape[-1])).tolist()


def _numbers(array: ArrayLike, digits: int = DIGITS) -> Any:
    """As nested lists with so many digits; None for what is no number."""
    given = np.asarray(array, dtype=np.float64)
    finite = np.isfinite(given)
    sizes = np.abs(np.where(finite & (given != 0), given, 1.0))
    places = np.clip(digits - 1 - np.floor(np.log10(sizes)), -300, 300)
    scale = 10.0 ** np.minimum(places, 290)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.where(finite, np.round(given * scale) / scale, given)
    rounded = np.where(np.isfinite(rounded), rounded, given)
    numbers = rounded.astype(object)
    numbers[~finite] = None
    return numbers.tolist()
