"""Ready measures: what is asked most often of random data, for `al.Study("direction", grid)` and TOML files.

| name | of every trial |
|---|---|
| `direction` | train, and compare W with the max-margin direction of the tokens that it selects |
| `selection` | which tokens are selected: the best ones, a locally optimal set |
| `limits` | how many locally optimal selections there are, and the share of starts that find the best tokens |
| `rates` | the exponent of 1 - cos(W, W_mm) over steps |
| `kernel` | least eigenvalue and condition of the tangent kernel at the start |
| `report` | loss, accuracy and misalignment as `al.report` has them |

A point sets any of these; the rest is as here:

| setting | default | what |
|---|---|---|
| `family` | "sphere" | a family of `al.data` |
| `n`, `T`, `d` | 6, 8, 10 | sequences, tokens, dimension; of families that take them |
| `gap`, `signal`, `noise` ... | | whatever else the family takes |
| `rule`, `step` | "ngd", 0.1 | a rule of `al.optim` by name, and its step size |
| `steps` | 2000 | |
| `parameterization` | "W" | or "KQ" |
| `loss` | "logistic" | |
| `init`, `init_scale` | "uniform", 1.0 | law and size of the start |
| `norm` | | "frobenius" for W, "nuclear" for KQ |
| `starts` | 50 | of `limits`: random starts on each data set |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import InputError, message
from attnlab.study.grid import Point

FAMILIES = ("sphere", "orthogonal_signal", "antipodal_signal", "gaussian_signal", "two_clusters", "separated_signal")
RULES = ("gd", "ngd", "polyak", "heavy_ball", "ngd_momentum", "adam")
SIZES = {"n": 6, "T": 8, "d": 10}
TRAINING = {
    "rule": "ngd",
    "step": 0.1,
    "steps": 2000,
    "parameterization": "W",
    "loss": "logistic",
    "init": "uniform",
    "init_scale": 1.0,
}
OWN_NORM: dict[str, Any] = {"W": "frobenius", "KQ": "nuclear"}


@dataclass(frozen=True)
class Measure:
    """A ready measure, with the settings that it knows."""

    name: str
    measured: Callable[[Any, dict[str, Any]], Mapping[str, Any]]
    defaults: Mapping[str, Any]

    @property
    def block(self) -> Callable[[Mapping[str, Any], NDArray[np.int64]], Mapping[str, Any]]:
        """As a block function."""
        return partial(_measured, self.measured, dict(self.defaults))

    def check(self, points: Sequence[Point]) -> None:
        """Refuse settings that nothing would look at, and families and rules that there are not."""
        for point in points:
            family = str(point.get("family", "sphere"))
            _one_of("family", family, FAMILIES)
            _one_of("rule", point.get("rule", "ngd"), RULES)
            known = {"family", *self.defaults, *_taken_by(family)}
            for name in point:
                if name not in known:
                    problem = f"`grid` has {name!r}, which the measure {self.name!r} on {family!r} does not know"
                    raise InputError(message(f"{problem}; wanted some of {', '.join(sorted(known))}."))


def _measured(
    measured: Callable[..., Mapping[str, Any]],
    defaults: Mapping[str, Any],
    point: Mapping[str, Any],
    seeds: NDArray[np.int64],
) -> Mapping[str, Any]:
    """Draw the data sets of a block, and measure them."""
    given = {name: point.get(name, default) for name, default in defaults.items()}
    return measured(drawn(point, seeds), {**given, "seed": seeds})


def measure_named(name: str) -> Measure:
    """The measure of this name."""
    _one_of("function", name, tuple(MEASURES))
    return MEASURES[name]


def drawn(point: Mapping[str, Any], seeds: NDArray[np.int64]) -> Any:
    """The data sets of these seeds, as one batch."""
    from attnlab import data

    family = str(point.get("family", "sphere"))
    taken = _taken_by(family)
    given = {name: value for name, value in SIZES.items() if name in taken}
    given |= {name: value for name, value in point.items() if name in taken}
    return getattr(data, family)(**given, seed=seeds)


def trained(tokens: Any, given: Mapping[str, Any], **options: Any) -> Any:
    """`descend` as the settings say."""
    from attnlab import optim
    from attnlab.train import descend

    rule = getattr(optim, given["rule"])(given["step"])
    names = ("steps", "parameterization", "loss", "init", "init_scale", "seed")
    return descend(tokens, rule, record=None, **{name: given[name] for name in names}, **options)


def direction(tokens: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Train, then compare with the max-margin direction of the selected tokens."""
    from attnlab.data import optimal_tokens
    from attnlab.svm import solve_margins
    from attnlab.train import misalignment

    run = trained(tokens, given)
    solved = solve_margins(tokens, run.selected, norm=given["norm"] or OWN_NORM[given["parameterization"]])
    return {
        "best": (run.selected == optimal_tokens(tokens)).all(-1),
        "feasible": solved.feasible,
        "margin": np.where(solved.feasible, solved.margin, np.nan),
        "gap": np.where(solved.feasible, solved.gap, np.nan),
        "misalignment": misalignment(run.W, solved.W),
        "norm_of_W": np.linalg.norm(run.W, axis=(-2, -1)),
    }


def selection(tokens: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Which tokens a run selects, and whether it has settled."""
    from attnlab.data import optimal_tokens
    from attnlab.theory import is_locally_optimal

    run = trained(tokens, given)
    hits = run.selected == optimal_tokens(tokens)
    local = [bool(is_locally_optimal(tokens[i], run.selected[i])) for i in range(len(hits))]
    settled = run.settled
    facts = {} if settled is None else {"settled": settled}
    return {"best": hits.all(-1), "share_of_best": hits.mean(-1), "local": np.array(local), **facts}


def limits_of(tokens: Any, given: dict[str, Any]) -> dict[str, Any]:
    """`al.limits` of every data set."""
    from attnlab import optim
    from attnlab.data import optimal_tokens
    from attnlab.reports import limits

    best, many, settled = [], [], []
    rule = getattr(optim, given["rule"])(given["step"])
    names = ("steps", "parameterization", "loss", "init", "init_scale")
    for i, seed in enumerate(given["seed"].tolist()):
        options = {name: given[name] for name in names}
        found = limits(tokens[i], given["starts"], rule=rule, seed=seed, **options)
        best.append((found.selected == optimal_tokens(tokens[i])).all(-1).mean())
        many.append(len(found.limits))
        settled.append((found.settled_at >= 0).mean())
    return {"share_of_best": best, "limits": many, "share_settled": settled}


def rates_of(tokens: Any, given: dict[str, Any]) -> dict[str, Any]:
    """How fast the angle to the limit of each run shrinks: the exponent of its misalignment, from the last decade."""
    from attnlab.data import optimal_tokens
    from attnlab.svm import solve_margins
    from attnlab.train import misalignment

    early = trained(tokens, {**given, "steps": max(1, given["steps"] // 10)})
    late = trained(tokens, given)
    solved = solve_margins(tokens, late.selected, norm=given["norm"] or OWN_NORM[given["parameterization"]])
    ends = [misalignment(run.W, solved.W) for run in (early, late)]
    ratio = np.log(given["steps"] / max(1, given["steps"] // 10))
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = (np.log(ends[1]) - np.log(ends[0])) / ratio
    best = (late.selected == optimal_tokens(tokens)).all(-1)
    return {"exponent": exponent, "misalignment": ends[1], "best": best, "feasible": solved.feasible}


def kernel(tokens: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The tangent kernel at the start: least and largest eigenvalue."""
    from attnlab.models import Attention
    from attnlab.theory import ntk

    model = Attention(given["parameterization"])
    start = model.start(tokens, given["init"], given["init_scale"], given["seed"])
    spectra = []
    for i in range(len(given["seed"])):
        gram = ntk(tokens[i], model, {name: weight[i] for name, weight in start.items()})
        spectra.append(np.linalg.eigvalsh(np.asarray(gram))[[0, -1]])
    least, largest = np.array(spectra).T
    return {"least_eigenvalue": least, "largest_eigenvalue": largest}


def report_of(tokens: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What `al.report` says of every run."""
    from attnlab.models import Attention
    from attnlab.reports import report

    run = trained(tokens, given)
    model = Attention(given["parameterization"])
    loss, misaligned, feasible = [], [], []
    for i in range(len(run.selected)):
        found = report(tokens[i], model, {name: weight[i] for name, weight in run.weights.items()})
        (head,) = found.heads
        loss.append(found.loss)
        misaligned.append(np.nan if head.misalignment is None else head.misalignment)
        feasible.append(head.solution.feasible)
    return {"loss": loss, "misalignment": misaligned, "feasible": feasible}


def _taken_by(family: str) -> set[str]:
    from attnlab import data

    return set(inspect.signature(getattr(data, family)).parameters) - {"seed", "trials"}


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(message(f"`{name}` is {value!r}; wanted one of {', '.join(known)}."))


def _measure(name: str, measured: Any, **more: Any) -> Measure:
    return Measure(name, measured, {**TRAINING, **more})


MEASURES = {
    measure.name: measure
    for measure in (
        _measure("direction", direction, norm=None),
        _measure("selection", selection),
        _measure("limits", limits_of, starts=50),
        _measure("rates", rates_of, norm=None),
        _measure("kernel", kernel),
        _measure("report", report_of),
    )
}
