"""Runs of the paper's vision transformer: what its text says, what it leaves open, and how runs are compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnlab.claims.stages import Stages
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array

if TYPE_CHECKING:
    from attnlab.models.vision import VisionTransformer
    from attnlab.train.trajectory import Trajectory

WIDTHS = (16, 1024, 16384)
SCALINGS: tuple[Literal["sqrt", "linear"], ...] = ("sqrt", "linear")
PLAIN = {"sqrt": "m^(-1/2)", "linear": "1/m"}
LARGER = 1e300  # stands for the loss of a run that overflowed, where logarithms are taken


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A vision transformer of one layer and one head, and how it is trained.

    The paper says: d = 64, one layer, one head, step 0.1, momentum 0.9. The rest it leaves open.

    Attributes:
        words: what is particular about it.
        pool: what the head sees: the mean of all tokens, or a class token.
        position_scale: deviation of the learned positions at the start.
        mlp: hidden neurons.
        dropout: share of numbers left out.
        batch: images of a step.
        step, momentum: of the rule.
        dim: of a token.
    """

    words: str
    pool: Literal["cls", "mean"] = "mean"
    position_scale: float = 1.0
    mlp: int = 128
    dropout: float = 0.0
    batch: int = 128
    step: float = 0.1
    momentum: float = 0.9
    dim: int = 64

    def model(self, width: int, scaling: Literal["sqrt", "linear"], patch: int, classes: int | None = 10) -> Any:
        """The transformer whose queries, keys and values have `width` numbers."""
        from attnlab.models import VisionTransformer

        return VisionTransformer(
            classes=classes,
            patch=patch,
            dim=self.dim,
            depth=1,
            heads=1,
            head_dim=width,
            mlp=self.mlp,
            pool=self.pool,
            scaling=scaling,
            position_scale=self.position_scale,
            dropout=self.dropout,
        )

    def train(self, data: Sequences, model: VisionTransformer, **options: Any) -> Trajectory:
        """A run by batches in float32; options are those of `al.descend`."""
        from attnlab.optim import heavy_ball
        from attnlab.train import descend

        rule = heavy_ball(self.step, momentum=self.momentum)
        return descend(data, rule, model=model, batch=min(self.batch, data.n), precision="float32", **options)

    def facts(self) -> dict[str, Any]:
        """What is set, for the note."""
        return {
            "head on": "mean of all tokens" if self.pool == "mean" else "class token",
            "positions at the start": f"N(0, {self.position_scale:g}^2), learned",
            "hidden neurons": self.mlp,
            "dropout": self.dropout,
            "batch": self.batch,
            "step": self.step,
            "momentum": self.momentum,
            "d": self.dim,
        }


MAIN = Setting(words="head on the mean of all tokens, positions N(0, 1)")
# Other readings of the same text.
OTHERS = {
    "cls": Setting(words="head on a class token, positions N(0, 1)", pool="cls"),
    "small": Setting(words="head on the mean of all tokens, positions N(0, 0.02^2)", position_scale=0.02),
}
OPEN = (
    "pooling, law of the positions, hidden neurons, norms, batch, dropout, patches, how pixels are normalised, the "
    "start of the weights"
)
CHOICE = (
    "three readings are run here: a head on the mean or on a class token, positions of deviation 1 or 0.02. The one "
    "known to show most of what the paper says is shown large, the two others beside it with fewer seeds and epochs"
)


def at_steps(run: Trajectory, name: str, steps: Sequence[int]) -> Array:
    """A metric at these steps; NaN where the run had ended or overflowed."""
    values = np.full(len(steps), np.nan)
    where = {int(step): i for i, step in enumerate(run.steps)}
    lost_at = int(run.lost_at)
    for i, step in enumerate(steps):
        if step in where and not 0 <= lost_at < step:
            values[i] = run.metrics[name][where[step]]
    return values


def train_all(
    name: str,
    setting: Setting,
    data: Sequences,
    patch: int,
    widths: Sequence[int],
    seeds: int,
    steps: Sequence[int],
    kept: Sequence[str],
    stage: Stages,
    *,
    told: str = "",
    classes: int | None = 10,
    ended: Callable[[Any, Trajectory], Mapping[str, np.ndarray]] | None = None,
    **options: Any,
) -> dict[str, np.ndarray]:
    """All widths, both scalings, several seeds: metrics (scalings, widths, seeds, steps), and `lost_at` without steps.

    Args:
        name: of these runs, with which the names of their arrays begin.
        stage: each run is one.
        told: how the words of each begin.
        ended: (model, run) -> what else is kept of it.
        options: those of `al.descend`.
    """

    def one(scaling: Literal["sqrt", "linear"], width: int, seed: int) -> dict[str, Any]:
        model = setting.model(width, scaling, patch, classes)
        run = setting.train(data, model, steps=steps[-1], record=list(steps), seed=seed, **options)
        found = {metric: at_steps(run, metric, steps) for metric in kept}
        return {**found, "lost_at": int(run.lost_at), **(ended(model, run) if ended else {})}

    runs = []
    for scaling, width, seed in itertools.product(SCALINGS, widths, range(seeds)):
        words = f"{told}width {width}, tau0 = {PLAIN[scaling]}, seed {seed}"
        runs.append(stage(words, partial(one, scaling, width, seed)))
    shape = (len(SCALINGS), len(widths), seeds)
    stacked = {metric: np.stack([run[metric] for run in runs]) for metric in runs[0]}
    return {f"{name}_{metric}": array.reshape(*shape, *array.shape[1:]) for metric, array in stacked.items()}


def mean_over_time(epochs: Array, values: Array) -> Array:
    """Over the epochs, by trapezoids along the last axis; infinite for a run that overflowed.

    >>> mean_over_time(np.array([0.0, 1.0, 3.0]), np.array([[4.0, 2.0, 0.0], [1.0, np.nan, np.nan]])).tolist()
    [1.6666666666666667, inf]
    """
    area = np.trapezoid(values, epochs, axis=-1) / (epochs[-1] - epochs[0])
    return np.where(np.isfinite(values).all(-1), area, np.inf)


def log_ratio(linear: Array, sqrt: Array) -> Array:
    """Decades by which numbers of tau0 = 1/m are above those of m^(-1/2): 0 if both overflowed."""
    both = np.stack([np.asarray(linear, float), np.asarray(sqrt, float)])
    shown = np.log10(np.minimum(np.maximum(both, 1.0 / LARGER), LARGER))
    return shown[0] - shown[1]
