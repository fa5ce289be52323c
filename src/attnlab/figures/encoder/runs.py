"""Encoders of several widths on Gaussian sequences: how they are trained, how kernels move, how both are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from attnlab.claims.stages import Stages
from attnlab.data.sequences import Sequences, gaussian_sequences
from attnlab.data.tokens import Array
from attnlab.figures.rates.curves import Look, number, plain_log, slope
from attnlab.figures.style import BLUE, GREEN, ORANGE, PURPLE, band

SEED = 60
N, T, D = 100, 10, 100  # the paper's sizes
WIDTHS = (10, 100, 1000, 4000)
EPOCHS = 400
EARLY = 50  # the paper's epoch from which on weights hardly move
LOST = 1e6  # a loss above this has diverged
ROUNDING = 1e-25  # mean squared errors below this are rounding
LOOKS = {
    10: Look("10", ORANGE, (0, (1, 1))),
    100: Look("100", GREEN, "-."),
    1000: Look("1000", BLUE, "--"),
    4000: Look("4000", PURPLE, "-"),
}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to read what the paper leaves open, and what it varies.

    Attributes:
        words: a few, for people.
        norm: of every token, a Gaussian direction; None leaves entries N(0, 1), of norm about sqrt(d).
        loss: how squared errors are summed.
        step: of gradient descent.
        scaling, init, parameterization: of the `Encoder`, which pools by the mean.
    """

    words: str
    norm: float | None = 1.0
    loss: Literal["half_sum", "mse_mean", "half_mean"] = "mse_mean"
    step: float = 1.0
    scaling: Literal["sqrt", "linear"] = "sqrt"
    init: Literal["lecun", "he", "ntk"] = "lecun"
    parameterization: Literal["standard", "ntk"] = "standard"

    def model(self, width: int) -> Any:
        """The encoder of this width."""
        from attnlab.models import Encoder

        return Encoder(width, scaling=self.scaling, init=self.init, parameterization=self.parameterization)

    def data(self, trials: int, n: int = N) -> Sequences:
        """Trial i is the same draw whatever the number of trials is, and the same directions whatever the norm is."""
        if self.norm is None:
            return gaussian_sequences(n, T, D, rows="raw", seed=SEED, trials=trials)
        unit = gaussian_sequences(n, T, D, rows="unit", seed=SEED, trials=trials)
        return Sequences(x=self.norm * unit.x, y=unit.y, info={**unit.info, "norm": self.norm})

    def factor(self, n: int) -> float:
        """Errors r move as r - step factor K r, to first order in the step."""
        from attnlab.models.losses import REDUCTIONS

        return 2.0 * REDUCTIONS[self.loss](n)

    def squares(self, loss: Array, n: int) -> Array:
        """Mean squared error, from the loss that is trained."""
        return 2.0 * loss / (n * self.factor(n))

    def about(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "norm of a token": "entries N(0, 1)" if self.norm is None else self.norm,
            "loss": self.loss,
            "step": self.step,
            "scaling": self.scaling,
            "init": self.init,
            "parameterization": self.parameterization,
            "pool": "mean",
        }


# What the paper leaves open, as it reproduces: "we can always scale the input" (after Assumption 1), and half the sum
# of squares. It is not the only token norm that does: the last panel of Figure 2 has seven.
NORM = 0.17
MAIN = Reading(words="tokens of norm 0.17, half the sum of squares", norm=NORM, loss="half_sum")
# The other way to read it: tokens of norm 1 ("usually assumed to have a unit norm"), the mean of squares.
UNIT = Reading(words="tokens of norm 1, mean of squares")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to train and where to look.

    Attributes:
        epochs: last step.
        every: steps between records of the loss, after the first ten, which are all recorded.
        pairs: epochs t of the kernels K^t and K^(t+1); starts with 0.
        early: the epoch that is compared with the end; one of `pairs`.
    """

    epochs: int
    every: int
    pairs: tuple[int, ...]
    early: int

    @property
    def record(self) -> tuple[int, ...]:
        """Where loss and steps are recorded."""
        grid = {*range(min(10, self.epochs) + 1), *range(0, self.epochs, self.every), self.early, self.epochs}
        return tuple(sorted(grid))

    @property
    def stops(self) -> tuple[int, ...]:
        """Where there are kernels."""
        return tuple(sorted({t + i for t in self.pairs for i in (0, 1)} | {self.epochs}))


def concentration(view: Any) -> Any:
    """T times the mean of |beta|^2 over all rows of attention: 1 if uniform, T if each looks at one token."""
    return view.attention.shape[-1] * (view.attention**2).sum(-1).mean()


OWN = {"concentration": concentration}

# Axes of what `train_widths` returns: under "main" for the widths of the main reading, under other names for others.
_ALONG = {"least": "", "first": "", "late": "", "away": " stop", "largest": " stop", "apart": " pair"}
WIDTH_AXES = {
    **{name: name.removesuffix("s") for name in ("widths", "epochs", "stops", "pairs")},
    **{f"{name}_widths": f"width={name}_widths" for name in ("other", "scan")},
    "scan_left": "norm width=scan_widths seed",
    **{f"main*_{name}": f"width seed{along}" for name, along in _ALONG.items()},
    "main*": "width seed epoch",
    **{f"*_{name}": f"width=other_widths seed{along and ' place'}" for name, along in _ALONG.items()},
    "*": "width=other_widths seed epoch",
}


@lru_cache(maxsize=32)
def rule(step: float) -> Any:
    """Gradient descent; one object for each step size, so that programs are compiled once."""
    from attnlab.optim import gd

    return gd(step)


def segments(data: Sequences, network: Any, step: float, loss: str, plan: Plan, **options: Any) -> Iterator[Any]:
    """One run, as it stands at every stop of the plan; each goes on where the last one ended."""
    from attnlab.train import descend

    run = None
    for stop in plan.stops:
        record = [at for at in plan.record if at <= stop]
        run = descend(
            data,
            rule(step),
            model=network,
            loss=loss,  # type: ignore[arg-type]
            steps=stop,
            record=record,
            metrics=OWN,
            seed=SEED,
            resume=run,
            **options,
        )
        yield run


def kernels(data: Sequences, network: Any, weights: Mapping[str, Array]) -> Array:
    """The tangent kernel of every trial, (trials, n, n); NaN where weights are not finite."""
    from attnlab.theory.tangent import ntk

    found = np.full((len(data.x), data.n, data.n), np.nan)
    for i in range(len(found)):
        own = {name: w[i] for name, w in weights.items()}
        if all(np.isfinite(w).all() for w in own.values()):
            found[i] = ntk(data[i], network, own)
    return found


def moved(one: Array, other: Array) -> Array:
    """Kernel distance of each trial; NaN where a kernel is, after a run that overflowed."""
    from attnlab.theory.tangent import kernel_distance

    found = np.full(len(one), np.nan)
    good = np.isfinite(one).all((1, 2)) & np.isfinite(other).all((1, 2))
    if good.any():
        found[good] = kernel_distance(one[good], other[good])
    return found


def train(reading: Reading, width: int, trials: int, plan: Plan, n: int = N) -> dict[str, np.ndarray]:
    """Train all trials and follow their kernels.

    Returns:
        mse, step, concentration (trials, records): mean squared error, length of the next step over the norm of the
        start, and how far attention is from uniform. frozen (trials, records): what the error would be if the kernel
        stayed at K^0. away, largest (trials, stops): kernel distance from K^0, largest eigenvalue. apart (trials,
        pairs): distance between K^t and K^(t+1). first, late (trials,): distance from the start to the early epoch,
        and from there to the end. least (trials,): smallest eigenvalue of K^0.
    """
    data, network = reading.data(trials, n), reading.model(width)
    taken: dict[int, Array] = {}
    run: Any = None
    for stop, run in zip(plan.stops, segments(data, network, reading.step, reading.loss, plan), strict=True):
        taken[stop] = kernels(data, network, run.weights)
    first = taken[0]
    values, vectors = np.linalg.eigh(first)
    errors = network.outputs(data, run.initial) - data.y
    along = np.einsum("ijk,ij->ik", vectors, errors) ** 2  # squared errors along each eigenvector
    rates = 1.0 - reading.step * reading.factor(n) * values
    with np.errstate(over="ignore"):
        frozen = np.stack([(along * rates ** (2 * at)).mean(-1) for at in plan.record], axis=1)
    return {
        "mse": reading.squares(_whole(run, "loss", plan), n),
        "step": _whole(run, "relative_step", plan),
        "concentration": _whole(run, "concentration", plan),
        "frozen": frozen,
        "least": values[:, 0],
        "away": np.stack([moved(first, taken[at]) for at in plan.stops], axis=1),
        "largest": np.stack([_largest(taken[at]) for at in plan.stops], axis=1),
        "apart": np.stack([moved(taken[at], taken[at + 1]) for at in plan.pairs], axis=1),
        "first": moved(first, taken[plan.early]),
        "late": moved(taken[plan.early], taken[plan.epochs]),
    }


def _whole(run: Any, name: str, plan: Plan) -> Array:
    """A metric at all records; infinite after a run that overflowed."""
    found = np.full((run.trials, len(plan.record)), np.inf)
    found[:, : len(run.steps)] = run.metrics[name]
    return np.where(np.isnan(found), np.inf, found)


def _largest(kernel: Array) -> Array:
    good = np.isfinite(kernel).all((1, 2))
    found = np.full(len(kernel), np.nan)
    found[good] = np.linalg.eigvalsh(kernel[good])[:, -1]
    return found


def train_widths(
    reading: Reading, trials: Mapping[int, int], plan: Plan, stage: Stages, n: int = N
) -> dict[str, np.ndarray]:
    """`train` for every width, arrays with a first axis of widths; trials that a width has not are NaN.

    Args:
        reading: how.
        trials: by width.
        plan: how long.
        stage: each width is one.
        n: sequences.
    """
    most, found = max(trials.values()), []
    for width, count in trials.items():
        words = f"{reading.words}, {reading.scaling}, width {width}"
        one = stage(words, partial(train, reading, width, count, plan, n))
        found.append({k: np.concatenate([v, np.full((most - count, *v.shape[1:]), np.nan)]) for k, v in one.items()})
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def base_facts(plan: Plan, trials: Mapping[int, int], readings: Mapping[str, Reading]) -> dict[str, Any]:
    """What all runs share, as plain JSON."""
    return {
        "n": N,
        "T": T,
        "d": D,
        "seed": SEED,
        "epochs": plan.epochs,
        "early epoch": plan.early,
        "seeds by width": {f"m = {m}": count for m, count in trials.items()},
        "readings": {name: {"words": one.words, **one.about()} for name, one in readings.items()},
        "kernels at epochs": list(plan.stops),
        "loss recorded": f"at epochs 0 to 10, then every {plan.every}",
        "the paper does not say": "scale of the tokens beyond 'standard Gaussian', how squared errors are summed, the "
        "parameterization, what the kernel distance is taken from (here K^0, and K^t to K^(t+1)), number of seeds",
    }


def spread(model: Any, data: Sequences) -> float:
    """Standard deviation of the logits at the start, over all trials."""
    from attnlab.models import in_float64

    starts = model.initial(data, SEED)
    logits = in_float64(lambda i: np.asarray(model.logits({k: w[i] for k, w in starts.items()}, data.x[i])))
    return float(np.std([logits(i) for i in range(len(data.x))]))


def middles(values: Array, axis: int = 1) -> Array:
    """Median over the trials there are."""
    return np.nanmedian(values, axis=axis)


def by_width(widths: Sequence[int] | Array, values: Array) -> dict[str, float | None]:
    """Numbers by width, as JSON."""
    return {f"m = {int(m)}": number(v) for m, v in zip(widths, values, strict=True)}


def straight(epochs: Array, mse: Array, begin: float) -> tuple[Array, Array]:
    """Factor per epoch by which the error of each run falls from `begin` on, and R^2 of a line through its logarithm.

    Records at rounding are left out; a run with fewer than three others, or that overflows, has NaN.

    >>> factor, fit = straight(np.arange(9.0), 0.5 ** np.arange(9.0)[None], 2)
    >>> float(factor[0]), float(fit[0])
    (0.5, 1.0)
    """
    factor = np.full(mse.shape[:-1], np.nan)
    fit = np.full(mse.shape[:-1], np.nan)
    for run in np.ndindex(*factor.shape):
        shown = (epochs >= begin) & (mse[run] > ROUNDING)
        if shown.sum() < 3 or not np.isfinite(mse[run]).all():
            continue
        logs = np.log(mse[run][shown])
        steep = slope(epochs[shown], logs)
        centred = logs - logs.mean()
        rest = centred - steep * (epochs[shown] - epochs[shown].mean())
        factor[run] = np.exp(steep)
        fit[run] = 1.0 - (rest**2).sum() / (centred**2).sum()
    return factor, fit


def draw_widths(axes: Any, widths: Array, epochs: Array, values: Array, *, positive: bool = True) -> None:
    """A band for each width (first axis of `values`): median over seeds, and their range.

    Left out are seeds that overflow, and on a log axis zeros.
    """
    for m, curves in zip(widths, values, strict=True):
        look, there = LOOKS[int(m)], curves[np.isfinite(curves).all(1)]
        shown = (there != 0).all(0) if positive else np.full(len(epochs), True)
        if len(there) and shown.any():
            band(axes, epochs[shown], there[:, shown], color=look.color, style=look.style, label=look.label, share=1.0)
    axes.set(xlim=(0, epochs[-1]), xlabel="epoch")


def log_axis(axes: Any, floor: float = 1e-16) -> None:
    """A log axis that does not go below a floor, where rounding decides."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, floor), high)
    plain_log(axes)


def row_title(panels: Any, title: str) -> None:
    """One title over a row of panels; it takes room above all of them and does not widen the first."""
    for panel in panels:
        panel.set_title(" ")
    over = panels[0].annotate(
        title,
        (0, 1),
        xytext=(0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        fontweight="bold",
        annotation_clip=False,
    )
    over.set_in_layout(False)


def draw_middles(axes: Any, widths: Array, epochs: Array, values: Array, *, black: bool = False) -> None:
    """Medians of other runs, thin: in the colour of their width, or black and dashed over curves that they repeat."""
    for m, curves in zip(widths, values, strict=True):
        color, style = ("black", (0, (2, 2))) if black else (LOOKS[int(m)].color, "-")
        axes.plot(epochs, middles(curves, 0), color=color, linestyle=style, linewidth=0.8, zorder=5)


def lost(mse: Array) -> Array:
    """How many trials of each width (first axis) overflowed."""
    return np.isposinf(mse).any(-1).sum(-1)


def tell_overflow(axes: Any, widths: Array, mse: Array) -> None:
    """In a corner of the panel, how many runs are not drawn because they overflow."""
    there = (~np.isnan(mse[..., 0])).sum(-1)
    gone = [(m, count, of) for m, count, of in zip(widths, lost(mse), there, strict=True) if count]
    if gone:
        words = "\n".join(["overflow:", *(f"{count} of {of} (m = {m})" for m, count, of in gone)])
        plain = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
        axes.annotate(words, (0.03, 0.03), xycoords="axes fraction", va="bottom", fontsize=7, bbox=plain, zorder=6)


def seeds_in_words(counts: Mapping[str, int]) -> str:
    """How many seeds each width has.

    >>> seeds_in_words({"m = 10": 5, "m = 100": 5}), seeds_in_words({"m = 10": 5, "m = 4000": 3})
    ('5 seeds', 'seeds: 5 (m = 10), 3 (m = 4000)')
    """
    if len(set(counts.values())) == 1:
        return f"{next(iter(counts.values()))} seeds"
    return "seeds: " + ", ".join(f"{count} ({name})" for name, count in counts.items())
