"""Step rules side by side on a deep network: one loop for Figures 1, 4, 6 and 7, and how its runs are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from attnlab.claims.claim import Outcome, outcome_of_checks
from attnlab.claims.scale import Tell
from attnlab.claims.seen import Check
from attnlab.claims.stages import Stages
from attnlab.claims.threads import Look, side_by_side
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array
from attnlab.optim.sharing import sharing_a_program

Arrays = Mapping[str, np.ndarray]
Facts = Mapping[str, Any]

RULES = {"sgd": "SGD", "sngd": "SNGD", "sps": "SPS", "adam": "Adam"}
MOST_SHARED = 1_000_000  # weights of a network whose rules share a program
METRICS = ("loss", "accuracy", "test_loss", "test_accuracy")


@dataclass(frozen=True, kw_only=True)
class RuleSetting:
    """How long rules train, on how many examples, with which steps and caps.

    Attributes:
        train, test: examples.
        steps, batch, seeds: of every rule.
        sgd_step, sngd_step, adam_step: of the rules.
        sngd_cap, sps_cap: the largest steps.
        sps_constant: of SPS on batches.
    """

    train: int
    test: int
    steps: int
    sngd_cap: float
    sps_cap: float
    batch: int
    seeds: int = 3
    sgd_step: float
    sngd_step: float
    adam_step: float
    sps_constant: float = 0.5

    @property
    def epochs(self) -> float:
        """How often every example is seen."""
        return self.steps * self.batch / self.train

    @property
    def layers(self) -> tuple[str, ...]:
        """Weights whose norms are recorded."""
        return ()

    @property
    def records(self) -> tuple[float, ...]:
        """Parts of a run after which metrics are recorded."""
        return (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)

    def rules(self) -> dict[str, Any]:
        """The step rules by name."""
        from attnlab.optim import adam, gd, ngd, polyak

        return {
            "sgd": gd(self.sgd_step),
            "sngd": ngd(self.sngd_step, cap=self.sngd_cap, norms="total"),
            "sps": polyak(cap=self.sps_cap, constant=self.sps_constant, floor=0.0),
            "adam": adam(self.adam_step),
        }


class Start(Protocol):
    """The weights at step 0 of a seed; None for the law of the model."""

    def __call__(self, seed: int) -> Any: ...


class Job(NamedTuple):
    """What is trained."""

    train: Sequences
    test: Sequences
    model: Any
    start: Start = lambda seed: None


def run_rules(setting: RuleSetting, job: Job, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Every rule from every seed, through the same batches; arrays (seeds, records) by rule and metric, and facts.

    In the facts the setting has the numbers of examples that there were.
    """
    setting = replace(setting, train=job.train.n, test=job.test.n)
    record = sorted({round(part * setting.steps) for part in setting.records})
    rules = _sharing_if_small(setting.rules(), job)
    stage = Stages(tell, len(rules) * setting.seeds)

    def of_rule(name: str, look: Look) -> list[dict[str, np.ndarray]]:
        runs = []
        for seed in range(setting.seeds):
            train = partial(_one_run, setting, job, rules[name], seed, record, look)
            runs.append(stage(f"{rules[name]!r}, seed {seed}", train))
        return runs

    first = next(iter(rules.values()))
    _one_run(replace(setting, steps=0), job, first, 0, [0], lambda _: None)  # compiles what all of them share
    runs_of = dict(zip(rules, side_by_side(of_rule, rules), strict=True))
    arrays: dict[str, np.ndarray] = {"steps": np.array(record)}
    lost: list[str] = []
    for name, runs in runs_of.items():
        lost += [f"{name}, seed {seed}" for seed, run in enumerate(runs) if run.pop("lost")]
        arrays |= {f"{name}_{key}": np.stack([run[key] for run in runs]) for key in runs[0]}
    facts = {
        **asdict(setting),
        "epochs": setting.epochs,
        "rules": {name: repr(rule) for name, rule in rules.items()},
        "layers": list(setting.layers),
        "precision": "float32",
        "loss": "cross entropy",
        "runs that left the finite numbers": lost,
    }
    return arrays, facts


def _sharing_if_small(rules: dict[str, Any], job: Job) -> dict[str, Any]:
    """The rules in one program where the weights are few: then compiling takes longer than their steps."""
    shapes = job.model.checked_shapes(job.train)
    count = sum(math.prod(weight.shape) for weight in shapes.values())
    return sharing_a_program(rules) if count <= MOST_SHARED else rules


def _one_run(setting: RuleSetting, job: Job, rule: Any, seed: int, record: list[int], look: Look) -> dict[str, Any]:
    """What is recorded of one run, (records,) each; not a number after a step out of the finite numbers."""
    from attnlab.train import descend

    run = descend(
        job.train,
        rule,
        model=job.model,
        init=job.start(seed),
        loss="cross_entropy",
        steps=setting.steps,
        batch=setting.batch,
        seed=seed,
        record=record,
        test=job.test,
        precision="float32",
        on_step=look,
    )
    names = [*METRICS, *(f"norm_{layer}" for layer in setting.layers)]
    if "cap" in rule.settings:
        names.append("capped_share")
    missing = len(record) - len(run.steps)
    kept = {name: np.append(run.metrics[name], np.full(missing, np.nan)) for name in names}
    return {**kept, "lost": bool(run.diverged)}


# How runs are compared --------------------------------------------------------------------------------------------


def end_of(arrays: Arrays, name: str, key: str) -> Array:
    """A metric of a rule at the last step, (seeds,)."""
    return arrays[f"{name}_{key}"][:, -1]


def log_ratio(arrays: Arrays, one: str, other: str) -> Array:
    """log of the train loss of one rule over that of another at the last step, (seeds,)."""
    return np.log(end_of(arrays, one, "loss")) - np.log(end_of(arrays, other, "loss"))


def mean_loss(arrays: Arrays, name: str) -> Array:
    """The train loss of a rule, mean over all steps by straight lines between records, (seeds,)."""
    steps = arrays["steps"]
    return np.trapezoid(arrays[f"{name}_loss"], steps, axis=1) / steps[-1]


def too_small(facts: Facts, what: str) -> str:
    """Why these runs decide nothing against the paper, if they do not; `what` they are trained on, in words."""
    if facts["as the paper"]:
        return ""
    return (
        f"These runs are smaller than the paper's, {facts['steps']} of {facts['paper']['steps']} steps ({what}): "
        "what is not seen here speaks neither for nor against the paper."
    )


def outcome_of_runs(
    arrays: Arrays, facts: Facts, checks: list[Check], *, brief: str, stand_in: str = "", note: str = ""
) -> Outcome:
    """What a claim returns of such runs."""
    lost = facts["runs that left the finite numbers"]
    told = [note, f"Left the finite numbers: {'; '.join(lost)}." if lost else ""]
    return outcome_of_checks(
        checks,
        brief=brief,
        stand_in=stand_in,
        seeds=range(facts["seeds"]),
        numbers={
            "train loss at the end, mean over seeds": {
                title: float(end_of(arrays, name, "loss").mean()) for name, title in RULES.items()
            },
            "share of steps whose cap decides": {
                RULES[name]: float(end_of(arrays, name, "capped_share").mean()) for name in ("sngd", "sps")
            },
        },
        note=" ".join(words for words in told if words),
    )
