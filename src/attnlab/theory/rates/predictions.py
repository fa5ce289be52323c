"""What is proved about the speed of each step rule, and do the hypotheses hold for given data?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnlab.data.tokens import Tokens
from attnlab.errors import InputError
from attnlab.svm import MarginSolution
from attnlab.theory.check import Check, at_least, plain
from attnlab.theory.fitting import Family
from attnlab.theory.rates.bounds import first_time, largest_step, polyak_constants
from attnlab.theory.rates.constants import RateConstants, rate_constants
from attnlab.theory.rates.joint import JointModel, condition_1
from attnlab.theory.rates.orthogonality import assumption_1, assumption_2, initialization

# What is proved where only W is trained.
STATEMENTS: dict[str, dict[str, Any]] = {
    "gd": {
        "text": "goes to 0; no faster than 1/log^2 t on two tokens",
        "source": "Theorem 6, Section 3.3",
        "family": "inverse_log",
        "rate": 2.0,
    },
    "ngd": {
        "text": "O(log^2 t / t); t^-2 on two tokens",
        "source": "Theorems 1 and 5, Appendix A.4",
        "family": "log2_over_t",
        "rate": 1.0,
    },
    "polyak": {
        "text": "O(log^2 t / t) while no attention weight exceeds a beta < 1",
        "source": "Theorem 7",
        "family": "log2_over_t",
        "rate": 1.0,
    },
}
# And where u and W are, by Eq. (10).
JOINT_STATEMENT: dict[str, Any] = {
    "text": "at most eps + C/log t, from a time on that grows like exp(eps^(-4/3))",
    "source": "Theorems 3 and 9",
    "family": "inverse_log",
    "rate": 1.0,
}


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What theory says of a rule's direction, 1 - cos(W_t, W_mm).

    Attributes:
        text: the statement; "nothing proved" where there is none.
        source: where it stands in *Implicit Bias and Fast Convergence Rates for Self-attention*.
        family: how it falls; see `attnlab.theory.fitting`. None where no rate is proved.
        rate: the proved rate in that family.
        hypotheses: those that can be measured. Their margin is the ratio of what there is to what is wanted, the least
            over trials: they hold from 1 on.
        unmet: hypotheses that do not hold here, by name; also those that are no number, as the loss.
        unknown: why hypotheses could not be measured; None if they could.
    """

    text: str
    source: str = ""
    family: Family | None = None
    rate: float | None = None
    hypotheses: tuple[Check, ...] = ()
    unmet: tuple[str, ...] = ()
    unknown: str | None = None

    @property
    def margins(self) -> dict[str, float]:
        """The margin of every hypothesis, by name."""
        return {check.name: check.margin for check in self.hypotheses}

    @property
    def applies(self) -> bool | None:
        """Do all hypotheses hold? None where nothing is proved, or it is not known."""
        if self.unmet:
            return False
        return None if self.unknown or self.family is None else True

    def __str__(self) -> str:
        if self.family is None:
            return self.text
        if self.unknown:
            return f"{self.text} ({self.source}); hypotheses not checked: {self.unknown}"
        told = "its hypotheses hold" if not self.unmet else "not met here: " + ", ".join(map(self._told, self.unmet))
        return f"{self.text} ({self.source}); {told}"

    def _told(self, name: str) -> str:
        margins = self.margins
        return f"{name} ({margins[name]:.2g})" if name in margins else name

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON; infinities become text."""
        return {
            "text": self.text,
            "source": self.source,
            "family": self.family,
            "rate": self.rate,
            "margins": plain(self.margins),
            "unmet": list(self.unmet),
            "unknown": self.unknown,
            "applies": self.applies,
        }


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the predictions depend on besides the rule.

    Attributes:
        trials: the data sets.
        constants: of each.
        data_margins: of Assumptions 1 and 2, the least over trials.
        loss: its name.
        train_head: is u trained too?
        start: deviation of the entries of W(0), the largest over trials.
        steps: length of the run.
        unknown: why the rest is empty; None if it is not.
    """

    trials: tuple[Tokens, ...]
    constants: tuple[RateConstants, ...]
    data_margins: Mapping[str, float]
    loss: str
    train_head: bool
    start: float
    steps: int
    unknown: str | None

    def least(self, of: Callable[[RateConstants], float]) -> float:
        """The least over trials."""
        return min(of(c) for c in self.constants)


def setting(
    tokens: Tokens,
    solutions: Sequence[MarginSolution],
    *,
    loss: str,
    train_head: bool,
    start: float,
    steps: int,
) -> Setting:
    """Measure constants and assumptions of every trial."""
    trials = (tokens,) if tokens.trials is None else tuple(tokens[i] for i in range(tokens.trials))
    facts = partial(Setting, trials=trials, loss=loss, train_head=train_head, start=start, steps=steps)
    if train_head:  # Condition 1 is about the data model; nothing else is asked.
        return facts(constants=(), data_margins={}, unknown=None)
    try:
        constants = tuple(rate_constants(one, solution=s) for one, s in zip(trials, solutions, strict=True))
        first = [assumption_1(one, constants=c).margin for one, c in zip(trials, constants, strict=True)]
        second = [assumption_2(one) for one in trials]
    except InputError as error:
        return facts(constants=(), data_margins={}, unknown=str(error).split("\n")[0])
    equal = np.inf if all(check.holds for check in second) else 0.0
    return facts(constants=constants, data_margins={"Assumption 1": min(first), "Assumption 2": equal}, unknown=None)


def predict(rule: Any, here: Setting, *, capped: float | None) -> Prediction:
    """What theory says of this rule here.

    Args:
        rule: a step rule of `attnlab.optim`, or a foreign one, of which nothing is proved.
        here: data, loss and length of the run.
        capped: share of the steps at which the cap bound.
    """
    name, settings = getattr(rule, "name", None), getattr(rule, "settings", {})
    if here.train_head:
        return _joint(name, settings, here)
    if name == "ngd_momentum":
        return Prediction(text="nothing proved with momentum (for linear models: Õ(1/t^2))")
    if name not in STATEMENTS:
        return Prediction(text="nothing proved")
    statement = STATEMENTS[name]
    if here.unknown:
        return Prediction(**statement, unknown=here.unknown)
    no_cap = [f"no cap (it bound at {100 * capped:.3g} % of the steps)"] if capped else []
    return _under(statement, {**here.data_margins, **_hypotheses(name, settings, here)}, here, no_cap)


def _under(statement: dict[str, Any], ratios: Mapping[str, float], here: Setting, unmet: Sequence[str]) -> Prediction:
    """The statement with its hypotheses, each a ratio of what there is to what is wanted, which holds from 1 on."""
    hypotheses = tuple(at_least(name, ratio, 1.0) for name, ratio in ratios.items())
    failing = [check.name for check in hypotheses if not check.holds]
    loss = [] if here.loss == "exponential" else ["exponential loss"]
    return Prediction(**statement, hypotheses=hypotheses, unmet=(*failing, *unmet, *loss))


def _hypotheses(name: str, settings: Mapping[str, Any], here: Setting) -> dict[str, float]:
    """The step size, the small start, and whether the run is long enough, each as a ratio."""
    if name == "gd":
        step = settings["step"]
        ratios = {"step size": here.least(lambda c: largest_step(c, "gd")) / step}
    elif name == "polyak":
        step = settings["constant"]
        # beta = 1/2 allows the largest step.
        ratios = {"step size": here.least(lambda c: polyak_constants(c, step, 0.5).largest_step) / step}
    else:
        step = settings["step"]
        ratios = {
            "step size": here.least(largest_step) / step,
            "length of the run": here.steps / max(first_time(c, step) for c in here.constants),
        }
    pairs = zip(here.trials, here.constants, strict=True)
    small = min(initialization(one, here.start, step, constants=c).margin for one, c in pairs)
    return {**ratios, "small start": small}


def _joint(name: str | None, settings: Mapping[str, Any], here: Setting) -> Prediction:
    if name != "joint_decay":
        return Prediction(text="nothing proved for these steps")
    try:
        models = [JointModel.of(one) for one in here.trials]
    except InputError as error:
        return Prediction(**JOINT_STATEMENT, unknown=str(error).split("\n")[0])
    conditions = [condition_1(model, settings["step"], start=here.start).evidence["ratios"] for model in models]
    least = {part: min(ratios[part] for ratios in conditions) for part in conditions[0]}
    return _under(JOINT_STATEMENT, least, here, ())
