"""`report`: what a model has learned on a data set, and how it would go on learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.checks import instance, no_batch
from attnlab.data.directions import misalignment
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array
from attnlab.models.attention import Attention
from attnlab.models.headtokens import HeadTokens
from attnlab.models.losses import LossLike, as_loss
from attnlab.models.model import Data, Model
from attnlab.models.precision import in_float64
from attnlab.models.scaled import GivenWeights, total_log_norm
from attnlab.reports.report import Fact, Report, Section
from attnlab.svm import MarginSolution, solve_margin
from attnlab.theory.tangent import ntk_eigenvalues

# A query whose largest weight is above this looks at one token.
SATURATED = 0.99
# Gradients of so many outputs by so many weights are made for the tangent kernel; more would take long.
MOST_GRADIENTS = 50_000_000
# So many heads are compared with their max-margin solutions.
MOST_HEADS = 8
# Heads inside a network, where every token asks, are left out beyond so many logits, or so many numbers of the tokens
# that they compare: solving for one would take long.
MOST_LOGITS = 20_000
MOST_COMPARED = 10_000_000
# Products of weights as large as this would take long themselves.
MOST_NUMBERS = 40_000_000
LARGEST_LOG = float(np.log(np.finfo(np.float64).max))


@dataclass(frozen=True, eq=False)
class HeadRow:
    """One attention head: how far it has saturated, and whether it points where theory says it will go.

    Attributes:
        name: of the head.
        top_attention: mean largest weight of its queries.
        saturated: share of queries whose largest weight is above 0.99.
        selected: token with the largest weight, per query.
        solution: the max-margin solution over those tokens.
        misalignment: 1 - cosine of its weights with that solution; None where there is none.
    """

    name: str
    top_attention: float
    saturated: float
    selected: NDArray[np.intp]
    solution: MarginSolution
    misalignment: float | None

    def record(self) -> dict[str, Any]:
        """The row of a table, by column."""
        return {
            "name": self.name,
            "top attention": self.top_attention,
            "saturated": self.saturated,
            "separable": bool(self.solution.feasible),
            "margin": self.solution.margin if self.solution.feasible else None,
            "misalignment": self.misalignment,
        }

    def cells(self) -> dict[str, str]:
        """The same as text, without the name."""
        angle = "" if self.misalignment is None else f"{self.misalignment:.2g}"
        return {
            "top attention": f"{self.top_attention:.3f}",
            "saturated": f"{self.saturated:.0%}",
            "separable": "yes" if self.solution.feasible else "no",
            "1 - cos to max margin": angle,
        }

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {**self.record(), "selected": self.selected.tolist()}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelReport(Report):
    """What a model has learned; print it.

    Attributes:
        model: the model.
        data: what the data print as.
        loss, log_loss: the objective, infinite where it is beyond floats, and its logarithm.
        loss_name: which objective.
        outputs: of every example.
        error: share of labels +-1, or of classes, that are not fitted; None for other labels.
        margin: least y output for labels +-1, or least lead of the right class; None for other labels.
        log_gradient_norm: logarithm of the length of the gradient.
        attention: weights of the last softmax, tokens along the last axis; empty without one.
        heads: each attention head against its max-margin solution, of models that are made of such.
        left_out: which heads are not among these, and why; empty where all are.
        eigenvalues: of the tangent kernel, ascending; None where there are too many weights.
    """

    model: Model
    data: str
    loss: float
    log_loss: float
    loss_name: str
    outputs: Array
    error: float | None
    margin: float | None
    log_gradient_norm: float
    attention: Array
    heads: tuple[HeadRow, ...]
    left_out: str
    eigenvalues: Array | None

    @property
    def top_attention(self) -> float | None:
        """Mean largest attention weight; None without attention."""
        return float(self.attention.max(-1).mean()) if self.attention.size else None

    @property
    def verdict(self) -> str:
        """Does it fit, and where does it look?"""
        beyond = self.loss in (0.0, np.inf) and np.isfinite(self.log_loss)
        loss = f"e^{self.log_loss:.1f}" if beyond else f"{self.loss:.4g}"
        fits = f"The {self.loss_name} loss is {loss}"
        if self.error is not None:
            fits += "; every label is fitted" if self.error == 0 else f"; {self.error:.1%} of the labels are not fitted"
        if self.top_attention is None:
            return f"{fits}."
        return f"{fits}. A query gives {self.top_attention:.3f} to its largest token on average."

    def sections(self) -> tuple[Section, ...]:
        """Facts, and a row for each head."""
        facts = [Fact("model", repr(self.model)), Fact("data", self.data)]
        if self.margin is not None:
            facts.append(Fact("least margin", f"{self.margin:.4g}"))
        facts.append(Fact("gradient", f"e^{self.log_gradient_norm:.2f} long"))
        if self.eigenvalues is not None and self.eigenvalues.size:
            least, largest = self.eigenvalues[0], self.eigenvalues[-1]
            facts.append(Fact("tangent kernel", f"eigenvalues from {least:.4g} to {largest:.4g}"))
        if self.left_out:
            facts.append(Fact("left out", self.left_out))
        return Section("", facts), Section("Attention heads", self.heads)

    def to_json(self) -> dict[str, Any]:
        """Verdict, rows and numbers, as plain JSON."""
        from attnlab.theory.check import plain

        numbers = {
            "loss": self.loss,
            "log_loss": self.log_loss,
            "error": self.error,
            "margin": self.margin,
            "log_gradient_norm": self.log_gradient_norm,
            "top_attention": self.top_attention,
            "left_out": self.left_out,
            "eigenvalues": self.eigenvalues,
        }
        return super().to_json() | plain(numbers)


@in_float64
def report(data: Data, model: Model | None, weights: GivenWeights, *, loss: LossLike | None = None) -> ModelReport:
    """What a model has learned on a data set: fit, attention, and what theory says of its heads.

    Args:
        data: one data set, as the model takes it.
        model: any `al.Model`; None for one attention layer with weights W or K and Q.
        weights: of the model, as `run.weights`.
        loss: as for `descend`.

    Returns:
        A `ModelReport`; print it, or read its attributes, `to_json()`, `frame()`.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=4, T=4, d=8, seed=0)
    >>> run = al.descend(tokens, al.ngd(0.2), steps=2000)
    >>> found = report(tokens, al.models.Attention(), run.weights)
    >>> found.error, found.heads[0].misalignment < 1e-2
    (0.0, True)
    """
    given = Attention.of_weights(weights) if model is None else model
    explained = instance("model", given, Model, "an al.Model", "the order is (data, model, weights)")
    accepted = explained.accepts(data)
    no_batch("data", accepted)
    chosen = as_loss(explained.usual_loss if loss is None else loss)
    outputs = explained.outputs(accepted, weights)
    error, margin = _fit(outputs, accepted.y)
    log_loss = float(explained.loss(accepted, weights, loss=chosen, log=True))
    mantissa, log_scale = explained.gradient(accepted, weights, loss=chosen)
    size = sum(weight.size for weight in mantissa.values())
    few = size * outputs.size <= MOST_GRADIENTS
    attention = explained.attention(accepted, weights)
    largest = max(weight.size for weight in mantissa.values())
    heads, left_out = _heads(explained, accepted, weights, largest) if attention.size else ((), "")
    return ModelReport(
        model=explained,
        data=repr(accepted),
        loss=np.inf if log_loss > LARGEST_LOG else float(explained.loss(accepted, weights, loss=chosen)),
        log_loss=log_loss,
        loss_name=chosen.name,
        outputs=outputs,
        error=error,
        margin=margin,
        log_gradient_norm=float(total_log_norm(mantissa, log_scale)),
        attention=attention,
        heads=heads,
        left_out=left_out,
        eigenvalues=ntk_eigenvalues(accepted, explained, weights) if few else None,
    )


def _fit(outputs: Array, y: Array) -> tuple[float | None, float | None]:
    """Share of labels that are not fitted, and the least margin; None for labels that are neither signs nor classes."""
    if outputs.shape == y.shape:
        if not (np.abs(y) == 1).all():
            return None, None
        margins = y * outputs
    else:
        right = np.arange(outputs.shape[-1]) == y[..., None]
        best_other = np.where(right, -np.inf, outputs).max(-1)
        margins = np.where(right, outputs, 0.0).sum(-1) - best_other
    return float(np.mean(margins <= 0)), float(margins.min())


def _heads(model: Model, data: Data, weights: GivenWeights, largest: int) -> tuple[tuple[HeadRow, ...], str]:
    """The first heads, none of a large network, and what is left out. `largest` counts the numbers of one weight."""
    inside = isinstance(data, Sequences)
    logits = data.n * data.T**2
    too_large = ""
    if inside and logits > MOST_LOGITS:
        too_large = f"{logits} logits each, more than {MOST_LOGITS}"
    elif inside and largest > MOST_NUMBERS:
        too_large = f"a weight of {largest} numbers, more than {MOST_NUMBERS}"
    if too_large:
        return (), f"all heads ({too_large}); model.heads_as_tokens(data, weights) gives them"
    heads = model.heads_as_tokens(data, weights)
    wide = [head.name for head in heads if inside and logits * head.tokens.d > MOST_COMPARED]
    narrow = [head for head in heads if head.name not in wide]
    left_out = []
    if wide:
        limit = f"{logits} logits of wide tokens, more than {MOST_COMPARED} numbers"
        left_out.append(f"{', '.join(wide)} ({limit}); model.heads_as_tokens(data, weights) gives them")
    if len(narrow) > MOST_HEADS:
        left_out.append(f"heads after the first {MOST_HEADS} of {len(narrow)}")
    return tuple(map(_head, narrow[:MOST_HEADS])), "; ".join(left_out)


def _head(head: HeadTokens) -> HeadRow:
    attention = Attention().attention(head.tokens, head.W)
    selected = attention.argmax(-1)
    solution = solve_margin(head.tokens, selected, throw=False)
    comparable = solution.feasible and np.any(solution.W) and np.any(head.W)
    top = attention.max(-1)
    return HeadRow(
        name=head.name,
        top_attention=float(top.mean()),
        saturated=float(np.mean(top > SATURATED)),
        selected=selected,
        solution=solution,
        misalignment=float(misalignment(head.W, solution.W)) if comparable else None,
    )
