"""The arrays of one attention layer, and what it computes at one point."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jax import Array

from attnlab.data.selection import optimal_tokens, scores
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.frame import Frame
from attnlab.models.heads import Head, Linear
from attnlab.models.powers import Powers
from attnlab.models.scaled import Params
from attnlab.models.softmax import Weights


class LayerProblem(NamedTuple):
    """The arrays of one trial (or a batch), of NumPy, or of JAX inside of programs. There is always a query axis."""

    x: Any  # (n, T, d) tokens, less what the tokens of a sequence have in common
    common: Any  # (n, d) that common part: softmax does not see it, the head does
    z: Any  # (n, K, d)
    y: Any  # (n, K)
    visible: Any  # (n, K, T), or None when all are
    head: dict[str, Any]
    reference: Any  # (n, K) token against which the excess loss is measured
    reference_score: Any  # (n, K)
    frame: Frame | None = None  # if W is given by its coordinates in this frame
    powers: Powers | None = None  # if powers of two were taken out of the arrays; see `attnlab.models.extremes`
    held: None = None  # the frame is what a layer is held in

    def rows(self) -> Params:
        """The arrays with one entry for each sequence."""
        names = ("x", "common", "z", "y", "visible", "reference", "reference_score")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def alone(self, row: Params) -> LayerProblem:
        """The problem of one sequence, given by its entries of `rows`."""
        return self._replace(**{name: array[None] for name, array in row.items()})

    def taken(self, which: Array) -> LayerProblem:
        """The problem of some sequences, by their numbers."""
        return self._replace(**{name: array[which] for name, array in self.rows().items()})


class Evaluation(NamedTuple):
    """Everything the model computes at one point, per query."""

    logits: Array  # (n, K, T), -inf where masked
    weights: Weights
    margins: Array  # (n, K)
    outputs: Array  # (n, K)
    hidden: None = None

    @property
    def attention(self) -> Array:
        """Attention weights (n, K, T)."""
        return self.weights.probs


class View(NamedTuple):
    """What a metric of your own sees: one trial at one recorded step.

    W is always there (K Q^T when those are trained). `logits` and `probs` have shape (n, K, T), `margins` (n, K),
    with K = 1 for a single query.
    """

    params: Params
    W: Array
    logits: Array
    probs: Array
    margins: Array


def make_problem(tokens: Tokens, head: Head, valued: Tokens | None = None) -> LayerProblem:
    """The arrays of `tokens` in the form the model works on; the reference is the token of best score.

    The head sees the tokens of `valued`, if these are others.
    """
    lead = tokens.x.ndim - 3
    single = tokens.K is None

    def with_query_axis(a: np.ndarray) -> np.ndarray:
        return np.expand_dims(a, lead + 1) if single else a

    # What a sequence's visible tokens share cannot change a softmax; taking it out keeps the digits of the rest.
    seen = tokens.visible if single else np.any(tokens.visible, axis=-2)
    count = np.sum(seen, axis=-1)[..., None]
    with np.errstate(over="ignore", invalid="ignore"):
        common = np.where(seen[..., None], tokens.x, 0.0).sum(-2) / count
        x = np.where(seen[..., None], tokens.x - common[..., None, :], 0.0)
    if not np.isfinite(x).all():
        largest = f"`x` has entries up to {np.abs(tokens.x).max():.1e}"
        raise InputError(message(f"{largest}; sums of them are beyond 1.8e308.", "np.ldexp(x, -20) divides by 2^20"))
    valued = tokens if valued is None else valued
    scorer = None if isinstance(head, Linear) else head
    reference, _ = optimal_tokens(valued, scorer, return_ties=True)
    score = np.take_along_axis(scores(valued, scorer), reference[..., None], axis=-1)[..., 0]
    return LayerProblem(
        x=x,
        common=common,
        z=with_query_axis(tokens.z),
        y=with_query_axis(tokens.y),
        visible=None if tokens.mask is None else with_query_axis(tokens.mask),
        head=head.constants(tokens),
        reference=with_query_axis(reference),
        reference_score=with_query_axis(score),
    )
