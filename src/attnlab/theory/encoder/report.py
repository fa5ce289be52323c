"""Will gradient descent fit this data with this encoder? What is promised, what the kernel says, and what is missing.

Proposition 1 and Theorems 1 and 2 of *On the Convergence of Encoder-only Shallow Transformers*, on your own data,
labels and weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import one_of
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.encoder import Encoder
from attnlab.models.regression import REDUCTIONS, Reduction
from attnlab.optim.rule import positive
from attnlab.theory.encoder.assumptions import (
    BoundedTokens,
    Covariance,
    Dissimilarity,
    FullRank,
    assumption_1,
    assumption_2,
    assumption_3,
    assumption_4,
)
from attnlab.theory.encoder.constants import Condition, Constants
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
class EncoderReport:
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
        widths: which the theorems ask for, "paper" and "corrected"; empty where no theorem is about the model.
        assumptions: on the data.
        step: that was asked about; None for the largest that is promised something.
    """

    model: Encoder
    n: int
    T: int
    d: int
    loss: Reduction
    unit: float
    constants: Constants
    eigenvalues: Array
    lambda0: Lambda0
    widths: Mapping[str, RequiredWidth]
    assumptions: Assumptions
    step: float | None

    @property
    def guaranteed(self) -> bool:
        """Does Proposition 1 promise convergence, at a step of at most `promised_step`?"""
        return self.constants.applies

    @property
    def conditions(self) -> tuple[Condition, Condition]:
        """Conditions (2) and (3)."""
        return self.constants.condition_2, self.constants.condition_3

    @property
    def failing(self) -> dict[str, float]:
        """What keeps the promise from being made, and by which factor it is missed; empty if nothing."""
        found = {c.name: 1.0 / c.margin if c.margin > 0 else np.inf for c in self.conditions if not c.holds}
        if self.model.width < self.n:
            found["width >= n"] = self.n / self.model.width
        if self.constants.alpha == 0 and not found:
            found["alpha > 0"] = np.inf
        return found

    @property
    def enough_misfit(self) -> float:
        """With `|f - y|` at most this at the start both conditions would hold; they are linear in it."""
        return self.constants.start_distance * min(c.margin for c in self.conditions) if self.constants.alpha else 0.0

    @property
    def promised_step(self) -> float:
        """The largest step that Proposition 1 speaks of, 1 / C with the corrected constant."""
        return self.constants.largest_step() / self.unit

    @property
    def stable_step(self) -> float:
        """`2 / lambda_max` of the kernel: with a longer step the loss grows at first. Inf where the kernel is zero."""
        return float(2.0 / (self.unit * self.eigenvalues[-1])) if self.eigenvalues[-1] > 0 else np.inf

    @property
    def at_step(self) -> float:
        """The step that rates are told for: the one asked about, or the promised one."""
        return self.promised_step if self.step is None else self.step

    @property
    def promised_rate(self) -> float:
        """The loss is at most this times what it was, per step (Eq. (4)); 1 where nothing is promised."""
        if not self.guaranteed or self.at_step > self.promised_step:
            return 1.0
        return float(1.0 - RATE * self.unit * self.at_step * self.constants.alpha**2)

    @property
    def local_rate(self) -> float:
        """`max (1 - step lambda)^2` over the kernel's eigenvalues: while the kernel stays as it is at the start, the
        slowest part of the loss is multiplied by this at each step. Above 1 the loss grows."""
        # A kernel of zeros allows any step, and no step moves anything.
        moves = [1.0 - self.unit * self.at_step * float(v) if v > 0 else 1.0 for v in self.eigenvalues[[0, -1]]]
        return max(move * move for move in moves)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        second, third = self.conditions
        k = self.constants

        def plain(value: float) -> float | None:
            return float(value) if np.isfinite(value) else None

        return {
            "n": self.n, "T": self.T, "d": self.d, "width": self.model.width, "loss": self.loss,
            "guaranteed": self.guaranteed, "failing": {name: plain(v) for name, v in self.failing.items()},
            "C_x": k.C_x, "norms": dict(k.norms), "radius": dict(k.radius), "alpha": k.alpha, "rho": k.rho, "z": k.z,
            "start_loss": k.start_loss, "start_misfit": k.start_distance, "enough_misfit": plain(self.enough_misfit),
            "condition_2": {"left": second.left, "right": second.right, "margin": plain(second.margin),
                            "entries": dict(second.entries)},
            "condition_3": {"left": third.left, "right": third.right, "margin": plain(third.margin)},
            "C": {"paper": k.smoothness("paper"), "corrected": k.smoothness()},
            "promised_step": plain(self.promised_step), "stable_step": plain(self.stable_step),
            "step": plain(self.at_step), "promised_rate": self.promised_rate, "local_rate": self.local_rate,
            "kernel": [float(self.eigenvalues[0]), float(self.eigenvalues[-1])], "lambda_0": vars(self.lambda0),
            "width_asked": {mode: plain(w.width) for mode, w in self.widths.items()},
            "assumptions": {name: a.holds for name, a in vars(self.assumptions).items()},
        }  # fmt: skip

    def __repr__(self) -> str:
        k, (second, third) = self.constants, self.conditions
        if self.guaranteed:
            verdict = ("Proposition 1 guarantees that gradient descent reaches zero loss (its proof takes relu to be "
                       "smooth).")  # fmt: skip
        else:
            short = ", ".join(f"{name} by a factor {by:.3g}" for name, by in self.failing.items())
            verdict = f"Nothing is guaranteed: missed are {short}."
        asked = " and ".join(f"{w.width:.2g} ({mode})" for mode, w in self.widths.items())
        a = self.assumptions
        rows = [
            ("data", f"n = {self.n}, T = {self.T}, d = {self.d}, C_x = {k.C_x:.4g}"),
            ("start", f"|f - y| = {k.start_distance:.4g}, alpha = {k.alpha:.4g}; norms "
             + ", ".join(f"{name} {v:.3g}" for name, v in k.norms.items())),
            ("condition (2)", _told("alpha^2", second) + f" (largest entry: {second.largest})"),
            ("condition (3)", _told("alpha^3", third)),
            ("both hold for", f"|f - y| <= {self.enough_misfit:.3g} at the start"),
            ("step", f"promised up to {self.promised_step:.4g}, stable up to {self.stable_step:.4g} ({self.loss})"),
            ("rate", f"at step {self.at_step:.4g}: the kernel says {_rate(self.local_rate)}"
             + (f", promised {_rate(self.promised_rate)}" if self.promised_rate < 1 else ", nothing is promised")),
            ("kernel", f"eigenvalues from {self.eigenvalues[0]:.4g} to {self.eigenvalues[-1]:.4g}"),
            ("lambda_0", f"{self.lambda0.value:.4g}, at least {max(self.lambda0.hermite, 0.0):.3g}, at most "
             f"{self.lambda0.upper:.3g}"),
            ("width", f"{self.model.width}; {f'the theorems ask for {asked}' if asked else 'no theorem is about it'}"),
            ("assumptions", f"1 holds, 2 {_yes(a.two.holds)} (C_lambda = {a.two.C_lambda:.3g}), 3 {_yes(a.three.holds)}"
             f"{' trivially' if a.three.holds and a.three.trivial else ''}, 4 {_yes(a.four.holds)}"),
        ]  # fmt: skip
        width = max(len(name) for name, _ in rows)
        return "\n".join([verdict, *(f"{name:{width}}  {text}" for name, text in rows)])


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
        model: a shallow encoder (depth 1, softmax attention).
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
    if data.trials is not None:
        raise InputError(message(f"`data` is a batch of {data.trials} trials; wanted one data set.", "data[0]"))
    _check(model)
    one_of("loss", loss, tuple(REDUCTIONS))
    if step is not None:
        step = positive("step", step)
    longest = float(np.abs(data.x).max())
    if longest > LONGEST:
        raise InputError(
            message(f"`data` has tokens with entries up to {longest:.1e}; constants grow like their twelfth power and "
                    f"overflow beyond {LONGEST:g}.", "divide the tokens by their largest norm")
        )  # fmt: skip
    own = model.initial(data, seed) if weights is None else model.check(data, weights)
    tau1 = model.tau1 * model.pooling(data.T)
    residual = own.get("S") if model.residual == "projected" else model.residual
    four = {name: own[name] for name in ("W_Q", "W_K", "W_V", "w_O")}
    variance = model.variances(data.T, data.d)["W_V"]
    first = forward(data.x, four, model.tau0, tau1, residual).attended[:, 0]
    spread = lambda_0(first, variance)
    constants = Constants.of(data.x, data.y, four, tau0=model.tau0, tau1=tau1, radius=radius, residual=residual)
    return EncoderReport(
        model=model, n=data.n, T=data.T, d=data.d, loss=loss, unit=2.0 * REDUCTIONS[loss](data.n), constants=constants,
        eigenvalues=ntk_eigenvalues(data, own, model), lambda0=spread,
        widths=_widths(data, model, constants.C_x, spread.value),
        assumptions=Assumptions(one=assumption_1(data.x), two=assumption_2(data.x), three=assumption_3(data.x),
                                four=assumption_4(data.x)), step=step,
    )  # fmt: skip


def _check(model: Any) -> None:
    if not isinstance(model, Encoder):
        raise InputError(
            message(f"`model` is a {type(model).__name__}; wanted al.models.Encoder.",
                    "al.theory.ntk and al.theory.hessian_norm take any model")
        )  # fmt: skip
    usual = {"depth": 1, "attention_kind": "softmax", "tied": False, "parameterization": "standard"}
    for name, wanted in usual.items():
        if getattr(model, name) != wanted:
            raise InputError(
                message(f"`model` has {name} = {getattr(model, name)!r}; the theory is about {name} = {wanted!r}.",
                        "al.theory.ntk and al.theory.hessian_norm take any model")
            )  # fmt: skip


def _widths(data: Sequences, model: Encoder, C_x: float, lambda0: float) -> dict[str, RequiredWidth]:
    """What the theorems ask for; none is about other scalings, a residual, or N(0, 1) weights with tau0 = m^(-1/2)."""
    covered = model.scaling in ("sqrt", "linear") and model.hidden_scale is None and model.residual is None
    if not covered or C_x == 0 or (model.init == "ntk" and model.scaling == "sqrt"):
        return {}
    sizes = {"N": data.n, "T": data.T, "d": data.d, "C_x": C_x, "lambda0": lambda0}
    return {
        mode: required_width(model.init, model.scaling, mode=mode, **sizes)  # type: ignore[arg-type]
        for mode in ("corrected", "paper")
    }


def _told(name: str, condition: Condition) -> str:
    met = "met" if condition.holds else "not met"
    return f"{name} = {condition.left:.3g} against {condition.right:.3g}: {met}, margin {condition.margin:.3g}"


def _rate(value: float) -> str:
    """A factor per step; close to 1 its distance from 1 is what counts."""
    return f"1 - {1.0 - value:.3g}" if 0.9 < value < 1.0 else f"{value:.4g}"


def _yes(good: bool) -> str:
    return "holds" if good else "fails"
