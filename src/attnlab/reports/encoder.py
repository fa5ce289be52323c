"""Will gradient descent fit this data with this encoder? What is promised, what the kernel says, and what is missing.

Proposition 1 and Theorems 1 and 2 of *On the Convergence of Encoder-only Shallow Transformers*, on your own data,
labels and weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import instance, no_batch, one_of
from attnlab.data.scale import length
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.encoder import Encoder
from attnlab.models.losses import REDUCTIONS, Reduction
from attnlab.optim.rule import positive
from attnlab.reports.report import Fact, Report, Row, Section
from attnlab.theory.check import Check, at_least
from attnlab.theory.encoder.assumptions import (
    BoundedTokens,
    Covariance,
    Dissimilarity,
    FullRank,
    assumption_1,
    assumption_2,
    assumption_3,
    assumption_4,
    settings_outside,
)
from attnlab.theory.encoder.constants import Constants
from attnlab.theory.encoder.forward import forward
from attnlab.theory.encoder.spectrum import Lambda0, lambda_0
from attnlab.theory.encoder.widths import RequiredWidth, required_width
from attnlab.theory.tangent import ntk_eigenvalues

# The rate of Eq. (4) is 1 - RATE step alpha^2.
RATE = 0.5
# Entries of tokens up to which no constant overflows.
LONGEST = 1e20


@dataclass(frozen=True, kw_only=True, eq=False)
class Assumptions:
    """Assumptions 1 to 4 on the data."""

    one: BoundedTokens
    two: FullRank
    three: Dissimilarity
    four: Covariance


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EncoderReport(Report):
    """What theory says of gradient descent on an encoder; print it.

    Steps and rates are for the loss that was asked for. The theory speaks of half the sum of squares, on which a step
    is `unit` times as long.

    Attributes:
        model, n, T, d: the encoder and the sizes of the data.
        loss: which.
        unit: step on half the sum of squares that a step of 1 on this loss is: 1, 2 / n or 1 / n.
        constants: of Proposition 1, with conditions (2) and (3).
        eigenvalues: of the tangent kernel at the start, ascending, (n,).
        lambda0: how far from singular the hidden layer is in the mean, with its bounds.
        widths: which the theorems ask for, "corrected" and "printed"; empty where no theorem is about the model.
        outside: settings of the model that no theorem is about; then `constants` and `lambda0` are None, nothing is
            promised, and what is left is measured: misfit, kernel, stable step.
        misfit: |f - y| at the start.
        assumptions: on the data.
        step: that was asked about; None for the largest that is promised something.
    """

    model: Encoder
    n: int
    T: int
    d: int
    loss: Reduction
    unit: float
    constants: Constants | None
    eigenvalues: Array
    lambda0: Lambda0 | None
    widths: Mapping[str, RequiredWidth]
    assumptions: Assumptions
    step: float | None
    outside: tuple[str, ...] = ()
    misfit: float = np.nan

    @property
    def guaranteed(self) -> bool:
        """Does Proposition 1 promise convergence, at a step of at most `promised_step`?"""
        return self.constants is not None and self.constants.applies

    @property
    def conditions(self) -> tuple[Check, ...]:
        """Conditions (2) and (3); none where no theorem is about the model."""
        return () if self.constants is None else (self.constants.condition_2, self.constants.condition_3)

    @property
    def failing(self) -> dict[str, float]:
        """What keeps the promise from being made, and by which factor it is missed; empty if nothing."""
        if self.constants is None:
            return dict.fromkeys(self.outside, np.inf)
        factors = {}
        for condition in self.conditions:
            if not condition.holds:
                factors[condition.name] = 1.0 / condition.margin if condition.margin > 0 else np.inf
        if self.model.width < self.n:
            factors["width >= n"] = self.n / self.model.width
        if self.constants.alpha == 0 and not factors:
            factors["alpha > 0"] = np.inf
        return factors

    @property
    def enough_misfit(self) -> float:
        """With `|f - y|` at most this at the start both conditions would hold; they are linear in it."""
        if self.constants is None or self.constants.alpha == 0:
            return 0.0
        return self.constants.start_distance * min(condition.margin for condition in self.conditions)

    @property
    def promised_step(self) -> float:
        """The largest step that Proposition 1 speaks of, 1 / C with the corrected constant; 0 where it is of none."""
        return 0.0 if self.constants is None else self.constants.largest_step() / self.unit

    @property
    def stable_step(self) -> float:
        """`2 / lambda_max` of the kernel: with a longer step the loss grows at first. Inf where the kernel is zero."""
        return float(2.0 / (self.unit * self.eigenvalues[-1])) if self.eigenvalues[-1] > 0 else np.inf

    @property
    def at_step(self) -> float:
        """The step that rates are told for: the one asked about, or the promised one, or half the stable one."""
        if self.step is not None:
            return self.step
        return self.promised_step if self.constants is not None else 0.5 * self.stable_step

    @property
    def promised_rate(self) -> float:
        """The loss is at most this times what it was, per step (Eq. (4)); 1 where nothing is promised."""
        if self.constants is None or not self.guaranteed or self.at_step > self.promised_step:
            return 1.0
        return float(1.0 - RATE * self.unit * self.at_step * self.constants.alpha**2)

    @property
    def local_rate(self) -> float:
        """`max (1 - step lambda)^2` over the kernel's eigenvalues: while the kernel stays as it is at the start, the
        slowest part of the loss is multiplied by this at each step. Above 1 the loss grows."""
        # A kernel of zeros allows any step, and no step moves anything.
        least, largest = (float(value) for value in self.eigenvalues[[0, -1]])
        slow = 1.0 - self.unit * self.at_step * least if least > 0 else 1.0
        fast = 1.0 - self.unit * self.at_step * largest if largest > 0 else 1.0
        return max(slow * slow, fast * fast)

    @property
    def verdict(self) -> str:
        """Is convergence guaranteed, and if not, what is missed by how much?"""
        if self.guaranteed:
            return (
                "Proposition 1 guarantees that gradient descent reaches zero loss (its proof takes relu to be smooth)."
            )
        if self.outside:
            settings = " and ".join(self.outside)
            return f"No theorem is about {settings}: nothing is promised, and what follows is measured at the start."
        missed = ", ".join(f"{name} by a factor {factor:.3g}" for name, factor in self.failing.items())
        return f"Nothing is guaranteed: missed are {missed}."

    def sections(self) -> tuple[Section, ...]:
        """Facts about data, start, step and kernel; then what Proposition 1 and the theorems ask for."""
        if self.constants is None or self.lambda0 is None:
            return Section("", self._measured()), Section("of the data", self._assumed())
        facts = self._facts(self.constants, self.lambda0)
        return Section("", facts), Section("asked for", [*self._checks(), *self._assumed()])

    def _measured(self) -> list[Fact]:
        return [
            Fact("data", f"n = {self.n}, T = {self.T}, d = {self.d}"),
            Fact("start", f"|f - y| = {self.misfit:.4g}"),
            Fact("step", f"stable up to {self.stable_step:.4g} ({self.loss})"),
            Fact("rate", f"at step {self.at_step:.4g}: the kernel says {_rate(self.local_rate)}, nothing is promised"),
            Fact("kernel", f"eigenvalues from {self.eigenvalues[0]:.4g} to {self.eigenvalues[-1]:.4g}"),
            Fact("width", f"{self.model.width}; no theorem is about it"),
        ]

    def _facts(self, k: Constants, spread: Lambda0) -> list[Fact]:
        norms = ", ".join(f"{name} {norm:.3g}" for name, norm in k.norms.items())
        promised = f"promised {_rate(self.promised_rate)}" if self.promised_rate < 1 else "nothing is promised"
        asked = " and ".join(f"{required.width:.2g} ({which})" for which, required in self.widths.items())
        theorems = f"the theorems ask for {asked}" if asked else "no theorem is about it"
        steps = f"promised up to {self.promised_step:.4g}, stable up to {self.stable_step:.4g} ({self.loss})"
        rate = f"at step {self.at_step:.4g}: the kernel says {_rate(self.local_rate)}, {promised}"
        lower = max(spread.hermite, 0.0)
        lambda0 = f"{spread.value:.4g}, at least {lower:.3g}, at most {spread.upper:.3g}"
        return [
            Fact("data", f"n = {self.n}, T = {self.T}, d = {self.d}, C_x = {k.C_x:.4g}"),
            Fact("start", f"|f - y| = {k.start_distance:.4g}, alpha = {k.alpha:.4g}; norms {norms}"),
            Fact("conditions", f"both hold for |f - y| <= {self.enough_misfit:.3g} at the start"),
            Fact("step", steps),
            Fact("rate", rate),
            Fact("kernel", f"eigenvalues from {self.eigenvalues[0]:.4g} to {self.eigenvalues[-1]:.4g}"),
            Fact("lambda_0", lambda0),
            Fact("width", f"{self.model.width}; {theorems}"),
        ]

    def _checks(self) -> list[Row]:
        second, third = self.conditions
        largest = second.evidence["largest"]
        return [
            replace(second, name=f"condition (2), alpha^2 (largest entry: {largest})"),
            replace(third, name="condition (3), alpha^3"),
            at_least("width >= n", float(self.model.width), float(self.n)),
        ]

    def _assumed(self) -> list[Row]:
        data = self.assumptions
        trivially = " (trivially)" if data.three.holds and data.three.trivial else ""
        return [
            replace(data.one, name="Assumption 1, C_x"),
            replace(data.two, name="Assumption 2, least rank (margin: C_lambda)"),
            replace(data.three, name=f"Assumption 3, exponent c{trivially}"),
            replace(data.four, name="Assumption 4, least eigenvalue of Sigma"),
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON; null where no theorem is about the model."""
        return {
            **super().to_json(),
            "n": self.n,
            "T": self.T,
            "d": self.d,
            "width": self.model.width,
            "loss": self.loss,
            "guaranteed": self.guaranteed,
            "failing": {name: _finite(factor) for name, factor in self.failing.items()},
            "outside": list(self.outside),
            "start_misfit": self.misfit,
            **self._constants_to_json(),
            "enough_misfit": _finite(self.enough_misfit),
            "promised_step": _finite(self.promised_step),
            "stable_step": _finite(self.stable_step),
            "step": _finite(self.at_step),
            "promised_rate": self.promised_rate,
            "local_rate": self.local_rate,
            "kernel": [float(self.eigenvalues[0]), float(self.eigenvalues[-1])],
            "lambda_0": None if self.lambda0 is None else vars(self.lambda0),
            "width_asked": {which: _finite(required.width) for which, required in self.widths.items()},
            "assumptions": {name: check.holds for name, check in vars(self.assumptions).items()},
        }

    def _constants_to_json(self) -> dict[str, Any]:
        k = self.constants
        if k is None:
            return {"start_loss": 0.5 * self.misfit**2}
        return {
            "start_loss": k.start_loss,
            "C_x": k.C_x,
            "norms": dict(k.norms),
            "radius": dict(k.radius),
            "alpha": k.alpha,
            "rho": k.rho,
            "z": k.z,
            "condition_2": k.condition_2.to_json(),
            "condition_3": k.condition_3.to_json(),
            "C": {"printed": k.smoothness(corrected=False), "corrected": k.smoothness()},
        }


def encoder_report(
    data: Sequences | Tokens,
    model: Encoder,
    weights: Mapping[str, ArrayLike] | None = None,
    *,
    loss: Reduction = "half_sum",
    step: float | None = None,
    radius: float | Mapping[str, float] = 1.0,
    seed: int = 0,
) -> EncoderReport:
    """Is gradient descent guaranteed to converge from here, how fast, with which step, and if not, what is missing?

    Args:
        data: sequences with their labels; one data set.
        model: an encoder. Theory is about shallow ones (depth 1, softmax attention, W_H = 1, W_Q and W_K apart); of
            others the report says that no theorem is about them, and what is measured.
        weights: the start; None draws one by the law of the model.
        loss: on which you train; steps and rates are for it.
        step: step size to tell rates for; None takes the largest that is promised something.
        radius: C_P, how far the theory lets each matrix move: one number, or one for each of "Q", "K", "V", "O".
        seed: of the drawn start.

    >>> import attnlab as al
    >>> data = al.data.gaussian_sequences(n=4, T=2, d=16)
    >>> report = encoder_report(data, al.models.Encoder(256), loss="mse_mean", step=0.1)
    >>> report.guaranteed, report.step < report.stable_step, sorted(report.failing)
    (False, True, ['(2)', '(3)'])
    """
    data = Sequences.of(data, "data")
    no_batch("data", data)
    others = "al.theory.ntk and al.theory.hessian_norm take any model"
    outside = settings_outside(instance("model", model, Encoder, "al.models.Encoder", others))
    one_of("loss", loss, tuple(REDUCTIONS))
    if step is not None:
        step = positive("step", step)
    longest = float(np.abs(data.x).max())
    if longest > LONGEST:
        entries = f"`data` has tokens with entries up to {longest:.1e}"
        problem = f"{entries}; constants grow like their twelfth power and overflow beyond {LONGEST:g}."
        raise InputError(message(problem, "divide the tokens by their largest norm"))
    start = model.initial(data, seed) if weights is None else model.check(data, weights)
    misfit = length(model.outputs(data, start) - data.y)
    about = partial(_report, data, model, start, loss, step, outside, misfit)
    if outside:
        return about(None, None)
    tau1 = model.tau1 * model.pooling(data.T)
    residual = start.get("S") if model.residual == "projected" else model.residual
    parameters = {name: start[name] for name in ("W_Q", "W_K", "W_V", "w_O")}
    variance = model.variances(data.T, data.d)["W_V"]
    first = forward(data.x, parameters, model.tau0, tau1, residual).attended[:, 0]  # (n, d)
    spread = lambda_0(first, variance)
    constants = Constants.of(data.x, data.y, parameters, tau0=model.tau0, tau1=tau1, radius=radius, residual=residual)
    return about(constants, spread)


def _report(
    data: Sequences,
    model: Encoder,
    start: Mapping[str, Array],
    loss: Reduction,
    step: float | None,
    outside: tuple[str, ...],
    misfit: float,
    constants: Constants | None,
    spread: Lambda0 | None,
) -> EncoderReport:
    """The report, with or without what the theorems are about."""
    widths = {} if constants is None or spread is None else _widths(data, model, constants.C_x, spread.value)
    return EncoderReport(
        model=model,
        n=data.n,
        T=data.T,
        d=data.d,
        loss=loss,
        unit=2.0 * REDUCTIONS[loss](data.n),
        constants=constants,
        eigenvalues=ntk_eigenvalues(data, model, start),
        lambda0=spread,
        widths=widths,
        assumptions=Assumptions(
            one=assumption_1(data.x),
            two=assumption_2(data.x),
            three=assumption_3(data.x),
            four=assumption_4(data.x),
        ),
        step=step,
        outside=outside,
        misfit=misfit if constants is None else constants.start_distance,
    )


def _widths(data: Sequences, model: Encoder, C_x: float, lambda0: float) -> dict[str, RequiredWidth]:
    """What the theorems ask for; none is about other scalings, a residual, or N(0, 1) weights with tau0 = m^(-1/2)."""
    if model.scaling not in ("sqrt", "linear") or model.hidden_scale is not None or model.residual is not None:
        return {}
    if C_x == 0 or (model.init == "ntk" and model.scaling == "sqrt"):
        return {}
    ask = partial(
        required_width,
        model.init,
        model.scaling,
        N=data.n,
        T=data.T,
        d=data.d,
        C_x=C_x,
        lambda0=lambda0,
    )
    return {"corrected": ask(corrected=True), "printed": ask(corrected=False)}


def _rate(value: float) -> str:
    """A factor per step; close to 1 its distance from 1 is what counts."""
    return f"1 - {1.0 - value:.3g}" if 0.9 < value < 1.0 else f"{value:.4g}"


def _finite(value: float) -> float | None:
    """A number as JSON knows it; null for what is not finite."""
    return float(value) if np.isfinite(value) else None
