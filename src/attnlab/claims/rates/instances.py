"""Data sets on which the lemmas are judged, and one long run of normalized GD on each family, shared by the claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.rates.families import crowded, orthogonal_unlike_gaps, pairs
from attnlab.claims.scale import Scale
from attnlab.data import (
    Tokens,
    gaussian_start,
    in_span,
    optimal_tokens,
    orthogonal_signal,
    scores,
    separated_signal,
)
from attnlab.data.tokens import Array
from attnlab.models import gradient
from attnlab.models.layer_problem import View
from attnlab.optim import ngd
from attnlab.optim.rule import StepRule
from attnlab.svm import MarginSolutions, solve_margins
from attnlab.theory import RateConstants, assumption_1, assumption_2, initialization, rate_bounds, rate_constants
from attnlab.train import Trajectory, descend

# Every step is recorded up to here, so that what holds from one step to the next can be seen.
DENSE = 60
# Gradients are computed for this many W at a time.
TOGETHER = 32
# Families that meet Assumptions 1 and 2 as printed, and the paper's own data, which miss Assumption 1.
TESTABLE = ("two tokens", "crowded", "orthogonal", "separated")
FIGURE_2 = "figure 2"


@dataclass(frozen=True, eq=False)
class Family:
    """A batch of data sets in coordinates of their span, with what the theorems ask of them.

    Attributes:
        name: which.
        tokens: the batch.
        best: optimal tokens, (trials, n).
        margins: max-margin solutions.
        constants: of each trial.
        orthogonality: slack of Assumption 1 with the Upsilon of the proof, (trials,).
        besides: slack of the two products that the proof of Lemma 3 uses besides, (trials,).
        equality: slack of Assumption 2, (trials,).
    """

    name: str
    tokens: Tokens
    best: NDArray[np.intp]
    margins: MarginSolutions
    constants: tuple[RateConstants, ...]
    orthogonality: Array
    besides: Array
    equality: Array

    @property
    def trials(self) -> int:
        """How many data sets."""
        return len(self.constants)

    @property
    def meets(self) -> NDArray[np.bool_]:
        """Which meet Assumptions 1 and 2 as printed."""
        return (self.orthogonality >= 1) & (self.equality >= 0)

    @property
    def meets_all(self) -> NDArray[np.bool_]:
        """Which also meet what the proof of Lemma 3 uses besides."""
        return self.meets & (self.besides >= 1)

    def each(self, name: str) -> Array:
        """One of the constants, (trials,)."""
        return np.array([getattr(c, name) for c in self.constants])

    @cached_property
    def unit_target(self) -> Array:
        """W_mm / |W_mm|, (trials, d, d)."""
        return self.margins.W / np.linalg.norm(self.margins.W, axis=(-2, -1), keepdims=True)

    def slack(self) -> dict[str, float]:
        """Of the assumptions, on the trial closest to missing them."""
        return {
            f"{self.name}: Assumption 1 (ratio, wanted >= 1)": float(self.orthogonality.min()),
            f"{self.name}: products that Lemma 3 uses besides (ratio)": float(self.besides.min()),
            f"{self.name}: Assumption 2 (allowed - measured)": float(self.equality.min()),
        }

    def equality_slack(self) -> dict[str, float]:
        """Of Assumption 2 alone."""
        return {name: value for name, value in self.slack().items() if "Assumption 2" in name}


def family_of(name: str, tokens: Tokens) -> Family:
    """A batch with all that is asked of it."""
    small, _ = in_span(tokens)
    best = optimal_tokens(small)
    margins = solve_margins(small, best)
    trials = range(len(best))
    constants = tuple(rate_constants(small[i], solution=margins[i]) for i in trials)
    checks = [assumption_1(small[i], constants=constants[i]) for i in trials]
    return Family(
        name,
        small,
        best,
        margins,
        constants,
        orthogonality=np.array([check.evidence["margin_proof"] for check in checks]),
        besides=np.array([check.evidence["extra"] for check in checks]),
        equality=np.array([assumption_2(small[i]).margin for i in trials]),
    )


@lru_cache(maxsize=8)
def family(name: str, trials: int) -> Family:
    """One of the families by name; no two of their data sets are the same."""
    make = {
        "two tokens": pairs,
        "crowded": crowded,
        "orthogonal": orthogonal_unlike_gaps,
        "separated": lambda count: separated_signal(trials=count),
        FIGURE_2: lambda count: orthogonal_signal(trials=count),
    }[name]
    return family_of(name, make(trials))


def families(scale: Scale, *, figure_2: bool = False) -> list[Family]:
    """Those that a claim is judged on; the large one from `quick` on."""
    names = [*TESTABLE[: scale.pick(3, 4, 4)], *([FIGURE_2] if figure_2 else [])]
    return [family(name, trials_of(name, scale)) for name in names]


def trials_of(name: str, scale: Scale) -> int:
    """Data sets of a family at a scale."""
    return scale.pick(2, 3, 3 if name == FIGURE_2 else 10)


@dataclass(frozen=True, eq=False)
class Run:
    """Normalized GD without a cap on a family, from a start as large as Lemma 2 allows.

    Attributes:
        family, step: of the run.
        steps: at which it was recorded, (m,).
        W: (trials, m, d, d).
        logits: (trials, m, n, T).
        misalignment: 1 - cosine of W and W_mm, (trials, m).
        start: slack of Lemma 2's conclusions, by name.
    """

    family: Family
    step: float
    steps: NDArray[np.int64]
    W: Array
    logits: Array
    misalignment: Array
    start: dict[str, float]

    @cached_property
    def norm(self) -> Array:
        """|W_t|, (trials, m)."""
        return np.linalg.norm(self.W, axis=(-2, -1))

    def slack(self) -> dict[str, float]:
        """Of all hypotheses."""
        return self.family.slack() | self.start


def run_length(scale: Scale, name: str) -> int:
    """Steps of the shared run."""
    if name == FIGURE_2:
        return scale.pick(1_000, 10_000, 1_000_000)
    if name == "crowded":
        return scale.pick(10_000, 10_000, 100_000)
    return scale.pick(100_000, 100_000, 1_000_000)


def run(name: str, scale: Scale) -> Run:
    """The shared run of a family at a scale."""
    return _run(name, trials_of(name, scale), run_length(scale, name))


@lru_cache(maxsize=8)
def _run(name: str, trials: int, steps: int) -> Run:
    data = family(name, trials)
    # The largest step of Theorem 5, half of it for the large set; figure 2 has its own.
    step = 0.025 if name == FIGURE_2 else min(map(rate_bounds.largest_step, data.constants))
    step *= 0.5 if name == "separated" else 1.0
    return run_from(data, step, starts(data, step), steps)


def run_from(data: Family, step: float, start: Array, steps: int) -> Run:
    """Normalized GD without a cap from a start; every step is recorded at first, then equal ratios, and each t_0."""
    firsts = set()
    for c in data.constants:
        for corrected in (True, False):
            firsts.add(int(np.ceil(rate_bounds.first_time(c, step, corrected=corrected))))
    record = sorted({*range(DENSE), *log_grid(steps), *(t for t in firsts if t <= steps)})
    path = followed(data, ngd(step), start, record)
    metrics = path.metrics
    return Run(
        data,
        step,
        path.steps,
        metrics["W"],
        metrics["logits"],
        metrics["misalignment_target"],
        start_slack(data, start, step, metrics["logits"][:, 0]),
    )


def _weights(view: View) -> Any:
    return view.W


def _logits(view: View) -> Any:
    return view.logits[:, 0]


def followed(data: Family, rule: StepRule, start: Array, record: Sequence[int]) -> Trajectory:
    """A run to the last of these steps; with the same metrics for all, so that they share a compiled program."""
    return descend(
        data.tokens,
        rule,
        steps=record[-1],
        loss="exponential",
        init=start,
        record=record,
        targets=data.margins.W,
        metrics={"W": _weights, "logits": _logits},
    )


def log_grid(steps: int, per_decade: int = 20) -> list[int]:
    """Steps at equal ratios, the last included."""
    return sorted({*np.round(np.geomspace(1, steps, int(per_decade * np.log10(steps)) + 1)).astype(int).tolist()})


def starts(data: Family, step: float, *, seed: int = 1) -> Array:
    """A Gaussian start of each trial, as large as Lemma 2 allows, (trials, d, d)."""
    rank = data.tokens.d - 1
    drawn = []
    for i, c in enumerate(data.constants):
        scale = initialization(data.tokens[i], 0.0, step, constants=c).evidence["largest_scale"]
        drawn.append(gaussian_start(rank, c.d, scale, seed=seed + i))
    return np.stack(drawn)


def start_slack(data: Family, start: Array, step: float, logits: Array) -> dict[str, float]:
    """What Lemma 2 concludes, on these starts: attention at least 1/(2T), a norm of at most step / (4 B^2 Lambda)."""
    attention = np.exp(split(logits, data.best).log_on).min()
    allowed = step / (4.0 * data.each("condition"))
    return {
        f"{data.name}: least attention at the start - 1/(2T)": float(attention - 0.5 / data.tokens.T),
        f"{data.name}: allowed - |W(0)|": float((allowed - np.linalg.norm(start, axis=(-2, -1))).min()),
        f"{data.name}: largest - step size": min(map(rate_bounds.largest_step, data.constants)) - step,
    }


@dataclass(frozen=True, eq=False)
class Split:
    """Attention of the best token against that of the others, in the log domain.

    Attributes:
        lead: a_opt - a_t, (..., n, T - 1).
        log_on, log_off: log of the attention on the best token, and off it, (..., n).
        share: how the others share theirs, (..., n, T - 1).
    """

    lead: Array
    log_on: Array
    log_off: Array
    share: Array


def split(logits: Array, best: NDArray[np.intp]) -> Split:
    """From logits (trials, ..., n, T) and best tokens (trials, n)."""
    lead = leads(logits, best)
    with np.errstate(invalid="ignore"):  # of a run that overflows: NaN stays, and fails every bound
        off = np.logaddexp.reduce(-lead, axis=-1)
        total = np.logaddexp(0.0, off)
    return Split(lead, -total, off - total, np.exp(-lead - off[..., None]))


def leads(logits: Array, best: NDArray[np.intp]) -> Array:
    """a_opt - a_t of all other tokens in order, (trials, ..., n, T - 1)."""
    T, n = logits.shape[-1], logits.shape[-2]
    others = np.array([[[t for t in range(T) if t != b] for b in row] for row in best])  # (trials, n, T - 1)
    middle = (1,) * (logits.ndim - 3)
    top = best.reshape(len(best), *middle, n, 1)
    rest = others.reshape(len(best), *middle, n, T - 1)
    shape = logits.shape[:-1]
    at = np.take_along_axis(logits, np.broadcast_to(top, (*shape, 1)), axis=-1)
    return at - np.take_along_axis(logits, np.broadcast_to(rest, (*shape, T - 1)), axis=-1)


def logits_of(data: Family, W: Array) -> Array:
    """x W z, for W of shape (trials, m, d, d): (trials, m, n, T)."""
    keys = np.einsum("rmde,rne->rmnd", W, data.tokens.z)
    return np.einsum("rntd,rmnd->rmnt", data.tokens.x, keys)


def weights_of(data: Family, parts: Split) -> Array:
    """log of w_i = loss_i gap_i on_i off_i, the weight of sequence i in the gradient (Eq. 14), (trials, m, n)."""
    gamma = scores(data.tokens)
    top = np.take_along_axis(gamma, data.best[..., None], axis=-1)[..., 0][:, None]
    gaps = np.stack([c.gaps for c in data.constants])[:, None]
    log_loss = -top + gaps * np.exp(parts.log_off)
    return log_loss + np.log(gaps) + parts.log_on + parts.log_off


def downhill(data: Family, W: Array) -> tuple[Array, Array]:
    """Minus the gradient of the exponential loss at W, (trials, m, d, d), up to a scale; and the log of that scale."""
    t = data.tokens
    m = W.shape[1]
    flat = W.reshape(-1, t.d, t.d)
    g = np.empty_like(flat)
    log_scale = np.empty(len(flat))
    # Always as many at a time, so that one compiled program serves all.
    for first in range(0, len(flat), TOGETHER):
        at = np.minimum(np.arange(first, first + TOGETHER), len(flat) - 1)
        x, z, y, v = (np.asarray(a)[at // m] for a in (t.x, t.z, t.y, t.v))
        mantissa, scale = gradient(Tokens(x=x, z=z, y=y, v=v), flat[at], loss="exponential")
        g[at], log_scale[at] = -mantissa["W"], scale["W"]
    return g.reshape(W.shape), log_scale.reshape(W.shape[:2])


def random_weights(data: Family, count: int, *, seed: int = 0) -> Array:
    """Gaussian W of lengths from 0.01 to 300, a third of them around W_mm, (trials, count, d, d)."""
    rng = np.random.default_rng(seed)
    d = data.tokens.d
    W = rng.standard_normal((data.trials, count, d, d))
    W /= np.linalg.norm(W, axis=(-2, -1), keepdims=True)
    near = np.arange(count) % 3 == 0
    W = W + near[:, None, None] * data.unit_target[:, None] * rng.uniform(0.0, 10.0, (data.trials, count, 1, 1))
    W /= np.linalg.norm(W, axis=(-2, -1), keepdims=True)
    return W * np.geomspace(0.01, 300.0, count)[rng.permutation(count)][:, None, None]
